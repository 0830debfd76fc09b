"""Models built upon others: how large they may become."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from cerebro_udf import models
from cerebro_udf.coordinator import start
from cerebro_udf.errors import NotSupported, OutOfMemory
from cerebro_udf.segment import state

THRICE = {"layers": [{"Model": {"name": "m"}}] * 3}


class Catalog:
    """PL/Python's module, with one model in the catalog that create replaces."""

    def __init__(self, definition: dict, weights: dict):
        self.begun = start.Start(definition, [state.pack(weights)] if weights else [])

    def prepare(self, query, types):
        return query

    def execute(self, query, values):
        if "model_create" in query:
            self.begun.definition = json.loads(values[1])


@pytest.fixture
def catalog(monkeypatch):
    catalog = Catalog({"layers": [{"Dense": {"units": 1, "name": "d"}}]}, {"layers/d/0": np.zeros((100, 100), "f4")})
    monkeypatch.setattr(start, "registered_model", lambda plpy, name: catalog.begun)
    monkeypatch.setattr(models, "Pulse", lambda plpy: SimpleNamespace(check=lambda: None))
    return catalog


def test_models_that_are_built_upon_each_other_do_not_grow_without_bounds(catalog, monkeypatch):
    monkeypatch.setattr(models, "DEFINITION_BYTES", 10_000)
    with pytest.raises(NotSupported, match="too large") as raised:
        for _ in range(5):
            models.create(catalog, "m", THRICE)
    assert raised.value.hint and len(json.dumps(catalog.begun.definition)) < 20_000


def test_weights_of_models_built_upon_must_fit_the_memory(catalog, monkeypatch):
    models.create(catalog, "n", {"layers": [{"Model": "m"}]})
    catalog.begun.definition = {"layers": [{"Dense": {"units": 1, "name": "d"}}]}
    monkeypatch.setattr("cerebro_udf.segment.memory.available", lambda: 100_000)
    with pytest.raises(OutOfMemory) as raised:
        models.create(catalog, "m", {"layers": [{"Model": "m"}, {"Model": "m"}]})
    assert raised.value.hint
