"""The table that a caller names: does it exist, may the caller read it, and what are its columns."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from cerebro_udf import columns, expressions, packs
from cerebro_udf.coordinator import per_column
from cerebro_udf.errors import (
    CerebroError,
    ColumnNotFound,
    InvalidArgument,
    NoPrivilege,
    NotReady,
    NotSupported,
    NullArgument,
    OutOfRange,
    TableNotFound,
    WrongColumnType,
    nearest,
)

_RELATION = """
select c.oid::int8 as oid, c.relkind, c.relpersistence, c.relnamespace::int8 as namespace
     , pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) as name
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = pg_catalog.to_regclass($1::text)
"""

# Domains, over whatever they are, count as what they are over; each array adds its brackets; an enum is one, whatever its name, and
# citext that of the extension, whatever its schema.
_TYPES = """
with recursive base(number, name, type, declared, readable) as (%s)
, step(number, type, brackets) as (
    select b.number, b.type, '' from base b
    union all
    select s.number, case t.typtype when 'd' then t.typbasetype else e.oid end, s.brackets || case t.typtype when 'd' then '' else '[]' end
    from step s
    join pg_catalog.pg_type t on t.oid = s.type
    left join pg_catalog.pg_type e on e.oid = t.typelem and e.typarray = t.oid
    where t.typtype = 'd' or e.oid is not null
)
select b.name, b.declared, b.readable
     , case when t.typtype = 'e' then 'enum' when t.oid in (%s) then 'citext' else pg_catalog.format_type(t.oid, null) end
           || s.brackets as type
     , array(
           select e.enumlabel::text from pg_catalog.pg_enum e where e.enumtypid = t.oid order by e.enumsortorder
       ) as "values"
from step s
join pg_catalog.pg_type t on t.oid = s.type
join base b on b.number = s.number
where t.typtype <> 'd' and not exists (select 1 from pg_catalog.pg_type e where e.oid = t.typelem and e.typarray = t.oid)
order by b.number
"""
_CITEXT = """
select c.oid
from pg_catalog.pg_type c
join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass and d.objid = c.oid and d.deptype = 'e'
join pg_catalog.pg_extension x on d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass and d.refobjid = x.oid
where x.extname = 'citext' and c.typname = 'citext'
"""
_COLUMNS = _TYPES % ("""
    select a.attnum::int4, a.attname::text, a.atttypid
         , case n.nspname when 'pg_catalog' then pg_catalog.format_type(a.atttypid, a.atttypmod) end
         , pg_catalog.has_column_privilege($1::int8::oid, a.attnum, 'SELECT')
    from pg_catalog.pg_attribute a
    join pg_catalog.pg_type t on t.oid = a.atttypid
    join pg_catalog.pg_namespace n on n.oid = t.typnamespace
    where a.attrelid = $1::int8::oid and a.attnum > 0 and not a.attisdropped
""", _CITEXT)  # fmt: skip
_TYPE = _TYPES % ("select 1, null::text, $1::int8::oid, null::text, true", _CITEXT)
_CITEXT_NAME = "select pg_catalog.format_type(oid, null) as name from (%s) found" % _CITEXT

# A relation, its partitions, and what the queries of views among them read.
TREE = """
with recursive tree(oid) as (
    select $1::int8::oid
    union
    select below.oid
    from tree, lateral (
        select i.inhrelid from pg_catalog.pg_inherits i where i.inhparent = tree.oid
        union all
        select d.refobjid
        from pg_catalog.pg_rewrite r
        join pg_catalog.pg_class v on v.oid = r.ev_class and v.relkind = 'v'
        join pg_catalog.pg_depend d on d.objid = r.oid
        where r.ev_class = tree.oid and d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
          and d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    ) below(oid)
)
"""

# A lock that only a change takes, held by this very transaction: what it did is invisible to the segments' sessions.
_CHANGED = TREE + """
select l.mode
from pg_catalog.pg_locks l join tree on l.relation = tree.oid
where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation'
  and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
  and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
