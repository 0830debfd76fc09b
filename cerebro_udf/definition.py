"""Model definitions: checked against static allow-lists, placeholders found and bound. Never imports Keras.

A definition is untrusted JSON. Two forms are accepted:

* the short form, ``{"layers": [{"Dense": {"units": "$units", "activation": "relu"}}, "Flatten", …]}``;
* what ``model.to_json()`` of Keras 3 writes for a Sequential or a Functional model.

A string ``"$name"`` in the place of a value is a placeholder; ``"$$name"`` stands for the text ``$name``.
``$classes`` (number of classes) and ``$input_shape`` (list of ints, without the batch) come from the data.

Checking and building the full form are one walk (``_Walk``): what isn't understood is never copied. The walk
drops what a compiled or built model carries beside its architecture (``build_config``, ``compile_config``):
those shapes would be stale once a placeholder is bound, and the run compiles by its own options.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional

from cerebro_udf import keras_names as names
from cerebro_udf import optimizers
from cerebro_udf.errors import InvalidArgument, nearest

# Far more than any real model nests; Python's own recursion limit is 1,000 frames.
MAX_DEPTH = 100

FROM_DATA = frozenset(["classes", "input_shape"])

_PLACEHOLDER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)\Z")
_MODEL_MODULES = {
    "Sequential": ("keras", "keras.models", "keras.src.models.sequential"),
    "Functional": ("keras.src.models.functional", "keras", "keras.models", "keras.src.models.model"),
}
_MODEL_KEYS = {
    "Sequential": frozenset(["name", "trainable", "dtype", "layers", "build_input_shape"]),
    "Functional": frozenset(["name", "trainable", "dtype", "layers", "input_layers", "output_layers"]),
}
_OBJECT_KEYS = frozenset(
    "module class_name config registered_name build_config compile_config shared_object_id name "
    "inbound_nodes keras_version backend".split()
)
# Layers that Keras accepts where it wants an activation.
_ACTIVATION_LAYERS = frozenset(["ReLU", "LeakyReLU", "ELU", "Softmax"])
# Text that is data: it may look like a path. A file is never opened for it (a vocabulary must be a list).
_TEXT_ARGUMENTS = frozenset(["oov_token", "mask_token", "salt"])
# What changes neither which variables a layer has, nor their shapes.
_SHAPELESS = frozenset(["name", "trainable", "seed", "shared_object_id", "build_input_shape"])
_SHAPELESS_ENDS = ("_initializer", "_regularizer", "_constraint", "activation")
_DROPOUT_ARGUMENTS = frozenset(["rate", "dropout", "recurrent_dropout"])


class _Kind:
    """One family of Keras classes: which may be named, and where Keras keeps them."""

    def __init__(self, noun: str, module: str, table: dict, aliases: dict, common: Iterable[str] = ()):
        self.noun = noun
        self.module = module
        self.table = table
        self.aliases = aliases
        self.common = tuple(common)

    def find(self, name: str) -> Optional[str]:
        """Return the class of that name or alias, or None."""
        return name if name in self.table else self.aliases.get(name)

    def known(self) -> List[str]:
        return list(self.table) + list(self.aliases)


def _lower(table: dict) -> Dict[str, str]:
    return {name.lower(): name for name in table}


_LAYER = _Kind("layer", "keras.layers", names.LAYERS, names.LAYER_ALIASES, names.COMMON_ARGUMENTS)
_INITIALIZER = _Kind("initializer", "keras.initializers", names.INITIALIZERS, names.INITIALIZER_ALIASES)
_REGULARIZER = _Kind("regularizer", "keras.regularizers", names.REGULARIZERS, names.REGULARIZER_ALIASES)
_CONSTRAINT = _Kind("constraint", "keras.constraints", names.CONSTRAINTS, names.CONSTRAINT_ALIASES)
_OPTIMIZER = _Kind(
    "optimizer", "keras.optimizers", names.OPTIMIZERS, _lower(names.OPTIMIZERS), names.OPTIMIZER_ARGUMENTS
)
_SCHEDULE = _Kind("learning rate schedule", "keras.optimizers.schedules", names.SCHEDULES, {})
_LOSS = _Kind("loss", "keras.losses", names.LOSSES, names.LOSS_ALIASES)
_METRIC = _Kind("metric", "keras.metrics", names.METRICS, names.METRIC_ALIASES)


def check(definition: Any) -> dict:
    """Check a definition, bound or with placeholders, and return it in the form to store (a copy, as given).

    Raises:
        InvalidArgument: a class, argument, activation or module outside the allow-lists, serialized code, the
            path of a file, no layers; DETAIL names the spot, HINT the nearest known name.
    """
    _walk(definition)
    return copy.deepcopy(definition)


def placeholders(definition: dict) -> FrozenSet[str]:
    """Return the placeholders that a search must bind: all but ``$classes`` and ``$input_shape``."""
    return frozenset(_names(definition)) - FROM_DATA


def bind(definition: dict, values: Dict[str, Any]) -> dict:
    """Replace every placeholder and return full Keras JSON, checked again.

    Args:
        definition: What ``check`` returned.
        values: JSON values by placeholder; ``classes`` and ``input_shape`` among them where the data has
            them. A placeholder takes the value as it is, with its JSON type.

    Returns:
        ``{"module": "keras", "class_name": "Sequential", …}``, or the same for Functional, without
        ``build_config`` and ``compile_config``: ready for ``keras.saving.deserialize_keras_object``.

    Raises:
        InvalidArgument: a placeholder has no value, or a value makes the definition invalid.
    """
    return _walk(_substitute(definition, values, "definition"))


def full(definition: dict) -> dict:
    """Return a checked definition in full form, placeholders left in it."""
    return _walk(definition)


def until(model: dict, name: str) -> dict:
    """Cut a model in full form behind one of its layers, whose output then is the model's.

    Raises:
        InvalidArgument: there is no layer of that name.
    """
    config = model["config"]
    names_ = [layer["config"].get("name") for layer in config["layers"]]
    if name not in names_:
        raise InvalidArgument('definition: no layer "%s" to cut the model behind' % name, None, nearest(name, filter(None, names_)))
    if model["class_name"] == "Sequential":
        return {**model, "config": {**config, "layers": config["layers"][: names_.index(name) + 1]}}
    by_name = {layer["name"]: layer for layer in config["layers"]}
    kept, waiting = set(), [name]
    while waiting:
        layer = waiting.pop()
        if layer in by_name and layer not in kept:
            kept.add(layer)
            waiting += _sources(by_name[layer]["inbound_nodes"])
    layers = [layer for layer in config["layers"] if layer["name"] in kept or layer["class_name"] == "InputLayer"]
    return {**model, "config": {**config, "layers": layers, "output_layers": [name, 0, 0]}}


def _sources(nodes: Any) -> Iterable[str]:
    """The layers whose outputs go into these nodes."""
    if isinstance(nodes, dict) and "keras_history" in nodes:
        yield nodes["keras_history"][0]
    for item in nodes.values() if isinstance(nodes, dict) else nodes if isinstance(nodes, list) else ():
        yield from _sources(item)


def with_trainable(model: dict, trainable: bool) -> dict:
    """Return a model in full form all of whose layers are frozen, or are not."""
    config = {**model["config"], "trainable": trainable}
    if "layers" in config:
        config["layers"] = [with_trainable(layer, trainable) if _is_layer(layer) else layer for layer in config["layers"]]
    return {**model, "config": config}


def _is_layer(value: dict) -> bool:
    return value["module"] not in names.OPERATIONS


def fill(definition: dict, values: Dict[str, Any]) -> dict:
    """Replace the placeholders that have a value here, and leave the others to ``bind``."""
    return _filled(definition, {name: literal(value) for name, value in values.items()})


def literal(value: Any) -> Any:
    """Escape text that begins with a dollar sign, so that it is no placeholder."""
    if isinstance(value, str):
        return "$" + value if value.startswith("$") else value
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    return [literal(item) for item in value] if isinstance(value, list) else value


def shaping(definition: dict) -> dict:
    """Return the part of a definition that decides which variables a model has, and of which shapes, in full form.

    Two models whose parts are equal can have each other's weights. Placeholders may be left in it.
    """
    return _shaping(_walk(definition))


def matched(definition: dict, bound: dict) -> Dict[str, Any]:
    """Return the values that a definition's placeholders have in a bound definition, as ``bind`` returned it, of the same form."""
    found: Dict[str, Any] = {}
    pairs = [(_walk(definition), bound)]
    while pairs:
        a, b = pairs.pop()
        if _is_placeholder(a):
            found.setdefault(a[1:], b)
        elif isinstance(a, dict) and isinstance(b, dict):
            pairs += [(item, b[key]) for key, item in a.items() if key in b]
        elif isinstance(a, list) and isinstance(b, list):
            pairs += zip(a, b)
    return found


