-- Series of metrics, alarms and dashboards (CloudWatch). Times are whole seconds since the epoch.

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
CREATE INDEX series_named ON series (region, name, namespace, dimensions);
CREATE INDEX series_age ON series (active_s);

CREATE TABLE series_dimension (
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    series_id INTEGER NOT NULL REFERENCES series (id),
    PRIMARY KEY (name, value, series_id)
) WITHOUT ROWID;

-- One row has the samples of a series for sixty time steps. A step is a second if the samples are new, and longer if they are old.
-- Rows are sorted by time, so that new rows are appended and old rows are found without an index. packing.py defines the format of
-- `data`.
CREATE TABLE packed (
    step_s       INTEGER NOT NULL,          -- 1, 60, 300 or 3600
    at_s         INTEGER NOT NULL,          -- start of the first step
    series_id    INTEGER NOT NULL,
    unit         INTEGER NOT NULL,          -- index in UNITS of model/metric.py
    packed_bytes INTEGER NOT NULL DEFAULT 0,   -- length of `data` after the last repack
    data         BLOB NOT NULL,
    PRIMARY KEY (step_s, at_s, series_id, unit)
) WITHOUT ROWID;

CREATE TABLE flushed (number INTEGER NOT NULL);   -- one row: the last written generation (see buffer.py)
INSERT INTO flushed VALUES (0);

CREATE TABLE dashboard (
    name        TEXT PRIMARY KEY,           -- dashboards belong to no region
    body        TEXT NOT NULL,
    modified_s  REAL NOT NULL,
    owner       TEXT NOT NULL DEFAULT 'root' CHECK (owner != '')
) WITHOUT ROWID;
