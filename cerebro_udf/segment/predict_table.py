"""A shard's rows predicted into a table beside it: read by a cursor, batch by batch, in constant memory.

Rows go through as composite literals: PostgreSQL writes the columns that are carried along as one, ``(17,"a, b")``, the
prediction is appended, and PostgreSQL reads the whole as a row of the table. So keys of any type arrive as they were.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf import columns, faults, refusals, tensors
from cerebro_udf.columns import array_text, spelled
from cerebro_udf.errors import NotReady, NullInData
from cerebro_udf.segment import reading, specs
from cerebro_udf.wire import finite

KEPT_PREDICTORS = 4  # compiled models that a session keeps

def step(plpy, session: Any, spec: dict, blob: bytes, pulse: Callable[[], None]) -> dict:
    """Do one step.

    Args:
        session: The worker's.
        spec: ``step``, and what it takes: ``fill`` below; ``model`` takes ``encoders`` and ``program``, and gives the ``model``
            that ``fill`` names.
        blob: For ``model`` the trial's state.
        pulse: Called after every batch; may raise.

    Returns:
        What the step does, as JSON.

    Raises:
        NotReady: TensorFlow is not started, or the model not loaded.
    """
    _STEP("", spec)
    _TAKES[spec["step"]]("", spec)
    if session.threads is None:
        raise NotReady("TensorFlow is not started in this session", hint="Start it first.")
    if spec["step"] == "model":
        return {"model": _predictor(session.predictors, spec, blob)}
    values = [name for feature in spec["features"] for name in columns.read_of(feature)[1:]]
    for part in spec["parts"]:
        specs.reads([feature["name"] for feature in spec["features"]], [*spec["carried"], *values])("parts.reads", part.get("reads"))
    if spec["model"] not in session.predictors:
        raise NotReady("the model is not loaded in this session", hint="Load it first.")
    return fill(plpy, spec, session.predictors[spec["model"]], pulse)


def _predictor(predictors: Dict[str, Any], spec: dict, blob: bytes) -> str:
    """Have the predictor of a trial's state among these, warm or newly made; gives its key."""
    from cerebro_udf.segment.predict import Predictor

    made_of = hashlib.blake2b(json.dumps([spec["encoders"], spec["program"]], sort_keys=True).encode(), digest_size=16)
    made_of.update(blob)
    key = made_of.hexdigest()
    predictor = predictors.pop(key, None) or Predictor(spec["encoders"], spec["program"], blob)
    while len(predictors) >= KEPT_PREDICTORS:
        del predictors[next(iter(predictors))]
    predictors[key] = predictor
    return key


_STEP = specs.fields(step=specs.one_of("model", "fill"))
_TAKES = {
    "model": specs.fields(encoders=specs.encoded, program=specs.program),
    "fill": specs.fields(
        run=specs.text, model=specs.text, carried=specs.many(specs.text), features=specs.many(specs.feature, 1), probabilities=specs.flag,
        nulls=specs.one_of("null", "skip", "error"),
        parts=specs.many(specs.fields(relation=specs.text, segment=specs.maybe(specs.text))),
    ),
}  # fmt: skip


def _usable(features: Sequence[dict], parsed: Dict[str, reading.Parsed]) -> Tuple[Dict[str, tensors.Column], np.ndarray, List[str]]:
    """Return (columns of the rows that can be predicted, which those are: bool (rows,), names of columns that forbid others)."""
    good, spoilt = np.ones(len(parsed[features[0]["name"]].missing), bool), []
    for feature in features:
        if "nulls" in feature:
            parsed[feature["name"]] = reading.kept(parsed[feature["name"]])
        values, bad, _ = parsed[feature["name"]]
        if isinstance(values, np.ndarray):
            _refuse_other_shape(feature, values[~bad])
            out = reading.out_of_range(values, nan="nulls" not in feature)
            if out is not None:
                bad = bad | out.reshape(len(values), -1).any(axis=1)
        if bad.any():
            spoilt.append(feature["name"])
            good &= ~bad
    values = {feature["name"]: parsed[feature["name"]].values for feature in features}
    if not good.all():
        values = {
            name: [text for text, kept in zip(column, good) if kept] if isinstance(column, list) else column[good]
            for name, column in values.items()
        }
    return values, good, spoilt


def _refuse_other_shape(feature: dict, found: np.ndarray) -> None:
    if len(found):
        shapes = [{"columns": {feature["name"]: {"shape": found.shape[1:]}}}]
        refusals.refuse_other_shapes(shapes, {"features": [feature]})


class _Answers:
    """Predictions as the ends of composite literals, after ``(key,carried``.

    Args:
        outputs: The predictor's.
        all_probabilities: Whether those of all classes are wanted.
        tail: What comes after, such as ``,segment_1)``.
    """

    def __init__(self, outputs: Sequence[Any], all_probabilities: bool, tail: str):
        self._outputs = [_Fields(output, all_probabilities) for output in outputs]
        self._tail = tail
        self.none = "".join(output.none for output in self._outputs) + tail

    def lines(self, found: Sequence[Tuple[list, Optional[np.ndarray]]]) -> List[str]:
        fields = [output.fields(*answers) for output, answers in zip(self._outputs, found)]
        return ["".join(row) + self._tail for row in zip(*fields)]


