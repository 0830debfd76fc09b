-- What a role may see: what it owns, or what a role owns of which it is a member.

CREATE OR REPLACE VIEW cerebro_internal.visible_run WITH (security_barrier) AS
SELECT r.*
     , CASE WHEN r.state IN ('loading', 'running') AND l.pid IS NULL THEN 'interrupted' ELSE r.state END AS shown_state
     , l.pid
FROM cerebro_internal.run r
JOIN pg_catalog.pg_roles o ON o.rolname = r.owner
LEFT JOIN pg_catalog.pg_locks l
    ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid = 1128616514 AND l.objid = r.id::oid
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
WHERE pg_catalog.pg_has_role(o.oid, 'MEMBER');
COMMENT ON VIEW cerebro_internal.visible_run IS 'Runs of the reader; a run that nobody drives any more shows as interrupted';
GRANT SELECT ON cerebro_internal.visible_run TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_model WITH (security_barrier) AS
SELECT m.*
FROM cerebro_internal.model m
JOIN pg_catalog.pg_roles o ON o.rolname = m.owner
WHERE pg_catalog.pg_has_role(o.oid, 'MEMBER');
COMMENT ON VIEW cerebro_internal.visible_model IS 'Models of the reader';
GRANT SELECT ON cerebro_internal.visible_model TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_state WITH (security_barrier) AS
SELECT s.*
FROM cerebro_internal.state s
WHERE s.run IN (SELECT r.id FROM cerebro_internal.visible_run r);
COMMENT ON VIEW cerebro_internal.visible_state IS 'States of the reader''s runs';
GRANT SELECT ON cerebro_internal.visible_state TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_trial WITH (security_barrier) AS
SELECT t.*
FROM cerebro_internal.trial t
WHERE t.run IN (SELECT r.id FROM cerebro_internal.visible_run r);
COMMENT ON VIEW cerebro_internal.visible_trial IS 'Trials of the reader''s runs';
GRANT SELECT ON cerebro_internal.visible_trial TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_visit WITH (security_barrier) AS
SELECT v.*
FROM cerebro_internal.visit v
WHERE v.run IN (SELECT r.id FROM cerebro_internal.visible_run r);
COMMENT ON VIEW cerebro_internal.visible_visit IS 'The ledger of the reader''s runs';
GRANT SELECT ON cerebro_internal.visible_visit TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.model AS
SELECT m.name AS model, m.owner, m.definition, m.created_at
FROM cerebro_internal.visible_model m;
COMMENT ON VIEW cerebro.model IS 'Registered architectures';
GRANT SELECT ON cerebro.model TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.run AS
SELECT r.name AS run, r.source, r.model, r.shown_state AS state, r.owner, r.label, r.features, r.options
     , r.rank_metric, r.started_at, r.finished_at, r.error, r.pid, r.plan AS shards, r.encoders
FROM cerebro_internal.visible_run r;
COMMENT ON VIEW cerebro.run IS 'Calls of fit; state is loading, running, done, failed, cancelled or interrupted (nobody drives it: resume it)';
GRANT SELECT ON cerebro.run TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.trial AS
SELECT r.name AS run, t.trial, t.params, t.state, t.metric, t.best_epoch, t.error, r.owner
FROM cerebro_internal.visible_run r
JOIN cerebro_internal.visible_trial t ON t.run = r.id;
COMMENT ON VIEW cerebro.trial IS 'Configurations of each run; metric is the run''s rank_metric at the trial''s best epoch';
GRANT SELECT ON cerebro.trial TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.epoch WITH (security_barrier) AS
SELECT r.name AS run, e.trial, e.epoch, e.metrics, e.learning_rate, e.seconds, r.owner
FROM cerebro_internal.visible_run r
JOIN cerebro_internal.epoch e ON e.run = r.id;
COMMENT ON VIEW cerebro.epoch IS 'The history: metrics after each epoch of each trial; NaN and infinite metrics are null';
GRANT SELECT ON cerebro.epoch TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.visit AS
SELECT r.name AS run, v.trial, v.epoch, v.phase, v.segment, v.shard, v."position", v.attempt, v.state
     , v.started_at, v.finished_at, v.rows, v.batches, v.train_seconds, v.hop_seconds, v.details, r.owner
FROM cerebro_internal.visible_run r
JOIN cerebro_internal.visible_visit v ON v.run = r.id;
COMMENT ON VIEW cerebro.visit IS 'The ledger: who was trained or validated where and when; position is the order within a trial''s epoch';
GRANT SELECT ON cerebro.visit TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.progress WITH (security_barrier) AS
SELECT r.name AS run
     , (s.value ->> 'segment')::text AS segment
     , (s.value ->> 'phase')::text AS phase
     , (s.value ->> 'trial')::int AS trial
     , (s.value ->> 'epoch')::int AS epoch
     , (s.value ->> 'rows_done')::bigint AS rows_done
     , (s.value ->> 'rows_total')::bigint AS rows_total
     , (p.details ->> 'visits_done')::int AS visits_done
     , (p.details ->> 'visits_total')::int AS visits_total
     , (p.details ->> 'eta_seconds')::float8 * interval '1 second' AS eta
     , p.updated_at
     , r.pid
     , r.owner
FROM cerebro_internal.visible_run r
JOIN cerebro_internal.progress p ON p.run = r.id
CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(p.details -> 'segments') s
WHERE r.shown_state IN ('loading', 'running');
COMMENT ON VIEW cerebro.progress IS 'What each segment of each running run is doing, at most a second old';
GRANT SELECT ON cerebro.progress TO PUBLIC;
