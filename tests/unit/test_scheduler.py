"""The scheduler alone, in simulated time: every visit exactly once, never two at a time, near the bound."""

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf.coordinator.scheduler import POLICIES, Order, Scheduler, visiting_order


def simulate(scheduler, cost, segments, lost=lambda order: False):
    """Drive a scheduler to its end.

    Returns:
        (order, begin, end, counted) of every visit, in the order of their ends. ``lost`` visits are requeued.
    """
    free, clock, under_way, log, number = set(range(segments)), 0.0, [], [], 0
    while True:
        for order in scheduler.orders(free):
            assert order.shard in free
            free.remove(order.shard)
            heapq.heappush(under_way, (clock + cost(order), number, order, clock))
            number += 1
        if not under_way:
            assert scheduler.finished
            return log
        clock, _, order, begin = heapq.heappop(under_way)
        free.add(order.shard)
        counted = not lost(order)
        log.append((order, begin, clock, counted))
        if not counted:
            scheduler.requeue(order)
            continue
        scheduler.done(order, clock - begin)
        if scheduler.epoch_ready(order.trial):
            scheduler.next_epoch(order.trial)


def makespan(log):
    return max(end for _, _, end, _ in log)


def bound(trials, epochs, train, validate, speed):
    """The larger of the busiest segment's and the longest trial's work (its validate visits run at once)."""
    segment = max(a + b for a, b in zip(train, validate)) * sum(speed[:trials]) * epochs
    return max(segment, max(speed[:trials]) * (sum(train) + max(validate)) * epochs)


def disjoint(spans):
    spans = sorted(spans)
    return all(one[1] <= two[0] for one, two in zip(spans, spans[1:]))


@st.composite
def runs(draw):
    segments = draw(st.integers(1, 5))
    return {
        "rows": draw(st.lists(st.sampled_from([0, 1, 7, 100, 1000]), min_size=segments, max_size=segments)),
        "held": draw(st.lists(st.sampled_from([0, 0, 3, 50]), min_size=segments, max_size=segments)),
        "epochs": draw(st.integers(1, 3)),
        "trials": draw(st.integers(1, 7)),
        "policy": draw(st.sampled_from(POLICIES)),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "times": draw(st.integers(0, 2**32)),
    }


def new(run):
    scheduler = Scheduler(run["rows"], run["held"], run["epochs"], run["policy"], run["seed"])
    for trial in range(run["trials"]):
        scheduler.add(trial)
    return scheduler


def expected(run):
    shards = range(len(run["rows"]))
    return {
        Order(trial, epoch, phase, shard)
        for trial in range(run["trials"])
        for epoch in range(1, run["epochs"] + 1)
        for phase in ("train", "validate")
        for shard in shards
        if phase == "train" or run["held"][shard]
    }


@given(runs())
@settings(deadline=None)
def test_every_visit_exactly_once_and_never_two_at_a_time(run):
    clock = random.Random(run["times"])
    log = simulate(new(run), lambda order: clock.choice([0.0, 0.1, 1, 1, 5]), len(run["rows"]))
    orders = [order for order, *_ in log]
    assert len(orders) == len(set(orders)) and set(orders) == expected(run)
    for segment in range(len(run["rows"])):
        assert disjoint((begin, end) for order, begin, end, _ in log if order.shard == segment)
    for trial in range(run["trials"]):
        mine = [entry for entry in log if entry[0].trial == trial]
        assert disjoint((begin, end) for order, begin, end, _ in mine if order.phase == "train")
        stages = {}
        for order, begin, end, _ in mine:
            first, last = stages.get((order.epoch, order.phase), (begin, end))
            stages[order.epoch, order.phase] = (min(first, begin), max(last, end))
        assert disjoint(span for _, span in sorted(stages.items()))
        assert [stage for stage, _ in sorted(stages.items(), key=lambda item: item[1])] == sorted(stages)


@given(runs(), st.integers(0, 2**32))
@settings(deadline=None)
def test_lost_visits_are_made_again_and_count_once(run, faults):
    clock, fault = random.Random(run["times"]), random.Random(faults)
    log = simulate(new(run), lambda o: clock.random(), len(run["rows"]), lambda order: fault.random() < 0.3)
    counted = [order for order, _, _, counted in log if counted]
    assert len(counted) == len(set(counted)) and set(counted) == expected(run)


