"""What a trained model is worth, compared with single predictions: metrics beyond those of training, classes, residuals, features.

And what `explain_fit` says of a run before it begins, and that it begins none.
"""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from cerebro_udf.segment import seeds
from tests.faults import armed, kill_backend
from tests.session import LINE, POINTS, Refusal, points, traces

WARM = True
PAGE = Path(__file__).resolve().parent.parent / "docs" / "judging.md"
ROWS = 90
LAYERS = {"layers": [{"Dense": {"units": "$units"}}, {"Dense": {"units": 2, "activation": "softmax"}}]}
SEARCH = {"space": {"units": [2, 3], "learning_rate": [0.01, 0.1]}}
COLOURS = {"a": "real", "colour": "text", "size": "real[]", "label": "text"}


def colours() -> dict:
    """The label follows `a` and `colour`; `size` says nothing."""
    random = np.random.default_rng(5)
    a, colour = random.normal(size=ROWS).round(3), random.choice(["red", "green"], ROWS)
    label = np.where(a > 0.4, "high", np.where(colour == "red", "low", "middle"))
    return {"a": a, "colour": colour, "size": random.normal(size=(ROWS, 2)).round(3), "label": label}


@pytest.fixture(scope="module")
def table(session):
    return session.sharded(COLOURS, colours(), sizes=[50, 40])


@pytest.fixture(scope="module")
def run(session, table):
    options = {"epochs": 8, "batch_size": 8, "learning_rate": 0.1}
    return session.fit(table, session.model(), "label", ["a", "colour", "size"], **options)


@pytest.fixture(scope="module")
def lines(session):
    """A table to regress on, its run, and the rows' labels and predictions."""
    random = np.random.default_rng(6)
    a, b = random.normal(size=(2, ROWS)).round(3)
    table = session.sharded({"a": "real", "b": "real", "y": "real"}, {"a": a, "b": b, "y": 3 * a + b}, sizes=[60, 30])
    return table, session.fit(table, session.model(LINE), "y", epochs=6, batch_size=8, learning_rate=0.1)


def judged(session, function, run, table, **options):
    call = "select * from cerebro.%s(%%s, %%s::text::regclass, %%s)" % function
    return session.rows(call, run, table.name, json.dumps(options))


def predictions(session, run, table) -> list[tuple]:
    """Actual class, most probable one, probability of each."""
    call = "select label, cerebro.predict_class(%%s, x), cerebro.predict_probabilities(%%s, x) from %s x" % table.name
    return session.rows(call, run, run)


def test_confusion_matrix_counts_what_single_predictions_say(session, table, run):
    expected: dict = {}
    for actual, predicted, _ in predictions(session, run, table):
        expected[actual, predicted] = expected.get((actual, predicted), 0) + 1
    found = judged(session, "confusion_matrix", run, table)
    assert {(actual, predicted): rows for actual, predicted, rows in found} == expected
    assert [line[:2] for line in found] == sorted(expected)


@pytest.mark.parametrize("function, step", [("evaluate", 1), ("evaluate", 2), ("class_report", 3)])
def test_killed_segment_backend_changes_nothing_of_what_a_model_is_worth(session, table, run, function, step):
    expected, found = judged(session, function, run, table), []
    node = session.cluster.node(2)
    thread = threading.Thread(target=lambda: found.extend(judged(session, function, run, table)))
    session.notices.clear()
    with armed(node, "evaluate " + run, "judging", step) as reached:
        thread.start()
        kill_backend(node, reached())
    thread.join()
    assert found == expected
    assert [notice.split('" broke')[0] for notice in session.notices] == ['the link to segment "segment_2']


