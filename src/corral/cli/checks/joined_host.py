"""Checks of a host that has joined a server on another machine, for `corral doctor`: server, agent, gateway, start at boot."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from corral.cli.checks.finding import Finding, fail, ok, warn
from corral.cli.checks.installation import clock_difference
from corral.cli.client.data_folder import DataFolder, joined_host
from corral.cli.server.systemd_unit import Unit, lingers, user_name
from corral.process.port_holder import port_holder

DOOR_S = 3.0
GATEWAY_S = 10.0
HEALTH = "/_corral/health"


def check_server(data: DataFolder) -> Iterator[Finding]:
    """Check whether this host reaches the door of its server, and whether its agent runs."""
    record = _record(data)
    address, _, port = str(record["door"]).rpartition(":")
    try:
        socket.create_connection((address.strip("[]"), int(port)), DOOR_S).close()
    except OSError as error:
        yield warn(
            f"host {record['name']} does not reach the door of its server at {record['door']}: {error.strerror or error}",
            "check the server and the network.",
        )
    else:
        yield ok(f"this is host {record['name']}, which reaches the door of its server at {record['door']}")
    if _agent_runs(data.path):
        yield ok("its agent runs; `corral hosts` on the server shows its state")
    else:
        yield warn("its agent does not run", f"start it: corral join{_option(data)}")


def check_gateway(data: DataFolder) -> Iterator[Finding]:
    """Check whether the port of the server on this machine leads to the server, as tasks expect, and compare the clocks."""
    port = int(_record(data)["port"])
    where = f"127.0.0.1:{port}"
    with closing(HTTPConnection("127.0.0.1", port, timeout=GATEWAY_S)) as connection:
        began_s = time.monotonic()
        try:
            connection.request("GET", HEALTH)
            answer = connection.getresponse()
            answer.read()
        except (OSError, HTTPException) as error:
            holder = port_holder(port, "127.0.0.1")
            found = f"{where} does not lead to the server: {holder or 'no process'} listens on it ({error})"
            yield fail(found, "tasks of this host do not reach the server: check the server, then restart `corral join`.")
            return
    if answer.status != 200:
        yield fail(f"{where} does not lead to the server: {port_holder(port, '127.0.0.1')} answers", "end that process.")
        return
    yield ok(f"{where} leads tasks to the server, which responds in {(time.monotonic() - began_s) * 1000:.0f} ms")
    yield from clock_difference(answer.getheader("date"))


def check_boot(data: DataFolder) -> Iterator[Finding]:
    unit = Unit(data.path, system=os.geteuid() == 0, joins=True)
    if not unit.is_installed() or not unit.is_enabled():
        yield ok(f"this host does not join at boot; `corral join --service{_option(data)}` changes that")
    elif not unit.system and not lingers():
        yield warn(
            f"{unit.path} starts the host only when {user_name()} logs in",
            f"to start it at boot: sudo loginctl enable-linger {user_name()}",
        )
    else:
        yield ok(f"systemd starts this host at boot ({unit.path})")


def _record(data: DataFolder) -> dict[str, Any]:
    record = joined_host(data)
    assert record is not None, "the checks of this module are for joined hosts"
    return record


def _agent_runs(folder: Path) -> bool:
    try:
        with open(folder / "node" / "agent.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _option(data: DataFolder) -> str:
    return f" --data {data.path}" if data.chosen else ""
