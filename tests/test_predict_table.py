"""Whole tables predicted on their segments: what is written, where, and what is left when it goes wrong."""

from __future__ import annotations

import contextlib
import json
import threading

import numpy as np
import psycopg
import pytest

from tests import requirements as requires
from tests.cluster import ADMIN, ROLE, kill, poll_until
from tests.faults import armed
from tests.session import LINE, LOGIT, POINTS, Refusal, points

WARM = True
pytestmark = requires.segments(3)

SIGMOID = {"layers": [{"Dense": {"units": 1, "activation": "sigmoid"}}]}
KEYED = {"id": "integer", **POINTS}
CALL = "select cerebro.predict_table(%s, %s::text::regclass, %s, %s::text[], %s::jsonb)"
RECOVERY_SECONDS = 60.0


def keyed(count: int = 60, first: int = 0) -> dict:
    return {"id": np.arange(first, first + count), **points(count)}


@pytest.fixture(scope="module")
def source(session):
    """A sharded table whose partition column, `shard`, tells the segments apart."""
    return session.sharded(KEYED, keyed(), sizes=[30, 29, 1])


@pytest.fixture(scope="module")
def run(session, source):
    return session.fit(source, session.model(SIGMOID), "label")


@pytest.fixture
def target(session):
    return session.schema + "." + session.name("scored")


def values(run, table, target, key="{id}", **options) -> tuple:
    return run, table if isinstance(table, str) else table.name, target, key, json.dumps(options)


def predict(session, *call, **options) -> int:
    return session.rows(CALL, *values(*call, **options))[0][0]


def refused(session, *call, **options) -> Refusal:
    """The error of a call; it leaves no table."""
    before = made(session)
    error = session.error(CALL, *values(*call, **options))
    assert made(session) == before
    return error


def made(session) -> set[tuple]:
    """Every table that bears the mark of a call, on every node."""
    query = (
        "select c.oid::regclass::text from pg_description d join pg_class c on c.oid = d.objoid"
        " where d.objsubid = 0 and d.description ~ '^cerebro.(predict_table|pack) ' and c.relkind = 'r'"
    )
    return {(node.number, name) for node in session.cluster.nodes for (name,) in node.execute(query)}


def columns(session, name: str) -> dict:
    query = "select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = %s::text::regclass and attnum > 0"
    return dict(session.rows(query + " order by attnum", name))


# ---- what is written


def test_every_row_is_predicted_on_its_segment_as_predict_does_it(session, source, run, target):
    assert predict(session, run, source, target, columns=["label"], probabilities=True) == 60
    assert session.notices[-1].startswith("table %s: 60 rows on 3 segments, " % target)
    assert columns(session, target) == {
        "id": "integer", "label": "boolean", "prediction": "boolean", "probability": "real", "probabilities": "jsonb",
        "segment": "text",
    }  # fmt: skip
    assert session.rows("select segment, count(*) from %s group by 1 order by 1" % target) == [
        ("segment_1", 30), ("segment_2", 29), ("segment_3", 1),
    ]  # fmt: skip
    wrong = session.rows(
        "select s.*, t.* from %s s left join %s t using (id)"
        " where t.prediction::text is distinct from cerebro.predict_class(%%s, s) or t.label <> s.label"
        " or abs(t.probability - (cerebro.predict_probabilities(%%s, s) ->> t.prediction::text)::float8) > 1e-6"
        " or (t.probabilities ->> t.prediction::text)::real <> t.probability" % (source.name, target),
        run, run,
    )  # fmt: skip
    assert wrong == []


def test_target_is_partitioned_as_the_source_where_the_key_has_its_partition_columns(session, source, run, target):
    query = (
        "select pg_get_partkeydef(p.oid), array(select pg_get_expr(c.relpartbound, c.oid) || ' ' || s.srvname from pg_inherits i"
        " join pg_class c on c.oid = i.inhrelid join pg_foreign_table f on f.ftrelid = c.oid"
        " join pg_foreign_server s on s.oid = f.ftserver where i.inhparent = p.oid order by 1)"
        " from pg_class p where p.oid = %s::text::regclass"
    )
    hashed = session.sharded(KEYED, keyed(), key="id")
    for table, key in ((source, "{id,shard}"), (hashed, "{id}")):
        assert predict(session, run, table, target, key, if_exists="replace") == 60
        assert session.rows(query, target) == session.rows(query, table.name)
        assert session.rows("select count(*) from %s join %s using (%s)" % (target, table.name, key[1:-1])) == [(60,)]


