"""A submitted run needs no client: it goes on, is waited for and cancelled from anywhere, and tells whether it lives."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time

import numpy as np
import psycopg
import pytest

from tests import outcome
from tests.cluster import ADMIN, kill, poll_until
from tests.psql import Psql
from tests.session import Refusal, traces

WARM = True
SIZES = [40, 27]
MODEL = {"layers": [{"Dense": {"units": 6, "activation": "relu"}}, {"Dense": {"units": "$classes", "activation": "softmax"}}]}
FIXED = {"epochs": 3, "batch_size": 8, "seed": 3, "order": "fixed", "validation": 0.25, "search": {"space": {"learning_rate": [0.01, 0.1]}}}
FOREVER = {"epochs": 1_000_000, "batch_size": 8, "validation": 0}
DEADLINE_SECONDS = 60.0
PATIENCE_SECONDS = 10.0  # where 1 s is promised: a test must not fail because the machine is busy
FIT = "select cerebro.fit(%s, %s::text::regclass, %s, 'kind', '{x}', %s)"
SUBMIT = FIT.replace("fit", "submit")


class Lab:
    """A table and a model, a session that trains, and another one that looks on, submits, waits and cancels."""

    def __init__(self, session):
        self.session, self.cluster = session, session.cluster
        self.other = self.cluster.connect()
        x = np.random.default_rng(4).normal(size=(sum(SIZES), 3)).astype(np.float32)
        self.columns, self.rows = {"x": "real[]", "kind": "integer"}, {"x": x, "kind": (x[:, 0] > 0).astype(int)}
        self.table = session.sharded(self.columns, self.rows, sizes=SIZES)
        self.model = session.model(MODEL)

    def arguments(self, run: str, table=None, **options) -> list:
        return [run, (table or self.table).name, self.model, json.dumps(options)]

    def submit(self, run: str | None = None, table=None, **options) -> str:
        run = run or self.session.name()
        assert self.ask(SUBMIT, *self.arguments(run, table, **options)) == [(run,)]
        return run

    def ask(self, statement: str, *values) -> list[tuple]:
        cursor = self.other.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def error(self, statement: str, *values) -> Refusal:
        with pytest.raises(psycopg.Error) as caught:
            self.other.execute(statement, values or None)
        return Refusal.of(caught.value)

    def shown(self, run: str) -> tuple | None:
        """State, driver and details, as cerebro.run shows them."""
        rows = self.ask("select state, pid, details from cerebro.run where run = %s", run)
        return rows[0] if rows else None

    def visits(self, run: str) -> int:
        return self.ask("select count(*) from cerebro.visit where run = %s and state = 'done'", run)[0][0]

    @contextlib.contextmanager
    def held(self, table=None):
        """Nobody can load the table's first shard meanwhile; gives the table's name."""
        table = table or self.table
        with self.cluster.connect(node=1, autocommit=False) as owner:
            owner.execute('lock table "%s"."%s" in access exclusive mode' % (table.schema, table.parts[0]))
            yield
            owner.rollback()

    def sessions(self, kind: str) -> list[tuple]:
        """Sessions of the role whose name begins so, on all nodes."""
        query = "select pid, application_name, state from pg_stat_activity where usename = %s and application_name like %s"
        return [row for node in self.cluster.nodes for row in node.execute(query, [self.session.role, kind + "%"])]


@pytest.fixture(scope="module")
def lab(session):
    made = Lab(session)
    yield made
    made.other.close()


@pytest.fixture(autouse=True)
def nothing_left(lab):
    """Whatever a test does, the sessions that drive runs end by themselves."""
    yield
    poll_until(lambda: not lab.sessions("cerebro run") + lab.sessions("cerebro ledger"), DEADLINE_SECONDS)


def test_submitted_run_goes_on_alone_and_ends_as_a_fit_does(lab):
    reference = lab.session.name()
    lab.session.conn.execute(FIT, lab.arguments(reference, **FIXED))
    workers = lab.sessions("cerebro worker")
    # What would end a session to which nobody listens, as a role may have it.
    lab.cluster.coordinator.execute("alter role %s set statement_timeout = '1s'" % lab.session.role)
    lab.cluster.coordinator.execute("alter role %s set idle_session_timeout = '1s'" % lab.session.role)
    try:
        run = lab.submit(**FIXED)
        state, pid, _ = lab.shown(run)
        assert state == "loading" and pid not in (None, lab.other.info.backend_pid, lab.session.conn.info.backend_pid)
        with lab.other.transaction():
            lab.other.execute("set transaction isolation level repeatable read")
            assert lab.shown(run)[0] in ("loading", "running")
            rows = lab.ask("select * from cerebro.wait(%s, '2 min')", run)
    finally:
        lab.cluster.coordinator.execute("alter role %s reset all" % lab.session.role)
    assert lab.shown(run) == ("done", None, None)
    poll_until(lambda: len(lab.sessions("cerebro worker")) == len(workers), DEADLINE_SECONDS)
    assert outcome.everything(lab.cluster, run) == outcome.everything(lab.cluster, reference)
    assert rows == lab.ask("select * from cerebro.resume(%s)", reference)
    assert lab.ask("select cerebro.submit(%s)", run) == [(run,)]  # done: there is nothing to go on with
    assert lab.ask("select * from cerebro.wait(%s, '0')", run) == rows


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"epocs": 1}}, {"options": {"time_limit": "soon"}}, {"model": "no such model"}, {"run": " "}, {"label": "none"},
        {"options": {"search": {"space": {"width": [1]}}}},
    ],
    ids=["option", "value", "model", "run", "label", "axis"],
)  # fmt: skip
def test_submit_refuses_what_fit_refuses_in_the_same_words(lab, change):
    given = {"run": lab.session.name(), "model": lab.model, "label": "kind", "options": FIXED, **change}
    values = [given["run"], lab.table.name, given["model"], given["label"], json.dumps(given["options"])]
    errors = [
        lab.session.error("select cerebro.%s(%%s, %%s::text::regclass, %%s, %%s, '{x}', %%s)" % call, *values)
        for call in ("fit", "submit")
    ]
    assert errors[0] == errors[1]


def test_submit_refuses_what_only_its_own_session_could_meet(lab):
    with lab.cluster.connect(autocommit=False) as connection:
        connection.execute("select cerebro.create_model('fresh', %s)", [json.dumps(MODEL)])
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("select cerebro.submit('early', %s::text::regclass, 'fresh', 'kind', '{x}')", [lab.table.name])
    assert Refusal.of(caught.value).sqlstate == "55000"
    lost = lab.session.sharded(lab.columns, lab.rows, sizes=SIZES)
    with lab.cluster.connect(node=1) as owner:
        owner.execute('drop table "%s"."%s"' % (lost.schema, lost.parts[0]))
    run, before = lab.session.name(), traces(lab.cluster)
    with contextlib.suppress(psycopg.Error):  # told by submit, or by the run
        lab.submit(run, lost, **FIXED)
        assert lab.error("select cerebro.wait(%s)", run).sqlstate == "42P01"
        lab.ask("select cerebro.drop_run(%s)", run)
    assert traces(lab.cluster) == before


def test_bad_data_fails_the_run_and_wait_raises_what_fit_would_have(lab):
    rows = {**lab.rows, "kind": np.where(np.arange(sum(SIZES)) == 50, None, lab.rows["kind"])}
    table = lab.session.sharded(lab.columns, rows, sizes=SIZES)
    with lab.held(table):
        run = lab.submit(table=table, **FIXED)
    told = lab.error("select cerebro.wait(%s)", run)
    fit = lab.session.error(FIT, *lab.arguments("other", table, **FIXED))
    assert told == Refusal(fit.sqlstate, 'run "%s" failed: %s' % (run, fit.message), fit.detail, fit.hint)
    assert lab.shown(run)[0] == "failed"


def test_submitted_run_holds_no_old_snapshot_and_no_lock_on_its_table(lab):
    """However many transactions end meanwhile, what they leave can be vacuumed; and the table can be altered.

    Of its trial there are the last committed state and the best one, never another.
    """
    table = lab.session.sharded(lab.columns, lab.rows, sizes=SIZES)
    run = lab.submit(table=table, **FOREVER)
    held = "select coalesce(max(age(backend_xmin)), 0) from pg_stat_activity where usename = %s"
    poll_until(lambda: lab.visits(run) > 0, DEADLINE_SECONDS)
    states = (
        "select count(distinct seq), bool_and(seq in (t.last_seq, t.best_seq)) from cerebro_internal.state join cerebro_internal.trial t"
        " using (run, trial) where run = (select id from cerebro_internal.run where name = %s)"
    )
    ages, kept = [], set()
    with lab.cluster.connect(ADMIN) as admin:
        for _ in range(40):
            for _ in range(10):
                admin.execute("select pg_current_xact_id()")
            ages.append(admin.execute(held, [lab.session.role]).fetchone()[0])
            kept.add(admin.execute(states, [run]).fetchone())
    assert max(ages) < 100, ages  # of 400 transactions, the last few
    assert kept <= {(1, True), (2, True)}
    lab.ask("set lock_timeout = '10s'")
    lab.ask('alter table %s add column further integer' % table.name)
    with lab.cluster.connect(node=1) as there:
        there.execute("set lock_timeout = '10s'")
        there.execute('alter table "%s"."%s" add column further integer' % (table.schema, table.parts[0]))
    before = lab.visits(run)
    poll_until(lambda: lab.visits(run) > before, DEADLINE_SECONDS)
    assert lab.shown(run)[0] == "running" and lab.ask("select cerebro.cancel(%s)", run) == [(True,)]
    lab.ask("reset lock_timeout")


def test_run_whose_session_died_shows_at_once_and_can_be_taken_over(lab):
    with lab.held():
        run = lab.submit(**FIXED)
        state, pid, _ = lab.shown(run)
        assert state == "loading"
        lab.ask("select pg_terminate_backend(%s)", pid)
        poll_until(lambda: lab.shown(run) == ("interrupted", None, None), PATIENCE_SECONDS)
        error = lab.error("select cerebro.wait(%s)", run)
        assert (error.sqlstate, error.message) == ("ML004", 'run "%s" was interrupted' % run)
        assert lab.ask("select cerebro.cancel(%s)", run) == [(False,)]
        assert lab.ask("select cerebro.submit(%s)", run) == [(run,)]
        state, other, _ = lab.shown(run)
        assert state == "loading" and other not in (None, pid)
        assert lab.ask("select cerebro.cancel(%s)", run) == [(True,)]


def test_slow_run_is_not_stolen(lab):
    with lab.held():
        run = lab.submit(**FIXED)
        state, pid, _ = lab.shown(run)
        kill(pid, signal.SIGSTOP)
        try:
            for call in ("resume", "submit", "drop_run"):
                error = lab.error("select cerebro.%s(%%s)" % call, run)
                assert error.sqlstate == "55006" and "process %d " % pid in error.detail
            assert lab.shown(run)[:2] == ("loading", pid)
            error = lab.error("select cerebro.wait(%s, '0.1 s')", run)
            assert (error.sqlstate, error.message) == ("ML004", 'run "%s" is not done yet' % run)
        finally:
            kill(pid, signal.SIGCONT)
        assert lab.ask("select cerebro.cancel(%s)", run) == [(True,)]


def test_run_outlives_its_submitter_and_is_nobody_elses(lab, make_role):
    other = make_role()
    with lab.held():
        run = lab.session.name()
        with lab.cluster.connect(autocommit=False) as connection:
            connection.execute(SUBMIT, lab.arguments(run, **FIXED))
            connection.rollback()
        for call in ("wait", "cancel", "submit"):
            with lab.cluster.connect(other) as stranger, pytest.raises(psycopg.Error) as caught:
                stranger.execute("select cerebro.%s(%%s)" % call, [run])
            assert caught.value.sqlstate == "42704"
        waiting = Psql(lab.cluster)
        try:
            waiting.send("select cerebro.wait(%s)", run)
            watch = "select 1 from pg_stat_activity where pid = %s and state = 'active'"
            poll_until(lambda: lab.cluster.coordinator.execute(watch, [waiting.backend]), PATIENCE_SECONDS)
            told = time.monotonic()
            waiting.interrupt()
            answer = waiting.answer(PATIENCE_SECONDS)
            assert answer.sqlstate == "57014" and answer.at - told < PATIENCE_SECONDS
            assert lab.shown(run)[0] == "loading"
            waiting.send("select cerebro.wait(%s)", run)
            assert lab.ask("select cerebro.cancel(%s)", run) == [(True,)]
            assert waiting.answer(PATIENCE_SECONDS).sqlstate == "ML004"
        finally:
            waiting.close()


def test_replacing_run_is_the_one_that_is_waited_for(lab):
    run = lab.session.name()
    lab.session.conn.execute(FIT, lab.arguments(run, **{**FIXED, "epochs": 1}))
    with lab.held():
        assert lab.error(SUBMIT, *lab.arguments(run, **FIXED)).sqlstate == "42710"
        lab.submit(run, if_exists="replace", **FIXED)
        assert lab.error("select cerebro.wait(%s, '0')", run).message == 'run "%s" is not done yet' % run
        assert lab.ask("select cerebro.cancel(%s)", run) == [(True,)]
    assert lab.shown(run)[0] == "done"  # the former one, whose place was not taken


def test_fit_of_another_session_is_cancelled(lab):
    run = lab.session.name()
    errors = []

    def fit() -> None:
        try:
            lab.session.conn.execute(FIT, lab.arguments(run, **FOREVER))
        except psycopg.Error as error:
            errors.append(error.sqlstate)

    thread = threading.Thread(target=fit)
    thread.start()
    poll_until(lambda: lab.visits(run) > 1, DEADLINE_SECONDS)
    told = time.monotonic()
    assert lab.ask("select cerebro.cancel(%s)", run) == [(True,)]
    assert time.monotonic() - told < PATIENCE_SECONDS
    thread.join()
    assert errors == ["57014"]
    assert lab.shown(run)[:2] == ("cancelled", None)
    assert lab.ask("select cerebro.cancel(%s)", run) == [(False,)]
    error = lab.error("select cerebro.wait(%s)", run)
    assert (error.sqlstate, error.message) == ("ML004", 'run "%s" was cancelled' % run)
    visits = lab.visits(run)
    lab.session.conn.execute(FIT, lab.arguments(run, **FOREVER, if_exists="resume", time_limit="1 s"))
    assert lab.visits(run) > visits and lab.shown(run)[0] == "done"


def test_run_whose_time_is_over_is_done_with_what_it_has_and_goes_on_when_resumed(lab):
    lab.session.conn.execute(FIT, lab.arguments(lab.session.name(), **{**FOREVER, "epochs": 1}))  # so that TensorFlow runs
    run = lab.session.name()
    arguments = lab.arguments(run, **FOREVER, time_limit="1 s", search={"space": {"learning_rate": [0.01, 0.1]}})
    lab.session.notices.clear()
    begun = time.monotonic()
    rows = lab.session.rows("select * from cerebro.fit(%s, %s::text::regclass, %s, 'kind', '{x}', %s)", *arguments)
    assert time.monotonic() - begun < PATIENCE_SECONDS
    assert any("time_limit is over" in notice for notice in lab.session.notices)
    assert {row[4] for row in rows} == {"running"} and all(row[1] is not None for row in rows)
    assert lab.shown(run) == ("done", None, {"stopped": "time_limit"})
    assert lab.ask("select trial, metric from cerebro.wait(%s)", run) == [row[:2] for row in rows]
    assert not [visit for visit in outcome.visits(lab.cluster, run) if visit[4] != "done"]
    visits = lab.visits(run)
    again = lab.session.rows("select * from cerebro.resume(%s)", run)
    assert lab.visits(run) > visits and {row[4] for row in again} == {"running"}
    visits = lab.visits(run)
    arguments[3] = json.dumps({**json.loads(arguments[3]), "if_exists": "resume", "time_limit": 0.001})
    lab.session.rows("select * from cerebro.fit(%s, %s::text::regclass, %s, 'kind', '{x}', %s)", *arguments)
    assert lab.visits(run) == visits


@pytest.mark.parametrize("way", ["done", "cancelled", "failed"])
def test_end_of_a_run_that_nobody_listens_to_is_no_trouble_to_the_server(lab, way):
    node = lab.cluster.coordinator
    mark = node.log_size()
    table = lab.session.local(lab.columns, {**lab.rows, "kind": np.zeros(sum(SIZES), int)}) if way == "failed" else lab.table
    with lab.held() if way == "failed" else contextlib.nullcontext():
        run = lab.submit(table=table, **(FOREVER if way == "cancelled" else FIXED))
    if way == "cancelled":
        poll_until(lambda: lab.visits(run), DEADLINE_SECONDS)
        assert lab.ask("select cerebro.cancel(%s)", run) == [(True,)]
    poll_until(lambda: lab.shown(run)[0] == way, DEADLINE_SECONDS)
    poll_until(lambda: not lab.sessions("cerebro run"), DEADLINE_SECONDS)
    troubled = [line for line in node.log_since(mark).splitlines() if "client" in line or "FATAL" in line or "epoll" in line]
    assert not troubled, "\n".join(troubled)


def test_time_that_runs_out_while_first_states_are_made_sends_no_visit(lab):
    slow = {"Dense": {"units": 2000, "kernel_initializer": "orthogonal"}}  # half a second each
    model = lab.session.model({"layers": [{"Dense": {"units": 2000}}, slow, slow, slow, {"Dense": {"units": "$classes"}}]})
    fit = "select trial, metric, state from cerebro.fit(%s, %s::text::regclass, %s, 'kind', '{x}', %s)"
    lab.session.conn.execute(FIT, lab.arguments(lab.session.name(), epochs=1))  # so that TensorFlow runs
    run, options = lab.session.name(), {"epochs": 2, "optimizer": "sgd", "time_limit": "0.4 s"}
    rows = lab.session.rows(fit, run, lab.table.name, model, json.dumps(options))
    assert rows == [(0, None, "running")] == lab.ask("select trial, metric, state from cerebro.wait(%s)", run)
    assert lab.shown(run) == ("done", None, {"stopped": "time_limit"}) and not outcome.visits(lab.cluster, run)
    assert any("time_limit is over, before anything was trained" in notice for notice in lab.session.notices)
    options.update(if_exists="resume", time_limit="1 h")
    assert lab.session.rows(fit, run, lab.table.name, model, json.dumps(options))[0][2] == "done"
    assert lab.shown(run) == ("done", None, None) and lab.visits(run) > 0
