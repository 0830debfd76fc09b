"""Columns of every type, from fit to the exported archive: each answer against numpy on the stored weights.

The references encode rows from Python's own values, as docs/replay.md describes it; nothing of the package encodes them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import uuid

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from tests import outcome
from tests import requirements as requires
from tests.answers import PREDICT_TABLE, assert_evaluated, assert_predicted, assert_table_predicted
from tests.outcome import spelled
from tests.session import LINE, LOGIT

WARM = True
pytestmark = requires.segments(3)

COUNT = 90
UTC = dt.timezone.utc

# column -> SQL type; {schema} is filled in
TYPES = {
    "born": "date", "at": "timestamptz", "seen": "timestamp", "opens": "time", "shuts": "timetz", "took": "interval",
    "epoch": "double precision",
    "age": "{schema}.grown", "pair": "{schema}.pair", "marks": "{schema}.grown[]", "mood": "{schema}.mood", "key": "uuid",
    "alias": "name", "id": "bigint", "code": "smallint", "flag": "boolean", "day": "date",
}  # fmt: skip
ENCODERS = {
    "id": {"embedding": {"dim": 3}}, "code": "one_hot", "flag": "one_hot", "day": "one_hot", "key": {"embedding": {"dim": 2}},
    "took": "minmax", "marks": "minmax", "age": {"bucketize": {"buckets": 5}},
    "seen": {"bucketize": {"buckets": 3, "as": {"embedding": {"dim": 2}}}},
    "epoch": {"bucketize": {"boundaries": [1.70005e9, 1.70010001e9]}},
}  # fmt: skip


def made() -> list[dict]:
    """Rows by column, in Python's own values."""
    random = np.random.default_rng(3)
    keys = [str(uuid.UUID(int=int(n))) for n in random.integers(1, 2**62, 5)]
    rows = []
    for number in range(COUNT):
        second = int(random.integers(0, 10**6))
        rows.append(
            {
                "born": dt.date(1960, 1, 1) + dt.timedelta(int(random.integers(0, 20000))),
                "at": dt.datetime(2024, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=second),
                "seen": dt.datetime(2024, 1, 1) + dt.timedelta(seconds=second, microseconds=number),
                "opens": dt.time(int(random.integers(0, 24)), int(random.integers(0, 60)), 30),
                "shuts": dt.time(second % 24, 15, tzinfo=dt.timezone(dt.timedelta(hours=second % 5 - 2))),
                "took": dt.timedelta(seconds=float(random.integers(1, 10**5))),
                "epoch": 1.7e9 + second / 4, "age": int(random.integers(1, 99)),
                "pair": (random.integers(-99, 99, 2) / 8).tolist(), "marks": random.integers(1, 9, 3).tolist(),
                "mood": ("glad", "sad")[random.integers(2)], "key": keys[random.integers(5)], "alias": "ab"[random.integers(2)],
                # Neighbours that a double does not tell apart.
                "id": 2**60 + int(random.integers(0, 4)), "code": (10, 20, 30)[random.integers(3)], "flag": bool(random.integers(2)),
                "day": dt.date(2024, 2, 28 + int(random.integers(2))),
            }
        )  # fmt: skip
        rows[-1]["label"] = ("up", "down")[rows[-1]["id"] % 2]
    return rows


def number(value) -> list[float]:
    """What a scalar or an array of a row is as float64."""
    if isinstance(value, dt.timedelta):
        return [value.total_seconds()]
    if isinstance(value, dt.datetime):
        return [value.replace(tzinfo=UTC).timestamp()]
    if isinstance(value, dt.date):
        return [(value - dt.date(1970, 1, 1)).days * 86400.0]
    if isinstance(value, dt.time):
        east = value.utcoffset() or dt.timedelta()
        return [value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6 - east.total_seconds()]
    return [float(item) for item in value] if isinstance(value, list) else [float(value)]


