"""Labels of every form and models of several outputs, from fit to the exported archive: each answer against plain Keras."""

from __future__ import annotations

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
COUNT = 70
SIZES = [40, 30]


def scaled(x: np.ndarray) -> np.ndarray:
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def loaded(session, run: str, path) -> keras.Model:
    """The exported archive, as plain Keras opens it."""
    path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
    return keras.models.load_model(path, safe_mode=True)


# ---- what applies to a row


class Many:
    """Tags by three sigmoids, the same by logits behind whole numbers, and a picture of 2 × 2 places."""

    def __init__(self, session):
        random = np.random.default_rng(8)
        self.x = random.normal(size=(COUNT, 4))
        self.tags = self.x @ random.normal(size=(4, 3)) > 0.3
        self.square = self.tags[:, [0, 1, 1, 2]].reshape(COUNT, 2, 2)
        rows = zip(range(COUNT), self.x.tolist(), self.tags.tolist(), self.tags.astype(int).tolist(), self.square.tolist())
        columns = {"row": "integer", "x": "float8[]", "tags": "boolean[]", "ones": "smallint[]", "square": "boolean[]"}
        self.table = session.sharded(columns, list(rows), SIZES)
        options = {
            "epochs": 4, "learning_rate": 0.05, "metrics": ["accuracy", "AUC", {"F1Score": {"average": "macro"}}, "Precision", "mae"],
        }  # fmt: skip
        sigmoids = {"layers": [{"Dense": {"units": "$classes", "activation": "sigmoid"}}]}
        deep = {"layers": [{"Dense": {"units": "$classes"}}, {"Reshape": {"target_shape": [2, 2]}}]}
        self.labels = {
            session.fit(self.table, session.model(model), label, ["x"], **options): (label, truth)
            for label, truth, model in (
                ("tags", self.tags, sigmoids), ("ones", self.tags, {"layers": [{"Dense": {"units": 3}}]}), ("square", self.square, deep)
            )
        }  # fmt: skip
        self.expected = {}
        for run, (_, truth) in self.labels.items():
            kernel, bias = outcome.weights(outcome.best(session.cluster, run, shards=2))
            logits = scaled(self.x) @ kernel + bias
            self.expected[run] = (1 / (1 + np.exp(-logits.astype(np.float64)))).reshape(truth.shape)


@pytest.fixture(scope="module")
def many(session):
    return Many(session)


def test_what_applies_is_predicted_row_by_row_by_table_and_by_the_archive(session, many, tmp_path):
    for run, expected in many.expected.items():
        label, _ = many.labels[run]
        applies = (expected > 0.5).astype(bool if label != "ones" else int).tolist()
        query = "select cerebro.predict(%s, t), cerebro.predict_class(%s, t), cerebro.predict_probabilities(%s, t) from {} t order by row"
        found = session.rows(query.format(many.table.name), run, run, run)
        np.testing.assert_allclose([answer["probabilities"] for answer, _, _ in found], expected, rtol=1e-4, atol=1e-5)
        assert [answer["class"] for answer, _, _ in found] == applies
        assert all(answer["probabilities"] == alone for answer, _, alone in found)
        type_ = {"tags": "boolean[]", "ones": "smallint[]", "square": "boolean[]"}[label]
        cast = "select v::%s from pg_catalog.unnest(%%s::text[]) v" % type_
        assert [row for (row,) in session.rows(cast, [text for _, text, _ in found])] == applies
        target = session.name("target")
        call = "select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}', '{\"probabilities\": true}')"
        session.conn.execute(call, [run, many.table.name, target])
        found = session.rows("select prediction, probability, probabilities, pg_typeof(prediction)::text from %s order by row" % target)
        assert [row for row, _, _, _ in found] == applies and {row[3] for row in found} == {type_}
        for place in (1, 2):
            np.testing.assert_allclose([row[place] for row in found], expected, rtol=1e-4, atol=1e-5)
        archive = loaded(session, run, tmp_path / (run + ".keras"))
        found = archive({"x": keras.ops.convert_to_tensor(many.x, "float64")}, training=False)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_what_applies_is_judged_as_keras_judges_it(session, many):
    for run, expected in many.expected.items():
        _, truth = many.labels[run]
        judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, many.table.name))
        y, p = truth.reshape(COUNT, -1).astype(np.float32), expected.reshape(COUNT, -1).astype(np.float32)
        known = {
            "loss": keras.losses.BinaryCrossentropy()(y, p), "accuracy": keras.metrics.BinaryAccuracy(), "AUC": keras.metrics.AUC(),
            "f1_score": keras.metrics.F1Score(average="macro", threshold=0.5), "Precision": keras.metrics.Precision(),
            "mae": np.abs(y - p).mean(),
        }  # fmt: skip
        for name, metric in known.items():
            if isinstance(metric, keras.Metric):
                metric.update_state(y, p)
                metric = metric.result()
            assert judged[name] == pytest.approx(float(metric), rel=1e-4), name
        assert judged["accuracy"] == pytest.approx(float(((p > 0.5) == (y == 1)).mean()))


def test_what_is_asked_of_other_labels_is_refused_of_several_that_apply(session, many):
    run = next(iter(many.labels))
    model = session.model({"layers": [{"Dense": {"units": "$classes"}}]})
    for call in ("confusion_matrix", "class_report", "residuals"):
        error = session.error("select * from cerebro.%s(%%s, %%s::text::regclass)" % call, run, many.table.name)
        assert error.sqlstate == "22023" and "evaluate" in error.hint
    assert session.error("select cerebro.predict_value(%s, array[1, 2, 3, 4])", run).sqlstate == "22023"
    for options, words in (
        ({"class_weight": "balanced"}, "class_weight"), ({"validation": {"fraction": 0.2, "stratify": True}}, "stratify"),
        ({"metrics": ["CategoricalAccuracy"]}, "any number applies"), ({"metrics": ["MeanIoU"]}, "any number applies"),
    ):  # fmt: skip
        error = session.refused(many.table, model, "tags", ["x"], **options)
        assert error.sqlstate == "22023" and words in error.message and error.hint, error


def test_whole_numbers_in_arrays_are_what_applies_unless_regression_is_asked_for(session):
    rows = [[[float(n), 1.0 - n], [n, 2 * n, 1], [n % 2, 1, int(n % 3 == 0)], [["a"], ["b"]][n % 2]] for n in range(8)]
    columns = {"x": "real[]", "y": "integer[]", "ones": "real[]", "t": "text[]"}
    table, line = session.sharded(columns, rows, [5, 3]), session.model({"layers": [{"Dense": {"units": 3}}]})
    error = session.refused(table, line, "y", ["x"])
    assert (error.sqlstate, error.message) == ("22000", 'label "y" holds numbers other than 0 and 1')
    assert error.detail.startswith("7 of 8 rows do, such as 2;") and "regression" in error.hint
    run = session.fit(table, line, "y", ["x"], task="regression")
    assert session.rows("select encoders->'label'->>'task', encoders->'label'->'shape' from cerebro.run where run = %s", run) == [
        ("regression", [3])
    ]
    run = session.fit(table, line, "ones", ["x"], task="multi_label")
    assert session.rows("select cerebro.predict(%s, r)->'class' from %s r limit 1" % ("%s", table.name), run)[0][0][1] in (0, 1)
    assert session.refused(table, line, "t", ["x"]).sqlstate == "0A000"
    assert session.refused(table, line, "y", ["x"], task="classification").sqlstate == "0A000"
    fold = session.refused(table, line, "ones", ["x"], task="multi_labels")
    assert fold.sqlstate == "22023" and '"multi_label"' in fold.hint
