"""How hosts are shared out among the workers of all runs on them: connections, threads, memory. Figures in, decisions out."""

from __future__ import annotations

from typing import Optional

from cerebro_udf.coordinator.links import Address
from cerebro_udf.engines.base import SELF
from cerebro_udf.errors import TooManyConnections

# What the workers of a host may keep beside TensorFlow and shards: programs, above all, which stay for ever. A session
# that keeps more is replaced, unless that is what its few models need, or it has hardly begun: to begin anew takes seconds.
GROWTH_SHARE = 1 / 16  # of the host's memory, for all workers on it
GROWTH_LEAST_BYTES = 512 * 2**20  # for each
GROWN_PROGRAMS = 4
GROWN_VISITS = 16

# What is left of a server's connections, by the three limits that it has.
CONNECTIONS = """
select pg_catalog.row_to_json(f)::text from (
    select pg_catalog.current_setting('max_connections')::int as most
         , case when r.rolsuper then 0 else (
               select sum(s.setting::int) from pg_catalog.pg_settings s
               where s.name in ('superuser_reserved_connections', 'reserved_connections')) end as reserved
         , (select count(*) from pg_catalog.pg_stat_activity a where a.datid is not null and a.usesysid is not null) as used
         , r.rolconnlimit as role_most
         , (select count(*) from pg_catalog.pg_stat_activity a where a.usesysid = r.oid) as role_used
         , d.datconnlimit as database_most
         , (select count(*) from pg_catalog.pg_stat_activity a where a.datid = d.oid) as database_used
    from pg_catalog.pg_roles r, pg_catalog.pg_database d
    where r.rolname = current_user and d.datname = pg_catalog.current_database()) f
"""


def refuse_few_connections(address: Address, figures: dict, opened: int, needed: int) -> None:
    """Refuse a run that takes more sessions of a server than are left there.

    Args:
        address: The server.
        figures: The row of ``CONNECTIONS`` there.
        opened: Sessions that the run has there already.
        needed: Further ones that it takes.

    Raises:
        TooManyConnections: with the figures.
    """
    limits = [
        (figures["most"] - figures["reserved"] - figures["used"],
         "%d of max_connections = %d are in use, and %d kept for superusers" % (figures["used"], figures["most"], figures["reserved"]),
         "raise max_connections at %s" % address),
    ]  # fmt: skip
    for what, name in (("role", address.user), ("database", address.dbname)):
        most, used = figures[what + "_most"], figures[what + "_used"]
        if most >= 0:
            quoted = '"%s"' % name.replace('"', '""')
            limits.append(
                (most - used, '%s "%s" has a limit of %d, and %d are in use' % (what, name, most, used),
                 "ALTER %s %s CONNECTION LIMIT %d;" % (what.upper(), quoted, used + needed))
            )  # fmt: skip
    left, why, repair = min(limits)
    if left < needed:
        raise TooManyConnections(
            'server "%s" has too few connections left for this run' % address.name,
            "It takes %d more sessions there, %d are left: %s." % (needed, max(0, left), why),
            ("Set options.segments to %d, wait" % (opened + max(0, left)) if address.name == SELF else "Wait")  # else the table says it
            + " until other runs have ended, or " + repair,
        )


def threads(cores: int, own: int, others: int, warm: Optional[int], steady: bool) -> int:
    """Threads of each worker of a run on one host.

    Args:
        cores: Of the host.
        own: Workers of this run there.
        others: Workers of other runs there.
        warm: Threads of a session that runs already, None where it has yet to begin; to begin anew takes seconds.
        steady: They must not depend on what else goes on.

    Returns:
        The fair share; or what the warm session has, where that is at most this and more than half of it.
    """
    fair = max(1, cores // (own if steady else own + others))
    if warm is not None and not steady and fair / 2 < warm <= fair:
        return warm
    return fair


def growth_bytes(memory_total: int, workers: int) -> int:
    """What each of so many workers on a host may keep beside TensorFlow and its shard."""
    return max(GROWTH_LEAST_BYTES, int(memory_total * GROWTH_SHARE / workers))


def grown(report: dict, allowed_bytes: int) -> bool:
    """Whether a fresh session should take the place of one, by what that reports of itself."""
    return report["programs"] >= GROWN_PROGRAMS and report["visits"] >= GROWN_VISITS and report["grown_bytes"] > allowed_bytes
