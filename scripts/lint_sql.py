"""Refuse SQL that PostgreSQL 9.4 (Greenplum 6) does not parse: deny-lists over syntax tree and tokens.

    python scripts/lint_sql.py FILE...

Newer syntax belongs into `DO` blocks that EXECUTE a string on servers new enough: strings are not read.
Bodies of SQL functions are checked like statements; so is every statement and expression inside PL/pgSQL.
What cannot be told from the text alone is not found: `a || b` of two jsonb columns, say.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import pglast
from pglast import enums, parser
from pglast.visitors import Visitor

# Functions that 9.4 lacks.
FUNCTIONS = frozenset(
    "jsonb_build_object jsonb_build_array jsonb_agg jsonb_object_agg jsonb_object to_jsonb jsonb_set"
    " jsonb_insert"
    " jsonb_pretty jsonb_strip_nulls jsonb_path_query jsonb_path_exists jsonb_path_query_array jsonb_set_lax"
    " json_strip_nulls array_position array_positions pg_blocking_pids num_nulls num_nonnulls parse_ident"
    " pg_size_bytes sha224 sha256 sha384 sha512 gen_random_uuid string_to_table starts_with trim_array"
    " scale to_regrole to_regnamespace pg_partition_tree pg_partition_root pg_partition_ancestors"
    " satisfies_hash_partition date_bin bit_count unistr regexp_like regexp_count regexp_instr regexp_substr"
    " range_agg row_security_active any_value array_sample array_shuffle log10 gcd lcm sinh cosh tanh erf erfc"
    " min_scale trim_scale random_normal pg_get_partkeydef pg_get_partition_constraintdef pg_config"
    " pg_stat_get_progress_info pg_notification_queue_usage phraseto_tsquery websearch_to_tsquery"
    " jsonb_to_tsvector json_to_tsvector to_regcollation pg_input_is_valid pg_collation_actual_version"
    " jsonb_path_match jsonb_path_query_first jsonb_path_exists_tz unicode_version system_user"
    " pg_current_xact_id pg_current_logfile has_parameter_privilege"
    " pg_control_system pg_safe_snapshot_blocking_pids".split()
)

# Runs of keywords, as the scanner names them.
TOKENS = {
    ("EQUALS_GREATER",): "named arguments are written := there",
    ("ON", "CONFLICT"): "ON CONFLICT (9.5)",
    ("EXECUTE", "FUNCTION"): "EXECUTE FUNCTION (11): EXECUTE PROCEDURE there",
    ("SKIP", "LOCKED"): "SKIP LOCKED (9.5)",
    ("AS", "IDENTITY_P"): "IDENTITY columns (10)",
    ("INDEX", "IF_P", "NOT", "EXISTS"): "CREATE INDEX IF NOT EXISTS (9.5)",
    ("SEQUENCE", "IF_P", "NOT", "EXISTS"): "CREATE SEQUENCE IF NOT EXISTS (9.5)",
    ("SERVER", "IF_P", "NOT", "EXISTS"): "CREATE SERVER IF NOT EXISTS (10)",
    ("MAPPING", "IF_P", "NOT", "EXISTS"): "CREATE USER MAPPING IF NOT EXISTS (10)",
    ("COLUMN", "IF_P", "NOT", "EXISTS"): "COLUMN IF NOT EXISTS (9.6)",
    ("VIEW", "IF_P", "NOT", "EXISTS"): "CREATE MATERIALIZED VIEW IF NOT EXISTS (9.5)",
    ("RENAME", "VALUE_P"): "RENAME VALUE (10)",
    ("AS", "MATERIALIZED"): "WITH … AS MATERIALIZED (12)",
    ("AS", "NOT", "MATERIALIZED"): "WITH … AS NOT MATERIALIZED (12)",
}

# Syntax tree nodes whose mere presence is too new.
NODES = {
    "OnConflictClause": "ON CONFLICT (9.5)",
    "CallStmt": "CALL (11)",
    "CreatePolicyStmt": "row-level security (9.5)",
    "AlterPolicyStmt": "row-level security (9.5)",
    "PartitionSpec": "declarative partitions (10)",
    "PartitionBoundSpec": "declarative partitions (10)",
    "PartitionCmd": "declarative partitions (10)",
    "CreateStatsStmt": "CREATE STATISTICS (10)",
    "RangeTableSample": "TABLESAMPLE (9.5)",
    "GroupingSet": "GROUPING SETS (9.5)",
    "TriggerTransition": "transition tables (10)",
    "MergeStmt": "MERGE (15)",
    "ImportForeignSchemaStmt": "IMPORT FOREIGN SCHEMA (9.5)",
    "CreateAmStmt": "CREATE ACCESS METHOD (9.6)",
    "CreateTransformStmt": "CREATE TRANSFORM (9.5)",
    "CreatePublicationStmt": "logical replication (10)",
    "CreateSubscriptionStmt": "logical replication (10)",
    "AlterObjectDependsStmt": "DEPENDS ON EXTENSION (9.6)",
    "CTESearchClause": "SEARCH (14)",
    "CTECycleClause": "CYCLE (14)",
    "JsonIsPredicate": "IS JSON (16)",
    "JsonFuncExpr": "SQL/JSON functions (17)",
    "JsonParseExpr": "SQL/JSON functions (17)",
    "JsonScalarExpr": "SQL/JSON functions (17)",
    "JsonSerializeExpr": "SQL/JSON functions (17)",
    "JsonObjectConstructor": "SQL/JSON constructors (16)",
    "JsonArrayConstructor": "SQL/JSON constructors (16)",
    "JsonArrayQueryConstructor": "SQL/JSON constructors (16)",
    "JsonObjectAgg": "SQL/JSON constructors (16)",
    "JsonArrayAgg": "SQL/JSON constructors (16)",
    "JsonTable": "JSON_TABLE (17)",
}

TYPES = frozenset(
    "regrole regnamespace regcollation jsonpath xid8 macaddr8 pg_snapshot int4multirange int8multirange".split()
)

RELATIONS = re.compile(
    r"pg_(stat_progress_\w+|sequences?|polic(y|ies)|partitioned_table|publication\w*|subscription\w*"
    r"|statistic_ext\w*|stats_ext\w*|init_privs|config|hba_file_rules|ident_file_mappings|file_settings"
    r"|stat_ssl|stat_gssapi|stat_wal\w*|stat_io|stat_slru|stat_subscription\w*|shmem_allocations"
    r"|replication_origin\w*|transform|backend_memory_contexts|aios)\Z"
)

COLUMNS = frozenset(
    "relrowsecurity relforcerowsecurity relispartition relpartbound prokind prosupport attidentity"
    " attgenerated attcompression rolbypassrls wait_event wait_event_type backend_type leader_pid"
    " query_id".split()
)

# Operators of jsonb alone; and those it shares with other types, told by an operand that says it is jsonb.
OPERATORS = {
    "#-": "jsonb #- (9.5)",
    "@?": "jsonpath operators (12)",
    "^@": "^@ (11)",
}
SHARED_OPERATORS = {"||": "jsonb || (9.5)", "-": "jsonb - (9.5)", "@@": "jsonpath operators (12)"}

AGGREGATE_OPTIONS = {
    "parallel": "PARALLEL of aggregates (9.6)",
    "combinefunc": "COMBINEFUNC (9.6)",
    "serialfunc": "SERIALFUNC (9.6)",
    "deserialfunc": "DESERIALFUNC (9.6)",
    "finalfunc_modify": "FINALFUNC_MODIFY (11)",
    "mfinalfunc_modify": "MFINALFUNC_MODIFY (11)",
}

PLPGSQL = {
    "PLpgSQL_stmt_commit": "COMMIT in PL/pgSQL (11)",
    "PLpgSQL_stmt_rollback": "ROLLBACK in PL/pgSQL (11)",
    "PLpgSQL_stmt_call": "CALL (11)",
    "PLpgSQL_stmt_assert": "ASSERT (9.5)",
}

NEW_CONSTRAINTS = {
    enums.ConstrType.CONSTR_IDENTITY: "IDENTITY columns (10)",
    enums.ConstrType.CONSTR_GENERATED: "generated columns (12)",
}

NEW_ALTERATIONS = {
    enums.AlterTableType.AT_EnableRowSecurity: "row-level security (9.5)",
    enums.AlterTableType.AT_DisableRowSecurity: "row-level security (9.5)",
    enums.AlterTableType.AT_ForceRowSecurity: "row-level security (9.5)",
    enums.AlterTableType.AT_NoForceRowSecurity: "row-level security (9.5)",
    enums.AlterTableType.AT_AddIdentity: "IDENTITY columns (10)",
    enums.AlterTableType.AT_SetIdentity: "IDENTITY columns (10)",
    enums.AlterTableType.AT_DropIdentity: "IDENTITY columns (10)",
    enums.AlterTableType.AT_DropExpression: "generated columns (12)",
    enums.AlterTableType.AT_SetExpression: "generated columns (12)",
    enums.AlterTableType.AT_SetCompression: "COMPRESSION (14)",
    enums.AlterTableType.AT_SetAccessMethod: "table access methods (12)",
    enums.AlterTableType.AT_SetLogged: "SET LOGGED (9.5)",
    enums.AlterTableType.AT_SetUnLogged: "SET UNLOGGED (9.5)",
}


class Finding(NamedTuple):
    """Something that 9.4 would not take; `place` counts characters from the text's start."""

    place: int
    what: str


