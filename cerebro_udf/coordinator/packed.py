"""A packed table in the place of a source: recognized, checked against a call, and read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from cerebro_udf import encoders as encoding
from cerebro_udf import expressions, packs
from cerebro_udf.coordinator import ends
from cerebro_udf.coordinator.load import Loader
from cerebro_udf.coordinator.options import SHAPING, Options, shaping, whole
from cerebro_udf.coordinator.segments import Segments
from cerebro_udf.coordinator.source import Source, describe, settled
from cerebro_udf.engines.base import SELF, Engine, Shard
from cerebro_udf.errors import (
    CerebroError,
    ClientGone,
    DataChanged,
    InvalidArgument,
    NoPrivilege,
    NotReady,
    other,
)
from cerebro_udf.interrupts import Pulse
from cerebro_udf.segment.pack import unweighted

LOOK = "select cerebro_internal.worker_packed($1)::text"

# Tables with the columns of a packed one, whatever their names: a further one says on which segment rows lie.
_ALIKE = """
select c.oid::int8 as oid, c.oid::pg_catalog.regclass::text as name
from pg_catalog.pg_class c
join lateral (
    select pg_catalog.array_agg(a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod) order by a.attnum) as columns
    from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
) a on a.columns[1:{0}] = $1 and (pg_catalog.cardinality(a.columns) = {0} or a.columns[{1}] in ('segment text', 'cerebro_segment text'))
where c.relkind in ('r', 'p') and {2}
order by 2
"""
_COLUMNS = ["%s %s" % column for column in packs.COLUMNS.items()]

_NAMED = "select pg_catalog.to_regclass($1::text)::oid::int8 as oid"


@dataclass(frozen=True)
class Packed(Source):
    """A packed table, which has the columns of its source where a run asks for them.

    Attributes:
        header: Of its first shard.
        shards: Where its blocks are; shard k of the source is its shard k.
        condition: What is known of the source.
    """

    header: dict = field(default_factory=dict)
    shards: Tuple[Shard, ...] = ()
    condition: packs.Condition = packs.Condition("cannot tell")

    @property
    def columns(self) -> List[str]:
        return []  # what is read are blocks

    def feature_specs(self, encoders: dict, nulls: Any) -> List[dict]:
        return self.header["features"]

    def label_specs(self, outputs: Sequence[dict], encoders: Mapping[str, Any] = {}) -> List[dict]:
        return self.header["labels"]


def _alike(plpy, condition: str, *values: Any) -> List[Tuple[int, str]]:
    query = _ALIKE.format(len(_COLUMNS), len(_COLUMNS) + 1, condition)
    plan = plpy.prepare(query, ["text[]", "text"][: 1 + len(values)])
    return [(row["oid"], row["name"]) for row in plpy.execute(plan, [_COLUMNS, *values])]


def find(plpy, gd: dict, engine: Engine, source: str) -> Optional[Packed]:
    """The packed table of this name (a regclass as text); None where it is none.

    Raises:
        NotReady: it is one, but not whole; and what keeps the caller from reading it.
    """
    if not _alike(plpy, "c.oid = pg_catalog.to_regclass($2::text)", source):
        return None
    table = describe(plpy, source, None)
    segments = Segments(plpy, gd, Pulse(plpy), engine, engine.shards(table, 1))
    segments.connect()
    segments.check_policies()
    try:
        reports = segments.call(LOOK, lambda n: {"step": "headers", "reads": [read.spec() for read in segments.shards[n].reads]})
        found: Dict[int, Tuple[Shard, dict]] = {}
        for shard, report in zip(segments.shards, reports):
            for text in report["headers"]:
                header = packs.parse(text, table.name)
                found[header["shard"]["number"]] = (shard, header)
        headers = [found[number][1] for number in sorted(found)]
        names = headers[0]["shards"] if headers else [""]
        if sorted(found) != list(range(len(names))) or len({header["pack"] for header in headers}) > 1:
            raise NotReady(
                "packed table %s is not whole" % table.name,
                "It has %d headers of one call, for %d shards." % (len(headers), len(names)),
                "Pack its source anew: select cerebro.pack(…);",
            )
        condition = _condition(plpy, engine, segments, headers[0]["source"])
    finally:
        segments.rest()
    shards = tuple(
        replace(found[number][0], number=number, segment=name, rows_estimate=headers[number]["shard"]["rows"])
        for number, name in enumerate(names)
    )
    header = headers[0]
    return Packed(
        table.oid, table.name, table.kind, header["types"], [feature["name"] for feature in header["features"]],
        tuple(label["name"] for label in header["labels"]),
        weight=header["options"].get("sample_weight"), header=header, shards=shards, condition=condition,
    )  # fmt: skip


def _condition(plpy, engine: Engine, segments: Segments, source: dict) -> packs.Condition:
    """See whether what was packed is as it was; what cannot be asked is told as such."""
    plan = plpy.prepare(_NAMED, ["text"])
    for name, pieces in source["tables"].items():
        oid = plpy.execute(plan, [name])[0]["oid"]
        if oid is None:
            return packs.Condition("changed", "table %s does not exist any more" % name)
        if [[piece.server, piece.relation] for piece in engine.pieces(oid)] != pieces:
            return packs.Condition("changed", "table %s has other partitions" % name)
    servers = [shard.server for shard in segments.shards]
    relations = packs.relations(source["tables"])
    found = segments.call(LOOK, lambda n: {"step": "look", "relations": relations.get(servers[n], [])})
    return packs.compare(source["tables"], source["looked"], dict(zip(servers, found)))


def adopt(plpy, table: Packed, label: Optional[str], features: Optional[List[str]], given: dict) -> Tuple[Optional[str], List[str], dict]:
    """Let a packed table decide about all that it was packed with, and warn where its source has changed.

    Args:
        given: The options as the caller wrote them.

    Returns:
        Label, features, and the options that the caller might have written.

    Raises:
        InvalidArgument: the call wants something else.
        NoPrivilege: the table holds SQL that the call does not name; a run is evaluated for its owner, who must have written it.
    """
    stored = table.header["options"]
    kept, asked = shaping(stored), shaping(given)
    decided = {key: stored[key] for key in SHAPING if stored.get(key) is not None}
    dated = ("encoders", "nulls", "validation")
    asked.update(zip(dated, settled(plpy, table.types, *(asked[key] for key in dated))))
    asked = {key: value for key, value in asked.items() if given.get(key) is not None}
    found = table.label
    if table.label is not None and len(asked.get("outputs") or ()) == 1:  # which is known by label and task
        decided["outputs"] = {asked["outputs"][0]["name"]: {"label": table.label, "task": decided.pop("task", None)}}
        single, found = Options(**asked), None
        label = ends.settle(single, label)
        asked.update(outputs=single.outputs, task=single.task)
    kept.update(label=table.label, features=table.features)
    asked.update(label=label, features=None if features == ["*"] else features)
    kept["segments"] = sum(1 for shard in table.shards if shard.server == SELF)
    if kept["segments"]:
        asked["segments"] = whole(given.get("segments"))
    for key, value in asked.items():
        if value is not None and value != kept[key]:
            raise InvalidArgument(
                "table %s was packed with %s" % (table.name, other(key)),
                "It was %s." % json.dumps(kept[key], ensure_ascii=False)[:200],
                "Leave it out, since the table knows it; or pack its source anew, or name that, %s." % table.header["source"]["name"],
            )
    for what, given_now, texts in (
        ("label", asked["label"], [table.label]), ("outputs", asked.get("outputs"), table.labels if table.label is None else ()),
        ("features", asked["features"], table.features),
        *((key, given.get(key), [stored.get(key)]) for key in ("sample_weight", "filter")),
    ):  # fmt: skip
        for text in texts if given_now is None else ():
            if text is not None and (what == "filter" or not expressions.names_column(text)):
                raise NoPrivilege(
                    "the %s of table %s may be SQL that somebody else wrote" % (what, table.name),
                    'It is "%s", and what is read with the run later would be evaluated under your rights.' % text[:100],
                    "Give the %s in the call, as the table was packed with it." % what,
                )
    if table.condition.state == "changed":
        plpy.warning(
            "table %s has changed since it was packed into %s: %s" % (table.header["source"]["name"], table.name, table.condition.why)
        )
    return found, table.features, {**given, **decided}


def changed(table: Packed) -> DataChanged:
    """The error for a table that is not the one that a run began with."""
    return DataChanged(
        "table %s has been packed anew since the run began" % table.name,
        "It holds other labels or features.",
        'Begin anew with options {"if_exists": "replace"}.',
    )


def loader(segments: Segments, table: Source, options: Options, key: str, definition: Optional[dict] = None) -> Loader:
    """What has segments read a run's source; ``definition`` as for ``Loader``."""
    kind = PackedLoader if isinstance(table, Packed) else Loader
    return kind(segments, table, options, key, options.nulls, options.validation, options.memory, options.sample, definition)


