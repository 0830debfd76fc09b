"""What turns columns into tensors: statistics merged over the shards, and their application.

The coordinator merges what every shard reports (:func:`merge`), the segments and ``predict`` apply the result
(:class:`Encoding`). Only numpy is needed here, so the coordinator stays free of TensorFlow.

A stored encoders object (JSON, floats survive the round trip)::

    {"format": 1,
     "features": [{"name": "distance", "kind": "number", "type": "real", "encoder": "standardize", "shape": [],
                   "mean": [..], "scale": [..]},
                  {"name": "carrier", "kind": "text", "type": "character", "encoder": "one_hot", "vocabulary": ["9E", ..]},
                  {"name": "dest", "kind": "text", "type": "text", "encoder": "embedding", "dim": 16, "vocabulary": [..]}],
     "label": {"name": "late", "type": "boolean", "task": "classification", "classes": [false, true],
               "counts": [600, 200] (of training rows), "weights": [..] (only if classes are weighted)},
     "input": {"numbers": [12] or null, "codes": [{"name": "carrier", "size": 17, "encoder": "one_hot"}, ..],
               "task": "classification", "classes": 2},
     "rows": {"train": 800, "validation": 200}}
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from cerebro_udf import errors

FORMAT = 1
ONE_HOT_VALUES = 64  # a text column with more values than this gets an embedding
VOCABULARY_VALUES = 10_000  # the most frequent values that keep a code of their own
CLASSES = 1_000
CHUNK_ROWS = 8_192  # rows encoded at once, bounds the float64 intermediate

INTEGER_TYPES = ("smallint", "integer", "bigint")
FLOAT_TYPES = ("real", "double precision", "numeric")
PADDED_TYPES = ("character", "char", "bpchar")  # blanks at the end mean nothing, and go where such a value becomes text
TEXT_TYPES = ("text", "character varying", "varchar", *PADDED_TYPES)
NUMBER_ENCODERS = ("standardize", "none")
TEXT_ENCODERS = ("one_hot", "embedding")


class Text(NamedTuple):
    """A text column, every distinct value kept once.

    Attributes:
        codes: int32 (rows,), index into ``values``.
        values: The distinct values, in the order of their first row.
    """

    codes: np.ndarray
    values: List[str]


Column = Union[np.ndarray, Text, Sequence[str]]


def base_type(name: str) -> str:
    """``numeric(10,2)[]`` -> ``numeric``: a type's name without modifiers and brackets."""
    head, _, tail = name.replace("[]", "").partition("(")
    return (head + tail.partition(")")[2]).strip()


def task_of(label: dict) -> str:
    """Say which task a label column is for: ``regression`` or ``classification``.

    Raises:
        WrongColumnType: the type has no task, or not the one asked for.
    """
    kind = base_type(label["type"])
    if label["type"].endswith("[]"):
        raise errors.NotSupported(
            'array label "%s" is not supported' % label["name"],
            hint="Use one column of numbers, booleans or text as the label.",
        )
    if kind not in INTEGER_TYPES + FLOAT_TYPES + TEXT_TYPES + ("boolean",):
        raise errors.WrongColumnType(
            'label "%s" cannot have type %s' % (label["name"], label["type"]),
            hint="Use a number, boolean or text column, or cast it in a materialized view.",
        )
    task = label.get("task") or ("regression" if kind in FLOAT_TYPES else "classification")
    if task == "regression" and kind in TEXT_TYPES:
        raise errors.WrongColumnType(
            'text label "%s" cannot be used for regression' % label["name"],
            hint='Leave the option "task" out, or use a column of numbers.',
        )
    return task


