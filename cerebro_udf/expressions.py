"""Texts in a column's place: each is one expression over a row, and PostgreSQL itself says whether it is, and of which type.

Nothing of a table is touched: texts are read over no rows of its row type. A text is put between brackets of two kinds; what
closes one of them does not close the other, so that what is accepted in both is one expression, and nothing after it.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple, Optional, Sequence, Tuple

from cerebro_udf.errors import CerebroError, ColumnNotFound, NoPrivilege, NotSupported, nearest

ROW = "cerebro_row"  # what a query calls the row

# What names a column, whether there is one or not.
_NAME = re.compile(r'\s*(?:[^\W\d][\w$]*|"(?:[^"]|"")*")\s*\Z')

_OVER_ROWS = ("42803", "42P20", "0A000", "42P19")  # aggregates, window functions, sets, a recursive query
_SYNTAX = "42601"
_PER_ROW = "It is evaluated row by row, where the row lies: make it a column of a view or of a materialized view."
_HINTS = {
    _SYNTAX: "Name a column exactly as it is, or write one SQL expression over a row, such as ln(price).",
    "42883": "Only what lies in pg_catalog goes without its schema; else write schema.function(…) or OPERATOR(schema.+).",
    "42704": "Only what lies in pg_catalog goes without its schema; else write schema.type.",
    "42P01": "Name the columns of a row alone, such as price, without a table.",
    "42P02": "Write the value itself.",
    **{sqlstate: _PER_ROW for sqlstate in _OVER_ROWS},
}


class Expression(NamedTuple):
    """What a text turned out to be."""

    type: int  # oid
    columns: Tuple[str, ...]  # that it mentions, in the order of the table


def names_column(text: str) -> bool:
    """Whether a text could only name a column."""
    return _NAME.match(text) is not None


def sql(text: str) -> str:
    """The text within a query; a comment at its end ends there."""
    return "(%s\n)" % text


def judge(plpy, relation: str, columns: Sequence[str], text: str, what: str) -> Expression:
    """Have PostgreSQL read a text as an expression over a row; only functions that are said to be immutable may be called for that.

    Args:
        plpy: PL/Python's module.
        relation: Whose row, qualified and quoted.
        columns: Names of its columns, in order.
        text: The expression.
        what: What it was given as, for messages.

    Raises:
        ColumnNotFound: it mentions a column that is not there.
        NotSupported: it reads tables.
        CerebroError: it is not one expression over a row; SQLSTATE is PostgreSQL's.
    """
    named = [name for name in columns if name.lower() in text.lower().replace('""', '"')]
    called = "row_" + uuid.uuid4().hex  # so that no text names the row as a whole, which has all that is read with it

    def row(names: Sequence[str]) -> str:
        inner = ", ".join(map(plpy.quote_ident, names))
        return "FROM (SELECT %s FROM pg_catalog.unnest(NULL::%s[])) AS %s" % (inner, relation, called)

    try:
        plpy.prepare("SELECT %s" % row(named) + " WHERE %s IS NULL" % sql(text))  # which refuses whatever goes by several rows
        plpy.prepare("SELECT CASE WHEN true THEN %s\n END %s" % (text, row(named)))
        query = "SELECT %s %s" % (sql(text), row(named))
        type_ = plpy.execute(query).coltypes()[0]
        plan = plpy.execute("EXPLAIN (FORMAT JSON) " + query)[0]["QUERY PLAN"]
    except plpy.SPIError as error:
        raise _refused(error, text, what, columns) from None
    if '"Relation Name"' in plan or '"Relations"' in plan:
        raise NotSupported(
            "the %s %s reads a table" % (what, _shown(text)),
            "An expression goes by its row alone; on another server the table may be another one.",
            "Join the tables in a view, or in a materialized view.",
        )
    for name in list(named):
        rest = [other for other in named if other != name]
        try:
            plpy.prepare("SELECT %s %s" % (sql(text), row(rest)))
        except plpy.SPIError:
            continue
        named = rest
    return Expression(type_, tuple(named))


def refuse_author(plpy, author: Optional[str], text: str, what: str) -> None:
    """Refuse an expression that comes from the catalog, and that somebody else wrote: it could call anything, as the caller.

    Args:
        author: Who wrote it; None: the caller.
    """
    if author is None or author == plpy.execute("select current_user::text as name")[0]["name"]:
        return
    raise NoPrivilege(
        "the %s %s is evaluated for its author only" % (what, _shown(text)),
        'Role "%s" wrote it, and it would be evaluated under your rights.' % author,
        "Name a view of yours that has a column of that very name, or have that role make the call.",
    )


def _refused(error, text: str, what: str, columns: Sequence[str]) -> CerebroError:
    message, sqlstate = str(error), error.sqlstate
    if sqlstate == ColumnNotFound.sqlstate:
        return ColumnNotFound(message, "It is in %s, which was given as a %s." % (_shown(text), what), nearest(text, columns))
    kind = "an expression" if sqlstate == _SYNTAX else "an expression over a row"
    refused = CerebroError(
        "the %s %s is not %s" % (what, _shown(text), kind), "PostgreSQL says: %s." % message, _HINTS.get(sqlstate) or error.spidata[2]
    )
    refused.sqlstate = sqlstate
    return refused


def _shown(text: str) -> str:
    return '"%s"' % (text if len(text) <= 60 else text[:57] + "…")
