"""What a run may go on with, held against what it has; and configurations that are not tried twice."""

from __future__ import annotations

import pytest

from cerebro_udf.coordinator import extend, samplers, space
from cerebro_udf.coordinator.options import Options
from cerebro_udf.errors import InvalidArgument

DEFINITION = {"layers": [{"Dense": {"units": 1}}]}
LOG = {"low": 16, "high": 64, "log": True, "step": 2}


def searching(axis, **more) -> Options:
    return Options(search={"space": {"batch_size": axis}, **more})


@pytest.mark.parametrize("before, after", [
    ([8, 16], [32, 16, 8.0]), ([8, 16], {"low": 1, "high": 30}), (LOG, {**LOG, "high": 128}), (LOG, [64, 8, 16, 32]),
    ({"low": 8, "high": 16, "step": 4}, {"low": 4, "high": 20, "step": 4}), ({"low": 8, "high": 9}, {"low": 8, "high": 9}),
])  # fmt: skip
def test_an_axis_may_grow(before, after):
    found = extend.extended(searching(before), {"search": {"space": {"batch_size": after}}}, DEFINITION, 1)
    assert found.search == {"space": {"batch_size": after}} and found.epochs == Options().epochs


@pytest.mark.parametrize("before, after", [
    ([8, 16], [16, 32]), ([8, 16], {"low": 9, "high": 100}), ({"low": 1, "high": 9}, {"low": 1, "high": 8}),
    ({"low": 8, "high": 16, "step": 4}, {"low": 6, "high": 18, "step": 4}), ({"low": 8, "high": 16, "step": 4}, {"low": 8, "high": 16}),
    ({"low": 8, "high": 16, "step": 4}, {"low": 8, "high": 16, "step": 2}), ({"low": 1, "high": 9}, {"low": 1, "high": 9, "log": True}),
    ({"low": 1, "high": 3}, [1, 2, 3]), ([8, 16], {"values": [8, 16], "when": {"loss": ["mse"]}}),
])  # fmt: skip
def test_an_axis_may_not_lose_what_it_had(before, after):
    given = {"search": {"space": {"batch_size": after, **({"loss": ["mse"]} if isinstance(after, dict) and "when" in after else {})}}}
    with pytest.raises(InvalidArgument, match='axis "batch_size" of the search does not hold what it held'):
        extend.extended(searching(before), given, DEFINITION, 1)


def test_trials_and_epochs_may_not_become_fewer_than_there_are():
    before = searching([8, 16, 32], trials=2)
    assert extend.extended(before, {"search": {"trials": 3}, "epochs": 11}, DEFINITION, 2).search["trials"] == 3
    for given, asked in (({"search": {"trials": 1}}, 0), ({"search": {"trials": 2}}, 3), ({"epochs": 9}, 0)):
        with pytest.raises(InvalidArgument, match="does not shrink"):
            extend.extended(before, given, DEFINITION, asked)


@pytest.mark.parametrize("method", ["grid", "random", "quasirandom"])
@pytest.mark.parametrize("known", range(6))
def test_what_follows_is_what_would_have_followed_and_a_wider_space_repeats_nothing(method, known):
    narrow = {"a": {"low": 1, "high": 3}, "b": [True, False]}
    whole = drawn(samplers.sequence(method, space.parse(narrow), 7))
    assert len(whole) == 6
    again = samplers.sequence(method, space.parse(narrow), 7)
    wider = samplers.sequence(method, space.parse({"a": {"low": 1, "high": 4}, "b": [False, True, None]}), 7)
    for number, params in enumerate(whole[:known]):
        again.know(number, params)
        wider.know(number, params)
    assert drawn(again) == whole[known:]
    further = [space.key(params) for params in drawn(wider)]
    assert len(set(further)) == len(further) == 12 - known and not set(further) & {space.key(params) for params in whole[:known]}


def drawn(sampler: samplers.Sequence) -> list:
    return list(iter(sampler.next, None))
