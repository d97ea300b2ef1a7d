-- The run queue: tasks whose queue options must be known after their launch (model/queued_run.py). A row is deleted when its task
-- has ended. The task may have a claim only if the state is 'admitted'.
CREATE TABLE run_wait (
    task_id    TEXT PRIMARY KEY,
    chain      TEXT NOT NULL,               -- the id of the first task of the chain
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'ready', 'admitted')),
    held       INTEGER NOT NULL CHECK (held IN (0, 1)),
    not_before REAL,                        -- NULL: no time, or it has passed
    unmet      INTEGER NOT NULL CHECK (unmet >= 0),  -- the number of its rows in run_dependency
    array      TEXT NOT NULL,               -- run_array.key; empty: none
    position   INTEGER NOT NULL,            -- the index in the array
    requeues   INTEGER NOT NULL CHECK (requeues >= 0),
    attempt    INTEGER NOT NULL,
    roams      INTEGER NOT NULL CHECK (roams IN (0, 1)),
    CHECK (state = 'waiting' OR (held = 0 AND unmet = 0)),
    CHECK (state != 'ready' OR array != '')
) WITHOUT ROWID;
CREATE INDEX run_wait_of_chain ON run_wait (chain);
CREATE INDEX run_wait_not_admitted ON run_wait (state) WHERE state != 'admitted';
CREATE INDEX run_wait_ready ON run_wait (array, position) WHERE state = 'ready';
CREATE INDEX run_wait_by_time ON run_wait (not_before) WHERE not_before IS NOT NULL;

-- The tasks and arrays for which a task waits. A row is deleted when the task knows of the end.
CREATE TABLE run_dependency (
    needed    TEXT NOT NULL,                -- the id of a chain, or array:KEY
    any_end   INTEGER NOT NULL CHECK (any_end IN (0, 1)),   -- 0: it must end with exit code 0
    dependent TEXT NOT NULL REFERENCES run_wait (task_id),  -- SQLite's quick_check needs the columns in the order of the key
    PRIMARY KEY (needed, any_end, dependent)
) WITHOUT ROWID;
CREATE INDEX run_dependency_of ON run_dependency (dependent);

CREATE TABLE run_array (
    key        TEXT PRIMARY KEY,            -- REGION/ID
    max_active INTEGER NOT NULL CHECK (max_active >= 0),    -- 0: no limit
    waiting    INTEGER NOT NULL CHECK (waiting >= 0),
    admitted   INTEGER NOT NULL CHECK (admitted >= 0),
    succeeded  INTEGER NOT NULL CHECK (succeeded >= 0),
    failed     INTEGER NOT NULL CHECK (failed >= 0),
    changed_at REAL NOT NULL,
    CHECK (max_active = 0 OR admitted <= max_active)
) WITHOUT ROWID;
CREATE INDEX run_array_ended ON run_array (changed_at) WHERE waiting = 0 AND admitted = 0;

-- Ends of chains and arrays that some of the waiting tasks do not know yet.
CREATE TABLE run_end (
    needed    TEXT PRIMARY KEY,
    succeeded INTEGER NOT NULL CHECK (succeeded IN (0, 1)),
    final     INTEGER NOT NULL CHECK (final IN (0, 1)),     -- 0: a member of an array has failed, others have not ended
    reason    TEXT NOT NULL
) WITHOUT ROWID;
