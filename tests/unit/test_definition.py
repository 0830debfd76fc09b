"""Definitions: what is accepted, what is refused and where, what is bound; the tables against Keras itself."""

import copy
import importlib
import inspect
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_udf import architecture, compilation, definition, keras_names, keras_objects
from cerebro_udf.errors import InvalidArgument

MODEL = {
    "layers": [
        {"Input": {"shape": "$input_shape"}},
        {
            "Dense": {
                "units": "$units",
                "activation": "$activation",
                "kernel_regularizer": {"L2": {"l2": "$l2"}},
            }
        },
        "BatchNormalization",
        {"Dense": {"units": "$classes", "name": "$$out"}},
    ]
}
VALUES = {"input_shape": [4], "units": 8, "activation": "relu", "l2": 0.01, "classes": 3}


def dense(**arguments):
    return {"layers": [{"Dense": dict({"units": 2}, **arguments)}]}


def refused(value, check=definition.check):
    with pytest.raises(InvalidArgument) as info:
        check(value)
    assert info.value.detail and info.value.hint and "None.None" not in info.value.detail
    return info.value


# ---- placeholders and binding


def test_the_short_form_is_kept_as_given():
    before = copy.deepcopy(MODEL)
    assert definition.check(MODEL) == before == MODEL


def test_placeholders_are_those_that_a_search_binds():
    assert definition.placeholders(MODEL) == {"units", "activation", "l2"}


def test_binding_gives_full_keras_json_and_keeps_types():
    bound = definition.bind(MODEL, VALUES)
    assert (bound["module"], bound["class_name"]) == ("keras", "Sequential")
    first, hidden, _, last = bound["config"]["layers"]
    assert first["class_name"] == "InputLayer" and first["config"]["shape"] == [4]
    assert hidden["config"]["units"] == 8 and hidden["module"] == "keras.layers"
    assert hidden["config"]["kernel_regularizer"]["config"] == {"l2": 0.01}
    assert last["config"] == {"units": 3, "name": "$out"}
    assert definition.check(bound) == bound


def test_binding_leaves_the_definition_and_the_values_alone():
    values = dict(VALUES, l2=0.5)
    definition.bind(MODEL, values)["config"]["layers"][0]["config"]["shape"].append(1)
    assert values["input_shape"] == [4] and definition.placeholders(MODEL)


def test_classes_of_a_regression_are_a_missing_value():
    error = pytest.raises(InvalidArgument, definition.bind, MODEL, dict(VALUES, classes=None)).value
    assert "regression" in error.hint


def test_a_placeholder_may_stand_for_an_object():
    bound = definition.bind(dense(kernel_initializer="$start"), {"start": {"RandomNormal": {"stddev": 0.1}}})
    initializer = bound["config"]["layers"][0]["config"]["kernel_initializer"]
    assert (initializer["module"], initializer["class_name"]) == ("keras.initializers", "RandomNormal")


@pytest.mark.parametrize("name", ["units", "classes"])
def test_a_missing_value_names_its_placeholder(name):
    values = {key: value for key, value in VALUES.items() if key != name}
    error = pytest.raises(InvalidArgument, definition.bind, MODEL, values).value
    assert '"$%s"' % name in error.message and "layers[" in error.detail and error.hint


@pytest.mark.parametrize(
    "value",
    ["relu/../x", {"class_name": "__lambda__", "config": {"value": "x"}}, {"Lambda": {}}, "os.system"],
)
def test_a_bound_value_is_checked_like_the_definition(value):
    with pytest.raises(InvalidArgument):
        definition.bind(dense(activation="$a"), {"a": value})


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["class_name", "config", "module", "layers", "Dense", "units", "x"]), x
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_json_comes_it_is_refused_cleanly_or_accepted(value):
    try:
        definition.check(value)
    except InvalidArgument as error:
        assert error.sqlstate == "22023" and error.message


