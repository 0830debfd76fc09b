"""The state codec."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cerebro_udf.errors import StateMismatch
from cerebro_udf.segment import state

DTYPES = st.sampled_from(
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "bool"]
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))


@settings(max_examples=60, deadline=None)
@given(st.lists(ARRAYS, max_size=5))
def test_any_arrays_survive_the_round_trip_bit_for_bit(arrays):
    named = {"model/%d" % i: array for i, array in enumerate(arrays)}
    back, metadata = state.unpack(state.pack(named, {"program": "p"}))
    assert list(back) == list(named) and metadata["program"] == "p"
    for name, array in named.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


def test_bfloat16_comes_back_as_bfloat16():
    array = np.array([[1.5, -2.0], [float("nan"), 3e38]], ml_dtypes.bfloat16)
    back, _ = state.unpack(state.pack({"a": array}))
    assert back["a"].dtype == ml_dtypes.bfloat16 and back["a"].tobytes() == array.tobytes()


def test_other_readers_of_safetensors_open_the_blob_and_arrays_that_are_not_contiguous_are_whole():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    back = safetensors.numpy.load(
        state.pack({"t": array.T, "s": array[::2, ::3], "big": array.astype(">f4")})
    )
    assert np.array_equal(back["t"], array.T) and np.array_equal(back["s"], array[::2, ::3])
    assert np.array_equal(back["big"], array)


def test_the_same_arrays_give_the_same_bytes():
    assert state.pack({"a": np.ones(3)}, {"x": "1"}) == state.pack({"a": np.ones(3)}, {"x": "1"})


@pytest.mark.parametrize("bit", [1, 2, 16, 128])
def test_any_changed_byte_is_damage(bit):
    whole = state.pack({"a": np.arange(10.0), "b": np.ones(2, np.uint8)}, {"program": "crc32:00000000"})
    for position in range(len(whole)):
        blob = bytearray(whole)
        blob[position] ^= bit
        with pytest.raises(StateMismatch):
            state.unpack(bytes(blob))


@pytest.mark.parametrize("length", [0, 4, 8, 60, -1])
def test_a_short_blob_is_damage(length):
    with pytest.raises(StateMismatch, match="damaged"):
        state.unpack(state.pack({"a": np.arange(10.0)})[:length])


@pytest.mark.parametrize(
    "blob", [b"", b"\xff" * 100, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{}"]
)
def test_foreign_bytes_are_damage(blob):
    with pytest.raises(StateMismatch, match="damaged"):
        state.unpack(blob)


def test_a_newer_format_is_named():
    blob = state.pack({"a": np.arange(3.0)})
    (length,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + length])
    header["__metadata__"]["format"] = "2"
    text = json.dumps(header).encode()
    with pytest.raises(StateMismatch, match="newer") as caught:
        state.unpack(struct.pack("<Q", len(text)) + text + blob[8 + length :])
    assert "format is 2" in caught.value.detail


@pytest.mark.parametrize(
    "arrays, spot",
    [
        ({}, 'no "a"'),
        ({"a": np.zeros(3)}, '"a" is float64 [3]'),
        ({"a": np.zeros(2, np.float32)}, '"a" is float32 [2]'),
        ({"a": np.zeros(2), "b": np.zeros(1)}, 'has "b"'),
    ],
)
def test_check_names_the_first_difference(arrays, spot):
    with pytest.raises(StateMismatch, match="another program") as caught:
        state.check(arrays, {"a": ((2,), "float64")})
    assert spot in caught.value.detail


def test_accumulators_add_up_in_float64():
    parts = [np.array([16_777_216.0, 1.0], np.float32), np.ones(2, np.float32), np.ones(2, np.float32)]
    total, metadata = state.unpack(
        state.add([state.pack({"metric/0": part}, {"program": "p"}) for part in parts])
    )
    assert total["metric/0"].dtype == np.float32 and total["metric/0"].tolist() == [16_777_218.0, 3.0]
    assert metadata["program"] == "p"


def test_accumulators_of_different_programs_do_not_add_up():
    with pytest.raises(StateMismatch):
        state.add([state.pack({"metric/0": np.ones(2)}), state.pack({"metric/0": np.ones(3)})])


def test_a_blob_in_chunks_is_told_from_one_of_which_a_bit_has_flipped():
    blob = state.pack({"a": np.arange(50, dtype=np.float32), "b": np.zeros((0, 3), np.int64)})
    for size in (len(blob), 700):
        state.verify([blob[at : at + size] for at in range(0, len(blob), size)])
    for at in (3, 20, len(blob) - 1):
        flipped = blob[:at] + bytes([blob[at] ^ 4]) + blob[at + 1 :]
        with pytest.raises(StateMismatch):
            state.verify([flipped])
