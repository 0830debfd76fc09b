"""A real cluster for tests: scripts/cluster.py in a temporary folder, and connections to its nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import psycopg
from psycopg import sql

from scripts import cluster as embedded

ADMIN = embedded.ADMIN
ROLE = "tester"
T = TypeVar("T")


def poll_until(condition: Callable[[], T], deadline: float = 10.0, every: float = 0.02) -> T:
    """Call until the result is true, and return it.

    Args:
        condition: Called again and again.
        deadline: Seconds from now.
        every: Seconds between calls.

    Raises:
        AssertionError: it never was; the message holds the last result.
    """
    end = time.monotonic() + deadline
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError("not within %s s; last result: %r" % (deadline, result))
        time.sleep(every)


class Node:
    """One server: `number` 0 is the coordinator, `name` is also the foreign server's name."""

    def __init__(self, server: embedded.Node):
        self.server = server
        self.number = server.number
        self.name = server.name

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def pid(self) -> Optional[int]:
        """The postmaster's process id, None when the server is down."""
        return self.server.pid()

    def connect(self, role: str = ROLE, **options: Any) -> psycopg.Connection:
        """A connection in autocommit mode (unless told otherwise)."""
        options.setdefault("autocommit", True)
        options.setdefault("password", self.server.entry["passwords"].get(role))
        options.setdefault("dbname", embedded.DATABASE)
        return psycopg.connect(host="127.0.0.1", port=self.port, user=role, **options)

    def execute(self, query: Any, params: Any = None, role: str = ADMIN) -> list[tuple]:
        """Run one statement on a connection of its own; as superuser by default."""
        with self.connect(role) as connection:
            cursor = connection.execute(query, params)
            return cursor.fetchall() if cursor.description else []

    def stop(self, mode: str = "immediate") -> None:
        self.server.stop(mode)

    def start(self) -> None:
        """Start again on the same port."""
        self.server.start(self.server.cluster.state["fsync"])

    def log_size(self) -> int:
        return self.server.log.stat().st_size if self.server.log.exists() else 0

    def log_since(self, mark: int) -> str:
        with open(self.server.log, "rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace")


class Cluster:
    """A running cluster. The ordinary role is `tester`; nothing but what a test makes belongs to it."""

    def __init__(self, segments: int, home: Optional[Path] = None):
        self.kept = home is not None
        if home is None:
            home = Path(tempfile.mkdtemp(prefix="cerebro-test-"))
        home.mkdir(exist_ok=True)
        os.chmod(home, 0o755)  # the servers' user goes through
        self.embedded = embedded.Cluster(home)
        try:
            self.embedded.start(segments, fsync=False)
            self.embedded.add_role(ROLE)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> list[Node]:
        return [Node(server) for server in self.embedded.nodes]

    @property
    def coordinator(self) -> Node:
        return self.nodes[0]

    @property
    def segments(self) -> list[Node]:
        return self.nodes[1:]

    def node(self, number: int) -> Node:
        return self.nodes[number]

    def connect(self, role: str = ROLE, node: int = 0, **options: Any) -> psycopg.Connection:
        return self.nodes[node].connect(role, **options)

    def url(self, role: str = ROLE, node: int = 0) -> str:
        return self.embedded.nodes[node].url(role)

    def add_role(self, name: str) -> None:
        """An ordinary role on every node, with user mappings for every segment and cerebro_self."""
        self.embedded.add_role(name)

    def drop_role(self, name: str) -> None:
        """Drop a role and all it owns, on every node."""
        statement = sql.SQL("drop owned by {0} cascade; drop role {0}").format(sql.Identifier(name))
        for node in self.nodes:
            with node.connect(ADMIN) as connection:
                if connection.execute("select from pg_roles where rolname = %s", [name]).rowcount:
                    connection.execute(statement)
            node.server.entry["passwords"].pop(name, None)
        with contextlib.suppress(ValueError):
            self.embedded.roles.remove(name)
        self.embedded._save()

    def popen_psql(
        self, *arguments: str, role: str = ROLE, node: int = 0, **options: Any
    ) -> subprocess.Popen:
        """Start psql; text on pipes unless told otherwise."""
        for name in ("stdin", "stdout", "stderr"):
            options.setdefault(name, subprocess.PIPE)
        environment = {
            "PGPASSWORD": self.embedded.nodes[node].password(role), "PATH": os.environ["PATH"], "PGTZ": "UTC",
        }  # fmt: skip
        environment.update(options.pop("env", {}))
        command = [self.embedded.tool("psql"), "-X", "-h", "127.0.0.1", "-p", str(self.nodes[node].port)]
        command += ["-U", role, "-d", embedded.DATABASE, *arguments]
        return subprocess.Popen(command, text=True, env=environment, **options)

    def psql(self, text: str, *arguments: str, role: str = ROLE, node: int = 0, **options: Any) -> str:
        """What psql shows for a script: stdout and stderr in the order in which they came."""
        process = self.popen_psql(*arguments, role=role, node=node, stderr=subprocess.STDOUT, **options)
        return process.communicate(text)[0]

    def idle_backends(self) -> bool:
        """Whether no client backend on any node runs a statement or holds a transaction open."""
        query = (
            "select count(*) from pg_stat_activity"
            " where backend_type = 'client backend' and state <> 'idle' and pid <> pg_backend_pid()"
        )
        return all(node.execute(query)[0][0] == 0 for node in self.nodes)

    def close(self) -> None:
        """Stop the servers and remove the folder; a kept cluster goes on running."""
        if self.kept:
            return
        self.embedded.stop("immediate")
        self.embedded.clean()
        shutil.rmtree(self.embedded.home, ignore_errors=True)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process, SIGKILL by default; a process that is gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
