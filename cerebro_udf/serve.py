"""What a caller's own backend does with a run's best state: predict single rows, compiled once per session; export it."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, Optional

import cerebro_udf
from cerebro_udf import stored
from cerebro_udf.columns import array_text, spelled
from cerebro_udf.coordinator import ends, programs
from cerebro_udf.errors import InvalidArgument, NotReady, unstorable
from cerebro_udf.interrupts import Pulse
from cerebro_udf.segment import importing
from cerebro_udf.wire import finite

THREADS = 1  # of TensorFlow in a caller's backend: a row alone does not gain by more, and to wake them takes time
KEPT_SECONDS = 0.1  # for which rows of a statement go by the same state, whatever other sessions do meanwhile
CACHED_PREDICTORS = 16  # programs stay in memory for ever, so a session keeps the last few that it used

_MOMENT = "select pg_catalog.statement_timestamp() as began, current_user as role"


def predict(plpy, gd: dict, run: str, row: str, wanted: str, trial: Optional[int], output: Optional[str] = None) -> Optional[str]:
    """Predict one row.

    Args:
        run: Name of a run with at least one finished epoch.
        row: JSON: an object by feature name, or an array of the features in order.
        wanted: ``value``, ``class``, ``probabilities`` or ``all``.
        trial: Number of a trial; None for the best one.
        output: Name of one of several outputs; ``all`` is about all of them.

    Returns:
        The answer as text, JSON where it has parts; of ``all`` by the names of outputs, where there are several.

    Raises:
        NotFound, NotReady: no such run or trial, nothing trained yet, or no class since the model gives NaN.
        InvalidArgument: a feature is missing or null, the run's task has no such answer, or there is no such output.
    """
    values = _values(row)
    predictor = _predictor(plpy, gd, run, trial)
    number = None
    if wanted != "all":
        names = [one.name for one in predictor.outputs]
        number = ends.chosen(run, names, output, "Leave the argument output out.", "Name one: output => '%s'; or call cerebro.predict.")
    if number is not None:
        _refuse_other_tasks(predictor.outputs[number], run, wanted)
    found = predictor.row(values, lambda sql, text: _read(plpy, gd, sql, text))
    if number is not None:
        return _answer(plpy, predictor.outputs[number], run, wanted, *found[number])
    answers = [_whole(one, *answer) for one, answer in zip(predictor.outputs, found)]
    if len(answers) == 1:
        return json.dumps(answers[0])
    return json.dumps({one.name: answer for one, answer in zip(predictor.outputs, answers)})


def _refuse_other_tasks(output: Any, run: str, wanted: str) -> None:
    if wanted == "value" and output.task != "regression":
        raise InvalidArgument(
            'run "%s" classifies' % run, None, "Call cerebro.predict_class or cerebro.predict_probabilities."
        )
    if wanted in ("class", "probabilities") and output.task == "regression":
        raise InvalidArgument('run "%s" predicts a number' % run, None, "Call cerebro.predict_value.")
    if wanted == "value" and output.shape:
        raise InvalidArgument('run "%s" predicts an array' % run, "Its shape is %s." % output.shape, "Call cerebro.predict.")


def _whole(output: Any, value: Any, probabilities: Optional[list]) -> dict:
    """Everything about one output."""
    if output.task == "regression":
        return {"value": finite(value)}
    return {"class": value, "probabilities": _of_each(output, probabilities)}


def _of_each(output: Any, probabilities: list) -> Any:
    if output.task == "multi_label":
        return finite(probabilities)
    return {spelled(name): finite(float(p)) for name, p in zip(output.classes, probabilities)}


def _answer(plpy, output: Any, run: str, wanted: str, value: Any, probabilities: Optional[list]) -> str:
    if wanted == "value":
        return repr(float(value))
    if wanted == "class":
        if value is None:
            raise NotReady(
                'the model of run "%s" gives NaN' % run,
                "Its weights or this row are out of range, so no class is more probable than another.",
                "Name a trial that learnt something: select trial, metric from cerebro.trial where run = %s;" % plpy.quote_literal(run),
            )
        return array_text(value) if output.shape else spelled(value)
    return json.dumps(_of_each(output, probabilities))


def export(plpy, gd: dict, run: str, trial: Optional[int]) -> bytes:
    """A trial's best epoch as a ``.keras`` archive, preprocessing included.

    Raises:
        NotFound, NotReady: no such run or trial, or nothing trained yet.
        NotSupported: the archive is larger than a value in PostgreSQL may be.
    """
    chosen, record, chunks = stored.read(plpy, gd, run, trial)
    importing.start(THREADS)
    from cerebro_udf.segment import export as exports

    spec = programs.stored(record)["program"]
    about = {"run": record["name"], "trial": chosen.trial, "params": record["params"], "cerebro": cerebro_udf.__version__}
    return exports.archive(record["encoders"], spec, b"".join(chunks), about, Pulse(plpy).check)


def _values(row: str) -> Any:
    try:
        values = _DECODER.decode(row)
    except RecursionError:
        raise InvalidArgument(
            "argument row is nested too deeply", None, "Give the features alone, in an object or an array."
        ) from None
    except ValueError:
        values = _postgres_array(row)
    if not isinstance(values, (dict, list)):
        values = [values]
    if "\\u" in row and unstorable(values) is not None:
        raise InvalidArgument(
            "argument row holds text that PostgreSQL does not", "It is %s." % unstorable(values)[:100],
            "Leave the escape out: no column holds it.",
        )  # fmt: skip
    return values


def _read(plpy, gd: dict, sql: str, text: str) -> Any:
    """Have the server read a text as a value of a type, as this session's settings have it."""
    try:
        return plpy.execute(stored.plan(plpy, gd, "select %s as value" % sql, ["text"]), [text])[0]["value"]
    except plpy.SPIError as error:
        if not (error.sqlstate or "").startswith("22"):
            raise
        raise InvalidArgument(str(error), None, "Write it as PostgreSQL does, or cast it before it is put into the row.") from None


