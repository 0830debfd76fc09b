"""What turns columns into tensors: statistics merged over the shards.

The coordinator merges what every shard reports (:func:`merge`), the segments and ``predict`` apply the result
(``tensors.Encoding``). Only numpy is needed here, so the coordinator stays free of TensorFlow.

A stored encoders object (JSON, floats survive the round trip)::

    {"format": 3,
     "features": [{"name": "distance", "kind": "number", "type": "real", "encoder": "standardize", "shape": [],
                   "mean": [..], "scale": [..]},
                  {"name": "carrier", "kind": "text", "type": "character", "encoder": "one_hot",
                   "vocabulary": ["9E", .., null (last, if it is a category)]},
                  {"name": "delay", .. "kind": "number", .. "encoder": "minmax", "shape": [], "min": [..], "scale": [..]},
                  {"name": "fare", .. "kind": "number", .. "nulls": {"value": 0.0, "indicator": true} (where NULLs are kept)},
                  {"name": "age", .. "kind": "number", .. "encoder": "one_hot", "shape": [], "boundaries": [..]},
                  {"name": "dest", "kind": "text", "type": "text", "encoder": "embedding", "dim": 16, "vocabulary": [..]},
                  {"name": "clicks", "kind": "sequence", "type": "real[]", "encoder": "standardize", "shape": [20, 1], "mean": [..],
                   "scale": [..], "sequence": {"length": 20, "pad": "post", "truncate": "post"}},
                  {"name": "title", "kind": "tokens", "type": "text", "encoder": "tokens", "shape": [50],
                   "tokens": {"length": 50, "pad": "post", "truncate": "post", "size": 10000}, "vocabulary": [..] (unless hashed)},
                  {"name": "words", "kind": "sparse", "type": "integer[]", "encoder": "sparse", "shape": [50000],
                   "sparse": {"size": 50000, "values": "counts" (a column, where indices alone are not all)}}],
     "labels": [{"name": "late", "type": "boolean", "task": "classification", "classes": [false, true],
               "counts": [600, 200] (of training rows), "weights": [..] (only if classes are weighted);
               of an array "shape": [3], and if quantities are encoded "encoder": "standardize", "mean": [..], "scale": [..]}, ..]
               (of each output, in the order of their names),
     "inputs": [{"name": null, "features": ["distance", "carrier", ..], "stack": null},
                {"name": "series" (an Input layer of the model), "features": ["jan", "feb"], "stack": -1}, ..],
     "model": {"inputs": [{"name": null, "numbers": [12] or null,
                           "codes": [{"name": "carrier", "size": 17, "encoder": "one_hot"}, ..],
                           "dtype": "int32" (of numbers, unless float32), "sparse": true (if they are),
                           "layers": [..] (that rows pass first), "shape": [..] (if those change it)}, ..],
               "outputs": [{"name": null (of a single one), "task": "classification", "classes": 2 (places, of multi_label),
                            "shape": [3] (of an array)}, ..]},
     "rows": {"train": 800, "validation": 200}}
"""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from cerebro_udf import columns, errors, refusals, sequences

FORMAT = 3
ONE_HOT_VALUES = 64  # a category with more values than this gets an embedding
VOCABULARY_VALUES = 10_000  # the most frequent values that keep a code of their own
INDEX_VALUES = 100_000  # of those that a layer of the model looks up
QUANTILE_POINTS = 4_096  # of one shard; a boundary is off by no more than two in so many of the rows


