"""A trained model as a ``.keras`` archive that plain Keras opens, with the preprocessing inside."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from cerebro_udf import columns, sequences
from cerebro_udf import encoders as encoding
from cerebro_udf.errors import InvalidArgument, NotSupported, TrialFailed
from cerebro_udf.segment import network, serving

import keras  # isort: skip  (network says first how TensorFlow has to start)

_CATEGORIES = {"integer": "int64", "boolean": "bool", "date": "string", "text": "string", "folded": "string"}  # by spelling

METADATA = "cerebro.json"  # beside Keras' own members of the archive; Keras leaves it alone
VALUE_BYTES = 2**30 - 2**20  # what PostgreSQL holds in one value, with room for the row around it
SHIFT_ERROR = 1e-9  # of a deviation
SCALES = (1e-5, 1e15)  # between these Keras' Normalization takes a deviation for what it is; it begins with 1e-7


def archive(encoders: dict, program: dict, blob: bytes, about: Dict[str, Any], pulse: Callable[[], None]) -> bytes:
    """Write a model that takes raw columns and gives what ``predict`` gives.

    Its input is a dict by column: numbers float64 (rows, 1), arrays float64 (rows, *shape), the pixels of
    images uint8 (rows, *shape), categories (rows, 1) of strings, or of
    int64 or bool where their column has integers or booleans; sequences and arrays of tokens of any length, sparse rows as indices
    int64 and values float64 of any length. Its output is float32 (rows, 1) for regression or of the label's shape, else the
    probabilities (rows, classes) in the order of ``classes``, or for multi_label of the label's shape; several outputs are in a list or a
    dictionary, as the model has them.

    Args:
        encoders, program, blob: As for ``predict.Predictor``.
        about: Goes into the archive as ``cerebro.json``, with the features, the classes and the place of the model
            as the user defined it.
        pulse: Called after every variable and feature; may raise. Keras' own building and saving know nothing of it.

    Raises:
        NotSupported: the archive is larger than a value in PostgreSQL may be.
        StateMismatch, InvalidArgument: as for ``predict.Predictor``.
    """
    refuse_large(len(blob))
    try:
        _, kinds = network.build(program, seed=0)
        model = network.bare(program, seed=0)
    except TrialFailed as error:
        raise InvalidArgument("the model cannot be built", "%s." % error, "Name another trial.") from None
    serving.assign(model, blob, pulse)
    body = [model.name] + ([network.body_of(model, program).name] if network.has_head(encoding.model_part(encoders)) else [])
    inputs, names = _inputs(encoders)
    x = _encoded(encoders, {column: inputs[name] for column, name in names.items()}, pulse)
    # Layers that vary rows do so unless they are told not to, in an archive that is called, too.
    given = network.outputs_of(model, encoding.model_part(encoders), model(x, training=False))
    said = [_said(keras.ops.cast(y, "float32"), kind, label) for y, kind, label in zip(given, kinds, encoders["labels"])]
    outputs = said[0] if len(said) == 1 else network.arranged(model, program, said)
    whole = keras.Model(inputs, outputs, name=re.sub(r"[^A-Za-z0-9_.-]", "_", "cerebro_%s" % about["run"]))
    labels = [{"name": label["output"], "label": label["name"], "classes": label.get("classes")} for label in encoders["labels"]]
    if len(labels) == 1:
        told = {key: labels[0][key] for key in ("label", "classes")}
    else:  # in the order in which the archive gives them
        ordered = network.arranged(model, program, labels)
        told = {"outputs": list(ordered.values()) if isinstance(ordered, dict) else ordered}
    about = {
        **about, "model": body, **told,
        "features": [
            {"name": f["name"], "input": names[f["name"]], "type": f["type"], "null": _null(f)} for f in encoders["features"]
        ],
    }  # fmt: skip
    return _written(whole, about)


def refuse_large(size: int) -> None:
    """Refuse a model that cannot be one value.

    Raises:
        NotSupported.
    """
    if size > VALUE_BYTES:
        raise NotSupported(
            "the model is larger than a value in PostgreSQL may be",
            "It takes %.2f GB, the limit is 1 GB." % (size / 1e9),
            "Its weights are rows of cerebro_internal.visible_state; docs/replay.md says how to read them.",
        )


def _inputs(encoders: dict) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Return the inputs by name, and the names by column; Keras allows no slash in a name."""
    inputs: Dict[str, Any] = {}
    names: Dict[str, str] = {}
    for feature in encoders["features"]:
        for column in columns.read_of(feature):
            name = column.replace("/", "_")
            while name in inputs and column not in names:
                name += "_"
            names[column] = name
            values = column != feature["name"]
            inputs[name] = keras.Input((None,) if values else _shape(feature), name=name, dtype="float64" if values else _dtype(feature))
    return inputs, names


