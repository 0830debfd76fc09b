"""Nobody gains another's rights or password: traps that one role lays for whoever calls Cerebro near them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import uuid

import psycopg
import pytest

from cerebro_udf.coordinator.links import Address, Link
from cerebro_udf.errors import CerebroError
from tests import requirements as requires
from tests.cluster import ADMIN, ROLE
from tests.session import LOGIT, POINTS, QUICK, Refusal, points
from tests.tables import quoted

WARM = True
pytestmark = requires.segments(3)

HINT = "Have a superuser see where it leads, and take it over: ALTER SERVER evil OWNER TO …;"


@pytest.fixture(scope="module")
def attacker(cluster):
    """An ordinary role that owns a schema on every node, which others may use."""
    role = "attacker_" + uuid.uuid4().hex[:6]
    cluster.add_role(role)
    for node in cluster.nodes:
        node.execute("create schema {0} authorization {0}; grant usage on schema {0} to public".format(role))
    yield role
    cluster.drop_role(role)


@pytest.fixture(scope="module")
def source(session):
    return session.sharded(POINTS, points(), sizes=[60], segments=[2])


@pytest.fixture(scope="module")
def run(session, source):
    return session.fit(source, session.model(), "label")


class Trap:
    """What is told in the servers' logs once a trap has run, and as whom; in a log it survives whatever is rolled back."""

    def __init__(self, cluster):
        self.cluster, self.word = cluster, "sprung " + uuid.uuid4().hex[:8]
        self.marks = [node.log_size() for node in cluster.nodes]

    @property
    def body(self) -> str:
        return "language plpgsql as $$ begin raise log '%s %% %%', session_user, current_user; return null; end $$" % self.word

    def sprung(self) -> list[str]:
        """As whom, since this was asked before."""
        texts = [node.log_since(mark) for node, mark in zip(self.cluster.nodes, self.marks)]
        self.marks = [node.log_size() for node in self.cluster.nodes]
        return [line.partition(self.word)[2].strip() for text in texts for line in text.splitlines() if "LOG:  " + self.word in line]


# ---- names that stand for PostgreSQL's own

