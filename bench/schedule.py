"""16 trials × 3 epochs on 2 segments: how far the run is from the best that any schedule could do.

From the ledger: (last end − first start) over the larger of the busiest segment's and the longest trial's sum of
`train_seconds`, training and validation visits alike. `train_seconds` is the loop alone, so all else counts against
us: hops, setting and reading states, the ledger, waiting, idle segments.

The trials share two programs (8 learning rates × 2 widths), and a first, uncounted run in the same session has traced
them: tracing is a cost per architecture, not per visit. A visit takes half a second to a second on one core.
"""

from __future__ import annotations

import json

import numpy as np

from bench.rounds import Measure
from bench.servers import SCHEMA, Servers

TABLE, RUN = "schedule", "schedule"
ROWS, ELEMENTS = 100_000, 100  # of each shard
GOAL = 1.10
RATES = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]
WIDTHS = [256, 320]
TRIALS, EPOCHS = len(RATES) * len(WIDTHS), 3

_RATIO = """
with visit as (select * from cerebro.visit where run = %s)
select extract(epoch from max(finished_at) - min(started_at))::float8
     , (select max(s) from (select sum(train_seconds) as s from visit group by segment) b)
     , (select max(s) from (select sum(train_seconds) as s from visit group by trial) b)
     , count(*)
from visit
"""


def measure(servers: Servers, rounds: int) -> list[Measure]:
    random = np.random.default_rng(0)
    shards = [
        (random.standard_normal((ROWS, ELEMENTS), np.float32), random.integers(0, 2, ROWS)) for _ in range(2)
    ]
    servers.table(TABLE, shards)
    layers = [
        {"Dense": {"units": "$width", "activation": "relu"}}, {"Dense": {"units": "$width", "activation": "relu"}},
        {"Dense": {"units": 2}},
    ]  # fmt: skip
    samples, spans, bounds = [], [], []
    with servers.connect() as connection:
        connection.execute("select cerebro.create_model(%s, %s)", [RUN, json.dumps({"layers": layers})])
        for epochs in [1] + [EPOCHS] * rounds:
            options = {
                "epochs": epochs, "batch_size": 256, "seed": 1, "if_exists": "replace",
                "search": {"space": {"learning_rate": RATES, "width": WIDTHS}},
            }  # fmt: skip
            connection.execute(
                "select * from cerebro.fit(%s, %s, %s, 'y', '{x}', %s)",
                [RUN, "%s.%s" % (SCHEMA, TABLE), RUN, json.dumps(options)],
            )
            span, segment, trial, visits = connection.execute(_RATIO, [RUN]).fetchone()
            if visits != TRIALS * epochs * 4:
                raise RuntimeError("the run has %d visits" % visits)
            samples.append(span / max(segment, trial))
            spans.append(span)
            bounds.append(max(segment, trial))
    name = "%d trials × %d epochs on 2 segments against the bound" % (TRIALS, EPOCHS)
    seconds = {"run": sorted(spans[1:])[rounds // 2], "bound": sorted(bounds[1:])[rounds // 2]}
    return [Measure(name, samples[1:], GOAL, False, "", seconds)]
