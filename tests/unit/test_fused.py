"""Members trained as one give what each gives alone, up to rounding. Real Keras, in this process."""

import json

import keras
import numpy as np
import pytest

from cerebro_udf import definition, errors
from cerebro_udf.segment import choice, fusable, seeds, state
from cerebro_udf.segment.fused import TOLERANCE, FusedProgram
from cerebro_udf.segment.program import Program
from tests.unit.test_program import data, part, spec

N = 203  # the last minibatch of 32 is short
ORDER = seeds.permutation(1, 1, 0, N)
MANY = 12  # tiny members are faster as one by far, however busy the machine is
DENSE = [{"Dense": {"units": 8, "activation": "relu"}}, {"Dense": {"units": "$classes"}}]
EVERYTHING = [
    {"Dense": {"units": 16, "activation": "relu", "kernel_regularizer": {"L2": {"l2": 0.01}}}},
    "BatchNormalization",
    {"Dropout": {"rate": 0.3}},
    {"GaussianNoise": {"stddev": 0.1}},
    {"Dense": {"units": "$classes"}},
]
CODES = part(codes=[{"encoder": "embedding", "size": 9, "dim": 3}, {"encoder": "one_hot", "size": 5}])
CODES_ALONE = part(numbers=None, codes=[{"encoder": "embedding", "size": 9, "dim": 3}])


def alone(program, blob, rate, arrays, order=ORDER, batch_size=32):
    program.set_state(blob)
    if rate is not None:
        program.set_learning_rate(rate)
    program.reset_metrics()
    program.train(arrays, order, batch_size)
    return program.get_state()


def together(fused, blobs, rates, arrays, order=ORDER, batch_size=32):
    fused.set_states(blobs, rates)
    fused.reset_metrics()
    report = fused.train(arrays, order, batch_size)
    assert report["rows"] == len(order) and report["batches"] == -(-len(order) // batch_size)
    return fused.get_states()[: len(blobs)]


def assert_equal(ours: bytes, theirs: bytes) -> None:
    ours, theirs = state.unpack(ours)[0], state.unpack(theirs)[0]
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and ours[name].shape == value.shape, name
        if value.dtype.kind == "i":  # step counts and generators
            assert ours[name].tobytes() == value.tobytes(), name
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=TOLERANCE * (np.abs(value).max(initial=0) + 1e-3), err_msg=name)


@pytest.mark.parametrize(
    "layers, encoders, optimizer, metrics, loss",
    [
        (EVERYTHING, part(), {"Adam": {"clipnorm": 0.1, "amsgrad": True}}, None, None),
        (EVERYTHING, CODES, {"SGD": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}}, None, None),
        (EVERYTHING, part(), {"Adam": {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3}}, None,
         {"CategoricalCrossentropy": {"from_logits": True}}),
        (DENSE, CODES_ALONE, {"SGD": {"learning_rate": 0.1, "weight_decay": 0.1}}, None, "mse"),
        (DENSE, part(), {"Adam": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.01, "decay_steps": 20}}}},
         ["sparse_categorical_accuracy", "SparseTopKCategoricalAccuracy"], None),
    ],
    ids=["everything", "text", "plain Adam", "text alone", "schedule"],
)  # fmt: skip
def test_members_trained_as_one_are_what_each_is_alone(layers, encoders, optimizer, metrics, loss):
    program, arrays = Program(spec(layers, encoders, optimizer, loss, metrics)), data(encoders)
    fused = FusedProgram(program, 3)
    firsts, rates = [program.initial_state(seed, generators=1) for seed in (1, 2, 3)], [0.1, 0.01, None]
    for ours, blob, rate in zip(together(fused, firsts, rates, arrays), firsts, rates):
        theirs = alone(program, blob, rate, arrays)
        assert_equal(ours, theirs)
        assert_equal(alone(program, ours, rate, arrays), alone(program, theirs, rate, arrays))  # alone in its next visit