# Every kind of place that the walk knows, in a model that it takes.
EVERYTHING = {
    "module": "keras.src.models.functional",
    "class_name": "Functional",
    "registered_name": "Functional",
    "compile_config": {
        "optimizer": {"module": "keras.optimizers", "class_name": "Adam", "config": {"learning_rate": 0.1}},
        "loss": {"module": "builtins", "class_name": "function", "config": "mean_squared_error"},
        "metrics": ["accuracy"],
    },
    "config": {
        "name": "everything",
        "trainable": True,
        "layers": [
            {
                "module": "keras.layers",
                "class_name": "InputLayer",
                "config": {"batch_shape": [None, 4]},
                "name": "in",
            },
            {
                "module": "keras.layers",
                "class_name": "Dense",
                "name": "dense",
                "config": {
                    "units": 2,
                    "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}},
                    "activation": {"module": "builtins", "class_name": "function", "config": "relu"},
                    "kernel_initializer": {
                        "module": "keras.initializers",
                        "class_name": "Zeros",
                        "config": {},
                    },
                    "kernel_regularizer": {"L2": {"l2": 0.1}},
                    "bias_constraint": "non_neg",
                    "name": "dense",
                },
                "inbound_nodes": [
                    {
                        "args": [
                            {"class_name": "__keras_tensor__", "config": {"keras_history": ["in", 0, 0]}}
                        ],
                        "kwargs": {"mask": None},
                    }
                ],
            },
            {
                "module": "keras.src.ops.numpy",
                "class_name": "GetItem",
                "config": {"name": "get_item"},
                "name": "get_item",
                "registered_name": "GetItem",
                "inbound_nodes": [
                    {
                        "args": [
                            {"class_name": "__slice__", "config": {"start": None, "stop": 1, "step": None}}
                        ]
                    }
                ],
            },
            {
                "module": "keras.layers",
                "class_name": "Bidirectional",
                "name": "both",
                "config": {
                    "layer": {"module": "keras.layers", "class_name": "LSTM", "config": {"units": "$units"}}
                },
            },
            {
                "module": "keras.layers",
                "class_name": "StringLookup",
                "name": "words",
                "config": {"vocabulary": ["a/b"]},
                "build_config": {"input_shape": [None, 4]},
            },
        ],
        "input_layers": ["in", 0, 0],
        "output_layers": ["dense", 0, 0],
    },
}


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, path + (key,))


@given(
    st.sampled_from([path for path in places(EVERYTHING) if path]),
    st.sampled_from(
        [
            None,
            True,
            0,
            -1.5,
            "",
            "x",
            "$x",
            "/etc/passwd",
            [],
            [[]],
            {},
            {"x": []},
            {"class_name": []},
            {"class_name": "x"},
            {"class_name": "function", "config": []},
            {"Lambda": {}},
            ["Lambda"],
        ]
    ),
    st.sampled_from(["replace", "rename"]),
)
@settings(max_examples=300, deadline=None)
def test_a_definition_damaged_anywhere_is_refused_cleanly_or_still_sound(path, value, how):
    definition.bind(EVERYTHING, {"units": 3})
    damaged = copy.deepcopy(EVERYTHING)
    parent = damaged
    for key in path[:-1]:
        parent = parent[key]
    if how == "replace":
        parent[path[-1]] = value
    elif isinstance(parent, dict):
        parent["extra"] = parent.pop(path[-1])
    try:
        bound = definition.bind(definition.check(damaged), {"units": 3, "x": 1})
    except InvalidArgument as error:
        assert error.detail and error.hint
    else:
        text = json.dumps(bound)
        assert '"class_name": "Lambda"' not in text and "compile_config" not in text
        assert "/etc" not in text or "vocabulary" in path  # the words of a vocabulary are data


# ---- what is refused, with the place and the repair

FULL = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}, "registered_name": None}


def sequential(*layers, **extra):
    return dict({"module": "keras", "class_name": "Sequential", "config": {"layers": list(layers)}}, **extra)


