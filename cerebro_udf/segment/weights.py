"""Weights that a model begins from: those of an earlier run, or those that it was imported with.

A blob of ``state.pack``, its arrays named ``model/<position>`` among the variables that are no random generators (``state.learnt``),
or ``layers/<name>/…/<position>``: layers by name, from the user's own model inwards, and the position among that layer's variables.
"""

from __future__ import annotations

from typing import Any, Callable, Container, Dict, Optional

import numpy as np

from cerebro_udf.errors import TrialFailed
from cerebro_udf.segment import network, state


def assign(model: Any, body: Any, blob: bytes) -> None:
    """Give a freshly built model these weights; generators keep their own seed.

    Args:
        model: With the head for text codes.
        body: The user's own model, within it.

    Raises:
        TrialFailed: a variable that is named is not there, or has another shape.
        StateMismatch: the blob is damaged.
    """
    arrays, _ = state.unpack(blob)
    kept = (variable for variable in model.variables if not is_generator(variable))
    positions = {"model/%d" % i: variable for i, variable in enumerate(kept)}
    for name, array in arrays.items():
        variable = positions[name] if name in positions else _within(body, name)
        shape = None if variable is None else tuple(variable.shape)
        if shape != array.shape:
            raise TrialFailed(
                "the weights that the run begins from do not fit: %s is %s, the model has %s there"
                % (name, list(array.shape), "nothing" if shape is None else list(shape))
            )
        if not is_generator(variable):
            variable.assign(array)


def collect(model: Any, pulse: Callable[[], None], without: Container[int] = ()) -> Dict[str, np.ndarray]:
    """Return the weights of a built model by name, as :func:`assign` takes them; ``pulse`` is called after every layer.

    Args:
        without: The ids of variables that the model will not have.
    """
    collected = {}
    for layer in model.layers:
        for i, variable in enumerate(variable for variable in layer.variables if id(variable) not in without):
            if not is_generator(variable):
                collected["layers/%s/%d" % (layer.name, i)] = network.snapshot(variable)
        pulse()
    return collected


def is_generator(variable: Any) -> bool:
    return variable.name == "seed_generator_state"


def _within(body: Any, name: str) -> Optional[Any]:
    kind, *path, position = name.split("/")
    for step in path:
        body = next((layer for layer in getattr(body, "layers", ()) if layer.name == step), None)
    if body is None or kind != "layers" or not position.isdigit() or int(position) >= len(body.variables):
        return None
    return body.variables[int(position)]
