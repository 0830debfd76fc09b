"""Counts to AUC, thresholds and quantiles: against what sorting all rows gives."""

import struct

import numpy as np
import pytest

from cerebro_udf.coordinator import curves
from cerebro_udf.segment import judge


def auc(own, others):
    pairs = own[:, None] - others[None, :]
    return np.mean((pairs > 0) + 0.5 * (pairs == 0))


def counted(own, others, most):
    edges = sorted({*judge._spaced(np.sort(own), most), *judge._spaced(np.sort(others), most)})
    ends = [np.append(np.searchsorted(np.sort(side), np.array(edges, np.float32)), len(side)) for side in (own, others)]
    return edges, [np.diff(end).tolist() for end in ends]


@pytest.mark.parametrize("spread", [1.0, 1e-3, 0.0])
def test_auc_is_exact_when_all_scores_are_edges_and_close_when_few_are(spread):
    """However narrow the scores are, and although many are equal."""
    random = np.random.default_rng(3)
    own, others = (
        (0.01 + spread * random.beta(a, b, n).round(2)).astype(np.float32) for a, b, n in ((4, 2, 150), (2, 4, 2000))
    )
    for most, error in ((2000, 1e-12), (32, 1 / 64)):
        edges, counts = counted(own, others, most)
        found = curves.curve(edges, *counts)
        assert found.auc == pytest.approx(auc(own, others), abs=error)
        taken = np.concatenate([own, others]) >= np.float32(found.threshold)
        assert found.f1 == pytest.approx(2 * (own >= np.float32(found.threshold)).sum() / (len(own) + taken.sum()))


def test_threshold_is_the_highest_of_the_best():
    assert curves.curve([0.1, 0.5, 0.9], [0, 0, 4], [3, 0, 0]) == curves.Curve(1.0, 0.9, 1.0)
    assert curves.curve([0.1], [0], [3]) == curves.Curve(None, None, None)


def test_keys_ascend_with_the_numbers_and_lead_back_to_them():
    random = np.random.default_rng(4)
    values = np.sort(np.concatenate([random.normal(size=50) * 10.0 ** random.integers(-40, 38, 50), [0.0, -0.0, 1e38, -1e38]]))
    values = values.astype(np.float32)
    keys = judge._ascending(values).tolist()
    assert keys == sorted(keys)
    back = np.array([curves.value_of(key) for key in keys], np.float32)
    assert (back == values).all() and struct.pack("<f", curves.value_of(judge._ascending(np.float32([-0.0])).item())) == bytes(4)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_ranks_are_those_of_percentile_disc(rows):
    values = list(range(rows))
    for quantile in (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0):
        expected = next(k for k in values if (k + 1) / rows >= quantile)
        assert curves.rank(quantile, rows) == expected
    counts = curves.total([{"5": 2, "9": rows}, {"5": 1}])
    everything = [5] * 3 + [9] * rows
    ranks = sorted({0, 2, 3, 2 + rows})
    assert [key for key, _ in curves.find(counts, ranks)] == [everything[rank] for rank in ranks]
