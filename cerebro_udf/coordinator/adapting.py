"""Keras' layers that learn from data before training, as by ``adapt``: found in a model, taught by merged statistics, bound. Pure.

Trials of a run share encoded rows, so what is kept with the run, ``adapted`` in an input of its encoders, are statistics of the rows
of that input, from which each trial's own layers follow::

    {"moments": {"axes": [1], "mean": [..], "variance": [..]} (of numbers, along these axes of a batch),
     "points": [[value, ..], [count, ..]] (of numbers, in ascending order),
     "values": [[text, ..], [count, ..]] (of a category, the most frequent first, and of those of one count the last)}

A column that goes to a lookup is a code before any model sees it, its place in the run's vocabulary. So what takes part in a program is an
``IntegerLookup`` of codes, with all that the lookup of values says beside.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from cerebro_udf import columns
from cerebro_udf import definition as definitions
from cerebro_udf import encoders as encoding
from cerebro_udf.architecture import MODULES, class_of, config_of, objects
from cerebro_udf.coordinator.space import parse
from cerebro_udf.errors import InvalidArgument, NotSupported, counted
from cerebro_udf.placeholders import is_placeholder

# The argument that has what such a layer has learnt, and how to do without the layer's learning.
_LEARNT = {
    "Normalization": ("mean", "Give it mean and variance"),
    "Discretization": ("bin_boundaries", "Give it bin_boundaries"),
    "StringLookup": ("vocabulary", "Give it a vocabulary"),
    "IntegerLookup": ("vocabulary", "Give it a vocabulary"),
    "TextVectorization": ("vocabulary", "Give it a vocabulary"),
}
MOST_BINS = 10_000
LEAST_EPSILON = 1e-4
# Of the spellings of categories, those that a lookup takes, and the value that Keras takes for one that is in no vocabulary.
_LOOKUPS: Dict[str, Tuple[Tuple[str, ...], Any]] = {
    "StringLookup": (("text", "date"), "[UNK]"),
    "IntegerLookup": (("integer", "boolean"), -1),
}
_OF_NUMBERS = ("Normalization", "Discretization")
_NUMBERS = ("number", "array", "sequence", "tensor", "image")  # kinds of features



@dataclass
class Wish:
    """What layers of one class want of an input.

    Attributes:
        learns: Whether one comes without what it learns; a lookup that has its vocabulary wants codes alone.
        texts: That need a code.
    """

    learns: bool = False
    texts: Set[str] = field(default_factory=set)


Wanted = Mapping[Optional[str], Mapping[str, Wish]]  # by the name of an input, None of an only one, and the class of layers


# ---- in a model


def _learns(layer: Any) -> bool:
    name, config = class_of(layer), config_of(layer)
    if name not in _LEARNT or config.get(_LEARNT[name][0]) is not None:
        return False
    return name != "Discretization" or config.get("num_bins") is not None  # else Keras says what is missing


def _flat(layers: Iterable[Any]) -> Iterator[Any]:
    """The layers of a Sequential model, those of a block whose number is open once."""
    for layer in layers:
        yield from layer["layers"] if isinstance(layer, dict) and "repeat" in layer else [layer]


def on_inputs(model: dict) -> Iterator[Tuple[Optional[str], Any]]:
    """Give each layer of a model in full form that takes an input, and nothing else, with the name of that; None of an only one."""
    begins = definitions.inputs(model)
    return _on_inputs(model, begins if len(begins) > 1 else [None])


def _on_inputs(model: dict, outer: Sequence[Optional[str]]) -> Iterator[Tuple[Optional[str], Any]]:
    """Give each layer that takes an input, and nothing else, with the name of that; models within are entered.

    Args:
        outer: What the model's inputs are called, in their order.
    """
    config = config_of(model)
    if class_of(model) == "Sequential":
        taken = [(outer[0], layer) for layer in _flat(config["layers"]) if class_of(layer) != "InputLayer"][:1]
    else:
        names = dict(zip(definitions.places(config["input_layers"]), outer))
        taken = []
        for layer in config["layers"]:
            sources = set(definitions.sources(layer["inbound_nodes"]))
            if len(layer["inbound_nodes"]) == len(sources) == 1 and sources <= set(names):
                taken.append((names[sources.pop()], layer))
    for name, layer in taken:
        if class_of(layer) in MODULES:
            yield from _on_inputs(layer, [name])
        else:
            yield name, layer


def _learning(model: dict) -> List[Tuple[Optional[str], dict]]:
    """The layers of a model in full form that learn from data, and lookups, each with the name of its input.

    Raises:
        NotSupported: one takes something else than an input.
    """
    found = [(name, layer) for name, layer in on_inputs(model) if _learns(layer) or class_of(layer) in _LOOKUPS]
    known = {id(layer) for _, layer in found}
    for layer in objects(model):
        if _learns(layer) and id(layer) not in known:
            raise NotSupported(
                "layer %s has nothing to learn from where it is" % layer["class_name"],
                "What it learns before training are statistics of columns, so it has to take an input of the model, and that alone.",
                "%s, or put it first: features may have an input of their own." % _LEARNT[layer["class_name"]][1],
            )
    return found


def _variants(definition: dict, search: Optional[dict]) -> Iterator[dict]:
    """A model in full form with its placeholders, then with each value of the search in the place of one that may make it learn."""
    yield definitions.full(definition)
    for name, axis in parse((search or {}).get("space")).axes.items() if search else ():
        for value in axis.ends():
            if any(layer in json.dumps(value) for layer in _LEARNT):
                yield definitions.full(definitions.fill(definition, {name: value}))


def wanted(definition: dict, search: Optional[dict]) -> Wanted:
    """Return which layers of a model, or of what a search may make of it, learn from which inputs.

    Args:
        definition: As ``definition.check`` returned it.
        search: The option.

    Raises:
        NotSupported.
    """
    found: Dict[Optional[str], Dict[str, Wish]] = {}
    for model in _variants(definition, search):
        for name, layer in _learning(model):
            wish = found.setdefault(name, {}).setdefault(layer["class_name"], Wish())
            wish.learns = wish.learns or _learns(layer)
            if layer["class_name"] in _LOOKUPS:
                wish.texts.update(_named(layer))
            elif layer["class_name"] not in _OF_NUMBERS:
                raise NotSupported(
                    "layer %s of a model cannot learn a vocabulary" % layer["class_name"],
                    "Tokens are codes before the model sees them.",
                    'Leave it out, and set the encoder "tokens" for the column, which cuts texts alike.',
                )
    return found


def _named(layer: dict) -> List[str]:
    """The values that a lookup names itself, as a column spells them."""
    config = layer["config"]
    if _learns(layer) and not _plain(config):
        raise NotSupported(
            "layer %s of a model has one index for all values that it does not know, and gives indices" % layer["class_name"],
            "It says %s." % json.dumps({key: config[key] for key in ("num_oov_indices", "invert") if key in config}),
            "Leave num_oov_indices and invert out.",
        )
    vocabulary = config.get("vocabulary")
    named = [config.get("mask_token"), *(vocabulary if isinstance(vocabulary, list) else ())]
    return [columns.spelled(value) for value in named if value is not None]


def _plain(config: dict) -> bool:
    return config.get("num_oov_indices", 1) == 1 and not config.get("invert")


# ---- in the options


def _features_of(name: Optional[str], inputs: Optional[Sequence[dict]], features: Sequence[str]) -> Sequence[str]:
    if inputs is None:
        return features
    return next(given["features"] for given in inputs if name is None or given["name"] == name)


def encoders(found: Wanted, given: Mapping[str, Any], inputs: Optional[Sequence[dict]], features: Sequence[str],
             types: Mapping[str, str]) -> Dict[str, Any]:  # fmt: skip
    """Complete the option ``encoders``: columns that go to a layer that learns from numbers come to it as they are, to a lookup as codes.

    Args:
        found: Of :func:`wanted`.
        given, inputs: The options.
        features, types: Of the table.

    Raises:
        InvalidArgument: a column is none of numbers, or its encoder makes something else of them.
    """
    result = dict(given)
    for name, layers in found.items():
        taken, lookups = _features_of(name, inputs, features), sorted(set(layers) & set(_LOOKUPS))
        if lookups:
            (column, *others), lookup = taken, lookups[0]
            codes = "index" in columns.encoders_of(types[column]) and columns.of(types[column]).spelling in _LOOKUPS[lookup][0]
            if not others and len(layers) == 1 and codes and result.get(column, "index") == "index":
                result[column] = "index"
            elif any(wish.learns for wish in layers.values()):
                raise InvalidArgument(
                    'layer %s of the model does not look up column "%s"' % (lookup, column),
                    "Its input takes %s, this one of type %s%s; the layer takes one of %s, and no other layer that learns."
                    % (counted(len(taken), "column"), types[column], _with(result.get(column)),
                       "text or dates" if lookup == "StringLookup" else "integers or booleans"),
                    'Give each such column an input of its own by the option "inputs", and no encoder; arrays take the encoder "tokens".',
                )  # fmt: skip
            continue
        for column in taken:
            if column not in result and "none" in columns.encoders_of(types[column]):
                result[column] = "none"
            form = columns.kind(types[column], result.get(column))
            encoder = columns.encoder_name(result.get(column))
            if (form or "number") not in _NUMBERS or encoder == "bucketize":
                raise InvalidArgument(
                    'layer %s of the model does not learn from column "%s"' % (sorted(layers)[0], column),
                    "It has type %s%s; the layer takes numbers." % (types[column], _with(result.get(column))),
                    'Give the column an input of its own by the option "inputs"%s.'
                    % (", or an encoder for numbers" if "none" in columns.encoders_of(types[column]) else ""),
                )
    return result


def _with(encoder: Any) -> str:
    return "" if encoder is None else ", its encoder is %s" % columns.encoder_name(encoder)


def specifications(specs: List[dict], found: Wanted, inputs: Optional[Sequence[dict]]) -> List[dict]:
    """Return the specifications of features, with what segments have to tell of them beside."""
    names = [spec["name"] for spec in specs]
    counted = {column for name, layers in found.items() if "Discretization" in layers for column in _features_of(name, inputs, names)}
    known: Dict[str, Set[str]] = {}
    for name, layers in found.items():
        for lookup in set(layers) & set(_LOOKUPS):
            for column in _features_of(name, inputs, names):
                known.setdefault(column, set()).update(layers[lookup].texts)
    specs = [{**spec, "points": True} if spec["name"] in counted else spec for spec in specs]
    return [
        {**spec, "known": sorted(known[spec["name"]])} if spec["encoder"] == "index" and known.get(spec["name"]) else spec for spec in specs
    ]


# ---- from statistics


def learnt(merged: dict, found: Wanted, shard_stats: Sequence[dict]) -> dict:
    """Return a run's encoders with what its models' layers learn.

    Args:
        merged: Of ``encoders.merge``.
        found: Of :func:`wanted`.
        shard_stats: What ``encoders.merge`` was given.

    Raises:
        BadData: as ``encoders.merge``.
    """
    by_name = {feature["name"]: feature for feature in merged["features"]}
    inputs = []
    for given in merged["inputs"]:
        layers = found.get(given["name"] if len(merged["inputs"]) > 1 else None)
        if layers is not None and any(wish.learns for wish in layers.values()):
            features = [(by_name[name], [stats["columns"][name] for stats in shard_stats]) for name in given["features"]]
            if features[0][0]["encoder"] == "index":
                adapted = {"values": _values(*features[0], merged["rows"]["train"])}
            else:
                adapted = {"moments": _moments(given, features, merged["rows"]["train"])}
            if "Discretization" in layers:
                adapted["points"] = _points(features, merged["rows"]["train"])
            given = {**given, "adapted": adapted}
        inputs.append(given)
    return {**merged, "inputs": inputs}


def _absent(feature: dict, parts: List[dict], rows: int) -> int:
    """How many training rows have a NULL that something stands for."""
    return rows - sum(part["count"] for part in parts) if "nulls" in feature else 0


def _moments(given: dict, features: List[Tuple[dict, List[dict]]], rows: int) -> dict:
    """Mean and variance, float64, of what an input is fed with, as far as columns tell: along their last axis, and theirs."""
    means, variances = zip(*(_fed_moments(feature, parts, rows) for feature, parts in features))
    if given["stack"] is None:
        axes, join = [len(encoding.row_shape(features[0][0]))], np.concatenate
    else:
        last = len(encoding.row_shape(features[0][0]))
        axes = [1, 1 + last] if given["stack"] == 0 else [last, 1 + last]
        join = lambda arrays: np.stack(arrays, given["stack"])  # noqa: E731
    return {"axes": axes, "mean": join(means).tolist(), "variance": join(variances).tolist()}


def _fed_moments(feature: dict, parts: List[dict], rows: int) -> Tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the numbers that are made of a feature, one for each place of its last axis."""
    total = encoding.merged_moments(feature["name"], parts)
    absent = _absent(feature, parts, rows)
    if absent:
        total = encoding.combine_moments(total, (absent, np.array([feature["nulls"]["value"]]), np.zeros(1)))
    mean, variance = total[1], total[2] / total[0]
    affine = encoding.affine(feature)
    if affine is not None:
        mean, variance = (mean - affine[0]) / affine[1], variance / affine[1] ** 2
    if encoding.indicator(feature):
        share = absent / rows
        mean, variance = np.append(mean, share), np.append(variance, share * (1 - share))
    return mean, variance


