-- Tasks, their runs, leases and claims. A change of a released schema needs a migration in Store.MIGRATIONS (store/state.py).

-- If IN has three or more values, SQLite creates a temporary table for each write that checks them. So the CHECK constraints of
-- tables with many writes have at most two values in IN.
CREATE TABLE task (
    id             TEXT PRIMARY KEY,
    region         TEXT NOT NULL,
    cluster        TEXT NOT NULL,
    definition_arn TEXT NOT NULL,
    family         TEXT NOT NULL,
    pool           TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('PROVISIONING', 'PENDING') OR state IN ('RUNNING', 'STOPPED')),
    desired        TEXT NOT NULL CHECK (desired IN ('RUNNING', 'STOPPED')),
    instance_id    TEXT,                    -- no foreign key is needed: an instance is deleted later than its tasks
    gpus           INTEGER NOT NULL,
    cpu_units      INTEGER NOT NULL,
    memory_mib     INTEGER NOT NULL,
    gpu_memory_mib INTEGER NOT NULL DEFAULT 0,                           -- memory of a shared GPU; 0: it gets whole GPUs
    version        INTEGER NOT NULL,
    task_group     TEXT NOT NULL,
    started_by     TEXT,
    created_at     REAL NOT NULL,
    placed_at      REAL,
    started_at     REAL,
    stopping_at    REAL,
    stopped_at     REAL,
    stop_code      TEXT,
    stopped_reason TEXT,
    details        TEXT NOT NULL,           -- JSON: overrides, tags, network configuration...
    plain          INTEGER NOT NULL DEFAULT 1 CHECK (plain IN (0, 1)),   -- see Task.plain
    time_limit     REAL,                    -- seconds since its start
    rules          TEXT,                    -- JSON: placement constraints and strategies; NULL: none
    launch_type    TEXT NOT NULL DEFAULT 'EC2' CHECK (launch_type IN ('EC2', 'FARGATE')),
    owner          TEXT NOT NULL CHECK (owner != ''),
    pause          TEXT,                    -- JSON: see model/pause.py; NULL: it was never paused, and lends no GPUs
    CHECK ((state = 'PROVISIONING') <= (instance_id IS NULL)),
    CHECK ((state IN ('PENDING', 'RUNNING')) <= (instance_id IS NOT NULL)),
    CHECK ((state = 'STOPPED') = (stopped_at IS NOT NULL))
);
-- Tasks of a family are listed by rowid, which grows with time. SQLite adds the rowid to each index entry, so the entries of a
-- family's newest tasks are neighbours, and a commit writes few pages.
CREATE INDEX task_of_cluster ON task (region, cluster, desired, family);
CREATE INDEX task_started_by ON task (region, cluster, desired, started_by, family) WHERE started_by IS NOT NULL;
CREATE INDEX task_not_on_ec2 ON task (region, cluster, desired, family) WHERE launch_type != 'EC2';
CREATE INDEX task_of_instance ON task (instance_id) WHERE state IN ('PENDING', 'RUNNING');
CREATE INDEX task_of_definition ON task (definition_arn);
CREATE INDEX task_stopped ON task (stopped_at) WHERE state = 'STOPPED';
CREATE INDEX task_with_pause ON task (instance_id) WHERE pause IS NOT NULL AND state != 'STOPPED';

-- Tasks that a reconciler has chosen to stop, but that may still process SQS messages. They receive no further messages.
CREATE TABLE leaving_task (
    task_id   TEXT NOT NULL REFERENCES task (id),
    chosen_by TEXT NOT NULL,                -- the key of the reconciler that has chosen the task: group:… or service:…
    chosen_at REAL NOT NULL,
    PRIMARY KEY (task_id, chosen_by)
) WITHOUT ROWID;

CREATE TABLE run (
    id         TEXT PRIMARY KEY,
    task_id    TEXT NOT NULL REFERENCES task (id) ON DELETE CASCADE,
    position   INTEGER NOT NULL,
    container  TEXT NOT NULL,
    essential  INTEGER NOT NULL CHECK (essential IN (0, 1)),
    gpus       INTEGER NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('PENDING', 'RUNNING') OR state = 'STOPPED'),
    gpu_ids    TEXT NOT NULL,               -- JSON: the GPUs that the run got; the value stays after the end of the run
    pid        INTEGER,
    exit_code  INTEGER,
    reason     TEXT,
    started_at REAL,
    stopped_at REAL,
    waits      INTEGER NOT NULL DEFAULT 0 CHECK (waits = 0 OR (waits = 1 AND state = 'PENDING')),  -- 1: it waits for other runs
    restarts   INTEGER NOT NULL DEFAULT 0,
    health     TEXT CHECK (health IN ('HEALTHY', 'UNHEALTHY')),
    about      TEXT,                        -- JSON: facts about its Docker container; NULL: the run is a process
    gpu_memory_mib INTEGER NOT NULL DEFAULT 0   -- its part of the memory of a shared GPU; 0: it does not share its GPUs
);
CREATE INDEX run_of_task ON run (task_id, position);
CREATE INDEX run_unhealthy ON run (task_id) WHERE health = 'UNHEALTHY' AND state != 'STOPPED';

CREATE TABLE lease (
    gpu_id TEXT NOT NULL,
    run_id TEXT NOT NULL REFERENCES run (id),
    mode   TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    memory_mib INTEGER NOT NULL DEFAULT 0,  -- the memory of the GPU that a shared lease allocates; 0: the lease is exclusive
    millionths INTEGER NOT NULL DEFAULT 1000000 CHECK (millionths BETWEEN 1 AND 1000000),  -- its part of the GPU, by memory
    CHECK ((mode = 'exclusive' AND memory_mib = 0) OR (mode = 'shared' AND memory_mib > 0)),
    PRIMARY KEY (gpu_id, run_id),
    FOREIGN KEY (gpu_id, mode) REFERENCES gpu (id, mode),
    FOREIGN KEY (gpu_id, instance_id) REFERENCES gpu (id, instance_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX lease_exclusive ON lease (gpu_id) WHERE mode = 'exclusive';
CREATE INDEX lease_of_run ON lease (run_id);
CREATE TRIGGER lease_memory BEFORE INSERT ON lease WHEN NEW.mode = 'shared'
BEGIN
    SELECT RAISE(ABORT, 'the leases of a shared GPU allocate more memory than the GPU has')
    WHERE NEW.memory_mib + (SELECT coalesce(sum(memory_mib), 0) FROM lease WHERE gpu_id = NEW.gpu_id)
        > (SELECT memory_mib FROM gpu WHERE id = NEW.gpu_id);
END;
CREATE TRIGGER lease_is_final BEFORE UPDATE ON lease
BEGIN
    SELECT RAISE(ABORT, 'a lease cannot be changed');
END;

-- A claim: a PROVISIONING task or a pending instance waits for capacity of a pool. `job_line.pools` has the claims of Batch jobs.
CREATE TABLE claim (
    number  INTEGER PRIMARY KEY,            -- the store finds the number of a claim in memory, so there is no index on the id
    kind    TEXT NOT NULL CHECK (kind IN ('task', 'instance')),
    id      TEXT NOT NULL,
    pool    TEXT NOT NULL,
    rank    TEXT NOT NULL,                  -- JSON: a list of numbers; the smallest list is served first
    roams   INTEGER NOT NULL DEFAULT 0 CHECK (roams IN (0, 1)), -- 1: the claim may move to another pool
    owner   TEXT NOT NULL CHECK (owner != ''),
    longest REAL                            -- the longest time from placement to release in seconds; NULL: there is no time limit
);
