"""What an engine answers: where a table's shards are, and how to reach a segment as the caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Dict, FrozenSet, List, Optional

from cerebro_udf.coordinator.links import Address
from cerebro_udf.coordinator.source import Source


@dataclass(frozen=True)
class Read:
    """One scan that yields a part of a shard."""

    relation: str  # qualified and quoted, as the segment knows it
    columns: Dict[str, str]  # source column -> column there
    where: Optional[str] = None  # SQL made by the engine, never by a user


@dataclass(frozen=True)
class Shard:
    """The part of a source that one segment holds."""

    number: int  # 0 … number of shards - 1; shard k is visited on link k
    segment: str  # shown to users
    server: str  # the foreign server that leads there
    reads: List[Read]
    rows_estimate: int
    size_bytes: Optional[int]  # None where only the segment knows
    policy_expected: bool = False  # the segment must have row security on what is read

    def to_json(self) -> dict:
        """A JSON-able form, stored with the run so that a resumed run reads the very same shards."""
        return asdict(self)

    @staticmethod
    def from_json(value: dict) -> "Shard":
        return Shard(**{**value, "reads": [Read(**read) for read in value["reads"]]})


class Engine(ABC):
    """Knows one database's way of sharding; the only place that reads its catalogs.

    Guarantees, whatever the engine: every row of the source that the caller could SELECT is in exactly one shard;
    shards are numbered from 0 in an order that depends on the catalog alone; nothing is opened, started or written.

    Args:
        plpy: The module that PL/Python passes to a function body.
    """

    features: FrozenSet[str]  # names from FEATURES

    FEATURES = frozenset({"local_workers", "foreign_partitions", "row_security"})

    def __init__(self, plpy):
        self._plpy = plpy

    @abstractmethod
    def shards(self, source: Source, workers: Optional[int]) -> List[Shard]:
        """Say who holds what.

        Args:
            source: The table that the caller named, already checked against the caller's rights.
            workers: Local workers to split local rows among; None for one per core.

        Raises:
            NotSupported: the table cannot be read shard by shard on this engine.
        """

    @abstractmethod
    def address(self, server: str) -> Address:
        """How to reach a segment as the caller.

        Raises:
            NotAuthenticated: the caller has no user mapping of its own with a password there.
        """

    @abstractmethod
    def servers(self) -> List[str]:
        """Every server that leads to a segment, as far as the caller may use it."""