def test_local_table_is_predicted_into_a_local_table(session, target):
    table = session.local({**KEYED, "y": "real"}, {**keyed(2000), "y": points(2000)["a"] * 3})
    run = session.fit(table, session.model(LINE), "y")
    assert predict(session, run, table, target, segments=2) == 2000
    assert session.notices[-1].startswith("table %s: 2000 rows on 2 segments, " % target)
    assert columns(session, target) == {"id": "integer", "prediction": "double precision"}
    far = "abs(prediction - cerebro.predict_value(%s, s)) > 1e-5 * greatest(1, abs(prediction))"
    assert session.rows("select * from %s s join %s t using (id) where id < 50 and %s" % (table.name, target, far), run) == []
    assert session.rows("select count(*) from %s join %s using (id)" % (table.name, target)) == [(2000,)]


KEYS = {
    "t": ("text", ["", "it's", 'say "x", (y)', "back\\slash\\", "é\n{NULL}"]),
    "u": ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1%d" % k for k in range(5)]),
    "at": ("timestamptz", ["2026-03-29 00:59:59.123456+00", "infinity", "-infinity", "0044-03-15 BC", "294276-01-01"]),
    "n": ("numeric", ["0.1", "1e-30", "-12345678901234567890.5", "NaN", "1.10"]),
    "f": ("float8", ["0.1", "1e308", "-0", "NaN", "4.9e-324"]),
    "y": ("bytea", [b"\x00\x01", b"\\", b'"', b"", b"\xff"]),
    "l": ("text[]", [["a,b", 'c"d'], [], ["NULL"], ["\\"], ["x"]]),
    "i": ("interval", ["1 mon -3 days 00:00:01.5", "-1 year", "0", "1 day", "10 hours"]),
    "c": ("char(3)", ["x", "y", "", "abc", "z"]),
    "d": ("daterange", ["[2026-01-01,2026-02-01)", "empty", "(,)", "[2026-01-01,)", "(,2025-01-01)"]),
}


def test_keys_of_any_type_arrive_as_they_were(session, run, target):
    types = {name: type_ for name, (type_, _) in KEYS.items()}
    rows = [[listed[k] for _, listed in KEYS.values()] + [float(k), 1.0, True] for k in range(5)]
    table = session.sharded({**types, **POINTS}, rows)
    assert predict(session, run, table, target, "{%s}" % ",".join(KEYS)) == 5
    assert {name: columns(session, target)[name] for name in KEYS} == {name: columns(session, table.name)[name] for name in KEYS}
    listed = ", ".join(name + "::text" for name in KEYS)
    assert session.rows("select %s from %s order by u" % (listed, target)) == session.rows(
        "select %s from %s order by u" % (listed, table.name)
    )


@pytest.mark.parametrize("label, type_", [("smallint", "smallint"), ("varchar(9)", "text"), ("numeric", "numeric")])
def test_prediction_has_the_type_of_the_label(session, target, label, type_):
    classes = [-7, 0, 40] if label != "varchar(9)" else ["it's", 'a "b", c\\', "é"]
    rows = [[k, k % 3, classes[k % 3]] for k in range(60)]
    table = session.sharded({"id": "int", "x": "real", "y": label}, rows)
    run = session.fit(table, session.model(LOGIT), "y", ["x"], task="classification", epochs=3, learning_rate=0.3)
    assert predict(session, run, table, target, probabilities=True) == 60
    assert columns(session, target)["prediction"] == type_
    wrong = "prediction::text <> cerebro.predict_class(%s, s) or (probabilities ->> prediction::text)::real <> probability"
    assert session.rows("select * from %s s join %s t using (id) where %s" % (table.name, target, wrong), run) == []
    assert session.rows("select count(*) from %s where prediction is null" % target) == [(0,)]


