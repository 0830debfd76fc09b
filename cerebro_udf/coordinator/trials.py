"""Trials under way, and the units in which they move: alone, or as a group that segments may train as one."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple

from cerebro_udf.catalog import Ledger
from cerebro_udf.coordinator import programs
from cerebro_udf.coordinator.options import Options
from cerebro_udf.coordinator.stopping import Watch
from cerebro_udf.errors import InvalidArgument, nearest
from cerebro_udf.wire import finite

MAX_GROUP = 8  # members beyond this add little speed, and every one waits for the others
MEMBERS_OWN = ("learning_rate", "dropout")  # what trials of one program may differ in
ENDED = ("done", "failed", "pruned")


@dataclass
class Trial:
    """One configuration under way."""

    number: int
    params: dict
    order: dict  # what every order for it says: program, batch_size, learning_rate, dropout
    watch: Watch
    state: List[bytes] = field(default_factory=list)  # chunks; empty until made or read
    seq: int = 0  # train visits that the state covers
    epoch: int = 1  # the first unfinished one
    done: List[int] = field(default_factory=list)  # shards it has trained on in that epoch
    best_seq: Optional[int] = None
    metric: Optional[float] = None
    best_epoch: Optional[int] = None
    train_metrics: dict = field(default_factory=dict)
    learning_rate: Optional[float] = None  # after its last visit
    visits: int = 0  # made in all, of both phases
    crashes: int = 0  # how often its worker died while it visited, in that epoch
    status: str = "waiting"
    error: Optional[str] = None
    stopped: Optional[str] = None  # why it ended before its last epoch

    @functools.cached_property
    def shape(self) -> str:
        """What trials must have in common to be trained as one, see ``programs.shape``; an order never changes in it."""
        return programs.shape(self.order)

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def end(self, status: str, reason: Optional[str] = None) -> None:
        """Let go of the state; the reason is the error of a failed trial."""
        self.status, self.state = status, []
        if status == "failed":
            self.error = reason
        else:
            self.stopped = reason

    def end_epoch(self, epoch: int, metrics: dict, value: Optional[float], direction: str, last: bool) -> Tuple[str, Optional[str]]:
        """Take in what an epoch has come to, and go on to the next.

        Args:
            value: The one of its metrics that trials are ranked by, None if it is not finite.
            direction: ``min`` or ``max``.
            last: Whether it is the last epoch of the run.

        Returns:
            (the status that it has now, why it stops before the last epoch).
        """
        sign = 1 if direction == "min" else -1
        if value is not None and (self.metric is None or sign * value < sign * self.metric):
            self.metric, self.best_epoch, self.best_seq = value, epoch, self.seq
        verdict = self.watch.epoch(epoch, metrics, finite(self.learning_rate))
        status = "failed" if verdict.diverged else "done" if verdict.stop is not None or last else "running"
        if status != "running" and self.best_epoch is None:
            # Every epoch gave NaN: the last state is kept, so that there is something to look at.
            self.best_epoch, self.best_seq = epoch, self.seq
        if verdict.learning_rate is not None:
            self.order["learning_rate"] = verdict.learning_rate
        self.epoch, self.done, self.crashes = epoch + 1, [], 0
        return status, verdict.stop


def rank_value(name: str, metrics: dict) -> Optional[float]:
    """The figure that trials are ranked by, None if it is not finite.

    Raises:
        InvalidArgument: there is no metric of that name, or it has several values.
    """
    if name not in metrics:
        raise InvalidArgument(
            'option rank_by names a metric that this run does not have: "%s"' % name, None, nearest(name, metrics)
        )
    if isinstance(metrics[name], list):
        raise InvalidArgument(
            'option rank_by names a metric of several values: "%s"' % name, None, "Rank by one that is a single number."
        )
    return finite(metrics[name])


class Unit:
    """Trials that move together, at the same place of the same epoch; most often one.

    Args:
        members: At least one. A group's have the same program but for learning rate and dropout's rates, and the same batch size.
    """

    def __init__(self, members: List[Trial]):
        self.number = members[0].number  # for the scheduler; stays, also when that member leaves
        self.members = members
        self.epoch = members[0].epoch
        self.done = list(members[0].done)
        self.epoch_started: Optional[float] = None  # when this driver sent the first order of the epoch
        self.accumulators: Dict[int, Dict[int, bytes]] = {}  # shard -> trial -> of the epoch being validated
        self.validation: Dict[int, dict] = {}  # trial -> metrics of that validation
        self.dissolved = False  # whether its members have gone on alone: what is still under way for it counts for nothing

    def leave(self, trial: Trial) -> None:
        self.members = [member for member in self.members if member is not trial]


def group(trials: Iterable[Trial], segments: int, fuse: bool) -> List[Unit]:
    """Put trials into units; groups are small enough that every segment has one to train. Whose worker has died goes alone."""
    trials = list(trials)
    if not fuse:
        return [Unit([trial]) for trial in trials]
    alone = [trial for trial in trials if trial.crashes]
    trials = [trial for trial in trials if not trial.crashes]
    alike: Dict[Any, List[Trial]] = {}
    for trial in trials:
        alike.setdefault((trial.shape, trial.epoch, tuple(sorted(trial.done))), []).append(trial)
    # Units of different programs take different times; two for every segment even that out.
    wanted = segments * (2 if len(alike) > 1 else 1)
    largest = max(1, min(MAX_GROUP, len(trials) // wanted))
    units = [Unit([trial]) for trial in alone]
    for same in alike.values():
        pieces = -(-len(same) // largest)
        units += [Unit(same[piece::pieces]) for piece in range(pieces)]
    return sorted(units, key=lambda unit: unit.number)


def visit_spec(members: List[Trial], **place: Any) -> dict:
    """What ``worker.visit`` is told of a visit of these members; ``place`` says where, when and how much of it."""
    order = members[0].order
    return {
        **place, "program": order["program"], "batch_size": order["batch_size"], "try_fused": len(members) > 1,
        "members": [{"trial": trial.number, **{name: trial.order[name] for name in MEMBERS_OWN}} for trial in members],
    }  # fmt: skip


class Maker:
    """Makes trials of one run, new ones and those that the ledger knows.

    Args:
        options: Of the run.
        definition: The model as stored, with placeholders.
        encoders: The run's.
        rank: Metric name and ``min`` or ``max``.
        shards: How many there are.
    """

    def __init__(self, options: Options, definition: dict, encoders: dict, rank: Tuple[str, str], shards: int):
        self._options, self._definition, self._encoders = options, definition, encoders
        self._rank, self._shards = rank, shards

    def make(self, number: int, params: dict) -> Trial:
        """Make a trial that has not begun; one whose values exclude each other has an error, and no order."""
        order, error = {}, None
        try:
            order = programs.order(self._options, params, self._definition, self._encoders)
        except InvalidArgument as refused:
            error = str(refused)
        return Trial(number, params, order, Watch(self._options, self._rank), error=error)

    def read(self, ledger: Ledger, record: dict) -> Tuple[List[Trial], Dict[int, List[dict]]]:
        """Rebuild every trial from the ledger, with the state that it goes on from.

        Returns:
            (trials in order of number, the history of each: rows of ``cerebro.epoch`` in order).
        """
        visits: Dict[int, List[dict]] = {}
        history: Dict[int, List[dict]] = {}
        for visit in ledger.visits(record["id"]):
            if visit["state"] == "done":
                visits.setdefault(visit["trial"], []).append(visit)
        for row in ledger.epochs(record["id"]):
            history.setdefault(row["trial"], []).append(row)
        trials = []
        for row in ledger.trials(record["id"]):
            trial = self.make(row["trial"], row["params"])
            trials.append(trial)
            done = visits.get(trial.number, [])
            trial.status, trial.stopped, trial.visits = row["state"], row["stopped"], len(done)
            trial.error = row["error"] or trial.error
            trial.metric, trial.best_epoch, trial.best_seq = row["metric"], row["best_epoch"], row["best_seq"]
            trial.crashes = row["crashes"]
            if trial.ended:
                continue
            for past in history.get(trial.number, []):
                verdict = trial.watch.epoch(past["epoch"], past["metrics"], past["learning_rate"])
                if verdict.learning_rate is not None:
                    trial.order["learning_rate"] = verdict.learning_rate
                trial.epoch = past["epoch"] + 1
            this_epoch = [v for v in done if v["phase"] == "train" and v["epoch"] == trial.epoch]
            trial.done = [visit["shard"] for visit in this_epoch]
            if row["last_seq"] is not None:
                trial.seq = row["last_seq"]
                trial.state = ledger.state(record["id"], trial.number, trial.seq)
            if len(trial.done) == self._shards:
                last = this_epoch[-1]["details"]
                trial.train_metrics, trial.learning_rate = last["metrics"], last["learning_rate"]
        return trials, history


def shown(trial: Trial) -> Dict[str, Any]:
    """What the caller gets to see of a trial."""
    return {
        "trial": trial.number, "metric": trial.metric, "best_epoch": trial.best_epoch, "params": trial.params,
        "state": trial.status, "error": trial.error,
    }  # fmt: skip
