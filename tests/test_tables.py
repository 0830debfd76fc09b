"""Tables of any columns on real servers: either the run is right, or an error names what is at fault and nothing is left behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import psycopg
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests import outcome
from tests import requirements as requires
from tests.cluster import poll_until
from tests.session import IDLE_SECONDS, LINE, LOGIT, Refusal, traces

WARM = True
pytestmark = requires.segments(3)

NAMES = st.one_of(
    st.sampled_from(["select", "Ab", "a b", 'q"q', "it's", "per%cent", "%s", "{0}", "b\\s", "a/b", "ä", "漢字", "$1", "a.b", "x" * 63]),
    st.text("aZ0 \"'%$/\\.,;:é", min_size=1, max_size=8),
).filter(lambda name: name.strip() and name not in ("shard", "row"))
FLOAT = st.one_of(*[st.integers(-4, 4).map(float)] * 4, st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 1.7e9]))
FEATURES = {
    "smallint": st.integers(-(2**15), 2**15 - 1), "integer": st.integers(-(2**31), 2**31 - 1), "bigint": st.integers(-(2**63), 2**63 - 1),
    "real": st.one_of(st.integers(-4, 4).map(float), st.sampled_from([math.nan, math.inf, 0.1])), "double precision": FLOAT,
    "numeric(12,3)": st.decimals(-999, 999, places=3, allow_nan=False), "numeric": st.sampled_from(["NaN", "1e30", "0.1", "-7"]),
    "boolean": st.booleans(), "date": st.one_of(st.dates().map(str), st.sampled_from(["infinity", "0044-03-15 BC"])),
    "timestamp": st.datetimes().map(str), "timestamptz": st.datetimes().map(lambda t: "%s+03" % t), "time": st.times().map(str),
    "interval": st.sampled_from(["1 day", "-2 hours 3.5 seconds", "1 mon", "0"]), "uuid": st.uuids().map(str),
    "text": st.sampled_from(["", " ", "NULL", "null", "a", "A", "é", "it's", "\\N", "\t", "漢字", "%s"]),
    "varchar(5)": st.sampled_from(["a", "ab ", ""]), "char(4)": st.sampled_from(["a", "ab  "]), "name": st.sampled_from(["n", "m"]),
    "real[]": st.lists(st.one_of(st.integers(-4, 4).map(float), st.none()), min_size=2, max_size=2),
    "integer[]": st.lists(st.integers(-9, 9), min_size=1, max_size=2), "boolean[]": st.lists(st.booleans(), min_size=2, max_size=2),
}  # fmt: skip
OTHERS = {
    "json": "{}", "jsonb": "[1]", "xml": "<a/>", "point": "(1,2)", "timetz": "10:00+01", "int4range": "[1,3)", "money": "1.5",
    "bit(2)": "01", "inet": "::1", "tsvector": "a b", "json[]": "{}", "interval[]": "{1 day}", "bytea": "\\x00",
}  # fmt: skip
LABELS = {
    "integer": st.integers(1, 2), "smallint": st.sampled_from([-1, 1]), "bigint": st.sampled_from([2**60, 2**60 + 1]),
    "boolean": st.booleans(), "text": st.sampled_from(["NULL", "no"]), "date": st.sampled_from(["2024-02-29", "infinity"]),
    "double precision": FLOAT, "interval": FEATURES["interval"], "timestamptz": FEATURES["timestamptz"], "jsonb": st.just("{}"),
}  # fmt: skip
ABOUT_ROWS = ("the source has no rows", "no rows are left", "no training rows are left", "no row fell into the validation part")


@dataclass(frozen=True)
class Case:
    """A table: names and types of its columns, the label last; rows by shard; options of fit."""

    columns: dict[str, str]
    rows: list[list[Any]]
    sizes: list[int]
    options: dict[str, Any]


def with_nulls(draw: Any, values: st.SearchStrategy) -> st.SearchStrategy:
    return draw(st.sampled_from([values, values, st.one_of(values, values, values, values, st.none())]))


@st.composite
def cases(draw) -> Case:
    count = draw(st.one_of(st.integers(0, 40), st.integers(12, 40), st.integers(20, 40)))
    *names, label = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    chosen = [draw(st.sampled_from(list(FEATURES if draw(st.integers(0, 15)) else OTHERS))) for _ in names]
    columns = dict(zip(names, chosen))
    columns[label] = draw(st.sampled_from(list(LABELS)[: 8 if draw(st.integers(0, 7)) else None]))
    values = [FEATURES[type_] if type_ in FEATURES else st.just(OTHERS[type_]) for type_ in chosen] + [LABELS[columns[label]]]
    values = [with_nulls(draw, value) for value in values]
    rows = draw(st.lists(st.tuples(*values).map(list), min_size=count, max_size=count))
    first, second = sorted(draw(st.lists(st.integers(0, count), min_size=2, max_size=2)))
    options = {
        "nulls": draw(st.sampled_from(["error", "skip", "skip", "skip"])), "validation": draw(st.sampled_from([0, 0, 0.3])),
        "batch_size": draw(st.sampled_from([1, 7, 32])),
    }  # fmt: skip
    return Case(columns, rows, [first, second - first, count - second], options)


def unusable(value: Any) -> bool:
    """Whether a row with this value is left out: it is NULL, or no number that single precision holds."""
    if isinstance(value, list):
        return any(map(unusable, value)) or not value
    return value is None or value in ("NaN", "infinity") or (isinstance(value, float) and not abs(value) < 1e38)


def skipped(case: Case) -> int:
    """Infinite dates are values as classes, and as features they are infinite."""
    *_, label = case.columns
    return sum(
        any(unusable(value) and not (name == label and value == "infinity") for name, value in zip(case.columns, row)) for row in case.rows
    )


@settings(max_examples=18, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_run_on_any_table_is_right_or_says_which_column_is_at_fault(session, case):
    *features, label = case.columns
    table = session.sharded({**case.columns, "row": "integer"}, [[*row, n] for n, row in enumerate(case.rows)], case.sizes)
    regression = case.columns[label] in ("double precision", "interval")
    model = session.model(LINE if regression else LOGIT)
    run, before = session.name(), traces(session.cluster)
    try:
        session.conn.execute(*session.call(table, model, label, features, run=run, **case.options))
    except psycopg.Error as error:
        refused = Refusal.of(error)
        event("refused with " + refused.sqlstate)
        assert refused.sqlstate not in ("XX000", "38000") and refused.hint, refused
        told = "%s %s" % (refused.message, refused.detail)
        assert any('"%s"' % name in told for name in case.columns) or refused.message.startswith(ABOUT_ROWS), refused
        poll_until(session.cluster.idle_backends, IDLE_SECONDS)
        assert traces(session.cluster) == before
        return
    event("trained, by %s" % case.columns[label])
    count, left_out = len(case.rows), skipped(case)
    ((plan, encoders, state, error),) = session.rows(
        "select r.shards, r.encoders, t.state, t.error from cerebro.run r join cerebro.trial t using (run, owner) where run = %s", run
    )
    assert (state, error) == ("done", None)
    stats = plan["stats"]
    assert [shard["rows"] + shard["skipped"] for shard in stats] == case.sizes
    assert sum(shard["skipped"] for shard in stats) == (left_out if case.options["nulls"] == "skip" else 0)
    train = [shard["train_rows"] for shard in stats]
    assert sum(train) == encoders["rows"]["train"] and (sum(train) < count - left_out) == (case.options["validation"] > 0)
    visits = outcome.visits(session.cluster, run)
    assert sorted((shard, rows) for _, _, shard, _, _, _, rows in visits) == list(enumerate(train))
    (metrics,) = session.rows("select metrics from cerebro.epoch where run = %s", run)[0]
    assert all(math.isfinite(value) for value in metrics.values())
    target = session.schema + "." + session.name("scored")
    statement = "select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}')"
    assert session.rows(statement, run, table.name, target) == [(count,)]
    scored = dict(session.rows("select row, prediction::text from %s" % target))
    by_row = "select row, cerebro.predict(%s, r) from " + table.name + " r where row = %s"
    missing = [n for n, row in enumerate(case.rows) if any(map(unusable, row[:-1]))]
    assert sorted(n for n, value in scored.items() if value is None) == missing
    known = [n for n in range(count) if n not in missing]
    for n in known[:2]:
        ((_, answer),) = session.rows(by_row, run, n)
        if regression:
            assert math.isfinite(answer["value"]) and math.isclose(float(scored[n]), answer["value"], rel_tol=1e-4, abs_tol=1e-5)
        else:
            assert outcome.spelled(answer["class"]) == scored[n] and math.isclose(sum(answer["probabilities"].values()), 1, rel_tol=1e-5)
