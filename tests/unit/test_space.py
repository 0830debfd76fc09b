"""Spaces: what their axes take, conditions between axes, walks over them, and how draws are distributed."""

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf.coordinator import samplers, space
from cerebro_udf.errors import InvalidArgument


def grid(**axes):
    return list(space.parse(axes).grid())


def draws(count, method="random", seed=1, **axes):
    found = samplers.sequence(method, space.parse(axes), seed)
    return list(itertools.islice(iter(found.next, None), count))


def refused(**axes):
    with pytest.raises(InvalidArgument) as info:
        space.parse(axes)
    assert info.value.hint and info.value.detail
    return info.value


# ---- ranges


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"low": 16, "high": 1024, "log": True, "step": 2}, [16, 32, 64, 128, 256, 512, 1024]),
        ({"low": 1, "high": 100, "log": True, "step": 10}, [1, 10, 100]),
        ({"low": 3, "high": 50, "log": True, "step": 4}, [3, 12, 48]),
        ({"low": 1e-5, "high": 0.1, "log": True, "step": 10}, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
        ({"low": 0.1, "high": 0.3, "log": True, "step": 3}, [0.1, 0.3]),
        ({"low": 1, "high": 4, "log": True, "step": 1.5}, [1.0, 1.5, 2.25, 3.375]),
        ({"low": 7, "high": 7, "log": True, "step": 2}, [7]),
        ({"low": 0.1, "high": 0.5, "step": 0.2}, [0.1, 0.3, 0.5]),
        ({"low": 1, "high": 7, "step": 4}, [1, 5]),
        ({"low": -2, "high": 1}, [-2, -1, 0, 1]),
    ],
)
def test_a_range_is_walked_by_steps_that_add_or_in_a_log_range_multiply(given, expected):
    found = [trial["x"] for trial in grid(x=given)]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_a_value_is_found_again_whatever_jsonb_made_of_its_number():
    axis = space.parse({"x": {"low": 0.1, "high": 2.1, "step": 0.1}}).axes["x"]
    assert [axis.index(axis.at(number)) for number in range(axis.count)] == list(range(21))
    assert axis.index(0.15) is None and axis.index(2.2) is None and axis.index("0.1") is None
    choices = space.parse({"x": [1.0, 2, True, "1", None, [1, 2.0], {"a": 3.0}, 1e22]}).axes["x"]
    for number, value in enumerate([1, 2.0, True, "1", None, [1.0, 2], {"a": 3}, 10**22]):
        assert choices.index(value) == number


def test_whole_numbers_too_large_for_floats_make_no_difference():
    big = space.parse({"x": {"low": 1, "high": 10**20}}).axes["x"]
    assert big.count is None and 1 <= big.draw(0.5) <= 10**20


# ---- conditions

CONDITIONAL = {
    "layers": {"low": 1, "high": 3},
    "dropout": {"values": [0.1, 0.2], "when": {"layers": [2, 3]}, "else": 0},
    "optimizer": ["adam", "sgd"],
    "optimizer.momentum": {"values": [0.5, 0.9], "when": {"optimizer": "sgd"}},
}


def test_a_conditional_axis_varies_only_where_its_condition_holds():
    found = grid(**CONDITIONAL)
    assert len(found) == (1 + 2 + 2) * (1 + 2) == len({json.dumps(trial) for trial in found})
    for trial in found:
        assert trial["dropout"] == 0 if trial["layers"] == 1 else trial["dropout"] in (0.1, 0.2)
        assert ("optimizer.momentum" in trial) == (trial["optimizer"] == "sgd")
        assert list(trial) == sorted(trial)
    # "dropout" comes before "layers" by name, but after it in the walk.
    assert [trial["layers"] for trial in found] == [1] * 3 + [2] * 6 + [3] * 6


