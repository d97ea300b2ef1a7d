"""The data that a host needs to start a container: command, environment, secrets, environment files and log stream.

The server sends this data to the host as an order to start a run. The server reads secrets and environment files when it creates
the order, so no row of a task contains a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from corral.access.caller import user_writer
from corral.access.sessions import address_of_run, password_of_task
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet.host_options import options_for
from corral.fleet.task_interfaces import host_address
from corral.fleet.unix_accounts import account_of
from corral.model.agent_protocol import StartOrder
from corral.model.blob import Slice
from corral.model.private_environment import BUCKET, private_objects
from corral.model.run import LogTarget, RunSpec
from corral.model.settings import Settings
from corral.model.task import Run, Task
from corral.services.ecr.image_names import RegistryPull, own_image, pull_from_here
from corral.services.ecs.host_access import ACCOUNT, ONLY_IN_DOCKER, gives_host, refusal, setting_with_host_access
from corral.services.ecs.lookup import arn, split_definition
from corral.services.ecs.task_spec import ContainerSpec, TaskSpec, fence_s, wants_gpu_indexes
from corral.store import Store
from corral.store.hosts import StoredOptions

STARTED_BY_CORRAL_RUN = ("corral-run", "corral-array/")  # `startedBy` of the tasks of `corral run` (`cli/runs/submission.py`)
# The address of a node of a multi-node job: a loopback address, or that of its host if the job spans hosts.
NODE_ADDRESS = "CORRAL_NODE_ADDRESS"
LOOPBACK = "127."
MAIN_NODE_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"  # the main node itself does not get this variable
# The network interface of the node's address, for NCCL and Gloo, if the job spans hosts. A container can set other values.
SOCKET_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
FILES_MAX_BYTES = 2**20  # the limit for all files of a container; Linux cannot start a program with a much larger environment
OBJECT_ARN = re.compile(r"arn:aws[a-z-]*:s3:::([^/]+)/(.+)")
TASK_SETTINGS = ("networkMode", "pidMode", "ipcMode", "volumes")  # members of the task definition that Docker needs

NO_ENGINE = (
    "CannotStartContainerError: a program in a container has started this task, so it runs only in Docker, but no Docker engine "
    "responded when Corral started. Start Docker and restart Corral, or start the task with the root key."
)
ON_HOST = (
    "CannotStartContainerError: a program in a container has started this task, and may not use {}, which gives access to the "
    "host. Start the task with the root key, or allow corral:RunOnHost in a policy of that program's role and start it again."
)
OTHER_ACCOUNT = (
    "CannotStartContainerError: the task was created to run as the Unix account {} of its owner, and the account is {} now. Start "
    "it again."
)
SPANS_HOSTS = "networkMode: host, which the containers of a multi-node job on several hosts use,"
NO_IMAGE = "CannotPullContainerError: {}"
NO_FILES = "ResourceInitializationError: failed to download env files: file download command: non empty error stream: {}"


def start_order(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> StartOrder:
    """The order to start a run.

    After the start, the server sends the `spec` of this order again for health checks and for ExecuteCommand.
    """
    container = spec.containers[run.container]
    definition = container.definition
    secrets, no_secrets = _secret_values(tx, task, container) if container.secrets else ({}, None)
    named = (*container.environment_files, *container.private_files)
    files, no_files = environment_file_slices(tx, task, spec, named) if named else ([], None)
    settings = container_settings(tx, task, spec, container)
    log = log_target(task, run, container, may_be_container=settings is not None)
    pull, no_image = registry_pull(tx, task, spec, container) if settings is not None else (None, None)
    own_environment = {
        **secrets,
        **task_environment(tx.settings, task, run),
        **job_environment(tx, task, spec, container),
        **(container.sharing_environment if run.gpu_memory_mib else {}),
    }
    run_spec = RunSpec(
        run_id=run.attempt_id,
        task_id=task.id,
        container=run.container,
        image=pull.image if pull is not None else container.image,
        command=container.command,
        environment={**container.environment, **own_environment},
        gpu_ids=list(run.gpu_ids),
        gpu_indexes=gpu_indexes(tx, task, run),
        working_directory=definition.get("workingDirectory"),
        stop_grace_s=container.stop_grace_s,
        ships_logs=log is not None,
        health=container.health_check,
        settings=settings,
        endpoint_url=tx.settings.endpoint_url,
        pull_always=pull is not None,
        registry_auth=pull.auth if pull is not None else "",
        image_may_ask=settings is not None and run.gpus == 0 and task.launch_type == "EC2" and not container.sets_visible_devices,
        memory_mib=definition.get("memory") or (task.demand.memory_mib if spec.memory else None),
        cpu_units=definition["cpu"],
        environment_files=files[: len(container.environment_files)] if files else files,
        private_files=files[len(container.environment_files) :] if files else files,
        fixed_variables=list(own_environment) if container.private_files else [],
        fence_s=fence_s(task.details.get("tags", ())),
        output_file=_output_file(tx.settings, task, run) if log is not None else "",
        account=task.details.get(ACCOUNT, ""),
    )
    refused = _not_isolated(tx, task, spec) or _kept_from_host(tx, task, spec) or _other_account(tx, task)
    return StartOrder(run_spec, log, refused or no_secrets or no_files or no_image)


def _output_file(settings: Settings, task: Task, run: Run) -> str:
    """The name of the file in which the host keeps the output of a run of `corral run`. Empty for other tasks.

    The name is `ID.log`. It also has the name of the container if the task has several, and the number of its restart.
    """
    if not settings.outputs.file_mib or not (task.started_by or "").startswith(STARTED_BY_CORRAL_RUN):
        return ""
    container = f"-{run.container}" if len(task.runs) > 1 else ""
    return f"{task.id}{container}{f'.{run.restarts}' if run.restarts else ''}.log"


def gpu_indexes(tx: Tx[Store], task: Task, run: Run) -> list[int]:
    """The indexes of the run's GPUs on their host, if the task wants indexes in CUDA_VISIBLE_DEVICES. Otherwise an empty list."""
    if not run.gpu_ids or not wants_gpu_indexes(task.details.get("tags", ()), tx.settings.gpu_ids):
        return []
    assert task.instance_id is not None
    by_id = {gpu.gpu_id: gpu.index for gpu in tx.store.instances.gpus(task.instance_id)}
    return [by_id[gpu_id] for gpu_id in run.gpu_ids if gpu_id in by_id]


