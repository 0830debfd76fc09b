"""Predictions and evaluation in SQL, against plain Keras on the stored weights and encoders.

The reference applies the encoders and the state as docs/replay.md describes them, with numpy and Keras alone.
"""

from __future__ import annotations

import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import psycopg
import pytest

from tests import outcome
from tests import requirements as requires
from tests.session import LINE, POINTS, Refusal, Session, points

WARM = True
pytestmark = requires.segments(3)

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
HIDDEN = {"Dense": {"units": 8, "activation": "relu"}}
NUMBER = {"layers": [HIDDEN, {"Dense": {"units": 1}}]}
CLASSES = {"layers": [HIDDEN, {"BatchNormalization": {}}, {"Dense": {"units": "$classes", "activation": "softmax"}}]}
SIGMOID = {"layers": [HIDDEN, {"Dense": {"units": 1, "activation": "sigmoid"}}]}
LOGITS = {"layers": [HIDDEN, {"Dense": {"units": "$classes"}}]}

# name -> (model, columns, label, how a row's label comes from its features)
CASES = {
    "number": (NUMBER, {"a": "real", "b": "double precision"}, "double precision", lambda a, b: round(2 * a - b, 3)),
    "boolean": (SIGMOID, {"a": "real", "b": "double precision"}, "boolean", lambda a, b: a > b),
    "integer": (CLASSES, {"a": "real", "b": "double precision"}, "smallint", lambda a, b: (-5, 0, 30)[int(a > b) + int(a > 0)]),
    "text": (LOGITS, {"a": "real", "t": "text", "b": "numeric"}, "text",
             lambda a, t, b: "it's é" if t == "x" else ("up" if a > b else "down")),
    "array": (NUMBER, {"x": "real[]"}, "real", lambda x: sum(x)),
    "image": ({"layers": [{"Conv2D": {"filters": 2, "kernel_size": 2}}, "Flatten", {"Dense": {"units": "$classes"}}]},
              {"x": "real[]"}, "boolean", lambda x: x[0][0][0] > 0),
}  # fmt: skip
COUNT = 80


def made(case: str) -> tuple[dict, list]:
    """Columns and rows of a case; the same every time."""
    _, columns, label, rule = CASES[case]
    random = np.random.default_rng(11)
    rows = []
    for _ in range(COUNT):
        row = {"a": float(random.normal().__round__(3)), "b": float(random.normal().__round__(3)), "t": "xyz"[random.integers(3)]}
        row["x"] = random.normal(size=(4, 4, 1) if case == "image" else 3).round(3).tolist()
        features = [row[name] for name in columns]
        rows.append([*features, rule(*features)])
    return {**columns, "label": label}, rows


