"""Plain Keras: reads the rows, then `Model.fit` for one configuration after another.

Job: {"task", "urls" of the segments, "numbers" of the configurations, "threads", "style" as in `bench.task.build`}.
"""

from __future__ import annotations

import os

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import tensorflow as tf

from bench import children, task


def search(job: dict) -> dict:
    chosen = task.TASKS[job["task"]]
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    train, held = task.split(*task.export(job["urls"], chosen))
    results = []
    for number in job["numbers"]:
        keras.utils.clear_session()
        results.append(task.fit(chosen, chosen.configurations[number], job["style"], train, held))
    return {"best": task.best_of(results), "trials": len(results)}


if __name__ == "__main__":
    children.work(search)
