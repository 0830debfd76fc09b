"""The SQL lint refuses what PostgreSQL 9.4 lacks and takes what it has."""

from __future__ import annotations

import pytest

from scripts import lint_sql

TOO_NEW = [
    "select f(a => 1)",
    "insert into t values (1) on conflict do nothing",
    "create table t (a int generated always as identity)",
    "create table t (a int, b int generated always as (a) stored)",
    "create procedure p() language sql as ''",
    "call p()",
    "create table t (a int) partition by list (a)",
    "alter table t enable row level security",
    "create policy p on t using (true)",
    "select 1 from t for update skip locked",
    "alter table t add column if not exists a int",
    "create index if not exists i on t (a)",
    "create extension plpython3u cascade",
    "select jsonb_build_object('a', 1)",
    "select current_setting('a.b', true)",
    "create trigger g before insert on t for each row execute function f()",
    "create or replace aggregate a (int) (sfunc = f, stype = int)",
    "create function f() returns int language sql parallel safe as 'select 1'",
    "create function f() returns int language sql as 'select jsonb_agg(1)'",
    "create function f() returns int language sql return 1",
    "create function f() returns int language plpgsql as 'begin perform f(a => 1); end'",
    "do $$ begin insert into t values (1) on conflict do nothing; end $$",
    "with a as materialized (select 1) select * from a",
    "create view v with (security_invoker = true) as select 1",
    "create server if not exists s foreign data wrapper w",
]

FINE = [
    "select f(a := 1)",
    "create table if not exists t (a serial primary key, b jsonb)",
    "create or replace view v with (security_barrier) as select 1 as a",
    "select count(*) filter (where a > 1) from t, lateral (select 1) as l",
    "create trigger g before insert on t for each row execute procedure f()",
    "select json_build_object('a', 1), current_setting('a.b')",
    "do $$ begin execute 'call p()'; execute 'select jsonb_agg(1)'; end $$",
    "select '=> on conflict', \"skip\" as locked",
    "create function f() returns int language plpython3u as 'return dict(a=1) if x else {} # =>'",
    "select 1 from t for update nowait",
    "grant execute on function f(int) to public",
]


@pytest.mark.parametrize("text", TOO_NEW)
def test_newer_syntax_is_refused(text):
    assert lint_sql.check(text)


@pytest.mark.parametrize("text", FINE)
def test_what_the_old_server_has_is_taken(text):
    assert lint_sql.check(text) == []


def test_the_line_is_named():
    assert lint_sql.check("select 1;\n\n\nselect jsonb_agg(1);\n") == [(4, "function jsonb_agg")]


def test_broken_syntax_is_reported_with_its_line():
    assert lint_sql.check("select 1;\nselect from from;\n")[0][0] == 2
