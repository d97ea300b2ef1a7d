"""The agent on this machine: the server starts it, and starts another one whenever it has ended."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from msgspec.structs import fields

from corral.core.clock import Clock
from corral.model.agent_protocol import HostOptions
from corral.node import node_folder
from corral.process.log_times import without_time

RESTART_MIN_S = 0.05  # the pause before the agent is started again; it doubles up to RESTART_MAX_S
RESTART_MAX_S = 5.0
REPLACE_S = 5.0  # an agent with other options gets SIGTERM, and SIGKILL after this time
REPLACE_POLL_S = 0.01
LOG_TAIL_BYTES = 4096  # the last line of the agent's log is searched in this many bytes

log = logging.getLogger("corral")


class LocalAgent:
    def __init__(self, data: Path, options: HostOptions, clock: Clock, files_limit: tuple[int, int] | None = None) -> None:
        """`options` are those of this machine. `files_limit` is the limit of open files (soft, hard) of the agent and its tasks."""
        self._folder = data / "node"
        node_folder.make(self._folder)
        self._arguments = ["--data", str(data)]
        for field in fields(options):
            self._arguments += [f"--{field.encode_name}", getattr(options, field.name)]
        self._files_limit = files_limit
        self._clock = clock
        self.joined = asyncio.Event()  # set when the agent has sent hello
        self._has_joined = False  # whether the agent that was started last has sent hello
        self.may_have_ended = asyncio.Event()  # set when the connection of an agent has ended
        self.error = ""  # why the last agent ended; empty when a new agent has sent hello

    @property
    def pid(self) -> int | None:
        return node_folder.lock_owner(self._folder / "agent.lock")

    def has_joined(self) -> None:
        self.joined.set()
        self._has_joined = True
        self.error = ""

    async def end_outdated(self) -> None:
        """End an agent that has outlived an earlier server, if it was started with other options. Its runs continue."""
        if self._is_free() or (pid := self.pid) is None or self._has_our_options(pid):
            return
        began_s = self._clock.now_s()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            while not self._is_free():
                await asyncio.sleep(REPLACE_POLL_S)
                if self._clock.now_s() > began_s + REPLACE_S:
                    os.kill(pid, signal.SIGKILL)

    def _has_our_options(self, pid: int) -> bool:
        wanted = b"\0".join(os.fsencode(argument) for argument in self._arguments)
        try:
            return wanted in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return True  # it has just ended

    def _is_free(self) -> bool:
        """Whether no agent holds the lock."""
        held = node_folder.try_lock(self._folder / "agent.lock")
        if held is not None:
            os.close(held)
        return held is not None

    async def keep(self) -> None:
        """Start an agent whenever none is alive. An agent that has outlived an earlier server reconnects."""
        wait_s = RESTART_MIN_S
        while True:
            if not self._is_free():
                self.may_have_ended.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # in Python 3.11, `wait_for` can lose a cancellation
                        await self.may_have_ended.wait()
                wait_s = min(wait_s * 2, RESTART_MAX_S)
                continue
            process, self._has_joined = self._start(), False
            began_s = self._clock.now_s()
            try:
                await ended(process)
            except asyncio.CancelledError:
                if not self._has_joined:
                    process.kill()  # the server stops, and an agent that has just started would not find it
                raise
            log.warning("the agent ended with exit code %s; starting another", process.returncode)
            self.error = f"ended with exit code {process.returncode}: {_last_line(self._folder / 'agent.log')}"
            lived = self._clock.now_s() - began_s > RESTART_MAX_S
            wait_s = RESTART_MIN_S if lived else min(wait_s * 2, RESTART_MAX_S)
            await asyncio.sleep(wait_s if not lived else 0)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "corral.node", *self._arguments]
        with open(self._folder / "agent.log", "ab") as output:
            agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        if self._files_limit is not None:
            with suppress(OSError):  # the agent has already ended
                resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, self._files_limit)
        return agent


def _last_line(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return without_time(lines[-1]).removeprefix("corral node: ") if lines else f"see {path}"


async def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child process without a thread. A waiting thread would prevent the server from exiting."""
    loop, ended, fd = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(process.pid)
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
        process.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
