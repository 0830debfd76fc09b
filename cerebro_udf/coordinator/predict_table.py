"""Predict a whole table on its segments, into a table that is sharded alike.

Everything is written into tables of hidden names, each segment in a session of its own; the target changes at the very
end, in the caller's transaction. What a call leaves behind (it was killed, or its transaction rolled back; or it has
replaced what lay on segments) bears a mark, and the next call drops it: ``docs/predict_table.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import uuid
from typing import Any, Dict, List, Optional, Tuple

from cerebro_udf import columns, faults, stored
from cerebro_udf.catalog import leads_home, refuse_read_only
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import programs
from cerebro_udf.coordinator import target as targets
from cerebro_udf.coordinator.links import pump, stop
from cerebro_udf.coordinator.segments import STOP_SECONDS, Segments
from cerebro_udf.coordinator.source import Source, describe, refuse_other_kinds
from cerebro_udf.engines import engine_for
from cerebro_udf.engines.base import SELF, Engine, Part, Shard
from cerebro_udf.errors import (
    CerebroError,
    ClientGone,
    InvalidArgument,
    NotReady,
    NotSupported,
    WrongColumnType,
)
from cerebro_udf.interrupts import Pulse
from cerebro_udf.marks import Mark, copy_grants

UNDO_SECONDS = 0.3  # to drop what a failed call has made; what takes longer is left to the next call
NAME_BYTES = 63  # of an identifier

_WORKER = "select cerebro_internal.worker_predict_table($1, $2)::text"

_HERE = """
select (select s.system_identifier::text from pg_catalog.pg_control_system() s) || '/' || d.oid::text as coordinator
     , pg_catalog.txid_current() as transaction
     , pg_catalog.current_setting('transaction_isolation') as isolation
from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()
"""

_WRITTEN = "select pg_catalog.txid_current_if_assigned() is not null as written"

# A unique constraint on just this key that is not checked at once: rows cannot be looked for by it.
_DEFERRABLE = """
select coalesce(pg_catalog.to_json(pg_catalog.max(c.conname::text))::text, 'null') as name
from pg_catalog.pg_index i join pg_catalog.pg_constraint c on c.conindid = i.indexrelid and c.conrelid = i.indrelid
where i.indrelid = $1::text::pg_catalog.regclass and i.indisunique and not i.indimmediate
  and array(select a.attname::text from pg_catalog.pg_attribute a
            where a.attrelid = i.indexrelid order by a.attname::text collate "C") = $2::text[]
