"""First values without building: those of a freshly built model, bit for bit. Real Keras, in this process."""

import json

import keras
import pytest

from cerebro_udf import definition
from cerebro_udf.segment import network
from cerebro_udf.segment.beginning import Beginning

from .test_program import part, spec

DEEP = [
    {"Conv2D": {"filters": 3, "kernel_size": 2}},
    "BatchNormalization",
    {"SpatialDropout2D": {"rate": 0.1}},
    {"SeparableConv2D": {"filters": 2, "kernel_size": 2}},
    "Flatten",
    {"Dense": {"units": 3}},
]
DENSE = [
    {"Dense": {"units": 8, "kernel_initializer": {"RandomNormal": {"seed": 3}}}},
    {"Dropout": {"rate": 0.2, "seed": 7}},
    {"Dense": {"units": 8, "kernel_initializer": "orthogonal", "bias_initializer": {"Constant": {"value": 0.1}}}},
    {"GaussianNoise": {"stddev": 0.1}},
    {"Dense": {"units": 3, "kernel_initializer": "he_normal", "bias_initializer": "random_uniform"}},
]
CODES = [{"name": "a", "size": 5, "encoder": "embedding", "dim": 2}, {"name": "b", "size": 3, "encoder": "one_hot"}]
LSTM = [{"Reshape": {"target_shape": [3, 2]}}, {"LSTM": {"units": 4}}, {"Dense": {"units": 3}}]
GRU = [{"Reshape": {"target_shape": [3, 2]}}, {"Bidirectional": {"layer": {"GRU": {"units": 4}}}}, {"Dense": {"units": 3}}]


def attention():
    x = keras.Input((6,))
    rows = keras.layers.Reshape((3, 2))(x)
    shared = keras.layers.Dense(4)
    rows = keras.layers.MultiHeadAttention(2, 3, dropout=0.1)(shared(rows), shared(rows))
    y = keras.layers.Dense(3)(keras.layers.Flatten()(rows))
    return json.loads(keras.Model(x, y).to_json())


SPECS = {
    "dense": spec(DENSE),
    "convolutions": spec(DEEP, part(numbers=(5, 5, 2))),
    "categories": spec([{"Dense": {"units": 3}}], part(codes=CODES)),
    "attention": {**spec(DENSE), "definition": definition.bind(attention(), {"classes": 3, "input_shape": [6]})},
    "gru": spec(GRU),
    "half precision": {**spec(DENSE), "precision": "mixed_bfloat16"},
    "lstm": spec(LSTM),  # the bias of its gates comes from a function of its own: built anew each time
}


@pytest.mark.parametrize("name", SPECS)
def test_first_values_are_those_of_a_freshly_built_model(name):
    beginning = Beginning(SPECS[name])
    for seed in (3, 2**31 - 1, 0, 3):
        expected = [network.snapshot(variable) for variable in network.bare(SPECS[name], seed).variables]
        values = beginning.values(seed)
        assert [(v.dtype, v.shape, v.tobytes()) for v in values] == [(e.dtype, e.shape, e.tobytes()) for e in expected]
    assert bool(beginning._draws) is (name != "lstm")


def test_a_model_is_built_for_its_first_seed_only(monkeypatch):
    built, bare = [], network.bare
    monkeypatch.setattr(network, "bare", lambda spec, seed: built.append(seed) or bare(spec, seed))
    beginning = Beginning(SPECS["dense"])
    for seed in (5, 6, 7):
        beginning.values(seed)
    assert built == [5]
