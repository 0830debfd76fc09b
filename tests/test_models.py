"""Models that leave and enter the database: archives that plain Keras opens, weights to begin from, names that move."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import psycopg
import pytest

from tests import outcome
from tests import requirements as requires
from tests.cluster import poll_until
from tests.session import LINE, LOGIT, POINTS, Refusal, Session, points

WARM = True
ONE = {"segments": 1, "order": "fixed"}  # as many threads whatever else goes on: no worker has to begin anew
pytestmark = requires.segments(3)

HIDDEN = {"Dense": {"units": 4, "activation": "tanh"}}
ROWS = 40

# In a process of its own, that has never heard of cerebro: the outputs of each archive for its rows.
OPEN = """
import importlib.util, json, os, sys
assert importlib.util.find_spec("cerebro_udf") is None
os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
import keras, numpy as np
answers = {}
for path, columns in json.load(open(sys.argv[1])).items():
    model = keras.models.load_model(path, safe_mode=True)
    inputs = {i.name: keras.ops.convert_to_tensor(np.array(columns[i.name]), dtype=i.dtype) for i in model.inputs}
    answers[path] = np.asarray(model(inputs, training=False)).tolist()
json.dump(answers, open(sys.argv[2], "w"))
"""

# name -> (model, columns, the row's label, options)
CASES = {
    "mixed": (
        {"layers": [HIDDEN, {"Dropout": {"rate": 0.2}}, {"BatchNormalization": {}}, {"Dense": {"units": "$classes"}}]},
        {"a": "real", "at": "double precision", "a/b": "integer", "t": "text", "dest": "text", "x": "real[]", "tiny": "numeric"},
        lambda r: "up" if r["a"] > 0.3 else ("it's é" if r["t"] == "x" else "down"),
        {"encoders": {"dest": "embedding", "a/b": "none"}},
    ),
    "image": (
        {"layers": [{"Conv2D": {"filters": 2, "kernel_size": 2}}, "Flatten", {"Dense": {"units": 1, "activation": "sigmoid"}}]},
        {"image": "real[]"}, lambda r: r["image"][0][0][0] > 0, {},
    ),
    "number": (LINE, {"a": "real", "b flag": "boolean"}, lambda r: 2 * r["a"] + r["b flag"], {}),
}  # fmt: skip


def made(columns: dict, rule) -> list[dict]:
    random = np.random.default_rng(5)
    rows = []
    for _ in range(ROWS):
        row = {
            "a": float(np.float32(random.normal())), "at": 1.6e9 + 1e4 * float(random.normal()), "a/b": int(random.integers(-3, 4)),
            "t": "xyz"[random.integers(3)], "dest": ["", "[UNK]", "$5\n", "ö"][random.integers(4)],
            "x": random.normal(size=3).astype(np.float32).tolist(), "tiny": float(random.normal()) * 1e-8,
            "image": random.normal(size=(4, 4, 1)).astype(np.float32).tolist(), "b flag": bool(random.integers(2)),
        }  # fmt: skip
        row = {name: row[name] for name in columns}
        rows.append({**row, "label": rule(row)})
    return rows


class Exported:
    """The runs of all cases, their archives, what SQL predicts and what plain Keras says, in the order of the rows."""

    def __init__(self, session: Session, folder: Path):
        self.runs, self.predicted, self.paths, work = {}, {}, {}, {}
        for case, (definition, columns, rule, options) in CASES.items():
            rows = made(columns, rule)
            label = {"mixed": "text", "image": "boolean", "number": "real"}[case]
            table = session.local({**columns, "label": label}, [list(row.values()) for row in rows])
            run = session.fit(table, session.model(definition), "label", list(columns), **ONE, **options)
            # Values that the run has not seen are encoded like any other unknown one.
            rows += [{**rows[0], "t": "new"}] if "t" in columns else []
            answers = session.rows(
                "select cerebro.predict(%s, r) from pg_catalog.jsonb_array_elements(%s) with ordinality e (r, n) order by n",
                run, json.dumps(rows),
            )  # fmt: skip
            self.predicted[case] = np.array(
                [[a["value"]] if "value" in a else list(a["probabilities"].values()) for (a,) in answers], np.float64
            )
            self.runs[case], self.paths[case] = run, folder / (case + ".keras")
            self.paths[case].write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
            work[str(self.paths[case])] = {name.replace("/", "_"): [row[name] for row in rows] for name in columns}
        (folder / "work.json").write_text(json.dumps(work))
        subprocess.run([sys.executable, "-I", "-c", OPEN, folder / "work.json", folder / "out.json"], cwd=folder, check=True)
        outputs = json.loads((folder / "out.json").read_text())
        self.outputs = {case: np.array(outputs[str(path)]) for case, path in self.paths.items()}

    def about(self, case: str) -> dict:
        with zipfile.ZipFile(self.paths[case]) as members:
            return json.loads(members.read("cerebro.json"))


@pytest.fixture(scope="module")
def exported(session, tmp_path_factory):
    return Exported(session, tmp_path_factory.mktemp("archives"))


# ---- export


@pytest.mark.parametrize("case", CASES)
def test_plain_keras_gives_what_sql_predicts(exported, case):
    names = exported.about(case)["classes"]
    expected = exported.outputs[case]
    if names:  # jsonb has an order of its own
        spelled = [str(name).lower() if isinstance(name, bool) else name for name in names]
        expected = expected[:, sorted(range(len(names)), key=lambda i: (len(spelled[i].encode()), spelled[i].encode()))]
    np.testing.assert_allclose(exported.predicted[case], expected, rtol=0, atol=1e-6)
    assert np.ptp(expected[:, 0]) > 0.01


def test_an_archive_says_where_it_comes_from_and_what_its_outputs_mean(exported):
    about = exported.about("mixed")
    assert (about["run"], about["trial"], about["label"]) == (exported.runs["mixed"], 0, "label")
    assert about["classes"] == ["down", "it's é", "up"]
    assert {f["name"]: f["input"] for f in about["features"]}["a/b"] == "a_b"


def test_no_file_stays_behind(cluster, exported):
    assert not list(Path("/tmp").glob("cerebro_export_*"))


def test_what_cannot_be_exported_is_told(session, exported):
    assert session.error("select cerebro.export_model('nobody')").sqlstate == "42704"
    assert session.error("select cerebro.export_model(%s, 7)", exported.runs["number"]).sqlstate == "42704"


# ---- aliases


@pytest.fixture(scope="module")
def line(session):
    """Two runs of two trials each, that differ in what they predict."""
    table = session.local(POINTS, points())
    model = session.model(LOGIT)
    search = {"space": {"learning_rate": [0.01, 1.0]}}
    return [session.fit(table, model, "label", **ONE, seed=seed, search=search) for seed in (1, 2)]


@pytest.fixture
def alias(session):
    """A name that no alias has, and that none has afterwards."""
    name = session.name("alias")
    yield name
    session.cluster.coordinator.execute("delete from cerebro_internal.promotion where alias = %s", [name])


ROW = '{"a": 1, "b": 0.5}'


def answer(session, name: str, *trial: int) -> str:
    return session.rows("select cerebro.predict(%s, %s" + ", %s" * len(trial) + ")::text", name, ROW, *trial)[0][0]


def stands(session, alias: str) -> list:
    return session.rows("select run, trial, previous_run, previous_trial from cerebro.alias where alias = %s", alias)


def test_an_alias_moves_and_moves_back(session, line, alias):
    first, second = line
    promoted = session.rows("select run, trial, previous_run, previous_trial from cerebro.promote(%s, %s)", first, alias)
    best = session.rows("select trial from cerebro.trial where run = %s order by metric limit 1", first)[0][0]
    assert promoted == stands(session, alias) == [(first, best, None, None)]
    assert answer(session, alias) == answer(session, first)
    session.rows("select cerebro.promote(%s, %s, 1 - %s)", second, alias, best)
    assert stands(session, alias) == [(second, 1 - best, first, best)]
    assert answer(session, alias) == answer(session, second, 1 - best) != answer(session, first)
    assert answer(session, alias, best) == answer(session, second, best)
    assert session.rows("select run, previous_run from cerebro.rollback(%s)", alias) == [(first, None)]
    assert answer(session, alias) == answer(session, first)
    history = session.rows("select run, trial, rolled_back_at is null from cerebro.promotion where alias = %s order by position", alias)
    assert history == [(first, best, True), (second, 1 - best, False)]
    assert session.error("select cerebro.rollback(%s)", alias).sqlstate == "55000"


def test_whole_tables_and_metrics_take_aliases_too(session, line, alias):
    session.rows("select cerebro.promote(%s, %s, 1)", line[0], alias)
    columns = points()
    table = session.local({"id": "integer", **POINTS}, {"id": np.arange(len(columns["a"])), **columns})
    predicted = session.schema + ".predicted"
    session.rows("select cerebro.predict_table(%s, %s::text::regclass, %s, '{id}')", alias, table.name, predicted)
    joined = "%s t join %s p using (id)" % (table.name, predicted)
    differ = "select * from " + joined + " where p.prediction::text <> cerebro.predict_class(%s, t, 1)"
    assert session.rows(differ, line[0]) == [] and session.rows("select count(*) from " + predicted) == [(60,)]
    judged = "select * from cerebro.evaluate(%s, %s::text::regclass, %s)"
    assert session.rows(judged, alias, table.name, "{}") == session.rows(judged, line[0], table.name, '{"trial": 1}')


def test_an_alias_may_name_what_another_one_stands_for(session, line, alias):
    session.rows("select cerebro.promote(%s, %s, 1)", line[0], alias)
    session.rows("select cerebro.promote(%s, %s)", alias, alias + "_2")
    assert stands(session, alias + "_2")[0][:2] == (line[0], 1)
    session.rows("select cerebro.drop_alias(%s)", alias + "_2")
    assert stands(session, alias + "_2") == []


def test_a_promotion_is_seen_by_others_at_commit_and_gone_with_a_rollback(session, line, alias):
    session.rows("select cerebro.promote(%s, %s)", line[0], alias)
    with session.cluster.connect() as other:
        with pytest.raises(ZeroDivisionError), other.transaction():
            other.execute("select cerebro.promote(%s, %s)", [line[1], alias])
            assert stands(session, alias)[0][0] == line[0]
            raise ZeroDivisionError
    assert stands(session, alias)[0][0] == line[0]


def test_a_concurrent_promotion_comes_after_the_one_that_it_waited_for(session, line, alias):
    with session.cluster.connect() as other:
        with other.transaction():
            other.execute("select cerebro.promote(%s, %s)", [line[0], alias])
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(session.rows, "select cerebro.promote(%s, %s)", line[1], alias)
                poll_until(lambda: session.cluster.coordinator.execute(
                    "select count(*) > 0 from pg_locks where not granted and pid = %s", [session.conn.info.backend_pid])[0][0])
                other.execute("commit")
                other.execute("begin")
                later.result()
    assert stands(session, alias)[0][::2] == (line[1], line[0])


def test_a_promoted_run_and_the_one_before_it_cannot_be_dropped_or_replaced(session, line, alias):
    first, second = line
    table, model = session.local(POINTS, points()), session.model(LOGIT)
    third = session.fit(table, model, "label", **ONE)
    for run in (first, second, third):
        session.rows("select cerebro.promote(%s, %s)", run, alias)
    for run in (second, third):
        error = session.error("select cerebro.drop_run(%s)", run)
        assert (error.sqlstate, error.message) == ("2BP01", 'run "%s" stands behind alias "%s"' % (run, alias))
        assert "drop_alias('%s')" % alias in error.hint
        assert session.refused(table, model, "label", run=run, **ONE, if_exists="replace").sqlstate == "2BP01"
    session.rows("select cerebro.drop_alias(%s)", alias)
    session.rows("select cerebro.drop_run(%s)", third)


def test_a_run_behind_the_alias_of_another_member_of_its_owner_cannot_be_dropped_or_replaced(session, line, alias, make_role):
    table, model = session.local(POINTS, points()), session.model(LOGIT)
    run = session.fit(table, model, "label", segments=1)
    holder, dropper = make_role(), make_role()
    with session.cluster.connect(holder) as holding, session.cluster.connect(dropper) as dropping:
        for role in (holder, dropper):
            session.cluster.coordinator.execute('grant "%s" to "%s"' % (session.role, role))

        def refusal() -> Refusal:
            with pytest.raises(psycopg.Error) as caught:
                dropping.execute("select cerebro.drop_run(%s)", [run])
            return Refusal.of(caught.value)

        try:
            for number, promoted in enumerate((run, line[0], line[1])):
                holding.execute("select cerebro.promote(%s, %s)", [promoted, alias])
                if number < 2:
                    error = refusal()
                    assert (error.sqlstate, error.message) == ("2BP01", 'run "%s" stands behind alias "%s"' % (run, alias))
                    assert '"%s"' % holder in error.detail and error.hint.startswith('As role "%s"' % holder)
                    assert session.refused(table, model, "label", run=run, segments=1, if_exists="replace") == error
            dropping.execute("select cerebro.drop_run(%s)", [run])  # what lies further back is history, whoever's it is
        finally:
            holding.execute("select cerebro.drop_alias(%s)", [alias])
    assert session.rows("select count(*) from cerebro.run where run = %s", run) == [(0,)]


def test_a_name_is_a_run_or_an_alias_never_both(session, line, alias):
    assert session.error("select cerebro.promote(%s, %s)", *line).sqlstate == "42710"
    session.rows("select cerebro.promote(%s, %s)", line[0], alias)
    refused = session.refused(session.local(POINTS, points()), session.model(LOGIT), "label", run=alias, **ONE)
    assert (refused.sqlstate, refused.message) == ("42710", 'an alias "%s" exists' % alias)


def test_what_cannot_be_promoted_or_rolled_back_is_told(session, line, alias):
    for call in ("promote('nobody', '%s')", "rollback('%s')", "drop_alias('%s')"):
        error = session.error("select cerebro." + call % alias)
        assert error.sqlstate == "42704" and error.hint
    assert session.error("select cerebro.promote(%s, ' ')", line[0]).sqlstate == "22004"


def test_a_run_that_is_dropped_meanwhile_is_not_promoted(session, alias):
    error = session.error("select cerebro_internal.promotion_add(-1, %s, 0)", alias)
    assert error.sqlstate == "42704" and error.hint


def test_aliases_are_each_roles_own(session, line, alias, make_role):
    session.rows("select cerebro.promote(%s, %s)", line[0], alias)
    with session.cluster.connect(make_role()) as stranger:
        assert stranger.execute("select count(*) from cerebro.alias where alias = %s", [alias]).fetchone() == (0,)
        with pytest.raises(psycopg.Error, match="does not exist"):
            stranger.execute("select cerebro.predict(%s, %s)", [alias, ROW])
        with pytest.raises(psycopg.Error, match="violates check option"):
            stranger.execute(
                "insert into cerebro_internal.visible_promotion (owner, alias, position, run_name, trial) values ('tester', 'x', 1, 'x', 0)"
            )


# ---- a run that begins from another one

MIXED = {"a": "real", "t": "text", "label": "text"}
WIDE = {"layers": [{"Dense": {"units": "$units", "activation": "relu"}}, {"Dropout": {"rate": "$rate"}}, {"Dense": {"units": "$classes"}}]}
STILL = {"learning_rate": 1e-20, "batch_size": 1000}  # a run that leaves its weights as they are


def mixed(session, count: int, *, texts: str = "xy", seed: int = 3):
    random = np.random.default_rng(seed)
    rows = [(float(random.normal(loc=seed)), texts[i % len(texts)], ["no", "yes"][i % 2]) for i in range(count)]
    return session.local(MIXED, rows)


@pytest.fixture(scope="module")
def nightly(session):
    """A run of a search over widths, its model and its table."""
    table, model = mixed(session, 40), session.model(WIDE)
    space = {"units": [3, 5], "rate": [0.5]}
    return session.fit(table, model, "label", ["a", "t"], **ONE, search={"space": space}), model, table


def test_a_run_begins_with_the_weights_and_the_encoding_of_an_earlier_one(session, nightly, alias):
    run, model, table = nightly
    session.rows("select cerebro.promote(%s, %s, 1)", run, alias)
    new = mixed(session, 30, texts="xyz", seed=9)  # another mean, and a text that the earlier run has not seen
    again = session.fit(new, model, "label", ["*"], **ONE, init_from=alias, **STILL)
    assert session.rows("select options -> 'init_from' from cerebro.run where run = %s", again) == [({"run": run, "trial": 1},)]
    ours, theirs = (outcome.states(session.cluster, name) for name in (again, run))
    ours, theirs = outcome.arrays(ours[0, 1]), outcome.arrays(theirs[1, 1])
    for name in (n for n in theirs if n.startswith("model/") and theirs[n].dtype == np.float32):
        np.testing.assert_array_equal(ours[name], theirs[name])
    encoders = dict(session.rows("select run, encoders from cerebro.run where run in (%s, %s)", run, again))
    assert encoders[again]["features"] == encoders[run]["features"]
    assert (encoders[run].pop("rows"), encoders[again].pop("rows")) == ({"train": 40, "validation": 0}, {"train": 30, "validation": 0})
    row = '{"a": 1, "t": "z"}'
    assert session.rows("select cerebro.predict(%s, %s) = cerebro.predict(%s, %s)", again, row, alias, row) == [(True,)]


def test_a_run_depends_on_no_other_once_it_has_begun(session, nightly):
    run, model, table = nightly
    first = session.fit(table, model, "label", ["a", "t"], **ONE, init_from={"run": run, "trial": 0})
    late = {**ONE, "init_from": first, "epochs": 2}
    whole = session.fit(table, model, "label", ["a", "t"], **late)
    begun = session.fit(table, model, "label", ["a", "t"], time_limit=1e-6, **late)
    assert session.rows("select count(*) from cerebro.visit where run = %s", begun) == [(0,)]
    session.rows("select cerebro.drop_run(%s)", first)
    session.cluster.coordinator.execute("update cerebro_internal.run set options = options - 'time_limit' where name = %s", [begun])
    session.rows("select cerebro.resume(%s)", begun)
    assert outcome.states(session.cluster, begun) == outcome.states(session.cluster, whole)


def test_a_search_may_vary_what_does_not_shape_the_weights(session, nightly):
    run, model, table = nightly
    space = {"rate": [0.1, 0.2], "learning_rate": [0.001]}
    again = session.fit(table, model, "label", ["a", "t"], **ONE, init_from=run, search={"space": space})
    assert session.rows("select count(*) from cerebro.trial where run = %s and state = 'done'", again) == [(2,)]


@pytest.mark.parametrize(
    "change, sqlstate, words",
    [
        ({"init_from": "nobody"}, "42704", "does not exist"),
        ({"init_from": {"run": "{run}", "trial": 9}}, "42704", "has no trial 9"),
        ({"init_from": {"run": "{run}", "epoch": 1}}, "22023", "wrong value"),
        ({"features": ["t", "a"]}, "22023", "trained on other features"),
        ({"features": ["a"]}, "22023", "trained on other features"),
        ({"model": {"layers": [{"Dense": {"units": 4}}, {"Dropout": {"rate": 0.5}}, {"Dense": {"units": 2}}]}}, "22023", "other weights"),
        ({"search": {"space": {"units": [3, 5]}}}, "22023", 'the search varies "units"'),
        ({"encoders": {"t": "embedding"}}, "22023", "other encoders"),
        ({"task": "regression"}, "22023", "another task"),
        ({"label": "t", "features": ["*"]}, "22023", "another label"),
        ({"labels": "maybe"}, "22000", "never seen"),
    ],
)  # fmt: skip
def test_what_does_not_fit_an_earlier_run_is_refused_before_it_begins(session, nightly, change, sqlstate, words):
    run, model, table = nightly
    change = json.loads(json.dumps(change).replace("{run}", run))
    if "model" in change:
        model = session.model(change.pop("model"))
    if "labels" in change:
        table = session.local(MIXED, [(1.0, "x", "no"), (2.0, "y", change.pop("labels"))])
    call = {"label": "label", "features": ["a", "t"], "init_from": run, **ONE, **change}
    refused = session.refused(table, model, call.pop("label"), call.pop("features"), **call)
    assert refused.sqlstate == sqlstate and words in refused.message and refused.hint


# ---- import

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
KEPT = 1e-30  # a learning rate that leaves weights as they are


def saved(model, folder: Path) -> bytes:
    model.save(folder / "model.keras")
    return (folder / "model.keras").read_bytes()


def weights(session, run: str) -> list[np.ndarray]:
    """The variables of the model of a run of one trial, in order."""
    arrays = outcome.arrays(max(outcome.states(session.cluster, run).items())[1])
    return [arrays[name] for name in sorted((n for n in arrays if n.startswith("model/")), key=lambda n: int(n[6:]))]


@pytest.fixture(scope="module")
def imported(session, tmp_path_factory):
    """A Functional model that is registered with its weights, one layer frozen, compiled and trained: (name, Keras model)."""
    import keras

    keras.utils.set_random_seed(4)
    x = keras.Input((2,), name="x")
    y = keras.layers.Dense(5, activation="relu", name="first", trainable=False)(x)
    y = keras.layers.BatchNormalization(name="norm")(y)
    y = keras.layers.Dropout(0.1, name="drop")(keras.layers.Add(name="twice")([y, y]))
    model = keras.Model(x, keras.layers.Dense(2, name="last")(y))
    model.compile("adam", "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 2)), verbose=0)
    name = session.name("imported")
    session.rows("select cerebro.import_model(%s, %s)", name, saved(model, tmp_path_factory.mktemp("imported")))
    return name, model


def plain(model) -> list[np.ndarray]:
    return [np.asarray(v) for v in model.variables if v.name != "seed_generator_state"]


def test_an_imported_model_is_trained_on_from_its_weights_its_frozen_layers_left_alone(session, imported):
    name, model = imported
    assert session.rows("select weights_bytes > 100 from cerebro.model where model = %s", name) == [(True,)]
    table = session.local(POINTS, points())
    kept = weights(session, session.fit(table, name, "label", **ONE, optimizer="sgd", learning_rate=KEPT))
    moving = {3, 4}  # mean and variance of the batch normalization follow the rows
    for number, (ours, theirs) in enumerate(zip([w for w in kept if w.dtype == np.float32], plain(model))):
        assert np.array_equal(ours, theirs) == (number - 1 not in moving), number
    trained = weights(session, session.fit(table, name, "label", **ONE, learning_rate=0.1))
    assert np.array_equal(trained[0], plain(model)[0]) and not np.array_equal(trained[-1], plain(model)[-1])


def test_a_new_head_goes_onto_a_part_of_an_imported_model(session, imported):
    name, model = imported
    base = {"Model": {"name": name, "until": "twice", "trainable": False}}
    head = session.model({"layers": [base, {"Dense": {"units": "$units", "activation": "relu"}}, {"Dense": {"units": "$classes"}}]})
    session.rows("select cerebro.create_model(%s, %s)", head + "_2", json.dumps({"layers": [{"Model": head}]}))
    table = session.local(POINTS, points())
    for built in (head, head + "_2"):
        run = session.fit(table, built, "label", **ONE, learning_rate=0.1, search={"space": {"units": [3]}})
        found = weights(session, run)
        for ours, theirs in zip(found, plain(model)[:6]):
            np.testing.assert_array_equal(ours, theirs)
        assert [w.shape for w in found[6:]] == [(5, 3), (3,), (3, 2), (2,)]
    # Neither the run nor the model depends on what they were built from.
    session.rows("select cerebro.drop_model(%s)", head)
    session.rows("select cerebro.drop_model(%s)", head + "_2")
    assert session.rows("select cerebro.predict_class(%s, %s) in ('true', 'false')", run, ROW) == [(True,)]


def test_an_exported_model_comes_back_as_its_user_defined_it(session, exported):
    run, columns = exported.runs["image"], CASES["image"][1]
    name = session.name("back")
    session.rows("select cerebro.import_model(%s, %s)", name, exported.paths["image"].read_bytes())
    rows = made(columns, CASES["image"][2])
    table = session.local({**columns, "label": "boolean"}, [list(row.values()) for row in rows])
    again = session.fit(table, name, "label", list(columns), **ONE, learning_rate=KEPT, optimizer="sgd")
    for ours, theirs in zip(weights(session, again), weights(session, run)):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_whose_input_does_not_fit_the_features_fails_its_trials(session, imported):
    told = session.refused(session.local(POINTS, points()), imported[0], "label", ["a"], **ONE).message
    assert "expects rows of shape [2], the features have shape [1]" in told


@pytest.mark.parametrize("entry, words", [
    ({"Model": {"name": "nobody"}}, "does not exist"),
    ({"Model": {"nam": "x"}}, 'unknown key "nam"'),
    ({"Model": {"name": "{name}", "until": "lats"}}, 'no layer "lats"'),
    ({"Model": {"name": "{name}", "trainable": "no"}}, '"trainable" has a wrong value'),
    ({"Model": 3}, "not a registered model"),
])  # fmt: skip
def test_what_cannot_be_built_upon_is_told(session, imported, entry, words):
    definition = json.dumps({"layers": [entry]}).replace("{name}", imported[0])
    error = session.error("select cerebro.create_model('x', %s)", definition)
    assert error.sqlstate in ("22023", "42704") and words in error.message and error.hint


def archive(**members: bytes | str) -> bytes:
    """A zip file of these members, `config` and `weights` standing for Keras' own names."""
    data = io.BytesIO()
    names = {"config": "config.json", "weights": "model.weights.h5"}
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(names.get(name, name), content)
    return data.getvalue()


