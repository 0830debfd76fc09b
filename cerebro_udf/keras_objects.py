"""Keras' objects in untrusted JSON: by name, in short form or serialized, checked against static allow-lists. Pure.

What isn't understood is never copied.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Optional

from cerebro_udf import keras_arguments, keras_bounds, optimizers
from cerebro_udf import keras_names as names
from cerebro_udf.errors import InvalidArgument, nearest, with_article
from cerebro_udf.forms import Wrong
from cerebro_udf.placeholders import is_placeholder

_OBJECT_KEYS = frozenset(
    "module class_name config registered_name build_config compile_config shared_object_id name "
    "inbound_nodes keras_version backend".split()
)
# What may stand in the arguments of a node of a Functional model.
_NODE_OBJECTS = frozenset(["__keras_tensor__", "__slice__", "__ellipsis__"])
# The HINT of errors that have none of their own.
_FORMS = {
    "definition": 'A layer is written {"Dense": {"units": 10, "activation": "relu"}}, or as to_json() has it.',
    "optimizer": 'It is written "adam", or {"SGD": {"learning_rate": 0.01, "nesterov": true}}.',
    "loss": 'It is written "mse", or {"Huber": {"delta": 2.0}}.',
    "metrics": 'They are written ["accuracy", {"AUC": {"curve": "PR"}}].',
}


class Kind:
    """One family of Keras classes: which may be named, and where Keras keeps them.

    Args:
        common: Arguments that every class takes, but for those that ``without`` has under its name.
        more: Arguments that a class takes beside those of ``table``.
    """

    def __init__(
        self, noun: str, module: str, table: dict, aliases: dict, common: Iterable[str] = (), more: Any = (), without: Any = ()
    ):
        self.noun = noun
        self.module = module
        self.table = table
        self.aliases = aliases
        self.common = tuple(common)
        self.more = dict(more)
        self.without = dict(without)

    def find(self, name: str) -> Optional[str]:
        """Return the class of that name or alias, or None."""
        return name if name in self.table else self.aliases.get(name)

    def arguments(self, name: str) -> List[str]:
        """Return the arguments that a class takes."""
        common = [key for key in self.common if key not in self.without.get(name, ())]
        return [*self.table[name], *common, *self.more.get(name, ())]

    def known(self) -> List[str]:
        return list(self.table) + list(self.aliases)


def _lower(table: dict) -> Dict[str, str]:
    return {name.lower(): name for name in table}


LAYER = Kind(
    "layer", "keras.layers", names.LAYERS, names.LAYER_ALIASES, names.COMMON_ARGUMENTS, names.KEYWORD_ARGUMENTS, names.WITHOUT_COMMON
)
INITIALIZER = Kind("initializer", "keras.initializers", names.INITIALIZERS, names.INITIALIZER_ALIASES)
REGULARIZER = Kind("regularizer", "keras.regularizers", names.REGULARIZERS, names.REGULARIZER_ALIASES)
CONSTRAINT = Kind("constraint", "keras.constraints", names.CONSTRAINTS, names.CONSTRAINT_ALIASES)
OPTIMIZER = Kind(
    "optimizer", "keras.optimizers", names.OPTIMIZERS, _lower(names.OPTIMIZERS), names.OPTIMIZER_ARGUMENTS
)
SCHEDULE = Kind("learning rate schedule", "keras.optimizers.schedules", names.SCHEDULES, {})
LOSS = Kind("loss", "keras.losses", names.LOSSES, names.LOSS_ALIASES)
METRIC = Kind("metric", "keras.metrics", names.METRICS, names.METRIC_ALIASES)


def is_known(name: Any, known: Iterable[str]) -> bool:
    return isinstance(name, str) and name in known


def show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."


class Reader:
    """Reads untrusted JSON, and returns it in full Keras form or raises InvalidArgument.

    Args:
        what: ``definition``, ``optimizer``, ``loss`` or ``metrics``; errors begin with it.
    """

    def __init__(self, what: str):
        self.what = what

    def error(
        self, message: str, path: str, value: Any = None, hint: Optional[str] = None
    ) -> InvalidArgument:
        detail = "At %s." % path if value is None else "At %s: %s." % (path, show(value))
        return InvalidArgument("%s: %s" % (self.what, message), detail, hint or _FORMS[self.what])

    def named(self, kind: Kind, value: Any, path: str) -> dict:
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
                "not %s" % with_article(kind.noun), path, value, 'Give a name, or {"Name": {"argument": value, ...}}.'
            )
        found = self.find(kind, name, path)
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

    def find(self, kind: Kind, name: Any, path: str) -> str:
        """The class of that name or alias."""
        found = kind.find(name)
        if found is None:
            raise self.unknown(kind, name, path)
        return found

    def arguments(self, kind: Kind, name: str, config: dict, path: str) -> dict:
        known, result = kind.arguments(name), {}
        for key, value in config.items():
            if key in names.NULL_ARGUMENTS and value is None:
                continue
            if key not in known:
                raise self.error('%s has no argument "%s"' % (name, key), path, None, nearest(key, known))
            self.bounded(kind.noun, name, key, value, "%s.%s" % (path, key))
            result[key] = self.argument(kind, key, value, "%s.%s" % (path, key))
        return self.refined(kind, name, result, path)

    def bounded(self, kind: str, name: str, key: str, value: Any, path: str) -> None:
        excess = keras_bounds.excess(kind, name, key, value)
        if excess is not None:
            raise self.error(excess, path, value, "Take a smaller number: it is a matter of minutes or gigabytes, whatever the rows.")

    def argument(self, kind: Kind, key: str, value: Any, path: str) -> Any:
        if kind is OPTIMIZER and key == "learning_rate" and isinstance(value, dict):
            return self.named(SCHEDULE, value, path)
        return self.dtype(value, path) if key == "dtype" and value is not None else self.plain(value, path)

    def dtype(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            self.serialized(value, path)
            if (value.get("module"), value["class_name"]) != ("keras", "DTypePolicy"):
                raise self.error("not a dtype", path, value["class_name"], nearest("float32", names.DTYPES))
            name = self.dtype(value["config"].get("name"), "%s.config.name" % path)
            config = {"name": name}
            return {"module": "keras", "class_name": "DTypePolicy", "config": config, "registered_name": None}
        if is_placeholder(value):
            return value
        if not is_known(value, names.DTYPES):
            raise self.error("unknown dtype", path, value, nearest(str(value), names.DTYPES))
        return value

    def refined(self, kind: Kind, name: str, config: dict, path: str) -> dict:
        """Check the values of a class's arguments, each by itself and against the others."""
        try:
            if kind is OPTIMIZER:
                return optimizers.optimizer(config)
            if kind is SCHEDULE:
                return optimizers.schedule(name, config)
            keras_arguments.refuse_missing(name, config)
            return {key: self.formed(kind, name, key, value) for key, value in config.items()}
        except Wrong as wrong:
            if wrong.key is None:
                raise self.error(str(wrong), path, None, wrong.hint) from None
            message, place = "%s of %s %s" % (wrong.key, name, wrong), "%s.%s" % (path, wrong.key)
            raise self.error(message, place, config[wrong.key], wrong.hint) from None

    def formed(self, kind: Kind, name: str, key: str, value: Any) -> Any:
        """An argument in the form that Keras wants."""
        form = keras_arguments.form(kind.noun, name, key)
        return value if form is None else form.read(key, value)

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
            if "class_name" in value and not (tensors and is_known(value["class_name"], _NODE_OBJECTS)):
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
            hint = "Custom classes are code, which no definition holds: write it with Keras' own layers and operations."
            raise self.error("a registered class is not allowed", path, value["registered_name"], hint)

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
                if value.get("module") != "builtins" or not is_known(name, names.LOSS_ALIASES):
                    raise self.code(value, path)
                return
            self.serialized(value, path)
            kinds = [k for k in (OPTIMIZER, SCHEDULE, LOSS, METRIC) if k.module == value.get("module")]
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

    # ---- errors

    def foreign_module(self, value: dict, path: str, expected: str) -> InvalidArgument:
        return self.error(
            "a class of that module is not allowed here",
            path,
            "%s.%s" % (value.get("module"), value["class_name"]),
            'Allowed is what Keras 3 writes with "module": "%s"; custom classes are code, which no definition holds.' % expected,
        )

    def code(self, value: dict, path: str) -> InvalidArgument:
        return self.error(
            "a serialized object or function is not allowed here",
            path,
            value.get("class_name"),
            "A definition holds plain values and names of Keras' own layers, initializers, activations.",
        )

    def unknown(self, kind: Kind, name: Any, path: str) -> InvalidArgument:
        denied = names.DENIED[kind.noun]
        if is_known(name, denied):
            return self.error('%s "%s" is not allowed' % (kind.noun, name), path, None, denied[name])
        return self.error('unknown %s "%s"' % (kind.noun, name), path, None, nearest(str(name), kind.known()))
