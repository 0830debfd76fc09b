"""Rows that have no place to be split by: read once, by one worker, and dealt out; row i to shard i modulo all shards.

What was read is kept in a temporary file of this backend, so that a worker whose session is lost gets the very same rows again, whatever
a view would give by now.
"""

from __future__ import annotations

import os
from typing import Iterator, List, Tuple

from cerebro_udf.coordinator.links import Reply
from cerebro_udf.coordinator.segments import Segments
from cerebro_udf.segment.overflow import Overflow, allowed_bytes
from cerebro_udf.segment.reading import fetches


class Deal:
    """The rows of a query, by shard.

    Args:
        plpy: PL/Python's module.
        segments: Connected; the first one reads.
        query: As that segment's ``load`` gave it.

    Raises:
        CerebroError: what reading raises; OutOfTemporaryFiles, DiskFull.
    """

    def __init__(self, plpy, segments: Segments, query: str):
        hint = "Store its rows in a table or a materialized view, and name that."
        self._room = Overflow(allowed_bytes(plpy), what="copy of what is read", hint=hint)
        self._file = self._room.file()
        self._places: List[List[Tuple[int, int]]] = [[] for _ in segments.links]
        self._rows = self._end = 0
        self._read(segments, query)

    def rows(self, number: int) -> Iterator[str]:
        """Give the rows of one shard, some at a time, as a JSON array of objects."""
        for begin, size in self._places[number]:
            yield os.pread(self._file.fileno(), size, begin).decode()

    def _read(self, segments: Segments, query: str) -> None:
        self._ask(segments, "begin read only")  # an error has the link stopped, which rolls back
        self._ask(segments, "declare cerebro_rows no scroll cursor for select pg_catalog.to_json(r)::text from (%s) r" % query)

        def fetch(count: int) -> List[bytes]:
            return [row for (row,) in self._ask(segments, "fetch %d from cerebro_rows" % count)]

        for rows in fetches(fetch, lambda rows: max(map(len, rows))):
            self._keep(rows)
        self._ask(segments, "commit")

    @staticmethod
    def _ask(segments: Segments, command: str) -> List[tuple]:
        replies: List[Reply] = []
        segments.post(0, command, then=replies.append)
        segments.wait([0])
        return replies[0].rows

    def _keep(self, rows: List[bytes]) -> None:
        shards = len(self._places)
        for number in range(shards):
            own = rows[(number - self._rows) % shards :: shards]
            if own:
                text = b"[%s]" % b",".join(own)
                with self._room.growing(len(text)):
                    self._file.write(text)
                    self._file.flush()
                self._places[number].append((self._end, len(text)))
                self._end += len(text)
        self._rows += len(rows)
