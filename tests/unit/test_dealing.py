"""Rows of views on their way through the coordinator, without any server."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Iterator

import pytest

from cerebro_udf.coordinator.dealing import Deal
from cerebro_udf.errors import DiskFull
from cerebro_udf.segment import reading
from cerebro_udf.segment.overflow import FOLDER, Overflow


class Segments:
    """Two workers, of which the first reads these rows."""

    links = (None, None)

    def __init__(self, rows: Iterator[bytes]):
        self._rows, self.counts = rows, []

    def post(self, number: int, command: str, then) -> None:
        found = []
        if command.startswith("fetch "):
            self.counts.append(int(command.split()[1]))
            found = [(row,) for _, row in zip(range(self.counts[-1]), self._rows)]
        then(SimpleNamespace(rows=found))

    def wait(self, numbers: list) -> None:
        pass


class Limits:
    """Of temporary files the server has none."""

    @staticmethod
    def execute(query: str):
        return SimpleNamespace(nrows=lambda: 0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / FOLDER).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


def rows(count: int, width: int) -> Iterator[bytes]:
    return (b'"%d"' % k + b" " * width for k in range(count))


@pytest.mark.parametrize("count, width", [(700, 1), (30, 10**6)])
def test_rows_are_dealt_one_by_one_whatever_is_fetched_at_once(count, width):
    segments = Segments(rows(count, width))
    deal = Deal(Limits, segments, "select")
    dealt = [[int(row) for text in deal.rows(number) for row in json.loads(text)] for number in (0, 1)]
    assert dealt == [list(range(0, count, 2)), list(range(1, count, 2))]
    assert segments.counts[0] == 1 and max(segments.counts) * width <= reading.FETCH_BYTES


def test_a_disk_that_is_full_is_told_as_such(monkeypatch):
    monkeypatch.setattr(Overflow, "file", lambda self: open("/dev/full", "w+b"))
    with pytest.raises(DiskFull) as caught:
        Deal(Limits, Segments(rows(3, 1)), "select")
    assert caught.value.sqlstate == "53100" and "materialized view" in caught.value.hint
