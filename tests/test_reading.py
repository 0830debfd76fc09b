"""What a run reads beyond plain columns of tables: expressions, a filter, a sample, views.

Each is held against a table that has the same rows and values stored: weights are then equal bit for bit.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest

from tests import outcome
from tests import requirements as requires
from tests.faults import armed, cancelled
from tests.session import LINE, LOGIT

WARM = True
pytestmark = requires.segments(3)

EVALUATE = "select * from cerebro.evaluate(%s, %s::text::regclass, %s::jsonb)"
PREDICT_TABLE = "select cerebro.predict_table(%s, %s::text::regclass, %s, '{id}', %s::jsonb)"
COUNT = 90
WRITES = "What is read calls a function that writes; rows are read in a transaction that can change no table."
STORED = "Have a table or a materialized view hold what the function gives, and name that."

COLUMNS = {"id": "integer", "price": "double precision", "area": "integer", "doc": "jsonb", "at": "timestamptz"}
# What rows are made into: the text, its type, and the same of a row in Python.
MADE = {
    "ln(price)": "double precision",
    "doc->>'kind'": "text",
    "(doc #>> '{size,w}')::int > 3": "boolean",
    "date_trunc('day', \"at\") -- the day": "timestamptz",
    "array[area, area % 7]": "integer[]",
    "(select sum(n) from unnest(array[area, 1]) n)": "bigint",
}
LABEL, WEIGHT, FILTER = "price > 5 and area % 2 = 0", "1 + area % 3", "area <> 4 /* four */ and doc ->> 'kind' <> 'hut'"


def made() -> list[list]:
    random = np.random.default_rng(4)
    return [
        [
            n, float(random.uniform(1, 9)), int(random.integers(1, 40)),
            json.dumps({"kind": ("house", "hut", "flat")[random.integers(3)], "size": {"w": int(random.integers(9))}}),
            "2026-01-%02d 13:00+00" % random.integers(1, 28),
        ]
        for n in range(COUNT)
    ]  # fmt: skip


def weights(session, run, shards):
    return outcome.weights(outcome.best(session.cluster, run, shards=shards))


def same(session, first, second, shards=3):
    for a, b in zip(weights(session, first, shards), weights(session, second, shards)):
        assert a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def table(session):
    return session.sharded(COLUMNS, made(), [30, 45, 15])


@pytest.fixture(scope="module")
def stored(session, table):
    """The same table with every expression as a column of its name, on each segment."""
    quoted = {text: '"%s"' % text.replace('"', '""') for text in [*MADE, LABEL, WEIGHT]}
    types = {**MADE, LABEL: "boolean", WEIGHT: "integer"}
    name = session.name("stored")
    columns = ", ".join("%s %s" % (quoted[text], type_) for text, type_ in types.items())
    session.conn.execute("create table %s (id integer, %s, shard integer) partition by list (shard)" % (name, columns))
    for k, part in enumerate(table.parts):
        node = session.cluster.node(table.segments[k])
        outputs = ", ".join("(%s\n) as %s" % (text, quoted[text]) for text in types)
        node.execute(
            "set role tester; set search_path = %s; set timezone = 'UTC'; create table %s_%d as select id, %s, shard from %s where %s"
            % (session.schema, name, k, outputs, part, FILTER)
        )
        session.conn.execute(
            "create foreign table {0}_{1} partition of {0} for values in ({1}) server segment_{2}"
            " options (schema_name '{3}', table_name '{0}_{1}')".format(name, k, table.segments[k], session.schema)
        )
    return "%s.%s" % (session.schema, name)


OPTIONS = {"epochs": 2, "order": "fixed", "sample_weight": WEIGHT, "validation": 0.2}


@pytest.fixture(scope="module")
def fitted(session, table):
    return session.fit(table, session.model(LOGIT), LABEL, list(MADE), filter=FILTER, **OPTIONS)


def test_expressions_and_a_filter_train_as_the_same_values_stored(session, table, stored, fitted):
    same(session, fitted, session.fit(stored, session.model(LOGIT), LABEL, list(MADE), **OPTIONS))


def test_a_table_that_has_a_column_of_that_name_is_read_by_it(session, table, stored, fitted):
    """The run's own expressions are evaluated over one table and found in the other; all answers are the same."""
    found = dict(session.rows(EVALUATE, fitted, table.name, json.dumps({"filter": FILTER})))
    assert found == dict(session.rows(EVALUATE, fitted, stored, "{}")) and found["loss"] > 0
    kept = session.rows("select count(*) from " + stored)[0][0]
    answers = []
    for source, options in ((table.name, {"filter": FILTER}), (stored, {})):
        target = "%s.%s" % (session.schema, session.name("scored"))
        assert session.rows(PREDICT_TABLE, fitted, source, target, json.dumps(options)) == [(kept,)]
        answers.append(session.rows("select id, prediction, probability from %s order by id" % target))
    assert answers[0] == answers[1] and 0 < kept < COUNT
    alone = session.rows(
        "select id, cerebro.predict_class(%%s, to_jsonb(r))::bool from %s r order by id" % stored, fitted
    )  # fmt: skip
    assert alone == [row[:2] for row in answers[0]], "a row has the texts as its keys"


