-- The code and the invocations of Lambda functions. The functions themselves are rows of stored_resource.
CREATE TABLE function_code (
    id  INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: the folder with the extracted code has this name
    zip BLOB NOT NULL
);

CREATE TABLE invocation (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,  -- the request id
    region     TEXT NOT NULL,
    function   TEXT NOT NULL,
    is_async   INTEGER NOT NULL CHECK (is_async IN (0, 1)),
    state      TEXT NOT NULL CHECK (state IN ('queued', 'running') OR state IN ('succeeded', 'failed')),
    payload    BLOB NOT NULL,
    context    TEXT NOT NULL,         -- the ClientContext of the request
    attempts   INTEGER NOT NULL,      -- attempts that have ended
    created_at REAL NOT NULL,
    due_at     REAL NOT NULL,         -- if queued: the time of the next attempt; if ended: the time of the end
    result     BLOB NOT NULL,
    log        BLOB NOT NULL          -- the end of the log of the last attempt
);
-- The messages with which an event source mapping has invoked its function. The row exists until they are deleted or returned.
CREATE TABLE event_batch (
    invocation TEXT PRIMARY KEY,      -- the id of the invocation, which is lost if Corral ends before it
    mapping    TEXT NOT NULL,         -- REGION/UUID
    queue      TEXT NOT NULL,         -- the ARN of the queue
    receipts   TEXT NOT NULL          -- JSON: a list of [MessageId, ReceiptHandle]
) WITHOUT ROWID;
CREATE INDEX event_batch_mapping ON event_batch (mapping);

CREATE INDEX invocation_due ON invocation (state, due_at, number);
