"""In what form each of Keras' metrics wants labels and predictions. Pure: names in, forms out; neither TensorFlow nor Keras.

A label comes as a class number or as a quantity, and a model's output as probabilities, logits or a quantity. What a
metric makes of them is written down here, so that ``F1Score`` or ``AUC`` can be asked for by name alone:

=========  =====================================  ==============================================
form       labels                                 predictions
=========  =====================================  ==============================================
classes    class numbers (n,)                     probabilities (n, classes)
one_hot    one column per class (n, classes)      probabilities (n, classes)
score      1 for the second class (n, 1)          its probability (n, 1)
ids        class numbers (n,)                     numbers of the most probable class (n,)
value      the quantity (n, 1)                    the predicted quantity (n, 1)
places     1 for what applies (n, places)         probability of each (n, places)
=========  =====================================  ==============================================
"""

from __future__ import annotations

from typing import Any, Optional

from cerebro_udf import compilation, keras_names
from cerebro_udf.errors import InvalidArgument

_CLASSES = frozenset("SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy".split())
_ONE_HOT = frozenset(
    "CategoricalAccuracy CategoricalCrossentropy CategoricalHinge F1Score FBetaScore KLDivergence OneHotIoU OneHotMeanIoU "
    "TopKCategoricalAccuracy".split()
)
_IDS = frozenset("Accuracy IoU MeanIoU".split())
# Of two classes only, since with more they do not compute what the name says; and what to take then.
_BINARY = {"BinaryAccuracy": "accuracy", "BinaryCrossentropy": "SparseCategoricalCrossentropy", "BinaryIoU": "MeanIoU"}
# Of two classes the second one's score; of more, each class against the rest.
_SCORE = frozenset(_BINARY) | frozenset(
    "AUC FalseNegatives FalsePositives Hinge Precision PrecisionAtRecall Recall RecallAtPrecision SensitivityAtSpecificity "
    "SpecificityAtSensitivity SquaredHinge TrueNegatives TruePositives".split()
)
# What can be asked of a quantity too.
_ALSO_VALUES = frozenset("BinaryCrossentropy Hinge SquaredHinge KLDivergence".split())
_MANY = frozenset(["F1Score", "FBetaScore"])  # of those that want one column per class, what can be asked of any number that apply
_SUMS = frozenset(["Mean", "Sum"])  # of one argument: Keras would take the prediction for a weight
_OVER_CLASSES = frozenset(["CategoricalCrossentropy", "SparseCategoricalCrossentropy", "KLDivergence"])
_AXES = (-1, 1)
# The argument that, where it is null, has them give a value of each class; and its default.
_EACH_CLASS = {"F1Score": ("average", None), "FBetaScore": ("average", None), "R2Score": ("class_aggregation", "uniform_average")}
_COUNTED = frozenset("IoU MeanIoU OneHotIoU OneHotMeanIoU".split())
_DERIVED = {"accuracy": "Accuracy", "acc": "Accuracy", "crossentropy": "Crossentropy", "ce": "Crossentropy"}


def explicit(metric: Any, single: bool) -> dict:
    """Return a checked metric as a class with its config; ``accuracy`` and ``crossentropy`` by the output's units.

    Args:
        metric: As ``compilation.check_metric`` returned it.
        single: Whether each of the model's output units stands for itself: it has one, or the task is ``multi_label``.
    """
    if not isinstance(metric, str):
        return metric
    kind = "Binary" if single else "SparseCategorical"
    return compilation.check_metric({kind + _DERIVED[metric]: {"name": metric}})


def form(metric: dict, task: str, columns: int) -> str:
    """Return the form that a metric wants.

    Args:
        metric: As :func:`explicit` returned it, and found good by :func:`check`.
        task: One of ``columns.TASKS``.
        columns: Output units; one unit tells two classes apart.
    """
    name, config = metric["class_name"], metric["config"]
    if task != "classification":
        return "value" if task == "regression" else "places"
    if name in _CLASSES:
        return "classes"
    if name in _IDS:
        return "ids"
    of_classes = config.get("class_id") is not None or config.get("top_k") is not None or config.get("multi_label")
    if name in _ONE_HOT or of_classes or columns > 2:
        return "one_hot"
    return "score"


