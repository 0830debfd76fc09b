"""The walk over a definition: models, the layers and the graph within, what their arguments name. Pure.

Checking and building the full form are one walk: what isn't understood is never copied. The walk drops what a
compiled or built model carries beside its architecture (``build_config``, ``compile_config``): those shapes would be
stale once a placeholder is bound, and the run compiles by its own options.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Iterator, List

from cerebro_udf import keras_names as names
from cerebro_udf.errors import nearest
from cerebro_udf.keras_objects import CONSTRAINT, INITIALIZER, LAYER, REGULARIZER, Kind, Reader, is_known
from cerebro_udf.placeholders import is_placeholder, names_in

# Far more than any real model nests; Python's own recursion limit is 1,000 frames.
MAX_DEPTH = 100
# Layers that repeating may make, in all: a model of more takes minutes to build.
MAX_REPEATED = 1000
# Layers in all, written out: ten times those of the largest models; a million would take gigabytes before anything is built.
MAX_LAYERS = 10_000

MODULES = {
    "Sequential": ("keras", "keras.models", "keras.src.models.sequential"),
    "Functional": ("keras.src.models.functional", "keras", "keras.models", "keras.src.models.model"),
}
# What TensorFlow takes for the name of what is computed within a model, and by itself.
_WITHIN, _ALONE = (re.compile(r"[A-Za-z0-9.%s][A-Za-z0-9_.-]*\Z" % more) for more in ("_-", ""))
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
    "vocabulary": "vocabulary", "idf_weights": "vocabulary", "mean": "numbers", "variance": "numbers", "bin_boundaries": "numbers",
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


def class_of(layer: Any) -> Any:
    """The class of a layer in full form; None for a placeholder, and for a block whose number is one."""
    return layer.get("class_name") if isinstance(layer, dict) else None


def config_of(layer: Any) -> dict:
    """The arguments of a layer in full form; none of a placeholder, and of a block whose number is one."""
    return layer.get("config", {}) if isinstance(layer, dict) else {}


def objects(value: Any) -> Iterator[dict]:
    """Yield every object in full form within a value, the outer before the inner: nested models and wrapped layers included."""
    if isinstance(value, dict):
        if isinstance(value.get("class_name"), str):
            yield value
        for item in value.values():
            yield from objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item)


def _unnamed(value: Any) -> bool:
    """Whether it is a Sequential model in short form without a name."""
    return isinstance(value, dict) and list(value) == ["Sequential"] and not value["Sequential"].get("name")


def _layers_in(value: Any) -> int:
    """How many layers there are in these, those of models within included."""
    if isinstance(value, list):
        return sum(map(_layers_in, value))
    return 1 + _layers_in(config_of(value).get("layers", []))


class Architecture(Reader):
    """One walk over a definition; :meth:`definition` is the way in."""

    def __init__(self) -> None:
        super().__init__("definition")
        self._repeated = 0  # layers made by repeating
        self._layers = 0  # layers read

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
        self.scope(_ALONE, result["name"], "%s.name" % path)
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
            for key in outputs if isinstance(outputs, dict) and len(outputs) > 1 else ():  # under which its loss is computed
                self.scope(_WITHIN, key, "%s.output_layers" % path)
            if isinstance(outputs, dict) and len(outputs) == 1:  # the one output of a model needs no name
                result["output_layers"] = next(iter(outputs.values()))
        else:
            result["layers"] = self.stack(layers, "%s.layers" % path)
        if all(class_of(layer) == "InputLayer" for layer in result["layers"]):
            raise self.error("no layers but the input", "%s.layers" % path)
        self.unique_names(result["layers"], "%s.layers" % path)
        return {
            "module": MODULES[name][0],
            "class_name": name,
            "config": result,
            "registered_name": "Functional" if name == "Functional" else None,
        }

    def scope(self, fitting: Any, name: Any, path: str) -> None:
        """Refuse a name under which TensorFlow computes nothing."""
        if isinstance(name, str) and not name.startswith("$") and not fitting.match(name):
            hint = "Use ASCII letters, digits, and _ . - between; inputs alone may have any name."
            raise self.error("not a name for a layer or a model", path, name, hint)

    def stack(self, layers: List[Any], path: str) -> List[Any]:
        """The layers of a Sequential model, one after the other; placeholders, and what they decide about, stay."""
        result: List[Any] = []
        for index, value in enumerate(layers):
            at = "%s[%d]" % (path, index)
            if isinstance(value, dict) and "repeat" in value:
                result += self.repeated(value, at)
            else:
                result.append(self.layer(value, at))
                if _unnamed(value):
                    result[-1]["config"]["name"] = None
        for index, layer in enumerate(result):
            if "name" in config_of(layer) and layer["config"]["name"] is None and class_of(layer) == "Sequential":
                layer["config"]["name"] = "sequential_%d" % index
        return result

    def repeated(self, value: dict, path: str) -> List[Any]:
        """``{"repeat": count, "layers": […]}``: the layers count times; as it is while the count is a placeholder."""
        count, layers = value["repeat"], value.get("layers")
        form = 'It is written {"repeat": "$depth", "layers": [{"Dense": {"units": 64}}]}.'
        if set(value) != {"repeat", "layers"} or not isinstance(layers, list) or not layers:
            raise self.error("not a block of layers to repeat", path, value, form)
        block = [self.layer(layer, "%s.layers[%d]" % (path, i)) for i, layer in enumerate(layers)]
        for number, (layer, given) in enumerate(zip(block, layers)):
            if _unnamed(given):
                layer["config"]["name"] = None
            if config_of(layer).get("name") is not None:
                hint = "Leave the name out: Keras gives each layer one."
                raise self.error("a layer that is repeated cannot have a name", "%s.layers[%d]" % (path, number), None, hint)
        if is_placeholder(count):
            return [{"repeat": count, "layers": block}]
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise self.error("layers are repeated a whole number of times, 0 or more", "%s.repeat" % path, count, form)
        self._repeated += count * _layers_in(block)
        if self._repeated > MAX_REPEATED:
            raise self.error("repeating makes more than %d layers" % MAX_REPEATED, "%s.repeat" % path, count, "Repeat fewer layers.")
        return [copy.deepcopy(layer) for _ in range(count) for layer in block]

    def unique_names(self, layers: List[dict], path: str) -> None:
        seen = set()
        for index, layer in enumerate(layers):
            name = config_of(layer).get("name")
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
            denied = names.DENIED_OPERATIONS.get(value["module"], {})
            hint = denied.get(value["class_name"]) or nearest(value["class_name"], known)
            raise self.error('operation "%s" is not allowed' % value["class_name"], path, None, hint)
        for key, item in value["config"].items():
            self.bounded("operation", value["class_name"], key, item, "%s.config.%s" % (path, key))
        return {
            "module": value["module"],
            "class_name": value["class_name"],
            "config": self.plain(value["config"], "%s.config" % path),
            "registered_name": value["class_name"],
        }

    # ---- layers and what their arguments name

    def layer(self, value: Any, path: str) -> Any:
        self._layers += 1
        if self._layers > MAX_LAYERS:
            raise self.error("it has more than %d layers" % MAX_LAYERS, path, None, "Make the model smaller.")
        if is_placeholder(value):
            return value
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

    def find(self, kind: Kind, name: Any, path: str) -> str:
        return name if is_placeholder(name) else super().find(kind, name, path)

    def arguments(self, kind: Kind, name: str, config: dict, path: str) -> dict:
        if is_placeholder(name):  # whether the class takes them is seen when it is known
            return {key: self.argument(kind, key, value, "%s.%s" % (path, key)) for key, value in config.items()}
        filled = names.FILLED_IN.get(name, {}) if kind is LAYER else {}
        result = {**filled, **super().arguments(kind, name, config, path)}
        if kind is LAYER and name != "InputLayer":
            self.scope(_WITHIN, result.get("name"), "%s.name" % path)
        return result

    def formed(self, kind: Kind, name: str, key: str, value: Any) -> Any:
        undecided = next(iter(names_in(value)), None) is not None  # its form is seen when it is bound
        return value if undecided else super().formed(kind, name, key, value)

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

    def numbers(self, value: Any, path: str) -> Any:
        """Numbers that Keras takes in lists: floating ones, since PostgreSQL writes such as integers of any size where it can."""
        if isinstance(value, list):
            return [self.numbers(item, "%s[%d]" % (path, i)) for i, item in enumerate(value)]
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else self.plain(value, path)

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
