"""Data that cannot be trained on, refused by what shards report of it: NULLs, shapes, labels, weights."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from cerebro_udf import columns, errors
from cerebro_udf import keras_names as names

CLASSES = 1_000  # of a label, at most
NAMED_CLASSES = 10  # in a message
LARGEST_FLOAT32 = math.ldexp(2 - 2**-23, 127)
EXACT_FLOAT64 = 2**53  # up to which double precision tells all whole numbers apart
STEPS = 1_000  # of double precision, from the least of a feature's numbers to the greatest; fewer would be learnt as stairs
NARROWEST = 1e-37  # from the least number to the greatest: layers of an exported model hold its reciprocal in single precision
LABEL_STEPS = 1_000  # of single precision, from a quantity's least value to its greatest; fewer would be learnt as stairs
_SEQUENCE = "It is a sequence, whose padding a model is told of."
_ALONE = {"sequence": _SEQUENCE, "tokens": _SEQUENCE, "sparse": "Its rows are sparse."}


def refuse_unusable(shard_stats: Sequence[dict], nulls: Any, fillable: Sequence[str] = ()) -> None:
    """Refuse shards whose rows cannot be used under this ``nulls`` option.

    Args:
        fillable: Columns for whose NULLs the call could name what stands for them.

    Raises:
        OutOfRange: a column holds finite numbers that single precision does not hold, whatever ``nulls`` says.
        NullInData: a column holds NULL, NaN or infinite values that are neither kept nor skipped.
        BadData: there is no row at all, or all were skipped; a row has a negative weight, or a label that says of something neither
            that it applies nor that it does not.
    """
    rows = sum(stats["rows"] for stats in shard_stats)
    skipped = sum(stats["skipped"] for stats in shard_stats)
    _refuse_beyond(shard_stats, rows + skipped)
    _refuse_nulls(shard_stats, nulls, rows + skipped, fillable)
    _refuse_negative_weights(shard_stats)
    _refuse_other_than_places(shard_stats, rows)
    if rows == 0 and skipped:
        raise errors.BadData(
            "no rows are left to train on",
            detail="Skipped: %s with NULL, NaN or infinite values." % errors.counted(skipped, "row"),
            hint="Leave out the columns that are mostly NULL, or replace the values in a materialized view.",
        )
    if rows == 0:
        raise errors.BadData("the source has no rows", hint="Load the table first, or name another one.")


def refuse_other_shapes(shard_stats: Sequence[dict], encoders: dict) -> None:
    """Refuse arrays of another shape than those that these encoders were made from.

    Raises:
        RaggedArrays: names the column and both shapes.
    """
    for stats in shard_stats:
        known = [(feature, stats["columns"][feature["name"]]) for feature in encoders["features"]]
        for column, found in [*known, *zip(encoders.get("labels", ()), stats.get("labels", ()))]:
            shape, wanted = found.get("shape"), column.get("shape")
            if shape is not None and wanted and list(shape) != list(wanted):
                raise errors.RaggedArrays(
                    'the arrays of column "%s" have another shape than the run\'s' % column["name"],
                    detail="They have shape %s, the run was trained on %s." % (list(shape), list(wanted)),
                    hint="Name a table whose arrays have the run's shape.",
                )


def _reported(shard_stats: Sequence[dict]) -> Iterator[Tuple[str, List[dict]]]:
    """Give the columns, and what each shard reports of one: of the features, of what weighs and divides rows, of the labels."""
    if shard_stats:
        for name in shard_stats[0]["columns"]:
            yield name, [stats["columns"][name] for stats in shard_stats]
        for parts in zip(*(stats["labels"] for stats in shard_stats)):
            yield parts[0]["name"], list(parts)


def _refuse_nulls(shard_stats: Sequence[dict], nulls: Any, rows: int, fillable: Sequence[str]) -> None:
    bad: Dict[str, List[int]] = {}
    for name, parts in _reported(shard_stats):
        if columns.null_policy(nulls, name) == "skip":
            continue
        broken = [part["broken"] for part in parts if "broken" in part]
        if broken:
            raise _unreadable(name, broken, rows)
        counts = [sum(part[key] for part in parts) for key in ("nulls", "nans", "infinities")]
        if any(counts):  # a column may be both a feature and a label
            bad[name] = list(map(max, counts, bad.get(name, counts)))
    if not bad:
        return
    detail = " ".join(
        'Column "%s": %d NULL, %d NaN, %d infinite of %s.' % (name, *counts, errors.counted(rows, "row"))
        for name, counts in bad.items()
    )
    names = ", ".join('"%s"' % name for name in bad)
    filled = next((name for name in bad if name in fillable), None)
    raise errors.NullInData(
        "%s %s NULL, NaN or infinite values"
        % ("column " + names if len(bad) == 1 else "columns " + names, "holds" if len(bad) == 1 else "hold"),
        detail=detail,
        hint='Set the option "nulls" to "skip" to leave such rows out'
        + ("." if filled is None else ', or say by column what stands for a NULL, such as {"%s": "indicator"}.' % filled),
    )


def _refuse_beyond(shard_stats: Sequence[dict], rows: int) -> None:
    for name, parts in _reported(shard_stats):
        found = [part["beyond"] for part in parts if "beyond" in part]
        if found:
            raise errors.OutOfRange(
                'column "%s" holds numbers that single precision does not hold' % name,
                detail="%d of %s, such as %s; the largest that it holds is 3.4e38."
                % (sum(count for count, _ in found), errors.counted(rows, "row"), _shown(found[0][1])),
                hint="Scale them, or have NULL in the place of what stands for no number: the column may be an expression, such as "
                "x / 1e30, ln(x), or nullif(x, 9e99).",
            )


def _unreadable(name: str, broken: List[dict], rows: int) -> errors.BadData:
    return errors.BadData(
        'column "%s" holds values that are not what its encoder says' % name,
        detail="%d of %s; of the first one: %s."
        % (sum(found["rows"] for found in broken), errors.counted(rows, "row"), broken[0]["reason"]),
        hint="Find it by where %s, or set the option \"nulls\" to \"skip\" to leave such rows out." % broken[0]["where"],
    )


def _refuse_negative_weights(shard_stats: Sequence[dict]) -> None:
    for name, parts in _reported(shard_stats):
        negatives = sum(part.get("negatives", 0) for part in parts)
        if negatives:
            raise errors.BadData(
                'column "%s" holds negative weights' % name,
                detail="%s %s one." % (errors.counted(negatives, "row"), "has" if negatives == 1 else "have"),
                hint="A sample_weight is 0 or more; correct the rows, or name another column.",
            )


def _refuse_other_than_places(shard_stats: Sequence[dict], rows: int) -> None:
    for name, parts in _reported(shard_stats):
        found = [other for part in parts for other in part.get("others", ())]
        if found:
            raise errors.BadData(
                'label "%s" holds numbers other than 0 and 1' % name,
                detail="%d of %s, such as %s; a 1 is in the place of what applies to a row, a 0 elsewhere."
                % (sum(count for count, _ in found), errors.counted(rows, "row"), _shown(found[0][1])),
                hint='Set the option "task" to "regression" to have the numbers themselves predicted.',
            )


def refuse_weightless(shard_stats: Sequence[dict]) -> None:
    for name, parts in _reported(shard_stats):
        if "total" in parts[0] and not any(part["total"] > 0 for part in parts):
            raise errors.BadData(
                'column "%s" weighs every training row 0' % name,
                detail="Nothing could be learnt from such rows.",
                hint="Name a column with positive weights as sample_weight, or leave the option out.",
            )


def refuse_merged(name: str, count: int) -> None:
    """Refuse numbers that would be fed as they are and that single precision does not tell apart.

    Raises:
        OutOfRange.
    """
    if count:
        raise errors.OutOfRange(
            'column "%s" holds numbers that single precision does not tell apart' % name,
            detail="%d of its values beyond 16,777,216 would be rounded to others." % count,
            hint='Set its encoder to "standardize", which rounds differences alone; or, if it tells things apart, to "embedding".',
        )


def refuse_far(name: str, value: float, fed: float) -> None:
    """Refuse what stands for a NULL where single precision would make it infinite.

    Args:
        value: What stands for a NULL in the column.
        fed: What the model would see of it.

    Raises:
        OutOfRange.
    """
    if not abs(fed) <= LARGEST_FLOAT32:
        raise errors.OutOfRange(
            'what stands for a NULL in column "%s" is too far from its other values' % name,
            detail="It is %.6g; a model would see %.6g of it, which single precision does not hold." % (value, fed),
            hint='Name a value near the others in the option "nulls", or "mean".',
        )


def refuse_collapsed(name: str, low: np.ndarray, high: np.ndarray) -> None:
    """Refuse numbers that double precision, in which they are encoded, does not tell apart.

    Args:
        low, high: The least and the greatest, as they were rounded; of each element of the last axis.

    Raises:
        OutOfRange.
    """
    size = np.maximum(np.abs(low), np.abs(high))
    steps = (high - low) / np.spacing(size)
    found = np.flatnonzero((steps < STEPS) & ((steps > 0) | (size >= EXACT_FLOAT64)))
    if len(found):
        raise errors.OutOfRange(
            'column "%s" holds numbers that double precision does not tell apart' % name,
            detail="From its least to its greatest, %s to %s, there are %d steps." % (low[found[0]], high[found[0]], steps[found[0]]),
            hint="Take the difference to a constant: the column may be an expression, such as id - 1700000000000000000.",
        )


def refuse_narrow(name: str, low: np.ndarray, high: np.ndarray) -> None:
    """Refuse numbers that differ, but by too little to be scaled; see :func:`refuse_collapsed`."""
    found = np.flatnonzero((high > low) & (high - low < NARROWEST))
    if len(found):
        raise errors.OutOfRange(
            'column "%s" holds numbers that lie too close to one another to be scaled' % name,
            detail="From its least to its greatest, %s to %s, it is less than %g." % (low[found[0]], high[found[0]], NARROWEST),
            hint="Multiply them by a constant: the column may be an expression, such as x * 1e100.",
        )


def refuse_no_elements(name: str, shape: Sequence[int]) -> None:
    """Refuse arrays without elements."""
    if 0 in shape:
        raise errors.BadData('the arrays of column "%s" are empty' % name, hint="Leave the column out.")


def refuse_no_tokens(name: str, vocabulary: Sequence[str]) -> None:
    """Refuse sequences of tokens of which nothing would be known."""
    if not vocabulary:
        raise errors.BadData(
            'column "%s" has no token in any training row' % name,
            detail="Its rows are empty, or nothing is left of them.",
            hint="Leave the column out, or change how its encoder cuts texts.",
        )


def refuse_deep(features: Sequence[dict]) -> None:
    """Refuse arrays of several dimensions among features that are laid side by side."""
    for feature in features:
        if len(feature["shape"]) >= 2:
            raise errors.NotSupported(
                'array column "%s" of %d dimensions beside other features is not supported' % (feature["name"], len(feature["shape"])),
                hint='Use it as the only feature, or give it an input of its own by the option "inputs"; '
                'columns of one shape may be stacked there: {"images": {"columns": ["red", "green"], "stack": -1}}.',
            )


def refuse_company(features: Sequence[dict]) -> None:
    """Refuse among features that are laid side by side or stacked what layers of its own go before."""
    for feature in features:
        if feature["kind"] in _ALONE or "augment" in feature:
            raise errors.NotSupported(
                'column "%s" beside other features is not supported' % feature["name"],
                detail="Its rows are varied." if "augment" in feature else _ALONE[feature["kind"]],
                hint='Use it as the only feature, or give it an input of its own by the option "inputs".',
            )


def refuse_mixed(features: Sequence[dict]) -> None:
    """Refuse codes, which are integers, beside other features."""
    codes = [feature["name"] for feature in features if feature["encoder"] == "index"]
    if codes and len(codes) < len(features):
        raise errors.NotSupported(
            'column "%s" of codes beside other features is not supported' % codes[0],
            detail="Its encoder is index, which makes integers.",
            hint='Give such columns an input of their own by the option "inputs".',
        )


def refuse_flat(feature: dict) -> None:
    """Refuse to vary rows as pictures that are none."""
    pictures = [layer["class_name"] for layer in feature["augment"] if layer["class_name"] in names.VARYING_PICTURES]
    if pictures and len(feature["shape"]) != 3:
        raise errors.InvalidArgument(
            'layer "%s" cannot vary column "%s"' % (pictures[0], feature["name"]),
            detail="Its rows have shape %s; a picture has three dimensions: height, width and channels." % list(feature["shape"]),
            hint="Store arrays of such a shape, for grey pictures too, or take GaussianNoise.",
        )


def refuse_unlike(name: Optional[str], shapes: Sequence[Tuple[str, Optional[List[int]]]]) -> None:
    """Refuse to stack what has no one shape.

    Args:
        name: Of the input.
        shapes: Of a row of each feature, by name; None of a category.
    """
    for feature, shape in shapes:
        if shape is None:
            raise errors.WrongColumnType(
                'column "%s" cannot be stacked in input "%s"' % (feature, name),
                detail="It is a category; stacked are numbers and arrays of one shape.",
                hint='Give it an input of its own, or the encoder "standardize" if it holds numbers.',
            )
        if shape != shapes[0][1]:
            raise errors.RaggedArrays(
                'the columns that are stacked in input "%s" differ in shape' % name,
                detail='A row of "%s" has shape %s, one of "%s" %s.' % (*shapes[0], feature, shape),
                hint="Give columns of another shape an input of their own.",
            )


def drawn_share(validation: Union[float, dict]) -> Optional[float]:
    """The share of rows that are held out by a hash of their own values; None where something else decides, or nothing is held out."""
    given = validation if isinstance(validation, dict) else {"fraction": validation}
    if set(given) == {"folds", "fold"}:
        return 1 / given["folds"]
    return given["fraction"] or None if set(given) == {"fraction"} else None


def by_group(validation: Union[float, dict], key: str) -> str:
    """A sentence that says how rows that are alike are divided all the same; ``key`` is a column that tells rows apart."""
    given = validation if isinstance(validation, dict) else {"fraction": validation}
    shown = json.dumps({"validation": {"group": key, **given}}, ensure_ascii=False)
    return "A column that tells rows apart divides them one by one: %s." % shown


def refuse_empty_part(rows: int, train: int, validation: Union[float, dict]) -> None:
    """Refuse a run without training rows, or without those for validation that it asks for.

    Args:
        rows, train: Counts of rows.
        validation: The option.
    """
    drawn = drawn_share(validation)
    alike = "" if drawn is None else " Rows of the same values fall on one side together. " + by_group(validation, "…")
    if train == 0:
        raise errors.BadData(
            "no training rows are left",
            detail="%s read; all fell into the validation part." % _were(rows),
            hint='Change the option "validation" so that it holds fewer rows out.' + alike,
        )
    if validation and train == rows:
        shown = "fraction is %g" % validation if isinstance(validation, float) else "option is %s" % json.dumps(validation)
        raise errors.BadData(
            "no row fell into the validation part",
            detail="%s read; the validation %s." % (_were(rows), shown),
            hint='Change the option "validation" so that it holds more rows out, or set it to 0.' + alike,
        )


def _were(rows: int) -> str:
    return "%s %s" % (errors.counted(rows, "row"), "was" if rows == 1 else "were")


def untrained_classes(label: dict) -> Optional[str]:
    """What to say of classes that no training row has, None where every class has one.

    Args:
        label: Of the encoders.
    """
    missing = [value for value, count in zip(label.get("classes", ()), label.get("counts", ())) if not count]
    if not missing:
        return None
    named = ", ".join(map(_shown, missing[:NAMED_CLASSES])) + ", …" * (len(missing) > NAMED_CLASSES)
    return 'no training row has the value%s %s of label "%s": models learn nothing of it' % ("s" * (len(missing) > 1), named, label["name"])


def refuse_constant_label(name: str, value: Any) -> None:
    raise errors.BadData(
        'label "%s" has a single value' % name,
        detail="Every row holds %s." % _shown(value),
        hint="Training needs at least two different labels.",
    )


def refuse_flattened_label(label: dict, low: float, high: float) -> None:
    """Refuse quantities that differ by less than single precision shows, in which labels are held against what a model says.

    Raises:
        OutOfRange.
    """
    step = math.ldexp(1.0, math.frexp(max(abs(low), abs(high)))[1] - 24)
    steps = (high - low) / step
    if steps < LABEL_STEPS and columns.base(label["type"]) != "real":
        raise errors.OutOfRange(
            'label "%s" holds numbers that single precision does not tell apart' % label["name"],
            detail="From its least to its greatest, %.17g to %.17g, there are %d steps." % (low, high, steps),
            hint="Take the difference to a constant: the label may be an expression, such as price - 1000000.",
        )


def unseen_class(label: str, value: Any) -> errors.BadData:
    return errors.BadData(
        'label "%s" has a value that the run has never seen' % label,
        detail="The value is %s." % _shown(value),
        hint="Leave such rows out, or train a new run on them.",
    )


def too_many_classes(label: dict, figure: str) -> errors.WrongColumnType:
    return errors.WrongColumnType(
        'label "%s" has too many values for classification' % label["name"],
        detail="It has %s different values; %d are allowed." % (figure, CLASSES),
        hint='Set the option "task" to "regression" if it is a quantity, or use another label.',
    )


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return '"%s"' % value
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return columns.spelled(value)
