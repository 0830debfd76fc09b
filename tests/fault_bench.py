"""One small run, fault after fault: what the user sees, what is left running, whether the run ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import random
import re
from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Iterator, Optional

import numpy as np
import psycopg
import pytest

from tests import outcome
from tests.cluster import poll_until
from tests.faults import armed
from tests.proxy import Proxy
from tests.psql import Gone, Warm

SIZES = [40, 27]
TRIALS, EPOCHS = 2, 2
FAR = 2  # the node that faults hit; its line goes through a proxy
LEFT_SECONDS = 10.0
COLUMNS = {"x": "real[]", "kind": "integer"}
MODEL = {
    "layers": [
        {"Dense": {"units": 16, "activation": "relu"}},
        {"Dropout": {"rate": 0.25}},
        {"Dense": {"units": "$classes", "activation": "softmax"}},
    ]
}
OPTIONS = {
    "epochs": EPOCHS, "batch_size": 4, "optimizer": {"Adam": {}}, "seed": 99, "order": "fixed", "validation": 0.25, "fuse": False,
    "search": {"space": {"learning_rate": [0.003, 0.03]}},
}  # fmt: skip

# Point -> its node, and how often a run comes to it there at least.
POINTS = {
    "claimed": (0, 1), "ready": (0, 1), "order-sent": (0, 16), "state-returned": (0, 16), "committed": (0, 8), "epoch-end": (0, 4),
    "before-done": (0, 1), "loading": (FAR, 1), "order-received": (FAR, 8), "mid-visit": (FAR, 4), "trained": (FAR, 4),
    "validation": (FAR, 4),
}  # fmt: skip
MIDDLE = ("order-sent", "state-returned", "committed", "mid-visit", "order-received", "trained", "validation")

# Sessions that work for the role and are not idle, hold a lock or a transaction, or are a ledger's or a submitted run's.
_LEFT = (
    "select application_name, state, query from pg_stat_activity a where usename = %s and pid <> all(%s)"
    " and (application_name = 'cerebro ledger' or application_name like 'cerebro run%%' or state <> 'idle' or xact_start is not null"
    " or exists (select 1 from pg_locks l where l.pid = a.pid))"
)


@dataclass(frozen=True)
class Fault:
    """One row of the table of docs/reliability.md.

    Attributes:
        name: What happens to the installation.
        points: Where a run stands when it does, any of them; none: before the call. The first one is what `make test` takes.
        strike: Given the scene, does it; where it goes on after its `yield`, it mends what has to be mended before the run goes on.
        sees: SQLSTATE of what the user's statement ends with; `gone` where the user's session is lost.
        shows: What the message contains.
        becomes: What happens, in words: "the run stands as …" where it has to be resumed.
        then: How it goes on: `itself`, `resume`, or `fit` where the call left no run.
        options: Of the run, besides.
        setting: A statement in the user's session before the call.
        own_table: Whether it takes a table of its own.
        needs: Says what this machine lacks for it, None if nothing.
        call: `fit` or `submit`.
    """

    name: str
    points: tuple[str, ...]
    strike: Callable[[Scene], ContextManager]
    sees: str
    shows: str
    becomes: str
    then: str = "resume"
    options: dict = field(default_factory=dict)
    setting: Optional[str] = None
    own_table: bool = False
    needs: Callable[[], Optional[str]] = lambda: None
    call: str = "fit"


class Scene:
    """A run that stands at a point, for a fault to strike."""

    def __init__(self, bench: Bench, fault: Fault, run: str, table: Any):
        self.bench, self.cluster, self.fault, self.run, self.table = bench, bench.cluster, fault, run, table
        self.psql, self.far = bench.psql, bench.cluster.node(FAR)
        self.pid = 0  # of the backend that waits at the point
        self.text = self.sqlstate = ""
        self._ended = False

    @property
    def part(self) -> str:
        """The table that the far segment reads."""
        return '"%s"."%s"' % (self.table.schema, self.table.parts[1])

    def worker(self) -> int:
        """The process id of this session's worker on the far node."""
        query = (
            "select pid from pg_stat_activity where usename = %s and application_name = any(%s) and backend_start >= %s"
            " order by backend_start desc limit 1"
        )
        names = ["cerebro worker", *("cerebro waits at " + point for point in POINTS)]
        return self.far.execute(query, [self.bench.role, names, self.bench.since])[0][0]

    def ledger(self) -> int:
        query = "select pid from pg_stat_activity where usename = %s and application_name = 'cerebro ledger'"
        return self.cluster.coordinator.execute(query, [self.bench.role])[0][0]

    def release(self) -> None:
        """Have whoever waits at the point go on."""
        for node in (self.cluster.coordinator, self.far):
            node.execute("delete from cerebro_internal.fault where run = %s", [self.run])

    def end(self) -> None:
        """Take what the user's statement ends with."""
        if self._ended:
            return
        self._ended = True
        try:
            answer = self.psql.answer()
            self.text, self.sqlstate = answer.text, answer.sqlstate
        except Gone as gone:
            self.text, self.sqlstate = str(gone), "gone"
            self.bench.lose_psql()

    def seen(self) -> str:
        """The line that tells the user, without names and numbers that differ from run to run."""
        told = [re.search(r"^.*%s.*$" % words, self.text, re.MULTILINE) for words in ("ERROR:", "trying again", "server closed")]
        text = next((found.group() for found in told if found), "")
        text = re.sub(r"^.*?(ERROR|NOTICE|WARNING|FATAL): +(cerebro: )?", "", text)
        text = re.sub(r"run_[0-9a-f]{8}", "RUN", text)
        return re.sub(r'127\.0\.0\.1:\d+|port \d+|process \d+|(?<=")pg_tblspc/[^"]*', "…", text).replace(r"|", r"\|").strip()


