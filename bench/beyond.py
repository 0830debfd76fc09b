"""A budget of half the shard against all of it: a run of 10 epochs of an MLP 100-64-2, batch 128, on 2 segments of 50,000 rows.

Half of each shard is in memory, the rest is taken from temporary files that the kernel has in its page cache. Both calls train the
same minibatches, in one session whose programs are warm; the time of each is that of its visits on the segments, without loading.
"""

from __future__ import annotations

import json

import numpy as np

from bench.rounds import Measure, interleave, ratio
from bench.servers import SCHEMA, Servers

NAME = "beyond"
ROWS, ELEMENTS, EPOCHS = 50_000, 100, 10  # rows of each shard
SHARD_BYTES = ROWS * (ELEMENTS + 1) * 4


def measure(servers: Servers, rounds: int) -> list[Measure]:
    random = np.random.default_rng(0)
    shards = [(random.standard_normal((ROWS, ELEMENTS), np.float32), random.integers(0, 2, ROWS)) for _ in range(2)]
    servers.table(NAME, shards)
    layers = [{"Dense": {"units": 64, "activation": "relu"}}, {"Dense": {"units": 2}}]
    options = {"epochs": EPOCHS, "batch_size": 128, "seed": 1, "validation": 0, "if_exists": "replace"}
    half = "%dkB" % (SHARD_BYTES / 1000)  # both workers are on one host
    with servers.connect() as connection:
        connection.execute("select cerebro.create_model(%s, %s)", [NAME, json.dumps({"layers": layers})])

        def trained(**more) -> float:
            values = [NAME, "%s.%s" % (SCHEMA, NAME), NAME, json.dumps({**options, **more})]
            connection.execute("select * from cerebro.fit(%s, %s, %s, 'y', '{x}', %s)", values)
            seconds, share = connection.execute(
                "select sum((details ->> 'seconds')::float8), avg(coalesce((details ->> 'hits')::float8 / rows, 1))"
                " from cerebro.visit where run = %s",
                [NAME],
            ).fetchone()
            if abs(share - (0.5 if more else 1)) > 0.02:
                raise RuntimeError("%.2f of the rows were in memory" % share)
            return seconds

        seconds = interleave({"half": lambda: trained(memory=half), "all": trained}, rounds)
    return [ratio("training with a budget of half the shard against all of it", seconds, "half", "all", 1.3, False)]
