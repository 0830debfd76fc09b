"""Every fault of tests/fault_table.py, and a hundred more at random moments: none may lose anything of a run.

`CEREBRO_UPDATE_TEXTS=1 make soak` writes the table of docs/reliability.md from what was seen.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from tests import fault_page
from tests.fault_bench import Bench
from tests.fault_table import FAULTS

INJECTIONS = 100
SEED = 17


@pytest.fixture(scope="module")
def bench(session):
    made = Bench(session)
    yield made
    if os.environ.get("CEREBRO_UPDATE_TEXTS"):
        fault_page.write(FAULTS, made.seen)
    made.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_told_leaves_nothing_running_and_loses_nothing(bench, fault):
    bench.check(fault)


def test_faults_at_random_moments_lose_nothing(bench, record_property):
    draw, begun = random.Random(SEED), time.monotonic()
    possible = [fault for fault in FAULTS if not fault.needs()]
    injected: Counter[str] = Counter()
    lost: list[tuple[str, object, AssertionError]] = []
    for _ in range(INJECTIONS):
        fault = draw.choice(possible)
        moment = bench.moment(draw, fault)
        injected[fault.name] += 1
        try:
            bench.check(fault, *moment)
        except AssertionError as error:
            lost.append((fault.name, moment, error))
            bench.lose_psql()
    for fault in possible:
        gone = sum(name == fault.name for name, *_ in lost)
        record_property("injected, %2d survived, %d lost: %s" % (injected[fault.name] - gone, gone, fault.name), injected[fault.name])
    record_property("injected, %d survived, %d lost" % (INJECTIONS - len(lost), len(lost)), INJECTIONS)
    record_property("seconds", round(time.monotonic() - begun))
    assert not lost, lost
