"""Arguments of layers and their kin, losses and metrics: what is accepted Keras makes, the rest is refused before anything starts."""

import contextlib
import inspect
import json
import os

import pytest

from cerebro_udf import compilation, definition, keras_arguments, keras_objects
from cerebro_udf.errors import InvalidArgument
from cerebro_udf.forms import Wrong
from tests.unit.test_definition import SAMPLE_ARGUMENTS, sample

KINDS = {
    "layers": keras_objects.LAYER, "initializers": keras_objects.INITIALIZER, "regularizers": keras_objects.REGULARIZER,
    "constraints": keras_objects.CONSTRAINT, "losses": keras_objects.LOSS, "metrics": keras_objects.METRIC,
}  # fmt: skip
VALUES = [
    0, -1, 1, 2, 3, 1.5, 0.5, -0.5, 2.0, 10**6, "8", "same", "valid", [], [1], [1, 2], [2, 1], [2, 2, 2], [0, 0], [-1, 1], [0.2, 0.4],
    [[1, 1], [1, 1]], {}, None, True,
]  # fmt: skip
NEEDED = {"num_classes": 3, "target_class_ids": [0], "recall": 0.5, "precision": 0.5, "specificity": 0.5, "sensitivity": 0.5}
# What is right or wrong by other arguments, such as groups by filters.
TOGETHER = frozenset(
    "groups output_padding num_bins sparse num_key_value_heads shape batch_shape pad_to_max_tokens fft_length sequence_length frame_step "
    "dims num_labels num_classes".split()
)


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    return keras


def without_default(keras, module, name):
    parameters = list(inspect.signature(getattr(getattr(keras, module), name).__init__).parameters.values())[1:]
    return [p.name for p in parameters if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]


def samples(keras):
    """(module, kind, class, an object's config) of everything that a definition or an option may name."""
    for module, kind in KINDS.items():
        for name in kind.table:
            made = None
            with contextlib.suppress(ImportError):  # of scipy, which spectrograms alone want, and the project does not bring
                if module == "layers":
                    made = sample(keras, name)
                else:
                    made = getattr(getattr(keras, module), name)(**{key: NEEDED[key] for key in without_default(keras, module, name)})
            if made is not None:
                yield module, kind, name, json.loads(json.dumps(made.get_config()))


def accepted(form, key):
    """The first and the last of the values that a form takes, as Keras is given them; of true and false there is nothing to try."""
    taken = []
    for value in VALUES if form is not None and key not in TOGETHER else ():
        with contextlib.suppress(Wrong):
            taken.append(form.read(key, value))
    taken = [value for value in taken if not isinstance(value, bool)]
    return taken[:1] + taken[1:][-1:]


def test_what_is_accepted_keras_makes(keras):
    for module, kind, name, config in samples(keras):
        for key in kind.table[name]:
            for value in accepted(keras_arguments.form(kind.noun, name, key), key):
                given = {"module": "keras.%s" % module, "class_name": name, "config": {**config, key: value}, "registered_name": None}
                try:
                    keras.saving.deserialize_keras_object(given)
                except Exception as error:
                    pytest.fail("%s of %s: %r: %s" % (key, name, value, str(error)[-200:]))


def test_what_an_object_of_keras_holds_is_accepted(keras):
    for _, kind, name, config in samples(keras):
        for key, value in config.items():
            form = keras_arguments.form(kind.noun, name, key)
            if form is not None and key in kind.table[name]:
                assert form.fits(value), (name, key, value)


def test_what_has_no_default_is_known(keras):
    for module, kind in KINDS.items():
        for name in kind.table:
            for key in without_default(keras, module, name):
                given = {k: NEEDED.get(k, SAMPLE_ARGUMENTS.get(k, 1)) for k in without_default(keras, module, name) if k != key}
                with pytest.raises(Wrong, match="%s needs %s" % (name, key)):
                    keras_arguments.refuse_missing(name, given)


