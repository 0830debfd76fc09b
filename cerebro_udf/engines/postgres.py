"""PostgreSQL: partitions on other servers by postgres_fdw, and local tables split among local workers."""

from __future__ import annotations

import json
import os
from typing import Dict, List, Optional, Tuple

from cerebro_udf.coordinator.links import Address
from cerebro_udf.coordinator.source import TREE, Source
from cerebro_udf.engines.base import SELF, Engine, Layout, Part, Piece, Read, Shard
from cerebro_udf.errors import InvalidArgument, NoPrivilege, NotAuthenticated, NotSupported

MAX_DEFAULT_WORKERS = 8

_LEAVES = """
with recursive tree(oid) as (
    select $1::int8::oid
    union  -- not all: a table may inherit from two that are both in the tree
    select i.inhrelid from pg_catalog.pg_inherits i join tree on i.inhparent = tree.oid
)
select c.oid::int8 as oid, c.relkind, greatest(c.reltuples, 0)::int8 as rows
     , n.nspname as schema, c.relname as name
     , pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) as qualified
     , case when c.relkind in ('r', 'm') then pg_catalog.pg_relation_size(c.oid) end as bytes
     , pg_catalog.has_table_privilege(c.oid, 'SELECT') as readable
     , pg_catalog.row_security_active(c.oid) as policy
     , s.srvname as server, w.fdwname as wrapper
     , (select o.option_value from pg_catalog.pg_options_to_table(f.ftoptions) o where o.option_name = 'schema_name') as there_schema
     , (select o.option_value from pg_catalog.pg_options_to_table(f.ftoptions) o where o.option_name = 'table_name') as there_name
from tree
join pg_catalog.pg_class c on c.oid = tree.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_foreign_table f on f.ftrelid = c.oid
left join pg_catalog.pg_foreign_server s on s.oid = f.ftserver
left join pg_catalog.pg_foreign_data_wrapper w on w.oid = s.srvfdw
where c.relkind in ('r', 'm', 'f', 'v')
order by n.nspname, c.relname
"""

# What a view reads that lies on a segment.
_ELSEWHERE = TREE + """
select pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) as name, s.srvname as server
from tree
join pg_catalog.pg_class c on c.oid = tree.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_foreign_table f on f.ftrelid = c.oid
join pg_catalog.pg_foreign_server s on s.oid = f.ftserver
join pg_catalog.pg_foreign_data_wrapper w on w.oid = s.srvfdw
where w.fdwname = 'postgres_fdw'
order by 1
limit 1
"""

_RENAMED = """
select a.attname as name
     , (select o.option_value from pg_catalog.pg_options_to_table(a.attfdwoptions) o where o.option_name = 'column_name') as there
from pg_catalog.pg_attribute a
where a.attrelid = $1::int8::oid and a.attnum > 0 and not a.attisdropped and a.attfdwoptions is not null
"""

# How a partitioned table is cut, if its partitions lie right below it and are told apart by plain columns.
_CUT = """
select pg_catalog.pg_get_partkeydef(p.partrelid) as partitioning
     , array(select a.attname from pg_catalog.pg_attribute a where a.attrelid = p.partrelid and a.attnum = any (p.partattrs)) as columns
     , 0 <> all (p.partattrs::int2[]) and not exists (
           select 1 from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
           where i.inhparent = p.partrelid and c.relkind = 'p') as plain
from pg_catalog.pg_partitioned_table p
where p.partrelid = $1::int8::oid
"""

_BOUNDS = """
select pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) as leaf
     , pg_catalog.pg_get_expr(c.relpartbound, c.oid) as bound
from pg_catalog.pg_inherits i
join pg_catalog.pg_class c on c.oid = i.inhrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where i.inhparent = $1::int8::oid
"""

_REFERRED = """
select exists (
    select 1
    from pg_catalog.pg_foreign_table f
    join pg_catalog.pg_class c on c.oid = f.ftrelid
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    cross join lateral (
        select max(o.option_value) filter (where o.option_name = 'schema_name') as schema
             , max(o.option_value) filter (where o.option_name = 'table_name') as name
        from pg_catalog.pg_options_to_table(f.ftoptions) o) there
    where coalesce(there.schema, n.nspname) = $1 and coalesce(there.name, c.relname) = $2
) or exists (
    select 1
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relispartition and n.nspname = $1 and c.relname = $2
) as referred
"""

