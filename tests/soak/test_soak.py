"""What only shows after hours of use: programs that pile up, calls that are cancelled again and again, crash upon crash.

`make soak` runs it; `make test` does not come here.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Callable

import numpy as np
import psycopg
import pytest

from cerebro_udf.coordinator.sharing import growth_bytes
from cerebro_udf.segment import memory
from tests import outcome
from tests.cluster import poll_until
from tests.faults import kill_backend

SIZES = [60, 41]
MODEL = {
    "layers": [
        {"Dense": {"units": "$units", "activation": "relu"}},
        {"Dropout": {"rate": 0.25}},
        {"Dense": {"units": "$classes", "activation": "softmax"}},
    ]
}
MB = 2**20
RUNS, PROGRAMS_PER_RUN = 20, 10
PROGRAM_LEAST_BYTES = 5 * MB  # of what one keeps for ever
OVERSHOOT_BYTES = 128 * MB  # a worker is looked at after a visit, so what one visit takes may come on top
COORDINATOR_BYTES = 48 * MB  # may be kept after the first of the runs
CYCLES = 32
CYCLES_BYTES = 48 * MB  # may be kept by any session after all of them
KILLED_RUNS, KILLS_PER_RUN = 5, 4
SEED = 11
WAIT_SECONDS = 120.0
SAMPLE_SECONDS = 0.1


class Lab:
    def __init__(self, session):
        self.session, self.cluster = session, session.cluster
        x = np.random.default_rng(5).normal(size=(sum(SIZES), 3)).astype(np.float32)
        rows = {"x": x, "kind": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}
        self.table = session.sharded({"x": "real[]", "kind": "integer"}, rows, sizes=SIZES)
        self.model = session.model(MODEL)

    def call(self, **options) -> tuple[str, list]:
        given = {"validation": 0.25, "batch_size": 16, "seed": 3, **options}
        return self.session.call(self.table, self.model, "kind", ["x"], **given)

    def backends(self, application: str, *numbers: int) -> list[tuple[int, int]]:
        """(node, process id) of the role's sessions that call themselves so."""
        query = "select pid from pg_stat_activity where usename = %s and application_name like %s order by backend_start, pid"
        return [
            (number, pid)
            for number in numbers or range(len(self.cluster.nodes))
            for (pid,) in self.cluster.node(number).execute(query, [self.session.role, application + "%"])
        ]

    def workers(self) -> list[tuple[int, int]]:
        return self.backends("cerebro worker")

    @property
    def driver(self) -> int:
        return self.session.conn.info.backend_pid

    def done(self, run: str) -> int:
        """Visits of a run that a committed state covers."""
        query = "select count(*) from cerebro.visit where run = %s and owner = %s and state = 'done'"
        return self.cluster.coordinator.execute(query, [run, self.session.role])[0][0]

    def state(self, run: str) -> str | None:
        query = "select state from cerebro.run where run = %s and owner = %s"
        found = self.cluster.coordinator.execute(query, [run, self.session.role])
        return found[0][0] if found else None

    def wait_for(self, run: str, visits: int, ended: Callable[[], bool]) -> None:
        """Until the run is there, and has done so many visits, or none more will come."""
        poll_until(lambda: ended() or self.state(run) and self.done(run) >= visits, WAIT_SECONDS)

    def start(self, pool: ThreadPoolExecutor, statement: str, values: list) -> Future:
        return pool.submit(self.session.conn.execute, statement, values)


@pytest.fixture(scope="module")
def lab(session):
    return Lab(session)


def resident(pid: int, key: str = "RssAnon") -> int:
    """Bytes that a process has for itself, or `VmHWM`: the most it ever had, shared ones included; 0 when it is gone."""
    try:
        lines = Path("/proc/%d/status" % pid).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


def sizes(lab: Lab) -> dict[int, int]:
    """Bytes that the driver's session has (0) and the worker of each segment."""
    return {0: resident(lab.driver), **{number: resident(pid) for number, pid in lab.workers()}}


