-- One row: who leads, and how far the log has come.
CREATE TABLE cronoq_leader (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    expires_at INTEGER NOT NULL DEFAULT 0,  -- wall clock, Unix nanoseconds
    renewals INTEGER NOT NULL DEFAULT 0,    -- rises with every renewal, so that watchers see life
    process TEXT,                           -- the holder's process, for others on this host
    since INTEGER NOT NULL DEFAULT 0,
    position INTEGER NOT NULL DEFAULT 0,
    high_water INTEGER,                     -- the highest id in any batch; NULL before the first
    forgotten INTEGER NOT NULL DEFAULT 0    -- the highest position of an end that was pruned
);
INSERT INTO cronoq_leader (one) VALUES (1);

CREATE TABLE cronoq_identity (one INTEGER PRIMARY KEY CHECK (one = 1), shard INTEGER);

-- A row per submission, never changed.
CREATE TABLE cronoq_tasks (
    id INTEGER PRIMARY KEY,
    created_at INTEGER NOT NULL,
    key TEXT,
    pool TEXT NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT,
    schedule TEXT,
    spec BLOB NOT NULL,
    payload BLOB
);
CREATE INDEX cronoq_tasks_by_key ON cronoq_tasks (key) WHERE key IS NOT NULL;

-- A row per task that has not ended, with its last change: what recovery reads, and no more.
CREATE TABLE cronoq_live (id INTEGER PRIMARY KEY, change BLOB);

-- A row per end. Bytes come last, so that look-ups need not read across them.
CREATE TABLE cronoq_ends (
    id INTEGER PRIMARY KEY,
    position INTEGER NOT NULL,
    at INTEGER NOT NULL,
    status INTEGER NOT NULL,
    change BLOB NOT NULL,
    content_type TEXT,
    output BLOB
);
CREATE INDEX cronoq_ends_by_position ON cronoq_ends (position);

CREATE TABLE cronoq_schedules (
    name TEXT PRIMARY KEY,
    schedule BLOB NOT NULL,
    quarantined TEXT                        -- why it is not used, if it cannot be read
) WITHOUT ROWID;

CREATE TABLE cronoq_paused_pools (pool TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE cronoq_resized (name TEXT PRIMARY KEY, resized BLOB NOT NULL) WITHOUT ROWID;
