"""Backup, restore, upgrade and removal, on a project of its own that makes a further release; docs/upgrade.md has the commands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from scripts import build
from scripts import cluster as embedded
from tests.cluster import ADMIN, poll_until
from tests.project import Project
from tests.session import LOGIT, Refusal

PAGE = Path(__file__).parent.parent / "docs" / "upgrade.md"
FENCES = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
BACKUP, RESTORE, RESTORE_PARALLEL, RESTORE_OLDER = FENCES
MAPPING, UPDATE, DROP = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
OLD = build.version()
NEW = "%d.0.0" % (int(OLD.split(".")[0]) + 1)
MIGRATION = """
ALTER TABLE cerebro_internal.run ADD COLUMN kept_for text NOT NULL DEFAULT 'ever';
CREATE TABLE cerebro_internal.later (a int);
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.later', '');
"""
FUNCTION = """
CREATE OR REPLACE FUNCTION cerebro.later() RETURNS int LANGUAGE sql AS 'SELECT 1';
COMMENT ON FUNCTION cerebro.later() IS 'Came with a later version';
GRANT SELECT ON cerebro_internal.later TO PUBLIC;
"""
OPTIONS = json.dumps({"epochs": 2, "seed": 3, "order": "fixed", "segments": 1, "batch_size": 16, "optimizer": "adam"})
FIT = "select * from cerebro.fit(%s, %s::text::regclass, 'logit', 'label', '{a,b}', %s)"
QUICK = json.dumps({**json.loads(OPTIONS), "epochs": 1})
PREDICT = "select cerebro.predict_probabilities('prod', row_to_json(t)::text)::text from lab.points t order by a limit 3"
OUTCOME = """
select (select md5(string_agg(s::text, ',' order by s.trial, s.seq, s.chunk)) from (
            select trial, seq, chunk, data from cerebro_internal.state where run = r.id) s)
     , (select md5(string_agg(e::text, ',' order by e.trial, e.epoch)) from (
            select trial, epoch, metrics, learning_rate from cerebro_internal.epoch where run = r.id) e)
