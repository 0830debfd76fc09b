"""A segment's worker asked directly, step by step, as a coordinator asks it."""

from __future__ import annotations

import copy as copying
import json
import threading

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb

from cerebro_udf import compilation, definition, dropout, encoders
from cerebro_udf.marks import Mark
from cerebro_udf.segment import state
from cerebro_udf.wire import MESSAGE_BYTES, PROGRESS_PREFIX
from tests.cluster import ROLE, poll_until
from tests.tables import copy

RUN = "asked directly"
FEATURES = [{"name": name, "type": "real", "kind": "number", "encoder": None} for name in ("a", "b")]
LABEL = {"name": "y", "type": "integer", "task": "classification"}
LAYERS = ({"Dense": {"units": 8}}, {"Dropout": {"rate": 0.5}}, {"Dense": {"units": "$classes"}})


class Worker:
    """A session of the ordinary role on a segment, with a table of 150 rows."""

    def __init__(self, cluster, schema):
        self.cluster, self.relation = cluster, '"%s"."rows"' % schema
        self.conn = cluster.connect(node=1)
        self.notices = []
        self.conn.add_notice_handler(lambda notice: self.notices.append(notice.message_primary))
        self.conn.execute("create table %s (a real, b real, y integer)" % self.relation)
        self.conn.execute("create table %s (a real, b real, y integer)" % self.relation.replace("rows", "none"))
        random = np.random.default_rng(1)
        rows = [(float(a), float(b), int(y)) for a, b, y in zip(*random.normal(size=(2, 150)), random.integers(0, 3, 150))]
        copy(self.conn, schema, "rows", ["a", "b", "y"], rows)
        self.call("start", Jsonb({"threads": 1}))
        self.encoders = encoders.merge(FEATURES, [LABEL], [self.load()], "error", 0.25)
        self.call("encode", Jsonb({"run": RUN, "encoders": self.encoders}))

    def call(self, step, *values):
        marks = ", ".join(["%b"] * len(values))
        row = self.conn.execute("select * from cerebro_internal.worker_%s(%s)" % (step, marks), values, binary=True)
        found = row.fetchone()
        return found if len(found) > 1 else found[0]

    def load(self, relation=None, **changes):
        reads = [{"relation": relation or self.relation, "where": None, "columns": {n: n for n in "aby"}}]
        spec = {"run": RUN, "reads": reads, "features": FEATURES, "labels": [LABEL], "nulls": "error", "seed": 7,
                "validation": 0.25, "memory_bytes": 2**30}  # fmt: skip
        return self.call("load", Jsonb({**spec, **changes}))

    def program(self, layers=LAYERS):
        bound = definition.bind({"layers": list(layers)}, {"classes": 3, "input_shape": [2]})
        return {"definition": bound, "optimizer": compilation.check_optimizer("adam"), "loss": None, "metrics": None,
                "encoders": encoders.model_part(self.encoders)}  # fmt: skip

    def init(self, program, trial=0):
        return self.call("init", Jsonb({"run": RUN, "program": program, "seed": 7, "trial": trial}))

    def visit(self, program, blob, learning_rate=0.01, size=None, **changes):
        """A visit of one trial: (its report with that of the visit, state)."""
        member = member_of(program, learning_rate, len(blob) if size is None else size)
        report, result = self.group(program, [member], blob, **changes)
        return {**report, **report["members"][0]}, result

    def group(self, program, members, blob, **changes):
        return self.call("visit", self.spec(program, members, **changes), blob)

    def spec(self, program, members, **changes):
        spec = {"run": RUN, "epoch": 1, "phase": "train", "shard": 0, "seed": 7, "program": program, "batch_size": 16,
                "first": True, "last": True, "try_fused": False, "members": members}  # fmt: skip
        return Jsonb({**spec, **changes})


def member_of(program, learning_rate, size, trial=0):
    return {"trial": trial, "learning_rate": learning_rate, "dropout": dropout.split(program["definition"])[1], "bytes": size}