@pytest.mark.parametrize(
    "value, at, hint",
    [
        ({"layers": []}, "definition.layers", "list"),
        ({}, "definition.layers", "list"),
        ({"layers": ["InputLayer"]}, "layers", None),
        ({"layer": ["Dense"]}, "definition", "layers"),
        ([], "definition", "layers"),
        ("{}", "definition", "layers"),
        ({"layers": [{"Dens": {}}]}, "layers[0].Dens", "Dense"),
        ({"layers": ["Flatten", {"Dense": {"unit": 3}}]}, "layers[1].Dense", "units"),
        ({"layers": [{"Dense": 3}]}, "layers[0].Dense", None),
        ({"layers": [{"Dense": {}, "Flatten": {}}]}, "layers[0]", "argument"),
        ({"layers": [3]}, "layers[0]", "argument"),
        (dense(activation="rellu"), "Dense.activation", "relu"),
        (dense(activation=3), "Dense.activation", None),
        (dense(kernel_initializer="he_norml"), "kernel_initializer", "he_normal"),
        (dense(kernel_initializer={"HeNormal": {"sed": 3}}), "kernel_initializer.HeNormal", "seed"),
        (dense(kernel_regularizer="l3"), "kernel_regularizer", None),
        (dense(kernel_constraint={"MaxNrm": {}}), "kernel_constraint", "MaxNorm"),
        (dense(dtype="flaot32"), "Dense.dtype", "float32"),
        (dense(name="a/b"), "Dense.name", "Files"),
        (dense(weights=[1]), "Dense", None),
        (dense(quantization_config={"x": 1}), "Dense", None),
        (
            {"layers": [{"Dense": {"units": 1, "name": "a"}}, {"Dense": {"units": 1, "name": "a"}}]},
            "layers[1]",
            None,
        ),
        ({"layers": [{"StringLookup": {"vocabulary": "voc.txt"}}]}, "vocabulary", "Files"),
        ({"layers": [{"TextVectorization": {"idf_weights": "w.npy"}}]}, "idf_weights", "Files"),
        ({"layers": [{"TextVectorization": {"standardize": FULL}}]}, "standardize", None),
        ({"layers": [{"TimeDistributed": {"layer": {"Lambda": {"function": "x"}}}}]}, "layer.Lambda", "code"),
        ({"layers": [{"RNN": {"cell": [{"LSTMCel": {}}]}}]}, "cell[0].LSTMCel", "LSTMCell"),
        ({"layers": [{"Sequential": {"layers": ["Lambda"]}}]}, "Sequential.layers[0]", "code"),
        (sequential(dict(FULL, module="os")), "layers[0]", "keras.layers"),
        (sequential(dict(FULL, module="keras.src.layers.core.lambda_layer")), "layers[0]", "keras.layers"),
        (sequential({"class_name": "Dense", "config": {"units": 2}}), "layers[0]", "Keras 3"),
        (sequential(dict(FULL, registered_name="my>Dense")), "layers[0]", "Keras"),
        (sequential(dict(FULL, function="x")), "layers[0]", None),
        (sequential(dict(FULL, config=None)), "layers[0]", None),
        (sequential(FULL, module="evil"), "definition", "keras"),
        (
            sequential(FULL, compile_config={"loss": {"module": "my", "class_name": "Loss", "config": {}}}),
            "loss",
            None,
        ),
        (sequential(FULL, compile_config={"loss": {"class_name": "__lambda__", "config": {}}}), "loss", None),
        (
            sequential(FULL, build_config={"x": [{"class_name": "function", "config": "f", "module": "os"}]}),
            "x",
            None,
        ),
        (FULL, "definition", "Subclassed"),
    ],
)
def test_refused(value, at, hint):
    error = refused(value)
    assert at in error.detail
    assert hint is None or hint in error.hint


@pytest.mark.parametrize("name", sorted(keras_names.DENIED["layer"]))
def test_layers_that_run_code_or_read_files_are_refused_in_both_forms(name):
    assert "not allowed" in refused({"layers": [{name: {}}]}).message
    assert "not allowed" in refused(sequential(dict(FULL, class_name=name))).message


