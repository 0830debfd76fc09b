"""The same search by Cerebro and by what people would export to, from the same tables on the same two cores.

    make bench-peers    # installs the peers into an environment of their own, measures, writes docs/peers.md

Each peer begins with its rows in PostgreSQL and ends when its best configuration is known; start-up and imports count. CPU
time and memory are those of the peer's processes and of the database servers together. A peer that cannot be installed, or
fails, is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Optional

from rich.console import Console

from bench import children, servers
from bench.machine import machine
from bench.search import cerebro, shares
from bench.task import TASKS

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PAGE, BEGIN, END = ROOT / "docs" / "peers.md", "<!-- measured -->", "<!-- /measured -->"
TASK = "mlp"
STYLES = [{}, {"steps_per_execution": 32}]
SYSTEM_PYTHON = "/usr/bin/python3"


def sections() -> dict[str, list[str]]:
    """Requirements by section; `base` is what every peer needs."""
    found: dict[str, list[str]] = {}
    for line in REQUIREMENTS.read_text().splitlines():
        if line.startswith("# ["):
            found[line[3:-1]] = current = []
        elif line and not line.startswith("#"):
            current.append(line)
    return found


def install(home: Path, console: Console) -> tuple[Path, dict[str, str]]:
    """Make the peers' environment, or complete it; gives its Python, and why a section could not be installed."""
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([SYSTEM_PYTHON, "-m", "venv", str(home)], check=True)
    missing = {}
    for name, requirements in sections().items():
        console.print("installing %s" % name)
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-deps", *requirements]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            if name == "base":
                raise SystemExit(done.stderr[-2000:])
            missing[name] = done.stderr.strip().splitlines()[-1][:200]
    return python, missing


class Bench:
    """Runs one search after another over the same table."""

    def __init__(self, cluster: servers.Servers, python: Path, folder: str):
        self.cluster, self.python, self.folder = cluster, str(python), folder
        self.task = TASKS[TASK]
        self.base = {"task": TASK, "urls": cluster.segment_urls}
        self.all = list(range(len(self.task.configurations)))

    def watched(self, search: Callable[[Callable[[list[int]], None]], dict]) -> dict:
        """Run a search; adds what it took to what it found.

        Args:
            search: Is given a function to tell process ids to.
        """
        command = [self.python, "-m", "bench.peers.watch", *map(str, self.cluster.pids)]
        watch = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert watch.stdout.readline() == "ready\n"

        def tell(pids: list[int]) -> None:
            watch.stdin.write("".join("%d\n" % pid for pid in pids))
            watch.stdin.flush()

        try:
            begin = time.perf_counter()
            found = search(tell)
            seconds = time.perf_counter() - begin
        finally:
            used, _ = watch.communicate("\n")
        return {"seconds": seconds, **json.loads(used), **found}

    def peer(self, module: str, jobs: list[dict]) -> dict:
        """The fastest of the styles, by wall time."""

        def once(style: dict) -> dict:
            given = [{**self.base, **job, "style": style} for job in jobs]
            return self.watched(lambda tell: together(children.run("bench.peers." + module, given, self.python, tell).answers))

        return min((once(style) for style in STYLES), key=lambda found: found["seconds"])

    def plain(self, processes: int) -> dict:
        threads = servers.SEGMENTS // processes
        return self.peer("plain", [{"numbers": part, "threads": threads} for part in shares(len(self.all), processes)])

    def optuna(self) -> dict:
        storage = self.cluster.coordinator_url.replace("postgresql://", "postgresql+psycopg://")

        def once(style: dict) -> dict:
            # A study of its own for each attempt; it lies in the database of the table.
            job = {**self.base, "threads": 1, "style": style, "storage": storage, "study": "search_%d" % len(style)}
            run = lambda tell: together(children.run("bench.peers.with_optuna", [job] * 2, self.python, tell).answers)  # noqa: E731
            return self.watched(run)

        return min((once(style) for style in STYLES), key=lambda found: found["seconds"])

    def cerebro(self, warm: bool) -> dict:
        with self.cluster.connect() as connection:
            if warm:
                cerebro(connection, self.task, "search")

            def search(tell: Callable[[list[int]], None]) -> dict:
                cerebro(connection, self.task, "search")
                return {}

            found = self.watched(search)
            best, trials, moved = connection.execute(
                "select (select e.metrics from cerebro.trial t join cerebro.epoch e using (run, trial)"
                "  where t.run = 'search' and e.epoch = t.best_epoch order by t.metric limit 1)"
                ", (select count(*) from cerebro.trial where run = 'search' and state = 'done')"
                # A state goes to the segment for each visit, and comes back from those that train.
                ", (select sum(case v.phase when 'train' then 2 else 1 end * s.bytes) from cerebro.visit v"
                "   join (select i.trial, max(i.bytes) as bytes from (select x.trial, x.seq, sum(octet_length(x.data)) as bytes"
                "     from cerebro_internal.visible_state x join cerebro_internal.visible_run r on r.id = x.run"
                "     where r.name = 'search' group by 1, 2) i group by 1) s using (trial) where v.run = 'search')::bigint"
            ).fetchone()
        return {**found, "best": best, "trials": trials, "copy_bytes": moved}


