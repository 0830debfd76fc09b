"""scripts/cluster.py by its commands, on a copy of the project whose SQL a test may change."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import psycopg
import pytest

from scripts import cluster as embedded
from tests.project import Project


@pytest.fixture(scope="module")
def project():
    made = Project(Path(tempfile.mkdtemp(prefix="cerebro-project-")))
    try:
        made.run("start", "--segments", "1", "--no-fsync")
        yield made
    finally:
        made.close()


def test_url_is_the_demo_roles_and_works(project):
    with psycopg.connect(project.run("url").strip()) as connection:
        assert connection.execute("select current_user::text, pg_has_role('demo', 'pg_database_owner', 'usage')")
        owner = connection.execute(
            "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"
        )
        assert owner.fetchone() == ("demo",)


def test_a_changed_function_is_installed_by_the_next_start_as_a_member(project):
    file = project.folder / "sql" / "zz_new.sql"
    file.write_text("CREATE OR REPLACE FUNCTION cerebro.zz() RETURNS int LANGUAGE sql AS 'SELECT 41';\n")
    project.run("start")
    file.write_text(file.read_text().replace("41", "42"))
    project.run("start")
    assert project.query("select cerebro.zz()") == [(42,)]
    member = "select count(*) from pg_depend where objid = 'cerebro.zz'::regproc and deptype = 'e'"
    assert project.query(member) == [(1,)]


def test_a_changed_migration_is_refused_until_the_extension_is_created_anew(project):
    count = len(list((project.folder / "migrations").glob("*.sql")))
    file = project.folder / "migrations" / ("%03d-zz.sql" % (count + 1))
    file.write_text("CREATE TABLE cerebro_internal.zz (a int);\n")
    said = project.run("start", check=False)
    assert "migrations/ changed" in said and "recreate" in said
    project.run("recreate")
    assert project.query("select count(*) from cerebro_internal.zz") == [(0,)]
    file.unlink()
    project.run("recreate")


def test_segments_are_added_and_linked(project):
    project.run("start", "--segments", "2")
    project.run("start", "--segments", "1")
    servers = "select srvname::text from pg_foreign_server where srvname ~ '^segment' order by 1"
    assert project.query(servers) == [("segment_1",), ("segment_2",)]


def test_a_port_that_was_taken_meanwhile_is_replaced_everywhere(project):
    before = project.ports
    project.run("stop")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", before[1]))
        taken.listen()
        project.run("start")
    after = project.ports
    assert after[0] == before[0] and after[1] != before[1]
    options = project.query("select srvoptions from pg_foreign_server where srvname = 'segment_1'")[0][0]
    assert "port=%d" % after[1] in options


def test_stop_ends_every_server_and_start_brings_them_back(project):
    project.run("stop")
    assert "running" not in project.run("status")
    project.run("start")
    assert "stopped" not in project.run("status")


def test_a_command_without_a_cluster_says_how_to_get_one(project, tmp_path):
    assert "make cluster" in project.run("--home", str(tmp_path), "url", check=False)


def test_a_closed_parent_folder_is_noticed(tmp_path):
    stranger = embedded.Account("stranger", 54321, 54321)
    inner = tmp_path / "inner"
    inner.mkdir()
    file = inner / "file"
    file.touch()
    closed = [parent for parent in file.parents if not embedded.may(stranger, parent, 1)]
    assert embedded.can_read(stranger, file) == (not closed)
    os.chmod(inner, 0o700)
    assert not embedded.can_read(stranger, file)
    assert embedded.may(embedded.Account("me", os.geteuid(), os.getegid()), inner, 1)