def container_settings(tx: Tx[Store], task: Task, spec: TaskSpec, container: ContainerSpec) -> dict[str, Any] | None:
    """The settings of a Docker container in ECS's form, without command and environment; None for a plain process.

    Only the host knows whether it has a Docker engine. With `--runtime auto`, a host without an engine ignores the settings and
    starts a plain process.
    """
    if container.is_host_image or options_for(tx, task).options.runtime == "process":
        return None
    family, revision = split_definition(task.definition_arn)
    return {
        "container": {name: value for name, value in container.definition.items() if name != "environment"},
        "task": {
            **{name: spec.document[name] for name in TASK_SETTINGS if name in spec.document},
            **({"networkMode": "host"} if spans_hosts(task) else {}),
            "cpu": str(task.demand.cpu_units) if spec.cpu else None,
            "memory": str(task.demand.memory_mib) if spec.memory else None,
            "family": family,
            "revision": str(revision),
            "arn": arn(tx.settings.account, task.region, f"task/{task.cluster}/{task.id}"),
            "cluster": task.cluster,
            **_published(task, spec),
        },
    }


def _published(task: Task, spec: TaskSpec) -> dict[str, Any]:
    """The port mappings of all containers, if the host publishes them at its address. The pause container of the task has them."""
    if not (address := host_address(task)):
        return {}
    mappings = [mapping for each in spec.containers.values() for mapping in each.definition.get("portMappings", ())]
    return {"published": {"address": address, "portMappings": mappings}}


def registry_pull(tx: Tx[Store], task: Task, spec: TaskSpec, container: ContainerSpec) -> tuple[RegistryPull | None, str | None]:
    """Return how the host pulls an image of Corral's registry, and the reason why the container cannot start.

    The pull is None for an image of another registry. The reason is None if the container can start.
    """
    own = own_image(tx.settings, container.image, task.region)
    if own is None:
        return None, None
    strong, trusted = controls_host(tx, task, spec), _trusted_writer(tx, task, spec)
    pull = pull_from_here(tx.settings, container.image, task.region, tx.wall_s, controls_host=strong and not trusted)
    from corral.services.ecr.image_storage import image_refusal  # imported here, because few tasks use images of this registry

    refused = image_refusal(tx, own, trusted) if strong else None
    return pull, NO_IMAGE.format(refused) if refused is not None else None


def _not_isolated(tx: Tx[Store], task: Task, spec: TaskSpec) -> str | None:
    """Why `--isolate` forbids the start of this task; None if the start is allowed.

    RunTask refuses such a task. But a task may have waited for capacity since before Corral was restarted with `--isolate`, and a
    multi-node job needs the network of the host only if it was placed on several hosts.
    """
    setting = _setting_with_host_access(task, spec) if tx.settings.isolate else None
    return refusal(setting) if setting is not None else None


def _kept_from_host(tx: Tx[Store], task: Task, spec: TaskSpec) -> str | None:
    """Why a task of a program in a container, which may not run on the host, cannot start; None if it can.

    The permissions of the request were checked before its transaction, so a newer revision of the definition can have been used.
    """
    if not task.details.get(ONLY_IN_DOCKER):
        return None
    as_account = bool(task.details.get(ACCOUNT))
    if (setting := _setting_with_host_access(task, spec, as_account=as_account)) is not None:
        return ON_HOST.format(setting)
    return None if as_account or options_for(tx, task).runs_containers else NO_ENGINE


