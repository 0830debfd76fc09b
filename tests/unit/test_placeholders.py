"""Placeholders anywhere: for arguments, names of classes, whole layers, and how often layers are repeated."""

import json
import re
from pathlib import Path

import keras
import pytest

from cerebro_udf import definition, placeholders
from cerebro_udf.coordinator import options, search
from cerebro_udf.coordinator.study import Study
from cerebro_udf.errors import InvalidArgument
from cerebro_udf.segment import network
from tests.unit.test_program import part, spec

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "definitions.md").read_text("utf-8")
MODEL = {"layers": [
    {"Reshape": {"target_shape": [-1, 1]}},
    {"repeat": "$depth", "layers": [{"$cell": {"units": "$units", "return_sequences": True}}, "$after"]},
    "Flatten", {"Dense": {"units": "$classes"}},
]}  # fmt: skip
VALUES = {"depth": 2, "cell": "GRU", "units": 3, "after": {"Dropout": {"rate": 0.1}}, "classes": 3}
SPACE = {"depth": [0, 2], "cell": ["LSTM", "GRU"], "units": [3], "after": ["Identity", {"Dropout": {"rate": 0.1}}]}


def classes(model):
    return [layer["class_name"] for layer in model["config"]["layers"]]


def test_class_layer_and_depth_are_bound():
    assert definition.placeholders(definition.check(MODEL)) == {"depth", "cell", "units", "after"}
    bound = definition.bind(MODEL, VALUES)
    assert classes(bound) == ["Reshape", "GRU", "Dropout", "GRU", "Dropout", "Flatten", "Dense"]
    assert definition.bind(bound, {}) == bound and bound["config"]["layers"][3]["config"] == {"units": 3, "return_sequences": True}
    assert classes(definition.bind(MODEL, {**VALUES, "depth": 0})) == ["Reshape", "Flatten", "Dense"]


def test_what_keras_writes_takes_the_name_of_a_class_too():
    written = json.loads(keras.Sequential([keras.Input((4, 1)), keras.layers.LSTM(3)]).to_json())
    written["config"]["layers"][1]["class_name"] = "$cell"
    written["config"]["layers"][1]["config"] = {"units": 3}
    assert classes(definition.bind(definition.check(written), {"cell": "GRU"})) == ["InputLayer", "GRU"]


def test_the_example_of_the_documentation_is_searched_and_built():
    documented = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    model = definition.check(documented[1])
    given = json.loads(re.search(r"options => '(.*?)'\)", PAGE, re.DOTALL).group(1))
    parsed = options.parse(given, model)
    trials = [params for _, params in iter(Study(parsed.search, 1, model, parsed, "min", None).ask, None)]
    assert len(trials) == 8 and len({trial["depth"] for trial in trials}) > 1
    for params in trials[:3]:
        settings = search.resolve(parsed, params)
        bound = definition.bind(model, {**settings["model_values"], "classes": 3})
        one = {**spec([{"Dense": {"units": 3}}], part()), "definition": bound, "optimizer": settings["optimizer"], "loss": settings["loss"]}
        built, _ = network.build(one, 1)
        assert sum(type(layer).__name__ == params["cell"] for layer in built.layers) == params["depth"]
        assert type(built.optimizer).__name__.lower() == (params["optimizer"] if params["optimizer"] == "adam" else "sgd")
        assert (settings["learning_rate"] is None) == isinstance(params["learning_rate"], dict)
    for text in documented:
        definition.check(text)


@pytest.mark.parametrize("space, says", [
    ({"cell": ["LSTM", "Lambda"]}, "not allowed"),
    ({"cell": ["LSTM", "Conv1D"]}, "no argument"),
    ({"cell": ["LSTM", {"GRU": {}}]}, "stands for a name"),
    ({"cell": [3]}, "stands for a name"),
    ({"after": ["Identity", {"Lambda": {"function": "x"}}]}, "not allowed"),
    ({"after": [{"Dropout": {"rte": 0.1}}]}, "no argument"),
    ({"after": [{"Dropout": {"rate": "$units"}}]}, "holds a placeholder"),
    ({"after": [{"class_name": "Dropout", "module": "os", "config": {}}]}, "module"),
    ({"after": [["Identity"]]}, "not a layer"),
    ({"depth": [1, 2.5]}, "whole number"),
    ({"depth": [True]}, "whole number"),
    ({"depth": [-1]}, "whole number"),
    ({"depth": {"low": 1, "high": 600}}, "more than 1000 layers"),
])  # fmt: skip
def test_every_value_is_checked_before_anything_starts(space, says):
    assert options.parse({"search": {"space": SPACE}}, MODEL)
    with pytest.raises(InvalidArgument, match=says) as refused:
        options.parse({"search": {"space": {**SPACE, **space}}}, MODEL)
    assert "options.search.space.%s" % next(iter(space)) in refused.value.detail and refused.value.hint


