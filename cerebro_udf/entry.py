"""The doors: each SQL function calls one function here. Arguments are parsed, nothing else."""

from __future__ import annotations

import functools
import json
import math
from typing import Any, Callable, List, Optional, Tuple

from cerebro_udf import versions
from cerebro_udf.errors import CerebroError, InvalidArgument, NullArgument, shown, unstorable
from cerebro_udf.wire import parsed

MAX_DEPTH = 64  # of JSON arguments; what goes over them recursively must not run out of stack
NAME_CHARACTERS = 500  # of what the catalog keeps under a name: its indexes hold 2,700 bytes


def door(function: Callable) -> Callable:
    """Check the versions, and let errors out as PostgreSQL shows errors."""

    @functools.wraps(function)
    def opened(plpy, gd: dict, *arguments: Any, **named: Any) -> Any:
        try:
            extension = versions.refuse_outdated(plpy, gd)
            if function.__name__ != "doctor" and arguments[:1] != ("hello",):  # which tell of such things
                versions.refuse_mixed(extension)
            if function.__name__ != "predict":
                gd.pop("cerebro_moment", None)  # it may change what the statement's next row is predicted by
            return function(plpy, gd, *arguments, **named)
        except (CerebroError, plpy.SPIError) as error:
            raise shown(error) from None

    return opened


def _text(name: str, value: Optional[str]) -> str:
    if value is None or not value.strip():
        raise NullArgument("argument %s is null or blank" % name, None, "Give it a value.")
    return value


def _name(name: str, value: Optional[str]) -> str:
    """The name of a run, a model, an alias or a role."""
    value = _text(name, value)
    if len(value) > NAME_CHARACTERS:
        raise InvalidArgument(
            "argument %s is too long" % name, "It has %d characters, a name at most %d." % (len(value), NAME_CHARACTERS),
            "Give a shorter name.",
        )  # fmt: skip
    return value


def _columns(name: str, value: Optional[List[str]]) -> Optional[List[str]]:
    if any(isinstance(item, list) for item in value or []):
        raise InvalidArgument("argument %s has several dimensions" % name, None, "List columns in an array of one dimension.")
    return value


def _parsed(name: str, text: str) -> Any:
    """JSON of numbers that a float8 or int8 holds, and of a depth that is fit to be gone over."""

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise InvalidArgument(
                "argument %s holds a number that is too large" % name, "It begins with %s." % digits[:20], "Numbers end at 1e308."
            )
        return value

    def constant(word: str) -> Any:
        raise ValueError("%s is no number of JSON" % word)

    def whole(digits: str) -> Any:
        return int(digits) if len(digits) < 19 else number(digits)

    deep = InvalidArgument("argument %s is nested too deeply" % name, "At most %d levels are read." % MAX_DEPTH, "Make it flatter.")
    try:
        value = json.loads(text, parse_float=number, parse_int=whole, parse_constant=constant)
    except RecursionError:
        raise deep from None
    except ValueError as error:  # PostgreSQL has read every argument but what is inside an archive
        raise InvalidArgument("argument %s is not JSON" % name, "%s." % error, "Write it anew.") from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        level = [item for part in parts for item in part]
    if level:
        raise deep
    if "\\u" in text and unstorable(value) is not None:  # jsonb holds none: it is inside an archive
        raise InvalidArgument(
            "argument %s holds text that PostgreSQL does not" % name, "It is %s." % unstorable(value)[:100], "Write it anew."
        )
    return value


def _json(name: str, value: Optional[str]) -> dict:
    if value is None:
        raise NullArgument("argument %s is null" % name, None, "Give it a JSON object; '{}' stands for all defaults.")
    found = _parsed(name, value)
    if not isinstance(found, dict):
        raise InvalidArgument("argument %s is not a JSON object" % name, "It is %s." % value[:100], "Write it as '{\"key\": value}'.")
    return found


