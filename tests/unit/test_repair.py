"""What goes on while segments are waited for, and how often a lost link is opened again; with stand-ins for sessions."""

from __future__ import annotations

import types

import pytest

from cerebro_udf.coordinator import progress, segments
from cerebro_udf.coordinator.links import Address, Link
from cerebro_udf.coordinator.loop import Loop
from cerebro_udf.coordinator.options import Options
from cerebro_udf.coordinator.scheduler import Order
from cerebro_udf.coordinator.segments import LinkBroken
from cerebro_udf.coordinator.stopping import Watch
from cerebro_udf.coordinator.trials import Trial, Unit
from cerebro_udf.errors import TooManyConnections

ADDRESS = Address("far", "127.0.0.1", "1", "db", "me", "secret")
VISIT = Order(0, 1, "train", 1)


class Stand:
    """Two segments, of which the second is lost; a ledger that does nothing at once.

    Args:
        retries: ``max_retries``.
        members: How many trials move together.
    """

    def __init__(self, retries: int, members: int = 1):
        self.loaded, self.published, self.requeued, self.crashes, self.ended, self.again = [], [], [], [], [], []
        self.links = [types.SimpleNamespace(number=k, busy=False, progress=None) for k in range(2)]
        self.shards = [types.SimpleNamespace(segment="s%d" % k) for k in range(2)]
        self.link = types.SimpleNamespace(busy=False)  # the ledger's
        self.meanwhile = None
        self.crashed = True  # whether the server has recovered when it is back
        self.progress_line = progress.Progress(self, self)
        study = types.SimpleNamespace(exhausted=True, finish=lambda *told: None, verdicts=lambda: [])
        self.loop = Loop(
            types.SimpleNamespace(notice=lambda text: None), None, {"name": "r", "epochs": 1, "trials": None}, self, self, self,
            study, None, ("loss", "min"), [(1, 0), (1, 0)], retries, self.reload, self.progress_line,
        )  # fmt: skip
        self.progress_line.details = self.loop._details
        self.trials = [Trial(number, {}, {}, Watch(Options(), ("loss", "min"))) for number in range(members)]
        self.unit = self.loop._units[0] = Unit(self.trials)

    def reload(self, number: int) -> bool:
        self.loaded.append(number)
        self.links[number].busy = True
        self.meanwhile()
        return self.crashed

    def progress(self, details: dict, then) -> None:
        self.published.append((details, then))

    def requeue(self, order: Order) -> None:
        self.requeued.append(order)

    def remaining_seconds(self):
        return None

    def add(self, unit: int, epoch: int, done: list) -> None:
        """As the scheduler's, like the next three."""

    def drop(self, unit: int) -> None:
        pass

    def done(self, order: Order, seconds: float) -> None:
        pass

    def epoch_ready(self, unit: int) -> bool:
        return False

    def trial_crashes(self, trial: int, crashes: int) -> None:
        """As the ledger's, like the next two."""
        self.crashes.append((trial, crashes))

    def trial_end(self, trial: int, state: str, reason: str) -> None:
        self.ended.append((trial, state, reason))

    def validate_again(self, trial: int, epoch: int) -> None:
        self.again.append((trial, epoch))

    def lose(self, unit: Unit | None = None, **how) -> None:
        """Lose a link that works for a trial."""
        self.loop.visits.current[1] = (VISIT, unit or self.unit)
        self.lose_again(**how)

    def lose_again(self, announced: bool = False) -> None:
        self.loop._repair(self.links[1], LinkBroken("s1", ADDRESS, "gone", announced))


def test_link_that_is_lost_again_while_it_loads_is_opened_again_and_its_visit_is_ordered_once():
    stand = Stand(2)
    stand.lose()
    stand.lose_again()
    assert stand.loaded == [1, 1]
    assert stand.requeued == [VISIT]
    assert stand.crashes == [(0, 1)], "it was not at work the second time"


def test_trial_fails_when_its_worker_has_died_more_often_than_is_allowed():
    stand = Stand(1)
    stand.lose()
    assert stand.trials[0].status == "waiting" and stand.requeued == [VISIT]
    stand.lose()
    reason = 'its worker died 2 times in epoch 1, last on segment "s1": gone (SQLSTATE 08006)'
    assert stand.ended == [(0, "failed", reason)] and stand.trials[0].error == reason
    assert stand.crashes == [(0, 1), (0, 2)] and stand.requeued == [VISIT]


def test_epoch_that_is_done_clears_a_trial():
    stand = Stand(1)
    stand.lose()
    stand.trials[0].end_epoch(1, {"loss": 1.0}, 1.0, "min", False)
    stand.lose()
    assert stand.ended == [] and stand.crashes == [(0, 1), (0, 1)]


def test_group_is_dissolved_before_anyone_is_blamed():
    stand = Stand(0, members=2)
    stand.unit.accumulators = {0: {0: b"", 1: b""}}  # it was being validated
    stand.lose()
    assert stand.ended == stand.crashes == stand.requeued == []
    assert [[trial.number for trial in unit.members] for unit in stand.loop._units.values()] == [[0], [1]]
    assert stand.again == [(0, 1), (1, 1)]
    stand.lose()  # what was still under way for the group
    assert stand.ended == [] and len(stand.loop._units) == 2
    stand.lose(stand.loop._units[1])
    assert [(number, state) for number, state, _ in stand.ended] == [(1, "failed")]


@pytest.mark.parametrize("how", ["another session crashed", "the link was cut", "nobody was at work"])
def test_session_that_is_lost_by_no_fault_of_a_trial_counts_against_the_run(how):
    stand = Stand(1)
    stand.crashed = how != "the link was cut"
    lose = stand.lose_again if how == "nobody was at work" else stand.lose
    announced = how == "another session crashed"
    lose(announced=announced)
    stand.loop._made(VISIT, stand.unit, 1.0, False)  # one that was made in between: not in a row
    lose(announced=announced)
    with pytest.raises(LinkBroken, match="broke"):
        lose(announced=announced)
    assert stand.loaded == [1, 1, 1] and stand.crashes == stand.ended == []


def test_progress_is_published_while_a_link_is_opened_again():
    stand = Stand(1)
    stand.lose()
    ((details, _),) = stand.published
    assert [line.get("phase") for line in details["segments"]] == [None, "loading"]


def test_progress_waits_for_the_earlier_word_to_be_written(monkeypatch):
    stand = Stand(1)
    clock = iter(range(100, 200))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    for _ in range(3):
        stand.progress_line.publish()
    assert len(stand.published) == 1
    stand.published[0][1]()  # written
    stand.progress_line.publish()
    assert len(stand.published) == 2


def test_a_session_is_replaced_once_the_server_has_freed_the_place_of_the_one_before(monkeypatch):
    monkeypatch.setattr(segments, "REOPEN_PAUSE_SECONDS", 0.0)
    tried = []

    def open_again(key):
        tried.append(key)
        if len(tried) < 3:
            raise TooManyConnections("no connection left")
        return Link(ADDRESS, "test")

    engine = types.SimpleNamespace(address=lambda server: ADDRESS)
    few = segments.Segments(None, {}, None, engine, [types.SimpleNamespace(server="far")])
    few.links.append(Link(ADDRESS, "test"))
    few.links[0].facts = {"boot_id": "host", "cores": 8, "threads": 1, "memory_total": 2**30}
    monkeypatch.setattr(few, "call", lambda *_: [{"others": 0, "memory_available": 2**29}])
    monkeypatch.setattr(few, "_open", open_again)
    few.share_hosts()
    assert tried == [(ADDRESS, 0)] * 3 and few.links[0].facts["threads"] == 8
