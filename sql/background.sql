-- Runs without a client: begin one in a session of its own, wait for it, stop it.

CREATE OR REPLACE FUNCTION cerebro.submit(
    run text
  , source regclass
  , model text
  , label text DEFAULT NULL
  , features text[] DEFAULT '{*}'
  , options jsonb DEFAULT '{}'
)
RETURNS text
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.submit(plpy, GD, run=run, source=source, model=model, label=label, features=features, options=options)
$$;
COMMENT ON FUNCTION cerebro.submit(text, regclass, text, text, text[], jsonb) IS 'Train as fit does, in a session of its own on the server; returns the run''s name once that session drives it';

CREATE OR REPLACE FUNCTION cerebro.submit(
    run text
  , options jsonb DEFAULT '{}'
)
RETURNS text
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.submit_again(plpy, GD, run=run, options=options)
$$;
COMMENT ON FUNCTION cerebro.submit(text, jsonb) IS 'Go on with a run as resume does, with the same options, in a session of its own on the server; returns the run''s name';

CREATE OR REPLACE FUNCTION cerebro.wait(
    run text
  , timeout interval DEFAULT NULL
)
RETURNS TABLE (trial int, metric float8, best_epoch int, params jsonb, state text, error text)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.wait(plpy, GD, run=run, timeout=timeout)
$$;
COMMENT ON FUNCTION cerebro.wait(text, interval) IS 'Wait until a run is done, whoever drives it; returns the trials, best first, or raises what the run ended with';

CREATE OR REPLACE FUNCTION cerebro.cancel(
    run text
)
RETURNS boolean
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.cancel(plpy, GD, run=run)
$$;
COMMENT ON FUNCTION cerebro.cancel(text) IS 'Stop a run, whoever drives it, and wait until it has stopped; false when nobody drives it. cerebro.resume goes on with it';

CREATE OR REPLACE FUNCTION cerebro_internal.detached_fit(
    run text
  , source text
  , model text
  , label text
  , features text[]
  , options jsonb
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.detached(plpy, GD, run, source, model, label, features, options)
$$;
COMMENT ON FUNCTION cerebro_internal.detached_fit(text, text, text, text, text[], jsonb) IS 'What the session that submit opens does; it notices no client that is gone';

CREATE OR REPLACE FUNCTION cerebro_internal.detached_resume(
    run text
  , options jsonb
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.detached_resume(plpy, GD, run, options)
$$;
COMMENT ON FUNCTION cerebro_internal.detached_resume(text, jsonb) IS 'What the session that submit opens does to go on with a run';
