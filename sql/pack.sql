-- Tables encoded once for many runs.

CREATE OR REPLACE FUNCTION cerebro_internal.pack(
    source regclass
  , target text
  , label text
  , features text[]
  , options jsonb
  , schema name
)
RETURNS bigint
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.pack(plpy, GD, source=source, target=target, label=label, features=features, options=options, schema=schema)
$$;
COMMENT ON FUNCTION cerebro_internal.pack(regclass, text, text, text[], jsonb, name) IS 'Pack a table; schema is where the caller makes tables whose name has none';

CREATE OR REPLACE FUNCTION cerebro.pack(
    source regclass
  , target text
  , label text
  , features text[] DEFAULT '{*}'
  , options jsonb DEFAULT '{}'
)
RETURNS bigint
LANGUAGE sql
AS $$
SELECT cerebro_internal.pack($1, $2, $3, $4, $5, pg_catalog.current_schema())
$$;
COMMENT ON FUNCTION cerebro.pack(regclass, text, text, text[], jsonb) IS 'Encode a table once for many runs, into blocks on its segments, which fit takes as a source; returns the number of rows';
