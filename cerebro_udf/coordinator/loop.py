"""The run loop: obeys scheduler and study, moves states between segments, and keeps the ledger beside it.

No barrier anywhere: a segment that finishes is given its next visit at once. A hop is sent on while its ledger row
and state are still being committed; a crash loses at most the visits since the last committed state.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from cerebro_udf import faults
from cerebro_udf.catalog import Ledger
from cerebro_udf.coordinator.links import Link, Reply, pump
from cerebro_udf.coordinator.progress import Progress, loading
from cerebro_udf.coordinator.scheduler import Order, Scheduler
from cerebro_udf.coordinator.segments import LinkBroken, Segments, cells, split
from cerebro_udf.coordinator.study import Study
from cerebro_udf.coordinator.trials import Maker, Trial, Unit, group, visit_spec
from cerebro_udf.errors import InvalidArgument, nearest
from cerebro_udf.wire import MESSAGE_BYTES, finite

SUMMARIZE = "select cerebro_internal.worker_summarize($1, $2)::text"


class Loop:
    """Drives trials over segments until all have ended and the study asks for no more.

    Args:
        plpy: PL/Python's module; only for notices, faults and interrupts.
        pulse: ``Pulse`` of this backend.
        run: ``{"name", "epochs", "checkpoint", "seed", "fuse", "trials", "deadline"}``; trials: how many there will be in
            all, None if that is not known; after the deadline (``time.monotonic()``) no visit is ordered.
        segments: Connected, started and loaded.
        ledger: Holds the run, and every trial given here.
        scheduler: Knows no trial yet.
        study: Asks for trials, judges them after each epoch.
        maker: Makes the trials that are asked for.
        rank: Metric name and ``min`` or ``max``.
        rows: Rows to train on and rows for validation, of each shard.
        retries: How many lost links are repaired before the run fails.
        reload: Has a fresh session of a segment read and encode its shard again, and does not wait for it.
        progress: Publishes where the run stands.
    """

    def __init__(self, plpy, pulse, run: dict, segments: Segments, ledger: Ledger, scheduler: Scheduler, study: Study,
                 maker: Maker, rank: Tuple[str, str], rows: List[Tuple[int, int]], retries: int,
                 reload: Callable[[int], None], progress: Progress):  # fmt: skip
        self._plpy, self._pulse, self._run = plpy, pulse, run
        self._segments, self._links, self._ledger = segments, segments.links, ledger
        self._retries, self._reload = retries, reload
        self._scheduler, self._study, self._maker, self._rank, self._rows = scheduler, study, maker, rank, rows
        self._validated = sum(1 for _, held in rows if held)  # shards that have rows for validation
        self.trials: Dict[int, Trial] = {}
        self._units: Dict[int, Unit] = {}  # those that the scheduler knows
        self._waiting: Dict[int, Tuple[Unit, int]] = {}  # trial -> unit that waits for the verdict on this epoch of it
        self._asking = True  # whether the study may have another trial now
        self._current: Dict[int, Tuple[Order, Unit]] = {}  # segment -> what it works on
        self._summaries: Dict[int, Unit] = {}  # segment -> the unit whose validation it summarizes
        self._sent_at: Dict[int, float] = {}  # segment -> when its visit was ordered
        self._progress = progress
        self._grown: Set[int] = set()  # segments whose session a fresh one is to replace
        self.out_of_time = False  # whether time_limit has ended it
        self._visits_done = self._visits_ended = self._ended = 0  # visits: in all, of trials that have ended; such trials
        self._visits_per_trial = run["epochs"] * (len(rows) + self._validated)
        self.began = False  # whether a visit has been ordered: from then on the run stays

    def go(self, trials: List[Trial], history: Dict[int, List[dict]]) -> None:
        """Run to the end.

        Args:
            trials: Those that the ledger has, new or to be gone on with.
            history: What the ledger has of each trial's epochs, in order.

        Raises:
            CerebroError: a segment or the ledger failed; the run can be resumed.
            plpy.SPIError, ClientGone: cancelled.
        """
        self._progress.details = self._details
        self._take_up(trials, history)
        self._ask()
        self._notice_begin()
        while self._more() or any(link.busy for link in self._links):
            self._dispatch()
            for reply in pump(self._links + [self._ledger.link], self._pulse):
                try:
                    reply.tag(reply)
                except LinkBroken as error:
                    self._repair(reply.link, error)
            self._progress.publish()
        self.out_of_time = self._unfinished()
        if self.out_of_time:
            self._plpy.notice(
                'run "%s": time_limit is over; cerebro.resume goes on with what is unfinished, for as long again' % self._run["name"]
            )
        self._ledger.flush()
        faults.reach(self._plpy, "before-done", self._run["name"])

    def _unfinished(self) -> bool:
        return bool(self._units or self._waiting or not self._study.exhausted)

    def _more(self) -> bool:
        """Whether there is work left, and time for it."""
        deadline = self._run["deadline"]
        return self._unfinished() and (deadline is None or time.monotonic() < deadline)

    def _take_up(self, trials: List[Trial], history: Dict[int, List[dict]]) -> None:
        """Tell study and scheduler what there is; a trial that waited for its verdict waits for it again."""
        name = self._rank[0]
        values: Dict[int, List[Optional[float]]] = {}
        unjudged: Dict[int, Optional[float]] = {}
        for trial in trials:
            self.trials[trial.number] = trial
            self._visits_done += trial.visits
            if trial.ended:
                self._ended += 1
                self._visits_ended += trial.visits
            values[trial.number] = [finite(past["metrics"].get(name)) for past in history.get(trial.number, [])]
            if values[trial.number] and not trial.ended and not trial.done:
                unjudged[trial.number] = values[trial.number].pop()
        self._study.restore(
            [{"trial": t.number, "params": t.params, "state": t.status, "metric": t.metric} for t in trials], values
        )
        for unit in self._group(trials):
            if any(trial.number in unjudged for trial in unit.members):  # then all are: they are at the same place
                self._waiting.update((trial.number, (unit, unit.epoch - 1)) for trial in unit.members)
            else:
                self._enter(unit)
        for number, value in unjudged.items():
            self._study.report(number, self.trials[number].epoch - 1, value)
        self._judge()

    def _notice_begin(self) -> None:
        self._plpy.notice(
            'run "%s": %d trial%s, %d epoch%s, %d rows on %d segment%s'
            % (
                self._run["name"], self._trial_count, "s" * (self._trial_count != 1), self._run["epochs"],
                "s" * (self._run["epochs"] != 1), sum(a + b for a, b in self._rows), len(self._links), "s" * (len(self._links) != 1),
            )
        )  # fmt: skip

    # -- orders --

    def _dispatch(self) -> None:
        if self._ledger.full or not self._more():
            return
        self._ask()
        for number in [n for n in self._grown if not self._links[n].busy]:
            self._grown.remove(number)
            self._reload(number)
        free = [n for n, link in enumerate(self._links) if not link.busy]
        for order in self._scheduler.orders(free) if free else ():
            unit = self._units[order.trial]
            self._current[order.shard] = (order, unit)
            missing = [trial for trial in unit.members if not trial.state]
            if missing:
                self._initialize(order, unit, missing)
            else:
                self._send(order, unit)

    def _ask(self) -> None:
        """Have the study begin as many trials as it wants to now."""
        if not self._asking:
            return
        self._asking = False
        new = []
        while True:
            asked = self._study.ask()
            if asked is None:
                break
            new.append(self._maker.make(*asked))
        if not new:
            return
        self._ledger.trials_add([{"trial": trial.number, "params": trial.params} for trial in new])
        self.trials.update((trial.number, trial) for trial in new)
        for unit in self._group(new):
            self._enter(unit)

    def _group(self, trials: List[Trial]) -> List[Unit]:
        """Put those trials into units that have not ended; one whose values exclude each other ends here."""
        for trial in trials:
            if trial.error is not None and not trial.ended:
                self._failed(Unit([trial]), trial, trial.error)
        return group([trial for trial in trials if not trial.ended], len(self._links), self._run["fuse"])

    def _enter(self, unit: Unit) -> None:
        """Hand a unit to the scheduler, or to the end of its epoch if all of its visits are made."""
        self._units[unit.number] = unit
        self._scheduler.add(unit.number, unit.epoch, unit.done)
        if self._scheduler.epoch_ready(unit.number):
            self._epoch_done(unit)

    def _remove(self, unit: Unit) -> None:
        self._units.pop(unit.number, None)
        self._scheduler.drop(unit.number)

    def _dissolve(self, unit: Unit) -> None:
        """Have the members of a group go on alone."""
        self._remove(unit)
        for trial in unit.members:
            trial.epoch, trial.done = unit.epoch, list(unit.done)
            alone = Unit([trial])
            alone.epoch_started = unit.epoch_started
            self._enter(alone)

    def _initialize(self, order: Order, unit: Unit, missing: List[Trial]) -> None:
        """Have the first states of members made, one after another, then send the visit that waits for them."""
        trial = missing[0]

        def made(chunks: List[bytes]) -> None:
            trial.state = chunks
            self._ledger.first_state(trial.number, chunks)
            go_on()

        def received(reply: Reply) -> None:
            report, state = cells(reply)
            if report["status"] == "failed":
                self._failed(unit, trial, report["error"])
                go_on()
            else:
                self._segments.collect(order.shard, report, state, made)

        def go_on() -> None:
            if missing[1:]:
                self._initialize(order, unit, missing[1:])
            else:
                self._initialized(order, unit)

        spec = {"run": self._run["name"], "program": trial.order["program"], "seed": trial.seed}
        self._segments.post_init(order.shard, spec, self._run["weights"], received)

    def _initialized(self, order: Order, unit: Unit) -> None:
        if not unit.members:
            self._current.pop(order.shard, None)
        elif len(unit.members) > 1 and sum(len(chunk) for trial in unit.members for chunk in trial.state) > MESSAGE_BYTES:
            self._current.pop(order.shard, None)
            self._dissolve(unit)  # states that large gain nothing from travelling together
        else:
            self._send(order, unit)

    def _send(self, order: Order, unit: Unit) -> None:
        members = list(unit.members)
        position = len(unit.done) if order.phase == "train" else order.shard
        if unit.epoch_started is None:
            unit.epoch_started = time.time()
        for trial in members:
            trial.status = "running"
            self._ledger.visit_begin(
                trial.number, order.epoch, order.phase, order.shard, position, self._segments.shards[order.shard].segment
            )
        message = visit_spec(
            members, run=self._run["name"], epoch=order.epoch, phase=order.phase, shard=order.shard, seed=self._run["seed"],
            first=position == 0, last=position == len(self._links) - 1,
        )  # fmt: skip
        self._sent_at[order.shard] = time.time()
        states = [trial.state for trial in members]
        self._segments.post_visit(order.shard, message, states, lambda reply: self._visited(order, unit, members, reply))
        self.began = True
        faults.reach(self._plpy, "order-sent", self._run["name"])

    def _repair(self, link: Link, error: LinkBroken) -> None:
        """Open a lost link again and order its visit anew; the states before that visit are still here."""
        number = self._links.index(link)
        if self._retries <= 0:
            raise error
        self._retries -= 1
        self._plpy.notice("%s (%s); trying again" % (error.message, error.detail))
        order, unit = self._current.pop(number, (None, None))
        self._reload(number)
        if order is not None:
            if self._units.get(unit.number) is unit:
                self._scheduler.requeue(order)
        elif number in self._summaries:
            self._summarize(number, self._summaries[number])

    # -- replies --

    def _visited(self, order: Order, unit: Unit, members: List[Trial], reply: Reply) -> None:
        report, state = cells(reply)
        faults.reach(self._plpy, "state-returned", self._run["name"])
        self._segments.collect(order.shard, report, state, lambda chunks: self._reported(order, unit, members, report, chunks))

    def _reported(self, order: Order, unit: Unit, members: List[Trial], report: dict, chunks: List[bytes]) -> None:
        """A visit is made: how long the segment was busy, from the states' first byte there to their last byte back."""
        busy = time.time() - self._sent_at[order.shard]
        shares = {key: report[key] / len(members) for key in ("train_seconds", "trace_seconds", "set_seconds", "get_seconds", "seconds")}
        shares.update(busy_seconds=busy / len(members), hop_seconds=max(0.0, busy - report["seconds"]) / len(members))
        common = {key: value for key, value in report.items() if key not in ("members", "parts")}
        if len(members) > 1:
            common["together"] = [trial.number for trial in members]
        self._current.pop(order.shard, None)
        blobs = split(chunks, [part["bytes"] for part in report["members"]])
        for trial, part, blob in zip(members, report["members"], blobs):
            if trial.ended:  # failed meanwhile, on another segment
                continue
            if part["status"] == "failed":
                self._failed(unit, trial, part["error"])
                continue
            line = {**common, **shares, "metrics": part["metrics"], "learning_rate": part["learning_rate"]}
            self._visits_done += 1
            trial.visits += 1
            if order.phase == "train":
                self._trained(order, trial, line, blob)
            else:
                unit.accumulators.setdefault(order.shard, {})[trial.number] = b"".join(blob)
                self._ledger.visit_end(trial.number, order.epoch, "validate", order.shard, line, None, [], then=lambda: None)
        if order.phase == "train":
            unit.done.append(order.shard)
        if self._segments.grown(order.shard, report):
            self._grown.add(order.shard)
        if self._units.get(unit.number) is not unit:  # the last member failed
            return
        self._scheduler.done(order, busy)
        if order.phase == "validate":
            if len(unit.accumulators) == self._validated:
                self._summarize(order.shard, unit)  # this link is idle: it has just reported
        elif len(unit.members) > 1 and not report["fused"]:
            self._dissolve(unit)
        elif self._scheduler.epoch_ready(unit.number):
            self._epoch_done(unit)

    def _trained(self, order: Order, trial: Trial, line: dict, chunks: List[bytes]) -> None:
        trial.state = chunks
        trial.seq += 1
        trial.learning_rate = line["learning_rate"]
        last = trial.seq == order.epoch * len(self._links)
        if last:
            trial.train_metrics = line["metrics"] or {}
        small = sum(len(chunk) for chunk in chunks) <= MESSAGE_BYTES
        keep = last or self._run["checkpoint"] == "visit" or (self._run["checkpoint"] is None and small)
        self._ledger.visit_end(
            trial.number, order.epoch, "train", order.shard, line, trial.seq if keep else None, chunks,
            then=lambda: faults.reach(self._plpy, "committed", self._run["name"]),
        )  # fmt: skip

    def _summarize(self, segment: int, unit: Unit) -> None:
        """Have a segment work out the metrics of every member's whole validation."""
        self._summaries[segment] = unit
        for trial in unit.members:
            if trial.number not in unit.validation:
                # In shard order, so that the sums do not depend on who was first.
                blobs = [unit.accumulators[shard][trial.number] for shard in sorted(unit.accumulators)]
                self._segments.post(
                    segment, SUMMARIZE, {"run": self._run["name"], "program": trial.order["program"]}, blobs,
                    then=lambda reply, trial=trial: self._summarized(segment, unit, trial, json.loads(reply.rows[0][0])),
                )  # fmt: skip

    def _summarized(self, segment: int, unit: Unit, trial: Trial, summary: dict) -> None:
        if summary["status"] == "failed":
            self._failed(unit, trial, summary["error"])
        else:
            unit.validation[trial.number] = summary["metrics"]
        if all(member.number in unit.validation for member in unit.members):
            del self._summaries[segment]
            if unit.members:
                self._epoch_done(unit)

    def _failed(self, unit: Unit, trial: Trial, reason: str) -> None:
        if trial.ended:  # validated on several segments at once
            return
        self._end(unit, trial, "failed", reason)
        self._ledger.trial_end(trial.number, "failed", reason)
        self._plpy.notice("trial %d failed: %s" % (trial.number, reason))

    def _end(self, unit: Unit, trial: Trial, status: str, reason: Optional[str]) -> None:
        """A trial makes no further visits; the study may ask for another in its place."""
        trial.end(status, reason)
        self._ended += 1
        self._visits_ended += trial.visits
        unit.leave(trial)
        if not unit.members:
            self._remove(unit)
        self._study.finish(trial.number, status, trial.metric)
        self._asking = True
        self._judge()

    # -- ends of epochs --

    def _epoch_done(self, unit: Unit) -> None:
        """Every member has made all visits of the epoch: record it, and go on with those whom the study lets."""
        left = self._scheduler.remaining_seconds()  # the unit's further epochs among it
        self._remove(unit)
        seconds = 0.0 if unit.epoch_started is None else (time.time() - unit.epoch_started) / len(unit.members)
        for trial in unit.members:
            self._waiting[trial.number] = (unit, unit.epoch)
        for trial in list(unit.members):
            self._epoch_end(unit, trial, unit.validation.get(trial.number, {}), seconds, left)
        self._judge()
        self._next_epoch(unit)

    def _epoch_end(self, unit: Unit, trial: Trial, validation: dict, seconds: float, left: Optional[float]) -> None:
        metrics = dict(trial.train_metrics)
        metrics.update(("val_" + name, value) for name, value in validation.items())
        value = self._value(metrics)
        sign = 1 if self._rank[1] == "min" else -1
        if value is not None and (trial.metric is None or sign * value < sign * trial.metric):
            trial.metric, trial.best_epoch, trial.best_seq = value, unit.epoch, trial.seq
        verdict = trial.watch.epoch(unit.epoch, metrics, finite(trial.learning_rate))
        status = "failed" if verdict.diverged else "running"
        if not verdict.diverged and (verdict.stop is not None or unit.epoch == self._run["epochs"]):
            status = "done"
        if status != "running" and trial.best_epoch is None:
            # Every epoch gave NaN: the last state is kept, so that there is something to look at.
            trial.best_epoch, trial.best_seq = unit.epoch, trial.seq
        best_now = trial.seq if trial.best_seq == trial.seq else None
        self._ledger.epoch_end(
            trial.number, unit.epoch, metrics, finite(trial.learning_rate), seconds,
            trial.metric, best_now, status, verdict.stop,
            then=lambda: faults.reach(self._plpy, "epoch-end", self._run["name"]),
        )  # fmt: skip
        if verdict.learning_rate is not None:
            trial.order["learning_rate"] = verdict.learning_rate
        trial.epoch, trial.done = unit.epoch + 1, []
        self._notice_epoch(unit, trial, metrics, left)
        self._study.report(trial.number, unit.epoch, value)
        if status != "running":
            del self._waiting[trial.number]
            self._end(unit, trial, status, verdict.stop)

    def _value(self, metrics: dict) -> Optional[float]:
        """The figure that trials are ranked by, None if it is not finite."""
        name = self._rank[0]
        if name not in metrics:
            raise InvalidArgument(
                'option rank_by names a metric that this run does not have: "%s"' % name, None, nearest(name, metrics)
            )
        if isinstance(metrics[name], list):
            raise InvalidArgument(
                'option rank_by names a metric of several values: "%s"' % name, None, "Rank by one that is a single number."
            )
        return finite(metrics[name])

    def _judge(self) -> None:
        """Obey the verdicts that the study has come to."""
        for number, epoch, reason in self._study.verdicts():
            unit, waited = self._waiting.get(number, (None, None))
            if waited != epoch:  # it has ended meanwhile
                continue
            del self._waiting[number]
            trial = self.trials[number]
            if reason is not None:
                self._ledger.trial_end(number, "pruned", reason)
                self._plpy.notice("trial %d pruned after epoch %d: %s" % (number, epoch, reason))
                self._end(unit, trial, "pruned", reason)
            self._next_epoch(unit)

    def _next_epoch(self, unit: Unit) -> None:
        """Go on with those who are left, once none of them waits."""
        if not unit.members or any(trial.number in self._waiting for trial in unit.members):
            return
        members, unit.members = unit.members, []
        self._enter(Unit(members))

    # -- telling --

    @property
    def _trial_count(self) -> int:
        return len(self.trials) if self._study.exhausted else max(len(self.trials), self._run["trials"] or 0)

    def _notice_epoch(self, unit: Unit, trial: Trial, metrics: dict, left: Optional[float]) -> None:
        names = sorted(metrics, key=lambda name: (name.startswith("val_"), not name.endswith("loss")))  # jsonb has an order of its own
        shown = ", ".join("%s %s" % (name, _figure(metrics[name])) for name in names if metrics[name] is not None)
        done, total = self._visits()
        eta = ", %d:%02d left" % (left // 60, left % 60) if left and done < total else ""
        self._plpy.notice(
            "trial %d epoch %d/%d: %s (%d of %d visits%s)"
            % (trial.number, unit.epoch, self._run["epochs"], shown, done, total, eta)
        )

    def _visits(self) -> Tuple[int, int]:
        """Visits made, and visits to make in all; a trial that has ended makes no more."""
        return self._visits_done, self._visits_ended + (self._trial_count - self._ended) * self._visits_per_trial

    def _details(self) -> dict:
        lines = []
        for number, link in enumerate(self._links):
            order, _ = self._current.get(number, (None, None))
            line = {"segment": self._segments.shards[number].segment}
            if order is None and link.busy and number not in self._summaries:
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
