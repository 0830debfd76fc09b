"""Tables for tests: sharded over segments by foreign partitions, or local."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Union

import psycopg
from psycopg import sql

from tests.cluster import ROLE, Cluster

Rows = Union[Sequence[Sequence[Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Table:
    """A table that a test made.

    Attributes:
        name: Qualified and quoted, as text to be cast to regclass.
        schema, table: The same in parts, not quoted.
        parts: Names of the partitions, which are also the names of the tables on the segments.
        segments: For each partition the number of its segment.
        sizes: For each partition its number of rows, None where the server has routed them.
    """

    name: str
    schema: str
    table: str
    parts: list[str]
    segments: list[int]
    sizes: Optional[list[int]]


def quoted(*names: str) -> str:
    return ".".join('"%s"' % name.replace('"', '""') for name in names)


def as_rows(columns: Mapping[str, str], rows: Rows) -> list[Sequence[Any]]:
    """Rows as sequences; a mapping holds one array (or list) per column, the first axis being rows."""
    if not isinstance(rows, Mapping):
        return list(rows)
    lists = [rows[name].tolist() if hasattr(rows[name], "tolist") else list(rows[name]) for name in columns]
    return list(zip(*lists))


def copy(connection: psycopg.Connection, schema: str, table: str, names: Sequence[str], rows) -> None:
    statement = sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier(schema, table), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as stream:
        for row in rows:
            stream.write_row(row)


def definition(columns: Mapping[str, str]) -> sql.Composable:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns.items()
    )


class Maker:
    """Makes tables in one schema that exists on every node, as one role."""

    def __init__(self, cluster: Cluster, schema: str, role: str = ROLE):
        self.cluster, self.schema, self.role = cluster, schema, role
        self.count = 0

    def _name(self, name: Optional[str]) -> str:
        self.count += 1
        return name or "t%d" % self.count

    def local(self, columns: Mapping[str, str], rows: Rows = (), name: Optional[str] = None) -> Table:
        """An ordinary table on the coordinator."""
        name = self._name(name)
        with self.cluster.connect(self.role) as connection:
            table = sql.Identifier(self.schema, name)
            connection.execute(sql.SQL("create table {} ({})").format(table, definition(columns)))
            copy(connection, self.schema, name, list(columns), as_rows(columns, rows))
            connection.execute(sql.SQL("analyze {}").format(table))
        return Table(quoted(self.schema, name), self.schema, name, [], [], None)

    def sharded(
        self,
        columns: Mapping[str, str],
        rows: Rows = (),
        sizes: Optional[Sequence[int]] = None,
        segments: Optional[Sequence[int]] = None,
        name: Optional[str] = None,
        key: Optional[str] = None,
        bounds: Optional[Sequence[str]] = None,
        by: Optional[str] = None,
    ) -> Table:
        """A partitioned table on the coordinator; each partition is a foreign table on a segment.

        Args:
            columns: Name to type, in order.
            rows: Sequences of values, or a mapping from each column to its array.
            sizes: Rows of each partition, taken in order: rows 0 … sizes[0]-1 go to the first. The table is
                partitioned BY LIST on an added last column `shard` (0, 1, …). Default: all rows, evenly.
            segments: The segment number of each partition; default 1, 2, … (as many as `sizes` or `bounds`,
                else every segment of the cluster). A segment may hold several partitions.
            key: Instead of `sizes`: an existing column to partition on, BY HASH, rows routed by the server.
            bounds: With `key`: explicit bounds such as "for values in (1, 2)", one per partition.
            by: With `bounds`: "list" (default) or "range".
        """
        name = self._name(name)
        data = as_rows(columns, rows)
        columns = dict(columns)
        if segments is None:
            count = len(sizes or bounds or self.cluster.segments)
            segments = [1 + k % len(self.cluster.segments) for k in range(count)]
        count = len(segments)
        if key is None:
            if sizes is None:
                sizes = [len(data) // count + (k < len(data) % count) for k in range(count)]
            assert sum(sizes) == len(data), "sizes add up to %d, rows are %d" % (sum(sizes), len(data))
            columns["shard"] = "integer"
            key, by = "shard", "list"
            bounds = ["for values in (%d)" % k for k in range(count)]
        elif bounds is None:
            by = "hash"
            bounds = ["for values with (modulus %d, remainder %d)" % (count, k) for k in range(count)]
        parts = ["%s_%d" % (name, k + 1) for k in range(count)]

        with self.cluster.connect(self.role) as connection:
            parent = sql.Identifier(self.schema, name)
            connection.execute(
                sql.SQL("create table {} ({}) partition by {} ({})").format(
                    parent, definition(columns), sql.SQL(by or "list"), sql.Identifier(key)
                )
            )
            first = 0
            for k, (part, segment, bound) in enumerate(zip(parts, segments, bounds)):
                with self.cluster.connect(self.role, node=segment) as remote:
                    remote.execute(
                        sql.SQL("create table {} ({})").format(
                            sql.Identifier(self.schema, part), definition(columns)
                        )
                    )
                    if sizes is not None:
                        own = [[*row, k] for row in data[first : first + sizes[k]]]
                        copy(remote, self.schema, part, list(columns), own)
                        first += sizes[k]
                connection.execute(
                    sql.SQL(
                        "create foreign table {} partition of {} {} server {}"
                        " options (schema_name {}, table_name {})"
                    ).format(
                        sql.Identifier(self.schema, part), parent, sql.SQL(bound),
                        sql.Identifier("segment_%d" % segment), sql.Literal(self.schema), sql.Literal(part),
                    )  # fmt: skip
                )
            if sizes is None and data:
                copy(connection, self.schema, name, list(columns), data)
        return Table(
            quoted(self.schema, name), self.schema, name, parts, list(segments),
            None if sizes is None else list(sizes),
        )  # fmt: skip
