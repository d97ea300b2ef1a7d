-- The ledger of instance-hours: a row for each period in which an instance runs and belongs to one group, or to none.
-- Rows outlive their instances, because `corral cost` reports them. The hosts' own instances have no rows.
CREATE TABLE instance_usage (
    id            INTEGER PRIMARY KEY,
    instance_id   TEXT NOT NULL,
    region        TEXT NOT NULL,
    type          TEXT NOT NULL,
    group_name    TEXT NOT NULL,            -- its Auto Scaling group; empty: none
    stack         TEXT NOT NULL,            -- its CloudFormation stack; empty: none
    market        TEXT NOT NULL CHECK (market IN ('on-demand', 'spot')),  -- the market that the launch requested
    gpus          INTEGER NOT NULL CHECK (gpus >= 0),
    began_at      REAL NOT NULL,
    billed_until  REAL CHECK (billed_until >= began_at),                  -- NULL: the instance runs
    owner         TEXT NOT NULL DEFAULT 'root' CHECK (owner != '')        -- of the instance
);
CREATE UNIQUE INDEX instance_usage_running ON instance_usage (instance_id) WHERE billed_until IS NULL;
CREATE INDEX instance_usage_billed ON instance_usage (billed_until);
