-- Which owner has used how many GPUs: written when an owner gets or returns GPUs, so nothing is lost if the server is killed. Between
-- two writes, the GPUs that an owner holds do not change. `owner_use.py` adds the time since the last write.
CREATE TABLE owner_use (
    owner TEXT PRIMARY KEY CHECK (owner != ''),
    used  REAL NOT NULL CHECK (used >= 0),  -- GPU-seconds until `at`; use of an earlier time counts less
    at    REAL NOT NULL
) WITHOUT ROWID;
-- The GPU-seconds of each hour, for `corral usage` and for limits. Old hours are deleted.
CREATE TABLE owner_hour (
    owner      TEXT NOT NULL CHECK (owner != ''),
    hour       INTEGER NOT NULL,            -- its steady time, in hours since the epoch
    gpu_s      REAL NOT NULL DEFAULT 0 CHECK (gpu_s >= 0),
    idle_gpu_s REAL NOT NULL DEFAULT 0 CHECK (idle_gpu_s >= 0),  -- the part of `gpu_s` in which the GPUs did nothing, as sampled
    PRIMARY KEY (owner, hour)
) WITHOUT ROWID;
CREATE INDEX owner_hour_age ON owner_hour (hour);
-- The tasks, and the EC2 instances without tasks, whose GPUs do nothing. The rows are written once a minute.
CREATE TABLE idle_holder (
    id       TEXT PRIMARY KEY,              -- of the task or the instance
    since    REAL NOT NULL,
    noted_at REAL                           -- when a notification was sent; NULL: not yet
) WITHOUT ROWID;