def test_class_report_is_that_of_single_predictions(session, table, run):
    rows = predictions(session, run, table)
    report = judged(session, "class_report", run, table)
    assert [line[0] for line in report] == ["high", "low", "middle"]
    for name, precision, recall, f1, count, auc, threshold, best in report:
        own = np.array([actual == name for actual, _, _ in rows])
        taken = np.array([predicted == name for _, predicted, _ in rows])
        scores = np.array([probabilities[name] for _, _, probabilities in rows])
        assert count == own.sum()
        assert precision == pytest.approx((own & taken).sum() / taken.sum())
        assert recall == pytest.approx((own & taken).sum() / own.sum())
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall))
        pairs = scores[own][:, None] - scores[~own][None, :]
        assert auc == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)), abs=1e-9)

        def f1_from(cut, own=own, scores=scores):
            return 2 * (own & (scores >= cut)).sum() / (own.sum() + (scores >= cut).sum())

        assert best == pytest.approx(max(map(f1_from, scores)))
        assert f1_from(threshold - 1e-6) == pytest.approx(best)


@pytest.fixture(scope="module")
def scaled(session):
    """Prices in the thousands, their run on standardized ones, packed or not."""
    random = np.random.default_rng(8)
    a, b = random.normal(size=(2, ROWS)).round(3)
    table = session.sharded({"a": "real", "b": "real", "y": "numeric"}, {"a": a, "b": b, "y": (5e6 + 900 * a).round(2)}, sizes=[60, 30])
    packed, model = session.name("packed"), session.model(LINE)
    pack = "select cerebro.pack(%s::text::regclass, %s, 'y', '{a,b}', %s::jsonb)"
    shaping = {"encoders": {"y": "standardize"}, "validation": 0, "seed": 7}
    session.rows(pack, table.name, packed, json.dumps(shaping))
    options = {"epochs": 6, "batch_size": 8, "learning_rate": 0.1}
    runs = [session.fit(table, model, "y", **options, encoders=shaping["encoders"]), session.fit(packed, model, "y", **options)]
    return table, runs


def test_a_number_to_be_predicted_is_scaled_while_it_is_learnt_and_told_in_its_own_units(session, scaled, tmp_path):
    table, runs = scaled
    y, rows = (np.array(session.rows("select %s from %s order by a, b" % (what, table.name)), np.float64) for what in ("y", "a, b"))
    values = []
    for run in runs:
        call = "select cerebro.predict_value(%%s, array[a, b]) from %s order by a, b" % table.name
        values.append(np.array(session.rows(call, run))[:, 0])
        assert np.abs(values[-1] - y[:, 0]).max() < 900, "unscaled a line does not come near in six epochs"
        off = (values[-1] - y[:, 0]) / y.std()
        found = dict(judged(session, "evaluate", run, table))
        assert found["mae"] == pytest.approx(np.abs(off).mean(), rel=1e-3)
        residual = judged(session, "residuals", run, table, quantiles=[0, 1])
        np.testing.assert_allclose([line[1] for line in residual], np.sort(y[:, 0] - values[-1])[[0, -1]], atol=0.01)
        target = session.name("scored")
        session.rows("select cerebro.predict_table(%s, %s::text::regclass, %s, '{a,b}')", run, table.name, target)
        scored = session.rows("select prediction from %s order by a, b" % target)
        np.testing.assert_allclose(np.array(scored)[:, 0], values[-1], rtol=1e-7)
        path = tmp_path / (run + ".keras")
        path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
        archive = keras.models.load_model(path, safe_mode=True)
        told = archive({name: keras.ops.convert_to_tensor(rows[:, [n]], "float64") for n, name in enumerate("ab")}, training=False)
        np.testing.assert_allclose(np.asarray(told)[:, 0], values[-1], rtol=2e-7)
    np.testing.assert_array_equal(*values)


def test_residuals_are_picked_as_percentile_disc_picks_them(session, lines, scaled):
    assert_picked(session, *lines)
    assert_picked(session, scaled[0], scaled[1][0], "", atol=0.01)


