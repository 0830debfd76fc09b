"""Sparse rows: of each the indices that are not zero, and their values. Only numpy is needed here."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

ENTRY = np.dtype([("value", "<f4"), ("index", "<i4")])  # in 64 bits, so that rows are one array beside their offsets
PARTS = ("indices", "values", "counts")


class Wrong(NamedTuple):
    """What is wrong with a row, and a condition that finds such rows, as SQL over ``{indices}``, ``{values}`` and ``{last}``, the last
    index that there may be."""

    reason: str
    where: str


class Rows:
    """Rows of any number of entries, one after another, as an array of rows is used.

    Attributes:
        entries: ``ENTRY`` (entries of all rows,), in ascending order of the index within a row.
        offsets: int64 (rows + 1,), where each row begins, and the last one ends.
    """

    dtype = np.dtype(np.int64)  # of an entry as TensorFlow holds it, and of an offset

    def __init__(self, entries: np.ndarray, offsets: np.ndarray):
        self.entries, self.offsets = entries, offsets
        self.shape = (len(self),)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.entries[start:stop] for start, stop in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist()))

    def __getitem__(self, picks) -> "Rows":
        """Return rows by a slice, their positions, or a mask; a slice shares the entries."""
        if isinstance(picks, slice):
            start, stop, _ = picks.indices(len(self))
            offsets = self.offsets[start : max(start, stop) + 1]
            return type(self)(self.entries[offsets[0] : offsets[-1]], offsets - offsets[0])
        starts, counts = self.offsets[:-1][picks], np.diff(self.offsets)[picks]
        offsets = offsets_of(counts)
        return Rows(self.entries.take(np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])), offsets)

    def __setitem__(self, place: slice, rows: "Rows") -> None:
        """Put rows where those before ``place`` end; there must be room among the entries."""
        start = self.offsets[place.start]
        self.entries[start : start + len(rows.entries)] = rows.entries
        self.offsets[place.start + 1 : place.stop + 1] = start + rows.offsets[1:]

    def take(self, picks: np.ndarray, axis: int = 0) -> "Rows":
        """Return rows by their position."""
        return self[picks]

    @property
    def nbytes(self) -> int:
        return self.entries.nbytes + self.offsets.nbytes

    @property
    def packed(self) -> np.ndarray:
        """The entries as int64."""
        return np.ascontiguousarray(self.entries).view(np.int64)

    @property
    def parts(self) -> Dict[str, np.ndarray]:
        """The rows as plain arrays: ``indices`` int32 and ``values`` float32 of all entries, ``counts`` int32 of entries of each row."""
        return dict(zip(PARTS, (self.entries["index"], self.entries["value"], np.diff(self.offsets).astype(np.int32))))


def of_parts(indices: np.ndarray, values: np.ndarray, counts: np.ndarray, size: int) -> Rows:
    """Make rows of what :attr:`Rows.parts` gave, or somebody wrote.

    Args:
        size: Indices are below it.

    Raises:
        ValueError: they are no such arrays, or indices of a row are not in ascending order from 0 to ``size`` - 1.
    """
    if [(array.dtype.name, array.ndim) for array in (indices, values, counts)] != [("int32", 1), ("float32", 1), ("int32", 1)]:
        raise ValueError("sparse rows are of other types")
    offsets = offsets_of(counts)
    if (counts < 0).any() or not len(indices) == len(values) == offsets[-1]:
        raise ValueError("sparse rows have other numbers of entries than they say")
    begins = np.zeros(len(indices) + 1, bool)
    begins[offsets] = True
    if len(indices) and not (0 <= indices.min() and indices.max() < size and (begins[1:-1] | (indices[1:] > indices[:-1])).all()):
        raise ValueError("indices of sparse rows are out of range or order")
    entries = np.empty(len(indices), ENTRY)
    entries["index"], entries["value"] = indices, values
    return Rows(entries, offsets)


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Where rows of so many entries begin, and the last one ends: int64 (rows + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def joined(blocks: Sequence[Rows]) -> Rows:
    """Rows of several blocks, one after another."""
    if not blocks:
        return Rows(np.empty(0, ENTRY), np.zeros(1, np.int64))
    return Rows(np.concatenate([rows.entries for rows in blocks]), offsets_of(np.concatenate([np.diff(rows.offsets) for rows in blocks])))


def made(
    indices: Sequence[np.ndarray], values: Optional[Sequence[np.ndarray]], size: int
) -> Tuple[Rows, Dict[int, Wrong]]:
    """Make rows of what columns hold.

    Args:
        indices: Of each row, whole numbers.
        values: Of each row, as many numbers as indices; None: 1 for each index, one that stands several times counts so often.
        size: Indices are below it.

    Returns:
        (rows, what is wrong with some, by their position); a row with which something is wrong has no entries.
    """
    wrong: Dict[int, Wrong] = {}
    if values is not None:
        for i, (own, given) in enumerate(zip(indices, values)):
            if len(own) != len(given):
                reason = "it has %d indices and %d values" % (len(own), len(given))
                wrong[i] = Wrong(reason, "cardinality({indices}) <> cardinality({values})")
        indices, values = (
            [part[:0] if i in wrong else part for i, part in enumerate(parts)] for parts in (indices, values)
        )
    counts = np.fromiter(map(len, indices), np.int64, len(indices))
    row = np.repeat(np.arange(len(indices)), counts)
    index = np.concatenate([np.empty(0, np.int64), *indices])
    value = np.ones(len(index)) if values is None else np.concatenate([np.empty(0), *values])
    with np.errstate(over="ignore", invalid="ignore"):
        value = value.astype(np.float32)
    order = np.lexsort((index, row))
    index, value = index[order], value[order]
    again = np.zeros(len(index), bool)
    again[1:] = (index[1:] == index[:-1]) & (row[1:] == row[:-1])
    for bad, reason, where in (
        ((index < 0) | (index >= size), "index %d is not from 0 to {last}", "0 > any ({indices}) or {last} < any ({indices})"),
        (
            ~np.isfinite(value), "the value of index %d is NaN, infinite, or beyond 3.4e38",
            "-3.4028235e38 > any ({values}) or 3.4028235e38 < any ({values})",
        ),
        (
            again & (values is not None), "index %d stands there twice",
            "(select count(*) > count(distinct i) from unnest({indices}) i)",
        ),
    ):  # fmt: skip
        for i in np.flatnonzero(bad)[::-1].tolist():
            wrong[int(row[i])] = Wrong(reason.format(last=size - 1) % index[i], where)
    good = ~np.isin(row, list(wrong)) if wrong else np.ones(len(row), bool)
    row, index, value, again = row[good], index[good], value[good], again[good]
    first = np.flatnonzero(~again)
    entries = np.empty(len(first), ENTRY)
    entries["index"] = index[first]
    entries["value"] = np.add.reduceat(value, first) if len(first) else value
    return Rows(entries, offsets_of(np.bincount(row[first], minlength=len(indices)))), wrong


def of_lists(rows: Sequence[Tuple[List[float], List[float]]]) -> Rows:
    """Rows of valid pairs of indices and values."""
    return made([np.array(index, np.int64) for index, _ in rows], [np.array(value, float) for _, value in rows], 2**31)[0]
