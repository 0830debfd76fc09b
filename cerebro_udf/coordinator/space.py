"""The axes of a search space, and walks over it. Pure.

An axis is a list of choices or a range ``{"low", "high", "log", "step"}``, both ends included; whole numbers where the
ends (and the step) are. ``step`` adds; in a ``log`` range it multiplies, as KerasTuner's does: ``{"low": 16, "high": 1024,
"log": true, "step": 2}`` are powers of two.

An axis with ``when`` is conditional: ``{"low": 0, "high": 0.5, "when": {"layers": [2, 3]}, "else": 0}`` is drawn only in
trials in which each axis named there has one of the values listed; otherwise it has the value of ``else``, or is absent
without one. A conditional list is written ``{"values": [...], "when": ...}``.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from cerebro_udf.errors import InvalidArgument, nearest
from cerebro_udf.keras_objects import show

MAX_NUMBER = 1e300
MAX_WHOLE = 2**53  # the last one up to which floats, in which draws are made, tell whole numbers apart
MAX_VALUES = 10000
MAX_AXES = 200  # a walk over the space goes as deep as there are axes
# Whole numbers of a range without a step that a grid takes one by one.
MAX_IMPLIED_STEPS = 32

ABSENT = object()

_KEYS = ("values", "low", "high", "log", "step", "when", "else")


class Axis:
    """One axis: what it is called, when it is drawn, and what it is otherwise (``ABSENT`` for nothing)."""

    count: Optional[int]  # how many values there are; None: endless

    def __init__(self, name: str):
        self.name = name
        self.when: Dict[str, List[Any]] = {}
        self.otherwise: Any = ABSENT

    def drawn(self, chosen: Dict[str, Any]) -> bool:
        """Whether the axis is drawn in a trial that has these values of the axes it depends on."""
        return all(
            name in chosen and key(chosen[name]) in [key(value) for value in values] for name, values in self.when.items()
        )

    def at(self, index: int) -> Any:
        """Value number ``index`` of a finite axis."""
        raise NotImplementedError

    def index(self, value: Any) -> Optional[int]:
        """The number of a value of a finite axis, None if it has no such value."""
        raise NotImplementedError

    def holds(self, value: Any) -> bool:
        """Whether a trial may have this value of it."""
        return self.index(value) is not None

    def draw(self, uniform: float) -> Any:
        """The value at a point of [0, 1), so that uniform points give what the axis says."""
        raise NotImplementedError

    def grid(self) -> Sequence[Any]:
        """Every value that a grid takes.

        Raises:
            InvalidArgument: the range is endless, or too long.
        """
        raise NotImplementedError

    def ends(self) -> Sequence[Any]:
        """Values that are fit if the axis is: all choices, or both ends of a range."""
        raise NotImplementedError


class Choices(Axis):
    """A list; ``ordered`` if it is a range written out."""

    def __init__(self, name: str, values: List[Any], ordered: bool = False):
        super().__init__(name)
        self.values, self.ordered, self.count = values, ordered, len(values)
        self._numbers = {key(value): number for number, value in enumerate(values)}

    def at(self, index: int) -> Any:
        return self.values[index]

    def index(self, value: Any) -> Optional[int]:
        return self._numbers.get(key(value))

    def draw(self, uniform: float) -> Any:
        return self.values[int(uniform * len(self.values))]

    def grid(self) -> Sequence[Any]:
        return self.values

    def ends(self) -> Sequence[Any]:
        return self.values


class Range(Axis):
    """From low to high, both included; ``step`` only where it adds."""

    def __init__(self, name: str, low: float, high: float, log: bool, step: Optional[float]):
        super().__init__(name)
        self.low, self.high, self.log, self.step = low, high, log, step
        given = (low, high, 1 if step is None else step)
        self.whole = all(isinstance(x, int) and abs(x) <= MAX_WHOLE for x in given)
        if low == high:
            self.count = 1
        elif self.whole or step is not None:
            self.count = int((Decimal(repr(high)) - Decimal(repr(low))) / Decimal(repr(given[2]))) + 1
        else:
            self.count = None

    def at(self, index: int) -> Any:
        # Decimal arithmetic, so that 0.1 + 2 steps of 0.1 is 0.3.
        if self.whole or index == 0:
            return self.low + index * (self.step or 1)
        return float(Decimal(repr(self.low)) + index * Decimal(repr(self.step)))

    def index(self, value: Any) -> Optional[int]:
        if not is_number(value) or not self.low <= value <= self.high or self.count is None:
            return None
        found = min(round((value - self.low) / (self.step or 1)), self.count - 1)
        return found if self.at(found) == value else None

    def holds(self, value: Any) -> bool:
        return super().holds(value) if self.count is not None else is_number(value) and self.low <= value <= self.high

    def draw(self, uniform: float) -> Any:
        if self.log:
            # Whole numbers: each has the share of the interval up to the next one, the highest one too.
            top = self.high + 1 if self.whole else self.high
            value = math.exp(math.log(self.low) + uniform * (math.log(top) - math.log(self.low)))
            value = int(value) if self.whole else value
        elif self.count is not None:
            return self.at(int(uniform * self.count))
        else:
            value = self.low + uniform * (self.high - self.low)
        return min(max(value, self.low), self.high)

    def grid(self) -> Sequence[Any]:
        if self.count is None or (self.log and self.count > 1):
            raise wrong(self.name, "a grid cannot walk this range", 'Give a "step", or list the values.')
        if self.step is None and self.count > MAX_IMPLIED_STEPS:
            raise wrong(self.name, "a grid over %d whole numbers" % self.count, 'Give a "step", or list the values.')
        if self.count > MAX_VALUES:
            raise wrong(self.name, "a grid over %d values" % self.count, "Take a larger step.")
        return [self.at(index) for index in range(self.count)]

    def ends(self) -> Sequence[Any]:
        return [self.low, self.high]


class Space:
    """All axes of a search.

    Attributes:
        axes: By name, in the order in which they are drawn: sorted, but each after those that its ``when`` names.
    """

    def __init__(self, axes: Dict[str, Axis]):
        self.axes = _sorted(axes)

    def draw(self, pick: Callable[[Axis], Any]) -> Dict[str, Any]:
        """One configuration, ``pick`` giving the value of each axis that is drawn."""
        chosen: Dict[str, Any] = {}
        for name, axis in self.axes.items():
            value = pick(axis) if axis.drawn(chosen) else axis.otherwise
            if value is not ABSENT:
                chosen[name] = value
        return dict(sorted(chosen.items()))

    def at(self, point: Dict[str, float]) -> Dict[str, Any]:
        """The configuration at a point of the unit cube, given by name of axis."""
        return self.draw(lambda axis: axis.draw(point[axis.name]))

    def walk(self, values: Callable[[Axis], Sequence[Any]]) -> Iterator[Dict[str, Any]]:
        """Every combination of some values of each axis, the last axis varying fastest."""
        axes = list(self.axes.values())

        def further(depth: int, chosen: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
            if depth == len(axes):
                yield dict(sorted(chosen.items()))
                return
            axis = axes[depth]
            for value in values(axis) if axis.drawn(chosen) else [axis.otherwise]:
                yield from further(depth + 1, chosen if value is ABSENT else {**chosen, axis.name: value})

        return further(0, {})

    def grid(self) -> Iterator[Dict[str, Any]]:
        """Every configuration of a grid.

        Raises:
            InvalidArgument: at once, for a range that a grid cannot walk.
        """
        values = {name: axis.grid() for name, axis in self.axes.items()}
        return self.walk(lambda axis: values[axis.name])

    def size(self, limit: int) -> int:
        """How many configurations there are, ``limit`` if there are more, or infinitely many."""
        if any(axis.count is None for axis in self.axes.values()):
            return limit
        every = self.walk(lambda axis: _Values(axis, 0))
        return sum(1 for _, _ in zip(range(limit), every))

    def every(self, shifts: Dict[str, int]) -> Iterator[Dict[str, Any]]:
        """Every configuration, in grid order from a chosen value of each axis on; of an endless axis only its ends."""
        return self.walk(lambda axis: axis.ends() if axis.count is None else _Values(axis, shifts[axis.name]))


class _Values(Sequence):
    """The values of a finite axis from number ``shift`` on, and round to it; made one by one, for there may be billions."""

    def __init__(self, axis: Axis, shift: int):
        self.axis, self.shift = axis, shift

    def __len__(self) -> int:
        return self.axis.count

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < self.axis.count:
            raise IndexError(number)
        return self.axis.at((number + self.shift) % self.axis.count)


def parse(space: Any) -> Space:
    """Read ``options.search.space``.

    Raises:
        InvalidArgument: what is there is not a space; the axis and the value at fault are named. Whether the model and
            the options know the axes, and like their values, is not looked at.
    """
    if not isinstance(space, dict) or not space:
        raise InvalidArgument(
            "the search space is empty", None, 'Write "space": {"learning_rate": [0.001, 0.01]}.'
        )
    if len(space) > MAX_AXES:
        raise InvalidArgument(
            "the search space has more than %d axes" % MAX_AXES, "It has %d." % len(space), "Vary what matters most."
        )
    axes = {name: _axis(name, space[name]) for name in sorted(space)}
    for name in axes:
        if isinstance(space[name], dict):
            _read_condition(axes, axes[name], space[name])
    for axis in axes.values():
        _check_condition(axes, axis)
    return Space(axes)


def wrong(axis: str, message: str, hint: str, *value: Any) -> InvalidArgument:
    """What is wrong with an axis, and how to repair it; ``value``, if given, is shown."""
    detail = "At options.search.space.%s%s." % (axis, ": %s" % json.dumps(value[0])[:100] if value else "")
    return InvalidArgument('%s for axis "%s"' % (message, axis), detail, hint)


def is_number(value: Any) -> bool:
    # JSON may hold 1e999 (infinity in Python) and whole numbers that no float can hold.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def whole(value: Any) -> Any:
    """3 for 3.0; everything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def wrong_option(place: str, value: Any, form: str) -> InvalidArgument:
    """The error for an option's value that is not of the form accepted."""
    return InvalidArgument('option "%s" has a wrong value' % place, "The value is %s." % show(value), "Accepted is %s." % form)