@pytest.mark.parametrize(
    "name", ["__tensor__", "__numpy__", "__bytes__", "__typespec__", "__lambda__", "function"]
)
@pytest.mark.parametrize("argument", ["units", "activation", "kernel_initializer", "dtype", "name"])
def test_serialized_code_and_values_are_refused_everywhere(name, argument):
    refused(dense(**{argument: {"class_name": name, "config": {"value": "x"}, "module": "builtins"}}))


def test_nesting_is_bounded():
    deep = "Dense"
    for _ in range(500):
        deep = {"TimeDistributed": {"layer": deep}}
    assert "deep" in refused({"layers": [deep]}).message


def test_an_activation_serialized_by_keras_is_taken_by_its_name():
    function = {
        "module": "builtins",
        "class_name": "function",
        "config": "relu",
        "registered_name": "function",
    }
    assert (
        definition.bind(dense(activation=function), {})["config"]["layers"][0]["config"]["activation"]
        == "relu"
    )
    refused(dense(activation=dict(function, config="system", module="os")))


# ---- optimizer, loss, metrics


@pytest.mark.parametrize("value", ["adam", "Adam", {"Adam": {}}, {"class_name": "Adam", "config": {}}])
def test_an_optimizer_in_every_form(value):
    expected = {"module": "keras.optimizers", "class_name": "Adam", "config": {}, "registered_name": None}
    assert compilation.check_optimizer(value) == expected


def test_a_schedule_in_both_forms():
    arguments = {"initial_learning_rate": 0.1, "decay_steps": 10}
    short = compilation.check_optimizer({"SGD": {"learning_rate": {"CosineDecay": arguments}}})
    full = {"class_name": "CosineDecay", "config": arguments, "module": "keras.optimizers.schedules"}
    assert short == compilation.check_optimizer({"SGD": {"learning_rate": full}})
    assert short["config"]["learning_rate"]["module"] == "keras.optimizers.schedules"


@pytest.mark.parametrize(
    "value, hint",
    [
        ("adamm", "adam"),
        ({"Adam": {"beta1": 0.9}}, "beta_1"),
        ({"Adam": {"learning_rate": 0}}, "CosineDecay"),
        ({"Adam": {"learning_rate": True}}, "CosineDecay"),
        ({"Adam": {"learning_rate": {"CosinDecay": {}}}}, "CosineDecay"),
        ({"SGD": {"nesterov": "false"}}, None),
        ({"SGD": {"momentum": "0.9"}}, None),
        ("MultiOptimizer", None),
        (3, None),
        (None, None),
    ],
)
def test_a_wrong_optimizer_is_refused(value, hint):
    error = refused(value, compilation.check_optimizer)
    assert hint is None or hint in error.hint


def test_losses_by_name_alias_and_config():
    assert compilation.check_loss("mse")["class_name"] == "MeanSquaredError"
    assert compilation.check_loss({"Huber": {"delta": 2.0}})["config"] == {"delta": 2.0}
    assert "mse" in refused("msee", compilation.check_loss).hint
    refused({"class_name": "function", "config": "f", "module": "os"}, compilation.check_loss)


def test_metrics_keep_the_name_that_keras_reports():
    assert compilation.check_metric("accuracy") == "accuracy"
    for value, name in [
        ("mae", "mae"),
        ("AUC", "AUC"),
        ({"AUC": {"name": "pr"}}, "pr"),
        ({"RootMeanSquaredError": {}}, "root_mean_squared_error"),
    ]:
        assert compilation.metric_name(compilation.check_metric(value)) == name
    assert "MeanMetricWrapper" in refused("MeanMetricWrapper", compilation.check_metric).message


# ---- against the installed Keras


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    return keras


def exported(module, base):
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and name[0].isupper()
    }


def arguments_of(cls):
    """Argument names of a class and of the bases to which it passes keyword arguments."""
    found = []
    for base in cls.__mro__:
        if base.__name__ in ("Operation", "KerasSaveable"):
            break
        if "__init__" in vars(base):
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
            found += [
                p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD or p.kind == p.KEYWORD_ONLY
            ]
            if not any(p.kind == p.VAR_KEYWORD for p in parameters):
                break
    return set(found)


