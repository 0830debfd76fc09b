"""The table that a call writes: found or made in the caller's own transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Sequence

from cerebro_udf.coordinator.source import Source
from cerebro_udf.errors import (
    AlreadyExists,
    ColumnNotFound,
    InvalidArgument,
    NoPrivilege,
    NotReady,
    NotSupported,
    WrongColumnType,
)
from cerebro_udf.marks import Mark, has_policies

_NAME = "select pg_catalog.parse_ident($1) as parts"

_FOUND = """
select n.oid is not null as schema_exists, pg_catalog.has_schema_privilege(n.oid, 'CREATE') as may_create
     , c.oid::int8 as oid, c.relkind, coalesce(pg_catalog.pg_has_role(c.relowner, 'USAGE'), false) as mine
     , coalesce(c.relrowsecurity, false) as policies
     , pg_catalog.has_table_privilege(c.oid, 'INSERT') and pg_catalog.has_table_privilege(c.oid, 'UPDATE') as writable
     , pg_catalog.row_security_active(c.oid) as checked
     , case when c.relkind = 'p' then pg_catalog.pg_get_partkeydef(c.oid) else '' end as partitioning
     , pg_catalog.obj_description(c.oid, 'pg_class') as comment
from (select 1) one
left join pg_catalog.pg_namespace n on n.nspname = $1
left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = $2
"""

_TYPES = """
select a.attname as name, pg_catalog.format_type(a.atttypid, a.atttypmod) as type
     , case when a.attcollation <> t.typcollation then
           (select pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.collname)
            from pg_catalog.pg_collation l join pg_catalog.pg_namespace n on n.oid = l.collnamespace
            where l.oid = a.attcollation) end as collation
