"""A hop, ledger included, against a bare libpq echo of the same bytes.

Two parts, each with its goal: the fixed part is what a hop of a state of a few bytes takes; what a larger state takes
above it is compared with the echo. (The whole of a hop over the echo is shown too, without a goal: for 1 MB it is
mostly the fixed part.)

Measured where hops happen, in a `fit`: one trial on two segments of one row each, so that its visits follow one another
and are nothing but hops. A run's time, from its first visit's begin to its end in the catalog (everything committed,
the last epoch durably), less the ledger's sum of `train_seconds`, over the number of visits, is what one hop takes:
the order, the state to the segment, its check and assignment, reading and packing it, its way back, its ledger rows
and its committed copy, and its share of what every epoch's end costs. Nothing that goes on beside is left out.

A driver function on the links alone would be less work to measure, but would say nothing about how transfers and
commits of one run get into each other's way.

The echo: `SELECT $1` of a bytea as long as that state, binary both ways, by psycopg's pq level on a segment,
until the bytes are in the client's hands. A hop moves a state once to a segment and once from it, as the echo does.

The program is warm: an uncounted run of the same model goes ahead.
"""

from __future__ import annotations

import json
import statistics
import time
from functools import partial

import numpy as np
import psycopg

from bench.rounds import Measure, interleave, ratio
from bench.servers import SCHEMA, Servers

TABLE = "hop"
BYTEA = 17  # type oid
SIZES = {"1 MB": (500, 10), "50 MB": (3535, 4)}  # width of two equal dense layers, epochs
TINY = (1, 20)
ECHOES = 3
HOP_RATIO, FIXED_MILLISECONDS = 3.0, 25.0

_SECONDS = """
select extract(epoch from r.finished_at - min(v.started_at))::float8 - sum(v.train_seconds), count(*)
from cerebro.run r join cerebro.visit v on v.run = r.run where r.run = %s group by r.finished_at
"""


class Runs:
    """Runs of one model in one session, whose segments stay warm."""

    def __init__(self, connection: psycopg.Connection, name: str, units: int, epochs: int):
        self._connection, self._name, self._epochs = connection, name, epochs
        layers = [{"Dense": {"units": units}}, {"Dense": {"units": units}}, {"Dense": {"units": 1}}]
        connection.execute("select cerebro.create_model(%s, %s)", [name, json.dumps({"layers": layers})])

    def hop(self) -> float:
        """Seconds per hop of one run."""
        options = {
            "epochs": self._epochs, "validation": 0, "optimizer": "sgd", "learning_rate": 1e-9, "seed": 1,
            "task": "regression", "if_exists": "replace", "order": "fixed",
        }  # fmt: skip
        self._connection.execute(
            "select * from cerebro.fit(%s, %s, %s, 'y', '{x}', %s)",
            [self._name, "%s.%s" % (SCHEMA, TABLE), self._name, json.dumps(options)],
        )
        seconds, visits = self._connection.execute(_SECONDS, [self._name]).fetchone()
        if visits != 2 * self._epochs:
            raise RuntimeError("the run has %d visits" % visits)
        return seconds / visits

    def state(self) -> bytes:
        """The last run's last state."""
        query = "select s.data from cerebro_internal.visible_state s join cerebro_internal.visible_run r on r.id = s.run"
        with self._connection.cursor(binary=True) as cursor:
            rows = cursor.execute(query + " where r.name = %s order by s.seq desc, s.chunk limit 1", [self._name])
            return rows.fetchone()[0]


def echo(segment: psycopg.Connection, data: bytes) -> float:
    """Seconds of one echo: the median of a few."""
    taken = []
    for _ in range(ECHOES):
        started = time.perf_counter()
        result = segment.pgconn.exec_params(b"select $1", [data], [BYTEA], [1], result_format=1)
        back = result.get_value(0, 0)
        taken.append(time.perf_counter() - started)
        if len(back) != len(data):
            raise RuntimeError(segment.pgconn.get_error_message())
    return statistics.median(taken)


def measure(servers: Servers, rounds: int) -> list[Measure]:
    servers.table(TABLE, [(np.ones((1, 1), np.float32) * n, np.array([n])) for n in range(2)])
    with servers.connect() as connection, servers.connect(1) as segment:
        sides = {}
        for name, (units, epochs) in {"tiny": TINY, **SIZES}.items():
            runs = Runs(connection, name, units, epochs)
            runs.hop()
            sides["hop of " + name] = runs.hop
            if name in SIZES:
                sides["echo of " + name] = partial(echo, segment, runs.state())
        seconds = interleave(sides, rounds)
    fixed = statistics.median(seconds["hop of tiny"])
    found = [
        Measure(
            "hop, fixed part", [1000 * value for value in seconds["hop of tiny"]], FIXED_MILLISECONDS, False, "ms"
        )
    ]
    for size in SIZES:
        hop, bare = "hop of " + size, "echo of " + size
        above = "above the fixed part"
        seconds[above] = [value - fixed for value in seconds[hop]]
        found += [
            ratio("hop of %s, above the fixed part, against an echo" % size, seconds, above, bare, HOP_RATIO, False),
            ratio("hop of %s, all of it, against an echo" % size, seconds, hop, bare, None, False),
        ]
    return found
