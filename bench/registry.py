"""The image registry: a large layer pushed and pulled, compared with `cp`, fsync and SHA-256; and by Docker's own command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from hashlib import file_digest, sha256
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import machine
from client import Caller, Unanswered
from local import Local, corral
from objects import Peak
from rows import Bench, Row

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from engines.dockerd import Dockerd, why_not

MIB = 1024 * 1024
PIECE = os.urandom(MIB)
NAME = "bench/app"


def rows(bench: Bench) -> list[Row]:
    mib, times = bench.size(256, 64), bench.size(5, 2)
    with corral(bench, "registry", "none") as local:
        before = machine.rss_mb(local.pids["server"])
        raw = Raw(local)
        with Peak(local.pids["server"]) as seen:
            figures = [raw.push_and_pull(mib, number) for number in range(times)]
        pushed, pulled = (mib / median(took) for took in zip(*figures))
        docker = _docker_rows(bench, local, raw.password)
    floors = [_copy(bench, mib) for _ in range(times)]
    durable, cached = (mib / median(took) for took in zip(*floors))
    note, what = "budget: half of it", f"of a layer of {mib} MiB"
    return [
        Row(f"registry: push {what}", pushed, "MiB/s", durable, "cp, fsync, SHA-256", 0.5 * durable, note),
        Row(f"registry: pull {what}", pulled, "MiB/s", cached, "cp", 0.5 * cached, note),
        Row("registry: growth of the server's memory meanwhile", max(seen) - before, "MB", budget=64.0),
        *docker,
    ]


class Raw:
    """Sends what Docker sends: a stream in chunks, then the digest."""

    def __init__(self, local: Local) -> None:
        call = Caller(local.port)
        call("ecr", "CreateRepository", repositoryName=NAME)
        token = call("ecr", "GetAuthorizationToken")["authorizationData"][0]["authorizationToken"]
        call.close()
        self.password = b64decode(token).decode().partition(":")[2]
        self._headers = {"Authorization": f"Basic {token}"}
        self._connection = HTTPConnection("127.0.0.1", local.port)
        self._buffer = bytearray(4 * MIB)

    def push_and_pull(self, mib: int, number: int) -> tuple[float, float]:
        """Seconds of each, for bytes that were not there before."""
        mark = str(number).encode()
        digest = sha256(mark)
        for _ in range(mib):
            digest.update(PIECE)
        name, began = f"sha256:{digest.hexdigest()}", time.perf_counter()
        place = self._ask("POST", f"/v2/{NAME}/blobs/uploads/")
        place = self._ask("PATCH", place, _pieces(mark, mib))
        place = self._ask("PUT", f"{place}?digest={name}")
        push_s, began = time.perf_counter() - began, time.perf_counter()
        self._connection.request("GET", place, headers=self._headers)
        answer, size = self._connection.getresponse(), 0
        while count := answer.readinto(self._buffer):
            size += count
        if size != mib * MIB + len(mark):
            raise Unanswered(f"{size} bytes came, not {mib} MiB")
        return push_s, time.perf_counter() - began

    def _ask(self, method: str, path: str, body: Iterator[bytes] | None = None) -> str:
        """Where it goes on."""
        headers = self._headers | ({"Transfer-Encoding": "chunked"} if body is not None else {})
        self._connection.request(method, path, body, headers, encode_chunked=body is not None)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in (201, 202):
            raise Unanswered(f"{method} {path}: {answer.status} {text[:300]!r}")
        return answer.headers["Location"]


def _pieces(mark: bytes, mib: int) -> Iterator[bytes]:
    yield mark
    for _ in range(mib):
        yield PIECE


def _docker_rows(bench: Bench, local: Local, password: str) -> list[Row]:
    """With the time that the engine takes to pack and unpack the layer."""
    if why_not():
        return []
    mib, dockerd = bench.size(128, 16), Dockerd()
    try:
        image = f"localhost:{local.port}/{NAME}:1"
        dockerd.make_image(image, {"bytes": PIECE * mib}, {})
        config = ["--config", str(bench.fresh("docker"))]
        dockerd(*config, "login", "-u", "AWS", "--password-stdin", f"localhost:{local.port}", data=password.encode())
        push_s = _timed(dockerd, *config, "push", image)
        dockerd("rmi", image)
        pull_s = _timed(dockerd, *config, "pull", image)
    finally:
        dockerd.close()
    took = {"push": (push_s, "most of it: the engine packs the layer"), "pull": (pull_s, "and unpacks it")}
    return [Row(f"docker {what} of {mib} MiB", mib / took_s, "MiB/s", note=note) for what, (took_s, note) in took.items()]


def _timed(dockerd: Dockerd, *arguments: str) -> float:
    began = time.perf_counter()
    dockerd(*arguments)
    return time.perf_counter() - began


def _copy(bench: Bench, mib: int) -> tuple[float, float]:
    """Seconds to copy a file and have it durable with its digest known, and seconds to copy it."""
    folder = bench.fresh("copies")
    source, target = folder / "source", folder / "target"
    source.write_bytes(PIECE * mib)
    began = time.perf_counter()
    subprocess.run(["cp", source, target], check=True)
    copied_s = time.perf_counter() - began
    with open(target, "rb") as file:
        os.fsync(file.fileno())
        file_digest(file, "sha256")
    durable_s = time.perf_counter() - began
    for path in (source, target):
        path.unlink()
    return durable_s, copied_s
