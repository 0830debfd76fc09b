"""The catalog as the run loop writes it: through a second, autocommitting session that is the caller's own.

Writes are queued and sent in order beside the training; nobody waits for them but ``flush``.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any, Callable, List, Optional, Tuple

from cerebro_udf.coordinator.links import Link, RemoteError, Reply, ask, configure, pump, stop
from cerebro_udf.engines.base import SELF, Engine
from cerebro_udf.errors import CerebroError, InUse, NotFound, NotReady, ReadOnly, not_owner, shown
from cerebro_udf.wire import MESSAGE_BYTES, finite, parsed

LOCK_CLASS = 1128616514  # "CERB": first key of the advisory lock that the driver of a run holds; the second is drawn
STOP_SECONDS = 0.35  # to cancel what is under way, or to write how a run has ended, before the statement ends
TRAINING = ("train", "A run is recorded as it goes, and this server takes no writes.")  # for ``refuse_read_only``
BACKLOG_BYTES = 4 * MESSAGE_BYTES  # unsent states beyond which no further visit is ordered

SETTINGS = {
    "synchronous_commit": "off", "lock_timeout": "10s", "statement_timeout": "0", "TimeZone": "UTC",
    "DateStyle": "ISO", "extra_float_digits": "3",
    "default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
    "client_min_messages": "warning", "idle_session_timeout": "0", "transaction_timeout": "0", "bytea_output": "hex",
}  # fmt: skip

# This role's own runs, newest first; one that is being driven or that an alias needs is held.
_KEPT = """
select pg_catalog.row_to_json(x)::text from (
    select r.id, r.name, cerebro_internal.run_bytes(r.id) as bytes
         , pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - coalesce(r.finished_at, r.started_at)) as seconds
         , cerebro_internal.driver_of(r.id) is not null or exists (
               select 1 from cerebro_internal.visible_alias a where a.run = r.id and a.nth <= 2) as held
    from cerebro_internal.visible_run r
    where r.owner = current_user and r.replaces is null and %s
    order by r.started_at desc, r.id desc) x
"""


def raise_remote(error: RemoteError, where: Optional[str] = None) -> None:
    """Raise what a session reported as this statement's own error, with its SQLSTATE, DETAIL and HINT."""
    message = error.message
    if message.startswith("cerebro: "):
        message = message[len("cerebro: ") :]
    if where is not None:
        message = 'segment "%s": %s' % (where, message)
    hint = "The server log says more." if error.sqlstate else "See the server log; cerebro.resume goes on with a run that had begun."
    raised = CerebroError(message, error.detail, error.hint or hint)
    raised.sqlstate = error.sqlstate or "08006"
    raise raised


def leads_home(plpy, pulse, link: Link) -> bool:
    """Whether an open link leads to the very database that this backend serves."""
    query = (  # microseconds: how a float8 is spelled depends on the session's settings
        "select (pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) * 1000000)::int8::text as started"
        ", pg_catalog.current_database()::text as name"
    )
    here = plpy.execute(query)[0]
    try:
        started, name = ask(link, pulse, query)[0]
    except RemoteError as error:
        raise_remote(error)
    return (started.decode(), name.decode()) == (here["started"], here["name"])


def refuse_read_only(plpy, doing: str, why: Optional[str]) -> None:
    """Refuse what writes, where this session may not.

    Args:
        doing: What a standby or a read-only transaction cannot do.
        why: What it writes for, said of a standby.

    Raises:
        ReadOnly.
    """
    row = plpy.execute(
        "select pg_catalog.pg_is_in_recovery() as standby, pg_catalog.current_setting('transaction_read_only') as read_only"
    )[0]
    if row["standby"]:
        raise ReadOnly("a standby cannot " + doing, why, "Connect to the primary.")
    if row["read_only"] == "on":
        raise ReadOnly("a read-only transaction cannot " + doing, None, "Begin a transaction that may write.")


