"""The same search by Cerebro and by what people would use instead, from the same tables, in one table.

    make bench-peers                                             # installs the peers, measures, writes docs/peers.md
    PYTHONPATH=. python bench/peers/run.py --home FOLDER NAME…   # some of them, their environment in FOLDER

The search is that of `bench.search`: 16 configurations × 3 epochs, 2 segments of 25,000 rows, two cores. Every peer reads
the rows by binary COPY from the segments, splits 20 % off and trains, twice: as its documentation shows with Keras'
defaults, and in its faster way, with `steps_per_execution=32`. Each once.
CPU time and memory are those of the tool's processes and of all three servers together. Bytes moved: all that the loopback
device took meanwhile, so the same is counted for all, rows, states, protocols and ledgers.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Optional

from bench import children, search, servers
from bench.machine import machine
from bench.task import TASKS
from scripts import cluster as embedded

HERE = Path(__file__).resolve().parent
PAGE = embedded.ROOT / "docs" / "peers.md"
TASK = "mlp"
FASTER = {"steps_per_execution": 32}
FASTER_NAME = "steps_per_execution=32"
LIMIT_SECONDS = 240  # for one tool, once
REASON_LENGTH = 160
BEGIN, END = "<!-- measured by make bench-peers -->", "<!-- end of what was measured -->"


@dataclass(frozen=True)
class Row:
    """What one tool took; ``note`` says why there are no figures.

    Attributes:
        cold_seconds: From rows in the database to the best model known, starts and imports included.
        warm_seconds: The same when everything has been imported.
        others_cores: Cores that the rest of the machine kept busy meanwhile, in the mean; small, or the row is worth little.
    """

    name: str
    cold_seconds: Optional[float] = None
    warm_seconds: Optional[float] = None
    cpu_seconds: Optional[float] = None
    peak_bytes: Optional[int] = None
    moved_bytes: Optional[int] = None
    val_loss: Optional[float] = None
    others_cores: float = 0.0
    note: str = ""

    @property
    def figures(self) -> list[str]:
        if self.note:
            return [self.note, *[""] * (len(COLUMNS) - 1)]
        values = [getattr(self, column.attribute) for column in COLUMNS]
        return ["" if value is None else column.text(value) for column, value in zip(COLUMNS, values)]


@dataclass(frozen=True)
class Column:
    title: str
    attribute: str
    form: str
    scale: float = 1.0

    def text(self, value: float) -> str:
        return self.form % (value * self.scale)


COLUMNS = (
    Column("cold, s", "cold_seconds", "%.1f"), Column("warm, s", "warm_seconds", "%.1f"), Column("CPU, s", "cpu_seconds", "%.1f"),
    Column("peak memory, MB", "peak_bytes", "%.0f", 1e-6), Column("moved, MB", "moved_bytes", "%.1f", 1e-6),
    Column("best val_loss", "val_loss", "%.4f"),
)  # fmt: skip


class Watched:
    """What processes use, measured by a process apart."""

    def __init__(self, pids: list[int]):
        command = [sys.executable, "-m", "bench.peers.watch", *map(str, pids)]
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


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread when it takes longer."""

    def late(*_) -> None:
        raise TimeoutError("took more than %d s" % seconds)

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def reason(text: str) -> str:
    """The line of an error's text that says most, fit for a cell of a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    return (errors or lines)[-1].replace("|", "/")[:REASON_LENGTH]


def attempt(name: str, work: Callable[[], list[Row]]) -> list[Row]:
    """The rows of one tool; one that fails, however it does, leaves the others."""
    try:
        with limit(LIMIT_SECONDS):
            return work()
    except Exception as error:
        return [Row(name, note="failed: " + reason(str(error) or type(error).__name__))]


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
            failed[name] = reason(done.stderr)
    return failed


@dataclass(frozen=True)
class Side:
    """One way of one tool: its script, and the jobs of its processes, given a folder for what they write."""

    name: str
    module: str
    jobs: Callable[[str], list[dict]]


class Peers:
    """Runs the search by each tool."""

    def __init__(self, python: Path, started: servers.Servers):
        self._python, self._servers = python, started
        self._numbers = len(TASKS[TASK].configurations)

    def _jobs(self, style: dict, processes: int, **more) -> list[dict]:
        job = {"task": TASK, "urls": self._servers.segment_urls, "style": style, "threads": servers.SEGMENTS // processes}
        return [{**job, **more, "numbers": numbers} for numbers in search.shares(self._numbers, processes)]

    def _both(self, name: str, module: str, jobs: Callable[[dict, str], list[dict]]) -> list[Side]:
        return [
            Side(name, module, lambda folder: jobs({}, folder)),
            Side("%s, %s" % (name, FASTER_NAME), module, lambda folder: jobs(FASTER, folder)),
        ]

    def plain(self) -> list[Side]:
        return self._both("plain Keras, one process", "plain", lambda style, _: self._jobs(style, 1))

    def processes(self) -> list[Side]:
        return self._both("plain Keras, two processes", "plain", lambda style, _: self._jobs(style, 2))

    def optuna(self) -> list[Side]:
        url = self._servers.coordinator_url.replace("postgresql://", "postgresql+psycopg://")
        storage = url + "?options=-csearch_path%3D" + servers.SCHEMA

        def jobs(style: dict, study: str) -> list[dict]:
            command = [self._python.parent / "optuna", "create-study", "--study-name", study, "--storage", storage]
            done = subprocess.run([*command, "--direction", "minimize"], text=True, capture_output=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            return self._jobs(style, 2, storage=storage, study=study)

        return self._both("Optuna, two processes", "with_optuna", jobs)

    def keras_tuner(self) -> list[Side]:
        def parallel(folder: str) -> list[dict]:
            more = {"folder": folder, "port": embedded.free_port()}
            chief = self._jobs(FASTER, 1, **more)[0]
            workers = self._jobs(FASTER, 2, **more)
            return [{**chief, "id": "chief"}, *({**job, "id": "worker%d" % n} for n, job in enumerate(workers))]

        module = "with_keras_tuner"
        return [
            Side("KerasTuner, one process", module, lambda folder: self._jobs({}, 1, folder=folder, port=None, id="")),
            Side("KerasTuner, chief and two workers, " + FASTER_NAME, module, parallel),
        ]

    def ray(self) -> list[Side]:
        module = "with_ray"
        return [
            Side("Ray Tune, two CPUs", module, lambda folder: self._jobs({}, 1, folder=folder, reuse=False)),
            Side(
                "Ray Tune, two CPUs, reuse_actors=True, " + FASTER_NAME, module,
                lambda folder: self._jobs(FASTER, 1, folder=folder, reuse=True),
            ),
        ]  # fmt: skip

    def run(self, side: Side) -> list[Row]:
        """Do the search. What the processes have written is removed, and they are gone, whatever happens."""
        module = "bench.peers." + side.module
        # Libraries come from the page cache for all alike; one that cannot be imported fails here.
        imported = subprocess.run([self._python, "-c", "import " + module], text=True, capture_output=True)
        if imported.returncode:
            raise RuntimeError(imported.stderr)
        with tempfile.TemporaryDirectory(prefix="cerebro-peers-") as folder:
            given = side.jobs(folder)
            watched = Watched(self._servers.pids)
            try:
                outcome = children.run(module, given, str(self._python), watched.add)
            finally:
                used = watched.stop()
        trained = sum(answer["trials"] for answer in outcome.answers)
        if trained < self._numbers:
            raise RuntimeError("%d of %d configurations were trained" % (trained, self._numbers))
        best = min(answer["best"]["val_loss"] for answer in outcome.answers if answer["best"])
        return [Row(side.name, outcome.cold_seconds, outcome.warm_seconds, val_loss=best, **used)]


def cerebro(started: servers.Servers) -> list[Row]:
    """In a new session, then in the same one again."""
    rows = []
    with started.connect() as connection:
        for name, times in (("new session", "cold_seconds"), ("same session again", "warm_seconds")):
            watched = Watched(started.pids)
            try:
                seconds = search.cerebro(connection, TASKS[TASK], "peers")
            finally:
                used = watched.stop()
            best = connection.execute("select min(metric) from cerebro.trial where run = 'peers'").fetchone()[0]
            rows.append(Row("cerebro.fit, " + name, val_loss=best, **{times: seconds}, **used))
    return rows


# Section of requirements.txt that each needs besides the base.
TOOLS = {"plain": "base", "processes": "base", "optuna": "optuna", "keras_tuner": "keras-tuner", "ray": "ray", "cerebro": None}


def better(rows: list[Row]) -> list[str]:
    """For each column, who does better there than Cerebro: one list item each."""
    lines = []
    for column in COLUMNS:
        ours = [row for row in rows if row.name.startswith("cerebro") and getattr(row, column.attribute) is not None]
        if not ours:
            continue
        bar = getattr(ours[0], column.attribute)
        others = [row for row in rows if row not in ours and getattr(row, column.attribute) is not None]
        ahead = sorted(
            (value, row.name) for row in others for value in [getattr(row, column.attribute)] if value < bar
        )
        names = "; ".join("%s %s" % (name, column.text(value)) for value, name in ahead)
        lines.append("- %s, Cerebro %s: %s" % (column.title, column.text(bar), names or "nobody"))
    return lines


def measured(rows: list[Row], versions: dict[str, str]) -> str:
    """The part of the page that figures make."""
    lines = ["| tool | %s |" % " | ".join(column.title for column in COLUMNS), "|---" * (len(COLUMNS) + 1) + "|"]
    lines += ["| %s | %s |" % (row.name, " | ".join(row.figures)) for row in rows]
    found = machine()
    disturbed = max(rows, key=lambda row: row.others_cores)
    lines += [
        "",
        "%s, %d cores of an %s, TensorFlow %s, Keras %s, %s; each once. The rest of the machine, what measures included, kept "
        "%.2f cores busy at most (beside %s)."
        % (
            time.strftime("%Y-%m-%d"), found["cores_used"], found["cpu"], found["tensorflow"], found["keras"],
            ", ".join("%s %s" % item for item in versions.items()), disturbed.others_cores, disturbed.name,
        ),
    ]  # fmt: skip
    return "\n".join([*lines, "", "Ahead of Cerebro in these figures (in a new session, where there are two):", "", *better(rows), ""])


def write(text: str, page: Path = PAGE) -> None:
    """Put it between the marks of the page."""
    before, rest = page.read_text("utf-8").split(BEGIN)
    page.write_text("%s%s\n\n%s\n%s%s" % (before, BEGIN, text, END, rest.split(END)[1]), "utf-8")


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
        peers = Peers(home / "bin/python", started)
        for name, section in TOOLS.items():
            if given.tools and name not in given.tools:
                continue
            if name == "cerebro":
                rows += attempt("cerebro.fit", lambda: cerebro(started))
                continue
            for side in getattr(peers, name)():
                if section in failed:
                    rows.append(Row(side.name, note="not installed: " + failed[section]))
                else:
                    rows += attempt(side.name, functools.partial(peers.run, side))
    pinned = dict(line.split("==") for packages in sections().values() for line in packages)
    text = measured(rows, {name: pinned[name] for name in ("optuna", "keras-tuner", "ray")})
    print(text)
    if not given.tools:
        write(text)
        print("written to %s" % PAGE)


if __name__ == "__main__":
    main()
