"""The program that puts the folder of `corral run --ship` into the working directory of a run, and becomes the user's command.

Its arguments are CACHE MANIFEST COMMAND…, and its working directory is empty (`FETCH_FOLDER` in `node/process_engine.py`). It
fetches the chunks of the folder from the server, with the token of the task, as far as the cache of this host lacks them. It writes
the folder only when all chunks are in the cache. If it fails, it leaves no part of the folder, prints the reason, and exits with
CANNOT_START.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from corral.core.clock import WallClock
from corral.model.shipped_folder import PATH

CANNOT_START = 125
NOT_EXECUTABLE, NOT_FOUND = 126, 127
FETCHERS = 4
ATTEMPTS, RETRY_S, TIMEOUT_S = 5, 1.0, 60.0
CACHE_MAX_BYTES = 20 * 1024**3
CACHE_MAX_AGE_S = 30 * 86_400.0
USED_S = 3600.0  # a chunk that a run has used in this time is not deleted
MANIFEST_MAX_BYTES = 512 * 1024**2


class CannotShip(Exception):
    """The folder cannot be fetched or written."""


class Server:
    """The server, as the variables of the task describe it."""

    def __init__(self, environment: dict[str, str]) -> None:
        url = urlsplit(environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"])
        self._address = url.hostname or "", url.port or 80
        self._path = f"{PATH}{url.path.rpartition('/')[2]}/"
        self._token = environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
        self._of_thread = threading.local()  # its open connection

    def fetch(self, key: str) -> bytes:
        """Return an object. Raise CannotShip if it does not exist, or if the server cannot be reached for some time."""
        for attempt in range(1, ATTEMPTS + 1):
            connection = self._connection()
            try:
                connection.request("GET", self._path + key, headers={"authorization": self._token})
                response = connection.getresponse()
                content = response.read()
                if response.status == 200 and sha256(content).hexdigest() == key:
                    return content
                if response.status < 500 and response.status != 200:
                    raise CannotShip(json.loads(content)["message"])
                why = f"HTTP {response.status}" if response.status != 200 else "a part of the folder has arrived damaged"
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                why = str(error) or type(error).__name__
            connection.close()  # the next request opens it again
            if attempt < ATTEMPTS:
                time.sleep(RETRY_S)
        raise CannotShip(f"the server does not send the folder: {why}")

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        return connection


class Cache:
    """The chunks on this host: files with the names of their keys. All runs of the host use them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        return self._folder / key

    def fill(self, server: Server, sizes: dict[str, int]) -> None:
        """Fetch the chunks that are missing. `sizes` has the chunks and their sizes."""
        with ThreadPoolExecutor(FETCHERS) as fetchers:
            missing = [key for key, size in sizes.items() if not self._has(key, size)]
            for _ in fetchers.map(lambda key: self.put(key, server.fetch(key)), missing):
                pass

    def _has(self, key: str, size: int) -> bool:
        try:
            os.utime(self.path(key))  # from now on, no other run deletes it
            return self.path(key).stat().st_size == size
        except FileNotFoundError:
            return False

    def read(self, server: Server, key: str) -> bytes:
        """Return a chunk. Fetch it if it is missing, or damaged: a power failure can leave a file without its content."""
        with suppress(FileNotFoundError):
            content = self.path(key).read_bytes()
            if sha256(content).hexdigest() == key:
                return content
        content = server.fetch(key)
        self.put(key, content)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store a chunk. A crash leaves the whole file or none with this name."""
        fresh = self._folder / f"{key}.{os.getpid()}.new"
        try:
            fresh.write_bytes(content)
            fresh.rename(self.path(key))
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def shrink(self) -> None:
        """Delete chunks that were not used for a long time, and the oldest ones if all have too many bytes."""
        with self._locked():
            found, now_s, total = list[tuple[float, int, str]](), WallClock().now_s(), 0
            for entry in os.scandir(self._folder):
                with suppress(FileNotFoundError):
                    about = entry.stat()
                    found.append((about.st_mtime, about.st_size, entry.path))
                    total += about.st_size
            for used_s, size, path in sorted(found):
                if used_s > now_s - USED_S or (total <= CACHE_MAX_BYTES and used_s > now_s - CACHE_MAX_AGE_S):
                    break
                with suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def main(words: list[str]) -> int:
    cache, manifest, command = Cache(Path(words[0])), words[1], words[2:]
    try:
        put_folder(Server(dict(os.environ)), cache, manifest, Path.cwd())
    except (CannotShip, OSError) as error:
        print(f"corral: the shipped folder cannot be used on this host: {error}", file=sys.stderr)
        return CANNOT_START
    os.environ["PWD"] = os.getcwd()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"corral: cannot execute {command[0]}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def put_folder(server: Server, cache: Cache, manifest: str, folder: Path) -> None:
    """Write the files of a manifest into an empty folder. If that fails, the folder is empty again."""
    document = _document(server, cache, manifest)
    sizes = {key: size for _, _, chunks in document["files"] for key, size in chunks}
    cache.fill(server, sizes)
    try:
        for name, mode, chunks in document["files"]:
            _write(_inside(folder, name), mode, (cache.read(server, key) for key, _ in chunks))
        for name, target in document["links"]:  # last, so that no file is written through a link
            _inside(folder, name).symlink_to(target)
    except BaseException:
        for each in folder.iterdir():
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        raise
    cache.shrink()


def _document(server: Server, cache: Cache, manifest: str) -> dict[str, Any]:
    text = cache.read(server, manifest)
    try:
        document: dict[str, Any] = json.loads(zlib.decompressobj().decompress(text, MANIFEST_MAX_BYTES))
    except (ValueError, zlib.error):
        raise CannotShip("its list of files is damaged: start the run again") from None
    if document["version"] != 1:
        raise CannotShip("another version of Corral has sent it: install the same version on all machines")
    return document


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder, and create its folder."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise CannotShip(f"{name} is not in the folder")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write(path: Path, mode: int, chunks: Iterable[bytes]) -> None:
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
        os.fchmod(file.fileno(), 0o755 if mode & 0o100 else 0o644)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
