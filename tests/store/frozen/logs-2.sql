BEGIN TRANSACTION;
CREATE TABLE due (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE inbox (origin TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (origin, id)) WITHOUT ROWID;
CREATE TABLE log_event (
    stream_id   INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    ingested_ms INTEGER NOT NULL,
    message     TEXT NOT NULL,
    PRIMARY KEY (stream_id, at_ms, number)
) WITHOUT ROWID;
CREATE TABLE log_group (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,   -- never reused: a purge may still be running
    region         TEXT NOT NULL,
    name           TEXT,                                -- null: deleted, and its streams are being purged
    created_ms     INTEGER NOT NULL,
    retention_days INTEGER,                             -- null: no expiry
    bytes          INTEGER NOT NULL DEFAULT 0,          -- bytes that are stored now, in all its streams
    details        TEXT NOT NULL,                       -- JSON: class, tags...
    owner          TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    UNIQUE (region, name)
);
INSERT INTO "log_group" VALUES(1,'r','/g',1,NULL,0,'{}','root');
CREATE TABLE log_stream (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,      -- never reused: a purge may still be running
    group_id    INTEGER NOT NULL REFERENCES log_group (id),
    name        TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    first_ms    INTEGER,                                -- oldest stored event; null: no event is stored
    last_ms     INTEGER,
    ingested_ms INTEGER,
    events      INTEGER NOT NULL DEFAULT 0,             -- events that were ever stored; also the number of the next event
    stored      INTEGER NOT NULL DEFAULT 0,             -- events that are stored now
    bytes       INTEGER NOT NULL DEFAULT 0,             -- stored now: messages, and 26 for each event, as CloudWatch Logs counts
    dropped     INTEGER NOT NULL DEFAULT 0,             -- bytes of tasks' output that were dropped, because there was too much of it
    entity      TEXT,                                   -- JSON, from the last PutLogEvents with an entity
    owner       TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),   -- of the task that writes it, or the caller who created it
    UNIQUE (group_id, name)
);
INSERT INTO "log_stream" VALUES(1,1,'s',1,NULL,NULL,NULL,0,0,0,0,NULL,'root');
CREATE TABLE metric_filter (
    group_id   INTEGER NOT NULL REFERENCES log_group (id),
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    details    TEXT NOT NULL,                           -- JSON: pattern, transformations...
    PRIMARY KEY (group_id, name)
) WITHOUT ROWID;
CREATE TABLE outbox (
    id      INTEGER PRIMARY KEY,
    origin  TEXT NOT NULL,
    lane    TEXT NOT NULL,                      -- the receiving lane
    kind    TEXT NOT NULL,                      -- the receiver in that lane
    key     TEXT,                               -- a later row of the same lane, kind and key replaces this one
    payload BLOB NOT NULL                       -- JSON: a list of arguments
);
CREATE TABLE schema_origin (digest TEXT NOT NULL, corral TEXT NOT NULL);
INSERT INTO "schema_origin" VALUES('9bd5400e029772a7cf82592ebd2c60ff','');
CREATE TABLE shipment (
    run_id     TEXT PRIMARY KEY,
    group_id   INTEGER NOT NULL,
    stream_id  INTEGER,                                 -- NULL: its name is the id of the run's container, which has not started
    shipped    INTEGER NOT NULL,
    size       INTEGER NOT NULL,                        -- bytes that the run has printed; if more than `shipped`, the rest follows
    touched_ms INTEGER NOT NULL,
    owner      TEXT NOT NULL DEFAULT 'root' CHECK (owner != '')     -- of the task
) WITHOUT ROWID;
CREATE TABLE watch (key TEXT NOT NULL, changed TEXT NOT NULL, PRIMARY KEY (key, changed)) WITHOUT ROWID;
CREATE INDEX log_group_gone ON log_group (id) WHERE name IS NULL;
CREATE INDEX log_stream_first ON log_stream (group_id, first_ms);
CREATE INDEX shipment_age ON shipment (touched_ms);
CREATE INDEX shipment_behind ON shipment (stream_id) WHERE size > shipped;
CREATE INDEX due_at ON due (at);
CREATE INDEX outbox_key ON outbox (lane, kind, key) WHERE key IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('log_group',1);
INSERT INTO "sqlite_sequence" VALUES('log_stream',1);
COMMIT;
