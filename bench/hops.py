"""A hop, ledger included, against a bare libpq echo of the same bytes.

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

    def state_bytes(self) -> int:
        query = "select sum(octet_length(s.data)) from cerebro_internal.visible_state s join cerebro_internal.visible_run r"
        query += " on r.id = s.run where r.name = %s group by s.seq limit 1"
        return int(self._connection.execute(query, [self._name]).fetchone()[0])


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
    found = []
    with servers.connect() as connection, servers.connect(1) as segment:
        for size, (units, epochs) in SIZES.items():
            runs = Runs(connection, size, units, epochs)
            runs.hop()
            data = bytes(runs.state_bytes())
            seconds = interleave({"echo": lambda data=data: echo(segment, data), "hop": runs.hop}, rounds)
            name = "hop of %s against an echo" % size
            found.append(ratio(name, seconds, "hop", "echo", HOP_RATIO, False))
        runs = Runs(connection, "tiny", *TINY)
        runs.hop()
        fixed = interleave({"hop": runs.hop}, rounds)["hop"]
        milliseconds = [1000 * value for value in fixed]
        found.append(Measure("hop, fixed part", milliseconds, FIXED_MILLISECONDS, False, "ms"))
    return found
