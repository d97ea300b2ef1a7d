-- The last request of each alarm to each scaling policy, and what the policy has done with it. The metrics lane hands requests over
-- when they change.

CREATE TABLE scaling_request (
    policy       TEXT NOT NULL,                 -- ARN
    alarm        TEXT NOT NULL,                 -- ARN
    region       TEXT NOT NULL,                 -- of the policy
    name         TEXT NOT NULL,                 -- the group of the policy; empty if the policy belongs to no group
    state        TEXT NOT NULL,                 -- the state of the alarm
    period_value REAL,                          -- the value of the newest complete window
    newest_value REAL,                          -- the value of the newest second, for metrics that Corral publishes
    peak_value   REAL,                          -- the value of the second of the last period that breaches most
    threshold    REAL NOT NULL,
    since_s      REAL NOT NULL,                 -- when the alarm entered its state
    whole        INTEGER NOT NULL,              -- 1: the complete windows have caused the state; 0: only a second has
    asked_s      REAL NOT NULL,
    progress     TEXT NOT NULL,                 -- JSON of Progress in model/alarm.py
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE INDEX scaling_request_alarm ON scaling_request (alarm);
CREATE INDEX scaling_request_group ON scaling_request (region, name);

-- The scaling policies that the actions of an alarm name, for any state of the alarm.
CREATE TABLE policy_alarm (
    policy TEXT NOT NULL,                       -- ARN
    alarm  TEXT NOT NULL,                       -- ARN
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE INDEX policy_alarm_alarm ON policy_alarm (alarm);
