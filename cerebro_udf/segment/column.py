"""The columns of a shard as they are read: values by part, and what the coordinator has to know of them.

Which rows are for validation is decided before; statistics are those of training rows, but for classes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from cerebro_udf import columns, encoders, refusals, sequences, sparse, tensors
from cerebro_udf.errors import WrongColumnType
from cerebro_udf.segment.binary import Broken
from cerebro_udf.segment.overflow import Overflow
from cerebro_udf.segment.reading import Parsed, kept, out_of_range
from cerebro_udf.wire import MESSAGE_BYTES

EXACT_FLOAT32 = 2**24  # up to which single precision tells all whole numbers apart
DISTINCT_TEXTS = 100_000  # of one column and shard; ten times what a vocabulary keeps
DISTINCT_TOKENS = 1_000_000


class Buffer:
    """Rows appended block by block, put together once."""

    def __init__(self):
        self._blocks: List[np.ndarray] = []
        self._like: Any = None  # no rows, of their shape and type
        self._overflow: Optional[Overflow] = None
        self._file: Any = None
        self.rows = self.bytes = 0

    def append(self, block: np.ndarray) -> None:
        """Take a block; it must be an array of its own."""
        if not len(block):
            return
        self.rows += len(block)
        self.bytes += block.nbytes
        if self._like is None:
            self._like = np.empty((0, *block.shape[1:]), block.dtype)
        if self._file is None:
            self._blocks.append(block)
        else:
            self._write(block)

    def move(self, overflow: Overflow) -> None:
        """Keep the rows in a file, and those that are still to come.

        Raises:
            DiskFull, OutOfTemporaryFiles.
        """
        self._overflow, self._file = overflow, overflow.file()
        for block in self._blocks:
            self._write(block)
        self._blocks = []

    def _write(self, block: np.ndarray) -> None:
        with self._overflow.growing(block.nbytes):
            self._file.write(np.ascontiguousarray(block).data)
            self._file.flush()

    def whole(self, pulse: Callable[[], None] = lambda: None) -> np.ndarray:
        """Return all rows as one array; blocks go as they are copied, so it never takes twice the room.

        Args:
            pulse: Called after every block; may raise, the rows are lost then.
        """
        if self._file is not None and self.rows:
            return np.memmap(self._file, self._like.dtype, "r", shape=(self.rows, *self._like.shape[1:]))
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


class Column:
    """One column: its values by part, and what the coordinator needs to know about it.

    Args:
        kept: Whether NULL and NaN are kept, as NaN or None; otherwise a row with one cannot be used.
    """

    element_bytes = 4  # that a number takes once it is encoded

    def __init__(self, name: str, kept: bool = False):
        self.name, self.kept = name, kept
        self.key = name  # by which a fetch has its values
        self.nulls = self.nans = self.infinities = 0
        self._beyond: List[Any] = []  # how many rows hold a finite number that single precision does not, and the first such number
        self._broken: Optional[Broken] = None
        self.train, self.validation = Buffer(), Buffer()
        self.digest = hashlib.blake2b(digest_size=16)

    def take(self, parsed: Parsed) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Count what is missing, NaN or infinite; return the values, and which rows cannot be used: None if all can."""
        parsed = kept(parsed) if self.kept else parsed
        values, missing = self.parse(parsed), parsed.missing
        self.nulls += int(missing.sum())
        if parsed.broken is not None:
            self.nulls -= parsed.broken.rows
            before = self._broken
            self._broken = before._replace(rows=before.rows + parsed.broken.rows) if before else parsed.broken
        bad = out_of_range(values, nan=not self.kept)
        if bad is None:
            return values, missing if missing.any() else None
        nans = bad & np.isnan(values)
        self.nans += int(nans.sum())
        beyond = bad & np.isfinite(values)
        self.infinities += int((bad & ~nans & ~beyond).sum())
        if beyond.any():
            before, first = self._beyond or (0, float(values[beyond][0]))
            self._beyond = [before + int(beyond.reshape(len(values), -1).any(axis=1).sum()), first]
        return values, missing | bad.reshape(len(values), -1).any(axis=1)

    def parse(self, parsed: Parsed) -> np.ndarray:
        """Return one value for each row, also where it is missing."""
        return parsed.values

    def words(self, values: np.ndarray) -> np.ndarray:
        """Return the 64-bit words of the values that decide about validation, uint64 (rows, words)."""
        doubles = values.reshape(len(values), -1).astype(np.float64)
        doubles += 0.0  # minus zero is zero
        return doubles.view(np.uint64)

    def append(self, values: np.ndarray, validation: Optional[np.ndarray]) -> None:
        self.note(values)
        train = values if validation is None else values[~validation]
        self.train.append(train)
        if validation is not None:
            self.validation.append(values[validation])
        self.observe(train, values)

    def note(self, values: np.ndarray) -> None:
        """Have the values in the checksum."""
        self.digest.update(values)

    def observe(self, train: np.ndarray, values: np.ndarray) -> None:
        """Update the statistics by the block's training rows, or by all of them."""

    def checksum(self) -> bytes:
        return self.digest.digest()

    def part(self, name: str, pulse: Callable[[], None] = lambda: None) -> tensors.Column:
        return getattr(self, name).whole(pulse)

    def stats(self) -> dict:
        found: dict = {"broken": self._broken._asdict()} if self._broken else {}
        if self._beyond:
            found["beyond"] = self._beyond
        return {"nulls": self.nulls, "nans": self.nans, "infinities": self.infinities, **found}


