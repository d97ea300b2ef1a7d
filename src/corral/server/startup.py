"""The start and the end of the server process, and its options."""

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
from functools import cache, partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import uvloop

from corral.audit.trail import AuditTrail
from corral.aws import Secret
from corral.blobs import Blobs
from corral.configuration.file import store_settings
from corral.configuration.settings import CONSOLE_PORT, TURNS, UP, UP_OPTIONS
from corral.core import ids
from corral.core.clock import WallClock, WallView
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import Refused
from corral.core.handovers import forget_finished
from corral.core.transactions import Tx
from corral.decide.shares import decay_of
from corral.model.agent_protocol import HostOptions
from corral.model.histogram import RequestTimes
from corral.model.principal import root_user
from corral.model.settings import Settings, StoredSecrets
from corral.node.gpus_flag import parse_gpus_flag
from corral.process.control_characters import escape_controls
from corral.process.data_folder import (
    AUDIT,
    OUTPUTS,
    SECRETS,
    SESSIONS,
    close_to_others,
    lock_folder,
    output_files,
)
from corral.process.log import log_to_stderr
from corral.process.log_times import add_times_to_output
from corral.process.options import parse_options
from corral.reconcile import LOGS, METRICS, STATE
from corral.reconcile.receivers import RECEIVERS
from corral.server.agents.connections import Agents
from corral.server.agents.local_agent import LocalAgent
from corral.server.agents.sample_demand import SampleDemand
from corral.server.allocator import limit_heaps, return_free_memory
from corral.server.audit.recording import Audit
from corral.server.authentication import Authentication
from corral.server.blob_gc import BlobGc, quarantine_of, take_back_quarantined
from corral.server.clock_watch import ClockWatch, keep_time, open_clock
from corral.server.configuration import read_configuration
from corral.server.console.opener import ConsoleOpener
from corral.server.data_checks import check_node, validate_data
from corral.server.deleted_folder import EXIT_CODE as DELETED
from corral.server.deleted_folder import FolderDeleted, stop_tasks, until_deleted
from corral.server.door.opener import DoorOpener
from corral.server.exit_deadline import EXIT_MAX_S, exit_when_deleted, exit_within
from corral.server.front_door import FrontDoor
from corral.server.functions.runner import FunctionRunner
from corral.server.http.connection_limits import ConnectionLimits, connections_allowed, raise_open_files_limit
from corral.server.http.listeners import (
    chosen_host,
    inside_host,
    listen_for_console,
    listen_for_containers,
    listeners_on,
    reachable,
)
from corral.server.http.request_body import BodyReceiver
from corral.server.http.server import HttpServer
from corral.server.insights_writer import InsightsWriter
from corral.server.key_files import (
    ENDS_SESSIONS,
    LOSES_SECRETS,
    root_keys,
    session_validity,
    store_members,
    stored_key,
    write_private,
)
from corral.server.lanes import Lane
from corral.server.last_server import unfinished_server
from corral.server.last_uses import LastUses
from corral.server.lenders import Lenders
from corral.server.metric_publisher import MetricPublisher
from corral.server.tls.opener import TlsChoice, open_tls
from corral.server.upgrade_files import UpgradeFiles
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from corral.version import full_version

if TYPE_CHECKING:
    from corral.server.exec.data_channel import DataChannel
    from corral.server.pages.metrics_page import MetricsPage
    from corral.server.task_endpoints import TaskEndpoints

LOG = logging.getLogger("corral.server")
LOG_MAX_BYTES = 10 * 1024 * 1024  # at start, a log file larger than this is rotated
MADE_GROUPS = (
    "made",
    "",
    "default-groups",
)  # the document that says that the groups of IAM were made (`services/iam/default_groups.py`)
JOIN_S = 5.0  # at start, the server waits at most this long for the agent of this machine before it reports that Corral is up


