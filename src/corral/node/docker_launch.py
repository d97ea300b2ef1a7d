"""Start the container for an order of the server, or report why it cannot be started. Every step can be repeated safely.

The pause container of a task owns the namespaces that the containers of the task share (`docker_task_resources.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from corral.core.clock import Clock
from corral.model.run import RunSpec
from corral.model.stop_reasons import STOPPED_BEFORE_START
from corral.node import docker_accounts, docker_options
from corral.node.account_process import NoAccount, find_account
from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_image_groups import HostileImage, ImageGroups
from corral.node.docker_images import CannotPull, EngineImages
from corral.node.docker_options import CreateContext, container_name
from corral.node.docker_runs import DockerRun, DockerRuns
from corral.node.docker_task_resources import CannotCreate, ResourceRemoved, TaskResources
from corral.node.host_mounts import BoundPaths, CannotMount, HostMounts, host_paths_fault

STARTS_AT_ONCE = 8
RETRY_S = 0.05
CREATE_TRIES = 100  # maximum number of attempts of one step, with a pause of RETRY_S after each

IGNORES_GPUS = (
    "CannotCreateContainerError: this engine ignores requests for GPUs (as podman does), so the container would not have the GPUs "
    "that are pinned to it. Use a Docker engine with the NVIDIA Container Toolkit."
)
HAS_RIGHTS = (
    "the task mounts paths of the host, so its containers run as the Unix account {account} without further rights: remove "
    "{setting} from the task definition"
)
HOSTILE_IMAGE = "CannotCreateContainerError: the image cannot run as the Unix account {account}, because {why}: use another image"
REMOVED = "the container was removed from outside Corral"
NEVER = "0001-01-01"  # the engine's time for an event that has not happened

log = logging.getLogger("corral.node")
ContainerInfo = Mapping[str, Any]  # the engine's description of a container


class CannotStart(Exception):
    """The container cannot be started. The message becomes the container's `reason`, so it has the form of ECS's messages."""


class NoImage(Exception):
    """The engine has no such image."""


class DockerLauncher:
    def __init__(
        self,
        api: DockerApi,
        images: EngineImages,
        tasks: TaskResources,
        runs: DockerRuns,
        mounts: HostMounts,
        clock: Clock,
        host_id: str,
        *,
        has_gpus: bool,
    ) -> None:
        self._api = api
        self._images = images
        self._resources = tasks
        self._runs = runs
        self._mounts = mounts
        self._clock = clock
        self._host_id = host_id
        self._has_gpus = has_gpus
        self._image_groups = ImageGroups(api, host_id)
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self.cpus = 1  # number of CPUs of the engine's machine
        self.gpus = ""  # how to request GPUs from the engine: nvidia or cdi; empty: do not request them
        self.maps_ids = False  # whether users of containers have other ids on the host

    async def launch(
        self,
        run: DockerRun,
        spec: RunSpec,
        available: asyncio.Event,
        started: Callable[[DockerRun, ContainerInfo, ContainerInfo | None], Awaitable[None]],
    ) -> None:
        """Start the container of a run. Return when it runs or has failed to start.

        `available` is set while the engine responds. If the engine is unavailable, wait for it and start over. `started` is called
        with the run, and with the engine's descriptions of its container and of the task's pause container, if there is one.
        """
        while True:
            try:
                if not available.is_set():
                    raise EngineGone(f"no Docker engine answers at {self._api.host}")
                try:
                    await self._try(run, spec, started)
                finally:
                    if docker_accounts.acts_as_account(spec):
                        self._mounts.release(run.run_id)
                return
            except (CannotStart, CannotCreate, CannotPull) as why:
                await self._give_up(run, str(why))
                return
            except EngineGone as why:
                self._runs.update(run, replace(run.known.observed, reason=f"CannotStartContainerError: {why}"))
                if run.id is not None:  # the container may be running, so wait until the engine responds
                    await available.wait()
                elif await either(run.stopping.wait(), available.wait()) and not available.is_set():
                    self._runs.end(run, STOPPED_BEFORE_START)
                    return
                await asyncio.sleep(RETRY_S)
            except EngineError as error:
                await self._give_up(run, f"CannotStartContainerError: Error response from daemon: {error}")
                return

    async def _try(
        self, run: DockerRun, spec: RunSpec, started: Callable[[DockerRun, ContainerInfo, ContainerInfo | None], Awaitable[None]]
    ) -> None:
        if spec.pull_always:
            await self._pull(run, spec)
        if spec.image_may_ask and self._has_gpus:
            spec = await self._with_gpus(run, spec)
        removals = 0
        while True:
            async with self._starts:
                try:
                    pause = await self._resources.make(spec)
                    about = await self._create(run, spec, pause) or await self._start(run, spec, pause)
                    break
                except NoImage:
                    lacks_image = True
                except ResourceRemoved as why:
                    lacks_image, run.id, run.died = False, None, False
                    removals += 1
                    if removals > CREATE_TRIES:
                        raise CannotStart(f"CannotStartContainerError: Error response from daemon: {why}") from None
            if lacks_image:
                await self._pull(run, spec)
            else:
                await asyncio.sleep(RETRY_S)
        if about is not None:
            await started(run, about, pause)

    async def _with_gpus(self, run: DockerRun, spec: RunSpec) -> RunSpec:
        """If the image sets NVIDIA_VISIBLE_DEVICES, request GPUs from the server. Otherwise return `spec`.

        The server responds with a second order for the run, which has the ids of the GPUs. Return this order.
        """
        try:
            image = await self._images.find(spec.image)
        except EngineError:
            await self._pull(run, spec)
            image = await self._images.find(spec.image)
        if image.visible_gpus in (None, "", "none", "void"):
            return spec
        run.answer = asyncio.get_running_loop().create_future()
        self._runs.update(run, replace(run.known.observed, reason=None, asks_gpus=image.visible_gpus))
        await either(run.answer, run.stopping.wait())
        if not run.answer.done():
            raise CannotStart(STOPPED_BEFORE_START)
        spec = run.answer.result()
        run.record = docker_options.record_of(spec)
        run.known = replace(run.known, gpu_ids=tuple(spec.gpu_ids), observed=replace(run.known.observed, asks_gpus=None))
        self._runs.write(spec.run_id, docker_options.labels(spec, self._host_id))
        return spec

    async def _pull(self, run: DockerRun, spec: RunSpec) -> None:
        began_s = self._clock.now_s()

        def report(text: str) -> None:
            self._runs.update(run, replace(run.known.observed, reason=text, about={"pullStartedAt": began_s}))

        await self._images.pull(spec.image, spec.registry_auth, report, run.stopping)
        run.pull = (began_s, self._clock.now_s())

    async def _create(self, run: DockerRun, spec: RunSpec, pause: ContainerInfo | None) -> ContainerInfo | None:
        """Create the container and return None.

        If an earlier agent already started the container, return the engine's description of it.
        """
        body = docker_options.create_body(spec, self._create_context(spec, pause))
        if docker_accounts.acts_as_account(spec):
            docker_accounts.restrict(body, spec, await self._bind_host_paths(spec))
        name = container_name(self._host_id, run.run_id)
        about: ContainerInfo | None = None
        for _ in range(CREATE_TRIES):
            if run.stopping.is_set():
                raise CannotStart(STOPPED_BEFORE_START)
            try:
                run.id = (await self._api.post("/containers/create", body, name=name))["Id"]
                break
            except EngineError as error:
                if error.status == 404 and "image" in str(error).lower():
                    raise NoImage from None
                if error.status != 409:
                    raise CannotCreate(f"CannotCreateContainerError: Error response from daemon: {error}") from None
            about = await self._resolve_conflict(run, name)
            if about is not None:
                run.id = about["Id"]
                break
        else:
            raise CannotCreate(f"CannotCreateContainerError: the name {name} is in use, but the engine shows no container with it")
        if about is not None and has_started(about):
            return about
        if docker_accounts.acts_as_account(spec):
            await self._check_groups(str(run.id), spec)
        if spec.gpu_ids and self.gpus:
            requests = (await self._api.get(f"/containers/{run.id}/json"))["HostConfig"].get("DeviceRequests") or ()
            if sum(len(request.get("DeviceIDs") or ()) for request in requests) != len(spec.gpu_ids):
                raise CannotCreate(IGNORES_GPUS)
        return None

    async def _bind_host_paths(self, spec: RunSpec) -> BoundPaths:
        """Bind the host paths of a container that acts as an account. `launch` removes the binds after the start."""
        try:
            return await asyncio.to_thread(self._bind, spec)
        except (CannotMount, NoAccount) as why:
            raise CannotCreate(f"CannotCreateContainerError: {why}") from None

    async def _check_groups(self, container: str, spec: RunSpec) -> None:
        try:
            await self._image_groups.check(container)
        except HostileImage as why:
            raise CannotCreate(HOSTILE_IMAGE.format(account=spec.account, why=why)) from None

    def _bind(self, spec: RunSpec) -> BoundPaths:
        if setting := docker_accounts.refused_setting(spec):
            raise CannotMount(HAS_RIGHTS.format(account=spec.account, setting=setting))
        if fault := host_paths_fault(self._api.host, maps_ids=self.maps_ids):
            raise CannotMount(f"the host paths of the account {spec.account} cannot be mounted: {fault}")
        return self._mounts.bind(spec.run_id, find_account(spec.account), docker_accounts.host_paths(spec))

    async def _resolve_conflict(self, run: DockerRun, name: str) -> ContainerInfo | None:
        """Handle the case that a container with this name already exists.

        Remove it if its run was forgotten. Otherwise an earlier agent created it, so return its description. Return None if the
        caller must try to create the container again.
        """
        forgotten = self._runs.forgotten.pop(run.run_id, None)
        if forgotten is not None:
            await self._resources.remove(str(forgotten[0].id))
            return None
        try:
            about: ContainerInfo = await self._api.get(f"/containers/{name}/json")
            if has_started(about) or about["State"]["Status"] == "created":
                return about
        except EngineError:
            pass
        await asyncio.sleep(RETRY_S)  # the engine is still creating the container, or is removing a container that never ran
        return None

    def _create_context(self, spec: RunSpec, pause: ContainerInfo | None) -> CreateContext:
        siblings = self._runs.of_task(spec.task_id)
        names = {each.container: each.id for each in siblings if each.id is not None}
        described = {each.container: each.known.observed.about or {} for each in siblings}
        addresses = {name: about["privateIpv4Address"] for name, about in described.items() if "privateIpv4Address" in about}
        missing = [name for name in docker_options.volume_sources(spec) if name not in names]
        missing += [name for name, _ in docker_options.links(spec) if name not in addresses]
        if missing:
            raise CannotCreate(f"CannotCreateContainerError: the container {missing[0]} of the same task no longer exists")
        return CreateContext(self._host_id, self.cpus, self.gpus, addresses, names, pause["Id"] if pause else None)

    async def _start(self, run: DockerRun, spec: RunSpec, pause: ContainerInfo | None) -> ContainerInfo | None:
        """Start the container and return the engine's description of it.

        Return None if the container ended at once and was removed. In this case, its end was already reported.
        """
        if run.stopping.is_set():
            raise CannotStart(STOPPED_BEFORE_START)
        self._runs.request_start(run.run_id)
        started_at_s = self._clock.now_s()
        try:
            await self._api.post(f"/containers/{run.id}/start")
        except EngineError as error:
            if run.died and error.status == 404:  # the request was sent twice: the container has run and was removed
                await self._report_removed(run, started_at_s)
                return None
            self._runs.withdraw_start(run.run_id)
            await self._resources.raise_if_removed(error, str(run.id), pause, spec.task_id)
            raise CannotStart(f"CannotStartContainerError: Error response from daemon: {error}") from None
        try:
            about: ContainerInfo = await self._api.get(f"/containers/{run.id}/json")
            return about
        except EngineError as error:
            if error.status != 404:
                raise
        await self._report_removed(run, started_at_s)
        return None

    async def _report_removed(self, run: DockerRun, started_at_s: float) -> None:
        """Report the end of a container that was removed right after its end. The engine's `die` event has its exit code."""
        for _ in range(CREATE_TRIES):
            if run.died:
                break
            await asyncio.sleep(RETRY_S)
        about, reason = {"runtimeId": run.id}, REMOVED if run.exit_code is None else None
        run.id = None
        ended = replace(run.known.observed, started_at_s=started_at_s, stopped_at_s=self._clock.now_s(), about=about)
        self._runs.update(run, replace(ended, exit_code=run.exit_code, reason=reason))

    async def _give_up(self, run: DockerRun, reason: str) -> None:
        if not run.is_alive:
            return
        if run.id is not None:
            try:
                await self._resources.remove(run.id)
            except (EngineGone, EngineError) as error:
                log.warning("the container of %s could not be removed: %s", run.run_id, error)
            run.id = None
        self._runs.end(run, reason)


def has_started(about: ContainerInfo) -> bool:
    """Whether a container runs or has run. Its state does not show this: a container that is being removed may never have run."""
    return not about["State"]["StartedAt"].startswith(NEVER)


async def either(first: Awaitable[Any], second: Awaitable[Any]) -> bool:
    """Wait until one of the two is done. Return whether `first` is done.

    The other one is cancelled, unless it is `first` and a future.
    """
    waiting = [asyncio.ensure_future(each) for each in (first, second)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return waiting[0].done()
    finally:
        for each in waiting:
            if each is not first:
                each.cancel()
