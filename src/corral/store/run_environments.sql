-- Objects of the private bucket with the environment variables of runs.
CREATE TABLE run_environment (
    key        TEXT PRIMARY KEY,             -- of the S3 object
    tasks      INTEGER NOT NULL CHECK (tasks >= 0), -- that refer to the object and have not ended
    kept_until REAL NOT NULL,                -- without such tasks, the object is deleted at this time
    owner      TEXT NOT NULL                 -- the session that has uploaded the object; empty: the root user
) WITHOUT ROWID;
