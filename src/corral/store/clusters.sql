-- Clusters and task definitions. This file is the first of the schema. Its constraints refuse states that must never happen, even if
-- the code has a bug. Times are seconds since the epoch. The owner of a resource is the principal that created it
-- (model/principal.py). A change of a released schema needs a migration in Store.MIGRATIONS
-- (store/state.py).

CREATE TABLE cluster (
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE')),
    details    TEXT NOT NULL,               -- JSON: from the request, for Describe operations
    owner      TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),   -- of a cluster without a row: root
    PRIMARY KEY (region, name)
) WITHOUT ROWID;

CREATE TABLE task_definition (
    region        TEXT NOT NULL,
    family        TEXT NOT NULL,
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE', 'DELETE_IN_PROGRESS')),
    document      TEXT NOT NULL,            -- JSON, in ECS's own shape
    owner         TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    PRIMARY KEY (region, family, revision)
) WITHOUT ROWID;
CREATE INDEX task_definition_by_status ON task_definition (status, region, family, revision);

-- The number of a family's last revision. It stays when the revision is deleted, so that numbers are never reused.
CREATE TABLE task_definition_family (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