@pytest.mark.parametrize("layer, told", [
    *[({"Dense": {"units": units}}, "units of Dense must be a whole number from 1") for units in (0, -1, "8", 1.5, None, True, 10**10)],
    ("Dense", "Dense needs units"),
    ({"Conv2D": {"filters": 3}}, "Conv2D needs kernel_size"),
    ({"Conv2D": {"filters": 3, "kernel_size": [1, 2, 3]}}, "kernel_size of Conv2D must be .*a list of 2 values"),
    ({"Discretization": {}}, "Discretization needs num_bins or bin_boundaries"),
    ({"Dropout": {"rate": 2}}, "rate of Dropout must be a number from 0 to 1$"),
    ({"GaussianDropout": {"rate": 1}}, "rate of GaussianDropout must be a number from 0 to less than 1$"),
    ({"LSTM": {"units": 2, "dropout": 1.5}}, "dropout of LSTM must be"),
    ({"LSTM": {"units": 2, "stateful": True}}, "stateful of LSTM must be false"),
    ({"LSTM": {"units": 2, "return_sequences": "false"}}, "return_sequences of LSTM must be true or false"),
    ({"RandomRotation": {"factor": 2}}, "factor of RandomRotation must be a number from -1 to 1, or a list of 2 values"),
    ({"RandomZoom": {"height_factor": -1}}, "height_factor of RandomZoom must be a number above -1 to 1"),
    ({"RandomFlip": {"mode": "sideways"}}, 'mode of RandomFlip must be "horizontal" or "vertical"'),
    ({"Input": {"batch_shape": [None, 0]}}, "batch_shape of InputLayer must be a list of null and the lengths of a row's axes"),
    ({"Dense": {"units": 2, "kernel_regularizer": {"L2": {"l2": -1}}}}, "l2 of L2 must be a number, 0 or more"),
    ({"Dense": {"units": 2, "kernel_initializer": {"RandomNormal": {"stddev": "x"}}}}, "stddev of RandomNormal must be"),
    ({"Dense": {"units": 2, "kernel_constraint": {"MinMaxNorm": {"rate": 3}}}}, "rate of MinMaxNorm must be"),
    ({"Bidirectional": {"layer": {"GRU": {"units": 0}}}}, "units of GRU must be"),
])  # fmt: skip
def test_layer_with_a_wrong_argument_is_refused_by_name(layer, told):
    with pytest.raises(InvalidArgument, match=told) as refused:
        definition.check({"layers": [layer, {"Dense": {"units": 1}}]})
    assert "At definition.layers[0]" in refused.value.detail and refused.value.hint


def test_value_of_a_placeholder_is_held_to_the_same_form():
    model = definition.check({"layers": [{"Conv2D": {"filters": "$n", "kernel_size": ["$k", 3]}}, {"Dense": {"units": "$n"}}]})
    assert definition.bind(model, {"n": 2.0, "k": 3})["config"]["layers"][0]["config"] == {"filters": 2, "kernel_size": [3, 3]}
    for values, told in (({"n": 0, "k": 3}, "filters of Conv2D"), ({"n": 2, "k": 0}, "kernel_size of Conv2D")):
        with pytest.raises(InvalidArgument, match=told):
            definition.bind(model, values)


@pytest.mark.parametrize("what, value, told", [
    ("loss", {"Huber": {"delta": "x"}}, "loss: delta of Huber must be a number above 0"),
    ("loss", {"BinaryCrossentropy": {"label_smoothing": 2}}, "label_smoothing of BinaryCrossentropy"),
    ("loss", {"BinaryCrossentropy": {"from_logits": "no"}}, "must be true or false"),
    ("loss", {"MeanSquaredError": {"reduction": "average"}}, "reduction of MeanSquaredError"),
    ("metric", {"AUC": {"num_thresholds": 1}}, "num_thresholds of AUC must be a whole number from 2"),
    ("metric", {"AUC": {"curve": "roc"}}, 'curve of AUC must be "ROC"'),
    ("metric", {"Precision": {"class_id": -1}}, "class_id of Precision"),
    ("metric", {"Precision": {"thresholds": [0.5, 2]}}, "thresholds of Precision"),
    ("metric", "PrecisionAtRecall", "PrecisionAtRecall needs recall"),
    ("optimizer", 3, "optimizer: not an optimizer"),
    ("optimizer", {"Adam": {"gradient_accumulation_steps": 1}}, "a whole number from 2 to 2147483647"),
], ids=str)  # fmt: skip
def test_loss_metric_or_optimizer_with_a_wrong_argument_is_refused_by_name(what, value, told):
    with pytest.raises(InvalidArgument, match=told) as refused:
        getattr(compilation, "check_" + what)(value)
    assert refused.value.hint


def test_number_of_rows_for_which_a_model_was_built_is_left_out():
    for given, kept in (
        ({"batch_shape": [16, 4]}, {"batch_shape": [None, 4]}),
        ({"shape": [4], "batch_size": 16}, {"shape": [4], "batch_size": None}),
    ):
        first = definition.full({"layers": [{"Input": given}, {"Dense": {"units": 1}}]})["config"]["layers"][0]
        assert first["config"] == kept


def test_numbers_come_as_keras_wants_them(keras):
    beta = compilation.check_metric({"FBetaScore": {"beta": 2, "threshold": 1}})
    assert keras.saving.deserialize_keras_object(beta).beta == 2.0
