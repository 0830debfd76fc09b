"""What a waiting call makes of a run that goes away between two looks at it."""

from __future__ import annotations

import pytest

from cerebro_udf.coordinator import background
from cerebro_udf.errors import NotFound


class Dropped:
    """A ledger whose run is dropped once it was seen done."""

    def latest(self, name):
        return {"id": 1}

    def standing(self, number):
        return "done"

    def trials(self, number):
        return []

    def record(self, number):
        return None

    def close(self):
        pass


def test_run_that_is_dropped_while_it_is_waited_for_is_not_found(monkeypatch):
    for name, made in (("Pulse", None), ("engine_for", None), ("Ledger", Dropped())):
        monkeypatch.setattr(background, name, lambda *arguments, made=made: made)
    with pytest.raises(NotFound) as caught:
        background.wait(None, "r", None)
    assert caught.value.sqlstate == "42704" and caught.value.message == 'run "r" does not exist any more' and caught.value.hint
