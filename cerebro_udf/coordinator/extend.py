"""What a run may go on with: more epochs, more trials, a wider space; and what changes no result. Pure."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict

from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator import search as searching
from cerebro_udf.coordinator import space
from cerebro_udf.errors import InvalidArgument

_MAY_GROW = ("trials", "space")  # of a search


def extended(before: run_options.Options, given: dict, definition: dict, asked: int) -> run_options.Options:
    """The options with which a run goes on.

    Args:
        before: Those that it has.
        given: What the user wrote: any of ``options.CHANGEABLE``.
        definition: Of the model.
        asked: How many trials it has.

    Raises:
        InvalidArgument: an option that may not change, or only grow.
    """
    read = run_options.parse_changes(given)
    if read.get("epochs", before.epochs) < before.epochs:
        raise _smaller("epochs", read["epochs"], before.epochs, "What was trained stays.")
    if "search" in read:
        if before.search is None:
            raise InvalidArgument(
                "the run has no search", "It has one trial, which varies nothing.", "Call cerebro.fit for a run that searches."
            )
        read["search"] = _wider(before.search, read["search"], asked)
    after = dataclasses.replace(before, **read)
    if after.search != before.search:
        searching.check(after.search, definition, after)
    return after


def _wider(before: dict, given: dict, asked: int) -> dict:
    for name in given:
        if name not in _MAY_GROW:
            raise InvalidArgument(
                "options.search.%s of a run does not change" % name, "It is %s." % json.dumps(before.get(name)),
                "Of a search, %s may grow; for another one call cerebro.fit." % " and ".join(_MAY_GROW),
            )  # fmt: skip
    least = max(asked, searching.whole_number(before, "trials") or 0)
    if (searching.whole_number(given, "trials") or least) < least:
        raise _smaller("search.trials", given["trials"], least, "Trials that there are stay.")
    if "space" in given:
        _refuse_narrower(before["space"], given["space"])
    return {**before, **given}


def _refuse_narrower(before: Dict[str, Any], given: Any) -> None:
    then, now = space.parse(before).axes, space.parse(given).axes
    for name in sorted({*then, *now}):
        if name not in now or name not in then or not _holds(now[name], then[name]):
            raise InvalidArgument(
                'axis "%s" of the search does not hold what it held' % name,
                "It was %s." % json.dumps(before.get(name)) if name in before else "The run's trials have no value of it.",
                "A space grows by values, and by ends of ranges; the same axes stay, under the same conditions.",
            )


def _holds(now: space.Axis, then: space.Axis) -> bool:
    """Whether an axis still has every value that it had, and is drawn in the same trials."""
    conditions = [{"when": axis.when, "else": None if axis.otherwise is space.ABSENT else [axis.otherwise]} for axis in (now, then)]
    if space.key(conditions[0]) != space.key(conditions[1]):
        return False
    if isinstance(then, space.Choices):
        return all(now.holds(value) for value in then.values)
    alike = isinstance(now, space.Range) and (now.log, now.whole, now.step) == (then.log, then.whole, then.step)
    return alike and all(now.holds(value) for value in then.ends())


def _smaller(name: str, given: Any, before: Any, why: str) -> InvalidArgument:
    return InvalidArgument(
        "option %s of a run does not shrink" % name, "It is %s, and was %s. %s" % (json.dumps(given), before, why),
        "Give at least %s." % before,
    )  # fmt: skip
