"""What the types of columns mean, without a server."""

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_udf import columns, errors
from cerebro_udf.coordinator import per_column


@given(st.dates())
def test_days_are_those_of_the_calendar(date):
    assert columns.days(date.isoformat()) == (date - datetime.date(1970, 1, 1)).days


@pytest.mark.parametrize(
    "date, days",
    [
        ("infinity", math.inf),
        ("-infinity", -math.inf),
        ("0001-12-31 BC", columns.days("0001-01-01") - 1),
        ("4714-11-24 BC", -2_440_588),  # day 0 of the Julian calendar's count
        ("10000-01-01", columns.days("9999-12-31") + 1),
    ],
)
def test_days_of_dates_that_python_does_not_have(date, days):
    assert columns.days(date) == days


@pytest.mark.parametrize(
    "type_, encoder, kind",
    [
        ("integer", None, "number"),
        ("bigint", "embedding", "text"),
        ("bigint", {"embedding": {"dim": 4}}, "text"),
        ("boolean", "one_hot", "text"),
        ("date", None, "number"),
        ("date", "one_hot", "text"),
        ("timestamp with time zone", "none", "number"),
        ("uuid", None, "text"),
        ("enum", None, "text"),
        ("character varying(20)", None, "text"),
        ("numeric(10,2)[]", None, "array"),
        ("boolean[]", None, "array"),
        ("date[]", None, None),
        ("text[]", None, None),
        ("real[][]", None, None),  # an array of a domain over arrays
        ("json", None, None),
        ("time with time zone", None, "number"),
    ],
)
def test_the_type_and_the_encoder_say_how_a_feature_is_read(type_, encoder, kind):
    assert columns.kind(type_, encoder) == kind


@pytest.mark.parametrize(
    "type_, encoder",
    [("text", "none"), ("real", "one_hot"), ("timestamp without time zone", "embedding"), ("uuid", "standardize"), ("real[]", "one_hot")],
)
def test_an_encoder_that_a_type_cannot_have_is_refused_with_those_that_it_can(type_, encoder):
    with pytest.raises(errors.InvalidArgument, match='encoder "%s" does not fit column "x"' % encoder) as caught:
        per_column.check_encoders({"x": encoder}, {"x": type_}, ["x"])
    assert all(fitting in caught.value.hint for fitting in columns.encoders_of(type_))


@pytest.mark.parametrize(
    "one, other, kind, same",
    [
        ("smallint", "numeric", "number", True),
        ("date", "timestamp with time zone", "number", True),
        ("date", "integer", "number", False),
        ("interval", "time without time zone", "number", False),
        ("smallint", "bigint", "text", True),
        ("integer", "boolean", "text", False),
        ("enum", "text", "text", True),
        ("integer", "text", "text", False),
        ("real[]", "numeric[]", "array", True),
        ("real[]", "real", "array", False),
        ("json", "text", "text", False),
    ],
)
def test_columns_stand_for_one_another_where_their_values_mean_the_same(one, other, kind, same):
    assert (columns.meaning(one, kind) == columns.meaning(other, kind)) is same


def test_classes_have_the_order_of_their_type():
    moods = {"name": "y", "type": "enum", "values": ["sad", "ok", "glad"]}
    assert columns.in_order(moods, ["glad", "elsewhere", "sad"]) == ["sad", "glad", "elsewhere"]
    dates = {"name": "y", "type": "date"}
    assert columns.in_order(dates, ["10000-01-01", "infinity", "2024-03-01", "0044-03-15 BC"]) == [
        "0044-03-15 BC", "2024-03-01", "10000-01-01", "infinity",
    ]  # fmt: skip
    assert columns.in_order({"name": "y", "type": "integer"}, [10, 9, -1]) == [-1, 9, 10]


@pytest.mark.parametrize("type_", ["timestamp with time zone", "timestamp without time zone", "time without time zone"])
def test_a_time_as_label_is_refused_with_the_expression_that_makes_it_a_number(type_):
    with pytest.raises(errors.WrongColumnType) as caught:
        columns.task_of({"name": 'a"t', "type": type_})
    assert 'extract(epoch from "a""t")' in caught.value.hint


def test_the_task_of_a_label_must_fit_its_type():
    for type_, task in (("date", "regression"), ("interval", "classification"), ("enum", "regression"), ("uuid", "regression")):
        with pytest.raises(errors.WrongColumnType, match="cannot be used for " + task):
            columns.task_of({"name": "y", "type": type_, "task": task})


def test_dates_among_boundaries_and_for_nulls_become_seconds_where_the_column_counts_them():
    def held(type_, given, text):
        return "%s as a %s" % (given, type_) if text else float(len(given))

    types = {"day": "date", "at": "time without time zone", "n": "integer", "kind": "date"}
    day = {"bucketize": {"boundaries": ["a", "bb"], "as": "embedding"}}
    encoders = per_column.read_encoders("encoders", {"day": day, "kind": "one_hot"})
    nulls = per_column.read_nulls("nulls", {"day": {"value": "ccc"}, "at": {"value": "mean"}, "kind": {"value": "2026-01-01"}, "*": "skip"})
    found = per_column.as_held(encoders, nulls, types, held)
    assert found[0] == {"day": {"bucketize": {"boundaries": [1.0, 2.0], "as": "embedding"}}, "kind": "one_hot"}
    assert found[1] == {**nulls, "day": {"value": 3.0}, "kind": {"value": "2026-01-01 as a date"}}
    for column, boundaries in (("n", ["2026-01-01"]), ("day", ["bb", "a"])):
        wrong = per_column.read_encoders("encoders", {column: {"bucketize": {"boundaries": boundaries}}})
        with pytest.raises(errors.InvalidArgument, match='"encoders.%s.boundaries" has a wrong value' % column):
            per_column.as_held(wrong, "error", types, held)