def _other_account(tx: Tx[Store], task: Task) -> str | None:
    """Why a task cannot start because the Unix account of its owner has changed since it was created; None if it has not."""
    created, now = task.details.get(ACCOUNT, ""), account_of(tx, task.program_owner)
    return OTHER_ACCOUNT.format(created, now or "none") if created and created != now else None


def _setting_with_host_access(task: Task, spec: TaskSpec, *, as_account: bool = False) -> str | None:
    return SPANS_HOSTS if spans_hosts(task) else setting_with_host_access(spec.document, as_account=as_account)


def has_containers(tx: Tx[Store], task: Task, spec: TaskSpec) -> bool:
    """Whether a container of the task runs in Docker, not as a plain process. If so, policies limit the task's credentials."""
    host = options_for(tx, task)
    return any(_in_docker(host, run) for run in task.runs if not spec.containers[run.container].is_host_image)


def controls_host(tx: Tx[Store], task: Task, spec: TaskSpec, *, own_account: bool = False) -> bool:
    """Whether the programs of a task can run others on the host: as plain processes, or by a setting or the role of the task.

    `own_account`: what the Unix account of the task can do on the host does not count, because it is the account of the caller.
    """
    as_account, host = own_account and bool(task.details.get(ACCOUNT)), options_for(tx, task)
    are_processes = not as_account and not all(_in_docker(host, run) for run in task.runs)
    return are_processes or spans_hosts(task) or gives_host(tx, spec.document, spec.role, as_account=as_account)


def _trusted_writer(tx: Tx[Store], task: Task, spec: TaskSpec) -> str:
    """Return the `Caller.writer` that may steer a task without the permission to run on the host: its owner, if it can do no more
    than the owner's Unix account. Return an empty text if there is none.
    """
    if not task.details.get(ACCOUNT) or controls_host(tx, task, spec, own_account=True):
        return ""
    return user_writer(task.program_owner)


def _in_docker(host: StoredOptions, run: Run) -> bool:
    if run.about is not None:
        return True
    is_process = run.pid is not None  # with `--runtime auto`, the host had no engine when the run started
    return host.options.runtime == "docker" or (not is_process and host.runs_containers)


def log_target(task: Task, run: Run, container: ContainerSpec, *, may_be_container: bool = False) -> LogTarget | None:
    """The log stream of a run. Without the option awslogs-stream-prefix, the name of the stream is the container's `runtimeId`.

    A restart of the container does not change its `runtimeId`.
    """
    options = container.log_options
    if options is None:
        return None
    prefix = options.get("awslogs-stream-prefix")
    runtime_id = (run.about or {}).get("runtimeId")
    return LogTarget(
        region=options.get("awslogs-region", task.region),
        group=options["awslogs-group"],
        stream=f"{prefix}/{run.container}/{task.id}" if prefix else runtime_id or run.id,
        create_group=options.get("awslogs-create-group", "").lower() == "true",
        named_by_container=may_be_container and not prefix and runtime_id is None,
        owner=task.owner,
    )


# The environment of a container


def task_environment(settings: Settings, task: Task, run: Run) -> dict[str, str]:
    """The environment variables that ECS sets, and AWS_ENDPOINT_URL. AWS's libraries read them, so programs need no settings.

    The variables contain URLs. `server/task_endpoints.py` serves these URLs.
    """
    url, address = settings.endpoint_url, address_of_run(settings.session_key, run.id)
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": task.region,
        "AWS_DEFAULT_REGION": task.region,
        "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE" if is_fargate(task) else "AWS_ECS_EC2",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v2/credentials/{task.id}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": password_of_task(settings.session_key, task.id),
        "ECS_CONTAINER_METADATA_URI": f"{url}/v3/{address}",
        "ECS_CONTAINER_METADATA_URI_V4": f"{url}/v4/{address}",
        "ECS_AGENT_URI": f"{url}/api/{address}",
    }


def job_environment(tx: Tx[Store], task: Task, spec: TaskSpec, container: ContainerSpec) -> dict[str, str]:
    """The variables that differ between the tasks of one Batch job, or between the members of one array of the task queue.

    If the nodes of a multi-node job are containers with a network of their own, loopback addresses are of no use. Then the variable
    with the node's own address is omitted, and the address of the main node is that of its container.
    """
    given: dict[str, str] = task.details.get("jobEnvironment", {})
    if spans_hosts(task):
        return {name: value for name, value in given.items() if name not in SOCKET_INTERFACES or name not in container.environment}
    if NODE_ADDRESS not in given or not has_network(tx, task, spec):
        return given
    others = {name: value for name, value in given.items() if name not in (NODE_ADDRESS, MAIN_NODE_ADDRESS)}
    return {**others, MAIN_NODE_ADDRESS: main_node_address(tx, task, spec)} if MAIN_NODE_ADDRESS in given else others


