"""Programs: what they build, and that their loop is Keras' own, bit for bit. Real Keras, in this process."""

import json
import random
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

from cerebro_udf import compilation, definition, errors, keras_names
from cerebro_udf import encoders as encoding
from cerebro_udf.segment import memory, network, program, seeds, state

N = 203  # the last minibatch of 32 is short


def part(numbers=(6,), codes=(), task="classification", classes=3):
    return {
        "inputs": [{"name": None, "numbers": list(numbers) if numbers else None, "codes": list(codes)}],
        "outputs": [{"name": None, "task": task, "classes": classes}],
    }


def spec(layers, encoders=None, optimizer="adam", loss=None, metrics=None):
    encoders = encoders or part()
    bound = definition.bind({"layers": layers}, encoding.from_data({"model": encoders}))
    return {
        "definition": bound,
        "optimizer": compilation.check_optimizer(optimizer),
        "encoders": encoders,
        "loss": loss and compilation.check_loss(loss),
        "metrics": metrics and [compilation.check_metric(metric) for metric in metrics],
    }


def data(encoders, n=N, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for number, given in enumerate(encoders["inputs"]):
        if given["numbers"]:
            arrays[encoding.tensor_name("numbers", number)] = rng.normal(size=(n, *given["numbers"])).astype(np.float32)
        if given["codes"]:
            codes = np.stack([rng.integers(0, c["size"], n) for c in given["codes"]], 1)
            arrays[encoding.tensor_name("codes", number)] = codes.astype(np.int32)
    for number, output in enumerate(encoders["outputs"]):
        arrays[encoding.tensor_name("label", number)] = (
            rng.normal(size=n).astype(np.float32)
            if output["task"] == "regression"
            else rng.integers(0, output["classes"], n).astype(np.int32)
        )
    return arrays


EVERYTHING = spec(
    [
        {"Dense": {"units": 16, "activation": "relu"}},
        "BatchNormalization",
        {"Dropout": {"rate": 0.3}},
        {"GaussianNoise": {"stddev": 0.1}},
        {"Dense": {"units": "$classes"}},
    ],
    optimizer={
        "Adam": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.01, "decay_steps": 20}}}
    },
)


@pytest.fixture(scope="module")
def everything():
    return program.Program(EVERYTHING)


def by_train_on_batch(model, arrays, order, batch_size, encoders=None):
    x = network.feed(arrays, encoders or part())
    for start in range(0, len(order), batch_size):
        picks = order[start : start + batch_size]
        model.train_on_batch(
            tf.nest.map_structure(lambda a, picks=picks: a[picks], x), arrays["label"][picks]
        )


def test_the_loop_is_train_on_batch_bit_for_bit(everything):
    arrays, first = data(part()), everything.initial_state(11)
    everything.set_state(first)
    everything.reset_metrics()
    for epoch in (1, 2):
        report = everything.train(arrays, seeds.permutation(5, epoch, 0, N), 32)
    ours, results = state.unpack(everything.get_state())[0], everything.results()
    assert report["rows"] == N and report["batches"] == 7 and report["train_seconds"] > 0

    with network.seeded(11):  # plain Keras, by hand
        model = keras.Sequential(
            [
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.GaussianNoise(0.1),
                keras.layers.Dense(3),
            ]
        )
        model.build((None, 6))
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 20)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile=False,
    )
    for epoch in (1, 2):
        for start in range(0, N, 32):
            picks = seeds.permutation(5, epoch, 0, N)[start : start + 32]
            model.train_on_batch(arrays["numbers"][picks], arrays["label"][picks])
    for i, variable in enumerate(model.variables):
        assert ours["model/%d" % i].tobytes() == variable.numpy().tobytes(), variable.path
    for i, variable in enumerate(model.optimizer.variables):
        assert ours["optimizer/%d" % i].tobytes() == variable.numpy().tobytes(), variable.path
    assert list(results) == ["loss", "accuracy"]


