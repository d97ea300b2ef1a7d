-- Buckets, objects and uploads (S3). Their bytes are files (blobs/).
-- Keys are blobs of UTF-8, so that they are compared byte by byte, as S3 lists them.
CREATE TABLE bucket (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    region TEXT NOT NULL,
    created_at REAL NOT NULL,
    owner TEXT NOT NULL CHECK (owner != ''),
    versioning TEXT NOT NULL DEFAULT '' CHECK (versioning IN ('', 'Enabled', 'Suspended')),
    -- The next two columns save a query of bucket_document at each change of an object.
    has_lifecycle INTEGER NOT NULL DEFAULT 0,
    has_notifications INTEGER NOT NULL DEFAULT 0
);

-- The bytes of an object, an upload or an image layer. The copies of an object share its content.
-- The files of a content without references are garbage.
CREATE TABLE content (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    refs INTEGER NOT NULL CHECK (refs >= 0)
);
CREATE INDEX content_garbage ON content (id) WHERE refs = 0;

CREATE TABLE content_part (
    content INTEGER NOT NULL REFERENCES content (id),
    number INTEGER NOT NULL,
    blob TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL CHECK (size >= 0),
    etag TEXT NOT NULL,
    checksums TEXT NOT NULL,
    modified_at REAL NOT NULL,
    writer TEXT,  -- of a part of a multipart upload; see object_version.writers
    PRIMARY KEY (content, number)
) WITHOUT ROWID;

-- A version of an object, or a delete marker, which has no content.
CREATE TABLE object_version (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    bucket INTEGER NOT NULL REFERENCES bucket (id),
    key BLOB NOT NULL,
    id TEXT NOT NULL,
    latest INTEGER NOT NULL CHECK (latest IN (0, 1)),
    content INTEGER,  -- content.refs counts it; a foreign key would need another index, or a scan for each deleted content
    size INTEGER NOT NULL,
    etag TEXT NOT NULL,
    modified_at REAL NOT NULL,
    details TEXT NOT NULL,
    upload_id TEXT,
    -- The programs in containers that wrote the version: ROLE/SESSION, separated by spaces. NULL: no container wrote it.
    writers TEXT
);
CREATE INDEX object_version_age ON object_version (bucket, key, number DESC);
CREATE UNIQUE INDEX object_version_id ON object_version (bucket, key, id);
-- The index of ListObjects. It also guarantees that a key has at most one current object.
CREATE UNIQUE INDEX object_current ON object_version (bucket, key) WHERE latest = 1 AND content IS NOT NULL;
CREATE INDEX object_version_upload ON object_version (upload_id) WHERE upload_id IS NOT NULL;

CREATE TABLE upload (
    content INTEGER PRIMARY KEY REFERENCES content (id),
    id TEXT NOT NULL UNIQUE,
    bucket INTEGER NOT NULL REFERENCES bucket (id),
    key BLOB NOT NULL,
    initiated_at REAL NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX upload_key ON upload (bucket, key, content);
