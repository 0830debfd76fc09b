"""An autoencoder of 33 rows and 257 numbers: the label is among the features, and has the encoder of that name."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json

import keras
import numpy as np
import pytest

from cerebro_udf.segment import seeds
from tests import outcome
from tests import requirements as requires

WARM = True
pytestmark = requires.segments(3)

ROWS, WIDTH, EPOCHS, RATE = 33, 257, 2, 0.1
BATCHES = [7, 32, 1000]
TIED = {"layers": [{"Dense": {"units": 5, "activation": "tanh"}}, {"Dense": {"units": WIDTH}}]}
OPTIONS = {
    "epochs": EPOCHS, "order": "fixed", "optimizer": "sgd", "learning_rate": RATE, "loss": "mse",
    "search": {"space": {"batch_size": BATCHES}},
}  # fmt: skip


class Rows:
    """One column of all numbers, of quite different scales; the last of them never varies."""

    def __init__(self, session):
        random = np.random.default_rng(3)
        values = random.normal(size=(ROWS, 3)) @ random.normal(size=(3, WIDTH)) * 10.0 ** random.integers(-2, 3, WIDTH) + 5
        values[:, -1] = 4
        self.values = values.astype(np.float32)
        self._session = session
        self.model = session.model(TIED)
        self.rows = [[row.tolist(), number] for number, row in enumerate(self.values)]

    def sharded(self, *sizes: int):
        return self._session.sharded({"x": "real[]", "row": "integer"}, self.rows, list(sizes))

    def local(self):
        return self._session.local({"x": "real[]", "row": "integer"}, self.rows)

    @property
    def scaled(self) -> np.ndarray:
        """As the encoder says, in double precision."""
        return (self.values.astype(np.float64) - self.values.mean(axis=0, dtype=np.float64)) / self.deviation

    @property
    def deviation(self) -> np.ndarray:
        found = self.values.astype(np.float64).std(axis=0)
        return np.where(found > 0, found, 1.0)


@pytest.fixture(scope="module")
def rows(session):
    return Rows(session)


@pytest.fixture(scope="module")
def fitted(session, rows):
    """(the table of three shards, the run)."""
    table = rows.sharded(20, 0, 13)
    return table, session.fit(table, rows.model, "x", ["x"], encoders={"x": "standardize"}, **OPTIONS)


def assert_visited(session, run: str, sizes: list[int]) -> None:
    """Each trial has trained on each shard's rows once per epoch."""
    found = outcome.visits(session.cluster, run)
    assert len(found) == len(BATCHES) * EPOCHS * len(sizes)
    for trial in range(len(BATCHES)):
        for epoch in range(1, EPOCHS + 1):
            counts = {shard: rows for t, e, shard, _, state, _, rows in found if (t, e, state) == (trial, epoch, "done")}
            assert counts == dict(enumerate(sizes))


