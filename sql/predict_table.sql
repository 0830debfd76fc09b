-- Whole tables predicted where their rows lie.

CREATE OR REPLACE FUNCTION cerebro_internal.predict_table(
    run text
  , source regclass
  , target text
  , key text[]
  , options jsonb
  , schema name
)
RETURNS bigint
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.predict_table(plpy, GD, run=run, source=source, target=target, key=key, options=options, schema=schema)
$$;
COMMENT ON FUNCTION cerebro_internal.predict_table(text, regclass, text, text[], jsonb, name) IS 'Predict a table; schema is where the caller makes tables whose name has none';

CREATE OR REPLACE FUNCTION cerebro.predict_table(
    run text
  , source regclass
  , target text
  , key text[]
  , options jsonb DEFAULT '{}'
)
RETURNS bigint
LANGUAGE sql
AS $$
SELECT cerebro_internal.predict_table($1, $2, $3, $4, $5, pg_catalog.current_schema())
$$;
COMMENT ON FUNCTION cerebro.predict_table(text, regclass, text, text[], jsonb) IS 'Predict every row of a table, on its segments, into a table sharded alike; returns the number of rows written';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_predict_table(
    spec jsonb
  , state bytea
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "predict_table", spec, state)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_predict_table(jsonb, bytea) IS 'Fill tables of predictions on this segment';
