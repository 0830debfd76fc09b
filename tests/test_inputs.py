"""Models of several inputs and labels of several numbers, from fit to the exported archive: each answer against numpy or plain Keras."""

from __future__ import annotations

import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from tests import outcome
from tests import requirements as requires

WARM = True
pytestmark = requires.segments(2)
L = keras.layers

COUNT = 80
COLUMNS = {"a": "real", "b": "double precision", "t": "text", "image": "real[]", "jan": "real[]", "feb": "real[]", "label": "boolean"}
INPUTS = {
    "wide": ["b", "t", "a"], "image": ["image"], "series": {"columns": ["feb", "jan"], "stack": -1}, "again": ["a"],
}  # fmt: skip


def made() -> list[dict]:
    random = np.random.default_rng(4)
    rows = []
    for _ in range(COUNT):
        row = {
            "a": float(np.float32(random.normal())), "b": float(random.normal()), "t": "xyz"[random.integers(3)],
            "image": random.normal(size=(4, 4, 1)).astype(np.float32).tolist(),
            "jan": random.normal(size=6).astype(np.float32).tolist(), "feb": random.normal(2, 3, size=6).astype(np.float32).tolist(),
        }  # fmt: skip
        rows.append({**row, "label": row["a"] + row["image"][0][0][0] > 0})
    return rows


def model() -> keras.Model:
    """Branches, a shared layer, a model within the model."""
    wide, image = keras.Input((6,), name="wide"), keras.Input((4, 4, 1), name="image")
    series, again = keras.Input((6, 2), name="series"), keras.Input((1,), name="again")
    inside, twin = keras.Input((4, 4, 1)), L.Dense(3, activation="tanh")
    seen = keras.Model(inside, L.Flatten()(L.Conv2D(2, 3)(inside)))(image)
    joined = L.Concatenate()([twin(L.Dense(2)(wide)), twin(L.Flatten()(series)[:, :2]), L.LSTM(3)(series), seen, again])
    return keras.Model({"series": series, "wide": wide, "image": image, "again": again}, L.Dense(2, activation="softmax")(joined))


def encoded(rows: list[dict]) -> dict[str, np.ndarray]:
    """What each input of the model is fed with, as docs/replay.md says."""

    def scaled(name: str) -> np.ndarray:
        values = np.array([row[name] for row in rows], np.float64)
        flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
        values = (values - flat.mean(axis=0)) / flat.std(axis=0)
        return values.astype(np.float32).reshape(len(rows), *values.shape[1:] or (1,))

    codes = np.eye(4, dtype=np.float32)[["xyz".index(row["t"]) + 1 for row in rows]]
    return {
        "wide": np.concatenate([scaled("b"), scaled("a"), codes], 1), "image": scaled("image"),
        "series": np.stack([scaled("feb"), scaled("jan")], -1), "again": scaled("a"),
    }  # fmt: skip


class Fitted:
    def __init__(self, session):
        self.rows = made()
        self.table = session.sharded(COLUMNS, [list(row.values()) for row in self.rows], [30, 50])
        self.model = session.model(json.loads(model().to_json()))
        self.features = list(COLUMNS)[:-1]
        self.options = {"inputs": INPUTS, "epochs": 2, "order": "fixed"}
        self.run = session.fit(self.table, self.model, "label", self.features, **self.options)
        found = outcome.weights(outcome.best(session.cluster, self.run, shards=2))
        plain = keras.models.model_from_json(model().to_json())
        for variable, value in zip(plain.variables, found, strict=True):
            variable.assign(value)
        self.expected = np.asarray(plain(encoded(self.rows), training=False))


@pytest.fixture(scope="module")
def fitted(session):
    return Fitted(session)


def test_rows_are_predicted_as_keras_predicts_them(session, fitted):
    statement = "select cerebro.predict_probabilities(%s, r) from pg_catalog.jsonb_array_elements(%s) with ordinality e (r, n) order by n"
    answers = [answer["true"] for (answer,) in session.rows(statement, fitted.run, json.dumps(fitted.rows))]
    np.testing.assert_allclose(answers, fitted.expected[:, 1], atol=1e-5)
    assert np.ptp(answers) > 0.05
    row = [fitted.rows[0][name] for name in fitted.features]
    answer = session.rows("select cerebro.predict_probabilities(%s, %s::text)", fitted.run, json.dumps(row))
    assert answer[0][0]["true"] == pytest.approx(answers[0])


