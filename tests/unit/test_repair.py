"""What goes on while segments are waited for, and how often a lost link is opened again; with stand-ins for sessions."""

from __future__ import annotations

import types

import pytest

from cerebro_udf.coordinator import progress
from cerebro_udf.coordinator.links import Address
from cerebro_udf.coordinator.loop import Loop
from cerebro_udf.coordinator.options import Options
from cerebro_udf.coordinator.scheduler import Order
from cerebro_udf.coordinator.segments import LinkBroken
from cerebro_udf.coordinator.stopping import Watch
from cerebro_udf.coordinator.trials import Trial, Unit

ADDRESS = Address("far", "127.0.0.1", "1", "db", "me", "secret")


class Stand:
    """Two segments, of which the second is lost; a ledger that does nothing at once."""

    def __init__(self, breaks: int, retries: int):
        self.breaks = breaks
        self.opened, self.loaded, self.published, self.requeued = [], [], [], []
        self.links = [types.SimpleNamespace(number=k, busy=False, progress=None) for k in range(2)]
        self.shards = [types.SimpleNamespace(segment="s%d" % k) for k in range(2)]
        self.link = types.SimpleNamespace(busy=False)  # the ledger's
        self.meanwhile = None
        self.progress_line = progress.Progress(self, self)
        self.loop = Loop(
            types.SimpleNamespace(notice=lambda text: None), None, {"name": "r", "epochs": 1, "trials": None}, self, self, self,
            types.SimpleNamespace(exhausted=True), None, ("loss", "min"), [(1, 0), (1, 0)], retries, self.reload, self.progress_line,
        )  # fmt: skip
        self.progress_line.details = self.loop._details

    def reopen(self, number: int) -> None:
        self.opened.append(number)
        self.meanwhile()

    def reload(self, number: int) -> None:
        self.breaks -= 1
        if self.breaks >= 0:
            raise LinkBroken("s1", ADDRESS, "gone again")
        self.loaded.append(number)

    def progress(self, details: dict, then) -> None:
        self.published.append((details, then))

    def requeue(self, order: Order) -> None:
        self.requeued.append(order)

    def remaining_seconds(self):
        return None

    def repair(self) -> None:
        watch = Watch(Options(), ("loss", "min"))
        unit = self.loop._units[0] = Unit([Trial(0, {}, {}, 0, watch)])
        self.loop._current[1] = (Order(0, 1, "train", 1), unit)
        self.loop._repair(self.links[1], LinkBroken("s1", ADDRESS, "gone"))


@pytest.mark.parametrize("breaks, retries", [(0, 1), (1, 2), (2, 3)])
def test_link_that_is_lost_again_while_it_is_repaired_takes_a_further_retry(breaks, retries):
    stand = Stand(breaks, retries)
    stand.repair()
    assert stand.loaded == [1] and len(stand.opened) == breaks + 1
    assert stand.requeued == [Order(0, 1, "train", 1)]


def test_no_more_retries_than_were_allowed():
    stand = Stand(2, 2)
    with pytest.raises(LinkBroken, match="broke"):
        stand.repair()
    assert len(stand.opened) == 2 and stand.requeued == []


def test_progress_is_published_while_a_link_is_opened_again():
    stand = Stand(0, 1)
    stand.repair()
    ((details, _),) = stand.published
    assert [line.get("phase") for line in details["segments"]] == [None, "loading"]


def test_progress_waits_for_the_earlier_word_to_be_written(monkeypatch):
    stand = Stand(0, 1)
    clock = iter(range(100, 200))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    for _ in range(3):
        stand.progress_line.publish()
    assert len(stand.published) == 1
    stand.published[0][1]()  # written
    stand.progress_line.publish()
    assert len(stand.published) == 2
