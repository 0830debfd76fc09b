"""Sparse rows as arrays: any cut of them is that of the rows in full."""

import json

import keras
import numpy as np
import pytest

from cerebro_udf import columns, compilation, definition, errors, sparse
from cerebro_udf.coordinator import ends, per_column
from cerebro_udf.segment import overflow, pack, program, state

SIZE = 12


def rows_of(dense: np.ndarray) -> sparse.Rows:
    indices = [np.flatnonzero(row)[::-1] for row in dense]
    return sparse.made(indices, [row[index] for row, index in zip(dense, indices)], SIZE)[0]


def full(rows: sparse.Rows) -> np.ndarray:
    dense = np.zeros((len(rows), SIZE), np.float32)
    for target, row in zip(dense, rows):
        target[row["index"]] = row["value"]
    return dense


@pytest.fixture
def dense():
    random = np.random.default_rng(1)
    return np.where(random.uniform(size=(30, SIZE)) < 0.2, random.normal(size=(30, SIZE)), 0).astype(np.float32)


@pytest.mark.parametrize(
    "picks", [slice(0, 0), slice(4, 17), slice(25, 99), slice(None), np.arange(30) % 3 == 1, np.array([7, 7, 0, 29]), np.array([], int)]
)
def test_rows_are_cut_as_those_of_an_array(dense, picks):
    found = rows_of(dense)[picks]
    np.testing.assert_array_equal(full(found), dense[picks])
    assert len(found) == len(dense[picks]) and len(found.entries) == (dense[picks] != 0).sum()
    np.testing.assert_array_equal(full(found[1:3]), dense[picks][1:3])


def test_blocks_are_put_one_after_another(dense):
    rows = rows_of(dense)
    np.testing.assert_array_equal(full(sparse.joined([rows[:11], rows[11:11], rows[11:]])), dense)
    assert len(sparse.joined([])) == 0


def test_rows_are_stored_as_plain_arrays_and_checked_when_they_are_read(dense):
    rows = rows_of(dense)
    found = sparse.of_parts(*(rows.parts[key] for key in sparse.PARTS), SIZE)
    assert found.entries.tobytes() == rows.entries.tobytes() and found.offsets.tolist() == rows.offsets.tolist()
    assert len(sparse.of_parts(*(rows[:0].parts[key] for key in sparse.PARTS), SIZE)) == 0
    good = ([1, 5, 0, 11], [1, 2, 3, 4], [2, 0, 2])
    for place, other in (
        (0, [1, 5, 0, 12]), (0, [-1, 5, 0, 11]), (0, [5, 5, 0, 11]), (0, [5, 1, 0, 11]), (1, [1, 2, 3]), (2, [2, 0, 1]), (2, [3, -1, 2]),
        (2, [1, 0, 3]),
    ):  # fmt: skip
        parts = [np.array(part, dtype) for part, dtype in zip(good, ("i4", "f4", "i4"))]
        assert len(sparse.of_parts(*parts, SIZE)) == 3
        parts[place] = np.array(other, parts[place].dtype)
        with pytest.raises(ValueError):
            sparse.of_parts(*parts, SIZE)
    with pytest.raises(ValueError):
        sparse.of_parts(*(rows.parts[key].astype(np.int64) for key in sparse.PARTS), SIZE)


@pytest.mark.parametrize("limit", [1, 100, 10**6])
def test_a_block_holds_as_many_rows_as_fill_it(dense, monkeypatch, limit):
    monkeypatch.setattr(pack, "BLOCK_BYTES", limit)
    arrays = {"numbers": rows_of(dense), "label": np.zeros(len(dense), np.int32)}
    start, blocks = 0, []
    while start < len(dense):
        stop = min(len(dense), start + pack._filling(arrays, start))
        blocks.append(pack._flat({name: array[start:stop] for name, array in arrays.items()}))
        start = stop
    sizes = [sum(array.nbytes for array in block.values()) for block in blocks]
    assert all(size <= limit or len(block["label"]) == 1 for size, block in zip(sizes, blocks))
    assert len(blocks) == {1: len(dense), 10**6: 1}.get(limit, len(blocks)) and all(one + 8 + 8 * SIZE > limit for one in sizes[:-1])
    found = [pack._whole(block, {"numbers": {"sparse": {"size": SIZE}}})["numbers"] for block in blocks]
    np.testing.assert_array_equal(full(sparse.joined(found)), dense)


