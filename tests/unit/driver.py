"""Drives a study as the run loop does, one epoch of one trial at a time, in whatever order a test picks."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import search as searching
from cerebro_udf.coordinator.study import Study

PLAIN = {"layers": [{"Dense": {"units": 2}}]}
FAIL = "fail"


def study(search: Optional[dict], in_flight: Optional[int] = None, direction: str = "min", seed: int = 1, **options: Any) -> Study:
    """A study of a search over options; ``in_flight`` is the search's own, or the default on two segments."""
    parsed = run_options.parse(dict(options, search=search), PLAIN)
    return Study(parsed.search, seed, PLAIN, parsed, direction, in_flight or searching.in_flight(parsed.search, 2))


class Driver:
    """What one study did.

    Args:
        subject: The study.
        curve: From number and params of a trial to its metric after each epoch; None is NaN, ``FAIL`` ends the trial.
    """

    def __init__(self, subject: Study, curve: Callable[[int, Dict[str, Any]], List[Any]]):
        self.study, self.curve = subject, curve
        self.params: Dict[int, Dict[str, Any]] = {}
        self.values: Dict[int, List[Optional[float]]] = {}
        self.states: Dict[int, str] = {}
        self.verdicts: Dict[Tuple[int, int], Optional[str]] = {}
        self.runnable: List[int] = []
        self.most = 0

    def begin(self) -> None:
        """Ask for all that may begin now."""
        while True:
            asked = self.study.ask()
            if asked is None:
                break
            self.params[asked[0]], self.values[asked[0]], self.states[asked[0]] = asked[1], [], "running"
            self.runnable.append(asked[0])
        self.most = max(self.most, sum(state == "running" for state in self.states.values()))

    def decide(self) -> None:
        """Obey the verdicts that are there."""
        for trial, epoch, reason in self.study.verdicts():
            assert self.states[trial] == "running" and epoch == len(self.values[trial]) and trial not in self.runnable
            self.verdicts[trial, epoch] = reason
            if reason is not None:
                self.end(trial, "pruned")
            elif epoch == len(self.curve(trial, self.params[trial])):
                self.end(trial, "done")
            else:
                self.runnable.append(trial)

    def end(self, trial: int, state: str) -> None:
        self.states[trial] = state
        self.study.finish(trial, state, self.metric(trial))

    def metric(self, trial: int) -> Optional[float]:
        return min((value for value in self.values[trial] if value is not None), default=None)

    def step(self, pick: Callable[[List[int]], int]) -> bool:
        """One event; False once there is nothing left to do."""
        self.begin()
        if not self.runnable:
            assert self.study.exhausted and "running" not in self.states.values()
            return False
        trial = pick(sorted(self.runnable))
        self.runnable.remove(trial)
        value = self.curve(trial, self.params[trial])[len(self.values[trial])]
        if value == FAIL:
            self.end(trial, "failed")
        else:
            self.values[trial].append(value)
            self.study.report(trial, len(self.values[trial]), value)
        self.decide()
        return True

    def run(self, pick: Callable[[List[int]], int] = min) -> Driver:
        while self.step(pick):
            pass
        return self

    def resume(self, subject: Study) -> Driver:
        """The same run in another session, which knows what the catalog holds."""
        again = Driver(subject, self.curve)
        again.params, again.states, again.verdicts = dict(self.params), dict(self.states), dict(self.verdicts)
        again.values = {trial: list(values) for trial, values in self.values.items()}
        rows = [
            {"trial": number, "params": params, "state": self.states[number], "metric": self.metric(number)}
            for number, params in self.params.items()
        ]
        subject.restore(rows, again.values)
        again.runnable = [number for number, state in self.states.items() if state == "running" and not self.values[number]]
        again.decide()
        return again
