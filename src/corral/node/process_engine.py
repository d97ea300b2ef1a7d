"""The process engine: it starts runs as plain processes of this machine, without containers.

The spawner is a separate process that starts the processes and knows their state. This module is a client of the spawner. It has a
copy of the spawner's state, and it stores the orders that the spawner has not confirmed yet. If the spawner is restarted, this
module sends these orders again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from corral.core.errors import Refused
from corral.model.agent_protocol import Execute, ImagePush
from corral.model.run import Observed, RunSpec
from corral.model.shipped_folder import VARIABLE as SHIPPED_FOLDER
from corral.node import node_folder, procfs
from corral.node.account_folders import cache_of
from corral.node.engine import NOT_STARTED, CannotExecute, Changed, Known, PauseTarget
from corral.node.exec_sessions import ExecSessions
from corral.node.fences import FencedContainer
from corral.node.json_lines import JsonLines, attach
from corral.node.link import Connect
from corral.node.pause_marks import PauseMarks
from corral.node.spawner_protocol import LAUNCH_MAX_BYTES, RUN_VARIABLE, FromSpawner, Launch, SpawnedRun, run_mark
from corral.process.data_folder import VERSIONS

INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SHELL")
OF_ACCOUNT = frozenset({"HOME", "USER", "SHELL", "TMPDIR"})
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# If a task sets one of these variables, Corral changes none of them.
OWN_AWS_FILES = frozenset({"AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"})
SPAWNER_START_MAX_S = 10.0
SPAWNER_RETRY_S = 0.005  # the first wait for a connection; each further wait is 1.5 times as long
SPAWNER_RETRY_MAX_S = 0.2
RESTART_MIN_S = 0.05  # the wait before a new spawner is started if the last one died early; each further wait is twice as long
RESTART_MAX_S = 5.0
PING_S = 5.0
SILENT_S = 10.0  # after this time without a response to a ping, the spawner is reported as a problem
OLD_SPAWNER = "the spawner of this host is of an earlier version of Corral; a new one starts when no process runs"
READ_MAX_BYTES = 64 * 1024 * 1024

DEFAULTS = {each.name: each.default for each in fields(Launch) if each.default is not MISSING}  # of a Launch

log = logging.getLogger("corral.node")


def environment_for(spec: RunSpec, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run: the variables INHERITED of the agent, the variables of the task, and the GPU variables.

    `ours` is the environment of the agent. Later variables replace earlier ones, so a task cannot change the GPU variables.
    A run of another Unix account gets the variables OF_ACCOUNT when it becomes the account.
    """
    inherited = [name for name in INHERITED if not spec.account or name not in OF_ACCOUNT]
    environment = {name: ours[name] for name in inherited if name in ours and ours[name].isprintable()}
    environment.setdefault("PATH", DEFAULT_PATH)
    environment.update(spec.environment)
    if "AWS_CONTAINER_CREDENTIALS_FULL_URI" in environment and not environment.keys() & OWN_AWS_FILES:
        # HOME is the home directory of a person. An AWS SDK would use that person's keys before the role of the task.
        environment |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONFIG_FILE": os.devnull}
    gpu_ids = ",".join(spec.gpu_ids)
    environment["NVIDIA_VISIBLE_DEVICES"] = gpu_ids or "void"
    environment["CUDA_VISIBLE_DEVICES"] = gpu_ids
    if spec.gpu_indexes:
        # CUDA numbers the GPUs by their speed, unless CUDA_DEVICE_ORDER requires the order of nvidia-smi.
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.gpu_indexes)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return environment


def isolated(module: str, ours: Mapping[str, str], data: Path) -> list[str]:
    """Return the command of a program of this version in an environment that users choose: neither it nor the folder adds modules.

    The agent of an upgraded host has its version from PYTHONPATH, which `-I` ignores.
    """
    folder = ours.get("PYTHONPATH", "")
    if not folder.startswith(f"{data.parent / VERSIONS}/"):
        return [sys.executable, "-I", "-m", module]
    start = f"import runpy, sys; sys.path.insert(0, {folder!r}); runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-I", "-c", start]


