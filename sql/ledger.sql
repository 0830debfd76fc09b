-- The only way to write the catalog. Each function runs as the extension's owner and answers only for what belongs
-- to the role that authenticated this session (session_user): the driver's link to cerebro_self is the caller's own.
-- That link runs with synchronous_commit = off: a crash may lose the last visits, never an epoch, a run or its end.

CREATE OR REPLACE FUNCTION cerebro_internal.owns(owner name)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = owner AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER'))
$$;
COMMENT ON FUNCTION cerebro_internal.owns(name) IS 'Whether the authenticated role may write what this role owns';

CREATE OR REPLACE FUNCTION cerebro_internal.model_create(owner name, name text, definition jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT cerebro_internal.owns($1) THEN
        RAISE EXCEPTION 'permission denied to create a model for role "%"', $1 USING ERRCODE = '42501';
    END IF;
    INSERT INTO cerebro_internal.model (owner, name, definition) VALUES ($1, $2, $3);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'model "%" already exists', $2
    USING ERRCODE = '42710', HINT = pg_catalog.format('Drop it first: select cerebro.drop_model(%L);', $2);
END
$$;
COMMENT ON FUNCTION cerebro_internal.model_create(name, text, jsonb) IS 'Insert a model that the caller has checked';

CREATE OR REPLACE FUNCTION cerebro_internal.model_drop(owner name, name text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT cerebro_internal.owns($1) THEN
        RAISE EXCEPTION 'permission denied to drop a model of role "%"', $1 USING ERRCODE = '42501';
    END IF;
    DELETE FROM cerebro_internal.model m WHERE m.owner = $1 AND m.name = $2;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION cerebro_internal.model_drop(name, text) IS 'Delete a model; false when there is none';

CREATE OR REPLACE FUNCTION cerebro_internal.run_create(
    name text
  , source text
  , model text
  , definition jsonb
  , label text
  , features text[]
  , options jsonb
)
RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id int;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    INSERT INTO cerebro_internal.run (owner, name, source, model, definition, label, features, options, state, started_at)
    VALUES (session_user, $1, $2, $3, $4, $5, $6, $7, 'loading', pg_catalog.clock_timestamp())
    RETURNING run.id INTO id;
    RETURN id;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'run "%" already exists', $1
    USING ERRCODE = '42710', HINT = 'Choose another name, or set options.if_exists to "replace" or "resume".';
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_create(text, text, text, jsonb, text, text[], jsonb) IS 'Begin a run as generation 1, owned by the authenticated role';

CREATE OR REPLACE FUNCTION cerebro_internal.run_claim(run int)
RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner name;
    generation int;
BEGIN
    SELECT r.owner INTO owner FROM cerebro_internal.run r WHERE r.id = $1 FOR UPDATE;
    IF owner IS NULL OR NOT cerebro_internal.owns(owner) THEN
        RAISE EXCEPTION 'run does not exist' USING ERRCODE = '42704';
    END IF;
    UPDATE cerebro_internal.run r
    SET generation = r.generation + 1, error = NULL, finished_at = NULL
      , state = CASE WHEN r.encoders IS NULL THEN 'loading' ELSE 'running' END
    WHERE r.id = $1
    RETURNING r.generation INTO generation;
    -- What no committed state covers is done again, as a further attempt; so is an unfinished validation.
    UPDATE cerebro_internal.visit v SET state = 'running' WHERE v.run = $1 AND v.state = 'trained';
    DELETE FROM cerebro_internal.visit v
    WHERE v.run = $1 AND v.phase = 'validate' AND NOT EXISTS (
        SELECT 1 FROM cerebro_internal.epoch e WHERE e.run = v.run AND e.trial = v.trial AND e.epoch = v.epoch);
    RETURN generation;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_claim(int) IS 'Take a run over: the generation that fences its former driver out';

CREATE OR REPLACE FUNCTION cerebro_internal.run_guard(run int, generation int)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner name;
    current_generation int;
BEGIN
    SELECT r.owner, r.generation INTO owner, current_generation FROM cerebro_internal.run r WHERE r.id = $1 FOR SHARE;
    IF owner IS NULL OR NOT cerebro_internal.owns(owner) THEN
        RAISE EXCEPTION 'run does not exist' USING ERRCODE = '42704';
    ELSIF current_generation <> $2 THEN
        RAISE EXCEPTION 'this session lost the run to another one' USING ERRCODE = '55006'
          , DETAIL = pg_catalog.format('The run is at generation %s, this session began as generation %s.', current_generation, $2);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_guard(int, int) IS 'Lock the run row and refuse a driver that another one has replaced';
REVOKE ALL ON FUNCTION cerebro_internal.run_guard(int, int) FROM PUBLIC;

CREATE OR REPLACE FUNCTION cerebro_internal.run_ready(
    run int
  , generation int
  , plan jsonb
  , encoders jsonb
  , rank_metric text
  , rank_direction text
  , trials jsonb
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.run r
    SET plan = $3, encoders = $4, rank_metric = $5, rank_direction = $6, state = 'running'
    WHERE r.id = $1;
    INSERT INTO cerebro_internal.trial (run, trial, params, state)
    SELECT $1, (t.value ->> 'trial')::int, t.value -> 'params', 'waiting'
    FROM pg_catalog.jsonb_array_elements($7) t;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_ready(int, int, jsonb, jsonb, text, text, jsonb) IS 'Store the shards, the merged statistics and the trials, before the first visit';

CREATE OR REPLACE FUNCTION cerebro_internal.run_replace(run int, generation int, former int, former_generation int)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    freed text;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    PERFORM cerebro_internal.run_guard($3, $4);
    DELETE FROM cerebro_internal.run r WHERE r.id = $3 RETURNING r.name INTO freed;
    UPDATE cerebro_internal.run r SET name = freed WHERE r.id = $1;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_replace(int, int, int, int) IS 'Delete a run that nobody has claimed since, and give its name to the one that replaces it';

CREATE OR REPLACE FUNCTION cerebro_internal.run_end(run int, generation int, state text, error text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.run r
    SET state = $3, error = $4, finished_at = pg_catalog.clock_timestamp()
    WHERE r.id = $1;
    DELETE FROM cerebro_internal.progress p WHERE p.run = $1;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_end(int, int, text, text) IS 'Close a run as done, failed or cancelled';

CREATE OR REPLACE FUNCTION cerebro_internal.run_drop(run int)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner name;
BEGIN
    SELECT r.owner INTO owner FROM cerebro_internal.run r WHERE r.id = $1 FOR UPDATE;
    IF owner IS NULL OR NOT cerebro_internal.owns(owner) THEN
        RETURN false;
    END IF;
    DELETE FROM cerebro_internal.run r WHERE r.id = $1;
    RETURN true;
END
$$;
COMMENT ON FUNCTION cerebro_internal.run_drop(int) IS 'Delete a run with its trials, history, ledger and states';

CREATE OR REPLACE FUNCTION cerebro_internal.state_put(run int, generation int, trial int, seq int, chunk int, data bytea)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    DELETE FROM cerebro_internal.state s WHERE s.run = $1 AND s.trial = $3 AND s.seq = $4 AND s.chunk = $5;
    INSERT INTO cerebro_internal.state (run, trial, seq, chunk, data) VALUES ($1, $3, $4, $5, $6);
END
$$;
COMMENT ON FUNCTION cerebro_internal.state_put(int, int, int, int, int, bytea) IS 'Store one chunk of a state; it counts once trial_state or visit_end names its seq';

CREATE OR REPLACE FUNCTION cerebro_internal.trial_state(run int, generation int, trial int, seq int)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.trial t SET last_seq = $4, state = 'running' WHERE t.run = $1 AND t.trial = $3;
    -- What a committed state covers is done; states that are neither the last nor the best go.
    UPDATE cerebro_internal.visit v SET state = 'done' WHERE v.run = $1 AND v.trial = $3 AND v.state = 'trained';
    DELETE FROM cerebro_internal.state s
    USING cerebro_internal.trial t
    WHERE t.run = $1 AND t.trial = $3 AND s.run = $1 AND s.trial = $3
      AND s.seq <> $4 AND s.seq IS DISTINCT FROM t.best_seq;
END
$$;
COMMENT ON FUNCTION cerebro_internal.trial_state(int, int, int, int) IS 'Name the state that a trial goes on from';

CREATE OR REPLACE FUNCTION cerebro_internal.trial_fail(run int, generation int, trial int, error text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.trial t SET state = 'failed', error = $4 WHERE t.run = $1 AND t.trial = $3;
    DELETE FROM cerebro_internal.visit v WHERE v.run = $1 AND v.trial = $3 AND v.state = 'running';
END
$$;
COMMENT ON FUNCTION cerebro_internal.trial_fail(int, int, int, text) IS 'Record that a trial failed, and why';

CREATE OR REPLACE FUNCTION cerebro_internal.visit_begin(
    run int
  , generation int
  , trial int
  , epoch int
  , phase text
  , shard int
  , "position" int
  , segment text
  , started_at float8
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.visit v
    SET attempt = v.attempt + 1, "position" = $7, segment = $8, state = 'running'
      , started_at = pg_catalog.to_timestamp($9), finished_at = NULL
    WHERE v.run = $1 AND v.trial = $3 AND v.epoch = $4 AND v.phase = $5 AND v.shard = $6 AND v.state <> 'done';
    IF NOT FOUND THEN
        INSERT INTO cerebro_internal.visit (run, trial, epoch, phase, shard, "position", segment, state, started_at)
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
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    IF $10 IS NOT NULL THEN
        PERFORM cerebro_internal.state_put($1, $2, $3, $9, 0, $10);
    END IF;
    UPDATE cerebro_internal.visit v
    SET state = CASE WHEN $5 = 'validate' THEN 'done' ELSE 'trained' END
      , finished_at = pg_catalog.to_timestamp($7)
      , rows = ($8 ->> 'rows')::bigint
      , batches = ($8 ->> 'batches')::bigint
      , train_seconds = ($8 ->> 'train_seconds')::float8
      , hop_seconds = ($8 ->> 'hop_seconds')::float8
      , details = $8
    WHERE v.run = $1 AND v.trial = $3 AND v.epoch = $4 AND v.phase = $5 AND v.shard = $6;
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
  , finished boolean
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    PERFORM cerebro_internal.run_guard($1, $2);
    INSERT INTO cerebro_internal.epoch (run, trial, epoch, metrics, learning_rate, seconds)
    VALUES ($1, $3, $4, $5, $6, $7);
    UPDATE cerebro_internal.trial t
    SET metric = CASE WHEN $9 IS NULL THEN t.metric ELSE $8 END
      , best_epoch = CASE WHEN $9 IS NULL THEN t.best_epoch ELSE $4 END
      , best_seq = coalesce($9, t.best_seq)
      , state = CASE WHEN $10 THEN 'done' ELSE 'running' END
    WHERE t.run = $1 AND t.trial = $3;
    IF $9 IS NOT NULL THEN
        DELETE FROM cerebro_internal.state s
        USING cerebro_internal.trial t
        WHERE t.run = $1 AND t.trial = $3 AND s.run = $1 AND s.trial = $3
          AND s.seq IS DISTINCT FROM t.last_seq AND s.seq IS DISTINCT FROM t.best_seq;
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.epoch_end(int, int, int, int, jsonb, float8, float8, float8, int, boolean) IS 'Record a trial''s epoch; best_seq is its state when it is the trial''s best so far, else NULL';

CREATE OR REPLACE FUNCTION cerebro_internal.progress_set(run int, generation int, details jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM cerebro_internal.run_guard($1, $2);
    UPDATE cerebro_internal.progress p SET details = $3, updated_at = pg_catalog.clock_timestamp() WHERE p.run = $1;
    IF NOT FOUND THEN
        INSERT INTO cerebro_internal.progress (run, details, updated_at) VALUES ($1, $3, pg_catalog.clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal.progress_set(int, int, jsonb) IS 'Publish where a run stands';

CREATE OR REPLACE FUNCTION cerebro_internal.fault_armed(point text, run text, occurrence int)
RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
SELECT f.action FROM cerebro_internal.fault f WHERE f.point = $1 AND f.run = $2 AND f.occurrence = $3 LIMIT 1
$$;
COMMENT ON FUNCTION cerebro_internal.fault_armed(text, text, int) IS 'What a superuser armed for this point of this run, on this server';