def _shape(feature: dict) -> Tuple[Optional[int], ...]:
    """The shape of a row of a feature's input."""
    if feature["kind"] == "sequence":
        return (None,) if feature["shape"][1] == 1 else (None, feature["shape"][1])
    if feature["kind"] == "sparse":
        return (None,)
    if feature["kind"] == "tokens":
        return (None,) if _takes_tokens(feature) else (1,)
    return (1,) if feature["kind"] == "text" else tuple(feature["shape"]) or (1,)


def _takes_tokens(feature: dict) -> bool:
    """Whether tokens come as such, not in a text: Keras cuts texts only where it looks tokens up in a vocabulary."""
    return feature["type"].endswith("[]") or bool(feature["tokens"].get("hash"))


def _folded(feature: dict) -> bool:
    """Whether texts are one whatever their case. Keras lowers the letters of ASCII alone."""
    return columns.of(feature["type"]).spelling == "folded"


def _dtype(feature: dict) -> str:
    """The type of a feature's input; booleans have no room for a NULL."""
    if feature["kind"] == "tokens":
        return "string"
    if feature["kind"] == "sparse":
        return "int64"
    if columns.is_bytes(feature):
        return "uint8"
    if feature["kind"] != "text":
        return "float64"
    spelling = columns.of(feature["type"]).spelling
    return "int64" if spelling == "boolean" and "nulls" in feature else _CATEGORIES[spelling]


def _null(feature: dict) -> Any:
    """What stands for NULL in a feature's input, none of the values that the run has seen; None where the run knows no NULL."""
    if "nulls" not in feature:
        return None
    kind = _dtype(feature)
    if kind == "float64":
        return "NaN"
    if kind == "int64":
        taken = [None if value is None else columns.whole(value) for value in feature["vocabulary"]]
        return next(value for value in itertools.count(-(2**63)) if value not in taken)
    begin = "[null" if _folded(feature) else "[NULL"
    return next(text for text in (begin + "]" * n for n in itertools.count(1)) if text not in feature["vocabulary"])


def _encoded(encoders: dict, inputs: Dict[str, Any], pulse: Callable[[], None]) -> Any:
    """Encode raw columns as ``tensors.Encoding`` does, in the structure of ``network.feed``."""
    encoded = {}
    for feature in encoders["features"]:
        x = inputs[feature["name"]]
        if "boundaries" in feature:
            encoded[feature["name"]] = _bucket(feature, x)
        elif encoding.is_category(feature):
            encoded[feature["name"]] = _looked_up(feature, x)
        elif feature["kind"] == "sparse":
            encoded[feature["name"]] = _entries(feature, *(inputs[name] for name in columns.read_of(feature)))
        elif feature["kind"] == "tokens":
            encoded[feature["name"]] = _tokens(feature, x)
        elif columns.is_bytes(feature):
            encoded[feature["name"]] = x  # scaled by the model's own layers where it goes alone
        elif feature["kind"] == "sequence":
            encoded[feature["name"]] = _steps(feature, x)
        else:
            encoded[feature["name"]] = _numbers(feature, x)
        pulse()
    part, pieces = encoding.model_part(encoders), {}
    for place in encoding.places(encoders):
        x = encoded[place.feature["name"]]
        shape, dtype = encoding.fed(part)[place.tensor]
        row = [*shape[: place.axis], place.stop - place.start, *shape[place.axis + 1 :]]
        if x.dtype == "uint8" != dtype:
            x = _scaled(encoding.affine(place.feature), keras.ops.cast(x, "float64"))
        if list(x.shape[1:]) != row:  # stacked
            x = keras.layers.Reshape(row, dtype=x.dtype)(x)
        pieces.setdefault(place.tensor, (place.axis, dtype, []))[2].append(x)
    return network.feed({name: _joined(*found) for name, found in pieces.items()}, part)


