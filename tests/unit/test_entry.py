"""JSON arguments that PostgreSQL takes and Python stumbles over."""

from __future__ import annotations

import pytest

from cerebro_udf import entry
from cerebro_udf.errors import InvalidArgument


@pytest.mark.parametrize("number", ["1e5000", "-1e400", "1" + "0" * 400, "1" + "0" * 5000, "1" + "0" * 400 + ".5"])
def test_number_that_is_too_large_is_refused(number):
    with pytest.raises(InvalidArgument) as caught:
        entry._json("options", '{"a": [%s]}' % number)
    assert caught.value.message == "argument options holds a number that is too large" and caught.value.hint


@pytest.mark.parametrize("depth", [65, 900, 100_000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_nesting_that_is_too_deep_is_refused(depth, opening, closing):
    text = '{"a": %s1%s}' % (opening * depth, closing * depth)
    with pytest.raises(InvalidArgument) as caught:
        entry._json("definition", text)
    assert caught.value.message == "argument definition is nested too deeply" and caught.value.hint


def test_ordinary_arguments_are_as_written():
    text = '{"a": [1, -2.5, 1e3, true, null, "x"], "b": {"c": %s1%s}}' % ("[" * 50, "]" * 50)
    parsed = entry._json("options", text)
    assert parsed["a"] == [1, -2.5, 1000.0, True, None, "x"] and type(parsed["a"][0]) is int
    assert entry._json("options", '{"seed": 123456789012345678}') == {"seed": 123456789012345678}
