"""The same search by Cerebro and by what people would use instead, from the same tables, in one table.

    make bench-peers                                             # installs the peers, measures, writes docs/peers.md
    PYTHONPATH=. python bench/peers/run.py --home FOLDER NAME…   # some of them, their environment in FOLDER

The search is that of `bench.search`: 16 configurations × 3 epochs, 2 segments of 25,000 rows, two cores. Every peer reads
the rows by binary COPY from the segments, splits 20 % off and trains in its usual way, twice: with Keras' defaults and with
`steps_per_execution=32`; the faster one counts. CPU time and memory are those of the tool's processes and of all three
servers together. Bytes moved: of COPY; for Cerebro states and reports, both ways, from the ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from rich.console import Console
from rich.table import Table

from bench import children, servers
from bench.machine import machine
from bench.search import cerebro, shares
from bench.task import TASKS
from scripts import cluster as embedded

HERE = Path(__file__).resolve().parent
PAGE = embedded.ROOT / "docs" / "peers.md"
TASK = "mlp"
STYLES = ({}, {"steps_per_execution": 32})
BEGIN, END = "<!-- measured by make bench-peers -->", "<!-- end of what was measured -->"


@dataclass(frozen=True)
class Row:
    """What one tool took; ``note`` says why there are no figures."""

    name: str
    seconds: float = 0.0
    warm_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    moved_bytes: int = 0
    val_loss: float = 0.0
    note: str = ""

    @property
    def figures(self) -> list[str]:
        if self.note:
            return [self.note, "", "", "", "", ""]
        return [
            "%.1f" % self.seconds, "%.1f" % self.warm_seconds, "%.1f" % self.cpu_seconds,
            "%.0f" % (self.peak_bytes / 1e6), "%.1f" % (self.moved_bytes / 1e6), "%.4f" % self.val_loss,
        ]  # fmt: skip


COLUMNS = ("wall, s", "without imports, s", "CPU, s", "peak memory, MB", "moved, MB", "best val_loss")


class Watched:
    """CPU time and memory of processes, measured by the peers' environment."""

    def __init__(self, python: str, pids: list[int]):
        command = [python, "-m", "bench.peers.watch", *map(str, pids)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process.stdout.readline()

    def add(self, pids: list[int]) -> None:
        self._process.stdin.write("".join("%d\n" % pid for pid in pids))
        self._process.stdin.flush()

    def stop(self) -> dict:
        answer, _ = self._process.communicate("\n")
        if self._process.returncode:
            raise RuntimeError("the processes could not be watched")
        return json.loads(answer)


def sections() -> dict[str, list[str]]:
    """The pinned packages, by section of requirements.txt."""
    found: dict[str, list[str]] = {}
    for line in (HERE / "requirements.txt").read_text().splitlines():
        section = re.match(r"# \[(.+)\]", line)
        if section:
            found[section.group(1)] = []
        elif found and line:
            found[list(found)[-1]].append(line)
    return found


def install(home: Path) -> dict[str, str]:
    """Make the peers' environment; returns what could not be installed, and why. Without its base nothing can be measured."""
    python = home / "bin/python"
    if not python.exists():
        subprocess.run([embedded.PYTHON, "-m", "venv", home], check=True)
    failed = {}
    for name, packages in sections().items():
        stamp = home / (".installed-" + name)
        text = "\n".join(packages)
        if stamp.exists() and stamp.read_text() == text:
            continue
        done = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], text=True, capture_output=True)
        if done.returncode == 0:
            stamp.write_text(text)
        elif name == "base":
            raise RuntimeError(done.stderr)
        else:
            failed[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    return failed


class Peers:
    """Runs the search by each tool."""

    def __init__(self, python: str, started: servers.Servers):
        self._python, self._servers = python, started
        self._numbers = len(TASKS[TASK].configurations)

    def _jobs(self, style: dict, processes: int, **more) -> list[dict]:
        job = {"task": TASK, "urls": self._servers.segment_urls, "style": style, "threads": servers.SEGMENTS // processes}
        return [{**job, **more, "numbers": numbers} for numbers in shares(self._numbers, processes)]

    def _faster(self, name: str, module: str, jobs: Callable[[dict, str], list[dict]]) -> Row:
        rows = []
        for style in STYLES:
            with tempfile.TemporaryDirectory(prefix="cerebro-peers-") as folder:
                given = jobs(style, folder)
                watched = Watched(self._python, self._servers.pids)
                try:
                    outcome = children.run(module, given, self._python, watched.add)
                finally:
                    used = watched.stop()
            trained = sum(answer["trials"] for answer in outcome.answers)
            if trained < self._numbers:
                raise RuntimeError("%d of %d configurations were trained" % (trained, self._numbers))
            best = min(answer["best"]["val_loss"] for answer in outcome.answers)
            copied = sum(answer["copy_bytes"] for answer in outcome.answers)
            shown = name + ", steps_per_execution=32" * bool(style)
            rows.append(Row(shown, outcome.cold_seconds, outcome.warm_seconds, used["cpu_seconds"], used["peak_bytes"], copied, best))
        return min(rows, key=lambda row: row.seconds)

    def plain(self) -> list[Row]:
        return [self._faster("plain Keras, both cores", "bench.peers.plain", lambda style, _: self._jobs(style, 1))]

    def processes(self) -> list[Row]:
        return [self._faster("plain Keras, two processes", "bench.peers.plain", lambda style, _: self._jobs(style, 2))]

    def optuna(self) -> list[Row]:
        url = self._servers.coordinator_url.replace("postgresql://", "postgresql+psycopg://")
        storage = url + "?options=-csearch_path%3D" + servers.SCHEMA

        def jobs(style: dict, study: str) -> list[dict]:
            command = [Path(self._python).parent / "optuna", "create-study", "--study-name", study, "--storage", storage]
            done = subprocess.run([*command, "--direction", "minimize"], text=True, capture_output=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            return self._jobs(style, 2, storage=storage, study=study)

        return [self._faster("Optuna, two processes", "bench.peers.with_optuna", jobs)]

    def keras_tuner(self) -> list[Row]:
        return [
            self._faster(
                "KerasTuner", "bench.peers.with_keras_tuner", lambda style, folder: self._jobs(style, 1, folder=folder)
            )
        ]

    def ray(self) -> list[Row]:
        return [
            self._faster(
                "Ray Tune, two workers", "bench.peers.with_ray", lambda style, folder: self._jobs(style, 1, folder=folder)
            )
        ]

    def cerebro(self) -> list[Row]:
        task = TASKS[TASK]
        rows = []
        with self._servers.connect() as connection:
            for name in ("cerebro.fit, new session", "cerebro.fit, same session again"):
                watched = Watched(self._python, self._servers.pids)
                try:
                    seconds = cerebro(connection, task, "peers")
                finally:
                    used = watched.stop()
                moved, best = connection.execute(_MOVED, {"run": "peers"}).fetchone()
                rows.append(Row(name, seconds, seconds, used["cpu_seconds"], used["peak_bytes"], moved, best))
        return rows


# A state goes to a segment and comes back for a visit that trains, goes there for one that validates, comes once when made.
_MOVED = """
with run as (select id from cerebro_internal.visible_run where name = %(run)s)
   , state as (
    select s.trial, max(s.bytes) as bytes
    from (
        select trial, seq, sum(octet_length(data)) as bytes
        from cerebro_internal.visible_state where run = (select id from run) group by trial, seq
    ) s group by s.trial
)
   , visit as (
    select v.trial, sum(case v.phase when 'train' then 2 else 1 end) as times, sum(octet_length(v.details::text)) as reports
    from cerebro_internal.visible_visit v where v.run = (select id from run) group by v.trial
)
select sum((visit.times + 1) * state.bytes + visit.reports)::float8
     , (select min(metric) from cerebro.trial where run = %(run)s)
from visit join state on state.trial = visit.trial
"""

# Section of requirements.txt that each needs besides the base.
TOOLS = {
    "cerebro": None, "plain": None, "processes": None, "optuna": "optuna", "keras_tuner": "keras-tuner", "ray": "ray",
}  # fmt: skip


def measured(rows: list[Row], versions: dict[str, str]) -> str:
    """The part of the page that figures make."""
    lines = ["| tool | %s |" % " | ".join(COLUMNS), "|---" * (len(COLUMNS) + 1) + "|"]
    lines += ["| %s | %s |" % (row.name, " | ".join(row.figures)) for row in rows]
    found = machine()
    lines += [
        "",
        "%s, %d cores of an %s, TensorFlow %s, Keras %s, %s; load average %.1f at the end."
        % (
            time.strftime("%Y-%m-%d"), found["cores_used"], found["cpu"], found["tensorflow"], found["keras"],
            ", ".join("%s %s" % item for item in versions.items()), os.getloadavg()[0],
        ),
    ]  # fmt: skip
    ours = [row for row in rows if row.name.startswith("cerebro") and not row.note]
    lines += ["", "Better than `cerebro.fit` in a new session, in these figures:", ""]
    for attribute, unit, scale in (
        ("seconds", "s", 1.0), ("cpu_seconds", "s of CPU", 1.0), ("peak_bytes", "MB at most", 1e-6), ("moved_bytes", "MB moved", 1e-6),
        ("val_loss", "val_loss", 1.0),
    ):  # fmt: skip
        for row in rows:
            if ours and row not in ours and not row.note and getattr(row, attribute) < getattr(ours[0], attribute):
                pair = (getattr(row, attribute) * scale, getattr(ours[0], attribute) * scale)
                lines.append("- %s: %.4g against %.4g %s" % (row.name, *pair, unit))
    return "\n".join([*(lines if lines[-1] else lines + ["- none"]), ""])


def write(text: str) -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text("%s%s\n\n%s\n%s%s" % (before, BEGIN, text, END, rest.split(END)[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", metavar="NAME", help="of %s; all by default" % ", ".join(TOOLS))
    parser.add_argument("--home", type=Path, default=embedded.default_home(embedded.Cluster().account) / "peers")
    given = parser.parse_args()
    if set(given.tools) - set(TOOLS):
        parser.error("NAME is one of %s" % ", ".join(TOOLS))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = given.home.resolve()
    failed = install(home)
    servers.two_cores()
    rows: list[Row] = []
    with servers.Servers() as started:
        task = TASKS[TASK]
        task.create(started)
        with started.connect() as connection:
            definition = json.dumps({"layers": list(task.layers)})
            connection.execute("select cerebro.create_model(%s, %s)", [task.table, definition])
        peers = Peers(str(home / "bin/python"), started)
        for name, section in TOOLS.items():
            if given.tools and name not in given.tools:
                continue
            if section in failed:
                rows.append(Row(name, note="not installed: " + failed[section]))
                continue
            try:
                rows += getattr(peers, name)()
            except RuntimeError as error:  # one that fails leaves the others
                rows.append(Row(name, note="failed: " + (str(error).strip().splitlines() or ["?"])[-1]))
    table = Table("tool", *COLUMNS)
    for row in rows:
        table.add_row(row.name, *row.figures)
    console = Console()
    (console if console.is_terminal else Console(width=150)).print(table)
    if not given.tools:
        pinned = dict(line.split("==") for packages in sections().values() for line in packages)
        write(measured(rows, {name: pinned[name] for name in ("optuna", "keras-tuner", "ray")}))
        print("written to %s" % PAGE)


if __name__ == "__main__":
    main()
