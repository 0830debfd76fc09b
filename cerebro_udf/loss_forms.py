"""In what form each of Keras' losses wants the labels. Pure: names in, forms out; neither TensorFlow nor Keras.

Labels come as class numbers, as quantities, or as 1 for what applies. Most losses compare label and output value by value: where the
output has a unit for each class they are given one column per class. Some want class numbers, which is all that they make sense of.
"""

from __future__ import annotations

from typing import Optional

from cerebro_udf.errors import InvalidArgument, TrialFailed

_CLASSES = frozenset("CategoricalGeneralizedCrossEntropy Circle SparseCategoricalCrossentropy".split())
_ONE_HOT = frozenset("CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge".split())  # which add up over units
_INSTEAD = {
    "classification": 'Take "sparse_categorical_crossentropy", or "binary_crossentropy" for two classes.',
    "multi_label": 'Take "binary_crossentropy".',
    "regression": 'Take "mse", "mae" or "huber"; or set options.task to "classification" if it holds classes.',
}


def check(loss: Optional[dict], task: str, whole: bool, label: Optional[str] = None) -> None:
    """Refuse a loss that makes no sense for this label.

    Args:
        loss: As ``compilation.check_loss`` returned it, None for the derived one.
        task: One of ``columns.TASKS``.
        whole: Whether an array is the label of one row.
        label: The label's name, for the message.

    Raises:
        InvalidArgument: with a loss that fits, in the hint.
    """
    name = None if loss is None else loss["class_name"]
    of_label = "the label" if label is None else 'label "%s"' % label
    if name == "CTC":
        raise InvalidArgument('loss "CTC" compares sequences of labels, %s is one of a row' % of_label, None, _INSTEAD[task])
    if task == "multi_label" and name in _CLASSES:
        raise InvalidArgument('loss "%s" is for one class of several, of %s any number applies' % (name, of_label), None, _INSTEAD[task])
    if task == "regression" and (name in _CLASSES or (name in _ONE_HOT and not whole)):
        raise InvalidArgument('loss "%s" compares classes, %s is a quantity' % (name, of_label), None, _INSTEAD[task])


def one_hot(loss: dict, part: dict, units: int) -> bool:
    """Say whether a loss is given one column per class, instead of the labels as they are.

    Args:
        part: One of the ``outputs`` of ``encoders.model_part``.
        units: Of the output.

    Raises:
        InvalidArgument: as :func:`check`.
        TrialFailed: it needs a unit for each class, there is one for both.
    """
    check(loss, part["task"], "shape" in part)
    if part["task"] != "classification":
        return False
    if units == 1 and loss["class_name"] in _CLASSES | _ONE_HOT:
        raise TrialFailed(
            'loss "%s" needs an output unit for each class, the model has one for both (take "binary_crossentropy", or 2 units)'
            % loss["class_name"]
        )
    return units > 1 and loss["class_name"] not in _CLASSES