class Bench(Warm):
    """A table, a model, and the outcome of a run that nothing happened to."""

    def __init__(self, session):
        self.session, self.cluster, self.role = session, session.cluster, session.role
        self.since = self.cluster.node(FAR).execute("select clock_timestamp()")[0][0]
        self.proxy = Proxy(self.cluster.node(FAR).port)
        self._route(self.proxy.port)
        x = np.random.default_rng(5).normal(size=(sum(SIZES), 3)).astype(np.float32)
        self._rows = {"x": x, "kind": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}
        self.table, self.model = self.new_table(), session.model(MODEL)
        self.seen: dict[str, str] = {}  # fault -> what the user saw
        scene = Scene(self, None, session.name(), self.table)
        self._call(scene, "fit", {})
        scene.end()
        assert scene.sqlstate == "00000", scene.text
        self.reference = outcome.everything(self.cluster, scene.run)
        assert len(self.reference[0]) == TRIALS * EPOCHS

    def close(self) -> None:
        self.lose_psql()
        self._route(self.cluster.node(FAR).port)
        self.proxy.close()

    def _route(self, port: int) -> None:
        self.cluster.coordinator.execute("alter server segment_%d options (set port '%d')" % (FAR, port))

    def new_table(self):
        return self.session.sharded(COLUMNS, self._rows, sizes=SIZES)

    def rows_of(self, table, shard: int) -> list[tuple]:
        first = sum(SIZES[:shard])
        rows = slice(first, first + SIZES[shard])
        return [(x, kind, shard) for x, kind in zip(self._rows["x"][rows].tolist(), self._rows["kind"][rows].tolist())]

    def _call(self, scene: Scene, call: str, options: dict) -> None:
        scene.psql.send(
            "select from cerebro." + call + "(%s, %s::text::regclass, %s, 'kind', '{x}', %s)",
            scene.run, scene.table.name, self.model, json.dumps({**OPTIONS, **options}),
        )  # fmt: skip

    def check(self, fault: Fault, point: Optional[str] = None, occurrence: int = 1) -> None:
        """Have a fault strike a run at a point; raises AssertionError if anything of the run is lost, or left."""
        lacks = fault.needs()
        if lacks:
            pytest.skip(lacks)
        try:
            self._check(fault, point or (fault.points[0] if fault.points else None), occurrence)
        except BaseException:  # the next fault finds a session of its own
            self.proxy.go()
            self.lose_psql()
            raise

    def _check(self, fault: Fault, point: Optional[str], occurrence: int) -> None:
        scene = Scene(self, fault, self.session.name(), self.new_table() if fault.own_table else self.table)
        if fault.setting:
            assert scene.psql.ask(fault.setting).sqlstate == "00000"
        with contextlib.ExitStack() as mended:
            with self._standing(scene, point, occurrence):
                mended.enter_context(fault.strike(scene))
            scene.end()
            assert (scene.sqlstate, fault.shows in scene.text) == (fault.sees, True), (scene.sqlstate, scene.text)
            self.seen.setdefault(fault.name, scene.seen())
            self._nothing_left()
        if fault.setting and self._psql is not None:
            self.psql.ask("reset all")
        self._go_on(fault, scene)
        self._check_outcome(scene.run)
        self.psql.ask("select cerebro.drop_run(%s)", scene.run)

    @contextlib.contextmanager
    def _standing(self, scene: Scene, point: Optional[str], occurrence: int) -> Iterator[None]:
        """Within, the run waits at the point; or the call is made at the end, where there is none."""
        if point is None:
            yield
            self._call(scene, scene.fault.call, scene.fault.options)
            return
        node = self.cluster.node(POINTS[point][0])
        with armed(node, scene.run, point, occurrence) as reached:
            self._call(scene, scene.fault.call, scene.fault.options)
            scene.pid = reached()
            yield

    def _nothing_left(self) -> None:
        """Within some seconds no session works for the role, on any node."""
        own = [] if self._psql is None else [self.psql.backend]

        def idle() -> bool:
            try:
                return not any(node.execute(_LEFT, [self.role, own if node.number == 0 else []]) for node in self.cluster.nodes)
            except psycopg.OperationalError:  # a server that is coming back
                return False

        poll_until(idle, LEFT_SECONDS)

    def _go_on(self, fault: Fault, scene: Scene) -> None:
        found = self.cluster.coordinator.execute("select state from cerebro.run where run = %s", [scene.run])
        state = found[0][0] if found else None
        if fault.then == "itself":
            assert state == "done"
        elif fault.then == "fit":
            assert state is None
            scene.psql = self.psql
            self._call(scene, "fit", {})
            answer = self.psql.answer()
            assert answer.sqlstate == "00000", answer.text
        else:
            assert fault.becomes.startswith("the run stands as %s" % state)
            answer = self.psql.ask("select from cerebro.resume(%s)", scene.run)
            assert answer.sqlstate == "00000", answer.text

    def _check_outcome(self, run: str) -> None:
        """The run is done, exactly once, and equals the one that nothing happened to, bit for bit."""
        visits = outcome.visits(self.cluster, run)
        expected = [(t, e, k) for t in range(TRIALS) for e in range(1, EPOCHS + 1) for k in range(len(SIZES))]
        assert sorted((trial, epoch, shard) for trial, epoch, shard, *_ in visits) == expected
        assert {row[4] for row in visits} == {"done"}
        assert outcome.everything(self.cluster, run) == self.reference

    def moment(self, draw: random.Random, fault: Fault) -> tuple[Optional[str], int]:
        """A point at which this fault may strike, and the how manyth time that a run comes there."""
        if not fault.points:
            return None, 1
        point = draw.choice(fault.points)
        return point, draw.randint(1, POINTS[point][1])


