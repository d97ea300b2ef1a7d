"""The engine's log becomes the run's output, every byte once, wherever the copy is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from corral.node import docker_logs
from corral.node.docker_logs import OutputFile, since_epoch


class Log:
    """An engine with one log: entries of (time, bytes), returned in parts of any size."""

    def __init__(self, rng: random.Random, entries: list[tuple[str, bytes]]) -> None:
        self._rng = rng
        self._entries = entries
        self.breaks_after = 10**9
        self.asked_from: list[str | None] = []

    @contextlib.asynccontextmanager
    async def stream(self, *_: str, since: str | None, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked_from.append(since)
        yield self._parts(since)

    async def _parts(self, since: str | None) -> AsyncIterator[bytes]:
        data = b"".join(
            b"\1\0\0\0" + (len(when) + 1 + len(text)).to_bytes(4, "big") + when.encode() + b" " + text
            for when, text in self._entries
            if since is None or since_epoch(when) >= since
        )
        at = 0
        while at < len(data):
            size = self._rng.choice([1, 7, 1000, 40_000, 200_000])
            if at + size > self.breaks_after:
                raise OSError("the connection broke")
            yield data[at : at + size]
            at += size


def moment(number: int) -> str:
    return f"2026-01-02T03:04:{number // 1000:02}.{number % 1000:09}Z"


def whole_second(number: int) -> str:
    """Times as podman writes them."""
    return f"2026-01-02T05:04:{number // 100:02}+02:00"


def test_times():
    assert since_epoch("2026-01-02T03:04:05.123456789Z") == "1767323045.123456789"
    assert since_epoch("2026-01-02T05:04:05+02:00") == since_epoch("2026-01-02T03:04:05Z") == "1767323045"


@pytest.mark.parametrize("moment", [moment, whole_second])
@pytest.mark.parametrize("seed", range(20))
def test_every_byte_once(tmp_path: Path, seed: int, moment: Callable[[int], str]):
    rng = random.Random(seed)
    now, entries = 0, []
    for _ in range(rng.randint(1, 400)):
        now += rng.choice([0, 0, 1, 5])  # a long line is many entries of one moment
        entries.append((moment(now), rng.randbytes(rng.choice([0, 1, 50, 16_384]))))
    log = Log(rng, entries)
    whole = b"".join(text for _, text in entries)
    output = tmp_path / "one"
    for _ in range(rng.randint(0, 6)):
        log.breaks_after = rng.randint(0, len(whole) + 40 * len(entries))
        copying = OutputFile(log, "id", output, tmp_path / "one.mark", store_every_bytes=100_000)
        for _ in range(rng.randint(1, 2)):
            with contextlib.suppress(OSError):
                asyncio.run(copying.copy(follow=True))
        assert whole.startswith(output.read_bytes())
    log.breaks_after = 10**9
    asyncio.run(OutputFile(log, "id", output, tmp_path / "one.mark", store_every_bytes=100_000).copy(follow=False))
    assert output.read_bytes() == whole


def test_a_long_log_is_not_read_from_its_beginning(tmp_path: Path):
    entries = [(moment(at), b"x" * 16_384) for at in range(600)]
    log = Log(random.Random(1), entries)
    for _ in range(2):
        asyncio.run(OutputFile(log, "id", tmp_path / "one", tmp_path / "one.mark").copy(follow=False))
    assert log.asked_from[0] is None and log.asked_from[1] is not None
    assert (tmp_path / "one").stat().st_size == 600 * 16_384


def test_what_the_machine_lost_is_copied_again(tmp_path: Path):
    """The stored position is on disk, and the end of the output is not."""
    entries = [(moment(at), b"y" * 16_384) for at in range(600)]
    log = Log(random.Random(1), entries)
    asyncio.run(OutputFile(log, "id", tmp_path / "one", tmp_path / "one.mark").copy(follow=False))
    with open(tmp_path / "one", "r+b") as file:
        file.truncate(1000)
    asyncio.run(OutputFile(log, "id", tmp_path / "one", tmp_path / "one.mark").copy(follow=False))
    assert (tmp_path / "one").read_bytes() == b"y" * 600 * 16_384


def test_a_terminal_has_lines_instead_of_frames():
    async def collect() -> list[tuple[str, bytes]]:
        async def parts() -> AsyncIterator[bytes]:
            for part in (moment(1).encode() + b" on", b"e\r\n" + moment(2).encode() + b" two"):
                yield part

        return [entry async for batch in docker_logs.entries(parts(), has_terminal=True) for entry in batch]

    assert asyncio.run(collect()) == [(moment(1), b"one\r\n"), (moment(2), b"two")]
