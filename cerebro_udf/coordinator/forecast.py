"""How long a run will take, from the times of a few visits: its own scheduler, played through. Pure.

The forecast knows what a visit costs on each segment (a fixed part, and seconds per row), what it costs to make a program or
a first state there, and in which units trials move. It takes every trial through all of its epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Sequence, Set, Tuple

from cerebro_udf.coordinator.scheduler import Order, Scheduler
from cerebro_udf.coordinator.simulate import simulate


@dataclass(frozen=True)
class Cost:
    """Seconds of one visit of a unit."""

    fixed: float
    per_row: float

    def of(self, rows: int) -> float:
        return self.fixed + self.per_row * rows

    def share(self, parts: int) -> "Cost":
        return Cost(self.fixed / parts, self.per_row / parts)


@dataclass(frozen=True)
class Measured:
    """What one unit's pilot showed on one segment, in seconds.

    Attributes:
        train, validate: Of a visit once its program is there.
        trace: To make that program.
        first_states: To make the members' first states.
        state_bytes: Of one member.
        fused: Whether its members were trained as one.
    """

    train: Cost
    validate: Cost
    trace: float
    first_states: float
    state_bytes: int
    fused: bool

    def alone(self, members: int) -> "Measured":
        """What one of so many members costs, that were trained one after another."""
        return Measured(
            self.train.share(members), self.validate.share(members), self.trace, self.first_states / members, self.state_bytes, False
        )


def mean(measured: Sequence[Measured]) -> Measured:
    """What a unit costs that was not measured: as much as these, on average."""

    def of(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    def cost(costs: Sequence[Cost]) -> Cost:
        return Cost(of([c.fixed for c in costs]), of([c.per_row for c in costs]))

    return Measured(
        cost([m.train for m in measured]), cost([m.validate for m in measured]), of([m.trace for m in measured]),
        of([m.first_states for m in measured]), max(m.state_bytes for m in measured), all(m.fused for m in measured),
    )  # fmt: skip


def seconds(
    rows: Sequence[Tuple[int, int]], epochs: int, policy: str, seed: int, units: Sequence[str], costs: Dict[str, Sequence[Measured]],
    warm: Set[str],
) -> Tuple[float, int]:  # fmt: skip
    """Play a run through, all units at once.

    Args:
        rows: To train on and for validation, of each shard.
        epochs, policy, seed: Of the run.
        units: What each unit is like, in order; a key of ``costs``.
        costs: For each segment.
        warm: Keys whose programs are there already, on every segment.

    Returns:
        (seconds from the first order to the end, visits made).
    """
    scheduler = Scheduler([a for a, _ in rows], [b for _, b in rows], epochs, policy, seed)
    for number in range(len(units)):
        scheduler.add(number)
    traced = {(key, segment) for key in warm for segment in range(len(rows))}
    begun: Set[int] = set()

    def duration(order: Order) -> float:
        key = units[order.unit]
        cost = costs[key][order.shard]
        taken = (cost.train if order.phase == "train" else cost.validate).of(rows[order.shard][order.phase != "train"])
        if (key, order.shard) not in traced:
            traced.add((key, order.shard))
            taken += cost.trace
        if order.unit not in begun:
            begun.add(order.unit)
            taken += cost.first_states
        return taken

    made = simulate(scheduler, duration)
    return made.seconds, made.visits
