"""What form an argument of a Keras object may have: numbers in a range, words, lists. Pure.

Types are strict, since JSON tells them apart: true is not 1, "8" is not 8; 8.0 is fine where a whole number is wanted.
"""

from __future__ import annotations

import math
from typing import Any, Optional

MAX_WHOLE = 2**31 - 1


class Wrong(ValueError):
    """An argument that cannot be.

    Attributes:
        key: The argument, of which the message says what it must be; None for the arguments together.
        hint: What repairs it, or None.
    """

    def __init__(self, message: str, key: Optional[str] = None, hint: Optional[str] = None):
        super().__init__(message)
        self.key, self.hint = key, hint


class Form:
    """What a value may be; ``str`` of it goes after "must be"."""

    def read(self, key: str, value: Any) -> Any:
        """Return the value as Keras wants it.

        Raises:
            Wrong: it has another form.
        """
        if not self.fits(value):
            raise Wrong("must be %s" % self, key)
        return self.taken(value)

    def fits(self, value: Any) -> bool:
        raise NotImplementedError

    def taken(self, value: Any) -> Any:
        return value


class Number(Form):
    """A number from ``low`` to ``high``; ``above`` leaves ``low`` out, ``below`` leaves ``high`` out."""

    def __init__(self, low: float = -math.inf, high: float = math.inf, above: bool = False, below: bool = False, whole: bool = False):
        self.low, self.high, self.above, self.below, self.whole = low, high, above, below, whole

    def fits(self, value: Any) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not -1e300 < value < 1e300:
            return False
        inside = (value > self.low if self.above else value >= self.low) and (value < self.high if self.below else value <= self.high)
        return inside and (not self.whole or value == int(value))

    def taken(self, value: Any) -> Any:
        return int(value) if self.whole else value

    def __str__(self) -> str:
        text = "a whole number" if self.whole else "a number"
        if self.low > -math.inf:
            text += (" above %s" if self.above else ", %s or more" if self.high == math.inf else " from %s") % self._shown(self.low)
        if self.high < math.inf:
            text += (" to less than %s" if self.below else " to %s") % self._shown(self.high)
        return text

    def _shown(self, value: float) -> str:
        return "%d" % value if value == int(value) and abs(value) < 1e16 else "%g" % value


class Float(Number):
    """A number that Keras wants as a float."""

    def taken(self, value: Any) -> Any:
        return float(value)


class Flag(Form):
    """True or false."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


class Text(Form):
    """Any text."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def __str__(self) -> str:
        return "text"


class Word(Form):
    """One of some words; ``folded`` for any case of their letters."""

    def __init__(self, words: str, folded: bool = False):
        self._words, self._folded = words.split(), folded

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and (value.lower() if self._folded else value) in self._words

    def __str__(self) -> str:
        return " or ".join('"%s"' % word for word in self._words)


class Items(Form):
    """A list of values of one form.

    Args:
        count: How many there are; None: ``least`` or more.
    """

    def __init__(self, form: Form, count: Optional[int] = None, least: int = 1):
        self._form, self._count, self._least = form, count, least

    def fits(self, value: Any) -> bool:
        if not isinstance(value, list) or len(value) < self._least or self._count not in (None, len(value)):
            return False
        return all(map(self._form.fits, value))

    def taken(self, value: Any) -> Any:
        return [self._form.taken(item) for item in value]

    def __str__(self) -> str:
        return "a list of %svalues, each %s" % ("" if self._count is None else "%d " % self._count, self._form)


class Either(Form):
    """What one of some forms takes; None among them stands for null."""

    def __init__(self, *forms: Optional[Form]):
        self._forms = forms

    def fits(self, value: Any) -> bool:
        return any(value is None if form is None else form.fits(value) for form in self._forms)

    def taken(self, value: Any) -> Any:
        form = next(form for form in self._forms if (value is None if form is None else form.fits(value)))
        return None if form is None else form.taken(value)

    def __str__(self) -> str:
        return ", or ".join("null" if form is None else str(form) for form in self._forms)


class Only(Form):
    """One value, since others make no sense here, and why."""

    def __init__(self, value: Any, shown: str, why: str):
        self._value, self._shown, self._why = value, shown, why

    def read(self, key: str, value: Any) -> Any:
        if not self.fits(value):
            raise Wrong("must be %s" % self._shown, key, self._why)
        return value

    def fits(self, value: Any) -> bool:
        return type(value) is type(self._value) and value == self._value

    def __str__(self) -> str:
        return self._shown