class Numbers(Column):
    """A feature of numbers, scalars or arrays: what its encoder needs to know, per element of the last axis.

    Args:
        encoder: As asked for.
        counted: Whether the statistics say which numbers there are, and how often.
    """

    def __init__(self, name: str, encoder: Any, kept: bool, counted: bool = False):
        super().__init__(name, kept)
        self._encoder, self._counted = encoder, counted or columns.encoder_name(encoder) == "bucketize"
        self.shape: Optional[Tuple[int, ...]] = None
        self._merged = 0  # values that single precision makes equal to others of the same fetch
        self._moments: Tuple[int, Any, Any] = (0, None, None)
        self._range: Optional[np.ndarray] = None  # least and greatest

    def observe(self, train, values):
        if len(values):
            self.shape = values.shape[1:]
            self.element_bytes = 1 if values.dtype == np.uint8 and values.ndim > 2 else 4
        if self.kept:
            train, values = train[~np.isnan(train)], values[~np.isnan(values)]
        if self._encoder == "none" and values.dtype not in (np.float32, np.uint8):
            large = np.unique(values[np.abs(values) >= EXACT_FLOAT32])
            self._merged += len(large) - len(np.unique(large.astype(np.float32)))
        if not train.size:
            return
        flat = train.reshape(-1, train.shape[-1] if train.ndim > 1 else 1).astype(np.float64)
        block = np.stack([flat.min(axis=0), flat.max(axis=0)])
        self._range = encoders.wider(block, block if self._range is None else self._range)
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
        found = {
            **super().stats(),
            "shape": None if self.shape is None else list(self.shape),
            "merged": self._merged,
            "count": count,
            "mean": None if mean is None else _finite(mean),
            "m2": None if m2 is None else _finite(m2),
            "range": None if self._range is None else self._range.tolist(),
        }
        return {**found, "points": self._points()} if self._counted else found

    def _points(self) -> List[List[float]]:
        """The numbers of the training rows, see ``encoders.in_blocks``."""
        values, counts = np.unique(self._known(self.train.whole()), return_counts=True)
        return [found.tolist() for found in encoders.in_blocks(values, counts)]

    def _known(self, values: np.ndarray) -> np.ndarray:
        return values[~np.isnan(values)]


def _finite(values: np.ndarray) -> List[float]:
    """JSON has no infinity; a number just as impossible stands for it, and overflows again when merged."""
    return np.where(np.isfinite(values), values, 1e308).tolist()


class Steps(Numbers):
    """A feature of sequences of numbers, (rows, length, width); what fills them up counts for nothing."""

    def observe(self, train, values):
        super().observe(*(block[block[..., 0] != sequences.PAD] for block in (train, values)))
        self.shape = values.shape[1:] if len(values) else self.shape

    def _known(self, values):
        return values[values != sequences.PAD]


class Weight(Column):
    """The weights of rows; they have no say in which rows are for validation."""

    def __init__(self, name: str):
        super().__init__(name)
        self._negatives, self._total = 0, 0.0

    def observe(self, train, values):
        self._negatives += int((values < 0).sum())
        self._total += float(train.sum())

    def stats(self):
        return {**super().stats(), "negatives": self._negatives, "total": min(self._total, 1e308)}


