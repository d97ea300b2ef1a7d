"""The page `/_corral/signal`. `corral run` uses it to send a signal, for example SIGINT after Ctrl-C, to the program of a task.

ECS has no such operation: StopTask always sends SIGTERM, and SIGKILL after the stop timeout. All running containers of the task get
the signal. In a Docker container, the first process gets it (`docker kill --signal`). If the container is a plain process, its
process group gets it. If the program ends, the task stops with the exit code of the program. After any signal except SIGUSR1 and
SIGUSR2, Corral does not requeue the task when it ends. The response names the containers that were running. If it names none, no
signal was sent.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.model.agent_protocol import SignalOrder
from corral.model.run import RunState
from corral.model.run_signals import SIGNALS
from corral.model.task import Task
from corral.server.agents.connections import Agents
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.server.task_permissions import RequiredOperation
from corral.services.ecs.lookup import find_cluster, short
from corral.services.ecs.task_progress import host_of
from corral.services.ecs.task_queue import forbid_requeue
from corral.store import Store

RECONNECT_ATTEMPTS, RECONNECT_S = 50, 0.1  # the number of attempts to send an order, and the pause between two attempts
CONTINUES = ("SIGUSR1", "SIGUSR2")  # users do not send these signals to end a program, so the task may still be requeued later

SignalDenied = api_error("AccessDenied", 403)
InvalidSignalRequest = api_error("InvalidRequest", 400)
SignalTaskNotFound = api_error("TaskNotFound", 404)
SignalNotReachable = api_error("HostNotConnected", 400)
SignalMethodNotAllowed = api_error("MethodNotAllowed", 405)


class TaskSignal(Struct, frozen=True, forbid_unknown_fields=True):
    task: str  # an id or an ARN
    signal: str
    cluster: str | None = None  # None: the cluster `default`


class SignalTarget(Struct, frozen=True):
    """The host of a task, and the containers of the task that run there."""

    task_id: str
    state: str
    host_id: str = ""
    runs: dict[str, str] = {}  # name of the container → attempt id, by which the host knows the run of the container


class SignalPage:
    def __init__(self, state: Lane[Store], agents: Agents) -> None:
        self._state = state
        self._agents = agents

    def exchange(self, request: aws.Request, request_id: str) -> TaskSignalRequest:
        return TaskSignalRequest(request, request_id, self)

    async def send(self, given: TaskSignal, caller: Caller) -> dict[str, Any]:
        if given.signal not in SIGNALS:
            raise InvalidSignalRequest(f"signal '{given.signal[:32]}' is not valid: use one of {', '.join(SIGNALS)}.")
        target: SignalTarget = await self._state.submit(partial(_target, given=given, caller=caller))
        if target.runs:
            await self._send_order(target.host_id, SignalOrder(list(target.runs.values()), given.signal))
        return {"task": target.task_id, "lastStatus": target.state, "signal": given.signal, "containers": list(target.runs)}

    async def _send_order(self, host_id: str, order: SignalOrder) -> None:
        """Send the order. If the agent is not connected, wait a few seconds: it may reconnect after a restart of this server.

        Raise SignalNotReachable if the agent does not reconnect.
        """
        for _ in range(RECONNECT_ATTEMPTS):
            if self._agents.signal(host_id, order):
                return
            await asyncio.sleep(RECONNECT_S)
        raise SignalNotReachable("The agent of the host is not connected. Try again when it is: see `corral status`.")


class TaskSignalRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    page: SignalPage
    action: str = "corral:SignalTask"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", "SignalTask", dict)

    def denied(self, message: str) -> ApiError:
        return SignalDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method != "POST":
            raise SignalMethodNotAllowed(f"{self.request.method} is not served here; use POST.")
        try:
            given = msgspec.json.decode(self.request.body, type=TaskSignal)
        except ValueError as error:  # also UnicodeDecodeError, which is no error of msgspec
            raise InvalidSignalRequest(f'Send {{"task": ID, "signal": "SIGINT", "cluster": NAME}} ({error}).') from None
        return aws.Response(200, [("content-type", "application/json")], msgspec.json.encode(await self.page.send(given, caller)))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


def _target(tx: Tx[Store], given: TaskSignal, caller: Caller) -> SignalTarget:
    cluster, _ = find_cluster(tx, caller, given.cluster)
    task: Task | None = tx.store.tasks.get(short(given.task))
    if task is None or (task.region, task.cluster) != (caller.region, cluster):
        raise SignalTaskNotFound(f"Task {given.task[:300]} was not found in cluster {cluster}. `corral ps` lists the tasks.")
    running = {run.container: run.attempt_id for run in task.runs if run.state is RunState.RUNNING}
    if not running:
        return SignalTarget(task.id, task.state.value)
    if given.signal not in CONTINUES:
        forbid_requeue(tx, task)
    return SignalTarget(task.id, task.state.value, host_of(tx, task), running)
