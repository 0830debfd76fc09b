"""Reading a shard: once per run, by a server-side cursor, into columns, training and validation rows apart.

Which rows are for validation depends on the seed and on their values alone (``docs/replay.md``), so a row
falls on the same side however the table is sharded.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from cerebro_udf import encoders
from cerebro_udf.errors import OutOfMemory, WrongColumnType
from cerebro_udf.segment import arrays, seeds
from cerebro_udf.wire import MESSAGE_BYTES

FIRST_FETCH_ROWS = 256  # shows how wide a row is
FETCH_BYTES = 2_000_000  # stays in a core's cache while the rows are parsed, hashed and summed up
LARGEST_FETCH_ROWS = 10_000
DISTINCT_TEXTS = 100_000  # of one column and shard; ten times what a vocabulary keeps
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)  # what exceeds it would be infinite in training


class _Buffer:
    """Rows appended block by block, put together once."""

    def __init__(self):
        self._blocks: List[np.ndarray] = []
        self.rows = self.bytes = 0

    def append(self, block: np.ndarray) -> None:
        """Take a block; it must be an array of its own."""
        if len(block):
            self._blocks.append(block)
            self.rows += len(block)
            self.bytes += block.nbytes

    def whole(self, pulse: Callable[[], None] = lambda: None) -> np.ndarray:
        """Return all rows as one array; blocks go as they are copied, so it never takes twice the room.

        Args:
            pulse: Called after every block; may raise, the rows are lost then.
        """
        if len(self._blocks) > 1:
            whole = np.empty((self.rows, *self._blocks[0].shape[1:]), self._blocks[0].dtype)
            stop = self.rows
            while self._blocks:
                block = self._blocks.pop()
                whole[stop - len(block) : stop] = block
                stop -= len(block)
                pulse()
            self._blocks = [whole]
        return self._blocks[0] if self._blocks else np.empty(0)


class _Column:
    """One column: its values by part, and what the coordinator needs to know about it."""

    def __init__(self, name: str):
        self.name = name
        self.nulls = self.nans = self.infinities = 0
        self.train, self.validation = _Buffer(), _Buffer()
        self.digest = hashlib.blake2b(digest_size=16)

    def bad(self, values: np.ndarray) -> Optional[np.ndarray]:
        """Count NaN and infinite values; return which rows have some, None if none has."""
        if values.dtype.kind != "f":
            return None
        limit = np.isfinite(values) if values.dtype == np.float32 else np.abs(values) <= LARGEST_FLOAT32
        if limit.all():
            return None
        nans = np.isnan(values)
        self.nans += int(nans.sum())
        self.infinities += int((~limit & ~nans).sum())
        return ~limit.reshape(len(values), -1).all(axis=1)

    def words(self, values: np.ndarray) -> np.ndarray:
        """Return the 64-bit words of the values that decide about validation, uint64 (rows, words)."""
        doubles = values.reshape(len(values), -1).astype(np.float64)
        doubles += 0.0  # minus zero is zero
        return doubles.view(np.uint64)

    def append(self, values: np.ndarray, validation: Optional[np.ndarray]) -> None:
        self.digest.update(values)
        train = values if validation is None else values[~validation]
        self.train.append(train)
        if validation is not None:
            self.validation.append(values[validation])
        self.observe(train, values)

    def observe(self, train: np.ndarray, values: np.ndarray) -> None:
        """Update the statistics by the block's training rows, or by all of them."""

    def checksum(self) -> bytes:
        return self.digest.digest()

    def part(self, name: str, pulse: Callable[[], None] = lambda: None) -> encoders.Column:
        return getattr(self, name).whole(pulse)

    def stats(self) -> dict:
        return {"nulls": self.nulls, "nans": self.nans, "infinities": self.infinities}


class _Numbers(_Column):
    """A feature of numbers, scalars or arrays: its moments per element of the last axis."""

    def __init__(self, name: str):
        super().__init__(name)
        self.shape: Optional[Tuple[int, ...]] = None
        self._moments: Tuple[int, Any, Any] = (0, None, None)

    def observe(self, train, values):
        if len(values):
            self.shape = values.shape[1:]
        if not train.size:
            return
        flat = train.reshape(-1, train.shape[-1] if train.ndim > 1 else 1).astype(np.float64)
        # Deviations from the first row: a constant column has exactly none.
        first = flat[0].copy()
        with np.errstate(over="ignore", invalid="ignore"):
            flat -= first
            mean = flat.mean(axis=0)
            flat -= mean
            block = (len(flat), first + mean, np.einsum("ij,ij->j", flat, flat))
            self._moments = encoders.combine_moments(self._moments, block)

    def stats(self):
        count, mean, m2 = self._moments
        return {
            **super().stats(),
            "shape": None if self.shape is None else list(self.shape),
            "count": count,
            "mean": None if mean is None else _finite(mean),
            "m2": None if m2 is None else _finite(m2),
        }


