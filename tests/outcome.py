"""What a run left in the catalog, read back for comparison: by plain SQL and the safetensors library."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load

from tests.cluster import ROLE, Cluster


def states(cluster: Cluster, run: str, role: str = ROLE) -> dict[tuple[int, int], bytes]:
    """The kept states of a run, chunks joined: (trial, seq) -> blob."""
    rows = cluster.coordinator.execute(
        "select s.trial, s.seq, s.data from cerebro_internal.state s join cerebro_internal.run r on r.id = s.run"
        " where r.name = %s and r.owner = %s order by s.trial, s.seq, s.chunk",
        [run, role],
    )
    blobs: dict[tuple[int, int], bytes] = {}
    for trial, seq, data in rows:
        blobs[trial, seq] = blobs.get((trial, seq), b"") + data
    return blobs


def arrays(blob: bytes) -> dict[str, np.ndarray]:
    """The arrays of a state by name: model/0 …, optimizer/0 …, metric/0 …"""
    return load(blob)


def best(cluster: Cluster, run: str, shards: int, role: str = ROLE) -> dict[str, np.ndarray]:
    """The arrays of the first trial's best epoch."""
    epoch = next(best_epoch for _, _, _, _, best_epoch, _ in ranking(cluster, run, role))
    return arrays(states(cluster, run, role)[0, epoch * shards])


def weights(found: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The model's variables among the arrays of a state, in order."""
    return [found["model/%d" % i] for i in range(len([name for name in found if name.startswith("model/")]))]


def softmax(y: np.ndarray) -> np.ndarray:
    e = np.exp(y - y.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def spelled(value) -> str:
    """A value of Python as PostgreSQL spells it as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def history(cluster: Cluster, run: str, role: str = ROLE) -> list[tuple]:
    """What training gave after each epoch of each trial, without times."""
    return cluster.coordinator.execute(
        "select trial, epoch, metrics, learning_rate from cerebro.epoch where run = %s and owner = %s order by trial, epoch",
        [run, role],
    )


def ranking(cluster: Cluster, run: str, role: str = ROLE) -> list[tuple]:
    return cluster.coordinator.execute(
        "select trial, params, state, metric, best_epoch, error from cerebro.trial where run = %s and owner = %s order by trial",
        [run, role],
    )


def everything(cluster: Cluster, run: str, role: str = ROLE) -> tuple:
    """All that must be equal, bit for bit, of two runs that are said to be the same."""
    return history(cluster, run, role), ranking(cluster, run, role), states(cluster, run, role)


def visits(cluster: Cluster, run: str, phase: str = "train", role: str = ROLE) -> list[tuple]:
    """(trial, epoch, shard, position, state, attempt, rows) of every visit, in visiting order."""
    return cluster.coordinator.execute(
        "select trial, epoch, shard, position, state, attempt, rows from cerebro.visit"
        " where run = %s and owner = %s and phase = %s order by trial, epoch, position, shard",
        [run, role, phase],
    )
