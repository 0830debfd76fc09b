"""What every engine guarantees: each row of a table is in exactly one shard, shards are numbered alike every time,
and a segment is reached as the caller. A new engine joins by a further name in ENGINES.
"""

from __future__ import annotations

import itertools
import json
import uuid

import psycopg
import pytest

from tests import requirements as requires
from tests.cluster import ADMIN, ROLE
from tests.session import Session

pytestmark = requires.segments(3)

ENGINES = {"postgres": ("cerebro_udf.engines.postgres", "PostgresEngine")}
ROWS = 3_000  # of 200 bytes and more: many blocks of a local table

LOOK = """
create function public.{name}(source text, columns text[], workers int) returns json language plpython3u as $$
import json
from cerebro_udf.coordinator.source import describe
from {module} import {engine}
engine = {engine}(plpy)
table = describe(plpy, source, columns)
shards = engine.shards(table, workers)
stored = json.loads(json.dumps([shard.plan() for shard in shards]))
assert [again.reads for again in engine.shards_again(table, stored)] == [shard.reads for shard in shards]
address = lambda server: {{key: getattr(engine.address(server), key) for key in ("host", "port", "dbname", "user", "needs_password")}}
return json.dumps([
    dict(vars(shard), reads=[read.spec() for read in shard.reads], address=address(shard.server)) for shard in shards
])
$$
"""


@pytest.fixture(scope="module", params=ENGINES)
def look(request, cluster):
    """The SQL function that asks the engine, as whoever calls it."""
    module, engine = ENGINES[request.param]
    name = "look_" + uuid.uuid4().hex[:6]
    with cluster.connect(ADMIN) as admin:
        admin.execute(LOOK.format(name=name, module=module, engine=engine))
        yield "public." + name
        admin.execute("drop function public.%s(text, text[], int)" % name)


def shards(connection, look: str, table: str, workers=None, columns=("id", "x")) -> list[dict]:
    return connection.execute("select %s(%%s, %%s, %%s)" % look, [table, list(columns), workers]).fetchone()[0]


def read(cluster, role: str, shard: dict) -> list[int]:
    """The ids of a shard, read where it lies, as the role."""
    address = shard["address"]
    node = next(n for n in cluster.nodes if str(n.port) == address["port"])
    found = []
    with node.connect(role) as connection:
        for part in shard["reads"]:
            query = 'select "%s" from %s' % (part["columns"]["id"].replace('"', '""'), part["relation"])
            found += connection.execute(query + (" where " + part["where"] if part["where"] else "")).fetchall()
    return [number for (number,) in found]


def complete(session, look: str, table: str, workers=None) -> list[dict]:
    """The shards of a table, after a check that each of its rows is in exactly one."""
    expected = sorted(number for (number,) in session.rows("select id from " + table))
    found = shards(session.conn, look, table, workers)
    assert [shard["number"] for shard in found] == list(range(len(found)))
    parts = [read(session.cluster, session.role, shard) for shard in found]
    assert sorted(itertools.chain.from_iterable(parts)) == expected
    assert len({shard["segment"] for shard in found}) == len(found)
    with session.cluster.connect(session.role) as again:
        assert shards(again, look, table, workers) == found
    return [dict(shard, ids=sorted(ids)) for shard, ids in zip(found, parts)]


COLUMNS = {"id": "integer", "x": "real"}


def rows(count: int, first: int = 0) -> list:
    return [(k, k / 7) for k in range(first, first + count)]


def fill(session, table: str, count: int = ROWS, first: int = 0) -> None:
    session.conn.execute(
        "insert into %s (id, x, pad) select i, i / 7.0, repeat('x', 200) from generate_series(%s, %s) i"
        % (table, first, first + count - 1)
    )


def local(session, suffix: str = "", columns: str = "id int, x real, pad text") -> str:
    name = "%s.%s" % (session.schema, session.name("local"))
    session.conn.execute("create table %s (%s) %s" % (name, columns, suffix))
    return name


# ---- foreign


def test_one_foreign_partition_per_segment(session, look):
    table = session.sharded(COLUMNS, rows(100), sizes=[50, 49, 1])
    found = complete(session, look, table.name)
    assert [(shard["segment"], len(shard["ids"])) for shard in found] == [("segment_1", 50), ("segment_2", 49), ("segment_3", 1)]


def test_partitions_of_one_server_are_one_shard(session, look):
    table = session.sharded(COLUMNS, rows(60), sizes=[10, 20, 0, 25, 5], segments=[1, 2, 1, 1, 2])
    found = complete(session, look, table.name)
    assert [(shard["server"], len(shard["ids"]), len(shard["reads"])) for shard in found] == [
        ("segment_1", 35, 3), ("segment_2", 25, 2),
    ]  # fmt: skip


