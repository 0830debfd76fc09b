"""Every form of the option validation, from fit to predictions."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psycopg
import pytest

from tests import outcome
from tests import requirements as requires
from tests.cluster import ROLE
from tests.faults import armed, cancelled, kill_backend
from tests.session import LOGIT, POINTS, Refusal, points

WARM = True
pytestmark = requires.segments(3)

SIZES = [40, 1, 55]
COLUMNS = {"a": "real", "b": "double precision", "test": "boolean", "who": "text", "at": "timestamptz", "label": "integer"}
FORMS = [
    ({"fraction": 0.25, "stratify": True}, 24),
    ({"column": "test"}, 12),
    ({"time": "at", "fraction": 0.25}, 24),
    ({"time": "at", "from": "2026-01-03 12:00+00"}, 36),
    ({"group": "who", "fraction": 0.25}, None),
    ({"folds": 4, "fold": 1, "stratify": True}, 24),
]


def made() -> list[list]:
    """Rows sorted by class: 32 of each."""
    random = np.random.default_rng(2)
    rows = []
    for n in range(sum(SIZES)):
        label = 10 * (1 + n // 32)
        a, b = random.normal(label / 10, 0.3, 2).round(3).tolist()
        hour = (n * 41) % 96
        rows.append([a, b, n % 8 == 3, "w%d" % (n % 12), "2026-01-%02d %02d:00+00" % (1 + hour // 24, hour % 24), label])
    return rows


@pytest.fixture(scope="module")
def table(session):
    return session.sharded(COLUMNS, made(), SIZES)


@pytest.fixture(scope="module")
def model(session):
    return session.model(LOGIT)


def figures(session, run: str) -> dict:
    """What the shards of a run report, added up."""
    stats = session.rows("select shards from cerebro.run where run = %s", run)[0][0]["stats"]
    return {key: sum(shard[key] for shard in stats) for key in ("rows", "train_rows", "validation_rows", "skipped")}


@pytest.mark.parametrize("validation, held", FORMS, ids=lambda value: json.dumps(value))
def test_rows_add_up_and_the_column_is_no_feature_unless_it_is_listed(session, table, model, validation, held):
    run = session.fit(table, model, "label", ["*"], validation=validation, learning_rate=0.1)
    found = figures(session, run)
    assert found["train_rows"] + found["validation_rows"] == found["rows"] == sum(SIZES) and found["skipped"] == 0
    assert 0 < found["validation_rows"] == (held or found["validation_rows"])
    ((features, options),) = session.rows("select features, options from cerebro.run where run = %s", run)
    named = {validation[key] for key in ("column", "group", "time") if key in validation}
    assert set(features) == {*COLUMNS, "shard"} - {"label"} - named
    again = session.fit(table, model, "label", [*named] or ["a"], validation=options["validation"], learning_rate=0.1)
    assert figures(session, again) == {**found, "validation_rows": held or found["validation_rows"], "train_rows": found["train_rows"]}
    (metrics,) = session.rows("select metrics from cerebro.epoch where run = %s", run)[0]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(metrics)


def test_explain_fit_tells_how_many_rows_a_form_holds_out(session, table, model):
    statement = "select property, value from cerebro.explain_fit(%s::text::regclass, %s, 'label', options => %s::jsonb)"
    options = json.dumps({"seed": 7, "epochs": 1, "validation": {"fraction": 0.25, "stratify": True}})
    assert dict(session.rows(statement, table.name, model, options))["validation rows"] == 24


def test_stratified_folds_hold_out_every_row_once(session, table, model):
    counts = []
    for fold in range(4):
        run = session.fit(table, model, "label", validation={"folds": 4, "fold": fold, "stratify": True})
        (encoders,) = session.rows("select encoders from cerebro.run where run = %s", run)[0]
        counts.append(encoders["labels"][0]["counts"])
    assert counts == [[24, 24, 24]] * 4


def test_the_documentations_cross_validation_runs_as_it_is_written(session):
    page = (Path(__file__).resolve().parent.parent / "docs" / "options.md").read_text("utf-8")
    script = re.findall(r"^```sql\n(.*?)^```$", page.partition("Cross-validation")[2], re.MULTILINE | re.DOTALL)[0]
    session.sharded({**POINTS, "late": "boolean"}, [(a, b, c, c) for a, b, c in zip(*points(50).values())], [25, 25], name="flights_of_may")
    session.model(LOGIT, "mlp")
    train, average = script.strip().rstrip(";").split(";")
    assert len(session.rows(train)) == 5
    ((params, metric, deviation),) = session.rows(average)
    stats = [figures(session, "flights_%d" % fold) for fold in range(5)]
    assert sum(found["validation_rows"] for found in stats) == 50 and deviation > 0
    shown = session.rows("select metric from cerebro.trial where run like 'flights\\_%%'")
    assert metric == pytest.approx(np.mean(shown))


LABELS = [([1, 2, 3], "integer"), ([-1, 1], "smallint"), ([10, 20, 30], "bigint"), ([False, True], "boolean"), (["no", "yes"], "text")]


@pytest.mark.parametrize("labels, type_", LABELS, ids=str)
def test_classes_of_any_values_are_stratified_and_predicted(session, model, labels, type_):
    random = np.random.default_rng(4)
    rows = [(6.0 * k, random.normal(), value) for k, value in enumerate(labels) for _ in range(20)]
    made = session.sharded({"a": "real", "b": "real", "label": type_}, rows, [len(rows) - 3, 2, 1])
    run = session.fit(made, model, "label", validation={"fraction": 0.25, "stratify": True}, epochs=6, learning_rate=0.2, batch_size=1)
    (encoders,) = session.rows("select encoders from cerebro.run where run = %s", run)[0]
    assert (encoders["labels"][0]["classes"], encoders["labels"][0]["counts"]) == (labels, [15] * len(labels))
    for k, value in enumerate(labels):
        answer = session.rows("select cerebro.predict_class(%s, %s::text)", run, json.dumps([6.0 * k, 0]))[0][0]
        assert answer == outcome.spelled(value)


def test_a_class_that_only_rows_for_validation_have_is_told_of_and_keeps_its_place(session, model):
    rows = [(4.0 * k, 0.1 * n, k, k == 1) for k in range(3) for n in range(12)]
    made = session.sharded({"a": "real", "b": "real", "label": "integer", "test": "boolean"}, rows, [13, 13, 10])
    session.notices.clear()
    options = {"epochs": 12, "learning_rate": 0.1, "batch_size": 1, "rank_by": "loss"}
    run = session.fit(made, model, "label", validation={"column": "test"}, **options)
    assert 'no training row has the value 1 of label "label": models learn nothing of it' in session.notices
    (encoders,) = session.rows("select encoders from cerebro.run where run = %s", run)[0]
    assert (encoders["labels"][0]["classes"], encoders["labels"][0]["counts"]) == ([0, 1, 2], [12, 0, 12])
    answers = [session.rows("select cerebro.predict_class(%s, %s::text)", run, json.dumps([a, 0.5]))[0][0] for a in (0.0, 8.0)]
    assert answers == ["0", "2"]


@pytest.mark.parametrize("count, held", [(5, 1), (2, None), (1, None), (0, None)])
def test_small_tables_are_split_or_refused_with_figures(session, model, count, held):
    rows = [(float(n), 1.0, "2026-01-0%d" % (n + 1), n % 2) for n in range(count)]
    made = session.sharded({"a": "real", "b": "real", "day": "date", "label": "integer"}, rows, [count, 0, 0])
    option = {"time": "day", "fraction": 0.2}
    if held is not None:
        assert figures(session, session.fit(made, model, "label", validation=option))["validation_rows"] == held
        return
    error = session.refused(made, model, "label", validation=option)
    expected = {
        0: "the source has no rows", 1: 'label "label" has one value only', 2: "no row fell into the validation part",
    }  # fmt: skip
    assert error.sqlstate == "22000" and error.message.startswith(expected[count][:14]) and error.hint


def test_a_killed_worker_reads_the_same_rows_again(session, table, model):
    """Ranks are found once: the session that takes its place is told them."""
    options = {"validation": {"fraction": 0.25, "stratify": True}, "order": "fixed", "epochs": 2, "learning_rate": 0.1}
    whole = session.fit(table, model, "label", **options)
    run = session.name()
    statement, values = session.call(table, model, "label", run=run, **options)
    node = session.cluster.node(3)
    with armed(node, run, "mid-visit", 2) as reached, ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.conn.execute, statement, values)
        kill_backend(node, reached())
        running.result()
    assert outcome.everything(session.cluster, run) == outcome.everything(session.cluster, whole)


def test_a_run_is_not_resumed_over_a_column_that_says_otherwise_now(session, model):
    made_ = session.sharded(COLUMNS, made(), SIZES)
    run = session.name()
    statement, values = session.call(made_, model, "label", run=run, validation={"column": "test"}, epochs=3)
    cancelled(session, session.cluster.coordinator, run, "committed", 2, statement, values)
    with session.cluster.connect(ROLE, node=1) as remote:
        remote.execute('update "%s"."%s" set test = not test' % (made_.schema, made_.parts[0]))
    with pytest.raises(psycopg.Error) as caught:
        session.conn.execute("select cerebro.resume(%s)", [run])
    assert caught.value.sqlstate == "ML002"


def test_nulls_in_the_column_go_by_the_option_nulls(session, model):
    rows = [[*row[:2], None if n % 16 == 5 else row[2], *row[3:]] for n, row in enumerate(made())]
    table = session.sharded(COLUMNS, rows, SIZES)
    error = session.refused(table, model, "label", validation={"column": "test"})
    assert (error.sqlstate, error.message) == ("22004", 'column "test" holds NULL, NaN or infinite values')
    run = session.fit(table, model, "label", validation={"column": "test"}, nulls={"test": "skip"})
    assert figures(session, run) == {"rows": 90, "train_rows": 78, "validation_rows": 12, "skipped": 6}
    error = session.refused(table, model, "label", validation={"column": "test"}, nulls={"test": {"value": True}})
    assert error.sqlstate == "22023" and "says which are held out" in error.detail


def test_a_moment_is_stored_so_that_it_means_the_same_everywhere(session, table, model):
    session.conn.execute("set timezone = 'Asia/Tokyo'")
    run = session.fit(table, model, "label", validation={"time": "at", "from": "Jan 3 2026 21:00"})
    session.conn.execute("reset timezone")
    ((options,),) = session.rows("select options from cerebro.run where run = %s", run)
    assert options["validation"]["from"] == "2026-01-03T21:00:00+09:00"
    assert figures(session, run)["validation_rows"] == 36


WRONG = [
    ({"column": "tset"}, {}, "42703", 'column "tset" of table', 'Did you mean "test"?'),
    ({"column": "who"}, {}, "42804", 'column "who" cannot be option "validation.column"', None),
    ({"time": "at", "from": "soon"}, {}, "22023", "invalid input syntax", None),
    ({"time": "at", "from": "infinity"}, {}, "22023", '"infinity" is no moment', None),
    ({"fraction": 0.2, "stratfy": True}, {}, "22023", 'unknown key "stratfy"', 'Did you mean "stratify"?'),
    ({"fraction": 0.2, "stratify": True}, {"task": "regression"}, "22023", 'option "validation.stratify" is for classification', None),
    ({"folds": 3, "fold": 0}, {"seed": None}, "22023", 'option "validation" makes folds without a seed', None),
    ({"time": "at", "from": "2030-01-01"}, {}, "22000", "no row fell into the validation part", None),
    ({"time": "at", "from": "2020-01-01"}, {}, "22000", "no training rows are left", None),
]


@pytest.mark.parametrize("validation, more, sqlstate, message, hint", WRONG, ids=lambda value: json.dumps(value) if value else "")
def test_what_cannot_be_meant_is_refused(session, table, model, validation, more, sqlstate, message, hint):
    error: Refusal = session.refused(table, model, "label", validation=validation, **more)
    assert error.sqlstate == sqlstate and message in error.message and error.hint
    assert hint is None or error.hint == hint


def test_a_column_that_the_caller_may_not_read_is_refused(session, table, model, make_role):
    reader = make_role()
    with session.cluster.connect(ROLE) as owner:
        owner.execute('grant usage on schema "%s" to %s' % (session.schema, reader))
        owner.execute("grant select (a, b, label) on %s to %s" % (table.name, reader))
    with session.cluster.connect(reader) as connection:
        connection.execute("select cerebro.create_model('logit', %s)", [json.dumps(LOGIT)])
        statement, values = session.call(table, "logit", "label", validation={"column": "test"})
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match='permission denied for column "test"'):
            connection.execute(statement, values)


@pytest.fixture(scope="module")
def further(session):
    """A table of rows for validation: fewer rows than segments, on two of them."""
    return session.sharded(COLUMNS, [made()[0], made()[90]], [1, 1], [3, 1])


def test_rows_of_another_table_are_held_out(session, table, model, further):
    option = {"table": further.name.replace('"', "")}
    run = session.fit(table, model, "label", validation=option, learning_rate=0.1)
    assert figures(session, run) == {"rows": 98, "train_rows": 96, "validation_rows": 2, "skipped": 0}
    ((encoders, metrics),) = session.rows(
        "select r.encoders, e.metrics from cerebro.run r join cerebro.epoch e using (run, owner) where r.run = %s", run
    )
    assert encoders["labels"][0]["counts"] == [32, 32, 32]
    judged = dict(session.rows("select metric, value from cerebro.evaluate(%s, %s::text::regclass)", run, further.name))
    assert judged == pytest.approx({"loss": metrics["val_loss"], "accuracy": metrics["val_accuracy"]}, rel=1e-6)


def test_a_run_with_another_table_is_resumed_unless_one_of_the_two_has_changed(session, model):
    table, held = session.sharded(COLUMNS, made(), SIZES), session.sharded(COLUMNS, made()[::4], [20, 0, 4])
    options = {"validation": {"table": held.name}, "order": "fixed", "epochs": 2, "learning_rate": 0.1}
    whole, run = session.fit(table, model, "label", **options), session.name()
    statement, values = session.call(table, model, "label", run=run, **options)
    cancelled(session, session.cluster.coordinator, run, "committed", 2, statement, values)
    session.conn.execute("select cerebro.resume(%s)", [run])
    assert outcome.everything(session.cluster, run) == outcome.everything(session.cluster, whole)
    session.cluster.coordinator.execute("update cerebro_internal.run set state = 'failed' where name = %s", [run])
    for changed, what in ((held, "for validation, those of table %s," % held.name.replace('"', "")), (table, "of the source")):
        with session.cluster.connect(ROLE, node=3) as remote:
            remote.execute('update "%s"."%s" set a = a + 1' % (changed.schema, changed.parts[2]))
        with pytest.raises(psycopg.Error) as caught:
            session.conn.execute("select cerebro.resume(%s)", [run])
        assert caught.value.sqlstate == "ML002" and 'the rows %s on segment "segment_3" have changed' % what in str(caught.value)


def test_a_local_table_is_validated_by_a_local_one(session, model):
    rows = [row for row in made() for _ in range(20)]
    source, held = session.local(COLUMNS, rows), session.local(COLUMNS, made())
    run = session.fit(source, model, "label", validation={"table": held.name}, segments=2)
    assert figures(session, run) == {"rows": 96 * 21, "train_rows": 96 * 20, "validation_rows": 96, "skipped": 0}


def test_tables_that_cannot_hold_rows_for_validation_are_refused(session, table, model, further):
    local = session.local(COLUMNS, made())
    texts = session.sharded({**COLUMNS, "a": "text"}, [], [0])
    narrow = session.sharded({"a": "real", "label": "integer"}, [], [0])
    for name, sqlstate, message in (
        (local.name, "0A000", "rows for validation on another segment than those of the source"),
        (texts.name, "42804", 'column "a" of table'),
        (narrow.name, "42703", 'column "b" of table'),
        (table.name, "22023", 'option "validation.table" names the source'),
        ("nowhere.at_all", "42P01", 'option "validation.table" names a table that does not exist'),
        (further.table, "42P01", 'option "validation.table" names a table that does not exist'),
    ):
        error = session.refused(table, model, "label", validation={"table": name})
        assert error.sqlstate == sqlstate and message in error.message and error.hint, name


def test_submitted_runs_and_those_that_begin_from_others_take_every_form(session, model):
    table, further = session.sharded(COLUMNS, made(), [96]), session.sharded(COLUMNS, [made()[0], made()[90]], [2])
    first, second = session.name(), session.name()
    submit = session.call(table, model, "label", run=first, validation={"table": further.name}, learning_rate=0.1)
    session.conn.execute(submit[0].replace("cerebro.fit", "cerebro.submit"), submit[1])
    session.conn.execute("select cerebro.wait(%s)", [first])
    assert figures(session, first)["validation_rows"] == 2
    session.fit(table, model, "label", run=second, validation={"fraction": 0.25, "stratify": True}, init_from=first)
    assert figures(session, second)["validation_rows"] == 24
    statement, values = session.call(
        table, model, "label", run=second, validation={"fraction": 0.25, "stratify": True}, init_from=first, if_exists="resume"
    )
    assert len(session.rows(statement, *values)) == 1
    values[-1] = values[-1].replace("0.25", "0.5")
    assert "exists with another validation" in session.error(statement, *values).message
