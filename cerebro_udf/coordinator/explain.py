"""What a run would do and take, before anybody commits to it: counts, memory, and a time that comes of a measured pilot.

Shards are read as ``fit`` reads them, a few programs are made and trained for a moment on every segment, and the rest is
played through (``forecast``). No run is begun, and nothing is written.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from cerebro_udf.coordinator import fit, forecast, packed, search
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator.pilot import Pilot
from cerebro_udf.coordinator.segments import Segments
from cerebro_udf.coordinator.study import Study
from cerebro_udf.coordinator.trials import Maker, Trial, Unit, group
from cerebro_udf.errors import BadData
from cerebro_udf.interrupts import Pulse

PILOTS = 8  # of more programs so many are tried, evenly spread


class Line(NamedTuple):
    """One property of the run."""

    property: str
    value: Optional[float]
    unit: str
    detail: Optional[str]


def explain_fit(plpy, gd: dict, *arguments: Any) -> List[Line]:
    """Explain a call of ``fit``; arguments as for that, under the name of a run that is not begun."""
    call = fit.check(plpy, gd, *arguments)
    options, definition = call.options, call.start.definition
    segments = Segments(plpy, gd, Pulse(plpy), call.engine, call.shards)
    segments.connect()
    segments.check_policies()
    try:
        segments.share_hosts()
        clock = _Clock()
        loader = packed.loader(segments, call.table, options, call.run, definition)
        stats = loader.load()
        encoders = loader.encoders(stats, call.start.weights)
        fit.examine(plpy, call.table, options, encoders, stats, call.unnamed)
        load_seconds = clock.lap()
        segments.start()
        start_seconds = clock.lap()
        sizes = loader.encode(encoders)
        load_seconds += clock.lap()
        rows = [(s["train_rows"], s["validation_rows"]) for s in stats]
        rank = run_options.rank(options, any(held for _, held in rows))
        maker = Maker(options, definition, encoders, rank, len(rows))
        trials, refused = _trials(options, definition, maker)
        window = search.in_flight(options.search, len(rows))
        units = group(trials if window is None else trials[:window], len(rows), options.fuses)
        if window is not None:  # those that follow are asked one by one
            units += [Unit([trial]) for trial in trials[window:]]
        pilot = Pilot(segments, call.run, options.seed, rows)
        tried = pilot.run(_alike(units))
        pilot_seconds = clock.lap()
        resident = [fact["resident_bytes"] for fact in segments.call("select cerebro_internal.worker_hello()::text")]
    finally:
        segments.rest()
    found = _Forecast(options, rows, units, tried, pilot.failures)
    return [
        *_counts(options, stats, trials, units, found, pilot.failures, refused),
        *_memory(stats, sizes, resident, trials if window is None else trials[:window], found, len(tried)),
        *_times(found, load_seconds, start_seconds, pilot_seconds),
    ]


class _Clock:
    def __init__(self):
        self._at = time.perf_counter()

    def lap(self) -> float:
        before, self._at = self._at, time.perf_counter()
        return self._at - before


def _trials(options: run_options.Options, definition: dict, maker: Maker) -> Tuple[List[Trial], List[str]]:
    """The run's trials, and the errors of those whose values exclude each other.

    Of a search that goes by results they are as many that are drawn at random.

    Raises:
        BadData: there is none but such.
    """
    given = options.search
    if given is not None:
        given = {key: value for key, value in given.items() if key not in ("pruner", "in_flight")}
        if given.get("method") == "tpe":
            given["method"] = "random"
    study = Study(given, options.seed, definition, options, "min", None)
    asked = iter(study.ask, None)
    trials = [maker.make(*trial) for trial in asked]
    refused = [trial.error for trial in trials if trial.error is not None]
    if len(refused) == len(trials):
        raise BadData("no trial of this run can be trained", refused[0], "Correct the search.")
    return [trial for trial in trials if trial.error is None], refused


def _key(unit: Unit) -> str:
    return "%d %s" % (len(unit.members), unit.members[0].shape)


def _alike(units: Sequence[Unit]) -> Dict[str, Unit]:
    """One unit of each kind, at most ``PILOTS``."""
    kinds: Dict[str, Unit] = {}
    for unit in units:
        kinds.setdefault(_key(unit), unit)
    keys = list(kinds)
    step = max(1.0, len(keys) / PILOTS)
    return {keys[int(step * k)]: kinds[keys[int(step * k)]] for k in range(min(PILOTS, len(keys)))}


class _Forecast:
    """The run played through, with what the pilot has shown.

    Attributes:
        seconds: From the first order to the end, in this session: programs that were tried are there already.
        trace_seconds: To make the programs that were tried, on the segment that takes longest.
        visits: How many, of trials.
        kinds: How many programs there are.
        fused: Units of several trials that are trained as one.
        state_bytes: Of the largest state.
    """

    def __init__(self, options, rows, units: Sequence[Unit], tried: Dict[str, List[forecast.Measured]], failures: Dict[str, str]):
        costs = {key: list(measured) for key, measured in tried.items()}
        average = [forecast.mean([measured[segment] for measured in tried.values()]) for segment in range(len(rows))]
        keys: List[str] = []
        self.fused = 0
        for unit in units:
            key, members = _key(unit), len(unit.members)
            if key in failures:
                continue
            measured = costs.setdefault(key, average)
            if members == 1 or all(m.fused for m in measured):
                keys.append(key)
                self.fused += members > 1
            else:  # it is dissolved after its first visit
                costs.setdefault("alone " + key, [m.alone(members) for m in measured])
                keys += ["alone " + key] * members
        warm = {key for key in keys if key.replace("alone ", "") in tried}
        self.kinds = len({unit.members[0].shape for unit in units})
        self.state_bytes = max(m.state_bytes for measured in tried.values() for m in measured)
        self.trace_seconds = max(sum(measured[segment].trace for measured in tried.values()) for segment in range(len(rows)))
        phases = len(rows) + sum(1 for _, held in rows if held)
        self.visits = sum(len(unit.members) for unit in units) * options.epochs * phases
        self.seconds, _ = forecast.seconds(
            rows, options.epochs, options.order, options.seed, keys, {key: costs[key] for key in keys}, warm
        )


def _counts(options, stats: List[dict], trials: List[Trial], units: List[Unit], found: _Forecast, failures: Dict[str, str],
            refused: List[str]) -> List[Line]:  # fmt: skip
    train, held, skipped = (sum(s[key] for s in stats) for key in ("train_rows", "validation_rows", "skipped"))
    adaptive = options.search is not None and (options.search.get("method") == "tpe" or options.search.get("pruner") is not None)
    batches = sum(-(-s["train_rows"] // trials[0].order["batch_size"]) for s in stats)
    return [
        Line("segments", len(stats), "segments", None),
        Line("training rows", train, "rows", None),
        Line("validation rows", held, "rows", None),
        Line("skipped rows", skipped, "rows", "They hold NULL, NaN or infinite values." if skipped else None),
        Line("trials", len(trials) + len(refused), "trials", "As if none were pruned." if adaptive else None),
        Line("programs", found.kinds, "programs", "Trials that differ in learning rate, rates of dropout or seed alone share one."),
        Line("epochs", options.epochs, "epochs", None),
        Line("minibatches", batches, "minibatches", "Of one epoch of the first trial."),
        Line("visits", found.visits, "visits", "%d groups of trials are trained as one." % found.fused if found.fused else None),
        *(Line("programs that fail", count, "programs", error) for error, count in sorted(Counter(failures.values()).items())),
        *(Line("trials that fail", count, "trials", error) for error, count in sorted(Counter(refused).items())),
    ]


def _memory(stats: List[dict], held: List[int], resident: List[int], under_way: List[Trial], found: _Forecast, tried: int) -> List[Line]:
    loading = max(s["bytes"] + size for s, size in zip(stats, held))
    return [
        Line("state", found.state_bytes, "bytes", "Weights, optimizer variables and metrics of the largest trial: what hops."),
        Line("bytes moved", 2 * found.state_bytes * found.visits, "bytes", "States to segments and back, at most."),
        Line("largest shard", max(held), "bytes", "As arrays; %d bytes while it is being read." % loading),
        Line("memory of a worker", max(resident), "bytes", "Measured after the pilot, with TensorFlow, the shard and %d programs." % tried),
        Line("memory of the coordinator", found.state_bytes * len(under_way), "bytes", "States of the trials under way."),
    ]


def _times(found: _Forecast, load: float, start: float, pilot: float) -> List[Line]:
    return [
        Line("load", load, "seconds", "Measured: reading and encoding the shards."),
        Line("start", start, "seconds", "Measured: starting TensorFlow; next to nothing where it ran already."),
        Line("trace", found.trace_seconds, "seconds", "Measured: making the programs; next to nothing where they were there already."),
        Line("pilot", pilot, "seconds", "Measured: all of the trying out."),
        Line("train", found.seconds, "seconds", "Estimated: from the first visit to the last one."),
        Line("total", load + found.seconds, "seconds", "Estimated: of a fit in this session now, where programs are warm."),
        Line("total in a new session", load + found.seconds + start + found.trace_seconds, "seconds",
             "Estimated: with start and trace as measured here; call it in a new session to know them."),
    ]