def test_partitions_of_partitions(session, look):
    parent = local(session, "partition by range (id)", "id int, x real")
    session.conn.execute("create table {0}_low partition of {0} for values from (0) to (50) partition by hash (id)".format(parent))
    leaves = []
    for k in range(2):
        there = session.sharded(COLUMNS, key="id", segments=[k + 1])
        leaves.append(there)
        session.conn.execute(
            "create foreign table {0}_low_{1} partition of {0}_low for values with (modulus 2, remainder {1})"
            " server segment_{2} options (schema_name '{3}', table_name '{4}')".format(
                parent, k, k + 1, session.schema, there.parts[0]
            )
        )
    there = session.sharded(COLUMNS, key="id", segments=[2])
    session.conn.execute(
        "create foreign table {0}_high partition of {0} for values from (50) to (100) server segment_2"
        " options (schema_name '{1}', table_name '{2}')".format(parent, session.schema, there.parts[0])
    )
    session.conn.execute("insert into %s select i, i from generate_series(0, 99) i" % parent)
    found = complete(session, look, parent)
    assert [shard["server"] for shard in found] == ["segment_2", "segment_1"]  # by the name of the first leaf
    assert sum(len(shard["ids"]) for shard in found) == 100


def test_foreign_table_alone(session, look):
    table = session.sharded(COLUMNS, rows(30), sizes=[30], segments=[2])
    found = complete(session, look, "%s.%s" % (session.schema, table.parts[0]))
    assert [(shard["server"], len(shard["ids"])) for shard in found] == [("segment_2", 30)]


def test_foreign_and_local_partitions_together(session, look):
    table = session.sharded(COLUMNS, rows(40), sizes=[25, 15], segments=[1, 3])
    session.conn.execute("create table {0} partition of {1} for values in (7)".format(table.name[:-1] + '_here"', table.name))
    session.conn.execute("insert into %s (id, x, shard) select i, 0, 7 from generate_series(100, 4000) i" % table.name)
    found = complete(session, look, table.name, 2)
    assert [shard["segment"] for shard in found] == ["segment_1", "segment_3", "local_1", "local_2"]
    assert [shard["server"] for shard in found][2:] == ["cerebro_self"] * 2


def test_foreign_names_that_differ(session, look):
    with session.cluster.connect(ROLE, node=1) as there:
        there.execute('create table %s."Other . Table" ("I""d" int, y real)' % session.schema)
        there.execute('insert into %s."Other . Table" select i, i from generate_series(1, 20) i' % session.schema)
    name = "%s.%s" % (session.schema, session.name("renamed"))
    session.conn.execute(
        "create foreign table %s (x real options (column_name 'y'), id int options (column_name 'I\"d'))"
        " server segment_1 options (schema_name '%s', table_name 'Other . Table')" % (name, session.schema)
    )
    found = complete(session, look, name)
    assert found[0]["reads"][0]["columns"] == {"id": 'I"d', "x": "y"}
    assert len(found[0]["ids"]) == 20


def test_remote_table_that_is_partitioned_itself(session, look):
    with session.cluster.connect(ROLE, node=2) as there:
        there.execute(
            "create table {0}.whole (id int, x real) partition by range (id);"
            "create table {0}.half_1 partition of {0}.whole for values from (0) to (10);"
            "create table {0}.half_2 partition of {0}.whole for values from (10) to (20);"
            "insert into {0}.whole select i, i from generate_series(0, 19) i".format(session.schema)
        )
    name = "%s.%s" % (session.schema, session.name("remote"))
    session.conn.execute(
        "create foreign table %s (id int, x real) server segment_2 options (schema_name '%s', table_name 'whole')"
        % (name, session.schema)
    )
    assert len(complete(session, look, name)[0]["ids"]) == 20


# ---- local


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["plain", "partitioned", "inherited", "materialized view"])
def test_local_rows_are_split_evenly_among_workers(session, look, kind, workers):
    table = LOCAL[kind](session)
    found = complete(session, look, table, workers)
    assert [shard["segment"] for shard in found] == ["local_%d" % (k + 1) for k in range(workers)]
    assert {shard["server"] for shard in found} == {"cerebro_self"}
    counts = [len(shard["ids"]) for shard in found]
    assert min(counts) > 0.7 * ROWS / workers


def plain(session) -> str:
    table = local(session)
    fill(session, table)
    return table


def partitioned(session) -> str:
    table = local(session, "partition by range (id)")
    for name, bounds in {"a": "(0) to (100)", "b": "(100) to (2500)", "c": "(2500) to (2500000)", "empty": "(-9) to (0)"}.items():
        session.conn.execute("create table {0}_{1} partition of {0} for values from {2}".format(table, name, bounds))
    fill(session, table)
    return table


