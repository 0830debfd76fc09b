"""Columns of a table as a query selects them, and as they come: the one way in for rows, to be trained on or predicted."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from cerebro_udf import columns
from cerebro_udf.segment import arrays

FIRST_FETCH_ROWS = 256  # shows how wide a row is
FETCH_BYTES = 2_000_000  # stays in a core's cache while the rows are parsed, hashed and summed up
LARGEST_FETCH_ROWS = 10_000
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)  # what exceeds it would be infinite in training


class Wanted(NamedTuple):
    """A column to be read: what it is called, the type that it counts as, and the form: ``number``, ``array``, ``text`` or ``integer``."""

    name: str
    type: str
    kind: str
    source: Optional[str] = None  # its name in the table, if it is called otherwise


class Parsed(NamedTuple):
    """One column of a fetch.

    Attributes:
        values: float64 or int64 (rows,), arrays (rows, *shape), or a list of texts; anything where missing.
        missing: bool (rows,): NULL, or an array with one.
    """

    values: Union[np.ndarray, List[Optional[str]]]
    missing: np.ndarray


class Selection:
    """What a query selects of every row, and how a fetch of it becomes columns.

    Args:
        wanted: The columns.
    """

    def __init__(self, wanted: Sequence[Wanted]):
        self._numbers, self._arrays, self._texts, self._integers = (
            [column for column in wanted if column.kind == kind] for kind in ("number", "array", "text", "integer")
        )
        self._shapes: Dict[str, Optional[Tuple[int, ...]]] = {}

    def query(self, quote: Callable[[str], str], read: dict, *further: str) -> str:
        """The query of a scan.

        Args:
            quote: ``plpy.quote_ident``.
            read: ``{"relation": quoted qualified name, "where": SQL or None, "columns": {source column: name there}}``.
            further: More outputs, as SQL.
        """

        def name(column: Wanted) -> str:
            return quote(read["columns"][column.source or column.name])

        outputs = list(further)
        if self._numbers:
            outputs.append(arrays.sent_scalars([columns.number_sql(name(c), c.type) for c in self._numbers]) + " AS numbers")
        outputs += ["%s AS array%d" % (arrays.sent(name(c), c.type), i) for i, c in enumerate(self._arrays)]
        outputs += ["%s AS text%d" % (columns.text_sql(name(c), c.type), i) for i, c in enumerate(self._texts)]
        outputs += ["%s::pg_catalog.int8 AS integer%d" % (name(c), i) for i, c in enumerate(self._integers)]
        query = "SELECT %s FROM %s" % (", ".join(outputs), read["relation"])
        return query + " WHERE " + read["where"] if read.get("where") else query

    def parse(self, rows: Sequence[Any]) -> Dict[str, Parsed]:
        """Parse one fetch, by the columns' names.

        Raises:
            RaggedArrays: arrays of another shape than in a row or fetch before.
        """
        parsed: Dict[str, Parsed] = {}
        if self._numbers:
            values, nulls = arrays.parse_scalars([row["numbers"] for row in rows], len(self._numbers))
            for j, column in enumerate(self._numbers):
                parsed[column.name] = Parsed(values[:, j].copy(), nulls[:, j])
        for i, column in enumerate(self._arrays):
            blobs = [row["array%d" % i] for row in rows]
            found, nulls, shape = arrays.parse(blobs, column.type, column.name, self._shapes.get(column.name))
            self._shapes[column.name] = shape
            if nulls.any():
                values = np.zeros((len(rows), *found.shape[1:]), found.dtype)
                values[~nulls] = found
                found = values
            parsed[column.name] = Parsed(found, nulls)
        for i, column in enumerate(self._texts):
            texts = [row["text%d" % i] for row in rows]
            parsed[column.name] = Parsed(texts, np.array([text is None for text in texts], bool))
        for i, column in enumerate(self._integers):
            whole = [row["integer%d" % i] for row in rows]
            nulls = np.array([value is None for value in whole], bool)
            parsed[column.name] = Parsed(np.array([value or 0 for value in whole], np.int64), nulls)
        return parsed


def batches(plpy, query: str):
    """Give the rows of a query, a fetch of some megabytes at a time; the cursor is closed when the caller is done."""
    cursor = plpy.cursor(query)
    try:
        count = FIRST_FETCH_ROWS
        while True:
            rows = cursor.fetch(count)[:]
            if not rows:
                return
            yield rows
            count = max(1, min(FETCH_BYTES // _width(rows[:16]), LARGEST_FETCH_ROWS))
    finally:
        cursor.close()


def _width(rows: Sequence[Any]) -> int:
    """Bytes that a row takes on its way here, about."""
    return max(8 * len(row) + sum(len(value) for value in row.values() if isinstance(value, (bytes, str))) for row in rows)


def kept(parsed: Parsed) -> Parsed:
    """The column with what is missing as NaN, or None among texts, so that nothing is missing any more."""
    if isinstance(parsed.values, np.ndarray):
        parsed.values[parsed.missing | np.isnan(parsed.values)] = np.nan  # one NaN, of all that there are
    return Parsed(parsed.values, np.zeros_like(parsed.missing))


def out_of_range(values: np.ndarray, nan: bool = True) -> Optional[np.ndarray]:
    """Which values single precision cannot hold: what is infinite there, and NaN if it counts; None: it holds them all."""
    if values.dtype.kind != "f":
        return None
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(values) if values.dtype == np.float32 else np.abs(values) <= LARGEST_FLOAT32)
    if not nan:
        bad &= ~np.isnan(values)
    return bad if bad.any() else None
