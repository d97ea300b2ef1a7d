-- Resources that are stored only, and small records that need no table of their own.
CREATE TABLE stored_resource (
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    region     TEXT NOT NULL,               -- empty for a service that has no regions
    name       TEXT NOT NULL,
    created_at REAL NOT NULL,
    owner      TEXT NOT NULL,               -- see model/principal.py; empty: a record that is no resource of its own
    document   TEXT NOT NULL,               -- JSON
    PRIMARY KEY (service, type, region, name)
) WITHOUT ROWID;

-- Responses of idempotent requests: a repeated request gets the same response.
CREATE TABLE client_token (
    scope      TEXT NOT NULL,               -- account, region and operation
    token      TEXT NOT NULL,
    request    TEXT NOT NULL,               -- digest of the other parameters
    reply      TEXT NOT NULL,               -- JSON
    expires_at REAL NOT NULL,
    PRIMARY KEY (scope, token)
) WITHOUT ROWID;
CREATE INDEX client_token_expiry ON client_token (expires_at);
