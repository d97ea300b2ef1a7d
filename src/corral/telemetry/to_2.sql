-- From the first schema of the logs to the second.

ALTER TABLE log_group RENAME TO old_log_group;
ALTER TABLE log_stream RENAME TO old_log_stream;
CREATE TABLE log_group (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    region         TEXT NOT NULL,
    name           TEXT,
    created_ms     INTEGER NOT NULL,
    retention_days INTEGER,
    bytes          INTEGER NOT NULL DEFAULT 0,
    details        TEXT NOT NULL,
    UNIQUE (region, name)
);
CREATE TABLE log_stream (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id    INTEGER NOT NULL REFERENCES log_group (id),
    name        TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    first_ms    INTEGER,
    last_ms     INTEGER,
    ingested_ms INTEGER,
    events      INTEGER NOT NULL DEFAULT 0,
    stored      INTEGER NOT NULL DEFAULT 0,
    bytes       INTEGER NOT NULL DEFAULT 0,
    entity      TEXT,
    UNIQUE (group_id, name)
);
INSERT INTO log_group (region, name, created_ms, details) SELECT region, name, created_ms, details FROM old_log_group;
INSERT INTO log_stream (id, group_id, name, created_ms, first_ms, last_ms, ingested_ms, events, stored, bytes)
    SELECT s.id, g.id, s.name, s.created_ms, s.first_ms, s.last_ms, s.ingested_ms, s.events, s.events,
           (SELECT coalesce(sum(length(CAST(message AS BLOB)) + 26), 0) FROM log_event WHERE stream_id = s.id)
    FROM old_log_stream s JOIN log_group g ON g.region = s.region AND g.name = s.group_name;
UPDATE log_group SET bytes = (SELECT coalesce(sum(bytes), 0) FROM log_stream WHERE group_id = log_group.id);
-- What was being purged goes on being purged, and its ids are not given again.
INSERT INTO log_group (region, created_ms, details) VALUES ('', 0, '{}');
INSERT INTO log_stream (id, group_id, name, created_ms)
    SELECT CAST(substr(key, 7) AS INTEGER), (SELECT max(id) FROM log_group), key, 0 FROM due WHERE key LIKE 'purge:%';
DELETE FROM due WHERE key LIKE 'purge:%';
INSERT INTO due VALUES ('purge:', 0);
DELETE FROM sqlite_sequence WHERE name = 'log_stream';
INSERT INTO sqlite_sequence SELECT 'log_stream', seq FROM sqlite_sequence WHERE name = 'old_log_stream';
DROP TABLE old_log_stream;
DROP TABLE old_log_group;
CREATE INDEX log_group_gone ON log_group (id) WHERE name IS NULL;
CREATE INDEX log_stream_first ON log_stream (group_id, first_ms);
CREATE TABLE metric_filter (
    group_id   INTEGER NOT NULL REFERENCES log_group (id),
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    details    TEXT NOT NULL,
    PRIMARY KEY (group_id, name)
) WITHOUT ROWID;
