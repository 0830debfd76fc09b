"""When weights may be trained on with a packed table: its rows, and what is made of outputs, mean what they meant."""

from types import SimpleNamespace

import pytest

from cerebro_udf.coordinator.packed import PackedLoader
from cerebro_udf.errors import InvalidArgument

LABEL = {"name": "y", "output": None, "type": "real", "task": "regression", "encoder": "standardize", "mean": [2.0], "scale": [3.0]}


def encoders(inputs=("a",), **label):
    features = [{"name": name, "kind": "number", "type": "real", "encoder": "none", "shape": []} for name in inputs]
    given = [{"name": None, "features": list(inputs), "stack": None}]
    return {"format": 3, "features": features, "labels": [{**LABEL, **label}], "inputs": given, "rows": {"train": 9, "validation": 1}}


def begun(kept: dict) -> dict:
    """The encoders of a run over a packed table, whose weights come with these."""
    loader = PackedLoader.__new__(PackedLoader)
    loader._table, loader._augment = SimpleNamespace(name="packed", header={"encoders": encoders(), "source": {"name": "source"}}), {}
    return loader._made([], kept)


def test_weights_that_come_with_the_same_encoders_are_trained_on():
    assert begun(encoders(name="another name of it"))["labels"] == [LABEL]


@pytest.mark.parametrize("label", [{"mean": [2.5]}, {"scale": [1.0]}, {"encoder": None, "mean": None}, {"task": "multi_label"}])
def test_weights_whose_outputs_mean_something_else_are_refused(label):
    with pytest.raises(InvalidArgument, match="with other encoders"):
        begun(encoders(**label))


def test_weights_of_other_features_are_refused():
    with pytest.raises(InvalidArgument, match="with other encoders"):
        begun(encoders(inputs=("a", "b")))
