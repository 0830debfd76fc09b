"""From a trial's values to the program that segments build, for training, evaluation and prediction."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional

from cerebro_udf import definition as definitions
from cerebro_udf import dropout, metric_forms, optimizers
from cerebro_udf import encoders as encoding
from cerebro_udf.coordinator import adapting, search
from cerebro_udf.coordinator.options import Options
from cerebro_udf.errors import InvalidArgument

# The argument that says how many codes a layer takes.
_PLACES = {"Embedding": "input_dim", "ReversibleEmbedding": "input_dim", "CategoryEncoding": "num_tokens"}


def check_metrics(wanted: Callable[[Optional[str]], Optional[List[Any]]], encoders: dict) -> None:
    """Refuse metrics that make no sense for an output's label, before anything is built.

    Args:
        wanted: From the name of an output to the metrics that are asked for of it.

    Raises:
        InvalidArgument.
    """
    for part, label in zip(encoding.model_part(encoders)["outputs"], encoders["labels"]):
        for metric in wanted(part["name"]) or ():
            metric_forms.check(metric, part, label["name"])


def check_codes(model: dict, run: dict) -> None:
    """Refuse layers that have fewer places than the column that they take has codes.

    Args:
        model: Of ``definition.bind``.
        run: The run's encoders.

    Raises:
        InvalidArgument.
    """
    for name, layer in adapting.on_inputs(model):
        argument = _PLACES.get(layer["class_name"])
        given = next(given for given in run["inputs"] if name is None or given["name"] == name)
        for feature in run["features"] if argument else ():
            codes = encoding.largest_code(feature) + 1 if feature["name"] in given["features"] else 0
            if layer["config"][argument] < codes:
                raise InvalidArgument(
                    'layer %s has too few places for the values of column "%s"' % (layer["class_name"], feature["name"]),
                    "Its %s is %d, the column has %d codes, from 0." % (argument, layer["config"][argument], codes),
                    "Set %s to %d or more." % (argument, codes),
                )


def order(options: Options, params: Dict[str, Any], definition: dict, encoders: dict) -> dict:
    """Return what every order of a trial says: ``program`` (see ``segment.program.Program``), ``batch_size``, ``learning_rate``
    and ``dropout`` (rates, see ``dropout.split``).

    Args:
        options: The run's.
        params: The trial's value for every axis of the search.
        definition: The model as stored, with placeholders.
        encoders: The run's.
    """
    settings = search.resolve(options, params)
    model = definitions.bind(definition, {**settings["model_values"], **encoding.from_data(encoders)})
    check_codes(model, encoders)
    program = {
        "definition": adapting.bound(model, encoders),
        "optimizer": settings["optimizer"],
        "loss": settings["loss"],
        "loss_weights": options.loss_weights,
        "metrics": settings["metrics"],
        "weighted_metrics": options.weighted_metrics,
        "precision": options.precision,
        "encoders": encoding.model_part(encoders),
    }
    return {
        "program": program, "batch_size": settings["batch_size"], "learning_rate": settings["learning_rate"],
        "dropout": dropout.split(program["definition"])[1],
    }  # fmt: skip


def stored(record: dict) -> dict:
    """Return the order of a trial that ``stored.read`` gave."""
    return order(Options.from_json(record["options"]), record["params"], record["definition"], record["encoders"])


def shape(order: dict) -> str:
    """Return what two trials must have in common to be trained as one: all of their orders but learning rate and dropout's rates."""
    program = order["program"]
    definition, _ = dropout.split(program["definition"])
    program = {**program, "definition": definition, "optimizer": optimizers.but_for_rate(program["optimizer"])}
    return json.dumps([program, order["batch_size"]], sort_keys=True)
