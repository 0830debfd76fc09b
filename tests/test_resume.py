"""Whoever is killed, and whenever: resumed under `fixed`, a run ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import psycopg
import pytest

from tests import outcome
from tests.cluster import ADMIN, kill, poll_until
from tests.faults import armed, deadly, kill_backend
from tests.psql import Gone, Psql, Warm

# Who is killed -> where, on which node (0: the coordinator), at which occurrence; tests/fault_table.py has every point.
KILLED = {
    "psql": ("order-sent", 0, 5),
    "segment": ("validation", 2, 2),
    "driver": ("epoch-end", 0, 3),
    "driver, at the end": ("before-done", 0, 1),
}
SIZES = [40, 27]
TRIALS, EPOCHS = 3, 2
MODEL = {
    "layers": [
        {"Dense": {"units": 6, "activation": "relu"}},
        {"BatchNormalization": {}},
        {"Dropout": {"rate": 0.25}},
        {"Dense": {"units": "$classes", "activation": "softmax"}},
    ]
}
OPTIONS = {
    "epochs": EPOCHS, "batch_size": 4, "optimizer": {"Adam": {}}, "seed": 99, "order": "fixed", "validation": 0.25,
    "search": {"space": {"learning_rate": [0.003, 0.01, 0.03]}},
}  # fmt: skip


class Lab(Warm):
    """One table and one model, the outcome of an uninterrupted run."""

    def __init__(self, session):
        self.session, self.cluster = session, session.cluster
        random = np.random.default_rng(5)
        x = random.normal(size=(sum(SIZES), 3)).astype(np.float32)
        rows = {"x": x, "kind": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}
        self.table = session.sharded({"x": "real[]", "kind": "integer"}, rows, sizes=SIZES)
        self.model = session.model(MODEL)
        run = session.name()
        assert self.fit(self.psql, run).answer().sqlstate == "00000"
        self.reference = outcome.everything(self.cluster, run)
        assert len(self.reference[0]) == TRIALS * EPOCHS

    def fit(self, psql: Psql, run: str, **options) -> Psql:
        psql.send(
            "select trial from cerebro.fit(%s, %s::regclass, %s, 'kind', '{x}', %s)",
            run, self.table.name, self.model, json.dumps({**OPTIONS, **options}),
        )  # fmt: skip
        return psql

    def workers(self, node: int) -> list[int]:
        """Process ids of worker sessions on a node."""
        query = (
            "select pid from pg_stat_activity where usename = %s and backend_type = 'client backend'"
            " and application_name like 'cerebro%%' order by backend_start"
        )
        return [pid for (pid,) in self.cluster.node(node).execute(query, [self.session.role])]

    def driver(self, run: str) -> int | None:
        return self.cluster.coordinator.execute("select pid from cerebro.run where run = %s", [run])[0][0]


@pytest.fixture(scope="module")
def lab(session):
    made = Lab(session)
    yield made
    made.lose_psql()


def done_visits(lab, run: str) -> dict:
    """When each visit that a committed state covers began, and at which attempt."""
    query = "select trial, epoch, shard, started_at, attempt from cerebro.visit where run = %s and phase = 'train' and state = 'done'"
    return {tuple(row[:3]): row[3:] for row in lab.cluster.coordinator.execute(query, [run])}


def refused(lab, run: str) -> None:
    """Another session that tries to take the run is told who holds it."""
    with lab.cluster.connect() as second:
        with pytest.raises(psycopg.Error) as caught:
            second.execute("select cerebro.resume(%s)", [run])
    assert caught.value.sqlstate == "55006"
    assert 'run "%s" is being driven by another session' % run in caught.value.diag.message_primary
    assert "process %d " % lab.psql.backend in caught.value.diag.message_detail


def check_outcome(lab, run: str) -> None:
    """The run is done, exactly once, and equals the uninterrupted one."""
    query = "select state from cerebro.run where run = %s"
    assert lab.cluster.coordinator.execute(query, [run]) == [("done",)]
    visits = outcome.visits(lab.cluster, run)
    expected = [(t, e, k) for t in range(TRIALS) for e in range(1, EPOCHS + 1) for k in range(len(SIZES))]
    assert sorted((trial, epoch, shard) for trial, epoch, shard, *_ in visits) == expected
    assert {row[4] for row in visits} == {"done"}
    history, ranking, states = outcome.everything(lab.cluster, run)
    assert history == lab.reference[0]
    assert ranking == lab.reference[1]
    assert states == lab.reference[2]
    ((longest,),) = lab.cluster.coordinator.execute("select max(seconds) from cerebro.epoch where run = %s", [run])
    assert 0 < longest < 3600


@pytest.mark.parametrize("victim", KILLED)
def test_resumed_run_equals_an_uninterrupted_one(lab, victim):
    run = lab.session.name()
    point, number, occurrence = KILLED[victim]
    node = lab.cluster.node(number)
    with armed(node, run, point, occurrence) as reached:
        psql = lab.fit(lab.psql, run)
        waiting = reached()
        refused(lab, run)
        done = done_visits(lab, run)
        assert done
        if victim.startswith("driver"):
            assert waiting == psql.backend
            kill_backend(lab.cluster.coordinator, psql.backend)
        elif victim == "segment":
            (worker,) = lab.workers(2)
            assert waiting == worker
            kill_backend(lab.cluster.node(2), worker)
        else:
            kill(psql.process.pid)
    if victim == "segment":
        answer = psql.answer()  # the run repairs that by itself
    else:
        with pytest.raises(Gone):
            psql.answer()
        lab.lose_psql()
        poll_until(lambda: lab.driver(run) is None, 10)
        answer = lab.psql.ask("select trial from cerebro.resume(%s)", run)
    assert answer.sqlstate == "00000", answer.text
    visits = TRIALS * EPOCHS * 2 * len(SIZES)
    if point != "before-done":
        assert "(%d of %d visits)" % (visits, visits) in answer.text, "what was done before counts too"
    check_outcome(lab, run)
    if not victim.startswith("driver"):  # its server restarts, and may lose the last commits
        again = done_visits(lab, run)
        assert {key: again[key] for key in done} == done, "what was committed was trained again"


def test_resumed_run_that_keeps_states_per_epoch_only_equals_an_uninterrupted_one(lab):
    run = lab.session.name()
    with armed(lab.cluster.coordinator, run, "committed", 1) as reached:  # the first visit to end is a trial's first one
        psql = lab.fit(lab.psql, run, checkpoint="epoch")
        reached()
        states = {row[4] for row in outcome.visits(lab.cluster, run)}
        assert "trained" in states, "a visit without a state that covers it is not done"
        psql.interrupt()
        assert psql.answer().sqlstate == "57014"
    assert psql.ask("select trial from cerebro.resume(%s)", run).sqlstate == "00000"
    check_outcome(lab, run)


def test_epoch_whose_record_was_lost_is_recorded_again(lab):
    """What a crash between an epoch's last state and its record leaves, where there is no validation."""
    run = lab.session.name()
    assert lab.fit(lab.psql, run, validation=0).answer().sqlstate == "00000"
    whole = outcome.everything(lab.cluster, run)
    last = [row for row in whole[0] if row[1] == EPOCHS]
    number = "(select id from cerebro_internal.run where name = '%s')" % run
    with lab.cluster.connect(ADMIN) as admin:
        admin.execute("delete from cerebro_internal.epoch where epoch = %d and run = %s" % (EPOCHS, number))
        admin.execute(
            "update cerebro_internal.trial t set state = 'running', best_epoch = e.epoch, metric = (e.metrics ->> 'loss')::float8"
            " from cerebro_internal.epoch e where e.run = t.run and e.trial = t.trial and t.run = " + number
        )
        admin.execute("update cerebro_internal.run set state = 'failed' where id = " + number)
    assert lab.psql.ask("select trial from cerebro.resume(%s)", run).sqlstate == "00000"
    again = outcome.everything(lab.cluster, run)
    assert [row for row in again[0] if row[1] == EPOCHS] == last
    assert again == whole