def test_conditions_on_several_axes_must_hold_together_and_look_at_what_the_trial_has():
    axes = {
        "a": [1, 2],
        "b": {"values": [1, 2], "when": {"a": 2}, "else": 5},
        "c": {"values": ["x", "y"], "when": {"a": [1, 2], "b": [2, 5]}, "else": None},
        "d": {"values": [1, 2], "when": {"c": "y"}},
    }
    found = [tuple(trial.get(name) for name in "abcd") for trial in grid(**axes)]
    assert found == [
        (1, 5, "x", None), (1, 5, "y", 1), (1, 5, "y", 2),
        (2, 1, None, None),
        (2, 2, "x", None), (2, 2, "y", 1), (2, 2, "y", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["random", "quasirandom"])
def test_random_draws_keep_to_conditions_and_exhaust_the_space(method):
    found = draws(100, method, **CONDITIONAL)
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, grid(**CONDITIONAL)))


@pytest.mark.parametrize(
    "axes, place",
    [
        ({"x": {"values": [1], "when": {}}}, "x"),
        ({"x": {"values": [1], "when": ["y"]}}, "x"),
        ({"x": {"values": [1], "when": {"z": 1}}, "y": [1]}, "z"),
        ({"x": {"values": [1], "when": {"y": 2}}, "y": [1]}, "x"),
        ({"x": {"values": [1], "when": {"y": []}}, "y": [1]}, "x"),
        ({"x": {"values": [1], "when": {"y": 2.5}}, "y": {"low": 1, "high": 3}}, "x"),
        ({"x": {"values": [1], "when": {"y": 0.5}}, "y": {"low": 0.5, "high": 3}}, "x"),
        ({"x": {"values": [1], "when": {"x": 1}}}, "x"),
        ({"x": {"values": [1], "when": {"y": 1}}, "y": {"values": [1], "when": {"x": 1}}}, "x, y"),
        ({"x": {"values": [1], "else": 1}}, "when"),
        ({"x": {"values": [1], "low": 1, "high": 2}}, "x"),
        ({"x": {"values": []}}, "x"),
        ({"x": {"values": 3}}, "x"),
        ({"x": {"when": {"y": 1}}, "y": [1]}, "x"),
        ({"x": [1, 1.0]}, "x"),
        ({"x": {"low": 1, "high": 9, "log": True, "step": 1}}, "x"),
        ({"x": {"low": 1, "high": 9, "log": True, "step": 1 + 1e-9}}, "x"),
        ({"x": {"low": 0, "high": 1e300, "step": 1e-9}}, "x"),
    ],
)
def test_a_wrong_axis_or_condition_is_named(axes, place):
    error = refused(**axes)
    assert place in error.message and "options.search.space." in error.detail


# ---- walks


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 100), st.integers(0, 100))
def test_a_walk_from_anywhere_meets_every_configuration_once(width, height, x, y):
    found = space.parse({"x": list(range(width)), "y": {"low": 1, "high": height}})
    every = list(map(space.key, found.every({"x": x, "y": y})))
    assert sorted(every) == sorted(map(space.key, found.grid()))
    assert found.size(10000) == len(every) and found.size(1) == 1


def test_a_space_of_billions_is_walked_only_as_far_as_asked():
    huge = {name: {"low": 1, "high": 10**9} for name in "abcdef"}
    assert space.parse(huge).size(500) == 500
    assert len(draws(20, **huge)) == 20


# ---- distributions


def kolmogorov(uniform):
    """The largest distance between the sample's distribution function and the uniform one, times the root of its size."""
    ordered, n = sorted(uniform), len(uniform)
    return max(max(x - i / n, (i + 1) / n - x) for i, x in enumerate(ordered)) * math.sqrt(n)


def correlation(first, second):
    mean = [sum(xs) / len(xs) for xs in (first, second)]
    off = [[x - m for x in xs] for xs, m in zip((first, second), mean)]
    return sum(a * b for a, b in zip(*off)) / math.sqrt(math.prod(sum(x * x for x in xs) for xs in off))


