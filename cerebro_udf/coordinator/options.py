"""The options of a run: parsed, checked and completed before anything starts. Pure, no I/O.

An option that is absent or null has its default. Types are strict, since JSON tells them apart: true is not 1,
"3" is not 3; 3.0 is fine where a whole number is wanted.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from cerebro_udf import columns, compilation, optimizers, precision
from cerebro_udf import definition as definitions
from cerebro_udf.coordinator import augment, directions, ends, per_column, stopping, validation, weights
from cerebro_udf.coordinator import search as searching
from cerebro_udf.coordinator.space import ABSENT, Axis, wrong_option
from cerebro_udf.coordinator.space import parse as parse_space
from cerebro_udf.errors import InvalidArgument, NotSupported, nearest
from cerebro_udf.keras_objects import show

MAX_INTEGER = 2**31 - 1  # of PostgreSQL's integer, which is what the catalog stores
MAX_SEED = 2**63 - 1
MAX_LOCAL_WORKERS = 64
MAX_REPEATS = 1000

# Known, and not there yet.
LATER = frozenset(["strategy"])

_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)\s*\Z")
_UNIT_BYTES = {"B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_TIME_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|second|min|minute|h|hour|d|day)s?(?![a-z])")
_TIME = re.compile(r"(?:%s)+\s*\Z" % _TIME_PART.pattern)
_UNIT_SECONDS = {
    "s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip


@dataclass
class Options:
    """The options of one run, complete; ``docs`` of each default in the package's option table.

    Attributes:
        optimizer: Keras' full form, as ``compilation.check_optimizer`` returns it.
        loss: Keras' full form, or None (derived from the task).
        metrics: What ``compilation.check_metric`` returns for each, or None (derived from the task).
        rank_by: ``{"metric": …, "direction": "min" or "max"}``, or None: see ``rank``.
        search: As given, checked; see ``search.check``.
        memory: A share of what a segment has available, 0 < share <= 1, or text such as "2GB"; None: the default.
        encoders, nulls: By column, see ``per_column``.
        validation: See ``validation``.
        augment: Layers in full form by column, see ``augment``.
        inputs: ``[{"name", "features", "stack"}]``, see ``ends``; None: all features go to the only input.
        retention: ``{"runs", "age" (s), "bytes"}``, see ``retention.beyond``; None: all runs stay.
        outputs: ``[{"name", "label", "task"}]``, see ``ends``, of a model of several; loss, loss_weights, metrics, weighted_metrics and
            class_weight go by these names then. None: there is one output.
    """

    epochs: int = 10
    batch_size: int = 32
    optimizer: dict = field(default_factory=lambda: compilation.check_optimizer("adam"))
    loss: Optional[dict] = None
    metrics: Any = None
    task: Optional[str] = None
    validation: validation.Validation = 0.2
    seed: Optional[int] = None
    order: str = "fastest"
    search: Optional[dict] = None
    segments: Optional[int] = None
    nulls: Any = "error"
    checkpoint: Optional[str] = None
    memory: Any = None
    rank_by: Optional[Dict[str, str]] = None
    if_exists: str = "error"
    learning_rate: Optional[float] = None
    encoders: Dict[str, Any] = field(default_factory=dict)
    max_retries: int = 2
    time_limit: Optional[float] = None  # seconds
    init_from: Optional[Dict[str, Any]] = None
    early_stopping: Optional[Dict[str, Any]] = None
    reduce_on_plateau: Optional[Dict[str, Any]] = None
    fuse: Optional[bool] = None
    class_weight: Any = None
    sample_weight: Optional[str] = None
    weighted_metrics: Any = None
    precision: str = "float32"
    inputs: Optional[List[dict]] = None
    outputs: Optional[List[dict]] = None
    loss_weights: Optional[Dict[str, float]] = None
    augment: Dict[str, List[dict]] = field(default_factory=dict)
    filter: Optional[str] = None
    sample: Optional[float] = None
    retention: Optional[Dict[str, Any]] = None

    @property
    def fuses(self) -> bool:
        """Whether trials of one program may be trained as one."""
        return self.order != "fixed" if self.fuse is None else self.fuse

    @property
    def several(self) -> bool:
        """Whether there are several outputs."""
        return len(self.outputs or ()) > 1

    def labels(self, label: Optional[str]) -> List[dict]:
        """What each output is for, as ``outputs``; the name of a single one is None.

        Args:
            label: Of that.
        """
        return list(self.outputs) if self.several else [{"name": None, "label": label, "task": self.task}]

    def of_output(self, option: Any, name: Optional[str]) -> Any:
        """What an option that goes by outputs says of one of them, None if nothing."""
        return (option or {}).get(name) if self.several else option

    def reported(self, name: Optional[str]) -> List[Any]:
        """The metrics that are asked for of an output, weighted ones too."""
        return [metric for metrics in (self.metrics, self.weighted_metrics) for metric in self.of_output(metrics, name) or ()]

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict) -> "Options":
        """Return options that ``to_json`` gave; trusted, and options that came later have their defaults."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in stored.items() if key in known})


