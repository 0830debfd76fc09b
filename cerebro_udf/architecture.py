"""The walk over a definition: models, the layers and the graph within, what their arguments name. Pure.

Checking and building the full form are one walk: what isn't understood is never copied. The walk drops what a
compiled or built model carries beside its architecture (``build_config``, ``compile_config``): those shapes would be
stale once a placeholder is bound, and the run compiles by its own options.
"""

from __future__ import annotations

from typing import Any, List

from cerebro_udf import keras_names as names
from cerebro_udf.errors import nearest
from cerebro_udf.keras_objects import CONSTRAINT, INITIALIZER, LAYER, REGULARIZER, Kind, Reader, is_known
from cerebro_udf.placeholders import is_placeholder

# Far more than any real model nests; Python's own recursion limit is 1,000 frames.
MAX_DEPTH = 100

MODULES = {
    "Sequential": ("keras", "keras.models", "keras.src.models.sequential"),
    "Functional": ("keras.src.models.functional", "keras", "keras.models", "keras.src.models.model"),
}
_MODEL_KEYS = {
    "Sequential": frozenset(["name", "trainable", "dtype", "layers", "build_input_shape"]),
    "Functional": frozenset(["name", "trainable", "dtype", "layers", "input_layers", "output_layers"]),
}
# Layers that Keras accepts where it wants an activation.
_ACTIVATION_LAYERS = frozenset(["ReLU", "LeakyReLU", "ELU", "Softmax"])
# The method that reads a layer's argument, by the argument's name or the end of it.
_READERS = {
    "initializer": "initializer", "regularizer": "regularizer", "constraint": "constraint", "activation": "activation",
    "dtype": "dtype", "layer": "layer", "layers": "layers", "cell": "layers", "cells": "layers",
    "vocabulary": "vocabulary", "idf_weights": "vocabulary",
}  # fmt: skip
# Text that is data: it may look like a path. A file is never opened for it (a vocabulary must be a list).
_TEXT_ARGUMENTS = frozenset(["oov_token", "mask_token", "salt"])


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            item
            for parent in level
            if isinstance(parent, (dict, list, tuple))
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return depth


