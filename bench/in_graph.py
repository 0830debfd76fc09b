"""The ideal: rows in memory, each architecture built and traced once, every pass a loop inside TensorFlow, one thread.

Job: {"task", "numbers": of the architectures, configurations that differ in more than the learning rate}.
"""

from __future__ import annotations

import os

os.environ.update(
    KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1"
)

import numpy as np
import tensorflow as tf

from bench import children, task
from bench.servers import SEGMENTS
from cerebro_udf import compilation, definition
from cerebro_udf.segment import program, seeds


def search(job: dict) -> dict:
    chosen = task.TASKS[job["task"]]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    random = np.random.default_rng(task.SEED)
    rows = SEGMENTS * chosen.rows
    x, y = random.standard_normal((rows, chosen.elements), np.float32), random.integers(0, 2, rows, dtype=np.int32)
    train, held = (
        {"numbers": tf.convert_to_tensor(x), "label": tf.convert_to_tensor(y)} for x, y in task.split(x, y)
    )
    architectures: dict[str, list[dict]] = {}
    for configuration in chosen.configurations:
        architectures.setdefault(str(chosen.bound(configuration)), []).append(configuration)
    losses = []
    for number in job["numbers"]:
        alike = list(architectures.values())[number]
        built = program.Program({
            "definition": definition.bind({"layers": chosen.bound(alike[0])}, {}),
            "optimizer": compilation.check_optimizer("adam"), "loss": None, "metrics": None,
            "encoders": {
                "inputs": [{"name": None, "numbers": [chosen.elements], "codes": []}],
                "outputs": [{"name": None, "task": "classification", "classes": 2}],
            },
        })  # fmt: skip
        for configuration in alike:
            built.set_state(built.initial_state(task.SEED))
            built.set_learning_rate(configuration["learning_rate"])
            for epoch in range(1, chosen.epochs + 1):
                built.reset_metrics()
                built.train(train, seeds.permutation(task.SEED, epoch, 0, len(train["label"])), chosen.batch_size)
                built.reset_metrics()
                built.validate(held, chosen.batch_size)
                losses.append(built.results()["loss"])
    return {"val_loss": min(losses)}


if __name__ == "__main__":
    children.work(search)
