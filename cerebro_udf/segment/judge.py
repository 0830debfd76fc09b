"""A trained model judged on this segment's shard: only sums and counts leave it, and order statistics of scores.

The coordinator sends the weights once (``assign``), then asks step by step. Rows are those of the part for validation, which
holds all rows of a shard that was loaded to be judged.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from cerebro_udf import encoders, sparse
from cerebro_udf.errors import InvalidArgument, NotReady, OutOfMemory, TrialFailed, counted
from cerebro_udf.segment import memory, network, predict, seeds, specs, state
from cerebro_udf.wire import finite

CHUNK_ROWS = 65_536  # of which a copy with one permuted column is made at a time

Report = Dict[str, Any]
Answer = Tuple[Report, Optional[bytes]]


class _Judged:
    """What a session holds of the model that it judges."""

    def __init__(self, program: Any, arrays: Dict[str, Any]):
        self.program = program
        self.arrays = {name: network.rows(array) for name, array in arrays.items()}
        self.outputs: Optional[np.ndarray] = None  # of one output: probabilities float32 (n, classes), or values float32 (n,)
        self.output: dict = {}  # that one, of the program's part
        self.label = ""  # the tensor with its label


def step(session: Any, spec: dict, blobs: List[bytes], program: Any, pulse: Callable[[], None]) -> Answer:
    """Do what ``spec["step"]`` names; a model that Keras refuses gives a report of status ``failed``.

    Args:
        session: The worker's, a shard loaded.
        spec: ``step``, ``program``, and what that step takes.
        blobs: A state in chunks (``assign``; empty: the parts that ``put`` has received), or accumulators.
        program: Of ``spec["program"]``.
        pulse: Called again and again; may raise.

    Raises:
        InvalidArgument: no such step.
        NotReady: no weights have come.
    """
    if spec["step"] == "assign":
        return _assign(session, blobs, program), None
    if spec["step"] not in _STEPS:
        raise InvalidArgument("there is no such step", None, "Call cerebro.evaluate, which asks workers for what they can do.")
    if spec["step"] in _TAKES:
        _TAKES[spec["step"]]("", spec)
    if session.judged is None or session.judged.program is not program:
        raise NotReady("this session holds no weights to judge", hint="Send them first.")
    try:
        report, blob = _STEPS[spec["step"]](session.judged, spec, blobs, pulse)
    except TrialFailed as error:
        return {"status": "failed", "error": str(error)}, None
    return {"status": "ok", "error": None, **report}, blob


def _assign(session: Any, blobs: List[bytes], program: Any) -> Report:
    """Take the weights of a state, of a program that may have other metrics than it was trained with."""
    if not blobs:
        blobs, session.incoming = session.incoming, []
    program.serve(b"".join(blobs))
    session.judged = _Judged(program, session.arrays["validation"])
    return {"status": "ok", "error": None}


# ---- metrics


def _accumulate(judged: _Judged, spec: dict, blobs: List[bytes], pulse) -> Answer:
    """Return the metric accumulators of the shard, stacked: once, or for every repeat with a feature's column permuted.

    ``spec``: ``batch_size``; ``feature`` (``{"number", "places"}``, see ``encoders.Place``; None: as it is), ``repeats``, ``seed``,
    ``shard``.
    """
    stacked: List[Dict[str, np.ndarray]] = []
    feature, rows = spec.get("feature"), len(judged.arrays["label"])
    if feature is not None:
        _refuse_elsewhere(feature, judged)
    for repeat in range(spec.get("repeats") or 1):
        judged.program.reset_metrics()
        order = None
        if feature is not None:
            key = (spec.get("seed"), "importance", feature["number"], repeat, spec["shard"])
            order = np.argsort(seeds.raw(rows, *key), kind="stable")
        for arrays in _chunks(judged.arrays, spec["batch_size"], feature, order):
            judged.program.validate(arrays, spec["batch_size"], pulse)
        stacked.append(state.unpack(judged.program.accumulators())[0])
    arrays = {name: np.stack([part[name] for part in stacked]) for name in stacked[0]}
    return {}, state.pack(arrays, {"program": judged.program.signature})


def _refuse_elsewhere(feature: dict, judged: _Judged) -> None:
    """Refuse a feature that lies in none of the tensors."""
    shapes = encoders.fed(judged.program.part)
    for place in feature["places"]:
        shape, _ = shapes.get(place["tensor"], ((), None))
        if place["axis"] >= len(shape) or place["stop"] > shape[place["axis"]]:
            raise InvalidArgument("there is no such feature", None, "Call cerebro.importance, which asks workers for what there is.")


def _chunks(arrays: Dict[str, np.ndarray], batch_size: int, feature: Optional[dict], order: Optional[np.ndarray]) -> Iterator[dict]:
    """Cut the rows at ends of minibatches, the feature's values taken from other rows."""
    rows = len(arrays["label"])
    size = max(1, CHUNK_ROWS // batch_size) * batch_size
    for start in range(0, rows, size):
        chunk = {name: array[start : start + size] for name, array in arrays.items()}
        for place in feature["places"] if feature is not None else ():
            name, at = place["tensor"], (slice(None),) * (1 + place["axis"]) + (slice(place["start"], place["stop"]),)
            if isinstance(arrays[name], sparse.Rows):
                chunk[name] = arrays[name][order[start : start + size]]
                continue
            chunk[name] = chunk[name].copy()
            chunk[name][at] = arrays[name][order[start : start + size]][at]
        yield chunk


def _summarize(judged: _Judged, spec: dict, blobs: List[bytes], pulse) -> Answer:
    """Return the metrics of stacked accumulators, which are given in shard order."""
    arrays, _ = state.unpack(state.add(blobs)) if blobs else ({}, {})
    counts = {array.shape[:1] for array in arrays.values()}
    if len(counts) != 1 or counts == {()}:
        raise InvalidArgument("these are no stacked accumulators", None, "Give those of every shard.")
    ((count,),) = counts
    results = [judged.program.results(state.pack({name: array[i] for name, array in arrays.items()})) for i in range(count)]
    return {"metrics": finite(results)}, None


# ---- predictions


def _predict(judged: _Judged, spec: dict, blobs: List[bytes], pulse) -> Answer:
    """Predict all rows and keep what one output says here; of classes, count the pairs ``[actual, predicted, rows]``.

    A predicted class is None where the model gives NaN. ``spec``: ``output``, its number.
    """
    part, number = judged.program.part, spec["output"]
    if number >= len(part["outputs"]):
        raise InvalidArgument("there is no such output", None, "Call cerebro.evaluate, which asks workers for what there is.")
    output = judged.output = part["outputs"][number]
    judged.label = encoders.label_names(part)[number]
    rows, label = len(judged.arrays["label"]), judged.arrays[judged.label]
    columns = output["classes"] or math.prod(output.get("shape", ()))
    if 4 * rows * columns > memory.available():
        raise OutOfMemory(
            "the predictions do not fit the memory that is left on their segment",
            "%s of %s take %.1f GB, %.1f GB are available."
            % (counted(rows, "row"), counted(columns, "value"), 4e-9 * rows * columns, memory.available() / 1e9),
            "Judge fewer rows, or spread the table over more segments.",
        )
    (outputs,) = predict.answering(judged.program.model, judged.program.outputs, part, [number])(judged.arrays, pulse)
    judged.outputs = outputs
    if output["task"] != "classification":
        return {"rows": rows, "nan": int(np.isnan(outputs).sum())}, None
    predicted = np.where(np.isnan(outputs).any(axis=1), columns, outputs.argmax(axis=1))
    counts = np.bincount(label.astype(np.int64) * (columns + 1) + predicted, minlength=columns * (columns + 1))
    cells = [divmod(int(cell), columns + 1) for cell in np.flatnonzero(counts)]
    pairs = [[a, None if p == columns else p, int(counts[a * (columns + 1) + p])] for a, p in cells]
    return {"rows": rows, "confusion": pairs}, None


def _refuse_unpredicted(judged: _Judged, task: str) -> None:
    if judged.outputs is None:
        raise NotReady("this session has not predicted its rows", hint="Have it predict them first.")
    if judged.output["task"] != task:
        raise InvalidArgument("the model is of another task", "It is not for %s." % task, "Call cerebro.evaluate.")


def _classes(judged: _Judged, pulse) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Give, for each class, the sorted scores of its rows and of all others."""
    _refuse_unpredicted(judged, "classification")
    known = ~np.isnan(judged.outputs).any(axis=1)
    outputs, label = judged.outputs[known], judged.arrays[judged.label][known]
    for number in range(outputs.shape[1]):
        pulse()
        scores = outputs[:, number]
        yield np.sort(scores[label == number]), np.sort(scores[label != number])


def _scores(judged: _Judged, spec: dict, blobs: List[bytes], pulse) -> Answer:
    """Return, for each class, scores to count at: up to ``spec["most"]`` of its own rows, and as many of all others.

    They are all the distinct ones where there are no more, else evenly spaced in rank, the first and the last among them.
    """
    found = [sorted({*_spaced(own, spec["most"]), *_spaced(others, spec["most"])}) for own, others in _classes(judged, pulse)]
    return {"scores": found}, None


def _spaced(values: np.ndarray, most: int) -> List[float]:
    values = values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).round().astype(int)]
    return np.unique(values).tolist()


def _count(judged: _Judged, spec: dict, blobs: List[bytes], pulse) -> Answer:
    """Return, for each class, how many of its rows and of all others have scores from each edge up to the next one.

    ``spec["edges"]``: for each class, ascending; the first is not above any score.
    """
    counts = []
    for edges, sides in zip(spec["edges"], _classes(judged, pulse)):
        ends = [np.append(np.searchsorted(side, np.array(edges, np.float32)), len(side)) for side in sides]
        counts.append([np.diff(end).tolist() for end in ends])
    return {"counts": counts}, None


def _ranks(judged: _Judged, spec: dict, blobs: List[bytes], pulse) -> Answer:
    """Count residuals, label minus prediction, times ``spec["scale"]``, by the upper or lower half of their 32 bits in ascending order.

    ``spec["halves"]``: for the residuals and for their absolute values each, None to count by the upper half, else the upper
    halves of which to count by the lower one. Counts are ``{number: rows}`` or ``{upper: {lower: rows}}``.
    """
    _refuse_unpredicted(judged, "regression")
    residuals = (judged.arrays[judged.label] - judged.outputs)[~np.isnan(judged.outputs)] * np.float32(spec["scale"])
    counts = []
    for values, uppers in zip((residuals, np.abs(residuals)), spec["halves"]):
        pulse()
        keys = _ascending(values)
        if uppers is None:
            counts.append(_tally(keys >> np.uint32(16)))
        else:
            counts.append({str(upper): _tally(keys[keys >> np.uint32(16) == upper] & np.uint32(0xFFFF)) for upper in uppers})
    return {"counts": counts}, None


def _ascending(values: np.ndarray) -> np.ndarray:
    """Return uint32 that are in the order of these float32; see ``coordinator.curves.value_of`` for the way back."""
    bits = (values + np.float32(0)).astype(np.float32).view(np.uint32)
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))


def _tally(numbers: np.ndarray) -> Dict[str, int]:
    found, counts = np.unique(numbers, return_counts=True)
    return {str(number): int(count) for number, count in zip(found, counts)}


_FEATURE = specs.fields(
    number=specs.whole(),
    places=specs.many(specs.fields(tensor=specs.text, axis=specs.whole(), start=specs.whole(), stop=specs.whole()), 1),
)
_TAKES = {
    "accumulate": specs.fields(
        shard=specs.whole(), feature=specs.maybe(_FEATURE), repeats=specs.maybe(specs.whole(1)), seed=specs.maybe(specs.whole())
    ),
    "predict": specs.fields(output=specs.whole()),
    "scores": specs.fields(most=specs.whole(1)),
    "count": specs.fields(edges=specs.many(specs.many(specs.number))),
    "ranks": specs.fields(halves=specs.many(specs.maybe(specs.many(specs.whole(0, 2**16 - 1))), 2, 2), scale=specs.number),
}  # fmt: skip
_STEPS = {
    "accumulate": _accumulate, "summarize": _summarize, "predict": _predict, "scores": _scores, "count": _count, "ranks": _ranks,
}  # fmt: skip
