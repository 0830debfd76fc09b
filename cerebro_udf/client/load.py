"""Load nycflights13 (336,776 flights from New York in 2013) into tables that are sharded over segments.

Each table is partitioned BY HASH of the flight's number; each partition is a foreign table whose rows lie in an
ordinary table on one segment. Rows go straight to their segment, by one binary COPY per segment, all at once.
`flights` holds January to November, `flights_holdout` December.
"""

from __future__ import annotations

import csv
import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any, Callable, Iterator, Optional, Sequence

import psycopg
from psycopg import sql

PACKAGE = "nycflights13"
LATE_MINUTES = 15  # later than that on arrival is late
HOLDOUT_MONTH = 12

# The file's columns with their types here, between the row's number and `late`.
FILE_COLUMNS = {
    "year": "smallint", "month": "smallint", "day": "smallint",
    "dep_time": "smallint", "sched_dep_time": "smallint", "dep_delay": "smallint",
    "arr_time": "smallint", "sched_arr_time": "smallint", "arr_delay": "smallint",
    "carrier": "text", "flight": "integer", "tailnum": "text", "origin": "text", "dest": "text",
    "air_time": "smallint", "distance": "integer", "hour": "smallint", "minute": "smallint",
    "time_hour": "timestamp with time zone",
}  # fmt: skip
COLUMNS = {"id": "integer", **FILE_COLUMNS, "late": "boolean"}
KEY = "id"

COMMENTS = {
    "flights": "nycflights13: January to November 2013",
    "flights_holdout": "nycflights13: December 2013, held out",
}


@dataclass(frozen=True)
class Segment:
    """A segment as the current role reaches it: the foreign server, and the role's user mapping."""

    name: str
    address: dict[str, str]

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(**self.address)


def segments(connection: psycopg.Connection, count: Optional[int] = None) -> list[Segment]:
    """The foreign servers segment_1, segment_2, … that the current role has a user mapping for.

    Args:
        connection: To the coordinator.
        count: How many are wanted; default all.

    Raises:
        RuntimeError: there are fewer.
    """
    rows = connection.execute(
        "select s.srvname::text, o.name, o.value"
        " from pg_foreign_server s join pg_user_mappings m on m.srvid = s.oid,"
        " lateral (select split_part(x, '=', 1) as name, substr(x, strpos(x, '=') + 1) as value"
        "          from unnest(s.srvoptions || m.umoptions) x) o"
        " where s.srvname ~ '^segment_[0-9]+$' and m.usename = current_user"
        " and o.name in ('host', 'port', 'dbname', 'user', 'password')"
        " order by substr(s.srvname, 9)::int"
    ).fetchall()
    found: dict[str, dict[str, str]] = {}
    for server, name, value in rows:
        found.setdefault(server, {})[name] = value
    reachable = [Segment(name, address) for name, address in found.items() if "user" in address]
    if not reachable or len(reachable) < (count or 1):
        raise RuntimeError("this role can reach %d segments, %d are wanted" % (len(reachable), count or 1))
    return reachable[:count]


def read() -> Iterator[list[Any]]:
    """The flights in the file's order, as values of COLUMNS.

    The package is not imported (it would need pandas): only its file is read.
    """
    files = metadata.files(PACKAGE) or []
    path = next(file.locate() for file in files if file.name.startswith("flights.csv"))
    integers = [place for place, kind in enumerate(FILE_COLUMNS.values()) if kind.endswith("int")
                or kind == "integer"]  # fmt: skip
    tailnum, arrival = [list(FILE_COLUMNS).index(name) for name in ("tailnum", "arr_delay")]
    times: dict[str, datetime] = {}
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        header = next(lines)
        if header != list(FILE_COLUMNS):
            raise RuntimeError("flights.csv holds other columns than expected: %s" % header)
        for number, row in enumerate(lines, 1):
            values: list[Any] = [number, *row]
            for place in integers:
                text = row[place]
                values[place + 1] = None if text == "NA" else int(text)
            if row[tailnum] == "NA":
                values[tailnum + 1] = None
            hour = row[-1]
            if hour not in times:
                times[hour] = datetime.fromisoformat(hour.replace("Z", "+00:00"))
            values[-1] = times[hour]
            delay = values[arrival + 1]
            values.append(None if delay is None else delay > LATE_MINUTES)
            yield values


def marker(table: str, targets: Sequence[Segment]) -> str:
    """What a completely loaded table's comment says: written last, so that half a load doesn't count."""
    return "%s; complete on %s" % (COMMENTS[table], ", ".join(target.name for target in targets))


def is_loaded(connection: psycopg.Connection, table: str, targets: Sequence[Segment]) -> bool:
    """Whether this loader has loaded the table onto exactly these segments.

    Raises:
        RuntimeError: a table of that name is there, but not from this loader.
    """
    found = connection.execute(
        "select to_regclass(%s) is not null, obj_description(to_regclass(%s))", [table, table]
    ).fetchone()
    there, comment = found or (False, None)
    if there and not (comment or "").startswith("nycflights13"):
        raise RuntimeError("there is a table %s already, which is not nycflights13" % table)
    return comment == marker(table, targets)


