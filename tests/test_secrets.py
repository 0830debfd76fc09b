"""A password is in the user mapping, where PostgreSQL keeps it, and nowhere that Cerebro writes or speaks."""

from __future__ import annotations

import psycopg
import pytest

from tests.cluster import ADMIN
from tests.session import LINE, POINTS, points

WRONG = "Xyzzy-not-the-password-4711"


def texts(cluster, marks: list[int], connection: psycopg.Connection) -> list[str]:
    """All that anybody could read of calls of Cerebro: the servers' logs since then, the catalog, lists of sessions, what doctor says."""
    found = [node.log_since(mark) for node, mark in zip(cluster.nodes, marks)]
    for node in cluster.nodes:
        relations = node.execute("select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'cerebro_internal'")
        assert relations
        found += [str(node.execute("select to_jsonb(t)::text from %s t" % name)) for (name,) in relations]
        found.append(str(node.execute("select application_name, query from pg_stat_activity where pid <> pg_backend_pid()")))
    found.append(str(connection.execute("select d::text from cerebro.doctor() d").fetchall()))
    return found


@pytest.fixture
def talker(session, make_role):
    """A role with a password of its own, and its connection, every notice of which is kept."""
    role, said = make_role(), []
    with session.cluster.connect(role) as connection:
        connection.add_notice_handler(lambda notice: said.append(str([notice.message_primary, notice.message_detail, notice.message_hint])))
        yield role, connection, said


def error(connection, statement: str, values: list) -> str:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement, values)
    diag = caught.value.diag
    return str([diag.message_primary, diag.message_detail, diag.message_hint, diag.context])


def test_no_password_is_in_an_error_a_log_the_catalog_or_a_list_of_sessions(session, talker):
    cluster, (role, connection, said) = session.cluster, talker
    marks = [node.log_size() for node in cluster.nodes]
    password = cluster.coordinator.server.password(role)
    table = session.local(POINTS, points(20))
    session.conn.execute("grant usage on schema {0} to {1}; grant select on {2} to {1}".format(session.schema, role, table.name))
    connection.execute("select cerebro.create_model('line', %s)", [psycopg.types.json.Jsonb(LINE)])
    statement, values = session.call(table, "line", "b", ["a"], run="told")
    connection.execute(statement, values)
    mapping = "alter user mapping for %s server cerebro_self options (set %s '%s')"
    admin = cluster.connect(ADMIN)
    said.append(error(connection, statement, values))  # the run exists
    try:
        admin.execute(mapping % (role, "password", WRONG))
        with cluster.connect(role) as fresh:
            said.append(error(fresh, statement, [role, *values[1:]]))
            said.append(str(fresh.execute("select d::text from cerebro.doctor() d").fetchall()))
        admin.execute(mapping % (role, "user", ADMIN))
        with cluster.connect(role) as fresh:
            said.append(error(fresh, statement, [role, *values[1:]]))
    finally:
        admin.execute(mapping % (role, "user", role) + ";" + mapping % (role, "password", password))
        admin.close()
    for text in [*said, *texts(cluster, marks, connection)]:
        assert password not in text and WRONG not in text
