"""A target that is sharded like a source, made of hidden tables beside the source's shards.

Everything is written into tables of hidden names, each segment in a session of its own; the target changes at the very
end, in the caller's transaction. What a call leaves behind (it was killed, or its transaction rolled back; or it has
replaced what lay on segments) bears a mark, and the next call drops it: ``docs/predict_table.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from cerebro_udf.catalog import leads_home
from cerebro_udf.coordinator import target as targets
from cerebro_udf.coordinator.links import pump, stop
from cerebro_udf.coordinator.segments import STOP_SECONDS, Segments
from cerebro_udf.engines.base import SELF, Engine, Layout, Shard
from cerebro_udf.errors import CerebroError, ClientGone, NotReady
from cerebro_udf.interrupts import Pulse
from cerebro_udf.marks import Mark, copy_grants, depended_on

UNDO_SECONDS = 0.3  # to drop what a failed call has made; what takes longer is left to the next call
NAME_BYTES = 63  # of an identifier

_STAGE = "select cerebro_internal.worker_stage($1)::text"

_HERE = """
select (select s.system_identifier::text from pg_catalog.pg_control_system() s) || '/' || d.oid::text as coordinator
     , pg_catalog.txid_current() as transaction
     , pg_catalog.current_setting('transaction_isolation') as isolation
