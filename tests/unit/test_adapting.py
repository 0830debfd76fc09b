"""Layers of a model that learn from data: what they learn of merged statistics is what their `adapt` learns of all rows."""

from __future__ import annotations

import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from cerebro_udf import definition, encoders, tensors
from cerebro_udf.coordinator import adapting
from cerebro_udf.errors import InvalidArgument, NotSupported
from cerebro_udf.segment.column import Numbers, Steps

L = keras.layers
LABEL = {"name": "y", "output": None, "type": "real", "task": "regression", "encoder": None}
LEARNS = adapting.Wish(True)
DENSE = {"Dense": {"units": 1}}


def functional(build) -> dict:
    x = keras.Input((3,), name="x")
    return json.loads(keras.Model(x, build(x)).to_json())


Y = {"name": "y", "min": 0.0, "max": 1.0, "nulls": 0, "nans": 0, "infinities": 0}


def wanted(given: dict, search=None) -> dict:
    return adapting.wanted(definition.check(given), search)


def run(features: dict, shards: list[dict], found: dict, inputs=None, nulls=None) -> dict:
    """The encoders of a run: features by name with their encoder, and of each shard columns by name."""
    specs = [
        {"name": name, "type": "double precision" + "[]" * (shards[0][name].ndim > 1), "encoder": encoder,
         "kind": "array" if shards[0][name].ndim > 1 else "number", **({"nulls": nulls[name]} if nulls and name in nulls else {})}
        for name, encoder in features.items()
    ]  # fmt: skip
    stats = []
    for shard in shards:
        count, reported = len(next(iter(shard.values()))), {}
        for spec in specs:
            column = Numbers(spec["name"], spec["encoder"], "nulls" in spec, counted=True)
            for block in np.array_split(shard[spec["name"]], 3):
                column.append(block, None)
            reported[spec["name"]] = {**column.stats(), "nulls": 0, "nans": 0}
        stats.append({"rows": count, "train_rows": count, "validation_rows": 0, "skipped": 0, "columns": reported, "labels": [Y]})
    merged = encoders.merge(specs, [LABEL], json.loads(json.dumps(stats)), inputs=inputs)
    return json.loads(json.dumps(adapting.learnt(merged, found, stats)))


def layer_of(given: dict, stored: dict) -> dict:
    (layer,) = [layer for _, layer in adapting._learning(definition.full(definition.check(given)))]
    model = adapting.bound(definition.full(definition.check(given)), stored)
    return next(found["config"] for found in adapting.objects(model) if found["class_name"] == layer["class_name"])


def columns(sizes=(50, 7, 40), seed: int = 3, **shapes) -> list[dict]:
    random = np.random.default_rng(seed)
    return [{name: random.normal(100, 3, (size, *shape)).round(3) for name, shape in shapes.items()} for size in sizes]


def whole(shards: list[dict], name: str) -> np.ndarray:
    return np.concatenate([shard[name] for shard in shards])


def adapted(axis, rows: np.ndarray) -> keras.Layer:
    layer = L.Normalization(axis=axis)
    layer.adapt(rows)
    return layer


@pytest.mark.parametrize("axis", [-1, 1, None, [1]])
def test_normalization_of_columns_side_by_side_learns_what_keras_learns_of_all_rows(axis):
    shards = columns(a=(), b=(4,), c=())
    given = {"layers": [{"Normalization": {"axis": axis}}, DENSE]}
    assert wanted(given) == {None: {"Normalization": LEARNS}}
    config = layer_of(given, run(dict.fromkeys("abc", "none"), shards, wanted(given)))
    rows = np.concatenate([whole(shards, "a")[:, None], whole(shards, "b"), whole(shards, "c")[:, None]], 1)
    plain = adapted(tuple(axis) if isinstance(axis, list) else axis, rows)
    found = L.Normalization.from_config(config)
    np.testing.assert_array_equal(found(rows[:5].astype(np.float32)), plain(rows[:5].astype(np.float32)))


@pytest.mark.parametrize("axis", [-1, 3, None, [-1]])
def test_normalization_of_deep_arrays_learns_along_their_last_axis(axis):
    shards = columns(a=(4, 5, 3))
    given = {"layers": [{"Normalization": {"axis": axis}}, "Flatten", DENSE]}
    config = layer_of(given, run({"a": "none"}, shards, wanted(given)))
    plain = adapted(tuple(axis) if isinstance(axis, list) else axis, whole(shards, "a"))
    found = L.Normalization.from_config(config)
    found.build((None, 4, 5, 3))
    np.testing.assert_allclose(found.mean, plain.mean, rtol=1e-7)
    np.testing.assert_allclose(found.variance, plain.variance, rtol=1e-6)


