"""The files of the page: `corral/console/` of the package.

The page names its files with a version, which changes with the content of any file: `/static/VERSION/app.js`. So browsers keep the
files, and request only the page when it is opened again. `/static/app.js` is the same file, but browsers check it for each page.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

import corral
from corral import aws
from corral.core.errors import ApiError, api_error

FOLDER = Path(corral.__file__).with_name("console")
INDEX = "index.html"
STATIC = b'"/static/'  # how the page names its files
KEPT, CHECKED = "public, max-age=31536000, immutable", "no-cache"
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
    digest: str


class StaticFiles:
    """The files in memory. A file is read when it is first requested, and again when it has changed."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, StaticFile] = {}
        self._version = ""

    def page(self, headers: Mapping[str, str]) -> aws.Response:
        self._version = self._current_version()
        page = self._file(INDEX)
        content = page.content.replace(STATIC, STATIC + self._version.encode() + b"/")
        return _response(StaticFile(page.changed_ns, page.type, content, _digest(content)), CHECKED, headers)

    def response(self, name: str, headers: Mapping[str, str]) -> aws.Response:
        version, _, name = name.rpartition("/")
        if not version:
            return _response(self._file(name), CHECKED, headers)
        self._version = self._version or self._current_version()  # of a page that a server has sent before a restart
        if version != self._version:
            raise _not_found()
        return _response(self._file(name), KEPT, headers)

    def _current_version(self) -> str:
        names = sorted(path.name for path in self._folder.iterdir() if path.suffix in TYPES)
        return _digest("".join(self._file(name).digest for name in names).encode())

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
                known = self._files[name] = StaticFile(changed_ns, type_, content, _digest(content))
        except OSError:
            raise _not_found() from None
        return known


def _response(file: StaticFile, kept: str, headers: Mapping[str, str]) -> aws.Response:
    tag = f'"{file.digest}"'
    about = [("ETag", tag), ("Cache-Control", kept), ("Vary", "Accept-Encoding")]
    if headers.get("if-none-match") == tag:
        return aws.Response(304, about, b"")
    about.append(("Content-Type", file.type))
    if "gzip" in headers.get("accept-encoding", ""):
        return aws.Response(200, [*about, ("Content-Encoding", "gzip")], _zipped(file.content))
    return aws.Response(200, about, file.content)


@cache
def _zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:20]


def _not_found() -> ApiError:
    return PageNotFound("The console has no such file.")
