"""What a shard's budget of memory does not hold: temporary files without a name, beside PostgreSQL's own.

Rows are taken from there by their position, a window of minibatches at a time, the next one while this one is trained. So a run
whose shard exceeds its budget trains the same minibatches as one that has the memory, and its results are the same, bit for bit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, Iterable, Iterator, Optional, Tuple

import numpy as np

from cerebro_udf import sparse
from cerebro_udf.errors import DiskFull, OutOfTemporaryFiles

FOLDER = "base/pgsql_tmp"  # in the data directory, in which a backend works
PREFIX = "pgsql_tmp"  # PostgreSQL removes what is left of such files when it starts
SPARED_BYTES = 2**30  # of the disk, for the server
WINDOW_BYTES = 16 * 2**20

_MEMORY = 'Raise the option "memory", or spread the table over more segments.'

_IN_MEMORY = ("label", "weight")


class Overflow:
    """The temporary files of one shard.

    Args:
        limit_bytes: What the server lets one session have in such files (``temp_file_limit``), None: all there is.
        folder: Where they are made.
        what: Lies in them, for messages.
        hint: What helps if there is no room.
    """

    def __init__(self, limit_bytes: Optional[int] = None, folder: str = FOLDER, what: str = "shard", hint: str = _MEMORY):
        self._limit, self._folder, self._what, self._hint = limit_bytes, folder, what, hint
        self.bytes = 0

    def file(self) -> Any:
        """Open a file for reading and writing; it is gone when it is closed, and its last map is."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        return tempfile.TemporaryFile(prefix=PREFIX, dir=self._folder)

    @contextlib.contextmanager
    def growing(self, more: int) -> Iterator[None]:
        """Write so many bytes more.

        Raises:
            OutOfTemporaryFiles: the server does not let a session have so much.
            DiskFull.
        """
        self.bytes += more
        if self._limit is not None and self.bytes > self._limit:
            raise OutOfTemporaryFiles(
                "the %s does not fit the temporary files that a session may have there" % self._what,
                "What does not fit the memory takes %.1f MB or more; temp_file_limit is %.1f MB." % (self.bytes / 1e6, self._limit / 1e6),
                "%s Or raise temp_file_limit." % self._hint,
            )
        try:
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize - more < SPARED_BYTES:
                raise OSError(errno.ENOSPC, "")
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(
                "the %s does not fit the disk of its segment" % self._what,
                "What does not fit the memory takes %.1f MB or more in temporary files." % (self.bytes / 1e6),
                self._hint,
            ) from None

    def array(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array in a file, its contents undefined."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        with self.file() as file, self.growing(size):
            os.posix_fallocate(file.fileno(), 0, size)  # without room, a write into the map would end the process
            return np.memmap(file, dtype, "r+", shape=shape)


class Streamed:
    """Rows of one encoded array, all of them in a file, the first so many in memory too.

    Attributes:
        shape, dtype: Of the array.
    """

    def __init__(self, stored: np.ndarray, resident: np.ndarray):
        self._stored, self.resident = stored, resident
        self.shape, self.dtype = stored.shape, stored.dtype

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, rows: slice) -> "Streamed":
        """Return some rows, one after another."""
        return Streamed(self._stored[rows], self.resident[rows])

    def __setitem__(self, rows: slice, values: np.ndarray) -> None:
        self._stored[rows] = values
        here = self.resident[rows]
        here[...] = values[: len(here)]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        return np.asarray(self._stored, dtype)

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes in memory."""
        return self.resident.nbytes

    def take(self, picks: np.ndarray, axis: int = 0) -> np.ndarray:
        """Return rows by their position, a new array."""
        here = picks < len(self.resident)
        rows = np.empty((len(picks), *self.shape[1:]), self.dtype)
        rows[here] = self.resident.take(picks[here], axis=0)
        rows[~here] = self._stored.take(picks[~here], axis=0)
        return rows

    @property
    def resident_rows(self) -> int:
        """Return how many of the first rows are in memory."""
        return len(self.resident)

    def read_bytes(self, picks: np.ndarray) -> int:
        """Return how many bytes of rows come from the file."""
        return int((picks >= len(self.resident)).sum()) * row_bytes([self])


class StreamedRows(sparse.Rows):
    """Sparse rows whose entries are :class:`Streamed`; where each row begins is in memory."""

    @property
    def resident_rows(self) -> int:
        return int(np.searchsorted(self.offsets, len(self.entries.resident), "right")) - 1

    def read_bytes(self, picks: np.ndarray) -> int:
        counts = np.diff(self.offsets)[picks]
        here = np.clip(len(self.entries.resident) - self.offsets[:-1][picks], 0, counts)
        return int((counts - here).sum()) * sparse.ENTRY.itemsize


def sparse_rows(entries: Any, offsets: np.ndarray) -> sparse.Rows:
    """Return rows of entries that are an array in memory or a :class:`Streamed`."""
    return (StreamedRows if isinstance(entries, Streamed) else sparse.Rows)(entries, offsets)


def streamed(stored: sparse.Rows, share: float) -> sparse.Rows:
    """Return sparse rows that are in a file already, with a share of their entries, 0 to 1, in memory too."""
    resident = np.array(stored.entries[: int(len(stored.entries) * share)])
    return sparse_rows(resident if share >= 1 else Streamed(stored.entries, resident), stored.offsets)


def room(name: str, like: Any, rows: int, share: float, overflow: Overflow, entries: int = 0) -> Any:
    """Return what rows of one array are put into: an array in memory, or a :class:`Streamed`; of sparse rows, such as hold their entries.

    Args:
        name: Of the array; labels and weights are always in memory.
        like: Some of the rows.
        rows: How many there will be.
        share: How much of them is kept in memory, 0 to 1.
        overflow: Where all of them are, unless that is everything.
        entries: How many sparse rows will have.
    """
    if isinstance(like, sparse.Rows):
        return sparse_rows(room(name, like.entries, entries, share, overflow), np.zeros(rows + 1, np.int64))
    shape = like.shape[1:]
    if share >= 1 or name.partition("_")[0] in _IN_MEMORY:
        return np.empty((rows, *shape), like.dtype)
    return Streamed(overflow.array((rows, *shape), like.dtype), np.empty((int(rows * share), *shape), like.dtype))


def allowed_bytes(plpy) -> Optional[int]:
    """Return what the server lets a session have in temporary files, None: all there is."""
    found = plpy.execute("select setting::int8 as kilobytes from pg_catalog.pg_settings where name = 'temp_file_limit'")
    return None if not found.nrows() or found[0]["kilobytes"] < 0 else 1024 * found[0]["kilobytes"]


class Windows:
    """Minibatches of a pass over arrays of which some are :class:`Streamed`, with read-ahead.

    Args:
        arrays: By name, all of n rows; those that are not streamed are numpy's.
        order: int32 (m,), the rows of the pass; None: all as they lie.
        batch_size: Rows per minibatch.
    """

    def __init__(self, arrays: Dict[str, Any], order: Optional[np.ndarray], batch_size: int):
        self._arrays, self._batch_size = arrays, batch_size
        self._order = np.arange(len(arrays["label"])) if order is None else order
        self._streamed = [array for array in arrays.values() if isinstance(array, (Streamed, StreamedRows))]
        self._resident = min(array.resident_rows for array in self._streamed)
        self._most = max(1, WINDOW_BYTES // (batch_size * row_bytes(arrays.values())))
        self._hits = self._misses = self._read_bytes = 0
        self._pool = ThreadPoolExecutor(1, initializer=_leave_signals)
        self._ahead: Optional[Future] = None

    def __enter__(self) -> "Windows":
        return self

    def __exit__(self, *_: Any) -> None:
        self._pool.shutdown()

    def take(self, position: int, batches: int) -> Tuple[int, Dict[str, np.ndarray]]:
        """Return how many rows there are from a position of the order on, and these; begin to read those after them.

        Args:
            position: Where the window before this one ended.
            batches: So many minibatches are wanted; a window that was read ahead has those that were wanted of the one before.
        """
        count = min(batches, self._most) * self._batch_size
        window = self._read(position, count) if self._ahead is None else self._ahead.result()
        found = len(window["label"])
        self._ahead = self._pool.submit(self._read, position + found, count) if position + found < len(self._order) else None
        picks = self._order[position : position + found]
        hits = int((picks < self._resident).sum())
        self._hits, self._misses = self._hits + hits, self._misses + found - hits
        self._read_bytes += sum(array.read_bytes(picks) for array in self._streamed)
        return found, window

    def _read(self, position: int, count: int) -> Dict[str, np.ndarray]:
        picks = self._order[position : position + count]
        return {name: array.take(picks, axis=0) for name, array in self._arrays.items()}

    def reads(self) -> Dict[str, int]:
        """Return the rows so far that were in memory, those that were not, and the bytes that were read for them."""
        return {"hits": self._hits, "misses": self._misses, "read_bytes": self._read_bytes}


def is_streamed(arrays: Dict[str, Any]) -> bool:
    """Say whether some of the arrays are not all in memory."""
    return any(isinstance(array, (Streamed, StreamedRows)) for array in arrays.values())


def plain(array: Any) -> Any:
    """Return rows as numpy alone holds them: an array, or ``sparse.Rows`` of one; what is in a file stays there."""
    return sparse.Rows(np.asarray(array.entries), array.offsets) if isinstance(array, sparse.Rows) else np.asarray(array)


def row_bytes(arrays: Iterable[Any]) -> int:
    """Return the bytes that one row of each of some arrays takes together; of sparse ones the mean."""
    return sum(int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize + _entry_bytes(array) for array in arrays)


def _entry_bytes(array: Any) -> int:
    return -(-len(array.entries) * sparse.ENTRY.itemsize // max(1, len(array))) if isinstance(array, sparse.Rows) else 0


def _leave_signals() -> None:
    """PostgreSQL's signal handlers are for its own thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
