"""What a freshly built model holds under a seed, without building it for every seed anew.

Keras draws one number of Python's generator for each initializer and each random generator that names no seed, in the order in
which a model's objects are made (``keras.src.random.seed_generator.make_default_seed``). A first value depends on that number,
its initializer and its shape alone. So a model is built once; for another seed the numbers are drawn, and initializers called.
"""

from __future__ import annotations

import json
import random
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from cerebro_udf.segment import network

import keras  # isort: skip  (network says first how TensorFlow has to start)
import tensorflow as tf  # isort: skip

_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)
_DRAWS_PER_VARIABLE = 8  # layers make initializers that they do not use in the end

Draw = Callable[[Callable[[int], int]], np.ndarray]


class Beginning:
    """The first values of models of one program.

    Args:
        spec: See ``program.Program``.
    """

    def __init__(self, spec: dict):
        self._spec = spec
        self._draws: Optional[List[Draw]] = None  # of each variable; empty if they cannot be told
        self._numbers = 0

    def values(self, seed: int) -> List[np.ndarray]:
        """Return what every variable of a freshly built model (``network.bare``) holds, bit for bit, in their order.

        Raises:
            TrialFailed: the model does not fit the data, or the memory.
        """
        if self._draws:
            numbers = self._drawn(seed)
            with network.one_trial_fails():
                return [draw(numbers.__getitem__) for draw in self._draws]
        made: Dict[int, Any] = {}
        with tf.variable_creator_scope(lambda make, **settings: _noting(made, make, settings)):
            model = network.bare(self._spec, seed)
        values = [network.snapshot(variable) for variable in model.variables]
        if self._draws is None:
            self._numbers = _DRAWS_PER_VARIABLE * (len(values) + 1)
            with network.one_trial_fails():
                self._draws = self._learn(model, made, values, self._drawn(seed)) or []
        return values

    def _drawn(self, seed: int) -> List[int]:
        generator = random.Random(seed)
        return [generator.randint(1, int(1e9)) for _ in range(self._numbers)]

    def _learn(self, model: keras.Model, made: Dict[int, Any], values: List[np.ndarray], numbers: List[int]) -> Optional[List[Draw]]:
        """Say how each value comes about; None if one does not come out as it was."""
        generators = dict(network.generators(model))
        given = json.dumps(self._spec["definition"])
        draws = []
        for i, (variable, value) in enumerate(zip(model.variables, values)):
            initializer = made.get(id(variable))
            seed = int(value[0]) if i in generators else getattr(initializer, "seed", None)
            if isinstance(initializer, _CONSTANT) or (isinstance(seed, int) and str(seed) in given and seed not in numbers):
                draws.append(_always(value))
                continue
            if seed not in numbers or str(seed) in given:
                return None
            place = numbers.index(seed)
            draw = _generator(place, value.dtype) if i in generators else _initialized(initializer, place, variable)
            if draw(numbers.__getitem__).tobytes() != value.tobytes():
                return None
            draws.append(draw)
        return draws


def _noting(made: Dict[int, Any], make: Callable, settings: dict) -> Any:
    """Note which initializer a variable is made by: Keras gives a closure over both."""
    cells = [cell.cell_contents for cell in getattr(settings["initial_value"], "__closure__", None) or ()]
    variable = next((content for content in cells if isinstance(content, keras.Variable)), None)
    if variable is not None:
        made[id(variable)] = next((content for content in cells if content is not variable), None)
    return make(**settings)


def _always(value: np.ndarray) -> Draw:
    return lambda number: value


def _generator(place: int, dtype: Any) -> Draw:
    return lambda number: np.array([number(place), 0], dtype)


def _initialized(initializer: Any, place: int, variable: keras.Variable) -> Draw:
    shape, dtype = tuple(variable.shape), variable.dtype

    def draw(number: Callable[[int], int]) -> np.ndarray:
        initializer.seed = number(place)
        return np.asarray(tf.cast(initializer(shape, dtype=dtype), dtype))

    return draw
