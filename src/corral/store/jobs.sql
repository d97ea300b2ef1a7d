-- Jobs of AWS Batch. Children of arrays and nodes of multi-node jobs have small rows in a separate table, because an array may have
-- 10,000 children. An array and its children share a row of job_spec.

CREATE TABLE job_spec (
    number   INTEGER PRIMARY KEY,
    digest   BLOB NOT NULL UNIQUE,          -- a hash of the document: equal specs share a row
    document TEXT NOT NULL                  -- JSON: model.job.JobSpec
);

CREATE TABLE job (
    number        INTEGER PRIMARY KEY,      -- grows with time
    id            TEXT NOT NULL UNIQUE,
    region        TEXT NOT NULL,
    queue         TEXT NOT NULL,
    name          TEXT NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('single', 'array') OR kind = 'multi-node'),
    state         TEXT NOT NULL
        CHECK (state IN ('SUBMITTED', 'PENDING') OR state IN ('RUNNABLE', 'STARTING') OR state = 'RUNNING'
               OR state IN ('SUCCEEDED', 'FAILED')),
    spec          INTEGER NOT NULL REFERENCES job_spec (number),
    created_at    REAL NOT NULL,
    size          INTEGER NOT NULL,
    depends_on    TEXT NOT NULL,            -- JSON; empty: none
    started_at    REAL,
    stopped_at    REAL,
    runnable_at   REAL,
    status_reason TEXT NOT NULL,
    task_id       TEXT NOT NULL,
    environment   TEXT NOT NULL,
    attempts      TEXT NOT NULL,            -- JSON; empty: none has ended
    cancelled     INTEGER NOT NULL CHECK (cancelled IN (0, 1)),
    terminated    INTEGER NOT NULL CHECK (terminated IN (0, 1)),
    expanded      INTEGER NOT NULL,         -- see model.job.Job
    check_from    INTEGER,
    definition    TEXT NOT NULL,            -- the name of the job definition
    revision      INTEGER NOT NULL,
    share         TEXT NOT NULL,
    owner         TEXT NOT NULL CHECK (owner != ''),
    CHECK ((state IN ('SUCCEEDED', 'FAILED')) = (stopped_at IS NOT NULL)),
    CHECK ((state IN ('STARTING', 'RUNNING')) <= (task_id != ''))
);
CREATE INDEX job_of_queue ON job (region, queue, state);
CREATE INDEX job_by_name ON job (region, queue, name COLLATE NOCASE);
CREATE INDEX job_by_definition ON job (region, queue, definition);
CREATE INDEX job_by_revision ON job (region, queue, definition, revision);
CREATE INDEX job_by_share ON job (region, queue, share, state) WHERE share != '';
CREATE INDEX job_by_time ON job (region, queue, created_at);
CREATE INDEX job_by_spec ON job (spec);
CREATE INDEX job_stopped ON job (stopped_at) WHERE stopped_at IS NOT NULL;

CREATE TABLE job_child (
    job           INTEGER NOT NULL REFERENCES job (number),
    position      INTEGER NOT NULL,         -- its index in the array, or among the nodes
    state         TEXT NOT NULL
        CHECK (state IN ('PENDING', 'RUNNABLE') OR state IN ('STARTING', 'RUNNING') OR state IN ('SUCCEEDED', 'FAILED')),
    created_at    REAL NOT NULL,
    started_at    REAL,
    stopped_at    REAL,
    runnable_at   REAL,
    status_reason TEXT NOT NULL DEFAULT '',
    task_id       TEXT NOT NULL DEFAULT '',
    environment   TEXT NOT NULL DEFAULT '',
    attempts      TEXT NOT NULL DEFAULT '',
    cancelled     INTEGER NOT NULL DEFAULT 0,
    terminated    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, position),
    CHECK ((state IN ('STARTING', 'RUNNING')) <= (task_id != ''))
) WITHOUT ROWID;

-- How many children of an array are in each state. Children without a row are counted as SUBMITTED, or as FAILED if the array was
-- stopped before they got one.
CREATE TABLE job_summary (
    job        INTEGER PRIMARY KEY REFERENCES job (number),
    submitted  INTEGER NOT NULL CHECK (submitted >= 0),
    pending    INTEGER NOT NULL DEFAULT 0 CHECK (pending >= 0),
    runnable   INTEGER NOT NULL DEFAULT 0 CHECK (runnable >= 0),
    starting   INTEGER NOT NULL DEFAULT 0 CHECK (starting >= 0),
    running    INTEGER NOT NULL DEFAULT 0 CHECK (running >= 0),
    succeeded  INTEGER NOT NULL DEFAULT 0 CHECK (succeeded >= 0),
    failed     INTEGER NOT NULL DEFAULT 0 CHECK (failed >= 0),
    updated_at REAL NOT NULL
);

-- Jobs that wait for other jobs (store/job_dependencies.py). A row is deleted when the needed job has ended and the dependent job
-- has been checked. A row of an N_TO_N dependency is deleted when the dependent array has ended.
CREATE TABLE job_dependency (
    needs     INTEGER NOT NULL,             -- job.number
    position  INTEGER NOT NULL,             -- the index of the needed child; -1: the whole job; -2: N_TO_N
    dependent INTEGER NOT NULL,             -- job.number
    PRIMARY KEY (needs, position, dependent)
) WITHOUT ROWID;

-- Notices: jobs that have ended, and whose dependent jobs have not all been checked yet.
CREATE TABLE job_notice (
    number   INTEGER PRIMARY KEY,
    job      INTEGER NOT NULL,
    position INTEGER NOT NULL,              -- the index of the ended child; -1: the whole job; -3: all children without a row
    after    INTEGER NOT NULL               -- dependent jobs up to this number have been checked
);
