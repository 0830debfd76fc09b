"""The course of a search: which trial to begin next, and which to stop early. Pure: reports in, asks and verdicts out.

Under ``order: fixed`` a search sees reports in logical order, whatever the order in which they came, and waits for them.
With k trials in flight, trial n is asked for once trials 0 … n-k have ended, and knows what became of these alone. The
verdict on trial t after epoch e sees all of trials 0 … t-k, of those between them and t their first e epochs, and nothing
of later ones. So the same seed gives the same trials and verdicts, however long each took, interrupted or not.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy

from cerebro_udf.coordinator import pruners, samplers, space
from cerebro_udf.coordinator import search as searching

ENDED = ("done", "failed", "pruned")


class _Trial:
    """A trial under way: ``epochs`` reported, and its ``score``, the best value so far; smaller is better, NaN for none."""

    def __init__(self) -> None:
        self.epochs = 0
        self.score = math.nan
        self.finite = True  # as of the last report


class Study:
    """A search under way.

    Args:
        search: As in ``Options.search``; None is one trial that varies nothing.
        seed: Of the run.
        definition: Of the model.
        options: ``Options`` of the run.
        direction: Of the metric that ranks trials, ``min`` or ``max``.
        in_flight: At most so many trials at once; None: all.

    Raises:
        InvalidArgument, NotSupported: see ``search.check``.
    """

    def __init__(
        self, search: Optional[dict], seed: int, definition: dict, options: Any, direction: str, in_flight: Optional[int]
    ):
        searching.check(search, definition, options)
        search = search or {}
        limit = searching.whole_number(search, "trials") or searching.MAX_TRIALS
        method = search.get("method", "grid")
        axes = space.parse(search["space"]) if search else space.Space({})
        self._total = axes.size(limit)
        self._sampler = samplers.Tpe(axes, seed, direction) if method == "tpe" else samplers.sequence(method, axes, seed)
        self._pruner = pruners.make(search.get("pruner"), self._total, options.epochs)
        self._epochs = options.epochs
        self._fixed = options.order == "fixed"
        self._sign = -1.0 if direction == "max" else 1.0
        self._in_flight = self._total if in_flight is None else in_flight
        self._asked = 0
        self._running: Dict[int, _Trial] = {}  # in order of number
        self._waiting: Set[int] = set()  # of these, those that wait for a verdict
        # Ended trials that the sampler has not been told of: number to state, value, epochs.
        self._untold: Dict[int, Tuple[str, Optional[float], int]] = {}
        self._done = numpy.zeros(self._total, bool)
        self._last = numpy.full(self._total, math.nan)  # scores of the trials that are done
        self._scores: Dict[int, numpy.ndarray] = {}  # by epoch, of all trials
        # The epoch in which a trial failed, or its metric was no number: from then on it counts for no other trial.
        self._void = numpy.full(self._total, math.inf)

    def restore(self, trials: List[dict], values: Dict[int, List[Optional[float]]]) -> None:
        """Take up a search where the catalog left it; before anything else is called.

        The last report of each trial that has not ended gets its verdict again.

        Args:
            trials: Every trial that was asked, in order of number: ``trial``, ``params``, ``state``, ``metric``.
            values: By trial, the ranking metric after each epoch that it has finished; None for NaN.
        """
        for row in trials:
            number = row["trial"]
            self._sampler.know(number, row["params"])
            self._begin(number)
            for epoch, value in enumerate(values.get(number, []), 1):
                self.report(number, epoch, value)
            if row["state"] in ENDED:
                self.finish(number, row["state"], row["metric"])

    def ask(self) -> Optional[Tuple[int, Dict[str, Any]]]:
        """A trial to begin now, (number, params); None: none now, see ``exhausted``."""
        number = self._asked
        if self.exhausted or not self._may_ask(number):
            return None
        for ended in [n for n in self._untold if not self._fixed or n <= number - self._in_flight]:
            self._sampler.tell(ended, *self._untold.pop(ended))
        params = self._sampler.next()
        if params is None:
            self._total = number
            return None
        self._begin(number)
        return number, params

    @property
    def exhausted(self) -> bool:
        """Whether no trial will be asked any more."""
        return self._asked >= self._total

    def report(self, trial: int, epoch: int, value: Optional[float]) -> None:
        """An epoch of a trial is recorded, with its ranking metric (None or not finite: no number). A verdict will follow."""
        state = self._running[trial]
        state.epochs = epoch
        state.finite = value is not None and math.isfinite(value)
        if state.finite:
            state.score = self._sign * value if math.isnan(state.score) else min(self._sign * value, state.score)
        else:
            self._void[trial] = min(epoch, self._void[trial])
        self._waiting.add(trial)
        if self._pruner is not None:
            self._after(epoch)[trial] = state.score

    def verdicts(self) -> List[Tuple[int, int, Optional[str]]]:
        """Decisions that became possible, each told once: (trial, epoch, why to prune it, or None: go on)."""
        ready = self._ready() if self._fixed and self._pruner is not None else sorted(self._waiting)
        self._waiting.difference_update(ready)
        return [(number, self._running[number].epochs, self._judge(number)) for number in ready]

    def finish(self, trial: int, state: str, value: Optional[float]) -> None:
        """A trial has ended: ``done``, ``failed`` or ``pruned``, with the best value of its metric if it has one."""
        ended = self._running.pop(trial)
        self._waiting.discard(trial)
        self._untold[trial] = (state, value if value is not None and math.isfinite(value) else None, ended.epochs)
        if state == "done":
            self._done[trial], self._last[trial] = True, ended.score
            for epoch, scores in self._scores.items():
                if epoch > ended.epochs:
                    scores[trial] = ended.score
        elif state == "failed":
            self._void[trial] = min(ended.epochs + 1, self._void[trial])

    def _begin(self, number: int) -> None:
        self._running[number] = _Trial()
        self._asked = number + 1

    def _may_ask(self, number: int) -> bool:
        if self._fixed:
            return next(iter(self._running), number) > number - self._in_flight
        return len(self._running) < self._in_flight

    def _ready(self) -> List[int]:
        """Trials of which every earlier one has ended, or come as far."""
        ready = []
        first = min((self._running[number].epochs for number in self._waiting), default=math.inf)
        slowest = math.inf
        for number, trial in self._running.items():
            if slowest < first:
                break
            if number in self._waiting and slowest >= trial.epochs:
                ready.append(number)
            slowest = min(slowest, trial.epochs)
        return ready

    def _judge(self, number: int) -> Optional[str]:
        trial = self._running[number]
        if self._pruner is None or trial.epochs >= self._epochs:
            return None
        if not trial.finite:
            return "the metric was not a finite number after epoch %d" % trial.epochs
        shown, known = self._total, self._total  # trials of which a part, and all, may be seen
        if self._fixed:
            shown, known = number + 1, max(0, number - self._in_flight + 1)
        void = self._void[:shown] <= trial.epochs
        void[:known] = self._void[:known] < math.inf

        def scores(epoch: int) -> numpy.ndarray:
            return numpy.where(void, math.nan, self._after(epoch)[:shown])

        return self._pruner.reason(pruners.Seen(number, trial.epochs, scores, self._done[:known]))

    def _after(self, epoch: int) -> numpy.ndarray:
        """The scores after an epoch, by number of trial."""
        if epoch not in self._scores:
            self._scores[epoch] = self._last.copy()
        return self._scores[epoch]
