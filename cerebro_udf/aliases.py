"""Names that move from run to run: promoted, rolled back and removed in the caller's own transaction."""

from __future__ import annotations

from typing import Any, Optional

from cerebro_udf import stored
from cerebro_udf.errors import NotFound


def promote(plpy, gd: dict, run: str, alias: str, trial: Optional[int]) -> dict:
    """Let an alias of the caller stand for a trial, the best one by default; gives its row of ``cerebro.alias``.

    Raises:
        NotFound, NotReady: no such run or trial, or no epoch of it is finished.
        plpy.SPIError: a run of that name exists (42710), or a concurrent promotion in another isolation level (40001).
    """
    chosen = stored.choose(plpy, gd, run, trial)
    _do(plpy, "cerebro_internal.promotion_add($1, $2, $3)", ["int4", "text", "int4"], chosen.run, alias, chosen.trial)
    return _row(plpy, alias)


def rollback(plpy, alias: str) -> dict:
    """Let an alias of the caller stand again for what it stood for before; gives its row of ``cerebro.alias``.

    Raises:
        plpy.SPIError: no such alias (42704), or there is nothing before (55000).
    """
    _do(plpy, "cerebro_internal.promotion_rollback($1)", ["text"], alias)
    return _row(plpy, alias)


def drop(plpy, alias: str) -> None:
    """Remove an alias of the caller.

    Raises:
        NotFound.
    """
    if not _do(plpy, "cerebro_internal.promotion_drop($1)", ["text"], alias):
        raise NotFound('alias "%s" does not exist' % alias, None, "select alias, run from cerebro.alias; shows all aliases.")


def _do(plpy, call: str, types: list, *values: Any) -> Any:
    return plpy.execute(plpy.prepare("select %s as done" % call, types), list(values))[0]["done"]


def _row(plpy, alias: str) -> dict:
    plan = plpy.prepare("select a.* from cerebro.alias a where a.alias = $1 and a.owner = current_user", ["text"])
    return dict(plpy.execute(plan, [alias])[0])
