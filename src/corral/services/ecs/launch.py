"""Task launches: creates the tasks of a `LaunchRequest`. Each task is placed at once, waits, or fails.

RunTask, StartTask, ECS services and Batch build a `LaunchRequest`. A placement is the slot and the GPUs that a task gets. A claim
is the entry of a waiting task in the waiting list of a pool, and its rank decides its place in this list. A task that its queue
options hold back gets no claim yet (`task_queue.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.place import place_on, room_for_newcomer
from corral.decide.placement.reservations import is_reservable
from corral.decide.placement.shortages import why_never
from corral.decide.placement.slot_fit import amounts
from corral.fleet.clusters import fargate_pool, pools_of
from corral.fleet.limits import limited_time_s, why_refused
from corral.fleet.newcomers import find_room, place_now, taking_capacity, waiting_pool
from corral.fleet.private_environments import use_private_objects
from corral.fleet.shares import look_again, must_wait, update_line, why_limited, why_too_many_wait
from corral.fleet.task_interfaces import placed_details
from corral.fleet.unix_accounts import account_of
from corral.model.allocation import is_allocation_cluster
from corral.model.instance import cluster_of_pool, is_host_pool
from corral.model.pause import PREEMPTIBLE_TAG, TURNS_TAG, Pause, PauseTagError, pause_of_tags
from corral.model.placement import INSTANCE, TASK, Claim, Placement, Rank, Unplaceable
from corral.model.queue_options import NO_OPTIONS, QueueOptions
from corral.model.task import PASSED_FROM, RANDOM, Demand, PlacementRules, Task, TaskState
from corral.model.task_queue import QueueState
from corral.services.ecs import fargate
from corral.services.ecs.errors import ClientException, InvalidParameterException
from corral.services.ecs.gpu_assignment import assign_free_gpus, assign_gpus
from corral.services.ecs.host_access import ACCOUNT, ONLY_IN_DOCKER
from corral.services.ecs.launch_checks import check_container_overrides, check_network, check_spec, required_account
from corral.services.ecs.lookup import HOST_PROVIDER, arn, find_slot
from corral.services.ecs.placement_rules import placement_rules
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_progress import mark_provider, start_runs
from corral.services.ecs.task_queue import open_queue, rank_of
from corral.services.ecs.task_spec import TaskSpec, fence_s, longest_time_of, task_spec, time_limit_s, wants_gpu_indexes
from corral.store import Store

PAUSED = Unplaceable("AGENT", "Corral is stopping all tasks: `corral down --stop-tasks` was called")


class LaunchRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A request to launch equal tasks. Definition, overrides, constraints and strategies have the same form as in ECS's API."""

    owner: str  # of the new tasks
    region: str
    cluster: str
    definition: dict[str, Any]  # the task definition; it is a shared object of the store, so it must not be changed
    revision: int
    capacity: Capacity
    count: int = 1
    instance_ids: Sequence[str] = ()  # for StartTask: one task on each of these instances; `count` is ignored
    overrides: dict[str, Any] = field(default_factory=dict)
    group: str = ""  # if empty, the group is family:NAME with the family of the definition
    started_by: str | None = None
    tags: list[dict[str, str]] = field(default_factory=list)  # all tags, including the tags of the definition
    network_configuration: dict[str, Any] | None = None
    platform_version: str | None = None
    reference_id: str | None = None
    enable_execute_command: bool = False
    placement_constraints: Sequence[dict[str, Any]] = ()  # in addition to the constraints in the definition
    placement_strategy: Sequence[dict[str, Any]] = ()
    job_environment: dict[str, str] = field(default_factory=dict)  # variables that differ between the tasks of one Batch job
    options: QueueOptions = NO_OPTIONS  # the queue options in `tags`; tasks of services and of Batch have none
    attempt_timeout_s: float | None = None  # the time limit of an attempt of a Batch job, which Batch enforces
    # The owner sends the request, so a task that its limits can never allow is refused. Otherwise, the task waits.
    from_owner: bool = False
    only_in_docker: bool = False  # the creator may not run on the host (`host_access.is_kept_from_host`)
    as_account: bool = False  # also if `only_in_docker`, processes may run as the Unix account of the owner
    passed_from: str = ""  # see `Deployment.passed_from`
    pause: Pause | None = None  # of tasks of Batch jobs, whose tags are not those of the tasks


class LaunchFailure(Struct, frozen=True):
    instance_id: str | None  # the container instance that was tried; None if the cluster has no instance
    why: Unplaceable | None  # None if the cluster has no container instance with this id


