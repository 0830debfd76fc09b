"""Statistics merged over shards, and their application."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf import columns, encoders, errors, tensors, wire
from cerebro_udf.segment.column import Numbers
from cerebro_udf.segment.reading import Parsed

NUMBER = {"name": "x", "column": "x", "type": "real", "kind": "number", "encoder": None}
ARRAY = {"name": "a", "column": "a", "type": "real[]", "kind": "array", "encoder": None}
TEXT = {"name": "t", "column": "t", "type": "text", "kind": "text", "encoder": None}
LABEL = {"name": "y", "output": None, "type": "integer", "task": None}
CLEAN = {"nulls": 0, "nans": 0, "infinities": 0}


def moments(values):
    values = np.asarray(values, np.float64)
    flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    shape = list(values.shape[1:])
    if not len(values):
        return {**CLEAN, "shape": None, "count": 0, "mean": None, "m2": None}
    mean = flat.mean(axis=0)
    return {
        **CLEAN,
        "shape": shape,
        "count": len(flat),
        "mean": mean.tolist(),
        "m2": ((flat - mean) ** 2).sum(axis=0).tolist(),
    }


def shard(rows, validation_rows=0, **columns):
    """What a shard reports of rows whose label, if there is one, is ``y``."""
    return {
        "rows": rows,
        "train_rows": rows - validation_rows,
        "validation_rows": validation_rows,
        "skipped": 0,
        "columns": {name: column for name, column in columns.items() if name != "y"},
        "labels": [{"name": "y", **columns["y"]}] if "y" in columns else [],
    }


def labels(*classes):
    return {**CLEAN, "classes": list(classes), "counts": [1] * len(classes)}


def test_moments_of_three_shards_are_those_of_all_rows():
    values = np.random.default_rng(0).normal(1e6, 2.0, 1000)
    stats = [shard(len(part), x=moments(part)) for part in (values[:10], values[10:10], values[10:])]
    feature = encoders.merge([NUMBER], [], stats)["features"][0]
    assert feature["mean"][0] == pytest.approx(values.mean(), rel=1e-12)
    assert feature["scale"][0] == pytest.approx(values.std(), rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), min_size=1, max_size=5).filter(lambda s: any(s)))
def test_merged_moments_do_not_depend_on_how_rows_are_sharded(parts):
    together = np.concatenate([np.array(part, float) for part in parts])
    feature = encoders.merge([NUMBER], [], [shard(len(part), x=moments(part)) for part in parts])[
        "features"
    ][0]
    assert feature["mean"][0] == pytest.approx(together.mean(), rel=1e-9, abs=1e-6)
    deviation = together.std()
    assert feature["scale"][0] == pytest.approx(
        deviation if deviation > 1e-4 else feature["scale"][0], rel=1e-6
    )


def test_a_constant_column_is_not_scaled():
    stats = [shard(2, x=moments([0.1, 0.1])), shard(1, x=moments([0.1]))]
    assert encoders.merge([NUMBER], [], stats)["features"][0]["scale"] == [1.0]


def test_arrays_of_rank_two_are_standardized_per_last_axis():
    values = np.random.default_rng(1).normal(size=(50, 4, 3)) * [1, 10, 100]
    merged = encoders.merge(
        [ARRAY], [], [shard(20, a=moments(values[:20])), shard(30, a=moments(values[20:]))]
    )
    assert merged["features"][0]["shape"] == [4, 3] and merged["model"]["inputs"][0]["numbers"] == [4, 3]
    encoded = tensors.Encoding(merged).encode({"a": values.astype(np.float32)})["numbers"]
    assert encoded.shape == (50, 4, 3) and encoded.dtype == np.float32
    assert np.allclose(encoded.reshape(-1, 3).std(axis=0), 1, atol=1e-5)


def test_numbers_and_short_arrays_join_in_feature_order():
    features = [NUMBER, ARRAY, {**NUMBER, "name": "z", "encoder": "none"}]
    stats = [shard(2, x=moments([1.0, 3.0]), a=moments([[0.0, 2.0], [4.0, 2.0]]), z=moments([7.0, 8.0]))]
    merged = json.loads(json.dumps(encoders.merge(features, [], stats)))
    encoded = tensors.Encoding(merged).encode(
        {"x": np.array([1.0, 3.0]), "z": np.array([7.0, 8.0]), "a": np.array([[0, 2], [4, 2]], np.float32)},
    )
    assert encoded["numbers"].tolist() == [[-1, -1, 0, 7], [1, 1, 0, 8]]
    assert encoders.from_data(merged)["input_shape"] == [4]


def test_the_vocabulary_is_sorted_and_unseen_values_have_code_zero():
    stats = [shard(3, t={**CLEAN, "counts": {"é": 1, "b": 2}}), shard(1, t={**CLEAN, "counts": {"B": 1}})]
    merged = encoders.merge([TEXT], [], stats)
    assert merged["features"][0]["vocabulary"] == ["B", "b", "é"]
    assert merged["model"]["inputs"][0]["codes"] == [{"name": "t", "size": 4, "encoder": "one_hot"}]
    column = tensors.Text(np.array([0, 1, 0], np.int32), ["é", "new"])
    assert tensors.Encoding(merged).encode({"t": column})["codes"].tolist() == [[3], [0], [3]]
    assert tensors.Encoding(merged).encode({"t": ["b", "c"]})["codes"].tolist() == [[2], [0]]


def test_many_values_get_an_embedding_and_only_the_most_frequent_a_code():
    counts = {"%05d" % i: (1 if i < 5 else 2) for i in range(10_003)}
    feature = encoders.merge([TEXT], [], [shard(3, t={**CLEAN, "counts": counts})])["features"][0]
    assert feature["encoder"] == "embedding" and feature["dim"] == 50 and len(feature["vocabulary"]) == 10_000
    assert feature["vocabulary"][:3] == ["00000", "00001", "00005"]
    part = {"size": 65, "dim": round(1.6 * 65**0.56)}
    few = encoders.merge([TEXT], [], [shard(3, t={**CLEAN, "counts": {"%d" % i: 1 for i in range(65)}})])
    assert few["features"][0]["dim"] == part["dim"]


def test_encoders_asked_for_are_used():
    stats = [shard(2, t={**CLEAN, "counts": {"a": 1, "b": 1}})]
    wanted = {**TEXT, "encoder": {"embedding": {"dim": 8}}}
    assert encoders.merge([wanted], [], stats)["model"]["inputs"][0]["codes"][0] == {
        "name": "t",
        "size": 3,
        "encoder": "embedding",
        "dim": 8,
    }


@pytest.mark.parametrize(
    "type_, task, expected",
    [
        ("integer", None, "classification"),
        ("boolean", None, "classification"),
        ("text", None, "classification"),
        ("character varying(20)", None, "classification"),
        ("numeric(10,2)", None, "regression"),
        ("real", None, "regression"),
        ("bigint", "regression", "regression"),
        ("real", "classification", "classification"),
        ("real[]", None, "regression"),
        ("numeric(10,2)[]", "regression", "regression"),
        ("boolean[]", None, "multi_label"),
        ("smallint[]", None, "multi_label"),
        ("bigint[]", "regression", "regression"),
        ("real[]", "multi_label", "multi_label"),
    ],
)
def test_the_task_follows_the_label_type_unless_it_is_given(type_, task, expected):
    assert columns.task_of({"name": "y", "type": type_, "task": task}) == expected


@pytest.mark.parametrize("type_, task", [
    ("text", "regression"), ("jsonb", None), ("real[]", "classification"), ("date[]", None), ("json[]", None), ("real[][]", None),
    ("boolean", "multi_label"),
])  # fmt: skip
def test_labels_without_a_task_are_refused(type_, task):
    with pytest.raises((errors.WrongColumnType, errors.NotSupported)):
        columns.task_of({"name": "y", "type": type_, "task": task})


@pytest.mark.parametrize(
    "parts, sorted_classes",
    [
        ([[10, 9], [-1]], [-1, 9, 10]),
        ([[True], [False]], [False, True]),
        ([["b", "a"], ["B"]], ["B", "a", "b"]),
    ],
)
def test_classes_are_sorted_and_come_back(parts, sorted_classes):
    merged = encoders.merge(
        [NUMBER], [LABEL], [shard(2, x=moments([1.0, 2.0]), y=labels(*part)) for part in parts]
    )
    assert merged["labels"][0]["classes"] == sorted_classes and encoders.from_data(merged)["classes"] == len(sorted_classes)
    column = sorted_classes[::-1] if isinstance(sorted_classes[0], str) else np.array(sorted_classes[::-1])
    codes = tensors.Encoding(merged).encode({"x": np.ones(len(column))}, [column])["label"]
    assert codes.dtype == np.int32
    assert [merged["labels"][0]["classes"][i] for i in codes] == sorted_classes[::-1]


def test_bigint_classes_stay_exact():
    big = [2**62, 2**62 + 1]
    merged = json.loads(
        json.dumps(encoders.merge([NUMBER], [LABEL], [shard(2, x=moments([1.0, 2.0]), y=labels(*big))]))
    )
    assert tensors.Encoding(merged).encode({"x": np.ones(2)}, [np.array(big[::-1])])["label"].tolist() == [1, 0]


def test_an_unseen_label_is_named():
    merged = encoders.merge([NUMBER], [LABEL], [shard(2, x=moments([1.0, 2.0]), y=labels(1, 2))])
    with pytest.raises(errors.BadData) as caught:
        tensors.Encoding(merged).encode({"x": np.ones(2)}, [np.array([1, 7])])
    assert "7" in caught.value.detail


def test_regression_labels_become_float32():
    label = {**LABEL, "type": "double precision"}
    merged = encoders.merge(
        [NUMBER], [label], [shard(2, x=moments([1.0, 2.0]), y={**CLEAN, "min": 0.0, "max": 1.0})]
    )
    assert merged["model"]["outputs"][0]["classes"] is None
    assert tensors.Encoding(merged).encode({"x": np.ones(2)}, [np.array([0.1, 0.2])])["label"].dtype == np.float32


def test_a_column_that_is_a_feature_and_a_label_has_the_statistics_of_each():
    feature = {"name": "y", "type": "real[]", "kind": "sequence", "encoder": "standardize", "sequence": {"length": 2}}
    steps, whole = moments([[[1.0], [3.0]], [[2.0], [6.0]]]), {**moments([[1.0, 3.0, 50.0], [2.0, 6.0, 70.0]]), "min": 1.0, "max": 70.0}
    both = [{**shard(2, y=whole), "columns": {"y": steps}}]
    merged = encoders.merge([feature], [{**LABEL, "type": "real[]", "encoder": "standardize"}], both)
    assert (merged["features"][0]["shape"], merged["features"][0]["mean"]) == ([2, 1], [3.0])
    assert (merged["labels"][0]["shape"], merged["labels"][0]["mean"]) == ([3], [1.5, 4.5, 60.0])
    both[0]["labels"][0]["nans"], both[0]["columns"]["y"]["nans"] = 2, 1
    assert "2 NaN" in bad(both, errors.NullInData, 'column "y" holds', [feature], LABEL).detail


@pytest.mark.parametrize(
    "low, high, kept", [(1.7e9, 1.7e9 + 86400, False), (1.7e9, 1.7e9 + 2e5, True), (-5.0, 5.0, True), (-3e38, 3.4e38, True)]
)
def test_quantities_that_single_precision_would_flatten_are_refused_as_labels(low, high, kept):
    stats = [shard(2, x=moments([1.0, 2.0]), y={**CLEAN, "min": low, "max": high})]
    label = {**LABEL, "type": "double precision"}
    if kept:
        assert encoders.merge([NUMBER], [label], stats)["labels"][0]["task"] == "regression"
    else:
        assert "675 steps" in bad(stats, errors.OutOfRange, 'label "y" holds numbers', label=label).detail
        assert encoders.merge([NUMBER], [{**label, "type": "real"}], stats), "whose numbers lose nothing any more"


def test_a_class_of_skipped_rows_alone_is_none():
    merged = encoders.merge([NUMBER], [{**LABEL, "type": "text"}], [shard(2, x=moments([1.0, 2.0]), y=labels("a", "b"))])
    column = tensors.Text(np.array([2, 0, 2], np.int32), ["b", "of a row that was skipped", "a"])
    assert tensors.Encoding(merged).encode({"x": np.ones(3)}, [column])["label"].tolist() == [0, 1, 0]


def bad(stats, error, match, features=(NUMBER,), label=None, **options):
    with pytest.raises(error, match=match) as caught:
        encoders.merge(list(features), [] if label is None else [label], stats, **options)
    assert caught.value.hint and caught.value.hint.endswith(".")
    return caught.value


def test_nulls_are_summed_over_shards_and_name_the_option():
    dirty = {**moments([1.0]), "nulls": 2, "nans": 1}
    error = bad([shard(1, x=dirty), shard(1, x=dirty)], errors.NullInData, 'column "x" holds NULL')
    assert "4 NULL, 2 NaN, 0 infinite" in error.detail and '"nulls"' in error.hint
    encoders.merge([NUMBER], [], [shard(1, x=dirty)], nulls="skip")


def test_data_that_cannot_be_trained_on_is_refused():
    one, two = moments([1.0]), moments([1.0, 2.0])
    bad([shard(0, x=moments([]))], errors.BadData, "no rows")
    bad([shard(1, 1, x=one)], errors.BadData, "no training rows")
    bad([shard(1, x=one)], errors.BadData, "validation part", validation=0.2)
    bad(
        [shard(2, x=two, y=labels(3)), shard(1, x=one, y=labels(3))],
        errors.BadData,
        "single value",
        label=LABEL,
    )
    real = {**LABEL, "type": "real"}
    bad([shard(2, x=two, y={**CLEAN, "min": 1.5, "max": 1.5})], errors.BadData, "single value", label=real)
    bad([shard(2, x=two, y=labels(*range(1001)))], errors.WrongColumnType, "too many values", label=LABEL)
    bad(
        [shard(2, x=two, y={**CLEAN, "classes": None})],
        errors.WrongColumnType,
        "too many values",
        label=LABEL,
    )
    bad(
        [shard(1, a=moments([[1.0, 2.0]])), shard(1, a=moments([[1.0]]))],
        errors.RaggedArrays,
        "differ in shape",
        features=[ARRAY],
    )
    bad(
        [shard(1, x=one, a=moments(np.ones((1, 2, 2))))],
        errors.NotSupported,
        "beside other features",
        features=[NUMBER, ARRAY],
    )
    bad([shard(1, x={**one, "m2": [float("inf")]})], errors.BadData, "too large")


def test_long_columns_are_encoded_in_chunks_between_which_interrupts_are_looked_at():
    rows = 3 * tensors.CHUNK_ROWS + 1
    stats = [shard(rows, x=moments(np.arange(rows)), t={**CLEAN, "counts": {"a": rows}}, y=labels(0, 1))]
    merged = encoders.merge([NUMBER, TEXT], [LABEL], stats)
    columns = {"x": np.arange(rows), "t": tensors.Text(np.zeros(rows, np.int32), ["a"])}
    label, calls = np.arange(rows) % 2, []
    encoded = tensors.Encoding(merged).encode(columns, [label], lambda: calls.append(1))
    assert len(calls) == 3 * 4
    assert encoded["label"].tolist() == label.tolist() and set(encoded["codes"][:, 0]) == {1}

    class Cancelled(Exception):
        pass

    def cancel():
        raise Cancelled

    with pytest.raises(Cancelled):
        tensors.Encoding(merged).encode(columns, [label], cancel)


def test_features_keep_their_types():
    features = [NUMBER, {**TEXT, "type": "character"}]
    merged = encoders.merge(features, [], [shard(1, x=moments([1.0]), t={**CLEAN, "counts": {"a": 1}})])
    assert [feature["type"] for feature in merged["features"]] == ["real", "character"]


BUCKETS = {**NUMBER, "encoder": {"bucketize": {"buckets": 4}}}


def points(values, block=1):
    """What a shard reports of these rows: blocks of so many distinct values."""
    distinct, counts = np.unique(values, return_counts=True)
    return [distinct[::block].tolist(), np.add.reduceat(counts, np.arange(0, len(counts), block)).tolist()]


@pytest.mark.parametrize("buckets", [2, 4, 10])
def test_a_bucket_begins_at_the_least_value_that_its_share_of_the_rows_lies_below(buckets):
    values = np.random.default_rng(2).integers(0, 40, 300).astype(float)
    spec = {**NUMBER, "encoder": {"bucketize": {"buckets": buckets}}}
    stats = [shard(len(part), x={**moments(part), "points": points(part)}) for part in (values[:7], values[7:100], values[100:])]
    feature = encoders.merge([spec], [], stats)["features"][0]
    shares = [k / buckets for k in range(1, buckets)]
    expected = [min(v for v in np.unique(values) if (values < v).mean() >= share) for share in shares]
    assert feature["boundaries"] == sorted(set(expected)) and feature["encoder"] == "one_hot"
    codes = tensors.Encoding(encoders.merge([spec], [], stats)).encode({"x": values})["codes"][:, 0]
    assert codes.tolist() == [sum(value >= boundary for boundary in expected) for value in values]


def test_boundaries_of_many_shards_are_off_by_no_more_than_two_blocks_of_rows():
    values, block = np.random.default_rng(3).normal(size=12_000), 50
    stats = [
        shard(len(part), x={**moments(part), "points": points(part, block)}) for part in (values[:3000], values[3000:3500], values[3500:])
    ]
    boundaries = encoders.merge([BUCKETS], [], stats)["features"][0]["boundaries"]
    assert len(boundaries) == 3
    for share, boundary in zip((0.25, 0.5, 0.75), boundaries):
        assert abs((values < boundary).sum() - share * len(values)) <= 2 * 3 * block


def test_explicit_boundaries_are_kept_and_buckets_may_be_embedded():
    settings = {"boundaries": [18.0, 65.0], "as": {"embedding": {"dim": 2}}}
    stats = [shard(2, x={**moments([1.0, 70.0]), "points": points([1.0, 70.0])})]
    merged = encoders.merge([{**NUMBER, "encoder": {"bucketize": settings}}], [], stats)
    assert merged["model"]["inputs"][0]["codes"] == [{"name": "x", "size": 3, "encoder": "embedding", "dim": 2}]
    codes = tensors.Encoding(merged).encode({"x": np.array([17.9, 18.0, 64.9, 65.0])})["codes"]
    assert codes.tolist() == [[0], [1], [1], [2]]


def test_a_column_of_one_value_has_no_buckets():
    bad([shard(2, x={**moments([1.0, 1.0]), "points": points([1.0, 1.0])})], errors.BadData, "too few values", features=[BUCKETS])


def test_minmax_maps_the_range_of_all_shards_onto_zero_to_one():
    spec = {**NUMBER, "encoder": "minmax"}
    stats = [shard(2, x={**moments(part), "range": [[min(part)], [max(part)]]}) for part in ([3.0, 5.0], [1.0, 2.0])]
    stats.append(shard(0, x={**moments([]), "range": None}))
    encoded = tensors.Encoding(encoders.merge([spec], [], stats)).encode({"x": np.array([1.0, 5.0, 2.0, 9.0])})
    assert encoded["numbers"].tolist() == [[0], [1], [0.25], [2]]


def test_minmax_holds_ranges_wider_than_an_int64():
    stats = wire.parsed(json.dumps([shard(2, x={**moments([-8e18, 8e18]), "range": [[-8000000000000000000], [8 * 10**18]]})]))
    encoded = tensors.Encoding(encoders.merge([{**NUMBER, "encoder": "minmax"}], [], stats)).encode({"x": np.array([-8e18, 0, 8e18])})
    assert encoded["numbers"].tolist() == [[0], [0.5], [1]]


def test_json_of_the_server_has_whole_numbers_as_far_as_an_int64_goes():
    read = wire.parsed("[%d, %d, %d, %d, 1%s, 7]" % (2**63 - 1, -(2**63), 2**63, -(2**63) - 1, "0" * 30))
    assert [(type(value), value) for value in read] == [
        (int, 2**63 - 1), (int, -(2**63)), (float, 2.0**63), (float, -(2.0**63)), (float, 1e30), (int, 7)
    ]  # fmt: skip


def merged(features, stats, inputs):
    given = [{"name": name, "features": names, "stack": stack} for name, (names, stack) in inputs.items()]
    return json.loads(json.dumps(encoders.merge(features, [], stats, inputs=given)))


def test_features_go_to_the_inputs_that_name_them_in_their_order():
    z = {**NUMBER, "name": "z", "encoder": "none"}
    texts = {**CLEAN, "counts": {"a": 1, "b": 1}}
    stats = [shard(2, x=moments([1.0, 3.0]), a=moments(np.arange(8.0).reshape(2, 2, 2)), z=moments([7.0, 8.0]), t=texts)]
    inputs = {"w": (["z", "x"], None), "d": (["a"], None), "t": (["t", "z"], None)}
    kept = merged([NUMBER, {**ARRAY, "encoder": "none"}, z, TEXT], stats, inputs)
    assert [given["numbers"] for given in kept["model"]["inputs"]] == [[2], [2, 2], [1]]
    columns = {"x": np.array([1.0, 3.0]), "z": np.array([7.0, 8.0]), "a": np.arange(8.0).reshape(2, 2, 2), "t": ["b", "new"]}
    encoded = tensors.Encoding(kept).encode(columns)
    assert {name: array.tolist() for name, array in encoded.items()} == {
        "numbers": [[7, -1], [8, 1]], "numbers_1": columns["a"].tolist(), "codes_2": [[2], [0]], "numbers_2": [[7], [8]],
    }  # fmt: skip
    assert encoders.from_data(kept)["input_shape"] is None
    assert {name: array.shape[1:] for name, array in encoded.items()} == {n: shape for n, (shape, _) in encoders.fed(kept["model"]).items()}


@pytest.mark.parametrize("stack", [0, -1])
@pytest.mark.parametrize("shape", [(), (5,), (4, 3)])
def test_columns_of_one_shape_are_stacked_along_an_axis_of_their_own(shape, stack):
    random = np.random.default_rng(2)
    columns = {name: random.normal(size=(20_000, *shape)) for name in "abc"}
    base = ARRAY if shape else NUMBER
    features = [{**base, "name": name} for name in columns]
    kept = merged(features, [shard(20_000, **{name: moments(column) for name, column in columns.items()})], {"s": (["b", "c", "a"], stack)})
    scaled = [(columns[n] - columns[n].reshape(-1, *shape[-1:]).mean(0)) / columns[n].reshape(-1, *shape[-1:]).std(0) for n in "bca"]
    expected = np.stack([column if shape else column[:, None] for column in scaled], 1 if stack == 0 else -1)
    encoded = tensors.Encoding(kept).encode(columns)["numbers"]
    assert encoded.flags.c_contiguous and list(encoded.shape[1:]) == kept["model"]["inputs"][0]["numbers"]
    np.testing.assert_allclose(encoded, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoder, value", [("standardize", 1e9), ("standardize", -1e9), ("minmax", 1e200), ("none", -1e39)])
def test_what_stands_for_a_null_is_refused_where_single_precision_would_make_it_infinite(encoder, value):
    tiny = {**moments([1e-36, 3e-36]), "range": [[1e-36], [3e-36]]}
    feature = {**NUMBER, "encoder": encoder, "nulls": {"value": value, "indicator": True}}
    error = bad([shard(2, x=tiny)], errors.OutOfRange, 'what stands for a NULL in column "x" is too far', [feature], None)
    assert error.sqlstate == "22003" and "%.6g" % value in error.detail
    for fitting in ("mean", 2e-36):
        encoders.merge([{**feature, "nulls": {"value": fitting}}], [], [shard(2, x=tiny)])


def test_numbers_whose_nulls_are_kept_are_stacked_with_their_indicators():
    features = [{**NUMBER, "name": name, "encoder": "none", "nulls": {"value": 0.0, "indicator": True}} for name in "ab"]
    kept = merged(features, [shard(2, a=moments([1.0, 3.0]), b=moments([5.0, 6.0]))], {"s": (["a", "b"], 0)})
    encoded = tensors.Encoding(kept).encode({"a": np.array([1.0, np.nan]), "b": np.array([np.nan, 6.0])})
    assert encoded["numbers"].tolist() == [[[1, 0], [0, 1]], [[0, 1], [6, 0]]]


@pytest.mark.parametrize("names, stack, error", [
    (["x", "a"], 0, errors.RaggedArrays), (["x", "t"], -1, errors.WrongColumnType), (["t", "t2"], 0, errors.WrongColumnType),
    (["x", "d"], None, errors.NotSupported), (["t", "d"], None, errors.NotSupported),
])  # fmt: skip
def test_what_cannot_be_one_input_is_refused(names, stack, error):
    texts = {**CLEAN, "counts": {"a": 1, "b": 1}}
    features = [NUMBER, ARRAY, {**ARRAY, "name": "d"}, TEXT, {**TEXT, "name": "t2"}]
    stats = [shard(2, x=moments([1.0, 3.0]), a=moments(np.ones((2, 3))), d=moments(np.ones((2, 3, 2))), t=texts, t2=texts)]
    with pytest.raises(error) as refused:
        merged(features, stats, {"s": (names, stack)})
    assert refused.value.hint


@pytest.mark.parametrize("encoder", ["standardize", "minmax", "none", {"bucketize": {"buckets": 3}}])
@pytest.mark.parametrize("kind, type_", [("number", "bigint"), ("number", "numeric"), ("array", "bigint[]")])
@pytest.mark.parametrize("low, high", [(1.7e18, 1.7e18), (-(2.0**63), -(2.0**63) + 2048), (2.0**60, 2.0**60 + 999 * 256)])
def test_numbers_that_double_precision_does_not_tell_apart_are_refused(encoder, kind, type_, low, high):
    spec = {"name": "x", "type": type_, "kind": kind, "encoder": encoder}
    stats = [shard(2, x={**moments([[low], [high]]), "range": [[low], [high]]})]
    with pytest.raises(errors.OutOfRange) as caught:
        encoders.merge([spec], [], stats)
    assert caught.value.message == 'column "x" holds numbers that double precision does not tell apart'
    assert caught.value.hint == "Take the difference to a constant: the column may be an expression, such as id - 1700000000000000000."


@pytest.mark.parametrize(
    "type_, low, high",
    [("double precision", 2.0**60, 2.0**60 + 512), ("bigint", 0.0, 2.0**63), ("numeric", 0.1, 0.1), ("bigint", 7.0, 7.0)],
)
def test_numbers_that_are_equal_or_lie_far_apart_are_standardized(type_, low, high):
    spec = {"name": "x", "type": type_, "kind": "number", "encoder": "standardize"}
    stats = [shard(2, x={**moments([low, high]), "shape": [], "range": [[low], [high]]})]
    assert encoders.merge([spec], [], stats)["features"][0]["scale"] == [(high - low) / 2 or 1.0]


@pytest.mark.parametrize("encoder", [None, "standardize"])
def test_whole_labels_that_are_rounded_to_one_number_are_not_said_to_be_one(encoder):
    label = {"name": "y", "output": None, "type": "bigint", "task": "regression", "encoder": encoder}
    quantities = {**moments([[1.7e18], [1.7e18]]), "shape": [], "range": [[1.7e18], [1.7e18]], "min": 1.7e18, "max": 1.7e18}
    with pytest.raises(errors.OutOfRange, match="double precision does not tell apart"):
        encoders.merge([], [label], [shard(2, y=quantities)])


@pytest.mark.parametrize("encoder", ["standardize", "minmax"])
def test_numbers_too_close_to_be_scaled_are_refused(encoder):
    values = Numbers("x", encoder, False)
    rows = np.arange(1.0, 31.0) * 1e-200
    values.append(values.take(Parsed(rows, np.zeros(30, bool)))[0], None)
    with pytest.raises(errors.OutOfRange, match="lie too close to one another"):
        encoders.merge([{**NUMBER, "type": "double precision", "encoder": encoder}], [], [shard(30, x=values.stats())])


def test_finite_numbers_beyond_single_precision_are_not_called_infinite_and_not_skipped():
    values = Numbers("x", "standardize", False)
    rows, bad = values.take(Parsed(np.array([1.0, 1e39, -2e39, np.inf]), np.zeros(4, bool)))
    assert bad.tolist() == [False, True, True, True]
    values.append(rows[~bad], None)
    stats = values.stats()
    assert stats["infinities"] == 1
    with pytest.raises(errors.OutOfRange) as caught:
        encoders.merge([NUMBER], [], [{**shard(1, x=stats), "skipped": 3}], nulls="skip")
    assert caught.value.detail == "2 of 4 rows, such as 1e+39; the largest that it holds is 3.4e38."
