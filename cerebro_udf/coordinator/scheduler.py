"""Which trial visits which shard next. Pure: events in, orders out; no clock, no I/O.

In an epoch a trial visits every shard once to train, one visit at a time; when all are done, every shard with
rows for validation once, on any segments at the same time (the weights are frozen); then its next epoch begins,
whatever the other trials do. A segment works on one visit at a time. Both follow from two facts: ``orders`` gives
at most one order per free segment, and a trial in its train phase has at most one order out.

Policies:

* ``fastest``: a trial with more work left goes first, to the segment with more work left; as many free segments as
  possible get work (a maximum matching). Work is rows times measured seconds per row.
* ``fixed``: the visiting order of a trial depends on the seed alone. In epoch e, trial t visits
  ``p[t % n], p[(t + 1) % n], …`` where p is the shards 0 … n-1 sorted by the SHA-256 digest of the ASCII text
  ``"<seed>/<e>/<shard>"`` (decimal numbers), so that trials start on different segments.
* ``random``: a free segment takes any trial that may go there, at random (the choice of the paper).

Any schedule that leaves no segment idle while it could work takes at most twice the bound, the larger of the
busiest segment's and the longest trial's work.

Source: model hopper parallelism, Nakandala, Zhang and Kumar 2020; the bound: open shop, Gonzalez and Sahni 1976.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

POLICIES = ("fastest", "fixed", "random")

# A visit costs something even without rows: count it like one row, so that no visit weighs nothing.
ROWS_PER_VISIT = 1


@dataclass(frozen=True)
class Order:
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
    """What is left of one trial: its epoch and phase, the shards to visit in it, those being visited."""

    def __init__(self, number: int, epoch: int, left: List[int]):
        self.number = number
        self.epoch = epoch
        self.phase = "train"
        self.left = left  # in visiting order under ``fixed``
        self.running: Set[int] = set()


class _Rates:
    """Seconds per row, measured: of a trial, else of all trials, else 1."""

    def __init__(self) -> None:
        self._sums: Dict[Optional[int], Tuple[float, int]] = {}

    def add(self, trial: int, rows: int, seconds: float) -> None:
        for key in (trial, None):
            spent, seen = self._sums.get(key, (0.0, 0))
            self._sums[key] = (spent + seconds, seen + rows)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def of(self, trial: int) -> float:
        spent, seen = self._sums.get(trial) or self._sums.get(None) or (1.0, 1)
        return spent / seen


class Scheduler:
    """Gives orders for the trials added, until every one is through its epochs or dropped.

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
        self._weight = {
            "train": [rows + ROWS_PER_VISIT for rows in shard_rows],
            "validate": [rows + ROWS_PER_VISIT if rows else 0 for rows in validation_rows],
        }
        self._validated = [shard for shard, rows in enumerate(validation_rows) if rows]
        self._epoch_weight = sum(self._weight["train"])
        self._epochs = epochs
        self._policy = policy
        self._seed = seed
        self._random = random.Random(seed)
        self._trials: Dict[int, _Trial] = {}
        self._rates = {"train": _Rates(), "validate": _Rates()}

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
        visited = set(done)
        self._trials[trial] = _Trial(
            trial, epoch, [s for s in self._shards(trial, epoch) if s not in visited]
        )
        self._turn(self._trials[trial])

    def done(self, order: Order, seconds: float) -> None:
        """The visit is made; ``seconds`` the segment was busy with it. Of a dropped trial only the time counts."""
        self._rates[order.phase].add(order.trial, self._weight[order.phase][order.shard], seconds)
        trial = self._running(order)
        if trial is not None:
            trial.running.remove(order.shard)
            self._turn(trial)

    def requeue(self, order: Order) -> None:
        """The visit was lost; it will be ordered again."""
        trial = self._running(order)
        if trial is not None:
            trial.running.remove(order.shard)
            if self._policy == "fixed" and trial.phase == "train":
                trial.left.insert(0, order.shard)
            else:
                trial.left.append(order.shard)

    def drop(self, trial: int) -> None:
        """The trial failed or is pruned: no further orders for it."""
        self._trials.pop(trial, None)

    def epoch_ready(self, trial: int) -> bool:
        """Say whether all visits of the trial's epoch are made, and it waits for ``next_epoch``."""
        found = self._trials.get(trial)
        return found is not None and not found.left and not found.running

    def next_epoch(self, trial: int) -> None:
        """The epoch is recorded: begin the next one, or finish after the last."""
        if not self.epoch_ready(trial):
            raise ValueError("trial %d is within an epoch" % trial)
        self.add(trial, self._trials.pop(trial).epoch + 1)

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
        if not self._rates["train"] and not self._rates["validate"]:
            return None
        if self.finished:
            return 0.0
        segments = max(self._segment_work(segment) for segment in range(len(self._weight["train"])))
        return max(segments, max(self._trial_work(trial) for trial in self._trials.values()))

    def orders(self, free: Iterable[int]) -> List[Order]:
        """Give work to free segments: at most one order each, at most one for a trial in its train phase."""
        free = sorted(set(free))
        chosen = self._at_random(free) if self._policy == "random" else self._longest_first(free)
        result = []
        for segment in sorted(chosen):
            trial = chosen[segment]
            trial.left.remove(segment)
            trial.running.add(segment)
            result.append(Order(trial.number, trial.epoch, trial.phase, segment))
        return result

    # ---- policies

    def _at_random(self, free: List[int]) -> Dict[int, _Trial]:
        self._random.shuffle(free)
        chosen: Dict[int, _Trial] = {}
        training: Set[int] = set()
        for segment in free:
            able = [
                trial
                for _, trial in sorted(self._trials.items())
                if trial.number not in training and segment in self._open(trial)
            ]
            if able:
                trial = chosen[segment] = self._random.choice(able)
                if trial.phase == "train":
                    training.add(trial.number)
        return chosen

    def _longest_first(self, free: List[int]) -> Dict[int, _Trial]:
        """Match free segments with visits, trials with more work first.

        Augmenting paths: a trial may push another one to a different free segment, and never takes it out. So the
        matching is as large as can be, and no trial stands back for one with less work.
        """
        work = {number: self._trial_work(trial) for number, trial in self._trials.items()}
        busiest = sorted(free, key=lambda segment: (-self._segment_work(segment), segment))
        chosen: Dict[int, Tuple[_Trial, List[int]]] = {}
        for trial in sorted(self._trials.values(), key=lambda trial: (-work[trial.number], trial.number)):
            if len(chosen) == len(free):
                break
            shards = self._open(trial)
            able = [segment for segment in busiest if segment in shards]
            # A visit to validate can be made at one segment only; several of a trial may go out at once.
            for visit in [able] if trial.phase == "train" else [[segment] for segment in able]:
                self._place(trial, visit, chosen, set())
        return {segment: trial for segment, (trial, _) in chosen.items()}

    def _place(
        self, trial: _Trial, able: List[int], chosen: Dict[int, Tuple[_Trial, List[int]]], tried: Set[int]
    ) -> bool:
        for segment in able:
            if segment not in chosen:
                chosen[segment] = (trial, able)
                return True
        for segment in able:
            if segment not in tried:
                tried.add(segment)
                other, others = chosen[segment]
                if self._place(other, others, chosen, tried):
                    chosen[segment] = (trial, able)
                    return True
        return False

    def _open(self, trial: _Trial) -> Sequence[int]:
        """Shards that the trial could visit now."""
        if trial.phase == "validate":
            return trial.left
        if trial.running:
            return ()
        return trial.left[:1] if self._policy == "fixed" else trial.left

    # ---- bookkeeping

    def _shards(self, trial: int, epoch: int) -> List[int]:
        count = len(self._weight["train"])
        if self._policy == "fixed":
            return visiting_order(self._seed, epoch, trial, count)
        return list(range(count))

    def _turn(self, trial: _Trial) -> None:
        """Go on to validation when the last train visit is made."""
        if trial.phase == "train" and not trial.left and not trial.running and self._validated:
            trial.phase = "validate"
            trial.left = list(self._validated)

    def _running(self, order: Order) -> Optional[_Trial]:
        trial = self._trials.get(order.trial)
        if trial is None:
            return None
        if (trial.epoch, trial.phase) != (order.epoch, order.phase) or order.shard not in trial.running:
            raise ValueError("no such order is out: %s" % (order,))
        return trial

    def _rate(self, trial: int, phase: str) -> float:
        # Until a validate visit has been measured, a row costs as much as in training: an upper bound.
        measured = self._rates[phase] or self._rates["train"]
        return measured.of(trial)

    def _trial_work(self, trial: _Trial) -> float:
        """Seconds that the trial needs alone: its train visits one after another, its validate visits at once."""
        weight = self._weight[trial.phase]
        left = [weight[shard] for shard in (*trial.left, *trial.running)]
        epochs = self._epochs - trial.epoch
        train, validate = self._rate(trial.number, "train"), self._rate(trial.number, "validate")
        longest = max(self._weight["validate"])
        work = epochs * (train * self._epoch_weight + validate * longest)
        if trial.phase == "validate":
            return work + validate * max(left, default=0)
        return work + train * sum(left) + validate * longest

    def _segment_work(self, segment: int) -> float:
        """Seconds of visits that the segment still has to make."""
        work = 0.0
        for trial in self._trials.values():
            epochs = self._epochs - trial.epoch
            here = segment in trial.left or segment in trial.running
            train = epochs + (trial.phase == "train" and here)
            validate = epochs + (trial.phase == "train" or here)
            work += train * self._rate(trial.number, "train") * self._weight["train"][segment]
            work += validate * self._rate(trial.number, "validate") * self._weight["validate"][segment]
        return work
