"""The command line on another machine: it has the URL with TLS, the certificate and keys, and no data folder."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command import Cli
from corral.cli.client.tls import NotTrusted, fetch_authority
from corral.node.host_address import addresses_for_others
from corral.server.door.authority import Authority

NAME = "127.0.1.1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("server"))
    try:
        cli("up", "--detach", "--port", "0", "--gpus", "sim:1", "--runtime", "process", "--tls", "--tls-names", NAME)
        yield cli
    finally:
        cli.clear()


@pytest.fixture(scope="module")
def variables(server: Cli) -> dict[str, str]:
    found: dict[str, str] = json.loads(server("env", "--tls", "--json").stdout)
    return found


@pytest.fixture(scope="module")
def laptop(server: Cli, variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("laptop"))
    del cli.environment["CORRAL_DATA"]
    cli.environment |= variables
    return cli


def test_the_variables(server: Cli, variables: dict[str, str]) -> None:
    url, bundle = variables["AWS_ENDPOINT_URL"], variables["AWS_CA_BUNDLE"]
    assert url.startswith(f"https://{NAME}:") and bundle == str(server.data / "door" / "ca.pem")
    here = json.loads(server("env", "--json").stdout)
    assert here["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:") and here["AWS_CA_BUNDLE"] == bundle
    server("env", "--tls", "--profile", "box")
    assert f"ca_bundle = {bundle}\n" in (server.home / ".aws" / "config").read_text()
    assert f"{url.rpartition('//')[2]}" in (server.home / ".aws" / "config").read_text()
    with_profile = {"AWS_PROFILE": "box", "CORRAL_DATA": str(server.home / "none")}
    assert json.loads(server("status", "--json", env=with_profile).stdout)["tlsUrl"] == url  # by botocore


def test_commands(laptop: Cli, server: Cli) -> None:
    assert json.loads(laptop("status", "--json").stdout)["hosts"]
    done = laptop("run", "--name", "over-tls", "--", "sh", "-c", "echo done")
    assert done.stdout == "done\n"
    task = laptop("run", "-d", "--", "sh", "-c", "echo begun; sleep 600").stdout.strip()
    given = "one\n\n  three\t\n" * 30_000 + "last"
    assert laptop("exec", "-i", task, "--", "cat", given=given).stdout == given
    assert laptop("exec", task, "--", "sh", "-c", "exit 3", code=3).stdout == ""
    assert "begun" in laptop("logs", task).stdout
    laptop("stop", task)


def test_a_server_that_cannot_be_verified(laptop: Cli, variables: dict[str, str], tmp_path: Path) -> None:
    url = variables["AWS_ENDPOINT_URL"]
    without = laptop("ps", env={"AWS_CA_BUNDLE": ""}, code=1)
    assert "could not be verified" in without.stderr and "set AWS_CA_BUNDLE to door/ca.pem" in without.stderr
    Authority(tmp_path, 1_700_000_000.0)
    other = tmp_path / "other.pem"
    other.write_text(Authority(tmp_path, 1_700_000_000.0).pem)
    assert f"{other} does not fit" in laptop("ps", env={"AWS_CA_BUNDLE": str(other)}, code=1).stderr
    assert "cannot be read" in laptop("ps", env={"AWS_CA_BUNDLE": str(tmp_path / "none.pem")}, code=1).stderr
    elsewhere = laptop("ps", env={"AWS_ENDPOINT_URL": url.replace(NAME, "127.0.1.2")}, code=1)
    assert "IP address mismatch" in elsewhere.stderr


def test_the_server_of_a_pin(server: Cli, variables: dict[str, str]) -> None:
    url, pin = variables["AWS_ENDPOINT_URL"], json.loads((server.data / "server.json").read_text())["tlsPin"]
    assert fetch_authority(url, pin) == Path(variables["AWS_CA_BUNDLE"]).read_text()
    with pytest.raises(NotTrusted, match="is not that of the server which made this command"):
        fetch_authority(url, "x" * 43)
    with pytest.raises(NotTrusted, match="add it with `corral up --tls-names`"):
        fetch_authority(url.replace(NAME, "127.0.1.2"), pin)


def test_a_relayed_authority_proves_nothing(server: Cli, tmp_path: Path) -> None:
    """A machine in between has the public page of the server, and no key for a certificate of its authority."""
    pem, pin = (server.data / "door" / "ca.pem").read_text(), json.loads((server.data / "server.json").read_text())["tlsPin"]
    Authority(tmp_path, 1_700_000_000.0).issue_https(tmp_path / "own.pem", [NAME], 1_700_000_000.0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "own.pem")
    requests: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            plain, _ = listener.accept()
            with suppress(OSError), tls.wrap_socket(plain, server_side=True) as connection:
                requests.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + pem.encode())

    with socket.create_server((NAME, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(NotTrusted, match="could not be verified"):
            fetch_authority(f"https://{NAME}:{listener.getsockname()[1]}", pin)
        thread.join(30)
    assert len(requests) == 1


def test_login_names_the_file_that_docker_needs(laptop: Cli, variables: dict[str, str], tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho called\n")
    docker.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    here = laptop("login", env=path)  # 127.0.1.1 is this machine, where Docker uses localhost without TLS
    assert here.stdout == "called\n"
    port = variables["AWS_ENDPOINT_URL"].rpartition(":")[2]
    for address in addresses_for_others()[:1]:
        elsewhere = laptop("login", env={**path, "AWS_ENDPOINT_URL": f"https://{address}:{port}"}, code=1)
        assert f"install -D -m 644 {variables['AWS_CA_BUNDLE']} /etc/docker/certs.d/{address}:{port}/ca.crt" in elsewhere.stderr


def test_options_that_do_not_fit(server: Cli, tmp_path: Path) -> None:
    own = Cli(tmp_path)
    assert "--tls-names needs --tls" in own("up", "--tls-names", "a", code=2).stderr
    assert "without encryption" in own("up", "-d", "--port", "0", "--host", "0.0.0.0", code=1).stderr
    assert not (own.data / "corral.toml").exists()
    assert "no such file" in own("up", "-d", "--tls", "--tls-certificate", "x", "--tls-key", "y", code=1).stderr.lower()


def test_doctor_connects_as_another_machine(server: Cli, variables: dict[str, str]) -> None:
    def findings() -> list[tuple[str, str]]:
        done = server("doctor", "--json")
        return [(each["level"], each["found"]) for each in json.loads(done.stdout) if each["check"] == "tls"]

    url = variables["AWS_ENDPOINT_URL"]
    assert findings() == [("ok", f"other machines reach {url}; its certificate is valid for 396 days")]
