"""Corral for tests: a Corral of its own, with simulated GPUs, on a free port and in a temporary data folder.

`start_corral` starts one, and ends it with all its tasks. For pytest, add this line to the conftest.py of your tests:

    pytest_plugins = ["corral.testing"]

Then tests can use the fixtures `corral` (a Corral that all tests of a pytest process share), `corral_environment` (sets the
environment variables of AWS clients for one test) and `corral_gpus` (the GPUs of `corral`; override it to change them).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any

import boto3
import pytest

REGION = "us-east-1"
GPUS = "sim:4"


class TemporaryCorral:
    """A running Corral. Its clients, and programs with its `environment`, use it instead of AWS."""

    def __init__(self, data: Path, url: str, access_key: str, secret_key: str) -> None:
        self.data = data
        self.url = url
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = REGION
        self._session = boto3.session.Session(aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=REGION)
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = Lock()  # threads of a test must not create clients at the same time

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which AWS clients and `corral` use this Corral."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "CORRAL_DATA": str(self.data),
        }

    def client(self, service: str, region: str = REGION) -> Any:
        """Return the boto3 client of a service. Tests share it."""
        with self._lock:
            if (service, region) not in self._clients:
                self._clients[service, region] = self._session.client(service, region_name=region, endpoint_url=self.url)
            return self._clients[service, region]


@contextmanager
def start_corral(*, gpus: str = GPUS, runtime: str = "process", options: tuple[str, ...] = ()) -> Iterator[TemporaryCorral]:
    """Start a Corral with a new data folder. At the end, stop its tasks and delete its data.

    `gpus`, `runtime` and `options` are those of `corral up`. The runtime `process` needs no Docker: it runs the command of each
    container as a process, and ignores the image.
    """
    data = Path(mkdtemp(prefix="corral-test-"))
    try:
        up = ("up", "--detach", "--json", "--port", "0", "--gpus", gpus, "--runtime", runtime, *options)
        about, keys = json.loads(_corral(data, *up)), json.loads((data / "credentials.json").read_text())
        try:
            yield TemporaryCorral(data, about["url"], keys["access_key"], keys["secret_key"])
        finally:
            _corral(data, "down", "--purge", "--yes")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _corral(data: Path, *words: str) -> str:
    """Run a command of Corral on this data folder, without the settings of the user's own Corral. Return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CORRAL_"))}
    command = [sys.executable, "-P", "-m", "corral", words[0], "--data", str(data), *words[1:]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"`corral {' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture(scope="session")
def corral_gpus() -> str:
    """The simulated GPUs of the fixture `corral`. Override this fixture to change them, for example to "sim:8xH100"."""
    return GPUS


@pytest.fixture(scope="session")
def corral(corral_gpus: str) -> Iterator[TemporaryCorral]:
    """A Corral that all tests of this pytest process share. With pytest-xdist, each process has its own."""
    with start_corral(gpus=corral_gpus) as started:
        yield started


@pytest.fixture
def corral_environment(corral: TemporaryCorral, monkeypatch: pytest.MonkeyPatch) -> TemporaryCorral:
    """Let all AWS clients that this test creates, and all programs that it starts, use the fixture `corral`."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in corral.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # boto3.client() would use the credentials of an earlier call
    return corral