def test_an_expression_goes_by_names_and_types_of_here(session):
    """On the segments the columns have other names, and one has a type by which a quotient would be another."""
    name, remote = session.name("here"), session.name("there")
    session.conn.execute("create table %s (x numeric, b int, y boolean) partition by list (y)" % name)
    for number, y in ((1, False), (2, True)):
        with session.cluster.connect("tester", node=number) as there:
            there.execute(
                'create table {0}.{1} ("A" int, x int, y boolean); insert into {0}.{1} select i, i % 7 + 1, {2}'
                " from generate_series(1, 60) i".format(session.schema, remote, y)
            )
        session.conn.execute(
            "create foreign table {0}_{1} (x numeric options (column_name 'A'), b int options (column_name 'x'), y boolean)"
            " server segment_{1} options (schema_name '{3}', table_name '{4}');"
            " alter table {0} attach partition {0}_{1} for values in ({2})".format(
                name, number, y, session.schema, remote
            )
        )
    stored = session.sharded(
        {"x / b": "numeric", "y": "boolean"},
        session.rows("select x / b, y from %s where b < 6 order by y, x" % name),
        [session.rows("select count(*) from %s where b < 6 and y = %s" % (name, y))[0][0] for y in (False, True)],
    )
    runs = [
        session.fit("%s.%s" % (session.schema, name), session.model(LOGIT), "y", ["x / b"], filter="b < 6", order="fixed"),
        session.fit(stored, session.model(LOGIT), "y", ["x / b"], order="fixed"),
    ]
    same(session, *runs, shards=2)


def test_an_expression_of_an_enum_or_a_domain_is_what_it_is_over(session):
    for node in session.cluster.nodes:
        node.execute(
            "set role tester; set search_path = %s; create type size as enum ('small', 'large');"
            " create domain whole as int" % session.schema
        )
    table = session.sharded({"n": "integer", "x": "real"}, [[k % 3, k] for k in range(30)])
    label = "case n % 2 when 1 then 'small' else 'large' end::" + session.schema + ".size"
    run = session.fit(table, session.model(LOGIT), label, ["(n + 1)::%s.whole" % session.schema, "x"], validation=0)
    found = "jsonb_path_query_array(encoders, '$.features[*].type'), encoders #> '{labels,0,classes}'"
    types, classes = session.rows("select %s from cerebro.run where run = %%s" % found, run)[0]
    assert (types, classes) == (["integer", "real"], ["small", "large"])


# ---- what is no expression over a row

REFUSED = [
    ("sum(price)", "42803", "aggregate functions are not allowed in WHERE"),
    ("row_number() over ()", "42P20", "window functions are not allowed in WHERE"),
    ("generate_series(1, area)", "0A000", "set-returning functions are not allowed in WHERE"),
    ("price +", "42601", "syntax error"),
    ("price, area", "42601", "syntax error"),
    ("price) from pg_class; drop table {table}; select (1", "42601", "syntax error"),
    ("price is null; drop table {table}; select 1 where true", "42601", "syntax error"),
    ("price end, case when true then 2", "42601", "syntax error"),
    ("select price", "42601", "syntax error"),
    ("$1 + price", "42P02", "there is no parameter $1"),
    ("nowhere(price)", "42883", "function nowhere(double precision) does not exist"),
    ("price || 'a' = 3", "42883", "operator does not exist"),
    ("cerebro_row.price", "42P01", "missing FROM-clause entry"),
    ("(cerebro_row.*)::text", "42P01", "missing FROM-clause entry"),
    ("row(*)::text", "42601", "syntax error"),
]


