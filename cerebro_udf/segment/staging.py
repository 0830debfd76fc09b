"""Tables of hidden names that a call makes beside a shard, for them to become parts of its target (``coordinator/staging.py``)."""

from __future__ import annotations

from typing import Iterator, Tuple

from cerebro_udf.errors import DuplicateKey, NoPrivilege, NullInData, ReadOnly
from cerebro_udf.marks import Mark, copy_grants
from cerebro_udf.segment import specs

_HOME = """
select n.nspname as name
from pg_catalog.pg_namespace n
where n.nspname = $1 and pg_catalog.has_schema_privilege(n.oid, 'CREATE')
"""

# What calls may have left: tables of the caller that bear a mark. The coordinator knows which of them are in use.
_MARKED = """
select n.nspname as schema, c.relname as name, d.description as mark
from pg_catalog.pg_description d
join pg_catalog.pg_class c on c.oid = d.objoid and c.relkind = 'r'
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_roles r on r.oid = c.relowner and r.rolname = current_user
where d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass and d.objsubid = 0 and d.description like $1
"""


def step(plpy, spec: dict) -> dict:
    """Do one ``step`` of those below; gives JSON."""
    _STEP("", spec)
    _TAKES[spec["step"]]("", spec)
    return _STEPS[spec["step"]](plpy, spec)


def survey(plpy, spec: dict) -> dict:
    """Say where tables may be made here, and what former calls have made.

    Args:
        spec: ``schemas``, by preference; ``coordinator``: whose calls are meant.

    Returns:
        ``schema``, None of none; ``tables`` ``[[schema, name, transaction], …]`` of the caller, which the coordinator may be
        using.

    Raises:
        NoPrivilege: the caller may create tables in none of the schemas, of which there are some.
        ReadOnly: the server takes no writes.
    """
    if plpy.execute("select pg_catalog.current_setting('transaction_read_only') as only")[0]["only"] == "on":
        raise ReadOnly("the segment takes no writes", None, "Connect its server to the primary, or end its read-only mode.")
    plan = plpy.prepare(_HOME, ["text"])
    usable = [schema for schema in spec["schemas"] if plpy.execute(plan, [schema]).nrows()]
    if spec["schemas"] and not usable:
        raise NoPrivilege(
            "permission denied to create a table there",
            "The role may create tables in none of the schemas %s." % ", ".join('"%s"' % name for name in spec["schemas"]),
            "Ask for it on that server: CREATE SCHEMA IF NOT EXISTS {0}; GRANT USAGE, CREATE ON SCHEMA {0} TO …;".format(
                plpy.quote_ident(spec["schemas"][0])
            ),
        )
    tables = [[schema, name, mark.transaction] for schema, name, mark in _marked(plpy, spec["coordinator"])]
    return {"schema": usable[0] if usable else None, "tables": tables}


def make(plpy, spec: dict) -> dict:
    """Make empty tables, marked as what they are.

    Args:
        spec: ``schema``, ``parts`` ``[{"name", "relation" (whose columns are carried), "columns", "like" (a relation
            whose grants are copied, or None)}]``, ``carried`` (source columns), ``added`` ``[[column, type], …]``,
            ``external`` (columns of which nothing is compressed), ``mark`` (``Mark.text()``).

    Returns:
        ``relations``, in the order of the parts; quoted and qualified.
    """
    quote = plpy.quote_ident
    relations = []
    mark = Mark.of(spec["mark"])
    if mark is None:
        raise specs.wrong("mark", spec["mark"], "what tells our tables from others")
    for part in spec["parts"]:
        specs.fields(**{name: specs.text for name in spec["carried"]})("parts.columns", part.get("columns"))
        relation = "%s.%s" % (quote(spec["schema"]), quote(part["name"]))
        columns = ["%s as %s" % (quote(part["columns"][name]), quote(name)) for name in spec["carried"]]
        plpy.execute("create table %s as select %s from %s with no data" % (relation, ", ".join(columns), part["relation"]))
        plpy.execute("alter table %s %s" % (relation, ", ".join("add column %s %s" % (quote(n), t) for n, t in spec["added"])))
        for name in spec["external"]:
            plpy.execute("alter table %s alter column %s set storage external" % (relation, quote(name)))
        plpy.execute("comment on table %s is %s" % (relation, plpy.quote_literal(mark.named(part["name"]).text())))
        if part["like"]:
            copy_grants(plpy, part["like"], relation, mark.call)
        relations.append(relation)
    return {"relations": relations}


def _marked(plpy, coordinator: str) -> Iterator[Tuple[str, str, Mark]]:
    for row in plpy.execute(plpy.prepare(_MARKED, ["text"]), [Mark.LIKE]):
        mark = Mark.of(row["mark"])
        if mark is not None and mark.coordinator == coordinator and mark.name == row["name"]:
            yield row["schema"], row["name"], mark


def drop(plpy, spec: dict) -> dict:
    """Drop those of ``names`` that are still there, and that calls from ``coordinator`` have made."""
    found = [(schema, name) for schema, name, _ in _marked(plpy, spec["coordinator"]) if name in spec["names"]]
    for schema, name in found:
        plpy.execute("drop table %s.%s" % (plpy.quote_ident(schema), plpy.quote_ident(name)))
    return {"dropped": len(found)}


def index(plpy, spec: dict) -> dict:
    """Give ``tables`` their primary key ``key``.

    Raises:
        DuplicateKey, NullInData: the key does not tell rows apart, or is NULL.
    """
    columns = ", ".join(plpy.quote_ident(name) for name in spec["key"])
    named = ", ".join('"%s"' % name for name in spec["key"])
    for relation in spec["tables"]:
        try:
            plpy.execute("alter table %s add primary key (%s)" % (relation, columns))
        except plpy.SPIError as error:
            if error.sqlstate == "23505":
                raise DuplicateKey(
                    "rows of the source share a key", error.spidata[1],
                    "Name more columns in key: %s %s not tell rows apart." % (named, "does" if len(spec["key"]) == 1 else "do"),
                ) from None
            if error.sqlstate == "23502":
                raise NullInData(
                    "the key of a row is null", str(error), "Name columns in key that are never NULL; given are %s." % named
                ) from None
            raise
    return {}


_STEPS = {"survey": survey, "make": make, "index": index, "drop": drop}
_NAMES = specs.many(specs.text)
_STEP = specs.fields(step=specs.one_of(*_STEPS))
_TAKES = {
    "survey": specs.fields(schemas=_NAMES, coordinator=specs.text),
    "make": specs.fields(
        schema=specs.text, carried=_NAMES, added=specs.many(specs.many(specs.text, 2, 2)), external=_NAMES, mark=specs.text,
        parts=specs.many(specs.fields(name=specs.text, relation=specs.text, like=specs.maybe(specs.text))),
    ),
    "index": specs.fields(tables=_NAMES, key=specs.many(specs.text, 1)),
    "drop": specs.fields(coordinator=specs.text, names=_NAMES),
}  # fmt: skip
