"""Models with layers that learn from data before training: from fit to the archive, each answer against Keras' own `adapt`."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from tests import outcome
from tests import requirements as requires
from tests.answers import PREDICT_TABLE
from tests.faults import cancelled
from tests.session import LOGIT

WARM = True
pytestmark = requires.segments(2)
L = keras.layers

COUNT = 60
COLUMNS = {"a": "real", "b": "double precision", "age": "integer", "kind": "text", "code": "bigint", "row": "integer", "label": "boolean"}
INPUTS = {"scaled": ["b", "a"], "binned": ["age"], "kind": ["kind"], "code": ["code"]}
FEATURES = ["a", "b", "age", "kind", "code"]
NORMAL = {"layers": ["Normalization", *LOGIT["layers"]]}


def made() -> dict[str, np.ndarray]:
    random = np.random.default_rng(8)
    a, b = random.normal(50, 4, COUNT).astype(np.float32), random.normal(-3, 0.1, COUNT)
    age = random.integers(18, 90, COUNT)
    kind, code = np.array([None, "red", "blue", "green"])[random.integers(1, 4, COUNT)], 2**60 + random.integers(0, 5, COUNT)
    return {"a": a, "b": b, "age": age, "kind": kind, "code": code, "row": np.arange(COUNT), "label": a + age > 100}


ROWS = made()
FED = {"scaled": np.stack([ROWS["b"], ROWS["a"]], 1), "binned": ROWS["age"].astype(np.float64).reshape(-1, 1)}


KINDS = keras.ops.convert_to_tensor(ROWS["kind"].astype(str).reshape(-1, 1), "string")


def model(adapted: bool = False) -> keras.Model:
    scaled, binned = keras.Input((2,), name="scaled"), keras.Input((1,), name="binned")
    normal, bins = L.Normalization(), L.Discretization(num_bins=4, output_mode="one_hot")
    if adapted:
        normal.adapt(FED["scaled"])
        bins.adapt(FED["binned"])
    kind, code = keras.Input((1,), name="kind", dtype="string"), keras.Input((1,), name="code", dtype="int64")
    looked, counted = L.StringLookup(max_tokens=3), L.IntegerLookup(output_mode="one_hot")
    if adapted:
        looked.adapt(ROWS["kind"].astype(str).reshape(-1, 1))
        counted.adapt(ROWS["code"].reshape(-1, 1))
    else:
        counted._record_vocabulary_size = lambda: None
        counted._frozen_vocab_size = 6
    embedded = L.Flatten()(L.Embedding(4, 2)(looked(kind)))
    joined = L.Concatenate()([L.Dense(3, activation="tanh")(normal(scaled)), bins(binned), embedded, counted(code)])
    return keras.Model({"binned": binned, "scaled": scaled, "kind": kind, "code": code}, L.Dense(2, activation="softmax")(joined))


class Fitted:
    def __init__(self, session):
        self.table = session.sharded(COLUMNS, [list(row) for row in zip(*(column.tolist() for column in ROWS.values()))], [20, 40])
        self.model = session.model(json.loads(model().to_json()))
        self.run = session.fit(self.table, self.model, "label", FEATURES, inputs=INPUTS, epochs=2, order="fixed")
        plain = model(adapted=True)
        found = outcome.weights(outcome.best(session.cluster, self.run, shards=2))
        for variable, value in zip(plain.trainable_variables, found, strict=True):
            variable.assign(value)
        given = {name: keras.ops.convert_to_tensor(values, "float32") for name, values in FED.items()}
        given.update(code=keras.ops.convert_to_tensor(ROWS["code"].reshape(-1, 1), "int64"), kind=KINDS)
        self.expected = np.asarray(plain(given))


@pytest.fixture(scope="module")
def fitted(session):
    return Fitted(session)


def test_rows_come_to_the_layers_as_they_are_and_what_they_learn_is_kept_with_the_run(session, fitted):
    ((given, inputs),) = session.rows("select options -> 'encoders', encoders -> 'inputs' from cerebro.run where run = %s", fitted.run)
    assert given == {"a": "none", "b": "none", "age": "none", "kind": "index", "code": "index"}
    adapted = {one["name"]: one["adapted"] for one in inputs}
    assert sorted(adapted["scaled"]) == ["moments"] and sorted(adapted["binned"]) == ["moments", "points"]
    np.testing.assert_allclose(adapted["scaled"]["moments"]["variance"], FED["scaled"].var(axis=0), rtol=1e-12)


def test_a_row_a_table_and_the_archive_are_predicted_as_the_adapted_model_predicts_them(session, fitted, tmp_path):
    by_row = "select (cerebro.predict_probabilities(%s, r) ->> 'true')::float8 from " + fitted.table.name + " r order by row"
    np.testing.assert_allclose(np.array(session.rows(by_row, fitted.run))[:, 0], fitted.expected[:, 1], atol=1e-6)
    assert np.ptp(fitted.expected) > 0.05
    target = session.schema + "." + session.name("scored")
    session.rows(PREDICT_TABLE, fitted.run, fitted.table.name, target, '{"probabilities": true}')
    scored = session.rows("select (probabilities ->> 'true')::float8 from %s order by row" % target)
    np.testing.assert_allclose(np.array(scored)[:, 0], fitted.expected[:, 1], atol=1e-6)
    judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", fitted.run, fitted.table.name))
    label = ROWS["label"].astype(int)
    assert judged["loss"] == pytest.approx(float(-np.log(fitted.expected[np.arange(COUNT), label]).mean()), rel=1e-5)
    path = tmp_path / "model.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", fitted.run)[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    given = {name: keras.ops.convert_to_tensor(ROWS[name].reshape(-1, 1), "float64") for name in ("a", "b", "age")}
    given.update(code=keras.ops.convert_to_tensor(ROWS["code"].reshape(-1, 1), "int64"), kind=KINDS)
    np.testing.assert_allclose(np.asarray(archive(given))[:, 1], fitted.expected[:, 1], atol=1e-6)


def test_an_archive_of_an_adapted_model_keeps_what_its_layers_have_learnt(session, fitted, tmp_path):
    """Alone, and where a new model is built upon it."""
    normal = L.Normalization()
    normal.adapt(FED["scaled"] * 2 + 1)
    plain = keras.Sequential([keras.Input((2,)), keras.Sequential([normal, L.Dense(3, activation="tanh")]), L.Dense(2)])
    plain.save(tmp_path / "plain.keras")
    name, built = session.name("imported"), session.name("built")
    session.rows("select cerebro.import_model(%s, %s)", name, (tmp_path / "plain.keras").read_bytes())
    session.rows("select cerebro.create_model(%s, %s)", built, json.dumps({"layers": [{"Model": name}]}))
    expected = np.asarray(keras.ops.softmax(plain(FED["scaled"].astype(np.float32))))[:, 1]
    for given in (name, built):
        kept = session.fit(fitted.table, given, "label", ["b", "a"], learning_rate=1e-30, encoders={"a": "none", "b": "none"},
                           loss={"SparseCategoricalCrossentropy": {"from_logits": True}})  # fmt: skip
        assert session.rows("select encoders -> 'inputs' -> 0 -> 'adapted' from cerebro.run where run = %s", kept) == [(None,)]
        by_row = "select (cerebro.predict_probabilities(%s, r) ->> 'true')::float8 from " + fitted.table.name + " r order by row"
        np.testing.assert_allclose(np.array(session.rows(by_row, kept))[:, 0], expected, atol=1e-6)


def test_a_search_over_the_layer_trains_each_trial_on_the_same_rows(session, fitted):
    definition = {"layers": ["$first", *LOGIT["layers"]]}
    space = {"first": ["Normalization", {"Rescaling": {"scale": 0.01}}, {"Normalization": {"axis": None}}]}
    run = session.fit(fitted.table, session.model(definition), "label", ["a", "b"], search={"space": space})
    assert [(state, error) for _, _, state, _, _, error in outcome.ranking(session.cluster, run)] == [("done", None)] * 3
    on = session.fit(fitted.table, session.model(NORMAL), "label", ["a", "b"], run + "_on", init_from={"run": run, "trial": 0})
    kept = "select encoders #> '{inputs,0,adapted}' from cerebro.run where run = any(%s)"
    (first,), (second,) = session.rows(kept, [run, on])
    assert first == second is not None


def test_a_run_that_is_cancelled_goes_on_with_what_its_layers_have_learnt(session, fitted):
    name = session.model(NORMAL)
    options = {"epochs": 2, "order": "fixed"}
    whole = session.fit(fitted.table, name, "label", ["a", "b"], **options)
    statement, values = session.call(fitted.table, name, "label", ["a", "b"], **options)
    cancelled(session, session.cluster.node(2), values[0], "mid-visit", 2, statement, values)
    session.conn.execute("select cerebro.resume(%s)", [values[0]])
    assert outcome.states(session.cluster, values[0]) == outcome.states(session.cluster, whole)


def test_what_cannot_be_learnt_is_refused_before_anything_starts(session, fitted):
    def refused(definition, features, sqlstate, *told, table=fitted.table.name, **options):
        error = session.refused(table, session.model(definition), "label", features, **options)
        assert error.sqlstate == sqlstate and error.hint, error
        assert all(word in "%s %s %s" % (error.message, error.detail, error.hint) for word in told), error

    refused({"layers": [{"Dense": {"units": 2}}, *NORMAL["layers"]]}, ["a", "b"], "0A000", "Normalization", "mean and variance", "first")
    refused({"layers": ["TextVectorization", *LOGIT["layers"]]}, ["kind"], "0A000", "TextVectorization", "tokens")
    refused({"layers": ["StringLookup", *LOGIT["layers"]]}, ["a"], "22023", "StringLookup", "real")
    refused({"layers": [{"Normalization": {"axis": 3}}, *LOGIT["layers"]]}, ["a", "b"], "22023", "axis 3", "-1")
    refused(NORMAL, ["a", "age"], "22023", '"age"', "one_hot", encoders={"age": "one_hot"})
    packed = session.schema + "." + session.name("packed")
    pack = "select cerebro.pack(%s::text::regclass, %s, 'label', '{a,b}', '{\"validation\": 0, \"seed\": 7}')"
    session.rows(pack, fitted.table.name, packed)
    refused(NORMAL, ["*"], "0A000", "packed table", "packed from", table=packed)


def test_the_example_of_the_documentation_trains(session):
    page = (Path(__file__).resolve().parent.parent / "docs" / "definitions.md").read_text("utf-8")
    statements = page.split("## Layers that learn before training")[1].split("```sql\n")[1].split("```")[0].split(";\n")
    random = np.random.default_rng(1)
    area, rooms = random.normal(90, 20, 40), random.integers(1, 6, 40)
    houses = session.local({"area": "real", "rooms": "integer", "price": "real"}, {"area": area, "rooms": rooms, "price": 3 * area + rooms})
    session.rows(statements[0])
    assert session.rows(statements[1].replace("'houses'", "'%s'" % houses.name)) == [(0, "done")]
