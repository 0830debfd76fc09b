"""A statement that is told to stop ends at once, leaves nothing running, and harms nothing that comes after it."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest

from tests import outcome
from tests.cluster import kill, poll_until
from tests.psql import Gone, Psql, Warm
from tests.session import traces

WAYS = ["ctrl-c", "statement_timeout", "pg_cancel_backend", "many cancels", "kill -9 of psql"]
SIZES = [300, 200]
# Promised is 1 s; a test must not fail because the machine is busy. The figures are in the report's properties.
PATIENCE_SECONDS = 10.0
IDLE_SECONDS = 30.0  # a worker may be in the middle of importing TensorFlow
TIMEOUT_SECONDS = 5  # of statement_timeout: the run must have begun by then, on a busy machine too

FOREVER = {"epochs": 1_000_000, "batch_size": 16, "validation": 0.2, "search": {"space": {"learning_rate": [0.01, 0.02, 0.03]}}}
SLOW_VISIT = {"epochs": 1_000, "batch_size": 1, "validation": 0}  # several slices long
MODEL = {"layers": [{"Dense": {"units": 5}}, {"Dropout": {"rate": 0.3}}, {"Dense": {"units": "$classes", "activation": "softmax"}}]}
OTHER_MODEL = {"layers": [{"Dense": {"units": 7, "activation": "tanh"}}, {"Dropout": {"rate": 0.1}}, {"Dense": {"units": 1}}]}
OTHER = {"epochs": 2, "seed": 5, "order": "fixed", "validation": 0.3, "batch_size": 8, "search": {"space": {"learning_rate": [0.1, 0.2]}}}


class Lab(Warm):
    """A table, two models, and what the other fit gives in a fresh session."""

    def __init__(self, session):
        self.session, self.cluster = session, session.cluster
        random = np.random.default_rng(8)
        x = random.normal(size=(sum(SIZES), 3)).astype(np.float32)
        self.rows = {"x": x, "kind": (x[:, 0] > 0).astype(int), "size": x.sum(axis=1).astype(np.float64)}
        self.columns = {"x": "real[]", "kind": "integer", "size": "double precision"}
        self.table = session.sharded(self.columns, self.rows, sizes=SIZES)
        self.model, self.other_model = session.model(MODEL), session.model(OTHER_MODEL)
        self.reference = self.other(self.psql)
        self.lose_psql()  # what comes later is in another session

    def fit(self, psql: Psql, table=None, **options) -> str:
        """Begin a fit; gives the run's name."""
        run = self.session.name()
        psql.send(
            "select trial from cerebro.fit(%s, %s::regclass, %s, 'kind', '{x}', %s)",
            run, (table or self.table).name, self.model, json.dumps(options),
        )  # fmt: skip
        return run

    def other(self, psql: Psql) -> tuple:
        """The outcome of a fit that differs in label, model, optimizer state and seed."""
        run = self.session.name()
        answer = psql.ask(
            "select trial from cerebro.fit(%s, %s::regclass, %s, 'size', '{x}', %s)",
            run, self.table.name, self.other_model, json.dumps(OTHER),
        )  # fmt: skip
        assert answer.sqlstate == "00000", answer.text
        result = outcome.everything(self.cluster, run)
        self.psql.ask("select cerebro.drop_run(%s)", run)
        return result

    def query(self, statement: str, *values) -> list[tuple]:
        return self.cluster.coordinator.execute(statement, values)

    def visits(self, run: str) -> int:
        return self.query("select count(*) from cerebro.visit where run = %s and state = 'done'", run)[0][0]

    def state(self, run: str) -> str | None:
        found = self.query("select state from cerebro.run where run = %s", run)
        return found[0][0] if found else None


@pytest.fixture(scope="module")
def lab(session):
    made = Lab(session)
    yield made
    made.lose_psql()


def stop(lab, way: str, psql: Psql, started: float) -> float:
    """Stop what psql is doing; gives the seconds until the statement has ended, by the client's clock.

    Args:
        started: When the statement began.
    """
    told = time.monotonic()
    if way == "ctrl-c":
        psql.interrupt()
    elif way == "statement_timeout":
        told = started + TIMEOUT_SECONDS
    elif way == "pg_cancel_backend":
        lab.query("select pg_cancel_backend(%s)", psql.backend)
    elif way == "many cancels":
        with lab.cluster.connect() as second:
            while second.execute(
                "select pg_cancel_backend(pid) from pg_stat_activity where pid = %s and state = 'active'", [psql.backend]
            ).rowcount:
                pass
    else:
        kill(psql.process.pid)
        gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
        poll_until(lambda: lab.query(gone, psql.backend)[0][0], PATIENCE_SECONDS, every=0.01)
        seconds = time.monotonic() - told
        with pytest.raises(Gone):
            psql.answer(1)
        lab.lose_psql()
        return seconds
    answer = psql.answer(TIMEOUT_SECONDS + PATIENCE_SECONDS)
    assert answer.sqlstate == "57014", answer.text
    assert ("statement timeout" in answer.text) == (way == "statement_timeout")
    return answer.at - told