limit 1
"""

_UNPOPULATED = TREE + """
select pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) as name
from tree
join pg_catalog.pg_class c on c.oid = tree.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'm' and not c.relispopulated
limit 1
"""

# Columns each value of which is in one row, the primary key first.
_KEYS = """
select a.attname::text as name
from pg_catalog.pg_index i join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
where i.indrelid = $1::int8::oid and i.indisunique and i.indisvalid and i.indnatts = 1 and i.indpred is null and i.indexprs is null
order by i.indisprimary desc, a.attnum
"""


@dataclass(frozen=True)
class Source:
    """A checked relation and the columns that a run reads from it."""

    oid: int
    name: str  # qualified and quoted
    kind: str  # pg_class.relkind
    types: Dict[str, str]  # of columns and expressions, without modifiers; domains as their base type, enums as ``enum``
    features: List[str]
    labels: Tuple[str, ...]  # of each output, in the order of their names
    carried: Sequence[str] = ()  # further columns, of any type
    weight: Optional[str] = None  # what weighs rows
    criterion: Optional[str] = None  # the column by which rows are held out; it may be a feature too
    label_values: Dict[str, Sequence[str]] = field(default_factory=dict)  # of labels that are enums, in the order of their declaration
    expressions: Dict[str, Tuple[str, ...]] = field(default_factory=dict)  # those that are no columns, and the columns they mention
    declared: Dict[str, Optional[str]] = field(default_factory=dict)  # type of each column as SQL, if it is one that every server has
    readable: FrozenSet[str] = frozenset()  # columns
    filter: Optional[str] = None  # an expression: rows for which it is true are read
    values: Sequence[str] = ()  # columns that hold the values of sparse features

    @property
    def columns(self) -> List[str]:
        """What is read of the table; expressions are made of it."""
        texts = [*self.features, *self.labels, self.weight, self.criterion, self.filter]
        named = [column for text in texts if text is not None for column in self.expressions.get(text, [text])]
        return list(dict.fromkeys([*named, *self.carried, *self.values]))

    @property
    def casts(self) -> Dict[str, str]:
        """The types, as SQL, of columns that expressions mention: where rows lie the same name may have another."""
        mentioned = [column for columns in self.expressions.values() for column in columns]
        return {column: self.declared[column] for column in mentioned if self.declared[column] is not None}

    @property
    def answers(self) -> List[str]:
        """Columns that labels are made of: a model that sees them has its answer."""
        return list(dict.fromkeys(column for label in self.labels for column in self.expressions.get(label, ())))

    def feature_specs(self, encoders: dict, nulls: Any) -> List[dict]:
        """Column specifications of the features, as a segment's ``load`` wants them.

        Args:
            encoders, nulls: The run's options; ``nulls`` is in a specification where NULLs are kept. What ``*`` says of all others
                counts as ``error`` where nothing can stand for a NULL.
        """
        specs = []
        for name in self.features:
            policy = columns.null_policy(nulls, name)
            spec = columns.specification(name, self.types[name], encoders.get(name))
            kept = isinstance(policy, dict) and (name in nulls or spec["kind"] in columns.FILLED)
            specs.append({**spec, "nulls": policy} if kept else spec)
        return specs

    @property
    def label(self) -> Optional[str]:
        """The label of a single output, None where there are several."""
        return self.labels[0] if len(self.labels) == 1 else None

    def label_specs(self, outputs: Sequence[dict], encoders: Mapping[str, Any] = {}) -> List[dict]:
        """Column specifications of the labels; ``outputs`` as ``Options.labels`` gives them."""
        specs = []
        for output, label in zip(outputs, self.labels):
            spec = {"name": label, "output": output["name"], "type": self.types[label], "task": output["task"]}
            if label in encoders and columns.encodes(spec):
                spec["encoder"] = encoders[label]
            specs.append({**spec, "values": list(self.label_values[label])} if self.label_values.get(label) else spec)
        return specs

    def spec(self, name: Optional[str]) -> Optional[dict]:
        """Specification of a column that is read for one thing alone."""
        return None if name is None else {"name": name, "type": self.types[name]}


def describe(plpy, source: str, features: Optional[List[str]], labels: Sequence[str] = (), carried: Sequence[str] = (),
             weight: Optional[str] = None, criterion: Optional[Tuple[str, str]] = None,
             encoders: Mapping[str, Any] = {}, author: Optional[str] = None) -> Source:  # fmt: skip
    """Check a relation, its columns and what is made of them, before anything starts.

    Features, labels and weight are names of columns, else expressions over a row.

    Args:
        plpy: PL/Python's module.
        source: A regclass as text, qualified where the search path is pg_catalog alone.
        features: ``["*"]`` stands for every usable column but labels, weight and criterion; None reads none.
        labels: Of each output; none when no label is read.
        carried: Names of further columns, which may have any type.
        weight: What weighs rows, or None.
        criterion: What the column is called by which rows are held out, for the error, and its name; or None.
        encoders: The option of that name: a column that is not usable without one is with it; and what it names of further columns.
        author: Who wrote features, labels and weight; None: the caller.

    Raises:
        TableNotFound, ColumnNotFound, WrongColumnType, NoPrivilege, NotSupported, NotReady, InvalidArgument; CerebroError of an
            expression, see ``expressions.judge``.
    """
    relation = _relation(plpy, source)
    rows = plpy.execute(plpy.prepare(_COLUMNS, ["int8"]), [relation["oid"]])
    readable = frozenset(row["name"] for row in rows if row["readable"])
    if not readable:
        raise NoPrivilege(
            "permission denied for table %s" % relation["name"], None, "Ask its owner: GRANT SELECT ON %s TO …;" % relation["name"]
        )
    table = Source(
        relation["oid"], relation["name"], relation["relkind"], {row["name"]: row["type"] for row in rows}, [], tuple(labels), carried,
        weight,
        declared={row["name"]: row["declared"] for row in rows}, readable=readable,
    )  # fmt: skip
    values = {row["name"]: row["values"] for row in rows}
    names, beside = list(table.types), columns.values_of(encoders)
    for name in beside:
        _check_values(name, table.types, relation["name"], [*(features or []), *labels])
    for text, what in [*((label, "label") for label in labels), (weight, "sample_weight")]:
        found = None if text is None else _resolve(plpy, table, text, what, author)
        if found is not None:
            values[text] = found
    if weight is not None:
        _check_weight(weight, table.types, labels)
    what, divides = criterion or ("", None)
    if divides is not None:
        _column(divides, table.types, table.name, what)
    if features == ["*"]:
        others = {name for name in names if columns.kind(table.types[name], encoders.get(name)) is None}
        others |= {*labels, *table.answers, weight, divides, *beside}
        features = [name for name in names if name in readable and name not in others]
    for position, name in enumerate(features or []):
        if name is None or not name.strip():
            raise NullArgument(
                "a feature name is null or blank", "It is number %d of features." % (position + 1), "List names of columns only."
            )
        if name in features[:position]:
            raise InvalidArgument('feature "%s" is listed twice' % name, None, "List each column once.")
        if name in labels and not table.types[name].endswith("[]"):
            raise InvalidArgument(
                'label "%s" is among the features' % name,
                "A model that sees its answer learns nothing.",
                "Take it off the features; the label of an autoencoder is an array.",
            )
        if name == weight:
            raise InvalidArgument(
                'sample_weight "%s" is among the features' % weight,
                "A column that weighs rows says how much they count, not what they are.",
                "Take it off the features.",
            )
        _resolve(plpy, table, name, "feature", author)
        if not columns.encoders_of(table.types[name]):
            raise WrongColumnType(
                'column "%s" cannot be a feature' % name,
                "Its type is %s." % table.types[name],
                "Features are numbers, booleans, text, enums, uuids, dates and times, bytea, and arrays. "
                + columns.usable(name, table.types[name]),
            )
    if features == []:
        detail = "The label is made of %s." % ", ".join('"%s"' % name for name in table.answers) if table.answers else None
        raise InvalidArgument("there is no feature", detail, "List at least one column of %s." % relation["name"])
    for label in labels:
        columns.task_of({"name": label, "type": table.types[label]})
    for name in carried:
        _column(name, table.types, relation["name"], "column to be carried along")
    of_labels = {label: values.get(label, ()) for label in labels}
    table = replace(table, features=list(features or []), criterion=divides, label_values=of_labels, values=beside)
    _refuse_unreadable(table)
    unpopulated = plpy.execute(plpy.prepare(_UNPOPULATED, ["int8"]), [relation["oid"]])
    if len(unpopulated):
        name = unpopulated[0]["name"]
        raise NotReady(
            "materialized view %s has not been populated" % name,
            None if name == table.name else "%s reads it." % table.name,
            "REFRESH MATERIALIZED VIEW %s;" % name,
        )
    if plpy.execute(plpy.prepare(_CHANGED, ["int8"]), [relation["oid"]]).nrows():
        raise NotReady(
            "table %s was created or changed in this transaction" % relation["name"],
            "Segments read it in sessions of their own, which see committed rows only.",
            "COMMIT first.",
        )
    return table


def beyond_double(table: Source, error: CerebroError) -> CerebroError:
    """What a segment's error means, if it met a number that it could not make one of double precision of: the column is named."""
    if error.sqlstate != OutOfRange.sqlstate or "double precision" not in error.message:
        return error
    read = [*table.features, *table.labels, table.weight, table.criterion, *table.values]
    # An expression may hold such a cast itself.
    found = [name for name in read if name is not None and (columns.base(table.types[name]) == "numeric" or name in table.expressions)]
    found = list(dict.fromkeys(found))
    if not found:
        return error
    named, shown = ", ".join('"%s"' % name for name in found), found[0] if found[0] in table.expressions else columns.quoted(found[0])
    return OutOfRange(
        ("column %s holds" if len(found) == 1 else "one of the columns %s holds") % named + " a number that double precision does not hold",
        re.sub(r"(\d{20})\d+", r"\1…", "PostgreSQL says: %s." % error.message),
        "Scale it by an expression, or leave such rows out by the option filter, such as abs(%s) between 1e-307 and 1e308 or %s = 0."
        % (shown, shown),
    )


