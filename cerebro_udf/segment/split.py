"""Which rows of a shard are held out for validation. ``docs/replay.md`` states the same rules."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from cerebro_udf import columns
from cerebro_udf.segment import seeds
from cerebro_udf.segment.column import Column, text_word

CRITERION = ""  # what a fetch calls the column by which rows are held out: it may be read as a feature too, and in another form

Values = Dict[str, np.ndarray]


class Criterion(Column):
    """The column by which rows are held out; nothing is kept of it but the digest."""

    @property
    def form(self) -> str:
        return "number" if columns.of(self.type).quantity else "text"

    def __init__(self, name: str, type_: str):
        super().__init__(name)
        self.key, self.type = CRITERION, type_

    def parse(self, parsed):
        if self.form == "number":
            return parsed.values
        return np.array([0 if text is None else text_word(text) for text in parsed.values], np.uint64)

    def words(self, values):
        return values.reshape(-1, 1) if values.dtype == np.uint64 else super().words(values)


class Rule:
    """The option ``validation``.

    Args:
        plpy: PL/Python's module.
        validation: The option as it is stored.
        seed: Of the run.
        criterion: The column that it names, or None.

    Attributes:
        ranked: Which rows are held out depends on the rows of all shards.
    """

    def __init__(self, plpy, validation: Union[float, dict], seed: int, criterion: Optional[Criterion]):
        self._option: Dict[str, Any] = validation if isinstance(validation, dict) else {"fraction": validation}
        self.ranked = "stratify" in self._option or {"time", "fraction"} <= set(self._option)
        self._criterion = criterion
        self._number = seeds.Number(seed, "validation")
        self._from = self._option.get("from")
        if isinstance(self._from, str):
            seconds = columns.number_sql("$1::pg_catalog.text", criterion.type)
            self._from = plpy.execute(plpy.prepare("select %s as seconds" % seconds, ["text"]), [self._from])[0]["seconds"]

    def held(self, values: Values, deciding: List[Column]) -> Optional[np.ndarray]:
        """Say which rows are held out, bool (rows,); None for none.

        Args:
            values: Of a fetch, by the keys of columns.
            deciding: The columns by whose values rows are held out, where no criterion is named.
        """
        option = self._option
        if "table" in option:
            return None
        if "column" in option:
            return values[CRITERION] != 0
        if "from" in option:
            return values[CRITERION] >= self._from
        if "folds" in option:
            return np.floor(seeds.unit(self._sum(values, deciding)) * option["folds"]) == option["fold"]
        return seeds.unit(self._sum(values, deciding)) < option["fraction"] if option["fraction"] > 0 else None

    def rank_keys(self, values: Values, deciding: List[Column]) -> np.ndarray:
        """Return the numbers in whose order rows are ranked, int64 (rows,)."""
        if "time" in self._option:
            bits = (values[CRITERION] + 0.0).view(np.int64)  # minus zero is zero
            return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
        return (seeds.mixed(self._sum(values, deciding)) ^ np.uint64(2**63)).view(np.int64)

    def _sum(self, values: Values, deciding: List[Column]) -> np.ndarray:
        if "group" in self._option:
            words = [self._criterion.words(values[CRITERION])]
        else:
            words = [column.words(values[column.key]) for column in deciding]
        return self._number.of(words)


class Ranking:
    """The rows of a shard, until it is known which of their ranks are held out; ranks are by class, or among all rows.

    Args:
        label: The column that has the classes; None: the rows are of one class, which is None.
    """

    def __init__(self, label: Optional[Column]):
        self._label = label
        self._blocks: List[Values] = []
        self._keys: List[np.ndarray] = []
        self._classes: List[np.ndarray] = []
        self._order = np.zeros(0, np.int64)
        self._sorted: Dict[Any, Tuple[int, np.ndarray]] = {}
        self.rows = self.bytes = 0

    def append(self, values: Values, keys: np.ndarray) -> None:
        """Take a fetch."""
        classes = np.zeros(len(keys), np.int8) if self._label is None else values[self._label.key]
        self._blocks.append(values)
        self._keys.append(keys)
        self._classes.append(classes)
        self.rows += len(keys)
        self.bytes += sum(array.nbytes for array in (*values.values(), keys, classes))

    def close(self) -> None:
        """Sort the rows: all have come."""
        if not self.rows:
            return
        keys, distinct, numbers = np.concatenate(self._keys), *np.unique(np.concatenate(self._classes), return_inverse=True)
        self._keys, self._classes = [], []
        self._order = np.lexsort((keys, numbers))
        ends = np.cumsum(np.bincount(numbers))
        parts = np.split(keys[self._order], ends[:-1])
        labels = [None] if self._label is None else self._label.spelled(distinct)
        self._sorted = {label: (end - len(part), part) for label, end, part in zip(labels, ends.tolist(), parts)}

    def classes(self) -> List[list]:
        """``[[class, rows], …]``."""
        return [[label, len(keys)] for label, (_, keys) in self._sorted.items()]

    def below(self, question: dict) -> List[int]:
        """Answer a question of ``coordinator.ranks``."""
        width = 2 ** (question["bits"] - question["digits"])
        bounds = [question["low"] + n * width for n in range(2 ** question["digits"] + 1)]
        _, keys = self._sorted.get(question["class"], (0, np.zeros(0, np.int64)))
        inside = [bound for bound in bounds if bound < 2**63]
        return [*np.searchsorted(keys, np.array(inside, np.int64)).tolist(), *[len(keys)] * (len(bounds) - len(inside))]

    def divided(self, ranges: List[dict]) -> Iterator[Tuple[Values, np.ndarray]]:
        """Give the fetches back, each with which of its rows are held out, bool (rows,).

        Args:
            ranges: ``[{"class", "start", "stop"}]``, ranks that are held out.
        """
        held = np.zeros(self.rows, bool)
        for part in ranges:
            first, keys = self._sorted.get(part["class"], (0, ()))
            held[self._order[first + min(part["start"], len(keys)) : first + min(part["stop"], len(keys))]] = True
        self._blocks.reverse()
        start = 0
        while self._blocks:
            values = self._blocks.pop()
            rows = len(next(iter(values.values())))
            yield values, held[start : start + rows]
            start += rows
