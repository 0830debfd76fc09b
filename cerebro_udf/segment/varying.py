"""Layers of a program whose dropout rates are values that each visit brings, see ``cerebro_udf.dropout``."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Sequence

import numpy as np

from cerebro_udf import dropout
from cerebro_udf.errors import InvalidArgument, TrialFailed

import keras  # isort: skip  (network says first how TensorFlow has to start)
import tensorflow as tf  # isort: skip


class DropoutRates:
    """The rates at which a model's layers drop, in the order of its definition.

    Args:
        model: Built from a definition that ``dropout.split`` returned; its layers read their rates here from now on.
        count: How many rates there are.

    Attributes:
        current: What the model drops at; float64 (count, 2), of each layer the rate, and by what is kept is multiplied.
    """

    def __init__(self, model: keras.Model, count: int):
        layers = [layer for layer in model._flatten_layers() if type(layer).__name__ in dropout.LAYERS and 0 < layer.rate < 1]
        self._layers = sorted(layers, key=lambda layer: layer.rate)  # which tells their places
        if len(self._layers) != count:
            raise TrialFailed("the model has %d layers of dropout, its definition %d" % (len(self._layers), count))
        self.current = tf.Variable(np.zeros((count, 2)), trainable=False)
        self._member: Any = None
        for position, layer in enumerate(self._layers):
            layer.call = self._call(layer, position)

    def values(self, rates: Sequence[float]) -> np.ndarray:
        """Return float64 (count, 2): what ``current`` and :meth:`member` take.

        Raises:
            InvalidArgument: there are more or fewer, or they are no rates.
        """
        good = isinstance(rates, list) and len(rates) == len(self._layers) and all(
            isinstance(rate, (int, float)) and 0 < rate < 1 for rate in rates
        )  # fmt: skip
        if not good:
            raise InvalidArgument(
                '"dropout" of a trial is not a list of %d rates between 0 and 1' % len(self._layers),
                "It is %s." % str(rates)[:100],
                "Call cerebro.fit, which asks workers for what they can do.",
            )
        rows: List[Any] = []
        for rate, layer in zip(rates, self._layers):
            # Rounded as Keras rounds them, from Python's numbers to what the layer computes in.
            rounded = np.array([rate, 1 / (1 - rate)]).astype(tf.as_dtype(layer.compute_dtype).as_numpy_dtype)
            rows.append(rounded.astype(np.float64))
        return np.array(rows).reshape(len(rows), 2)

    @contextlib.contextmanager
    def member(self, values: Any) -> Iterator[None]:
        """Have what is traced within drop at the rates of a tensor (count, 2)."""
        self._member = values
        try:
            yield
        finally:
            self._member = None

    def _call(self, layer: Any, position: int) -> Any:
        def call(inputs, training=False):
            """Do what Keras' layer does, bit for bit, the rate being a tensor."""
            if not training:
                return inputs
            rate, scale = tf.unstack(tf.cast((self.current if self._member is None else self._member)[position], inputs.dtype))
            shape = layer._get_noise_shape(inputs) if hasattr(layer, "_get_noise_shape") else layer.noise_shape
            found = tf.shape(inputs)
            shape = found if shape is None else [found[i] if n is None else n for i, n in enumerate(shape)]
            drawn = keras.random.uniform(shape, dtype=inputs.dtype, seed=layer.seed_generator)
            if self._member is not None:  # one product instead of two and a choice; only the sign of a zero may differ
                return inputs * (tf.cast(drawn >= rate, inputs.dtype) * scale)
            return tf.where(drawn >= rate, inputs * scale, tf.zeros((), inputs.dtype))

        return call