def _points(features: List[Tuple[dict, List[dict]]], rows: int) -> List[List[float]]:
    """The numbers that an input is fed with, all columns together, and how often each comes; in blocks where there are too many."""
    values, counts = [], []
    for feature, parts in features:
        absent, affine = _absent(feature, parts, rows), encoding.affine(feature)
        found, times = (np.concatenate([part["points"][i] for part in parts]) for i in (0, 1))
        if absent:
            found, times = np.append(found, feature["nulls"]["value"]), np.append(times, absent)
        values.append(found if affine is None else (found - affine[0]) / affine[1])
        counts.append(times)
        if encoding.indicator(feature):
            values.append([0.0, 1.0])
            counts.append([rows - absent, absent])
    distinct, place = np.unique(np.concatenate(values), return_inverse=True)
    times = np.bincount(place, np.concatenate(counts), len(distinct)).astype(np.int64)
    return [found.tolist() for found in encoding.in_blocks(distinct[times > 0], times[times > 0])]


def _values(feature: dict, parts: List[dict], rows: int) -> List[List[Any]]:
    """The values of a category, and how many training rows have each, in the order in which Keras' lookups number them."""
    counts = encoding.merged_counts(parts)
    if "value" in feature.get("nulls", ()):
        value = feature["nulls"]["value"]
        counts[value] = counts.get(value, 0) + rows - sum(counts.values())
    whole = columns.of(feature["type"]).spelling in _LOOKUPS["IntegerLookup"][0]
    coded = set(feature["vocabulary"])
    values = sorted(coded & set(counts), key=lambda value: (counts[value], columns.whole(value) if whole else value), reverse=True)
    return [values, [counts[value] for value in values]]


