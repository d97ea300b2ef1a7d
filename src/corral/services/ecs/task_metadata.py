"""The task metadata endpoint, version 4: documents about a container and its task, credentials, and statistics.

The member names are those of ECS's agent. A plain process has no image digest, no VPC and no network counters of its own, so its
documents omit these members.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from corral.access import sessions
from corral.core.transactions import Tx
from corral.fleet.task_interfaces import bindings_of, host_address
from corral.model.agent_protocol import Measured
from corral.model.instance import Instance
from corral.model.run import RunState, Usage
from corral.model.session import Credentials
from corral.model.task import Run, Task, TaskState
from corral.model.units import CPU_UNITS_PER_CORE, MIB
from corral.services.ecs.host_access import ACCOUNT
from corral.services.ecs.lookup import arn, split_definition, zone_of_task
from corral.services.ecs.run_spec import NODE_ADDRESS, has_containers, is_fargate, log_target, spans_hosts
from corral.services.ecs.task_description import task_arn_of
from corral.services.ecs.task_spec import TaskSpec, spec_of
from corral.store import Store

KNOWN_STATUS = {RunState.PENDING: "CREATED"}  # for the other states, ECS's agent uses the name of the state
NOT_THROTTLED = {"periods": 0, "throttled_periods": 0, "throttled_time": 0}


def unstopped_task(tx: Tx[Store], run_id: str) -> Task | None:
    """Return the task of a run. Return None if the task does not exist or has stopped: then its endpoints refuse requests."""
    task = tx.store.tasks.of_run(run_id)
    return None if task is None or task.state is TaskState.STOPPED else task


def task_credentials(tx: Tx[Store], task_id: str) -> tuple[str, Credentials] | None:
    """The ARN of the task's role, and the task's credentials.

    Returns None if the task does not exist, is not placed yet, has stopped, or has had its credentials revoked.
    """
    task, settings = tx.store.tasks.get(task_id), tx.settings
    if task is None or task.state in (TaskState.STOPPED, TaskState.PROVISIONING) or task_id in settings.sessions.revoked_tasks:
        return None
    spec, role = spec_of(tx, task), role_name(tx, task)
    given, confined = spec.role, ACCOUNT in task.details or has_containers(tx, task, spec)
    role_arn = given if given.startswith("arn:") else f"arn:aws:iam::{tx.settings.account}:role/{given or role}"
    return role_arn, sessions.of_task(
        settings.session_key,
        settings.account,
        role,
        task.id,
        task.program_owner,
        tx.wall_s,
        confined=confined,
        epoch=settings.sessions.of_tasks,
    )


def role_name(tx: Tx[Store], task: Task) -> str:
    return spec_of(tx, task).role.rpartition("/")[2] or sessions.HOST_ROLE


def container_metadata(tx: Tx[Store], run_id: str) -> dict[str, Any] | None:
    task = unstopped_task(tx, run_id)
    if task is None:
        return None
    [run] = [run for run in task.runs if run.id == run_id]
    return _container(tx, task, run, spec_of(tx, task))


def task_metadata(tx: Tx[Store], run_id: str, *, tags: bool) -> dict[str, Any] | None:
    task = unstopped_task(tx, run_id)
    if task is None:
        return None
    family, revision = split_definition(task.definition_arn)
    spec = spec_of(tx, task)
    account = tx.settings.account
    fargate = is_fargate(task)
    metadata = {
        "Cluster": arn(account, task.region, f"cluster/{task.cluster}") if fargate else task.cluster,
        "TaskARN": task_arn_of(account, task),
        "Family": family,
        "Revision": str(revision),
        "DesiredStatus": task.desired.value,
        "KnownStatus": task.state.value,
        "Limits": _task_limits(task, spec),
        "PullStartedAt": _shown(tx, task.placed_at_s),
        "PullStoppedAt": _shown(tx, task.placed_at_s),
        "AvailabilityZone": zone_of_task(tx, task),
        "LaunchType": "FARGATE" if fargate else "EC2",
        "Containers": [_container(tx, task, run, spec) for run in task.runs],
        "TaskTags": {tag["key"]: tag.get("value", "") for tag in task.details.get("tags", ())} if tags else None,
        "FaultInjectionEnabled": False,
    }
    return _without_none(metadata)


def _container(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> dict[str, Any]:
    account = tx.settings.account
    family, revision = split_definition(task.definition_arn)
    task_arn, cluster_arn = task_arn_of(account, task), arn(account, task.region, f"cluster/{task.cluster}")
    about = run.about or {}
    log = log_target(task, run, spec.containers[run.container])
    container = spec.containers[run.container].definition
    logging = container.get("logConfiguration")
    options = {"awslogs-group": log.group, "awslogs-region": log.region, "awslogs-stream": log.stream} if log else None
    metadata = {
        "DockerId": about.get("runtimeId", run.id),
        "Name": run.container,
        "DockerName": run.container,
        "Image": container["image"],
        "ImageID": about.get("imageDigest"),
        "Labels": {
            **container.get("dockerLabels", {}),
            "com.amazonaws.ecs.cluster": cluster_arn if is_fargate(task) else task.cluster,
            "com.amazonaws.ecs.container-name": run.container,
            "com.amazonaws.ecs.task-arn": task_arn,
            "com.amazonaws.ecs.task-definition-family": family,
            "com.amazonaws.ecs.task-definition-version": str(revision),
        },
        "DesiredStatus": task.desired.value,
        "KnownStatus": KNOWN_STATUS.get(run.state, run.state.value),
        "ExitCode": run.exit_code,
        "Limits": _without_none({"CPU": container["cpu"], "Memory": container.get("memory")}),
        "CreatedAt": _shown(tx, task.placed_at_s),
        "StartedAt": _shown(tx, run.started_at_s),
        "FinishedAt": _shown(tx, run.stopped_at_s),
        "Type": "NORMAL",
        "LogDriver": logging["logDriver"] if logging else None,
        "LogOptions": options or (logging.get("options") if logging else None),
        "ContainerARN": arn(account, task.region, f"container/{task.cluster}/{task.id}/{run.id}"),
        "Health": {"status": run.health or "UNKNOWN"} if spec.containers[run.container].health_check is not None else None,
        "RestartCount": run.restarts if (container.get("restartPolicy") or {}).get("enabled") else None,
        "Networks": [_network(task, spec, about)],
        "Ports": _ports(bindings_of(task, run, container)),
    }
    return _without_none(metadata)


def _network(task: Task, spec: TaskSpec, about: dict[str, Any]) -> dict[str, Any]:
    """The network of a container.

    A plain process uses the network of its host. If it is a node of a multi-node job, it has a loopback address of its own. The
    address of a container is the one that it has itself, also if other machines reach it at the address of its host.
    """
    if "privateIpv4Address" not in about:
        address = task.details.get("jobEnvironment", {}).get(NODE_ADDRESS) or host_address(task) or "127.0.0.1"
        return {"NetworkMode": "host", "IPv4Addresses": [address]}
    mode = "host" if spans_hosts(task) else spec.document.get("networkMode") or "bridge"
    return _without_none(
        {"NetworkMode": mode, "IPv4Addresses": [about["privateIpv4Address"]], "MACAddress": about.get("macAddress")}
    )


def _ports(bindings: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    return [
        {
            "ContainerPort": binding["containerPort"],
            "Protocol": binding["protocol"],
            "HostPort": binding["hostPort"],
            "HostIp": binding["bindIP"],
        }
        for binding in bindings
    ] or None


def _task_limits(task: Task, spec: TaskSpec) -> dict[str, Any] | None:
    """The task-level limits of the task definition, if any: CPU in cores, memory in MiB."""
    limits = {
        "CPU": task.demand.cpu_units / CPU_UNITS_PER_CORE if spec.cpu else None,
        "Memory": task.demand.memory_mib if spec.memory else None,
    }
    return _without_none(limits) or None


# Statistics


def docker_stats(run: Run, measured: Measured, instance: Instance) -> dict[str, Any] | None:
    """Statistics in the format of Docker's API; None if the container has no running process.

    The statistics have no network counters, and the memory limit is the memory of the instance. Bytes read and
    written are known only as a total of all block devices. The total is shown as device 0:0.
    """
    now, before = measured.now.get(run.attempt_id), measured.before.get(run.attempt_id)
    if now is None:
        return None
    return {
        "read": _time(now.at_s),
        "preread": _time(before.at_s) if before else "0001-01-01T00:00:00Z",
        "id": run.id,
        "name": f"/{run.container}",
        "num_procs": 0,
        "pids_stats": {"current": now.threads},
        "cpu_stats": _cpu(now, instance),
        "precpu_stats": _cpu(before, instance) if before else {"cpu_usage": {"total_usage": 0}, "throttling_data": NOT_THROTTLED},
        "memory_stats": {
            "usage": now.memory_bytes,
            "limit": instance.memory_mib * MIB,
            "stats": {"rss": now.memory_bytes},
        },
        "blkio_stats": {
            "io_service_bytes_recursive": [
                {"major": 0, "minor": 0, "op": "Read", "value": now.read_bytes},
                {"major": 0, "minor": 0, "op": "Write", "value": now.written_bytes},
            ],
        },
        "storage_stats": {},
    }


def _cpu(usage: Usage, instance: Instance) -> dict[str, Any]:
    user, system = round(usage.cpu_user_s * 1e9), round(usage.cpu_system_s * 1e9)
    return {
        "cpu_usage": {"total_usage": user + system, "usage_in_usermode": user, "usage_in_kernelmode": system},
        "system_cpu_usage": round(usage.host_cpu_s * 1e9),
        "online_cpus": instance.cpu_units // CPU_UNITS_PER_CORE,
        "throttling_data": NOT_THROTTLED,
    }


def _shown(tx: Tx[Store], at_s: float | None) -> str | None:
    return _time(tx.steps.wall_s(at_s)) if at_s is not None else None


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
