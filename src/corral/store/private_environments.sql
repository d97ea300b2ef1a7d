-- Objects of the private bucket. They contain environment variables of tasks that `corral run` starts.
CREATE TABLE private_environment (
    key        TEXT PRIMARY KEY,             -- the key of the S3 object
    tasks      INTEGER NOT NULL CHECK (tasks >= 0), -- tasks that refer to the object and have not ended
    kept_until REAL NOT NULL,                -- when the object is deleted, if no such task is left then
    uploader   TEXT NOT NULL                 -- the session that has uploaded the object; empty: the root user
) WITHOUT ROWID;