@pytest.mark.parametrize("block, says", [
    ({"repeat": 2}, "not a block"),
    ({"repeat": 2, "layers": []}, "not a block"),
    ({"repeat": 2, "layers": ["Flatten"], "name": "x"}, "not a block"),
    ({"repeat": "two", "layers": ["Flatten"]}, "whole number"),
    ({"repeat": 2, "layers": [{"Dense": {"units": 1, "name": "a"}}]}, "cannot have a name"),
    ({"repeat": 2, "layers": [{"repeat": 2, "layers": ["Flatten"]}]}, "not a layer"),
    ({"repeat": 10**9, "layers": ["Flatten"]}, "more than 1000"),
    ({"repeat": 500, "layers": [{"Sequential": {"layers": [{"repeat": 500, "layers": ["Flatten"]}]}}]}, "more than 1000"),
    ({"repeat": 2, "layers": ["Lambda"]}, "not allowed"),
])  # fmt: skip
def test_a_wrong_block_is_refused(block, says):
    with pytest.raises(InvalidArgument, match=says) as refused:
        definition.check({"layers": [block, {"Dense": {"units": 1}}]})
    assert "definition.layers[0]" in refused.value.detail and refused.value.hint


def test_models_within_a_repeated_block_get_names_of_their_own():
    block = {"Sequential": {"layers": [{"Dense": {"units": 2}}]}}
    model = {"layers": [block, {"repeat": 2, "layers": [block]}, {"Dense": {"units": 1}}]}
    assert len(keras.saving.deserialize_keras_object(definition.bind(model, {})).layers) == 4


def test_a_name_of_an_option_is_no_placeholder():
    with pytest.raises(InvalidArgument):
        options.parse({"optimizer": {"$name": {}}}, {"layers": [{"Dense": {"units": 1}}]})
    with pytest.raises(InvalidArgument):
        options.parse({"loss": "$name"}, {"layers": [{"Dense": {"units": 1}}]})


def test_placeholders_of_every_kind_are_found_again_in_a_bound_model():
    bound = definition.bind(MODEL, VALUES)
    found = definition.matched(MODEL, bound)
    assert {name: found[name] for name in ("depth", "cell", "units")} == {"depth": 2, "cell": "GRU", "units": 3}
    filled = definition.fill(MODEL, {name: value for name, value in found.items() if name != "classes"})
    assert definition.bind(filled, {"classes": 3}) == bound
    assert definition.difference(definition.shaping(placeholders.literal(bound)), definition.shaping(bound)) is None
    assert definition.placeholders(definition.shaping(definition.check(MODEL))) == {"depth", "cell", "units", "after"}


def test_text_that_begins_with_a_dollar_sign_is_no_name_of_a_class():
    assert list(placeholders.names_in(placeholders.literal({"$cell": "$x"}))) == []
    assert placeholders.substitute(placeholders.literal({"$cell": "$x"}), {}, "") == {"$cell": "$x"}


@pytest.mark.parametrize("space", [
    {"learning_rate": [0.1, {"ExponentialDecay": {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.9}}]},
    {"optimizer": ["adam", {"SGD": {"learning_rate": {"CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 10}}}}]},
])  # fmt: skip
def test_a_schedule_among_the_values_of_an_axis_excludes_plateaus(space):
    plain = {"layers": [{"Dense": {"units": 1}}]}
    assert options.parse({"search": {"space": space}}, plain)
    with pytest.raises(InvalidArgument, match="exclude each other"):
        options.parse({"search": {"space": space}, "reduce_on_plateau": 2}, plain)
    with pytest.raises(InvalidArgument, match="learning rate|decay_steps"):
        options.parse({"search": {"space": {"learning_rate": [0.1, {"ExponentialDecay": {"initial_learning_rate": 0.1}}]}}}, plain)
