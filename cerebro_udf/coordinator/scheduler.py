"""Which unit visits which shard next. Pure: events in, orders out; no clock, no I/O.

In an epoch a unit visits every shard once to train, one visit at a time; when all are done, every shard with
rows for validation once, on any segments at the same time (the weights are frozen); then its next epoch begins,
whatever the other units do. A segment works on one visit at a time. Both follow from two facts: ``orders`` gives
at most one order per free segment, and a unit in its train phase has at most one order out.

Policies:

* ``fastest``: of the visits that a free segment could make, the one with the longest tail: the most seconds that its unit
  still needs after it. So slow units do not stand back, and a short visit to validate, which a whole unit waits for, goes
  before a long one to train. A unit that could go to several segments goes to the one with the most work left, and as many
  free segments as possible get work (a maximum matching). While some unit makes its last visit to train of an epoch, it goes
  where its own visit is shortest instead: the other's validation waits for every segment. Work is rows times measured
  seconds per row.
* ``fixed``: the visiting order of a unit depends on the seed alone. In epoch e, unit t visits
  ``p[t % n], p[(t + 1) % n], …`` where p is the shards 0 … n-1 sorted by the SHA-256 digest of the ASCII text
  ``"<seed>/<e>/<shard>"`` (decimal numbers), so that units start on different segments.
* ``random``: a free segment takes any unit that may go there, at random (the choice of the paper).

Any schedule that leaves no segment idle while it could work takes at most twice the bound, the larger of the
busiest segment's and the longest unit's work.

Many segments and units: which units may go where is a matrix of booleans, work is kept as running sums, and ``orders``
looks only at what has changed since it was asked last, so that a decision costs some vector operations of the length of
the units and the segments.

Source: model hopper parallelism, Nakandala, Zhang and Kumar 2020; the bound: open shop, Gonzalez and Sahni 1976; the longest
tail first: Jackson 1955.
"""

from __future__ import annotations

import hashlib
import random
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from cerebro_udf.coordinator.matching import match
from cerebro_udf.coordinator.work import PHASES, Standing, Work

POLICIES = ("fastest", "fixed", "random")


class Order(NamedTuple):
    """One visit to make: unit, epoch from 1, phase ``train`` or ``validate``, shard (shard k lies on segment k)."""

    unit: int
    epoch: int
    phase: str
    shard: int


def visiting_order(seed: int, epoch: int, unit: int, shards: int) -> List[int]:
    """Return the order in which a unit visits the shards in an epoch under ``fixed``."""
    digests = [
        hashlib.sha256(("%d/%d/%d" % (seed, epoch, k)).encode("ascii")).digest() for k in range(shards)
    ]
    permutation = sorted(range(shards), key=digests.__getitem__)
    first = unit % shards
    return permutation[first:] + permutation[:first]


