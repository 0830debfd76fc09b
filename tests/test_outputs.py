"""Labels of every form and models of several outputs, from fit to the exported archive: each answer against plain Keras."""

from __future__ import annotations

import json
import os
import zipfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from tests import outcome
from tests import requirements as requires
from tests.faults import cancelled

WARM = True
pytestmark = requires.segments(2)
COUNT = 70
SIZES = [40, 30]


def scaled(x: np.ndarray) -> np.ndarray:
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def loaded(session, run: str, path) -> keras.Model:
    """The exported archive, as plain Keras opens it."""
    path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
    return keras.models.load_model(path, safe_mode=True)


# ---- what applies to a row


class Many:
    """Tags by three sigmoids, the same by logits behind whole numbers, and a picture of 2 × 2 places."""

    def __init__(self, session):
        random = np.random.default_rng(8)
        self.x = random.normal(size=(COUNT, 4))
        self.tags = self.x @ random.normal(size=(4, 3)) > 0.3
        self.square = self.tags[:, [0, 1, 1, 2]].reshape(COUNT, 2, 2)
        rows = zip(range(COUNT), self.x.tolist(), self.tags.tolist(), self.tags.astype(int).tolist(), self.square.tolist())
        columns = {"row": "integer", "x": "float8[]", "tags": "boolean[]", "ones": "smallint[]", "square": "boolean[]"}
        self.table = session.sharded(columns, list(rows), SIZES)
        options = {
            "epochs": 4, "learning_rate": 0.05, "metrics": ["accuracy", "AUC", {"F1Score": {"average": "macro"}}, "Precision", "mae"],
        }  # fmt: skip
        sigmoids = {"layers": [{"Dense": {"units": "$classes", "activation": "sigmoid"}}]}
        deep = {"layers": [{"Dense": {"units": "$classes"}}, {"Reshape": {"target_shape": [2, 2]}}]}
        self.labels = {
            session.fit(self.table, session.model(model), label, ["x"], **options): (label, truth)
            for label, truth, model in (
                ("tags", self.tags, sigmoids), ("ones", self.tags, {"layers": [{"Dense": {"units": 3}}]}), ("square", self.square, deep)
            )
        }  # fmt: skip
        self.expected = {}
        for run, (_, truth) in self.labels.items():
            kernel, bias = outcome.weights(outcome.best(session.cluster, run, shards=2))
            logits = scaled(self.x) @ kernel + bias
            self.expected[run] = (1 / (1 + np.exp(-logits.astype(np.float64)))).reshape(truth.shape)


@pytest.fixture(scope="module")
def many(session):
    return Many(session)


def test_what_applies_is_predicted_row_by_row_by_table_and_by_the_archive(session, many, tmp_path):
    for run, expected in many.expected.items():
        label, _ = many.labels[run]
        applies = (expected > 0.5).astype(bool if label != "ones" else int).tolist()
        query = "select cerebro.predict(%s, t), cerebro.predict_class(%s, t), cerebro.predict_probabilities(%s, t) from {} t order by row"
        found = session.rows(query.format(many.table.name), run, run, run)
        np.testing.assert_allclose([answer["probabilities"] for answer, _, _ in found], expected, rtol=1e-4, atol=1e-5)
        assert [answer["class"] for answer, _, _ in found] == applies
        assert all(answer["probabilities"] == alone for answer, _, alone in found)
        type_ = {"tags": "boolean[]", "ones": "smallint[]", "square": "boolean[]"}[label]
        cast = "select v::%s from pg_catalog.unnest(%%s::text[]) v" % type_
        assert [row for (row,) in session.rows(cast, [text for _, text, _ in found])] == applies
        target = session.name("target")
        call = "select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}', '{\"probabilities\": true}')"
        session.conn.execute(call, [run, many.table.name, target])
        found = session.rows("select prediction, probability, probabilities, pg_typeof(prediction)::text from %s order by row" % target)
        assert [row for row, _, _, _ in found] == applies and {row[3] for row in found} == {type_}
        for place in (1, 2):
            np.testing.assert_allclose([row[place] for row in found], expected, rtol=1e-4, atol=1e-5)
        archive = loaded(session, run, tmp_path / (run + ".keras"))
        found = archive({"x": keras.ops.convert_to_tensor(many.x, "float64")}, training=False)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_what_applies_is_judged_as_keras_judges_it(session, many):
    for run, expected in many.expected.items():
        _, truth = many.labels[run]
        judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, many.table.name))
        y, p = truth.reshape(COUNT, -1).astype(np.float32), expected.reshape(COUNT, -1).astype(np.float32)
        known = {
            "loss": keras.losses.BinaryCrossentropy()(y, p), "accuracy": keras.metrics.BinaryAccuracy(), "AUC": keras.metrics.AUC(),
            "f1_score": keras.metrics.F1Score(average="macro", threshold=0.5), "Precision": keras.metrics.Precision(),
            "mae": np.abs(y - p).mean(),
        }  # fmt: skip
        for name, metric in known.items():
            if isinstance(metric, keras.Metric):
                metric.update_state(y, p)
                metric = metric.result()
            assert judged[name] == pytest.approx(float(metric), rel=1e-4), name
        assert judged["accuracy"] == pytest.approx(float(((p > 0.5) == (y == 1)).mean()))


