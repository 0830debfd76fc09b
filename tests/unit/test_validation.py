"""The option validation: its forms, and what is wrong with others."""

import pytest

from cerebro_udf.coordinator import validation
from cerebro_udf.errors import InvalidArgument, WrongColumnType

TYPES = {
    "y": "integer", "z": "real", "w": "real", "flag": "boolean", "at": "timestamp with time zone", "day": "date", "n": "bigint",
    "who": "text", "list": "integer[]", "span": "interval", "doc": "jsonb",
}  # fmt: skip


def checked(given, label="y", task=None, weight="w", seeded=True):
    read = validation.read("validation", given)
    validation.check(read, TYPES, [{"name": label, "output": None, "type": TYPES[label], "task": task}], weight, seeded)
    return read


@pytest.mark.parametrize(
    "given, stored",
    [
        (0, 0.0),
        ({"fraction": 0.25}, 0.25),
        ({"fraction": 0.25, "stratify": False, "group": None}, 0.25),
        ({"fraction": 0.2, "stratify": True}, {"fraction": 0.2, "stratify": True}),
        ({"column": "flag"}, {"column": "flag"}),
        ({"group": "who", "fraction": 0.2}, {"group": "who", "fraction": 0.2}),
        ({"time": "day", "fraction": 0.2}, {"time": "day", "fraction": 0.2}),
        ({"time": "at", "from": "2026-01-01"}, {"time": "at", "from": "2026-01-01"}),
        ({"time": "n", "from": 7}, {"time": "n", "from": 7}),
        ({"table": "public.june"}, {"table": "public.june"}),
        ({"fold": 0.0, "folds": 5.0}, {"folds": 5, "fold": 0}),
        ({"folds": 5, "fold": 4, "group": "n"}, {"folds": 5, "fold": 4, "group": "n"}),
        ({"folds": 5, "fold": 4, "stratify": True}, {"folds": 5, "fold": 4, "stratify": True}),
    ],
)
def test_every_form_is_stored_as_it_is_meant(given, stored):
    read = checked(given)
    assert read == stored and type(read) is type(stored)
    assert validation.read("validation", read) == read


@pytest.mark.parametrize(
    "given, place",
    [
        ({}, "validation"),
        ([], "validation"),
        (1, "validation"),
        ({"fraction": 1}, "validation.fraction"),
        ({"stratify": True}, "validation"),
        ({"group": "who"}, "validation"),
        ({"column": "flag", "fraction": 0.2}, "validation"),
        ({"group": "who", "fraction": 0.2, "stratify": True}, "validation"),
        ({"time": "at", "fraction": 0.2, "from": "2026-01-01"}, "validation"),
        ({"folds": 5}, "validation"),
        ({"folds": 1, "fold": 0}, "validation.folds"),
        ({"folds": "5", "fold": 0}, "validation.folds"),
        ({"folds": 5, "fold": 5}, "validation.fold"),
        ({"folds": 5, "fold": True}, "validation.fold"),
        ({"column": " "}, "validation.column"),
        ({"column": 3}, "validation.column"),
        ({"table": ""}, "validation.table"),
        ({"table": "public.june", "fraction": 0.2}, "validation"),
        ({"group": "who", "fraction": 0}, "validation.fraction"),
        ({"fraction": 0.2, "stratify": 0}, "validation.stratify"),
        ({"time": "at", "from": True}, "validation.from"),
    ],
)
def test_what_is_no_form_is_refused_with_the_place_and_what_is_accepted(given, place):
    with pytest.raises(InvalidArgument) as caught:
        validation.read("validation", given)
    assert caught.value.message == 'option "%s" has a wrong value' % place
    assert caught.value.hint.startswith("Accepted is ")


def test_an_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidArgument, match='unknown key "stratified" in option "validation"') as caught:
        validation.read("validation", {"fraction": 0.2, "stratified": True})
    assert caught.value.hint == 'Did you mean "stratify"?'


@pytest.mark.parametrize(
    "given, more, error, message",
    [
        ({"column": "who"}, {}, WrongColumnType, 'column "who" cannot be option "validation.column"'),
        ({"time": "who", "fraction": 0.2}, {}, WrongColumnType, 'column "who" cannot be option "validation.time"'),
        ({"time": "flag", "fraction": 0.2}, {}, WrongColumnType, 'column "flag" cannot be option "validation.time"'),
        ({"time": "span", "fraction": 0.2}, {}, WrongColumnType, 'column "span" cannot be option "validation.time"'),
        ({"group": "list", "fraction": 0.2}, {}, WrongColumnType, 'column "list" cannot be option "validation.group"'),
        ({"group": "doc", "fraction": 0.2}, {}, WrongColumnType, 'column "doc" cannot be option "validation.group"'),
        ({"group": "y", "fraction": 0.2}, {}, InvalidArgument, 'option "validation.group" names the label'),
        ({"time": "w", "fraction": 0.2}, {}, InvalidArgument, 'option "validation.time" names the sample_weight'),
        ({"time": "n", "from": "2026-01-01"}, {}, InvalidArgument, 'option "validation.from" has a wrong value'),
        ({"time": "day", "from": 3}, {}, InvalidArgument, 'option "validation.from" has a wrong value'),
        ({"folds": 5, "fold": 0}, {"seeded": False}, InvalidArgument, 'option "validation" makes folds without a seed'),
        ({"fraction": 0.2, "stratify": True}, {"label": "z"}, InvalidArgument,
         'option "validation.stratify" is for classification, label "z" is a quantity'),
        ({"fraction": 0.2, "stratify": True}, {"task": "regression"}, InvalidArgument,
         'option "validation.stratify" is for classification, label "y" is a quantity'),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_columns_is_refused(given, more, error, message):
    with pytest.raises(error) as caught:
        checked(given, **more)
    assert caught.value.message == message and caught.value.hint
