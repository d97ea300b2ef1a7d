-- The current requests of alarms to scaling policies, and what the policies have done with them. The metrics lane sends the
-- requests of an alarm when they change.

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
CREATE INDEX scaling_request_alarm ON scaling_request (alarm);
CREATE INDEX scaling_request_target ON scaling_request (region, target);

-- The scaling policies that the actions of an alarm name. The actions can be for any state of the alarm.
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
