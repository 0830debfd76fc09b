"""Sequences of any length, from fit to the exported archive: each answer against plain Keras on rows that this file pads itself."""

from __future__ import annotations

import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import outcome
from tests import requirements as requires
from tests.answers import assert_evaluated, assert_predicted, assert_table_predicted
from tests.session import LOGIT

WARM = True
pytestmark = requires.segments(3)

COUNT = 66
LENGTHS = {"clicks": 4, "items": 3, "words": 5, "tags": 4}
TYPES = {"clicks": "double precision[]", "items": "bigint[]", "words": "text", "tags": "text"}
ENCODERS = {
    "clicks": {"sequence": {"length": 4, "pad": "pre", "truncate": "pre"}},
    "items": {"tokens": {"length": 3, "size": 6}},
    "words": {"tokens": {"length": 5, "size": 100, "pad": "pre"}},
    "tags": {"tokens": {"length": 4, "size": 40, "split": "character", "hash": True}},
}  # fmt: skip
VOCABULARY = "the cat sat on a mat".split()


def made() -> list[dict]:
    random, rows = np.random.default_rng(5), []
    for _ in range(COUNT):
        rows.append(
            {
                "clicks": random.normal(3, 2, random.integers(1, 8)).round(3).tolist(),
                # Ids that a double does not tell apart, of different frequencies.
                "items": (2**60 + random.geometric(0.4, random.integers(0, 6))).tolist(),
                "words": "  ".join(VOCABULARY[int(i)].title() for i in random.integers(0, 6, random.integers(0, 9))) + "!",
                "tags": "".join("äbcdefghijklm"[int(i)] for i in random.integers(0, 13, random.integers(0, 7))),
            }
        )
        rows[-1]["label"] = ("down", "up")[int(sum(rows[-1]["clicks"]) > 12)]
    return rows


def model() -> keras.Model:
    """Three inputs, two of which have masks that keep padding away from what follows, and counts of tokens."""
    clicks = keras.Input((4, 1), name="clicks")
    items, words, tags = (keras.Input((LENGTHS[name],), name=name, dtype="int32") for name in ("items", "words", "tags"))
    a = keras.layers.LSTM(3)(clicks)
    b = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(6, 3, mask_zero=True)(items))
    c = keras.layers.GRU(2)(keras.layers.Embedding(100, 2, mask_zero=True)(words))
    d = keras.layers.CategoryEncoding(40, "count")(tags)
    return keras.Model([clicks, items, words, tags], keras.layers.Dense(2)(keras.layers.Concatenate()([a, b, c, d])))


def filled(row: list, name: str) -> list:
    """Codes, with zeros at the end that the encoder of their column names."""
    padding = [0] * (LENGTHS[name] - len(row))
    return padding + row if name == "words" else row + padding


def codes(rows: list[list[str]], size: int) -> list[list[int]]:
    """Tokens as numbers, the most frequent first; 1 is for others, and for a row of none."""
    counts = {token: sum(row.count(token) for row in rows) for row in rows for token in row}
    known = sorted(counts, key=lambda token: (-counts[token], token))[: size - 2]
    return [[known.index(token) + 2 if token in known else 1 for token in row] or [1] for row in rows]


class Fitted:
    """A run, and what plain Keras makes of its weights: the same layers, rows padded and masked here."""

    def __init__(self, session):
        self.rows = made()
        self.table = session.sharded(
            {**TYPES, "label": "text", "row": "integer"}, [[*row.values(), n] for n, row in enumerate(self.rows)], [30, 20, 16]
        )
        # An array that begins at 0 is the same array.
        for part, segment in zip(self.table.parts, self.table.segments):
            session.cluster.node(segment).execute(
                "update %s.%s set clicks = ('[0:' || cardinality(clicks) - 1 || ']=' || clicks::text)::float8[] where row %% 3 = 0"
                % (session.schema, part)
            )
        name = session.model(json.loads(model().to_json()))
        inputs = {name: [name] for name in TYPES}
        self.run = session.fit(
            self.table, name, "label", list(TYPES), epochs=2, learning_rate=0.05, encoders=ENCODERS, order="fixed", inputs=inputs
        )
        weights = outcome.weights(outcome.best(session.cluster, self.run, shards=3))
        self.probabilities = outcome.softmax(self._logits(weights).astype(np.float64))

    def _logits(self, weights: list) -> np.ndarray:
        plain = model()
        assert [w.shape for w in weights] == [tuple(v.shape) for v in plain.variables]
        for variable, weight in zip(plain.variables, weights):
            variable.assign(weight)
        steps = np.concatenate([row["clicks"][-4:] for row in self.rows])
        mean, scale = steps.mean(), steps.std()
        lstm, found = next(layer for layer in plain.layers if isinstance(layer, keras.layers.LSTM)), []
        for row in self.rows:  # without any padding: what a mask hides is not there
            x = (np.array(row["clicks"][-4:]) - mean) / scale
            found.append(np.asarray(lstm(x.astype(np.float32).reshape(1, -1, 1)))[0])
        items = codes([[str(item) for item in row["items"]][:3] for row in self.rows], 6)
        words = codes([row["words"].lower().replace("!", "").split()[:5] for row in self.rows], 100)
        tags = [list(row["tags"][:4]) for row in self.rows]
        tags = [2 + tf.strings.to_hash_bucket_strong(row, 38, key=[0, 0]).numpy() if row else [1] for row in tags]
        rest = keras.Model(plain.inputs[1:], plain.layers[-2].input[1:])
        given = zip(("items", "words", "tags"), (items, words, tags))
        others = rest([np.array([filled(list(row), name) for row in rows]) for name, rows in given])
        return np.asarray(plain.layers[-1](np.concatenate([np.array(found), *others], axis=1)))