def exported(session, run: str, folder) -> keras.Model:
    """The archive of a run, opened by Keras alone."""
    path = folder / (run + ".keras")
    path.write_bytes(session.rows("select cerebro.export_model(%s)", run)[0][0])
    return keras.models.load_model(path, safe_mode=True)


def cuts(name: str, values: np.ndarray) -> list[float]:
    """Where the buckets of a column begin."""
    settings = ENCODERS[name]["bucketize"]
    if "boundaries" in settings:
        return settings["boundaries"]
    shares = [k / settings["buckets"] for k in range(1, settings["buckets"])]
    return [min(v for v in values if (values < v).mean() >= share) for share in shares]


class Fitted:
    """A run over columns of all types, and what numpy makes of its weights."""

    def __init__(self, session):
        self.rows, schema = made(), session.schema
        for node in session.cluster.nodes:
            node.execute(
                "set role tester; set search_path = {0}; create type mood as enum ('sad', 'glad'); create domain whole as integer;"
                " create domain grown as whole check (value > 0); create domain pair as real[];"
                " grant usage on type mood, whole, grown, pair to public".format(schema)
            )
        columns = {name: type_.format(schema=schema) for name, type_ in TYPES.items()}
        columns.update(label="text", row="integer")
        self.features = list(TYPES)
        lines = [[{"mood": spelled}.get(k, lambda v: v)(v) for k, v in row.items()] + [n] for n, row in enumerate(self.rows)]
        self.table = session.sharded(columns, lines, [30, 45, 15])
        self.run = session.fit(
            self.table, session.model(LOGIT), "label", self.features, epochs=2, learning_rate=0.05, encoders=ENCODERS, order="fixed"
        )
        self.encoders = session.rows("select encoders from cerebro.run where run = %s", self.run)[0][0]
        self.weights = outcome.weights(outcome.best(session.cluster, self.run, shards=3))
        self.probabilities = self._probabilities()

    def _probabilities(self) -> np.ndarray:
        """Softmax of a dense layer over standardized numbers, then categories, in feature order."""
        weights, numbers, categories = list(self.weights), [], []
        for name in self.features:
            values, encoder = [row[name] for row in self.rows], ENCODERS.get(name)
            if name in ("mood", "alias") or encoder == "one_hot" or name in ("id", "key"):
                texts = [spelled(value) for value in values]
                codes, size = [sorted(set(texts)).index(text) + 1 for text in texts], len(set(texts)) + 1
                categories.append((weights.pop(0) if isinstance(encoder, dict) else np.eye(size))[codes])
                continue
            column = np.array([number(value) for value in values])
            if isinstance(encoder, dict):
                bounds = cuts(name, column[:, 0])
                codes = [sum(value >= bound for bound in bounds) for value in column[:, 0]]
                assert set(codes) == set(range(len(bounds) + 1)), "every bucket has rows"
                categories.append((weights.pop(0) if "as" in encoder["bucketize"] else np.eye(len(bounds) + 1))[codes])
                continue
            low, width = column.mean(axis=0), column.std(axis=0)
            if encoder == "minmax":
                low, width = column.min(axis=0), column.max(axis=0) - column.min(axis=0)
            numbers.append(((column - low) / width).astype(np.float32))
        kernel, bias = weights
        return outcome.softmax(np.concatenate(numbers + categories, axis=1) @ kernel.astype(np.float64) + bias)


@pytest.fixture(scope="module")
def fitted(session):
    return Fitted(session)


