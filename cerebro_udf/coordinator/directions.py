"""Which way a metric is better, and whether a run reports it. Pure, no I/O."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence, Tuple

from cerebro_udf import compilation, keras_names, metric_forms
from cerebro_udf.errors import InvalidArgument, nearest

# Better when larger. Everything else that Keras knows is an error, a divergence or a count of mistakes, except
# Mean and Sum, of which nobody can tell.
_LARGER_IS_BETTER = frozenset(
    "AUC Accuracy BinaryAccuracy BinaryIoU CategoricalAccuracy ConcordanceCorrelation CosineSimilarity F1Score "
    "FBetaScore IoU MeanIoU OneHotIoU OneHotMeanIoU PearsonCorrelation Precision PrecisionAtRecall R2Score "
    "Recall RecallAtPrecision SensitivityAtSpecificity SparseCategoricalAccuracy SparseTopKCategoricalAccuracy "
    "SpecificityAtSensitivity TopKCategoricalAccuracy TrueNegatives TruePositives".split()
)
_UNDIRECTED = frozenset(["Mean", "Sum"])
_BY_OUTPUT = {"accuracy": "max", "acc": "max", "crossentropy": "min", "ce": "min"}
# What Keras reports when the metrics are derived from the task.
_DERIVED = {"classification": "accuracy", "multi_label": "accuracy", "regression": "mae"}


def direction(metric: str) -> str:
    """Say whether ``min`` or ``max`` of a metric is better, by Keras' name for it, with or without ``val_``.

    Raises:
        InvalidArgument: the name is not one of Keras' metrics or losses, or tells nothing (``mean``, ``sum``).
    """
    name = metric[len("val_") :] if metric.startswith("val_") else metric
    if name == "loss":
        return "min"
    if name in _BY_OUTPUT:
        return _BY_OUTPUT[name]
    found = _class_of(name, keras_names.METRICS, keras_names.METRIC_ALIASES)
    if found is None:
        # A loss as a metric is minimized, also those whose metric of the same name is not.
        found = _class_of(name, keras_names.LOSSES, keras_names.LOSS_ALIASES)
    if found is None or found in _UNDIRECTED:
        raise InvalidArgument(
            'the direction of metric "%s" is not known' % metric,
            None,
            'Say it: {"metric": "%s", "direction": "max"} (or "min"); where it is monitored, "monitor" for "metric".' % metric,
        )
    return "max" if found in _LARGER_IS_BETTER else "min"


def _class_of(name: str, table: dict, aliases: dict) -> Optional[str]:
    if name in table:
        return name
    return aliases.get(name) or {compilation.snake_case(known): known for known in table}.get(name)


def names(options: Any, tasks: Optional[Sequence[str]]) -> Iterator[Tuple[str, Any]]:
    """Give the names by which a run reports the loss and its metrics, as Keras makes them, with what each is.

    Args:
        options: The run's, see ``options.Options``.
        tasks: Of each output, of ``columns.TASKS``; None while they are not known.
    """
    yield "loss", None
    for number, output in enumerate(options.labels(None)):
        prefix = output["name"] + "_" if options.several else ""
        if prefix:
            yield prefix + "loss", "loss"
        task = output["task"] if tasks is None else tasks[number]
        derived = dict.fromkeys(name for kind, name in _DERIVED.items() if task in (None, kind))
        asked = options.of_output(options.metrics, output["name"])
        known = {}
        for checked in derived if asked is None else asked:
            known[compilation.metric_name(checked)] = checked
        for checked in options.of_output(options.weighted_metrics, output["name"]) or ():  # Keras tells those of one name apart
            own = compilation.metric_name(checked)
            known["weighted_" + own if own in known else own] = checked
        for name, checked in known.items():
            yield prefix + name, checked


def _depends(options: Any, output: dict) -> bool:
    """Whether the task of an output, which is not given, decides what is reported of it."""
    return output["task"] is None and options.of_output(options.metrics, output["name"]) is None


def reported(options: Any, key: str, metric: str, given: Optional[str], tasks: Optional[Sequence[str]]) -> Optional[str]:
    """Check that a run will report the metric that one of its options names, and return its direction; as given where that is seen
    only once the tasks are known.

    Args:
        options: The run's, see ``options.Options``.
        key: Name of the option.
        metric: As given, with or without ``val_``.
        given: Its direction as given, or None.
        tasks: Of each output, None while they are not known.

    Raises:
        InvalidArgument: the metric is not reported, has several values, or its direction is not known.
    """
    held_out = metric.startswith("val_")
    name = metric[len("val_") :] if held_out else metric
    if held_out and options.validation == 0:
        raise InvalidArgument(
            'option "%s" names "%s", and no rows are held out' % (key, metric),
            "Option validation is 0.",
            'Name "%s", or give a fraction for validation.' % name,
        )
    known = dict(names(options, tasks))
    if name not in known:
        if tasks is None and any(_depends(options, output) for output in options.labels(None)):
            return given
        of_rows = sorted(known) if options.validation == 0 else [*sorted(known), *("val_" + name for name in sorted(known))]
        raise InvalidArgument(
            'option "%s" names "%s", which this run does not report' % (key, metric),
            "It reports %s." % ", ".join(of_rows),
            "%s Add others to options.metrics." % nearest(metric, of_rows),
        )
    checked = known[name]
    if isinstance(checked, dict) and metric_forms.several(checked):
        raise InvalidArgument(
            'option "%s" names a metric of several values: "%s"' % (key, metric), None,
            'Name one of a single value, such as {"F1Score": {"average": "macro"}}.',
        )  # fmt: skip
    if given is not None:
        return given
    # A metric of the user's own naming has the direction of its class.
    return direction(checked["class_name"] if isinstance(checked, dict) else checked or name)
