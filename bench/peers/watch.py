"""Measures processes and all that they start: CPU time, peak memory, bytes over the loopback device.

    python -m bench.peers.watch SERVER…

`SERVER` is a process id that is there to stay. The processes of a tool are given as lines on stdin while it runs; an empty
line or the end of stdin ends it: it kills what is left of the tool, and answers {"cpu_seconds": used since it began,
"peak_bytes": the largest sum of proportional set sizes at one time, "moved_bytes": received by the loopback device,
headers and whatever else the machine sends itself included, "others_cores": cores that all other processes kept busy in the
mean}. A process counts once it has been seen, even when others adopt it. What one does in its last fifth of a second may be
missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

INTERVAL_SECONDS = 0.2
MEMORY_EVERY = 5  # samples; the kernel walks a process' page tables to tell its memory
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """One process; ids are used again, not so together with the start."""

    pid: int
    started: int


class Now(NamedTuple):
    parent: int
    cpu_seconds: float


def processes() -> dict[Process, Now]:
    """All that run, without those that have ended and wait for their parent."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                now = Now(int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND)
                found[Process(int(name), int(fields[19]))] = now
    return found


def memory(pid: int) -> int:
    """Bytes, memory shared by n processes counted as one n-th; whole where that may not be read; 0 when it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        try:
            rollup = Path("/proc/%d/smaps_rollup" % pid).read_text()
            return 1024 * sum(map(int, re.findall(r"^Pss:\s+(\d+)", rollup, re.M)))
        except PermissionError:
            return int(Path("/proc/%d/statm" % pid).read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def busy_seconds() -> float:
    """CPU time of the whole machine."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


def loopback_bytes() -> int:
    return int(re.search(r"^\s*lo:\s*(\d+)", Path("/proc/net/dev").read_text(), re.M).group(1))


class Watch:
    def __init__(self, servers: list[int]):
        self._roots = set(servers)
        self._tool: set[Process] = set()
        self._seconds: dict[Process, float] = {}
        self.peak_bytes = 0
        self._sample(set())
        self._first = dict(self._seconds)
        self._moved, self._busy, self._begin = loopback_bytes(), busy_seconds(), time.monotonic()

    def _sample(self, tool: set[int]) -> set[Process]:
        """Look once; `tool` has new processes of the tool. Returns all that run and belong to either side."""
        running = processes()
        children: dict[int, list[Process]] = {}
        for process, now in running.items():
            children.setdefault(now.parent, []).append(process)
        mine = [process for process in running if process.pid in self._roots | tool or process in self._seconds]
        self._tool.update(process for process in mine if process.pid in tool)
        for process in mine:  # grows meanwhile
            for child in children.get(process.pid, ()):
                if process in self._tool:
                    self._tool.add(child)
                if child not in mine:
                    mine.append(child)
        self._seconds.update((process, running[process].cpu_seconds) for process in mine)
        return set(mine)

    def sample(self, tool: set[int], with_memory: bool) -> None:
        running = self._sample(tool)
        if with_memory:
            self.peak_bytes = max(self.peak_bytes, sum(memory(process.pid) for process in running))

    def stop(self) -> dict:
        """Kill what is left of the tool, and say what was used."""
        for process in self._sample(set()) & self._tool:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        used = sum(self._seconds.values()) - sum(self._first.values())
        others = busy_seconds() - self._busy - used
        return {
            "cpu_seconds": used, "peak_bytes": self.peak_bytes, "moved_bytes": loopback_bytes() - self._moved,
            "others_cores": max(0.0, others / (time.monotonic() - self._begin)),
        }  # fmt: skip


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: what is left is to be killed all the same
        signal.signal(number, signal.SIG_IGN)
    watch = Watch([int(pid) for pid in sys.argv[1:]])
    print("ready", flush=True)
    count, over = 0, False
    while not over:
        readable, _, _ = select.select([sys.stdin], [], [], INTERVAL_SECONDS)
        lines = os.read(sys.stdin.fileno(), 1 << 16).decode().splitlines() if readable else []
        over = bool(readable) and not (lines and all(lines))
        watch.sample({int(line) for line in lines if line}, over or count % MEMORY_EVERY == 0)
        count += 1
    print(json.dumps(watch.stop()), flush=True)


if __name__ == "__main__":
    main()