def keys(plpy, table: Source) -> List[str]:
    """Columns that tell the table's rows apart, as its indexes hold them to, the primary key first."""
    return [row["name"] for row in plpy.execute(plpy.prepare(_KEYS, ["int8"]), [table.oid])]


def filtered(plpy, table: Source, text: Optional[str]) -> Source:
    """The table without the rows for which an expression is not true; None leaves all.

    Raises:
        WrongColumnType: it is not boolean; and what ``describe`` raises.
    """
    if text is None:
        return table
    table = replace(table, types=dict(table.types), expressions=dict(table.expressions), filter=text)
    _resolve(plpy, table, text, "filter", None)
    if table.types[text] != "boolean":
        raise WrongColumnType(
            'the filter "%s" is not a condition' % text, "Its type is %s." % table.types[text],
            "Write one that is true or false, such as a > 0."
        )
    _refuse_unreadable(table)
    return table


def has_weight(plpy, table: Source, text: str, author: Optional[str]) -> bool:
    """Whether a table has the column of this name, or those that are mentioned by this expression."""
    if text in table.types or expressions.names_column(text):
        return text in table.types
    expressions.refuse_author(plpy, author, text, "sample_weight")
    try:
        expressions.judge(plpy, table.name, list(table.declared), text, "sample_weight")
        return True
    except ColumnNotFound:
        return False


