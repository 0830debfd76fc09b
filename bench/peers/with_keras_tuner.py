"""KerasTuner: `GridSearch` in one process on both cores, or in two workers that a third process, the chief, gives trials.

Job: {"task", "urls", "threads", "style", "folder": for what it writes, "port": of the chief, None without, "id": "chief" or
the worker's name}.
"""

from __future__ import annotations

import os
import threading

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras_tuner
import tensorflow as tf

from bench import children, task


class Counting(keras_tuner.GridSearch):
    trials = 0  # in this process

    def run_trial(self, trial, *args, **kwargs):
        found = super().run_trial(trial, *args, **kwargs)
        self.trials += 1
        return found


def search(job: dict) -> dict:
    chosen = task.TASKS[job["task"]]
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])

    def model(hp: keras_tuner.HyperParameters):
        configuration = {name: hp.Choice(name, values) for name, values in chosen.space.items()}
        return task.build(chosen, configuration, job["style"])

    def made() -> Counting:
        return Counting(model, objective="val_loss", directory=job["folder"], project_name="search")

    if job["port"]:
        os.environ.update(
            KERASTUNER_TUNER_ID=job["id"], KERASTUNER_ORACLE_IP="127.0.0.1", KERASTUNER_ORACLE_PORT=str(job["port"])
        )
    if job["id"] == "chief":
        threading.Thread(target=lambda: made().search(), daemon=True).start()  # serves the workers until they have answered
        return {"best": None, "trials": 0}
    train, held = task.split(*task.export(job["urls"], chosen))
    tuner = made()
    tuner.search(*train, batch_size=chosen.batch_size, epochs=chosen.epochs, validation_data=held, verbose=0)
    best = tuner.oracle.get_best_trials(1)[0]
    return {"best": {"params": best.hyperparameters.values, "val_loss": float(best.score)}, "trials": tuner.trials}


if __name__ == "__main__":
    children.work(search)
