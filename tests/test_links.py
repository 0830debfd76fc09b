"""Sessions to segments: how they are secured, what they hold when they are left warm, and what a lost one costs."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import psycopg
import pytest

from cerebro_udf.coordinator.links import Address, Link, ask, configure, pump, stop
from cerebro_udf.coordinator.segments import SETTINGS
from tests import requirements as requires
from tests.cluster import ADMIN, ROLE, poll_until
from tests.faults import armed
from tests.psql import Psql
from tests.session import POINTS, QUICK, points, refusal

pytestmark = requires.segments(3)

WORKERS = "select pid, state, query from pg_stat_activity where usename = %s and application_name = 'cerebro worker'"
NODES = (1, 2)


@pytest.fixture(scope="module")
def table(session):
    return session.sharded(POINTS, points(), sizes=[30, 30])


@pytest.fixture(scope="module")
def model(session):
    return session.model()


@contextlib.contextmanager
def altered(cluster, there: str, back: str, node: int = 0):
    cluster.node(node).execute(there)
    try:
        yield
    finally:
        cluster.node(node).execute(back)


def workers(session, node: int) -> list[tuple]:
    return session.cluster.node(node).execute(WORKERS, [session.role])


# ---- how they are secured


def test_options_of_a_server_that_secure_the_connection_are_kept(session, table, model):
    there = "alter server segment_2 options (add sslmode 'require')"
    with altered(session.cluster, there, "alter server segment_2 options (drop sslmode)"):
        error = session.refused(table, model, "label")
    assert (error.sqlstate, error.message) == ("08006", 'cannot connect to segment "segment_2"')
    assert "does not support SSL" in error.detail and error.hint


@contextlib.contextmanager
def asking(node, method: str):
    """A node that asks the role for its password in another way."""
    file = node.server.data / "pg_hba.conf"
    before = file.read_text()
    query = "select count(*) from pg_hba_file_rules where auth_method = %s"
    file.write_text("host all %s 127.0.0.1/32 %s\n%s" % (ROLE, method, before))
    try:
        node.execute("select pg_reload_conf()")
        poll_until(lambda: node.execute(query, [method])[0][0])
        yield
    finally:
        file.write_text(before)
        node.execute("select pg_reload_conf()")


def test_password_is_not_sent_in_clear_text(session, table, model):
    with asking(session.cluster.node(2), "password"), session.cluster.connect() as fresh:
        error = refusal(session.cluster, fresh, *session.call(table, model, "label"))
    assert (error.sqlstate, error.message) == ("28000", 'server "segment_2" refuses user "%s"' % ROLE)
    assert "cleartext" in error.detail and "scram-sha-256" in error.hint


def test_too_many_sessions_of_a_role_is_no_matter_of_its_password(session, table, model):
    there, back = ("alter role %s connection limit %d" % (ROLE, limit) for limit in (0, -1))
    with altered(session.cluster, there, back, node=2), session.cluster.connect() as fresh:
        error = refusal(session.cluster, fresh, *session.call(table, model, "label"))
    assert error.sqlstate == "53300" and "too many connections for role" in error.detail
    assert "password" not in error.hint


def test_superuser_without_a_mapping_is_told_how_to_make_one(session, table):
    with session.cluster.connect(ADMIN) as admin:
        try:
            error = refusal(session.cluster, admin, "select * from cerebro.segments(%s::text::regclass)", [table.name])
            assert error.sqlstate == "28000"
            for server in (1, 2):
                hint = error.hint.replace("segment_1", "segment_%d" % server)
                password = session.cluster.node(server).server.password(ADMIN)
                shown = session.cluster.psql(hint, "-v", "password=" + password, role=ADMIN)
                assert "ERROR" not in shown, shown
            found = admin.execute("select segment from cerebro.segments(%s::text::regclass)", [table.name]).fetchall()
            assert found == [("segment_1",), ("segment_2",)]
        finally:
            for server in (1, 2):
                admin.execute("drop user mapping if exists for current_user server segment_%d" % server)


def test_caller_that_shows_fewer_digits_of_a_float_can_train(session, table, model):
    with session.cluster.connect() as fresh:
        fresh.execute("set extra_float_digits = 0")
        statement, values = session.call(table, model, "label")
        assert fresh.execute(statement, values).fetchone()[4] == "done"


# ---- what a segment refuses


@pytest.mark.parametrize(
    "there, sqlstate, repair",
    [
        ("revoke select on {0} from public, %s; alter table {0} owner to postgres" % ROLE, "42501", "GRANT SELECT"),
        ("alter table {0} rename to away", "42P01", "table_name"),
        ("alter table {0} rename a to away", "42703", "column_name"),
    ],
)
def test_error_of_a_segment_says_what_repairs_it(session, model, there, sqlstate, repair):
    table = session.sharded(POINTS, points(20), sizes=[10, 10])
    part = '"%s"."%s"' % (table.schema, table.parts[1])
    session.cluster.node(2).execute("set search_path = %s; %s" % (table.schema, there.format(part)))
    error = session.refused(table, model, "label")
    assert error.sqlstate == sqlstate and 'segment "segment_2"' in error.message
    assert repair in error.hint and "127.0.0.1:%d" % session.cluster.node(2).port in error.hint
    session.cluster.node(2).execute('drop table if exists "%s".away' % table.schema)


# ---- what they hold


def released(session, nodes=NODES) -> bool:
    """Whether every worker's last word was to drop its shard."""
    found = [worker for node in nodes for worker in workers(session, node)]
    return len(found) >= len(nodes) and all(state == "idle" and "worker_release" in query for _, state, query in found)


