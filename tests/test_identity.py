"""Who a run is: the caller everywhere, with the caller's rights and nobody else's."""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager

import psycopg
import pytest

from tests import requirements as requires
from tests.cluster import ADMIN, ROLE, poll_until
from tests.session import LOGIT, POINTS, QUICK, Refusal, Session, points, refusal
from tests.tables import Table, quoted

pytestmark = requires.segments(3)

LOCAL_ROWS = 500  # blocks enough for three workers


def at_one_segment(session) -> Table:
    """A table for a session of its own: one worker to start."""
    return session.sharded(POINTS, points(), sizes=[60], segments=[2])


@pytest.fixture(scope="module")
def other(cluster):
    """A session of another ordinary role, with a schema of its own on every node."""
    role = "other_" + uuid.uuid4().hex[:6]
    cluster.add_role(role)
    for node in cluster.nodes:
        node.execute("create schema %s authorization %s" % (role, role))
    made = Session(cluster, role, role)
    try:
        yield made
    finally:
        made.close()
        cluster.drop_role(role)


@pytest.fixture(scope="module", autouse=True)
def schema_open_to(session, other):
    for node in session.cluster.nodes:
        node.execute("grant usage on schema %s to %s" % (session.schema, other.role))


@pytest.fixture(scope="module")
def model(other):
    return other.model()


def grant(session, table, to: str, columns: str = "") -> None:
    """SELECT on a table and on what its partitions are on the segments."""
    session.conn.execute("grant select %s on %s to %s" % (columns, table.name, to))
    for part, number in zip(table.parts, table.segments):
        with session.cluster.connect(ROLE, node=number) as there:
            there.execute("grant select %s on %s to %s" % (columns, quoted(session.schema, part), to))


def trained_rows(session, run: str) -> int:
    """Rows that the first trial saw in its first epoch."""
    query = "select sum(rows)::int from cerebro.visit where run = %s and trial = 0 and epoch = 1 and phase = 'train'"
    return session.rows(query, run)[0][0]


# ---- an ordinary role


def test_ordinary_role_can_do_everything(other):
    assert other.rows("select rolsuper from pg_roles where rolname = current_user") == [(False,)]
    assert all(ok for (ok,) in other.rows("select ok from cerebro.doctor()"))
    table, model = other.sharded(POINTS, points()), other.model()
    run = other.fit(table, model, "label", validation=0.25)
    assert other.rows("select state, owner from cerebro.run where run = %s", run) == [("done", other.role)]
    assert len(other.rows("select * from cerebro.resume(%s)", run)) == 1
    assert len(other.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name)) == 2
    assert other.rows("select cerebro.predict_class(%s, array[1, 2]) in ('true', 'false')", run) == [(True,)]
    assert len(other.rows("select * from cerebro.segments(%s::text::regclass)", table.name)) == 3
    other.conn.execute("select cerebro.drop_run(%s)", [run])
    other.conn.execute("select cerebro.drop_model(%s)", [model])
    assert other.rows("select * from cerebro.run where run = %s", run) == []


def test_set_role_counts(session, other, model, cluster):
    table = at_one_segment(other)
    with cluster.connect(ADMIN) as admin:
        admin.execute("grant %s to %s" % (other.role, ROLE))
        try:
            with cluster.connect(ROLE) as connection:
                connection.execute("set role " + other.role)
                statement, values = session.call(table, model, "label")
                connection.execute(statement, values)
        finally:
            admin.execute("revoke %s from %s" % (other.role, ROLE))
    assert other.rows("select owner from cerebro.run where run = %s", values[0]) == [(other.role,)]
    assert session.rows("select * from cerebro.run where run = %s", values[0]) == []


# ---- rights on the table


@pytest.mark.parametrize("kind", ["sharded", "local"])
def test_role_without_select_on_the_table(session, other, model, kind):
    table = getattr(session, kind)(POINTS, points())
    error = other.refused(table, model, "label")
    assert (error.sqlstate, error.message) == ("42501", "permission denied for table %s.%s" % (session.schema, table.table))
    assert "GRANT SELECT" in error.hint
    assert other.error("select * from cerebro.segments(%s::text::regclass)", table.name).sqlstate == "42501"


@pytest.mark.parametrize("kind", ["sharded", "local"])
def test_role_without_select_on_one_column(session, other, model, kind):
    table = getattr(session, kind)(POINTS, points())
    grant(session, table, other.role, "(a, label)")
    error = other.refused(table, model, "label")
    assert error.sqlstate == "42501"
    assert error.message == 'permission denied for column "b" of table %s.%s' % (session.schema, table.table)
    run = other.fit(table, model, "label", ["*"], segments=2)
    assert other.rows("select features from cerebro.run where run = %s", run) == [(["a"],)]
    assert trained_rows(other, run) == 60


