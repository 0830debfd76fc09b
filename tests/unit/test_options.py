"""Options: defaults, strict types, one error per mistake, each naming key, value and repair."""

import json

import pytest

from cerebro_udf import keras_names
from cerebro_udf.coordinator import directions, ends
from cerebro_udf.coordinator import options as o
from cerebro_udf.errors import InvalidArgument, NotSupported

MODEL = {"layers": [{"Dense": {"units": 2}}]}
VARIED = {"layers": [{"Dense": {"units": "$units"}}]}


def parse(**options):
    return o.parse(options, MODEL)


def test_no_options_are_sensible_ones():
    expected = {
        "epochs": 10,
        "batch_size": 32,
        "loss": None,
        "metrics": None,
        "task": None,
        "validation": 0.2,
        "seed": None,
        "order": "fastest",
        "search": None,
        "segments": None,
        "nulls": "error",
        "checkpoint": None,
        "memory": None,
        "rank_by": None,
        "if_exists": "error",
        "learning_rate": None,
        "encoders": {},
        "max_retries": 2,
        "time_limit": None,
        "init_from": None,
        "early_stopping": None,
        "reduce_on_plateau": None,
        "class_weight": None,
        "sample_weight": None,
        "outputs": None,
        "loss_weights": None,
        "weighted_metrics": None,
        "precision": "float32",
        "fuse": None,
        "inputs": None,
        "augment": {},
        "filter": None,
        "sample": None,
        "retention": None,
    }
    for given in (None, {}, dict.fromkeys(expected)):
        stored = o.parse(given, MODEL).to_json()
        assert stored.pop("optimizer")["class_name"] == "Adam"
        assert stored == expected


def test_stored_options_come_back_equal():
    options = parse(
        epochs=3.0,
        metrics=["accuracy", {"AUC": {}}],
        rank_by="val_auc",
        memory="2GB",
        seed=2**63 - 1,
        search={"space": {"learning_rate": [0.1, 0.01]}},
        encoders={"a": {"embedding": {"dim": 8.0}}},
        optimizer={"SGD": {"momentum": 0.9}},
        loss="mse",
    )
    again = o.Options.from_json(json.loads(json.dumps(options.to_json())))
    assert again == options
    assert options.epochs == 3 and isinstance(options.epochs, int)
    assert options.encoders == {"a": {"embedding": {"dim": 8}}}


def test_stored_options_of_another_version_keep_what_is_known():
    assert o.Options.from_json({"epochs": 4, "gone": 1}).epochs == 4


WRONG = {
    "epochs": [0, -1, 1.5, "3", True, [], 2**31, float("nan"), float("inf")],
    "batch_size": [0, "32", False],
    "validation": [1, -0.1, "0.2", True],
    "seed": [-1, 2**63, 1.5, "1"],
    "order": ["fast", 1, ["fixed"]],
    "segments": [0, 65, True],
    "nulls": ["ignore", False],
    "checkpoint": ["never"],
    "memory": [0, 1.5, True, "2 gigs", "0GB", "GB", [], "-1GB"],
    "if_exists": ["overwrite"],
    "learning_rate": [0, -1, "0.1", True, {"CosineDecay": {}}, float("inf"), float("nan"), 10**400],
    "max_retries": [-1, 0.5],
    "task": ["cluster", True],
    "encoders": [
        [],
        {"a": "normalize"},
        {"a": {"embedding": 8}},
        {"a": {"embedding": {"dim": 0}}},
        {"a": {"embedding": {"size": 8}}},
        {"a": True},
        {"a": {"one_hot": {"dim": 3}}},
        {"a": {"bucketize": {"buckets": 1}}},
        {"a": {"bucketize": {"buckets": 3, "boundaries": [1]}}},
        {"a": {"bucketize": {"boundaries": [2, 1]}}},
        {"a": {"bucketize": {"boundaries": []}}},
        {"a": {"bucketize": {"as": "minmax"}}},
        {"a": {"bucketize": {"as": {"embedding": {"dim": 0}}}}},
    ],
    "rank_by": [3, "", {"metric": 3}, {"metric": "loss", "direction": "up"}, {}],
    "metrics": ["accuracy", 3],
    "search": [[], "grid", 3],
    "class_weight": ["even", {}, [1, 2], {"a": -1}, {"a": "1"}, {"a": True}, 2],
    "sample_weight": ["", 3, ["w"]],
    "weighted_metrics": ["accuracy", 3],
    "precision": ["float16", "bfloat16", 16],
}


