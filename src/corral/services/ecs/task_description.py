"""Task descriptions: a task as DescribeTasks, RunTask and StopTask return it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from corral.core.transactions import Tx
from corral.decide.placement.shortages import place_text, shortage_of, withheld_text
from corral.decide.placement.start_estimates import estimates, start_text
from corral.decide.tasks.lifecycle import task_health
from corral.fleet.shares import why_behind, why_limited
from corral.fleet.task_interfaces import attachment_id, bindings_of, host_address, interface_of
from corral.model.constant_result import ConstantResult, ExtendedResult
from corral.model.instance import ARCHITECTURE, ec2_id
from corral.model.placement import TASK, Claim, Pool
from corral.model.task import ALL_GPUS, Demand, Run, Task, TaskState
from corral.services.ecs.fargate import STORAGE_GIB
from corral.services.ecs.lookup import HOST_PROVIDER, arn, zone_of_task
from corral.services.ecs.pause_texts import pause_attributes, pause_reason, pause_state, pause_tags, who_makes_room, why_not_back
from corral.services.ecs.queue_reasons import why_queued
from corral.services.ecs.task_spec import ContainerSpec, TaskSpec, spec_of
from corral.store import Store

HOLDERS_NAMED_MAX = 3
KEPT_PER_SPEC_MAX = 16
KEPT_STATES = (TaskState.RUNNING, TaskState.STOPPED)


def task_descriptions(tx: Tx[Store], tasks: Iterable[Task], *, tags: bool = True) -> list[dict[str, Any]]:
    """Describe tasks. The caller must not change the descriptions, because they are kept for the next call."""
    reasons, found = WaitReasons(tx), list[dict[str, Any]]()
    for task in tasks:
        kept = tx.store.tasks.cache.derived(task) if task.state in KEPT_STATES else None
        if kept is not None:
            if (description := kept.get(tags)) is None:
                description = kept[tags] = ConstantResult(_description(tx, task, None, tags=tags))
            found.append(description)
        else:
            found.append(_description(tx, task, why_waiting(tx, task, reasons), tags=tags))
    return found


class WaitReasons:
    """The reasons why claims wait, at one time. Claims with equal demands share most of the text, which the pool keeps."""

    def __init__(self, tx: Tx[Store]) -> None:
        self._tx = tx
        self._providers: dict[tuple[str, Demand], str] = {}  # pool and demand → why the capacity provider waits
        self._starts: dict[str, dict[str, float]] = {}  # pool → claim id → estimated start
        self._lent: dict[str, bool] = {}  # pool → whether tasks of it make room for others

    def reason(self, pool_name: str, claim: Claim) -> str:
        """Return why a claim still waits for capacity: first a short answer, such as `train holds 3 of 4 GPUs`, then details.

        The details are what the claim needs, its place in the list, the ids of tasks and instances that hold the GPUs, and an
        estimate of the start.
        """
        pool = self._tx.store.fleet.pool(pool_name)
        if not pool.is_open(claim):
            return why_limited(self._tx, pool_name, claim.owner, claim.demand)
        claim = pool.ranked(claim)
        older = bisect_left(pool.heads(), claim)  # the number of older claims that may have reserved a slot
        before, after = pool.derived(("reason", claim.demand, older), lambda: self._explain(pool_name, claim))
        if claim.demand.rules is not None and claim.demand.rules.instance_group:
            after += f"; {self._why_provider_waits(pool_name, claim.demand)}"
        if pool_name not in self._starts:
            self._starts[pool_name] = estimates(pool, self._tx.now_s)
        starts_at_s = self._starts[pool_name].get(claim.id)
        start = "" if starts_at_s is None else f"; {start_text(starts_at_s, self._tx.now_s)}"
        room = who_makes_room(self._tx, pool_name, claim) if self._are_lent(pool_name) else ""
        others = "".join([f"; {text}" for text in (why_behind(self._tx, pool, claim), room) if text])
        return f"{before}; {place_text(pool, claim)}{others}{after}{start}"

    def _are_lent(self, pool_name: str) -> bool:
        """Whether any task of a pool makes room for others. Most pools have none, and long lists ask for many claims."""
        if pool_name not in self._lent:
            self._lent[pool_name] = bool(self._tx.store.tasks.listing.lending(pool_name, 1))
        return self._lent[pool_name]

    def _explain(self, pool_name: str, claim: Claim) -> tuple[str, str]:
        """Return the texts before and after the place of a claim in the list."""
        tx, demand, after = self._tx, claim.demand, ""
        if demand.own_gpus:
            return why_not_back(tx, pool_name, demand), after
        pool = tx.store.fleet.pool(pool_name)
        short, holders = shortage_of(pool, claim), _Holders({}, {})
        if demand.gpus == ALL_GPUS or pool.free_gpus < demand.gpus:
            holders = _Holders(*tx.store.instances.some_holders(pool_name, HOLDERS_NAMED_MAX + 1))
        parts = [holders.sentence(tx, pool) if short.are_gpus_held else ""]
        parts += [] if parts[0] and short.is_count else [short.sentence(self._name)]
        parts += [withheld_text(pool, demand), short.needs]
        if held := holders.ids():
            after += f"; held by {held}"
        return "; ".join(filter(None, parts)), after

    def _why_provider_waits(self, pool_name: str, demand: Demand) -> str:
        from corral.services.ecs.managed_scaling import why_provider_waits  # imported here, because few servers have providers

        if (pool_name, demand) not in self._providers:
            self._providers[pool_name, demand] = why_provider_waits(self._tx, pool_name, demand)
        return self._providers[pool_name, demand]

    def _name(self, claim: Claim) -> str:
        task = self._tx.store.tasks.get(claim.id) if claim.kind == TASK else None
        return claim.name if task is None else task.label


class _Holders(NamedTuple):
    """Some tasks and EC2 instances that hold GPUs, each with its number of GPUs."""

    tasks: dict[str, int]
    instances: dict[str, int]

    def sentence(self, tx: Tx[Store], pool: Pool) -> str:
        """Return a text such as `train holds 3 of 4 GPUs`, or "" without holders. Tasks with the same name are named once."""
        found = [task for task_id in self.tasks if (task := tx.store.tasks.get(task_id)) is not None]
        names = list(dict.fromkeys(task.label for task in found))
        if self.instances:
            names.append(f"instance {ec2_id(next(iter(self.instances)))}" if len(self.instances) == 1 else "instances")
        if not names:
            return ""
        held = pool.total_gpus - pool.free_gpus + _leased_and_withheld(tx, pool)
        number = len(self.tasks) + len(self.instances)
        total = pool.total_gpus + len(pool.withheld())
        if number > HOLDERS_NAMED_MAX:
            names = [*names[:HOLDERS_NAMED_MAX], "others"] if self.tasks else names
        else:
            held = min(held, sum(self.tasks.values()) + sum(self.instances.values()))
        subject = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
        of_cluster = f" of cluster {pool.shown_cluster}" if pool.shown_cluster else ""
        return f"{subject} {'hold' if names[1:] or names == ['instances'] else 'holds'} {held} of {total} GPUs{of_cluster}"

    def ids(self) -> str:
        names = (*_holder_ids("task", list(self.tasks)), *_holder_ids("instance", [ec2_id(each) for each in self.instances]))
        return " and ".join(names)


def _leased_and_withheld(tx: Tx[Store], pool: Pool) -> int:
    """Return how many withheld GPUs a task still uses. `Pool.total_gpus` does not count withheld GPUs."""
    if not pool.withheld():
        return 0
    return sum(len(slot.withheld.keys() & tx.store.instances.leases(slot.id)) for slot in pool.slots() if slot.withheld)


def why_claim_waits(tx: Tx[Store], pool_name: str, claim: Claim) -> str:
    return WaitReasons(tx).reason(pool_name, claim)


def _holder_ids(kind: str, ids: list[str]) -> list[str]:
    """A list with one text such as `tasks a, b and others`; an empty list if there are no ids."""
    named = ids[:HOLDERS_NAMED_MAX]
    more = " and others" if len(ids) > HOLDERS_NAMED_MAX else ""
    return [f"{kind}{'s' * (len(named) > 1)} {', '.join(named)}{more}"] if named else []


def why_waiting(tx: Tx[Store], task: Task, reasons: WaitReasons) -> str | None:
    if task.state is not TaskState.PROVISIONING:
        return None
    claim = tx.store.claims.get(TASK, task.id)
    if claim is None:
        return why_queued(tx, task)
    return reasons.reason(task.pool, claim)


def why_paused(tx: Tx[Store], task: Task, reasons: WaitReasons) -> str | None:
    if pause_state(task) is None or task.pause is None:
        return None
    claim = tx.store.claims.get(TASK, task.id) if task.pause.returns else None
    return pause_reason(task, reasons.reason(task.pool, claim) if claim is not None else "")


def _description(tx: Tx[Store], task: Task, waiting: str | None, *, tags: bool) -> dict[str, Any]:
    task_arn = task_arn_of(tx.settings.account, task)
    spec = spec_of(tx, task)
    exec_enabled = is_exec_enabled(task)
    others: dict[str, Any] = {
        "taskArn": task_arn,
        "availabilityZone": zone_of_task(tx, task),
        "lastStatus": last_status(task),
        "desiredStatus": task.desired._value_,
        "containers": [
            _container(task, task_arn, run, spec.containers[run.container], waiting, exec_enabled=exec_enabled) for run in task.runs
        ],
        "attachments": _attachments(task),
        "healthStatus": "UNKNOWN" if task.plain else task_health([run.health for run in task.runs if run.essential]),
        "createdAt": task.created_at_s,
        "version": task.version,
        "attributes": _attributes(tx, task),
        "containerInstanceArn": _instance_arn(tx.settings.account, task),  # the serializer leaves out members that are None
    }
    if task.instance_id is not None:
        pull_began_s, pull_ended_s = _pull_times(task)
        others |= {
            "connectivity": "CONNECTED",
            "connectivityAt": task.placed_at_s,
            "pullStartedAt": pull_began_s,
            "pullStoppedAt": pull_ended_s,
            "startedAt": task.started_at_s,
        }
    if task.desired is TaskState.STOPPED:
        others |= {
            "stoppingAt": task.stopping_at_s,
            "executionStoppedAt": _ended_at_s(task),
            "stoppedAt": task.stopped_at_s,
            "stopCode": task.stop_code,
            "stoppedReason": task.stopped_reason,
        }
    launched = _launch_description(tx, task, spec, tags=tags)
    if tags and (shown := pause_tags(task)):
        others["tags"] = [*task.details.get("tags", ()), *shown]
        launched = ConstantResult({name: value for name, value in launched.items() if name != "tags"})
    return ExtendedResult(launched, others)


def _launch_description(tx: Tx[Store], task: Task, spec: TaskSpec, *, tags: bool) -> ConstantResult:
    """Return the members of a description that follow from the launch request. Tasks of equal requests share them."""
    details = task.details
    key = task.cluster, task.group, task.started_by, task.launch_type, orjson.dumps(details), tags
    found = spec.descriptions.get(key)
    if found is not None:
        return found
    account, demand = tx.settings.account, task.demand
    description = {
        "clusterArn": arn(account, task.region, f"cluster/{task.cluster}"),
        "taskDefinitionArn": task.definition_arn,
        "cpu": str(demand.cpu_units),
        "memory": str(demand.memory_mib),
        "overrides": _overrides(task),
        "group": task.group,
        "enableExecuteCommand": is_exec_enabled(task),
        "inferenceAccelerators": [],
        "tags": details.get("tags", []) if tags else [],
        "launchType": task.launch_type,
        "startedBy": task.started_by,
    }
    if not details.get("launchType"):
        description["capacityProviderName"] = details.get("capacityProviderName", HOST_PROVIDER)
    if task.launch_type == "FARGATE":
        given = spec.overrides.get("ephemeralStorage") or spec.document.get("ephemeralStorage")
        storage = given or {"sizeInGiB": STORAGE_GIB}
        description |= {"platformVersion": details["platformVersion"], "platformFamily": "Linux"}
        description |= {"ephemeralStorage": storage, "fargateEphemeralStorage": storage}
    if len(spec.descriptions) >= KEPT_PER_SPEC_MAX:
        spec.descriptions.clear()
    spec.descriptions[key] = launched = ConstantResult(description)
    return launched


def _attributes(tx: Tx[Store], task: Task) -> list[dict[str, str]]:
    """The architecture of the instance on which a task is placed, and whether it is paused."""
    instance = tx.store.instances.get(task.instance_id) if task.instance_id is not None else None
    architecture = instance.details.get("Architecture") if instance is not None else None
    return [*([{"name": ARCHITECTURE, "value": architecture}] if architecture else []), *pause_attributes(task)]


def _instance_arn(account: str, task: Task) -> str | None:
    """The container instance of a placed EC2 task. As on ECS, a Fargate task has none."""
    if task.instance_id is None or task.launch_type != "EC2":
        return None
    return arn(account, task.region, f"container-instance/{task.cluster}/{task.instance_id}")


def task_arn_of(account: str, task: Task) -> str:
    return arn(account, task.region, f"task/{task.cluster}/{task.id}")


def _pull_times(task: Task) -> tuple[float | None, float | None]:
    """Return when the first image pull began, and when the last image pull ended.

    If no image was pulled, both times are the time of placement.
    """
    about = [run.about for run in task.runs if run.about]
    if not about:
        return task.placed_at_s, task.placed_at_s
    began_s = [each["pullStartedAt"] for each in about if "pullStartedAt" in each]
    ended_s = [each["pullStoppedAt"] for each in about if "pullStoppedAt" in each]
    return min(began_s, default=task.placed_at_s), max(ended_s, default=task.placed_at_s)


def _attachments(task: Task) -> list[dict[str, Any]]:
    """The network interface of a task in awsvpc mode. If the task has none, the attachment has only the address of its host."""
    if "networkConfiguration" not in task.details:
        return []
    if address := host_address(task):
        details = {"privateIPv4Address": address}
    elif interface := interface_of(task):
        details = {
            "subnetId": interface.subnet_id,
            "networkInterfaceId": interface.id,
            "macAddress": interface.mac_address,
            "privateDnsName": interface.dns_name,
            "privateIPv4Address": interface.address,
        }
    else:
        return []
    return [
        {
            "id": attachment_id(task),
            "type": "ElasticNetworkInterface",
            "status": "DELETED" if task.state is TaskState.STOPPED else "ATTACHED",
            "details": [{"name": name, "value": value} for name, value in details.items() if value],
        }
    ]


def _interfaces(task: Task, about: dict[str, Any]) -> list[dict[str, str]]:
    if "networkConfiguration" not in task.details:
        return []
    address = host_address(task) or about.get("privateIpv4Address")
    return [{"attachmentId": attachment_id(task), "privateIpv4Address": address}] if address else []


def _container(
    task: Task, task_arn: str, run: Run, container: ContainerSpec, waiting: str | None, *, exec_enabled: bool
) -> dict[str, Any]:
    about = run.about or {}
    return {
        **container.description,
        "containerArn": f"{task_arn.replace(':task/', ':container/', 1)}/{run.id}",
        "taskArn": task_arn,
        "lastStatus": run.state._value_,
        "networkBindings": bindings_of(task, run, container.definition),
        "networkInterfaces": _interfaces(task, about),
        "healthStatus": run.health or "UNKNOWN",
        "exitCode": run.exit_code,
        "reason": run.reason or waiting,
        "gpuIds": list(run.gpu_ids) or None,
        "managedAgents": [_execute_agent(run)] if exec_enabled else None,
        "runtimeId": about.get("runtimeId", run.id) if run.started_at_s is not None or run.restarts else None,
        "imageDigest": about.get("imageDigest"),
    }


def is_exec_enabled(task: Task) -> bool:
    """Whether the task was run with `enableExecuteCommand`."""
    return bool(task.details.get("enableExecuteCommand"))


def _execute_agent(run: Run) -> dict[str, Any]:
    """The ExecuteCommandAgent. On ECS it is a program in the container. In Corral, the host's agent does its work."""
    started = {"lastStartedAt": run.started_at_s} if run.started_at_s is not None else {}
    return {"name": "ExecuteCommandAgent", "lastStatus": run.state.value, **started}


def last_status(task: Task) -> str:
    """The lastStatus of a task: its state, or STOPPING while its containers are being stopped."""
    if task.desired is TaskState.STOPPED and task.state is not TaskState.STOPPED:
        return "STOPPING"
    return task.state._value_


def _ended_at_s(task: Task) -> float | None:
    """When the last container ended; None until all have ended."""
    if task.state is not TaskState.STOPPED:
        return None
    return max([run.stopped_at_s for run in task.runs if run.stopped_at_s], default=None)


def _overrides(task: Task) -> dict[str, Any]:
    """The overrides of a task. As on ECS, `containerOverrides` has an entry for every container."""
    given = task.details.get("overrides")
    if not given:
        return {"inferenceAcceleratorOverrides": [], "containerOverrides": [{"name": run.container} for run in task.runs]}
    by_name = {override["name"]: override for override in given.get("containerOverrides", ())}
    containers = [by_name.get(run.container, {"name": run.container}) for run in task.runs]
    return {"inferenceAcceleratorOverrides": [], **given, "containerOverrides": containers}