AXES = {
    "a": {"low": 1e-5, "high": 1e-1, "log": True},
    "b": {"low": 1e-5, "high": 1e-1, "log": True},
    "c": {"low": -3, "high": 5.0},
    "d": {"low": 0.0, "high": 0.5},
    "e": {"low": 0, "high": 10**6},
    "f": {"low": 1, "high": 10**6, "log": True},
}


def uniforms(trials):
    """Back to points of the unit cube, one list per axis."""
    logs = {"a": (1e-5, 1e-1), "b": (1e-5, 1e-1), "f": (1, 10**6 + 1)}
    lines = {"c": (-3, 5), "d": (0, 0.5), "e": (0, 10**6)}
    found = {n: [math.log(t[n] / low) / math.log(high / low) for t in trials] for n, (low, high) in logs.items()}
    found.update({n: [(t[n] - low) / (high - low) for t in trials] for n, (low, high) in lines.items()})
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_numeric_axis_draws_what_it_says_and_independently(seed):
    found = uniforms(draws(1000, seed=seed, **AXES))
    for name, points in found.items():
        limit = 4 if name == "f" else 1.95  # 0.1 %; the first whole numbers of a log range are lumps
        assert kolmogorov(points) < limit, name
        assert abs(correlation(points[1:], points[:-1])) < 0.11, name
    for first, second in itertools.combinations(sorted(found), 2):
        assert abs(correlation(found[first], found[second])) < 0.11, (first, second)


def test_quasirandom_draws_cover_every_axis_far_more_evenly_than_random_ones():
    for seed in (1, 2, 3):
        even = uniforms(draws(200, "quasirandom", seed=seed, **AXES))
        rough = uniforms(draws(200, "random", seed=seed, **AXES))
        for name in "abcde":
            assert kolmogorov(even[name]) < 0.45
        assert sum(kolmogorov(rough[name]) for name in "abcde") > 2 * sum(kolmogorov(even[name]) for name in "abcde")
        for first, second in itertools.combinations("abcde", 2):
            assert abs(correlation(even[first], even[second])) < 0.12
        # In two dimensions too: 200 points over 5 x 5 fields.
        fields = [0] * 25
        for x, y in zip(even["a"], even["b"]):
            fields[min(4, int(5 * x)) * 5 + min(4, int(5 * y))] += 1
        assert min(fields) >= 5 and max(fields) <= 12
    assert draws(5, "quasirandom", 1, **AXES) != draws(5, "quasirandom", 2, **AXES)


def test_choices_and_stepped_ranges_come_equally_often():
    found = draws(3000, x=[1, "b", None, True], y={"low": 1, "high": 10, "step": 3}, z={"low": 0.0, "high": 1})
    for name, values in (("x", [1, "b", None, True]), ("y", [1, 4, 7, 10])):
        counts = [sum(space.key(trial[name]) == space.key(value) for trial in found) for value in values]
        assert sum(counts) == 3000 and sum((count - 750) ** 2 / 750 for count in counts) < 16.3  # chi squared, 0.1 %


@given(st.integers(0, 2**63 - 1), st.sampled_from(["random", "quasirandom"]), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_sequence_has_no_repeats_and_begins_alike_whatever_its_length(seed, method, count):
    axes = {"x": {"low": 1, "high": 3}, "y": [1, 2, 3], "z": {"low": 0.5, "high": 0.5}}
    long = draws(100, method, seed, **axes)
    assert len(long) == 9 == len(set(map(space.key, long)))
    assert draws(count, method, seed, **axes) == long[:count]


def test_an_axis_more_does_not_change_the_random_draws_of_the_others():
    few, more = draws(50, c=AXES["c"]), draws(50, c=AXES["c"], z={"low": 0, "high": 1.0, "when": {"y": 1}}, y=[1, 2])
    assert [trial["c"] for trial in few] == [trial["c"] for trial in more]
