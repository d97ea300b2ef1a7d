"""ExecuteCommand: issues a permit to run one command in a container. The session must begin within a minute.

The permit is not stored. It is the content of the session's token, which `access/sessions.py` signs.
`server/exec/data_channel.py` opens the session.
"""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import quote

import orjson
from msgspec import Struct

from corral.access import sessions
from corral.access.caller import Caller
from corral.access.roles import password_epoch
from corral.core.transactions import Tx
from corral.model.agent_protocol import Execute
from corral.model.run import RunState
from corral.model.settings import Settings
from corral.model.task import Run, Task, TaskState
from corral.services.ecs.errors import InvalidParameterException, TargetNotConnectedException
from corral.services.ecs.lookup import arn, find_cluster, task_id_in
from corral.services.ecs.pause_texts import pause_state
from corral.services.ecs.run_spec import start_order
from corral.services.ecs.task_description import is_exec_enabled, task_arn_of
from corral.services.ecs.task_progress import host_of
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

OPEN_WITHIN_S = 60.0
NOT_ENABLED = (
    "The execute command failed because execute command was not enabled when the task was run or the execute command agent "
    "isn't running. Wait and try again or run a new task with execute command enabled and try again."
)


class Permit(Struct, frozen=True):
    """The content of a session token. It permits one command in one run, which is one container of a task."""

    session_id: str
    run_id: str
    command: list[str]
    interactive: bool
    issued_at_s: float
    # The task whose program has called ExecuteCommand, or None, and the epoch of its session (`model/session.py`). The permit ends
    # with them.
    caller_task_id: str | None
    caller_epoch: str


def execute_command(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    task = tx.store.tasks.get(task_id_in(caller, cluster, params["task"]))
    if task is None or (task.region, task.cluster) != (caller.region, cluster):
        raise InvalidParameterException("The referenced task was not found.")
    run = _run(task, params.get("container"))
    if not is_exec_enabled(task):
        raise InvalidParameterException(NOT_ENABLED)
    if task.state is TaskState.STOPPED:
        raise InvalidParameterException("The specified task is stopped. Specify a running task and try again.")
    if run.state is not RunState.RUNNING:
        raise InvalidParameterException(
            f"Unable to start new execute sessions because the container {run.container} isn't running."
        )
    _refuse_paused(task)
    _connected_host(tx, task)
    session_id = f"ecs-execute-command-{tx.ids.hex32()[:17]}"
    permit = [session_id, run.id, _split_command(params["command"]), params["interactive"], tx.now_s]
    permit += [caller.task_id, password_epoch(tx, caller)]
    url = (caller.endpoint_url or tx.settings.endpoint_url).replace("http", "ws", 1)
    address = quote(sessions.sealed(tx.settings.session_key, "exec address", session_id.encode()))
    return {
        "clusterArn": arn(caller.account, caller.region, f"cluster/{cluster}"),
        "containerArn": arn(caller.account, caller.region, f"container/{cluster}/{task.id}/{run.id}"),
        "containerName": run.container,
        "interactive": params["interactive"],
        "taskArn": task_arn_of(caller.account, task),
        "session": {
            "sessionId": session_id,
            "streamUrl": f"{url}/v1/data-channel/{session_id}?role=publish_subscribe&cell-number={address}",
            "tokenValue": sessions.sealed(tx.settings.session_key, "exec", orjson.dumps(permit)),
        },
    }


def is_session_address(settings: Settings, session_id: str, address: str) -> bool:
    """Whether ExecuteCommand returned this address for the session. The address contains a MAC, so a client cannot guess it."""
    return sessions.opened(settings.session_key, "exec address", address) == session_id.encode()


def read_permit(settings: Settings, session_id: str, token: str, now_s: float) -> Permit | None:
    """Return the permit in a token. Return None if the token is not valid, has expired or belongs to another session."""
    content = sessions.opened(settings.session_key, "exec", token)
    permit = Permit(*orjson.loads(content)) if content is not None else None
    if permit is None or permit.session_id != session_id or not permit.issued_at_s <= now_s <= permit.issued_at_s + OPEN_WITHIN_S:
        return None
    return permit


def execute_order(tx: Tx[Store], permit: Permit) -> tuple[str, Execute]:
    """Return the host of the run that a permit names, and the order that starts the command there.

    Check the caller, the run and the host again: since ExecuteCommand, the task of the caller and the run can have stopped, the
    session of the caller can be revoked, and the host can have disconnected.
    """
    caller_has_ended = permit.caller_task_id is not None and permit.caller_task_id not in tx.store.tasks.live
    if caller_has_ended or not tx.settings.sessions.includes(permit.caller_epoch, permit.caller_task_id):
        raise InvalidParameterException("The task or the session that called ExecuteCommand has ended, and its token with it.")
    task = tx.store.tasks.of_run(permit.run_id)
    run = next((run for run in task.runs if run.id == permit.run_id), None) if task is not None else None
    if task is None or run is None or run.state is not RunState.RUNNING:
        raise InvalidParameterException("The container has stopped since ExecuteCommand was called.")
    _refuse_paused(task)
    host_id = _connected_host(tx, task)
    return host_id, Execute(
        permit.session_id, start_order(tx, task, run, spec_of(tx, task)).spec, permit.command, permit.interactive
    )


def _run(task: Task, container: str | None) -> Run:
    if container is None and len(task.runs) > 1:
        names = ", ".join(run.container for run in task.runs)
        raise InvalidParameterException(f"The task has more than one container. Specify one of them by name: {names}.")
    for run in task.runs:
        if container in (None, run.container):
            return run
    raise InvalidParameterException(f"The container {container} is not in the task. Specify a container of the task and try again.")


def _refuse_paused(task: Task) -> None:
    if pause_state(task) is not None:
        raise InvalidParameterException(
            f"The task is paused, so no command can run in it: `corral resume {task.label}` continues it."
        )


def _connected_host(tx: Tx[Store], task: Task) -> str:
    host = tx.store.hosts.get(host_of(tx, task)) if task.instance_id is not None else None
    if host is None or not host["connected"]:
        raise TargetNotConnectedException("The execute command failed due to an internal error. Try again later.")
    return str(host["id"])


def _split_command(command: str) -> list[str]:
    """Split the command into words, as a shell does. The command runs without a shell. A caller can start one with `sh -c '…'`."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidParameterException(f"The command cannot be split into words: {str(error).lower()}.") from None
    if not words:
        raise InvalidParameterException("Command can not be blank.")
    if "\0" in command:
        raise InvalidParameterException("A command cannot contain a NUL character.")
    return words
