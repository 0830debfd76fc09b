"""Pruners: who is stopped when, on curves that are known, and what is refused."""

import random

import pytest

from cerebro_udf.coordinator import pruners
from cerebro_udf.errors import InvalidArgument
from tests.unit.driver import Driver, study


def train(curves, pruner, in_flight=None, pick=min, **options):
    """Train trials with these curves; return how many epochs each made."""
    search = {"space": {"batch_size": {"low": 1, "high": len(curves), "step": 1}}, "pruner": pruner}
    subject = study(search, in_flight or len(curves), epochs=max(map(len, curves)), **options)
    driver = Driver(subject, lambda number, params: curves[number]).run(pick)
    return [len(driver.values[number]) for number in range(len(curves))], driver


def in_turn():
    """Picks trials in turn, so that all make their epochs side by side."""
    order = {}

    def pick(runnable):
        chosen = min(runnable, key=lambda number: (order.get(number, 0), number))
        order[chosen] = order.get(chosen, 0) + 1
        return chosen

    return pick


def flat(losses, epochs):
    return [[loss] * epochs for loss in losses]


# ---- median and percentile


def test_the_median_stops_who_is_worse_than_half_of_the_trials_done():
    made, driver = train(flat([5, 1, 4, 2, 3, 2.5, 3.5, 3, 0.5], 4), "median", in_flight=1)
    # Five trials run to the end; then 2.5 beats half of them, 3.5 does not, 3 equals the median, 0.5 is best.
    assert made == [4, 4, 4, 4, 4, 4, 1, 4, 4]
    assert driver.verdicts[6, 1] == "4 of 6 trials done were better after epoch 1"


def test_a_percentile_keeps_the_best_of_the_trials_done_after_the_same_epoch():
    rising = [[10, 10, 1], [9, 9, 2], [8, 8, 3], [7, 7, 4]]
    made, _ = train([*rising, [7.5, 7.5, 0], [6, 6, 9]], {"percentile": {"percentile": 25, "startup_trials": 4}}, in_flight=1)
    assert made == [3, 3, 3, 3, 3, 3]
    made, _ = train([*rising, [8.5, 0, 0], [6, 8.5, 9]], {"percentile": {"percentile": 25, "startup_trials": 4}}, in_flight=1)
    assert made == [3, 3, 3, 3, 1, 3]  # the last one's best so far counts: 6


def test_nobody_is_stopped_before_enough_trials_are_done_and_epochs_made():
    losses = [1, 2, 3, 4, 5]
    assert train(flat(losses, 5), {"median": {"startup_trials": 2}}, in_flight=1)[0] == [5, 5, 1, 1, 1]
    assert train(flat(losses, 5), {"median": {"startup_trials": 2, "warmup_epochs": 3}}, in_flight=1)[0] == [5, 5, 4, 4, 4]
    assert train(flat(losses, 5), {"median": {"startup_trials": 9}}, in_flight=1)[0] == [5] * 5
    assert train(flat(losses, 5), "median", pick=in_turn())[0] == [5] * 5  # none is done before all are


def test_a_metric_to_maximize_is_compared_the_other_way_round():
    rising = flat([0.5, 0.6, 0.7, 0.8, 0.4, 0.9], 3)
    assert train(rising, {"median": {"startup_trials": 4}}, in_flight=1, direction="max")[0] == [3, 3, 3, 3, 1, 3]


def test_a_trial_done_early_stands_with_its_best_score_in_later_epochs():
    curves = [[3, 3, 3, 3], [3, 1], [2, 2, 2, 2]]
    assert train(curves, {"median": {"startup_trials": 2, "warmup_epochs": 2}}, in_flight=1)[0] == [4, 2, 4]
    assert train([*curves[:2], [3, 3, 3.5, 3]], {"percentile": {"percentile": 10, "startup_trials": 2, "warmup_epochs": 2}},
                 in_flight=1)[0] == [4, 2, 3]  # fmt: skip


# ---- successive halving, ASHA, Hyperband


def test_successive_halving_keeps_the_trials_that_the_paper_keeps():
    losses = list(range(27))
    random.Random(1).shuffle(losses)
    made, driver = train(flat(losses, 27), "successive_halving", pick=in_turn())
    best = sorted(range(27), key=losses.__getitem__)
    assert [made[trial] for trial in best[:1]] == [27]
    assert all(made[trial] >= 9 for trial in best[:3])
    assert all(made[trial] >= 3 for trial in best[:9])
    # Without a barrier a loser is stopped once enough are known to be better: in its next epoch at the latest.
    assert all(made[trial] <= 2 for trial in best[9:])
    assert all(made[trial] <= 4 for trial in best[3:9]) and all(made[trial] <= 10 for trial in best[1:3])
    assert sum(state == "done" for state in driver.states.values()) == 1


def test_successive_halving_never_stops_who_belongs_to_the_best_whatever_the_order():
    for seed in range(5):
        shuffled = random.Random(seed)
        losses = [shuffled.random() for _ in range(16)]
        made, _ = train(flat(losses, 8), {"successive_halving": {"reduction_factor": 2}}, in_flight=3, pick=shuffled.choice)
        best = sorted(range(16), key=losses.__getitem__)
        assert made[best[0]] == 8 and all(made[trial] >= 4 for trial in best[:4]) and all(made[t] >= 2 for t in best[:8])