@given(runs(), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_run_resumed_within_an_epoch_makes_what_is_left(run, cut):
    """Stop after some visits, tell a new scheduler what was done, go on: together exactly once."""
    clock, choice = random.Random(run["times"]), random.Random(cut)
    before = simulate(new(run), lambda order: clock.random(), len(run["rows"]))
    kept = [order for order, *_ in before[: choice.randrange(len(before) + 1)]]
    scheduler = Scheduler(run["rows"], run["held"], run["epochs"], run["policy"], run["seed"])
    repeated = set()
    for trial in range(run["trials"]):
        ended = [
            e
            for e in range(1, run["epochs"] + 1)
            if all(o in kept for o in expected(run) if (o.trial, o.epoch) == (trial, e))
        ]
        epoch = len(ended) + 1
        scheduler.add(
            trial, epoch, [o.shard for o in kept if (o.trial, o.epoch, o.phase) == (trial, epoch, "train")]
        )
        # Accumulators of a validation under way are gone with the process: all its shards are validated again.
        repeated |= {o for o in kept if (o.trial, o.epoch, o.phase) == (trial, epoch, "validate")}
        if scheduler.epoch_ready(trial):
            scheduler.next_epoch(trial)
    after = [order for order, *_ in simulate(scheduler, lambda order: clock.random(), len(run["rows"]))]
    assert len(after) == len(set(after))
    assert set(after) == (expected(run) - set(kept)) | repeated
    if run["policy"] == "fixed":
        for trial in range(run["trials"]):
            for epoch in range(1, run["epochs"] + 1):
                made = [
                    o.shard for o in kept + after if (o.trial, o.epoch, o.phase) == (trial, epoch, "train")
                ]
                assert made == visiting_order(run["seed"], epoch, trial, len(run["rows"]))


@given(runs(), st.integers(0, 2**32))
@settings(deadline=None)
def test_fixed_orders_depend_on_the_seed_alone(run, other_times):
    run = dict(run, policy="fixed")
    for times in (run["times"], other_times):
        clock = random.Random(times)
        made = {}
        for order, *_ in simulate(new(run), lambda order, clock=clock: clock.random(), len(run["rows"])):
            if order.phase == "train":
                made.setdefault((order.trial, order.epoch), []).append(order.shard)
        for (trial, epoch), shards in made.items():
            assert shards == visiting_order(run["seed"], epoch, trial, len(run["rows"]))


def test_the_fixed_formula_is_the_documented_one():
    import hashlib

    digest = {k: hashlib.sha256(b"42/3/%d" % k).digest() for k in range(4)}
    permutation = sorted(range(4), key=digest.get)
    assert [visiting_order(42, 3, 6, 4)[i] for i in range(4)] == [permutation[(6 + i) % 4] for i in range(4)]
    assert visiting_order(42, 3, 0, 4) != visiting_order(43, 3, 0, 4) or (
        visiting_order(42, 4, 0, 4) != visiting_order(43, 4, 0, 4)
    )


@given(runs(), st.integers(0, 6), st.integers(0, 20))
@settings(deadline=None)
def test_a_dropped_trial_gets_no_further_orders(run, victim, after):
    scheduler, clock = new(run), random.Random(run["times"])
    seen = []

    def lost(order):
        seen.append(order)
        if len(seen) == after + 1:
            scheduler.drop(victim)
        return False

    log = simulate(scheduler, lambda order: clock.random(), len(run["rows"]), lost)
    dropped_at = log[min(after, len(log) - 1)][2]
    assert all(begin <= dropped_at for order, begin, _, _ in log if order.trial == victim)
    others = {order for order in expected(run) if order.trial != victim}
    assert others <= {order for order, *_ in log}


def ratio(policy, seed, trials, segments, epochs, skewed):
    choose = random.Random(seed)
    rows = [choose.randint(50, 400) if skewed else 200 for _ in range(segments)]
    held = [count // 5 for count in rows]
    speed = [choose.choice([1, 1, 2, 4, 8]) if skewed else 1 for _ in range(trials)]
    run = {"rows": rows, "held": held, "epochs": epochs, "trials": trials, "policy": policy, "seed": seed}

    def cost(order):
        seconds = rows[order.shard] if order.phase == "train" else 0.4 * held[order.shard]
        return speed[order.trial] * seconds

    log = simulate(new(run), cost, segments)
    return makespan(log) / bound(trials, epochs, rows, [0.4 * count for count in held], speed)


SIZES = [(8, 4, 1), (16, 2, 3), (4, 4, 3), (5, 4, 3), (2, 4, 3), (4, 8, 2), (16, 8, 3)]


@pytest.mark.parametrize("policy", ["fastest", "fixed"])
@pytest.mark.parametrize("trials, segments, epochs", SIZES)
def test_equal_visits_stay_within_three_percent_of_the_bound(policy, trials, segments, epochs):
    assert ratio(policy, 1, trials, segments, epochs, skewed=False) <= 1.031


@pytest.mark.parametrize("trials, segments, epochs", SIZES)
def test_skewed_visits_stay_near_the_bound_under_fastest(trials, segments, epochs):
    ratios = [ratio("fastest", seed, trials, segments, epochs, skewed=True) for seed in range(15)]
    assert sum(ratios) / len(ratios) <= 1.05
    assert max(ratios) <= 1.20


@given(runs())
@settings(deadline=None)
def test_no_policy_but_fixed_idles_a_segment_that_could_work(run):
    """Under fixed a trial waits for its next segment; the others give each free segment what it can have."""
    run = dict(run, policy={"fixed": "fastest"}.get(run["policy"], run["policy"]))
    scheduler, clock = new(run), random.Random(run["times"])
    wrapped = scheduler.orders

    def orders(free):
        result = wrapped(free)
        assert wrapped(set(free) - {order.shard for order in result}) == []
        return result

    scheduler.orders = orders
    log = simulate(scheduler, lambda order: clock.random() + 0.1, len(run["rows"]))
    train = {}
    for order, begin, end, _ in log:
        train[order.shard] = train.get(order.shard, 0) + end - begin
    longest = {}
    for order, begin, end, _ in log:
        longest[order.trial] = longest.get(order.trial, 0) + end - begin
    assert makespan(log) <= max(train.values()) + max(longest.values()) + 1e-9


def test_free_segments_get_as_much_work_as_there_is():
    """The trial with more work would take the only segment that the other can use; it is moved aside."""
    scheduler = Scheduler([100, 10], [0, 0], 1, "fastest", 0)
    scheduler.add(0)
    scheduler.add(1, 1, done=[1])
    assert {(order.trial, order.shard) for order in scheduler.orders([0, 1])} == {(0, 1), (1, 0)}


def test_estimates_learn_from_measured_visits():
    scheduler = Scheduler([99, 99, 99], [0, 0, 0], 1, "fastest", 0)
    for trial in (0, 1):
        scheduler.add(trial)
    assert scheduler.remaining_seconds() is None
    fast, slow = scheduler.orders([0, 1])
    scheduler.done(fast, 10.0)
    scheduler.done(slow, 30.0)
    assert slow.trial == 1
    assert scheduler.remaining_seconds() == pytest.approx(60.0)  # two more visits of the slow trial
    assert [order.trial for order in scheduler.orders([2])] == [
        slow.trial
    ]  # though the other has the lower number


def test_a_validating_trial_uses_all_free_segments_at_once():
    scheduler = Scheduler([10, 10, 10], [5, 0, 5], 1, "fastest", 0)
    scheduler.add(0, 1, done=[0, 1, 2])
    orders = scheduler.orders([0, 1, 2])
    assert [(order.phase, order.shard) for order in orders] == [("validate", 0), ("validate", 2)]
    assert not scheduler.epoch_ready(0)
    for order in orders:
        scheduler.done(order, 1.0)
    assert scheduler.epoch_ready(0) and not scheduler.finished
    scheduler.next_epoch(0)
    assert scheduler.finished and scheduler.remaining_seconds() == 0.0


def test_a_trained_epoch_that_was_not_recorded_is_ready_at_once():
    scheduler = Scheduler([10, 10], [0, 0], 2, "fixed", 0)
    scheduler.add(0, 1, done=[0, 1])
    assert scheduler.epoch_ready(0) and scheduler.orders([0, 1]) == []
    scheduler.next_epoch(0)
    assert scheduler.orders([0, 1])[0].epoch == 2


def test_a_trial_past_its_last_epoch_is_finished():
    scheduler = Scheduler([10], [0], 2, "fixed", 0)
    scheduler.add(0, 3)
    assert scheduler.finished


def test_orders_that_are_not_out_are_refused():
    scheduler = Scheduler([10, 10], [0, 0], 1, "fastest", 0)
    scheduler.add(0)
    (order,) = scheduler.orders([0, 1])
    scheduler.done(order, 1.0)
    for event in (lambda: scheduler.done(order, 1.0), lambda: scheduler.requeue(order)):
        with pytest.raises(ValueError):
            event()
    with pytest.raises(ValueError):
        scheduler.next_epoch(0)
    scheduler.drop(0)
    scheduler.done(order, 1.0)


@pytest.mark.parametrize(
    "arguments", [([], [], 1, "fixed", 0), ([1], [], 1, "fixed", 0), ([1], [0], 1, "slow", 0)]
)
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError):
        Scheduler(*arguments)


def test_two_runs_of_one_seed_are_equal_under_every_policy():
    for policy in POLICIES:
        run = {"rows": [5, 9, 2], "held": [1, 0, 2], "epochs": 2, "trials": 4, "policy": policy, "seed": 3}
        logs = [simulate(new(run), lambda order: order.shard + 1, 3) for _ in range(2)]
        assert logs[0] == logs[1]
