"""States longer than one message (64 MB) travel and are stored in parts."""

from __future__ import annotations

import numpy as np

from tests import outcome
from tests.cluster import ADMIN
from tests.faults import cancelled

# 5.8 million weights and twice as many moments of Adam, float32.
MODEL = {"layers": [{"Dense": {"units": 2400}}, {"Dense": {"units": 2400}}, {"Dense": {"units": 1}}]}
SIZES = [20, 11]


def test_large_state_trains_and_resumes_in_parts(session):
    cluster = session.cluster
    random = np.random.default_rng(1)
    rows = {"x": random.normal(size=(sum(SIZES), 3)).astype(np.float32), "y": random.normal(size=sum(SIZES))}
    table = session.sharded({"x": "real[]", "y": "double precision"}, rows, sizes=SIZES)
    model = session.model(MODEL)

    def call():
        return session.call(table, model, "y", ["x"], epochs=1, batch_size=8, validation=0, seed=3, order="fixed")

    statement, values = call()
    session.conn.execute(statement, values)
    whole = outcome.everything(cluster, values[0])
    with cluster.connect(ADMIN) as admin:
        chunks = admin.execute(
            "select s.seq, count(*), max(length(s.data)) from cerebro_internal.state s"
            " join cerebro_internal.run r on r.id = s.run where r.name = %s group by s.seq",
            [values[0]],
        ).fetchall()
    assert chunks and all(count == 2 and longest == 64 * 2**20 for _, count, longest in chunks)
    last = outcome.arrays(whole[2][0, 2])
    batches = sum(
        batches
        for (batches,) in cluster.coordinator.execute(
            "select batches from cerebro.visit where run = %s and phase = 'train'", [values[0]]
        )
    )
    assert last["optimizer/0"] == batches

    statement, values = call()
    cancelled(session, cluster.coordinator, values[0], "state-returned", 2, statement, values)  # nothing but the first state is kept
    session.conn.execute("select cerebro.resume(%s)", [values[0]])
    assert outcome.everything(cluster, values[0]) == whole