def parse(options: Optional[dict], definition: dict) -> Options:
    """Check the options of a run against each other and against the model, and fill in the defaults.

    Args:
        options: What the user wrote; None for none.
        definition: Of the model, as ``definition.check`` returned it.

    Raises:
        InvalidArgument: an unknown key, a wrong type or range, a placeholder of the model without an axis.
        NotSupported: an option that is planned; a model whose outputs cannot be told apart.
    """
    names = definitions.outputs(definition)
    readers = _READERS if len(names) == 1 else {**_READERS, **{key: ends.by_output(names, _BY_OUTPUT[key]) for key in _BY_OUTPUT}}
    for key in options if isinstance(options, dict) else ():
        if key not in readers and key in definitions.placeholders(definition):
            raise InvalidArgument(
                '"%s" is a placeholder of the model, not an option' % key,
                None,
                'Its values go into the search, one too: {"search": {"space": {"%s": [%s]}}}.' % (key, show(options[key])),
            )
    parsed = Options(**_read(options, readers))
    ends.check(parsed.inputs, definition)
    ends.check_outputs(parsed.outputs, names)
    for metrics in (parsed.metrics, parsed.weighted_metrics):
        for of_one in (metrics or {}).values() if parsed.several else [metrics]:
            _refuse_equal_names(of_one or [])
    refuse_ambiguous(parsed)
    _refuse_no_loss(parsed)
    check_named(parsed, None)
    searching.check(parsed.search, definition, parsed)
    _refuse_plateau_of_schedule(parsed)
    return parsed


def check_named(options: Options, tasks: Optional[List[str]]) -> None:
    """Check that a run reports the metrics that ``rank_by`` and monitors name, and fill in their directions.

    Args:
        options: The run's.
        tasks: See ``directions.reported``; checked again once they are known.

    Raises:
        InvalidArgument.
    """
    for key, named in (("rank_by", "metric"), ("early_stopping", "monitor"), ("reduce_on_plateau", "monitor")):
        given = getattr(options, key)
        if given is not None and given[named] is not None:
            given["direction"] = directions.reported(options, key, given[named], given["direction"], tasks)


def losses(options: Options, name: Optional[str]) -> List[dict]:
    """Return the losses of an output as far as they are named: in the option, and in the axis of a search."""
    space = (options.search or {}).get("space") or {}
    given = _values(parse_space(space).axes if space else {}, "loss", None)
    read = [options.loss, *(ends.read_loss(options, value) for value in given if value is not None)]
    return [loss for loss in (options.of_output(one, name) for one in read) if loss is not None]


def parse_init_from(options: Optional[dict]) -> Optional[Dict[str, Any]]:
    """Return option ``init_from`` as ``{"run", "trial"}``, checked ahead of the others: a run decides about some of them."""
    given = (options or {}).get("init_from")
    return None if given is None else _init_from("init_from", given)


