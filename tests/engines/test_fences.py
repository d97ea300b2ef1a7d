"""Fences of containers: the spawner sends signals by the socket of the engine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from corral.node.fences import FencedContainer, Fences
from corral.node.procfs import boot_s


class Turns:
    """The timers of a spawner, which run when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.ended: list[str] = []
        self.timers: list[Callable[[], None]] = []
        self.fences = Fences(folder, lambda due, what: self.timers.append(what), self.ended.append)

    def turn(self) -> None:
        timers, self.timers = self.timers, []
        for what in timers:
            what()


def test_processes_end_when_the_server_has_not_answered(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.fences.answered(boot_s())
    turns.fences.add("short", 10.0)
    turns.fences.add("long", 1000.0)
    turns.fences.add("none", None)
    turns.turn()
    assert turns.ended == []
    turns.fences.answered(boot_s() - 20.0)
    turns.turn()
    turns.turn()
    assert turns.ended == ["short"]
    later = Turns(tmp_path)  # the next spawner knows the time of the answer
    later.fences.add("another", 15.0)
    later.turn()
    assert later.ended == ["another"]
    turns.fences.remove("long")
    turns.turn()
    assert turns.timers == []


def test_containers_get_signals_until_they_are_forgotten(tmp_path: Path) -> None:
    turns, path = Turns(tmp_path), tmp_path / "engine.sock"
    turns.fences.answered(boot_s() - 20.0)
    turns.fences.add_container(FencedContainer("r", 10.0, 0.0, str(path), "corral-h-r"))
    turns.turn()  # no engine answers
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        engine.listen()
        for name in ("SIGTERM", "SIGKILL"):
            turns.turn()
            with engine.accept()[0] as connection:
                received = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
            assert received.startswith(f"POST /containers/corral-h-r/kill?signal={name} HTTP/1.1\r\n"), received
        assert turns.timers
        turns.fences.remove("r")
        turns.turn()
        assert turns.timers == []
