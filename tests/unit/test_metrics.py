"""Every metric that a run may have: exact over shards, and given what it wants. Real Keras."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from cerebro_udf import compilation, definition, errors, keras_names, metric_forms
from cerebro_udf.segment import metrics, program, state

ROWS = 200
CUTS = [0, 7, 71, 71, ROWS]  # of four shards, one without rows
ARGUMENTS = {
    "IoU": {"num_classes": 3, "target_class_ids": [1]},
    "MeanIoU": {"num_classes": 3},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "TopKCategoricalAccuracy": {"k": 2},
}
# (task, classes, output units, whether they are logits)
MODELS = {
    "one probability": ("classification", 2, 1, False),
    "one logit": ("classification", 2, 1, True),
    "two probabilities": ("classification", 2, 2, False),
    "three logits": ("classification", 3, 3, True),
    "a quantity": ("regression", None, 1, False),
    "what applies": ("multi_label", 3, 3, False),
    "logits of what applies": ("multi_label", 3, 3, True),
}


def part_of(model):
    task, classes, _, _ = MODELS[model]
    return {
        "inputs": [{"name": None, "numbers": [2], "codes": []}],
        "outputs": [{"name": None, "task": task, "classes": classes}],
    }


def data(model, seed=0):
    """Labels and outputs that go together somewhat; equal for equal probabilities, whatever the model."""
    task, classes, units, logits = MODELS[model]
    random = np.random.default_rng(seed)
    if task == "regression":
        y = random.normal(5, 2, ROWS)
        return y.astype(np.float32), np.abs(y + random.normal(0, 1, ROWS)).astype(np.float32).reshape(-1, 1)
    if task == "multi_label":
        z = random.normal(size=(ROWS, classes)).astype(np.float32)
        y = (z + random.normal(size=z.shape) > 0).astype(np.float32)
        return y, z if logits else tf.sigmoid(z).numpy()
    y = random.integers(0, classes, ROWS).astype(np.int32)
    z = (2.0 * np.eye(max(classes, 2))[y] + random.normal(size=(ROWS, max(classes, 2)))).astype(np.float32)
    if units == 1:
        z = z[:, 1:] - z[:, :1]
        return y, z if logits else tf.sigmoid(z).numpy()
    return y, z if logits else tf.nn.softmax(z).numpy()


def made(metric, model):
    _, _, units, logits = MODELS[model]
    return metrics.suited(compilation.check_metric(metric), part_of(model)["outputs"][0], units, logits)


def value(metric, model, cuts=(0, ROWS), batch=ROWS):
    """Merge the accumulators of shards that were read in minibatches."""
    y, outputs = data(model)
    judge, blobs = made(metric, model), []
    judge.update_state(y[:2], outputs[:2])  # some make their variables now
    for start, stop in zip(cuts, cuts[1:]):
        judge.reset_state()
        for at in range(start, stop, batch):
            judge.update_state(y[at : min(at + batch, stop)], outputs[at : min(at + batch, stop)])
        blobs.append(state.pack({str(i): v.numpy() for i, v in enumerate(judge.variables)}))
    arrays, _ = state.unpack(state.add(blobs))
    for i, variable in enumerate(judge.variables):
        variable.assign(arrays[str(i)])
    return np.asarray(judge.result(), np.float64)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", sorted(set(keras_names.METRICS) | keras_names.METRICS_BY_OUTPUT))
def test_metric_over_shards_is_that_of_all_rows_at_once_or_is_refused_with_another(name, model):
    metric = {name: ARGUMENTS[name]} if name in ARGUMENTS else name
    try:
        whole = value(metric, model)
    except errors.InvalidArgument as error:
        assert error.hint and name not in error.hint
        return
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(value(metric, model, CUTS, batch=32), whole, rtol=2e-6)


def of_two(metric):
    return [float(np.ravel(value(metric, model))[-1]) for model in ("one probability", "one logit", "two probabilities")]


@pytest.mark.parametrize(
    "metric",
    ["AUC", "Precision", "F1Score", "CategoricalAccuracy", "SparseCategoricalAccuracy", "accuracy", "crossentropy", "KLDivergence",
     "BinaryIoU", "mse", {"Recall": {"class_id": 1}}, {"AUC": {"from_logits": True}}, {"MeanIoU": {"num_classes": 2}}, "Hinge"],
    ids=str,
)  # fmt: skip
def test_metric_of_two_classes_does_not_depend_on_how_the_model_ends(metric):
    first, *others = of_two(metric)
    np.testing.assert_allclose(others, first, rtol=1e-5)


def test_metrics_are_what_keras_gives_for_labels_prepared_by_hand():
    y, logits = data("three logits")
    p, one_hot = tf.nn.softmax(logits).numpy(), np.eye(3)[y]
    for metric, plain in (
        ("F1Score", keras.metrics.F1Score()),
        ({"AUC": {"multi_label": True}}, keras.metrics.AUC(multi_label=True)),
        ({"Precision": {"class_id": 2}}, keras.metrics.Precision(class_id=2)),
        ("CategoricalCrossentropy", keras.metrics.CategoricalCrossentropy()),
        ("mse", keras.metrics.MeanSquaredError()),
    ):
        np.testing.assert_allclose(value(metric, "three logits"), plain(one_hot, p), rtol=1e-4)
    assert value("Accuracy", "three logits") == np.mean(p.argmax(1) == y).astype(np.float32)


def test_metrics_of_what_applies_are_keras_own_of_each_place():
    y, p = data("what applies")
    for metric, plain in (
        ("accuracy", keras.metrics.BinaryAccuracy()),
        ("F1Score", keras.metrics.F1Score(threshold=0.5)),
        ({"FBetaScore": {"threshold": 0.3, "beta": 2.0}}, keras.metrics.FBetaScore(beta=2.0, threshold=0.3)),
        ({"AUC": {"multi_label": True}}, keras.metrics.AUC(multi_label=True)),
        ({"Recall": {"class_id": 1}}, keras.metrics.Recall(class_id=1)),
        ("crossentropy", keras.metrics.BinaryCrossentropy()),
    ):
        for model in ("what applies", "logits of what applies"):
            np.testing.assert_allclose(value(metric, model), plain(y, p), rtol=1e-5)


@pytest.mark.parametrize("shape", [[3], [3, 2]])
@pytest.mark.parametrize("task", ["regression", "multi_label"])
def test_metrics_take_arrays_of_any_shape_and_weights_of_their_rows(task, shape):
    """Each is computed, or refused before a model is built; weights of 1 change nothing."""
    part = {"name": None, "task": task, "classes": math.prod(shape) if task == "multi_label" else None, "shape": shape}
    random = np.random.default_rng(4)
    y, p = random.random((2, 8, *shape)).astype(np.float32)
    y = (y > 0.5).astype(np.float32) if task == "multi_label" else y
    found = {}
    for name in keras_names.METRICS:
        try:
            judges = [metrics.suited(compilation.check_metric({name: ARGUMENTS.get(name, {})}), part, shape[-1], False) for _ in range(2)]
        except errors.InvalidArgument:
            continue
        for judge, weight in zip(judges, (None, np.ones(8, np.float32))):
            tf.function(lambda a, b, judge=judge, weight=weight: judge.update_state(a, b, weight))(y, p)
        found[name], weighted = (np.asarray(judge.result()) for judge in judges)
        np.testing.assert_allclose(weighted, found[name], rtol=1e-6, err_msg=name)
    # Number by number over the rows, whatever the shape.
    flat, said = (x.reshape(8, -1).astype(float) for x in (y, p))
    assert found["R2Score"] == pytest.approx((1 - ((flat - said) ** 2).sum(axis=0) / ((flat - flat.mean(axis=0)) ** 2).sum(axis=0)).mean())
    assert found["PearsonCorrelation"] == pytest.approx(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(flat.T, said.T)]))


def test_threshold_of_zero_is_one_for_logits():
    cut = {"BinaryAccuracy": {"threshold": 0.0}}
    assert value(cut, "one logit") == value("BinaryAccuracy", "one logit") == value("BinaryAccuracy", "one probability")


def test_correlations_are_those_of_whole_columns():
    y, outputs = (array.astype(np.float64).ravel() for array in data("a quantity"))
    pearson = np.corrcoef(y, outputs)[0, 1]
    assert value("PearsonCorrelation", "a quantity", CUTS, 32) == pytest.approx(pearson, abs=1e-12)
    cosine = y @ outputs / np.sqrt(y @ y * (outputs @ outputs))
    assert value({"CosineSimilarity": {"axis": 0}}, "a quantity", CUTS, 32) == pytest.approx(cosine, abs=1e-12)
    concordance = 2 * np.cov(y, outputs, bias=True)[0, 1] / (y.var() + outputs.var() + (y.mean() - outputs.mean()) ** 2)
    assert value("ConcordanceCorrelation", "a quantity", CUTS, 32) == pytest.approx(concordance, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "model", "hint"),
    [
        ("AUC", "a quantity", "R2Score"),
        ("BinaryAccuracy", "three logits", '"accuracy"'),
        ("Mean", "a quantity", '"mae"'),
        ({"MeanIoU": {"num_classes": 2}}, "three logits", "num_classes to 3"),
        ({"CategoricalCrossentropy": {"axis": 0}}, "three logits", "axis"),
        ({"Precision": {"class_id": 7}}, "three logits", "from 0 to 2"),
        ({"Recall": {"class_id": 3}}, "what applies", "from 0 to 2"),
        ({"IoU": {"num_classes": 5, "target_class_ids": [0, 4]}}, "three logits", "from 0 to 2"),
        ({"Recall": {"top_k": 4}}, "three logits", "smaller"),
        ({"AUC": {"multi_label": True, "num_labels": 4}}, "three logits", "Leave it out"),
        ({"AUC": {"num_labels": 3}}, "three logits", "Leave it out"),
        ({"AUC": {"multi_label": True, "label_weights": [1, 2]}}, "what applies", "for each class"),
    ],
)
def test_metric_that_makes_no_sense_is_refused_with_one_that_does(metric, model, hint):
    with pytest.raises(errors.InvalidArgument) as caught:
        made(metric, model)
    assert hint in caught.value.hint


def test_program_holds_metrics_of_every_form_in_its_loop():
    names = ["accuracy", "F1Score", "AUC", {"MeanIoU": {"num_classes": 2}}, {"R2Score": {"num_regressors": 2}}, "PearsonCorrelation"]
    spec = {
        "definition": definition.bind({"layers": [{"Dense": {"units": 2}}]}, {}), "encoders": part_of("two probabilities"),
        "optimizer": compilation.check_optimizer("sgd"), "loss": None, "metrics": [compilation.check_metric(name) for name in names],
    }  # fmt: skip
    built = program.Program(spec)
    random = np.random.default_rng(1)
    arrays = {"numbers": random.normal(size=(50, 2)).astype(np.float32), "label": random.integers(0, 2, 50).astype(np.int32)}
    built.train(arrays, np.arange(50, dtype=np.int32), 16)
    built.reset_metrics()
    built.validate(arrays, 16)
    parts = []
    for rows in (slice(0, 20), slice(20, 50)):
        built.reset_metrics()
        built.validate({name: array[rows] for name, array in arrays.items()}, 16)
        parts.append(built.accumulators())
    found = built.results(state.add(parts))
    built.reset_metrics()
    built.validate(arrays, 50)
    whole = built.results()
    assert list(found) == ["loss", *(compilation.metric_name(compilation.check_metric(name)) for name in names)]
    for name, got in found.items():
        np.testing.assert_allclose(got, whole[name], rtol=1e-5, err_msg=name)


OTHERS = [
    {"F1Score": {"average": "macro"}}, {"FBetaScore": {"average": "micro"}}, {"R2Score": {"class_aggregation": None}},
    {"R2Score": {"class_aggregation": "variance_weighted_average"}},
    *({name: {"thresholds": cuts}} for name in ("Precision", "TruePositives") for cuts in (0.5, [0.5], [0.3, 0.5])),
    {"AUC": {"thresholds": [0.3, 0.5]}},
]  # fmt: skip


@pytest.mark.parametrize("metric", [*({name: ARGUMENTS.get(name, {})} for name in keras_names.METRICS), *OTHERS], ids=str)
def test_it_is_known_beforehand_which_metrics_give_several_values(metric):
    checked = compilation.check_metric(metric)
    for model in MODELS:
        try:
            found = value(metric, model)
        except (errors.InvalidArgument, ValueError):
            continue  # not of this label
        assert (np.ndim(found) > 0) == metric_forms.several(checked)
