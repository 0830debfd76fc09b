"""Definitions that Keras 2 wrote: models recorded by ``tests/record_keras2.py`` compute the same, and what can't be had says so."""

import copy
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf import definition
from cerebro_udf.errors import InvalidArgument
from tests.record_keras2 import rows, weights
from tests.unit.test_definition import places

RECORDED = {
    "%s, %s" % (file.stem, name): record
    for file in sorted((Path(__file__).parent / "keras2").glob("*.json"))
    for name, record in json.loads(file.read_text("utf-8")).items()
}


def build(model):
    full = definition.check(model)
    assert definition.check(full) == full  # what is stored is of Keras 3
    return keras.saving.deserialize_keras_object(definition.bind(full, {}))


@pytest.mark.parametrize("name", RECORDED)
def test_a_model_of_keras_2_has_the_same_weights_and_computes_the_same(name):
    record = RECORDED[name]
    model = build(record["model"])
    x = [rows(shape, "embedding" in name, seed) for seed, shape in enumerate(record["inputs"])]
    x = x if len(x) > 1 else x[0]
    model(x)
    assert [list(weight.shape) for weight in model.weights] == record["weights"]
    model.set_weights(weights(record["weights"]))
    y = model(x)
    outputs = y if isinstance(y, list) else [y]
    assert len(outputs) == len(record["outputs"])
    for ours, theirs in zip(outputs, record["outputs"]):
        np.testing.assert_allclose(np.ravel(ours), theirs, rtol=2e-5, atol=2e-5)


def sequential(*layers, **extra):
    return {"class_name": "Sequential", "config": {"name": "s", "layers": list(layers)}, "keras_version": "2.4.0", **extra}


def layer(name, **config):
    return {"class_name": name, "config": config}


def shapes(model):
    return [weight.shape for weight in build(model).weights]


def test_older_forms_are_read_too():
    first = layer("Dense", units=2, batch_input_shape=[None, 3], kernel_initializer=layer(
        "VarianceScaling", scale=1.0, mode="fan_avg", distribution="normal", seed=None, dtype="float32"))  # fmt: skip
    as_list = {"class_name": "Sequential", "config": [first, layer("BatchNormalizationV1", axis=[1], fused=True)], "keras_version": "2.0.8"}
    assert shapes(as_list) == [(3, 2), (2,), (2,), (2,), (2,), (2,)]
    first = layer("CuDNNLSTM", units=4, return_sequences=True, batch_input_shape=[None, 5, 2], time_major=False)
    recurrent = [first, layer("CuDNNGRU", units=3)]
    assert shapes(sequential(*recurrent)) == shapes(sequential(
        layer("LSTM", units=4, return_sequences=True, batch_input_shape=[None, 5, 2], implementation=2),
        layer("GRU", units=3, reset_after=True, time_major=False),
    ))  # fmt: skip
    assert shapes(sequential(layer("GRU", units=3, batch_input_shape=[None, 5, 2])))[2] == (9,)  # one bias, as before reset_after
    policy = layer("Dense", units=2, dtype={"class_name": "Policy", "config": {"name": "mixed_float16"}})
    assert definition.check(sequential(policy))["config"]["layers"][0]["config"]["dtype"] == "mixed_float16"


def test_placeholders_may_be_written_into_a_model_of_keras_2():
    checked = definition.check(sequential(layer("LeakyReLU", alpha="$alpha"), layer("Dense", units="$classes", activation="$a")))
    assert definition.placeholders(checked) == {"alpha", "a"}
    bound = definition.bind(checked, {"alpha": 0.2, "a": "relu", "classes": 3})
    assert [one["config"] for one in bound["config"]["layers"]] == [{"negative_slope": 0.2}, {"units": 3, "activation": "relu"}]


GRAPH = next(record["model"] for name, record in RECORDED.items() if name.endswith("2.12, nested, two outputs"))


def graph(**changes):
    model = copy.deepcopy(GRAPH)
    last = next(one for one in model["config"]["layers"] if one["name"] == "sum")
    last.update(changes)
    return model


@pytest.mark.parametrize("model, at, says", [
    (sequential(layer("Lambda", function="x")), "layers[0]", "not allowed"),
    (sequential(layer("LocallyConnected1D", filters=2)), "layers[0]", "unknown layer"),
    (sequential(layer("Custom>Mine")), "layers[0]", "unknown layer"),
    (sequential(dict(layer("Dense", units=1), module="mine", registered_name="mine>Dense")), "layers[0]", "registered"),
    (sequential(dict(layer("Dense", units=1), module="mine")), "layers[0]", "module"),
    (sequential(layer("Dense", units=1, activation="hard_sigmoid")), "layers[0].config.activation", "another function"),
    (sequential("Flatten", layer("LSTM", units=1, time_major=True)), "layers[1].config.time_major", "time_major"),
    (sequential(layer("InputLayer", batch_input_shape=[None, 3], ragged=True), "Flatten"), "layers[0].config.ragged", "ragged"),
    (sequential(layer("Dense", units=1, wide=True)), "layers[0].config", "wide"),
    (sequential(layer("TFOpLambda", function="math.add")), "layers[0]", "operation"),
    (graph(inbound_nodes=[[["inner", 1, 0, {"x": {"class_name": "__lambda__", "config": {}}}]]]), "inbound_nodes[0].x", "not allowed"),
    (graph(inbound_nodes=[[["nowhere", 0, 0, {}]]]), "inbound_nodes[0]", "tensors"),
    (graph(inbound_nodes={"a": []}), "inbound_nodes", "nodes"),
    (graph(class_name="SlicingOpLambda"), "layers[", "operation"),
])  # fmt: skip
def test_what_keras_3_does_not_have_is_refused_with_the_spot_and_the_way_out(model, at, says):
    with pytest.raises(InvalidArgument) as refused:
        definition.check(model)
    assert at in refused.value.detail and says in refused.value.message
    assert "Keras 3" in refused.value.hint and "to_json()" in refused.value.hint


@given(
    st.sampled_from([path for path in places(GRAPH) if path]),
    st.sampled_from([
        None, True, 0, -1, "", "x", "$x", "/etc/passwd", [], [[]], [[[]]], {}, {"class_name": []}, {"class_name": "Lambda", "config": {}},
        [["x", 0, 0, {}]], {"Lambda": {}}, ["x", 0, 0],
    ]),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_a_model_of_keras_2_damaged_anywhere_is_refused_cleanly_or_still_sound(path, value):
    damaged = copy.deepcopy(GRAPH)
    parent = damaged
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    try:
        bound = definition.bind(definition.check(damaged), {"x": 1})
    except InvalidArgument as error:
        assert error.detail and error.hint
    else:
        assert '"class_name": "Lambda"' not in json.dumps(bound) and "/etc" not in json.dumps(bound)
