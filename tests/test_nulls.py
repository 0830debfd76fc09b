"""NULLs that stand for something, from fit to the exported archive: each answer against numpy on the stored weights."""

from __future__ import annotations

import io
import json
import os
import zipfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from tests import outcome
from tests import requirements as requires
from tests.answers import PREDICT_TABLE
from tests.outcome import spelled
from tests.session import LOGIT

WARM = True
pytestmark = requires.segments(3)

COUNT = 96
SIZES = [30, 50, 16]
NAN = float("nan")

# column -> (type, encoder, policy, its values)
COLUMNS = {
    "value": ("double precision", None, {"value": 0}, [1.5, -2.0, None, NAN, 8.25]),
    "told": ("integer", None, "indicator", [3, None, 5, 11]),
    "both": ("real", "minmax", {"value": 5, "indicator": True}, [1.0, 9.0, None, 2.5, None, 4.0]),
    "mean": ("date", None, {"value": "mean"}, ["2024-01-01", None, "2024-01-31"]),
    "plain": ("smallint", "none", "indicator", [1, None, 2, 6, 7]),
    "bucket": ("double precision", {"bucketize": {"buckets": 3}}, "indicator", [0.5, None, 1.5, 2.5, 3.5, 4.5, 5.5]),
    "within": ("numeric", {"bucketize": {"boundaries": [3, 10], "as": {"embedding": {"dim": 2}}}}, {"value": 4}, [1, 20, None, 5]),
    "own": ("text", None, "indicator", ["NULL", None, "a", "b"]),
    "named": ("text", None, {"value": "b"}, ["a", "b", None]),
    "unseen": ("text", None, {"value": "zzz"}, ["a", None, "b", "c", "d"]),
    "whole": ("integer", "one_hot", {"value": 3}, [3, 4, None, -1]),
    "flag": ("boolean", "one_hot", "indicator", [True, None, False, True, False]),
    "id": ("bigint", {"embedding": {"dim": 2}}, "indicator", [2**60, 2**60 + 1, None]),
    "sure": ("real", None, "skip", [0.25] * 13 + [None, 0.75, 0.5]),
}  # fmt: skip
FEATURES = list(COLUMNS)
NULLS = {name: policy for name, (_, _, policy, _) in COLUMNS.items()}
ENCODERS = {name: encoder for name, (_, encoder, _, _) in COLUMNS.items() if encoder}