def _resolve(plpy, table: Source, text: str, what: str, author: Optional[str]) -> Optional[Sequence[str]]:
    """See that a text is a column, else enter the expression that it is into the table; gives the values of that one's enum."""
    if text in table.types:
        return None
    if expressions.names_column(text):
        _column(text, table.types, table.name, what)
    expressions.refuse_author(plpy, author, text, what)
    found = expressions.judge(plpy, table.name, list(table.declared), text, what)
    row = plpy.execute(plpy.prepare(_TYPE, ["int8"]), [found.type])[0]
    table.types[text], table.expressions[text] = row["type"], found.columns
    return row["values"]


def _refuse_unreadable(table: Source) -> None:
    for name in table.columns:
        if name not in table.readable:
            raise NoPrivilege(
                'permission denied for column "%s" of table %s' % (name, table.name), None, "Ask the owner to GRANT SELECT on it."
            )


def describe_held(plpy, name: str, table: Source, features: List[dict], labels: List[dict], author: Optional[str]) -> Source:
    """Check a table whose rows are for validation: it has the columns that a run reads from its source.

    Args:
        plpy: PL/Python's module.
        name: Qualified, as text.
        table: The source.
        features, labels: Their specifications.
        author: Who wrote what is read of it; None: the caller.

    Raises:
        InvalidArgument: it is the source itself; else as :func:`describe`.
    """
    try:
        encoders = columns.sparse_of(features)
        held = describe(plpy, name, table.features, table.labels, weight=table.weight, author=author, encoders=encoders)
    except (TableNotFound, plpy.SPIError) as error:
        if error.sqlstate not in ("42P01", "42602", "42601"):
            raise
        hint = "Name it with its schema, as in \"public.flights_of_june\"."
        raise TableNotFound('option "validation.table" names a table that does not exist', "It is %s." % name, hint) from None
    if held.oid == table.oid:
        raise InvalidArgument(
            'option "validation.table" names the source',
            "Its rows would be on both sides.",
            "Name another table, or a fraction of this one.",
        )
    refuse_other_kinds(held, {"features": features})
    for label in labels:
        types = held.types[label["name"]], label["type"]
        meanings = [
            (columns.label_kind({**label, "type": type_}), columns.of(type_).quantity, columns.of(type_).spelling) for type_ in types
        ]
        if meanings[0] != meanings[1]:
            raise WrongColumnType(
                'label "%s" of table %s is of another kind than that of the source' % (label["name"], held.name),
                "It is of type %s, that of the source of type %s." % types,
                "Cast it in a table of its own, or name another table.",
            )
    return held


