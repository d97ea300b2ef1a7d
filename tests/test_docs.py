"""Documentation cannot fall behind: every served operation, server option and verb is in it, every command in it runs and
prints what the page says (`tests/pages.py`), and every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
from botocore.loaders import Loader

import forkserver
from command import Cli
from corral.cli.commands import main
from corral.operations.services import SERVICES
from engines.dockerd import BUSYBOX, Dockerd
from pages import Shell, matches, run_page, steps_of

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SERVED = (ROOT / "docs" / "services.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_DOCKER = [ROOT / "docs" / name for name in ("containers.md", "images.md")]
TEAM = ROOT / "docs" / "team.md"  # has the machines of several people: tests/people/test_team.py
WITH_COMMANDS = [page for page in PAGES if steps_of(page.read_text()) and page not in (*WITH_DOCKER, TEAM)]
# Programs that a page starts, and that are not installed here: they print the line of their address, and wait.
STAND_INS = {
    "jupyter": "echo '    http://127.0.0.1:8888/lab?token=0123456789abcdef' >&2; exec sleep 600",
    "tensorboard": "echo 'TensorBoard 2.19.0 at http://127.0.0.1:6006/ (Press CTRL+C to quit)'; exec sleep 600",
}
COLD = ROOT / "README.md"  # runs the installed commands as they are, and therefore takes long


def environment_of(page: Path, cli: Cli) -> dict[str, str]:
    """Pages run `aws` and `corral` in forks, and `aws ecs wait` asks ten times a second instead of every six seconds."""
    environment = {**cli.environment, "CORRAL_PORT": "0", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    if page == COLD:
        return environment
    return environment | {"AWS_DATA_PATH": str(quick_waiters()), "PATH": f"{forkserver.both()}:{environment['PATH']}"}


@cache
def quick_waiters() -> Path:
    """A folder for AWS_DATA_PATH, the same for all pages: `aws` in forks reads models once per folder."""
    models, loader = forkserver.both() / "models", Loader()
    waiters = loader.load_service_model("ecs", "waiters-2")
    for waiter in waiters["waiters"].values():
        waiter |= {"delay": 0.1, "maxAttempts": 600}
    path = models / "ecs" / loader.determine_latest_version("ecs", "waiters-2") / "waiters-2.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(waiters))
    fresh.rename(path)  # other test processes do the same
    return models


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_do_what_it_says(page: Path, own: Cli, tmp_path: Path) -> None:
    """A page that begins with `corral up` starts its own Corral; the others find one, and its environment set."""
    environment = environment_of(page, own)
    steps = steps_of(page.read_text())
    if not any("corral up" in step.command for step in steps[:2]):
        own("up", "--detach", "--port", "0", "--gpus", "sim:2")
        environment |= own.json("env")
    for name in ("templates", "examples"):
        (own.home / name).symlink_to(ROOT / name)
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name, script in STAND_INS.items():
        (scripts / name).write_text(f"#!/bin/sh\n{script}\n")
        (scripts / name).chmod(0o755)
    environment["PATH"] = f"{environment['PATH']}:{scripts}"
    shell = Shell(scripts, own.home, environment)
    try:
        run_page(page, shell)
    finally:
        shell.close()


@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("page", WITH_DOCKER, ids=lambda page: page.name)
def test_the_commands_of_a_page_about_containers(page: Path, own: Cli, dockerd: Dockerd, tmp_path: Path) -> None:
    dockerd("tag", BUSYBOX, "busybox")
    docker = {"DOCKER_HOST": dockerd.host, "DOCKER_CONFIG": str(tmp_path / "docker")}
    shell = Shell(tmp_path, own.home, environment_of(page, own) | docker)
    try:
        run_page(page, shell)
        own("down", "--stop-tasks")
    finally:
        shell.close()


@pytest.mark.parametrize(
    "expected, output, same",
    [
        ("one\ntwo", "one \n two\n", True),
        ("one", "one\ntwo", False),
        ("one\n...\nthree", "one\ntwo\nand a half\nthree", True),
        ("one\n...\nthree", "one\nthree", True),
        ("a ... c", "a b c", True),
        ("a ... c", "a b d", False),
        ("...", "", True),
        ("797c963a  train:1  RUNNING  5s", "0123abcd   train:1   RUNNING   12m", True),
        ("deadbeef", "deadbeef", True),
        ("on GPU-817703a9-f0ca-52dd-ac1c-b89e415668d7", "on GPU-0fdfa05d-6552-59a9-a801-3aa92156a319", True),
        ("up at http://127.0.0.1:4566 (1 of 2)", "up at http://127.0.0.1:40001 (1 of 2)", True),
        ("a.c", "abc", False),
        ("hello", "corral: task 0123abcd starts\nhello\n", True),
        ("corral: task 0123abcd starts", "corral: task 4567abcd starts\n", True),
    ],
)
def test_output_is_compared_loosely(expected: str, output: str, same: bool) -> None:
    assert matches(expected.splitlines(), output) is same


def test_a_page_is_read_as_a_person_reads_it() -> None:
    block = "$ cat > x <<'EOF'\n> one\n>\n> two\n> EOF\n$ false\nsaid\n> not a continuation\n[exit 1]\n"
    page = f"```console\n{block}```\n```\n$ not run\n```\n"
    first, second = steps_of(page)
    assert first.command == "cat > x <<'EOF'\none\n\ntwo\nEOF" and first.expected == []
    assert (second.command, second.expected, second.code) == ("false", ["said", "> not a continuation"], 1)


@pytest.mark.parametrize("service", SERVICES)
def test_the_page_of_services_names_what_is_served(service: str) -> None:
    section = re.split(r"^## ", SERVED, flags=re.MULTILINE)
    [about] = [part for part in section if part.startswith(f"{service}\n")]
    named = re.findall(r"`([A-Z][A-Za-z0-9]+)`", about.partition("\n### Differences\n")[0])
    assert sorted(named) == sorted(SERVICES[service].operations)


def test_the_readme_has_a_line_for_every_service() -> None:
    about = README.partition("## What is served")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| (\w[\w-]*) \|", about, flags=re.MULTILINE)) == sorted([*SERVICES, "service"])


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_first_screen_of_the_readme_has_two_doors() -> None:
    """A queue and AWS, with three commands each. What needs a task definition comes later."""
    about, queue, aws = README.split("\n## ")[:3]
    assert all(name in about for name in ("Batch", "Auto Scaling", "CloudFormation"))
    assert [part.partition("\n")[0] for part in (queue, aws)] == ["A queue for your GPUs", "AWS on your machine"]
    assert [len(steps_of(part)) for part in (queue, aws)] == [3, 3]
    assert len((about + queue + aws).splitlines()) < 50 and '{"' not in about + queue + aws


def test_every_verb_and_option_is_documented():
    assert isinstance(main, click.Group)
    for name, verb in main.commands.items():
        assert f"corral {name}" in CLI, f"docs/cli.md does not mention `corral {name}`"
        for option in verb.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert any(flag in CLI for flag in option.opts), f"docs/cli.md does not mention {option.opts} of {name}"


def test_an_installation_puts_only_corral_on_the_path() -> None:
    """pipx and uv link the scripts of Corral itself: a second one could shadow a program of the user."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(project["scripts"]) == ["corral"] and "gui-scripts" not in project
    assert [page.name for page in PAGES if "export PATH" in page.read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} → {link}"