def test_what_is_asked_of_other_labels_is_refused_of_several_that_apply(session, many):
    run = next(iter(many.labels))
    model = session.model({"layers": [{"Dense": {"units": "$classes"}}]})
    for call in ("confusion_matrix", "class_report", "residuals"):
        error = session.error("select * from cerebro.%s(%%s, %%s::text::regclass)" % call, run, many.table.name)
        assert error.sqlstate == "22023" and "evaluate" in error.hint
    assert session.error("select cerebro.predict_value(%s, array[1, 2, 3, 4])", run).sqlstate == "22023"
    for options, words in (
        ({"class_weight": "balanced"}, "class_weight"), ({"validation": {"fraction": 0.2, "stratify": True}}, "stratify"),
        ({"metrics": ["CategoricalAccuracy"]}, "any number applies"),
        ({"metrics": [{"MeanIoU": {"num_classes": 2}}]}, "any number applies"),
    ):  # fmt: skip
        error = session.refused(many.table, model, "tags", ["x"], **options)
        assert error.sqlstate == "22023" and words in error.message and error.hint, error


def test_whole_numbers_in_arrays_are_what_applies_unless_regression_is_asked_for(session):
    rows = [[[float(n), 1.0 - n], [n, 2 * n, 1], [n % 2, 1, int(n % 3 == 0)], [["a"], ["b"]][n % 2]] for n in range(8)]
    columns = {"x": "real[]", "y": "integer[]", "ones": "real[]", "t": "text[]"}
    table, line = session.sharded(columns, rows, [5, 3]), session.model({"layers": [{"Dense": {"units": 3}}]})
    error = session.refused(table, line, "y", ["x"])
    assert (error.sqlstate, error.message) == ("22000", 'label "y" holds numbers other than 0 and 1')
    assert error.detail.startswith("7 of 8 rows, such as 2;") and "regression" in error.hint
    run = session.fit(table, line, "y", ["x"], task="regression")
    assert session.rows("select encoders->'labels'->0->>'task', encoders->'labels'->0->'shape' from cerebro.run where run = %s", run) == [
        ("regression", [3])
    ]
    run = session.fit(table, line, "ones", ["x"], task="multi_label")
    assert session.rows("select cerebro.predict(%s, r)->'class' from %s r limit 1" % ("%s", table.name), run)[0][0][1] in (0, 1)
    assert session.refused(table, line, "t", ["x"]).sqlstate == "0A000"
    assert session.refused(table, line, "y", ["x"], task="classification").sqlstate == "0A000"
    fold = session.refused(table, line, "ones", ["x"], task="multi_labels")
    assert fold.sqlstate == "22023" and '"multi_label"' in fold.hint


# ---- several outputs

L = keras.layers
COLUMNS = {"row": "integer", "a": "float8", "b": "float8", "kind": "text", "size": "float8", "tags": "boolean[]", "w": "real"}
OUTPUTS = {"kind": "kind", "size": {"label": "size + 1", "task": "regression"}, "tags": "tags"}
METRICS = {"kind": ["acc", "AUC"], "tags": [{"F1Score": {"average": "macro"}}]}


def three(structure) -> dict:
    """A model of three outputs, in Keras' JSON."""
    x = keras.Input((2,))
    shared = L.Dropout(0.1)(L.Dense(8, activation="tanh")(x))
    kind, size = L.Dense(3, activation="softmax", name="kind")(shared), L.Dense(1, name="size")(shared)
    return json.loads(keras.Model(x, structure(size, L.Dense(2, name="tags")(shared), kind)).to_json())