@pytest.fixture(scope="module")
def fitted(session):
    return Fitted(session)


def test_predict_of_each_row_is_what_keras_says(session, fitted):
    assert_predicted(session, fitted)


def test_predict_table_is_what_keras_says(session, fitted):
    assert_table_predicted(session, fitted)


def test_evaluate_is_what_keras_says(session, fitted):
    assert_evaluated(session, fitted)


def test_the_archive_takes_rows_of_any_length_and_says_what_keras_says(session, fitted, tmp_path):
    path = tmp_path / "sequences.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", fitted.run)[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    longest = max(len(row["clicks"]) for row in fitted.rows)
    clicks = np.array([row["clicks"] + [np.nan] * (longest - len(row["clicks"])) for row in fitted.rows])
    items = np.array([[*map(str, row["items"]), *[""] * (5 - len(row["items"]))] for row in fitted.rows])
    words = np.array([[row["words"]] for row in fitted.rows])
    tags = np.array([[*row["tags"], *[""] * (6 - len(row["tags"]))] for row in fitted.rows])
    given = {"clicks": clicks, "items": items, "words": words, "tags": tags}
    found = archive({name: keras.ops.convert_to_tensor(x) for name, x in given.items()})
    np.testing.assert_allclose(np.asarray(found), fitted.probabilities, rtol=2e-5, atol=1e-6)


def test_rows_that_predict_cannot_take_are_refused_by_name(session, fitted):
    row = {"clicks": [1, 2], "items": [2**60 + 1], "words": "the cat", "tags": "ab"}
    for changes, sqlstate, words in (
        ({"clicks": []}, "22004", 'feature "clicks" is empty, or holds NULL, NaN or infinite values'),
        ({"clicks": [1, None]}, "22004", 'feature "clicks" is empty, or holds NULL, NaN or infinite values'),
        ({"clicks": [[1, 2]]}, "22023", 'feature "clicks" has the wrong shape'),
        ({"clicks": 3}, "22023", 'feature "clicks" has a value of the wrong type'),
        ({"items": [1.5]}, "22023", 'feature "items" has a value of the wrong type'),
        ({"items": [None]}, "22004", 'an element of feature "items" is null'),
        ({"words": ["the"]}, "22023", 'feature "words" has a value of the wrong type'),
    ):
        error = session.error("select cerebro.predict(%s, %s::jsonb)", fitted.run, json.dumps({**row, **changes}))
        assert (error.sqlstate, error.message) == (sqlstate, words) and error.hint, changes


def test_rows_without_a_step_count_as_null(session):
    rows = [[[1.0, 2.0], ["a"], True, 1], [[], ["a", "b"], False, 2], [[3.0], [], False, 3], [[2.0, 5.0, 1.0], ["b"], True, 4]]
    table = session.sharded({"x": "real[]", "t": "text[]", "label": "boolean", "row": "integer"}, rows, [2, 1, 1])
    flat = session.model({"layers": [{"Flatten": {}}, *LOGIT["layers"]]})
    steps, tokens = {"x": {"sequence": {"length": 2}}}, {"t": {"tokens": {"length": 2}}}
    error = session.refused(table, flat, "label", ["x"], encoders=steps)
    assert error.sqlstate == "22004" and error.detail == 'Column "x": 1 NULL, 0 NaN, 0 infinite of 4 rows.'
    run = session.fit(table, flat, "label", ["x"], encoders=steps, nulls="skip")
    embedded = session.model({"layers": [{"Embedding": {"input_dim": 9, "output_dim": 2}}, {"Flatten": {}}, *LOGIT["layers"]]})
    run = session.fit(table, embedded, "label", ["t"], encoders=tokens)
    answers = [session.rows("select cerebro.predict(%s, array[%s]::text[])", run, token)[0][0] for token in ("never seen", "a")]
    assert answers[0] == session.rows("select cerebro.predict(%s, '{}'::text[])", run)[0][0] != answers[1]


def test_what_cannot_be_a_sequence_is_refused(session):
    rows = [[[[1.0, 2.0]], ["a"], True], [[[1.0, 2.0, 3.0]], ["b"], False], [[[2.0, 1.0]], ["c"], False]]
    table = session.sharded({"x": "real[]", "t": "text[]", "label": "boolean"}, rows, [3, 0, 0])
    model_ = session.model({"layers": [{"Flatten": {}}, *LOGIT["layers"]]})
    error = session.refused(table, model_, "label", ["x"], encoders={"x": {"sequence": {"length": 2}}})
    assert (error.sqlstate, error.detail) == ("2202E", "A step of row 2 as read has shape [3], those before have shape [2].")
    error = session.refused(table, model_, "label", ["t"])
    assert (error.sqlstate, error.message) == ("22023", 'column "t" needs an encoder')
    both = {"x": {"sequence": {"length": 2}}, "t": {"tokens": {"length": 2}}}
    plain = session.sharded({"x": "real[]", "t": "text[]", "label": "boolean"}, [[[1.0], ["a"], True], [[2.0], ["b"], False]], [1, 1, 0])
    error = session.refused(plain, model_, "label", ["x", "t"], encoders=both)
    assert (error.sqlstate, error.message) == ("0A000", 'column "x" beside other features is not supported')


def test_a_model_of_channels_last_takes_no_channels_first_though_the_sizes_would_fit(session):
    rows = [[np.full((3, 4, 5), number).tolist(), bool(number % 2)] for number in range(6)]
    table = session.sharded({"x": "real[]", "label": "boolean"}, rows, [2, 2, 2])
    model_ = session.model({"layers": [{"InputLayer": {"batch_shape": [None, 4, 5, 3]}}, "Flatten", *LOGIT["layers"]]})
    told = session.refused(table, model_, "label", ["x"]).message
    assert "expects rows of shape [4, 5, 3], the features have shape [3, 4, 5] (a Permute layer" in told


def test_rows_and_columns_that_are_no_round_numbers_and_batches_of_any_size(session):
    x = np.random.default_rng(4).normal(size=(33, 257)).round(2)
    table = session.sharded({"x": "double precision[]", "label": "boolean"}, [[row.tolist(), bool(row[0] > 0)] for row in x], [33, 0, 0])
    search = {"space": {"batch_size": [7, 32, 1000]}}
    run = session.fit(table, session.model(LOGIT), "label", ["x"], search=search, order="fixed", encoders={"x": "none"})
    trials = session.rows("select trial, (params ->> 'batch_size')::int from cerebro.trial where run = %s order by trial", run)
    steps = session.rows("select trial, sum(batches)::int from cerebro.visit where run = %s and phase = 'train' group by 1 order by 1", run)
    assert [(trial, -(-33 // size)) for trial, size in trials] == steps
    for trial, _ in trials:
        blobs = outcome.states(session.cluster, run)
        kernel, bias = outcome.weights(outcome.arrays(blobs[trial, max(seq for number, seq in blobs if number == trial)]))
        expected = outcome.softmax(x[:2].astype(np.float32) @ kernel + bias)[:, 1]
        for row, probability in zip(x, expected):
            for form in ("%s::float8[]", "%s::numeric[]", "%s::float8[]::text"):
                query = "select (cerebro.predict_probabilities(%%s, %s, %d) ->> 'true')::float8" % (form, trial)
                assert session.rows(query, run, row.tolist()) == [(pytest.approx(probability, rel=1e-4),)]


def test_a_row_in_any_form_is_predicted_or_refused_clearly(session):
    rows = [[[float(n % 5), 2.0 * (n % 3)], n % 5 > 1] for n in range(30)]
    table = session.sharded({"x": "real[]", "label": "boolean"}, rows, [10, 10, 10])
    run = session.fit(table, session.model(LOGIT), "label", ["x"], encoders={"x": "none"})
    query = "select cerebro.predict(%s, "
    whole = session.rows(query + "array[1,2])", run)
    session.conn.execute("create type %s.holder as (x real[])" % session.schema)
    for form in (
        "array[1.0,2.0]", "'{1,2}'::text", "'[1, 2]'::text", "'{\"x\": [1, 2]}'::jsonb", "'[0:1]={1,2}'::int[]", "array[[1,2]]",
        "row(array[1,2])::%s.holder" % session.schema,
    ):  # fmt: skip
        assert session.rows(query + form + ")", run) == whole, form
    assert session.rows(query + "array[1.5,2])", run) != whole
    for form, sqlstate, words in (
        ("null::real[]", "22004", "argument row is null or blank"),
        ("array[1,null]", "22004", 'feature "x" is NULL, NaN or infinite'),
        ("array[1,2,3]", "22023", 'feature "x" has the wrong shape'),
        ("'{1,2'::text", "22023", "argument row is neither JSON nor an array"),
    ):
        error = session.error(query + form + ")", run)
        assert (error.sqlstate, error.message) == (sqlstate, words) and error.hint, form
