"""The SQL types that columns may have: how a query reads them, what they mean, what a label of them is for. Pure.

A feature is read in one of these forms, its ``kind``: ``number`` (float64), ``array`` (of numbers), ``text`` (a category, as the
text that PostgreSQL writes), or what an encoder with settings makes of it: ``sequence`` (arrays of numbers of any length, filled up),
``tokens`` (arrays of categories, or words of a text), ``sparse`` (arrays of indices, and of their values),
``tensor`` (the bytes of an array), ``image`` (a PNG or JPEG file). Dates and times are numbers of seconds. A type that is no
number, or an encoder that makes categories, asks for ``text``: so integers of any size keep their value.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from cerebro_udf import errors

REGRESSION, CLASSIFICATION, MULTI_LABEL = "regression", "classification", "multi_label"
TASKS = (CLASSIFICATION, REGRESSION, MULTI_LABEL)
OTHERWISE = {REGRESSION: "is a quantity", MULTI_LABEL: "says what applies to a row"}  # of labels without classes
NUMBER_ENCODERS = ("standardize", "minmax", "none")
CATEGORY_ENCODERS = ("one_hot", "embedding", "index")
# Each reads a column in a form of its own, called as the encoder is, and says with "as" which encoder for numbers follows.
FORMS = ("sequence", "tokens", "sparse", "tensor", "image")
FILLED = ("number", "text")  # kinds of features in which something may stand for a NULL
ENCODERS = (*NUMBER_ENCODERS, *CATEGORY_ENCODERS, "bucketize", *FORMS)  # bucketize makes categories of numbers
UNIT = "unit"  # bytes divided by 255, so 0 to 1
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")  # of a tensor
MAX_RANK = 6  # of a tensor
RESIZING = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5")


class Type(NamedTuple):
    """What a type without modifiers is to Cerebro.

    Attributes:
        cast: Its name in pg_catalog. Queries cast to it, since a foreign table's column may be of another type where it lies.
        quantity: What its numbers count: ``number``, or seconds of a ``moment`` (since 1970 began), a ``time`` (of the day), an
            ``interval``; None: it has no numbers.
        spelling: How its categories are spelled: ``integer``, ``boolean``, ``date`` (ISO), ``text``, or ``folded``, text that is one
            whatever its case; None: it makes none.
        tasks: What a label of it may be for, the default first.
    """

    cast: str
    quantity: Optional[str] = None
    spelling: Optional[str] = None
    tasks: Tuple[str, ...] = ()


TYPES: Dict[str, Type] = {
    "smallint": Type("int2", "number", "integer", (CLASSIFICATION, REGRESSION)),
    "integer": Type("int4", "number", "integer", (CLASSIFICATION, REGRESSION)),
    "bigint": Type("int8", "number", "integer", (CLASSIFICATION, REGRESSION)),
    "real": Type("float4", "number", None, (REGRESSION, CLASSIFICATION)),
    "double precision": Type("float8", "number", None, (REGRESSION, CLASSIFICATION)),
    "numeric": Type("float8", "number", None, (REGRESSION, CLASSIFICATION)),
    "boolean": Type("bool", "number", "boolean", (CLASSIFICATION, REGRESSION)),
    "date": Type("date", "moment", "date", (CLASSIFICATION,)),
    "timestamp without time zone": Type("timestamp", "moment"),
    "timestamp with time zone": Type("timestamptz", "moment"),
    "time without time zone": Type("time", "time"),
    "time with time zone": Type("timetz", "time"),
    "interval": Type("interval", "interval", None, (REGRESSION,)),
    "text": Type("text", None, "text", (CLASSIFICATION,)),
    "character varying": Type("text", None, "text", (CLASSIFICATION,)),
    "character": Type("text", None, "text", (CLASSIFICATION,)),
    "name": Type("text", None, "text", (CLASSIFICATION,)),
    "citext": Type("text", None, "folded", (CLASSIFICATION,)),  # that of the extension, wherever it lies
    "enum": Type("text", None, "text", (CLASSIFICATION,)),  # any of them
    "uuid": Type("uuid", None, "text", (CLASSIFICATION,)),
    "bytea": Type("bytea"),
}
FLOATING = ("real", "double precision", "numeric")
PADDED = "character"  # blanks at the end mean nothing, and go where such a value becomes text

# What makes a column of another type one that can be used: SQL over its name, and over the schema of an extension's type.
_EXPRESSIONS = {
    "json": "%s ->> 'key'", "jsonb": "%s ->> 'key'", "hstore": "%s OPERATOR(%s.->) 'key'", "xml": "(xpath('/doc/key/text()', %s))[1]::text",
    "inet": "network(set_masklen(%s, 16))::text", "cidr": "set_masklen(%s, 16)::text",
    "macaddr": "trunc(%s)::text", "macaddr8": "trunc(%s)::text",
    "money": "%s::numeric", "bit": "get_bit(%s, 0)", "bit varying": "get_bit(%s, 0)", "tsvector": "tsvector_to_array(%s)",
    "point": "%s[0]", "box": "area(%s)", "circle": "area(%s)", "path": "length(%s)", "lseg": "length(%s)", "polygon": "area(box(%s))",
    "vector": "%s::real[]", "halfvec": "%s::real[]",
    **{kind + part: "lower(%s)" for kind in ("int4", "int8", "num", "ts", "tstz", "date") for part in ("range", "multirange")},
}  # fmt: skip


def base(name: str) -> str:
    """``numeric(10,2)[]`` -> ``numeric``: a type's name without modifiers and brackets."""
    head, _, tail = name.replace("[]", "").partition("(")
    return (head + tail.partition(")")[2]).strip()


