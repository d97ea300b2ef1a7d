"""What keeps the allocations of a lender, with programs in place of those of Slurm: it goes on after each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.core.clock import VirtualClock
from corral.core.errors import Refused
from corral.model.allocation import Allocation
from corral.model.lender_settings import SlurmSettings
from corral.server.lenders.keeper import LenderKeeper
from corral.server.lenders.slurm import Slurm


class Rows:
    """In place of the lane of the state: allocations of which nothing changes."""

    def __init__(self, *rows: Allocation) -> None:
        self._rows = list(rows)

    async def submit(self, handler: Callable[..., Any], read_only: bool = False) -> Any:
        return self._rows if read_only else None


def kept(rows: Rows, open_door: Callable[[], Any], until: Callable[[LenderKeeper], bool]) -> LenderKeeper:
    """Keep allocations until a condition holds."""

    async def run() -> LenderKeeper:
        settings = SlurmSettings(poll_s=0.01)
        keeper = LenderKeeper("slurm", settings, Slurm(settings), "corral-x-", rows, VirtualClock(0.0), open_door)  # type: ignore[arg-type]
        task = asyncio.get_running_loop().create_task(keeper.run())
        async with asyncio.timeout(30):
            while not until(keeper) and not task.done():
                await asyncio.sleep(0.01)
        assert not task.done(), task.exception()
        task.cancel()
        return keeper

    return asyncio.run(run())


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of squeue, which prints nothing, as the one in place of scontrol."""
    for name in ("scontrol", "squeue"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


async def closed() -> dict[str, str]:
    raise Refused("cannot listen on 0.0.0.0 port 4567: nginx listens on it.")


def test_a_door_that_cannot_be_opened(squeue: Path) -> None:
    class Wanted(Rows):
        async def submit(self, handler: Callable[..., Any], read_only: bool = False) -> Any:
            return self._rows if read_only else (self._rows[0], None)

    keeper = kept(Wanted(Allocation("i", "slurm")), closed, lambda keeper: bool(keeper.problem))
    assert "nginx listens on it" in keeper.problem


def test_output_that_is_no_list_of_jobs(squeue: Path) -> None:
    """For example, what a login shell prints. Nothing follows from it: a job that is not in it has not ended."""
    squeue.write_text("#!/bin/sh\necho 'Welcome to the cluster'\n")
    keeper = kept(Rows(Allocation("i", "slurm", handle="1")), closed, lambda keeper: bool(keeper.problem))
    assert "squeue printed 'Welcome to the cluster'" in keeper.problem


def test_a_state_that_cannot_be_written(squeue: Path) -> None:
    class Full(Rows):
        failed = False

        async def submit(self, handler: Callable[..., Any], read_only: bool = False) -> Any:
            if not read_only:
                self.failed = True
                raise OSError("disk full")
            return self._rows

    rows = Full(Allocation("i", "slurm"))
    keeper = kept(rows, closed, lambda keeper: rows.failed and bool(keeper.problem))
    assert "disk full" in keeper.problem
