"""What the coordinator asks of a segment, one function per SQL call.

All state lives in the session's ``gd["cerebro"]``: the loaded run, its shard, and the programs, which stay
warm for the next run. TensorFlow is imported by ``start`` and not before.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import time
from contextlib import suppress
from importlib import metadata
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

import cerebro_udf
from cerebro_udf import encoders, faults, tensors
from cerebro_udf.columns import read_of
from cerebro_udf.errors import InvalidArgument, NotReady, OutOfMemory, TrialFailed, counted
from cerebro_udf.interrupts import Pulse
from cerebro_udf.segment import importing, memory, pack, seeds, shard, sharing, specs, state, visits
from cerebro_udf.segment.overflow import is_streamed
from cerebro_udf.wire import MESSAGE_BYTES, finite, parts

EXPECTED_LEAST_BYTES = 64 * 2**20  # promised to any shard that is being loaded
EXPECTED_PER_BYTE = 4  # of its relations on disk, where rows may be compressed and pass through several forms
KEPT_PERMUTATIONS = 3  # of a run's trials few are in different epochs; 4 bytes per row each

_RELATION = re.compile(r'(?:only )?((?:\w+|"(?:[^"]|"")+")\.(?:\w+|"(?:[^"]|"")+"))\Z')

Report = Dict[str, Any]


class _Session:
    """What a worker session holds."""

    def __init__(self):
        self.threads: Optional[int] = None  # of TensorFlow, None before it is imported
        self.run: Optional[str] = None
        self.shard: Optional[shard.Shard] = None
        self.reader: Optional[shard.Reader] = None  # of a shard that waits for what is held out
        self.arrays: Optional[Dict[str, dict]] = None  # part -> encoded arrays
        self.programs: Dict[str, Any] = {}
        self.choices: Any = None  # of ``segment.choice``, once a group has come
        self.incoming: List[bytes] = []
        self.outgoing: List[bytes] = []
        self.permutations: Dict[Tuple[int, ...], np.ndarray] = {}
        self.judged: Any = None  # of ``segment.judge``
        self.predictors: Dict[str, Any] = {}  # by what they were made of; the last few
        self.entry = sharing.Entry()
        self.group = ""  # of the run's workers, for the entry
        self.shard_bytes = 0
        self.visits = 0  # made by this session
        self.bare_bytes: Optional[int] = None  # resident before the first program

    def grown_bytes(self) -> int:
        """What this process has taken beside TensorFlow and the shard: programs, above all, which stay for ever."""
        return 0 if self.bare_bytes is None else max(0, memory.resident() - self.bare_bytes - self.shard_bytes)

    def permutation(self, *key: int) -> np.ndarray:
        """Return ``seeds.permutation`` of this key; every trial asks for the same ones, so the last few are kept."""
        if key not in self.permutations:
            while len(self.permutations) >= KEPT_PERMUTATIONS:
                del self.permutations[next(iter(self.permutations))]
            self.permutations[key] = seeds.permutation(*key)
        return self.permutations[key]


def _session(gd: dict) -> _Session:
    return gd.setdefault("cerebro", _Session())


def hello(plpy, gd: dict) -> Report:
    """Tell versions, cores and memory of this node, without importing TensorFlow."""
    versions = {}
    for package in ("tensorflow", "keras", "numpy", "safetensors", "psycopg"):
        versions[package] = None
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    total, available = memory.total_and_available()
    return {
        "cerebro": cerebro_udf.__version__,
        "python": ".".join(map(str, os.sys.version_info[:3])),
        **versions,
        "cores": _cores(),
        "memory_total": total,
        "memory_available": available,
        "boot_id": memory.read("/proc/sys/kernel/random/boot_id") or socket.gethostname(),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "threads": _session(gd).threads,
        "resident_bytes": memory.resident(),
        "programs": len(_session(gd).programs),
        "visits": _session(gd).visits,
        "grown_bytes": _session(gd).grown_bytes(),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


_CLAIM = specs.fields(group=specs.text)
_LOAD = specs.fields(
    run=specs.text, group=specs.maybe(specs.text), features=specs.many(specs.feature, 1), labels=specs.labels, weight=specs.weight,
    sample=specs.maybe(specs.number), seed=specs.whole(), validation=specs.validation, held=specs.maybe(specs.ranks),
    memory_bytes=specs.maybe(specs.whole()), overflow=specs.maybe(specs.flag), dealt=specs.maybe(specs.flag),
)  # fmt: skip
_FEED = specs.fields(run=specs.text)
_RANK = specs.fields(run=specs.text, questions=specs.questions)
_SPLIT = specs.fields(run=specs.text, held=specs.ranks)
_ENCODE = specs.fields(run=specs.text, encoders=specs.encoded)
_INIT = specs.fields(program=specs.program, seed=specs.whole(), trial=specs.whole(0, 2**31 - 1), weights=specs.maybe(specs.flag))
_VISIT = specs.fields(
    run=specs.text, epoch=specs.whole(), phase=specs.one_of("train", "validate"), shard=specs.whole(), seed=specs.whole(),
    program=specs.program, batch_size=specs.whole(1, 2**31 - 1), first=specs.flag, last=specs.flag, try_fused=specs.flag,
    members=specs.many(
        specs.fields(learning_rate=specs.maybe(specs.number), dropout=specs.many(specs.number), bytes=specs.whole()), 1
    ),
    rows=specs.maybe(specs.whole()), faster=specs.maybe(specs.flag),
)  # fmt: skip
_SUMMARIZE = specs.fields(program=specs.program)
_JUDGE = specs.fields(run=specs.text, step=specs.text, program=specs.program, batch_size=specs.whole(1, 2**31 - 1))


def claim(plpy, gd: dict, spec: dict) -> Report:
    """Show other runs that this session works, until ``release``, and tell what they leave of the host.

    Args:
        spec: ``group``, which the workers of one run have in common.

    Returns:
        ``others``, workers of other runs here, and ``memory_available``, without what those were promised.
    """
    _CLAIM("", spec)
    session = _session(gd)
    session.group = spec["group"]
    others, promised = session.entry.write(session.group, 0)
    return {"others": others, "memory_available": max(0, memory.available() - promised)}


def start(plpy, gd: dict, spec: dict) -> Report:
    """Import TensorFlow with ``spec["threads"]`` threads; a second call with the same number does nothing.

    Raises:
        InvalidArgument: not so many threads as there are cores; TensorFlow ends the process over some numbers.
        NotReady: this session already runs with another number of threads.
    """
    specs.fields(threads=specs.whole(1, _cores()))("", spec)
    session, threads = _session(gd), spec["threads"]
    if session.threads not in (None, threads):
        raise NotReady(
            "this session's TensorFlow runs with %d threads, not %d" % (session.threads, threads),
            hint="Open a new session; the number of threads is fixed once TensorFlow runs.",
        )
    if session.threads is None:
        if not importing.start(threads):
            raise NotReady(
                "TensorFlow already runs in this session, for predictions",
                hint="Open a new session; the number of threads is fixed once TensorFlow runs.",
            )
        session.threads = threads
    return {
        "threads": threads,
        "tensorflow": metadata.version("tensorflow"),
        "keras": metadata.version("keras"),
    }


def load(plpy, gd: dict, spec: dict) -> Report:
    """Read this segment's shard for a run; what another run had loaded is dropped.

    Args:
        spec: ``run``, ``group`` (see ``claim``), and what ``shard.read`` wants; or, if it has ``pack``, ``pack.read``.

    Returns:
        The shard's statistics, for ``encoders.merge``; or, where it takes the ranks of its rows to know which are held out, and they are
        not given in ``held``, the ``classes`` ``[[class, rows], …]`` within which they are ranked; or, where rows are ``dealt``, the
        ``query`` whose rows are for ``feed``.
    """
    packed = isinstance(spec, dict) and "pack" in spec
    if packed:
        pack.load("", spec)
    else:
        _LOAD("", spec)
        specs.criterion("criterion", spec.get("criterion"), spec["validation"])
        specs.stratified("labels", spec["labels"], spec["validation"])
        columns = [*spec["features"], *spec["labels"], *(spec[key] for key in ("weight", "criterion") if spec.get(key))]
        reads = specs.reads([column["name"] for column in columns], [name for f in spec["features"] for name in read_of(f)[1:]])
        reads("reads", spec.get("reads"))
        specs.maybe(reads)("held_reads", spec.get("held_reads"))
        if spec.get("dealt") and len(spec["reads"]) != 1:
            raise specs.wrong("reads", spec["reads"], "one scan, where rows are dealt")
    session = _session(gd)
    release(plpy, gd)
    faults.reset(spec["run"])
    session.group = spec.get("group") or ""
    limit, available = spec.get("memory_bytes"), memory.available()
    wanted = available if limit is None else min(limit, available)
    # First, so that two that load at once both see it: what the shard is likely to take, not all that it might.
    _, promised = session.entry.write(session.group, min(wanted, _expected_bytes(plpy, spec["reads"] + (spec.get("held_reads") or []))))
    spec = {**spec, "memory_bytes": max(0, min(wanted, available - promised)), "promised_bytes": promised}
    try:
        read = (pack if packed else shard).read(plpy, spec, Pulse(plpy).check)
        faults.reach(plpy, "loading", spec["run"])
    except BaseException:
        session.entry.clear()  # nothing is promised any more
        raise
    session.run = spec["run"]
    if spec.get("dealt"):
        session.reader = read
        return {"query": read.selection.query(plpy.quote_ident, spec["reads"][0])}
    return _read(session, read)


def _read(session: _Session, read: Any) -> Report:
    """Keep what was read, and report it: a shard, or rows whose ranks are to be found."""
    if isinstance(read, shard.Reader):
        session.reader = read
        return {"classes": read.ranking.classes()}
    session.shard = read
    return read.stats()


def feed(plpy, gd: dict, spec: dict, rows: Optional[list]) -> Report:
    """Take rows that were dealt to this shard of the ``run``; None ends them, and gives what ``load`` gives."""
    _FEED("", spec)
    session = _session(gd)
    reader = _waiting(session, spec["run"], True)
    try:
        if rows is not None:
            reader.take(plpy, reader.selection.received(rows), False)
            return {}
        session.reader = None
        return _read(session, reader.close(plpy, Pulse(plpy).check))
    except BaseException:
        session.reader = None
        session.entry.clear()
        raise


def rank(plpy, gd: dict, spec: dict) -> Report:
    """Answer ``questions`` of ``coordinator.ranks`` about the loaded shard: ``below``, of each the counts."""
    _RANK("", spec)
    reader = _ranked(_session(gd), spec["run"])
    return {"below": [reader.ranking.below(question) for question in spec["questions"]]}


def split(plpy, gd: dict, spec: dict) -> Report:
    """Divide the loaded shard by the ranks that are ``held`` out; gives its statistics, as ``load`` does."""
    _SPLIT("", spec)
    session = _session(gd)
    reader, session.reader = _ranked(session, spec["run"]), None
    session.shard = reader.shard(spec["held"], Pulse(plpy).check)
    return session.shard.stats()


def _ranked(session: _Session, run: str) -> shard.Reader:
    return _waiting(session, run, False)


def _waiting(session: _Session, run: str, for_rows: bool) -> shard.Reader:
    if session.reader is None or session.run != run or session.reader.open != for_rows:
        raise _not_loaded(run)
    return session.reader


def _expected_bytes(plpy, reads: List[dict]) -> int:
    """Estimate what a shard takes in memory, raw and encoded, from what its relations take on disk."""
    plan = plpy.prepare(
        "select coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::int8 as bytes"
        ", coalesce(bool_and(c.relkind in ('r', 'm')), false) as stored"
        " from pg_catalog.unnest($1) r, pg_catalog.pg_class c where c.oid = r::pg_catalog.regclass",
        ["text[]"],
    )
    named = {_RELATION.match(read["relation"]) for read in reads}
    if None in named:  # what a hand wrote
        return sys.maxsize
    found = plpy.execute(plan, [sorted({name.group(1) for name in named})])[0]
    return EXPECTED_LEAST_BYTES + EXPECTED_PER_BYTE * found["bytes"] if found["stored"] else sys.maxsize


def encode(plpy, gd: dict, spec: dict) -> Report:
    """Turn the loaded shard into arrays with the merged ``encoders``; the raw columns are dropped."""
    _ENCODE("", spec)
    session = _session(gd)
    if session.shard is None or session.run != spec["run"]:
        raise _not_loaded(spec["run"])
    read, session.shard = session.shard, None
    pulse = Pulse(plpy).check
    if read.overflow is None:
        _refuse_wide(encoders.model_part(spec["encoders"]), read.rows)
    try:
        parts = read.encode(tensors.Encoding(spec["encoders"]), pulse)
    except (LookupError, ValueError, TypeError) as error:  # of numpy, where they are those of other columns
        raise InvalidArgument(
            "the encoders do not fit the shard that is loaded", "%s: %s." % (type(error).__name__, error), "Give those that were merged."
        ) from None
    held = sum(array.nbytes for arrays in parts.values() for array in arrays.values())
    if session.threads is not None:
        # TensorFlow copies what it is given: once here instead of at every visit, array by array.
        from cerebro_udf.segment import network

        for arrays in parts.values():
            for name in [] if is_streamed(arrays) else list(arrays):
                arrays[name] = network.tensor(arrays.pop(name))
                pulse()
    session.arrays, session.shard_bytes = parts, held
    session.entry.write(session.group, 0)  # taken, which everybody sees
    files = read.overflow.bytes if read.overflow else 0
    return {"bytes": held, "file_bytes": files, "train_rows": read.train_rows, "validation_rows": read.validation_rows}


def _refuse_wide(part: dict, rows: int) -> None:
    dense = [shape for name, (shape, _) in encoders.fed(part).items() if name not in encoders.sparse(part)]
    width = sum(map(math.prod, dense)) + math.prod(part["outputs"][0].get("shape", ()))
    if 4 * rows * width > memory.available():
        raise OutOfMemory(
            "the encoded shard does not fit the memory that is left on its segment",
            "%s of %s take %.1f GB, %.1f GB are available."
            % (counted(rows, "row"), counted(width, "value"), 4e-9 * rows * width, memory.available() / 1e9),
            "Use fewer columns, or spread the table over more segments.",
        )


def release(plpy, gd: dict) -> None:
    """Drop the shard, raw or encoded, and what is buffered of states; programs stay warm."""
    session = _session(gd)
    session.run, session.shard, session.reader, session.arrays = None, None, None, None
    session.incoming, session.outgoing, session.permutations, session.judged = [], [], {}, None
    session.shard_bytes = 0
    session.entry.clear()


def _not_loaded(run: str) -> NotReady:
    return NotReady(
        'the shard of run "%s" is not loaded in this session' % run, hint="Load it, then encode it."
    )


def _program(session: _Session, spec: dict):
    """Return the program of a spec, warm or newly made."""
    if session.threads is None:
        raise NotReady("TensorFlow is not started in this session", hint="Start it first.")
    from cerebro_udf.segment import program

    if session.bare_bytes is None:
        session.bare_bytes = memory.resident() - session.shard_bytes
    return program.cached(session.programs, spec)


def init(plpy, gd: dict, spec: dict) -> Tuple[Report, Optional[bytes]]:
    """Make a trial's first state from ``program``, the run's ``seed``, ``trial`` and what ``put`` received, if ``weights``."""
    _INIT("", spec)
    session, seed, trial = _session(gd), spec["seed"], spec["trial"]
    weights, session.incoming = b"".join(session.incoming) if spec.get("weights") else None, []
    try:
        blob = _program(session, spec["program"]).initial_state(
            seeds.trial_seed(seed, trial), spec["program"], weights, generators=seed
        )
    except TrialFailed as error:
        return {"status": "failed", "error": str(error)}, None
    return _reply(session, {"status": "ok", "error": None}, blob)


def visit(plpy, gd: dict, spec: dict, blob: Optional[bytes]) -> Tuple[Report, Optional[bytes]]:
    """Train or validate one trial, or several that have one program, on this segment's shard.

    Args:
        spec: ``run``, ``epoch``, ``phase`` (``train`` or ``validate``), ``shard``, ``seed``, ``program``,
            ``batch_size``, ``first`` (metrics begin anew), ``last`` (report the metrics), ``members``:
            ``[{"trial", "learning_rate" (None: as in the state), "dropout" (rates), "bytes"}]``, ``try_fused`` (several are
            trained as one where that is faster, which is measured once, or known if ``faster``), and ``rows`` if only so many
            are wanted.
        blob: The members' states one after another; None: the parts that ``put`` has received.

    Returns:
        (report, blob): after training the new states, after validation the metric accumulators, one after another;
        None where they stay here in ``parts``. The report has ``rows``, ``batches``, ``train_seconds``,
        ``trace_seconds``, ``set_seconds``, ``get_seconds``, ``seconds``, ``threads``, ``programs``, ``visits``, ``grown_bytes``,
        ``fused`` (the members were trained as one) and ``members``: ``[{"status" (ok or failed), "error", "metrics",
        "learning_rate", "bytes"}]``; one that failed has 0 bytes. Numbers that are not finite are None.

    Raises:
        NotReady, InvalidArgument, StateMismatch, plpy.SPIError, ClientGone.
    """
    started = time.perf_counter()
    _VISIT("", spec)
    session, batch_size = _session(gd), spec["batch_size"]
    if session.arrays is None or session.run != spec["run"]:
        raise _not_loaded(spec["run"])
    if blob is None:
        blob, session.incoming = b"".join(session.incoming), []
    blobs = _members(spec, blob)
    session.visits += 1
    faults.reach(plpy, "order-received", spec["run"])
    seconds, rows, fused = visits.Seconds(), 0, False
    try:
        program = _program(session, spec["program"])
        as_one = _fused(plpy, session, spec, program, blobs)
        seconds.lap("trace_seconds")
        arrays, order = _arrays(session, spec)
        rows = len(arrays["label"])
        fused, members = visits.Visit(plpy, spec, program, blobs, arrays, order, batch_size, seconds).go(as_one)
    except TrialFailed as error:  # the program itself
        members = [visits.failed(error)] * len(blobs)
    results = [result for _, result in members]
    report = {
        "rows": rows,
        "batches": -(-rows // batch_size) if rows else 0,
        **seconds.spent,
        "fused": fused,
        "threads": session.threads,
        "programs": len(session.programs) + len(session.choices or ()),
        "visits": session.visits,
        "grown_bytes": session.grown_bytes(),
        "members": [{**member, "bytes": len(result)} for member, result in members],
        **{name: count // len(blobs) for name, count in seconds.reads.items()},
    }
    report, blob = _reply(session, report, b"".join(results))
    if spec["phase"] == "train":
        faults.reach(plpy, "trained", spec["run"])
    return {**report, "seconds": time.perf_counter() - started}, blob


def _members(spec: dict, blob: bytes) -> List[memoryview]:
    """Cut the members' states apart."""
    sizes = [member["bytes"] for member in spec["members"]]
    if sum(sizes) != len(blob):
        raise InvalidArgument(
            "the members of a visit do not make up its state",
            "They have %d bytes, the state has %d." % (sum(sizes), len(blob)),
            "Call cerebro.fit, which asks workers for what they can do.",
        )
    ends = np.cumsum(sizes)
    return [memoryview(blob)[end - size : end] for size, end in zip(sizes, ends)]


