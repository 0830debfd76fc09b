"""Predict a whole table on its segments, into a table that is sharded alike (``staging``)."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Tuple

from cerebro_udf import columns, faults, stored
from cerebro_udf.catalog import refuse_read_only
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import programs
from cerebro_udf.coordinator import target as targets
from cerebro_udf.coordinator.source import (
    Source,
    beyond_double,
    describe,
    filtered,
    folded_type,
    refuse_other_kinds,
)
from cerebro_udf.coordinator.staging import Staging
from cerebro_udf.engines import engine_for
from cerebro_udf.engines.base import SELF, Engine, Part, by_one
from cerebro_udf.errors import (
    CerebroError,
    InvalidArgument,
    NotReady,
    NotSupported,
    WrongColumnType,
    counted,
)
from cerebro_udf.marks import Mark
from cerebro_udf.wire import parsed

NAME_BYTES = 63  # of a column, at most

_WORKER = "select cerebro_internal.worker_predict_table($1, $2)::text"

# A unique constraint on just this key that is not checked at once: rows cannot be looked for by it.
_DEFERRABLE = """
select coalesce(pg_catalog.to_json(pg_catalog.max(c.conname::text))::text, 'null') as name
from pg_catalog.pg_index i join pg_catalog.pg_constraint c on c.conindid = i.indexrelid and c.conrelid = i.indrelid
where i.indrelid = $1::text::pg_catalog.regclass and i.indisunique and not i.indimmediate
  and array(select a.attname::text from pg_catalog.pg_attribute a
            where a.attrelid = i.indexrelid order by a.attname::text collate "C") = $2::text[]
