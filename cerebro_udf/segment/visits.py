"""One visit: its members trained or validated on a shard, one after another or as one."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf import faults
from cerebro_udf.errors import TrialFailed
from cerebro_udf.interrupts import Pulse
from cerebro_udf.wire import PROGRESS_PREFIX, finite

PROGRESS_SECONDS = 0.2  # with a slice and the half second between two publications, less than 1 s in all

Report = Dict[str, Any]
Member = Tuple[Report, bytes]  # its part of a visit's report, and what goes back


class Seconds:
    """Where the time of a visit went.

    Attributes:
        reads: Of rows that are not all in memory, see ``Program.train``; empty if they are.
    """

    def __init__(self):
        self.spent = {name: 0.0 for name in ("trace_seconds", "set_seconds", "train_seconds", "get_seconds")}
        self.reads: Dict[str, int] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """Put down the time since the last lap."""
        before, self._at = self._at, time.perf_counter()
        self.spent[name] += self._at - before

    def add(self, report: dict) -> None:
        """Put down what a program reports of the time since the last lap; the rest of it is nobody's."""
        self._at = time.perf_counter()
        for name in ("trace_seconds", "train_seconds"):
            self.spent[name] += report[name]
        for name, count in report["reads"].items():
            self.reads[name] = self.reads.get(name, 0) + count


class Visit:
    """Members on the rows of one shard.

    Args:
        plpy: PL/Python's module.
        spec: See ``worker.visit``.
        program: The members' ``Program``.
        blobs: Their states.
        arrays: The rows, see ``Program.train``.
        order: In which they are trained, int32 (rows,); None to validate.
        batch_size: Rows per minibatch.
        seconds: Where the time is put down.
    """

    def __init__(self, plpy, spec: dict, program, blobs: Sequence[bytes], arrays: Dict[str, Any],
                 order: Optional[np.ndarray], batch_size: int, seconds: Seconds):  # fmt: skip
        self._plpy, self._spec, self._program, self._blobs = plpy, spec, program, blobs
        self._arrays, self._order, self._batch_size, self._seconds = arrays, order, batch_size, seconds
        self._training = order is not None
        self._renewed = spec["first"] or not self._training  # whether metrics begin anew
        self._rows = len(arrays["label"])

    def go(self, fused=None) -> Tuple[bool, List[Member]]:
        """Train or validate the members: as one by a ``FusedProgram``, or one after another without.

        Returns:
            (whether they were as one, members). One that fails is reported as such; where that ends those that are as
            one, each is taken by itself.

        Raises:
            StateMismatch, and what ``Pulse.check`` raises.
        """
        if fused is not None:
            with contextlib.suppress(TrialFailed):
                return True, self._as_one(fused)
        return False, self._one_by_one()

    def _one_by_one(self) -> List[Member]:
        program, seconds, members = self._program, self._seconds, []
        between = _Between(self._plpy, self._spec, self._rows, len(self._blobs))
        for member, blob in zip(self._spec["members"], self._blobs):
            (program.set_state if self._training else program.serve)(blob)
            if self._training:
                program.set_dropout(member["dropout"])
                if member["learning_rate"] is not None:
                    program.set_learning_rate(member["learning_rate"])
            if self._renewed:
                program.reset_metrics()
            seconds.lap("set_seconds")
            try:
                seconds.add(self._pass(program, between))
                metrics = program.results() if self._training and self._spec["last"] else None
                rate = program.learning_rate() if self._training else None
                result = program.get_state() if self._training else program.accumulators()
                members.append((_ok(metrics, rate), result))
            except TrialFailed as error:
                members.append(failed(error))
            between.next_member()
            seconds.lap("get_seconds")
        return members

    def _as_one(self, fused) -> List[Member]:
        program, seconds, count = self._program, self._seconds, len(self._blobs)
        between = _Between(self._plpy, self._spec, self._rows, 1)
        rates = [member["learning_rate"] for member in self._spec["members"]]
        fused.set_states(self._blobs, rates, *([] if self._training else ["model"]))
        if self._training:
            fused.set_dropouts([member["dropout"] for member in self._spec["members"]])
        if self._renewed:
            fused.reset_metrics()
        seconds.lap("set_seconds")
        seconds.add(self._pass(fused, between))
        rates, metrics = [None] * count, [None] * count
        if self._training:
            rates = fused.learning_rates()
            if self._spec["last"]:
                metrics = [program.results(accumulators) for accumulators in fused.get_states("metric")[:count]]
        results = fused.get_states(*([] if self._training else ["metric"]))[:count]
        seconds.lap("get_seconds")
        return [(_ok(*told), result) for told, result in zip(zip(metrics, rates), results)]

    def _pass(self, program, between: "_Between") -> Report:
        size = self._batch_size
        if self._training:
            return program.train(self._arrays, self._order, size, between.pulse, between.progress)
        return program.validate(self._arrays, size, between.pulse, between.progress)


def _ok(metrics: Optional[dict], learning_rate: Optional[float]) -> Report:
    return {"status": "ok", "error": None, "metrics": finite(metrics), "learning_rate": finite(learning_rate)}


def failed(error: TrialFailed) -> Member:
    """Report on a member that failed."""
    return {"status": "failed", "error": str(error), "metrics": None, "learning_rate": None}, b""


class _Between:
    """What happens between two slices of a visit that passes over its rows some times."""

    def __init__(self, plpy, spec: dict, rows: int, passes: int):
        self._plpy, self._run, self._rows, self._passes = plpy, spec["run"], rows, passes
        self._trials = [member["trial"] for member in spec["members"]]
        self._point = "mid-visit" if spec["phase"] == "train" else "validation"
        self._check = Pulse(plpy).check
        self._reached = False
        self._finished = 0
        self._told_at = time.monotonic()

    def next_member(self) -> None:
        """Go on with the rows of another one."""
        self._finished += 1

    def pulse(self) -> None:
        self._check()
        if not self._reached:
            self._reached = True
            faults.reach(self._plpy, self._point, self._run, self._trials)

    def progress(self, rows: int) -> None:
        """Tell how many of the shard's rows are done, on average over the members."""
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            done = (self._finished * self._rows + rows) // self._passes
            self._plpy.notice(PROGRESS_PREFIX + json.dumps({"rows": done, "of": self._rows}))
