"""Encoded shards stored as blocks beside their rows, and read again (``docs/pack.md``).

A block is one safetensors blob (``state``) of consecutive rows of one part, in the order in which they were read; its tensors are
what ``Shard.encode`` gives, sparse rows as the arrays of ``sparse.Rows.parts``. Whatever it holds is checked when it is read: anyone may
write such a table.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from cerebro_udf import encoders, faults, packs, sparse
from cerebro_udf.errors import InvalidArgument, NotReady, OutOfMemory, counted
from cerebro_udf.segment import specs, state
from cerebro_udf.segment.overflow import Overflow, allowed_bytes, plain, room, row_bytes
from cerebro_udf.segment.shard import by_class, without_rows

BLOCK_BYTES = 4 * 2**20

# The tables that hold the rows of these relations, with what PostgreSQL counts of them. No right is needed to see it.
_LOOK = """
with recursive tree(name, oid) as (
    select r.name, c.oid
    from pg_catalog.unnest($1) r(name), pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where r.name = pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname)
    union
    select t.name, i.inhrelid from tree t join pg_catalog.pg_inherits i on i.inhparent = t.oid
)
select t.name, c.relkind, c.oid::int8 as oid, pg_catalog.pg_relation_filenode(c.oid)::int8 as file
     , case when c.relkind in ('r', 'm') then pg_catalog.pg_relation_size(c.oid) else 0 end as bytes
     , pg_catalog.pg_stat_get_tuples_inserted(c.oid) as inserted
     , pg_catalog.pg_stat_get_tuples_updated(c.oid) as updated
     , pg_catalog.pg_stat_get_tuples_deleted(c.oid) as deleted
from tree t join pg_catalog.pg_class c on c.oid = t.oid
where c.relkind <> 'p'
order by t.name, c.oid
"""

# A crash, and whatever else resets counters, changes these; so two equal values say that they have counted on.
_SINCE = """
select case when pg_catalog.current_setting('track_counts') = 'on' then
           pg_catalog.pg_stat_get_bgwriter_stat_reset_time()::text
           || coalesce(' ' || pg_catalog.pg_stat_get_db_stat_reset_time(d.oid)::text, '') end as since
