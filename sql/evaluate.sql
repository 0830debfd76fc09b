-- What a trained model is worth, on any table with its columns.

CREATE OR REPLACE FUNCTION cerebro.evaluate(
    run text
  , source regclass
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (metric text, value float8)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.evaluate(plpy, GD, run=run, source=source, options=options)
$$;
COMMENT ON FUNCTION cerebro.evaluate(text, regclass, jsonb) IS 'The metrics of a run''s best trial over all rows of a table, exact over all its shards';
