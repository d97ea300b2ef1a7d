"""Signals to the programs of tasks, for example SIGINT after Ctrl-C in `corral run`.

ECS has no such operation: StopTask always sends SIGTERM, and SIGKILL after the stop timeout. All running containers of the task get
the signal. In a Docker container, the first process gets it (`docker kill --signal`). If the container is a plain process, its
process group gets it. If the program ends, the task stops with the exit code of the program. After any signal except SIGUSR1 and
SIGUSR2, Corral does not requeue the task when it ends. The response names the containers that were running. If it names none, no
signal was sent.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.model.agent_protocol import SignalOrder
from corral.model.run import RunState
from corral.model.run_signals import SIGNALS
from corral.services.corral.errors import HostNotConnectedException, InvalidRequestException, TaskNotFoundException, ecs_refusals
from corral.services.ecs.lookup import find_cluster, short
from corral.services.ecs.task_progress import host_of
from corral.services.ecs.task_queue import forbid_requeue
from corral.store import Store

RECONNECT_S, AGAIN_S = 5.0, 0.1  # how long the response waits for an agent that is not connected, and how often it looks
CONTINUES = ("SIGUSR1", "SIGUSR2")  # users do not send these signals to end a program, so the task may still be requeued later
NOT_CONNECTED = "The agent of the host is not connected. Try again when it is: see `corral status`."


def signal_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Send a signal. If the agent is not connected, wait: it may reconnect after a restart of this server."""
    given, name = params["task"], params["signal"]
    if name not in SIGNALS:
        raise InvalidRequestException(f"signal '{name[:32]}' is not valid: use one of {', '.join(SIGNALS)}.")
    with ecs_refusals():
        cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    task = tx.store.tasks.get(short(given))
    if task is None or (task.region, task.cluster) != (caller.region, cluster):
        raise TaskNotFoundException(f"Task {given[:300]} was not found in cluster {cluster}. `corral ps` lists the tasks.")
    running = {run.container: run.attempt_id for run in task.runs if run.state is RunState.RUNNING}
    if running:
        host_id = host_of(tx, task)
        if not tx.settings.server.is_connected(host_id):
            if tx.final:
                raise HostNotConnectedException(NOT_CONNECTED)
            raise Wait([f"signal:{host_id}"], tx.now_s + RECONNECT_S, again_s=tx.now_s + AGAIN_S)
        tx.order_once(host_id, SignalOrder(list(running.values()), name))
        if name not in CONTINUES:
            forbid_requeue(tx, task)
    return {"task": task.id, "lastStatus": task.state.value, "signal": name, "containers": list(running)}
