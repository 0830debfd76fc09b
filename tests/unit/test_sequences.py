"""Sequences and tokens: what a mask hides is not there, in predictions and in the archive, and training is Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from cerebro_udf import definition, encoders, errors, sequences, tensors
from cerebro_udf.coordinator import options, per_column, programs
from cerebro_udf.errors import InvalidArgument
from cerebro_udf.segment import export, program
from cerebro_udf.segment.predict import Predictor
from cerebro_udf.siphash import siphash

ENDS = [(pad, truncate) for pad in ("pre", "post") for truncate in ("pre", "post")]


def stored(feature):
    label = {"name": "y", "output": None, "type": "text", "task": "classification", "classes": ["a", "b"]}
    given = [{"name": None, "features": [feature["name"]], "stack": None}]
    made = {"format": encoders.FORMAT, "features": [feature], "labels": [label], "inputs": given}
    return {**made, "model": encoders._model([feature], given, [label])}


class Fresh:
    """A model with its first weights, as a predictor, an archive and the layers of its own."""

    def __init__(self, feature, layers, tmp_path):
        self.encoders, model = stored(feature), definition.check({"layers": layers})
        spec = programs.order(options.parse({}, model), {}, model, self.encoders)["program"]
        self.program = program.Program(spec)
        blob = self.program.initial_state(3)
        self.program.set_state(blob)
        self.predictor = Predictor(self.encoders, spec, blob)
        path = tmp_path / "model.keras"
        path.write_bytes(export.archive(self.encoders, spec, blob, {"run": "r"}, lambda: None))
        self.archive = keras.models.load_model(path, safe_mode=True)
        self.layers = {type(layer).__name__: layer for layer in self.program.model._flatten_layers()}

    def probabilities(self, rows):
        return self.predictor.rows([[row] for row in rows])[0][1]


def kept(row, truncate):
    return row[-4:] if truncate == "pre" else row[:4]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("pad, truncate", ENDS)
def test_a_padded_row_gives_what_the_row_alone_gives(pad, truncate, width, tmp_path):
    settings = {"length": 4, "pad": pad, "truncate": truncate}
    feature = {
        "name": "s", "kind": "sequence", "type": "real[]", "encoder": "standardize", "shape": [4, width],
        "mean": [2.0] * width, "scale": [3.0] * width, "sequence": settings,
    }  # fmt: skip
    made = Fresh(feature, [{"LSTM": {"units": 3}}, {"Dense": {"units": "$classes"}}], tmp_path)
    random, rows = np.random.default_rng(1), []
    for steps in (1, 2, 4, 6):
        rows.append(random.integers(0, 9, (steps, width)[: 1 + (width > 1)]).tolist())
    expected = []
    for row in rows:
        steps = (np.array(kept(row, truncate), float).reshape(1, -1, width) - 2) / 3
        expected.append(keras.ops.softmax(made.layers["Dense"](made.layers["LSTM"](steps.astype(np.float32)))).numpy()[0])
    np.testing.assert_allclose(made.probabilities(rows), expected, rtol=1e-5)
    padded = np.full((4, 7, width)[: 2 + (width > 1)], np.nan)
    for target, row in zip(padded, rows):
        target[: len(row)] = row
    for count in (4, 1):
        np.testing.assert_allclose(made.archive({"s": padded[:count]}), expected[:count], rtol=1e-5)


@pytest.mark.parametrize("type_", ["text", "text[]"])
@pytest.mark.parametrize("pad, truncate", ENDS)
def test_padded_tokens_give_what_the_tokens_alone_give(pad, truncate, type_, tmp_path):
    settings = {"length": 4, "pad": pad, "truncate": truncate, "size": 6}
    feature = {
        "name": "s", "kind": "tokens", "type": type_, "encoder": "tokens", "shape": [4], "vocabulary": ["a", "b", "c"], "tokens": settings
    }  # fmt: skip
    layers = [{"Embedding": {"input_dim": 6, "output_dim": 3, "mask_zero": True}}, {"GlobalAveragePooling1D": {}}]
    made = Fresh(feature, [*layers, {"Dense": {"units": "$classes"}}], tmp_path)
    rows = [["a"], [], ["a", "z", "c"], ["c", "b", "b", "b", "a", "a"]]
    given = [" %s! " % " ".join(row).upper() if type_ == "text" else row for row in rows]
    expected = []
    for row in rows:
        codes = [{"a": 2, "b": 3, "c": 4}.get(token, 1) for token in kept(row, truncate) or ["never seen"]]
        mean = made.layers["Embedding"](np.array(codes)).numpy().mean(axis=0, keepdims=True)
        expected.append(keras.ops.softmax(made.layers["Dense"](mean)).numpy()[0])
    np.testing.assert_allclose(made.probabilities(given), expected, rtol=1e-5)
    padded = np.array([[text] for text in given] if type_ == "text" else [row + [""] * (7 - len(row)) for row in rows])
    np.testing.assert_allclose(made.archive({"s": keras.ops.convert_to_tensor(padded)}), expected, rtol=1e-5)


@pytest.mark.parametrize("more, layer, told", [
    ({"vocabulary": ["a", "b", "c"]}, {"Embedding": {"input_dim": 4, "output_dim": 2}}, "layer Embedding has too few places.*column \"s\""),
    ({}, {"Embedding": {"input_dim": 29, "output_dim": 2}}, "layer Embedding has too few places"),
    ({}, {"CategoryEncoding": {"num_tokens": 29}}, "layer CategoryEncoding has too few places"),
])  # fmt: skip
def test_layer_with_fewer_places_than_a_column_has_codes_is_refused(more, layer, told):
    settings = {"length": 4, "pad": "pre", "truncate": "pre", "size": 30, "hash": not more}
    feature = {"name": "s", "kind": "tokens", "type": "text", "encoder": "tokens", "shape": [4], "tokens": settings, **more}
    nested = {"Sequential": {"layers": [layer, "Flatten"]}}
    for layers in ([layer, "Flatten"], [nested]):
        model = definition.check({"layers": [*layers, {"Dense": {"units": "$classes"}}]})
        with pytest.raises(InvalidArgument, match=told) as refused:
            programs.order(options.parse({}, model), {}, model, stored(feature))
        assert refused.value.hint.endswith("to %d or more." % (5 if more else 30))


@pytest.mark.parametrize("type_, pad, truncate", [("text", "pre", "post"), ("text[]", "post", "pre")])
def test_hashed_tokens_have_the_codes_of_keras_hashing_in_predictions_and_in_the_archive(type_, pad, truncate, tmp_path):
    settings = {"length": 4, "pad": pad, "truncate": truncate, "size": 30, "hash": True}
    feature = {"name": "s", "kind": "tokens", "type": type_, "encoder": "tokens", "shape": [4], "tokens": settings}
    layers = [{"CategoryEncoding": {"num_tokens": 30, "output_mode": "count"}}, {"Dense": {"units": "$classes"}}]
    made = Fresh(feature, layers, tmp_path)
    rows = [["a"], [], ["a", "z", "é"], ["c", "b", "b", "b", "a", "a"]]
    given = [" %s! " % " ".join(row).upper().replace("É", "é") if type_ == "text" else row for row in rows]
    counts = np.zeros((4, 30), np.float32)
    for count, row in zip(counts, rows):
        codes = keras.layers.Hashing(28, salt=0)(np.array(kept(row, truncate))).numpy() + 2 if row else [1]
        np.add.at(count, codes, 1)
        count[0] = 4 - count.sum()
    expected = keras.ops.softmax(made.layers["Dense"](counts)).numpy()
    np.testing.assert_allclose(made.probabilities(given), expected, rtol=1e-5)
    padded = keras.ops.convert_to_tensor(np.array([row + [""] * (7 - len(row)) for row in rows]))
    np.testing.assert_allclose(made.archive({"s": padded}), expected, rtol=1e-5)


def test_siphash_is_that_of_tensorflow_for_strings_of_any_length():
    random = np.random.default_rng(3)
    strings = [bytes(random.integers(0, 256, length, np.uint8)) for length in [*range(40), 300, 0]]
    expected = tf.strings.to_hash_bucket_strong(strings, 2**40, key=[0, 0]).numpy()
    np.testing.assert_array_equal(siphash(strings) % np.uint64(2**40), expected.astype(np.uint64))
    assert len(siphash([])) == 0


def test_training_through_a_mask_is_that_of_plain_keras(tmp_path):
    settings = {"length": 5, "pad": "post", "truncate": "post"}
    feature = {"name": "s", "kind": "sequence", "type": "real[]", "encoder": "none", "shape": [5, 1], "sequence": settings}
    made = Fresh(feature, [{"LSTM": {"units": 3}}, {"Dense": {"units": "$classes"}}], tmp_path)
    random = np.random.default_rng(2)
    rows = [random.normal(size=random.integers(1, 8)) for _ in range(23)]
    arrays = tensors.Encoding(made.encoders).encode({"s": sequences.steps(rows, 1, settings)})
    arrays["label"] = random.integers(0, 2, 23).astype(np.int32)
    plain = keras.Sequential([keras.Input((5, 1)), keras.layers.Masking(sequences.PAD), keras.layers.LSTM(3), keras.layers.Dense(2)])
    plain.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    plain.set_weights([variable.numpy() for variable in made.program.model.trainable_variables])
    made.program.train(arrays, np.arange(23, dtype=np.int32), 8)
    plain.fit(arrays["numbers"], arrays["label"], batch_size=8, epochs=1, shuffle=False, verbose=0)
    for ours, theirs in zip(made.program.model.trainable_variables, plain.get_weights()):
        np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize("standardize", sequences.STANDARDS)
@pytest.mark.parametrize("split", sequences.SPLITS)
def test_texts_are_cut_as_keras_cuts_them(standardize, split):
    texts = ["  The cat,the DOG\tand\u00a0ÉLAN (they)_too! ", "a\u2003b\x0bc", "don't [UNK] 1.5", "", " . "]
    layer = keras.layers.TextVectorization(vocabulary=["a"], standardize=None if standardize == "none" else standardize, split=split)
    expected = [[token.decode() for token in row] for row in layer._preprocess(np.array(texts)).to_list()]
    found = [sequences.split(text, {"standardize": standardize, "split": split}) for text in texts]
    assert [[token for token in row if token] for row in found] == expected


def test_a_vocabulary_is_the_most_frequent_tokens_of_all_shards():
    spec = {"name": "s", "type": "text", "kind": "tokens", "encoder": None, "tokens": {"length": 3, "size": 5}}
    parts = [{"counts": {"b": 2, "a": 1, "[UNK]": 9}}, {"counts": {"é": 2, "c": 1, "a": 1, "z": 3}}]
    assert encoders._merge_feature(spec, parts)["vocabulary"] == ["z", "a", "b"]


def test_a_number_that_means_padding_is_zero_in_a_row():
    found = sequences.steps([np.array([1.0, sequences.PAD]), None], 1, {"length": 3, "pad": "post", "truncate": "post"})
    np.testing.assert_array_equal(found[:, :, 0], [[1, 0, sequences.PAD], [sequences.PAD] * 3])


@pytest.mark.parametrize(
    "given, words",
    [
        ({"sequence": {}}, 'option "encoders.x.sequence" has a wrong value'),
        ("tokens", 'option "encoders.x.tokens" has a wrong value'),
        ({"sequence": {"length": 0}}, 'option "encoders.x.sequence.length" has a wrong value'),
        ({"sequence": {"length": 3, "pad": "left"}}, 'option "encoders.x.sequence.pad" has a wrong value'),
        ({"sequence": {"length": 3, "as": "one_hot"}}, 'option "encoders.x.sequence.as" has a wrong value'),
        ({"sequence": {"length": 3, "padd": "pre"}}, 'unknown key "padd" in option "encoders.x"'),
        ({"tokens": {"length": 3, "size": 2}}, 'option "encoders.x.tokens.size" has a wrong value'),
        ({"tokens": {"length": 3, "hash": 1}}, 'option "encoders.x.tokens.hash" has a wrong value'),
        ({"tokens": {"length": 3, "split": "comma"}}, 'option "encoders.x.tokens.split" has a wrong value'),
    ],
)
def test_settings_are_checked(given, words):
    with pytest.raises(errors.InvalidArgument) as caught:
        per_column.read_encoders("encoders", {"x": given})
    assert caught.value.message == words and caught.value.hint


def test_what_is_of_no_use_without_an_encoder_needs_one():
    with pytest.raises(errors.InvalidArgument, match='column "x" needs an encoder') as caught:
        per_column.check_encoders({}, {"x": "text[]"}, ["x"])
    assert '{"x": {"tokens": {…}}}' in caught.value.hint
    with pytest.raises(errors.InvalidArgument, match='column "x" is no text'):
        per_column.check_encoders({"x": {"tokens": {"length": 2, "split": "character"}}}, {"x": "text[]"}, ["x"])
