"""Loading a shard of 50,000 rows of (real[100], integer) inside a segment's backend, against psycopg's binary COPY.

The comparator, a client of the same server: `COPY (SELECT x, y …) TO STDOUT (FORMAT binary)` by psycopg, its raw blocks
(libpq hands out one per row) collected in a list and joined, x as a strided view of the joined bytes turned into a
float32 array of native byte order, y likewise into int32. No check, no checksum, no statistics, no split.
"COPY alone" throws the blocks away.

Ours: a call of `worker_load` as `fit` makes it by default, 0.2 of the rows held out: arrays checked for shape, NULL,
NaN and infinities, checksum, statistics, class list, the split by value. Timed from the client's call to its answer.
"""

from __future__ import annotations

import json
import time

import numpy as np
import psycopg

from bench.rounds import Measure, interleave, ratio
from bench.servers import COPY_HEADER_BYTES, SCHEMA, Servers, row_type
from bench.visits import specification

ROWS, ELEMENTS = 50_000, 100
TABLE = "load"
VALIDATION = 0.2  # fit's default


def copied(segment: psycopg.Connection, parse: bool) -> float:
    started = time.perf_counter()
    with segment.cursor() as cursor:
        with cursor.copy("copy (select x, y from %s.%s_1) to stdout (format binary)" % (SCHEMA, TABLE)) as copy:
            if not parse:
                for _ in copy:
                    pass
                return time.perf_counter() - started
            blocks = list(copy)
    rows = np.frombuffer(b"".join(blocks), row_type((ELEMENTS,)), ROWS, COPY_HEADER_BYTES)
    x, y = rows["items"]["value"].astype(np.float32), rows["y"].astype(np.int32)
    seconds = time.perf_counter() - started
    if x.shape != (ROWS, ELEMENTS) or y.shape != (ROWS,):
        raise RuntimeError("the comparator read something else")
    return seconds


def loaded(segment: psycopg.Connection, validation: float) -> float:
    spec = json.dumps(specification(TABLE + "_1", validation))
    started = time.perf_counter()
    (stats,) = segment.execute("select cerebro_internal.worker_load(%s)", [spec]).fetchone()
    seconds = time.perf_counter() - started
    if stats["rows"] != ROWS:
        raise RuntimeError("the shard lacks rows")
    return seconds


def measure(servers: Servers, rounds: int) -> list[Measure]:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((ROWS, ELEMENTS), np.float32), random.integers(0, 2, ROWS)
    servers.table(TABLE, [(x, y)])
    with servers.connect(1) as client, servers.connect(1) as worker:
        seconds = interleave(
            {
                "COPY to array": lambda: copied(client, True),
                "COPY alone": lambda: copied(client, False),
                "load": lambda: loaded(worker, VALIDATION),
            },
            rounds, warm_ups=2,
        )  # fmt: skip
    return [
        ratio("load of real[100] against COPY to an array", seconds, "COPY to array", "load", 0.8, True),
        ratio("load of real[100] against COPY alone", seconds, "COPY alone", "load", None, True),
    ]