def merge(
    features: Sequence[dict],
    label: Optional[dict],
    shard_stats: Sequence[dict],
    nulls: str = "error",
    validation: float = 0.0,
) -> dict:
    """Merge what the shards of a run report into one encoders object.

    The result depends on the shards' order, never on when they finished.

    Args:
        features: Column specs ``{"name", "column", "type", "kind", "encoder"}``, in feature order.
        label: ``{"name", "column", "type", "task"}``, or None.
        shard_stats: ``segment.shard.Shard.stats()`` of every shard, in shard order.
        nulls: The option of that name; rows with NULL, NaN or infinite values are an error or already
            skipped.
        validation: The fraction asked for; above 0 there must be validation rows.

    Raises:
        NullInData, RaggedArrays, BadData, WrongColumnType, InvalidArgument, NotSupported: see the messages.

    Source: parallel variance, Chan, Golub and LeVeque 1979, equations 2.1.
    """
    refuse_unusable(shard_stats, nulls)
    rows = sum(stats["rows"] for stats in shard_stats)
    train = sum(stats["train_rows"] for stats in shard_stats)
    labelled = None if label is None else _merge_label(label, [stats["columns"][label["name"]] for stats in shard_stats])
    _refuse_empty_part(rows, train, validation)
    _refuse_weightless(shard_stats)
    merged = [
        _merge_feature(spec, [stats["columns"][spec["name"]] for stats in shard_stats]) for spec in features
    ]
    result: Dict[str, Any] = {"format": FORMAT, "features": merged, "label": labelled}
    result["input"] = _input(merged, result["label"])
    result["rows"] = {"train": train, "validation": rows - train}
    return result


def reuse(encoders: dict, shard_stats: Sequence[dict], nulls: str, validation: float) -> dict:
    """Take the encoders of an earlier run over for new rows, so that its weights mean the same: only the counts are new.

    Texts that the earlier run has not seen share the code of unknown ones, as they do in predictions.

    Raises:
        BadData: a class that the earlier run has never seen; otherwise as :func:`merge`, for what concerns rows.
    """
    refuse_unusable(shard_stats, nulls)
    refuse_other_shapes(shard_stats, encoders)
    rows = sum(stats["rows"] for stats in shard_stats)
    train = sum(stats["train_rows"] for stats in shard_stats)
    _refuse_empty_part(rows, train, validation)
    _refuse_weightless(shard_stats)
    label = {key: value for key, value in encoders["label"].items() if key != "weights"}
    if label["task"] == "classification":
        counts = _class_counts([stats["columns"][label["name"]] for stats in shard_stats])
        unseen = sorted(set(counts) - set(label["classes"]))
        if unseen:
            raise _unseen_class(label["name"], unseen[0])
        label["counts"] = [counts.get(value, 0) for value in label["classes"]]
    return {**encoders, "label": label, "rows": {"train": train, "validation": rows - train}}


def refuse_unusable(shard_stats: Sequence[dict], nulls: str) -> None:
    """Refuse shards whose rows cannot be used under this ``nulls`` option.

    Raises:
        NullInData: a column holds NULL, NaN or infinite values, and ``nulls`` is ``error``.
        BadData: there is no row at all, or all were skipped; a row has a negative weight.
    """
    rows = sum(stats["rows"] for stats in shard_stats)
    skipped = sum(stats["skipped"] for stats in shard_stats)
    if nulls == "error":
        _refuse_nulls(shard_stats, rows + skipped)
    _refuse_negative_weights(shard_stats)
    if rows == 0 and skipped:
        raise errors.BadData(
            "no rows are left to train on",
            detail="All %d rows hold NULL, NaN or infinite values and were skipped." % skipped,
            hint="Leave out the columns that are mostly NULL, or replace the values in a materialized view.",
        )
    if rows == 0:
        raise errors.BadData("the source has no rows", hint="Load the table first, or name another one.")


def refuse_other_shapes(shard_stats: Sequence[dict], encoders: dict) -> None:
    """Refuse arrays of another shape than those that these encoders were made from.

    Raises:
        RaggedArrays: names the column and both shapes.
    """
    for feature in encoders["features"]:
        for stats in shard_stats:
            shape = stats["columns"][feature["name"]].get("shape")
            if shape is not None and feature["kind"] == "array" and list(shape) != list(feature["shape"]):
                raise errors.RaggedArrays(
                    'the arrays of column "%s" have another shape than the run\'s' % feature["name"],
                    detail="They have shape %s, the run was trained on %s." % (list(shape), list(feature["shape"])),
                    hint="Name a table whose arrays have the run's shape.",
                )


