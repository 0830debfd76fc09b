"""The catalog as the run loop writes it: through a second, autocommitting session that is the caller's own.

Writes are queued and sent in order beside the training; nobody waits for them but ``flush``.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, List, Optional, Tuple

from cerebro_udf.coordinator.links import Address, Link, RemoteError, Reply, ask, configure, pump
from cerebro_udf.engines.postgres import home_command
from cerebro_udf.errors import CerebroError, InUse, NotFound, NotReady
from cerebro_udf.wire import MESSAGE_BYTES, finite

LOCK_CLASS = 1128616514  # "CERB": first key of the advisory lock that the driver of a run holds; the second is its id
BACKLOG_BYTES = 4 * MESSAGE_BYTES  # unsent states beyond which no further visit is ordered

SETTINGS = {
    "synchronous_commit": "off", "lock_timeout": "10s", "statement_timeout": "0", "TimeZone": "UTC",
    "DateStyle": "ISO", "extra_float_digits": "3", "search_path": "pg_catalog, pg_temp",
    "default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
    "client_min_messages": "warning", "idle_session_timeout": "0", "bytea_output": "hex",
}  # fmt: skip


def raise_remote(error: RemoteError, where: Optional[str] = None) -> None:
    """Raise what a session reported as this statement's own error, with its SQLSTATE, DETAIL and HINT."""
    message = error.message
    if message.startswith("cerebro: "):
        message = message[len("cerebro: ") :]
    if where is not None:
        message = 'segment "%s": %s' % (where, message)
    raised = CerebroError(message, error.detail, error.hint)
    raised.sqlstate = error.sqlstate or "08006"
    raise raised


def leads_home(plpy, pulse, link: Link) -> bool:
    """Whether an open link leads to the very database that this backend serves."""
    query = (
        "select pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())::text as started"
        ", pg_catalog.current_database()::text as name"
    )
    here = plpy.execute(query)[0]
    try:
        started, name = ask(link, pulse, query)[0]
    except RemoteError as error:
        raise_remote(error)
    return (started.decode(), name.decode()) == (here["started"], here["name"])


