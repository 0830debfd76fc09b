"""Links: libpq sessions to segments and to the ledger, driven together by one thread without ever blocking.

A link carries one request at a time; further ones wait in its queue, in order. ``pump`` moves bytes on every link,
lets the server act on interrupts every 50 ms, and hands out the replies.
"""

from __future__ import annotations

import json
import os
import re
import select
import struct
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

from cerebro_udf.errors import CerebroError, NotAuthenticated, SegmentUnreachable, TooManyConnections
from cerebro_udf.wire import PROGRESS_PREFIX

TURN_SECONDS = 0.05  # how long a poll may last before interrupts are looked at
CANCEL_TURN_SECONDS = 0.005  # the same while a cancel request, which takes a few milliseconds, is under way
CONNECT_SECONDS = 10.0

# A line that is dead, though nobody has closed it, is told after two minutes at either end; one that is merely slow is waited for.
KEEPALIVE = {"idle": "60", "interval": "15", "count": "4"}  # seconds, seconds, probes without an answer
UNACKNOWLEDGED_MILLISECONDS = "120000"  # that what was sent may stay so


def _isolated_pq():
    """Import psycopg so that its own libpq stays apart from the one that the server may have loaded.

    Without RTLD_DEEPBIND the server's older libpq takes its place symbol by symbol, and calls crash the backend.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
    try:
        from psycopg import Error, pq
    finally:
        sys.setdlopenflags(flags)
    if pq.version() != pq.__build_version__:
        raise CerebroError(
            "psycopg runs on another libpq than it was built with",
            "Built with %d, running on %d." % (pq.__build_version__, pq.version()),
            'Install "psycopg[binary]" into the environment on the server\'s PYTHONPATH.',
        )
    return pq, Error


pq, Error = _isolated_pq()

_INT4, _INT8, _FLOAT8, _TEXT, _BYTEA, _JSONB, _BOOL, _BYTEA_ARRAY, _TEXT_ARRAY = 23, 20, 701, 25, 17, 3802, 16, 1001, 1009


@dataclass(frozen=True)
class Address:
    """Where a session goes and as whom: from a server object and the caller's own user mapping."""

    name: str  # of the foreign server, for messages
    host: str
    port: str
    dbname: str
    user: str
    password: Optional[str] = field(repr=False)
    needs_password: bool = True  # False for superusers only
    ssl: Tuple[Tuple[str, str], ...] = ()  # libpq's options of the server object that secure the connection

    def __str__(self) -> str:
        return "%s:%s/%s" % (self.host, self.port, self.dbname)


class RemoteError(Exception):
    """An error that the other end of a link reported; ``sqlstate`` is None when the link itself broke.

    Args:
        announced: Whether the server said that it ends the session: it was told to, or another process of it has crashed.
    """

    def __init__(self, sqlstate: Optional[str], message: str, detail: Optional[str] = None, hint: Optional[str] = None,
                 announced: bool = False):  # fmt: skip
        super().__init__(message)
        self.sqlstate, self.message, self.detail, self.hint, self.announced = sqlstate, message, detail, hint, announced


@dataclass
class Reply:
    """What came back for a request: rows of raw values, or an error."""

    link: "Link"
    tag: Any
    rows: List[Tuple[Optional[bytes], ...]]
    error: Optional[RemoteError]
    sent_at: float  # time.time() when the request went out
    received_at: float


@dataclass
class _Request:
    command: bytes
    values: List[Optional[bytes]]
    types: List[int]
    formats: List[int]
    tag: Any
    size: int
    sent_at: float = 0.0