def _refuse_nulls(shard_stats: Sequence[dict], rows: int) -> None:
    bad = {}
    for stats in shard_stats:
        for name, column in stats["columns"].items():
            counts = bad.setdefault(name, [0, 0, 0])
            for i, key in enumerate(("nulls", "nans", "infinities")):
                counts[i] += column[key]
    bad = {name: counts for name, counts in bad.items() if any(counts)}
    if not bad:
        return
    detail = " ".join(
        'Column "%s": %d NULL, %d NaN, %d infinite of %d rows.' % (name, *counts, rows)
        for name, counts in bad.items()
    )
    names = ", ".join('"%s"' % name for name in bad)
    raise errors.NullInData(
        "%s %s NULL, NaN or infinite values"
        % ("column " + names if len(bad) == 1 else "columns " + names, "holds" if len(bad) == 1 else "hold"),
        detail=detail,
        hint='Set the option "nulls" to "skip" to leave such rows out, or replace the values in a materialized view.',
    )


def _refuse_negative_weights(shard_stats: Sequence[dict]) -> None:
    for name in shard_stats[0]["columns"] if shard_stats else ():
        negatives = sum(stats["columns"][name].get("negatives", 0) for stats in shard_stats)
        if negatives:
            raise errors.BadData(
                'column "%s" holds negative weights' % name,
                detail="%d row%s." % (negatives, "s have one" if negatives > 1 else " has one"),
                hint="A sample_weight is 0 or more; correct the rows, or name another column.",
            )


def _refuse_weightless(shard_stats: Sequence[dict]) -> None:
    for name, column in shard_stats[0]["columns"].items():
        if "total" in column and not any(stats["columns"][name]["total"] > 0 for stats in shard_stats):
            raise errors.BadData(
                'column "%s" weighs every training row 0' % name,
                detail="Nothing could be learnt from such rows.",
                hint="Name a column with positive weights as sample_weight, or leave the option out.",
            )


def _refuse_empty_part(rows: int, train: int, validation: float) -> None:
    if train == 0:
        raise errors.BadData(
            "no training rows are left",
            detail="All %d rows fell into the validation part." % rows,
            hint='Lower the option "validation".',
        )
    if validation > 0 and train == rows:
        raise errors.BadData(
            "no row fell into the validation part",
            detail="The source has %d rows, the validation fraction is %g; rows of equal values fall on one side."
            % (rows, validation),
            hint='Raise the option "validation", or set it to 0.',
        )


def _merge_feature(spec: dict, parts: List[dict]) -> dict:
    encoder, dim = _encoder(spec)
    feature = {"name": spec["name"], "kind": spec["kind"], "type": spec["type"]}
    if spec["kind"] == "text":
        return {**feature, **_merge_vocabulary(spec["name"], parts, encoder, dim)}
    shapes = [part["shape"] for part in parts if part.get("shape") is not None]
    for shape in shapes:
        if shape != shapes[0]:
            raise errors.RaggedArrays(
                'the arrays of column "%s" differ in shape' % spec["name"],
                detail="One segment has arrays of shape %s, another of shape %s." % (shapes[0], shape),
                hint="All arrays of a column must have the same dimensions.",
            )
    feature.update(encoder=encoder, shape=shapes[0] if shapes else [])
    if 0 in feature["shape"]:
        raise errors.BadData(
            'the arrays of column "%s" are empty' % spec["name"], hint="Leave the column out of the features."
        )
    if encoder == "standardize":
        mean, scale = _merge_moments(spec["name"], parts)
        feature.update(mean=mean, scale=scale)
    return feature


def _encoder(spec: dict) -> Tuple[Optional[str], Optional[int]]:
    """Return (encoder, dim) of a column spec; (None, None) where a text column's values decide."""
    encoder, dim = spec.get("encoder"), None
    if isinstance(encoder, dict):
        ((encoder, options),) = encoder.items()
        dim = options.get("dim") if isinstance(options, dict) else None
    fitting = TEXT_ENCODERS if spec["kind"] == "text" else NUMBER_ENCODERS
    if encoder is None:
        return (None, None) if spec["kind"] == "text" else ("standardize", None)
    if encoder not in fitting:
        raise errors.InvalidArgument(
            'encoder "%s" does not fit column "%s"' % (encoder, spec["name"]),
            detail="The column has type %s." % spec["type"],
            hint="Use one of: %s." % ", ".join(fitting),
        )
    return encoder, dim


