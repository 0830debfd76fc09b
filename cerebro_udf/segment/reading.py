"""Columns of a table as a query selects them, and as they come: the one way in for rows, to be trained on or predicted."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from cerebro_udf import columns, expressions, sequences, sparse
from cerebro_udf.errors import InvalidArgument, NotSupported
from cerebro_udf.segment import arrays, binary

FIRST_FETCHES_ROWS = (1, 16, 239)  # which go together, unless they show that rows are wide
FETCH_BYTES = 2_000_000  # stays in a core's cache while the rows are parsed, hashed and summed up
LARGEST_FETCH_ROWS = 10_000
VALUES = "double precision[]"  # as which the values of sparse rows are read
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)  # what exceeds it would be infinite in training


class Wanted(NamedTuple):
    """A column to be read: what it is called, the type that it counts as, and the form: ``integer``, or as of ``columns``."""

    name: str
    type: str
    kind: str
    source: Optional[str] = None  # its name in the table, if it is called otherwise
    settings: Optional[dict] = None  # of the form


def wanted(feature: dict) -> Wanted:
    """What is to be read for a feature."""
    return Wanted(feature["name"], feature["type"], feature["kind"], settings=feature.get(feature["kind"]))


class Parsed(NamedTuple):
    """One column of a fetch.

    Attributes:
        values: float64 or int64 (rows,), arrays (rows, *shape), ``sparse.Rows``, or a list of texts or of lists of tokens;
            anything where missing.
        missing: bool (rows,): NULL, or an array with one, or a sequence of no steps, or what is broken.
        broken: What of that could not be read.
    """

    values: Union[np.ndarray, sparse.Rows, List[Any]]
    missing: np.ndarray
    broken: Optional[binary.Broken] = None


class Selection:
    """What a query selects of every row, and how a fetch of it becomes columns.

    Args:
        wanted: The columns.
    """

    def __init__(self, wanted: Sequence[Wanted]):
        self._numbers, self._arrays, self._texts, self._integers, self._sequences, self._tokens = (
            [column for column in wanted if column.kind == kind] for kind in ("number", "array", "text", "integer", "sequence", "tokens")
        )
        self._sparse = [column for column in wanted if column.kind == "sparse"]
        self._bytes = [column for column in wanted if column.kind in binary.READERS]
        self._shapes: Dict[str, Optional[Tuple[int, ...]]] = {}
        self._blobs = {"numbers"} if self._numbers else set()  # names of outputs that are bytea, and of all others
        for kind, of in (("array", self._arrays), ("sequence", self._sequences), ("indices", self._sparse), ("bytes", self._bytes)):
            self._blobs.update("%s%d" % (kind, i) for i in range(len(of)))
        self._blobs.update("values%d" % i for i, column in enumerate(self._sparse) if "values" in column.settings)
        self._others = {
            "%s%d" % (kind, i)
            for kind, of in (("text", self._texts), ("integer", self._integers), ("tokens", self._tokens)) for i in range(len(of))
        }  # fmt: skip
        self._rows = 0
        self._sql = {column.name: columns.quoted(column.source or column.name) for column in wanted}  # what gives them, of a row

    def query(self, quote: Callable[[str], str], read: dict, *further: str) -> str:
        """The query of a scan.

        Args:
            quote: ``plpy.quote_ident``.
            read: ``{"relation": quoted qualified name, "where": SQL or None, "columns": {source column: name there}, "casts":
                {source column: type, as SQL}, "expressions": those over the columns that are wanted, "filter": such a one that
                is true for the rows that are wanted, or None}``.
            further: More outputs, as SQL over the columns.
        """

        casts, wanted = read.get("casts") or {}, read.get("expressions") or ()

        def name(column: Wanted) -> str:
            text = column.source or column.name
            return expressions.sql(text) if text in wanted else quote(text)

        self._sql.update((column, "(%s)" % column) for column in wanted if column in self._sql)
        outputs = list(further)
        if self._numbers:
            outputs.append(arrays.sent_scalars([columns.number_sql(name(c), c.type) for c in self._numbers]) + " AS numbers")
        outputs += ["%s AS array%d" % (arrays.sent(name(c), c.type), i) for i, c in enumerate(self._arrays)]
        outputs += ["%s AS text%d" % (columns.text_sql(name(c), c.type), i) for i, c in enumerate(self._texts)]
        outputs += ["%s::pg_catalog.int8 AS integer%d" % (name(c), i) for i, c in enumerate(self._integers)]
        outputs += ["%s AS sequence%d" % (arrays.sent(name(c), c.type), i) for i, c in enumerate(self._sequences)]
        outputs += ["%s::pg_catalog.bytea AS bytes%d" % (name(c), i) for i, c in enumerate(self._bytes)]
        of_texts = [columns.texts_sql if c.type.endswith("[]") else columns.text_sql for c in self._tokens]
        outputs += ["%s AS tokens%d" % (sql(name(c), c.type), i) for i, (sql, c) in enumerate(zip(of_texts, self._tokens))]
        outputs += ["%s AS indices%d" % (arrays.sent(name(c), c.type), i) for i, c in enumerate(self._sparse)]
        of_sparse = [(i, c.settings["values"]) for i, c in enumerate(self._sparse) if "values" in c.settings]
        outputs += ["%s AS values%d" % (arrays.sent(quote(values), VALUES), i) for i, values in of_sparse]
        row = ", ".join(
            "%s AS %s" % (quote(there) + ("::" + casts[here] if here in casts else ""), quote(here))
            for here, there in read["columns"].items()
        )
        query = "SELECT %s FROM (SELECT %s FROM %s" % (", ".join(outputs), row, read["relation"])
        query += (" WHERE " + read["where"] if read.get("where") else "") + ") AS " + expressions.ROW
        return query + " WHERE " + expressions.sql(read["filter"]) if read.get("filter") else query

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
            called = column.source or column.name
            found, nulls, shape = arrays.parse(blobs, column.type, called, self._shapes.get(column.name), self._rows)
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
        for i, column in enumerate(self._sequences):
            parsed[column.name] = self._steps(column, arrays.parse_each([row["sequence%d" % i] for row in rows], column.type))
        for i, column in enumerate(self._tokens):
            tokens = [token_list(column, row["tokens%d" % i]) for row in rows]
            parsed[column.name] = Parsed(tokens, np.array([row is None for row in tokens], bool))
        for i, column in enumerate(self._sparse):
            values = [row["values%d" % i] for row in rows] if "values" in column.settings else None
            parsed[column.name] = self._entries(column, [row["indices%d" % i] for row in rows], values)
        for i, column in enumerate(self._bytes):
            blobs = [row["bytes%d" % i] for row in rows]
            parsed[column.name] = Parsed(*binary.read_all(blobs, column.kind, column.settings, self._sql[column.name]))
        self._rows += len(rows)
        return parsed

    def received(self, rows: Any) -> List[dict]:
        """What ``parse`` wants, of rows that PostgreSQL wrote as JSON.

        Args:
            rows: ``[{output: value}]``, a bytea as hexadecimal digits behind ``\\x``.

        Raises:
            InvalidArgument: they are something else.
        """
        try:
            for row in rows:
                if row.keys() != self._blobs | self._others:
                    raise ValueError("A row has the outputs %s." % ", ".join(map(str, row)))
                row.update((name, bytes.fromhex(row[name][2:])) for name in self._blobs if row[name] is not None)
            return rows
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgument("the rows are not those of the query", str(error)[:200], "Send what the query gives.") from None

    def _entries(self, column: Wanted, indices: List[Optional[bytes]], values: Optional[List[Optional[bytes]]]) -> Parsed:
        known = arrays.parse_each(indices, column.type)
        given = None if values is None else arrays.parse_each(values, VALUES)
        missing = np.array([row is None for row in known], bool)
        if given is not None:
            missing |= np.array([row is None for row in given], bool)
        for deep in (row.ndim for parts in (known, given or ()) for row in parts if row is not None and row.ndim > 1):
            raise too_deep(column.name, deep)
        none = np.empty(0, np.int64)
        known = [none if absent else row for row, absent in zip(known, missing.tolist())]
        given = given and [none if absent else row for row, absent in zip(given, missing.tolist())]
        found, wrong = sparse.made(known, given, column.settings["size"])
        if not wrong:
            return Parsed(found, missing)
        missing[list(wrong)] = True
        first, size = min(wrong), column.settings["size"]
        named = {"indices": self._sql[column.name], "values": columns.quoted(column.settings.get("values") or "")}
        where = wrong[first].where.format(last=size - 1, **named)
        reason = "row %d as read: %s" % (self._rows + first + 1, wrong[first].reason)
        return Parsed(found, missing, binary.Broken(len(wrong), reason, where))

    def _steps(self, column: Wanted, found: List[Optional[np.ndarray]]) -> Parsed:
        rows = [None if row is None or not row.size else row for row in found]
        shape = self._shapes.get(column.name)
        for i, row in enumerate(rows):
            if row is None:
                continue
            if row.ndim > 2:
                raise too_deep(column.name, row.ndim)
            step = row.shape[1:]
            if shape is not None and step != shape:
                raise arrays.differing(
                    column.name,
                    "A step of row %d as read has shape %s, those before have shape %s." % (self._rows + i + 1, list(step), list(shape)),
                )
            shape = self._shapes[column.name] = step
        missing = np.array([row is None for row in rows], bool)
        return Parsed(sequences.steps(rows, *(shape or (1,)), settings=column.settings), missing)


def token_list(column: Wanted, value: Any) -> Optional[List[str]]:
    """The tokens of a text or an array of texts; None for NULL, or an array with one.

    Raises:
        NotSupported: the array has several dimensions.
    """
    if isinstance(value, str):
        return sequences.split(value, column.settings)
    if value is None or None in value:
        return None
    if any(isinstance(item, list) for item in value):
        raise too_deep(column.name, 2)
    return value


def too_deep(name: str, dimensions: int) -> NotSupported:
    return NotSupported(
        'the arrays of column "%s" have too many dimensions for its encoder' % name,
        "There is one of %d." % dimensions,
        "Tokens and sparse rows are arrays of one dimension, sequences of numbers have one or two: steps, and the numbers of a step.",
    )


def fetches(fetch: Callable[[int], List[Any]], width: Callable[[List[Any]], int]) -> Iterator[List[Any]]:
    """Give rows, so many at a time as take some megabytes, however wide they are.

    Args:
        fetch: Gives so many further rows, none at the end.
        width: Bytes that one of these rows takes, about.
    """

    def fitting(rows: List[Any]) -> int:
        return max(1, FETCH_BYTES // width(rows)) if rows else 1

    rows: List[Any] = []
    for most in FIRST_FETCHES_ROWS:
        rows += fetch(min(most, fitting(rows)))
    while rows:
        yield rows
        rows = fetch(min(LARGEST_FETCH_ROWS, fitting(rows)))


def batches(plpy, query: str) -> Iterator[List[Any]]:
    """Give the rows of a query, a fetch of some megabytes at a time; the cursor is closed when the caller is done."""
    cursor = plpy.cursor(query)
    try:
        yield from fetches(lambda count: cursor.fetch(count)[:], lambda rows: _width(rows[:16]))
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