def test_the_allow_lists_are_those_of_the_installed_keras(keras):
    # Set by the public subclass or by the wrapper itself, never by a definition.
    internal = {"rank", "pool_dimensions", "pool_mode", "cell"} | keras_names.NULL_ARGUMENTS
    for module, base, kind, denied in [
        (keras.layers, keras.layers.Layer, keras_objects.LAYER, keras_names.DENIED["layer"]),
        (keras.initializers, keras.initializers.Initializer, keras_objects.INITIALIZER, keras_names.DENIED["initializer"]),
        (keras.regularizers, keras.regularizers.Regularizer, keras_objects.REGULARIZER, keras_names.DENIED["regularizer"]),
        (keras.constraints, keras.constraints.Constraint, keras_objects.CONSTRAINT, keras_names.DENIED["constraint"]),
        (keras.optimizers, keras.optimizers.Optimizer, keras_objects.OPTIMIZER, keras_names.DENIED["optimizer"]),
        (
            keras.optimizers.schedules,
            keras.optimizers.schedules.LearningRateSchedule,
            keras_objects.SCHEDULE,
            keras_names.DENIED["learning rate schedule"],
        ),
        (keras.losses, keras.losses.Loss, keras_objects.LOSS, keras_names.DENIED["loss"]),
        (keras.metrics, keras.metrics.Metric, keras_objects.METRIC, keras_names.DENIED["metric"]),
    ]:
        classes = exported(module, base)
        assert set(classes) >= set(denied)
        assert {name for name in classes if name not in denied and kind.find(name) is None} == set()
        for name, arguments in kind.table.items():
            real = arguments_of(classes[name])
            assert set(arguments) <= real, name
            assert real - internal <= set(arguments) | set(kind.common), name
        for alias, name in kind.aliases.items():
            assert name in kind.table
            if alias in classes:
                assert classes[alias] is classes[name]


def test_names_are_those_that_keras_knows(keras):
    from keras.src import activations, constraints, initializers, losses, metrics, regularizers

    assert keras_names.ACTIVATIONS == set(activations.ALL_OBJECTS_DICT)
    for module, aliases in [
        (initializers, keras_names.INITIALIZER_ALIASES),
        (regularizers, keras_names.REGULARIZER_ALIASES),
        (constraints, keras_names.CONSTRAINT_ALIASES),
        (metrics, keras_names.METRIC_ALIASES),
    ]:
        for alias, name in aliases.items():
            assert module.ALL_OBJECTS_DICT[alias].__name__ == name
    assert set(keras_names.LOSS_ALIASES) <= set(losses.ALL_OBJECTS_DICT)
    for name, cls in exported(keras.optimizers, keras.optimizers.Optimizer).items():
        if name in keras_names.OPTIMIZERS:
            default = inspect.signature(cls.__init__).parameters["learning_rate"].default
            assert compilation.default_learning_rate({"class_name": name}) == default


def operations_of(module):
    from keras.src.ops.operation import Operation

    defined = vars(importlib.import_module(module)).values()
    return {cls.__name__: cls for cls in defined if inspect.isclass(cls) and issubclass(cls, Operation) and cls.__module__ == module}


def test_every_operation_of_keras_is_allowed_or_refused_with_a_reason(keras):
    for module, allowed in keras_names.OPERATIONS.items():
        denied = keras_names.DENIED_OPERATIONS.get(module, {})
        assert set(operations_of(module)) == set(allowed) | set(denied) and not set(allowed) & set(denied), module


def test_what_keras_writes_for_operations_comes_back_the_same(keras):
    """Those that make one tensor of one tensor, and need no arguments."""
    read = []
    for module, allowed in keras_names.OPERATIONS.items():
        for name in allowed:
            inputs = keras.Input((4, 4))
            try:
                output = operations_of(module)[name]()(inputs)
                model = keras.Model(inputs, output)
            except Exception:  # it needs more than one tensor, or arguments
                continue
            if isinstance(output, keras.KerasTensor):
                round_trip(keras, model)
                read.append(name)
    assert len(read) > 90