def drop_parts(connection: psycopg.Connection, table: str) -> None:
    """Drop what an earlier load left on any segment, also on one that is not used any more."""
    for target in segments(connection):
        with target.connect() as remote:
            left = remote.execute(
                "select tablename from pg_tables where schemaname = current_user and tablename ~ %s",
                ["^%s_[0-9]+$" % table],
            ).fetchall()
            for (part,) in left:
                remote.execute(sql.SQL("drop table {}").format(sql.Identifier(remote.info.user, part)))


def create(connection: psycopg.Connection, table: str, targets: Sequence[Segment]) -> None:
    """(Re-)create the partitioned table and, on each segment, the table of its partition, empty.

    On a segment the table lies in a schema named as the role, which the role owns.
    """
    role = connection.info.user
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in COLUMNS.items()
    )
    drop_parts(connection, table)
    with connection.transaction():
        connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(table)))
        connection.execute(
            sql.SQL("create table {} ({}) partition by hash ({})").format(
                sql.Identifier(table), columns, sql.Identifier(KEY)
            )
        )
        comment = sql.SQL("comment on table {} is {}")
        connection.execute(comment.format(sql.Identifier(table), sql.Literal("nycflights13: loading")))
        for number, target in enumerate(targets):
            part = "%s_%d" % (table, number + 1)
            connection.execute(
                sql.SQL(
                    "create foreign table {} partition of {} for values with (modulus {}, remainder {})"
                    " server {} options (schema_name {}, table_name {}, fetch_size '10000')"
                ).format(
                    sql.Identifier(part), sql.Identifier(table), sql.Literal(len(targets)),
                    sql.Literal(number), sql.Identifier(target.name), sql.Literal(role), sql.Literal(part),
                )  # fmt: skip
            )
            with target.connect() as remote:
                remote.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(role)))
                relation = sql.Identifier(role, part)
                remote.execute(sql.SQL("create table {} ({})").format(relation, columns))


def route(connection: psycopg.Connection, table: str, first: int, last: int, count: int) -> list[int]:
    """For each number from first to last the partition (0 … count-1) that the server's hash gives it."""
    row = connection.execute(
        "select array_agg((select k from generate_series(0, %(count)s::int - 1) k"
        "                  where satisfies_hash_partition(%(table)s::regclass, %(count)s::int, k, id)) order by id)"
        " from generate_series(%(first)s::int, %(last)s::int) id",
        {"count": count, "table": table, "first": first, "last": last},
    ).fetchone()
    return row[0]


def send(target: Segment, part: str, rows: Sequence[Sequence[Any]]) -> None:
    """Copy rows into one segment's table."""
    with target.connect() as remote, remote.cursor() as cursor:
        relation = sql.Identifier(remote.info.user, part)
        with cursor.copy(sql.SQL("copy {} from stdin (format binary)").format(relation)) as stream:
            stream.set_types([kind.replace("timestamp with time zone", "timestamptz") for kind in
                              COLUMNS.values()])  # fmt: skip
            for row in rows:
                stream.write_row(row)
        cursor.execute(sql.SQL("analyze {}").format(relation))


def load(
    connection: psycopg.Connection,
    count: Optional[int] = None,
    say: Callable[[str], object] = print,
    rows: Optional[Sequence[list[Any]]] = None,
) -> dict[str, int]:
    """Load both tables, or find them loaded.

    Args:
        connection: To the coordinator, autocommit, as the role that shall own the tables.
        count: Number of segments; default all that the role can reach.
        say: Is told what happens.
        rows: Values of COLUMNS, numbered from 1; default the flights of the package.

    Returns:
        Rows that were loaded per table; empty if all was there.
    """
    targets = segments(connection, count)
    missing = [table for table in COMMENTS if not is_loaded(connection, table, targets)]
    if not missing:
        say("flights and flights_holdout are loaded already")
        return {}
    flights = list(read()) if rows is None else list(rows)
    month = list(COLUMNS).index("month")
    loaded = {}
    for table in missing:
        create(connection, table, targets)
        places = route(connection, table, 1, len(flights), len(targets))
        shards: list[list[Sequence[Any]]] = [[] for _ in targets]
        for row, place in zip(flights, places):
            if (row[month] == HOLDOUT_MONTH) == (table == "flights_holdout"):
                shards[place].append(row)
        with ThreadPoolExecutor(len(targets)) as pool:
            parts = ["%s_%d" % (table, number + 1) for number in range(len(targets))]
            list(pool.map(send, targets, parts, shards))
        mark = sql.SQL("comment on table {} is {}")
        connection.execute(mark.format(sql.Identifier(table), sql.Literal(marker(table, targets))))
        loaded[table] = sum(map(len, shards))
        sizes = ", ".join("%s %s" % (t.name, format(len(s), ",")) for t, s in zip(targets, shards))
        say("%s: %s rows (%s)" % (table, format(loaded[table], ","), sizes))
    return loaded