from cerebro_internal.run r where r.name = %s
"""


class Lab:
    """The project and its servers: one segment, and the role demo."""

    def __init__(self, project: Project):
        self.project = project
        (project.folder / ".venv").symlink_to(embedded.Cluster().venv.resolve())
        if OLD not in build.released():
            project.run("--release", script="build.py")
        project.run("start", "--segments", "1", "--no-fsync")
        self.home = Path(project.run("status").split("\n")[0].split(None, 1)[1].strip())
        self.nodes = json.loads((self.home / "state.json").read_text())["nodes"]

    def connect(self, role: str = "demo", database: str = "cerebro", node: int = 0) -> psycopg.Connection:
        entry = self.nodes[node]
        return psycopg.connect(
            host="127.0.0.1", port=entry["port"], user=role, password=entry["passwords"][role], dbname=database, autocommit=True
        )  # fmt: skip

    def rows(self, query: str, *values, database: str = "cerebro", role: str = ADMIN, node: int = 0) -> list[tuple]:
        with self.connect(role, database, node) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def shell(self, script: str, role: str = ADMIN, check: bool = True) -> str:
        """Run a script of the page where cerebro.dump lies, as that role."""
        entry = self.nodes[0]
        environment = {
            "PGHOST": "127.0.0.1", "PGPORT": str(entry["port"]), "PGUSER": role, "PGPASSWORD": entry["passwords"][role],
            "PATH": "%s:/usr/bin:/bin" % embedded.pg_config().parent, "PGOPTIONS": "-c client_min_messages=warning",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", "-ec", script], cwd=self.project.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def contents(self, database: str) -> dict:
        """Every table that a dump takes along, by a digest of its rows, and the sequences."""
        with self.connect(ADMIN, database) as connection:
            names = connection.execute(
                "select c.oid::regclass::text, c.relkind from pg_extension e, unnest(e.extconfig) t (oid) join pg_class c on c.oid = t.oid"
                " where e.extname = 'cerebro' order by 1"
            ).fetchall()
            found = {}
            for name, kind in names:
                what = "count(*), md5(string_agg(t::text, ',' order by t::text))" if kind == "r" else "last_value, is_called"
                found[name] = connection.execute("select %s from %s t" % (what, name)).fetchone()
            return found

    def catalog(self, database: str) -> str:
        """All that the extension consists of, as text."""
        text = self.shell("pg_dump --schema-only --binary-upgrade " + database)
        passing = ("--", "\\", "SELECT pg_catalog.binary_upgrade", "SET relfrozenxid", "WHERE oid = '")  # numbers differ
        kept = [line for line in text.splitlines() if line and not line.startswith(passing)]
        config = self.rows(
            "select t.oid::regclass::text from pg_extension e, unnest(e.extconfig) t (oid) where extname = 'cerebro' order by 1",
            database=database,
        )
        return "\n".join(kept + [name for (name,) in config]).replace("dbname '%s'" % database, "dbname")

    def refused(self, connection: psycopg.Connection, statement: str, *values) -> Refusal:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statement, values or None)
        return Refusal.of(caught.value)

    @contextlib.contextmanager
    def held(self, run: str, options: str = OPTIONS):
        """The session trains, and waits after the first visit while the context lasts; gives what becomes of the call."""
        self.rows("insert into cerebro_internal.fault (run, point, occurrence, action) values (%s, 'committed', 1, 'wait')", run)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.session.execute, FIT, [run, "lab.points", options])
            try:
                waits = "select 1 from pg_stat_activity where application_name = 'cerebro waits at committed'"
                poll_until(lambda: running.done() or self.rows(waits), 60)
                yield running
            finally:
                self.rows("delete from cerebro_internal.fault")

    def outcome(self, run: str, database: str = "cerebro") -> tuple:
        return self.rows(OUTCOME, run, database=database)[0]


@pytest.fixture(scope="module")
def lab():
    project = Project(Path(tempfile.mkdtemp(prefix="cerebro-release-")))
    try:
        yield Lab(project)
    finally:
        project.close()


@pytest.fixture(scope="module")
def origin(lab):
    """The older version in use: one run is done, one cancelled, and what is asked while that one was being driven is kept."""
    lab.session = lab.connect()
    ask = lab.session.execute
    ask("create schema lab")
    ask("create table lab.points as select i, (i %% 17)::real / 9 as a, (i %% 23)::real / 9 as b, i %% 17 > i %% 23 as label"
        " from generate_series(1, 120) i".replace("%%", "%"))  # fmt: skip
    lab.rows("create schema lab authorization demo", node=1)
    lab.rows("create table lab.far as select a::real, a::real as b, a % 2 = 0 as label from generate_series(1, 9) a", role="demo", node=1)
    ask("create foreign table lab.far (a real, b real, label boolean) server segment_1")
    ask("select cerebro.create_model('logit', %s)", [json.dumps(LOGIT)])
    ask(FIT, ["whole", "lab.points", OPTIONS])
    ask("select cerebro.promote('whole', 'prod')")
    ask("select cerebro.grant_run('whole', 'public')")
    ask("select cerebro.pack('lab.points', 'lab.packed', 'label', '{a,b}', '{\"segments\": 1, \"seed\": 3}')")
    lab.before = {"predictions": ask(PREDICT).fetchall(), "whole": lab.outcome("whole")}
    with lab.held("half") as running, lab.connect(ADMIN) as admin:
        lab.meanwhile = {
            "update": lab.refused(admin, "alter extension cerebro update to 'reload'; alter extension cerebro update to '%s'" % OLD),
            "drop": lab.refused(admin, "set lock_timeout = '200ms'; " + DROP),
        }
        lab.shell("pg_dump --format=custom --file=during.dump cerebro")
        lab.rows("select pg_cancel_backend(%s)", lab.session.info.backend_pid)
        assert isinstance(running.exception(), psycopg.errors.QueryCanceled)
    assert lab.rows("select state from cerebro.run where run = 'half'") == [("cancelled",)]
    lab.before["contents"] = lab.contents("cerebro")
    return lab


@pytest.fixture(scope="module")
def restored(origin):
    """A dump of the older version, restored in that version in every way."""
    lab = origin
    lab.shell(BACKUP)
    lab.shell(RESTORE)
    lab.shell("createdb plain; pg_dump cerebro > plain.sql; psql -Xq -v ON_ERROR_STOP=1 -d plain -f plain.sql")
    lab.shell(RESTORE_PARALLEL)
    lab.shell("createdb halves; for half in schema data; do pg_restore --exit-on-error --$half-only -d halves cerebro.dump; done")
    lab.shell("createdb during; pg_restore --exit-on-error -d during during.dump")
    lab.copies = {name: lab.contents(name) for name in ("restored", "plain", "parallel", "halves")}
    return lab


@pytest.fixture(scope="module")
def released(restored):
    """The next version's package and scripts are installed; nothing is updated yet."""
    lab = restored
    file = lab.project.folder / "cerebro_udf" / "__init__.py"
    number = 1 + len(list((lab.project.folder / "migrations").glob("*.sql")))
    (lab.project.folder / "migrations" / ("%03d-later.sql" % number)).write_text(MIGRATION)
    (lab.project.folder / "sql" / "zz_later.sql").write_text(FUNCTION)
    with lab.held("flight", json.dumps({**json.loads(OPTIONS), "epochs": 9})) as running:
        file.write_text(file.read_text().replace('"%s"' % OLD, '"%s"' % NEW))
    lab.flight = Refusal.of(running.exception())
    lab.project.run(str(next(lab.home.glob("prefix/**/extension"))), script="build.py")
    with lab.connect() as fresh:
        lab.seen = {
            "open session": lab.refused(lab.session, "select cerebro.predict('prod', '[1, 2]')"),
            "package is newer": lab.refused(fresh, "select * from cerebro.segments('lab.far')"),
        }
    return lab