STRUCTURES = {"list": lambda *y: list(y), "dict": lambda size, tags, kind: {"how_large": size, "tags": tags, "which": kind}}
KEYS = {"list": {"kind": "kind", "size": "size", "tags": "tags"}, "dict": {"kind": "which", "size": "how_large", "tags": "tags"}}


class Several:
    """One table, a model whose outputs are a list and one whose outputs are a dictionary, and what plain Keras makes of their weights."""

    def __init__(self, session):
        random = np.random.default_rng(12)
        a, b = random.normal(size=(2, COUNT))
        self.x = scaled(np.stack([a, b], 1))
        self.kind = (a > 0).astype(int) + (b > a)
        self.size, self.tags = 2 * a - b, np.stack([a > 0.2, b < 0], 1)
        spelled = [("cat", "dog", "eel")[k] for k in self.kind]
        self.weight = random.uniform(0, 2, COUNT).round(2)
        columns = (range(COUNT), a.tolist(), b.tolist(), spelled, self.size.tolist(), self.tags.tolist(), self.weight.tolist())
        self.table = session.sharded(COLUMNS, list(zip(*columns)), SIZES)
        self.session, self.options = session, {"epochs": 2, "order": "fixed", "metrics": METRICS, "loss_weights": {"size": 0.5}}
        self.models = {form: session.model(three(structure)) for form, structure in STRUCTURES.items()}
        self.runs = {form: self.fit(form, **self.options) for form in STRUCTURES}
        self.expected = {form: self.by_keras(form) for form in STRUCTURES}

    def fit(self, form: str = "list", **options) -> str:
        by_name = [key for key in ("metrics", "loss_weights") if key in options]
        named = {key: {KEYS[form][name]: value for name, value in options[key].items()} for key in by_name}
        outputs = {KEYS[form][name]: label for name, label in OUTPUTS.items()}
        return self.session.fit(self.table, self.models[form], None, ["a", "b"], outputs=outputs, **{**options, **named})

    def by_keras(self, form: str) -> dict[str, np.ndarray]:
        plain = keras.models.model_from_json(json.dumps(three(STRUCTURES[form])))
        for variable, value in zip(plain.variables, outcome.weights(outcome.best(self.session.cluster, self.runs[form], 2)), strict=True):
            variable.assign(value)
        y = plain(self.x, training=False)
        y = {name: y[key] for name, key in KEYS[form].items()} if form == "dict" else dict(zip(("size", "tags", "kind"), y))
        y = {name: np.asarray(value, np.float64) for name, value in y.items()}
        return {"kind": y["kind"], "size": y["size"][:, 0], "tags": 1 / (1 + np.exp(-y["tags"]))}

    def answers(self, query: str, run: str) -> list:
        return [found for (found,) in self.session.rows(query.format(self.table.name), run)]


@pytest.fixture(scope="module")
def several(session):
    return Several(session)


@pytest.mark.parametrize("form", STRUCTURES)
def test_several_outputs_are_predicted_row_by_row_by_table_and_by_the_archive(session, several, form, tmp_path):
    run, expected, keys = several.runs[form], several.expected[form], KEYS[form]
    classes = [("cat", "dog", "eel")[k] for k in expected["kind"].argmax(1)]
    applies = (expected["tags"] > 0.5).tolist()
    found = several.answers("select cerebro.predict(%s, r) from {} r order by row", run)
    assert all(set(answer) == set(keys.values()) for answer in found)
    assert [answer[keys["kind"]]["class"] for answer in found] == classes
    assert [answer[keys["tags"]]["class"] for answer in found] == applies
    near = {"rtol": 1e-4, "atol": 1e-5}
    by_class = [[answer[keys["kind"]]["probabilities"][name] for name in ("cat", "dog", "eel")] for answer in found]
    np.testing.assert_allclose(by_class, expected["kind"], **near)
    np.testing.assert_allclose([answer[keys["size"]]["value"] for answer in found], expected["size"], **near)
    one = "select cerebro.predict_{}(%s, r, output => '{}') from {{}} r order by row"
    np.testing.assert_allclose(several.answers(one.format("value", keys["size"]), run), expected["size"], **near)
    assert several.answers(one.format("class", keys["kind"]), run) == classes
    np.testing.assert_allclose(several.answers(one.format("probabilities", keys["tags"]), run), expected["tags"], **near)

    target = session.name("target")
    session.conn.execute("select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}')", [run, several.table.name, target])
    wanted = ("kind_prediction", "kind_probability", "size_prediction", "tags_prediction", "tags_probability")
    columns = ", ".join('"%s_%s"' % (keys[name], what) for name, what in (column.split("_") for column in wanted))
    found = list(zip(*session.rows("select %s from %s order by row" % (columns, target))))
    assert list(found[0]) == classes and list(found[3]) == applies
    for values, truth in ((found[1], expected["kind"].max(1)), (found[2], expected["size"]), (found[4], expected["tags"])):
        np.testing.assert_allclose(values, truth, **near)

    archive = loaded(session, run, tmp_path / "archive.keras")
    with zipfile.ZipFile(tmp_path / "archive.keras") as members:
        told = [output["name"] for output in json.loads(members.read("cerebro.json"))["outputs"]]
    assert told == (["size", "tags", "kind"] if form == "list" else sorted(keys.values()))
    rows = np.array(session.rows("select a, b from %s order by row" % several.table.name))
    y = archive({name: keras.ops.convert_to_tensor(rows[:, [n]], "float64") for n, name in enumerate("ab")}, training=False)
    y = {name: y[key] for name, key in keys.items()} if form == "dict" else dict(zip(("size", "tags", "kind"), y))
    for name, value in y.items():
        np.testing.assert_allclose(np.asarray(value).reshape(expected[name].shape), expected[name], **near)