class _Fields:
    """Predictions of one output as fields of composite literals, each after a comma."""

    def __init__(self, output: Any, all_probabilities: bool):
        self._task, self._all = output.task, all_probabilities
        self._spelled = {value: spelled(value) for value in output.classes or ()}
        self.none = "," * (1 if output.task == "regression" else 2 + all_probabilities)

    def fields(self, answers: list, probabilities: Optional[np.ndarray]) -> List[str]:
        if self._task == "regression":
            return ["," + _number(value) for value in answers]
        if self._task == "multi_label":
            each = [finite(row) for row in probabilities.astype(float).tolist()]
            whole = ["," + _field(json.dumps(row)) for row in each] if self._all else [""] * len(each)
            return [self.none if a is None else ",%s,%s%s" % (_number(a), _number(p), w) for a, p, w in zip(answers, each, whole)]
        quoted = {value: _field(text) for value, text in self._spelled.items()}
        best = probabilities.max(axis=1).astype(float).tolist()
        if not self._all:
            return [self.none if a is None else ",%s,%r" % (quoted[a], p) for a, p in zip(answers, best)]
        names = list(self._spelled.values())
        whole = [_field(json.dumps(dict(zip(names, finite(row))))) for row in probabilities.astype(float).tolist()]
        return [",,,%s" % w if a is None else ",%s,%r,%s" % (quoted[a], p, w) for a, p, w in zip(answers, best, whole)]


def _number(value: Any) -> str:
    """A number, or an array of numbers, as a field."""
    return '"%s"' % array_text(value) if isinstance(value, list) else repr(value)


def _field(text: str) -> str:
    """A field of a composite literal."""
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '""')


def fill(plpy, spec: dict, predictor: Any, pulse: Callable[[], None]) -> dict:
    """Predict every row of a shard into the tables made for it, all in the transaction of this statement.

    Args:
        spec: ``run``, ``parts`` ``[{"relation": the table, "reads": as of ``shard.read``, "segment": value of the last
            column or None}]``, ``carried``, ``features`` (the run's, of the source's types), ``nulls`` (``null``, ``skip``,
            ``error``), ``probabilities``.
        predictor: A ``predict.Predictor``.
        pulse: Called after every batch; may raise.

    Returns:
        ``rows`` written, ``unpredicted`` (of them without prediction), ``skipped``, ``seconds``.

    Raises:
        NullInData: a row cannot be predicted and ``nulls`` is ``error``.
        RaggedArrays: arrays of another shape than the run's.
        plpy.SPIError: what reading or writing raises.
    """
    started = time.perf_counter()
    faults.reset(spec["run"])
    counts = {"rows": 0, "unpredicted": 0, "skipped": 0}
    features = spec["features"]
    selection = reading.Selection([reading.wanted(feature) for feature in features])
    for part in spec["parts"]:
        relation = part["relation"]
        plan = plpy.prepare("insert into %s select r.* from pg_catalog.unnest($1) r" % relation, [relation + "[]"])
        segment = ")" if part["segment"] is None else ",%s)" % _field(part["segment"])
        answers = _Answers(predictor.outputs, spec["probabilities"], segment)
        for read in part["reads"]:
            carried = ", ".join(map(plpy.quote_ident, spec["carried"]))
            query = selection.query(plpy.quote_ident, read, "ROW(%s)::pg_catalog.text AS carried" % carried)
            for rows in reading.batches(plpy, query):
                found = _usable(features, selection.parse(rows))
                lines, unpredicted = _predicted(rows, found, predictor, answers, spec["nulls"])
                counts["rows"] += plpy.execute(plan, [lines]).nrows()
                counts["unpredicted"] += unpredicted if spec["nulls"] == "null" else 0
                counts["skipped"] += len(rows) - len(lines)
                pulse()
                faults.reach(plpy, "mid-table", spec["run"])
    return {**counts, "seconds": time.perf_counter() - started}


def _predicted(rows, found, predictor, answers: _Answers, nulls: str) -> Tuple[List[str], int]:
    """Return (literals of the rows to write, how many rows could not be predicted); ``found`` is what :func:`_usable` gave."""
    columns, good, spoilt = found
    heads = [row["carried"][:-1] for row in rows]
    bad = int(len(good) - good.sum())
    if bad and nulls == "error":
        raise NullInData(
            "a feature is NULL, NaN or infinite: %s" % ", ".join('"%s"' % name for name in spoilt),
            "The first such row begins with %s)." % heads[int(good.argmin())],
            'Set the option "nulls" to "null" to have a NULL predicted for such rows, or to "skip" to leave them out.',
        )
    if bad == len(rows):
        return ([] if nulls == "skip" else [head + answers.none for head in heads]), bad
    lines = answers.lines(predictor.columns(columns))
    if not bad:
        return [head + line for head, line in zip(heads, lines)], 0
    known = iter(lines)
    if nulls == "skip":
        return [head + next(known) for head, kept in zip(heads, good) if kept], bad
    return [head + (next(known) if kept else answers.none) for head, kept in zip(heads, good)], bad