def test_an_autoencoder_on_three_segments_trains_as_plain_keras_on_its_scaled_rows(session, rows, fitted):
    _, run = fitted
    assert_visited(session, run, [20, 0, 13])
    encoders = session.rows("select encoders from cerebro.run where run = %s", run)[0][0]
    (feature,), label = encoders["features"], encoders["labels"][0]
    assert label["shape"] == [WIDTH] and (label["mean"], label["scale"]) == (feature["mean"], feature["scale"])
    np.testing.assert_allclose(feature["scale"], rows.deviation, rtol=1e-12)
    x = ((rows.values.astype(np.float64) - feature["mean"]) / feature["scale"]).astype(np.float32)
    for trial, batch_size in enumerate(BATCHES):
        keras.utils.set_random_seed(seeds.trial_seed(7, trial))
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(WIDTH)])
        model.compile(keras.optimizers.SGD(RATE), "mse", jit_compile=False)
        first = model.get_weights()
        for count in (2, 1):
            model.train_on_batch(x[:count], x[:count])
        model.set_weights(first)
        for _, epoch, shard, _, _, _, _ in (visit for visit in outcome.visits(session.cluster, run) if visit[0] == trial):
            part = (x[:20], x[:0], x[20:])[shard]
            order = seeds.permutation(7, epoch, shard, len(part))
            for start in range(0, len(order), batch_size):
                picks = order[start : start + batch_size]
                model.train_on_batch(part[picks], part[picks])
        last = outcome.states(session.cluster, run)[trial, EPOCHS * 3]
        for ours, theirs in zip(outcome.weights(outcome.arrays(last)), model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_an_autoencoder_of_257_columns_has_an_expression_of_them_as_its_label(session, rows):
    names = ["c%d" % i for i in range(WIDTH)]
    table = session.sharded(dict.fromkeys(names, "real"), rows.values.tolist(), [16, 17])
    label = "array[%s]" % ", ".join(names)
    run = session.fit(table, rows.model, label, names, encoders={label: "standardize"}, **OPTIONS)
    assert_visited(session, run, [16, 17])
    ((encoders,),) = session.rows("select encoders from cerebro.run where run = %s", run)
    for key in ("mean", "scale"):
        np.testing.assert_allclose(encoders["labels"][0][key], [feature[key][0] for feature in encoders["features"]], rtol=1e-12)


@pytest.mark.parametrize("segments", [5, 4])
def test_an_autoencoder_among_local_workers_sees_every_row_once_per_epoch(session, rows, segments):
    run = session.fit(rows.local(), rows.model, "x", ["x"], segments=segments, encoders={"x": "minmax"}, **OPTIONS)
    ((shards, encoders),) = session.rows("select shards, encoders from cerebro.run where run = %s", run)
    sizes = [shard["train_rows"] for shard in shards["stats"]]
    assert (len(sizes), sum(sizes)) == (segments, ROWS)
    assert_visited(session, run, sizes)
    assert encoders["labels"][0]["min"] == encoders["features"][0]["min"] == rows.values.min(axis=0).tolist()


def test_what_an_autoencoder_predicts_is_in_the_units_of_its_rows(session, rows, fitted, tmp_path):
    table, run = fitted
    found = np.array([row["value"] for (row,) in session.rows("select cerebro.predict(%s, r) from " + table.name + " r order by row", run)])
    best = min(outcome.ranking(session.cluster, run), key=lambda trial: trial[3])
    weights = outcome.weights(outcome.arrays(outcome.states(session.cluster, run)[best[0], best[4] * 3]))
    x = rows.scaled.astype(np.float32)
    y = np.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
    mean = rows.values.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose((found - mean) / rows.deviation, y, rtol=1e-4, atol=1e-5)
    evaluated = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
    assert evaluated["loss"] == pytest.approx(np.mean((y - x) ** 2), rel=1e-4)
    target = session.schema + "." + session.name("scored")
    session.rows("select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}')", run, table.name, target)
    scored = session.rows("select prediction from %s order by row" % target)
    np.testing.assert_allclose((np.array([row for (row,) in scored]) - mean) / rows.deviation, y, rtol=1e-4, atol=1e-5)
    path = tmp_path / "autoencoder.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    answers = np.asarray(archive({"x": rows.values.astype(np.float64)}))
    np.testing.assert_array_less(np.abs(answers - found), 1e-4 * rows.deviation + 1e-6 * np.abs(found), "single precision")


def test_an_autoencoder_whose_encoder_is_not_named_learns_its_rows_as_they_lie(session, rows, fitted):
    table, _ = fitted
    run = session.fit(table, rows.model, "x", ["x"], order="fixed")
    ((encoders,),) = session.rows("select encoders from cerebro.run where run = %s", run)
    assert encoders["features"][0]["encoder"] == "standardize" and "encoder" not in encoders["labels"][0]


def test_an_autoencoder_trains_alike_on_a_packed_table(session, rows, fitted):
    table, run = fitted
    target = session.schema + "." + session.name("packed")
    session.rows(
        "select cerebro.pack(%s::text::regclass, %s, 'x', '{x}', %s::jsonb)",
        table.name, target, json.dumps({"seed": 7, "validation": 0, "encoders": {"x": "standardize"}}),
    )  # fmt: skip
    again = session.fit(target, rows.model, "x", ["x"], **OPTIONS)
    assert outcome.states(session.cluster, run) == outcome.states(session.cluster, again)


def test_an_encoder_that_does_not_fit_a_label_is_refused(session, rows, fitted):
    table, _ = fitted
    error = session.refused(table, rows.model, "x", ["x"], encoders={"x": {"sequence": {"length": 257}}})
    assert (error.sqlstate, error.message, error.hint) == (
        "22023", 'encoder "sequence" does not fit column "x"', "It is a label. Use one of: standardize, minmax, none."
    )  # fmt: skip
    error = session.refused(table, rows.model, "row", ["x"], encoders={"row": "standardize"})
    assert (error.sqlstate, error.message) == ("22023", 'option encoders names "row", which is not a feature')
    assert error.detail == "It is a label, and only one for regression may have an encoder."
    ragged = session.sharded({"x": "real[]", "row": "integer"}, [[[1.0, 2.0], 1], [[3.0], 2]], [2])
    error = session.refused(ragged, rows.model, "x", ["row"])
    assert (error.sqlstate, error.message) == ("2202E", 'segment "segment_1": the arrays of column "x" differ in shape')
    error = session.refused(table, rows.model, "row", ["x", "row"])
    assert (error.sqlstate, error.message) == ("22023", 'label "row" is among the features')


def test_an_autoencoder_on_one_segment_sees_every_row_once_per_epoch(session, rows):
    run = session.fit(rows.sharded(33), rows.model, "x", ["x"], **OPTIONS)
    assert_visited(session, run, [33])