def test_run_whose_driver_was_killed_while_loading_resumes(lab):
    run = lab.session.name()
    with lab.cluster.connect(node=2, autocommit=False) as blocker:
        blocker.execute('lock table "%s"."%s" in access exclusive mode' % (lab.table.schema, lab.table.parts[1]))
        psql = lab.fit(lab.psql, run)
        waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%worker_load(%'"
        poll_until(lambda: lab.cluster.node(2).execute(waits), 60)
        refused(lab, run)
        kill_backend(lab.cluster.coordinator, psql.backend)
    lab.lose_psql()
    shown = lab.cluster.coordinator.execute("select state, pid from cerebro.run where run = %s", [run])
    assert shown == [("interrupted", None)]
    assert lab.psql.ask("select trial from cerebro.resume(%s)", run).sqlstate == "00000"
    check_outcome(lab, run)


def test_a_resume_that_is_cancelled_while_it_claims_the_run_leaves_all_of_it(lab):
    """Whether the claim's answer comes before the cancel, with it, or after."""
    run = lab.session.name()
    assert lab.fit(lab.psql, run).answer().sqlstate == "00000"
    ((number,),) = lab.cluster.coordinator.execute("select id from cerebro_internal.run where name = %s", [run])
    whole = outcome.everything(lab.cluster, run)
    waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%run_claim(%'"
    with lab.cluster.connect(ADMIN, autocommit=False) as blocker:
        blocker.execute("update cerebro_internal.run set state = 'failed' where id = %s", [number])
        blocker.commit()
        blocker.execute("select 1 from cerebro_internal.run where id = %s for update", [number])
        lab.psql.send("select trial from cerebro.resume(%s)", run)
        poll_until(lambda: lab.cluster.coordinator.execute(waits), 60)
        lab.cluster.coordinator.execute("select pg_cancel_backend(%s)", [lab.psql.backend])
    assert lab.psql.answer().sqlstate == "57014"
    lab.cluster.coordinator.execute(
        "select cerebro_internal.run_discard(id, generation) from cerebro_internal.run where id = %s", [number]
    )
    ((state, pid),) = lab.cluster.coordinator.execute("select state, pid from cerebro.run where run = %s", [run])
    assert state in ("failed", "cancelled") and pid is None
    assert outcome.everything(lab.cluster, run) == whole


@pytest.mark.parametrize("call", ["resume", "drop_run"])
def test_a_call_that_is_cancelled_while_it_waits_for_the_run_does_not_go_on_without_its_caller(lab, call):
    run = lab.session.name()
    assert lab.fit(lab.psql, run).answer().sqlstate == "00000"
    record = "select state, generation from cerebro_internal.run where name = %s"
    waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'cerebro ledger'"
    with lab.cluster.connect(ADMIN, autocommit=False) as blocker:
        blocker.execute("update cerebro_internal.run set state = 'failed' where name = %s", [run])
        blocker.commit()
        before = lab.cluster.coordinator.execute(record, [run])
        blocker.execute("select 1 from cerebro_internal.run where name = %s for update", [run])
        lab.psql.send("select cerebro." + call + "(%s)", run)
        poll_until(lambda: lab.cluster.coordinator.execute(waits), 60)
        lab.cluster.coordinator.execute("select pg_cancel_backend(%s)", [lab.psql.backend])
        assert lab.psql.answer().sqlstate == "57014"
        poll_until(lambda: not lab.cluster.coordinator.execute(waits), 5)
    assert lab.cluster.coordinator.execute(record, [run]) == before
    assert lab.psql.ask("select trial from cerebro.resume(%s)", run).sqlstate == "00000"


def test_former_driver_cannot_write_once_the_run_is_claimed(lab):
    """In flight or later: a claim waits for the write that holds the run's row, and every later one is refused."""
    run = lab.session.name()
    assert lab.fit(lab.psql, run).answer().sqlstate == "00000"
    ((number, generation),) = lab.cluster.coordinator.execute(
        "select id, generation from cerebro_internal.run where name = %s", [run]
    )
    write = "select cerebro_internal.progress_set(%s, %s, '{}')"
    claim = "select cerebro_internal.run_claim(%s, 1, pg_backend_pid())"
    with lab.cluster.connect(autocommit=False) as former, lab.cluster.connect() as claiming:
        former.execute(write, [number, generation])
        claiming.execute("set lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            claiming.execute(claim, [number])
        former.commit()
        assert claiming.execute(claim, [number]).fetchone() == (generation + 1,)
        for command in (write, "select cerebro_internal.run_end(%s, %s, 'failed', 'late', null)"):
            with pytest.raises(psycopg.Error) as caught:
                former.execute(command, [number, generation])
            assert caught.value.sqlstate == "55006"
            assert "generation %d" % (generation + 1) in caught.value.diag.message_detail
            former.rollback()


def test_killed_segment_backend_repeats_only_its_visit(lab):
    run = lab.session.name()
    node = lab.cluster.node(2)
    with armed(node, run, "mid-visit", 3) as reached:
        psql = lab.fit(lab.psql, run)
        kill_backend(node, reached())
    answer = psql.answer()
    assert answer.sqlstate == "00000", answer.text
    check_outcome(lab, run)
    attempts = [row[5] for phase in ("train", "validate") for row in outcome.visits(lab.cluster, run, phase)]
    assert sorted(attempts)[-2:] == [1, 2]


def test_run_that_loses_sessions_and_may_not_repair_that_fails_and_resumes(lab):
    """Nobody has crashed: it is no trial's fault that an administrator ends a session."""
    run = lab.session.name()
    node = lab.cluster.node(2)
    with armed(node, run, "mid-visit", 3) as reached:
        psql = lab.fit(lab.psql, run, max_retries=0)
        node.execute("select pg_terminate_backend(%s)", [reached()])
        answer = psql.answer()
    assert answer.sqlstate == "08006" and "terminating connection due to administrator command" in answer.text, answer.text
    shown = lab.cluster.coordinator.execute("select state, details ->> 'sqlstate' from cerebro.run where run = %s", [run])
    assert shown == [("failed", "08006")]
    assert lab.psql.ask("select trial from cerebro.resume(%s)", run).sqlstate == "00000"
    check_outcome(lab, run)


def test_trial_that_kills_its_worker_again_and_again_fails_and_the_others_go_on(lab):
    """Trained as one with another trial at first, which is told apart from it, and ends as if nothing had happened."""
    query = "select trial, state, error from cerebro.trial where run = %s order by trial"
    options = {"epochs": 1, "fuse": True, "max_retries": 1, "search": {"space": {"learning_rate": [0.003, 0.01, 0.03, 0.1]}}}
    run, calm = lab.session.name(), lab.session.name()
    assert lab.fit(lab.psql, calm, **options).answer().sqlstate == "00000"
    with deadly(lab.cluster.node(2), run, 1):
        answer = lab.fit(lab.psql, run, **options).answer(120)
    assert answer.sqlstate == "00000", answer.text
    assert answer.text.count("trying again") == 3, "as one with another trial, then alone as often as allowed, and once more"
    trials = lab.cluster.coordinator.execute(query, [run])
    assert [state for _, state, _ in trials] == ["done", "failed", "done", "done"]
    reason = trials[1][2]
    assert reason.startswith('its worker died 2 times in epoch 1, last on segment "segment_2": ') and "08006" in reason
    assert "server closed the connection unexpectedly" in reason
    mine, others = (
        {(trial, seq): outcome.arrays(blob) for (trial, seq), blob in outcome.states(lab.cluster, name).items() if trial != 1}
        for name in (run, calm)
    )
    assert mine.keys() == others.keys()
    for key, arrays in mine.items():
        for name, array in arrays.items():
            assert np.allclose(array, others[key][name], rtol=1e-3, atol=1e-3), (key, name)


def test_segments_killed_together_are_both_repaired(lab):
    run = lab.session.name()
    with armed(lab.cluster.coordinator, run, "order-sent", 6) as reached:
        psql = lab.fit(lab.psql, run)
        reached()
        for number in (1, 2):
            (worker,) = lab.workers(number)
            kill_backend(lab.cluster.node(number), worker)
    answer = psql.answer()
    assert answer.sqlstate == "00000", answer.text
    assert answer.text.count("trying again") == 2
    check_outcome(lab, run)
