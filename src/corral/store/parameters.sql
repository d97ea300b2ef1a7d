-- Parameters and their versions (SSM).
CREATE TABLE parameter (
    region TEXT NOT NULL,
    name   TEXT NOT NULL,
    latest INTEGER NOT NULL,
    tags   TEXT NOT NULL DEFAULT '{}',      -- JSON
    owner  TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    PRIMARY KEY (region, name)
) WITHOUT ROWID;

CREATE TABLE parameter_version (
    region      TEXT NOT NULL,
    name        TEXT NOT NULL,
    version     INTEGER NOT NULL,
    type        TEXT NOT NULL CHECK (type IN ('String', 'StringList', 'SecureString')),
    value       TEXT NOT NULL,              -- encrypted for a SecureString
    modified_at REAL NOT NULL,
    modified_by TEXT NOT NULL,
    details     TEXT NOT NULL,              -- JSON
    labels      TEXT NOT NULL DEFAULT '[]', -- JSON
    PRIMARY KEY (region, name, version),
    FOREIGN KEY (region, name) REFERENCES parameter (region, name) ON DELETE CASCADE
);
