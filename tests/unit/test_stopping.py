"""Early stopping and reduce-on-plateau, against Keras' own callbacks fed with the same logs."""

import math
import random
from types import SimpleNamespace

import keras
import pytest

from cerebro_udf.coordinator import options as o
from cerebro_udf.coordinator.stopping import Verdict, Watch
from cerebro_udf.errors import InvalidArgument

MODEL = {"layers": [{"Dense": {"units": 2}}]}
NAN = math.nan
RECORDED = [
    [1.0, 0.5, 0.4, 0.4, 0.41, 0.39, 0.39, 0.39, 0.39, 0.2],
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    [0.3, 0.2, 0.1, 0.05, 0.04],
    [NAN, 0.5, 0.4, 0.3, 0.2],
    [0.5, NAN, 0.4, NAN, NAN, NAN, 0.3],
    [0.5, 0.5 - 1e-9, 0.5 - 2e-9, 0.5 - 3e-8],  # less than float32 can tell
    [0.5, 0.4999, 0.4998, 0.4997, 0.4996, 0.4995],
    [2.0, 1.5, 1.7, 1.6, 1.4, 1.45, 1.41, 1.42, 1.43, 1.39, 1.3, 1.31, 1.32, 1.33],
]


def watch(rank=("val_loss", "min"), **options):
    return Watch(o.parse(options, MODEL), rank)


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["accuracy"])
    return model


def sequences():
    drawn = random.Random(5)
    noisy = [[max(0.0, 1 / (1 + e) + drawn.gauss(0, 0.08)) for e in range(25)] for _ in range(6)]
    for values in noisy[:3]:
        values[drawn.randrange(25)] = NAN
    return RECORDED + noisy


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"patience": 1},
        {"patience": 3, "min_delta": 0.02},
        {"patience": 2, "start_from_epoch": 3},
        {"patience": 2, "baseline": 0.45},
        {"patience": 2, "baseline": 0.45, "min_delta": 0.1, "start_from_epoch": 1},
        {"patience": 2, "direction": "max"},
    ],
)
def test_early_stopping_is_that_of_keras(model, given):
    mode = given.get("direction", "min")
    for values in sequences():
        kept = {key: value for key, value in given.items() if key != "direction"}
        theirs = keras.callbacks.EarlyStopping("val_loss", mode=mode, **kept)
        theirs.set_model(model)
        model.stop_training = False
        theirs.on_train_begin()
        ours = watch(early_stopping={"monitor": "val_loss", "direction": mode, **kept})
        for epoch, value in enumerate(values):
            theirs.on_epoch_end(epoch, {"loss": 1.0, "val_loss": value})
            recorded = None if math.isnan(value) else value
            verdict = ours.epoch(epoch + 1, {"loss": 1.0, "val_loss": recorded}, 0.1)
            assert (verdict.stop is not None) == model.stop_training, (values, epoch)
            assert not verdict.diverged and verdict.learning_rate is None
            if model.stop_training:
                assert "val_loss has not improved for " in verdict.stop
                break


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"patience": 0},
        {"patience": 1, "factor": 0.3},
        {"patience": 2, "factor": 0.5, "cooldown": 2},
        {"patience": 1, "factor": 0.1, "min_learning_rate": 0.003},
        {"patience": 1, "factor": 0.1, "min_learning_rate": 0.01},
        {"patience": 1, "cooldown": 1, "min_delta": 0.05, "direction": "max"},
    ],
)
def test_reduction_on_a_plateau_is_that_of_keras(model, given):
    mode = given.get("direction", "min")
    for values in sequences():
        kept = {key: value for key, value in given.items() if key not in ("direction", "min_learning_rate")}
        theirs = keras.callbacks.ReduceLROnPlateau("val_loss", mode=mode, min_lr=given.get("min_learning_rate", 0.0), **kept)
        theirs.set_model(model)
        theirs.on_train_begin()
        model.optimizer.learning_rate = 0.01
        rate = float(model.optimizer.learning_rate)
        other = keras.Variable(rate)  # what a state holds of a rate, and reports
        ours = watch(reduce_on_plateau={"monitor": "val_loss", **given})
        for epoch, value in enumerate(values):
            theirs.on_epoch_end(epoch, {"loss": 1.0, "val_loss": value})
            recorded = None if math.isnan(value) else value
            verdict = ours.epoch(epoch + 1, {"loss": 1.0, "val_loss": recorded}, float(other))
            if verdict.learning_rate is not None:
                other.assign(verdict.learning_rate)
            assert float(other) == float(model.optimizer.learning_rate), (values, epoch)
            assert verdict.stop is None


def test_the_ranking_metric_is_monitored_unless_another_is_named():
    ours = watch(("val_accuracy", "max"), early_stopping=1, rank_by="val_accuracy")
    assert ours.epoch(1, {"loss": 1.0, "val_accuracy": 0.5, "val_loss": 1.0}, None) == Verdict()
    assert ours.epoch(2, {"loss": 1.0, "val_accuracy": 0.6, "val_loss": 2.0}, None) == Verdict()
    assert ours.epoch(3, {"loss": 1.0, "val_accuracy": 0.6, "val_loss": 0.5}, None).stop == "val_accuracy has not improved for 1 epoch"
    named = watch(early_stopping={"monitor": "val_accuracy", "patience": 1})
    assert named.epoch(1, {"loss": 1.0, "val_accuracy": 0.5}, None) == named.epoch(2, {"loss": 1.0, "val_accuracy": 0.6}, None)


