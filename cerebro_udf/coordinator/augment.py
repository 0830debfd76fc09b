"""How rows are varied while they are trained on: the option ``augment``, read, and held against the columns. Pure."""

from __future__ import annotations

from typing import Any, Dict, List

from cerebro_udf import columns, definition
from cerebro_udf import keras_names as names
from cerebro_udf.coordinator.space import wrong_option
from cerebro_udf.errors import InvalidArgument, nearest
from cerebro_udf.keras_objects import show
from cerebro_udf.placeholders import names_in

_FORM = 'an object of lists of Keras layers by column, such as {"picture": [{"RandomFlip": {"mode": "horizontal"}}]}'


def read(option: str, value: Any) -> Dict[str, List[dict]]:
    """Return the option ``augment``, each layer in full form.

    Raises:
        InvalidArgument: a layer that is none of those that vary rows, or has other arguments.
    """
    if not isinstance(value, dict):
        raise wrong_option(option, value, _FORM)
    return {column: _layers("%s.%s" % (option, column), layers) for column, layers in value.items()}


def _layers(place: str, layers: Any) -> List[dict]:
    if not isinstance(layers, list) or not layers:
        raise wrong_option(place, layers, _FORM)
    try:
        full = definition.full({"layers": layers})["config"]["layers"]
    except InvalidArgument as error:
        raise InvalidArgument(error.message.replace("definition", 'option "%s"' % place, 1), error.detail, error.hint) from None
    if set(names_in(full)):
        raise InvalidArgument(
            'option "%s" holds a placeholder' % place,
            "The value is %s." % show(layers),
            "Give values: rows are varied alike in all trials.",
        )
    for layer in full:
        name = layer["class_name"]
        if name not in names.VARYING:
            raise InvalidArgument(
                'option "%s" names "%s", which does not vary rows' % (place, name), None, nearest(name, names.VARYING)
            )
        if layer["config"].get("data_format") == "channels_first":
            raise InvalidArgument('layer "%s" cannot take channels first' % name, None, "Leave data_format out: channels are last.")
    return full


def check(augment: Dict[str, List[dict]], features: List[dict]) -> Dict[str, List[dict]]:
    """Hold the option against the columns, and fill in the range of values where the encoder tells it.

    Args:
        features: Their specifications, see ``Source.feature_specs``.

    Raises:
        InvalidArgument: a column that is no feature of arrays; a layer that needs to be told the range of values.
    """
    by_name = {feature["name"]: feature for feature in features}
    for column in augment:
        if column not in by_name:
            raise InvalidArgument('option augment names "%s", which is not a feature' % column, None, nearest(column, by_name))
        if by_name[column]["kind"] not in ("array", "tensor", "image"):
            raise InvalidArgument(
                'option augment does not fit column "%s"' % column,
                "It is read as %s." % by_name[column]["kind"],
                "Arrays, tensors and images can be varied.",
            )
    return {column: [_ranged(by_name[column], layer) for layer in layers] for column, layers in augment.items()}


def _ranged(feature: dict, layer: dict) -> dict:
    name, config = layer["class_name"], layer["config"]
    if "value_range" not in names.LAYERS[name] or config.get("value_range") is not None:
        return layer
    encoder = columns.encoder_name(feature["encoder"]) or "standardize"
    if encoder in (columns.UNIT, "minmax"):
        return {**layer, "config": {**config, "value_range": [0.0, 1.0]}}
    if encoder == "none" and columns.is_bytes(feature):
        return {**layer, "config": {**config, "value_range": [0.0, 255.0]}}
    raise InvalidArgument(
        'layer "%s" has to be told the range of the values of column "%s"' % (name, feature["name"]),
        "The encoder is %s; the layer cuts off what lies outside of its range." % encoder,
        'Give it, such as {"%s": {"value_range": [-1, 1], …}}, or have the column encoded as "minmax".' % name,
    )
