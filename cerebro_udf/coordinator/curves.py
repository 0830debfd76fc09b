"""From counts that segments send to what is reported: of classes, and of residuals. Pure."""

from __future__ import annotations

import math
import struct
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple


class Curve(NamedTuple):
    """What the scores of one class tell about it.

    Attributes:
        auc: The probability that a row of the class scores higher than another one; None without both kinds.
        threshold: The score from which on rows are best taken for the class: with the largest F1, the highest of such.
        f1: That F1.
    """

    auc: Optional[float]
    threshold: Optional[float]
    f1: Optional[float]


def edges(shards: Sequence[List[List[float]]]) -> List[List[float]]:
    """Merge the scores of all shards, class by class, to edges between which rows are counted."""
    return [sorted(set().union(*scores)) for scores in zip(*shards)]


def curve(edges: Sequence[float], own: Sequence[int], others: Sequence[int]) -> Curve:
    """Return AUC and best threshold.

    Args:
        edges: Scores, ascending.
        own: How many rows of the class score from each edge up to the next.
        others: How many of all other rows.

    The AUC counts pairs, those within the same two edges half. So it is exact where each edge's rows have the same score.

    Source: Hanley and McNeil 1982 (the AUC is the Mann-Whitney statistic).
    """
    positives, negatives = sum(own), sum(others)
    if not positives or not negatives:
        return Curve(None, None, None)
    pairs, true, false = 0.0, 0, 0
    best: Tuple[float, Optional[float]] = (-1.0, None)
    for edge, p, n in reversed(list(zip(edges, own, others))):
        pairs += n * (true + p / 2)
        true, false = true + p, false + n
        f1 = 2 * true / (true + false + positives)
        best = max(best, (f1, edge), key=lambda pair: pair[0])
    return Curve(pairs / (positives * negatives), best[1], best[0])


def share(part: int, whole: int) -> Optional[float]:
    """A part of a whole, None of nothing."""
    return part / whole if whole else None


def f1(hits: int, predicted: int, actual: int) -> Optional[float]:
    return share(2 * hits, predicted + actual)


def rank(quantile: float, rows: int) -> int:
    """Number, from 0, of the row at a quantile: the first of which at least that share of the rows is no larger.

    As ``percentile_disc`` of PostgreSQL.
    """
    return max(0, math.ceil(quantile * rows) - 1)


def find(counts: Dict[int, int], ranks: Sequence[int]) -> List[Tuple[int, int]]:
    """Return, for ascending ranks, the key under which each lies, and the rank within that key."""
    found: List[Tuple[int, int]] = []
    below, keys = 0, iter(sorted(counts))
    key = next(keys, 0)
    for wanted in ranks:
        while wanted >= below + counts[key]:
            below += counts[key]
            key = next(keys)
        found.append((key, wanted - below))
    return found


def total(parts: Sequence[Dict[str, int]]) -> Dict[int, int]:
    """Add counts up that come as JSON."""
    result: Dict[int, int] = {}
    for part in parts:
        for key, count in part.items():
            result[int(key)] = result.get(int(key), 0) + count
    return result


def value_of(key: int) -> float:
    """Return the float32 whose place in the ascending order of all of them is this, see ``segment.judge``."""
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    return struct.unpack("<f", struct.pack("<I", bits))[0]