def test_generators_begin_alike_in_all_trials_unless_their_layer_names_a_seed():
    noise = [{"Dropout": {"rate": 0.3}}, {"Dropout": {"rate": 0.3, "seed": 5}}, {"GaussianNoise": {"stddev": 0.1}}]
    layers = [*noise, {"Dense": {"units": 3}}]
    built = program.Program(spec(layers))
    ours = [state.unpack(built.initial_state(seed, generators=7))[0] for seed in (1, 2)]
    places = [i for i, variable in enumerate(built.model.variables) if variable.name == "seed_generator_state"]
    for arrays in ours:
        begin = [arrays["model/%d" % i].tolist() for i in places]
        assert begin == [[seeds.generator_seed(7, 0), 0], [5, 0], [seeds.generator_seed(7, 2), 0]]
    kernel = "model/%d" % next(i for i, variable in enumerate(built.model.variables) if variable.name == "kernel")
    assert (ours[0][kernel] != ours[1][kernel]).any()


def test_metrics_of_an_epoch_are_those_of_fit(everything):
    arrays, order, first = data(part()), seeds.permutation(1, 1, 0, N), everything.initial_state(3)
    everything.set_state(first)
    everything.reset_metrics()
    everything.train(arrays, order, 32)
    ours, results = everything.get_state(), everything.results()
    everything.set_state(first)
    history = everything.model.fit(
        arrays["numbers"][order], arrays["label"][order], batch_size=32, shuffle=False, verbose=0
    ).history
    assert everything.get_state() == ours
    assert results == {name: values[0] for name, values in history.items()}


def test_a_state_carries_everything_that_training_needs(everything):
    arrays, order = data(part()), seeds.permutation(1, 1, 0, N)
    everything.set_state(everything.initial_state(3))
    everything.train(arrays, order, 32)
    middle = everything.get_state()
    everything.train(arrays, order, 32)
    straight = everything.get_state()
    everything.set_state(everything.initial_state(99))
    everything.train(arrays, order, 50)  # another trial in between
    everything.set_state(middle)
    assert everything.get_state() == middle
    everything.train(arrays, order, 32)
    assert everything.get_state() == straight


@pytest.mark.parametrize("group", ["model", "optimizer"])
def test_leaving_out_a_part_of_the_state_changes_the_result(everything, group):
    arrays, order = data(part()), seeds.permutation(1, 1, 0, N)
    everything.set_state(everything.initial_state(3))
    everything.train(arrays, order, 32)
    middle = everything.get_state()
    everything.train(arrays, order, 32)
    straight = everything.get_state()
    everything.set_state(everything.initial_state(3))
    everything.set_state(middle, *{"model", "optimizer", "metric"} - {group})
    everything.train(arrays, order, 32)
    assert everything.get_state() != straight


def test_the_first_state_depends_on_the_seed_alone(everything):
    random.seed(1), np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first = everything.initial_state(4)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    keras.Sequential([keras.layers.Dense(3)]).build((None, 2))
    assert everything.initial_state(4) == first == program.Program(EVERYTHING).initial_state(4)
    assert everything.initial_state(5) != first


@pytest.mark.parametrize(
    "layers, codes, optimizer",
    [
        (["BatchNormalization", {"Dropout": {"rate": 0.5}}, {"Dense": {"units": 3}}], (), "adam"),
        ([{"Reshape": {"target_shape": [6, 1]}}, {"LSTM": {"units": 5, "dropout": 0.2}}, {"Dense": {"units": 3}}], (), "rmsprop"),
        ([{"Dense": {"units": 3}}], ("one_hot", "embedding"), {"AdamW": {"use_ema": True}}),
        ([{"Dense": {"units": 3}}], (), {"Adagrad": {"learning_rate": 0.5}}),
        ([{"Dense": {"units": 3}}], (), {"Ftrl": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.01, "decay_steps": 9}}}}),
    ],
)  # fmt: skip
def test_a_first_state_is_that_of_a_model_built_and_compiled_under_the_seed(layers, codes, optimizer):
    encoders = part(codes=[{**code, "encoder": kind} for code, kind in zip(CODES, codes)])
    one = spec(layers, encoders, optimizer)
    built = program.Program(one)
    built.train(data(encoders, 40), seeds.permutation(1, 1, 0, 40), 20)
    other = {**one, "optimizer": json.loads(json.dumps(one["optimizer"]))}
    if not isinstance(other["optimizer"]["config"].get("learning_rate"), dict):
        other["optimizer"]["config"]["learning_rate"] = 0.125
    model, _ = network.build(other, 6)
    ours = state.unpack(built.initial_state(6, other))[0]
    groups = {"model": model.variables, "optimizer": model.optimizer.variables, "metric": model.metrics_variables}
    theirs = {"%s/%d" % (group, i): v.numpy() for group, them in groups.items() for i, v in enumerate(them)}
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), name
        assert ours[name].tobytes() == array.tobytes(), name