class Fitted:
    """A run and its table, and what plain Keras makes of them."""

    def __init__(self, session: Session, case: str):
        self.case, (definition, features, *_) = case, CASES[case]
        columns, self.rows = made(case)
        self.table, self.features = session.sharded(columns, self.rows), list(features)
        self.run = session.fit(
            self.table, session.model(definition), "label", self.features, epochs=2, validation=0.25, learning_rate=0.01
        )
        self.encoders, self.task = session.rows(
            "select encoders, encoders -> 'labels' -> 0 ->> 'task' from cerebro.run where run = %s", self.run
        )[0]
        self.classes = self.encoders["labels"][0].get("classes")
        self.state = outcome.best(session.cluster, self.run, shards=3)
        self.model = self._model(definition)

    def inputs(self) -> np.ndarray:
        """All rows as the user's model sees them: numbers, then one-hot codes."""
        numbers, codes = [], []
        for position, feature in enumerate(self.encoders["features"]):
            values = [row[position] for row in self.rows]
            if feature["kind"] == "text":
                places = [feature["vocabulary"].index(v) + 1 if v in feature["vocabulary"] else 0 for v in values]
                codes.append(np.eye(len(feature["vocabulary"]) + 1, dtype=np.float32)[places])
                continue
            column = np.array(values, np.float32 if CASES[self.case][1][feature["name"]].startswith("real") else None)
            column = ((column.astype(np.float64) - feature["mean"]) / feature["scale"]).astype(np.float32)
            numbers.append(column if column.ndim > 2 else column.reshape(len(values), -1))
        return numbers[0] if numbers[0].ndim > 2 else np.concatenate(numbers + codes, axis=1)

    def labels(self) -> np.ndarray:
        values = [row[-1] for row in self.rows]
        return np.array([self.classes.index(v) for v in values] if self.classes else values)

    def _model(self, definition: dict) -> keras.Model:
        layers = []
        for layer in definition["layers"]:
            name, config = (layer, {}) if isinstance(layer, str) else next(iter(layer.items()))
            config = {key: len(self.classes) if value == "$classes" else value for key, value in config.items()}
            layers.append(getattr(keras.layers, name)(**config))
        model = keras.Sequential([keras.Input(self.inputs().shape[1:]), *layers])
        for position, variable in enumerate(model.variables):
            variable.assign(self.state["model/%d" % position])
        return model

    def outputs(self) -> np.ndarray:
        """Values (rows,) or probabilities (rows, classes)."""
        y = np.asarray(self.model(self.inputs(), training=False))
        if self.classes is None:
            return y[:, 0]
        if y.shape[1] == 1:
            return np.concatenate([1 - y, y], axis=1)
        if CASES[self.case][0] is CLASSES:
            return y
        e = np.exp(y - y.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def spelled(self) -> list[str]:
        """The classes as PostgreSQL writes them."""
        return [str(c).lower() if isinstance(c, bool) else str(c) for c in self.classes]


@pytest.fixture(scope="module")
def fitted(session):
    """`fitted("boolean")`: the run of a case, trained once."""
    cache: dict[str, Fitted] = {}
    return lambda case: cache.get(case) or cache.setdefault(case, Fitted(session, case))


def in_order(fitted: Fitted, found: list) -> list:
    """Answers of a query over (features…, answer), put in the order of the case's rows."""
    assert len(found) == COUNT
    answers = {json.dumps(_as_stored(row)): row[-1] for row in found}
    keys = [json.dumps(_as_stored(row)) for row in fitted.rows]
    return [answers[key] for key in keys]


def _as_stored(row: list) -> list:
    return [v if isinstance(v, (str, list)) else float(v) for v in row[:-1]]


def over_table(session, fitted: Fitted, call: str) -> list:
    names = ", ".join(fitted.features)
    return in_order(fitted, session.rows("select %s, %s from %s r" % (names, call, fitted.table.name), *[fitted.run] * call.count("%s")))


# ---- equal to plain Keras


@pytest.mark.parametrize("case", ["number", "array"])
def test_value_of_each_row_equals_keras(session, fitted, case):
    f = fitted(case)
    np.testing.assert_allclose(over_table(session, f, "cerebro.predict_value(%s, r)"), f.outputs(), **CLOSE)


@pytest.mark.parametrize("case", ["boolean", "integer", "text", "image"])
def test_class_and_probabilities_of_each_row_equal_keras(session, fitted, case):
    f = fitted(case)
    expected = f.outputs()
    best = [f.spelled()[k] for k in expected.argmax(axis=1)]
    assert over_table(session, f, "cerebro.predict_class(%s, r)") == best
    found = over_table(session, f, "cerebro.predict_probabilities(%s, r)")
    assert [set(row) for row in found] == [set(f.spelled())] * COUNT
    np.testing.assert_allclose([[row[name] for name in f.spelled()] for row in found], expected, **CLOSE)
    whole = over_table(session, f, "cerebro.predict(%s, r)")
    assert [row["class"] for row in whole] == [f.classes[k] for k in expected.argmax(axis=1)]
    assert [row["probabilities"] for row in whole] == found
    assert len(set(best)) > 1, "a case where all rows get one class shows little"


@pytest.mark.parametrize("case", ["number", "boolean", "integer", "text", "array", "image"])
def test_evaluate_equals_keras_over_all_rows(session, fitted, case):
    f = fitted(case)
    outputs, labels = np.asarray(f.model(f.inputs(), training=False), np.float64), f.labels()
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", f.run, f.table.name))
    if f.classes is None:
        expected = {"loss": np.mean((outputs[:, 0] - labels) ** 2), "mae": np.mean(np.abs(outputs[:, 0] - labels))}
    else:
        p = f.outputs().astype(np.float64)[np.arange(COUNT), labels]
        expected = {"loss": -np.log(np.clip(p, 1e-7, 1)).mean(), "accuracy": np.mean(f.outputs().argmax(axis=1) == labels)}
    assert list(found) == list(expected)
    for name in expected:
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name


def test_evaluate_is_the_same_however_the_rows_lie(session, fitted):
    f = fitted("integer")
    columns, rows = made("integer")
    first = session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", f.run, f.table.name)
    for table, options in [
        (session.sharded(columns, rows, sizes=[COUNT, 0, 0]), {}),
        (session.sharded(columns, rows, sizes=[1, COUNT - 1], segments=[2, 3]), {"memory": 0.4}),
        (session.local(columns, rows), {"segments": 1}),
    ]:
        found = session.rows("select * from cerebro.evaluate(%s, %s::text::regclass, %s)", f.run, table.name, json.dumps(options))
        assert dict(found) == pytest.approx(dict(first), rel=1e-5)


def test_evaluate_skips_nulls_when_told(session, fitted):
    f = fitted("boolean")
    table = session.local({"a": "real", "b": "float8", "label": "boolean"}, [(None, 1, True), (1, 2, None), (3, 1, True)])
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass)", f.run, table.name)
    assert error.sqlstate == "22004" and "1 NULL" in error.detail
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"nulls\": \"skip\"}')", f.run, table.name))
    assert found["accuracy"] in (0, 1)


