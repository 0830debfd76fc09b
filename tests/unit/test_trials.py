"""Trials and the units in which they move."""

from __future__ import annotations

import pytest

from cerebro_udf.coordinator.options import Options
from cerebro_udf.coordinator.stopping import Watch
from cerebro_udf.coordinator.trials import MAX_GROUP, Trial, group


def trial(number: int, units: int = 8, rate: float = 0.1, batch_size: int = 32, epoch: int = 1, done=()) -> Trial:
    program = {"definition": {"units": units}, "optimizer": {"class_name": "Adam", "config": {"learning_rate": rate}}}
    order = {"program": program, "batch_size": batch_size, "learning_rate": rate}
    return Trial(number, {}, order, number, Watch(Options(), ("loss", "min")), epoch=epoch, done=list(done))


def members(units) -> list:
    return [[member.number for member in unit.members] for unit in units]


def test_trials_that_differ_in_the_learning_rate_alone_move_together():
    trials = [trial(number, units=8 * (1 + number % 2), rate=0.1 / (1 + number)) for number in range(8)]
    assert members(group(trials, 2, True)) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_units_of_one_program_are_as_few_as_segments_those_of_several_twice_as_many():
    alike, two, many = [trial(n) for n in range(16)], [trial(n, n % 2) for n in range(16)], [trial(n, n // 2) for n in range(16)]
    assert [[len(unit) for unit in members(group(trials, 2, True))] for trials in (alike, two, many)] == [[8] * 2, [4] * 4, [2] * 8]


@pytest.mark.parametrize("other", [trial(1, batch_size=64), trial(1, units=16), trial(1, epoch=2), trial(1, done=[0])])
def test_trials_that_differ_in_anything_else_move_apart(other):
    assert members(group([trial(0), other], 1, True)) == [[0], [1]]


def test_a_learning_rate_schedule_is_part_of_the_program():
    one, two = trial(0), trial(1)
    for number, each in enumerate((one, two)):
        each.order["program"]["optimizer"]["config"]["learning_rate"] = {"class_name": "Decay", "config": {"rate": number}}
    assert members(group([one, two], 1, True)) == [[0], [1]]


def test_trials_that_have_trained_on_the_same_shards_in_another_order_move_together():
    assert members(group([trial(0, done=[1, 0]), trial(1, done=[0, 1])], 1, True)) == [[0, 1]]


@pytest.mark.parametrize("segments", [1, 2, 3, 5, 8])
def test_every_segment_has_a_unit_to_train_where_there_are_trials_enough(segments):
    units = group([trial(number) for number in range(8)], segments, True)
    assert len(units) >= min(8, segments)
    assert sorted(sum(members(units), [])) == list(range(8))


def test_groups_are_of_even_size_and_none_is_too_large():
    sizes = [len(unit.members) for unit in group([trial(number) for number in range(MAX_GROUP + 2)], 1, True)]
    assert sorted(sizes) == [5, 5]


def test_nothing_moves_together_where_it_is_not_wanted():
    assert members(group([trial(0), trial(1)], 1, False)) == [[0], [1]]


def test_a_group_keeps_its_number_when_its_first_member_leaves():
    (unit,) = group([trial(3), trial(4)], 1, True)
    unit.leave(unit.members[0])
    assert (unit.number, members([unit])) == (3, [[4]])