class LaunchResult(Struct, frozen=True):
    tasks: list[Task]
    failures: list[LaunchFailure]


def launch(tx: Tx[Store], request: LaunchRequest) -> LaunchResult:
    """Launch the tasks of a request.

    In this transaction, each task is placed and ordered to start, or gets a claim and waits, or is held back, or fails.
    """
    if request.overrides:
        check_container_overrides(request.definition, request.overrides)
    spec = task_spec(request.definition, request.overrides)
    check_spec(tx, spec)
    check_network(request.definition, request.network_configuration)
    prototype = _prototype(tx, request, spec)
    if request.from_owner and tx.store.limits.of:
        limit_s = time_limit_s(request.tags)
        if (why := why_refused(tx, request.owner, spec.demand, limit_s, request.options.priority)) is not None:
            raise InvalidParameterException(why)
    launched = _on_instances(tx, request, spec, prototype) if request.instance_ids else _anywhere(tx, request, spec, prototype)
    is_limited = request.from_owner and bool(tx.store.limits.of)
    if is_limited and any(task.state is TaskState.PROVISIONING for task in launched.tasks):
        why = why_too_many_wait(tx, request.owner)
        if why is not None:
            raise InvalidParameterException(why)
    for pool in {task.pool for task in launched.tasks}:
        if tx.store.fleet.pool(pool).peers_depending_on_tasks:
            tx.mark(f"pool:{pool}")  # waiting tasks have placement constraints that can depend on the new tasks
    return launched


def launch_placed(
    tx: Tx[Store],
    request: LaunchRequest,
    pool: str,
    placement: Placement,
    claim: Claim,
    *,
    free_gpus: tuple[str, ...] | None = None,
    kept_gpus: Collection[str] = (),
) -> Task:
    """Launch one task at a placement that the scheduler has found for a claim.

    `free_gpus` are the GPUs for the containers of a job whose image or environment sets NVIDIA_VISIBLE_DEVICES. For other jobs, it
    is None. `kept_gpus` are the GPUs of all nodes of a multi-node job: of these, the task gets only the GPUs of its placement.
    """
    spec = task_spec(request.definition, request.overrides)
    check_spec(tx, spec)
    check_network(request.definition, request.network_configuration)
    slot, demand = tx.store.fleet.pool(pool).slot(placement.slot_id), spec.demand
    if slot.cpu_units < demand.cpu_units or slot.memory_mib < demand.memory_mib or len(slot.gpus) < demand.gpus:
        raise ClientException(f"The task needs {amounts(demand)}, which is more than was reserved for it.")
    task = _prototype(tx, request, spec)
    if pool != task.pool:
        task = task.but(pool=pool)
    if demand.gpus:  # a node that requires GPUs gets exactly these, even if another node of its job sets the variable
        free_gpus = None
    task = _add_task(tx, task, spec, placement, claim=claim, free_gpus=free_gpus, kept_gpus=kept_gpus)
    if tx.store.fleet.pool(pool).peers_depending_on_tasks:
        tx.mark(f"pool:{pool}")
    return task


