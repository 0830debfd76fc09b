-- Who may use what another role owns. Ordinary statements of the caller: they hold once the caller's transaction commits.

CREATE OR REPLACE FUNCTION cerebro.grant_run(
    run text
  , role text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.grant(plpy, GD, "grant_run", name=run, role=role)
$$;
COMMENT ON FUNCTION cerebro.grant_run(text, text) IS 'Let a role (public: all) use a run, or whatever an alias stands for: look at it, predict, evaluate, export, begin from it; not resume, cancel or drop';

CREATE OR REPLACE FUNCTION cerebro.revoke_run(
    run text
  , role text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.grant(plpy, GD, "revoke_run", name=run, role=role)
$$;
COMMENT ON FUNCTION cerebro.revoke_run(text, text) IS 'Take the use of a run, or of an alias, back from a role';

CREATE OR REPLACE FUNCTION cerebro.grant_model(
    model text
  , role text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.grant(plpy, GD, "grant_model", name=model, role=role)
$$;
COMMENT ON FUNCTION cerebro.grant_model(text, text) IS 'Let a role (public: all) train a model, and build others upon it';

CREATE OR REPLACE FUNCTION cerebro.revoke_model(
    model text
  , role text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.grant(plpy, GD, "revoke_model", name=model, role=role)
$$;
COMMENT ON FUNCTION cerebro.revoke_model(text, text) IS 'Take the use of a model back from a role; its runs keep the copies that they began with';
