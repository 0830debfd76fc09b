-- What a role may see and write: what it owns, or what a role owns of which it is a member.
-- visible_* are the only way to write the catalog's tables; they go by current_user, whoever the session is.
-- usable_*, which nobody writes, have besides what others have granted the use of; an alias passes on its owner's own runs alone.

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

CREATE OR REPLACE VIEW cerebro_internal.visible_model_grant WITH (security_barrier) AS
SELECT g.* FROM cerebro_internal.model_grant g
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_model o WHERE o.id = g.model)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_model_grant IS 'Who may use the reader''s models';
GRANT SELECT, INSERT, DELETE ON cerebro_internal.visible_model_grant TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_run_grant WITH (security_barrier) AS
SELECT g.* FROM cerebro_internal.run_grant g
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run o WHERE o.id = g.run)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_run_grant IS 'Who may use the reader''s runs';
GRANT SELECT, INSERT, DELETE ON cerebro_internal.visible_run_grant TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.visible_alias_grant WITH (security_barrier) AS
SELECT g.* FROM cerebro_internal.alias_grant g
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_alias o WHERE o.owner = g.owner AND o.alias = g.alias)
WITH CHECK OPTION;
COMMENT ON VIEW cerebro_internal.visible_alias_grant IS 'Who may use what the reader''s aliases stand for';
GRANT SELECT, INSERT, DELETE ON cerebro_internal.visible_alias_grant TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.held_role AS
SELECT o.rolname AS role FROM pg_catalog.pg_roles o WHERE pg_catalog.pg_has_role(o.oid, 'USAGE')
UNION ALL SELECT 'public';
COMMENT ON VIEW cerebro_internal.held_role IS 'Roles whose privileges the reader has';
GRANT SELECT ON cerebro_internal.held_role TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_model WITH (security_barrier) AS
SELECT m.* FROM cerebro_internal.model m
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_model v WHERE v.id = m.id)
   OR EXISTS (SELECT 1 FROM cerebro_internal.model_grant g JOIN cerebro_internal.held_role h ON h.role = g.role WHERE g.model = m.id);
COMMENT ON VIEW cerebro_internal.usable_model IS 'Models of the reader, and those that it was granted the use of';
GRANT SELECT ON cerebro_internal.usable_model TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_promotion WITH (security_barrier) AS
SELECT p.* FROM cerebro_internal.promotion p
WHERE EXISTS (SELECT 1 FROM pg_catalog.pg_roles o WHERE o.rolname = p.owner AND pg_catalog.pg_has_role(o.oid, 'MEMBER'))
   OR EXISTS (
    SELECT 1 FROM cerebro_internal.alias_grant g JOIN cerebro_internal.held_role h ON h.role = g.role
    WHERE g.owner = p.owner AND g.alias = p.alias);
COMMENT ON VIEW cerebro_internal.usable_promotion IS 'Aliases of the reader and those that it was granted the use of, and what they stood for';
GRANT SELECT ON cerebro_internal.usable_promotion TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_alias WITH (security_barrier) AS
SELECT p.owner, p.alias, p.run, p.trial, p.promoted_at
     , pg_catalog.row_number() OVER (PARTITION BY p.owner, p.alias ORDER BY p."position" DESC) AS nth
     , p.run_name
FROM cerebro_internal.usable_promotion p
WHERE p.rolled_back_at IS NULL AND p.run IS NOT NULL;
COMMENT ON VIEW cerebro_internal.usable_alias IS 'What each of these aliases stands for (nth = 1), and what rolling back would return to';
GRANT SELECT ON cerebro_internal.usable_alias TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_run WITH (security_barrier) AS
SELECT r.* FROM cerebro_internal.run r
WHERE EXISTS (SELECT 1 FROM cerebro_internal.visible_run v WHERE v.id = r.id)
   OR EXISTS (SELECT 1 FROM cerebro_internal.run_grant g JOIN cerebro_internal.held_role h ON h.role = g.role WHERE g.run = r.id)
   OR EXISTS (
    SELECT 1 FROM cerebro_internal.promotion p
    JOIN cerebro_internal.alias_grant g ON g.owner = p.owner AND g.alias = p.alias
    JOIN cerebro_internal.held_role h ON h.role = g.role
    WHERE p.run = r.id AND p.owner = r.owner AND p.rolled_back_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM cerebro_internal.promotion later
        WHERE later.owner = p.owner AND later.alias = p.alias AND later."position" > p."position"
          AND later.rolled_back_at IS NULL AND later.run IS NOT NULL));
COMMENT ON VIEW cerebro_internal.usable_run IS 'Runs of the reader, and those that it was granted the use of, by name or by an alias';
GRANT SELECT ON cerebro_internal.usable_run TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_trial WITH (security_barrier) AS
SELECT x.* FROM cerebro_internal.trial x
WHERE EXISTS (SELECT 1 FROM cerebro_internal.usable_run r WHERE r.id = x.run);
COMMENT ON VIEW cerebro_internal.usable_trial IS 'Trials of runs that the reader may use';
GRANT SELECT ON cerebro_internal.usable_trial TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_epoch WITH (security_barrier) AS
SELECT x.* FROM cerebro_internal.epoch x
WHERE EXISTS (SELECT 1 FROM cerebro_internal.usable_run r WHERE r.id = x.run);
COMMENT ON VIEW cerebro_internal.usable_epoch IS 'Histories of runs that the reader may use';
GRANT SELECT ON cerebro_internal.usable_epoch TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_visit WITH (security_barrier) AS
SELECT x.* FROM cerebro_internal.visit x
WHERE EXISTS (SELECT 1 FROM cerebro_internal.usable_run r WHERE r.id = x.run);
COMMENT ON VIEW cerebro_internal.usable_visit IS 'Ledgers of runs that the reader may use';
GRANT SELECT ON cerebro_internal.usable_visit TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_state WITH (security_barrier) AS
SELECT x.* FROM cerebro_internal.state x
WHERE EXISTS (SELECT 1 FROM cerebro_internal.usable_run r WHERE r.id = x.run);
COMMENT ON VIEW cerebro_internal.usable_state IS 'States of runs that the reader may use';
GRANT SELECT ON cerebro_internal.usable_state TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_progress WITH (security_barrier) AS
SELECT x.* FROM cerebro_internal.progress x
WHERE EXISTS (SELECT 1 FROM cerebro_internal.usable_run r WHERE r.id = x.run);
COMMENT ON VIEW cerebro_internal.usable_progress IS 'Progress of runs that the reader may use';
GRANT SELECT ON cerebro_internal.usable_progress TO PUBLIC;

CREATE OR REPLACE VIEW cerebro_internal.usable_model_weights WITH (security_barrier) AS
SELECT w.* FROM cerebro_internal.model_weights w
WHERE EXISTS (SELECT 1 FROM cerebro_internal.usable_model m WHERE m.id = w.model);
COMMENT ON VIEW cerebro_internal.usable_model_weights IS 'Weights of models that the reader may use';
GRANT SELECT ON cerebro_internal.usable_model_weights TO PUBLIC;
