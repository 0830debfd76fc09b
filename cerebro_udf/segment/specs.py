"""What a worker is asked to do, checked before it is believed: anyone may call a worker function, with anything.

A check takes the place of a value, for the message, and the value; it raises or returns nothing.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Sequence

from cerebro_udf import columns, encoders, sequences
from cerebro_udf.errors import InvalidArgument
from cerebro_udf.wire import VALIDATION_COLUMNS, VALIDATION_FORMS

Check = Callable[[str, Any], None]

MOST = 2**63 - 1


def wrong(place: str, value: Any, form: str) -> InvalidArgument:
    """The error for a value in that place that is not what it should be."""
    hint = "Call cerebro.fit, which asks workers for what they can do."
    return InvalidArgument('"%s" is not %s' % (place, form), "It is %s." % json.dumps(value)[:100], hint)


def anything(place: str, value: Any) -> None:
    """For what is checked where it is understood."""


def text(place: str, value: Any) -> None:
    if not isinstance(value, str):
        raise wrong(place, value, "text")


def flag(place: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise wrong(place, value, "true or false")


def number(place: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e308:
        raise wrong(place, value, "a number")


def whole(low: int = 0, high: int = MOST) -> Check:
    def check(place: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(place, value, "a whole number from %d to %d" % (low, high))

    return check


def one_of(*words: str) -> Check:
    def check(place: str, value: Any) -> None:
        if not isinstance(value, str) or value not in words:
            raise wrong(place, value, "one of %s" % ", ".join(words))

    return check


def maybe(inner: Check) -> Check:
    """It may be left out."""

    def check(place: str, value: Any) -> None:
        if value is not None:
            inner(place, value)

    return check


def many(inner: Check, least: int = 0, most: float = math.inf) -> Check:
    """A list of such."""

    def check(place: str, value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise wrong(place, value, "a list" + (" of %d or more" % least if most == math.inf else " of %d to %d" % (least, most)))
        for item in value:
            inner(place, item)

    return check


def named(inner: Check) -> Check:
    """An object whose every value is such."""

    def check(place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(place, value, "an object")
        for key, item in value.items():
            inner("%s.%s" % (place, key), item)

    return check


def fields(**inner: Check) -> Check:
    """An object of these; there may be others."""

    def check(place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(place or "spec", value, "an object")
        for key, part in inner.items():
            part("%s.%s" % (place, key) if place else key, value.get(key))

    return check


def blobs(place: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(item, bytes) for item in value):
        raise InvalidArgument('"%s" is not an array of bytea' % place, None, "Leave out what is NULL.")


# ---- what several functions take

_TASK = one_of(*columns.TASKS)
_NUMBERS = many(number)
_PART = fields(
    inputs=many(
        fields(
            name=maybe(text),
            numbers=maybe(many(whole(1), most=16)),
            codes=many(fields(name=text, size=whole(1), encoder=one_of(*columns.CATEGORY_ENCODERS), dim=maybe(whole(1)))),
            dtype=maybe(one_of("int32", "uint8")),
            sparse=maybe(flag),
            layers=maybe(many(anything)),
            shape=maybe(many(whole(1), 1)),
        ),
        1,
    ),
    outputs=many(fields(name=maybe(text), task=_TASK, classes=maybe(whole(1)), shape=maybe(many(whole(1), most=16))), 1),
)


def _encoder(place: str, value: Any) -> None:
    one_of(*columns.ENCODERS, columns.UNIT)(place, next(iter(value)) if isinstance(value, dict) and len(value) == 1 else value)


_FEATURE = fields(name=text, type=text, kind=one_of("number", "array", "text", *columns.FORMS), encoder=maybe(_encoder),
                  points=maybe(flag), known=maybe(many(text)))  # fmt: skip
_ENDS = one_of("pre", "post")
_FORMS = {
    "sequence": fields(length=whole(1, 10**6), pad=_ENDS, truncate=_ENDS),
    "tokens": fields(
        length=whole(1, 10**6), pad=_ENDS, truncate=_ENDS, size=whole(3), standardize=maybe(one_of(*sequences.STANDARDS)),
        split=maybe(one_of(*sequences.SPLITS)), hash=maybe(flag),
    ),
    "sparse": fields(size=whole(1, 2**31 - 1), values=maybe(text)),
    "tensor": fields(dtype=one_of(*columns.DTYPES), shape=many(whole(1, 10**6), 1, columns.MAX_RANK)),
    "image": fields(
        height=whole(1, 10**5), width=whole(1, 10**5), channels=whole(1, 4), resize=maybe(one_of(*columns.RESIZING)), crop=maybe(flag),
    ),
}  # fmt: skip
_ENCODED = fields(encoder=one_of(*columns.NUMBER_ENCODERS, *columns.CATEGORY_ENCODERS, "tokens", "sparse", columns.UNIT))
_TEXT = fields(vocabulary=many(maybe(text)))
_ARRAY = fields(shape=many(whole(), most=16))
_BUCKETS = fields(boundaries=many(number, 0))
_LABEL = fields(
    name=text, output=maybe(text), type=text, task=maybe(_TASK), values=maybe(many(text)),
    encoder=maybe(one_of(*columns.NUMBER_ENCODERS)),
)
_INPUT = fields(name=maybe(text), features=many(text, 1), stack=maybe(whole(-1, 0)))
_CLASSES = fields(task=_TASK, weights=maybe(_NUMBERS), shape=maybe(many(whole(1), most=16)))


def _class(place: str, value: Any) -> None:
    if not isinstance(value, (str, int, float)):
        raise wrong(place, value, "a class")


labels = many(_LABEL)
_COLUMN = fields(name=text, type=text)
weight = maybe(_COLUMN)
ranks = many(fields(**{"class": maybe(_class), "start": whole(), "stop": whole()}))
questions = many(fields(**{"class": maybe(_class), "low": whole(-(2**63)), "bits": whole(1, 64), "digits": whole(1, 12)}))


def _from(place: str, value: Any) -> None:
    (text if isinstance(value, str) else number)(place, value)


def _stratify(place: str, value: Any) -> None:
    (text if isinstance(value, str) else flag)(place, value)


_VALIDATION = fields(
    fraction=maybe(number), stratify=maybe(_stratify), column=maybe(text), group=maybe(text), time=maybe(text), folds=maybe(whole(1)),
    fold=maybe(whole()), table=maybe(text), **{"from": maybe(_from)},
)  # fmt: skip


def validation(place: str, value: Any) -> None:
    """What ``split.Rule`` takes."""
    (_VALIDATION if isinstance(value, dict) else number)(place, value)
    if isinstance(value, dict) and set(value) not in VALIDATION_FORMS:
        raise wrong(place, value, "a form of the option validation")


def criterion(place: str, value: Any, option: Any) -> None:
    """The column that the option ``validation`` names."""
    names = isinstance(option, dict) and any(key in option for key in VALIDATION_COLUMNS)
    (_COLUMN if names else maybe(_COLUMN))(place, value)


def stratified(place: str, value: Any, option: Any) -> None:
    """The labels, one of which the option ``validation`` may name by its output."""
    output = option.get("stratify") if isinstance(option, dict) else None
    if output is not None and not any(output is True or label.get("output") == output for label in value):
        raise wrong(place, value, "a list of labels with that of the option validation")


def part(place: str, value: Any) -> None:
    """What ``encoders.model_part`` takes."""
    (fields(model=_whole_part) if isinstance(value, dict) and "model" in value else _whole_part)(place, value)


def _whole_part(place: str, value: Any) -> None:
    _PART(place, value)
    names = [output.get("name") for output in value["outputs"]]
    if len(names) > 1 and (None in names or len(set(names)) < len(names)):
        raise wrong(place + ".outputs", value["outputs"], "a list of outputs of different names")


def _metrics(place: str, value: Any) -> None:
    """A list, or by the name of an output one of each."""
    (named(maybe(many(anything))) if isinstance(value, dict) else many(anything))(place, value)


_PROGRAM = fields(
    definition=named(anything), optimizer=anything, metrics=maybe(_metrics), weighted_metrics=maybe(_metrics), precision=maybe(text),
    loss_weights=maybe(named(number)), encoders=part,
)  # fmt: skip


def program(place: str, value: Any) -> None:
    """What ``program.Program`` takes."""
    _PROGRAM(place, value)
    several = len(encoders.model_part(value["encoders"])["outputs"]) > 1
    for key in ("metrics", "weighted_metrics"):
        if value.get(key) is not None and isinstance(value[key], dict) != several:
            raise wrong("%s.%s" % (place, key), value[key], "an object by outputs" if several else "a list")


def feature(place: str, value: Any) -> None:
    _FEATURE(place, value)
    if columns.meaning(value["type"], value["kind"]) is None:
        raise wrong(place + ".type", value["type"], "a type of which features are read as %s" % value["kind"])
    if value["kind"] in _FORMS:
        _FORMS[value["kind"]]("%s.%s" % (place, value["kind"]), value.get(value["kind"]))
    if "nulls" in value:
        named(anything)(place + ".nulls", value["nulls"])
        if value["kind"] not in ("number", "text"):
            raise wrong(place + ".nulls", value["nulls"], "something that arrays have")


def encoded(place: str, value: Any) -> None:
    """What ``tensors.Encoding`` takes."""
    fields(features=many(feature, 1), labels=many(_LABEL, 1), inputs=many(_INPUT, 1), model=_whole_part)(place, value)
    if len(value["labels"]) != len(value["model"]["outputs"]):
        raise wrong(place + ".labels", value["labels"], "a list of a label for each output")
    names = {item["name"] for item in value["features"]}
    for given in value["inputs"]:
        if not names.issuperset(given["features"]):
            raise wrong("%s.inputs.features" % place, given["features"], "a list of features")
    for item in value["features"]:
        at = "%s.features" % place
        _ENCODED(at, item)
        if item["kind"] == "text" or (item["kind"] == "tokens" and not item["tokens"].get("hash")):
            _TEXT(at, item)
        if item["kind"] != "text":
            _ARRAY(at, item)
        if item["kind"] != "text" and encoders.is_category(item):
            _BUCKETS(at, item)
        if item["kind"] != "text" and item.get("nulls") is not None:
            number(at + ".nulls.value", item["nulls"].get("value"))
        _affine(at, item)
    for item in value["labels"]:
        at = "%s.labels" % place
        _CLASSES(at, item)
        if item["task"] == "classification":
            many(_class, 1)(at + ".classes", item.get("classes"))
        _affine(at, item)


def _affine(place: str, value: dict) -> None:
    """What ``encoders.affine`` takes."""
    if value.get("encoder") in ("standardize", "minmax"):
        _NUMBERS(place, value.get("mean" if value["encoder"] == "standardize" else "min"))
        _NUMBERS(place, value.get("scale"))


_READS = many(
    fields(
        relation=text, where=maybe(text), columns=named(text), casts=maybe(named(text)), expressions=maybe(many(text)), filter=maybe(text)
    )
)


def reads(names: Sequence[str], carried: Sequence[str] = ()) -> Check:
    """Scans that give columns or expressions of these names; what is carried are columns."""

    def check(place: str, value: Any) -> None:
        _READS(place, value)
        for read in value:
            given = {*read["columns"], *(read.get("expressions") or [])}
            for missing in [name for name in names if name not in given] + [name for name in carried if name not in read["columns"]]:
                raise wrong("%s.columns.%s" % (place, missing), None, "text")

    return check
