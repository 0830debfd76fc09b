"""A trained model judged on all rows of a table, exact over all its shards."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from cerebro_udf import columns, refusals, stored
from cerebro_udf.coordinator import ends, programs
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator.load import Loader
from cerebro_udf.coordinator.segments import LinkBroken, Segments, cells
from cerebro_udf.coordinator.source import describe, filtered, has_weight, refuse_other_kinds
from cerebro_udf.engines import engine_for
from cerebro_udf.errors import BadData, InvalidArgument
from cerebro_udf.interrupts import Pulse

_JUDGE = "select report::text, state from cerebro_internal.worker_judge($1, $2)"

Line = Tuple[str, Optional[float]]
Answers = List[Tuple[dict, Optional[bytes]]]


def evaluate(plpy, gd: dict, run: str, source: str, options: dict) -> List[Line]:
    """Metrics of a trial's best epoch over all rows of a table: (metric, value), the loss first."""
    parsed = run_options.parse_evaluate(options, metrics=None)
    with judging(plpy, gd, run, source, parsed, lambda record: by_output(record, "metrics", parsed["metrics"])) as judge:
        (metrics,) = judge.metrics()
    ordered = sorted(metrics.items(), key=lambda item: (item[0] != "loss", item[0]))  # jsonb keeps no order
    return [line for name, value in ordered for line in _lines(name, value)]


def _lines(name: str, value: Any) -> List[Line]:
    """A metric of several values, such as a precision at each threshold, has a line for each."""
    if isinstance(value, list):
        return [line for number, item in enumerate(value) for line in _lines("%s[%d]" % (name, number), item)]
    return [(name, value)]


def by_output(record: dict, option: str, given: Any) -> Any:
    """What is asked for of the only output, or by the names of outputs where a run has several.

    Raises:
        InvalidArgument: it is in the other form, or names what is no output.
    """
    names = [label["output"] for label in record["encoders"]["labels"]]
    if given is None or names == [None] and not isinstance(given, dict):
        return given
    if names == [None]:
        raise InvalidArgument('option "%s" goes by outputs, run "%s" has one' % (option, record["name"]), None, "List what you want of it.")
    return ends.by_output(names, lambda _, value: value)(option, given)


def chosen(record: dict, output: Optional[str]) -> int:
    """The number of the output that the option ``output`` names; see ``ends.chosen``."""
    names = [label["output"] for label in record["encoders"]["labels"]]
    name_one = 'Set the option "output", such as {"output": "%s"}.'
    return ends.chosen(record["name"], names, output, 'Leave the option "output" out.', name_one)