def moment(plpy, type_: str, given: str) -> str:
    """A date or time, as the caller's settings read it, in the spelling of ISO 8601 that all sessions read alike.

    Args:
        plpy: PL/Python's module.
        type_: Of the column that it is compared with.
        given: As the caller wrote it.

    Raises:
        InvalidArgument: it is none, or infinite.
    """
    value = "$1::pg_catalog.text::pg_catalog." + columns.of(type_).cast
    query = "select pg_catalog.to_json(%s) #>> '{}' as moment, pg_catalog.isfinite(%s) as finite" % (value, value)
    try:
        found = plpy.execute(plpy.prepare(query, ["text"]), [given])[0]
    except plpy.SPIError as error:
        if not (error.sqlstate or "").startswith("22"):
            raise
        raise InvalidArgument(str(error), None, 'Write it as "2026-01-01", or "2026-01-01 12:00".') from None
    if not found["finite"]:
        raise InvalidArgument('"%s" is no moment' % given, "It is infinite.", 'Write it as "2026-01-01", or "2026-01-01 12:00".')
    return found["moment"]


def folded_type(plpy) -> str:
    """The name, as SQL, of the type whose texts are one whatever their case; ``text`` where the database has none."""
    found = plpy.execute(_CITEXT_NAME)
    return found[0]["name"] if len(found) else "text"


def settled(plpy, types: Mapping[str, str], encoders: dict, nulls: Any, validation: Any = None) -> Tuple[dict, Any, Any]:
    """These options of a run with what they say of columns of these types as such columns hold it, whatever the caller's settings.

    Raises:
        InvalidArgument: see :func:`moment` and ``per_column.as_held``.
    """
    if isinstance(validation, dict) and isinstance(validation.get("from"), str) and validation["time"] in types:
        validation = {**validation, "from": moment(plpy, types[validation["time"]], validation["from"])}
    return (*per_column.as_held(encoders, nulls, types, lambda *value: _held_as(plpy, *value)), validation)


