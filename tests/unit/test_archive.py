"""Archives and weights files of strangers: what they unpack to is bounded before it is unpacked."""

import io
import struct
import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest

from cerebro_udf import archive, hdf5
from cerebro_udf.errors import InvalidArgument


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return data.getvalue()


def weights(*names: str) -> bytes:
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        for name in names:
            file[name] = np.arange(3, dtype="f4")
    return data.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_packed_otherwise_than_keras_packs_is_refused_before_it_is_unpacked(method):
    bomb = zipped(method, **{"config.json": b"{}", "model.weights.h5": bytes(2**28)})
    tracemalloc.start()
    with pytest.raises(InvalidArgument, match="packed as Keras does not pack") as raised:
        archive.read(bomb, lambda: None)
    assert raised.value.hint
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_an_archive_of_keras_2_says_what_to_do_instead():
    parts = {"config.json": b"{}", "model.weights.h5": b"", "metadata.json": b'{"keras_version": "2.21.0"}'}
    with pytest.raises(InvalidArgument, match="saved by Keras 2") as raised:
        archive.read(zipped(**parts), lambda: None)
    assert "create_model" in raised.value.hint and "set_weights" in raised.value.hint
    assert archive.read(zipped(**{**parts, "metadata.json": b'{"keras_version": "3.15.1"}'}), lambda: None).config == "{}"


def test_a_part_that_holds_more_than_it_says_is_cut_or_refused():
    data = zipped(**{"config.json": b"{}", "model.weights.h5": bytes(2**26)})
    lying = data.replace(struct.pack("<I", 2**26), struct.pack("<I", 10))
    tracemalloc.start()
    with pytest.raises(InvalidArgument):
        archive.read(lying, lambda: None)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_a_directory_of_many_parts_is_not_read():
    with pytest.raises(InvalidArgument, match="what Keras does not write"):
        archive.read(zipped(**{"part%d" % n: b"" for n in range(101)}), lambda: None)


def test_names_of_weights_are_bounded():
    assert list(hdf5.read(weights("layers/dense/vars/0"))) == ["layers/dense/vars/0"]
    for name in ("a" * 2000, "/".join(["abcdefgh"] * 200)):
        with pytest.raises(hdf5.Unreadable):
            hdf5.read(weights(name))


def test_a_weights_file_whose_parts_lie_upon_each_other_is_not_remembered_many_times():
    """A B-tree of 65,535 nodes every 8 bytes: a hundred kilobytes that would be gone over by the gigabyte."""
    data = bytearray(weights("layers/dense/vars/0"))
    tree = data.index(b"TREE")
    node = b"TREE\0\0" + struct.pack("<H", 65535)
    data[tree : tree + 8] = node
    end = len(data)
    data += struct.pack("<Q", end) + node * 100_000
    for n in range(40):  # every child of the first tree is another tree
        struct.pack_into("<Q", data, tree + 24 + 16 * n + 8, end + 8 + 8 * n)
    calls = []
    with pytest.raises(hdf5.Unreadable):
        hdf5.read(bytes(data), lambda: calls.append(1))
    assert len(calls) < 100


def test_a_model_of_many_layers_is_read():
    names = ["layers/dense_%d/vars/%d" % (layer, number) for layer in range(300) for number in range(2)]
    assert sorted(hdf5.read(weights(*names))) == sorted(names)
