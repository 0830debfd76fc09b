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

-- Procedures, where there are such: a function holds a snapshot for as long as it goes, and with it every dead row of the server.
-- What they call pins its own search_path; a SET clause here would keep them from committing, and links pin the session's.
DO $do$
DECLARE
    kind text := 'FUNCTION';
    clauses text := 'RETURNS void LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp';
BEGIN
    IF pg_catalog.current_setting('server_version_num')::int >= 110000 THEN
        kind := 'PROCEDURE';
        clauses := 'LANGUAGE plpython3u';
    END IF;
    EXECUTE pg_catalog.format($sql$
CREATE OR REPLACE %1$s cerebro_internal.detached_fit(run text, source text, model text, label text, features text[], options jsonb)
%2$s AS $$
from cerebro_udf import entry
entry.detached_fit(plpy, GD, run=run, source=source, model=model, label=label, features=features, options=options)
$$;
COMMENT ON %1$s cerebro_internal.detached_fit(text, text, text, text, text[], jsonb) IS 'What the session that submit opens does; it notices no client that is gone'
$sql$, kind, clauses);
    EXECUTE pg_catalog.format($sql$
CREATE OR REPLACE %1$s cerebro_internal.detached_resume(run text, options jsonb)
%2$s AS $$
from cerebro_udf import entry
entry.detached_resume(plpy, GD, run=run, options=options)
$$;
COMMENT ON %1$s cerebro_internal.detached_resume(text, jsonb) IS 'What the session that submit opens does to go on with a run'
$sql$, kind, clauses);
END
$do$;