def test_members_of_several_inputs_are_what_each_is_alone():
    """Codes are looked up in the head alone, numbers of either input go to each member."""
    a, b = keras.Input((8,), name="a"), keras.Input((2,), name="b")
    joined = keras.layers.Concatenate()([keras.layers.Dense(4, activation="tanh")(a), keras.layers.Dropout(0.3)(b)])
    written = keras.Model([b, a], keras.layers.Dense(3)(joined)).to_json()
    inputs = [{"name": "a", "numbers": [6], "codes": [{"encoder": "one_hot", "size": 2}]}, {"name": "b", "numbers": [2], "codes": []}]
    encoders = {**part(), "inputs": inputs}
    program = Program({**spec(DENSE, encoders), "definition": definition.bind(definition.check(json.loads(written)), {})})
    arrays, firsts = data(encoders), [program.initial_state(seed, generators=1) for seed in (1, 2)]
    for ours, blob in zip(together(FusedProgram(program, 2), firsts, [None, None], arrays), firsts):
        assert_equal(ours, alone(program, blob, None, arrays))


def test_members_of_several_outputs_are_what_each_is_alone():
    """Each output has a loss, a weight of it and weights of rows of its own."""
    x = keras.Input((6,))
    shared = keras.layers.Dropout(0.3)(keras.layers.Dense(4, activation="tanh")(x))
    ends = [keras.layers.Dense(units, name=name)(shared) for name, units in (("size", 1), ("tags", 2), ("kind", 3))]
    outputs = [
        {"name": "kind", "task": "classification", "classes": 3}, {"name": "size", "task": "regression", "classes": None},
        {"name": "tags", "task": "multi_label", "classes": 2, "shape": [2]},
    ]  # fmt: skip
    written = definition.bind(definition.check(json.loads(keras.Model(x, ends).to_json())), {})
    given = {"definition": written, "encoders": {**part(), "outputs": outputs}}
    given.update(loss_weights={"size": 0.5}, metrics={"kind": ["accuracy"]})
    program, random = Program({**spec(DENSE), **given}), np.random.default_rng(4)
    arrays = {
        **data(part()), "label_1": random.normal(size=N).astype(np.float32), "label_2": random.integers(0, 2, (N, 2)).astype(np.float32),
        **{name: random.uniform(0, 2, N).astype(np.float32) for name in ("weight", "weight_1", "weight_2")},
    }  # fmt: skip
    firsts, rates, fused = [program.initial_state(seed, generators=1) for seed in (1, 2)], [None, 0.1], FusedProgram(program, 2)
    found = together(fused, firsts, rates, arrays)
    for ours, blob, rate in zip(found, firsts, rates):
        theirs = alone(program, blob, rate, arrays)
        assert_equal(ours, theirs)
    fused.set_states(found, [None, None], "model")
    fused.reset_metrics()
    fused.validate(arrays, 32)
    for blob, ours in zip(found, fused.get_states("metric")):
        program.set_state(blob, "model")
        program.reset_metrics()
        program.validate(arrays, 32)
        assert_equal(ours, program.accumulators())


def test_validation_as_one_gives_each_members_accumulators(everything):
    program, fused = everything
    arrays, blobs = data(part()), [program.initial_state(seed, generators=1) for seed in (1, 2)]
    fused.set_states(blobs, [None, None], "model")
    fused.reset_metrics()
    assert fused.validate(arrays, 32)["rows"] == N
    for blob, ours in zip(blobs, fused.get_states("metric")):
        program.set_state(blob, "model")
        program.reset_metrics()
        program.validate(arrays, 32)
        assert_equal(ours, program.accumulators())
        assert program.results(ours)["loss"] > 0


@pytest.fixture(scope="module")
def everything():
    program = Program(spec(EVERYTHING, part()))
    return program, FusedProgram(program, 3)


def test_a_member_that_diverges_changes_no_bit_of_the_others(everything):
    program, fused = everything
    arrays, blobs = data(part()), [program.initial_state(seed, generators=1) for seed in (1, 2, 3)]
    well = together(fused, blobs, [0.01, 0.01, 0.01], arrays)
    diverging = together(fused, blobs, [0.01, float("inf"), 0.01], arrays)
    assert np.isnan(state.unpack(diverging[1])[0]["model/0"]).any()
    assert (well[0], well[2]) == (diverging[0], diverging[2])


def test_a_group_that_has_lost_members_is_trained_by_the_same_program(everything):
    program, fused = everything
    arrays, blobs = data(part()), [program.initial_state(seed, generators=1) for seed in (1, 2, 3)]
    assert together(fused, blobs[:2], [0.01, 0.02], arrays) == together(fused, blobs, [0.01, 0.02, 0.03], arrays)[:2]


