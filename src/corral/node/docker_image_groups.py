"""Check the group file of images before containers run as a Unix account.

Docker looks up the group of a container in the file /etc/group of its image, and compares the number with the names in it, too. An
image in which a group is called `1000` and has the number 42 would give its container the group 42 of the host. So such an image is
refused. The container itself cannot change the file: its root file system is read-only (`docker_accounts.py`).
"""

from __future__ import annotations

import io
import re

from corral.node.docker_api import DockerApi, EngineError
from corral.node.docker_options import LABEL_HOST

GROUP_FILE = "/etc/group"
FILE_MAX_BYTES = 4 * 1024 * 1024
IMAGES_MAX = 1000
NUMBER = re.compile(rb"\+?[0-9]+")


class HostileImage(Exception):
    """The group file of an image cannot be used. The message says why."""


class ImageGroups:
    def __init__(self, api: DockerApi, host_id: str) -> None:
        self._api = api
        self._host_id = host_id
        self._faults: dict[str, str] = {}  # id of an image, whose content never changes → why it is refused, or ""

    async def check(self, container: str) -> None:
        """Raise HostileImage if the image of a container gives groups of the host other numbers."""
        image = (await self._api.get(f"/containers/{container}/json"))["Image"]
        if image not in self._faults:
            if len(self._faults) >= IMAGES_MAX:
                self._faults.clear()
            self._faults[image] = await self._fault(image)
        if self._faults[image]:
            raise HostileImage(self._faults[image])

    async def _fault(self, image: str) -> str:
        """Read the file from a container that never starts, and mounts nothing over it."""
        name = f"corral-{self._host_id[:8]}-groups-{image.rpartition(':')[2][:32]}"
        await self._remove(name)  # one that a killed agent has left
        body = {"Image": image, "Cmd": ["none"], "Labels": {LABEL_HOST: self._host_id}, "HostConfig": {"NetworkMode": "none"}}
        try:
            await self._api.post("/containers/create", body, name=name)
            return fault_of_archive(await self._archive(name))
        finally:
            await self._remove(name)

    async def _archive(self, container: str) -> bytes:
        """Return the group file as a tar archive. Return an empty archive if the image has none."""
        found = bytearray()
        try:
            async with self._api.stream("GET", f"/containers/{container}/archive", path=GROUP_FILE) as parts:
                async for part in parts:
                    found += part
                    if len(found) > FILE_MAX_BYTES:
                        raise HostileImage(f"{GROUP_FILE} of the image is longer than {FILE_MAX_BYTES} bytes")
        except EngineError as error:
            if error.status != 404:
                raise
        return bytes(found)

    async def _remove(self, name: str) -> None:
        try:
            await self._api.delete(f"/containers/{name}", force=True, v=True)
        except EngineError as error:
            if error.status not in (404, 409):
                raise


def fault_of_archive(archive: bytes) -> str:
    """Return why a container with this group file, as a tar archive, must not run as an account. Return "" if it may."""
    import tarfile  # imported here to save memory, because most agents never read such an archive

    if not archive:
        return ""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            [member] = files.getmembers()
            content = files.extractfile(member) if member.isreg() else None
            data = content.read() if content is not None else None
    except (tarfile.TarError, ValueError):
        data = None
    if data is None:
        return f"{GROUP_FILE} of the image is not a file"
    for line in re.split(rb"[\r\n]", data):
        name = line.split(b":")[0].strip()
        if NUMBER.fullmatch(name):
            return f"{GROUP_FILE} of the image has a group with the name {name[:20].decode()}, which could mean another group"
    return ""
