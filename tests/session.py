"""What tests of calls share: one role's session that stays warm, and a look at what an error leaves behind."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, Optional, Sequence

import numpy as np
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.cluster import ADMIN, ROLE, Cluster, poll_until
from tests.tables import Maker, Table, quoted

LOGIT = {"layers": [{"Dense": {"units": "$classes", "activation": "softmax"}}]}
LINE = {"layers": [{"Dense": {"units": 1}}]}
QUICK = {"epochs": 1, "seed": 7, "validation": 0}
PREFIX = "cerebro: "
IDLE_SECONDS = 30.0  # a session may be in the middle of starting TensorFlow

_TRACES = """
select (select count(*) from cerebro_internal.model)
     , (select count(*) from cerebro_internal.run)
     , (select count(*) from cerebro_internal.trial)
     , (select count(*) from cerebro_internal.epoch)
     , (select count(*) from cerebro_internal.visit)
     , (select count(*) from cerebro_internal.state)
     , (select count(*) from cerebro_internal.progress)
     , (select count(*) from pg_catalog.pg_locks where locktype = 'advisory')
"""


@dataclass(frozen=True)
class Refusal:
    """An error as the client got it, without the word `cerebro: ` that PL/Python has every message begin with."""

    sqlstate: str
    message: str
    detail: Optional[str]
    hint: Optional[str]

    @staticmethod
    def of(error: psycopg.Error) -> "Refusal":
        diag = error.diag
        message = diag.message_primary
        message = message[len(PREFIX) :] if message.startswith(PREFIX) else message
        return Refusal(diag.sqlstate, message, diag.message_detail, diag.message_hint)


def traces(cluster: Cluster) -> tuple:
    """Row counts of the whole catalog, and advisory locks."""
    return cluster.coordinator.execute(_TRACES)[0]


def refusal(cluster: Cluster, connection: psycopg.Connection, statement: Any, values: Sequence[Any] = ()) -> Refusal:
    """Run a statement that must fail, and check that it leaves nothing behind.

    That is: no row in the catalog, no advisory lock, every worker idle without a transaction, a session that answers.
    """
    before = traces(cluster)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement, values or None)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        connection.rollback()
    poll_until(cluster.idle_backends, IDLE_SECONDS)
    assert traces(cluster) == before
    assert connection.execute("select 1").fetchone() == (1,)
    if not connection.autocommit:
        connection.rollback()
    return Refusal.of(caught.value)


def answers(connection: psycopg.Connection) -> bool:
    """Whether a session is still there; its settings are those of its beginning then."""
    try:
        connection.execute("reset all")
        return True
    except psycopg.OperationalError:
        return False


class Session:
    """A role's session on the coordinator with a schema of its own on every node, and tables in it.

    Args:
        cluster: The test cluster.
        schema: Exists on every node.
        role: Whose session.
        warm: A connection of that role that another session has left; it may have been lost.
    """

    def __init__(self, cluster: Cluster, schema: str, role: str = ROLE, warm: Optional[psycopg.Connection] = None):
        self.cluster, self.schema, self.role = cluster, schema, role
        self.forget()
        self.tables = Maker(cluster, schema, role)
        self.sharded, self.local = self.tables.sharded, self.tables.local
        self.notices: list[str] = []
        self.connect(warm)

    def connect(self, warm: Optional[psycopg.Connection] = None) -> None:
        """Begin a session, or go on with a warm one; the one before may have been lost with its server."""
        self.conn = warm if warm is not None and answers(warm) else self.cluster.connect(self.role)
        self.conn.execute("select set_config('search_path', %s, false)", [quoted(self.schema)])
        self.conn.add_notice_handler(self._note)

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        self.notices.append(notice.message_primary)

    def forget(self) -> None:
        """Remove the role's aliases, runs and models."""
        for table in ("promotion", "run", "model"):
            self.cluster.coordinator.execute(
                "delete from cerebro_internal.%s where owner = %%s" % table, [self.role]
            )

    def close(self) -> None:
        self.conn.close()
        self.forget()

    def leave(self) -> psycopg.Connection:
        """Close, but for the connection, which is for another session to go on with."""
        self.conn.remove_notice_handler(self._note)
        self.forget()
        return self.conn

    def rows(self, statement: str, *values: Any) -> list[tuple]:
        return self.conn.execute(statement, values or None).fetchall()

    @staticmethod
    def name(what: str = "run") -> str:
        return "%s_%s" % (what, uuid.uuid4().hex[:8])

    def model(self, definition: dict = LOGIT, name: Optional[str] = None) -> str:
        name = name or self.name("model")
        self.conn.execute("select cerebro.create_model(%s, %s)", [name, json.dumps(definition)])
        return name

    def call(self, table: Any, model: str, label: str, features: Optional[Sequence[str]] = None, run: Optional[str] = None,
             **options: Any) -> tuple[str, list]:  # fmt: skip
        """The statement of a fit, and its values; the features are a and b, the columns of `points`."""
        source = table.name if isinstance(table, Table) else table
        values = [run or self.name(), source, model, label, list(features or ["a", "b"]), json.dumps({**QUICK, **options})]
        return "select * from cerebro.fit(%s, %s::text::regclass, %s, %s, %s, %s::jsonb)", values

    def fit(self, *arguments: Any, **named: Any) -> str:
        """Train; gives the run's name."""
        statement, values = self.call(*arguments, **named)
        self.conn.execute(statement, values)
        return values[0]

    def refused(self, *arguments: Any, **named: Any) -> Refusal:
        """The error of a fit that must fail, and that leaves nothing behind."""
        return refusal(self.cluster, self.conn, *self.call(*arguments, **named))

    def error(self, statement: str, *values: Any) -> Refusal:
        """The error of any statement that must fail, and that leaves nothing behind."""
        return refusal(self.cluster, self.conn, statement, values)


def points(count: int = 60, seed: int = 1) -> dict:
    """Columns a, b, label of rows that a line separates: `label` is true where a > b."""
    a, b = np.random.default_rng(seed).normal(size=(2, count)).round(3)
    return {"a": a, "b": b, "label": a > b}


POINTS = {"a": "real", "b": "double precision", "label": "boolean"}


class Database:
    """A further database on one node that servers may point at, made and dropped by a superuser."""

    def __init__(self, cluster: Cluster, node: int, name: str, *statements: str):
        self.node, self.name = cluster.node(node), name
        with self.node.connect(ADMIN) as admin:
            admin.execute("create database " + quoted(name))
        for statement in statements:
            self.execute(statement)

    def execute(self, statement: str) -> None:
        with self.node.connect(ADMIN, dbname=self.name) as admin:
            admin.execute(statement)

    def drop(self) -> None:
        with self.node.connect(ADMIN) as admin:
            admin.execute("drop database %s with (force)" % quoted(self.name))