DENIED = [(kind, name) for kind, denied in keras_names.DENIED.items() for name in denied]


@pytest.mark.parametrize("kind, name", DENIED)
def test_what_is_refused_says_why_and_what_to_do_instead(kind, name):
    check = {
        "layer": lambda: definition.check({"layers": [name]}),
        "optimizer": lambda: compilation.check_optimizer(name),
        "learning rate schedule": lambda: compilation.check_optimizer({"SGD": {"learning_rate": {name: {}}}}),
        "loss": lambda: compilation.check_loss(name),
        "metric": lambda: compilation.check_metric(name),
    }.get(kind, lambda: definition.check(dense(**{"kernel_" + kind: name})))
    with pytest.raises(InvalidArgument, match="is not allowed") as info:
        check()
    assert info.value.hint == keras_names.DENIED[kind][name]


def test_the_documentation_lists_what_is_refused():
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "definitions.md").read_text("utf-8")
    operations = [name for denied in keras_names.DENIED_OPERATIONS.values() for name in denied]
    for name in [name for _, name in DENIED] + operations:
        assert "`%s`" % name in page, name


SAMPLE_ARGUMENTS = {
    "units": 2,
    "filters": 2,
    "kernel_size": 2,
    "rate": 0.5,
    "stddev": 0.1,
    "factor": 1.0,
    "height": 4,
    "width": 4,
    "axes": 1,
    "n": 2,
    "dims": (2, 1),
    "target_shape": (1, 2),
    "equation": "ab,bc->ac",
    "input_dim": 4,
    "output_dim": 2,
    "num_tokens": 3,
    "num_bins": 3,
    "output_size": 2,
    "output_shape": 2,
    "num_heads": 2,
    "key_dim": 2,
    "head_dim": 2,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "activation": "relu",
    "scale": 2.0,
    "shape": (3,),
    "max_number": 3,
    "pool_size": 2,
    "max_boxes": 3,
    "height_factor": 0.1,
    "width_factor": 0.1,
}


def sample(keras, name):
    """An instance of a layer with the arguments that it needs, or None where Keras lacks a package for it."""
    layers = keras.layers
    cls = getattr(layers, name)
    objects = {
        "layer": lambda: layers.LSTM(2),
        "cell": lambda: layers.LSTMCell(2),
        "cells": lambda: [layers.LSTMCell(2)],
        "layers": lambda: [layers.RandomFlip()],
    }
    extra = {"CategoryEncoding": ["num_tokens"], "InputLayer": ["shape"], "Discretization": ["num_bins"]}
    needed = extra.get(name, []) + [
        parameter.name
        for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]
        if parameter.default is parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    ]
    try:
        return cls(**{key: objects[key]() if key in objects else SAMPLE_ARGUMENTS[key] for key in needed})
    except ImportError:
        return None


def test_what_keras_writes_for_any_allowed_layer_is_accepted(keras):
    for name in keras_names.LAYERS:
        layer = sample(keras, name)
        if layer is not None:
            written = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
            assert strip(architecture.Architecture().layer(written, name)) == strip(written)


def test_the_arguments_common_to_layers_are_taken_by_each_but_those_listed(keras):
    values = {"trainable": False, "dtype": "float32", "name": "x", "autocast": True, "activity_regularizer": None}
    for name in keras_names.LAYERS:
        layer = sample(keras, name)
        for argument in keras_names.COMMON_ARGUMENTS if layer is not None and name != "Hashing" else ():  # it takes integers alone
            config = {**layer.get_config(), argument: values[argument]}
            try:
                type(layer).from_config(config)
            except (TypeError, ValueError):
                assert argument in keras_names.WITHOUT_COMMON.get(name, ()), (name, argument)
            else:
                assert argument not in keras_names.WITHOUT_COMMON.get(name, ()), (name, argument)


def strip(value):
    """A config without what binding drops: shapes of built layers, the compile config, the null arguments."""
    if isinstance(value, dict):
        dropped = {"build_config", "compile_config", "build_input_shape"} | keras_names.NULL_ARGUMENTS
        return {key: strip(item) for key, item in value.items() if key not in dropped}
    return [strip(item) for item in value] if isinstance(value, list) else value


