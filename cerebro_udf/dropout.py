"""Rates of dropout: values of a trial, like its learning rate, and no part of its program. Pure."""

from __future__ import annotations

import copy
from typing import Any, Iterator, List, Tuple

from cerebro_udf.architecture import objects

LAYERS = frozenset(["Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"])


def split(definition: dict) -> Tuple[dict, List[float]]:
    """Take the rates out of a bound definition (full Keras JSON).

    A rate of 0 or 1 draws nothing and stays: such a layer has no random generator.

    Returns:
        (definition, rates): a copy with ``(i + 1) / (n + 1)`` in the place of rate ``i`` of ``n``, so that definitions that
        differ in rates alone become equal, and each place is known by its number; the rates, 0 < rate < 1.
    """
    definition = copy.deepcopy(definition)
    layers = list(_layers(definition))
    rates = [layer["rate"] for layer in layers]
    for i, layer in enumerate(layers):
        layer["rate"] = (i + 1) / (len(layers) + 1)
    return definition, rates


def _layers(definition: dict) -> Iterator[dict]:
    """Yield the arguments of every layer that drops."""
    for layer in objects(definition):
        arguments = layer.get("config")
        if layer["class_name"] in LAYERS and isinstance(arguments, dict) and _between(arguments.get("rate")):
            yield arguments


def _between(rate: Any) -> bool:
    return isinstance(rate, (int, float)) and 0 < rate < 1
