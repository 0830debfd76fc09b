"""Rows prepared as a segment does it, against `tf.data` on the same bytes, in one process of one thread each.

Decoding: PNG of 32 × 32 and JPEG of 224 × 224 pixels, and uint8 tensors of shape (28, 28, 1), as `segment/binary.py` reads the
values of a fetch. The comparator maps `tf.io.decode_png` or `decode_jpeg` over a dataset of the same bytes and puts batches of as many
together; `decode_raw` it maps over such batches. It has each as a numpy array.

Numbers: 50,000 × 100 float32 standardized by `tensors.Encoding`, against a dataset of batches of 8,192 rows mapped through
`(x - mean) / scale`, both in double precision. As on a segment the result is one array.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Callable

import numpy as np

from bench.rounds import Measure, ratio
from bench.servers import Servers

GOAL = 0.9
BATCH = 256
COUNTS = {"PNG of 32 × 32": 4_000, "JPEG of 224 × 224": 400, "uint8 tensors of 28 × 28": 40_000, "numbers standardized": 50_000}
ELEMENTS = 100


def measure(servers: Servers, rounds: int) -> list[Measure]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
    found = []
    for kind in COUNTS:
        done = subprocess.run(
            [sys.executable, "-m", "bench.preparing", kind, str(rounds)], text=True, capture_output=True, env=environment
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        found.append(ratio("%s, against tf.data" % kind, json.loads(done.stdout), "tf.data", "prepared", GOAL, True))
    return found


def images(tf, kind: str) -> tuple[list[bytes], dict]:
    """Files of smooth pictures with some noise, and the encoder's settings."""
    size, count = 32 if kind.startswith("PNG") else 224, COUNTS[kind]
    random = np.random.default_rng(0)
    smooth = tf.image.resize(random.uniform(0, 255, (count, 8, 8, 3)), (size, size), "bicubic").numpy()
    pixels = np.clip(smooth + random.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)
    encode = tf.io.encode_png if kind.startswith("PNG") else tf.io.encode_jpeg
    return [encode(picture).numpy() for picture in pixels], {"height": size, "width": size, "channels": 3}


def decoding(tf, kind: str) -> dict[str, Callable[[], np.ndarray]]:
    from cerebro_udf.segment import binary

    if kind.startswith("uint8"):
        pixels = np.random.default_rng(0).integers(0, 256, (COUNTS[kind], 28, 28, 1), np.uint8)
        blobs, form, settings = [picture.tobytes() for picture in pixels], "tensor", {"dtype": "uint8", "shape": [28, 28, 1]}

        def decode(batch):
            return tf.reshape(tf.io.decode_raw(batch, tf.uint8), [-1, 28, 28, 1])

        first, then = BATCH, None
    else:
        (blobs, settings), form = images(tf, kind), "image"
        of_file = tf.io.decode_png if kind.startswith("PNG") else tf.io.decode_jpeg

        def decode(blob):
            return tf.ensure_shape(of_file(blob, channels=3), [settings["height"], settings["width"], 3])

        first, then = None, BATCH

    def mapped() -> np.ndarray:
        rows = tf.data.Dataset.from_tensor_slices(blobs)
        rows = (rows.batch(first) if first else rows).map(decode, num_parallel_calls=1)
        rows = rows.batch(then) if then else rows
        return np.concatenate(list(rows.as_numpy_iterator()))

    def ours() -> np.ndarray:
        fetches = (blobs[start : start + BATCH] for start in range(0, len(blobs), BATCH))
        return np.concatenate([binary.read_all(fetch, form, settings, '"x"')[0] for fetch in fetches])

    return {"tf.data": mapped, "prepared": ours}


def standardizing(tf, kind: str) -> dict[str, Callable[[], np.ndarray]]:
    from cerebro_udf import encoders, tensors

    x = np.random.default_rng(0).normal(3, 2, (COUNTS[kind], ELEMENTS)).astype(np.float32)
    mean, scale = x.mean(axis=0, dtype=float), x.std(axis=0, dtype=float)
    feature = {
        "name": "x", "kind": "array", "type": "real[]", "encoder": "standardize", "shape": [ELEMENTS], "mean": mean.tolist(),
        "scale": scale.tolist(),
    }  # fmt: skip
    given = [{"name": None, "features": ["x"], "stack": None}]
    encoding = tensors.Encoding({"features": [feature], "labels": [], "inputs": given, "model": encoders._model([feature], given, [])})

    def mapped() -> np.ndarray:
        rows = tf.data.Dataset.from_tensor_slices(x).batch(tensors.CHUNK_ROWS)
        rows = rows.map(lambda part: tf.cast((tf.cast(part, tf.float64) - mean) / scale, tf.float32), num_parallel_calls=1)
        return np.concatenate(list(rows.as_numpy_iterator()))

    return {"tf.data": mapped, "prepared": lambda: encoding.encode({"x": x})["numbers"]}


def compared(tf, kind: str) -> dict[str, Callable[[], np.ndarray]]:
    """What gives the rows of a kind, by side."""
    return (standardizing if kind.startswith("numbers") else decoding)(tf, kind)


def main(kind: str, rounds: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sides = compared(tf, kind)
    np.testing.assert_array_equal(sides["tf.data"](), sides["prepared"]())
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - started)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
