"""Functional models in all forms: branches, shared layers, models within models, one end or several."""

import json

import keras
import pytest

from cerebro_udf import compilation, definition
from cerebro_udf.coordinator import options
from cerebro_udf.errors import InvalidArgument, NotSupported
from cerebro_udf.segment import network, program, seeds
from tests.unit.test_program import data, part, spec
from tests.unit.test_training import BATCH, N, by_hand, differing, trained

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


def two_inputs(structure):
    a, b = keras.Input((6,), name="a"), keras.Input((5, 2), name="b")
    inside = keras.Input((6,))
    twin = keras.Model(inside, L.Dense(4, activation="tanh")(inside))
    joined = L.Concatenate()([twin(a), twin(L.Dropout(0.2)(a)), L.LSTM(3)(b)])
    return keras.Model(structure(a, b), L.Dense(3)(L.BatchNormalization()(joined)))


STRUCTURES = {
    "list": lambda a, b: [a, b], "swapped": lambda a, b: [b, a], "dict": lambda a, b: {"a": a, "b": b},
    "nested": lambda a, b: {"x": [a], "y": {"b": b}},
}  # fmt: skip
TWO = {**part(), "inputs": [{"name": "b", "numbers": [5, 2], "codes": []}, {"name": "a", "numbers": [6], "codes": []}]}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_model_of_two_inputs_trains_as_keras_trains_it_bit_for_bit(structure):
    checked = definition.check(json.loads(two_inputs(STRUCTURES[structure]).to_json()))
    assert sorted(definition.ends(checked)[0]) == ["a", "b"]
    built = program.Program({**spec([{"Dense": {"units": 3}}]), "definition": definition.bind(checked, {}), "encoders": TWO})
    model = two_inputs(lambda a, b: {"numbers": b, "numbers_1": a})
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    arrays, order = data(TWO, N), seeds.permutation(5, 1, 0, N)
    beginning = [variable.numpy() for variable in model.optimizer.variables]
    for rows in (1, 2):  # opens its graph for minibatches of any size
        model.train_on_batch({name: arrays[name][:rows] for name in ("numbers", "numbers_1")}, arrays["label"][:rows])
    for variable, value in zip(model.optimizer.variables, beginning):
        variable.assign(value)
    built.set_state(built.initial_state(11))
    matched(network.body_of(built.model, {"encoders": TWO}), model)
    built.train(arrays, order, BATCH)
    for start in range(0, N, BATCH):
        picks = order[start : start + BATCH]
        model.train_on_batch({name: arrays[name][picks] for name in ("numbers", "numbers_1")}, arrays["label"][picks])
    assert unequal(network.body_of(built.model, {"encoders": TWO}), model) == []


def named(model):
    """Variables by the place of their layers among those of their class: Keras makes layers in another order from JSON."""
    found, seen = {}, {}
    for layer in model._flatten_layers(include_self=False):
        if not list(layer._flatten_layers(include_self=False)):
            kind = type(layer).__name__, str([v.shape for v in layer.variables])
            seen[kind] = seen.get(kind, 0) + 1
            found.update({(*kind, seen[kind], i): variable for i, variable in enumerate(layer.variables)})
    assert len(found) == len(model.variables)
    return found


def matched(ours, theirs):
    """Give a model the values of another one of the same layers."""
    for name, variable in named(theirs).items():
        variable.assign(named(ours)[name])


def unequal(ours, theirs):
    return [name for name, variable in named(theirs).items() if named(ours)[name].numpy().tobytes() != variable.numpy().tobytes()]


def two_outputs():
    x = keras.Input((6,))
    return keras.Sequential([L.Dense(4), keras.Model(x, [L.Dense(3)(x), L.Dense(1)(x)])])


def test_a_model_of_several_outputs_is_stored_and_fit_says_that_it_cannot_train_it_yet():
    checked = definition.check(json.loads(two_outputs().to_json()))
    assert len(definition.ends(checked)[1]) == 2
    with pytest.raises(NotSupported, match="not supported yet") as refused:
        options.parse(None, checked)
    assert "2 " in refused.value.detail and refused.value.hint


@pytest.mark.parametrize("given, message, hint", [
    (None, "several inputs", '"a": '), ({"a": ["x"]}, 'leaves out "b"', "Say which"), ({"a": ["x"], "c": ["y"]}, '"c"', "no name"),
    ({"a": ["x"], "bb": ["y"]}, '"bb"', 'Did you mean "b"'), ({"a": ["x"], "b": ["y"], "c": ["z"]}, '"c"', "no name"),
])  # fmt: skip
def test_the_inputs_of_a_model_are_to_be_named(given, message, hint):
    checked = definition.check(json.loads(two_inputs(STRUCTURES["list"]).to_json()))
    with pytest.raises(InvalidArgument, match=message) as refused:
        options.parse({"inputs": given}, checked)
    assert hint in refused.value.hint or hint == "no name"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_model_of_one_input_may_have_it_named(form):
    checked = definition.check(json.loads(form().to_json()))
    (name,) = definition.ends(checked)[0]
    assert options.parse(None, checked).inputs is None
    assert options.parse({"inputs": {name or "x": ["a", "b"]}}, checked).inputs == [
        {"name": name or "x", "features": ["a", "b"], "stack": None}
    ]
