"""The options that go by column, ``encoders`` and ``nulls``: read without the table first, then held against its types. Pure."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from cerebro_udf import columns, sequences
from cerebro_udf.coordinator.space import is_number, whole
from cerebro_udf.errors import InvalidArgument, nearest

MAX_EMBEDDING = 4096
MAX_BUCKETS = 256  # of quantiles; see encoders.QUANTILE_POINTS for how exact they are
MAX_BOUNDARIES = 1000
BUCKETS = 10
MAX_LENGTH = 100_000  # of a sequence
MAX_TOKENS = 1_000_000
MAX_SIZE = 10_000_000  # of sparse rows
TOKENS = 10_000
PIXELS = 16_384  # of one side of an image

_PLAIN = ", ".join('"%s"' % e for e in (*columns.NUMBER_ENCODERS, *columns.CATEGORY_ENCODERS, "bucketize"))
_SHOWN = '{"embedding": {"dim": 8}}, {"bucketize": {"buckets": 10}}, {"sequence": {"length": 20}}, {"tokens": {"length": 50}}'
_ENCODERS = 'one of %s, %s or {"sparse": {"size": 50000}}' % (_PLAIN, _SHOWN)
_NULLS = '"error", "skip", "indicator", {"value": 0} or {"value": 0, "indicator": true}'
_SETTINGS = {
    "embedding": ("dim",), "bucketize": ("buckets", "boundaries", "as"), "sequence": ("length", "pad", "truncate", "as"),
    "tokens": ("length", "size", "pad", "truncate", "standardize", "split", "hash"), "sparse": ("values", "size"),
    "tensor": ("dtype", "shape", "as"), "image": ("height", "width", "channels", "resize", "crop", "as"),
}  # fmt: skip


def read_encoders(option: str, value: Any) -> Dict[str, Any]:
    """Return the option ``encoders``, each encoder as a name or ``{name: {setting: value}}`` with those that are not the defaults.

    Raises:
        InvalidArgument.
    """
    return {column: _encoder("%s.%s" % (option, column), given) for column, given in _by_column(option, value, '{"carrier": "one_hot"}')}


def _by_column(option: str, value: Any, example: str) -> Iterable:
    if not isinstance(value, dict):
        raise wrong(option, value, "an object by column, such as %s" % example)
    return value.items()


def wrong(place: str, value: Any, form: str) -> InvalidArgument:
    """The error for a setting that is not of the form accepted, shown as JSON."""
    return InvalidArgument('option "%s" has a wrong value' % place, "The value is %s." % json.dumps(value)[:80], "Accepted is %s." % form)


def _encoder(place: str, given: Any, allowed: Iterable[str] = columns.ENCODERS) -> Any:
    name, settings = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else (given, {})
    if not isinstance(name, str) or name not in allowed or not isinstance(settings, dict):
        error = wrong(place, given, _ENCODERS)
        if isinstance(name, str) and name not in columns.ENCODERS and nearest(name, allowed).startswith("Did"):
            error.hint += " " + nearest(name, allowed)
        raise error
    for key in settings:
        if key not in _SETTINGS.get(name, ()):
            hint = nearest(key, _SETTINGS[name]) if name in _SETTINGS else 'Write "%s".' % name
            raise InvalidArgument('unknown key "%s" in option "%s"' % (key, place), "The value is %s." % json.dumps(given)[:80], hint)
    settings = {key: setting for key, setting in settings.items() if setting is not None}
    if name in _FORMS:
        return {name: _FORMS[name]("%s.%s" % (place, name), settings)}
    if name == "bucketize":
        return {name: _buckets(place, settings)}
    return {name: {"dim": _number(place, settings["dim"], 1, MAX_EMBEDDING)}} if settings else name


def _buckets(place: str, settings: dict) -> dict:
    if "buckets" in settings and "boundaries" in settings:
        raise wrong(place, settings, "either buckets or boundaries")
    result: Dict[str, Any] = {}
    if "boundaries" in settings:
        given = settings["boundaries"]
        written = isinstance(given, list) and bool(given) and all(isinstance(moment, str) for moment in given)  # see as_held
        result["boundaries"] = given if written and len(given) <= MAX_BOUNDARIES else _boundaries(place, given)
    else:
        result["buckets"] = _number(place + ".buckets", settings.get("buckets", BUCKETS), 2, MAX_BUCKETS)
    if settings.get("as", "one_hot") != "one_hot":
        result["as"] = _encoder(place + ".as", settings["as"], columns.CATEGORY_ENCODERS)
    return result


def _boundaries(place: str, given: Any) -> List[float]:
    numbers = isinstance(given, list) and 1 <= len(given) <= MAX_BOUNDARIES and all(map(_is_boundary, given))
    if not numbers or any(a >= b for a, b in zip(given, given[1:])):
        form = 'a list of up to %d numbers in ascending order, such as [18, 65], or of dates and times where the column holds such'
        raise wrong(place + ".boundaries", given, form % MAX_BOUNDARIES)
    return [float(number) for number in given]


def _lengths(place: str, settings: dict) -> dict:
    if "length" not in settings:
        raise wrong(place, settings, '{"length": 20}, the number of steps that every row is brought to')
    return {
        "length": _number(place + ".length", settings["length"], 1, MAX_LENGTH),
        "pad": _word(place + ".pad", settings.get("pad", "post"), "post", "pre"),
        "truncate": _word(place + ".truncate", settings.get("truncate", "post"), "post", "pre"),
    }


def _sequence(place: str, settings: dict) -> dict:
    return {**_lengths(place, settings), "as": _word(place + ".as", settings.get("as", "standardize"), *columns.NUMBER_ENCODERS)}


def _tokens(place: str, settings: dict) -> dict:
    found = {**_lengths(place, settings), "size": _number(place + ".size", settings.get("size", TOKENS), 3, MAX_TOKENS)}
    for key, words in (("standardize", sequences.STANDARDS), ("split", sequences.SPLITS)):
        if key in settings:
            found[key] = _word("%s.%s" % (place, key), settings[key], *words)
    if not isinstance(settings.get("hash", False), bool):
        raise wrong(place + ".hash", settings["hash"], "true or false")
    return {**found, "hash": True} if settings.get("hash") else found


def _sparse(place: str, settings: dict) -> dict:
    found = {"size": _number(place + ".size", settings.get("size"), 1, MAX_SIZE)}
    if "values" in settings:
        if not isinstance(settings["values"], str) or not settings["values"]:
            raise wrong(place + ".values", settings["values"], "the name of the column that holds the values of the indices")
        found["values"] = settings["values"]
    return found


def _tensor(place: str, settings: dict) -> dict:
    dtype, shape = _word(place + ".dtype", settings.get("dtype", "uint8"), *columns.DTYPES), settings.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= columns.MAX_RANK:
        raise wrong(place + ".shape", shape, "a list of 1 to %d sizes, such as [28, 28, 1]" % columns.MAX_RANK)
    encoders = (columns.UNIT, *columns.NUMBER_ENCODERS) if dtype == "uint8" else columns.NUMBER_ENCODERS
    return {
        "dtype": dtype, "shape": [_number(place + ".shape", size, 1, 10**6) for size in shape],
        "as": _word(place + ".as", settings.get("as", encoders[0]), *encoders),
    }  # fmt: skip


def _image(place: str, settings: dict) -> dict:
    found = {key: _number("%s.%s" % (place, key), settings.get(key), 1, PIXELS) for key in ("height", "width")}
    found["channels"] = _number(place + ".channels", settings.get("channels", 3), 1, 4)
    if found["channels"] == 2:
        raise wrong(place + ".channels", 2, "1 (grey), 3 (colours) or 4 (with transparency, of PNG files)")
    if "resize" in settings:
        found["resize"] = _word(place + ".resize", settings["resize"], *columns.RESIZING)
    if not isinstance(settings.get("crop", False), bool) or (settings.get("crop") and "resize" not in settings):
        raise wrong(place + ".crop", settings["crop"], "true, beside resize, or false")
    encoders = (columns.UNIT, *columns.NUMBER_ENCODERS)
    return {**found, "crop": settings.get("crop", False), "as": _word(place + ".as", settings.get("as", encoders[0]), *encoders)}


_FORMS = {"sequence": _sequence, "tokens": _tokens, "sparse": _sparse, "tensor": _tensor, "image": _image}


def _word(place: str, value: Any, *words: str) -> str:
    if value not in words:
        raise wrong(place, value, "one of " + ", ".join('"%s"' % word for word in words))
    return value


def _is_boundary(value: Any) -> bool:
    """Whether it is a number that single precision comes close to."""
    return is_number(value) and (value == 0 or 1e-30 <= abs(value) <= 1e38)


def _number(place: str, value: Any, low: int, high: int) -> int:
    number = whole(value)
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise wrong(place, value, "a whole number from %d to %d" % (low, high))
    return number


def check_encoders(encoders: Dict[str, Any], types: Dict[str, str], features: Iterable[str], labels: Sequence[dict] = ()) -> None:
    """Hold the option ``encoders`` against the columns.

    Args:
        encoders: What :func:`read_encoders` returned.
        types: Of the columns.
        features: Their names.
        labels: Their specifications; one of quantities may have an encoder for numbers, which is the feature's if it is one too.

    Raises:
        InvalidArgument: a column that is neither, whose type cannot have such an encoder, or that needs one.
    """
    for column in features:
        needed = [name for name in columns.encoders_of(types[column]) if name in columns.FORMS]
        if columns.kind(types[column], encoders.get(column)) is None and column not in encoders:
            raise InvalidArgument(
                'column "%s" needs an encoder' % column,
                "The column has type %s; what it holds is not known." % types[column],
                "Set it in the option encoders: %s." % " or ".join('{"%s": {"%s": {…}}}' % (column, name) for name in needed),
            )
    for column, encoder in encoders.items():
        of_label = [label for label in labels if label["name"] == column]
        encoded = any(map(columns.encodes, of_label))
        if column not in features and not encoded:
            detail = "It is a label, and only one for regression may have an encoder." if of_label else None
            raise InvalidArgument('option encoders names "%s", which is not a feature' % column, detail, nearest(column, features))
        fitting = columns.NUMBER_ENCODERS if encoded else columns.encoders_of(types[column])
        if columns.encoder_name(encoder) not in fitting:
            raise InvalidArgument(
                'encoder "%s" does not fit column "%s"' % (columns.encoder_name(encoder), column),
                "The column has type %s." % types[column],
                "%sUse one of: %s." % ("It is a label. " if encoded else "", ", ".join(fitting)),
            )
        if "tokens" in encoder and types[column].endswith("[]") and set(encoder["tokens"]) & {"standardize", "split"}:
            raise InvalidArgument(
                'column "%s" is no text to be cut into tokens' % column,
                "The column has type %s; its elements are the tokens." % types[column],
                "Leave standardize and split out.",
            )


def read_nulls(option: str, value: Any) -> Any:
    """Return the option ``nulls``: ``error`` or ``skip``; or by column (``*``: all others) one of these, or what stands for a NULL.

    That is ``{"value": …, "indicator": true}`` without what was not asked for.

    Raises:
        InvalidArgument.
    """
    if isinstance(value, str):
        if value not in ("error", "skip"):
            raise wrong(option, value, '"error", "skip", or an object by column, such as {"age": {"value": 0}, "*": "skip"}')
        return value
    return {column: _policy("%s.%s" % (option, column), given) for column, given in _by_column(option, value, '{"age": {"value": 0}}')}


def _policy(place: str, given: Any) -> Any:
    if given in ("error", "skip"):
        return given
    settings = {"indicator": True} if given == "indicator" else given
    if not isinstance(settings, dict):
        raise wrong(place, given, _NULLS)
    for key in settings:
        if key not in ("value", "indicator"):
            hint = nearest(key, ("value", "indicator"))
            raise InvalidArgument('unknown key "%s" in option "%s"' % (key, place), "The value is %s." % json.dumps(given)[:80], hint)
    found: Dict[str, Any] = {}
    if settings.get("value") is not None:
        if not isinstance(settings["value"], (str, bool)) and not is_number(settings["value"]):
            raise wrong(place + ".value", settings["value"], 'a number, true, false or text; "mean" for numbers')
        found["value"] = settings["value"]
    if not isinstance(settings.get("indicator", False), bool):
        raise wrong(place + ".indicator", settings["indicator"], "true or false")
    if settings.get("indicator"):
        found["indicator"] = True
    if not found:
        raise wrong(place, given, _NULLS)
    return found


def as_held(encoders: Dict[str, Any], nulls: Any, types: Mapping[str, str], held: Callable[[str, str, bool], Any]) -> Tuple[dict, Any]:
    """Return the options ``encoders`` and ``nulls`` with what is written in them as columns hold it: dates and times as seconds, or as
    categories in ISO form, uuids and text that is one whatever its case in lower case.

    Args:
        encoders, nulls: What :func:`read_encoders` and :func:`read_nulls` returned.
        types: Of the columns.
        held: From a column's type and a text to what a column of that type would hold, as a number or (true) as text.

    Raises:
        InvalidArgument: the column is none of dates or times, or the boundaries do not ascend; what ``held`` raises.
    """
    timed = {name for name, type_ in types.items() if not type_.endswith("[]") and columns.counts_seconds(type_)}
    encoders = dict(encoders)
    for column, encoder in encoders.items():
        settings = encoder.get("bucketize", {}) if isinstance(encoder, dict) else {}
        given = settings.get("boundaries", ())
        if any(isinstance(moment, str) for moment in given):
            read = [held(types[column], moment, False) for moment in given] if column in timed else given
            encoders[column] = {"bucketize": {**settings, "boundaries": _boundaries("encoders." + column, read)}}
    if isinstance(nulls, dict):
        nulls = dict(nulls)
        for column, policy in nulls.items():
            value = policy.get("value") if isinstance(policy, dict) else None
            if not isinstance(value, str) or column not in types:
                continue
            text = columns.kind(types[column], encoders.get(column)) == "text"
            if columns.spelled_by_server(types[column]) if text else column in timed and value != "mean":
                nulls[column] = {**policy, "value": held(types[column], value, text)}
    return encoders, nulls


def check_nulls(nulls: Any, features: List[dict], others: Iterable[str]) -> None:
    """Hold the option ``nulls`` against the columns.

    Args:
        nulls: What :func:`read_nulls` returned.
        features: Their specifications, see ``Source.feature_specs``.
        others: Names of the labels and the columns of weights and of what is held out.

    Raises:
        InvalidArgument: a column that is not read, or that what is asked for does not fit.
    """
    if isinstance(nulls, str):
        return
    names = [*(feature["name"] for feature in features), *others]
    for column in nulls:
        if column != "*" and column not in names:
            raise InvalidArgument('option nulls names "%s", which is no column that is read' % column, None, nearest(column, names))
        if column in others and isinstance(nulls[column], dict):
            raise InvalidArgument(
                'option nulls cannot have a NULL of column "%s" stand for anything' % column,
                "It is a label, weighs rows, or says which are held out.",
                'Set it to "skip" or "error".',
            )
    for feature in features:
        if "nulls" in feature:
            _check_policy(feature)


def _check_policy(feature: dict) -> None:
    policy, spelling = feature["nulls"], columns.of(feature["type"]).spelling
    value = policy.get("value")
    if feature["kind"] == "array":
        problem = 'arrays know "error" and "skip" only'
    elif feature["kind"] in columns.FORMS:
        problem = 'with encoder %s a column knows "error" and "skip" only' % feature["kind"]
    elif feature["kind"] == "number":
        fits = value is None or value == "mean" or not isinstance(value, str)
        problem = None if fits else 'what stands for a number is a number (of seconds, for a date or time) or "mean"'
        if columns.encoder_name(feature["encoder"]) == "bucketize" and len(policy) > 1:
            problem = "a NULL is either in the bucket of a value or in one of its own"
    elif len(policy) > 1:
        problem = "a NULL is either one of the values or a category of its own"
    else:
        wanted = {"integer": lambda v: isinstance(whole(v), int) and not isinstance(v, bool), "boolean": lambda v: isinstance(v, bool)}
        fits = value is None or wanted.get(spelling, lambda v: isinstance(v, str))(value)
        problem = None if fits else "what stands for a category is one of its values"
    if problem:
        raise InvalidArgument(
            'option nulls does not fit column "%s": %s' % (feature["name"], problem),
            "The column has type %s, the option is %s." % (feature["type"], json.dumps(policy)),
            'Name the column in the option "nulls" with "skip" or "error", or with what fits.',
        )
