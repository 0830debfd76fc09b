"""Searches that learn from their trials: asked while the run goes on, pruned at epoch ends, the same after a crash."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest

from tests import outcome
from tests.faults import armed, kill_backend

WARM = True
SIZES = [40, 27]
SPACE = {"units": {"low": 2, "high": 12, "step": 5}, "learning_rate": {"low": 1e-5, "high": 0.3, "log": True}}
MODEL = {
    "layers": [{"Dense": {"units": "$units", "activation": "relu"}}, {"Dense": {"units": "$classes", "activation": "softmax"}}]
}
TPE = {"method": "tpe", "trials": 9, "in_flight": 3, "space": SPACE, "pruner": {"median": {"warmup_epochs": 1}}}
OPTIONS = {"epochs": 3, "batch_size": 8, "seed": 7, "order": "fixed", "validation": 0.25, "search": TPE}


@pytest.fixture(scope="module")
def lab(session):
    random = np.random.default_rng(5)
    x = random.normal(size=(sum(SIZES), 3)).astype(np.float32)
    rows = {"x": x, "kind": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}
    table = session.sharded({"x": "real[]", "kind": "integer"}, rows, sizes=SIZES)
    model = session.model(MODEL)

    def fit(**options) -> str:
        return session.fit(table, model, "kind", ["x"], **{**OPTIONS, **options})

    fit.call = lambda: session.call(table, model, "kind", ["x"], **OPTIONS)
    return fit


@pytest.fixture(scope="module")
def reference(session, lab):
    run = lab()
    return run, outcome.everything(session.cluster, run)


def test_no_more_trials_are_under_way_than_the_search_wants(session, lab, reference):
    begun = session.rows(
        "select trial, min(started_at), max(finished_at) from cerebro.visit where run = %s group by trial", reference[0]
    )
    assert len(begun) == TPE["trials"]
    for _, at, _ in begun:
        assert sum(start <= at < end for _, start, end in begun) <= TPE["in_flight"]


def test_a_pruned_trial_says_why_and_keeps_its_best_epoch(session, reference):
    run, _ = reference
    pruned = session.rows(
        "select t.trial, t.stopped, t.best_epoch, max(e.epoch) from cerebro.trial t join cerebro.epoch e using (run, trial)"
        " where run = %s and t.state = 'pruned' group by 1, 2, 3",
        run,
    )
    assert pruned, "half of all trials are worse than the median"
    for trial, stopped, best_epoch, last in pruned:
        assert "better after epoch" in stopped and last < OPTIONS["epochs"] and best_epoch <= last
        assert session.rows("select cerebro.predict_class(%s, '[[0, 0, 0]]', %s) is not null", run, trial) == [(True,)]
    assert session.rows("select count(*) from cerebro.visit where run = %s and state <> 'done'", run) == [(0,)]


@pytest.mark.parametrize("occurrence", [2, 11])
def test_a_search_whose_driver_was_killed_asks_and_prunes_as_if_it_had_not_been(session, lab, reference, occurrence):
    coordinator, (statement, values) = session.cluster.coordinator, lab.call()
    run = values[0]
    with armed(coordinator, run, "epoch-end", occurrence) as reached, ThreadPoolExecutor(1) as pool:
        lost = pool.submit(session.conn.execute, statement, values)
        kill_backend(coordinator, reached())
        assert isinstance(lost.exception(), psycopg.OperationalError)
    session.connect()
    session.conn.execute("select cerebro.resume(%s)", [run])
    assert outcome.everything(session.cluster, run) == reference[1]


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "successive_halving", {"percentile": {"percentile": 25}}])
def test_every_pruner_ends_with_a_best_trial_that_ran_to_the_end(session, lab, pruner):
    run = lab(order="fastest", epochs=4, search={**TPE, "method": "random", "pruner": pruner})
    states = dict(session.rows("select state, count(*) from cerebro.trial where run = %s group by 1", run))
    assert sum(states.values()) == TPE["trials"] and states.get("failed", 0) == 0
    assert states["done"] >= 1


def test_a_finite_space_ends_when_it_is_exhausted(session, lab):
    run = lab(order="fastest", epochs=1, search={"method": "tpe", "trials": 50, "space": {"units": [2, 3, 5, 8, 13]}})
    assert session.rows("select count(*), count(distinct params) from cerebro.trial where run = %s", run) == [(5, 5)]


def test_a_diverging_trial_never_wins_and_the_search_goes_on(session, lab):
    space = {**SPACE, "learning_rate": [1e18, 0.01, 0.02, 0.03]}
    run = lab(order="fastest", epochs=2, optimizer="sgd", search={"method": "tpe", "trials": 12, "space": space})
    ended = session.rows("select params->>'learning_rate', state, metric from cerebro.trial where run = %s", run)
    assert len(ended) == 12
    assert {state for rate, state, _ in ended if float(rate) > 1} == {"failed"}
    assert {state for rate, state, _ in ended if float(rate) < 1} == {"done"}
