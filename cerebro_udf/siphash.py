"""SipHash-2-4 of many byte strings at once, under a key of zeros: what Keras' ``Hashing(…, salt=0)`` computes.

Source: Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012.
"""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

_BEGINNING = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)  # for a key of zeros


def siphash(strings: Sequence[bytes]) -> np.ndarray:
    """The hash of each, uint64 (strings,)."""
    result = np.empty(len(strings), np.uint64)
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    for words in np.unique(lengths // 8).tolist():  # those that take as many rounds at once
        places = np.flatnonzero(lengths // 8 == words)
        padded = b"".join([strings[i].ljust(8 * words + 8, b"\0") for i in places])
        blocks = np.frombuffer(padded, "<u8").reshape(len(places), -1).astype(np.uint64)
        blocks[:, -1] |= (lengths[places].astype(np.uint64) & np.uint64(255)) << np.uint64(56)
        result[places] = _rounds(blocks.T)
    return result


def _rounds(blocks: np.ndarray) -> np.ndarray:
    """The hashes of strings of one number of blocks: uint64 (blocks, strings)."""
    v = [np.full(blocks.shape[1], word, np.uint64) for word in _BEGINNING]
    for block in blocks:
        v[3] ^= block
        for _ in range(2):
            _mix(v)
        v[0] ^= block
    v[2] ^= np.uint64(255)
    for _ in range(4):
        _mix(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _mix(v: List[np.ndarray]) -> None:
    for a, b, bits, turned in ((0, 1, 13, True), (2, 3, 16, False), (0, 3, 21, False), (2, 1, 17, True)):
        v[a] += v[b]
        v[b] = _left(v[b], bits) ^ v[a]
        if turned:
            v[a] = _left(v[a], 32)


def _left(x: np.ndarray, bits: int) -> np.ndarray:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))
