"""Model definitions: checked against static allow-lists, placeholders found and bound. Never imports Keras.

A definition is untrusted JSON. These forms are accepted:

* the short form, ``{"layers": [{"Dense": {"units": "$units", "activation": "relu"}}, "Flatten", …]}``;
* what ``model.to_json()`` of Keras 3 writes for a Sequential or a Functional model;
* what that of Keras 2 wrote, which is brought into the form of Keras 3 when it is checked for the first time.

A string ``"$name"`` in the place of a value is a placeholder; ``"$$name"`` stands for the text ``$name``.
``$classes`` (number of classes) and ``$input_shape`` (list of ints, without the batch) come from the data.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple

from cerebro_udf import keras_names as names
from cerebro_udf.architecture import Architecture, class_of, config_of
from cerebro_udf.errors import InvalidArgument, NotSupported, nearest
from cerebro_udf.keras2 import Keras2, is_keras2
from cerebro_udf.placeholders import FROM_DATA, filled, is_placeholder, literal, names_in, substitute

# What changes neither which variables a layer has, nor their shapes.
_SHAPELESS = frozenset(["name", "trainable", "seed", "shared_object_id", "build_input_shape"])
_SHAPELESS_ENDS = ("_initializer", "_regularizer", "_constraint", "activation")
_DROPOUT_ARGUMENTS = frozenset(["rate", "dropout", "recurrent_dropout"])


def check(definition: Any) -> dict:
    """Check a definition, bound or with placeholders, and return it in the form to store.

    Returns:
        A copy, as given; what Keras 2 wrote in the full form of Keras 3.

    Raises:
        InvalidArgument: a class, argument, activation or module outside the allow-lists, serialized code, the
            path of a file, no layers; DETAIL names the spot, HINT the nearest known name.
    """
    if is_keras2(definition):
        return Keras2().definition(definition)
    _walk(definition)
    return copy.deepcopy(definition)


def placeholders(definition: dict) -> FrozenSet[str]:
    """Return the placeholders that a search must bind: all but ``$classes`` and ``$input_shape``."""
    return frozenset(names_in(definition)) - FROM_DATA


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
    return _walk(substitute(definition, values, "definition"))


def full(definition: dict) -> dict:
    """Return a checked definition in full form, placeholders left in it."""
    return _walk(definition)


def until(model: dict, name: str) -> dict:
    """Cut a model in full form behind one of its layers, whose output then is the model's.

    Raises:
        InvalidArgument: there is no layer of that name.
    """
    config = model["config"]
    names_ = [config_of(layer).get("name") for layer in config["layers"]]
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
            waiting += sources(by_name[layer]["inbound_nodes"])
    layers = [layer for layer in config["layers"] if layer["name"] in kept or layer["class_name"] == "InputLayer"]
    return {**model, "config": {**config, "layers": layers, "output_layers": [name, 0, 0]}}


def sources(nodes: Any) -> Iterable[str]:
    """The layers whose outputs go into these nodes."""
    if isinstance(nodes, dict) and "keras_history" in nodes:
        yield nodes["keras_history"][0]
    for item in nodes.values() if isinstance(nodes, dict) else nodes if isinstance(nodes, list) else ():
        yield from sources(item)


def inputs(definition: dict) -> List[Optional[str]]:
    """Return the names of the layers in which a checked definition begins; None of one that is no Input, or has none."""
    return _inputs(_walk(definition))


def first_layers(definition: dict, name: Optional[str]) -> List[Any]:
    """Return the classes of the layers that take an input of a checked definition.

    Args:
        name: Of the input; None, or any name for a model of one: its only one.
    """
    model = _walk(definition)
    layers = config_of(model)["layers"]
    if class_of(model) == "Sequential":
        return [next(class_of(layer) for layer in layers if class_of(layer) != "InputLayer")]
    begins = list(places(config_of(model)["input_layers"]))
    name = begins[0] if len(begins) == 1 else name
    return [class_of(layer) for layer in layers if name in sources(layer["inbound_nodes"])]


def with_sparse(config: dict, sparse: Sequence[Tuple[Optional[str], List[int]]]) -> dict:
    """Return a bound model in full form whose inputs of these names take sparse rows of these shapes.

    Args:
        sparse: The name is None, or any, for a model of one input: its only one.
    """
    own, layers, names_ = config["config"], [], [name for name, _ in sparse]
    begins = inputs(config)
    for layer in config_of(config)["layers"]:
        if class_of(layer) == "InputLayer" and (len(begins) == 1 or config_of(layer).get("name") in names_):
            layer = {**layer, "config": {**layer["config"], "sparse": True}}
        layers.append(layer)
    if class_of(config) == "Sequential" and class_of(layers[0]) != "InputLayer":
        first = {"batch_shape": [None, *sparse[0][1]], "dtype": "float32", "sparse": True}
        layers.insert(0, {"module": "keras.layers", "class_name": "InputLayer", "config": first, "registered_name": None})
    return {**config, "config": {**own, "layers": layers}}


def _inputs(layer: Any) -> List[Optional[str]]:
    config = config_of(layer)
    if "input_layers" in config:
        return list(places(config["input_layers"]))
    if class_of(layer) == "Sequential":
        return _inputs(config["layers"][0])
    return [config.get("name") if class_of(layer) == "InputLayer" else None]


def outputs(definition: dict) -> List[Optional[str]]:
    """Return the names of a checked definition's outputs: of several the keys of a dictionary, in alphabetical order, or the layers
    that give them, as they come; None of a single one.

    Raises:
        NotSupported: outputs within lists or dictionaries of outputs, or of equal names.
    """
    return _outputs(_walk(definition))


def _outputs(layer: Any) -> List[Optional[str]]:
    config = config_of(layer)
    if class_of(layer) == "Sequential":
        return _outputs(config["layers"][-1])
    given = config.get("output_layers")
    if len(list(places(given))) < 2:
        return [None]
    found = sorted(given) if isinstance(given, dict) else [item[0] for item in given]
    deep = any(len(list(places(item))) > 1 for item in (given.values() if isinstance(given, dict) else given))
    if deep or len(set(found)) < len(found):
        raise NotSupported(
            "a model whose outputs %s" % ("are nested" if deep else "have equal names"),
            "They are %s." % json.dumps(given)[:200],
            'Give the model its outputs in a dictionary: keras.Model(x, {"kind": kind, "size": size}).',
        )
    return found


def places(value: Any) -> Iterable[str]:
    """The layers that a value of ``input_layers`` or ``output_layers`` names, in its order."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        yield value[0]
    else:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from places(item)


