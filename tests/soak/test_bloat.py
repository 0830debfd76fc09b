"""States that follow one another for hours: what they leave in the catalog is cleaned up while the run goes."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from tests.cluster import ADMIN, poll_until

SIZES = [4, 4]
VISITS = 200
STATE_BYTES = 50 * 2**20
# Weights and two moments of Adam of each, float32: 50 MB.
MODEL = {"layers": [{"Dense": {"units": 2048}}, {"Dense": {"units": 2048}}, {"Dense": {"units": 1}}]}
OPTIONS = {"epochs": VISITS // len(SIZES), "batch_size": 4, "validation": 0, "optimizer": {"Adam": {}}, "seed": 1}
KEPT_STATES = 60  # at most, dead or alive
DEADLINE_SECONDS = 1800.0
SAMPLE_SECONDS = 1.0

SIZE = "select pg_total_relation_size('cerebro_internal.state')"
OLDEST = (
    "select coalesce(max(age(backend_xmin)), 0), coalesce(max(extract(epoch from now() - xact_start)), 0)::int from pg_stat_activity"
    " where usename = %s"
)


@pytest.fixture
def launched_often(cluster):
    """As an operator sets it who has large states and little disk."""
    with cluster.connect(ADMIN) as admin:
        admin.execute("alter system set autovacuum_naptime = '10s'")
        admin.execute("select pg_reload_conf()")
        yield
        admin.execute("alter system reset autovacuum_naptime")
        admin.execute("select pg_reload_conf()")


def test_states_of_a_submitted_run_are_cleaned_up_while_it_goes(session, cluster, launched_often, record_property):
    random = np.random.default_rng(1)
    rows = {"x": random.normal(size=(sum(SIZES), 3)).astype(np.float32), "y": random.normal(size=sum(SIZES))}
    table = session.sharded({"x": "real[]", "y": "double precision"}, rows, sizes=SIZES)
    run, model = session.name(), session.model(MODEL)
    begun = time.monotonic()
    call = "select cerebro.submit(%s, %s::text::regclass, %s, 'y', '{x}', %s::jsonb)"
    session.rows(call, run, table.name, model, json.dumps(OPTIONS))
    sizes, ages, seconds, state = [], [], [], "select state from cerebro.run where run = %s"
    with cluster.connect(ADMIN) as admin:

        def ended() -> bool:
            sizes.append(admin.execute(SIZE).fetchone()[0])
            age, longest = admin.execute(OLDEST, [session.role]).fetchone()
            ages.append(age)
            seconds.append(longest)
            return session.rows(state, run)[0][0] not in ("loading", "running")

        poll_until(ended, DEADLINE_SECONDS, SAMPLE_SECONDS)
    assert session.rows(state, run) == [("done",)]
    made = session.rows("select count(*) from cerebro.visit where run = %s and phase = 'train'", run)[0][0]
    length = cluster.coordinator.execute("select max(length(data)) from cerebro_internal.state")[0][0]
    record_property("visits of a state of %d MB, in %d s" % (length / 2**20, time.monotonic() - begun), made)
    record_property("MB, the table of states at its largest", max(sizes) // 2**20)
    record_property("transactions, the age of the oldest snapshot", max(ages))
    record_property("seconds, the age of the oldest transaction", max(seconds))
    assert max(ages) < 100  # of more than 1,000
    assert made == VISITS and max(sizes) < KEPT_STATES * STATE_BYTES < VISITS * STATE_BYTES / 2
