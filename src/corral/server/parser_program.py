"""The program of a parser process (`parser_processes.py`): parses the bodies of requests, one after the other.

    python -m corral.server.parser_program SOCKET

It ends when the server closes the socket, so it also ends when the server is killed.
"""

from __future__ import annotations

import marshal
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

from corral.aws.http import Request
from corral.aws.recognition import ApiCall, codecs_of
from corral.aws.wire_errors import ParseError, to_api_error
from corral.core.errors import ApiError
from corral.model.json_documents import FAULT, json_fault

LENGTH = struct.Struct(">Q")
VERSION = 2  # the version of the format: later ones look for equal objects, which takes time
MEMORY_MAX_BYTES = 2 * 1024**3
# While the server reads a part of the result, its other threads wait. So the elements of long lists are sent in pieces.
PIECE_ELEMENTS = 100
ELEMENTS_MAX = 10_000  # no operation of AWS accepts more elements in one list or map
VALUES_MAX = 400_000
JSON_MEMBERS = {("lambda", "Invoke"): "Payload"}  # operation → the member of bytes that must be JSON, which is checked here, too
TOO_LARGE = "Parsing the request takes too much memory: send a smaller request."


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    with socket.socket(fileno=int(sys.argv[1])) as server:
        while (job := receive(server)) is not None and (body := receive(server)) is not None:
            codecs, located, head = marshal.loads(job)
            for part in answer(codecs, located, head, bytes(body)):
                send(server, marshal.dumps(part, VERSION))


def answer(
    codecs: tuple[str, str, str, str], located: dict[str, str], head: tuple[str, str, str, dict[str, str]], body: bytes
) -> Iterator[Any]:
    """Parse a request. Yield its parameters without their long lists and the number of pieces, and then the pieces of these lists.

    A piece has the path of its list and some elements. If the request is not valid, yield only its error.
    """
    service, operation, protocol, _ = codecs
    call = ApiCall(service, operation, protocol, Request(*head, body), located, codecs_of(*codecs))
    try:
        params = call.params()
        check_count(params)
    except MemoryError:
        yield ("RequestEntityTooLarge", 413, TOO_LARGE, {}), None
        return
    except ParseError as error:
        refused = to_api_error(error, service, protocol)
        yield (refused.code, refused.status, refused.message, {}), None
        return
    except ApiError as error:
        yield (error.code, error.status, error.message, error.members), None
        return
    if document := params.get(JSON_MEMBERS.get((service, operation), "")):
        params[FAULT] = json_fault(document)
    pieces = list(_taken_out(params, ()))
    yield params, len(pieces)
    yield from pieces


def _taken_out(structure: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    for name, value in structure.items():
        if value.__class__ is dict:
            yield from _taken_out(value, (*path, name))
        elif value.__class__ is list and len(value) > PIECE_ELEMENTS:
            structure[name] = []
            for at in range(0, len(value), PIECE_ELEMENTS):
                yield (*path, name), value[at : at + PIECE_ELEMENTS]


def check_count(params: Any) -> None:
    count, waiting = 0, [params]
    while waiting:
        value = waiting.pop()
        if value.__class__ is not dict and value.__class__ is not list:
            continue
        if len(value) > ELEMENTS_MAX:
            raise ParseError.syntax(f"a list or map has {len(value)} elements: the maximum is {ELEMENTS_MAX}")
        count += len(value)
        if count > VALUES_MAX:
            raise ParseError.syntax(f"the request has more than {VALUES_MAX} values")
        waiting += value.values() if value.__class__ is dict else value


def send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(LENGTH.pack(len(message)))
    connection.sendall(message)


def receive(connection: socket.socket) -> bytearray | None:
    """Return the next message, or None if the other process has closed the connection."""
    head = _exactly(connection, LENGTH.size)
    return _exactly(connection, LENGTH.unpack(head)[0]) if head is not None else None


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    buffer = bytearray(size)
    view, at = memoryview(buffer), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            return None
        at += count
    return buffer


if __name__ == "__main__":
    main()
