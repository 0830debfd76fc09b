"""Keras' layers that learn from data before training, as by ``adapt``: found in a model, taught by merged statistics, bound. Pure.

Trials of a run share encoded rows, so what is kept with the run, ``adapted`` in an input of its encoders, are statistics of the rows
of that input, from which each trial's own layers follow::

    {"moments": {"axes": [1], "mean": [..], "variance": [..]} (of numbers, along these axes of a batch),
     "points": [[value, ..], [count, ..]] (of numbers, in ascending order)}
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from cerebro_udf import columns
from cerebro_udf import definition as definitions
from cerebro_udf import encoders as encoding
from cerebro_udf.architecture import MODULES, class_of, config_of, objects
from cerebro_udf.coordinator.space import parse
from cerebro_udf.errors import InvalidArgument, NotSupported
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
_OF_NUMBERS = ("Normalization", "Discretization")
_NUMBERS = ("number", "array", "sequence", "tensor", "image")  # kinds of features

Wanted = Mapping[Optional[str], Set[str]]  # by the name of an input, None of an only one: classes of the layers that learn from its rows


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
    """The layers of a model in full form that learn from data, each with the name of its input.

    Raises:
        NotSupported: one takes something else than an input.
    """
    begins = definitions.inputs(model)
    found = [(name, layer) for name, layer in _on_inputs(model, begins if len(begins) > 1 else [None]) if _learns(layer)]
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
    found: Dict[Optional[str], Set[str]] = {}
    for model in _variants(definition, search):
        for name, layer in _learning(model):
            if layer["class_name"] not in _OF_NUMBERS:
                raise NotSupported(
                    "layer %s of a model cannot learn a vocabulary" % layer["class_name"],
                    "Categories and tokens are codes before the model sees them.",
                    'Leave it out: a column of categories is one-hot or embedded as its encoder says, and texts take the encoder "tokens".',
                )
            found.setdefault(name, set()).add(layer["class_name"])
    return found


# ---- in the options


def _features_of(name: Optional[str], inputs: Optional[Sequence[dict]], features: Sequence[str]) -> Sequence[str]:
    if inputs is None:
        return features
    return next(given["features"] for given in inputs if name is None or given["name"] == name)


def encoders(found: Wanted, given: Mapping[str, Any], inputs: Optional[Sequence[dict]], features: Sequence[str],
             types: Mapping[str, str]) -> Dict[str, Any]:  # fmt: skip
    """Complete the option ``encoders``: columns that go to a layer that learns from numbers come to it as they are.

    Args:
        found: Of :func:`wanted`.
        given, inputs: The options.
        features, types: Of the table.

    Raises:
        InvalidArgument: a column is none of numbers, or its encoder makes something else of them.
    """
    result = dict(given)
    for name, layers in found.items():
        for column in _features_of(name, inputs, features):
            if column not in result and "none" in columns.encoders_of(types[column]):
                result[column] = "none"
            form = columns.kind(types[column], result.get(column))
            encoder = columns.encoder_name(result.get(column))
            if (form or "number") not in _NUMBERS or encoder == "bucketize":
                raise InvalidArgument(
                    'layer %s of the model does not learn from column "%s"' % (sorted(layers)[0], column),
                    "It has type %s%s; the layer takes numbers." % (types[column], ", its encoder is %s" % encoder if encoder else ""),
                    'Give the column an input of its own by the option "inputs"%s.'
                    % (", or an encoder for numbers" if "none" in columns.encoders_of(types[column]) else ""),
                )
    return result


def specifications(specs: List[dict], found: Wanted, inputs: Optional[Sequence[dict]]) -> List[dict]:
    """Return the specifications of features, with what segments have to tell of them beside."""
    names = [spec["name"] for spec in specs]
    counted = {column for name, layers in found.items() if "Discretization" in layers for column in _features_of(name, inputs, names)}
    return [{**spec, "points": True} if spec["name"] in counted else spec for spec in specs]


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
        if layers is not None:
            features = [(by_name[name], [stats["columns"][name] for stats in shard_stats]) for name in given["features"]]
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
        adapted, config = inputs[number]["adapted"], layer["config"]
        if layer["class_name"] == "Normalization":
            rank = 1 + len(encoding.input_shape(encoding.model_part(run)["inputs"][number]))
            config.update(_normalization(config.get("axis", -1), adapted["moments"], rank))
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
