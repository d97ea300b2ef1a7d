"""Images: pulled with patience, known by their digests, and removed when those that we pulled take too much room.

What a person pulled or built is theirs and stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from corral.clock import Clock
from corral.errors import Refused
from corral.node.docker_api import DockerApi, EngineError

PULL_MAX_S = 60.0  # how long a run waits for its image, from the first refusal on; CORRAL_PULL_MAX_S says otherwise
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 5.0
PROGRESS_EVERY_S = 1.0
IMAGES_MAX_GB = 100.0  # of all that we pulled; CORRAL_IMAGES_MAX_GB says otherwise
GB = 10**9

log = logging.getLogger("corral.node")


class CannotPull(Exception):
    """The text is what ECS would say."""


@dataclass(slots=True)
class Pulled:
    name: str
    size: int
    used_at_s: float


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    digests: Mapping[str, str]  # of its manifest, by the repositories that it is known in
    visible_gpus: str | None  # NVIDIA_VISIBLE_DEVICES, as the image sets it

    def digest(self, name: str) -> str | None:
        """Of what this name means in its registry, or of what it is elsewhere; None: it never was in a registry."""
        repository, _, digest = name.partition("@")
        return digest or self.digests.get(_without_tag(repository)) or next(iter(self.digests.values()), None)


class Images:
    def __init__(self, api: DockerApi, path: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._patience_s = _number(environment, "CORRAL_PULL_MAX_S", PULL_MAX_S)
        self._max_bytes = _number(environment, "CORRAL_IMAGES_MAX_GB", IMAGES_MAX_GB) * GB
        self._known: dict[str, Image] = {}  # by id
        self._pulling: dict[tuple[str, str], asyncio.Task[None]] = {}  # by name and password
        self._pulled: dict[str, Pulled] = _read(path)

    async def pull(self, name: str, auth: str, tell: Callable[[str], None], given_up: asyncio.Event) -> None:
        """Until it is there; `tell` hears how it goes. CannotPull when it does not come, or `given_up`."""
        loop, wait_s = asyncio.get_running_loop(), RETRY_FIRST_S
        until_s: float | None = None
        key = (name, auth)
        while True:
            pulling = self._pulling.get(key)
            if pulling is None:
                pulling = self._pulling[key] = loop.create_task(self._pull_once(name, auth, tell))
                pulling.add_done_callback(partial(self._done, key))
            giving_up = loop.create_task(given_up.wait())
            try:
                await asyncio.wait([pulling, giving_up], return_when=asyncio.FIRST_COMPLETED)
            finally:
                giving_up.cancel()
            if not pulling.done():
                raise CannotPull("stopped before it was started")
            error = pulling.exception()
            if error is None:
                return
            if not isinstance(error, EngineError):
                raise error
            if await self._is_there(name):
                return  # as ECS does: one that was pulled before, or built here, is better than none
            words = f"CannotPullContainerError: Error response from daemon: {error}"
            until_s = until_s or loop.time() + self._patience_s
            if loop.time() + wait_s > until_s:
                raise CannotPull(words)
            tell(words)
            try:
                await asyncio.wait_for(given_up.wait(), wait_s)
            except TimeoutError:
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                raise CannotPull("stopped before it was started")

    def _done(self, key: tuple[str, str], pulling: asyncio.Task[None]) -> None:
        del self._pulling[key]
        if not pulling.cancelled():
            pulling.exception()  # heard, although those who waited may have gone

    async def _is_there(self, name: str) -> bool:
        try:
            await self.find(name)
        except EngineError:
            return False
        return True

    async def look(self, image_id: str) -> Image:
        """What is to be known of an image that is there; as of now it was used."""
        if image_id in self._pulled:
            self._pulled[image_id].used_at_s = self._clock.now_s()
        return self._known.get(image_id) or await self.find(image_id)

    async def find(self, name: str) -> Image:
        """The image that a name means now; EngineError when there is none."""
        about = await self._api.get(f"/images/{name}/json")
        digests = dict(each.split("@", 1) for each in about.get("RepoDigests") or ())
        variables = dict(pair.partition("=")[::2] for pair in (about.get("Config") or {}).get("Env") or ())
        found = Image(about["Id"], digests, variables.get("NVIDIA_VISIBLE_DEVICES"))
        self._known[found.id] = found
        return found

    async def _pull_once(self, name: str, auth: str, tell: Callable[[str], None]) -> None:
        image, tag = split_name(name)
        headers = {"X-Registry-Auth": auth} if auth else None
        progress = Progress(name)
        told_at = 0.0
        async with self._api.stream("POST", "/images/create", headers, fromImage=image, tag=tag) as parts:
            async for said in json_lines(parts):
                if "error" in said:
                    raise EngineError(500, str(said.get("errorDetail", {}).get("message") or said["error"]))
                progress.hear(said)
                now = asyncio.get_running_loop().time()
                if now >= told_at + PROGRESS_EVERY_S and (text := progress.text()):
                    told_at = now
                    tell(text)
        self._known.clear()
        about = await self._api.get(f"/images/{name}/json")
        self._pulled[about["Id"]] = Pulled(name, about.get("Size", 0), self._clock.now_s())
        await self._make_room(about["Id"])

    async def _make_room(self, newest: str) -> None:
        """Remove what we pulled and used least lately, until the rest is within the bound. What is in use stays."""
        for image_id, image in sorted(self._pulled.items(), key=lambda item: item[1].used_at_s):
            if sum(each.size for each in self._pulled.values()) <= self._max_bytes:
                break
            if image_id == newest:
                continue
            try:
                if await self._remove(image_id, image.name):
                    log.info("removed the image %s, not used lately", image.name)
            except EngineError as error:
                if error.status == 409:
                    continue
            del self._pulled[image_id]
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._pulled))
        fresh.rename(self._path)

    async def _remove(self, image_id: str, name: str) -> bool:
        """By its name. If that means another image by now, it goes only if nobody has given it another name."""
        if await self._is_called(image_id, name):
            await self._api.delete(f"/images/{name}")
            return True
        about = await self._api.get(f"/images/{image_id}/json")
        if about.get("RepoTags"):
            return False
        await self._api.delete(f"/images/{image_id}")
        return True

    async def _is_called(self, image_id: str, name: str) -> bool:
        try:
            return bool((await self._api.get(f"/images/{name}/json"))["Id"] == image_id)
        except EngineError:
            return False


class Progress:
    """How far a pull is, over all layers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, tuple[int, int]] = {}

    def hear(self, said: Mapping[str, Any]) -> None:
        detail = said.get("progressDetail") or {}
        if said.get("status") == "Downloading" and detail.get("total"):
            self._layers[said.get("id", "")] = (detail["current"], detail["total"])
        elif said.get("status") == "Download complete" and said.get("id") in self._layers:
            total = self._layers[said["id"]][1]
            self._layers[said["id"]] = (total, total)

    def text(self) -> str | None:
        if not self._layers:
            return None
        current, total = (sum(part) / 1e6 for part in zip(*self._layers.values()))
        return f"pulling {self._name}: {current:.0f} of {total:.0f} MB"


def split_name(name: str) -> tuple[str, str]:
    """`name:tag` or `name@digest` as the API takes it; without either Docker would pull every tag there is."""
    if "@" in name:
        image, _, digest = name.partition("@")
        return _without_tag(image), digest
    image = _without_tag(name)
    return image, name[len(image) + 1 :] or "latest"


def _without_tag(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


async def json_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
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
        raise Refused(f"{name}={environment[name]}: give a number") from None


def _read(path: Path) -> dict[str, Pulled]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Pulled])
    except (FileNotFoundError, ValueError):
        return {}
