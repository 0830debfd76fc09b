"""The sessions of one run: opened or found warm, checked, and asked together."""

from __future__ import annotations

import json
import os
import random
import select
import shlex
import time
from itertools import accumulate
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import cerebro_udf
from cerebro_udf import versions
from cerebro_udf.catalog import raise_remote
from cerebro_udf.coordinator import sharing
from cerebro_udf.coordinator.links import (
    KEEPALIVE,
    TURN_SECONDS,
    UNACKNOWLEDGED_MILLISECONDS,
    Address,
    Link,
    RemoteError,
    Reply,
    ask,
    configure,
    pump,
    stop,
)
from cerebro_udf.coordinator.options import parse_bytes
from cerebro_udf.engines.base import Engine, Shard
from cerebro_udf.errors import CerebroError, NotSupported, SegmentNotReady, SegmentUnreachable, StateMismatch
from cerebro_udf.segment import state as state_codec
from cerebro_udf.wire import MESSAGE_BYTES, parsed, parts

REOPEN_SECONDS = 30.0  # a crashed server is back within a few seconds
REOPEN_PAUSE_SECONDS = 0.5
STOP_SECONDS = 0.35  # to cancel and drain; a link inside an indivisible step is given up then
RELEASE_SECONDS = 0.1  # to drop a shard, before the call ends; what takes longer goes on, and the next call waits for it
RELEASE_LONGEST_SECONDS = 10.0  # how long that waits before it opens a session of its own
GONE_SECONDS = 10.0  # for a session that was closed to end
VERSIONED = ("python", "tensorflow", "keras", "numpy")  # of ``worker_hello``: what a run's results depend on
IDLE_TIME = "1h"  # after which a warm link ends itself
DEFAULT_MEMORY_SHARE = 0.5  # of what is available when the run begins, for all workers on a host together

_RECOVERED = "select s.stats_reset::text from pg_catalog.pg_stat_bgwriter s"  # a server that recovers forgets its statistics
_START = "select cerebro_internal.worker_start($1)::text"
_GET = "select cerebro_internal.worker_get($1)"
INIT = "select report::text, state from cerebro_internal.worker_init($1)"
_RELEASE = (
    "select cerebro_internal.worker_release()::text, (select pg_catalog.set_config(s.name, $1, false)"
    " from pg_catalog.pg_settings s where s.name = 'idle_session_timeout')"
)

SETTINGS = {
    "synchronize_seqscans": "off", "max_parallel_workers_per_gather": "0", "row_security": "on", "lock_timeout": "10s",
    "statement_timeout": "0", "idle_session_timeout": "0", "idle_in_transaction_session_timeout": "0",
    "transaction_timeout": "0", "tcp_user_timeout": UNACKNOWLEDGED_MILLISECONDS,
    **{"tcp_keepalives_" + name: value for name, value in KEEPALIVE.items()},
    "TimeZone": "UTC", "DateStyle": "ISO", "extra_float_digits": "3",
    "client_connection_check_interval": "500ms", "client_min_messages": "notice", "jit": "off",
    "bytea_output": "hex",
    "work_mem": "160MB",  # a visit's result passes through a tuple store; a state of 64 MB must not spill to disk there
}  # fmt: skip


# What repairs an error of a segment that comes without a hint; {user} and {address} are the link's.
HINTS = {
    "42501": "Grant it on the segment, {address}, as the owner there: GRANT SELECT ON … TO {user}; and USAGE on the schema.",
    "3F000": "Create the schema at {address}, or correct the foreign table: ALTER FOREIGN TABLE … OPTIONS (SET schema_name '…');",
    "42P01": "Create the table at {address}, or correct the foreign table: ALTER FOREIGN TABLE … OPTIONS (SET table_name '…');"
    " or, where a function of a view names it, write it there with its schema.",
    "42703": "Give the table at {address} that column, or name the one it has:"
    " ALTER FOREIGN TABLE … ALTER COLUMN … OPTIONS (ADD column_name '…');",
    "55P03": "Another session at {address} holds the table locked; try again when it is done.",
    "25006": "Have a table or a materialized view hold what the function gives, and name that.",
    "57014": "The session at {address} was cancelled there; resume the run, or call again.",
}  # fmt: skip
DATA_HINT = "What is read gives this for some row: leave such rows out by the option filter, or mend the expression or the view."
READ_ONLY_DETAIL = "What is read calls a function that writes; rows are read in a transaction that can change no table."
OTHER_HINT = "The server log at {address} says more."