def test_warm_sessions_have_dropped_their_shards_however_a_call_ends(session, table, model):
    run = session.fit(table, model, "label")
    poll_until(lambda: released(session))
    session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name)
    poll_until(lambda: released(session))
    bad = points(60)
    bad["a"] = [None, *bad["a"].tolist()[1:]]
    assert session.refused(session.sharded(POINTS, bad, sizes=[30, 30]), model, "label").sqlstate == "22004"
    poll_until(lambda: released(session))
    session.rows("select * from cerebro.segments(%s::text::regclass)", table.name)
    poll_until(lambda: released(session))


@pytest.fixture
def short(session):
    """A session of the role whose warm links end themselves after a second."""
    with session.cluster.connect(ADMIN) as connection:
        connection.execute("do 'from cerebro_udf.coordinator import segments; segments.IDLE_TIME = \"1s\"' language plpython3u")
        connection.execute("set session authorization %s" % ROLE)
        yield connection


@requires.server(14)
def test_idle_time_counts_while_a_link_is_warm_and_not_while_it_waits_for_its_turn(session, table, model, short):
    mine = "select pid from pg_stat_activity where usename = %s and application_name = 'cerebro worker' and pid <> all(%s)"
    others = {node: [worker[0] for worker in workers(session, node)] for node in NODES}

    def own(node: int) -> list[int]:
        return [pid for (pid,) in session.cluster.node(node).execute(mine, [session.role, others[node]])]

    statement, values = session.call(table, model, "label")
    assert short.execute(statement, values).fetchone()[4] == "done"
    assert all(own(node) for node in NODES)
    poll_until(lambda: not any(own(node) for node in NODES))
    # Both sessions have died meanwhile, and are opened again; then one waits for longer than it would as a warm one.
    run = session.name()
    statement, values = session.call(table, model, "label", run=run)
    with armed(session.cluster.node(2), run, "mid-visit", 1) as reached:
        short.pgconn.send_query_params(
            b"select state from cerebro.fit($1, $2::text::regclass, $3, 'label', '{a,b}', $4)",
            [value.encode() for value in [run, table.name, model, json.dumps(QUICK)]],
        )
        reached()
        waits = "select pid from pg_stat_activity where pid = any(%s) and state = 'idle' and clock_timestamp() - state_change > '2s'"
        poll_until(lambda: session.cluster.node(1).execute(waits, [own(1)]), 30)
    result = short.pgconn.get_result()
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    assert result.get_value(0, 0) == b"done"
    assert short.pgconn.get_result() is None


def slowly(session, table, seconds: float) -> None:
    """Let a policy on each segment take its time over every row."""
    for node, part in zip(table.segments, table.parts):
        name = '"%s"."%s"' % (table.schema, part)
        with session.cluster.connect(node=node) as owner:
            owner.execute(
                "create function \"%s\".slow_%s(boolean) returns boolean language plpgsql"
                " as 'begin perform pg_sleep(%s); return true; end'" % (table.schema, part, seconds)
            )
            owner.execute('create policy slow on %s using ("%s".slow_%s(label))' % (name, table.schema, part))
            owner.execute("alter table %s enable row level security, force row level security" % name)


