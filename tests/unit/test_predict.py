"""Predicting rows: equal to plain Keras on the same weights and encoders."""

import numpy as np
import pytest

from cerebro_udf import definition, encoders, errors
from cerebro_udf.coordinator import options, programs
from cerebro_udf.segment import program, state
from cerebro_udf.segment.predict import Predictor, answering

import keras  # isort: skip  (the package says first how TensorFlow has to start)


def column(name, **more):
    return {"name": name, **more}


NUMBER = column("x", kind="number", type="double precision", encoder="standardize", shape=[], mean=[2.0], scale=[4.0])
ARRAY = column("a", kind="array", type="real[]", encoder="none", shape=[3])
TEXT = column("t", kind="text", type="text", encoder="one_hot", vocabulary=["p", "q"])
IMAGE = column("i", kind="array", type="real[]", encoder="standardize", shape=[2, 2], mean=[1.0, 2.0], scale=[2.0, 4.0])


def stored(features, type_="text", classes=("no", "yes")):
    task = "classification" if classes else "regression"
    label = {"name": "y", "output": None, "type": type_, "task": task}
    if classes:
        label["classes"] = list(classes)
    made = {"format": 1, "features": features, "labels": [label]}
    inputs = [{"name": None, "features": [feature["name"] for feature in features], "stack": None}]
    return {**made, "inputs": inputs, "model": encoders._model(features, inputs, [label])}


def record(kept, layers, **more):
    model = definition.check({"layers": layers})
    return {"definition": model, "options": options.parse(more, model).to_json(), "encoders": kept}


def spec_of(made):
    stored_options = options.Options.from_json(made["options"])
    return programs.order(stored_options, {}, made["definition"], made["encoders"])["program"]


def trained(made):
    """A predictor and the plain model of the same weights."""
    built = program.Program(spec_of(made))
    blob = built.initial_state(3)
    built.set_state(blob)
    return Predictor(made["encoders"], spec_of(made), blob), built.model


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def test_of_several_outputs_only_those_that_are_wanted_are_kept():
    inputs = keras.Input((3,))
    units = {"far": 2, "near": 4}
    model = keras.Model(inputs, {name: keras.layers.Dense(count, name=name)(inputs) for name, count in units.items()})
    outputs = [{"name": name, "task": "regression", "shape": [count], "classes": None} for name, count in units.items()]
    part = {"inputs": [{"name": None, "numbers": [3], "codes": []}], "outputs": outputs}
    x = np.random.default_rng(0).normal(size=(5_000, 3)).astype(np.float32)
    every, own = (answering(model, [None, None], part, numbers)({"numbers": x}) for numbers in ([0, 1], [1]))
    assert [answer.shape for answer in every] == [(5_000, 2), (5_000, 4)] and len(own) == 1
    np.testing.assert_array_equal(own[0], every[1])
    np.testing.assert_allclose(own[0], model.predict(x, verbose=0)["near"], rtol=1e-5, atol=1e-6)


def test_classes_come_back_as_they_were_with_their_probabilities():
    predictor, model = trained(record(stored([NUMBER, ARRAY]), [{"Dense": {"units": "$classes"}}]))
    ((value, probabilities),) = predictor.row({"x": 6, "a": [1, 2, 3.5], "other": None})
    expected = softmax(model.predict(np.array([[1, 1, 2, 3.5]], np.float32), verbose=0)[0])
    assert probabilities == pytest.approx(expected.tolist(), rel=1e-6)
    assert value == ["no", "yes"][int(expected.argmax())] and predictor.outputs[0].classes == ["no", "yes"]
    assert predictor.row([6, [1, 2, 3.5]]) == [(value, probabilities)]


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_unit_gives_two_probabilities(activation):
    made = record(
        stored([NUMBER], "boolean", [False, True]), [{"Dense": {"units": 1, "activation": activation}}]
    )
    predictor, model = trained(made)
    output = float(model.predict(np.array([[1]], np.float32), verbose=0)[0, 0])
    p = output if activation else 1 / (1 + np.exp(-output))
    ((value, probabilities),) = predictor.row([6])
    assert probabilities == pytest.approx([1 - p, p], rel=1e-6) and value is bool(p > 0.5)


def test_a_regression_gives_the_models_number():
    predictor, model = trained(record(stored([NUMBER], "real", None), [{"Dense": {"units": 1}}]))
    expected = float(model.predict(np.array([[1]], np.float32), verbose=0)[0, 0])
    assert predictor.row({"x": 6}) == [(pytest.approx(expected, rel=1e-6), None)] and predictor.outputs[0].classes is None


def test_text_is_looked_up_and_unseen_text_is_a_code_of_its_own():
    predictor, model = trained(
        record(stored([NUMBER, TEXT]), [{"Dense": {"units": 2, "activation": "softmax"}}])
    )
    for text, code in (("p", 1), ("q", 2), ("new", 0)):
        x = {"numbers": np.array([[1]], np.float32), "codes": np.array([[code]], np.int32)}
        ((_, probabilities),) = predictor.row({"x": 6, "t": text})
        assert probabilities == pytest.approx(model.predict(x, verbose=0)[0].tolist(), rel=1e-6)


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], [[[1, 2], [3, 4]]], {"i": [[1, 2], [3, 4]]}])
def test_a_single_array_may_be_given_as_itself(values):
    predictor, model = trained(
        record(stored([IMAGE]), ["Flatten", {"Dense": {"units": 2, "activation": "softmax"}}])
    )
    x = np.array([[[0, 0], [1, 0.5]]], np.float32)
    assert predictor.row(values)[0][1] == pytest.approx(model.predict(x, verbose=0)[0].tolist(), rel=1e-6)


