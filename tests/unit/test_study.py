"""Study: what is asked when, in which order reports count, and that an interruption changes nothing."""

import json
import math
import random
import statistics
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf.coordinator import search as searching
from tests.unit.driver import FAIL, Driver, study

SPACE = {
    "learning_rate": {"low": 1e-4, "high": 1.0, "log": True},
    "batch_size": {"low": 8, "high": 512, "log": True, "step": 2},
    "optimizer": ["adam", "sgd", "rmsprop"],
    "optimizer.momentum": {"low": 0.0, "high": 0.9, "when": {"optimizer": ["sgd", "rmsprop"]}},
}
SMALL = {"batch_size": [8, 16, 32], "loss": ["mse", "mae"], "optimizer.beta_1": {"values": [0.8, 0.9], "when": {"loss": "mse"}}}
METHODS = ["grid", "random", "quasirandom", "tpe"]
EPOCHS = 3


def distance(params):
    """A loss with its best at learning rate 0.01, batch size 64, Adam."""
    return abs(math.log10(params["learning_rate"]) + 2) + abs(math.log2(params["batch_size"]) - 6) / 4 + (
        0 if params["optimizer"] == "adam" else 0.5 + params["optimizer.momentum"]
    )  # fmt: skip


def curve(number, params):
    """Falling, sometimes crossing, now and then NaN, a failure or an early end."""
    base = distance(params) if "learning_rate" in params else params["batch_size"] / (2 if params["loss"] == "mse" else 1)
    lot = random.Random(json.dumps(params))
    values = [base * (1 + (EPOCHS - epoch) * lot.uniform(-0.1, 0.5)) for epoch in range(1, EPOCHS + 1)]
    fate = lot.random()
    if fate < 0.1:
        values[lot.randrange(EPOCHS)] = None
    elif fate < 0.2:
        values[lot.randrange(EPOCHS)] = FAIL
    elif fate < 0.3:
        values = values[:2]
    return values


def constant(value):
    return lambda number, params: [value] * EPOCHS


# ---- asking


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", ["fixed", "fastest", "random"])
def test_a_finite_space_is_tried_once_and_then_exhausted(method, order):
    subject = study({"method": method, "trials": 100, "space": SMALL}, order=order, epochs=EPOCHS)
    driver = Driver(subject, curve).run()
    assert len(driver.params) == 9 == len({json.dumps(params) for params in driver.params.values()})
    assert subject.exhausted and subject.ask() is None and list(driver.params) == list(range(9))
    assert all(("optimizer.beta_1" in params) == (params["loss"] == "mse") for params in driver.params.values())


@pytest.mark.parametrize("method", METHODS)
def test_as_many_trials_are_asked_as_were_wished(method):
    space = SMALL if method == "grid" else SPACE
    driver = Driver(study({"method": method, "trials": 7, "space": space}, epochs=EPOCHS), constant(1.0)).run()
    assert len(driver.params) == 7


def test_without_a_search_there_is_one_trial():
    driver = Driver(study(None), constant(1.0)).run()
    assert driver.params == {0: {}} and driver.verdicts == {(0, 1): None, (0, 2): None, (0, 3): None}


@pytest.mark.parametrize("order", ["fixed", "fastest"])
def test_trials_known_beforehand_begin_all_at_once(order):
    for method in ("grid", "random", "quasirandom"):
        driver = Driver(study({"method": method, "trials": 9, "space": SMALL}, order=order), constant(1.0))
        driver.begin()
        assert len(driver.params) == 9 and driver.study.exhausted


def test_no_more_than_k_trials_are_in_flight():
    shuffled = random.Random(1)
    for order in ("fixed", "fastest"):
        for keys in ({"method": "tpe"}, {"method": "random", "pruner": "asha"}, {"method": "random", "in_flight": 4}):
            subject = study({"trials": 20, "space": SPACE, **keys}, order=order, epochs=EPOCHS)
            assert Driver(subject, curve).run(shuffled.choice).most == 4
    search = {"method": "tpe", "trials": 9, "space": SPACE}
    assert [searching.in_flight(search, segments) for segments in (1, 2, 3, 8)] == [4, 4, 6, 16]
    assert searching.in_flight({**search, "in_flight": 3}, 8) == 3
    assert [searching.in_flight({**search, "method": "grid"}, segments) for segments in (8, 100)] == [64, 400]
    assert searching.in_flight(None, 8) is None