from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()
"""


def step(plpy, session: Any, spec: dict, pulse: Callable[[], None]) -> dict:
    """Do one step.

    Args:
        session: The worker's.
        spec: ``step``, and what it takes: ``look``, ``headers`` and ``write`` below.
        pulse: Called after every block; may raise.
    """
    _STEP("", spec)
    _TAKES[spec["step"]]("", spec)
    if spec["step"] == "look":
        return look(plpy, spec)
    if spec["step"] == "headers":
        return headers(plpy, spec)
    if session.arrays is None or session.run != spec["run"]:
        raise NotReady('the shard of "%s" is not loaded in this session' % spec["run"], hint="Load it, then encode it.")
    held = plain
    if session.threads is not None:  # TensorFlow may have the rows
        from cerebro_udf.segment import network

        held = network.rows
    return write(plpy, spec, {part: {name: held(a) for name, a in arrays.items()} for part, arrays in session.arrays.items()}, pulse)


def look(plpy, spec: dict) -> dict:
    """Say what ``relations`` (quoted and qualified) look like: ``packs.looked``; None for one whose rows are not stored here."""
    rows = plpy.execute(plpy.prepare(_LOOK, ["text[]"]), [spec["relations"]])
    found: Dict[str, Optional[List[dict]]] = {}
    for name in spec["relations"]:
        own = [row for row in rows if row["name"] == name]
        leaves = [
            {"oid": row["oid"], "file": row["file"], "bytes": row["bytes"], "counts": [row["inserted"], row["updated"], row["deleted"]]}
            for row in own
        ]
        found[name] = leaves if all(row["relkind"] in ("r", "m") for row in own) else None
    return {"since": plpy.execute(_SINCE)[0]["since"], "relations": found}


def headers(plpy, spec: dict) -> dict:
    """Give the ``headers``, as text, that lie in the relations of ``reads``; in order of the shards."""
    found = [row for read in spec["reads"] for row in plpy.execute(_query(read, "shard, header", "part = 'header'"))]
    return {"headers": [row["header"] for row in sorted(found, key=lambda row: row["shard"])]}


def _query(read: dict, outputs: str, condition: str) -> str:
    where = " and ".join([condition] + ([read["where"]] if read.get("where") else []))
    return "select %s from %s where %s" % (outputs, read["relation"], where)


def write(plpy, spec: dict, parts: Dict[str, Dict[str, Any]], pulse: Callable[[], None]) -> dict:
    """Write an encoded shard into a table that was made for it, all in the transaction of this statement.

    Args:
        spec: ``relation``, ``shard`` (its number), ``segment`` (value of the last column, or None for no such column), ``header``.
        parts: Arrays and ``sparse.Rows`` of both parts, by name.

    Returns:
        ``blocks``, ``bytes``.
    """
    faults.reset(spec["run"])
    segment = [] if spec["segment"] is None else [spec["segment"]]
    places = ", ".join("$%d" % (n + 1) for n in range(6 + len(segment)))
    columns = [*packs.COLUMNS.values(), *(["text"] * len(segment))]
    plan = plpy.prepare("insert into %s values (%s)" % (spec["relation"], places), columns)
    counts, entries, size = {}, {}, 0
    for part in packs.PARTS:
        arrays, number, start = parts[part], 0, 0
        total = len(arrays["label"])
        entries[part] = {name: len(array.entries) for name, array in arrays.items() if isinstance(array, sparse.Rows)}
        while start < total or not number:  # a part without rows has one block, which shows its shapes
            stop = min(total, start + _filling(arrays, start))
            rows = _flat({name: array[start:stop] for name, array in arrays.items()})
            blob = state.pack(rows, {"part": part, "number": str(number)})
            plpy.execute(plan, [spec["shard"], part, number, stop - start, None, blob, *segment])
            number, start, size = number + 1, stop, size + len(blob)
            pulse()
            faults.reach(plpy, "mid-pack", spec["run"])
        counts[part] = number
    header = spec["header"]
    header = {**header, "shard": {**header["shard"], "blocks": counts, "entries": entries}}
    plpy.execute(plan, [spec["shard"], packs.HEADER, 0, header["shard"]["rows"], json.dumps(header), None, *segment])
    return {"blocks": sum(counts.values()), "bytes": size}


def _filling(arrays: Dict[str, Any], start: int) -> int:
    """How many rows from there on fill a block, one at least."""
    thin = [array for array in arrays.values() if isinstance(array, sparse.Rows)]
    each = row_bytes(array for array in arrays.values() if not isinstance(array, sparse.Rows)) + 4 * len(thin)  # a count of each
    most = max(1, BLOCK_BYTES // max(1, each))
    if not thin:
        return most
    entries = sum(array.offsets[start + 1 : start + 1 + most] - array.offsets[start] for array in thin)
    sizes = entries * sparse.ENTRY.itemsize + each * np.arange(1, len(entries) + 1)
    return max(1, int(np.searchsorted(sizes, BLOCK_BYTES, "right")))


def _flat(arrays: Dict[str, Any]) -> Dict[str, np.ndarray]:
    """Arrays as a block has them: of sparse rows, each part by itself."""
    found: Dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        parts = array.parts if isinstance(array, sparse.Rows) else None
        found.update({name: array} if parts is None else {"%s.%s" % (name, key): part for key, part in parts.items()})
    return found


def _whole(arrays: Dict[str, np.ndarray], thin: Dict[str, dict]) -> Dict[str, Any]:
    """Undo :func:`_flat`; ``thin`` are the features of sparse rows by tensor.

    Raises:
        LookupError, ValueError: a part is missing, or they are no sparse rows.
    """
    whole: Dict[str, Any] = dict(arrays)
    for name, feature in thin.items():
        whole[name] = sparse.of_parts(*(whole.pop("%s.%s" % (name, key)) for key in sparse.PARTS), feature["sparse"]["size"])
    return whole


class Packed:
    """A shard read from its blocks; see ``shard.Shard``, in whose place it stands."""

    def __init__(self, header: dict, checksum: str, parts: Dict[str, Dict[str, Any]], seconds: float, overflow: Optional[Overflow]):
        own = header["shard"]
        self.overflow = overflow
        self._header, self._parts, self.checksum, self.seconds = header, parts, checksum, seconds
        self.rows, self.train_rows, self.validation_rows, self.skipped = (
            own[key] for key in ("rows", "train_rows", "validation_rows", "skipped")
        )
        self.bytes = sum(array.nbytes for arrays in parts.values() for array in arrays.values())

    def stats(self) -> dict:
        names = ("rows", "train_rows", "validation_rows", "skipped", "checksum", "bytes", "seconds")
        return {name: getattr(self, name) for name in names}

    def encode(self, encoding: Any, pulse: Callable[[], None] = lambda: None) -> Dict[str, Dict[str, np.ndarray]]:
        """Give what was read; ``encoding`` must be the pack's, but for weights of classes, which are applied here, and for how a
        run varies rows.

        Raises:
            InvalidArgument: it is another one.
        """
        if _of_rows(encoding.encoders) != _of_rows(self._header["encoders"]):
            raise InvalidArgument("the encoders are not those of the packed table", None, "Give those that its header holds.")
        expected = _forms(encoding.encode(*without_rows(encoding.encoders)))
        parts, self._parts = self._parts, {}
        for arrays in parts.values():
            found = _forms(arrays)
            if found != {**expected, **({"weight": (np.dtype(np.float32), ())} if "weight" in found else {})}:
                raise InvalidArgument("the blocks of the packed table are not of its encoders", None, "Pack its source anew.")
        by_class(encoding.encoders, parts["train"])
        return parts


def unweighted(stored: dict) -> dict:
    """Encoders without the weights of classes."""
    return {**stored, "labels": [{key: value for key, value in label.items() if key != "weights"} for label in stored["labels"]]}


def _of_rows(stored: dict) -> list:
    """What of encoders blocks depend on."""
    features = [{key: value for key, value in feature.items() if key != "augment"} for feature in stored["features"]]
    return [features, unweighted(stored)["labels"], stored["inputs"]]


def _forms(arrays: Dict[str, Any]) -> Dict[str, tuple]:
    """What arrays are, but for the number of their rows."""
    return {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}


def read(plpy, spec: dict, pulse: Callable[[], None]) -> Packed:
    """Read a packed shard.

    Args:
        spec: ``pack`` (its number), ``reads``, ``memory_bytes``, ``promised_bytes``, ``overflow``.
        pulse: Called after every block; may raise.

    Raises:
        NotReady: the table lacks the shard, or has it twice; or its header cannot be read.
        StateMismatch: a block is damaged.
        OutOfMemory: the arrays exceed ``memory_bytes``, and ``overflow`` does not let them.
        DiskFull, OutOfTemporaryFiles.
    """
    started = time.perf_counter()
    number, reads = spec["pack"], spec["reads"]
    table = reads[0]["relation"] if reads else ""
    found = [row for one in reads for row in plpy.execute(_query(one, "header", "part = 'header' and shard = %d" % number))]
    if len(found) != 1:
        raise _torn(table, "It has %d headers of shard %d." % (len(found), number))
    header = packs.parse(found[0]["header"], table)
    digest = hashlib.blake2b(found[0]["header"].encode(), digest_size=16)
    files = Overflow(allowed_bytes(plpy))
    parts = {part: _part(plpy, spec, header, part, digest, files, pulse) for part in packs.PARTS}
    return Packed(header, digest.hexdigest(), parts, time.perf_counter() - started, files if files.bytes else None)


def _part(plpy, spec: dict, header: dict, part: str, digest: Any, files: Overflow, pulse: Callable[[], None]) -> Dict[str, Any]:
    """The arrays of one part, whole; blocks are views of the bytes that come, copied once. What does not fit goes to files."""
    total, blocks = header["shard"][part + "_rows"], header["shard"]["blocks"][part]
    thin, entries = encoders.sparse_tensors(header["encoders"]), _entries(header, part)
    table, whole, filled, count = spec["reads"][0]["relation"], {}, 0, 0
    for one in spec["reads"]:
        query = _query(one, "number, data", "part = '%s' and shard = %d" % (part, spec["pack"])) + " order by number"
        cursor = plpy.cursor(query)
        try:
            while True:
                rows = cursor.fetch(1)
                if not rows.nrows():
                    break
                number, blob = rows[0]["number"], rows[0]["data"]
                arrays, metadata = state.unpack(blob or b"")
                digest.update(metadata["checksum"].encode())
                try:
                    arrays = _whole(arrays, thin)
                except (LookupError, ValueError) as error:
                    raise _torn(table, "Block %d of part %s of shard %d: %s." % (count, part, spec["pack"], error)) from None
                if not whole:
                    if "label" not in arrays:
                        raise _torn(table, "Its blocks have no label.")
                    share = _share(spec, arrays, header)
                    whole = {name: room(name, array, total, share, files, entries.get(name, 0)) for name, array in arrays.items()}
                sizes = {len(array) if array.shape else -1 for array in arrays.values()}
                if _forms(arrays) != _forms(whole) or len(sizes) != 1:
                    raise _torn(table, "Block %d of part %s of shard %d has other tensors than those before." % (count, part, spec["pack"]))
                (size,) = sizes
                if number != count or filled + size > total:
                    raise _torn(table, "Block %s of part %s of shard %d is not the one expected." % (number, part, spec["pack"]))
                for name in thin:
                    if whole[name].offsets[filled] + len(arrays[name].entries) > entries.get(name, 0):
                        raise _torn(table, "Part %s of shard %d has more entries than its header says." % (part, spec["pack"]))
                for name, array in arrays.items():
                    whole[name][filled : filled + size] = array
                filled, count = filled + size, count + 1
                pulse()
        finally:
            cursor.close()
    if (filled, count) != (total, blocks):
        found = (part, spec["pack"], filled, count, total, blocks)
        raise _torn(table, "Part %s of shard %d has %d rows in %d blocks, not %d in %d." % found)
    if any(whole[name].offsets[-1] != entries.get(name) for name in thin):
        raise _torn(table, "Part %s of shard %d has fewer entries than its header says." % (part, spec["pack"]))
    return whole


def _entries(header: dict, part: str) -> Dict[str, int]:
    """How many entries a part's sparse rows have, by tensor."""
    return (header["shard"].get("entries") or {}).get(part) or {}


