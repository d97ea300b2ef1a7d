"""From an order to a container that runs, or to the reason why it does not. Every step may be done twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from corral.clock import Clock
from corral.model.run import RunSpec
from corral.node import docker_settings as settings
from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_images import CannotPull, Images
from corral.node.docker_runs import Book, Run
from corral.node.docker_settings import Surroundings, container_name
from corral.node.docker_task_resources import CannotCreate, NoNetwork, SharedByTasks

STARTS_AT_ONCE = 8
RETRY_S = 0.05
CREATE_TRIES = 100

STOPPED_EARLY = "stopped before it was started"
IGNORES_GPUS = (
    "CannotCreateContainerError: this engine ignores requests for GPUs (podman's does), so the container would not have the GPUs "
    "that are pinned to it. Use a Docker engine with the NVIDIA Container Toolkit."
)

log = logging.getLogger("corral.node")
About = Mapping[str, Any]  # what the engine says of a container


class CannotStart(Exception):
    """The text is what ECS would say."""


class NoImage(Exception):
    """The engine has no such image."""


class Launcher:
    def __init__(
        self, api: DockerApi, images: Images, tasks: SharedByTasks, book: Book, clock: Clock, host_id: str, *, has_gpus: bool
    ) -> None:
        self._api = api
        self._images = images
        self._tasks = tasks
        self._book = book
        self._clock = clock
        self._host_id = host_id
        self._has_gpus = has_gpus
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self.cpus = 1  # of the engine's machine
        self.gpus = ""  # how the engine is asked for GPUs; empty: not at all

    async def launch(
        self, run: Run, spec: RunSpec, answers: asyncio.Event, started: Callable[[Run, About, About | None], Awaitable[None]]
    ) -> None:
        """Until it runs or cannot. An engine that went away in the middle is asked again from the start."""
        while True:
            try:
                if not answers.is_set():
                    raise EngineGone(f"no Docker engine answers at {self._api.host}")
                await self._try(run, spec, started)
                return
            except (CannotStart, CannotCreate, CannotPull) as why:
                await self._give_up(run, str(why))
                return
            except EngineGone as why:
                self._book.put(run, replace(run.known.observed, reason=f"CannotStartContainerError: {why}"))
                if run.id is not None:  # it may run: only the engine knows
                    await answers.wait()
                elif await either(run.stopping.wait(), answers.wait()) and not answers.is_set():
                    self._book.put_end(run, STOPPED_EARLY)
                    return
                await asyncio.sleep(RETRY_S)
            except EngineError as error:
                await self._give_up(run, f"CannotStartContainerError: Error response from daemon: {error}")
                return

    async def _try(self, run: Run, spec: RunSpec, started: Callable[[Run, About, About | None], Awaitable[None]]) -> None:
        if spec.pull_always:
            await self._pull(run, spec)
        if spec.image_may_ask and self._has_gpus:
            spec = await self._with_gpus(run, spec)
        while True:
            async with self._starts:
                try:
                    pause = await self._tasks.make(spec)
                    about = await self._create(run, spec, pause) or await self._start(run)
                    break
                except NoImage:
                    lacks_image = True
                except NoNetwork:
                    lacks_image, run.id, run.died = False, None, False
            if lacks_image:
                await self._pull(run, spec)
            else:
                await asyncio.sleep(RETRY_S)
        await started(run, about, pause)

    async def _with_gpus(self, run: Run, spec: RunSpec) -> RunSpec:
        """An image may ask for GPUs in the old way. Which it gets is not ours to say: the core is asked, and orders anew."""
        try:
            image = await self._images.find(spec.image)
        except EngineError:
            await self._pull(run, spec)
            image = await self._images.find(spec.image)
        if image.visible_gpus in (None, "", "none", "void"):
            return spec
        run.answer = asyncio.get_running_loop().create_future()
        self._book.put(run, replace(run.known.observed, reason=None, asks_gpus=image.visible_gpus))
        await either(run.answer, run.stopping.wait())
        if not run.answer.done():
            raise CannotStart(STOPPED_EARLY)
        spec = run.answer.result()
        run.kept = settings.kept_by(spec)
        run.known = replace(run.known, gpu_ids=tuple(spec.gpu_ids), observed=replace(run.known.observed, asks_gpus=None))
        self._book.write(spec.run_id, settings.labels(spec, self._host_id))
        return spec

    async def _pull(self, run: Run, spec: RunSpec) -> None:
        began_s = self._clock.now_s()

        def tell(text: str) -> None:
            self._book.put(run, replace(run.known.observed, reason=text, about={"pullStartedAt": began_s}))

        await self._images.pull(spec.image, spec.registry_auth, tell, run.stopping)
        run.pull = (began_s, self._clock.now_s())

    async def _create(self, run: Run, spec: RunSpec, pause: About | None) -> About | None:
        """Its container is there and not started yet; or it was started by an agent that died then: what the engine says of it."""
        body = settings.create_body(spec, self._surroundings(spec, pause))
        name = container_name(self._host_id, run.run_id)
        about: About | None = None
        for _ in range(CREATE_TRIES):
            if run.stopping.is_set():
                raise CannotStart(STOPPED_EARLY)
            try:
                run.id = (await self._api.post("/containers/create", body, name=name))["Id"]
                break
            except EngineError as error:
                if error.status == 404 and "image" in str(error).lower():
                    raise NoImage from None
                if error.status != 409:
                    raise CannotCreate(f"CannotCreateContainerError: Error response from daemon: {error}") from None
            about = await self._who_has(run, name)
            if about is not None:
                run.id = about["Id"]
                break
        else:
            raise CannotCreate(f"CannotCreateContainerError: the name {name} is taken and nobody has it")
        if about is not None and about["State"]["Status"] != "created":
            return about
        if spec.gpu_ids and self.gpus:
            asked = (await self._api.get(f"/containers/{run.id}/json"))["HostConfig"].get("DeviceRequests") or ()
            if sum(len(request.get("DeviceIDs") or ()) for request in asked) != len(spec.gpu_ids):
                raise CannotCreate(IGNORES_GPUS)
        return None

    async def _who_has(self, run: Run, name: str) -> About | None:
        """The name is taken: by a forgotten run, which goes; or by this very run, created by an agent that died then."""
        forgotten = self._book.over.pop(run.run_id, None)
        if forgotten is not None:
            await self._tasks.remove(str(forgotten[0].id))
            return None
        try:
            about: About = await self._api.get(f"/containers/{name}/json")
            return about
        except EngineError:
            await asyncio.sleep(RETRY_S)  # it is just being made
            return None

    def _surroundings(self, spec: RunSpec, pause: About | None) -> Surroundings:
        siblings = self._book.of_task(spec.task_id)
        names = {each.container: each.id for each in siblings if each.id is not None}
        shown = {each.container: each.known.observed.about or {} for each in siblings}
        addresses = {name: about["privateIpv4Address"] for name, about in shown.items() if "privateIpv4Address" in about}
        missing = [name for name in settings.takes_volumes_of(spec) if name not in names]
        missing += [name for name, _ in settings.links(spec) if name not in addresses]
        if missing:
            raise CannotCreate(f"CannotCreateContainerError: the container {missing[0]} of the same task is not there any more")
        return Surroundings(self._host_id, self.cpus, self.gpus, addresses, names, pause["Id"] if pause else None)

    async def _start(self, run: Run) -> About:
        if run.stopping.is_set():
            raise CannotStart(STOPPED_EARLY)
        try:
            await self._api.post(f"/containers/{run.id}/start")
        except EngineError as error:
            await self._tasks.look_for_network(error, str(run.id))
            raise CannotStart(f"CannotStartContainerError: Error response from daemon: {error}") from None
        about: About = await self._api.get(f"/containers/{run.id}/json")
        return about

    async def _give_up(self, run: Run, reason: str) -> None:
        if not run.is_alive:
            return
        if run.id is not None:
            try:
                await self._tasks.remove(run.id)
            except (EngineGone, EngineError) as error:
                log.warning("what was created for %s is left: %s", run.run_id, error)
            run.id = None
        self._book.put_end(run, reason)


async def either(first: Awaitable[Any], second: Awaitable[Any]) -> bool:
    """Wait until one of the two is so; whether it is the first."""
    waiting = [asyncio.ensure_future(each) for each in (first, second)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return waiting[0].done()
    finally:
        for each in waiting:
            if each is not first:
                each.cancel()
