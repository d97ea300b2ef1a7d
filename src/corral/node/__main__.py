"""python -m corral.node --data DIR --gpus FLAG: the agent of this host."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from corral.clock import WallClock
from corral.errors import Refused
from corral.ids import RandomIds
from corral.node import node_folder
from corral.node.agent import Agent
from corral.node.docker_engine import DockerEngine
from corral.node.engine_router import EngineRouter
from corral.node.gpus import detect, find_devices, parse_gpus_flag
from corral.node.host import kernel_boot_id, this_host
from corral.node.process_engine import ProcessEngine

log = logging.getLogger("corral.node")


async def serve(data: Path, gpus_flag: str, excluded_gpus: str, runtime: str, boot_id: str) -> None:
    host = this_host(data, boot_id, RandomIds())
    gpus = detect(gpus_flag, host.host_id)
    log.info("host %s: %s", host.host_id, gpus.note)
    kind = "none" if not gpus.devices() else "simulated" if gpus.devices()[0].simulated else "real"
    docker = DockerEngine(data, host.host_id, os.environ, WallClock(), gpus=kind)
    engine = EngineRouter(ProcessEngine(data, boot_id, os.environ), docker, runtime)
    agent = Agent(data, host, gpus_flag, gpus, engine, WallClock(), excluded_gpus, runtime)
    running = asyncio.ensure_future(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.cancel)
    await asyncio.wait([running, engine.failed], return_when=asyncio.FIRST_COMPLETED)
    if engine.failed.done():
        running.cancel()
        engine.failed.result()
    if not running.cancelled():
        running.result()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m corral.node", description="The agent of a Corral host.")
    parser.add_argument("--data", type=Path, required=True, help="Corral's data folder")
    parser.add_argument("--gpus", default="auto", help="auto, none, sim:8 or sim:2xH200")
    parser.add_argument("--exclude-gpus", default="", help="ids of GPUs that are never offered, separated by commas")
    parser.add_argument(
        "--find-gpus", metavar="GPUS", help="print the ids of these GPUs (0,3,GPU-...) and exit; fail if one does not exist"
    )
    parser.add_argument("--runtime", choices=["auto", "process", "docker"], default="auto")
    parser.add_argument("--boot-id", default=None, help="id of the machine's present boot (default: the kernel's)")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    data = options.data.resolve() / "node"
    try:
        parse_gpus_flag(options.gpus)  # before any file is written
        node_folder.make(data)
        if options.find_gpus is not None:
            host = this_host(data, "", RandomIds())
            print(",".join(find_devices(options.find_gpus, detect(options.gpus, host.host_id).devices())))
            return 0
        lock = node_folder.try_lock(data / "agent.lock")  # held until this process ends
        if lock is None:
            raise Refused(f"another agent is running in {data}; stop it first")
        uvloop.run(serve(data, options.gpus, options.exclude_gpus, options.runtime, options.boot_id or kernel_boot_id()))
    except Refused as why:
        print(f"corral node: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
