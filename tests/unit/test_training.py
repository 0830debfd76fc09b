"""What changes how a program trains, against plain Keras: weights of rows, moving averages, clipping, precision."""

import json

import keras
import numpy as np
import pytest

from cerebro_udf import compilation, definition, errors
from cerebro_udf.segment import network, predict, program, seeds, serving, state
from tests.unit.test_program import data, part, spec

N, BATCH = 75, 10  # the last minibatch is short
LAYERS = [
    {"Dense": {"units": 5, "activation": "relu"}},
    "BatchNormalization",
    {"Dropout": {"rate": 0.2}},
    {"Dense": {"units": 3, "activation": "softmax"}},
]


def plain(optimizer, policy=None, weighted_metrics=None):
    """The same model by hand."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy or "float32")
    with network.seeded(11):
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(5, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(3, activation="softmax", dtype="float32"),
            ]
        )
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(), metrics=metrics, weighted_metrics=weighted_metrics, jit_compile=False
    )
    keras.config.set_dtype_policy(before)
    model.optimizer.build(model.trainable_variables)
    return model


def trained(built, arrays, epochs=2):
    built.set_state(built.initial_state(11))
    built.reset_metrics()
    for epoch in range(1, epochs + 1):
        built.train(arrays, seeds.permutation(5, epoch, 0, N), BATCH)
        if epoch < epochs:
            built.set_state(built.get_state())  # a hop
    return built.get_state()


def by_hand(model, arrays, epochs=2):
    given = [arrays[name] for name in ("numbers", "label", "weight") if name in arrays]
    first = [variable.numpy() for variable in model.variables + model.optimizer.variables]
    for rows in (1, 2):  # opens its graph for minibatches of any size
        model.train_on_batch(*(array[:rows] for array in given))
    for variable, value in zip(model.variables + model.optimizer.variables, first):
        variable.assign(value)
    for epoch in range(1, epochs + 1):
        order = seeds.permutation(5, epoch, 0, N)
        for start in range(0, N, BATCH):
            model.train_on_batch(*(array[order[start : start + BATCH]] for array in given))
    return model


def differing(blob, model):
    ours = state.unpack(blob)[0]
    groups = {"model": model.variables, "optimizer": model.optimizer.variables}
    theirs = {"%s/%d" % (group, i): v.numpy() for group, them in groups.items() for i, v in enumerate(them)}
    assert [name for name in ours if not name.startswith("metric/")] == list(theirs)
    return [name for name in theirs if ours[name].tobytes() != theirs[name].tobytes()]


OPTIMIZERS = [
    {"Adam": {"clipnorm": 0.05, "weight_decay": 0.01, "gradient_accumulation_steps": 3}},
    {"SGD": {"clipvalue": 0.001, "momentum": 0.9, "loss_scale_factor": 8, "use_ema": True, "ema_overwrite_frequency": 4}},
    {"AdamW": {"global_clipnorm": 0.1, "learning_rate": {"CosineDecay": {
        "initial_learning_rate": 0, "decay_steps": 10, "warmup_target": 0.01, "warmup_steps": 5}}}},
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_options_of_optimizers_are_keras_bit_for_bit_and_hop(optimizer):
    arrays = data(part(), N)
    built = program.Program(spec(LAYERS, optimizer=optimizer))
    blob = trained(built, arrays)
    model = by_hand(plain(network._optimizer(compilation.check_optimizer(optimizer))), arrays)
    assert differing(blob, model) == []
    assert built.learning_rate() == float(model.optimizer.learning_rate)


@pytest.mark.parametrize("policy, short", [("mixed_bfloat16", True), ("mixed_float16", False)])
def test_mixed_precision_is_keras_bit_for_bit_with_a_last_layer_in_float32(policy, short):
    arrays = data(part(), N)
    one = {**spec(LAYERS), "precision": policy}
    if not short:  # as to_json() of a model that was made without a thought for dtypes
        written = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(5, activation="relu"), keras.layers.BatchNormalization(),
             keras.layers.Dropout(0.2), keras.layers.Dense(3, activation="softmax")]
        )  # fmt: skip
        one["definition"] = definition.bind(definition.check(json.loads(written.to_json())), {})
    built = program.Program(one)
    blob = trained(built, arrays)
    model = by_hand(plain(keras.optimizers.Adam(), policy), arrays)
    assert [layer.compute_dtype for layer in built.model.layers] == [policy[len("mixed_") :]] * 3 + ["float32"]
    assert {variable.dtype for variable in built.model.trainable_variables} == {"float32"}
    assert differing(blob, model) == []
    scaled = isinstance(built.model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    assert built.learning_rate() == pytest.approx(0.001)
    built.set_learning_rate(0.5)
    assert built.learning_rate() == 0.5
    assert keras.config.dtype_policy().name == "float32"


def test_the_loss_scale_of_float16_hops():
    """A loss of infinite gradients halves the scale; the next visit begins with the half."""
    built = program.Program({**spec(LAYERS), "precision": "mixed_float16"})
    arrays = data(part(), N)
    built.set_state(built.initial_state(1))
    weights = [v.numpy() for v in built.model.trainable_variables]
    built.train({**arrays, "weight": np.full(N, np.inf, np.float32)}, np.arange(N, dtype=np.int32), N)
    assert [v.numpy().tobytes() for v in built.model.trainable_variables] == [w.tobytes() for w in weights]
    blob = built.get_state()
    built.set_state(built.initial_state(2))
    assert float(built.model.optimizer.dynamic_scale) == 2.0**15
    built.set_state(blob)
    assert float(built.model.optimizer.dynamic_scale) == 2.0**14


def test_precision_belongs_to_the_signature_and_an_own_dtype_stays():
    one = spec([{"Dense": {"units": 4, "dtype": "float32"}}, {"Dense": {"units": 4}}, {"Dense": {"units": 3, "dtype": "bfloat16"}}])
    mixed = {**one, "precision": "mixed_bfloat16"}
    assert program.signature(one) != program.signature(mixed)
    built = program.Program(mixed)
    assert [layer.compute_dtype for layer in built.model.layers] == ["float32", "bfloat16", "bfloat16"]
    with pytest.raises(errors.InvalidArgument, match="unknown precision"):
        program.Program({**one, "precision": "float8"})


@pytest.mark.parametrize(
    "last", ["Flatten", {"Activation": {"activation": "softmax"}}, {"Sequential": {"layers": [{"Dense": {"units": 3}}]}}], ids=str
)
def test_the_last_layer_is_found_where_it_is_nested_or_followed(last):
    built = program.Program({**spec([{"Dense": {"units": 3}}, last]), "precision": "mixed_bfloat16"})
    leaves = [inner for layer in built.model.layers for inner in getattr(layer, "layers", [layer])]
    kinds = ["float32", "float32"] if last == "Flatten" else ["bfloat16", "float32"]
    assert [layer.compute_dtype for layer in leaves if not isinstance(layer, keras.layers.InputLayer)] == kinds


def test_predictions_are_float32_in_every_precision():
    encoders = {
        "features": [{"name": "x", "kind": "array", "encoder": "none", "shape": [6], "type": "real[]"}],
        "labels": [{"name": "y", "output": None, "type": "integer", "task": "classification", "classes": [0, 1, 2]}],
        "inputs": [{"name": None, "features": ["x"], "stack": None}],
        "model": part(),
    }
    for layers in ([{"Dense": {"units": 3}}], [{"Dense": {"units": 3, "dtype": "bfloat16"}}]):
        one = {**spec(layers), "precision": "mixed_bfloat16"}
        blob = program.Program(one).initial_state(3)
        ((answers, probabilities),) = predict.Predictor(encoders, one, blob).rows([[0.1] * 6])
        assert probabilities.dtype == np.float32 and abs(probabilities.sum() - 1) < 1e-6 and len(answers) == 1


def test_moving_averages_serve_where_the_optimizer_keeps_them():
    """As the callback SwapEMAWeights has it at the end of an epoch; the state goes on with the raw weights."""
    optimizer = {"SGD": {"learning_rate": 0.5, "use_ema": True, "ema_momentum": 0.9}}
    arrays, held = data(part(), N), data(part(), 40, seed=1)
    built = program.Program({**spec(LAYERS, optimizer=optimizer), "precision": "mixed_float16"})
    blob = trained(built, arrays)
    model = by_hand(plain(network._optimizer(compilation.check_optimizer(optimizer)), "mixed_float16"), arrays)
    raw = model.evaluate(held["numbers"], held["label"], verbose=0, return_dict=True, batch_size=BATCH)
    model.optimizer.finalize_variable_values(model.trainable_variables)  # what fit does when it ends
    averaged = model.evaluate(held["numbers"], held["label"], verbose=0, return_dict=True, batch_size=BATCH)
    assert averaged["loss"] != raw["loss"]
    built.serve(blob)
    built.reset_metrics()
    built.validate(held, BATCH)
    assert built.results() == averaged
    assert [v.numpy().tobytes() for v in built.model.variables] == [v.numpy().tobytes() for v in model.variables]
    bare = network.bare(built.spec, 3)
    serving.assign(bare, blob)
    assert [v.numpy().tobytes() for v in bare.variables] == [v.numpy().tobytes() for v in model.variables]
    built.set_state(blob)
    assert built.get_state() == blob
    with pytest.raises(errors.StateMismatch):
        built.serve(program.Program(spec(LAYERS[3:])).get_state())


def test_weighted_rows_are_those_of_keras():
    arrays = {**data(part(), N), "weight": np.random.default_rng(3).uniform(0, 3, N).astype(np.float32)}
    built = program.Program({**spec(LAYERS), "weighted_metrics": [compilation.check_metric("sparse_categorical_accuracy")]})
    blob = trained(built, arrays)
    weighted = [keras.metrics.SparseCategoricalAccuracy(name="sparse_categorical_accuracy")]
    model = by_hand(plain(keras.optimizers.Adam(), weighted_metrics=weighted), arrays)
    assert differing(blob, model) == []
    built.serve(blob)
    built.reset_metrics()
    built.validate(arrays, BATCH)
    ours = built.results()
    theirs = model.evaluate(
        arrays["numbers"], arrays["label"], sample_weight=arrays["weight"], batch_size=BATCH, verbose=0, return_dict=True
    )
    assert ours == theirs and len({ours["accuracy"], ours["sparse_categorical_accuracy"]}) == 2


def test_a_program_serves_weighted_and_unweighted_rows_with_one_state():
    arrays = data(part(), N)
    built = program.Program(spec(LAYERS))
    unweighted = trained(built, arrays)
    assert trained(built, {**arrays, "weight": np.ones(N, np.float32)}) == unweighted
    assert trained(built, {**arrays, "weight": np.full(N, 2, np.float32)}) != unweighted
    assert trained(built, arrays) == unweighted
    assert set(built._loops) == {("train", 2), ("train", 3)}


def test_weights_of_classes_are_those_of_fit():
    arrays, weights = data(part(), N), {0: 2.0, 1: 0.25}
    table = np.array([weights.get(i, 1.0) for i in range(3)], np.float32)
    built = program.Program(spec(LAYERS))
    order = seeds.permutation(5, 1, 0, N)
    blob = trained(built, {**arrays, "weight": table[arrays["label"]]}, epochs=1)
    model = plain(keras.optimizers.Adam())
    history = model.fit(
        arrays["numbers"][order], arrays["label"][order], batch_size=BATCH, shuffle=False, class_weight=weights, verbose=0
    ).history
    assert differing(blob, model) == []
    assert built.results() == {name: values[0] for name, values in history.items()}
