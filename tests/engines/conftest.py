from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.drivers import ENGINES, Driver
from engines.fake_core import FakeCore
from engines.nodes import NodeFolder


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFolder]:
    node = NodeFolder(tmp_path / "data")
    yield node
    node.clean_up()


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.xdist_group("docker"))])
def driver(request: pytest.FixtureRequest, node: NodeFolder) -> Iterator[Driver]:
    """One open engine of each kind: the contract is the same for all."""
    environment = dict(os.environ)
    if request.param == "docker":
        environment["DOCKER_HOST"] = request.getfixturevalue("dockerd").host
    driver = Driver(ENGINES[request.param], node, environment=environment)
    yield driver
    driver.close()


@pytest.fixture
def process_driver(node: NodeFolder) -> Iterator[Driver]:
    driver = Driver(ENGINES["process"], node)
    yield driver
    driver.close()


@pytest.fixture
def core(node: NodeFolder) -> Iterator[FakeCore]:
    core = FakeCore(node)
    yield core
    core.close()
