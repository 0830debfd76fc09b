-- What users look at.

CREATE OR REPLACE VIEW cerebro.model WITH (security_barrier) AS
SELECT m.name AS model, m.owner, m.definition, m.created_at
     , (SELECT pg_catalog.sum(pg_catalog.octet_length(w.data))
        FROM cerebro_internal.usable_model_weights w WHERE w.model = m.id) AS weights_bytes
     , array(SELECT g.role FROM cerebro_internal.model_grant g WHERE g.model = m.id ORDER BY 1) AS granted_to
FROM cerebro_internal.usable_model m;
COMMENT ON VIEW cerebro.model IS 'Registered architectures, and how large the weights are that came with them';
GRANT SELECT ON cerebro.model TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.run WITH (security_barrier) AS
SELECT r.name AS run, r.source, r.model
     , CASE WHEN r.state IN ('loading', 'running') AND d.pid IS NULL THEN cerebro_internal.run_standing(r.id) ELSE r.state END AS state
     , r.owner, r.label, r.features, r.options, r.rank_metric, r.started_at, r.finished_at, r.error, r.details, d.pid
     , r.plan AS shards, r.encoders
     , array(SELECT g.role FROM cerebro_internal.run_grant g WHERE g.run = r.id ORDER BY 1) AS granted_to
     , pg_catalog.clock_timestamp() - coalesce(r.finished_at, r.started_at) AS age
     , cerebro_internal.run_bytes(r.id) AS bytes
FROM cerebro_internal.usable_run r
LEFT JOIN LATERAL (SELECT cerebro_internal.driver_of(r.id) AS pid) d ON r.state IN ('loading', 'running');
COMMENT ON VIEW cerebro.run IS 'Calls of fit; state is loading, running, done, failed, cancelled or interrupted (nobody drives it: resume it); age is since it ended, bytes are those of its states and first weights';
GRANT SELECT ON cerebro.run TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.trial WITH (security_barrier) AS
SELECT r.name AS run, t.trial, t.params, t.state, t.metric, t.best_epoch, t.error, t.stopped, r.owner
FROM cerebro_internal.usable_run r
JOIN cerebro_internal.usable_trial t ON t.run = r.id;
COMMENT ON VIEW cerebro.trial IS 'Configurations of each run; metric is the run''s rank_metric at the trial''s best epoch; stopped says why one ended before its last epoch';
GRANT SELECT ON cerebro.trial TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.epoch WITH (security_barrier) AS
SELECT r.name AS run, e.trial, e.epoch, e.metrics, e.learning_rate, e.seconds, r.owner
FROM cerebro_internal.usable_run r
JOIN cerebro_internal.usable_epoch e ON e.run = r.id;
COMMENT ON VIEW cerebro.epoch IS 'The history: metrics after each epoch of each trial; NaN and infinite metrics are null';
GRANT SELECT ON cerebro.epoch TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.visit WITH (security_barrier) AS
SELECT r.name AS run, v.trial, v.epoch, v.phase, v.segment, v.shard, v."position", v.attempt, v.state
     , v.started_at, v.finished_at, v.rows, v.batches, v.train_seconds, v.hop_seconds, v.details, r.owner
FROM cerebro_internal.usable_run r
JOIN cerebro_internal.usable_visit v ON v.run = r.id;
COMMENT ON VIEW cerebro.visit IS 'The ledger: who was trained or validated where and when; position is the order within a trial''s epoch';
GRANT SELECT ON cerebro.visit TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.progress WITH (security_barrier) AS
SELECT r.name AS run, s.segment, s.phase, s.trial, s.epoch, s.rows_done, s.rows_total
     , p.visits_done, p.visits_total, pg_catalog.round(p.eta_seconds) * interval '1 second' AS eta, p.updated_at, d.pid, r.owner
FROM cerebro_internal.usable_run r
JOIN cerebro_internal.usable_progress p ON p.run = r.id
CROSS JOIN LATERAL (SELECT cerebro_internal.driver_of(r.id) AS pid) d
CROSS JOIN LATERAL unnest(p.segment, p.phase, p.trial, p.epoch, p.rows_done, p.rows_total)
    AS s (segment, phase, trial, epoch, rows_done, rows_total)
WHERE r.state IN ('loading', 'running') AND d.pid IS NOT NULL;
COMMENT ON VIEW cerebro.progress IS 'What each segment of each running run is doing, at most a second old';
GRANT SELECT ON cerebro.progress TO PUBLIC;
