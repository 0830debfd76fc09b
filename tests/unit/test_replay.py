"""The code in docs/replay.md is what the package does."""

import re
from pathlib import Path

import numpy as np
import pytest

from cerebro_udf.segment import seeds


@pytest.fixture(scope="module")
def documented():
    text = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    names = {}
    for block in blocks[:-1]:  # the last one is the loop over minibatches
        exec(block, names)  # noqa: S102  (our own documentation)
    return names


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_the_documented_permutation(documented, n):
    assert documented["permutation"](7, 2, 1, n).tolist() == seeds.permutation(7, 2, 1, n).tolist()


def test_the_documented_trial_seed(documented):
    assert [documented["trial_seed"](7, t) for t in range(9)] == [seeds.trial_seed(7, t) for t in range(9)]


def test_the_documented_seeds_of_generators(documented):
    assert [documented["generator_seed"](7, i) for i in range(9)] == [seeds.generator_seed(7, i) for i in range(9)]


def test_the_documented_validation_split(documented):
    words = np.random.default_rng(0).integers(0, 2**64, (500, 4), dtype=np.uint64)
    keys = seeds.raw(4, 7, "validation") | np.uint64(1)
    expected = seeds.unit(words @ keys) < 0.25
    assert documented["is_validation"](words, 7, 0.25).tolist() == expected.tolist()
    assert 0.15 < expected.mean() < 0.35
