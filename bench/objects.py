"""S3: small and large objects put and got, compared with moto, `cp` and MD5; one of 5 GiB in bounded memory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import machine
from client import UNSIGNED, Unanswered, Wire, head, replay
from local import Local, corral
from peers import moto
from rows import Bench, Row

from corral.blobs.checksums import Checksum, checksum
from corral.model.blob import MD5

CONNECTIONS = 16
SMALL = os.urandom(1024)
LARGE_MIB, PART_MIB, HUGE_GIB = 64, 8, 5
MIB = 1024 * 1024
PIECE = os.urandom(MIB)
BUCKET = "/bench-objects"
PLAIN, HASHED = f"S3 put of {LARGE_MIB} MiB", f"S3 put of {LARGE_MIB} MiB with its SHA-256"
BOUND_BY_MD5 = (PLAIN, HASHED)  # S3 defines the ETag of such an object as its MD5, which one core computes
MD5_SHARE = 0.9  # the budget of a plain put
COPY_SHARE = 0.5


def rows(bench: Bench) -> list[Row]:
    small, large = bench.size(2_000, 200), bench.size(9, 3)
    with corral(bench, "objects", "none") as local:
        ours = _figures(local.port, small, large, lambda: _wait_for_files(local.data, small))
        huge = _huge(local, bench.size(HUGE_GIB * 1024, 256))
    with moto() as port:
        theirs = _figures(port, bench.size(600, 50), bench.size(5, 3))
    copies = _copies(bench, large)
    found = []
    for name in ours:
        unit = "/s" if "at a time" in name else "MiB/s"
        found.append(Row(name, ours[name], unit, theirs[name], "moto"))
        if unit == "MiB/s":
            copy, how = (copies["durable"], "cp and fsync") if "put" in name else (copies["cached"], "cp")
            budget = None if name in BOUND_BY_MD5 else COPY_SHARE * copy
            found.append(Row(name, ours[name], unit, copy, how, budget, "" if budget is None else f"budget: half of {how}"))
    return [*found, *_floors(ours), *huge]


def _figures(port: int, small: int, large: int, settle: Callable[[], None] = lambda: None) -> dict[str, float]:
    """`settle` waits until what was deleted is gone: each large put begins as `cp` does, with nothing else going on."""
    wire = Wire(port)
    wire.ask(head(port, "s3", "PUT", BUCKET, {}))
    keys = [f"{BUCKET}/small/{number}" for number in range(small)]
    puts = replay(port, [head(port, "s3", "PUT", key, {}, SMALL) + SMALL for key in keys], CONNECTIONS)
    gets = replay(port, [head(port, "s3", "GET", key, {}) for key in keys], CONNECTIONS)
    if gets.body_bytes != len(SMALL):
        raise Unanswered(f"{gets.body_bytes} bytes instead of {len(SMALL)}")
    body = PIECE * LARGE_MIB
    sha256 = hashlib.sha256(body).hexdigest()

    def each(put: Callable[[], float]) -> float:
        took = []
        for _ in range(large):
            wire.ask(head(port, "s3", "DELETE", path, {}))
            settle()
            took.append(put())
        return LARGE_MIB / median(took)

    path = f"{BUCKET}/large"
    plain = each(lambda: _put(port, path, UNSIGNED, [body]))
    hashed = each(lambda: _put(port, path, sha256, [body]))
    by_kms = each(lambda: _put(port, path, UNSIGNED, [body], {"x-amz-server-side-encryption": "aws:kms"}))
    parted = each(lambda: _put_in_parts(port, path, body))
    got = LARGE_MIB / median(_get(port, path, len(body)) for _ in range(large))
    wire.close()
    return {
        f"S3 put of 1 KiB, {CONNECTIONS} at a time": puts.per_s,
        f"S3 get of 1 KiB, {CONNECTIONS} at a time": gets.per_s,
        PLAIN: plain,
        HASHED: hashed,
        f"S3 put of {LARGE_MIB} MiB for aws:kms: no MD5": by_kms,
        f"S3 put of {LARGE_MIB} MiB in parts of {PART_MIB}": parted,
        f"S3 get of {LARGE_MIB} MiB": got,
    }


def _wait_for_files(data: Path, count: int) -> None:
    while sum(len(names) for _, _, names in os.walk(data / "blobs")) > count:
        time.sleep(0.01)
    time.sleep(0.1)  # the disk has work with it, too


def _put(port: int, path: str, sha256: str, pieces: list[bytes], headers: dict[str, str] | None = None) -> float:
    """Seconds from the first byte of the request to the answer."""
    wire = Wire(port)
    length = sum(map(len, pieces))
    began = time.perf_counter()
    wire.socket.sendall(head(port, "s3", "PUT", path, headers or {}, sha256=sha256, length=length))
    for piece in pieces:
        wire.socket.sendall(piece)
    while wire.receive() is None:
        pass
    took_s = time.perf_counter() - began
    wire.close()
    if wire.status != 200:
        raise Unanswered(f"PUT {path}: {wire.status}")
    return took_s


def _put_in_parts(port: int, path: str, body: bytes) -> float:
    """Seconds for an upload in parts, all of them at once, as `aws s3 cp` and boto3 send what is large."""
    whole = memoryview(body)  # slices of it copy no bytes
    parts = {number + 1: whole[at : at + PART_MIB * MIB] for number, at in enumerate(range(0, len(body), PART_MIB * MIB))}
    wire, began = Wire(port), time.perf_counter()
    started = wire.ask(head(port, "s3", "POST", f"{path}?uploads", {}))
    upload = _between(started, b"<UploadId>", b"<")
    with ThreadPoolExecutor(len(parts)) as pool:
        targets = {number: f"{path}?partNumber={number}&uploadId={upload}" for number in parts}
        etags = dict(zip(parts, pool.map(lambda number: _put_part(port, targets[number], parts[number]), parts)))
    listed = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in etags.items())
    document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    wire.ask(head(port, "s3", "POST", f"{path}?uploadId={upload}", {}, document) + document)
    wire.close()
    return time.perf_counter() - began


def _put_part(port: int, target: str, part: memoryview) -> str:
    """Its ETag."""
    wire = Wire(port)
    wire.socket.sendall(head(port, "s3", "PUT", target, {}, sha256=UNSIGNED, length=len(part)))
    wire.socket.sendall(part)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += wire.socket.recv(65536)
    wire.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise Unanswered(f"a part: {answer[:300]!r}")
    return _between(answer.replace(b"etag:", b"ETag:"), b"ETag: ", b"\r")


def _between(text: bytes, left: bytes, right: bytes) -> str:
    return text.partition(left)[2].partition(right)[0].decode()


def _get(port: int, path: str, length: int) -> float:
    """Seconds from the request to the last byte, which is thrown away like all before it."""
    wire, buffer = Wire(port), bytearray(4 * MIB)
    began = time.perf_counter()
    wire.socket.sendall(head(port, "s3", "GET", path, {}))
    first = b""
    while b"\r\n\r\n" not in first:
        first += wire.socket.recv(65536)
    if not first.startswith(b"HTTP/1.1 200"):
        raise Unanswered(f"GET {path}: {first[:300]!r}")
    left = length - len(first.partition(b"\r\n\r\n")[2])
    while left > 0:
        count = wire.socket.recv_into(buffer)
        if not count:
            raise Unanswered(f"GET {path} was cut {left} bytes before its end")
        left -= count
    took_s = time.perf_counter() - began
    wire.close()
    return took_s


def _huge(local: Local, mib: int) -> list[Row]:
    """An object of the largest size that one request may have: how fast, and what the server's memory grows by."""
    before, path = machine.rss_mb(local.pids["server"]), f"{BUCKET}/huge"
    with Peak(local.pids["server"]) as seen:
        put_s = _put(local.port, path, UNSIGNED, [PIECE] * mib)
        get_s = _get(local.port, path, mib * MIB)
    size = f"{mib / 1024:g} GiB"
    note = f"put {mib / put_s:,.0f}, get {mib / get_s:,.0f} MiB/s"
    return [Row(f"S3 put and get of {size}: growth of the server's memory", max(seen) - before, "MB", budget=64.0, note=note)]


