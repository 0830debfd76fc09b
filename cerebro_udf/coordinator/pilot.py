"""A few programs made and trained for a moment on every segment, to see what visits take."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence, Tuple

from cerebro_udf.coordinator import forecast
from cerebro_udf.coordinator.links import Reply
from cerebro_udf.coordinator.segments import INIT, Segments, cells
from cerebro_udf.coordinator.trials import Unit, visit_spec
from cerebro_udf.errors import BadData

PILOT_SECONDS = 0.4  # of training, and of validation, per program and segment
FIRST_BATCHES, LEAST_BATCHES = 2, 8  # of the visit that makes a program, and of the one that is timed


class Pilot:
    """Makes programs on every segment and trains them for a moment, all segments at work at the same time.

    Args:
        segments: Started and loaded.
        run: Under what name.
        seed: Of the run.
        rows: To train on and for validation, of each shard.

    Attributes:
        failures: What Keras said of the kinds that cannot be trained.
    """

    def __init__(self, segments: Segments, run: str, seed: int, rows: Sequence[Tuple[int, int]]):
        self._segments, self._run, self._seed, self._rows = segments, run, seed, rows
        self.failures: Dict[str, str] = {}

    def run(self, kinds: Dict[str, Unit]) -> Dict[str, List[forecast.Measured]]:
        """Measure each kind on each segment; kinds that fail are left out."""
        keys, count = list(kinds), len(self._rows)
        found: Dict[str, Dict[int, forecast.Measured]] = {}
        for turn in range(len(keys)):
            turns = {segment: keys[(turn + segment) % len(keys)] for segment in range(count)}
            for segment, measured in self._turn(turns, kinds).items():
                found.setdefault(turns[segment], {})[segment] = measured
        whole: Dict[str, List[forecast.Measured]] = {}
        for key, by_segment in found.items():
            if key not in self.failures:
                average = forecast.mean(list(by_segment.values()))  # for segments without rows
                whole[key] = [by_segment.get(segment, average) for segment in range(count)]
        if not whole:
            raise BadData(
                "no trial of this run can be trained", next(iter(self.failures.values())), "Correct the model, or the search."
            )
        return whole

    def _turn(self, turns: Dict[int, str], kinds: Dict[str, Unit]) -> Dict[int, forecast.Measured]:
        """One kind on each segment."""
        at = {segment: kinds[key] for segment, key in turns.items()}
        fresh = self._states(turns, at)
        again = self._states(turns, {segment: at[segment] for segment in fresh})
        sizes = {segment: sum(map(len, states[0])) for segment, (_, states) in again.items()}
        ways = {phase: self._phase(phase, turns, at, again) for phase in ("train", "validate")}
        measured = {}
        for segment, (seconds, states) in again.items():
            train, validate = (ways[phase].get(segment) for phase in ("train", "validate"))
            if turns[segment] in self.failures or train is None:
                continue
            cost, trace, fused = train
            validated, validate_trace, _ = validate or (forecast.Cost(cost.fixed, 0.0), 0.0, fused)
            made = max(0.0, fresh[segment][0] - seconds)
            measured[segment] = forecast.Measured(
                cost, validated, made + trace + validate_trace, seconds * len(states), sizes[segment], fused
            )
        return measured

    def _states(self, turns: Dict[int, str], at: Dict[int, Unit]) -> Dict[int, Tuple[float, List[List[bytes]]]]:
        """Make a first state on each segment; gives the seconds it took, and as many of it as the unit has members."""
        asked = {}
        for segment, unit in at.items():
            trial = unit.members[0]
            asked[segment] = (INIT, {"run": self._run, "program": trial.order["program"], "seed": self._seed, "trial": trial.number})
        found = {}
        for segment, (report, chunks, busy) in self._answers(lambda n, then: self._segments.post(n, *asked[n], then=then), at).items():
            if report["status"] == "failed":
                self.failures[turns[segment]] = report["error"]
            else:
                found[segment] = busy, [chunks] * len(at[segment].members)
        return found

    def _phase(self, phase: str, turns: Dict[int, str], at: Dict[int, Unit], states: Dict[int, Any]) -> Dict[int, tuple]:
        """Train or validate twice on each segment: a few minibatches, then for a moment; gives (cost, trace seconds, fused)."""
        most = {segment: self._rows[segment][phase != "train"] for segment in states}
        at = {segment: at[segment] for segment, rows in most.items() if rows and turns[segment] not in self.failures}
        batch = {segment: unit.members[0].order["batch_size"] for segment, unit in at.items()}
        first = self._visits(phase, turns, at, states, {n: min(most[n], FIRST_BATCHES * batch[n]) for n in at})
        rows = {}
        for segment, (report, _, _) in first.items():
            per_row = report["train_seconds"] / report["rows"]
            rows[segment] = min(most[segment], max(LEAST_BATCHES * batch[segment], int(PILOT_SECONDS / max(per_row, 1e-9))))
        timed = self._visits(phase, turns, {segment: at[segment] for segment in first}, states, rows)
        found = {}
        for segment, (report, _, busy) in timed.items():
            cost = forecast.Cost(
                max(0.0, busy - report["train_seconds"] - report["trace_seconds"]), report["train_seconds"] / report["rows"]
            )
            found[segment] = cost, first[segment][0]["trace_seconds"], report["fused"]
        return found

    def _visits(self, phase: str, turns: Dict[int, str], at: Dict[int, Unit], states: Dict[int, Any], rows: Dict[int, int]) -> dict:
        """A visit on each segment, of so many rows; kinds of which a member fails are left out."""

        def post(segment: int, then: Any) -> None:
            spec = visit_spec(
                at[segment].members, run=self._run, epoch=1, phase=phase, shard=segment, seed=self._seed, first=True, last=True,
                rows=rows[segment],
            )  # fmt: skip
            self._segments.post_visit(segment, spec, states[segment][1], then)

        found = self._answers(post, at)
        for segment, (report, _, _) in list(found.items()):
            errors = [member["error"] for member in report["members"] if member["status"] == "failed"]
            if errors:
                self.failures[turns[segment]] = errors[0]
                del found[segment]
        return found

    def _answers(self, post: Any, at: Dict[int, Unit]) -> Dict[int, Tuple[dict, List[bytes], float]]:
        """Ask segments at once; gives report, state in chunks, and the seconds until its last byte was here."""
        found: Dict[int, Tuple[dict, List[bytes], float]] = {}

        def received(segment: int, since: float, reply: Reply) -> None:
            report, state = cells(reply)
            self._segments.collect(segment, report, state, lambda chunks: took(segment, since, report, chunks))

        def took(segment: int, since: float, report: dict, chunks: List[bytes]) -> None:
            found[segment] = report, chunks, time.perf_counter() - since

        for segment in at:
            since = time.perf_counter()
            post(segment, lambda reply, segment=segment, since=since: received(segment, since, reply))
        self._segments.wait(list(at))
        return found
