"""A run that goes on with more than it was asked for: epochs, trials, values of its axes."""

from __future__ import annotations

import json

import pytest

from tests import outcome
from tests import requirements as requires
from tests.session import POINTS, points

WARM = True
pytestmark = requires.segments(2)

MODEL = {"layers": [{"Dense": {"units": 4, "activation": "tanh"}}, {"Dropout": {"rate": 0.2}}, {"Dense": {"units": 1}}]}
FIXED = {"order": "fixed", "seed": 3, "batch_size": 8, "optimizer": {"Adam": {}}, "epochs": 2}
RESUME = "select trial, state from cerebro.resume(%s, %s::jsonb) order by trial"


@pytest.fixture(scope="module")
def table(session):
    return session.sharded(POINTS, points(), sizes=[35, 25])


@pytest.fixture(scope="module")
def model(session):
    return session.model(MODEL)


def rates(*values: float, **more) -> dict:
    return {"space": {"learning_rate": list(values)}, **more}


def drawn(low: float, high: float, **more) -> dict:
    return {"method": "random", "space": {"learning_rate": {"low": low, "high": high, "log": True}}, **more}


def resume(session, run: str, **options) -> list:
    return session.rows(RESUME, run, json.dumps(options))


@pytest.mark.parametrize("began", ["done", "out of time"])
def test_more_epochs_and_trials_end_as_if_they_had_been_asked_for_at_once(session, table, model, began):
    whole = session.fit(table, model, "label", **{**FIXED, "epochs": 4, "search": rates(0.05, 0.01, 0.1, trials=3)})
    limit = {"time_limit": 0.001} if began == "out of time" else {}
    run = session.fit(table, model, "label", **{**FIXED, **limit, "search": rates(0.05, 0.01, 0.1, trials=2)})
    assert resume(session, run, epochs=4, search={"trials": 3}, time_limit=600) == [(0, "done"), (1, "done"), (2, "done")]
    assert outcome.everything(session.cluster, run) == outcome.everything(session.cluster, whole)
    ((options, state),) = session.rows("select options, state from cerebro.run where run = %s", run)
    assert (options["epochs"], options["search"]["trials"], options["time_limit"], state) == (4, 3, 600, "done")


@pytest.mark.parametrize("first, then, added", [
    (rates(0.05), rates(0.1, 0.05, 0.01), {0.1, 0.01}), (drawn(1e-3, 1e-2, trials=2), drawn(1e-3, 1e-1, trials=4), None),
], ids=["grid", "random"])  # fmt: skip
def test_a_wider_space_adds_what_no_trial_has_had(session, table, model, first, then, added):
    run = session.fit(table, model, "label", **{**FIXED, "epochs": 1, "search": first})
    had = session.rows("select trial, params, metric from cerebro.trial where run = %s order by trial", run)
    wider = {key: value for key, value in then.items() if key != "method"}
    resume(session, run, search=wider)
    found = session.rows("select trial, params, metric from cerebro.trial where run = %s and state = 'done' order by trial", run)
    assert found[: len(had)] == had and len(found) == len(had) + 2
    values = [params["learning_rate"] for _, params, _ in found]
    assert len(set(values)) == len(values) and (added is None or set(values[len(had) :]) == added)


def test_a_trial_that_stopped_early_stays_stopped(session, table, model):
    stopping = {"early_stopping": {"monitor": "loss", "direction": "max", "patience": 1}}
    run = session.fit(table, model, "label", **{**FIXED, "epochs": 3, **stopping})
    before = outcome.everything(session.cluster, run)
    assert len(before[0]) < 3
    assert resume(session, run, epochs=5) == [(0, "done")]
    assert outcome.everything(session.cluster, run) == before


def test_a_submitted_run_goes_on_with_more_and_keeps_it(session, table, model):
    run = session.fit(table, model, "label", **{**FIXED, "epochs": 1})
    assert session.rows("select cerebro.submit(%s, '{\"epochs\": 2}')", run) == [(run,)]
    session.rows("select * from cerebro.wait(%s)", run)
    assert session.rows("select count(*) from cerebro.epoch where run = %s", run) == [(2,)]
    assert outcome.everything(session.cluster, run) == outcome.everything(session.cluster, session.fit(table, model, "label", **FIXED))


@pytest.fixture(scope="module")
def two(session, table, model):
    """A run of two trials that is done."""
    return session.fit(table, model, "label", **{**FIXED, "search": rates(0.05, 0.01)})


@pytest.mark.parametrize("options, sqlstate, message", [
    ({"epochs": 1}, "22023", "option epochs of a run does not shrink"),
    ({"search": {"trials": 1}}, "22023", "option search.trials of a run does not shrink"),
    ({"search": rates(0.05)}, "22023", 'axis "learning_rate" of the search does not hold what it held'),
    ({"search": {"space": {"learning_rate": {"low": 0.02, "high": 0.1}}}}, "22023", 'axis "learning_rate" of the search does not hold'),
    ({"search": {"space": {"learning_rate": [0.05, 0.01], "batch_size": [8]}}}, "22023", 'axis "batch_size" of the search does not hold'),
    ({"search": {"space": {"learning_rate": [0.05, 0.01, -1]}}}, "22023", "learning_rate"),
    ({"search": {"method": "random"}}, "22023", "options.search.method of a run does not change"),
    ({"batch_size": 4}, "22023", "option batch_size of a run does not change"),
    ({"epoch": 4}, "22023", 'unknown option "epoch"'),
    ({"epochs": "many"}, "22023", 'option "epochs" has a wrong value'),
])  # fmt: skip
def test_what_shrinks_or_cannot_change_is_refused_and_nothing_of_the_run_changes(session, two, options, sqlstate, message):
    look = "select options, state, finished_at from cerebro.run where run = %s"
    before = session.rows(look, two)
    for call in ("select * from cerebro.resume(%s, %s::jsonb)", "select cerebro.submit(%s, %s::jsonb)"):
        error = session.error(call, two, json.dumps(options))
        assert error.sqlstate == sqlstate and message in error.message and error.hint, error
    assert session.rows(look, two) == before


def test_a_run_without_a_search_gets_none(session, table, model):
    run = session.fit(table, model, "label", **FIXED)
    assert session.error(RESUME, run, json.dumps({"search": rates(0.1)})).message == "the run has no search"
    assert resume(session, run, epochs=2, max_retries=5) == [(0, "done")]
