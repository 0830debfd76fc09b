"""Where a table lies, and whether every node is fit to train: each failure comes with the command that mends it."""

from __future__ import annotations

import json
from typing import List, Optional, Tuple

import cerebro_udf
from cerebro_udf.errors import CerebroError, ClientGone
from cerebro_udf.interrupts import Pulse

Check = Tuple[str, str, Optional[bool], str, Optional[str]]  # node, item, ok, value, repair

_SIZES = """
select coalesce(sum(greatest(c.reltuples, 0)), 0)::int8::text, coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::int8::text
from pg_catalog.json_array_elements_text($1::text::json) r
join pg_catalog.pg_class c on c.oid = r.value::pg_catalog.regclass
"""

_NODE = """
select pg_catalog.json_build_object(
    'server', pg_catalog.current_setting('server_version')
  , 'standby', pg_catalog.pg_is_in_recovery()
  , 'extension', (select e.extversion from pg_catalog.pg_extension e where e.extname = 'cerebro')
)::text
"""

PACKAGES = ("tensorflow", "keras", "numpy", "safetensors")
LINKING = PACKAGES + ("psycopg",)  # what a coordinator needs
UPDATE = 'ALTER EXTENSION cerebro UPDATE TO "%s";' % cerebro_udf.__version__


def segments(plpy, gd: dict, source: str) -> List[Tuple]:
    """The shards of a table: (segment, shard, address, relations, estimated rows, bytes or None); starts nothing."""
    from cerebro_udf.coordinator.segments import Segments
    from cerebro_udf.coordinator.source import describe
    from cerebro_udf.engines import engine_for
    from cerebro_udf.engines.base import SELF

    table = describe(plpy, source, None)
    engine = engine_for(plpy)
    found = Segments(plpy, gd, Pulse(plpy), engine, engine.shards(table, None))
    result = []
    try:
        measured = [shard.number for shard in found.shards if shard.size_bytes is None and not shard.dealt]
        if measured:
            found.connect()
        for shard in found.shards:
            address = engine.address(shard.server)
            rows, size = shard.rows_estimate, shard.size_bytes
            relations = [read.leaf if shard.server == SELF else read.relation for read in shard.reads]
            if shard.number in measured:
                rows, size = found.sizes(shard.number, _SIZES, relations)
            result.append((shard.segment, shard.number, str(address), relations, rows, size))
    finally:
        found.rest()
    return result


def doctor(plpy, gd: dict) -> List[Check]:
    """Check this node, the way back to it, and every segment that the caller could use."""
    checks = _package_checks("coordinator", _local_facts(plpy), LINKING, None)
    try:
        from cerebro_udf.coordinator import links  # noqa: F401
    except ImportError as missing:
        # The version that is installed says nothing: what counts is whether this server can import it.
        repair = 'pip install "psycopg[binary]"    (into the environment on that server\'s PYTHONPATH)'
        return [check for check in checks if check[1] != "psycopg"] + [("coordinator", "psycopg", False, str(missing), repair)]
    except CerebroError as unfit:
        return checks + [("coordinator", "psycopg", False, _why(unfit), unfit.hint)]
    from cerebro_udf.engines import engine_for
    from cerebro_udf.engines.base import SELF

    engine, pulse = engine_for(plpy), Pulse(plpy)
    for server in [SELF] + engine.servers():
        checks += _server_checks(plpy, engine, pulse, server)
    return checks + _pack_checks(plpy, gd, engine)


def _why(error: CerebroError) -> str:
    return "%s: %s" % (error.message, error.detail) if error.detail else error.message


def _local_facts(plpy) -> dict:
    facts = json.loads(plpy.execute(_NODE.replace("::text\n", "::text as facts\n"))[0]["facts"])
    facts.update(json.loads(plpy.execute("select cerebro_internal.worker_hello()::text as facts")[0]["facts"]))
    return facts


def _server_checks(plpy, engine, pulse: Pulse, server: str) -> List[Check]:
    """Reach one server as the caller, and ask it what it is."""
    from cerebro_udf.catalog import leads_home
    from cerebro_udf.coordinator.links import Link, RemoteError, ask
    from cerebro_udf.coordinator.segments import administer, create_extension_command, segment_error
    from cerebro_udf.engines.base import SELF

    link = None
    try:
        address = engine.address(server)
        link = Link(address, "cerebro doctor")
        link.open(pulse)
        checks: List[Check] = [(server, "reachable", True, "as %s at %s" % (address.user, address), None)]
        if server == SELF:
            if not leads_home(plpy, pulse, link):
                return [(server, "reachable", False, "it leads to another database, %s" % address, engine.home_command())]
            return checks
        facts = json.loads(ask(link, pulse, _NODE)[0][0])
        if facts["extension"] is None:
            return checks + [(server, "extension", False, "cerebro is not installed", create_extension_command(address))]
        try:
            facts.update(json.loads(ask(link, pulse, "select cerebro_internal.worker_hello()::text")[0][0]))
        except RemoteError as error:
            if error.sqlstate is None:
                raise
            repair = "make install PG_CONFIG=…    (on the host of %s; then restart that server)" % address
            return checks + [(server, "python", False, error.message, repair)]
        return checks + _package_checks(server, facts, PACKAGES, administer(address, UPDATE))
    except ClientGone:
        raise
    except CerebroError as error:
        return [(server, "reachable", False, _why(error), (server == SELF and engine.home_command()) or error.hint)]
    except RemoteError as error:
        found = segment_error(error, server, address)
        return [(server, "reachable", False, _why(found), found.hint)]
    finally:
        if link is not None:
            link.close()


def _pack_checks(plpy, gd: dict, engine) -> List[Check]:
    """Packed tables of the caller: is what they were packed from as it was?"""
    from cerebro_udf.coordinator.packed import conditions

    checks: List[Check] = []
    for name, found in conditions(plpy, gd, engine):
        ok = {"fresh": True, "changed": False}.get(found.state)
        value = found.state + (": " + found.why if found.why else "")
        checks.append(("coordinator", "packed table " + name, ok, value, None if ok else "select cerebro.pack(…);    (packs it anew)"))
    return checks


def _package_checks(node: str, facts: dict, packages: Tuple[str, ...], update: Optional[str]) -> List[Check]:
    """What a node says of itself; ``update`` is the command that updates the extension there, None for this node."""
    version = cerebro_udf.__version__
    update = update or UPDATE
    checks: List[Check] = [
        (node, "server", not facts["standby"], facts["server"] + (", a standby" if facts["standby"] else ""),
         "Connect to its primary." if facts["standby"] else None),
        (node, "extension", facts["extension"] == version, facts["extension"], None if facts["extension"] == version else update),
        (node, "package", facts["cerebro"] == version, facts["cerebro"],
         None if facts["cerebro"] == version else "make install PG_CONFIG=…    (on that host; then restart that server)"),
        (node, "python", True, facts["python"], None),
    ]  # fmt: skip
    for package in packages:
        found = facts.get(package)
        repair = None if found else "pip install %s    (into the environment on that server's PYTHONPATH)" % package
        checks.append((node, package, bool(found), found or "missing", repair))
    checks.append((node, "cores", True, str(facts["cores"]), None))
    memory = "%.1f of %.1f GB available" % (facts["memory_available"] / 1e9, facts["memory_total"] / 1e9)
    checks.append((node, "memory", True, memory, None))
    return checks
