"""From ``options.search`` to the configurations of a run. Pure: the same arguments give the same trials, anywhere.

``{"method": "grid", "space": {axis: values, …}, "trials": n}``, with values a list of choices or a range
``{"low", "high", "log", "step"}``. A range whose ends (and step) are whole numbers gives whole numbers.

* ``grid``: every combination. Axes in order of their names (by code point), the last one varying fastest, values
  as listed or ascending; ``trials`` takes the first so many. A range needs a ``step``, or few whole numbers.
* ``random``: ``trials`` draws. Every axis draws from a stream of its own, keyed by seed and name, so that an axis
  more or less does not change the others. No configuration comes twice; a space that is exhausted ends early.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from decimal import Decimal
from typing import Any, Dict, Iterable, Iterator, List, Optional

import numpy

from cerebro_udf import definition as definitions
from cerebro_udf.errors import InvalidArgument, NotSupported, nearest

MAX_TRIALS = 10000
MAX_NUMBER = 1e300
# Whole numbers of a range without a step that a grid takes one by one.
MAX_IMPLIED_STEPS = 32
# Draws per trial before a finite space is filled up in grid order: rare values may never come.
DRAWS_PER_TRIAL = 50

METHODS = ("grid", "random")
LATER_METHODS = frozenset(["tpe", "bayesian", "gp", "cmaes", "asha", "hyperband", "median", "pbt"])

_OPTION_AXES = ("learning_rate", "batch_size", "optimizer", "loss")
_OPTIMIZER_PREFIX = "optimizer."
_RANGE_KEYS = ("low", "high", "log", "step")
_KEYS = ("method", "space", "trials")


class _Choices:
    """An axis that is a list."""

    finite = True

    def __init__(self, values: List[Any]):
        self.values = values

    def grid(self) -> List[Any]:
        return self.values

    def draw(self, uniform: float) -> Any:
        return self.values[int(uniform * len(self.values))]

    def ends(self) -> List[Any]:
        return self.values


class _Range:
    """An axis from low to high, both included; whole numbers where both ends and the step are."""

    def __init__(self, name: str, low: float, high: float, log: bool, step: Optional[float]):
        self.name, self.low, self.high, self.log, self.step = name, low, high, log, step
        self.whole = all(isinstance(x, int) for x in (low, high, 1 if step is None else step))
        self.finite = self.whole or step is not None or low == high

    def count(self) -> int:
        """How many values there are, in a finite range."""
        step = Decimal(1) if self.step is None else Decimal(repr(self.step))
        return int((Decimal(repr(self.high)) - Decimal(repr(self.low))) / step) + 1

    def at(self, index: int) -> Any:
        """Value number ``index``; decimal arithmetic, so that 0.1 + 2 steps of 0.1 is 0.3."""
        if self.whole or index == 0:
            return self.low + index * (self.step or 1)
        return float(Decimal(repr(self.low)) + index * Decimal(repr(self.step)))

    def grid(self) -> List[Any]:
        if self.log or (self.step is None and not self.whole):
            raise _wrong(self.name, "a grid cannot walk this range", 'Give a "step", or list the values.')
        if self.step is None and self.count() > MAX_IMPLIED_STEPS:
            raise _wrong(
                self.name, "a grid over %d whole numbers" % self.count(), 'Give a "step", or list the values.'
            )
        if self.count() > MAX_TRIALS:
            raise _wrong(self.name, "a grid over %d values" % self.count(), "Take a larger step.")
        return [self.at(index) for index in range(self.count())]

    def draw(self, uniform: float) -> Any:
        if self.log:
            # Whole numbers: each has the share of the interval up to the next one, the highest one too.
            top = self.high + 1 if self.whole else self.high
            value = math.exp(math.log(self.low) + uniform * (math.log(top) - math.log(self.low)))
            value = int(value) if self.whole else value
        elif self.finite:
            return self.at(int(uniform * self.count()))
        else:
            value = self.low + uniform * (self.high - self.low)
        return min(max(value, self.low), self.high)

    def ends(self) -> List[Any]:
        return [self.low, self.high]


def check(search: Optional[dict], definition: dict, options: Any) -> None:
    """Refuse a search that makes no sense for this model and these options, value by value.

    Raises:
        InvalidArgument: unknown keys or axes, an empty or endless space, a value that its option would refuse, a
            placeholder without an axis.
        NotSupported: a method that is planned.
    """
    axes = _axes(search, definition, options)
    if search is None:
        return
    count = _trial_count(search)
    if search.get("method", "grid") == "random":
        if count is None:
            raise InvalidArgument(
                "a random search needs a number of trials", None, 'Add "trials": 20 to options.search.'
            )
        return
    size = math.prod(len(axis.grid()) for axis in axes.values())
    if size > MAX_TRIALS and (count is None or count > MAX_TRIALS):
        raise InvalidArgument(
            "the grid has %d configurations" % size,
            "At most %d are taken." % MAX_TRIALS,
            'Give "trials", fewer values, or "method": "random".',
        )


def trials(search: Optional[dict], seed: int, definition: dict, options: Any) -> List[Dict[str, Any]]:
    """Return the configurations of a run in the order of their numbers, each ``{axis: value}``.

    Args:
        search: As in ``Options.search``; None gives the one trial that varies nothing.
        seed: Of the run; only ``random`` uses it.
        definition: Of the model.
        options: ``Options`` of the run.
    """
    check(search, definition, options)
    axes = _axes(search, definition, options)
    if search is None:
        return [{}]
    count = _trial_count(search)
    if search.get("method", "grid") == "grid":
        return list(itertools.islice(_grid(axes), count))
    return _random(axes, count, seed)


def resolve(options: Any, params: Dict[str, Any]) -> Dict[str, Any]:
    """Return what one trial trains with.

    Of the learning rate, the trial's own comes first, then ``options.learning_rate``, then the optimizer's.

    Returns:
        ``batch_size``; ``optimizer`` in Keras' full form, the trial's values in its config; ``loss`` and
        ``metrics`` (None: derived from the task); ``learning_rate`` as a number, None for a schedule; and
        ``model_values``, what ``definition.bind`` needs of this trial.
    """
    optimizer = options.optimizer
    if "optimizer" in params:
        optimizer = definitions.check_optimizer(params["optimizer"])
    config = copy.deepcopy(optimizer["config"])
    if options.learning_rate is not None:
        config["learning_rate"] = options.learning_rate
    for axis, value in params.items():
        if axis.startswith(_OPTIMIZER_PREFIX):
            config[axis[len(_OPTIMIZER_PREFIX) :]] = value
    if "learning_rate" in params:
        config["learning_rate"] = params["learning_rate"]
    optimizer = definitions.check_optimizer({**optimizer, "config": config})
    rate = optimizer["config"].get("learning_rate", definitions.default_learning_rate(optimizer))
    return {
        "batch_size": int(params.get("batch_size", options.batch_size)),
        "optimizer": optimizer,
        "loss": definitions.check_loss(params["loss"]) if params.get("loss") is not None else options.loss,
        "metrics": options.metrics,
        "learning_rate": None if isinstance(rate, dict) else float(rate),
        "model_values": {axis: value for axis, value in params.items() if not _is_option(axis)},
    }


# ---- the space


def _wrong(axis: str, message: str, hint: str, *value: Any) -> InvalidArgument:
    detail = "At options.search.space.%s%s." % (axis, ": %r" % value if value else "")
    return InvalidArgument('%s for axis "%s"' % (message, axis), detail, hint)


def _is_option(axis: str) -> bool:
    return axis in _OPTION_AXES or axis.startswith(_OPTIMIZER_PREFIX)


def _axes(search: Optional[dict], definition: dict, options: Any) -> Dict[str, Any]:
    """Return the axes by name, sorted, every value checked."""
    given = search is not None
    search = search if given else {}
    if not isinstance(search, dict):
        raise InvalidArgument(
            "options.search must be an object", "It is %r." % (search,), 'Write {"space": {...}}.'
        )
    for key in search:
        if key not in _KEYS:
            raise InvalidArgument('unknown key "%s" in options.search' % key, None, nearest(key, _KEYS))
    method = search.get("method", "grid")
    if not isinstance(method, str) or method not in METHODS:
        if isinstance(method, str) and method in LATER_METHODS:
            raise NotSupported(
                'search method "%s" is not supported yet' % method, None, "Use grid or random."
            )
        raise InvalidArgument("unknown search method %r" % (method,), None, nearest(str(method), METHODS))
    space = search.get("space")
    wanted = definitions.placeholders(definition)
    for name in sorted(wanted):
        if _is_option(name):
            raise InvalidArgument(
                'placeholder "$%s" of the model has the name of an option' % name,
                None,
                "Give it another name.",
            )
        if not isinstance(space, dict) or name not in space:
            raise InvalidArgument(
                'no axis for placeholder "$%s" of the model' % name,
                None,
                'Add "%s": [value, ...] to options.search.space.' % name,
            )
    if not given:
        return {}
    if not isinstance(space, dict) or not space:
        raise InvalidArgument(
            "the search space is empty", None, 'Write "space": {"learning_rate": [0.001, 0.01]}.'
        )
    axes = {name: _axis(name, space[name]) for name in sorted(space)}
    for name in axes:
        if name not in wanted and not _is_option(name):
            known = sorted(wanted) + list(_OPTION_AXES)
            hint = "%s Keys of the optimizer are axes too, such as optimizer.beta_1." % nearest(name, known)
            raise _wrong(name, "nothing in the model or the options to vary", hint)
    _check_values(axes, definition, options)
    return axes


def _axis(name: str, value: Any) -> Any:
    if isinstance(value, list):
        if not value:
            raise _wrong(name, "no values", "List at least one.")
        keys = [_key(item) for item in value]
        if len(set(keys)) < len(keys):
            raise _wrong(name, "a value listed twice", "List every value once.")
        return _Choices(value)
    if not isinstance(value, dict) or "low" not in value or "high" not in value:
        raise _wrong(
            name,
            "neither a list nor a range",
            'Write [16, 64], or {"low": 0.0001, "high": 0.1, "log": true}.',
        )
    for key in value:
        if key not in _RANGE_KEYS:
            raise _wrong(name, 'unknown key "%s"' % key, nearest(key, _RANGE_KEYS))
    low, high, log, step = value["low"], value["high"], value.get("log", False), value.get("step")
    if not _is_number(low) or not _is_number(high) or low > high:
        raise _wrong(name, "low and high must be numbers, low first", 'Write {"low": 1, "high": 9}.', value)
    if not isinstance(log, bool):
        raise _wrong(name, '"log" must be true or false', 'Write "log": true.', value)
    if log and low <= 0:
        raise _wrong(name, "a logarithmic range must begin above 0", "Raise low.", value)
    if step is not None and (not _is_number(step) or step <= 0):
        raise _wrong(name, "the step must be a number above 0", 'Write "step": 1.', value)
    if log and step is not None:
        raise _wrong(name, "a logarithmic range has no step", "List the values, or leave out one.", value)
    if name == "batch_size":
        low, high, step = _whole(low), _whole(high), _whole(step)
        if not all(isinstance(x, int) for x in (low, high, step or 1)):
            raise _wrong(name, "a range of fractions", "Batch sizes are whole numbers.", value)
    return _Range(name, low, high, log, step)


def _is_number(value: Any) -> bool:
    # JSON may hold 1e999 (infinity in Python) and whole numbers that no float can hold.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _trial_count(search: dict) -> Optional[int]:
    count = search.get("trials")
    if count is None:
        return None
    if not _is_number(count) or count != int(count) or count < 1:
        raise InvalidArgument("trials must be a whole number from 1", "It is %r." % (count,), '"trials": 20')
    if count > MAX_TRIALS:
        raise InvalidArgument(
            "too many trials", "%d; at most %d are taken." % (count, MAX_TRIALS), "Ask for fewer."
        )
    return int(count)


def _check_values(axes: Dict[str, Any], definition: dict, options: Any) -> None:
    for name, axis in axes.items():
        if name in ("optimizer", "loss") and not isinstance(axis, _Choices):
            raise _wrong(name, "a range", "List the choices.")
        for value in axis.ends():
            try:
                _check_value(name, value, axes, definition, options)
            except InvalidArgument as error:
                detail = "In options.search.space.%s. %s" % (name, error.detail or "")
                raise InvalidArgument(error.message, detail.strip(), error.hint) from None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_value(name: str, value: Any, axes: Dict[str, Any], definition: dict, options: Any) -> None:
    if name == "batch_size":
        number = _whole(value)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 2**31:
            raise InvalidArgument(
                "a batch size must be a whole number from 1", "It is %r." % (value,), "Try 32."
            )
    elif name == "loss":
        definitions.check_loss(value)
    elif name == "optimizer":
        definitions.check_optimizer(value)
    elif name == "learning_rate":
        definitions.check_optimizer({"SGD": {"learning_rate": value}})
    elif name.startswith(_OPTIMIZER_PREFIX):
        _check_optimizer_value(name[len(_OPTIMIZER_PREFIX) :], value, axes, options)
    else:
        # The other placeholders stand for themselves.
        names = definitions.placeholders(definition) | definitions.FROM_DATA
        definitions.bind(definition, {**{other: "$" + other for other in names}, name: value})


def _check_optimizer_value(key: str, value: Any, axes: Dict[str, Any], options: Any) -> None:
    choices = [options.optimizer]
    if "optimizer" in axes:
        choices = [definitions.check_optimizer(choice) for choice in axes["optimizer"].values]
    for optimizer in choices:
        if key == "learning_rate":
            raise InvalidArgument(
                "the learning rate is an axis of its own", None, 'Name the axis "learning_rate".'
            )
        known = definitions.optimizer_arguments(optimizer)
        if key not in known:
            raise InvalidArgument(
                '%s has no "%s"' % (optimizer["class_name"], key), None, nearest(key, known)
            )
        definitions.check_optimizer({optimizer["class_name"]: {key: value}})


# ---- walking it


def _grid(axes: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    for values in itertools.product(*(axis.grid() for axis in axes.values())):
        yield dict(zip(axes, values))


def _uniforms(seed: int, name: str) -> Iterable[float]:
    """Numbers in [0, 1) from a stream of the axis' own; raw Philox output, which NumPy promises not to change."""
    digest = hashlib.sha256(("%d/%s" % (seed, name)).encode("utf-8")).digest()
    stream = numpy.random.Philox(key=int.from_bytes(digest[:16], "big"))
    while True:
        yield (int(stream.random_raw()) >> 11) * 2.0**-53


