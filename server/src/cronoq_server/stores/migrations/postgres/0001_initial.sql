-- One row: who leads, and how far the log has come. Updated in place by every commit.
CREATE TABLE cronoq_leader (
    one integer PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    epoch bigint NOT NULL DEFAULT 0,
    holder text,
    since bigint NOT NULL DEFAULT 0,            -- wall clock, Unix nanoseconds
    position bigint NOT NULL DEFAULT 0,
    high_water bigint,                          -- the highest id in any batch; NULL before the first
    segment_rows bigint NOT NULL DEFAULT 0,     -- tasks in the newest segment
    pruned_position bigint NOT NULL DEFAULT 0,  -- ends up to here are gone, wherever their rows are
    pruned_id bigint NOT NULL DEFAULT -9223372036854775808
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
INSERT INTO cronoq_leader DEFAULT VALUES;

CREATE TABLE cronoq_identity (one integer PRIMARY KEY DEFAULT 1 CHECK (one = 1), shard integer);

-- Which segment a task's rows are in: that of the highest first id not above its own.
CREATE TABLE cronoq_segments (segment integer PRIMARY KEY, first_id bigint NOT NULL);

-- Which tasks live: a bitmap for every 1024 ids of which one does. Half of each page stays free, so
-- that rows are rewritten within their page and leave nothing behind.
CREATE TABLE cronoq_blocks (block bigint PRIMARY KEY, alive bytea NOT NULL)
    WITH (fillfactor = 50, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);

-- A row per submission, with its first change if that came in the same batch; never changed.
CREATE TABLE cronoq_tasks (
    segment integer NOT NULL,
    id bigint NOT NULL,
    created_at bigint NOT NULL,
    key text COLLATE "C",
    pool text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    schedule text COLLATE "C",
    spec bytea NOT NULL,
    payload bytea,
    change bytea
) PARTITION BY LIST (segment);

-- A row per later change of a task that lives on.
CREATE TABLE cronoq_changes (
    segment integer NOT NULL,
    id bigint NOT NULL,
    position bigint NOT NULL,
    change bytea NOT NULL
) PARTITION BY LIST (segment);

-- A row per end.
CREATE TABLE cronoq_ends (
    segment integer NOT NULL,
    id bigint NOT NULL,
    position bigint NOT NULL,
    at bigint NOT NULL,
    status integer NOT NULL,
    change bytea NOT NULL,
    content_type text COLLATE "C",
    output bytea
) PARTITION BY LIST (segment);

-- Segment 0 takes what still lives when the rest of its segment has been pruned.
CREATE TABLE cronoq_tasks_0 PARTITION OF cronoq_tasks (PRIMARY KEY (id)) FOR VALUES IN (0);
CREATE INDEX ON cronoq_tasks_0 (key) WHERE key IS NOT NULL;
CREATE TABLE cronoq_changes_0 PARTITION OF cronoq_changes (PRIMARY KEY (id, position))
    FOR VALUES IN (0);
CREATE TABLE cronoq_ends_0 PARTITION OF cronoq_ends (PRIMARY KEY (id)) FOR VALUES IN (0);
CREATE INDEX ON cronoq_ends_0 (position, id);

CREATE TABLE cronoq_schedules (
    name text COLLATE "C" PRIMARY KEY,
    schedule bytea NOT NULL,
    quarantined text                            -- why it is not used, if it cannot be read
);

CREATE TABLE cronoq_paused_pools (pool text COLLATE "C" PRIMARY KEY);

CREATE TABLE cronoq_resized (name text COLLATE "C" PRIMARY KEY, resized bytea NOT NULL);
