"""One visit, from its order to its report: states go out and come back, and the ledger is kept beside it."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Set, Tuple

from cerebro_udf import faults
from cerebro_udf.catalog import Ledger
from cerebro_udf.coordinator.links import Reply
from cerebro_udf.coordinator.scheduler import Order
from cerebro_udf.coordinator.segments import Segments, cells, split, verify
from cerebro_udf.coordinator.trials import Trial, Unit, visit_spec
from cerebro_udf.wire import MESSAGE_BYTES, parsed

SUMMARIZE = "select cerebro_internal.worker_summarize($1, $2)::text"


class Visits:
    """Those under way; a segment makes one at a time.

    Args:
        plpy: PL/Python's module; only for faults.
        run: As for ``Loop``.
        segments: Connected, started and loaded.
        ledger: Holds the run.
        made: Told when a visit is made: its order, its unit, seconds that the segment was busy, whether it trained its members
            as one.
        failed: Told of a member that cannot go on, and why.
        validated: Told when the metrics of every member's whole validation are known.

    Attributes:
        current: segment -> the visit that it works on.
        summaries: segment -> the unit whose validation it summarizes.
        grown: Segments whose session a fresh one is to replace.
        count: Visits made, of each member.
        began: Whether a visit has been ordered.
    """

    def __init__(self, plpy, run: dict, segments: Segments, ledger: Ledger, made: Callable[[Order, Unit, float, bool], None],
                 failed: Callable[[Unit, Trial, str], None], validated: Callable[[Unit], None]):  # fmt: skip
        self._plpy, self._run, self._segments, self._ledger = plpy, run, segments, ledger
        self._made, self._failed, self._validated = made, failed, validated
        self.current: Dict[int, Tuple[Order, Unit]] = {}
        self.summaries: Dict[int, Unit] = {}
        self.grown: Set[int] = set()
        self.count = 0
        self.began = False
        self._sent_at: Dict[int, float] = {}  # segment -> when its visit was ordered
        self._faster: Set[tuple] = set()  # kinds of groups that a segment has found to be faster as one

    def initialize(self, order: Order, unit: Unit, then: Callable[[], None]) -> None:
        """Have the first states made of members that have none, one after another; then go on."""
        trial = next((member for member in unit.members if not member.state), None)
        if trial is None:
            then()
            return

        def made(chunks: List[bytes]) -> None:
            verify(self._segments.links[order.shard], chunks)
            trial.state, trial.status = chunks, "running"
            self._ledger.first_state(trial.number, chunks)
            self.initialize(order, unit, then)

        def received(reply: Reply) -> None:
            report, state = cells(reply)
            if report["status"] == "failed":
                self._failed(unit, trial, report["error"])
                self.initialize(order, unit, then)
            else:
                self._segments.collect(order.shard, report, state, made)

        spec = {"run": self._run["name"], "program": trial.order["program"], "seed": self._run["seed"], "trial": trial.number}
        self._segments.post_init(order.shard, spec, self._run["weights"], received)

    def send(self, order: Order, unit: Unit) -> None:
        """Have a segment make the visit."""
        members = list(unit.members)
        position = len(unit.done) if order.phase == "train" else order.shard
        if unit.epoch_started is None:
            unit.epoch_started = time.time()
        for trial in members:
            self._ledger.visit_begin(
                trial.number, order.epoch, order.phase, order.shard, position, self._segments.shards[order.shard].segment
            )
        message = visit_spec(
            members, run=self._run["name"], epoch=order.epoch, phase=order.phase, shard=order.shard, seed=self._run["seed"],
            first=position == 0, last=position == len(self._segments.shards) - 1, faster=_kind(members) in self._faster,
        )  # fmt: skip
        self._sent_at[order.shard] = time.time()
        states = [trial.state for trial in members]
        self._segments.post_visit(order.shard, message, states, lambda reply: self._returned(order, unit, members, reply))
        self.began = True
        faults.reach(self._plpy, "order-sent", self._run["name"])

    def _returned(self, order: Order, unit: Unit, members: List[Trial], reply: Reply) -> None:
        report, state = cells(reply)
        faults.reach(self._plpy, "state-returned", self._run["name"])
        self._segments.collect(order.shard, report, state, lambda chunks: self._reported(order, unit, members, report, chunks))

    def _reported(self, order: Order, unit: Unit, members: List[Trial], report: dict, chunks: List[bytes]) -> None:
        """A visit is made: how long the segment was busy, from the states' first byte there to their last byte back."""
        busy = time.time() - self._sent_at[order.shard]
        blobs = split(chunks, [part["bytes"] for part in report["members"]])
        for part, blob in zip(report["members"], blobs):
            if part["status"] == "ok":
                verify(self._segments.links[order.shard], blob)
        shares = {key: report[key] / len(members) for key in ("train_seconds", "trace_seconds", "set_seconds", "get_seconds", "seconds")}
        shares.update(busy_seconds=busy / len(members), hop_seconds=max(0.0, busy - report["seconds"]) / len(members))
        common = {key: value for key, value in report.items() if key not in ("members", "parts")}
        if len(members) > 1:
            common["together"] = [trial.number for trial in members]
        del self.current[order.shard]
        for trial, part, blob in zip(members, report["members"], blobs):
            if trial.ended or unit.dissolved:  # failed meanwhile, on another segment; or goes on alone
                continue
            if part["status"] == "failed":
                self._failed(unit, trial, part["error"])
                continue
            line = {**common, **shares, "metrics": part["metrics"], "learning_rate": part["learning_rate"]}
            self.count += 1
            trial.visits += 1
            if order.phase == "train":
                self._trained(order, trial, line, blob)
            else:
                unit.accumulators.setdefault(order.shard, {})[trial.number] = b"".join(blob)
                self._ledger.visit_end(trial.number, order.epoch, "validate", order.shard, line, None, [], then=lambda: None)
        if order.phase == "train":
            unit.done.append(order.shard)
            if report["fused"]:
                self._faster.add(_kind(members))
        if self._segments.grown(order.shard, report):
            self.grown.add(order.shard)
        self._made(order, unit, busy, report["fused"])

    def _trained(self, order: Order, trial: Trial, line: dict, chunks: List[bytes]) -> None:
        trial.state = chunks
        trial.seq += 1
        trial.learning_rate = line["learning_rate"]
        last = trial.seq == order.epoch * len(self._segments.shards)
        if last:
            trial.train_metrics = line["metrics"] or {}
        small = sum(len(chunk) for chunk in chunks) <= MESSAGE_BYTES
        keep = last or self._run["checkpoint"] == "visit" or (self._run["checkpoint"] is None and small)
        self._ledger.visit_end(
            trial.number, order.epoch, "train", order.shard, line, trial.seq if keep else None, chunks,
            then=lambda: faults.reach(self._plpy, "committed", self._run["name"]),
        )  # fmt: skip

    def summarize(self, segment: int, unit: Unit) -> None:
        """Have a segment work out the metrics of every member's whole validation."""
        self.summaries[segment] = unit
        for trial in unit.members:
            if trial.number not in unit.validation:
                # In shard order, so that the sums do not depend on who was first.
                blobs = [unit.accumulators[shard][trial.number] for shard in sorted(unit.accumulators)]
                self._segments.post(
                    segment, SUMMARIZE, {"run": self._run["name"], "program": trial.order["program"]}, blobs,
                    then=lambda reply, trial=trial: self._summarized(segment, unit, trial, parsed(reply.rows[0][0])),
                )  # fmt: skip

    def _summarized(self, segment: int, unit: Unit, trial: Trial, summary: dict) -> None:
        if summary["status"] == "failed":
            self._failed(unit, trial, summary["error"])
        else:
            unit.validation[trial.number] = summary["metrics"]
        if all(member.number in unit.validation for member in unit.members):
            del self.summaries[segment]
            if unit.members:
                self._validated(unit)


def _kind(members: List[Trial]) -> tuple:
    """What groups have in common that are as fast as each other; empty for a trial alone."""
    return (members[0].shape, len(members)) if len(members) > 1 else ()