@pytest.fixture(scope="module")
def holes(session):
    """Rows with NULL, NaN and infinity in numbers, arrays and texts; 10 of 16 are whole; a text that no run has seen."""
    nan, inf = float("nan"), float("inf")
    rows = [[k, float(k), [1.0, float(k % 3)], "xy"[k % 2], k % 2 == 0] for k in range(16)]
    spoilt = [(1, None), (1, nan), (2, [1.0, inf]), (2, None), (2, [None, 1.0]), (3, None)]
    for k, (column, value) in enumerate(spoilt):
        rows[k][column] = value
    rows[15][3] = "never seen"
    types = {"id": "int", "a": "float8", "x": "real[]", "t": "text", "label": "boolean"}
    table = session.sharded(types, rows, sizes=[3, 13])
    whole = session.sharded(types, rows[6:15] * 3)
    return table, session.fit(whole, session.model(SIGMOID), "label", ["a", "x", "t"])


def test_rows_with_null_have_no_prediction(session, holes, target):
    table, run = holes
    assert predict(session, run, table, target, probabilities=True) == 16
    assert "16 rows on 2 segments, 6 without prediction (a feature is NULL, NaN, infinite or not readable)" in session.notices[-1]
    unknown = "select id from %s where prediction is null and probability is null and probabilities is null order by id"
    assert session.rows(unknown % target) == [(k,) for k in range(6)]
    assert session.rows("select count(*) from %s where prediction is not null" % target) == [(10,)]


def test_rows_with_null_are_skipped_or_refused_if_asked(session, holes, target):
    table, run = holes
    error = refused(session, run, table, target, nulls="error")
    assert (error.sqlstate, error.message[:9]) == ("22004", "segment \"")
    assert "is NULL, NaN or infinite" in error.message and 'such row begins with (' in error.detail and '"skip"' in error.hint
    assert predict(session, run, table, target, nulls="skip") == 10
    assert "10 rows on 2 segments, 6 skipped" in session.notices[-1]
    assert session.rows("select min(id), count(prediction) from %s" % target) == [(6, 10)]


def test_name_without_schema_is_where_create_table_would_make_it(session, source, run):
    assert predict(session, run, source, '"Scored, all"') == 60
    assert session.rows("select count(*) from %s.\"Scored, all\"" % session.schema) == [(60,)]
    assert predict(session, run, source, "SCORED_low") == 60
    assert session.rows("select count(*) from scored_low") == [(60,)]


# ---- replace and append


@contextlib.contextmanager
def reader(session, target: str):
    """Somebody who counts the table's rows again and again; gives what was seen."""
    seen, stop = [], threading.Event()

    def read():
        with session.cluster.connect() as connection:
            while not stop.is_set():
                try:
                    seen.append(connection.execute("select count(*)::int, min(segment_of)::int from " + target).fetchone())
                except psycopg.Error as error:
                    seen.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("kind", ["sharded", "local"])
def test_reader_sees_the_old_rows_or_the_new_ones(session, run, target, kind):
    make = getattr(session, kind)
    tables = [make({**KEYED, "segment_of": "int"}, {**keyed(count), "segment_of": np.full(count, count)}) for count in (400, 500)]
    predict(session, run, tables[0], target, columns=["segment_of"])
    session.conn.execute("grant select on %s to public" % target)
    with reader(session, target) as seen:
        poll_until(lambda: seen)
        for number in range(1, 5):
            predict(session, run, tables[number % 2], target, columns=["segment_of"], if_exists="replace")
        count = len(seen)
        poll_until(lambda: len(seen) > count + 1)
    assert set(seen) == {(400, 400), (500, 500)}
    assert session.rows("select relacl::text like %s from pg_class where oid = %s::text::regclass", "%=r/%", target) == [(True,)]


@pytest.mark.parametrize("kind", ["sharded", "local"])
def test_rollback_takes_a_replacement_back(session, run, target, kind):
    before, after = getattr(session, kind)(KEYED, keyed(400)), getattr(session, kind)(KEYED, keyed(500))
    predict(session, run, before, target)
    there = made(session)
    with session.conn.transaction(force_rollback=True):
        assert predict(session, run, after, target, if_exists="replace") == 500
        assert session.rows("select count(*) from " + target) == [(500,)]
    assert session.rows("select count(*) from " + target) == [(400,)]
    predict(session, run, after, target, if_exists="replace")
    predict(session, run, after, target + "_2")
    gone = {table for table in there if target.split(".")[1] in table[1]}
    assert session.rows("select count(*) from " + target) == [(500,)]
    if kind == "sharded":
        assert not gone & made(session)


