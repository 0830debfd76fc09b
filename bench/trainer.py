"""Trains in a process of its own: plain Keras, or Cerebro's program.

    python -m bench.trainer

reads lines "SIDE WORKLOAD" from stdin, trains one epoch and answers with the seconds that it took and those of CPU
time, over all threads. SIDE is one of:

fit, fit-xla: `Model.fit(x, y, batch_size, epochs=1)` on numpy arrays, its defaults otherwise (shuffled as in a visit);
compiled without and with XLA.
program: what a worker does in a visit: assign the whole state, begin the metrics anew, train every row in the visit's
permutation, read the state and the metrics. The arrays are tensors already, as a worker holds them.

All have one thread within an operation and one between operations.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Callable

os.environ.update(
    KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1"
)

import keras
import tensorflow as tf

from bench.workloads import SEED, WORKLOADS, Workload
from cerebro_udf import compilation, definition
from cerebro_udf.segment import program, seeds


def plain(workload: Workload, jit_compile: bool) -> Callable[[], float]:
    x, y = workload.arrays()
    layers = [getattr(keras.layers, name)(**config) for layer in workload.layers for name, config in layer.items()]
    model = keras.Sequential([keras.Input(workload.shape), *layers])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
        jit_compile=jit_compile,
    )  # fmt: skip

    def fit() -> float:
        started = time.perf_counter()
        model.fit(x, y, batch_size=workload.batch_size, epochs=1, verbose=0)
        return time.perf_counter() - started

    fit()  # the trace
    return fit


def visiting(workload: Workload) -> Callable[[], float]:
    x, y = workload.arrays()
    built = program.Program(
        {
            "definition": definition.bind({"layers": list(workload.layers)}, {}),
            "optimizer": compilation.check_optimizer("adam"), "loss": None, "metrics": None,
            "encoders": {
                "inputs": [{"name": None, "numbers": list(workload.shape), "codes": []}],
                "outputs": [{"name": None, "task": "classification", "classes": workload.classes}],
            },
        }
    )  # fmt: skip
    arrays = {"numbers": tf.convert_to_tensor(x), "label": tf.convert_to_tensor(y)}
    order = seeds.permutation(SEED, 1, 0, workload.rows)
    state = built.initial_state(SEED)

    def visit() -> float:
        nonlocal state
        started = time.perf_counter()
        built.set_state(state)
        built.reset_metrics()
        built.train(arrays, order, workload.batch_size)
        state = built.get_state()
        built.results()
        return time.perf_counter() - started

    visit()  # the trace
    return visit


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sides = {"fit": lambda w: plain(w, False), "fit-xla": lambda w: plain(w, True), "program": visiting}
    ready: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        if line not in ready:
            side, _, name = line.strip().partition(" ")
            ready[line] = sides[side](WORKLOADS[name])
        before = time.process_time()
        seconds = ready[line]()
        print(seconds, time.process_time() - before, flush=True)


if __name__ == "__main__":
    main()