def launch_of(spec: RunSpec, ours: Mapping[str, str], data: Path) -> Launch:
    command = spec.command
    if manifest := spec.environment.get(SHIPPED_FOLDER):  # this program fetches the folder, and becomes the command
        cache = cache_of(data, spec.account) if spec.account else str(data / "shipped")
        fetch = [*isolated("corral.node.shipped_folder", ours, data), cache, manifest]
        command = [*fetch, *command]
    return Launch(
        run_id=spec.run_id,
        command=command,
        environment={**environment_for(spec, ours), RUN_VARIABLE: run_mark(data, spec.run_id)},
        working_directory=spec.working_directory,
        stop_grace_s=spec.stop_grace_s,
        ships_logs=spec.ships_logs,
        gpu_ids=spec.gpu_ids,
        memory_mib=spec.memory_mib,
        cpu_units=spec.cpu_units,
        has_output_file=bool(spec.output_file),
        account=spec.account,
        fence_s=spec.fence_s,
    )


def encode_launch(launch: Launch) -> msgspec.Raw:
    """Encode a launch as JSON.

    If that fails or the JSON is too large, return a launch that the spawner reports as failed, with the reason. So the spawner
    knows every run.
    """
    try:
        text = msgspec.json.encode(_without_defaults(launch))
        if len(text) <= LAUNCH_MAX_BYTES:
            return msgspec.Raw(text)
        why = f"command and environment have {len(text)} bytes; at most {LAUNCH_MAX_BYTES} are possible"
    except (ValueError, TypeError) as error:
        why = str(error)
    fault = f"CannotStartContainerError: {why}"
    return msgspec.Raw(msgspec.json.encode(replace(launch, command=[], environment={}, working_directory=None, fault=fault)))


def _without_defaults(launch: Launch) -> dict[str, Any]:
    """Return the members of a launch that are not the default: a spawner of an earlier version knows fewer members."""
    return {name: value for name, value in vars(launch).items() if name not in DEFAULTS or value != DEFAULTS[name]}


def restart_wait_s(last_s: float, lived_s: float) -> float:
    """Return how long to wait before a new spawner is started. The wait is 0 if the last spawner lived longer than RESTART_MAX_S.

    `last_s` is the wait before the last spawner. `lived_s` is how long the last spawner was connected.
    """
    return 0.0 if lived_s > RESTART_MAX_S else min(max(2 * last_s, RESTART_MIN_S), RESTART_MAX_S)


def known_of(run: SpawnedRun) -> Known:
    ended = not run.alive
    observed = Observed(
        run_id=run.run_id,
        pid=run.pid,
        started_at_s=run.started_at_s,
        stopped_at_s=run.stopped_at_s,
        # The spawner knows these when the main process has ended, but the run ends only when no process of the run is left.
        exit_code=run.exit_code if ended else None,
        reason=run.reason if ended else None,
    )
    return Known(observed, run.ships_logs, tuple(run.gpu_ids))


