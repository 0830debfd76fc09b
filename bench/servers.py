"""A cluster for the time of a benchmark: a coordinator and two segments in a temporary folder, durable as in use.

Everything runs on at most two cores, this process included, so that each of two workers has one thread.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import psycopg
from psycopg import sql

from scripts import cluster as embedded

ROLE = "bench"
SCHEMA = "bench"
SEGMENTS = 2
FLOAT4, INT4, FLOAT8 = 700, 23, 701  # type oids
COPY_HEADER_BYTES = 19
COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def two_cores() -> None:
    """Keep this process and all it starts on two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SEGMENTS])


def row_type(shape: tuple[int, ...]) -> np.dtype:
    """One row of a binary COPY of (x real[] of this shape, y integer), without NULLs."""
    count = int(np.prod(shape))
    return np.dtype([
        ("fields", ">i2"), ("x_bytes", ">i4"), ("head", ">i4", 3 + 2 * len(shape)),
        ("items", [("bytes", ">i4"), ("value", ">f4")], (count,)), ("y_bytes", ">i4"), ("y", ">i4"),
    ])  # fmt: skip


class Servers:
    """Started by `with`, stopped and removed at its end."""

    def __enter__(self) -> "Servers":
        home = Path(tempfile.mkdtemp(prefix="cerebro-bench-"))
        os.chmod(home, 0o755)  # the servers' user goes through
        self._embedded = embedded.Cluster(home)
        try:
            self._embedded.start(SEGMENTS, fsync=True)
            self._embedded.add_role(ROLE)
            for node in self._embedded.nodes:
                node.sql("CREATE SCHEMA %s AUTHORIZATION %s" % (SCHEMA, ROLE))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        self._embedded.stop("immediate")
        self._embedded.clean()
        shutil.rmtree(self._embedded.home, ignore_errors=True)

    @property
    def segment_urls(self) -> list[str]:
        """Of the ordinary role, in order of the shards."""
        return [node.url(ROLE) for node in self._embedded.nodes[1:]]

    @property
    def coordinator_url(self) -> str:
        return self._embedded.nodes[0].url(ROLE)

    @property
    def pids(self) -> list[int]:
        """The servers' own processes; all their sessions are children of these."""
        return [node.pid() for node in self._embedded.nodes]

    def connect(self, node: int = 0) -> psycopg.Connection:
        """An autocommitting session of the ordinary role; node 0 is the coordinator."""
        return psycopg.connect(self._embedded.nodes[node].url(ROLE), autocommit=True)

    def table(self, name: str, shards: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Make `bench.NAME (x real[], y integer)` with one shard per segment: float32 (n, *shape) and int (n,)."""
        parent, columns = sql.Identifier(SCHEMA, name), sql.SQL("x real[], y integer, shard integer")
        with self.connect() as connection:
            connection.execute(sql.SQL("create table {} ({}) partition by list (shard)").format(parent, columns))
            for number, (x, y) in enumerate(shards, 1):
                part = sql.Identifier(SCHEMA, "%s_%d" % (name, number))
                with self.connect(number) as segment:
                    segment.execute(
                        sql.SQL("create table {} (x real[], y integer, shard integer default {})").format(part, number)
                    )
                    fill(segment, part, x, y)
                connection.execute(
                    sql.SQL("create foreign table {} partition of {} for values in ({}) server {}").format(
                        part, parent, number, sql.Identifier("segment_%d" % number)
                    )
                )


def fill(connection: psycopg.Connection, table: sql.Identifier, x: np.ndarray, y: np.ndarray) -> None:
    """Copy rows into a table's columns x and y, and leave it vacuumed: no hint bits are set while it is measured."""
    shape = x.shape[1:]
    rows = np.zeros(len(x), row_type(shape))
    rows["fields"], rows["x_bytes"] = 2, 4 * (3 + 2 * len(shape)) + 8 * int(np.prod(shape))
    rows["head"] = [len(shape), 0, FLOAT4, *(value for length in shape for value in (length, 1))]
    rows["items"]["bytes"], rows["items"]["value"] = 4, x.reshape(len(x), -1)
    rows["y_bytes"], rows["y"] = 4, y
    with connection.cursor() as cursor:
        with cursor.copy(sql.SQL("copy {} (x, y) from stdin (format binary)").format(table)) as copy:
            copy.write(COPY_SIGNATURE + rows.tobytes() + b"\xff\xff")
    connection.execute(sql.SQL("vacuum (analyze, freeze) {}").format(table))
