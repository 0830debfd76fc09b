"""The run loop: obeys the scheduler, moves states between segments, and keeps the ledger beside it.

No barrier anywhere: a segment that finishes is given its next visit at once. A hop is sent on while its ledger row
and state are still being committed; a crash loses at most the visits since the last committed state.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from cerebro_udf import faults
from cerebro_udf.catalog import Ledger
from cerebro_udf.coordinator.links import Link, Reply, pump
from cerebro_udf.coordinator.progress import Progress, loading
from cerebro_udf.coordinator.scheduler import Order, Scheduler
from cerebro_udf.coordinator.segments import LinkBroken, Segments
from cerebro_udf.errors import InvalidArgument, nearest
from cerebro_udf.wire import MESSAGE_BYTES, finite

_INIT = "select report::text, state from cerebro_internal.worker_init($1)"
_GET = "select cerebro_internal.worker_get($1)"
SUMMARIZE = "select cerebro_internal.worker_summarize($1, $2)::text"


@dataclass
class Trial:
    """One configuration under way."""

    number: int
    params: dict
    order: dict  # what every order for it says: program, batch_size, learning_rate
    seed: int
    state: List[bytes] = field(default_factory=list)  # chunks; empty until made or read
    seq: int = 0  # train visits that the state covers
    best_seq: Optional[int] = None
    metric: Optional[float] = None
    best_epoch: Optional[int] = None
    train_metrics: dict = field(default_factory=dict)
    learning_rate: Optional[float] = None
    epoch_started: Optional[float] = None  # when this driver sent the first order of the epoch
    visits: int = 0  # made in all, of both phases
    accumulators: Dict[int, bytes] = field(default_factory=dict)  # shard -> of the epoch being validated
    status: str = "waiting"
    error: Optional[str] = None


class Loop:
    """Drives trials over segments until all are done or failed.

    Args:
        plpy: PL/Python's module; only for notices, faults and interrupts.
        pulse: ``Pulse`` of this backend.
        run: ``{"name", "epochs", "checkpoint", "seed", "deadline"}``; after the deadline (``time.monotonic()``) no visit is ordered.
        segments: Connected, started and loaded.
        ledger: Holds the run.
        scheduler: Knows every trial already.
        trials: By number.
        rank: Metric name and ``min`` or ``max``.
        rows: Rows to train on and rows for validation, of each shard.
        retries: How many lost links are repaired before the run fails.
        reload: Reads and encodes one shard again, in a fresh session of its segment.
        progress: Publishes where the run stands.
    """

    def __init__(self, plpy, pulse, run: dict, segments: Segments, ledger: Ledger, scheduler: Scheduler,
                 trials: Dict[int, Trial], rank: Tuple[str, str], rows: List[Tuple[int, int]], retries: int,
                 reload: Callable[[int], None], progress: Progress):  # fmt: skip
        self._plpy, self._pulse, self._run = plpy, pulse, run
        self._segments, self._links, self._ledger = segments, segments.links, ledger
        self._retries, self._reload = retries, reload
        self._scheduler, self._trials, self._rank, self._rows = scheduler, trials, rank, rows
        self._current: Dict[int, Order] = {}  # segment -> the order it works on
        self._summaries: Dict[int, Callable[[], None]] = {}  # segment -> asks it again for the summary it works on
        self._sent_at: Dict[int, float] = {}  # segment -> when its visit was ordered
        self._progress = progress
        self._repaired: Optional[int] = None  # the segment whose link is being opened again
        self.out_of_time = False  # whether time_limit has ended it
        self.began = False  # whether a visit has been ordered: from then on the run stays
        self._visits_per_trial = run["epochs"] * (len(rows) + sum(1 for _, held in rows if held))

    def go(self) -> None:
        """Run to the end.

        Raises:
            CerebroError: a segment or the ledger failed; the run can be resumed.
            plpy.SPIError, ClientGone: cancelled.
        """
        self._progress.details = self._details
        self._notice_begin()
        for trial in self._trials.values():
            if self._scheduler.epoch_ready(trial.number):  # resumed after an epoch's last visit
                epoch = trial.seq // len(self._links)
                self._epoch_end(Order(trial.number, epoch, "train", 0), trial, {})
        while self._more() or any(link.busy for link in self._links):
            self._dispatch()
            for reply in pump(self._links + [self._ledger.link], self._pulse):
                try:
                    reply.tag(reply)
                except LinkBroken as error:
                    self._repair(reply.link, error)
            self._progress.publish()
        self.out_of_time = not self._scheduler.finished
        if self.out_of_time:
            self._plpy.notice(
                'run "%s": time_limit is over; cerebro.resume goes on with what is unfinished, for as long again' % self._run["name"]
            )
        self._ledger.flush()
        faults.reach(self._plpy, "before-done", self._run["name"])

    def _more(self) -> bool:
        """Whether there is work left, and time for it."""
        deadline = self._run["deadline"]
        return not self._scheduler.finished and (deadline is None or time.monotonic() < deadline)

    def _notice_begin(self) -> None:
        self._plpy.notice(
            'run "%s": %d trial%s, %d epoch%s, %d rows on %d segment%s'
            % (
                self._run["name"], len(self._trials), "s" * (len(self._trials) != 1), self._run["epochs"],
                "s" * (self._run["epochs"] != 1), sum(a + b for a, b in self._rows), len(self._links), "s" * (len(self._links) != 1),
            )
        )  # fmt: skip

    # -- orders --

    def _dispatch(self) -> None:
        if self._ledger.full or not self._more():
            return
        free = [n for n, link in enumerate(self._links) if not link.busy]
        for order in self._scheduler.orders(free):
            trial = self._trials[order.trial]
            self._current[order.shard] = order
            if trial.state:
                self._send(order, trial)
            else:
                self._segments.post(order.shard, _INIT, {"run": self._run["name"], "program": trial.order["program"], "seed": trial.seed},
                           then=lambda reply, order=order: self._initialized(order, reply))  # fmt: skip

    def _send(self, order: Order, trial: Trial) -> None:
        trial.status = "running"
        position = trial.seq - (order.epoch - 1) * len(self._links)
        if order.phase == "validate":
            position = order.shard
        if trial.epoch_started is None:
            trial.epoch_started = time.time()
        self._ledger.visit_begin(
            order.trial, order.epoch, order.phase, order.shard, position, self._segments.shards[order.shard].segment
        )
        message = {
            "run": self._run["name"], "epoch": order.epoch, "phase": order.phase, "shard": order.shard,
            "seed": self._run["seed"], "program": trial.order["program"], "batch_size": trial.order["batch_size"],
            "first": position == 0, "last": position == len(self._links) - 1, "try_fused": False,
            "members": [{"trial": order.trial, "learning_rate": trial.order["learning_rate"]}],
        }  # fmt: skip
        self._sent_at[order.shard] = time.time()
        self._segments.post_visit(order.shard, message, [trial.state], lambda reply: self._visited(order, trial, reply))
        self.began = True
        faults.reach(self._plpy, "order-sent", self._run["name"])

    def _repair(self, link: Link, error: LinkBroken) -> None:
        """Open a lost link again and order its visit anew; the trial's state before that visit is still here."""
        number = self._repaired = self._links.index(link)
        while True:
            if self._retries <= 0:
                raise error
            self._retries -= 1
            self._plpy.notice("%s (%s); trying again" % (error.message, error.detail))
            try:
                self._segments.reopen(number)
                self._reload(number)
                break
            except LinkBroken as again:
                error = again
        self._repaired = None
        order = self._current.pop(number, None)
        if order is not None:
            self._scheduler.requeue(order)
        elif number in self._summaries:
            self._summaries[number]()

    # -- replies --

    def _initialized(self, order: Order, reply: Reply) -> None:
        trial = self._trials[order.trial]
        report, state = cells(reply)
        if report["status"] == "failed":
            self._failed(order, report["error"])
        else:
            self._collect(order, report, state, lambda chunks: self._first_state(order, trial, chunks))

    def _first_state(self, order: Order, trial: Trial, chunks: List[bytes]) -> None:
        trial.state = chunks
        self._ledger.first_state(trial.number, chunks)
        self._send(order, trial)

    def _visited(self, order: Order, trial: Trial, reply: Reply) -> None:
        report, state = cells(reply)
        report.update(report.pop("members")[0])
        if report["status"] == "failed":
            self._failed(order, report["error"])
            return
        faults.reach(self._plpy, "state-returned", self._run["name"])
        if order.phase == "train":
            self._collect(order, report, state, lambda chunks: self._trained(order, trial, report, chunks))
        else:
            self._validated(order, trial, report, state)

    def _measure(self, order: Order, report: dict) -> None:
        """How long the segment was busy, from the state's first byte there to its last byte back, and with the hop alone."""
        report["busy_seconds"] = time.time() - self._sent_at[order.shard]
        report["hop_seconds"] = max(0.0, report["busy_seconds"] - report["seconds"])

    def _collect(self, order: Order, report: dict, state: Optional[bytes], then: Callable[[List[bytes]], None]) -> None:
        """Fetch a state that came in parts, then go on with its chunks."""
        parts = report.get("parts")
        if not parts:
            then([state])
            return
        chunks: List[bytes] = []

        def take(reply: Reply) -> None:
            chunks.append(reply.rows[0][0])
            if len(chunks) == parts:
                then(chunks)

        for part in range(parts):
            self._segments.post(order.shard, _GET, part, then=take)

    def _trained(self, order: Order, trial: Trial, report: dict, chunks: List[bytes]) -> None:
        self._measure(order, report)
        trial.state = chunks
        trial.seq += 1
        trial.learning_rate = report.get("learning_rate")
        last = trial.seq == order.epoch * len(self._links)
        if last:
            trial.train_metrics = report["metrics"] or {}
        small = sum(len(chunk) for chunk in chunks) <= MESSAGE_BYTES
        keep = last or self._run["checkpoint"] == "visit" or (self._run["checkpoint"] is None and small)
        self._ledger.visit_end(
            order.trial, order.epoch, "train", order.shard, report, trial.seq if keep else None, chunks,
            then=lambda: faults.reach(self._plpy, "committed", self._run["name"]),
        )  # fmt: skip
        self._visit_done(order, report)
        if last and not any(held for _, held in self._rows):
            self._epoch_end(order, trial, {})

    def _validated(self, order: Order, trial: Trial, report: dict, accumulators: bytes) -> None:
        self._measure(order, report)
        trial.accumulators[order.shard] = accumulators
        self._ledger.visit_end(order.trial, order.epoch, "validate", order.shard, report, None, [], then=lambda: None)
        self._visit_done(order, report)
        if len(trial.accumulators) == sum(1 for _, held in self._rows if held):
            # In shard order, so that the sums do not depend on who was first. This link is idle: it has just reported.
            blobs = [trial.accumulators[shard] for shard in sorted(trial.accumulators)]
            trial.accumulators = {}
            self._summaries[order.shard] = lambda: self._segments.post(
                order.shard, SUMMARIZE, {"run": self._run["name"], "program": trial.order["program"]}, blobs,
                then=lambda reply: self._summarized(order, trial, reply),
            )  # fmt: skip
            self._summaries[order.shard]()

    def _summarized(self, order: Order, trial: Trial, reply: Reply) -> None:
        del self._summaries[order.shard]
        summary = json.loads(reply.rows[0][0])
        if summary["status"] == "failed":
            self._failed(order, summary["error"])
        else:
            self._epoch_end(order, trial, summary["metrics"])

    def _visit_done(self, order: Order, report: dict) -> None:
        self._current.pop(order.shard, None)
        self._trials[order.trial].visits += 1
        self._scheduler.done(order, report["busy_seconds"])

    def _failed(self, order: Order, reason: str) -> None:
        trial = self._trials[order.trial]
        self._current.pop(order.shard, None)
        if trial.status == "failed":  # validated on several segments at once
            return
        trial.status, trial.error, trial.state = "failed", reason, []
        self._scheduler.drop(order.trial)
        self._ledger.trial_fail(order.trial, reason)
        self._plpy.notice("trial %d failed: %s" % (order.trial, reason))

    def _epoch_end(self, order: Order, trial: Trial, validation: dict) -> None:
        metrics = dict(trial.train_metrics)
        metrics.update(("val_" + name, value) for name, value in validation.items())
        name, direction = self._rank
        if name not in metrics:
            raise InvalidArgument(
                'option rank_by names a metric that this run does not have: "%s"' % name, None, nearest(name, metrics)
            )
        if isinstance(metrics[name], list):
            raise InvalidArgument(
                'option rank_by names a metric of several values: "%s"' % name, None, "Rank by one that is a single number."
            )
        value = finite(metrics[name])
        sign = 1 if direction == "min" else -1
        if value is not None and (trial.metric is None or sign * value < sign * trial.metric):
            trial.metric, trial.best_epoch, trial.best_seq = value, order.epoch, trial.seq
        finished = order.epoch == self._run["epochs"]
        if finished and trial.best_epoch is None:
            # Every epoch gave NaN: the last state is kept, so that there is something to look at.
            trial.best_epoch, trial.best_seq = order.epoch, trial.seq
        seconds = 0.0 if trial.epoch_started is None else time.time() - trial.epoch_started
        trial.epoch_started = None
        best_now = trial.seq if trial.best_seq == trial.seq else None
        self._ledger.epoch_end(
            trial.number, order.epoch, metrics, finite(trial.learning_rate), seconds,
            trial.metric, best_now, finished,
            then=lambda: faults.reach(self._plpy, "epoch-end", self._run["name"]),
        )  # fmt: skip
        if finished:
            trial.status, trial.state = "done", []
        self._notice_epoch(order, trial, metrics)
        self._scheduler.next_epoch(trial.number)

    # -- telling --

    def _notice_epoch(self, order: Order, trial: Trial, metrics: dict) -> None:
        names = sorted(metrics, key=lambda name: (name.startswith("val_"), not name.endswith("loss")))  # jsonb has an order of its own
        shown = ", ".join("%s %s" % (name, _figure(metrics[name])) for name in names if metrics[name] is not None)
        left = self._scheduler.remaining_seconds()
        eta = "" if not left else ", %d:%02d left" % (left // 60, left % 60)
        self._plpy.notice(
            "trial %d epoch %d/%d: %s (%d of %d visits%s)"
            % (trial.number, order.epoch, self._run["epochs"], shown, *self._visits(), eta)
        )

    def _visits(self) -> Tuple[int, int]:
        """Visits made, and visits to make in all; a failed trial makes no more."""
        trials = self._trials.values()
        return sum(t.visits for t in trials), sum(t.visits if t.status == "failed" else self._visits_per_trial for t in trials)

    def _details(self) -> dict:
        lines = []
        for number, link in enumerate(self._links):
            order = self._current.get(number)
            line = {"segment": self._segments.shards[number].segment}
            if number == self._repaired:
                line = loading(line["segment"])
            elif order is not None:
                line.update(
                    phase=order.phase, trial=order.trial, epoch=order.epoch,
                    rows_done=(link.progress or {}).get("rows", 0),
                    rows_total=self._rows[number][0 if order.phase == "train" else 1],
                )  # fmt: skip
            lines.append(line)
        done, total = self._visits()
        return {
            "segments": lines, "visits_done": done, "visits_total": total,
            "eta_seconds": finite(self._scheduler.remaining_seconds()),
        }  # fmt: skip


def _figure(value: Any) -> str:
    return "[%s]" % ", ".join(_figure(item) for item in value) if isinstance(value, list) else "%.4g" % (value or 0.0)


def _figure(value: Any) -> str:
    return "[%s]" % ", ".join(_figure(item) for item in value) if isinstance(value, list) else "%.4g" % (value or 0.0)


def cells(reply: Reply) -> Tuple[dict, Optional[bytes]]:
    """Report and state of a visit or an initialization."""
    report, state = reply.rows[0]
    return json.loads(report), state
