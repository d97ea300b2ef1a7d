"""The first program of an allocation. It gets Corral from the server, unless this Python has it, and becomes the pilot.

The script of the allocation contains this text (`server/lenders/pilot_script.py`). Until it has the wheels, it imports only the
standard library, and an old Python can run it, too. It tells the server why it fails, because its output may be kept nowhere.

    python start.py --data DIR --server ADDRESS:PORT --gpus FLAG --needs GPUS --allocation HANDLE

The token is on standard input.
"""

import base64
import hashlib
import io
import json
import os
import platform
import socket
import ssl
import sys
import time
import zipfile
from typing import Any

KIND = "corral-join/1"
SERVER_NAME = "server.corral.internal"
NO_CHECK_TIME = 0x200000
NOT_YET = "does not run yet"
TOKEN_S, AGAIN_S, ANSWER_S = 600.0, 0.5, 120.0
PYTHON_MIN = (3, 11)
SAID_MAX = 2000


class Failure(Exception):
    """The pilot cannot start. The text says why, and what to do."""


class DoorClient:
    """The door of the server, whose authority must be the one that the token names."""

    def __init__(self, door: str, token: str, allocation: str) -> None:
        host, _, port = door.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        parts = token.strip().split(".")
        if len(parts) != 3:
            raise SystemExit("corral pilot: the token is not complete")
        self._request = {"signing_request": "", "token": f"{parts[0]}.{parts[1]}", "allocation": allocation}
        self._pin, self._authority = parts[2], ""
        self.version = ""

    def ask(self, **members: str) -> "tuple[dict[str, Any], bytes]":
        """Send a request. Return the answer, and the bytes that follow it."""
        if not self._authority:
            self._find_authority()
        with self._connect(self._authority) as connection, connection.makefile("rb") as lines:
            lines.readline()
            connection.sendall(json.dumps(dict(self._request, **members)).encode() + b"\n")
            answer = json.loads(lines.readline())
            return answer, lines.read(answer.get("size") or 0)

    def _find_authority(self) -> None:
        with self._connect("") as connection, connection.makefile("rb") as lines:
            offer = json.loads(lines.readline())
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(offer["authority"])).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != self._pin:
            raise SystemExit(f"corral pilot: the server at {self._address} has not created this token")
        self._authority, self.version = offer["authority"], offer["version"]

    def _connect(self, authority: str) -> ssl.SSLSocket:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.set_alpn_protocols([KIND])
        if authority:
            tls.load_verify_locations(cadata=authority)
            tls.verify_flags |= NO_CHECK_TIME
        else:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        plain = socket.create_connection(self._address, timeout=ANSWER_S)
        try:
            return tls.wrap_socket(plain, server_hostname=SERVER_NAME)
        except BaseException:
            plain.close()
            raise


def first_answer(server: DoorClient) -> "dict[str, Any]":
    """Return the list of wheels, as soon as the lender has told the server that this allocation runs."""
    until_s = time.monotonic() + TOKEN_S
    while True:
        try:
            answer, _ = server.ask(fetch="wheels")
            error = answer.get("error") or ""
            if not error:
                return answer
            if NOT_YET not in error:
                raise SystemExit(f"corral pilot: {error}")
        except (OSError, ValueError) as why:
            error = str(why)
        if time.monotonic() > until_s:
            raise SystemExit(f"corral pilot: {error}")
        time.sleep(AGAIN_S)


def has_version(version: str) -> bool:
    """Whether this Python has Corral in the version of the server."""
    try:
        from corral.node import pilot  # noqa: F401
        from corral.version import full_version

        return full_version() == version
    except Exception:
        return False


def get_corral(server: DoorClient, answer: "dict[str, Any]", folder: str) -> None:
    """Unpack the wheels of Corral, and of the dependencies that this Python lacks, into a folder, and import from it."""
    from pathlib import Path

    names, code = list(answer["wheels"]), Path(folder, "code")

    def content_of(name: str) -> bytes:
        found, content = server.ask(fetch=answer["wheels"][name])
        if found.get("error") or hashlib.sha256(content).hexdigest() != answer["wheels"][name]:
            raise Failure(f"{name} has not arrived: {found.get('error') or 'the connection ended'}")
        return content

    with zipfile.ZipFile(io.BytesIO(content_of(names[0]))) as archive:
        archive.extractall(code)
    for module in [each for each in sys.modules if each.partition(".")[0] == "corral"]:
        del sys.modules[module]
    sys.path.insert(0, str(code))
    from corral.node import wheel_choice

    chosen, lacking = wheel_choice.choose_wheels(answer["requires"], names[1:])
    if lacking:
        raise Failure(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()} lacks {', '.join(lacking)}. Put these "
            "wheels into a folder on the server, and name it with `corral config set upgrade.wheels FOLDER`"
        )
    for name in chosen:
        wheel_choice.unpack(name, content_of(name), code)
    os.environ["PYTHONPATH"] = str(code)


def main() -> None:
    words = sys.argv[1:]
    options = dict(zip(words[::2], words[1::2]))
    with open(0, "rb", buffering=0, closefd=False) as given:  # what follows the first line is not read
        token = given.readline().decode()
    server = DoorClient(options["--server"], token, options["--allocation"])
    answer = first_answer(server)
    try:
        if sys.version_info < PYTHON_MIN:
            raise Failure(
                f"{sys.executable} is Python {platform.python_version()}, and Corral needs 3.11 or later: "
                "set `python` of the lender in corral.toml"
            )
        if not has_version(server.version):
            get_corral(server, answer, options["--data"])
        from corral.node import pilot

        pilot.main(words, token)
    except Exception as why:
        text = str(why) if type(why).__name__ in ("Failure", "Refused", "NoWheel") else f"{type(why).__name__}: {why}"
        server.ask(failure=f"{text[:SAID_MAX]} (on {socket.gethostname()})")
        raise SystemExit(f"corral pilot: {text}") from None


if __name__ == "__main__":
    main()