def test_states_of_another_program_are_refused(everything):
    other = program.Program(spec([{"Dense": {"units": 8}}, {"Dense": {"units": "$classes"}}]))
    with pytest.raises(errors.StateMismatch, match="another program"):
        everything.set_state(other.get_state())


def test_validation_over_shards_adds_up_and_leaves_the_model_alone(everything):
    everything.set_state(everything.initial_state(2))
    everything.reset_metrics()
    before = everything.get_state()
    whole = data(part(), 300)
    blobs = []
    for start, stop in ((0, 100), (100, 101), (101, 300)):
        everything.reset_metrics()
        everything.validate({name: array[start:stop] for name, array in whole.items()}, 32)
        blobs.append(everything.accumulators())
    everything.reset_metrics()
    assert everything.get_state() == before
    results = everything.results(state.add(blobs))
    plain = everything.model.evaluate(whole["numbers"], whole["label"], verbose=0, return_dict=True)
    assert results["accuracy"] == plain["accuracy"]
    assert results["loss"] == pytest.approx(plain["loss"], rel=1e-6)


def test_a_shard_without_rows_is_trained_in_no_time(everything):
    empty = {name: array[:0] for name, array in data(part()).items()}
    before = everything.get_state()
    report = everything.train(empty, seeds.permutation(1, 1, 0, 0), 32)
    assert report["rows"] == report["batches"] == 0 and everything.get_state() == before


def test_interrupts_are_looked_for_between_slices(everything, monkeypatch):
    class Cancelled(Exception):
        pass

    seen = []

    def pulse():
        if len(seen) == 2:
            raise Cancelled

    monkeypatch.setattr(program, "SLICE_SECONDS", 0.0)
    with pytest.raises(Cancelled):
        everything.train(data(part()), seeds.permutation(1, 1, 0, N), 32, pulse, seen.append)
    assert seen == [32, 64]


def test_slices_do_not_change_the_result(everything, monkeypatch):
    arrays, order, first = data(part()), seeds.permutation(1, 1, 0, N), everything.initial_state(3)
    blobs = []
    for seconds in (0.0, 10.0):
        monkeypatch.setattr(program, "SLICE_SECONDS", seconds)
        everything._seconds_per_batch.clear()
        everything.set_state(first)
        everything.train(arrays, order, 32)
        blobs.append(everything.get_state())
    assert blobs[0] == blobs[1]


CODES = (
    {"name": "t", "size": 5, "encoder": "one_hot"},
    {"name": "u", "size": 100, "encoder": "embedding", "dim": 4},
)


@pytest.mark.parametrize("numbers, codes, width", [((6,), CODES, 15), (None, CODES, 9), (None, CODES[:1], 5)])
def test_text_codes_are_looked_up_in_the_graph(numbers, codes, width):
    encoders = part(numbers, codes)
    built = program.Program(
        spec([{"Dense": {"units": 8, "activation": "relu"}}, {"Dense": {"units": "$classes"}}], encoders)
    )
    dense = [v for v in built.model.trainable_variables if v.path.endswith("kernel")][0]
    assert dense.shape[0] == width
    arrays, order, first = data(encoders), seeds.permutation(1, 1, 0, N), built.initial_state(3)
    built.set_state(first)
    built.train(arrays, order, 32)
    ours = built.get_state()
    built.set_state(first)
    by_train_on_batch(built.model, arrays, order, 32, encoders)
    assert state.unpack(ours)[0]["model/0"].tobytes() == built.model.variables[0].numpy().tobytes()
    built.validate(arrays, 32)
    assert built.accumulators()


