"""Where the configurations of a search come from. Pure: the same space, seed and history give the same ones, anywhere.

* ``grid``: every combination, axes in order of their names (an axis after those that its ``when`` names), the last one
  varying fastest, values as listed or ascending.
* ``random``: every axis draws from a stream of its own, keyed by seed and name, so that an axis more or less does not
  change the others.
* ``quasirandom``: a Halton sequence, digits permuted at random (Owen 2017, "A randomized Halton algorithm in R"): random,
  but spread evenly over the space. scipy's would be the same at 113 MB of disk, 84 MB of memory and 1.1 s in each backend.
* ``tpe``: Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), multivariate; trials that are under way count
  as bad ones ("constant liar"), so that it does not propose the same place again and again.

None gives a configuration twice. When one has come again ``REPEATS`` times, what is left of a finite space follows in
grid order, from a place that the seed chooses.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any, Dict, Iterator, List, Optional, Set

import numpy

from cerebro_udf.coordinator.space import Axis, Choices, Space, key

REPEATS = 50
# Of these, so many are asked of TPE, which costs more and may insist.
TPE_REPEATS = 4


class Sequence:
    """Configurations that depend on nothing but space and seed: grid, random, quasirandom."""

    def __init__(self, found: Iterator[Dict[str, Any]]):
        self._found = found
        self._known: Set[str] = set()

    def next(self) -> Optional[Dict[str, Any]]:
        """The next configuration that no trial has; None: there is none left."""
        return next((params for params in self._found if key(params) not in self._known), None)

    def know(self, number: int, params: Dict[str, Any]) -> None:
        """A trial of an earlier session, maybe of a space that was smaller then."""
        self._known.add(key(params))

    def tell(self, number: int, state: str, value: Optional[float], epochs: int) -> None:
        """A trial has ended, which changes nothing here."""


def sequence(method: str, space: Space, seed: int) -> Sequence:
    """The configurations of ``grid``, ``random`` or ``quasirandom``."""
    if method == "grid":
        return Sequence(space.grid())
    draws = {"random": _random, "quasirandom": _halton}[method](space, seed)
    return Sequence(_new(space, seed, draws))


def _new(space: Space, seed: int, draws: Iterator[Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    seen: Set[str] = set()
    repeats = 0
    for params in draws:
        repeats += 1
        if key(params) not in seen:
            seen.add(key(params))
            repeats = 0
            yield params
        elif repeats == REPEATS:
            break
    yield from (params for params in _rest(space, seed) if key(params) not in seen)


def _rest(space: Space, seed: int) -> Iterator[Dict[str, Any]]:
    """Every configuration, in grid order from a place that the seed chooses."""
    return space.every({name: _hash(seed, "from", name) % (axis.count or 1) for name, axis in space.axes.items()})


def _random(space: Space, seed: int) -> Iterator[Dict[str, Any]]:
    streams = {name: _uniforms(seed, name) for name in space.axes}
    while True:
        # Every axis draws, whether its condition holds or not: so no stream depends on another.
        yield space.at({name: next(stream) for name, stream in streams.items()})


def _halton(space: Space, seed: int) -> Iterator[Dict[str, Any]]:
    axes = {name: _Digits(seed, name, base) for name, base in zip(sorted(space.axes), _primes())}
    for number in itertools.count():
        yield space.at({name: digits.point(number) for name, digits in axes.items()})


class _Digits:
    """One dimension of a Halton sequence: the digits of n in a prime base, each permuted by itself, behind the point."""

    def __init__(self, seed: int, name: str, base: int):
        self.base = base
        uniforms = _uniforms(seed, "digits of " + name)
        # As many digits as a float has bits; the leading zeros of n are permuted too.
        self.permutations = [
            sorted(range(base), key=lambda _: next(uniforms)) for _ in range(math.ceil(53 / math.log2(base)))
        ]

    def point(self, number: int) -> float:
        value, weight = 0.0, 1.0
        for permutation in self.permutations:
            number, digit = divmod(number, self.base)
            weight /= self.base
            value += permutation[digit] * weight
        return min(value, 1 - 2.0**-53)


def _primes() -> Iterator[int]:
    found: List[int] = []
    for number in itertools.count(2):
        if all(number % prime for prime in found):
            found.append(number)
            yield number


def _hash(seed: int, *parts: Any) -> int:
    digest = hashlib.sha256("/".join(str(part) for part in (seed, *parts)).encode("utf-8")).digest()
    return int.from_bytes(digest[:16], "big")


def _uniforms(seed: int, name: str) -> Iterator[float]:
    """Numbers in [0, 1) from a stream of the axis' own; raw Philox output, which NumPy promises not to change."""
    stream = numpy.random.Philox(key=_hash(seed, name))
    while True:
        yield (int(stream.random_raw()) >> 11) * 2.0**-53


