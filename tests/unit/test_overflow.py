"""Rows that memory does not hold: the same minibatches, from a file. Real Keras, in this process."""

import os
import threading

import numpy as np
import pytest

from cerebro_udf import errors
from cerebro_udf.segment import overflow
from cerebro_udf.segment.fused import FusedProgram
from cerebro_udf.segment.program import Program

from .test_program import N, data, part, spec

DENSE = [{"Dense": {"units": 8, "activation": "relu"}}, {"Dropout": {"rate": 0.2}}, {"Dense": {"units": 3}}]
BATCH = 32


@pytest.fixture
def files(tmp_path):
    return overflow.Overflow(folder=str(tmp_path / "files"))


def streamed(files, arrays, resident):
    """The arrays but for the label, so many of their rows in memory."""
    found = {name: overflow.room(name, array[:1], N, resident / N, files) for name, array in arrays.items()}
    for name, array in arrays.items():
        for start in range(0, N, 50):
            found[name][start : start + 50] = array[start : start + 50]
    return found


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(overflow, "WINDOW_BYTES", 3 * BATCH * 4 * 7)  # three minibatches


@pytest.mark.parametrize("resident", [0, 70])
@pytest.mark.parametrize("size", [1, 3])
def test_rows_from_a_file_train_and_validate_to_the_same_bits(files, narrow, resident, size):
    program, arrays, order = Program(spec(DENSE)), data(part()), np.random.default_rng(1).permutation(N).astype(np.int32)
    blobs = [program.initial_state(seed, generators=1) for seed in range(size)]
    side = program if size == 1 else FusedProgram(program, size)
    found = []
    for rows in (arrays, streamed(files, arrays, resident)):
        if size == 1:
            program.set_state(blobs[0])
        else:
            side.set_states(blobs, [None] * size)
        side.reset_metrics()
        trained, validated = side.train(rows, order, BATCH), side.validate(rows, BATCH)
        found.append([program.get_state()] if size == 1 else side.get_states())
    assert found[0] == found[1]
    hits = int((order < resident).sum())
    assert trained["reads"] == {"hits": hits, "misses": N - hits, "read_bytes": (N - hits) * 24}
    assert validated["reads"]["hits"] == resident and trained["batches"] == validated["batches"] == -(-N // BATCH)


def test_windows_are_read_ahead_and_no_larger_than_they_may_be(files, narrow):
    arrays = streamed(files, data(part()), 10)
    with overflow.Windows(arrays, None, BATCH) as windows:
        position, sizes = 0, []
        while position < N:
            count, window = windows.take(position, 100)
            assert (window["numbers"] == np.asarray(arrays["numbers"])[position : position + count]).all()
            sizes.append(count)
            position += count
    assert sizes == [96, 96, 11]
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


def test_files_have_no_names(files, tmp_path):
    array = files.array((1000, 3), np.float32)
    array[...] = 1
    assert os.listdir(tmp_path / "files") == [] and files.bytes == 12_000


def test_no_more_is_written_than_the_server_allows(tmp_path):
    files = overflow.Overflow(limit_bytes=100_000, folder=str(tmp_path))
    files.array((20_000,), np.float32)
    with pytest.raises(errors.OutOfTemporaryFiles) as caught:
        files.array((6_000,), np.float32)
    assert caught.value.sqlstate == "53400"


def test_a_full_disk_is_told(tmp_path):
    with pytest.raises(errors.DiskFull) as caught:
        overflow.Overflow(folder=str(tmp_path)).array((2**50,), np.float32)
    assert caught.value.sqlstate == "53100" and "temporary files" in caught.value.detail
