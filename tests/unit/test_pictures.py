"""What a bytea holds, and rows that are varied while they are trained on."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from cerebro_udf import definition, encoders, errors, keras_names, tensors
from cerebro_udf.coordinator import augment, options, per_column, programs
from cerebro_udf.segment import binary, export, program, seeds
from cerebro_udf.segment.predict import Predictor

PICTURE = {"height": 6, "width": 8, "channels": 3}
IMAGE = {"name": "i", "kind": "image", "type": "bytea", "encoder": "unit", "shape": [6, 8, 3], "image": PICTURE}
# Arguments by layer; what is not named takes one that changes every picture.
ARGUMENTS = {
    "RandomCrop": {"height": 6, "width": 8}, "RandomFlip": {}, "RandomPosterization": {"factor": 4}, "RandomTranslation": {
        "height_factor": 0.3, "width_factor": 0.3}, "RandomZoom": {"height_factor": 0.3}, "RandomShear": {"x_factor": 0.4},
    "RandomColorJitter": {"brightness_factor": 0.4}, "RandomElasticTransform": {"factor": 1.0}, "GaussianNoise": {"stddev": 0.2},
    "GaussianDropout": {"rate": 0.2}, "RandomSharpness": {"factor": 0.5}, "RandomErasing": {"factor": 1.0},
}  # fmt: skip


def spec_of(feature, layers, augmented=()):
    """The encoders and the program of a run whose only feature this is."""
    full = augment.check(augment.read("augment", {feature["name"]: list(augmented)}), [feature]) if augmented else {}
    label = {"name": "y", "output": None, "type": "text", "task": "classification", "classes": ["a", "b"]}
    (feature,) = encoders._varied([feature], full)
    given = [{"name": None, "features": [feature["name"]], "stack": None}]
    made = {"format": encoders.FORMAT, "features": [feature], "labels": [label], "inputs": given}
    made["model"] = encoders._model([feature], given, [label])
    model = definition.check({"layers": layers})
    return made, programs.order(options.parse({}, model), {}, model, made)["program"]


def pictures(count, seed=0, shape=(6, 8, 3)):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def test_a_tensor_is_little_endian_and_of_one_length():
    settings = {"dtype": "int16", "shape": [2, 2]}
    values, missing, broken = binary.read_all([b"\x01\x00\xff\xff\x00\x01\x02\x00", None, b"123", b"1234"], "tensor", settings, '"x"')
    assert values[0].tolist() == [[1, -1], [256, 2]] and missing.tolist() == [False, True, True, True]
    assert (broken.rows, broken.where) == (2, "md5(\"x\") = '202cb962ac59075b964b07152d234b70'")
    assert broken.reason == "there are 3 bytes, int16 of shape [2, 2] takes 8"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "uint32", "int64"])
def test_tensors_of_every_width_keep_their_values(dtype):
    wanted = np.array([[0, 1], [2, 250]], dtype)
    values, missing, _ = binary.read_all([wanted.tobytes()], "tensor", {"dtype": dtype, "shape": [2, 2]}, "x")
    np.testing.assert_array_equal(values[0], wanted)
    assert not missing.any()


def test_png_and_jpeg_files_are_decoded_and_damaged_ones_told():
    pixels = pictures(1)[0]
    png, jpeg = tf.io.encode_png(pixels).numpy(), tf.io.encode_jpeg(pixels).numpy()
    values, missing, broken = binary.read_all([png, jpeg, png[:40], b"GIF89a", b"\x89PNG"], "image", PICTURE, "x")
    np.testing.assert_array_equal(values[0], pixels)
    np.testing.assert_array_equal(values[1], tf.io.decode_jpeg(jpeg).numpy())
    assert missing.tolist() == [False, False, True, True, True] and (broken.rows, broken.reason) == (3, "the image is damaged")
    huge = png[:16] + b"\x00\x01\x00\x00\x00\x01\x00\x00" + png[24:]
    for blob, reason in (
        (b"GIF89a", "it is neither a PNG nor a JPEG file"),
        (huge, "the image has 65536 x 65536 pixels"),
        (tf.io.encode_png(pictures(1, shape=(6, 7, 3))[0]).numpy(), "the image has 7 x 6 pixels, not 8 x 6"),
    ):
        assert binary.read_all([blob], "image", PICTURE, "x")[2].reason == reason


@pytest.mark.parametrize("crop", [False, True])
def test_pictures_are_resized_as_keras_resizes_them(crop):
    pixels = pictures(1, shape=(30, 17, 3))[0]
    settings = {**PICTURE, "resize": "bilinear", "crop": crop}
    values, _, _ = binary.read_all([tf.io.encode_png(pixels).numpy()], "image", settings, "x")
    expected = keras.layers.Resizing(6, 8, crop_to_aspect_ratio=crop)(pixels.astype(np.float32))
    np.testing.assert_array_equal(values[0], np.round(np.asarray(expected)))


def test_bytes_stay_bytes_until_the_model_scales_them():
    made, spec = spec_of(IMAGE, [{"Flatten": {}}, {"Dense": {"units": "$classes"}}])
    arrays = tensors.Encoding(made).encode({"i": pictures(3)})
    assert arrays["numbers"].dtype == np.uint8
    built = program.Program(spec)
    blob = built.initial_state(3)
    built.set_state(blob)
    predictor = Predictor(made, spec, blob)
    kernel, bias = (variable.numpy() for variable in built.model.trainable_variables)
    expected = keras.ops.softmax((pictures(3) / 255).reshape(3, -1) @ kernel + bias)
    pngs = ["\\x" + tf.io.encode_png(picture).numpy().hex() for picture in pictures(3)]
    np.testing.assert_allclose(predictor.rows([{"i": png} for png in pngs])[0][1], expected, rtol=1e-5)
    np.testing.assert_allclose(predictor.rows([[picture.tolist()] for picture in pictures(3)])[0][1], expected, rtol=1e-5)
    assert predictor.row([pngs[0]]) == predictor.row(pictures(1).tolist()) == predictor.row(pictures(3)[0].tolist())
    for value, words in (
        ("\\x00", "The bytes cannot be read: it is neither a PNG nor a JPEG file."),
        ("?", "neither hexadecimal"),
        ([[1]], "array of shape [6, 8, 3]"),
        (np.full((6, 8, 3), 256).tolist(), "whole, 0 to 255"),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            predictor.row({"i": value})
        assert words in caught.value.hint


def test_rows_are_varied_as_plain_keras_varies_them_and_predicted_as_they_are():
    layers = [{name: ARGUMENTS.get(name, {"factor": 0.4})} for name in sorted(keras_names.VARYING)]
    body = [{"Conv2D": {"filters": 2, "kernel_size": 3}}, {"Flatten": {}}, {"Dense": {"units": "$classes"}}]
    made, spec = spec_of(IMAGE, body, layers)
    built = program.Program(spec)
    first = built.initial_state(3, generators=7)
    rows = pictures(23)
    arrays = {"numbers": rows, "label": np.arange(23, dtype=np.int32) % 2}
    plain = keras.Sequential(
        [keras.Input((6, 8, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)]
        + [getattr(keras.layers, next(iter(layer)))(**next(iter(layer.values()))) for layer in ranged(layers)]
        + [keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    plain.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    built.set_state(first)
    plain.fit(rows[:1], arrays["label"][:1], verbose=0)  # makes the optimizer's variables
    plain.optimizer.iterations.assign(0)
    for ours, theirs in zip(built.model.trainable_variables, plain.trainable_variables):
        theirs.assign(ours)
    for variable in plain.optimizer.variables:
        if "momentum" in variable.path or "velocity" in variable.path:
            variable.assign(np.zeros(variable.shape))
    states = [variable for variable in plain.variables if variable.name == "seed_generator_state"]
    assert len(states) == len(built.generators) >= len(layers)
    for position, variable in enumerate(states):
        variable.assign([seeds.generator_seed(7, position), 0])
    built.train(arrays, np.arange(23, dtype=np.int32), 8)
    plain.fit(rows, arrays["label"], batch_size=8, epochs=1, shuffle=False, verbose=0)
    for ours, theirs in zip(built.model.trainable_variables, plain.trainable_variables):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert [v.numpy().tolist() for v in states] == [
        v.numpy().tolist() for v in built.model.variables if v.name == "seed_generator_state"
    ]
    kernel = [variable.numpy() for variable in built.model.trainable_variables]
    bare = keras.Sequential([keras.Input((6, 8, 3)), keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(2)])
    bare.set_weights(kernel)
    answers = Predictor(made, spec, built.get_state()).rows([[row.tolist()] for row in rows])[0][1]
    expected = keras.ops.softmax(bare((rows / 255).astype(np.float32)))
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-6)


def ranged(layers):
    """The layers, told that values lie from 0 to 1, where they ask."""
    for layer in layers:
        ((name, arguments),) = layer.items()
        yield {name: {"value_range": [0.0, 1.0], **arguments} if "value_range" in keras_names.LAYERS[name] else arguments}


def test_a_crop_gives_the_model_its_shape():
    made, _ = spec_of(IMAGE, [{"Flatten": {}}, {"Dense": {"units": "$classes"}}], [{"RandomCrop": {"height": 4, "width": 5}}])
    assert encoders.from_data(made)["input_shape"] == [4, 5, 3]


@pytest.mark.parametrize("height, width", [(4, 5), (3, 8), (9, 4)])
def test_rows_that_are_not_trained_on_are_cropped_as_keras_crops_the_middle(height, width):
    varying = [{"RandomFlip": {}}, {"RandomCrop": {"height": height, "width": width}}, {"GaussianNoise": {"stddev": 0.2}}]
    body = [{"GlobalAveragePooling2D": {}}, {"Dense": {"units": "$classes", "activation": "softmax"}}]  # takes pictures of any size
    made, spec = spec_of(IMAGE, body, varying)
    built = program.Program(spec)
    blob = built.initial_state(3, generators=7)
    built.set_state(blob)
    rows = pictures(5)
    middle = [keras.Input((6, 8, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.CenterCrop(height, width)]
    plain = keras.Sequential([*middle, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2, activation="softmax")])
    plain.set_weights([variable.numpy() for variable in built.model.trainable_variables])
    expected = plain(rows)
    np.testing.assert_array_equal(built.model(rows, training=False), expected)
    np.testing.assert_array_equal(Predictor(made, spec, blob).columns({"i": rows})[0][1], expected)
    np.testing.assert_array_equal(archived(made, spec, blob)({"i": rows}), expected)


def archived(made, spec, blob):
    """The exported model, as plain Keras opens it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(export.archive(made, spec, blob, {"run": "r"}, lambda: None))
        return keras.saving.load_model(path)


