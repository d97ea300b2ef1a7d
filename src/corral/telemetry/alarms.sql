-- Alarms (CloudWatch), in the same database as the series that they watch. Times are seconds since the epoch.

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

-- The series that an alarm watches.
CREATE TABLE alarm_metric (
    alarm_id   INTEGER NOT NULL REFERENCES alarm (id) ON DELETE CASCADE,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    dimensions TEXT NOT NULL,                   -- JSON: [[name, value], ...], sorted
    PRIMARY KEY (alarm_id, namespace, name, dimensions)
) WITHOUT ROWID;

-- The alarms that a composite alarm depends on: those of its rule, and its suppressor.
CREATE TABLE alarm_child (
    alarm_id INTEGER NOT NULL REFERENCES alarm (id) ON DELETE CASCADE,
    child    TEXT NOT NULL,                     -- an alarm name in the same region
    in_rule  INTEGER NOT NULL,                  -- 0: the child is the suppressor, and is not in the rule
    PRIMARY KEY (alarm_id, child)
) WITHOUT ROWID;

-- Alarms whose states are reported to the state lane, for example to a deployment of an ECS service.
CREATE TABLE alarm_watch (
    watcher TEXT NOT NULL,                      -- REGION/CLUSTER/SERVICE/ID of a service deployment
    region  TEXT NOT NULL,
    alarm   TEXT NOT NULL,
    PRIMARY KEY (watcher, alarm)
) WITHOUT ROWID;
CREATE INDEX alarm_watch_of ON alarm_watch (region, alarm);

-- Each row is stored for 30 days, even if its alarm is deleted.
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
CREATE INDEX alarm_history_of ON alarm_history (region, alarm, at_s, id);
CREATE INDEX alarm_history_all ON alarm_history (region, at_s, id);

CREATE TABLE tag (
    arn   TEXT NOT NULL,                        -- of an alarm or a dashboard
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (arn, key)
) WITHOUT ROWID;