def with_trainable(model: dict, trainable: bool) -> dict:
    """Return a model in full form all of whose layers are frozen, or are not."""
    config = dict(model["config"])
    if "trainable" not in names.WITHOUT_COMMON.get(model["class_name"], ()):
        config["trainable"] = trainable
    if "layers" in config:
        config["layers"] = [_with_trainable(layer, trainable) for layer in config["layers"]]
    return {**model, "config": config}


def _with_trainable(layer: Any, trainable: bool) -> Any:
    if is_placeholder(layer):
        hint = "Freeze it where its values are: in the space of the search."
        raise InvalidArgument("definition: a layer that is a placeholder cannot be frozen", 'It is "%s".' % layer, hint)
    if "repeat" in layer:
        return {**layer, "layers": [_with_trainable(inner, trainable) for inner in layer["layers"]]}
    return layer if layer["module"] in names.OPERATIONS else with_trainable(layer, trainable)


def fill(definition: dict, values: Dict[str, Any]) -> dict:
    """Replace the placeholders that have a value here, and leave the others to ``bind``."""
    return filled(definition, {name: literal(value) for name, value in values.items()})


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
        if is_placeholder(a):
            found.setdefault(a[1:], b)
        elif isinstance(a, dict) and isinstance(b, dict):
            pairs += [(item, b[key]) for key, item in a.items() if key in b]
        elif isinstance(a, list) and isinstance(b, list):
            pairs += _aligned(a, b, found)
    return found


def _aligned(a: List[Any], b: List[Any], found: Dict[str, Any]) -> Iterable[Tuple[Any, Any]]:
    """Pair the items of two lists; where one block is repeated, how often it is follows from their lengths."""
    blocks = [i for i, item in enumerate(a) if isinstance(item, dict) and "repeat" in item]
    if len(blocks) != 1:
        return zip(a, b)
    place, block = blocks[0], a[blocks[0]]["layers"]
    times, rest = divmod(len(b) - len(a) + 1, len(block))
    if times < 0 or rest:
        return []
    found.setdefault(a[place]["repeat"][1:], times)
    return zip(a[:place] + block * times + a[place + 1 :], b)


def difference(a: Any, b: Any, path: str = "definition") -> Optional[str]:
    """Return the path of the first difference of two JSON values, None where they are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = [("%s.%s" % (path, key), a.get(key), b.get(key)) for key in sorted(set(a) | set(b))]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [("%s[%d]" % (path, i), *pair) for i, pair in enumerate(zip(a, b))]
    else:
        return None if a == b else path
    return next((found for found in (difference(x, y, at) for at, x, y in pairs) if found), None)


def _shaping(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            # A layer without dropout has no generator.
            key: is_placeholder(item) or bool(item) if key in _DROPOUT_ARGUMENTS else _shaping(item)
            for key, item in value.items()
            if key not in _SHAPELESS and not key.endswith(_SHAPELESS_ENDS)
        }
    return [_shaping(item) for item in value] if isinstance(value, list) else value


def _walk(definition: Any) -> dict:
    return Architecture().definition(definition)
