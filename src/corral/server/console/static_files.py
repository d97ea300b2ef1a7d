"""The files of the page: `corral/console/` of the package."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

import corral
from corral import aws
from corral.core.errors import api_error

FOLDER = Path(corral.__file__).with_name("console")
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")

PageNotFound = api_error("NotFound", 404)


class StaticFile(Struct, frozen=True):
    changed_ns: int
    type: str
    content: bytes
    zipped: bytes
    tag: str


class StaticFiles:
    """The files in memory. A file is read when it is first requested, and again when it has changed."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, StaticFile] = {}

    def response(self, name: str, headers: Mapping[str, str]) -> aws.Response:
        file = self._file(name)
        about = [("ETag", file.tag), ("Cache-Control", "no-cache"), ("Vary", "Accept-Encoding")]
        if headers.get("if-none-match") == file.tag:
            return aws.Response(304, about, b"")
        about.append(("Content-Type", file.type))
        if "gzip" in headers.get("accept-encoding", ""):
            return aws.Response(200, [*about, ("Content-Encoding", "gzip")], file.zipped)
        return aws.Response(200, about, file.content)

    def _file(self, name: str) -> StaticFile:
        path = self._folder / name
        type_ = TYPES.get(path.suffix)
        try:
            if NAME.fullmatch(name) is None or type_ is None:
                raise FileNotFoundError
            changed_ns = path.stat().st_mtime_ns
            known = self._files.get(name)
            if known is None or known.changed_ns != changed_ns:
                content = path.read_bytes()
                tag = f'"{sha256(content).hexdigest()[:20]}"'
                known = self._files[name] = StaticFile(changed_ns, type_, content, gzip.compress(content, mtime=0), tag)
        except OSError:
            raise PageNotFound("The console has no such file.") from None
        return known
