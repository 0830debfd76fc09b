"""A run without segments: drives a scheduler in simulated time. Pure."""

from __future__ import annotations

import heapq
from typing import Callable, Dict, List, NamedTuple, Tuple

from cerebro_udf.coordinator.scheduler import Order, Scheduler


class Visit(NamedTuple):
    """One that has been made, in simulated seconds; or lost, if it does not count."""

    order: Order
    begin: float
    end: float
    counts: bool


class Makespan(NamedTuple):
    """How long a run took, and the best that any schedule of the same visits could have done.

    Attributes:
        seconds: From the first visit's begin to the last one's end.
        bound: The larger of the busiest segment's and the longest unit's work (in each epoch its train visits one after
            another, then its validate visits at once).
        longest_visit: In seconds.
        visits: How many there were.
    """

    seconds: float
    bound: float
    longest_visit: float
    visits: int

    @property
    def ratio(self) -> float:
        return self.seconds / self.bound if self.bound else 1.0

    @property
    def excess(self) -> float:
        """What is above the bound, in longest visits."""
        return (self.seconds - self.bound) / self.longest_visit if self.longest_visit else 0.0


def simulate(
    scheduler: Scheduler,
    seconds: Callable[[Order], float],
    watch: Callable[[Visit], None] = lambda visit: None,
    lost: Callable[[Order], bool] = lambda order: False,
) -> Makespan:
    """Run a scheduler to its end; a unit begins its next epoch as soon as it may.

    Args:
        seconds: How long a visit takes; asked when it begins.
        watch: Is told of every visit when it ends.
        lost: Whether a visit is lost at its end, to be made again.
    """
    free = set(range(scheduler.segments))
    clock, longest, visits = 0.0, 0.0, 0
    under_way: List[Tuple[float, int, Order, float]] = []
    segment_work = [0.0] * scheduler.segments
    unit_work: Dict[int, float] = {}
    validation: Dict[Tuple[int, int], float] = {}
    while True:
        for order in scheduler.orders(free):
            free.remove(order.shard)
            heapq.heappush(under_way, (clock + seconds(order), visits, order, clock))
            visits += 1
        if not under_way:
            break
        clock = under_way[0][0]
        while under_way and under_way[0][0] == clock:
            _, _, order, begin = heapq.heappop(under_way)
            taken = clock - begin
            free.add(order.shard)
            longest = max(longest, taken)
            segment_work[order.shard] += taken
            if order.phase == "validate":
                before = validation.get((order.unit, order.epoch), 0.0)
                validation[order.unit, order.epoch] = max(before, taken)
                alone = max(0.0, taken - before)
            else:
                alone = taken
            unit_work[order.unit] = unit_work.get(order.unit, 0.0) + alone
            counts = not lost(order)
            watch(Visit(order, begin, clock, counts))
            if not counts:
                scheduler.requeue(order)
                continue
            scheduler.done(order, taken)
            if scheduler.epoch_ready(order.unit):
                scheduler.next_epoch(order.unit)
    return Makespan(clock, max(*segment_work, *unit_work.values()) if visits else 0.0, longest, visits)