@pytest.mark.parametrize("text, sqlstate, words", REFUSED, ids=[text for text, _, _ in REFUSED])
def test_what_is_no_expression_over_a_row_is_refused(session, table, text, sqlstate, words):
    text = text.format(table=table.name)
    for what, arguments in (("feature", (LABEL, ["price", text], {})), ("filter", (LABEL, ["price"], {"filter": text}))):
        label, features, options = arguments
        error = session.refused(table, session.model(LOGIT), label, features, **options)
        assert error.sqlstate == sqlstate and words in error.detail, error
        assert error.message.startswith("the %s " % what) and error.hint
    assert session.rows("select count(*) from " + table.name) == [(COUNT,)]


def test_a_sub_select_over_a_table_is_refused(session, table):
    other = session.local({"x": "real"}, [[1.0]])
    texts = ("(select max(x) from {0})", "exists (select from {0} where x = price)", "price in (select x from {0})", "array(table {0})")
    for text in texts:
        error = session.refused(table, session.model(LOGIT), LABEL, [text.format(other.name)])
        assert (error.sqlstate, error.message[:11]) == ("0A000", "the feature") and "reads a table" in error.message, text
        assert "view" in error.hint


def test_columns_that_are_not_there_are_told_with_the_nearest_name(session, table):
    error = session.refused(table, session.model(LOGIT), LABEL, ["ln(prize)"])
    assert (error.sqlstate, error.message) == ("42703", 'column "prize" does not exist') and "ln(prize)" in error.detail
    error = session.refused(table, session.model(LOGIT), LABEL, ["Price"])
    assert (error.sqlstate, error.hint) == ("42703", 'Did you mean "price"?'), "a bare name names a column, exactly"
    for text in ("ctid::text", "tableoid::int"):
        assert session.refused(table, session.model(LOGIT), LABEL, [text]).sqlstate == "42703", "where a row lies is no part of it"
    for row in ("cerebro_row", table.table):
        error = session.refused(table, session.model(LOGIT), LABEL, ["to_jsonb(%s)->>'price'" % row])
        assert (error.sqlstate, error.message) == ("42703", 'column "%s" does not exist' % row), "it would have what else is read"


def test_an_expression_of_a_type_that_nothing_can_be_is_refused(session, table):
    error = session.refused(table, session.model(LOGIT), LABEL, ["doc -> 'size'"])
    assert (error.sqlstate, error.detail) == ("42804", "Its type is jsonb.")
    error = session.refused(table, session.model(LOGIT), "doc -> 'size'", ["price"])
    assert (error.sqlstate, error.message) == ("42804", 'column "doc -> \'size\'" cannot be a label')
    error = session.refused(table, session.model(LOGIT), LABEL, ["price"], filter="price + 1")
    assert (error.sqlstate, error.detail) == ("42804", "Its type is double precision.")
    error = session.refused(table, session.model(LOGIT), LABEL, ["price"], sample_weight="doc ->> 'kind'")
    assert (error.sqlstate, error.detail) == ("42804", "Its type is text.")


def test_an_error_in_a_row_reaches_the_caller_and_leaves_no_run(session, table):
    error = session.refused(table, session.model(LOGIT), LABEL, ["1 / (id - 7)"])
    assert (error.sqlstate, error.message) == ("22012", 'segment "segment_1": division by zero')
    assert error.hint.startswith("What is read gives this for some row")
    error = session.refused(table, session.model(LOGIT), LABEL, ["price"], filter="(doc ->> 'kind')::int > 1")
    assert error.sqlstate == "22P02" and "invalid input syntax for type integer" in error.message


def test_options_that_leave_no_row_are_named(session, table):
    error = session.refused(table, session.model(LOGIT), LABEL, ["price"], filter="price < -1")
    assert (error.sqlstate, error.message) == ("22000", 'no row of the source is left by the option "filter"')
    assert error.detail == "The filter price < -1 is true for none." and error.hint.startswith("Write one that is true for some rows")
    error = session.refused(table, session.model(LOGIT), LABEL, ["price"], filter="area > 0", sample=1e-9)
    assert (error.sqlstate, error.message) == ("22000", 'no row of the source is left by the options "filter" and "sample"')
    assert "The sample is 1e-09 of the rows." in error.detail and "Raise the sample" in error.hint