# ---- in a trial


def bound(model: dict, run: dict) -> dict:
    """Give the layers of a bound model what they learn from a run's statistics.

    Args:
        model: Of ``definition.bind``; changed.
        run: The run's encoders.

    Raises:
        InvalidArgument: a layer asks for what these statistics do not tell.
        NotSupported: as :func:`wanted`.
    """
    inputs = run["inputs"]
    for name, layer in _learning(model):
        number = next(i for i, given in enumerate(inputs) if len(inputs) == 1 or given["name"] == name)
        adapted, config = inputs[number].get("adapted"), layer["config"]
        if layer["class_name"] == "Normalization":
            rank = 1 + len(encoding.input_shape(encoding.model_part(run)["inputs"][number]))
            config.update(_normalization(config.get("axis", -1), adapted["moments"], rank))
        elif layer["class_name"] in _LOOKUPS:
            feature = next(feature for feature in run["features"] if feature["name"] == inputs[number]["features"][0])
            if feature["encoder"] != "index" or not _plain(config):
                continue
            layer.update(class_name="IntegerLookup", config=_lookup(layer, adapted, feature["vocabulary"], run["rows"]["train"]))
            for taking in objects(model):
                if taking["class_name"] == "InputLayer" and taking["config"].get("dtype") == "string":
                    taking["config"]["dtype"] = "int32"
        else:
            config["bin_boundaries"] = _discretization(config.pop("num_bins"), config.get("epsilon", 0.01), adapted["points"])
    return model