@pytest.mark.parametrize("loss", [None, NAN, math.inf])
def test_a_trial_whose_training_loss_is_not_finite_has_diverged(loss):
    verdict = watch().epoch(3, {"loss": loss, "val_loss": 0.1}, 0.1)
    assert verdict == Verdict("diverged: the training loss of epoch 3 is NaN or infinite", None, True)
    assert watch().epoch(3, {"loss": 0.1, "val_loss": None}, 0.1) == Verdict()


def test_both_decide_on_the_same_epoch():
    ours = watch(early_stopping=2, reduce_on_plateau={"patience": 1, "factor": 0.5})
    verdicts = [ours.epoch(epoch, {"loss": 1.0, "val_loss": 1.0}, 0.5) for epoch in (1, 2, 3)]
    assert verdicts == [Verdict(), Verdict(None, 0.25), Verdict("val_loss has not improved for 2 epochs", 0.25)]


def test_options_are_complete_when_they_are_stored():
    parsed = o.parse({"early_stopping": {"monitor": "val_accuracy", "patience": 4.0}, "reduce_on_plateau": 3}, MODEL)
    assert parsed.early_stopping == {
        "monitor": "val_accuracy", "direction": "max", "patience": 4, "min_delta": 0.0, "baseline": None, "start_from_epoch": 0,
    }  # fmt: skip
    assert parsed.reduce_on_plateau == {
        "monitor": None, "direction": None, "patience": 3, "factor": 0.1, "min_delta": 1e-4, "cooldown": 0, "min_learning_rate": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "options, told",
    [
        ({"early_stopping": True}, "wrong value"),
        ({"early_stopping": -1}, "wrong value"),
        ({"early_stopping": {"patience": 1.5}}, "early_stopping.patience"),
        ({"early_stopping": {"patience": True}}, "early_stopping.patience"),
        ({"early_stopping": {"min_delta": -0.1}}, "early_stopping.min_delta"),
        ({"early_stopping": {"baseline": "0.3"}}, "early_stopping.baseline"),
        ({"early_stopping": {"patient": 3}}, 'unknown key "patient"'),
        ({"early_stopping": {"restore_best_weights": True}}, "unknown key"),
        ({"early_stopping": {"monitor": "val_auc"}, "task": "classification"}, "does not report"),
        ({"early_stopping": {"monitor": "val_loss"}, "validation": 0}, "no rows are held out"),
        ({"early_stopping": {"monitor": "val_mean"}, "metrics": ["mean"]}, "direction"),
        ({"early_stopping": {"direction": "up", "monitor": "loss"}}, "early_stopping.direction"),
        ({"early_stopping": {"direction": "max"}}, "has a direction and no monitor"),
        ({"reduce_on_plateau": {"factor": 1}}, "reduce_on_plateau.factor"),
        ({"reduce_on_plateau": {"factor": 0}}, "reduce_on_plateau.factor"),
        ({"reduce_on_plateau": {"min_lr": 0.1}}, 'unknown key "min_lr"'),
        ({"reduce_on_plateau": {"min_learning_rate": float("inf")}}, "reduce_on_plateau.min_learning_rate"),
        ({"reduce_on_plateau": {"baseline": 1}}, 'unknown key "baseline"'),
        ({"reduce_on_plateau": {"monitor": "loss", "direction": ["min"]}}, "reduce_on_plateau.direction"),
    ],
)
def test_wrong_options_are_refused_with_the_key(options, told):
    with pytest.raises(InvalidArgument) as info:
        o.parse(options, MODEL)
    assert told in info.value.message and info.value.hint


SCHEDULE = {"Adam": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 9}}}}


def test_a_schedule_and_reduction_on_a_plateau_exclude_each_other():
    for options in ({"optimizer": SCHEDULE}, {"search": {"space": {"optimizer": ["sgd", SCHEDULE]}}}):
        with pytest.raises(InvalidArgument, match="schedule exclude each other"):
            o.parse({"reduce_on_plateau": 2, **options}, MODEL)
    for options in ({"learning_rate": 0.1}, {"search": {"space": {"learning_rate": [0.1, 0.2]}}}):
        assert o.parse({"reduce_on_plateau": 2, "optimizer": SCHEDULE, **options}, MODEL)
    assert o.parse({"early_stopping": 2, "optimizer": SCHEDULE}, MODEL)


def test_a_metric_that_is_missing_or_has_several_values_is_refused():
    given = SimpleNamespace(**vars(o.parse({"early_stopping": 2}, MODEL)))
    for metrics, told in (({"loss": 1.0}, "does not have"), ({"loss": 1.0, "val_loss": [1.0, 2.0]}, "several values")):
        with pytest.raises(InvalidArgument, match=told):
            Watch(given, ("val_loss", "min")).epoch(1, metrics, None)
