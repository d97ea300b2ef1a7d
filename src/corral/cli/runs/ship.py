"""`corral run --ship` sends the folder of a run to the server. The host of the run fetches it (`node/shipped_folder.py`).

Files are cut into chunks. Each chunk is an object of a private bucket, and its key is the SHA-256 of its content. So a chunk that
is stored already is not sent again. A manifest, which is stored in the same way, lists the files and their chunks.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import click

from corral.cli.client.data_folder import DataFolder
from corral.cli.client.endpoint import Endpoint, client
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message, server_time
from corral.cli.runs.ship_files import ShippedFiles, shipped_files

BUCKET = "corral-shipped-folders"  # the server knows this name: model/shipped_folder.py
CHUNK_BYTES = 8 * 1024 * 1024
SENDERS = 4
PROGRESS_BYTES = 16 * 1024 * 1024  # a progress bar shows longer transfers
FIRST_REGION = "us-east-1"
DELETED_AT_ONCE = 1000
MIB = 1024 * 1024


class Shipped(NamedTuple):
    """What happened with the folder of a run."""

    manifest: str  # the key of its manifest; empty: the folder is shared, and nothing was sent
    text: str  # for the tag of the run


class _Chunk(NamedTuple):
    path: Path | None  # None: the content is `content`
    offset: int
    size: int
    content: bytes = b""

    def read(self) -> bytes:
        if self.path is None:
            return self.content
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def ship(endpoint: Endpoint, data: DataFolder, folder: Path) -> Shipped:
    """Send a folder, or find that all hosts share it. Print what happened."""
    settings = _settings(data)
    for shared in settings["shared-folders.paths"]:
        if f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(shared)}/"):
            print_message(f"{folder} is in the shared folder {shared}: nothing was sent")
            return Shipped("", "shared")
    files = shipped_files(folder)
    chunks, entries = _chunks(folder, files, int(settings["ship.folder_mib"]))
    size = sum(chunk.size for chunk in chunks.values())
    document = {"version": 1, "files": entries, "links": files.links}
    manifest = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 6)
    key = sha256(manifest).hexdigest()
    chunks[key] = _Chunk(None, 0, len(manifest), manifest)
    sent = _Store(endpoint, settings).send(chunks)
    print_message(f"sent {_megabytes(sent)} of the folder {folder}, which has {len(files.files):,} files with {_megabytes(size)}")
    print_message("the run works in a copy, which is deleted at its end: let it write its results to S3 or to a shared folder")
    return Shipped(key, f"sent {key[:12]} with {_megabytes(size)}")


def _settings(data: DataFolder) -> dict[str, Any]:
    from corral.configuration.file import ConfigurationError, read_file

    try:
        return read_file(data.path).values()
    except ConfigurationError as error:
        raise CliError(str(error)) from None


def _chunks(folder: Path, files: ShippedFiles, folder_mib: int) -> tuple[dict[str, _Chunk], list[Any]]:
    """Return the chunks of all files by their keys, and the entries of the manifest: [path, mode, [[key, size], …]]."""
    chunks, entries, total = dict[str, _Chunk](), list[Any](), 0
    for name, mode in files.files:
        of_file = list[tuple[str, int]]()
        for key, chunk in _chunks_of(folder / name):
            chunks.setdefault(key, chunk)
            of_file.append((key, chunk.size))
            total += chunk.size
        if total > folder_mib * MIB:
            raise CliError(
                f"{folder} has more than {folder_mib} MiB: add large files to .gitignore and keep them in S3 or a shared folder, "
                "or raise the limit with `corral config set ship.folder_mib`."
            )
        entries.append([name, mode, of_file])
    return chunks, entries


def _chunks_of(path: Path) -> Iterator[tuple[str, _Chunk]]:
    try:
        with open(path, "rb") as file:
            offset = 0
            while content := file.read(CHUNK_BYTES):
                yield sha256(content).hexdigest(), _Chunk(path, offset, len(content))
                offset += len(content)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}. Add it to .gitignore, if the run does not need it.") from None


class _Store:
    """The bucket with the chunks."""

    def __init__(self, endpoint: Endpoint, settings: dict[str, Any]) -> None:
        self._s3 = client(endpoint, "s3")
        self._now = datetime.min.replace(tzinfo=UTC)  # the time of the server
        self._days, self._total = int(settings["ship.days"]), int(settings["ship.total_mib"]) * MIB

    def send(self, chunks: dict[str, _Chunk]) -> int:
        """Send the chunks that are not stored, or that are deleted soon. Return the number of bytes that were sent."""
        stored = self._stored()
        lasting = timedelta(days=self._days / 2)
        missing = {key: chunk for key, chunk in chunks.items() if key not in stored or stored[key][0] + lasting < self._now}
        total = sum(chunk.size for chunk in missing.values())
        self._make_room(stored, total, chunks)
        with ThreadPoolExecutor(SENDERS) as senders:
            done = senders.map(lambda item: self._send_one(*item), missing.items())
            for _ in _with_progress(done, total):
                pass
        return total

    def _stored(self) -> dict[str, tuple[datetime, int]]:
        """Return when each stored chunk was sent, and its size. Only the root user may list them: others send all chunks."""
        from botocore.exceptions import ClientError

        lifecycle = {"Rules": [{"ID": "age", "Status": "Enabled", "Filter": {}, "Expiration": {"Days": max(1, self._days)}}]}
        try:
            self._create_bucket()
            reply = self._s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration=lifecycle)
            self._now = server_time(reply) or self._now
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            return {each["Key"]: (each["LastModified"], each["Size"]) for page in pages for each in page.get("Contents", ())}
        except ClientError as error:
            if error.response["Error"]["Code"] == "AccessDenied":
                return {}
            raise

    def _create_bucket(self) -> None:
        region = self._s3.meta.region_name
        elsewhere = {} if region == FIRST_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            self._s3.create_bucket(Bucket=BUCKET, **elsewhere)
        except self._s3.exceptions.BucketAlreadyOwnedByYou:
            return

    def _make_room(self, stored: dict[str, tuple[datetime, int]], more: int, needed: Iterable[str]) -> None:
        """Delete the oldest chunks of other folders, if all chunks would have more than `ship.total_mib`."""
        total = sum(size for _, size in stored.values()) + more
        deleted = list[str]()
        for key in sorted(stored.keys() - set(needed), key=lambda key: stored[key]):
            if total <= self._total:
                break
            deleted.append(key)
            total -= stored[key][1]
        if total > self._total:
            raise CliError(
                f"all shipped folders may have {self._total // MIB} MiB together: raise the limit with "
                "`corral config set ship.total_mib`."
            )
        for at in range(0, len(deleted), DELETED_AT_ONCE):
            part = [{"Key": key} for key in deleted[at : at + DELETED_AT_ONCE]]
            self._s3.delete_objects(Bucket=BUCKET, Delete={"Objects": part, "Quiet": True})

    def _send_one(self, key: str, chunk: _Chunk) -> int:
        content = chunk.read()
        if sha256(content).hexdigest() != key:
            raise CliError(f"{chunk.path} was changed while it was sent: run the command again.")
        digest = b64encode(bytes.fromhex(key)).decode()  # the server compares it with the key and with the content
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=content, ChecksumSHA256=digest)
        return chunk.size


def _with_progress(sizes: Iterator[int], total: int) -> Iterator[int]:
    if total < PROGRESS_BYTES or not sys.stderr.isatty():
        yield from sizes
        return
    with click.progressbar(length=total, label="sending the folder", file=sys.stderr) as bar:
        for size in sizes:
            bar.update(size)
            yield size


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