def test_a_number_that_double_precision_does_not_hold_is_refused_with_its_column(session):
    columns = {"a": "real", "n": "numeric", "m": "numeric", "label": "boolean"}
    local = session.local(columns, [[k, "1e310" if k == 7 else k, "1e-400" if k == 3 else k, k % 2 == 0] for k in range(20)])
    session.conn.execute("create view of_numerics as select * from " + local.name)
    for source in (local.name, session.schema + ".of_numerics"):
        error = session.refused(source, session.model(LOGIT), "label", ["a", "n"], segments=2)
        assert (error.sqlstate, error.message) == ("22003", 'column "n" holds a number that double precision does not hold')
        assert "PostgreSQL says: segment" in error.detail and "00…" in error.detail
        condition = error.hint[error.hint.index("abs(") : error.hint.rindex(".")]
        assert session.rows("select n > 1e300 from %s where not (%s)" % (local.name, condition)) == [(True,)]
    error = session.refused(local.name, session.model(LOGIT), "label", ["n", "m"], filter="n < 1e9")
    assert (error.sqlstate, error.message) == ("22003", 'one of the columns "n", "m" holds a number that double precision does not hold')


def test_an_expression_that_writes_fails_and_leaves_no_run(session, table):
    for node in session.cluster.nodes:
        node.execute(
            "set role tester; set search_path = {0}; create table diary (n int); create function note(n int) returns int language sql"
            " volatile as 'insert into {0}.diary values (n) returning 1'".format(session.schema)
        )
    error = session.refused(table, session.model(LOGIT), LABEL, ["%s.note(area)" % session.schema])
    assert error.sqlstate == "25006" and "read-only transaction" in error.message
    assert error.detail == WRITES and error.hint == STORED
    assert session.cluster.node(1).execute("select count(*) from %s.diary" % session.schema) == [(0,)]


# ---- rights


def test_only_the_columns_that_are_read_need_be_readable(session, make_role):
    """Of a table those that an expression mentions; of a view those that are named."""
    columns = {"a": "real", "b": "real", "secret": "real", "label": "boolean"}
    table, role, view = session.local(columns, [[k, k, k, k % 2 == 0] for k in range(20)]), make_role(), session.schema + ".partly"
    session.conn.execute("create view %s as select * from %s" % (view, table.name))
    grants = "grant usage on schema {0} to {1}; grant select (a, b, label) on {2} to {1}; grant select (a, label) on {3} to {1}"
    session.conn.execute(grants.format(session.schema, role, table.name, view))
    query = "select trial from cerebro.fit(%s, %s::text::regclass, 'line', %s, %s, '{\"epochs\": 1, \"validation\": 0}')"
    with session.cluster.connect(role) as connection:
        connection.execute("select cerebro.create_model('line', %s)", [json.dumps(LINE)])
        assert connection.execute(query, ["r", table.name, "b", ["a * 2 + length('secret')"]]).fetchall() == [(0,)]
        assert connection.execute(query, ["v", view, "case when label then 1.0 else 0.0 end", ["a"]]).fetchall() == [(0,)]
        for source in (table.name, view):
            with pytest.raises(Exception, match='permission denied for column "secret"|permission denied for view') as caught:
                connection.execute(query, ["s", source, "a", ["a + secret"]])
            assert caught.value.sqlstate == "42501"


def test_what_another_role_wrote_is_evaluated_for_that_role_only(session, table, stored, admin, make_role, fitted):
    """A member of the owner sees the run; who merely names it would run what it says."""
    member = make_role()
    admin.execute("grant tester to " + member)
    with session.cluster.connect(member) as connection:
        for query, values in (
            (EVALUATE, [fitted, table.name, "{}"]),
            (PREDICT_TABLE, [fitted, table.name, session.schema + ".scored", "{}"]),
        ):
            with pytest.raises(Exception, match="is evaluated for its author only") as caught:
                connection.execute(query, values)
            assert caught.value.sqlstate == "42501" and 'Role "tester" wrote it' in caught.value.diag.message_detail
        with pytest.raises(Exception, match="permission denied for schema"):  # on the segments, where it is no member
            connection.execute(EVALUATE, [fitted, stored, "{}"])


