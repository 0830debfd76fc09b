-- One row at a time, in any query. VOLATILE keeps planners from calling it while they plan; the cost makes them filter first.
-- PARALLEL UNSAFE, the default, keeps TensorFlow from starting in every parallel worker. RESTRICTED would not do: PL/Python
-- runs SQL in subtransactions, and while workers run not even the leader may begin one.

CREATE OR REPLACE FUNCTION cerebro_internal.predict(
    run text
  , "row" text
  , wanted text
  , trial int
  , output text
)
RETURNS text
LANGUAGE plpython3u VOLATILE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.predict(plpy, GD, run=run, row=row, wanted=wanted, trial=trial, output=output)
$$;
COMMENT ON FUNCTION cerebro_internal.predict(text, text, text, int, text) IS 'Predict one row given as JSON; wanted is value, class, probabilities or all';

CREATE OR REPLACE FUNCTION cerebro.predict(
    run text
  , "row" anyelement
  , trial int DEFAULT NULL
)
RETURNS jsonb
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, pg_catalog.to_json($2)::pg_catalog.text, 'all', $3, NULL)::pg_catalog.jsonb
$$;
COMMENT ON FUNCTION cerebro.predict(text, anyelement, int) IS 'Everything about one row: {"value": ...} or {"class": ..., "probabilities": {...}}; of several outputs by their names';

CREATE OR REPLACE FUNCTION cerebro.predict(
    run text
  , "row" text
  , trial int DEFAULT NULL
)
RETURNS jsonb
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, $2, 'all', $3, NULL)::pg_catalog.jsonb
$$;
COMMENT ON FUNCTION cerebro.predict(text, text, int) IS 'Everything about one row: {"value": ...} or {"class": ..., "probabilities": {...}}; of several outputs by their names';

CREATE OR REPLACE FUNCTION cerebro.predict_value(
    run text
  , "row" anyelement
  , trial int DEFAULT NULL
  , output text DEFAULT NULL
)
RETURNS float8
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, pg_catalog.to_json($2)::pg_catalog.text, 'value', $3, $4)::pg_catalog.float8
$$;
COMMENT ON FUNCTION cerebro.predict_value(text, anyelement, int, text) IS 'The predicted number of one row (regression), of the output of that name where there are several';

CREATE OR REPLACE FUNCTION cerebro.predict_value(
    run text
  , "row" text
  , trial int DEFAULT NULL
  , output text DEFAULT NULL
)
RETURNS float8
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, $2, 'value', $3, $4)::pg_catalog.float8
$$;
COMMENT ON FUNCTION cerebro.predict_value(text, text, int, text) IS 'The predicted number of one row (regression), of the output of that name where there are several';

CREATE OR REPLACE FUNCTION cerebro.predict_class(
    run text
  , "row" anyelement
  , trial int DEFAULT NULL
  , output text DEFAULT NULL
)
RETURNS text
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, pg_catalog.to_json($2)::pg_catalog.text, 'class', $3, $4)
$$;
COMMENT ON FUNCTION cerebro.predict_class(text, anyelement, int, text) IS 'The most probable class of one row, as the label column spells it; or what applies to it, as text that casts to the label''s type';

CREATE OR REPLACE FUNCTION cerebro.predict_class(
    run text
  , "row" text
  , trial int DEFAULT NULL
  , output text DEFAULT NULL
)
RETURNS text
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, $2, 'class', $3, $4)
$$;
COMMENT ON FUNCTION cerebro.predict_class(text, text, int, text) IS 'The most probable class of one row, as the label column spells it; or what applies to it, as text that casts to the label''s type';

CREATE OR REPLACE FUNCTION cerebro.predict_probabilities(
    run text
  , "row" anyelement
  , trial int DEFAULT NULL
  , output text DEFAULT NULL
)
RETURNS jsonb
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, pg_catalog.to_json($2)::pg_catalog.text, 'probabilities', $3, $4)::pg_catalog.jsonb
$$;
COMMENT ON FUNCTION cerebro.predict_probabilities(text, anyelement, int, text) IS 'The probability of each class, or of each that may apply, for one row';

CREATE OR REPLACE FUNCTION cerebro.predict_probabilities(
    run text
  , "row" text
  , trial int DEFAULT NULL
  , output text DEFAULT NULL
)
RETURNS jsonb
LANGUAGE sql VOLATILE COST 10000
AS $$
SELECT cerebro_internal.predict($1, $2, 'probabilities', $3, $4)::pg_catalog.jsonb
$$;
COMMENT ON FUNCTION cerebro.predict_probabilities(text, text, int, text) IS 'The probability of each class, or of each that may apply, for one row';
