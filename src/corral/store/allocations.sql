-- What lenders give to EC2 instances. A row is deleted when the lender has proved that its allocation has ended.

CREATE TABLE allocation (
    instance_id TEXT PRIMARY KEY REFERENCES instance (id),
    lender      TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('wanted', 'waiting') OR state IN ('running', 'ending')),
    handle      TEXT NOT NULL,              -- the lender's id of it; empty: not known yet
    reason      TEXT NOT NULL,
    digest      TEXT NOT NULL,              -- SHA-256 of the secret with which its pilot joins; empty: none yet
    host_id     TEXT NOT NULL,              -- the host that its pilot is; empty: it has not joined
    running_at  REAL,
    others      TEXT NOT NULL,              -- JSON: the lenders that are asked next
    options     TEXT NOT NULL,              -- JSON: such as the partition of Slurm
    created_at  REAL NOT NULL,
    machine     TEXT NOT NULL DEFAULT '',  -- the lender's name of its machine; empty: not known yet
    said        TEXT NOT NULL DEFAULT ''   -- why its last pilot could not join; empty: nothing
) WITHOUT ROWID;
CREATE INDEX allocation_of_lender ON allocation (lender, created_at);