def test_metrics_of_outputs_are_named_and_judged_as_keras_does(session, several):
    run, expected = several.runs["list"], several.expected["list"]
    ((history,),) = session.rows("select metrics from cerebro.epoch where run = %s and epoch = 2", run)
    names = {"loss", "kind_loss", "size_loss", "tags_loss", "kind_acc", "kind_AUC", "size_mae", "tags_f1_score"}
    assert set(history) == names
    judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, several.table.name))
    truth = several.size + 1
    of_kind = float(-np.log(expected["kind"][np.arange(COUNT), several.kind]).mean())
    of_tags = float(keras.losses.BinaryCrossentropy()(several.tags.astype(np.float32), expected["tags"].astype(np.float32)))
    of_size = float(((expected["size"] - truth) ** 2).mean())
    known = {
        "kind_loss": of_kind, "size_loss": of_size, "tags_loss": of_tags, "loss": of_kind + 0.5 * of_size + of_tags,
        "size_mae": float(np.abs(expected["size"] - truth).mean()), "kind_acc": float((expected["kind"].argmax(1) == several.kind).mean()),
    }  # fmt: skip
    assert {name: judged[name] for name in known} == pytest.approx(known, rel=1e-4) and set(judged) == names
    other = json.dumps({"metrics": {"kind": ["accuracy"], "tags": ["Recall"]}})
    judged = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass, %s)", run, several.table.name, other))
    assert judged["kind_accuracy"] == pytest.approx(known["kind_acc"]) and "tags_Recall" in judged and "size_mae" in judged


def test_one_of_several_outputs_is_diagnosed_by_its_name(session, several):
    run, expected, name = several.runs["dict"], several.expected["dict"], several.table.name
    call = "select * from cerebro.%s(%%s, %%s::text::regclass, %%s)"
    matrix = session.rows(call % "confusion_matrix", run, name, '{"output": "which"}')
    counts = {}
    for pair in zip(several.kind.tolist(), expected["kind"].argmax(1).tolist()):
        counts[pair] = counts.get(pair, 0) + 1
    assert matrix == [(("cat", "dog", "eel")[a], ("cat", "dog", "eel")[p], rows) for (a, p), rows in sorted(counts.items())]
    report = session.rows(call % "class_report", run, name, '{"output": "which"}')
    assert [(line[0], line[4]) for line in report] == [(k, int((several.kind == n).sum())) for n, k in enumerate(("cat", "dog", "eel"))]
    residuals = session.rows(call % "residuals", run, name, '{"output": "how_large", "quantiles": [0, 1]}')
    off = several.size + 1 - expected["size"]
    np.testing.assert_allclose([value for _, value, _ in residuals], [off.min(), off.max()], rtol=1e-4, atol=1e-5)
    lines = session.rows(call % "importance", run, name, '{"output": "how_large", "metric": "mae", "repeats": 2}')
    assert {line[:2] for line in lines} == {("a", "how_large_mae"), ("b", "how_large_mae")} and all(line[2] > 0 for line in lines)
    assert {line[1] for line in session.rows(call % "importance", run, name, "{}")} == {"loss"}