def has_network(tx: Tx[Store], task: Task, spec: TaskSpec) -> bool:
    """Whether the containers of a task have a network of their own. Then only Docker knows their address."""
    own = spec.document.get("networkMode") not in ("host", "none") and not spans_hosts(task)
    return own and has_containers(tx, task, spec)


def spans_hosts(task: Task) -> bool:
    """Whether the task is a node of a multi-node job that runs on several hosts. Its containers use the network of its host."""
    return not task.details.get("jobEnvironment", {}).get(NODE_ADDRESS, LOOPBACK).startswith(LOOPBACK)


def main_node_address(tx: Tx[Store], task: Task, spec: TaskSpec) -> str:
    """Return the address of the main node of a task's multi-node job.

    Return "" if the main node is a container that has not started, and for the main node itself: as on AWS, it does not get the
    variable with this address.
    """
    given: dict[str, str] = task.details.get("jobEnvironment", {})
    if MAIN_NODE_ADDRESS not in given or not has_network(tx, task, spec):
        return given.get(MAIN_NODE_ADDRESS, "")
    parent = given["AWS_BATCH_JOB_ID"].partition("#")[0]
    node = tx.store.jobs.get(f"{parent}#{given['AWS_BATCH_JOB_MAIN_NODE_INDEX']}")
    main = tx.store.tasks.get(node.task_id) if node is not None and node.task_id else None
    return container_address(main) if main is not None else ""


def waits_for_main_node(tx: Tx[Store], task: Task, spec: TaskSpec) -> bool:
    """Whether a task cannot start yet, because it needs the address of the main node of its multi-node job."""
    return MAIN_NODE_ADDRESS in task.details.get("jobEnvironment", ()) and not main_node_address(tx, task, spec)


def container_address(task: Task) -> str:
    """Return the address of a task's containers. Return "" before the first container has started."""
    return next((run.about["privateIpv4Address"] for run in task.runs if run.about and run.about.get("privateIpv4Address")), "")


def is_fargate(task: Task) -> bool:
    return task.launch_type == "FARGATE"


def _secret_values(tx: Tx[Store], task: Task, container: ContainerSpec) -> tuple[dict[str, str], str | None]:
    from corral.services.ecs.container_secrets import secret_values  # imported only here, because few containers have secrets

    return secret_values(tx, task, container)


def environment_file_slices(
    tx: Tx[Store], task: Task, spec: TaskSpec, named: Iterable[str]
) -> tuple[list[tuple[Slice, ...]], str | None]:
    """Return the slices of blobs that hold each environment file, and the reason why the container cannot start.

    The reason is None if the container can start. The server reads the slices (`server/agents/environment_files.py`) before it
    sends the order to the host.
    """
    found, errors, size = list[tuple[Slice, ...]](), list[str](), 0
    for value in named:
        try:
            slices = _object_slices(tx, task, spec, value)
            size += sum(each.size for each in slices)
            found.append(slices)
        except ApiError as error:
            errors.append(f"failed to download file {value}: {error.code}: {error.message}")
    if size > FILES_MAX_BYTES:
        errors.append(f"the environment files of a container have {size} bytes together; at most {FILES_MAX_BYTES} are allowed")
    return ([], NO_FILES.format("; ".join(errors))) if errors else (found, None)


def _object_slices(tx: Tx[Store], task: Task, spec: TaskSpec, object_arn: str) -> tuple[Slice, ...]:
    # imported only here, because few containers have environment files
    from corral.services.s3.errors import AccessDenied, NoSuchBucket
    from corral.services.s3.lookup import existing_version

    named = OBJECT_ARN.fullmatch(object_arn)
    assert named is not None
    bucket = tx.store.buckets.get(named[1])
    if bucket is None:
        raise NoSuchBucket("The specified bucket does not exist")
    if bucket.name == BUCKET and named[2] not in private_objects(task.details.get("overrides", {})):
        raise AccessDenied(f"Only the overrides of RunTask can name objects of the bucket {BUCKET}.")
    version = existing_version(tx, bucket, named[2], None)
    if version.writers and controls_host(tx, task, spec):
        from corral.access.object_writers import writer_refusal

        writers = [each for each in version.writers if each != _trusted_writer(tx, task, spec)]
        if (refused := writer_refusal(tx, f"s3://{bucket.name}/{version.key}", writers)) is not None:
            raise AccessDenied(refused)
    return tx.store.objects.slices(version.content, 0, version.size) if version.content is not None else ()
