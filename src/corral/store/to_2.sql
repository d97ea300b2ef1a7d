-- From the first schema to the second.

ALTER TABLE host ADD COLUMN status TEXT NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'DRAINING'));
CREATE TABLE host_attribute (
    host_id TEXT NOT NULL REFERENCES host (id),
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (host_id, name)
) WITHOUT ROWID;