def _finite(values: np.ndarray) -> List[float]:
    """JSON has no infinity; a number just as impossible stands for it, and overflows again when merged."""
    return np.where(np.isfinite(values), values, 1e308).tolist()


class _Weight(_Column):
    """The weights of rows; they have no say in which rows are for validation."""

    def __init__(self, name: str):
        super().__init__(name)
        self._negatives, self._total = 0, 0.0

    def observe(self, train, values):
        self._negatives += int((values < 0).sum())
        self._total += float(train.sum())

    def stats(self):
        return {**super().stats(), "negatives": self._negatives, "total": min(self._total, 1e308)}


class _Text(_Column):
    """A text column: an int32 code per row, and every distinct value once."""

    def __init__(self, name: str):
        super().__init__(name)
        self._codes: Dict[str, int] = _Numbered()
        self._hashes = np.zeros(0, np.uint64)
        self.counts = np.zeros(0, np.int64)  # training rows per value
        self.all_counts = np.zeros(0, np.int64)
        self.value_bytes = self._text_bytes = 0

    def parse(self, texts: List[str]) -> np.ndarray:
        values = np.fromiter(map(self._codes.__getitem__, texts), np.int32, len(texts))
        new = list(self._codes)[len(self._hashes) :]
        if new:
            encoded = [value.encode("utf-8") for value in new]
            self._text_bytes += sum(map(len, encoded))
            self.value_bytes = self._text_bytes + 150 * len(self._codes)  # the string, its code, its dict entry
            if len(self._codes) > DISTINCT_TEXTS or self._text_bytes > MESSAGE_BYTES:
                raise self._too_many()
            hashes = [hashlib.blake2b(value, digest_size=8).digest() for value in encoded]
            self._hashes = np.concatenate([self._hashes, np.frombuffer(b"".join(hashes), "<u8")])
        return values

    def _too_many(self) -> WrongColumnType:
        return WrongColumnType(
            'text column "%s" has too many different values' % self.name,
            "One segment alone holds more than %d, or they take more than %d MB; every value is sent to the coordinator."
            % (DISTINCT_TEXTS, MESSAGE_BYTES // 2**20),
            "Leave the column out if each row has a value of its own; else add a column that groups its values.",
        )

    def words(self, values):
        return self._hashes[values].reshape(-1, 1)

    def observe(self, train, values):
        for name, rows in (("counts", train), ("all_counts", values)):
            counts = np.bincount(rows, minlength=len(self._codes))
            before = getattr(self, name)
            counts[: len(before)] += before
            setattr(self, name, counts)

    def checksum(self):
        self.digest.update(json.dumps(list(self._codes)).encode())
        return self.digest.digest()

    def part(self, name, pulse=lambda: None):
        codes = super().part(name, pulse)
        return encoders.Text(codes.astype(np.int32, copy=False), list(self._codes))

    def stats(self):
        counts = {value: int(count) for value, count in zip(self._codes, self.counts) if count}
        return {**super().stats(), "counts": counts}


class _Numbered(dict):
    """Gives every new key the next number."""

    def __missing__(self, key):
        self[key] = number = len(self)
        return number


class _TextLabel(_Text):
    def stats(self):
        counts = {value: int(n) for value, n, every in zip(self._codes, self.counts, self.all_counts) if every}
        return {**_Column.stats(self), **_classes(counts if len(counts) <= encoders.CLASSES else None)}


def _classes(counts: Optional[Dict[Any, int]]) -> dict:
    """Statistics of classes: ``classes`` and in their order ``counts`` of training rows; both None if there are too many."""
    return {"classes": None if counts is None else list(counts), "counts": None if counts is None else list(counts.values())}


class _NumberLabel(_Column):
    """A label of numbers or booleans: its classes, or its range."""

    def __init__(self, name: str, task: str, type_: str):
        super().__init__(name)
        self.task, self.type = task, type_
        self._counts: Optional[Dict[Any, int]] = {}  # of training rows, None beyond so many classes
        self._range: List[float] = []

    def words(self, values):
        if values.dtype == np.int64:  # a double would not tell large integers apart
            return values.view(np.uint64).reshape(-1, 1)
        return super().words(values)

    def observe(self, train, values):
        if not len(values):
            return
        if self.task == "regression":
            self._range = [min([*self._range, values.min()]), max([*self._range, values.max()])]
        elif self._counts is not None:
            for value in np.unique(values).tolist():
                self._counts.setdefault(value, 0)
            for value, count in zip(*(array.tolist() for array in np.unique(train, return_counts=True))):
                self._counts[value] += count
            if len(self._counts) > encoders.CLASSES:
                self._counts = None

    def stats(self):
        if self.task == "regression":
            low, high = map(float, self._range or [np.nan, np.nan])
            return {
                **super().stats(),
                "min": low if self._range else None,
                "max": high if self._range else None,
            }
        counts = self._counts
        if counts is not None:
            counts = {bool(value) if self.type == "boolean" else value: counts[value] for value in sorted(counts)}
        return {**super().stats(), **_classes(counts)}


class Shard:
    """The rows of one segment's part of a table, raw, until :meth:`encode` turns them into tensors.

    Attributes:
        rows, skipped, train_rows, validation_rows: Counts of rows; ``rows`` leaves the skipped ones out.
        checksum: 32 hexadecimal digits over all values in the order read.
        bytes: What the raw columns take.
        seconds: What reading took.
    """

    def __init__(self, features: List[_Column], label: Optional[_Column], weight: Optional[_Weight], skipped: int, seconds: float):
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
    ) -> Tuple[Dict[str, encoders.Column], Optional[encoders.Column]]:
        """Return (features by name, label) of ``train`` or ``validation``, in the order read."""
        return (
            {column.name: column.part(part, pulse) for column in self._features},
            self._label.part(part, pulse) if self._label else None,
        )

    def encode(
        self, encoding: encoders.Encoding, pulse: Callable[[], None] = lambda: None
    ) -> Dict[str, Dict[str, np.ndarray]]:
        """Encode both parts and let go of the raw columns.

        Args:
            encoding: The run's.
            pulse: Called between chunks; may raise, the shard is of no use then.

        Returns:
            ``{"train": arrays, "validation": arrays}``, arrays as of ``encoders.Encoding.encode``; and ``weight`` float32
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
                setattr(column, part, _Buffer())
        return result

    def _weights(self, part: str, arrays: dict, stored: dict, pulse: Callable[[], None]) -> Optional[np.ndarray]:
        weights = self._weight.part(part, pulse).astype(np.float32) if self._weight else None
        by_class = (stored.get("label") or {}).get("weights")
        if part == "train" and by_class and "label" in arrays:
            of_class = np.array(by_class, np.float32)[arrays["label"]]
            weights = of_class if weights is None else weights * of_class
        return weights


def _without_rows(stored: dict, labelled: bool) -> Tuple[Dict[str, encoders.Column], Optional[np.ndarray]]:
    """Return columns of no rows in the run's shapes, which a shard without rows can't know."""
    columns = {
        feature["name"]: [] if feature["kind"] == "text" else np.empty((0, *feature["shape"]))
        for feature in stored["features"]
    }
    return columns, np.empty(0) if labelled else None


def read(plpy, spec: dict, pulse: Callable[[], None] = lambda: None) -> Shard:
    """Read the shard.

    Args:
        plpy: PL/Python's module.
        spec: ``reads`` ``[{"relation": quoted qualified name, "where": SQL or None, "columns": {source
            column: name there}}]``, ``features``, ``label`` and ``weight`` (column specs or None), ``nulls`` (``error`` or
            ``skip``), ``seed``, ``validation`` (fraction), ``memory_bytes`` (or None), ``promised_bytes`` (to other runs).
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
        self.scalars: List[_Column] = []
        self.arrays: List[Tuple[_Numbers, str]] = []
        self.texts: List[_Text] = []
        self.integer_label: Optional[_Column] = None
        self.features = [self._feature(feature) for feature in spec["features"]]
        self.label = self._label(spec["label"]) if spec.get("label") else None
        self.weight = self._weight(spec["weight"]) if spec.get("weight") else None
        self.columns = [*self.features, *(column for column in (self.label, self.weight) if column)]
        self._keys: Optional[List[np.ndarray]] = None
        self._row_bytes: Optional[int] = None

    def _feature(self, feature: dict) -> _Column:
        if feature["kind"] == "text":
            column = _Text(feature["name"])
            self.texts.append(column)
            return column
        column = _Numbers(feature["name"])
        if feature["kind"] == "array":
            self.arrays.append((column, encoders.base_type(feature["type"])))
        else:
            self.scalars.append(column)
        return column

    def _label(self, label: dict) -> _Column:
        kind, task = encoders.base_type(label["type"]), encoders.task_of(label)
        if kind in encoders.TEXT_TYPES:
            column = _TextLabel(label["name"])
            self.texts.append(column)
            return column
        column = _NumberLabel(label["name"], task, kind)
        if task == "classification" and kind in encoders.INTEGER_TYPES:
            self.integer_label = column
        else:
            self.scalars.append(column)
        return column

    def _weight(self, weight: dict) -> _Weight:
        column = _Weight(weight["name"])
        self.scalars.append(column)
        return column

    def read(self, plpy, pulse: Callable[[], None]) -> Shard:
        started = time.perf_counter()
        for relation in self.spec["reads"]:
            cursor = plpy.cursor(self._query(plpy, relation))
            try:
                rows = FIRST_FETCH_ROWS
                while True:
                    block = cursor.fetch(rows)
                    if not len(block):
                        break
                    width = self._take(block)
                    rows = max(1, min(FETCH_BYTES // max(1, width), LARGEST_FETCH_ROWS))
                    del block
                    self._check_memory()
                    pulse()
            finally:
                cursor.close()
        return Shard(self.features, self.label, self.weight, self.skipped, time.perf_counter() - started)

    def _query(self, plpy, relation: dict) -> str:
        types = {
            column["name"]: encoders.base_type(column["type"])
            for column in [*self.spec["features"], *(self.spec[key] for key in ("label", "weight") if self.spec.get(key))]
        }

        def name(column: _Column) -> str:
            return plpy.quote_ident(relation["columns"][column.name])

        outputs = []
        if self.scalars:
            outputs.append(arrays.sent_scalars([(name(column), types[column.name]) for column in self.scalars]) + " AS scalars")
        for i, (column, kind) in enumerate(self.arrays):
            outputs.append("%s AS array%d" % (arrays.sent(name(column), kind), i))
        for i, column in enumerate(self.texts):
            outputs.append("%s::pg_catalog.text AS text%d" % (name(column), i))
        if self.integer_label:
            outputs.append("%s::pg_catalog.int8 AS label" % name(self.integer_label))
        query = "SELECT %s FROM %s" % (", ".join(outputs), relation["relation"])
        return query + " WHERE " + relation["where"] if relation.get("where") else query

    def _take(self, block) -> int:
        """Parse one fetch and append it; return the bytes of a row on the way here, on average."""
        rows = block[:]
        good = np.ones(len(rows), bool)
        parsed: Dict[str, Tuple[np.ndarray, np.ndarray]] = {}  # name -> values of rows without NULL, nulls
        width = 8 * len(self.texts) + 8
        if self.scalars:
            blobs = [row["scalars"] for row in rows]
            values, nulls = arrays.parse_scalars(blobs, len(self.scalars))
            width += len(blobs[0])
            for j, column in enumerate(self.scalars):
                missing = nulls[:, j]
                parsed[column.name] = (
                    values[:, j][~missing] if missing.any() else values[:, j].copy(),
                    missing,
                )
        for i, (column, kind) in enumerate(self.arrays):
            key = "array%d" % i
            blobs = [row[key] for row in rows]
            values, missing, shape = arrays.parse(blobs, arrays.ELEMENTS[arrays.SENT[kind]], column.name, column.shape)
            width += max(len(blob or b"") for blob in blobs[:16])
            column.shape = shape
            parsed[column.name] = values, missing
        for i, column in enumerate(self.texts):
            key = "text%d" % i
            texts = [row[key] for row in rows]
            missing = np.array([text is None for text in texts], bool)
            parsed[column.name] = column.parse([text for text in texts if text is not None]), missing
        if self.integer_label:
            labels = [row["label"] for row in rows]
            missing = np.array([label is None for label in labels], bool)
            parsed[self.integer_label.name] = (
                np.array([label for label in labels if label is not None], np.int64),
                missing,
            )
        for column in self.columns:
            values, missing = parsed[column.name]
            column.nulls += int(missing.sum())
            good &= ~missing
            bad = column.bad(values)
            if bad is not None:
                good[np.flatnonzero(~missing)[bad]] = False
        whole = good.all()
        self.skipped += 0 if whole else int(len(good) - good.sum())
        self._append(
            {name: values if whole else values[good[~missing]] for name, (values, missing) in parsed.items()}
        )
        return width

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
            int(np.prod(column.shape or (), dtype=int)) if isinstance(column, _Numbers) else 1
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


def _raw_bytes(columns: List[_Column]) -> int:
    return sum(
        column.train.bytes + column.validation.bytes + getattr(column, "value_bytes", 0) for column in columns
    )


def _megabytes(count: float) -> str:
    return "%.1f" % (count / 1e6)