@pytest.fixture(scope="module")
def session(cluster):
    for node in cluster.nodes:
        node.execute("drop schema if exists worker cascade; create schema worker authorization %s" % ROLE)
    asked = Worker(cluster, "worker")
    yield asked
    asked.conn.close()
    for node in cluster.nodes:
        node.execute("drop schema worker cascade")


@pytest.fixture
def worker(session):
    """Loaded and encoded, whatever the test before it did."""
    session.load()
    session.call("encode", Jsonb({"run": RUN, "encoders": session.encoders}))
    session.notices.clear()
    return session


def refused(worker, step, *values) -> str:
    with pytest.raises(psycopg.Error) as caught:
        worker.call(step, *values)
    return caught.value.sqlstate


def test_a_worker_tells_what_it_is(worker):
    facts = worker.call("hello")
    assert facts["threads"] == 1 and facts["cores"] >= 1
    assert 0 < facts["memory_available"] <= facts["memory_total"]


def test_the_same_visit_twice_gives_the_same_state(worker):
    program = worker.program()
    report, first = worker.init(program)
    assert report == {"status": "ok", "error": None}
    report, blob = worker.visit(program, first)
    assert report["status"] == "ok" and list(report["metrics"]) == ["loss", "accuracy"]
    assert worker.visit(program, first)[1] == blob != first


def test_validation_leaves_the_state_alone_and_sums_up(worker):
    program = worker.program()
    blob = worker.init(program)[1]
    report, accumulators = worker.visit(program, blob, phase="validate")
    held = {name: float(array.sum()) for name, array in state.unpack(accumulators)[0].items()}
    assert report["rows"] > 0 and report["metrics"] is None and held["metric/1"] == report["rows"]
    once, twice = (
        worker.call("summarize", Jsonb({"run": RUN, "program": program}), [accumulators] * n)["metrics"] for n in (1, 2)
    )
    assert list(once) == ["loss", "accuracy"] and twice == pytest.approx(once, rel=1e-6)
    assert worker.visit(program, blob)[1] == worker.visit(program, blob)[1]


def test_members_of_one_visit_are_trained_as_each_alone(worker):
    program = worker.program()
    firsts = [worker.init(program, trial)[1] for trial in (0, 1, 2)]
    rates = [0.1, 0.01, None]
    alone = [worker.visit(program, blob, learning_rate=rate) for blob, rate in zip(firsts, rates)]
    members = [member_of(program, rate, len(firsts[n]), n) for n, rate in enumerate(rates)]
    report, blob = worker.group(program, members, b"".join(firsts))
    assert blob == b"".join(state for _, state in alone) and report["fused"] is False
    for member, (single, result) in zip(report["members"], alone):
        assert member == {key: single[key] for key in member} and member["bytes"] == len(result)


def test_members_trained_as_one_agree_and_report_like_each_alone(worker):
    layers = [{"Dense": {"units": 8}}, {"Dropout": {"rate": 0.5}}, {"Dense": {"units": "$classes"}}]
    program, rates = worker.program(layers), [0.1, 0.01, None, 0.03] * 2
    states = [worker.init(program, trial)[1] for trial in range(8)]
    for phase in ("train", "validate"):
        alone = [worker.visit(program, blob, rate, phase=phase, batch_size=2) for blob, rate in zip(states, rates)]
        members = [member_of(program, rate, len(states[n]), n) for n, rate in enumerate(rates)]
        report, blob = worker.group(program, members, b"".join(states), phase=phase, batch_size=2, try_fused=True)
        assert report["fused"] and (report["rows"], report["batches"]) == (alone[0][0]["rows"], alone[0][0]["batches"])
        for member, (single, result) in zip(report["members"], alone):
            ours, blob = blob[: member["bytes"]], blob[member["bytes"] :]
            theirs = state.unpack(result)[0]
            assert list(state.unpack(ours)[0]) == list(theirs)
            for name, array in state.unpack(ours)[0].items():
                np.testing.assert_allclose(array, theirs[name], rtol=1e-3, atol=1e-4)
            assert member["learning_rate"] == single["learning_rate"] and member["status"] == "ok"
            assert member["metrics"] == (single["metrics"] and pytest.approx(single["metrics"], rel=1e-4))
        assert blob == b""


