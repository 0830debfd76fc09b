"""The embedded cluster and the fixtures that other tests stand on."""

from __future__ import annotations

import os
import stat

import numpy as np
import psycopg
import pytest

from tests import requirements as requires
from tests.cluster import ADMIN, ROLE, poll_until


@pytest.mark.parametrize("role", [ADMIN, ROLE])
def test_nobody_gets_in_without_a_password(cluster, role):
    for node in cluster.nodes:
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            node.connect(role, password="")


def test_socket_asks_for_a_password_too(cluster):
    target = {"host": str(cluster.embedded.home / "run"), "port": cluster.coordinator.port}
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(**target, user=ADMIN, password="", dbname="postgres")


def test_every_authentication_rule_is_scram(cluster):
    for node in cluster.nodes:
        rules = node.execute("select distinct auth_method from pg_hba_file_rules")
        assert rules == [("scram-sha-256",)]


def test_passwords_differ_and_only_the_owner_reads_them(cluster):
    file = cluster.embedded.home / "state.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    passwords = [p for entry in cluster.embedded.state["nodes"] for p in entry["passwords"].values()]
    assert len(set(passwords)) == len(passwords)


def test_servers_run_without_privileges(cluster):
    for node in cluster.nodes:
        assert os.stat("/proc/%d" % node.pid).st_uid != 0


def test_ordinary_role_has_no_special_rights(cluster):
    for node in cluster.nodes:
        rights = node.execute(
            "select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication"
            " from pg_roles where rolname = %s", [ROLE]
        )  # fmt: skip
        assert rights == [(False,)]


def test_server_sees_package_and_libraries(cluster, admin):
    admin.execute(
        "create function pg_temp.look() returns text language plpython3u as"
        " 'import cerebro_udf, numpy, psycopg; return cerebro_udf.__version__'"
    )
    from cerebro_udf import __version__

    assert admin.execute("select pg_temp.look()").fetchone() == (__version__,)


def test_starting_again_changes_nothing(cluster):
    before = [(node.name, node.port, node.pid) for node in cluster.nodes]
    cluster.embedded.start()
    assert [(node.name, node.port, node.pid) for node in cluster.nodes] == before


def test_distribution_is_left_alone(cluster):
    server_folder = cluster.coordinator.execute("select setting from pg_config where name = 'SHAREDIR'")[0][0]
    assert server_folder.startswith(str(cluster.embedded.home))
    distribution = cluster.embedded._real["share"] / "extension"
    assert not (distribution / "cerebro.control").is_symlink()


@requires.segments(3)
def test_sharded_table_has_the_sizes_asked_for(conn, sharded):
    rows = {"id": np.arange(101), "x": np.ones((101, 4), np.float32), "label": np.arange(101) % 2}
    table = sharded({"id": "integer", "x": "real[]", "label": "integer"}, rows, sizes=[100, 0, 1])
    assert conn.execute("select count(*), sum(id) from " + table.name).fetchone() == (101, 5050)
    counts = [conn.execute("select count(*) from " + part).fetchone()[0] for part in table.parts]
    assert counts == [100, 0, 1]
    assert table.segments == [1, 2, 3]


@requires.segments(2)
def test_hash_and_bounds_are_routed_by_the_server(conn, sharded):
    rows = [(k, "é%d" % k) for k in range(50)]
    hashed = sharded({"id": "integer", "Étiquette": "text"}, rows, key="id", segments=[1, 2], name='o"d.d')
    assert conn.execute('select count(distinct "Étiquette") from ' + hashed.name).fetchone() == (50,)
    bounds = ["for values from (minvalue) to (10)", "for values from (10) to (maxvalue)"]
    ranged = sharded({"id": "integer", "t": "text"}, rows, key="id", bounds=bounds, by="range")
    assert [conn.execute("select count(*) from " + p).fetchone()[0] for p in ranged.parts] == [10, 40]


def test_local_table(conn, tables):
    table = tables.local({"a": "integer", "b": "text"}, [(1, "x"), (2, None)])
    assert conn.execute("select count(a), count(b) from " + table.name).fetchone() == (2, 1)


def test_role_factory_makes_roles_that_reach_the_segments(cluster, make_role):
    name = make_role('Odd "rôle"')
    with cluster.connect(name) as connection:
        assert connection.execute("select current_user::text").fetchone() == (name,)
        found = connection.execute(
            "select count(*) from pg_user_mappings where usename = %s and umoptions is not null", [name]
        )
        assert found.fetchone() == (len(cluster.segments) + 1,)


def test_poll_until_gives_the_last_result():
    with pytest.raises(AssertionError, match="last result: 0"):
        poll_until(lambda: 0, deadline=0.05)
