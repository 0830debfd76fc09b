"""How much work is left, in seconds: of each unit and on each segment, from the visits that were measured. Pure."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

# A visit costs something even without rows: count it like one row, so that no visit weighs nothing.
ROWS_PER_VISIT = 1

# A unit's remaining work is estimated anew when its measured seconds per row have moved by this share.
DRIFT = 0.05

PHASES = ("train", "validate")


class Standing:
    """What is left of one unit in its epoch and phase.

    Attributes:
        slot: Its column in the arrays of scheduler and work.
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
    """Seconds per row, measured: of a unit, else of all units, else 1."""

    def __init__(self) -> None:
        self._sums: Dict[Optional[int], Tuple[float, float]] = {}
        self.mean_in_use: Optional[float] = None

    def add(self, unit: int, rows: float, seconds: float) -> None:
        for key in (unit, None):
            spent, seen = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = (spent + seconds, seen + rows)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def of(self, unit: Optional[int]) -> float:
        spent, seen = self._sums.get(unit) or self._sums.get(None) or (1.0, 1.0)
        return spent / seen


class Work:
    """Running sums of the work that is left, visits under way as a whole.

    Args:
        shard_rows, validation_rows: Of each shard.
        epochs: Of every unit.

    Attributes:
        weight: Of a visit, in rows: phase -> float (shards,). A visit takes its unit's rate times this.
        validated: bool (shards,): has rows for validation.
        rate: phase -> float (slots,), seconds per row that the sums are made with.
        of_unit: float (slots,), seconds that the unit still needs when alone.
        on_segment: float (shards,), seconds of visits still to make there.
    """

    def __init__(self, shard_rows: Sequence[int], validation_rows: Sequence[int], epochs: int):
        self.weight = {
            "train": np.array([rows + ROWS_PER_VISIT for rows in shard_rows], float),
            "validate": np.array([rows + ROWS_PER_VISIT if rows else 0 for rows in validation_rows], float),
        }
        self.validated = self.weight["validate"] > 0
        # What a unit's epoch takes when the unit is alone: train visits one after another, validate visits at once.
        self._epoch_weight = {"train": self.weight["train"].sum(), "validate": self.weight["validate"].max()}
        self._epochs = epochs
        self._measured = {phase: _Rates() for phase in PHASES}
        self.rate = {phase: np.zeros(0) for phase in PHASES}
        self.of_unit = np.zeros(0)
        self.on_segment = np.zeros(len(self.validated))

    def left(self) -> Optional[float]:
        """The larger of the busiest segment's and the longest unit's work; None before the first measurement."""
        if not any(self._measured.values()):
            return None
        return max(0.0, float(self.on_segment.max()), float(self.of_unit.max()))

    def widen(self, more: int) -> None:
        """Make room for so many slots more."""
        self.rate = {phase: np.concatenate([rate, np.zeros(more)]) for phase, rate in self.rate.items()}
        self.of_unit = np.concatenate([self.of_unit, np.zeros(more)])

    def made(self, unit: Standing, phase: str, shard: int) -> None:
        """One visit less."""
        seconds = self.rate[phase][unit.slot] * self.weight[phase][shard]
        self.on_segment[shard] -= seconds
        if phase == "train":
            self.of_unit[unit.slot] -= seconds

    def epoch_ended(self, unit: Standing) -> None:
        """Its validation, which counts as a whole until then, is over."""
        self.of_unit[unit.slot] -= self.rate["validate"][unit.slot] * self._epoch_weight["validate"]

    def measured(self, unit: int, phase: str, shard: int, seconds: float) -> bool:
        """Learn from a visit; say whether all units are to be estimated anew, not its own alone."""
        rates = self._measured[phase]
        rates.add(unit, float(self.weight[phase][shard]), seconds)
        mean, used = rates.of(None), rates.mean_in_use
        if used is not None and abs(mean - used) <= DRIFT * used:
            return False
        rates.mean_in_use = mean
        return True

    def estimate(self, unit: Standing) -> None:
        """Bring the sums up to the unit's measured rates."""
        for phase in PHASES:
            # Until a validate visit has been measured, a row costs as much as in training: an upper bound.
            rate = (self._measured[phase] or self._measured["train"]).of(unit.number)
            if abs(rate - self.rate[phase][unit.slot]) > DRIFT * self.rate[phase][unit.slot]:
                self._change(unit, phase, rate)

    def remove(self, unit: Standing) -> None:
        """Take the unit out of the sums."""
        for phase in PHASES:
            self._change(unit, phase, 0.0)
        self.of_unit[unit.slot] = 0.0  # exactly

    def _change(self, unit: Standing, phase: str, rate: float) -> None:
        change = rate - float(self.rate[phase][unit.slot])
        self.rate[phase][unit.slot] = rate
        ahead = self._epochs - unit.epoch
        if phase == unit.phase:
            here = unit.left
        else:
            here = self.validated if phase == "validate" else np.zeros(len(self.validated), bool)
        self.on_segment += change * self.weight[phase] * (ahead + here)
        alone = ahead * self._epoch_weight[phase]
        if phase == "validate":
            alone += self._epoch_weight[phase]  # until the epoch ends
        elif unit.phase == "train":
            alone += self.weight[phase][unit.left].sum()
        self.of_unit[unit.slot] += change * alone
