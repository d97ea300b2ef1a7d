"""Fences: the spawner ends processes, and sends signals to containers by the socket of the engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from corral.core.clock import WallClock
from corral.core.ids import RandomIds
from corral.model.agent_protocol import HostOptions, Orders, ToAgent
from corral.model.run import RunSpec
from corral.node import node_folder
from corral.node.agent import Agent
from corral.node.fences import FencedContainer, Fences
from corral.node.gpus import detect
from corral.node.host import this_host
from corral.node.process_engine import encode_launch
from corral.node.procfs import boot_s
from corral.node.spawner_protocol import Launch


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


class Recorder:
    """An engine that records when it is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append(name) or {}


def test_the_spawner_hears_of_an_answer_before_the_orders_that_follow(tmp_path: Path) -> None:
    """Otherwise, the fence of a new run would count from the last answer before a long cut of the network."""

    async def receives() -> list[str]:
        folder, engine = tmp_path / "node", Recorder()
        node_folder.make(folder)
        host = this_host(folder, "boot", RandomIds())
        gpus = detect("none", host.host_id)
        agent = Agent(folder, host, HostOptions(), gpus, engine, WallClock(), None)  # type: ignore[arg-type]
        agent._response = asyncio.get_running_loop().create_future()
        for message in (ToAgent(welcome={}), ToAgent(orders=Orders([RunSpec("r", "t", "main", "", ["true"], {}, [])]))):
            agent._received(message)
        return [call for call in engine.calls if call in ("answered", "start")]

    assert asyncio.run(receives()) == ["answered", "start"]


def test_a_spawner_of_an_earlier_version_understands_launches_without_new_members() -> None:
    plain = Launch("r", ["true"], {}, None, 30.0, ships_logs=True, gpu_ids=[])
    members = {"run_id", "command", "environment", "working_directory", "stop_grace_s", "ships_logs", "gpu_ids"}
    assert msgspec.json.decode(encode_launch(plain)).keys() == members
    plain.fence_s = 10.0
    assert msgspec.json.decode(encode_launch(plain)).keys() == members | {"fence_s"}