def test_a_run_is_resumed_by_its_owner_only(session, superuser, make_role):
    """Whatever its source leads to: here a view beside the rows, whose function acts as whoever reads it."""
    name = session.name("led")
    for number in (1, 2):
        session.cluster.node(number).execute(
            "set role tester; create function {0}.acts() returns int language plpgsql as"
            " $$ begin if current_user <> 'tester' then raise 'acts as %', current_user; end if; return 1; end $$;"
            "create view {0}.{1} as select k as a, {2} as label from generate_series(1, 40) k where {0}.acts() = 1;"
            "grant usage on schema {0} to public; grant select on {0}.{1} to public".format(session.schema, name, number == 1)
        )
    session.conn.execute("create table %s (a int, label boolean) partition by list (label)" % name)
    for number, label in ((1, True), (2, False)):
        session.conn.execute(
            "create foreign table {0}_{1} partition of {0} for values in ({2}) server segment_{1} options (table_name '{0}')".format(
                name, number, label
            )
        )
    session.conn.execute("grant usage on schema {0} to public; grant select on {1} to public".format(session.schema, name))
    run = session.fit("%s.%s" % (session.schema, name), session.model(LOGIT), "label", ["a"])
    superuser.execute("update cerebro_internal.run set state = 'failed' where name = %s", [run])
    member = make_role()
    superuser.execute("grant tester to " + member)
    with session.cluster.connect(member) as connection:
        for stranger in (connection, superuser):
            for call in ("resume", "submit"):
                with pytest.raises(Exception, match="is resumed by its owner only") as caught:
                    stranger.execute("select cerebro.%s(%%s)" % call, [run])
                assert caught.value.sqlstate == "42501" and "Connect as tester" in caught.value.diag.message_hint
    assert session.rows("select state from cerebro.run where run = %s", run) == [("failed",)]
    assert len(session.rows("select * from cerebro.resume(%s)", run)) == 1


# ---- a sample


def test_a_sample_is_the_same_rows_however_they_are_sharded(session, table):
    rows = session.rows("select price, area, price > 5 from %s order by id" % table.name)
    columns = {"price": "double precision", "area": "integer", "label": "boolean"}
    found = set()
    for sizes in ([COUNT, 0, 0], [20, 30, 40]):
        table = session.sharded(columns, rows, sizes)
        run = session.fit(table, session.model(LOGIT), "label", ["price", "area"], sample=0.4, validation=0.3)
        query = "select encoders #>> '{rows,train}', encoders #>> '{rows,validation}' from cerebro.run where run = %s"
        found.add(session.rows(query, run)[0])
    assert len(found) == 1 and 0 < sum(map(int, found.pop())) < COUNT * 0.6


def test_a_run_that_is_resumed_reads_the_same_rows(session, table, fitted):
    options = {**OPTIONS, "sample": 0.7, "filter": FILTER, "seed": 7}
    features = ["ln(price)", "doc->>'kind'"]
    whole = session.fit(table, session.model(LOGIT), LABEL, features, **options)
    run = session.name()
    statement, values = session.call(table, session.model(LOGIT), LABEL, features, run, **options)
    with armed(session.cluster.node(2), run, "mid-visit", 2) as reached, ThreadPoolExecutor(1) as pool:
        call = pool.submit(session.conn.execute, statement, values)
        reached()
        session.conn.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            call.result()
    session.rows("select trial from cerebro.resume(%s)", run)
    assert outcome.everything(session.cluster, run) == outcome.everything(session.cluster, whole)


# ---- views, and what else has no blocks


VIEWED = {"id": "integer", "a": "real", "kind": "text", "label": "boolean"}


@pytest.fixture(scope="module")
def local(session):
    return session.local(VIEWED, [[k, k * 7 % 31, "xyz"[k % 3], k % 7 < 3] for k in range(COUNT)])


@pytest.fixture(scope="module", autouse=True)
def in_order(session, local):
    session.conn.execute("create view in_order as select * from %s order by id" % local.name)


