"""The docker engine: its address, TLS, the containers it keeps, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.core.clock import VirtualClock, WallClock
from corral.node.docker_cleanup import STOPPED_KEPT_S
from corral.node.docker_engine import DockerEngine
from engines.dockerd import BUSYBOX, Dockerd
from engines.drivers import Driver, settings
from engines.nodes import NodeFolder, spec

pytestmark = pytest.mark.xdist_group("docker")

RUN = replace(spec("one"), image=BUSYBOX, ships_logs=True, settings=settings({"networkMode": "host"}, command=["echo", "hello"]))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFolder]:
    node = NodeFolder(tmp_path / "data")
    yield node
    node.clean_up()


class Elsewhere:
    """A TCP port in front of an engine, with or without TLS, as for an engine on another machine.

    Requests that contain `ignores` get no response.
    """

    def __init__(self, dockerd: Dockerd, tls: ssl.SSLContext | None = None, *, ignores: bytes = b"") -> None:
        self.ignored = threading.Event()
        self._path = dockerd.host.removeprefix("unix://")
        self._tls = tls
        self._ignores = ignores
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._relay, args=(self._listener.accept()[0],), daemon=True).start()

    def _relay(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            inner = socket.socket(socket.AF_UNIX)
            inner.connect(self._path)
            outer = self._tls.wrap_socket(caller, server_side=True) if self._tls else caller
            threading.Thread(target=_copy, args=(inner, outer), daemon=True).start()
            _copy(outer, inner, self._passes)

    def _passes(self, part: bytes) -> bool:
        if self._ignores and self._ignores in part:
            self.ignored.set()
            return False
        return True


def _copy(source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bool] = bool) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65_536):
            if passes(part):
                sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


def run_there(node: NodeFolder, **environment: str) -> str:
    driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, environment, WallClock()), node)
    observed = driver.run(RUN).observed
    driver.close()
    assert (observed.exit_code, observed.reason) == (0, None)
    assert observed.pid is None, "its number says nothing on this machine"
    return node.output("one")


def test_an_engine_at_a_port(node: NodeFolder, dockerd: Dockerd):
    elsewhere = Elsewhere(dockerd)
    assert run_there(node, DOCKER_HOST=elsewhere.host) == "hello\n"
    elsewhere.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_an_engine_at_a_port_with_tls(node: NodeFolder, dockerd: Dockerd, tmp_path: Path):
    """Both ends present a certificate, as with the docker command and DOCKER_TLS_VERIFY."""
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run([*make, *names], check=True, capture_output=True)
    shutil.copy(tmp_path / "cert.pem", tmp_path / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    elsewhere = Elsewhere(dockerd, tls)
    assert run_there(node, DOCKER_HOST=elsewhere.host, DOCKER_TLS_VERIFY="1", DOCKER_CERT_PATH=str(tmp_path)) == "hello\n"
    elsewhere.close()


def test_an_ended_container_can_be_inspected_for_a_while(node: NodeFolder, dockerd: Dockerd):
    clock = VirtualClock()
    driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": dockerd.host}, clock), node)
    container = driver.run(RUN).observed.about["runtimeId"]
    driver.engine.forget(["one"])
    clock.advance(STOPPED_KEPT_S - 1)
    driver.run(replace(RUN, run_id="two"))
    assert dockerd("logs", container) == "hello"
    clock.advance(1)
    driver.until(lambda: container not in dockerd.containers(), "it is removed")
    driver.close()


def test_a_pause_container_is_adopted_and_removed_with_its_task(node: NodeFolder, dockerd: Dockerd):
    """The pause container is not a run, but a later agent must find it too."""
    clock, held = VirtualClock(), "label=corral.pause=its-task"
    task = settings({"networkMode": "awsvpc"}, command=["sleep", "300"])
    run = replace(RUN, task_id="its-task", settings=task, stop_grace_s=0)
    addresses = []
    for _ in range(2):
        driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": dockerd.host}, clock), node)
        driver.engine.start([run])
        driver.started("one")
        addresses.append(driver.engine.observe()["one"].observed.about["privateIpv4Address"])
        if len(addresses) == 1:
            driver.close()
    assert addresses[0] == addresses[1] and len(dockerd.containers(held)) == 1
    driver.engine.stop(["one"])
    driver.ended("one")

    def gone() -> bool:
        clock.advance(1.0)
        return not dockerd.containers(held)

    driver.until(gone, "the container that held the network is removed")
    driver.close()


def test_a_damaged_file_of_a_run_is_ignored(node: NodeFolder, dockerd: Dockerd):
    """An agent or a machine that dies while it writes the file must not keep every later agent from starting."""
    (node.node / "containers").mkdir(exist_ok=True)
    (node.node / "containers" / "one.run").write_bytes(b'{"corral.')
    driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": dockerd.host}, WallClock()), node)
    assert not driver.engine.observe()
    assert driver.run(RUN).observed.exit_code == 0
    driver.close()


@pytest.mark.parametrize("request_line", [b"-pause/start ", b"/networks/corral-inside ", b"fromImage="])
def test_a_closed_engine_has_no_pending_requests(node: NodeFolder, dockerd: Dockerd, request_line: bytes):
    """Several runs may share a pull, the networks or a pause container, so no run owns these requests."""
    engine = Elsewhere(dockerd, ignores=request_line)
    driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": engine.host}, WallClock()), node)
    image = "127.0.0.1:1/missing:1" if request_line == b"fromImage=" else BUSYBOX
    driver.engine.start([replace(RUN, image=image, settings=settings({"networkMode": "awsvpc"}, command=["true"]))])
    driver.until(engine.ignored.is_set, "the request waits for its response")
    driver.close()
    engine.close()
    assert not asyncio.all_tasks(driver._loop)
