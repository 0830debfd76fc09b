"""Where randomness comes from: a run's seed, and SHA-256. ``docs/replay.md`` states the same formulas."""

from __future__ import annotations

import hashlib
from typing import List, Optional, Sequence

import numpy as np


def _digest(*parts: object) -> bytes:
    return hashlib.sha256("/".join(map(str, parts)).encode("ascii")).digest()


def raw(n: int, *parts: object) -> np.ndarray:
    """Return n random uint64, (n,), keyed by the parts.

    They are the raw output of Philox4x64-10, whose stream numpy keeps the same in every version.
    """
    return np.random.Philox(key=int.from_bytes(_digest(*parts)[:16], "little")).random_raw(n)


def permutation(seed: int, epoch: int, shard: int, n: int) -> np.ndarray:
    """Return the order in which the n training rows of a shard are visited in one epoch, int32 (n,).

    It is the same for every trial, so trials are compared on the same minibatches.
    """
    return np.argsort(raw(n, seed, epoch, shard), kind="stable").astype(np.int32)


def trial_seed(seed: int, trial: int) -> int:
    """Return the seed of a trial's first state, 0 <= it < 2**31."""
    return int.from_bytes(_digest(seed, trial)[:4], "big") >> 1


def generator_seed(seed: int, position: int) -> int:
    """Return the seed of a model's random generator, 0 <= it < 2**31.

    It is the same for every trial (common random numbers): trials are compared under the same dropout, and those that are
    trained as one draw it once.
    """
    return int.from_bytes(_digest(seed, "generator", position)[:4], "big") >> 1


def mixed(words: np.ndarray) -> np.ndarray:
    """Mix uint64 words into others that are spread evenly.

    Source: the finalizer of SplitMix64, Steele, Lea and Flood 2014.
    """
    z = words.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def unit(words: np.ndarray) -> np.ndarray:
    """Mix uint64 words into float64 numbers, 0 <= number < 1, spread evenly."""
    return (mixed(words) >> np.uint64(11)) * 2.0**-53


class Number:
    """A number for each row, made of its values with keys that a purpose has to itself: numbers of two purposes are independent.

    Args:
        seed: Of the run.
        purpose: Such as ``validation``.
    """

    def __init__(self, seed: int, purpose: str):
        self._of = (seed, purpose)
        self._keys: Optional[List[np.ndarray]] = None

    def of(self, words: Sequence[np.ndarray]) -> np.ndarray:
        """Return the numbers, uint64 (rows,); ``words`` are those of each column, uint64 (rows, words), of the same widths in each call."""
        if self._keys is None:
            widths = [block.shape[1] for block in words]
            self._keys = np.split(raw(sum(widths), *self._of) | np.uint64(1), np.cumsum(widths)[:-1])
        total = np.zeros(len(words[0]), np.uint64)
        for block, keys in zip(words, self._keys):
            total += block @ keys
        return total
