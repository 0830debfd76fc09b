"""Sparse rows against the same rows in full: 2 segments of 2,000 rows of 10,000 numbers, 1 in 100 of them not zero, or 1 in 1,000.

Both are trained on by one model, an MLP 10000-64-2 with Adam, batch 128, in one session whose programs are warm. Timed are the visits
on the segments, and the whole call, which reads and encodes the rows too. That both come to the same loss is checked in each round.
"""

from __future__ import annotations

import json
import time

import numpy as np
from psycopg import sql

from bench.rounds import Measure, interleave, ratio
from bench.servers import SCHEMA, SEGMENTS, Servers

ROWS, SIZE, EPOCHS = 2_000, 10_000, 5
ENTRIES = {100: "1 %", 10: "0.1 %"}  # of a row, and what share of it that is
TOLERANCE = 1e-3  # of the loss: sums are made in another order


def measure(servers: Servers, rounds: int) -> list[Measure]:
    return [found for count, share in ENTRIES.items() for found in compared(servers, rounds, count, share)]


def compared(servers: Servers, rounds: int, count: int, share: str) -> list[Measure]:
    random, full, sparse = np.random.default_rng(0), "in_full_%d" % count, "sparse_%d" % count
    truth, shards, entries = random.normal(size=SIZE), [], []
    for _ in range(SEGMENTS):
        index = np.argsort(random.random((ROWS, SIZE)), axis=1)[:, :count]
        value = random.normal(size=(ROWS, count)).astype(np.float32)
        x = np.zeros((ROWS, SIZE), np.float32)
        np.put_along_axis(x, index, value, axis=1)
        y = (x @ truth > 0).astype(int)
        shards.append((x, y))
        entries.append((index, value, y))
    servers.table(full, shards)
    _sparse_table(servers, sparse, entries)
    layers = [{"Dense": {"units": 64, "activation": "relu"}}, {"Dense": {"units": 2}}]
    options = {"epochs": EPOCHS, "batch_size": 128, "seed": 1, "validation": 0, "if_exists": "replace", "order": "fixed"}
    features = {full: ("{x}", {"x": "none"}), sparse: ("{idx}", {"idx": {"sparse": {"size": SIZE, "values": "val"}}})}
    losses: dict[str, float] = {}
    calls: dict[str, list[float]] = {full: [], sparse: []}
    with servers.connect() as connection:
        connection.execute("select cerebro.create_model(%s, %s)", [sparse, json.dumps({"layers": layers})])

        def trained(table: str) -> float:
            columns, encoders = features[table]
            values = [table, "%s.%s" % (SCHEMA, table), sparse, columns, json.dumps({**options, "encoders": encoders})]
            started = time.perf_counter()
            connection.execute("select * from cerebro.fit(%s, %s, %s, 'y', %s, %s)", values)
            calls[table].append(time.perf_counter() - started)
            query = "select (metrics ->> 'loss')::float8 from cerebro.epoch where run = %s order by epoch desc limit 1"
            losses[table] = connection.execute(query, [table]).fetchone()[0]
            if len(losses) == 2 and abs(losses[full] / losses[sparse] - 1) > TOLERANCE:
                raise RuntimeError("the losses differ: %s" % losses)
            query = "select sum((details ->> 'seconds')::float8) from cerebro.visit where run = %s"
            return connection.execute(query, [table]).fetchone()[0]

        seconds = interleave({table: lambda table=table: trained(table) for table in (full, sparse)}, rounds)
    whole = {table: found[1:] for table, found in calls.items()}
    return [
        ratio("training on rows of which %s is not zero, sparse against in full" % share, seconds, full, sparse, None, True),
        ratio("the same, reading and encoding included", whole, full, sparse, None, True),
    ]


def _sparse_table(servers: Servers, name: str, shards: list) -> None:
    parent, columns = sql.Identifier(SCHEMA, name), sql.SQL("idx integer[], val real[], y integer, shard integer")
    with servers.connect() as connection:
        connection.execute(sql.SQL("create table {} ({}) partition by list (shard)").format(parent, columns))
        for number, (index, value, y) in enumerate(shards, 1):
            part = sql.Identifier(SCHEMA, "%s_%d" % (name, number))
            with servers.connect(number) as segment:
                segment.execute(sql.SQL("create table {} ({})").format(part, columns))
                with segment.cursor() as cursor, cursor.copy(sql.SQL("copy {} from stdin").format(part)) as copy:
                    for row in zip(index.tolist(), value.tolist(), y.tolist()):
                        copy.write_row([*row, number])
                segment.execute(sql.SQL("vacuum (analyze, freeze) {}").format(part))
            server = sql.Identifier("segment_%d" % number)
            connection.execute(
                sql.SQL("create foreign table {} partition of {} for values in ({}) server {}").format(part, parent, number, server)
            )
