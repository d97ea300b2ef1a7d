-- The state of Corral. Constraints refuse states that must never happen, even if the code has a bug.
-- Times are seconds since the epoch. The owner of a resource is the principal that created it (model/principal.py). Once this schema is released, a change needs a script in Store.MIGRATIONS.

CREATE TABLE cluster (
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE')),
    details    TEXT NOT NULL,               -- JSON: from the request, for Describe operations
    PRIMARY KEY (region, name)
) WITHOUT ROWID;

CREATE TABLE task_definition (
    region        TEXT NOT NULL,
    family        TEXT NOT NULL,
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE', 'DELETE_IN_PROGRESS')),
    document      TEXT NOT NULL,            -- JSON, in ECS's own shape
    PRIMARY KEY (region, family, revision)
) WITHOUT ROWID;
CREATE INDEX task_definition_by_status ON task_definition (status, region, family, revision);

-- The number of a family's last revision. It stays when the revision is deleted, so that numbers are never reused.
CREATE TABLE task_definition_family (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    PRIMARY KEY (region, name)
) WITHOUT ROWID;

-- Resources that are stored only, and small records that need no table of their own.
CREATE TABLE stored_resource (
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    region     TEXT NOT NULL,               -- empty for a service that has no regions
    name       TEXT NOT NULL,
    created_at REAL NOT NULL,
    owner      TEXT NOT NULL,               -- see model/principal.py; empty: a record that is no resource of its own
    document   TEXT NOT NULL,               -- JSON
    PRIMARY KEY (service, type, region, name)
) WITHOUT ROWID;

CREATE TABLE host (
    id        TEXT PRIMARY KEY,
    name      TEXT NOT NULL,
    boot_id   TEXT NOT NULL,
    connected INTEGER NOT NULL CHECK (connected IN (0, 1)),
    seen_at   REAL NOT NULL,
    links     TEXT NOT NULL DEFAULT '',     -- JSON: the distances between its GPUs, in the order of gpu.position; empty: unknown
    docker    TEXT NOT NULL DEFAULT '',     -- name and version of the container engine; empty: the host has none
    options   TEXT NOT NULL                 -- JSON: the host's own options, as its agent has reported them
) WITHOUT ROWID;

-- An instance is a part of a host. Each host also has an instance of its own, without a region.
CREATE TABLE instance (
    id            TEXT PRIMARY KEY,
    region        TEXT NOT NULL,            -- empty: a host's own instance, which is in its cluster in every region
    cluster       TEXT NOT NULL,            -- the ECS cluster that it joined; empty: none
    type          TEXT NOT NULL,
    state         TEXT NOT NULL
        CHECK (state IN ('pending', 'running') OR state IN ('stopping', 'stopped') OR state IN ('shutting-down', 'terminated')),
    gpus          INTEGER NOT NULL CHECK (gpus >= 0),
    cpu_units     INTEGER NOT NULL,
    memory_mib    INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    host_id       TEXT REFERENCES host (id),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'DRAINING') OR status = 'INACTIVE'),
    terminated_at REAL,
    details       TEXT NOT NULL,            -- JSON: from the request, for Describe operations
    group_name    TEXT NOT NULL DEFAULT '', -- its Auto Scaling group; empty: none
    joins         TEXT NOT NULL DEFAULT '', -- the ECS cluster that its user data names
    launched_at   REAL,                     -- when it last became running
    launch_reason TEXT NOT NULL DEFAULT '',
    end_reason    TEXT NOT NULL DEFAULT '',
    owner         TEXT NOT NULL CHECK (owner != ''),
    CHECK ((state IN ('pending', 'stopped')) <= (host_id IS NULL)),
    CHECK ((state IN ('running', 'stopping') OR state = 'shutting-down') <= (host_id IS NOT NULL)),
    CHECK ((state = 'terminated') = (terminated_at IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX instance_terminated ON instance (terminated_at) WHERE state = 'terminated';
CREATE INDEX instance_of_region ON instance (region, id);
CREATE UNIQUE INDEX instance_of_host ON instance (host_id) WHERE region = '';

-- The custom attributes of a container instance.
CREATE TABLE instance_attribute (
    instance_id TEXT NOT NULL REFERENCES instance (id),
    name        TEXT NOT NULL,
    value       TEXT NOT NULL,              -- empty: the attribute has no value
    PRIMARY KEY (instance_id, name)
) WITHOUT ROWID;

-- The mode is 'shared' while the GPU has leases of parts of its memory, otherwise 'exclusive'. The foreign keys of lease need the
-- two composite UNIQUE constraints. Because of these foreign keys, neither the mode nor the instance can change while a run leases
-- the GPU.
CREATE TABLE gpu (
    id         TEXT PRIMARY KEY,
    host_id    TEXT NOT NULL REFERENCES host (id),
    position   INTEGER NOT NULL,
    model      TEXT NOT NULL,
    memory_mib INTEGER NOT NULL,
    simulated  INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    present    INTEGER NOT NULL CHECK (present IN (0, 1)),    -- 0: its host no longer has it
    mode       TEXT NOT NULL DEFAULT 'exclusive' CHECK (mode IN ('exclusive', 'shared')),
    instance_id TEXT NOT NULL REFERENCES instance (id),
    excluded   INTEGER NOT NULL DEFAULT 0 CHECK (excluded IN (0, 1)),  -- by --exclude-gpus: shown, but tasks do not get it
    foreign_use TEXT NOT NULL DEFAULT '',   -- JSON: [pid, name] of processes that use it and belong to no task; empty: none
    fault      TEXT NOT NULL DEFAULT '',    -- why no task should get it, for example an Xid; empty: it works
    fault_at   REAL,                        -- when the fault was reported
    UNIQUE (id, mode),
    UNIQUE (id, instance_id)
);
CREATE INDEX gpu_of_host ON gpu (host_id, position);
CREATE INDEX gpu_of_instance ON gpu (instance_id, position);
CREATE INDEX gpu_failed ON gpu (instance_id) WHERE fault != '';

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
    roams   INTEGER NOT NULL DEFAULT 0 CHECK (roams IN (0, 1)), -- 1: the task may also get capacity of its cluster's other pool
    owner   TEXT NOT NULL CHECK (owner != ''),
    longest REAL                            -- the longest time from placement to release in seconds; NULL: there is no time limit
);

-- Responses of idempotent requests: a repeated request gets the same response.
CREATE TABLE client_token (
    scope      TEXT NOT NULL,               -- account, region and operation
    token      TEXT NOT NULL,
    request    TEXT NOT NULL,               -- digest of the other parameters
    reply      TEXT NOT NULL,               -- JSON
    expires_at REAL NOT NULL,
    PRIMARY KEY (scope, token)
) WITHOUT ROWID;
CREATE INDEX client_token_expiry ON client_token (expires_at);