class Judge:
    """A trial's best epoch on the segments: the table's rows are loaded there, and its weights.

    A step during which a session is lost is repeated once, when another one has taken its place.

    Args:
        plpy: PL/Python's module; only for notices.
        segments: Started, their shards encoded.
        key: Under which they were loaded.
        record: The run's, with the trial's params.
        order: The trial's.
        chunks: Its state.
        again: Has a fresh session of a segment read and encode its shard, and does not wait for it.

    Attributes:
        record, encoders: The run's.
        shards: How many there are.
    """

    def __init__(self, plpy, segments: Segments, key: str, record: dict, order: dict, chunks: List[bytes], again: Callable[[int], None]):
        self.record, self.encoders, self.shards = record, record["encoders"], len(segments.shards)
        self._plpy, self._segments, self._chunks, self._again = plpy, segments, chunks, again
        self._spec = {"run": key, "program": order["program"], "batch_size": order["batch_size"]}
        self._predicted: Optional[dict] = None  # of what output segments hold the predictions of their rows
        self._repeated(lambda: self._assign(range(self.shards)))

    def ask(self, step: str, blobs: Sequence[bytes] = (), numbers: Optional[List[int]] = None, **spec: Any) -> Answers:
        """Have segments (all by default) do a step of ``segment.judge`` at once; gives (report, blob) of each.

        Args:
            step: Its name.
            blobs: What goes with it.
            numbers: The segments.
            spec: What the step takes; a function gives it for each segment.

        Raises:
            BadData: Keras or TensorFlow refused.
        """
        numbers = list(range(self.shards)) if numbers is None else numbers
        answers = self._repeated(lambda: self._asked(step, blobs, numbers, spec))
        self._predicted = spec if step == "predict" else self._predicted
        return answers

    def _asked(self, step: str, blobs: Sequence[bytes], numbers: Sequence[int], spec: Dict[str, Any]) -> Answers:
        answers: Dict[int, Tuple[dict, Optional[bytes]]] = {}
        for number in numbers:
            given = {name: value(number) if callable(value) else value for name, value in spec.items()}
            self._segments.post(
                number, _JUDGE, {**self._spec, "step": step, **given}, list(blobs),
                then=lambda reply, number=number: answers.update({number: cells(reply)}),
            )  # fmt: skip
        self._segments.wait(list(numbers))
        for report, _ in answers.values():
            if report["status"] == "failed":
                raise BadData("cannot evaluate", report["error"], "Name other metrics or another trial, or train the run again.")
        return [answers[number] for number in numbers]

    def _assign(self, numbers: Sequence[int]) -> None:
        """Give segments the weights."""
        for number in numbers:
            whole = self._segments.hand_over(number, self._chunks)
        self._asked("assign", () if whole is None else [whole], numbers, {})

    def _repeated(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except LinkBroken as error:
            self._plpy.notice("%s (%s); trying again" % (error.message, error.detail))
        lost = [number for number, link in enumerate(self._segments.links) if not link.alive]
        for number in lost:
            self._again(number)
        self._segments.wait(lost)
        self._assign(lost)
        if self._predicted is not None:
            self._asked("predict", (), lost, self._predicted)
        return step()

    def metrics(self, **spec: Any) -> List[Dict[str, Any]]:
        """Metrics over all rows: one for each repeat that ``spec`` asks for, see ``segment.judge``; they are in shard order."""
        blobs = [blob for _, blob in self.ask("accumulate", shard=lambda number: number, **spec)]
        ((report, _),) = self.ask("summarize", blobs, [0])
        return report["metrics"]


@contextlib.contextmanager
def judging(plpy, gd: dict, run: str, source: str, options: dict, metrics: Callable[[dict], Optional[List[Any]]]) -> Iterator[Judge]:
    """Load all rows of a table, and send a trial's weights to them; everything is dropped at the end.

    Args:
        run, source: As the caller gave them.
        options: What ``options.parse_evaluate`` returned.
        metrics: From the run's record to checked metrics; None: those that the run was trained with.
    """
    _, record, chunks = stored.read(plpy, gd, run, options["trial"])
    fitted = run_options.Options.from_json(record["options"])
    labels = [output["label"] for output in fitted.labels(record["label"])]
    known = {"author": record["owner"], "encoders": columns.sparse_of(record["encoders"]["features"])}
    table = describe(plpy, source, record["features"], labels, **known)
    if fitted.sample_weight is not None and has_weight(plpy, table, fitted.sample_weight, record["owner"]):
        table = describe(plpy, source, record["features"], labels, weight=fitted.sample_weight, **known)
    table = filtered(plpy, table, options["filter"])
    encoders = record["encoders"]
    refuse_other_kinds(table, encoders)
    order = programs.stored(record)
    wanted = metrics(record)
    if wanted is not None:
        run_options.refuse_ambiguous(dataclasses.replace(fitted, metrics=wanted, weighted_metrics=None))
        programs.check_metrics(lambda output: fitted.of_output(wanted, output), encoders)
        order["program"].update(metrics=wanted, weighted_metrics=None)
    engine = engine_for(plpy)
    segments = Segments(plpy, gd, Pulse(plpy), engine, engine.shards(table, options["segments"]))
    segments.connect()
    segments.check_policies()
    try:
        segments.share_hosts()
        key = "evaluate " + run
        nulls = fitted.nulls if options["nulls"] is None else options["nulls"]
        loader = Loader(segments, table, fitted, key, nulls, 1.0, options["memory"])
        stats = loader.load()
        refusals.refuse_unusable(stats, nulls)
        refusals.refuse_other_shapes(stats, encoders)
        segments.start()
        loader.encode(encoders)
        yield Judge(plpy, segments, key, record, order, chunks, lambda number: loader.again(number, stats[number], encoders))
    finally:
        segments.rest()
