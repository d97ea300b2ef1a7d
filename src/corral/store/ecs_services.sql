-- ECS services, their events and their service deployments.

CREATE TABLE ecs_service (
    region     TEXT NOT NULL,
    cluster    TEXT NOT NULL,
    name       TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('ACTIVE', 'DRAINING', 'INACTIVE')),
    strategy   TEXT NOT NULL CHECK (strategy IN ('REPLICA', 'DAEMON')),
    deleted_at REAL,
    owner      TEXT NOT NULL CHECK (owner != ''),
    document   TEXT NOT NULL,               -- JSON: the other fields of model.ecs_service.EcsService
    PRIMARY KEY (region, cluster, name)
) WITHOUT ROWID;
CREATE INDEX ecs_service_daemon ON ecs_service (cluster, region, name) WHERE strategy = 'DAEMON' AND status = 'ACTIVE';
CREATE INDEX ecs_service_deleted ON ecs_service (deleted_at) WHERE status = 'INACTIVE';

CREATE TABLE ecs_service_event (
    number  INTEGER PRIMARY KEY,            -- grows with time
    id      TEXT NOT NULL,
    region  TEXT NOT NULL,
    cluster TEXT NOT NULL,
    name    TEXT NOT NULL,
    at      REAL NOT NULL,
    message TEXT NOT NULL
);
CREATE INDEX ecs_service_event_of ON ecs_service_event (region, cluster, name);

-- Service deployments of ECS, with the service revision that each of them deploys.
CREATE TABLE ecs_service_deployment (
    number   INTEGER PRIMARY KEY,           -- grows with time
    id       TEXT NOT NULL,                 -- the last part of its ARN
    region   TEXT NOT NULL,
    cluster  TEXT NOT NULL,
    name     TEXT NOT NULL,                 -- the name of the service
    revision TEXT NOT NULL,                 -- the last part of the ARN of its service revision
    status   TEXT NOT NULL,
    document TEXT NOT NULL                  -- JSON: model.ecs_service.ServiceRollout
);
CREATE UNIQUE INDEX ecs_service_deployment_id ON ecs_service_deployment (region, cluster, name, id);
CREATE INDEX ecs_service_deployment_revision ON ecs_service_deployment (region, cluster, name, revision);