def check(definition: dict, search: Optional[dict], run: dict) -> None:
    """Refuse layers that these statistics teach nothing, before the first visit.

    Raises:
        InvalidArgument: see :func:`bound`.
    """
    for model in _variants(definition, search):
        for _, layer in _learning(model):
            if layer["class_name"] == "Normalization" and is_placeholder(layer["config"].get("axis")):
                layer["config"]["axis"] = -1  # each trial's own is seen when it is made
            elif layer["class_name"] == "Discretization" and any(map(is_placeholder, layer["config"].values())):
                layer["config"].update(num_bins=2, epsilon=0.01)
            elif layer["class_name"] in _LOOKUPS and is_placeholder(layer["config"].get("max_tokens")):
                layer["config"]["max_tokens"] = None
        bound(model, run)


def _normalization(axis: Any, moments: dict, rank: int) -> dict:
    """The mean and variance that ``Normalization(axis).adapt`` computes, as its arguments.

    Args:
        axis: Its argument.
        rank: Of a batch.
    """
    given = [] if axis is None else axis if isinstance(axis, list) else [axis]
    whole_numbers = all(isinstance(place, int) and not isinstance(place, bool) for place in given)
    kept = sorted({place + rank if place < 0 else place for place in given}) if whole_numbers else [0]
    if not set(kept) <= set(moments["axes"]):
        raise InvalidArgument(
            "layer Normalization does not learn along axis %s of this input" % json.dumps(axis),
            "What is known of its rows is along axis %s of a batch." % " and ".join(map(str, moments["axes"])),
            "Use the last axis (-1), or none (null): one mean for all numbers.",
        )
    mean, variance = (np.array(moments[key], np.float64) for key in ("mean", "variance"))
    reduced = tuple(i for i, place in enumerate(moments["axes"]) if place not in kept)
    whole = mean.mean(axis=reduced, keepdims=True)  # of parts of as many numbers each
    variance = (variance + (mean - whole) ** 2).mean(axis=reduced)
    return {"mean": np.squeeze(whole, reduced).tolist(), "variance": variance.tolist()}


