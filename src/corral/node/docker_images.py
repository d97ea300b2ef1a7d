"""Docker images: pull them with retries, find their digests, and remove the least recently used if they are too large together.

Corral removes only images that it pulled itself. It never removes images that a person pulled or built.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from corral.core.clock import Clock
from corral.core.errors import Refused
from corral.model.agent_protocol import ImagePush
from corral.model.stop_reasons import STOPPED_BEFORE_START
from corral.node.docker_api import DockerApi, EngineError

PULL_MAX_S = 60.0  # how long a run retries the pull after the first failure; CORRAL_PULL_MAX_S overrides it
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 5.0
PROGRESS_EVERY_S = 1.0
IMAGES_MAX_GB = 100.0  # maximum total size of the images that Corral pulled; CORRAL_IMAGES_MAX_GB overrides it
GB = 10**9

log = logging.getLogger("corral.node")


class CannotPull(Exception):
    """The image cannot be pulled. The message becomes the container's `reason`, so it has the form of ECS's messages."""


class PulledImage(Struct):
    name: str
    size: int
    used_at_s: float


class EngineImage(Struct, frozen=True):
    id: str
    digests: Mapping[str, str]  # repository → the digest of the manifest
    visible_gpus: str | None  # the value of NVIDIA_VISIBLE_DEVICES in the image's environment

    def digest(self, name: str) -> str | None:
        """Return the digest that `name` contains, or else the image's digest in the repository of `name` or in any repository.

        Return None if there is no digest, because the image does not come from a registry.
        """
        repository, _, digest = name.partition("@")
        return digest or self.digests.get(_without_tag(repository)) or next(iter(self.digests.values()), None)


class EngineImages:
    def __init__(self, api: DockerApi, path: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._retry_for_s = _number(environment, "CORRAL_PULL_MAX_S", PULL_MAX_S)
        self._max_bytes = _number(environment, "CORRAL_IMAGES_MAX_GB", IMAGES_MAX_GB) * GB
        self._known: dict[str, EngineImage] = {}  # image id → image
        self._pulling: dict[tuple[str, str], asyncio.Task[None]] = {}  # (image name, registry credentials) → the running pull
        # (image, tag or digest) → set when Corral's registry gets this image; it exists while a run waits for the image
        self._pushes: WeakValueDictionary[tuple[str, str], asyncio.Event] = WeakValueDictionary()
        self._pulled: dict[str, PulledImage] = _read(path)

    async def pull(self, name: str, auth: str, report: Callable[[str], None], given_up: asyncio.Event) -> None:
        """Pull an image. If the pull fails and the engine does not have the image, retry: after a while, and at once when Corral's
        registry gets the image. `report` is called with the progress.

        Raises CannotPull after the time limit, or when `given_up` is set.
        """
        loop, wait_s = asyncio.get_running_loop(), RETRY_FIRST_S
        until_s: float | None = None
        key = (name, auth)
        while True:
            pushed = self._pushes.setdefault(split_name(name), asyncio.Event())  # before the pull: a push during the pull counts
            pulling = self._pulling.get(key)
            if pulling is None:
                pulling = self._pulling[key] = loop.create_task(self._pull_once(name, auth, report))
                pulling.add_done_callback(partial(self._done, key))
            giving_up = loop.create_task(given_up.wait())
            try:
                await asyncio.wait([pulling, giving_up], return_when=asyncio.FIRST_COMPLETED)
            finally:
                giving_up.cancel()
            if not pulling.done():
                raise CannotPull(STOPPED_BEFORE_START)
            error = pulling.exception()
            if error is None:
                return
            if not isinstance(error, EngineError):
                raise error
            if await self._exists(name):
                return  # as on ECS, use the local image if the pull fails
            reason = f"CannotPullContainerError: Error response from daemon: {error}"
            until_s = until_s or loop.time() + self._retry_for_s
            if loop.time() + wait_s > until_s and not pushed.is_set():
                raise CannotPull(reason)
            report(reason)
            events = [loop.create_task(event.wait()) for event in (given_up, pushed)]
            try:
                await asyncio.wait(events, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for event in events:
                    event.cancel()
            if given_up.is_set():
                raise CannotPull(STOPPED_BEFORE_START)
            wait_s = RETRY_FIRST_S if pushed.is_set() else min(2 * wait_s, RETRY_MAX_S)

    def pushed(self, pushed: ImagePush) -> None:
        """Pull this image now for the runs that wait for it."""
        for reference in pushed.references:
            event = self._pushes.pop((pushed.image, reference), None)
            if event is not None:
                event.set()

    def _done(self, key: tuple[str, str], pulling: asyncio.Task[None]) -> None:
        del self._pulling[key]
        if not pulling.cancelled():
            pulling.exception()  # read the exception, so that asyncio does not log it if all waiters were cancelled

    def unfinished(self) -> list[asyncio.Task[None]]:
        return list(self._pulling.values())

    async def _exists(self, name: str) -> bool:
        try:
            await self.find(name)
        except EngineError:
            return False
        return True

    async def use(self, image_id: str) -> EngineImage:
        """Record that an existing image is used now, and return its description."""
        if image_id in self._pulled:
            self._pulled[image_id].used_at_s = self._clock.now_s()
        return self._known.get(image_id) or await self.find(image_id)

    async def find(self, name: str) -> EngineImage:
        """Return the image to which the name refers now. Raises EngineError if there is none."""
        about = await self._api.get(f"/images/{name}/json")
        digests = dict(each.split("@", 1) for each in about.get("RepoDigests") or ())
        variables = dict(pair.partition("=")[::2] for pair in (about.get("Config") or {}).get("Env") or ())
        found = EngineImage(about["Id"], digests, variables.get("NVIDIA_VISIBLE_DEVICES"))
        self._known[found.id] = found
        return found

    async def _pull_once(self, name: str, auth: str, report: Callable[[str], None]) -> None:
        image, tag = split_name(name)
        headers = {"X-Registry-Auth": auth} if auth else None
        progress = PullProgress(name)
        reported_at = 0.0
        async with self._api.stream("POST", "/images/create", headers, fromImage=image, tag=tag) as parts:
            async for message in decode_json_lines(parts):
                if "error" in message:
                    raise EngineError(500, str(message.get("errorDetail", {}).get("message") or message["error"]))
                progress.update(message)
                now = asyncio.get_running_loop().time()
                if now >= reported_at + PROGRESS_EVERY_S and (text := progress.text()):
                    reported_at = now
                    report(text)
        self._known.clear()
        about = await self._api.get(f"/images/{name}/json")
        self._pulled[about["Id"]] = PulledImage(name, about.get("Size", 0), self._clock.now_s())
        await self._make_room(about["Id"])

    async def _make_room(self, newest: str) -> None:
        """Remove images that Corral pulled, least recently used first, until the total size is within the limit.

        Images that a container uses stay, and the image `newest`, which was just pulled, stays too.
        """
        for image_id, image in sorted(self._pulled.items(), key=lambda item: item[1].used_at_s):
            if sum(each.size for each in self._pulled.values()) <= self._max_bytes:
                break
            if image_id == newest:
                continue
            try:
                if await self._remove(image_id, image.name):
                    log.info("removed the image %s, the least recently used", image.name)
            except EngineError as error:
                if error.status == 409:
                    continue
            del self._pulled[image_id]
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._pulled))
        fresh.rename(self._path)

    async def _remove(self, image_id: str, name: str) -> bool:
        """Remove an image by its name. Return whether it was removed.

        If the name now refers to another image, remove the image by its id, but only if the image has no other name.
        """
        if await self._is_named(image_id, name):
            await self._api.delete(f"/images/{name}")
            return True
        about = await self._api.get(f"/images/{image_id}/json")
        if about.get("RepoTags"):
            return False
        await self._api.delete(f"/images/{image_id}")
        return True

    async def _is_named(self, image_id: str, name: str) -> bool:
        try:
            return bool((await self._api.get(f"/images/{name}/json"))["Id"] == image_id)
        except EngineError:
            return False


class PullProgress:
    """The progress of a pull: the downloaded bytes and the total bytes of all layers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, tuple[int, int]] = {}

    def update(self, message: Mapping[str, Any]) -> None:
        detail = message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and detail.get("total"):
            self._layers[message.get("id", "")] = (detail["current"], detail["total"])
        elif message.get("status") == "Download complete" and message.get("id") in self._layers:
            total = self._layers[message["id"]][1]
            self._layers[message["id"]] = (total, total)

    def text(self) -> str | None:
        if not self._layers:
            return None
        current, total = (sum(part) / 1e6 for part in zip(*self._layers.values()))
        return f"pulling {self._name}: {current:.0f} of {total:.0f} MB"


def split_name(name: str) -> tuple[str, str]:
    """Split an image name into (name, tag or digest).

    The default tag is `latest`, because Docker pulls all tags if none is given.
    """
    if "@" in name:
        image, _, digest = name.partition("@")
        return _without_tag(image), digest
    image = _without_tag(name)
    return image, name[len(image) + 1 :] or "latest"


def _without_tag(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


async def decode_json_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    unread = b""
    async for part in parts:
        *lines, unread = (unread + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield msgspec.json.decode(line)
    if unread.strip():
        yield msgspec.json.decode(unread)


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environment.get(name) or default)
    except ValueError:
        raise Refused(f"{name}={environment[name]} is not a number: set {name} to a number, or unset it") from None


def _read(path: Path) -> dict[str, PulledImage]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, PulledImage])
    except (FileNotFoundError, ValueError):
        return {}
