"""Measure Cerebro against plain tools, and say for each figure whether it meets its goal.

    make bench                                    # everything
    PYTHONPATH=. python bench/run.py loading hops # some of it

Starts servers of its own in a temporary folder and removes them. Prints a table and writes
bench/results/TIME.json: {"ratios": [{"name", "value", "goal", "met", "spread", …}], "load", "machine"}.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import (
    beyond,
    explain,
    hops,
    loading,
    predicting,
    preparing,
    schedule,
    search,
    servers,
    simulation,
    sparse,
    visits,
)
from bench.machine import machine
from bench.rounds import Measure

RESULTS = Path(__file__).resolve().parent / "results"
# How often each is repeated; a round of the schedule is a whole search.
PARTS = {
    "visits": (visits, 7), "loading": (loading, 9), "hops": (hops, 5), "schedule": (schedule, 3), "explain": (explain, 3),
    "predicting": (predicting, 7), "beyond": (beyond, 3), "preparing": (preparing, 7),
    "sparse": (sparse, 3), "simulation": (simulation, 3),
    "search": (search, 2),
}  # fmt: skip


def shown(measures: list[Measure]) -> Table:
    table = Table("measure", "value", "goal", "met", "interquartile range", "made of (medians, seconds)")
    for measure in measures:
        goal = "" if measure.goal is None else "%s %g %s" % ("≥≤"[not measure.least], measure.goal, measure.unit)
        met = "" if measure.goal is None else "yes" if measure.met else "[bold red]no"
        sides = ", ".join("%s %.4f" % side for side in measure.seconds.items())
        table.add_row(
            measure.name, "%.3g %s" % (measure.value, measure.unit), goal, met, "%.2g" % measure.spread, sides
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of %s; all by default" % ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, help="how often each measure is repeated")
    given = parser.parse_args()
    if set(given.parts) - set(PARTS):
        parser.error("PART is one of %s" % ", ".join(PARTS))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers are stopped on the way out
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    servers.two_cores()
    before = os.getloadavg()
    measures: list[Measure] = []
    with servers.Servers() as cluster:
        for name in given.parts or PARTS:
            module, rounds = PARTS[name]
            found = module.measure(cluster, given.rounds or rounds)
            console.print(shown(found))
            measures += found
    load = {"before": before, "after": os.getloadavg()}
    if len(given.parts or PARTS) > 1:
        console.print(shown(measures))
    console.print("load average %.2f before, %.2f after" % (load["before"][0], load["after"][0]))
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / time.strftime("%Y-%m-%dT%H%M%S.json")
    result = {"ratios": [measure.to_json() for measure in measures], "load": load, "machine": machine()}
    file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    console.print("written to %s" % file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else str(file))


if __name__ == "__main__":
    main()