def of(name: str) -> Type:
    """What a type is, or the elements of an array.

    Raises:
        WrongColumnType: it can be nothing; a run that somebody else wrote may say so.
    """
    if base(name) not in TYPES:
        raise errors.WrongColumnType("type %s is not supported" % name, None, "Cast the column in a materialized view.")
    return TYPES[base(name)]


def encoder_name(encoder: Any) -> Optional[str]:
    """``{"embedding": {"dim": 8}}`` -> ``embedding``; None where none was asked for."""
    return next(iter(encoder)) if isinstance(encoder, dict) else encoder


def encoders_of(name: str) -> Tuple[str, ...]:
    """The encoders that a column of this type may have, the default first, which is none of ``FORMS``; none: it cannot be a feature."""
    element = TYPES.get(base(name))
    if element is None or name.count("[]") > 1:
        return ()
    if name.endswith("[]"):
        numbers = (*NUMBER_ENCODERS, "sequence") if element.quantity == "number" else ()
        return numbers + (("tokens",) if element.spelling else ()) + (("sparse",) if element.spelling == "integer" else ())
    if element.cast == "bytea":
        return ("tensor", "image")
    numbers = (*NUMBER_ENCODERS, "bucketize") if element.quantity else ()
    return numbers + (CATEGORY_ENCODERS if element.spelling else ()) + (("tokens",) if element.cast == "text" else ())


def kind(name: str, encoder: Any = None) -> Optional[str]:
    """The form in which a feature is read; None for a type that cannot be a feature, or not without an encoder of ``FORMS``.

    Args:
        name: The type.
        encoder: As asked for; None for the type's default.
    """
    fitting = encoders_of(name)
    chosen = encoder_name(encoder) or next(iter(fitting), None)
    if chosen in FORMS:
        return chosen if encoder is not None and chosen in fitting else None
    if not fitting:
        return None
    if name.endswith("[]"):
        return "array"
    return "text" if chosen in CATEGORY_ENCODERS else "number"


def specification(name: str, type_: str, encoder: Any) -> dict:
    """A feature as a segment's ``load`` wants it; of ``FORMS`` with the settings, under the form's name, and the encoder that follows."""
    form = kind(type_, encoder)
    if form not in FORMS:
        return {"name": name, "type": type_, "kind": form, "encoder": encoder}
    settings = dict(encoder[form])
    return {"name": name, "type": type_, "kind": form, "encoder": settings.pop("as", None), form: settings}


def read_of(feature: dict) -> List[str]:
    """What is read of a row for a feature: itself, and the values of a sparse one."""
    values = feature["sparse"].get("values") if feature["kind"] == "sparse" else None
    return [feature["name"]] if values is None else [feature["name"], values]


def sparse_of(features: Sequence[dict]) -> Dict[str, Any]:
    """What the option ``encoders`` says of the sparse ones of these features."""
    return {feature["name"]: {"sparse": feature["sparse"]} for feature in features if feature["kind"] == "sparse"}


def values_of(encoders: Dict[str, Any]) -> List[str]:
    """The columns that hold values of sparse features, by the option ``encoders``."""
    found = [encoder["sparse"].get("values") for encoder in encoders.values() if isinstance(encoder, dict) and "sparse" in encoder]
    return [values for values in found if values is not None]


def is_bytes(feature: dict) -> bool:
    """Whether a feature's numbers are bytes, 0 to 255, that are kept as such."""
    return feature["kind"] == "image" or (feature["kind"] == "tensor" and feature["tensor"]["dtype"] == "uint8")


def doubles_hold(column: dict) -> bool:
    """Whether double precision holds every number of a feature or label as its type has it, so that what is equal there is equal."""
    if column.get("kind") == "tensor":
        return column["tensor"]["dtype"] != "int64"
    return base(column["type"]) not in ("bigint", "numeric")