def encode(value: Any) -> Tuple[int, int, Optional[bytes]]:
    """Give libpq's (type oid, format, bytes) of a parameter; binary wherever the bytes may be long."""
    if value is None:
        return 0, 0, None
    if isinstance(value, bool):
        return _BOOL, 0, b"t" if value else b"f"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value)  # jsonb writes 1e20 as a whole number
    if isinstance(value, int):
        return (_INT4 if -(2**31) <= value < 2**31 else _INT8), 0, str(value).encode()
    if isinstance(value, float):
        return _FLOAT8, 0, repr(value).encode()
    if isinstance(value, (bytes, bytearray)):
        return _BYTEA, 1, bytes(value)
    if isinstance(value, dict):
        return _JSONB, 0, json.dumps(value).encode()
    if isinstance(value, list):  # of bytes or of str
        texts = all(isinstance(item, str) for item in value)
        items = [item.encode() if isinstance(item, str) else item for item in value]
        head = struct.pack("!iiIii", 1, 0, _TEXT if texts and items else _BYTEA, len(items), 1)
        if not items:
            head = struct.pack("!iiI", 0, 0, _BYTEA)
        body = b"".join(struct.pack("!i", len(item)) + item for item in items)
        return (_TEXT_ARRAY if texts and items else _BYTEA_ARRAY), 1, head + body
    return _TEXT, 0, str(value).encode()