def difference(a: Any, b: Any, path: str = "definition") -> Optional[str]:
    """Return the path of the first difference of two JSON values, None where they are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = [("%s.%s" % (path, key), a.get(key), b.get(key)) for key in sorted(set(a) | set(b))]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [("%s[%d]" % (path, i), *pair) for i, pair in enumerate(zip(a, b))]
    else:
        return None if a == b else path
    return next((found for found in (difference(x, y, at) for at, x, y in pairs) if found), None)


def check_optimizer(value: Any) -> dict:
    """Check an optimizer: a name, the short form ``{"Adam": {"learning_rate": 0.01}}``, or Keras' own form.

    Returns:
        ``{"module": "keras.optimizers", "class_name": …, "config": …, "registered_name": None}``, the config
        checked by ``optimizers``; a ``learning_rate`` in it is a number > 0 or a schedule in the same form.
    """
    return _Walk("optimizer").named(_OPTIMIZER, value, "optimizer")


def check_loss(value: Any) -> dict:
    """Check a loss given by Keras' name or alias, short form, or config; return its full Keras form."""
    return _Walk("loss").named(_LOSS, value, "loss")


def check_metric(value: Any) -> Any:
    """Check a metric given by Keras' name or alias, short form, or config.

    Returns:
        The full Keras form, always with a ``name`` in its config (Keras would number names through the whole
        process). ``accuracy``, ``acc``, ``crossentropy`` and ``ce`` stay strings: Keras chooses the class by
        the model's output.
    """
    if _is_known(value, names.METRICS_BY_OUTPUT):
        return value
    metric = _Walk("metrics").named(_METRIC, value, "metrics")
    if isinstance(value, str):  # Keras reports a metric under the name it was asked for
        metric["config"].setdefault("name", value)
    metric["config"].setdefault("name", snake_case(metric["class_name"]))
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
    return list(names.OPTIMIZERS[optimizer["class_name"]]) + list(names.OPTIMIZER_ARGUMENTS)


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        match = _PLACEHOLDER.match(value)
        if match:
            yield match.group(1)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _names(item)


