-- The task queue (model/task_queue.py). A row is deleted when its task has ended. A task can have a claim only in the state
-- 'admitted'.
CREATE TABLE queued_task (
    task_id    TEXT PRIMARY KEY,
    chain      TEXT NOT NULL,               -- the id of the first task of the chain
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'ready') OR state = 'admitted'),
    held       INTEGER NOT NULL CHECK (held IN (0, 1)),
    not_before REAL,                        -- the earliest time of the start; NULL: none, or it has passed
    unmet      INTEGER NOT NULL CHECK (unmet >= 0),  -- the number of its rows in task_dependency
    array      TEXT NOT NULL,               -- task_array.key; empty: none
    position   INTEGER NOT NULL,            -- the index in the array
    requeues   INTEGER NOT NULL CHECK (requeues >= 0),
    attempt    INTEGER NOT NULL,
    roams      INTEGER NOT NULL CHECK (roams IN (0, 1)),  -- see claim.roams
    CHECK (state = 'waiting' OR (held = 0 AND unmet = 0)),
    CHECK (state != 'ready' OR array != '')
) WITHOUT ROWID;
CREATE INDEX queued_task_of_chain ON queued_task (chain);
CREATE INDEX queued_task_not_admitted ON queued_task (state) WHERE state != 'admitted';
CREATE INDEX queued_task_ready ON queued_task (array, position) WHERE state = 'ready';
CREATE INDEX queued_task_by_time ON queued_task (not_before) WHERE not_before IS NOT NULL;

-- The chains and arrays for which a task waits. A row is deleted when the waiting task is informed of the end of the chain or
-- array.
CREATE TABLE task_dependency (
    needed    TEXT NOT NULL,                -- the id of a chain, or array:KEY
    any_end   INTEGER NOT NULL CHECK (any_end IN (0, 1)),   -- 1: a failure also ends the wait; 0: `needed` must succeed
    dependent TEXT NOT NULL REFERENCES queued_task (task_id),  -- SQLite's quick_check needs the columns in the order of the key
    PRIMARY KEY (needed, any_end, dependent)
) WITHOUT ROWID;
CREATE INDEX task_dependency_of ON task_dependency (dependent);

CREATE TABLE task_array (
    key        TEXT PRIMARY KEY,            -- REGION/ID
    max_active INTEGER NOT NULL CHECK (max_active >= 0),    -- 0: no limit
    waiting    INTEGER NOT NULL CHECK (waiting >= 0),
    admitted   INTEGER NOT NULL CHECK (admitted >= 0),
    succeeded  INTEGER NOT NULL CHECK (succeeded >= 0),
    failed     INTEGER NOT NULL CHECK (failed >= 0),
    changed_at REAL NOT NULL,
    CHECK (max_active = 0 OR admitted <= max_active)
) WITHOUT ROWID;
CREATE INDEX task_array_ended ON task_array (changed_at) WHERE waiting = 0 AND admitted = 0;

-- Notices about chains and arrays that have ended. A notice is deleted when all waiting tasks are informed.
CREATE TABLE end_notice (
    needed    TEXT PRIMARY KEY,
    succeeded INTEGER NOT NULL CHECK (succeeded IN (0, 1)),
    final     INTEGER NOT NULL CHECK (final IN (0, 1)),     -- 0: a member has failed, but its array has not ended
    reason    TEXT NOT NULL
) WITHOUT ROWID;