def test_label_that_may_not_be_read(session, other, model):
    table = session.sharded(POINTS, points())
    grant(session, table, other.role, "(a, b)")
    error = other.refused(table, model, "label")
    assert error.sqlstate == "42501" and 'column "label"' in error.message


def test_right_is_checked_on_the_coordinator_also_where_the_segments_would_answer(session, other, model):
    table = session.sharded(POINTS, points())
    grant(session, table, other.role)
    session.conn.execute("revoke select on %s from %s" % (table.name, other.role))
    assert other.refused(table, model, "label").sqlstate == "42501"


def test_select_on_a_partitioned_parent_is_enough(session, other, model):
    parent = local_partitions(session)
    session.conn.execute("grant select on %s to %s" % (parent, other.role))
    for workers in (2, 3):
        assert trained_rows(other, other.fit(parent, model, "label", segments=workers)) == 60


def local_partitions(session) -> str:
    """A parent with three local leaves of 20 rows each: `shard` 0 … 2."""
    name = "%s.%s" % (session.schema, session.name("parent"))
    session.conn.execute(
        "create table {0} (a real, b float8, label boolean, shard int) partition by list (shard);"
        "create table {0}_0 partition of {0} for values in (0);"
        "create table {0}_1 partition of {0} for values in (1);"
        "create table {0}_2 partition of {0} for values in (2)".format(name)
    )
    rows = points()
    for k in range(60):
        values = [float(rows["a"][k]), float(rows["b"][k]), bool(rows["label"][k]), k % 3]
        session.conn.execute("insert into %s values (%%s, %%s, %%s, %%s)" % name, values)
    return name


# ---- row-level security


def secure(execute, table: str, role: str, condition: str) -> None:
    execute("alter table %s enable row level security" % table)
    execute("create policy seen on %s for select to %s using (%s)" % (table, role, condition))


@pytest.mark.parametrize("workers", [2, 3])
def test_policy_on_a_local_table_filters_what_is_trained_on(session, other, model, workers):
    table = session.local(POINTS, points(LOCAL_ROWS))
    grant(session, table, other.role)
    secure(session.conn.execute, table.name, other.role, "a > 0")
    seen = other.rows("select count(*)::int from " + table.name)[0][0]
    assert 0 < seen < LOCAL_ROWS
    assert trained_rows(other, other.fit(table, model, "label", segments=workers)) == seen
    assert trained_rows(session, session.fit(table, session.model(), "label", segments=workers)) == LOCAL_ROWS


def test_policy_forced_on_the_owner_filters_too(session):
    table = session.local(POINTS, points(LOCAL_ROWS))
    secure(session.conn.execute, table.name, ROLE, "a > 0")
    session.conn.execute("alter table %s force row level security" % table.name)
    seen = session.rows("select count(*)::int from " + table.name)[0][0]
    assert 0 < seen < LOCAL_ROWS
    assert trained_rows(session, session.fit(table, session.model(), "label", segments=2)) == seen


@pytest.mark.parametrize("leaves_too", [False, True], ids=["right on the parent", "right on the leaves too"])
def test_policy_on_a_parent_filters_its_local_leaves(session, other, model, leaves_too):
    parent = local_partitions(session)
    for name in [parent] + ["%s_%d" % (parent, k) for k in range(3)] * leaves_too:
        session.conn.execute("grant select on %s to %s" % (name, other.role))
    secure(session.conn.execute, parent, other.role, "a > 0 and shard <> 1")
    seen = other.rows("select count(*)::int from " + parent)[0][0]
    assert 0 < seen < 60
    for workers in (2, 3):
        assert trained_rows(other, other.fit(parent, model, "label", segments=workers)) == seen


def test_policy_on_a_leaf_alone_does_not_hide_it_from_its_parent(session, other, model):
    parent = local_partitions(session)
    for name in (parent, parent + "_0"):
        session.conn.execute("grant select on %s to %s" % (name, other.role))
    secure(session.conn.execute, parent + "_0", other.role, "false")
    assert other.rows("select count(*)::int from " + parent) == [(60,)]
    assert trained_rows(other, other.fit(parent, model, "label", segments=2)) == 60


def test_policy_on_a_parent_of_foreign_leaves_needs_one_on_the_segments(session, other, model):
    table = session.sharded(POINTS, points())
    grant(session, table, other.role)
    secure(session.conn.execute, table.name, other.role, "a > 0")
    error = other.refused(table, model, "label")
    assert (error.sqlstate, error.message) == ("0A000", "row security on a table whose partitions lie on other servers")
    assert 'on segment "segment_' in error.detail and "ENABLE ROW LEVEL SECURITY" in error.hint
    for part, number in zip(table.parts, table.segments):
        with session.cluster.connect(ROLE, node=number) as there:
            secure(there.execute, quoted(session.schema, part), other.role, "a > 0")
    seen = other.rows("select count(*)::int from " + table.name)[0][0]
    run = other.fit(table, model, "label")
    assert trained_rows(other, run) == seen < 60
    assert len(other.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name)) == 2


