"""`empty_app.py BYTES FD`: uvicorn with an application that only answers; its port goes to FD. It runs in `.peers`."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import uvicorn
import uvloop

BODY = b"x" * int(sys.argv[1])
HEADERS = [(b"content-type", b"application/x-amz-json-1.1"), (b"content-length", str(len(BODY)).encode())]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    config = uvicorn.Config(
        app, loop="none", http="httptools", ws="none", lifespan="off", interface="asgi3", access_log=False, log_config=None,
        server_header=False,
    )  # fmt: skip
    os.write(int(sys.argv[2]), f"{listener.getsockname()[1]}\n".encode())
    os.close(int(sys.argv[2]))
    uvloop.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
