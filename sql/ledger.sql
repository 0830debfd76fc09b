-- How the catalog is written. Nothing here runs as anybody but its caller: the views let a role write its own rows
-- only, by current_user, so a function smuggled into an index or a view acts for the role that smuggled it in.
-- The driver's link runs with synchronous_commit = off: a crash may lose the last visits, never an epoch, a run or its end.

CREATE OR REPLACE FUNCTION cerebro_internal.model_create(name text, definition jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO cerebro_internal.visible_model (owner, name, definition) VALUES (current_user, $1, $2);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'model "%" already exists', $1
    USING ERRCODE = '42710', HINT = pg_catalog.format('Drop it first: select cerebro.drop_model(%L);', $1);
END
$$;
COMMENT ON FUNCTION cerebro_internal.model_create(text, jsonb) IS 'Insert a model that the caller has checked';

CREATE OR REPLACE FUNCTION cerebro_internal.model_weights_put(name text, chunk int, data bytea)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
INSERT INTO cerebro_internal.visible_model_weights (model, chunk, data)
SELECT m.id, $2, $3 FROM cerebro_internal.visible_model m WHERE m.owner = current_user AND m.name = $1
$$;
COMMENT ON FUNCTION cerebro_internal.model_weights_put(text, int, bytea) IS 'Store one chunk of the weights of a model of the caller';

CREATE OR REPLACE FUNCTION cerebro_internal.model_drop(model int)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
DELETE FROM cerebro_internal.visible_model m WHERE m.id = $1
$$;
COMMENT ON FUNCTION cerebro_internal.model_drop(int) IS 'Delete a model of the caller';

CREATE OR REPLACE FUNCTION cerebro_internal.driver_of(run int)
RETURNS int
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT r.driver_pid
FROM cerebro_internal.usable_run r
WHERE r.id = $1 AND EXISTS (
    SELECT 1 FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid = r.driver_pid
      AND l.classid::int8 = 1128616514 AND l.objid::int8 = r.lock_key)
$$;
COMMENT ON FUNCTION cerebro_internal.driver_of(int) IS 'The backend that drives a run, NULL when nobody does; a lock held by anybody else proves nothing';

CREATE OR REPLACE FUNCTION cerebro_internal.run_standing(run int)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seen text;
BEGIN
    FOR look IN 1..2 LOOP
        SELECT r.state INTO seen FROM cerebro_internal.usable_run r WHERE r.id = $1;
        IF seen IS NULL OR seen NOT IN ('loading', 'running') OR cerebro_internal.driver_of($1) IS NOT NULL THEN
            RETURN seen;
        END IF;
        -- Its driver may have ended it between the two looks: locks are seen as they are, rows as of a snapshot.
    END LOOP;
    RETURN 'interrupted';
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_standing(int) IS 'The state of a run, interrupted when nobody drives what is not at rest; NULL when there is no such run';

CREATE OR REPLACE FUNCTION cerebro_internal.run_bytes(run int)
RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT (SELECT coalesce(pg_catalog.sum(pg_catalog.octet_length(s.data)), 0) FROM cerebro_internal.usable_state s WHERE s.run = $1)::bigint
     + (SELECT coalesce(pg_catalog.sum(pg_catalog.octet_length(w.data)), 0) FROM cerebro_internal.visible_run_weights w WHERE w.run = $1)::bigint
$$;
COMMENT ON FUNCTION cerebro_internal.run_bytes(int) IS 'What a run''s kept states take, and the weights that it began from; reads none of them';

CREATE OR REPLACE FUNCTION cerebro_internal.refuse_driven(run int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pid int := cerebro_internal.driver_of($1);
BEGIN
    IF pid IS NOT NULL THEN
        RAISE EXCEPTION 'run "%" is being driven by another session', (SELECT r.name FROM cerebro_internal.visible_run r WHERE r.id = $1)
        USING ERRCODE = '55006', DETAIL = pg_catalog.format('The session of process %s holds it.', pid)
          , HINT = pg_catalog.format('Wait for it, or stop it: select pg_cancel_backend(%s);', pid);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.refuse_driven(int) IS 'Raise 55006 while a live backend drives the run';

CREATE OR REPLACE FUNCTION cerebro_internal.refuse_promoted(run int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held record;
BEGIN
    SELECT a.owner, a.alias, a.run_name, a.nth INTO held
    FROM cerebro_internal.visible_alias a WHERE a.run = $1 AND a.nth <= 2 ORDER BY a.nth, a.alias LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run "%" stands behind alias "%"', held.run_name, held.alias
        USING ERRCODE = '2BP01'
          , DETAIL = pg_catalog.format(
                CASE held.nth WHEN 1 THEN 'The alias of role "%s" stands for it.'
                ELSE 'The alias of role "%s" returns to it when it is rolled back.' END, held.owner)
          , HINT = pg_catalog.format(
                'As role "%s", promote other runs to it first, or remove the alias: select cerebro.drop_alias(%L);', held.owner, held.alias);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.refuse_promoted(int) IS 'Raise 2BP01 while an alias stands for the run, or would return to it';

-- A run that goes takes its place in every alias along, as the owner of the tables: here aliases are seen that the caller does not see.
CREATE OR REPLACE FUNCTION cerebro_internal.promotion_loses_run()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.refuse_promoted(OLD.run);
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION cerebro_internal.promotion_loses_run() IS 'Refuse that a run goes which an alias needs, whoever''s it is';
DROP TRIGGER IF EXISTS loses_run ON cerebro_internal.promotion;
CREATE TRIGGER loses_run BEFORE UPDATE OF run ON cerebro_internal.promotion
FOR EACH ROW WHEN (NEW.run IS NULL AND OLD.run IS NOT NULL) EXECUTE PROCEDURE cerebro_internal.promotion_loses_run();

CREATE OR REPLACE FUNCTION cerebro_internal.promotion_takes_run()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A superuser restores what roles have promoted that this server may not know.
    IF NOT EXISTS (SELECT 1 FROM cerebro_internal.visible_run r WHERE r.id = NEW.run)
       AND NOT (SELECT o.rolsuper FROM pg_catalog.pg_roles o WHERE o.rolname = current_user) THEN
        RAISE EXCEPTION 'a run of another role cannot be promoted'
        USING ERRCODE = '42501', HINT = 'Ask its owner to promote it.';
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION cerebro_internal.promotion_takes_run() IS 'Refuse an alias that would hold on to a run of somebody else';
DROP TRIGGER IF EXISTS takes_run ON cerebro_internal.promotion;
CREATE TRIGGER takes_run BEFORE INSERT OR UPDATE OF run ON cerebro_internal.promotion
FOR EACH ROW WHEN (NEW.run IS NOT NULL) EXECUTE PROCEDURE cerebro_internal.promotion_takes_run();

CREATE OR REPLACE FUNCTION cerebro_internal.run_create(
    name text
  , source text
  , model text
  , definition jsonb
  , label text
  , features text[]
  , options jsonb
  , replaces int
  , lock_key int
  , driver_pid int
)
RETURNS int
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept text := CASE WHEN $8 IS NULL THEN $1 ELSE pg_catalog.format('%s (replacing, %s)', $1, $9) END;
    id int;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    IF EXISTS (SELECT 1 FROM cerebro_internal.visible_alias a WHERE a.owner = current_user AND a.alias = $1) THEN
        RAISE EXCEPTION 'an alias "%" exists', $1
        USING ERRCODE = '42710', HINT = 'Choose another name for the run, and promote it to the alias when it is done.';
    END IF;
    IF $8 IS NOT NULL THEN
        PERFORM cerebro_internal.refuse_driven($8);
        PERFORM cerebro_internal.refuse_promoted($8);
        -- What an attempt before this one has left; refused while that one is under way.
        PERFORM cerebro_internal.run_drop(r.id) FROM cerebro_internal.visible_run r WHERE r.replaces = $8;
    END IF;
    INSERT INTO cerebro_internal.visible_run (
        owner, name, source, model, definition, label, features, options, replaces, lock_key, driver_pid, state, started_at)
    VALUES (current_user, kept, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'loading', pg_catalog.clock_timestamp())
    RETURNING visible_run.id INTO id;
    RETURN id;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'run "%" already exists', $1
    USING ERRCODE = '42710', HINT = 'Another session has begun it meanwhile; wait for it, or choose another name.';
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_create(text, text, text, jsonb, text, text[], jsonb, int, int, int) IS 'Begin a run as generation 1; one that replaces another has a name of its own until it is ready';

CREATE OR REPLACE FUNCTION cerebro_internal.run_weights_put(run int, generation int, chunk int, data bytea)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    INSERT INTO cerebro_internal.visible_run_weights (run, chunk, data) VALUES ($1, $3, $4);
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_weights_put(int, int, int, bytea) IS 'Store one chunk of what a run begins from, before it loads';

CREATE OR REPLACE FUNCTION cerebro_internal.run_claim(run int, lock_key int, driver_pid int)
RETURNS int
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    generation int;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM 1 FROM cerebro_internal.visible_run r WHERE r.id = $1 FOR UPDATE;
    PERFORM cerebro_internal.refuse_driven($1);
    UPDATE cerebro_internal.visible_run r
    SET generation = r.generation + 1, lock_key = $2, driver_pid = $3, error = NULL, details = NULL, finished_at = NULL
      , state = CASE WHEN r.encoders IS NULL THEN 'loading' ELSE 'running' END
    WHERE r.id = $1
    RETURNING r.generation INTO generation;
    IF generation IS NULL THEN
        RAISE EXCEPTION 'run does not exist' USING ERRCODE = '42704', HINT = 'It was dropped meanwhile.';
    END IF;
    -- What no committed state covers is done again, as a further attempt; so is an unfinished validation.
    UPDATE cerebro_internal.visible_visit v SET state = 'running' WHERE v.run = $1 AND v.state = 'trained';
    DELETE FROM cerebro_internal.visible_visit v
    WHERE v.run = $1 AND v.phase = 'validate' AND NOT EXISTS (
        SELECT 1 FROM cerebro_internal.visible_epoch e WHERE e.run = v.run AND e.trial = v.trial AND e.epoch = v.epoch);
    RETURN generation;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_claim(int, int, int) IS 'Take a run over: the generation that fences its former driver out';

CREATE OR REPLACE FUNCTION cerebro_internal.run_guard(run int, generation int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current_generation int;
BEGIN
    SELECT r.generation INTO current_generation FROM cerebro_internal.visible_run r WHERE r.id = $1 FOR SHARE;
    IF current_generation IS NULL THEN
        RAISE EXCEPTION 'run does not exist' USING ERRCODE = '42704', HINT = 'It was dropped meanwhile.';
    ELSIF current_generation <> $2 THEN
        RAISE EXCEPTION 'this session lost the run to another one' USING ERRCODE = '55006'
          , DETAIL = pg_catalog.format('The run is at generation %s, this session began as generation %s.', current_generation, $2)
          , HINT = 'The other session goes on with it; see cerebro.progress.';
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_guard(int, int) IS 'Lock the run row and refuse a driver that another one has replaced';

CREATE OR REPLACE FUNCTION cerebro_internal.run_change(run int, generation int, options jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visible_run r SET options = $3 WHERE r.id = $1;
    -- One that has stopped early, or was pruned, stays so.
    UPDATE cerebro_internal.visible_trial t SET state = 'running'
    WHERE t.run = $1 AND t.state = 'done' AND t.stopped IS NULL AND NOT EXISTS (
        SELECT 1 FROM cerebro_internal.visible_epoch e WHERE e.run = $1 AND e.trial = t.trial AND e.epoch >= ($3 ->> 'epochs')::int);
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_change(int, int, jsonb) IS 'Have a run go on with other options, and its trials with more epochs';

CREATE OR REPLACE FUNCTION cerebro_internal.run_ready(
    run int
  , generation int
  , plan jsonb
  , encoders jsonb
  , rank_metric text
  , rank_direction text
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    former int;
    wanted text;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    SELECT r.replaces INTO former FROM cerebro_internal.visible_run r WHERE r.id = $1;
    IF former IS NOT NULL THEN
        SELECT r.name INTO wanted FROM cerebro_internal.visible_run r WHERE r.id = former;
        INSERT INTO cerebro_internal.visible_run_grant (run, role)
        SELECT $1, g.role FROM cerebro_internal.visible_run_grant g WHERE g.run = former;
        PERFORM cerebro_internal.run_drop(former);
        UPDATE cerebro_internal.visible_run r SET replaces = NULL, name = coalesce(wanted, r.name) WHERE r.id = $1;
    END IF;
    UPDATE cerebro_internal.visible_run r
    SET plan = $3, encoders = $4, rank_metric = $5, rank_direction = $6, state = 'running'
    WHERE r.id = $1;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_ready(int, int, jsonb, jsonb, text, text) IS 'Store the shards and the merged statistics, before the first visit; what the run replaces goes';

CREATE OR REPLACE FUNCTION cerebro_internal.trials_add(run int, generation int, trials jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    INSERT INTO cerebro_internal.visible_trial (run, trial, params, state)
    SELECT $1, (t.value ->> 'trial')::int, t.value -> 'params', 'waiting'
    FROM pg_catalog.jsonb_array_elements($3) t;
END
$$;
COMMENT ON FUNCTION cerebro_internal.trials_add(int, int, jsonb) IS 'Record trials that a search has asked for, before their first visits';

CREATE OR REPLACE FUNCTION cerebro_internal.run_end(run int, generation int, state text, error text, details jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visible_run r
    SET state = $3, error = $4, details = $5, finished_at = pg_catalog.clock_timestamp()
    WHERE r.id = $1;
    DELETE FROM cerebro_internal.visible_progress p WHERE p.run = $1;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_end(int, int, text, text, jsonb) IS 'Close a run as done, failed or cancelled';

CREATE OR REPLACE FUNCTION cerebro_internal.run_drop(run int)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM cerebro_internal.visible_run r WHERE r.id = $1 FOR UPDATE;
    PERFORM cerebro_internal.refuse_driven($1);
    PERFORM cerebro_internal.refuse_promoted($1);
    DELETE FROM cerebro_internal.visible_run r WHERE r.id = $1;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_drop(int) IS 'Delete a run that nobody drives, with its trials, history, ledger and states';

CREATE OR REPLACE FUNCTION cerebro_internal.run_discard(run int, generation int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    DELETE FROM cerebro_internal.visible_run r
    WHERE r.id = $1 AND NOT EXISTS (SELECT 1 FROM cerebro_internal.visible_visit v WHERE v.run = $1);
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_discard(int, int) IS 'Delete a run before its first visit, by its own driver';

CREATE OR REPLACE FUNCTION cerebro_internal.state_put(run int, generation int, trial int, seq int, chunk int, data bytea)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    DELETE FROM cerebro_internal.visible_state s WHERE s.run = $1 AND s.trial = $3 AND s.seq = $4 AND s.chunk = $5;
    INSERT INTO cerebro_internal.visible_state (run, trial, seq, chunk, data) VALUES ($1, $3, $4, $5, $6);
END
$$;
COMMENT ON FUNCTION cerebro_internal.state_put(int, int, int, int, int, bytea) IS 'Store one chunk of a state; it counts once trial_state or visit_end names its seq';

CREATE OR REPLACE FUNCTION cerebro_internal.trial_state(run int, generation int, trial int, seq int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visible_trial t SET last_seq = $4, state = 'running' WHERE t.run = $1 AND t.trial = $3;
    -- What a committed state covers is done; states that are neither the last nor the best go.
    UPDATE cerebro_internal.visible_visit v SET state = 'done' WHERE v.run = $1 AND v.trial = $3 AND v.state = 'trained';
    DELETE FROM cerebro_internal.visible_state s
    USING cerebro_internal.visible_trial t
    WHERE t.run = $1 AND t.trial = $3 AND s.run = $1 AND s.trial = $3
      AND s.seq <> $4 AND s.seq IS DISTINCT FROM t.best_seq;
END
$$;
COMMENT ON FUNCTION cerebro_internal.trial_state(int, int, int, int) IS 'Name the state that a trial goes on from';

CREATE OR REPLACE FUNCTION cerebro_internal.trial_end(run int, generation int, trial int, state text, reason text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visible_trial t
    SET state = $4
      , error = CASE WHEN $4 = 'failed' THEN $5 END
      , stopped = CASE WHEN $4 <> 'failed' THEN $5 END
    WHERE t.run = $1 AND t.trial = $3;
    DELETE FROM cerebro_internal.visible_visit v WHERE v.run = $1 AND v.trial = $3 AND v.state = 'running';
END
$$;
COMMENT ON FUNCTION cerebro_internal.trial_end(int, int, int, text, text) IS 'Record that a trial failed or was pruned, and why';

CREATE OR REPLACE FUNCTION cerebro_internal.trial_crashes(run int, generation int, trial int, crashes int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visible_trial t SET crashes = $4 WHERE t.run = $1 AND t.trial = $3;
END
$$;
COMMENT ON FUNCTION cerebro_internal.trial_crashes(int, int, int, int) IS 'Record how often a trial''s worker has died in the epoch that it is in';

CREATE OR REPLACE FUNCTION cerebro_internal.validate_again(run int, generation int, trial int, epoch int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    DELETE FROM cerebro_internal.visible_visit v
    WHERE v.run = $1 AND v.trial = $3 AND v.epoch = $4 AND v.phase = 'validate' AND NOT EXISTS (
        SELECT 1 FROM cerebro_internal.visible_epoch e WHERE e.run = v.run AND e.trial = v.trial AND e.epoch = v.epoch);
END
$$;
COMMENT ON FUNCTION cerebro_internal.validate_again(int, int, int, int) IS 'Forget a validation that is not finished, which a trial makes anew';

CREATE OR REPLACE FUNCTION cerebro_internal.visit_begin(
    run int
  , generation int
  , trial int
  , epoch int
  , phase text
  , shard int
  , place int
  , segment text
  , started_at float8
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visible_visit v
    SET attempt = v.attempt + 1, "position" = $7, segment = $8, state = 'running'
      , started_at = pg_catalog.to_timestamp($9), finished_at = NULL
    WHERE v.run = $1 AND v.trial = $3 AND v.epoch = $4 AND v.phase = $5 AND v.shard = $6 AND v.state <> 'done';
    IF NOT FOUND THEN
        INSERT INTO cerebro_internal.visible_visit (run, trial, epoch, phase, shard, "position", segment, state, started_at)
        VALUES ($1, $3, $4, $5, $6, $7, $8, 'running', pg_catalog.to_timestamp($9));
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.visit_begin(int, int, int, int, text, int, int, text, float8) IS 'Record an order; a visit that is done cannot be ordered again (unique violation)';

CREATE OR REPLACE FUNCTION cerebro_internal.visit_end(
    run int
  , generation int
  , trial int
  , epoch int
  , phase text
  , shard int
  , finished_at float8
  , report jsonb
  , seq int
  , data bytea
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    IF $10 IS NOT NULL THEN
        PERFORM cerebro_internal.state_put($1, $2, $3, $9, 0, $10);
    END IF;
    UPDATE cerebro_internal.visible_visit v
    SET state = CASE WHEN $5 = 'validate' THEN 'done' ELSE 'trained' END
      , finished_at = pg_catalog.to_timestamp($7)
      , rows = ($8 ->> 'rows')::bigint
      , batches = ($8 ->> 'batches')::bigint
      , train_seconds = ($8 ->> 'train_seconds')::float8
      , hop_seconds = ($8 ->> 'hop_seconds')::float8
      , details = $8
    WHERE v.run = $1 AND v.trial = $3 AND v.epoch = $4 AND v.phase = $5 AND v.shard = $6;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a visit that was never ordered cannot end' USING ERRCODE = '55000', HINT = 'Resume the run.';
    END IF;
    IF $9 IS NOT NULL THEN
        PERFORM cerebro_internal.trial_state($1, $2, $3, $9);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.visit_end(int, int, int, int, text, int, float8, jsonb, int, bytea) IS 'Record a report, and with it the state that covers it and all before (seq NULL: none is kept here)';

CREATE OR REPLACE FUNCTION cerebro_internal.epoch_end(
    run int
  , generation int
  , trial int
  , epoch int
  , metrics jsonb
  , learning_rate float8
  , seconds float8
  , metric float8
  , best_seq int
  , state text
  , reason text
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    INSERT INTO cerebro_internal.visible_epoch (run, trial, epoch, metrics, learning_rate, seconds)
    VALUES ($1, $3, $4, $5, $6, $7);
    UPDATE cerebro_internal.visible_trial t
    SET metric = CASE WHEN $9 IS NULL THEN t.metric ELSE $8 END
      , best_epoch = CASE WHEN $9 IS NULL THEN t.best_epoch ELSE $4 END
      , best_seq = coalesce($9, t.best_seq)
      , crashes = 0
      , state = $10
      , error = CASE WHEN $10 = 'failed' THEN $11 END
      , stopped = CASE WHEN $10 <> 'failed' THEN $11 END
    WHERE t.run = $1 AND t.trial = $3;
    IF $9 IS NOT NULL THEN
        DELETE FROM cerebro_internal.visible_state s
        USING cerebro_internal.visible_trial t
        WHERE t.run = $1 AND t.trial = $3 AND s.run = $1 AND s.trial = $3
          AND s.seq IS DISTINCT FROM t.last_seq AND s.seq IS DISTINCT FROM t.best_seq;
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.epoch_end(int, int, int, int, jsonb, float8, float8, float8, int, text, text) IS 'Record a trial''s epoch; best_seq is its state when it is the trial''s best so far, else NULL';

CREATE OR REPLACE FUNCTION cerebro_internal.progress_set(run int, generation int, details jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    DELETE FROM cerebro_internal.visible_progress p WHERE p.run = $1;
    INSERT INTO cerebro_internal.visible_progress (
        run, visits_done, visits_total, eta_seconds, segment, phase, trial, epoch, rows_done, rows_total, updated_at)
    SELECT $1, ($3 ->> 'visits_done')::int, ($3 ->> 'visits_total')::int, ($3 ->> 'eta_seconds')::float8
         , coalesce(pg_catalog.array_agg(s.segment), '{}'), coalesce(pg_catalog.array_agg(s.phase), '{}')
         , coalesce(pg_catalog.array_agg(s.trial), '{}'), coalesce(pg_catalog.array_agg(s.epoch), '{}')
         , coalesce(pg_catalog.array_agg(s.rows_done), '{}'), coalesce(pg_catalog.array_agg(s.rows_total), '{}')
         , pg_catalog.clock_timestamp()
    FROM pg_catalog.jsonb_to_recordset($3 -> 'segments')
        AS s (segment text, phase text, trial int, epoch int, rows_done bigint, rows_total bigint);
END
$$;
COMMENT ON FUNCTION cerebro_internal.progress_set(int, int, jsonb) IS 'Publish where a run stands';

CREATE OR REPLACE FUNCTION cerebro_internal.fault_armed(point text, run text, occurrence int, trials int[])
RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
SELECT f.action FROM cerebro_internal.fault f
WHERE f.point = $1 AND f.run = $2 AND (f.trial = ANY ($4) OR f.trial IS NULL AND f.occurrence = $3) LIMIT 1
$$;
COMMENT ON FUNCTION cerebro_internal.fault_armed(text, text, int, int[]) IS 'What a superuser armed for this point of this run, on this server: of one occurrence, or of every visit of a trial';
