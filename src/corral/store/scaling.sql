-- What alarms ask of scaling policies now. The metrics lane hands it over whenever it changes.

CREATE TABLE scaling_request (
    policy       TEXT NOT NULL,                 -- ARN
    alarm        TEXT NOT NULL,                 -- ARN
    state        TEXT NOT NULL,                 -- of the alarm
    period_value REAL,                          -- of the newest whole window
    newest_value REAL,                          -- of the newest second, where Corral makes the metric itself
    asked_s      REAL NOT NULL,
    PRIMARY KEY (policy, alarm)
) WITHOUT ROWID;
CREATE INDEX scaling_request_alarm ON scaling_request (alarm);
