"""Reading a shard: once per run, by a server-side cursor, into columns, training and validation rows apart.

Which rows are for validation (``split``, ``docs/replay.md``) does not depend on how the table is sharded. By most rules that is known at
each fetch; by some once the rows of all shards have been counted, and until then fetches wait as they are.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np

from cerebro_udf import columns, encoders, tensors
from cerebro_udf.errors import OutOfMemory
from cerebro_udf.segment import reading, seeds
from cerebro_udf.segment.column import (
    Applying,
    Buffer,
    Column,
    HashedTokens,
    NumberLabel,
    Numbers,
    Quantities,
    Sparse,
    Steps,
    TextLabel,
    Texts,
    Tokens,
    Weight,
)
from cerebro_udf.segment.overflow import Overflow, allowed_bytes, room, row_bytes, streamed
from cerebro_udf.segment.split import Criterion, Ranking, Rule
from cerebro_udf.wire import stratified

LABEL = "\0%d"  # what a fetch calls a label, which may be a feature too, and that of several outputs
BLOCK_ROWS = 65_536  # encoded at once where not all fit the memory


class Shard:
    """The rows of one segment's part of a table, raw, until :meth:`encode` turns them into tensors.

    Attributes:
        rows, skipped, train_rows, validation_rows: Counts of rows; ``rows`` leaves the skipped ones out.
        checksum: 32 hexadecimal digits over all values in the order read; ``source_checksum`` such over those that were read before
            a table of rows for validation, None where there is none.
        bytes: What the raw columns take.
        seconds: What reading took.
        overflow: Where its rows are, if they do not fit the memory.
    """

    def __init__(self, features: List[Column], labels: List[Column], weight: Optional[Weight], criterion: Optional[Criterion],
                 skipped: int, seconds: float, overflow: Optional[Overflow] = None, memory_bytes: int = 0,
                 source_checksum: Optional[str] = None):  # fmt: skip
        self.overflow, self._memory_bytes = overflow, memory_bytes
        self._features, self._labels, self._weight = features, labels, weight
        self._columns = columns = [*features, *labels, *([weight] if weight else [])]
        self._stats: Dict[str, dict] = {}
        for column in (*features, weight, criterion):
            if column is not None:  # what divides rows or weighs them may be a feature too
                self._stats[column.name] = {**self._stats.get(column.name, {}), **column.stats()}
        self._label_stats = [{"name": label.name, **label.stats()} for label in labels]
        self.skipped, self.seconds = skipped, seconds
        self.train_rows = columns[0].train.rows
        self.validation_rows = columns[0].validation.rows
        self.rows = self.train_rows + self.validation_rows
        self.bytes = _raw_bytes(columns)
        self.checksum = _checksum(columns if criterion is None else [*columns, criterion], self.rows, skipped)
        self.source_checksum = source_checksum

    def stats(self) -> dict:
        """Return what ``encoders.merge`` needs of this shard, as JSON; it stays after :meth:`encode`."""
        return {
            "rows": self.rows,
            "train_rows": self.train_rows,
            "validation_rows": self.validation_rows,
            "skipped": self.skipped,
            "checksum": self.checksum,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "columns": self._stats,
            "labels": self._label_stats,
            **({} if self.source_checksum is None else {"source_checksum": self.source_checksum}),
        }

    def columns(
        self, part: str, pulse: Callable[[], None] = lambda: None
    ) -> Tuple[Dict[str, tensors.Column], List[tensors.Column]]:
        """Return (features by name, labels) of ``train`` or ``validation``, in the order read."""
        return (
            {column.name: column.part(part, pulse) for column in self._features},
            [column.part(part, pulse) for column in self._labels],
        )

    def encode(
        self, encoding: tensors.Encoding, pulse: Callable[[], None] = lambda: None
    ) -> Dict[str, Dict[str, np.ndarray]]:
        """Encode both parts and let go of the raw columns.

        Args:
            encoding: The run's.
            pulse: Called between chunks; may raise, the shard is of no use then.

        Returns:
            ``{"train": arrays, "validation": arrays}``, arrays as of ``tensors.Encoding.encode``; and ``weight`` float32
            (n,) where rows are weighted, by a column of theirs or, in training, by their class, see ``by_class``.
        """
        result = {}
        for part in ("train", "validation"):
            columns, labels = self.columns(part, pulse)
            rows = getattr(self._features[0], part).rows
            if not rows:
                columns, labels = without_rows(encoding.encoders)
                result[part] = encoding.encode(columns, labels if self._labels else [], pulse)
            elif self.overflow is None:
                result[part] = encoding.encode(columns, labels, pulse)
            else:
                result[part] = self._beyond(encoding, rows, columns, labels, pulse)
            del columns, labels
            if self._weight:
                result[part]["weight"] = self._weight.part(part, pulse).astype(np.float32)
            if part == "train" and self._labels:
                by_class(encoding.encoders, result[part])
            for column in self._columns:
                setattr(column, part, Buffer())
        return result

    def _beyond(self, encoding: tensors.Encoding, rows: int, columns: Dict[str, tensors.Column], labels: List[tensors.Column],
                pulse) -> dict:  # fmt: skip
        """Encode rows block by block; what does not fit the memory goes to files."""

        def block(start: int, count: int) -> Dict[str, np.ndarray]:
            part = {name: _cut(column, start, count) for name, column in columns.items()}
            return encoding.encode(part, [_cut(label, start, count) for label in labels], pulse)

        as_read = {tensor: columns[feature["name"]] for tensor, feature in encoders.sparse_tensors(encoding.encoders).items()}
        share = min(1.0, self._memory_bytes / (self.rows * row_bytes({**block(0, 1), **as_read}.values())))
        found: Dict[str, Any] = {name: streamed(column, share) for name, column in as_read.items()}
        for start in range(0, rows, BLOCK_ROWS):
            for name, values in block(start, BLOCK_ROWS).items():
                if name in as_read:
                    continue
                if not start:
                    found[name] = room(name, values, rows, share, self.overflow)
                found[name][start : start + len(values)] = values
        return found


def _checksum(columns: List[Column], rows: int, skipped: int) -> str:
    digest = hashlib.blake2b(b"%d %d" % (rows, skipped), digest_size=16)
    for column in columns:
        digest.update(column.checksum())
    return digest.hexdigest()


def _cut(column: tensors.Column, start: int, count: int) -> tensors.Column:
    if isinstance(column, tensors.Text):
        return column._replace(codes=column.codes[start : start + count])
    return column[start : start + count]


def by_class(stored: dict, arrays: dict) -> None:
    """Weigh rows to train on by their classes, where the encoders have weights of such: ``weight`` of ``arrays``, float32 (n,).

    Where there are several outputs each has weights of its own then, named as ``encoders.tensor_name`` names them.
    """
    of_classes = [label.get("weights") for label in stored["labels"]]
    if not any(of_classes):
        return
    rows = arrays.get("weight")
    for number, (weights, label) in enumerate(zip(of_classes, encoders.label_names(stored))):
        own = np.ones(len(arrays[label]), np.float32) if weights is None else np.array(weights, np.float32)[arrays[label]]
        arrays[encoders.tensor_name("weight", number)] = own if rows is None else rows * own


def without_rows(stored: dict) -> Tuple[Dict[str, tensors.Column], List[np.ndarray]]:
    """Return columns and labels of no rows in the run's shapes, which a shard without rows can't know."""
    columns = {
        feature["name"]: [] if feature["kind"] in ("text", "tokens", "sparse") else np.empty((0, *feature["shape"]))
        for feature in stored["features"]
    }
    return columns, [np.empty((0, *label.get("shape", ()))) for label in stored["labels"]]


def _feature(feature: dict) -> Column:
    if feature["kind"] == "text":
        return Texts(feature["name"], columns.of(feature["type"]).spelling, "nulls" in feature)
    if feature["kind"] == "sparse":
        return Sparse(feature["name"])
    if feature["kind"] == "tokens":
        return (HashedTokens if feature["tokens"].get("hash") else Tokens)(feature["name"], feature["tokens"])
    made = Steps if feature["kind"] == "sequence" else Numbers
    return made(feature["name"], feature.get("encoder"), "nulls" in feature, bool(feature.get("points")))


def _label(number: int, label: dict) -> Column:
    made: Column
    if columns.label_kind(label) == "text":
        made = TextLabel(label["name"], columns.of(label["type"]).spelling)
    elif columns.task_of(label) == columns.MULTI_LABEL:
        made = Applying(label["name"])
    elif columns.task_of(label) == columns.REGRESSION:
        made = Quantities(label["name"], label.get("encoder"))
    else:
        made = NumberLabel(label["name"], columns.base(label["type"]))
    made.key = LABEL % number
    return made


def read(plpy, spec: dict, pulse: Callable[[], None] = lambda: None) -> Union[Shard, "Reader"]:
    """Read the shard.

    Where it takes the ranks of its rows to know which are held out, and they are not given, it waits for them; where rows are ``dealt``,
    it waits for rows.

    Args:
        plpy: PL/Python's module.
        spec: ``reads`` (scans, with their casts, expressions and filter, as ``reading.Selection.query`` takes them), ``held_reads``
            (such of a table whose rows are all held out, or None), ``features``, ``labels`` (column specs), ``weight`` and
            ``criterion`` (such or None), ``seed``, ``validation`` (as ``split.Rule`` takes it), ``dealt`` (whether others read them),
            ``held`` (see :meth:`Reader.shard`, or None), ``sample`` (fraction of the rows of ``reads``, or None), ``memory_bytes``
            (or None), ``promised_bytes`` (to other runs), ``overflow`` (whether what does not fit may go to temporary files).
        pulse: Called after every fetch; may raise.

    Raises:
        RaggedArrays: arrays of one column differ in shape.
        OutOfMemory: raw and encoded rows together exceed ``memory_bytes``.
        plpy.SPIError: what reading the relation raises.
    """
    reader = Reader(plpy, spec)
    if spec.get("dealt"):
        return reader
    reader.scan(plpy, spec["reads"], False, pulse)
    return reader.close(plpy, pulse)


class Reader:
    """A shard while it is being read, and until it is known which rows are held out.

    Attributes:
        ranking: The rows, if that takes their ranks.
        open: Whether rows may still be taken.
    """

    def __init__(self, plpy, spec: dict):
        self.spec, self.open = spec, True
        self.skipped, self.seconds = 0, 0.0
        self.overflow: Optional[Overflow] = None
        self._source_checksum: Optional[str] = None
        weight, criterion = (spec.get(key) for key in ("weight", "criterion"))
        self.features = [_feature(feature) for feature in spec["features"]]
        self.labels = [_label(number, label) for number, label in enumerate(spec["labels"])]
        self.weight = Weight(weight["name"]) if weight else None
        self.criterion = Criterion(criterion["name"], criterion["type"]) if criterion else None
        self.rule = Rule(plpy, spec["validation"], spec["seed"], self.criterion)
        self.ranking = Ranking(self._stratified()) if self.rule.ranked else None
        self._deciding = [*self.features, *self.labels]
        self.columns = [*self._deciding, *([self.weight] if self.weight else [])]
        wanted = [reading.wanted(feature) for feature in spec["features"]]
        wanted += [
            reading.Wanted(column.key, label["type"], columns.label_kind(label), label["name"])
            for column, label in zip(self.labels, spec["labels"])
        ]
        wanted += [reading.Wanted(weight["name"], weight["type"], "number")] if weight else []
        wanted += [reading.Wanted(self.criterion.key, criterion["type"], self.criterion.form, criterion["name"])] if criterion else []
        self.selection = reading.Selection(wanted)
        self._number = seeds.Number(spec["seed"], "sample")

    def _stratified(self) -> Optional[Column]:
        """The label of whose classes equal shares are held out."""
        number = stratified(self.spec["validation"], self.spec["labels"])
        return None if number is None else self.labels[number]

    def scan(self, plpy, relations: List[dict], held: bool, pulse: Callable[[], None]) -> None:
        """Read all rows of some relations; those that are ``held`` are for validation."""
        started = time.perf_counter()
        for relation in relations:
            for rows in reading.batches(plpy, self.selection.query(plpy.quote_ident, relation)):
                self.take(plpy, rows, held)
                pulse()
        self.seconds += time.perf_counter() - started

    def close(self, plpy, pulse: Callable[[], None]) -> Union[Shard, "Reader"]:
        """Return the shard; or this reader, which waits for the ranks that are held out."""
        if self.spec.get("held_reads") is not None:
            self._source_checksum = _checksum(self.columns, self.columns[0].train.rows, self.skipped)
            self.scan(plpy, self.spec["held_reads"], True, pulse)
        self.open = False
        if self.ranking is None:
            return self.shard([], pulse)
        self.ranking.close()
        return self if self.spec.get("held") is None else self.shard(self.spec["held"], pulse)

    def shard(self, held: List[dict], pulse: Callable[[], None] = lambda: None) -> Shard:
        """Return what was read.

        Args:
            held: Which ranks are held out, see ``split.Ranking.divided``.
            pulse: Called between fetches; may raise, the rows are lost then.
        """
        if self.ranking is not None:
            for values, validation in self.ranking.divided(held):
                self._append(values, validation)
                pulse()
        memory_bytes = self.spec.get("memory_bytes") or 0
        return Shard(
            self.features, self.labels, self.weight, self.criterion, self.skipped, self.seconds, self.overflow, memory_bytes,
            self._source_checksum,
        )  # fmt: skip

    def take(self, plpy, rows: List[Any], held: bool) -> None:
        """Parse one fetch and take what can be used of it.

        Raises:
            OutOfMemory: raw and encoded rows together exceed ``memory_bytes``.
        """
        parsed = self.selection.parse(rows)
        values, good = {}, np.ones(len(rows), bool)
        for column in self.columns if self.criterion is None else [*self.columns, self.criterion]:
            values[column.key], bad = column.take(parsed[column.key])
            if bad is not None:
                good &= ~bad
        if not good.all():
            self.skipped += int(len(good) - good.sum())
            values = {key: array[good] for key, array in values.items()}
        if not held and self.spec.get("sample") is not None and good.any():
            numbers = self._number.of([column.words(values[column.key]) for column in self._deciding])
            chosen = seeds.unit(numbers) < self.spec["sample"]
            values = {key: array[chosen] for key, array in values.items()}
        count = len(values[self.columns[0].key])
        if held:
            self._append(values, np.ones(count, bool))
        elif self.ranking is None:
            self._append(values, self.rule.held(values, self._deciding) if count else None)
        elif count:
            self.ranking.append(values, self.rule.rank_keys(values, self._deciding))
        self._check_memory(plpy)

    def _append(self, values: Dict[str, np.ndarray], validation: Optional[np.ndarray]) -> None:
        for column in self.columns:
            column.append(values[column.key], validation)
        if self.criterion is not None:
            self.criterion.digest.update(values[self.criterion.key])

    def _check_memory(self, plpy) -> None:
        limit = self.spec.get("memory_bytes")
        if limit is None:
            return
        rows = self.columns[0].train.rows + self.columns[0].validation.rows + (self.ranking.rows if self.ranking else 0)
        encoded = sum(int(np.prod(getattr(c, "shape", None) or (), dtype=int)) * c.element_bytes for c in self.columns)
        waiting = self.ranking.bytes if self.ranking else 0
        sparse = [column for column in self.columns if isinstance(column, Sparse)]  # encoded as they are
        needed = waiting + (0 if self.overflow else _raw_bytes(self.columns) + rows * encoded + _raw_bytes(sparse))
        if needed > limit and self.spec.get("overflow") and not waiting:
            self.overflow = Overflow(allowed_bytes(plpy))
            for column in self.columns:
                column.train.move(self.overflow)
                column.validation.move(self.overflow)
        elif needed > limit:
            raise OutOfMemory(
                "the shard does not fit the memory that this run may use on its segment",
                detail="The first %d rows take %s MB, raw and encoded; %s MB are allowed%s."
                % (rows, _megabytes(needed), _megabytes(limit), self._promised()),
                hint='Raise the option "memory", use fewer columns, or spread the table over more segments.',
            )

    def _promised(self) -> str:
        others = self.spec.get("promised_bytes")
        return " and %s MB promised to other runs that load here now" % _megabytes(others) if others else ""


def _raw_bytes(columns: List[Column]) -> int:
    return sum(
        column.train.bytes + column.validation.bytes + getattr(column, "value_bytes", 0) for column in columns
    )


def _megabytes(count: float) -> str:
    return "%.1f" % (count / 1e6)
