"""What of a worker needs no database: its node's memory, its threads, its numbers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cerebro_udf import errors, wire
from cerebro_udf.segment import memory, worker


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
    monkeypatch.setattr(memory, "read", files.get)
    assert memory.total_and_available() == (500000, 300000)
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert memory.total_and_available() == (1024000, 819200)


def in_a_process(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_start_is_idempotent_but_its_threads_are_fixed():
    told = in_a_process("""
import json, os
from cerebro_udf import errors
from cerebro_udf.segment import worker
os.sched_getaffinity = lambda pid: range(4)
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


@pytest.mark.parametrize("threads", [-1, 0, 1.5, "1", True, None, 10**9])
def test_threads_that_would_end_the_process_are_refused(threads):
    with pytest.raises(errors.InvalidArgument, match='"threads" is not a whole number from 1 to'):
        worker.start(None, {}, {"threads": threads})


def test_parts_of_a_state_are_taken_while_there_is_memory_for_them(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 250)
    gd = {}
    for part in range(2):
        worker.put(None, gd, part, bytes(100))
    with pytest.raises(errors.OutOfMemory):
        worker.put(None, gd, 2, bytes(100))
    worker.put(None, gd, 0, bytes(100))  # what came before has gone


def test_numbers_that_are_not_finite_become_null():
    assert wire.finite({"a": [1.0, float("nan")], "b": float("inf"), "c": 2}) == {
        "a": [1.0, None],
        "b": None,
        "c": 2,
    }