def _merge_vocabulary(name: str, parts: List[dict], encoder: Optional[str], dim: Optional[int]) -> dict:
    counts: Dict[str, int] = {}
    for part in parts:
        for value, count in part["counts"].items():
            counts[value] = counts.get(value, 0) + count
    frequent = sorted(counts, key=lambda value: (-counts[value], value))[:VOCABULARY_VALUES]
    vocabulary = sorted(frequent)  # Python orders strings by code point
    if encoder is None:
        encoder = "one_hot" if len(vocabulary) <= ONE_HOT_VALUES else "embedding"
    result = {"encoder": encoder, "vocabulary": vocabulary}
    if encoder == "embedding":
        result["dim"] = dim or max(1, min(50, round(1.6 * len(vocabulary) ** 0.56)))
    return result


def combine_moments(a: Tuple[int, Any, Any], b: Tuple[int, Any, Any]) -> Tuple[int, Any, Any]:
    """Combine two (count, mean, m2) of disjoint rows; m2 is the sum of squared deviations, float64 arrays."""
    if a[0] == 0 or b[0] == 0:
        return b if a[0] == 0 else a
    count = a[0] + b[0]
    delta = b[1] - a[1]
    mean = a[1] + delta * (b[0] / count)
    return count, mean, a[2] + b[2] + delta * delta * (a[0] * (b[0] / count))


def _merge_moments(name: str, parts: List[dict]) -> Tuple[List[float], List[float]]:
    total = (0, None, None)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts:
            if part["count"]:
                total = combine_moments(
                    total,
                    (part["count"], np.array(part["mean"], np.float64), np.array(part["m2"], np.float64)),
                )
    count, mean, m2 = total
    if not (np.isfinite(mean).all() and np.isfinite(m2).all()):
        raise errors.BadData(
            'the values of column "%s" are too large to standardize' % name,
            hint="Scale the column in a materialized view.",
        )
    deviation = np.sqrt(m2 / count)
    return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()


def _merge_label(label: dict, parts: List[dict]) -> dict:
    task = task_of(label)
    result = {"name": label["name"], "type": label["type"], "task": task}
    if task == "regression":
        lows = [part["min"] for part in parts if part.get("min") is not None]
        highs = [part["max"] for part in parts if part.get("max") is not None]
        if min(lows) == max(highs):
            _refuse_constant_label(label["name"], lows[0])
        return result
    if any(part["classes"] is None for part in parts):  # one shard alone has too many to list
        raise _too_many_classes(label, "more than %d" % CLASSES)
    counts = _class_counts(parts)
    classes = sorted(counts)
    if len(classes) > CLASSES:
        raise _too_many_classes(label, str(len(classes)))
    if len(classes) == 1:
        _refuse_constant_label(label["name"], classes[0])
    return {**result, "classes": classes, "counts": [counts[value] for value in classes]}


def _class_counts(parts: List[dict]) -> Dict[Any, int]:
    """Return how many training rows each class has that any row has."""
    counts: Dict[Any, int] = {}
    for part in parts:
        for value, count in zip(part["classes"] or (), part["counts"] or ()):
            counts[value] = counts.get(value, 0) + count
    return counts


def _refuse_constant_label(name: str, value: Any) -> None:
    raise errors.BadData(
        'label "%s" has a single value' % name,
        detail="Every row holds %s." % _shown(value),
        hint="Training needs at least two different labels.",
    )


def _unseen_class(label: str, value: Any) -> errors.BadData:
    return errors.BadData(
        'label "%s" has a value that the run has never seen' % label,
        detail="The value is %s." % _shown(value),
        hint="Leave such rows out, or train a new run on them.",
    )