from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()
"""

_WRITTEN = "select pg_catalog.txid_current_if_assigned() is not null as written"


_FINISHED = "select $1 <= pg_catalog.txid_current() and coalesce(pg_catalog.txid_status($1), '') <> 'in progress' as finished"


class Staging:
    """One call: its sessions, and the hidden tables that it makes in them.

    Args:
        plpy, gd, engine: Of the session.
        target: As it is now.
        shards: Of the source.
        layout: Of the target.
        columns: Of the target: name to type, as SQL.
        mark: Who makes the tables; the transaction is filled in here.
        replaces: Whether the target is replaced if it exists.
        carried: Those of the columns that are the source's.

    Attributes:
        segments: The sessions, one for each shard.
        numbers: Server to the number of its first session.
        hidden: What the names of the tables begin with.
        relations: Part of the layout to the table made for it, once that is done.
        isolation: Of the caller's transaction.
    """

    def __init__(self, plpy, gd: dict, engine: Engine, target: targets.Target, shards: List[Shard], layout: Layout,
                 columns: Dict[str, str], mark: Mark, replaces: bool, carried: Sequence[str] = ()):  # fmt: skip
        self._plpy, self._gd, self._engine, self._pulse = plpy, gd, engine, Pulse(plpy)
        self._target, self._layout, self._columns, self._replaces, self._carried = target, layout, columns, replaces, list(carried)
        written = plpy.execute(_WRITTEN)[0]["written"]  # before anything else: _HERE does
        here = plpy.execute(_HERE)[0]
        # What this transaction has replaced comes back if it is rolled back, and looks like a leftover meanwhile.
        self._clears = here["isolation"] == "read committed" and not written
        self.isolation = here["isolation"]
        self._mark = dataclasses.replace(mark, coordinator=here["coordinator"], transaction=here["transaction"])
        self._schemas: Dict[str, str] = {}
        suffix = "_" + uuid.uuid4().hex[:8]
        self.hidden = _cut(target.name, NAME_BYTES - len(suffix) - 6) + suffix
        self._names = [
            self.hidden if len(layout.parts) == 1 else "%s_%d" % (self.hidden, n + 1) for n in range(len(layout.parts))
        ]
        self._reads = [  # of each part one of the scans that fill it
            next(read for shard in shards for read in shard.reads if n == layout.part_of(shard, read))
            for n in range(len(layout.parts))
        ]
        self.relations: Dict[int, str] = {}
        self.segments = Segments(plpy, gd, self._pulse, engine, shards)
        self.numbers = {shard.server: shard.number for shard in reversed(shards)}

    @contextlib.contextmanager
    def session(self) -> Iterator["Staging"]:
        """Open the sessions; whatever happens, leave them idle, and no table that the target does not lead to."""
        self.segments.connect()
        self.segments.check_policies()
        try:
            self._refuse_elsewhere()
            yield self
        except BaseException:
            self._undo()
            raise
        finally:
            self.segments.rest()

    # -- on the segments --

    def _refuse_elsewhere(self) -> None:
        if SELF in self.numbers and not leads_home(self._plpy, self._pulse, self.segments.links[self.numbers[SELF]]):
            raise NotReady("server cerebro_self leads to another database", None, self._engine.home_command())

    def _parts(self, server: str) -> List[int]:
        return [n for n, part in enumerate(self._layout.parts) if part.server == server]

    def each(self, step: str, spec: Any, worker: str = _STAGE) -> Dict[str, dict]:
        """Have one session of each server do a step of a worker function; ``spec`` is a function of the server."""
        servers = {number: server for server, number in self.numbers.items()}
        numbers = sorted(servers)
        found = self.segments.call(worker, lambda n: {"step": step, **spec(servers[n])}, numbers=numbers)
        return {servers[number]: report for number, report in zip(numbers, found)}

    def survey(self) -> None:
        """Find out in which schema of each server tables may be made, and drop what former calls have left there.

        A leftover is a table whose call's transaction is over, and to which nothing refers. The transaction's end is
        looked for first, so that what it has committed is seen; a snapshot as old as a REPEATABLE READ transaction's
        would not show it.
        """

        def spec(server: str) -> dict:
            schemas = [self._target.schema]
            if server != SELF:
                schemas += [self._parsed(self._reads[n].relation)[0] for n in self._parts(server)]
            return {"coordinator": self._mark.coordinator, "schemas": list(dict.fromkeys(schemas))}

        found = self.each("survey", spec)
        leftovers = {server: self._leftovers(report) for server, report in found.items()}
        if any(leftovers.values()):
            self.each("drop", lambda server: {"coordinator": self._mark.coordinator, "names": leftovers[server]})
        self._schemas = {server: report["schema"] for server, report in found.items()}
        self._mark = dataclasses.replace(self._mark, left=self._elsewhere())

    def _leftovers(self, report: dict) -> List[str]:
        """The tables of a survey that may go."""
        if not self._clears:
            return []
        plan = self._plpy.prepare(_FINISHED, ["int8"])
        tables = [(schema, name) for schema, name, number in report["tables"] if self._plpy.execute(plan, [number])[0]["finished"]]
        return [name for (_, name), used in zip(tables, self._engine.referred(tables)) if not used]

    def _elsewhere(self) -> List[str]:
        """Servers to which the source does not lead, and that hold what the target is replaced from: the next call that
        replaces it looks there for leftovers, as this one does for the call before."""
        if self._target.oid is None or not self._replaces:
            return []
        own = {SELF, *self.numbers}
        now = {piece.server for piece in self._engine.pieces(self._target.oid)} - own
        before = set(self._target.mark.left) - own - now
        return sorted(now | {server for server in sorted(before) if not self._cleared(server)})

    def _cleared(self, server: str) -> bool:
        """Drop what former calls have left on a server; false where that cannot be done now."""
        if not self._clears:
            return False
        spec = {"coordinator": self._mark.coordinator}
        try:
            with contextlib.ExitStack() as stack:
                segments = Segments(self._plpy, self._gd, self._pulse, self._engine, [Shard(0, server, server, [], 0, None)])
                stack.callback(segments.rest)
                segments.connect()
                (report,) = segments.call(_STAGE, {**spec, "step": "survey", "schemas": []})
                segments.call(_STAGE, {**spec, "step": "drop", "names": self._leftovers(report)})
        except ClientGone:
            raise
        except CerebroError:  # it is down, say; the call has nothing else to do with it
            return False
        return True

    def make(self, external: Sequence[str] = ()) -> None:
        """Make the hidden tables; values of ``external`` columns are stored as they are."""
        former = self.pieces(self._target) if self._replaces and self._target.oid is not None else {}
        added = [[name, type_] for name, type_ in self._columns.items() if name not in self._carried]

        def spec(server: str) -> dict:
            parts = [
                {
                    "name": self._names[n], "relation": self._reads[n].relation, "columns": self._reads[n].columns,
                    "like": former.get((server, self._layout.parts[n].bound)),
                }
                for n in self._parts(server)
            ]  # fmt: skip
            return {
                "schema": self._schemas[server], "parts": parts, "carried": self._carried, "added": added,
                "external": list(external), "mark": self._mark.text(),
            }  # fmt: skip

        for server, report in self.each("make", spec).items():
            self.relations.update(zip(self._parts(server), report["relations"]))

    def index(self, key: List[str]) -> None:
        """Give the hidden tables their primary key."""
        self.each("index", lambda server: {"tables": [self.relations[n] for n in self._parts(server)], "key": key})

    def _parsed(self, relation: str) -> List[str]:
        plan = self._plpy.prepare("select pg_catalog.parse_ident($1) as parts", ["text"])
        return self._plpy.execute(plan, [relation])[0]["parts"]

    def pieces(self, target: targets.Target) -> Dict[Tuple[str, Optional[str]], str]:
        """The parts of a table that exists, by server and bound."""
        return {(piece.server, piece.bound): piece.relation for piece in self._engine.pieces(target.oid)}

    def _undo(self) -> None:
        """Drop what this call has made, as far as that takes no time."""
        links = self.segments.links
        stop(links, STOP_SECONDS)
        spec = {"step": "drop", "coordinator": self._mark.coordinator, "names": self._names}
        for number in self.numbers.values():
            if number < len(links) and links[number].alive:
                links[number].post(_STAGE, spec)
        deadline = time.monotonic() + UNDO_SECONDS
        while any(link.busy for link in links) and time.monotonic() < deadline:
            pump(links, None, max(0.0, deadline - time.monotonic()))

    # -- in the caller's transaction --

    def replace(self, target: targets.Target) -> None:
        """Put what was made in the target's place."""
        execute, comment = self._plpy.execute, self._plpy.quote_literal(self._mark.text())
        quoted = self._plpy.quote_ident(target.name)
        if self._layout.partitioning is None:
            self._drop(target)
            execute("alter table %s rename to %s" % (self.relations[0], quoted))
            return
        parent = "%s.%s" % (self._plpy.quote_ident(target.schema), self._plpy.quote_ident(self.hidden + "_new"))
        columns = ", ".join("%s %s" % (self._plpy.quote_ident(name), type_) for name, type_ in self._columns.items())
        execute("create table %s (%s) partition by %s" % (parent, columns, self._layout.partitioning))
        execute("comment on table %s is %s" % (parent, comment))
        if target.oid is not None:
            copy_grants(self._plpy, target.qualified, parent, self._mark.call)
        self._drop(target)
        execute("alter table %s rename to %s" % (parent, quoted))
        for n in range(len(self._layout.parts)):
            self.attach(target, n)

    def _drop(self, target: targets.Target) -> None:
        if target.oid is None:
            return
        try:
            self._plpy.execute("drop table " + target.qualified)
        except self._plpy.SPIError as error:
            if error.sqlstate != "2BP01":
                raise
            raise depended_on(target.qualified, self._mark.call, error.spidata[1]) from None

    def attach(self, target: targets.Target, n: int) -> None:
        """Make part number ``n`` a partition of the target."""
        partition = "%s.%s" % (self._plpy.quote_ident(target.schema), self._plpy.quote_ident(self._names[n]))
        for statement in self._engine.attach(target.qualified, partition, self._layout.parts[n], self.relations[n]):
            self._plpy.execute(statement)


def _cut(name: str, size: int) -> str:
    """As much of a name as so many bytes hold."""
    return name.encode()[:size].decode(errors="ignore")