class LinkBroken(SegmentUnreachable):
    """A session that was open is gone; ``announced`` says whether its server told that it ends it."""

    def __init__(self, name: str, address: Address, why: str, announced: bool = False):
        super().__init__('the link to segment "%s" broke' % name, why, "See the server log at %s, then resume the run." % address)
        self.announced = announced


def segment_error(error: RemoteError, name: str, address: Address) -> CerebroError:
    """What an error that a segment reported means for the caller."""
    if error.sqlstate is None:
        return LinkBroken(name, address, error.message, error.announced)
    if error.sqlstate in ("3F000", "42883") and "cerebro_internal" in error.message:
        return SegmentNotReady(
            'segment "%s" lacks the extension' % name,
            "The database %s answers: %s." % (address, error.message),
            create_extension_command(address),
        )
    if error.sqlstate == "38000" and "ModuleNotFoundError" in error.message:
        return SegmentNotReady(
            'segment "%s" lacks a Python package' % name,
            error.message,
            "Put Cerebro's environment on the PYTHONPATH of the server at %s, and restart it." % address,
        )
    otherwise = DATA_HINT if error.sqlstate.startswith("22") else OTHER_HINT
    hint = error.hint or HINTS.get(error.sqlstate, otherwise).format(user=address.user, address=address)
    detail = error.detail or (READ_ONLY_DETAIL if error.sqlstate == "25006" else None)
    if error.sqlstate == SegmentNotReady.sqlstate:
        hint = "At %s: %s" % (address, hint)
    try:
        raise_remote(RemoteError(error.sqlstate, error.message, detail, hint), name)
    except CerebroError as translated:
        return translated


