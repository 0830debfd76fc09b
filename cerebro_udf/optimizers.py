"""What the arguments of Keras' optimizers and learning-rate schedules may be: types, ranges, and what excludes what.

Keras checks some of it when the object is made, on a segment; here all of it is checked before anything starts.
"""

from __future__ import annotations

from typing import Any, Dict, List

from cerebro_udf.forms import MAX_WHOLE, Flag, Float, Number, Text, Wrong

MAX_LEARNING_RATE = 1e30  # float32 ends at 3e38

CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


def but_for_rate(optimizer: dict) -> dict:
    """Return an optimizer in full form without its learning rate where that is a number: a variable holds it.

    A schedule belongs to the graph, and stays.
    """
    config = dict(optimizer["config"])
    if isinstance(config.get("learning_rate"), (int, float)):
        del config["learning_rate"]
    return {**optimizer, "config": config}


_POSITIVE = Float(0, above=True)
_NOT_NEGATIVE = Float(0)
_FRACTION = Float(0, 1)
_DECAY = Float(0, 1, below=True)  # of a moving average that would never move at 1
_RATE = Float(0, MAX_LEARNING_RATE)

# Arguments that are numbers, and all others that are not listed are so too, of any size.
_OPTIMIZER_NUMBERS = {
    **dict.fromkeys(CLIPS, _POSITIVE),
    "loss_scale_factor": _POSITIVE,
    "weight_decay": _NOT_NEGATIVE,
    "adam_weight_decay": _NOT_NEGATIVE,
    "ema_momentum": _FRACTION,
    "momentum": _FRACTION,
    **dict.fromkeys(["beta_1", "beta_2", "adam_beta_1", "adam_beta_2", "rho"], _DECAY),
    "epsilon": _NOT_NEGATIVE,
    "ema_overwrite_frequency": Number(1, MAX_WHOLE, whole=True),
    "gradient_accumulation_steps": Number(2, MAX_WHOLE, whole=True),
    "warmup_steps": Number(0, MAX_WHOLE, whole=True),
    "ns_steps": Number(1, 100, whole=True),
}
_BOOLEANS = frozenset("amsgrad nesterov centered use_ema relative_step exclude_embeddings staircase cycle".split())

_SCHEDULE_NUMBERS = {
    **dict.fromkeys(["initial_learning_rate", "end_learning_rate", "warmup_target"], _RATE),
    **dict.fromkeys(["decay_steps", "first_decay_steps"], Float(0, MAX_WHOLE, above=True)),
    **dict.fromkeys(["decay_rate", "alpha"], _NOT_NEGATIVE),
    **dict.fromkeys(["t_mul", "m_mul"], _POSITIVE),
    "warmup_steps": Number(0, MAX_WHOLE, whole=True),
}
_REQUIRED = {
    "CosineDecay": ("initial_learning_rate", "decay_steps"),
    "CosineDecayRestarts": ("initial_learning_rate", "first_decay_steps"),
    "ExponentialDecay": ("initial_learning_rate", "decay_steps", "decay_rate"),
    "InverseTimeDecay": ("initial_learning_rate", "decay_steps", "decay_rate"),
    "PiecewiseConstantDecay": ("boundaries", "values"),
    "PolynomialDecay": ("initial_learning_rate", "decay_steps"),
}


def optimizer(config: Dict[str, Any]) -> Dict[str, Any]:
    """Check an optimizer's arguments, names and ``learning_rate`` objects apart; null ones are left out.

    Raises:
        Wrong: a type or range, or more than one way of clipping gradients.
    """
    result = {}
    for key, value in config.items():
        if value is None:
            continue
        if key == "learning_rate" and isinstance(value, dict):
            result[key] = value
        elif key == "learning_rate":
            result[key] = _learning_rate(key, value)
        elif key == "exclude_layers":
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise Wrong("must be a list of layer names", key)
            result[key] = value
        else:
            result[key] = _plain(key, value, _OPTIMIZER_NUMBERS)
    clips = [key for key in CLIPS if key in result]
    if len(clips) > 1:
        raise Wrong("%s exclude each other" % " and ".join(clips), None, "Clip gradients in one way: keep one of them.")
    return result


def schedule(name: str, config: Dict[str, Any]) -> Dict[str, Any]:
    """Check the arguments of a learning-rate schedule; null ones are left out.

    Raises:
        Wrong: a type or range, an argument that the schedule needs, lists of unequal length.
    """
    result = {}
    for key, value in config.items():
        if value is None:
            continue
        if key in ("boundaries", "values"):
            result[key] = _numbers(key, value)
        else:
            result[key] = _plain(key, value, _SCHEDULE_NUMBERS)
    for key in _REQUIRED[name]:
        if key not in result:
            raise Wrong("%s needs %s" % (name, key), None, 'Add "%s".' % key)
    if "values" in result and len(result["values"]) != len(result["boundaries"]) + 1:
        raise Wrong("must be one more than boundaries", "values", "The first boundary parts the first two values.")
    return result


def _learning_rate(key: str, value: Any) -> float:
    try:
        return Float(0, MAX_LEARNING_RATE, above=True, below=True).read(key, value)
    except Wrong:
        raise Wrong(
            "must be a number above 0",
            key,
            'Or a schedule: {"CosineDecay": {"initial_learning_rate": 0.01, "decay_steps": 1000}}.',
        ) from None


def _plain(key: str, value: Any, numbers: Dict[str, Number]) -> Any:
    if key in _BOOLEANS:
        return Flag().read(key, value)
    if key == "name":
        return Text().read(key, value)
    return numbers.get(key, Float()).read(key, value)


def _numbers(key: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise Wrong("must be a list of numbers", key)
    if key == "values":
        return [_RATE.read(key, item) for item in value]
    steps = [Number(0, MAX_WHOLE, whole=True).read(key, item) for item in value]
    if steps != sorted(set(steps)):
        raise Wrong("must be whole numbers of steps, each larger than the one before", key)
    return steps
