-- Log groups, streams and events, in a file of their own so that they neither bloat nor stall the state.
-- Times are milliseconds since the epoch, as CloudWatch Logs gives them.

CREATE TABLE log_group (
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    details    TEXT NOT NULL,               -- JSON: class, tags...
    PRIMARY KEY (region, name)
) WITHOUT ROWID;

CREATE TABLE log_stream (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used again: a purge may still be under way
    region      TEXT NOT NULL,
    group_name  TEXT NOT NULL,
    name        TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    first_ms    INTEGER,
    last_ms     INTEGER,
    ingested_ms INTEGER,
    events      INTEGER NOT NULL DEFAULT 0,          -- how many were ever taken: the next event's number
    UNIQUE (region, group_name, name),
    FOREIGN KEY (region, group_name) REFERENCES log_group (region, name)
);

-- Ordered by time and, within a millisecond, by arrival.
CREATE TABLE log_event (
    stream_id   INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    ingested_ms INTEGER NOT NULL,
    message     TEXT NOT NULL,
    PRIMARY KEY (stream_id, at_ms, number)
) WITHOUT ROWID;

-- How much of a run's output is in its stream. Written with the events, so that no line is kept twice or lost.
CREATE TABLE shipment (
    run_id     TEXT PRIMARY KEY,
    stream_id  INTEGER NOT NULL,
    shipped    INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX shipment_age ON shipment (touched_ms);