def test_what_does_not_say_which_output_is_meant_is_refused(session, several):
    run, name = several.runs["list"], several.table.name
    for call, values, words in (
        ("select cerebro.predict_class(%s, array[1, 2])", [run], 'output => \'kind\''),
        ("select cerebro.predict_class(%s, array[1, 2], output => 'kin')", [run], 'Did you mean "kind"'),
        ("select cerebro.predict_class(%s, array[1, 2], output => 'size')", [run], "predict_value"),
        ("select * from cerebro.confusion_matrix(%s, %s::text::regclass)", [run, name], '"output": "kind"'),
        ("select * from cerebro.residuals(%s, %s::text::regclass, '{\"output\": \"kind\"}')", [run, name], "confusion_matrix"),
        ("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"metrics\": [\"mae\"]}')", [run, name], "kind"),
        ("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"metrics\": {\"sizes\": [\"mae\"]}}')", [run, name], '"size"'),
    ):
        error = session.error(call, *values)
        assert error.sqlstate == "22023" and words in error.hint, error
    model, table = several.models["list"], several.table
    counted = json.dumps(three(STRUCTURES["list"])).replace('"units": 3', '"units": "$classes"')
    for label, options, words in (
        ("kind", {"outputs": OUTPUTS}, "exclude each other"), (None, {"outputs": {**OUTPUTS, "sort": "kind"}}, '"sort"'),
        (None, {"outputs": {"kind": "kind", "size": "size"}}, '"tags"'), ("kind", {}, "several outputs"),
        (None, {"outputs": OUTPUTS, "validation": {"fraction": 0.2, "stratify": True}}, "stratify"),
        (None, {"outputs": OUTPUTS, "validation": {"fraction": 0.2, "stratify": "size"}}, "quantity"),
        (None, {"outputs": OUTPUTS, "class_weight": {"size": "balanced"}}, "quantity"),
        (None, {"outputs": OUTPUTS, "class_weight": {"kind": {"cow": 1}}}, '"cow"'),
        (None, {"outputs": OUTPUTS, "metrics": {"size": ["AUC"]}}, "quantity"),
        (None, {"outputs": OUTPUTS, "rank_by": "val_kind_loss"}, "no rows are held out"),
        (None, {"outputs": OUTPUTS, "model": session.model(json.loads(counted))}, "of several outputs"),
    ):
        error = session.refused(table, options.pop("model", model), label, ["a", "b"], **options)
        assert error.sqlstate == "22023" and words in error.message, error
    assert session.refused(table, model, None, ["a", "b"], outputs={**OUTPUTS, "size": "sice"}).sqlstate == "42703"
    assert session.refused(table, session.model(), None, ["a", "b"]).sqlstate == "22004"


def test_runs_of_several_outputs_rank_stop_hold_out_and_skip_by_one_of_them(session, several):
    options = {
        "validation": {"fraction": 0.3, "stratify": "kind"}, "rank_by": "val_kind_accuracy", "metrics": {"kind": ["accuracy"]},
        "early_stopping": {"monitor": "val_size_loss", "patience": 1, "min_delta": 1000}, "epochs": 5, "sample_weight": "w",
        "class_weight": {"kind": {"cat": 3.0}},
    }  # fmt: skip
    run = several.fit(**options)
    assert session.rows("select rank_metric from cerebro.run where run = %s", run) == [("val_kind_accuracy",)]
    stopped = session.rows("select stopped, best_epoch is not null from cerebro.trial where run = %s", run)
    assert stopped == [("val_size_loss has not improved for 1 epoch", True)]
    ((encoders, label),) = session.rows("select encoders, label from cerebro.run where run = %s", run)
    kind, size, tags = encoders["labels"]
    kept = [n - int(0.3 * n + 0.5) for n in np.bincount(several.kind)]
    assert (kind["classes"], kind["counts"], kind["weights"], label) == (["cat", "dog", "eel"], kept, [3.0, 1.0, 1.0], None)
    assert "weights" not in size and (size["name"], tags["shape"]) == ("size + 1", [2])