def test_what_is_replaced_twice_in_one_transaction_comes_back_when_that_is_rolled_back(session, source, run, target):
    predict(session, run, source, target)
    with session.conn.transaction(force_rollback=True):
        for _ in range(2):
            predict(session, run, source, target, if_exists="replace")
    assert session.rows("select count(*) from " + target) == [(60,)]


def test_segments_that_a_replaced_table_alone_lay_on_are_cleared_by_the_next_replacement(session, source, run, target):
    few = session.sharded(KEYED, keyed(10), sizes=[10])
    predict(session, run, source, target)
    there = {table for table in made(session) if target.split(".")[1] in table[1]}
    assert len({number for number, _ in there}) == 3
    for _ in range(2):
        assert predict(session, run, few, target, if_exists="replace") == 10
    assert not there & made(session)
    assert session.rows("select count(*) from " + target) == [(10,)]


@pytest.mark.parametrize("kind, key", [("sharded", "{id}"), ("sharded", "{id,shard}"), ("local", "{id}")])
def test_append_replaces_rows_of_the_same_key_and_adds_the_others(session, run, target, kind, key):
    make = getattr(session, kind)
    first = make(KEYED, keyed(400))
    assert predict(session, run, first, target, key, if_exists="append", columns=["a"]) == 400
    before = dict(session.rows("select id, a from " + target))
    # The same rows, some changed, on the same segments; and further ones.
    sizes = {"sizes": [134, 133, 133, 20], "segments": [1, 2, 3, 3]} if kind == "sharded" else {}
    second = make(KEYED, {**keyed(420), "a": np.arange(420.0)}, **sizes)
    assert predict(session, run, second, target, key, if_exists="append", columns=["a"]) == 420
    after = dict(session.rows("select id, a from " + target))
    assert len(before) == 400 and after == {k: float(k) for k in range(420)} and after != before
    assert session.rows("select count(*) from " + target) == [(420,)]
    wrong = "prediction::text <> cerebro.predict_class(%s, s)"
    assert session.rows("select * from %s s join %s t using (id) where %s" % (second.name, target, wrong), run) == []


def test_append_attaches_what_lies_on_a_further_segment(session, run, target):
    one = session.sharded(KEYED, keyed(10), sizes=[5, 5])
    two = session.sharded(KEYED, keyed(10, first=10), sizes=[5, 5], segments=[2, 3])
    predict(session, run, one, target)
    assert predict(session, run, two, target, if_exists="append") == 10
    assert session.rows("select segment, count(*) from %s group by 1 order by 1" % target) == [
        ("segment_1", 5), ("segment_2", 10), ("segment_3", 5),
    ]  # fmt: skip


# ---- what is refused


@pytest.mark.parametrize("kind", ["sharded", "local"])
def test_key_that_does_not_tell_rows_apart(session, run, target, kind):
    table = getattr(session, kind)(KEYED, {**keyed(500), "id": [*range(1, 500), 499]})
    error = refused(session, run, table, target)
    assert error.sqlstate == "23505" and "share a key" in error.message and error.detail == "Key (id)=(499) is duplicated."
    assert "key" in error.hint


def test_key_that_is_null(session, run, target):
    table = session.sharded(KEYED, [[None if k == 4 else k, 1.0, 2.0, True] for k in range(10)])
    error = refused(session, run, table, target)
    assert error.sqlstate == "22004" and "key of a row is null" in error.message


