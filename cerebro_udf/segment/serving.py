"""Which weights serve: for validation, and so for ranking, for prediction and for export.

They are the trained ones, unless the optimizer keeps an exponential moving average of them (``use_ema``): then the average
serves, as under Keras' callback ``SwapEMAWeights``, and as Keras leaves it in the model when ``fit`` ends. A state holds both,
and says which is whose (``state.serving``).
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from cerebro_udf.segment import network, state


def averages(model: Any) -> Dict[str, str]:
    """Return, by names of a state, which entry serves in the place of which weight of a compiled model."""
    optimizer = network.inner_optimizer(model.optimizer)
    if not optimizer.use_ema:
        return {}
    weights = {id(variable): "model/%d" % i for i, variable in enumerate(model.variables)}
    kept = {id(variable): "optimizer/%d" % i for i, variable in enumerate(model.optimizer.variables)}
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average)
    return {weights[id(weight)]: kept[id(average)] for weight, average in pairs if average is not None}


def assign(model: Any, blob: bytes, pulse: Callable[[], None] = lambda: None) -> None:
    """Give a built model the weights of a state that serve; ``pulse`` is called after every variable.

    Raises:
        StateMismatch: the blob is damaged or belongs to another program; nothing was assigned.
    """
    arrays = state.serving(blob)
    named = {"model/%d" % i: variable for i, variable in enumerate(model.variables)}
    state.check(arrays, {name: (tuple(variable.shape), variable.dtype) for name, variable in named.items()})
    for name, variable in named.items():
        variable.value.assign(arrays[name])
        pulse()
