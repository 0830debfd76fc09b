"""The lints catch every construct that they are there for, and the tree as it stands is clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import lint_python, lint_sql

ROOT = Path(__file__).resolve().parent.parent.parent

# ---- SQL for PostgreSQL 9.4; see also test_lint_sql.py

TOO_NEW = """
select * from pg_stat_progress_vacuum
select 1 from pg_catalog.pg_policies
select relispartition from pg_class
select c.relrowsecurity from pg_class as c
select 'a'::regrole
select 'public'::pg_catalog.regnamespace
select to_jsonb(1)
select jsonb_set(a, '{b}', '1') from t
select a #- '{b}' from t
select a::jsonb || '{}' from t
select jsonb_extract_path(a, 'b') || '{}' from t
select a::jsonb - 'k' from t
select a @? '$.b' from t
select a[1:] from t
select a from t group by grouping sets ((a), ())
select a from t group by rollup (a)
select a from t group by cube (a)
select * from t tablesample system (10)
select a is json from t
select json_object('a': 1)
select * from t fetch first 3 rows with ties
select row_number() over (order by a rows between unbounded preceding and current row exclude ties) from t
alter table t force row level security
alter table t disable row level security
create policy p on t using (true)
drop policy p on t
create role r bypassrls
create table t (like u including identity)
create table p partition of t for values in (1)
alter table t attach partition p for values in (1)
alter table t alter column a add generated always as identity
alter table t alter column a drop expression
create table t (a int generated always as (1) stored)
create table t (a text compression lz4)
create table t (a int) using heap
create or replace trigger g before insert on t for each row execute procedure f()
create trigger g before insert on t for each row execute function f()
create trigger g after insert on t referencing new table as n for each statement execute procedure f()
create aggregate a (int) (sfunc = f, stype = int, parallel = safe)
create or replace aggregate a (int) (sfunc = f, stype = int)
create sequence s as int
create unique index on t (a) nulls not distinct
create index i on t (a) include (b)
create materialized view if not exists m as select 1
create extension e cascade
alter type e rename value 'a' to 'b'
alter function f() depends on extension e
alter function f() parallel safe
drop function f
drop procedure p()
alter table t owner to current_user
copy t from stdin where a > 1
insert into t overriding system value values (1)
insert into t values (1) on conflict do nothing
select 1 from t for update skip locked
select f(a => 1)
select current_setting('a', true)
do $$ begin commit; end $$
do $$ begin perform f(a => 1); end $$
do $$ begin perform current_setting('a.b', true); end $$
""".strip().splitlines()

INSIDE_PLPGSQL = """
x := current_setting('a', true);
x := y::jsonb || '{}';
if exists (select from t group by rollup (a)) then return 1; end if;
perform 'a'::regrole;
for r in select * from t tablesample system (1) loop end loop;
return query select jsonb_agg(1);
insert into t values (1) on conflict do nothing;
execute 'select ' || to_jsonb(x);
commit;
rollback;
call p();
assert true;
""".strip().splitlines()

FINE = """
create user mapping for current_user server s
select a::jsonb -> 'b', a ->> 'b', a #>> '{b}', a @> b from t
select a::text || 'b', 3 - 2, a[1:2] from t
select jsonb_array_elements(a), jsonb_typeof(a), json_agg(b), json_build_object('a', 1) from t
select percentile_cont(0.5) within group (order by a) from t
alter type e add value if not exists 'c'
create schema if not exists s
create view v as select 1 as a with local check option
drop function f(int)
alter table if exists t rename to u
select * from rows from (f(), g()) with ordinality as x
create table t (like u including all)
create table t (a serial primary key, b jsonb not null default '{}')
grant select on t to public
""".strip().splitlines()

FINE_PLPGSQL = """
x := 1;
r.a := (select max(a) from t);
x[1] = 2;
if x >= 1 and y <= 2 then return 1; end if;
execute 'insert into t values (1) on conflict do nothing; select f(a => 1), jsonb_agg(1)';
execute format('select %I from t', x) into y using z;
select a into strict x from t for update;
for i in 1 .. 3 loop continue when i = 2; end loop;
raise exception using errcode = '42501', message = 'no', hint = 'x';
perform set_config('a.b', 'c', true);
get diagnostics x = row_count;
""".strip().splitlines()


def plpgsql(statement):
    return (
        "create function f(y text) returns int language plpgsql as "
        "$f$ declare x text; z int; r record; begin %s return 1; exception when others then raise; end $f$"
    ) % statement


@pytest.mark.parametrize("text", TOO_NEW)
def test_sql_newer_than_the_oldest_server_is_refused(text):
    assert lint_sql.check(text)


@pytest.mark.parametrize("statement", INSIDE_PLPGSQL)
def test_statements_inside_functions_are_read(statement):
    assert lint_sql.check(plpgsql(statement))


@pytest.mark.parametrize("text", FINE + [plpgsql(statement) for statement in FINE_PLPGSQL])
def test_sql_of_the_oldest_server_is_taken(text):
    assert lint_sql.check(text) == []


def test_the_line_is_right_after_letters_beyond_ascii():
    assert lint_sql.check("select 'é…';\n\nselect 'é', jsonb_agg(1);") == [(3, "function jsonb_agg")]


def test_all_sql_of_the_project_is_clean():
    files = sorted([*ROOT.glob("sql/*.sql"), *ROOT.glob("migrations/*.sql")])
    assert files
    assert lint_sql.main([str(file) for file in files]) is None


# ---- Python 3.9

LATER_SYNTAX = [
    "match x:\n    case 1:\n        pass",
    "try:\n    pass\nexcept* ValueError:\n    pass",
    "X = int | None",
    "X = None | str",
    "X = list[int] | dict[str, int]",
    "from typing import Optional\nX = Optional[int] | str",
    "import typing\nX = typing.Any | None",
    "isinstance(x, int | str)",
    "isinstance(x, (A | B, C))",
    "issubclass(x, A | B)",
    "y = typing.cast(A | B, x)",
    "def f(x: int | None): pass",
    "def f(x: A | B): pass",
    "def f() -> A | B: pass",
    "x: A | B = 1",
    "class A:\n    x: int | None = None",
    "from __future__ import annotations\nX = int | None",
    "from __future__ import annotations\nisinstance(x, A | B)",
    "from __future__ import division\ndef f(x: int | None): pass",
    "def f(x):\n    return lambda y: isinstance(y, dict[str, int] | list)",
]

# Told by vermin, which lint.sh runs beside.
LATER_LIBRARY = [
    "zip(a, b, strict=True)",
    "import itertools\nitertools.pairwise(a)",
    "from itertools import pairwise",
    "from dataclasses import dataclass\n@dataclass(slots=True)\nclass A: pass",
    "import dataclasses\n@dataclasses.dataclass(kw_only=True)\nclass A: pass",
    "import tomllib",
    "from typing import Self",
    "from types import UnionType",
    "from datetime import UTC",
    "import sys\nsys.stdlib_module_names",
]

OLD_ENOUGH = [
    "from __future__ import annotations\ndef f(x: int | None = None) -> A | B: pass",
    "from __future__ import annotations\nclass A:\n    x: list[int] | None = None",
    "x = a | b",
    "x = flags | 4",
    "x = {1} | {2}",
    "known = set(a) | names[0] | {None}",
    "d = {**a} | b",
    "with (open(a) as b): pass",
    "if (n := len(a)) > 1: pass",
    "isinstance(x, (int, str))",
    "x: dict[str, int] = {}",
]


@pytest.mark.parametrize("text", LATER_SYNTAX)
def test_syntax_newer_than_the_oldest_python_is_refused(text):
    assert lint_python.check(text)


@pytest.mark.parametrize("text", OLD_ENOUGH)
def test_python_of_the_oldest_version_is_taken(text):
    assert lint_python.check(text) == []


def vermin(*files):
    command = [str(Path(sys.executable).parent / "vermin"), "--target=3.9-", "--violations", "--no-tips"]
    return subprocess.run(
        [*command, "--eval-annotations", "--quiet", *map(str, files)], capture_output=True, text=True
    )


def test_library_names_newer_than_the_oldest_python_are_refused(tmp_path):
    for number, text in enumerate(LATER_LIBRARY):
        file = tmp_path / ("case%d.py" % number)
        file.write_text(text)
    for file in sorted(tmp_path.iterdir()):
        assert vermin(file).returncode, file.read_text()


@pytest.mark.parametrize("where", lint_python.PURE)
@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "import time",
        "import socket",
        "import psycopg",
        "from os import path",
        "from . import links",
        "import tensorflow",
        "from keras import layers",
        "def f():\n    import subprocess",
        "from cerebro_udf import catalog",
        "from cerebro_udf.coordinator.links import pump",
        "from cerebro_udf.segment import state",
        "import importlib",
        "import numpy, pathlib",
        "open('x')",
        "print(1)",
        "exec(x)",
        "__import__('os')",
    ],
)
def test_pure_modules_do_no_input_or_output(where, text):
    assert lint_python.check(text, where)
    assert lint_python.check(text, "coordinator/loop.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "import numpy",
        "import numpy.random",
        "from cerebro_udf import definition",
        "from cerebro_udf.errors import BadData",
        "from cerebro_udf import keras_names as names",
        "from dataclasses import dataclass",
        "from collections import abc",
    ],
)
def test_pure_modules_may_compute(text):
    assert lint_python.check(text, "coordinator/search.py") == []


def test_all_python_of_the_servers_is_clean():
    assert lint_python.main() is None


def test_a_pure_module_that_moved_is_noticed(tmp_path):
    assert "scheduler.py is gone" in lint_python.main(tmp_path)