def merge(
    features: Sequence[dict],
    labels: Sequence[dict],
    shard_stats: Sequence[dict],
    nulls: Any = "error",
    validation: Union[float, dict] = 0.0,
    inputs: Optional[Sequence[dict]] = None,
    augment: Mapping[str, List[dict]] = {},
) -> dict:
    """Merge what the shards of a run report into one encoders object.

    The result depends on the shards' order, never on when they finished.

    Args:
        features: Column specs ``{"name", "type", "kind", "encoder", "nulls" (where they are kept)}``, in feature order.
        labels: ``{"name", "type", "task", "output" (its name; None of a single one), "encoder" (of quantities)}`` of
            each output, in the order of their names.
        shard_stats: ``segment.shard.Shard.stats()`` of every shard, in shard order.
        nulls: The option of that name; rows with NULL, NaN or infinite values that are not kept are an error or already
            skipped.
        validation: The option; unless it is 0 there must be validation rows.
        inputs: Which features go to which input of the model, as stored; None: all to its only one.
        augment: By column, layers in full form that vary its rows while they are trained on.

    Raises:
        NullInData, RaggedArrays, BadData, OutOfRange, WrongColumnType, InvalidArgument, NotSupported: see the messages.

    Source: parallel variance, Chan, Golub and LeVeque 1979, equations 2.1.
    """
    refusals.refuse_unusable(shard_stats, nulls, [spec["name"] for spec in features if spec["kind"] in columns.FILLED])
    rows = sum(stats["rows"] for stats in shard_stats)
    train = sum(stats["train_rows"] for stats in shard_stats)
    labelled = [_merge_label(label, [stats["labels"][n] for stats in shard_stats]) for n, label in enumerate(labels)]
    refusals.refuse_empty_part(rows, train, validation)
    refusals.refuse_weightless(shard_stats)
    merged = [
        _merge_feature(spec, [stats["columns"][spec["name"]] for stats in shard_stats]) for spec in features
    ]
    merged = _varied(merged, augment)
    given = list(inputs or [{"name": None, "features": [feature["name"] for feature in merged], "stack": None}])
    return {
        "format": FORMAT, "features": merged, "labels": labelled, "inputs": given, "model": _model(merged, given, labelled),
        "rows": {"train": train, "validation": rows - train},
    }  # fmt: skip


def refuse_newer(encoders: dict, run: str) -> None:
    """Refuse stored encoders of a later version, which may mean something else.

    Raises:
        NotSupported.
    """
    if encoders.get("format", 0) > FORMAT:
        raise errors.NotSupported(
            'run "%s" was trained by a newer version of cerebro' % run,
            "Its encoders have format %d; this version reads up to %d." % (encoders["format"], FORMAT),
            "Install the version that trained it, on every node.",
        )


def varied(encoders: dict, augment: Mapping[str, List[dict]]) -> dict:
    """Return encoders whose rows are varied by these layers, see :func:`merge`, and by no others.

    Raises:
        InvalidArgument, NotSupported: as :func:`merge`, of columns that cannot be varied so.
    """
    features = _varied(encoders["features"], augment)
    return {**encoders, "features": features, "model": _model(features, encoders["inputs"], encoders["labels"])}


def _varied(features: Sequence[dict], augment: Mapping[str, List[dict]]) -> List[dict]:
    plain = [{key: value for key, value in feature.items() if key != "augment"} for feature in features]
    return [{**feature, "augment": augment[feature["name"]]} if feature["name"] in augment else feature for feature in plain]


def reuse(
    encoders: dict, shard_stats: Sequence[dict], nulls: Any, validation: Union[float, dict], augment: Mapping[str, List[dict]] = {}
) -> dict:
    """Take the encoders of an earlier run over for new rows, so that its weights mean the same: only the counts are new,
    and how rows are varied.

    Texts that the earlier run has not seen share the code of unknown ones, as they do in predictions.

    Raises:
        BadData: a class that the earlier run has never seen; otherwise as :func:`merge`, for what concerns rows.
    """
    refusals.refuse_unusable(shard_stats, nulls)
    refusals.refuse_other_shapes(shard_stats, encoders)
    rows = sum(stats["rows"] for stats in shard_stats)
    train = sum(stats["train_rows"] for stats in shard_stats)
    refusals.refuse_empty_part(rows, train, validation)
    refusals.refuse_weightless(shard_stats)
    labels = [_recounted(label, [stats["labels"][n] for stats in shard_stats]) for n, label in enumerate(encoders["labels"])]
    return {**varied({**encoders, "labels": labels}, augment), "rows": {"train": train, "validation": rows - train}}


def _recounted(label: dict, parts: List[dict]) -> dict:
    """A stored label without weights, its classes counted among other rows."""
    label = {key: value for key, value in label.items() if key != "weights"}
    if label["task"] == "classification":
        counts = _class_counts(parts)
        unseen = columns.in_order(label, set(counts) - set(label["classes"]))
        if unseen:
            raise refusals.unseen_class(label["name"], unseen[0])
        label["counts"] = [counts.get(value, 0) for value in label["classes"]]
    return label


