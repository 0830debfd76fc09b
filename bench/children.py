"""Processes that do a part of a search each.

A child imports what it needs, writes "ready", waits for a line, works, and writes what it found as one line of JSON. So
one run gives two figures: with imports and start-up, as a script would take, and without, as in a notebook that is open.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Callable, Optional


@dataclass(frozen=True)
class Outcome:
    """Seconds from the first process' start, and from the word to go, to the last answer; and all answers."""

    cold_seconds: float
    warm_seconds: float
    answers: list[dict]


def run(
    module: str, jobs: list[dict], python: str = sys.executable, started: Optional[Callable[[list[int]], None]] = None
) -> Outcome:
    """Give each of the jobs to a process of `python -m module`; `started` is told their process ids.

    Raises:
        RuntimeError: a child failed; the text is the end of what all wrote to stderr, and its exit status.
    """
    begin = time.perf_counter()
    children = []
    with tempfile.TemporaryFile("w+") as log:
        try:
            for job in jobs:
                command = [python, "-m", module, json.dumps(job)]
                children.append(
                    subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
                )
            if started is not None:
                started([child.pid for child in children])
            for child in children:
                _line(child, log, "ready")
            go = time.perf_counter()
            for child in children:
                child.stdin.write("go\n")
                child.stdin.flush()
            answers = [json.loads(_line(child, log, "{")) for child in children]
            end = time.perf_counter()
        except BaseException:
            for child in children:
                child.kill()
            raise
        finally:
            for child in children:
                child.stdin.close()
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
    return Outcome(end - begin, end - go, answers)


def _line(child: subprocess.Popen, log, start: str) -> str:
    """The child's next line that begins so; libraries write others in between."""
    for line in child.stdout:
        if line.startswith(start):
            return line
    status = child.wait()
    log.seek(0)
    raise RuntimeError("%s\na process ended with status %d" % (log.read()[-3000:], status))


def work(job: Callable[[dict], dict]) -> None:
    """The child's side: call when everything is imported."""
    given = json.loads(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(job(given)), flush=True)
    sys.stdin.read()  # until all have answered: a thread of the job may serve the others
