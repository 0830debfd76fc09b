"""Which runs go when there are many: beyond the last n, an age or a size. Those that an alias needs, or that somebody drives, stay."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from cerebro_udf.catalog import TRAINING, Ledger, refuse_read_only
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.engines import engine_for
from cerebro_udf.errors import CerebroError, InvalidArgument, counted
from cerebro_udf.interrupts import Pulse

UNTOUCHABLE = ("55006", "2BP01")  # driven by a session, or behind an alias, since it was looked at
NAMED_RUNS = 10  # in a message


def beyond(runs: List[dict], kept: Dict[str, Any]) -> List[dict]:
    """Return the runs that go, oldest first. Pure.

    Args:
        runs: ``{"id", "name", "seconds" (since it ended), "bytes", "held" (it stays, and counts)}``, newest first.
        kept: ``runs`` (how many stay), ``age`` (s) and ``bytes``, each None where it bounds nothing.
    """
    gone: List[dict] = []
    count = size = 0
    for run in runs:
        fits = (
            (kept["runs"] is None or count < kept["runs"])
            and (kept["age"] is None or run["seconds"] <= kept["age"])
            and (kept["bytes"] is None or size + run["bytes"] <= kept["bytes"])
        )
        if fits or run["held"]:
            count, size = count + 1, size + run["bytes"]
        else:
            gone.append(run)
    return gone[::-1]


def drop(ledger: Ledger, runs: List[dict]) -> List[dict]:
    """Drop runs, each at once and for good; return those that nobody has come to need meanwhile."""
    dropped = []
    for run in runs:
        try:
            if ledger.drop(run["id"]):
                dropped.append(run)
        except CerebroError as error:
            if error.sqlstate not in UNTOUCHABLE:
                raise
    return dropped


def apply(plpy, ledger: Ledger, kept: Optional[Dict[str, Any]]) -> None:
    """Do as a run's option says, once it is done: of runs of its owner, source and model the older ones go."""
    if kept is None:
        return
    gone = drop(ledger, beyond(ledger.alike(ledger.run), kept))
    if gone:
        names = ", ".join('"%s"' % run["name"] for run in gone[:NAMED_RUNS]) + (", …" if len(gone) > NAMED_RUNS else "")
        plpy.notice("retention: dropped %s (%s): %s" % (counted(len(gone), "earlier run"), megabytes(gone), names))


def megabytes(runs: List[dict]) -> str:
    return "%.1f MB" % (sum(run["bytes"] for run in runs) / 2**20)


def drop_runs(plpy, pattern: str, options: dict) -> List[tuple]:
    """Drop the caller's own runs of names that are LIKE a pattern, beyond what the options keep.

    Returns:
        (run, seconds since it ended, bytes) of each that went, or would go, oldest first.
    """
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise InvalidArgument("argument pattern ends with half an escape", "A backslash stands with what follows it.", "Write it twice.")
    kept = run_options.parse_retention(options)
    refuse_read_only(plpy, *TRAINING)
    ledger = Ledger(plpy, Pulse(plpy), engine_for(plpy))
    try:
        gone = beyond(ledger.named(pattern), kept)
        if not kept["dry_run"]:
            gone = drop(ledger, gone)
    finally:
        ledger.close()
    return [(run["name"], "%f seconds" % run["seconds"], run["bytes"]) for run in gone]