def test_calls_that_make_no_sense(session, source, run, target):
    existing = session.local(KEYED, keyed(500))
    session.conn.execute("create view %s_view as select 1 as id" % target)
    for call, options, sqlstate, words in [
        ((run, source, target, "{}"), {}, "22004", "key"),
        ((run, source, target, "{id,id}"), {}, "22023", "twice"),
        ((run, source, target, "{idd}"), {}, "42703", '"id"'),
        ((run, source, target), {"columns": ["nothing"]}, "42703", "nothing"),
        ((run, source, target), {"columns": "id"}, "22023", "columns"),
        ((run, source, target), {"probabilitys": True}, "22023", "probabilities"),
        ((run, source, target), {"trial": 9}, "42704", "no trial 9"),
        (("no such run", source, target), {}, "42704", "no such run"),
        ((run, source, "a.b.c"), {}, "22023", "no name"),
        ((run, source, "a b"), {}, "22023", "no name"),
        ((run, source, "nowhere.t"), {}, "22023", "CREATE SCHEMA nowhere"),
        ((run, source, source.name), {"if_exists": "replace"}, "22023", "source and target"),
        ((run, source, existing.name), {}, "42710", "already exists"),
        ((run, source, existing.name), {"if_exists": "replace"}, "55000", "not made by"),
        ((run, source, existing.name), {"if_exists": "append"}, "0A000", "sharded otherwise"),
        ((run, existing, target), {"columns": ["a"], "if_exists": "append"}, None, None),
        ((run, existing, target), {"columns": ["b"], "if_exists": "append"}, "42703", '"b"'),
        ((run, existing, target, "{id,a}"), {"if_exists": "append"}, "22023", "another key"),
        ((run, source, target + "_view"), {"if_exists": "replace"}, "0A000", "not a table"),
    ]:
        if sqlstate is None:
            predict(session, *call, **options)
            continue
        error = refused(session, *call, **options)
        assert error.sqlstate == sqlstate and words in "%s %s %s" % (error.message, error.detail, error.hint), (call, error)
        assert error.hint


def test_rows_are_not_appended_to_a_table_that_tells_no_keys_apart(session, source, run, target):
    local = session.local(KEYED, keyed(10))
    session.conn.execute("create table %s (id integer, prediction boolean, probability real)" % target)
    error = refused(session, run, local, target, if_exists="append")
    assert (error.sqlstate, error.message) == ("55000", "table %s has no unique index on the key" % target)
    session.conn.execute(error.hint)
    assert predict(session, run, local, target, if_exists="append") == 10
    predict(session, run, source, target + "_2")
    number, name = next(there for there in made(session) if there[0] and target.split(".")[1] + "_2" in there[1])
    node = next(node for node in session.cluster.nodes if node.number == number)
    ((key,),) = node.execute("select conname from pg_constraint where conrelid = %s::regclass and contype = 'p'", [name])
    node.execute("alter table %s drop constraint %s" % (name, key))
    error = refused(session, run, source, target + "_2", if_exists="append")
    assert error.sqlstate == "55000" and error.message.endswith("has no unique index on the key") and 'segment "' in error.message


@pytest.mark.parametrize("kind", ["sharded", "local"])
def test_rows_are_not_appended_where_the_key_is_checked_late(session, run, target, kind):
    table = getattr(session, kind)(KEYED, keyed(10))
    predict(session, run, table, target)
    number, name = next(there for there in made(session) if target.split(".")[1] in there[1])
    node = next(node for node in session.cluster.nodes if node.number == number)
    ((key,),) = node.execute("select conname from pg_constraint where conrelid = %s::regclass and contype = 'p'", [name])
    node.execute("alter table %s drop constraint %s, add constraint late unique (id) deferrable" % (name, key))
    error = refused(session, run, table, target, if_exists="append")
    assert error.sqlstate == "55000" and error.message.startswith("the unique constraint on the key of table ")
    node.execute(error.hint)
    assert predict(session, run, table, target, if_exists="append") == 10


def test_rows_are_not_appended_to_a_table_whose_partitions_are_cut_otherwise(session, source, run, target):
    columns = "id integer, prediction boolean, probability real, segment text"
    session.conn.execute("create table %s (%s) partition by list (segment)" % (target, columns))
    servers = session.rows("select segment from cerebro.segments(%s::text::regclass) order by 1", source.name)
    both = ", ".join("'%s'" % server for (server,) in servers[:2])
    session.conn.execute("create table %s_p partition of %s for values in (%s)" % (target, target, both))
    error = refused(session, run, source, target, if_exists="append")
    assert error.sqlstate == "0A000" and "would overlap" in error.detail and error.hint
    session.conn.execute("drop table %s_p; alter table %s add column more integer" % (target, target))
    error = refused(session, run, source, target, if_exists="append")
    assert error.sqlstate == "0A000" and '"more"' in error.detail and error.hint
    session.conn.execute("alter table %s drop column more" % target)
    assert predict(session, run, source, target, if_exists="append") == 60