"""

_FINISHED = "select $1 <= pg_catalog.txid_current() and coalesce(pg_catalog.txid_status($1), '') <> 'in progress' as finished"


def predict_table(plpy, gd: dict, run: str, source: str, target: str, key: List[str], options: dict, schema: Optional[str]) -> int:
    """Predict every row of a table; see ``docs/predict_table.md``.

    Args:
        schema: Where the caller makes tables whose name has no schema.

    Returns:
        Rows written.
    """
    started = time.monotonic()
    parsed = run_options.parse_predict_table(options)
    for name in key:
        if key.count(name) > 1:
            raise InvalidArgument('key lists "%s" twice' % name, None, "List each column once.")
    refuse_read_only(plpy, "store predictions", None)
    found = targets.find(plpy, target, schema)
    _, record, chunks = stored.read(plpy, gd, run, parsed["trial"])
    table = describe(plpy, source, record["features"], None, list(dict.fromkeys(key + parsed["columns"])))
    refuse_other_kinds(table, record["encoders"])
    targets.refuse(found, parsed["if_exists"], table, key)
    _refuse_unordered(plpy, table, key)
    call = _Call(plpy, gd, run, table, found, key, parsed, record["encoders"])
    counts = call.go(programs.stored(record)["program"], chunks)
    plpy.notice(
        "table %s: %d rows on %d segments%s, %.1f s"
        % (found.qualified, counts["rows"], len(call.segments.shards), _left_out(counts), time.monotonic() - started)
    )
    return counts["rows"]


def _left_out(counts: Dict[str, int]) -> str:
    parts = [(counts["unpredicted"], "without prediction"), (counts["skipped"], "skipped")]
    told = ", ".join("%d %s" % part for part in parts if part[0])
    return told and ", %s (a feature is NULL, NaN or infinite)" % told


def _refuse_unordered(plpy, table: Source, key: List[str]) -> None:
    """Refuse a key of a type that no index can hold."""
    for name in key:
        quoted = plpy.quote_ident(name)
        try:
            plpy.prepare("select %s from %s order by %s" % (quoted, table.name, quoted))
        except plpy.SPIError as error:
            if error.sqlstate != "42883":
                raise
            raise WrongColumnType(
                'column "%s" cannot be part of a key' % name,
                "Its type is %s, which has no order." % table.types[name],
                "Name other columns in key; carry this one along in options.columns.",
            ) from None


def _columns(carried: Dict[str, str], label: dict, probabilities: bool, segment: Optional[str]) -> Dict[str, str]:
    """The columns of the predictions: name to type, as SQL.

    Raises:
        InvalidArgument: a column that is carried along has the name of one of ours.
        WrongColumnType, NotSupported: the run's label has a type that no label has; another member of its owner wrote it.
    """
    columns.task_of(label)
    predicted = {"prediction": "double precision"}
    if label.get("classes"):
        predicted = {"prediction": columns.prediction_type(label["type"]), "probability": "real"}
        if probabilities:
            predicted["probabilities"] = "jsonb"
    if segment is not None:
        predicted[segment] = "text"
    for name in predicted:
        if name in carried:
            raise InvalidArgument(
                'column "%s" cannot be carried along' % name,
                "The target has a column of that name already.",
                "Leave it out of key and options.columns, or rename it in a view or table of its own.",
            )
    return {**carried, **predicted}


class _Undone(Exception):
    """Ends a subtransaction that was but a trial."""


class _Call:
    """One call: its sessions, and the hidden tables that it makes in them."""

    def __init__(self, plpy, gd: dict, run: str, table: Source, target: targets.Target, key: List[str], options: dict, encoders: dict):
        self._plpy, self._gd, self._run, self._table, self._target, self._key = plpy, gd, run, table, target, key
        self._options = options
        self._encoders, self._pulse = encoders, Pulse(plpy)
        self._engine: Engine = engine_for(plpy)
        shards = self._engine.shards(table, options["segments"])
        self._carried = list(table.carried)
        appended = target.partitioning if options["if_exists"] == "append" else None
        self._layout = self._engine.alike(table, shards, self._carried, appended)
        types = targets.types_of(plpy, table.oid)
        carried = {name: types[name] for name in self._carried}
        self._columns = _columns(carried, encoders["label"], options["probabilities"], self._layout.column)
        if appended is not None:
            targets.refuse_other_columns(plpy, target, self._columns)
        written = plpy.execute(_WRITTEN)[0]["written"]  # before anything else: _HERE does
        here = plpy.execute(_HERE)[0]
        # What this transaction has replaced comes back if it is rolled back, and looks like a leftover meanwhile.
        self._clears = here["isolation"] == "read committed" and not written
        self._isolation = here["isolation"]
        self._mark = Mark(run, table.name, target.qualified, key, here["coordinator"], here["transaction"])
        suffix = "_" + uuid.uuid4().hex[:8]
        self._hidden = _cut(target.name, NAME_BYTES - len(suffix) - 6) + suffix
        self._names = [
            self._hidden if len(self._layout.parts) == 1 else "%s_%d" % (self._hidden, n + 1) for n in range(len(self._layout.parts))
        ]
        self._reads = [  # of each part one of the scans that fill it
            next(read for shard in shards for read in shard.reads if n == self._layout.part_of(shard, read))
            for n in range(len(self._layout.parts))
        ]
        self._relations: Dict[int, str] = {}  # part -> what was made for it
        self.segments = Segments(plpy, gd, self._pulse, self._engine, shards)
        self._numbers = {shard.server: shard.number for shard in reversed(shards)}  # server -> its first link

    def go(self, program: dict, chunks: List[bytes]) -> Dict[str, int]:
        """Do it all; whatever happens, leave segments idle, and no table that the target does not lead to."""
        segments = self.segments
        faults.reset(self._run)
        segments.connect()
        segments.check_policies()
        try:
            self._refuse_elsewhere()
            self._refuse_unfit()
            schemas = self._survey()
            self._mark = dataclasses.replace(self._mark, left=self._elsewhere())
            segments.share_hosts()
            segments.start()
            model = self._load(program, chunks)  # what takes longest, before there is anything to be dropped
            self._make(schemas)
            counts = self._fill(model)
            self._each("index", lambda server: {"tables": [self._relations[n] for n in self._parts(server)], "key": self._key})
            faults.reach(self._plpy, "before-swap", self._run)
            self._finish(counts["rows"])
        except BaseException:
            self._undo()
            raise
        finally:
            segments.rest()
        return counts

    # -- on the segments --

    def _parts(self, server: str) -> List[int]:
        return [n for n, part in enumerate(self._layout.parts) if part.server == server]

    def _each(self, step: str, spec: Any) -> Dict[str, dict]:
        """Have one session of each server do a step; ``spec`` is a function of the server."""
        servers = {number: server for server, number in self._numbers.items()}
        numbers = sorted(servers)
        found = self.segments.call(_WORKER, lambda n: {"step": step, **spec(servers[n])}, None, numbers=numbers)
        return {servers[number]: report for number, report in zip(numbers, found)}

    def _refuse_elsewhere(self) -> None:
        if SELF in self._numbers and not leads_home(self._plpy, self._pulse, self.segments.links[self._numbers[SELF]]):
            raise NotReady("server cerebro_self leads to another database", None, self._engine.home_command())

    def _refuse_unfit(self) -> None:
        """Refuse to append to a table that could not take the rows, before anything is written.

        Its parts are asked by planning the very statement that fills them, and its partitioning by making a partition, which is
        rolled back.

        Raises:
            NotReady: a part has no unique index on the key, or one that is checked late.
            NotSupported: a partition cannot be added.
        """
        if self._target.oid is None or self._options["if_exists"] != "append":
            return
        pieces = self._pieces(self._target)
        nothing = "(select %s) nothing" % ", ".join(
            "null::%s as %s" % (type_, self._plpy.quote_ident(name)) for name, type_ in self._columns.items()
        )
        for part in self._layout.parts:
            piece = pieces.get((part.server, part.bound))
            if piece is None:
                self._refuse_partition(part)
                continue
            statement = "explain " + self._upsert(piece, nothing)
            try:
                if part.server == SELF:
                    self._plpy.execute(statement)
                else:
                    self._at_once([(self._numbers[part.server], [statement])])
            except (self._plpy.SPIError, CerebroError) as error:
                if error.sqlstate != "42P10":
                    raise
                keys = ", ".join(map(self._plpy.quote_ident, self._key))
                where = "" if part.server == SELF else ' on segment "%s"' % part.server
                raise NotReady(
                    "table %s%s has no unique index on the key" % (piece, where),
                    "Rows that are there already are found by their key, which is (%s)." % keys,
                    "CREATE UNIQUE INDEX ON %s (%s);" % (piece, keys),
                ) from None
            self._refuse_deferrable(part, piece)

    def _refuse_deferrable(self, part: Part, piece: str) -> None:
        """See whether the key's constraint is one that PostgreSQL tells of when a row is written, and not when that is planned."""
        values = [piece, sorted(self._key, key=str.encode)]
        if part.server == SELF:
            name = json.loads(self._plpy.execute(self._plpy.prepare(_DEFERRABLE, ["text", "text[]"]), values)[0]["name"])
        else:
            (name,) = self.segments.call(_DEFERRABLE, *values, numbers=[self._numbers[part.server]])
        if name is not None:
            quote, keys = self._plpy.quote_ident, ", ".join(map(self._plpy.quote_ident, self._key))
            where = "" if part.server == SELF else ' on segment "%s"' % part.server
            raise NotReady(
                "the unique constraint on the key of table %s%s is deferrable" % (piece, where),
                "Rows that are there already are found by their key, which takes a constraint that is checked at once.",
                "ALTER TABLE %s DROP CONSTRAINT %s, ADD UNIQUE (%s);" % (piece, quote(name), keys),
            )

    def _refuse_partition(self, part: Part) -> None:
        """See whether the target takes a further partition of these bounds."""
        further = [name for name in targets.types_of(self._plpy, self._target.oid) if name not in self._columns]
        if further:
            raise NotSupported(
                "table %s cannot get a further partition" % self._target.qualified,
                'The predictions have no column "%s".' % further[0],
                'Drop the column, add it to options.columns, or name another target.',
            )
        partition = "%s.%s" % (self._plpy.quote_ident(self._target.schema), self._plpy.quote_ident(self._hidden))
        try:
            with self._plpy.subtransaction():
                self._plpy.execute("create table %s partition of %s %s" % (partition, self._target.qualified, part.bound))
                raise _Undone
        except _Undone:
            return
        except self._plpy.SPIError as error:
            if error.sqlstate not in ("42P17", "42P16"):
                raise
            raise NotSupported(
                "table %s cannot get a further partition" % self._target.qualified,
                "%s: %s." % (part.bound, error),
                'Name another target, or set options.if_exists to "replace".',
            ) from None

    def _pieces(self, target: targets.Target) -> Dict[Tuple[str, Optional[str]], str]:
        return {(piece.server, piece.bound): piece.relation for piece in self._engine.pieces(target.oid)}

    def _survey(self) -> Dict[str, str]:
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

        found = self._each("survey", spec)
        leftovers = {server: self._leftovers(report) for server, report in found.items()}
        if any(leftovers.values()):
            self._each("drop", lambda server: {"coordinator": self._mark.coordinator, "names": leftovers[server]})
        return {server: report["schema"] for server, report in found.items()}

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
        if self._target.oid is None or self._options["if_exists"] != "replace":
            return []
        own = {SELF, *self._numbers}
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
                (report,) = segments.call(_WORKER, {**spec, "step": "survey", "schemas": []}, None)
                segments.call(_WORKER, {**spec, "step": "drop", "names": self._leftovers(report)}, None)
        except ClientGone:
            raise
        except CerebroError:  # it is down, say; the call has nothing else to do with it
            return False
        return True

    def _make(self, schemas: Dict[str, str]) -> None:
        replaced = self._target.oid if self._options["if_exists"] == "replace" else None
        former = {} if replaced is None else {(p.server, p.bound): p.relation for p in self._engine.pieces(replaced)}
        predicted = [[name, type_] for name, type_ in self._columns.items() if name not in self._carried]

        def spec(server: str) -> dict:
            parts = [
                {
                    "name": self._names[n], "relation": self._reads[n].relation, "columns": self._reads[n].columns,
                    "like": former.get((server, self._layout.parts[n].bound)),
                }
                for n in self._parts(server)
            ]  # fmt: skip
            return {
                "schema": schemas[server], "parts": parts, "carried": self._carried, "predicted": predicted, "mark": self._mark.text(),
            }  # fmt: skip

        for server, report in self._each("make", spec).items():
            self._relations.update(zip(self._parts(server), report["relations"]))

    def _parsed(self, relation: str) -> List[str]:
        plan = self._plpy.prepare("select pg_catalog.parse_ident($1) as parts", ["text"])
        return self._plpy.execute(plan, [relation])[0]["parts"]

    def _load(self, program: dict, chunks: List[bytes]) -> str:
        """Have every session hold the model; gives what they call it."""
        spec = {"step": "model", "encoders": self._encoders, "program": program}
        found: List[dict] = []
        for shard in self.segments.shards:
            self._post(shard.number, spec, self.segments.hand_over(shard.number, chunks), found)
        self.segments.wait()
        return found[0]["model"]

    def _post(self, number: int, spec: dict, state: Optional[bytes], reports: List[dict]) -> None:
        self.segments.post(number, _WORKER, spec, state, then=lambda reply: reports.append(json.loads(reply.rows[0][0])))

    def _fill(self, model: str) -> Dict[str, int]:
        reports: List[dict] = []
        for shard in self.segments.shards:
            parts: Dict[int, List[dict]] = {}
            for read in shard.reads:
                parts.setdefault(self._layout.part_of(shard, read), []).append(read.spec())
            spec = {
                "step": "fill", "run": self._run, "model": model, "carried": self._carried, "features": self._features(),
                "nulls": self._options["nulls"], "probabilities": self._options["probabilities"],
                "parts": [
                    {"relation": self._relations[n], "reads": reads, "segment": shard.server if self._layout.column else None}
                    for n, reads in parts.items()
                ],
            }  # fmt: skip
            self._post(shard.number, spec, None, reports)
        self.segments.wait()
        return {name: sum(report[name] for report in reports) for name in ("rows", "unpredicted", "skipped")}

    def _features(self) -> List[dict]:
        """The run's features, with the types that they have in this table."""
        return [{**feature, "type": self._table.types[feature["name"]]} for feature in self._encoders["features"]]

    def _undo(self) -> None:
        """Drop what this call has made, as far as that takes no time."""
        links = self.segments.links
        stop(links, STOP_SECONDS)
        spec = {"step": "drop", "coordinator": self._mark.coordinator, "names": self._names}
        for number in self._numbers.values():
            if number < len(links) and links[number].alive:
                links[number].post("rollback")
                links[number].post(_WORKER, spec, None)
        deadline = time.monotonic() + UNDO_SECONDS
        while any(link.busy for link in links) and time.monotonic() < deadline:
            pump(links, None, max(0.0, deadline - time.monotonic()))

    # -- in the caller's transaction --

    def _finish(self, rows: int) -> None:
        target = targets.find(self._plpy, self._target.qualified, None)
        targets.refuse(target, self._options["if_exists"], self._table, self._key)
        if target.oid is not None and self._options["if_exists"] == "append":
            if target.oid != self._target.oid:
                raise NotReady("table %s was made or replaced meanwhile" % target.qualified, None, "Call again.")
            self._append(target, rows)
        else:
            self._replace(target)

    def _replace(self, target: targets.Target) -> None:
        execute, comment = self._plpy.execute, self._plpy.quote_literal(self._mark.text())
        quoted = self._plpy.quote_ident(target.name)
        if self._layout.partitioning is None:
            self._drop(target)
            execute("alter table %s rename to %s" % (self._relations[0], quoted))
            return
        parent = "%s.%s" % (self._plpy.quote_ident(target.schema), self._plpy.quote_ident(self._hidden + "_new"))
        columns = ", ".join("%s %s" % (self._plpy.quote_ident(name), type_) for name, type_ in self._columns.items())
        execute("create table %s (%s) partition by %s" % (parent, columns, self._layout.partitioning))
        execute("comment on table %s is %s" % (parent, comment))
        if target.oid is not None:
            copy_grants(self._plpy, target.qualified, parent)
        self._drop(target)
        execute("alter table %s rename to %s" % (parent, quoted))
        for n in range(len(self._layout.parts)):
            self._attach(target, n)

    def _drop(self, target: targets.Target) -> None:
        if target.oid is None:
            return
        try:
            self._plpy.execute("drop table " + target.qualified)
        except self._plpy.SPIError as error:
            if error.sqlstate != "2BP01":
                raise
            raised = CerebroError(
                "table %s cannot be replaced: other objects depend on it" % target.qualified,
                error.spidata[1],
                'Drop them first, or set options.if_exists to "append".',
            )
            raised.sqlstate = error.sqlstate
            raise raised from None

    def _attach(self, target: targets.Target, n: int) -> None:
        partition = "%s.%s" % (self._plpy.quote_ident(target.schema), self._plpy.quote_ident(self._names[n]))
        for statement in self._engine.attach(target.qualified, partition, self._layout.parts[n], self._relations[n]):
            self._plpy.execute(statement)

    def _append(self, target: targets.Target, rows: int) -> None:
        """Put staged rows in place of those of their keys: in the caller's transaction where the target is local, else on all
        segments at once, each in a transaction of its own that is committed when all have come so far."""
        pieces = self._pieces(target)
        moved: Dict[str, List[str]] = {}
        for n, part in enumerate(self._layout.parts):
            piece = pieces.get((part.server, part.bound))
            if piece is None:
                self._attach(target, n)
            elif part.server == SELF:
                found = self._plpy.execute(self._upsert(piece, self._relations[n]))[0]["rows"]
                if self._layout.partitioning is None and found != rows:
                    raise NotReady(
                        "this transaction does not see what its segments have written",
                        "It sees %d of %d rows, since it sees what was there when it began (%s)." % (found, rows, self._isolation),
                        "COMMIT first.",
                    )
                self._plpy.execute("drop table " + self._relations[n])
            else:
                moved.setdefault(part.server, []).append(self._upsert(piece, self._relations[n]))
                moved[part.server].append("drop table " + self._relations[n])
        self._at_once([(self._numbers[server], ["begin", *statements]) for server, statements in moved.items()])
        self._at_once([(self._numbers[server], ["commit"]) for server in moved])

    def _at_once(self, work: List[Tuple[int, List[str]]]) -> None:
        for number, statements in work:
            for statement in statements:
                self.segments.post(number, statement, then=lambda reply: None)
        self.segments.wait([number for number, _ in work])

    def _upsert(self, piece: str, staged: str) -> str:
        quote = self._plpy.quote_ident
        names = ", ".join(map(quote, self._columns))
        changes = ", ".join("{0} = excluded.{0}".format(quote(name)) for name in self._columns if name not in self._key)
        return (
            "with written as (insert into %s (%s) select %s from %s on conflict (%s) do update set %s returning 1)"
            " select pg_catalog.count(*) as rows from written"
            % (piece, names, names, staged, ", ".join(map(quote, self._key)), changes)
        )  # fmt: skip


def _cut(name: str, size: int) -> str:
    """As much of a name as so many bytes hold."""
    return name.encode()[:size].decode(errors="ignore")