class Watch:
    """Samples the peak of every worker session that there is, until it is left."""

    def __init__(self, lab: Lab):
        self.lab, self.peaks = lab, {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._left.wait(SAMPLE_SECONDS):
            for worker in self.lab.workers():
                self.peaks[worker] = max(self.peaks.get(worker, 0), resident(worker[1], "VmHWM"))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._left.set()
        self._thread.join()


def test_hundreds_of_programs_in_one_session_take_bounded_memory(lab, record_property):
    driver, begun = lab.driver, time.monotonic()
    fresh = after_first = 0
    with Watch(lab) as watch:
        for number in range(RUNS):
            first = 2 + number * PROGRAMS_PER_RUN
            space = {"units": list(range(first, first + PROGRAMS_PER_RUN))}
            statement, values = lab.call(epochs=2, search={"space": space})
            lab.session.conn.execute(statement, values)
            assert lab.state(values[0]) == "done"
            if number == 0:
                fresh, after_first = max(resident(pid, "VmHWM") for _, pid in lab.workers()), resident(driver)
        kept = resident(driver) - after_first
    allowed = growth_bytes(memory.total_and_available()[0], len(SIZES))
    record_property("programs in one session", RUNS * PROGRAMS_PER_RUN)
    record_property("MB a worker has after %d programs" % PROGRAMS_PER_RUN, fresh // MB)
    record_property("MB peak of a worker (allowed to grow by %d)" % (allowed // MB), max(watch.peaks.values()) // MB)
    record_property("worker sessions that it took on %d segments" % len(SIZES), len(watch.peaks))
    record_property("MB peak of the coordinator's session", resident(driver, "VmHWM") // MB)
    record_property("MB that it has come to keep after the first run", kept // MB)
    record_property("seconds", round(time.monotonic() - begun))
    assert lab.driver == driver
    assert max(watch.peaks.values()) <= fresh + allowed + OVERSHOOT_BYTES
    assert kept <= COORDINATOR_BYTES
    if RUNS * PROGRAMS_PER_RUN * PROGRAM_LEAST_BYTES > allowed:
        assert len(watch.peaks) > len(SIZES), "no session was replaced"


def test_fits_that_are_cancelled_again_and_again_leave_nothing(lab, record_property):
    """Told while shards load, while programs are made, or after some visits."""
    draw, begun = random.Random(SEED), time.monotonic()
    search = {"space": {"units": [4, 6], "learning_rate": [0.01, 0.02]}}
    locks = "select count(*) from pg_locks where locktype = 'advisory' or pid = %s and relation is not null"
    lab.session.conn.execute(*lab.call(epochs=1, search=search))
    poll_until(lab.cluster.idle_backends, WAIT_SECONDS)
    before = sizes(lab)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(CYCLES):
            statement, values = lab.call(epochs=1_000_000, search=search)
            running = lab.start(pool, statement, values)
            lab.wait_for(values[0], draw.choice([0, 1, 3, 20]), running.done)
            lab.cluster.coordinator.execute("select pg_cancel_backend(%s)", [lab.driver])
            assert isinstance(running.exception(WAIT_SECONDS), psycopg.errors.QueryCanceled)
            if lab.state(values[0]):  # told before the first visit, none is left
                lab.session.conn.execute("select cerebro.drop_run(%s)", [values[0]])
    # A worker that was told within an indivisible step is given up, ends itself, and is begun anew by the next fit.
    lab.session.conn.execute(*lab.call(epochs=1, search=search))
    poll_until(lab.cluster.idle_backends, WAIT_SECONDS)
    left = len(lab.backends("cerebro")) - len(SIZES)
    after = sizes(lab)
    grown = max(after[number] - before[number] for number in before)
    record_property("fits that were cancelled", CYCLES)
    record_property("sessions left by them, beside the %d warm workers" % len(SIZES), left)
    record_property("MB that a session has come to keep meanwhile", grown // MB)
    record_property("seconds", round(time.monotonic() - begun))
    assert left == 0 and [number for number, _ in lab.workers()] == [1, 2]
    assert [node.execute(locks, [lab.driver])[0] for node in lab.cluster.nodes] == [(0,)] * len(lab.cluster.nodes)
    assert grown <= CYCLES_BYTES


class Killed:
    """A run whose backends are killed; where the caller's statement ends with them, another one resumes it."""

    def __init__(self, lab: Lab, pool: ThreadPoolExecutor, statement: str, values: list):
        self.lab, self.pool, self.run, self.resumed = lab, pool, values[0], 0
        self.running = lab.start(pool, statement, values)

    def resume(self) -> None:
        self.running = self.lab.start(self.pool, "select cerebro.resume(%s)", [self.run])
        self.resumed += 1

    def ended(self) -> bool:
        """Whether the run is over; a statement that saw more crashes than `max_retries` is followed by another."""
        if self.running.done() and getattr(self.running.exception(), "sqlstate", None) == "08006":
            self.resume()
        return self.running.done()

    def find(self, victim: str) -> list[tuple[int, int]]:
        """(node, process id); a session that was killed a moment ago may not have been replaced yet."""
        if victim == "driver":
            return [(0, self.lab.driver)]
        return self.lab.backends("cerebro ledger", 0) if victim == "ledger" else self.lab.backends("cerebro worker", int(victim[-1]))

    def kill(self, victim: str) -> None:
        number, pid = poll_until(lambda: self.find(victim), WAIT_SECONDS)[0]
        kill_backend(self.lab.cluster.node(number), pid)
        if number == 0:  # its server ends every session
            assert isinstance(self.running.exception(WAIT_SECONDS), psycopg.OperationalError)
            self.lab.session.connect()
            self.resume()


def test_runs_whose_backends_are_killed_again_and_again_end_as_if_none_had_been(lab, record_property):
    draw, begun = random.Random(SEED), time.monotonic()
    options = {"epochs": 5, "batch_size": 1, "order": "fixed", "search": {"space": {"units": [5, 7], "learning_rate": [0.003, 0.03]}}}
    statement, values = lab.call(**options)
    lab.session.conn.execute(statement, values)
    reference = outcome.everything(lab.cluster, values[0])
    total = lab.done(values[0])
    killed, resumed = Counter(), 0
    with ThreadPoolExecutor(1) as pool:
        for _ in range(KILLED_RUNS):
            run = Killed(lab, pool, *lab.call(**options))
            for visits in sorted(draw.sample(range(1, total * 3 // 4), KILLS_PER_RUN)):
                lab.wait_for(run.run, visits, run.ended)
                assert not run.running.done(), "nothing is left to kill: %r" % run.running.exception()
                victim = draw.choice(["driver", "ledger", "worker of segment 1", "worker of segment 2"])
                run.kill(victim)
                killed[victim] += 1
            poll_until(run.ended, WAIT_SECONDS)
            run.running.result()
            resumed += run.resumed
            assert outcome.everything(lab.cluster, run.run) == reference
    record_property("kills in %d runs: %s" % (KILLED_RUNS, ", ".join("%d of a %s" % (n, who) for who, n in sorted(killed.items()))),
                    sum(killed.values()))
    record_property("times that a run was resumed", resumed)
    record_property("seconds", round(time.monotonic() - begun))
