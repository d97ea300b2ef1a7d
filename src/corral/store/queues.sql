-- Queues and their messages (SQS). There are no foreign keys between messages and places. Both are written and deleted together,
-- often thousands at once, and the check of each row would double the cost.

-- A pile is the set of a queue's messages. A purge gives the queue a new pile; a reconciler deletes the rows of the old one in
-- steps. `owned` is 0 if no queue has the pile any more.
CREATE TABLE pile (id INTEGER PRIMARY KEY AUTOINCREMENT, owned INTEGER NOT NULL DEFAULT 1 CHECK (owned IN (0, 1)));
CREATE INDEX pile_left ON pile (id) WHERE owned = 0;

CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    region TEXT NOT NULL,
    name TEXT NOT NULL,
    pile INTEGER NOT NULL UNIQUE REFERENCES pile (id),
    created_ms INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    purged_ms INTEGER,
    dead_letters TEXT,  -- the ARN of its dead-letter queue
    owner TEXT NOT NULL CHECK (owner != ''),
    attributes TEXT NOT NULL,
    tags TEXT NOT NULL,
    UNIQUE (region, name)
);
CREATE INDEX queue_dead_letters ON queue (region, dead_letters, name) WHERE dead_letters IS NOT NULL;

-- The part of a message that a receive does not change. Ids grow with time (microseconds, and a counter within them), so new rows
-- are appended at the end of the table, and the smallest id of a pile is its oldest message.
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    sent_ms INTEGER NOT NULL,
    sender TEXT NOT NULL,
    group_id TEXT,
    deduplication_id TEXT,
    trace TEXT,
    source_arn TEXT,  -- for a dead letter: the queue that it came from
    attributes TEXT,
    bytes INTEGER NOT NULL,  -- size of body and attributes
    body TEXT NOT NULL
);

-- The pile and the state of a message. The row is small, because each receive writes it again; the body is not written again.
CREATE TABLE place (
    pile INTEGER NOT NULL,
    id INTEGER NOT NULL,
    visible_ms INTEGER,  -- NULL in a FIFO queue for a message that is not delayed: its group says when it can be received
    receives INTEGER NOT NULL DEFAULT 0,
    receives_before INTEGER NOT NULL DEFAULT 0,  -- for a dead letter: receives in the queue that it came from
    first_received_ms INTEGER,
    received_ms INTEGER,
    task_id TEXT,  -- the task that received it last
    group_id TEXT,  -- FIFO queues only
    PRIMARY KEY (pile, id)
) WITHOUT ROWID;
CREATE INDEX place_visible ON place (pile, visible_ms, receives) WHERE visible_ms IS NOT NULL;
CREATE INDEX place_group ON place (pile, group_id, id) WHERE group_id IS NOT NULL;
CREATE INDEX place_task ON place (task_id, visible_ms) WHERE task_id IS NOT NULL;

-- A message group of a FIFO queue, and the time from which its next message can be received. Until then, messages of the group are
-- in flight, or its first message is delayed.
CREATE TABLE message_group (
    pile INTEGER NOT NULL,
    name TEXT NOT NULL,
    ready_ms INTEGER NOT NULL,
    PRIMARY KEY (pile, name)
) WITHOUT ROWID;
CREATE INDEX message_group_ready ON message_group (pile, ready_ms);

-- Deduplication ids of the last minutes, also those of deleted messages.
CREATE TABLE deduplication (
    -- The number of a FIFO queue, which a purge changes (`Queue.deduplication_owner`), or the negative number of a FIFO topic of SNS.
    -- Numbers are not reused, so rows of a deleted queue expire.
    queue INTEGER NOT NULL,
    scope TEXT NOT NULL,  -- the message group; empty: the whole queue
    deduplication_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    id INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, scope, deduplication_id)
) WITHOUT ROWID;
CREATE INDEX deduplication_expires ON deduplication (expires_ms);

-- The messages that a receive attempt returned, so that a client can retry a lost response.
CREATE TABLE receive_attempt (
    queue INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    given TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, attempt_id)
) WITHOUT ROWID;
CREATE INDEX receive_attempt_expires ON receive_attempt (expires_ms);

CREATE TABLE move_task (
    id TEXT PRIMARY KEY,
    source INTEGER NOT NULL REFERENCES queue (id) ON DELETE CASCADE,
    source_arn TEXT NOT NULL,
    destination_arn TEXT,
    per_s INTEGER,
    status TEXT NOT NULL,
    to_move INTEGER NOT NULL,
    moved INTEGER NOT NULL DEFAULT 0,
    started_ms INTEGER NOT NULL,
    failure TEXT
);
CREATE INDEX move_task_source ON move_task (source, started_ms);