def _arrays(session: _Session, spec: dict) -> Tuple[Dict[str, Any], Optional[np.ndarray]]:
    """Return the rows of a visit, and the order in which they are trained, None to validate."""
    training = spec["phase"] == "train"
    arrays = session.arrays["train" if training else "validation"]
    if spec.get("rows") is not None:
        arrays = {name: array[: spec["rows"]] for name, array in arrays.items()}
    rows = len(arrays["label"])
    return arrays, session.permutation(spec["seed"], spec["epoch"], spec["shard"], rows) if training else None


def _fused(plpy, session: _Session, spec: dict, program, blobs: List[memoryview]):
    """Return the ``FusedProgram`` that trains these members as one, None if each is trained by itself."""
    if len(blobs) < 2 or not spec["try_fused"]:
        return None
    if session.choices is None:
        from cerebro_udf.segment import choice

        session.choices = choice.Choices()
    return session.choices.choose(
        program, blobs, session.arrays["train"], spec["batch_size"], Pulse(plpy).check, bool(spec.get("faster"))
    )


def _reply(session: _Session, report: Report, blob: bytes) -> Tuple[Report, Optional[bytes]]:
    """Return the blob with the report, or keep it here in parts."""
    if len(blob) <= MESSAGE_BYTES:
        return report, blob
    session.outgoing = parts(blob)
    return {**report, "parts": len(session.outgoing)}, None