@pytest.mark.parametrize("key, value", [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_value_names_the_key_the_value_and_the_form(key, value):
    with pytest.raises(InvalidArgument) as info:
        parse(**{key: value})
    assert key in info.value.message and info.value.sqlstate == "22023"
    assert info.value.detail and info.value.hint


@pytest.mark.parametrize(
    "key, value",
    [
        ("validation", 0),
        ("validation", 0.999),
        ("memory", 1),
        ("memory", "512MB"),
        ("memory", "1.5 GB"),
        ("segments", 64),
        ("epochs", 3.0),
        ("max_retries", 0),
        ("seed", 0),
        ("checkpoint", "epoch"),
        ("metrics", []),
        ("learning_rate", 1),
        ("encoders", {"a": "one_hot", "b": {"embedding": {}}}),
    ],
)
def test_values_at_the_edge_are_taken(key, value):
    assert getattr(parse(**{key: value}), key) is not None


@pytest.mark.parametrize(
    "key, hint", [("epoch", "epochs"), ("batchsize", "batch_size"), ("Seed", "seed"), ("EPOCHS", "epochs"), ("xyz", "epochs")]
)
def test_an_unknown_option_gets_the_nearest_one(key, hint):
    with pytest.raises(InvalidArgument) as info:
        parse(**{key: 1})
    assert key in info.value.message and hint in info.value.hint


@pytest.mark.parametrize("key", sorted(o.LATER))
def test_an_option_that_is_to_come_is_refused_by_name(key):
    with pytest.raises(NotSupported) as info:
        parse(**{key: 1})
    assert key in info.value.message and info.value.sqlstate == "0A000"


@pytest.mark.parametrize(
    "given, seconds",
    [(90, 90), (0.5, 0.5), ("90", None), ("90s", 90), ("90 sec", 90), ("45min", 2700), ("1.5 hours", 5400), ("2h", 7200), ("1 day", 86400),
     ("1h 30min", 5400), ("1 d 2 h", 93600), ("", None), ("2 weeks", None), ("-1h", None), ("h", None), (0, None), (True, None),
     ("0s", None), (1e300, None), ([1], None)],
)  # fmt: skip
def test_a_time_limit_is_seconds_or_a_time_in_words(given, seconds):
    if seconds is None:
        with pytest.raises(InvalidArgument):
            parse(time_limit=given)
    else:
        assert parse(time_limit=given).time_limit == seconds


@pytest.mark.parametrize("options", [[], "epochs", 3])
def test_options_must_be_an_object(options):
    with pytest.raises(InvalidArgument):
        o.parse(options, MODEL)


def test_optimizer_loss_and_metrics_are_checked_here():
    for key, value in [("optimizer", "adamm"), ("loss", "msee"), ("metrics", ["acuracy"])]:
        with pytest.raises(InvalidArgument) as info:
            parse(**{key: value})
        assert "Did you mean" in info.value.hint


def test_a_placeholder_given_as_an_option_is_told_where_it_goes():
    with pytest.raises(InvalidArgument) as caught:
        o.parse({"units": 8}, VARIED)
    assert caught.value.message == '"units" is a placeholder of the model, not an option'
    assert '{"search": {"space": {"units": [8]}}}' in caught.value.hint


def test_a_placeholder_needs_an_axis():
    for search in (None, {"space": {"learning_rate": [0.1]}}):
        with pytest.raises(InvalidArgument) as info:
            o.parse({"search": search}, VARIED)
        assert '"$units"' in info.value.message and "options.search.space" in info.value.hint
    assert o.parse({"search": {"space": {"units": [1, 2]}}}, VARIED).search


def test_two_metrics_of_one_name_are_refused():
    for metrics in (["mae", "mae"], [{"AUC": {}}, {"AUC": {"curve": "PR"}}], [{"AUC": {"name": "loss"}}]):
        with pytest.raises(InvalidArgument) as info:
            parse(metrics=metrics)
        assert "name" in info.value.hint
    assert parse(metrics=[{"AUC": {}}, {"AUC": {"curve": "PR", "name": "pr"}}])


# ---- the metric to rank by


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"rank_by": "val_accuracy"}, ("val_accuracy", "max")),
        ({"rank_by": "val_mae"}, ("val_mae", "min")),
        ({"rank_by": "loss"}, ("loss", "min")),
        ({"rank_by": {"metric": "val_loss", "direction": "max"}}, ("val_loss", "max")),
        ({"rank_by": "val_pr", "metrics": [{"AUC": {"curve": "PR", "name": "pr"}}]}, ("val_pr", "max")),
        ({"rank_by": "val_miss", "metrics": [{"FalseNegatives": {"name": "miss"}}]}, ("val_miss", "min")),
        ({"rank_by": {"metric": "mean", "direction": "max"}, "metrics": ["mean"]}, ("mean", "max")),
        ({"rank_by": "val_weighted_accuracy", "weighted_metrics": ["accuracy"]}, ("val_weighted_accuracy", "max")),
        ({"rank_by": "val_auc", "weighted_metrics": [{"AUC": {}}]}, ("val_auc", "max")),
        ({}, ("val_loss", "min")),
    ],
)
def test_rank(options, expected):
    parsed = parse(**options)
    assert o.rank(parsed, True) == expected


