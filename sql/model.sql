-- Architectures.

CREATE OR REPLACE FUNCTION cerebro.create_model(
    name text
  , definition jsonb
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.create_model(plpy, GD, name=name, definition=definition)
$$;
COMMENT ON FUNCTION cerebro.create_model(text, jsonb) IS 'Register an architecture: the short form {"layers": [...]} or Keras JSON; "$name" is a placeholder that a search binds';

CREATE OR REPLACE FUNCTION cerebro.import_model(
    name text
  , archive bytea
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.import_model(plpy, GD, name=name, archive=archive)
$$;
COMMENT ON FUNCTION cerebro.import_model(text, bytea) IS 'Register the model of a .keras archive with its weights, from which runs of it begin';

CREATE OR REPLACE FUNCTION cerebro.drop_model(
    name text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.drop_model(plpy, GD, name=name)
$$;
COMMENT ON FUNCTION cerebro.drop_model(text) IS 'Remove an architecture; runs keep the copy that they began with';

CREATE OR REPLACE FUNCTION cerebro.export_model(
    run text
  , trial int DEFAULT NULL
)
RETURNS bytea
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.export_model(plpy, GD, run=run, trial=trial)
$$;
COMMENT ON FUNCTION cerebro.export_model(text, int) IS 'A trained model as a .keras archive that plain Keras opens: raw columns in, what predict gives out';
