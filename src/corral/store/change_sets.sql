-- Change sets of CloudFormation stacks. `record` is a JSON document of model.change_set.ChangeSet.
CREATE TABLE change_set (
    id       TEXT PRIMARY KEY,                  -- the ARN
    stack_id TEXT NOT NULL REFERENCES stack (id),
    name     TEXT NOT NULL,
    record   TEXT NOT NULL,
    UNIQUE (stack_id, name)
) WITHOUT ROWID;
