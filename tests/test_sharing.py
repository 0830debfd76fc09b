"""Runs on one machine share its cores, memory and connections; what a session has come to keep is given back in time."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import psycopg
import pytest

from cerebro_udf.segment import memory, sharing, worker
from tests import outcome
from tests.cluster import ADMIN, poll_until
from tests.session import POINTS, Refusal, Session, points

CLAIM = "select cerebro_internal.worker_claim(%s)"
HELLO = "select cerebro_internal.worker_hello()"
CORES = len(os.sched_getaffinity(0))
THREADS = "select distinct (details ->> 'threads')::int from cerebro.visit where run = %s"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:|\t")  # of a server's log: log_line_prefix, or what goes on with the line before
KINDS = ["linear", "relu", "tanh", "sigmoid"]  # as many programs; in two epochs enough visits, see coordinator/sharing.py
DEADLINE_SECONDS = 30.0


@pytest.fixture(scope="module")
def local(session):
    return session.local(POINTS, points())


def claim(connection, group: str) -> dict:
    return connection.execute(CLAIM, [json.dumps({"group": group})]).fetchone()[0]


def test_workers_of_all_servers_on_a_host_know_of_each_other(cluster):
    """Other tests may be running on this machine: only differences count."""
    with cluster.connect(node=1) as first, cluster.connect(node=2) as second:
        alone = claim(second, "b")["others"]
        with cluster.connect(node=3) as third:
            claim(first, "a")
            claim(third, "a")
            assert claim(second, "b")["others"] >= 2
            assert claim(first, "a")["others"] < claim(second, "b")["others"]
            poll_until(lambda: claim(second, "b")["others"] >= alone + 2, DEADLINE_SECONDS)
            first.execute("select cerebro_internal.worker_release()")
        poll_until(lambda: claim(second, "b")["others"] <= alone, DEADLINE_SECONDS)  # the third is gone with its session


def promised() -> list[int]:
    """What workers on this machine were promised, other tests' too: bytes of each, by what they tell each other."""
    return [int(size) for _, _, size in sharing._LINE.findall(Path("/proc/net/unix").read_text())]


def test_memory_promised_to_a_run_that_loads_is_not_promised_to_another(session, cluster):
    table = session.sharded({"a": "real", "label": "boolean", "rest": "text"}, [(k, k % 2 == 0, "x") for k in range(60)], sizes=[30, 30])
    part, slow = ('"%s"."%s"' % (table.schema, name) for name in (table.parts[0], "slow"))
    # More on disk than any other test's shard, and a policy that takes its time over every row.
    with cluster.connect(node=1) as owner:
        owner.execute("alter table %s alter rest set storage external" % part)
        owner.execute("update %s set rest = repeat('x', 1000000)" % part)
        owner.execute(
            "create function %s(boolean) returns boolean language plpgsql as 'begin perform pg_sleep(0.2); return true; end'" % slow
        )
        owner.execute("create policy slow on %s using (%s(label))" % (part, slow))
        owner.execute("alter table %s enable row level security, force row level security" % part)
    wanted = worker.EXPECTED_LEAST_BYTES + worker.EXPECTED_PER_BYTE * 30_000_000
    run, model = session.name(), session.model()
    with cluster.connect() as connection, cluster.connect(node=3) as other:
        connection.execute("select cerebro.submit(%s, %s::text::regclass, %s, 'label', '{a}')", [run, table.name, model])
        poll_until(lambda: any(size >= wanted for size in promised()), DEADLINE_SECONDS)
        assert claim(other, "b")["memory_available"] <= memory.total_and_available()[0] - wanted
        connection.execute("select cerebro.cancel(%s)", [run])
        poll_until(lambda: not any(size >= wanted for size in promised()), DEADLINE_SECONDS)


