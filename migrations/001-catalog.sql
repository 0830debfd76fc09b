-- What must survive: models, runs, and their ledger. Base tables carry no grants; roles see and write their own rows through views.

CREATE SCHEMA cerebro;
COMMENT ON SCHEMA cerebro IS 'Cerebro: train Keras models where the rows live';
CREATE SCHEMA cerebro_internal;
COMMENT ON SCHEMA cerebro_internal IS 'Cerebro''s private tables and functions; call nothing here by hand';
GRANT USAGE ON SCHEMA cerebro, cerebro_internal TO PUBLIC;

CREATE TABLE cerebro_internal.model (
    id serial PRIMARY KEY
  , owner name NOT NULL
  , name text NOT NULL
  , definition jsonb NOT NULL
  , created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
  , UNIQUE (owner, name)
);
COMMENT ON TABLE cerebro_internal.model IS 'Named architectures';

CREATE TABLE cerebro_internal.run (
    id serial PRIMARY KEY
  , owner name NOT NULL
  , name text NOT NULL
  , source text NOT NULL
  , model text NOT NULL
  , definition jsonb NOT NULL
  , label text
  , features text[] NOT NULL
  , options jsonb NOT NULL
  , plan jsonb
  , encoders jsonb
  , rank_metric text
  , rank_direction text
  , state text NOT NULL CHECK (state IN ('loading', 'running', 'done', 'failed', 'cancelled'))
  , generation int NOT NULL DEFAULT 1
  , replaces int
  , lock_key int NOT NULL
  , driver_pid int NOT NULL
  , error text
  , details jsonb
  , started_at timestamptz NOT NULL
  , finished_at timestamptz
  , UNIQUE (owner, name)
);
COMMENT ON TABLE cerebro_internal.run IS 'One row per call of fit; details has the error''s sqlstate, detail and hint, or what stopped a run that is done; generation fences a driver that lost the run, which lives while its backend holds the lock of that key';

CREATE TABLE cerebro_internal.trial (
    run int NOT NULL REFERENCES cerebro_internal.run ON DELETE CASCADE
  , trial int NOT NULL
  , params jsonb NOT NULL
  , state text NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed', 'pruned'))
  , metric float8
  , best_epoch int
  , last_seq int
  , best_seq int
  , error text
  , stopped text
  , crashes int NOT NULL DEFAULT 0
  , PRIMARY KEY (run, trial)
);
COMMENT ON TABLE cerebro_internal.trial IS 'One configuration of a run; last_seq and best_seq name its kept states; crashes counts how often its worker died in the epoch that it is in';

CREATE TABLE cerebro_internal.epoch (
    run int NOT NULL
  , trial int NOT NULL
  , epoch int NOT NULL
  , metrics jsonb NOT NULL
  , learning_rate float8
  , seconds float8
  , PRIMARY KEY (run, trial, epoch)
  , FOREIGN KEY (run, trial) REFERENCES cerebro_internal.trial ON DELETE CASCADE
);
COMMENT ON TABLE cerebro_internal.epoch IS 'The history: metrics of each trial after each epoch';

CREATE TABLE cerebro_internal.visit (
    run int NOT NULL
  , trial int NOT NULL
  , epoch int NOT NULL
  , shard int NOT NULL
  , phase text NOT NULL CHECK (phase IN ('train', 'validate'))
  , "position" int NOT NULL
  , segment text NOT NULL
  , attempt int NOT NULL DEFAULT 1
  , state text NOT NULL CHECK (state IN ('running', 'trained', 'done'))
  , started_at timestamptz NOT NULL
  , finished_at timestamptz
  , rows bigint
  , batches bigint
  , train_seconds float8
  , hop_seconds float8
  , details jsonb
  , UNIQUE (run, trial, epoch, shard, phase)
  , FOREIGN KEY (run, trial) REFERENCES cerebro_internal.trial ON DELETE CASCADE
);
COMMENT ON TABLE cerebro_internal.visit IS 'The ledger: done only once a committed state covers the visit, trained until then';

