"""What a user is told when something is wrong: SQLSTATE, message, DETAIL, HINT; and that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

import numpy as np
import psycopg
import pytest

from scripts import cluster as embedded
from tests import requirements as requires
from tests.cluster import ADMIN, ROLE, poll_until
from tests.session import LINE, LOGIT, POINTS, QUICK, Database, Refusal, points, refusal
from tests.tables import quoted

LOCK_CLASS = 1128616514  # first key of the advisory lock that the driver of a run holds

pytestmark = requires.segments(3)


@pytest.fixture(scope="module")
def good(session):
    """A sharded table that can be trained on."""
    return session.sharded(POINTS, points())


@pytest.fixture(scope="module")
def at_one_segment(session):
    """The same for a session of its own, with a single worker to start."""
    return session.sharded(POINTS, points(), sizes=[60], segments=[2])


@pytest.fixture(scope="module")
def model(session):
    return session.model()


@pytest.fixture(scope="module")
def done(session, good, model):
    """The name of a run that is done."""
    return session.fit(good, model, "label")


# ---- what the caller names


def test_table_that_does_not_exist(session, model):
    error = session.refused(session.schema + ".nowhere", model, "label")
    assert (error.sqlstate, error.message) == ("42P01", 'relation "%s.nowhere" does not exist' % session.schema)


def test_table_that_was_dropped_meanwhile(session, model):
    error = session.error("select * from cerebro.fit('gone', 4000000000::oid::regclass, %s, 'label')", model)
    assert (error.sqlstate, error.message) == ("42P01", 'table 4000000000 does not exist') and error.hint


def test_feature_that_does_not_exist_is_told_with_the_nearest(session, model):
    table = session.local({"distance": "real", "label": "boolean"}, [(1, True)])
    error = session.refused(table, model, "label", ["distanze"])
    assert error == Refusal(
        "42703", 'column "distanze" of table %s does not exist' % _bare(table.name), "It was given as a feature.",
        'Did you mean "distance"?',
    )  # fmt: skip


def test_features_of_several_dimensions(session, model, good):
    statement, values = session.call(good, model, "label")
    values[4] = [["a", "b"], ["a", "b"]]
    error = session.error(statement, *values)
    assert (error.sqlstate, error.hint) == ("22023", "List columns in an array of one dimension.")


@pytest.mark.parametrize("value", ["1e400", "1e5000", "[" * 900 + "]" * 900], ids=["large", "larger", "deep"])
def test_argument_that_only_postgresql_can_hold(session, model, good, value):
    statement, values = session.call(good, model, "label")
    values[5] = '{"epochs": %s}' % value
    error = session.error(statement, *values)
    assert error.sqlstate == "22023" and error.message.startswith("argument options ") and error.hint
    error = session.error("select cerebro.create_model('bad', %s)", '{"layers": [{"Dense": {"units": %s}}]}' % value)
    assert error.sqlstate == "22023" and error.message.startswith("argument definition ") and error.hint


def test_label_that_does_not_exist(session, model, good):
    error = session.refused(good, model, "lable")
    assert (error.sqlstate, error.detail, error.hint) == ("42703", "It was given as a label.", 'Did you mean "label"?')


def test_label_among_the_features(session, model, good):
    error = session.refused(good, model, "label", ["a", "label"])
    assert (error.sqlstate, error.message) == ("22023", 'label "label" is among the features')
    assert error.hint == "Take it off the features; the label of an autoencoder is an array."


def test_feature_listed_twice(session, model, good):
    error = session.refused(good, model, "label", ["a", "b", "a"])
    assert error == Refusal("22023", 'feature "a" is listed twice', None, "List each column once.")


def test_column_of_a_type_that_cannot_be_a_feature(session, model):
    table = session.local({"seen": "json", "label": "boolean"})
    error = session.refused(table, model, "label", ["seen"])
    assert (error.sqlstate, error.message) == ("42804", 'column "seen" cannot be a feature')
    assert error.detail == "Its type is json."


def test_label_of_a_type_that_cannot_be_a_label(session, model):
    table = session.local({"a": "real", "box": "box"})
    error = session.refused(table, model, "box", ["a"])
    assert (error.sqlstate, error.message, error.detail) == ("42804", 'column "box" cannot be a label', "Its type is box.")


def test_model_that_does_not_exist(session, good):
    error = session.refused(good, "nobody", "label")
    assert error == Refusal(
        "42704", 'model "nobody" does not exist', None, "select model from cerebro.model; shows all models."
    )


def test_view_of_what_lies_on_segments(session, model, good):
    session.conn.execute("create view seen as select * from (select * from %s) inner_most" % good.name)
    session.conn.execute("create view seen_through as select * from seen")
    error = session.refused(session.schema + ".seen_through", model, "label")
    assert (error.sqlstate, error.message) == ("0A000", "view %s.seen_through reads a foreign table" % session.schema)
    assert "would leave their segment" in error.detail and "filter" in error.hint


def test_sequence_has_no_rows(session, model):
    session.conn.execute("create sequence counter")
    error = session.refused(session.schema + ".counter", model, "label")
    assert (error.sqlstate, error.message) == ("0A000", "%s.counter has no rows" % session.schema)


def test_temporary_table(session, model):
    session.conn.execute("create temporary table if not exists fleeting (a real, label boolean)")
    error = session.refused("pg_temp.fleeting", model, "label")
    assert error.sqlstate == "0A000" and error.message.endswith(".fleeting is temporary")
    assert error.hint == "Make it an ordinary table."


def test_run_name_that_is_taken(session, good, model, done):
    error = session.refused(good, model, "label", run=done)
    assert error == Refusal(
        "42710", 'run "%s" already exists' % done, None,
        'Choose another name, or set options.if_exists to "replace" or "resume".',
    )  # fmt: skip


def test_model_name_that_is_taken(session, model):
    error = session.error("select cerebro.create_model(%s, %s)", model, json.dumps(LOGIT))
    assert error == Refusal(
        "42710", 'model "%s" already exists' % model, None, "Drop it first: select cerebro.drop_model('%s');" % model
    )


# ---- the caller's own transaction


@pytest.fixture(scope="module")
def second(session):
    """A second session, not in autocommit mode."""
    with session.cluster.connect(autocommit=False) as connection:
        connection.execute("select set_config('search_path', %s, false)", [session.schema])
        connection.commit()
        yield connection


@pytest.fixture
def transaction(second):
    """The second session, rolled back afterwards."""
    yield second
    second.rollback()


CHANGES = {
    "created": ["create table {new} (a real, b real, label boolean)"],
    "inserted into": ["insert into {old} values (1, 2, true)"],
    "updated": ["update {old} set a = 2"],
    "deleted from": ["delete from {old}"],
    "truncated": ["truncate {old}"],
    "altered": ["alter table {old} add extra int"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_table_changed_in_the_callers_open_transaction(session, transaction, model, change):
    old = session.local(POINTS, points(6))
    new = session.schema + ".new_" + uuid.uuid4().hex[:6]
    for statement in CHANGES[change]:
        transaction.execute(statement.format(old=old.name, new=new))
    table = new if change == "created" else old.name
    error = refusal(session.cluster, transaction, *session.call(table, model, "label"))
    assert error == Refusal(
        "55000", "table %s was created or changed in this transaction" % _bare(table),
        "Segments read it in sessions of their own, which see committed rows only.", "COMMIT first.",
    )  # fmt: skip


def test_partition_changed_in_the_callers_open_transaction(session, transaction, model):
    table = session.sharded(POINTS, points(6))
    transaction.execute("insert into %s (a, label, shard) values (1, true, 0)" % table.name)
    error = refusal(session.cluster, transaction, *session.call(table, model, "label"))
    assert error.sqlstate == "55000" and error.hint == "COMMIT first."


def test_change_that_was_rolled_back_is_none(session, transaction, model):
    table = session.local(POINTS, points())
    transaction.execute("savepoint s")
    transaction.execute("truncate " + table.name)
    transaction.execute("rollback to s")
    statement, values = session.call(table, model, "label", segments=2)
    assert len(transaction.execute(statement, values).fetchall()) == 1


def test_rows_read_in_the_same_transaction_do_not_matter(session, transaction, good, model):
    transaction.execute("select count(*) from " + good.name)
    statement, values = session.call(good, model, "label")
    assert transaction.execute(statement, values).fetchone()[4] == "done"


def test_run_outlives_a_rollback_of_its_call(session, transaction, good, model):
    statement, values = session.call(good, model, "label")
    assert len(transaction.execute(statement, values).fetchall()) == 1
    transaction.rollback()
    assert session.rows("select state from cerebro.run where run = %s", values[0]) == [("done",)]


def test_repeatable_read_caller_trains_and_predicts_in_its_next_transaction(session, transaction, good, model):
    transaction.execute("set transaction isolation level repeatable read")
    assert transaction.execute("select count(*) from " + good.name).fetchone() == (60,)
    statement, values = session.call(good, model, "label")
    assert transaction.execute(statement, values).fetchone()[4] == "done"
    transaction.commit()
    found = transaction.execute("select cerebro.predict_class(%s, array[5, -5])", [values[0]]).fetchone()
    assert found[0] in ("true", "false")


def test_repeatable_read_caller_may_replace_what_came_after_its_snapshot(session, transaction, good, model):
    transaction.execute("set transaction isolation level repeatable read")
    transaction.execute("select 1 from cerebro.run")
    run = session.fit(good, model, "label")
    error = refusal(session.cluster, transaction, *session.call(good, model, "label", run=run))
    assert error.sqlstate == "42710"


@pytest.mark.parametrize("call", ["fit", "resume", "drop_run", "create_model", "drop_model"])
def test_read_only_transaction(session, transaction, good, model, done, call):
    transaction.execute("set transaction read only")
    error = refusal(session.cluster, transaction, *_writing(session, good, model, done)[call])
    assert error.sqlstate == "25006"
    assert "read-only transaction" in error.message


def _writing(session, good, model, done) -> dict:
    return {
        "fit": session.call(good, model, "label"),
        "resume": ("select * from cerebro.resume(%s)", [done]),
        "drop_run": ("select cerebro.drop_run(%s)", [done]),
        "create_model": ("select cerebro.create_model('another', %s)", [json.dumps(LOGIT)]),
        "drop_model": ("select cerebro.drop_model(%s)", [model]),
    }


# ---- the rows


def test_empty_table(session, model):
    for table in (session.sharded(POINTS), session.local(POINTS)):
        error = session.refused(table, model, "label", ["a", "b"])
        assert error == Refusal(
            "22000", "the source has no rows", None, "Load the table first, or name another one."
        )


def test_nulls_nans_and_infinities_are_summed_over_the_segments(session, model):
    rows = points(90)
    rows["a"] = rows["a"].tolist()
    rows["b"] = rows["b"].tolist()
    for row, (column, value) in {
        0: ("a", None), 31: ("a", None), 61: ("a", float("nan")), 62: ("b", float("inf")), 1: ("b", float("-inf")),
    }.items():  # fmt: skip
        rows[column][row] = value
    table = session.sharded(POINTS, rows)
    error = session.refused(table, model, "label")
    assert error == Refusal(
        "22004", 'columns "a", "b" hold NULL, NaN or infinite values',
        'Column "a": 2 NULL, 1 NaN, 0 infinite of 90 rows. Column "b": 0 NULL, 0 NaN, 2 infinite of 90 rows.',
        'Set the option "nulls" to "skip" to leave such rows out, or say by column what stands for a NULL, such as {"a": "indicator"}.',
    )  # fmt: skip
    run = session.fit(table, model, "label", nulls="skip")
    trained = session.rows("select sum(rows) from cerebro.visit where run = %s and phase = 'train'", run)
    assert trained == [(85,)]


def test_nulls_in_text_array_and_label(session, model):
    columns = {"t": "text", "x": "real[]", "label": "boolean"}
    rows = [("a", [1, 2], True), (None, [1, None], False), ("b", None, None), ("a", [2, 1], True)]
    error = session.refused(session.sharded(columns, rows), model, "label", ["t", "x"])
    assert error.sqlstate == "22004"
    assert error.detail == (
        'Column "t": 1 NULL, 0 NaN, 0 infinite of 4 rows. Column "x": 2 NULL, 0 NaN, 0 infinite of 4 rows. '
        'Column "label": 1 NULL, 0 NaN, 0 infinite of 4 rows.'
    )


def test_all_rows_skipped(session, model):
    table = session.sharded(POINTS, [(None, 1, True), (1, None, False), (1, 1, None)])
    error = session.refused(table, model, "label", nulls="skip")
    assert (error.sqlstate, error.message) == ("22000", "no rows are left to train on")
    assert error.detail == "Skipped: 3 rows with NULL, NaN or infinite values."


@pytest.mark.parametrize("split", [[4, 0, 0], [2, 2, 0]], ids=["within a shard", "between shards"])
def test_ragged_arrays(session, model, split):
    rows = [([1, 2], True), ([3, 4], False), ([1, 2, 3], True), ([4, 5, 6], False)]
    error = session.refused(session.sharded({"x": "real[]", "label": "boolean"}, rows, sizes=split), model, "label", ["x"])
    assert error.sqlstate == "2202E"
    assert 'the arrays of column "x" differ in shape' in error.message
    assert "[2]" in error.detail and "[3]" in error.detail
    assert error.hint


@pytest.mark.parametrize(
    "kind, value, shown", [("boolean", True, "true"), ("integer", 3, "3"), ("text", "only", '"only"'), ("real", 2.5, "2.5")]
)
def test_label_with_one_value(session, kind, value, shown):
    table = session.sharded({"a": "real", "label": kind}, [(k, value) for k in range(9)])
    error = session.refused(table, session.model(LINE), "label", ["a"])
    assert error == Refusal(
        "22000", 'label "label" has a single value', "Every row holds %s." % shown,
        "Training needs at least two different labels.",
    )  # fmt: skip


def test_too_many_classes(session, model):
    table = session.sharded({"a": "real", "label": "integer"}, [(k, k) for k in range(1200)])
    error = session.refused(table, model, "label", ["a"])
    assert (error.sqlstate, error.detail) == ("42804", "It has 1200 different values; 1000 are allowed.")
    assert '"task" to "regression"' in error.hint


# ---- options


@pytest.mark.parametrize(
    "options, message, hint",
    [
        ({"epoch": 3}, 'unknown option "epoch"', 'Did you mean "epochs"?'),
        ({"batch_size": 0}, 'option "batch_size" has a wrong value', "a whole number from 1"),
        ({"epochs": -1}, 'option "epochs" has a wrong value', "a whole number from 1"),
        ({"epochs": "3"}, 'option "epochs" has a wrong value', "a whole number from 1"),
        ({"validation": 1}, 'option "validation" has a wrong value', "a fraction"),
        ({"order": "fast"}, 'option "order" has a wrong value', 'Did you mean "fastest"?'),
        ({"optimizer": "adom"}, "adom", 'Did you mean "adam"?'),
        ({"search": {"space": {}}}, "space", None),
        ({"search": {"space": {"batch_size": []}}}, "batch_size", None),
        ({"search": {"space": {"units": [1]}}}, "units", None),
        ({"rank_by": "val_auc"}, 'option "rank_by" names "val_auc"', None),
        ({"memory": "much"}, 'option "memory" has a wrong value', '"2GB"'),
    ],
    ids=json.dumps,
)
def test_options_that_make_no_sense(session, model, good, options, message, hint):
    error = session.refused(good, model, "label", **options)
    assert error.sqlstate == "22023"
    assert message in error.message
    assert error.hint and (hint or "") in error.hint


def test_option_that_is_to_come(session, model, good):
    error = session.refused(good, model, "label", strategy=3)
    assert error == Refusal("0A000", 'option "strategy" is not supported yet', None, "Leave it out.")


def test_options_that_are_no_object(session, model, good):
    error = session.error("select * from cerebro.fit('r', %s::text::regclass, %s, 'label', options => '[1]')", good.name, model)
    assert (error.sqlstate, error.message) == ("22023", "argument options is not a JSON object")


def test_placeholder_without_an_axis(session, good):
    model = session.model({"layers": [{"Dense": {"units": "$units"}}, {"Dense": {"units": 2}}]})
    error = session.refused(good, model, "label")
    assert error.sqlstate == "22023" and "units" in error.message and error.hint


def test_impossible_configuration_fails_alone_with_the_reason(session, good):
    model = session.model(
        {"layers": [{"Reshape": {"target_shape": ["$width"]}}, {"Dense": {"units": 2, "activation": "softmax"}}]}
    )
    statement, values = session.call(good, model, "label", search={"space": {"width": [2, 3]}})
    rows = session.rows(statement, *values)
    assert [(row[0], row[3], row[4]) for row in rows] == [(0, {"width": 2}, "done"), (1, {"width": 3}, "failed")]
    assert rows[0][1] is not None and rows[0][5] is None
    assert rows[1][1] is None and "target_shape=(3,)" in rows[1][5] and "\n" not in rows[1][5]
    run = values[0]
    assert session.rows("select state, error from cerebro.run where run = %s", run) == [("done", None)]
    assert session.rows("select trial, error from cerebro.trial where run = %s and state = 'failed'", run) == [(1, rows[1][5])]
    assert any(notice.startswith("trial 1 failed: ") for notice in session.notices)
    poll_until(session.cluster.idle_backends)


def test_what_the_label_does_not_have_is_refused_before_anything_starts(session, good, model):
    number = session.sharded({"a": "real", "y": "real"}, [(k, 3 * k) for k in range(30)])
    told = session.refused(number, model, "y", ["a"])
    assert told.sqlstate == "22023" and '"$classes"' in told.message and told.detail == 'Label "y" is a quantity.' and told.hint
    told = session.refused(good, model, "label", rank_by="auc")
    assert told.sqlstate == "22023" and told.detail == "It reports accuracy, loss."
    told = session.refused(good, model, "label", metrics=[{"Precision": {"class_id": 7}}])
    assert (told.sqlstate, told.message) == ("22023", 'class_id of metric "precision" is 7, label "label" has 2 classes') and told.hint
    told = session.error("select cerebro.create_model('none', %s)", json.dumps({"layers": [{"Dense": {"units": 0}}]}))
    assert told.sqlstate == "22023" and told.message == "definition: units of Dense must be a whole number from 1 to 2147483647"


def test_what_keras_does_not_make_of_several_arguments_is_told_in_its_innermost_words(session, good):
    convolution = {"Conv1D": {"filters": 3, "kernel_size": 1, "groups": "$groups"}}
    layers = [{"Reshape": {"target_shape": [2, 1]}}, convolution, "Flatten", {"Dense": {"units": "$classes"}}]
    statement, values = session.call(good, session.model({"layers": layers}), "label", search={"space": {"groups": [1, 2]}})
    done, failed = session.rows(statement, *values)
    assert (done[4], failed[4]) == ("done", "failed")
    assert failed[5].startswith("ValueError in Conv1D: The number of filters must be evenly divisible by the number of groups.")


def test_too_few_units_for_the_classes_is_told_as_such(session):
    table = session.sharded({"a": "real", "label": "integer"}, [(k, k % 3) for k in range(30)])
    model = session.model({"layers": [{"Dense": {"units": 2, "activation": "softmax"}}]})
    told = session.refused(table, model, "label", ["a"])
    assert told.sqlstate == "ML005" and "the model has 2 output units, the label has 3 classes" in told.message and told.hint


def test_a_run_all_of_whose_trials_have_failed_has_failed_and_stays_so(session):
    """Also when it is resumed, or waited for; it makes room for another only if told to."""
    table = session.sharded({"a": "real", "y": "real"}, [(k, 3 * k) for k in range(30)])
    options = {"optimizer": "sgd", "batch_size": 2, "search": {"space": {"learning_rate": [1e10, 1e20]}}}
    statement, values = session.call(table, session.model(LINE), "y", ["a"], **options)
    run = values[0]
    told = []
    for call, given in (
        (statement, values), ("select * from cerebro.resume(%s)", [run]), ("select * from cerebro.wait(%s)", [run]),
    ):
        with pytest.raises(psycopg.Error) as caught:
            session.rows(call, *given)
        told.append(Refusal.of(caught.value))
        assert told[-1].sqlstate == "ML005" and "diverged: the training loss of epoch 1 is NaN or infinite" in told[-1].message
        assert '"learning_rate": 10000000000' in told[-1].detail and '{"if_exists": "replace"}' in told[-1].hint
        assert session.rows("select state from cerebro.run where run = %s", run) == [("failed",)]
    assert told[0] == told[1]
    assert [row[0] for row in session.rows("select state from cerebro.trial where run = %s", run)] == ["failed"] * 2
    assert len(session.rows(told[0].hint.split("; ")[1])) == 2
    session.fit(table, session.model(LINE), "y", ["a"], run=run, if_exists="replace")
    assert session.rows("select state from cerebro.run where run = %s", run) == [("done",)]
    poll_until(session.cluster.idle_backends)


# ---- definitions


@pytest.mark.parametrize(
    "definition, sqlstate, message, hint",
    [
        ({"layers": [{"Lambda": {}}]}, "22023", "Lambda", None),
        ({"layers": [{"Dens": {"units": 1}}]}, "22023", "Dens", 'Did you mean "Dense"?'),
        ({"layers": []}, "22023", "", None),
        ({"layers": [{"TFSMLayer": {"filepath": "/etc/passwd"}}]}, "22023", "TFSMLayer", None),
        ({"layers": [{"StringLookup": {"vocabulary": "/etc/passwd"}}]}, "22023", "vocabulary", None),
        ({"layers": [{"Dense": {"units": 1, "activation": "__import__('os')"}}]}, "22023", "unknown activation", None),
        ({"module": "os", "class_name": "system", "config": {}}, "22023", "", None),
        (
            {"module": "keras.layers", "class_name": "Lambda", "config": {"function": {"class_name": "__lambda__"}}},
            "22023", "", None,
        ),
        ({"leyers": []}, "22023", "", None),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_definition_outside_keras_layers(session, definition, sqlstate, message, hint):
    error = session.error("select cerebro.create_model('bad', %s)", json.dumps(definition))
    assert error.sqlstate == sqlstate
    assert message in error.message
    assert error.hint or error.detail
    assert hint is None or error.hint == hint


# ---- segments


@pytest.fixture
def lost(session):
    """Makes a table with one good partition and one on a further server: `lost(host, port, dbname)`."""
    made = []

    def make(port: int, dbname: str = embedded.DATABASE, mapping: str | None = None) -> tuple[str, str]:
        server = "lost_" + uuid.uuid4().hex[:6]
        made.append(server)
        table = session.sharded(POINTS, points(20), sizes=[20], segments=[1])
        password = session.cluster.node(1).server.password(ROLE)
        with session.cluster.connect(ADMIN) as admin:
            admin.execute(
                "create server {0} foreign data wrapper postgres_fdw options (host '127.0.0.1', port '{1}', dbname '{2}');"
                "grant usage on foreign server {0} to {3};"
                "create user mapping for {3} server {0} options (user '{3}', password '{4}')".format(
                    server, port, dbname, ROLE, password
                )
            )
        session.conn.execute(
            "create foreign table %s.%s_far partition of %s for values in (99) server %s"
            " options (schema_name 'far', table_name 'rows')" % (session.schema, table.table, table.name, server)
        )
        return table.name, server

    yield make
    with session.cluster.connect(ADMIN) as admin:
        for server in made:
            admin.execute("drop server %s cascade" % server)


@pytest.fixture
def database(session):
    """Makes databases on node 1, dropped afterwards; holds far.rows(a, b, label, shard), readable by all."""
    made = []

    def make(*statements: str) -> Database:
        name = "side_" + uuid.uuid4().hex[:6]
        made.append(Database(session.cluster, 1, name))
        made[-1].execute(
            "create schema far; grant usage on schema far to public;"
            "create table far.rows (a real, b float8, label boolean, shard int); grant select on far.rows to public"
        )
        for statement in statements:
            made[-1].execute(statement)
        return made[-1]

    yield make
    for one in made:
        one.drop()


def test_segment_that_is_unreachable(session, model, lost):
    port = embedded.free_port()
    table, server = lost(port)
    error = session.refused(table, model, "label", ["a", "b"])
    assert (error.sqlstate, error.message) == ("08006", 'cannot connect to segment "%s"' % server)
    assert "Connection refused" in error.detail
    assert "127.0.0.1:%d" % port in error.hint


def test_segment_without_the_database(session, model, lost):
    table, server = lost(session.cluster.node(1).port, "no_such_database")
    error = session.refused(table, model, "label")
    assert error.sqlstate == "08006" and 'database "no_such_database" does not exist' in error.detail


def test_segment_without_the_extension(session, model, lost, database):
    port = session.cluster.node(1).port
    bare = database()
    table, server = lost(port, bare.name)
    error = session.refused(table, model, "label", ["a", "b"])
    assert (error.sqlstate, error.message) == ("ML001", 'segment "%s" lacks the extension' % server)
    assert "127.0.0.1:%d/%s" % (port, bare.name) in error.detail
    assert "CREATE EXTENSION cerebro" in error.hint and bare.name in error.hint


def test_segment_with_another_version(session, model, lost, database):
    other = database(
        "create extension cerebro cascade",
        "update pg_catalog.pg_extension set extversion = '0.0.1' where extname = 'cerebro'",
    )
    table, server = lost(session.cluster.node(1).port, other.name)
    error = session.refused(table, model, "label")
    assert error.sqlstate == "ML001" and server in error.message and "version" in error.message
    assert "0.0.1" in error.detail and "UPDATE" in error.hint


def test_segment_without_the_table(session, model, lost, database):
    empty = database("create extension cerebro cascade", "drop table far.rows")
    table, server = lost(session.cluster.node(1).port, empty.name)
    error = session.refused(table, model, "label")
    assert error.sqlstate == "42P01"
    assert error.message == 'segment "%s": relation "far.rows" does not exist' % server


def test_segment_without_the_column(session, model, lost, database):
    other = database("create extension cerebro cascade", "alter table far.rows drop b")
    table, server = lost(session.cluster.node(1).port, other.name)
    error = session.refused(table, model, "label")
    assert error.sqlstate == "42703"
    assert error.message == 'segment "%s": column "b" does not exist' % server


def test_segment_without_the_privilege(session, model):
    table = session.sharded(POINTS, points())
    part = "%s.%s" % (quoted(session.schema), quoted(table.parts[1]))
    session.cluster.node(2).execute("revoke select on %s from %s" % (part, ROLE))
    error = session.refused(table, model, "label")
    assert error.sqlstate == "42501"
    assert error.message == 'segment "segment_2": permission denied for table %s' % table.parts[1]


def test_shard_that_has_to_be_held_and_does_not_fit_the_memory(session, model):
    wide = np.zeros((300, 50), np.float32)
    wide[:, 0] = np.arange(300)
    table = session.sharded({"x": "real[]", "label": "boolean"}, {"x": wide, "label": np.arange(300) % 2 == 0})
    error = session.refused(table, model, "label", ["x"], memory="20kB", validation={"fraction": 0.2, "stratify": True})
    assert error.sqlstate == "53200"
    assert re.fullmatch(r'segment "segment_\d": the shard does not fit the memory that this run may use on its segment', error.message)
    assert re.fullmatch(r"The first \d+ rows take [\d.]+ MB, raw and encoded; [\d.]+ MB are allowed( and .*)?\.", error.detail)
    assert '"memory"' in error.hint


# ---- NULL and blank


@pytest.mark.parametrize("features", [["a", None], ["a", ""], ["a", " "]])
def test_null_or_blank_feature(session, model, good, features):
    error = session.refused(good, model, "label", features)
    assert (error.sqlstate, error.message) == ("22004", "a feature name is null or blank")
    assert error.detail == "It is number 2 of features."


def test_no_feature(session, model, good):
    error = session.error("select * from cerebro.fit('r', %s::text::regclass, %s, 'label', '{}')", good.name, model)
    assert (error.sqlstate, error.message) == ("22023", "there is no feature")


@pytest.mark.parametrize(
    "call",
    [
        "select * from cerebro.resume('no')", "select cerebro.drop_run('no')",
        "select * from cerebro.evaluate('no', 'pg_class')", "select cerebro.predict('no', array[1])",
    ],
)  # fmt: skip
def test_run_that_does_not_exist(session, call):
    assert session.error(call) == Refusal(
        "42704", 'run "no" does not exist', None, "select run, state from cerebro.run; shows all runs."
    )


def test_dropping_a_model_that_does_not_exist(session):
    error = session.error("select cerebro.drop_model('no')")
    assert (error.sqlstate, error.message) == ("42704", 'model "no" does not exist')


# ---- a run of that name exists


def test_replace_begins_anew(session, good, model):
    run = session.fit(good, model, "label")
    assert session.fit(good, model, "label", run=run, if_exists="replace", epochs=2) == run
    assert session.rows("select count(*) from cerebro.epoch where run = %s", run) == [(2,)]


def test_replace_of_nothing_is_a_beginning(session, good, model):
    run = session.fit(good, model, "label", if_exists="replace")
    assert session.rows("select state from cerebro.run where run = %s", run) == [("done",)]


def test_resume_of_what_is_done_gives_its_trials(session, good, model):
    statement, values = session.call(good, model, "label")
    first = session.rows(statement, *values)
    statement, values = session.call(good, model, "label", run=values[0], if_exists="resume")
    assert session.rows(statement, *values) == first
    assert session.rows("select * from cerebro.resume(%s)", values[0]) == first


def test_replace_that_is_refused_keeps_the_former_run(session, good, model):
    run = session.fit(good, model, "label")
    bad = session.sharded(POINTS, [(None, 1, True)] * 6)
    before = session.rows("select * from cerebro.trial where run = %s", run)
    error = session.refused(bad, model, "label", run=run, if_exists="replace")
    assert error.sqlstate == "22004"
    assert session.rows("select * from cerebro.trial where run = %s", run) == before
    assert session.rows("select cerebro.predict_class(%s, array[1, 2]) is not null", run) == [(True,)]
    session.fit(good, model, "label", run=run, if_exists="replace", epochs=3)
    assert session.rows("select count(*) from cerebro.epoch where run = %s", run) == [(3,)]


def test_replace_of_a_run_that_another_session_drives(session, good, model):
    run = session.fit(good, model, "label")
    number = session.rows("select id from cerebro_internal.visible_run where name = %s", run)[0][0]
    with session.cluster.connect() as driver:
        pid = driver.info.backend_pid
        driver.execute("select pg_advisory_lock(%s, 7)", [LOCK_CLASS])
        driver.execute("update cerebro_internal.visible_run set lock_key = 7, driver_pid = %s where id = %s", [pid, number])
        error = session.refused(good, model, "label", run=run, if_exists="replace")
    assert (error.sqlstate, error.message) == ("55006", 'run "%s" is being driven by another session' % run)
    assert error.detail == "The session of process %d holds it." % pid


# ---- names


ODD = {"Select": "real", 'a"b': "double precision", "Étiquette": "boolean", "with.dot": "real[]", "it's": "text"}


@pytest.fixture(scope="module")
def odd_rows():
    values = np.random.default_rng(3).normal(size=(60, 4)).round(3)
    return [
        (float(p), float(q), bool(p > q), [float(r), float(s)], "é" if k % 2 else "x.y")
        for k, (p, q, r, s) in enumerate(values)
    ]


@pytest.mark.parametrize("where", ["sharded", "local"])
def test_odd_names_work_end_to_end(session, odd_rows, where):
    name = "08e5-a b %s" % where
    make = session.sharded if where == "sharded" else session.local
    table = make(ODD, odd_rows, name=name)
    model, run = session.model(name="Model's \"x\".y " + where), "Run's \"x\".y %s $units %%" % where
    features = [column for column in ODD if column != "Étiquette"]
    session.conn.execute(
        "select * from cerebro.fit(%s, %s::text::regclass, %s, 'Étiquette', %s, %s)",
        [run, table.name, model, features, json.dumps({**QUICK, "segments": 2})],
    )
    assert session.rows("select source, state from cerebro.run where run = %s", run) == [
        ('%s."%s"' % (session.schema, name), "done")
    ]
    metrics = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
    assert set(metrics) == {"loss", "accuracy"}
    predicted = session.rows("select cerebro.predict_class(%%s, t) from %s t" % table.name.replace("%", "%%"), run)
    right = session.rows('select "Étiquette" from ' + table.name)
    accuracy = np.mean([(a == "true") == b for (a,), (b,) in zip(predicted, right)])
    assert accuracy == pytest.approx(metrics["accuracy"], abs=1e-6)
    assert [row[0] for row in session.rows("select relations from cerebro.segments(%s::text::regclass)", table.name)]
    session.conn.execute("select cerebro.drop_run(%s)", [run])
    session.conn.execute("select cerebro.drop_model(%s)", [model])


def test_odd_name_in_public(session, cluster, odd_rows):
    with cluster.connect(ADMIN) as admin:
        admin.execute(
            'create table "public"."08e5-a b"'
            ' ("Select" real, "a""b" float8, "Étiquette" boolean, "with.dot" real[], "it\'s" text);'
            'grant select on "public"."08e5-a b" to ' + ROLE
        )
        try:
            with admin.cursor() as cursor, cursor.copy('copy "public"."08e5-a b" from stdin') as stream:
                for row in odd_rows:
                    stream.write_row(row)
            run = session.fit('"public"."08e5-a b"', session.model(), "Étiquette", ['a"b', "Select"], segments=2)
            assert session.rows("select cerebro.predict_class(%s, '[1, 2]') is not null", run) == [(True,)]
        finally:
            admin.execute('drop table "public"."08e5-a b"')


def test_empty_search_path(session, at_one_segment, model):
    with session.cluster.connect() as connection:
        connection.execute("set search_path = ''")
        statement, values = session.call(at_one_segment, model, "label")
        assert connection.execute(statement, values).fetchone()[4] == "done"
        row = connection.execute(
            "select cerebro.predict(%s, t), cerebro.predict_class(%s, array[1.5, 2]) from {} t limit 1".format(at_one_segment.name),
            [values[0], values[0]],
        )
        assert row.fetchone()[0]["class"] in (True, False)
        assert connection.execute("select count(*) from cerebro.segments(%s::text::regclass)", [at_one_segment.name]).fetchone() == (1,)
        assert connection.execute("select bool_and(ok) from cerebro.doctor()").fetchone() == (True,)


def test_search_path_full_of_traps(session, at_one_segment, model):
    """Operators, functions and types of the caller's own that shadow the system's are not called."""
    session.conn.execute(
        "create schema if not exists {0};"
        "create or replace function {0}.to_json(anyelement) returns json language sql as 'select null::json';"
        "create or replace function {0}.quote_ident(text) returns text language sql as 'select null::text'".format(
            session.schema + "_trap"
        )
    )
    with session.cluster.connect() as connection:
        try:
            connection.execute("set search_path = %s_trap, pg_catalog" % session.schema)
            statement, values = session.call(at_one_segment, model, "label")
            assert connection.execute(statement, values).fetchone()[4] == "done"
            shown = connection.execute("select cerebro.predict_class(%s, array[1, 2])", [values[0]]).fetchone()
            assert shown[0] in ("true", "false")
        finally:
            connection.execute("drop schema %s_trap cascade" % session.schema)


# ---- a standby


@pytest.fixture(scope="module")
def standby(cluster):
    """The port of a streaming standby of the coordinator, in a folder of its own."""
    primary = cluster.coordinator
    folder = cluster.embedded.home / ("standby_" + uuid.uuid4().hex[:6])
    data, port = folder / "data", embedded.free_port()
    folder.mkdir()
    cluster.embedded.give(folder)
    hba = primary.server.data / "pg_hba.conf"
    before = hba.read_text()
    password = uuid.uuid4().hex
    with primary.connect(ADMIN) as admin:
        admin.execute("create role copier login replication password '%s'" % password)
        try:
            hba.write_text(before + "host replication copier 127.0.0.1/32 scram-sha-256\n")
            admin.execute("select pg_reload_conf()")
            _base_backup(cluster, data, password, primary.port)
            (data / "cerebro.conf").write_text(
                re.sub(r"port = \d+", "port = %d" % port, (data / "cerebro.conf").read_text())
            )
            cluster.embedded.command("pg_ctl", "start", "-s", "-w", "-D", data, "-l", folder / "log")
            try:
                yield port
            finally:
                cluster.embedded.command("pg_ctl", "stop", "-s", "-w", "-m", "immediate", "-D", data)
        finally:
            hba.write_text(before)
            admin.execute("select pg_reload_conf()")
            admin.execute("drop role copier")
            shutil.rmtree(folder)


def _base_backup(cluster, data: Path, password: str, port: int) -> None:
    account = cluster.embedded.account
    as_user = {"user": account.uid, "group": account.gid, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [cluster.embedded.tool("pg_basebackup"), "-D", data, "-R", "-c", "fast", "-X", "stream"]
    command += ["-d", "host=127.0.0.1 port=%d user=copier password=%s" % (port, password)]
    done = poll_until(lambda: _run(command, as_user), 20)
    assert done.returncode == 0, done.stderr


def _run(command, as_user):
    """The finished process, None while the primary has not yet read its new rule."""
    done = subprocess.run(command, text=True, capture_output=True, cwd="/", **as_user)
    return None if "no pg_hba.conf entry" in done.stderr else done


def test_standby_refuses_to_train_and_predicts(session, standby, good, model, done):
    lsn = session.cluster.coordinator.execute("select pg_current_wal_lsn()::text")[0][0]
    password = session.cluster.coordinator.server.password(ROLE)
    with psycopg.connect(
        host="127.0.0.1", port=standby, user=ROLE, password=password, dbname=embedded.DATABASE, autocommit=True
    ) as connection:
        poll_until(lambda: connection.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [lsn]).fetchone()[0])
        for call in ("fit", "resume", "drop_run"):
            error = refusal(session.cluster, connection, *_writing(session, good, model, done)[call])
            assert error == Refusal(
                "25006", "a standby cannot train", "A run is recorded as it goes, and this server takes no writes.",
                "Connect to the primary.",
            )  # fmt: skip
        for call in ("create_model", "drop_model"):
            error = refusal(session.cluster, connection, *_writing(session, good, model, done)[call])
            assert error.sqlstate == "25006"
        expected = session.rows("select cerebro.predict(%s, array[1, 2])", done)
        assert connection.execute("select cerebro.predict(%s, array[1, 2])", [done]).fetchall() == expected


# ----


def _bare(name: str) -> str:
    """A quoted name as PostgreSQL's quote_ident writes it."""
    return re.sub(r'"([a-z_][a-z0-9_]*)"', r"\1", name)