def _joined(axis: int, dtype: str, pieces: List[Any]) -> Any:
    """Join what makes a tensor along an axis of its rows; numbers are standardized in double precision, and rounded after it."""
    if pieces[0].sparse:
        return pieces[0]
    if dtype == "int32":
        return keras.ops.cast(_joined(axis, "int64", pieces), dtype)
    if len(pieces) == 1:
        return keras.layers.Identity(dtype=dtype)(pieces[0])
    return keras.layers.Concatenate(1 + axis, dtype=dtype)(pieces)


def _bucket(feature: dict, x: Any) -> Any:
    """The number of boundaries that are no larger.

    Keras' Discretization keeps boundaries in single precision, as all layers keep their arguments: so they are taken from the value
    part by part. Of a value that is close to one the parts leave the exact difference, of others its sign.
    """
    beyond, rest = x, np.array(feature["boundaries"], np.float64)
    for _ in range(3):  # 24 bits each, of 53
        part = rest.astype(np.float32).astype(np.float64)
        beyond, rest = keras.layers.Rescaling(1.0, offset=(-part).tolist(), dtype="float64")(beyond), rest - part
    code = keras.ops.sum(keras.ops.cast(beyond >= 0.0, "int64"), axis=-1, keepdims=True)
    if "nulls" not in feature:
        return code
    given = len(feature["boundaries"]) + 1
    if not encoding.indicator(feature):
        given = sum(boundary <= feature["nulls"]["value"] for boundary in feature["boundaries"])
    return keras.ops.where(keras.ops.isnan(x), given, code)


def _numbers(feature: dict, x: Any) -> Any:
    """What is fed of a feature of numbers: they themselves, and 1 for what was NULL where the run asked for that."""
    affine = encoding.affine(feature)
    scaled = _scaled(affine, x)
    if "nulls" not in feature:
        return scaled
    value = feature["nulls"]["value"]
    value = np.float32(value if affine is None else (value - affine[0][0]) / affine[1][0])
    absent = keras.ops.isnan(x)
    known = keras.ops.where(absent, float(value), scaled)  # in single precision already, so that Keras cannot round it
    return keras.layers.Concatenate(dtype="float64")([known, keras.ops.cast(absent, "float64")]) if encoding.indicator(feature) else known


def _steps(feature: dict, x: Any) -> Any:
    """Sequences of numbers brought to one length; a row that is shorter than others of its batch ends with NaN."""
    x = keras.ops.expand_dims(x, -1) if len(x.shape) == 2 else x
    known = keras.ops.logical_not(keras.ops.isnan(x[:, :, 0]))
    placed, present = _placed(x, known, feature["sequence"])
    return keras.ops.where(keras.ops.expand_dims(present, -1), _scaled(encoding.affine(feature), placed), sequences.PAD)