class Architecture(Reader):
    """One walk over a definition; :meth:`definition` is the way in."""

    def __init__(self) -> None:
        super().__init__("definition")

    # ---- models

    def definition(self, value: Any) -> dict:
        path = "definition"
        if not isinstance(value, dict):
            raise self.error(
                "must be a JSON object",
                path,
                value,
                'Give {"layers": [{"Dense": {"units": 10}}, ...]}, or what Keras 3\'s to_json() writes.',
            )
        if _depth(value) > MAX_DEPTH:
            raise self.error("nested more than %d deep" % MAX_DEPTH, path)
        if "class_name" not in value:
            return self.model("Sequential", value, path, short=True)
        self.serialized(value, path)
        name = "Functional" if value["class_name"] == "Model" else value["class_name"]
        if name not in MODULES:
            raise self.error(
                "not a Sequential or Functional model",
                path,
                value["class_name"],
                "Subclassed models cannot be stored; single layers go into the short form.",
            )
        return self.full_model(name, value, path)

    def full_model(self, name: str, value: dict, path: str) -> dict:
        if value.get("module") not in MODULES[name]:
            raise self.foreign_module(value, path, MODULES[name][0])
        self.compiled(value, path)
        return self.model(name, value["config"], "%s.config" % path, short=False)

    def model(self, name: str, config: dict, path: str, short: bool) -> dict:
        known = frozenset(["name", "trainable", "dtype", "layers"]) if short else _MODEL_KEYS[name]
        for key in config:
            if key not in known:
                raise self.error('unknown key "%s"' % key, path, None, nearest(key, known))
        layers = config.get("layers")
        if not isinstance(layers, list) or not layers:
            raise self.error("no layers", "%s.layers" % path, layers, "Give a list, one entry a layer.")
        result = {"name": config.get("name") or name.lower(), "trainable": config.get("trainable", True)}
        if not isinstance(self.plain(result["name"], "%s.name" % path), str):
            raise self.error("a model's name must be text", "%s.name" % path, result["name"])
        if not isinstance(result["trainable"], bool):
            raise self.error("must be true or false", "%s.trainable" % path, result["trainable"])
        if config.get("dtype") is not None:
            result["dtype"] = self.dtype(config["dtype"], "%s.dtype" % path)
        if name == "Functional":
            result["layers"] = [self.node(x, "%s.layers[%d]" % (path, i)) for i, x in enumerate(layers)]
            for key in ("input_layers", "output_layers"):
                if not config.get(key):
                    raise self.error("a Functional model without %s" % key, path)
                result[key] = self.plain(config[key], "%s.%s" % (path, key))
            outputs = result["output_layers"]
            if isinstance(outputs, dict) and len(outputs) == 1:  # the one output of a model needs no name
                result["output_layers"] = next(iter(outputs.values()))
        else:
            result["layers"] = [self.layer(x, "%s.layers[%d]" % (path, i)) for i, x in enumerate(layers)]
        if all(layer["class_name"] == "InputLayer" for layer in result["layers"]):
            raise self.error("no layers but the input", "%s.layers" % path)
        self.unique_names(result["layers"], "%s.layers" % path)
        return {
            "module": MODULES[name][0],
            "class_name": name,
            "config": result,
            "registered_name": "Functional" if name == "Functional" else None,
        }

    def unique_names(self, layers: List[dict], path: str) -> None:
        seen = set()
        for index, layer in enumerate(layers):
            name = layer["config"].get("name")
            if name is None or is_placeholder(name):
                continue
            if not isinstance(name, str):
                raise self.error("a layer's name must be text", "%s[%d]" % (path, index), name)
            if name in seen:
                raise self.error("two layers of one name", "%s[%d]" % (path, index), name)
            seen.add(name)

    def node(self, value: Any, path: str) -> dict:
        """A layer or operation of a Functional model, with the edges that lead to it."""
        if not isinstance(value, dict) or "class_name" not in value:
            raise self.error("not a serialized layer", path, value)
        if is_known(value.get("module"), names.OPERATIONS):
            result = self.operation(value, path)
        else:
            result = self.layer(value, path)
        name = self.plain(value.get("name"), "%s.name" % path)
        if not isinstance(name, str):
            raise self.error("a layer of a Functional model without a name", path)
        result["name"] = name
        result["inbound_nodes"] = self.edges(value.get("inbound_nodes", []), "%s.inbound_nodes" % path)
        return result

    def edges(self, nodes: Any, path: str) -> List[dict]:
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            raise self.error("not written by Keras 3", path, nodes, "Write it with Keras 3's to_json().")
        return [self.edge(node, "%s[%d]" % (path, i)) for i, node in enumerate(nodes)]

    def edge(self, node: dict, path: str) -> dict:
        return {
            "args": self.plain(node.get("args", []), "%s.args" % path, tensors=True),
            "kwargs": self.plain(node.get("kwargs", {}), "%s.kwargs" % path, tensors=True),
        }

    def operation(self, value: dict, path: str) -> dict:
        self.serialized(value, path)
        known = names.OPERATIONS[value["module"]]
        if value["class_name"] not in known:
            hint = nearest(value["class_name"], known)
            raise self.error('operation "%s" is not allowed' % value["class_name"], path, None, hint)
        return {
            "module": value["module"],
            "class_name": value["class_name"],
            "config": self.plain(value["config"], "%s.config" % path),
            "registered_name": value["class_name"],
        }

    # ---- layers and what their arguments name

    def layer(self, value: Any, path: str) -> dict:
        if isinstance(value, dict) and "class_name" in value:
            self.serialized(value, path)
            name = "Functional" if value["class_name"] == "Model" else value["class_name"]
            if name in MODULES:
                return self.full_model(name, value, path)
            if value.get("module") is None:
                raise self.error(
                    "a layer without a module",
                    path,
                    value["class_name"],
                    'Write it with Keras 3\'s to_json(), or in the short form {"Dense": {"units": 10}}.',
                )
        elif isinstance(value, dict) and list(value) == ["Sequential"]:
            if not isinstance(value["Sequential"], dict):
                raise self.error("not an object", "%s.Sequential" % path, value["Sequential"])
            return self.model("Sequential", value["Sequential"], "%s.Sequential" % path, short=True)
        return self.named(LAYER, value, path)

    def argument(self, kind: Kind, key: str, value: Any, path: str) -> Any:
        if kind is LAYER and value is not None and not is_placeholder(value):
            for suffix, reader in _READERS.items():
                if key == suffix or key.endswith("_" + suffix):
                    return getattr(self, reader)(value, path)
            if key in _TEXT_ARGUMENTS:
                return self.plain(value, path, text=True)
        return super().argument(kind, key, value, path)

    def layers(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.layer(item, "%s[%d]" % (path, i)) for i, item in enumerate(value)]
        return self.layer(value, path)

    def vocabulary(self, value: Any, path: str) -> list:
        if not isinstance(value, list):
            raise self.error("a vocabulary must be a list", path, value, "Files are never read.")
        return self.plain(value, path, text=True)

    def initializer(self, value: Any, path: str) -> Any:
        return self.by_name(INITIALIZER, value, path)

    def regularizer(self, value: Any, path: str) -> Any:
        return self.by_name(REGULARIZER, value, path)

    def constraint(self, value: Any, path: str) -> Any:
        return self.by_name(CONSTRAINT, value, path)

    def by_name(self, kind: Kind, value: Any, path: str) -> Any:
        checked = self.named(kind, value, path)
        return value if isinstance(value, str) else checked

    def activation(self, value: Any, path: str) -> Any:
        if isinstance(value, dict) and value.get("class_name") == "function":
            name = value.get("config")
            foreign = value.get("module") not in ("builtins", "keras.activations")
            registered = value.get("registered_name") not in (None, name, "function")
            if foreign or registered or not isinstance(name, str):
                raise self.code(value, path)
            value = name
        if isinstance(value, dict):
            layer = self.layer(value, path)
            if layer["class_name"] not in _ACTIVATION_LAYERS:
                hint = nearest(layer["class_name"], names.ACTIVATIONS)
                raise self.error("not an activation", path, layer["class_name"], hint)
            return layer
        if not is_known(value, names.ACTIVATIONS):
            raise self.error("unknown activation", path, value, nearest(str(value), names.ACTIVATIONS))
        return value