def _anywhere(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec, prototype: Task) -> LaunchResult:
    scope = f"{request.region}/{request.cluster}"
    constraints = [*spec.document["placementConstraints"], *request.placement_constraints]
    rules = placement_rules(constraints, request.placement_strategy, prototype.launch_type, scope, prototype.group)
    if account := required_account(tx, prototype, spec):
        rules = replace(rules or PlacementRules(scope), account=account)
    if rules is not None:
        prototype = prototype.but(demand=replace(prototype.demand, rules=rules))
    draws = rules is not None and any(kind == RANDOM for kind, _ in rules.strategy)
    longest_s = longest_time_of(prototype, spec)
    tasks: list[Task] = []
    failures: list[LaunchFailure] = []
    capacity = request.capacity
    prototypes: dict[str, Task] = {}  # Auto Scaling group of a capacity provider → the task, restricted to the group's instances
    # Pools and group of a task that did not fit → its pool, and why it fails (None: it waits). Equal tasks do not fit either.
    unfit: dict[tuple[tuple[str, ...], str], tuple[str, Unplaceable | None]] = {}
    queue = open_queue(tx, request.region, request.owner, request.options, may_wait=capacity.waits)
    for at in range(request.count):
        pools, group = capacity.pools_of_task(at), capacity.group_of_task(at)
        if group not in prototypes:
            prototypes[group] = _restricted(prototype, scope, group)
        task = prototypes[group]
        roams = len(pools) > 1 or capacity.launch_type == "FARGATE"
        entry = queue.entry(at, tx.now_s, roams=roams) if queue is not None else None
        in_line = entry is None or entry.state is QueueState.ADMITTED
        if in_line:
            pool, found = unfit.get((pools, group)) or _find_placement(
                tx, pools, task, tx.ids.hex32() if draws else "", longest_s, waits=capacity.waits
            )
        else:
            pool, found = waiting_pool(tx, pools, task.demand), None
        if found is None and request.options.refuse_unfit:
            found = never_fits(tx, pools, task.demand)
        if in_line and not isinstance(found, Placement):
            unfit[pools, group] = pool, found
        if isinstance(found, Unplaceable):
            tried = next(iter(tx.store.fleet.pool(pool).slots()), None)  # as on ECS, a failure contains one of the instances
            failures.append(LaunchFailure(tried.id if tried else None, found))
        else:
            provider = capacity.providers[at] if capacity.providers else None
            chosen = _with_provider(task if pool == task.pool else task.but(pool=pool), provider)
            if queue is not None:
                chosen = chosen.but(details=queue.details(at, chosen.details))
            rank = rank_of(chosen, request.options.priority) if in_line else None
            with taking_capacity(tx, pool) if found is not None else nullcontext():
                tasks.append(_add_task(tx, chosen, spec, found, rank=rank, roams=roams, longest_s=longest_s))
            if queue is not None and entry is not None:
                queue.add(tx, entry, tasks[-1].id)
    if queue is not None and tasks:
        queue.close(tx)
    return LaunchResult(tasks, failures)


def _restricted(prototype: Task, scope: str, group: str) -> Task:
    """Return the task with a rule that allows only the instances of an Auto Scaling group."""
    if not group:
        return prototype
    rules = replace(prototype.demand.rules or PlacementRules(scope), instance_group=group)
    return prototype.but(demand=replace(prototype.demand, rules=rules))


def _find_placement(
    tx: Tx[Store], pools: tuple[str, ...], task: Task, seed: str, longest_s: float | None, *, waits: bool
) -> tuple[str, Placement | Unplaceable | None]:
    """Return the pool and the placement. If no slot has room and the task waits, return None instead of the placement."""
    if tx.settings.launches.paused_until_s > tx.now_s:
        tx.mark(f"pool:{pools[0]}")
        return (waiting_pool(tx, pools, task.demand), None) if waits else (pools[0], PAUSED)
    find = find_room if waits else place_now
    return find(tx, pools, task.owner, task.demand, seed=seed, longest_s=longest_s)


def never_fits(tx: Tx[Store], pools: tuple[str, ...], demand: Demand) -> Unplaceable | None:
    """Return why no slot of the pools could ever hold a task, even without other tasks. Return None if a slot could hold it.

    Also return None if there are no slots, or if the task has a capacity provider with an Auto Scaling group, because the group can
    launch instances.
    """
    if demand.rules is not None and demand.rules.instance_group:
        return None
    reasons = [why_never(tx.store.fleet.pool(name), demand) for name in pools if len(tx.store.fleet.pool(name))]
    return None if not reasons or None in reasons else reasons[0]


def _on_instances(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec, prototype: Task) -> LaunchResult:
    """Handle StartTask. The caller chooses the instances, so placement rules do not apply."""
    tasks: list[Task] = []
    failures: list[LaunchFailure] = []
    for instance_id in request.instance_ids:
        member = find_slot(tx, request.region, request.cluster, instance_id)
        if member is None:
            failures.append(LaunchFailure(instance_id, None))
            continue
        pool = member[0]
        if tx.settings.launches.paused_until_s > tx.now_s:
            failures.append(LaunchFailure(instance_id, PAUSED))
            continue
        account = required_account(tx, prototype, spec)
        if account and account not in tx.store.fleet.pool(pool).slot(instance_id).accounts:
            failures.append(LaunchFailure(instance_id, Unplaceable("memberOf", f"the host lacks the Unix account {account}")))
            continue
        longest_s = longest_time_of(prototype, spec)
        if must_wait(tx, [pool], request.owner, prototype.demand):
            why = why_limited(tx, pool, request.owner, prototype.demand)
            failures.append(LaunchFailure(instance_id, Unplaceable("GPU" if prototype.demand.gpus else "MEMORY", why)))
            continue
        found = place_on(tx.store.fleet.pool(pool), prototype.demand, instance_id, tx.now_s, longest_s=longest_s)
        if isinstance(found, Placement):
            with taking_capacity(tx, pool):
                tasks.append(_add_task(tx, prototype.but(pool=pool), spec, found))
        else:
            failures.append(LaunchFailure(instance_id, found))
    return LaunchResult(tasks, failures)