def test_names_of_the_segment_column_cannot_both_be_carried(session, run, target):
    names = ("segment", "cerebro_segment")
    table = session.sharded({**KEYED, **dict.fromkeys(names, "int")}, {**keyed(6), **dict.fromkeys(names, [1] * 6)})
    error = refused(session, run, table, target, columns=[*names])
    assert error.sqlstate == "22023" and "cannot both" in error.message and error.hint


def test_table_that_a_view_depends_on_is_not_replaced(session, source, run, target):
    predict(session, run, source, target)
    session.conn.execute("create view %s_view as select * from %s" % (target, target))
    error = refused(session, run, source, target, if_exists="replace")
    assert error.sqlstate == "2BP01" and "depends on" in error.detail and "append" in error.hint
    assert session.rows("select count(*) from %s_view" % target) == [(60,)]


@pytest.mark.parametrize("kind", ["sharded", "sharded, on a segment", "local"])
def test_table_with_row_security_is_not_replaced(session, source, run, target, kind):
    """Its policies would be lost, and those whom it is granted to would see all."""
    table = source if kind.startswith("sharded") else session.local(KEYED, keyed(20))
    predict(session, run, table, target)
    tables = [name for _, name in sorted(made(session)) if target.split(".")[1] in name]
    node = next(node for node in session.cluster.nodes if (node.number, tables[0]) in made(session))
    if kind == "sharded, on a segment":
        node.execute("alter table %s enable row level security" % tables[0])
    else:
        session.conn.execute("alter table %s enable row level security" % target)
    error = refused(session, run, table, target, if_exists="replace")
    assert error.sqlstate == "0A000" and "row security" in error.message and "append" in error.hint
    assert predict(session, run, table, target, if_exists="append") == len(session.rows("select 1 from " + table.name))


def test_table_that_only_has_a_partition_of_predictions_is_not_replaced(session, run, target):
    table = session.local(KEYED, keyed(10))
    predict(session, run, table, target)
    session.conn.execute("create table %s_all (like %s) partition by range (id)" % (target, target))
    session.conn.execute("alter table %s_all attach partition %s for values from (0) to (10)" % (target, target))
    error = refused(session, run, table, target + "_all", if_exists="replace")
    assert error.sqlstate == "55000" and "not made by" in error.message


def test_no_type_that_a_run_speaks_of_is_taken_for_sql(session, run, target):
    """Members of a role can write its runs; what one has written is not done by another."""
    table = session.local(KEYED, keyed(10))
    with session.conn.transaction(force_rollback=True):
        session.conn.execute(
            "update cerebro_internal.visible_run set encoders = jsonb_set(encoders, '{labels,0,type}', to_jsonb(%s::text)) where name = %s",
            ["boolean, add column injected integer", run],
        )
        with pytest.raises(psycopg.Error) as caught:
            session.conn.execute(CALL, values(run, table, target))
    error = Refusal.of(caught.value)
    assert error.sqlstate == "42804" and "injected" in error.detail and error.hint


def test_arrays_of_another_shape(session, holes, target):
    table = session.sharded({"id": "int", "a": "float8", "x": "real[]", "t": "text"}, [[1, 1.0, [1.0, 2.0, 3.0], "x"]], [1, 0])
    error = refused(session, holes[1], table, target)
    assert error.sqlstate == "2202E" and "[3]" in error.detail and "[2]" in error.detail


def test_type_that_has_no_order_is_no_key(session, run, target):
    table = session.local({**KEYED, "p": "json"}, {**keyed(500), "p": ["{}"] * 500})
    error = refused(session, run, table, target, "{p}")
    assert error.sqlstate == "42804" and '"p"' in error.message
    assert predict(session, run, table, target, columns=["p"]) == 500


# ---- rights


@pytest.fixture
def other(session, source, make_role):
    """A role that sees the session's runs and may read its table, on every node, and has no further right there."""
    role = make_role()
    for node in session.cluster.nodes:
        node.execute("alter role %s noinherit; grant %s to %s; grant usage on schema %s to %s" % (role, ROLE, role, session.schema, role))
        node.execute("grant select on all tables in schema %s to %s" % (session.schema, role))
    return role


