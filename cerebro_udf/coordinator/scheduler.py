"""Which trial visits which shard next. Pure: events in, orders out; no clock, no I/O.

In an epoch a trial visits every shard once to train, one visit at a time; when all are done, every shard with
rows for validation once, on any segments at the same time (the weights are frozen); then its next epoch begins,
whatever the other trials do. A segment works on one visit at a time. Both follow from two facts: ``orders`` gives
at most one order per free segment, and a trial in its train phase has at most one order out.

Policies:

* ``fastest``: of the visits that a free segment could make, the one with the longest tail: the most seconds that its trial
  still needs after it. So slow trials do not stand back, and a short visit to validate, which a whole trial waits for, goes
  before a long one to train. A trial that could go to several segments goes to the one with the most work left, and as many
  free segments as possible get work (a maximum matching). Work is rows times measured seconds per row.
* ``fixed``: the visiting order of a trial depends on the seed alone. In epoch e, trial t visits
  ``p[t % n], p[(t + 1) % n], …`` where p is the shards 0 … n-1 sorted by the SHA-256 digest of the ASCII text
  ``"<seed>/<e>/<shard>"`` (decimal numbers), so that trials start on different segments.
* ``random``: a free segment takes any trial that may go there, at random (the choice of the paper).

Any schedule that leaves no segment idle while it could work takes at most twice the bound, the larger of the
busiest segment's and the longest trial's work.

Many segments and trials: which trials may go where is a matrix of booleans, work is kept as running sums, and ``orders``
looks only at what has changed since it was asked last, so that a decision costs some vector operations of the length of
the trials and the segments.

Source: model hopper parallelism, Nakandala, Zhang and Kumar 2020; the bound: open shop, Gonzalez and Sahni 1976; the longest
tail first: Jackson 1955.
"""

from __future__ import annotations

import hashlib
import random
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from cerebro_udf.coordinator.matching import match

POLICIES = ("fastest", "fixed", "random")

# A visit costs something even without rows: count it like one row, so that no visit weighs nothing.
ROWS_PER_VISIT = 1

# A trial's remaining work is estimated anew when its measured seconds per row have moved by this share.
DRIFT = 0.05

PHASES = ("train", "validate")


class Order(NamedTuple):
    """One visit to make: trial, epoch from 1, phase ``train`` or ``validate``, shard (shard k lies on segment k)."""

    trial: int
    epoch: int
    phase: str
    shard: int


def visiting_order(seed: int, epoch: int, trial: int, shards: int) -> List[int]:
    """Return the order in which a trial visits the shards in an epoch under ``fixed``."""
    digests = [
        hashlib.sha256(("%d/%d/%d" % (seed, epoch, k)).encode("ascii")).digest() for k in range(shards)
    ]
    permutation = sorted(range(shards), key=digests.__getitem__)
    first = trial % shards
    return permutation[first:] + permutation[:first]


class _Trial:
    """What is left of one trial in its epoch and phase.

    Attributes:
        slot: Its column in the scheduler's arrays.
        left: Visits of the phase that are not made, those under way included; bool (shards,).
        count: How many those are.
        running: Shards being visited.
        order: Under ``fixed``, shards to train on that have not been ordered, the next one last.
    """

    def __init__(self, number: int, slot: int, epoch: int):
        self.number, self.slot, self.epoch = number, slot, epoch
        self.phase = "train"
        self.left = np.zeros(0, bool)
        self.count = 0
        self.running: Set[int] = set()
        self.order: List[int] = []


class _Rates:
    """Seconds per row, measured: of a trial, else of all trials, else 1."""

    def __init__(self) -> None:
        self._sums: Dict[Optional[int], Tuple[float, float]] = {}
        self.mean_in_use: Optional[float] = None

    def add(self, trial: int, rows: float, seconds: float) -> None:
        for key in (trial, None):
            spent, seen = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = (spent + seconds, seen + rows)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def of(self, trial: Optional[int]) -> float:
        spent, seen = self._sums.get(trial) or self._sums.get(None) or (1.0, 1.0)
        return spent / seen