def parse_evaluate(options: Optional[dict], **more: Any) -> Dict[str, Any]:
    """Check the options of what judges a trained model: trial, segments, nulls, memory, filter; all keys are in the result.

    Args:
        options: What the user wrote; None for none.
        more: Defaults of the options that there are beside these; ``nulls`` None: those of the run.
    """
    defaults = {"trial": None, "segments": None, "nulls": None, "memory": None, "filter": None, **more}
    parsed = {**defaults, **_read(options, {key: _JUDGING.get(key) or _READERS[key] for key in defaults})}
    if parsed.get("metrics") is not None:
        for metrics in parsed["metrics"].values() if isinstance(parsed["metrics"], dict) else [parsed["metrics"]]:
            _refuse_equal_names(metrics)
    return parsed


def parse_retention(options: Optional[dict]) -> Dict[str, Any]:
    """Check the options of ``drop_runs``: ``runs``, ``age`` and ``bytes``, of which one must be there, and ``dry_run``."""
    found = {**dict.fromkeys(_RETENTION), "dry_run": False, **_read(options, {**_RETENTION, "dry_run": _flag})}
    if all(found[key] is None for key in _RETENTION):
        raise InvalidArgument(
            "the options do not say which runs stay",
            None,
            'Give "runs" (how many stay), "age" or "bytes", such as {"runs": 5, "age": "30 days"}; {"runs": 0} keeps none.',
        )
    return found


def parse_predict_table(options: Optional[dict]) -> Dict[str, Any]:
    """Check the options of ``predict_table`` (``docs/predict_table.md``); all keys are in the result."""
    defaults = {
        "trial": None, "segments": None, "columns": [], "if_exists": "error", "probabilities": False, "nulls": "null", "filter": None,
    }  # fmt: skip
    readers = {
        "trial": _JUDGING["trial"], "segments": _READERS["segments"], "columns": _columns, "probabilities": _flag, "filter": _filter,
        "if_exists": _choice("error", "replace", "append"), "nulls": _choice("null", "skip", "error"),
    }  # fmt: skip
    return {**defaults, **_read(options, readers)}


# What may change when a run goes on.
CHANGEABLE = ("epochs", "search", "max_retries", "memory", "time_limit", "retention")


def parse_changes(options: dict) -> Dict[str, Any]:
    """Check the options of ``resume`` one by one; ``extend.extended`` holds them against the run's."""
    fixed = next((key for key in options if key in _READERS and key not in CHANGEABLE), None)
    if fixed is not None:
        raise InvalidArgument(
            "option %s of a run does not change" % fixed, "What it has trained depends on it.",
            "These may change: %s. Call cerebro.fit for another run." % ", ".join(sorted(CHANGEABLE)),
        )  # fmt: skip
    return _read(options, {key: _READERS[key] for key in CHANGEABLE})


# What decides how rows are split and encoded, and so what a packed table holds.
SHAPING = ("task", "validation", "nulls", "encoders", "inputs", "outputs", "sample_weight", "filter", "sample")


def shaping(options: dict) -> Dict[str, Any]:
    """Check those of a caller's options that decide how rows are split and encoded; all of them are in the result."""
    read = _read({key: options.get(key) for key in SHAPING}, _READERS)
    return {key: read.get(key, getattr(Options(), key)) for key in SHAPING}


def parse_pack(options: Optional[dict]) -> Tuple[Options, str]:
    """Check the options of ``pack`` (``docs/pack.md``): those that shape what it stores, as for a run, and ``if_exists``."""
    keys = (*SHAPING, "seed", "segments", "memory")
    readers = {**{key: _READERS[key] for key in keys}, "if_exists": _choice("error", "replace")}
    found = _read(options, readers)
    if_exists = found.pop("if_exists", "error")
    return Options(**found), if_exists


def rank(options: Options, has_validation: bool) -> Tuple[str, str]:
    """Return metric and direction by which trials are ranked: ``rank_by``, else ``default_rank``."""
    chosen = options.rank_by or default_rank(has_validation)
    return chosen["metric"], chosen["direction"]


def default_rank(has_validation: bool) -> Dict[str, str]:
    """The loss on held-out rows where there are any, else the loss; whatever the metrics are."""
    return {"metric": "val_loss" if has_validation else "loss", "direction": "min"}


