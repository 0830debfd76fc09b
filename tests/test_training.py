"""What changes how trials train, through fit: early stopping, learning rates, weights of rows and classes, averages of weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests import outcome
from tests.session import LINE, LOGIT, POINTS, points

WARM = True
TYPES = {**POINTS, "w": "real", "negative": "integer", "zero": "integer", "kind": "text"}


@pytest.fixture(scope="module")
def table(session):
    rows = points()
    weight = np.arange(60) % 4
    kind = np.where(rows["label"], "cat", "dog")
    rows.update(w=weight, negative=weight - 1, zero=weight * 0, kind=kind)
    return session.sharded(TYPES, rows, sizes=[30, 30])


def history(session, run):
    return [(metrics, rate) for _, _, metrics, rate in outcome.history(session.cluster, run)]


def test_trial_stops_when_it_no_longer_improves_and_its_best_epoch_is_kept(session, table):
    run = session.fit(
        table, session.model(), "label", validation=0.3, epochs=9, learning_rate=1e-30, rank_by="val_accuracy", early_stopping=2
    )
    assert len(history(session, run)) == 3
    ((state, best, stopped),) = session.rows("select state, best_epoch, stopped from cerebro.trial where run = %s", run)
    assert (state, best, stopped) == ("done", 1, "val_accuracy has not improved for 2 epochs")
    assert session.rows("select cerebro.predict_class(%s, array[1, -1])", run)


def test_the_best_epoch_serves_although_others_followed(session, table):
    options = {"validation": 0.3, "epochs": 6, "optimizer": "sgd", "learning_rate": 300, "early_stopping": 2, "encoders": {"a": "none"}}
    run = session.fit(table, session.model(LOGIT), "label", ["a"], **options)
    losses = [metrics["val_loss"] for metrics, _ in history(session, run)]
    ((best, metric),) = session.rows("select best_epoch, metric from cerebro.trial where run = %s", run)
    assert best == 1 + losses.index(min(losses)) == len(losses) - 2 and metric == min(losses)
    states = outcome.states(session.cluster, run)
    (kernel, bias), latest = outcome.weights(outcome.arrays(states[0, 2 * best])), outcome.weights(outcome.arrays(states[max(states)]))
    ((answer,),) = session.rows("select (cerebro.predict_probabilities(%s, '[0.001]'::text) ->> 'true')::float8", run)
    assert answer == pytest.approx(outcome.softmax(0.001 * kernel + bias)[0, 1], rel=1e-5)
    assert answer != pytest.approx(outcome.softmax(0.001 * latest[0] + latest[1])[0, 1], rel=1e-3)


def test_accuracy_by_its_short_name_is_reported_and_ranked_by_that_name(session, table):
    run = session.fit(table, session.model(), "label", validation=0.3, metrics=["acc"], rank_by="val_acc")
    ((metrics, _),) = history(session, run)
    ((metric,),) = session.rows("select metric from cerebro.trial where run = %s", run)
    assert set(metrics) == {"loss", "acc", "val_loss", "val_acc"} and metric == metrics["val_acc"]
    error = session.refused(table, session.model(), "label", validation=0.3, metrics=["acc"], rank_by="val_accuracy")
    assert error.sqlstate == "22023" and "val_acc" in error.hint


def test_rows_sorted_by_class_each_in_a_shard_of_its_own_are_learnt(session):
    rows = [[4.0 * kind + 0.01 * n, kind] for kind in range(3) for n in range(30)]
    sorted_ = session.sharded({"x": "real", "kind": "integer"}, rows, sizes=[30, 30, 30])
    model = session.model({"layers": [{"Dense": {"units": 8, "activation": "relu"}}, *LOGIT["layers"]]})
    validation = {"fraction": 0.2, "stratify": True}
    run = session.fit(sorted_, model, "kind", ["x"], epochs=8, learning_rate=0.02, batch_size=8, order="random", validation=validation)
    assert dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, sorted_.name))["accuracy"] == 1


@pytest.mark.parametrize(
    "option, value",
    [
        ("rank_by", "accuracy"), ("early_stopping", {"monitor": "val_accuracy"}), ("reduce_on_plateau", {"monitor": "accuracy"}),
    ],
)  # fmt: skip
def test_metric_that_is_not_derived_from_this_label_is_told_before_the_first_visit(session, table, option, value):
    error = session.refused(table, session.model(LINE), "a", ["b"], validation=0.3, **{option: value})
    assert error.sqlstate == "22023" and error.message.startswith('option "%s" names "' % option)
    assert error.detail == "It reports loss, mae, val_loss, val_mae." and "Known are: loss, mae, val_loss, val_mae." in error.hint


def test_learning_rate_in_the_history_is_what_the_plateau_left_of_it(session, table):
    run = session.fit(
        table, session.model(), "label", epochs=4, learning_rate=0.5, optimizer="sgd",
        reduce_on_plateau={"monitor": "loss", "patience": 1, "min_delta": 100, "factor": 0.1, "min_learning_rate": 0.01},
    )  # fmt: skip
    assert [rate for _, rate in history(session, run)] == [float(np.float32(rate)) for rate in (0.5, 0.5, 0.05, 0.01)]


def test_learning_rate_in_the_history_is_the_schedules(session, table):
    rate = {"PiecewiseConstantDecay": {"boundaries": [5, 9], "values": [0.5, 0.25, 0.125]}}
    run = session.fit(table, session.model(), "label", epochs=3, batch_size=16, optimizer={"SGD": {"learning_rate": rate}})
    assert [rate for _, rate in history(session, run)] == [0.5, 0.25, 0.125]  # 4 minibatches per epoch


def test_diverged_trial_fails_with_the_reason_and_the_others_go_on(session, table):
    run = session.fit(
        table, session.model({"layers": [{"Dense": {"units": 8}}] * 3 + LINE["layers"]}), "a", ["b"], epochs=3, optimizer="sgd",
        batch_size=1, search={"space": {"learning_rate": [0.001, 1e20]}},
    )  # fmt: skip
    rows = session.rows("select state, error from cerebro.trial where run = %s order by trial", run)
    assert rows[0] == ("done", None)
    assert rows[1][0] == "failed" and "diverged: the training loss of epoch 1 is NaN or infinite" in rows[1][1]
    assert [row[:2] for row in outcome.history(session.cluster, run)] == [(0, 1), (0, 2), (0, 3), (1, 1)]


def test_loss_that_no_int64_holds_is_a_number_as_any_other(session, table):
    """JSON of jsonb has it in digits."""
    run = session.fit(
        table, session.model(LINE), "a", ["b"], epochs=2, optimizer="sgd", learning_rate=1e5, batch_size=64, validation=0, rank_by="loss",
        early_stopping=5, reduce_on_plateau={"patience": 1, "min_delta": 1},
    )  # fmt: skip
    (_, (metrics, _)) = history(session, run)
    assert 2**64 < metrics["loss"] < 3e38
    assert session.rows("select state from cerebro.trial where run = %s", run) == [("done",)]


def test_losses_that_compare_unit_by_unit_are_given_a_column_per_class(session, table):
    """Of two trials that differ in how labels are written alone, the figures are the same."""
    logits = {"from_logits": True}
    losses = [{"SparseCategoricalCrossentropy": logits}, {"CategoricalCrossentropy": logits}, "mse"]
    common = {"seed": 3, "validation": 0.3, "learning_rate": 0.01}
    found = []
    for loss in losses[:2]:
        run = session.fit(table, session.model(), "kind", loss=loss, **common)
        found.append(history(session, run)[0][0])
        judged = dict(session.rows("select metric, value from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
        found[-1]["judged"] = judged["loss"]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    run = session.fit(table, session.model(), "kind", search={"space": {"loss": losses}}, epochs=2, **common)
    assert session.rows("select state from cerebro.trial where run = %s", run) == [("done",)] * 3


@pytest.mark.parametrize("options", [{"loss": "circle"}, {"search": {"space": {"loss": ["mse", "sparse_categorical_crossentropy"]}}}])
def test_loss_of_classes_on_a_quantity_is_refused_before_anything_starts(session, table, options):
    error = session.refused(table, session.model(LINE), "a", ["b"], **options)
    assert error.sqlstate == "22023" and error.message.endswith('compares classes, label "a" is a quantity') and '"mse"' in error.hint


def test_weights_count_in_the_loss_as_in_keras(session, table):
    """With one minibatch of all rows and a rate that changes nothing, loss and metrics are those of the first weights."""
    common = {"validation": 0.3, "batch_size": 64, "learning_rate": 1e-30, "weighted_metrics": ["accuracy"]}
    losses = {}
    for name, options in {
        "plain": {}, "rows": {"sample_weight": "w"}, "none": {"sample_weight": "w", "class_weight": {"cat": 1}},
        "double": {"sample_weight": "w", "class_weight": {"cat": 2, "dog": 2.0}},
    }.items():  # fmt: skip
        run = session.fit(table, session.model(), "kind", **common, **options)
        ((metrics, _),) = history(session, run)
        assert set(metrics) == {key + name for key in ("", "val_") for name in ("loss", "accuracy", "weighted_accuracy")}
        losses[name] = metrics
    assert losses["rows"] == losses["none"]
    assert losses["rows"]["loss"] != losses["plain"]["loss"] and losses["rows"]["val_loss"] != losses["plain"]["val_loss"]
    assert losses["rows"]["accuracy"] == losses["plain"]["accuracy"]
    assert losses["double"]["loss"] == pytest.approx(2 * losses["rows"]["loss"], rel=1e-6)
    assert losses["double"]["val_loss"] == losses["rows"]["val_loss"]
    evaluated = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, table.name))
    unweighted = session.sharded(POINTS | {"kind": "text"}, {**points(), "kind": ["cat", "dog"] * 30}, sizes=[30, 30])
    other = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, unweighted.name))
    assert evaluated["accuracy"] != evaluated["weighted_accuracy"] and other["accuracy"] == other["weighted_accuracy"]


def test_balanced_classes_are_counted_over_training_rows(session, table):
    run = session.fit(table, session.model(), "kind", validation=0.3, class_weight="balanced")
    ((encoders,),) = session.rows("select encoders from cerebro.run where run = %s", run)
    label = encoders["labels"][0]
    assert sum(label["counts"]) == encoders["rows"]["train"] and len(label["counts"]) == 2
    assert np.dot(label["counts"], label["weights"]) == pytest.approx(encoders["rows"]["train"])


def test_predictions_use_the_moving_average_and_the_state_keeps_both(session, table):
    optimizer = {"SGD": {"learning_rate": 0.2, "use_ema": True, "ema_momentum": 0.5}}
    run = session.fit(
        table, session.model(LINE), "a", ["b"], optimizer=optimizer, epochs=2, encoders={"b": "none"}, metrics=[], batch_size=16
    )
    ((best,),) = session.rows("select best_epoch from cerebro.trial where run = %s", run)
    state = outcome.arrays(outcome.states(session.cluster, run)[0, 2 * best])
    raw, averages = (state["model/0"], state["model/1"]), (state["optimizer/2"], state["optimizer/3"])
    assert not np.array_equal(raw[0], averages[0])
    ((value,),) = session.rows("select cerebro.predict_value(%s, array[3])", run)
    assert value == pytest.approx(float(3 * averages[0][0, 0] + averages[1][0]), rel=1e-6)
    (loss,) = session.rows("select value from cerebro.evaluate(%s, %s::text::regclass) where metric = 'loss'", run, table.name)
    rows = session.rows("select a::float8, b from " + table.name)
    expected = np.mean([(b * averages[0][0, 0] + averages[1][0] - a) ** 2 for a, b in rows])
    assert loss[0] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    "label, features, options, told",
    [
        ("kind", None, {"class_weight": {"catt": 2}}, ("22023", 'option "class_weight" names "catt", which label "kind" never is')),
        ("a", ["b"], {"class_weight": "balanced"}, ("22023", 'option "class_weight" is for classification, label "a" is a quantity')),
        ("label", ["a", "w"], {"sample_weight": "w"}, ("22023", 'sample_weight "w" is among the features')),
        ("w", ["a"], {"sample_weight": "w"}, ("22023", 'sample_weight "w" is the label')),
        ("label", None, {"sample_weight": "kind"}, ("42804", 'column "kind" cannot be a sample_weight')),
        ("label", None, {"sample_weight": "wt"}, ("42703", 'column "wt" of table')),
        ("label", None, {"sample_weight": "negative"}, ("22000", 'column "negative" holds negative weights')),
        ("label", None, {"sample_weight": "zero"}, ("22000", 'column "zero" weighs every training row 0')),
        ("label", None, {"optimizer": {"Adam": {"clipnorm": 1, "clipvalue": 1}}}, ("22023", "optimizer: clipnorm and clipvalue")),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_the_first_visit(session, table, label, features, options, told):
    error = session.refused(table, session.model(LOGIT if label != "a" else LINE), label, features, **options)
    assert error.sqlstate == told[0] and error.message.startswith(told[1]) and error.hint