CREATE TABLE cerebro_internal.state (
    run int NOT NULL
  , trial int NOT NULL
  , seq int NOT NULL
  , chunk int NOT NULL
  , data bytea NOT NULL
  , PRIMARY KEY (run, trial, seq, chunk)
  , FOREIGN KEY (run, trial) REFERENCES cerebro_internal.trial ON DELETE CASCADE
);
ALTER TABLE cerebro_internal.state ALTER COLUMN data SET STORAGE EXTERNAL;
-- Each visit leaves a dead state: vacuumed whenever autovacuum comes by, and without pauses.
ALTER TABLE cerebro_internal.state SET (
    autovacuum_vacuum_scale_factor = 0
  , autovacuum_vacuum_cost_delay = 0
  , toast.autovacuum_vacuum_scale_factor = 0
  , toast.autovacuum_vacuum_threshold = 5000
  , toast.autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE cerebro_internal.state IS 'Committed states in chunks of at most 64 MB; seq counts the train visits that a state covers';

CREATE TABLE cerebro_internal.run_weights (
    run int NOT NULL REFERENCES cerebro_internal.run ON DELETE CASCADE
  , chunk int NOT NULL
  , data bytea NOT NULL
  , PRIMARY KEY (run, chunk)
);
ALTER TABLE cerebro_internal.run_weights ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE cerebro_internal.run_weights IS 'What the trials of a run begin from, where they do not begin anew; in chunks of at most 64 MB';

CREATE TABLE cerebro_internal.model_weights (
    model int NOT NULL REFERENCES cerebro_internal.model ON DELETE CASCADE
  , chunk int NOT NULL
  , data bytea NOT NULL
  , PRIMARY KEY (model, chunk)
);
ALTER TABLE cerebro_internal.model_weights ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE cerebro_internal.model_weights IS 'Weights that a model was imported with, in chunks of at most 64 MB';

CREATE TABLE cerebro_internal.promotion (
    owner name NOT NULL
  , alias text NOT NULL
  , "position" int NOT NULL
  , run int REFERENCES cerebro_internal.run ON DELETE SET NULL
  , run_name text NOT NULL
  , trial int NOT NULL
  , promoted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
  , rolled_back_at timestamptz
  , PRIMARY KEY (owner, alias, "position")
);
COMMENT ON TABLE cerebro_internal.promotion IS 'What each alias was moved to; it stands for the highest position that has a run and was not rolled back';

CREATE TABLE cerebro_internal.model_grant (
    model int NOT NULL REFERENCES cerebro_internal.model ON DELETE CASCADE
  , role name NOT NULL
  , PRIMARY KEY (model, role)
);
COMMENT ON TABLE cerebro_internal.model_grant IS 'Roles that may use a model of another role; public stands for all';

CREATE TABLE cerebro_internal.run_grant (
    run int NOT NULL REFERENCES cerebro_internal.run ON DELETE CASCADE
  , role name NOT NULL
  , PRIMARY KEY (run, role)
);
COMMENT ON TABLE cerebro_internal.run_grant IS 'Roles that may use a run of another role; public stands for all';

CREATE TABLE cerebro_internal.alias_grant (
    owner name NOT NULL
  , alias text NOT NULL
  , role name NOT NULL
  , PRIMARY KEY (owner, alias, role)
);
COMMENT ON TABLE cerebro_internal.alias_grant IS 'Roles that may use whatever an alias of another role stands for; public stands for all';

CREATE TABLE cerebro_internal.progress (
    run int PRIMARY KEY REFERENCES cerebro_internal.run ON DELETE CASCADE
  , visits_done int
  , visits_total int
  , eta_seconds float8
  , segment text[] NOT NULL
  , phase text[] NOT NULL
  , trial int[] NOT NULL
  , epoch int[] NOT NULL
  , rows_done bigint[] NOT NULL
  , rows_total bigint[] NOT NULL
  , updated_at timestamptz NOT NULL
);
COMMENT ON TABLE cerebro_internal.progress IS 'Where each running run stands, rewritten twice a second; one array element per segment';

CREATE TABLE cerebro_internal.fault (
    id serial PRIMARY KEY
  , run text NOT NULL
  , point text NOT NULL
  , occurrence int NOT NULL DEFAULT 1
  , action text NOT NULL CHECK (action IN ('kill', 'wait'))
  , trial int
);
COMMENT ON TABLE cerebro_internal.fault IS 'Faults armed by a superuser for tests, at one occurrence of a point or at all visits of a trial; empty on a server in use';

-- Rows are inserted by ordinary roles, through views.
GRANT USAGE ON SEQUENCE cerebro_internal.model_id_seq, cerebro_internal.run_id_seq TO PUBLIC;

SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.model', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.model_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.run', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.run_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.trial', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.epoch', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.visit', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.state', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.run_weights', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.model_weights', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.promotion', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.model_grant', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.run_grant', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro_internal.alias_grant', '');

-- The way back to this very server, for the ledger and for local workers. Its users add a mapping with their own password.
CREATE FOREIGN DATA WRAPPER cerebro;
COMMENT ON FOREIGN DATA WRAPPER cerebro IS 'Holds cerebro_self and its user mappings; no handler, so no tables';
DO $do$
BEGIN
    EXECUTE pg_catalog.format(
        'CREATE SERVER cerebro_self FOREIGN DATA WRAPPER cerebro OPTIONS (host %L, port %L, dbname %L)'
      , '127.0.0.1', pg_catalog.current_setting('port'), pg_catalog.current_database());
END
$do$;
COMMENT ON SERVER cerebro_self IS 'This server, as Cerebro connects to it: host, port and dbname';
GRANT USAGE ON FOREIGN SERVER cerebro_self TO PUBLIC;