def test_members_that_do_not_make_up_the_state_are_refused(worker):
    program = worker.program()
    blob = worker.init(program)[1]
    for size in (len(blob) - 1, len(blob) + 1, -1, None, "8"):
        assert refused(worker, "visit", worker.spec(program, [member_of(program, None, size)]), blob) == "22023"
    assert refused(worker, "visit", worker.spec(program, []), b"") == "22023"


def test_a_state_over_64_mb_comes_and_goes_in_parts(worker):
    program = worker.program([{"Dense": {"units": 2600}}, {"Dense": {"units": 2600}}, {"Dense": {"units": "$classes"}}])
    report, blob = worker.init(program)
    assert blob is None and report["parts"] == 2
    parts = [worker.call("get", part) for part in range(2)]
    assert len(parts[0]) == MESSAGE_BYTES
    assert refused(worker, "get", 0) == refused(worker, "put", 2, b"") == "55000"
    for part, data in enumerate(parts):
        worker.call("put", part, data)
    report, blob = worker.visit(program, None, size=sum(map(len, parts)))
    assert report["status"] == "ok" and report["parts"] == 2 and blob is None
    state.unpack(b"".join(worker.call("get", part) for part in range(2)))


def test_a_model_that_does_not_fit_fails_the_trial_and_says_why(worker):
    program = worker.program([{"Dense": {"units": 2}}])
    report, blob = worker.init(program)
    assert report["status"] == "failed" and "3 classes" in report["error"] and blob is None
    assert worker.visit(program, b"")[0]["status"] == "failed"


def test_a_damaged_or_foreign_state_is_refused(worker):
    program = worker.program()
    other = worker.init(worker.program([{"Dense": {"units": 3}}]))[1]
    good = worker.init(program)[1]
    for blob in (b"nonsense", other, good[:-1] + bytes([good[-1] ^ 1])):
        with pytest.raises(psycopg.Error) as caught:
            worker.visit(program, blob)
        assert caught.value.sqlstate == "ML003"


def test_after_a_cancel_between_slices_the_next_visit_is_right(worker):
    program = worker.program([{"Dense": {"units": 512}}, {"Dense": {"units": 512}}, {"Dense": {"units": "$classes"}}])
    first = worker.init(program)[1]
    expected = worker.visit(program, first)[1]
    pid = worker.conn.info.backend_pid
    query = "select state from pg_stat_activity where pid = %s"
    worker.load(relation="(select t.* from %s t, generate_series(1, 4000)) r" % worker.relation)
    worker.call("encode", Jsonb({"run": RUN, "encoders": worker.encoders}))

    def cancel():
        poll_until(lambda: worker.cluster.node(1).execute(query, [pid])[0][0] == "active")
        poll_until(lambda: any(n.startswith(PROGRESS_PREFIX) for n in worker.notices), 30)
        worker.conn.cancel_safe()

    other = threading.Thread(target=cancel)
    other.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        worker.visit(program, first)
    other.join()
    told = [json.loads(n.split(" ", 1)[1]) for n in worker.notices]
    assert 0 < told[0]["rows"] < told[0]["of"]
    worker.load()
    worker.call("encode", Jsonb({"run": RUN, "encoders": worker.encoders}))
    assert worker.visit(program, first)[1] == expected


def test_loading_another_run_drops_the_one_before(worker):
    assert refused(worker, "encode", Jsonb({"run": "other", "encoders": worker.encoders})) == "55000"
    worker.load(run="other")
    with pytest.raises(psycopg.Error) as caught:
        worker.visit(worker.program(), b"")
    assert caught.value.sqlstate == "55000"


def test_a_released_worker_holds_no_rows_but_its_programs(worker):
    program = worker.program()
    blob = worker.init(program)[1]
    programs = worker.visit(program, blob)[0]["programs"]
    worker.call("put", 0, b"part")
    worker.call("release")
    for step, values in (
        ("visit", [worker.spec(program, [member_of(program, None, 0)]), b""]),
        ("encode", [Jsonb({"run": RUN, "encoders": worker.encoders})]),
        ("put", [1, b"next"]),
    ):
        assert refused(worker, step, *values) == "55000"
    worker.call("release")
    worker.load()
    worker.call("encode", Jsonb({"run": RUN, "encoders": worker.encoders}))
    report = worker.visit(program, blob)[0]
    assert report["status"] == "ok" and report["trace_seconds"] < 0.1 and report["programs"] == programs