@pytest.mark.parametrize(
    "layers, optimizer",
    [
        (
            [
                {"Reshape": {"target_shape": [6, 1]}},
                {"LSTM": {"units": 5, "dropout": 0.2}},
                {"Dense": {"units": 1}},
            ],
            "rmsprop",
        ),
        (
            [
                {"Reshape": {"target_shape": [6, 1]}},
                {"Conv1D": {"filters": 3, "kernel_size": 2}},
                "Flatten",
                {"Dense": {"units": 1}},
            ],
            {"SGD": {"momentum": 0.9, "nesterov": True, "clipnorm": 1.0}},
        ),
        (
            [{"Dense": {"units": 4, "kernel_regularizer": "l2"}}, {"Dense": {"units": 1}}],
            {"AdamW": {"use_ema": True, "ema_overwrite_frequency": 3}},
        ),
        ([{"Dense": {"units": 4}}, {"Dense": {"units": 1}}], "Lamb"),
    ],
)
def test_other_layers_and_optimizers_are_keras_bit_for_bit_too(layers, optimizer):
    built = program.Program(spec(layers, part(task="regression", classes=None), optimizer))
    arrays, order = data(built.part, 75), seeds.permutation(1, 1, 0, 75)
    first = built.initial_state(8)
    built.set_state(first)
    built.train(arrays, order, 10)
    ours = built.get_state()
    built.set_state(first)
    by_train_on_batch(built.model, arrays, order, 10)
    ours, plain = state.unpack(ours)[0], state.unpack(built.get_state())[0]
    for name in ours:
        if not name.startswith("metric/"):  # train_on_batch starts its metrics anew at every call
            assert ours[name].tobytes() == plain[name].tobytes(), name


@pytest.mark.parametrize(
    "layers, classes, loss, metric, output",
    [
        ([{"Dense": {"units": 1}}], 2, "BinaryCrossentropy", "BinaryAccuracy", "logit"),
        (
            [{"Dense": {"units": 1, "activation": "sigmoid"}}],
            2,
            "BinaryCrossentropy",
            "BinaryAccuracy",
            "probability",
        ),
        (
            [{"Dense": {"units": 4}}, "Softmax"],
            4,
            "SparseCategoricalCrossentropy",
            "SparseCategoricalAccuracy",
            "probability",
        ),
        (
            [{"Dense": {"units": 4}}, {"Activation": {"activation": "softmax"}}, "Flatten"],
            4,
            "SparseCategoricalCrossentropy",
            "SparseCategoricalAccuracy",
            "probability",
        ),
        (
            [{"Dense": {"units": 4}}, {"Dropout": {"rate": 0.5}}],
            4,
            "SparseCategoricalCrossentropy",
            "SparseCategoricalAccuracy",
            "logit",
        ),
        ([{"Dense": {"units": 1}}], None, "MeanSquaredError", "MeanAbsoluteError", "value"),
    ],
)
@pytest.mark.parametrize("codes", [(), CODES])
def test_loss_and_metrics_follow_label_and_output(layers, classes, loss, metric, output, codes):
    task = "classification" if classes else "regression"
    built = program.Program(spec(layers, part(task=task, classes=classes, codes=codes)))
    assert type(built.model.loss).__name__ == loss and built.outputs == [output]
    if classes:
        assert network._from_logits(built.model.loss) == (output == "logit")
    compiled = built.model._compile_metrics._user_metrics[0]
    assert type(compiled).__name__ == metric


@pytest.mark.parametrize(
    "layers, encoders, words",
    [
        ([{"Dense": {"units": 2}}], part(), ["2 output units", "3 classes"]),
        ([{"Dense": {"units": 1}}], part(), ["1 output unit,", "3 classes"]),
        ([{"Dense": {"units": 3}}], part(task="regression", classes=None), ["3 output units", "regression"]),
        ([{"Reshape": {"target_shape": [6, 1]}}, {"Dense": {"units": 3}}], part(), ["shape [6, 3]"]),
        ([{"Reshape": {"target_shape": [7]}}, {"Dense": {"units": 3}}], part(), ["6", "7"]),
        ([{"Conv2D": {"filters": 2, "kernel_size": 3}}, {"Dense": {"units": 3}}], part(), ["ndim"]),
        ([{"Conv1D": {"filters": 3, "kernel_size": 2, "groups": 2}}], part(), ["ValueError in Conv1D: The number of filters"]),
        ([{"Permute": {"dims": [2, 2]}}], part(), ["ValueError in Permute: Invalid permutation"]),
        ([{"InputLayer": {"batch_shape": [None, 5]}}, {"Dense": {"units": 3}}], part(), ["[5]", "[6]"]),
    ],
)
def test_a_model_that_does_not_fit_the_data_fails_its_trial_in_one_clear_line(layers, encoders, words):
    with pytest.raises(errors.TrialFailed) as caught:
        program.Program(spec(layers, encoders))
    text = str(caught.value)
    assert "\n" not in text and "\x1b" not in text and all(word in text for word in words), text