@door
def create_model(plpy, gd: dict, name: str, definition: str) -> None:
    from cerebro_udf import models

    models.create(plpy, _name("name", name), _json("definition", definition))


@door
def import_model(plpy, gd: dict, name: str, archive: Optional[bytes]) -> None:
    from cerebro_udf import archive as archives
    from cerebro_udf import models
    from cerebro_udf.interrupts import Pulse

    _name("name", name)
    if archive is None:
        raise NullArgument("argument archive is null", None, "Give it the contents of a .keras file.")
    parts = archives.read(archive, Pulse(plpy).check)
    about = None if parts.about is None else _json("archive", parts.about)
    models.take_in(plpy, name, _json("archive", parts.config), parts.weights, about)


@door
def drop_model(plpy, gd: dict, name: str) -> None:
    from cerebro_udf import grants

    found, _ = grants.owned(plpy, "model", _name("name", name))
    plpy.execute(plpy.prepare("select cerebro_internal.model_drop($1)", ["int4"]), [found["id"]])


def _run_arguments(run: str, source: str, model: str, label: Optional[str], features: Optional[List[str]], options: str) -> Tuple:
    """Label and features may be null: a packed table knows them."""
    named = None if label is None else _text("label", label)
    given = _columns("features", features), _json("options", options)
    return (_name("run", run), _text("source", source), _name("model", model), named, *given)


@door
def fit(plpy, gd: dict, **arguments: Any) -> List[Tuple]:
    from cerebro_udf.coordinator import fit as runs

    return runs.fit(plpy, gd, *_run_arguments(**arguments))


@door
def submit(plpy, gd: dict, **arguments: Any) -> str:
    from cerebro_udf.coordinator import background

    return background.submit(plpy, gd, *_run_arguments(**arguments))


@door
def submit_again(plpy, gd: dict, run: str, options: str) -> str:
    from cerebro_udf.coordinator import background

    return background.submit_again(plpy, _name("run", run), _json("options", options))


@door
def detached_fit(plpy, gd: dict, **arguments: Any) -> None:
    from cerebro_udf.coordinator import background
    from cerebro_udf.coordinator import fit as runs

    background.detached(plpy, gd, runs.fit, *_run_arguments(**arguments))


@door
def detached_resume(plpy, gd: dict, run: str, options: str) -> None:
    from cerebro_udf.coordinator import background
    from cerebro_udf.coordinator import fit as runs

    background.detached(plpy, gd, runs.resume, _name("run", run), _json("options", options))


@door
def wait(plpy, gd: dict, run: str, timeout: Optional[str]) -> List[Tuple]:
    from cerebro_udf.coordinator import background

    seconds = None
    if timeout is not None:
        plan = plpy.prepare("select pg_catalog.date_part('epoch', $1) as seconds", ["interval"])
        seconds = plpy.execute(plan, [timeout])[0]["seconds"]
    return background.wait(plpy, _name("run", run), seconds)


@door
def cancel(plpy, gd: dict, run: str) -> bool:
    from cerebro_udf.coordinator import background

    return background.cancel(plpy, _name("run", run))


@door
def resume(plpy, gd: dict, run: str, options: str) -> List[Tuple]:
    from cerebro_udf.coordinator import fit as runs

    return runs.resume(plpy, gd, _name("run", run), _json("options", options))


@door
def drop_run(plpy, gd: dict, run: str) -> None:
    from cerebro_udf.coordinator import fit as runs

    runs.drop_run(plpy, _name("run", run))


@door
def drop_runs(plpy, gd: dict, pattern: str, options: str) -> List[Tuple]:
    from cerebro_udf.coordinator import retention

    return retention.drop_runs(plpy, _text("pattern", pattern), _json("options", options))


