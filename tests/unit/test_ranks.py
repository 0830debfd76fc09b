"""Ranks found by counting: against sorting all keys in one place."""

import random

import pytest

from cerebro_udf.coordinator import ranks


def count(shards):
    """Answers questions about shards, each {class: sorted keys}; and how many rounds it took."""
    rounds = []

    def ask(questions):
        rounds.append(len(questions))
        answers = []
        for shard in shards:
            lists = []
            for question in questions:
                width = 2 ** (question["bits"] - question["digits"])
                bounds = [question["low"] + n * width for n in range(2 ** question["digits"] + 1)]
                lists.append([sum(key < bound for key in shard.get(question["class"], ())) for bound in bounds])
            answers.append(lists)
        return answers

    return ask, rounds


def chosen(shards, found):
    """(class, key, shard) of the rows whose ranks were found."""
    return sorted(
        (part["class"], key, number)
        for number, (shard, parts) in enumerate(zip(shards, found))
        for part in parts
        for key in shard.get(part["class"], [])[part["start"] : part["stop"]]
    )


def sizes(shards):
    labels = sorted({label for shard in shards for label in shard})
    return {label: [len(shard.get(label, ())) for shard in shards] for label in labels}


KEYS = {
    "spread": lambda draw: draw.getrandbits(64) - 2**63,
    "few": lambda draw: draw.choice([-(2**63), -5, 0, 1, 2**63 - 1]),
    "near": lambda draw: 10**15 + draw.randrange(40),
}


@pytest.mark.parametrize("count_of_shards", [1, 2, 5])
@pytest.mark.parametrize("kind", KEYS)
def test_ranks_are_those_of_all_keys_sorted_and_equal_keys_go_by_shard(kind, count_of_shards):
    draw = random.Random(count_of_shards)
    shards = [
        {label: sorted(KEYS[kind](draw) for _ in range(draw.randrange(60))) for label in "abc" if draw.random() < 0.8}
        for _ in range(count_of_shards)
    ]
    totals = {label: sum(rows) for label, rows in sizes(shards).items()}
    wanted = {label: tuple(sorted(draw.randrange(total + 1) for _ in range(2))) for label, total in totals.items()}
    ask, rounds = count(shards)
    found = ranks.find(sizes(shards), wanted, len(shards), ask, together=False)
    expected = []
    for label, (start, stop) in wanted.items():
        rows = sorted((key, number) for number, shard in enumerate(shards) for key in shard.get(label, ()))
        expected += [(label, *row) for row in rows[start:stop]]
    assert chosen(shards, found) == sorted(expected)
    assert len(rounds) <= 7


def test_rows_of_one_key_stay_together_where_that_is_asked_for():
    shards = [{None: [1, 5, 5]}, {None: [5, 5, 9]}]
    ask, _ = count(shards)
    found = ranks.find({None: [3, 3]}, {None: (4, 6)}, 2, ask, together=True)
    assert found == [[{"class": None, "start": 1, "stop": 3}], [{"class": None, "start": 0, "stop": 3}]]


def test_an_answer_is_bounded_however_many_classes_there_are():
    shards = [{label: [label] for label in range(1000)}]
    asked = []

    def ask(questions):
        asked.append(sum(2 ** question["digits"] for question in questions))
        return count(shards)[0](questions)

    ranks.find({label: [2] for label in range(1000)}, {label: (1, 1) for label in range(1000)}, 1, ask, together=True)
    assert max(asked) <= ranks.ANSWER_COUNTS


def test_no_rows_need_no_questions():
    assert ranks.find({}, {}, 3, None, together=True) == [[], [], []]
    assert ranks.find({"a": [2, 0]}, {"a": (0, 2)}, 2, None, together=False) == [
        [{"class": "a", "start": 0, "stop": 2}], [{"class": "a", "start": 0, "stop": 0}],
    ]  # fmt: skip


def test_the_share_of_each_class_is_exact_and_never_all_of_it():
    rows = {"a": 10, "b": 7, "c": 1, "d": 2}
    wanted = ranks.held_out({"fraction": 0.5, "stratify": True}, rows, list(rows))
    assert wanted == {"a": (0, 5), "b": (0, 4), "c": (0, 0), "d": (0, 1)}
    assert ranks.held_out({"time": "at", "fraction": 0.2}, {None: 12}, [None]) == {None: (10, 12)}


def test_folds_share_out_every_class_and_are_about_equal():
    rows = {label: 3 for label in range(100)}
    of_folds = [ranks.held_out({"folds": 5, "fold": fold, "stratify": True}, rows, list(rows)) for fold in range(5)]
    for label, total in rows.items():
        assert sorted(rank for wanted in of_folds for rank in range(*wanted[label])) == list(range(total))
    assert {sum(stop - start for start, stop in wanted.values()) for wanted in of_folds} == {60}