def round_trip(keras, model):
    written = json.loads(model.to_json())
    bound = definition.bind(definition.check(written), {})
    assert strip(bound) == strip(written)
    assert definition.check(json.loads(json.dumps(bound))) == bound
    again = keras.saving.deserialize_keras_object(copy.deepcopy(bound))
    assert strip(json.loads(again.to_json())) == strip(written)


def test_models_written_by_keras_come_back_the_same(keras):
    layers = keras.layers
    image = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.RandomFlip(seed=1),
            layers.Rescaling(1 / 255),
            layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2"),
            layers.SeparableConv2D(4, 3),
            layers.DepthwiseConv2D(3),
            layers.Conv2DTranspose(2, 3),
            layers.BatchNormalization(),
            layers.PReLU(),
            layers.LeakyReLU(),
            layers.MaxPooling2D(),
            layers.SpatialDropout2D(0.1),
            layers.GroupNormalization(2),
            layers.ZeroPadding2D(),
            layers.UpSampling2D(),
            layers.GlobalAveragePooling2D(),
            layers.GaussianNoise(0.1),
            layers.Dense(
                8, kernel_initializer="he_normal", kernel_constraint="max_norm", dtype="mixed_bfloat16"
            ),
            layers.LayerNormalization(),
            layers.RMSNormalization(),
            layers.Dropout(0.5),
            layers.Activation("swish"),
            layers.Dense(2, activation=layers.LeakyReLU()),
            layers.Softmax(),
        ]
    )
    image.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 100)),
        "mse",
        metrics=["accuracy", "auc"],
    )
    round_trip(keras, image)

    text = keras.Sequential(
        [
            keras.Input((10,), dtype="int32"),
            layers.Embedding(50, 8, mask_zero=True),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
            layers.TimeDistributed(layers.Dense(4)),
            layers.GRU(4, return_sequences=True),
            layers.Conv1D(3, 2),
            layers.SimpleRNN(3, return_sequences=True),
            layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]),
            keras.Sequential([layers.Dense(2), layers.Reshape((2, 1))]),
            layers.Permute((2, 1)),
            layers.Flatten(),
            layers.RepeatVector(2),
            layers.EinsumDense("abc,cd->abd", (None, 4)),
            layers.UnitNormalization(),
        ]
    )
    round_trip(keras, text)

    inputs = keras.Input((6,))
    hidden = layers.SpectralNormalization(layers.Dense(4))(inputs)
    added = layers.Add()([hidden, layers.Dense(4)(inputs)])
    joined = layers.Concatenate()([added, layers.Subtract()([hidden, hidden])])
    summed = joined * 2 + keras.ops.relu(joined)[:, :8]
    rows = keras.ops.expand_dims(summed, 1)
    attended = layers.MultiHeadAttention(2, 2)(rows, rows)
    outputs = [layers.Dense(1)(keras.ops.mean(attended, axis=1)), layers.Dot(1)([hidden, hidden])]
    round_trip(keras, keras.Model(inputs, outputs))


def test_optimizers_losses_and_metrics_build_from_their_checked_form(keras):
    build = keras.saving.deserialize_keras_object
    for name in keras_names.OPTIMIZERS:
        assert type(build(compilation.check_optimizer(name))).__name__ == name
    schedule = {"SGD": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 10}}}}
    assert float(build(compilation.check_optimizer(schedule)).learning_rate) == pytest.approx(0.1)
    for name in keras_names.LOSSES:
        assert type(build(compilation.check_loss(name))).__name__ == name
    for name, arguments in keras_names.METRICS.items():
        given_arguments = {
            "num_classes": 2,
            "target_class_ids": [0],
            "recall": 0.5,
            "precision": 0.5,
            "specificity": 0.5,
            "sensitivity": 0.5,
        }
        config = {key: value for key, value in given_arguments.items() if key in arguments}
        metric = build(compilation.check_metric({name: config}))
        assert type(metric).__name__ == name
        assert metric.name == compilation.snake_case(name)


