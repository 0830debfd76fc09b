"""Measures processes and all that they start: CPU time and peak memory.

    python -m bench.peers.watch ROOT…

`ROOT` is a process id. More may be given as lines on stdin while it runs; an empty line ends it, and it answers
{"cpu_seconds": used since it began, "peak_bytes": the largest sum of proportional set sizes at one time}. A process' own
children count too, those that others adopt do not. What a process does in its last fifth of a second may be missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys

import psutil

INTERVAL_SECONDS = 0.2


class Watch:
    def __init__(self, roots: list[int]):
        self.roots: list[psutil.Process] = []
        self.add(roots)
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self.peak_bytes = 0
        self.sample(begin=True)

    def add(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(psutil.Error, OSError):  # it has ended already
                self.roots.append(psutil.Process(pid))

    def sample(self, begin: bool = False) -> None:
        processes = set(self.roots)
        for root in self.roots:
            with contextlib.suppress(psutil.Error, OSError):
                processes.update(root.children(recursive=True))
        total = 0
        for process in processes:
            try:
                times = process.cpu_times()
                total += memory(process)
            except (psutil.Error, OSError):  # it has just ended
                continue
            self._last[process] = times.user + times.system
            if begin:
                self._first[process] = self._last[process]
        self.peak_bytes = max(self.peak_bytes, total)

    @property
    def cpu_seconds(self) -> float:
        return sum(self._last.values()) - sum(self._first.values())


def memory(process: psutil.Process) -> int:
    """Bytes, memory shared by n processes counted as one n-th; whole where that may not be read."""
    try:
        return process.memory_full_info().pss
    except psutil.AccessDenied:
        return process.memory_info().rss


def main() -> None:
    watch = Watch([int(pid) for pid in sys.argv[1:]])
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], INTERVAL_SECONDS)
        if readable:
            lines = os.read(sys.stdin.fileno(), 1 << 16).decode().splitlines()
            watch.add([int(line) for line in lines if line])
            if not all(lines) or not lines:
                break
        watch.sample()
    watch.sample()
    print(json.dumps({"cpu_seconds": watch.cpu_seconds, "peak_bytes": watch.peak_bytes}), flush=True)


if __name__ == "__main__":
    main()
