-- Names that move from run to run. Ordinary statements of the caller: they are there once the caller's transaction commits.

CREATE OR REPLACE VIEW cerebro.alias WITH (security_barrier) AS
SELECT a.alias, r.name AS run, a.trial, a.promoted_at, q.name AS previous_run, b.trial AS previous_trial, a.owner
     , array(SELECT g.role FROM cerebro_internal.alias_grant g WHERE g.owner = a.owner AND g.alias = a.alias ORDER BY 1) AS granted_to
FROM cerebro_internal.usable_alias a
JOIN cerebro_internal.usable_run r ON r.id = a.run
LEFT JOIN cerebro_internal.usable_alias b ON b.owner = a.owner AND b.alias = a.alias AND b.nth = 2
LEFT JOIN cerebro_internal.usable_run q ON q.id = b.run
WHERE a.nth = 1;
COMMENT ON VIEW cerebro.alias IS 'Names that were promoted to a trial of a run, and what cerebro.rollback would return to';
GRANT SELECT ON cerebro.alias TO PUBLIC;

CREATE OR REPLACE VIEW cerebro.promotion WITH (security_barrier) AS
SELECT p.alias, p."position", p.run_name AS run, p.trial, p.promoted_at, p.rolled_back_at, p.owner
FROM cerebro_internal.usable_promotion p;
COMMENT ON VIEW cerebro.promotion IS 'The history of every alias, runs that are gone included';
GRANT SELECT ON cerebro.promotion TO PUBLIC;

CREATE OR REPLACE FUNCTION cerebro_internal.promotion_add(run int, alias text, trial int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.name = $2) THEN
        RAISE EXCEPTION 'a run "%" exists', $2
        USING ERRCODE = '42710', HINT = 'Choose another name for the alias; it could not be told from the run.';
    END IF;
    LOOP
        BEGIN
            INSERT INTO cerebro_internal.visible_promotion (owner, alias, "position", run, run_name, trial)
            SELECT current_user, $2, 1 + coalesce((
                SELECT pg_catalog.max(p."position") FROM cerebro_internal.visible_promotion p
                WHERE p.owner = current_user AND p.alias = $2), 0), r.id, r.name, $3
            FROM cerebro_internal.visible_run r WHERE r.id = $1;
            IF NOT FOUND AND NOT EXISTS (SELECT 1 FROM cerebro_internal.usable_run r WHERE r.id = $1) THEN
                RAISE EXCEPTION 'run does not exist' USING ERRCODE = '42704', HINT = 'It was dropped meanwhile.';
            ELSIF NOT FOUND THEN
                RAISE EXCEPTION 'a run of another role cannot be promoted'
                USING ERRCODE = '42501', HINT = 'Ask its owner to promote it, and to grant you the use of the alias: select cerebro.grant_run(alias, role);';
            END IF;
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            -- Another session has just moved it, and comes before; a snapshot that is kept would never see that.
            IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
                RAISE EXCEPTION 'alias "%" was moved by another session', $2
                USING ERRCODE = '40001', HINT = 'Roll the transaction back, and try it again.';
            END IF;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal.promotion_add(int, text, int) IS 'Let an alias of the caller stand for a trial';

CREATE OR REPLACE FUNCTION cerebro_internal.promotion_rollback(owner name, alias text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    named int;
BEGIN
    SELECT pg_catalog.count(*) INTO named FROM cerebro_internal.visible_alias a WHERE a.owner = $1 AND a.alias = $2;
    IF named < 2 THEN
        RAISE EXCEPTION 'alias "%" has nothing to return to', $2
        USING ERRCODE = '55000', DETAIL = 'It stands for the only run that was promoted to it, or that is left.'
          , HINT = 'Promote another run to it: select cerebro.promote(run, alias);';
    END IF;
    UPDATE cerebro_internal.visible_promotion p SET rolled_back_at = pg_catalog.clock_timestamp()
    WHERE p.owner = $1 AND p.alias = $2 AND p.rolled_back_at IS NULL AND p."position" = (
        SELECT pg_catalog.max(q."position") FROM cerebro_internal.visible_promotion q
        WHERE q.owner = $1 AND q.alias = $2 AND q.rolled_back_at IS NULL AND q.run IS NOT NULL);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'alias "%" was moved by another session', $2
        USING ERRCODE = '40001', HINT = 'Look at cerebro.alias, and try again if need be.';
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.promotion_rollback(name, text) IS 'Let an alias of the caller stand for what it stood for before';

CREATE OR REPLACE FUNCTION cerebro_internal.promotion_drop(owner name, alias text)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
DELETE FROM cerebro_internal.visible_alias_grant g WHERE g.owner = $1 AND g.alias = $2;
DELETE FROM cerebro_internal.visible_promotion p WHERE p.owner = $1 AND p.alias = $2
$$;
COMMENT ON FUNCTION cerebro_internal.promotion_drop(name, text) IS 'Remove an alias of the caller with its history';

CREATE OR REPLACE FUNCTION cerebro.promote(
    run text
  , alias text
  , trial int DEFAULT NULL
)
RETURNS cerebro.alias
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.promote(plpy, GD, run=run, alias=alias, trial=trial)
$$;
COMMENT ON FUNCTION cerebro.promote(text, text, int) IS 'Let a name such as production stand for a run''s best trial (or that one), from the end of the transaction; the one before is kept';

CREATE OR REPLACE FUNCTION cerebro.rollback(
    alias text
)
RETURNS cerebro.alias
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.rollback(plpy, GD, alias=alias)
$$;
COMMENT ON FUNCTION cerebro.rollback(text) IS 'Let an alias stand again for what it stood for before the last promotion';

CREATE OR REPLACE FUNCTION cerebro.drop_alias(
    alias text
)
RETURNS void
LANGUAGE plpython3u
SET search_path = pg_catalog, pg_temp
AS $$
from cerebro_udf import entry
return entry.drop_alias(plpy, GD, alias=alias)
$$;
COMMENT ON FUNCTION cerebro.drop_alias(text) IS 'Remove an alias with its history; the runs stay';