def _merge_feature(spec: dict, parts: List[dict]) -> dict:
    feature = {key: spec[key] for key in ("name", "kind", "type", spec["kind"]) if key in spec}
    policy = spec.get("nulls")
    if spec["kind"] == "tokens":
        feature.update(encoder="tokens", shape=[spec["tokens"]["length"]])
        if spec["tokens"].get("hash"):
            return feature
        kept = _frequent(parts, spec["tokens"]["size"] - sequences.RESERVED, without=sequences.UNKNOWN)
        refusals.refuse_no_tokens(spec["name"], kept)
        return {**feature, "vocabulary": kept}
    if spec["kind"] == "sparse":
        return {**feature, "encoder": "sparse", "shape": [spec["sparse"]["size"]]}
    if spec["kind"] == "text":
        if policy is not None:
            feature["nulls"] = {"value": _as_text(policy["value"])} if "value" in policy else policy
        return {**feature, **_merge_vocabulary(parts, spec, policy is not None and "indicator" in policy)}
    encoder = columns.encoder_name(spec.get("encoder")) or "standardize"
    feature.update(encoder=encoder, shape=_one_shape(spec["name"], parts) or [])
    refusals.refuse_no_elements(spec["name"], feature["shape"])
    _refuse_collapsed(spec, parts)
    if encoder == "none":
        refusals.refuse_merged(spec["name"], sum(part.get("merged", 0) for part in parts))
    if policy is not None:
        value, (mean, _) = policy.get("value", "mean"), _merge_moments(spec["name"], parts)
        feature["nulls"] = {**policy, "value": mean[0] if value == "mean" else float(value)}
    feature.update(_merge_affine(spec["name"], encoder, parts))
    if policy is not None and encoder in columns.NUMBER_ENCODERS:
        shift, scale = affine(feature) or (np.zeros(1), np.ones(1))
        refusals.refuse_far(spec["name"], feature["nulls"]["value"], (feature["nulls"]["value"] - shift[0]) / scale[0])
    if encoder == "bucketize":
        settings = spec["encoder"][encoder]
        boundaries = settings.get("boundaries") or _merge_quantiles(spec["name"], parts, settings["buckets"])
        feature["boundaries"] = boundaries
        feature.update(_category(settings.get("as") or "one_hot", codes_of(feature)))
    return feature


def _merge_affine(name: str, encoder: Optional[str], parts: List[dict]) -> dict:
    """What :func:`affine` reads of a column of numbers under this encoder."""
    span = _merge_range(parts)
    if encoder in ("standardize", "minmax") and span is not None:
        refusals.refuse_narrow(name, *span)
    if encoder == "standardize":
        mean, scale = _merge_moments(name, parts)
        return {"mean": mean, "scale": scale}
    if encoder == "minmax":
        least, greatest = span
        return {"min": least.tolist(), "scale": np.where(greatest > least, greatest - least, 1.0).tolist()}
    return {}


def _one_shape(name: str, parts: List[dict]) -> Optional[List[int]]:
    """The shape that a column has in every shard that has rows."""
    shapes = [part["shape"] for part in parts if part.get("shape") is not None]
    for shape in shapes:
        if shape != shapes[0]:
            raise errors.RaggedArrays(
                'the arrays of column "%s" differ in shape' % name,
                detail="One segment has arrays of shape %s, another of shape %s." % (shapes[0], shape),
                hint="All arrays of a column must have the same dimensions.",
            )
    return shapes[0] if shapes else None


def _merge_range(parts: List[dict]) -> Optional[np.ndarray]:
    """The least and the greatest number of all shards' training rows, float64 (2, width); None where there is none."""
    ranges = [np.array(part["range"], np.float64) for part in parts if part.get("range") is not None]
    return functools.reduce(wider, ranges) if ranges else None


def _refuse_collapsed(column: dict, parts: List[dict]) -> None:
    span = _merge_range(parts)
    if span is not None and not columns.doubles_hold(column):
        refusals.refuse_collapsed(column["name"], *span)


