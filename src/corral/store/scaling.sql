-- The last request of each alarm to each scaling policy, and what the policy has done with it. The metrics lane hands requests over
-- when they change.

CREATE TABLE scaling_request (
    policy       TEXT NOT NULL,                 -- ARN
    alarm        TEXT NOT NULL,                 -- ARN
    region       TEXT NOT NULL,                 -- of the policy
    owner        TEXT NOT NULL,                 -- what the policy scales: GROUP or NAMESPACE:RESOURCE; empty if unknown
    state        TEXT NOT NULL,                 -- the state of the alarm
    period_value REAL,                          -- the value of the newest complete window
    newest_value REAL,                          -- the value of the newest second, for metrics that Corral publishes
    peak_value   REAL,                          -- the value of the second of the last period that breaches most
    threshold    REAL NOT NULL,
    since_s      REAL NOT NULL,                 -- when the alarm entered its state
    whole        INTEGER NOT NULL,              -- 1: the complete windows have caused the state; 0: only a second has
    measured_s   REAL,                          -- target tracking: the start of the measured time; NULL: the value is up to date
    asked_s      REAL NOT NULL,
    progress     TEXT NOT NULL,                 -- JSON of Progress in model/alarm.py
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE INDEX scaling_request_alarm ON scaling_request (alarm);
CREATE INDEX scaling_request_owner ON scaling_request (region, owner);

-- The scaling policies that the actions of an alarm name, for any state of the alarm.
CREATE TABLE policy_alarm (
    policy TEXT NOT NULL,                       -- ARN
    alarm  TEXT NOT NULL,                       -- ARN
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE INDEX policy_alarm_alarm ON policy_alarm (alarm);

-- Scaling activities of Application Auto Scaling.
CREATE TABLE target_activity (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    region     TEXT NOT NULL,
    resource   TEXT NOT NULL,                   -- service/CLUSTER/SERVICE
    started_at REAL NOT NULL,
    is_scaled  INTEGER NOT NULL,                -- 0: the activity says why nothing was done
    document   TEXT NOT NULL                    -- JSON: the activity as DescribeScalingActivities shows it
);
CREATE INDEX target_activity_resource ON target_activity (region, resource, number);
CREATE INDEX target_activity_started ON target_activity (started_at);