class Segments:
    """Links to the segments of one list of shards; link k reaches the segment of shard k.

    Args:
        plpy: PL/Python's module.
        gd: The session's global dictionary; warm links live there and outlive the call.
        pulse: ``Pulse`` of this backend.
        engine: Knows the addresses.
        shards: In order of their numbers.
    """

    def __init__(self, plpy, gd: dict, pulse, engine: Engine, shards: List[Shard]):
        self.plpy, self._pulse, self.shards = plpy, pulse, shards
        self._warm: Dict[Tuple[Address, int], Link] = gd.setdefault("cerebro_links", {})
        slots: Dict[str, int] = {}
        self._keys: List[Tuple[Address, int]] = []
        addresses = {shard.server: engine.address(shard.server) for shard in shards}
        for shard in shards:
            slot = slots[shard.server] = slots.get(shard.server, -1) + 1
            self._keys.append((addresses[shard.server], slot))
        self.group = "%016x" % random.SystemRandom().getrandbits(64)  # what the workers of this call have in common
        self._steady = False
        self.links: List[Link] = []
        self.meanwhile: Callable[[], None] = lambda: None  # what goes on while segments are waited for

    def check(self) -> None:
        """Let the server act on interrupts, and let go on what goes on beside: segments are waited for."""
        self._pulse.check()
        self.meanwhile()

    def connect(self) -> None:
        """Open what is not open, and check extension and version on every segment.

        Raises:
            NotAuthenticated, SegmentUnreachable, TooManyConnections, SegmentNotReady.
        """
        try:
            self._connect()
        except BaseException:
            self.rest()
            raise

    def _connect(self) -> None:
        for number, key in enumerate(self._keys):
            self.links.append(self._open(key))
            if key[1] == 0:
                self._refuse_few_connections(number)
        facts = self.call("select cerebro_internal.worker_hello()::text")
        for link, fact in zip(self.links, facts):
            link.facts = fact
            if fact["cerebro"] != cerebro_udf.__version__:
                raise versions.other_node(link.address.name, fact["cerebro"])

    def versions(self) -> Dict[str, Dict[str, str]]:
        """What results depend on, by segment."""
        return {link.address.name: {package: link.facts[package] for package in VERSIONED} for link in self.links}

    def _refuse_few_connections(self, number: int) -> None:
        """See, once the first session of a server is there, that it has room for the further ones."""
        address = self._keys[number][0]
        keys = [key for key in self._keys if key[0] == address]
        needed = [key for key in keys[1:] if key not in self._warm or not self._warm[key].alive]
        if needed:
            figures = self.call(sharing.CONNECTIONS, numbers=[number])[0]
            sharing.refuse_few_connections(address, figures, len(keys) - len(needed), len(needed))

    def _open(self, key: Tuple[Address, int]) -> Link:
        """A link that is idle, holds no shard and stays however long its turn takes: the warm one, unless it has died."""
        link = self._warm.pop(key, None)
        if link is not None and link.alive:
            try:
                return self._configured(key, link)
            except LinkBroken:
                pass
        link = Link(key[0], "cerebro worker")
        link.open(self)
        return self._configured(key, link)

    def _configured(self, key: Tuple[Address, int], link: Link) -> Link:
        deadline = time.monotonic() + RELEASE_LONGEST_SECONDS
        try:
            while link.busy:  # it is still dropping the shard of the call before
                pump([link], self)
                if time.monotonic() > deadline:
                    raise LinkBroken(key[0].name, key[0], "It has not dropped its shard within %d s." % RELEASE_LONGEST_SECONDS)
            configure(link, self, SETTINGS)
            link.recovered_at = ask(link, self, _RECOVERED)[0][0]
        except RemoteError as error:
            link.close()
            raise segment_error(error, key[0].name, key[0]) from None
        except BaseException:
            link.close()
            raise
        self._warm[key] = link
        return link

    def share_hosts(self, steady: bool = False) -> None:
        """Share the cores and the memory of each host out among all workers on it, those of other runs too; before loading.

        Args:
            steady: Threads must not depend on other runs, since results may depend on threads.
        """
        self._steady = steady
        hosts: Dict[str, List[int]] = {}
        for number, link in enumerate(self.links):
            hosts.setdefault(link.facts["boot_id"], []).append(number)
        claims = self.call("select cerebro_internal.worker_claim($1)::text", {"group": self.group})
        for numbers in hosts.values():
            others = max(claims[number]["others"] for number in numbers)
            for number in numbers:
                facts = self.links[number].facts
                warm = facts["threads"]
                facts["threads"] = sharing.threads(facts["cores"], len(numbers), others, warm, steady)
                facts["memory_available"] = claims[number]["memory_available"]
                facts["workers_on_host"] = len(numbers)
                facts["growth_bytes"] = sharing.growth_bytes(facts["memory_total"], len(numbers) + others)
                if warm not in (None, facts["threads"]) or self.grown(number, facts):
                    # TensorFlow's thread count is fixed once it runs, and programs stay for ever: begin with a fresh session.
                    self._replace(number)

    def make_room(self) -> bool:
        """Close the warm links of this session that the call has no use for, each of which keeps TensorFlow in memory, and share
        the hosts out again.

        Returns:
            Whether there were any on these hosts.
        """
        hosts = {link.facts["boot_id"] for link in self.links}
        keys = [key for key, link in self._warm.items() if key not in self._keys and link.facts.get("boot_id") in hosts]
        ends = {end for end in [self._warm.pop(key).leave() for key in keys] if end is not None}
        try:
            self._see_end(ends)
        finally:
            for end in ends:
                os.close(end)
        if not ends:
            return False
        for number, link in enumerate(self.links):
            if not link.alive:  # given up when another one failed
                self._replace(number)
        self.share_hosts(self._steady)
        return True

    def _see_end(self, ends: Set[int]) -> None:
        """Wait until the processes at the other end of these connections are gone, for some time."""
        poller, left = select.poll(), len(ends)
        for end in ends:
            poller.register(end, select.POLLRDHUP)
        deadline = time.monotonic() + GONE_SECONDS
        while left and time.monotonic() < deadline:
            self.check()
            for end, _ in poller.poll(TURN_SECONDS * 1000):
                poller.unregister(end)
                left -= 1

    def grown(self, number: int, report: dict) -> bool:
        """Whether a fresh session should take the place of this one, by what it reports of itself."""
        return sharing.grown(report, self.links[number].facts["growth_bytes"])

    def start(self) -> None:
        """Start TensorFlow in every worker. This takes seconds: after loading, so that unusable data is told at once."""
        self.call(_START, lambda n: {"threads": self.links[n].facts["threads"]})

    def check_policies(self) -> None:
        """Refuse a source with row security whose foreign leaves have none of their own.

        Raises:
            NotSupported: rows would be read that the caller may not see through the table it named.
        """
        try:
            self._check_policies()
        except BaseException:
            self.rest()
            raise

    def _check_policies(self) -> None:
        parts = [(number, part) for number, shard in enumerate(self.shards) for part in (shard, shard.held) if part is not None]
        for number, part in parts:
            if not part.policy_expected:
                continue
            for read in part.reads:
                active = self.call("select pg_catalog.row_security_active($1::text)::text", read.relation, numbers=[number])
                if not active[0]:
                    raise NotSupported(
                        "row security on a table whose partitions lie on other servers",
                        'A policy applies to the table that you named, but not to %s on segment "%s".'
                        % (read.relation, self.links[number].address.name),
                        "Create the same policy on the segments: ALTER TABLE %s ENABLE ROW LEVEL SECURITY; CREATE POLICY …" % read.relation,
                    )

    def memory_bytes(self, number: int, memory: Any) -> int:
        """How many bytes the shard of link ``number`` may take, by ``options.memory``."""
        facts = self.links[number].facts
        if isinstance(memory, str):
            return parse_bytes(memory) // facts["workers_on_host"]
        share = DEFAULT_MEMORY_SHARE if memory is None else memory
        return int(facts["memory_available"] * share / facts["workers_on_host"])

    def call(self, command: str, *values: Any, numbers: Optional[List[int]] = None) -> List[Any]:
        """Ask segments the same at once, and wait for all.

        Args:
            command: A statement whose one result is JSON as text.
            values: Its parameters; a function gives that of each link by number.
            numbers: Links to ask; all by default.

        Returns:
            The parsed results, in the order of ``numbers``.

        Raises:
            CerebroError: what the first segment to fail reported; the others are stopped.
        """
        numbers = list(range(len(self.links))) if numbers is None else numbers
        results: Dict[int, Any] = {}

        def store(reply: Reply, number: int) -> None:
            results[number] = parsed(reply.rows[0][0])

        for n in numbers:
            given = [value(n) if callable(value) else value for value in values]
            self.post(n, command, *given, then=lambda reply, n=n: store(reply, n))
        self.wait(numbers)
        return [results[n] for n in numbers]

    def post(self, number: int, command: str, *values: Any, then: Callable[[Reply], None]) -> None:
        """Queue a request on one link; ``then`` gets its reply, errors are raised where the replies are handed out."""

        def received(reply: Reply) -> None:
            if reply.error:
                raise self.error(reply)
            then(reply)

        self.links[number].post(command, *values, tag=received)

    def post_visit(self, number: int, spec: dict, states: List[List[bytes]], then: Callable[[Reply], None]) -> None:
        """Queue a visit; states that are too long for one message go ahead of it in parts.

        Args:
            number: The link.
            spec: See ``worker.visit``; its ``members`` lack ``bytes``.
            states: Each member's, in chunks.
            then: Gets the reply.
        """
        sizes = [sum(map(len, state)) for state in states]
        members = [{**member, "bytes": size} for member, size in zip(spec["members"], sizes)]
        whole = self.hand_over(number, [chunk for state in states for chunk in state])
        command = "select report::text, state from cerebro_internal.worker_visit($1, $2)"
        self.post(number, command, {**spec, "members": members}, whole, then=then)

    def post_init(self, number: int, spec: dict, weights: List[bytes], then: Callable[[Reply], None]) -> None:
        """Queue the making of a trial's first state; the chunks of what it begins from, if any, go ahead of it."""
        self._put(number, weights)
        self.post(number, INIT, {**spec, "weights": bool(weights)}, then=then)

    def hand_over(self, number: int, chunks: List[bytes]) -> Optional[bytes]:
        """Give the bytes that go with the next request, where one message holds them; else they go ahead of it in parts, and None."""
        if sum(map(len, chunks)) <= MESSAGE_BYTES:
            return b"".join(chunks)
        self._put(number, chunks)
        return None

    def collect(self, number: int, report: dict, state: Optional[bytes], then: Callable[[List[bytes]], None]) -> None:
        """Fetch what a visit or an initialization has left there in parts, if it has; ``then`` gets its chunks."""
        parts = report.get("parts")
        if not parts:
            then([state or b""])
            return
        chunks: List[bytes] = []

        def take(reply: Reply) -> None:
            chunks.append(reply.rows[0][0])
            if len(chunks) == parts:
                then(chunks)

        for part in range(parts):
            self.post(number, _GET, part, then=take)

    def _put(self, number: int, chunks: List[bytes]) -> None:
        for part, data in enumerate(chunks):
            self.post(number, "select cerebro_internal.worker_put($1, $2)::text", part, data, then=lambda reply: None)

    def wait(self, numbers: Optional[List[int]] = None) -> None:
        """Hand out the replies of these links (all by default) until none is busy; when one fails they are all stopped."""
        links = self.links if numbers is None else [self.links[n] for n in numbers]
        try:
            while any(link.busy for link in links):
                for reply in pump(links, self):
                    reply.tag(reply)
        except BaseException:
            stop(links, STOP_SECONDS)
            raise

    def error(self, reply: Reply) -> CerebroError:
        """What a segment's error means for the caller."""
        return segment_error(reply.error, self.shards[self.links.index(reply.link)].segment, reply.link.address)

    def reopen(self, number: int) -> bool:
        """Replace a link that was lost, or holds too much, and have TensorFlow start there, which is not waited for.

        Returns:
            Whether the server has recovered from a crash since the link before was opened.

        Raises:
            SegmentUnreachable, NotAuthenticated, SegmentNotReady: see ``_replace``.
        """
        before = self.links[number].recovered_at
        self._replace(number)
        self.post(number, _START, {"threads": self.links[number].facts["threads"]}, then=lambda reply: None)
        return self.links[number].recovered_at != before

    def _replace(self, number: int) -> None:
        """Close a link and open it again; a server that is recovering, or has not freed the former session's place, is given time.

        Raises:
            SegmentUnreachable, NotAuthenticated, SegmentNotReady: it did not come back.
        """
        self.links[number].close()
        deadline = time.monotonic() + REOPEN_SECONDS
        facts = self.links[number].facts
        while True:
            try:
                self.links[number] = self._open(self._keys[number])
                break
            except SegmentUnreachable:
                if time.monotonic() > deadline:
                    raise
            pause = time.monotonic() + REOPEN_PAUSE_SECONDS
            while time.monotonic() < pause:
                self.check()
                time.sleep(0.02)
        self.links[number].facts = facts

    def sizes(self, number: int, query: str, relations: List[str]) -> Tuple[int, int]:
        """Rows (the server's estimate) and bytes of relations on one segment."""
        rows: List[tuple] = []
        self.post(number, query, json.dumps(relations), then=lambda reply: rows.extend(reply.rows))
        self.wait([number])
        return int(rows[0][0]), int(rows[0][1])

    def rest(self, seconds: float = STOP_SECONDS) -> None:
        """End a call: cancel whatever runs, and have every link that comes back in time drop its shard and stay warm.

        A link that does not come back is closed, and its session ends itself.
        """
        links, self.links = self.links, []
        stop(links, seconds)
        for link in links:
            if link.alive:
                link.post(_RELEASE, IDLE_TIME)
        deadline = time.monotonic() + RELEASE_SECONDS
        while any(link.busy for link in links) and time.monotonic() < deadline:
            pump(links, None, max(0.0, deadline - time.monotonic()))


