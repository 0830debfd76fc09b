"""Keras' metrics, each given labels and predictions in the form that it wants, and such that disjoint rows add up.

Every variable of a metric that is made here is a sum over rows, so accumulators of several shards are merged by adding
them (``state.add``), and the result is that of one pass over all rows, however they were cut into minibatches.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Tuple

import keras
import tensorflow as tf

from cerebro_udf import metric_forms

_LOGIT_AWARE = frozenset("BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy".split())

Convert = Callable[[tf.Tensor, tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]


def suited(metric: Any, part: dict, columns: int, logits: bool) -> keras.metrics.Metric:
    """Make a metric that takes a model's labels and outputs as they are.

    Args:
        metric: As ``compilation.check_metric`` returned it.
        part: One of the ``outputs`` of ``encoders.model_part``.
        columns: Output units of the model.
        logits: Whether the output are logits; they are made probabilities unless the metric knows logits itself.

    Raises:
        InvalidArgument: the metric makes no sense for this label.
        ValueError, TypeError: Keras refuses its config.
    """
    metric_forms.check(metric, part)
    metric = metric_forms.explicit(metric, columns == 1 or part["task"] == "multi_label")
    name, config = metric["class_name"], dict(metric["config"])
    form = metric_forms.form(metric, part["task"], columns)
    if name in _LOGIT_AWARE:
        config["from_logits"] = logits
        raw = True
    else:
        config.pop("from_logits", None)  # probabilities are made here
        raw = not logits or _cuts_logits(config)
    if form == "ids":
        config.update({key: True for key in ("sparse_y_true", "sparse_y_pred") if name != "Accuracy"})
    elif name.startswith("OneHot"):
        config["sparse_y_pred"] = False
    elif form == "places" and name in ("F1Score", "FBetaScore") and config.get("threshold") is None:
        config["threshold"] = 0.5  # without one Keras takes the most probable alone
    if name == "R2Score":
        config.setdefault("dtype", "float64")  # sums of squares, of which differences are taken
    related = metric_forms.over_rows(metric, form)
    convert = _flat if form == "value" and (related or name == "R2Score") else _CONVERSIONS[form](columns, logits, raw)
    if related:
        return Suited(Correlation(name, config["name"]), convert)
    made = keras.metrics.get({**metric, "config": config})
    return (WeighedByPlace if form == "places" and name == "BinaryIoU" else Suited)(made, convert)


def _cuts_logits(config: dict) -> bool:
    """Say whether a threshold was given that only logits can be cut at: 0."""
    return config.get("threshold", config.get("thresholds")) in (0, [0])


class Suited(keras.metrics.Metric):
    """A metric behind a conversion of what it is given; its variables are the metric's."""

    def __init__(self, metric: keras.metrics.Metric, convert: Convert):
        super().__init__(name=metric.name)
        self._metric, self._convert = metric, convert

    def update_state(self, y_true, y_pred, sample_weight=None):
        return self._metric.update_state(*self._convert(y_true, y_pred), sample_weight)

    def result(self):
        if tf.inside_function():  # once per minibatch, and thrown away; not every metric's can be traced
            return tf.zeros(())
        return self._metric.result()

    def reset_state(self):
        self._metric.reset_state()


class WeighedByPlace(Suited):
    """One that flattens rows but not their weights."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            weight = tf.reshape(sample_weight, (-1, *[1] * (len(y_pred.shape) - 1)))
            sample_weight = weight * tf.ones_like(y_pred, weight.dtype)
        return super().update_state(y_true, y_pred, sample_weight)


class Correlation(keras.metrics.Metric):
    """How labels and predictions go together over all rows, column by column, on average over the columns.

    Args:
        kind: ``PearsonCorrelation``; ``ConcordanceCorrelation``, 2 cov / (var + var + (mean - mean)²), Lin 1989; or
            ``CosineSimilarity``.
    """

    def __init__(self, kind: str, name: str):
        super().__init__(name=name, dtype="float64")
        self._kind, self._sums = kind, None

    def update_state(self, y_true, y_pred, sample_weight=None):
        x, y = (tf.reshape(tf.cast(part, tf.float64), (-1, y_pred.shape[-1])) for part in (y_true, y_pred))
        if self._sums is None:
            self._sums = self.add_variable((6, y_pred.shape[-1]), "zeros", "float64", name="sums")
        weight = tf.ones_like(x) if sample_weight is None else tf.reshape(tf.cast(sample_weight, tf.float64), (-1, 1)) + 0 * x
        sums = [tf.reduce_sum(weight * part, 0) for part in (tf.ones_like(x), x, y, x * x, y * y, x * y)]
        self._sums.assign_add(tf.stack(sums))

    def result(self):
        count, *sums = tf.unstack(tf.convert_to_tensor(self._sums.value))
        x, y, xx, yy, xy = (part / count for part in sums)
        if self._kind == "CosineSimilarity":
            return tf.reduce_mean(xy / tf.sqrt(xx * yy))
        covariance, variances = xy - x * y, (xx - x * x, yy - y * y)
        if self._kind == "PearsonCorrelation":
            return tf.reduce_mean(covariance / tf.sqrt(variances[0] * variances[1]))
        return tf.reduce_mean(2 * covariance / (variances[0] + variances[1] + (x - y) ** 2))


def _column(values: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, (-1, 1))


def _columns(y: tf.Tensor, columns: int, logits: bool, raw: bool) -> tf.Tensor:
    """Outputs with one column per class: probabilities, or logits if ``raw``."""
    if columns > 1:
        return tf.nn.softmax(y) if logits and not raw else y
    if logits and raw:
        return tf.concat([tf.zeros_like(y), y], 1)
    y = tf.sigmoid(y) if logits else y
    return tf.concat([1 - y, y], 1)


def _flat(true: tf.Tensor, pred: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Arrays with one column per number of theirs."""
    true, pred = (tf.reshape(part, (-1, math.prod(pred.shape[1:]))) for part in (true, pred))
    return true, pred


def _value(columns: int, logits: bool, raw: bool) -> Convert:
    return lambda true, pred: (_column(true) if len(true.shape) == 1 else true, pred)


def _classes(columns: int, logits: bool, raw: bool) -> Convert:
    return lambda true, pred: (true, _columns(pred, columns, logits, raw))


def _one_hot(columns: int, logits: bool, raw: bool) -> Convert:
    def convert(true, pred):
        return tf.one_hot(true, max(columns, 2), dtype=pred.dtype), _columns(pred, columns, logits, raw)

    return convert


def _score(columns: int, logits: bool, raw: bool) -> Convert:
    def convert(true, pred):
        if columns == 2:  # a logit of two is their difference: softmax of two is the sigmoid of it
            pred = pred[:, 1:] - pred[:, :1] if logits else pred[:, 1:]
        return _column(true), tf.sigmoid(pred) if logits and not raw else pred

    return convert


def _ids(columns: int, logits: bool, raw: bool) -> Convert:
    return lambda true, pred: (true, tf.argmax(_columns(pred, columns, logits, raw=False), 1, output_type=tf.int32))


def _places(columns: int, logits: bool, raw: bool) -> Convert:
    def convert(true, pred):
        true, pred = _flat(true, pred)
        return true, tf.sigmoid(pred) if logits and not raw else pred

    return convert


_CONVERSIONS = {"value": _value, "classes": _classes, "one_hot": _one_hot, "score": _score, "ids": _ids, "places": _places}