class Tpe:
    """Optuna's TPE, over an in-memory study that holds every trial, those under way as such.

    A proposal depends on seed, number of trials and what was told, never on how many proposals this process has made.
    """

    def __init__(self, space: Space, seed: int, direction: str):
        # Imported only where it is needed: 0.1 s and 16 MB.
        import optuna

        optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # nothing of it into the server's log
        self._optuna = optuna
        self._space, self._seed = space, seed
        self._study = optuna.create_study(direction={"min": "minimize", "max": "maximize"}[direction])
        self._distributions = {name: _distribution(optuna, axis) for name, axis in space.axes.items()}
        self._seen: Set[str] = set()
        self._trials: Dict[int, Any] = {}
        self._rest = _rest(space, seed)

    def next(self) -> Optional[Dict[str, Any]]:
        """A configuration that no trial has, which is then under way; None: there is none left."""
        number = len(self._trials)
        proposals = (self._propose(number, attempt) for attempt in range(TPE_REPEATS))
        uniforms = _uniforms(self._seed, "instead of trial %d" % number)
        points = (dict(zip(self._space.axes, uniforms)) for _ in range(REPEATS - TPE_REPEATS))
        # Trials never go away, so the walk over the rest goes on where it stopped.
        for params in itertools.chain(proposals, map(self._space.at, points), self._rest):
            if key(params) not in self._seen:
                self.know(number, params)
                return params
        return None

    def know(self, number: int, params: Dict[str, Any]) -> None:
        """A trial is under way."""
        self._seen.add(key(params))
        drawn = {name: axis for name, axis in self._space.axes.items() if axis.drawn(params)}
        self._study.sampler = self._optuna.samplers.RandomSampler()  # has nothing to draw
        self._study.enqueue_trial({name: _inner(axis, params[name]) for name, axis in drawn.items()})
        self._trials[number] = self._study.ask({name: self._distributions[name] for name in drawn})

    def tell(self, number: int, state: str, value: Optional[float], epochs: int) -> None:
        """A trial has ended: ``done``, ``failed``, or ``pruned`` after so many epochs; without a value it teaches nothing."""
        trial, states = self._trials[number], self._optuna.trial.TrialState
        if value is None or state == "failed":
            self._study.tell(trial, state=states.FAIL)
        elif state == "pruned":
            trial.report(value, epochs)
            self._study.tell(trial, state=states.PRUNED)
        else:
            self._study.tell(trial, value)

    def _propose(self, number: int, attempt: int) -> Dict[str, Any]:
        seed = _hash(self._seed, "trial", number, attempt) % 2**32
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
        trial = self._study.ask()
        params = self._space.draw(lambda axis: _outer(axis, _suggest(trial, axis.name, self._distributions[axis.name])))
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return params


def _numbered(axis: Axis) -> bool:
    """Whether Optuna is to see the number of a value instead of the value."""
    return isinstance(axis, Choices) or axis.step is not None or axis.count == 1


def _distribution(optuna: Any, axis: Axis) -> Any:
    kinds = optuna.distributions
    if isinstance(axis, Choices) and not axis.ordered:
        return kinds.CategoricalDistribution(tuple(range(axis.count)))
    if _numbered(axis):
        return kinds.IntDistribution(0, axis.count - 1)
    kind = kinds.IntDistribution if axis.whole else kinds.FloatDistribution
    return kind(axis.low, axis.high, log=axis.log)


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    if hasattr(distribution, "choices"):
        return trial.suggest_categorical(name, distribution.choices)
    suggest = trial.suggest_float if isinstance(distribution.low, float) else trial.suggest_int
    return suggest(name, distribution.low, distribution.high, log=distribution.log)


def _inner(axis: Axis, value: Any) -> Any:
    return axis.index(value) if _numbered(axis) else value


def _outer(axis: Axis, value: Any) -> Any:
    return axis.at(value) if _numbered(axis) else value