class ProcessEngine:
    def __init__(
        self, data: Path, boot_id: str, environment: Mapping[str, str], connected: Callable[[], object] = lambda: None,
        held_by: int | None = None,
    ) -> None:  # fmt: skip
        """`connected` is called when a spawner is connected. `held_by` is the descriptor of the hold (`hold.py`)."""
        self._held_by = held_by
        self._connected = connected
        self._data = data
        self._boot_id = boot_id
        self._environment = dict(environment)  # a copy, because each access to os.environ decodes the value
        self._known: dict[str, Known] = {}
        self._ordered: dict[str, Launch] = {}  # run id → an order that the spawner has not confirmed yet
        self._stopping: set[str] = set()  # ids of runs that must stop, until the spawner reports their end
        self._lines: JsonLines[FromSpawner] | None = None
        self._complete: asyncio.Future[None] | None = None
        self._first: list[SpawnedRun] = []  # the runs that the spawner has listed so far on a new connection
        self._sessions = ExecSessions(data)
        self._spawner: subprocess.Popen[bytes] | None = None
        self._changed: Changed = lambda _: None
        self._reconnecting: asyncio.Task[None] | None = None
        self._closed = False
        self._connected_at = 0.0
        self._wait_s = 0.0
        self._pinging: asyncio.Task[None] | None = None
        self._pinged_at: float | None = None  # when the last ping was sent; None: the spawner has answered it
        self._connected_pid: int | None = None  # the spawner of the current or the last connection
        self._fenced: set[str] = set()  # runs with a fence
        self._fenced_containers: dict[str, FencedContainer] = {}
        self._answered_boot_s: float | None = None  # when the agent sent the last message that the server has answered
        self.problem = ""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def docker(self) -> str:
        return ""

    async def open(self, changed: Changed) -> None:
        self._changed = changed
        await self._connect()
        self._pinging = asyncio.get_running_loop().create_task(self._ping())

    def start(self, specs: Iterable[RunSpec]) -> None:
        launches = [launch_of(spec, self._environment, self._data) for spec in specs if spec.run_id not in self._known]
        for launch in launches:
            self._ordered[launch.run_id] = launch
            self._known[launch.run_id] = Known(Observed(launch.run_id), launch.ships_logs, tuple(launch.gpu_ids))
        if any(launch.fence_s is not None for launch in launches):
            self._fenced.update(launch.run_id for launch in launches if launch.fence_s is not None)
            self._send_answered()
        self._send([{"start": encode_launch(launch)} for launch in launches])

    def stop(self, run_ids: Iterable[str]) -> None:
        stopping = [run_id for run_id in run_ids if run_id in self._known and self._known[run_id].alive]
        self._stopping.update(stopping)
        self._send([{"stop": run_id} for run_id in stopping])

    def answered(self, sent_boot_s: float) -> None:
        """The server has answered a message that the agent has sent at this time."""
        self._answered_boot_s = sent_boot_s
        if self._fenced or self._fenced_containers:
            self._send_answered()

    def fence_containers(self, containers: Iterable[FencedContainer]) -> None:
        """Let the spawner end containers if the server does not answer."""
        found = {each.run_id: each for each in containers}
        self._fenced_containers |= found
        if found:
            self._send_answered()
            self._send([{"fence": asdict(each)} for each in found.values()])

    def unfence_containers(self, run_ids: Iterable[str]) -> None:
        known = [run_id for run_id in run_ids if self._fenced_containers.pop(run_id, None) is not None]
        if known:
            self._send([{"unfence": known}])

    def _send_answered(self) -> None:
        if self._answered_boot_s is not None:
            self._send([{"answered": self._answered_boot_s}])

    def signal(self, run_ids: Iterable[str], name: str) -> None:
        alive = [run_id for run_id in run_ids if run_id in self._known and self._known[run_id].alive]
        self._send([{"signal": name, "run": run_id} for run_id in alive])

    def image_pushed(self, pushed: ImagePush) -> None:
        pass  # processes have no image

    async def execute(self, order: Execute, connect: Connect) -> None:
        known = self._known.get(order.run.run_id)
        if known is None or not known.alive or known.observed.pid is None:
            raise CannotExecute("the container is not running")
        try:
            await self._sessions.begin(order, environment_for(order.run, self._environment), connect)
        except (OSError, ValueError) as error:
            raise CannotExecute(f"the command cannot be started: {error}") from None

    def pause_target(self, run_id: str) -> PauseTarget | None:
        known = self._known.get(run_id)
        if known is None or not known.alive or run_id in self._stopping:
            return None
        why_not = "" if known.observed.pid is not None else NOT_STARTED
        if not why_not and self._lines is not None and not PauseMarks(self._data).is_known_to(self._connected_pid):
            why_not = OLD_SPAWNER
        return PauseTarget(sessions=self._sessions.locks_of(run_id), why_not=why_not)

    def observe(self) -> Mapping[str, Known]:
        return self._known

    def roots(self) -> set[int]:
        spawner = self._connected_pid
        return self._sessions.pids() | ({spawner} if spawner is not None else set())

    def forget(self, run_ids: Iterable[str]) -> None:
        """Forget ended runs.

        If the message to the spawner is lost, the spawner lists these runs again after a reconnect. Then they are reported and
        forgotten once more.
        """
        ended = [run_id for run_id in run_ids if run_id in self._known and not self._known[run_id].alive]
        for run_id in ended:
            del self._known[run_id]
        if ended:
            self._send([{"forget": ended}])

    async def close(self, *, quit: bool, remove: bool = False) -> None:
        self._closed = True
        for task in (self._reconnecting, self._pinging):
            if task is not None:
                task.cancel()
        await self._sessions.close()
        if self._lines is not None:
            if quit:
                self._lines.send({"quit": True})
            self._lines.close()

    def _send(self, messages: list[dict[str, Any]]) -> None:
        if self._lines is not None and messages:
            self._lines.send(*messages)

    async def _connect(self) -> None:
        """Connect to the spawner. Start a spawner if none is running. Raises Refused if the spawner does not start or respond."""
        give_up_at, wait_s = time.monotonic() + SPAWNER_START_MAX_S, SPAWNER_RETRY_S
        while True:
            self._complete = asyncio.get_running_loop().create_future()
            self._first = []
            try:
                connection = node_folder.connect(self._data, "spawner.sock")
                self._lines = await attach(connection, FromSpawner, self._received, self._lost, READ_MAX_BYTES)
                self._connected_pid = self._spawner_pid()
                async with asyncio.timeout(SPAWNER_START_MAX_S):  # in Python 3.11, `wait_for` can lose a cancellation
                    await self._complete
                self._send_answered()
                self._send([{"fence": asdict(each)} for each in self._fenced_containers.values()])
                # Send the orders only now, because the list of runs shows which orders the spawner already knows.
                self._send([{"start": encode_launch(launch)} for launch in self._ordered.values()])
                self._send([{"stop": run_id} for run_id in self._stopping])
                self._connected_at = time.monotonic()
                self._pinged_at = None
                self._connected()
                return
            except OSError:
                pass
            if time.monotonic() > give_up_at:
                why = procfs.why_silent(self._spawner_pid())
                raise Refused(f"the spawner does not respond{why}; see {self._data / 'spawner.log'}")
            if self._spawner is None or self._spawner.poll() is not None:
                if self._spawner is not None and self._spawner.returncode not in (0, -9):
                    raise Refused(f"the spawner does not start: {_last_line(self._data / 'spawner.log')}")
                self._spawner = self._start_spawner()
            await asyncio.sleep(wait_s)
            wait_s = min(1.5 * wait_s, SPAWNER_RETRY_MAX_S)

    def _spawner_pid(self) -> int | None:
        return node_folder.lock_owner(self._data / "spawner.lock")

    async def _ping(self) -> None:
        """Check repeatedly whether the spawner responds. A spawner that a signal has stopped accepts orders and does nothing.

        Pings are sent only while there is a run or an order, so that they do not wake a spawner that has nothing to do.
        """
        while True:
            await asyncio.sleep(PING_S)
            pid, now = self._connected_pid, time.monotonic()
            is_silent = self._pinged_at is not None and now > self._pinged_at + SILENT_S
            if is_silent or (pid is not None and self._lines is not None and procfs.is_stopped(pid)):
                self._set_problem(f"does not respond{procfs.why_silent(pid)}")
            elif self._pinged_at is None:
                self._set_problem("")
            if self._pinged_at is None and self._lines is not None and (self._known or self._ordered):
                self._pinged_at = now
                self._send([{"ping": True}])

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._changed([])

    def _start_spawner(self) -> subprocess.Popen[bytes]:
        """Start the spawner in a new session, so that it can outlive this process. It inherits only the descriptor of the hold."""
        held = [] if self._held_by is None else [self._held_by]
        options = [f"--held-by={fd}" for fd in held]
        with open(self._data / "spawner.log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "corral.node.spawner", "--dir", self._data, "--boot-id", self._boot_id, *options],
                pass_fds=held,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _received(self, message: FromSpawner) -> None:
        assert self._complete is not None
        if message.pong:
            self._pinged_at = None
            self._set_problem("")
        if self._complete.done():
            self._update(message.runs)
            return
        self._first += message.runs
        if message.all:
            self._reconcile(self._first)
            self._complete.set_result(None)

    def _reconcile(self, runs: list[SpawnedRun]) -> None:
        """Copy the spawner's state after a new connection. `_connect` then sends the orders that the spawner does not know."""
        there = {run.run_id for run in runs}
        for run_id in [run_id for run_id in self._known if run_id not in there and run_id not in self._ordered]:
            del self._known[run_id]  # the spawner has forgotten it
        self._update(runs)

    def _update(self, runs: list[SpawnedRun]) -> None:
        changed = []
        for run in runs:
            known = known_of(run)
            self._ordered.pop(run.run_id, None)
            if run.fence_s is not None and known.alive:
                self._fenced.add(run.run_id)
            if not known.alive:
                self._fenced.discard(run.run_id)
                self._stopping.discard(run.run_id)
                self._sessions.end([run.run_id])
            if self._known.get(run.run_id) != known:
                self._known[run.run_id] = known
                changed.append(known)
        if changed:
            self._changed(changed)

    def _lost(self) -> None:
        self._lines = None
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(ConnectionResetError())  # _connect tries again
        elif not self._closed:
            log.warning("the connection to the spawner was lost; reconnecting")
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        self._wait_s = restart_wait_s(self._wait_s, time.monotonic() - self._connected_at)
        try:
            await asyncio.sleep(self._wait_s)
            await self._connect()
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)


def _last_line(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"see {path}"
