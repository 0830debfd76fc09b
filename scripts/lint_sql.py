"""Refuse SQL that PostgreSQL 9.4 (Greenplum 6) does not parse: deny-lists over syntax tree and tokens.

    python scripts/lint_sql.py FILE...

Newer syntax belongs into `DO` blocks that EXECUTE a string on servers new enough: strings are not read.
Bodies of SQL functions are checked like statements, those of PL/pgSQL (and DO blocks) by their tokens.
"""

from __future__ import annotations

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
    " range_agg pg_current_xact_id pg_current_logfile has_parameter_privilege"
    " pg_control_system pg_safe_snapshot_blocking_pids".split()
)

# Runs of keywords, as the scanner names them.
TOKENS = {
    ("EQUALS_GREATER",): "named arguments are written := there",
    ("ON", "CONFLICT"): "ON CONFLICT (9.5)",
    ("EXECUTE", "FUNCTION"): "EXECUTE FUNCTION (11): EXECUTE PROCEDURE there",
    ("SKIP", "LOCKED"): "SKIP LOCKED (9.5)",
    ("AS", "IDENTITY_P"): "IDENTITY columns (10)",
    ("ADD_P", "COLUMN", "IF_P", "NOT", "EXISTS"): "ADD COLUMN IF NOT EXISTS (9.6)",
    ("INDEX", "IF_P", "NOT", "EXISTS"): "CREATE INDEX IF NOT EXISTS (9.5)",
    ("SEQUENCE", "IF_P", "NOT", "EXISTS"): "CREATE SEQUENCE IF NOT EXISTS (9.5)",
    ("SERVER", "IF_P", "NOT", "EXISTS"): "CREATE SERVER IF NOT EXISTS (10)",
    ("MAPPING", "IF_P", "NOT", "EXISTS"): "CREATE USER MAPPING IF NOT EXISTS (10)",
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
}

NEW_CONSTRAINTS = {
    enums.ConstrType.CONSTR_IDENTITY: "IDENTITY columns (10)",
    enums.ConstrType.CONSTR_GENERATED: "generated columns (12)",
}

NEW_ALTERATIONS = {
    enums.AlterTableType.AT_EnableRowSecurity: "row-level security (9.5)",
    enums.AlterTableType.AT_ForceRowSecurity: "row-level security (9.5)",
    enums.AlterTableType.AT_SetLogged: "SET LOGGED (9.5)",
    enums.AlterTableType.AT_SetUnLogged: "SET UNLOGGED (9.5)",
}


class Finding(NamedTuple):
    """Something that 9.4 would not take; `place` counts bytes from the text's start."""

    place: int
    what: str


class Lint(Visitor):
    """Collects findings from one text's syntax tree."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.place = 0

    def add(self, what: str) -> None:
        self.findings.append(Finding(self.place, what))

    def visit(self, ancestors, node) -> None:
        what = NODES.get(type(node).__name__)
        if what:
            self.add(what)

    def visit_RawStmt(self, ancestors, node) -> None:
        self.place = node.stmt_location or 0

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
        if language in ("sql", "plpgsql"):
            self.findings += [Finding(self.place, what) for _, what in tokens(text)]

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

    def visit_CreateTrigStmt(self, ancestors, node) -> None:
        if node.replace:
            self.add("CREATE OR REPLACE TRIGGER (14)")

    def visit_ViewStmt(self, ancestors, node) -> None:
        if any(option.defname == "security_invoker" for option in node.options or ()):
            self.add("security_invoker (15)")

    def visit_WindowDef(self, ancestors, node) -> None:
        if node.frameOptions & (enums.FRAMEOPTION_GROUPS | enums.FRAMEOPTION_EXCLUSION):
            self.add("GROUPS or EXCLUDE in a window frame (11)")

    def visit_GrantStmt(self, ancestors, node) -> None:
        if node.objtype in (enums.ObjectType.OBJECT_PROCEDURE, enums.ObjectType.OBJECT_ROUTINE):
            self.add("ON PROCEDURE or ROUTINE (11)")

    def visit_CommentStmt(self, ancestors, node) -> None:
        if node.objtype in (enums.ObjectType.OBJECT_PROCEDURE, enums.ObjectType.OBJECT_ROUTINE):
            self.add("ON PROCEDURE or ROUTINE (11)")


def tree(text: str) -> Iterator[Finding]:
    """Findings of the syntax tree."""
    lint = Lint()
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