def _tokens(feature: dict, x: Any) -> Any:
    """Codes of sequences of tokens brought to one length; a row of tokens that is shorter than others of its batch ends with ``""``."""
    settings, known = feature["tokens"], feature.get("vocabulary")
    if known is None:
        layer = keras.layers.Hashing(settings["size"] - 1, mask_value=sequences.PADDING, salt=0)
    elif _takes_tokens(feature) and _folded(feature):
        layer = _lowered(known)
    elif _takes_tokens(feature):
        layer = keras.layers.StringLookup(vocabulary=known, mask_token=sequences.PADDING, oov_token=sequences.UNKNOWN)
    else:
        standardize = settings.get("standardize", sequences.STANDARDS[0])
        if _folded(feature):
            standardize = sequences.STANDARDS[0] if standardize.endswith("strip_punctuation") else "lower"
        layer = keras.layers.TextVectorization(
            vocabulary=known, standardize=None if standardize == "none" else standardize, split=settings.get("split", "whitespace")
        )
    codes = layer(x)
    if known is None:  # beside 0, Keras leaves no code free
        codes = keras.ops.where(keras.ops.equal(codes, 0), 0, codes + 1)
    if _takes_tokens(feature):  # empty ones may stand between others: to the end with them
        place = keras.ops.cumsum(keras.ops.ones_like(codes), axis=1) + keras.ops.where(keras.ops.equal(codes, 0), 2**30, 0)
        codes = keras.ops.take_along_axis(codes, keras.ops.argsort(place, axis=1), axis=1)
    placed, present = _placed(keras.ops.expand_dims(codes, -1), keras.ops.not_equal(codes, 0), settings)
    codes = keras.ops.where(present, keras.ops.squeeze(placed, -1), 0)
    first = keras.ops.one_hot(settings["length"] - 1 if settings["pad"] == "pre" else 0, settings["length"], dtype="int64")
    return keras.ops.where(keras.ops.any(present, axis=1, keepdims=True), codes, first)


def _entries(feature: dict, indices: Any, values: Any = None) -> Any:
    """A sparse tensor of indices and their values, or counts; indices of a row that is shorter than others of its batch end with -1."""
    known = indices >= 0
    weights = keras.ops.cast(known, "float64") if values is None else keras.ops.where(known, values, 0.0)
    layer = keras.layers.CategoryEncoding(feature["sparse"]["size"], "count", sparse=True)
    return layer(keras.ops.where(known, indices, 0), count_weights=weights)


def _placed(x: Any, known: Any, settings: dict) -> Tuple[Any, Any]:
    """The steps of rows where ``sequences.places`` puts them.

    Args:
        x: (rows, steps, width), the steps of a row before what fills it up.
        known: bool (rows, steps).

    Returns:
        (rows, length, width), and which of its steps there are: bool (rows, length).
    """
    ops, length = keras.ops, settings["length"]
    count = ops.sum(ops.cast(known, "int32"), axis=1, keepdims=True)
    kept = ops.minimum(count, length)
    step = ops.arange(length, dtype="int32") - (length - kept if settings["pad"] == "pre" else 0 * kept)
    present = ops.logical_and(step >= 0, step < kept)
    # Not by addition: Keras takes a (4, 1) that is added to a (4, 4) for a bias, one number for each column.
    index = ops.where(present, step - (kept - count if settings["truncate"] == "pre" else 0), 0)
    x = ops.pad(x, ((0, 0), (0, 1), (0, 0)))  # a batch may have no step at all
    return ops.take_along_axis(x, ops.repeat(ops.expand_dims(index, -1), x.shape[-1], axis=-1), axis=1), present