def _held_as(plpy, type_: str, given: str, text: bool) -> Union[float, str]:
    """A date, time or interval, as the caller's settings read it, as the number or the text that a column of this type would hold.

    Raises:
        InvalidArgument: it is none, or infinite.
    """
    sql = columns.text_sql if text else columns.number_sql
    try:
        found = plpy.execute(plpy.prepare("select %s as held" % sql("$1::pg_catalog.text", type_), ["text"]), [given])[0]["held"]
    except plpy.SPIError as error:
        if not (error.sqlstate or "").startswith("22"):
            raise
        hint = "Write it as PostgreSQL writes values of type %s%s." % (type_, "" if text else ", or give its seconds")
        raise InvalidArgument(str(error), None, hint) from None
    if isinstance(found, float) and not math.isfinite(found):
        raise InvalidArgument('"%s" has no seconds' % given, "It is infinite.", "Name one that is not.")
    return found


def refuse_other_kinds(table: Source, encoders: dict) -> None:
    """A table that a run is applied to must have columns of the kinds that it was trained on.

    Raises:
        WrongColumnType.
    """
    for feature in encoders["features"]:
        found, known = table.types[feature["name"]], feature["type"]
        if columns.meaning(found, feature["kind"]) != columns.meaning(known, feature["kind"]):
            raise WrongColumnType(
                'column "%s" of table %s is of another kind than the run\'s' % (feature["name"], table.name),
                "It is of type %s; the run was trained on a column of type %s." % (found, known),
                "Cast it in a table of its own, or name another table.",
            )


def _relation(plpy, source: str) -> dict:
    found = plpy.execute(plpy.prepare(_RELATION, ["text"]), [source])
    if not len(found):
        raise TableNotFound("table %s does not exist" % source, None, "Name a table as 'schema.table'.")
    relation = found[0]
    if relation["relpersistence"] == "t":
        raise NotSupported(
            "table %s is temporary" % relation["name"],
            "A temporary table is visible to the session that made it only, and segments read in sessions of their own.",
            "Make it an ordinary table.",
        )
    if relation["relkind"] not in ("r", "p", "f", "m", "v"):
        raise NotSupported(
            "%s has no rows" % relation["name"],
            "Rows are read from tables, partitioned tables, foreign tables, views and materialized views.",
            "Name one of these.",
        )
    return relation


def _check_values(name: str, types: Dict[str, str], relation: str, read: Sequence[Optional[str]]) -> None:
    """The column that holds the values of a sparse feature."""
    _column(name, types, relation, "column of values in option encoders")
    if not types[name].endswith("[]") or columns.meaning(types[name], "sequence") is None:
        raise WrongColumnType(
            'column "%s" cannot hold the values of a sparse feature' % name,
            "Its type is %s." % types[name],
            "Name a column of arrays of numbers, such as real[].",
        )
    if name in read:
        raise InvalidArgument(
            'column "%s" holds the values of a sparse feature, and is the label or a feature itself' % name,
            None,
            "Take it off the features: it comes with the indices.",
        )


def _check_weight(name: str, types: Dict[str, str], labels: Sequence[str]) -> None:
    if name in labels:
        raise InvalidArgument(
            'sample_weight "%s" is the label' % name, "Rows would count by their own answer.", "Name another column."
        )
    if columns.meaning(types[name], "number") != "number":
        raise WrongColumnType(
            'column "%s" cannot be a sample_weight' % name,
            "Its type is %s." % types[name],
            "A weight is a number, 0 or more; name a column of numbers.",
        )


def _column(name: str, types: Dict[str, str], relation: str, what: str) -> None:
    if name not in types:
        packed = packs.COLUMNS.keys() <= types.keys()
        hint = "It is a packed table: name the one that it was packed from." if packed else nearest(name, types)
        raise ColumnNotFound('column "%s" of table %s does not exist' % (name, relation), "It was given as a %s." % what, hint)