def key(value: Any) -> str:
    """A text that two JSON values share iff they are equal, 1 and 1.0 too; what jsonb makes of a number changes nothing."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return whole(value)


# ---- reading one axis


def _axis(name: str, value: Any) -> Axis:
    if isinstance(value, list):
        return _choices(name, value)
    if not isinstance(value, dict) or not ("values" in value or ("low" in value and "high" in value)):
        raise wrong(
            name,
            "neither a list nor a range",
            'Write [16, 64], or {"low": 0.0001, "high": 0.1, "log": true}.',
        )
    for word in value:
        if word not in _KEYS:
            raise wrong(name, 'unknown key "%s"' % word, nearest(word, _KEYS))
    if "values" in value:
        if set(value) & {"low", "high", "log", "step"}:
            raise wrong(name, "both a list and a range", "Give values alone, or low and high.", value)
        return _choices(name, value["values"])
    return _range(name, value)


def _choices(name: str, values: Any) -> Choices:
    if not isinstance(values, list) or not values:
        raise wrong(name, "no values", "List at least one.")
    keys = [key(value) for value in values]
    if len(set(keys)) < len(keys):
        raise wrong(name, "a value listed twice", "List every value once.")
    return Choices(name, values)


def _range(name: str, value: dict) -> Axis:
    low, high, log, step = value["low"], value["high"], value.get("log", False), value.get("step")
    if not is_number(low) or not is_number(high) or low > high:
        raise wrong(name, "low and high must be numbers, low first", 'Write {"low": 1, "high": 9}.', value)
    if not isinstance(log, bool):
        raise wrong(name, '"log" must be true or false', 'Write "log": true.', value)
    if log and low <= 0:
        raise wrong(name, "a logarithmic range must begin above 0", "Raise low.", value)
    if step is not None and (not is_number(step) or step <= 0):
        raise wrong(name, "the step must be a number above 0", 'Write "step": 1.', value)
    if name == "batch_size":
        low, high, step = whole(low), whole(high), whole(step)
        if not all(isinstance(x, int) for x in (low, high, step or 1)):
            raise wrong(name, "a range of fractions", "Batch sizes are whole numbers.", value)
    if not log or step is None:
        found = Range(name, low, high, log, step)
        if found.count is not None and found.count > MAX_WHOLE:
            raise wrong(name, "a step too small for its range", "Take a larger step, or none.", value)
        return found
    if step <= 1:
        hint = 'It multiplies, as in {"low": 16, "high": 1024, "log": true, "step": 2}. Or list the values.'
        raise wrong(name, "the step of a logarithmic range must be above 1", hint, value)
    if math.log(high / low) > MAX_VALUES * math.log(step):
        raise wrong(name, "a step that makes more than %d values" % MAX_VALUES, "Take a larger step, or none.", value)
    exact = int if isinstance(low, int) and isinstance(step, int) else lambda number: Decimal(repr(number))
    found, top, values = exact(low), Decimal(repr(high)), []
    while found <= top:
        values.append(found if isinstance(found, int) else float(found))
        found *= exact(step)
    return Choices(name, values, ordered=True)


def _read_condition(axes: Dict[str, Axis], axis: Axis, value: dict) -> None:
    if "else" in value:
        axis.otherwise = value["else"]
    if "when" not in value:
        if "else" in value:
            raise wrong(axis.name, '"else" without "when"', 'Say when it is drawn: "when": {"layers": [2, 3]}.')
        return
    when = value["when"]
    if not isinstance(when, dict) or not when:
        raise wrong(axis.name, '"when" must name other axes', 'Write "when": {"layers": [2, 3]}.', when)
    for other, values in when.items():
        if other not in axes:
            raise wrong(axis.name, '"when" names "%s", which is no axis' % other, nearest(other, set(axes) - {axis.name}))
        if axes[other].count is None:
            hint = 'Give "%s" a step, or list its values.' % other
            raise wrong(axis.name, '"when" names "%s", which has endlessly many values' % other, hint)
        axis.when[other] = values if isinstance(values, list) else [values]
        if not axis.when[other]:
            raise wrong(axis.name, '"when" lists no value of "%s"' % other, "List at least one.")


def _check_condition(axes: Dict[str, Axis], axis: Axis) -> None:
    """Refuse a condition that can never hold; an axis may also have the value of its "else"."""
    for other, values in axis.when.items():
        former = axes[other]
        for value in values:
            idle = former.otherwise is not ABSENT and key(former.otherwise) == key(value)
            if former.index(value) is None and not idle:
                hint = "It takes %s." % " or ".join(json.dumps(taken) for taken in list(former.ends())[:8])
                raise wrong(axis.name, '"when" lists a value that "%s" never has' % other, hint, value)


def _sorted(axes: Dict[str, Axis]) -> Dict[str, Axis]:
    placed: Dict[str, Axis] = {}
    while len(placed) < len(axes):
        ready = [name for name in sorted(axes) if name not in placed and set(axes[name].when) <= set(placed)]
        if not ready:
            circle = [name for name in sorted(axes) if name not in placed]
            hint = 'Take "when" away from one of them.'
            raise wrong(circle[0], "conditions that go round in a circle (%s)" % ", ".join(circle), hint)
        placed[ready[0]] = axes[ready[0]]
    return placed
