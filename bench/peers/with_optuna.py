"""Optuna: `GridSampler` over a study in PostgreSQL, which several processes work on.

Job: {"task", "urls", "threads", "style", "storage": SQLAlchemy URL, "study": name of one that exists}.
"""

from __future__ import annotations

import os

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import optuna
import tensorflow as tf

from bench import children, task


def search(job: dict) -> dict:
    chosen = task.TASKS[job["task"]]
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    train, held = task.split(*task.export(job["urls"], chosen))

    made = []

    def objective(trial: optuna.Trial) -> float:
        keras.utils.clear_session()
        configuration = {name: trial.suggest_categorical(name, values) for name, values in chosen.space.items()}
        made.append(task.fit(chosen, configuration, job["style"], train, held))
        return made[-1]["val_loss"]

    sampler = optuna.samplers.GridSampler(chosen.space, seed=task.SEED)
    optuna.load_study(study_name=job["study"], storage=job["storage"], sampler=sampler).optimize(objective)
    return {"best": task.best_of(made), "trials": len(made)}


if __name__ == "__main__":
    children.work(search)