class Scheduler:
    """Gives orders for the units added, until every one is through its epochs or dropped.

    Units may be added and dropped at any time, and may wait between epochs for as long as it takes. The same events
    give the same orders.

    Args:
        shard_rows: Training rows of each shard, may be 0; such a shard is visited too.
        validation_rows: Rows for validation of each shard; without any there is no validate phase.
        epochs: Of every unit, from 1.
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
        self._work = Work(shard_rows, validation_rows, epochs)
        self._epochs, self._policy, self._seed = epochs, policy, seed
        self._random = random.Random(seed)
        self._units: Dict[int, Standing] = {}
        self._slots: List[Optional[Standing]] = []
        self._unused: List[int] = []  # slots
        self._open = np.zeros((self.segments, 0), bool)  # (shard, slot): could be ordered if the unit were free
        self._able = {phase: np.zeros(0, bool) for phase in PHASES}  # (slot,): is free to be ordered in this phase
        self._idle: Set[int] = set()  # segments that the last ``orders`` found nothing for
        self._was_idle = np.zeros(self.segments, bool)  # those, and some that have been taken since
        self._changed: Dict[int, None] = {}  # slots of units that could be given something since then

    # ---- events

    def add(self, unit: int, epoch: int = 1, done: Iterable[int] = ()) -> None:
        """Take up a unit.

        A unit of which every shard is done, in a run without validation, is ``epoch_ready`` at once, and no
        order will come for it before ``next_epoch``.

        Args:
            epoch: Its first unfinished epoch; past the last one, the unit is finished.
            done: Shards that it has visited in the train phase of that epoch.
        """
        epoch = max(epoch, 1)
        if epoch > self._epochs:
            return
        self.drop(unit)
        if not self._unused:
            self._widen()
        new = Standing(unit, self._unused.pop(), epoch)
        self._units[unit] = self._slots[new.slot] = new
        self._begin(new, set(done))
        self._work.estimate(new)

    def done(self, order: Order, seconds: float) -> None:
        """The visit is made; ``seconds`` the segment was busy with it. Of a dropped unit only the time counts."""
        unit = self._running(order)
        if unit is not None:
            unit.running.remove(order.shard)
            unit.left[order.shard] = False
            unit.count -= 1
            self._work.made(unit, order.phase, order.shard)
            if order.phase == "train":
                self._free(unit)
                self._turn(unit)
        if self._work.measured(order.unit, order.phase, order.shard, seconds):
            for each in self._units.values():
                self._work.estimate(each)
        elif unit is not None:
            self._work.estimate(unit)

    def requeue(self, order: Order) -> None:
        """The visit was lost; it will be ordered again."""
        unit = self._running(order)
        if unit is not None:
            unit.running.remove(order.shard)
            if self._policy == "fixed" and unit.phase == "train":
                unit.order.append(order.shard)
            self._open[order.shard, unit.slot] = True
            self._free(unit)

    def drop(self, unit: int) -> None:
        """The unit failed or is pruned: no further orders for it."""
        found = self._units.get(unit)
        if found is not None:
            self._release(found)

    def epoch_ready(self, unit: int) -> bool:
        """Say whether all visits of the unit's epoch are made, and it waits for ``next_epoch``."""
        found = self._units.get(unit)
        return found is not None and not found.count

    def next_epoch(self, unit: int) -> None:
        """The epoch is recorded: begin the next one, or finish after the last."""
        if not self.epoch_ready(unit):
            raise ValueError("unit %d is within an epoch" % unit)
        found = self._units[unit]
        self._work.epoch_ended(found)
        if found.epoch == self._epochs:
            self._release(found)
        else:
            found.epoch += 1
            self._begin(found, set())

    # ---- questions

    @property
    def finished(self) -> bool:
        """Whether every unit is through its epochs or dropped."""
        return not self._units

    def remaining_seconds(self) -> Optional[float]:
        """Estimate what is left: the larger of the busiest segment's and the longest unit's work, in seconds.

        Returns:
            None before the first measurement. Visits under way count as a whole.
        """
        left = self._work.left()
        return 0.0 if self.finished and left is not None else left

    def orders(self, free: Iterable[int]) -> List[Order]:
        """Give work to free segments: at most one order each, at most one for a unit in its train phase.

        Args:
            free: All segments that are free.
        """
        idle = set(free)
        result = []
        choose = self._at_random if self._policy == "random" else self._choose
        for segment, slot in choose(self._candidates(idle)):
            unit = self._slots[slot]
            assert unit is not None
            idle.remove(segment)
            unit.running.add(segment)
            self._open[segment, unit.slot] = False
            if unit.phase == "train":
                self._able["train"][unit.slot] = False
                if self._policy == "fixed":
                    unit.order.pop()
            result.append(Order(unit.number, unit.epoch, unit.phase, segment))
            self._was_idle[segment] = False
        self._was_idle[list(idle - self._idle)] = True
        self._idle = idle
        self._changed.clear()
        return sorted(result, key=lambda order: order.shard)

    # ---- policies

    def _candidates(self, free: Set[int]) -> List[int]:
        """Free segments that may have work now: those that have become free, and those that a changed unit may visit.

        All others were free when ``orders`` was asked last, and none of the units that were left then could go there.
        """
        found = free - self._idle
        if free & self._idle:
            for slot in self._changed:
                if self._able["train"][slot] or self._able["validate"][slot]:
                    found.update((self._open[:, slot] & self._was_idle).nonzero()[0].tolist())
        return sorted(found & free)

    def _choose(self, segments: List[int]) -> List[Tuple[int, int]]:
        """Pairs of a segment and the slot of the unit that goes there."""
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
        """Seconds and slot of the unit that needs most after it has made its visit here; -inf and None without any."""
        able = self._open[segment] & self._able[phase]
        if not able.any():
            return -np.inf, None
        tails = np.where(able, self._work.of_unit - self._work.rate[phase] * self._work.weight[phase][segment], -np.inf)
        slot = int(tails.argmax())
        return tails[slot], slot

    def _matching(self, segments: List[int]) -> List[Tuple[int, int]]:
        """Match segments with units that train, as many as can be; more work goes first on both sides."""
        rows = np.array(segments)
        slots = (self._open[rows] & self._able["train"]).any(axis=0).nonzero()[0]
        slots = slots[np.argsort(-self._work.of_unit[slots], kind="stable")]
        choice = len(slots) <= len(rows)  # the scarce side chooses
        first = self._work.weight["train"][rows] * (choice and self._validation_is_near())
        rows = rows[np.lexsort((-self._work.on_segment[rows], first))]
        possible = self._open[np.ix_(rows, slots)]
        pairs = [(row, column) for column, row in match(possible.T)] if choice else match(possible)
        return [(int(rows[row]), int(slots[column])) for row, column in pairs]

    def _validation_is_near(self) -> bool:
        """Whether a unit makes the last visit before its validation."""
        return bool(self._work.validated.any()) and any(
            unit.count == 1 and unit.phase == "train" and unit.running for unit in self._units.values()
        )

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
        self._work.widen(more)

    def _release(self, unit: Standing) -> None:
        self._work.remove(unit)
        del self._units[unit.number]
        self._slots[unit.slot] = None
        self._unused.append(unit.slot)
        self._open[:, unit.slot] = False
        for phase in PHASES:
            self._able[phase][unit.slot] = False

    def _begin(self, unit: Standing, visited: Set[int]) -> None:
        """Begin the unit's epoch, some shards of which it has visited."""
        unit.phase, unit.running = "train", set()
        unit.left = np.ones(self.segments, bool)
        unit.left[list(visited)] = False
        unit.count = int(unit.left.sum())
        if self._policy == "fixed":
            order = visiting_order(self._seed, unit.epoch, unit.number, self.segments)
            unit.order = [shard for shard in reversed(order) if shard not in visited]
            self._open[:, unit.slot] = False
        else:
            self._open[:, unit.slot] = unit.left
        self._free(unit)
        self._turn(unit)

    def _turn(self, unit: Standing) -> None:
        """Go on to validation when the last train visit is made."""
        if unit.phase == "train" and not unit.count and self._work.validated.any():
            unit.phase = "validate"
            unit.left = self._work.validated.copy()
            unit.count = int(unit.left.sum())
            self._open[:, unit.slot] = unit.left
            self._free(unit)

    def _free(self, unit: Standing) -> None:
        """It may be ordered to visit what is open to it."""
        if self._policy == "fixed" and unit.phase == "train" and unit.order:
            self._open[unit.order[-1], unit.slot] = True
        for phase, able in self._able.items():
            able[unit.slot] = phase == unit.phase
        self._changed[unit.slot] = None

    def _running(self, order: Order) -> Optional[Standing]:
        unit = self._units.get(order.unit)
        if unit is None:
            return None
        if (unit.epoch, unit.phase) != (order.epoch, order.phase) or order.shard not in unit.running:
            raise ValueError("no such order is out: %s" % (order,))
        return unit
