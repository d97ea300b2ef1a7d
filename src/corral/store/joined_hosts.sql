-- Hosts that have joined from other machines, and the tokens with which hosts join.

CREATE TABLE joined_host (
    id             TEXT PRIMARY KEY,        -- the id of the host, as in the table host; the certificate of the host has it
    name           TEXT NOT NULL,
    key_digest     TEXT NOT NULL,           -- SHA-256 of its public key: a host that repeats its request to join keeps its id
    token_id       TEXT NOT NULL,           -- the token with which it joined last
    serial         TEXT NOT NULL,           -- of its certificate
    earlier_serial TEXT NOT NULL DEFAULT '', -- of the certificate that it renewed last: it may not have stored the new one
    cluster        TEXT NOT NULL,           -- set by its token; empty: the option of the host counts
    rack           TEXT NOT NULL,           -- set by its token; empty: the option of the host counts
    address        TEXT NOT NULL,           -- the address from which its agent connected last
    version        TEXT NOT NULL,           -- of its agent
    joined_at      REAL NOT NULL,
    revoked_at     REAL,                    -- NULL: its certificate is valid
    machine        TEXT NOT NULL DEFAULT '{}', -- JSON: the fingerprint of its machine
    refused        TEXT NOT NULL DEFAULT '{}', -- JSON: the fingerprint of another machine that last presented its certificate
    refused_address TEXT NOT NULL DEFAULT '', -- of that machine
    forgotten_at   REAL                     -- NULL: it has connected since it was forgotten, or never was
) WITHOUT ROWID;
CREATE UNIQUE INDEX joined_host_name ON joined_host (name) WHERE revoked_at IS NULL AND forgotten_at IS NULL;
CREATE INDEX joined_host_key ON joined_host (key_digest);

CREATE TABLE join_token (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,               -- SHA-256 of its secret, which is not stored
    uses       INTEGER NOT NULL CHECK (uses > 0),
    used       INTEGER NOT NULL DEFAULT 0 CHECK (used BETWEEN 0 AND uses),
    cluster    TEXT NOT NULL,               -- empty: hosts choose their cluster
    rack       TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX join_token_expiry ON join_token (expires_at);
