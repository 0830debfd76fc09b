"""One side of the visits in a process of its own: plain Keras, or Cerebro's program.

    python -m bench.trainer keras|program

reads workload names from stdin, one a line, trains one epoch of each and answers with the seconds it took and a note.

keras: `Model.fit(x, y, batch_size, epochs=1)` on numpy arrays, its defaults otherwise (shuffled as in a visit). Compiled
with and without XLA, the faster of the two being the one that counts; the note says which.
program: what a worker does in a visit: assign the whole state, begin the metrics anew, train every row in the visit's
permutation, read the state and the metrics. The arrays are tensors already, as a worker holds them.

Both have one thread within an operation and one between operations.
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
from cerebro_udf import definition
from cerebro_udf.segment import program

Side = tuple[Callable[[], float], str]  # trains one epoch and tells its seconds; and what is to be known about it


def plain(workload: Workload) -> Side:
    x, y = workload.arrays()

    def compiled(jit_compile: bool) -> Callable[[], float]:
        layers = [
            getattr(keras.layers, name)(**config) for layer in workload.layers for name, config in layer.items()
        ]
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

    choices = {jit: compiled(jit) for jit in (False, True)}
    best = min(choices, key=lambda jit: min(choices[jit]() for _ in range(2)))
    return choices[best], "with XLA" if best else "without XLA"


def visiting(workload: Workload) -> Side:
    x, y = workload.arrays()
    built = program.Program(
        {
            "definition": definition.bind({"layers": list(workload.layers)}, {}),
            "optimizer": definition.check_optimizer("adam"), "loss": None, "metrics": None,
            "encoders": {
                "numbers": list(workload.shape), "codes": [], "task": "classification", "classes": workload.classes
            },
        }
    )  # fmt: skip
    arrays = {"numbers": tf.convert_to_tensor(x), "label": tf.convert_to_tensor(y)}
    order = program.permutation(SEED, 1, 0, workload.rows)
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
    return visit, ""


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    side = {"keras": plain, "program": visiting}[sys.argv[1]]
    ready: dict[str, Side] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            ready[name] = side(WORKLOADS[name])
        work, note = ready[name]
        print(work(), note, flush=True)


if __name__ == "__main__":
    main()