def test_statistics_and_vocabularies_are_those_of_the_values(fitted):
    for feature in fitted.encoders["features"]:
        values = [row[feature["name"]] for row in fitted.rows]
        if "vocabulary" in feature:
            assert feature["vocabulary"] == sorted({spelled(value) for value in values})
            continue
        column = np.array([number(value) for value in values])
        if "boundaries" in feature:
            assert feature["boundaries"] == cuts(feature["name"], column[:, 0])
        elif feature["encoder"] == "minmax":
            assert (feature["min"], feature["scale"]) == (column.min(axis=0).tolist(), np.ptp(column, axis=0).tolist())
        else:
            np.testing.assert_allclose(feature["mean"], column.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(feature["scale"], column.std(axis=0), rtol=1e-8)
    types = {feature["name"]: feature["type"] for feature in fitted.encoders["features"]}
    assert (types["age"], types["pair"], types["marks"], types["mood"]) == ("integer", "real[]", "integer[]", "enum")


def test_predict_of_each_row_is_what_numpy_says(session, fitted):
    assert_predicted(session, fitted)


def test_predict_table_is_what_numpy_says(session, fitted):
    assert_table_predicted(session, fitted)


def test_evaluate_is_what_numpy_says(session, fitted):
    assert_evaluated(session, fitted)


def test_the_archive_takes_each_column_as_it_is_and_says_what_numpy_says(session, fitted, tmp_path):
    model = exported(session, fitted.run, tmp_path)
    dtypes = {tensor.name: tensor.dtype for tensor in model.inputs}
    assert [dtypes[name] for name in ("born", "mood", "id", "code", "flag", "day")] == [
        "float64", "string", "int64", "int64", "bool", "string",
    ]  # fmt: skip
    inputs = {}
    for name, dtype in dtypes.items():
        values = [row[name] for row in fitted.rows]
        values = [number(v) for v in values] if dtype == "float64" else [[spelled(v) if dtype == "string" else v] for v in values]
        inputs[name] = keras.ops.convert_to_tensor(np.array(values), dtype)
    np.testing.assert_allclose(np.asarray(model(inputs)), fitted.probabilities, rtol=2e-5, atol=1e-6)


def test_whatever_postgresql_takes_for_a_value_predict_takes(session, fitted):
    row = {**{name: spelled(value) for name, value in fitted.rows[0].items()}, "pair": [1, 2], "marks": [1, 2, 3]}
    row.update({name: fitted.rows[0][name] for name in ("epoch", "age", "id", "code", "flag")})
    row.update(born="2024-02-29", at="2024-01-01 12:00+00", took="90 seconds", opens="13:30", shuts="13:30+02")

    def answer(**changes):
        return session.rows("select cerebro.predict_probabilities(%s, %s::jsonb)", fitted.run, json.dumps({**row, **changes}))

    for changes in (
        {"born": "Feb 29, 2024"}, {"born": "20240229"}, {"at": "2024-01-01T14:00:00+02:00"}, {"at": "Jan 1 2024 07:00 EST"},
        {"took": "1 min 30 s"}, {"took": "PT1M30S"}, {"opens": "01:30 PM"}, {"shuts": "14:30+03"}, {"key": "{%s}" % row["key"].upper()},
        {"code": float(row["code"])}, {"day": row["day"].replace("-", "")},
    ):  # fmt: skip
        assert answer(**changes) == answer(), changes
    assert answer(id=row["id"] + 1) != answer() and answer(id=2**60 - 1) == answer(id=5), "ids keep every digit; unseen ones are one"
    for changes, words in (
        ({"born": "2024-02-30"}, 'feature "born": date/time field value out of range: "2024-02-30"'),
        ({"key": "x"}, 'feature "key": invalid input syntax for type uuid: "x"'),
        ({"took": 7}, 'feature "took" has a value of the wrong type'),
        ({"id": 1.5}, 'feature "id" has a value of the wrong type'),
        ({"flag": "yes"}, 'feature "flag" has a value of the wrong type'),
    ):
        error = session.error("select cerebro.predict(%s, %s::jsonb)", fitted.run, json.dumps({**row, **changes}))
        assert (error.sqlstate, error.message) == ("22023", words) and error.hint
    error = session.error("select cerebro.predict(%s, %s::jsonb)", fitted.run, json.dumps({**row, "born": "infinity"}))
    assert (error.sqlstate, error.message) == ("22004", 'feature "born" is NULL, NaN or infinite')


def test_a_run_is_applied_only_to_columns_that_mean_the_same(session, fitted):
    names = ", ".join([*fitted.features, "label", "row"])

    def like(column, expression):
        table = session.name("like")
        chosen = names.replace(column + ",", "%s as %s," % (expression, column))
        session.conn.execute("create table %s as select %s from %s" % (table, chosen, fitted.table.name))
        return table

    query = "select * from cerebro.evaluate(%s, %s::text::regclass)"
    before = dict(session.rows(query, fitted.run, fitted.table.name))
    for column, expression in (("id", "id::numeric::bigint"), ("code", "code::bigint"), ("mood", "mood::text"), ("at", "at::timestamp")):
        assert dict(session.rows(query, fitted.run, like(column, expression))) == pytest.approx(before, rel=1e-5), column
    for column, expression in (("born", "1"), ("code", "code::text"), ("took", "opens"), ("flag", "1")):
        error = session.error(query, fitted.run, like(column, expression))
        assert error.sqlstate == "42804" and '"%s"' % column in error.message and error.hint, column


# ---- labels

LABELS = {
    "enum": ("{schema}.size", ["small", "medium", "large"], "text"),
    "date": ("date", ["0044-03-15 BC", "2024-02-29", "10000-01-01"], "date"),
    "uuid": ("uuid", ["0eebc999-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], "uuid"),
    "one_to_three": ("integer", [1, 2, 3], "integer"),
    "signs": ("smallint", [-1, 1], "smallint"),
    "tens": ("bigint", [10, 20, 30], "bigint"),
    "boolean": ("boolean", [False, True], "boolean"),
    "domain": ("{schema}.shirt", ["small", "medium", "large"], "text"),
}


@pytest.fixture(scope="module")
def sizes(session):
    for node in session.cluster.nodes:
        node.execute(
            "set role tester; set search_path = {0}; create type size as enum ('small', 'medium', 'large');"
            " create domain shirt as size".format(session.schema)
        )


@pytest.mark.parametrize("case", LABELS)
def test_classes_have_the_order_of_the_labels_type_and_come_back_as_its_text(session, sizes, case):
    type_, classes, predicted = LABELS[case]
    rows = [[float(k % len(classes)), classes[k % len(classes)], k] for k in range(60)]
    table = session.sharded({"x": "real", "y": type_.format(schema=session.schema), "row": "integer"}, rows)
    model = session.model({"layers": [{"Dense": {"units": 16, "activation": "relu"}}, {"Dense": {"units": "$classes"}}]})
    run = session.fit(table, model, "y", ["x"], epochs=8, batch_size=4, learning_rate=0.05)
    assert session.rows("select encoders -> 'labels' -> 0 -> 'classes' from cerebro.run where run = %s", run) == [(classes,)]
    texts = [spelled(value) for value in classes]
    found = session.rows("select distinct x, cerebro.predict_class(%%s, r) from %s r order by x" % table.name, run)
    assert found == [(float(k), text) for k, text in enumerate(texts)], "the model has learnt which is which"
    matrix = session.rows("select actual, predicted, rows from cerebro.confusion_matrix(%s, %s::text::regclass)", run, table.name)
    assert matrix == [(text, text, 60 // len(classes)) for text in texts]
    target = session.schema + "." + session.name("scored")
    session.rows(PREDICT_TABLE, run, table.name, target, "{}")
    query = "select distinct x, prediction::text, pg_typeof(prediction)::text from %s join %s using (row) order by x"
    assert session.rows(query % (target, table.name)) == [(float(k), text, predicted) for k, text in enumerate(texts)]


def test_an_interval_is_learnt_as_its_seconds(session):
    rows = [[float(k), dt.timedelta(seconds=2.5 * k), k] for k in range(30)]
    table = session.sharded({"x": "real", "took": "interval", "row": "integer"}, rows)
    run = session.fit(table, session.model(LINE), "took", ["x"], epochs=3)
    (kernel,), (bias,) = (
        outcome.arrays(outcome.states(session.cluster, run)[0, 9])[name].ravel() for name in ("model/0", "model/1")
    )
    x = np.arange(30.0)
    expected = (x - x.mean()) / x.std() * kernel + bias
    assert session.rows("select cerebro.predict_value(%s, array[3])", run)[0][0] == pytest.approx(expected[3], rel=1e-5)
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
    assert found["mae"] == pytest.approx(np.abs(expected - 2.5 * x).mean(), rel=1e-5)
    target = session.schema + "." + session.name("scored")
    session.rows(PREDICT_TABLE, run, table.name, target, "{}")
    assert session.rows("select prediction from %s where row = 3" % target)[0][0] == pytest.approx(expected[3], rel=1e-5)


def test_a_label_that_has_no_task_is_refused_with_what_makes_it_one(session):
    table = session.local({"a": "real", "b": "real", "at": "timestamptz", "day": "date", "doc": "json"})
    error = session.refused(table, session.model(LOGIT), "at")
    assert (error.sqlstate, error.message) == ("42804", 'column "at" cannot be a label')
    expression = error.hint.partition("2026-01-01: ")[2].rstrip(".")
    assert session.rows("select %s from (select timestamptz '2026-01-01 01:00+00' as at) t" % expression) == [(3600,)]
    error = session.refused(table, session.model(LOGIT), "day", task="regression")
    assert (error.sqlstate, error.message) == ("42804", 'label "day" cannot be used for regression') and "epoch" in error.hint
    error = session.refused(table, session.model(LOGIT), "doc")
    assert (error.sqlstate, error.detail) == ("42804", "Its type is json.")


# ---- encoders


def test_an_encoder_that_makes_no_sense_is_refused_before_anything_starts(session):
    table, model = session.local({"a": "real", "t": "text", "x": "real[]", "label": "boolean"}), session.model(LOGIT)
    for encoders, words, hint in (
        ({"a": "one_hot"}, 'encoder "one_hot" does not fit column "a"', "Use one of: standardize, minmax, none, bucketize."),
        ({"t": "bucketize"}, 'encoder "bucketize" does not fit column "t"', "Use one of: one_hot, embedding, index, tokens."),
        ({"x": "bucketize"}, 'encoder "bucketize" does not fit column "x"', "Use one of: standardize, minmax, none, sequence."),
        ({"aa": "minmax"}, 'option encoders names "aa", which is not a feature', 'Did you mean "a"?'),
        ({"a": {"bucketize": {"bukets": 3}}}, 'unknown key "bukets" in option "encoders.a"', 'Did you mean "buckets"?'),
    ):
        error = session.refused(table, model, "label", ["a", "t", "x"], encoders=encoders)
        assert (error.sqlstate, error.message, error.hint) == ("22023", words, hint)


def test_buckets_do_not_depend_on_how_many_shards_there_are(session):
    random = np.random.default_rng(8)
    rows = [[float(value), bool(value > 0)] for value in random.normal(size=3000).round(2)]
    found = set()
    for sizes in ([3000, 0, 0], [1, 2000, 999]):
        table = session.sharded({"x": "double precision", "label": "boolean"}, rows, sizes)
        run = session.fit(table, session.model(LOGIT), "label", ["x"], encoders={"x": "bucketize"}, validation=0.3)
        found.add(json.dumps(session.rows("select encoders #> '{features,0,boundaries}' from cerebro.run where run = %s", run)))
    assert len(found) == 1 and len(json.loads(found.pop())[0][0]) == 9


def test_dates_may_be_written_where_boundaries_and_what_stands_for_a_null_are_seconds(session):
    days = ["2026-01-%02d" % day for day in range(1, 13)]
    table = session.sharded({"day": "date", "label": "boolean"}, [[day, n % 2 == 0] for n, day in enumerate(days)] + [[None, True]])
    model, kept = session.model(LOGIT), {"day": {"value": "Jan 5, 2026"}}
    encoders = {"day": {"bucketize": {"boundaries": ["2026-01-03", "2026-01-09"]}}}
    run = session.fit(table, model, "label", ["day"], encoders=encoders, nulls=kept)
    ((feature,),) = session.rows("select encoders #> '{features,0}' from cerebro.run where run = %s", run)
    epoch = 1767225600  # 2026-01-01
    assert feature["boundaries"] == [epoch + 2 * 86400, epoch + 8 * 86400] and feature["nulls"]["value"] == epoch + 4 * 86400
    for boundaries, words in (
        (["2026-01-32"], "out of range"),
        (["infinity"], "has no seconds"),
        (["2026-01-09", "2026-01-03"], "wrong value"),
    ):
        error = session.refused(table, model, "label", ["day"], encoders={"day": {"bucketize": {"boundaries": boundaries}}}, nulls=kept)
        assert error.sqlstate == "22023" and words in error.message and (error.hint or error.detail), boundaries


# ---- data that loses its meaning

OTHERS = {
    "json": '{"key": "a"}', "jsonb": '{"key": "b"}', "xml": "<doc><key>a</key></doc>", "inet": "10.1.2.3", "cidr": "10.1.0.0/16",
    "macaddr": "08:00:2b:01:02:03", "macaddr8": "08:00:2b:01:02:03:04:05", "money": "1.50", "bit(3)": "101", "bit varying": "01",
    "tsvector": "a fat cat", "point": "(1,2)", "box": "(1,2),(3,4)", "circle": "<(0,0),2>", "path": "[(0,0),(1,1)]",
    "lseg": "[(0,0),(1,1)]", "polygon": "((0,0),(1,0),(1,1))", "line": "{1,2,3}", "int4range": "[1,5)", "int8range": "[1,5)",
    "numrange": "[1.5,2)", "tsrange": "[2026-01-01,2026-01-02)", "tstzrange": "[2026-01-01,2026-01-02)",
    "daterange": "[2026-01-01,2026-01-03)", "int4multirange": "{[1,5)}", "json[]": "{1}", "oid": "5", "pg_lsn": "0/1", '"char"': "a",
}  # fmt: skip


def assert_hints_make_features(session, types):
    """Each of these types is refused, with an expression that has values and is a feature; ``types`` has a value for each."""
    columns = {"x%d" % number: type_ for number, type_ in enumerate(types)}
    table, model = session.local({**columns, "label": "boolean"}, [[*types.values(), True]]), session.model(LOGIT)
    made = []
    for name, type_ in columns.items():
        error = session.refused(table, model, "label", [name])
        assert (error.sqlstate, error.message) == ("42804", 'column "%s" cannot be a feature' % name), type_
        made.append(error.hint.partition("makes it one: ")[2].rstrip("."))
    encoders = {expression: {"tokens": {"length": 3}} for expression in made if "tsvector_to_array" in expression or "text[]" in expression}
    error = session.refused(table, model, "label", [*made, "x"], encoders=encoders)
    assert error.message.startswith('column "x" of table'), "all others are features"
    session.conn.execute("set search_path = pg_catalog")
    ((values,),) = session.rows("select array[%s] from %s" % (", ".join("(%s)::text" % text for text in made), table.name))
    session.conn.execute("select set_config('search_path', %s, false)", ['"%s"' % session.schema])
    assert all(values) and len(values) == len(types)


def test_types_that_are_none_of_these_are_refused_with_an_expression_that_makes_features_of_them(session):
    assert_hints_make_features(session, OTHERS)


@requires.extension("hstore")
def test_a_hstore_is_refused_with_the_operator_of_its_schema(session):
    for node in session.cluster.nodes:
        node.execute("create extension hstore schema %s" % session.schema)
    assert_hints_make_features(session, {session.schema + ".hstore": "key=>a"})


# ---- text that is one whatever its case


@pytest.fixture(scope="module")
def citext(session):
    """The type's name, in a schema that is on no search path."""
    for node in session.cluster.nodes:
        node.execute("create extension citext schema %s" % session.schema)
    return session.schema + ".citext"


@requires.extension("citext")
def test_categories_and_classes_of_citext_are_one_whatever_their_case(session, citext, tmp_path):
    spellings = [["Paris", "PARIS", "paris"], ["oslo", "Oslo", "OSLO"], ["", "", ""], ["århus", "ÅRHUS", "Århus"]]
    ways = [["Up", "UP", "up"], ["down", "DOWN", "Down"]]
    rows = [[spellings[k % 4][k // 4 % 3], ways[k % 2][k // 4 % 3], k] for k in range(60)]
    table = session.sharded({"city": citext, "way": citext, "row": "integer"}, [*rows, [None, "Down", 60]], [20, 20, 21])
    cities = [city for city, in session.rows("select distinct lower(city) from %s where city is not null" % table.name)]
    options = {"epochs": 8, "batch_size": 4, "learning_rate": 0.1, "nulls": {"city": {"value": "OsLo"}}, "class_weight": {"UP": 1.5}}
    run = session.fit(table, session.model(LOGIT), "way", ["city"], **options)
    ((encoders,),) = session.rows("select encoders from cerebro.run where run = %s", run)
    assert encoders["features"][0]["vocabulary"] == sorted(cities) and encoders["features"][0]["nulls"] == {"value": "oslo"}
    assert encoders["labels"][0]["classes"] == ["down", "up"] and encoders["labels"][0]["weights"] == [1, 1.5]
    ask = "select cerebro.predict_probabilities(%s, %s::jsonb)"
    known = {city: session.rows(ask, run, json.dumps([city]))[0][0] for city in ("paris", "oslo", "", "elsewhere")}
    assert len(set(map(str, known.values()))) == 4 and known["paris"]["up"] > 0.7 > 0.3 > known["oslo"]["up"]
    for city, other in (("pArIs", "paris"), ("OSLO", "oslo"), ("Elsewhere", "elsewhere"), (None, "oslo")):
        assert session.rows(ask, run, json.dumps({"city": city})) == [(known[other],)], city
    assert dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))["accuracy"] == 1
    target = session.schema + "." + session.name("scored")
    session.rows(PREDICT_TABLE, run, table.name, target, "{}")
    query = "select count(*) from %s s join %s t using (row) where s.prediction operator(%s.=) t.way" % (target, table.name, session.schema)
    assert session.rows(query) == [(61,)], "compared as the column itself is"
    cased = session.local({"city": "text", "way": "text"}, [["Paris", "Up"]])
    error = session.error("select * from cerebro.evaluate(%s, %s::text::regclass)", run, cased.name)
    assert error.sqlstate == "42804" and '"city"' in error.message
    model = exported(session, run, tmp_path)
    given = ["Paris", "OSLO", "", "elsewhere", "[null]"]
    expected = [[known[city][way] for way in ("down", "up")] for city in ("paris", "oslo", "", "elsewhere", "oslo")]
    np.testing.assert_allclose(model({"city": keras.ops.convert_to_tensor([[city] for city in given])}), expected, rtol=1e-5)


@requires.extension("citext")
def test_tokens_of_citext_are_one_whatever_their_case(session, citext, tmp_path):
    rows = [[title, tags, k % 2 == 0] for k, (title, tags) in enumerate([("Red hat!", ["A", "b"]), ("BLUE Hat!", ["a", "NULL"])] * 20)]
    table = session.sharded({"title": citext, "tags": citext + "[]", "label": "boolean"}, rows)
    for column, given, known, length in (
        ("title", ["RED hat!", "red HAT!"], ["hat!", "blue", "red"], 2), ("tags", [["a", "B"], ["A", "b"]], ["a", "b", "null"], 2),
    ):  # fmt: skip
        tokens = {"length": length, "size": 10, **({"standardize": "none"} if column == "title" else {})}
        layers = [{"Embedding": {"input_dim": 10, "output_dim": 2}}, {"Flatten": {}}, *LOGIT["layers"]]
        run = session.fit(table, session.model({"layers": layers}), "label", [column], encoders={column: {"tokens": tokens}})
        assert session.rows("select encoders #> '{features,0,vocabulary}' from cerebro.run where run = %s", run) == [(known,)]
        ask = "select cerebro.predict_probabilities(%s, %s::jsonb)"
        one, other = (session.rows(ask, run, json.dumps({column: value}))[0][0] for value in given)
        assert one == other
        batch = [[text] for text in given] if column == "title" else given
        answers = np.asarray(exported(session, run, tmp_path)({column: keras.ops.convert_to_tensor(batch)}))
        np.testing.assert_allclose(answers, [[one["false"], one["true"]]] * 2, rtol=1e-5)


def test_numbers_that_single_precision_merges_are_refused_as_they_are_and_kept_when_standardized(session):
    rows = [[1.7e9 + k, k % 2 == 0] for k in range(60)]
    table = session.sharded({"at": "double precision", "label": "boolean"}, rows)
    error = session.refused(table, session.model(LOGIT), "label", ["at"], encoders={"at": "none"})
    assert (error.sqlstate, error.message) == ("22003", 'column "at" holds numbers that single precision does not tell apart')
    # Single precision has one number for all of them, and each shard keeps one of its own.
    assert error.detail.startswith("%d of its values" % (60 - len(table.sizes))) and "standardize" in error.hint
    run = session.fit(table, session.model(LOGIT), "label", ["at"])
    query = "select count(distinct cerebro.predict_probabilities(%%s, r) ->> 'true') from %s r" % table.name
    assert session.rows(query, run) == [(60,)]


def test_infinite_dates_are_refused_or_skipped_as_infinite_values(session):
    rows = [["infinity" if k == 5 else "2024-01-%02d" % (k % 28 + 1), k % 2 == 0] for k in range(60)]
    table = session.sharded({"day": "date", "label": "boolean"}, rows)
    error = session.refused(table, session.model(LOGIT), "label", ["day"])
    assert error.sqlstate == "22004" and error.detail == 'Column "day": 0 NULL, 0 NaN, 1 infinite of 60 rows.'
    run = session.fit(table, session.model(LOGIT), "label", ["day"], nulls="skip")
    mean = session.rows("select encoders #>> '{features,0,mean,0}' from cerebro.run where run = %s", run)[0][0]
    days = [k % 28 for k in range(60) if k != 5]
    assert float(mean) == pytest.approx(number(dt.date(2024, 1, 1))[0] + 86400 * np.mean(days), rel=1e-14)


def test_the_text_null_is_no_null(session):
    rows = [[("NULL", "a", None)[k % 3], k % 2 == 0] for k in range(60)]
    table = session.sharded({"t": "text", "label": "boolean"}, rows)
    assert session.refused(table, session.model(LOGIT), "label", ["t"]).detail.startswith('Column "t": 20 NULL')
    run = session.fit(table, session.model(LOGIT), "label", ["t"], nulls="skip")
    query = "select encoders #> '{features,0,vocabulary}', (encoders #>> '{rows,train}')::int from cerebro.run where run = %s"
    assert session.rows(query, run) == [(["NULL", "a"], 40)]


def test_a_class_that_no_training_row_has_is_a_class(session):
    """Rows of class c are alike, so they fall on one side; of sixteen such classes some are held out altogether."""
    rows = [[float(k % 16), k % 16] for k in range(160)]
    table = session.sharded({"x": "real", "label": "integer"}, rows)
    run = session.fit(table, session.model(LOGIT), "label", ["x"], validation=0.3)
    counts, classes = session.rows(
        "select encoders #> '{labels,0,counts}', encoders #> '{labels,0,classes}' from cerebro.run where run = %s", run
    )[0]
    assert classes == list(range(16)) and set(counts) == {0, 10}
    assert len(session.rows("select * from cerebro.class_report(%s, %s::text::regclass)", run, table.name)) == 16
