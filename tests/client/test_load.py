"""The loader: the package's file, routing, what is reused and what is loaded again."""

from __future__ import annotations

import datetime

import psycopg
import pytest

from cerebro_udf.client import load
from tests import requirements as requires


@pytest.fixture(scope="module")
def flights():
    return list(load.read())


@pytest.fixture
def few(flights):
    """300 flights of January and 60 of December, numbered anew."""
    december = [row for row in flights if row[2] == 12][:60]
    return [[number, *row[1:]] for number, row in enumerate(flights[:300] + december, 1)]


@pytest.fixture
def owner(cluster, schema):
    """A connection whose search_path begins with the test's schema; parts on segments are dropped after."""
    options = "-c search_path=" + schema
    with cluster.connect(options=options) as connection:
        yield connection
        for name in load.COMMENTS:
            load.drop_parts(connection, name)


def test_file_is_complete_and_typed(flights):
    assert len(flights) == 336_776
    first = dict(zip(load.COLUMNS, flights[0]))
    assert (first["id"], first["arr_delay"], first["late"], first["carrier"]) == (1, 11, False, "UA")
    assert first["time_hour"] == datetime.datetime(2013, 1, 1, 10, tzinfo=datetime.timezone.utc)


def test_late_is_null_exactly_where_the_arrival_is(flights):
    delay, late = list(load.COLUMNS).index("arr_delay"), list(load.COLUMNS).index("late")
    assert sum(row[late] is None for row in flights) == 9_430
    assert all((row[late] is None) == (row[delay] is None) for row in flights)
    assert {row[late] for row in flights if row[delay] == 15} == {False}
    assert {row[late] for row in flights if row[delay] == 16} == {True}


@requires.segments(3)
def test_every_row_lies_where_the_server_would_put_it(owner, few):
    loaded = load.load(owner, 3, say=lambda _: None, rows=few)
    assert loaded == {"flights": 300, "flights_holdout": 60}
    for number in range(3):
        misplaced = owner.execute(
            # Materialized: the function would else be asked on the segment, which has no such parent.
            "with ids as materialized (select id from flights_%d) select count(*) from ids"
            " where not satisfies_hash_partition('flights'::regclass, 3, %d, id)" % (number + 1, number)
        )
        assert misplaced.fetchone() == (0,)
    assert owner.execute("select array_agg(distinct month) from flights").fetchone() == ([1],)
    assert owner.execute("select count(*), min(month) from flights_holdout").fetchone() == (60, 12)


@requires.segments(2)
def test_loaded_tables_are_reused_and_other_segments_load_anew(owner, few):
    load.load(owner, 2, say=lambda _: None, rows=few)
    assert load.load(owner, 2, say=lambda _: None, rows=few) == {}
    assert load.load(owner, 1, say=lambda _: None, rows=few) == {"flights": 300, "flights_holdout": 60}
    left = load.segments(owner)[1].connect().execute(
        "select count(*) from pg_tables where schemaname = current_user and tablename ~ '^flights'"
    )  # fmt: skip
    assert left.fetchone() == (0,)


def test_half_a_load_does_not_count(owner, few, monkeypatch):
    def fails(*_):
        raise psycopg.OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(load, "send", fails)
        with pytest.raises(psycopg.OperationalError):
            load.load(owner, 1, say=lambda _: None, rows=few)
    assert load.load(owner, 1, say=lambda _: None, rows=few)["flights"] == 300


def test_a_table_of_somebody_elses_making_is_kept(owner, few):
    owner.execute("create table flights (a int)")
    with pytest.raises(RuntimeError, match="not nycflights13"):
        load.load(owner, 1, say=lambda _: None, rows=few)
    assert owner.execute("select count(*) from flights").fetchone() == (0,)


def test_too_few_segments_are_named(owner):
    with pytest.raises(RuntimeError, match="65 are wanted"):
        load.segments(owner, 65)