class Ledger:
    """Writes one run. Every write carries the generation, so that a driver that lost the run is refused (55006).

    Args:
        plpy: PL/Python's module.
        pulse: ``Pulse`` of this backend.
        engine: Knows the way back to this server.
    """

    def __init__(self, plpy, pulse, engine: Engine):
        self._plpy, self._pulse = plpy, pulse
        self.link = Link(engine.address(SELF), "cerebro ledger")
        self.link.open(pulse)
        self.run: Optional[int] = None
        self.generation = 0
        self.replaced = False  # whether the run that this one replaces is gone, as far as is known
        self._lock_key: Optional[int] = None
        try:
            configure(self.link, pulse, SETTINGS)
            if not leads_home(plpy, pulse, self.link):
                raise NotReady(
                    "server cerebro_self leads to another database", "It leads to %s." % self.link.address, engine.home_command()
                )
        except BaseException:
            self.link.close()
            raise

    # -- reading, in a snapshot of its own --

    def _read(self, query: str, *values: Any) -> List[Tuple[Optional[str], ...]]:
        """Rows of text columns."""
        self.flush()
        try:
            rows = ask(self.link, self._pulse, query, *values)
        except RemoteError as error:
            raise_remote(error)
        return [tuple(None if v is None else v.decode() for v in row) for row in rows]

    def find(self, name: str) -> dict:
        """The run of that name that this role owns, or else may use.

        Raises:
            NotFound: there is none.
        """
        rows = self._read(
            "select pg_catalog.row_to_json(r)::text from cerebro_internal.usable_run r where r.name = $1"
            " order by (r.owner = current_user) desc, r.id limit 1",
            name,
        )
        if not rows:
            raise NotFound('run "%s" does not exist' % name, None, "select run, state from cerebro.run; shows all runs.")
        return parsed(rows[0][0])

    def refuse_others(self, record: dict) -> None:
        """Refuse to stop or drop what this role may only use.

        Raises:
            NoPrivilege: it is not a member of the owner.
        """
        if not self._read("select 1::text from cerebro_internal.visible_run r where r.id = $1", record["id"]):
            raise not_owner("run", record["name"], record["owner"])

    def own(self, name: str) -> Optional[dict]:
        """The run of that name that this very role owns, or None."""
        rows = self._read(
            "select pg_catalog.row_to_json(r)::text from cerebro_internal.visible_run r where r.name = $1 and r.owner = current_user",
            name,
        )
        return parsed(rows[0][0]) if rows else None

    def record(self, run: int) -> Optional[dict]:
        """A run as it is now, None when it does not exist."""
        rows = self._read("select pg_catalog.row_to_json(r)::text from cerebro_internal.usable_run r where r.id = $1", run)
        return parsed(rows[0][0]) if rows else None

    def latest(self, name: str) -> dict:
        """The run of that name, or the one that is to replace it."""
        run = self.find(name)
        query = "select pg_catalog.row_to_json(r)::text from cerebro_internal.usable_run r where r.replaces = $1"
        rows = self._read(query, run["id"])
        return parsed(rows[0][0]) if rows else run

    def standing(self, run: int) -> Optional[str]:
        """The state that ``cerebro.run`` shows; None when the run does not exist."""
        return self._read("select cerebro_internal.run_standing($1)", run)[0][0]

    def drives(self, pid: int) -> bool:
        """Whether that backend drives a run."""
        query = "select 1::text from cerebro_internal.visible_run r where r.driver_pid = $1 and cerebro_internal.driver_of(r.id) = $1"
        return bool(self._read(query, pid))

    def cancel_driver(self, run: int) -> None:
        """Tell the backend that drives a run to stop; its role's right to do so is the caller's."""
        self._read("select pg_catalog.pg_cancel_backend(cerebro_internal.driver_of($1))::text", run)

    def drop_begun(self, pid: int) -> None:
        """Remove what that backend began and could not load: it has failed before its first visit."""
        self._read(
            "select cerebro_internal.run_drop(r.id)::text from cerebro_internal.visible_run r"
            " where r.driver_pid = $1 and r.generation = 1 and r.encoders is null and r.state = 'failed'",
            pid,
        )

    def sees_model(self, name: str) -> bool:
        """Whether a model of that name is committed."""
        return bool(self._read("select 1::text from cerebro_internal.visible_model m where m.name = $1 limit 1", name))

    def refuse_driven(self, run: int) -> None:
        """Raise InUse (55006) while a live backend drives that run."""
        self._read("select cerebro_internal.refuse_driven($1)::text", run)

    def trials(self, run: int) -> List[dict]:
        rows = self._read(
            "select pg_catalog.row_to_json(t)::text from cerebro_internal.usable_trial t where t.run = $1 order by t.trial", run
        )
        return [parsed(row[0]) for row in rows]

    def visits(self, run: int) -> List[dict]:
        rows = self._read(
            "select pg_catalog.row_to_json(v)::text from cerebro_internal.visible_visit v where v.run = $1"
            ' order by v.trial, v.epoch, v.phase, v."position"',
            run,
        )
        return [parsed(row[0]) for row in rows]

    def epochs(self, run: int) -> List[dict]:
        rows = self._read(
            "select pg_catalog.row_to_json(e)::text from cerebro_internal.visible_epoch e where e.run = $1 order by e.trial, e.epoch", run
        )
        return [parsed(row[0]) for row in rows]

    def state(self, run: int, trial: int, seq: int) -> List[bytes]:
        """The chunks of a committed state."""
        return self._chunks(
            "select s.data from cerebro_internal.visible_state s where s.run = $1 and s.trial = $2 and s.seq = $3 order by s.chunk",
            run, trial, seq,
        )  # fmt: skip

    def weights(self, run: int) -> List[bytes]:
        """The chunks of what the trials of a run begin from; none where they begin anew."""
        return self._chunks("select w.data from cerebro_internal.visible_run_weights w where w.run = $1 order by w.chunk", run)

    def _chunks(self, query: str, *values: Any) -> List[bytes]:
        self.flush()
        try:
            rows = ask(self.link, self._pulse, query, *values)
        except RemoteError as error:
            raise_remote(error)
        return [row[0] for row in rows]

    # -- taking and leaving a run --

    def _lock(self) -> Tuple[int, int]:
        """Hold a lock of a newly drawn key in this backend's session: what shows others that the driver lives.

        Gone with the backend. The key is written into the run's row with the backend's pid, so that a lock which
        somebody else takes proves nothing.

        Returns:
            (key, pid of this backend).
        """
        plan = self._plpy.prepare(
            "select pg_catalog.pg_try_advisory_lock($1, $2) as taken, pg_catalog.pg_backend_pid() as pid", ["int4", "int4"]
        )
        while True:
            self._lock_key = random.SystemRandom().randrange(1, 2**31)
            row = self._plpy.execute(plan, [LOCK_CLASS, self._lock_key])[0]
            if row["taken"]:
                return self._lock_key, row["pid"]

    def unlock(self) -> None:
        """Let go of the lock, through any number of cancels: a session that stays must not keep the run."""
        cancelled: Optional[BaseException] = None
        while self._lock_key is not None:
            try:
                self._plpy.execute("select pg_catalog.pg_advisory_unlock(%d, %d)" % (LOCK_CLASS, self._lock_key))
                self._lock_key = None
            except self._plpy.SPIError as error:
                if error.sqlstate != "57014":
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def create(self, replaces: Optional[int], weights: List[bytes], **run: Any) -> None:
        """Begin a run as generation 1, driven by this backend.

        Args:
            replaces: The run that goes once this one is ready; None for none.
            weights: Chunks of what its trials begin from; none where they begin anew.

        Raises:
            CerebroError: one of that name exists (42710), or the one to replace is being driven (55006).
        """
        key, pid = self._lock()
        self._take(
            "select cerebro_internal.run_create($1, $2, $3, $4, $5, $6, $7, $8::int, $9, $10)::text",
            run["name"], run["source"], run["model"], run["definition"], run["label"], run["features"], run["options"],
            replaces, key, pid, taken=lambda number: (number, 1),
        )  # fmt: skip
        for chunk, data in enumerate(weights):
            self._write("cerebro_internal.run_weights_put($1, $2, $3, $4)", chunk, data)

    def claim(self, run: int) -> None:
        """Take a run over from a driver that is gone.

        Raises:
            CerebroError: it is not gone (55006).
        """
        key, pid = self._lock()
        self._take(
            "select cerebro_internal.run_claim($1, $2, $3)::text", run, key, pid, taken=lambda generation: (run, generation)
        )

    def change(self, options: dict) -> None:
        """Have the run go on with these options: trials that were done go on, where there are more epochs now."""
        self._write("cerebro_internal.run_change($1, $2, $3::text::jsonb)", json.dumps(options))

    def _take(self, command: str, *values: Any, taken: Callable[[int], Tuple[int, int]]) -> None:
        """Have a run taken, and wait for that; ``close_run`` takes the answer in when this is cancelled."""

        def received(reply: Reply) -> None:
            if reply.error:
                raise_remote(reply.error)
            self.run, self.generation = taken(int(reply.rows[0][0]))

        self.link.post(command, *values, tag=received)
        self.flush()

    def ready(self, plan: dict, encoders: dict, rank: Tuple[str, str], replaces: bool) -> None:
        """Store what the first visit needs; the run that this one replaces goes, if the server does not refuse."""

        def received(reply: Reply) -> None:
            if reply.error:
                self.replaced = self.replaced and reply.error.sqlstate is None
                raise_remote(reply.error)

        self.replaced = replaces
        self.link.post(
            "select cerebro_internal.run_ready($1, $2, $3, $4, $5, $6)::text",
            self.run, self.generation, plan, encoders, rank[0], rank[1], tag=received,
        )  # fmt: skip
        self.flush()

    def named(self, pattern: str) -> List[dict]:
        """This role's own runs whose names are LIKE a pattern, as ``retention.beyond`` takes them."""
        return [parsed(row[0]) for row in self._read(_KEPT % "r.name like $1", pattern)]

    def alike(self, run: int) -> List[dict]:
        """That run and its owner's others of the same source and model, as ``retention.beyond`` takes them."""
        same = "exists (select 1 from cerebro_internal.visible_run o where o.id = $1 and (o.source, o.model) = (r.source, r.model))"
        return [parsed(row[0]) for row in self._read(_KEPT % same, run)]

    def drop(self, run: int) -> bool:
        return self._read("select cerebro_internal.run_drop($1)::text", run)[0][0] == "true"

    # -- writing beside the training --

    def _write(self, command: str, *values: Any, then: Optional[Callable[[], None]] = None) -> None:
        self.link.post("select " + command, self.run, self.generation, *values, tag=lambda reply: self._written(reply, then))

    def _written(self, reply: Reply, then: Optional[Callable[[], None]]) -> None:
        if reply.error:
            if reply.error.sqlstate == "55006":
                raise InUse(reply.error.message, reply.error.detail, reply.error.hint or "See cerebro.progress for what it does.")
            raise_remote(reply.error, "cerebro_self")
        if then is not None:
            then()

    @property
    def full(self) -> bool:
        """Whether so much waits to be committed that no further visit should be ordered."""
        return self.link.backlog_bytes > BACKLOG_BYTES

    def visit_begin(self, trial: int, epoch: int, phase: str, shard: int, position: int, segment: str) -> None:
        self._write(
            "cerebro_internal.visit_begin($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            trial, epoch, phase, shard, position, segment, time.time(),
        )  # fmt: skip

    def visit_end(self, trial: int, epoch: int, phase: str, shard: int, report: dict, seq: Optional[int], state: List[bytes],
                  then: Callable[[], None]) -> None:  # fmt: skip
        """Record a report; ``seq`` and the state's chunks make all visits up to it done."""
        whole = state[0] if seq is not None and len(state) == 1 else None
        if seq is not None and whole is None:
            self.state_chunks(trial, seq, state)
        self._write(
            "cerebro_internal.visit_end($1, $2, $3, $4, $5, $6, $7, $8, $9::int, $10)",
            trial, epoch, phase, shard, time.time(), finite(report), seq, whole, then=then,
        )  # fmt: skip

    def state_chunks(self, trial: int, seq: int, state: List[bytes]) -> None:
        for chunk, data in enumerate(state):
            self._write("cerebro_internal.state_put($1, $2, $3, $4, $5, $6)", trial, seq, chunk, data)

    def first_state(self, trial: int, state: List[bytes]) -> None:
        """Store a trial's first state, before its first visit."""
        self.state_chunks(trial, 0, state)
        self._write("cerebro_internal.trial_state($1, $2, $3, $4)", trial, 0)

    def trials_add(self, trials: List[dict]) -> None:
        """Record trials that were asked for, each ``{"trial", "params"}``, before their first visits."""
        self._write("cerebro_internal.trials_add($1, $2, $3::text::jsonb)", json.dumps(trials))

    def trial_end(self, trial: int, state: str, reason: str) -> None:
        """Record that a trial has ended before its time: ``failed`` or ``pruned``."""
        self._write("cerebro_internal.trial_end($1, $2, $3, $4, $5)", trial, state, reason)

    def trial_crashes(self, trial: int, crashes: int) -> None:
        """Record how often a trial's worker has died in the epoch that it is in."""
        self._write("cerebro_internal.trial_crashes($1, $2, $3, $4)", trial, crashes)

    def validate_again(self, trial: int, epoch: int) -> None:
        """Forget visits to validate of an epoch that is not recorded; they are made anew."""
        self._write("cerebro_internal.validate_again($1, $2, $3, $4)", trial, epoch)

    def epoch_end(self, trial: int, epoch: int, metrics: dict, learning_rate: Optional[float], seconds: float,
                  metric: Optional[float], best_seq: Optional[int], state: str, reason: Optional[str],
                  then: Callable[[], None]) -> None:  # fmt: skip
        self._write(
            "cerebro_internal.epoch_end($1, $2, $3, $4, $5, $6::float8, $7, $8::float8, $9::int, $10, $11::text)",
            trial, epoch, finite(metrics), learning_rate, seconds, metric, best_seq, state, reason, then=then,
        )  # fmt: skip

    def progress(self, details: dict, then: Callable[[], None]) -> None:
        self._write("cerebro_internal.progress_set($1, $2, $3)", details, then=then)

    def end(self, state: str, error: Optional[str], details: Optional[dict]) -> None:
        self._write("cerebro_internal.run_end($1, $2, $3, $4::text, $5::jsonb)", state, error, details)

    def flush(self) -> None:
        """Wait until everything is committed."""
        while self.link.busy:
            for reply in pump([self.link], self._pulse):
                reply.tag(reply)

    def close_run(self, state: str, error: BaseException, stays: bool, seconds: float) -> None:
        """After an error: end the run (or remove it, unless it stays) within this time, interrupts aside.

        What cannot be written in time stays for ``resume`` to clean up: the run then shows as interrupted.
        """
        deadline = time.monotonic() + seconds
        self.link.clear(keep_bytes=MESSAGE_BYTES // 4)
        if self.run is None:
            # ``_take`` may wait for the run's row, and is not to go on; or its answer is on its way.
            for reply in stop([self.link], seconds):
                if not reply.error:
                    reply.tag(reply)
        if self.run is None or not self.link.alive:
            return
        if stays:
            told = shown(error)
            self.end(state, str(error), {"sqlstate": told.sqlstate, "detail": told.detail, "hint": told.hint})
        else:
            self.link.post("select cerebro_internal.run_discard($1, $2)", self.run, self.generation)
        while self.link.busy and time.monotonic() < deadline:
            pump([self.link], None, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Leave. What this session was asked for beside driving a run does not go on without the caller."""
        if self.run is None:
            stop([self.link], STOP_SECONDS)
        self.link.close()
