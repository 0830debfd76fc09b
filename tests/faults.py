"""Faults that tests arm as superuser, see cerebro_udf/faults.py."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import psycopg

from tests.cluster import ADMIN, Node, kill, poll_until

REACHED_SECONDS = 60.0
RESTART_SECONDS = 30.0


@contextlib.contextmanager
def armed(node: Node, run: str, point: str, occurrence: int):
    """A run waits at this point while the context lasts.

    Gives a function that waits until the point is reached, and returns the process id of the backend that waits there.
    """
    def reached():
        query = "select pid from pg_stat_activity where application_name = 'cerebro waits at ' || %s"
        return poll_until(lambda: node.execute(query, [point]), REACHED_SECONDS)[0][0]

    with _fault(node, run, point=point, occurrence=occurrence, action="wait"):
        yield reached


@contextlib.contextmanager
def deadly(node: Node, run: str, trial: int):
    """A trial of a run kills its worker on this node at each visit to train, while the context lasts."""
    with _fault(node, run, point="mid-visit", action="kill", trial=trial):
        yield


@contextlib.contextmanager
def _fault(node: Node, run: str, **columns):
    names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
    node.execute("insert into cerebro_internal.fault (run, %s) values (%%s, %s)" % (names, places), [run, *columns.values()])
    try:
        yield
    finally:
        node.execute("delete from cerebro_internal.fault where run = %s", [run])


def cancelled(session, node: Node, run: str, point: str, occurrence: int, statement: str, values: list) -> None:
    """Have a session train, and cancel it when the run has reached a point."""
    with armed(node, run, point, occurrence) as reached, ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.conn.execute, statement, values)
        reached()
        session.cluster.coordinator.execute("select pg_cancel_backend(%s)", [session.conn.info.backend_pid])
        assert isinstance(running.exception(), psycopg.errors.QueryCanceled)


def kill_backend(node: Node, pid: int) -> None:
    """SIGKILL a backend and wait until its server, which then restarts all sessions, answers again."""
    watch = node.connect(ADMIN)
    kill(pid)

    def lost():
        try:
            watch.execute("select 1")
            return False
        except psycopg.OperationalError:
            return True

    def back():
        try:
            return node.execute("select 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    poll_until(lost, RESTART_SECONDS)
    poll_until(back, RESTART_SECONDS)