def assert_picked(session, table, run, type_="::real", atol=1e-5):
    residual = "(y - cerebro.predict_value(%%s, array[a, b])%s)::real as r from %s" % (type_, table.name)
    call = "select array_agg(r), array_agg(abs(r)) from (select %s) x" % residual
    plain, absolute = (np.sort(np.array(values, np.float32)) for values in session.rows(call, run)[0])
    quantiles = [0.0, 0.1, 0.5, 0.9, 1.0]
    at = [max(0, int(np.ceil(q * ROWS)) - 1) for q in quantiles]
    found = judged(session, "residuals", run, table, quantiles=quantiles[::-1])
    assert [line[0] for line in found] == quantiles
    np.testing.assert_allclose([line[1] for line in found], plain[at], atol=atol)
    np.testing.assert_allclose([line[2] for line in found], absolute[at], atol=atol)


def test_evaluate_takes_metrics_that_the_run_was_not_trained_with(session, table, run):
    wanted = ["F1Score", {"AUC": {"multi_label": True, "num_thresholds": 50}}, "CategoricalAccuracy", {"Precision": {"class_id": 0}}]
    found = dict(judged(session, "evaluate", run, table, metrics=wanted))
    assert list(found) == ["loss", "CategoricalAccuracy", "F1Score[0]", "F1Score[1]", "F1Score[2]", "auc", "precision"]
    trained = dict(judged(session, "evaluate", run, table))
    assert found["CategoricalAccuracy"] == pytest.approx(trained["accuracy"]) and found["loss"] == pytest.approx(trained["loss"])
    report = judged(session, "class_report", run, table)
    np.testing.assert_allclose([found["F1Score[%d]" % k] for k in range(3)], [line[3] for line in report], rtol=1e-5)
    assert found["precision"] == pytest.approx(report[0][1])


def test_metrics_that_cannot_be_meant_are_refused_before_anything_starts(session, table, run, lines):
    call = "select * from cerebro.evaluate(%s, %s::text::regclass, %s)"
    error = session.error(call, run, table.name, json.dumps({"metrics": ["BinaryAccuracy"]}))
    assert error.sqlstate == "22023" and "3" in error.message and '"accuracy"' in error.hint
    error = session.error(call, lines[1], lines[0].name, json.dumps({"metrics": ["AUC"]}))
    assert error.sqlstate == "22023" and '"y"' in error.message and "classification" in error.hint
    error = session.refused(table, session.model(), "label", ["a"], metrics=["accuracy", "BinaryAccuracy"])
    assert error.sqlstate == "22023" and "BinaryAccuracy" in error.message


def test_functions_for_the_other_task_are_named(session, table, run, lines):
    error = session.error("select * from cerebro.residuals(%s, %s::text::regclass)", run, table.name)
    assert error.sqlstate == "22023" and "confusion_matrix" in error.hint
    for function in ("confusion_matrix", "class_report"):
        error = session.error("select * from cerebro.%s(%%s, %%s::text::regclass)" % function, lines[1], lines[0].name)
        assert error.sqlstate == "22023" and "residuals" in error.hint


def test_importance_finds_the_columns_that_the_label_follows(session, table, run):
    found = judged(session, "importance", run, table, metric="accuracy", repeats=8)
    by_name = {feature: value for feature, _, value, _ in found}
    assert set(by_name) == {"a", "colour", "size"} and {metric for _, metric, _, _ in found} == {"accuracy"}
    assert found[-1][0] == "size" and abs(by_name["size"]) < 0.05 < 0.1 < min(by_name["a"], by_name["colour"])
    assert all(deviation >= 0 for _, _, _, deviation in found)
    assert judged(session, "importance", run, table, metric="accuracy", repeats=8) == found


def test_importance_goes_by_the_metric_that_the_run_was_ranked_by(session, lines):
    table, run = lines
    found = judged(session, "importance", run, table, repeats=1)
    assert [(line[0], line[1], line[3]) for line in found] == [("a", "loss", None), ("b", "loss", None)]
    assert found[0][2] > found[1][2] > 0