def meaning(name: str, kind: str) -> Optional[str]:
    """What values of a type mean to a model that reads them in this form; columns of one meaning may stand for one another."""
    fitting = encoders_of(name)
    if kind in FORMS:
        if kind not in fitting:
            return None
        return kind if kind != "tokens" else of(name).spelling + ("[]" if name.endswith("[]") else "")
    if (kind == "array") != name.endswith("[]") or not set(fitting) - set(FORMS):
        return None
    return kind if kind == "array" else of(name).spelling if kind == "text" else of(name).quantity


def null_policy(nulls: Any, column: str) -> Any:
    """What the option ``nulls`` says of a column: ``error``, ``skip``, or the settings by which its NULLs are kept."""
    return nulls if isinstance(nulls, str) else nulls.get(column, nulls.get("*", "error"))


# ---- labels


def task_of(label: dict) -> str:
    """Say which task a label column is for, one of ``TASKS``.

    Args:
        label: ``{"name", "type", "task"}``; the task is that asked for, or None.

    Raises:
        WrongColumnType: the type has no task, or not the one asked for.
        NotSupported: an array of anything but numbers and booleans, or of arrays.
    """
    name, type_ = label["name"], label["type"]
    if type_.endswith("[]"):
        tasks = (REGRESSION, MULTI_LABEL) if base(type_) in FLOATING else (MULTI_LABEL, REGRESSION)
        task = label.get("task") or tasks[0]
        if type_.count("[]") == 1 and TYPES.get(base(type_), Type("")).quantity == "number" and task in tasks:
            return task
        raise errors.NotSupported(
            'array label "%s" is not supported' % name + (" for %s" % task if task not in tasks else ""),
            "Its type is %s." % type_,
            "An array of floating-point numbers is for regression, one of booleans, or of 0 and 1, says what applies to a row "
            "(multi_label); else use one column of numbers, booleans or text.",
        )
    known = TYPES.get(base(type_), Type(""))
    task = label.get("task") or next(iter(known.tasks), None)
    if task in known.tasks:
        return task
    if not known.tasks:
        message = 'column "%s" cannot be a label' % name
        hint = "A label is a number, a boolean, text, an enum, a uuid, a date or an interval."
    else:
        fitting = "an array of booleans, or of 0 and 1" if task == MULTI_LABEL else "a column of numbers"
        message, hint = 'label "%s" cannot be used for %s' % (name, task), 'Leave the option "task" out, or use %s.' % fitting
    if known.quantity in ("moment", "time"):
        since, constant = ("", "") if known.quantity == "time" else (" since 2026-01-01", " - 1767225600")
        hint = "An expression makes it a number, of seconds%s: (extract(epoch from %s)%s)." % (since, quoted(name), constant)
    elif known.quantity == "interval":
        hint = "Make it text or a whole number by an expression."
    elif base(type_) not in TYPES:
        hint += " " + usable(name, type_)
    raise errors.WrongColumnType(message, "Its type is %s." % type_, hint)


def counts_seconds(name: str) -> bool:
    """Whether numbers of a type are seconds of dates, times or intervals."""
    return TYPES.get(base(name), Type("")).quantity in ("moment", "time", "interval")


def encodes(label: dict) -> bool:
    """Whether a label may have an encoder for numbers: it holds quantities."""
    return task_of(label) == REGRESSION


def quoted(name: str) -> str:
    return '"%s"' % name.replace('"', '""')


def label_kind(label: dict) -> str:
    """The form in which a label is read: ``number`` (float64), ``array`` of such, ``integer`` (int64) or ``text``."""
    if label["type"].endswith("[]"):
        return "array"
    type_, task = of(label["type"]), task_of(label)
    if task == CLASSIFICATION and type_.spelling == "integer":
        return "integer"  # a double would not tell large integers apart
    return "text" if type_.quantity is None or (task == CLASSIFICATION and type_.quantity != "number") else "number"


def in_order(label: dict, classes: Sequence[Any]) -> List[Any]:
    """Sort classes as the label's type has them: an enum's as declared (``label["values"]``), dates in time, text by code point."""
    if of(label["type"]).spelling == "date":
        return sorted(classes, key=days)
    places = {value: place for place, value in enumerate(label.get("values") or ())}
    return sorted(classes, key=lambda value: (places.get(value, len(places)), value))


def prediction_type(label: str, folded: str) -> str:
    """The SQL type of predicted classes of a label of this type, or of what is predicted to apply; ``folded`` that of folded text."""
    if of(label).spelling == "folded":
        return folded
    return ("text" if of(label).cast == "text" else base(label)) + "[]" * label.endswith("[]")


def usable(name: str, type_: str) -> str:
    """A sentence that names an expression by which a column of another type can be used."""
    schema, _, own = base(type_).rpartition(".")
    made = "%s::text[]" if type_.endswith("[]") else _EXPRESSIONS.get(own, "%s::text")
    return "An expression makes it one: (%s)." % (made % ((quoted(name), schema)[: made.count("%s")]))