def parse_bytes(text: str) -> int:
    """Return the bytes of ``"2GB"``; units as PostgreSQL's, powers of 1,024.

    Raises:
        InvalidArgument: not an amount.
    """
    match = _BYTES.match(text)
    if not match or not 0 < float(match.group(1)) < MAX_SEED:
        raise wrong_option("memory", text, 'a share such as 0.5, or an amount such as "2GB"')
    return int(float(match.group(1)) * _UNIT_BYTES[match.group(2)])


# ---- reading one option


def _read(options: Optional[dict], readers: Dict[str, Callable[[str, Any], Any]]) -> Dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidArgument(
            "options must be a JSON object",
            "It is %s." % show(options),
            'Write {"epochs": 5, "batch_size": 64}.',
        )
    result = {}
    for key, value in options.items():
        if key in LATER and key not in readers:
            raise NotSupported('option "%s" is not supported yet' % key, None, "Leave it out.")
        if key not in readers:
            raise InvalidArgument('unknown option "%s"' % key, None, nearest(key, readers))
        if value is not None:
            result[key] = readers[key](key, value)
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(value: Any) -> Optional[int]:
    """Return a JSON number without fraction as int (3.0 is 3), or None for everything else, booleans too."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _integer(low: int, high: int = MAX_INTEGER) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        number = whole(value)
        if number is None or not low <= number <= high:
            raise wrong_option(key, value, "a whole number from %d to %d" % (low, high))
        return number

    return read


def _choice(*allowed: str) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            error = wrong_option(key, value, "one of %s" % ", ".join('"%s"' % word for word in allowed))
            if isinstance(value, str) and nearest(value, allowed).startswith("Did"):
                error.hint += " " + nearest(value, allowed)
            raise error
        return value

    return read


def _learning_rate(key: str, value: Any) -> float:
    if not _is_number(value) or not 0 < value < optimizers.MAX_LEARNING_RATE:
        raise wrong_option(key, value, "a number above 0; schedules belong to the optimizer")
    return float(value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_option(key, value, "true or false")
    return value


def _memory(key: str, value: Any) -> Any:
    if isinstance(value, str):
        parse_bytes(value)
        return value
    if not _is_number(value) or not 0 < value <= 1:
        raise wrong_option(key, value, 'a share above 0 and up to 1, or an amount such as "2GB"')
    return float(value)


def _bytes(key: str, value: Any) -> int:
    """A number of bytes, or text as PostgreSQL writes amounts of memory."""
    match = _BYTES.match(value) if isinstance(value, str) else None
    number = whole(value) if match is None else float(match.group(1)) * _UNIT_BYTES[match.group(2)]
    if number is None or not 0 <= number < MAX_SEED:
        raise wrong_option(key, value, 'a number of bytes, or an amount such as "2GB"')
    return int(number)


def _retention(key: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict) or not value or all(item is None for item in value.values()):
        raise wrong_option(key, value, 'how many runs stay, how old or how large they may be, such as {"runs": 5, "age": "30 days"}')
    for name in value:
        if name not in _RETENTION:
            raise InvalidArgument('unknown key "%s" in option "%s"' % (name, key), None, nearest(name, _RETENTION))
    return {name: None if value.get(name) is None else read("%s.%s" % (key, name), value[name]) for name, read in _RETENTION.items()}


def _time_limit(key: str, value: Any) -> float:
    """Seconds; text as PostgreSQL writes its settings, such as ``90min``, or in words, or several of both."""
    seconds = value if _is_number(value) else None
    if isinstance(value, str) and _TIME.match(value):
        seconds = sum(float(count) * _UNIT_SECONDS[unit] for count, unit in _TIME_PART.findall(value))
    if seconds is None or not 0 < seconds <= MAX_INTEGER:
        raise wrong_option(key, value, 'a number of seconds above 0, or text such as "90 s", "45min", "2h" or "1 day"')
    return float(seconds)


def _metrics(key: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise wrong_option(key, value, 'a list such as ["accuracy", {"AUC": {"curve": "PR"}}]')
    return [compilation.check_metric(metric) for metric in value]


def _metrics_of_any(key: str, value: Any) -> Any:
    """Metrics of the only output, or by the names of outputs, which are not known here."""
    return ends.by_output(list(value), _metrics)(key, value) if isinstance(value, dict) else _metrics(key, value)


def _loss_weights(key: str, value: Any) -> Dict[str, float]:
    hint = "Leave it out."
    raise InvalidArgument('option "%s" is for models of several outputs' % key, "The model has one, whose loss is all that counts.", hint)


def _loss_weight(key: str, value: Any) -> float:
    if not _is_number(value) or not 0 <= value <= 1e30:
        raise wrong_option(key, value, "a number, 0 or more")
    return float(value)


def _rank_by(key: str, value: Any) -> Dict[str, str]:
    form = 'a metric such as "val_accuracy", or {"metric": "val_cost", "direction": "min"}'
    if isinstance(value, str):
        value = {"metric": value}
    if not isinstance(value, dict):
        raise wrong_option(key, value, form)
    for name in value:
        if name not in ("metric", "direction"):
            raise InvalidArgument(
                'unknown key "%s" in option "%s"' % (name, key), None, "Accepted is %s." % form
            )
    metric, way = value.get("metric"), value.get("direction")
    if not isinstance(metric, str) or not metric or way not in (None, "min", "max"):
        raise wrong_option(key, value, form)
    return {"metric": metric, "direction": way}


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong_option(key, value, "the name of a column, or an SQL expression over a row")
    return value


def _filter(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong_option(key, value, 'a condition over a row, as SQL, such as "day < date \'2026-01-01\'"')
    return value


def _sample(key: str, value: Any) -> float:
    if not _is_number(value) or not 0 < value <= 1:
        raise wrong_option(key, value, "a fraction of the rows, above 0 and up to 1")
    return float(value)


def _init_from(key: str, value: Any) -> Dict[str, Any]:
    form = 'the name of a run or an alias, or {"run": "flights", "trial": 3}'
    if isinstance(value, str):
        value = {"run": value}
    if not isinstance(value, dict) or set(value) - {"run", "trial"}:
        raise wrong_option(key, value, form)
    run, trial = value.get("run"), value.get("trial")
    if not isinstance(run, str) or not run.strip():
        raise wrong_option(key, value, form)
    return {"run": run, "trial": None if trial is None else _integer(0)(key + ".trial", trial)}


def _search(key: str, value: Any) -> dict:
    if not isinstance(value, dict):
        raise wrong_option(key, value, '{"method": "grid", "space": {"units": [64, 256]}}')
    return value


def _quantiles(key: str, value: Any) -> List[float]:
    if not isinstance(value, list) or not value or not all(_is_number(item) and 0 <= item <= 1 for item in value):
        raise wrong_option(key, value, "a list of numbers from 0 to 1, such as [0.05, 0.5, 0.95]")
    return [float(item) for item in value]


def _metric(key: str, value: Any) -> Any:
    return value if value == "loss" else compilation.check_metric(value)


def _output_name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise wrong_option(key, value, "the name of one of the run's outputs")
    return value


def _columns(key: str, value: Any) -> List[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name.strip() for name in value):
        raise wrong_option(key, value, 'a list of column names such as ["label", "taken_at"]')
    return value


_RETENTION: Dict[str, Callable[[str, Any], Any]] = {"runs": _integer(0), "age": _time_limit, "bytes": _bytes}

_READERS: Dict[str, Callable[[str, Any], Any]] = {
    "epochs": _integer(1),
    "batch_size": _integer(1),
    "optimizer": lambda key, value: compilation.check_optimizer(value),
    "loss": lambda key, value: compilation.check_loss(value),
    "metrics": _metrics,
    "task": _choice(*columns.TASKS),
    "validation": validation.read,
    "seed": _integer(0, MAX_SEED),
    "order": _choice("fastest", "fixed", "random"),
    "search": _search,
    "segments": _integer(1, MAX_LOCAL_WORKERS),
    "nulls": per_column.read_nulls,
    "checkpoint": _choice("visit", "epoch"),
    "memory": _memory,
    "rank_by": _rank_by,
    "if_exists": _choice("error", "replace", "resume"),
    "learning_rate": _learning_rate,
    "encoders": per_column.read_encoders,
    "max_retries": _integer(0),
    "init_from": _init_from,
    "time_limit": _time_limit,
    "early_stopping": stopping.read,
    "reduce_on_plateau": stopping.read,
    "class_weight": weights.read,
    "sample_weight": _name,
    "weighted_metrics": _metrics,
    "precision": _choice(*precision.POLICIES),
    "fuse": _flag,
    "inputs": ends.read_inputs,
    "outputs": ends.read_outputs,
    "loss_weights": _loss_weights,
    "augment": augment.read,
    "filter": _filter,
    "sample": _sample,
    "retention": _retention,
}

# Of what goes by the names of outputs where there are several: what reads that of one.
_BY_OUTPUT: Dict[str, Callable[[str, Any], Any]] = {
    "loss": _READERS["loss"], "loss_weights": _loss_weight, "metrics": _metrics, "weighted_metrics": _metrics,
    "class_weight": weights.read,
}  # fmt: skip

_JUDGING: Dict[str, Callable[[str, Any], Any]] = {
    "trial": _integer(0),
    "nulls": _choice("error", "skip"),
    "quantiles": _quantiles,
    "metric": _metric,
    "metrics": _metrics_of_any,
    "output": _output_name,
    "repeats": _integer(1, MAX_REPEATS),
}


# ---- options against each other


def _refuse_equal_names(metrics: List[Any]) -> None:
    seen = {"loss"}
    for metric in metrics:
        name = compilation.metric_name(metric)
        if name in seen:
            raise InvalidArgument(
                'two metrics are named "%s"' % name,
                None,
                'Name one: {"AUC": {"name": "auc_pr", "curve": "PR"}}.',
            )
        seen.add(name)


def refuse_ambiguous(options: Options) -> None:
    """Refuse outputs and metrics whose names together are those of others, or of what held-out rows give.

    Raises:
        InvalidArgument.
    """
    names = [name for name, _ in directions.names(options, None)]
    for name in names:
        if name.startswith("val_"):
            hint = 'Name it otherwise: {"AUC": {"name": "area"}}.'
            detail = '"%s" is what held-out rows give of "%s".' % (name, name[len("val_") :])
            raise InvalidArgument('a metric of the run is named "%s"' % name, detail, hint)
        if names.count(name) > 1:
            hint = 'Name a metric otherwise: {"AUC": {"name": "area"}}.'
            raise InvalidArgument('two metrics of the run are named "%s"' % name, "Names are those of output and metric.", hint)


def _refuse_no_loss(options: Options) -> None:
    """Refuse weights under which no output's loss counts."""
    weights = options.loss_weights or {}
    if weights and not any(weights.get(output["name"], 1.0) for output in options.outputs or ()):
        raise InvalidArgument(
            'option "loss_weights" leaves nothing to train on', "Every output's loss counts 0 times.", "Give one of them a weight above 0."
        )


def _refuse_plateau_of_schedule(options: Options) -> None:
    """Refuse to reduce a learning rate that a schedule sets."""
    if options.reduce_on_plateau is None:
        return
    space = (options.search or {}).get("space") or {}
    axes = parse_space(space).axes if space else {}
    rates = _values(axes, "learning_rate", options.learning_rate)
    if None in rates:
        checked = [compilation.check_optimizer(value) for value in _values(axes, "optimizer", options.optimizer)]
        rates += [optimizer["config"].get("learning_rate") for optimizer in checked]
    for rate in rates:
        if isinstance(rate, dict):
            raise InvalidArgument(
                'option "reduce_on_plateau" and a learning-rate schedule exclude each other',
                "A learning rate is %s." % show(rate),
                "Leave reduce_on_plateau out, or give the learning rate as a number.",
            )


def _values(axes: Dict[str, Axis], name: str, outside: Any) -> List[Any]:
    """The values that an option has in a search, as far as they are listed; ``outside`` where no axis says."""
    axis = axes.get(name)
    if axis is None:
        return [outside]
    if not axis.when:
        return list(axis.ends())
    return [*axis.ends(), outside if axis.otherwise is ABSENT else axis.otherwise]