def text_word(value: str) -> int:
    """The 64-bit word of a text where the rows for validation are chosen."""
    return int.from_bytes(hashlib.blake2b(value.encode("utf-8"), digest_size=8).digest(), "little")


class Texts(Column):
    """A column of categories: an int32 code per row, and every distinct value once.

    Args:
        spelling: As of ``columns.Type``.
    """

    _most = DISTINCT_TEXTS

    def __init__(self, name: str, spelling: str, kept: bool = False):
        super().__init__(name, kept)
        self._spelling = spelling
        self._codes: Dict[Optional[str], int] = sequences.Numbered()
        self._words = np.zeros(0, np.uint64)
        self.counts = np.zeros(0, np.int64)  # training rows per value
        self.all_counts = np.zeros(0, np.int64)
        self.value_bytes = self._text_bytes = 0

    def parse(self, parsed):
        codes = np.zeros(len(parsed.values), np.int32)
        texts = parsed.values if self.kept else [text for text in parsed.values if text is not None]
        codes[~parsed.missing] = np.fromiter(map(self._codes.__getitem__, texts), np.int32, len(texts))
        self._count_new()
        return codes

    def _count_new(self) -> None:
        """Measure the values that have come since the last time.

        Raises:
            WrongColumnType: there are too many.
        """
        new = list(itertools.islice(self._codes, len(self._words), None))
        if new:
            self._text_bytes += sum(len(value.encode("utf-8")) for value in new if value is not None)
            self.value_bytes = self._text_bytes + 150 * len(self._codes)  # the string, its code, its dict entry
            if len(self._codes) > self._most or self._text_bytes > MESSAGE_BYTES:
                raise self._too_many()
            self._words = np.concatenate([self._words, np.array([self._word(value) for value in new], np.uint64)])

    def _word(self, value: Optional[str]) -> int:
        """What stands for a value where the rows for validation are chosen: the encoder has no say in that."""
        number = columns.number_of(value, self._spelling)
        if number is not None:
            return int(np.float64(number + 0.0).view(np.uint64))
        return 0 if value is None else text_word(value)

    def _too_many(self) -> WrongColumnType:
        return WrongColumnType(
            'column "%s" has too many different values' % self.name,
            "One segment alone holds more than %d, or they take more than %d MB; every value is sent to the coordinator."
            % (self._most, MESSAGE_BYTES // 2**20),
            "Leave the column out if each row has a value of its own; else add a column that groups its values.",
        )

    def words(self, values):
        return self._words[values].reshape(-1, 1)

    def observe(self, train, values):
        for name, rows in (("counts", train), ("all_counts", values)):
            counts = np.bincount(rows, minlength=len(self._codes))
            before = getattr(self, name)
            counts[: len(before)] += before
            setattr(self, name, counts)

    def checksum(self):
        digest = self.digest.copy()
        digest.update(json.dumps(list(self._codes)).encode())
        return digest.digest()

    def part(self, name, pulse=lambda: None):
        codes = super().part(name, pulse)
        return tensors.Text(codes.astype(np.int32, copy=False), list(self._codes))

    def stats(self):
        counts = {value: int(count) for value, count in zip(self._codes, self.counts) if count and value is not None}
        return {**super().stats(), "counts": counts}


class Tokens(Texts):
    """A column of sequences of tokens: int32 codes (rows, length), and every distinct token once.

    Args:
        settings: As for ``sequences.coded``.
    """

    _most = DISTINCT_TOKENS

    def __init__(self, name: str, settings: dict):
        super().__init__(name, "text")
        self._codes, self._settings = sequences.beginning(), settings
        self.shape = (settings["length"],)
        self._count_new()

    def parse(self, parsed):
        codes = sequences.coded(parsed.values, self._codes, self._settings)
        self._count_new()
        return codes

    def words(self, values):
        return self._words[values]

    def observe(self, train, values):
        super().observe(train.ravel(), values.ravel())

    def stats(self):
        stats = super().stats()
        stats["counts"].pop(sequences.PADDING, None)
        return stats


class HashedTokens(Column):
    """A column of sequences of tokens that are hashed: int32 codes (rows, length), and none of the tokens.

    Args:
        settings: As for ``sequences.hashed``.
    """

    def __init__(self, name: str, settings: dict):
        super().__init__(name)
        self._settings = settings
        self.shape = (settings["length"],)

    def parse(self, parsed):
        return sequences.hashed(parsed.values, self._settings)


class SparseBuffer(Buffer):
    """Sparse rows; where each begins stays in memory."""

    def __init__(self):
        super().__init__()
        self._counts = [np.empty(0, np.int64)]  # of entries of rows in the file

    def _write(self, block: sparse.Rows) -> None:
        super()._write(block.packed)
        self._counts.append(np.diff(block.offsets))

    def whole(self, pulse: Callable[[], None] = lambda: None) -> sparse.Rows:
        if self._file is None:
            self._blocks = [sparse.joined(self._blocks)]
            return self._blocks[0]
        offsets = sparse.offsets_of(np.concatenate(self._counts))
        entries = np.memmap(self._file, sparse.ENTRY, "r", shape=(offsets[-1],)) if offsets[-1] else np.empty(0, sparse.ENTRY)
        return sparse.Rows(entries, offsets)


class Sparse(Column):
    """A feature of sparse rows: ``sparse.Rows`` by part."""

    def __init__(self, name: str):
        super().__init__(name)
        self.train, self.validation = SparseBuffer(), SparseBuffer()

    def words(self, values):
        found = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in values)
        return np.frombuffer(b"".join(found), "<u8").astype(np.uint64).reshape(-1, 1)

    def note(self, values):
        self.digest.update(np.diff(values.offsets))
        self.digest.update(values.packed)


