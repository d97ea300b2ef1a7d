-- The documents (configurations) of buckets, and the schedule of lifecycle rules.
CREATE TABLE bucket_document (
    bucket INTEGER NOT NULL REFERENCES bucket (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,  -- the Id of the document; empty if a bucket has at most one document of the kind
    put_at REAL NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (bucket, kind, name)
) WITHOUT ROWID;

-- When to evaluate the lifecycle rules of a key or an upload. An evaluation reads the current state, so an early evaluation does no
-- harm.
CREATE TABLE expiry (
    bucket INTEGER NOT NULL REFERENCES bucket (id) ON DELETE CASCADE,
    key BLOB NOT NULL,
    upload TEXT NOT NULL,  -- the id of the upload; empty: the key with its versions
    at REAL NOT NULL,
    PRIMARY KEY (bucket, key, upload)
) WITHOUT ROWID;
CREATE INDEX expiry_at ON expiry (at);

-- A walk through a bucket whose lifecycle rules have changed. Each transaction schedules some uploads or keys for evaluation.
CREATE TABLE expiry_walk (
    bucket INTEGER PRIMARY KEY REFERENCES bucket (id) ON DELETE CASCADE,
    upload INTEGER NOT NULL,  -- upload.content of the last scheduled upload
    key BLOB NOT NULL  -- the last scheduled key; the walk visits the uploads first, then the keys
);