@pytest.mark.parametrize(
    "given, words",
    [
        ([], 'option "augment.i" has a wrong value'),
        ([{"Dense": {"units": 1}}], 'option "augment.i" names "Dense", which does not vary rows'),
        ([{"RandomFlip": {"mode": "horizontal", "moode": 1}}], 'option "augment.i": RandomFlip has no argument "moode"'),
        ([{"RandomFlip": {"mode": "$mode"}}], 'option "augment.i" holds a placeholder'),
        ([{"RandomFlip": {"data_format": "channels_first"}}], 'layer "RandomFlip" cannot take channels first'),
    ],
)
def test_layers_that_do_not_vary_rows_are_refused(given, words):
    with pytest.raises(errors.InvalidArgument) as caught:
        augment.read("augment", {"i": given})
    assert caught.value.message == words and caught.value.hint


def test_what_cannot_be_varied_is_refused():
    bright = augment.read("augment", {"i": [{"RandomBrightness": {"factor": 0.2}}]})
    assert augment.check(bright, [IMAGE])["i"][0]["config"]["value_range"] == [0.0, 1.0]
    for feature, words in (
        ({**IMAGE, "encoder": "standardize"}, 'layer "RandomBrightness" has to be told the range of the values of column "i"'),
        ({"name": "i", "kind": "text", "encoder": None}, 'option augment does not fit column "i"'),
        ({**IMAGE, "name": "j"}, 'option augment names "i", which is not a feature'),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            augment.check(bright, [feature])
        assert caught.value.message == words
    flat = {"name": "i", "kind": "array", "type": "real[]", "encoder": "minmax", "shape": [9]}
    with pytest.raises(errors.InvalidArgument, match='layer "RandomFlip" cannot vary column "i"'):
        spec_of(flat, [{"Dense": {"units": "$classes"}}], ["RandomFlip"])


@pytest.mark.parametrize(
    "given, words",
    [
        ({"tensor": {}}, 'option "encoders.x.tensor.shape" has a wrong value'),
        ({"tensor": {"shape": [2], "dtype": "complex64"}}, 'option "encoders.x.tensor.dtype" has a wrong value'),
        ({"tensor": {"shape": [2], "dtype": "int8", "as": "unit"}}, 'option "encoders.x.tensor.as" has a wrong value'),
        ({"image": {"height": 3}}, 'option "encoders.x.image.width" has a wrong value'),
        ({"image": {"height": 3, "width": 3, "channels": 2}}, 'option "encoders.x.image.channels" has a wrong value'),
        ({"image": {"height": 3, "width": 3, "crop": True}}, 'option "encoders.x.image.crop" has a wrong value'),
    ],
)
def test_settings_of_bytes_are_checked(given, words):
    with pytest.raises(errors.InvalidArgument) as caught:
        per_column.read_encoders("encoders", {"x": given})
    assert caught.value.message == words and caught.value.hint