class ServerOptions(HostOptions, frozen=True, kw_only=True, rename="kebab"):
    """The options of the server. Those of HostOptions are for the agent that it starts on this machine."""

    data: str
    host: str = ""  # empty: 127.0.0.1, or with `tls` all addresses
    port: int = 4566
    console_port: int = CONSOLE_PORT
    account: str = "123456789012"
    alarm_timing: Literal["fast", "aws"] = "fast"
    # Start although state.db has no rows for the existing blobs. Corral moves these blobs to blobs/quarantine.
    discard_blobs: bool = False
    isolate: bool = False
    door: str = ""  # [ADDRESS:]PORT at which hosts join from other machines; empty: the first token opens the door
    tls: bool = False  # other machines reach this server with TLS
    tls_names: str = ""  # names and addresses of this machine, separated by commas, for its certificate
    tls_certificate: str = ""  # the path of a certificate; empty: the authority of the data folder signs one
    tls_key: str = ""
    tls_port: int = 0  # a further port for other machines, such as 443; 0: none
    plain_http: bool = False  # other machines may also use plain HTTP
    remember: str = ""  # names of options, separated by commas; the server stores their values in the table [up] of corral.toml
    ready_fd: int | None = None  # a file descriptor to which Corral writes one line as soon as it answers requests
    stages: bool = False  # write a line to `ready_fd` also when a stage of the start begins
    log: str | None = None  # a file for the output of the server, which uses the file after it has checked the data folder
    # The root keys can also be given as environment variables, because every user of the machine can read command lines.
    access_key: str | None = os.environ.get("CORRAL_ACCESS_KEY")
    secret_key: str | None = os.environ.get("CORRAL_SECRET_KEY")


def main() -> None:
    options = parse_options(sys.argv[1:], ServerOptions)
    log_to_stderr("%(levelname)s %(message)s")
    limit_heaps()
    sys.setswitchinterval(0.0003)  # switch threads often, so that a search in logs does not delay other requests
    try:
        uvloop.run(_serve(options))
    except Refused as refusal:
        sys.exit(escape_controls(f"corral: {refusal}"))
    except FolderDeleted as loss:
        print(escape_controls(f"corral: {loss}"), file=sys.stderr, flush=True)
        os._exit(DELETED)  # the threads of the lanes cannot write to their databases any more, so do not wait for them


