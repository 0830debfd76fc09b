"""The model of a ``.keras`` archive with its weights, built from what is understood of it; Keras opens no archive here."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np

from cerebro_udf import definition as definitions
from cerebro_udf import placeholders
from cerebro_udf.architecture import MODULES, objects
from cerebro_udf.errors import InvalidArgument, NotSupported, TrialFailed
from cerebro_udf.segment import network, state, weights

import h5py  # isort: skip  (network imports TensorFlow first)
import keras  # isort: skip


def take_in(config: dict, arrays: Dict[str, np.ndarray], place: List[str], pulse: Callable[[], None]) -> Tuple[dict, bytes]:
    """Build a model from a config and give it weights.

    Args:
        config: As ``config.json`` has it; checked here.
        arrays: By their path in the weights file.
        place: Names of layers, from the whole model inwards to the one that is wanted; empty for the whole.
        pulse: Called after every array and layer; may raise. Keras' own building and loading know nothing of it.

    Returns:
        (definition of the wanted model in full form, blob for ``weights.assign``).

    Raises:
        InvalidArgument: the config isn't allowed, or the weights do not fit it.
    """
    config = definitions.bind(placeholders.literal(config), {})
    try:
        with tempfile.TemporaryDirectory(prefix="cerebro_import_") as folder:
            path = Path(folder) / "model.weights.h5"
            _write(path, arrays, pulse)
            with network.one_trial_fails(), network.fitting_memory():
                model = keras.saving.deserialize_keras_object(copy.deepcopy(config), safe_mode=True)  # Keras takes it apart
                if not model.built:
                    raise TrialFailed("it was saved before it was built, so it has no weights (add an Input layer)")
                model.load_weights(path)
    except TrialFailed as error:
        raise InvalidArgument(
            "the model of the archive cannot be built", "%s." % error, "Save it again with Keras 3, and see that it opens there."
        ) from None
    for name in place:
        layers = config["config"].get("layers", [])
        inner = [layer for layer in layers if layer["config"].get("name") == name and "layers" in layer["config"]]
        if not inner:
            raise InvalidArgument(
                "the archive lacks the model that it speaks of", 'No model in it is named "%s".' % name, "Export it again."
            )
        config, model = inner[0], model.get_layer(name)
    if place and any(found["class_name"] == "IntegerLookup" for found in objects(config)):
        raise NotSupported(
            "the model of the archive looks up codes of the run that it was exported from",
            "A column's codes are made for each run.",
            'Begin from that run: set the option "init_from".',
        )
    settled = {id(variable) for variable in _settle(config, model)}
    definition = {key: config[key] for key in ("module", "class_name", "config", "registered_name")}
    return placeholders.literal(definition), state.pack(weights.collect(model, pulse, settled), pulse=pulse)


def _settle(config: dict, model: keras.Model) -> Iterator[Any]:
    """Write into a model's config what its Normalization layers have learnt, so that no run has them learn anew; gives their variables."""
    for entry in config["config"]["layers"]:
        if entry["class_name"] in MODULES:
            yield from _settle(entry, model.get_layer(entry["config"]["name"]))
        elif entry["class_name"] == "Normalization" and entry["config"].get("mean") is None:
            layer = model.get_layer(entry["config"]["name"])
            learnt = (layer.adapt_mean, layer.adapt_variance)
            entry["config"]["mean"], entry["config"]["variance"] = (network.snapshot(variable).tolist() for variable in learnt)
            yield from layer.variables


def _write(path: Path, arrays: Dict[str, np.ndarray], pulse: Callable[[], None]) -> None:
    """Write a file in which Keras finds each array's place, and that holds nothing else."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            with network.one_trial_fails():  # pulse, which may raise a cancel, is outside of it
                if not name.startswith("optimizer/"):
                    file[name] = array
            pulse()