def put(plpy, gd: dict, part: int, data: bytes) -> None:
    """Receive one part of a state; part 0 begins anew."""
    specs.whole()("part", part)
    if data is None:
        raise InvalidArgument("a part of a state is null", None, "Give its bytes.")
    session = _session(gd)
    if part == 0:
        session.incoming = []
    if part != len(session.incoming):
        raise NotReady("part %s of a state came in place of part %d" % (part, len(session.incoming)))
    size = sum(map(len, session.incoming)) + len(data)
    if size > memory.available():  # they will be joined
        session.incoming = []
        raise OutOfMemory(
            "a state does not fit the memory that is left on its segment",
            "Its first parts take %.1f GB, %.1f GB are available." % (size / 1e9, memory.available() / 1e9),
            "Use a smaller model.",
        )
    session.incoming.append(data)


def get(plpy, gd: dict, part: int) -> bytes:
    """Send one part of the last states that were too long for one message; the last part ends it."""
    specs.whole()("part", part)
    session = _session(gd)
    if not 0 <= part < len(session.outgoing):
        raise NotReady("there is no part %d of a state" % part)
    data = session.outgoing[part]
    if part == len(session.outgoing) - 1:
        session.outgoing = []
    return data


def summarize(plpy, gd: dict, spec: dict, accumulators: List[bytes]) -> Report:
    """Return ``metrics`` of accumulators that are given in shard order, by Keras' names, ``loss`` first."""
    _SUMMARIZE("", spec)
    specs.blobs("accumulators", accumulators)
    if not accumulators:
        raise InvalidArgument("there is nothing to summarize", None, "Give the accumulators of every shard.")
    try:
        metrics = _program(_session(gd), spec["program"]).results(state.add(accumulators))
    except TrialFailed as error:
        return {"status": "failed", "error": str(error)}
    return {"status": "ok", "error": None, "metrics": finite(metrics)}