class PackedLoader(Loader):
    """Loads blocks; encoders are those of the packed table."""

    def __init__(self, segments: Segments, table: Packed, options: Options, key: str, *further: Any):
        super().__init__(segments, table, options, key, *further)
        self._table = table

    def _spec(self, number: int) -> dict:
        return {**self._place(number), "pack": number}

    def _made(self, stats: List[dict], kept: Optional[dict]) -> dict:
        encoders = unweighted(self._table.header["encoders"])
        if kept is not None and _meaning(encoding.varied(kept, {})) != _meaning(encoders):
            raise InvalidArgument(
                "table %s was packed with other encoders than those that the weights come with" % self._table.name,
                "Weights mean something only to rows that are encoded alike.",
                "Name the table that it was packed from, %s." % self._table.header["source"]["name"],
            )
        return encoding.varied(encoders, self._augment)


def _meaning(encoders: dict) -> list:
    """All that gives a meaning to the weights of a model: how rows are fed, and what is made of its outputs."""
    of_labels = ("output", "task", "shape", "classes", "encoder", "mean", "min", "scale")
    labels = [[label.get(key) for key in of_labels] for label in encoders["labels"]]
    return [encoders["features"], encoders["inputs"], labels]


def conditions(plpy, gd: dict, engine: Engine) -> List[Tuple[str, packs.Condition]]:
    """Every packed table of the caller, with what is known of its source.

    Anybody can make a table that looks like one and leads to functions, which would act as the caller, who did not name it.
    """
    mine = "not c.relispartition and pg_catalog.pg_get_userbyid(c.relowner) = current_user"
    result = []
    for _, name in _alike(plpy, mine):
        try:
            found = find(plpy, gd, engine, name)
        except ClientGone:
            raise
        except CerebroError as error:
            result.append((name, packs.Condition("cannot tell", error.message)))
        else:
            if found is not None:
                result.append((name, found.condition))
    return result
