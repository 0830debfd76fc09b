"""Reading a shard: once per run, by a server-side cursor, into columns, training and validation rows apart.

Which rows are for validation depends on the seed and on their values alone (``docs/replay.md``), so a row
falls on the same side however the table is sharded.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from cerebro_udf import columns, tensors
from cerebro_udf.errors import OutOfMemory
from cerebro_udf.segment import reading, seeds
from cerebro_udf.segment.column import Buffer, Column, NumberLabel, Numbers, TextLabel, Texts, Weight


class Shard:
    """The rows of one segment's part of a table, raw, until :meth:`encode` turns them into tensors.

    Attributes:
        rows, skipped, train_rows, validation_rows: Counts of rows; ``rows`` leaves the skipped ones out.
        checksum: 32 hexadecimal digits over all values in the order read.
        bytes: What the raw columns take.
        seconds: What reading took.
    """

    def __init__(self, features: List[Column], label: Optional[Column], weight: Optional[Weight], skipped: int, seconds: float):
        self._features, self._label, self._weight = features, label, weight
        self._columns = columns = [*features, *(column for column in (label, weight) if column)]
        self._stats = {column.name: column.stats() for column in columns}
        self.skipped, self.seconds = skipped, seconds
        self.train_rows = columns[0].train.rows
        self.validation_rows = columns[0].validation.rows
        self.rows = self.train_rows + self.validation_rows
        self.bytes = _raw_bytes(columns)
        digest = hashlib.blake2b(b"%d %d" % (self.rows, skipped), digest_size=16)
        for column in columns:
            digest.update(column.checksum())
        self.checksum = digest.hexdigest()

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
        }

    def columns(
        self, part: str, pulse: Callable[[], None] = lambda: None
    ) -> Tuple[Dict[str, tensors.Column], Optional[tensors.Column]]:
        """Return (features by name, label) of ``train`` or ``validation``, in the order read."""
        return (
            {column.name: column.part(part, pulse) for column in self._features},
            self._label.part(part, pulse) if self._label else None,
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
            (n,) where rows are weighted, by a column of theirs or, in training, by their class.
        """
        result = {}
        for part in ("train", "validation"):
            columns, label = self.columns(part, pulse)
            if not getattr(self._features[0], part).rows:
                columns, label = _without_rows(encoding.encoders, label is not None)
            result[part] = encoding.encode(columns, label, pulse)
            del columns, label
            weights = self._weights(part, result[part], encoding.encoders, pulse)
            if weights is not None:
                result[part]["weight"] = weights
            for column in self._columns:
                setattr(column, part, Buffer())
        return result

    def _weights(self, part: str, arrays: dict, stored: dict, pulse: Callable[[], None]) -> Optional[np.ndarray]:
        weights = self._weight.part(part, pulse).astype(np.float32) if self._weight else None
        by_class = (stored.get("label") or {}).get("weights")
        if part == "train" and by_class and "label" in arrays:
            of_class = np.array(by_class, np.float32)[arrays["label"]]
            weights = of_class if weights is None else weights * of_class
        return weights


def _without_rows(stored: dict, labelled: bool) -> Tuple[Dict[str, tensors.Column], Optional[np.ndarray]]:
    """Return columns of no rows in the run's shapes, which a shard without rows can't know."""
    columns = {
        feature["name"]: [] if feature["kind"] == "text" else np.empty((0, *feature["shape"]))
        for feature in stored["features"]
    }
    return columns, np.empty(0) if labelled else None


def _feature(feature: dict) -> Column:
    if feature["kind"] == "text":
        return Texts(feature["name"], columns.of(feature["type"]).spelling, "nulls" in feature)
    return Numbers(feature["name"], feature.get("encoder"), "nulls" in feature)


def _label(label: dict) -> Column:
    if columns.label_kind(label) == "text":
        return TextLabel(label["name"], columns.of(label["type"]).spelling)
    return NumberLabel(label["name"], columns.task_of(label), columns.base(label["type"]))


def read(plpy, spec: dict, pulse: Callable[[], None] = lambda: None) -> Shard:
    """Read the shard.

    Args:
        plpy: PL/Python's module.
        spec: ``reads`` ``[{"relation": quoted qualified name, "where": SQL or None, "columns": {source
            column: name there}}]``, ``features``, ``label`` and ``weight`` (column specs or None), ``seed``, ``validation``
            (fraction), ``memory_bytes`` (or None), ``promised_bytes`` (to other runs).
        pulse: Called after every fetch; may raise.

    Raises:
        RaggedArrays: arrays of one column differ in shape.
        OutOfMemory: raw and encoded rows together exceed ``memory_bytes``.
        plpy.SPIError: what reading the relation raises.
    """
    return _Reader(spec).read(plpy, pulse)


class _Reader:
    def __init__(self, spec: dict):
        self.spec = spec
        self.skipped = 0
        label, weight = spec.get("label"), spec.get("weight")
        wanted = [reading.Wanted(feature["name"], feature["type"], feature["kind"]) for feature in spec["features"]]
        wanted += [reading.Wanted(label["name"], label["type"], columns.label_kind(label))] if label else []
        wanted += [reading.Wanted(weight["name"], weight["type"], "number")] if weight else []
        self.selection = reading.Selection(wanted)
        self.features = [_feature(feature) for feature in spec["features"]]
        self.label = _label(label) if label else None
        self.weight = Weight(weight["name"]) if weight else None
        self.columns = [*self.features, *(column for column in (self.label, self.weight) if column)]
        self._keys: Optional[List[np.ndarray]] = None

    def read(self, plpy, pulse: Callable[[], None]) -> Shard:
        started = time.perf_counter()
        for relation in self.spec["reads"]:
            for rows in reading.batches(plpy, self.selection.query(plpy.quote_ident, relation)):
                self._take(rows)
                self._check_memory()
                pulse()
        return Shard(self.features, self.label, self.weight, self.skipped, time.perf_counter() - started)

    def _take(self, rows: List[Any]) -> None:
        """Parse one fetch and append what can be used of it."""
        parsed = self.selection.parse(rows)
        values, good = {}, np.ones(len(rows), bool)
        for column in self.columns:
            values[column.name], bad = column.take(parsed[column.name])
            if bad is not None:
                good &= ~bad
        if not good.all():
            self.skipped += int(len(good) - good.sum())
            values = {name: array[good] for name, array in values.items()}
        self._append(values)

    def _append(self, values: Dict[str, np.ndarray]) -> None:
        validation = None
        if self.spec["validation"] > 0 and len(values[self.columns[0].name]):
            validation = self._validation(values)
        for column in self.columns:
            column.append(values[column.name], validation)

    def _validation(self, values: Dict[str, np.ndarray]) -> np.ndarray:
        words = [column.words(values[column.name]) for column in self.columns if column is not self.weight]
        if self._keys is None:
            widths = [block.shape[1] for block in words]
            keys = seeds.raw(sum(widths), self.spec["seed"], "validation") | np.uint64(1)
            self._keys = np.split(keys, np.cumsum(widths)[:-1])
        total = np.zeros(len(words[0]), np.uint64)
        for block, keys in zip(words, self._keys):
            total += block @ keys
        return seeds.unit(total) < self.spec["validation"]

    def _check_memory(self) -> None:
        limit = self.spec.get("memory_bytes")
        if limit is None:
            return
        rows = self.columns[0].train.rows + self.columns[0].validation.rows
        elements = sum(
            int(np.prod(column.shape or (), dtype=int)) if isinstance(column, Numbers) else 1
            for column in self.columns
        )
        needed = _raw_bytes(self.columns) + rows * elements * 4
        if needed > limit:
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
