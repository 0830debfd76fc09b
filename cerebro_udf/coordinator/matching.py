"""A maximum matching that keeps to an order. Pure.

Source: augmenting paths, Kuhn 1955.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np


def match(possible: np.ndarray) -> List[Tuple[int, int]]:
    """Match rows with columns, as many as can be.

    A row takes the first column that is free; where none is, others are moved aside (an augmenting path), but never
    taken out: no row stands back for a later one.

    Args:
        possible: bool (rows, columns).

    Returns:
        (row, column) pairs.
    """
    chosen: Dict[int, int] = {}
    holder: Dict[int, int] = {}
    untaken = np.ones(possible.shape[1], bool)
    for row in range(len(possible)):
        if not untaken.any():
            break
        reached, asked = {row: row}, [row]  # who is moved aside by whom
        unseen = np.ones(possible.shape[1], bool)
        for one in asked:
            wanted = possible[one] & untaken
            column = int(wanted.argmax())
            if wanted[column]:
                untaken[column] = False
                while True:
                    before = chosen.get(one)
                    chosen[one], holder[column] = column, one
                    if one == row:
                        break
                    one, column = reached[one], before
                break
            for column in (possible[one] & unseen).nonzero()[0].tolist():
                unseen[column] = False
                if holder[column] not in reached:
                    reached[holder[column]] = one
                    asked.append(holder[column])
    return sorted(chosen.items())
