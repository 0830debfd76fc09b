"""Rows counted over shards, until it is known which have the ranks from one to another: no rows, nor their keys, leave a segment. Pure.

Every row has a key, a whole number of 64 bits; a shard is asked how many of its rows of a class have keys below each of some bounds, again
and again within the bounds between which the rank lies. Rows of one key are ranked by their shard.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

LOWEST, BITS = -(2**63), 64  # of keys
ANSWER_COUNTS = 2**16  # that a shard may give at once, about
MOST_DIGITS, FEWEST_DIGITS = 10, 4  # bits by which a question narrows a key down

Ask = Callable[[List[dict]], List[List[List[int]]]]


class _Place:
    """A rank that is looked for: how many rows below it each shard has."""

    def __init__(self, label: Any, rank: int, sizes: Sequence[int]):
        self.label, self.rank = label, rank
        self.low, self.bits = LOWEST, BITS
        self.below = [0] * len(sizes) if rank <= 0 else list(sizes)
        self.found = rank <= 0 or rank >= sum(sizes)

    def question(self, digits: int) -> dict:
        return {"class": self.label, "low": self.low, "bits": self.bits, "digits": min(digits, self.bits)}

    def narrow(self, digits: int, counts: List[List[int]], together: bool) -> None:
        """Take each shard's counts of rows below 2^digits + 1 bounds."""
        digits = min(digits, self.bits)
        totals = [sum(column) for column in zip(*counts)]
        last = max(n for n, total in enumerate(totals[:-1]) if total <= self.rank)
        self.bits -= digits
        self.low += last << self.bits
        self.below = [shard[last] for shard in counts]
        missing = self.rank - totals[last]
        self.found = missing == 0 or self.bits == 0
        if self.found and missing and not together:
            for number, shard in enumerate(counts):
                taken = min(missing, shard[last + 1] - shard[last])
                self.below[number] += taken
                missing -= taken


def find(sizes: Dict[Any, Sequence[int]], wanted: Dict[Any, Tuple[int, int]], shards: int, ask: Ask, together: bool) -> List[List[dict]]:
    """Find which rows have the ranks from ``start`` to below ``stop`` within their class.

    Args:
        sizes: How many rows of each class each shard has.
        wanted: (start, stop) by class.
        shards: How many there are.
        ask: Gives each shard's answers to questions ``{"class", "low", "bits", "digits"}``: how many of its rows of the class have keys
            below ``low + n * 2**(bits - digits)``, n from 0 to ``2**digits``.
        together: Rows of the key at which the ranks begin all belong to them, though there be more.

    Returns:
        Of each shard ``[{"class", "start", "stop"}]``: ranks among its own rows of the class.
    """
    places = {label: [_Place(label, rank, sizes[label]) for rank in ranks] for label, ranks in wanted.items()}
    while True:
        open_ = [place for pair in places.values() for place in pair if not place.found]
        if not open_:
            break
        digits = max(FEWEST_DIGITS, min(MOST_DIGITS, (ANSWER_COUNTS // len(open_)).bit_length() - 1))
        answers = ask([place.question(digits) for place in open_])
        for n, place in enumerate(open_):
            place.narrow(digits, [shard[n] for shard in answers], together)
    return [
        [{"class": label, "start": start.below[k], "stop": stop.below[k]} for label, (start, stop) in places.items()] for k in range(shards)
    ]


def held_out(validation: dict, sizes: Dict[Any, int], classes: Sequence[Any]) -> Dict[Any, Tuple[int, int]]:
    """The ranks that a form of the option ``validation`` holds out, as ``docs/replay.md`` states them.

    Args:
        validation: By time, or stratified.
        sizes: How many rows of each class there are.
        classes: In the order of the label.
    """
    wanted = {}
    for number, label in enumerate(classes):
        rows = sizes[label]
        if "folds" in validation:
            each, more = divmod(rows, validation["folds"])
            block = (validation["fold"] - number) % validation["folds"]
            start = block * each + min(block, more)
            wanted[label] = (start, start + each + (block < more))
        else:
            count = int(validation["fraction"] * rows + 0.5)
            wanted[label] = (rows - count, rows) if "time" in validation else (0, min(count, rows - 1))
    return wanted
