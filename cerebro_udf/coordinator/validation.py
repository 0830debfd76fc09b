"""The option ``validation``: which rows are held out. Read first, then held against the table, before anything starts.

``docs/options.md`` lists its forms, ``docs/replay.md`` says which rows each of them holds out.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from cerebro_udf import columns
from cerebro_udf.coordinator.per_column import wrong
from cerebro_udf.coordinator.space import is_number, whole
from cerebro_udf.errors import InvalidArgument, WrongColumnType, nearest
from cerebro_udf.wire import VALIDATION_COLUMNS, VALIDATION_FORMS

MAX_FOLDS = 1_000

Validation = Union[float, Dict[str, Any]]

_FORMS = (
    'a fraction of the rows, from 0 to less than 1, or {"fraction": 0.2, "stratify": true}, {"column": "is_test"},'
    ' {"group": "customer_id", "fraction": 0.2}, {"time": "sold_at", "fraction": 0.2}, {"time": "sold_at", "from": "2026-01-01"},'
    ' {"table": "public.flights_of_june"}, or {"folds": 5, "fold": 0}, which may have "group" or "stratify" too'
)
_KEYS = sorted(set().union(*VALIDATION_FORMS))


def read(option: str, value: Any) -> Validation:
    """Return the option: a fraction, or an object of one of its forms without what is not asked for.

    Raises:
        InvalidArgument.
    """
    if not isinstance(value, dict):
        if not is_number(value) or not 0 <= value < 1:
            raise wrong(option, value, _FORMS)
        return float(value)
    for key in value:
        if key not in _KEYS:
            shown = "The value is %s." % json.dumps(value)[:80]
            raise InvalidArgument('unknown key "%s" in option "%s"' % (key, option), shown, nearest(key, _KEYS))
    given = {key: item for key, item in value.items() if item is not None and not (key == "stratify" and item is False)}
    if set(given) not in VALIDATION_FORMS:
        raise wrong(option, value, _FORMS)
    if set(given) == {"fraction"}:
        return read(option + ".fraction", given["fraction"])
    return {key: _part(option + "." + key, key, item, given) for key, item in given.items()}


def _part(place: str, key: str, item: Any, given: Dict[str, Any]) -> Any:
    if key in VALIDATION_COLUMNS:
        fits, form = isinstance(item, str) and bool(item.strip()), "the name of a column"
    elif key == "table":
        fits, form = isinstance(item, str) and bool(item.strip()), 'the name of a table, such as "public.flights_of_june"'
    elif key == "fraction":
        fits, form = is_number(item) and 0 < item < 1, "a fraction of the rows, above 0 and below 1"
        item = float(item) if fits else item
    elif key == "stratify":
        fits = item is True or (isinstance(item, str) and bool(item.strip()))
        form = "true or false, or the name of the output of whose classes equal shares are held out"
    elif key == "from":
        fits, form = isinstance(item, str) or is_number(item), 'a number, or a date or time such as "2026-01-01"'
    else:
        folds = whole(given["folds"]) if is_number(given["folds"]) else MAX_FOLDS
        least, most = (2, MAX_FOLDS) if key == "folds" else (0, folds - 1)
        item, form = whole(item), "a whole number from %d to %d" % (least, most)
        fits = isinstance(item, int) and not isinstance(item, bool) and least <= item <= most
    if not fits:
        raise wrong(place, item, form)
    return item


def criterion(validation: Validation) -> Optional[Tuple[str, str]]:
    """What the option calls the column by which rows are held out, and its name; None where there is none."""
    if isinstance(validation, dict):
        for key in VALIDATION_COLUMNS:
            if key in validation:
                return "validation." + key, validation[key]
    return None


def table(validation: Validation) -> Optional[str]:
    """The table that the option names, None where it names none."""
    return validation.get("table") if isinstance(validation, dict) else None


def check(validation: Validation, types: Dict[str, str], labels: Sequence[dict], weight: Optional[str], seeded: bool) -> None:
    """Hold the option against the columns.

    Args:
        validation: What :func:`read` returned; the column that it names exists.
        types: Of the columns.
        labels: Their specifications, with the tasks that were asked for.
        weight: The column that weighs rows, or None.
        seeded: Whether the caller has given a seed.

    Raises:
        InvalidArgument, WrongColumnType.
    """
    if not isinstance(validation, dict):
        return
    for key in VALIDATION_COLUMNS:
        if key in validation:
            _check_column(key, validation[key], types, [label["name"] for label in labels], weight)
    if "from" in validation:
        number, given = _quantity(types[validation["time"]]) == "number", validation["from"]
        if number == isinstance(given, str):
            form = "a number" if number else 'a date or time, such as "2026-01-01"'
            raise wrong("validation.from", given, form + ', as column "%s" holds them' % validation["time"])
    if "stratify" in validation:
        _check_stratified(validation["stratify"], labels)
    if "folds" in validation and not seeded:
        raise InvalidArgument(
            'option "validation" makes folds without a seed',
            "The folds of several runs share the rows out only if their seeds are equal.",
            'Set the option "seed", to the same number in each of these runs.',
        )


def _check_stratified(given: Any, labels: Sequence[dict]) -> None:
    names = [label["output"] for label in labels]
    if (given is True) != (names == [None]) or (given is not True and given not in names):
        outputs = [label["output"] for label in labels if columns.task_of(label) == columns.CLASSIFICATION]
        form = "true or false" if names == [None] else "the name of an output that classifies: %s" % (
            ", ".join('"%s"' % name for name in outputs) or "this model has none"
        )  # fmt: skip
        raise wrong("validation.stratify", given, form)
    label = labels[0 if given is True else names.index(given)]
    task = columns.task_of(label)
    if task != columns.CLASSIFICATION:
        raise InvalidArgument(
            'option "validation.stratify" is for classification, label "%s" %s' % (label["name"], columns.OTHERWISE[task]),
            "Its type is %s." % label["type"],
            'Leave stratify out, or set the option "task" to "classification" if it holds classes.',
        )


def _check_column(key: str, name: str, types: Dict[str, str], labels: Sequence[str], weight: Optional[str]) -> None:
    for other, what in [*((label, "label") for label in labels), (weight, "sample_weight")]:
        if name == other:
            raise InvalidArgument('option "validation.%s" names the %s' % (key, what), "It is %s." % name, "Name another column.")
    type_ = types[name]
    fits, hint = {
        "column": (type_ == "boolean", "True marks the rows that are held out; name a boolean column."),
        "time": (_quantity(type_) in ("number", "moment") and type_ != "boolean", "Name a column of dates, timestamps or numbers."),
        "group": (type_ in columns.TYPES, "Name a column of numbers, text, enums, uuids, dates or times."),
    }[key]
    if not fits:
        raise WrongColumnType('column "%s" cannot be option "validation.%s"' % (name, key), "Its type is %s." % type_, hint)


def _quantity(type_: str) -> Optional[str]:
    return columns.TYPES[type_].quantity if type_ in columns.TYPES else None
