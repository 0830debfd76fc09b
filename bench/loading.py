"""Loading a shard of 50,000 rows of (real[100], integer) inside a segment's backend, against psycopg's binary COPY.

The comparator, a client of the same server: `COPY (SELECT x, y …) TO STDOUT (FORMAT binary)` by psycopg, its raw blocks
(libpq hands out one per row) collected in a list and joined, x as a strided view of the joined bytes turned into a
float32 array of native byte order, y likewise into int32. No check, no checksum, no statistics, no split.
"COPY alone" throws the blocks away.

A packed shard: `worker_load` and `worker_encode` of what `cerebro.pack` has made of the same rows, against both of the rows
themselves; and the megabytes of arrays that come of its blocks in a second of `worker_load`.

Ours: a call of `worker_load` as `fit` makes it by default, 0.2 of the rows held out: arrays checked for shape, NULL,
NaN and infinities, checksum, statistics, class list, the split by value. Timed from the client's call to its answer.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
import psycopg

from bench.rounds import Measure, interleave, ratio
from bench.servers import COPY_HEADER_BYTES, SCHEMA, Servers, row_type
from bench.visits import RUN, specification

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


class Packed:
    """The table packed, and its shard as a worker is asked for it."""

    def __init__(self, servers: Servers, worker: psycopg.Connection):
        options = json.dumps({"encoders": {"x": "none"}, "validation": VALIDATION, "if_exists": "replace"})
        with servers.connect() as coordinator:
            table = "%s.%s" % (SCHEMA, TABLE)
            coordinator.execute("select cerebro.pack(%s, %s, 'y', '{x}', %s)", [table, table + "_packed", options])
        query = (
            "select quote_ident(c.relname) from pg_class c join pg_description d on d.objoid = c.oid and d.objsubid = 0"
            " where d.description like 'cerebro.pack %%'"
        )
        self._worker, ((name,),) = worker, worker.execute(query).fetchall()
        relation = "%s.%s" % (SCHEMA, name)
        self.load = {"run": RUN, "pack": 0, "reads": [{"relation": relation, "where": None}]}
        self._encoders = worker.execute("select header -> 'encoders' from %s where part = 'header'" % relation).fetchone()[0]
        self.bytes = 0

    def seconds(self, load: dict, encoded: bool = True) -> float:
        started = time.perf_counter()
        (stats,) = self._worker.execute("select cerebro_internal.worker_load(%s)", [json.dumps(load)]).fetchone()
        if encoded:
            encode = json.dumps({"run": RUN, "encoders": self._encoders})
            self._worker.execute("select cerebro_internal.worker_encode(%s)", [encode])
        seconds = time.perf_counter() - started
        if stats["rows"] != ROWS:
            raise RuntimeError("the shard lacks rows")
        self.bytes = stats["bytes"]
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
        packed = Packed(servers, worker)
        rows = {**specification(TABLE + "_1", VALIDATION), "run": RUN}
        ready = interleave(
            {
                "rows": lambda: packed.seconds(rows),
                "blocks": lambda: packed.seconds(packed.load),
                "blocks loaded": lambda: packed.seconds(packed.load, encoded=False),
            },
            rounds, warm_ups=2,
        )  # fmt: skip
        rates = [packed.bytes / 1e6 / seconds for seconds in ready["blocks loaded"]]
    return [
        ratio("load of real[100] against COPY to an array", seconds, "COPY to array", "load", 0.8, True),
        ratio("load of real[100] against COPY alone", seconds, "COPY alone", "load", None, True),
        ratio("real[100] loaded and encoded against the same packed", ready, "rows", "blocks", None, True),
        Measure("packed shard read", rates, 400.0, True, "MB/s", {"blocks loaded": statistics.median(ready["blocks loaded"])}),
    ]
