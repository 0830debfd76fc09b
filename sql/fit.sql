-- Training: begin a run, go on with one, remove one.

CREATE OR REPLACE FUNCTION cerebro.fit(
    run text
  , source regclass
  , model text
  , label text DEFAULT NULL
  , features text[] DEFAULT '{*}'
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (trial int, metric float8, best_epoch int, params jsonb, state text, error text)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.fit(plpy, GD, run=run, source=source, model=model, label=label, features=features, options=options)
$$;
COMMENT ON FUNCTION cerebro.fit(text, regclass, text, text, text[], jsonb) IS 'Train every configuration of a search over all shards of a table; returns the trials, best first';

CREATE OR REPLACE FUNCTION cerebro.resume(
    run text
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (trial int, metric float8, best_epoch int, params jsonb, state text, error text)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.resume(plpy, GD, run=run, options=options)
$$;
COMMENT ON FUNCTION cerebro.resume(text, jsonb) IS 'Go on with a run from its committed states; options may ask for more epochs, more trials or a wider space, of a run that is done too; returns the trials, best first';

CREATE OR REPLACE FUNCTION cerebro.drop_run(
    run text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.drop_run(plpy, GD, run=run)
$$;
COMMENT ON FUNCTION cerebro.drop_run(text) IS 'Remove a run with its history, ledger and states, at once: a ROLLBACK does not bring it back';

CREATE OR REPLACE FUNCTION cerebro.drop_runs(
    pattern text
  , options jsonb
)
RETURNS TABLE (run text, age interval, bytes bigint)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.drop_runs(plpy, GD, pattern=pattern, options=options)
$$;
COMMENT ON FUNCTION cerebro.drop_runs(text, jsonb) IS 'Remove the caller''s runs of names LIKE pattern beyond those that options keep: the last runs, up to an age or up to bytes; dry_run only shows them. Runs that an alias needs or a session drives stay';
