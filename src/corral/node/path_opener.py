"""Open paths as a Unix account: a program that the agent starts as root for each container with host paths.

It gives up all rights of root first. Then it opens each path, and sends the descriptor to the agent over a socket, one message for
each path. What the kernel refuses to the account is not opened. A descriptor stays what it is, also if somebody replaces the path
by a link later. Arguments: the uid, the gid, the number of the socket, and the paths.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys


def main(uid: int, gid: int, number: int, paths: list[str]) -> None:
    os.setgroups([])  # a container has no other groups
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    answers = socket.socket(fileno=number)
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            answers.send(json.dumps({"error": _text(error)}).encode())
            continue
        here, is_folder = f"/proc/self/fd/{opened}", stat.S_ISDIR(os.fstat(opened).st_mode)
        if os.access(here, os.R_OK | (os.X_OK if is_folder else 0)):
            about = {"folder": is_folder, "writable": os.access(here, os.W_OK)}
            socket.send_fds(answers, [json.dumps(about).encode()], [opened])
        else:
            answers.send(json.dumps({"error": "Permission denied"}).encode())
        os.close(opened)


def _text(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
