"""An interactive psql on a terminal of its own, which tests type into, interrupt and kill."""

from __future__ import annotations

import os
import pty
import select
import time
import tty
import uuid
from dataclasses import dataclass
from typing import Any, Optional

from psycopg import sql

from tests.cluster import ROLE, Cluster, kill

ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """What psql showed for a statement, notices and errors included; `sqlstate` is 00000 when it succeeded."""

    text: str
    sqlstate: str
    at: float  # time.monotonic() when the last of it came


class Gone(Exception):
    """psql has ended, or lost its connection."""


class Warm:
    """What has a `cluster`, and a psql there that stays warm until it is lost."""

    cluster: Cluster
    _psql: Optional[Psql] = None

    @property
    def psql(self) -> Psql:
        if self._psql is None:
            self._psql = Psql(self.cluster)
        return self._psql

    def lose_psql(self) -> None:
        """The session is of no more use."""
        if self._psql is not None:
            self._psql.close()
            self._psql = None


class Psql:
    """psql as a person has it: interactive, so that Ctrl-C stops a statement and not the session.

    Args:
        cluster: The test cluster.
        role: Who logs in.
        search_path: A schema, not quoted.
    """

    def __init__(self, cluster: Cluster, role: str = ROLE, search_path: Optional[str] = None):
        self._master, slave = pty.openpty()
        tty.setraw(slave)  # no echo, no line editing
        settings = ["PROMPT1=", "PROMPT2=", "PROMPT3="]
        arguments = ["-n", "-q", "-A", "-t", "-P", "pager=off"] + [x for s in settings for x in ("-v", s)]
        self.process = cluster.popen_psql(
            *arguments, role=role, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._marker: Optional[str] = None
        self._seen = ""
        self.backend = int(self.ask("select pg_backend_pid()").text)
        if search_path:
            self.ask("select set_config('search_path', %s, false)", search_path)

    def send(self, statement: str, *values: Any) -> None:
        """Type a statement; `answer` waits for it."""
        assert self._marker is None, "a statement is under way"
        for value in values:
            statement = statement.replace("%s", sql.Literal(value).as_string(None), 1)
        self._marker = "answered-" + uuid.uuid4().hex
        self._seen = ""
        os.write(self._master, ("%s;\n\\echo %s :SQLSTATE\n" % (statement, self._marker)).encode())

    def read(self, seconds: float) -> str:
        """Wait for output, at most so long; gives all that the statement under way has shown.

        Raises:
            Gone: there will be no more.
        """
        if select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end of a terminal is closed
                data = b""
            if not data:
                raise Gone(self._seen)
            self._seen += data.decode(errors="replace").replace("\r\n", "\n")
        if "connection to the server was lost" in self._seen:
            raise Gone(self._seen)
        return self._seen

    def answer(self, seconds: float = ANSWER_SECONDS) -> Answer:
        """Wait for the end of the statement under way."""
        end = time.monotonic() + seconds
        while True:
            text, found, state = self._seen.rpartition(self._marker)
            if found and state.endswith("\n"):
                self._marker = None
                return Answer(text.strip(), state.strip(), time.monotonic())
            assert time.monotonic() < end, "no answer within %s s; so far: %s" % (seconds, self._seen)
            self.read(max(0.0, end - time.monotonic()))

    def ask(self, statement: str, *values: Any, seconds: float = ANSWER_SECONDS) -> Answer:
        self.send(statement, *values)
        return self.answer(seconds)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, 2)

    def close(self) -> None:
        """End it, whatever it does."""
        kill(self.process.pid)
        self.process.wait()
        os.close(self._master)
