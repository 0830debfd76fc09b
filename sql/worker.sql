-- What a coordinator asks of a segment. Each runs as the role that authenticated, and reads what that role may read.

-- byteasend copies whatever it is given: here an array, as the server holds it. See segment/arrays.py.
CREATE OR REPLACE FUNCTION cerebro_internal.array_bytes(
    "values" anyarray
)
RETURNS bytea
LANGUAGE internal IMMUTABLE STRICT
AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal.array_bytes(anyarray) IS 'The bytes of an array as the server holds it, several times as fast as array_send';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_hello()
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "hello")
$$;
COMMENT ON FUNCTION cerebro_internal.worker_hello() IS 'Versions, cores and memory of this node; starts nothing';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_claim(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "claim", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_claim(jsonb) IS 'Count among the workers of this host until released; tells what others leave of it';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_start(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "start", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_start(jsonb) IS 'Import TensorFlow with a number of threads';

-- Nothing that is read may change a table: a view's functions, an expression's.
CREATE OR REPLACE FUNCTION cerebro_internal.worker_load(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
SET transaction_read_only = on
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "load", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_load(jsonb) IS 'Read this segment''s shard and report its statistics';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_feed(
    spec jsonb
  , rows text
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
SET transaction_read_only = on
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "feed", spec, rows)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_feed(jsonb, text) IS 'Take rows of this segment''s shard, JSON as its query gives it; NULL ends them';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_rank(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "rank", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_rank(jsonb) IS 'Count rows of the loaded shard, to find which are held out';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_split(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "split", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_split(jsonb) IS 'Divide the loaded shard into rows to train on and rows held out';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_encode(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "encode", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_encode(jsonb) IS 'Turn the loaded shard into arrays with the merged statistics';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_release()
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "release")
$$;
COMMENT ON FUNCTION cerebro_internal.worker_release() IS 'Drop the shard and buffered states; programs stay warm';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_put(
    part int
  , data bytea
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "put", part, data)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_put(int, bytea) IS 'Receive one part of a state that is too long for one message';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_get(
    part int
)
RETURNS bytea
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "get", part)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_get(int) IS 'Send one part of the last visit''s state';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_summarize(
    spec jsonb
  , accumulators bytea[]
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "summarize", spec, accumulators)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_summarize(jsonb, bytea[]) IS 'Metric results of summed accumulators';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_init(
    spec jsonb
)
RETURNS TABLE (report jsonb, state bytea)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "init", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_init(jsonb) IS 'Make a trial''s first state';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_visit(
    spec jsonb
  , state bytea
)
RETURNS TABLE (report jsonb, state bytea)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "visit", spec, state)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_visit(jsonb, bytea) IS 'Train or validate trials of one program on this segment''s shard';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_judge(
    spec jsonb
  , blobs bytea[]
)
RETURNS TABLE (report jsonb, state bytea)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "judge", spec, blobs)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_judge(jsonb, bytea[]) IS 'One step of judging a trained model on the loaded shard';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_stage(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "stage", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_stage(jsonb) IS 'Make, index, list or drop tables of hidden names on this segment, which become parts of a call''s target';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_pack_table(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "pack_table", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_pack_table(jsonb) IS 'Write the loaded shard as blocks';

CREATE OR REPLACE FUNCTION cerebro_internal.worker_packed(
    spec jsonb
)
RETURNS jsonb
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
SET transaction_read_only = on
AS $$
from cerebro_udf import entry
return entry.worker(plpy, GD, "pack_table", spec)
$$;
COMMENT ON FUNCTION cerebro_internal.worker_packed(jsonb) IS 'Give the headers of packed tables, or say what relations look like';