def check_idle(lab) -> None:
    """Every session that works for the role is idle, without transaction or lock, or gone; the ledger's is gone."""
    query = (
        "select pid, application_name, state, query from pg_stat_activity a"
        " where usename = %s and pid <> pg_backend_pid() and (application_name = 'cerebro ledger'"
        " or state <> 'idle' or xact_start is not null or exists (select 1 from pg_locks l where l.pid = a.pid))"
    )
    end = time.monotonic() + IDLE_SECONDS
    for node in lab.cluster.nodes:
        while busy := node.execute(query, [lab.session.role]):
            assert time.monotonic() < end, (node.name, busy)


@pytest.mark.parametrize(
    "way, options",
    [
        *[pytest.param(way, FOREVER, id=way + ", short visits") for way in WAYS[:4]],
        *[pytest.param(way, SLOW_VISIT, id=way + ", long visits") for way in WAYS],
    ],
)
def test_stopped_statement_ends_at_once_and_leaves_a_run_that_resumes(lab, way, options, record_property):
    psql = lab.psql
    if way == "statement_timeout":
        lab.other(psql)  # so that TensorFlow runs already
        psql.ask("set statement_timeout = '%ds'" % TIMEOUT_SECONDS)
    started = time.monotonic()
    run = lab.fit(psql, **options)
    poll_until(lambda: psql.read(0.02) and lab.visits(run) > 2, 60)
    seconds = stop(lab, way, psql, started)
    record_property("seconds", round(seconds, 3))
    assert seconds < PATIENCE_SECONDS
    poll_until(lambda: lab.state(run) == "cancelled", PATIENCE_SECONDS)
    check_idle(lab)
    lab.psql.ask("reset statement_timeout")
    assert lab.other(lab.psql) == lab.reference

    done = lab.visits(run)
    lab.psql.send("select trial from cerebro.resume(%s)", run)
    poll_until(lambda: lab.psql.read(0.02) is not None and lab.visits(run) > done + 2, 60)
    assert lab.state(run) == "running"
    stop(lab, "ctrl-c", lab.psql, 0)
    poll_until(lambda: lab.state(run) == "cancelled", PATIENCE_SECONDS)
    assert lab.psql.ask("select cerebro.drop_run(%s)", run).sqlstate == "00000"


def test_statement_ends_at_once_though_a_segment_hangs(lab, record_property):
    psql = lab.psql
    run = lab.fit(psql, **{**FOREVER, "batch_size": 1, "validation": 0})  # frozen at the end of a validation, no visit runs
    poll_until(lambda: psql.read(0.02) is not None and lab.visits(run) > 2, 60)
    node = lab.cluster.node(2)
    query = "select pid from pg_stat_activity where usename = %s and application_name = 'cerebro worker'"
    frozen = [*(pid for (pid,) in node.execute(query, [lab.session.role])), node.pid]
    for pid in frozen:
        kill(pid, signal.SIGSTOP)
    try:
        busy = "select 1 from cerebro.visit where run = %s and segment = 'segment_2' and state = 'running'"
        poll_until(lambda: psql.read(0.02) is not None and lab.query(busy, run), 60)
        seconds = stop(lab, "ctrl-c", psql, 0)
        poll_until(lambda: lab.state(run) == "cancelled", PATIENCE_SECONDS)
    finally:
        for pid in frozen:
            kill(pid, signal.SIGCONT)
    record_property("seconds", round(seconds, 3))
    check_idle(lab)
    lab.psql.ask("select cerebro.drop_run(%s)", run)
    assert lab.other(lab.psql) == lab.reference


@pytest.mark.parametrize(
    "way, stage", [("ctrl-c", "load"), ("pg_cancel_backend", "start"), ("kill -9 of psql", "load")]
)
def test_statement_stopped_before_the_first_visit_leaves_nothing(lab, way, stage, record_property):
    before = traces(lab.cluster)
    table = lab.table
    if stage == "load":
        table = lab.session.sharded(lab.columns, lab.rows, sizes=SIZES)
        read_slowly(lab, table)
    else:
        lab.lose_psql()  # a fresh session's workers have to start
    psql = lab.psql
    run = lab.fit(psql, table)
    active = "select 1 from pg_stat_activity where usename = %s and state = 'active' and query like %s"
    poll_until(
        lambda: lab.cluster.node(2).execute(active, [lab.session.role, "%worker_" + stage + "(%"]), 60
    )
    assert lab.state(run) == "loading"
    seconds = stop(lab, way, psql, 0)
    record_property("seconds", round(seconds, 3))
    assert seconds < PATIENCE_SECONDS
    poll_until(lambda: lab.state(run) is None, PATIENCE_SECONDS)
    assert traces(lab.cluster) == before
    check_idle(lab)
    assert lab.other(lab.psql) == lab.reference


def read_slowly(lab, table) -> None:
    """Let a policy on each segment take its time over every row."""
    for node, part in zip((1, 2), table.parts):
        with lab.cluster.connect(node=node) as owner:
            name = '"%s"."%s"' % (table.schema, part)
            slow = '"%s".slow_%s' % (table.schema, part)
            owner.execute(
                "create function %s(kind integer) returns boolean language plpgsql"
                " as 'begin perform pg_sleep(0.1); return true; end'" % slow
            )
            owner.execute("create policy slow on %s using (%s(kind))" % (name, slow))
            owner.execute("alter table %s enable row level security, force row level security" % name)