# ---- models in each other's place

SHORT = {"layers": [{"Dense": {"units": "$units", "name": "a"}}, {"Dropout": {"rate": "$rate"}}, {"Dense": {"units": "$classes"}}]}


def node(name, *sources, **layer):
    shape = {"shape": [None, 2], "dtype": "float32"}
    tensors = [{"class_name": "__keras_tensor__", "config": {**shape, "keras_history": [s, 0, 0]}} for s in sources]
    nodes = [{"args": tensors, "kwargs": {}}] if sources else []
    layer = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}, "registered_name": None, **layer}
    return {**layer, "config": {**layer["config"], "name": name}, "name": name, "inbound_nodes": nodes}


GRAPH = {
    "module": "keras.src.models.functional", "class_name": "Functional", "registered_name": "Functional",
    "config": {
        "name": "g", "layers": [
            node("in", class_name="InputLayer", config={"batch_shape": [None, 2]}), node("left", "in"), node("right", "in"),
            node("deep", "left"), node("out", "deep", "right"),
        ],
        "input_layers": ["in", 0, 0], "output_layers": ["out", 0, 0],
    },
}  # fmt: skip


def test_a_model_is_cut_behind_a_layer_with_all_that_leads_to_it():
    cut = definition.until(definition.full(GRAPH), "deep")
    assert [layer["name"] for layer in cut["config"]["layers"]] == ["in", "left", "deep"]
    assert cut["config"]["output_layers"] == ["deep", 0, 0]
    assert [layer["config"].get("name") for layer in definition.until(definition.full(SHORT), "a")["config"]["layers"]] == ["a"]
    with pytest.raises(InvalidArgument, match='no layer "dep"') as refused:
        definition.until(definition.full(GRAPH), "dep")
    assert refused.value.hint == 'Did you mean "deep"?'


def test_freezing_reaches_every_layer_within():
    frozen = definition.with_trainable({**definition.full({"layers": [GRAPH, "Flatten"]})}, False)
    inner = frozen["config"]["layers"][0]["config"]
    assert not inner["trainable"] and not any(layer["config"]["trainable"] for layer in inner["layers"])


def test_freezing_leaves_layers_alone_that_take_no_such_argument(keras):
    model = {"layers": [{"Input": {"shape": [4, 2]}}, {"Conv1D": {"filters": 2, "kernel_size": 2}}, {"SpatialDropout1D": {"rate": 0.1}}]}
    frozen = keras.saving.deserialize_keras_object(definition.bind(definition.with_trainable(definition.full(model), False), {}))
    assert not frozen.trainable_variables


def test_placeholders_take_the_values_that_a_bound_definition_has():
    bound = definition.bind(SHORT, {"units": 7, "rate": 0.5, "classes": 3})
    assert definition.matched(SHORT, bound) == {"units": 7, "rate": 0.5, "classes": 3}
    filled = definition.fill(SHORT, {"units": 7, "rate": 0.5})
    assert definition.placeholders(filled) == frozenset() and definition.bind(filled, {"classes": 3}) == bound


@pytest.mark.parametrize("change, same", [
    ({"units": 7, "name": "other", "trainable": False, "activation": "relu", "kernel_regularizer": "l2"}, True),
    ({"units": 8}, False), ({"units": 7, "use_bias": False}, False),
])  # fmt: skip
def test_only_what_shapes_weights_tells_models_apart(change, same):
    one, other = ({"layers": [{"Dense": config}]} for config in ({"units": 7}, change))
    found = definition.difference(definition.shaping(one), definition.shaping(other))
    assert (found is None) == same and (same or found.startswith("definition.config.layers[0].config."))


@pytest.mark.parametrize("layer", [{"Rescaling": {"scale": 0.5}}, "TextVectorization"])
def test_what_keras_has_a_default_for_may_be_left_out(keras, layer):
    (full, _) = definition.full({"layers": [layer, {"Dense": {"units": 1}}]})["config"]["layers"]
    assert keras.saving.deserialize_keras_object(full, safe_mode=True)
