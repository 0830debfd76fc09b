"""A run is sequential SGD: its ledger, replayed by plain Keras in another process, gives the same bits."""

from __future__ import annotations

import ast
import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from tests import outcome
from tests.faults import cancelled

WARM = True

REPLAYER = Path(__file__).with_name("replayer.py")
EPOCHS, SIZES = 3, [61, 38]
BATCHES = [8, 7, 10]  # one trial each, so that all share one program
TRIALS = len(BATCHES)

MODEL = {
    "layers": [
        {"Dense": {"units": 9, "activation": "relu"}},
        {"BatchNormalization": {}},
        {"Dropout": {"rate": 0.3}},
        {"Dense": {"units": 8, "activation": "tanh"}},
        {"Dropout": {"rate": 0.2}},
        {"Dense": {"units": "$classes", "activation": "softmax"}},
    ]
}
RATE = {"CosineDecay": {"initial_learning_rate": 0.02, "decay_steps": 40}}
OPTIMIZER = {"Adam": {"learning_rate": RATE}}
# The optimizer keeps averages, clips, and scales the loss; rows count for more or less.
WEIGHTED = {
    "optimizer": {"AdamW": {"learning_rate": RATE, "use_ema": True, "global_clipnorm": 0.5}},
    "precision": "mixed_float16", "sample_weight": "weight", "class_weight": {"7": 2.5, "0": 0.5},
}  # fmt: skip


def three_classes(rows: int) -> dict:
    random = np.random.default_rng(11)
    x = random.normal(2, 3, (rows, 4)).astype(np.float32)
    y = random.normal(-1, 0.1, rows)
    weight = random.uniform(0, 2, rows).round(2)
    day = np.datetime64("2025-12-01") + random.integers(0, 60, rows)
    kind = (x[:, 0] + x[:, 1] > 4).astype(int) + 7 * (y > -1)
    return {
        "x": x, "y": y, "weight": weight, "kind": kind, "day": day.astype(str), "who": random.integers(0, 30, rows).astype(str),
        "test": random.uniform(size=rows) < 0.2, "size": x[:, 2] - y,
    }  # fmt: skip


@pytest.fixture(scope="module")
def begin(session):
    """Gives the statement of a fit of these trials, and its values."""
    columns = {"x": "real[]", "y": "double precision", "weight": "numeric", "kind": "integer"}
    columns = {**columns, "day": "date", "who": "text", "test": "boolean", "size": "double precision"}
    table, model = session.sharded(columns, three_classes(sum(SIZES)), sizes=SIZES), session.model(MODEL)

    def call(**options) -> tuple[str, list]:
        options = {"optimizer": OPTIMIZER, "seed": 1234, "validation": 0.15, "order": "fastest", **options}
        options = {"epochs": EPOCHS, "search": {"space": {"batch_size": BATCHES}}, **options}
        return session.call(table, model, "kind", ["x", "y"], **options)

    return call


@pytest.fixture(scope="module")
def run(session, begin):
    statement, values = begin()
    session.conn.execute(statement, values)
    return values[0]


