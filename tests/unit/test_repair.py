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


class Stand:
    """Two segments, of which the second is lost; a ledger that does nothing at once."""

    def __init__(self, retries: int):
        self.loaded, self.published, self.requeued = [], [], []
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

    def reload(self, number: int) -> None:
        self.loaded.append(number)
        self.links[number].busy = True
        self.meanwhile()

    def progress(self, details: dict, then) -> None:
        self.published.append((details, then))

    def requeue(self, order: Order) -> None:
        self.requeued.append(order)

    def remaining_seconds(self):
        return None

    def lose(self) -> None:
        """Lose a link that works for a trial."""
        watch = Watch(Options(), ("loss", "min"))
        unit = self.loop._units[0] = Unit([Trial(0, {}, {}, 0, watch)])
        self.loop.visits.current[1] = (Order(0, 1, "train", 1), unit)
        self.lose_again()

    def lose_again(self) -> None:
        self.loop._repair(self.links[1], LinkBroken("s1", ADDRESS, "gone"))


def test_link_that_is_lost_again_while_it_loads_takes_a_further_retry_and_its_visit_is_ordered_once():
    stand = Stand(2)
    stand.lose()
    stand.lose_again()
    assert stand.loaded == [1, 1]
    assert stand.requeued == [Order(0, 1, "train", 1)]


def test_no_more_retries_than_were_allowed():
    stand = Stand(1)
    stand.lose()
    with pytest.raises(LinkBroken, match="broke"):
        stand.lose_again()
    assert stand.loaded == [1]


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