from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
where a.attrelid = $1::int8::oid and a.attnum > 0 and not a.attisdropped
"""


@dataclass(frozen=True)
class Target:
    """A table's name, and what bears it now.

    Attributes:
        qualified: Schema and name, quoted.
        oid, kind, partitioning: Of the table of that name, None if there is none; partitioning as SQL, empty for none.
        mark: Of the call that made it; None if none did.
        policies: Whether it has row security.
        writable, checked: Whether the caller may put rows into it, and by policies.
    """

    schema: str
    name: str
    qualified: str
    oid: Optional[int]
    kind: Optional[str]
    partitioning: Optional[str]
    mark: Optional[Mark]
    mine: bool
    policies: bool
    writable: bool
    checked: bool


def find(plpy, target: str, schema: Optional[str]) -> Target:
    """Look a name up as CREATE TABLE would.

    Args:
        target: ``name`` or ``schema.name``, quoted where SQL would want quotes.
        schema: Where the caller makes tables whose name has no schema.

    Raises:
        InvalidArgument: no such schema, or no name.
        NoPrivilege: the caller may create nothing there.
    """
    try:
        parts = plpy.execute(plpy.prepare(_NAME, ["text"]), [target])[0]["parts"]
    except plpy.SPIError as error:
        if error.sqlstate != "22023":
            raise
        parts = []
    if len(parts) not in (1, 2) or not all(parts):
        raise InvalidArgument(
            "argument target is no name of a table", "It is %s." % target[:100], "Write 'name' or 'schema.name', quoted as in SQL."
        )
    if len(parts) == 1 and schema is None:
        raise InvalidArgument("no schema has been selected to create in", None, "Write 'schema.name', or set search_path.")
    schema, name = parts if len(parts) == 2 else (schema, parts[0])
    found = plpy.execute(plpy.prepare(_FOUND, ["name", "name"]), [schema, name])[0]
    if not found["schema_exists"]:
        raise InvalidArgument('schema "%s" does not exist' % schema, None, "CREATE SCHEMA %s;" % plpy.quote_ident(schema))
    if not found["may_create"]:
        raise NoPrivilege(
            "permission denied for schema %s" % schema, None, "Ask its owner: GRANT CREATE ON SCHEMA %s TO …;" % plpy.quote_ident(schema)
        )
    qualified = "%s.%s" % (plpy.quote_ident(schema), plpy.quote_ident(name))
    partitioning = None if found["oid"] is None else found["partitioning"]
    mark = Mark.of(found["comment"])
    return Target(
        schema, name, qualified, found["oid"], found["relkind"], partitioning, mark, found["mine"], found["policies"],
        found["writable"], found["checked"],
    )  # fmt: skip


def refuse(target: Target, call: str, if_exists: str, source: Source, key: Sequence[str] = ()) -> None:
    """Refuse a target that exists, as far as ``if_exists`` does.

    Args:
        call: As in ``Mark``.
        key: Of predictions.

    Raises:
        AlreadyExists, InvalidArgument, NotSupported, NotReady, NoPrivilege.
    """
    if target.oid is None:
        return
    if target.oid == source.oid:
        raise InvalidArgument("table %s cannot be source and target" % target.qualified, None, "Name another target.")
    if if_exists == "error":
        ways = '"replace"' if call == "pack" else '"replace" or "append"'
        raise AlreadyExists(
            "table %s already exists" % target.qualified, None, "Choose another name, or set options.if_exists to %s." % ways
        )
    if target.kind not in ("r", "p"):
        raise NotSupported("%s is not a table" % target.qualified, None, "Name another target.")
    if if_exists == "replace":
        if target.mark is None or target.mark.call != call:
            raise NotReady(
                "table %s was not made by cerebro.%s" % (target.qualified, call),
                "Only such a table is replaced.",
                "DROP TABLE %s; or name another target." % target.qualified,
            )
        if not target.mine:
            raise NoPrivilege("must be owner of table %s" % target.qualified, None, "Name another target, or become a member of its owner.")
        if target.policies:
            raise has_policies(target.qualified, call)
        return
    if target.kind == "p" and not target.writable:  # its parts are written to where they are, and not through it
        raise NoPrivilege(
            "permission denied for table %s" % target.qualified, None, "Ask its owner: GRANT INSERT, UPDATE ON %s TO …;" % target.qualified
        )
    if target.kind == "p" and target.checked:
        raise NotSupported(
            "row security on table %s, whose partitions lie on segments" % target.qualified,
            "A policy applies to the table that you named, but not to its partitions there.",
            "Name another target, or have its owner append.",
        )
    if target.mark is not None and set(target.mark.key) != set(key):
        raise InvalidArgument(
            "table %s has another key" % target.qualified,
            "Its key is %s." % ", ".join('"%s"' % name for name in target.mark.key),
            'Give this key, or set options.if_exists to "replace".',
        )


def types_of(plpy, oid: int) -> Dict[str, str]:
    """The columns of a relation: name to type, with modifiers and collation, as SQL."""
    rows = plpy.execute(plpy.prepare(_TYPES, ["int8"]), [oid])
    return {row["name"]: row["type"] + (" collate " + row["collation"] if row["collation"] else "") for row in rows}


def refuse_other_columns(plpy, target: Target, columns: Dict[str, str]) -> None:
    """Refuse to append to a table that lacks a column, or has it with another type.

    Raises:
        ColumnNotFound, WrongColumnType.
    """
    present = types_of(plpy, target.oid)
    for name, type_ in columns.items():
        if name not in present:
            raise ColumnNotFound(
                'column "%s" of table %s does not exist' % (name, target.qualified),
                "The predictions have the columns %s." % ", ".join('"%s"' % name for name in columns),
                'ALTER TABLE … ADD COLUMN %s %s; or set options.if_exists to "replace".' % (plpy.quote_ident(name), type_),
            )
        if present[name] != type_:
            raise WrongColumnType(
                'column "%s" of table %s has another type' % (name, target.qualified),
                "It is %s, the predictions have %s." % (present[name], type_),
                'Set options.if_exists to "replace", or name another target.',
            )
