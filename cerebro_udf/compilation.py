"""What a model is compiled with: optimizer, loss and metrics, checked and brought into Keras' full form. Pure."""

from __future__ import annotations

import re
from typing import Any, List

from cerebro_udf import keras_names as names
from cerebro_udf.keras_objects import LOSS, METRIC, OPTIMIZER, Reader, is_known


def check_optimizer(value: Any) -> dict:
    """Check an optimizer: a name, the short form ``{"Adam": {"learning_rate": 0.01}}``, or Keras' own form.

    Returns:
        ``{"module": "keras.optimizers", "class_name": …, "config": …, "registered_name": None}``, the config
        checked by ``optimizers``; a ``learning_rate`` in it is a number > 0 or a schedule in the same form.
    """
    return Reader("optimizer").named(OPTIMIZER, value, "optimizer")


def check_loss(value: Any) -> dict:
    """Check a loss given by Keras' name or alias, short form, or config; return its full Keras form."""
    return Reader("loss").named(LOSS, value, "loss")


def check_metric(value: Any) -> Any:
    """Check a metric given by Keras' name or alias, short form, or config.

    Returns:
        The full Keras form, always with a ``name`` in its config (Keras would number names through the whole
        process). ``accuracy``, ``acc``, ``crossentropy`` and ``ce`` stay strings: Keras chooses the class by
        the model's output.
    """
    if is_known(value, names.METRICS_BY_OUTPUT):
        return value
    metric = Reader("metrics").named(METRIC, value, "metrics")
    if isinstance(value, str):  # Keras reports a metric under the name it was asked for
        metric["config"].setdefault("name", value)
    metric["config"].setdefault("name", snake_case(metric["class_name"]))
    if not isinstance(metric["config"]["name"], str):
        raise Reader("metrics").error("a metric's name must be text", "metrics.%s.name" % metric["class_name"], metric["config"]["name"])
    return metric


def metric_name(metric: Any) -> str:
    """Return the name under which Keras reports a checked metric."""
    return metric if isinstance(metric, str) else metric["config"]["name"]


def snake_case(name: str) -> str:
    """Return Keras' default name for a class: ``RootMeanSquaredError`` is ``root_mean_squared_error``."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def default_learning_rate(optimizer: dict) -> float:
    """Return the learning rate that Keras gives to a checked optimizer whose config has none."""
    return names.DEFAULT_LEARNING_RATES.get(optimizer["class_name"], names.DEFAULT_LEARNING_RATE)


def optimizer_arguments(optimizer: dict) -> List[str]:
    """Return the names of the arguments that a checked optimizer takes."""
    return OPTIMIZER.arguments(optimizer["class_name"])