@functools.lru_cache(maxsize=None)
def replayer(threads: int) -> subprocess.Popen:
    """A process of plain Keras that replays whatever it is told, and ends with this one."""
    command = [sys.executable, "-I", str(REPLAYER), str(threads)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    atexit.register(process.communicate)
    return process


def replay(session, out: Path, *runs: str, variants: bool = False, shards: int = len(SIZES)) -> dict:
    """What the replayer makes of runs: name -> array."""
    cluster = session.cluster
    job = {
        "coordinator": cluster.url(), "servers": {node.name: cluster.url(node=node.number) for node in cluster.segments},
        "runs": runs, "out": str(out), "variants": variants,
    }  # fmt: skip
    process = replayer(max(1, len(os.sched_getaffinity(0)) // shards))  # a host's cores, shared among its workers
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    told = process.stdout.readline()
    if not told:
        replayer.cache_clear()
    assert told == "%s\n" % out, "the replayer ended with %s; it has said why" % process.wait(10)
    return dict(np.load(out))


@pytest.fixture(scope="module")
def replayed(session, run, tmp_path_factory):
    return replay(session, tmp_path_factory.mktemp("replay") / "out.npz", run, variants=True)


def last_states(session, run: str) -> dict[int, dict]:
    """Each trial's state after its last visit."""
    states = outcome.states(session.cluster, run)
    return {trial: outcome.arrays(states[trial, EPOCHS * len(SIZES)]) for trial in range(TRIALS)}


@pytest.fixture(scope="module")
def last(session, run):
    return last_states(session, run)


def differing(state: dict, replayed: dict, run: str, variant: str, trial: int = 0) -> list[str]:
    """Names of the variables whose bits differ."""
    prefix = "%s/%s/%d/" % (run, variant, trial)
    assert sorted(state) == sorted(name[len(prefix) :] for name in replayed if name.startswith(prefix))
    other = {name: replayed[prefix + name] for name in state}
    assert all(state[name].dtype == other[name].dtype and state[name].shape == other[name].shape for name in state)
    return [name for name in state if state[name].tobytes() != other[name].tobytes()]


def test_replayer_imports_nothing_of_the_project():
    imported = set()
    for node in ast.walk(ast.parse(REPLAYER.read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported == {"__future__", "hashlib", "json", "os", "struct", "sys", "numpy", "psycopg", "tensorflow", "keras"}


def test_trials_interleave_on_each_segment_and_end_with_short_batches(session, run):
    rows = session.cluster.coordinator.execute(
        "select segment, trial, rows, batches from cerebro.visit where run = %s and phase = 'train' order by started_at", [run]
    )
    assert len(rows) == TRIALS * EPOCHS * len(SIZES)
    for segment in {row[0] for row in rows}:
        trials = [row[1] for row in rows if row[0] == segment]
        switches = sum(a != b for a, b in zip(trials, trials[1:]))
        assert switches >= TRIALS  # one trial after another would switch TRIALS - 1 times
    for _, trial, count, batches in rows:
        assert count % BATCHES[trial] and batches == count // BATCHES[trial] + 1


@pytest.mark.parametrize("trial", range(TRIALS))
def test_replay_gives_every_variable_bit_for_bit(last, run, replayed, trial):
    state = last[trial]
    assert {name.split("/")[0] for name in state} == {"model", "optimizer", "metric"}
    generators = [name for name in state if name.startswith("model/") and state[name].dtype == np.int64]
    assert len(generators) == 2, "one for each Dropout"
    assert differing(state, replayed, run, "whole", trial) == []


@pytest.mark.parametrize("part", ["weights", "optimizer", "iterations", "generators", "statistics", "metrics"])
def test_replay_differs_when_a_hop_leaves_one_part_behind(last, run, replayed, part):
    assert differing(last[0], replayed, run, part)


def test_replayed_metrics_are_the_history(session, run, replayed):
    for trial, epoch, metrics, _ in outcome.history(session.cluster, run):
        if epoch == EPOCHS:
            total, count = (replayed["%s/whole/%d/metric/%d" % (run, trial, i)] for i in (2, 3))
            assert metrics["accuracy"] == float(np.float32(total / count))


def test_replay_of_a_run_of_weighted_rows_in_mixed_precision_that_was_cancelled_and_resumed(session, begin, tmp_path):
    """Under `fastest` nobody says in which order a resumed run goes on, but its ledger does."""
    statement, values = begin(**WEIGHTED)
    cancelled(session, session.cluster.node(2), values[0], "mid-visit", 4, statement, values)
    session.conn.execute("select cerebro.resume(%s)", [values[0]])
    attempts = {row[5] for row in outcome.visits(session.cluster, values[0])}
    assert attempts == {1, 2}
    again = replay(session, tmp_path / "out.npz", values[0])
    for trial, state in last_states(session, values[0]).items():
        assert differing(state, again, values[0], "whole", trial) == []


def test_replay_of_a_model_that_learns_from_all_rows_beforehand(session, begin, tmp_path):
    """Plain Keras calls `adapt` with the training rows of all shards; Cerebro merges what shards report."""
    statement, values = begin(epochs=1, search={"space": {"batch_size": [8]}})
    values[2] = session.model({"layers": [{"Normalization": {}}, *MODEL["layers"]]})
    session.conn.execute(statement, values)
    again = replay(session, tmp_path / "out.npz", values[0])
    state = outcome.arrays(outcome.states(session.cluster, values[0])[0, len(SIZES)])
    assert differing(state, again, values[0], "whole") == []


def test_replay_of_a_loss_that_compares_one_column_per_class(session, begin, tmp_path):
    """Plain Keras is given one-hot labels."""
    loss = {"CategoricalCrossentropy": {"label_smoothing": 0.1}}
    statement, values = begin(loss=loss, sample_weight="weight", epochs=1, search={"space": {"batch_size": [8]}})
    session.conn.execute(statement, values)
    again = replay(session, tmp_path / "out.npz", values[0])
    state = outcome.arrays(outcome.states(session.cluster, values[0])[0, len(SIZES)])
    assert differing(state, again, values[0], "whole") == []


def two_outputs() -> dict:
    """A model that says of a row which kind it is and how large; its outputs are not in alphabetical order."""
    x = keras.Input((5,))
    shared = keras.layers.Dropout(0.3)(keras.layers.Dense(8, activation="tanh")(x))
    kind = keras.layers.Dense(4, activation="softmax", name="kind")(keras.layers.BatchNormalization()(shared))
    return json.loads(keras.Model(x, [keras.layers.Dense(1, name="size")(shared), kind]).to_json())


@pytest.mark.parametrize(
    "weighted",
    [
        {"loss": {"kind": "categorical_crossentropy"}}, {"sample_weight": "weight"},
        {"class_weight": {"kind": "balanced"}, "sample_weight": "weight"},
    ],
)  # fmt: skip
def test_replay_of_a_run_of_two_outputs(session, begin, tmp_path, weighted):
    outputs, importance = {"size": "size", "kind": "kind"}, {"size": 0.25}
    statement, values = begin(outputs=outputs, loss_weights=importance, epochs=1, search={"space": {"batch_size": [8]}}, **weighted)
    values[2:4] = session.model(two_outputs()), None
    session.conn.execute(statement, values)
    again = replay(session, tmp_path / "out.npz", values[0])
    state = outcome.arrays(outcome.states(session.cluster, values[0])[0, len(SIZES)])
    assert differing(state, again, values[0], "whole") == []


HELD_OUT = [
    {"fraction": 0.2, "stratify": True},
    {"time": "day", "fraction": 0.2},
    {"time": "day", "from": "2026-01-01"},
    {"group": "who", "fraction": 0.2},
    {"column": "test"},
    {"folds": 4, "fold": 2},
    {"folds": 4, "fold": 1, "stratify": True},
]


@pytest.fixture(scope="module")
def held_out(session, begin, tmp_path_factory):
    """A run for every form of the option, and what the replayer makes of them."""
    runs = []
    for validation in HELD_OUT:
        statement, values = begin(validation=validation, epochs=1, search={"space": {"batch_size": [8]}})
        session.conn.execute(statement, values)
        runs.append(values[0])
    return runs, replay(session, tmp_path_factory.mktemp("held_out") / "out.npz", *runs)


@pytest.mark.parametrize("number", range(len(HELD_OUT)), ids=lambda number: json.dumps(HELD_OUT[number]))
def test_replay_holds_out_the_same_rows_by_every_form(session, held_out, number):
    runs, again = held_out
    state = outcome.arrays(outcome.states(session.cluster, runs[number])[0, len(SIZES)])
    assert differing(state, again, runs[number], "whole") == []
