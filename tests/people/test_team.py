"""docs/team.md, from an empty server to ten people: its commands run on the server, and on the machine of ann."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Cli
from engines.dockerd import BUSYBOX, Dockerd
from hosts.lab import Lab, why_not
from pages import Shell, run_page, steps_of
from test_docs import TEAM, environment_of


@pytest.mark.xdist_group("docker")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_commands_of_the_page_do_what_it_says(own: Cli, dockerd: Dockerd, tmp_path: Path) -> None:
    dockerd("tag", BUSYBOX, "busybox")
    docker = {"DOCKER_HOST": dockerd.host, "DOCKER_CONFIG": str(tmp_path / "docker")}
    home = tmp_path / "ann"
    for folder in (home, tmp_path / "server", tmp_path / "laptop"):
        folder.mkdir()
    with Lab(tmp_path / "lab") as lab:
        own("config", "set", "up.tls_names", lab.address)
        own("config", "set", "up.gpus", "sim:2")
        laptop = {name: value for name, value in own.environment.items() if not name.startswith(("AWS_", "CORRAL_"))}
        server = Shell(tmp_path / "server", own.home, environment_of(TEAM, own) | docker)
        ann = Shell(tmp_path / "laptop", home, {**laptop, "HOME": str(home)}, lab.add("ann").command)
        try:
            run_page(TEAM, server, {"ann": ann})
            assert len({step.person for step in steps_of(TEAM.read_text())}) == 2
            people = json.loads(own("user", "list", "--json").stdout)
            assert len(people) == 9 and "ann" not in {each["user"] for each in people}, "ten, and ann has left"
            dockerd("kill", *dockerd.containers("status=running"))  # `sleep` ignores SIGTERM as the first process of a container
            own("down", "--stop-tasks")
        finally:
            server.close()
            ann.close()