def test_a_shard_without_rows_takes_part(worker):
    assert worker.load(relation=worker.relation.replace("rows", "none"))["rows"] == 0
    worker.call("encode", Jsonb({"run": RUN, "encoders": worker.encoders}))
    program = worker.program()
    blob = worker.init(program)[1]
    report, after = worker.visit(program, blob, learning_rate=None)
    assert report["rows"] == report["batches"] == 0 and after == blob
    report, accumulators = worker.visit(program, blob, phase="validate")
    assert report["rows"] == 0 and state.unpack(accumulators)[0]["metric/0"] == 0.0


@pytest.mark.parametrize("first", ["tensorflow", "jit"])
def test_tensorflow_and_the_servers_jit_live_in_one_session(cluster, first):
    """Both carry an LLVM; whichever came second used to crash the server."""
    start = "select cerebro_internal.worker_start('{\"threads\": 1}')"
    compiled = "select sum(g * random()) from generate_series(1, 1000) g"
    with cluster.connect(node=1) as conn:
        for name in ("jit_above_cost", "jit_optimize_above_cost", "jit_inline_above_cost"):
            conn.execute("set %s = 0" % name)
        for statement in (start, compiled) if first == "tensorflow" else (compiled, start, compiled):
            assert conn.execute(statement).fetchone()[0]
        plan = "\n".join(row[0] for row in conn.execute("explain analyze " + compiled))
        assert "JIT" in plan


