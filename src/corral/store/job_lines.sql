-- Lines of RUNNABLE Batch jobs. The jobs of a line belong to one queue, need the same resources and have the same share identifier
-- and the same owner.

CREATE TABLE job_line (
    id        INTEGER PRIMARY KEY,
    region    TEXT NOT NULL,
    queue     TEXT NOT NULL,                    -- the name of the job queue
    share     TEXT NOT NULL,                    -- the share identifier
    owner     TEXT NOT NULL CHECK (owner != ''),
    demand    TEXT NOT NULL,                    -- JSON: GPUs, CPU units, MiB, and the nodes of a multi-node job
    resources TEXT NOT NULL,                    -- JSON: names and quantities of consumable resources
    by_image  INTEGER NOT NULL,                 -- 1: the image sets NVIDIA_VISIBLE_DEVICES (model.job_line.LineKey)
    pools     TEXT NOT NULL                     -- JSON: [pool, true if its jobs get no GPUs there] for each claim
);

-- The jobs of each line, in the order in which they start.
CREATE TABLE waiting_job (
    line     INTEGER NOT NULL,
    priority INTEGER NOT NULL,                  -- the negated scheduling priority: the first job has the smallest value
    number   INTEGER NOT NULL,                  -- job.number of the job, or of the array if the job is a child
    position INTEGER NOT NULL,                  -- the index of a child of an array; 0 for other jobs
    job_id   TEXT NOT NULL,
    since    REAL NOT NULL,                     -- when the job was created
    PRIMARY KEY (line, priority, number, position)
) WITHOUT ROWID;

-- The vCPUs and consumable resources that the current attempt of a job uses, from the dispatch to the end of the attempt.
CREATE TABLE job_holding (
    job_id         TEXT PRIMARY KEY,
    region         TEXT NOT NULL,
    queue          TEXT NOT NULL,
    share          TEXT NOT NULL,
    environment    TEXT NOT NULL,
    vcpus          REAL NOT NULL,
    weighted_vcpus REAL NOT NULL,               -- the vCPUs that count for the share
    resources      TEXT NOT NULL                -- JSON: names and quantities of consumable resources
) WITHOUT ROWID;

CREATE INDEX job_holding_environment ON job_holding (region, environment);

-- The past use of capacity by each share of a fair share queue.
CREATE TABLE job_share (
    region TEXT NOT NULL,
    queue  TEXT NOT NULL,
    share  TEXT NOT NULL,
    used   REAL NOT NULL,                       -- vCPU seconds until `at`; the value decays with time
    at     REAL NOT NULL,
    PRIMARY KEY (region, queue, share)
) WITHOUT ROWID;

-- The first job of a line, the code of the reason why it waits, and since when it waits for this reason. Only jobs of queues that
-- limit the time of such waits have rows.
CREATE TABLE blocked_job (
    job_id TEXT PRIMARY KEY,
    region TEXT NOT NULL,
    queue  TEXT NOT NULL,
    code   TEXT NOT NULL,
    since  REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX blocked_job_queue ON blocked_job (region, queue);