def cells(reply: Reply) -> Tuple[dict, Optional[bytes]]:
    """Report and state of a visit or an initialization.

    Raises:
        LinkBroken: the report was damaged on its way.
    """
    report, state = reply.rows[0]
    try:
        return parsed(report), state
    except ValueError as error:
        raise _damaged(reply.link.address, str(error)) from None


def verify(link: Link, chunks: List[bytes]) -> None:
    """Look whether a state is as the segment sent it, before it is sent on or committed.

    Raises:
        LinkBroken: it was damaged on its way.
    """
    try:
        state_codec.verify(chunks)
    except StateMismatch as error:
        raise _damaged(link.address, error.detail or error.message) from None


def _damaged(address: Address, why: str) -> LinkBroken:
    return LinkBroken(address.name, address, "What came over it is damaged. %s" % why)


def split(chunks: List[bytes], sizes: List[int]) -> List[List[bytes]]:
    """Cut what came back from a visit into its members' states, in chunks as they are stored."""
    if len(sizes) == 1:
        return [chunks]
    whole = memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))
    ends = list(accumulate(sizes))
    return [parts(bytes(whole[end - size : end])) for size, end in zip(sizes, ends)]


def administer(address: Address, statement: str) -> str:
    """The shell command by which an administrator runs a statement in a segment's database."""
    pairs = [("host", address.host), ("port", address.port), ("dbname", address.dbname), ("user", "postgres")]
    conninfo = " ".join("%s=%s" % (name, _conninfo_value(value)) for name, value in pairs)
    return "psql %s -c %s" % (shlex.quote(conninfo), shlex.quote(statement))


def _conninfo_value(value: str) -> str:
    if value and not any(c.isspace() or c in "'\\" for c in value):
        return value
    return "'%s'" % value.replace("\\", "\\\\").replace("'", "\\'")


def create_extension_command(address: Address) -> str:
    """The shell command that makes a segment ready."""
    return administer(address, "CREATE EXTENSION cerebro CASCADE;")
