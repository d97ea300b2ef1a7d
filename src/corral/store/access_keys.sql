-- Access keys of IAM users. The users themselves are rows of stored_resource.
CREATE TABLE access_key (
    id           TEXT PRIMARY KEY,
    user         TEXT NOT NULL,             -- the name of the user
    secret       TEXT NOT NULL,             -- encrypted
    status       TEXT NOT NULL CHECK (status IN ('Active', 'Inactive')),
    created_at   REAL NOT NULL,
    used_at      REAL,
    used_service TEXT NOT NULL DEFAULT '',
    used_region  TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX access_key_user ON access_key (user, id);

-- When users and roles last called a service.
CREATE TABLE service_use (
    entity  TEXT NOT NULL,                  -- user/NAME or role/NAME
    service TEXT NOT NULL,
    region  TEXT NOT NULL,
    used_at REAL NOT NULL,
    PRIMARY KEY (entity, service)
) WITHOUT ROWID;
