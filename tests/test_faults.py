"""Twelve of the faults of tests/fault_table.py; `make soak` has them all strike, and at random moments."""

from __future__ import annotations

import pytest

from tests.fault_bench import Bench
from tests.fault_table import FAULTS, QUICK


@pytest.fixture(scope="module")
def bench(session):
    made = Bench(session)
    yield made
    made.close()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in QUICK], ids=lambda fault: fault.name)
def test_fault_is_told_leaves_nothing_running_and_loses_nothing(bench, fault):
    bench.check(fault)