def test_metrics_of_an_epoch_go_on_from_one_shard_to_the_next(everything):
    program, fused = everything
    arrays, blobs = data(part()), [program.initial_state(seed, generators=1) for seed in (1, 2, 3)]
    middle = together(fused, blobs, [0.01] * 3, arrays)
    fused.set_states(middle, [None] * 3)
    fused.train(arrays, ORDER, 32)
    counts = [state.unpack(blob)[0]["metric/1"] for blob in fused.get_states()]
    assert counts == [2 * N] * 3


def test_members_whose_generators_differ_are_refused(everything):
    program, fused = everything
    blobs = [program.initial_state(1, generators=1), program.initial_state(1, generators=2)]
    with pytest.raises(errors.TrialFailed, match="generators differ"):
        fused.set_states(blobs, [None, None])


def test_members_that_have_made_other_numbers_of_steps_are_refused(everything):
    program, fused = everything
    first = program.initial_state(1, generators=1)
    program.set_state(first)
    program.train(data(part()), ORDER[:32], 32)
    begun, trained = state.unpack(first)[0], state.unpack(program.get_state())[0]
    later = program._pack({name: (begun if name.startswith("model/") else trained)[name] for name in begun})
    with pytest.raises(errors.TrialFailed, match="steps differ"):
        fused.set_states([first, later], [None, None])


CONSTRAINED = [{"Dense": {"units": 8, "kernel_constraint": {"MaxNorm": {"max_value": 0.5}}}}, *DENSE]


@pytest.mark.parametrize(
    "layers, optimizer, plain",
    [(DENSE, "adam", True), (DENSE, {"Adam": {"epsilon": 1e-3}}, True), (CONSTRAINED, "adam", False), (DENSE, "AdamW", False)]
    + [(DENSE, {"Adam": {name: value}}, False) for name, value in (
        ("amsgrad", True), ("clipnorm", 1.0), ("clipvalue", 1.0), ("weight_decay", 0.1),
        ("learning_rate", {"CosineDecay": {"initial_learning_rate": 0.01, "decay_steps": 20}}))],
)  # fmt: skip
def test_only_plain_adam_is_updated_by_tensorflows_kernel_and_agrees_as_the_others_do(layers, optimizer, plain):
    program, arrays = Program(spec(layers, optimizer=optimizer)), data(part())
    fused = FusedProgram(program, 2)
    assert (fused.model._adam is not None) is plain
    blobs = [program.initial_state(seed, generators=1) for seed in (1, 2)]
    for ours, blob in zip(together(fused, blobs, [None, None], arrays), blobs):
        assert_equal(ours, alone(program, blob, None, arrays))


def test_a_damaged_or_foreign_state_is_refused_and_nothing_assigned(everything):
    program, fused = everything
    good, other = program.initial_state(1, generators=1), Program(spec(DENSE)).initial_state(1)
    fused.set_states([good] * 3, [None] * 3)
    for bad in (other, good[:-1] + bytes([good[-1] ^ 1])):
        with pytest.raises(errors.StateMismatch):
            fused.set_states([program.initial_state(2, generators=1), bad], [None, None])
    assert fused.get_states() == [good] * 3


@pytest.mark.parametrize("optimizer", sorted(fusable.OPTIMIZERS - {"SGD", "Adam"}))
def test_every_optimizer_that_is_tried_agrees(optimizer):
    config = {"learning_rate": 0.01, **({"weight_decay": 0.1} if optimizer == "AdamW" else {})}
    program, arrays = Program(spec(DENSE, optimizer={optimizer: config})), data(part())
    blobs = [program.initial_state(seed, generators=1) for seed in (1, 2)]
    fused = FusedProgram(program, 2)
    for ours, blob, rate in zip(together(fused, blobs, [None, 0.001], arrays), blobs, [None, 0.001]):
        assert_equal(ours, alone(program, blob, rate, arrays))