class Scheduler:
    """Gives orders for the trials added, until every one is through its epochs or dropped.

    Trials may be added and dropped at any time, and may wait between epochs for as long as it takes. The same events
    give the same orders.

    Args:
        shard_rows: Training rows of each shard, may be 0; such a shard is visited too.
        validation_rows: Rows for validation of each shard; without any there is no validate phase.
        epochs: Of every trial, from 1.
        policy: ``fastest``, ``fixed`` or ``random``.
        seed: Of the run, for ``fixed`` and ``random``.
    """

    def __init__(
        self, shard_rows: Sequence[int], validation_rows: Sequence[int], epochs: int, policy: str, seed: int
    ):
        if policy not in POLICIES:
            raise ValueError("unknown policy %r" % policy)
        if not shard_rows or len(shard_rows) != len(validation_rows):
            raise ValueError("as many validation_rows as shard_rows are needed, at least one")
        self.segments = len(shard_rows)
        self._weight = {
            "train": np.array([rows + ROWS_PER_VISIT for rows in shard_rows], float),
            "validate": np.array([rows + ROWS_PER_VISIT if rows else 0 for rows in validation_rows], float),
        }
        self._validated = self._weight["validate"] > 0
        # What a trial's epoch takes when the trial is alone: train visits one after another, validate visits at once.
        self._epoch_weight = {"train": self._weight["train"].sum(), "validate": self._weight["validate"].max()}
        self._epochs, self._policy, self._seed = epochs, policy, seed
        self._random = random.Random(seed)
        self._rates = {phase: _Rates() for phase in PHASES}
        self._trials: Dict[int, _Trial] = {}
        self._slots: List[Optional[_Trial]] = []
        self._unused: List[int] = []  # slots
        self._open = np.zeros((self.segments, 0), bool)  # (shard, slot): could be ordered if the trial were free
        self._able = {phase: np.zeros(0, bool) for phase in PHASES}  # (slot,): is free to be ordered in this phase
        self._rate = {phase: np.zeros(0) for phase in PHASES}  # (slot,): seconds per row that the sums are made with
        self._work = np.zeros(0)  # (slot,): seconds that the trial still needs when alone, visits under way as a whole
        self._busy = np.zeros(self.segments)  # (shard,): seconds of visits still to make there, likewise
        self._idle: Set[int] = set()  # segments that the last ``orders`` found nothing for
        self._was_idle = np.zeros(self.segments, bool)  # those, and some that have been taken since
        self._changed: Dict[int, None] = {}  # slots of trials that could be given something since then

    # ---- events

    def add(self, trial: int, epoch: int = 1, done: Iterable[int] = ()) -> None:
        """Take up a trial.

        A trial of which every shard is done, in a run without validation, is ``epoch_ready`` at once, and no
        order will come for it before ``next_epoch``.

        Args:
            epoch: Its first unfinished epoch; past the last one, the trial is finished.
            done: Shards that it has visited in the train phase of that epoch.
        """
        epoch = max(epoch, 1)
        if epoch > self._epochs:
            return
        self.drop(trial)
        if not self._unused:
            self._widen()
        new = _Trial(trial, self._unused.pop(), epoch)
        self._trials[trial] = self._slots[new.slot] = new
        self._begin(new, set(done))
        self._estimate(new)

    def done(self, order: Order, seconds: float) -> None:
        """The visit is made; ``seconds`` the segment was busy with it. Of a dropped trial only the time counts."""
        trial = self._running(order)
        weight = float(self._weight[order.phase][order.shard])
        if trial is not None:
            trial.running.remove(order.shard)
            trial.left[order.shard] = False
            trial.count -= 1
            left = self._rate[order.phase][trial.slot] * weight
            self._busy[order.shard] -= left
            if order.phase == "train":
                self._work[trial.slot] -= left
                self._free(trial)
                self._turn(trial)
        self._measured(order, weight, seconds, trial)

    def requeue(self, order: Order) -> None:
        """The visit was lost; it will be ordered again."""
        trial = self._running(order)
        if trial is not None:
            trial.running.remove(order.shard)
            if self._policy == "fixed" and trial.phase == "train":
                trial.order.append(order.shard)
            self._open[order.shard, trial.slot] = True
            self._free(trial)

    def drop(self, trial: int) -> None:
        """The trial failed or is pruned: no further orders for it."""
        found = self._trials.get(trial)
        if found is not None:
            self._estimate(found, gone=True)
            self._release(found)

    def epoch_ready(self, trial: int) -> bool:
        """Say whether all visits of the trial's epoch are made, and it waits for ``next_epoch``."""
        found = self._trials.get(trial)
        return found is not None and not found.count

    def next_epoch(self, trial: int) -> None:
        """The epoch is recorded: begin the next one, or finish after the last."""
        if not self.epoch_ready(trial):
            raise ValueError("trial %d is within an epoch" % trial)
        found = self._trials[trial]
        self._work[found.slot] -= self._rate["validate"][found.slot] * self._epoch_weight["validate"]
        if found.epoch == self._epochs:
            self._release(found)
        else:
            found.epoch += 1
            self._begin(found, set())

    # ---- questions

    @property
    def finished(self) -> bool:
        """Whether every trial is through its epochs or dropped."""
        return not self._trials

    def remaining_seconds(self) -> Optional[float]:
        """Estimate what is left: the larger of the busiest segment's and the longest trial's work, in seconds.

        Returns:
            None before the first measurement. Visits under way count as a whole.
        """
        if not any(self._rates.values()):
            return None
        if self.finished:
            return 0.0
        return max(0.0, float(self._busy.max()), float(self._work.max()))

    def orders(self, free: Iterable[int]) -> List[Order]:
        """Give work to free segments: at most one order each, at most one for a trial in its train phase.

        Args:
            free: All segments that are free.
        """
        idle = set(free)
        result = []
        choose = self._at_random if self._policy == "random" else self._choose
        for segment, slot in choose(self._candidates(idle)):
            trial = self._slots[slot]
            assert trial is not None
            idle.remove(segment)
            trial.running.add(segment)
            self._open[segment, trial.slot] = False
            if trial.phase == "train":
                self._able["train"][trial.slot] = False
                if self._policy == "fixed":
                    trial.order.pop()
            result.append(Order(trial.number, trial.epoch, trial.phase, segment))
            self._was_idle[segment] = False
        self._was_idle[list(idle - self._idle)] = True
        self._idle = idle
        self._changed.clear()
        return sorted(result, key=lambda order: order.shard)

    # ---- policies

    def _candidates(self, free: Set[int]) -> List[int]:
        """Free segments that may have work now: those that have become free, and those that a changed trial may visit.

        All others were free when ``orders`` was asked last, and none of the trials that were left then could go there.
        """
        found = free - self._idle
        if free & self._idle:
            for slot in self._changed:
                if self._able["train"][slot] or self._able["validate"][slot]:
                    found.update((self._open[:, slot] & self._was_idle).nonzero()[0].tolist())
        return sorted(found & free)

    def _choose(self, segments: List[int]) -> List[Tuple[int, int]]:
        """Pairs of a segment and the slot of the trial that goes there."""
        pairs, train, validate = [], [], {}
        for segment in segments:
            tail, slot = self._longest_tail("train", segment)
            validate_tail, validate[segment] = self._longest_tail("validate", segment)
            if validate[segment] is not None and validate_tail >= tail:
                pairs.append((segment, validate[segment]))
            elif slot is not None:
                train.append((segment, slot))
        if len(train) > 1:
            train = self._matching([segment for segment, _ in train])
        pairs += train
        served = {segment for segment, _ in pairs}
        return pairs + [(s, slot) for s, slot in validate.items() if slot is not None and s not in served]

    def _longest_tail(self, phase: str, segment: int) -> Tuple[float, Optional[int]]:
        """Seconds and slot of the trial that needs most after it has made its visit here; -inf and None without any."""
        able = self._open[segment] & self._able[phase]
        if not able.any():
            return -np.inf, None
        tails = np.where(able, self._work - self._rate[phase] * self._weight[phase][segment], -np.inf)
        slot = int(tails.argmax())
        return tails[slot], slot

    def _matching(self, segments: List[int]) -> List[Tuple[int, int]]:
        """Match segments with trials that train, as many as can be; more work goes first on both sides."""
        rows = np.array(segments)
        rows = rows[np.argsort(-self._busy[rows], kind="stable")]
        possible = self._open[rows] & self._able["train"]
        slots = possible.any(axis=0).nonzero()[0]
        slots = slots[np.argsort(-self._work[slots], kind="stable")]
        possible = possible[:, slots]
        if len(slots) <= len(rows):  # the scarce side chooses
            pairs = [(row, column) for column, row in match(possible.T)]
        else:
            pairs = match(possible)
        return [(int(rows[row]), int(slots[column])) for row, column in pairs]

    def _at_random(self, segments: List[int]) -> List[Tuple[int, int]]:
        self._random.shuffle(segments)
        able = self._able["train"] | self._able["validate"]
        pairs = []
        for segment in segments:
            slots = (self._open[segment] & able).nonzero()[0].tolist()
            if slots:
                slot = self._random.choice(slots)
                able[slot] = self._able["validate"][slot]
                pairs.append((segment, slot))
        return pairs

    # ---- bookkeeping

    def _widen(self) -> None:
        """Double the slots."""
        have = len(self._slots)
        more = max(have, 8)
        self._slots += [None] * more
        self._unused = list(range(have + more - 1, have - 1, -1))
        self._open = np.concatenate([self._open, np.zeros((self.segments, more), bool)], axis=1)
        self._able = {phase: np.concatenate([able, np.zeros(more, bool)]) for phase, able in self._able.items()}
        self._rate = {phase: np.concatenate([rate, np.zeros(more)]) for phase, rate in self._rate.items()}
        self._work = np.concatenate([self._work, np.zeros(more)])

    def _release(self, trial: _Trial) -> None:
        del self._trials[trial.number]
        self._slots[trial.slot] = None
        self._unused.append(trial.slot)
        self._open[:, trial.slot] = False
        self._work[trial.slot] = 0.0
        for phase in PHASES:
            self._rate[phase][trial.slot] = 0.0
            self._able[phase][trial.slot] = False

    def _begin(self, trial: _Trial, visited: Set[int]) -> None:
        """Begin the trial's epoch, some shards of which it has visited."""
        trial.phase, trial.running = "train", set()
        trial.left = np.ones(self.segments, bool)
        trial.left[list(visited)] = False
        trial.count = int(trial.left.sum())
        if self._policy == "fixed":
            order = visiting_order(self._seed, trial.epoch, trial.number, self.segments)
            trial.order = [shard for shard in reversed(order) if shard not in visited]
            self._open[:, trial.slot] = False
        else:
            self._open[:, trial.slot] = trial.left
        self._free(trial)
        self._turn(trial)

    def _turn(self, trial: _Trial) -> None:
        """Go on to validation when the last train visit is made."""
        if trial.phase == "train" and not trial.count and self._validated.any():
            trial.phase = "validate"
            trial.left = self._validated.copy()
            trial.count = int(trial.left.sum())
            self._open[:, trial.slot] = trial.left
            self._free(trial)

    def _free(self, trial: _Trial) -> None:
        """It may be ordered to visit what is open to it."""
        if self._policy == "fixed" and trial.phase == "train" and trial.order:
            self._open[trial.order[-1], trial.slot] = True
        for phase, able in self._able.items():
            able[trial.slot] = phase == trial.phase
        self._changed[trial.slot] = None

    def _running(self, order: Order) -> Optional[_Trial]:
        trial = self._trials.get(order.trial)
        if trial is None:
            return None
        if (trial.epoch, trial.phase) != (order.epoch, order.phase) or order.shard not in trial.running:
            raise ValueError("no such order is out: %s" % (order,))
        return trial

    # ---- estimates

    def _measured(self, order: Order, weight: float, seconds: float, trial: Optional[_Trial]) -> None:
        """Learn from a visit; estimate what depends on it anew if that makes a difference."""
        rates = self._rates[order.phase]
        rates.add(order.trial, weight, seconds)
        mean, used = rates.of(None), rates.mean_in_use
        if used is None or abs(mean - used) > DRIFT * used:
            rates.mean_in_use = mean
            for each in self._trials.values():
                self._estimate(each)
        elif trial is not None:
            self._estimate(trial)

    def _estimate(self, trial: _Trial, gone: bool = False) -> None:
        """Bring the sums up to the trial's measured rates, or take it out of them."""
        for phase in PHASES:
            # Until a validate visit has been measured, a row costs as much as in training: an upper bound.
            rate = 0.0 if gone else (self._rates[phase] or self._rates["train"]).of(trial.number)
            used = float(self._rate[phase][trial.slot])
            change = rate - used
            if abs(change) <= DRIFT * used:
                continue
            self._rate[phase][trial.slot] = rate
            ahead = self._epochs - trial.epoch
            if phase == trial.phase:
                here = trial.left
            else:
                here = self._validated if phase == "validate" else np.zeros(self.segments, bool)
            self._busy += change * self._weight[phase] * (ahead + here)
            alone = ahead * self._epoch_weight[phase]
            if phase == "validate":
                alone += self._epoch_weight[phase]  # until the epoch ends
            elif trial.phase == "train":
                alone += self._weight[phase][trial.left].sum()
            self._work[trial.slot] += change * alone
