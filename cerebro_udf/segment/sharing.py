"""What the worker sessions of one host tell each other: that they work, and how much memory they were promised.

An entry is a socket bound to a name in Linux's abstract namespace. /proc/net/unix shows it to the sessions of all
servers, databases and roles of the host (or container: of its network namespace), and it goes with its process.
A name proves nothing and need not: entries of others only make a worker take less.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from typing import Dict, Optional, Tuple

from cerebro_udf.segment import memory

_NAME = "cerebro/%s/%s/%d/%d"  # worker, run, bytes, serial number
_LINE = re.compile(r" @cerebro/(\w+)/(\w+)/(\d+)/\d+$", re.MULTILINE)


class Entry:
    """This session's entry, none to begin with."""

    def __init__(self):
        self._worker = os.urandom(8).hex()
        self._serial = 0
        self._socket: Optional[socket.socket] = None

    def write(self, run: str, promised_bytes: int) -> Tuple[int, int]:
        """Show that this session works for a run.

        Args:
            run: A word that the run's workers, and no others, have in common.
            promised_bytes: Memory that it was promised and has not taken yet.

        Returns:
            Workers of other runs on this host, and the bytes that those were promised. Two that write at the same time
            may both see each other; it never happens that neither does.
        """
        run = re.sub(r"\W", "", str(run))[:32] or "0"
        fresh = socket.socket(socket.AF_UNIX)
        self._serial += 1
        with suppress(OSError):  # where there is no such namespace, every run is alone
            fresh.bind("\0" + _NAME % (self._worker, run, promised_bytes, self._serial))
        self.clear()
        self._socket = fresh
        others: Dict[str, int] = {}
        for worker, its_run, promised in _LINE.findall(memory.read("/proc/net/unix") or ""):
            if its_run != run and worker != self._worker:
                others[worker] = max(others.get(worker, 0), int(promised))
        return len(others), sum(others.values())

    def clear(self) -> None:
        """This session works for no run."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
