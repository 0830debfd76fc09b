"""A trained model judged on all rows of a table, exact over all its shards: evaluate."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from cerebro_udf import encoders as encoding
from cerebro_udf import stored
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import programs
from cerebro_udf.coordinator.links import Reply
from cerebro_udf.coordinator.load import Loader
from cerebro_udf.coordinator.loop import SUMMARIZE, cells
from cerebro_udf.coordinator.segments import Segments
from cerebro_udf.coordinator.source import Source, describe, kind_of
from cerebro_udf.engines import engine_for
from cerebro_udf.errors import BadData, WrongColumnType
from cerebro_udf.interrupts import Pulse


def evaluate(plpy, gd: dict, run: str, source: str, options: dict) -> List[Tuple[str, Optional[float]]]:
    """Metrics of a trial's best epoch over all rows of a table, exact over all its shards: (metric, value), the loss first."""
    parsed = run_options.parse_evaluate(options)
    chosen, record, chunks = stored.read(plpy, gd, run, parsed["trial"])
    fitted = run_options.Options.from_json(record["options"])
    table = describe(plpy, source, record["features"], record["label"])
    encoders = record["encoders"]
    _refuse_other_columns(table, encoders)
    pulse = Pulse(plpy)
    engine = engine_for(plpy)
    segments = Segments(plpy, gd, pulse, engine, engine.shards(table, parsed["segments"]))
    trained = programs.order(fitted, record["params"], record["definition"], encoders)
    order = {
        "run": "evaluate " + run, "epoch": 1, "phase": "validate", "seed": fitted.seed, "first": True, "last": True, "try_fused": False,
        "program": trained["program"], "batch_size": trained["batch_size"],
        "members": [{"trial": chosen.trial, "learning_rate": None}],
    }  # fmt: skip
    segments.connect()
    segments.check_policies()
    try:
        segments.share_hosts()
        loader = Loader(segments, table, fitted, order["run"], parsed["nulls"], 1.0, parsed["memory"])
        stats = loader.load()
        encoding.refuse_unusable(stats, parsed["nulls"])
        encoding.refuse_other_shapes(stats, encoders)
        segments.start()
        loader.encode(encoders)
        blobs: Dict[int, bytes] = {}

        def validated(reply: Reply, shard: int) -> None:
            report, blobs[shard] = cells(reply)
            (report,) = report["members"]
            if report["status"] == "failed":
                raise BadData("cannot evaluate", report["error"], "Name another trial, or train the run again.")

        held = [n for n, s in enumerate(stats) if s["validation_rows"]]
        for n in held:
            segments.post_visit(n, {**order, "shard": n}, [chunks], lambda reply, n=n: validated(reply, n))
        segments.wait()
        summary = segments.call(
            SUMMARIZE, {"run": order["run"], "program": order["program"]}, [blobs[shard] for shard in held], numbers=held[:1]
        )[0]
        if summary["status"] == "failed":
            raise BadData("cannot evaluate", summary["error"], "Name another trial, or train the run again.")
    finally:
        segments.rest()
    ordered = sorted(summary["metrics"].items(), key=lambda item: (item[0] != "loss", item[0]))  # jsonb keeps no order
    return [line for name, value in ordered for line in _lines(name, value)]


def _lines(name: str, value: Any) -> List[Tuple[str, Optional[float]]]:
    """A metric of several values, such as a precision at each threshold, has a line for each."""
    if isinstance(value, list):
        return [line for number, item in enumerate(value) for line in _lines("%s[%d]" % (name, number), item)]
    return [(name, value)]


def _refuse_other_columns(table: Source, encoders: dict) -> None:
    """A table that a run is applied to must have columns of the kinds that it was trained on."""
    for feature in encoders["features"]:
        found = kind_of(table.types[feature["name"]])
        if found != feature["kind"]:
            raise WrongColumnType(
                'column "%s" of table %s is of another kind than the run\'s' % (feature["name"], table.name),
                "It is of type %s; the run was trained on a column of kind %s." % (table.types[feature["name"]], feature["kind"]),
                "Cast it in a table of its own, or name another table.",
            )