# Every function, operator, type and relation that SQL of ours could mean, by another's schema that the victim's path has first.
_FUNCTIONS = """
select format('create function %%1$I.%%2$I(%%3$s) returns %%4$s ', %(schema)s::text, p.proname, pg_get_function_identity_arguments(p.oid),
              pg_get_function_result(p.oid))
from pg_proc p
where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset and p.provariadic = 0
  and p.proname = any (%(names)s) and not exists (
    select from unnest(p.proargtypes || p.prorettype) t join pg_type on pg_type.oid = t where typtype = 'p')
"""
_OPERATORS = """
select format('create function %%1$I.operated_%%2$s(%%3$s) returns %%4$s ', %(schema)s::text, o.oid,
              concat_ws(', ', nullif(o.oprleft, 0)::regtype, o.oprright::regtype), o.oprresult::regtype),
       format('create operator %%1$I.%%2$s (procedure = %%1$I.operated_%%3$s%%4$s, rightarg = %%5$s)', %(schema)s::text, o.oprname, o.oid,
              ', leftarg = ' || nullif(o.oprleft, 0)::regtype, o.oprright::regtype)
from pg_operator o
where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprname = any (%(operators)s) and o.oprresult <> 0 and not exists (
    select from pg_type t where t.oid in (o.oprleft, o.oprright, o.oprresult) and t.typtype = 'p')
"""
# A better match than PostgreSQL's own, which convert an argument: it wins though pg_catalog comes first.
CLOSER = [("*", "float8", "int4"), ("+", "float8", "int4"), ("/", "float8", "int4"), ("=", "name", "varchar"), (">", "int8", "float8")]
NAMES = """
set_config current_setting coalesce format quote_ident quote_literal now clock_timestamp date_part octet_length pg_backend_pid
current_database current_schema pg_try_advisory_lock pg_advisory_unlock to_regclass lower count int4 int8 text float8 bool
pg_has_role has_table_privilege has_column_privilege has_schema_privilege has_server_privilege row_security_active
pg_relation_size pg_table_size pg_postmaster_start_time pg_is_in_recovery pg_get_expr pg_get_partkeydef format_type
to_json to_jsonb json_typeof byteaout byteasend array_send unnest json_array_elements_text json_each_text jsonb_array_elements
pg_cancel_backend to_timestamp round greatest array_to_string cardinality
""".split()
OPERATORS = ["=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "->", "->>", "#>>", "~", "~~", "!~~", "@>"]
RELATIONS = ["pg_class", "pg_namespace", "pg_attribute", "pg_roles", "pg_locks", "pg_type", "pg_extension", "pg_foreign_server",
             "pg_foreign_table", "pg_user_mappings", "pg_inherits", "pg_settings", "pg_stat_activity", "run", "model", "trial", "state",
             "visible_run", "usable_run", "worker_hello", "fault", "plan"]  # fmt: skip


def lay(connection: psycopg.Connection, schema: str, trap: Trap) -> None:
    """Put a trap into the place of whatever a name without a schema could mean."""
    values = {"schema": schema, "names": NAMES, "operators": OPERATORS}
    commands = [head + trap.body for (head,) in connection.execute(_FUNCTIONS, values).fetchall()]
    for head, operator in connection.execute(_OPERATORS, values).fetchall():
        commands += [head + trap.body, operator]
    for number, (name, left, right) in enumerate(CLOSER):
        function = "%s.closer_%d" % (schema, number)
        commands.append("create function %s(%s, %s) returns float8 " % (function, left, right) + trap.body)
        commands.append("create operator %s.%s (procedure = %s, leftarg = %s, rightarg = %s)" % (schema, name, function, left, right))
    commands.append("create function %s.looked() returns text " % schema + trap.body)
    commands += ["create view {0}.{1} as select {0}.looked() as name, 1 as id".format(schema, name) for name in RELATIONS]
    commands.append("grant select on all tables in schema %s to public" % schema)
    connection.execute("; ".join(commands))


@contextlib.contextmanager
def first(cluster, schema: str, *roles: str):
    """Have all further sessions of roles look names up there first, as their own setting says."""
    try:
        for node in cluster.nodes:
            for role in roles:
                node.execute("alter role %s set search_path = %s, pg_temp, pg_catalog" % (role, schema))
        yield
    finally:
        for node in cluster.nodes:
            for role in roles:
                node.execute("alter role %s reset search_path" % role)


CALLS = [
    "select * from cerebro.doctor()",
    "select * from cerebro.segments({source})",
    "select cerebro.create_model({name}, '{definition}')",
    "select cerebro.grant_model({name}, 'public')",
    "select cerebro.revoke_model({name}, 'public')",
    "select cerebro.drop_model({name})",
    "select cerebro.explain_fit({source}, {model}, 'label', '{{a,b}}', '{options}')",
    "select * from cerebro.fit({name}, {source}, {model}, 'label', '{{a,b}}', '{options}')",
    "select * from cerebro.resume({name})",
    "select * from cerebro.wait({name})",
    "select cerebro.cancel({name})",
    "select * from cerebro.evaluate({name}, {source})",
    "select cerebro.predict_table({name}, {source}, '{schema}.answers', '{{a}}')",
    "select cerebro.pack({source}, '{schema}.packed', 'label', '{{a,b}}')",
    "select cerebro.submit({name} || '2', {source}, {model}, 'label', '{{a,b}}', '{options}')",
    "select * from cerebro.wait({name} || '2', '30 s')",
    "select cerebro.promote({name}, {name} || '3')",
    "select cerebro.drop_alias({name} || '3')",
    "select * from cerebro.run, cerebro.model, cerebro.trial, cerebro.epoch, cerebro.visit, cerebro.progress, cerebro.alias",
    "select * from cerebro.drop_runs({name} || '%', '{{\"runs\": 0}}')",
    "select cerebro_internal.worker_hello()",
    "select cerebro_internal.worker_claim('{{\"group\": \"x\"}}')",
    "select cerebro_internal.worker_release()",
]


def test_no_name_of_a_search_path_stands_for_postgresqls_own(session, source, attacker):
    """Functions, operators and relations before those of pg_catalog, in schemas of another role and in pg_temp, by the
    session's path and by the role's own, which links to segments and to the ledger have as well; none is ever called."""
    cluster, trap, name = session.cluster, Trap(session.cluster), session.name()
    for node in cluster.nodes:
        with node.connect(attacker) as connection:
            lay(connection, attacker, trap)
    values = {
        "name": "'%s'" % name, "source": "'%s'::pg_catalog.regclass" % source.name, "model": "'%s'" % session.model(),
        "definition": json.dumps(LOGIT), "options": json.dumps({**QUICK, "segments": 1}), "schema": session.schema,
    }  # fmt: skip
    with first(cluster, attacker, ROLE):
        session.conn.execute("create temporary view pg_class as select 1 as oid; create temporary view usable_run as select 1 as id")
        session.conn.execute("set search_path = %s, pg_temp, pg_catalog" % attacker)
        try:
            session.conn.execute("select now(), 1 = 1 from pg_roles")  # what a trap looks like that is sprung
            assert set(trap.sprung()) == {"%s %s" % (ROLE, ROLE)}
            for call in CALLS:
                session.conn.execute(call.replace("||", "operator(pg_catalog.||)").format(**values))
                assert trap.sprung() == [], call
        finally:
            session.conn.execute("reset search_path; drop view pg_temp.pg_class, pg_temp.usable_run")
            session.conn.execute("select pg_catalog.set_config('search_path', %s, false)", [quoted(session.schema)])


def test_a_superuser_who_looks_at_all_nodes_springs_no_trap(superuser, cluster, attacker):
    trap = Trap(cluster)
    schema = attacker + "_2"
    for node in cluster.nodes:
        node.execute("create schema {0} authorization {1}; grant usage on schema {0} to public".format(schema, attacker))
        with node.connect(attacker) as connection:
            lay(connection, schema, trap)
    try:
        with first(cluster, schema, ADMIN):
            assert superuser.execute("select pg_catalog.bool_and(ok) from cerebro.doctor()").fetchone() == (True,)
    finally:
        for node in cluster.nodes:
            node.execute("drop schema %s cascade" % schema)
    assert trap.sprung() == []


# ---- types


def test_no_cast_of_a_type_is_called_for_who_reads_a_column_of_it(session, attacker):
    """Whose type it is may make a cast, which a SELECT of the column would never call."""
    cluster, trap = session.cluster, Trap(session.cluster)
    mood = attacker + ".mood"
    with cluster.connect(attacker) as connection:
        connection.execute("create type %s as enum ('sad', 'glad')" % mood)
        for kind in ("text", "int4", "float8", "json", "jsonb", "text[]"):
            function = "%s.to_%s" % (attacker, kind.replace("[]", "s"))
            connection.execute("create function %s(%s) returns %s " % (function, mood, kind) + trap.body)
            connection.execute("create cast (%s as %s) with function %s(%s)" % (mood, kind, function, mood))
        connection.execute("grant usage on type %s to public" % mood)
    moods = {"a": mood, "label": mood}
    table = session.local(moods, [("sad", "glad"), ("glad", "sad")] * 10)
    session.conn.execute("select a::text from %s" % table.name)
    assert set(trap.sprung()) == {"%s %s" % (ROLE, ROLE)}
    run = session.fit(table, session.model(), "label", ["a"], segments=1)
    session.rows("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"segments\": 1}')", run, table.name)
    session.rows(
        "select cerebro.pack(%s::text::regclass, %s, 'label', options => '{\"validation\": 0}')", table.name, session.schema + ".moods"
    )
    few = session.local(moods, [("sad", "glad"), ("glad", "sad")])
    session.rows("select cerebro.predict_table(%s, %s::text::regclass, %s, '{a}')", run, few.name, session.schema + ".foreseen")
    assert trap.sprung() == []


# ---- servers that others own


class Listener:
    """A server that asks whoever connects for a password in clear text, and keeps what it is told."""

    def __init__(self):
        self.heard: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(5)
                    client.recv(4096)
                    client.sendall(b"N")  # no TLS here
                    self.heard.append(client.recv(4096))
                    client.sendall(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
                    self.heard.append(client.recv(4096))


@pytest.fixture
def listener():
    made = Listener()
    yield made
    made.socket.close()


@pytest.fixture
def evil(cluster, attacker, listener):
    """A server of the attacker's, with user mappings that it made for others, and a table with a partition there."""
    admin = cluster.coordinator
    admin.execute("grant usage on foreign data wrapper postgres_fdw to " + attacker)
    with cluster.connect(attacker) as connection:
        connection.execute(
            "create server evil foreign data wrapper postgres_fdw options (host '127.0.0.1', port '%d', dbname 'cerebro')" % listener.port
        )
        connection.execute("grant usage on foreign server evil to public")
        for role in (ROLE, ADMIN):
            connection.execute("create user mapping for %s server evil options (user '%s', password 'any')" % (role, role))
        connection.execute("create table {0}.bait (a real, b float8, label boolean) partition by list (label)".format(attacker))
        connection.execute("create foreign table {0}.bait_1 partition of {0}.bait default server evil".format(attacker))
        connection.execute("grant select on {0}.bait, {0}.bait_1 to public".format(attacker))
    yield attacker + ".bait"
    admin.execute("drop server evil cascade; revoke usage on foreign data wrapper postgres_fdw from " + attacker)
    admin.execute("drop table %s.bait" % attacker)


def test_no_link_goes_where_another_role_says(session, superuser, evil, attacker, listener, run):
    model, wanted = session.model(), Refusal(
        "42501", 'server "evil" belongs to role "%s", which is no superuser' % attacker,
        "Its owner can have it lead anywhere, and whoever is there would be sent your models and could pass your login on.",
        HINT,
    )  # fmt: skip
    calls = [session.call(evil, model, "label"), ("select * from cerebro.segments(%s::text::regclass)", [evil]),
             ("select * from cerebro.evaluate(%s, %s::text::regclass)", [run, evil]),
             ("select cerebro.predict_table(%s, %s::text::regclass, 'x', '{a}')", [run, evil]),
             ("select cerebro.pack(%s::text::regclass, 'x', 'label')", [evil])]  # fmt: skip
    for statement, values in calls:
        assert session.error(statement, *values) == wanted, statement
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match='server "evil" belongs'):
        superuser.execute("select * from cerebro.segments(%s::text::regclass)", [evil])
    for connection in (session.conn, superuser):
        assert connection.execute("select 1 from cerebro.doctor() where node = 'evil'").fetchall() == []
    assert listener.heard == []


@pytest.mark.parametrize("needed", [True, False])
def test_whoever_listens_where_a_server_leads_is_told_no_password(listener, needed):
    class Pulse:
        def check(self) -> None:
            pass

    link = Link(Address("here", "127.0.0.1", str(listener.port), "cerebro", "somebody", "a-secret", needed), "a test")
    with pytest.raises(CerebroError) as caught:
        link.open(Pulse())
    assert "cleartext" in caught.value.detail and "a-secret" not in "%s %s" % (caught.value, caught.value.detail)
    assert listener.heard and not any(b"a-secret" in text for text in listener.heard)


# ---- what another role lets be written to


def test_triggers_and_defaults_of_a_target_act_as_insert_would_have_them_and_never_as_another(session, run, source, attacker):
    """A row that is appended to another role's table calls its triggers as who appends it; whoever is only read of, none."""
    cluster, trap = session.cluster, Trap(session.cluster)
    with cluster.connect(attacker) as connection:
        connection.execute("set search_path = pg_catalog")
        connection.execute("create function %s.fired() returns trigger " % attacker + trap.body)
        for name in ("written", "read"):
            connection.execute("create table {0}.{1} (a real, b float8, label boolean)".format(attacker, name))
            connection.execute("insert into %s.%s select 1, 2, true" % (attacker, name))
            connection.execute("grant select on %s.%s to public" % (attacker, name))
            connection.execute(
                "create trigger fired before insert or update or delete on {0}.{1} for each row execute function {0}.fired()".format(
                    attacker, name
                )
            )
        connection.execute("create function %s.value() returns float8 immutable " % attacker + trap.body)
        connection.execute("alter table {0}.read alter b set default {0}.value()".format(attacker))
        connection.execute("alter table {0}.read add c float8 generated always as (a * 2) stored".format(attacker))
        connection.execute("alter table {0}.read add check ({0}.value() is null)".format(attacker))
    trap.sprung()
    read = "%s.read" % attacker
    session.rows("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"segments\": 1}')", run, read)
    session.rows("select cerebro.predict_table(%s, %s::text::regclass, %s, '{a}')", run, read, session.schema + ".of_read")
    assert trap.sprung() == []
    error = session.error("select cerebro.predict_table(%s, %s::text::regclass, %s, '{a}', '{\"if_exists\": \"replace\"}')",
                          run, read, attacker + ".written")  # fmt: skip
    assert error.sqlstate in ("42501", "42710") and trap.sprung() == []


# ---- functions


def test_nothing_runs_as_anybody_but_its_caller(session):
    """But for a look into the table of faults, which only superusers write."""
    found = session.rows(
        "select p.proname, p.proconfig, r.rolsuper from pg_proc p join pg_roles r on r.oid = p.proowner"
        " where p.prosecdef and p.pronamespace in ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace) order by 1"
    )
    assert found == [("fault_armed", ["search_path=pg_catalog, pg_temp"], True)]