SEGMENT_COLUMNS = ("segment", "cerebro_segment")  # of a table that is partitioned by where its rows lie

_SERVER = """
select w.fdwname as wrapper, r.rolname as role, r.rolsuper as super
     , o.rolname as owner, o.rolsuper or o.oid = r.oid as trusted
     , pg_catalog.has_server_privilege(s.oid, 'USAGE') as usable
     , (select pg_catalog.json_object_agg(o.option_name, o.option_value)
        from pg_catalog.pg_options_to_table(s.srvoptions) o)::text as server
     , (select pg_catalog.json_object_agg(o.option_name, o.option_value)
        from pg_catalog.pg_user_mappings m, pg_catalog.pg_options_to_table(m.umoptions) o
        where m.srvid = s.oid and m.umuser = r.oid)::text as mapping
from pg_catalog.pg_foreign_server s
join pg_catalog.pg_foreign_data_wrapper w on w.oid = s.srvfdw
join pg_catalog.pg_roles r on r.rolname = current_user
join pg_catalog.pg_roles o on o.oid = s.srvowner
where s.srvname = $1
"""


class PostgresEngine(Engine):
    """Foreign partitions: one server is one segment. Local rows: block ranges, one per local worker."""

    features = Engine.FEATURES

    def shards(self, source: Source, workers: Optional[int]) -> List[Shard]:
        leaves = self._plpy.execute(self._plpy.prepare(_LEAVES, ["int8"]), [source.oid])
        if self._read_whole(source, leaves):
            rows, size = self._estimate(source)
            count = self._workers(workers, rows if workers else size // self._block_bytes())
            return [
                Shard(n, "local_%d" % (n + 1), SELF, [_whole(source)], rows // count, None, dealt=True) for n in range(count)
            ]
        policy = self._policy_active(source.oid)
        foreign: Dict[str, List[dict]] = {}
        local: List[dict] = []
        for leaf in leaves:
            if leaf["relkind"] != "f":
                local.append(leaf)
            elif leaf["wrapper"] != "postgres_fdw":
                raise NotSupported(
                    'foreign table %s is not of postgres_fdw' % leaf["qualified"],
                    'Its foreign data wrapper is "%s".' % leaf["wrapper"],
                    "Copy its rows into an ordinary table.",
                )
            else:
                foreign.setdefault(leaf["server"], []).append(leaf)
        shards: List[Shard] = []
        for server, parts in foreign.items():
            reads = [self._foreign_read(source, leaf) for leaf in parts]
            rows = sum(leaf["rows"] for leaf in parts)
            shards.append(Shard(len(shards), server, server, reads, rows, None, policy))
        if local:
            if not self._may_read_all(source.oid):
                if foreign:
                    raise NotSupported(
                        "a right on columns alone, for a table with both local and foreign partitions",
                        "Telling its local rows from its foreign ones takes a system column.",
                        "Ask the owner: GRANT SELECT ON %s TO …;" % source.name,
                    )
                # Nor may the caller read ctid, by which rows are split.
                shares = [([_whole(source)], sum(leaf["rows"] for leaf in local), sum(leaf["bytes"] for leaf in local))]
            else:
                if foreign and any(_through(source, leaf, policy) for leaf in local):
                    raise NotSupported(
                        "local and foreign partitions in one table, of which the local ones cannot be read by themselves",
                        "Rights or row security would have them read through %s, and the foreign ones with them." % source.name,
                        "GRANT SELECT on the local partitions, or have all partitions on one side.",
                    )
                shares = self._split(source, local, workers, policy)
            for reads, rows, size in shares:
                shards.append(Shard(len(shards), "local_%d" % (len(shards) - len(foreign) + 1), SELF, reads, rows, size))
        if not shards:
            raise NotSupported(
                "table %s has no partitions" % source.name, "There is nothing to read.", "Attach a partition, or load rows into a table."
            )
        return shards

    def _read_whole(self, source: Source, leaves: List[dict]) -> bool:
        """Whether rows have no place by which they could be split: those of a view, or of a foreign table that is on no segment.

        Raises:
            NotSupported: it is a view of what lies on a segment.
        """
        if source.kind == "f":
            return leaves[0]["wrapper"] != "postgres_fdw"
        if source.kind != "v":
            return False
        found = self._plpy.execute(self._plpy.prepare(_ELSEWHERE, ["int8"]), [source.oid])
        if found.nrows():
            raise NotSupported(
                "view %s reads a foreign table" % source.name,
                'Its rows would leave their segment: %s lies on server "%s".' % (found[0]["name"], found[0]["server"]),
                "Make the view on each segment and lead a foreign table to it, or name the table, with expressions and a filter.",
            )
        return True

    def _estimate(self, source: Source) -> Tuple[int, int]:
        """Rows and bytes of a relation, as the planner expects them."""
        named = source.columns or sorted(source.readable)
        columns = ", ".join(map(self._plpy.quote_ident, named))  # those that the caller may read
        plan = self._plpy.execute("explain (format json) select %s from %s" % (columns, source.name))[0]["QUERY PLAN"]
        top = json.loads(plan)[0]["Plan"]
        return top["Plan Rows"], top["Plan Rows"] * top["Plan Width"]

    def _may_read_all(self, oid: int) -> bool:
        """Whether the caller has SELECT on the relation itself, which covers its system columns."""
        plan = self._plpy.prepare("select pg_catalog.has_table_privilege($1::int8::oid, 'SELECT') as may", ["int8"])
        return self._plpy.execute(plan, [oid])[0]["may"]

    def _policy_active(self, oid: int) -> bool:
        plan = self._plpy.prepare("select pg_catalog.row_security_active($1::int8::oid) as active", ["int8"])
        return self._plpy.execute(plan, [oid])[0]["active"]

    def _foreign_read(self, source: Source, leaf: dict) -> Read:
        renamed = {
            row["name"]: row["there"]
            for row in self._plpy.execute(self._plpy.prepare(_RENAMED, ["int8"]), [leaf["oid"]])
            if row["there"] is not None
        }
        columns = {name: renamed.get(name, name) for name in source.columns}
        return Read(leaf["qualified"], self._there(leaf), columns, casts=source.casts, expressions=tuple(source.expressions))

    def _there(self, leaf: dict) -> str:
        """What a foreign table's server calls it."""
        quote = self._plpy.quote_ident
        return "%s.%s" % (quote(leaf["there_schema"] or leaf["schema"]), quote(leaf["there_name"] or leaf["name"]))

    def _block_bytes(self) -> int:
        return int(self._plpy.execute("select pg_catalog.current_setting('block_size') as size")[0]["size"])

    def _workers(self, wanted: Optional[int], pieces: int) -> int:
        """How many local workers share so many pieces: one per core, unless a number is wanted; no more than there are pieces."""
        return max(1, min(wanted or min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS), pieces))

    def _split(self, source: Source, leaves: List[dict], workers: Optional[int], policy: bool):
        """Deal the leaves' blocks out in equal runs; the last run of a leaf is open, for rows that come meanwhile."""
        block_bytes = self._block_bytes()
        blocks = [leaf["bytes"] // block_bytes for leaf in leaves]
        total = sum(blocks)
        workers = self._workers(workers, total)
        shares = []
        for worker in range(workers):
            begin, end = total * worker // workers, total * (worker + 1) // workers
            reads, rows, size, first = [], 0.0, 0, 0
            for leaf, count in zip(leaves, blocks):
                low, high = max(begin - first, 0), min(end - first, count)
                first += count
                last = high == count
                if low < high or (count == 0 and worker == 0):
                    reads.append(self._local_read(source, leaf, low, None if last else high, policy))
                    rows += leaf["rows"] * (high - low) / max(count, 1)
                    size += (high - low) * block_bytes
            shares.append((reads, int(rows), size))
        return shares

    def _local_read(self, source: Source, leaf: dict, low: int, high: Optional[int], policy: bool) -> Read:
        columns, expressions = {name: name for name in source.columns}, tuple(source.expressions)
        if _through(source, leaf, policy):
            return Read(leaf["qualified"], source.name, columns, leaf["oid"], low, high, expressions=expressions)
        return Read(leaf["qualified"], "only " + leaf["qualified"], columns, None, low, high, expressions=expressions)

    def alike(self, source: Source, shards: List[Shard], kept: List[str], partitioning: Optional[str] = None) -> Layout:
        if all(shard.server == SELF for shard in shards):
            if partitioning:
                raise _other_layout(source, partitioning)
            return Layout(None, None, [Part(SELF, None, None)])
        column = next((name for name in SEGMENT_COLUMNS if name not in kept), None)
        if column is None:
            raise InvalidArgument(
                'columns "%s" and "%s" cannot both be carried along' % SEGMENT_COLUMNS,
                "One of these names is that of the column which says where a row lies.",
                "Leave one of them out of key and options.columns.",
            )
        by_segment = "LIST (%s)" % column
        cut = self._plpy.execute(self._plpy.prepare(_CUT, ["int8"]), [source.oid])
        if cut.nrows() and cut[0]["plain"] and set(cut[0]["columns"]) <= set(kept) and all(shard.server != SELF for shard in shards):
            if partitioning in (None, cut[0]["partitioning"]):
                bounds = self._bounds(source.oid)
                parts = [Part(shard.server, read.leaf, bounds[read.leaf]) for shard in shards for read in shard.reads]
                return Layout(cut[0]["partitioning"], None, parts)
        if partitioning not in (None, by_segment):
            raise _other_layout(source, partitioning)
        servers = list(dict.fromkeys(shard.server for shard in shards))
        literal = self._plpy.quote_literal
        return Layout(by_segment, column, [Part(server, None, "FOR VALUES IN (%s)" % literal(server)) for server in servers])

    def _bounds(self, oid: int) -> Dict[str, str]:
        return {row["leaf"]: row["bound"] for row in self._plpy.execute(self._plpy.prepare(_BOUNDS, ["int8"]), [oid])}

    def pieces(self, oid: int) -> List[Piece]:
        leaves = self._plpy.execute(self._plpy.prepare(_LEAVES, ["int8"]), [oid])
        bounds = self._bounds(oid)
        return [
            Piece(
                leaf["server"] or SELF, bounds.get(leaf["qualified"]),
                leaf["qualified"] if leaf["relkind"] != "f" else self._there(leaf),
            )
            for leaf in leaves
        ]  # fmt: skip

    def attach(self, name: str, partition: str, part: Part, relation: str) -> List[str]:
        if part.server == SELF:
            return ["alter table %s attach partition %s %s" % (name, relation, part.bound)]
        parsed = self._plpy.execute(self._plpy.prepare("select pg_catalog.parse_ident($1) as parts", ["text"]), [relation])[0]["parts"]
        schema, table = map(self._plpy.quote_literal, parsed)
        return [
            "create foreign table %s partition of %s %s server %s options (schema_name %s, table_name %s)"
            % (partition, name, part.bound, self._plpy.quote_ident(part.server), schema, table)
        ]

    def referred(self, tables: List[Tuple[str, str]]) -> List[bool]:
        plan = self._plpy.prepare(_REFERRED, ["text", "text"])
        return [self._plpy.execute(plan, list(table))[0]["referred"] for table in tables]

    def address(self, server: str) -> Address:
        found = self._plpy.execute(self._plpy.prepare(_SERVER, ["text"]), [server])
        if not len(found):
            raise NotAuthenticated(
                'server "%s" does not exist' % server,
                "Cerebro reaches this database by it." if server == SELF else None,
                "select * from cerebro.doctor() prints the command that makes it.",
            )
        row = found[0]
        if not row["trusted"]:
            raise NoPrivilege(
                'server "%s" belongs to role "%s", which is no superuser' % (server, row["owner"]),
                "Its owner can have it lead anywhere, and whoever is there would be sent your models and could pass your login on.",
                "Have a superuser see where it leads, and take it over: ALTER SERVER %s OWNER TO …;" % self._plpy.quote_ident(server),
            )
        options = json.loads(row["server"] or "{}")
        mapping = json.loads(row["mapping"] or "null")
        if not row["super"] and (not row["usable"] or mapping is None or not mapping.get("password")):
            raise NotAuthenticated(
                'role "%s" has no user mapping with a password for server "%s"' % (row["role"], server),
                "Every session to a segment authenticates as the caller.",
                "\n".join(mapping_commands(self._plpy, server, row["role"], row["usable"], mapping is not None)),
            )
        mapping = mapping or {}
        user = mapping.get("user", row["role"])
        if user != row["role"] and not row["super"]:
            raise NotAuthenticated(
                'the user mapping of "%s" for server "%s" names another role' % (row["role"], server),
                'It names "%s".' % user,
                "ALTER USER MAPPING FOR CURRENT_USER SERVER %s OPTIONS (SET user %s);"
                % (self._plpy.quote_ident(server), self._plpy.quote_literal(row["role"])),
            )
        host = options.get("host") or options.get("hostaddr")
        secured = [(name, options[name]) for name in sorted(options) if name.startswith("ssl") or name == "channel_binding"]
        if "host" in options and "hostaddr" in options:
            secured.append(("hostaddr", options["hostaddr"]))  # the host is then the name on the server's certificate
        if not host or not options.get("dbname"):
            command = "ALTER SERVER %s OPTIONS (ADD host '…', ADD dbname '…');" % self._plpy.quote_ident(server)
            raise InvalidArgument(
                'server "%s" has no host or no dbname' % server, None, self.home_command() if server == SELF else command
            )
        return Address(
            server, host, options.get("port", "5432"), options["dbname"], user, mapping.get("password"), not row["super"],
            tuple(secured),
        )  # fmt: skip

    def home_command(self) -> str:
        found = self._plpy.execute(
            "select pg_catalog.current_setting('port') as port, pg_catalog.current_database()::text as dbname"
            ", (select pg_catalog.json_object_agg(o.option_name, o.option_value)::text"
            " from pg_catalog.pg_foreign_server s, pg_catalog.pg_options_to_table(s.srvoptions) o where s.srvname = '%s') as options" % SELF
        )[0]
        options = json.loads(found["options"] or "{}")
        wanted = {"host": "127.0.0.1", "port": found["port"], "dbname": found["dbname"]}
        changes = ["DROP hostaddr"] if "hostaddr" in options else []
        changes += [
            "%s %s %s" % ("SET" if key in options else "ADD", key, self._plpy.quote_literal(value))
            for key, value in wanted.items()
            if options.get(key) != value
        ]
        return "ALTER SERVER %s OPTIONS (%s);" % (SELF, ", ".join(changes)) if changes else ""

    def servers(self) -> List[str]:
        rows = self._plpy.execute(
            "select s.srvname as name from pg_catalog.pg_foreign_server s"
            " join pg_catalog.pg_foreign_data_wrapper w on w.oid = s.srvfdw"
            " join pg_catalog.pg_roles o on o.oid = s.srvowner"
            " where w.fdwname = 'postgres_fdw' and pg_catalog.has_server_privilege(s.oid, 'USAGE')"
            " and (o.rolsuper or o.rolname = current_user) order by s.srvname"
        )
        return [row["name"] for row in rows]


def _whole(source: Source) -> Read:
    return Read(source.name, source.name, {name: name for name in source.columns}, expressions=tuple(source.expressions))


def _through(source: Source, leaf: dict, policy: bool) -> bool:
    """Whether a local leaf is read through the relation that the caller named: its rights and policies are those that count."""
    return leaf["oid"] != source.oid and (policy or leaf["policy"] or not leaf["readable"])


def _other_layout(source: Source, partitioning: str) -> NotSupported:
    return NotSupported(
        "rows of table %s into a table that is sharded otherwise" % source.name,
        "The target is %s; rows stay on the segment where they are." % ("partitioned by " + partitioning if partitioning else "local"),
        'Name another target, or set options.if_exists to "replace".',
    )


def mapping_commands(plpy, server: str, role: str, usable: bool, exists: bool) -> List[str]:
    """The commands that give a role a mapping of its own; psql fills in :'password'."""
    quoted = plpy.quote_ident(server)
    commands = [] if usable else ["GRANT USAGE ON FOREIGN SERVER %s TO %s;" % (quoted, plpy.quote_ident(role))]
    if exists:
        commands.append("DROP USER MAPPING FOR CURRENT_USER SERVER %s;" % quoted)
    commands.append(
        "CREATE USER MAPPING FOR CURRENT_USER SERVER %s OPTIONS (user %s, password :'password');"
        % (quoted, plpy.quote_literal(role))
    )
    return commands
