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
return entry.judge(plpy, GD, "evaluate", run=run, source=source, options=options)
$$;
COMMENT ON FUNCTION cerebro.evaluate(text, regclass, jsonb) IS 'The metrics of a run''s best trial over all rows of a table, exact over all its shards';

CREATE OR REPLACE FUNCTION cerebro.confusion_matrix(
    run text
  , source regclass
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (actual text, predicted text, rows bigint)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.judge(plpy, GD, "confusion_matrix", run=run, source=source, options=options)
$$;
COMMENT ON FUNCTION cerebro.confusion_matrix(text, regclass, jsonb) IS 'How many rows of each class a run''s best trial takes for which; pairs that occur';

CREATE OR REPLACE FUNCTION cerebro.class_report(
    run text
  , source regclass
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (
    class text, "precision" float8, recall float8, f1 float8, rows bigint, auc float8, threshold float8, threshold_f1 float8
)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.judge(plpy, GD, "class_report", run=run, source=source, options=options)
$$;
COMMENT ON FUNCTION cerebro.class_report(text, regclass, jsonb) IS 'Each class against the rest; threshold is the probability from which on F1 is best';

CREATE OR REPLACE FUNCTION cerebro.residuals(
    run text
  , source regclass
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (quantile float8, residual float8, absolute float8)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.judge(plpy, GD, "residuals", run=run, source=source, options=options)
$$;
COMMENT ON FUNCTION cerebro.residuals(text, regclass, jsonb) IS 'Quantiles of label minus prediction, and of its absolute value, over all rows of a table';

CREATE OR REPLACE FUNCTION cerebro.importance(
    run text
  , source regclass
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (feature text, metric text, importance float8, deviation float8)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.judge(plpy, GD, "importance", run=run, source=source, options=options)
$$;
COMMENT ON FUNCTION cerebro.importance(text, regclass, jsonb) IS 'How much worse a metric becomes when a feature''s values are permuted among the rows of each shard';

CREATE OR REPLACE FUNCTION cerebro.explain_fit(
    source regclass
  , model text
  , label text DEFAULT NULL
  , features text[] DEFAULT '{*}'
  , options jsonb DEFAULT '{}'
)
RETURNS TABLE (property text, value float8, unit text, detail text)
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.explain_fit(plpy, GD, source=source, model=model, label=label, features=features, options=options)
$$;
COMMENT ON FUNCTION cerebro.explain_fit(regclass, text, text, text[], jsonb) IS 'What a call of fit would do, the memory it takes and how long, by a short pilot on the segments; begins no run';
