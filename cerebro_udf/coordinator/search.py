"""``options.search``: which configurations a run tries. Checked here, before anything starts; ``study`` asks and prunes. Pure.

``{"method": "grid", "space": {axis: values, …}, "trials": n, "pruner": "asha", "in_flight": k}``; see ``space`` for the
axes, ``samplers`` for the methods, ``pruners`` for the pruners. An axis is a placeholder of the model or an option.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Dict, Optional

from cerebro_udf import compilation, placeholders
from cerebro_udf import definition as definitions
from cerebro_udf.coordinator import ends, pruners
from cerebro_udf.coordinator.space import ABSENT, Axis, Choices, Space, is_number, parse, whole, wrong
from cerebro_udf.errors import InvalidArgument, NotSupported, nearest
from cerebro_udf.keras_objects import show

MAX_TRIALS = 10000
# Trials in flight at once, at least: where the next one, or what becomes of one, depends on others; and where none does.
LEAST_IN_FLIGHT = 4
LEAST_IN_FLIGHT_APART = 64

METHODS = ("grid", "random", "quasirandom", "tpe")
LATER_METHODS = frozenset(["bayesian", "gp", "cmaes", "pbt"])

_OPTION_AXES = ("learning_rate", "batch_size", "optimizer", "loss")
_OPTIMIZER_PREFIX = "optimizer."
_KEYS = ("method", "space", "trials", "pruner", "in_flight")


def check(search: Optional[dict], definition: dict, options: Any) -> None:
    """Refuse a search that makes no sense for this model and these options, value by value.

    Args:
        search: As in ``Options.search``; None varies nothing.
        definition: Of the model, as ``definition.check`` returned it.
        options: ``Options`` of the run.

    Raises:
        InvalidArgument: unknown keys or axes, an empty or endless space, a value that its option would refuse, a
            placeholder without an axis.
        NotSupported: a method that is planned.
    """
    if search is not None:
        _check_keys(search)
    wanted = definitions.placeholders(definition)
    _check_placeholders(wanted, {} if search is None else search.get("space"))
    if search is None:
        return
    space = parse(search.get("space"))
    for name, axis in space.axes.items():
        if name not in wanted and not _is_option(name):
            known = sorted(wanted) + list(_OPTION_AXES)
            hint = "%s Keys of the optimizer are axes too, such as optimizer.beta_1." % nearest(name, known)
            raise wrong(name, "nothing in the model or the options to vary", hint)
        if name in wanted and axis.when and axis.otherwise is ABSENT:
            hint = 'Add "else": the value that "$%s" has then.' % name
            raise wrong(name, 'a placeholder of the model needs a value where "when" does not hold', hint)
        _check_values(axis, space, definition, options)
    for corner in (0.0, 1 - 2.0**-53):
        _check_together(space.at(dict.fromkeys(space.axes, corner)), options)
    count = whole_number(search, "trials")
    method = search.get("method", "grid")
    if method != "grid":
        if count is None:
            raise InvalidArgument(
                "the search needs a number of trials", "Its method is %s." % method, 'Add "trials": 20 to options.search.'
            )
        return
    walk = space.grid()
    if count is None and sum(1 for _ in zip(range(MAX_TRIALS + 1), walk)) > MAX_TRIALS:
        sizes = " x ".join("%d" % len(axis.grid()) for axis in space.axes.values())
        raise InvalidArgument(
            "the grid has more than %d configurations" % MAX_TRIALS,
            "The axes have %s values." % sizes,
            'Give "trials", fewer values, or "method": "random".',
        )


def resolve(options: Any, params: Dict[str, Any]) -> Dict[str, Any]:
    """Return what one trial trains with.

    Of the learning rate, the trial's own comes first, then ``options.learning_rate``, then the optimizer's.

    Returns:
        ``batch_size``; ``optimizer`` in Keras' full form, the trial's values in its config; ``loss`` and
        ``metrics`` (None: derived from the task); ``learning_rate`` as a number, None for a schedule; and
        ``model_values``, what ``definition.bind`` needs of this trial.
    """
    optimizer = options.optimizer
    if "optimizer" in params:
        optimizer = compilation.check_optimizer(params["optimizer"])
    config = copy.deepcopy(optimizer["config"])
    if options.learning_rate is not None:
        config["learning_rate"] = options.learning_rate
    for axis, value in params.items():
        if axis.startswith(_OPTIMIZER_PREFIX):
            config[axis[len(_OPTIMIZER_PREFIX) :]] = value
    if "learning_rate" in params:
        config["learning_rate"] = params["learning_rate"]
    optimizer = compilation.check_optimizer({**optimizer, "config": config})
    rate = optimizer["config"].get("learning_rate", compilation.default_learning_rate(optimizer))
    return {
        "batch_size": int(params.get("batch_size", options.batch_size)),
        "optimizer": optimizer,
        "loss": options.loss if params.get("loss") is None else _loss(options, params["loss"]),
        "metrics": options.metrics,
        "learning_rate": None if isinstance(rate, dict) else float(rate),
        "model_values": {axis: value for axis, value in params.items() if not _is_option(axis)},
    }


def _loss(options: Any, value: Any) -> dict:
    loss = ends.read_loss(options, value)
    return {**(options.loss or {}), **loss} if options.several else loss


def in_flight(search: Optional[dict], segments: int) -> Optional[int]:
    """How many trials are under way at once; None: all of them. Stored with the run.

    Trials that depend on what became of others, by TPE or a pruner, are begun little by little. Others are bounded too,
    since the coordinator holds the states of all that are under way.
    """
    if search is None:
        return None
    given = whole_number(search, "in_flight")
    if given is not None:
        return given
    if search.get("method") == "tpe" or search.get("pruner") is not None:
        return max(LEAST_IN_FLIGHT, 2 * segments)
    return max(LEAST_IN_FLIGHT_APART, 4 * segments)


def whole_number(search: dict, name: str) -> Optional[int]:
    """The number under a key of the search, None if there is none.

    Raises:
        InvalidArgument: not a whole number from 1 to ``MAX_TRIALS``.
    """
    count = search.get(name)
    if count is None:
        return None
    if not is_number(count) or count != int(count) or not 1 <= count <= MAX_TRIALS:
        raise InvalidArgument(
            "options.search.%s must be a whole number from 1 to %d" % (name, MAX_TRIALS),
            "It is %s." % show(count),
            'Write "%s": 20.' % name,
        )
    return int(count)


# ---- the checks


def _is_option(axis: str) -> bool:
    return axis in _OPTION_AXES or axis.startswith(_OPTIMIZER_PREFIX)


def _check_keys(search: Any) -> None:
    if not isinstance(search, dict):
        raise InvalidArgument(
            "options.search must be an object", "It is %s." % show(search), 'Write {"space": {...}}.'
        )
    for name in search:
        if name not in _KEYS:
            raise InvalidArgument('unknown key "%s" in options.search' % name, None, nearest(name, _KEYS))
    method = search.get("method", "grid")
    if not isinstance(method, str) or method not in METHODS:
        if isinstance(method, str) and method in pruners.PRUNERS:
            raise InvalidArgument(
                '"%s" is a pruner, not a method' % method, None, 'Write "pruner": "%s" beside a method.' % method
            )
        if isinstance(method, str) and method in LATER_METHODS:
            raise NotSupported(
                'search method "%s" is not supported yet' % method, None, "Use %s." % " or ".join(METHODS)
            )
        raise InvalidArgument("unknown search method %s" % show(method), None, nearest(str(method), METHODS))
    whole_number(search, "trials")
    whole_number(search, "in_flight")
    pruners.check(search.get("pruner"))


def _check_placeholders(wanted: Any, space: Any) -> None:
    for name in sorted(wanted):
        if _is_option(name):
            raise InvalidArgument(
                'placeholder "$%s" of the model has the name of an option' % name,
                None,
                "Give it another name.",
            )
        if not isinstance(space, dict) or name not in space:
            raise InvalidArgument(
                'no axis for placeholder "$%s" of the model' % name,
                None,
                'Add "%s": [value, ...] to options.search.space.' % name,
            )


def _check_values(axis: Axis, space: Space, definition: dict, options: Any) -> None:
    if axis.name in ("optimizer", "loss") and not isinstance(axis, Choices):
        raise wrong(axis.name, "a range", "List the choices.")
    for value in [*axis.ends(), *([] if axis.otherwise is ABSENT else [axis.otherwise])]:
        try:
            _check_value(axis, value, space, definition, options)
        except InvalidArgument as error:
            detail = "In options.search.space.%s. %s" % (axis.name, error.detail or "")
            raise InvalidArgument(error.message, detail.strip(), error.hint) from None


def _check_value(axis: Axis, value: Any, space: Space, definition: dict, options: Any) -> None:
    name = axis.name
    if name == "batch_size":
        number = whole(value)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 2**31:
            raise InvalidArgument(
                "a batch size must be a whole number from 1", "It is %s." % show(value), "Try 32."
            )
    elif name == "loss":
        ends.read_loss(options, value)
    elif name == "optimizer":
        compilation.check_optimizer(value)
    elif name == "learning_rate":
        compilation.check_optimizer({"SGD": {"learning_rate": value}})
    elif name.startswith(_OPTIMIZER_PREFIX):
        _check_optimizer_value(axis, value, space, options)
    else:
        within = sorted(placeholders.names_in(value))
        if within:
            hint = 'Let the model have it: {"$%s": {"units": "$%s"}} takes names of classes, such as "LSTM".' % (name, within[0])
            raise InvalidArgument('a value holds a placeholder, "$%s"' % within[0], None, hint)
        # The other placeholders stand for themselves.
        names = definitions.placeholders(definition) | placeholders.FROM_DATA
        definitions.bind(definition, {**{other: "$" + other for other in names}, name: value})


def _check_together(params: Dict[str, Any], options: Any) -> None:
    """Values may each be right and exclude each other, such as two ways of clipping gradients."""
    try:
        resolve(options, params)
    except InvalidArgument as error:
        detail = "In options.search.space, for a trial with %s. %s" % (json.dumps(params)[:200], error.detail or "")
        raise InvalidArgument(error.message, detail.strip(), error.hint) from None


def _check_optimizer_value(axis: Axis, value: Any, space: Space, options: Any) -> None:
    """A key of the optimizer must be known to each optimizer with which it may come together."""
    argument = axis.name[len(_OPTIMIZER_PREFIX) :]
    if argument == "learning_rate":
        raise InvalidArgument("the learning rate is an axis of its own", None, 'Name the axis "learning_rate".')
    choices = [options.optimizer]
    if "optimizer" in space.axes:
        varied = space.axes["optimizer"]
        given = [*varied.ends(), *([] if varied.otherwise is ABSENT else [varied.otherwise])]
        if "optimizer" in axis.when and axis.otherwise is ABSENT:
            given = axis.when["optimizer"]
        choices = [compilation.check_optimizer(choice) for choice in given]
        if varied.when and varied.otherwise is ABSENT and "optimizer" not in axis.when:
            choices.append(options.optimizer)
    for optimizer in choices:
        known = compilation.optimizer_arguments(optimizer)
        if argument not in known:
            raise InvalidArgument(
                '%s has no "%s"' % (optimizer["class_name"], argument),
                None,
                nearest(argument, known) + ' An axis for some optimizers only has "when": {"optimizer": [...]}.',
            )
        compilation.check_optimizer({optimizer["class_name"]: {argument: value}})
