"""1,000 segments × 4,000 trials: the scheduler that runs use, driven in simulated time.

    PYTHONPATH=. python -m bench.simulation          # as `make bench` does
    PYTHONPATH=. python -m bench.simulation --full   # whole epochs: 4,000,000 visits a family, minutes each

For each family of instances: makespan over the bound, the larger of the busiest segment's and the longest trial's work
(validation included); what is above the bound in longest visits; and the CPU time of the coordinator's scheduler for a
decision, all events included. Instances are drawn from a seed. Trials are taken up within their epoch, each with 10 of the
1,000 shards left to visit, chosen at random: schedules go wrong at the end, and a whole epoch takes minutes to simulate.
Runs with validation and of several epochs are whole, and smaller. Those with one or two trials per segment and shards
of one size have no goal. There a validation waits for the visits under way on all segments, up to a whole visit in every
epoch, and a trial whose last segments are taken waits too; the bound counts neither. The best schedules that a local
search found with all times known beforehand (500 steps, 10 instances each) were still 2.0 longest visits above it on average
and 3.5 at worst (20 × 40), 2.8 and 3.2 (20 × 20).

Uneven: shards of 50 to 400 rows, trials that differ eightfold in speed. Every visit's time is its rows times its trial's
speed, times a lognormal noise of 10 %. Nobody tells the scheduler the speeds.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from typing import Iterable, Optional

from bench.rounds import Measure
from bench.servers import Servers
from cerebro_udf.coordinator.scheduler import Order, Scheduler
from cerebro_udf.coordinator.simulate import Makespan, simulate

NOISE = 0.1
VALIDATION_COST = 0.4  # of a row, relative to training on it
MEAN_GOAL, EXCESS_GOAL, DECISION_GOAL_MICROSECONDS = 1.03, 1.0, 1000.0


@dataclass(frozen=True)
class Family:
    """Instances alike; ``left``: shards that each trial still has to visit in its epoch, all by default."""

    name: str
    segments: int
    trials: int
    uneven: str  # in what: "shards", "trials", both or neither
    epochs: int = 1
    validation: bool = False
    left: Optional[int] = None
    goal: bool = True  # whether the goals hold for it


EVEN, BOTH = "", "shards, trials"
LARGE = [
    Family("1,000 × 4,000, even", 1000, 4000, EVEN, left=10),
    Family("1,000 × 4,000, uneven", 1000, 4000, BOTH, left=10),
]
FAMILIES = LARGE + [
    Family("100 × 400, even, validation", 100, 400, EVEN, validation=True),
    Family("100 × 400, uneven trials, validation", 100, 400, "trials", validation=True),
    Family("20 × 80, uneven, validation, 3 epochs", 20, 80, BOTH, 3, True),
    Family("20 × 40, uneven trials, validation, 3 epochs", 20, 40, "trials", 3, True, goal=False),
    Family("20 × 20, even, validation, 3 epochs", 20, 20, EVEN, 3, True, goal=False),
    Family("20 × 10, uneven, validation, 3 epochs", 20, 10, BOTH, 3, True),
]


class Timed(Scheduler):
    """Counts the CPU time of its decisions."""

    cpu_seconds = 0.0

    def orders(self, free: Iterable[int]) -> list[Order]:
        before = time.process_time()
        result = super().orders(free)
        self.cpu_seconds += time.process_time() - before
        return result

    def done(self, order: Order, seconds: float) -> None:
        before = time.process_time()
        super().done(order, seconds)
        self.cpu_seconds += time.process_time() - before


def run(family: Family, seed: int) -> tuple[Makespan, float]:
    """One instance: its makespan, and microseconds of CPU per decision."""
    draw = random.Random(seed)
    rows = [draw.randint(50, 400) if "shards" in family.uneven else 200 for _ in range(family.segments)]
    held = [count // 4 if family.validation else 0 for count in rows]
    speeds = [draw.choice([1, 1, 2, 4, 8]) if "trials" in family.uneven else 1 for _ in range(family.trials)]
    scheduler = Timed(rows, held, family.epochs, "fastest", seed)
    for trial in range(family.trials):
        made = 0 if family.left is None else family.segments - family.left
        scheduler.add(trial, 1, draw.sample(range(family.segments), made))

    def seconds(order: Order) -> float:
        weight = rows[order.shard] if order.phase == "train" else VALIDATION_COST * held[order.shard]
        return speeds[order.unit] * weight * draw.lognormvariate(0.0, NOISE)

    found = simulate(scheduler, seconds)
    return found, scheduler.cpu_seconds / found.visits * 1e6


def measures(family: Family, rounds: int) -> list[Measure]:
    found = [run(family, seed) for seed in range(rounds)]
    ratios = [makespan.ratio for makespan, _ in found]
    mean, worst = sum(ratios) / rounds, max(makespan.excess for makespan, _ in found)
    decision = [microseconds for _, microseconds in found]
    goals = (MEAN_GOAL, EXCESS_GOAL) if family.goal else (None, None)
    return [
        Measure("schedule %s: mean over the bound" % family.name, [mean], goals[0], False),
        Measure("schedule %s: worst above the bound" % family.name, [worst], goals[1], False, "longest visits"),
        Measure("schedule %s: a decision" % family.name, decision, DECISION_GOAL_MICROSECONDS, False, "µs of CPU"),
    ]


def measure(_: Optional[Servers], rounds: int) -> list[Measure]:
    return [one for family in FAMILIES for one in measures(family, rounds)]


def main() -> None:
    if "--full" in sys.argv[1:]:
        families = [Family(family.name + ", whole epoch", 1000, 4000, family.uneven) for family in LARGE]
        found = [one for family in families for one in measures(family, 1)]
    else:
        found = measure(None, 3)
    for one in found:
        print("%-75s %8.3f %s" % (one.name, one.value, one.unit))


if __name__ == "__main__":
    main()