def test_a_table_is_predicted_judged_and_explained(session, fitted):
    target = session.name("target")
    named = session.sharded({"row": "integer", **COLUMNS}, [[n, *row.values()] for n, row in enumerate(fitted.rows)], [30, 50])
    session.conn.execute(
        "select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}', '{\"probabilities\": true}')", [fitted.run, named.name, target]
    )
    found = [answer["true"] for (answer,) in session.rows("select probabilities from %s order by row" % target)]
    np.testing.assert_allclose(found, fitted.expected[:, 1], atol=1e-5)
    judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", fitted.run, fitted.table.name))
    label = np.array([row["label"] for row in fitted.rows], int)
    assert judged["accuracy"] == pytest.approx(float((fitted.expected.argmax(1) == label).mean()))
    assert judged["loss"] == pytest.approx(float(-np.log(fitted.expected[np.arange(COUNT), label]).mean()), rel=1e-4)
    lines = session.rows("select feature, importance from cerebro.importance(%s, %s::text::regclass)", fitted.run, fitted.table.name)
    assert {feature for feature, _ in lines} == set(fitted.features) and all(value != 0 for _, value in lines)


def test_the_exported_archive_takes_columns_and_gives_what_sql_predicts(session, fitted, tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", fitted.run)[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    dtypes = {"t": "string"}
    x = {
        tensor.name: keras.ops.convert_to_tensor(
            np.array([row[tensor.name] for row in fitted.rows]).reshape(COUNT, *tensor.shape[1:]), dtypes.get(tensor.name, "float64")
        )
        for tensor in archive.inputs
    }
    np.testing.assert_allclose(np.asarray(archive(x, training=False)), fitted.expected, atol=1e-5)


def test_scalars_stacked_for_a_model_without_named_inputs(session, fitted):
    definition = {"layers": [{"SimpleRNN": {"units": 3}}, {"Dense": {"units": "$classes"}}]}
    inputs = {"steps": {"columns": ["b", "a"], "stack": 0}}
    run = session.fit(fitted.table, session.model(definition), "label", ["*"], inputs=inputs)
    assert session.rows("select features, encoders->'model'->'inputs'->0->'numbers' from cerebro.run where run = %s", run) == [
        (["b", "a"], [2, 1])
    ]
    assert session.rows("select count(cerebro.predict(%s, r)) from " + fitted.table.name + " r", run) == [(COUNT,)]


def test_two_series_for_an_lstm_are_stacked_or_the_model_says_how(session):
    random = np.random.default_rng(3)
    rows = [[*random.normal(size=(2, 50)).tolist(), n % 2 == 0] for n in range(12)]
    table = session.sharded({"jan": "real[]", "feb": "real[]", "label": "boolean"}, rows, [8, 4])
    lstm = session.model({"layers": [{"InputLayer": {"batch_shape": [None, 50, 2]}}, {"LSTM": {"units": 2}}, {"Dense": {"units": 2}}]})
    run = session.fit(table, lstm, "label", ["jan", "feb"], inputs={"series": {"columns": ["jan", "feb"], "stack": -1}})
    shape = "select encoders #> '{model,inputs,0,numbers}', (select state from cerebro.trial t where t.run = r.run) from cerebro.run r"
    assert session.rows(shape + " where run = %s", run) == [([50, 2], "done")]
    told = session.refused(table, lstm, "label", ["jan", "feb"]).message
    assert "expects rows of shape [50, 2], the features have shape [100]" in told and '"stack"' in told


def test_inputs_that_do_not_fit_are_refused_before_anything_starts(session, fitted):
    def refused(features, inputs, sqlstate, *told):
        error = session.refused(fitted.table, fitted.model, "label", features, inputs=inputs)
        assert error.sqlstate == sqlstate and error.hint, error
        assert all(word in "%s %s %s" % (error.message, error.detail, error.hint) for word in told), error

    refused(fitted.features, None, "22023", "several inputs", '"wide": ')
    refused(fitted.features, {**INPUTS, "wide": ["b", "tt", "a"]}, "22023", '"tt"', '"t"')
    refused(fitted.features, {**INPUTS, "series": ["feb"]}, "22023", '"jan"', "no input")
    refused(fitted.features, {**INPUTS, "wid": ["a"]}, "22023", '"wid"', '"wide"')
    refused(fitted.features, {**INPUTS, "image": ["image", "a"]}, "0A000", '"image"', "inputs")
    refused(fitted.features, {**INPUTS, "series": {"columns": ["jan", "feb"], "stack": 1}}, "22023", "inputs.series.stack")


# ---- labels that are arrays


class Arrays:
    """A label of three numbers by a line of three units, and one of shape (2, 2) behind a Reshape."""

    def __init__(self, session):
        random = np.random.default_rng(6)
        self.x = random.normal(size=(COUNT, 4)).astype(np.float32)
        self.y = (self.x @ random.normal(size=(4, 3)) + 1).astype(np.float32)
        self.square = self.y[:, [0, 1, 1, 2]].reshape(COUNT, 2, 2)
        rows = [[n, *row] for n, row in enumerate(zip(self.x.tolist(), self.y.tolist(), self.square.tolist()))]
        self.table = session.sharded({"row": "integer", "x": "real[]", "y": "real[]", "square": "double precision[]"}, rows, [30, 50])
        more = {"epochs": 3, "learning_rate": 0.05, "metrics": ["mae", "RootMeanSquaredError"]}
        self.run = session.fit(self.table, session.model({"layers": [{"Dense": {"units": 3}}]}), "y", ["x"], **more)
        deep = {"layers": [{"Dense": {"units": 4}}, {"Reshape": {"target_shape": [2, 2]}}]}
        self.deep = session.fit(self.table, session.model(deep), "square", ["x"], **more)
        scaled = ((self.x.astype(np.float64) - self.x.mean(0, np.float64)) / self.x.std(0, dtype=np.float64)).astype(np.float32)
        found = {run: outcome.weights(outcome.best(session.cluster, run, shards=2)) for run in (self.run, self.deep)}
        self.expected = {run: scaled @ kernel + bias for run, (kernel, bias) in found.items()}
        self.expected[self.deep] = self.expected[self.deep].reshape(COUNT, 2, 2)
        self.labels = {self.run: self.y, self.deep: self.square}


@pytest.fixture(scope="module")
def arrays(session):
    return Arrays(session)


def test_an_array_label_is_predicted_row_by_row_by_table_and_by_the_archive(session, arrays, tmp_path):
    for run, expected in arrays.expected.items():
        answers = session.rows("select cerebro.predict(%s, r) from " + arrays.table.name + " r order by row", run)
        np.testing.assert_allclose([answer["value"] for (answer,) in answers], expected, rtol=1e-4, atol=1e-5)
        target = session.name("target")
        session.conn.execute("select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}')", [run, arrays.table.name, target])
        found = session.rows("select prediction, pg_typeof(prediction)::text from %s order by row" % target)
        np.testing.assert_allclose([value for value, _ in found], expected, rtol=1e-4, atol=1e-5)
        assert {type_ for _, type_ in found} == {"double precision[]"}
        path = tmp_path / (run + ".keras")
        path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
        archive = keras.models.load_model(path, safe_mode=True)
        outputs = archive({"x": keras.ops.convert_to_tensor(arrays.x, "float64")}, training=False)
        np.testing.assert_allclose(np.asarray(outputs), expected, rtol=1e-4, atol=1e-5)


def test_an_array_label_is_judged_over_all_its_numbers(session, arrays):
    for run, expected in arrays.expected.items():
        judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, arrays.table.name))
        off = expected - arrays.labels[run]
        assert judged["loss"] == pytest.approx(float((off**2).mean()), rel=1e-4)
        assert judged["mae"] == pytest.approx(float(np.abs(off).mean()), rel=1e-4)
        assert judged["RootMeanSquaredError"] == pytest.approx(float(np.sqrt((off**2).mean())), rel=1e-4)
        source = [run, arrays.table.name]
        for call, values in (
            ("select cerebro.predict_value(%s, array[[1, 2, 3, 4]])", source[:1]),
            ("select * from cerebro.residuals(%s, %s::text::regclass)", source),
        ):
            error = session.error(call, *values)
            assert error.sqlstate == "22023" and "array" in error.message and error.hint


def test_array_labels_that_do_not_fit_are_refused(session, arrays):
    ragged = session.sharded({"x": "real", "y": "real[]", "n": "integer[]"}, [[1, [1, 2], [1]], [2, [1, 2, 3], [2]]], [2, 0])
    apart = session.sharded({"x": "real", "y": "real[]"}, [[1, [1, 2]], [2, [1, 2, 3]]], [1, 1])
    line = session.model({"layers": [{"Dense": {"units": 2}}]})
    for table in (ragged, apart):
        assert session.refused(table, line, "y", ["x"]).sqlstate == "2202E"
    assert session.refused(ragged, line, "n", ["x"]).sqlstate == "22000"
    assert session.refused(arrays.table, line, "y", ["x"], task="classification").sqlstate == "0A000"
    assert "label \"x\" is among" in session.refused(ragged, line, "x", ["x"]).message
    told = session.refused(arrays.table, line, "y", ["x"]).message
    assert "[2]" in told and "[3]" in told