def _lookup(layer: dict, adapted: Optional[dict], vocabulary: List[Optional[str]], rows: int) -> dict:
    """The arguments of an ``IntegerLookup`` that makes of codes what a lookup makes of values.

    Args:
        layer: The lookup.
        adapted: What there is to learn, where it comes without a vocabulary.
        vocabulary: Of the column, by which values have codes.
        rows: For training.

    Source: ``finalize_state`` and ``set_vocabulary`` of keras/src/layers/preprocessing/index_lookup.py, Keras 3.15.
    """
    config, unknown = layer["config"], _LOOKUPS[layer["class_name"]][1]
    kept = {key: config[key] for key in ("name", "trainable", "max_tokens", "output_mode", "pad_to_max_tokens", "sparse") if key in config}
    code = {value: number + 1 for number, value in enumerate(vocabulary)}
    mask, unknown = config.get("mask_token"), columns.spelled(config.get("oov_token", unknown))
    masks = [] if mask is None else [columns.spelled(mask)]
    kept["mask_token"] = None if mask is None else code.setdefault(masks[0], len(code) + 1)
    leading = (masks if config.get("output_mode", "int") == "int" else []) + [unknown]
    if config.get("vocabulary") is not None:
        values = [columns.spelled(value) for value in config["vocabulary"]]
        if values[: len(leading)] == leading:  # Keras takes them along or not; -1 is no code
            code[unknown] = -1
        return {**kept, "vocabulary": [code.setdefault(value, len(code) + 1) for value in values], "idf_weights": config.get("idf_weights")}
    pairs = [(value, count) for value, count in zip(*adapted["values"]) if value not in [*masks, unknown]]
    if isinstance(config.get("max_tokens"), int):
        pairs = pairs[: max(0, config["max_tokens"] - len(leading))]
    if not pairs:
        raise InvalidArgument(
            "layer %s has no value to learn" % layer["class_name"], "Its column has none, or max_tokens leaves no room.", "Leave it out."
        )
    if config.get("output_mode") in ("tf_idf", "tf-idf"):
        kept["idf_weights"] = [math.log(1 + rows / (1 + count)) for _, count in pairs]
    return {**kept, "vocabulary": [code[value] for value, _ in pairs]}


