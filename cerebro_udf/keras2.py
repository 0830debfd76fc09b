"""What ``model.to_json()`` of Keras 2 wrote, read by the same walk and brought into the form of Keras 3. Pure.

Only what is written otherwise is rewritten. What Keras 3 no longer has, or has under the same name with another meaning,
is refused.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from cerebro_udf.architecture import MODULES, Architecture, class_of
from cerebro_udf.errors import InvalidArgument
from cerebro_udf.keras_objects import INITIALIZER, LAYER, Kind
from cerebro_udf.placeholders import is_placeholder

_IN_KERAS_3 = "Load the model in Keras 3, and give what its to_json() writes there."

_RENAMED = {
    "Model": "Functional", "CuDNNLSTM": "LSTM", "CuDNNGRU": "GRU", "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization", "ThresholdedReLU": "ReLU",
}  # fmt: skip
# Arguments by another name, by class.
_ARGUMENTS = {"InputLayer": {"batch_input_shape": "batch_shape"}, "LeakyReLU": {"alpha": "negative_slope"}, "ReLU": {"theta": "threshold"}}
# Layers of Keras 2 that took several tensors as one list where those of Keras 3 take a state apart.
_RECURRENT = frozenset("RNN LSTM GRU SimpleRNN Bidirectional ConvLSTM1D ConvLSTM2D ConvLSTM3D".split())
# Arguments that Keras 3 does not have, and the values of them that change nothing: None for any.
_GONE: Dict[str, Optional[tuple]] = {
    "batch_input_shape": None, "input_length": None, "implementation": None, "fused": None, "query_shape": None,
    "key_shape": None, "value_shape": None, "time_major": (False,), "dynamic": (False,), "ragged": (False,), "sparse": (False,),
    "causal": (False,), "virtual_batch_size": (None,), "adjustment": (None,), "groups": (1,), "noise_shape": (None,),
    "softmax_robust_masking": (False,), "rng_type": ("stateful",),
}  # fmt: skip
# Arguments that Keras 3 has, but nothing here feeds.
_UNUSED = frozenset([("InputLayer", "sparse"), ("InputLayer", "ragged")])
# Arguments of the class that these were derived from, which they wrote and did not use.
_INHERITED = dict.fromkeys(["SeparableConv1D", "SeparableConv2D"], ("kernel_initializer", "kernel_regularizer", "kernel_constraint"))
_OPERATIONS = frozenset("TFOpLambda SlicingOpLambda TensorFlowOpLayer ClassMethod InstanceMethod InstanceProperty".split())


def is_keras2(definition: Any) -> bool:
    """Whether a definition is what Keras 2 wrote: a serialized model without its module, which Keras 3 always names."""
    return isinstance(definition, dict) and "class_name" in definition and "module" not in definition


class Keras2(Architecture):
    """The walk over a model of Keras 2; what it returns is of Keras 3."""

    def __init__(self) -> None:
        super().__init__()
        self._graph: Dict[str, str] = {}  # class by name of the layers of the graph that is being read

    def error(self, message: str, path: str, value: Any = None, hint: Optional[str] = None) -> InvalidArgument:
        return super().error(message, path, value, " ".join(filter(None, [hint, _IN_KERAS_3])))

    # ---- models and layers

    def definition(self, value: Any) -> dict:
        return super().definition(_modern(value))

    def layer(self, value: Any, path: str) -> Any:
        name = value.get("class_name") if isinstance(value, dict) else None
        if isinstance(name, str) and name in _OPERATIONS:
            hint = "Write the operation as a layer, such as Add, Multiply, Rescaling or Reshape."
            raise self.error("an operation of TensorFlow is no layer of Keras 3", path, name, hint)
        return super().layer(_modern(value), path)

    def model(self, name: str, config: dict, path: str, short: bool) -> dict:
        outer, layers = self._graph, config.get("layers")
        if name == "Functional" and isinstance(layers, list):
            named = [layer for layer in layers if isinstance(layer, dict) and isinstance(layer.get("name"), str)]
            self._graph = {layer["name"]: layer.get("class_name") for layer in named}
            config = {**config, **{key: self._ends(config[key]) for key in ("input_layers", "output_layers") if key in config}}
        result = super().model(name, config, path, short)
        self._graph = outer
        if name == "Sequential":
            given = layers[0].get("config") if isinstance(layers[0], dict) else None
            shape = given.get("batch_input_shape") if isinstance(given, dict) else None
            if shape is not None and class_of(result["config"]["layers"][0]) != "InputLayer":
                shape = self.plain(shape, "%s.layers[0].config.batch_input_shape" % path)
                result["config"]["layers"].insert(0, self.named(LAYER, {"InputLayer": {"batch_shape": shape}}, path))
        return result

    def arguments(self, kind: Kind, name: str, config: dict, path: str) -> dict:
        if kind is LAYER and not is_placeholder(name):
            config = self._layer_arguments(name, config, path)
        elif kind is INITIALIZER:
            config = {key: value for key, value in config.items() if key != "dtype"}
            if config.get("distribution") == "normal":
                config["distribution"] = "truncated_normal"
        return super().arguments(kind, name, config, path)

    def _layer_arguments(self, name: str, config: dict, path: str) -> dict:
        inherited, result = _INHERITED.get(name, ()), {}
        for key, value in config.items():
            key = _ARGUMENTS.get(name, {}).get(key, key)
            if key in LAYER.arguments(name) and (name, key) not in _UNUSED:
                result[key] = value
            elif key not in inherited and key not in _GONE and key not in LAYER.without.get(name, ()):
                result[key] = value  # which the walk refuses
            elif _GONE.get(key) is not None and value not in _GONE[key]:
                raise self.error('Keras 3 has no "%s"' % key, "%s.%s" % (path, key), value)
        if name == "BatchNormalization" and isinstance(config.get("axis"), list) and len(config["axis"]) == 1:
            result["axis"] = config["axis"][0]
        if name == "GRU" or name == "GRUCell":
            result.setdefault("reset_after", False)  # what Keras 2 did before it wrote it down
        return result

    def activation(self, value: Any, path: str) -> Any:
        if value == "hard_sigmoid":
            hint = 'Take "sigmoid", or a definition of Keras 3 that means its own hard_sigmoid.'
            raise self.error("hard_sigmoid is another function in Keras 3", path, value, hint)
        return super().activation(value, path)

    def dtype(self, value: Any, path: str) -> Any:
        if isinstance(value, dict) and value.get("class_name") in ("Policy", "PolicyV1") and isinstance(value.get("config"), dict):
            return self.dtype(value["config"].get("name"), "%s.config.name" % path)
        return super().dtype(value, path)

    # ---- the graph

    def node(self, value: Any, path: str) -> dict:
        result = super().node(value, path)
        if result["class_name"] in _RECURRENT:
            for edge in result["inbound_nodes"]:
                if isinstance(edge["args"][0], list):
                    edge["args"], state = [edge["args"][0][0]], edge["args"][0][1:]
                    edge["kwargs"]["initial_state"] = state
        return result

    def edges(self, nodes: Any, path: str) -> List[dict]:
        """A node was ``[[layer, node, tensor, keywords], …]``: the tensors of the first argument, and in each the same keywords."""
        if not isinstance(nodes, list):
            raise self.error("not a list of nodes", path, nodes)
        return [self._edge(node, "%s[%d]" % (path, i)) for i, node in enumerate(nodes)]

    def _edge(self, node: Any, path: str) -> dict:
        if not isinstance(node, list) or not node or not all(self._is_tensor(t[:3]) if isinstance(t, list) else False for t in node):
            raise self.error("not a list of tensors", path, node)
        keywords = node[0][3] if len(node[0]) > 3 else {}
        if not isinstance(keywords, dict):
            raise self.error("the keywords of a call must be an object", path, keywords)
        tensors = [self._tensor(tensor[:3]) for tensor in node]
        kwargs = {key: self._value(value, "%s.%s" % (path, key)) for key, value in keywords.items() if value is not None}
        return {"args": [tensors[0] if len(tensors) == 1 else tensors], "kwargs": kwargs}

    def _value(self, value: Any, path: str) -> Any:
        if self._is_tensor(value):
            return self._tensor(value)
        if isinstance(value, list) and value and all(self._is_tensor(item) for item in value):
            return [self._tensor(item) for item in value]
        return self.plain(value, path)

    def _is_tensor(self, value: Any) -> bool:
        """Whether it is ``[layer, number of its call, number of its output]``."""
        if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str) or value[0] not in self._graph:
            return False
        return all(isinstance(number, int) and not isinstance(number, bool) for number in value[1:])

    def _tensor(self, tensor: list) -> dict:
        # Keras 3 takes shape and dtype from the layer that made it, but insists on some here.
        config = {"shape": [None], "dtype": "float32", "keras_history": self._place(tensor, ("Functional", "Model", "Sequential"))}
        return {"class_name": "__keras_tensor__", "config": config}

    def _ends(self, tensors: Any) -> Any:
        """The inputs or outputs of a model; one alone is not in a list."""
        if not isinstance(tensors, list):
            return tensors
        places = [self._place(tensor, ("Sequential",)) if self._is_tensor(tensor) else tensor for tensor in tensors]
        return places[0] if len(places) == 1 and isinstance(places[0], list) else places

    def _place(self, tensor: list, counted: Sequence[str]) -> list:
        """Keras 2 counted the building of a nested model as its first call, and Keras 3 does so for fewer classes in fewer places."""
        name, call, output = tensor
        return [name, call - 1 if call and self._graph[name] in counted else call, output]


def _modern(value: Any) -> Any:
    """A serialized layer or model by its name in Keras 3, with the module that Keras 3 has it in."""
    if not isinstance(value, dict) or not isinstance(value.get("class_name"), str):
        return value
    old, module = value["class_name"], value.get("module")
    name, config = _RENAMED.get(old, old), value.get("config")
    if name == "Sequential" and isinstance(config, list):  # up to Keras 2.2.2
        config = {"layers": config}
    if old == "CuDNNGRU" and isinstance(config, dict):
        config = {"reset_after": True, **config}
    if module is None or (isinstance(module, str) and module.split(".")[0] in ("keras", "tf_keras")):
        module = MODULES[name][0] if name in MODULES else "keras.layers"
    return {**value, "class_name": name, "config": config, "module": module}
