"""A whole search, from rows in the database to the best model known, against plain Keras on the same cores.

16 configurations (4 learning rates × 2 widths × 2 dropouts) × 3 epochs of an MLP 100-width-width-2, batch 256, on 2 segments
of 25,000 rows of which 20 % are held out; and 8 learning rates of a tiny MLP 20-16-2, batch 32, 2 × 10,000 rows.

The comparators read all rows by binary COPY into arrays and call `Model.fit` with `validation_data` for one configuration
after another: in one process on both cores, or in two processes of one thread that share the configurations out. Each in
its fastest style: Keras' defaults (without XLA, as on any machine without a GPU) and `steps_per_execution=32` are tried on
two configurations first. Cold counts imports and start-up on both sides (for Cerebro a new session, whose workers start
TensorFlow); warm counts neither (for Cerebro the second search of a session, whose programs have been traced).

The ideal pair, shown beside: two processes of one thread that have the rows in memory, each with half of the architectures,
which it builds and traces once and trains in a loop inside TensorFlow. What it takes is a bound for whoever trains one
configuration after another on each core, and says how far the goals can be met on this machine.

Memory of a worker: the most it had in the searches, without the server's shared memory, over a worker that has started
TensorFlow and nothing else plus the arrays of its shard.
"""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Optional

from bench import children
from bench.rounds import Measure, interleave, ratio
from bench.servers import SCHEMA, SEGMENTS, Servers
from bench.task import TASKS, Task

PLAIN, IDEAL = "bench.peers.plain", "bench.in_graph"
STYLES = [{}, {"steps_per_execution": 32}]
PILOT = 2  # configurations that each style is tried on
SAMPLE_SECONDS = 0.1


def shares(count: int, processes: int) -> list[list[int]]:
    return [list(range(first, count, processes)) for first in range(processes)]


def keras(urls: list[str], name: str, processes: int, style: dict, configurations: Optional[int] = None) -> children.Outcome:
    """The search in plain Keras, by one process on both cores or by two of one thread."""
    count = configurations or len(TASKS[name].configurations)
    jobs = [
        {"task": name, "urls": urls, "numbers": numbers, "threads": SEGMENTS // processes, "style": style}
        for numbers in shares(count, processes)
    ]
    return children.run(PLAIN, jobs)


def fastest(urls: list[str], name: str, processes: int) -> dict:
    """The style that is fastest on a few configurations."""
    return min(
        STYLES, key=lambda style: keras(urls, name, processes, style, PILOT * processes).warm_seconds
    )


def cerebro(connection, task: Task, run: str) -> float:
    """Seconds of the search in this session."""
    begin = time.perf_counter()
    rows = connection.execute(
        "select trial, metric, params from cerebro.fit(%s, %s, %s, 'y', '{x}', %s)",
        [run, "%s.%s" % (SCHEMA, task.table), task.table, json.dumps(task.options)],
    ).fetchall()
    seconds = time.perf_counter() - begin
    if len(rows) != len(task.configurations) or rows[0][1] is None:
        raise RuntimeError("the search found no best model")
    return seconds


def own_bytes(pid: int) -> int:
    """What a process has resident, without memory shared with other backends; 0 when it is gone."""
    try:
        status = Path("/proc/%d/status" % pid).read_text()
    except OSError:
        return 0
    return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|File):\s+(\d+)", status, re.M)))


class Peak(threading.Thread):
    """Looks at processes until it is told to stop; `bytes` is the most that one of them had."""

    def __init__(self, pids: list[int]):
        super().__init__(daemon=True)
        self._pids, self._over = pids, threading.Event()
        self.bytes = 0

    def run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, *map(own_bytes, self._pids))

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.bytes


def workers(servers: Servers) -> list[int]:
    """Sessions of the role on the first segment, apart from the one that asks."""
    with servers.connect(1) as segment:
        query = "select pid from pg_stat_activity where usename = current_user and pid <> pg_backend_pid() order by backend_start"
        return [pid for (pid,) in segment.execute(query)]


