"""What `explain_fit` estimates against what `fit` takes: 16 configurations × 3 epochs of an MLP on 2 segments.

4 learning rates × 2 widths × 2 dropout rates, batch 256, 25,000 rows on each segment, 20 % of them for validation; both calls in
one session whose programs are warm. The figure is the larger one over the smaller one, so 1 is a perfect estimate.
"""

from __future__ import annotations

import json
import time

import numpy as np

from bench.rounds import Measure
from bench.servers import SCHEMA, Servers

NAME = "explain"
ROWS, ELEMENTS, EPOCHS = 25_000, 100, 3  # rows of each shard
GOAL = 1.5
SPACE = {"learning_rate": [0.0003, 0.001, 0.003, 0.01], "width": [128, 256], "rate": [0.1, 0.3]}


def measure(servers: Servers, rounds: int) -> list[Measure]:
    random = np.random.default_rng(0)
    shards = [(random.standard_normal((ROWS, ELEMENTS), np.float32), random.integers(0, 2, ROWS)) for _ in range(2)]
    servers.table(NAME, shards)
    dense = {"Dense": {"units": "$width", "activation": "relu"}}
    layers = [dense, {"Dropout": {"rate": "$rate"}}, dense, {"Dense": {"units": 2}}]
    options = {"epochs": EPOCHS, "batch_size": 256, "seed": 1, "search": {"space": SPACE}}
    estimated, taken = [], []
    with servers.connect() as connection:
        connection.execute("select cerebro.create_model(%s, %s)", [NAME, json.dumps({"layers": layers})])
        for _ in range(1 + rounds):
            values = ["%s.%s" % (SCHEMA, NAME), NAME, json.dumps(options)]
            explained = dict(
                connection.execute("select property, value from cerebro.explain_fit(%s, %s, 'y', '{x}', %s)", values).fetchall()
            )
            estimated.append(explained["total"])
            started = time.perf_counter()
            values[2] = json.dumps({**options, "if_exists": "replace"})
            connection.execute("select * from cerebro.fit(%s, %s, %s, 'y', '{x}', %s)", [NAME, *values])
            taken.append(time.perf_counter() - started)
    samples = [max(a / b, b / a) for a, b in zip(estimated, taken)]
    seconds = {"estimated": float(np.median(estimated[1:])), "taken": float(np.median(taken[1:]))}
    return [Measure("time that explain_fit estimates against that of fit", samples[1:], GOAL, False, "", seconds)]
