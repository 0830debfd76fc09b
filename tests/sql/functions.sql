-- What \df+ shows of the functions that users call.
select p.proname || '(' || pg_get_function_arguments(p.oid) || ')' as function
     , pg_get_function_result(p.oid) as result
     , case p.provolatile when 'v' then 'volatile' when 's' then 'stable' else 'immutable' end as volatility
     , p.procost as cost
     , obj_description(p.oid, 'pg_proc') as description
from pg_proc p
where p.pronamespace = 'cerebro'::regnamespace
order by 1
\gx
-- What \d+ shows of the views.
select c.relname as view
     , (select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
        from pg_attribute a where a.attrelid = c.oid and a.attnum > 0) as columns
     , obj_description(c.oid, 'pg_class') as description
from pg_class c
where c.relnamespace = 'cerebro'::regnamespace and c.relkind = 'v'
order by 1
\gx
-- Nothing lacks a comment.
select n.nspname, p.proname
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname in ('cerebro', 'cerebro_internal') and obj_description(p.oid, 'pg_proc') is null;
select c.oid::regclass
from pg_class c
where c.relnamespace in ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace) and c.relkind in ('r', 'v', 'm')
  and obj_description(c.oid, 'pg_class') is null;
-- Nor is anything of the private tables granted.
select c.oid::regclass, c.relacl
from pg_class c
where c.relnamespace = 'cerebro_internal'::regnamespace and c.relkind in ('r', 'S') and c.relacl is not null;