OF_NUMBERS = ("SparseCategoricalCrossentropy", "CategoricalGeneralizedCrossEntropy", "Circle")


@pytest.mark.parametrize("name", sorted(set(keras_names.LOSSES) - {"CTC"}))
def test_every_loss_trains_on_classes_as_plain_keras_does_on_one_hot_labels(name):
    """Where the loss wants class numbers, on these."""
    arrays, order = data(part()), seeds.permutation(1, 1, 0, N)
    config = {"label_smoothing": 0.1} if "label_smoothing" in keras_names.LOSSES[name] else {}
    built = program.Program(spec([{"Dense": {"units": 3, "activation": "softmax"}}], loss={name: config}))
    built.set_state(built.initial_state(1))
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    plain.compile("adam", getattr(keras.losses, name)(**config), jit_compile=False)
    plain.set_weights([variable.numpy() for variable in built.model.trainable_variables])
    built.train(arrays, order, 32)
    y = arrays["label"] if name in OF_NUMBERS else np.eye(3, dtype=np.float32)[arrays["label"]]
    plain.fit(arrays["numbers"][order], y[order], batch_size=32, shuffle=False, verbose=0)
    for mine, theirs in zip(built.model.trainable_variables, plain.trainable_variables):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes() and np.isfinite(theirs.numpy()).all()


@pytest.mark.parametrize(
    "loss, encoders, words",
    [
        ("ctc", part(), ["CTC", "sequences"]),
        ("sparse_categorical_crossentropy", part(task="regression", classes=None), ["compares classes", "quantity"]),
        ("categorical_hinge", part(task="regression", classes=None), ["compares classes", "quantity"]),
        ("circle", part(task="multi_label", classes=1), ["any number applies"]),
        ("categorical_crossentropy", part(classes=2), ["an output unit for each class"]),
    ],
)
def test_a_loss_that_makes_no_sense_of_the_label_is_refused(loss, encoders, words):
    units = 3 if loss == "ctc" else 1
    if encoders["outputs"][0]["task"] == "multi_label":
        encoders["outputs"][0]["shape"] = [1]
    with pytest.raises((errors.InvalidArgument, errors.TrialFailed)) as caught:
        program.Program(spec([{"Dense": {"units": units}}], encoders, loss=loss))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_definition_that_is_not_allowed_is_refused_here_too(everything):
    evil = {
        **EVERYTHING,
        "definition": {
            "module": "keras",
            "class_name": "Sequential",
            "config": {
                "layers": [
                    {
                        "module": "keras.layers",
                        "class_name": "Lambda",
                        "config": {"function": "x"},
                        "registered_name": None,
                    }
                ]
            },
        },
    }
    with pytest.raises(errors.InvalidArgument):
        program.Program(evil)


def test_one_program_serves_all_learning_rates():
    programs = {}
    layers = [{"Dense": {"units": 3}}]
    specs = [spec(layers, optimizer={"Adam": {"learning_rate": rate}}) for rate in (0.1, 0.2)]
    assert program.cached(programs, specs[0]) is program.cached(programs, specs[1])
    built = program.cached(programs, specs[0])
    built.set_state(built.initial_state(1, specs[1]))
    assert built.learning_rate() == pytest.approx(0.2)
    built.set_learning_rate(0.5)
    assert built.learning_rate() == 0.5
    program.cached(programs, spec(layers, optimizer={"Adam": {"beta_1": 0.8}}))
    assert len(programs) == 2


def test_metrics_have_keras_names_and_those_of_many_values_are_lists():
    built = program.Program(
        spec(
            [{"Dense": {"units": 2, "activation": "softmax"}}],
            part(classes=2),
            metrics=["accuracy", "sparse_top_k_categorical_accuracy"],
        )
    )
    built.reset_metrics()
    built.train(data(built.part), seeds.permutation(1, 1, 0, N), 32)
    assert list(built.results()) == ["loss", "accuracy", "sparse_top_k_categorical_accuracy"]


