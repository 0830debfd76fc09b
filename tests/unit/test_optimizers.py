"""Arguments of optimizers and schedules: what Keras takes is taken, the rest is refused before anything starts."""

import pytest

from cerebro_udf import compilation
from cerebro_udf.coordinator import options as o
from cerebro_udf.errors import InvalidArgument

MODEL = {"layers": [{"Dense": {"units": 2}}]}
SCHEDULES = [
    {"CosineDecay": {"initial_learning_rate": 0, "decay_steps": 10, "warmup_target": 0.1, "warmup_steps": 4, "alpha": 0.1}},
    {"CosineDecay": {"initial_learning_rate": 1, "decay_steps": 10, "warmup_target": None}},
    {"CosineDecayRestarts": {"initial_learning_rate": 0.1, "first_decay_steps": 5, "t_mul": 2, "m_mul": 0.9}},
    {"ExponentialDecay": {"initial_learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.9, "staircase": True}},
    {"InverseTimeDecay": {"initial_learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5}},
    {"PiecewiseConstantDecay": {"boundaries": [3, 6.0], "values": [1, 0.5, 0.1]}},
    {"PolynomialDecay": {"initial_learning_rate": 0.1, "decay_steps": 5, "end_learning_rate": 0, "power": 2, "cycle": True}},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: next(iter(schedule)))
def test_every_schedule_of_keras_is_accepted_and_means_the_same(schedule):
    from cerebro_udf.segment import network

    keras = network.keras
    ours = network._optimizer(compilation.check_optimizer({"SGD": {"learning_rate": schedule}}))
    ((name, arguments),) = schedule.items()
    arguments = {key: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for key, v in arguments.items()}
    if "values" in arguments:
        arguments.update(values=[1.0, 0.5, 0.1], boundaries=[3, 6])
    theirs = getattr(keras.optimizers.schedules, name)(**arguments)
    rates = []
    for step in range(0, 16, 3):
        ours.iterations.assign(step)
        rates.append(float(ours.learning_rate))
        assert rates[-1] == float(theirs(step))
    assert len(set(rates)) > 2


@pytest.mark.parametrize(
    "value",
    [
        {"SGD": {"momentum": 1, "clipnorm": 1}},
        {"Adam": {"clipvalue": 0.5, "clipnorm": None, "weight_decay": 0}},
        {"AdamW": {"global_clipnorm": 2, "weight_decay": None}},
        {"Adam": {"use_ema": True, "ema_momentum": 0, "ema_overwrite_frequency": 3.0}},
        {"RMSprop": {"gradient_accumulation_steps": 2.0, "loss_scale_factor": 128}},
        {"Adam": {"learning_rate": 1}},
    ],
    ids=str,
)
def test_what_keras_takes_is_built(value):
    from cerebro_udf.segment import network

    checked = compilation.check_optimizer(value)
    built = network._optimizer(checked).get_config()
    for key, item in checked["config"].items():
        assert built[key] == item and type(built[key]) is type(item)


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({"clipnorm": 0}, "a number above 0"),
        ({"clipvalue": -1}, "a number above 0"),
        ({"global_clipnorm": True}, "a number above 0"),
        ({"clipnorm": 1, "clipvalue": 1}, "clipnorm and clipvalue exclude each other"),
        ({"clipnorm": 1, "clipvalue": 1, "global_clipnorm": 1}, "exclude each other"),
        ({"weight_decay": -0.1}, "a number, 0 or more"),
        ({"use_ema": 1}, "true or false"),
        ({"ema_momentum": 1.1}, "a number from 0 to 1"),
        ({"ema_overwrite_frequency": 0}, "a whole number"),
        ({"ema_overwrite_frequency": 2.5}, "a whole number"),
        ({"gradient_accumulation_steps": 1}, "a whole number from 2"),
        ({"loss_scale_factor": 0}, "a number above 0"),
        ({"beta_1": 1}, "a number from 0 to less than 1"),
        ({"beta_2": 10**400}, "a number from 0"),
        ({"epsilon": "small"}, "a number, 0 or more"),
        ({"name": 3}, "must be text"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_place(arguments, told):
    with pytest.raises(InvalidArgument) as info:
        compilation.check_optimizer({"Adam": arguments})
    assert told in info.value.message and "At optimizer.Adam" in info.value.detail and info.value.hint
    with pytest.raises(InvalidArgument):
        o.parse({"optimizer": {"Adam": arguments}}, MODEL)


@pytest.mark.parametrize(
    "schedule, told",
    [
        ({"CosineDecay": {"decay_steps": 5}}, "CosineDecay needs initial_learning_rate"),
        ({"CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 0}}, "a number above 0"),
        ({"CosineDecay": {"initial_learning_rate": -0.1, "decay_steps": 5}}, "a number from 0"),
        ({"CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 5, "warmup_steps": 1.5}}, "a whole number"),
        ({"ExponentialDecay": {"initial_learning_rate": 0.1, "decay_steps": 5}}, "needs decay_rate"),
        ({"ExponentialDecay": {"initial_learning_rate": 0.1, "decay_steps": 5, "decay_rate": 1, "staircase": 1}}, "true or false"),
        ({"PiecewiseConstantDecay": {"boundaries": [1, 2], "values": [0.1, 0.2]}}, "must be one more than boundaries"),
        ({"PiecewiseConstantDecay": {"boundaries": [2, 1], "values": [0.1, 0.2, 0.3]}}, "larger than the one before"),
        ({"PiecewiseConstantDecay": {"boundaries": 5, "values": [0.1, 0.2]}}, "a list of numbers"),
    ],
    ids=str,
)
def test_a_schedule_that_cannot_be_is_refused(schedule, told):
    with pytest.raises(InvalidArgument) as info:
        compilation.check_optimizer({"Adam": {"learning_rate": schedule}})
    assert told in info.value.message and info.value.hint


def test_axes_do_not_clip_in_a_second_way():
    for options in (
        {"optimizer": {"Adam": {"clipnorm": 1}}, "search": {"space": {"optimizer.clipvalue": [0.1, 1]}}},
        {"search": {"space": {"optimizer.clipvalue": [0.1, 1], "optimizer.global_clipnorm": [1, 2]}}},
    ):
        with pytest.raises(InvalidArgument, match="exclude each other"):
            o.parse(options, MODEL)
    assert o.parse({"optimizer": {"Adam": {"clipnorm": 1}}, "search": {"space": {"optimizer.clipnorm": [0.1, 1]}}}, MODEL)