TEXT, WHOLE = [None, 1, [], {}], [None, -1, 1.5, True, "1", [1], 1e30]
LIST, OBJECT, FLAG = [None, 1, "x", {"a": 1}], [None, 1, "x", []], [None, 1, "true", []]
NUMBER = ["1", True, [1], {}]
PLACE = {"tensor": "numbers", "axis": 0, "start": 0, "stop": 1}
PART = [
    ("inputs", [*LIST, []]), ("inputs 0 name", [1, []]), ("inputs 0 numbers", [1, [0], ["2"]]),
    ("inputs 0 codes", [*LIST, [1], [{"name": "t"}]]), ("outputs", [*LIST, []]), ("outputs 0 task", [1, "guess"]),
    ("outputs 0 classes", [0, "3", [1]]), ("outputs 0 name", [1, []]),
]  # fmt: skip
PROGRAM = [
    ("program", OBJECT), ("program definition", [*OBJECT, {}, {"layers": 1}]), ("program optimizer", [None, 1, {}, {"config": 1}]),
    ("program loss", [1, [], {}]), ("program metrics", [1, "x", [1], [[]]]), ("program weighted_metrics", [1, "x", {}]),
    ("program precision", [1, [], "single"]), ("program encoders", OBJECT), *[("program encoders " + key, bad) for key, bad in PART],
]  # fmt: skip
FEATURE = [("name", TEXT), ("type", [*TEXT, "json"]), ("kind", [*TEXT, "other"]), ("encoder", [1, "guess", {}, []]), ("nulls", OBJECT)]
COLUMNS = [("features", [*LIST, [], [1]]), *[("features 0 " + key, bad) for key, bad in FEATURE]]
READS = [
    ("reads", [*LIST, [1]]), ("reads 0 relation", TEXT), ("reads 0 where", [1, []]), ("reads 0 columns", [*OBJECT, {}, {"a": 1}]),
]  # fmt: skip
ENCODERS = [
    *[(key, bad) for key, bad in COLUMNS], ("features 0 encoder", [*TEXT, "guess"]), ("features 0 shape", [*LIST, [-1]]),
    ("features 0 mean", [*LIST, ["1"]]), ("labels", [*LIST, [], [1]]), ("labels 0 task", [1, "guess"]),
    ("labels 0 classes", [*LIST, [], [[]]]),
    ("labels 0 weights", [1, ["1"]]), ("labels 0 output", [1]), ("model", OBJECT), *[("model " + key, bad) for key, bad in PART],
    ("inputs", [*LIST, []]), ("inputs 0 name", [1, []]), ("inputs 0 features", [*LIST, [], [1], ["z"]]), ("inputs 0 stack", [1, "0", 0.5]),
]  # fmt: skip
ENCODERS = [("encoders", OBJECT), *[("encoders " + key, bad) for key, bad in ENCODERS]]
BATCH, RUNS = ("batch_size", [*WHOLE, 0, 2**31]), ("run", TEXT)
# Of each step: what is wrong in the place of what.
NONSENSE = {
    "claim": [("group", TEXT)],
    "start": [("threads", [*WHOLE, 0, 10**6])],
    "load": [
        RUNS, *COLUMNS, *READS, ("features 0", [{"name": "a", "type": "text", "kind": "array"}]), ("labels", [1, [{}], {}]),
        ("labels 0 task", [1, "guess"]), ("validation", [{"fraction": 0.5, "stratify": "gone"}]),
        ("weight", [1, {}]), ("seed", WHOLE), ("validation", [None, *NUMBER]),
        ("memory_bytes", ["1", -1]), ("group", [1]),
    ],
    "encode": [RUNS, *ENCODERS, ("encoders features 0 name", ["c"]), ("encoders features 0 mean", [[1.0, 2.0, 3.0]])],
    "init": [*PROGRAM, ("seed", WHOLE), ("trial", [*WHOLE, 2**31]), ("weights", [1, "x"])],
    "visit": [
        RUNS, ("epoch", WHOLE), ("phase", [*TEXT, "test"]), ("shard", WHOLE), ("seed", WHOLE), BATCH, ("first", FLAG), ("last", FLAG),
        ("try_fused", FLAG), ("members", [*LIST, [], [1]]), ("members 0 bytes", WHOLE), ("members 0 learning_rate", NUMBER),
        ("members 0 dropout", [*LIST, ["0.5"]]), ("faster", [1, "x"]), ("rows", ["1", -1, []]), *PROGRAM,
    ],
    "summarize": PROGRAM,
    "judge": [RUNS, ("step", [*TEXT, "other"]), ("output", [*WHOLE, 1]), BATCH, *PROGRAM],
    "accumulate": [
        ("shard", WHOLE), ("seed", ["1", -1]), ("repeats", [0, "1"]), ("feature", [1, [], {}]), ("feature number", WHOLE),
        ("feature places", [*LIST, [], [1]]), ("feature places 0 tensor", [*TEXT, "codes"]), ("feature places 0 axis", [*WHOLE, 1]),
        ("feature places 0 start", WHOLE), ("feature places 0 stop", [*WHOLE, 9]),
    ],
    "scores": [("most", [*WHOLE, 0])],
    "count": [("edges", [*LIST, [1], [["1"]]])],
    "ranks": [("halves", [*LIST, [], [None], [1, 1], [[2**16], None]]), ("scale", ["1", None])],
    "survey": [("step", [*TEXT, "other"]), ("schemas", [*LIST, [1]]), ("coordinator", TEXT)],
    "make": [
        ("schema", TEXT), ("carried", [*LIST, [1]]), ("added", [*LIST, [1], [["a"]]]), ("mark", [*TEXT, "none"]),
        ("parts", [*LIST, [1]]), ("parts 0 name", TEXT), ("parts 0 relation", TEXT), ("parts 0 columns", [*OBJECT, {}]),
        ("parts 0 like", [1]),
    ],
    "index": [("tables", [*LIST, [1]]), ("key", [*LIST, [], [1]])],
    "drop": [("coordinator", TEXT), ("names", LIST)],
    "look": [("step", [*TEXT, "other"]), ("relations", [*LIST, [1]])],
    "headers": [("reads", [*LIST, [], [1]]), ("reads 0 relation", TEXT), ("reads 0 where", [1])],
    "write": [
        RUNS, ("relation", TEXT), ("shard", WHOLE), ("segment", [1]), ("header", OBJECT), ("header format", WHOLE),
        ("header labels", [None]),
        ("header features", [*LIST, []]), ("header encoders", OBJECT), ("header options", OBJECT), ("header source", OBJECT),
    ],
    "model": [*ENCODERS, *PROGRAM],
    "fill": [
        RUNS, ("model", TEXT), ("carried", [*LIST, [1]]), *COLUMNS, ("probabilities", FLAG), ("nulls", [*TEXT, "drop"]),
        ("parts", [*LIST, [1]]), ("parts 0 relation", TEXT), ("parts 0 segment", [1]), *[("parts 0 " + key, bad) for key, bad in READS],
    ],
}  # fmt: skip