def _random(axes: Dict[str, Any], count: int, seed: int) -> List[Dict[str, Any]]:
    streams = {name: iter(_uniforms(seed, name)) for name in axes}
    found: Dict[str, Dict[str, Any]] = {}
    size = _size(axes)
    wanted = count if size is None else min(count, size)
    for _ in range(DRAWS_PER_TRIAL * wanted):
        trial = {name: axis.draw(next(streams[name])) for name, axis in axes.items()}
        found.setdefault(_key(trial), trial)
        if len(found) == wanted:
            return list(found.values())
    for trial in _every(axes):
        found.setdefault(_key(trial), trial)
        if len(found) == wanted:
            break
    return list(found.values())


def _size(axes: Dict[str, Any]) -> Optional[int]:
    """How many configurations there are; None if endless."""
    if not all(axis.finite for axis in axes.values()):
        return None
    return math.prod(len(a.values) if isinstance(a, _Choices) else a.count() for a in axes.values())


def _every(axes: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Every configuration of a space, in grid order; of an endless axis only its ends."""
    walks = [
        (lambda a=axis: (a.at(i) for i in range(a.count())))
        if isinstance(axis, _Range) and axis.finite
        else axis.ends
        for axis in axes.values()
    ]

    def walk(index: int, chosen: tuple) -> Iterator[tuple]:
        if index == len(walks):
            yield chosen
            return
        for value in walks[index]():
            yield from walk(index + 1, chosen + (value,))

    for values in walk(0, ()):
        yield dict(zip(axes, values))