def test_evaluate_is_refused_like_fit(session, other, model):
    run = other.fit(other.sharded(POINTS, points()), model, "label")
    table = session.sharded(POINTS, points())
    error = other.error("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name)
    assert error.sqlstate == "42501"
    grant(session, table, other.role)
    secure(session.conn.execute, table.name, other.role, "a > 0")
    error = other.error("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name)
    assert error.sqlstate == "0A000"


# ---- user mappings


@contextmanager
def mapping(session, server: str, statement: str, role: str = ROLE):
    """Another user mapping of the role for a server, for a while; a fresh connection of the role that uses it."""
    password = session.cluster.node(int(server[-1]) if server[-1].isdigit() else 0).server.password(role)
    with session.cluster.connect(ADMIN) as admin, session.cluster.connect(role) as connection:
        try:
            admin.execute("drop user mapping for %s server %s" % (role, server))
            if statement:
                connection.execute(statement)
            yield connection
        finally:
            admin.execute("drop user mapping if exists for %s server %s" % (role, server))
            admin.execute(
                "create user mapping for %s server %s options (user '%s', password '%s')" % (role, server, role, password)
            )


SERVERS = pytest.mark.parametrize("server", ["segment_2", "cerebro_self"])
OWN = "create user mapping for current_user server {0} options (user '%s'{1})" % ROLE


@SERVERS
def test_mapping_that_names_another_role(session, server):
    table, model = session.sharded(POINTS, points(9)), session.model()
    statement = "create user mapping for current_user server %s options (user '%s', password 'any')" % (server, ADMIN)
    with mapping(session, server, statement) as connection:
        error = refusal(session.cluster, connection, *session.call(table, model, "label"))
    assert error == Refusal(
        "28000", 'the user mapping of "%s" for server "%s" names another role' % (ROLE, server),
        'It names "postgres".', "ALTER USER MAPPING FOR CURRENT_USER SERVER %s OPTIONS (SET user '%s');" % (server, ROLE),
    )  # fmt: skip


@SERVERS
@pytest.mark.parametrize("how", ["none", "without password", "blank password", "of public"])
def test_mapping_without_password(session, server, how):
    table, model = session.sharded(POINTS, points(9)), session.model()
    statement = {
        "none": "",
        "without password": OWN.format(server, ""),
        "blank password": OWN.format(server, ", password ''"),
        "of public": "",
    }[how]
    create = "CREATE USER MAPPING FOR CURRENT_USER SERVER %s OPTIONS (user '%s', password :'password');" % (server, ROLE)
    drop = "DROP USER MAPPING FOR CURRENT_USER SERVER %s;" % server
    if how == "of public":
        session.cluster.coordinator.execute(
            "create user mapping for public server %s options (user 'postgres', password 'x')" % server
        )
    try:
        with mapping(session, server, statement) as connection:
            error = refusal(session.cluster, connection, *session.call(table, model, "label"))
    finally:
        session.cluster.coordinator.execute("drop user mapping if exists for public server " + server)
    assert error == Refusal(
        "28000", 'role "%s" has no user mapping with a password for server "%s"' % (ROLE, server),
        "Every session to a segment authenticates as the caller.",
        "\n".join([drop, create] if statement else [create]),
    )  # fmt: skip


def test_server_without_usage_shows_both_commands(session):
    table, model = session.sharded(POINTS, points(9)), session.model()
    session.cluster.coordinator.execute("revoke usage on foreign server segment_2 from " + ROLE)
    try:
        error = session.refused(table, model, "label")
    finally:
        session.cluster.coordinator.execute("grant usage on foreign server segment_2 to " + ROLE)
    assert error.sqlstate == "28000"
    assert error.hint.startswith("GRANT USAGE ON FOREIGN SERVER segment_2 TO %s;\n" % ROLE)
    assert "CREATE USER MAPPING FOR CURRENT_USER SERVER segment_2 OPTIONS" in error.hint


@SERVERS
def test_wrong_password(session, server):
    table, model = session.sharded(POINTS, points(9)), session.model()
    with mapping(session, server, OWN.format(server, ", password 'wrong'")) as connection:
        error = refusal(session.cluster, connection, *session.call(table, model, "label"))
    assert (error.sqlstate, error.message) == ("28000", 'server "%s" refuses user "%s"' % (server, ROLE))
    assert "password authentication failed" in error.detail
    assert error.hint == (
        "ALTER USER MAPPING FOR CURRENT_USER SERVER \"%s\" OPTIONS (SET password :'password');" % server
    )


@contextmanager
def trusting(node, role: str):
    """A node that lets a role in without asking for a password."""
    file = node.server.data / "pg_hba.conf"
    before = file.read_text()
    try:
        file.write_text("host all %s 127.0.0.1/32 trust\n%s" % (role, before))
        node.execute("select pg_reload_conf()")
        poll_until(lambda: _let_in(node, role))
        yield
    finally:
        file.write_text(before)
        node.execute("select pg_reload_conf()")
        poll_until(lambda: not _let_in(node, role))


def _let_in(node, role: str) -> bool:
    try:
        node.connect(role, password="").close()
        return True
    except psycopg.OperationalError:
        return False


def test_server_that_lets_in_without_a_password(session):
    table, model = session.sharded(POINTS, points(9)), session.model()
    segment = session.cluster.node(2)
    with trusting(segment, ROLE), session.cluster.connect(ROLE) as connection:
        error = refusal(session.cluster, connection, *session.call(table, model, "label"))
    assert error == Refusal(
        "28000", 'server "segment_2" let a connection in without a password',
        "Cerebro only goes on as a role that proved who it is.",
        "Set scram-sha-256 for host connections of cerebro in pg_hba.conf of 127.0.0.1:%d/cerebro." % segment.port,
    )  # fmt: skip


def test_superuser_may_go_without_a_password(cluster, admin):
    check = "select ok from cerebro.doctor() where node = 'segment_2' and item = 'reachable'"
    assert admin.execute(check).fetchone() == (False,)
    with trusting(cluster.node(2), ADMIN):
        assert admin.execute(check).fetchone() == (True,)


@pytest.fixture
def environment(cluster, tmp_path):
    """A function that sets variables in its backend's environment, as if the server had been started with them."""
    with cluster.connect(ADMIN) as admin:
        admin.execute(
            "create function public.test_environment(json) returns void language plpython3u as"
            " 'import json, os; os.environ.update(json.loads(args[0]))'"
        )
        yield lambda connection, **variables: connection.execute(
            "select public.test_environment(%s)", [json.dumps(variables)]
        )
        admin.execute("drop function public.test_environment(json)")


def test_variables_of_the_server_lead_nowhere_else(session, environment):
    table, model = at_one_segment(session), session.model()
    with session.cluster.connect(ROLE) as connection:
        environment(
            connection, PGHOST="192.0.2.1", PGHOSTADDR="192.0.2.1", PGPORT="1", PGUSER=ADMIN, PGDATABASE="postgres",
            PGPASSWORD="wrong", PGSERVICE="none", PGSSLMODE="require", PGOPTIONS="-c role=none -c search_path=evil",
            PGTARGETSESSIONATTRS="standby", PGREQUIREAUTH="none",
        )  # fmt: skip
        statement, values = session.call(table, model, "label")
        assert connection.execute(statement, values).fetchone()[4] == "done"


def test_password_of_the_servers_environment_is_nobodys(session, environment, tmp_path):
    table, model = session.sharded(POINTS, points(9)), session.model()
    password = session.cluster.node(2).server.password(ROLE)
    passfile = tmp_path / "pgpass"
    passfile.write_text("*:*:*:*:%s\n" % password)
    for options in ("", ", password 'wrong'"):
        with mapping(session, "segment_2", OWN.format("segment_2", options)) as connection:
            environment(connection, PGPASSWORD=password, PGPASSFILE=str(passfile), HOME=str(tmp_path))
            error = refusal(session.cluster, connection, *session.call(table, model, "label"))
            assert error.sqlstate == "28000"


# ---- what is read cannot take the worker over

TRAP = """
create function {schema}.trap(value real) returns real language plpgsql volatile as $$
begin
    raise log '{role}: % % %', session_user, current_user, current_setting('is_superuser');
    reset role;
    reset session authorization;
    raise log '{role}: % % %', session_user, current_user, current_setting('is_superuser');
    begin
        create role {role} superuser;
    exception when insufficient_privilege or read_only_sql_transaction then
        raise log '{role}: refused % %', current_user, current_setting('is_superuser');
    end;
    begin
        set session authorization postgres;
    exception when insufficient_privilege then
        null;
    end;
    return value;
end $$
"""


def caught(node, victim: str) -> set[str]:
    """What traps have said in the server's log: who they were, before and after they tried to become somebody else."""
    return set(re.findall("LOG:  %s: (.*)" % victim, node.log_since(0)))


def test_function_in_a_view_stays_the_caller(session):
    """The known trap: RESET SESSION AUTHORIZATION inside a view that a worker reads."""
    table, model, victim = session.sharded(POINTS, points()), session.model(), "victim_" + uuid.uuid4().hex[:6]
    part = quoted(session.schema, table.parts[0])
    with session.cluster.connect(ROLE, node=1) as there:
        there.execute(TRAP.format(schema=session.schema, role=victim))
        there.execute("alter table %s rename to hidden" % part)
        there.execute(
            "create view {0} as select {1}.trap(a) as a, b, label, shard from {1}.hidden".format(part, session.schema)
        )
        session.fit(table, model, "label")
    assert caught(session.cluster.node(1), victim) == {"%s %s off" % (ROLE, ROLE), "refused %s off" % ROLE}
    assert session.cluster.node(1).execute("select 1 from pg_roles where rolname = %s", [victim]) == []


def test_function_in_a_policy_runs_as_the_caller(session, other, model):
    """The owner of a table cannot borrow a right of who trains on it beyond what a SELECT would lend."""
    table, victim = session.local(POINTS, points(LOCAL_ROWS)), "victim_" + uuid.uuid4().hex[:6]
    session.conn.execute(TRAP.format(schema=session.schema, role=victim))
    grant(session, table, other.role)
    secure(session.conn.execute, table.name, other.role, session.schema + ".trap(a) is not null")
    other.fit(table, model, "label", segments=2)
    assert caught(session.cluster.coordinator, victim) == {"%s %s off" % (other.role, other.role), "refused %s off" % other.role}
    assert session.cluster.coordinator.execute("select 1 from pg_roles where rolname = %s", [victim]) == []


# ---- other people's runs


@pytest.fixture(scope="module")
def run(session):
    """A run of `tester` that is done."""
    return session.fit(session.sharded(POINTS, points()), session.model(), "label")


VIEWS = ["model", "run", "trial", "epoch", "visit", "progress"]
OPEN_VIEWS = ["visible_model", "visible_run", "visible_trial", "visible_visit", "visible_state"]
USES = {
    "resume": "select * from cerebro.resume(%s)",
    "drop_run": "select cerebro.drop_run(%s)",
    "evaluate": "select * from cerebro.evaluate(%s, 'pg_catalog.pg_class')",
    "predict": "select cerebro.predict(%s, array[1, 2])",
    "predict_class": "select cerebro.predict_class(%s, array[1, 2])",
    "predict_probabilities": "select cerebro.predict_probabilities(%s, array[1, 2])",
}


@pytest.mark.parametrize("use", USES)
def test_run_of_another_role_does_not_exist(session, other, run, use):
    assert other.error(USES[use], run) == Refusal(
        "42704", 'run "%s" does not exist' % run, None, "select run, state from cerebro.run; shows all runs."
    )
    assert session.rows("select state from cerebro.run where run = %s", run) == [("done",)]


def test_views_show_nothing_of_another_role(session, other, run):
    for name in VIEWS:
        assert other.rows("select count(*) from cerebro.%s where owner = %%s" % name, ROLE) == [(0,)]
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", run)[0][0]
    for name in OPEN_VIEWS:
        column = "owner" if name in ("visible_model", "visible_run") else "run"
        value = ROLE if column == "owner" else number
        assert session.rows("select count(*) > 0 from cerebro_internal.%s where %s = %%s" % (name, column), value) == [(True,)]
        assert other.rows("select count(*) from cerebro_internal.%s where %s = %%s" % (name, column), value) == [(0,)]


def test_views_are_barriers(other, run):
    """A cheap leaky function in a query is not shown rows that the view keeps back."""
    other.conn.execute(
        "create or replace function {0}.leak(anyelement) returns bool cost 0.0000001 language plpgsql as"
        " $$ begin raise notice 'leak: %', $1; return true; end $$".format(other.schema)
    )
    other.notices.clear()
    for view, column in [("cerebro.run", "run"), ("cerebro.trial", "params"), ("cerebro.epoch", "metrics"),
                         ("cerebro.visit", "segment"), ("cerebro.model", "definition"), ("cerebro.progress", "segment"),
                         ("cerebro_internal.visible_state", "run")]:  # fmt: skip
        other.conn.execute("select * from %s where %s.leak(%s)" % (view, other.schema, column))
    assert not [notice for notice in other.notices if run in notice]


def test_catalog_tables_are_closed(other):
    tables = other.rows(
        "select c.oid::regclass::text from pg_class c where c.relnamespace = 'cerebro_internal'::regnamespace and c.relkind = 'r'"
    )
    assert len(tables) >= 8
    for (name,) in tables:
        for statement in ("select 1 from %s", "delete from %s", "truncate %s"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.conn.execute(statement % name)


def test_same_names_do_not_meet(session, other, model, run):
    mine = other.fit(other.sharded(POINTS, points()), model, "label", run=run, epochs=2)
    assert mine == run
    assert other.rows("select count(*) from cerebro.epoch where run = %s", run) == [(2,)]
    assert session.rows("select count(*) from cerebro.epoch where run = %s", run) == [(1,)]
    other.conn.execute("select cerebro.drop_run(%s)", [run])
    assert session.rows("select state from cerebro.run where run = %s", run) == [("done",)]


def test_members_of_the_owners_role_may(session, other):
    table = session.sharded(POINTS, points())
    run, model = session.fit(table, session.model(), "label"), session.model()
    session.cluster.coordinator.execute("grant %s to %s" % (ROLE, other.role))
    try:
        assert other.rows("select state, owner from cerebro.run where run = %s", run) == [("done", ROLE)]
        assert other.rows("select cerebro.predict_class(%s, array[1, 2]) in ('true', 'false')", run) == [(True,)]
        assert len(other.rows("select * from cerebro.resume(%s)", run)) == 1
        theirs = other.fit(other.sharded(POINTS, points()), model, "label")
        assert other.rows("select owner from cerebro.run where run = %s", theirs) == [(other.role,)]
        other.conn.execute("select cerebro.drop_run(%s)", [run])
    finally:
        session.cluster.coordinator.execute("revoke %s from %s" % (ROLE, other.role))
    assert session.rows("select 1 from cerebro.run where run = %s", run) == []


# ---- private functions called by hand

# Every function that writes the catalog, with another role's run; {run} is its number, generation 1 is right.
WRITES = {
    "run_claim": "select cerebro_internal.run_claim({run}, 1, 1)",
    "run_ready": "select cerebro_internal.run_ready({run}, 1, '{{}}', '{{}}', 'loss', 'min')",
    "trials_add": "select cerebro_internal.trials_add({run}, 1, '[]')",
    "run_end": "select cerebro_internal.run_end({run}, 1, 'failed', 'x', null)",
    "run_discard": "select cerebro_internal.run_discard({run}, 1)",
    "state_put": "select cerebro_internal.state_put({run}, 1, 0, 0, 0, 'x')",
    "trial_state": "select cerebro_internal.trial_state({run}, 1, 0, 0)",
    "trial_end": "select cerebro_internal.trial_end({run}, 1, 0, 'failed', 'x')",
    "visit_begin": "select cerebro_internal.visit_begin({run}, 1, 0, 9, 'train', 0, 0, 'x', 0)",
    "visit_end": "select cerebro_internal.visit_end({run}, 1, 0, 1, 'train', 0, 0, '{{}}', null, null)",
    "epoch_end": "select cerebro_internal.epoch_end({run}, 1, 0, 9, '{{}}', 0, 0, 0, 0, 'done', null)",
    "progress_set": "select cerebro_internal.progress_set({run}, 1, '{{}}')",
    "a row of state": "insert into cerebro_internal.visible_state values ({run}, 0, 99, 0, 'x')",
    "a row of trial": "insert into cerebro_internal.visible_trial (run, trial, params, state) values ({run}, 99, '{{}}', 'done')",
    "a run for somebody": "insert into cerebro_internal.visible_run (owner, name, source, model, definition, label, features, options"
    ", lock_key, driver_pid, state, started_at) values ('tester', 'x', 'x', 'x', '{{}}', 'x', '{{}}', '{{}}', 1, 1, 'done', now())",
    "a model for somebody": "insert into cerebro_internal.visible_model (owner, name, definition) values ('tester', 'x', '{{}}')",
}


def test_every_function_pins_its_search_path(session):
    """But for doors in SQL, which are inlined or pass the caller's search_path on; pgspot sees that all they name is qualified.

    And for what may commit, which a SET clause forbids: the session that ``submit`` opens for it has its own pinned.
    """
    query = (
        "select p.proname, l.lanname from pg_proc p join pg_language l on l.oid = p.prolang"
        " where p.pronamespace in ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
        " and not 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}'))"
        " and l.lanname <> 'internal' group by 1, 2 order by 1"  # that looks no name up
    )
    doors = ["pack", "predict", "predict_class", "predict_probabilities", "predict_table", "predict_value"]
    committing = [("detached_fit", "plpython3u"), ("detached_resume", "plpython3u")]
    assert session.rows(query) == sorted(committing + [(door, "sql") for door in doors])


def test_only_superusers_make_what_runs_as_the_owner_or_is_called_by_triggers(session):
    """Everything of the extension belongs to the superuser who created it, and no other role may create in its schemas."""
    query = "select rolsuper from pg_roles where oid = any (%s)"
    owners = session.rows(
        "select array_agg(distinct proowner) from pg_proc"
        " where pronamespace in ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
    )[0][0]
    assert session.rows(query, owners) == [(True,)]
    for schema in ("cerebro", "cerebro_internal"):
        assert session.rows("select has_schema_privilege('public', %s, 'create')", schema) == [(False,)]


def ledger(session, number) -> list:
    """All that the catalog holds of a run."""
    return [
        session.rows("select * from cerebro_internal.visible_%s where run = %%s order by 1, 2, 3" % table, number)
        for table in ("trial", "epoch", "visit", "state")
    ] + session.rows("select * from cerebro_internal.visible_run where id = %s", number)


@pytest.mark.parametrize("function", WRITES)
def test_writing_to_another_roles_run_is_refused(session, other, run, function):
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", run)[0][0]
    before = ledger(session, number)
    assert other.error(WRITES[function].format(run=number)).sqlstate in ("42704", "42501", "44000")
    assert ledger(session, number) == before


@pytest.mark.parametrize("write", ["update cerebro_internal.visible_run set state = 'failed' where id = {run}",
                                   "delete from cerebro_internal.visible_run where id = {run}",
                                   "delete from cerebro_internal.visible_state where run = {run}",
                                   "select cerebro_internal.run_drop({run})"])  # fmt: skip
def test_another_roles_rows_are_not_there_to_be_changed(session, other, run, write):
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", run)[0][0]
    before = ledger(session, number)
    other.conn.execute(write.format(run=number))
    assert ledger(session, number) == before


def test_a_function_in_an_index_does_not_act_for_the_superuser_who_analyzes_the_table(session, other, run):
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", run)[0][0]
    before = ledger(session, number)
    schema = other.schema
    other.conn.execute(
        "create function {0}.evil(i int) returns int immutable language plpgsql as $$ begin"
        " perform cerebro_internal.run_drop({1}); return i; end $$".format(
            quoted(schema), number
        )
    )
    other.conn.execute("create table %s.bait as select 1 as i" % quoted(schema))
    other.conn.execute("create index on {0}.bait ({0}.evil(i))".format(quoted(schema)))
    other.conn.execute("insert into %s.bait select generate_series(1, 9)" % quoted(schema))
    for command in ("analyze", "reindex table"):
        session.cluster.coordinator.execute("%s %s.bait" % (command, quoted(schema)))
    assert ledger(session, number) == before


def test_a_lock_that_somebody_else_holds_does_not_make_a_run_look_driven(session, other, run):
    """Keys are drawn anew and written down with the driver's pid; locks of all small keys are taken here."""
    other.conn.execute("select pg_advisory_lock(1128616514, k) from generate_series(1, 500) k")
    other.conn.execute(
        "select pg_advisory_lock(1128616514, %s)", session.cluster.coordinator.execute(
            "select lock_key from cerebro_internal.run where name = %s", [run])[0]
    )
    try:
        session.fit(session.sharded(POINTS, points()), session.model(), "label", run=run, if_exists="replace")
        assert session.rows("select state, pid from cerebro.run where run = %s", run) == [("done", None)]
    finally:
        other.conn.execute("select pg_advisory_unlock_all()")


FORBIDDEN = {
    "Lambda": {"layers": [{"Lambda": {"function": "os.system"}}]},
    "serialized code": {
        "module": "keras", "class_name": "Sequential", "config": {"layers": [
            {"module": "keras.layers", "class_name": "Lambda", "config": {"function": {
                "class_name": "__lambda__", "config": {"code": "4wEAAAA=", "defaults": None, "closure": None}}}}]},
    },
    "file": {"layers": [{"StringLookup": {"vocabulary": "/etc/passwd"}}]},
    "saved model": {"layers": [{"TFSMLayer": {"filepath": "/tmp/x"}}]},
    "foreign module": {"module": "subprocess", "class_name": "Popen", "config": {"args": ["true"]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def worker(other):
    """A session of the other role in which it has started a worker by hand."""
    with other.cluster.connect(other.role) as connection:
        connection.execute("select cerebro_internal.worker_start('{\"threads\": 1}')")
        yield connection


PART = {
    "inputs": [{"name": None, "numbers": [2], "codes": []}], "outputs": [{"name": None, "task": "classification", "classes": 2}],
}  # fmt: skip


def initialized(worker, program: dict) -> list:
    """What the worker makes of a program."""
    spec = json.dumps({"program": program, "seed": 1, "trial": 0, "run": "x"})
    return worker.execute("select report from cerebro_internal.worker_init(%s)", [spec]).fetchall()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_worker_called_directly_refuses_what_create_model_refuses(worker, what):
    program = {
        "definition": FORBIDDEN[what], "optimizer": {"class_name": "Adam", "config": {}}, "loss": None, "metrics": None,
        "encoders": PART,
    }  # fmt: skip
    with pytest.raises(psycopg.Error) as caught:
        initialized(worker, program)
    assert caught.value.diag.sqlstate == "22023"


@pytest.mark.parametrize(
    "program",
    [
        {"optimizer": {"module": "os", "class_name": "system", "config": {"command": "true"}}},
        {"loss": {"module": "builtins", "class_name": "function", "config": "eval"}},
        {"metrics": [{"class_name": "Lambda", "config": {}}]},
    ],
    ids=["optimizer", "loss", "metric"],
)
def test_worker_called_directly_refuses_foreign_optimizers_losses_and_metrics(worker, program):
    whole = {
        "definition": {"module": "keras", "class_name": "Sequential", "config": {"layers": [
            {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}}]}},
        "optimizer": {"class_name": "Adam", "config": {}}, "loss": None, "metrics": None,
        "encoders": PART, **program,
    }  # fmt: skip
    with pytest.raises(psycopg.Error) as caught:
        initialized(worker, whole)
    assert caught.value.diag.sqlstate == "22023"


def test_run_forged_by_hand_cannot_run_code_in_predict(other):
    rows = other.rows(
        "select cerebro_internal.run_create('forged', 'x', 'm', %s, 'label', '{a}', %s, null, 1, 1)",
        json.dumps(FORBIDDEN["serialized code"]), json.dumps(QUICK),
    )  # fmt: skip
    number = rows[0][0]
    encoders = {
        "format": 1,
        "labels": [{"name": "label", "output": None, "type": "boolean", "task": "classification", "classes": [False, True]}],
        "features": [{"name": "a", "kind": "number", "encoder": "none", "shape": []}],
        "inputs": [{"name": None, "features": ["a"], "stack": None}], "model": PART,
    }  # fmt: skip
    other.conn.execute(
        "select cerebro_internal.run_ready(%s, 1, '{}', %s, 'loss', 'min')", [number, json.dumps(encoders)]
    )
    other.conn.execute("select cerebro_internal.trials_add(%s, 1, '[{\"trial\": 0, \"params\": {}}]')", [number])
    other.conn.execute("select cerebro_internal.state_put(%s, 1, 0, 1, 0, 'x')", [number])
    other.conn.execute("select cerebro_internal.trial_state(%s, 1, 0, 1)", [number])
    other.conn.execute("select cerebro_internal.epoch_end(%s, 1, 0, 1, '{}', 0, 0, 0, 1, 'done', null)", [number])
    for call in ("select cerebro.predict('forged', array[1])", "select cerebro.predict_class('forged', array[1])"):
        assert other.error(call).sqlstate == "22023"
    other.conn.execute("select cerebro.drop_run('forged')")


def test_run_forged_by_hand_cannot_run_sql_when_it_is_resumed(other, session):
    """A plan names partitions and blocks; whatever else stands in it is never run."""
    table = other.sharded(POINTS, points())
    other.conn.execute("create function %s.evil() returns int language sql as 'select 1 / 0'" % quoted(other.schema))
    cut = {"leaf": "(select %s.evil() as a, 1 as b, true as label) x" % quoted(other.schema), "low": 0, "high": None}
    plan = {"shards": [{"segment": "x", "server": "cerebro_self", "cuts": [cut]}], "stats": []}
    number = other.rows(
        "select cerebro_internal.run_create('planned', %s, 'm', %s, 'label', '{a,b}', %s, null, 1, 1)",
        table.name, json.dumps(LOGIT), json.dumps({**QUICK, "optimizer": {"class_name": "Adam", "config": {}}}),
    )[0][0]  # fmt: skip
    other.conn.execute("select cerebro_internal.run_ready(%s, 1, %s, '{}', 'loss', 'min')", [number, json.dumps(plan)])
    assert other.error("select * from cerebro.resume('planned')").sqlstate == "ML002"
    other.conn.execute("select cerebro.drop_run('planned')")


def test_worker_called_directly_reads_what_the_caller_may_read(other, cluster):
    def load(relation: str, column: str, where: str | None = None) -> str:
        spec = {
            "run": "x", "reads": [{"relation": relation, "where": where, "columns": {"n": column}}],
            "features": [{"name": "n", "type": "integer", "kind": "number", "encoder": None}],
            "labels": [], "nulls": "error", "seed": 1, "validation": 0, "memory_bytes": None,
        }  # fmt: skip
        with pytest.raises(psycopg.Error) as caught:
            other.conn.execute("select cerebro_internal.worker_load(%s)", [json.dumps(spec)])
        return caught.value.diag.sqlstate

    assert load("pg_catalog.pg_authid", "rolconnlimit") == "42501"
    assert load("pg_catalog.pg_class", "relpages", "pg_catalog.pg_read_file('postgresql.conf') is not null") == "42501"


# ---- faults


def test_faults_are_armed_by_superusers_only(other, run, session):
    for statement in (
        "insert into cerebro_internal.fault (run, point, action) values ('x', 'order-sent', 'kill')",
        "select * from cerebro_internal.fault",
        "select nextval('cerebro_internal.fault_id_seq')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.conn.execute(statement)


def test_no_setting_arms_a_fault(session, other, model):
    with session.cluster.connect(other.role) as connection:
        for name in ("cerebro.fault", "cerebro.faults", "cerebro.test", "cerebro_internal.fault", "cerebro.superuser"):
            connection.execute("select set_config(%s, 'order-sent kill', false)", [name])
        statement, values = session.call(at_one_segment(other), model, "label")
        assert connection.execute(statement, values).fetchone()[4] == "done"


def test_definitions_for_this_page_are_what_they_claim(session):
    """The forbidden definitions are forbidden by create_model as well: the tests above try the same."""
    for definition in FORBIDDEN.values():
        assert session.error("select cerebro.create_model('x', %s)", json.dumps(definition)).sqlstate == "22023"
    assert session.rows("select cerebro.create_model('fine', %s) is not null", json.dumps(LOGIT))
    session.conn.execute("select cerebro.drop_model('fine')")
