"""What a packed table is, on both sides: its columns, its header, and how far its source is what it was (``docs/pack.md``)."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from cerebro_udf import columns
from cerebro_udf.errors import CerebroError, NotReady, counted, unstorable
from cerebro_udf.segment import specs
from cerebro_udf.wire import parsed

FORMAT = 3
COLUMNS = {"shard": "integer", "part": "text", "number": "integer", "rows": "bigint", "header": "json", "data": "bytea"}
PARTS = ("train", "validation")
HEADER = "header"  # the part of the row that has it

_LEAF = specs.fields(oid=specs.whole(), file=specs.maybe(specs.whole()), bytes=specs.whole(), counts=specs.many(specs.whole(), 3, 3))
looked = specs.fields(since=specs.maybe(specs.text), relations=specs.named(specs.maybe(specs.many(_LEAF))))
common = specs.fields(
    format=specs.whole(1), pack=specs.text,
    source=specs.fields(name=specs.text, tables=specs.named(specs.many(specs.many(specs.text, 2, 2))), looked=specs.named(looked)),
    features=specs.many(specs.feature, 1), labels=specs.labels, options=specs.named(specs.anything), types=specs.named(specs.text),
    encoders=specs.encoded, shards=specs.many(specs.text, 1),
)  # fmt: skip
_OWN = specs.fields(
    shard=specs.fields(
        number=specs.whole(), rows=specs.whole(), train_rows=specs.whole(), validation_rows=specs.whole(), skipped=specs.whole(),
        checksum=specs.text, bytes=specs.whole(), blocks=specs.fields(train=specs.whole(), validation=specs.whole()),
        entries=specs.maybe(specs.named(specs.named(specs.whole()))),
    )
)  # fmt: skip


def parse(text: Any, table: str) -> dict:
    """Read a header. Anybody may have written it, and what it names may be SQL: what is said in it more than once has to be the same.

    Args:
        text: Of the column of that name.
        table: Whose it is, for messages.

    Raises:
        NotReady: it is none, or of a newer version.
    """
    repair = "Pack its source anew: select cerebro.pack(…);"
    try:
        header = parsed(text)
        if isinstance(header, dict) and isinstance(header.get("format"), int) and header["format"] > FORMAT:
            raise NotReady(
                "table %s was packed by a newer version of cerebro" % table,
                "Its format is %d; this version reads up to %d." % (header["format"], FORMAT),
                "Install the same version on every segment.",
            )
        common("", header)
        _OWN("", header)
        if unstorable(header) is not None:  # the type json takes any escapes
            raise ValueError("it holds the text %s" % unstorable(header))
        weight = header["options"].get("sample_weight")
        named = [*header["features"], *([{"name": weight}] if weight is not None else []), *header["labels"]]
        if not all(isinstance(column["name"], str) and column["name"] in header["types"] for column in named):
            raise ValueError("a column has no type")
        _refuse_contradiction(header)
    except NotReady:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise NotReady("the header of packed table %s cannot be read" % table, "%s." % error, repair) from None
    except CerebroError as error:
        raise NotReady("the header of packed table %s cannot be read" % table, "%s: %s" % (error.message, error.detail), repair) from None
    return header


def _refuse_contradiction(header: dict) -> None:
    """See that encoders and options are about the columns that the header lists, which are those that a call is asked to name.

    Raises:
        ValueError.
    """
    features, labels, options, encoders = (header[key] for key in ("features", "labels", "options", "encoders"))
    listed = [(label["name"], label.get("output"), label["type"], columns.task_of(label)) for label in labels]
    if listed != [(label["name"], label.get("output"), label["type"], label["task"]) for label in encoders["labels"]]:
        raise ValueError("its encoders are of other labels than it lists")
    said = [[(one["name"], one["kind"], one["type"], one.get(one["kind"])) for one in part] for part in (features, encoders["features"])]
    if said[0] != said[1]:
        raise ValueError("its encoders are of other features than it lists")
    if any(header["types"][column["name"]] != column["type"] for column in [*features, *labels]):
        raise ValueError("a column has two types")
    if len(labels) > 1:
        asked = {label.get("output"): (label["name"], label.get("task")) for label in labels}
        given = options.get("outputs")
        given = given if isinstance(given, dict) else {}
        full = {name: one if isinstance(one, dict) else {"label": one} for name, one in given.items()}
        if {name: (one.get("label"), one.get("task")) for name, one in full.items()} != asked or options.get("task") is not None:
            raise ValueError("its outputs are not those of the labels that it lists")
    elif options.get("outputs") is not None or options.get("task") != labels[0].get("task") or labels[0].get("output") is not None:
        raise ValueError("its label is not the one that it lists")


class Condition(NamedTuple):
    """What is known of a packed table's source: ``fresh``, ``changed`` or ``cannot tell``, and why it is not fresh."""

    state: str
    why: Optional[str] = None


def relations(tables: Dict[str, List[List[str]]]) -> Dict[str, List[str]]:
    """What tables are made of, by server; ``tables`` as for :func:`compare`."""
    result: Dict[str, List[str]] = {}
    for pieces in tables.values():
        for server, relation in pieces:
            result.setdefault(server, []).append(relation)
    return result


def compare(tables: Dict[str, List[List[str]]], then: Dict[str, dict], now: Dict[str, Optional[dict]]) -> Condition:
    """Compare what tables looked like when they were packed with what they look like now.

    Args:
        tables: By name ``[server, relation]`` of all that each was made of; none where that is not known.
        then, now: By server what ``segment.pack.look`` gave, None for one that could not be asked.
    """
    doubts = ["where the rows of %s are stored is not known" % name for name, pieces in tables.items() if not pieces]
    for server, relation in [piece for pieces in tables.values() for piece in pieces]:
        where = "%s on %s" % (relation, server)
        before, after = then.get(server), now.get(server)
        if before is None or after is None:
            doubts.append("%s could not be asked" % server)
            continue
        old, new = before["relations"].get(relation), after["relations"].get(relation)
        if old is None or new is None:
            doubts.append("where the rows of %s are stored is not known" % where)
            continue
        if [(leaf["oid"], leaf.get("file")) for leaf in old] != [(leaf["oid"], leaf.get("file")) for leaf in new]:
            return Condition("changed", "%s was made, truncated or rewritten since" % where)
        if any(b["bytes"] > a["bytes"] for a, b in zip(old, new)):  # it also shrinks, when it is vacuumed
            return Condition("changed", "%s has grown" % where)
        counts = [[b - a for a, b in zip(a["counts"], b["counts"])] for a, b in zip(old, new)]
        if before.get("since") is None or before["since"] != after.get("since") or any(count < 0 for leaf in counts for count in leaf):
            doubts.append("the counters of %s have been reset, by a crash maybe" % server)
            continue
        total = [sum(column) for column in zip(*counts)]
        if any(total):
            return Condition("changed", "%s: %s inserted, %d updated, %d deleted since" % (where, counted(total[0], "row"), *total[1:]))
    return Condition("cannot tell", doubts[0]) if doubts else Condition("fresh")
