"""The services that Corral serves: those of AWS, and its own (`services/corral`).

Each service has a lane, which is a database and the one thread that writes to it, and a handler for each operation. The module of a
service has a table `HANDLERS`, and as many of the tables `STEPS`, `LANES`, `OPEN_TO_CONTAINERS`, `HEAVY`, `READS_FLEET`, `QUICK`,
`ADMIT`, `FETCH`, `PREPARE`, `PIECES` and `SETTLE` as it needs. The fields of `Service` describe these tables. The first request to
a service imports its module, so that unused services do not slow down the start. The module `permissions` of a service is imported
with the first request that needs permissions. It has the function `needed_permissions`, and `gives_host` if the service
has operations that can give access to the host (`HOST_OPERATIONS`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.blob import Admission, Slice

if TYPE_CHECKING:
    from corral.access.permissions import Permission

Handler = Callable[[Tx[Any], dict[str, Any], Caller], dict[str, Any]]  # (transaction, parameters, caller) → response
Steps = Callable[[dict[str, Any], Caller], Generator[Callable[[Tx[Any]], Any], Any, dict[str, Any]]]
Split = Callable[[dict[str, Any]], list[dict[str, Any]]]
Prepare = Callable[[dict[str, Any]], dict[str, Any]]  # parameters → parameters
Admit = Callable[[Tx[Any], dict[str, Any], Caller], Admission | None]
Fetch = Callable[[Tx[Any], dict[str, Any], Caller], dict[str, tuple[Slice, ...]]]  # parameter → the parts of blobs with its bytes
Settle = Callable[[Tx[Any], dict[str, Any], Caller], None]


class Service(Struct, frozen=True):
    lane: str  # the lane that runs the operations: "state", "logs" or "metrics"
    operations: Mapping[str, Handler]  # also those of `steps`
    # Operation → a generator that yields one command after the other, gets the result of each, and returns the response.
    steps: Mapping[str, Steps] = field(default_factory=dict)
    lanes: Mapping[str, str] = field(default_factory=dict)  # operations that another lane runs → this lane
    # Operations that a program in a container may perform without a policy. They read and write data, and do not change a resource
    # that other programs depend on. All other operations need a policy of the program's role.
    open_to_containers: frozenset[str] = frozenset()
    heavy: frozenset[str] = frozenset()  # long reads; they run in another thread, on a read-only connection
    reads_fleet: frozenset[str] = frozenset()  # heavy reads that also need the index of free capacity and waiting claims
    # Reads of a few rows, which do not wait for the lane. They have no snapshot: each statement may see a newer commit
    # than the statement before.
    quick: frozenset[str] = frozenset()
    # Operation → the check before the body is stored as a blob. If the check returns None, there is no body to store.
    admit: Mapping[str, Admit] = field(default_factory=dict)
    # Operation → the objects in S3 to which the request refers by URL. Their bytes become parameters, before `prepare` runs.
    fetch: Mapping[str, Fetch] = field(default_factory=dict)
    # Operation → slow work that needs no database. It runs in another thread, before the handler.
    prepare: Mapping[str, Prepare] = field(default_factory=dict)
    # Operation → the function that splits a request that is too large for one command.
    pieces: Mapping[str, Split] = field(default_factory=dict)
    # Operation → a function that raises Wait while the work that the request has started continues. So the response waits for the
    # end of this work, but only for a short time.
    settle: Mapping[str, Settle] = field(default_factory=dict)


MODULES = {  # service → its lane, and the module with its tables
    "application-autoscaling": ("state", "applicationautoscaling.handlers"),
    "autoscaling": ("state", "autoscaling.handlers"),
    "batch": ("state", "batch.handlers"),
    "cloudformation": ("state", "cloudformation.handlers"),
    "cloudtrail": ("state", "cloudtrail.handlers"),
    "corral": ("state", "corral.handlers"),
    "cloudwatch": ("metrics", "cloudwatch.handlers"),
    "ec2": ("state", "ec2.handlers"),
    "ecr": ("state", "ecr.handlers"),
    "ecs": ("state", "ecs.handlers"),
    "iam": ("state", "iam.handlers"),
    "lambda": ("state", "lambda_.handlers"),
    "logs": ("logs", "logs.handlers"),
    "s3": ("state", "s3.handlers"),
    "secretsmanager": ("state", "secretsmanager.handlers"),
    "sns": ("state", "sns.handlers"),
    "sqs": ("state", "sqs.handlers"),
    "ssm": ("state", "ssm.handlers"),
    "sts": ("state", "sts.handlers"),
}


class Services(Mapping[str, Service]):
    """The services by their botocore name. A service is imported when it is first used."""

    def __init__(self) -> None:
        self._loaded: dict[str, Service] = {}

    def __getitem__(self, name: str) -> Service:
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = _load(*MODULES[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


def _load(lane: str, module: str) -> Service:
    tables = vars(import_module(f"corral.services.{module}"))
    return Service(
        lane=lane,
        operations=tables["HANDLERS"] | tables.get("STEPS", {}),
        steps=tables.get("STEPS", {}),
        lanes=tables.get("LANES", {}),
        open_to_containers=tables.get("OPEN_TO_CONTAINERS", frozenset()),
        heavy=tables.get("HEAVY", frozenset()),
        reads_fleet=tables.get("READS_FLEET", frozenset()),
        quick=tables.get("QUICK", frozenset()),
        admit=tables.get("ADMIT", {}),
        fetch=tables.get("FETCH", {}),
        prepare=tables.get("PREPARE", {}),
        pieces=tables.get("PIECES", {}),
        settle=tables.get("SETTLE", {}),
    )


@cache
def _permissions_module(service: str) -> ModuleType:
    return import_module(f"corral.services.{MODULES[service][1].partition('.')[0]}.permissions")


@cache
def _permissions_tools(service: str) -> tuple[Any, ...]:
    """Return what `needed_permissions` needs for a service. It is imported with the first request that needs permissions."""
    from corral.access.passed_roles import passed_roles, passing_members
    from corral.access.permissions import HOST_OPERATIONS, RUN_ON_HOST

    module, host_operations = _permissions_module(service), HOST_OPERATIONS.get(service, frozenset())
    return module.needed_permissions, passing_members(service), passed_roles, module, host_operations, RUN_ON_HOST


def needed_permissions(tx: Tx[Any], caller: Caller, service: str, operation: str, params: Mapping[str, Any]) -> list[Permission]:
    """Return all permissions that the caller needs for an operation. `params` are the parameters of the request.

    For S3, `params` has only the parameters in the head of the request, because the body has not arrived yet.
    """
    find, passing, passed_roles, module, host_operations, run_on_host = _permissions_tools(service)
    needed: list[Permission] = find(tx, caller, operation, params)
    if not passing.isdisjoint(params):
        needed += passed_roles(tx, caller, service, params, needed[0].resource if needed else "")
    if operation in host_operations and module.gives_host(tx, caller, operation, params):
        needed.append(run_on_host)
    return needed


SERVICES = Services()
