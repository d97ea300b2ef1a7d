-- Hosts, their GPUs and instances.

CREATE TABLE host (
    id        TEXT PRIMARY KEY,
    name      TEXT NOT NULL,
    boot_id   TEXT NOT NULL,
    connected INTEGER NOT NULL CHECK (connected IN (0, 1)),
    seen_at   REAL NOT NULL,
    links     TEXT NOT NULL DEFAULT '',     -- JSON: the distances between its GPUs, in the order of gpu.position; empty: unknown
    docker    TEXT NOT NULL DEFAULT '',     -- name and version of the container engine; empty: the host has none
    options   TEXT NOT NULL,                -- JSON: the host's own options, as its agent has reported them
    lost_at   REAL,                         -- when its tasks were given up; NULL: it has connected since then, or never was lost
    lost_reason TEXT NOT NULL DEFAULT '',   -- why they were given up
    drain_until REAL                        -- when its tasks are stopped, because it is drained; NULL: they end by themselves
) WITHOUT ROWID;

-- Runs of tasks that were given up, and that may still be alive on the host. It gets no work until they have ended there.
CREATE TABLE old_run (
    host_id TEXT NOT NULL REFERENCES host (id),
    run_id  TEXT NOT NULL,
    PRIMARY KEY (host_id, run_id)
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
