"""Sparse rows as arrays: any cut of them is that of the rows in full."""

import numpy as np
import pytest

from cerebro_udf import columns, definition, errors, sparse
from cerebro_udf.coordinator import ends, per_column

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


def test_indices_alone_are_counts():
    found, wrong = sparse.made([np.array([3, 1, 3]), np.array([], int)], None, SIZE)
    assert wrong == {} and full(found)[0].tolist() == [0, 1, 0, 2] + [0] * 8 and not full(found)[1].any()


def test_what_is_wrong_with_a_row_is_told_and_leaves_it_empty():
    indices = [[1], [2, 12], [-1], [5, 5], [1, 2], [4]]
    values = [[1.0], [1, 2], [3], [1, 1], [1], [1e39]]
    found, wrong = sparse.made(list(map(np.array, indices)), list(map(np.array, values)), SIZE)
    assert wrong == {
        1: "index 12 is not from 0 to 11", 2: "index -1 is not from 0 to 11", 3: "index 5 stands there twice",
        4: "it has 2 indices and 1 values", 5: "the value of index 4 is NaN or infinite",
    }  # fmt: skip
    assert np.diff(found.offsets).tolist() == [1, 0, 0, 0, 0, 0]


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