def test_importance_is_the_loss_of_quality_under_permutation_of_the_column(session, lines):
    """Permuting both shards by hand and evaluating gives what `importance` says."""
    table, run = lines
    (before,) = (value for name, value in judged(session, "evaluate", run, table) if name == "loss")
    data = session.rows("select tableoid::regclass::text, a, b, y from %s" % table.name)
    moved = []
    for shard, size in enumerate([60, 30]):
        part = [row for row in data if row[0].endswith(table.parts[shard])]
        order = np.argsort(seeds.raw(size, 0, "importance", 1, 0, shard), kind="stable")
        moved += [(row[1], part[other][2], row[3]) for row, other in zip(part, order)]
    permuted = session.sharded({"a": "real", "b": "real", "y": "real"}, moved, sizes=[60, 30])
    after = dict(judged(session, "evaluate", run, permuted))["loss"]
    found = {line[0]: line[2] for line in judged(session, "importance", run, table, repeats=1)}
    assert found["b"] == pytest.approx(after - before, rel=1e-4)


def test_model_that_gives_nan_predicts_no_class(session):
    random = np.random.default_rng(7)
    a, b = random.normal(size=(2, 40)).round(3)
    table = session.sharded(POINTS, {"a": a, "b": b, "label": a > b}, sizes=[20, 20])
    far = session.sharded(POINTS, {"a": a * 1e38, "b": b * 1e38, "label": a > b}, sizes=[20, 20])
    layers = [{"Rescaling": {"scale": 1e6}}, {"Dense": {"units": 2, "activation": "softmax"}}]
    run = session.fit(table, session.model({"layers": layers}), "label", encoders={"a": "none", "b": "none"})
    below, above = int((a <= b).sum()), int((a > b).sum())
    assert judged(session, "confusion_matrix", run, far) == [("false", None, below), ("true", None, above)]
    assert [line[2:] for line in judged(session, "class_report", run, far)] == [
        (0.0, 0.0, below, None, None, None), (0.0, 0.0, above, None, None, None),
    ]  # fmt: skip


# ---- the page


def test_every_example_of_the_page_runs(session):
    """With two classes and text among the features, as its flights have, and a quantity."""
    random = np.random.default_rng(8)
    distance, carrier = random.normal(size=40).round(3), random.choice(["AA", "UA"], 40)
    flights = {"distance": distance, "carrier": carrier, "late": distance > 0}
    columns = {"distance": "real", "carrier": "text", "late": "boolean"}
    may, _ = (session.sharded(columns, flights, sizes=[20, 20], name="flights_of_" + month) for month in ("may", "june"))
    sales = session.sharded({"a": "real", "price": "real"}, {"a": distance, "price": 2 * distance}, sizes=[20, 20], name="sales")
    session.fit(may, session.model(name="mlp"), "late", ["distance", "carrier"], run="flights")
    session.fit(sales, session.model(LINE), "price", ["a"], run="prices")
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    statements = [statement for block in blocks for statement in re.sub("--.*", "", block).split(";") if statement.strip()]
    assert len(statements) >= 7
    for statement in statements:
        assert session.rows(statement), statement


# ---- explain_fit


@pytest.fixture(scope="module")
def small(session):
    return session.sharded(POINTS, points(), sizes=[35, 25])


@pytest.fixture(scope="module")
def model(session):
    return session.model(LAYERS)


def explained(session, small, model, **options) -> dict:
    call = "select * from cerebro.explain_fit(%s::text::regclass, %s, 'label', '{a,b}', %s)"
    options = {"seed": 7, "batch_size": 8, "epochs": 2, "search": SEARCH, **options}
    return {line[0]: line[1:] for line in session.rows(call, small.name, model, json.dumps(options))}


def test_explanation_counts_what_the_run_will_do_and_leaves_nothing_behind(session, small, model):
    before = traces(session.cluster)
    found = {name: line[0] for name, line in explained(session, small, model, validation=0.3).items()}
    assert traces(session.cluster) == before
    run = session.fit(small, model, "label", search=SEARCH, epochs=2, batch_size=8, validation=0.3)
    ((visits, train, held),) = session.rows(
        "select count(*), sum(rows) filter (where phase = 'train' and epoch = 1 and trial = 0)"
        ", sum(rows) filter (where phase = 'validate' and epoch = 1 and trial = 0) from cerebro.visit where run = %s",
        run,
    )
    assert (found["visits"], found["training rows"], found["validation rows"]) == (visits, train, held)
    assert (found["segments"], found["trials"], found["programs"], found["epochs"]) == (2, 4, 2, 2)
    ((state,),) = session.rows("select max(length(data)) from cerebro.trial t, cerebro_internal.visible_state s where t.run = %s", run)
    assert found["state"] == state
    assert found["memory of a worker"] > 50e6
    assert 0 < found["train"] < found["total"] <= found["total in a new session"]
    assert found["total"] == pytest.approx(found["train"] + found["load"])