def _add_task(
    tx: Tx[Store],
    prototype: Task,
    spec: TaskSpec,
    found: Placement | None,
    *,
    rank: Rank | None = None,
    roams: bool = False,
    claim: Claim | None = None,
    free_gpus: tuple[str, ...] | None = None,
    kept_gpus: Collection[str] = (),
    longest_s: float | None = None,
) -> Task:
    """Store one task. With a placement (`found`), the task gets its GPUs and starts.

    With a rank and no placement, the task gets a claim with this rank and waits. With neither, its queue options hold it back, and
    it gets its claim later.
    """
    task_id = tx.ids.hex32()
    runs = tuple([run.but(id=tx.ids.hex32_by_time(tx.now_s), task_id=task_id) for run in prototype.runs])
    if found is None:
        task = prototype.but(id=task_id, runs=runs)
        if rank is not None and task.pause is not None and task.pause.turn_s:
            rank = None  # it gets its claim when fewer tasks take turns on a GPU than may do so (`reconcile/preemptions.py`)
            tx.store.tasks.turn_lines.join(task.id, task.pool, task.owner)
            tx.mark(f"pool:{task.pool}")
        tx.store.tasks.add(task, rank, roams=roams, longest_s=longest_s)
        use_private_objects(tx, task)
        if rank is not None:
            mark_provider(tx, task)
            update_line(tx, task.pool)
            look_again(tx, task.pool)
            own, pool = tx.store.claims.get(TASK, task_id), tx.store.fleet.pool(task.pool)
            if tx.store.tasks.with_pause:
                tx.mark(f"pool:{task.pool}")  # running tasks may make room for it
            if own is not None and (heads := pool.heads()) and heads[-1] > pool.ranked(own):
                # Its priority, the level of its owner, or its id if the ranks are equal, puts it before another claim, which may
                # have reserved a slot.
                tx.mark(f"pool:{task.pool}")
            elif own is not None and tx.store.limits.of and pool.is_open(own):
                tx.mark(f"pool:{task.pool}")  # it had to wait behind a claim that waits for a limit, but comes before it
        return task
    if free_gpus is None:
        runs = assign_gpus(tx, prototype, found, spec, runs, claim, kept_gpus)
    else:
        runs = assign_free_gpus(tx, prototype, runs, found.slot_id, free_gpus, spec)
    details = placed_details(tx, prototype, found.slot_id)
    task = prototype.but(
        id=task_id, runs=runs, state=TaskState.PENDING, instance_id=found.slot_id, placed_at_s=tx.now_s, details=details
    )
    tx.store.tasks.add(task)
    use_private_objects(tx, task)
    start_runs(tx, task, spec)
    mark_provider(tx, task, found.slot_id)
    return task


def _with_provider(prototype: Task, provider: str | None) -> Task:
    """Return the task with its capacity provider in its details. The provider of the host is the default, and is not stored."""
    if provider is None or provider == HOST_PROVIDER:
        return prototype
    return prototype.but(details={**prototype.details, "capacityProviderName": provider})


def _prototype(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec) -> Task:
    """Return the task to launch, without ids."""
    family, capacity = spec.document["family"], request.capacity
    limit_s, pause = None, request.pause
    if request.tags:
        limit_s = time_limit_s(request.tags)
        fence_s(request.tags)  # raises an error if the value of the tag is not valid
        wants_gpu_indexes(request.tags, tx.settings.gpu_ids)  # raises an error if the value of the tag is not valid
        pause = _pause(request)
    if tx.store.limits.of:
        given_s = limit_s if limit_s is not None else request.attempt_timeout_s
        allowed_s = limited_time_s(tx, request.owner, given_s)
        limit_s = allowed_s if allowed_s != given_s else limit_s
    runs = spec.runs
    if capacity.launch_type == "FARGATE":
        runs = tuple(run.but(gpus=0) for run in runs)
    return Task(
        id="",
        region=request.region,
        cluster=request.cluster,
        definition_arn=arn(tx.settings.account, request.region, f"task-definition/{family}:{request.revision}"),
        pool=capacity.pools[0],
        state=TaskState.PROVISIONING,
        desired=TaskState.RUNNING,
        demand=spec.demand,
        created_at_s=tx.now_s,
        family=family,
        group=request.group or f"family:{family}",
        started_by=request.started_by,
        details=_details(tx, request, spec),
        runs=runs,
        plain=spec.is_plain and limit_s is None,
        time_limit_s=limit_s,
        launch_type=capacity.launch_type,
        owner=request.owner,
        pause=pause,
    )


