"""Parses a form upload (multipart/form-data) of a browser. The fields are stored in memory, and the file is streamed.

Corral does not use a multipart library, because S3 uses only a small part of the format. The fields are first and have a total size
limit. One file follows, and everything after the file is ignored. A library does not enforce these rules.
"""

from __future__ import annotations

import re

from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError

FIELDS_MAX_BYTES = 20 * 1024  # S3's limit for everything before the file
PART_HEAD_MAX_BYTES = 4096
BOUNDARY = re.compile(r"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))\s*(?:;.*)?""", re.I)
NAME = re.compile(r"""(?:^|;)\s*name=(?:"((?:[^"\\]|\\.)*)"|([^\s;]+))""", re.I)
FILENAME = re.compile(r"""(?:^|;)\s*filename=(?:"((?:[^"\\]|\\.)*)"|([^\s;]*))""", re.I)
FILE = "file"


class FormUpload:
    """A parser for the body of a form upload.

    `feed` returns the bytes of the file. When `has_file` is True, `fields` is complete.
    """

    def __init__(self, content_type: str) -> None:
        found = BOUNDARY.fullmatch(content_type)
        if found is None:
            message = "Bucket POST must be of the enclosure-type multipart/form-data"
            raise error_class("PreconditionFailed", 412)(message)
        self.fields: dict[str, str] = {}  # name in lower case -> value
        self.has_file = False
        self.filename = ""
        self._delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
        self._buffer = b"\r\n"  # the other delimiters follow a line break, so add one before the first delimiter
        self._before_file = 0
        self._file_ended = False

    def feed(self, data: bytes) -> bytes:
        """Parse the next bytes of the body. Return those bytes that belong to the file."""
        if self._file_ended:
            return b""
        self._buffer += data
        if not self.has_file:
            self._before_file += len(data)
            while not self.has_file and self._take_part():
                pass
            if self.has_file:
                self._before_file -= len(self._buffer)  # the rest of the buffer belongs to the file
            if self._before_file > FIELDS_MAX_BYTES:
                raise error_class("MaxPostPreDataLengthExceededError", 400)(
                    "Your POST request fields preceding the upload file were too large."
                )
            if not self.has_file:
                return b""
        return self._take_file()

    def finish(self) -> dict[str, str]:
        """Raise an ApiError if the file is not complete. Call this when the body has ended. Return no trailers: a form has none."""
        if not self.has_file:
            raise _no_file()
        if not self._file_ended:
            raise _malformed()
        return {}

    def _take_part(self) -> bool:
        """Parse one field, or the headers of the file, from the buffer.

        Return False if the buffer does not contain all of it yet.
        """
        at = self._buffer.find(self._delimiter)
        if at < 0:
            return False
        start = at + len(self._delimiter)
        if self._buffer.startswith(b"--", start):
            raise _no_file()
        head_end = self._buffer.find(b"\r\n\r\n", start)
        if head_end < 0:
            if len(self._buffer) - start > PART_HEAD_MAX_BYTES:
                raise _malformed()
            return False
        name, is_file = self._read_head(self._buffer[start:head_end])
        if is_file:
            self.has_file = True
            self._buffer = self._buffer[head_end + 4 :]
            return True
        value_end = self._buffer.find(self._delimiter, head_end + 4)
        if value_end < 0:
            return False
        value = self._buffer[head_end + 4 : value_end]
        try:
            self.fields[name.lower()] = value.decode("utf-8")
        except UnicodeDecodeError:
            raise _malformed() from None
        self._buffer = self._buffer[value_end:]
        return True

    def _read_head(self, head: bytes) -> tuple[str, bool]:
        lines = (line.partition(":") for line in head.decode("utf-8", "replace").split("\r\n"))
        headers = {name.strip().lower(): value.strip() for name, _, value in lines}
        disposition = headers.get("content-disposition", "")
        named = NAME.search(disposition)
        if not disposition.lower().startswith("form-data") or named is None:
            raise _malformed()
        name = _unquoted(named)
        if name.lower() != FILE:
            return name, False
        filename = FILENAME.search(disposition)
        self.filename = re.split(r"[/\\]", _unquoted(filename))[-1] if filename is not None else ""
        return name, True

    def _take_file(self) -> bytes:
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            self._file_ended = True
            payload, self._buffer = self._buffer[:at], b""
            return payload
        keep = min(len(self._buffer), len(self._delimiter) - 1)  # these bytes may be the start of a delimiter
        payload, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        return payload


def _unquoted(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[2]
    return re.sub(r'\\(["\\])', r"\1", found[1]).replace("%22", '"')


def _malformed() -> ApiError:
    return error_class("MalformedPOSTRequest", 400)("The body of your POST request is not well-formed multipart/form-data.")


def _no_file() -> ApiError:
    return error_class("IncorrectNumberOfFilesInPostRequest", 400)("POST requires exactly one file upload per request.")