def judge(plpy, gd: dict, spec: dict, blobs: List[bytes]) -> Tuple[Report, Optional[bytes]]:
    """Do one step of judging a trained model on this segment's shard, see ``segment.judge.step``."""
    _JUDGE("", spec)
    specs.blobs("blobs", blobs)
    session = _session(gd)
    if session.arrays is None or session.run != spec["run"]:
        raise _not_loaded(spec["run"])
    try:
        program = _program(session, spec["program"])
    except TrialFailed as error:
        return {"status": "failed", "error": str(error)}, None
    from cerebro_udf.segment import judge as judging

    faults.reach(plpy, "judging", spec["run"])
    return judging.step(session, spec, blobs, program, Pulse(plpy).check)


def predict_table(plpy, gd: dict, spec: dict, blob: Optional[bytes]) -> Report:
    """Do one step of predicting a table, see ``segment.predict_table.step``."""
    from cerebro_udf.segment import predict_table as tables

    session = _session(gd)
    if blob is None:
        blob, session.incoming = b"".join(session.incoming), []
    return tables.step(plpy, session, spec, blob, Pulse(plpy).check)


def pack_table(plpy, gd: dict, spec: dict) -> Report:
    """Do one step with packed tables, see ``segment.pack.step``."""
    return pack.step(plpy, _session(gd), spec, Pulse(plpy).check)


def stage(plpy, gd: dict, spec: dict) -> Report:
    """Do one step with tables of hidden names, see ``segment.staging.step``."""
    from cerebro_udf.segment import staging

    return staging.step(plpy, spec)
