"""Write models of Keras 2 as its to_json() has them, beside what they compute: the data of ``tests/unit/test_keras2.py``.

    python tests/record_keras2.py tf_keras > tests/unit/keras2/tf_keras-2.21.json     # tf_keras 2.21, TensorFlow 2.21
    python tests/record_keras2.py tensorflow > tests/unit/keras2/keras-2.12.json   # TensorFlow 2.12

Runs in an environment of its own, with numpy, TensorFlow and one of these.
"""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np


def rows(shape: list, whole: bool = False, seed: int = 0) -> np.ndarray:
    """Three rows of that shape; what whoever compares feeds his model, too."""
    generator = np.random.RandomState(seed)
    drawn = generator.randint(0, 20, (3, *shape)) if whole else generator.uniform(-1, 1, (3, *shape))
    return drawn.astype("float32")


def weights(shapes: list) -> list:
    """Weights of these shapes, the same for whoever asks; none below 0, for some are variances."""
    return [np.random.RandomState(i).uniform(0, 1, shape).astype("float32") for i, shape in enumerate(shapes)]


def models(keras) -> dict:
    """By name: a model, and the shapes of its inputs."""
    L, Sequential, Input, Model = keras.layers, keras.Sequential, keras.Input, keras.Model
    made = {}
    regularizer = keras.regularizers.L2(0.01)
    first = L.Dense(5, "relu", kernel_regularizer=regularizer, input_shape=(4,))
    made["mlp"] = Sequential([first, L.Dropout(0.2), L.Dense(3, "softmax")]), [[4]]
    hidden = L.Dense(5, "tanh", kernel_initializer="he_normal", bias_constraint="non_neg")
    made["without a shape"] = Sequential([hidden, L.LeakyReLU(), L.Dense(1, kernel_constraint="max_norm")]), [[4]]
    x = Input((6,), name="in")
    left, right = L.Dense(4, "relu", name="left")(x), L.Dense(4, "tanh", name="right")(x)
    joined = L.Concatenate(name="join")([L.Add(name="add")([left, right]), x])
    made["branches"] = Model(x, L.Dense(2, name="out")(joined)), [[6]]
    a, b, twin = Input((3,), name="a"), Input((3,), name="b"), L.Dense(4, "relu", name="twin")
    made["shared layer, two inputs"] = Model([a, b], L.Dense(1, name="out")(L.Subtract(name="minus")([twin(a), twin(b)]))), [[3], [3]]
    x = Input((4,), name="inner_in")
    inner = Model(x, L.Dense(3, "relu", name="inner_dense")(x), name="inner")
    x, second = Input((4,), name="x"), Sequential([L.Dense(3, input_shape=(4,), name="d"), L.Activation("tanh")], name="second")
    made["nested, two outputs"] = Model(x, [L.Add(name="sum")([inner(x), second(x)]), second(x)]), [[4]]
    made["nested in a Sequential"] = Sequential([Sequential([L.Dense(3, input_shape=(4,))]), L.Dense(1)]), [[4]]
    made["recurrent"] = Sequential([L.Bidirectional(L.LSTM(3, return_sequences=True), input_shape=(5, 2)), L.GRU(4), L.Dense(1)]), [[5, 2]]
    made["cells"] = Sequential([L.RNN([L.LSTMCell(3), L.GRUCell(2)], return_sequences=True, input_shape=(5, 2)),
                                L.TimeDistributed(L.Dense(2)), L.SimpleRNN(2)]), [[5, 2]]  # fmt: skip
    layers = [L.Dense(4, input_shape=(3,)), L.BatchNormalization(), L.LayerNormalization(), L.ELU(), L.Dense(2)]
    made["normalization"] = Sequential(layers), [[3]]
    made["embedding"] = Sequential([L.Embedding(20, 4, input_length=6, mask_zero=True), L.LSTM(3), L.Dense(1, "sigmoid")]), [[6]]
    made["convolutions"] = Sequential([
        L.Conv2D(3, 3, activation="relu", input_shape=(8, 8, 2)), L.SeparableConv2D(4, 2), L.DepthwiseConv2D(2), L.Conv2DTranspose(2, 2),
        L.BatchNormalization(), L.SpatialDropout2D(0.1), L.MaxPooling2D(), L.Flatten(), L.Dense(2),
    ]), [[8, 8, 2]]  # fmt: skip
    x = Input((4, 6), name="x")
    attended = L.MultiHeadAttention(2, 3, name="attended")(L.Dense(6, name="query")(x), x)
    encoded, state = L.GRU(3, return_state=True, name="encoded")(attended)
    decoded = L.GRU(3, name="decoded")(x, initial_state=state)
    made["attention, an initial state"] = Model(x, L.Dense(2, name="out")(L.Concatenate(name="join")([encoded, decoded]))), [[4, 6]]
    x = Input((4,), name="x")
    functions = "elu exponential gelu linear relu selu sigmoid softmax softplus softsign swish tanh".split()
    by_name = [L.Activation(function)(x) for function in functions]
    by_layer = [L.ReLU(0.5, 0.1, 0.2)(x), L.ThresholdedReLU(0.3)(x), L.PReLU("ones")(x), L.LeakyReLU(0.3)(x), L.Softmax()(x)]
    made["activations"] = Model(x, L.Concatenate()([*by_name, *by_layer])), [[4]]
    return made


def record(keras) -> dict:
    result = {}
    for name, (model, shapes) in models(keras).items():
        x = [rows(shape, name == "embedding", seed) for seed, shape in enumerate(shapes)]
        x = x if len(x) > 1 else x[0]
        model(x)
        model.set_weights(weights([weight.shape for weight in model.weights]))
        y = model(x, training=False)
        outputs = [[float("%.6g" % value) for value in array.numpy().ravel()] for array in (y if isinstance(y, list) else [y])]
        result[name] = {
            "model": json.loads(model.to_json()), "inputs": shapes, "weights": [list(weight.shape) for weight in model.weights],
            "outputs": outputs,
        }  # fmt: skip
    return result


if __name__ == "__main__":
    module = importlib.import_module(sys.argv[1])
    recorded = record(getattr(module, "keras", module))
    lines = ["%s: %s" % (json.dumps(name), json.dumps(one, separators=(",", ":"))) for name, one in recorded.items()]
    print("{\n" + ",\n".join(lines) + "\n}")
