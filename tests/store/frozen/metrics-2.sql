BEGIN TRANSACTION;
CREATE TABLE alarm (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    region           TEXT NOT NULL,
    name             TEXT NOT NULL,
    kind             TEXT NOT NULL CHECK (kind IN ('MetricAlarm', 'CompositeAlarm')),
    config           TEXT NOT NULL,             -- JSON: the stored parameters of the request
    created_s        REAL NOT NULL,
    configured_s     REAL NOT NULL,
    actions_enabled  INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('OK', 'ALARM', 'INSUFFICIENT_DATA')),
    reason           TEXT NOT NULL,
    reason_data      TEXT NOT NULL,             -- JSON, or empty
    updated_s        REAL NOT NULL,
    transitioned_s   REAL NOT NULL,
    acted_state      TEXT NOT NULL,             -- of a composite alarm: the state whose actions were run last
    suppressed_by    TEXT NOT NULL,             -- empty: its actions are not suppressed
    suppressed_until REAL,
    owner            TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    UNIQUE (region, name)
);
CREATE TABLE alarm_child (
    alarm_id INTEGER NOT NULL REFERENCES alarm (id) ON DELETE CASCADE,
    child    TEXT NOT NULL,                     -- an alarm name in the same region
    in_rule  INTEGER NOT NULL,                  -- 0: the child is the suppressor, and is not in the rule
    PRIMARY KEY (alarm_id, child)
) WITHOUT ROWID;
CREATE TABLE alarm_history (
    id      INTEGER PRIMARY KEY,
    region  TEXT NOT NULL,
    alarm   TEXT NOT NULL,
    kind    TEXT NOT NULL,
    at_s    REAL NOT NULL,
    item    TEXT NOT NULL,                      -- ConfigurationUpdate, StateUpdate, Action
    summary TEXT NOT NULL,
    data    TEXT NOT NULL
);
CREATE TABLE alarm_metric (
    alarm_id   INTEGER NOT NULL REFERENCES alarm (id) ON DELETE CASCADE,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    dimensions TEXT NOT NULL,                   -- JSON: [[name, value], ...], sorted
    PRIMARY KEY (alarm_id, namespace, name, dimensions)
) WITHOUT ROWID;
CREATE TABLE alarm_watch (
    watcher TEXT NOT NULL,                      -- REGION/CLUSTER/SERVICE/ID of a service deployment
    region  TEXT NOT NULL,
    alarm   TEXT NOT NULL,
    PRIMARY KEY (watcher, alarm)
) WITHOUT ROWID;
CREATE TABLE dashboard (
    name        TEXT PRIMARY KEY,           -- dashboards belong to no region
    body        TEXT NOT NULL,
    modified_s  REAL NOT NULL,
    owner       TEXT NOT NULL DEFAULT 'root' CHECK (owner != '')
) WITHOUT ROWID;
CREATE TABLE due (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE flushed (number INTEGER NOT NULL);
INSERT INTO "flushed" VALUES(0);
CREATE TABLE inbox (origin TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (origin, id)) WITHOUT ROWID;
CREATE TABLE outbox (
    id      INTEGER PRIMARY KEY,
    origin  TEXT NOT NULL,
    lane    TEXT NOT NULL,                      -- the receiving lane
    kind    TEXT NOT NULL,                      -- the receiver in that lane
    key     TEXT,                               -- a later row of the same lane, kind and key replaces this one
    payload BLOB NOT NULL                       -- JSON: a list of arguments
);
CREATE TABLE packed (
    step_s       INTEGER NOT NULL,          -- 1, 60, 300 or 3600
    at_s         INTEGER NOT NULL,          -- start of the first step
    series_id    INTEGER NOT NULL,
    unit         INTEGER NOT NULL,          -- index in UNITS of model/metric.py
    packed_bytes INTEGER NOT NULL DEFAULT 0,   -- length of `data` after the last repack
    data         BLOB NOT NULL,
    PRIMARY KEY (step_s, at_s, series_id, unit)
) WITHOUT ROWID;
CREATE TABLE schema_origin (digest TEXT NOT NULL, corral TEXT NOT NULL);
INSERT INTO "schema_origin" VALUES('e5c63b6e16c449d60bc1be3e27a8c34b','');
CREATE TABLE series (
    id         INTEGER PRIMARY KEY,
    region     TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    dimensions TEXT NOT NULL,               -- JSON: [[name, value], ...], sorted
    active_s   INTEGER NOT NULL,            -- time of the last new datapoint, with a precision of half an hour
    entity     TEXT,                        -- JSON, from the last PutMetricData with an entity
    UNIQUE (region, namespace, name, dimensions)
);
CREATE TABLE series_dimension (
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    series_id INTEGER NOT NULL REFERENCES series (id),
    PRIMARY KEY (name, value, series_id)
) WITHOUT ROWID;
CREATE TABLE tag (
    arn   TEXT NOT NULL,                        -- of an alarm or a dashboard
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (arn, key)
) WITHOUT ROWID;
CREATE TABLE watch (key TEXT NOT NULL, changed TEXT NOT NULL, PRIMARY KEY (key, changed)) WITHOUT ROWID;
CREATE INDEX series_named ON series (region, name, namespace, dimensions);
CREATE INDEX series_age ON series (active_s);
CREATE INDEX alarm_watch_of ON alarm_watch (region, alarm);
CREATE INDEX alarm_history_of ON alarm_history (region, alarm, at_s, id);
CREATE INDEX alarm_history_all ON alarm_history (region, at_s, id);
CREATE INDEX due_at ON due (at);
CREATE INDEX outbox_key ON outbox (lane, kind, key) WHERE key IS NOT NULL;
DELETE FROM "sqlite_sequence";
COMMIT;
