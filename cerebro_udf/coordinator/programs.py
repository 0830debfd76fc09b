"""From a trial's values to the program that segments build, for training, evaluation and prediction."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

from cerebro_udf import definition as definitions
from cerebro_udf import encoders as encoding
from cerebro_udf import metric_forms
from cerebro_udf.coordinator import search
from cerebro_udf.coordinator.options import Options


def spec(options: Options, params: Dict[str, Any], definition: dict, encoders: dict) -> dict:
    """Return the spec of a trial's program, see ``segment.program.Program``.

    Args:
        options: The run's.
        params: The trial's value for every axis of the search.
        definition: The model as stored, with placeholders.
        encoders: The run's.
    """
    settings = search.resolve(options, params)
    values = {"input_shape": encoding.input_shape(encoders), "classes": encoding.n_classes(encoders)}
    return {
        "definition": definitions.bind(definition, {**settings["model_values"], **values}),
        "optimizer": settings["optimizer"],
        "loss": settings["loss"],
        "metrics": settings["metrics"],
        "weighted_metrics": options.weighted_metrics,
        "precision": options.precision,
        "encoders": encoding.model_part(encoders),
    }


def check_metrics(metrics: Optional[List[Any]], encoders: dict) -> None:
    """Refuse metrics that make no sense for the label, before anything is built.

    Raises:
        InvalidArgument.
    """
    for metric in metrics or ():
        metric_forms.check(metric, encoding.model_part(encoders), encoders["label"]["name"])


def order(options: Options, params: Dict[str, Any], definition: dict, encoders: dict) -> dict:
    """Return what every order of a trial says: ``program``, ``batch_size`` and ``learning_rate``."""
    settings = search.resolve(options, params)
    return {
        "program": spec(options, params, definition, encoders),
        "batch_size": settings["batch_size"],
        "learning_rate": settings["learning_rate"],
    }


def shape(order: dict) -> str:
    """Return what two trials must have in common to be trained as one: all of their orders but the learning rate."""
    program = order["program"]
    config = {key: value for key, value in program["optimizer"]["config"].items() if key != "learning_rate" or isinstance(value, dict)}
    optimizer = {**program["optimizer"], "config": config}
    return json.dumps([{**program, "optimizer": optimizer}, order["batch_size"]], sort_keys=True)