class Ledger:
    """Writes one run. Every write carries the generation, so that a driver that lost the run is refused (55006).

    Args:
        plpy: PL/Python's module.
        pulse: ``Pulse`` of this backend.
        address: Of ``cerebro_self``.
    """

    def __init__(self, plpy, pulse, address: Address):
        self._plpy, self._pulse = plpy, pulse
        self.link = Link(address, "cerebro ledger")
        self.link.open(pulse)
        configure(self.link, pulse, SETTINGS)
        self.run: Optional[int] = None
        self.generation = 0
        self._locked = False
        self._check_home()

    def _check_home(self) -> None:
        if not leads_home(self._plpy, self._pulse, self.link):
            raise NotReady(
                "server cerebro_self leads to another database",
                "It leads to %s." % self.link.address,
                home_command(self._plpy),
            )

    # -- reading, in a snapshot of its own --

    def _read(self, query: str, *values: Any) -> List[Tuple[Optional[str], ...]]:
        """Rows of text columns."""
        try:
            rows = ask(self.link, self._pulse, query, *values)
        except RemoteError as error:
            raise_remote(error)
        return [tuple(None if v is None else v.decode() for v in row) for row in rows]

    def find(self, name: str) -> dict:
        """The run of that name that this role owns, or else may see.

        Raises:
            NotFound: there is none.
        """
        rows = self._read(
            "select pg_catalog.row_to_json(r)::text from cerebro_internal.visible_run r where r.name = $1"
            " order by (r.owner = session_user) desc, r.id limit 1",
            name,
        )
        if not rows:
            raise NotFound('run "%s" does not exist' % name, None, "select run, state from cerebro.run; shows all runs.")
        return json.loads(rows[0][0])

    def exists(self, name: str) -> bool:
        """Whether this very role owns a run of that name."""
        return bool(
            self._read("select r.name from cerebro_internal.visible_run r where r.name = $1 and r.owner = session_user", name)
        )

    def trials(self, run: int) -> List[dict]:
        rows = self._read(
            "select pg_catalog.row_to_json(t)::text from cerebro_internal.visible_trial t where t.run = $1 order by t.trial", run
        )
        return [json.loads(row[0]) for row in rows]

    def visits(self, run: int) -> List[dict]:
        rows = self._read(
            "select pg_catalog.row_to_json(v)::text from cerebro_internal.visible_visit v where v.run = $1"
            ' order by v.trial, v.epoch, v.phase, v."position"',
            run,
        )
        return [json.loads(row[0]) for row in rows]

    def epochs(self, name: str, owner: str) -> List[dict]:
        rows = self._read(
            "select pg_catalog.row_to_json(e)::text from cerebro.epoch e where e.run = $1 and e.owner = $2 order by e.trial, e.epoch",
            name, owner,
        )  # fmt: skip
        return [json.loads(row[0]) for row in rows]

    def state(self, run: int, trial: int, seq: int) -> List[bytes]:
        """The chunks of a committed state."""
        try:
            rows = ask(
                self.link, self._pulse,
                "select s.data from cerebro_internal.visible_state s where s.run = $1 and s.trial = $2 and s.seq = $3 order by s.chunk",
                run, trial, seq,
            )  # fmt: skip
        except RemoteError as error:
            raise_remote(error)
        return [row[0] for row in rows]

    # -- taking and leaving a run --

    def lock(self, run: int, name: str) -> None:
        """Hold the run in this backend's session until ``unlock``, or until the backend dies.

        Raises:
            InUse: another session drives it (55006).
        """
        if self._locked and self.run == run:
            return
        plan = self._plpy.prepare("select pg_catalog.pg_try_advisory_lock($1, $2) as taken", ["int4", "int4"])
        if not self._plpy.execute(plan, [LOCK_CLASS, run])[0]["taken"]:
            holder = self._plpy.execute(
                self._plpy.prepare(
                    "select l.pid from pg_catalog.pg_locks l join pg_catalog.pg_database d on d.oid = l.database"
                    " where d.datname = pg_catalog.current_database() and l.locktype = 'advisory' and l.granted"
                    " and l.objsubid = 2 and l.classid::int8 = $1 and l.objid::int8 = $2",
                    ["int8", "int8"],
                ),
                [LOCK_CLASS, run],
            )
            pid = holder[0]["pid"] if len(holder) else 0
            raise InUse(
                'run "%s" is being driven by another session' % name,
                "The session of process %d holds it." % pid,
                "Wait for it, or stop it: select pg_cancel_backend(%d);" % pid,
            )
        self.run, self._locked = run, True

    def unlock(self) -> None:
        """Let go of the run, through any number of cancels: a session that stays must not keep it."""
        cancelled: Optional[BaseException] = None
        while self._locked:
            try:
                self._plpy.execute("select pg_catalog.pg_advisory_unlock(%d, %d)" % (LOCK_CLASS, self.run))
                self._locked = False
            except self._plpy.SPIError as error:
                if error.sqlstate != "57014":
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def create(self, **run: Any) -> None:
        """Begin a run as generation 1 and lock it."""

        def created(reply: Reply) -> None:
            if reply.error:
                raise_remote(reply.error)
            self.run, self.generation = int(reply.rows[0][0]), 1

        self.link.post(
            "select cerebro_internal.run_create($1, $2, $3, $4, $5, $6, $7)::text",
            run["name"], run["source"], run["model"], run["definition"], run["label"], run["features"], run["options"],
            tag=created,
        )  # fmt: skip
        self.flush()
        self.lock(self.run, run["name"])

    def claim(self, run: int, name: str) -> None:
        """Take a run over from a driver that is gone."""
        self.lock(run, name)
        self.generation = int(self._read("select cerebro_internal.run_claim($1)::text", run)[0][0])

    def ready(self, plan: dict, encoders: dict, rank: Tuple[str, str], trials: List[dict]) -> None:
        self._read(
            "select cerebro_internal.run_ready($1, $2, $3, $4, $5, $6, $7::text::jsonb)::text",
            self.run, self.generation, plan, encoders, rank[0], rank[1], json.dumps(trials),
        )  # fmt: skip

    def replace(self, former: dict) -> None:
        """Remove a run as ``find`` gave it, and take over its name.

        Raises:
            InUse: another session has claimed it since.
        """
        self._read(
            "select cerebro_internal.run_replace($1, $2, $3, $4)::text",
            self.run, self.generation, former["id"], former["generation"],
        )  # fmt: skip

    def drop(self, run: int) -> bool:
        return self._read("select cerebro_internal.run_drop($1)::text", run)[0][0] == "true"

    # -- writing beside the training --

    def _write(self, command: str, *values: Any, then: Optional[Callable[[], None]] = None) -> None:
        self.link.post("select " + command, self.run, self.generation, *values, tag=lambda reply: self._written(reply, then))

    def _written(self, reply: Reply, then: Optional[Callable[[], None]]) -> None:
        if reply.error:
            if reply.error.sqlstate == "55006":
                raise InUse(reply.error.message, reply.error.detail)
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

    def trial_fail(self, trial: int, error: str) -> None:
        self._write("cerebro_internal.trial_fail($1, $2, $3, $4)", trial, error)

    def epoch_end(self, trial: int, epoch: int, metrics: dict, learning_rate: Optional[float], seconds: float,
                  metric: Optional[float], best_seq: Optional[int], finished: bool, then: Callable[[], None]) -> None:  # fmt: skip
        self._write(
            "cerebro_internal.epoch_end($1, $2, $3, $4, $5, $6::float8, $7, $8::float8, $9::int, $10)",
            trial, epoch, finite(metrics), learning_rate, seconds, metric, best_seq, finished, then=then,
        )  # fmt: skip

    def progress(self, details: dict) -> None:
        self._write("cerebro_internal.progress_set($1, $2, $3)", details)

    def end(self, state: str, error: Optional[str]) -> None:
        self._write("cerebro_internal.run_end($1, $2, $3, $4::text)", state, error)

    def flush(self) -> None:
        """Wait until everything is committed."""
        while self.link.busy:
            for reply in pump([self.link], self._pulse):
                reply.tag(reply)

    def close_run(self, state: str, error: str, began: bool, seconds: float) -> None:
        """After an error: end the run (or remove it, when no visit began) within this time, interrupts aside.

        What cannot be written in time stays for ``resume`` to clean up: the run then shows as interrupted.
        """
        deadline = time.monotonic() + seconds
        self.link.clear(keep_bytes=MESSAGE_BYTES // 4)
        if self.run is None:
            for reply in self._drain(deadline):  # the answer to ``create`` may be on its way
                if not reply.error:
                    reply.tag(reply)
        if self.run is None or not self.link.alive:
            return
        if began:
            self.end(state, error)
        else:
            self.link.post("select cerebro_internal.run_drop($1)", self.run)
        self._drain(deadline)

    def _drain(self, deadline: float) -> List[Reply]:
        replies: List[Reply] = []
        while self.link.busy and time.monotonic() < deadline:
            replies += pump([self.link], None, max(0.0, deadline - time.monotonic()))
        return replies


def stored_run(plpy, run: str, with_encoders: bool = True) -> dict:
    """The run of that name that this role owns, or else may see, in the caller's own snapshot; without the ledger.

    Raises:
        NotFound: there is none.
        NotReady: it has no statistics yet.
    """
    more = ", r.definition, r.label, r.features, r.options, r.encoders" if with_encoders else ""
    plan = plpy.prepare(
        "select r.id, r.name, r.owner, r.rank_direction, r.encoders is not null as ready, r.state" + more +
        " from cerebro_internal.visible_run r where r.name = $1 order by (r.owner = current_user) desc, r.id limit 1",
        ["text"],
    )  # fmt: skip
    found = plpy.execute(plan, [run])
    if not len(found):
        raise NotFound('run "%s" does not exist' % run, None, "select run, state from cerebro.run; shows all runs.")
    record = dict(found[0])
    if not record["ready"]:
        raise NotReady('run "%s" has not begun to train' % run, "Its state is %s." % record["state"], "Wait for it, or resume it.")
    for key in ("definition", "options", "encoders"):
        if key in record:
            record[key] = json.loads(record[key])
    return record


def best_trial(plpy, record: dict, trial: Optional[int]) -> dict:
    """One trial of a run, the best by default: ``{"trial", "params", "best_seq"}``.

    Raises:
        NotFound, NotReady: no such trial, or no epoch of it is finished.
    """
    plan = plpy.prepare(
        "select t.trial, t.params, t.best_seq from cerebro_internal.visible_trial t"
        " where t.run = $1 and ($2::int4 is null or t.trial = $2)"
        " order by t.best_seq is null, t.state = 'failed', t.metric %s nulls last, t.trial limit 1"
        % ("desc" if record["rank_direction"] == "max" else "asc"),
        ["int4", "int4"],
    )
    found = plpy.execute(plan, [record["id"], trial])
    if not len(found):
        raise NotFound(
            'run "%s" has no trial %s' % (record["name"], trial), None, "select trial, state from cerebro.trial; shows all trials."
        )
    chosen = dict(found[0])
    if chosen["best_seq"] is None:
        raise NotReady('run "%s" has no finished epoch yet' % record["name"], None, "Wait for its first epoch, or resume it.")
    chosen["params"] = json.loads(chosen["params"])
    return chosen


def stored_state(plpy, run: int, trial: int, seq: int) -> List[bytes]:
    """The chunks of a committed state."""
    plan = plpy.prepare(
        "select s.data from cerebro_internal.visible_state s where s.run = $1 and s.trial = $2 and s.seq = $3 order by s.chunk",
        ["int4", "int4", "int4"],
    )
    return [row["data"] for row in plpy.execute(plan, [run, trial, seq])]
