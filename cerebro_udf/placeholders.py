"""Placeholders in a JSON value: found, bound, filled, escaped. Pure.

A string ``"$name"`` in the place of a value, or of the name of a class as in ``{"$cell": {"units": 8}}``, is a placeholder;
``"$$name"`` stands for the text ``$name``.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any, Dict, Iterable

from cerebro_udf.errors import InvalidArgument

# Bound from the data: the number of classes; the shape of a row, a list of ints without the batch.
FROM_DATA = frozenset(["classes", "input_shape"])

_PLACEHOLDER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)\Z")


def is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and _PLACEHOLDER.match(value) is not None


def names_in(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        match = _PLACEHOLDER.match(value)
        if match:
            yield match.group(1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from names_in(key)
            yield from names_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from names_in(item)


def substitute(value: Any, values: Dict[str, Any], path: str) -> Any:
    """Return a copy in which every placeholder has its value, as it is, and escaped text is text.

    Raises:
        InvalidArgument: a placeholder has no value; ``path`` is the place of ``value`` within the definition.
    """
    if isinstance(value, str):
        match = _PLACEHOLDER.match(value)
        if match:
            name = match.group(1)
            if name not in values or (name in FROM_DATA and values[name] is None):
                raise _missing(name, path)
            return copy.deepcopy(values[name])
        return value[1:] if value.startswith("$$") else value
    if isinstance(value, dict):
        return {_key(key, values, path): substitute(item, values, "%s.%s" % (path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [substitute(item, values, "%s[%d]" % (path, i)) for i, item in enumerate(value)]
    return value


def _key(key: str, values: Dict[str, Any], path: str) -> str:
    name = substitute(key, values, path)
    if not isinstance(name, str):
        detail = "At %s, its value is %s." % (path, json.dumps(name)[:80])
        hint = 'Write a name such as "LSTM"; whole layers go in the place of a layer, as in {"layers": ["%s"]}.' % key
        raise InvalidArgument('placeholder "%s" stands for a name here' % key, detail, hint)
    return name


def filled(value: Any, values: Dict[str, Any]) -> Any:
    """Return a copy in which the placeholders that have a value here are replaced by it; the others stay."""
    if isinstance(value, str):
        match = _PLACEHOLDER.match(value)
        return copy.deepcopy(values[match.group(1)]) if match and match.group(1) in values else value
    if isinstance(value, dict):
        named = {key: name for key, name in values.items() if isinstance(name, str)}
        return {filled(key, named): filled(item, values) for key, item in value.items()}
    return [filled(item, values) for item in value] if isinstance(value, list) else value


def literal(value: Any) -> Any:
    """Escape text that begins with a dollar sign, so that it is no placeholder."""
    if isinstance(value, str):
        return "$" + value if value.startswith("$") else value
    if isinstance(value, dict):
        return {literal(key): literal(item) for key, item in value.items()}
    return [literal(item) for item in value] if isinstance(value, list) else value


def _missing(name: str, path: str) -> InvalidArgument:
    if name == "classes":
        hint = "$classes is the number of classes of a classification; a regression has none: write a number."
    elif name == "input_shape":
        hint = "$input_shape is bound when the data is known."
    else:
        hint = 'Give an axis "%s" in options.search.space.' % name
    return InvalidArgument('placeholder "$%s" has no value' % name, "At %s." % path, hint)
