"""What the coordinator asks of a segment: in this process, with a stand-in for plpy that answers nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest

from cerebro_udf import definition, encoders, errors
from cerebro_udf.segment import program, seeds, shard, state, worker


class Rows(list):
    def __getitem__(self, key):
        return list.__getitem__(self, key)


class Plpy:
    """Answers the statements of Pulse and faults; a cursor hands out the rows it was made with."""

    def __init__(self, rows=()):
        self.rows, self.notices, self.checks, self.points = list(rows), [], 0, []

    def prepare(self, statement, types=()):
        return statement

    def execute(self, statement, values=()):
        if "fault_armed" in statement:
            self.points.append(tuple(values))
            return [{"action": None}]
        if "inet_client_addr" in statement:
            return [{"port": "0", "client": None, "client_port": None, "server_port": None}]
        self.checks += 1
        return []

    def notice(self, text):
        self.notices.append(text)

    def quote_ident(self, name):
        return '"%s"' % name

    def cursor(self, query):
        rows = iter(self.rows)

        class Cursor:
            def fetch(self, count):
                return Rows(row for row, _ in zip(rows, range(count)))

            def close(self):
                pass

        return Cursor()


def send(values):
    """What array_send gives for a float8[] of one dimension."""
    import struct

    head = struct.pack(">iiiii", 1, 0, 701, len(values), 1)
    return head + b"".join(struct.pack(">id", 8, value) for value in values)


RUN = "r"
FEATURES = [{"name": n, "column": n, "type": "real", "kind": "number", "encoder": None} for n in "abc"]
LABEL = {"name": "y", "column": "y", "type": "integer", "task": None}


def raw_rows(n, seed):
    rng = np.random.default_rng(seed)
    return [{"scalars": send(rng.normal(size=3)), "label": int(rng.integers(0, 3)) * 10} for _ in range(n)]


def loaded(rows, gd, validation=0.25):
    plpy = Plpy(rows)
    worker._session(gd).threads = 2  # TensorFlow runs in this process already, with threads of its own choice
    spec = {"run": RUN, "reads": [{"relation": "t", "where": None, "columns": {n: n for n in "abcy"}}],
            "features": FEATURES, "label": LABEL, "nulls": "error", "seed": 7, "validation": validation,
            "memory_bytes": None}  # fmt: skip
    return plpy, worker.load(plpy, gd, spec)


def order(program_spec, **changes):
    return {"run": RUN, "trial": 1, "epoch": 1, "phase": "train", "shard": 0, "seed": 7, "program": program_spec,
            "batch_size": 16, "learning_rate": 0.01, "first": True, "last": True, **changes}  # fmt: skip


def model(
    stored, layers=({"Dense": {"units": 8}}, {"Dropout": {"rate": 0.5}}, {"Dense": {"units": "$classes"}})
):
    bound = definition.bind(
        {"layers": list(layers)}, {"classes": encoders.n_classes(stored), "input_shape": [3]}
    )
    return {"definition": bound, "optimizer": definition.check_optimizer("adam"), "loss": None, "metrics": None,
            "encoders": json.loads(json.dumps(encoders.model_part(stored)))}  # fmt: skip


@pytest.fixture
def two():
    """Two segments of one run, loaded and encoded: [(plpy, gd), (plpy, gd)], and the encoders."""
    segments, stats = [], []
    for number in range(2):
        gd = {}
        plpy, found = loaded(raw_rows(100 + 50 * number, number), gd)
        segments.append((plpy, gd))
        stats.append(json.loads(json.dumps(found)))
    stored = json.loads(json.dumps(encoders.merge(FEATURES, LABEL, stats, "error", 0.25)))
    for plpy, gd in segments:
        worker.encode(plpy, gd, {"run": RUN, "encoders": stored})
    return segments, stored


def test_hello_reports_versions_cores_and_memory_without_tensorflow():
    code = (
        "import sys, json; from cerebro_udf.segment import worker; print(json.dumps(worker.hello(None, {})));"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    facts = in_a_process(code)
    assert facts["cores"] >= 1 and 0 < facts["memory_available"] <= facts["memory_total"]
    assert facts["threads"] is None and facts["tensorflow"] and facts["keras"] and facts["cerebro"]


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


def test_an_epoch_over_two_segments_is_sequential_sgd_and_validates(two):
    segments, stored = two
    spec = model(stored)
    report, blob = worker.init(*segments[0], {"program": spec, "seed": seeds.trial_seed(7, 1)})
    assert report == {"status": "ok", "error": None}
    first = blob
    for number, (plpy, gd) in enumerate(segments):
        report, blob = worker.visit(
            plpy, gd, order(spec, shard=number, first=number == 0, last=number == 1), blob
        )
        assert report["status"] == "ok" and (report["metrics"] is None) == (number == 0)
        assert plpy.checks and [point[:2] for point in plpy.points] == [(RUN, "mid-visit")]
        json.dumps(report, allow_nan=False)
    assert list(report["metrics"]) == ["loss", "accuracy"] and report["learning_rate"] == pytest.approx(0.01)

    plain = program.Program(spec)  # one process, one shard after the other
    plain.set_state(first)
    plain.reset_metrics()
    plain.set_learning_rate(0.01)
    for number, (_, gd) in enumerate(segments):
        arrays = gd["cerebro"].arrays["train"]
        plain.train(arrays, seeds.permutation(7, 1, number, len(arrays["label"])), 16)
    assert plain.get_state() == blob and plain.results() == report["metrics"]

    accumulators = []
    for number, (plpy, gd) in enumerate(segments):
        report, found = worker.visit(plpy, gd, order(spec, shard=number, phase="validate"), blob)
        assert report["rows"] == len(gd["cerebro"].arrays["validation"]["label"]) > 0
        assert plpy.points[-1][:2] == (RUN, "validation") and report["metrics"] is None
        accumulators.append(found)
    metrics = worker.summarize(*segments[1], {"program": spec}, accumulators)
    x, y = (np.concatenate([gd["cerebro"].arrays["validation"][name] for _, gd in segments])
            for name in ("numbers", "label"))  # fmt: skip
    expected = plain.model.evaluate(x, y, verbose=0, return_dict=True)
    assert metrics == pytest.approx(expected, rel=1e-6)


def test_a_state_may_come_and_go_in_parts(two, monkeypatch):
    (segment, _), stored = two
    spec = model(stored)
    _, whole = worker.init(*segment, {"program": spec, "seed": 1})
    monkeypatch.setattr(worker, "MESSAGE_BYTES", len(whole) // 4 + 1)
    report, blob = worker.init(*segment, {"program": spec, "seed": 1})
    assert blob is None and report["parts"] == 4
    parts = [worker.get(*segment, part) for part in range(4)]
    assert b"".join(parts) == whole
    with pytest.raises(errors.NotReady, match="no part"):
        worker.get(*segment, 0)
    with pytest.raises(errors.NotReady, match="in place of"):
        worker.put(*segment, 2, b"")
    for part, data in enumerate(parts):
        worker.put(*segment, part, data)
    report, _ = worker.visit(*segment, order(spec), None)
    assert report["status"] == "ok" and report["parts"] == 4


def test_a_model_that_does_not_fit_fails_the_trial_not_the_run(two):
    (segment, _), stored = two
    broken = model(stored, [{"Dense": {"units": 2}}])
    report, blob = worker.init(*segment, {"program": broken, "seed": 1})
    assert report["status"] == "failed" and "3 classes" in report["error"] and blob is None
    report, blob = worker.visit(*segment, order(broken), b"")
    assert report["status"] == "failed" and blob is None


def test_a_damaged_or_foreign_state_stops_the_visit(two):
    (segment, _), stored = two
    with pytest.raises(errors.StateMismatch):
        worker.visit(*segment, order(model(stored)), b"nonsense")
    _, other = worker.init(*segment, {"program": model(stored, [{"Dense": {"units": 3}}]), "seed": 1})
    with pytest.raises(errors.StateMismatch):
        worker.visit(*segment, order(model(stored)), other)


def test_a_cancel_between_slices_ends_the_visit_and_the_next_one_is_right(two, monkeypatch):
    (segment, _), stored = two
    spec = model(stored)
    _, blob = worker.init(*segment, {"program": spec, "seed": 1})
    good = worker.visit(*segment, order(spec), blob)[1]
    plpy, gd = segment

    class Cancelled(Exception):
        pass

    def cancel():
        raise Cancelled

    monkeypatch.setattr(program, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(worker.Pulse, "check", lambda self: cancel())
    with pytest.raises(Cancelled):
        worker.visit(plpy, gd, order(spec), blob)
    monkeypatch.undo()
    assert worker.visit(plpy, gd, order(spec), blob)[1] == good


def test_progress_is_told_at_most_twice_a_second(two, monkeypatch):
    (segment, _), stored = two
    plpy, gd = segment
    monkeypatch.setattr(program, "SLICE_SECONDS", 0.0)
    times = iter(np.arange(0, 100, 0.3))
    monkeypatch.setattr(worker.time, "monotonic", lambda: next(times))
    spec = model(stored)
    _, blob = worker.init(plpy, gd, {"program": spec, "seed": 1})
    report, _ = worker.visit(plpy, gd, order(spec), blob)
    told = [json.loads(text[len(worker.PROGRESS_PREFIX) :]) for text in plpy.notices]
    assert len(told) == report["batches"] // 2 and told[0] == {"rows": 32, "of": report["rows"]}


def test_another_run_drops_what_was_loaded(two):
    (segment, _), stored = two
    plpy, gd = segment
    with pytest.raises(errors.NotReady, match='run "other" is not loaded'):
        worker.visit(plpy, gd, order(model(stored), run="other"), b"")
    with pytest.raises(errors.NotReady, match="not loaded"):
        worker.encode(plpy, gd, {"run": RUN, "encoders": stored})
    loaded(raw_rows(5, 1), gd, validation=0)
    assert gd["cerebro"].arrays is None


def test_a_shard_without_rows_takes_part(two):
    _, stored = two
    gd = {}
    plpy, stats = loaded([], gd)
    assert stats["rows"] == 0
    worker.encode(plpy, gd, {"run": RUN, "encoders": stored})
    spec = model(stored)
    _, blob = worker.init(plpy, gd, {"program": spec, "seed": 1})
    report, after = worker.visit(plpy, gd, order(spec, learning_rate=None), blob)
    assert report["rows"] == report["batches"] == 0 and after == blob and report["metrics"]["loss"] == 0.0
    report, found = worker.visit(plpy, gd, order(spec, phase="validate"), blob)
    assert report["rows"] == 0 and state.unpack(found)[0]["metric/0"] == 0.0


def test_numbers_that_are_not_finite_become_null():
    assert worker.finite({"a": [1.0, float("nan")], "b": float("inf"), "c": 2}) == {
        "a": [1.0, None],
        "b": None,
        "c": 2,
    }


def test_encoding_lets_go_of_the_raw_columns():
    plpy = Plpy(raw_rows(50, 3))
    read = shard.read(plpy, {"reads": [{"relation": "t", "columns": {n: n for n in "abcy"}}], "features": FEATURES,
                             "label": LABEL, "nulls": "error", "seed": 1, "validation": 0.5})  # fmt: skip
    stored = encoders.merge(FEATURES, LABEL, [read.stats()], "error", 0.5)
    parts = read.encode(encoders.Encoding(stored))
    assert len(parts["train"]["label"]) + len(parts["validation"]["label"]) == 50
    assert len(read.columns("train")[0]["a"]) == 0