async def _serve(options: ServerOptions) -> None:
    parse_gpus_flag(options.gpus)
    if options.isolate and options.runtime == "process":
        raise Refused("--isolate runs every task in a container, so it excludes --runtime process.")
    runtime = "docker" if options.isolate else options.runtime
    files_limit = raise_open_files_limit()
    data = Path(options.data).resolve()
    _report_stage(options, f"it checks the files in {data}")
    validate_data(data, options.runtime, discard_blobs=options.discard_blobs)
    configuration = read_configuration(data)
    host = chosen_host(options.host, tls=options.tls, plain_http=options.plain_http)
    tls = TlsChoice(options.tls_certificate, options.tls_key, options.tls_names, options.tls_port, options.plain_http)
    if options.tls:
        tls.check()
    listeners = listeners_on(host, options.port, options.tls_port if options.tls else 0)  # before anything is written
    console_listeners = listen_for_console(host, options.console_port, options.port)
    console_port = console_listeners[0].getsockname()[1]
    door_listener = _listen_for_hosts(data, options.door) if options.door else None
    lock_folder(data)  # the lock is held until the process ends
    close_to_others(data)
    if options.log is not None:
        _redirect_output(Path(options.log))
    if unfinished := unfinished_server(data, WallClock()):
        LOG.warning(unfinished)
    check_node(data / "node")
    of_host = HostOptions(
        options.gpus, _find_gpus(data, options.gpus, options.exclude_gpus), runtime, options.cluster, options.instance_type,
        address=options.address or ("" if options.interface else _address_of_door(options.door)), interface=options.interface,
    )  # fmt: skip
    keys = root_keys(data, options.access_key, options.secret_key)
    port = listeners[0].getsockname()[1]
    inside_url = f"http://{inside_host(host, listeners[0])}:{port}"
    url = inside_url if options.tls else f"http://{reachable(host)}:{port}"
    if runtime != "process" and (gateway := listen_for_containers(port)) is not None:
        listeners.append(gateway)
    sessions_file = data / SESSIONS
    session_key = stored_key(sessions_file, ENDS_SESSIONS)
    settings = Settings(
        account=options.account,
        host=of_host,
        endpoint_url=inside_url,
        session_key=session_key,
        sessions=session_validity(sessions_file, session_key, keys),
        isolate=options.isolate,
        secrets_key=stored_key(data / SECRETS, LOSES_SECRETS),
        alarm_timing=options.alarm_timing,
        instance_types=configuration.instance_types,
        lenders=configuration.lenders,
        scaling=configuration.scaling,
        gpu_ids=configuration.values["run.gpu_ids"],
        history=configuration.history,
        outputs=configuration.outputs,
        usage=configuration.usage,
        lost_after=configuration.lost_after,
        half_life_s=configuration.half_life_s,
        turns_max=configuration.values[f"{TURNS}.most_per_gpu"],
        gpu_hour_price=float(configuration.values["cost.gpu_hour"]),
        blobs_folder=str(data / "blobs"),
        audit_folder=str(data / AUDIT),
    )
    if options.remember:
        store_settings(data, {f"{UP}.{name}": getattr(options, name) for name in options.remember.split(",")})

    _report_stage(options, f"it opens the databases in {data}")
    names, loop = ids.RandomIds(), asyncio.get_running_loop()
    store, log_store, metric_store = await asyncio.gather(  # in parallel, because each of them waits for the disk
        asyncio.to_thread(Store, data / "state.db", checked=True),
        asyncio.to_thread(LogStore, data / "logs.db", checked=True),
        asyncio.to_thread(MetricStore, data / "metrics.db", checked=True),
    )
    store.owner_uses.decay_s = decay_of(settings.half_life_s)
    clock = open_clock(store)
    state_core = Core(
        store, settings=settings, clock=clock, ids=names, reconcilers=STATE, keep_time=partial(keep_time, clock=clock)
    )  # fmt: skip
    logs_core = Core(log_store, settings=settings, clock=clock, ids=names, reconcilers=LOGS)
    metrics_core = Core(metric_store, settings=settings, clock=WallView(clock), ids=names, reconcilers=METRICS)
    lanes: dict[str, Lane[Any]] = {}
    state = Lane("state", state_core, clock, loop, on_orders=lambda orders: agents.deliver(orders), lanes=lanes,
                 receivers=RECEIVERS["state"])  # fmt: skip
    logs = Lane("logs", logs_core, clock, loop, lanes=lanes, receivers=RECEIVERS["logs"])
    metrics = Lane("metrics", metrics_core, WallView(clock), loop, lanes=lanes, receivers=RECEIVERS["metrics"])
    lanes |= {"state": state, "logs": logs, "metrics": metrics}
    blobs = Blobs(data / "blobs", names)
    take_back_quarantined(blobs, store)
    local_agent = LocalAgent(data, of_host, clock, files_limit)
    demand = SampleDemand(clock, lambda: list(metric_store.alarms.watching))
    agents = Agents(
        data, state, logs, blobs, clock, local_agent, settings.outputs, port, store.joined_hosts, of_host.cluster, demand
    )
    is_new = store.stored.get("iam", *MADE_GROUPS) is None
    _report_stage(options, f"it prepares {data}" if is_new else "it applies what is due since the last stop")
    state_core.transact([Command(_reset_host_timeouts, lambda answer: None)])  # before any reconciler runs
    if is_new:
        from corral.services.iam.default_groups import make_default_groups  # imported only at the first start of a data folder

        state_core.transact([Command(make_default_groups, lambda answer: None)])
    forget_finished((store, log_store, metric_store))
    for lane in lanes.values():
        lane.start()
    periodic = ((state, ("sweep:",)), (logs, ("sweep:",)), (metrics, ("rollup:", "history:")))
    await asyncio.gather(*(lane.submit(partial(_schedule_now, keys=keys)) for lane, keys in periodic))
    blob_gc = asyncio.create_task(BlobGc(data, blobs, state, settings, names, clock).run())
    await local_agent.end_outdated()
    await agents.listen()
    keeper = asyncio.create_task(local_agent.keep())
    publisher = asyncio.create_task(MetricPublisher(state, metrics, agents, clock).run())
    functions = FunctionRunner(data, state, logs, settings, names, clock)
    invocations = asyncio.create_task(functions.run())
    last_uses = LastUses(store.iam, state, clock)
    storing_uses = asyncio.create_task(last_uses.run())
    clock_watch = asyncio.create_task(ClockWatch(state, metrics, clock).run())
    insights = asyncio.create_task(InsightsWriter(state, logs, agents, clock).run())

    root = Secret(keys["secret_key"], None, None, root_user(settings.account))
    about = {"url": url, "pid": os.getpid(), "data": str(data), "account": settings.account, "gpusFlag": options.gpus,
             "build": full_version(), "cluster": of_host.cluster, "instanceType": of_host.instance_type,
             "isolate": settings.isolate, "tlsUrl": "", "tlsPin": "", "consolePort": console_port,
             "options": {name: getattr(options, name) for name in UP_OPTIONS}}  # fmt: skip

    def failing() -> list[dict[str, Any]]:
        return [each for lane in lanes.values() for each in lane.failing_handovers()]

    settings.sessions.has_user = store.iam.has_user
    trail = AuditTrail(data / AUDIT)

    def problems() -> list[dict[str, Any]]:
        return [*agents.problems(), *trail.problems()]

    facts = settings.server
    facts.read_samples = demand.read
    facts.about, facts.samples, facts.samples_before = about, agents.samples, agents.history
    facts.problems, facts.failing_handovers, facts.quarantine = problems, failing, partial(quarantine_of, blobs)
    facts.output_files, facts.is_connected = partial(output_files, data / OUTPUTS), agents.is_connected
    facts.read_lane = lambda lane, read: lanes[lane].read_without_snapshot(read, settings, names)
    facts.save_sessions = partial(store_members, sessions_file)
    facts.secrets = StoredSecrets(json.loads((data / SECRETS).read_text()), partial(store_members, data / SECRETS))

    @cache
    def open_data_channel() -> DataChannel:
        from corral.server.exec.data_channel import DataChannel  # imported with the first websocket, because few servers get one

        return DataChannel(settings, state, agents, clock, names, began_s)

    @cache
    def open_metrics_page() -> MetricsPage:
        from corral.server.pages.metrics_page import MetricsPage  # imported here, because Prometheus reads few servers

        return MetricsPage(lanes, agents.history, clock, times, began_s)

    @cache
    def open_task_endpoints() -> TaskEndpoints:
        from corral.server.task_endpoints import TaskEndpoints  # imported here, because few containers read their metadata

        return TaskEndpoints(state, agents, blobs)

    audit = Audit(trail, configuration.values["audit.data"], names, clock)
    settings.server.record_call = audit.of_service
    began_s, limits, times = clock.now_s(), ConnectionLimits(connections_allowed()), RequestTimes()
    front_door = FrontDoor(
        settings,
        lanes,
        Authentication(
            keys["access_key"],
            root,
            settings.session_key,
            store.tasks.live,
            clock,
            settings.sessions,
            store.iam,
            settings.secrets_key,
        ),
        names,
        blobs,
        BodyReceiver(blobs),
        open_task_endpoints,
        last_uses,
        limits.memory,
        times,
        open_metrics_page,
        audit,
    )
    names_of_machine = (options.host, *options.tls_names.split(","))
    open_console = ConsoleOpener(data, settings, lanes, store.iam, names, clock, console_port, names_of_machine)
    facts.console = open_console.access
    server = HttpServer(front_door, open_data_channel, lambda: open_console(front_door, server), blobs, limits, clock)
    upgrade_files = UpgradeFiles(configuration.values["upgrade.wheels"])
    door = DoorOpener(
        data, state, store, clock, port, settings.account, configuration.values["hosts.certificate_days"], agents.opened, server,
        upgrade_files,
    )  # fmt: skip
    facts.upgrade_order, facts.upgrade_file = upgrade_files.order, upgrade_files.read
    facts.open_door = door.open_from_thread
    lenders = Lenders(configuration.lenders, data, state, store.allocations, clock, door.open)
    facts.lender_problems, facts.lender_advice = lenders.problems, lenders.advice
    if door_listener is not None:
        await door.open(door_listener)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _request_exit, server, *lanes.values())
    lenders.start(local_agent.joined)
    opened = open_tls(data, tls, listeners[0], console_port, clock, server) if options.tls else None
    if opened is not None:
        about |= opened.about()
        facts.tls_bundle = opened.bundle
    serving = asyncio.create_task(server.serve(listeners, console_listeners))
    deletion = asyncio.create_task(until_deleted(data, clock))
    _report_stage(options, "it waits for the agent of this machine")
    exit_when_deleted(data, DELETED)
    with suppress(TimeoutError):
        await asyncio.wait_for(local_agent.joined.wait(), JOIN_S)
    gc.collect()
    # Models, code and settings live as long as the process, so the garbage collector need not examine them again.
    gc.freeze()
    # The collection of the second generation stops all threads for about 7 ms per 100,000 objects. The third one is rare.
    gc.set_threshold(10_000, 10, 500)
    gc.enable()  # see __main__.py
    _report_ready(data, about, unfinished, options.ready_fd)
    # An idle server does not need the pages again that the start has read and written, for example those of the schema.
    await asyncio.gather(*(lane.submit(lambda tx: tx.store.free_pages(), read_only=True) for lane in lanes.values()))
    await loop.run_in_executor(None, return_free_memory)
    await asyncio.wait([serving, deletion], return_when=asyncio.FIRST_COMPLETED)
    keeper.cancel()
    loss = await stop_tasks(data, state) if deletion.done() else ""
    deletion.cancel()
    if loss:
        _request_exit(server, *lanes.values())
    await serving
    blob_gc.cancel()
    publisher.cancel()
    invocations.cancel()
    await functions.close()
    lenders.close()
    insights.cancel()
    clock_watch.cancel()
    storing_uses.cancel()
    await last_uses.store()
    await agents.close()
    door.close()
    if opened is not None:
        opened.front.close()
    audit.close()
    if loss:
        raise FolderDeleted(loss)
    (data / "server.json").unlink(missing_ok=True)
    for lane in lanes.values():
        await loop.run_in_executor(None, lane.stop)