def check(metric: Any, part: dict, label: Optional[str] = None) -> None:
    """Refuse a metric that makes no sense for this label.

    Args:
        metric: As ``compilation.check_metric`` returned it.
        part: One of the ``outputs`` of ``encoders.model_part``: task and number of classes.
        label: The label's name, for the message.

    Raises:
        InvalidArgument: with a metric that fits, in the hint.
    """
    if isinstance(metric, str) and part["task"] != "regression":
        return
    name = explicit(metric, single=True)["class_name"]
    config = {} if isinstance(metric, str) else metric["config"]
    shown, classes = compilation.metric_name(metric), part["classes"]
    of_label = "the label" if label is None else 'label "%s"' % label
    if name in _SUMS:
        raise InvalidArgument(
            'metric "%s" compares nothing' % shown, "It is the %s of its argument." % name.lower(),
            'Take one that compares labels with predictions, such as "%s".' % ("mae" if part["task"] == "regression" else "accuracy"),
        )  # fmt: skip
    if part["task"] == "regression" and name in (_CLASSES | _ONE_HOT | _IDS | _SCORE) - _ALSO_VALUES:
        raise InvalidArgument(
            'metric "%s" judges classes, %s is a quantity' % (shown, of_label), None,
            'Take "mae", "mse" or "R2Score"; or set options.task to "classification" if it holds classes.',
        )  # fmt: skip
    _refuse_places(shown, config, of_label, classes)
    if part["task"] == "multi_label":
        if name in (_CLASSES | _ONE_HOT | _IDS) - _MANY:
            raise InvalidArgument(
                'metric "%s" judges one class of several, of %s any number applies' % (shown, of_label), None,
                'Take "accuracy", "AUC", "Precision", "F1Score" or "BinaryCrossentropy".',
            )  # fmt: skip
        return
    if name in _BINARY and (classes or 0) > 2:
        raise InvalidArgument(
            'metric "%s" is for two classes, %s has %d' % (shown, of_label, classes), None, 'Take "%s".' % _BINARY[name]
        )
    if name in _OVER_CLASSES and config.get("axis", -1) not in _AXES:
        raise InvalidArgument(
            'metric "%s" has another axis than that of the classes' % shown, "It is %s." % config["axis"], "Leave the axis out."
        )
    if name in _COUNTED and classes is not None and config.get("num_classes", classes) < classes:
        raise InvalidArgument(
            'metric "%s" is for %d classes, %s has %d' % (shown, config["num_classes"], of_label, classes), None,
            'Set its num_classes to %d.' % classes,
        )  # fmt: skip


def _refuse_places(shown: str, config: dict, of_label: str, classes: Optional[int]) -> None:
    """Refuse arguments of a metric that name classes, or numbers of them, which a label does not have."""
    for key in ("class_id", "target_class_ids") if classes is not None else ():
        named = config.get(key)
        worst = max(named) if isinstance(named, list) else named
        if worst is not None and worst >= classes:
            raise InvalidArgument(
                '%s of metric "%s" is %d, %s has %d classes' % (key, shown, worst, of_label, classes), "Classes are counted from 0.",
                "Take one from 0 to %d." % (classes - 1),
            )  # fmt: skip
    if classes is not None and (config.get("top_k") or 0) > classes:
        raise InvalidArgument(
            'top_k of metric "%s" is %d, %s has %d classes' % (shown, config["top_k"], of_label, classes), None, "Take a smaller one."
        )
    weights = len(config.get("label_weights") or ())
    if config.get("num_labels") is not None and (config["num_labels"] != classes or not config.get("multi_label")):
        raise InvalidArgument(
            'num_labels of metric "%s" is %d, %s has %s classes' % (shown, config["num_labels"], of_label, classes), None,
            "Leave it out: what a label has is known.",
        )  # fmt: skip
    if weights and weights != classes and (config.get("multi_label") or (classes or 0) > 2):
        raise InvalidArgument(
            'label_weights of metric "%s" are %d, %s has %s classes' % (shown, weights, of_label, classes), None, "Give one for each class."
        )


def several(metric: dict) -> bool:
    """Say whether a metric, as :func:`explicit` returned it, gives several values: one of each class, or of each threshold."""
    name, config = metric["class_name"], metric["config"]
    if name in _EACH_CLASS:
        return config.get(*_EACH_CLASS[name]) is None
    return name != "AUC" and isinstance(config.get("thresholds"), list) and len(config["thresholds"]) > 1


def over_rows(metric: dict, form: str) -> bool:
    """Say whether a metric relates whole columns, which Keras would do within each minibatch and average.

    That is a correlation of single values, or ``axis: 0``.
    """
    if metric["class_name"] not in keras_names.CORRELATIONS:
        return False
    axis = metric["config"].get("axis", -1)
    alone = form in ("value", "places", "score") and metric["class_name"] != "CosineSimilarity"
    return alone or axis not in _AXES