def made() -> list[dict]:
    """Rows in which values meet in many ways; they go round with different periods."""
    rows = []
    for n in range(COUNT):
        row = {name: values[(n + n // len(values)) % len(values)] for name, (*_, values) in COLUMNS.items()}
        rows.append({**row, "label": ("up", "down")[(n // 3) % 2]})
    return rows


def is_null(value) -> bool:
    return value is None or value != value


def number(value) -> float:
    return float(np.datetime64(value).astype("datetime64[s]").astype(int)) if isinstance(value, str) else float(value)


class Fitted:
    """A run that keeps NULLs, and what numpy makes of its weights for the rows that are not skipped."""

    def __init__(self, session):
        self.rows = made()
        columns = {name: type_ for name, (type_, *_) in COLUMNS.items()}
        lines = [[*row.values(), n] for n, row in enumerate(self.rows)]
        self.table = session.sharded({**columns, "label": "text", "row": "integer"}, lines, SIZES)
        self.options = {"nulls": NULLS, "encoders": ENCODERS, "epochs": 2, "learning_rate": 0.05, "order": "fixed"}
        self.run = session.fit(self.table, session.model(LOGIT), "label", FEATURES, **self.options)
        self.encoders = session.rows("select encoders from cerebro.run where run = %s", self.run)[0][0]
        self.weights = outcome.weights(outcome.best(session.cluster, self.run, shards=3))
        self.known = [n for n, row in enumerate(self.rows) if row["sure"] is not None]
        self.probabilities = self._probabilities()

    def _numbers(self, name: str, values: list) -> list[np.ndarray]:
        _, encoder, policy, _ = COLUMNS[name]
        known = np.array([number(v) for v in values if not is_null(v)])
        given = policy["value"] if isinstance(policy, dict) and policy["value"] != "mean" else known.mean()
        x = np.array([given if is_null(v) else number(v) for v in values])
        if encoder is None:
            x = (x - known.mean()) / known.std()
        elif encoder == "minmax":
            x = (x - known.min()) / np.ptp(known)
        told = policy == "indicator" or (isinstance(policy, dict) and policy.get("indicator"))
        return [x, np.array([float(is_null(v)) for v in values])] if told else [x]

    def _codes(self, name: str, values: list) -> tuple[list[int], int]:
        _, encoder, policy, _ = COLUMNS[name]
        if "bucketize" in (encoder or ()):
            known = np.array([number(v) for v in values if not is_null(v)])
            settings = encoder["bucketize"]
            cuts = settings.get("boundaries") or [
                min(v for v in known if (known < v).mean() >= k / settings["buckets"]) for k in range(1, settings["buckets"])
            ]
            own = len(cuts) + 1
            given = [v if not is_null(v) or policy == "indicator" else policy["value"] for v in values]
            return [own if is_null(v) else sum(v >= cut for cut in cuts) for v in given], own + (policy == "indicator")
        texts = sorted({spelled(v) for v in values if v is not None}) + ([None] if policy == "indicator" else [])
        given = [v if v is not None or policy == "indicator" else policy["value"] for v in values]
        places = {text: k + 1 for k, text in enumerate(texts)}
        return [places.get(v if v is None else spelled(v), 0) for v in given], len(texts) + 1

    def _probabilities(self) -> np.ndarray:
        weights, numbers, categories = list(self.weights), [], []
        for name in FEATURES:
            values = [self.rows[n][name] for n in self.known]
            if name in ("value", "told", "both", "mean", "plain", "sure"):
                numbers += self._numbers(name, values)
            else:
                codes, size = self._codes(name, values)
                embedded = "embedding" in json.dumps(COLUMNS[name][1])
                categories.append((weights.pop(0) if embedded else np.eye(size))[codes])
        kernel, bias = weights
        x = np.concatenate([np.stack(numbers, axis=1).astype(np.float32), *categories], axis=1)
        return outcome.softmax(x @ kernel.astype(np.float64) + bias)


@pytest.fixture(scope="module")
def fitted(session):
    return Fitted(session)


def test_what_is_stored_is_what_was_asked_for(fitted):
    found = {feature["name"]: feature.get("nulls") for feature in fitted.encoders["features"]}
    days = [number(row["mean"]) for row in (fitted.rows[n] for n in fitted.known) if row["mean"]]
    assert found["mean"] == {"value": pytest.approx(np.mean(days), rel=1e-14)}
    assert (found["both"], found["whole"], found["own"], found["sure"]) == (
        {"value": 5, "indicator": True}, {"value": "3"}, {"indicator": True}, None,
    )  # fmt: skip
    vocabularies = {feature["name"]: feature.get("vocabulary") for feature in fitted.encoders["features"]}
    assert vocabularies["own"] == ["NULL", "a", "b", None] and vocabularies["named"] == ["a", "b"]


def test_rows_read_and_skipped_of_each_shard_add_up_to_all(session, fitted):
    plan = fitted_plan(session, fitted.run)
    assert [stats["rows"] + stats["skipped"] for stats in plan] == SIZES
    assert sum(stats["skipped"] for stats in plan) == COUNT - len(fitted.known) > 0
    began = 'run "%s": 1 trial, 2 epochs, %d rows, %d skipped for NULL, on 3 segments' % (fitted.run, len(fitted.known), sum(
        stats["skipped"] for stats in plan
    ))  # fmt: skip
    assert began in session.notices


def fitted_plan(session, run: str) -> list[dict]:
    return session.cluster.coordinator.execute("select plan -> 'stats' from cerebro_internal.run where name = %s", [run])[0][0]


def test_predict_of_each_row_is_what_numpy_says(session, fitted):
    query = "select cerebro.predict_probabilities(%%s, r) from %s r where sure is not null order by row" % fitted.table.name
    found = [[row["down"], row["up"]] for (row,) in session.rows(query, fitted.run)]
    np.testing.assert_allclose(found, fitted.probabilities, rtol=2e-5, atol=1e-6)
    error = session.error("select cerebro.predict(%%s, r) from %s r where sure is null" % fitted.table.name, fitted.run)
    assert (error.sqlstate, error.message) == ("22004", 'feature "sure" is null')


def test_predict_table_is_what_numpy_says(session, fitted):
    target = session.schema + "." + session.name("scored")
    assert session.rows(PREDICT_TABLE, fitted.run, fitted.table.name, target, '{"probabilities": true}') == [(COUNT,)]
    query = "select row, (probabilities ->> 'down')::float8, (probabilities ->> 'up')::float8 from %s where %s order by row"
    found = session.rows(query % (target, "prediction is not null"))
    assert [row for row, *_ in found] == fitted.known
    np.testing.assert_allclose([line[1:] for line in found], fitted.probabilities, rtol=2e-5, atol=1e-6)


def test_evaluate_is_what_numpy_says(session, fitted):
    query = "select * from cerebro.evaluate(%s, %s::text::regclass, %s::jsonb)"
    error = session.error(query, fitted.run, fitted.table.name, '{"nulls": "error"}')
    assert error.sqlstate == "22004" and error.detail.startswith('Column "sure": 6 NULL') and "told" not in error.detail
    assert error.hint == 'Set the option "nulls" to "skip" to leave such rows out.'
    found = dict(session.rows(query, fitted.run, fitted.table.name, "{}"))
    assert found == dict(session.rows(query, fitted.run, fitted.table.name, '{"nulls": "skip"}')), "the run's own are the default"
    labels = np.array([("down", "up").index(fitted.rows[n]["label"]) for n in fitted.known])
    assert found["loss"] == pytest.approx(-np.log(fitted.probabilities[np.arange(len(labels)), labels]).mean(), rel=1e-5)
    query = "select feature from cerebro.importance(%s, %s::text::regclass, %s::jsonb)"
    lines = session.rows(query, fitted.run, fitted.table.name, '{"nulls": "skip"}')
    assert {name for (name,) in lines} == set(FEATURES)


def test_the_archive_says_what_numpy_says(session, fitted, tmp_path):
    path = tmp_path / "nulls.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", fitted.run)[0][0])
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as members:
        about = {feature["name"]: feature for feature in json.loads(members.read("cerebro.json"))["features"]}
    assert (about["own"]["null"], about["told"]["null"], about["id"]["null"], about["flag"]["null"], about["sure"]["null"]) == (
        "[NULL]", "NaN", -(2**63), -(2**63), None,
    )  # fmt: skip
    model = keras.models.load_model(path, safe_mode=True)
    inputs = {}
    for tensor in model.inputs:
        null, values = about[tensor.name]["null"], [fitted.rows[n][tensor.name] for n in fitted.known]
        if tensor.dtype == "float64":
            values = [NAN if is_null(v) else number(v) for v in values]
        else:
            values = [null if v is None else v for v in values]
        inputs[tensor.name] = keras.ops.convert_to_tensor(np.array([[v] for v in values]), tensor.dtype)
    np.testing.assert_allclose(np.asarray(model(inputs)), fitted.probabilities, rtol=2e-5, atol=1e-6)


def test_held_out_rows_are_the_same_whatever_stands_for_a_null(session, fitted):
    found = set()
    for nulls in (NULLS, {**NULLS, "told": {"value": 100}, "own": {"value": "a"}, "flag": {"value": True}}):
        run = session.fit(fitted.table, session.model(LOGIT), "label", FEATURES, **{**fitted.options, "nulls": nulls, "validation": 0.3})
        found.add(json.dumps([[stats[key] for key in ("train_rows", "validation_rows", "skipped")] for stats in fitted_plan(session, run)]))
    assert len(found) == 1


def test_a_run_that_begins_from_another_keeps_nulls_as_that_one_does(session, fitted):
    model = session.rows("select model from cerebro.run where run = %s", fitted.run)[0][0]
    run = session.fit(fitted.table, model, "label", FEATURES, init_from=fitted.run, epochs=1)
    encoders = session.rows("select encoders from cerebro.run where run = %s", run)[0][0]
    assert encoders["features"] == fitted.encoders["features"]
    error = session.refused(fitted.table, model, "label", FEATURES, init_from=fitted.run, nulls={"told": "skip"})
    assert error.sqlstate == "22023" and "other nulls" in error.message and error.hint


@pytest.mark.parametrize(
    "nulls, message",
    [
        ({"aa": "skip"}, 'option nulls names "aa", which is no column that is read'),
        ({"label": {"value": 1}}, 'option nulls cannot have a NULL of column "label" stand for anything'),
        ({"x": "indicator"}, 'option nulls does not fit column "x": arrays know "error" and "skip" only'),
        ({"a": {"value": "many"}}, 'option nulls does not fit column "a": what stands for a number is a number (of seconds, for a'),
        ({"t": {"value": 3}}, 'option nulls does not fit column "t": what stands for a category is one of its values'),
        ({"t": {"value": "b", "indicator": True}}, 'option nulls does not fit column "t": a NULL is either one of the values or a'),
        ({"a": {"valeu": 3}}, 'unknown key "valeu" in option "nulls.a"'),
        ({"a": {}}, 'option "nulls.a" has a wrong value'),
        ("ignore", 'option "nulls" has a wrong value'),
    ],
)
def test_what_does_not_fit_a_column_is_refused_before_anything_starts(session, nulls, message):
    table = session.local({"a": "real", "t": "text", "x": "real[]", "label": "boolean"})
    error = session.refused(table, session.model(LOGIT), "label", ["a", "t", "x"], nulls=nulls)
    assert error.sqlstate == "22023" and error.message.startswith(message) and error.hint


def test_data_that_no_policy_covers_is_refused(session):
    rows = [[float(k), k % 2 == 0] for k in range(60)] + [[float("inf"), True], [None, False]]
    table = session.sharded({"a": "double precision", "label": "boolean"}, rows)
    error = session.refused(table, session.model(LOGIT), "label", ["a"], nulls={"a": {"value": 0}})
    assert (error.sqlstate, error.detail) == ("22004", 'Column "a": 0 NULL, 0 NaN, 1 infinite of 62 rows.')
    table = session.sharded({"a": "double precision", "label": "boolean"}, [[None, k % 2 == 0] for k in range(60)])
    error = session.refused(table, session.model(LOGIT), "label", ["a"], nulls={"a": "indicator"})
    assert (error.sqlstate, error.message) == ("22000", 'column "a" is NULL in every training row')
    table = session.sharded({"a": "double precision", "label": "boolean"}, [[1.0 * k, None if k == 3 else k % 2 == 0] for k in range(60)])
    error = session.refused(table, session.model(LOGIT), "label", ["a"], nulls={"*": {"value": 0}})
    assert (error.sqlstate, error.detail) == ("22004", 'Column "label": 1 NULL, 0 NaN, 0 infinite of 60 rows.')
    session.fit(table, session.model(LOGIT), "label", ["a"], nulls={"*": {"value": 0}, "label": "skip"})
