-- From the first schema to the second.

ALTER TABLE host ADD COLUMN status TEXT NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'DRAINING'));
CREATE TABLE host_attribute (
    host_id TEXT NOT NULL REFERENCES host (id),
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (host_id, name)
) WITHOUT ROWID;

-- Task definitions that are being deleted, the numbers of deleted ones, and what is on paper.
CREATE TABLE task_definition_2 (
    region        TEXT NOT NULL,
    family        TEXT NOT NULL,
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE', 'DELETE_IN_PROGRESS')),
    document      TEXT NOT NULL,
    PRIMARY KEY (region, family, revision)
) WITHOUT ROWID;
INSERT INTO task_definition_2 SELECT region, family, revision, status, document FROM task_definition;
DROP TABLE task_definition;
ALTER TABLE task_definition_2 RENAME TO task_definition;
CREATE INDEX task_definition_by_status ON task_definition (status, region, family, revision);
CREATE TABLE task_definition_family (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
INSERT INTO task_definition_family SELECT region, family, max(revision) FROM task_definition GROUP BY region, family;
CREATE TABLE paper (
    service    TEXT NOT NULL,
    kind       TEXT NOT NULL,
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_at REAL NOT NULL,
    document   TEXT NOT NULL,
    PRIMARY KEY (service, kind, region, name)
) WITHOUT ROWID;
CREATE INDEX task_of_definition ON task (definition_arn);

-- Tasks of several containers
ALTER TABLE task ADD COLUMN plain INTEGER NOT NULL DEFAULT 1 CHECK (plain IN (0, 1));
ALTER TABLE task ADD COLUMN time_limit REAL;
ALTER TABLE run ADD COLUMN waits INTEGER NOT NULL DEFAULT 0 CHECK (waits = 0 OR (waits = 1 AND state = 'PENDING'));
ALTER TABLE run ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN health TEXT CHECK (health IN ('HEALTHY', 'UNHEALTHY'));

-- GPUs: how far they are from each other, those excluded, and those that others use.
ALTER TABLE host ADD COLUMN links TEXT NOT NULL DEFAULT '';
ALTER TABLE gpu ADD COLUMN excluded INTEGER NOT NULL DEFAULT 0 CHECK (excluded IN (0, 1));
ALTER TABLE gpu ADD COLUMN foreign_use TEXT NOT NULL DEFAULT '';

-- Where tasks may go.
ALTER TABLE task ADD COLUMN rules TEXT;
ALTER TABLE task ADD COLUMN launch_type TEXT NOT NULL DEFAULT 'EC2' CHECK (launch_type IN ('EC2', 'FARGATE'));
DROP INDEX task_of_cluster;
CREATE INDEX task_of_cluster ON task (region, cluster, desired, family, id);
CREATE INDEX task_started_by ON task (region, cluster, desired, started_by, family, id) WHERE started_by IS NOT NULL;
CREATE INDEX task_not_on_ec2 ON task (region, cluster, desired, family, id) WHERE launch_type != 'EC2';
