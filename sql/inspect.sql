-- Where a table lies, and whether every node is fit to train.

CREATE OR REPLACE FUNCTION cerebro.segments(
    source regclass
)
RETURNS TABLE (segment text, shard int, address text, relations text[], rows_estimate bigint, bytes bigint)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.segments(plpy, GD, source=source)
$$;
COMMENT ON FUNCTION cerebro.segments(regclass) IS 'The shards of a table and their sizes';

CREATE OR REPLACE FUNCTION cerebro.doctor()
RETURNS TABLE (node text, item text, ok boolean, value text, repair text)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.doctor(plpy, GD)
$$;
COMMENT ON FUNCTION cerebro.doctor() IS 'Check every node that this role could train on; repair is the command that mends what is not ok';