def inherited(session) -> str:
    """A parent with rows of its own, and a diamond: the last table inherits from two that inherit from the parent."""
    table = local(session)
    session.conn.execute(
        "create table {0}_a () inherits ({0}); create table {0}_b (more int) inherits ({0});"
        "create table {0}_ab (y int) inherits ({0}_a, {0}_b)".format(table)
    )
    for k, suffix in enumerate(["", "_a", "_b", "_ab"]):
        fill(session, table + suffix, ROWS // 4, k * (ROWS // 4))
    return table


def materialized(session) -> str:
    table = "%s.%s" % (session.schema, session.name("seen"))
    session.conn.execute("create materialized view %s as select * from %s" % (table, plain(session)))
    return table


LOCAL = {"plain": plain, "partitioned": partitioned, "inherited": inherited, "materialized view": materialized}


def test_fewer_blocks_than_workers(session, look):
    table = local(session)
    fill(session, table, 5)
    assert len(complete(session, look, table, 4)) == 1


def test_empty_local_table_is_one_empty_shard(session, look):
    assert [shard["ids"] for shard in complete(session, look, local(session), 3)] == [[]]


def test_rows_that_come_after_planning_are_in_a_shard(session, look):
    table = plain(session)
    found = shards(session.conn, look, table, 3)
    fill(session, table, 500, ROWS)
    ids = sorted(itertools.chain.from_iterable(read(session.cluster, ROLE, shard) for shard in found))
    assert ids == list(range(ROWS + 500))


def test_dropped_and_added_columns(session, look):
    table = local(session, columns="gone int, id int, x real, pad text")
    session.conn.execute("alter table %s drop gone" % table)
    fill(session, table)
    complete(session, look, table, 2)


def test_workers_default_to_the_cores(session, look):
    assert 1 <= len(complete(session, look, plain(session))) <= 8


# ---- who asks


@pytest.fixture(scope="module")
def other(cluster, session):
    """A role without a schema of its own that may use the shared one."""
    role = "other_" + uuid.uuid4().hex[:6]
    cluster.add_role(role)
    cluster.coordinator.execute("grant usage on schema %s to %s" % (session.schema, role))
    made = Session(cluster, session.schema, role)
    try:
        yield made
    finally:
        made.close()
        cluster.drop_role(role)


def test_address_is_that_of_the_caller(session, other, look, cluster):
    table = session.sharded(COLUMNS, rows(6))
    session.conn.execute("grant select on %s to %s" % (table.name, other.role))
    for who in (session, other):
        for shard, node in zip(shards(who.conn, look, table.name), cluster.segments):
            assert shard["address"] == {
                "host": "127.0.0.1", "port": str(node.port), "dbname": "cerebro", "user": who.role, "needs_password": True,
            }  # fmt: skip


def test_column_rights_alone_are_enough(session, other, look):
    """System columns need a right on the whole table, and splitting a table asks for ctid."""
    for table in (plain(session), partitioned(session)):
        session.conn.execute("grant select (id, x) on %s to %s" % (table, other.role))
        found = complete(other, look, table, 3)
        assert sum(len(shard["ids"]) for shard in found) == ROWS


def test_policies_hold_in_every_shard(session, other, look):
    for make in LOCAL.values():
        if make is materialized:
            continue
        table = make(session)
        session.conn.execute("grant select on %s to %s" % (table, other.role))
        session.conn.execute("alter table %s enable row level security" % table)
        session.conn.execute("create policy few on %s using (id %% 10 = 3)" % table)
        found = complete(other, look, table, 3)
        assert sum(len(shard["ids"]) for shard in found) == ROWS // 10


# ---- what cannot be read


def test_other_wrappers_are_refused_by_name(session, look):
    name = session.name("file")
    with session.cluster.connect(ADMIN) as admin:
        admin.execute(
            "create foreign data wrapper {0}; create server {0} foreign data wrapper {0};"
            "create table {1}.{0} (id int, x real) partition by range (id); grant select on {1}.{0} to {2};"
            "create foreign table {1}.{0}_1 partition of {1}.{0} default server {0}".format(
                name, session.schema, ROLE
            )
        )
        try:
            with pytest.raises(psycopg.Error) as caught:
                shards(session.conn, look, "%s.%s" % (session.schema, name))
        finally:
            admin.execute("drop foreign data wrapper %s cascade" % name)
    assert caught.value.diag.sqlstate == "0A000" or "NotSupported" in str(caught.value)
    assert "is not of postgres_fdw" in caught.value.diag.message_primary


def test_partitioned_table_without_partitions_is_refused(session, look):
    with pytest.raises(psycopg.Error) as caught:
        shards(session.conn, look, local(session, "partition by range (id)", "id int, x real"))
    assert caught.value.diag.sqlstate == "0A000" and "has no partitions" in caught.value.diag.message_primary


def test_engine_names_its_features(cluster, look, request):
    from cerebro_udf.engines.base import Engine

    with cluster.connect(ADMIN) as admin:
        for module, engine in ENGINES.values():
            admin.execute(
                "create function pg_temp.features() returns json language plpython3u as"
                " 'import json; from %s import %s as e; return json.dumps(sorted(e.features))'" % (module, engine)
            )
            found = admin.execute("select pg_temp.features()").fetchone()[0]
            assert set(found) <= Engine.FEATURES and found == json.loads(json.dumps(found))