def _flat(call) -> list:
    statement, values = call
    return [statement, *values]


def test_trial_whose_metrics_cannot_be_computed_fails_alone(session, cluster):
    """The metrics of summed accumulators are computed by Keras, which may refuse, like everything it does."""
    table, model = session.sharded(POINTS, points()), session.model()
    name, types = "cerebro_internal.worker_summarize", "(jsonb, bytea[])"
    original = cluster.node(1).execute("select pg_get_functiondef('%s'::regprocedure)" % (name + types))[0][0]
    refusing = """
        create or replace function %s(spec jsonb, accumulators bytea[]) returns jsonb language plpgsql as $$
        begin
            if spec::text ilike '%%adam%%' then return '{"status": "failed", "error": "told so"}'; end if;
            return %s_kept(spec, accumulators);
        end $$""" % (name, name)
    run, nodes = session.name(), [cluster.connect(ADMIN, node=n) for n in range(1, len(cluster.nodes))]
    try:
        for node in nodes:
            node.execute(original.replace(name, name + "_kept"))
            node.execute(refusing)
        session.fit(table, model, "label", run=run, validation=0.25, epochs=2, search={"space": {"optimizer": ["adam", "sgd"]}})
    finally:
        for node in nodes:
            node.execute(original)
            node.execute("drop function if exists %s_kept%s" % (name, types))
            node.close()
    shown = session.rows("select params ->> 'optimizer', state, error from cerebro.trial where run = %s order by 1", run)
    assert shown == [("adam", "failed", "told so"), ("sgd", "done", None)]
