BEGIN TRANSACTION;
CREATE TABLE access_key (
    id           TEXT PRIMARY KEY,
    user         TEXT NOT NULL,             -- the name of the user
    secret       TEXT NOT NULL,             -- encrypted
    status       TEXT NOT NULL CHECK (status IN ('Active', 'Inactive')),
    created_at   REAL NOT NULL,
    used_at      REAL,
    used_service TEXT NOT NULL DEFAULT '',
    used_region  TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE allocation (
    instance_id TEXT PRIMARY KEY REFERENCES instance (id),
    lender      TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('wanted', 'waiting') OR state IN ('running', 'ending')),
    handle      TEXT NOT NULL,              -- the lender's id of it; empty: not known yet
    reason      TEXT NOT NULL,
    digest      TEXT NOT NULL,              -- SHA-256 of the secret with which its pilot joins; empty: none yet
    host_id     TEXT NOT NULL,              -- the host that its pilot is; empty: it has not joined
    running_at  REAL,
    others      TEXT NOT NULL,              -- JSON: the lenders that are asked next
    options     TEXT NOT NULL,              -- JSON: such as the partition of Slurm
    created_at  REAL NOT NULL,
    machine     TEXT NOT NULL DEFAULT '',  -- the lender's name of its machine; empty: not known yet
    said        TEXT NOT NULL DEFAULT ''   -- why its last pilot could not join; empty: nothing
) WITHOUT ROWID;
CREATE TABLE blocked_job (
    job_id TEXT PRIMARY KEY,
    region TEXT NOT NULL,
    queue  TEXT NOT NULL,
    code   TEXT NOT NULL,
    since  REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE bucket (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    region TEXT NOT NULL,
    created_at REAL NOT NULL,
    owner TEXT NOT NULL CHECK (owner != ''),
    versioning TEXT NOT NULL DEFAULT '' CHECK (versioning IN ('', 'Enabled', 'Suspended')),
    -- The next two columns save a query of bucket_document at each change of an object.
    has_lifecycle INTEGER NOT NULL DEFAULT 0,
    has_notifications INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE bucket_document (
    bucket INTEGER NOT NULL REFERENCES bucket (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,  -- the Id of the document; empty if a bucket has at most one document of the kind
    put_at REAL NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (bucket, kind, name)
) WITHOUT ROWID;
CREATE TABLE change_set (
    id       TEXT PRIMARY KEY,                  -- the ARN
    stack_id TEXT NOT NULL REFERENCES stack (id),
    name     TEXT NOT NULL,
    record   TEXT NOT NULL,
    UNIQUE (stack_id, name)
) WITHOUT ROWID;
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
INSERT INTO "claim" VALUES(2,'task','waiting','hosts:default','[0,1.0]',0,'root',NULL);
CREATE TABLE client_token (
    scope      TEXT NOT NULL,               -- account, region and operation
    token      TEXT NOT NULL,
    request    TEXT NOT NULL,               -- digest of the other parameters
    reply      TEXT NOT NULL,               -- JSON
    expires_at REAL NOT NULL,
    PRIMARY KEY (scope, token)
) WITHOUT ROWID;
CREATE TABLE cluster (
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE')),
    details    TEXT NOT NULL,               -- JSON: from the request, for Describe operations
    owner      TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),   -- of a cluster without a row: root
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
INSERT INTO "cluster" VALUES('r','mine','ACTIVE','{}','root');
CREATE TABLE content (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    refs INTEGER NOT NULL CHECK (refs >= 0)
);
CREATE TABLE content_part (
    content INTEGER NOT NULL REFERENCES content (id),
    number INTEGER NOT NULL,
    blob TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL CHECK (size >= 0),
    etag TEXT NOT NULL,
    checksums TEXT NOT NULL,
    modified_at REAL NOT NULL,
    writer TEXT,  -- of a part of a multipart upload; see object_version.writers
    PRIMARY KEY (content, number)
) WITHOUT ROWID;
CREATE TABLE deduplication (
    -- The number of a FIFO queue, which a purge changes (`Queue.deduplication_owner`), or the negative number of a FIFO topic of SNS.
    -- Numbers are not reused, so rows of a deleted queue expire.
    queue INTEGER NOT NULL,
    scope TEXT NOT NULL,  -- the message group; empty: the whole queue
    deduplication_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    id INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, scope, deduplication_id)
) WITHOUT ROWID;
CREATE TABLE due (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE ecs_service (
    region     TEXT NOT NULL,
    cluster    TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('ACTIVE', 'DRAINING', 'INACTIVE')),
    strategy   TEXT NOT NULL CHECK (strategy IN ('REPLICA', 'DAEMON')),
    deleted_at REAL,
    owner      TEXT NOT NULL CHECK (owner != ''),
    document   TEXT NOT NULL,               -- JSON: the other fields of model.ecs_service.EcsService
    PRIMARY KEY (region, cluster, name)
) WITHOUT ROWID;
CREATE TABLE ecs_service_deployment (
    number   INTEGER PRIMARY KEY,           -- grows with time
    id       TEXT NOT NULL,                 -- the last part of its ARN
    region   TEXT NOT NULL,
    cluster  TEXT NOT NULL,
    name     TEXT NOT NULL,                 -- the name of the service
    revision TEXT NOT NULL,                 -- the last part of the ARN of its service revision
    status   TEXT NOT NULL,
    document TEXT NOT NULL                  -- JSON: model.ecs_service.ServiceRollout
);
CREATE TABLE ecs_service_event (
    number  INTEGER PRIMARY KEY,            -- grows with time
    id      TEXT NOT NULL,
    region  TEXT NOT NULL,
    cluster TEXT NOT NULL,
    name    TEXT NOT NULL,
    at      REAL NOT NULL,
    message TEXT NOT NULL
);
CREATE TABLE end_notice (
    needed    TEXT PRIMARY KEY,
    succeeded INTEGER NOT NULL CHECK (succeeded IN (0, 1)),
    final     INTEGER NOT NULL CHECK (final IN (0, 1)),     -- 0: a member has failed, but its array has not ended
    reason    TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE event_batch (
    invocation TEXT PRIMARY KEY,      -- the id of the invocation, which is lost if Corral ends before it
    mapping    TEXT NOT NULL,         -- REGION/UUID
    queue      TEXT NOT NULL,         -- the ARN of the queue
    receipts   TEXT NOT NULL          -- JSON: a list of [MessageId, ReceiptHandle]
) WITHOUT ROWID;
CREATE TABLE expiry (
    bucket INTEGER NOT NULL REFERENCES bucket (id) ON DELETE CASCADE,
    key BLOB NOT NULL,
    upload TEXT NOT NULL,  -- the id of the upload; empty: the key with its versions
    at REAL NOT NULL,
    PRIMARY KEY (bucket, key, upload)
) WITHOUT ROWID;
CREATE TABLE expiry_walk (
    bucket INTEGER PRIMARY KEY REFERENCES bucket (id) ON DELETE CASCADE,
    upload INTEGER NOT NULL,  -- upload.content of the last scheduled upload
    key BLOB NOT NULL  -- the last scheduled key; the walk visits the uploads first, then the keys
);
CREATE TABLE function_code (
    id  INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: the folder with the extracted code has this name
    zip BLOB NOT NULL
);
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
INSERT INTO "gpu" VALUES('GPU-h-0','h',0,'Simulated',16000,1,1,'exclusive','2bedac7ce67e4d63efd5fba049d3c507',0,'','',NULL);
INSERT INTO "gpu" VALUES('GPU-h-1','h',1,'Simulated',16000,1,1,'exclusive','2bedac7ce67e4d63efd5fba049d3c507',0,'','',NULL);
INSERT INTO "gpu" VALUES('GPU-h-2','h',2,'Simulated',16000,1,1,'exclusive','2bedac7ce67e4d63efd5fba049d3c507',0,'','',NULL);
INSERT INTO "gpu" VALUES('GPU-h-3','h',3,'Simulated',16000,1,1,'exclusive','2bedac7ce67e4d63efd5fba049d3c507',0,'','',NULL);
CREATE TABLE group_member (
    instance_id TEXT PRIMARY KEY,               -- no foreign key: the row of a terminated instance may be deleted first
    region      TEXT NOT NULL,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN
        ('Pending', 'Pending:Wait', 'InService', 'Standby', 'Terminating:Wait', 'Terminating', 'Terminating:Proceed')),
    record      TEXT NOT NULL,
    FOREIGN KEY (region, name) REFERENCES scaling_group (region, name)
) WITHOUT ROWID;
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
INSERT INTO "host" VALUES('h','host h','boot',1,1.0,'','','{"gpus":"auto","exclude-gpus":"","runtime":"auto","cluster":"default","instance-type":"corral.host","rack":"","labels":"","address":"","interface":""}',NULL,'',NULL);
CREATE TABLE idle_holder (
    id       TEXT PRIMARY KEY,              -- of the task or the instance
    since    REAL NOT NULL,
    noted_at REAL                           -- when a notification was sent; NULL: not yet
) WITHOUT ROWID;
CREATE TABLE image (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    repository INTEGER NOT NULL REFERENCES repository (id),
    digest TEXT NOT NULL,
    media_type TEXT NOT NULL,
    artifact_type TEXT,
    size INTEGER NOT NULL,
    subject TEXT,
    pushed_at REAL NOT NULL,
    pulled_at REAL,
    manifest BLOB NOT NULL,                 -- exactly the bytes that were pushed, because the digest is computed from them
    UNIQUE (repository, digest)
);
CREATE TABLE image_part (
    image INTEGER NOT NULL REFERENCES image (number) ON DELETE CASCADE,
    digest TEXT NOT NULL,
    repository INTEGER NOT NULL,
    PRIMARY KEY (image, digest)
) WITHOUT ROWID;
CREATE TABLE image_tag (
    repository INTEGER NOT NULL REFERENCES repository (id),
    tag TEXT NOT NULL,
    image INTEGER NOT NULL REFERENCES image (number),
    writer TEXT,                            -- the program in a container that set the tag: ROLE/SESSION. NULL: no container
    PRIMARY KEY (repository, tag)
) WITHOUT ROWID;
CREATE TABLE inbox (origin TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (origin, id)) WITHOUT ROWID;
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
INSERT INTO "instance" VALUES('2bedac7ce67e4d63efd5fba049d3c507','','default','corral.host','running',4,4096,4096,1.0,'h','ACTIVE',NULL,'{}','','default',NULL,'','','root');
CREATE TABLE instance_attribute (
    instance_id TEXT NOT NULL REFERENCES instance (id),
    name        TEXT NOT NULL,
    value       TEXT NOT NULL,              -- empty: the attribute has no value
    PRIMARY KEY (instance_id, name)
) WITHOUT ROWID;
CREATE TABLE instance_refresh (
    id         TEXT PRIMARY KEY,
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at   REAL,
    record     TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE instance_usage (
    id            INTEGER PRIMARY KEY,
    instance_id   TEXT NOT NULL,
    region        TEXT NOT NULL,
    type          TEXT NOT NULL,
    group_name    TEXT NOT NULL,            -- its Auto Scaling group; empty: none
    stack         TEXT NOT NULL,            -- its CloudFormation stack; empty: none
    market        TEXT NOT NULL CHECK (market IN ('on-demand', 'spot')),  -- the market that the launch requested
    gpus          INTEGER NOT NULL CHECK (gpus >= 0),
    began_at      REAL NOT NULL,
    billed_until  REAL CHECK (billed_until >= began_at),                  -- NULL: the instance runs
    owner         TEXT NOT NULL DEFAULT 'root' CHECK (owner != '')        -- of the instance
);
CREATE TABLE invocation (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,  -- the request id
    region     TEXT NOT NULL,
    function   TEXT NOT NULL,
    is_async   INTEGER NOT NULL CHECK (is_async IN (0, 1)),
    state      TEXT NOT NULL CHECK (state IN ('queued', 'running') OR state IN ('succeeded', 'failed')),
    payload    BLOB NOT NULL,
    context    TEXT NOT NULL,         -- the ClientContext of the request
    attempts   INTEGER NOT NULL,      -- attempts that have ended
    created_at REAL NOT NULL,
    due_at     REAL NOT NULL,         -- if queued: the time of the next attempt; if ended: the time of the end
    result     BLOB NOT NULL,
    log        BLOB NOT NULL          -- the end of the log of the last attempt
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
CREATE TABLE job_definition (
    region        TEXT NOT NULL,
    family        TEXT NOT NULL,            -- the name of the job definition
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE')),
    document      TEXT NOT NULL,            -- JSON, in Batch's own shape
    owner         TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    PRIMARY KEY (region, family, revision)
) WITHOUT ROWID;
CREATE TABLE job_definition_family (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
CREATE TABLE job_dependency (
    needs     INTEGER NOT NULL,             -- job.number
    position  INTEGER NOT NULL,             -- the index of the needed child; -1: the whole job; -2: N_TO_N
    dependent INTEGER NOT NULL,             -- job.number
    PRIMARY KEY (needs, position, dependent)
) WITHOUT ROWID;
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
CREATE TABLE job_notice (
    number   INTEGER PRIMARY KEY,
    job      INTEGER NOT NULL,
    position INTEGER NOT NULL,              -- the index of the ended child; -1: the whole job; -3: all children without a row
    after    INTEGER NOT NULL               -- dependent jobs up to this number have been checked
);
CREATE TABLE job_share (
    region TEXT NOT NULL,
    queue  TEXT NOT NULL,
    share  TEXT NOT NULL,
    used   REAL NOT NULL,                       -- vCPU seconds until `at`; the value decays with time
    at     REAL NOT NULL,
    PRIMARY KEY (region, queue, share)
) WITHOUT ROWID;
CREATE TABLE job_spec (
    number   INTEGER PRIMARY KEY,
    digest   BLOB NOT NULL UNIQUE,          -- a hash of the document: equal specs share a row
    document TEXT NOT NULL                  -- JSON: model.job.JobSpec
);
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
CREATE TABLE join_token (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,               -- SHA-256 of its secret, which is not stored
    uses       INTEGER NOT NULL CHECK (uses > 0),
    used       INTEGER NOT NULL DEFAULT 0 CHECK (used BETWEEN 0 AND uses),
    cluster    TEXT NOT NULL,               -- empty: hosts choose their cluster
    rack       TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE joined_host (
    id             TEXT PRIMARY KEY,        -- the id of the host, as in the table host; the certificate of the host has it
    name           TEXT NOT NULL,
    key_digest     TEXT NOT NULL,           -- SHA-256 of its public key: a host that repeats its request to join keeps its id
    token_id       TEXT NOT NULL,           -- the token with which it joined last
    serial         TEXT NOT NULL,           -- of its certificate
    earlier_serial TEXT NOT NULL DEFAULT '', -- of the certificate that it renewed last: it may not have stored the new one
    cluster        TEXT NOT NULL,           -- set by its token; empty: the option of the host counts
    rack           TEXT NOT NULL,           -- set by its token; empty: the option of the host counts
    address        TEXT NOT NULL,           -- the address from which its agent connected last
    version        TEXT NOT NULL,           -- of its agent
    joined_at      REAL NOT NULL,
    revoked_at     REAL,                    -- NULL: its certificate is valid
    machine        TEXT NOT NULL DEFAULT '{}', -- JSON: the fingerprint of its machine
    refused        TEXT NOT NULL DEFAULT '{}', -- JSON: the fingerprint of another machine that last presented its certificate
    refused_address TEXT NOT NULL DEFAULT '', -- of that machine
    forgotten_at   REAL                     -- NULL: it has connected since it was forgotten, or never was
) WITHOUT ROWID;
CREATE TABLE layer (
    digest TEXT PRIMARY KEY,
    content INTEGER NOT NULL REFERENCES content (id),
    size INTEGER NOT NULL CHECK (size >= 0)
) WITHOUT ROWID;
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
INSERT INTO "lease" VALUES('GPU-h-0','run-placed','exclusive','2bedac7ce67e4d63efd5fba049d3c507',0,1000000);
CREATE TABLE leaving_task (
    task_id   TEXT NOT NULL REFERENCES task (id),
    chosen_by TEXT NOT NULL,                -- the key of the reconciler that has chosen the task: group:… or service:…
    chosen_at REAL NOT NULL,
    PRIMARY KEY (task_id, chosen_by)
) WITHOUT ROWID;
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    sent_ms INTEGER NOT NULL,
    sender TEXT NOT NULL,
    group_id TEXT,
    deduplication_id TEXT,
    trace TEXT,
    source_arn TEXT,  -- for a dead letter: the queue that it came from
    attributes TEXT,
    bytes INTEGER NOT NULL,  -- size of body and attributes
    body TEXT NOT NULL
);
CREATE TABLE message_group (
    pile INTEGER NOT NULL,
    name TEXT NOT NULL,
    ready_ms INTEGER NOT NULL,
    PRIMARY KEY (pile, name)
) WITHOUT ROWID;
CREATE TABLE move_task (
    id TEXT PRIMARY KEY,
    source INTEGER NOT NULL REFERENCES queue (id) ON DELETE CASCADE,
    source_arn TEXT NOT NULL,
    destination_arn TEXT,
    per_s INTEGER,
    status TEXT NOT NULL,
    to_move INTEGER NOT NULL,
    moved INTEGER NOT NULL DEFAULT 0,
    started_ms INTEGER NOT NULL,
    failure TEXT
);
CREATE TABLE object_version (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    bucket INTEGER NOT NULL REFERENCES bucket (id),
    key BLOB NOT NULL,
    id TEXT NOT NULL,
    latest INTEGER NOT NULL CHECK (latest IN (0, 1)),
    content INTEGER,  -- content.refs counts it; a foreign key would need another index, or a scan for each deleted content
    size INTEGER NOT NULL,
    etag TEXT NOT NULL,
    modified_at REAL NOT NULL,
    details TEXT NOT NULL,
    upload_id TEXT,
    -- The programs in containers that wrote the version: ROLE/SESSION, separated by spaces. NULL: no container wrote it.
    writers TEXT
);
CREATE TABLE old_run (
    host_id TEXT NOT NULL REFERENCES host (id),
    run_id  TEXT NOT NULL,
    PRIMARY KEY (host_id, run_id)
) WITHOUT ROWID;
CREATE TABLE outbox (
    id      INTEGER PRIMARY KEY,
    origin  TEXT NOT NULL,
    lane    TEXT NOT NULL,                      -- the receiving lane
    kind    TEXT NOT NULL,                      -- the receiver in that lane
    key     TEXT,                               -- a later row of the same lane, kind and key replaces this one
    payload BLOB NOT NULL                       -- JSON: a list of arguments
);
CREATE TABLE owner_hour (
    owner      TEXT NOT NULL CHECK (owner != ''),
    hour       INTEGER NOT NULL,            -- its steady time, in hours since the epoch
    gpu_s      REAL NOT NULL DEFAULT 0 CHECK (gpu_s >= 0),
    idle_gpu_s REAL NOT NULL DEFAULT 0 CHECK (idle_gpu_s >= 0),  -- the part of `gpu_s` in which the GPUs did nothing, as sampled
    PRIMARY KEY (owner, hour)
) WITHOUT ROWID;
CREATE TABLE owner_use (
    owner TEXT PRIMARY KEY CHECK (owner != ''),
    used  REAL NOT NULL CHECK (used >= 0),  -- GPU-seconds until `at`; use of an earlier time counts less
    at    REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE parameter (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    tags   TEXT NOT NULL DEFAULT '{}',      -- JSON
    owner  TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
CREATE TABLE parameter_version (
    region      TEXT NOT NULL,
    name        TEXT NOT NULL,
    version     INTEGER NOT NULL,
    type        TEXT NOT NULL CHECK (type IN ('String', 'StringList', 'SecureString')),
    value       TEXT NOT NULL,              -- encrypted for a SecureString
    modified_at REAL NOT NULL,
    modified_by TEXT NOT NULL,
    details     TEXT NOT NULL,              -- JSON
    labels      TEXT NOT NULL DEFAULT '[]', -- JSON
    PRIMARY KEY (region, name, version),
    FOREIGN KEY (region, name) REFERENCES parameter (region, name) ON DELETE CASCADE
);
CREATE TABLE pile (id INTEGER PRIMARY KEY AUTOINCREMENT, owned INTEGER NOT NULL DEFAULT 1 CHECK (owned IN (0, 1)));
CREATE TABLE place (
    pile INTEGER NOT NULL,
    id INTEGER NOT NULL,
    visible_ms INTEGER,  -- NULL in a FIFO queue for a message that is not delayed: its group says when it can be received
    receives INTEGER NOT NULL DEFAULT 0,
    receives_before INTEGER NOT NULL DEFAULT 0,  -- for a dead letter: receives in the queue that it came from
    first_received_ms INTEGER,
    received_ms INTEGER,
    task_id TEXT,  -- the task that received it last
    group_id TEXT,  -- FIFO queues only
    PRIMARY KEY (pile, id)
) WITHOUT ROWID;
CREATE TABLE policy_alarm (
    policy TEXT NOT NULL,                       -- ARN
    alarm  TEXT NOT NULL,                       -- ARN
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE TABLE private_environment (
    key        TEXT PRIMARY KEY,             -- the key of the S3 object
    tasks      INTEGER NOT NULL CHECK (tasks >= 0), -- tasks that refer to the object and have not ended
    kept_until REAL NOT NULL,                -- when the object is deleted, if no such task is left then
    uploader   TEXT NOT NULL                 -- the session that has uploaded the object; empty: the root user
) WITHOUT ROWID;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    region TEXT NOT NULL,
    name TEXT NOT NULL,
    pile INTEGER NOT NULL UNIQUE REFERENCES pile (id),
    created_ms INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    purged_ms INTEGER,
    dead_letters TEXT,  -- the ARN of its dead-letter queue
    owner TEXT NOT NULL CHECK (owner != ''),
    attributes TEXT NOT NULL,
    tags TEXT NOT NULL,
    UNIQUE (region, name)
);
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
CREATE TABLE receive_attempt (
    queue INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    given TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, attempt_id)
) WITHOUT ROWID;
CREATE TABLE repository (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    region TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    about TEXT NOT NULL,                    -- JSON: the settings
    tags TEXT NOT NULL DEFAULT '{}',        -- JSON
    owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    UNIQUE (region, name)
);
CREATE TABLE repository_layer (
    repository INTEGER NOT NULL REFERENCES repository (id),
    digest TEXT NOT NULL REFERENCES layer (digest),
    unused_since REAL,                      -- NULL: an image of this repository uses the layer
    PRIMARY KEY (repository, digest)
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
INSERT INTO "run" VALUES('run-placed','placed',0,'c',1,1,'PENDING','["GPU-h-0"]',NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,0);
INSERT INTO "run" VALUES('run-waiting','waiting',0,'c',1,1,'PENDING','[]',NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,0);
CREATE TABLE scaling_activity (
    number   INTEGER PRIMARY KEY,               -- grows in the order in which the activities began
    id       TEXT NOT NULL UNIQUE,
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,                     -- the name of the group, which may have been deleted
    ended_at REAL,                              -- NULL: in progress
    record   TEXT NOT NULL
);
CREATE TABLE scaling_group (
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,
    min_size INTEGER NOT NULL,
    max_size INTEGER NOT NULL,
    desired  INTEGER NOT NULL,
    owner    TEXT NOT NULL CHECK (owner != ''),
    record   TEXT NOT NULL,
    PRIMARY KEY (region, name),
    CHECK (0 <= min_size AND min_size <= desired AND desired <= max_size)
) WITHOUT ROWID;
CREATE TABLE scaling_request (
    policy       TEXT NOT NULL,                 -- ARN
    alarm        TEXT NOT NULL,                 -- ARN
    region       TEXT NOT NULL,                 -- of the policy
    target       TEXT NOT NULL,                 -- what the policy scales: GROUP or NAMESPACE:RESOURCE; empty if unknown
    state        TEXT NOT NULL,                 -- the state of the alarm
    period_value REAL,                          -- see model.alarm.ScalingRequest, also for the next two columns
    newest_value REAL,
    peak_value   REAL,
    threshold    REAL NOT NULL,
    since_s      REAL NOT NULL,                 -- when the alarm entered its state
    whole        INTEGER NOT NULL,              -- 1: the ended periods have caused the state; 0: only single seconds
    measured_s   REAL,                          -- see model.alarm.ScalingRequest
    asked_s      REAL NOT NULL,                 -- when the metrics lane sent the request
    progress     TEXT NOT NULL,                 -- JSON of Progress in model/alarm.py
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE TABLE schema_origin (digest TEXT NOT NULL, corral TEXT NOT NULL);
INSERT INTO "schema_origin" VALUES('0aebc18c746bf46f987c66727732eebd','');
CREATE TABLE secret (
    region      TEXT NOT NULL,
    name        TEXT NOT NULL,
    suffix      TEXT NOT NULL,              -- the random characters at the end of the ARN
    owner       TEXT NOT NULL CHECK (owner != ''),
    created_at  REAL NOT NULL,
    changed_at  REAL NOT NULL,
    accessed_at REAL,
    delete_at   REAL,                       -- the end of the recovery window; NULL: not scheduled for deletion
    details     TEXT NOT NULL,              -- JSON
    tags        TEXT,                       -- JSON; NULL: the secret has never had tags
    policy      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
CREATE TABLE secret_version (
    region      TEXT NOT NULL,
    secret      TEXT NOT NULL,
    number      INTEGER NOT NULL,           -- versions are numbered in the order of their creation
    id          TEXT NOT NULL,
    value       TEXT NOT NULL,              -- encrypted
    is_binary   INTEGER NOT NULL CHECK (is_binary IN (0, 1)),
    created_at  REAL NOT NULL,
    accessed_at REAL,
    stages      TEXT NOT NULL,              -- JSON
    PRIMARY KEY (region, secret, number),
    UNIQUE (region, secret, id),
    FOREIGN KEY (region, secret) REFERENCES secret (region, name) ON DELETE CASCADE
);
CREATE TABLE service_use (
    entity  TEXT NOT NULL,                  -- user/NAME or role/NAME
    service TEXT NOT NULL,
    region  TEXT NOT NULL,
    used_at REAL NOT NULL,
    PRIMARY KEY (entity, service)
) WITHOUT ROWID;
CREATE TABLE stack (
    id         TEXT PRIMARY KEY,                -- the ARN
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL,
    created_at REAL NOT NULL,
    deleted_at REAL,                            -- NULL: not deleted
    parent_id  TEXT NOT NULL DEFAULT '',        -- for a nested stack: the ARN of its parent
    owner      TEXT NOT NULL CHECK (owner != ''),
    record     TEXT NOT NULL,
    CHECK ((status = 'DELETE_COMPLETE') = (deleted_at IS NOT NULL))
) WITHOUT ROWID;
CREATE TABLE stack_event (
    number   INTEGER PRIMARY KEY,               -- grows in the order in which the events happened
    id       TEXT NOT NULL,
    stack_id TEXT NOT NULL REFERENCES stack (id),
    record   TEXT NOT NULL
);
CREATE TABLE stack_export (
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    stack_id TEXT NOT NULL REFERENCES stack (id),
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
CREATE TABLE stack_import (
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,
    stack_id TEXT NOT NULL REFERENCES stack (id),
    PRIMARY KEY (region, name, stack_id)
) WITHOUT ROWID;
CREATE TABLE stack_resource (
    stack_id    TEXT NOT NULL REFERENCES stack (id),
    key         TEXT NOT NULL,                  -- the logical id; ID/NUMBER for a leftover, which must be deleted
    physical_id TEXT,                           -- NULL: not created
    record      TEXT NOT NULL,
    PRIMARY KEY (stack_id, key)
) WITHOUT ROWID;
CREATE TABLE stack_template (
    stack_id  TEXT NOT NULL REFERENCES stack (id),
    number    INTEGER NOT NULL,
    original  TEXT NOT NULL,                    -- the text of the request
    processed TEXT NOT NULL,                    -- JSON, after transforms
    PRIMARY KEY (stack_id, number)
) WITHOUT ROWID;
CREATE TABLE stored_bytes (
    owner TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
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
CREATE TABLE subject_limits (
    subject  TEXT PRIMARY KEY CHECK (subject != ''),  -- user/NAME, group/NAME, everyone or root
    limits   TEXT NOT NULL                            -- JSON: the members of `model.limits.Limits`
) WITHOUT ROWID;
CREATE TABLE target_activity (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    region     TEXT NOT NULL,
    resource   TEXT NOT NULL,                   -- service/CLUSTER/SERVICE
    started_at REAL NOT NULL,
    is_scaled  INTEGER NOT NULL,                -- 0: the activity says why nothing was done
    document   TEXT NOT NULL                    -- JSON: the activity as DescribeScalingActivities shows it
);
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
INSERT INTO "task" VALUES('placed','r','default','arn','','hosts:default','PENDING','RUNNING','2bedac7ce67e4d63efd5fba049d3c507',1,0,0,0,2,'',NULL,1.0,2.0,NULL,NULL,NULL,NULL,NULL,'{}',1,NULL,NULL,'EC2','root',NULL);
INSERT INTO "task" VALUES('waiting','r','default','arn','','hosts:default','PROVISIONING','RUNNING',NULL,1,0,0,0,1,'',NULL,1.0,NULL,NULL,NULL,NULL,NULL,NULL,'{}',1,NULL,NULL,'EC2','root',NULL);
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
CREATE TABLE task_definition (
    region        TEXT NOT NULL,
    family        TEXT NOT NULL,
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE', 'DELETE_IN_PROGRESS')),
    document      TEXT NOT NULL,            -- JSON, in ECS's own shape
    owner         TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    PRIMARY KEY (region, family, revision)
) WITHOUT ROWID;
INSERT INTO "task_definition" VALUES('r','train',1,'ACTIVE','{"family":"train"}','root');
CREATE TABLE task_definition_family (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
INSERT INTO "task_definition_family" VALUES('r','train',1);
CREATE TABLE task_dependency (
    needed    TEXT NOT NULL,                -- the id of a chain, or array:KEY
    any_end   INTEGER NOT NULL CHECK (any_end IN (0, 1)),   -- 1: a failure also ends the wait; 0: `needed` must succeed
    dependent TEXT NOT NULL REFERENCES queued_task (task_id),  -- SQLite's quick_check needs the columns in the order of the key
    PRIMARY KEY (needed, any_end, dependent)
) WITHOUT ROWID;
CREATE TABLE task_gpu_use (
    task_id         TEXT PRIMARY KEY REFERENCES task (id) ON DELETE CASCADE,
    samples         INTEGER NOT NULL CHECK (samples > 0),
    utilization_sum REAL NOT NULL,
    utilization_max REAL NOT NULL,
    memory_max_mib  INTEGER NOT NULL
) WITHOUT ROWID;
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
CREATE TABLE upload (
    content INTEGER PRIMARY KEY REFERENCES content (id),
    id TEXT NOT NULL UNIQUE,
    bucket INTEGER NOT NULL REFERENCES bucket (id),
    key BLOB NOT NULL,
    initiated_at REAL NOT NULL,
    details TEXT NOT NULL
);
CREATE TABLE waiting_job (
    line     INTEGER NOT NULL,
    priority INTEGER NOT NULL,                  -- the negated scheduling priority: the first job has the smallest value
    number   INTEGER NOT NULL,                  -- job.number of the job, or of the array if the job is a child
    position INTEGER NOT NULL,                  -- the index of a child of an array; 0 for other jobs
    job_id   TEXT NOT NULL,
    since    REAL NOT NULL,                     -- when the job was created
    PRIMARY KEY (line, priority, number, position)
) WITHOUT ROWID;
CREATE TABLE watch (key TEXT NOT NULL, changed TEXT NOT NULL, PRIMARY KEY (key, changed)) WITHOUT ROWID;
CREATE INDEX task_definition_by_status ON task_definition (status, region, family, revision);
CREATE INDEX client_token_expiry ON client_token (expires_at);
CREATE INDEX instance_terminated ON instance (terminated_at) WHERE state = 'terminated';
CREATE INDEX instance_of_region ON instance (region, id);
CREATE UNIQUE INDEX instance_of_host ON instance (host_id) WHERE region = '';
CREATE INDEX gpu_of_host ON gpu (host_id, position);
CREATE INDEX gpu_of_instance ON gpu (instance_id, position);
CREATE INDEX gpu_failed ON gpu (instance_id) WHERE fault != '';
CREATE INDEX task_of_cluster ON task (region, cluster, desired, family);
CREATE INDEX task_started_by ON task (region, cluster, desired, started_by, family) WHERE started_by IS NOT NULL;
CREATE INDEX task_not_on_ec2 ON task (region, cluster, desired, family) WHERE launch_type != 'EC2';
CREATE INDEX task_of_instance ON task (instance_id) WHERE state IN ('PENDING', 'RUNNING');
CREATE INDEX task_of_definition ON task (definition_arn);
CREATE INDEX task_stopped ON task (stopped_at) WHERE state = 'STOPPED';
CREATE INDEX task_with_pause ON task (instance_id) WHERE pause IS NOT NULL AND state != 'STOPPED';
CREATE INDEX run_of_task ON run (task_id, position);
CREATE INDEX run_unhealthy ON run (task_id) WHERE health = 'UNHEALTHY' AND state != 'STOPPED';
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
CREATE INDEX task_history_id ON task_history (substr(id, 1, 8));
CREATE INDEX task_history_name ON task_history (name, region);
CREATE INDEX task_history_failed ON task_history (number) WHERE failed = 1;
CREATE UNIQUE INDEX instance_usage_running ON instance_usage (instance_id) WHERE billed_until IS NULL;
CREATE INDEX instance_usage_billed ON instance_usage (billed_until);
CREATE INDEX pile_left ON pile (id) WHERE owned = 0;
CREATE INDEX queue_dead_letters ON queue (region, dead_letters, name) WHERE dead_letters IS NOT NULL;
CREATE INDEX place_visible ON place (pile, visible_ms, receives) WHERE visible_ms IS NOT NULL;
CREATE INDEX place_group ON place (pile, group_id, id) WHERE group_id IS NOT NULL;
CREATE INDEX place_task ON place (task_id, visible_ms) WHERE task_id IS NOT NULL;
CREATE INDEX message_group_ready ON message_group (pile, ready_ms);
CREATE INDEX deduplication_expires ON deduplication (expires_ms);
CREATE INDEX receive_attempt_expires ON receive_attempt (expires_ms);
CREATE INDEX move_task_source ON move_task (source, started_ms);
CREATE INDEX content_garbage ON content (id) WHERE refs = 0;
CREATE INDEX object_version_age ON object_version (bucket, key, number DESC);
CREATE UNIQUE INDEX object_version_id ON object_version (bucket, key, id);
CREATE UNIQUE INDEX object_current ON object_version (bucket, key) WHERE latest = 1 AND content IS NOT NULL;
CREATE INDEX object_version_upload ON object_version (upload_id) WHERE upload_id IS NOT NULL;
CREATE INDEX upload_key ON upload (bucket, key, content);
CREATE INDEX expiry_at ON expiry (at);
CREATE INDEX layer_holder ON repository_layer (digest);
CREATE INDEX layer_unused ON repository_layer (unused_since) WHERE unused_since IS NOT NULL;
CREATE INDEX image_order ON image (repository);
CREATE INDEX image_subject ON image (repository, subject) WHERE subject IS NOT NULL;
CREATE INDEX tag_of_image ON image_tag (image);
CREATE INDEX part_of_image ON image_part (repository, digest);
CREATE INDEX scaling_request_alarm ON scaling_request (alarm);
CREATE INDEX scaling_request_target ON scaling_request (region, target);
CREATE INDEX policy_alarm_alarm ON policy_alarm (alarm);
CREATE INDEX target_activity_resource ON target_activity (region, resource, number);
CREATE INDEX target_activity_started ON target_activity (started_at);
CREATE INDEX ecs_service_daemon ON ecs_service (cluster, region, name) WHERE strategy = 'DAEMON' AND status = 'ACTIVE';
CREATE INDEX ecs_service_deleted ON ecs_service (deleted_at) WHERE status = 'INACTIVE';
CREATE INDEX ecs_service_event_of ON ecs_service_event (region, cluster, name);
CREATE UNIQUE INDEX ecs_service_deployment_id ON ecs_service_deployment (region, cluster, name, id);
CREATE INDEX ecs_service_deployment_revision ON ecs_service_deployment (region, cluster, name, revision);
CREATE INDEX group_member_group ON group_member (region, name);
CREATE INDEX scaling_activity_open ON scaling_activity (region, name) WHERE ended_at IS NULL;
CREATE INDEX scaling_activity_ended ON scaling_activity (region, name) WHERE ended_at IS NOT NULL;
CREATE INDEX scaling_activity_age ON scaling_activity (ended_at);
CREATE INDEX instance_refresh_group ON instance_refresh (region, name, started_at);
CREATE UNIQUE INDEX instance_refresh_active ON instance_refresh (region, name) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX stack_name ON stack (region, name) WHERE deleted_at IS NULL;
CREATE INDEX stack_listing ON stack (region, created_at, id);
CREATE INDEX stack_of_parent ON stack (parent_id) WHERE parent_id != '';
CREATE INDEX stack_deleted ON stack (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX stack_resource_physical ON stack_resource (physical_id) WHERE physical_id IS NOT NULL;
CREATE INDEX stack_event_stack ON stack_event (stack_id);
CREATE INDEX stack_export_stack ON stack_export (stack_id);
CREATE INDEX stack_import_stack ON stack_import (stack_id);
CREATE INDEX event_batch_mapping ON event_batch (mapping);
CREATE INDEX invocation_due ON invocation (state, due_at, number);
CREATE INDEX job_of_queue ON job (region, queue, state);
CREATE INDEX job_by_name ON job (region, queue, name COLLATE NOCASE);
CREATE INDEX job_by_definition ON job (region, queue, definition);
CREATE INDEX job_by_revision ON job (region, queue, definition, revision);
CREATE INDEX job_by_share ON job (region, queue, share, state) WHERE share != '';
CREATE INDEX job_by_time ON job (region, queue, created_at);
CREATE INDEX job_by_spec ON job (spec);
CREATE INDEX job_stopped ON job (stopped_at) WHERE stopped_at IS NOT NULL;
CREATE INDEX job_definition_by_status ON job_definition (status, region, family, revision);
CREATE INDEX job_holding_environment ON job_holding (region, environment);
CREATE INDEX blocked_job_queue ON blocked_job (region, queue);
CREATE INDEX queued_task_of_chain ON queued_task (chain);
CREATE INDEX queued_task_not_admitted ON queued_task (state) WHERE state != 'admitted';
CREATE INDEX queued_task_ready ON queued_task (array, position) WHERE state = 'ready';
CREATE INDEX queued_task_by_time ON queued_task (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX task_dependency_of ON task_dependency (dependent);
CREATE INDEX task_array_ended ON task_array (changed_at) WHERE waiting = 0 AND admitted = 0;
CREATE UNIQUE INDEX joined_host_name ON joined_host (name) WHERE revoked_at IS NULL AND forgotten_at IS NULL;
CREATE INDEX joined_host_key ON joined_host (key_digest);
CREATE INDEX join_token_expiry ON join_token (expires_at);
CREATE INDEX allocation_of_lender ON allocation (lender, created_at);
CREATE INDEX access_key_user ON access_key (user, id);
CREATE TRIGGER stored_version AFTER INSERT ON object_version WHEN NEW.size > 0 BEGIN
    INSERT INTO stored_bytes SELECT owner, NEW.size FROM bucket WHERE id = NEW.bucket
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER dropped_version AFTER DELETE ON object_version WHEN OLD.size > 0 BEGIN
    UPDATE stored_bytes SET bytes = bytes - OLD.size WHERE owner = (SELECT owner FROM bucket WHERE id = OLD.bucket);
END;
CREATE TRIGGER stored_part AFTER INSERT ON content_part WHEN EXISTS (SELECT 1 FROM upload WHERE content = NEW.content) BEGIN
    INSERT INTO stored_bytes
    SELECT owner, NEW.size FROM bucket WHERE id = (SELECT bucket FROM upload WHERE content = NEW.content)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER replaced_part AFTER UPDATE OF content ON content_part
WHEN EXISTS (SELECT 1 FROM upload WHERE content = OLD.content) BEGIN
    UPDATE stored_bytes SET bytes = bytes - OLD.size
    WHERE owner = (SELECT owner FROM bucket WHERE id = (SELECT bucket FROM upload WHERE content = OLD.content));
END;
CREATE TRIGGER ended_upload AFTER DELETE ON upload BEGIN
    UPDATE stored_bytes
    SET bytes = bytes - (SELECT coalesce(sum(size), 0) FROM content_part WHERE content = OLD.content)
    WHERE owner = (SELECT owner FROM bucket WHERE id = OLD.bucket);
END;
CREATE TRIGGER stored_layer AFTER INSERT ON repository_layer BEGIN
    INSERT INTO stored_bytes
    SELECT owner, (SELECT size FROM layer WHERE digest = NEW.digest) FROM repository WHERE id = NEW.repository
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER dropped_layer AFTER DELETE ON repository_layer BEGIN
    UPDATE stored_bytes SET bytes = bytes - (SELECT size FROM layer WHERE digest = OLD.digest)
    WHERE owner = (SELECT owner FROM repository WHERE id = OLD.repository);
END;
CREATE INDEX owner_hour_age ON owner_hour (hour);
CREATE INDEX due_at ON due (at);
CREATE INDEX outbox_key ON outbox (lane, kind, key) WHERE key IS NOT NULL;
DELETE FROM "sqlite_sequence";
COMMIT;
