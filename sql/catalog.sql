-- What a role may see and write: what it owns, or what a role owns of which it is a member.
-- visible_* are the only way to the catalog's tables; they go by current_user, whoever the session is.

CREATE OR REPLACE VIEW cerebro_internal.visible_model WITH (security_barrier) AS
SELECT m.* FROM cerebro_internal.model m
WHERE EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles o WHERE o.rolname = m.owner AND pg_catalog.pg_has_role(o.oid, 'MEMBER'))
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_model IS 'Models of the reader';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_model TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_run WITH (security_barrier) AS
SELECT r.* FROM cerebro_internal.run r
WHERE EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles o WHERE o.rolname = r.owner AND pg_catalog.pg_has_role(o.oid, 'MEMBER'))
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_run IS 'Runs of the reader';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_run TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_trial WITH (security_barrier) AS
SELECT t.* FROM cerebro_internal.trial t
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = t.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_trial IS 'Trials of the reader''s runs';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_trial TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_epoch WITH (security_barrier) AS
SELECT e.* FROM cerebro_internal.epoch e
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = e.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_epoch IS 'Histories of the reader''s runs';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_epoch TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_visit WITH (security_barrier) AS
SELECT v.* FROM cerebro_internal.visit v
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = v.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_visit IS 'Ledgers of the reader''s runs';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_visit TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_state WITH (security_barrier) AS
SELECT s.* FROM cerebro_internal.state s
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = s.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_state IS 'States of the reader''s runs';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_state TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_progress WITH (security_barrier) AS
SELECT p.* FROM cerebro_internal.progress p
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = p.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_progress IS 'Progress of the reader''s runs';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_progress TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_run_weights WITH (security_barrier) AS
SELECT w.* FROM cerebro_internal.run_weights w
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = w.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_run_weights IS 'What the reader''s runs begin from';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_run_weights TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_model_weights WITH (security_barrier) AS
SELECT w.* FROM cerebro_internal.model_weights w
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_model m WHERE m.id = w.model)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_model_weights IS 'Weights of the reader''s models';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_model_weights TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_promotion WITH (security_barrier) AS
SELECT p.* FROM cerebro_internal.promotion p
WHERE EXISTS (
    SELECT 1 FROM pg_catalog.pg_roles o WHERE o.rolname = p.owner AND pg_catalog.pg_has_role(o.oid, 'MEMBER'))
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_promotion IS 'Aliases of the reader, and what they stood for';
GRANT SELECT, INSERT, UPDATE, DELETE ON cerebro_internal.visible_promotion TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_alias WITH (security_barrier) AS
SELECT p.owner, p.alias, p.run, p.trial, p.promoted_at
     , pg_catalog.row_number() OVER (PARTITION BY p.owner, p.alias ORDER BY p."position" DESC) AS nth
     , p.run_name
FROM cerebro_internal.visible_promotion p
WHERE p.rolled_back_at IS NULL AND p.run IS NOT NULL;
COMMENT ON VIEW cerebro_internal.visible_alias IS 'What each alias of the reader stands for (nth = 1), and what rolling back would return to (nth = 2 and so on)';
GRANT SELECT ON cerebro_internal.visible_alias TO PUBLIC;