def test_a_row_whose_labels_are_not_all_known_is_refused_or_skipped(session):
    rows = [[0.5, "p", 1.0], [1.5, None, 2.0], [2.5, "q", None], [3.5, "q", 4.0], [4.5, "p", 1.0]]
    table = session.sharded({"a": "real", "kind": "text", "size": "real"}, rows, [3, 2])
    x = keras.Input((1,))
    model = session.model(json.loads(keras.Model(x, [L.Dense(2, name="kind")(x), L.Dense(1, name="size")(x)]).to_json()))
    outputs = {"kind": "kind", "size": "size"}
    error = session.refused(table, model, None, ["a"], outputs=outputs)
    assert error.sqlstate == "22004" and 'Column "kind": 1 NULL' in error.detail and 'Column "size": 1 NULL' in error.detail
    run = session.fit(table, model, None, ["a"], outputs=outputs, nulls={"kind": "skip", "size": "skip"})
    ((plan,),) = session.rows("select shards from cerebro.run where run = %s", run)
    assert sum(stats["skipped"] for stats in plan["stats"]) == 2


def test_packed_interrupted_and_crowded_runs_of_several_outputs_give_the_same_bits(session, several):
    settings = {"outputs": OUTPUTS, "seed": 7, "validation": 0.25, "sample_weight": "w"}
    options = {**several.options, **settings, "class_weight": {"kind": "balanced"}}
    plain = several.fit(**{key: value for key, value in options.items() if key != "outputs"})
    expected = outcome.history(session.cluster, plain), outcome.states(session.cluster, plain)
    packed = session.name("packed")
    call = "select cerebro.pack(%s::text::regclass, %s, null, '{a,b}', %s)"
    session.conn.execute(call, [several.table.name, packed, json.dumps(settings)])
    of_pack = session.fit("%s.%s" % (session.schema, packed), several.models["list"], None, ["a", "b"], **options)
    statement, values = session.call(several.table, several.models["list"], None, ["a", "b"], **options)
    cancelled(session, session.cluster.node(2), values[0], "mid-visit", 2, statement, values)
    session.conn.execute("select cerebro.resume(%s)", [values[0]])
    crowded = several.fit(**{**{key: value for key, value in options.items() if key != "outputs"}, "memory": "1kB"})
    for run in (of_pack, values[0], crowded):
        history, states = outcome.history(session.cluster, run), outcome.states(session.cluster, run)
        assert [row[1:] for row in history] == [row[1:] for row in expected[0]] and states == expected[1], run
    assert session.rows("select sum((details ->> 'misses')::int) > 0 from cerebro.visit where run = %s", crowded) == [(True,)]


def test_trials_of_several_outputs_that_are_trained_as_one_end_where_each_does_alone(session, several):
    rates = [0.01 / (1 + k) for k in range(8)]  # so many are faster as one by far
    options = {**several.options, "batch_size": 5, "validation": 0.3}
    fused, alone = (several.fit(fuse=True, search={"space": {"learning_rate": some}}, **options) for some in (rates, rates[:1]))
    visits = session.rows("select trial, (details ->> 'fused')::boolean from cerebro.visit where run = %s", fused)
    assert {trial for trial, as_one in visits if as_one} == set(range(8))
    states, lone = (outcome.states(session.cluster, run) for run in (fused, alone))
    assert lone
    for key, blob in lone.items():
        one, other = outcome.arrays(states[key]), outcome.arrays(blob)
        for name in other:
            np.testing.assert_allclose(one[name], other[name], atol=1e-4, rtol=1e-4, err_msg=name)


def test_a_run_of_several_outputs_begins_from_another(session, several):
    earlier = several.runs["list"]
    statement, values = session.call(several.table, several.models["list"], None, ["a", "b"], outputs=OUTPUTS, init_from=earlier)
    session.conn.execute(statement, values)
    ((tasks, now),) = session.rows("select options -> 'outputs', encoders -> 'labels' from cerebro.run where run = %s", values[0])
    assert [output["task"] for output in tasks] == ["classification", "regression", "multi_label"]
    ((then,),) = session.rows("select encoders -> 'labels' from cerebro.run where run = %s", earlier)
    assert [label["name"] for label in now] == [label["name"] for label in then]
    error = session.refused(several.table, several.models["list"], None, ["a", "b"], outputs={**OUTPUTS, "size": "size"}, init_from=earlier)
    assert error.sqlstate == "22023" and "other outputs" in error.message


def test_a_single_output_may_be_named_by_the_option(session, several):
    run = session.fit(several.table, session.model(), None, ["a", "b"], outputs={"y": {"label": "kind"}})
    assert session.rows("select label, options -> 'outputs' from cerebro.run where run = %s", run) == [("kind", None)]
    assert session.rows("select count(cerebro.predict_class(%s, r)) from " + several.table.name + " r", run) == [(COUNT,)]