@door
def judge(plpy, gd: dict, call: str, run: str, source: str, options: str) -> List[Tuple]:
    """What judges a trained model on a table."""
    from cerebro_udf.coordinator import diagnose, evaluate, importance

    functions = {
        "evaluate": evaluate.evaluate, "confusion_matrix": diagnose.confusion_matrix, "class_report": diagnose.class_report,
        "residuals": diagnose.residuals, "importance": importance.importance,
    }  # fmt: skip
    return functions[call](plpy, gd, _name("run", run), _text("source", source), _json("options", options))


@door
def explain_fit(plpy, gd: dict, **arguments: Any) -> List[Tuple]:
    from cerebro_udf.coordinator import explain

    return explain.explain_fit(plpy, gd, *_run_arguments("explain_fit", **arguments))


@door
def predict_table(plpy, gd: dict, run: str, source: str, target: str, key: List[str], options: str, schema: Optional[str]) -> int:
    from cerebro_udf.coordinator import predict_table as tables

    if not _columns("key", key) or any(not (name or "").strip() for name in key):
        raise NullArgument("argument key is null or blank", None, "List the columns that tell rows apart, as '{id}'.")
    return tables.predict_table(
        plpy, gd, _name("run", run), _text("source", source), _text("target", target), key, _json("options", options), schema
    )


@door
def pack(plpy, gd: dict, source: str, target: str, label: str, features: List[str], options: str, schema: Optional[str]) -> int:
    from cerebro_udf.coordinator import pack as packing

    named = None if label is None else _text("label", label)
    given = named, _columns("features", features), _json("options", options)
    return packing.pack(plpy, gd, _text("source", source), _text("target", target), *given, schema)


@door
def segments(plpy, gd: dict, source: str) -> List[Tuple]:
    from cerebro_udf.coordinator import doctor

    return doctor.segments(plpy, gd, _text("source", source))


@door
def doctor(plpy, gd: dict) -> List[Tuple]:
    from cerebro_udf.coordinator import doctor as checks

    return checks.doctor(plpy, gd)


@door
def predict(plpy, gd: dict, run: str, row: Optional[str], wanted: str, trial: Optional[int], output: Optional[str]) -> Optional[str]:
    from cerebro_udf import serve

    if row is None or not row.strip():
        raise NullArgument("argument row is null or blank", None, "Give a row, an array of the features in order, or a JSON object.")
    return serve.predict(plpy, gd, _name("run", run), row, wanted, trial, output)


@door
def export_model(plpy, gd: dict, run: str, trial: Optional[int]) -> bytes:
    from cerebro_udf import serve

    return serve.export(plpy, gd, _name("run", run), trial)


@door
def promote(plpy, gd: dict, run: str, alias: str, trial: Optional[int]) -> dict:
    from cerebro_udf import aliases

    return aliases.promote(plpy, gd, _name("run", run), _name("alias", alias), trial)


@door
def rollback(plpy, gd: dict, alias: str) -> dict:
    from cerebro_udf import aliases

    return aliases.rollback(plpy, _name("alias", alias))


@door
def drop_alias(plpy, gd: dict, alias: str) -> None:
    from cerebro_udf import aliases

    aliases.drop(plpy, _name("alias", alias))


@door
def grant(plpy, gd: dict, call: str, name: str, role: str) -> None:
    from cerebro_udf import grants

    verb, kind = call.split("_")
    grants.change(plpy, kind, _name(kind, name), _name("role", role), verb == "grant")


@door
def worker(plpy, gd: dict, call: str, *arguments: Any) -> Any:
    """One step of a segment's worker; JSON in and out as text."""
    from cerebro_udf.segment import worker as steps

    try:
        given = [parsed(argument) if isinstance(argument, str) else argument for argument in arguments]
    except (RecursionError, ValueError):  # deeper, or of longer numbers, than Python reads
        raise InvalidArgument("the order cannot be read", None, "Call cerebro.fit, which asks workers for what they can do.") from None
    result = getattr(steps, call)(plpy, gd, *given)
    if call in ("init", "visit", "judge"):
        report, state = result
        return [(json.dumps(report), state)]
    return json.dumps(result) if isinstance(result, dict) else result
