"""Notice a cancel, a timeout or a dead client between two steps of Python code in a backend.

PostgreSQL only acts on a cancel when C code asks for it. A long Python loop never does, so it calls
``Pulse.check`` at every turn (2-7 microseconds). A client that was killed is noticed by polling the client's own
socket: PostgreSQL itself looks at that socket only when it next reads a command.
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any, Callable, List, Optional

from cerebro_udf.errors import ClientGone

TURN_SECONDS = 0.05  # how long a pause may last before interrupts are looked at
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


_unattended = False
_PROCEDURES = 110000  # the version that brought them: they may commit
_unread: List[socket.socket] = []


def go_unattended(plpy) -> Callable[[], None]:
    """Have this session go on without its client from now on: whether that one is there is looked at no more.

    Where it is a procedure that goes on, each ``Pulse.check`` also commits: so no snapshot is held, and no lock, while it waits.

    Returns:
        What to call at the end: the server would log, twice, that it cannot tell a client that is gone. It is given a connection
        instead that takes what is sent, and that ends where the next command would be read.
    """
    global _unattended
    _unattended = True
    descriptor = _client_descriptor(plpy)

    def hang_up() -> None:
        global _unattended
        _unattended = False  # whoever has called this by hand goes on with a session as it was
        if descriptor is None or not _is_gone(_watch(descriptor)):
            return
        here, other = socket.socketpair()
        with here:
            here.setblocking(False)
            other.shutdown(socket.SHUT_WR)
            os.dup2(here.fileno(), descriptor, inheritable=False)
        _unread.append(other)  # kept open: what is sent goes there

    return hang_up


def has_procedures(plpy) -> bool:
    """Whether this server has procedures, which may commit."""
    return int(plpy.execute("select pg_catalog.current_setting('server_version_num') as number")[0]["number"]) >= _PROCEDURES


def _watch(descriptor: int) -> Any:
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return poll


def _is_gone(poll: Any) -> bool:
    """Whether the other end of what is watched has closed the connection."""
    return any(event & _GONE for _, event in poll.poll(0))


class Pulse:
    """Lets the server act on interrupts, and looks whether the client is still there.

    Args:
        plpy: The module that PL/Python passes to a function body.
    """

    def __init__(self, plpy):
        self._plpy = plpy
        self._plan = plpy.prepare("select 1")
        self._poll = None
        self.attended = not _unattended  # whether a client waits for the answer
        self._commit = plpy.commit if _unattended and has_procedures(plpy) else None
        descriptor = _client_descriptor(plpy) if self.attended else None
        if descriptor is not None:
            self._poll = _watch(descriptor)

    def check(self) -> None:
        """Return at once, or raise.

        Raises:
            plpy.SPIError: the statement was cancelled or ran into its timeout (57014).
            ClientGone: the client has closed its connection (08003).
        """
        self._plpy.execute(self._plan)
        if self._commit is not None:
            self._commit()
        if self._poll is not None and _is_gone(self._poll):
            raise ClientGone("the client has closed its connection", None, "Connect again; cerebro.resume goes on with a run.")

    __call__ = check

    def pause(self, seconds: float) -> None:
        """Let time pass, and raise as ``check`` does."""
        end = time.monotonic() + seconds
        while True:
            self.check()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, TURN_SECONDS))


def _client_descriptor(plpy) -> Optional[int]:
    """Find the accepted socket of this backend's client among the open descriptors."""
    row = plpy.execute(
        "select pg_catalog.current_setting('port') as port"
        ", pg_catalog.host(pg_catalog.inet_client_addr()) as client"
        ", pg_catalog.inet_client_port() as client_port"
        ", pg_catalog.inet_server_port() as server_port"
    )[0]
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if not os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                continue
            handle = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # the descriptor of the listing itself
        with handle:
            try:
                local, peer = handle.getsockname(), handle.getpeername()
            except OSError:
                continue
            if handle.family == socket.AF_UNIX:
                if row["client"] is None and isinstance(local, str) and local.endswith(".s.PGSQL." + row["port"]):
                    return descriptor
            elif handle.family in (socket.AF_INET, socket.AF_INET6):
                if row["server_port"] == local[1] and row["client_port"] == peer[1]:
                    return descriptor
    return None
