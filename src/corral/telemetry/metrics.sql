-- Series of metrics, alarms and dashboards (CloudWatch). Times are whole seconds since the epoch.

CREATE TABLE series (
    id         INTEGER PRIMARY KEY,
    region     TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    dimensions TEXT NOT NULL,               -- JSON: [[name, value], ...], sorted
    active_s   INTEGER NOT NULL,            -- when something arrived last, to half an hour
    entity     TEXT,                        -- JSON, as the last PutMetricData with one gave it
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

-- Samples: sixty steps of a series in a row, a minute of seconds while they are new. Rows lie by time, so that new ones are
-- appended and old ones are found without an index. What a record looks like: packing.py.
CREATE TABLE packed (
    step_s       INTEGER NOT NULL,          -- 1, 60, 300 or 3600
    at_s         INTEGER NOT NULL,          -- when the first of the sixty steps begins
    series_id    INTEGER NOT NULL,
    unit         INTEGER NOT NULL,          -- its place in model/metric.py's UNITS
    packed_bytes INTEGER NOT NULL DEFAULT 0,   -- how long it was when it was made shorter last
    data         BLOB NOT NULL,
    PRIMARY KEY (step_s, at_s, series_id, unit)
) WITHOUT ROWID;

CREATE TABLE flushed (number INTEGER NOT NULL);   -- one row: which generation of the buffer was written last
INSERT INTO flushed VALUES (0);

CREATE TABLE dashboard (
    name        TEXT PRIMARY KEY,           -- they belong to no region
    body        TEXT NOT NULL,
    modified_s  REAL NOT NULL
) WITHOUT ROWID;
