"""Names that move from run to run: promoted, rolled back and removed in the caller's own transaction."""

from __future__ import annotations

from typing import Any, Optional

from cerebro_udf import grants, stored


def promote(plpy, gd: dict, run: str, alias: str, trial: Optional[int]) -> dict:
    """Let an alias of the caller stand for a trial, the best one by default; gives its row of ``cerebro.alias``.

    Raises:
        NotFound, NotReady: no such run or trial, or no epoch of it is finished.
        plpy.SPIError: a run of that name exists (42710), or a concurrent promotion in another isolation level (40001).
    """
    chosen = stored.choose(plpy, gd, run, trial)
    _do(plpy, "cerebro_internal.promotion_add($1, $2, $3)", ["int4", "text", "int4"], chosen.run, alias, chosen.trial)
    return _row(plpy, plpy.execute("select current_user as name")[0]["name"], alias)


def rollback(plpy, alias: str) -> dict:
    """Let an alias of the caller stand again for what it stood for before; gives its row of ``cerebro.alias``.

    Raises:
        NotFound, NoPrivilege: see ``grants.owned``.
        plpy.SPIError: there is nothing before (55000), or it was moved meanwhile (40001).
    """
    owner = grants.owned(plpy, "alias", alias)[0]["owner"]
    _do(plpy, "cerebro_internal.promotion_rollback($1, $2)", ["name", "text"], owner, alias)
    return _row(plpy, owner, alias)


def drop(plpy, alias: str) -> None:
    """Remove an alias of the caller.

    Raises:
        NotFound, NoPrivilege: see ``grants.owned``.
    """
    owner = grants.owned(plpy, "alias", alias)[0]["owner"]
    _do(plpy, "cerebro_internal.promotion_drop($1, $2)", ["name", "text"], owner, alias)


def _do(plpy, call: str, types: list, *values: Any) -> None:
    plpy.execute(plpy.prepare("select %s" % call, types), list(values))


def _row(plpy, owner: str, alias: str) -> dict:
    plan = plpy.prepare("select a.* from cerebro.alias a where a.owner = $1 and a.alias = $2", ["name", "text"])
    return dict(plpy.execute(plan, [owner, alias])[0])