def test_explanation_remarks_what_fit_remarks_and_no_feature_is_what_the_label_is_made_of(session):
    rows = [[n % 2, n // 2 % 2, 5.0 + 10 * (n % 3 == 0)] for n in range(60)]
    table = session.local({"a": "integer", "b": "integer", "price": "real"}, rows)
    model = session.model({"layers": [{"Dense": {"units": 2}}]})
    told = []
    for call in ("fit('remarked', ", "explain_fit("):
        session.notices.clear()
        options = json.dumps({"epochs": 1, "seed": 7, "segments": 1})
        session.rows("select * from cerebro.%s%%s::text::regclass, %%s, 'price > 10', options => %%s)" % call, table.name, model, options)
        told.append([notice for notice in session.notices if notice.startswith(("features: ", "feature ", "validation: "))])
    assert told[0] == told[1] and len(told[0]) == 2 and told[0][1].startswith("validation: ")
    assert told[0][0].startswith('features: "a", "b" (every usable column but the label and what it is made of, "price";')
    assert session.rows("select features from cerebro.run where run = 'remarked'") == [(["a", "b"],)]


def test_adaptive_search_is_explained_as_if_none_were_pruned(session, small, model):
    space = {"units": [2, 3], "learning_rate": {"low": 0.001, "high": 0.1, "log": True}}
    search = {"method": "tpe", "trials": 6, "space": space, "pruner": "median"}
    found = explained(session, small, model, search=search, validation=0)
    assert found["trials"][0] == 6 and "pruned" in found["trials"][2]
    assert found["visits"][0] == 6 * 2 * 2


def test_programs_that_fail_are_counted_with_the_reason(session, small):
    reshape = session.model({"layers": [{"Dense": {"units": "$units"}}, {"Reshape": {"target_shape": [2]}}, {"Softmax": {}}]})
    found = explained(session, small, reshape, validation=0)
    value, unit, detail = found["programs that fail"]
    assert (value, unit) == (1, "programs") and detail
    call = "select * from cerebro.explain_fit(%s::text::regclass, %s, 'label', '{a,b}', %s)"
    error = session.error(call, small.name, reshape, json.dumps({"search": {"space": {"units": [5]}}}))
    assert isinstance(error, Refusal) and error.sqlstate == "22000" and error.detail and error.hint


def test_trials_whose_values_exclude_each_other_are_counted_and_the_others_explained(session, small, model):
    clip = {"values": [0.5], "when": {"optimizer.clipnorm": [2.0]}}
    space = {"units": [2], "optimizer.clipnorm": [1.0, 2.0, 3.0], "optimizer.clipvalue": clip}
    found = explained(session, small, model, search={"space": space}, validation=0)
    assert found["trials"][0] == 3 and found["visits"][0] == 2 * 2 * 2
    value, unit, detail = found["trials that fail"]
    assert (value, unit) == (1, "trials") and "clipnorm" in detail


def test_explanation_refuses_what_fit_refuses(session, small, model):
    call = "select * from cerebro.explain_fit(%s::text::regclass, %s, %s, '{a,b}', %s)"
    for label, options, sqlstate in (("label", {"epoch": 3}, "22023"), ("lable", {}, "42703"), ("label", {"metrics": ["R2"]}, "22023")):
        error = session.error(call, small.name, model, label, json.dumps({"search": SEARCH, **options}))
        assert error.sqlstate == sqlstate and error.hint
