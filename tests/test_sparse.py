"""Sparse rows, from fit to the exported archive: each answer against plain Keras on the same rows in full."""

from __future__ import annotations

import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
from safetensors.numpy import load

from cerebro_udf.segment import state
from tests import outcome
from tests import requirements as requires
from tests.answers import assert_evaluated, assert_predicted, assert_table_predicted
from tests.faults import cancelled
from tests.session import LOGIT, refusal
from tests.test_predict_table import made as parts_of
from tests.test_replay import replay

WARM = True
pytestmark = requires.segments(3)

COUNT, SIZE, SIZES = 60, 40, [30, 20, 10]
COLUMNS = {"idx": "integer[]", "val": "real[]", "a": "double precision", "label": "text", "kind": "integer", "row": "integer"}
ENCODERS = {"idx": {"sparse": {"values": "val", "size": SIZE}}, "a": "none"}
STORED = {"encoders": {"idx": ENCODERS["idx"]}, "validation": 0.2, "seed": 5}  # of a packed table


def made() -> list[dict]:
    """Rows of none to nine entries, in any order."""
    random, rows = np.random.default_rng(8), []
    for number in range(COUNT):
        index = random.permutation(SIZE)[: random.integers(0, 10)]
        value = random.normal(0, 2, len(index)).round(3) + 0.0005
        a = round(float(random.normal()), 3)
        up = value[index < 20].sum() + a > 0
        found = {"idx": index.tolist(), "val": value.tolist(), "a": a}
        rows.append({**found, "label": ("down", "up")[int(up)], "kind": int(up), "row": number})
    return rows


def dense(rows: list[dict]) -> np.ndarray:
    x = np.zeros((len(rows), SIZE), np.float32)
    for full, row in zip(x, rows):
        full[row["idx"]] = row["val"]
    return x


def model() -> keras.Model:
    words, a = keras.Input((SIZE,), name="words"), keras.Input((1,), name="a")
    x = keras.layers.Dense(5, "tanh")(words)
    return keras.Model([words, a], keras.layers.Dense(2)(keras.layers.Concatenate()([x, a])))


class Fitted:
    """A run of two inputs, and what plain Keras makes of its weights."""

    def __init__(self, session):
        self.rows = made()
        self.table = session.sharded(COLUMNS, [list(row.values()) for row in self.rows], SIZES)
        self.model = session.model(json.loads(model().to_json()))
        options = {"epochs": 2, "learning_rate": 0.05, "encoders": ENCODERS, "order": "fixed", "inputs": {"words": ["idx"], "a": ["a"]}}
        self.run = session.fit(self.table, self.model, "label", ["idx", "a"], **options)
        plain = model()
        plain.set_weights(outcome.weights(outcome.best(session.cluster, self.run, shards=3)))
        a = np.array([[row["a"]] for row in self.rows], np.float32)
        self.probabilities = outcome.softmax(np.asarray(plain([dense(self.rows), a])).astype(np.float64))


@pytest.fixture(scope="module")
def fitted(session):
    return Fitted(session)


def test_predict_of_each_row_is_what_keras_says(session, fitted):
    assert_predicted(session, fitted)


def test_predict_table_is_what_keras_says(session, fitted):
    assert_table_predicted(session, fitted)


def test_evaluate_is_what_keras_says(session, fitted):
    assert_evaluated(session, fitted)


def test_rows_of_a_view_are_sparse_too(session, fitted):
    local = session.local(COLUMNS, [list(row.values()) for row in fitted.rows])
    view = "%s.%s" % (session.schema, session.name("seen"))
    session.conn.execute("create view %s as select * from %s" % (view, local.name))
    query = "select metric, round(value::numeric, 5) from cerebro.evaluate(%s, %s::text::regclass)"
    assert session.rows(query, fitted.run, view) == session.rows(query, fitted.run, fitted.table.name)


