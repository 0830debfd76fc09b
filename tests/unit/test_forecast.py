"""A run played through: sums where nothing else is possible, and the bounds of any schedule elsewhere."""

import pytest

from cerebro_udf.coordinator.forecast import Cost, Measured, mean, seconds

ONE = Measured(Cost(0.5, 0.01), Cost(0.25, 0.001), 3.0, 0.125, 1000, False)


def test_one_trial_on_one_segment_takes_the_sum_of_its_visits():
    taken, visits = seconds([(100, 50)], 2, "fastest", 0, ["k"], {"k": [ONE]}, {"k"})
    assert visits == 4
    assert taken == pytest.approx(0.125 + 2 * (0.5 + 1.0 + 0.25 + 0.05))


def test_program_that_is_not_there_is_made_once_on_each_segment():
    warm, _ = seconds([(100, 0), (100, 0)], 3, "fixed", 0, ["k"], {"k": [ONE, ONE]}, {"k"})
    cold, _ = seconds([(100, 0), (100, 0)], 3, "fixed", 0, ["k"], {"k": [ONE, ONE]}, set())
    assert cold - warm == pytest.approx(2 * 3.0)


@pytest.mark.parametrize("policy", ["fastest", "fixed", "random"])
def test_forecast_lies_between_the_busiest_segment_and_the_sum(policy):
    slow = Measured(Cost(0.5, 0.03), Cost(0.5, 0.001), 0.0, 0.0, 1, False)
    rows, units = [(100, 10), (50, 0), (70, 10)], ["a", "b"] * 4
    costs = {"a": [ONE, ONE, slow], "b": [slow, slow, slow]}
    taken, visits = seconds(rows, 2, policy, 1, units, costs, {"a", "b"})
    assert visits == 8 * 2 * 5
    work = [
        2 * sum(costs[u][s].train.of(r) + (costs[u][s].validate.of(h) if h else 0) for u in units) for s, (r, h) in enumerate(rows)
    ]
    assert max(work) <= taken <= sum(work)


def test_member_alone_costs_its_share_and_means_are_means():
    quarter = ONE.alone(4)
    assert quarter.train.of(100) == pytest.approx(ONE.train.of(100) / 4) and quarter.trace == ONE.trace
    assert mean([ONE, quarter]).train.per_row == pytest.approx(0.01 * 5 / 8)
