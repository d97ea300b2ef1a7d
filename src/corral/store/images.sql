-- Repositories, images and layers (ECR). The bytes of layers are files (blobs/).
CREATE TABLE repository (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    region TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    about TEXT NOT NULL,                    -- JSON: the settings
    tags TEXT NOT NULL DEFAULT '{}',        -- JSON
    owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != ''),
    UNIQUE (region, name)
);

-- A layer is stored once, even if several repositories have it.
CREATE TABLE layer (
    digest TEXT PRIMARY KEY,
    content INTEGER NOT NULL REFERENCES content (id),
    size INTEGER NOT NULL CHECK (size >= 0)
) WITHOUT ROWID;

CREATE TABLE repository_layer (
    repository INTEGER NOT NULL REFERENCES repository (id),
    digest TEXT NOT NULL REFERENCES layer (digest),
    unused_since REAL,                      -- NULL: an image of this repository uses the layer
    PRIMARY KEY (repository, digest)
) WITHOUT ROWID;
CREATE INDEX layer_holder ON repository_layer (digest);
CREATE INDEX layer_unused ON repository_layer (unused_since) WHERE unused_since IS NOT NULL;

CREATE TABLE image (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    repository INTEGER NOT NULL REFERENCES repository (id),
    digest TEXT NOT NULL,
    media_type TEXT NOT NULL,
    artifact_type TEXT,
    size INTEGER NOT NULL,
    subject TEXT,
    pushed_at REAL NOT NULL,
    pulled_at REAL,
    manifest BLOB NOT NULL,                 -- exactly the bytes that were pushed, because the digest is computed from them
    UNIQUE (repository, digest)
);
CREATE INDEX image_order ON image (repository);  -- SQLite adds the rowid, which is the number
CREATE INDEX image_subject ON image (repository, subject) WHERE subject IS NOT NULL;

CREATE TABLE image_tag (
    repository INTEGER NOT NULL REFERENCES repository (id),
    tag TEXT NOT NULL,
    image INTEGER NOT NULL REFERENCES image (number),
    writer TEXT,                            -- the program in a container that set the tag: ROLE/SESSION. NULL: no container
    PRIMARY KEY (repository, tag)
) WITHOUT ROWID;
CREATE INDEX tag_of_image ON image_tag (image);

-- The layers of an image. If the image is an image index: the images in this index.
CREATE TABLE image_part (
    image INTEGER NOT NULL REFERENCES image (number) ON DELETE CASCADE,
    digest TEXT NOT NULL,
    repository INTEGER NOT NULL,
    PRIMARY KEY (image, digest)
) WITHOUT ROWID;
CREATE INDEX part_of_image ON image_part (repository, digest);
