"""Predictions in SQL against plain Keras and TensorFlow: a whole table, and single rows of a query.

A whole table: 50,000 rows of `real[100]` with an integer key on two segments, an MLP 100-256-256-2. Ours is one call of
`predict_table` on the coordinator, which replaces the table of the round before, in a warm session.

The comparator, a client of the segments: a binary COPY of key and features out of each, made into arrays as in
`bench.loading`, and standardized as the run does it; `Model.predict(batch_size=4096)` on both cores, class and
probability of it; a binary COPY of key, class and probability into a new table on each segment, its primary key, and
the swap for the old table. The model's first call does not count.

Single rows: `predict_class` of an array in a query of 10,000 rows of a local table, against a loop in Python that makes
a tensor of each row, calls a concrete `tf.function` of the same model with it, and makes the result an array.
"""

from __future__ import annotations

import json
import time

import numpy as np
import psycopg
from psycopg import sql

from bench.rounds import Measure, interleave, ratio
from bench.servers import COPY_HEADER_BYTES, COPY_SIGNATURE, SCHEMA, Servers, fill, row_type
from bench.workloads import MLP

TABLE, LABELLED, SINGLE, RUN = "scores", "scores_labelled", "scores_single", "scores"
ROWS, ELEMENTS, SINGLES = 25_000, 100, 10_000  # rows of each segment
OUT = np.dtype([
    ("fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i4"), ("class_bytes", ">i4"), ("class", ">i4"), ("p_bytes", ">i4"), ("p", ">f4"),
])  # fmt: skip


class Keras:
    """The same model in this process, of random weights; mean and scale stand for the run's."""

    def __init__(self):
        import keras
        import tensorflow as tf

        layers = [keras.layers.Dense(**next(iter(layer.values()))) for layer in MLP]
        self.model = keras.Sequential([keras.Input((ELEMENTS,)), *layers, keras.layers.Softmax()])
        self.model.compile()
        signature = [tf.TensorSpec((None, ELEMENTS), tf.float32)]
        self.concrete = tf.function(lambda x: self.model(x, training=False), input_signature=signature).get_concrete_function()
        self.constant = tf.constant
        self.mean, self.scale = np.zeros(ELEMENTS), np.ones(ELEMENTS)

    def exported(self, segments: list[psycopg.Connection]) -> float:
        started = time.perf_counter()
        keys, features = zip(*(self._read(segment, number) for number, segment in enumerate(segments, 1)))
        x = np.concatenate(features)
        x = ((x.astype(np.float64) - self.mean) / self.scale).astype(np.float32)
        y = self.model.predict(x, batch_size=4096, verbose=0)
        classes, p = y.argmax(axis=1), y.max(axis=1)
        for number, (segment, ids) in enumerate(zip(segments, keys)):
            part = slice(number * ROWS, (number + 1) * ROWS)
            self._write(segment, ids, classes[part], p[part])
        return time.perf_counter() - started

    @staticmethod
    def _read(segment: psycopg.Connection, number: int) -> tuple[np.ndarray, np.ndarray]:
        with segment.cursor() as cursor:
            with cursor.copy("copy (select x, y from %s.%s_%d) to stdout (format binary)" % (SCHEMA, TABLE, number)) as copy:
                blocks = list(copy)
        rows = np.frombuffer(b"".join(blocks), row_type((ELEMENTS,)), ROWS, COPY_HEADER_BYTES)
        return rows["y"], rows["items"]["value"].astype(np.float32)

    @staticmethod
    def _write(segment: psycopg.Connection, ids: np.ndarray, classes: np.ndarray, p: np.ndarray) -> None:
        rows = np.zeros(len(ids), OUT)
        rows["fields"], rows["id_bytes"], rows["class_bytes"], rows["p_bytes"] = 3, 4, 4, 4
        rows["id"], rows["class"], rows["p"] = ids, classes, p
        with segment.transaction(), segment.cursor() as cursor:
            cursor.execute("create table bench.fresh (y integer, prediction integer, probability real)")
            with cursor.copy("copy bench.fresh from stdin (format binary)") as copy:
                copy.write(COPY_SIGNATURE + rows.tobytes() + b"\xff\xff")
            cursor.execute("alter table bench.fresh add primary key (y)")
            cursor.execute("drop table if exists bench.exported")
            cursor.execute("alter table bench.fresh rename to exported")

    def single(self, x: np.ndarray) -> float:
        started = time.perf_counter()
        for i in range(len(x)):
            self.concrete(self.constant(x[i : i + 1])).numpy()
        return time.perf_counter() - started


def in_place(connection: psycopg.Connection) -> float:
    started = time.perf_counter()
    (rows,) = connection.execute(
        "select cerebro.predict_table(%s, %s, %s, '{y}', '{\"if_exists\": \"replace\"}')",
        [RUN, "%s.%s" % (SCHEMA, TABLE), SCHEMA + ".scored"],
    ).fetchone()
    seconds = time.perf_counter() - started
    if rows != 2 * ROWS:
        raise RuntimeError("the table lacks rows")
    return seconds


def one_by_one(connection: psycopg.Connection) -> float:
    started = time.perf_counter()
    query = "select count(cerebro.predict_class(%%s, x)) from %s.%s" % (SCHEMA, SINGLE)
    (rows,) = connection.execute(query, [RUN]).fetchone()
    seconds = time.perf_counter() - started
    if rows != SINGLES:
        raise RuntimeError("the query lacks rows")
    return seconds


def measure(servers: Servers, rounds: int) -> list[Measure]:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, ROWS, ELEMENTS), np.float32)
    servers.table(TABLE, [(x[number], np.arange(ROWS) + number * ROWS) for number in range(2)])
    servers.table(LABELLED, [(part[:500], random.integers(0, 2, 500)) for part in x])
    with servers.connect() as connection, servers.connect(1) as first, servers.connect(2) as second:
        connection.execute("create table %s.%s (x real[], y integer)" % (SCHEMA, SINGLE))
        fill(connection, sql.Identifier(SCHEMA, SINGLE), x[0][:SINGLES], np.arange(SINGLES))
        connection.execute("select cerebro.create_model(%s, %s)", [RUN, json.dumps({"layers": MLP})])
        connection.execute(
            "select * from cerebro.fit(%s, %s, %s, 'y', '{x}', '{\"epochs\": 1, \"seed\": 1}')",
            [RUN, "%s.%s" % (SCHEMA, LABELLED), RUN],
        )
        keras = Keras()
        seconds = interleave(
            {
                "export, Model.predict, COPY back": lambda: keras.exported([first, second]),
                "predict_table": lambda: in_place(connection),
                "concrete function": lambda: keras.single(x[0][:SINGLES]),
                "predict_class": lambda: one_by_one(connection),
            },
            rounds, warm_ups=2,
        )  # fmt: skip
    return [
        ratio("predict_table of 50,000 rows against an export", seconds, "export, Model.predict, COPY back", "predict_table", 2.0, True),
        ratio("predict of one row against a concrete function", seconds, "predict_class", "concrete function", 2.0, False),
    ]
