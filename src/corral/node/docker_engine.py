"""The docker engine of the agent: it runs the containers of tasks through the Docker Engine API.

The agent is the process that executes this code. Below, the engine is the Docker daemon. The agent may be killed and restarted at
any time. So the labels of a container contain everything that a later agent must know about the run. The name of a container is
derived from the id of the run, so a second request to create the container fails with a conflict. The agent also stores one file
per unfinished run. So it still knows its runs while the engine is unavailable.

The steps of a run: create the container, and pull its image if the engine does not have it → start the container → the engine
reports `die` → copy the rest of the output → report the end → the core acknowledges the end, and the agent forgets the run → later
the agent removes the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.core.clock import Clock
from corral.model.agent_protocol import Execute, ImagePush
from corral.model.run import Observed, RunSpec
from corral.model.stop_reasons import OUT_OF_MEMORY
from corral.node import docker_options
from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_cleanup import DockerCleanup
from corral.node.docker_images import EngineImages, decode_json_lines
from corral.node.docker_info import gpu_request_style, maps_ids
from corral.node.docker_launch import REMOVED, ContainerInfo, DockerLauncher, has_started
from corral.node.docker_network_watch import NetworkWatch
from corral.node.docker_networks import NAMES as NETWORKS
from corral.node.docker_options import LABEL_RUN
from corral.node.docker_past_events import resolve_missing
from corral.node.docker_pauses import PausedContainers
from corral.node.docker_runs import DockerRun, DockerRuns
from corral.node.docker_task_resources import TaskResources, network_facts
from corral.node.engine import CannotExecute, Changed, Known, PauseTarget
from corral.node.exec_sessions import ExecSessions
from corral.node.fences import FencedContainer
from corral.node.host_mounts import HostMounts
from corral.node.link import Connect

FOLLOW_AFTER_S = 0.1  # output is followed from this time after the start; the output of a shorter run is read once, at its end
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
KILL_AGAIN_S = 10.0
CLOSE_MAX_S = 5.0
OOM_LATE_S = 2.0  # after the end of a container, wait at most this long for the engine's report that it was out of memory
KILLED = 137  # the exit code after SIGKILL
HEALTH = {"healthy": "HEALTHY", "unhealthy": "UNHEALTHY"}  # Docker's name → ECS's name

log = logging.getLogger("corral.node")


class DockerEngine:
    def __init__(
        self, data: Path, host_id: str, environment: Mapping[str, str], clock: Clock, *, gpus: str = "real",
        unreachable: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """`gpus` is the kind of GPUs that this host has: real, simulated or none. `unreachable`: see `TaskResources`."""
        self._data = data
        self._host_id = host_id
        self._environment = environment
        self._clock = clock
        self._sessions = ExecSessions(data)
        self._simulated_gpus = gpus == "simulated"
        self._api = DockerApi(environment)
        self._images = EngineImages(self._api, data / "images.json", environment, clock)
        self._resources = TaskResources(self._api, host_id, unreachable)
        self._runs = DockerRuns(data, clock)
        self._mounts, self._paused = HostMounts(data), PausedContainers(data, self._api)
        self._launcher = DockerLauncher(
            self._api, self._images, self._resources, self._runs, self._mounts, clock, host_id, has_gpus=gpus != "none"
        )
        self._available = asyncio.Event()
        self._network_watch = NetworkWatch(self._api, self._resources, self._runs, self._available)
        self._cleanup = DockerCleanup(self._resources, self._runs, self._available, clock)
        self._work: set[asyncio.Task[None]] = set()
        # What to do with a run that never started and has no container. False: drop the run, because the core orders it again after
        # the agent has connected to the core. True: report that the run has ended.
        self._is_open = False
        self.about = ""  # name and version of the engine; empty until it has responded
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()

    @property
    def host(self) -> str:
        return self._api.host

    @property
    def has_runs(self) -> bool:
        """Whether an earlier agent left runs that may not have ended."""
        return any(self._runs.unfinished())

    @property
    def was_used(self) -> bool:
        """Whether this host has ever run a container."""
        return self._runs.were_used

    async def answers(self) -> bool:
        """Whether a Docker engine responds now."""
        try:
            about = await self._api.open()
        except (EngineGone, EngineError):
            return False
        self.about = f"Docker {about.get('Version', '')}"
        return True

    @property
    def problem(self) -> str:
        return ""

    @property
    def docker(self) -> str:
        return self.about or f"Docker at {self.host}"

    async def open(self, changed: Changed) -> None:
        """Connect to the Docker engine. Until the engine responds, the runs of an earlier agent count as alive."""
        self._runs.changed = changed
        self._mounts.release_all()
        self._runs.load()
        first = self._loop.create_future()
        self._spawn(self._listen(first))
        await first
        self._is_open = True
        self._spawn(self._cleanup.run())
        self._spawn(self._network_watch.run())

    def start(self, specs: Iterable[RunSpec]) -> None:
        for spec in specs:
            known = self._runs.by_id.get(spec.run_id)
            if known is None:
                run = self._runs.add(spec.run_id, docker_options.labels(spec, self._host_id), ordered=True)
                run.bindings = docker_options.bindings(spec)
                run.network = "host" if docker_options.network_mode(spec) == "host" else ""
                self._spawn(self._launcher.launch(run, spec, self._available, self._running))
            elif known.answer is not None and not known.answer.done() and not spec.image_may_ask:
                known.answer.set_result(spec)

    def fence_of(self, spec: RunSpec) -> FencedContainer | None:
        """Return the fence of a run. None: it has no fence, or its engine is on another machine."""
        path = self.host.removeprefix("unix://")
        if spec.fence_s is None or path == self.host:
            return None
        name = docker_options.container_name(self._host_id, spec.run_id)
        return FencedContainer(spec.run_id, spec.fence_s, spec.stop_grace_s, path, name)

    def fenced(self) -> list[FencedContainer]:
        """Return the fences of the containers of an earlier agent."""
        path = self.host.removeprefix("unix://")
        return self._runs.fenced(path, self._host_id) if path != self.host else []

    def stop(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            run = self._runs.by_id.get(run_id)
            if run is not None and run.known.alive and not run.stopping.is_set():
                run.stopping.set()
                if run.id is not None and run.known.observed.started_at_s is not None:
                    self._spawn(self._end(run))

    def signal(self, run_ids: Iterable[str], name: str) -> None:
        for run_id in run_ids:
            run = self._runs.by_id.get(run_id)
            is_running = run is not None and run.is_alive and run.known.observed.started_at_s is not None
            if run is not None and is_running and not self._paused.signal(run, name):
                self._spawn(self._signal(run, name))

    def image_pushed(self, pushed: ImagePush) -> None:
        self._images.pushed(pushed)

    async def execute(self, order: Execute, connect: Connect) -> None:
        """Run the command with `docker exec`, which supports terminals. The command's processes end when the container ends."""
        run, docker = self._runs.by_id.get(order.run.run_id), shutil.which("docker", path=self._environment.get("PATH"))
        if run is None or not run.is_alive or run.known.observed.started_at_s is None:
            raise CannotExecute("the container is not running")
        if docker is None:
            raise CannotExecute("the docker command is not installed on this host")
        terminal = ["-t"] if order.has_terminal else []
        command = [docker, "-H", self.host, "exec", "-i", *terminal, str(run.id), *order.command]
        here = replace(order.run, working_directory=str(self._data), account="")  # the docker command is Corral's own process
        try:
            await self._sessions.begin(replace(order, command=command, run=here), self._environment, connect)
        except (OSError, ValueError) as error:
            raise CannotExecute(f"the command cannot be started: {error}") from None

    def pause_target(self, run_id: str) -> PauseTarget | None:
        return self._paused.target(self._runs.by_id.get(run_id))

    def observe(self) -> Mapping[str, Known]:
        return {run_id: run.known for run_id, run in self._runs.by_id.items()}

    def roots(self) -> set[int]:
        """Return the pid of each container's first process. All other processes of the container descend from it."""
        return {run.known.observed.pid for run in self._runs.by_id.values() if run.known.observed.pid is not None}

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            run = self._runs.by_id.get(run_id)
            if run is not None and not run.known.alive:
                self._runs.forget(run)

    async def close(self, *, quit: bool, remove: bool = False) -> None:
        await self._sessions.close()
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        # Cancelling the runs that wait for these asyncio tasks does not cancel these tasks.
        shared = [*self._images.unfinished(), *self._resources.unfinished()]
        for each in shared:
            each.cancel()
        await asyncio.gather(*shared, return_exceptions=True)
        if quit and self._available.is_set():
            with contextlib.suppress(TimeoutError, EngineGone, EngineError):
                await asyncio.wait_for(self._cleanup.remove_all() if remove else self._cleanup.drop_idle_pauses(), CLOSE_MAX_S)
        self._api.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task of the docker engine failed", exc_info=task.exception())

    # -- while it runs -------------------------------------------------------------------------------------------

    async def _running(self, run: DockerRun, about: ContainerInfo, pause: ContainerInfo | None) -> None:
        """Record that the container has started. If it has already ended, handle its end too."""
        if not run.is_alive:
            return
        run.stop_signal = about["Config"].get("StopSignal") or "SIGTERM"
        run.network = about["HostConfig"].get("NetworkMode", "")
        description, state = await self._describe(run, about, pause), about["State"]
        if not run.is_alive:
            return
        pid = state.get("Pid") if self._api.host.startswith("unix:") else None
        health = HEALTH.get((state.get("Health") or {}).get("Status", ""))
        self._runs.update(run, Observed(run.run_id, pid or None, _seconds(state["StartedAt"]), health=health, about=description))
        if run.died or not state["Running"]:
            self._died(run, run.exit_code, None if state["Running"] else about)
            return
        if run.record.ships_logs and run.follower is None:
            run.follower = self._spawn(self._follow(run))
        if run.stopping.is_set():
            self._spawn(self._end(run))

    async def _describe(self, run: DockerRun, about: ContainerInfo, pause: ContainerInfo | None) -> dict[str, Any]:
        """Return the facts that DescribeTasks and the metadata endpoint show, under the names of ECS."""
        members: dict[str, Any] = {"runtimeId": about["Id"]}
        digest = await self._digest(about["Image"], about["Config"]["Image"])
        if digest is not None:
            members["imageDigest"] = digest
        members |= network_facts(run.record, about, pause)
        if run.bindings:
            members["networkBindings"] = run.bindings
        if run.pull is not None:
            members["pullStartedAt"], members["pullStoppedAt"] = run.pull
        return members

    async def _digest(self, image_id: str, name: str) -> str | None:
        try:
            return (await self._images.use(image_id)).digest(name)
        except EngineError:
            return None  # someone removed the image with --force

    async def _follow(self, run: DockerRun) -> None:
        await asyncio.sleep(FOLLOW_AFTER_S)
        while run.is_alive:
            try:
                await self._runs.output(self._api, run).copy(follow=True)
                return  # the container has ended or will end soon
            except (EngineGone, EngineError, OSError) as error:
                log.info("cannot follow the output of %s: %s", run.run_id, error)
                await asyncio.sleep(RETRY_MAX_S)

    async def _end(self, run: DockerRun) -> None:
        """Send the stop signal of the image (by default SIGTERM). After the grace period, send SIGKILL until the container ends."""
        await self._paused.end(run)
        await self._signal(run, run.stop_signal)
        wait_s = run.record.stop_grace_s
        while run.is_alive:
            await asyncio.sleep(wait_s)
            if run.is_alive:
                await self._signal(run, "SIGKILL")
            wait_s = KILL_AGAIN_S

    async def _signal(self, run: DockerRun, name: str) -> None:
        try:
            await self._api.post(f"/containers/{run.id}/kill", signal=name)
        except EngineError as error:
            if error.status not in (404, 409):  # 404 and 409 mean that the container has already ended
                log.warning("cannot send %s to %s: %s", name, run.run_id, error)
        except EngineGone as error:
            log.warning("cannot send %s to %s: %s", name, run.run_id, error)

    # -- ending --------------------------------------------------------------------------------------------------

    def _died(self, run: DockerRun, exit_code: int | None, about: ContainerInfo | None = None) -> None:
        if run.is_alive:
            run.ending, run.exit_code = True, exit_code
            self._spawn(self._finish(run, about))

    async def _finish(self, run: DockerRun, about: ContainerInfo | None) -> None:
        """Copy the rest of the output, find out why the container ended, then report the end. Do nothing if the container runs."""
        while True:
            try:
                await self._available.wait()
                about = about or await self._inspect(run)
                if about is not None and about["State"]["Running"]:
                    run.ending = False
                    return
                if run.follower is not None:
                    run.follower.cancel()
                    await asyncio.wait([run.follower])
                if about is not None and run.record.ships_logs:
                    await self._complete(run)
                break
            except EngineGone:
                await asyncio.sleep(RETRY_FIRST_S)
        self._sessions.end([run.run_id])
        if about is None:
            run.id = None
        self._runs.update(run, self._ended(run, about, out_of_memory=await self._was_out_of_memory(run, about)))

    async def _was_out_of_memory(self, run: DockerRun, about: ContainerInfo | None) -> bool:
        """Whether a process of an ended container was killed because the container used too much memory.

        The engine may report the end of the container before it reports the lack of memory. So if the exit code is KILLED, this
        method waits up to OOM_LATE_S for the report.
        """
        reported = run.out_of_memory
        if reported.is_set() or about is None or about["State"].get("OOMKilled"):
            return reported.is_set() or about is not None
        state = about["State"]
        if not state["ExitCode"] or not about["HostConfig"].get("Memory") or run.stopping.is_set():
            return False
        if state["ExitCode"] == KILLED:
            late_s = min(OOM_LATE_S, _seconds(state["FinishedAt"]) + OOM_LATE_S - self._clock.now_s())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reported.wait(), late_s)
        try:
            latest = await self._inspect(run)
        except EngineGone:
            latest = None
        return reported.is_set() or bool(latest and latest["State"].get("OOMKilled"))

    async def _inspect(self, run: DockerRun) -> dict[str, Any] | None:
        try:
            about: dict[str, Any] = await self._api.get(f"/containers/{run.id}/json")
            return about
        except EngineError:
            return None

    async def _complete(self, run: DockerRun) -> None:
        try:
            await self._runs.output(self._api, run).copy(follow=False)
        except (EngineError, OSError) as error:
            log.warning("the rest of the output of %s is lost: %s", run.run_id, error)

    def _ended(self, run: DockerRun, about: ContainerInfo | None, *, out_of_memory: bool) -> Observed:
        before = run.known.observed
        if about is None:
            reason = OUT_OF_MEMORY if out_of_memory else None if run.exit_code is not None else REMOVED
            return replace(before, stopped_at_s=self._clock.now_s(), exit_code=run.exit_code, reason=reason)
        state = about["State"]
        return replace(
            before,
            stopped_at_s=_seconds(state["FinishedAt"]),
            exit_code=state["ExitCode"],
            reason=OUT_OF_MEMORY if out_of_memory else state.get("Error") or None,
        )

    # -- events of the engine ------------------------------------------------------------------------------------

    async def _listen(self, first: asyncio.Future[None]) -> None:
        """Receive events of containers and networks. `first` is set after the first attempt to connect.

        After each connect, list Corral's containers, because events may have been lost while there was no connection.
        """
        wait_s = RETRY_FIRST_S
        while True:
            try:
                await self._connect()
                filters = {"type": ["container", "network"], "event": ["die", "oom", "destroy", "health_status", "disconnect"]}
                async with self._api.stream("GET", "/events", filters=filters) as parts:
                    await self._list_containers()
                    self._available.set()
                    self._network_watch.changed.set()
                    self._cleanup.schedule_collection()
                    wait_s = RETRY_FIRST_S
                    if not first.done():
                        first.set_result(None)
                    async for event in decode_json_lines(parts):
                        self._handle_event(event)
                raise EngineGone(f"the Docker engine at {self.host} closed the event stream")
            except (EngineGone, EngineError, ValueError) as error:
                if self._available.is_set() or not first.done():
                    log.warning("%s", error)
                self._available.clear()
                self._api.close()
                if not first.done():
                    first.set_result(None)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    async def _connect(self) -> None:
        version = await self._api.open()
        info = await self._api.get("/info")
        self.about = f"Docker {version.get('Version', '')}"
        self._resources.architecture = version.get("Arch") or ""
        self._launcher.cpus = info.get("NCPU") or 1
        self._launcher.maps_ids = maps_ids(info)
        self._launcher.gpus = "" if self._simulated_gpus else gpu_request_style(info)

    async def _list_containers(self) -> None:
        there = await self._resources.list_containers()
        await self._resources.take_over(there)  # pause containers first, because they have the addresses of the runs
        found = set()
        for listed in there:
            labels = listed["Labels"]
            if LABEL_RUN in labels and labels[LABEL_RUN] not in self._runs.forgotten and await self._adopt(labels, listed["Id"]):
                found.add(labels[LABEL_RUN])
        missing = [run for run_id, run in self._runs.by_id.items() if run_id not in found and run.is_alive and not run.is_coming_up]
        if missing:
            await resolve_missing(missing, self._runs, self._api, self._host_id, self._clock, may_order_again=not self._is_open)

    async def _adopt(self, labels: Mapping[str, str], container_id: str) -> bool:
        """Record the current state of a container that Corral created. Return False if the container does not exist any more.

        A container that has never started is removed.
        """
        run = self._runs.by_id.get(labels[LABEL_RUN])
        if run is not None and (not run.known.alive or run.is_coming_up):
            return True
        try:
            about = await self._api.get(f"/containers/{container_id}/json")
            if not has_started(about):  # the agent that created it died before it started it
                await self._api.delete(f"/containers/{container_id}", v=True)
                self._runs.withdraw_start(labels[LABEL_RUN])
                return False
        except EngineError as error:
            if error.status == 404:
                return False
            if error.status != 409:
                return True
            about = await self._api.get(f"/containers/{container_id}/json")  # it has just started, or is being removed
            if not has_started(about):
                self._runs.withdraw_start(labels[LABEL_RUN])
                return False
        run = run or self._runs.add(labels[LABEL_RUN], labels)
        run.id = about["Id"]
        if run.record.has_volumes:
            self._resources.with_volumes.add(run.task_id)
        await self._running(run, about, await self._resources.pause_of(run.task_id))
        return True

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        actor = event.get("Actor", {})
        attributes, action = actor.get("Attributes", {}), event.get("Action", "")
        if event.get("Type") == "network":
            if attributes.get("name") in NETWORKS:
                self._network_watch.handle_event(action, attributes.get("container", ""))
            return
        run = self._runs.by_id.get(attributes.get(LABEL_RUN, ""))
        if run is None:
            if action == "destroy":  # Corral or `docker system prune` removed the container
                self._runs.container_removed(attributes.get(LABEL_RUN, ""), actor.get("ID", ""))
            return
        if run.id != actor.get("ID"):
            return
        if not run.known.alive:
            if action == "destroy":
                run.id = None
            return
        if action == "oom":
            run.out_of_memory.set()
        elif action == "die" and run.is_coming_up:  # only record it, because the launcher inspects the container next
            run.died, run.exit_code = True, int(attributes.get("exitCode") or 0)
        elif action == "die":
            self._died(run, int(attributes.get("exitCode") or 0))
        elif action == "destroy" and not run.is_coming_up:
            self._died(run, None)
        elif action.startswith("health_status"):
            verdict = HEALTH.get(action.partition(":")[2].strip())
            if verdict is not None:
                self._runs.update(run, replace(run.known.observed, health=verdict))


def _seconds(when: str) -> float:
    """Convert a time of the engine to seconds since the epoch. Docker writes up to nine digits of the fraction."""
    return datetime.fromisoformat(when).timestamp()