def _too_many_classes(label: dict, figure: str) -> errors.WrongColumnType:
    return errors.WrongColumnType(
        'label "%s" has too many values for classification' % label["name"],
        detail="It has %s different values; %d are allowed." % (figure, CLASSES),
        hint='Set the option "task" to "regression" if it is a quantity, or use another label.',
    )


def _input(features: List[dict], label: Optional[dict]) -> dict:
    """Work out the part of the encoders that shapes a model."""
    dense = [feature for feature in features if feature["kind"] != "text"]
    deep = [feature for feature in dense if len(feature["shape"]) >= 2]
    if deep and len(features) > 1:
        raise errors.NotSupported(
            'array column "%s" of %d dimensions beside other features is not supported'
            % (deep[0]["name"], len(deep[0]["shape"])),
            hint="Use it as the only feature.",
        )
    if deep:
        numbers = list(deep[0]["shape"])
    else:
        numbers = [sum(int(np.prod(feature["shape"], dtype=int)) for feature in dense)] if dense else None
    codes = []
    for feature in features:
        if feature["kind"] == "text":
            code = {
                "name": feature["name"],
                "size": len(feature["vocabulary"]) + 1,
                "encoder": feature["encoder"],
            }
            codes.append({**code, "dim": feature["dim"]} if "dim" in feature else code)
    task = label["task"] if label else None
    classes = len(label["classes"]) if task == "classification" else None
    return {"numbers": numbers, "codes": codes, "task": task, "classes": classes}


def model_part(encoders: dict) -> dict:
    """Return what a model's shape depends on: ``{"numbers", "codes", "task", "classes"}``.

    Such a part is returned unchanged, so a program can be made from either.
    """
    return encoders["input"] if "input" in encoders else encoders


def input_shape(encoders: dict) -> List[int]:
    """Return the shape of one row as the user's model sees it: numbers, then one-hot and embedded codes."""
    part = model_part(encoders)
    if not part["codes"]:
        return list(part["numbers"])
    width = sum(code["dim"] if code["encoder"] == "embedding" else code["size"] for code in part["codes"])
    return [width + (part["numbers"][0] if part["numbers"] else 0)]


def places(encoders: dict) -> List[dict]:
    """Return where each feature lies in a row's tensors, in feature order.

    Returns:
        ``{"name", "columns": [start, stop] of the numbers or None, "code": its position in the codes or None}``; the one
        feature of several dimensions has all numbers.
    """
    found, start, code = [], 0, 0
    for feature in encoders["features"]:
        place = {"name": feature["name"], "columns": None, "code": None}
        if feature["kind"] == "text":
            place["code"], code = code, code + 1
        else:
            stop = start + int(np.prod(feature["shape"], dtype=int))
            place["columns"], start = [start, stop], stop
        found.append(place)
    return found


def classes(label: dict) -> Optional[List[Any]]:
    """Return the classes of a stored label as its column has them, None for regression."""
    type_ = base_type(label["type"])
    return [_of_type(value, type_) for value in label["classes"]] if label["task"] == "classification" else None


def _of_type(value: Any, type_: str) -> Any:
    """Return a class as its column has it: labels that are no integers pass through double precision."""
    if isinstance(value, float):
        value = float(str(np.float32(value))) if type_ == "real" else value
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value