def sensible(worker, step: str) -> dict:
    """What the step takes."""
    program = worker.program()
    member = member_of(program, None, 0)
    reads = [{"relation": worker.relation, "where": None, "columns": {name: name for name in "aby"}}]
    judging = {"run": RUN, "program": program, "batch_size": 16, "step": step, "shard": 0}
    mark = Mark("predict_table", "s", "t", "none", 1, "r", ["a"]).text()
    return {
        "claim": {"group": "g"},
        "start": {"threads": 1},
        "load": {"run": RUN, "reads": reads, "features": FEATURES, "labels": [LABEL], "seed": 7, "validation": 0.25},
        "encode": {"run": RUN, "encoders": worker.encoders},
        "init": {"program": program, "seed": 7, "trial": 0},
        "visit": worker.spec(program, [member]).obj,
        "summarize": {"program": program},
        "judge": {**judging, "step": "predict", "output": 0},
        "accumulate": {**judging, "feature": {"number": 0, "places": [PLACE]}, "repeats": 1, "seed": 7},
        "scores": {**judging, "most": 8},
        "count": {**judging, "edges": [[0.0]]},
        "ranks": {**judging, "halves": [None, None], "scale": 1.0},
        "survey": {"step": step, "schemas": ["worker"], "coordinator": "none"},
        "make": {"step": step, "schema": "worker", "carried": ["a"], "added": [["p", "real"]], "external": [], "mark": mark,
                 "parts": [{"name": "made", "relation": worker.relation, "columns": {"a": "a"}, "like": None}]},
        "index": {"step": step, "tables": [], "key": ["a"]},
        "drop": {"step": step, "coordinator": "none", "names": []},
        "look": {"step": step, "relations": []},
        "headers": {"step": step, "reads": [{"relation": worker.relation, "where": None}]},
        "write": {"step": step, "run": RUN, "relation": worker.relation, "shard": 0, "segment": None, "header": {
            "format": 1, "pack": "p", "source": {"name": "s", "tables": {}, "looked": {}}, "features": FEATURES, "labels": [LABEL],
            "options": {}, "types": {}, "encoders": worker.encoders, "shards": ["one"]}},
        "model": {"step": step, "encoders": worker.encoders, "program": program},
        "fill": {"step": step, "run": RUN, "model": "", "carried": ["a"], "features": FEATURES, "nulls": "null", "probabilities": False,
                 "parts": [{"relation": worker.relation, "reads": reads, "segment": None}]},
    }[step]  # fmt: skip


def in_place(spec: dict, path: str, value) -> dict:
    """The same with another value in that place."""
    *way, last = [int(key) if key.isdigit() else key for key in path.split()]
    changed = part = copying.deepcopy(spec)
    for key in way:
        part = part[key]
    part[last] = value
    return changed


@pytest.mark.parametrize("step", NONSENSE)
def test_an_order_that_makes_no_sense_is_refused_as_such(worker, step):
    spec = sensible(worker, step)
    if step == "summarize":
        door, blobs = step, [[b"x"]]
    elif spec.get("run") == RUN and "step" in spec and step not in ("fill", "write"):
        door, blobs = "judge", [[]]
        worker.call("judge", Jsonb({**spec, "step": "assign"}), [worker.init(spec["program"])[1]])
        if step in ("scores", "count"):
            worker.call("judge", Jsonb({**spec, "step": "predict", "output": 0}), [])
    elif step in ("survey", "make", "index", "drop"):
        door, blobs = "stage", []
    elif step in ("look", "headers", "write"):
        door, blobs = "pack_table", []
    elif "step" in spec:
        door, blobs = "predict_table", [worker.init(spec["program"])[1] if step == "model" else b""]
    else:
        door, blobs = step, [b""] if step == "visit" else []
    orders = [("", value, value) for value in (None, 1, "x", [])]
    orders += [(path, value, in_place(spec, path, value)) for path, bad in NONSENSE[step] for value in bad]
    for path, value, order in orders:
        if door == "encode":
            worker.load()
        assert refused(worker, door, Jsonb(order), *blobs) == "22023", (path, value)