def test_cancelled_look_at_sizes_leaves_no_segment_at_work(session):
    table = session.sharded(POINTS, points(20), sizes=[10, 10])
    psql = Psql(session.cluster)
    node = session.cluster.node(2)
    try:
        with node.connect(autocommit=False) as holder:
            holder.execute('lock table "%s"."%s" in access exclusive mode' % (table.schema, table.parts[1]))
            psql.send("select segment from cerebro.segments(%s::text::regclass)", table.name)
            poll_until(lambda: any("pg_table_size" in query and state == "active" for _, state, query in workers(session, 2)))
            psql.interrupt()
            assert psql.answer().sqlstate == "57014"
            poll_until(lambda: all(state == "idle" for _, state, _ in workers(session, 2)), 5)
        assert psql.ask("select segment from cerebro.segments(%s::text::regclass)", table.name).text == "segment_1\nsegment_2"
    finally:
        psql.close()


# ---- what a lost one costs


def test_session_lost_again_while_it_loads_again_takes_another_retry_and_progress_goes_on(session, model):
    table = session.sharded(POINTS, points(60), sizes=[30, 30])
    slowly(session, table, 0.05)
    node, run = session.cluster.node(2), session.name()
    seen = []

    def phases() -> dict:
        rows = session.cluster.coordinator.execute(
            "select segment, phase, updated_at from cerebro.progress where run = %s and owner = %s", [run, ROLE]
        )
        seen.extend(rows)
        return {segment: phase for segment, phase, _ in rows}

    def times(since: int) -> int:
        return len({at for segment, phase, at in seen[since:] if segment == "segment_2" and phase == "loading"})

    loads = "select pid from pg_stat_activity where usename = %s and state = 'active' and query like '%%worker_load(%%'"
    psql = Psql(session.cluster)
    try:
        with armed(node, run, "mid-visit", 1) as reached:
            statement, values = session.call(table, model, "label", run=run)
            psql.send(statement, *values[:4], "{a,b}", values[5])
            poll_until(lambda: phases() == {"segment_1": "loading", "segment_2": "loading"} and times(0) > 1, 30)
            node.execute("select pg_terminate_backend(%s)", [reached()])
        since = len(seen)
        again = poll_until(lambda: node.execute(loads, [ROLE]), 60)
        poll_until(lambda: phases().get("segment_2") == "loading" and times(since) > 1, 30)
        node.execute("select pg_terminate_backend(%s)", [again[0][0]])
        answer = psql.answer()
    finally:
        psql.close()
    assert answer.sqlstate == "00000" and answer.text.count("trying again") == 2, answer.text




# ---- what is queued


class Pulse:
    def check(self) -> None:
        pass


@pytest.fixture
def link(cluster):
    """A link of the role to the coordinator's server."""
    node = cluster.node(0)
    link = Link(Address("here", "127.0.0.1", str(node.port), "cerebro", ROLE, node.server.password(ROLE)), "a test")
    link.open(Pulse())
    yield link
    link.close()


@pytest.mark.parametrize(
    "last, waits", [("select 1", True), ("select 1 / 0", True), ("select pg_catalog.pg_sleep(60)", False), ("rollback", False)]
)
def test_a_link_that_was_stopped_is_in_no_transaction(cluster, link, last, waits):
    ask(link, None, "begin")
    link.post(last, tag=lambda reply: None)
    while waits and link.busy:
        pump([link], None)
    for reply in stop([link], 30):
        reply.tag(reply)
    assert link.alive and not link.busy
    assert cluster.coordinator.execute("select state from pg_stat_activity where application_name = 'a test'") == [("idle",)]
    assert ask(link, None, "select 'x'") == [(b"x",)]


def test_a_dead_line_is_noticed_at_both_ends(link):
    with socket.socket(fileno=os.dup(link.socket)) as here:
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        found = [here.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_" + name)) for name in ("KEEPIDLE", "KEEPINTVL", "KEEPCNT")]
        assert found == [60, 15, 4] and here.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
    configure(link, None, SETTINGS)
    names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"]
    assert [ask(link, None, "select current_setting($1)", name) for name in names] == [[(b"60",)], [(b"15",)], [(b"4",)]]


def test_request_that_fails_takes_those_with_it_that_are_queued_behind_it(link):
    """A state of several parts: when one part cannot be written, the visit that it covers must not be recorded."""
    for command in ("create temporary table parts (n int)", "insert into parts values (1)", "insert into parts values (1 / 0)",
                    "insert into parts values (3)"):  # fmt: skip
        link.post(command, tag=command)
    replies = []
    while link.busy:
        replies += pump([link], None)
    assert [reply.error is None for reply in replies] == [True, True, False]
    assert replies[-1].error.sqlstate == "22012"
    assert [row[0] for row in ask(link, None, "select n::text from parts")] == [b"1"]
