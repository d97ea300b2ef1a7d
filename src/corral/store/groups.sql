-- Auto Scaling groups. A `record` is a JSON document of a class in model/group.py. The other columns have values of this document,
-- for queries and constraints.

CREATE TABLE scaling_group (
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,
    min_size INTEGER NOT NULL,
    max_size INTEGER NOT NULL,
    desired  INTEGER NOT NULL,
    owner    TEXT NOT NULL CHECK (owner != ''),
    record   TEXT NOT NULL,
    PRIMARY KEY (region, name),
    CHECK (0 <= min_size AND min_size <= desired AND desired <= max_size)
) WITHOUT ROWID;

CREATE TABLE group_member (
    instance_id TEXT PRIMARY KEY,               -- no foreign key: the row of a terminated instance may be deleted first
    region      TEXT NOT NULL,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN
        ('Pending', 'Pending:Wait', 'InService', 'Standby', 'Terminating:Wait', 'Terminating', 'Terminating:Proceed')),
    record      TEXT NOT NULL,
    FOREIGN KEY (region, name) REFERENCES scaling_group (region, name)
) WITHOUT ROWID;
CREATE INDEX group_member_group ON group_member (region, name);

CREATE TABLE scaling_activity (
    number   INTEGER PRIMARY KEY,               -- grows in the order in which the activities began
    id       TEXT NOT NULL UNIQUE,
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,                     -- the name of the group, which may have been deleted
    ended_at REAL,                              -- NULL: in progress
    record   TEXT NOT NULL
);
CREATE INDEX scaling_activity_open ON scaling_activity (region, name) WHERE ended_at IS NULL;
CREATE INDEX scaling_activity_ended ON scaling_activity (region, name) WHERE ended_at IS NOT NULL;
CREATE INDEX scaling_activity_age ON scaling_activity (ended_at);

CREATE TABLE instance_refresh (
    id         TEXT PRIMARY KEY,
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at   REAL,
    record     TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX instance_refresh_group ON instance_refresh (region, name, started_at);
CREATE UNIQUE INDEX instance_refresh_active ON instance_refresh (region, name) WHERE ended_at IS NULL;