class Lint(Visitor):
    """Collects findings from one text's syntax tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.findings: list[Finding] = []
        self.place = self.end = 0

    def add(self, what: str) -> None:
        self.findings.append(Finding(self.place, what))

    def visit(self, ancestors, node) -> None:
        what = NODES.get(type(node).__name__)
        if what:
            self.add(what)

    def visit_RawStmt(self, ancestors, node) -> None:
        self.place = node.stmt_location or 0
        self.end = self.place + node.stmt_len if node.stmt_len else len(self.text)

    def visit_CreateFunctionStmt(self, ancestors, node) -> None:
        if node.is_procedure:
            self.add("procedures (11)")
        if node.sql_body:
            self.add("SQL-standard function bodies (14)")
        options = {option.defname: option.arg for option in node.options or ()}
        if "parallel" in options:
            self.add("PARALLEL (9.6): set it by ALTER FUNCTION in a DO block")
        if "support" in options:
            self.add("SUPPORT (12)")
        body = options.get("as")
        language = options.get("language")
        if body and language:
            self.body(body[0].sval, language.sval)

    def visit_AlterFunctionStmt(self, ancestors, node) -> None:
        if any(action.defname == "parallel" for action in node.actions):
            self.add("PARALLEL (9.6): set it in a DO block")

    def visit_DoStmt(self, ancestors, node) -> None:
        body = next(arg.arg.sval for arg in node.args if arg.defname == "as")
        language = next((arg.arg.sval for arg in node.args if arg.defname == "language"), "plpgsql")
        self.body(body, language)

    def body(self, text: str, language: str) -> None:
        if language == "sql":
            self.findings += [Finding(self.place, what) for _, what in tree(text)]
        if language == "plpgsql":
            self.plpgsql(pglast.parse_plpgsql(self.text[self.place : self.end]))
        if language in ("sql", "plpgsql"):
            self.findings += [Finding(self.place, what) for _, what in tokens(text)]

    def plpgsql(self, node) -> None:
        """Check every statement and expression of a parsed PL/pgSQL body; strings to EXECUTE are expressions."""
        if isinstance(node, list):
            for item in node:
                self.plpgsql(item)
        elif isinstance(node, dict):
            for name, item in node.items():
                if name in PLPGSQL:
                    self.add(PLPGSQL[name])
                if name == "PLpgSQL_expr":
                    self.expression(item["query"])
                else:
                    self.plpgsql(item)

    def expression(self, text: str) -> None:
        # An expression, an assignment or a whole statement: the parser of PL/pgSQL doesn't say which.
        assigned = re.match(r"[\w.\"\[\]\s]+?:?=(?!=|>)", text)
        candidates = [text, "select " + text] + (["select " + text[assigned.end() :]] if assigned else [])
        for candidate in candidates:
            try:
                self.findings += [Finding(self.place, what) for _, what in tree(candidate)]
                return
            except pglast.Error:
                continue
        self.add("cannot read %r" % text)

    def visit_TypeName(self, ancestors, node) -> None:
        name = node.names[-1].sval if node.names else ""
        if name in TYPES:
            self.add("type %s" % name)

    def visit_RangeVar(self, ancestors, node) -> None:
        if node.schemaname in (None, "pg_catalog") and RELATIONS.match(node.relname):
            self.add("relation %s" % node.relname)

    def visit_ColumnRef(self, ancestors, node) -> None:
        name = getattr(node.fields[-1], "sval", None)
        if name in COLUMNS:
            self.add("column %s of a catalog" % name)

    def visit_A_Expr(self, ancestors, node) -> None:
        name = node.name[-1].sval
        if name in OPERATORS:
            self.add(OPERATORS[name])
        elif name in SHARED_OPERATORS and (is_jsonb(node.lexpr) or is_jsonb(node.rexpr)):
            self.add(SHARED_OPERATORS[name])

    def visit_A_Indices(self, ancestors, node) -> None:
        if node.is_slice and (node.lidx is None or node.uidx is None):
            self.add("open slices (9.6)")

    def visit_TableLikeClause(self, ancestors, node) -> None:
        new = (
            enums.TableLikeOption.CREATE_TABLE_LIKE_IDENTITY
            | enums.TableLikeOption.CREATE_TABLE_LIKE_GENERATED
        )
        whole = 0x7FFFFFFF  # INCLUDING ALL
        if node.options & new and node.options != whole:
            self.add("IDENTITY or generated columns (10)")

    def visit_ColumnDef(self, ancestors, node) -> None:
        if node.compression:
            self.add("COMPRESSION (14)")

    def visit_CreateStmt(self, ancestors, node) -> None:
        if node.accessMethod:
            self.add("table access methods (12)")

    def visit_CreateTableAsStmt(self, ancestors, node) -> None:
        if node.if_not_exists:
            self.add("IF NOT EXISTS of CREATE TABLE AS and materialized views (9.5)")

    def visit_CreateSeqStmt(self, ancestors, node) -> None:
        if any(option.defname == "as" for option in node.options or ()):
            self.add("CREATE SEQUENCE … AS (10)")

    def visit_CreateRoleStmt(self, ancestors, node) -> None:
        if any(option.defname == "bypassrls" for option in node.options or ()):
            self.add("row-level security (9.5)")

    def visit_RoleSpec(self, ancestors, node) -> None:
        # In 9.4 only user mappings take CURRENT_USER and its like.
        if any(type(parent).__name__.endswith("UserMappingStmt") for parent in parents(ancestors)):
            return
        if node.roletype not in (enums.RoleSpecType.ROLESPEC_CSTRING, enums.RoleSpecType.ROLESPEC_PUBLIC):
            self.add("CURRENT_USER in the place of a role's name (9.5)")

    def visit_DropStmt(self, ancestors, node) -> None:
        kinds = enums.ObjectType
        if node.removeType in (kinds.OBJECT_PROCEDURE, kinds.OBJECT_ROUTINE):
            self.add("procedures (11)")
        if node.removeType in (kinds.OBJECT_POLICY, kinds.OBJECT_PUBLICATION, kinds.OBJECT_STATISTIC_EXT):
            self.add("an object of that kind")
        if any(getattr(item, "args_unspecified", False) for item in node.objects):
            self.add("a function without its arguments (10)")

    def visit_CopyStmt(self, ancestors, node) -> None:
        if node.whereClause:
            self.add("COPY … WHERE (12)")

    def visit_InsertStmt(self, ancestors, node) -> None:
        if node.override not in (None, enums.OverridingKind.OVERRIDING_NOT_SET):
            self.add("OVERRIDING (10)")

    def visit_SelectStmt(self, ancestors, node) -> None:
        if node.limitOption == enums.LimitOption.LIMIT_OPTION_WITH_TIES:
            self.add("WITH TIES (13)")

    def visit_FuncCall(self, ancestors, node) -> None:
        name = node.funcname[-1].sval
        if name in FUNCTIONS:
            self.add("function %s" % name)
        if name == "current_setting" and len(node.args or ()) > 1:
            self.add("current_setting with two arguments (9.6)")

    def visit_Constraint(self, ancestors, node) -> None:
        if node.contype in NEW_CONSTRAINTS:
            self.add(NEW_CONSTRAINTS[node.contype])
        if node.including:
            self.add("INCLUDE (11)")
        if node.nulls_not_distinct:
            self.add("NULLS NOT DISTINCT (15)")

    def visit_AlterTableCmd(self, ancestors, node) -> None:
        if node.subtype in NEW_ALTERATIONS:
            self.add(NEW_ALTERATIONS[node.subtype])

    def visit_IndexStmt(self, ancestors, node) -> None:
        if node.nulls_not_distinct:
            self.add("NULLS NOT DISTINCT (15)")
        if node.indexIncludingParams:
            self.add("INCLUDE (11)")
        if node.accessMethod == "brin":
            self.add("BRIN (9.5)")

    def visit_CreateExtensionStmt(self, ancestors, node) -> None:
        if any(option.defname == "cascade" for option in node.options or ()):
            self.add("CREATE EXTENSION … CASCADE (9.6)")

    def visit_DefineStmt(self, ancestors, node) -> None:
        if node.replace:
            self.add("CREATE OR REPLACE AGGREGATE (12)")
        for option in node.definition or ():
            if option.defname in AGGREGATE_OPTIONS:
                self.add(AGGREGATE_OPTIONS[option.defname])

    def visit_CreateTrigStmt(self, ancestors, node) -> None:
        if node.replace:
            self.add("CREATE OR REPLACE TRIGGER (14)")

    def visit_ViewStmt(self, ancestors, node) -> None:
        if any(option.defname == "security_invoker" for option in node.options or ()):
            self.add("security_invoker (15)")

    def visit_WindowDef(self, ancestors, node) -> None:
        new = (
            enums.FRAMEOPTION_GROUPS
            | enums.FRAMEOPTION_EXCLUDE_CURRENT_ROW
            | enums.FRAMEOPTION_EXCLUDE_GROUP
            | enums.FRAMEOPTION_EXCLUDE_TIES
        )
        if node.frameOptions & new:
            self.add("GROUPS or EXCLUDE in a window frame (11)")

    def visit_GrantStmt(self, ancestors, node) -> None:
        if node.objtype in (enums.ObjectType.OBJECT_PROCEDURE, enums.ObjectType.OBJECT_ROUTINE):
            self.add("ON PROCEDURE or ROUTINE (11)")

    def visit_CommentStmt(self, ancestors, node) -> None:
        if node.objtype in (enums.ObjectType.OBJECT_PROCEDURE, enums.ObjectType.OBJECT_ROUTINE):
            self.add("ON PROCEDURE or ROUTINE (11)")


def parents(ancestors) -> Iterator[object]:
    """The nodes around a node, from the inside out."""
    while ancestors is not None and ancestors.node is not None:
        yield ancestors.node
        ancestors = ancestors.parent


def is_jsonb(node) -> bool:
    """Whether an operand says by itself that it is jsonb: a cast, or a function named so."""
    if isinstance(node, pglast.ast.TypeCast):
        return bool(node.typeName.names) and node.typeName.names[-1].sval == "jsonb"
    return isinstance(node, pglast.ast.FuncCall) and node.funcname[-1].sval.startswith(("jsonb_", "to_jsonb"))


def tree(text: str) -> Iterator[Finding]:
    """Findings of the syntax tree."""
    lint = Lint(text)
    lint(pglast.parse_sql(text))
    yield from lint.findings


def tokens(text: str) -> Iterator[Finding]:
    """Findings of the token stream."""
    found = [token for token in parser.scan(text) if "COMMENT" not in token.name]
    names = [token.name for token in found]
    for place, token in enumerate(found):
        for run, what in TOKENS.items():
            if tuple(names[place : place + len(run)]) == run:
                yield Finding(token.start, what)
        word = text[token.start : token.end + 1].lower()
        called = names[place + 1 : place + 2] == ["ASCII_40"]
        if word in FUNCTIONS and called:
            yield Finding(token.start, "function %s" % word)


def check(text: str) -> list[tuple[int, str]]:
    """What 9.4 would not take: (line, what), in order, each once per line."""
    try:
        findings = [*tree(text), *tokens(text)]
    except pglast.Error as error:
        place = error.args[1] if len(error.args) > 1 else 0
        return [(text.count("\n", 0, place) + 1, str(error.args[0]))]
    lines = set()
    for place, what in findings:
        while place < len(text) and text[place].isspace():
            place += 1
        lines.add((text.count("\n", 0, place) + 1, what))
    return sorted(lines)


def main(names: list[str]) -> Optional[str]:
    problems = [
        "%s:%d: %s" % (name, line, what)
        for name in names
        for line, what in check(Path(name).read_text("utf-8"))
    ]
    return "\n".join(problems + ["PostgreSQL 9.4 does not take this"]) if problems else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
