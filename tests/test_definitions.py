"""Definitions of every form, stored and trained on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

WARM = True
RECORDED = json.loads((Path(__file__).parent / "unit" / "keras2" / "keras-2.12.json").read_text("utf-8"))
SEARCHED = {"layers": [
    {"Reshape": {"target_shape": [-1, 1]}},
    {"repeat": "$depth", "layers": [{"$cell": {"units": 3, "return_sequences": True}}, "$after"]},
    "Flatten", {"Dense": {"units": "$classes"}},
]}  # fmt: skip
SPACE = {
    "depth": [0, 2], "cell": ["SimpleRNN", "GRU"], "after": ["Identity", {"Dropout": {"rate": 0.2}}],
    "optimizer": ["adam", {"SGD": {"momentum": 0.9}}],
    "learning_rate": [0.01, {"CosineDecay": {"initial_learning_rate": 0.05, "decay_steps": 50}}],
}  # fmt: skip


@pytest.fixture(scope="module")
def table(session):
    random = np.random.default_rng(5)
    x = random.normal(size=(60, 4)).astype(np.float32)
    return session.sharded({"x": "real[]", "kind": "integer"}, {"x": x, "kind": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}, sizes=[40, 20])


@pytest.mark.parametrize("name", ["mlp", "without a shape"])
def test_a_model_of_keras_2_trains_and_predicts(session, table, name):
    model = RECORDED[name]["model"]
    if name != "mlp":
        model["config"]["layers"][-1]["config"]["units"] = 3
    run = session.fit(table, session.model(model), "kind", ["x"], epochs=2, seed=1)
    assert session.rows("select state from cerebro.trial where run = %s", run) == [("done",)]
    assert session.rows("select count(cerebro.predict(%s, t)) from " + table.name + " t", run) == [(60,)]


def test_a_search_chooses_layers_their_number_an_optimizer_and_a_schedule(session, table):
    search = {"method": "tpe", "trials": 6, "in_flight": 2, "space": SPACE}
    run = session.fit(table, session.model(SEARCHED), "kind", ["x"], epochs=1, seed=3, search=search)
    trials = session.rows("select state, error, params from cerebro.trial where run = %s", run)
    assert [state for state, _, _ in trials] == ["done"] * 6, trials
    assert len({json.dumps(params["optimizer"]) for _, _, params in trials}) == 2
    assert session.rows("select count(cerebro.predict(%s, t)) from " + table.name + " t", run) == [(60,)]
