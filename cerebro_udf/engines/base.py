"""What an engine answers: where a table's shards are, and how to reach a segment as the caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, List, Optional, Tuple

from cerebro_udf.coordinator.links import Address
from cerebro_udf.coordinator.source import Source
from cerebro_udf.errors import DataChanged, NotSupported

SELF = "cerebro_self"  # the foreign server that leads to the coordinator's own server


@dataclass(frozen=True)
class Read:
    """One scan that yields a part of a shard. Its SQL is made here from names and numbers, never read from anywhere."""

    leaf: str  # the table or partition that the rows lie in, qualified and quoted, as the coordinator knows it
    relation: str  # what is read, qualified and quoted, as the segment knows it
    columns: Dict[str, str]  # source column -> column there
    through: Optional[int] = None  # oid of a leaf that is read through a relation above it
    low: int = 0  # first block
    high: Optional[int] = None  # block after the last one; None: to the end
    casts: Dict[str, str] = field(default_factory=dict)  # source column -> type that it is read as, as SQL
    expressions: Tuple[str, ...] = ()  # over the columns

    @property
    def where(self) -> Optional[str]:
        """The condition that keeps a scan to this part, as SQL."""
        conditions = []
        if self.through is not None:
            conditions.append("tableoid = %d::oid" % self.through)
        if self.low:
            conditions.append("ctid >= '(%d,0)'::tid" % self.low)
        if self.high is not None:
            conditions.append("ctid < '(%d,0)'::tid" % self.high)
        return " and ".join(conditions) or None

    def spec(self) -> dict:
        """What a segment's ``load`` wants to know of it."""
        return {
            "relation": self.relation, "where": self.where, "columns": self.columns, "casts": self.casts,
            "expressions": list(self.expressions),
        }  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """The part of a source that one segment holds."""

    number: int  # 0 … number of shards - 1; shard k is visited on link k
    segment: str  # shown to users
    server: str  # the foreign server that leads there
    reads: List[Read]
    rows_estimate: int
    size_bytes: Optional[int]  # None where only the segment knows, or where rows are dealt: they lie nowhere
    policy_expected: bool = False  # the segment must have row security on what is read
    dealt: bool = False  # the rows have no place to tell them apart by: they are read once, row i is that of shard i modulo all shards
    held: Optional["Shard"] = None  # of a table of rows for validation, what lies beside this shard

    def plan(self) -> dict:
        """Where the cuts are, JSON-able, stored with the run. No SQL: whoever resumes has it made under their own rights."""
        cuts = [{"leaf": read.leaf, "low": read.low, "high": read.high} for read in self.reads]
        plan = {"segment": self.segment, "server": self.server, "cuts": cuts}
        return plan if self.held is None else {**plan, "held": self.held.plan()["cuts"]}


def by_one(shards: List[Shard]) -> List[Shard]:
    """Shards that are each read by itself: one of all those whose rows would be dealt."""
    return shards[:1] if shards[0].dealt else shards


@dataclass(frozen=True)
class Part:
    """A part of a table that is sharded like a source, on one server."""

    server: str
    leaf: Optional[str]  # the partition of the source whose rows it gets; None: all that the server holds
    bound: Optional[str]  # its place in the parent, as SQL; None: the part is the whole table


@dataclass(frozen=True)
class Layout:
    """How a table is sharded like a source."""

    partitioning: Optional[str]  # of the parent, as SQL; None: the table is local and has one part
    column: Optional[str]  # a further text column that holds the segment's name, where the parent is partitioned by it
    parts: List[Part]

    def part_of(self, shard: Shard, read: Read) -> int:
        """Number of the part that takes the rows of one scan."""
        return next(n for n, part in enumerate(self.parts) if part.server == shard.server and part.leaf in (None, read.leaf))