def _discretization(bins: Any, epsilon: Any, points: List[List[float]]) -> List[float]:
    if not isinstance(bins, int) or isinstance(bins, bool) or not 1 <= bins <= MOST_BINS:
        hint = "It is from 1 to %d." % MOST_BINS
        raise InvalidArgument("layer Discretization has a wrong num_bins", "It is %s." % json.dumps(bins), hint)
    if not isinstance(epsilon, float) or not LEAST_EPSILON <= epsilon < 1:
        raise InvalidArgument(
            "layer Discretization has a wrong epsilon", "It is %s." % json.dumps(epsilon), "It is from %g to below 1." % LEAST_EPSILON
        )
    return _boundaries(*points, bins, epsilon)


def _boundaries(values: List[float], counts: List[int], bins: int, epsilon: float) -> List[float]:
    """The boundaries that ``Discretization(num_bins=bins, epsilon=epsilon).adapt`` finds in these numbers, all given at once.

    Source: ``summarize`` and ``compress_summary`` of keras/src/layers/preprocessing/discretization.py, Keras 3.15.
    """
    ends = np.cumsum(counts)
    step = max(int(ends[-1]) / (1.0 / epsilon), 1)
    ranks = np.arange(int(step - 1), ends[-1], int(step))
    points = np.array(values, np.float64)[np.searchsorted(ends, ranks, "right")].astype(np.float32)
    summary = np.stack([points, np.ones_like(points) * step])
    return _compressed(_compressed(summary, epsilon), 1.0 / bins)[0, :-1].tolist()


def _compressed(summary: np.ndarray, epsilon: float) -> np.ndarray:
    if summary.shape[1] * epsilon < 1:
        return summary
    percents = epsilon + np.arange(0.0, 1.0, epsilon)
    weights = summary[1].cumsum()
    shares = weights / weights[-1]
    bins, weights = (np.interp(percents, shares, of) for of in (summary[0], weights))
    return np.stack((bins, weights - np.concatenate((np.array([0]), weights[:-1])))).astype(np.float32)
