"""A line between the coordinator and a server that tests cut, stall and corrupt."""

from __future__ import annotations

import contextlib
import socket
import threading

LONG_BYTES = 2000  # what is as long, or longer, has a state in it
TAIL_BYTES = 200  # before its end: within the last of the state's arrays


class Proxy:
    """Passes bytes on between whoever connects to `port` and a server on this machine, until told to do worse.

    Args:
        server: The port of the server.
    """

    def __init__(self, server: int):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._flows = threading.Event()
        self._corrupts: tuple[str, bool] | None = None
        self.corrupted = False
        self.go()
        threading.Thread(target=self._listen, daemon=True).start()

    def go(self) -> None:
        """All is well again."""
        self._refuses, self._corrupts = False, None
        self._flows.set()

    def stall(self) -> None:
        """Nothing passes in either direction; connections stay open, and new ones hear nothing."""
        self._flows.clear()

    def refuse(self) -> None:
        """New connections are closed at once; a cancel request needs one."""
        self._refuses = True

    def cut(self) -> None:
        """Close all connections, as the death of a router does that answers with resets."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def corrupt(self, sender: str, framing: bool = False) -> None:
        """Flip a bit in the next long message of the `server` or the `client`: in its last bytes, or its first, which is framing."""
        self.corrupted = False
        self._corrupts = (sender, framing)

    def close(self) -> None:
        self._listener.close()
        self.go()
        self.cut()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self._refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # it is down
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, target, sender in ((client, server, "client"), (server, client, "server")):
                threading.Thread(target=self._pass, args=(source, target, sender), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, sender: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**20):
                self._flows.wait()
                target.sendall(self._damaged(data, sender))
        with self._lock:
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._sockets.discard(source)
        source.close()

    def _damaged(self, data: bytes, sender: str) -> bytes:
        if self._corrupts is None or self._corrupts[0] != sender or len(data) < LONG_BYTES:
            return data
        at = 0 if self._corrupts[1] else len(data) - TAIL_BYTES
        self._corrupts, self.corrupted = None, True
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