def test_importance_takes_whole_rows_from_others(session, fitted):
    found = session.rows("select feature, importance from cerebro.importance(%s, %s::text::regclass)", fitted.run, fitted.table.name)
    assert {feature for feature, _ in found} == {"idx", "a"} and all(np.isfinite(drop) for _, drop in found)


def test_the_archive_takes_indices_and_values_and_says_what_keras_says(session, fitted, tmp_path):
    path = tmp_path / "sparse.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", fitted.run)[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    idx = np.array([row["idx"] + [-1] * (9 - len(row["idx"])) for row in fitted.rows])
    val = np.array([row["val"] + [np.nan] * (9 - len(row["val"])) for row in fitted.rows])
    found = archive({"idx": idx, "val": val, "a": np.array([[row["a"]] for row in fitted.rows])})
    np.testing.assert_allclose(np.asarray(found), fitted.probabilities, rtol=2e-5, atol=1e-6)


def test_rows_that_predict_cannot_take_are_refused_by_name(session, fitted):
    row = {"idx": [3, 1], "val": [1, 0.5], "a": 0}
    for changes, sqlstate, words in (
        ({"idx": [3, SIZE]}, "22023", "Of this row: index 40 is not from 0 to 39."),
        ({"idx": [3, -1]}, "22023", "Of this row: index -1 is not from 0 to 39."),
        ({"idx": [3, 3]}, "22023", "Of this row: index 3 stands there twice."),
        ({"val": [1]}, "22023", "Of this row: it has 2 indices and 1 values."),
        ({"idx": [3, 0.5]}, "22023", "It is [3.0, 0.5]."),
        ({"idx": [[3, 1]]}, "22023", "It is [[3, 1]]."),
        ({"idx": [3, None]}, "22004", None),
        ({"val": None}, "22004", None),
    ):
        error = session.error("select cerebro.predict(%s, %s::jsonb)", fitted.run, json.dumps({**row, **changes}))
        assert (error.sqlstate, error.detail) == (sqlstate, words) and error.hint, changes
    whole = session.rows("select cerebro.predict(%s, %s::jsonb)", fitted.run, json.dumps(row))
    assert session.rows("select cerebro.predict(%s, '[[1, 3], [0.5, 1], 0]'::jsonb)", fitted.run) == whole


class Noisy:
    """A run with dropout and rows held out, of the sparse rows alone, and its states."""

    def __init__(self, session, table):
        self.session, self.table = session, table
        self.statement, self.values = self.call(table)
        session.conn.execute(self.statement, self.values)
        self.run, self.states = self.values[0], outcome.states(session.cluster, self.values[0])

    def call(self, source, **more) -> tuple[str, list]:
        layers = [{"Dense": {"units": 6, "activation": "relu"}}, {"Dropout": {"rate": 0.3}}, *LOGIT["layers"]]
        options = {
            "epochs": 2, "search": {"space": {"batch_size": [7]}}, "order": "fixed", **STORED,
            "optimizer": {"Adam": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.02, "decay_steps": 40}}}},
        }  # fmt: skip
        return self.session.call(source, self.session.model({"layers": layers}), "kind", ["idx"], **{**options, **more})


@pytest.fixture(scope="module")
def noisy(session, fitted):
    return Noisy(session, fitted.table)


def test_a_run_replays_and_goes_on_after_a_cancel_bit_for_bit(session, noisy, tmp_path):
    replayed = replay(session, tmp_path / "replay.npz", noisy.run, shards=3)
    state = outcome.arrays(noisy.states[0, max(seq for _, seq in noisy.states)])
    assert all(array.tobytes() == replayed["%s/whole/0/%s" % (noisy.run, name)].tobytes() for name, array in state.items())
    assert 0 < session.rows("select rows from cerebro.visit where run = %s and phase = 'validate' and epoch = 1", noisy.run)[0][0] < COUNT
    again = noisy.call(noisy.table)
    cancelled(session, session.cluster.node(1), again[1][0], "mid-visit", 2, *again)
    session.rows("select * from cerebro.resume(%s)", again[1][0])
    assert outcome.states(session.cluster, again[1][0]) == noisy.states


