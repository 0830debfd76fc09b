"""Faults that tests arm as superuser, see cerebro_udf/faults.py."""

from __future__ import annotations

import contextlib

from tests.cluster import Node, poll_until

REACHED_SECONDS = 60.0


@contextlib.contextmanager
def armed(node: Node, run: str, point: str, occurrence: int):
    """A run waits at this point while the context lasts.

    Gives a function that waits until the point is reached, and returns the process id of the backend that waits there.
    """
    node.execute(
        "insert into cerebro_internal.fault (run, point, occurrence, action) values (%s, %s, %s, 'wait')",
        [run, point, occurrence],
    )

    def reached():
        query = "select pid from pg_stat_activity where application_name = 'cerebro waits at ' || %s"
        return poll_until(lambda: node.execute(query, [point]), REACHED_SECONDS)[0][0]

    try:
        yield reached
    finally:
        node.execute("delete from cerebro_internal.fault where run = %s", [run])
