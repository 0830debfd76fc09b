"""Interleaved rounds, and the ratios that come out of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Callable, Mapping, Optional, Sequence


def interleave(sides: Mapping[str, Callable[[], float]], rounds: int, warm_ups: int = 1) -> dict[str, list[float]]:
    """Time every side once per round, the order turned round each time, so that a busy minute hits all alike.

    Args:
        sides: Each does its work once and returns the seconds it took.
        rounds: Counted rounds, > 0.
        warm_ups: Rounds before them that do not count.

    Returns:
        Seconds of each side, one number per round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warm_ups, rounds):
        order = list(sides.items())
        for name, work in order if number % 2 else reversed(order):
            taken = work()
            if number >= 0:
                seconds[name].append(taken)
    return seconds


@dataclass(frozen=True)
class Measure:
    """One figure with its goal.

    Attributes:
        name: What was measured.
        samples: One value per round.
        goal: The bound; None for a figure that is shown only.
        least: Whether the goal is a lower bound.
        unit: Empty for a ratio.
        seconds: Medians of what the figure was made of, by side; to judge it by.
    """

    name: str
    samples: Sequence[float]
    goal: Optional[float]
    least: bool
    unit: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range; 0 for a single sample."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return high - low

    @property
    def met(self) -> Optional[bool]:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal

    def to_json(self) -> dict:
        return {
            "name": self.name, "value": self.value, "goal": self.goal, "met": self.met, "spread": self.spread,
            "bound": "at least" if self.least else "at most", "unit": self.unit, "samples": list(self.samples),
            "seconds": dict(self.seconds),
        }  # fmt: skip


def ratio(
    name: str, seconds: Mapping[str, list[float]], above: str, below: str, goal: Optional[float], least: bool
) -> Measure:
    """The ratio of two sides, round by round: neighbours in time are compared, then the median is taken."""
    samples = [a / b for a, b in zip(seconds[above], seconds[below])]
    medians = {side: statistics.median(seconds[side]) for side in (above, below)}
    return Measure(name, samples, goal, least, "", medians)
