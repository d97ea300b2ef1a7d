"""The docker engine: runs as containers, through the Docker Engine API.

The engine remembers: what an agent must know of a run stands on its container (labels), so that a later agent finds it. A
container's name comes from its run's id, so that creating it twice is a conflict and not a second container. Only one thing is
kept beside: the ids of the runs that are under way, so that they are not taken for lost while the engine is away.

One run's way: create (pulling its image where it is missing) → start → the engine tells that it died → what it wrote is
complete → ended → forgotten, and some time later its container is removed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.clock import Clock
from corral.model.run import Execute, Observed, RunSpec
from corral.node import docker_settings as settings
from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_images import Images, json_lines
from corral.node.docker_launch import About, Launcher
from corral.node.docker_runs import Book, Run
from corral.node.docker_settings import LABEL_HOST, LABEL_RUN
from corral.node.docker_task_resources import LABEL_PAUSE, SharedByTasks, address
from corral.node.engine import CannotExecute, Changed, Known
from corral.node.exec_sessions import Sessions

FOLLOW_AFTER_S = 0.1  # who ends sooner is read once, at the end
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
KILL_AGAIN_S = 10.0
STOPPED_KEPT_S = 300.0  # so long a container that has ended can be looked at,
STOPPED_KEPT_MAX = 20  # and so many of them
PAUSE_KEPT_S = 10.0  # a task may have other containers that start when one has ended
CLEAN_EVERY_S = 1.0
HEALTH = {"healthy": "HEALTHY", "unhealthy": "UNHEALTHY"}  # as the engine says it → as ECS does

OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"
REMOVED = "the container was removed by somebody else"
LOST = "the Docker engine no longer knows this container"

log = logging.getLogger("corral.node")


class DockerEngine:
    def __init__(self, data: Path, host_id: str, environment: Mapping[str, str], clock: Clock, *, gpus: str = "real") -> None:
        """`gpus`: real, simulated or none, as this host has them."""
        self._data = data
        self._host_id = host_id
        self._environment = environment
        self._clock = clock
        self._sessions = Sessions(data)
        self._simulated_gpus = gpus == "simulated"
        self._api = DockerApi(environment)
        self._images = Images(self._api, data / "images.json", environment, clock)
        self._tasks = SharedByTasks(self._api, host_id)
        self._book = Book(data, clock)
        self._launcher = Launcher(self._api, self._images, self._tasks, self._book, clock, host_id, has_gpus=gpus != "none")
        self._deserted: dict[str, float] = {}  # tasks with a pause container and without a living run, since when
        self._answers = asyncio.Event()
        self._work: set[asyncio.Task[None]] = set()
        self._told_hello = False  # from now on a run that is not there has ended; before, it just is not known
        self.about = ""  # the engine and its version, once it answered
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()

    @property
    def host(self) -> str:
        return self._api.host

    @property
    def has_runs(self) -> bool:
        """Were there runs that nobody saw the end of?"""
        return any(self._book.left_behind())

    async def answers(self) -> bool:
        """Whether an engine is there now."""
        try:
            about = await self._api.open()
        except (EngineGone, EngineError):
            return False
        self.about = f"Docker {about.get('Version', '')}"
        return True

    @property
    def docker(self) -> str:
        return self.about or f"Docker at {self.host}"

    async def open(self, changed: Changed) -> None:
        """Where no engine answers, the runs of earlier times are believed alive until one does."""
        self._book.changed = changed
        self._book.reopen()
        first = self._loop.create_future()
        self._spawn(self._listen(first))
        await first
        self._told_hello = True
        self._spawn(self._clean())

    def start(self, specs: Iterable[RunSpec]) -> None:
        for spec in specs:
            known = self._book.runs.get(spec.run_id)
            if known is None:
                run = self._book.add(spec.run_id, settings.labels(spec, self._host_id), ordered=True)
                run.bindings = settings.bindings(spec)
                self._spawn(self._launcher.launch(run, spec, self._answers, self._running))
            elif known.answer is not None and not known.answer.done() and not spec.image_may_ask:
                known.answer.set_result(spec)

    def stop(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            run = self._book.runs.get(run_id)
            if run is not None and run.known.alive and not run.stopping.is_set():
                run.stopping.set()
                if run.id is not None and run.known.observed.started_at_s is not None:
                    self._spawn(self._end(run))

    async def execute(self, order: Execute) -> None:
        """Through the docker command, which knows terminals; what it started ends with the container."""
        run, docker = self._book.runs.get(order.run.run_id), shutil.which("docker", path=self._environment.get("PATH"))
        if run is None or not run.is_alive or run.known.observed.started_at_s is None:
            raise CannotExecute("the container is not running")
        if docker is None:
            raise CannotExecute("the docker command is not installed on this host")
        terminal = ["-t"] if order.has_terminal else []
        command = [docker, "-H", self.host, "exec", "-i", *terminal, str(run.id), *order.command]
        here = replace(order.run, working_directory=str(self._data))
        try:
            await self._sessions.begin(replace(order, command=command, run=here), self._environment)
        except (OSError, ValueError) as error:
            raise CannotExecute(f"it cannot be started: {error}") from None

    def observe(self) -> Mapping[str, Known]:
        return {run_id: run.known for run_id, run in self._book.runs.items()}

    def roots(self) -> set[int]:
        """Whatever runs in a container descends from its first process."""
        return {run.known.observed.pid for run in self._book.runs.values() if run.known.observed.pid is not None}

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            run = self._book.runs.get(run_id)
            if run is not None and not run.known.alive:
                self._book.forget(run)

    async def close(self, *, quit: bool) -> None:
        await self._sessions.close()
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self._api.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a step of the docker driver failed", exc_info=task.exception())

    # -- while it runs -------------------------------------------------------------------------------------------

    async def _running(self, run: Run, about: About, pause: About | None) -> None:
        """It has started. It may have ended again since: then its end is seen like any other."""
        if not run.is_alive:
            return
        run.stop_signal = about["Config"].get("StopSignal") or "SIGTERM"
        shown, state = await self._shown(run, about, pause), about["State"]
        if not run.is_alive:
            return
        pid = state.get("Pid") if self._api.host.startswith("unix:") else None
        health = HEALTH.get((state.get("Health") or {}).get("Status", ""))
        self._book.put(run, Observed(run.run_id, pid or None, _seconds(state["StartedAt"]), health=health, about=shown))
        if run.died or not state["Running"]:
            self._died(run, run.exit_code, None if state["Running"] else about)
            return
        if run.kept.ships_logs and run.follower is None:
            run.follower = self._spawn(self._follow(run))
        if run.stopping.is_set():
            self._spawn(self._end(run))

    async def _shown(self, run: Run, about: About, pause: About | None) -> dict[str, Any]:
        """What DescribeTasks and the metadata endpoint tell of it, in ECS's words."""
        shown: dict[str, Any] = {"runtimeId": about["Id"]}
        digest = await self._digest(about["Image"], about["Config"]["Image"])
        if digest is not None:
            shown["imageDigest"] = digest
        bindings = run.bindings or settings.bindings_seen((about.get("NetworkSettings") or {}).get("Ports") or {})
        if bindings:
            shown["networkBindings"] = bindings
        found = address(pause or about)
        if found is not None:
            shown["privateIpv4Address"], shown["macAddress"] = found
        if run.pull is not None:
            shown["pullStartedAt"], shown["pullStoppedAt"] = run.pull
        return shown

    async def _digest(self, image_id: str, name: str) -> str | None:
        try:
            return (await self._images.look(image_id)).digest(name)
        except EngineError:
            return None  # somebody removed it by force

    async def _follow(self, run: Run) -> None:
        await asyncio.sleep(FOLLOW_AFTER_S)
        while run.is_alive:
            try:
                await self._book.output(self._api, run).copy(follow=True)
                return  # its end is near
            except (EngineGone, EngineError, OSError) as error:
                log.info("the output of %s: %s", run.run_id, error)
                await asyncio.sleep(RETRY_MAX_S)

    async def _end(self, run: Run) -> None:
        """The signal that its image wants (SIGTERM), its grace, SIGKILL."""
        await self._signal(run, run.stop_signal)
        wait_s = run.kept.stop_grace_s
        while run.is_alive:
            await asyncio.sleep(wait_s)
            if run.is_alive:
                await self._signal(run, "SIGKILL")
            wait_s = KILL_AGAIN_S

    async def _signal(self, run: Run, name: str) -> None:
        try:
            await self._api.post(f"/containers/{run.id}/kill", signal=name)
        except EngineError as error:
            if error.status not in (404, 409):  # gone already
                log.warning("%s to %s: %s", name, run.run_id, error)
        except EngineGone as error:
            log.warning("%s to %s: %s", name, run.run_id, error)

    # -- ending --------------------------------------------------------------------------------------------------

    def _died(self, run: Run, exit_code: int | None, about: About | None = None) -> None:
        if run.is_alive:
            run.ending, run.exit_code = True, exit_code
            self._spawn(self._settle(run, about))

    async def _settle(self, run: Run, about: About | None) -> None:
        """All that it wrote is in its output, and why it ended is known: it has ended."""
        while True:
            try:
                await self._answers.wait()
                about = about or await self._look(run)
                if about is not None and about["State"]["Running"]:
                    run.ending = False
                    return
                if run.follower is not None:
                    run.follower.cancel()
                    await asyncio.wait([run.follower])
                if about is not None and run.kept.ships_logs:
                    await self._complete(run)
                break
            except EngineGone:
                await asyncio.sleep(RETRY_FIRST_S)
        self._sessions.end([run.run_id])
        self._book.put(run, self._ended(run, about))

    async def _look(self, run: Run) -> dict[str, Any] | None:
        try:
            about: dict[str, Any] = await self._api.get(f"/containers/{run.id}/json")
            return about
        except EngineError:
            return None

    async def _complete(self, run: Run) -> None:
        try:
            await self._book.output(self._api, run).copy(follow=False)
        except (EngineError, OSError) as error:
            log.warning("the rest of the output of %s is lost: %s", run.run_id, error)

    def _ended(self, run: Run, about: Mapping[str, Any] | None) -> Observed:
        before = run.known.observed
        if about is None:
            reason = None if run.exit_code is not None else REMOVED
            return replace(before, stopped_at_s=self._clock.now_s(), exit_code=run.exit_code, reason=reason)
        state = about["State"]
        return replace(
            before,
            stopped_at_s=_seconds(state["FinishedAt"]),
            exit_code=state["ExitCode"],
            reason=OUT_OF_MEMORY if state.get("OOMKilled") else state.get("Error") or None,
        )

    # -- the engine's word ---------------------------------------------------------------------------------------

    async def _listen(self, first: asyncio.Future[None]) -> None:
        """Hear of every container of ours that dies; after every silence look at all of them."""
        wait_s = RETRY_FIRST_S
        while True:
            try:
                await self._meet()
                filters = {"type": ["container"], "label": [f"{LABEL_HOST}={self._host_id}"],
                           "event": ["die", "destroy", "health_status"]}  # fmt: skip
                async with self._api.stream("GET", "/events", filters=filters) as parts:
                    await self._take_stock()
                    self._answers.set()
                    wait_s = RETRY_FIRST_S
                    if not first.done():
                        first.set_result(None)
                    async for event in json_lines(parts):
                        self._heard(event)
                raise EngineGone(f"the Docker engine at {self.host} went away")
            except (EngineGone, EngineError, ValueError) as error:
                if self._answers.is_set() or not first.done():
                    log.warning("%s", error)
                self._answers.clear()
                self._api.close()
                if not first.done():
                    first.set_result(None)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    async def _meet(self) -> None:
        version = await self._api.open()
        info = await self._api.get("/info")
        self.about = f"Docker {version.get('Version', '')}"
        self._tasks.architecture = version.get("Arch") or ""
        self._launcher.cpus = info.get("NCPU") or 1
        self._launcher.gpus = "" if self._simulated_gpus else way_to_gpus(info)

    async def _take_stock(self) -> None:
        there = await self._api.get("/containers/json", all=True, filters={"label": [f"{LABEL_HOST}={self._host_id}"]})
        for listed in there:  # first: the address of a run that has such a container is there
            task_id = listed["Labels"].get(LABEL_PAUSE)
            if task_id is not None and task_id not in self._tasks.with_pause:
                self._tasks.adopt(task_id, await self._api.get(f"/containers/{listed['Id']}/json"))
        found = set()
        for listed in there:
            labels = listed["Labels"]
            if LABEL_RUN in labels and labels[LABEL_RUN] not in self._book.over:
                found.add(labels[LABEL_RUN])
                await self._take(labels, listed["Id"])
        for run in [run for run_id, run in self._book.runs.items() if run_id not in found]:
            self._missing(run)

    async def _take(self, labels: Mapping[str, str], container_id: str) -> None:
        """A container of ours as it is now."""
        run = self._book.runs.get(labels[LABEL_RUN])
        if run is not None and (not run.known.alive or run.is_coming_up):
            return
        try:
            about = await self._api.get(f"/containers/{container_id}/json")
            if about["State"]["Status"] == "created":
                await self._api.delete(f"/containers/{container_id}", v=True)  # never started, and whoever meant to is dead
                if run is not None:
                    self._missing(run)
                return
        except EngineError as error:
            if error.status != 409:
                return
            about = await self._api.get(f"/containers/{container_id}/json")  # it started just now
        run = run or self._book.add(labels[LABEL_RUN], labels)
        run.id = about["Id"]
        if run.kept.has_volumes:
            self._tasks.with_volumes.add(run.task_id)
        await self._running(run, about, await self._tasks.pause_of(run.task_id))

    def _missing(self, run: Run) -> None:
        """The engine has no container for this run that ever started."""
        if not run.is_alive or run.is_coming_up:
            return
        if self._told_hello:
            self._book.put_end(run, LOST)
        else:  # the core knows whether it is still to be started
            self._book.drop(run)

    def _heard(self, event: Mapping[str, Any]) -> None:
        attributes = event.get("Actor", {}).get("Attributes", {})
        run = self._book.runs.get(attributes.get(LABEL_RUN, ""))
        if run is None or not run.known.alive or run.id != event.get("Actor", {}).get("ID"):
            return
        action = event.get("Action", "")
        if action == "die" and run.is_coming_up:  # whoever starts it looks at it next
            run.died, run.exit_code = True, int(attributes.get("exitCode") or 0)
        elif action == "die":
            self._died(run, int(attributes.get("exitCode") or 0))
        elif action == "destroy" and not run.is_coming_up:
            self._died(run, None)
        elif action.startswith("health_status"):
            verdict = HEALTH.get(action.partition(":")[2].strip())
            if verdict is not None:
                self._book.put(run, replace(run.known.observed, health=verdict))

    # -- afterwards ----------------------------------------------------------------------------------------------

    async def _clean(self) -> None:
        """Remove what ended long enough ago. What a living task may still use stays."""
        while True:
            await asyncio.sleep(CLEAN_EVERY_S)
            try:
                await self._clean_once(self._clock.now_s())
            except (EngineGone, EngineError) as error:
                log.info("cleaning up: %s", error)

    async def _clean_once(self, now_s: float) -> None:
        book = self._book
        living = {run.task_id for run in book.runs.values() if run.known.alive}
        over = [run_id for run_id, (run, _) in book.over.items() if run.task_id not in living]
        for at, run_id in enumerate(over):
            run, since_s = book.over[run_id]
            if len(over) - at > STOPPED_KEPT_MAX or now_s >= since_s + STOPPED_KEPT_S:
                await self._tasks.remove(str(run.id))
                book.over.pop(run_id, None)
        for task_id in self._tasks.with_volumes - {run.task_id for run in book.runs.values()}:
            if not book.of_task(task_id):
                await self._tasks.drop_volumes(task_id)
        for task_id in self._tasks.with_pause:
            if task_id in living:
                self._deserted.pop(task_id, None)
            elif now_s >= self._deserted.setdefault(task_id, now_s) + PAUSE_KEPT_S:
                del self._deserted[task_id]
                await self._tasks.drop_pause(task_id)


def way_to_gpus(info: Mapping[str, Any]) -> str:
    """How this engine is asked for GPUs: by CDI where it knows NVIDIA's devices, else as the toolkit's runtime wants it."""
    devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or ()]
    if any(device.startswith("nvidia.com/gpu=") for device in devices):
        return "cdi"
    return "cdi" if info.get("CDISpecDirs") and "nvidia" not in (info.get("Runtimes") or {}) else "nvidia"


def _seconds(when: str) -> float:
    """Since the epoch. Docker writes nanoseconds, as many digits as it needs."""
    return datetime.fromisoformat(when).timestamp()
