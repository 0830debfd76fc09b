"""Registered models: created from a definition, imported from an archive, and built upon by others."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Tuple

from cerebro_udf import definition as definitions
from cerebro_udf import hdf5, placeholders
from cerebro_udf.architecture import config_of
from cerebro_udf.coordinator import start
from cerebro_udf.errors import InvalidArgument, NotSupported, OutOfMemory, nearest
from cerebro_udf.interrupts import Pulse
from cerebro_udf.segment import memory, state
from cerebro_udf.wire import parts

DEFINITION_BYTES = 2**24  # of all models that one is built upon: each may be built upon others, many times over
BASE = "Model"  # the short form's name for a registered model that a new one begins with


def create(plpy, name: str, definition: dict) -> None:
    """Register a definition; models that it is built upon are copied into it, with their weights.

    Raises:
        InvalidArgument, NotFound: see ``definition.check``; or a model to build upon does not exist.
        NotSupported, OutOfMemory: the models that it is built upon are too large.
        plpy.SPIError: one of that name exists (42710).
    """
    expanded, arrays = _expanded(plpy, definition)
    _store(plpy, name, definitions.check(expanded), state.pack(arrays, pulse=Pulse(plpy).check) if arrays else b"")


def take_in(plpy, name: str, config: dict, weights: bytes, about: Optional[dict]) -> None:
    """Register the model of an archive with its weights.

    Args:
        config, weights: Contents of ``config.json`` and ``model.weights.h5``.
        about: What ``export_model`` wrote beside them: the model as its user defined it is inside the one that was exported.

    Raises:
        InvalidArgument: the archive is damaged, or holds what is not allowed.
        plpy.SPIError: one of that name exists (42710).
    """
    place = (about or {}).get("model") or []
    if not isinstance(place, list) or not all(isinstance(step, str) for step in place):
        raise InvalidArgument("argument archive is damaged", "cerebro.json names no model.", "Export it again.")
    definitions.check(placeholders.literal(config))
    pulse = Pulse(plpy).check
    try:
        arrays = hdf5.read(weights, pulse)
    except hdf5.Unreadable as error:
        raise InvalidArgument(
            "the weights of the archive cannot be read", "The file is refused since %s." % error, "Save the model again with Keras 3."
        ) from None
    from cerebro_udf.segment import intake

    _store(plpy, name, *intake.take_in(config, arrays, place, pulse))


def _store(plpy, name: str, definition: dict, weights: bytes) -> None:
    plpy.execute(plpy.prepare("select cerebro_internal.model_create($1, $2)", ["text", "jsonb"]), [name, json.dumps(definition)])
    plan = plpy.prepare("select cerebro_internal.model_weights_put($1, $2, $3)", ["text", "int4", "bytea"])
    for number, chunk in enumerate(parts(weights) if weights else ()):
        plpy.execute(plan, [name, number, chunk])


def _expanded(plpy, definition: dict) -> Tuple[dict, Dict[str, Any]]:
    """A definition in whose place of each ``{"Model": …}`` that model stands, and the arrays of their weights."""
    layers, arrays = definition.get("layers"), {}
    if "class_name" in definition or not isinstance(layers, list):
        return definition, {}
    layers, size = list(layers), 0
    for number, layer in enumerate(layers):
        if isinstance(layer, dict) and list(layer) == [BASE]:
            wanted = _wanted(layer[BASE], "definition.layers[%d].%s" % (number, BASE))
            begun = start.registered_model(plpy, wanted["name"])
            size += len(json.dumps(begun.definition))
            if size > DEFINITION_BYTES:
                raise NotSupported(
                    "definition: the models that it is built upon are too large",
                    "Those up to definition.layers[%d] take more than %d MB of JSON." % (number, DEFINITION_BYTES // 2**20),
                    "Build it upon fewer or smaller models.",
                )
            base = definitions.full(begun.definition)
            if wanted.get("until") is not None:
                base = definitions.until(base, wanted["until"])
            if wanted.get("trainable") is not None:
                base = definitions.with_trainable(base, wanted["trainable"])
            kept = {config_of(inner).get("name") for inner in base["config"]["layers"]}
            base["config"]["name"] = inside = "base_%d" % number
            layers[number] = base
            found = state.unpack(b"".join(begun.weights))[0] if begun.weights else {}
            for path, array in found.items():
                if path.split("/")[1] in kept:
                    arrays["layers/%s/%s" % (inside, path.split("/", 1)[1])] = array
            needed, available = 2 * sum(array.nbytes for array in arrays.values()), memory.available()  # here, and packed
            if needed > available:
                raise OutOfMemory(
                    "the weights of the models that it is built upon do not fit the memory that is left",
                    "They take %.2f GB, %.2f GB are available." % (needed / 1e9, available / 1e9),
                    "Build it upon fewer or smaller models.",
                )
    return {**definition, "layers": layers}, arrays


def _wanted(value: Any, path: str) -> dict:
    value = {"name": value} if isinstance(value, str) else value
    form = 'It is written {"Model": {"name": "vgg", "until": "block4_pool", "trainable": false}}.'
    if not isinstance(value, dict):
        raise InvalidArgument("definition: not a registered model", "At %s." % path, form)
    known = {"name": str, "until": str, "trainable": bool}
    for key, given in value.items():
        if key not in known:
            raise InvalidArgument('definition: unknown key "%s"' % key, "At %s." % path, nearest(key, known))
        if given is not None and not isinstance(given, known[key]):
            raise InvalidArgument('definition: "%s" has a wrong value' % key, "At %s: %s." % (path, json.dumps(given)[:80]), form)
    if not value.get("name"):
        raise InvalidArgument("definition: a registered model without a name", "At %s." % path, form)
    return value
