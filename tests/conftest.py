"""Fixtures: a running Corral, clients for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import forkserver
from answers.recorder import write_record
from command import Cli
from engines import dockerd as own_engine
from eventually import eventually
from examples import examples
from harness import Corral

# Neither a deadline nor a health check may depend on how busy the machine is or on how the dice fall.
UNHEALTHY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("corral", deadline=None, suppress_health_check=UNHEALTHY, max_examples=examples(100))
settings.load_profile("corral")
# A job in the background has SIGINT and SIGQUIT ignored, and one of nohup SIGHUP. All processes of the tests would inherit that.
DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for number, default in DEFAULTS.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)
# Where no bytecode is written, each run would rewrite the assertions of all tests again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
subprocess.Popen = forkserver.Popen  # starts Corral's processes as forks
os.environ["DOCKER_HOST"] = "unix:///nowhere/docker.sock"  # no engine, except in tests that use the fixture `dockerd`

# The longest units of work come first, so that all workers end at about the same time.
FIRST = (
    "tests/containers", "tests/engines", "tests/scenarios", "tests/test_docs.py", "tests/screens", "tests/worker",
    "tests/clients", "tests/simulation",
)  # fmt: skip
# Tests of these share nothing that takes time to make, so a unit of work is one test.
ONE_BY_ONE = ("tests/scenarios", "tests/simulation", "tests/test_docs.py")

ID_MAX_CHARACTERS = 60


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadgroup = True  # test processes report the groups of tests, whichever --dist xdist has
    if config.getoption("numprocesses", None):  # this process starts others, which run the tests
        forkserver.forkserver().share()
        forkserver.forkserver().collect(config.invocation_params.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Let the test processes be forks of one that has collected the tests (`worker_forks.py`)."""
    if program := forkserver.forkserver().collected():
        for spec in specs:
            spec.python = str(program)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_getremotemodule() -> str | None:
    return forkserver.RUN_TESTS if forkserver.forkserver().collected() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # nothing of what the files define becomes garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[bool, int]:
        path = item.nodeid.partition("::")[0]
        rank = next((at for at, prefix in enumerate(FIRST) if path.startswith(prefix)), len(FIRST))
        return item.get_closest_marker("xdist_group") is None, rank

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()  # from now on, a collection does not look at the modules and the tests
    gc.enable()


def pytest_sessionfinish() -> None:
    write_record()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten ids: one is a body of a megabyte, which workers would send to each other and reports would print."""
    if isinstance(val, str | bytes) and len(val) > ID_MAX_CHARACTERS:
        return f"{ascii(val[:ID_MAX_CHARACTERS])[:-1]}..."
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one worker, so that its server is started once; keep groups together."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return group if group.startswith(ONE_BY_ONE) else group.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


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


@pytest.fixture(scope="module")
def shared_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("cli"))
    said = made("up", "--detach", "--port", "0", "--gpus", "sim:2").stdout
    assert said.startswith("Corral is up at http://127.0.0.1:")
    yield made
    made.clear()


@pytest.fixture
def cli(shared_cli: Cli) -> Iterator[Cli]:
    """The corral command on a Corral with two simulated GPUs, one for a whole test file. Tests leave its GPUs free."""
    yield shared_cli
    for arn in shared_cli.unfinished():
        shared_cli.client("ecs").stop_task(task=arn)
    eventually(lambda: not shared_cli.unfinished(), "nothing left")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cli]:
    """The same, not up yet, for tests that start and stop it."""
    made = Cli(tmp_path)
    yield made
    made.clear()


@pytest.fixture(scope="session")
def dockerd() -> Iterator[own_engine.Dockerd]:
    """A Docker engine for the tests. All tests that use it are in the xdist group `docker`, so that only one is started."""
    if reason := own_engine.why_not():
        pytest.skip(reason)
    with own_engine.only_networks():
        own_engine.clear_left_behind()
        engine = own_engine.Dockerd()
        yield engine
        engine.close()