@pytest.mark.parametrize("stack", [0, -1])
@pytest.mark.parametrize("axis", [-1, 1, None, [1, 2]])
def test_normalization_of_stacked_columns_learns_along_either_axis(stack, axis):
    shards = columns(a=(4,), b=(4,))
    given = {"layers": [{"Normalization": {"axis": axis}}, "Flatten", DENSE]}
    stored = run(dict.fromkeys("ab", "none"), shards, wanted(given), [{"name": None, "features": ["b", "a"], "stack": stack}])
    rows = np.stack([whole(shards, "b"), whole(shards, "a")], 1 if stack == 0 else -1)
    plain = adapted(tuple(axis) if isinstance(axis, list) else axis, rows)
    found = L.Normalization.from_config(layer_of(given, stored))
    found.build((None, *rows.shape[1:]))
    np.testing.assert_allclose(found.mean, plain.mean, rtol=1e-7)
    np.testing.assert_allclose(found.variance, plain.variance, rtol=1e-6)


def test_what_a_layer_learns_is_of_rows_as_they_come_to_it():
    """Scaled by the encoder that somebody has named, a value in the place of a NULL, a number that says so."""
    shards = columns(a=(), b=())
    for shard in shards:
        shard["a"][::3] = np.nan
    nulls = {"a": {"value": 90.0, "indicator": True}}
    given = {"layers": [{"Normalization": {}}, DENSE]}
    for encoder in ("none", "standardize", "minmax"):
        stored = run({"a": encoder, "b": encoder}, shards, wanted(given), nulls=nulls)
        a, b = ((whole(shards, name), encoders.affine(feature)) for name, feature in zip("ab", stored["features"]))
        fed = [np.where(np.isnan(values), 90.0, values) for values, _ in (a, b)]
        fed = [values if affine is None else (values - affine[0]) / affine[1] for values, (_, affine) in zip(fed, (a, b))]
        rows = np.stack([fed[0], np.isnan(a[0]), fed[1]], 1)
        config = layer_of(given, stored)
        np.testing.assert_allclose(config["mean"], rows.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(config["variance"], rows.var(axis=0), rtol=1e-12)


@pytest.mark.parametrize("bins, epsilon", [(2, 0.01), (4, 0.01), (10, 0.01), (7, 0.05), (3, 0.001), (200, 0.01)])
@pytest.mark.parametrize("sizes", [(5, 3), (400, 7, 600)])
def test_discretization_learns_the_boundaries_that_keras_learns_of_all_rows(bins, epsilon, sizes):
    shards = columns(sizes, a=(), b=(2,))
    given = {"layers": [{"Discretization": {"num_bins": bins, "epsilon": epsilon, "output_mode": "count"}}, DENSE]}
    stored = run(dict.fromkeys("ab", "none"), shards, wanted(given))
    plain = L.Discretization(num_bins=bins, epsilon=epsilon)
    plain.adapt(np.concatenate([whole(shards, "a")[:, None], whole(shards, "b")], 1))
    config = layer_of(given, stored)
    assert config["bin_boundaries"] == plain.bin_boundaries and "num_bins" not in config
    assert L.Discretization.from_config(config)(np.array([[0.0, 100.0, 200.0]])).shape == (1, len(plain.bin_boundaries) + 1)


def test_boundaries_of_more_numbers_than_are_told_one_by_one_are_within_a_thousandth_of_the_rows():
    random = np.random.default_rng(2)
    shards = [{"a": random.normal(size=size)} for size in (30_000, 9_000)]
    given = {"layers": [{"Discretization": {"num_bins": 8}}, DENSE]}
    boundaries = layer_of(given, run({"a": "none"}, shards, wanted(given)))["bin_boundaries"]
    rows = whole(shards, "a")
    below = [(rows < boundary).mean() for boundary in boundaries]
    plain = L.Discretization(num_bins=8)
    plain.adapt(rows)
    np.testing.assert_allclose(below, [(rows < boundary).mean() for boundary in plain.bin_boundaries], atol=1e-3)


LOOKED_UP = {
    "StringLookup": (["b", "a", "ä", "b", "c", "[UNK]", "a", "d", "", "d"], ["a", "z", "", "[UNK]", "ä"]),
    "IntegerLookup": ([7, 7, -1, 3, 2**60, 3, 11, 2, 0, 100], [7, 5, 0, -1, 2**60]),
}
TYPES = {"StringLookup": "text", "IntegerLookup": "bigint"}


def looked_up(name: str, arguments: dict, values: list, shards: int = 3) -> tuple[dict, dict]:
    """The config of the layer of codes, and the stored feature, of a column of these values."""
    given = {"layers": [{name: arguments}, DENSE]}
    found = wanted(given)
    spec = {"name": "a", "type": TYPES[name], "kind": "text", "encoder": adapting.encoders(found, {}, None, ["a"], {"a": TYPES[name]})["a"]}
    (spec,) = adapting.specifications([spec], found, None)
    stats = []
    for part in np.array_split(np.array(values, object), shards):
        counts = {str(value): part.tolist().count(value) for value in part}
        columns = {"a": {"counts": counts, "nulls": 0, "nans": 0, "infinities": 0}}
        stats.append({"rows": len(part), "train_rows": len(part), "validation_rows": 0, "skipped": 0, "columns": columns, "labels": [Y]})
    stored = adapting.learnt(encoders.merge([spec], [LABEL], stats), found, stats)
    layers = adapting.bound(definition.full(definition.check(given)), json.loads(json.dumps(stored)))["config"]["layers"]
    return layers[0], stored


@pytest.mark.parametrize("name", LOOKED_UP)
@pytest.mark.parametrize("arguments", [
    {}, {"mask_token": True}, {"max_tokens": 4}, {"max_tokens": 4, "mask_token": True}, {"output_mode": "one_hot"},
    {"output_mode": "tf_idf"},
    {"output_mode": "multi_hot", "max_tokens": 20, "pad_to_max_tokens": True}, {"output_mode": "count", "mask_token": True},
    {"vocabulary": slice(1, 5)}, {"vocabulary": slice(1, 5), "output_mode": "one_hot", "mask_token": True},
])  # fmt: skip
def test_a_lookup_gives_of_codes_what_keras_gives_of_values_after_adapt(name, arguments):
    values, asked = LOOKED_UP[name]
    arguments = dict(arguments)
    if "mask_token" in arguments:
        arguments["mask_token"] = "" if name == "StringLookup" else 0
    if "vocabulary" in arguments:
        arguments["vocabulary"] = list(dict.fromkeys(value for value in values[arguments["vocabulary"]] if value not in ("", 0)))
    plain = getattr(L, name)(**arguments)
    if "vocabulary" not in arguments:
        plain.adapt(np.array(values).reshape(-1, 1))
    layer, stored = looked_up(name, arguments, values)
    assert layer["class_name"] == "IntegerLookup"
    codes = tensors.Encoding(stored).encode({"a": [str(value) for value in asked]})["codes"]
    np.testing.assert_allclose(
        L.IntegerLookup.from_config(layer["config"])(codes), plain(np.array(asked).reshape(-1, 1)), rtol=1e-6
    )


@pytest.mark.parametrize("layer, types, given, told", [
    ("StringLookup", {"a": "bigint"}, {}, "bigint"), ("IntegerLookup", {"a": "text"}, {}, "text"),
    ("StringLookup", {"a": "text[]"}, {}, "tokens"),
    ("StringLookup", {"a": "text", "b": "text"}, {}, "2 columns"), ("IntegerLookup", {"a": "integer"}, {"a": "none"}, "none"),
])  # fmt: skip
def test_columns_that_a_lookup_does_not_take_are_refused(layer, types, given, told):
    with pytest.raises(InvalidArgument, match="does not look up") as refused:
        adapting.encoders(wanted({"layers": [layer, DENSE]}), given, None, list(types), types)
    assert told in "%s %s" % (refused.value.detail, refused.value.hint)


def test_a_lookup_with_a_vocabulary_takes_what_an_encoder_makes_where_one_is_named():
    found = wanted({"layers": [{"IntegerLookup": {"vocabulary": [1, 2]}}, DENSE]})
    assert adapting.encoders(found, {"a": "none"}, None, ["a"], {"a": "integer"}) == {"a": "none"}
    assert adapting.encoders(found, {}, None, ["a"], {"a": "integer"}) == {"a": "index"}


@pytest.mark.parametrize("arguments", [{"num_oov_indices": 2}, {"num_oov_indices": 0}, {"invert": True}])
def test_lookups_that_would_need_the_values_themselves_are_refused(arguments):
    with pytest.raises(NotSupported, match="one index for all values"):
        wanted({"layers": [{"StringLookup": arguments}, DENSE]})


def test_steps_that_fill_a_row_up_are_none_to_learn_from():
    column = Steps("a", "none", False, counted=True)
    column.append(np.array([[[3.0], [2.0**-126]], [[4.0], [5.0]]]), None)
    assert column.stats()["points"] == [[3.0, 4.0, 5.0], [1, 1, 1]]


@pytest.mark.parametrize("build", [
    lambda x: L.Dense(1)(L.Concatenate()([L.Normalization()(x), x])),
    lambda x: L.Dense(1)(keras.Sequential([L.Normalization()])(x)),
    lambda x: L.Dense(1)(keras.Model((inner := keras.Input((3,))), L.Normalization()(inner))(x)),
])  # fmt: skip
def test_a_layer_is_found_on_an_input_of_a_model_or_of_one_within(build):
    assert wanted(functional(build)) == {None: {"Normalization": LEARNS}}


@pytest.mark.parametrize("given", [
    {"layers": [DENSE, {"Normalization": {}}, DENSE]}, {"layers": ["Flatten", {"Discretization": {"num_bins": 3}}]},
    functional(lambda x: L.Normalization()(L.Dense(3)(x))), functional(lambda x: L.Normalization()(x * 2)),
    functional(lambda x: (norm := L.Normalization())(norm(x))),
    {"layers": [{"TimeDistributed": {"layer": {"Normalization": {}}}}, DENSE]},
    {"layers": [{"repeat": "$n", "layers": [DENSE, {"Normalization": {}}]}, DENSE]},
])  # fmt: skip
def test_a_layer_that_takes_no_input_is_refused_before_anything_starts(given):
    with pytest.raises(NotSupported, match="nothing to learn from") as refused:
        wanted(given)
    assert "mean and variance" in refused.value.hint or "bin_boundaries" in refused.value.hint


@pytest.mark.parametrize("layer", [
    {"Normalization": {"mean": 0, "variance": 1}}, {"Discretization": {"bin_boundaries": [1, 2]}},
    {"CategoryEncoding": {"num_tokens": 3}}, {"Hashing": {"num_bins": 3}}, {"TextVectorization": {"vocabulary": ["a"]}},
])  # fmt: skip
def test_layers_that_have_what_they_need_learn_nothing_wherever_they_are(layer):
    assert wanted({"layers": [layer, DENSE, layer]}) == {}


def test_what_a_search_may_put_in_the_place_of_a_layer_is_looked_for_too():
    given = {"layers": ["$first", {"Dense": {"units": "$units"}}]}
    axis = ["Identity", "Normalization", {"Discretization": {"num_bins": 3, "output_mode": "count"}}]
    search = {"space": {"first": axis, "units": {"low": 1, "high": 3}, "learning_rate": [0.1]}}
    assert wanted(given, search) == {None: {"Normalization": LEARNS, "Discretization": LEARNS}}
    with pytest.raises(NotSupported):
        wanted({"layers": [DENSE, "$first", {"Dense": {"units": "$units"}}]}, search)


@pytest.mark.parametrize("layer, told", [
    ({"Normalization": {"axis": 2}}, "axis"), ({"Normalization": {"axis": 0}}, "axis"),
    ({"Discretization": {"num_bins": 20000}}, "num_bins"), ({"Discretization": {"num_bins": 2, "epsilon": 1e-6}}, "epsilon"),
])  # fmt: skip
def test_what_statistics_do_not_tell_is_refused_before_the_first_visit(layer, told):
    given = {"layers": [layer, DENSE]}
    stored = run({"a": "none"}, columns(a=()), wanted(given))
    with pytest.raises(InvalidArgument, match=told):
        adapting.check(definition.check(given), None, stored)


def test_an_axis_that_a_search_varies_is_bound_trial_by_trial():
    given = {"layers": [{"Normalization": {"axis": "$axis"}}, DENSE]}
    stored = run({"a": "none", "b": "none"}, columns(a=(), b=()), wanted(given, {"space": {"axis": [None, -1]}}))
    adapting.check(definition.check(given), {"space": {"axis": [None, -1]}}, stored)
    found = [adapting.bound(definition.bind(definition.check(given), {"axis": axis}), stored) for axis in (None, -1)]
    assert [np.shape(model["config"]["layers"][0]["config"]["mean"]) for model in found] == [(), (2,)]


@pytest.mark.parametrize("types, given, told", [
    ({"a": "real", "t": "text"}, {}, '"t"'), ({"a": "integer"}, {"a": "one_hot"}, "one_hot"),
    ({"a": "real"}, {"a": {"bucketize": {"buckets": 3}}}, "bucketize"), ({"a": "text"}, {"a": {"tokens": {"length": 3}}}, "tokens"),
])  # fmt: skip
def test_columns_that_are_no_numbers_do_not_go_to_a_layer_of_numbers(types, given, told):
    with pytest.raises(InvalidArgument, match="does not learn from") as refused:
        adapting.encoders({None: {"Normalization": LEARNS}}, given, None, list(types), types)
    assert told in "%s %s" % (refused.value.message, refused.value.detail)


def test_only_the_columns_of_a_layer_are_left_as_they_are():
    types = {"a": "real", "b": "real", "c": "real[]", "t": "text"}
    inputs = [{"name": "n", "features": ["a", "c"], "stack": None}, {"name": "other", "features": ["b", "t"], "stack": None}]
    found = adapting.encoders({"n": {"Normalization": LEARNS}}, {"c": "minmax"}, inputs, list(types), types)
    assert found == {"a": "none", "c": "minmax"}
