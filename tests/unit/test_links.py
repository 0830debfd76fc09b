"""Links whose other end fails, without any server."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import ConnStatus, TransactionStatus

from cerebro_udf.coordinator import links
from cerebro_udf.coordinator.links import Address, Link
from cerebro_udf.errors import NotAuthenticated, SegmentUnreachable, TooManyConnections

ADDRESS = Address("far", "127.0.0.1", "1", "db", "me", "secret")


class Connection:
    """A libpq connection on which these calls raise."""

    status, transaction_status = ConnStatus.OK, TransactionStatus.IDLE

    def __init__(self, *failing: str):
        self._failing = failing
        self.finished = False

    def _may_fail(self, name: str) -> None:
        if name in self._failing:
            raise psycopg.OperationalError("%s failed" % name)

    def send_query_params(self, *arguments, **named) -> None:
        self._may_fail("send")

    @property
    def socket(self) -> int:
        self._may_fail("socket")
        return 0

    def flush(self) -> int:
        self._may_fail("flush")
        return 0

    def consume_input(self) -> None:
        self._may_fail("consume_input")

    def cancel_conn(self):
        return Cancel(self._may_fail)

    def finish(self) -> None:
        self.finished = True


class Cancel:
    def __init__(self, may_fail):
        self._may_fail = may_fail

    def start(self) -> None:
        self._may_fail("cancel")

    @property
    def socket(self) -> int:
        self._may_fail("cancel socket")
        return 1

    def poll(self):
        self._may_fail("cancel poll")
        return psycopg.pq.PollingStatus.OK


def link_to(connection: Connection | None) -> Link:
    link = Link(ADDRESS, "test")
    link._conn = connection
    return link


@pytest.mark.parametrize("call", ["send", "socket"])
def test_request_on_a_link_that_breaks_is_answered(call):
    connection = Connection(call)
    link = link_to(connection)
    link.post("select 1", b"." * 1000, tag="first")
    link.post("select 2", tag="second")
    (reply,) = links.pump([link], None)
    assert (reply.tag, reply.error.sqlstate, reply.error.message) == ("first", None, "%s failed" % call)
    assert connection.finished and not link.alive and not link.busy


def test_request_on_a_link_that_is_gone_is_answered():
    link = link_to(None)
    link.post("select 1", tag="first")
    (reply,) = links.pump([link], None)
    assert (reply.tag, reply.error.sqlstate) == ("first", None)
    assert not link.busy


def test_a_cancel_that_comes_with_a_reply_does_not_lose_it():
    """What a lost reply would have told, such as that a run was begun, nobody could undo."""
    link = link_to(None)

    class Pulse:
        def check(self) -> None:
            if not link.busy:
                raise KeyboardInterrupt

    link.post("select 1", tag="first")
    (reply,) = links.pump([link], Pulse())
    assert reply.tag == "first"
    with pytest.raises(KeyboardInterrupt):
        links.pump([link], Pulse())


@pytest.mark.parametrize("calls", [["send"], ["socket"], ["cancel"], ["cancel socket"], ["cancel poll"], ["socket", "cancel poll"]])
def test_stop_closes_a_link_that_breaks_meanwhile(calls):
    connection = Connection(*calls, "flush", "consume_input")
    link = link_to(connection)
    link.post("select 1")
    links.stop([link], 0.2)
    assert not link.alive and not link.busy and connection.finished


FATAL = 'connection to server at "127.0.0.1", port 1 failed: FATAL:  '


@pytest.mark.parametrize(
    "text, needs, used, kind, hint",
    [
        (FATAL + 'password authentication failed for user "me"', False, True, NotAuthenticated, "ALTER USER MAPPING"),
        ("fe_sendauth: no password supplied", True, False, NotAuthenticated, "CREATE USER MAPPING IF NOT EXISTS"),
        (FATAL + 'no pg_hba.conf entry for host "127.0.0.1"', False, False, NotAuthenticated, "pg_hba.conf"),
        (FATAL + 'role "me" is not permitted to log in', False, True, NotAuthenticated, 'CREATE ROLE "me"'),
        (FATAL + 'too many connections for role "me"', False, True, TooManyConnections, "raise the limit"),
        (FATAL + "sorry, too many clients already", False, False, TooManyConnections, "raise the limit"),
        (FATAL + "remaining connection slots are reserved for", False, False, TooManyConnections, "raise the limit"),
        (FATAL + 'database "password" does not exist', False, True, SegmentUnreachable, "is up"),
        ("connection to server failed: Connection refused", False, False, SegmentUnreachable, "See that the server"),
        (
            'failed: authentication method requirement "scram-sha-256,md5" failed: server did not complete authentication',
            False, False, NotAuthenticated, "Set scram-sha-256",
        ),
        (
            'failed: authentication method requirement "scram-sha-256,md5" failed: server requested a cleartext password',
            False, False, NotAuthenticated, "Set scram-sha-256",
        ),
    ],
)  # fmt: skip
def test_refused_connection_is_told_by_what_refused_it(text, needs, used, kind, hint):
    error = links._connection_error(ADDRESS, text, needs, used)
    assert type(error) is kind
    assert error.detail == text or "without a password" in error.message
    assert hint in error.hint