def test_rows_that_are_packed_and_rows_beyond_the_memory_train_to_the_same_bits(session, noisy):
    packed = [session.schema + "." + session.name("packed") for _ in range(2)]
    for target, options in zip(packed, (STORED, {**STORED, "memory": "1kB"})):
        call = "select cerebro.pack(%s::text::regclass, %s, 'kind', '{idx}', %s)"
        assert session.rows(call, noisy.table.name, target, json.dumps(options)) == [(COUNT,)]
    of_rows = sorted(row["idx"] for row in made())
    blocks = session.rows("select data from %s where part <> 'header' order by shard, part, number" % packed[0])
    assert blocks == session.rows("select data from %s where part <> 'header' order by shard, part, number" % packed[1])
    found = [load(bytes(data)) for (data,) in blocks]
    cut = [np.split(block["numbers.indices"], np.cumsum(block["numbers.counts"])[:-1]) for block in found if len(block["label"])]
    assert sorted(row.tolist() for rows in cut for row in rows) == sorted(sorted(row) for row in of_rows)
    for source, memory in ((packed[0], None), (packed[0], "1kB"), (noisy.table, "1kB")):
        statement, values = noisy.call(source, memory=memory)
        session.conn.execute(statement, values)
        assert outcome.states(session.cluster, values[0]) == noisy.states, (source, memory)
        query = "select rows, details from cerebro.visit where run = %s and phase = 'train'"
        for rows, details in session.rows(query, values[0]):
            assert ("hits" in details) == (memory is not None)
            assert memory is None or (details["hits"] + details["misses"] == rows and details["misses"] and details["read_bytes"] % 8 == 0)


def test_a_packed_table_of_sparse_rows_that_somebody_has_written_is_checked(session, noisy):
    target = session.schema + "." + session.name("packed")
    session.rows("select cerebro.pack(%s::text::regclass, %s, 'kind', '{idx}', %s)", noisy.table.name, target, json.dumps(STORED))
    statement, values = noisy.call(target)
    blocks = session.rows("select data from %s where part = 'train' and shard = 0" % target)
    (name,) = [part for number, part in parts_of(session) if number == 1 and part.startswith(target)]
    arrays, about = state.unpack(bytes(blocks[0][0]))
    for key, value, words in (("indices", 99, "out of range or order"), ("counts", 99, "other numbers of entries")):
        broken = {**arrays, "numbers." + key: np.concatenate([[value], arrays["numbers." + key][1:]]).astype(np.int32)}
        blob = state.pack(broken, {key: about[key] for key in ("part", "number")})
        with session.cluster.connect(node=1) as segment:
            segment.execute("update %s set data = %%s where part = 'train'" % name, [blob])
        error = refusal(session.cluster, session.conn, statement, values)
        assert (error.sqlstate, "not whole" in error.message, words in error.detail) == ("55000", True, True), error