@contextmanager
def _without_libpq_environment():
    """Keep PG* variables of the server's environment from deciding where a link goes, or as whom."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(kept)


class Link:
    """One session. ``open`` connects; ``post`` queues a request; replies come out of ``pump``.

    A request that fails takes those with it that are queued behind it; its reply is the last one.

    Args:
        address: Where to, and as whom.
        application: What pg_stat_activity shows there.
    """

    def __init__(self, address: Address, application: str):
        self.address = address
        self._application = application
        self._queue: Deque[_Request] = deque()
        self._current: Optional[_Request] = None
        self._conn = None
        self._results: list = []
        self._writing = False
        self._broken: Optional[str] = None  # why the current request could not be sent
        self.progress: Optional[dict] = None  # the running request's last word about itself
        self.facts: dict = {}  # what the other end said about its node
        self.recovered_at: Optional[bytes] = None  # when its server last recovered from a crash, or its statistics were reset
        self._farewell: Optional[str] = None  # how the server announced that it ends the session

    # -- connecting --

    def open(self, pulse) -> None:
        """Connect and authenticate as the caller, interruptibly.

        Raises:
            NotAuthenticated: refused, or let in without the caller's own password.
            SegmentUnreachable: no server there, or no answer in time.
        """
        address = self.address
        given = {
            "host": address.host, "port": address.port, "dbname": address.dbname, "user": address.user,
            "application_name": self._application, "client_encoding": "UTF8",
            "passfile": "/nonexistent", "gssencmode": "disable", "connect_timeout": "10",
            "options": "-csearch_path=pg_catalog,pg_temp",  # from the first statement on, whatever the role's own setting says
            "require_auth": "scram-sha-256,md5" if address.needs_password else "!password",
            "tcp_user_timeout": UNACKNOWLEDGED_MILLISECONDS, **{"keepalives_" + name: value for name, value in KEEPALIVE.items()},
        }  # fmt: skip
        given.update(address.ssl)
        if address.password is not None:
            given["password"] = address.password
        conninfo = " ".join("%s='%s'" % (k, v.replace("\\", "\\\\").replace("'", "\\'")) for k, v in given.items())
        with _without_libpq_environment():
            conn = pq.PGconn.connect_start(conninfo.encode())
        conn.notice_handler = self._on_notice  # libpq would write to the server's log what it hears while it connects
        deadline = time.monotonic() + CONNECT_SECONDS
        try:
            while True:
                step = conn.connect_poll()
                if step in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
                    break
                poller = select.poll()
                poller.register(conn.socket, select.POLLIN if step == pq.PollingStatus.READING else select.POLLOUT)
                poller.poll(TURN_SECONDS * 1000)
                pulse.check()
                if time.monotonic() > deadline:
                    raise SegmentUnreachable(
                        'segment "%s" does not answer' % address.name,
                        "No answer from %s within %d s." % (address, CONNECT_SECONDS),
                        "See that the server is up and that no firewall lies between; select * from cerebro.doctor() checks every node.",
                    )
            if step == pq.PollingStatus.FAILED:
                raise _connection_error(address, _error_text(conn), conn.needs_password, conn.used_password)
            if address.needs_password and not conn.used_password:  # a certificate alone, for one
                raise _let_in(address)
        except BaseException:
            conn.finish()
            raise
        conn.nonblocking = 1
        self._conn = conn

    def _on_notice(self, result) -> None:
        text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        message = text.decode("utf-8", "replace")
        if (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").startswith(b"57P"):  # a crash elsewhere, a server that stops
            self._farewell = message
        if message.startswith(PROGRESS_PREFIX):
            self.progress = json.loads(message[len(PROGRESS_PREFIX) :])

    # -- requests --

    def post(self, command: str, *values: Any, tag: Any = None) -> None:
        """Queue a request; its reply comes out of ``pump`` under this tag."""
        encoded = [encode(value) for value in values]
        self._queue.append(
            _Request(
                command.encode(), [e[2] for e in encoded], [e[0] for e in encoded], [e[1] for e in encoded],
                tag, sum(len(e[2] or b"") for e in encoded),
            )
        )  # fmt: skip
        if self._current is None:
            self._send_next()

    def _send_next(self) -> None:
        request = self._current = self._queue.popleft()
        request.sent_at = time.time()
        self.progress = None
        if self._conn is None:
            self._broken = "the connection is gone"
            return
        try:
            # Text results only for what has no binary form worth having: everything we read is text, json or bytea.
            self._conn.send_query_params(
                request.command, request.values, param_types=request.types, param_formats=request.formats, result_format=1
            )
        except Error as broken:  # the other end died meanwhile: told by the reply, as every broken link is
            self._broken = _line(str(broken))
        self._writing = True

    @property
    def alive(self) -> bool:
        return self._conn is not None and self._conn.status == pq.ConnStatus.OK

    @property
    def busy(self) -> bool:
        return self._current is not None

    @property
    def in_transaction(self) -> bool:
        """Whether the session waits within a transaction, be it an aborted one."""
        return self.alive and self._conn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of parameters that wait in the queue or are being sent."""
        return sum(r.size for r in self._queue) + (self._current.size if self._current else 0)

    @property
    def socket(self) -> Optional[int]:
        """The descriptor to poll; None when the link is broken, which ``step`` then tells."""
        if self._broken is None:
            try:
                return self._conn.socket
            except Error as broken:
                self._broken = _line(str(broken))
        return None

    def wants(self) -> int:
        """The poll events that this link waits for."""
        return select.POLLIN | (select.POLLOUT if self._writing else 0)

    def step(self) -> Optional[Reply]:
        """Move bytes; give the reply when the current request has its whole result."""
        request = self._current
        if self._broken is not None:
            return self._break(self._broken)
        try:
            if self._writing:
                self._writing = self._conn.flush() == 1
            self._conn.consume_input()
            if self._conn.is_busy():
                return None
            while True:
                if self._conn.is_busy():
                    return None  # what has come of this reply waits in _results for the rest
                result = self._conn.get_result()
                if result is None:
                    break
                self._results.append(result)
        except Error as broken:  # the socket is gone
            return self._break(_line(str(broken)))
        error, rows = None, []
        results, self._results = self._results, []
        for result in results:
            if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                rows = [tuple(result.get_value(i, j) for j in range(result.nfields)) for i in range(result.ntuples)]
            else:
                error = _remote_error(result)
        if self._conn.status != pq.ConnStatus.OK:
            farewell = self._farewell or (error.message if error and error.sqlstate else None)
            error = RemoteError(None, farewell or (error.message if error else "the connection is gone"), announced=bool(farewell))
            self.close()
        return self._finish(request, rows, error)

    def _break(self, why: str) -> Reply:
        """Close the link; gives the current request's reply, which says so."""
        request = self._current
        self.close()
        return self._finish(request, [], RemoteError(None, self._farewell or why, announced=bool(self._farewell)))

    def _finish(self, request: _Request, rows, error: Optional[RemoteError]) -> Reply:
        reply = Reply(self, request.tag, rows, error, request.sent_at, time.time())
        self._current = None
        if error is not None:
            self._queue.clear()  # what was queued behind it counted on it: a ledger must not go on after a write that failed
        elif self.alive and self._queue:
            self._send_next()
        return reply

    # -- the end --

    def clear(self, keep_bytes: int = 0) -> None:
        """Forget what is queued and not yet sent, unless it all fits ``keep_bytes``."""
        if sum(r.size for r in self._queue) > keep_bytes:
            self._queue.clear()

    def cancel(self) -> Optional["_Cancel"]:
        """Begin to ask the other end to cancel what it is doing; None when there is nothing to wait for."""
        if self._conn is None or not self.busy:
            return None
        try:
            if pq.version() < 170000:
                self._conn.get_cancel().cancel()  # waits for the server; libpq has no other way
                return None
            return _Cancel(self._conn)
        except Error:  # the server is gone, which ends the request as well
            return None

    def leave(self) -> Optional[int]:
        """Close; gives a descriptor of the connection, which ends when the other process is gone, and its memory free.

        None when the link was broken.
        """
        end = os.dup(self._conn.socket) if self.alive else None
        self.close()
        return end

    def close(self) -> None:
        """Drop the session. The other end notices within a slice and ends itself."""
        if self._conn is not None:
            self._conn.finish()
            self._conn = None
        self._queue.clear()
        self._current, self._results, self._broken = None, [], None


