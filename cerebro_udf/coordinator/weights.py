"""Weights of classes, by the label's own values. Pure, no I/O."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Union

from cerebro_udf import columns
from cerebro_udf.errors import InvalidArgument, nearest
from cerebro_udf.keras_objects import show

BALANCED = "balanced"
_FORM = '"balanced", or an object of numbers by label value: {"cat": 2.0, "dog": 1}'


def read(option: str, value: Any) -> Union[str, Dict[str, float]]:
    """Check the option ``class_weight``, as far as that goes without the data.

    Raises:
        InvalidArgument: neither ``balanced`` nor an object of numbers, 0 or more.
    """
    if value == BALANCED:
        return BALANCED
    if not isinstance(value, dict) or not value:
        raise InvalidArgument('option "%s" has a wrong value' % option, "The value is %s." % show(value), "Accepted is %s." % _FORM)
    for label, weight in value.items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= 1e30:
            raise InvalidArgument(
                'option "%s" has a wrong weight for "%s"' % (option, label),
                "The weight is %s." % show(weight),
                "A weight is a number, 0 or more.",
            )
    return {label: float(weight) for label, weight in value.items()}


def refuse_other_tasks(label: dict) -> None:
    """Refuse weights of classes for a label that has none.

    Args:
        label: Its column specification.
    """
    task = columns.task_of(label)
    if task != columns.CLASSIFICATION:
        raise InvalidArgument(
            'option "class_weight" is for classification, label "%s" %s' % (label["name"], columns.OTHERWISE[task]),
            "Its type is %s." % label["type"],
            'Give rows weights by "sample_weight", or set the option "task" to "classification" if it holds classes.',
        )


def by_class(given: Union[str, Dict[str, float]], label: dict) -> List[float]:
    """Return the weight of every class; one that is not named weighs 1.

    ``balanced`` is rows ÷ (classes × rows of the class), counted over training rows.

    Args:
        given: What :func:`read` returned.
        label: One of ``encoders["labels"]``: its ``classes`` and, in their order, ``counts`` of training rows.

    Raises:
        InvalidArgument: a value that is no class.
    """
    classes, counts = label["classes"], label["counts"]
    if given == BALANCED:
        total, present = sum(counts), sum(1 for count in counts if count)
        return [total / (present * count) if count else 1.0 for count in counts]
    weights = [1.0] * len(classes)
    spelled = [_spelled(value) for value in classes]
    for key, weight in given.items():
        given_as = key.lower() if label["type"] == "citext" else key
        found = given_as if given_as in spelled else _spelled(_number(key))
        if found not in spelled:
            raise InvalidArgument(
                'option "class_weight" names "%s", which label "%s" never is' % (key, label["name"]),
                "Its values are %s." % ", ".join(spelled[:20] + ["…"] * (len(spelled) > 20)),
                nearest(key, spelled),
            )
        weights[spelled.index(found)] = weight
    return weights


def _spelled(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def _number(text: str) -> Any:
    """Return a number that is written in another way, such as 7.0 for 7; else the text."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