def test_trials_of_several_outputs_judged_on_rows_of_another_table_train_alike_as_a_group_beyond_the_memory_and_packed(session, fitted):
    table, held = (session.local(COLUMNS, [list(row.values()) for row in rows]) for rows in (fitted.rows, fitted.rows[:20]))
    words, a = keras.Input((SIZE,), name="words"), keras.Input((1,), name="a")
    x = keras.layers.Concatenate()([keras.layers.Dense(5, "tanh")(words), a])
    ends = [keras.layers.Dense(1, name="amount")(x), keras.layers.Dense(2, "softmax", name="way")(x)]
    model, features = session.model(json.loads(keras.Model([words, a], ends).to_json())), ["idx", "a"]
    options = {
        "inputs": {"words": ["idx"], "a": ["a"]}, "outputs": {"way": "label", "amount": {"label": "a + 1", "task": "regression"}},
        "encoders": ENCODERS, "validation": {"table": held.name}, "search": {"space": {"learning_rate": [0.05, 0.01]}}, "epochs": 2,
        "batch_size": 8, "order": "fixed", "segments": 1, "metrics": {"way": ["accuracy"]},
    }  # fmt: skip
    runs = [session.fit(table, model, None, features, **{**options, **more}) for more in ({}, {"fuse": True}, {"memory": "1kB"})]
    packed = session.schema + "." + session.name("packed")
    stored = {key: options[key] for key in ("inputs", "outputs", "encoders", "validation", "segments")}
    call = "select cerebro.pack(%s::text::regclass, %s, null, '{idx,a}', %s)"
    assert session.rows(call, table.name, packed, json.dumps({**stored, "seed": 7})) == [(COUNT + 20,)]
    runs.append(session.fit(packed, model, None, features, **options))
    alone, *others = (outcome.everything(session.cluster, run) for run in runs)
    assert all(other == alone for other in others) and len(set(alone[2].values())) == 2
    details = [details for (details,) in session.rows("select details from cerebro.visit where run = %s", runs[1])]
    assert any(found["together"] for found in details if "together" in found) and not any(found["fused"] for found in details)
    missed = "select min((details ->> 'misses')::int) from cerebro.visit where run = %s and epoch = 1"
    assert session.rows(missed, runs[2])[0][0] > 0, "in training and in validation"
    ((trial, epoch),) = session.rows("select trial, best_epoch from cerebro.trial where run = %s order by metric limit 1", runs[0])
    (metrics,) = [metrics for number, at, metrics, _ in alone[0] if (number, at) == (trial, epoch)]
    judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", runs[0], held.name))
    assert {"val_" + name: value for name, value in judged.items()} == pytest.approx(
        {name: value for name, value in metrics.items() if name.startswith("val_")}
    )


def test_rows_that_are_no_sparse_rows_are_refused_with_row_and_column_or_left_out(session, fitted):
    for idx, val, reason in (
        ([0, 50], [1.0, 2.0], "index 50 is not from 0 to 39"), ([-2], [1.0], "index -2 is not from 0 to 39"),
        ([4, 1, 4], [1.0, 2.0, 3.0], "index 4 stands there twice"), ([1, 2], [1.0], "it has 2 indices and 1 values"),
        ([9], [float("nan")], "the value of index 9 is NaN, infinite, or beyond 3.4e38"),
        ([8], [-1e39], "the value of index 8 is NaN, infinite, or beyond 3.4e38"),
    ):  # fmt: skip
        rows = [[[1, 2], [1.0, 1.0], True], [idx, val, False], [[9, 8], [1.0, 0.0], False], [[], [], True]]
        table = session.sharded({"idx": "bigint[]", "val": "float8[]", "label": "boolean"}, rows, [4, 0, 0])
        encoders = {"idx": ENCODERS["idx"]}
        error = session.refused(table, session.model(LOGIT), "label", ["idx"], encoders=encoders)
        assert (error.sqlstate, error.message) == ("22000", 'column "idx" holds values that are not what its encoder says')
        assert error.detail == "1 of 4 rows; of the first one: row 2 as read: %s." % reason
        condition = error.hint[error.hint.index("where ") : error.hint.index(", or set")]
        assert session.rows("select idx from %s %s" % (table.name, condition)) == [(idx,)]
    made = {"array_remove(idx, -7)": {"sparse": {"size": 3}}}
    error = session.refused(table, session.model(LOGIT), "label", list(made), encoders=made)
    condition = error.hint[error.hint.index("where ") : error.hint.index(", or set")]
    assert session.rows("select count(*) from %s %s" % (table.name, condition)) == [(2,)], "by what the expression gives"
    run = session.fit(table, session.model(LOGIT), "label", ["idx"], encoders=encoders, nulls="skip")
    query = "select sum((s ->> 'skipped')::int) from cerebro.run, jsonb_array_elements(shards -> 'stats') s where run = %s"
    assert session.rows(query, run) == [(1,)]


