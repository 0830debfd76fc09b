"""Search: which configurations a space gives, in which order, and what is refused before anything starts."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf import definition
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import search
from cerebro_udf.coordinator.study import Study
from cerebro_udf.errors import InvalidArgument, NotSupported

MODEL = {
    "layers": [{"Dense": {"units": "$units", "activation": "$activation"}}, {"Dense": {"units": "$classes"}}]
}
PLAIN = {"layers": [{"Dense": {"units": 2}}]}


def trials(space, seed=1, model=PLAIN, options=None, **keys):
    parsed = run_options.parse(dict(options or {}, search=dict(keys, space=space)), model)
    return asked(parsed, seed, model)


def asked(options, seed=1, model=PLAIN):
    """The trials of a search that depends on nothing but its seed."""
    study = Study(options.search, seed, model, options, "min", None)
    return [params for _, params in iter(study.ask, None)]


def values(space, axis="batch_size", **keys):
    return [trial[axis] for trial in trials({axis: space}, **keys)]


def refused(space, model=PLAIN, options=None, **keys):
    with pytest.raises(InvalidArgument) as info:
        trials(space, model=model, options=options, **keys)
    assert info.value.hint
    return info.value


# ---- grid


def test_without_a_search_there_is_one_trial():
    assert asked(run_options.parse(None, PLAIN)) == [{}]


def test_a_grid_walks_axes_by_name_the_last_one_fastest():
    space = {"units": [64, 256], "activation": ["relu", "tanh"], "batch_size": [8, 16]}
    found = trials(space, model=MODEL)
    assert [(t["activation"], t["batch_size"], t["units"]) for t in found[:3]] == [
        ("relu", 8, 64),
        ("relu", 8, 256),
        ("relu", 16, 64),
    ]
    assert len(found) == 8
    reordered = dict(reversed(list(space.items())))
    assert trials(reordered, model=MODEL) == found
    assert trials(space, model=MODEL, trials=3) == found[:3]
    assert trials(space, model=MODEL, method="grid", trials=99) == found


@pytest.mark.parametrize(
    "space, expected",
    [
        ({"low": 1, "high": 4}, [1, 2, 3, 4]),
        ({"low": 8, "high": 32, "step": 8}, [8, 16, 24, 32]),
        ({"low": 8.0, "high": 30.0, "step": 8.0}, [8, 16, 24]),
        ({"low": 5, "high": 5}, [5]),
    ],
)
def test_whole_ranges_include_both_ends(space, expected):
    assert values(space) == expected
    assert all(isinstance(value, int) for value in values(space))


def test_fractions_step_without_rounding_errors():
    assert values({"low": 0.1, "high": 0.7, "step": 0.1}, "learning_rate") == [
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
    ]
    assert values({"low": 1e-4, "high": 3e-4, "step": 1e-4}, "learning_rate") == [1e-4, 2e-4, 3e-4]


# ---- random


@given(st.integers(0, 2**63 - 1), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_random_draws_stay_inside_and_never_repeat(seed, count):
    space = {
        "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
        "batch_size": {"low": 8, "high": 64, "step": 8},
        "optimizer.beta_1": {"low": 0.8, "high": 0.99},
        "loss": ["mse", "mae"],
    }
    found = trials(space, seed, method="random", trials=count)
    assert found == trials(space, seed, method="random", trials=count)
    assert len(found) == count == len({repr(trial) for trial in found})
    for trial in found:
        assert 1e-4 <= trial["learning_rate"] <= 1e-1 and 0.8 <= trial["optimizer.beta_1"] <= 0.99
        assert trial["batch_size"] in range(8, 65, 8) and trial["loss"] in ("mse", "mae")


@given(st.integers(0, 2**31), st.booleans(), st.integers(1, 30), st.integers(0, 25))
@settings(max_examples=50, deadline=None)
def test_a_finite_space_is_exhausted_both_ends_included(seed, log, low, width):
    space = {"low": low, "high": low + width, "log": log}
    assert sorted(values(space, method="random", trials=100, seed=seed)) == list(range(low, low + width + 1))


def test_more_trials_of_a_seed_begin_with_the_same_ones():
    space = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
    assert trials(space, method="random", trials=20)[:5] == trials(space, method="random", trials=5)


def test_axes_draw_independently_of_each_other():
    same = {"low": 0.1, "high": 0.9}
    both = trials({"learning_rate": same, "optimizer.beta_1": same}, method="random", trials=200)
    one = trials({"learning_rate": same}, method="random", trials=200)
    assert [t["learning_rate"] for t in both] == [t["learning_rate"] for t in one]
    rates, betas = ([t[axis] for t in both] for axis in ("learning_rate", "optimizer.beta_1"))
    assert not set(rates) & set(betas)
    mean_rate, mean_beta = sum(rates) / 200, sum(betas) / 200
    spread = [sum((x - m) ** 2 for x in xs) for xs, m in ((rates, mean_rate), (betas, mean_beta))]
    product = sum((x - mean_rate) * (y - mean_beta) for x, y in zip(rates, betas))
    assert abs(product) / (spread[0] * spread[1]) ** 0.5 < 0.2
    assert trials({"learning_rate": same}, seed=2, method="random", trials=5) != one[:5]


def test_a_logarithmic_range_is_uniform_over_the_decades():
    space = {"low": 1e-5, "high": 1e-1, "log": True}
    rates = values(space, "learning_rate", method="random", trials=2000)
    for decade in range(-5, -1):
        assert 420 < sum(10.0**decade <= rate < 10.0 ** (decade + 1) for rate in rates) < 580
    sizes = values({"low": 1, "high": 1000, "log": True}, method="random", trials=300)
    assert 1 in sizes and max(sizes) <= 1000 and sum(size <= 31 for size in sizes[:60]) >= 18


def test_a_range_of_one_fraction_gives_one_trial():
    assert values({"low": 0.5, "high": 0.5}, "learning_rate", method="random", trials=9) == [0.5]


# ---- what is refused


@pytest.mark.parametrize(
    "space, axis, hint",
    [
        ({"batch_size": []}, "batch_size", "one"),
        ({"batch_size": [8, 8]}, "batch_size", "once"),
        ({"batch_size": 8}, "batch_size", "[16, 64]"),
        ({"batch_size": {"low": 8}}, "batch_size", "low"),
        ({"batch_size": {"low": 9, "high": 8}}, "batch_size", None),
        ({"batch_size": {"low": "8", "high": 9}}, "batch_size", None),
        ({"batch_size": {"low": True, "high": 9}}, "batch_size", None),
        ({"batch_size": {"low": 8, "high": 9, "stp": 1}}, "batch_size", "step"),
        ({"batch_size": {"low": 8, "high": 9, "step": 0}}, "batch_size", "step"),
        ({"batch_size": {"low": 8, "high": 9, "step": 0.5}}, "batch_size", "whole"),
        ({"batch_size": {"low": 8.5, "high": 9}}, "batch_size", "whole"),
        ({"batch_size": {"low": 1, "high": 900}}, "batch_size", "step"),
        ({"batch_size": {"low": 1, "high": 20000, "step": 1}}, "batch_size", "step"),
        ({"batch_size": {"low": 1, "high": 10**400, "step": 1}}, "batch_size", None),
        ({"batch_size": {"low": 0, "high": 8}}, "batch_size", None),
        ({"batch_size": [0]}, "batch_size", None),
        ({"batch_size": ["8"]}, "batch_size", None),
        ({"batch_size": [True]}, "batch_size", None),
        ({"learning_rate": {"low": 0, "high": 1, "log": True}}, "learning_rate", None),
        ({"learning_rate": {"low": 0.1, "high": 1, "log": 1}}, "learning_rate", "log"),
        ({"learning_rate": {"low": 0.1, "high": 1, "log": True, "step": 0.1}}, "learning_rate", "multiplies"),
        ({"learning_rate": {"low": 0.1, "high": 1}}, "learning_rate", "step"),
        ({"learning_rate": {"low": 0.1, "high": 1, "log": True}}, "learning_rate", "step"),
        ({"learning_rate": [0.1, 0]}, "learning_rate", None),
        ({"learning_rate": [-0.1]}, "learning_rate", None),
        ({"optimizer": ["adam", "sgdd"]}, "optimizer", "sgd"),
        ({"optimizer": {"low": 1, "high": 2}}, "optimizer", "List"),
        ({"loss": ["mseee"]}, "loss", "mse"),
        ({"optimizer.beta1": [0.9]}, "optimizer.beta1", "beta_1"),
        ({"optimizer.beta_1": ["0.9"]}, "optimizer.beta_1", None),
        ({"optimizer.learning_rate": [0.9]}, "optimizer.learning_rate", "learning_rate"),
        ({"optimizer": ["adam", "sgd"], "optimizer.beta_1": [0.9]}, "optimizer.beta_1", None),
        ({"lerning_rate": [0.9]}, "lerning_rate", "learning_rate"),
        ({"epochs": [1, 2]}, "epochs", None),
    ],
)
def test_a_wrong_axis_is_named(space, axis, hint):
    error = refused(space)
    assert axis in error.detail
    assert hint is None or hint in error.hint


@pytest.mark.parametrize("space", [{}, None, [], "units"])
def test_an_empty_space_is_refused(space):
    assert "empty" in refused(space).message


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "gird"},
        {"method": 3},
        {"trials": 0},
        {"trials": 1.5},
        {"trials": True},
        {"trials": "3"},
        {"trials": 10**6},
        {"trials": float("inf")},
        {"spaces": {}},
        {"method": "random"},
    ],
)
def test_wrong_keys_of_the_search_are_refused(keys):
    refused({"batch_size": [1, 2]}, **keys)


def test_a_method_that_is_to_come_is_refused_by_name():
    with pytest.raises(NotSupported) as info:
        trials({"batch_size": [1]}, method="cmaes", trials=3)
    assert "cmaes" in info.value.message


def test_a_pruner_named_as_method_is_told_where_it_belongs():
    error = refused({"batch_size": [1]}, method="hyperband", trials=3)
    assert '"pruner": "hyperband"' in error.hint


def test_a_huge_grid_is_refused_unless_its_first_trials_are_asked_for():
    space = {
        "batch_size": {"low": 1, "high": 1000, "step": 1},
        "optimizer.beta_1": [i / 100 for i in range(50)],
    }
    assert "1000 x 50" in refused(space).detail
    assert len(trials(space, trials=7)) == 7


def test_values_of_a_placeholder_are_tried_in_the_model():
    error = refused({"units": [1], "activation": ["relu", "rellu"]}, model=MODEL)
    assert "options.search.space.activation" in error.detail and "relu" in error.hint
    refused({"units": [1], "activation": [{"class_name": "__lambda__", "config": {}}]}, model=MODEL)


def test_a_placeholder_may_not_have_the_name_of_an_option():
    assert (
        "$batch_size"
        in refused({"batch_size": [1]}, model={"layers": [{"Dense": {"units": "$batch_size"}}]}).message
    )


def test_an_axis_that_the_model_does_not_have_is_refused():
    assert "unitss" in refused({"unitss": [1], "units": [2], "activation": ["relu"]}, model=MODEL).detail


def test_the_space_in_the_docs_is_accepted():
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "options.md").read_text("utf-8")
    space = json.loads(re.search(r"## Search spaces.*?```json\n(.*?)```", page, re.DOTALL).group(1))
    layers = [{"Dense": {"units": "$units", "activation": "$activation"}}, {"Dropout": {"rate": "$dropout"}}]
    model = {"layers": [*layers, {"Dense": {"units": "$layers"}}]}
    for method in search.METHODS[1:]:
        parsed = run_options.parse({"search": {"method": method, "trials": 5, "space": space}}, model)
        assert parsed.search["space"] == space


# ---- conditions and pruners


def test_a_conditional_placeholder_needs_a_value_elsewhere_and_an_option_does_not():
    error = refused({"units": {"values": [2], "when": {"activation": "relu"}}, "activation": ["relu", "tanh"]}, model=MODEL)
    assert '"else"' in error.hint and "options.search.space.units" in error.detail
    space = {"units": {"values": [2], "when": {"activation": "relu"}, "else": 4}, "activation": ["relu", "tanh"]}
    assert trials(space, model=MODEL) == [{"activation": "relu", "units": 2}, {"activation": "tanh", "units": 4}]
    wrong = {"activation": {"values": ["relu"], "when": {"units": 1}, "else": "rellu"}, "units": [1, 2]}
    assert "options.search.space.activation" in refused(wrong, model=MODEL).detail


def test_a_key_that_only_some_optimizers_have_is_an_axis_for_these():
    space = {"optimizer": ["adam", {"SGD": {"nesterov": True}}], "optimizer.momentum": [0.5, 0.9]}
    assert '"when"' in refused(space).hint
    space["optimizer.momentum"] = {"values": [0.5, 0.9], "when": {"optimizer": {"SGD": {"nesterov": True}}}}
    momenta = [resolve(trial)["optimizer"]["config"].get("momentum") for trial in trials(space)]
    assert momenta == [None, 0.5, 0.9]
    space["optimizer.momentum"] = {"values": [0.5], "when": {"optimizer": ["adam"]}}
    assert "momentum" in refused(space).detail


def test_axes_that_exclude_each_other_are_refused():
    error = refused({"optimizer.clipnorm": [0.5, 1.0], "optimizer.clipvalue": [0.1]})
    assert "clipvalue" in error.detail and "options.search.space" in error.detail
    assert "clipnorm" in refused({"optimizer.clipnorm": [0.5]}, options={"optimizer": {"Adam": {"clipvalue": 1.0}}}).detail


def test_a_wrong_pruner_or_number_in_flight_is_refused_with_its_place():
    assert "options.search.pruner" in refused({"batch_size": [1, 2]}, pruner="medain").message
    assert "options.search.in_flight" in refused({"batch_size": [1, 2]}, in_flight=0).message


# ---- what a trial trains with


def resolve(params, model=PLAIN, **options):
    parsed = run_options.parse(options, model)
    before = copy.deepcopy(parsed)
    settings_of_trial = search.resolve(parsed, params)
    assert parsed == before
    return settings_of_trial


def test_a_trial_without_values_trains_by_the_options():
    found = resolve({}, batch_size=64, loss="mse", metrics=["mae"])
    assert found["batch_size"] == 64 and found["learning_rate"] == 0.001 and found["model_values"] == {}
    assert found["loss"]["class_name"] == "MeanSquaredError" and len(found["metrics"]) == 1
    assert resolve({}, optimizer="sgd")["learning_rate"] == 0.01


def test_values_of_the_trial_come_first():
    found = resolve(
        {"batch_size": 16.0, "optimizer.momentum": 0.5, "optimizer": "sgd", "loss": "mae", "units": 3},
        loss="mse",
    )
    assert found["batch_size"] == 16 and isinstance(found["batch_size"], int)
    assert found["optimizer"]["class_name"] == "SGD" and found["optimizer"]["config"] == {"momentum": 0.5}
    assert found["loss"]["class_name"] == "MeanAbsoluteError" and found["model_values"] == {"units": 3}


def test_learning_rates_by_precedence():
    adam = {"Adam": {"learning_rate": 0.5}}
    schedule = {"Adam": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 9}}}}
    assert resolve({}, optimizer=adam)["learning_rate"] == 0.5
    assert resolve({}, optimizer=adam, learning_rate=0.25)["learning_rate"] == 0.25
    assert resolve({"learning_rate": 0.125}, optimizer=adam, learning_rate=0.25)["learning_rate"] == 0.125
    assert resolve({}, optimizer=schedule)["learning_rate"] is None
    found = resolve({"learning_rate": 1}, optimizer=schedule)
    assert found["learning_rate"] == 1.0 and found["optimizer"]["config"]["learning_rate"] == 1


def test_every_trial_of_a_search_resolves_and_binds():
    space = {
        "units": [1, 2],
        "activation": ["relu", None],
        "optimizer": ["adam", {"SGD": {"momentum": 0.5}}],
        "loss": ["mse"],
        "optimizer.weight_decay": [0.1],
        "batch_size": [2],
    }
    parsed = run_options.parse({"search": {"space": space}}, MODEL)
    found = asked(parsed, 1, MODEL)
    assert len(found) == 8
    for trial in found:
        settings_of_trial = search.resolve(parsed, trial)
        bound = definition.bind(MODEL, {**settings_of_trial["model_values"], "classes": 2})
        assert bound["config"]["layers"][0]["config"]["units"] == trial["units"]
        assert settings_of_trial["optimizer"]["config"]["weight_decay"] == 0.1
