"""The main program of the agent, the process that starts and stops the containers of tasks on this host for the server.

Start it with python -m corral.node --data DIR --gpus FLAG.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from corral.core.clock import SteadyClock, WallClock
from corral.core.errors import Refused
from corral.core.ids import RandomIds
from corral.model.agent_protocol import HostOptions
from corral.node import link, node_folder
from corral.node.agent import Agent
from corral.node.docker_engine import DockerEngine
from corral.node.engine_router import EngineRouter
from corral.node.gpus import detect, find_devices, kind_of
from corral.node.gpus_flag import parse_gpus_flag
from corral.node.hold import Hold
from corral.node.host import kernel_boot_id, this_host
from corral.node.link import Connect
from corral.node.process_engine import ProcessEngine
from corral.process.control_characters import escape_controls
from corral.process.data_folder import JOINED, VERSIONS
from corral.process.log import log_to_stderr
from corral.process.log_times import add_times_to_output
from corral.process.options import parse_options

if TYPE_CHECKING:
    from corral.node.gateway_keeper import GatewayKeeper

LOCK_MAX_S, LOCK_POLL_S = 5.0, 0.02

log = logging.getLogger("corral.node")


class AgentOptions(HostOptions, frozen=True, kw_only=True, rename="kebab"):
    data: str  # Corral's data folder
    find_gpus: str | None = None  # only print the ids of these GPUs (0,3,GPU-...), or an error if one does not exist
    only_gpus: str | None = None  # offer only these GPUs (0,3,GPU-...), which a lender has given to this host
    boot_id: str | None = None  # identifies the current boot of the machine; None: use the kernel's boot id
    held_by: int | None = None  # the descriptor of the hold on the allocation of this host (hold.py); None: it has none
    leaves_on_term: bool = False  # SIGTERM means that the allocation ends soon: the agent ends its runs, and reports their ends
    machine: str = ""  # the fingerprint of the machine: machine-id=…,board-uuid=…; empty: read it


async def serve(data: Path, options: AgentOptions, boot_id: str) -> Path | None:
    """Run the agent. Return the folder of a new version, if it continues with that one."""
    machine: dict[str, str] = {}
    is_joined = (data.parent / JOINED).exists()
    if is_joined:
        from corral.node.fingerprint import given_or_found  # imported here because OpenSSL costs each agent memory

        machine = given_or_found(options.machine)
    host = this_host(data, boot_id, RandomIds(), machine)
    gpus = detect(options.gpus, host.host_id, options.only_gpus)
    log.info("host %s: %s", host.host_id, gpus.note)
    kind = kind_of(gpus)
    record, gateway = None, None
    if is_joined:  # imported here because these modules would cost each agent memory
        from corral.node import server_access
        from corral.node.gateway_keeper import GatewayKeeper
        from corral.node.joined_host import keep_renewed

        record = server_access.read_record(data.parent)
        gateway = GatewayKeeper(data.parent, containers=options.runtime != "process")
    docker = DockerEngine(
        data, host.host_id, os.environ, WallClock(), gpus=kind, unreachable=gateway.missing_for_containers if gateway else str
    )
    process = ProcessEngine(data, boot_id, os.environ, gateway.spawner_connected if gateway else lambda: None, options.held_by)
    hold = None if options.held_by is None else Hold(options.held_by)
    engine, ended_early = EngineRouter(process, docker, options.runtime), [process.failed]
    if record is None or gateway is None:
        agent = Agent(data, host, options, gpus, engine, SteadyClock(boot_id), partial(link.connect, data), hold=hold)
    else:
        to_server = partial(server_access.connect, data.parent, record.door)
        agent = Agent(
            data, host, options, gpus, engine, SteadyClock(boot_id),
            partial(_connect, gateway, partial(to_server, server_access.AGENT)),
            partial(to_server, server_access.SESSION), gateway.server_at,
            hold,
        )  # fmt: skip
        ended_early.append(gateway.failed)
        renewing = asyncio.ensure_future(keep_renewed(data.parent, record, machine, WallClock().now_s))
    running = asyncio.ensure_future(agent.run())
    on_term = hold.leave if hold is not None and options.leaves_on_term else running.cancel
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_term)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.cancel)
    await asyncio.wait([running, *ended_early], return_when=asyncio.FIRST_COMPLETED)
    if gateway is not None:
        renewing.cancel()
        await gateway.close(end=not any(run.alive for run in engine.observe().values()))
    for each in ended_early:
        if each.done():
            running.cancel()
            each.result()
    if not running.cancelled():
        running.result()
    return agent.upgraded


async def _connect(gateway: GatewayKeeper, connect: Connect) -> link.Link:
    """Connect to the server. Before the first order arrives, tasks can reach the server through the gateway."""
    await gateway.open()
    return await connect()


def _hold_lock(data: Path) -> None:
    """Take the lock of the folder, and hold it until this process ends.

    An agent that was killed holds its lock for a moment longer, because it takes time to free the memory of a process.
    """
    give_up_s, says_so = time.monotonic() + LOCK_MAX_S, False
    while node_folder.try_lock(data / "agent.lock") is None:
        if time.monotonic() > give_up_s:
            raise Refused(f"another agent is running in {data}; stop it first")
        if not says_so:
            log.info("waiting up to %g s for the end of another agent in %s", LOCK_MAX_S, data)
            says_so = True
        time.sleep(LOCK_POLL_S)


def main(arguments: list[str] | None = None) -> int:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `corral join` has blocked Ctrl-C during the imports
        return _run(arguments)
    except KeyboardInterrupt:  # `serve` has not begun yet
        return 0


def _run(arguments: list[str] | None) -> int:
    options = parse_options(sys.argv[1:] if arguments is None else arguments, AgentOptions)
    log_to_stderr("%(message)s")
    data = Path(options.data).resolve() / "node"
    try:
        parse_gpus_flag(options.gpus)  # check the value before any file is written
        node_folder.make(data)
        if options.find_gpus is not None:
            host = this_host(data, "", RandomIds())
            print(",".join(find_devices(options.find_gpus, detect(options.gpus, host.host_id).devices())))
            return 0
        add_times_to_output()
        _hold_lock(data)
        if (data.parent / VERSIONS).exists():
            from corral.node.upgrade import follow_upgrade

            follow_upgrade(data.parent, sys.argv[1:])
        upgraded = uvloop.run(serve(data, options, options.boot_id or kernel_boot_id()))
        if upgraded is not None:
            from corral.node.upgrade import restart

            restart(upgraded, sys.argv[1:])
    except Refused as why:
        print(escape_controls(f"corral node: {why}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
