"""The engines: each knows one database's way of sharding."""

from __future__ import annotations

from cerebro_udf.engines.base import Engine


def engine_for(plpy) -> Engine:
    """The engine of this server."""
    from cerebro_udf.engines.postgres import PostgresEngine

    return PostgresEngine(plpy)