def _substitute(value: Any, values: Dict[str, Any], path: str) -> Any:
    if isinstance(value, str):
        match = _PLACEHOLDER.match(value)
        if match:
            name = match.group(1)
            if name not in values or (name in FROM_DATA and values[name] is None):
                raise _missing(name, path)
            return copy.deepcopy(values[name])
        return value[1:] if value.startswith("$$") else value
    if isinstance(value, dict):
        return {key: _substitute(item, values, "%s.%s" % (path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_substitute(item, values, "%s[%d]" % (path, i)) for i, item in enumerate(value)]
    return value


def _filled(value: Any, values: Dict[str, Any]) -> Any:
    if isinstance(value, str):
        match = _PLACEHOLDER.match(value)
        return copy.deepcopy(values[match.group(1)]) if match and match.group(1) in values else value
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return [_filled(item, values) for item in value] if isinstance(value, list) else value


def _shaping(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            # A layer without dropout has no generator.
            key: _is_placeholder(item) or bool(item) if key in _DROPOUT_ARGUMENTS else _shaping(item)
            for key, item in value.items()
            if key not in _SHAPELESS and not key.endswith(_SHAPELESS_ENDS)
        }
    return [_shaping(item) for item in value] if isinstance(value, list) else value


def _missing(name: str, path: str) -> InvalidArgument:
    if name == "classes":
        hint = "$classes is the number of classes of a classification; a regression has none: write a number."
    elif name == "input_shape":
        hint = "$input_shape is bound when the data is known."
    else:
        hint = 'Give an axis "%s" in options.search.space.' % name
    return InvalidArgument('placeholder "$%s" has no value' % name, "At %s." % path, hint)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_known(name: Any, known: Iterable[str]) -> bool:
    return isinstance(name, str) and name in known


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and _PLACEHOLDER.match(value) is not None


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


def _walk(definition: Any) -> dict:
    return _Walk("definition").definition(definition)


class _Walk:
    """One walk over untrusted JSON, that returns the full Keras form or raises InvalidArgument."""

    def __init__(self, what: str):
        self.what = what

    def error(
        self, message: str, path: str, value: Any = None, hint: Optional[str] = None
    ) -> InvalidArgument:
        detail = "At %s." % path if value is None else "At %s: %s." % (path, _show(value))
        return InvalidArgument("%s: %s" % (self.what, message), detail, hint or _FORMS[self.what])

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
        if name not in _MODEL_MODULES:
            raise self.error(
                "not a Sequential or Functional model",
                path,
                value["class_name"],
                "Subclassed models cannot be stored; single layers go into the short form.",
            )
        return self.full_model(name, value, path)

    def full_model(self, name: str, value: dict, path: str) -> dict:
        if value.get("module") not in _MODEL_MODULES[name]:
            raise self.foreign_module(value, path, _MODEL_MODULES[name][0])
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
        else:
            result["layers"] = [self.layer(x, "%s.layers[%d]" % (path, i)) for i, x in enumerate(layers)]
        if all(layer["class_name"] == "InputLayer" for layer in result["layers"]):
            raise self.error("no layers but the input", "%s.layers" % path)
        self.unique_names(result["layers"], "%s.layers" % path)
        return {
            "module": _MODEL_MODULES[name][0],
            "class_name": name,
            "config": result,
            "registered_name": "Functional" if name == "Functional" else None,
        }

    def unique_names(self, layers: List[dict], path: str) -> None:
        seen = set()
        for index, layer in enumerate(layers):
            name = layer["config"].get("name")
            if name is None or _is_placeholder(name):
                continue
            if not isinstance(name, str):
                raise self.error("a layer's name must be text", "%s[%d]" % (path, index), name)
            if name in seen:
                raise self.error("two layers of one name", "%s[%d]" % (path, index), name)
            seen.add(name)

    def compiled(self, value: dict, path: str) -> None:
        # Dropped, but read: a caller that builds from its own copy must not meet anything foreign there.
        for key in ("build_config", "compile_config"):
            if value.get(key):
                self.stray(value[key], "%s.%s" % (path, key))

    def stray(self, value: Any, path: str) -> None:
        """Check objects in a part that is dropped: optimizers, schedules, losses and metrics of Keras."""
        if isinstance(value, dict) and "class_name" in value:
            if value["class_name"] == "function":
                name = value.get("config")
                if value.get("module") != "builtins" or not _is_known(name, names.LOSS_ALIASES):
                    raise self.code(value, path)
                return
            self.serialized(value, path)
            kinds = [k for k in (_OPTIMIZER, _SCHEDULE, _LOSS, _METRIC) if k.module == value.get("module")]
            if not kinds or value["class_name"] not in kinds[0].table:
                raise self.error(
                    "the model was compiled with a class that is not Keras' own",
                    path,
                    value["class_name"],
                    "Write the definition from a model that isn't compiled.",
                )
            self.stray(value["config"], "%s.config" % path)
        elif isinstance(value, dict):
            for key, item in value.items():
                self.stray(item, "%s.%s" % (path, key))
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                self.stray(item, "%s[%d]" % (path, index))

    def node(self, value: Any, path: str) -> dict:
        """A layer or operation of a Functional model, with the edges that lead to it."""
        if not isinstance(value, dict) or "class_name" not in value:
            raise self.error("not a serialized layer", path, value)
        if _is_known(value.get("module"), names.OPERATIONS):
            result = self.operation(value, path)
        else:
            result = self.layer(value, path)
        name = self.plain(value.get("name"), "%s.name" % path)
        if not isinstance(name, str):
            raise self.error("a layer of a Functional model without a name", path)
        nodes = value.get("inbound_nodes", [])
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            hint = "Write it with Keras 3's to_json()."
            raise self.error("not written by Keras 3", "%s.inbound_nodes" % path, nodes, hint)
        result["name"] = name
        result["inbound_nodes"] = [
            self.edge(node, "%s.inbound_nodes[%d]" % (path, i)) for i, node in enumerate(nodes)
        ]
        return result

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
            if name in _MODEL_MODULES:
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
        return self.named(_LAYER, value, path)

    def named(self, kind: _Kind, value: Any, path: str) -> dict:
        """A Keras object given by name, in short form or serialized; always returned serialized."""
        shared = None
        if isinstance(value, str):
            name, config = value, {}
        elif isinstance(value, dict) and "class_name" in value:
            self.serialized(value, path)
            self.compiled(value, path)
            if value.get("module") not in (None, kind.module):
                raise self.foreign_module(value, path, kind.module)
            name, config, shared = value["class_name"], value["config"], value.get("shared_object_id")
            path = "%s.config" % path
        elif isinstance(value, dict) and len(value) == 1:
            name, config = next(iter(value.items()))
            path = "%s.%s" % (path, name)
        else:
            raise self.error(
                "not a %s" % kind.noun, path, value, 'Give a name, or {"Name": {"argument": value, ...}}.'
            )
        found = kind.find(name)
        if found is None:
            raise self.unknown(kind, name, path)
        if not isinstance(config, dict):
            raise self.error("the arguments of %s must be an object" % found, path, config)
        result = {
            "module": kind.module,
            "class_name": found,
            "config": self.arguments(kind, found, config, path),
            "registered_name": None,
        }
        if isinstance(shared, int):
            result["shared_object_id"] = shared
        return result

    def arguments(self, kind: _Kind, name: str, config: dict, path: str) -> dict:
        known = kind.table[name] + kind.common
        if kind is _LAYER:
            known += names.KEYWORD_ARGUMENTS.get(name, ())
        result = {}
        for key, value in config.items():
            if key in names.NULL_ARGUMENTS and value is None:
                continue
            if key not in known:
                raise self.error('%s has no argument "%s"' % (name, key), path, None, nearest(key, known))
            result[key] = self.argument(kind, key, value, "%s.%s" % (path, key))
        return self.refined(kind, name, result, path) if kind in (_OPTIMIZER, _SCHEDULE) else result

    def argument(self, kind: _Kind, key: str, value: Any, path: str) -> Any:
        if kind is _OPTIMIZER:
            return self.optimizer_argument(key, value, path)
        if kind is not _LAYER or value is None or _is_placeholder(value):
            named = key == "dtype" and value is not None
            return self.dtype(value, path) if named else self.plain(value, path)
        for suffix, reader in _READERS.items():
            if key == suffix or key.endswith("_" + suffix):
                return reader(self, value, path)
        if key in _TEXT_ARGUMENTS:
            return self.plain(value, path, text=True)
        return self.plain(value, path)

    def layers(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.layer(item, "%s[%d]" % (path, i)) for i, item in enumerate(value)]
        return self.layer(value, path)

    def vocabulary(self, value: Any, path: str) -> list:
        if not isinstance(value, list):
            raise self.error("a vocabulary must be a list", path, value, "Files are never read.")
        return self.plain(value, path, text=True)

    def initializer(self, value: Any, path: str) -> Any:
        return self.by_name(_INITIALIZER, value, path)

    def regularizer(self, value: Any, path: str) -> Any:
        return self.by_name(_REGULARIZER, value, path)

    def constraint(self, value: Any, path: str) -> Any:
        return self.by_name(_CONSTRAINT, value, path)

    def by_name(self, kind: _Kind, value: Any, path: str) -> Any:
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
        if not _is_known(value, names.ACTIVATIONS):
            raise self.error("unknown activation", path, value, nearest(str(value), names.ACTIVATIONS))
        return value

    def dtype(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            self.serialized(value, path)
            if (value.get("module"), value["class_name"]) != ("keras", "DTypePolicy"):
                raise self.error("not a dtype", path, value["class_name"], nearest("float32", names.DTYPES))
            name = self.dtype(value["config"].get("name"), "%s.config.name" % path)
            config = {"name": name}
            return {"module": "keras", "class_name": "DTypePolicy", "config": config, "registered_name": None}
        if _is_placeholder(value):
            return value
        if not _is_known(value, names.DTYPES):
            raise self.error("unknown dtype", path, value, nearest(str(value), names.DTYPES))
        return value

    def optimizer_argument(self, key: str, value: Any, path: str) -> Any:
        if key == "learning_rate" and isinstance(value, dict):
            return self.named(_SCHEDULE, value, path)
        return self.plain(value, path)

    def refined(self, kind: _Kind, name: str, config: dict, path: str) -> dict:
        """Check the arguments of an optimizer or a schedule against each other, and their ranges."""
        try:
            return optimizers.optimizer(config) if kind is _OPTIMIZER else optimizers.schedule(name, config)
        except optimizers.Wrong as wrong:
            place, value = (path, None) if wrong.key is None else ("%s.%s" % (path, wrong.key), config[wrong.key])
            raise self.error(str(wrong), place, value, wrong.hint) from None

    # ---- values and serialized objects

    def plain(self, value: Any, path: str, tensors: bool = False, text: bool = False) -> Any:
        """A copy of a JSON value that holds no serialized object and names no file.

        Args:
            tensors: Allow references to tensors, slices and the ellipsis (edges of a Functional model).
            text: Strings are data, and may hold slashes.
        """
        if isinstance(value, str):
            if not text and ("/" in value or "\\" in value):
                raise self.error("looks like the path of a file", path, value, "Files are never read.")
            return value
        if isinstance(value, (list, tuple)):
            return [self.plain(item, "%s[%d]" % (path, i), tensors, text) for i, item in enumerate(value)]
        if isinstance(value, dict):
            if "class_name" in value and not (tensors and _is_known(value["class_name"], _NODE_OBJECTS)):
                raise self.code(value, path)
            if value.get("class_name") == "__keras_tensor__":
                return self.tensor(value, path)
            return {k: self.plain(item, "%s.%s" % (path, k), tensors, text) for k, item in value.items()}
        return value

    def tensor(self, value: dict, path: str) -> dict:
        config = value.get("config")
        if not isinstance(config, dict) or not isinstance(config.get("keras_history"), list):
            raise self.error("not a tensor of this model", path, value)
        wanted = {key: self.plain(config.get(key), path) for key in ("shape", "dtype", "keras_history")}
        return {"class_name": "__keras_tensor__", "config": wanted}

    def serialized(self, value: dict, path: str) -> None:
        """Check the frame of a serialized object; its class and config are the caller's to check."""
        name = value.get("class_name")
        if not isinstance(name, str) or name == "function" or name.startswith("__"):
            raise self.code(value, path)
        for key in value:
            if key not in _OBJECT_KEYS:
                raise self.error('unknown key "%s"' % key, path, None, nearest(key, _OBJECT_KEYS))
        if not isinstance(value.get("config"), dict):
            raise self.error("a serialized object without a config", path, name)
        if value.get("registered_name") not in (None, name):
            hint = "Only Keras' own classes are."
            raise self.error("a registered class is not allowed", path, value["registered_name"], hint)

    def foreign_module(self, value: dict, path: str, expected: str) -> InvalidArgument:
        return self.error(
            "a class of that module is not allowed here",
            path,
            "%s.%s" % (value.get("module"), value["class_name"]),
            'Allowed is what Keras 3 writes with "module": "%s".' % expected,
        )

    def code(self, value: dict, path: str) -> InvalidArgument:
        return self.error(
            "a serialized object or function is not allowed here",
            path,
            value.get("class_name"),
            "A definition holds plain values and names of Keras' own layers, initializers, activations.",
        )

    def unknown(self, kind: _Kind, name: Any, path: str) -> InvalidArgument:
        if kind is _LAYER and name in names.DENIED_LAYERS:
            hint = "It would run code or read files of the definition's own; Keras' other layers may be used."
            return self.error('layer "%s" is not allowed' % name, path, None, hint)
        return self.error('unknown %s "%s"' % (kind.noun, name), path, None, nearest(str(name), kind.known()))


# The HINT of errors that have none of their own.
_FORMS = {
    "definition": 'A layer is written {"Dense": {"units": 10, "activation": "relu"}}, or as to_json() has it.',
    "optimizer": 'It is written "adam", or {"SGD": {"learning_rate": 0.01, "nesterov": true}}.',
    "loss": 'It is written "mse", or {"Huber": {"delta": 2.0}}.',
    "metrics": 'They are written ["accuracy", {"AUC": {"curve": "PR"}}].',
}
_NODE_OBJECTS = frozenset(["__keras_tensor__", "__slice__", "__ellipsis__"])

# How a layer's argument is read, by its name or the end of its name.
_READERS: Dict[str, Callable[[_Walk, Any, str], Any]] = {
    "initializer": _Walk.initializer,
    "regularizer": _Walk.regularizer,
    "constraint": _Walk.constraint,
    "activation": _Walk.activation,
    "dtype": _Walk.dtype,
    "layer": _Walk.layer,
    "layers": _Walk.layers,
    "cell": _Walk.layers,
    "cells": _Walk.layers,
    "vocabulary": _Walk.vocabulary,
    "idf_weights": _Walk.vocabulary,
}
