"""Use of runs, aliases and models, granted to other roles: who may do what, as docs/security.md shows it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import psycopg
import pytest

from tests import requirements as requires
from tests.cluster import ADMIN, ROLE
from tests.session import LOGIT, POINTS, Refusal, Session, points

WARM = True
pytestmark = requires.segments(3)

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
UPDATE = "CEREBRO_UPDATE_TEXTS"
ROW = "array[1, 2]"

# What is tried. `yes` stands for rows that are not empty, or for the error that comes after the rights were looked at.
BEYOND = {"42703": "pg_class has no such column", "55000": "the alias has nothing to return to"}
OPERATIONS = [
    ("model", "see it", "select * from cerebro.model where model = {model}"),
    ("model", "train it", "select * from cerebro.fit('probe', 'pg_class', {model}, 'no_such_column', '{{relpages}}')"),
    ("model", "build upon it", "select cerebro.create_model('upon', '{{\"layers\": [{{\"Model\": \"{name}_model\"}}]}}')"),
    ("model", "grant it", "select cerebro.grant_model({model}, 'public')"),
    ("model", "drop it", "select cerebro.drop_model({model})"),
    ("run", "see it, its trials and epochs", "select * from cerebro.run r join cerebro.trial using (run) join cerebro.epoch using (run)"
     " join cerebro.visit using (run) where run = {run}"),
    ("run", "`wait`", "select * from cerebro.wait({run})"),
    ("run", "`predict`", "select cerebro.predict_class({run}, %s)" % ROW),
    ("run", "`predict_table`", "select cerebro.predict_table({run}, 'pg_class', 'anyones.t', '{{oid}}')"),
    ("run", "`evaluate`", "select * from cerebro.evaluate({run}, 'pg_class')"),
    ("run", "`export_model`", "select cerebro.export_model({run})"),
    ("run", "begin from it", "select * from cerebro.fit('probe', 'pg_class', {model}, 'label', '{{a,b}}',"
     " '{{\"init_from\": {{\"run\": \"{name}_run\"}}}}')"),
    ("run", "`promote` it", "select cerebro.promote({run}, 'mine')"),
    ("run", "grant it", "select cerebro.grant_run({run}, 'public')"),
    ("run", "`cancel`", "select cerebro.cancel({run}) is not null"),
    ("run", "`drop_run`", "select cerebro.drop_run({run})"),
    ("alias", "see it", "select * from cerebro.alias where alias = {alias}"),
    ("alias", "`predict`", "select cerebro.predict_class({alias}, %s)" % ROW),
    ("alias", "grant it", "select cerebro.grant_run({alias}, 'public')"),
    ("alias", "`rollback`", "select cerebro.rollback({alias})"),
    ("alias", "`drop_alias`", "select cerebro.drop_alias({alias})"),
]  # fmt: skip


@pytest.fixture(scope="module")
def roles(session):
    """Ordinary roles by what they are to `tester`, whose objects these are."""
    cluster, made = session.cluster, {}
    for what in ("member", "granted", "alias", "stranger"):
        made[what] = "grants_" + what
        cluster.drop_role(made[what])
        cluster.add_role(made[what])
    cluster.coordinator.execute("grant %s to %s" % (ROLE, made["member"]))
    cluster.coordinator.execute("create schema if not exists anyones; grant all on schema anyones to public")
    yield made
    cluster.coordinator.execute("drop schema anyones")
    for role in made.values():
        cluster.coordinator.execute("delete from cerebro_internal.run where owner = %s", [role])
        cluster.coordinator.execute("delete from cerebro_internal.model where owner = %s", [role])
        cluster.drop_role(role)


@pytest.fixture
def acting(session):
    """A session that takes up roles in turn: what a backend has loaded serves them all."""
    with session.cluster.connect(ADMIN) as connection:

        def act(role: str) -> psycopg.Connection:
            connection.execute('set role "%s"' % role)
            return connection

        yield act


def made(session, table, name: str) -> str:
    """A model, a run and an alias with names that begin alike."""
    session.model(LOGIT, name + "_model")
    session.fit(table, name + "_model", "label", run=name + "_run")
    session.rows("select cerebro.promote(%s, %s)", name + "_run", name)
    return name


def asked(connection: psycopg.Connection, name: str, statement: str) -> str:
    """What comes of it: yes, or the SQLSTATE; nothing of it stays."""
    quoted = {"name": name, "model": "'%s_model'" % name, "run": "'%s_run'" % name, "alias": "'%s'" % name}
    connection.execute("begin")
    try:
        return "yes" if connection.execute(statement.format(**quoted)).fetchall() else "no rows"
    except psycopg.Error as error:
        return "yes" if error.diag.sqlstate in BEYOND else error.diag.sqlstate
    finally:
        connection.execute("rollback")


def test_who_may_do_what(session, roles, acting):
    table = session.local(POINTS, points())
    one, open_to_all = made(session, table, "shared"), made(session, table, "open")
    for call in ("grant_run('shared_run', 'grants_granted')", "grant_model('shared_model', 'grants_granted')",
                 "grant_run('shared', 'grants_alias')", "grant_run('open_run', 'public')",
                 "grant_model('open_model', 'public')", "grant_run('open', 'public')"):  # fmt: skip
        session.rows("select cerebro." + call)
    columns = [("owner", ROLE, one), ("member of the owner", roles["member"], one), ("granted run and model", roles["granted"], one),
               ("granted the alias", roles["alias"], one), ("granted to `public`", roles["stranger"], open_to_all),
               ("another role", roles["stranger"], one)]  # fmt: skip
    lines = ["| | | %s |" % " | ".join(title for title, _, _ in columns), "|---|---|" + "---|" * len(columns)]
    for kind, what, statement in OPERATIONS:
        cells = []
        for title, role, name in columns:
            if what == "`drop_run`" and title in ("owner", "member of the owner"):
                name = "gone_%d" % len(cells)  # it is not undone by ROLLBACK
                session.fit(table, "open_model", "label", run=name + "_run")
            cells.append(asked(acting(role), name, statement))
        lines.append("| %s | %s | %s |" % (kind, what, " | ".join(cells)))
    seen = "\n".join(lines) + "\n"
    text = PAGE.read_text("utf-8")
    kept = re.search(r"\| \| \| owner .*?\n(?=\n)", text, re.DOTALL).group()
    if os.environ.get(UPDATE):
        PAGE.write_text(text.replace(kept, seen), "utf-8")
        kept = seen
    assert seen == kept


@pytest.fixture(scope="module")
def lent(session, roles):
    """A run on two segments, and its table, which `grants_granted` may read and use."""
    table = session.sharded(POINTS, points())
    for node in session.cluster.nodes:
        node.execute("grant usage on schema %s to grants_granted" % session.schema)
        node.execute("grant select on all tables in schema %s to grants_granted" % session.schema)
    model = session.model(LOGIT)
    run = session.fit(table, model, "label", run="lent")
    session.rows("select cerebro.grant_run(%s, 'grants_granted')", run)
    session.rows("select cerebro.grant_model(%s, 'grants_granted')", model)
    return table, model, run


@pytest.fixture(scope="module")
def user(session, roles):
    """A session of the role that was granted the use of `lent`."""
    for node in session.cluster.nodes:
        node.execute("drop schema if exists grants_granted cascade; create schema grants_granted authorization grants_granted")
    made = Session(session.cluster, "grants_granted", "grants_granted")
    yield made
    made.close()


def test_a_run_that_was_granted_judges_predicts_and_is_begun_from(session, lent, user):
    table, model, run = lent
    ask = "select metric, value from cerebro.evaluate(%s, %s::text::regclass)"
    assert user.rows(ask, run, table.name) == session.rows(ask, run, table.name)
    row = "select cerebro.predict_probabilities(%s, array[1, 2])"
    assert user.rows(row, run) == session.rows(row, run)
    begun = user.fit(table, model, "label", init_from={"run": run})
    assert user.rows("select owner, state from cerebro.run where run = %s", begun) == [("grants_granted", "done")]


def test_a_grant_is_for_use_alone(session, lent, user):
    run = lent[2]
    for call in ("drop_run", "cancel"):
        assert user.error("select cerebro.%s(%%s)" % call, run) == Refusal(
            "42501", 'must be owner of run "lent"', 'It belongs to role "tester"; you were granted its use.', "Ask its owner."
        )
    error = user.error("select cerebro.grant_run(%s, 'public')", run)
    assert (error.sqlstate, error.message) == ("42501", 'must be owner of run "lent"')
    error = user.error("select cerebro.promote(%s, 'mine')", run)
    assert error.sqlstate == "42501" and "grant_run" in error.hint
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", run)[0][0]
    for write in ("update cerebro_internal.visible_run set state = 'failed' where id = %s returning 1",
                  "delete from cerebro_internal.visible_state where run = %s returning 1",
                  "delete from cerebro_internal.visible_run_grant where run = %s returning 1"):  # fmt: skip
        assert user.rows(write, number) == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        user.rows("delete from cerebro_internal.usable_run returning 1")


def test_what_is_not_the_callers_is_not_granted_by_hand(session, lent, user):
    """Views let a role write its own rows: rows that would lend it, or hold on to, a run of somebody else are none."""
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", lent[2])[0][0]
    for statement in ("insert into cerebro_internal.visible_run_grant values (%s, 'public')",
                      "insert into cerebro_internal.visible_promotion (owner, alias, position, run, run_name, trial)"
                      " values ('grants_granted', 'mine', 1, %s, 'x', 0)"):  # fmt: skip
        error = user.error(statement, number)
        assert error.sqlstate in ("44000", "42501"), error


def test_what_was_taken_back_is_gone(session, lent, roles, acting):
    session.rows("select cerebro.grant_run('lent', 'grants_stranger')")
    look = "select count(*) from cerebro.run where run = 'lent'"
    assert acting(roles["stranger"]).execute(look).fetchone() == (1,)
    assert session.rows("select granted_to from cerebro.run where run = 'lent'") == [(["grants_granted", "grants_stranger"],)]
    for _ in range(2):
        session.rows("select cerebro.revoke_run('lent', 'grants_stranger')")
    assert acting(roles["stranger"]).execute(look).fetchone() == (0,)
    assert session.rows("select granted_to from cerebro.run where run = 'lent'") == [(["grants_granted"],)]


def test_an_alias_lends_what_it_stands_for_and_nothing_else(session, lent, roles, acting):
    table, model, _ = lent
    first, second = (session.fit(table, model, "label") for _ in range(2))
    session.rows("select cerebro.promote(%s, 'current')", first)
    session.rows("select cerebro.grant_run('current', 'grants_alias')")

    def seen() -> list:
        query = "select run from cerebro.run where run = any(%s)"
        return [run for (run,) in acting(roles["alias"]).execute(query, [[first, second]]).fetchall()]

    assert seen() == [first]
    session.rows("select cerebro.promote(%s, 'current')", second)
    assert seen() == [second]
    session.rows("select cerebro.rollback('current')")
    assert seen() == [first]
    session.rows("select cerebro.drop_alias('current')")
    assert seen() == []
    session.rows("select cerebro.promote(%s, 'current')", first)
    assert seen() == []


def test_an_alias_does_not_pass_on_what_its_owner_may_only_see_as_a_member(session, lent, roles, acting):
    acting(roles["member"]).execute("select cerebro.promote('lent', 'passed_on')")
    acting(roles["member"]).execute("select cerebro.grant_run('passed_on', 'grants_alias')")
    assert acting(roles["alias"]).execute("select count(*) from cerebro.run where run = 'lent'").fetchone() == (0,)
    acting(roles["member"]).execute("select cerebro.drop_alias('passed_on')")


def test_a_run_that_replaces_another_keeps_its_grants(session, lent, user):
    table, model, _ = lent
    for _ in range(2):
        session.fit(table, model, "label", run="again", if_exists="replace")
        session.rows("select cerebro.grant_run('again', 'grants_granted')")
    session.fit(table, model, "label", run="again", if_exists="replace")
    assert user.rows("select state from cerebro.run where run = 'again'") == [("done",)]


def test_grants_name_what_exists(session, lent):
    assert session.error("select cerebro.grant_run('lent', 'nobody_here')") == Refusal(
        "42704", 'role "nobody_here" does not exist', None, "\\du lists all roles; public stands for all of them."
    )
    assert session.error("select cerebro.revoke_run('lent', 'nobody_here')").sqlstate == "42704"
    for call in ("grant_run", "revoke_run", "grant_model", "revoke_model"):
        assert session.error("select cerebro.%s('nothing', 'public')" % call).sqlstate == "42704"
        assert session.error("select cerebro.%s('lent', null)" % call).sqlstate == "22004"
        assert session.error("select cerebro.%s(' ', 'public')" % call).sqlstate == "22004"


def test_predictions_of_a_granted_run_are_cached_by_what_may_be_seen(session, lent, roles, acting):
    """A backend that has compiled a run for one role does not serve it to the next, in one message to the server neither."""
    row = "select cerebro.predict_class('lent', array[1, 2])"
    assert json.dumps(acting(roles["granted"]).execute(row).fetchone())
    connection = acting(roles["stranger"])
    for statements in (row, "set role grants_granted; %s; set role grants_stranger; %s" % (row, row)):
        with pytest.raises(psycopg.Error, match='run "lent" does not exist'):
            connection.execute(statements)