def test_without_held_out_rows_the_loss_ranks():
    assert o.rank(parse(validation=0), False) == ("loss", "min")
    assert o.default_rank(True) == {"metric": "val_loss", "direction": "min"}


@pytest.mark.parametrize(
    "options, told",
    [
        ({"rank_by": "val_auc", "task": "regression"}, "does not report"),
        ({"rank_by": "val_accuracy", "metrics": ["mae"]}, "does not report"),
        ({"rank_by": "val_loss", "validation": 0}, "held out"),
        ({"rank_by": "mean", "metrics": ["mean"]}, "direction"),
        ({"rank_by": "val_f1", "metrics": [{"F1Score": {"name": "f1"}}]}, "several values"),
        ({"rank_by": {"metric": "f1", "direction": "max"}, "weighted_metrics": [{"F1Score": {"name": "f1"}}]}, "several values"),
        ({"early_stopping": {"monitor": "p"}, "metrics": [{"Precision": {"name": "p", "thresholds": [0.3, 0.7]}}]}, "several values"),
        ({"reduce_on_plateau": {"monitor": "r2_score"}, "metrics": [{"R2Score": {"class_aggregation": None}}]}, "several values"),
    ],
)
def test_a_metric_that_cannot_rank_is_refused(options, told):
    with pytest.raises(InvalidArgument) as info:
        parse(**options)
    assert told in info.value.message and info.value.hint


@pytest.mark.parametrize("options, task, reports", [
    ({}, "classification", "accuracy, loss, val_accuracy, val_loss"),
    ({"validation": 0, "rank_by": "mae"}, "multi_label", "accuracy, loss"),
    ({"weighted_metrics": ["mse"]}, "regression", "loss, mae, mse, val_loss, val_mae, val_mse"),
])  # fmt: skip
def test_a_metric_that_the_task_does_not_give_is_refused_with_those_that_it_gives(options, task, reports):
    parsed = parse(**{"rank_by": "auc", **options})  # the task is not known yet
    with pytest.raises(InvalidArgument, match="does not report") as info:
        o.check_named(parsed, [task])
    assert info.value.detail == "It reports %s." % reports


@pytest.mark.parametrize("metrics", [[{"AUC": {"name": "val_loss"}}], ["mae", {"AUC": {"name": "val_accuracy"}}]])
def test_a_metric_is_not_named_as_what_held_out_rows_give(metrics):
    for option in ("metrics", "weighted_metrics"):
        with pytest.raises(InvalidArgument, match='a metric of the run is named "val_') as info:
            parse(**{option: metrics})
        assert "held-out rows" in info.value.detail