def test_run_beside_another_has_fewer_threads(session, cluster, local):
    with cluster.connect(node=1) as other:
        claim(other, "a")
        run = session.fit(local, session.model(), "label", segments=1)
    ((threads,),) = session.rows(THREADS, run)
    assert 1 <= threads <= max(1, CORES // 2)


def test_run_that_takes_more_connections_than_there_are_is_refused_with_figures(cluster, make_role, make_schema):
    role = make_role()
    schema = make_schema("of_" + role, role)
    limit = 'alter role "%s" connection limit %d'
    session = Session(cluster, schema, role)
    try:
        table, model = session.local(POINTS, [row for row in zip(*points(2000).values())]), session.model()
        cluster.coordinator.execute(limit % (role, 5))
        error = session.refused(table, model, "label", segments=8)
        assert (error.sqlstate, error.message) == ("53300", 'server "cerebro_self" has too few connections left for this run')
        assert error.detail.startswith("It takes ") and 'role "%s" has a limit of 5, and 3 are in use' % role in error.detail
        assert "Set options.segments to 3" in error.hint and "CONNECTION LIMIT" in error.hint
        cluster.coordinator.execute(limit % (role, 2))
        statement, values = session.call(table, model, "label")
        error = session.error(statement.replace("* from cerebro.fit", "cerebro.submit"), *values)
        assert error == Refusal("53300", 'server "cerebro_self" has no connection left', error.detail, error.hint)
        assert 'too many connections for role "%s"' % role in error.detail
    finally:
        session.close()


def test_session_that_keeps_too_much_is_replaced_between_visits(session, cluster):
    """A policy's function has the session that reads the shard keep as much as many programs would."""
    columns, rows = {"x": "real", "y": "real"}, {"x": np.arange(40.0), "y": np.arange(40.0) % 7}
    table = session.sharded(columns, rows, sizes=[20, 20])
    model = session.model({"layers": [{"Dense": {"units": 1, "activation": "$kind"}}]})
    options = {"order": "fixed", "epochs": 2, "validation": 0.3, "search": {"space": {"kind": KINDS}}}
    reference = session.fit(table, model, "y", ["x"], **options)
    node, part = cluster.node(1), '"%s"."%s"' % (table.schema, table.parts[0])
    with node.connect(ADMIN) as admin:
        warm = [pid for (pid,) in admin.execute("select pid from pg_stat_activity where usename = 'tester' and pid <> pg_backend_pid()")]
        admin.execute(
            """create function "%s".heavy() returns boolean language plpython3u as $$
            if not SD.get("asked"):
                SD["asked"] = True
                if plpy.execute("select pg_backend_pid() as pid")[0]["pid"] in %s:
                    from cerebro_udf.segment import memory
                    GD["kept"] = b"x" * max(640 * 2**20, memory.total_and_available()[0] // 28)
            return True
            $$"""
            % (table.schema, warm)
        )
        admin.execute('create policy heavy on %s using ("%s".heavy())' % (part, table.schema))
        admin.execute("alter table %s enable row level security, force row level security" % part)
    session.notices.clear()
    run = session.fit(table, model, "y", ["x"], **options)
    of_session = "select (details ->> 'visits')::int from cerebro.visit where run = %s and shard = 0 order by started_at"
    made = [visits for (visits,) in session.rows(of_session, run)]
    assert made[0] > len(made) and made[-1] < len(made)  # by the warm session, then by one of its own
    assert not any("trying again" in notice for notice in session.notices)
    assert {visit[5] for visit in outcome.visits(cluster, run)} == {1}
    assert outcome.everything(cluster, run) == outcome.everything(cluster, reference)
    assert session.rows(THREADS, run) == [(max(1, CORES // 2),)]  # of a fixed run, whatever else goes on


def test_sessions_that_a_run_has_no_use_for_make_room_where_it_lacks_memory(session, cluster, local):
    """A policy's function stands for the memory: there is none as long as the worker of another run lives."""
    session.fit(local, session.model(), "label", segments=1)
    worker_of = "select pid from pg_stat_activity where usename = %s and application_name = 'cerebro worker'"
    pids = [pid for (pid,) in cluster.coordinator.execute(worker_of, [session.role])]
    assert pids
    table = session.sharded(POINTS, points(), sizes=[60])
    part = '"%s"."%s"' % (table.schema, table.parts[0])
    with cluster.node(1).connect(ADMIN) as admin:
        admin.execute(
            """create function "%s".roomy() returns boolean language plpython3u as $$
            import os
            if any(os.path.exists("/proc/%%d" %% pid) for pid in %s):
                plpy.error("out of memory", sqlstate="53200")
            return True
            $$"""
            % (table.schema, pids)
        )
        admin.execute('create policy roomy on %s using ("%s".roomy())' % (part, table.schema))
        admin.execute("alter table %s enable row level security, force row level security" % part)
    error = session.refused(table, session.model(), "label", memory=0.5)
    assert error.sqlstate == "53200" and set(cluster.coordinator.execute(worker_of, [session.role])) >= {(pid,) for pid in pids}
    run = session.fit(table, session.model(), "label")
    assert session.rows("select state from cerebro.run where run = %s", run) == [("done",)]
    assert not set(cluster.coordinator.execute(worker_of, [session.role])) & {(pid,) for pid in pids}
    session.fit(local, session.model(), "label", segments=1)


def test_nothing_but_the_servers_own_lines_is_in_the_logs(session, cluster, local):
    """Of a trial that overflows and one that fails."""
    before = [len(node.log_since(0)) for node in cluster.nodes]
    model = session.model({"layers": [{"Dense": {"units": 1, "activation": "exponential"}}]})
    table = session.local({"a": "double precision", "b": "double precision"}, {"a": np.arange(20) * 1e30, "b": np.arange(20) * -1e30})
    with cluster.connect(node=1) as other:
        claim(other, "a")  # so that the warm worker of the test above has the right number of threads
        with pytest.raises(psycopg.DatabaseError, match="diverged"):
            session.fit(table, model, "b", ["a"], encoders={"a": "none"}, learning_rate=1e20, epochs=2, segments=1)
        with pytest.raises(psycopg.DatabaseError, match="Conv2D|conv2d"):
            session.fit(table, session.model({"layers": [{"Conv2D": {"filters": 1, "kernel_size": 9}}]}), "b", ["a"], segments=1)
    for node, length in zip(cluster.nodes, before):
        chatter = [line for line in node.log_since(0)[length:].splitlines() if line and not LINE.match(line)]
        assert not chatter, "\n".join(chatter[:20])