def test_what_cannot_be_sparse_is_refused_before_anything_starts(session, fitted):
    encoders, table = {"idx": ENCODERS["idx"]}, fitted.table
    normal = session.model({"layers": [{"BatchNormalization": {}}, *LOGIT["layers"]]})
    for arguments, sqlstate, words in (
        ((table, normal, "label", ["idx"], encoders), "0A000", 'column "idx" of sparse rows does not go into BatchNormalization'),
        ((table, session.model(), "label", ["idx", "a"], encoders), "0A000", 'column "idx" beside other features is not supported'),
        ((table, session.model(), "label", ["idx", "val"], encoders), "22023",
         'column "val" holds the values of a sparse feature, and is the label or a feature itself'),
        ((table, session.model(), "label", ["idx"], {"idx": {"sparse": {"values": "label", "size": 9}}}), "42804",
         'column "label" cannot hold the values of a sparse feature'),
        ((table, session.model(), "label", ["idx"], {"idx": {"sparse": {"values": "vall", "size": 9}}}), "42703",
         'column "vall" of table %s does not exist' % table.name.replace('"', "")),
        ((table, session.model(), "label", ["idx"], {"idx": {"sparse": {}}}), "22023",
         'option "encoders.idx.sparse.size" has a wrong value'),
        ((table, session.model(), "label", ["val"], {"val": {"sparse": {"size": 9}}}), "22023",
         'encoder "sparse" does not fit column "val"'),
    ):  # fmt: skip
        error = session.refused(*arguments[:4], encoders=arguments[4])
        assert (error.sqlstate, error.message) == (sqlstate, words) and error.hint, words


def tagged(count: int, seed: int) -> tuple[list[list], np.ndarray, np.ndarray]:
    """Rows of ten words of 200; tag n of 100 applies where word 2n or 2n + 1 is there, and to one other row in a hundred, or not."""
    random = np.random.default_rng(seed)
    index = np.array([random.permutation(200)[:10] for _ in range(count)])
    x = np.zeros((count, 200), np.float32)
    np.put_along_axis(x, index, 1, axis=1)
    y = (x[:, 0::2] + x[:, 1::2] > 0) ^ (random.uniform(size=(count, 100)) < 0.01)
    return [[words, tags] for words, tags in zip(index.tolist(), y.tolist())], x, y


def test_a_hundred_tags_of_sparse_rows_are_learnt_as_well_as_by_keras_on_rows_in_full(session):
    columns = {"idx": "smallint[]", "tags": "boolean[]"}
    (rows, x, y), (others, x_others, y_others) = tagged(1200, 1), tagged(300, 2)
    table, held = session.sharded(columns, rows, [500, 400, 300]), session.sharded(columns, others, [100, 100, 100])
    sigmoid = session.model({"layers": [{"Dense": {"units": 100, "activation": "sigmoid"}}]})
    options = {"epochs": 8, "learning_rate": 0.05, "batch_size": 32, "metrics": ["Precision", "Recall"], "order": "fixed"}
    run = session.fit(table, sigmoid, "tags", ["idx"], encoders={"idx": {"sparse": {"size": 200}}}, **options)
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, held.name))
    keras.utils.set_random_seed(3)
    plain = keras.Sequential([keras.Input((200,)), keras.layers.Dense(100, "sigmoid")])
    plain.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=[keras.metrics.Precision(), keras.metrics.Recall()])
    plain.fit(x, y, batch_size=32, epochs=8, verbose=0)
    loss, precision, recall = plain.evaluate(x_others, y_others, verbose=0)
    assert found["loss"] == pytest.approx(loss, rel=0.05) and found["Precision"] > 0.95 and found["Recall"] > 0.75
    assert found["Precision"] == pytest.approx(precision, abs=0.02) and found["Recall"] == pytest.approx(recall, abs=0.05)
