"""`python -m corral.server`: the server process that `corral up` starts."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import uvloop
from msgspec import Struct

from corral import ids
from corral.aws import Secret
from corral.blobs import Blobs
from corral.clock import WallClock
from corral.core import Command, Core, Tx
from corral.database import lock_folder, validate_file
from corral.errors import Refused
from corral.handovers import forget_finished
from corral.model.instance import DEFAULT_CLUSTER, HOST_TYPE
from corral.model.settings import Settings
from corral.node.docker_settings import GATEWAY as CONTAINERS_GATEWAY
from corral.node.gpus import parse_gpus_flag
from corral.options import parse_options
from corral.reconcile import LOGS, METRICS, STATE
from corral.reconcile.receivers import RECEIVERS
from corral.server.agents import Agents
from corral.server.authentication import Authentication
from corral.server.blob_gc import BlobGc
from corral.server.connection_limits import ConnectionLimits, connections_allowed, raise_open_files_limit
from corral.server.data_channel import DataChannel
from corral.server.front_door import FrontDoor
from corral.server.http_server import AsgiApp, HttpServer
from corral.server.lanes import Lane
from corral.server.metric_publisher import MetricPublisher
from corral.server.request_body import BodyReceiver
from corral.server.status_pages import status_of
from corral.server.task_endpoints import TaskEndpoints
from corral.store import Store
from corral.telemetry import LogStore, MetricStore

ENDS_SESSIONS = "ends all sessions"
LOSES_SECRETS = "loses the value of every SecureString parameter"
IP_FREEBIND = 15  # Linux; Python has no name for it
JOIN_S = 5.0  # how long a start waits for this machine's agent before it reports that Corral is up


class ServerOptions(Struct, frozen=True, rename="kebab"):
    data: str
    host: str = "127.0.0.1"
    port: int = 4566
    gpus: str = "auto"
    exclude_gpus: str = ""
    runtime: Literal["auto", "process", "docker"] = "auto"
    cluster: str = DEFAULT_CLUSTER
    instance_type: str = HOST_TYPE
    account: str = "123456789012"
    alarm_timing: Literal["fast", "aws"] = "fast"
    ready_fd: int | None = None  # a descriptor that gets one line when Corral answers requests
    # The root keys may also be in the environment: every user of the machine can read a command line.
    access_key: str | None = os.environ.get("CORRAL_ACCESS_KEY")
    secret_key: str | None = os.environ.get("CORRAL_SECRET_KEY")


def main() -> None:
    options = parse_options(sys.argv[1:], ServerOptions)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.setswitchinterval(0.0003)  # switch threads often: a search of logs must not delay the responses of other requests
    try:
        uvloop.run(_serve(options))
    except Refused as refusal:
        sys.exit(f"corral: {refusal}")


async def _serve(options: ServerOptions) -> None:
    parse_gpus_flag(options.gpus)
    files_limit = raise_open_files_limit()
    data = Path(options.data).resolve()
    for kind, path in ((Store, data / "state.db"), (LogStore, data / "logs.db"), (MetricStore, data / "metrics.db")):
        validate_file(path, 1 + len(kind.MIGRATIONS))  # check all of them before writing anything
    lock_folder(data)  # until the process ends
    excluded_gpus = _find_gpus(data, options.gpus, options.exclude_gpus)
    keys = _root_keys(data, options.access_key, options.secret_key)
    listeners = [_listen(options.host, options.port)]
    address, port = listeners[0].getsockname()[:2]
    url = inside_url = f"http://{_reachable(options.host)}:{port}"
    if not (ip_address(address).is_loopback or ip_address(address).is_unspecified):
        listeners.append(_listen("127.0.0.1", port))  # AWS SDKs fetch credentials over plain HTTP only from loopback addresses
        inside_url = f"http://127.0.0.1:{port}"
    if options.runtime != "process" and (gateway := _listen_for_containers(port)) is not None:
        listeners.append(gateway)
    settings = Settings(
        account=options.account,
        runtime=options.runtime,
        cluster=options.cluster,
        instance_type=options.instance_type,
        endpoint_url=inside_url,
        session_key=_stored_key(data / "sessions.json", ENDS_SESSIONS),
        secrets_key=_stored_key(data / "secrets.json", LOSES_SECRETS),
        alarm_timing=options.alarm_timing,
    )

    clock, names, loop = WallClock(), ids.RandomIds(), asyncio.get_running_loop()
    store, log_store, metric_store = await asyncio.gather(  # in parallel: each one waits for the disk
        asyncio.to_thread(Store, data / "state.db", checked=True),
        asyncio.to_thread(LogStore, data / "logs.db", checked=True),
        asyncio.to_thread(MetricStore, data / "metrics.db", checked=True),
    )
    state_core = Core(store, settings=settings, clock=clock, ids=names, reconcilers=STATE)
    logs_core = Core(log_store, settings=settings, clock=clock, ids=names, reconcilers=LOGS)
    metrics_core = Core(metric_store, settings=settings, clock=clock, ids=names, reconcilers=METRICS)
    lanes: dict[str, Lane[Any]] = {}
    state = Lane("state", state_core, clock, loop, on_orders=lambda orders: agents.deliver(orders), lanes=lanes,
                 receivers=RECEIVERS["state"])  # fmt: skip
    logs = Lane("logs", logs_core, clock, loop, lanes=lanes, receivers=RECEIVERS["logs"])
    metrics = Lane("metrics", metrics_core, clock, loop, lanes=lanes, receivers=RECEIVERS["metrics"])
    lanes |= {"state": state, "logs": logs, "metrics": metrics}
    blobs = Blobs(data / "blobs", names)
    agents = Agents(data, options.gpus, state, logs, blobs, clock, excluded_gpus, options.runtime, files_limit)
    state_core.batch([Command(_reset_host_timeouts, lambda answer: None)])  # before any due work runs
    forget_finished((store, log_store, metric_store))
    for lane in lanes.values():
        lane.start()
    periodic = ((state, ("sweep:",)), (logs, ("sweep:",)), (metrics, ("rollup:", "history:")))
    await asyncio.gather(*(lane.submit(partial(_schedule_now, keys=keys)) for lane, keys in periodic))
    blob_gc = asyncio.create_task(BlobGc(blobs, state, settings, names).run())
    await agents.listen()
    channel = DataChannel(settings, state, agents, clock, names)
    await channel.listen(data / "node")
    keeper = asyncio.create_task(agents.keep_agent())
    publisher = asyncio.create_task(MetricPublisher(state, metrics, agents, clock).run())

    root = Secret(keys["secret_key"], None, None, f"arn:aws:iam::{settings.account}:root")
    about = {"url": url, "pid": os.getpid(), "data": str(data), "account": settings.account, "gpusFlag": options.gpus,
             "cluster": settings.cluster, "instanceType": settings.instance_type}  # fmt: skip

    def failing() -> list[dict[str, Any]]:
        return [each for lane in lanes.values() for each in lane.failing_handovers()]

    limits = ConnectionLimits(connections_allowed())
    front_door = FrontDoor(
        settings,
        lanes,
        Authentication(keys["access_key"], root, settings.session_key, store.tasks.live, clock),
        names,
        BodyReceiver(blobs),
        lambda tx: status_of(tx, agents.samples, about, agents.history, failing()),
        TaskEndpoints(state, agents),
        limits.memory,
    )
    server = HttpServer(AsgiApp(front_door, channel, blobs, limits), limits, clock)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _request_exit, server, *lanes.values())
    serving = asyncio.create_task(server.serve(sockets=listeners))
    with suppress(TimeoutError):
        await asyncio.wait_for(agents.joined.wait(), JOIN_S)
    gc.collect()
    gc.freeze()  # models, code and settings live as long as the process; requests rarely create reference cycles
    gc.set_threshold(10_000, 50, 100)
    _report_ready(data, about, options.ready_fd)
    await serving
    keeper.cancel()
    blob_gc.cancel()
    publisher.cancel()
    await agents.close()
    (data / "server.json").unlink(missing_ok=True)
    for lane in lanes.values():
        await loop.run_in_executor(None, lane.stop)


def _request_exit(server: HttpServer, *lanes: Lane[Any]) -> None:
    server.exit()
    for lane in lanes:
        lane.release()


def _schedule_now(tx: Tx[Any], keys: Sequence[str]) -> None:
    for key in keys:
        tx.due(key, tx.now_s)


def _reset_host_timeouts(tx: Tx[Store]) -> None:
    """Count the silence of hosts from now: they could not report while the server was down."""
    for host in tx.store.hosts.all():
        if host["connected"]:
            tx.store.hosts.seen(host["id"], tx.now_s)
            tx.due(f"host:{host['id']}", tx.now_s)


def _find_gpus(data: Path, gpus_flag: str, names: str) -> str:
    """Return the ids of the GPUs to exclude; raise Refused if one does not exist. Only the node can query the driver."""
    if not names:
        return ""
    command = [sys.executable, "-m", "corral.node", "--data", str(data), "--gpus", gpus_flag, "--find-gpus", names]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if found.returncode:
        raise Refused(found.stderr.strip().removeprefix("corral node: "))
    return found.stdout.strip()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        raise Refused(f"cannot listen on {host} port {port}: {error.strerror}. Choose another port with --port.") from None
    listener.setblocking(False)
    return listener


def _listen_for_containers(port: int) -> socket.socket | None:
    """Listen on the address at which containers with their own network reach Corral. The agent may create it later."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    try:
        listener.bind((CONTAINERS_GATEWAY, port))
        listener.listen(1024)
    except OSError:
        listener.close()  # a process listens on all addresses, possibly this one
        return None
    listener.setblocking(False)
    return listener


