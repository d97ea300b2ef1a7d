-- Job definitions of AWS Batch. `store/revisions.py` reads and writes both tables.
CREATE TABLE job_definition (
    region        TEXT NOT NULL,
    family        TEXT NOT NULL,            -- the name of the job definition
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    status        TEXT NOT NULL CHECK (status IN ('ACTIVE', 'INACTIVE')),
    document      TEXT NOT NULL,            -- JSON, in Batch's own shape
    owner         TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    PRIMARY KEY (region, family, revision)
) WITHOUT ROWID;
CREATE INDEX job_definition_by_status ON job_definition (status, region, family, revision);

-- The number of the last revision of a job definition. It stays when the revision is deleted, so that numbers are never reused.
CREATE TABLE job_definition_family (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
