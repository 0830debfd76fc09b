"""One visit against `Model.fit` on the same arrays, one thread each, first traces apart.

Twice: as a worker's process does it (`bench.trainer`, which says what is timed on each side), and through SQL, where a
client calls `worker_visit` on a segment with the state as parameter and has the new state as result; transport, JSON
and the state codec are all in it.

Keras compiles with XLA by default, a visit without. `Model.fit` is measured both ways, and the goal is against the one
that is faster on this machine; the other ratio is shown without a goal. So is the ratio of CPU times, which a busy machine
disturbs less: there a process of several busy threads, as `Model.fit` is, gets more than its share.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Callable

import psycopg

from bench.rounds import Measure, interleave, ratio
from bench.servers import SCHEMA, Servers
from bench.workloads import SEED, WORKLOADS, Workload
from cerebro_udf import compilation, definition, encoders

RUN = "bench"


class Trainer:
    """A `bench.trainer` process; called with side and workload it answers the seconds of one epoch.

    Attributes:
        cpu: CPU seconds of each epoch so far, by side and workload.
    """

    def __init__(self):
        self.cpu: dict[tuple[str, str], list[float]] = {}
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.trainer"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log,
        )  # fmt: skip

    def __call__(self, side: str, workload: str) -> float:
        self._process.stdin.write("%s %s\n" % (side, workload))
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(self._log.read())
        seconds, cpu = map(float, answer.split())
        self.cpu.setdefault((side, workload), []).append(cpu)
        return seconds

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *error) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


def specification(table: str, validation: float) -> dict:
    """What `worker_load` is asked for: x and y of one of the benchmark's tables."""
    return {
        "run": RUN, "seed": SEED, "nulls": "error", "validation": validation, "memory_bytes": None,
        "reads": [{"relation": "%s.%s" % (SCHEMA, table), "where": None, "columns": {"x": "x", "y": "y"}}],
        "features": [{"name": "x", "column": "x", "type": "real[]", "kind": "array", "encoder": "none"}],
        "labels": [{"name": "y", "output": None, "type": "integer", "task": None}],
    }  # fmt: skip


def in_sql(segment: psycopg.Connection, table: str, workload: Workload) -> Callable[[], float]:
    """Load the rows into a worker; the result makes one visit there."""

    def ask(call: str, *arguments) -> tuple:
        places = ", ".join("%b" if isinstance(a, bytes) else "%s::jsonb" for a in arguments)
        given = [a if isinstance(a, bytes) else json.dumps(a) for a in arguments]
        with segment.cursor(binary=True) as cursor:
            return cursor.execute(
                "select * from cerebro_internal.worker_%s(%s)" % (call, places), given
            ).fetchone()

    spec = specification(table, validation=0.0)
    stats = ask("load", spec)[0]
    stored = encoders.merge(spec["features"], spec["labels"], [stats], "error", 0.0)
    ask("encode", {"run": RUN, "encoders": stored})
    program = {
        "definition": definition.bind({"layers": list(workload.layers)}, {}),
        "optimizer": compilation.check_optimizer("adam"), "loss": None, "metrics": None,
        "encoders": encoders.model_part(stored),
    }  # fmt: skip
    state = ask("init", {"program": program, "seed": SEED})[1]
    order = {
        "run": RUN, "epoch": 1, "phase": "train", "shard": 0, "seed": SEED, "program": program,
        "batch_size": workload.batch_size, "first": True, "last": True, "try_fused": False,
    }  # fmt: skip

    def visit() -> float:
        nonlocal state
        started = time.perf_counter()
        member = {"trial": 0, "learning_rate": 0.001, "dropout": [], "bytes": len(state)}
        report, state = ask("visit", {**order, "members": [member]}, state)
        if report["members"][0]["status"] != "ok":
            raise RuntimeError(report["members"][0]["error"])
        return time.perf_counter() - started

    return visit


WARM_UPS = 2
FITS = {"Model.fit": "fit", "Model.fit, XLA": "fit-xla"}


def measure(servers: Servers, rounds: int) -> list[Measure]:
    found = []
    with Trainer() as keras, Trainer() as program, servers.connect(1) as segment:
        segment.execute("select cerebro_internal.worker_start('{\"threads\": 1}')")
        for number, workload in enumerate(WORKLOADS.values()):
            table = "visit_%d" % number
            servers.table(table, [workload.arrays()])
            sides = {name: partial(keras, side, workload.name) for name, side in FITS.items()}
            sides["visit"] = partial(program, "program", workload.name)
            sides["visit in SQL"] = in_sql(segment, table + "_1", workload)
            seconds = interleave(sides, rounds, WARM_UPS)
            slower, faster = sorted(FITS, key=lambda name: -statistics.median(seconds[name]))
            for fit, goal in ((faster, workload.goal), (slower, None)):
                for side in ("visit", "visit in SQL"):
                    name = "%s: %s, against %s" % (side, workload.name, fit)
                    found.append(ratio(name, seconds, fit, side, goal, True))
            cpu = {
                faster: keras.cpu[FITS[faster], workload.name][WARM_UPS:],
                "visit": program.cpu["program", workload.name][WARM_UPS:],
            }
            name = "visit: %s, against %s, CPU time" % (workload.name, faster)
            found.append(ratio(name, cpu, faster, "visit", None, True))
    return found
