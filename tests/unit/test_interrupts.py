"""Long steps over the arrays of an archive let an interrupt through, and as what it is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cerebro_udf import archive, hdf5
from cerebro_udf.coordinator import options, programs
from cerebro_udf.segment import export, intake, program, state
from tests.unit.test_predict import NUMBER, TEXT, record, stored


class Cancelled(Exception):
    """Stands for PL/Python's."""


class Pulse:
    def __init__(self, last: int = 1_000_000):
        self.calls, self._last = 0, last

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self._last:
            raise Cancelled


@pytest.fixture(scope="module")
def exported():
    layers = [{"Dense": {"units": 3}}, {"Dense": {"units": "$classes"}}]
    made = record(stored([{**NUMBER, "type": "real"}, {**TEXT, "type": "text"}]), layers)
    spec = programs.order(options.Options.from_json(made["options"]), {}, made["definition"], made["encoders"])["program"]
    blob = program.Program(spec).initial_state(3)
    return lambda pulse: export.archive(made["encoders"], spec, blob, {"run": "r"}, pulse)


def taken_in(data: bytes):
    parts = archive.read(data, lambda: None)
    config, arrays = json.loads(parts.config), hdf5.read(parts.weights, lambda: None)
    return lambda pulse: intake.take_in(config, arrays, [], pulse)


@pytest.mark.parametrize("step, arrays", [("export", 4 + 2), ("import", 4 + 4)])  # variables and features, or written and packed
def test_a_cancel_passes_between_the_arrays_of_an_archive(exported, step, arrays):
    run = exported if step == "export" else taken_in(exported(Pulse()))
    whole = Pulse()
    run(whole)
    assert whole.calls >= arrays
    for last in (1, whole.calls):
        with pytest.raises(Cancelled):
            run(Pulse(last))


def test_a_cancel_passes_between_the_arrays_of_a_state():
    with pytest.raises(Cancelled):
        state.pack({"a": np.ones(2), "b": np.ones(2)}, pulse=Pulse(2))
