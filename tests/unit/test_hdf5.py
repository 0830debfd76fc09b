"""The reader of weights files: what h5py writes in the manner of Keras is read alike, everything else is refused."""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest

from cerebro_udf import hdf5


def written(fill, **settings) -> bytes:
    data = io.BytesIO()
    with h5py.File(data, "w", **settings) as file:
        fill(file)
    return data.getvalue()


def many(file) -> None:
    for i in range(200):  # more than fit one node of a group's index
        group = file.create_group("layers/dense_%d" % i)
        group.attrs["name"] = "dense_%d" % i
        group["vars/0"] = np.full((2, 3), i, "f4")
    file["half"], file["double"], file["step"] = np.ones(3, "f2"), np.arange(4.0), np.int64(7)
    file["empty"], file["big"] = np.zeros((0, 3), "f4"), np.arange(5, dtype=">i2")


def test_every_array_is_read_as_h5py_reads_it():
    data, expected = written(many), {}
    with h5py.File(io.BytesIO(data)) as file:
        file.visititems(lambda name, item: expected.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    found = hdf5.read(data)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("fill", [
    lambda file: file.__setitem__("x", h5py.ExternalLink("/etc/passwd", "/")),
    lambda file: file.__setitem__("x", h5py.SoftLink("/y")),
    lambda file: file.create_dataset("x", (3,), "f4", external="/etc/passwd"),
    lambda file: file.create_dataset("x", (10**12,), "f4", chunks=(1024,)),
    lambda file: file.create_dataset("x", (10**6,), "f4", compression="gzip"),
    lambda file: file.create_dataset("x", data="text"),
    lambda file: file.create_dataset("x", data=np.zeros(2, [("a", "f4")])),
    lambda file: file.create_dataset("x", (4,), "f4"),
], ids=["external link", "soft link", "external file", "chunks", "compressed", "text", "compound", "never written"])  # fmt: skip
def test_what_keras_does_not_write_is_refused(fill):
    with pytest.raises(hdf5.Unreadable):
        hdf5.read(written(fill))


def test_one_array_under_two_names_is_refused():
    def fill(file):
        file["x"] = np.zeros(4)
        file["y"] = file["x"]

    with pytest.raises(hdf5.Unreadable, match="belongs to two others"):
        hdf5.read(written(fill))


def test_a_damaged_file_is_refused_or_read_and_never_more():
    data, random = written(lambda file: [file.__setitem__("g/%d" % i, np.zeros(3)) for i in range(40)]), np.random.default_rng(1)
    for end in (0, 7, 50, 100, len(data) // 2):
        with pytest.raises(hdf5.Unreadable):
            hdf5.read(data[:end])
    for _ in range(300):
        damaged = bytearray(data)
        for place in random.integers(len(data), size=20):
            damaged[place] = random.integers(256)
        try:
            hdf5.read(bytes(damaged))
        except hdf5.Unreadable as error:
            assert str(error)
