"""When a trial stops early, and when its learning rate falls: early stopping and reduce-on-plateau. Pure, no I/O.

Both decide as Keras' callbacks ``EarlyStopping`` and ``ReduceLROnPlateau`` do when fed with the same logs, down to the
comparisons in float32. A trial whose training loss is NaN or infinite at an epoch's end has diverged: no later epoch
brings its weights back, so it stops there (``TerminateOnNaN`` of Keras), as a trial that failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from cerebro_udf.errors import InvalidArgument, counted, nearest
from cerebro_udf.keras_objects import show

MAX_EPOCHS = 2**31 - 1


class _Key(NamedTuple):
    """One key of an option that is an object."""

    default: Any
    fits: Callable[[Any], bool]
    form: str


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and 0 <= value <= MAX_EPOCHS


def _count(default: int) -> _Key:
    return _Key(default, _is_count, "a whole number of epochs, 0 or more")


def _amount(default: float) -> _Key:
    return _Key(default, lambda value: _is_number(value) and value >= 0, "a number, 0 or more")


_MONITOR = {
    "monitor": _Key(None, lambda value: isinstance(value, str) and value != "", "the name of a metric such as \"val_loss\""),
    "direction": _Key(None, lambda value: value in ("min", "max"), '"min" or "max"'),
}
# Names and defaults are those of Keras' callbacks, but ``direction`` for mode and ``min_learning_rate`` for min_lr.
_KEYS: Dict[str, Dict[str, _Key]] = {
    "early_stopping": {
        **_MONITOR,
        "patience": _count(0),
        "min_delta": _amount(0.0),
        "baseline": _Key(None, _is_number, "a number"),
        "start_from_epoch": _count(0),
    },
    "reduce_on_plateau": {
        **_MONITOR,
        "factor": _Key(0.1, lambda value: _is_number(value) and 0 < value < 1, "a number above 0 and below 1"),
        "patience": _count(10),
        "min_delta": _amount(1e-4),
        "cooldown": _count(0),
        "min_learning_rate": _amount(0.0),
    },
}


def read(option: str, value: Any) -> Dict[str, Any]:
    """Check ``early_stopping`` or ``reduce_on_plateau``; return it with all keys, ``monitor`` None for the ranking metric.

    Args:
        option: Its name.
        value: An object, or a whole number: the patience.

    Raises:
        InvalidArgument: an unknown key, or a value of a wrong type or range.
    """
    keys = _KEYS[option]
    if _is_count(value):
        value = {"patience": value}
    if not isinstance(value, dict):
        raise _wrong(option, value, 'a number of epochs to wait, or an object such as {"monitor": "val_loss", "patience": 3}')
    result = {name: key.default for name, key in keys.items()}
    for name, item in value.items():
        if name not in keys:
            raise InvalidArgument('unknown key "%s" in option "%s"' % (name, option), None, nearest(name, keys))
        if item is None:
            continue
        if not keys[name].fits(item):
            raise _wrong("%s.%s" % (option, name), item, keys[name].form)
        result[name] = int(item) if keys[name].fits is _is_count else item
    if result["direction"] is not None and result["monitor"] is None:
        raise InvalidArgument(
            'option "%s" has a direction and no monitor' % option,
            "Without a monitor it goes by the metric that ranks the trials.",
            'Add "monitor": "val_accuracy", or give the direction in rank_by.',
        )
    return result


def _wrong(place: str, value: Any, form: str) -> InvalidArgument:
    return InvalidArgument('option "%s" has a wrong value' % place, "The value is %s." % show(value), "Accepted is %s." % form)


@dataclass(frozen=True)
class Verdict:
    """What becomes of a trial after an epoch.

    Attributes:
        stop: Why it trains no further; None: it goes on.
        learning_rate: Of its epochs from now on; None: as before.
        diverged: Its training loss is NaN or infinite: ``stop`` is set, and the trial has failed.
    """

    stop: Optional[str] = None
    learning_rate: Optional[float] = None
    diverged: bool = False


class Watch:
    """Watches one trial, epoch by epoch; a resumed trial's is rebuilt from its stored history.

    Args:
        options: The run's, with ``early_stopping`` and ``reduce_on_plateau``.
        rank: Metric and direction by which trials are ranked, what is monitored unless told otherwise.
    """

    def __init__(self, options: Any, rank: Tuple[str, str]):
        self._stopping = options.early_stopping and _EarlyStopping(options.early_stopping, rank)
        self._plateau = options.reduce_on_plateau and _Plateau(options.reduce_on_plateau, rank)

    def epoch(self, epoch: int, metrics: Dict[str, Any], learning_rate: Optional[float]) -> Verdict:
        """Take the metrics of the epoch just finished and decide.

        Args:
            epoch: Counted from 1, in order, none left out.
            metrics: By Keras' names, those of validation with ``val_``; None stands for NaN and infinities.
            learning_rate: The rate that its last minibatch was trained with.

        Raises:
            InvalidArgument: the monitored metric is not there, or has several values.
        """
        if metrics.get("loss", 0.0) is None or not math.isfinite(metrics.get("loss", 0.0)):
            return Verdict("diverged: the training loss of epoch %d is NaN or infinite" % epoch, None, True)
        rate = self._plateau and self._plateau.epoch(metrics, learning_rate)
        return Verdict(self._stopping and self._stopping.epoch(epoch, metrics), rate)


class _Monitor:
    """The best value so far of one metric."""

    option: str

    def __init__(self, given: Dict[str, Any], rank: Tuple[str, str]):
        self.given = given
        self.metric, self._direction = rank if given["monitor"] is None else (given["monitor"], given["direction"])
        self.best: Optional[float] = None
        self.wait = 0

    def value(self, metrics: Dict[str, Any]) -> float:
        if self.metric not in metrics:
            raise InvalidArgument(
                'option "%s" names a metric that this run does not have: "%s"' % (self.option, self.metric),
                None,
                nearest(self.metric, metrics),
            )
        value = metrics[self.metric]
        if isinstance(value, list):
            raise InvalidArgument(
                'option "%s" names a metric of several values: "%s"' % (self.option, self.metric),
                None,
                "Monitor one that is a single number.",
            )
        return math.nan if value is None else value

    def better(self, value: float, reference: Optional[float]) -> bool:
        """Say whether a value improves on another by ``min_delta``; Keras compares tensors, which are float32."""
        if reference is None:
            return True
        with np.errstate(over="ignore"):
            if self._direction == "min":
                return bool(np.float32(value + self.given["min_delta"]) < np.float32(reference))
            return bool(np.float32(value - self.given["min_delta"]) > np.float32(reference))


class _EarlyStopping(_Monitor):
    option = "early_stopping"

    def epoch(self, epoch: int, metrics: Dict[str, Any]) -> Optional[str]:
        """Return why to stop, None to go on."""
        value = self.value(metrics)
        if epoch <= self.given["start_from_epoch"]:
            return None
        self.wait += 1
        if self.better(value, self.best):
            self.best = value
            baseline = self.given["baseline"]
            if baseline is None or self.better(value, baseline):
                self.wait = 0
            return None
        if self.wait < self.given["patience"] or epoch == 1:
            return None
        return "%s has not improved for %s" % (self.metric, counted(self.wait, "epoch"))


class _Plateau(_Monitor):
    option = "reduce_on_plateau"

    def __init__(self, given: Dict[str, Any], rank: Tuple[str, str]):
        super().__init__(given, rank)
        self._cooldown = 0  # epochs left in which nothing is counted

    def epoch(self, metrics: Dict[str, Any], learning_rate: Optional[float]) -> Optional[float]:
        """Return a lower learning rate, None to keep it."""
        value = self.value(metrics)
        if self._cooldown > 0:
            self._cooldown -= 1
            self.wait = 0
        if self.better(value, self.best):
            self.best, self.wait = value, 0
            return None
        if self._cooldown > 0:
            return None
        self.wait += 1
        lowest = self.given["min_learning_rate"]
        if self.wait < self.given["patience"] or learning_rate is None or not learning_rate > np.float32(lowest):
            return None
        self._cooldown, self.wait = self.given["cooldown"], 0
        return max(learning_rate * self.given["factor"], lowest)