class _Cancel:
    """A cancel request under way, in a connection of its own that never blocks: the other end may hang."""

    def __init__(self, conn):
        self._request = conn.cancel_conn()
        self._request.start()
        self._wants = select.POLLOUT

    def step(self) -> bool:
        """Go on as far as possible; say whether the server has acted on it (or never will)."""
        try:
            while True:
                poller = select.poll()
                poller.register(self._request.socket, self._wants)
                if not poller.poll(0):
                    return False
                status = self._request.poll()
                if status not in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
                    return True
                self._wants = select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT
        except Error:  # the server is gone, which ends the request as well
            return True


def _remote_error(result) -> RemoteError:
    def part(name):
        value = result.error_field(name)
        return value.decode("utf-8", "replace") if value else None

    f = pq.DiagnosticField
    message = part(f.MESSAGE_PRIMARY) or _line(_error_text(result)) or "unknown error"
    return RemoteError(part(f.SQLSTATE), message, part(f.MESSAGE_DETAIL), part(f.MESSAGE_HINT))


def _line(text: str) -> str:
    """What libpq says, in one line: it is quoted within one."""
    return " ".join(text.split())


def _error_text(of) -> str:
    """Why connecting failed, or what a result says that no server has sent; psycopg 3.2 has this as bytes."""
    text = of.error_message if not hasattr(of, "get_error_message") else of.get_error_message()
    return (text.decode("utf-8", "replace") if isinstance(text, bytes) else text).strip()


def _let_in(address: Address) -> NotAuthenticated:
    return NotAuthenticated(
        'server "%s" let a connection in without a password' % address.name,
        "Cerebro only goes on as a role that proved who it is.",
        "Set scram-sha-256 for host connections of %s in pg_hba.conf of %s." % (address.dbname, address),
    )


# Before a session begins, libpq gives an error's text and no SQLSTATE. Only sentences that can mean nothing else count.
_WRONG_PASSWORD = re.compile(r"FATAL:  (password authentication failed|\w+ authentication failed)")
_NOT_LET_IN = re.compile(r"FATAL:  (no pg_hba\.conf entry|pg_hba\.conf rejects)")
_NO_SLOT = re.compile(r"FATAL:  (sorry, too many clients already|too many connections for|remaining connection slots)")
_NO_ROLE = re.compile(r'FATAL:  role ".*" (does not exist|is not permitted to log in)')


def _connection_error(address: Address, text: str, needs_password: bool, used_password: bool) -> CerebroError:
    """What a refused connection means.

    Args:
        address: Where it should lead.
        text: What libpq says.
        needs_password: The server asked for a password and there was none.
        used_password: The server asked for a password and got one.
    """
    server = '"%s"' % address.name.replace('"', '""')
    title = 'server "%s" refuses user "%s"' % (address.name, address.user)
    if 'method requirement "' in text:  # of require_auth
        if "did not complete authentication" in text:
            return _let_in(address)
        return NotAuthenticated(title, text, "Set scram-sha-256 for host connections of %s in pg_hba.conf there." % address)
    if needs_password:
        return NotAuthenticated(
            title,
            text,
            "CREATE USER MAPPING IF NOT EXISTS FOR CURRENT_USER SERVER %s;\n"
            "ALTER USER MAPPING FOR CURRENT_USER SERVER %s OPTIONS (ADD password :'password');" % (server, server),
        )
    if used_password and _WRONG_PASSWORD.search(text):
        return NotAuthenticated(
            title, text, "ALTER USER MAPPING FOR CURRENT_USER SERVER %s OPTIONS (SET password :'password');" % server
        )
    if _NOT_LET_IN.search(text):
        return NotAuthenticated(title, text, "Let the role in with scram-sha-256: add a line to pg_hba.conf of the server at %s." % address)
    if _NO_ROLE.search(text):
        return NotAuthenticated(
            title, text, 'Create it on the server at %s: CREATE ROLE "%s" LOGIN PASSWORD …;' % (address, address.user.replace('"', '""'))
        )
    if _NO_SLOT.search(text):
        hint = "Wait until other runs have ended or sessions were closed, or raise the limit at %s." % address
        return TooManyConnections('server "%s" has no connection left' % address.name, text, hint)
    hint = "See that the server at %s is up; select * from cerebro.doctor() checks every node." % address
    if "FATAL:  " in text:
        hint = "The server at %s is up and says what is amiss; try again once that is mended." % address
    return SegmentUnreachable('cannot connect to segment "%s"' % address.name, text, hint)


