"""The searches that whole runs are compared by, and what every plain tool shares: reading the rows, the model, the split.

Imported by processes of two environments, Cerebro's and the peers'; Keras only where it is used.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Optional

import numpy as np
import psycopg

from bench.servers import COPY_HEADER_BYTES, SCHEMA, SEGMENTS, Servers, row_type

SEED = 3
VALIDATION = 0.2


@dataclass(frozen=True)
class Task:
    """A search: a model with placeholders in the short form, its space, and the size of its table.

    Attributes:
        table: In schema `bench`, (x real[], y integer), `rows` of them on each segment.
    """

    table: str
    elements: int
    rows: int
    layers: tuple
    space: dict
    batch_size: int
    epochs: int

    @property
    def configurations(self) -> list[dict]:
        return [dict(zip(self.space, values)) for values in itertools.product(*self.space.values())]

    @property
    def options(self) -> dict:
        return {
            "epochs": self.epochs, "batch_size": self.batch_size, "validation": VALIDATION, "seed": SEED,
            "if_exists": "replace", "search": {"space": self.space},
        }  # fmt: skip

    def bound(self, configuration: dict) -> list[dict]:
        """The layers of one configuration."""
        text = json.dumps(self.layers)
        for name, value in configuration.items():
            text = text.replace('"$%s"' % name, json.dumps(value))
        return json.loads(text)

    def create(self, servers: Servers) -> None:
        """Make the table: classes that a small network can learn, 5 % of the labels at random."""
        random = np.random.default_rng(SEED)
        hidden, out = random.standard_normal((self.elements, 8)), random.standard_normal(8)
        shards = []
        for _ in range(SEGMENTS):
            x = random.standard_normal((self.rows, self.elements), np.float32)
            y = np.tanh(x @ hidden / np.sqrt(self.elements)) @ out > 0
            wrong = random.random(self.rows) < 0.05
            shards.append((x, (y ^ (wrong & (random.random(self.rows) < 0.5))).astype(np.int32)))
        servers.table(self.table, shards)


def dense(units) -> dict:
    return {"Dense": {"units": units, "activation": "relu"}}


TASKS = {
    "mlp": Task(
        "search", 100, 25_000,
        (dense("$width"), {"Dropout": {"rate": "$dropout"}}, dense("$width"), {"Dropout": {"rate": "$dropout"}}, {"Dense": {"units": 2}}),
        {"learning_rate": [0.0003, 0.001, 0.003, 0.01], "width": [128, 256], "dropout": [0.1, 0.3]}, 256, 3,
    ),
    "tiny": Task(
        "search_tiny", 20, 10_000, (dense(16), {"Dense": {"units": 2}}),
        {"learning_rate": [0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02]}, 32, 3,
    ),
}  # fmt: skip


def export(urls: list[str], task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Read all rows from the segments by binary COPY: x float32 (n, elements), y int32 (n,)."""
    xs, ys = [], []
    for number, url in enumerate(urls, 1):
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            statement = "copy (select x, y from %s.%s_%d) to stdout (format binary)" % (SCHEMA, task.table, number)
            with cursor.copy(statement) as copy:
                data = b"".join(copy)
        rows = np.frombuffer(data, row_type((task.elements,)), task.rows, COPY_HEADER_BYTES)
        xs.append(rows["items"]["value"].astype(np.float32))
        ys.append(rows["y"].astype(np.int32))
    return np.concatenate(xs), np.concatenate(ys)


def split(x: np.ndarray, y: np.ndarray) -> tuple[tuple, tuple]:
    """Rows to train on and rows for validation."""
    order = np.random.default_rng(SEED).permutation(len(x))
    train, held = np.split(order, [round(len(x) * (1 - VALIDATION))])
    return (x[train], y[train]), (x[held], y[held])


def build(task: Task, configuration: dict, style: dict):
    """The compiled Keras model of one configuration.

    Args:
        style: `{"steps_per_execution": …, "jit_compile": …}`, Keras' defaults where absent.
    """
    import keras

    layers = [getattr(keras.layers, name)(**config) for layer in task.bound(configuration) for name, config in layer.items()]
    model = keras.Sequential([keras.Input((task.elements,)), *layers])
    model.compile(
        optimizer=keras.optimizers.Adam(configuration["learning_rate"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], **style,
    )  # fmt: skip
    return model


def fit(task: Task, configuration: dict, style: dict, train: tuple, held: tuple) -> dict:
    """Train one configuration; its best epoch's `val_loss` and that epoch's `val_accuracy`."""
    model = build(task, configuration, style)
    history = model.fit(*train, batch_size=task.batch_size, epochs=task.epochs, validation_data=held, verbose=0).history
    best = int(np.argmin(history["val_loss"]))
    return {"params": configuration, **{name: float(history[name][best]) for name in ("val_loss", "val_accuracy")}}


def best_of(results: list[dict]) -> Optional[dict]:
    return min(results, key=lambda result: result["val_loss"], default=None)
