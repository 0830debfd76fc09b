"""A trained model as a ``.keras`` archive that plain Keras opens, with the preprocessing inside."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from cerebro_udf import columns
from cerebro_udf import encoders as encoding
from cerebro_udf.errors import InvalidArgument, NotSupported, TrialFailed
from cerebro_udf.segment import network, serving

import keras  # isort: skip  (network says first how TensorFlow has to start)

_CATEGORIES = {"integer": "int64", "boolean": "bool", "date": "string", "text": "string"}  # by spelling

METADATA = "cerebro.json"  # beside Keras' own members of the archive; Keras leaves it alone
VALUE_BYTES = 2**30 - 2**20  # what PostgreSQL holds in one value, with room for the row around it
SCALES = (1e-5, 1e15)  # between these Keras' Normalization takes a deviation for what it is; it begins with 1e-7


def archive(encoders: dict, program: dict, blob: bytes, about: Dict[str, Any], pulse: Callable[[], None]) -> bytes:
    """Write a model that takes raw columns and gives what ``predict`` gives.

    Its input is a dict by column: numbers float64 (rows, 1), arrays float64 (rows, *shape), categories (rows, 1) of strings, or of
    int64 or bool where their column has integers or booleans. Its
    output is float32 (rows, 1) for regression, else the probabilities (rows, classes) in the order of ``classes``.

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
        _, output = network.build(program, seed=0)
        model = network.bare(program, seed=0)
    except TrialFailed as error:
        raise InvalidArgument("the model cannot be built", "%s." % error, "Name another trial.") from None
    serving.assign(model, blob, pulse)
    body = [model.name] + ([network.body_of(model, program).name] if encoding.model_part(encoders)["codes"] else [])
    inputs, names = _inputs(encoders)
    y = keras.ops.cast(model(_encoded(encoders, [inputs[name] for name in names], pulse)), "float32")
    classes = encoders["label"].get("classes")
    if classes:
        y = _probabilities(y, output, len(classes))
    whole = keras.Model(inputs, y, name=re.sub(r"[^A-Za-z0-9_.-]", "_", "cerebro_%s" % about["run"]))
    about = {
        **about, "classes": classes, "label": encoders["label"]["name"], "model": body,
        "features": [{"name": f["name"], "input": name, "type": f["type"]} for f, name in zip(encoders["features"], names)],
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


def _inputs(encoders: dict) -> Tuple[Dict[str, Any], List[str]]:
    """Return the inputs by name, and the names in feature order; Keras allows no slash in a name."""
    inputs: Dict[str, Any] = {}
    names = []
    for feature in encoders["features"]:
        name = feature["name"].replace("/", "_")
        while name in inputs:
            name += "_"
        text = feature["kind"] == "text"
        shape = (1,) if text else tuple(feature["shape"]) or (1,)
        dtype = _CATEGORIES[columns.of(feature["type"]).spelling] if text else "float64"
        inputs[name] = keras.Input(shape, name=name, dtype=dtype)
        names.append(name)
    return inputs, names


def _encoded(encoders: dict, inputs: List[Any], pulse: Callable[[], None]) -> Any:
    """Encode raw columns as ``tensors.Encoding`` does, in the structure of ``network.feed``."""
    numbers, codes = [], []
    for feature, x in zip(encoders["features"], inputs):
        if feature["kind"] == "text":
            codes.append(_looked_up(feature, x))
        else:
            numbers.append(_standardized(feature, x) if feature["encoder"] == "standardize" else x)
        pulse()
    arrays = {}
    if numbers:  # standardized in double precision, and rounded after it
        arrays["numbers"] = _joined(numbers, dtype="float32")
    if codes:
        arrays["codes"] = keras.ops.cast(_joined(codes, dtype="int64"), "int32")
    return network.feed(arrays)


def _joined(pieces: List[Any], dtype: str) -> Any:
    if len(pieces) == 1:
        return keras.layers.Identity(dtype=dtype)(pieces[0])
    return keras.layers.Concatenate(dtype=dtype)(pieces)


def _standardized(feature: dict, x: Any) -> Any:
    """Standardize by mean and deviation, one each per element of the last axis.

    Keras' Normalization keeps both in single precision, and the variance in place of the deviation: what that would
    spoil is done in further steps.
    """
    mean, scale = np.array(feature["mean"], np.float64), np.array(feature["scale"], np.float64)
    rounded = mean.astype(np.float32).astype(np.float64)
    if (rounded != mean).any():
        x = _normalized(x, rounded, np.ones_like(scale))
        mean = mean - rounded
    if ((scale > SCALES[0]) & (scale < SCALES[1])).all():
        return _normalized(x, mean, scale)
    return keras.layers.Rescaling((1 / scale).tolist(), dtype="float64")(_normalized(x, mean, np.ones_like(scale)))


def _normalized(x: Any, mean: np.ndarray, scale: np.ndarray) -> Any:
    return keras.layers.Normalization(mean=mean.tolist(), variance=(scale**2).tolist(), dtype="float64")(x)


def _looked_up(feature: dict, x: Any) -> Any:
    """Codes as ``tensors.Encoding`` gives them: 0 for a value that the run has not seen, then the vocabulary in order."""
    if columns.of(feature["type"]).spelling in ("integer", "boolean"):
        return _whole_looked_up([columns.whole(value) for value in feature["vocabulary"]], x)
    unknown = "[UNK]"
    while unknown in feature["vocabulary"]:
        unknown += "]"
    return keras.layers.StringLookup(vocabulary=feature["vocabulary"], mask_token=None, num_oov_indices=1, oov_token=unknown)(x)


def _whole_looked_up(vocabulary: List[int], x: Any) -> Any:
    unknown = -1
    while unknown in vocabulary:
        unknown -= 1
    lookup = keras.layers.IntegerLookup(vocabulary=vocabulary, mask_token=None, num_oov_indices=1, oov_token=unknown)
    return lookup(keras.ops.cast(x, "int64"))


def _probabilities(y: Any, output: str, classes: int) -> Any:
    single = y.shape[-1] == 1
    if output == "logit":
        y = keras.layers.Activation("sigmoid" if single else "softmax")(y)
    if single:
        return keras.layers.Concatenate(name="probabilities")([1 - y, y])
    return y[:, :classes] if y.shape[-1] > classes else y


def _written(model: Any, about: Dict[str, Any]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="cerebro_export_") as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        with zipfile.ZipFile(path, "a") as members:
            members.writestr(METADATA, json.dumps(about))
        refuse_large(path.stat().st_size)
        return path.read_bytes()
