"""How much a trained model relies on each feature: its loss of quality when the feature's values are permuted.

Source: permutation importance, Breiman 2001, section 10; as model reliance, Fisher, Rudin and Dominici 2019. Rows never leave
their segment, so values are permuted among the rows of a shard.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

from cerebro_udf import compilation, metric_forms
from cerebro_udf import encoders as encoding
from cerebro_udf.coordinator import directions
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator.evaluate import chosen, judging
from cerebro_udf.errors import InvalidArgument

Line = Tuple[str, str, Optional[float], Optional[float]]


def importance(plpy, gd: dict, run: str, source: str, options: dict) -> List[Line]:
    """Return (feature, metric, importance, deviation), the most important first.

    Importance is how much worse the metric becomes, on average over the repeats; deviation is their standard deviation, None
    of a single one. Both are None where the metric is NaN.
    """
    parsed = run_options.parse_evaluate(options, metric=None, repeats=5, seed=0, output=None)
    wanted = parsed["metric"], parsed["output"]
    lines: List[Line] = []
    with judging(plpy, gd, run, source, parsed, lambda record: _metric(record, *wanted)[2]) as judge:
        name, sign, _ = _metric(judge.record, *wanted)
        (before,) = judge.metrics()
        if isinstance(before[name], list):
            raise InvalidArgument(
                'metric "%s" has several values' % name, None, 'Take one of a single value, such as {"F1Score": {"average": "macro"}}.'
            )
        found: Dict[str, List[dict]] = {feature["name"]: [] for feature in judge.encoders["features"]}
        for feature, *place in encoding.places(judge.encoders):
            found[feature["name"]].append(dict(zip(("tensor", "axis", "start", "stop"), place)))
        for number, (feature, places) in enumerate(found.items()):
            after = judge.metrics(feature={"number": number, "places": places}, repeats=parsed["repeats"], seed=parsed["seed"])
            lines.append((feature, name, *_mean(before[name], [metrics[name] for metrics in after], sign)))
    return sorted(lines, key=lambda line: (line[2] is None, -(line[2] or 0.0)))


def _metric(record: dict, wanted: Any, output: Optional[str]) -> Tuple[str, int, Any]:
    """Name and sign (1: less is better) of the metric to judge by, and the program's metrics; None: those of training."""
    names = [label["output"] for label in record["encoders"]["labels"]]
    if output is not None and wanted in (None, "loss"):
        raise InvalidArgument('option "output" says of which output a metric is', "No metric is named but the loss.", "Leave it out.")
    if wanted is None:
        name, direction = record["rank_metric"], record["rank_direction"]
        name, metrics = name[len("val_") :] if name.startswith("val_") else name, None
    elif wanted == "loss":
        name, direction, metrics = "loss", "min", [] if names == [None] else {name: [] for name in names}
    else:
        number, name, metrics = chosen(record, output), compilation.metric_name(wanted), [wanted]
        if names != [None]:
            name, metrics = "%s_%s" % (output, name), {other: [wanted] if n == number else [] for n, other in enumerate(names)}
        direction = directions.direction(metric_forms.explicit(wanted, single=True)["class_name"])
    return name, 1 if direction == "min" else -1, metrics


def _mean(before: Optional[float], after: List[Optional[float]], sign: int) -> Tuple[Optional[float], Optional[float]]:
    if before is None or None in after:
        return None, None
    worse = [sign * (value - before) for value in after]
    mean = sum(worse) / len(worse)
    if len(worse) == 1:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in worse) / (len(worse) - 1))
