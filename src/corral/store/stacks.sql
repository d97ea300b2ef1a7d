-- CloudFormation stacks. A `record` is a JSON document of a class in model/stack.py. The other columns have values of this
-- document, for queries and constraints.

CREATE TABLE stack (
    id         TEXT PRIMARY KEY,                -- the ARN
    region     TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL,
    created_at REAL NOT NULL,
    deleted_at REAL,                            -- NULL: not deleted
    parent_id  TEXT NOT NULL DEFAULT '',        -- for a nested stack: the ARN of its parent
    owner      TEXT NOT NULL CHECK (owner != ''),
    record     TEXT NOT NULL,
    CHECK ((status = 'DELETE_COMPLETE') = (deleted_at IS NOT NULL))
) WITHOUT ROWID;
CREATE UNIQUE INDEX stack_name ON stack (region, name) WHERE deleted_at IS NULL;
CREATE INDEX stack_listing ON stack (region, created_at, id);
CREATE INDEX stack_of_parent ON stack (parent_id) WHERE parent_id != '';
CREATE INDEX stack_deleted ON stack (deleted_at) WHERE deleted_at IS NOT NULL;

-- The templates of a stack: the template of its last operation, and the template that a rollback restores.
CREATE TABLE stack_template (
    stack_id  TEXT NOT NULL REFERENCES stack (id),
    number    INTEGER NOT NULL,
    original  TEXT NOT NULL,                    -- the text of the request
    processed TEXT NOT NULL,                    -- JSON, after transforms
    PRIMARY KEY (stack_id, number)
) WITHOUT ROWID;

CREATE TABLE stack_resource (
    stack_id    TEXT NOT NULL REFERENCES stack (id),
    key         TEXT NOT NULL,                  -- the logical id; ID/NUMBER for a leftover, which must be deleted
    physical_id TEXT,                           -- NULL: not created
    record      TEXT NOT NULL,
    PRIMARY KEY (stack_id, key)
) WITHOUT ROWID;
CREATE INDEX stack_resource_physical ON stack_resource (physical_id) WHERE physical_id IS NOT NULL;

CREATE TABLE stack_event (
    number   INTEGER PRIMARY KEY,               -- grows in the order in which the events happened
    id       TEXT NOT NULL,
    stack_id TEXT NOT NULL REFERENCES stack (id),
    record   TEXT NOT NULL
);
CREATE INDEX stack_event_stack ON stack_event (stack_id);

CREATE TABLE stack_export (
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    stack_id TEXT NOT NULL REFERENCES stack (id),
    PRIMARY KEY (region, name)
) WITHOUT ROWID;
CREATE INDEX stack_export_stack ON stack_export (stack_id);

-- The stacks whose templates import an export. An export with such a row can be neither changed nor deleted.
CREATE TABLE stack_import (
    region   TEXT NOT NULL,
    name     TEXT NOT NULL,
    stack_id TEXT NOT NULL REFERENCES stack (id),
    PRIMARY KEY (region, name, stack_id)
) WITHOUT ROWID;
CREATE INDEX stack_import_stack ON stack_import (stack_id);