def together(answers: list[dict]) -> dict:
    """What the processes of one search found, as one."""
    best = min((answer["best"] for answer in answers if answer["best"]), key=lambda found: found["val_loss"])
    return {
        "best": best, "trials": sum(answer["trials"] for answer in answers),
        "copy_bytes": sum(answer["copy_bytes"] for answer in answers),
    }  # fmt: skip


def table(found: dict[str, dict]) -> str:
    """The measured part of the page."""
    lines = [
        "| | wall, s | CPU, s | peak memory, MB | bytes moved, MB | trials | best val_loss | its val_accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        if "failed" in one:
            lines.append("| %s | not measured: %s | | | | | | |" % (name, one["failed"]))
            continue
        lines.append(
            "| %s | %.1f | %.1f | %.0f | %.1f | %d | %.4f | %.4f |"
            % (
                name, one["seconds"], one["cpu_seconds"], one["peak_bytes"] / 1e6, one["copy_bytes"] / 1e6, one["trials"],
                one["best"]["val_loss"], one["best"]["val_accuracy"],
            )
        )  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=ROOT / ".cerebro" / "peers", help="where the peers are installed")
    parser.add_argument("--only", help="measure only those whose name contains this; the page stays as it is")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers are stopped on the way out
    os.environ["PYTHONPATH"] = str(ROOT)
    console = Console(width=150)
    python, missing = install(given.environment, console)
    servers.two_cores()
    found: dict[str, dict] = {}
    with servers.Servers() as cluster, tempfile.TemporaryDirectory(prefix="cerebro-peers-") as folder:
        bench = Bench(cluster, python, folder)
        bench.task.create(cluster)
        with cluster.connect() as connection:
            connection.execute(
                "select cerebro.create_model(%s, %s)", [bench.task.table, json.dumps({"layers": list(bench.task.layers)})]
            )
        searches: dict[str, tuple[Optional[str], Callable[[], dict]]] = {
            "Cerebro, warm session": (None, lambda: bench.cerebro(True)),
            "Cerebro, new session": (None, lambda: bench.cerebro(False)),
            "plain Keras, one after another": (None, lambda: bench.plain(1)),
            "plain Keras, two processes": (None, lambda: bench.plain(2)),
            "Optuna, two processes": ("optuna", bench.optuna),
            "KerasTuner": ("keras-tuner", lambda: bench.peer("with_keras_tuner", [{"threads": 2, "folder": folder + "/tuner"}])),
            "Ray Tune, two workers": ("ray", lambda: bench.peer("with_ray", [{"folder": folder + "/ray"}])),
        }
        for name, (section, search) in searches.items():
            if given.only and given.only not in name:
                continue
            if section in missing:
                found[name] = {"failed": missing[section]}
            else:
                try:
                    found[name] = search()
                except RuntimeError as error:
                    found[name] = {"failed": str(error).strip().splitlines()[-1][:200]}
            console.print(name, found[name], "\n")
    measured = table(found)
    console.print(measured, soft_wrap=True)
    if not given.only:
        about = machine()
        stamp = "On %s, %d cores of an %s, TensorFlow %s, Keras %s:" % (
            time.strftime("%Y-%m-%d"), about["cores_used"], about["cpu"], about["tensorflow"], about["keras"],
        )  # fmt: skip
        page = PAGE.read_text()
        head, tail = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text("%s\n%s\n\n%s\n%s" % (head, stamp, measured, tail))


if __name__ == "__main__":
    main()
