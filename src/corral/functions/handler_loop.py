"""Loads the code of a Lambda function, and runs its handler for each event that arrives on a socket.

A message is four bytes with the length of its content, followed by the content. For each invocation, the server sends two messages:
a request as JSON, and the event. The process responds with two messages: a description of the invocation as JSON, and the result.
Before its first response, the process sends one more message as JSON: the time that it took to load the code, or `{}` if the code
cannot be loaded. Standard output and standard error go to the server, which writes them to the log of the function.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable
from socket import socket
from typing import Any

LENGTH = struct.Struct(">I")
NEW_LINE = "\r"  # separates the lines of one record, so that the server writes the record as one log event
STARTED_S = time.monotonic()

Handler = Callable[[Any, Any], Any]


class MobileIdentity:
    """The member `identity` of the context. Its fields are None, because only mobile applications send an identity."""

    cognito_identity_id = None
    cognito_identity_pool_id = None


class Context:
    """The second argument of a handler."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.aws_request_id: str = request["id"]
        self.invoked_function_arn: str = request["arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.client_context = request.get("client_context")
        self.identity = MobileIdentity()
        self._deadline_s = time.monotonic() + request["timeout_s"]

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._deadline_s - time.monotonic()) * 1000))

    def log(self, message: str) -> None:
        sys.stdout.write(str(message))


class RecordFormat(logging.Formatter):
    """The format of log records: level, time, request id and message."""

    request_id = ""

    def format(self, record: logging.LogRecord) -> str:
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        text = f"[{record.levelname}]\t{at}\t{self.request_id}\t{record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.replace("\n", NEW_LINE)


class LoadFailed(Exception):
    """The handler cannot be loaded, or its event or result is not valid JSON. `type_` is the error type that AWS reports."""

    def __init__(self, type_: str, message: str, trace: list[str] | None = None) -> None:
        super().__init__(message)
        self.type = type_
        self.trace = trace or []


def serve(channel: int, folder: str, name: str) -> None:
    """Run the handler for each request, until the server closes the socket or the code cannot be loaded."""
    os.set_inheritable(channel, False)
    connection = socket(fileno=channel)
    os.setsid()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        # A line is sent at once, so that it is not lost if the process is killed.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    formats = RecordFormat()
    output = logging.StreamHandler(sys.stdout)
    output.setFormatter(formats)
    logging.getLogger().addHandler(output)
    sys.path.insert(0, folder)
    handler: Handler | None = None
    while (message := _read(connection)) is not None:
        request, event = json.loads(message), _read(connection)
        formats.request_id = request["id"]
        about: dict[str, Any] = {}
        began_s = time.monotonic()
        try:
            if handler is None:
                handler = _load(name)
                _write(connection, json.dumps({"init_ms": (time.monotonic() - STARTED_S) * 1000}).encode())
                began_s = time.monotonic()
            result = _run(handler, event or b"", Context(request))
        except BaseException as error:
            about["error"] = True
            if handler is None:
                _write(connection, b"{}")
            result = _failure(error, request["id"])
        about["duration_ms"] = (time.monotonic() - began_s) * 1000
        about["max_memory_mib"] = -(-resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        sys.stdout.flush()
        sys.stderr.flush()
        _write(connection, json.dumps(about).encode())
        _write(connection, result)
        if handler is None:
            return


def _load(name: str) -> Handler:
    """Return the handler `module.function`. The folders in the path of the module can be separated by slashes or dots."""
    module_name, _, function = name.rpartition(".")
    if not module_name:
        raise LoadFailed("Runtime.MalformedHandlerName", f"Bad handler '{name}': not enough values to unpack (expected 2, got 1)")
    try:
        module = importlib.import_module(module_name.replace("/", "."))
    except ImportError as error:
        message = f"Unable to import module '{module_name}': {error}"
        raise LoadFailed("Runtime.ImportModuleError", message, _trace(error)) from error
    except SyntaxError as error:
        message = f"Syntax error in module '{module_name}': {error}"
        raise LoadFailed("Runtime.UserCodeSyntaxError", message, _trace(error)) from error
    found: Handler | None = getattr(module, function, None)
    if found is None:
        raise LoadFailed("Runtime.HandlerNotFound", f"Handler '{function}' missing on module '{module_name}'")
    return found


def _run(handler: Handler, event: bytes, context: Context) -> bytes:
    try:
        given = json.loads(event) if event else {}
    except ValueError as error:
        raise LoadFailed("Runtime.UnmarshalError", f"Unable to unmarshal input: {error}") from error
    result = handler(given, context)
    try:
        return json.dumps(result).encode()
    except (TypeError, ValueError) as error:
        raise LoadFailed("Runtime.MarshalError", f"Unable to marshal response: {error}") from error


def _failure(error: BaseException, request_id: str) -> bytes:
    """Print an error to the log, and return it as the result of the invocation."""
    type_, trace = (error.type, error.trace) if isinstance(error, LoadFailed) else (type(error).__name__, _trace(error))
    text = f"[ERROR] {type_}: {error}\nTraceback (most recent call last):\n{''.join(trace)}".rstrip("\n")
    print(text.replace("\n", NEW_LINE))
    return json.dumps({"errorMessage": str(error), "errorType": type_, "requestId": request_id, "stackTrace": trace}).encode()


def _trace(error: BaseException) -> list[str]:
    """Return the formatted frames of an exception, without the frames of this file and of importlib."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    return traceback.format_list(own)


def _read(connection: socket) -> bytes | None:
    """Read one message. Return None at the end of the connection."""
    head = _read_exactly(connection, LENGTH.size)
    return _read_exactly(connection, LENGTH.unpack(head)[0]) if head is not None else None


def _read_exactly(connection: socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(connection: socket, message: bytes) -> None:
    connection.sendall(LENGTH.pack(len(message)) + message)
