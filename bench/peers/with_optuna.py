"""Optuna: `GridSampler` over a study in PostgreSQL, which several processes work on.

Job: {"task", "urls", "threads", "style", "storage": SQLAlchemy URL, "study": name}.
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
    x, y, size = task.export(job["urls"], chosen)
    train, held = task.split(x, y)

    def objective(trial: optuna.Trial) -> float:
        keras.utils.clear_session()
        configuration = {name: trial.suggest_categorical(name, values) for name, values in chosen.space.items()}
        found = task.fit(chosen, configuration, job["style"], train, held)
        trial.set_user_attr("val_accuracy", found["val_accuracy"])
        return found["val_loss"]

    study = optuna.create_study(
        study_name=job["study"], storage=job["storage"], load_if_exists=True, direction="minimize",
        sampler=optuna.samplers.GridSampler(chosen.space, seed=task.SEED),
    )  # fmt: skip
    before = len(study.trials)
    study.optimize(objective)
    best = study.best_trial
    return {
        "best": {"params": best.params, "val_loss": best.value, **best.user_attrs},
        "trials": len(study.trials) - before if before else len(study.trials), "copy_bytes": size,
    }  # fmt: skip


if __name__ == "__main__":
    children.work(search)
