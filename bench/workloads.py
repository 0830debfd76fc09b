"""The models that visits are measured with, and their rows: the same on every side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEED = 7


@dataclass(frozen=True)
class Workload:
    """A model in the short form, and what it trains on.

    Attributes:
        goal: How many times as fast as `Model.fit` a visit has to be.
    """

    name: str
    layers: tuple
    shape: tuple[int, ...]
    classes: int
    rows: int
    batch_size: int
    goal: float

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """x float32 (rows, *shape), y int32 (rows,)."""
        random = np.random.default_rng(SEED)
        x = random.standard_normal((self.rows, *self.shape), np.float32)
        return x, random.integers(0, self.classes, self.rows, dtype=np.int32)


def dense(units: int) -> dict:
    return {"Dense": {"units": units, "activation": "relu"}}


def convolution(filters: int) -> tuple:
    return {"Conv2D": {"filters": filters, "kernel_size": 3, "activation": "relu"}}, {"MaxPooling2D": {}}


MLP = (dense(256), dense(256), {"Dense": {"units": 2}})

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("tiny MLP 20-16-2, batch 32", (dense(16), {"Dense": {"units": 2}}), (20,), 2, 20_000, 32, 5.0),
        Workload("MLP 100-256-256-2, batch 256", MLP, (100,), 2, 50_000, 256, 3.0),
        Workload(
            "CNN 28×28, batch 64",
            ({"Reshape": {"target_shape": [28, 28, 1]}}, *convolution(16), *convolution(32), {"Flatten": {}},
             {"Dense": {"units": 10}}),
            (28, 28), 10, 4_096, 64, 0.95,
        ),
        Workload(
            "LSTM(64)×32, batch 64", ({"LSTM": {"units": 64}}, {"Dense": {"units": 2}}), (32, 16), 2, 4_096, 64, 0.95
        ),
    )
}  # fmt: skip
