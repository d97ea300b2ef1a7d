"""The state store and its parts. Only one thread writes to the store. One transaction contains several commands (core.py)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from corral.core.database import Database, NeedsWriter
from corral.model.instance import Instance
from corral.model.job_line import WaitingLine
from corral.model.task import Task
from corral.store.access_keys import AccessKeys
from corral.store.allocations import Allocations
from corral.store.buckets import BucketChangeCount, BucketDocuments, Buckets
from corral.store.claims import Claims
from corral.store.client_tokens import ClientTokens
from corral.store.clusters import Clusters
from corral.store.ecs_services import EcsServices
from corral.store.event_batches import EventBatches
from corral.store.expiries import Expiries
from corral.store.fleet import Fleet
from corral.store.functions import LambdaFunctions
from corral.store.groups import Groups
from corral.store.hosts import Hosts
from corral.store.iam_index import IamIndex
from corral.store.idle_holders import IdleHolders
from corral.store.images import RegistryImages
from corral.store.instances import Instances
from corral.store.job_holdings import JobHoldings
from corral.store.job_lines import JobLines
from corral.store.jobs import Jobs
from corral.store.joined_hosts import JoinedHosts
from corral.store.limits import StoredLimits
from corral.store.objects import Objects
from corral.store.owner_standings import OwnerStandings
from corral.store.owner_use import OwnerUse, OwnerUses
from corral.store.parameters import Parameters
from corral.store.private_environments import PrivateEnvironments
from corral.store.queues import Queues
from corral.store.revisions import Definitions, Revisions
from corral.store.scaling_requests import ScalingRequests
from corral.store.secrets import Secrets
from corral.store.stacks import ChangeSets, Stacks
from corral.store.stored_bytes import SUMS, StoredBytes
from corral.store.stored_resources import StoredResources
from corral.store.task_owners import TaskOwners
from corral.store.task_queue import TaskQueue
from corral.store.tasks import Tasks

SCHEMA = (
    "clusters.sql", "stored_resources.sql", "hosts.sql", "tasks.sql", "task_history.sql", "instance_usage.sql", "queues.sql",
    "objects.sql", "buckets.sql", "parameters.sql", "images.sql", "scaling.sql", "ecs_services.sql", "groups.sql", "stacks.sql",
    "change_sets.sql", "functions.sql", "jobs.sql", "job_definitions.sql", "job_lines.sql", "private_environments.sql",
    "task_queue.sql", "secrets.sql", "joined_hosts.sql", "allocations.sql", "access_keys.sql", "limits.sql",
    "stored_bytes.sql", "owner_use.sql",
)  # fmt: skip

# The name of a reconciler → the owner of the thing that it handles. The values are the parts of the thing's name.
OWNERS = {
    **dict.fromkeys(("stack", "step"), "SELECT owner FROM stack WHERE id = ?"),
    **dict.fromkeys(("task", "queued-task", "eviction"), "SELECT owner FROM task WHERE id = ?"),
    **dict.fromkeys(("job", "job-array"), "SELECT owner FROM job WHERE id = ?"),
    "service": "SELECT owner FROM ecs_service WHERE region = ? AND cluster = ? AND name = ?",
    "group": "SELECT owner FROM scaling_group WHERE region = ? AND name = ?",
    "instance": "SELECT owner FROM instance WHERE id = ?",
    "lifecycle": "SELECT owner FROM bucket WHERE id = ?",
    "event-source": "SELECT owner FROM stored_resource "
    "WHERE service = 'lambda' AND type = 'event-source-mapping' AND region = ? AND name = ?",
    "secret": "SELECT owner FROM secret WHERE region = ? AND name = ?",
}


class PublishedIndexes(Struct):
    """What only the writer has in memory, copied for readers. Nothing changes the copies."""

    fleet: Fleet | None = None
    tasks: dict[str, Task] = {}  # not all: `UNFINISHED_MAX` in `store/task_cache.py`
    instances: dict[str, Instance] = {}
    lines: dict[int, WaitingLine] = {}
    uses: tuple[dict[str, OwnerUse], dict[str, int]] = ({}, {})


class Store(Database):
    """The state store: everything except metrics and logs. Each part has the SQL of one kind of resource.

    All parts share the store's connection and transactions.
    """

    fleet: Fleet
    claims: Claims
    hosts: Hosts
    tasks: Tasks
    buckets: Buckets
    queues: Queues
    iam: IamIndex
    limits: StoredLimits
    idle_holders: IdleHolders

    MIGRATIONS = (
        # 2: the writers of objects and of the tags of images. NULL: as if the root user had written it.
        "ALTER TABLE object_version ADD COLUMN writers TEXT;\n"
        "ALTER TABLE content_part ADD COLUMN writer TEXT;\n"
        "ALTER TABLE image_tag ADD COLUMN writer TEXT;\n",
        # 3: the batches of event source mappings
        "CREATE TABLE event_batch (invocation TEXT PRIMARY KEY, mapping TEXT NOT NULL, queue TEXT NOT NULL, "
        "receipts TEXT NOT NULL) WITHOUT ROWID;\nCREATE INDEX event_batch_mapping ON event_batch (mapping);\n",
        # 4: secrets
        "CREATE TABLE secret (region TEXT NOT NULL, name TEXT NOT NULL, suffix TEXT NOT NULL, "
        "owner TEXT NOT NULL CHECK (owner != ''), created_at REAL NOT NULL, changed_at REAL NOT NULL, accessed_at REAL, "
        "delete_at REAL, details TEXT NOT NULL, tags TEXT, policy TEXT NOT NULL DEFAULT '', "
        "PRIMARY KEY (region, name)) WITHOUT ROWID;\n"
        "CREATE TABLE secret_version (region TEXT NOT NULL, secret TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, "
        "value TEXT NOT NULL, is_binary INTEGER NOT NULL CHECK (is_binary IN (0, 1)), created_at REAL NOT NULL, accessed_at REAL, "
        "stages TEXT NOT NULL, PRIMARY KEY (region, secret, number), UNIQUE (region, secret, id), "
        "FOREIGN KEY (region, secret) REFERENCES secret (region, name) ON DELETE CASCADE);\n",
        # 5: hosts that join from other machines.
        "CREATE TABLE joined_host (id TEXT PRIMARY KEY, name TEXT NOT NULL, key_digest TEXT NOT NULL, token_id TEXT NOT NULL, "
        "serial TEXT NOT NULL, earlier_serial TEXT NOT NULL DEFAULT '', cluster TEXT NOT NULL, rack TEXT NOT NULL, "
        "address TEXT NOT NULL, version TEXT NOT NULL, joined_at REAL NOT NULL, revoked_at REAL) WITHOUT ROWID;\n"
        "CREATE UNIQUE INDEX joined_host_name ON joined_host (name) WHERE revoked_at IS NULL;\n"
        "CREATE INDEX joined_host_key ON joined_host (key_digest);\n"
        "CREATE TABLE join_token (id TEXT PRIMARY KEY, digest TEXT NOT NULL, uses INTEGER NOT NULL CHECK (uses > 0), "
        "used INTEGER NOT NULL DEFAULT 0 CHECK (used BETWEEN 0 AND uses), cluster TEXT NOT NULL, rack TEXT NOT NULL, "
        "created_at REAL NOT NULL, expires_at REAL NOT NULL) WITHOUT ROWID;\n"
        "CREATE INDEX join_token_expiry ON join_token (expires_at);\n",
        # 6: lost hosts, drained hosts, and the machines of joined hosts
        "ALTER TABLE host ADD COLUMN lost_at REAL;\n"
        "ALTER TABLE host ADD COLUMN lost_reason TEXT NOT NULL DEFAULT '';\n"
        "ALTER TABLE host ADD COLUMN drain_until REAL;\n"
        "CREATE TABLE old_run (host_id TEXT NOT NULL REFERENCES host (id), run_id TEXT NOT NULL, "
        "PRIMARY KEY (host_id, run_id)) WITHOUT ROWID;\n"
        "ALTER TABLE joined_host ADD COLUMN machine TEXT NOT NULL DEFAULT '{}';\n"
        "ALTER TABLE joined_host ADD COLUMN refused TEXT NOT NULL DEFAULT '{}';\n"
        "ALTER TABLE joined_host ADD COLUMN refused_address TEXT NOT NULL DEFAULT '';\n"
        "ALTER TABLE joined_host ADD COLUMN forgotten_at REAL;\n"
        "DROP INDEX joined_host_name;\n"
        "CREATE UNIQUE INDEX joined_host_name ON joined_host (name) WHERE revoked_at IS NULL AND forgotten_at IS NULL;\n",
        # 7: a pool of hosts for each cluster. Instance launches may move between them.
        "CREATE TEMP TABLE host_pool AS SELECT 'hosts:' || coalesce((SELECT cluster FROM instance WHERE region = '' ORDER BY id "
        "LIMIT 1), 'default') AS name;\n"
        "UPDATE task SET pool = coalesce((SELECT 'hosts:' || instance.cluster FROM instance WHERE instance.id = task.instance_id), "
        "CASE launch_type WHEN 'EC2' THEN 'hosts:' || task.cluster ELSE (SELECT name FROM host_pool) END) WHERE pool = 'hosts';\n"
        "UPDATE claim SET pool = CASE kind WHEN 'task' THEN (SELECT task.pool FROM task WHERE task.id = claim.id) "
        "ELSE (SELECT name FROM host_pool) END, roams = kind = 'instance' OR roams WHERE pool = 'hosts';\n"
        "UPDATE job_line SET pools = replace(pools, '[\"hosts\",', '[\"' || (SELECT name FROM host_pool) || '\",');\n"
        "UPDATE instance SET joins = cluster WHERE region = '';\n"
        "DROP TABLE host_pool;\n",
        # 8: what lenders give to EC2 instances.
        "CREATE TABLE allocation (instance_id TEXT PRIMARY KEY REFERENCES instance (id), lender TEXT NOT NULL, "
        "state TEXT NOT NULL CHECK (state IN ('wanted', 'waiting') OR state IN ('running', 'ending')), handle TEXT NOT NULL, "
        "reason TEXT NOT NULL, digest TEXT NOT NULL, host_id TEXT NOT NULL, running_at REAL, others TEXT NOT NULL, "
        "options TEXT NOT NULL, created_at REAL NOT NULL) WITHOUT ROWID;\n"
        "CREATE INDEX allocation_of_lender ON allocation (lender, created_at);\n",
        # 9: on which machine an allocation runs, and why its pilot could not join.
        "ALTER TABLE allocation ADD COLUMN machine TEXT NOT NULL DEFAULT '';\n"
        "ALTER TABLE allocation ADD COLUMN said TEXT NOT NULL DEFAULT '';\n",
        # 10: the owners of clusters, definitions and instance-hours. What exists belongs to the root user.
        "".join(
            f"ALTER TABLE {table} ADD COLUMN owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != '');\n"
            for table in ("cluster", "task_definition", "job_definition", "instance_usage")
        ),
        # 11: the access keys of users, and when users and roles last called each service.
        "CREATE TABLE access_key (id TEXT PRIMARY KEY, user TEXT NOT NULL, secret TEXT NOT NULL, "
        "status TEXT NOT NULL CHECK (status IN ('Active', 'Inactive')), created_at REAL NOT NULL, used_at REAL, "
        "used_service TEXT NOT NULL DEFAULT '', used_region TEXT NOT NULL DEFAULT '') WITHOUT ROWID;\n"
        "CREATE INDEX access_key_user ON access_key (user, id);\n"
        "CREATE TABLE service_use (entity TEXT NOT NULL, service TEXT NOT NULL, region TEXT NOT NULL, used_at REAL NOT NULL, "
        "PRIMARY KEY (entity, service)) WITHOUT ROWID;\n",
        # 12: the owners of repositories, parameters and scalable targets. What exists belongs to the root user.
        "".join(
            f"ALTER TABLE {table} ADD COLUMN owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != '');\n"
            for table in ("repository", "parameter")
        )
        + "UPDATE stored_resource SET owner = 'root' "
        "WHERE service = 'application-autoscaling' AND type = 'target' AND owner = '';\n",
        # 13: limits of users and groups.
        "CREATE TABLE subject_limits (subject TEXT PRIMARY KEY CHECK (subject != ''), limits TEXT NOT NULL) WITHOUT ROWID;\n",
        # 14: the bytes that each owner stores. Later changes of `stored_bytes.sql` need a copy of it here.
        Path(__file__).with_name("stored_bytes.sql").read_text() + f"INSERT INTO stored_bytes {SUMS};\n",
        # 15: the GPUs that each owner holds and has used. Later changes of `owner_use.sql` need a copy of it here.
        Path(__file__).with_name("owner_use.sql").read_text()
        + "ALTER TABLE lease ADD COLUMN millionths INTEGER NOT NULL DEFAULT 1000000 CHECK (millionths BETWEEN 1 AND 1000000);\n"
        "DROP TRIGGER lease_is_final;\n"
        "UPDATE lease SET millionths = max(1, min(1000000, coalesce(memory_mib * 1000000 / "
        "(SELECT gpu.memory_mib FROM gpu WHERE gpu.id = gpu_id), 1000000))) "
        "WHERE mode = 'shared';\n"
        "CREATE TRIGGER lease_is_final BEFORE UPDATE ON lease\nBEGIN\n"
        "    SELECT RAISE(ABORT, 'a lease cannot be changed');\nEND;\n",
        # 16: paused tasks, and tasks that lend their GPUs.
        "ALTER TABLE task ADD COLUMN pause TEXT;\n"
        "CREATE INDEX task_with_pause ON task (instance_id) WHERE pause IS NOT NULL AND state != 'STOPPED';\n",
    )

    @staticmethod
    @cache
    def schema() -> str:
        return "".join(Path(__file__).with_name(name).read_text() for name in SCHEMA)

    def _compose(self) -> None:
        self.fleet = Fleet(self.undo_log)
        self.claims = Claims(self, self.fleet, self.claims if self.reads_only else None)
        self.owner_uses = OwnerUses(self)
        self.idle_holders = self.idle_holders if self.reads_only else IdleHolders(self)
        self.owner_standings = OwnerStandings(self.undo_log)
        self.owner_uses.on_hold = self.owner_standings.hold
        self.instances = Instances(self, self.fleet, self.claims, self.owner_uses)
        self.hosts = Hosts(self, self.instances, self.hosts if self.reads_only else None)
        owners = TaskOwners(self, self.tasks.owners if self.reads_only else None)
        self.tasks = Tasks(self, self.fleet, self.claims, self.instances, self.owner_uses, owners)
        self.task_queue = TaskQueue(self)
        self.clusters = Clusters(self)
        self.definitions = Definitions(self)
        self.job_definitions = Revisions(self, "job_definition")
        self.ecs_services = EcsServices(self)
        self.tokens = ClientTokens(self)
        self.iam = self.iam if self.reads_only else IamIndex()
        self.stored = StoredResources(self, self.iam)
        self.limits = self.limits if self.reads_only else StoredLimits(self)
        self.access_keys = AccessKeys(self, self.iam)
        self.queues = Queues(self, self.queues if self.reads_only else None)
        self.objects = Objects(self)
        self.buckets = Buckets(self, self.buckets.changes if self.reads_only else BucketChangeCount())
        self.stored_bytes = StoredBytes(self, self.buckets)
        self.bucket_documents = BucketDocuments(self, self.buckets)
        self.expiries = Expiries(self)
        self.parameters = Parameters(self)
        self.secrets = Secrets(self)
        self.images = RegistryImages(self)
        self.scaling = ScalingRequests(self)
        self.groups = Groups(self)
        self.stacks = Stacks(self)
        self.change_sets = ChangeSets(self)
        self.functions = LambdaFunctions(self)
        self.event_batches = EventBatches(self)
        self.jobs = Jobs(self)
        self.job_lines = JobLines(self, self.fleet)
        self.private_environments = PrivateEnvironments(self)
        self.job_holdings = JobHoldings(self)
        self.joined_hosts = JoinedHosts(self)
        self.allocations = Allocations(self)
        if self.reads_only:
            del self.fleet  # only the writer's thread may use it; `show_published` gives the reader a copy; see `__getattr__`
        else:
            self._published = PublishedIndexes()
            self.instances.rebuild_slots()
            self.owner_uses.rebuild(self.instances.slices())
            self.owner_standings.forget(self.owner_uses.present())
            self.claims.rebuild()
            self.job_lines.rebuild()
            self.undo_log.commit()

    def __getattr__(self, name: str) -> Any:
        if name == "fleet" and self.reads_only:
            raise NeedsWriter
        raise AttributeError(name, name=name, obj=self)

    def _owner_of(self, key: str) -> str:
        kind, _, name = key.partition(":")
        sql = OWNERS.get(kind)
        if sql is None:
            return ""
        name = name.rpartition("#")[0] if kind == "step" else name.partition(":")[0] if kind == "job" else name
        row = self.execute(sql, name.split("/", sql.count("?") - 1)).fetchone()
        return str(row[0]) if row else ""

    def begin_reading(self) -> None:
        super().begin_reading()
        # These must come before the first read, because the snapshot begins with that read.
        self.buckets.begin_reading()
        self.queues.begin_reading()

    def _publish(self) -> None:
        self._published.fleet = self.fleet.copy()
        self._published.tasks = self.tasks.cache.unfinished()
        self._published.instances = self.instances.living()
        self._published.lines = self.job_lines.all()
        self._published.uses = self.owner_uses.copy()

    def show_published(self) -> None:
        """Give this reader the last published copies, until `end_reading`."""
        published = self._published
        assert published.fleet is not None, "nothing has been published"
        self.fleet = published.fleet
        self.tasks.cache.show(published.tasks)
        self.instances.show(published.instances)
        self.job_lines.show(published.lines)
        self.owner_uses.show(*published.uses)

    def end_reading(self) -> None:
        if self.reads_only and "fleet" in vars(self):
            del self.fleet
            self.tasks.cache.show({})
            self.instances.show({})
            self.job_lines.show({})
            self.owner_uses.show({}, {})
        self.buckets.end_reading()
        self.queues.end_reading()
        super().end_reading()
