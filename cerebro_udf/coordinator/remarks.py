"""What a run says of its rows before it trains on them: nothing is wrong with it, and yet it may not be what was meant; and what the
server's log says of it when it ends. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, List, Mapping, Optional, Sequence, Set, Tuple

from cerebro_udf import columns, refusals
from cerebro_udf.coordinator.validation import Validation
from cerebro_udf.encoders import ONE_HOT_VALUES
from cerebro_udf.errors import counted

DEVIATIONS = 5  # of a binomial share: rows that are all different exceed them once in a million runs
ROWS_ALIKE = 10  # of each combination of values, on average, from which on rows that are alike are the rule
NAMED_FEATURES = 12  # in a message


def ended(run: str, state: str, seconds: float, trials: Sequence[Any], rank: Optional[Tuple[str, str]], error: Optional[str]) -> str:
    """The line that the server's log has of every call that trains.

    Args:
        state: Of the run, as ``cerebro.run`` shows it.
        seconds: Of this call.
        trials: Each with ``status``, ``visits``, ``metric`` and ``number``; of what was made in this call and before.
        rank: Metric and direction by which they are ranked, None where none began.
        error: Message and SQLSTATE of what ended it.
    """
    told = ["cerebro: run %s: %s after %.1f s" % (json.dumps(run, ensure_ascii=False), state, seconds)]
    counts = Counter(trial.status for trial in trials)
    if counts:
        told.append("%s (%s)" % (counted(len(trials), "trial"), ", ".join("%d %s" % (counts[status], status) for status in sorted(counts))))
        told.append(counted(sum(trial.visits for trial in trials), "visit"))
    ranked = [trial for trial in trials if trial.metric is not None]
    if ranked and rank is not None:
        best = (min if rank[1] == "min" else max)(ranked, key=lambda trial: trial.metric)
        told.append("best %s %.6g, of trial %d" % (rank[0], best.metric, best.number))
    return " ".join("; ".join(told + ([] if error is None else [error])).split("\n"))


def other_versions(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> List[str]:
    """What to say where a run goes on under other versions than it began with, by segment as ``Segments.versions`` gives them."""
    return [
        'segment "%s" runs %s %s, and the run began with %s' % (segment, package, versions[package], before[segment][package])
        for segment, versions in now.items()
        for package in versions
        if versions[package] != before.get(segment, versions).get(package, versions[package])
    ]


def held_out(validation: Validation, encoders: dict, shard_stats: Sequence[dict], key: Optional[str]) -> Optional[str]:
    """What to say where rows that are alike make the rows for validation others than chance would; None: nothing.

    Rows of the same values have one hash, so they are held out together: of few different rows few are drawn.

    Args:
        validation: The option.
        encoders: The run's.
        shard_stats: Of every shard, with those of its columns.
        key: A column that tells the table's rows apart, None where none is known.

    Source: the binomial distribution's deviation, sqrt(n p (1 - p)).
    """
    share = refusals.drawn_share(validation)
    if share is None:
        return None
    rows, held = (sum(stats[count] for stats in shard_stats) for count in ("rows", "validation_rows"))
    most = _combinations(encoders, shard_stats)
    few = most is not None and most * ROWS_ALIKE <= rows
    if not few and abs(held - rows * share) <= DEVIATIONS * math.sqrt(rows * share * (1 - share)):
        return None
    told = "validation: %d of %d rows are held out, %.2g %%, and %.2g %% were asked for" % (held, rows, 100 * held / rows, 100 * share)
    alike = ", and these rows differ in %d ways at most" % most if few else ""
    return "%s; rows of the same values are held out together%s. %s" % (told, alike, refusals.by_group(validation, key or "…"))


def _combinations(encoders: dict, shard_stats: Sequence[dict]) -> Optional[int]:
    """How many different rows there may be to train on, None where that is not known."""
    counts = {feature["name"]: _values(feature, shard_stats) for feature in encoders["features"]}
    counts.update((label["name"], len(label["classes"]) if "classes" in label else None) for label in encoders["labels"])
    known = [count for count in counts.values() if count is not None]
    return math.prod(known) if len(known) == len(counts) else None


def _values(feature: dict, shard_stats: Sequence[dict]) -> Optional[int]:
    """How many different values training rows have in a feature."""
    if feature["kind"] == "text":
        found: Set[str] = set()
        return len(found.union(*(stats["columns"][feature["name"]]["counts"] for stats in shard_stats)))
    return 2 if feature["type"] == "boolean" else None


def taken(features: Sequence[str], answers: Sequence[str]) -> str:
    """What to say of features that the call has not named; ``answers`` are the columns of which labels are made."""
    but = "the label"
    if answers:
        but += " and what it is made of, %s" % _shown(answers)
    return "features: %s (every usable column but %s; list them in the argument features to take others)" % (_shown(features), but)


def _shown(names: Sequence[str]) -> str:
    more = len(names) - NAMED_FEATURES
    return ", ".join(columns.quoted(name) for name in names[:NAMED_FEATURES]) + (" and %d more" % more if more > 0 else "")


def telling_rows_apart(features: Sequence[str], encoders: dict, shard_stats: Sequence[dict], keys: Sequence[str]) -> List[str]:
    """What to say of features, taken since no others were named, from which a model can only learn rows by heart.

    Args:
        features: Their names.
        encoders: The run's.
        shard_stats: Of every shard, with those of its columns.
        keys: Columns that the table holds to be unique.
    """
    rows = sum(stats["train_rows"] for stats in shard_stats)
    each = {f["name"] for f in encoders["features"] if f["kind"] == "text" and ONE_HOT_VALUES < rows == _values(f, shard_stats)}
    return [
        'feature "%s" %s: a model learns nothing from it that holds for other rows; list the features to leave it out'
        % (name, "is a key of the table" if name in keys else "has another value in each row")
        for name in features
        if name in keys or name in each
    ]