def _integer(digits: str) -> Any:
    """A column that is no feature may hold a numeric of more digits than Python reads as an integer."""
    return int(digits) if len(digits) < 400 else float(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)  # made once: a call that names parse_int makes one each time


def _postgres_array(row: str) -> list:
    """An array as PostgreSQL writes it, ``{1,2.5}``."""
    try:
        return json.loads(row.strip().replace("{", "[").replace("}", "]").replace("NULL", "null"))
    except (ValueError, RecursionError):
        raise InvalidArgument(
            "argument row is neither JSON nor an array",
            "It is %s." % row[:100],
            'Write {"feature": value} or an array of the features.',
        ) from None


def _predictor(plpy, gd: dict, run: str, trial: Optional[int]) -> Any:
    """The compiled model of a run's trial, looked up for each statement and role, and now and then while it goes on."""
    row = plpy.execute(stored.plan(plpy, gd, _MOMENT, []))[0]
    moment = row["began"], row["role"], int(time.monotonic() / KEPT_SECONDS)
    if gd.get("cerebro_moment", (None,))[0] != moment:
        gd["cerebro_moment"] = moment, {}
    known = gd["cerebro_moment"][1]
    if (run, trial) not in known:
        known[run, trial] = _looked_up(plpy, gd, run, trial)
    return known[run, trial]


def _looked_up(plpy, gd: dict, run: str, trial: Optional[int]) -> Any:
    cache: Dict[stored.Chosen, Any] = gd.setdefault("cerebro_predictors", {})
    chosen = stored.choose(plpy, gd, run, trial)
    predictor = cache.pop(chosen, None)
    if predictor is None:
        importing.start(THREADS)
        from cerebro_udf.segment.predict import Predictor

        chosen, record, chunks = stored.read(plpy, gd, run, trial)
        predictor = Predictor(record["encoders"], programs.stored(record)["program"], b"".join(chunks))
        while len(cache) >= CACHED_PREDICTORS:
            del cache[next(iter(cache))]
    cache[chosen] = predictor
    return predictor