def test_what_is_no_part_of_a_state_is_refused(worker):
    program = worker.program()
    assert {refused(worker, "put", part, data) for part, data in ((None, b""), (-1, b""), (0, None))} == {"22023"}
    assert {refused(worker, "get", part) for part in (None, -1)} == {"22023"}
    assert refused(worker, "summarize", Jsonb({"program": program}), [b"x", None]) == "22023"
    spec = {"run": RUN, "program": program, "batch_size": 16}
    assert refused(worker, "judge", Jsonb({**spec, "step": "assign"}), [None]) == "22023"
    assert refused(worker, "judge", Jsonb({**spec, "step": "assign"}), None) == "22023"
    worker.call("judge", Jsonb({**spec, "step": "assign"}), [worker.init(program)[1]])
    assert refused(worker, "judge", Jsonb({**spec, "step": "scores", "most": 8}), []) == "55000"  # nothing is predicted
    accumulators = worker.visit(program, worker.init(program)[1], phase="validate")[1]
    for blobs in ([], [accumulators]):
        assert refused(worker, "judge", Jsonb({**spec, "step": "summarize"}), blobs) == "22023"


@pytest.mark.parametrize("order", ["[" * 3000 + "]" * 3000, "[%s]" % ("9" * 5000)])
def test_an_order_that_python_cannot_read_is_refused(worker, order):
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("select cerebro_internal.worker_claim(%s)", [order])
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize("threads", ["-1", "0", "1000000", "null", "\"1\""])
def test_no_number_of_threads_ends_the_server(cluster, threads):
    with cluster.connect(node=1) as conn:
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("select cerebro_internal.worker_start('{\"threads\": %s}')" % threads)
        assert caught.value.sqlstate == "22023"
        assert conn.execute("select 1").fetchone() == (1,)


def test_a_monstrous_layer_fails_the_trial_and_says_what_it_needs(worker):
    report, blob = worker.init(worker.program([{"Dense": {"units": 10**9}}, {"Dense": {"units": "$classes"}}]))
    assert report["status"] == "failed" and blob is None
    assert "GB of memory" in report["error"] and "are available" in report["error"]


@pytest.mark.parametrize("batch_size", [0, -1, 2**31, 1.5, None])
def test_a_batch_size_that_makes_no_sense_is_refused(worker, batch_size):
    program = worker.program()
    with pytest.raises(psycopg.Error) as caught:
        worker.visit(program, worker.init(program)[1], batch_size=batch_size)
    assert caught.value.sqlstate == "22023"


def test_a_shard_is_held_to_the_memory_that_is_left_whatever_the_order_says(worker):
    assert worker.load(memory_bytes=None)["rows"] == worker.load(memory_bytes=2**60)["rows"] == 150
    wide = {**worker.encoders, "model": {**worker.encoders["model"], "inputs": [{"name": None, "numbers": [2**40], "codes": []}]}}
    assert refused(worker, "encode", Jsonb({"run": RUN, "encoders": wide})) == "53200"


def test_a_summary_that_fails_fails_the_trial(worker):
    program = worker.program()
    accumulators = worker.visit(program, worker.init(program)[1], phase="validate")[1]
    wrong = worker.program([{"Dense": {"units": 2}}])
    answer = worker.call("summarize", Jsonb({"run": RUN, "program": wrong}), [accumulators])
    assert answer["status"] == "failed" and "3 classes" in answer["error"]
    assert refused(worker, "summarize", Jsonb({"run": RUN, "program": program}), []) == "22023"
