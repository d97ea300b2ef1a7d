"""Fixtures: a running Corral, clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Corral


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """One Corral with two simulated GPUs for a whole test file."""
    running = Corral(tmp_path_factory.mktemp("corral") / "data").start()
    yield running
    running.clear()


@pytest.fixture
def client(corral: Corral) -> Callable[..., Any]:
    return corral.client


@pytest.fixture
def aws(corral: Corral) -> Callable[..., Any]:
    return corral.aws


@pytest.fixture
def own_corral(tmp_path: Path) -> Iterator[Callable[..., Corral]]:
    """Makes Corrals that a test may kill."""
    made: list[Corral] = []

    def make(gpus: str = "sim:2", *options: str) -> Corral:
        made.append(Corral(tmp_path / f"data{len(made)}", gpus, *options))
        return made[-1]

    yield make
    for each in made:
        each.clear()
