"""Runs on packed tables of every kind of input: SQL's predictions of rows and of the table, and the archive's in plain Keras, agree."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import requirements as requires
from tests.answers import PREDICT_TABLE
from tests.session import LOGIT

WARM = True
pytestmark = requires.segments(2)
L = keras.layers

COUNT = 40
FLAT = {"layers": ["Flatten", *LOGIT["layers"]]}
PIXELS = np.random.default_rng(4).integers(0, 256, (COUNT, 4, 4, 1)).astype(np.uint8)


@dataclass(frozen=True)
class Kind:
    """Columns with their types, rows in Python's values, what the archive is given by column, the model, and how columns are encoded."""

    types: dict
    values: dict
    archive: dict
    model: dict = field(default_factory=lambda: LOGIT)
    options: dict = field(default_factory=dict)


def doubles(values) -> np.ndarray:
    return np.array(values, np.float64).reshape(COUNT, -1)


def texts(values) -> np.ndarray:
    return np.array([[value] for value in values])


def two_inputs() -> dict:
    series, kind = keras.Input((3, 2), name="series"), keras.Input((4,), name="kind")
    y = L.Dense(2)(L.Concatenate()([L.LSTM(2)(series), kind]))
    return json.loads(keras.Model([series, kind], y).to_json())


def kinds() -> dict[str, Kind]:
    random = np.random.default_rng(9)
    number = [None if n % 9 == 4 else float(x) for n, x in enumerate(random.normal(1e6, 3, COUNT).round(3))]
    count, kind = random.integers(-5, 5, COUNT).tolist(), ["xyz"[n % 3] for n in range(COUNT)]
    code = [2**60 + n % 4 for n in range(COUNT)]
    seconds = [1.7e9 + n * 86400 for n in range(COUNT)]
    matrix = random.normal(size=(COUNT, 2, 3)).astype(np.float32)
    jan, feb = random.normal(size=(2, COUNT, 3)).astype(np.float32)
    steps = [random.normal(size=1 + n % 5).round(2).tolist() for n in range(COUNT)]
    words = [" ".join(["The cat", "sat", "on the mat!"][: 1 + n % 3]) for n in range(COUNT)]
    files = [tf.io.encode_png(pixels).numpy() for pixels in PIXELS]
    raw = random.normal(size=(COUNT, 2, 3)).astype("<f4")
    embedding = {"Embedding": {"input_dim": 8, "output_dim": 2, "mask_zero": True}}
    embedded = {"layers": [embedding, {"GlobalAveragePooling1D": {}}, *LOGIT["layers"]]}
    return {
        "columns": Kind(
            {"number": "double precision", "count": "integer", "kind": "text", "code": "bigint", "size": "real", "day": "timestamptz"},
            {"number": number, "count": count, "kind": kind, "code": code, "size": count,
             "day": ["%s+00" % np.datetime64(int(second), "s") for second in seconds]},
            {"number": doubles([np.nan if x is None else x for x in number]), "count": doubles(count), "kind": texts(kind),
             "code": np.array([[x] for x in code], np.int64), "day": doubles(seconds), "size": doubles(count)},
            options={"nulls": {"number": "indicator"}, "encoders": {"count": "minmax", "code": {"embedding": {"dim": 2}},
                                                                     "size": {"bucketize": {"buckets": 3}}}},
        ),
        "array": Kind({"x": "real[]"}, {"x": matrix.tolist()}, {"x": matrix.astype(np.float64)}, FLAT),
        "sequence": Kind(
            {"x": "double precision[]"}, {"x": steps}, {"x": np.array([row + [np.nan] * (5 - len(row)) for row in steps])},
            {"layers": [{"GRU": {"units": 2}}, *LOGIT["layers"]]}, {"encoders": {"x": {"sequence": {"length": 3, "pad": "pre"}}}},
        ),
        "tokens": Kind(
            {"x": "text"}, {"x": words}, {"x": texts(words)}, embedded, {"encoders": {"x": {"tokens": {"length": 4, "size": 8}}}},
        ),
        "tensor": Kind(
            {"x": "bytea"}, {"x": [b.tobytes() for b in raw]}, {"x": raw.astype(np.float64)}, FLAT,
            {"encoders": {"x": {"tensor": {"shape": [2, 3], "dtype": "float32"}}}},
        ),
        "image": Kind(
            {"x": "bytea"}, {"x": files}, {"x": PIXELS}, FLAT, {"encoders": {"x": {"image": {"height": 4, "width": 4, "channels": 1}}}},
        ),
        "several inputs": Kind(
            {"jan": "real[]", "feb": "real[]", "kind": "text"}, {"jan": jan.tolist(), "feb": feb.tolist(), "kind": kind},
            {"jan": jan.astype(np.float64), "feb": feb.astype(np.float64), "kind": texts(kind)}, two_inputs(),
            {"inputs": {"series": {"columns": ["feb", "jan"], "stack": -1}, "kind": ["kind"]}},
        ),
    }  # fmt: skip


KINDS = kinds()


@pytest.mark.parametrize("name", KINDS)
def test_a_run_on_a_packed_table_predicts_the_same_by_row_by_table_and_in_plain_keras(session, name, tmp_path):
    kind = KINDS[name]
    rows = [[*row, n % 3 == 0, n] for n, row in enumerate(zip(*kind.values.values()))]
    table = session.sharded({**kind.types, "label": "boolean", "row": "integer"}, rows, [25, 15])
    packed, run, target = (session.schema + "." + session.name(what) for what in ("packed", "run", "scored"))
    pack = "select cerebro.pack(%s::text::regclass, %s, 'label', %s, %s::jsonb)"
    session.rows(pack, table.name, packed, list(kind.types), json.dumps({"validation": 0, "seed": 7, **kind.options}))
    fit = "select state, error from cerebro.fit(%s, %s::text::regclass, %s, options => %s::jsonb)"
    options = json.dumps({"epochs": 2, "seed": 7, "learning_rate": 0.1})
    assert session.rows(fit, run, packed, session.model(kind.model), options) == [("done", None)]
    by_row = "select (cerebro.predict_probabilities(%s, r) ->> 'true')::float8 from " + table.name + " r order by row"
    found = np.array(session.rows(by_row, run))[:, 0]
    assert np.ptp(found) > 0.01
    assert session.rows(PREDICT_TABLE, run, table.name, target, '{"probabilities": true}') == [(COUNT,)]
    scored = session.rows("select (probabilities ->> 'true')::float8, prediction from %s order by row" % target)
    np.testing.assert_allclose([probability for probability, _ in scored], found, rtol=2e-5, atol=1e-6)
    assert [prediction for _, prediction in scored] == (found > 0.5).tolist()
    path = tmp_path / "run.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    given = {column: keras.ops.convert_to_tensor(values) for column, values in kind.archive.items()}
    np.testing.assert_allclose(np.asarray(archive(given))[:, 1], found, rtol=2e-5, atol=1e-6)
    judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
    labels = np.arange(COUNT) % 3 == 0
    assert judged["loss"] == pytest.approx(-np.log(np.where(labels, found, 1 - found)).mean(), rel=1e-4)
