"""Functional models in all forms: branches, shared layers, models within models, one end or several."""

import json

import keras
import numpy as np
import pytest

from cerebro_udf import compilation, definition, encoders
from cerebro_udf.coordinator import ends, options
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
    assert sorted(definition.inputs(checked)) == ["a", "b"]
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


def three_outputs(structure):
    x = keras.Input((6,), name="x")
    shared = L.Dropout(0.2)(L.Dense(8, activation="tanh")(x))
    kind, size = L.Dense(3, name="kind")(shared), L.Dense(1, name="size")(L.BatchNormalization()(shared))
    return keras.Model(x, structure(kind, size, L.Dense(2, activation="sigmoid", name="flags")(shared)))


ENDS = {"list": lambda *y: list(y), "turned": lambda k, s, f: [f, k, s], "dict": lambda k, s, f: {"kind": k, "b": s, "a": f}}
TASKS = {
    "kind": {"task": "classification", "classes": 3}, "size": {"task": "regression", "classes": None},
    "flags": {"task": "multi_label", "classes": 2, "shape": [2]},
}  # fmt: skip
LOSSES = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": keras.losses.Huber(),
          "flags": keras.losses.BinaryCrossentropy()}  # fmt: skip


@pytest.mark.parametrize("weights", ["none", "of rows", "of each"])
@pytest.mark.parametrize("structure", ENDS)
def test_a_model_of_three_outputs_trains_as_keras_trains_it_bit_for_bit(structure, weights):
    layers = {"b": "size", "a": "flags"} if structure == "dict" else {}
    checked = definition.check(json.loads(three_outputs(ENDS[structure]).to_json()))
    names = definition.outputs(checked)
    assert names == {"list": ["kind", "size", "flags"], "turned": ["flags", "kind", "size"], "dict": ["a", "b", "kind"]}[structure]
    three = {**part(), "outputs": [{"name": name, **TASKS[layers.get(name, name)]} for name in sorted(names)]}
    importance = dict(zip(sorted(names), (0.5, 2.0, 1.0)))
    own = {**spec([{"Dense": {"units": 3}}]), "definition": definition.bind(checked, {}), "encoders": three}
    metrics = {name: [compilation.check_metric("accuracy")] for name in names if layers.get(name, name) != "size"}
    built = program.Program({**own, "loss": {"size" if "size" in names else "b": compilation.check_loss("huber")},
                             "loss_weights": importance, "metrics": metrics})  # fmt: skip
    model = three_outputs(ENDS[structure])
    in_form = (lambda given: {name: given[name] for name in names}) if structure == "dict" else (lambda given: [given[n] for n in names])
    model.compile("adam", in_form({name: LOSSES[layers.get(name, name)] for name in names}), in_form(importance), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    random, arrays = np.random.default_rng(3), data(part(), N)
    given = {"kind": arrays.pop("label"), "size": random.normal(size=N).astype(np.float32),
             "flags": random.integers(0, 2, (N, 2)).astype(np.float32)}  # fmt: skip
    y, w = {name: given[layers.get(name, name)] for name in names}, {name: random.uniform(0, 2, N).astype(np.float32) for name in names}
    arrays.update(zip(encoders.label_names(three), (y[name] for name in sorted(names))))
    of_each = {encoders.tensor_name("weight", number): w[name] for number, name in enumerate(sorted(names))}
    arrays.update({"none": {}, "of rows": {"weight": w["kind"]}, "of each": of_each}[weights])
    order, beginning = seeds.permutation(5, 1, 0, N), [variable.numpy() for variable in model.optimizer.variables]

    def train(picks):
        sample_weight = {"none": None, "of rows": w["kind"][picks], "of each": in_form({n: w[n][picks] for n in names})}[weights]
        return model.train_on_batch(arrays["numbers"][picks], in_form({n: y[n][picks] for n in names}), sample_weight)

    for rows in (1, 2):  # opens its graph for minibatches of any size
        train(order[:rows])
    for variable, value in zip(model.optimizer.variables, beginning):
        variable.assign(value)
    built.set_state(built.initial_state(11))
    matched(network.body_of(built.model, {"encoders": three}), model)
    built.train(arrays, order, BATCH)
    for start in range(0, N, BATCH):
        train(order[start : start + BATCH])
    assert unequal(network.body_of(built.model, {"encoders": three}), model) == []
    found = built.results()
    reported = [name + ("_accuracy" if name in metrics else "_mae") for name in names]
    assert sorted(found) == sorted(["loss", *reported, *(name + "_loss" for name in names)])
    assert found["loss"] == pytest.approx(sum(importance[name] * found[name + "_loss"] for name in names), rel=1e-6)


def test_the_loss_of_each_output_is_its_mean_over_rows_however_they_are_cut():
    checked = definition.check(json.loads(three_outputs(ENDS["list"]).to_json()))
    three = {**part(), "outputs": [{"name": name, **TASKS[name]} for name in sorted(TASKS)]}
    built = program.Program({**spec([{"Dense": {"units": 3}}]), "definition": definition.bind(checked, {}), "encoders": three})
    arrays, random = data(part(), N), np.random.default_rng(3)
    arrays.update(label_1=arrays.pop("label"), label_2=random.normal(size=N).astype(np.float32))
    arrays["label"] = random.integers(0, 2, (N, 2)).astype(np.float32)
    y = [arrays[name] for name in ("label_1", "label_2", "label")]
    found, model = [], network.body_of(built.model, {"encoders": three})
    for cut in (N, 50):  # 50: the last minibatch has 3 rows
        built.reset_metrics()
        built.validate(arrays, cut)
        found.append(built.results())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    for name, outputs, label in zip(("kind", "size", "flags"), model(arrays["numbers"]), y):
        loss = {**LOSSES, "size": keras.losses.MeanSquaredError()}[name]
        assert found[0][name + "_loss"] == pytest.approx(float(loss(label, outputs)), rel=1e-5)


def test_outputs_that_cannot_be_told_apart_are_refused():
    x = keras.Input((6,))
    for outputs in ({"a": [L.Dense(1)(x)], "b": {"c": L.Dense(1)(x), "d": L.Dense(1)(x)}}, list(L.LSTM(2, return_state=True)(x[:, None]))):
        checked = definition.check(json.loads(keras.Model(x, outputs).to_json()))
        with pytest.raises(NotSupported) as refused:
            options.parse(None, checked)
        assert "dictionary" in refused.value.hint


@pytest.mark.parametrize("given, message, hint", [
    (None, "several outputs", '"kind": '), ({"kind": "k", "size": "s"}, 'leaves out "flags"', "Say what"),
    ({"kind": "k", "size": "s", "flag": "f"}, 'names "flag"', 'Did you mean "flags"'),
    ({"kind": 3}, "outputs.kind", "species"), ({"kind": {"label": "k", "tsk": "x"}}, 'unknown key "tsk"', '"task"'),
    ({"kind": {"label": "k", "task": "ranking"}}, "outputs.kind.task", "multi_label"),
])  # fmt: skip
def test_the_labels_of_outputs_are_to_be_named(given, message, hint):
    checked = definition.check(json.loads(three_outputs(ENDS["list"]).to_json()))
    with pytest.raises(InvalidArgument, match=message) as refused:
        options.parse({"outputs": given}, checked)
    assert hint in refused.value.hint


@pytest.mark.parametrize("given, message, hint", [
    ({"loss": "mse"}, 'option "loss" has a wrong value', "flags"), ({"loss": {"kinds": "mse"}}, 'names "kinds"', '"kind"'),
    ({"metrics": ["mae"]}, 'option "metrics" has a wrong value', "flags"),
    ({"loss_weights": {"kind": -1}}, "loss_weights.kind", "0 or more"),
    ({"loss_weights": {"kind": 0, "size": 0, "flags": 0}}, '"loss_weights" leaves nothing to train on', "above 0"),
    ({"class_weight": "balanced"}, 'option "class_weight" has a wrong value', "flags"),
    ({"rank_by": "val_accuracy"}, "does not report", "kind_accuracy, kind_loss, loss, size_loss, size_mae, val_flags_accuracy"),
    ({"early_stopping": {"monitor": "kind_acc"}}, "does not report", "kind"),
    ({"metrics": {"kind": [{"AUC": {"name": "loss"}}]}}, 'two metrics', "Name"),
    ({"task": "regression"}, "option task and option outputs", "Leave"),
    ({"search": {"space": {"loss": ["mse"]}}}, 'option "loss"', "flags"),
])  # fmt: skip
def test_what_goes_by_outputs_is_checked_by_their_names(given, message, hint):
    checked = definition.check(json.loads(three_outputs(ENDS["list"]).to_json()))
    outputs = {"kind": "k", "size": "s", "flags": {"label": "f", "task": "multi_label"}}
    with pytest.raises(InvalidArgument, match=message) as refused:
        parsed = options.parse({"outputs": outputs, **given}, checked)
        ends.settle(parsed, None)
        options.check_named(parsed, ["multi_label", "classification", "regression"])
    assert hint in "%s %s" % (refused.value.detail, refused.value.hint)


def test_a_single_output_that_is_named_is_that_of_the_label():
    checked = definition.check({"layers": [{"Dense": {"units": 1}}]})
    parsed = options.parse({"outputs": {"y": {"label": "price", "task": "regression"}}}, checked)
    assert (ends.settle(parsed, None), parsed.task, parsed.outputs) == ("price", "regression", None)
    for given, label in (({"outputs": {"y": "price"}}, "other"), ({"outputs": {"y": "price"}, "task": "regression"}, None)):
        with pytest.raises(InvalidArgument, match="exclude each other"):
            ends.settle(options.parse(given, checked), label)
    with pytest.raises(InvalidArgument, match="one output"):
        options.parse({"outputs": {"y": "price", "z": "cost"}}, checked)
    with pytest.raises(InvalidArgument, match="loss_weights"):
        options.parse({"loss_weights": {"y": 1}}, checked)


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
    (name,) = definition.inputs(checked)
    assert options.parse(None, checked).inputs is None
    assert options.parse({"inputs": {name or "x": ["a", "b"]}}, checked).inputs == [
        {"name": name or "x", "features": ["a", "b"], "stack": None}
    ]


NAMES = ("how large", "ü", "(a ->> 'b')")


def test_inputs_have_any_names():
    given = {name: keras.Input((2,), name=name) for name in NAMES}
    a, b, c = given.values()
    checked = definition.check(json.loads(keras.Model(given, {"a": L.Dense(1)(b), "b": L.Dense(1)(L.Concatenate()([a, c]))}).to_json()))
    several = {
        "inputs": [{"name": name, "numbers": [2], "codes": []} for name in NAMES],
        "outputs": [{"name": name, "task": "regression", "classes": None} for name in "ab"],
    }
    built = program.Program(
        {**spec([{"Dense": {"units": 3}}]), "definition": definition.bind(checked, {}), "encoders": several, "loss": None, "metrics": None}
    )
    arrays = {name: np.ones((BATCH, 2), np.float32) for name in encoders.fed(several)}
    arrays.update({name: np.ones(BATCH, np.float32) for name in encoders.label_names(several)})
    built.validate(arrays, BATCH)
    assert np.isfinite(list(built.results().values())).all()


@pytest.mark.parametrize("name", [*NAMES, "a:b", " a", "a\n"])
def test_a_name_under_which_tensorflow_computes_nothing_is_refused_when_the_model_is_made(name):
    x = keras.Input((2,))
    graph = json.loads(keras.Model(x, L.Dense(1, name="one")(x)).to_json())
    graph["config"]["layers"][1]["config"]["name"] = name
    dictionary = json.loads(keras.Model(x, {name: L.Dense(1)(x), "two": L.Dense(1)(x)}).to_json())
    wrapped = {"Bidirectional": {"layer": {"LSTM": {"units": 1, "name": name}}}}
    for given in (
        graph, dictionary, {"name": name, "layers": ["Flatten"]}, {"layers": [{"Dense": {"units": 1, "name": name}}]},
        {"layers": [wrapped]}, {"layers": [{"Sequential": {"name": name, "layers": ["Flatten"]}}]},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="not a name for a layer or a model") as refused:
            definition.check(given)
        assert "ASCII" in refused.value.hint


def test_blocks_are_repeated_in_a_sequential_model_within_a_graph():
    """As often as a placeholder says, beside branches that skip them."""
    x = keras.Input((6,))
    blocks = keras.Sequential([keras.Input((6,)), L.Dense(6)], name="blocks")
    graph = json.loads(keras.Model(x, L.Dense(3)(L.Add()([x, blocks(x)]))).to_json())
    nested = next(layer for layer in graph["config"]["layers"] if layer["class_name"] == "Sequential")
    nested["config"]["layers"] = [{"repeat": "$depth", "layers": [{"Dense": {"units": 6, "activation": "$activation"}}]}]
    checked = definition.check(graph)
    for depth in (1, 3):
        bound = definition.bind(checked, {"depth": depth, "activation": "relu"})
        built = program.Program({**spec([{"Dense": {"units": 3}}]), "definition": bound})
        built.validate(data(part(), BATCH), BATCH)
        assert len(built.model.trainable_variables) == 2 + 2 * depth and np.isfinite(built.results()["loss"])
