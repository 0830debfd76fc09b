"""The run loop: obeys scheduler and study.

No barrier anywhere: a segment that finishes is given its next visit at once. A hop is sent on while its ledger row
and state are still being committed; a crash loses at most the visits since the last committed state.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from cerebro_udf import faults
from cerebro_udf.catalog import Ledger
from cerebro_udf.coordinator.links import Link, pump
from cerebro_udf.coordinator.progress import Progress, loading
from cerebro_udf.coordinator.scheduler import Order, Scheduler
from cerebro_udf.coordinator.segments import LinkBroken, Segments
from cerebro_udf.coordinator.study import Study
from cerebro_udf.coordinator.trials import Maker, Trial, Unit, group, rank_value
from cerebro_udf.coordinator.visits import Visits
from cerebro_udf.errors import counted
from cerebro_udf.wire import MESSAGE_BYTES, finite


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
        retries: How often a trial's worker may die in one epoch before the trial fails; and how often in a row a segment's
            session may be lost, no trial being to blame, before the run does.
        reload: Has a fresh session of a segment read and encode its shard again, and does not wait for it; says whether the
            segment's server has recovered from a crash since the session before began.
        progress: Publishes where the run stands.
    """

    def __init__(self, plpy, pulse, run: dict, segments: Segments, ledger: Ledger, scheduler: Scheduler, study: Study,
                 maker: Maker, rank: Tuple[str, str], rows: List[Tuple[int, int]], retries: int,
                 reload: Callable[[int], bool], progress: Progress):  # fmt: skip
        self._plpy, self._pulse, self._run = plpy, pulse, run
        self._segments, self._links, self._ledger = segments, segments.links, ledger
        self._retries, self._reload = retries, reload
        self._scheduler, self._study, self._maker, self._rank, self._rows = scheduler, study, maker, rank, rows
        self._validated = sum(1 for _, held in rows if held)  # shards that have rows for validation
        self.visits = Visits(plpy, run, segments, ledger, self._made, self._failed, self._epoch_done)
        self.trials: Dict[int, Trial] = {}
        self._units: Dict[int, Unit] = {}  # those that the scheduler knows
        self._waiting: Dict[int, Tuple[Unit, int]] = {}  # trial -> unit that waits for the verdict on this epoch of it
        self._losses: Dict[int, int] = {}  # segment -> sessions lost in a row, no trial being to blame
        self._asking = True  # whether the study may have another trial now
        self._progress = progress
        self.out_of_time = False  # whether time_limit has ended it
        self._ended = self._visits_ended = 0  # trials that have ended; visits that those have made
        self._visits_per_trial = run["epochs"] * (len(rows) + self._validated)

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
        made_before = self.visits.count
        self._ask()
        self._notice_begin()
        while self._more() or any(link.busy for link in self._links):
            self._dispatch()
            self._progress.publish()  # before replies come in: those leave segments without a visit
            for reply in pump(self._links + [self._ledger.link], self._pulse):
                try:
                    reply.tag(reply)
                except LinkBroken as error:
                    self._repair(reply.link, error)
        self.out_of_time = self._unfinished()
        if self.out_of_time:
            self._plpy.notice(
                'run "%s": time_limit is over%s; cerebro.resume goes on with what is unfinished, for as long again'
                % (self._run["name"], ", before anything was trained" if self.visits.count == made_before else "")
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
            self.visits.count += trial.visits
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
            'run "%s": %s, %s, %s%s on %s'
            % (
                self._run["name"], counted(self._trial_count, "trial"), counted(self._run["epochs"], "epoch"),
                counted(sum(a + b for a, b in self._rows), "row"),
                ", %d skipped for NULL," % self._run["skipped"] if self._run["skipped"] else "", counted(len(self._links), "segment"),
            )
        )  # fmt: skip

    # -- orders --

    def _dispatch(self) -> None:
        if self._ledger.full or not self._more():
            return
        self._ask()
        for number in [n for n in self.visits.grown if not self._links[n].busy]:
            self.visits.grown.remove(number)
            self._reload(number)
        free = [n for n, link in enumerate(self._links) if not link.busy]
        for order in self._scheduler.orders(free) if free else ():
            unit = self._units[order.unit]
            self.visits.current[order.shard] = (order, unit)
            if all(trial.state for trial in unit.members):
                self.visits.send(order, unit)
            else:
                self.visits.initialize(order, unit, lambda order=order, unit=unit: self._initialized(order, unit))

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
        """Have the members of a group go on alone; a validation under way begins anew."""
        self._remove(unit)
        unit.dissolved = True
        for trial in unit.members:
            trial.epoch, trial.done = unit.epoch, list(unit.done)
            validated = sum(trial.number in blobs for blobs in unit.accumulators.values())
            if validated:
                self._ledger.validate_again(trial.number, unit.epoch)
                trial.visits -= validated
                self.visits.count -= validated
            alone = Unit([trial])
            alone.epoch_started = unit.epoch_started
            self._enter(alone)

    def _initialized(self, order: Order, unit: Unit) -> None:
        """Send the visit that has waited for first states, unless the time has run out over them."""
        if not unit.members:
            del self.visits.current[order.shard]
        elif not self._more():
            del self.visits.current[order.shard]
            self._scheduler.requeue(order)
        elif len(unit.members) > 1 and sum(len(chunk) for trial in unit.members for chunk in trial.state) > MESSAGE_BYTES:
            del self.visits.current[order.shard]
            self._dissolve(unit)  # states that large gain nothing from travelling together
        else:
            self.visits.send(order, unit)

    def _made(self, order: Order, unit: Unit, seconds: float, fused: bool) -> None:
        """Go on after a visit; its link is idle."""
        self._losses.pop(order.shard, None)
        if not self._knows(unit):
            return
        self._scheduler.done(order, seconds)
        if order.phase == "validate":
            if len(unit.accumulators) == self._validated:
                self.visits.summarize(order.shard, unit)
        elif len(unit.members) > 1 and not fused:
            self._dissolve(unit)
        elif self._scheduler.epoch_ready(unit.number):
            self._epoch_done(unit)

    def _repair(self, link: Link, error: LinkBroken) -> None:
        """Open a lost link again and order its visit anew; the states before that visit are still here.

        A visit is to blame where its segment's server has crashed, and has not said that another session was the cause.
        """
        number = self._links.index(link)
        self._plpy.notice("%s (%s); trying again" % (error.message, error.detail))
        order, unit = self.visits.current.pop(number, (None, None))
        if order is None:
            unit = self.visits.summaries.pop(number, None)
        crashed = self._reload(number)
        if unit is not None and crashed and not error.announced:
            self._losses.clear()
            if self._knows(unit):
                self._blame(unit, number, error)
        else:
            self._losses[number] = self._losses.get(number, 0) + 1
            if self._losses[number] > self._retries:
                raise error
        if unit is not None and self._knows(unit):
            if order is None:
                self.visits.summarize(number, unit)
            else:
                self._scheduler.requeue(order)

    def _knows(self, unit: Unit) -> bool:
        """Whether a unit still goes on as it is: its members have not all ended, nor gone on alone."""
        return self._units.get(unit.number) is unit

    def _blame(self, unit: Unit, number: int, error: LinkBroken) -> None:
        """Lay a crash to who visited there. A group is dissolved: the culprit shows when each visits alone."""
        if len(unit.members) > 1:
            self._dissolve(unit)
            return
        (trial,) = unit.members
        trial.crashes += 1
        self._ledger.trial_crashes(trial.number, trial.crashes)
        if trial.crashes > self._retries:
            self._failed(
                unit, trial, 'its worker died %s in epoch %d, last on segment "%s": %s (SQLSTATE %s)' % (
                    counted(trial.crashes, "time"), unit.epoch, self._segments.shards[number].segment,
                    error.detail.splitlines()[0], error.sqlstate,
                ),
            )  # fmt: skip

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
        value = rank_value(self._rank[0], metrics)
        status, reason = trial.end_epoch(unit.epoch, metrics, value, self._rank[1], unit.epoch == self._run["epochs"])
        best_now = trial.seq if trial.best_seq == trial.seq else None
        self._ledger.epoch_end(
            trial.number, unit.epoch, metrics, finite(trial.learning_rate), seconds,
            trial.metric, best_now, status, reason,
            then=lambda: faults.reach(self._plpy, "epoch-end", self._run["name"]),
        )  # fmt: skip
        self._notice_epoch(unit, trial, metrics, left)
        self._study.report(trial.number, unit.epoch, value)
        if status != "running":
            del self._waiting[trial.number]
            self._end(unit, trial, status, reason)

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
        done, total = self._counts()
        eta = ", %d:%02d left" % (left // 60, left % 60) if left and done < total else ""
        self._plpy.notice(
            "trial %d epoch %d/%d: %s (%d of %s%s)"
            % (trial.number, unit.epoch, self._run["epochs"], shown, done, counted(total, "visit"), eta)
        )

    def _counts(self) -> Tuple[int, int]:
        """Visits made, and visits to make in all; a trial that has ended makes no more."""
        return self.visits.count, self._visits_ended + (self._trial_count - self._ended) * self._visits_per_trial

    def _details(self) -> dict:
        lines = []
        for number, link in enumerate(self._links):
            order, _ = self.visits.current.get(number, (None, None))
            line = {"segment": self._segments.shards[number].segment}
            if order is None and link.busy and number not in self.visits.summaries:
                line = loading(line["segment"])
            elif order is not None:
                line.update(
                    phase=order.phase, trial=order.unit, epoch=order.epoch,
                    rows_done=(link.progress or {}).get("rows", 0),
                    rows_total=self._rows[number][0 if order.phase == "train" else 1],
                )  # fmt: skip
            lines.append(line)
        done, total = self._counts()
        return {
            "segments": lines, "visits_done": done, "visits_total": total,
            "eta_seconds": finite(self._scheduler.remaining_seconds()),
        }  # fmt: skip


def _figure(value: Any) -> str:
    return "[%s]" % ", ".join(_figure(item) for item in value) if isinstance(value, list) else "%.4g" % (value or 0.0)
