"""Have segments read their shards: once for a run, and once more where a session was lost or replaced."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

from cerebro_udf import columns
from cerebro_udf import encoders as encoding
from cerebro_udf.coordinator import adapting, ranks
from cerebro_udf.coordinator.dealing import Deal
from cerebro_udf.coordinator.links import Reply
from cerebro_udf.coordinator.options import Options
from cerebro_udf.coordinator.segments import Segments
from cerebro_udf.coordinator.source import Source, beyond_double
from cerebro_udf.coordinator.validation import Validation
from cerebro_udf.coordinator.validation import table as held_table
from cerebro_udf.coordinator.weights import by_class
from cerebro_udf.errors import BadData, CerebroError, DataChanged, OutOfMemory, counted
from cerebro_udf.segment import state
from cerebro_udf.wire import parsed, stratified

_LOAD = "select cerebro_internal.worker_load($1)::text"
_FEED = "select cerebro_internal.worker_feed($1, $2)::text"
_RANK = "select cerebro_internal.worker_rank($1)::text"
_SPLIT = "select cerebro_internal.worker_split($1)::text"
_ENCODE = "select cerebro_internal.worker_encode($1)::text"


class Loader:
    """Loads and encodes shards under one key, by which visits name them.

    Args:
        segments: Connected.
        table: The source, under the caller's rights.
        options: Of the run: encoders, what stands for NULLs, task, seed.
        key: What visits will say in ``run``.
        nulls: The option of that name, of this call; rows with NULLs that nothing stands for.
        validation: The option of that name; 1.0 holds all rows out.
        memory: ``options.memory`` of this call.
        sample: Fraction of the source's rows that are taken; None: all.
        definition: Of the run's model, as stored; None: no layer of a model learns from these rows.

    Attributes:
        in_files: How many shards are not all in memory, of those that were encoded last.
    """

    def __init__(self, segments: Segments, table: Source, options: Options, key: str, nulls: str,
                 validation: Validation, memory: Any, sample: Optional[float] = None,
                 definition: Optional[dict] = None):  # fmt: skip
        self._definition, self._wanted = definition, {} if definition is None else adapting.wanted(definition, options.search)
        specs = table.feature_specs(options.encoders, options.nulls)
        self.features = adapting.specifications(specs, self._wanted, options.inputs)
        self.labels = table.label_specs(options.labels(table.label), options.encoders)
        self._segments, self._key, self._memory, self._overflow = segments, key, memory, memory is not None
        self._weight, self._criterion, self._options = table.spec(table.weight), table.spec(table.criterion), options
        self._held: Optional[List[List[dict]]] = None  # of each shard, the ranks that are held out, where rows are ranked
        self._inputs, self._augment, self._filter = options.inputs, options.augment, table.filter
        self.in_files = 0
        self._deal: Optional[Deal] = None
        self._table, self._nulls, self._settings = table, nulls, {"seed": options.seed, "validation": validation, "sample": sample}

    def load(self) -> List[dict]:
        """Have segments read their shards, and tell rows to train on from those held out; gives each shard's statistics.

        Images are decoded by TensorFlow, which is started first for them. Where there is too little memory, and the call has
        not set a limit itself, sessions that it has no use for make room. What does not fit then goes to temporary files.
        """
        if any(feature["kind"] == "image" for feature in self.features):
            self._segments.start()
        try:
            reports = self._read()
        except CerebroError as error:
            if error.sqlstate != OutOfMemory.sqlstate or self._overflow:
                raise beyond_double(self._table, error) from None
            self._segments.make_room()
            self._overflow = True
            reports = self._read()
        if "rows" not in reports[0]:
            reports = self._split([dict(map(tuple, report["classes"])) for report in reports])
        self._refuse_none(reports)
        return reports

    def _refuse_none(self, reports: List[dict]) -> None:
        """Refuse a source of which the options leave nothing."""
        read = ("train_rows",) if held_table(self._settings["validation"]) else ("train_rows", "validation_rows")
        rows, skipped = (sum(report[key] for report in reports for key in keys) for keys in (read, ("skipped",)))
        sample, told = self._settings["sample"], []
        if self._filter is not None and not skipped:
            told.append(("filter", "The filter %s is true for none." % self._filter, "Write one that is true for some rows"))
        if sample is not None:
            told.append(("sample", "The sample is %g of the rows." % sample, "Raise the sample"))
        if rows or not told:
            return
        options, details, hints = zip(*told)
        raise BadData(
            "no row of the source is left by the option%s %s" % ("s" * (len(told) > 1), " and ".join('"%s"' % name for name in options)),
            " ".join(details),
            "; ".join(hints) + ", or leave the option out.",
        )

    def _read(self) -> List[dict]:
        """Have shards read; where rows are dealt, have them read by one, and send them out."""
        reports = self._segments.call(_LOAD, self._spec)
        if not self._segments.shards[0].dealt:
            return reports
        if self._deal is None:
            self._deal = Deal(self._segments.plpy, self._segments, reports[0]["query"])
        for number in range(len(reports)):
            self._feed(number, lambda report, number=number: reports.__setitem__(number, report))
        self._segments.wait()
        return reports

    def _feed(self, number: int, then: Callable[[dict], None]) -> None:
        """Send a shard the rows that are dealt to it, two requests at a time; ``then`` gets what ``load`` would have reported."""
        waiting = self._deal.rows(number)
        ends = iter([None])

        def send(_: Optional[Reply] = None) -> None:
            rows = next(waiting, None)
            if rows is not None:
                self._segments.post(number, _FEED, {"run": self._key}, rows, then=send)
                return
            for end in ends:
                self._segments.post(number, _FEED, {"run": self._key}, end, then=lambda reply: then(parsed(reply.rows[0][0])))

        send()
        send()

    def _split(self, classes: List[Dict[Any, int]]) -> List[dict]:
        """Find the ranks that are held out, and have segments divide their rows; ``classes`` are those of each shard, with their rows."""

        def ask(questions: List[dict]) -> List[List[List[int]]]:
            return [report["below"] for report in self._segments.call(_RANK, {"run": self._key, "questions": questions})]

        validation = self._settings["validation"]
        sizes = {label: [counts.get(label, 0) for counts in classes] for label in set().union(*classes)}
        label = stratified(validation, self.labels)
        ordered = list(sizes) if label is None else columns.in_order(self.labels[label], list(sizes))
        wanted = ranks.held_out(validation, {label: sum(counts) for label, counts in sizes.items()}, ordered)
        held = self._held = ranks.find(sizes, wanted, len(classes), ask, together="time" in validation)
        return self._segments.call(_SPLIT, lambda number: {"run": self._key, "held": held[number]})

    def _spec(self, number: int) -> dict:
        shard = self._segments.shards[number]
        return {
            **self._place(number), **self._settings, "features": self.features, "labels": self.labels,
            "weight": self._weight, "criterion": self._criterion, "held": self._held and self._held[number],
            "held_reads": shard.held and [read.spec() for read in shard.held.reads], "dealt": shard.dealt,
        }  # fmt: skip

    def _place(self, number: int) -> dict:
        """What any load is told: whose shard, where it is, and the memory that it may take."""
        reads = [{**read.spec(), "filter": self._filter} for read in self._segments.shards[number].reads]
        return {
            "run": self._key, "group": self._segments.group, "reads": reads,
            "memory_bytes": self._segments.memory_bytes(number, self._memory), "overflow": self._overflow,
        }  # fmt: skip

    def encoders(self, stats: List[dict], weights: List[bytes]) -> dict:
        """The encoders of a run that has none yet: those that came with its weights, or made of what its shards report.

        Args:
            stats: Of every shard.
            weights: Chunks of what the run's trials begin from; none where they begin anew.

        Raises:
            CerebroError: see ``encoders.merge``, ``encoders.reuse``, ``adapting.check`` and ``weights.by_class``.
        """
        kept = state.unpack(b"".join(weights))[1].get("encoders") if weights else None
        encoders = self._made(stats, None if kept is None else parsed(kept))
        for label in encoders["labels"]:
            weights_of_classes = self._options.of_output(self._options.class_weight, label["output"])
            if weights_of_classes is not None:
                label["weights"] = by_class(weights_of_classes, label)
        return encoders

    def _made(self, stats: List[dict], kept: Optional[dict]) -> dict:
        """Encoders without weights of classes; ``kept`` are those that came with the weights."""
        if kept is not None:
            return encoding.reuse(kept, stats, self._nulls, self._settings["validation"], self._augment)
        validation = self._settings["validation"]
        merged = encoding.merge(self.features, self.labels, stats, self._nulls, validation, self._inputs, self._augment)
        if not self._wanted:
            return merged
        encoders = adapting.learnt(merged, self._wanted, stats)
        adapting.check(self._definition, self._options.search, encoders)
        return encoders

    def encode(self, encoders: dict, numbers: Optional[List[int]] = None) -> List[int]:
        """Turn what was read into arrays, with the merged statistics; gives the bytes of each segment's."""
        spec = {"run": self._key, "encoders": encoders}
        reports = self._segments.call(_ENCODE, spec, numbers=numbers)
        self.in_files = sum(report["file_bytes"] > 0 for report in reports)
        return [report["bytes"] for report in reports]

    def again(self, number: int, before: dict, encoders: dict) -> bool:
        """Have a fresh session in place of the one before read and encode a shard; raises when it is not the same.

        Nothing is waited for: the link is busy until all is done. Returns what ``Segments.reopen`` does.
        """

        def loaded(report: dict) -> None:
            verify([self._segments.shards[number].segment], [before], [report], held_table(self._options.validation))
            self._segments.post(number, _ENCODE, {"run": self._key, "encoders": encoders}, then=lambda reply: None)

        def received(reply: Reply) -> None:
            if self._segments.shards[number].dealt:
                self._feed(number, loaded)
            else:
                loaded(parsed(reply.rows[0][0]))

        crashed = self._segments.reopen(number)
        self._segments.post(number, _LOAD, self._spec(number), then=received)
        return crashed


def verify(segments: Sequence[str], before: Sequence[dict], now: Sequence[dict], held: Optional[str]) -> None:
    """Refuse shards whose rows, or their order, are not what a run began with; ``held`` is the table of rows for validation.

    Raises:
        DataChanged: ML002.
    """
    for segment, old, new in zip(segments, before, now):
        if (old["rows"], old["checksum"]) == (new["rows"], new["checksum"]):
            continue
        what, counts = "the rows", [old["rows"], new["rows"]]
        if held is not None and old.get("source_checksum") == new.get("source_checksum"):
            what, counts = "the rows for validation, those of table %s," % held, [old["validation_rows"], new["validation_rows"]]
        elif held is not None:
            what, counts = "the rows of the source", [old["train_rows"], new["train_rows"]]
        raise DataChanged(
            '%s on segment "%s" have changed since the run began' % (what, segment),
            "There were %s then, and %d now; contents or order differ." % (counted(counts[0], "row"), counts[1]),
            'Begin anew with options {"if_exists": "replace"}, or put the rows back. A view that gives other rows, or another order,'
            " each time it is read is better read from a materialized view, or packed.",
        )