def _reachable(host: str) -> str:
    """Return the address at which tasks of this machine reach the server."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _root_keys(data: Path, access_key: str | None, secret_key: str | None) -> dict[str, str]:
    """Return the root keys: those given, else those stored, else new ones. They are stored so that only the owner can read them."""
    path = data / "credentials.json"
    stored: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    keys = {
        "access_key": access_key or stored.get("access_key") or ids.access_key(),
        "secret_key": secret_key or stored.get("secret_key") or ids.secret_key(),
    }
    if keys != stored:
        _write_private(path, keys)
    return keys


def _stored_key(path: Path, loss: str) -> bytes:
    """Return the key in a file, creating it at the first start. `loss` describes what a new key would lose."""
    if not path.exists():
        _write_private(path, {"key": ids.new_key().hex()})
    try:
        key = bytes.fromhex(json.loads(path.read_text())["key"])
        if len(key) == ids.KEY_BYTES:
            return key
        raise ValueError(f"the key has {len(key)} bytes, not {ids.KEY_BYTES}")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged ({error}). Restore the file, or delete it, which {loss}.") from None


def _report_ready(data: Path, about: dict[str, Any], ready_fd: int | None) -> None:
    _write_private(data / "server.json", about)
    line = f"Corral is up at {about['url']}  (data in {about['data']}; see `corral status`)"
    print(line, flush=True)
    if ready_fd is not None:
        os.write(ready_fd, (json.dumps(about) + "\n").encode())
        os.close(ready_fd)


def _write_private(path: Path, value: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


if __name__ == "__main__":
    main()
