"""Publishes where a run stands, for other sessions to see."""

from __future__ import annotations

import time
from typing import Callable

from cerebro_udf.catalog import Ledger
from cerebro_udf.coordinator.links import pump
from cerebro_udf.coordinator.segments import Segments

PROGRESS_SECONDS = 0.5


class Progress:
    """Writes to the ledger twice a second, whatever the segments are waited for; never while an earlier word is queued.

    Args:
        segments: Of the run; while it waits for them it calls ``turn``.
        ledger: Holds the run.
    """

    def __init__(self, segments: Segments, ledger: Ledger):
        self._ledger = ledger
        self._at = 0.0
        self._queued = False
        self.details: Callable[[], dict] = lambda: {"segments": [loading(shard.segment) for shard in segments.shards]}
        segments.meanwhile = self.turn

    def turn(self) -> None:
        """Move the ledger's link, which nobody else does meanwhile, and publish."""
        for reply in pump([self._ledger.link], None, 0.0):
            reply.tag(reply)
        self.publish()

    def publish(self) -> None:
        """Queue where the run stands now, when it is time to."""
        now = time.monotonic()
        if self._queued or now - self._at < PROGRESS_SECONDS:
            return
        self._at, self._queued = now, True
        self._ledger.progress(self.details(), then=self._written)

    def _written(self) -> None:
        self._queued = False


def loading(segment: str) -> dict:
    """The line of a segment that reads or encodes its shard, or starts TensorFlow."""
    return {"segment": segment, "phase": "loading"}
