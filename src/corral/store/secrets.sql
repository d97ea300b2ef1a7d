-- Secrets and their versions (Secrets Manager).
CREATE TABLE secret (
    region      TEXT NOT NULL,
    name        TEXT NOT NULL,
    suffix      TEXT NOT NULL,              -- the random characters at the end of the ARN
    owner       TEXT NOT NULL CHECK (owner != ''),
    created_at  REAL NOT NULL,
    changed_at  REAL NOT NULL,
    accessed_at REAL,
    delete_at   REAL,                       -- the end of the recovery window; NULL: not scheduled for deletion
    details     TEXT NOT NULL,              -- JSON
    tags        TEXT,                       -- JSON; NULL: the secret has never had tags
    policy      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (region, name)
) WITHOUT ROWID;

CREATE TABLE secret_version (
    region      TEXT NOT NULL,
    secret      TEXT NOT NULL,
    number      INTEGER NOT NULL,           -- versions are numbered in the order of their creation
    id          TEXT NOT NULL,
    value       TEXT NOT NULL,              -- encrypted
    is_binary   INTEGER NOT NULL CHECK (is_binary IN (0, 1)),
    created_at  REAL NOT NULL,
    accessed_at REAL,
    stages      TEXT NOT NULL,              -- JSON
    PRIMARY KEY (region, secret, number),
    UNIQUE (region, secret, id),
    FOREIGN KEY (region, secret) REFERENCES secret (region, name) ON DELETE CASCADE
);