def test_a_view_is_read_as_a_table_of_its_rows(session, local):
    """A join, a computed column, a dropped and a generated one; a view of that view, and what is stored of it."""
    schema = session.schema
    session.conn.execute(
        "create table kinds (kind text, gone int, width real, twice real generated always as (width * 2) stored);"
        "alter table kinds drop column gone; insert into kinds values ('x', 1), ('y', 2), ('z', 5);"
        "create view joined as select t.*, k.twice + a as sum, width from {0} t join kinds k using (kind) order by a, id;"
        "create view again as select sum, kind, width, label, id from joined;"
        "create materialized view stored_again as select * from again;".format(local.name)
    )
    features, options = ["sum", "kind", "ln(width)"], {"segments": 1, "seed": 7, "epochs": 2}
    runs = [session.fit("%s.%s" % (schema, name), session.model(LOGIT), "label", features, **options) for name in ("again", "stored_again")]
    same(session, *runs, shards=1)
    counts = session.rows("select plan #>> '{stats,0,rows}' from cerebro_internal.visible_run where name = any(%s)", runs)
    assert counts == [(str(COUNT),)] * 2
    session.conn.execute("select cerebro.predict_table(%s, 'again', 'scored', '{id}')", [runs[0]])
    assert session.rows("select count(*) from scored") == [(COUNT,)]
    assert session.rows(EVALUATE, runs[0], schema + ".again", "{}") == session.rows(EVALUATE, runs[1], schema + ".stored_again", "{}")


def test_rows_of_a_view_are_dealt_to_its_workers(session, local):
    """The same rows, dealt by hand: weights and predictions are equal bit for bit, validation and ranks of rows included."""
    schema = session.schema
    rows = session.rows("select * from in_order")
    dealt = session.sharded(VIEWED, [row for k in range(2) for row in rows[k::2]], [45, 45])
    for validation in (0.3, {"fraction": 0.2, "stratify": True}):
        options = {"seed": 7, "epochs": 2, "order": "fixed", "validation": validation}
        runs = [
            session.fit(schema + ".in_order", session.model(LOGIT), "label", ["a", "kind"], segments=2, **options),
            session.fit(dealt, session.model(LOGIT), "label", ["a", "kind"], **options),
        ]
        same(session, *runs, shards=2)
    assert session.rows(EVALUATE, runs[0], schema + ".in_order", '{"segments": 2}') == session.rows(EVALUATE, runs[1], dealt.name, "{}")
    session.conn.execute("select cerebro.predict_table(%s, 'in_order', 'scored_in_order', '{id}')", [runs[0]])
    assert session.rows("select count(*) from scored_in_order") == [(COUNT,)]


def test_rows_that_change_from_scan_to_scan_are_read_once(session, local):
    """Shards are disjoint and complete, and a session that is lost gets its rows again."""
    session.conn.execute("create view shaken as select id, label, 0::real as a from %s order by random() limit 60" % local.name)
    model, options = session.model(LOGIT), {"segments": 2, "epochs": 2, "encoders": {"id": "one_hot"}}
    run, server = session.name(), session.cluster.coordinator
    with armed(server, run, "mid-visit", 2) as reached, ThreadPoolExecutor(1) as pool:
        trained = pool.submit(session.conn.execute, *session.call(session.schema + ".shaken", model, "label", ["id"], run, **options))
        server.execute("select pg_terminate_backend(%s)", [reached()])
        server.execute("delete from cerebro_internal.fault where run = %s", [run])
        assert len(trained.result().fetchall()) == 1
    assert session.rows("select attempt from cerebro.visit where run = %s and attempt > 1", run)
    (encoders,) = session.rows("select encoders from cerebro.run where run = %s", run)[0]
    kept = encoders["features"][0]
    assert encoders["rows"]["train"] == 60 and len(set(kept["vocabulary"])) == 60
    run = session.name()
    cancelled(session, server, run, "mid-visit", 2, *session.call(session.schema + ".shaken", model, "label", ["id"], run, **options))
    with pytest.raises(Exception, match="have changed since the run began") as caught:
        session.conn.execute("select * from cerebro.resume(%s)", [run])
    assert caught.value.sqlstate == "ML002" and "materialized view" in caught.value.diag.message_hint


