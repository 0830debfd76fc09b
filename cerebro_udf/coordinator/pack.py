"""Encode a table once for many runs, into blocks beside its rows (``docs/pack.md``)."""

from __future__ import annotations

import random
import time
import uuid
from typing import List, Optional

from cerebro_udf import faults, packs
from cerebro_udf.catalog import refuse_read_only
from cerebro_udf.coordinator import ends, fit, packed, validation
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import target as targets
from cerebro_udf.coordinator.load import Loader
from cerebro_udf.coordinator.options import Options
from cerebro_udf.coordinator.source import Source
from cerebro_udf.coordinator.staging import Staging
from cerebro_udf.engines import engine_for
from cerebro_udf.errors import InvalidArgument, counted
from cerebro_udf.marks import Mark

_WRITE = "select cerebro_internal.worker_pack_table($1)::text"
_FIGURES = ("rows", "train_rows", "validation_rows", "skipped", "checksum", "bytes")


def pack(plpy, gd: dict, source: str, target: str, label: Optional[str], features: Optional[List[str]], options: dict,
         schema: Optional[str]) -> int:  # fmt: skip
    """Pack a table; see ``docs/pack.md``.

    Args:
        schema: Where the caller makes tables whose name has no schema.

    Returns:
        Rows packed.
    """
    started = time.monotonic()
    fit.refuse_null(label, features, options)
    parsed, if_exists = run_options.parse_pack(options)
    label = ends.settle(parsed, label)
    refuse_read_only(plpy, "store packed tables", None)
    found = targets.find(plpy, target, schema)
    engine = engine_for(plpy)
    if packed.find(plpy, gd, engine, source) is not None:
        raise InvalidArgument("table %s is packed already" % source, None, "Name the table that it was packed from.")
    given = {key: options[key] for key in run_options.SHAPING if options.get(key) is not None}
    if not parsed.several:  # a single output is that of the label
        given = {**{key: value for key, value in given.items() if key != "outputs"}, **({"task": parsed.task} if parsed.task else {})}
    seeded = parsed.seed is not None
    if not seeded:
        parsed.seed = random.SystemRandom().randrange(2**31)
    table = fit.described(plpy, source, features, label, parsed, seeded)
    given.update({key: getattr(parsed, key) for key in ("encoders", "nulls", "validation") if key in given})
    targets.refuse(found, "pack", if_exists, table)
    shards = fit.sharded(plpy, engine, table, parsed)
    layout = engine.alike(table, shards, [])
    blocks = {**packs.COLUMNS, **({layout.column: "text"} if layout.column else {})}
    mark = Mark("pack", table.name, found.qualified, "", 0)
    staging = Staging(plpy, gd, engine, found, shards, layout, blocks, mark, if_exists == "replace")
    names = [table.name, *filter(None, [validation.table(parsed.validation)])]
    tables = {name: [[piece.server, piece.relation] for piece in engine.pieces(_oid(plpy, name))] for name in names}
    relations = packs.relations(tables)
    faults.reset(target)
    with staging.session():
        segments = staging.segments
        staging.survey()
        segments.share_hosts()
        # Before anything is read: what changes meanwhile is told as a change.
        known = staging.each("look", lambda server: {"relations": relations.get(server, [])}, packed.LOOK)
        loader = packed.loader(segments, table, parsed, target)
        stats = loader.load()
        encoders = loader.encoders(stats, [])
        fit.remark(plpy, table, parsed, encoders, stats, features == ["*"] and parsed.inputs is None)
        loader.encode(encoders)
        header = _header(table, parsed, given, loader, encoders, tables, known, [shard.segment for shard in shards])
        staging.make(["data"])

        def spec(number: int) -> dict:
            shard = shards[number]
            own = {"number": number, **{key: stats[number][key] for key in _FIGURES}}
            return {
                "step": "write", "run": target, "relation": staging.relations[layout.part_of(shard, shard.reads[0])], "shard": number,
                "segment": shard.server if layout.column else None, "header": {**header, "shard": own},
            }  # fmt: skip

        written = segments.call(_WRITE, spec)
        faults.reach(plpy, "before-swap", target)
        now = targets.find(plpy, found.qualified, None)
        targets.refuse(now, "pack", if_exists, table)
        staging.replace(now)
    rows, skipped = (sum(report[key] for report in stats) for key in ("rows", "skipped"))
    plpy.notice(
        "table %s: %s in %s, %.1f MB on %s%s, %.1f s"
        % (
            found.qualified, counted(rows, "row"), counted(sum(report["blocks"] for report in written), "block"),
            sum(report["bytes"] for report in written) / 1e6, counted(len(shards), "segment"),
            ", %d skipped" % skipped if skipped else "", time.monotonic() - started,
        )  # fmt: skip
    )
    return rows


def _oid(plpy, name: str) -> int:
    return plpy.execute(plpy.prepare("select $1::text::pg_catalog.regclass::oid::int8 as oid", ["text"]), [name])[0]["oid"]


def _header(table: Source, options: Options, given: dict, loader: Loader, encoders: dict, tables: dict, known: dict,
            segments: List[str]) -> dict:  # fmt: skip
    named = [*table.features, *table.labels, *(name for name in (table.weight, table.criterion) if name is not None)]
    return {
        "format": packs.FORMAT, "pack": uuid.uuid4().hex,
        "source": {"name": table.name, "tables": tables, "looked": known},
        "features": loader.features, "labels": loader.labels, "types": {name: table.types[name] for name in named},
        "options": {**given, "seed": options.seed}, "encoders": encoders, "shards": segments,
    }  # fmt: skip
