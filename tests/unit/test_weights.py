"""Weights of classes by the label's own values."""

import json

import numpy as np
import pytest

from cerebro_udf import encoders
from cerebro_udf.coordinator import weights
from cerebro_udf.errors import BadData, InvalidArgument
from tests.unit.test_encoders import CLEAN, LABEL, NUMBER, labels, moments, shard


def label(*classes, counts=None, type_="text"):
    return {"name": "y", "type": type_, "task": "classification", "classes": list(classes), "counts": counts or [1] * len(classes)}


@pytest.mark.parametrize(
    "classes, given, expected",
    [
        (["cat", "dog", "owl"], {"owl": 3, "cat": 0.5}, [0.5, 1.0, 3.0]),
        ([1, 2, 10], {"10": 2, "2.0": 3}, [1.0, 3.0, 2.0]),
        ([False, True], {"true": 4}, [1.0, 4.0]),
        ([0.5, 2.0], {"0.50": 2, "2": 3}, [2.0, 3.0]),
        (["1", "01"], {"01": 2}, [1.0, 2.0]),
        ([0, 1], {"0": 0}, [0.0, 1.0]),
    ],
)
def test_classes_are_named_as_the_column_has_them(classes, given, expected):
    assert weights.by_class(weights.read("class_weight", given), label(*classes)) == expected


def test_balanced_gives_every_class_the_same_share():
    given = weights.read("class_weight", "balanced")
    found = weights.by_class(given, label("a", "b", "c", counts=[60, 20, 20]))
    assert found == pytest.approx([100 / (3 * 60), 100 / (3 * 20), 100 / (3 * 20)])
    assert np.dot(found, [60, 20, 20]) == pytest.approx(100)
    assert weights.by_class(given, label("a", "b", "c", counts=[50, 50, 0])) == [1.0, 1.0, 1.0]


def test_a_value_that_is_no_class_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidArgument) as info:
        weights.by_class({"catt": 2.0}, label("cat", "dog"))
    assert 'names "catt", which label "y" never is' in info.value.message
    assert '"cat"' in info.value.hint and "cat, dog" in info.value.detail


def test_a_quantity_has_no_classes_to_weigh():
    with pytest.raises(InvalidArgument, match="for classification"):
        weights.refuse_other_tasks({"name": "y", "type": "real", "task": None})
    weights.refuse_other_tasks({"name": "y", "type": "real", "task": "classification"})


def test_counts_of_training_rows_are_merged():
    stats = [
        shard(2, x=moments([1.0, 2.0]), y={**labels(3, 1), "counts": [5, 0]}),
        shard(2, x=moments([1.0, 2.0]), y={**labels(1, 2), "counts": [4, 2]}),
    ]
    merged = json.loads(json.dumps(encoders.merge([NUMBER], [LABEL], stats)))["labels"][0]
    assert (merged["classes"], merged["counts"]) == ([1, 2, 3], [4, 2, 5])


@pytest.mark.parametrize(
    "found, told",
    [({"negatives": 2, "total": 3.0}, "holds negative weights"), ({"negatives": 0, "total": 0.0}, "weighs every training row 0")],
)
def test_weights_that_cannot_be_are_refused(found, told):
    stats = [shard(2, x=moments([1.0, 2.0]), y=labels(1, 2), w={**CLEAN, **found})]
    with pytest.raises(BadData, match=told) as info:
        encoders.merge([NUMBER], [LABEL], stats)
    assert '"w"' in info.value.message and info.value.hint
