"""Ray Tune: two workers of one CPU each; rows are put into its object store once.

Job: {"task", "urls", "style", "reuse": whether a worker goes on from trial to trial, "folder": for what it writes}.
"""

from __future__ import annotations

import os

os.environ.update(
    KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", RAY_AIR_NEW_OUTPUT="0",
    TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0",
)  # fmt: skip

import ray
from ray import tune

from bench import children, task

WORKERS = 2
STORE_BYTES = 256 << 20  # several times the rows; by default 30 % of the machine's memory


def train(configuration: dict, job: dict, train: tuple, held: tuple) -> None:
    import keras

    keras.utils.clear_session()
    found = task.fit(task.TASKS[job["task"]], configuration, job["style"], train, held)
    tune.report({name: found[name] for name in ("val_loss", "val_accuracy")})


def search(job: dict) -> dict:
    chosen = task.TASKS[job["task"]]
    ray.init(
        num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=STORE_BYTES, _temp_dir=job["folder"],
    )  # fmt: skip
    rows, held = task.split(*task.export(job["urls"], chosen))
    trainable = tune.with_resources(tune.with_parameters(train, job=job, train=rows, held=held), {"cpu": 1})
    tuner = tune.Tuner(
        trainable,
        param_space={name: tune.grid_search(values) for name, values in chosen.space.items()},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min", reuse_actors=job["reuse"]),
        run_config=tune.RunConfig(storage_path=os.path.join(job["folder"], "results"), verbose=0),
    )
    results = tuner.fit()
    if results.errors:
        raise RuntimeError("a trial failed: %s" % str(results.errors[0]).strip().splitlines()[-1])
    best = results.get_best_result()
    found = {"params": best.config, **{name: best.metrics[name] for name in ("val_loss", "val_accuracy")}}
    return {"best": found, "trials": len(results)}


if __name__ == "__main__":
    children.work(search)