def layered(*layers: dict) -> str:
    config = {"name": "m", "layers": [{"module": "keras.layers", "registered_name": None, **layer} for layer in layers]}
    return json.dumps({"module": "keras", "class_name": "Sequential", "config": config, "registered_name": "Sequential"})


DENSE = layered(
    {"class_name": "InputLayer", "config": {"batch_shape": [None, 2], "dtype": "float32", "name": "i"}},
    {"class_name": "Dense", "config": {"name": "d", "units": 3}},
)


def hdf5(fill) -> bytes:
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        fill(file)
    return data.getvalue()


LAMBDA = {"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__", "config": {"code": "4wEAAAA="}}}}
PICKLED = b"\x93NUMPY\x01\x00" + b"cos\nsystem\n(S'touch /tmp/pwned'\ntR."
MALICIOUS = {
    "Lambda": (dict(config=layered(LAMBDA), weights=b""), "22023", 'layer "Lambda" is not allowed'),
    "a module of somebody's": (
        dict(config=layered({"class_name": "Dense", "config": {"units": 1}, "module": "os"}), weights=b""), "22023", "of that module"),
    "a registered class": (
        dict(config=layered({"class_name": "Dense", "config": {"units": 1}, "registered_name": "evil>Dense"}), weights=b""),
        "22023", "registered class"),
    "a path out": ({"config": DENSE, "weights": b"", "../../../tmp/evil": b"x"}, "22023", "what Keras does not write"),
    "an absolute path": ({"config": DENSE, "weights": b"", "/etc/passwd": b"x"}, "22023", "what Keras does not write"),
    "a pickled npz": ({"config": DENSE, "model.weights.npz": PICKLED}, "22023", "what Keras does not write"),
    "a pickle for weights": (dict(config=DENSE, weights=PICKLED), "22023", "weights of the archive cannot be read"),
    "assets": ({"config": DENSE, "weights": b"", "assets/vocabulary.txt": b"x"}, "0A000", "files beside its weights"),
    "a bomb": (dict(config=b"[" + b"0," * 2**24 + b"0]", weights=b""), "0A000", "too large"),
    "no JSON": (dict(config=b"{", weights=b""), "22023", "not JSON"),
    "deep JSON": (dict(config=b"[" * 100_000, weights=b""), "22023", "nested too deeply"),
    "no weights": (dict(config=DENSE), "22023", "lacks model.weights.h5"),
    "weights in another file": (
        dict(config=DENSE, weights=hdf5(lambda f: f.__setitem__("layers/dense/vars", h5py.ExternalLink("/etc/passwd", "/")))),
        "22023", "cannot be read"),
    "weights in a raw file": (
        dict(config=DENSE, weights=hdf5(lambda f: f.create_dataset("layers/dense/vars/0", (2, 3), "f4", external="/etc/passwd"))),
        "22023", "cannot be read"),
    "packed weights": (
        dict(config=DENSE, weights=hdf5(lambda f: f.create_dataset("layers/dense/vars/0", (10**9,), "f4", compression="gzip"))),
        "22023", "cannot be read"),
    "weights of another shape": (
        dict(config=DENSE, weights=hdf5(lambda f: f.__setitem__("layers/dense/vars/0", np.zeros((9, 9), "f4")))),
        "22023", "cannot be built"),
    "a model for no memory": (
        dict(config=DENSE.replace('"units": 3', '"units": 1000000000000'), weights=hdf5(lambda f: None)),
        "22023", "must be a whole number from 1 to"),
}  # fmt: skip


@pytest.mark.parametrize("what", MALICIOUS)
def test_an_archive_runs_no_code_reads_no_file_and_takes_no_memory(session, what):
    members, sqlstate, words = MALICIOUS[what]
    error = session.error("select cerebro.import_model('evil', %s)", archive(**members))
    assert error.sqlstate == sqlstate and words in error.message and error.hint, error
    assert not Path("/tmp/pwned").exists() and not Path("/tmp/evil").exists()


def test_what_is_no_archive_is_refused(session):
    for data in (b"", b"PK", b"not a zip", archive(config=DENSE, weights=b"")[:-30]):
        assert session.error("select cerebro.import_model('evil', %s)", data).sqlstate == "22023"
    assert session.error("select cerebro.import_model('evil', null)").sqlstate == "22004"