class TextLabel(Texts):
    def spelled(self, values: np.ndarray) -> List[str]:
        """The texts of these values."""
        texts = list(self._codes)
        return [texts[code] for code in values]

    def stats(self):
        counts = {value: int(n) for value, n, every in zip(self._codes, self.counts, self.all_counts) if every}
        return {**Column.stats(self), **_classes(counts if len(counts) <= refusals.CLASSES else None)}


def _classes(counts: Optional[Dict[Any, int]]) -> dict:
    """Statistics of classes: ``classes`` and in their order ``counts`` of training rows; both None if there are too many."""
    return {"classes": None if counts is None else list(counts), "counts": None if counts is None else list(counts.values())}


class Quantities(Numbers):
    """A label of numbers for regression, or of arrays of such.

    Args:
        encoder: As asked for.
    """

    def __init__(self, name: str, encoder: Any):
        super().__init__(name, encoder, kept=False)
        self._extremes: List[float] = []  # of all rows

    def observe(self, train, values):
        super().observe(train, values)
        self.element_bytes = Column.element_bytes
        if values.size:
            self._extremes = [min([*self._extremes, values.min()]), max([*self._extremes, values.max()])]

    def stats(self):
        low, high = map(float, self._extremes) if self._extremes else (None, None)
        return {**super().stats(), "min": low, "max": high}


class Applying(Quantities):
    """A label of what applies to a row."""

    def __init__(self, name: str):
        super().__init__(name, None)
        self._others: List[Any] = []  # how many rows hold anything but 0 and 1, and the first such number

    def observe(self, train, values):
        super().observe(train, values)
        others = (values != 0) & (values != 1)
        if others.any():
            before, first = self._others or (0, float(values[others][0]))
            self._others = [before + int(others.reshape(len(others), -1).any(axis=1).sum()), first]

    def stats(self):
        return {**super().stats(), **({"others": [self._others]} if self._others else {})}


class NumberLabel(Column):
    """A label of numbers or booleans that are classes."""

    def __init__(self, name: str, type_: str):
        super().__init__(name)
        self.type = type_
        self._counts: Optional[Dict[Any, int]] = {}  # of training rows, None beyond so many classes

    def spelled(self, values: np.ndarray) -> List[Any]:
        """These values, as JSON."""
        return values.tolist()

    def words(self, values):
        if values.dtype == np.int64 and values.ndim == 1:  # a double would not tell large integers apart
            return values.view(np.uint64).reshape(-1, 1)
        return super().words(values)

    def observe(self, train, values):
        if not len(values):
            return
        if self._counts is not None:
            for value in np.unique(values).tolist():
                self._counts.setdefault(value, 0)
            for value, count in zip(*(array.tolist() for array in np.unique(train, return_counts=True))):
                self._counts[value] += count
            if len(self._counts) > refusals.CLASSES:
                self._counts = None

    def stats(self):
        counts = self._counts
        if counts is not None:
            counts = {bool(value) if self.type == "boolean" else value: counts[value] for value in sorted(counts)}
        return {**super().stats(), **_classes(counts)}