def _share(spec: dict, arrays: Dict[str, np.ndarray], header: dict) -> float:
    """How much of the rows may be kept in memory, 0 to 1."""
    limit = spec.get("memory_bytes")
    rows = header["shard"]["train_rows"] + header["shard"]["validation_rows"]
    entries = sum(count for part in packs.PARTS for count in _entries(header, part).values())
    each = sum(array.dtype.itemsize if isinstance(array, sparse.Rows) else row_bytes([array]) for array in arrays.values())
    needed = rows * each + entries * sparse.ENTRY.itemsize
    if limit is None or needed <= limit:
        return 1.0
    if not spec.get("overflow"):
        raise OutOfMemory(
            "the shard does not fit the memory that this run may use on its segment",
            detail="%s of %d bytes take %.1f MB; %.1f MB are allowed."
            % (counted(rows, "row"), -(-needed // max(1, rows)), needed / 1e6, limit / 1e6),
            hint='Raise the option "memory", or spread the source over more segments and pack it anew.',
        )
    return limit / needed


def _torn(table: str, detail: str) -> NotReady:
    return NotReady("packed table %s is not whole" % table, detail, "Pack its source anew: select cerebro.pack(…);")


_READ = specs.many(specs.fields(relation=specs.text, where=specs.maybe(specs.text)), 1)
_STEP = specs.fields(step=specs.one_of("look", "headers", "write"))
_TAKES = {
    "look": specs.fields(relations=specs.many(specs.text)),
    "headers": specs.fields(reads=_READ),
    "write": specs.fields(
        run=specs.text, relation=specs.text, shard=specs.whole(0, 2**31 - 1), segment=specs.maybe(specs.text), header=packs.common
    ),
}
load = specs.fields(
    run=specs.text, group=specs.maybe(specs.text), pack=specs.whole(0, 2**31 - 1), reads=_READ, memory_bytes=specs.maybe(specs.whole()),
    overflow=specs.maybe(specs.flag),
)