def wider(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Combine two (least, greatest) of disjoint rows."""
    return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1])])


def in_blocks(values: np.ndarray, counts: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Bring numbers in ascending order, and how often each comes, to so many blocks: the first value of each, and how many it holds.

    Where there are no more distinct values than blocks, each has a block of its own.
    """
    if len(values) <= QUANTILE_POINTS:
        return values, counts
    ends = np.cumsum(counts)
    first = np.unique((ends - counts) * QUANTILE_POINTS // ends[-1], return_index=True)[1]
    return values[first], np.add.reduceat(counts, first)


def _merge_quantiles(name: str, parts: List[dict], buckets: int) -> List[float]:
    """Return the values at which buckets of about as many rows begin; fewer where many rows are alike.

    The n-th is the least value that n of the buckets' shares of all rows lie below. Shards report at most so many points
    (``segment.column.Numbers``), which places a boundary within two blocks of rows.
    """
    values, counts = (np.concatenate([part["points"][i] for part in parts]) for i in (0, 1))
    distinct, place = np.unique(values, return_inverse=True)
    rows = np.bincount(place, counts, len(distinct))
    below = np.cumsum(rows) - rows
    found = np.searchsorted(below * buckets, np.arange(1, buckets) * rows.sum())  # whole numbers, so no rounding
    boundaries = distinct[np.unique(found[found < len(distinct)])].tolist()
    if not boundaries:
        raise errors.BadData(
            'column "%s" has too few values for buckets' % name,
            detail="Its training rows do not fill two buckets.",
            hint="Give boundaries of your own, or leave the column out.",
        )
    return boundaries


def _category(wanted: Any, values: int) -> dict:
    """Encoder and dim of a category of so many values."""
    encoder = columns.encoder_name(wanted) or ("one_hot" if values <= ONE_HOT_VALUES else "embedding")
    if encoder != "embedding":
        return {"encoder": encoder}
    dim = wanted["embedding"]["dim"] if isinstance(wanted, dict) else None
    return {"encoder": encoder, "dim": dim or max(1, min(50, round(1.6 * values**0.56)))}


def _as_text(value: Any) -> str:
    """A value that stands for NULL in a category, as its column spells it."""
    return columns.spelled(int(value) if isinstance(value, float) else value)


def merged_counts(parts: List[dict]) -> Dict[str, int]:
    """How many training rows of all shards have each value of a category."""
    counts: Dict[str, int] = {}
    for part in parts:
        for value, count in part["counts"].items():
            counts[value] = counts.get(value, 0) + count
    return counts


def _frequent(parts: List[dict], most: int, without: Optional[str] = None) -> List[str]:
    """The values of all shards' training rows, the most frequent first, then by code point."""
    counts = merged_counts(parts)
    counts.pop(without, None)
    return sorted(counts, key=lambda value: (-counts[value], value))[:most]  # Python orders strings by code point


def _merge_vocabulary(parts: List[dict], spec: dict, null: bool) -> dict:
    wanted = spec.get("encoder")
    most = INDEX_VALUES if wanted == "index" else VOCABULARY_VALUES
    vocabulary: List[Optional[str]] = sorted({*_frequent(parts, most), *spec.get("known", ())})
    vocabulary += [None] if null else []  # a category of its own
    return {"vocabulary": vocabulary, **_category(wanted, len(vocabulary))}


def combine_moments(a: Tuple[int, Any, Any], b: Tuple[int, Any, Any]) -> Tuple[int, Any, Any]:
    """Combine two (count, mean, m2) of disjoint rows; m2 is the sum of squared deviations, float64 arrays."""
    if a[0] == 0 or b[0] == 0:
        return b if a[0] == 0 else a
    count = a[0] + b[0]
    delta = b[1] - a[1]
    mean = a[1] + delta * (b[0] / count)
    return count, mean, a[2] + b[2] + delta * delta * (a[0] * (b[0] / count))


def merged_moments(name: str, parts: List[dict]) -> Tuple[int, Any, Any]:
    """Combine the moments that shards report of a column: as :func:`combine_moments`.

    Raises:
        BadData: there are none, or they are too large.
    """
    total = (0, None, None)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts:
            if part["count"]:
                total = combine_moments(
                    total,
                    (part["count"], np.array(part["mean"], np.float64), np.array(part["m2"], np.float64)),
                )
    count, mean, m2 = total
    if not count:
        raise errors.BadData(
            'column "%s" is NULL in every training row' % name,
            detail="Nothing is known of its values.",
            hint="Leave the column out, or raise the share of training rows.",
        )
    if not (np.isfinite(mean).all() and np.isfinite(m2).all()):
        raise errors.BadData(
            'the values of column "%s" are too large to standardize' % name,
            hint="Scale the column in a materialized view.",
        )
    return total


def _merge_moments(name: str, parts: List[dict]) -> Tuple[List[float], List[float]]:
    count, mean, m2 = merged_moments(name, parts)
    deviation = np.sqrt(m2 / count)
    return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()


def _merge_label(label: dict, parts: List[dict]) -> dict:
    task = columns.task_of(label)
    result = {"name": label["name"], "output": label.get("output"), "type": label["type"], "task": task}
    if task != "classification":
        if label["type"].endswith("[]"):
            result["shape"] = _one_shape(label["name"], parts) or []
            refusals.refuse_no_elements(label["name"], result["shape"])
        lows = [part["min"] for part in parts if part.get("min") is not None]
        highs = [part["max"] for part in parts if part.get("max") is not None]
        _refuse_collapsed(label, parts)
        if min(lows) == max(highs):
            refusals.refuse_constant_label(label["name"], lows[0])
        scaled = _merge_affine(label["name"], label.get("encoder"), parts)
        if scaled:
            return {**result, "encoder": label["encoder"], **scaled}
        refusals.refuse_flattened_label(label, min(lows), max(highs))
        return result
    if any(part["classes"] is None for part in parts):  # one shard alone has too many to list
        raise refusals.too_many_classes(label, "more than %d" % refusals.CLASSES)
    counts = _class_counts(parts)
    classes = columns.in_order(label, counts)
    if len(classes) > refusals.CLASSES:
        raise refusals.too_many_classes(label, str(len(classes)))
    if len(classes) == 1:
        refusals.refuse_constant_label(label["name"], classes[0])
    return {**result, "classes": classes, "counts": [counts[value] for value in classes]}


def _class_counts(parts: List[dict]) -> Dict[Any, int]:
    """Return how many training rows each class has that any row has."""
    counts: Dict[Any, int] = {}
    for part in parts:
        for value, count in zip(part["classes"] or (), part["counts"] or ()):
            counts[value] = counts.get(value, 0) + count
    return counts


def is_category(feature: dict) -> bool:
    """Whether a stored feature is fed as a code: in the place of its value in the vocabulary, or of its bucket."""
    return feature["encoder"] in columns.CATEGORY_ENCODERS


def codes_of(feature: dict) -> int:
    """How many codes a category has: values seen and one for all others; or buckets, and one more where NULL has its own."""
    if "vocabulary" in feature:
        return len(feature["vocabulary"]) + 1
    return len(feature["boundaries"]) + 1 + indicator(feature)


def largest_code(feature: dict) -> int:
    """The largest code that a model is fed with of a feature; -1 of one that is fed as numbers."""
    if feature["encoder"] == "index":
        return codes_of(feature) - 1
    if feature["kind"] != "tokens":
        return -1
    known = len(feature["vocabulary"]) if "vocabulary" in feature else feature["tokens"]["size"] - sequences.RESERVED
    return known + sequences.RESERVED - 1


def indicator(feature: dict) -> bool:
    """Whether the model is told that a value was NULL: by a number beside it, or by a category of its own."""
    return "indicator" in feature.get("nulls", ())


def row_shape(feature: dict) -> List[int]:
    """The shape of a row of a feature of numbers; a scalar counts as an array of length 1, and has its indicator beside it."""
    return list(feature["shape"]) or [1 + indicator(feature)]


def affine(feature: dict) -> Optional[Tuple[np.ndarray, np.ndarray]]:
    """Return (shift, scale), float64 of the last axis, of a number that is fed as ``(x - shift) / scale``; None: as it is.

    Args:
        feature: Stored; or a label.
    """
    if feature.get("encoder") == columns.UNIT:
        return np.zeros(1), np.full(1, 255.0)
    shift = feature.get("mean" if feature.get("encoder") == "standardize" else "min")
    return None if shift is None else (np.array(shift, np.float64), np.array(feature["scale"], np.float64))


def _model(features: List[dict], inputs: Sequence[dict], labels: Sequence[dict]) -> dict:
    """Work out the part of the encoders that shapes a model."""
    by_name = {feature["name"]: feature for feature in features}
    return {
        "inputs": [_input(given, [by_name[name] for name in given["features"]]) for given in inputs],
        "outputs": [_output(label) for label in labels],
    }  # fmt: skip


def _output(label: dict) -> dict:
    task = label["task"]
    output = {"name": label["output"], "task": task, "classes": len(label["classes"]) if task == "classification" else None}
    if "shape" in label:
        output["shape"] = label["shape"]
        output["classes"] = math.prod(label["shape"]) if task == "multi_label" else None
    return output


def _settled(value: Any) -> Any:
    """A JSON value as PostgreSQL gives it back: it writes 1.0 as 1, and a program is known by what shapes it."""
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_settled(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _input(given: dict, features: List[dict]) -> dict:
    if len(features) > 1 or given["stack"] is not None:
        refusals.refuse_company(features)
    refusals.refuse_mixed(features)
    dense = [feature for feature in features if not is_category(feature)]
    categories = [feature for feature in features if is_category(feature)]
    if given["stack"] is not None:
        refusals.refuse_unlike(given["name"], [(f["name"], None if is_category(f) else row_shape(f)) for f in features])
        shape = row_shape(features[0])
        numbers = [len(features), *shape] if given["stack"] == 0 else [*shape, len(features)]
    elif len(dense) == len(features) == 1:
        numbers = row_shape(dense[0])
    else:
        refusals.refuse_deep(dense)
        numbers = [sum(row_shape(feature)[0] for feature in dense)] if dense else None
    codes = []
    for feature in categories:
        code = {"name": feature["name"], "size": codes_of(feature), "encoder": feature["encoder"]}
        codes.append({**code, "dim": feature["dim"]} if "dim" in feature else code)
    result = {"name": given["name"], "numbers": numbers, "codes": codes}
    if len(features) == 1 and given["stack"] is None and columns.is_bytes(features[0]):
        shift, scale = affine(features[0]) or (np.zeros(1), np.ones(1))
        scaled = {"scale": (1 / scale).tolist(), "offset": (-shift / scale).tolist(), "dtype": "float32"}
        result.update(dtype="uint8", layers=[{"Rescaling": scaled}])
    if features[0]["kind"] == "sparse":
        result["sparse"] = True
    if features[0]["kind"] == "tokens":
        result["dtype"] = "int32"
    if "augment" in features[0]:
        refusals.refuse_flat(features[0])
        result["layers"] = [*result.get("layers", ()), *_cropping(features[0]["augment"])]
        sizes = [layer["config"] for layer in features[0]["augment"] if layer["class_name"] == "RandomCrop"]
        if sizes:
            result["shape"] = [sizes[-1]["height"], sizes[-1]["width"], features[0]["shape"][2]]
    if features[0]["kind"] == "sequence":
        result["layers"] = [{"Masking": {"mask_value": sequences.PAD, "dtype": "float32"}}]
    return _settled(result)


def _cropping(layers: Sequence[dict]) -> Iterator[dict]:
    """Have rows that are not trained on cropped too: Keras' RandomCrop hands those on as they are, and what follows it takes their middle,
    which of a row that was cropped is all of it."""
    for layer in layers:
        yield layer
        if layer["class_name"] == "RandomCrop":
            yield {"CenterCrop": {key: value for key, value in layer["config"].items() if key in ("height", "width", "dtype")}}


def model_part(encoders: dict) -> dict:
    """Return what a model's shape depends on: ``{"inputs", "outputs"}``.

    Such a part is returned unchanged, so a program can be made from either.
    """
    return encoders["model"] if "model" in encoders else encoders


def tensor_name(kind: str, number: int) -> str:
    """The name of one of an input's tensors, of an output's label or of its weights; numbered from the second one, as Keras does."""
    return "%s_%d" % (kind, number) if number else kind


def label_names(encoders: dict) -> List[str]:
    """The tensors that hold the labels, in the order of the outputs."""
    return [tensor_name("label", number) for number in range(len(model_part(encoders)["outputs"]))]


def weight_of(arrays: Mapping[str, Any], number: int) -> Any:
    """The weights of rows for one output: its own, where classes are weighted, else those of all; None where none are weighted."""
    return arrays.get(tensor_name("weight", number), arrays.get("weight"))


def fed(part: dict) -> Dict[str, Tuple[Tuple[int, ...], str]]:
    """Return what a model is fed with, by tensor: (shape of one row, dtype).

    Args:
        part: Of ``model_part``.
    """
    found: Dict[str, Tuple[Tuple[int, ...], str]] = {}
    for number, given in enumerate(part["inputs"]):
        if given["numbers"] is not None:
            found[tensor_name("numbers", number)] = (tuple(given["numbers"]), given.get("dtype") or "float32")
        if given["codes"]:
            found[tensor_name("codes", number)] = ((len(given["codes"]),), "int32")
    return found


def sparse(part: dict) -> Dict[str, int]:
    """Return which of the tensors of :func:`fed` are sparse, and the size of their rows."""
    inputs = enumerate(part["inputs"])
    return {tensor_name("numbers", number): given["numbers"][0] for number, given in inputs if given.get("sparse")}


def input_shape(given: dict) -> List[int]:
    """Return the shape of one row as an input of the user's model sees it: numbers, then one-hot and embedded codes.

    Args:
        given: One of the ``inputs`` of ``model_part``.
    """
    if not given["codes"]:
        return list(given.get("shape") or given["numbers"])
    width = sum({"embedding": code.get("dim"), "index": 1}.get(code["encoder"], code["size"]) for code in given["codes"])
    return [width + (given["numbers"][0] if given["numbers"] else 0)]


def from_data(encoders: dict) -> dict:
    """Return what the data binds in a definition: ``$classes`` where one output alone has classes, and ``$input_shape`` of a model of
    one input."""
    part = model_part(encoders)
    shapes = [input_shape(given) for given in part["inputs"]]
    classes = [output["classes"] for output in part["outputs"] if output["classes"] is not None]
    return {"input_shape": shapes[0] if len(shapes) == 1 else None, "classes": classes[0] if len(classes) == 1 else None}


class Place(NamedTuple):
    """Where a feature lies in one of the tensors that a model is fed with.

    Attributes:
        feature: The stored one.
        tensor: The tensor's name.
        axis: Of a row of it.
        start, stop: On that axis; all there is on the others.
    """

    feature: dict
    tensor: str
    axis: int
    start: int
    stop: int


def places(encoders: dict) -> Iterator[Place]:
    """Give the places of features, input by input and in the order within; a feature may go to several inputs."""
    by_name = {feature["name"]: feature for feature in encoders["features"]}
    for number, given in enumerate(encoders["inputs"]):
        ends = {"numbers": 0, "codes": 0}
        for feature in (by_name[name] for name in given["features"]):
            kind, axis, size = "codes" if is_category(feature) else "numbers", 0, 1
            if given["stack"] == -1:
                axis = len(row_shape(feature))
            elif given["stack"] is None and kind == "numbers":
                size = row_shape(feature)[0]
            yield Place(feature, tensor_name(kind, number), axis, ends[kind], ends[kind] + size)
            ends[kind] += size


def sparse_tensors(encoders: dict) -> Dict[str, dict]:
    """The features of sparse rows, by the tensors that hold them alone."""
    return {place.tensor: place.feature for place in places(encoders) if place.feature["kind"] == "sparse"}


def classes(label: dict) -> Optional[List[Any]]:
    """Return the classes of a stored label as its column has them, None for other tasks."""
    type_ = columns.base(label["type"])
    return [_of_type(value, type_) for value in label["classes"]] if label["task"] == "classification" else None


def _of_type(value: Any, type_: str) -> Any:
    """Return a class as its column has it: labels that are no integers pass through double precision."""
    if isinstance(value, float):
        value = float(str(np.float32(value))) if type_ == "real" else value
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value
