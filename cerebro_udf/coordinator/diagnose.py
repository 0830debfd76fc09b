"""Where a trained model is wrong, over all rows of a table: by class, or by quantiles of its residuals.

Rows stay where they are: segments send counts, and some scores to count at.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from cerebro_udf import columns
from cerebro_udf import encoders as encoding
from cerebro_udf.coordinator import curves
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator.evaluate import Judge, chosen, judging
from cerebro_udf.errors import InvalidArgument

EDGES = 2**16  # scores of one shard, for all classes together; each class has MOST at most
MOST, LEAST = 1024, 32

Cell = Tuple[str, Optional[str], int]


def confusion_matrix(plpy, gd: dict, run: str, source: str, options: dict) -> List[Cell]:
    """How many rows of each class were taken for which: (actual, predicted, rows), pairs that occur.

    Classes are spelled and ordered as ``predict_class`` has them; predicted is None where the model gives NaN.
    """
    parsed = run_options.parse_evaluate(options, output=None)
    with judging(plpy, gd, run, source, parsed, lambda record: _classes_only(record, parsed["output"])) as judge:
        counts = _confusion(judge, parsed["output"])
        classes = _spelled(judge, parsed["output"])
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or 0))
    return [(classes[a], None if p is None else classes[p], rows) for (a, p), rows in ordered]


def class_report(plpy, gd: dict, run: str, source: str, options: dict) -> List[tuple]:
    """Each class against the rest: (class, precision, recall, f1, rows, auc, threshold, threshold_f1).

    Precision, recall and F1 are those of the most probable class. The AUC is exact as long as a segment holds no more than
    ``most`` rows of the class and of the others, else to within 1 / (2 · most), and threshold the best of so many.
    """
    parsed = run_options.parse_evaluate(options, output=None)
    with judging(plpy, gd, run, source, parsed, lambda record: _classes_only(record, parsed["output"])) as judge:
        counts = _confusion(judge, parsed["output"])
        classes = _spelled(judge, parsed["output"])
        most = max(LEAST, min(MOST, EDGES // len(classes)))
        edges = curves.edges([report["scores"] for report, _ in judge.ask("scores", most=most)])
        parts = [report["counts"] for report, _ in judge.ask("count", edges=edges)]
    lines = []
    for number, name in enumerate(classes):
        hits = counts.get((number, number), 0)
        actual = sum(rows for (a, _), rows in counts.items() if a == number)
        predicted = sum(rows for (_, p), rows in counts.items() if p == number)
        own, others = ([sum(column) for column in zip(*(part[number][side] for part in parts))] for side in (0, 1))
        found = curves.curve(edges[number], own, others)
        lines.append(
            (name, curves.share(hits, predicted), curves.share(hits, actual), curves.f1(hits, predicted, actual), actual,
             found.auc, found.threshold, found.f1)
        )  # fmt: skip
    return lines


def residuals(plpy, gd: dict, run: str, source: str, options: dict) -> List[Tuple[float, Optional[float], Optional[float]]]:
    """Quantiles of actual minus predicted, and of its absolute value: (quantile, residual, absolute).

    They are residuals of rows, in single precision, as ``percentile_disc`` would pick them. Rows of which the model gives NaN
    are left out.
    """
    parsed = run_options.parse_evaluate(options, quantiles=[0, 0.05, 0.25, 0.5, 0.75, 0.95, 1], output=None)
    with judging(plpy, gd, run, source, parsed, lambda record: _values_only(record, parsed["output"])) as judge:
        answers = [report for report, _ in judge.ask("predict", output=chosen(judge.record, parsed["output"]))]
        rows = sum(answer["rows"] - answer["nan"] for answer in answers)
        wanted = sorted(set(parsed["quantiles"]))
        if not rows:
            return [(quantile, None, None) for quantile in wanted]
        scale = _label(judge.record, parsed["output"]).get("scale", [1.0])[0]
        plain, absolute = _select(judge, [curves.rank(quantile, rows) for quantile in wanted], scale)
    return list(zip(wanted, plain, absolute))


def _select(judge: Judge, ranks: List[int], scale: float) -> List[List[float]]:
    """Find the residuals of these ranks, and the absolute ones, by counting the upper halves of their bits, then the lower.

    ``scale`` is what one unit of the encoded label is in its own.
    """
    first = [report["counts"] for report, _ in judge.ask("ranks", halves=[None, None], scale=scale)]
    uppers = [curves.find(curves.total([shard[kind] for shard in first]), ranks) for kind in (0, 1)]
    halves = [sorted({upper for upper, _ in found}) for found in uppers]
    second = [report["counts"] for report, _ in judge.ask("ranks", halves=halves, scale=scale)]
    selected = []
    for kind, found in enumerate(uppers):
        lowers = {upper: curves.total([shard[kind][str(upper)] for shard in second]) for upper in halves[kind]}
        keys = [upper << 16 | curves.find(lowers[upper], [rank])[0][0] for upper, rank in found]
        selected.append([curves.value_of(key) for key in keys])
    return selected


def _confusion(judge: Judge, output: Optional[str]) -> Dict[Tuple[int, Optional[int]], int]:
    """Rows by numbers of their actual and their predicted class."""
    counts: Dict[Tuple[int, Optional[int]], int] = {}
    for report, _ in judge.ask("predict", output=chosen(judge.record, output)):
        for actual, predicted, rows in report["confusion"]:
            counts[actual, predicted] = counts.get((actual, predicted), 0) + rows
    return counts


def _label(record: dict, output: Optional[str]) -> dict:
    return record["encoders"]["labels"][chosen(record, output)]


def _classes_only(record: dict, output: Optional[str]) -> None:
    task = _label(record, output)["task"]
    if task == "regression":
        raise InvalidArgument('run "%s" predicts a number' % record["name"], None, "Call cerebro.residuals.")
    if task == "multi_label":
        hint = "Call cerebro.evaluate, with metrics such as AUC and F1Score."
        raise InvalidArgument('run "%s" predicts any number of things that apply to a row' % record["name"], None, hint)


def _values_only(record: dict, output: Optional[str]) -> None:
    if _label(record, output)["task"] != "regression":
        raise InvalidArgument(
            'run "%s" classifies' % record["name"], None, "Call cerebro.confusion_matrix, cerebro.class_report or cerebro.evaluate."
        )
    if "shape" in _label(record, output):
        raise InvalidArgument('run "%s" predicts an array' % record["name"], None, "Call cerebro.evaluate.")


def _spelled(judge: Judge, output: Optional[str]) -> List[str]:
    return [columns.spelled(value) for value in encoding.classes(_label(judge.record, output))]
