"""The doctor finds what keeps a role from training, and prints the command that mends it: the tests run that command."""

from __future__ import annotations

import subprocess

import psycopg
import pytest
from psycopg import sql

from scripts import cluster as embedded
from tests import requirements as requires
from tests.cluster import ADMIN, ROLE
from tests.session import POINTS, Database, points

pytestmark = requires.segments(3)

ITEMS = {"server", "extension", "package", "python", "tensorflow", "keras", "numpy", "safetensors", "cores", "memory"}


@pytest.fixture
def conn(cluster):
    """A connection of its own: a mapping is read anew by every call, warm links are not the question here."""
    with cluster.connect() as connection:
        yield connection


def checks(connection) -> list[tuple]:
    return connection.execute("select node, item, ok, value, repair from cerebro.doctor()").fetchall()


def failures(connection) -> list[tuple]:
    return [check for check in checks(connection) if not check[2]]


def only_failure(connection) -> tuple:
    """(node, item, value, repair) of the one check that fails."""
    found = failures(connection)
    assert len(found) == 1, found
    node, item, _, value, repair = found[0]
    return node, item, value, repair


def run_repair(cluster, repair: str, node: int) -> None:
    """Run what the doctor printed: shell as it stands, SQL in psql with the password that it asks for.

    What only an administrator may run is run by one.
    """
    if repair.startswith("psql "):
        path = cluster.embedded.tool("psql").rpartition("/")[0]
        environment = {"PGPASSWORD": cluster.node(node).server.password(ADMIN), "PATH": path + ":/usr/bin:/bin"}
        done = subprocess.run(repair, shell=True, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return
    for line in repair.split("\n"):
        role = ADMIN if line.startswith(("GRANT", "ALTER SERVER")) else ROLE
        password = cluster.node(node).server.password(ROLE)
        shown = cluster.psql(line, "-v", "password=" + password, "-v", "ON_ERROR_STOP=1", role=role)
        assert "ERROR" not in shown, shown


def test_doctor_is_clean_and_says_what_every_node_has(cluster, conn):
    found = checks(conn)
    assert failures(conn) == []
    assert all(repair is None for *_, repair in found)
    by_node = {}
    for node, item, _, value, _ in found:
        by_node.setdefault(node, {})[item] = value
    assert set(by_node) == {"coordinator", "cerebro_self"} | {node.name for node in cluster.segments}
    assert set(by_node["coordinator"]) == ITEMS | {"psycopg"}
    for node in cluster.segments:
        assert set(by_node[node.name]) == ITEMS | {"reachable"}
        assert by_node[node.name]["reachable"] == "as tester at 127.0.0.1:%d/cerebro" % node.port
        assert by_node[node.name]["server"].startswith(node.execute("show server_version")[0][0])
        assert int(by_node[node.name]["cores"]) >= 1
        assert by_node[node.name]["tensorflow"].count(".") == 2


def test_doctor_starts_no_tensorflow_and_leaves_no_session(cluster, conn):
    conn.execute("select * from cerebro.doctor()")
    query = "select count(*) from pg_stat_activity where application_name = 'cerebro doctor' and state = 'active'"
    assert all(node.execute(query) == [(0,)] for node in cluster.nodes)
    maps = open("/proc/%d/maps" % conn.info.backend_pid).read()
    assert "libtensorflow" not in maps


@pytest.fixture
def broken(cluster):
    """Runs a statement as superuser on a node; restores mappings, servers and extensions afterwards, whatever happened."""

    def run(statement: str, node: int = 0) -> None:
        cluster.node(node).execute(statement)

    yield run
    for segment in cluster.segments:
        segment.execute("set client_min_messages = warning; create extension if not exists cerebro cascade")
    with cluster.connect(ADMIN) as admin:
        options = admin.execute("select srvoptions::text from pg_foreign_server where srvname = 'cerebro_self'").fetchone()
        if "hostaddr=" in options[0]:
            admin.execute("alter server cerebro_self options (drop hostaddr)")
        for server in ("segment_2", "cerebro_self"):
            admin.execute("drop user mapping if exists for %s server %s" % (ROLE, server))
    cluster.embedded._links([ROLE])


@pytest.mark.parametrize("server", ["segment_2", "cerebro_self"])
@pytest.mark.parametrize(
    "fault",
    [
        "drop user mapping for tester server {0}",
        "alter user mapping for tester server {0} options (drop password)",
        "alter user mapping for tester server {0} options (set password 'wrong')",
        "alter user mapping for tester server {0} options (set user 'postgres')",
    ],
    ids=["no mapping", "no password", "wrong password", "another user"],
)
def test_mapping(cluster, conn, broken, server, fault):
    broken(fault.format(server))
    node, item, value, repair = only_failure(conn)
    assert (node, item) == (server, "reachable") and value
    run_repair(cluster, repair, 2 if server == "segment_2" else 0)
    assert failures(conn) == []


def test_usage_of_cerebro_self(cluster, conn, broken):
    broken("revoke usage on foreign server cerebro_self from public, tester; drop user mapping for tester server cerebro_self")
    try:
        node, item, value, repair = only_failure(conn)
        assert (node, item) == ("cerebro_self", "reachable")
        assert len(repair.split("\n")) == 2
        run_repair(cluster, repair, 0)
        assert failures(conn) == []
    finally:
        broken("grant usage on foreign server cerebro_self to public")


@pytest.mark.parametrize(
    "fault",
    [
        "set port '1'", "drop port", "drop host", "drop dbname", "set dbname 'postgres'", "set dbname 'nowhere'",
        "set port '{segment}'", "add hostaddr '127.0.0.2'",
    ],
)  # fmt: skip
def test_cerebro_self_that_leads_elsewhere(cluster, conn, broken, fault):
    broken("alter server cerebro_self options (%s)" % fault.format(segment=cluster.node(1).port))
    node, item, value, repair = only_failure(conn)
    assert (node, item) == ("cerebro_self", "reachable") and value
    assert repair.startswith("ALTER SERVER cerebro_self OPTIONS (")
    run_repair(cluster, repair, 0)
    assert failures(conn) == []


def test_extension_missing_on_a_segment(cluster, conn, broken):
    broken("drop extension cerebro cascade", 2)
    node, item, value, repair = only_failure(conn)
    assert (node, item, value) == ("segment_2", "extension", "cerebro is not installed")
    run_repair(cluster, repair, 2)
    assert failures(conn) == []


def test_extension_of_another_version_on_a_segment(cluster, conn, broken):
    broken("update pg_catalog.pg_extension set extversion = '0.0.1' where extname = 'cerebro'", 2)
    try:
        node, item, value, repair = only_failure(conn)
        assert (node, item, value) == ("segment_2", "extension", "0.0.1")
        assert "ALTER EXTENSION cerebro UPDATE TO" in repair and "port=%d" % cluster.node(2).port in repair
    finally:
        from cerebro_udf import __version__

        cluster.node(2).execute(
            "update pg_catalog.pg_extension set extversion = %s where extname = 'cerebro'", [__version__]
        )


def test_segment_that_is_down_is_one_failure_of_many_checks(cluster, conn):
    port = embedded.free_port()
    with cluster.connect(ADMIN) as admin:
        admin.execute(
            "create server down foreign data wrapper postgres_fdw options (host '127.0.0.1', port '%d', dbname 'cerebro');"
            "grant usage on foreign server down to tester;"
            "create user mapping for tester server down options (user 'tester', password 'x')" % port
        )
        try:
            node, item, value, repair = only_failure(conn)
        finally:
            admin.execute("drop server down cascade")
    assert (node, item) == ("down", "reachable")
    assert "Connection refused" in value and "127.0.0.1:%d" % port in repair
    assert failures(conn) == []


def test_server_that_the_role_may_not_use_is_not_checked(cluster, conn):
    with cluster.connect(ADMIN) as admin:
        admin.execute("create server private foreign data wrapper postgres_fdw options (host '127.0.0.1', dbname 'x')")
        try:
            assert "private" not in {check[0] for check in checks(conn)}
        finally:
            admin.execute("drop server private")


@pytest.fixture
def patched(cluster):
    """`patched(code)`: a session of the role in whose Python a superuser has run some code."""
    with cluster.connect(ADMIN) as connection:

        def patch(code: str):
            connection.execute("do language plpython3u $do$%s$do$" % code)
            connection.execute("set session authorization %s" % ROLE)
            return connection

        yield patch


def test_missing_psycopg_is_one_failure_of_many_checks(patched):
    connection = patched("import sys; sys.modules['psycopg'] = None")
    node, item, value, repair = only_failure(connection)
    assert (node, item) == ("coordinator", "psycopg") and "psycopg" in value
    assert repair.startswith('pip install "psycopg[binary]"')
    assert {check[1] for check in checks(connection)} == ITEMS | {"psycopg"}


def test_server_that_breaks_while_it_is_asked_is_one_failure_of_many_checks(patched, cluster):
    connection = patched(
        "from cerebro_udf import catalog, errors\n"
        "def fail(*arguments): raise errors.SegmentUnreachable('lost', None, 'mend it')\n"
        "catalog.leads_home = fail"
    )
    assert only_failure(connection) == ("cerebro_self", "reachable", "lost", "mend it")
    assert {check[0] for check in checks(connection)} >= {node.name for node in cluster.segments}


@pytest.mark.parametrize("where", ["cerebro_udf.catalog.leads_home", "cerebro_udf.coordinator.links.Link.open"])
def test_client_that_has_gone_is_no_failure_of_a_server(patched, where):
    connection = patched(
        "import importlib\nfrom cerebro_udf.errors import ClientGone\n"
        "import cerebro_udf.catalog, cerebro_udf.coordinator.links as links\n"
        "def gone(*arguments): raise ClientGone('gone', None, 'connect again')\n"
        + ("links.Link.open = gone" if where.endswith("open") else "cerebro_udf.catalog.leads_home = gone")
    )
    with pytest.raises(psycopg.Error) as caught:
        checks(connection)
    assert caught.value.sqlstate == "08003"


def test_repair_of_a_database_with_an_odd_name_is_one_command(cluster, conn):
    name = "odd 'n\\ame\"; $(false) `false`"
    database = Database(cluster, 2, name)
    try:
        with cluster.connect(ADMIN) as admin:
            admin.execute(
                sql.SQL(
                    "create server odd foreign data wrapper postgres_fdw options (host '127.0.0.1', port {}, dbname {});"
                    "grant usage on foreign server odd to tester;"
                    "create user mapping for tester server odd options (user 'tester', password {})"
                ).format(str(cluster.node(2).port), name, cluster.node(2).server.password(ROLE))
            )
            try:
                node, item, _, repair = only_failure(conn)
                assert (node, item) == ("odd", "extension")
                run_repair(cluster, repair, 2)
                assert failures(conn) == []
            finally:
                admin.execute("drop server odd cascade")
    finally:
        database.drop()


# ---- segments()


def test_segments_shows_shards_and_sizes(session, cluster):
    table = session.sharded(POINTS, points(60), sizes=[40, 20, 0])
    for part, number in zip(table.parts, table.segments):
        with cluster.connect(ROLE, node=number) as there:
            there.execute('analyze "%s"."%s"' % (session.schema, part))
    found = session.rows("select * from cerebro.segments(%s::text::regclass)", table.name)
    assert [(row[0], row[1], row[2], row[4]) for row in found] == [
        ("segment_%d" % (k + 1), k, "127.0.0.1:%d/cerebro" % cluster.node(k + 1).port, rows) for k, rows in enumerate([40, 20, 0])
    ]
    assert [row[3] for row in found] == [["%s.%s" % (session.schema, part)] for part in table.parts]
    assert found[0][5] >= 8192 and found[2][5] < found[0][5]


def test_segments_of_a_local_table(session, cluster):
    table = session.local(POINTS, points(60))
    found = session.rows("select * from cerebro.segments(%s::text::regclass)", table.name)
    assert [row[0] for row in found] == ["local_%d" % (k + 1) for k in range(len(found))]
    assert {row[2] for row in found} == {"127.0.0.1:%d/cerebro" % cluster.coordinator.port}
    assert sum(row[4] for row in found) == pytest.approx(60, abs=len(found))


def test_segments_of_a_view_are_those_of_a_fit_and_have_no_bytes(session, cluster, every_core):
    rows = "select n::real as a, n % 2 = 0 as label, repeat('x', 500) as wide from generate_series(1, 5000) n"
    session.conn.execute("create view many as " + rows)
    view = session.schema + ".many"
    with cluster.connect() as connection:
        query = "select segment, rows_estimate > 0, bytes from cerebro.segments(%s::text::regclass)"
        found = connection.execute(query, [view]).fetchall()
    assert len(found) > 1 and found == [("local_%d" % (k + 1), True, None) for k in range(len(found))]


def test_segments_of_tables_whose_names_hold_only(session):
    columns = {"a": "real"}
    for table in (session.local(columns, name="read only log"), session.sharded(columns, name="only read only", segments=[1])):
        found = session.rows("select relations from cerebro.segments(%s::text::regclass)", table.name)
        expected = table.parts[0] if table.parts else table.table
        assert found == [(['%s."%s"' % (session.schema, expected)],)]
