from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from containers.running import Containers
from engines.dockerd import Dockerd
from harness import Corral


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory, dockerd: Dockerd) -> Iterator[Corral]:
    """A Corral with a Docker engine and two simulated GPUs, for a whole test file."""
    environment = {"DOCKER_HOST": dockerd.host, "CORRAL_PULL_MAX_S": "1"}
    running = Corral(tmp_path_factory.mktemp("corral") / "data", "sim:2", environment=environment).start()
    yield running
    running.clear()


@pytest.fixture
def run(corral: Corral) -> Containers:
    return Containers(corral)


@pytest.fixture
def own_docker_corral(tmp_path: Any, dockerd: Dockerd) -> Iterator[Callable[..., Corral]]:
    """Creates Corrals with the Docker engine that a test may kill."""
    made: list[Corral] = []

    def make(*options: str, **environment: str) -> Corral:
        variables = {"DOCKER_HOST": dockerd.host, **environment}
        made.append(Corral(tmp_path / f"data{len(made)}", "sim:2", *options, environment=variables))
        return made[-1]

    yield make
    for each in made:
        each.clear()
