"""What of a worker needs no database: its node's memory, its threads, its numbers."""

from __future__ import annotations

import json
import subprocess
import sys

from cerebro_udf import wire
from cerebro_udf.segment import worker


def test_hello_reports_versions_cores_and_memory_without_tensorflow():
    code = (
        "import sys, json; from cerebro_udf.segment import worker; print(json.dumps(worker.hello(None, {})));"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    facts = in_a_process(code)
    assert facts["cores"] >= 1 and 0 < facts["memory_available"] <= facts["memory_total"]
    assert facts["threads"] is None and facts["tensorflow"] and facts["keras"] and facts["psycopg"] and facts["cerebro"]


def test_a_control_group_limits_the_memory(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 800 kB",
        "/sys/fs/cgroup/memory.max": "500000",
        "/sys/fs/cgroup/memory.current": "300000",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 100000",
    }
    monkeypatch.setattr(worker, "_read", files.get)
    assert worker._memory() == (500000, 300000)
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert worker._memory() == (1024000, 819200)


def in_a_process(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_start_is_idempotent_but_its_threads_are_fixed():
    told = in_a_process("""
import json
from cerebro_udf import errors
from cerebro_udf import wire
from cerebro_udf.segment import worker
gd = {}
worker.start(None, gd, {"threads": 2})
again = worker.start(None, gd, {"threads": 2})
import tensorflow as tf
from cerebro_udf.segment import network
try:
    worker.start(None, gd, {"threads": 3})
except errors.NotReady as error:
    refused = str(error)
tf.constant(1)
try:
    worker.start(None, {}, {"threads": 3})
except errors.NotReady as error:
    running = str(error)
print(json.dumps([again["threads"], worker.hello(None, gd)["threads"], refused, running,
                  tf.config.threading.get_intra_op_parallelism_threads()]))
""")
    assert told[:2] == [2, 2] and told[4] == 2
    assert "2 threads, not 3" in told[2] and "already runs" in told[3]


def test_numbers_that_are_not_finite_become_null():
    assert wire.finite({"a": [1.0, float("nan")], "b": float("inf"), "c": 2}) == {
        "a": [1.0, None],
        "b": None,
        "c": 2,
    }