def test_fastest_asks_as_soon_as_any_trial_has_ended_and_fixed_once_the_first_has():
    for order, ready in (("fastest", True), ("fixed", False)):
        subject = study({"method": "tpe", "trials": 9, "space": SPACE}, 3, order=order, epochs=1)
        assert [subject.ask()[0] for _ in range(3)] == [0, 1, 2] and subject.ask() is None
        subject.finish(2, "done", 0.5)
        assert (subject.ask() is not None) == ready and not subject.exhausted
        subject.finish(0, "failed", None)
        assert subject.ask()[0] == (4 if ready else 3)


# ---- logical order


@given(st.sampled_from(METHODS), st.sampled_from([None, "median", "asha", "hyperband", "successive_halving"]), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_fixed_asks_and_decides_the_same_in_whatever_order_trials_come_and_sessions_end(method, pruner, lot):
    space = SMALL if method == "grid" else SPACE
    if pruner == "median":
        pruner = {"median": {"startup_trials": 2}}

    def fresh():
        search = {"method": method, "trials": 22, "space": space, "pruner": pruner, "in_flight": 3}
        return study(search, order="fixed", epochs=EPOCHS, seed=5)

    expected = Driver(fresh(), curve).run()
    shuffled = random.Random(lot)
    driver = Driver(fresh(), curve)
    while driver.step(shuffled.choice):
        if shuffled.random() < 0.1:
            driver = driver.resume(fresh())
    assert driver.params == expected.params
    assert driver.verdicts == expected.verdicts
    assert driver.states == expected.states and driver.values == expected.values


def test_under_fixed_a_verdict_waits_for_the_trials_before_it_and_ignores_those_behind():
    search = {"space": {"batch_size": [1, 2, 3]}, "pruner": {"asha": {"reduction_factor": 2}}, "in_flight": 3}
    subject = study(search, order="fixed", epochs=4)
    for _ in range(3):
        subject.ask()
    subject.report(2, 1, 0.1)
    subject.report(1, 1, 0.3)
    assert subject.verdicts() == []
    subject.report(0, 1, 0.2)
    assert subject.verdicts() == [(0, 1, None), (1, 1, "1 of 2 trials were better after epoch 1"), (2, 1, None)]
    assert subject.verdicts() == []
    subject.finish(1, "pruned", 0.3)
    subject.report(2, 2, 0.1)
    assert subject.verdicts() == []
    subject.finish(0, "failed", None)
    assert subject.verdicts() == [(2, 2, None)]


def test_fastest_decides_at_once_from_all_that_is_known():
    search = {"space": {"batch_size": [1, 2, 3]}, "pruner": {"asha": {"reduction_factor": 2}}, "in_flight": 3}
    subject = study(search, order="fastest", epochs=4)
    for _ in range(3):
        subject.ask()
    subject.report(2, 1, 0.1)
    subject.report(1, 1, 0.3)
    assert subject.verdicts() == [(1, 1, "1 of 2 trials were better after epoch 1"), (2, 1, None)]


@pytest.mark.parametrize("order", ["fixed", "fastest"])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_search_goes_on_with_the_next_number_and_repeats_nothing(method, order):
    search = {"method": method, "trials": 9, "space": SMALL, "in_flight": 4}
    driver = Driver(study(search, order=order, epochs=EPOCHS), curve)
    for _ in range(12):
        driver.step(max)
    params = dict(driver.params)
    again = driver.resume(study(search, order=order, epochs=EPOCHS)).run()
    assert list(again.params) == list(range(9)) and params.items() <= again.params.items()
    assert len({json.dumps(params) for params in again.params.values()}) == 9


def test_a_search_resumed_through_jsonb_knows_its_values_again():
    space = {"learning_rate": [1e-7, 0.5, 1.0], "batch_size": {"low": 1, "high": 5}, "loss": ["mse", {"huber": {"delta": 2.0}}]}
    search = {"method": "tpe", "trials": 30, "in_flight": 1, "space": space}
    driver = Driver(study(search, epochs=1), lambda number, params: [params["learning_rate"]])
    for _ in range(29):
        driver.step(min)
    written = {1e-7: 0.0000001, 1.0: 1}
    for params in driver.params.values():
        params["learning_rate"] = written.get(params["learning_rate"], params["learning_rate"])
        if params["loss"] != "mse":
            params["loss"] = {"huber": {"delta": 2}}
    again = driver.resume(study(search, epochs=1)).run()
    assert len(again.params) == 30 and again.study.exhausted


# ---- TPE


def tpe(seed=1, trials=60, **keys):
    return study({"method": "tpe", "trials": trials, "space": SPACE, **keys}, 4, seed=seed, epochs=1, order="fixed")


def best(method, seed, trials=60):
    found = study({"method": method, "trials": trials, "space": SPACE}, 4, seed=seed, epochs=1, order="fixed")
    driver = Driver(found, lambda number, params: [distance(params)]).run()
    return min(values[0] for values in driver.values.values())


def test_tpe_comes_much_nearer_to_the_best_than_random_search():
    found = {method: [best(method, seed) for seed in range(5)] for method in ("tpe", "random")}
    assert statistics.median(found["tpe"]) < statistics.median(found["random"]) / 2, found
    assert max(found["tpe"]) < 0.3


def test_tpe_maximizes_where_larger_is_better():
    search = {"method": "tpe", "trials": 50, "space": {"learning_rate": {"low": 0.0001, "high": 1.0}}}
    subject = study(search, 2, direction="max", epochs=1)
    driver = Driver(subject, lambda number, params: [params["learning_rate"]]).run()
    assert statistics.mean(params["learning_rate"] for n, params in driver.params.items() if n >= 30) > 0.8


def test_the_same_seed_asks_the_same_and_another_seed_does_not():
    def asked(seed):
        return Driver(tpe(seed, trials=20), lambda number, params: [distance(params)]).run().params

    assert asked(1) == asked(1) != asked(2)


@pytest.mark.parametrize("ill", [None, FAIL, math.inf, -math.inf])
def test_trials_without_a_number_neither_win_nor_mislead_tpe(ill):
    """Everything near the best is ill: TPE learns nothing from there, and goes on with what it has."""

    def sick(number, params):
        return [ill if params["optimizer"] == "adam" else distance(params)]

    driver = Driver(tpe(), sick).run()
    assert len(driver.params) == 60
    late = [params["optimizer"] for number, params in driver.params.items() if number >= 30]
    assert late.count("adam") < 15  # not drawn to it
    healthy = [values[0] for values in driver.values.values() if values and values[0] not in (None, math.inf, -math.inf)]
    assert min(healthy) < 1.2
    assert len(Driver(tpe(trials=15), lambda number, params: [ill]).run().params) == 15  # nothing but ill ones


def test_trials_pruned_teach_tpe_where_not_to_look():
    subject = study({"method": "tpe", "trials": 80, "space": SPACE, "pruner": "asha"}, 4, epochs=9, order="fixed")
    driver = Driver(subject, lambda number, params: [distance(params)] * 9).run()
    assert list(driver.states.values()).count("pruned") > 30
    assert min(values[-1] for values in driver.values.values()) < 0.3


def test_a_repeated_suggestion_is_never_tried_twice_however_much_tpe_insists():
    search = {"method": "tpe", "trials": 50, "space": {"batch_size": {"low": 1, "high": 200, "log": True}}}
    driver = Driver(study(search, 2, epochs=1), lambda number, params: [params["batch_size"]]).run()
    tried = {params["batch_size"] for params in driver.params.values()}
    assert len(tried) == 50 and len(tried & set(range(1, 13))) >= 9


def test_optuna_is_silent_and_is_imported_by_tpe_alone():
    code = """if True:
        import sys, warnings
        warnings.simplefilter("error")
        from tests.unit.driver import Driver, study
        from tests.unit.test_study import SPACE, SMALL, curve
        for method in ("grid", "random", "quasirandom"):
            Driver(study({"method": method, "trials": 9, "space": SMALL, "pruner": "asha"}, epochs=3), curve).run()
        assert "optuna" not in sys.modules
        Driver(study({"method": "tpe", "trials": 40, "space": SPACE, "pruner": "hyperband"}, epochs=3), curve).run()
        assert "optuna" in sys.modules
        heavy = {"scipy", "torch", "sqlalchemy", "alembic", "tensorflow", "multiprocessing"} & set(sys.modules)
        assert not heavy, heavy
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


# ---- ten thousand trials


@pytest.mark.parametrize("method, pruner", [("grid", None), ("random", None), ("quasirandom", "asha"), ("random", "hyperband")])
def test_ten_thousand_trials_take_no_quadratic_time(method, pruner):
    search = {"method": method, "trials": 10000, "space": {**SPACE, "batch_size": {"low": 1, "high": 100, "step": 1}}, "pruner": pruner}
    if method == "grid":
        search["space"] = {"batch_size": {"low": 1, "high": 100, "step": 1}, "learning_rate": {"low": 0.01, "high": 1.0, "step": 0.01}}
    began = time.process_time()
    subject = study(search, order="fixed", epochs=3)
    running = []
    count = 0
    while True:
        while True:
            asked = subject.ask()
            if asked is None:
                break
            running.append(asked[0])
            count += 1
        if not running:
            break
        ended, running = running, []
        for number in ended:
            subject.report(number, 1, number * 7919 % 10007)
        for number, _, reason in subject.verdicts():
            subject.finish(number, "done" if reason is None else "pruned", 1.0)
    assert count == 10000 and time.process_time() - began < 8