def test_other_roles_need_a_right_to_create_tables_everywhere(session, source, run, other, make_schema):
    def error() -> Refusal:
        with session.cluster.connect(other) as connection, pytest.raises(psycopg.Error) as caught:
            connection.execute(CALL, values(run, source, schema + ".t"))
        return Refusal.of(caught.value)

    schema = session.name("theirs")
    make_schema(schema)
    refusal = error()
    assert refusal.sqlstate == "42501" and refusal.hint.endswith("GRANT CREATE ON SCHEMA %s TO …;" % schema)
    for node in session.cluster.nodes[:2]:
        node.execute("grant usage, create on schema %s to %s" % (schema, other))
    refusal = error()
    assert refusal.sqlstate == "42501" and refusal.message.startswith('segment "segment_') and "CREATE ON SCHEMA" in refusal.hint
    session.conn.execute("revoke select on %s from %s" % (source.name, other))
    assert error().message == "permission denied for table %s.%s" % (source.schema, source.table)
    assert not [name for _, name in made(session) if schema in name]


def test_rows_are_put_into_the_parts_of_a_table_only_by_who_may_put_them_into_the_table(session, run, target, other):
    source = session.sharded(KEYED, keyed(), sizes=[60])
    predict(session, run, source, target)
    for node in session.cluster.nodes:
        node.execute("grant create on schema %s to %s" % (session.schema, other))
        node.execute("grant select, insert, update on all tables in schema %s to %s" % (session.schema, other))
    session.conn.execute("revoke insert on %s from %s" % (target, other))
    session.conn.execute("create policy mine on %s using (id < 10)" % target)
    call = values(run, source, target, if_exists="append")
    with session.cluster.connect(other) as connection:
        connection.autocommit = True
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table %s" % target):
            connection.execute(CALL, call)
        session.conn.execute("grant insert on %s to %s; alter table %s enable row level security" % (target, other, target))
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="row security on table"):
            connection.execute(CALL, call)
        session.conn.execute("alter table %s disable row level security" % target)
        assert connection.execute(CALL, call).fetchone() == (60,)


# ---- what stops it


HOW = {
    "cancelled in mid-table": "57014", "cancelled before the swap": "57014", "terminated before the swap": "57P01",
    "segment killed in mid-table": "08006",
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_call_that_is_stopped_leaves_the_target_as_it_was(session, source, run, target, how):
    predict(session, run, session.sharded(KEYED, keyed(10)), target)
    there, errors = made(session), []
    point = "before-swap" if "swap" in how else "mid-table"
    node = session.cluster.coordinator if "swap" in how else session.cluster.segments[1]
    with contextlib.ExitStack() as stack:
        terminated = how.startswith("terminated")  # such a call is made in a session of its own
        caller = stack.enter_context(session.cluster.connect()) if terminated else session.conn

        def call():
            try:
                caller.execute(CALL, values(run, source, target, if_exists="replace"))
            except psycopg.Error as error:
                errors.append(Refusal.of(error))

        thread = threading.Thread(target=call)
        with armed(node, run, point, 1) as reached:
            thread.start()
            waiting = reached()
            if how.startswith("segment"):
                kill(waiting)
            else:
                function = "pg_terminate_backend" if terminated else "pg_cancel_backend"
                session.cluster.coordinator.execute("select %s(%%s)" % function, [caller.info.backend_pid])
            thread.join()
            poll_until(lambda: answers(node), RECOVERY_SECONDS)
    assert [error.sqlstate for error in errors] == [HOW[how]]
    poll_until(session.cluster.idle_backends, RECOVERY_SECONDS)
    assert session.rows("select count(*) from " + target) == [(10,)]
    if how.startswith("cancelled"):
        assert made(session) == there
    assert predict(session, run, source, target, if_exists="replace") == 60
    predict(session, run, source, target + "_2")
    assert len([name for _, name in made(session) if target.split(".")[1] in name]) == 6


def answers(node) -> bool:
    try:
        return bool(node.execute("select true", role=ADMIN))
    except psycopg.OperationalError:
        return False