@dataclass(frozen=True)
class Piece:
    """A part of a table that exists."""

    server: str
    bound: Optional[str]
    relation: str  # qualified and quoted, as the server knows it


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

    def beside(self, shards: List[Shard], held: Optional[Source]) -> List[Shard]:
        """Shards, each with what lies beside it of a table of rows for validation, if there is one.

        Raises:
            NotSupported: some of that table lies where none of these shards does.
        """
        if held is None:
            return shards
        places: Dict[str, List[Shard]] = {}
        for part in by_one(self.shards(held, sum(shard.server == SELF for shard in shards) or None)):
            places.setdefault(part.server, []).append(part)
        strangers = sorted(places.keys() - {shard.server for shard in shards})
        if strangers:
            raise NotSupported(
                "rows for validation on another segment than those of the source",
                "Table %s lies on %s too, where no row of the source does." % (held.name, ", ".join('"%s"' % name for name in strangers)),
                "Rows never leave their segment: put its partitions on the servers of the source, or validate by a part of the source.",
            )
        return [replace(shard, held=places[shard.server].pop(0) if places.get(shard.server) else None) for shard in shards]

    def shards_again(self, source: Source, plan: List[dict], held: Optional[Source] = None) -> List[Shard]:
        """The shards of a run that began earlier, cut as they were then, under the rights of now.

        Args:
            source: The table, checked again.
            plan: ``Shard.plan()`` of each shard.
            held: The table of rows for validation, if the run has one.

        Raises:
            DataChanged: a partition has come or gone, or lies elsewhere.
        """
        fresh = self.shards(source, None)
        reads = {(shard.server, read.leaf): (shard, read) for shard in fresh for read in shard.reads}
        wanted = {(part["server"], cut["leaf"]) for part in plan for cut in part["cuts"]}
        if wanted != set(reads):
            raise DataChanged(
                "the partitions of table %s have changed since the run began" % source.name,
                "Different are %s." % ", ".join(sorted("%s on %s" % (leaf, server) for server, leaf in wanted ^ set(reads))),
                'Begin anew with options {"if_exists": "replace"}, or put the partitions back.',
            )
        shards = []
        for number, part in enumerate(plan):
            cuts = []
            for cut in part["cuts"]:
                shard, read = reads[part["server"], cut["leaf"]]
                high = None if cut["high"] is None else int(cut["high"])
                cuts.append(replace(read, low=int(cut["low"]), high=high))
            shards.append(Shard(number, str(part["segment"]), shard.server, cuts, 0, None, shard.policy_expected, shard.dealt))
        if held is None:
            return shards
        beside = iter(self.shards_again(held, [{**part, "cuts": part["held"]} for part in plan if "held" in part]))
        return [replace(shard, held=next(beside) if "held" in part else None) for shard, part in zip(shards, plan)]

    @abstractmethod
    def alike(self, source: Source, shards: List[Shard], kept: List[str], partitioning: Optional[str] = None) -> Layout:
        """How a table is sharded like the source, so that each row stays where it came from.

        Args:
            source: The table.
            shards: Its shards.
            kept: Columns of the source that the table will have.
            partitioning: Of the table that exists and is to take the rows, empty if it is not partitioned; None if
                there is none yet.

        Raises:
            NotSupported: the existing parent is sharded otherwise.
        """

    @abstractmethod
    def pieces(self, oid: int) -> List[Piece]:
        """The parts of a table that exists."""

    @abstractmethod
    def attach(self, name: str, partition: str, part: Part, relation: str) -> List[str]:
        """Statements that make what lies on a segment a part of a partitioned table.

        Args:
            name: The parent, qualified and quoted.
            partition: What the part is to be called here, likewise.
            part: Where it lies, and its bound.
            relation: What it is called there, likewise.
        """

    @abstractmethod
    def referred(self, tables: List[Tuple[str, str]]) -> List[bool]:
        """Of tables on segments, by schema and name: whether one of this database's tables leads to them."""

    @abstractmethod
    def address(self, server: str) -> Address:
        """How to reach a segment as the caller.

        Raises:
            NotAuthenticated: the caller has no user mapping of its own with a password there.
            NoPrivilege: neither a superuser nor the caller says where it leads.
        """

    @abstractmethod
    def servers(self) -> List[str]:
        """Every server that leads to a segment, as far as the caller may use it."""

    @abstractmethod
    def home_command(self) -> str:
        """The command that has ``cerebro_self`` lead to this very database; empty when it does."""