def _listen_for_hosts(data: Path, where: str) -> socket.socket:
    from corral.server.door.door import listen_for_hosts  # imported here, because most servers have no door

    return listen_for_hosts(data, where)


def _redirect_output(path: Path) -> None:
    """Write the output to a log file from now on. A log file larger than LOG_MAX_BYTES is rotated first."""
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.rename(path.with_suffix(".log.1"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    add_times_to_output()


def _request_exit(server: HttpServer, *lanes: Lane[Any]) -> None:
    exit_within(EXIT_MAX_S)
    server.exit()
    for lane in lanes:
        lane.release()


def _schedule_now(tx: Tx[Any], keys: Sequence[str]) -> None:
    for key in keys:
        tx.due(key, tx.now_s)


def _reset_host_timeouts(tx: Tx[Store]) -> None:
    """Restart the silence timeout of every host: hosts could not report while the server was down."""
    for host in tx.store.hosts.all():
        if host["connected"]:
            tx.store.hosts.seen([host["id"]], tx.now_s)
        tx.due(f"host:{host['id']}", tx.now_s)


def _find_gpus(data: Path, gpus_flag: str, names: str) -> str:
    """Return the ids of the GPUs in `names`, the value of --exclude-gpus. Raise Refused if a GPU does not exist.

    A node process finds the GPUs, because only the node can query the GPU driver.
    """
    if not names:
        return ""
    command = [sys.executable, "-P", "-m", "corral.node", "--data", str(data), "--gpus", gpus_flag, "--find-gpus", names]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if found.returncode:
        raise Refused(found.stderr.strip().removeprefix("corral node: "))
    return found.stdout.strip()


def _report_ready(data: Path, about: dict[str, Any], unfinished: str | None, ready_fd: int | None) -> None:
    write_private(data / "server.json", about)
    line = f"Corral is up at {about['url']}  (data in {about['data']}; see `corral status`)"
    print(escape_controls(line), flush=True)
    if about["tlsUrl"]:
        print(escape_controls(f"Other machines reach it at {about['tlsUrl']}"), flush=True)
    if ready_fd is not None:
        with suppress(BrokenPipeError):  # `corral up` has ended
            os.write(ready_fd, (json.dumps({**about, "lastServer": unfinished}) + "\n").encode())
        os.close(ready_fd)


def _address_of_door(door: str) -> str:
    """Return the IPv4 address to which hosts connect. Return an empty text if it is not one address of this machine."""
    try:
        address = IPv4Address(door.rpartition(":")[0])
    except ValueError:
        return ""
    return "" if address.is_unspecified else str(address)


def _report_stage(options: ServerOptions, stage: str) -> None:
    """Tell `corral up` what the server does, so that it can say why a start takes long."""
    if options.ready_fd is not None and options.stages:
        with suppress(BrokenPipeError):  # `corral up` has ended
            os.write(options.ready_fd, (json.dumps({"stage": stage}) + "\n").encode())