@pytest.mark.parametrize(
    "metric, expected",
    [
        ("accuracy", "max"),
        ("acc", "max"),
        ("val_acc", "max"),
        ("auc", "max"),
        ("AUC", "max"),
        ("val_loss", "min"),
        ("mse", "min"),
        ("mae", "min"),
        ("val_mean_absolute_error", "min"),
        ("root_mean_squared_error", "min"),
        ("precision", "max"),
        ("f1_score", "max"),
        ("r2_score", "max"),
        ("cosine_similarity", "max"),
        ("io_u", "max"),
        ("false_negatives", "min"),
        ("true_positives", "max"),
        ("sparse_categorical_accuracy", "max"),
        ("huber", "min"),
        ("sparse_categorical_crossentropy", "min"),
        ("crossentropy", "min"),
        ("kl_divergence", "min"),
        ("dice", "min"),
    ],
)
def test_directions_of_keras_metrics(metric, expected):
    assert directions.direction(metric) == expected


def test_every_metric_and_loss_of_keras_has_a_direction_or_says_so():
    for name in [
        *keras_names.METRICS,
        *keras_names.LOSSES,
        *keras_names.METRIC_ALIASES,
        *keras_names.LOSS_ALIASES,
    ]:
        if name.lower() in ("mean", "sum"):
            with pytest.raises(InvalidArgument):
                directions.direction(name)
        else:
            assert directions.direction("val_" + name) == directions.direction(name) in ("min", "max")


def test_an_unknown_metric_asks_for_the_direction():
    with pytest.raises(InvalidArgument) as info:
        directions.direction("val_profit")
    assert '"direction"' in info.value.hint


# ---- evaluate, amounts


def test_options_of_evaluate():
    assert o.parse_evaluate(None) == {"trial": None, "segments": None, "nulls": None, "memory": None, "filter": None}
    assert o.parse_evaluate({"trial": 3.0, "nulls": "skip"})["trial"] == 3
    for wrong in ({"epochs": 1}, {"trial": -1}, {"trial": "1"}, []):
        with pytest.raises(InvalidArgument):
            o.parse_evaluate(wrong)


@pytest.mark.parametrize("text, expected", [("2GB", 2**31), ("1.5 kB", 1536), ("10B", 10), ("1TB", 2**40)])
def test_amounts_of_memory(text, expected):
    assert o.parse_bytes(text) == expected


def test_encoders_are_completed_and_spelling_mistakes_named():
    given = {"a": "bucketize", "b": {"bucketize": {"boundaries": [1, 2], "as": {"embedding": {}}}}, "c": {"embedding": {"dim": 4.0}}}
    assert parse(encoders=given).encoders == {
        "a": {"bucketize": {"buckets": 10}}, "b": {"bucketize": {"boundaries": [1.0, 2.0], "as": "embedding"}},
        "c": {"embedding": {"dim": 4}},
    }  # fmt: skip
    for value, words in (({"a": "minmaks"}, '"minmax"'), ({"a": {"bucketize": {"bucket": 3}}}, '"buckets"')):
        with pytest.raises(InvalidArgument) as info:
            parse(encoders=value)
        assert "Did you mean %s?" % words in info.value.hint


@pytest.mark.parametrize(
    "labels, words",
    [
        ([("a", "text", None), ("b", "integer", None)], 'Outputs "a", "b" have classes.'),
        ([("a", "text", None), ("b", "boolean[]", None)], 'Outputs "a", "b" have classes.'),
        ([("a", "real", None), ("b", "integer", "regression")], 'Labels "y_a", "y_b" are quantities.'),
        ([("a", "real", None), ("b", "text", None)], None),
        ([("a", "real", None), ("b", "boolean[]", None)], None),
    ],
)
def test_the_placeholder_of_classes_stands_for_those_of_one_output(labels, words):
    specs = [{"name": "y_" + output, "output": output, "type": type_, "task": task} for output, type_, task in labels]
    ends.check_classes(specs, {"layers": [{"Dense": {"units": 3}}]})
    counted = {"layers": [{"Dense": {"units": "$classes"}}]}
    if words is None:
        ends.check_classes(specs, counted)
        return
    with pytest.raises(InvalidArgument) as caught:
        ends.check_classes(specs, counted)
    assert caught.value.detail == words and caught.value.hint