def test_what_is_not_tried_is_told_by_the_spec():
    assert fusable.refusal(spec(EVERYTHING)) is None
    for layers, optimizer in (
        ([{"Reshape": {"target_shape": [6, 1]}}, {"LSTM": {"units": 2}}, *DENSE], "adam"),
        (DENSE, "Adafactor"),
        (DENSE, {"Adam": {"use_ema": True}}),
        (DENSE, {"SGD": {"gradient_accumulation_steps": 2}}),
    ):
        assert fusable.refusal(spec(layers, optimizer=optimizer))
    assert fusable.refusal(spec(DENSE, CODES, {"SGD": {"clipnorm": 1.0}})) and fusable.refusal(spec(DENSE, CODES, "adam"))
    assert fusable.refusal({**spec(DENSE), "precision": "mixed_bfloat16"})
    (numbers,) = part()["inputs"]
    assert fusable.refusal(spec(DENSE, {**part(), "inputs": [{**numbers, "sparse": True}]})) == "its rows are sparse"


def test_stacks_that_do_not_fit_are_refused(monkeypatch):
    program = Program(spec(DENSE))
    monkeypatch.setattr("cerebro_udf.segment.memory.available", lambda: 10_000)
    with pytest.raises(errors.TrialFailed, match="stacks of 100 states"):
        FusedProgram(program, 100)


@pytest.fixture
def measured(monkeypatch):
    """The program of every measurement that is made."""
    made = []
    measure = choice.Choices._measure
    monkeypatch.setattr(choice.Choices, "_measure", lambda self, program, *rest: made.append(program) or measure(self, program, *rest))
    return made


def test_a_group_is_measured_once_and_programs_of_its_shape_are_not(measured):
    choices, arrays, chosen = choice.Choices(), data(part()), []
    for stddev in (0.1, 0.5):
        program = Program(spec([{"GaussianNoise": {"stddev": stddev}}, *DENSE]))
        blobs = [program.initial_state(seed, generators=1) for seed in range(MANY)]
        chosen += [choices.choose(program, blobs[:n], arrays, 2, lambda: None) for n in (MANY, MANY, MANY - 1)]
    assert [fused.size for fused in chosen] == [MANY] * 6 and len(set(chosen)) == len(choices) == 2
    assert len(measured) == 1


def test_what_another_segment_found_faster_is_not_measured_again(measured):
    choices, arrays, program = choice.Choices(), data(part()), Program(spec(DENSE))
    blobs = [program.initial_state(seed, generators=1) for seed in range(3)]
    told = choices.choose(program, blobs, arrays, 2, lambda: None, faster=True)
    assert told.size == 3 and choices.choose(program, blobs[:2], arrays, 2, lambda: None) is told, "one that has lost a member"
    assert not measured and not program._loops


def test_measuring_trains_so_many_minibatches_and_no_more():
    program, choices, arrays = Program(spec(DENSE)), choice.Choices(), data(part(), 50_000)
    order, blob = np.arange(96, dtype=np.int32), program.initial_state(1, generators=1)
    program.set_state(blob)
    assert program.train(arrays, order, 32)["rows"] == 96
    some = program.get_state()
    program.set_state(blob)
    program.train({name: array[:96] for name, array in arrays.items()}, order, 32)
    assert program.get_state() == some
    speed = choices._measure(program, FusedProgram(program, 3), [blob] * 3, arrays, 4096, lambda: None)
    assert speed.single > 0 and speed.fused > 0


def test_fewer_are_tried_where_many_cannot_be_trained_as_one(monkeypatch):
    build = choice.FusedProgram

    def refusing(program, size):
        if size == MANY:
            raise errors.TrialFailed("too many")
        return build(program, size)

    monkeypatch.setattr(choice, "FusedProgram", refusing)
    program, choices, arrays = Program(spec(DENSE)), choice.Choices(), data(part())
    blobs = [program.initial_state(seed) for seed in range(MANY)]
    chosen = [choices.choose(program, blobs[:n], arrays, 2, lambda: None) for n in (MANY, MANY - 1, MANY)]
    assert [fused and fused.size for fused in chosen] == [None, MANY - 1, None]


def test_what_leaves_the_cache_is_neither_traced_nor_measured(measured):
    program = Program(spec([{"Dense": {"units": 512}}, *DENSE]))
    blobs = [program.initial_state(seed, generators=1) for seed in range(4)]
    choices = choice.Choices()
    assert choices.choose(program, blobs, data(part()), 256, lambda: None) is None
    assert not measured and len(choices) == 0
