-- The last request of each alarm to each scaling policy. The metrics lane hands requests over when they change.

CREATE TABLE scaling_request (
    policy       TEXT NOT NULL,                 -- ARN
    alarm        TEXT NOT NULL,                 -- ARN
    state        TEXT NOT NULL,                 -- the state of the alarm
    period_value REAL,                          -- the value of the newest complete window
    newest_value REAL,                          -- the value of the newest second, for metrics that Corral publishes
    asked_s      REAL NOT NULL,
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE INDEX scaling_request_alarm ON scaling_request (alarm);