def test_permutations_and_seeds_are_those_of_the_documentation():
    import hashlib

    key = int.from_bytes(hashlib.sha256(b"7/2/1").digest()[:16], "little")
    assert (
        seeds.permutation(7, 2, 1, 50).tolist()
        == np.argsort(np.random.Philox(key=key).random_raw(50)).tolist()
    )
    assert sorted(seeds.permutation(7, 2, 1, 50)) == list(range(50))
    assert seeds.permutation(7, 2, 2, 50).tolist() != seeds.permutation(7, 2, 1, 50).tolist()
    assert seeds.trial_seed(7, 3) == int.from_bytes(hashlib.sha256(b"7/3").digest()[:4], "big") // 2 < 2**31


@pytest.mark.parametrize(
    "layer, reason",
    [
        ({"Dense": {"units": 10**9}}, r"the model needs \d+\.\d GB of memory or more, \d+\.\d GB are available"),
        ({"Dense": {"units": 10**12}}, "units of Dense must be a whole number from 1 to 2147483647"),
        ({"RepeatVector": {"n": 2 * 10**9}}, "one layer's output for 1 row needs"),
    ],
)
def test_a_monstrous_layer_fails_the_trial_before_it_takes_memory(layer, reason):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((errors.TrialFailed, errors.InvalidArgument), match=reason):
        program.Program(spec([layer, "GlobalMaxPooling1D" if "RepeatVector" in layer else "Flatten", {"Dense": {"units": "$classes"}}]))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


LSTM = {"LSTM": {"units": 2, "unroll": True}}


@pytest.mark.parametrize("layer", [LSTM, {"Bidirectional": {"layer": LSTM}}, {"Sequential": {"layers": [LSTM]}}])
def test_a_long_sequence_is_not_unrolled(layer):
    with pytest.raises(errors.TrialFailed, match=r'layer ".*lstm.*" would be unrolled over 101 steps, at most 100 are'):
        program.Program(spec([{"RepeatVector": {"n": 101}}, layer, {"Dense": {"units": "$classes"}}]))


def test_a_monstrous_embedding_or_one_hot_code_fails_the_trial():
    for code in ({"encoder": "embedding", "dim": 50}, {"encoder": "one_hot"}):
        encoders = part(codes=[{"name": "t", "size": 2**33, **code}])
        with pytest.raises(errors.TrialFailed, match="GB are available"):
            program.Program(spec([{"Dense": {"units": "$classes"}}], encoders=encoders))


def test_variables_are_counted_before_they_are_made(monkeypatch):
    """Every variable twice, for its copy in a state; trained weights once more, for their gradients."""
    layers = [{"Dense": {"units": 64}}, "BatchNormalization", {"Dropout": {"rate": 0.3}}, {"Dense": {"units": "$classes"}}]
    built = program.Program(spec(layers, optimizer="adam"))
    size = sum(v.shape.num_elements() * 4 for group in ("model", "optimizer") for v in built._groups[group])
    monkeypatch.setattr(memory, "available", lambda: 3 * size + 200)
    program.Program(spec(layers, optimizer="adam"))
    monkeypatch.setattr(memory, "available", lambda: 2 * size)
    with pytest.raises(errors.TrialFailed, match="the model needs"):
        program.Program(spec(layers, optimizer="adam"))


def test_a_minibatch_too_wide_for_the_memory_fails_the_trial(monkeypatch):
    built = program.Program(spec([{"Dense": {"units": 100}}, {"Dense": {"units": "$classes"}}]))
    monkeypatch.setattr(memory, "available", lambda: 4 * 100 * 20)
    built.train(data(part()), seeds.permutation(1, 1, 0, N), 20)
    with pytest.raises(errors.TrialFailed, match="output for 21 rows"):
        built.train(data(part()), seeds.permutation(1, 1, 0, N), 21)


def test_a_batch_of_more_rows_than_there_are_is_one_of_all(everything):
    arrays, order, first = data(part()), seeds.permutation(1, 1, 0, N), everything.initial_state(3)
    states = []
    for batch_size in (N, 2**31 - 1):
        everything.set_state(first)
        report = everything.train(arrays, order, batch_size)
        assert report["batches"] == 1
        states.append(everything.get_state())
    assert states[0] == states[1]
