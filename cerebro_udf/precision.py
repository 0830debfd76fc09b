"""The option ``precision``: how a model's definition follows one of Keras' dtype policies. Pure.

Layers that name no dtype of their own are made under the policy: weights stay float32, and layers compute in bfloat16 or
float16. So do layers that ``to_json()`` wrote with Keras' default policy. The last layer computes in float32, as Keras advises:
bfloat16 has 3 significant digits, too few for a predicted number or a probability.
"""

from __future__ import annotations

from typing import Any, List

from cerebro_udf.definition import places

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")

# Layers that hand values on unchanged in the position of an output: the layer before them is the last one, too.
_PASSING = frozenset(["Flatten", "Reshape", "Dropout", "Identity"])


def follow(config: dict) -> dict:
    """Return a bound definition (full Keras JSON) whose layers follow the policy that they are made under, but for the last."""
    config = _without_default(config)
    for layer in _last(config):
        layer["config"].setdefault("dtype", "float32")
    return config


def _without_default(value: Any) -> Any:
    """Return a copy without the policy that ``to_json()`` writes where nobody chose one."""
    if isinstance(value, dict):
        return {key: _without_default(item) for key, item in value.items() if not (key == "dtype" and _is_default(item))}
    return [_without_default(item) for item in value] if isinstance(value, list) else value


def _is_default(dtype: Any) -> bool:
    return isinstance(dtype, dict) and dtype.get("class_name") == "DTypePolicy" and dtype["config"].get("name") == "float32"


def _last(model: dict) -> List[dict]:
    """Return the layers that make a model's output, in place."""
    layers = model["config"]["layers"]
    if model["class_name"] == "Sequential":
        found = []
        for layer in reversed(layers):
            found.append(layer)
            if layer["class_name"] not in _PASSING:
                break
    else:
        names = set(places(model["config"]["output_layers"]))
        found = [layer for layer in layers if layer.get("name") in names]
    leaves = [leaf for layer in found for leaf in (_last(layer) if "layers" in layer["config"] else [layer])]
    return [leaf for leaf in leaves if leaf["module"] == "keras.layers"]  # operations have no dtype