def test_a_view_that_takes_too_long_leaves_no_transaction_open(session, local):
    session.conn.execute("create view slow as select t.* from %s t, lateral pg_sleep(0.2 + 0 * id)" % local.name)
    session.conn.execute("set statement_timeout = '2s'")
    try:
        error = session.refused(session.schema + ".slow", session.model(LOGIT), "label", ["a"], segments=2)
    finally:
        session.conn.execute("reset statement_timeout")
    assert error.sqlstate == "57014"
    assert session.fit(session.schema + ".in_order", session.model(LOGIT), "label", ["a"], segments=2, epochs=1)


def test_a_view_that_runs_out_of_memory_leaves_its_session_fit_for_the_next_call(session, local):
    """It is read once more, in the same session, when memory was made; that one stays."""
    workers = "select array_agg(pid order by pid) from pg_stat_activity where usename = 'tester' and application_name = 'cerebro worker'"
    session.conn.execute(
        "create function full_of(n int) returns boolean language plpgsql as"
        " $$ begin if n > 80 then raise 'no memory' using errcode = '53200'; end if; return true; end $$;"
        "create view full_view as select * from %s where full_of(id) order by id" % local.name
    )
    before = session.cluster.coordinator.execute(workers)
    error = session.refused(session.schema + ".full_view", session.model(LOGIT), "label", ["a"], segments=2)
    assert (error.sqlstate, error.message) == ("53200", 'segment "local_1": no memory')
    kept = session.cluster.coordinator.execute(workers)
    assert session.fit(session.schema + ".in_order", session.model(LOGIT), "label", ["a"], segments=2, epochs=1)
    assert session.cluster.coordinator.execute(workers) == kept, before


def test_a_view_of_a_table_that_was_changed_in_this_transaction(session, local):
    session.conn.execute("create view seen as select * from " + local.name)
    with session.conn.transaction(force_rollback=True):
        session.conn.execute("delete from %s where a < 3" % local.name)
        with pytest.raises(Exception, match="changed in this transaction") as caught:
            session.conn.execute(*session.call(session.schema + ".seen", session.model(LOGIT), "label", ["a"], session.name()))
        assert caught.value.sqlstate == "55000"


def test_a_view_that_writes_is_refused_with_what_repairs_it(session, local):
    session.conn.execute(
        "create table {0}.written (n int); create function {0}.writes(n int) returns int language sql volatile"
        " as 'insert into {0}.written values (n) returning 1';"
        "create view writing as select {0}.writes(id) as one, a, label from {1}".format(session.schema, local.name)
    )
    error = session.refused(session.schema + ".writing", session.model(LOGIT), "label", ["one", "a"])
    assert error.sqlstate == "25006" and error.detail == WRITES and error.hint == STORED


def test_a_materialized_view_that_is_not_populated_is_named_with_what_populates_it(session, local):
    session.conn.execute("create materialized view empty as select * from %s with no data" % local.name)
    session.conn.execute("create view through_empty as select * from empty")
    name = session.schema + ".empty"
    for source, detail in ((name, None), (session.schema + ".through_empty", "%s.through_empty reads it." % session.schema)):
        error = session.refused(source, session.model(LOGIT), "label", ["a"])
        assert (error.sqlstate, error.message) == ("55000", "materialized view %s has not been populated" % name)
        assert error.detail == detail and error.hint == "REFRESH MATERIALIZED VIEW %s;" % name


def test_a_foreign_table_that_is_on_no_segment(session, admin):
    path = "%s/filed.csv" % admin.execute("show data_directory").fetchone()[0]
    admin.execute("copy (select k, k %% 2 from generate_series(1, 40) k) to '%s' csv" % path)
    admin.execute("create extension if not exists file_fdw")
    admin.execute("create server files_%s foreign data wrapper file_fdw" % session.schema)
    try:
        admin.execute(
            "create foreign table {0}.filed (a int, label int) server files_{0} options (filename '{1}', format 'csv');"
            "grant select on {0}.filed to tester".format(session.schema, path)
        )
        run = session.fit(session.schema + ".filed", session.model(LOGIT), "label", ["a"], epochs=1, segments=2)
        assert session.rows("select encoders #>> '{rows,train}' from cerebro.run where run = %s", run) == [("40",)]
    finally:
        admin.execute("drop server files_%s cascade" % session.schema)