def pump(links: Iterable[Link], pulse, timeout: float = TURN_SECONDS) -> List[Reply]:
    """Move bytes on all busy links until at least one reply is complete or the time is up.

    Args:
        links: Links to drive; idle ones cost nothing.
        pulse: ``Pulse`` of this backend; raises on cancel, timeout or a dead client, before anything is read: a reply that has
            been taken off its link is always handed out. None while cleaning up.
        timeout: Seconds.

    Returns:
        Replies, errors included, in the order in which they were completed; empty when the time is up.
    """
    deadline = time.monotonic() + timeout
    while True:
        if pulse is not None:
            pulse.check()
        replies = []
        busy = [link for link in links if link.busy]
        if busy:
            poller = select.poll()
            by_socket = {}
            for link in busy:
                descriptor = link.socket
                if descriptor is None:
                    replies.append(link.step())
                else:
                    by_socket[descriptor] = link
                    poller.register(descriptor, link.wants())
            turn = max(0.0, min(TURN_SECONDS, deadline - time.monotonic()))
            for descriptor, _ in poller.poll(0 if replies else turn * 1000):
                reply = by_socket[descriptor].step()
                if reply is not None:
                    replies.append(reply)
        if replies or not busy or time.monotonic() >= deadline:
            return replies


def ask(link: Link, pulse, command: str, *values: Any) -> List[Tuple[Optional[bytes], ...]]:
    """Post one request on an idle link and wait for its rows.

    Raises:
        RemoteError: what the other end reported.
    """
    link.post(command, *values)
    while True:
        for reply in pump([link], pulse):
            if reply.error:
                raise reply.error
            return reply.rows


def configure(link: Link, pulse, settings: Dict[str, str]) -> None:
    """Set what this server knows of these run-time parameters, for the session."""
    ask(
        link, pulse,
        "select pg_catalog.set_config(s.name, v.value, false)::text from pg_catalog.pg_settings s"
        " join pg_catalog.json_each_text($1::text::json) v on v.key = s.name",
        json.dumps(settings),
    )  # fmt: skip


def stop(links: Sequence[Link], seconds: float) -> List[Reply]:
    """Cancel what the links are doing, drain them and roll back; what does not come back in time is closed. Gives what has come.

    A drained link is idle, without transaction or lock, and can be used again: its cancel has arrived, so none can
    hit the next request.
    """
    replies: List[Reply] = []
    cancels: Dict[Link, _Cancel] = {}
    for link in links:
        link.clear()
        cancel = link.cancel()
        if cancel is not None:
            cancels[link] = cancel
    deadline = time.monotonic() + seconds
    while True:
        cancels = {link: cancel for link, cancel in cancels.items() if not cancel.step()}
        for link in links:
            if link.in_transaction and not link.busy and link not in cancels:
                link.post("rollback", tag=lambda reply: None)
        left = deadline - time.monotonic()
        if left <= 0 or not (cancels or any(link.busy for link in links)):
            break
        if any(link.busy for link in links):
            replies += pump(links, None, min(CANCEL_TURN_SECONDS if cancels else TURN_SECONDS, left))
        else:
            time.sleep(min(CANCEL_TURN_SECONDS, left))
    for link in links:
        if link.busy or link in cancels:
            link.close()
    return replies
