"""Rates of dropout are values of a visit: one program trains them all, each bit for bit as plain Keras does. Real Keras."""

import numpy as np
import pytest

from cerebro_udf import dropout, errors
from cerebro_udf.coordinator import programs
from cerebro_udf.segment import network, program, seeds, state
from cerebro_udf.segment.fused import FusedProgram
from tests.unit.test_fused import assert_equal
from tests.unit.test_program import N, by_train_on_batch, data, part, spec

ORDER = seeds.permutation(1, 1, 0, N)
RATES = (0.1, 1 / 3, 0.5, 0.77)


def dense(first, second):
    return [{"Dense": {"units": 16, "activation": "relu"}}, {"Dropout": {"rate": first}},
            {"Dense": {"units": 8}}, {"Dropout": {"rate": second}}, {"Dense": {"units": "$classes"}}]  # fmt: skip


def shaped(rate):
    return [{"Reshape": {"target_shape": [2, 3]}}, {"SpatialDropout1D": {"rate": rate}},
            {"TimeDistributed": {"layer": {"Dropout": {"rate": rate / 2}}}},
            {"Dropout": {"rate": rate, "noise_shape": [None, 1, 3]}}, "Flatten", {"Dense": {"units": "$classes"}}]  # fmt: skip


def plain(one, blob, arrays):
    """The state after plain Keras has trained the model of this very spec."""
    model, _ = network.build(one, 0)
    for rows in (N, 7):  # a graph that is open for any number of rows
        by_train_on_batch(model, {name: array[:rows] for name, array in arrays.items()}, np.arange(rows), rows)
    groups = {"model": model.variables, "optimizer": model.optimizer.variables, "metric": model.metrics_variables}
    named = {"%s/%d" % (group, i): v for group, them in groups.items() for i, v in enumerate(them)}
    for name, array in state.unpack(blob)[0].items():
        named[name].assign(array)
    by_train_on_batch(model, arrays, ORDER, 32)
    return {name: network.snapshot(v).copy() for name, v in named.items() if not name.startswith("metric/")}


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("layers", [lambda rate: dense(rate, 0.4), shaped], ids=["dense", "shaped"])
def test_one_program_drops_at_any_rate_as_keras_does_bit_for_bit(layers, precision):
    arrays = data(part())
    built = program.Program({**spec(layers(0.25)), "precision": precision})
    for rate in RATES:
        one = {**spec(layers(rate)), "precision": precision}
        assert program.signature(one) == built.signature
        blob = built.initial_state(3, one)
        built.set_state(blob)
        built.set_dropout(dropout.split(one["definition"])[1])
        built.train(arrays, ORDER, 32)
        ours = state.unpack(built.get_state())[0]
        for name, array in plain(one, blob, arrays).items():
            assert ours[name].tobytes() == array.tobytes(), (rate, name)


def test_members_of_different_rates_trained_as_one_are_what_each_is_alone():
    built, arrays = program.Program(spec(dense(0.5, 0.5))), data(part())
    fused = FusedProgram(built, 4)
    blobs = [built.initial_state(seed, generators=1) for seed in range(4)]
    rates = [[0.1, 0.8], [0.3, 0.1], [0.5, 0.5], [0.9, 0.2]]
    fused.set_states(blobs, [None] * 4)
    fused.set_dropouts(rates)
    fused.train(arrays, ORDER, 32)
    for ours, blob, rate in zip(fused.get_states(), blobs, rates):
        built.set_state(blob)
        built.set_dropout(rate)
        built.train(arrays, ORDER, 32)
        assert_equal(ours, built.get_state())


def test_only_what_draws_is_taken_out_and_each_place_is_known():
    definition = spec(dense(0.3, 0.3))["definition"]
    taken, rates = dropout.split(definition)
    assert rates == [0.3, 0.3] and taken == dropout.split(spec(dense(0.7, 0.1))["definition"])[0]
    assert [layer["config"]["rate"] for layer in taken["config"]["layers"] if layer["class_name"] == "Dropout"] == [1 / 3, 2 / 3]
    assert definition == spec(dense(0.3, 0.3))["definition"], "the argument stays as it is"
    for edge in (0, 1, 0.0, 1.0):
        assert dropout.split(spec(dense(edge, 0.2))["definition"])[1] == [0.2]
    assert dropout.split(spec([{"Reshape": {"target_shape": [6, 1]}}, {"LSTM": {"units": 2, "dropout": 0.5}}])["definition"])[1] == []


def test_a_rate_of_nothing_is_another_program_and_what_surrounds_the_rates_too():
    one = program.signature(spec(dense(0.3, 0.3)))
    assert one != program.signature(spec(dense(0.3, 0)))
    layers = dense(0.3, 0.3)
    layers[1]["Dropout"]["noise_shape"] = [None, 1]
    assert one != program.signature(spec(layers))


def test_trials_that_differ_in_rates_alone_have_one_shape():
    orders = [{"program": spec(dense(*rates)), "batch_size": 8} for rates in ((0.1, 0.2), (0.3, 0.4), (0.1, 0))]
    shapes = [programs.shape(order) for order in orders]
    assert shapes[0] == shapes[1] != shapes[2]


@pytest.mark.parametrize("rates", [None, [], [0.5], [0.5, 0.5, 0.5], [0.5, 0], [0.5, 1], [0.5, "0.5"], [float("nan"), 0.5], "55"])
def test_what_are_no_rates_of_the_program_is_refused(rates):
    with pytest.raises(errors.InvalidArgument, match="2 rates"):
        program.Program(spec(dense(0.5, 0.5))).set_dropout(rates)
