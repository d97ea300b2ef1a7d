-- What is said of buckets beside their objects, and what lifecycle rules will do.
CREATE TABLE bucket_document (
    bucket INTEGER NOT NULL REFERENCES bucket (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,  -- of kinds of which a bucket may have several
    put_at REAL NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (bucket, kind, name)
) WITHOUT ROWID;

-- When a key or an upload is to be looked at. What changes it meanwhile only moves that time: the look reads everything anew.
CREATE TABLE expiry (
    bucket INTEGER NOT NULL REFERENCES bucket (id) ON DELETE CASCADE,
    key BLOB NOT NULL,
    upload TEXT NOT NULL,  -- its id; empty: the versions of the key
    at REAL NOT NULL,
    PRIMARY KEY (bucket, key, upload)
) WITHOUT ROWID;
CREATE INDEX expiry_at ON expiry (at);

-- A bucket whose rules have changed is walked through, some keys at a time.
CREATE TABLE expiry_walk (
    bucket INTEGER PRIMARY KEY REFERENCES bucket (id) ON DELETE CASCADE,
    upload INTEGER NOT NULL,  -- the last one that was looked at, by number
    key BLOB NOT NULL  -- and the last key, when uploads are done with
);
