"""Functional models in all forms: branches, shared layers, models within models, one end or several."""

import json

import keras
import pytest

from cerebro_udf import compilation, definition
from cerebro_udf.coordinator import options
from cerebro_udf.errors import NotSupported
from cerebro_udf.segment import network, program
from tests.unit.test_program import data, part, spec
from tests.unit.test_training import N, by_hand, differing, trained

L = keras.layers


def branches():
    x = keras.Input((6,))
    left, right = L.Dense(4, activation="relu")(x), L.Dense(4, activation="tanh")(x)
    joined = L.Concatenate()([L.Add()([left, right]), x, left * 2 + right[:, :4]])
    return keras.Model(x, L.Dense(3)(L.BatchNormalization()(joined)))


def shared():
    x, twin = keras.Input((6,)), L.Dense(6, activation="relu")
    return keras.Model(x, L.Dense(3)(L.Average()([twin(x), twin(twin(x))])))


def nested():
    inside, x = keras.Input((6,)), keras.Input((6,))
    inner = keras.Model(inside, L.Dropout(0.3)(L.Dense(4, activation="relu")(inside)))
    return keras.Model(x, L.Dense(3)(L.Concatenate()([inner(x), inner(x), keras.Sequential([L.Dense(2)])(x)])))


def nested_in_a_sequential():
    x = keras.Input((6,))
    return keras.Sequential([keras.Model(x, L.Dense(4, activation="relu")(x)), L.Dense(3)])


def ends_with_names():
    x = keras.Input((6,))
    return keras.Model({"features": x}, {"label": L.Dense(3)(x)})


FORMS = [branches, shared, nested, nested_in_a_sequential, ends_with_names]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_functional_model_trains_as_keras_trains_it_bit_for_bit(form):
    written = json.loads(form().to_json())
    built = program.Program({**spec([{"Dense": {"units": 3}}]), "definition": definition.bind(definition.check(written), {})})
    model = form()
    if form is ends_with_names:  # one tensor at either end, under whatever name
        model = keras.Model(model.inputs[0], model.outputs[0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    model.compile(network._optimizer(compilation.check_optimizer("adam")), loss, metrics=metrics, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    built.set_state(built.initial_state(11))
    for theirs, ours in zip(model.variables, built.model.variables, strict=True):  # Keras makes layers in another order from JSON
        theirs.assign(ours)
    arrays = data(part(), N)
    assert differing(trained(built, arrays), by_hand(model, arrays)) == []


def two_inputs():
    a, b = keras.Input((6,), name="a"), keras.Input((2,), name="b")
    return keras.Model({"a": a, "b": b}, L.Dense(3)(L.Concatenate()([a, b])))


def two_outputs():
    x = keras.Input((6,))
    return keras.Sequential([L.Dense(4), keras.Model(x, [L.Dense(3)(x), L.Dense(1)(x)])])


@pytest.mark.parametrize("form, ends", [
    (branches, (1, 1)), (ends_with_names, (1, 1)), (nested_in_a_sequential, (1, 1)), (two_inputs, (2, 1)), (two_outputs, (1, 2)),
])  # fmt: skip
def test_a_model_of_several_ends_is_stored_and_fit_says_that_it_cannot_train_it_yet(form, ends):
    checked = definition.check(json.loads(form().to_json()))
    assert definition.ends(checked) == ends
    if ends == (1, 1):
        assert options.parse(None, checked)
        return
    with pytest.raises(NotSupported, match="not supported yet") as refused:
        options.parse(None, checked)
    assert "2 " in refused.value.detail and refused.value.hint