@pytest.mark.parametrize("share", [0, 0.4, 1])
def test_rows_in_a_file_are_taken_by_their_position_and_counted(dense, tmp_path, share):
    rows = rows_of(dense)
    place = overflow.room("numbers", rows[:0], 30, share, overflow.Overflow(folder=str(tmp_path)), len(rows.entries))
    for start in (0, 11, 20):
        stop = {0: 11, 11: 20, 20: 30}[start]
        place[start:stop] = rows[start:stop]
    picks = np.array([29, 3, 3, 0, 17])
    np.testing.assert_array_equal(full(place.take(picks)), dense[picks])
    np.testing.assert_array_equal(full(overflow.plain(place[5:25])), dense[5:25])
    assert overflow.is_streamed({"numbers": place}) == (share < 1)
    if share < 1:
        resident = int(share * len(rows.entries))
        ends = np.cumsum((dense != 0).sum(1))
        assert place.resident_rows == (ends <= resident).sum() and place.entries.nbytes == 8 * resident
        missing = [max(0, ends[n] - max(resident, ends[n] - (dense[n] != 0).sum())) for n in picks]
        assert place.read_bytes(picks) == 8 * sum(missing)


def test_indices_alone_are_counts():
    found, wrong = sparse.made([np.array([3, 1, 3]), np.array([], int)], None, SIZE)
    assert wrong == {} and full(found)[0].tolist() == [0, 1, 0, 2] + [0] * 8 and not full(found)[1].any()


def test_what_is_wrong_with_a_row_is_told_and_leaves_it_empty():
    indices = [[1], [2, 12], [-1], [5, 5], [1, 2], [4]]
    values = [[1.0], [1, 2], [3], [1, 1], [1], [1e39]]
    found, wrong = sparse.made(list(map(np.array, indices)), list(map(np.array, values)), SIZE)
    assert {row: found.reason for row, found in wrong.items()} == {
        1: "index 12 is not from 0 to 11", 2: "index -1 is not from 0 to 11", 3: "index 5 stands there twice",
        4: "it has 2 indices and 1 values", 5: "the value of index 4 is NaN, infinite, or beyond 3.4e38",
    }  # fmt: skip
    assert np.diff(found.offsets).tolist() == [1, 0, 0, 0, 0, 0]


def test_sparse_rows_train_several_outputs_as_the_same_rows_in_full_do(dense):
    x = keras.Input((SIZE,))
    shared = keras.layers.Dense(4, "tanh")(x)
    ends = [keras.layers.Dense(3, "softmax", name="kind")(shared), keras.layers.Dense(1, name="size")(shared)]
    written = definition.bind(definition.check(json.loads(keras.Model(x, ends).to_json())), {})
    outputs = [{"name": "kind", "task": "classification", "classes": 3}, {"name": "size", "task": "regression", "classes": None}]
    labels = {"label": np.arange(30, dtype=np.int32) % 3, "label_1": dense.sum(1)}
    found = []
    for rows, more in ((dense, {}), (rows_of(dense), {"sparse": True})):
        encoders = {"inputs": [{"name": None, "numbers": [SIZE], "codes": [], **more}], "outputs": outputs}
        built = program.Program({"definition": written, "optimizer": compilation.check_optimizer("adam"), "encoders": encoders})
        built.set_state(built.initial_state(3))
        built.train({"numbers": rows, **labels}, np.arange(30, dtype=np.int32)[::-1].copy(), 4)
        found.append(state.unpack(built.get_state())[0])
    assert list(found[0]) == list(found[1])
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "layers, refused",
    [
        ([{"Dense": {"units": 2}}], False),
        ([{"InputLayer": {"batch_shape": [None, 12]}}, {"Dense": {"units": 2}}], False),
        ([{"Dropout": {"rate": 0.5}}, {"Dense": {"units": 2}}], True),
        ([{"Sequential": {"layers": [{"Dense": {"units": 2}}]}}, {"Dense": {"units": 2}}], True),
        ([{"repeat": "$depth", "layers": [{"Dense": {"units": 2}}]}], True),
    ],
)
def test_only_a_dense_layer_takes_sparse_rows(layers, refused):
    encoders = per_column.read_encoders("encoders", {"x": {"sparse": {"size": 12}}})
    model = definition.check({"layers": layers})
    if refused:
        with pytest.raises(errors.NotSupported, match='column "x" of sparse rows does not go into'):
            ends.check_sparse(None, encoders, model)
    else:
        ends.check_sparse(None, encoders, model)


def test_what_is_read_of_a_row_is_the_indices_and_their_values():
    encoder = {"sparse": {"size": 12, "values": "v"}}
    feature = columns.specification("x", "integer[]", encoder)
    assert (columns.read_of(feature), columns.values_of({"x": encoder, "y": "none"})) == (["x", "v"], ["v"])
    assert columns.sparse_of([feature]) == {"x": encoder}