def test_evaluate_of_a_label_never_seen(session, fitted):
    table = session.local({"a": "real", "b": "float8", "label": "int"}, [(1, 1, 30), (1, 2, 31)])
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass)", fitted("integer").run, table.name)
    assert error.sqlstate == "22000" and error.message.endswith('label "label" has a value that the run has never seen')
    assert error.detail == "The value is 31."


def test_evaluate_of_a_table_without_the_columns(session, fitted):
    table = session.local({"a": "real", "label": "int"}, [(1, 1)])
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass)", fitted("integer").run, table.name)
    assert error.sqlstate == "42703" and '"b"' in error.message


def test_unknown_option_of_evaluate(session, fitted):
    f = fitted("integer")
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"trail\": 1}')", f.run, f.table.name)
    assert error == Refusal("22023", 'unknown option "trail"', None, 'Did you mean "trial"?')


# ---- the overloads

FORMS = [
    "array[0.5, -1]", "array[0.5, -1]::real[]", "array[0.5, -1]::numeric[]", "'{0.5,-1}'", "'{0.5,-1}'::text",
    "'[0.5, -1]'", "'{\"a\": 0.5, \"b\": -1}'", "'{\"b\": -1, \"a\": 0.5, \"other\": null}'", "'[0.5, -1]'::jsonb",
    "json_build_object('a', 0.5, 'b', -1)", "row_to_json(t)", "t", "(select u from (select -1 as b, 0.5 as a) u)",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_row_means_the_same(session, fitted, form):
    f = fitted("boolean")
    query = (
        "select cerebro.predict_class(%s, {0}), cerebro.predict_probabilities(%s, {0}), cerebro.predict(%s, {0})"
        " from (select 0.5 as a, -1 as b, 'x' as c) t"
    )
    assert session.rows(query.format(form), *[f.run] * 3) == session.rows(query.format(FORMS[0]), *[f.run] * 3)
    n = fitted("number")
    value = "select cerebro.predict_value(%s, {0}), cerebro.predict(%s, {0}) from (select 0.5 as a, -1 as b, 'x' as c) t"
    found = session.rows(value.format(form), n.run, n.run)[0]
    assert found == session.rows(value.format(FORMS[0]), n.run, n.run)[0]
    assert found[1] == {"value": found[0]}


@pytest.mark.parametrize("form", ["array[1, 2, 3]", "'{1,2,3}'", "'[1, 2, 3]'", "'[[1, 2, 3]]'", "'{\"x\": [1, 2, 3]}'", "t"])
def test_forms_of_an_array_feature(session, fitted, form):
    query = "select cerebro.predict_value(%s, {}) from (select array[1, 2, 3] as x) t"
    run = fitted("array").run
    assert session.rows(query.format(form), run) == session.rows(query.format("array[1, 2, 3]"), run)


def test_array_of_three_dimensions(session, fitted):
    f = fitted("image")
    image = np.array(f.rows[0][0]).tolist()
    forms = ["array%s" % image, "'%s'" % json.dumps(image), "'%s'" % json.dumps(image).replace("[", "{").replace("]", "}")]
    found = [session.rows("select cerebro.predict_class(%%s, %s)" % form, f.run) for form in forms]
    assert found[0] == found[1] == found[2]


def test_text_features_by_name_and_in_order(session, fitted):
    f = fitted("text")
    found = session.rows(
        "select cerebro.predict_class(%s, '{\"a\": 1, \"t\": \"x\", \"b\": 2}'), cerebro.predict_class(%s, '[1, \"x\", 2]')", f.run, f.run
    )
    assert found[0][0] == found[0][1]
    unseen = session.rows("select cerebro.predict_class(%s, '[1, \"never seen\", 2]')", f.run)
    assert unseen[0][0] in f.spelled()


@pytest.mark.parametrize(
    "row, sqlstate, message",
    [
        ("null", "22004", "argument row is null or blank"),
        ("null::real[]", "22004", "argument row is null or blank"),
        ("array[1, null]", "22004", 'feature "b" is null'),
        ("'{1,NULL}'", "22004", 'feature "b" is null'),
        ("'{1,NaN}'", "22004", 'feature "b" is NULL, NaN or infinite'),
        ("array[1, 'NaN'::float8]", "22004", 'feature "b" is NULL, NaN or infinite'),
        ("array[1, 'Infinity'::float8]", "22004", 'feature "b" is NULL, NaN or infinite'),
        ("array[1]", "22023", "the row has 1 value, the run has 2 features"),
        ("array[1, 2, 3]", "22023", "the row has 3 values, the run has 2 features"),
        ("'{\"a\": 1}'", "22023", 'the row has no feature "b"'),
        ("'{\"a\": 1, \"b\": \"x\"}'", "22023", 'feature "b" has a value of the wrong type'),
        ("'{\"a\": 1, \"b\": [1]}'", "22023", 'feature "b" has the wrong shape'),
        ("'what'", "22023", "argument row is neither JSON nor an array"),
        ("''", "22004", "argument row is null or blank"),
    ],
)
def test_row_that_makes_no_sense(session, fitted, row, sqlstate, message):
    error = session.error("select cerebro.predict(%%s, %s)" % row, fitted("boolean").run)
    assert (error.sqlstate, error.message) == (sqlstate, message)
    assert error.hint or error.detail


@pytest.mark.parametrize(
    "case, call, hint",
    [
        ("boolean", "predict_value", "cerebro.predict_class"),
        ("number", "predict_class", "cerebro.predict_value"),
        ("number", "predict_probabilities", "cerebro.predict_value"),
    ],
)
def test_function_of_the_other_task(session, fitted, case, call, hint):
    error = session.error("select cerebro.%s(%%s, array[1, 2])" % call, fitted(case).run)
    assert error.sqlstate == "22023" and hint in error.hint


def test_other_trial(session):
    table = session.sharded(POINTS, points())
    run = session.fit(table, session.model(SIGMOID), "label", search={"space": {"learning_rate": [0.001, 0.3]}})
    query = "select cerebro.predict_probabilities(%s, array[1, -1], trial => {}) ->> 'true'"
    first, second, best = (float(session.rows(query.format(t), run)[0][0]) for t in ("0", "1", "null"))
    assert first != second and best in (first, second)
    error = session.error(query.format(7), run)
    assert (error.sqlstate, error.message) == ("42704", 'run "%s" has no trial 7' % run)


def test_model_that_diverged_gives_null_and_no_class(session):
    values, table = points(), {**POINTS, "number": "double precision"}
    deep = {"layers": [{"Dense": {"units": 8}}] * 4 + [{"Dense": {"units": "$classes"}}]}
    table = session.sharded(table, {**values, "number": values["a"] * 1e30})

    def diverged(*arguments, **options):
        run = session.name()
        with pytest.raises(psycopg.Error, match="diverged"):
            session.fit(table, *arguments, run=run, optimizer="sgd", learning_rate=1000, epochs=2, **options)
        return run

    run = diverged(session.model(LINE), "number", ["a", "b"])
    row = "array[1, -1]"
    assert session.rows("select cerebro.predict(%%s, %s)" % row, run) == [({"value": None},)]
    assert not np.isfinite(session.rows("select cerebro.predict_value(%%s, %s)" % row, run)[0][0])
    run = diverged(session.model(deep), "label", ["a", "b"], batch_size=2)
    unknown = {"false": None, "true": None}
    assert session.rows("select cerebro.predict_probabilities(%%s, %s)" % row, run) == [(unknown,)]
    assert session.rows("select cerebro.predict(%%s, %s)" % row, run) == [({"class": None, "probabilities": unknown},)]
    error = session.error("select cerebro.predict_class(%%s, %s)" % row, run)
    assert (error.sqlstate, error.message) == ("55000", 'the model of run "%s" gives NaN' % run)
    assert "cerebro.trial" in error.hint and session.rows(error.hint.split(": ")[1].rstrip(";"))


def test_padded_text_is_predicted_as_it_was_trained(session):
    rows = [("p" if i % 2 else "q", i % 2 == 1) for i in range(60)]
    table = session.local({"c": "char(5)", "label": "boolean"}, rows)
    run = session.fit(table, session.model(LOGITS), "label", ["c"], epochs=1)
    query = "select distinct cerebro.predict_probabilities(%%s, %s) ->> 'true' from %s t where label"
    ways = [query % (given, table.name) for given in ("t", "array[c]", "json_build_object('c', c)")]
    assert len({session.rows(way, run)[0] for way in ways}) == 1
    assert session.rows(query.replace("where", "where not") % ("t", table.name), run) != session.rows(ways[0], run)


def test_whole_numbers_as_classes_are_spelled_as_the_column_spells_them(session):
    rows = [(i / 60, i % 2 + 1) for i in range(60)]
    for type_ in ("numeric", "double precision", "real"):
        table = session.local({"a": "real", "label": type_}, rows)
        run = session.fit(table, session.model(LOGITS), "label", ["a"], task="classification")
        assert session.rows("select distinct label::text from %s order by 1" % table.name) == [("1",), ("2",)]
        answer, class_ = session.rows("select cerebro.predict(%s, 0.5), cerebro.predict_class(%s, 0.5)", run, run)[0]
        assert sorted(answer["probabilities"]) == ["1", "2"] and class_ in ("1", "2") and str(answer["class"]) == class_


def test_replaced_run_is_noticed_in_the_same_session(session):
    table, model = session.sharded(POINTS, points()), session.model(SIGMOID)
    run = session.fit(table, model, "label")
    query = "select cerebro.predict_probabilities(%s, array[1, -1]) ->> 'true'"
    before = session.rows(query, run)
    session.fit(table, model, "label", run=run, if_exists="replace", epochs=3, learning_rate=0.1)
    assert session.rows(query, run) != before


def test_dropped_run_is_noticed_in_the_same_message(session):
    run = session.fit(session.sharded(POINTS, points()), session.model(SIGMOID), "label")
    row = "select cerebro.predict_class('%s', array[1, -1])" % run
    with pytest.raises(psycopg.errors.UndefinedObject, match='run "%s" does not exist' % run):
        session.conn.execute("%s; select cerebro.drop_run('%s'); %s" % (row, run, row))


# ---- in queries


@pytest.fixture(scope="module")
def big(session):
    """A local table that planners give to parallel workers."""
    table = session.local({**POINTS, "id": "int"}, {**points(400), "id": np.arange(400)})
    session.conn.execute("alter table %s set (parallel_workers = 2)" % table.name)
    return table


def test_in_where_order_by_and_limit(session, fitted, big):
    run = fitted("boolean").run
    all_rows = session.rows(
        "select id, cerebro.predict_class(%%s, t), (cerebro.predict_probabilities(%%s, t) ->> 'true')::float8"
        " from %s t" % big.name, run, run
    )
    top = session.rows(
        "select id from %s t where cerebro.predict_class(%%s, t) = 'true'"
        " order by (cerebro.predict_probabilities(%%s, t) ->> 'true')::float8 desc, id limit 5" % big.name, run, run
    )  # fmt: skip
    ranked = sorted((row for row in all_rows if row[1] == "true"), key=lambda row: (-row[2], row[0]))
    assert [number for (number,) in top] == [row[0] for row in ranked[:5]]
    grouped = session.rows("select cerebro.predict_class(%%s, t), count(*)::int from %s t group by 1" % big.name, run)
    assert dict(grouped) == {c: sum(row[1] == c for row in all_rows) for c in {row[1] for row in all_rows}}


PARALLEL = {
    "parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0",
    "max_parallel_workers_per_gather": "2",
}  # fmt: skip


def test_in_a_query_that_could_have_parallel_workers(session, fitted, big):
    """TensorFlow starts in the session alone, and the session's own SQL could not run while workers do."""
    run = fitted("boolean").run
    query = "select id, cerebro.predict_class('%s', t) from %s t where a > -3" % (run, big.name)
    expected = sorted(session.rows(query))
    with session.conn.transaction():
        for name, value in PARALLEL.items():
            session.conn.execute("set local %s = %s" % (name, value))
        assert any("Gather" in line for (line,) in session.rows("explain " + query.replace("cerebro.predict_class('%s', t)" % run, "a")))
        assert not any("Gather" in line for (line,) in session.rows("explain " + query))
        assert sorted(session.rows(query)) == expected
        inner = "select id from %s where a > -3" % big.name
        found = session.rows("select id, cerebro.predict_class('%s', t) from %s t where id in (%s)" % (run, big.name, inner))
        assert sorted(found) == expected


def test_planner_filters_before_it_predicts(session, big):
    """A prediction costs more than any other condition, so that it comes last; a run that fails shows when it is called."""
    query = "select count(*) from %s t where cerebro.predict_class('no such run', t) = 'x' and id < 0" % big.name
    assert session.rows(query) == [(0,)]


def test_explain_does_not_call_it(session, cluster, big):
    with cluster.connect() as connection:
        for call in ("predict", "predict_class", "predict_value", "predict_probabilities"):
            for row in ("array[1, 2]", "'{1,2}'", "t"):
                connection.execute("explain (verbose) select cerebro.%s('no such run', %s) from %s t" % (call, row, big.name))
        assert "libtensorflow" not in open("/proc/%d/maps" % connection.info.backend_pid).read()


def test_marks_of_the_functions(session):
    found = session.rows(
        "select distinct provolatile::text, proparallel::text, procost from pg_proc"
        " where proname like 'predict%' and proname <> 'predict_table'"
        " and pronamespace in ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
    )
    assert found == [("v", "u", 10000.0)]


@pytest.mark.parametrize("order", ["compiled first", "prediction first"])
def test_query_that_jit_compiles_in_a_session_that_predicts(cluster, session, fitted, order):
    """The server's LLVM and TensorFlow's have the same symbols."""
    run = fitted("boolean").run
    compiled = "select sum(i * 2.0 + sqrt(i)) from generate_series(1, 1000) i"
    predicted = "select cerebro.predict_class('%s', array[1, 2])" % run
    with cluster.connect() as connection:
        for name in ("jit_above_cost", "jit_inline_above_cost", "jit_optimize_above_cost"):
            connection.execute("set %s = 0" % name)
        if connection.execute("select pg_jit_available()").fetchone() != (True,):
            pytest.skip("this server has no JIT")
        for query in [compiled, predicted, compiled] if order == "compiled first" else [predicted, compiled, predicted]:
            connection.execute(query)
        assert any("JIT" in line for (line,) in connection.execute("explain analyze " + compiled))


def test_fit_and_predict_in_one_transaction_of_another_session(cluster, session, fitted):
    """The prediction of a run needs nothing of the session that trained it."""
    run = fitted("number").run
    with cluster.connect(autocommit=False) as connection:
        row = connection.execute("select cerebro.predict_value(%s, array[1, 2])", [run]).fetchone()
        connection.execute("savepoint s")
        with pytest.raises(psycopg.Error):
            connection.execute("select cerebro.predict_value(%s, array[1])", [run])
        connection.execute("rollback to s")
        assert connection.execute("select cerebro.predict_value(%s, array[1, 2])", [run]).fetchone() == row