def spelled(value: Any) -> str:
    """Return a class as PostgreSQL spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def n_classes(encoders: dict) -> Optional[int]:
    """Return the number of classes, None for regression."""
    return model_part(encoders)["classes"]


class Encoding:
    """An encoders object made ready to be applied many times.

    Args:
        encoders: What :func:`merge` returned.
    """

    def __init__(self, encoders: dict):
        self.encoders = encoders
        self.dense = [feature for feature in encoders["features"] if feature["kind"] != "text"]
        self.texts = [feature for feature in encoders["features"] if feature["kind"] == "text"]
        self._index = {
            feature["name"]: {value: i + 1 for i, value in enumerate(feature["vocabulary"])}
            for feature in self.texts
        }
        self._moments = {
            feature["name"]: self._widen(feature)
            for feature in self.dense
            if feature["encoder"] == "standardize"
        }
        label = encoders.get("label") or {}
        self._classes = {value: i for i, value in enumerate(label.get("classes", ()))}

    @staticmethod
    def _widen(feature: dict) -> Tuple[np.ndarray, np.ndarray]:
        return np.array(feature["mean"], np.float64), np.array(feature["scale"], np.float64)

    def encode(
        self,
        columns: Dict[str, Column],
        label: Optional[Column] = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> Dict[str, np.ndarray]:
        """Encode raw columns of n rows.

        Args:
            columns: By feature name: numbers (n,), arrays (n, *shape), texts as :class:`Text` or strings.
            label: The label column, or None.
            pulse: Called again and again; may raise.

        Returns:
            ``numbers`` float32 (n, *shape) and ``codes`` int32 (n, columns) where the features have such,
            ``label`` int32 (n,) of class indexes or float32 (n,). Arrays are new, in C order.

        Raises:
            BadData: a label value that the run has never seen.
        """
        result = {}
        if self.dense:
            result["numbers"] = self._encode_numbers(columns, pulse)
        if self.texts:
            result["codes"] = np.stack(
                [self._encode_text(feature["name"], columns[feature["name"]], pulse) for feature in self.texts],
                axis=1,
            )
        if label is not None:
            result["label"] = self._encode_label(label, pulse)
        return result

    def _encode_numbers(self, columns: Dict[str, Column], pulse: Callable[[], None]) -> np.ndarray:
        rows = len(columns[self.dense[0]["name"]])
        shape = model_part(self.encoders)["numbers"]
        out = np.empty((rows, *shape), np.float32)
        for start in range(0, rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, rows)
            offset = 0
            for feature in self.dense:
                values = np.asarray(columns[feature["name"]])[start:stop]
                if len(feature["shape"]) >= 2:
                    target = out[start:stop]
                else:
                    width = feature["shape"][0] if feature["shape"] else 1
                    values = values.reshape(stop - start, width)
                    target = out[start:stop, offset : offset + width]
                    offset += width
                moments = self._moments.get(feature["name"])
                if moments is not None:
                    values = values.astype(np.float64)
                    values -= moments[0]
                    values /= moments[1]
                target[...] = values
            pulse()
        return out

    def _encode_text(self, name: str, column: Column, pulse: Callable[[], None]) -> np.ndarray:
        index = self._index[name]
        if isinstance(column, Text):
            table = np.array([index.get(value, 0) for value in column.values], np.int32)
            return _chunked(column.codes, table.__getitem__, np.int32, pulse)
        return np.array([index.get(value, 0) for value in column], np.int32)

    def _encode_label(self, column: Column, pulse: Callable[[], None]) -> np.ndarray:
        if self.encoders["label"]["task"] == "regression":
            return _chunked(np.asarray(column), lambda values: values, np.float32, pulse)
        if isinstance(column, Text):
            return _chunked(column.codes, self._class_indexes(column.values).__getitem__, np.int32, pulse)
        return _chunked(np.asarray(column), self._classes_of, np.int32, pulse)

    def _classes_of(self, values: np.ndarray) -> np.ndarray:
        distinct, inverse = np.unique(values, return_inverse=True)
        return self._class_indexes(distinct.tolist())[inverse]

    def _class_indexes(self, distinct: Sequence[Any]) -> np.ndarray:
        label = self.encoders["label"]
        unseen = [value for value in distinct if value not in self._classes]
        if unseen:
            raise _unseen_class(label["name"], unseen[0])
        return np.array([self._classes[value] for value in distinct], np.int32)


def _chunked(values: np.ndarray, function: Callable[[np.ndarray], np.ndarray], dtype, pulse: Callable[[], None]) -> np.ndarray:
    """Apply a function to so many rows at a time that ``pulse`` is called often enough."""
    out = np.empty(len(values), dtype)
    for start in range(0, len(values), CHUNK_ROWS):
        out[start : start + CHUNK_ROWS] = function(values[start : start + CHUNK_ROWS])
        pulse()
    return out


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return '"%s"' % value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return str(value)