@pytest.fixture(scope="module")
def upgraded(released):
    """Every node is updated, the coordinator first."""
    lab = released
    lab.rows(UPDATE)
    with lab.connect() as fresh:
        lab.seen["open session, later"] = lab.refused(lab.session, FIT, "x", "lab.points", OPTIONS)
        lab.seen["segment is older"] = lab.refused(fresh, FIT, "x", "lab.far", OPTIONS)
    lab.project.run("start")  # it updates what is not
    return lab


def test_a_dump_holds_every_row_in_every_format(restored):
    for name, found in restored.copies.items():
        assert found == restored.before["contents"], name


def test_a_run_under_way_is_interrupted_in_the_copy(restored):
    assert restored.rows("select run, state from cerebro.run order by 1", database="during") == [("half", "interrupted"), ("whole", "done")]
    query = "select t.last_seq > 0 from cerebro_internal.run r join cerebro_internal.trial t on t.run = r.id where r.name = 'half'"
    assert restored.rows(query, database="during") == [(True,)]


def test_what_pack_has_made_outlives_the_extension(restored):
    count = "select count(*) > 0 from lab.packed"
    assert restored.rows(count, database="halves") == [(True,)]
    restored.rows(DROP, database="halves")
    assert restored.rows(count, database="halves") == [(True,)]
    assert restored.rows("select count(*) from lab.points", database="halves") == [(120,)]


def test_a_member_of_pg_read_all_data_dumps_what_the_owner_of_the_database_may_not(origin):
    assert "permission denied for sequence model_id_seq" in origin.shell("pg_dump cerebro", role="demo", check=False)
    assert "CREATE TABLE lab.points" in origin.shell("pg_dump --schema=lab cerebro", role="demo")
    origin.rows("grant pg_read_all_data to demo")
    try:
        text = origin.shell("pg_dump cerebro", role="demo")
    finally:
        origin.rows("revoke pg_read_all_data from demo")
    assert "COPY cerebro_internal.state" in text


def test_an_update_is_refused_while_a_run_is_driven(origin):
    error = origin.meanwhile["update"]
    assert (error.sqlstate, error.message) == ("55006", 'run "half" is being driven')
    assert "%d" % origin.session.info.backend_pid in error.detail and "pg_cancel_backend" in error.hint


def test_a_drop_waits_for_a_run(origin):
    assert origin.meanwhile["drop"].sqlstate == "55P03"
    assert origin.rows("select count(*) from cerebro.run") == [(2,)]


def test_an_open_session_is_told_to_start_anew(upgraded):
    for when in ("open session", "open session, later"):
        assert upgraded.seen[when] == Refusal(
            "ML006", "cerebro was upgraded since this session began",
            "The session has loaded version %s; %s is installed by now." % (OLD, NEW), "Start a new session.",
        )  # fmt: skip


def test_a_run_under_way_ends_resumably_when_its_segment_is_upgraded(upgraded):
    error = upgraded.flight
    assert (error.sqlstate, error.message) == ("ML006", 'segment "local_1": cerebro was upgraded since this session began')
    query = "select r.state, t.last_seq > 0 from cerebro_internal.run r join cerebro_internal.trial t on t.run = r.id where name = 'flight'"
    assert upgraded.rows(query) == [("failed", True)]


def test_a_node_of_another_version_is_named_with_what_to_do(upgraded):
    error = upgraded.seen["package is newer"]
    assert (error.sqlstate, error.detail) == ("ML001", "The extension is %s, the package %s." % (OLD, NEW))
    assert error.hint == "As superuser: ALTER EXTENSION cerebro UPDATE;"
    error = upgraded.seen["segment is older"]
    assert error.message == 'segment "segment_1": extension and Python package of cerebro differ in version'
    assert error.detail == "The extension is %s, the package %s." % (OLD, NEW)
    assert error.hint == "At 127.0.0.1:%d/cerebro: As superuser: ALTER EXTENSION cerebro UPDATE;" % upgraded.nodes[1]["port"]


