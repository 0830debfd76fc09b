"""KerasTuner: `GridSearch` in one process on both cores.

Job: {"task", "urls", "threads", "style", "folder": for what it writes}.
"""

from __future__ import annotations

import os

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras_tuner
import tensorflow as tf

from bench import children, task


def search(job: dict) -> dict:
    chosen = task.TASKS[job["task"]]
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    x, y, size = task.export(job["urls"], chosen)
    train, held = task.split(x, y)

    def model(hp: keras_tuner.HyperParameters):
        configuration = {name: hp.Choice(name, values) for name, values in chosen.space.items()}
        return task.build(chosen, configuration, job["style"])

    tuner = keras_tuner.GridSearch(
        model, objective="val_loss", directory=job["folder"], project_name="search", overwrite=True
    )
    tuner.search(*train, batch_size=chosen.batch_size, epochs=chosen.epochs, validation_data=held, verbose=0)
    best = tuner.oracle.get_best_trials(1)[0]
    accuracy = best.metrics.get_history("val_accuracy")[best.best_step].mean()
    return {
        "best": {"params": best.hyperparameters.values, "val_loss": float(best.score), "val_accuracy": float(accuracy)},
        "trials": len(tuner.oracle.trials), "copy_bytes": size,
    }  # fmt: skip


if __name__ == "__main__":
    children.work(search)