def bare_bytes(servers: Servers) -> int:
    """A worker with TensorFlow, before it has read or trained anything."""
    with servers.connect(1) as segment:
        segment.execute("select cerebro_internal.worker_start('{\"threads\": 1}')")
        return own_bytes(segment.info.backend_pid)


def measure(servers: Servers, rounds: int) -> list[Measure]:
    found = []
    for name, task in TASKS.items():
        task.create(servers)
        with servers.connect() as connection:
            connection.execute(
                "select cerebro.create_model(%s, %s)", [task.table, json.dumps({"layers": list(task.layers)})]
            )
        found += (_mlp if name == "mlp" else _tiny)(servers, rounds)
    return found


def _mlp(servers: Servers, rounds: int) -> list[Measure]:
    task, urls = TASKS["mlp"], servers.segment_urls
    styles = {processes: fastest(urls, "mlp", processes) for processes in (1, 2)}
    cold: dict[str, list[float]] = {}
    memory = []
    bare = bare_bytes(servers)

    def plain(label: str, processes: int) -> float:
        outcome = keras(urls, "mlp", processes, styles[processes])
        cold.setdefault(label, []).append(outcome.cold_seconds)
        return outcome.warm_seconds

    def ours() -> float:
        with servers.connect() as connection:
            cold.setdefault("cerebro", []).append(cerebro(connection, task, "search"))
            peak = Peak(workers(servers))
            peak.start()
            seconds = cerebro(connection, task, "search")
            memory.append(peak.stop())
        return seconds

    def ideal() -> float:
        jobs = [{"task": "mlp", "numbers": numbers} for numbers in shares(len(task.space["width"]) * len(task.space["dropout"]), 2)]
        outcome = children.run(IDEAL, jobs)
        cold.setdefault("ideal pair", []).append(outcome.cold_seconds)
        return outcome.warm_seconds

    sides = {
        "one after another": lambda: plain("one after another", 1), "two processes": lambda: plain("two processes", 2),
        "cerebro": ours, "ideal pair": ideal,
    }  # fmt: skip
    warm = interleave(sides, rounds, warm_ups=0)
    shard = task.rows * (task.elements + 1) * 4
    figures = [
        ratio("search, warm: plain Keras one after another", warm, "one after another", "cerebro", 5.0, True),
        ratio("search, warm: two processes of plain Keras", warm, "two processes", "cerebro", 3.0, True),
        ratio("search, cold: plain Keras one after another", cold, "one after another", "cerebro", 3.0, True),
        ratio("search, cold: two processes of plain Keras", cold, "two processes", "cerebro", 2.0, True),
        ratio("search, warm: an ideal pair without a database", warm, "ideal pair", "cerebro", None, True),
        ratio("search, cold: an ideal pair without a database", cold, "ideal pair", "cerebro", None, True),
        Measure(
            "memory of a worker over TensorFlow and its shard", [used / (bare + shard) for used in memory], 1.3, False, "",
            {"MB": max(memory) / 1e6, "TensorFlow's MB": bare / 1e6, "shard's MB": shard / 1e6},
        ),
    ]  # fmt: skip
    return figures


def _tiny(servers: Servers, rounds: int) -> list[Measure]:
    task, urls = TASKS["tiny"], servers.segment_urls
    style = fastest(urls, "tiny", 1)
    with servers.connect() as connection:
        cerebro(connection, task, "tiny")
        sides = {
            "one after another": lambda: keras(urls, "tiny", 1, style).warm_seconds,
            "cerebro": lambda: cerebro(connection, task, "tiny"),
        }
        seconds = interleave(sides, rounds, warm_ups=0)
    name = "search of 8 tiny MLPs at batch 32, warm: plain Keras"
    return [ratio(name, seconds, "one after another", "cerebro", 8.0, True)]
