"""Metrics over other tables, metrics of several values, and runs that are asked to be what they are not."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.session import POINTS, Refusal, points

WARM = True

CURVE = [{"Precision": {"name": "precision", "thresholds": [0.3, 0.7]}}, "accuracy"]
SIGMOID = {"layers": [{"Dense": {"units": 1, "activation": "sigmoid"}}]}


@pytest.fixture(scope="module")
def table(session):
    return session.sharded(POINTS, points(), sizes=[30, 30])


@pytest.fixture(scope="module")
def run(session, table):
    return session.fit(table, session.model(SIGMOID), "label", metrics=CURVE, epochs=2)


def test_metric_of_several_values_has_a_line_for_each(session, table, run):
    (history,) = session.rows("select metrics from cerebro.epoch where run = %s and epoch = 2", run)[0]
    assert len(history["precision"]) == 2
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
    assert list(found) == ["loss", "accuracy", "precision[0]", "precision[1]"]


def test_run_cannot_be_ranked_by_a_metric_of_several_values(session, table):
    error = session.refused(
        table, session.model(SIGMOID), "label", metrics=CURVE, rank_by={"metric": "precision", "direction": "max"}
    )
    assert (error.sqlstate, error.message) == ("22023", 'option "rank_by" names a metric of several values: "precision"')


def test_evaluate_refuses_a_column_of_another_kind(session, run):
    other = session.local({"a": "text", "b": "real", "label": "boolean"}, [("1", 1.0, True), ("2", 2.0, False)])
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass)", run, other.name)
    assert error.sqlstate == "42804" and '"a"' in error.message and "text" in error.detail


def test_evaluate_refuses_arrays_of_another_shape(session):
    columns = {"x": "real[]", "label": "boolean"}
    table = session.local(columns, [([float(k), 1.0, 2.0], k % 2 == 0) for k in range(20)])
    run = session.fit(table, session.model(), "label", ["x"])
    other = session.local(columns, [([1.0, 2.0], True), ([2.0, 1.0], False)])
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass)", run, other.name)
    assert error.sqlstate == "2202E" and "[2]" in error.detail and "[3]" in error.detail


def test_resume_by_if_exists_refuses_a_run_that_began_otherwise(session, table, run):
    model = session.rows("select model from cerebro.run where run = %s", run)[0][0]
    named = {"run": run, "metrics": CURVE, "epochs": 2, "if_exists": "resume"}
    statement, values = session.call(table, model, "label", **named)
    assert len(session.rows(statement, *values)) == 1
    error = session.refused(table, model, "label", **{**named, "epochs": 20})
    assert (error.sqlstate, error.message) == ("22023", 'run "%s" exists with other epochs' % run)
    assert json.loads(error.detail.split("with ")[1].rstrip(".")) == 2


def test_replacing_a_run_leaves_others_alone_whatever_their_names(session, table):
    model, run = session.model(), session.name()
    for name in (run + " (replacing)", run, run):
        session.fit(table, model, "label", run=name, if_exists="replace")
    names = "select run from cerebro.run where run like %s order by 1"
    assert session.rows(names, run + "%") == [(run,), (run + " (replacing)",)]


def test_run_of_which_every_trial_failed_says_so_when_it_is_used(session, table):
    model = session.model({"layers": [{"Dense": {"units": 1}}, {"Reshape": {"target_shape": [7]}}]})
    statement, values = session.call(table, model, "label")
    with pytest.raises(psycopg.Error, match="every trial of run .* has failed, its only one: .*target_shape"):
        session.conn.execute(statement, values)
    run = values[0]
    assert session.rows("select 1 from cerebro.run where run = %s", run) == [], "it has made no visit"
    session.conn.execute(statement.replace("* from cerebro.fit", "cerebro.submit"), values)
    with pytest.raises(psycopg.Error, match="has failed") as caught:
        session.conn.execute("select cerebro.wait(%s)", [run])
    assert caught.value.sqlstate == "ML005"
    error = session.error("select cerebro.predict(%s, array[1, 2])", run)
    assert error.sqlstate == "55000" and error.detail.startswith("The first one failed: ") and "cerebro.trial" in error.hint


def test_columns_that_are_no_features_do_not_disturb_a_prediction(session, table):
    run = session.fit(table, session.model(), "label")
    row = "(select 1 as a, 2 as b, repeat('9', 4400)::numeric as id)"
    assert session.rows("select cerebro.predict_class(%s, x) in ('true', 'false') from " + row + " x", run) == [(True,)]
    error = session.error("select cerebro.predict(%s, repeat('[', 100000))", run)
    assert error.sqlstate == "22023" and error.hint


def test_repeatable_read_transaction_is_told_why_it_does_not_see_its_run(session, table):
    model, run = session.model(), session.name()
    statement, values = session.call(table, model, "label", run=run)
    session.conn.execute("begin isolation level repeatable read")
    try:
        session.conn.execute("select 1")
        session.conn.execute(statement, values)
        with pytest.raises(psycopg.Error) as caught:
            session.conn.execute("select cerebro.predict(%s, array[1, 2])", [run])
    finally:
        session.conn.execute("rollback")
    error = Refusal.of(caught.value)
    assert error.sqlstate == "42704" and "COMMIT first" in error.hint
