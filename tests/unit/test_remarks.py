"""What a run says of its rows before it trains on them."""

import json

import pytest

from cerebro_udf import errors, refusals
from cerebro_udf.coordinator import per_column, remarks, source

CITY = {"name": "city", "kind": "text", "type": "text"}
VIP = {"name": "vip", "kind": "number", "type": "boolean"}
AGE = {"name": "age", "kind": "number", "type": "real"}


def encoders(*features, classes=(False, True)):
    return {"features": list(features), "labels": [{"name": "left", "classes": list(classes)}]}


def shards(rows, held, **counts):
    """Two shards that together have so many rows; a text's values lie on both."""
    columns = {name: {"counts": dict.fromkeys(values, 1)} for name, values in counts.items()}
    half = {"rows": rows // 2, "validation_rows": held // 2, "train_rows": (rows - held) // 2, "columns": columns}
    return [half, {**half, "rows": rows - rows // 2, "validation_rows": held - held // 2, "train_rows": rows - held - (rows - held) // 2}]


def test_a_share_that_chance_gives_rows_that_all_differ_is_not_told():
    for held in (180, 200, 220):
        assert remarks.held_out(0.2, encoders(AGE), shards(1000, held), "id") is None


@pytest.mark.parametrize("held", [20, 120, 280, 440])
def test_a_share_beyond_chance_is_told_with_the_key_that_divides_rows(held):
    told = remarks.held_out(0.2, encoders(AGE), shards(1000, held), "id")
    assert "%d of 1000 rows are held out, %.2g %%, and 20 %% were asked for" % (held, held / 10) in told
    assert '{"validation": {"group": "id", "fraction": 0.2}}' in told and "differ in" not in told


def test_few_different_rows_are_told_whatever_the_share():
    stats = shards(1000, 200, city=list("abcdef"))
    told = remarks.held_out(0.2, encoders(CITY, VIP), stats, None)
    assert "differ in 24 ways at most" in told and '{"group": "…", "fraction": 0.2}' in told
    assert remarks.held_out(0.2, encoders(CITY, VIP), shards(200, 40, city=list("abcdef")), None) is None
    assert remarks.held_out(0.2, encoders(CITY, AGE), stats, None) is None


@pytest.mark.parametrize(
    "option", [0.0, {"fraction": 0.2, "stratify": True}, {"group": "who", "fraction": 0.2}, {"column": "test"}, {"table": "june"},
               {"folds": 5, "fold": 0, "stratify": True}],
)  # fmt: skip
def test_forms_by_which_rows_are_not_drawn_one_by_one_are_not_judged(option):
    assert remarks.held_out(option, encoders(CITY), shards(1000, 900, city=["a"]), None) is None


def test_folds_are_held_against_their_own_share():
    assert remarks.held_out({"folds": 4, "fold": 1}, encoders(AGE), shards(1000, 250), "id") is None
    told = remarks.held_out({"folds": 4, "fold": 1}, encoders(AGE), shards(1000, 450), "id")
    assert '{"validation": {"group": "id", "folds": 4, "fold": 1}}' in told


@pytest.mark.parametrize("train, expected", [(0, "no training rows are left"), (9, "no row fell into the validation part")])
def test_an_empty_part_says_that_rows_that_are_alike_stay_together(train, expected):
    with pytest.raises(errors.BadData, match=expected) as caught:
        refusals.refuse_empty_part(9, train, 0.2)
    assert "Rows of the same values fall on one side together" in caught.value.hint
    written = caught.value.hint[caught.value.hint.index("{") :].rstrip(".")
    assert json.loads(written) == {"validation": {"group": "…", "fraction": 0.2}}
    with pytest.raises(errors.BadData) as caught:
        refusals.refuse_empty_part(9, train, {"column": "test"})
    assert "same values" not in caught.value.hint


def test_features_that_tell_rows_apart_are_named():
    stats = shards(200, 0, city=["c%d" % n for n in range(200)])
    ((line),) = remarks.telling_rows_apart(["city", "age"], encoders(CITY, AGE), stats, [])
    assert line.startswith('feature "city" has another value in each row')
    ((line),) = remarks.telling_rows_apart(["city", "age"], encoders(CITY, AGE), shards(200, 0, city=["a"]), ["age", "id"])
    assert line.startswith('feature "age" is a key of the table')
    few = shards(20, 0, city=["c%d" % n for n in range(20)])
    assert remarks.telling_rows_apart(["city"], encoders(CITY), few, []) == []


def test_features_that_were_taken_are_named_up_to_a_dozen():
    assert remarks.taken(["age", "city"], []).startswith('features: "age", "city" (every usable column but the label;')
    assert ' and 3 more (' in remarks.taken(["f%d" % n for n in range(15)], [])
    assert '(every usable column but the label and what it is made of, "price";' in remarks.taken(["age"], ["price"])


def test_options_are_told_in_the_number_that_their_name_has():
    assert [errors.other(name) for name in ("features", "loss", "validation")] == ["other features", "another loss", "another validation"]


@pytest.mark.parametrize("given, meant", [("val_churn_AUC", "val_churn_auc"), ("AUC", "auc"), ("val_churn_acc", "val_churn_auc")])
def test_the_nearest_word_is_found_whatever_its_case(given, meant):
    assert errors.nearest(given, ["auc", "val_churn_auc", "val_churn_mae"]) == 'Did you mean "%s"?' % meant


def test_what_is_said_of_all_nulls_leaves_alone_what_nothing_can_stand_for():
    types = {"age": "real", "city": "text", "list": "real[]"}
    table = source.Source(1, "public.t", "r", types, list(types), ())
    specs = table.feature_specs({}, {"*": "skip"})
    assert not any("nulls" in spec for spec in specs)
    specs = table.feature_specs({}, {"*": {"indicator": True}})
    assert [spec["name"] for spec in specs if "nulls" in spec] == ["age", "city"]
    per_column.check_nulls({"*": {"indicator": True}}, specs, [])
    named = {"list": {"indicator": True}}
    with pytest.raises(errors.InvalidArgument, match='"list"'):
        per_column.check_nulls(named, table.feature_specs({}, named), [])