def _floors(ours: dict[str, float]) -> list[Row]:
    """MD5 alone, which bounds every put in one piece."""
    body = PIECE * LARGE_MIB
    by_us, by_hashlib = (median(_digest_mib_s(make(), body) for _ in range(5)) for make in (lambda: checksum(MD5), hashlib.md5))
    alone, budget, note = "MD5 alone, as Corral computes it", MD5_SHARE * by_us, f"budget: {MD5_SHARE} of it"
    floors = [Row(PLAIN, ours[PLAIN], "MiB/s", by_us, alone, budget, note), Row(HASHED, ours[HASHED], "MiB/s", by_us, alone)]
    return [*floors, Row(f"MD5 of {LARGE_MIB} MiB", by_us, "MiB/s", by_hashlib, "hashlib")]


def _digest_mib_s(running: Checksum, body: bytes) -> float:
    began = time.perf_counter()
    running.update(body)
    running.digest()
    return LARGE_MIB / (time.perf_counter() - began)


class Peak:
    """Watch the memory of another process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._seen: list[float] = [machine.rss_mb(pid)]

    def __enter__(self) -> list[float]:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self._seen.append(machine.rss_mb(self._pid))


def _copies(bench: Bench, times: int) -> dict[str, float]:
    """`cp` of the same size on the same disk, in MiB/s: into the page cache, and made durable."""
    folder = bench.fresh("copies")
    source = folder / "source"
    source.write_bytes(PIECE * LARGE_MIB)
    cached = median(_timed_copy(["cp", str(source), str(folder / "to")]) for _ in range(times))
    durable = median(_timed_copy(["cp", str(source), str(folder / "to")], str(folder / "to")) for _ in range(times))
    return {"cached": LARGE_MIB / cached, "durable": LARGE_MIB / durable}


def _timed_copy(command: list[str], synced: str = "") -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    if synced:
        fd = os.open(synced, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    took_s = time.perf_counter() - began
    os.unlink(command[-1])
    return took_s
