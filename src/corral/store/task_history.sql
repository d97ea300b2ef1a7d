-- Stopped tasks, for `corral history`. A row is written when the task stops. corral.toml limits the age and the number of the
-- rows. Later rows have larger numbers, so no index on the time is needed to delete the oldest rows.
CREATE TABLE task_history (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    region     TEXT NOT NULL,
    cluster    TEXT NOT NULL,
    name       TEXT NOT NULL,               -- the tag corral:name, or the family of the task definition
    failed     INTEGER NOT NULL CHECK (failed IN (0, 1)),
    stopped_at REAL NOT NULL,
    record     BLOB NOT NULL                -- JSON: see TaskRecord
);
-- Task ids are random, so each new entry changes a random page of this index. Short entries keep the number of pages small.
CREATE INDEX task_history_id ON task_history (substr(id, 1, 8));
CREATE INDEX task_history_name ON task_history (name, region);
CREATE INDEX task_history_failed ON task_history (number) WHERE failed = 1;

-- The sums of the GPU samples of tasks that run. A row is written once a minute, and deleted when the task stops.
CREATE TABLE task_gpu_use (
    task_id         TEXT PRIMARY KEY REFERENCES task (id) ON DELETE CASCADE,
    samples         INTEGER NOT NULL CHECK (samples > 0),
    utilization_sum REAL NOT NULL,
    utilization_max REAL NOT NULL,
    memory_max_mib  INTEGER NOT NULL
) WITHOUT ROWID;