"""


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
    carried, encoders = list(dict.fromkeys(key + parsed["columns"])), columns.sparse_of(record["encoders"]["features"])
    table = describe(plpy, source, record["features"], (), carried, encoders=encoders, author=record["owner"])
    table = filtered(plpy, table, parsed["filter"])
    refuse_other_kinds(table, record["encoders"])
    targets.refuse(found, "predict_table", parsed["if_exists"], table, key)
    _refuse_unordered(plpy, table, key)
    call = _Call(plpy, gd, run, table, found, key, parsed, record["encoders"])
    counts = call.go(programs.stored(record)["program"], chunks)
    plpy.notice(
        "table %s: %s on %s%s, %.1f s"
        % (
            found.qualified, counted(counts["rows"], "row"), counted(len(call.segments.shards), "segment"), _left_out(counts),
            time.monotonic() - started,
        )  # fmt: skip
    )
    return counts["rows"]


def _left_out(counts: Dict[str, int]) -> str:
    parts = [(counts["unpredicted"], "without prediction"), (counts["skipped"], "skipped")]
    told = ", ".join("%d %s" % part for part in parts if part[0])
    return told and ", %s (a feature is NULL, NaN, infinite or not readable)" % told


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


def _columns(carried: Dict[str, str], labels: List[dict], probabilities: bool, segment: Optional[str], folded: str) -> Dict[str, str]:
    """The columns of the predictions: name to type, as SQL; ``folded`` is the type of text that is one whatever its case.

    Raises:
        InvalidArgument: a column that is carried along has the name of one of ours.
        WrongColumnType, NotSupported: a label of the run has a type that no label has; another member of its owner wrote it.
    """
    predicted: Dict[str, str] = {}
    for label in labels:
        columns.task_of(label)
        prefix = "" if label["output"] is None else label["output"] + "_"
        predicted[prefix + "prediction"] = columns.prediction_type(label["type"], folded)
        if label["task"] == "regression":
            predicted[prefix + "prediction"] = "double precision" + "[]" * label["type"].endswith("[]")
            continue
        predicted[prefix + "probability"] = "real" + "[]" * (label["task"] == "multi_label")
        if probabilities:
            predicted[prefix + "probabilities"] = "jsonb"
    for name in predicted:
        if len(name.encode()) > NAME_BYTES:
            raise NotSupported(
                'a column "%s" for the predictions of an output' % name, "PostgreSQL's names have %d bytes." % NAME_BYTES,
                "Give the output of the model a shorter name, and train it again."
            )
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
    """One call: what it stages on its segments, and how that becomes the target."""

    def __init__(self, plpy, gd: dict, run: str, table: Source, target: targets.Target, key: List[str], options: dict, encoders: dict):
        self._plpy, self._run, self._table, self._target, self._key = plpy, run, table, target, key
        self._options, self._encoders = options, encoders
        self._engine: Engine = engine_for(plpy)
        shards = by_one(self._engine.shards(table, options["segments"]))
        self._carried = list(table.carried)
        appended = target.partitioning if options["if_exists"] == "append" else None
        self._layout = self._engine.alike(table, shards, self._carried, appended)
        types = targets.types_of(plpy, table.oid)
        carried = {name: types[name] for name in self._carried}
        self._columns = _columns(carried, encoders["labels"], options["probabilities"], self._layout.column, folded_type(plpy))
        if appended is not None:
            targets.refuse_other_columns(plpy, target, self._columns)
        mark = Mark("predict_table", table.name, target.qualified, "", 0, run, key)
        self._staging = Staging(
            plpy, gd, self._engine, target, shards, self._layout, self._columns, mark, options["if_exists"] == "replace", self._carried
        )
        self.segments = self._staging.segments

    def go(self, program: dict, chunks: List[bytes]) -> Dict[str, int]:
        """Do it all."""
        faults.reset(self._run)
        with self._staging.session() as staging:
            self._refuse_unfit()
            staging.survey()
            self.segments.share_hosts()
            self.segments.start()
            model = self._load(program, chunks)  # what takes longest, before there is anything to be dropped
            staging.make()
            counts = self._fill(model)
            staging.index(self._key)
            faults.reach(self._plpy, "before-swap", self._run)
            self._finish(counts["rows"])
        return counts

    # -- on the segments --

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
        pieces = self._staging.pieces(self._target)
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
                    self._at_once([(self._staging.numbers[part.server], [statement])])
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
            name = parsed(self._plpy.execute(self._plpy.prepare(_DEFERRABLE, ["text", "text[]"]), values)[0]["name"])
        else:
            (name,) = self.segments.call(_DEFERRABLE, *values, numbers=[self._staging.numbers[part.server]])
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
        partition = "%s.%s" % (self._plpy.quote_ident(self._target.schema), self._plpy.quote_ident(self._staging.hidden))
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

    def _load(self, program: dict, chunks: List[bytes]) -> str:
        """Have every session hold the model; gives what they call it."""
        spec = {"step": "model", "encoders": self._encoders, "program": program}
        found: List[dict] = []
        for shard in self.segments.shards:
            self._post(shard.number, spec, self.segments.hand_over(shard.number, chunks), found)
        self.segments.wait()
        return found[0]["model"]

    def _post(self, number: int, spec: dict, state: Optional[bytes], reports: List[dict]) -> None:
        self.segments.post(number, _WORKER, spec, state, then=lambda reply: reports.append(parsed(reply.rows[0][0])))

    def _fill(self, model: str) -> Dict[str, int]:
        reports: List[dict] = []
        for shard in self.segments.shards:
            parts: Dict[int, List[dict]] = {}
            for read in shard.reads:
                parts.setdefault(self._layout.part_of(shard, read), []).append({**read.spec(), "filter": self._table.filter})
            spec = {
                "step": "fill", "run": self._run, "model": model, "carried": self._carried, "features": self._features(),
                "nulls": self._options["nulls"], "probabilities": self._options["probabilities"],
                "parts": [
                    {"relation": self._staging.relations[n], "reads": reads, "segment": shard.server if self._layout.column else None}
                    for n, reads in parts.items()
                ],
            }  # fmt: skip
            self._post(shard.number, spec, None, reports)
        try:
            self.segments.wait()
        except CerebroError as error:
            raise beyond_double(self._table, error) from None
        return {name: sum(report[name] for report in reports) for name in ("rows", "unpredicted", "skipped")}

    def _features(self) -> List[dict]:
        """The run's features, with the types that they have in this table."""
        return [{**feature, "type": self._table.types[feature["name"]]} for feature in self._encoders["features"]]

    # -- in the caller's transaction --

    def _finish(self, rows: int) -> None:
        target = targets.find(self._plpy, self._target.qualified, None)
        targets.refuse(target, "predict_table", self._options["if_exists"], self._table, self._key)
        if target.oid is not None and self._options["if_exists"] == "append":
            if target.oid != self._target.oid:
                raise NotReady("table %s was made or replaced meanwhile" % target.qualified, None, "Call again.")
            self._append(target, rows)
        else:
            self._staging.replace(target)

    def _append(self, target: targets.Target, rows: int) -> None:
        """Put staged rows in place of those of their keys: in the caller's transaction where the target is local, else on all
        segments at once, each in a transaction of its own that is committed when all have come so far."""
        pieces = self._staging.pieces(target)
        moved: Dict[str, List[str]] = {}
        for n, part in enumerate(self._layout.parts):
            piece = pieces.get((part.server, part.bound))
            if piece is None:
                self._staging.attach(target, n)
            elif part.server == SELF:
                found = self._plpy.execute(self._upsert(piece, self._staging.relations[n]))[0]["rows"]
                if self._layout.partitioning is None and found != rows:
                    raise NotReady(
                        "this transaction does not see what its segments have written",
                        "It sees %d of %s, since it sees what was there when it began (%s)."
                        % (found, counted(rows, "row"), self._staging.isolation),
                        "COMMIT first.",
                    )
                self._plpy.execute("drop table " + self._staging.relations[n])
            else:
                moved.setdefault(part.server, []).append(self._upsert(piece, self._staging.relations[n]))
                moved[part.server].append("drop table " + self._staging.relations[n])
        self._at_once([(self._staging.numbers[server], ["begin", *statements]) for server, statements in moved.items()])
        self._at_once([(self._staging.numbers[server], ["commit"]) for server in moved])

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