def test_many_rows_are_predicted_alike():
    predictor, _ = trained(record(stored([ARRAY]), [{"Dense": {"units": 2}}]))
    rows = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    ((values, probabilities),) = predictor.columns({"a": rows})
    assert len(values) == 5000 and probabilities.shape == (5000, 2)
    (one,), (few,) = predictor.row(rows[4999].tolist()), predictor.rows([row.tolist() for row in rows[:3]])
    assert one[0] == values[4999] and one[1] == pytest.approx(probabilities[4999].tolist(), rel=1e-5)
    assert np.allclose(few[1], probabilities[:3], rtol=1e-5)
    assert predictor.rows([])[0][0] == []


@pytest.mark.parametrize("values, error, words", [
    ({"x": 1, "A": [1, 2, 3], "t": "p"}, errors.InvalidArgument, 'no feature "a"'),
    ({"x": None, "a": [1, 2, 3], "t": "p"}, errors.NullArgument, '"x" is null'),
    ({"x": 1, "a": [1, None, 3], "t": "p"}, errors.NullArgument, '"a" is NULL'),
    ({"x": "NaN", "a": [1, 2, 3], "t": "p"}, errors.NullArgument, '"x" is NULL, NaN'),
    ({"x": "Infinity", "a": [1, 2, 3], "t": "p"}, errors.NullArgument, '"x" is NULL, NaN or infinite'),
    ({"x": 1, "a": [1, -1e39, 3], "t": "p"}, errors.OutOfRange, '"a" holds a number that single precision does not hold'),
    ({"x": "one", "a": [1, 2, 3], "t": "p"}, errors.InvalidArgument, 'wrong type'),
    ({"x": "1", "a": [1, 2, 3], "t": "p"}, errors.InvalidArgument, 'wrong type'),
    ({"x": 1, "a": [1, 2], "t": "p"}, errors.InvalidArgument, 'wrong shape'),
    ({"x": 1, "a": [[1], [2, 3]], "t": "p"}, errors.InvalidArgument, '"a"'),
    ({"x": [1], "a": [1, 2, 3], "t": "p"}, errors.InvalidArgument, '"x" has the wrong shape'),
    ({"x": 1, "a": [1, 2, 3], "t": 5}, errors.InvalidArgument, 'wrong type'),
    ([1, [1, 2, 3]], errors.InvalidArgument, "2 values, the run has 3 features")])  # fmt: skip
def test_a_wrong_row_is_refused_by_name(values, error, words):
    predictor, _ = trained(record(stored([NUMBER, ARRAY, TEXT]), [{"Dense": {"units": 2}}]))
    with pytest.raises(error, match=words):
        predictor.row(values)


def test_a_state_of_another_program_is_refused():
    made = record(stored([NUMBER]), [{"Dense": {"units": 2}}])
    _, other = trained(record(stored([NUMBER]), [{"Dense": {"units": 3}}]))
    blob = state.pack({"model/%d" % i: variable.numpy() for i, variable in enumerate(other.variables)})
    with pytest.raises(errors.StateMismatch):
        Predictor(made["encoders"], spec_of(made), blob)


def test_blanks_at_the_end_of_a_character_feature_mean_nothing():
    padded = {**TEXT, "type": "character"}
    predictor, _ = trained(record(stored([padded]), [{"Dense": {"units": "$classes"}}]))
    assert predictor.row({"t": "p   "}) == predictor.row({"t": "p"}) != predictor.row({"t": " p"})
    exact, _ = trained(record(stored([{**TEXT, "type": "text"}]), [{"Dense": {"units": "$classes"}}]))
    assert exact.row({"t": "p   "}) != exact.row({"t": "p"})


def test_a_model_of_nan_knows_no_class():
    made = record(stored([NUMBER]), [{"Dense": {"units": "$classes"}}])
    built = program.Program(spec_of(made))
    for variable in built.model.variables:
        variable.assign(np.full(variable.shape, np.nan))
    ((value, probabilities),) = Predictor(made["encoders"], spec_of(made), built.get_state()).row([1])
    assert value is None and np.isnan(probabilities).all()


@pytest.mark.parametrize(
    "type_, classes, spelled",
    [
        ("numeric", (1.0, 2.0, 2.5), ["1", "2", "2.5"]),
        ("double precision", (-3.0, 0.1, 1e20), ["-3", "0.1", "1e+20"]),
        ("real", (0.10000000149011612, 2.0), ["0.1", "2"]),
        ("integer", (1, 2), ["1", "2"]),
        ("boolean", (False, True), ["False", "True"]),
    ],
)
def test_classes_are_those_of_the_column(type_, classes, spelled):
    made = record(stored([NUMBER], type_, classes), [{"Dense": {"units": "$classes"}}])
    assert list(map(str, trained(made)[0].outputs[0].classes)) == spelled