def _scaled(affine: Optional[Tuple[np.ndarray, np.ndarray]], x: Any) -> Any:
    """Shift and scale, as far as numbers are not fed as they are, each element of the last axis by its own.

    Keras' Normalization keeps both in single precision, and the variance in place of the deviation: what that would
    spoil is done in further steps.
    """
    if affine is None:
        return x
    mean, scale = affine
    for _ in range(2):  # 24 bits each, of 53, and what is left
        rounded = mean.astype(np.float32).astype(np.float64)
        if (np.abs(mean - rounded) > SHIFT_ERROR * scale).any():
            x = _normalized(x, rounded, np.ones_like(scale))
            mean = mean - rounded
    if ((scale > SCALES[0]) & (scale < SCALES[1])).all():
        return _normalized(x, mean, scale)
    return keras.layers.Rescaling((1 / scale).tolist(), dtype="float64")(_normalized(x, mean, np.ones_like(scale)))


def _normalized(x: Any, mean: np.ndarray, scale: np.ndarray) -> Any:
    return keras.layers.Normalization(mean=mean.tolist(), variance=(scale**2).tolist(), dtype="float64")(x)


def _looked_up(feature: dict, x: Any) -> Any:
    """Codes as ``tensors.Encoding`` gives them: 0 for a value that the run has not seen, then the vocabulary in order."""
    null, known = _null(feature), [value for value in feature["vocabulary"] if value is not None]
    if _folded(feature):
        vocabulary = known + ([] if null is None else [null])
        code = _lowered([text for text in vocabulary if text])(x)  # 0 for an empty text, 1 for one that was not seen
        code = keras.ops.where(keras.ops.equal(code, 1), 0, keras.ops.maximum(code, 1)) if "" in known else keras.ops.maximum(code - 1, 0)
        return _with_null(feature, code, vocabulary, known, null)
    if _dtype(feature) == "string":
        vocabulary = known + ([] if null is None else [null])
        unknown = next(text for text in ("[UNK" + "]" * n for n in itertools.count(1)) if text not in vocabulary)
        layer = keras.layers.StringLookup
    else:
        vocabulary = [columns.whole(value) for value in known] + ([] if null is None else [null])
        unknown = next(value for value in itertools.count(-1, -1) if value not in vocabulary)
        layer, x = keras.layers.IntegerLookup, keras.ops.cast(x, "int64")
    code = layer(vocabulary=vocabulary, mask_token=None, num_oov_indices=1, oov_token=unknown)(x)
    return _with_null(feature, code, vocabulary, known, null)


def _lowered(vocabulary: List[str]) -> Any:
    """Looks texts up in lower case."""
    return keras.layers.TextVectorization(vocabulary=vocabulary, standardize="lower", split=None)


def _with_null(feature: dict, code: Any, vocabulary: List[Any], known: List[str], null: Any) -> Any:
    """Codes in which NULL, the last of a vocabulary if there is one, has that of the value in whose place it is."""
    if null is None or encoding.indicator(feature):
        return code
    value = feature["nulls"]["value"]
    return keras.ops.where(keras.ops.equal(code, len(vocabulary)), known.index(value) + 1 if value in known else 0, code)


def _said(y: Any, kind: str, label: dict) -> Any:
    """What ``predict`` says of one output; ``kind`` as of ``network.build``."""
    affine = encoding.affine(label)
    if affine is not None:
        shift, scale = affine
        return keras.ops.cast(keras.layers.Rescaling(scale.tolist(), shift.tolist(), dtype="float64")(y), "float32")
    if label["task"] == "multi_label":
        return keras.layers.Activation("sigmoid")(y) if kind == "logit" else y
    return _probabilities(y, kind, len(label["classes"])) if label["task"] == "classification" else y


def _probabilities(y: Any, kind: str, classes: int) -> Any:
    single = y.shape[-1] == 1
    if kind == "logit":
        y = keras.layers.Activation("sigmoid" if single else "softmax")(y)
    if single:
        return keras.layers.Concatenate()([1 - y, y])
    return y[:, :classes] if y.shape[-1] > classes else y


def _written(model: Any, about: Dict[str, Any]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="cerebro_export_") as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        with zipfile.ZipFile(path, "a") as members:
            members.writestr(METADATA, json.dumps(about))
        refuse_large(path.stat().st_size)
        return path.read_bytes()