def test_asha_lets_go_on_who_is_among_the_best_third_of_those_that_came_as_far():
    made, driver = train(flat([5, 6, 4, 3, 4.5, 2, 9, 1, 0], 9), "asha", in_flight=1)
    # The first has no rival; then each must be the best of two, three …; from six on among the best two.
    assert made == [9, 1, 9, 9, 1, 9, 1, 9, 9]
    assert driver.verdicts[4, 1] == "2 of 5 trials were better after epoch 1"
    assert driver.verdicts[8, 2] is None and driver.verdicts[8, 3] is None


def test_asha_decides_after_epochs_that_grow_by_the_factor():
    curves = [[2, 2, 2, 2, 2, 2, 2, 2], [1, 1, 3, 1, 3, 3, 3, 3]]
    made, driver = train([curves[0], [3] * 8], {"asha": {"min_epochs": 3, "reduction_factor": 2}}, in_flight=1)
    assert made == [8, 3]
    # The best so far counts, not the last value.
    assert train(curves, {"asha": {"min_epochs": 3}}, in_flight=1)[0] == [8, 8]


def test_asha_saves_most_of_the_epochs_and_keeps_the_best():
    shuffled = random.Random(3)
    losses = [shuffled.random() for _ in range(60)]
    made, driver = train(flat(losses, 27), "asha", in_flight=4, pick=shuffled.choice)
    assert made[losses.index(min(losses))] == 27
    assert sum(made) < 60 * 27 / 3 and driver.most == 4


def test_hyperband_is_the_papers_brackets_beside_each_other():
    made_for = pruners.make("hyperband", 49 + 49, 27)
    # R = 27, η = 3: brackets of 27, 12, 6 and 4 trials (n = 27, 12, 6, 4 in Table 1's manner).
    assert [sum(chosen == number for chosen in made_for.bracket) for number in range(4)] == [54, 24, 12, 8]
    assert [bracket.rungs for bracket in made_for.brackets] == [
        [(1, 18), (3, 6), (9, 2)], [(3, 8), (9, 2)], [(9, 4)], [],
    ]  # fmt: skip
    # Dealt out evenly: any stretch of trials holds a share of each.
    assert [sum(chosen == 0 for chosen in made_for.bracket[at : at + 10]) for at in range(0, 90, 10)] == [6, 5] * 4 + [6]


def test_hyperband_stops_by_rivals_of_the_same_bracket_only():
    losses = list(range(49))
    random.Random(2).shuffle(losses)
    made, driver = train(flat(losses, 27), "hyperband", pick=in_turn())
    brackets = pruners.make("hyperband", 49, 27).bracket
    for number, least in ((0, 1), (1, 3), (2, 9), (3, 27)):
        members = sorted((t for t in range(49) if brackets[t] == number), key=losses.__getitem__)
        assert min(made[trial] for trial in members) >= least
        assert made[members[0]] == 27
    assert driver.metric(losses.index(0)) == 0


# ---- what no number is, and what is refused


@pytest.mark.parametrize("pruner", pruners.PRUNERS)
def test_a_trial_without_a_number_is_stopped_and_counts_for_nobody(pruner):
    curves = [[None] * 4, [1, None, 1, 1], [float("inf")] * 4, *flat([3, 3, 3], 4)]
    made, driver = train(curves, pruner, in_flight=1)
    assert made == [1, 2, 1, 4, 4, 4] and "finite" in driver.verdicts[0, 1]
    made, driver = train([[1, 1, 1, None]], pruner)
    assert driver.states == {0: "done"}  # nothing is pruned after its last epoch


@pytest.mark.parametrize("pruner", pruners.PRUNERS)
def test_equal_trials_are_not_stopped_for_each_other(pruner):
    assert train(flat([1] * 12, 4), pruner, in_flight=2)[0] == [4] * 12


@pytest.mark.parametrize("pruner", pruners.PRUNERS)
def test_one_epoch_leaves_nothing_to_prune(pruner):
    assert train(flat([3, 2, 1], 1), pruner)[0] == [1, 1, 1]


@pytest.mark.parametrize(
    "pruner, hint",
    [
        ("medain", "median"),
        (3, "median"),
        ([], "median"),
        ({}, "median"),
        ({"median": {}, "asha": {}}, "median"),
        ({"median": 3}, "median"),
        ({"median": {"warmup": 1}}, "warmup_epochs"),
        ({"median": {"warmup_epochs": -1}}, "0"),
        ({"median": {"warmup_epochs": 1.5}}, "0"),
        ({"median": {"percentile": 50}}, "startup_trials"),
        ({"percentile": {"percentile": 0}}, "25"),
        ({"percentile": {"percentile": True}}, "25"),
        ({"percentile": {"percentile": "9"}}, "25"),
        ({"asha": {"min_epochs": 0}}, "1"),
        ({"asha": {"min_epochs": float("inf")}}, "1"),
        ({"hyperband": {"reduction_factor": 1}}, "3"),
        ({"hyperband": {"reduction_factor": None}}, "3"),
    ],
)
def test_a_wrong_pruner_is_refused_with_what_is_right(pruner, hint):
    with pytest.raises(InvalidArgument) as info:
        pruners.check(pruner)
    assert hint in info.value.hint and "options.search.pruner" in info.value.message


def test_settings_have_defaults_and_whole_numbers_may_come_as_floats():
    assert pruners.check("median") == ("median", {"startup_trials": 5, "warmup_epochs": 0})
    assert pruners.check({"hyperband": {"min_epochs": 2.0}}) == ("hyperband", {"min_epochs": 2, "reduction_factor": 3})
    assert pruners.check(None) is None