def test_every_release_is_updated_to_what_a_fresh_install_gives(upgraded):
    upgraded.shell("createdb fresh; psql -Xqc 'CREATE EXTENSION cerebro CASCADE' fresh")
    fresh = upgraded.catalog("fresh")
    assert "kept_for" in fresh and "FUNCTION cerebro.later()" in fresh and "FUNCTION cerebro.fit(" in fresh
    for release in sorted({OLD, *build.released()}):
        name = "from_" + release.replace(".", "_")
        upgraded.shell("createdb %s; psql -Xqc \"CREATE EXTENSION cerebro VERSION '%s' CASCADE\" %s" % (name, release, name))
        upgraded.rows(UPDATE, database=name)
        assert upgraded.catalog(name) == fresh, release


def test_there_is_no_way_back_to_an_older_version(upgraded):
    with upgraded.connect(ADMIN) as admin:
        error = upgraded.refused(admin, "alter extension cerebro update to '%s'" % OLD)
    assert (error.sqlstate, error.message) == (
        "22023", 'extension "cerebro" has no update path from version "%s" to version "%s"' % (NEW, OLD)
    )  # fmt: skip


@pytest.fixture(scope="module")
def again(upgraded):
    """A session in the older version's dump, restored into that version and then updated."""
    upgraded.shell(RESTORE_OLDER.replace("'0.1.0'", "'%s'" % OLD))
    with upgraded.connect(database="again") as connection:
        connection.execute(MAPPING.replace(":'password'", "'%s'" % upgraded.nodes[0]["passwords"]["demo"]))
        yield connection


def test_runs_of_a_restored_and_updated_dump_predict_and_resume_bit_for_bit(upgraded, again):
    ask = again.execute
    assert ask("select extversion from pg_extension where extname = 'cerebro'").fetchall() == [(NEW,)]
    failed = ask("select node, item, value from cerebro.doctor() where ok is false").fetchall()
    assert [item for _, item, _ in failed] == ["packed table lab.packed"]
    assert ask(PREDICT).fetchall() == upgraded.before["predictions"]
    assert ask("select granted_to from cerebro.run where run = 'whole'").fetchall() == [(["public"],)]
    assert ask("select trial from cerebro.resume('half')").fetchall() == [(0,)]
    assert upgraded.outcome("half", "again") == upgraded.before["whole"]
    ask(FIT, ["packed", "lab.packed", QUICK])
    assert ask("select state from cerebro.run where run = 'packed'").fetchall() == [("done",)]


def test_a_drop_does_not_wait_for_warm_workers(upgraded, again):
    again.execute(FIT, ["warm", "lab.points", QUICK])
    with upgraded.connect(ADMIN, "again") as admin, admin.transaction(force_rollback=True):
        admin.execute("set local lock_timeout = '1s'")
        admin.execute(DROP)
        here = "select count(*) from pg_stat_activity where datname = 'again' and application_name = 'cerebro worker'"
        assert admin.execute(here).fetchone() == (1,)


def test_dropping_the_extension_leaves_nothing_and_it_can_be_created_again(lab):
    lab.shell("createdb gone; psql -Xqc 'CREATE EXTENSION plpython3u' gone")
    described = "pg_dump --schema-only gone | grep -v '^.\\(un\\)\\?restrict'"
    before = lab.shell(described)
    others = "select count(*), (select count(*) from pg_largeobject_metadata) from pg_roles"
    counts = lab.rows(others, database="gone")
    lab.shell("psql -Xqc 'CREATE EXTENSION cerebro' gone")
    with lab.connect(database="gone") as connection:
        connection.execute(MAPPING.replace(":'password'", "'%s'" % lab.nodes[0]["passwords"]["demo"]))
        assert connection.execute("select count(*) > 9 from cerebro.doctor()").fetchone() == (True,)
        lab.rows(DROP, database="gone")
        assert lab.shell(described) == before and lab.rows(others, database="gone") == counts
        assert lab.refused(connection, "select * from cerebro.doctor()").sqlstate == "3F000"
        lab.shell("psql -Xqc 'CREATE EXTENSION cerebro' gone")
        assert lab.refused(connection, "select * from cerebro.doctor()") == Refusal(
            "ML006", "extension cerebro was created anew since this session began",
            "The session remembers runs and models of the one that was dropped.", "Start a new session.",
        )  # fmt: skip


def test_files_that_are_replaced_by_the_same_version_change_nothing(lab):
    """A package of the same version is installed again; its files have other times then."""
    with lab.connect() as connection:
        connection.execute("select cerebro_internal.worker_hello()")
        os.utime(lab.project.folder / "cerebro_udf" / "__init__.py")
        connection.execute("select cerebro_internal.worker_hello()")