# ---- what queries say


def number_sql(value: str, name: str) -> str:
    """SQL for a scalar as double precision.

    Args:
        value: SQL.
        name: The type to read it as.
    """
    type_ = of(name)
    if type_.quantity != "number":
        return "pg_catalog.date_part('epoch', %s::pg_catalog.%s)" % (value, type_.cast)
    return value + ("::pg_catalog.int4" if type_.cast == "bool" else "") + "::pg_catalog.float8"


def text_sql(value: str, name: str) -> str:
    """SQL for a scalar as text, one for each value of its type whatever the session's settings."""
    type_ = of(name)
    if type_.spelling == "date":  # the text of a date goes by DateStyle, its JSON does not
        return "pg_catalog.to_json(%s::pg_catalog.date) #>> '{}'" % value
    if type_.spelling == "integer":
        return value + "::pg_catalog.int8::pg_catalog.text"
    if type_.spelling == "folded":
        return _folded(value + "::pg_catalog.text")
    if base(name) == "enum":
        return "(%s)[1]" % _labels("ARRAY[%s]" % value)
    return value + ("" if type_.cast == "text" else "::pg_catalog." + type_.cast) + "::pg_catalog.text"


def _labels(array: str) -> str:
    """SQL for the texts of enums in an array: a cast would call a function that the type's owner may have made for it, as whoever reads."""
    return "pg_catalog.array_out(%s)::pg_catalog.text::pg_catalog.text[]" % array


def _folded(text: str) -> str:
    """SQL for what the extension citext compares in place of a text: of a whole array too, in whose spelling case means nothing."""
    return 'pg_catalog.lower(%s COLLATE pg_catalog."default")' % text


def texts_sql(value: str, name: str) -> str:
    """SQL for an array as one of texts, each as :func:`text_sql` has it where the session writes dates in ISO style."""
    cast = of(name).cast
    if of(name).spelling == "folded":
        return _folded(value + "::pg_catalog.text[]::pg_catalog.text") + "::pg_catalog.text[]"
    if base(name) == "enum":
        return _labels(value)
    return value + ("" if cast == "text" else "::pg_catalog.%s[]" % cast) + "::pg_catalog.text[]"


def spelled_by_server(name: str) -> bool:
    """Whether a value of a type may be written in several ways, of which categories know one."""
    return of(name).cast in ("date", "uuid") or of(name).spelling == "folded"


def read_by_server(feature: dict) -> Optional[str]:
    """SQL that makes of ``$1``, a text that PostgreSQL takes for the feature's type, what its column holds; None: no text is needed.

    Where the column holds arrays of categories it is about their elements.
    """
    if feature["kind"] == "number" and of(feature["type"]).quantity != "number":
        return number_sql("$1::pg_catalog.text", feature["type"])
    if feature["kind"] in ("text", "tokens") and spelled_by_server(feature["type"]):
        return text_sql("$1::pg_catalog.text", feature["type"])
    return None


# ---- values


def spelled(value: Any) -> str:
    """Return a class as PostgreSQL spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def array_text(value: Any) -> str:
    """Return numbers or booleans, in lists or not, as PostgreSQL reads them in an array."""
    if isinstance(value, list):
        return "{%s}" % ",".join(map(array_text, value))
    return ("t" if value else "f") if isinstance(value, bool) else repr(value)


def number_of(spelled: Optional[str], spelling: str) -> Optional[float]:
    """The number that a column of categories would hold in that place if it were read as ``number``; None for text, NaN for NULL."""
    if spelled is None:
        return None if spelling in ("text", "folded") else math.nan
    if spelling == "date":
        return days(spelled) * 86_400
    return float(whole(spelled)) if spelling in ("integer", "boolean") else None


def whole(spelled: str) -> int:
    """The integer that is spelled so; booleans are 0 and 1."""
    return int(spelled == "true") if spelled in ("false", "true") else int(spelled)


def days(date: str) -> float:
    """Days from 1970-01-01 to a date as PostgreSQL writes it in ISO style, which may be ``infinity`` or ``0044-03-15 BC``.

    Source: days_from_civil, Howard Hinnant, chrono-Compatible Low-Level Date Algorithms, 2013.
    """
    if date.endswith("infinity"):
        return -math.inf if date.startswith("-") else math.inf
    year, month, day = (int(part) for part in date.partition(" ")[0].split("-"))
    year = (1 - year if date.endswith("BC") else year) - (month <= 2)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    era, in_era = divmod(year, 400)
    return float(era * 146_097 + in_era * 365 + in_era // 4 - in_era // 100 + of_year - 719_468)