def _pause(request: LaunchRequest) -> Pause | None:
    """Return whether the new tasks lend their GPUs or take turns. Tasks of Batch jobs have the tags of the job."""
    if request.pause is not None:
        return request.pause
    tags = {tag["key"]: tag.get("value", "") for tag in request.tags if tag["key"] in (PREEMPTIBLE_TAG, TURNS_TAG)}
    try:
        return pause_of_tags(tags, (float(request.options.priority),)) if tags else None
    except PauseTagError as error:
        raise InvalidParameterException(str(error)) from error


def _details(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec) -> dict[str, Any]:
    """Return the parts of the request that DescribeTasks returns, or that later operations need."""
    capacity, given = request.capacity, request.platform_version
    platform_version = None
    if capacity.launch_type == "FARGATE":
        fargate.check_task(spec)
        platform_version = fargate.platform_version(given)
        fargate.check_platform(spec.document, platform_version)
    elif given:
        raise InvalidParameterException("The platform version must be null when specifying an EC2 launch type.")
    details = {
        "launchType": None if capacity.providers else capacity.launch_type,
        "networkConfiguration": request.network_configuration,
        "referenceId": request.reference_id,
        "enableExecuteCommand": request.enable_execute_command,
        "overrides": request.overrides,
        "platformVersion": platform_version,
        "tags": request.tags,
        "jobEnvironment": request.job_environment,
        "attemptTimeout": request.attempt_timeout_s,
        ONLY_IN_DOCKER: request.only_in_docker or bool(request.passed_from),
        ACCOUNT: _account(tx, request),
        PASSED_FROM: request.passed_from,
    }
    return {name: value for name, value in details.items() if value}


def _account(tx: Tx[Store], request: LaunchRequest) -> str:
    if request.passed_from or (request.only_in_docker and not request.as_account):
        return ""
    return account_of(tx, request.owner)


# Claims that wait in one pool and may use another


def fetch_roaming(tx: Tx[Store], pool_name: str) -> bool:
    """Move the first suitable claim to this pool from another pool that it may use. Return False if there is none.

    A claim is suitable if this pool has room for it now, or if only this pool can reserve a slot for it. Claims are tried in the
    order of their ranks. The scheduler must serve this pool next, before it serves any other pool. Otherwise the other pool could
    fetch the claim back, and the claim could move back and forth for ever.
    """
    if not tx.store.claims.roaming:
        return False
    pool, unfit = tx.store.fleet.pool(pool_name), set[tuple[str, Demand]]()
    for claim, source in tx.store.claims.roaming_to(pool_name):
        if (source, claim.demand) in unfit or not tx.store.fleet.pool(source).is_open(claim) or not _may_use(tx, claim, pool_name):
            continue
        is_better = is_reservable(pool, claim) and not is_reservable(tx.store.fleet.pool(source), claim)
        if is_better or room_for_newcomer(pool, claim.demand, tx.now_s, seed=claim.id, longest_s=claim.longest_s) is not None:
            if claim.kind == INSTANCE:
                tx.store.claims.move(claim, pool_name)
            else:
                task = tx.store.tasks.get(claim.id)
                assert task is not None, "a claim of a task that does not exist"
                tx.store.tasks.move_claim(task, pool_name)
            return True
        unfit.add((source, claim.demand))
    return False


def _may_use(tx: Tx[Store], claim: Claim, pool_name: str) -> bool:
    """Whether a roaming claim may get capacity of a pool. Instances are launched on any host that no lender has given."""
    if claim.kind != TASK:
        return is_host_pool(pool_name) and not is_allocation_cluster(cluster_of_pool(pool_name))
    task = tx.store.tasks.get(claim.id)
    assert task is not None, "a claim of a task that does not exist"
    if task.launch_type == "FARGATE":
        return pool_name == fargate_pool(tx, task.cluster)
    return pool_name in pools_of(tx, task.region, task.cluster)
