"""Which trials are not worth another epoch. Pure: each rule decides from the scores it is shown, and nothing else.

The score of a trial after an epoch is its best value of the ranking metric up to there, as trials are ranked by their
best epoch; smaller is better. A trial that is done early keeps its last score in all later epochs; one that failed, or
whose metric was no number, counts for nobody any more.

* ``percentile``: goes on if it is among the best ``percentile`` % of the trials done, compared after the same epoch;
  ``median`` is the 50th percentile (the median stopping rule of Golovin et al. 2017, as Optuna reads it).
* ``successive_halving`` (Jamieson and Talwalkar 2016): of all n trials of the search, n/η go on after ``min_epochs``,
  n/η² after η times as many, and so on (η: ``reduction_factor``). Without the paper's barrier: a trial is stopped as soon
  as so many are known to be better, also between those epochs. None is stopped that the paper would keep.
* ``asha`` (Li et al. 2020), in the form that stops trials: after those epochs, a trial goes on if it is among the best 1/η
  of the trials that have come as far by then. It decides at once, so it may err, and saves most.
* ``hyperband`` (Li et al. 2018): several successive halvings (brackets), from one that begins after ``min_epochs`` to one
  that stops none, since some good trials begin badly; each has its share of the trials, dealt out evenly by number.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy

from cerebro_udf.errors import InvalidArgument, counted, nearest
from cerebro_udf.keras_objects import show

_HALVING = {"min_epochs": 1, "reduction_factor": 3}
# By name, the settings with their defaults.
PRUNERS: Dict[str, Dict[str, Any]] = {
    "median": {"startup_trials": 5, "warmup_epochs": 0},
    "percentile": {"percentile": 25, "startup_trials": 5, "warmup_epochs": 0},
    "successive_halving": _HALVING,
    "asha": _HALVING,
    "hyperband": _HALVING,
}
_LEAST = {"startup_trials": 1, "warmup_epochs": 0, "min_epochs": 1, "reduction_factor": 2}


class Seen(NamedTuple):
    """What a decision may see.

    Attributes:
        trial: Whose next epoch it is about.
        epoch: The one that it has finished.
        scores: After an epoch, the score of each trial by number, float64; NaN where it has not come as far, or counts for nobody.
        done: Which trials are done, by number; may be shorter than the scores, none of the others is then known to be.
    """

    trial: int
    epoch: int
    scores: Callable[[int], numpy.ndarray]
    done: numpy.ndarray

    def better(self, epoch: int) -> numpy.ndarray:
        """Which trials were better after an epoch."""
        scores = self.scores(epoch)
        return scores < scores[self.trial]


class Percentile:
    def __init__(self, percentile: float, startup_trials: int, warmup_epochs: int):
        self.percentile, self.startup_trials, self.warmup_epochs = percentile, startup_trials, warmup_epochs

    def reason(self, seen: Seen) -> Optional[str]:
        """Why a trial is stopped, or None."""
        done = ~numpy.isnan(seen.scores(seen.epoch)[: len(seen.done)]) & seen.done
        count = int(done.sum())
        if seen.epoch <= self.warmup_epochs or count < self.startup_trials:
            return None
        better = int(seen.better(seen.epoch)[: len(done)][done].sum())
        if better <= count * self.percentile / 100:
            return None
        return "%d of %d trials done were better after epoch %d" % (better, count, seen.epoch)


class Halving:
    """Successive halving.

    Args:
        rungs: (epoch, how many trials go on after it), ascending.
        members: Which trials compete, by number.
    """

    def __init__(self, rungs: List[Tuple[int, int]], members: numpy.ndarray):
        self.rungs, self.members = rungs, members

    def reason(self, seen: Seen) -> Optional[str]:
        for epoch, places in self.rungs:
            if epoch > seen.epoch:
                return None
            better = seen.better(epoch)
            count = int((better & self.members[: len(better)]).sum())
            if count >= places:
                verbs = "was" if count == 1 else "were", "goes" if places == 1 else "go"
                return "%s %s better after epoch %d, after which %d %s on" % (counted(count, "trial"), verbs[0], epoch, places, verbs[1])
        return None


class Asha:
    def __init__(self, rungs: List[int], factor: int):
        self.rungs, self.factor = rungs, factor

    def reason(self, seen: Seen) -> Optional[str]:
        if seen.epoch not in self.rungs:
            return None
        better = int(seen.better(seen.epoch).sum())
        count = int((~numpy.isnan(seen.scores(seen.epoch))).sum())
        if better < max(1, count // self.factor):
            return None
        return "%d of %d trials were better after epoch %d" % (better, count, seen.epoch)


class Hyperband:
    def __init__(self, brackets: List[Halving], bracket: List[int]):
        self.brackets, self.bracket = brackets, bracket

    def reason(self, seen: Seen) -> Optional[str]:
        return self.brackets[self.bracket[seen.trial]].reason(seen)


def check(pruner: Any) -> Optional[Tuple[str, Dict[str, Any]]]:
    """Read ``options.search.pruner``: a name, or ``{name: {setting: value}}``.

    Returns:
        Name and all settings, or None for no pruner.

    Raises:
        InvalidArgument: an unknown name or setting, or a value out of range.
    """
    if pruner is None:
        return None
    name, given = (pruner, {}) if isinstance(pruner, str) else (None, None)
    if isinstance(pruner, dict) and len(pruner) == 1:
        name, given = next(iter(pruner.items()))
    if name not in PRUNERS or not isinstance(given, dict):
        hint = nearest(name, PRUNERS) if isinstance(name, str) and name not in PRUNERS else None
        raise InvalidArgument(
            "options.search.pruner must name a pruner",
            "It is %s." % show(pruner),
            hint or 'Write "median", or {"asha": {"min_epochs": 2}}.',
        )
    for setting, value in given.items():
        place = "options.search.pruner.%s" % name
        if setting not in PRUNERS[name]:
            raise InvalidArgument('unknown key "%s" in %s' % (setting, place), None, nearest(setting, PRUNERS[name]))
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if setting == "percentile":
            good, form = number and 0 < value < 100, "a number above 0 and below 100"
        else:
            good = number and value == value // 1 and _LEAST[setting] <= value < 2**31
            form = "a whole number from %d" % _LEAST[setting]
        if not good:
            raise InvalidArgument(
                "%s.%s must be %s" % (place, setting, form),
                "It is %s." % show(value),
                'Leave it out for %s.' % PRUNERS[name][setting],
            )
    return name, {**PRUNERS[name], **{setting: value if setting == "percentile" else int(value) for setting, value in given.items()}}


def make(pruner: Any, trials: int, epochs: int) -> Any:
    """Return the pruner of a search, whose ``reason(seen)`` says why a trial is to stop; None for none.

    Args:
        pruner: As in the options.
        trials: Of the search, all together.
        epochs: That a trial makes if nothing stops it; after the last one nothing is asked.
    """
    checked = check(pruner)
    if checked is None:
        return None
    name, settings = checked
    if name in ("median", "percentile"):
        return Percentile(settings.get("percentile", 50), settings["startup_trials"], settings["warmup_epochs"])
    least, factor = settings["min_epochs"], settings["reduction_factor"]
    rungs = [least]
    while rungs[-1] * factor < epochs:
        rungs.append(rungs[-1] * factor)
    if name == "asha":
        return Asha(rungs, factor)
    if name == "successive_halving":
        return Halving(_places(rungs, trials, factor), numpy.ones(trials, bool))
    return _hyperband(trials, epochs, least, factor)


def _places(rungs: List[int], trials: int, factor: int) -> List[Tuple[int, int]]:
    return [(epoch, max(1, trials // factor ** (depth + 1))) for depth, epoch in enumerate(rungs)]


def _hyperband(trials: int, epochs: int, least: int, factor: int) -> Hyperband:
    """Algorithm 1 of the paper; its brackets run beside each other, as often as it takes to place every trial."""
    deepest = 0
    while least * factor ** (deepest + 1) <= epochs:
        deepest += 1
    # In bracket s, trials stop after epochs/η^s, …, epochs/η; it begins with the paper's n trials.
    depths = list(range(deepest, -1, -1))
    shares = [-(-(deepest + 1) * factor**depth // (depth + 1)) for depth in depths]
    bracket: List[int] = []
    credit = [0] * len(depths)
    for _ in range(trials):  # smooth weighted round robin: at each step, the one furthest behind its share
        credit = [have + share for have, share in zip(credit, shares)]
        chosen = credit.index(max(credit))
        credit[chosen] -= sum(shares)
        bracket.append(chosen)
    brackets = []
    for number, depth in enumerate(depths):
        members = numpy.array([chosen == number for chosen in bracket], bool)
        rungs = [epochs // factor**power for power in range(depth, 0, -1)]
        brackets.append(Halving(_places(rungs, int(members.sum()), factor), members))
    return Hyperband(brackets, bracket)
