"""Two hosts join a server. The network of one is cut, and each process is killed. Nothing is lost, and nothing happens twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import eventually
from hosts.cluster import Cluster
from hosts.lab import Lab, why_not

CUT_S = 20.0  # the server calls a host silent after 15 s
# Sends a request through the gateway and waits until the connection ends. Then no other request is answered.
UNTIL_CLOSED = """
import socket, sys
def ask():
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.settimeout(30)
    connection.sendall(b"GET /_corral/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    try:
        return connection, connection.recv(4096)
    except ConnectionError:
        return connection, b""
connection, first = ask()
assert first.startswith(b"HTTP/1.1 200"), first
print("open", flush=True)
try:
    assert not connection.recv(1)
except ConnectionError:
    pass
assert not ask()[1]
print("closed", flush=True)
"""
WITHOUT_CERTIFICATE = """
import socket, ssl, sys
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
tls.set_alpn_protocols(["corral-gateway/1"])
answer = b""
try:
    connection = tls.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2]))))
    connection.settimeout(30)
    connection.sendall(b"GET /_corral/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    while data := connection.recv(4096):
        answer += data
except ConnectionError:
    pass
assert b"HTTP/1.1 200" not in answer, answer
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    with Lab(tmp_path / "lab") as lab:
        made = Cluster(tmp_path, lab)
        try:
            yield made
        finally:
            made.corral.clear()


def test_two_hosts_join_and_survive_a_cut_network_and_kills(cluster: Cluster) -> None:
    corral, lab, cli = cluster.corral, cluster.lab, cluster.cli
    token = cluster.token("--uses", "2")
    one, two = (lab.add(name) for name in ("gpu-one", "gpu-two"))
    for machine in (one, two):
        cluster.join(machine, token)
    for machine in (one, two):
        cluster.until(machine, "UP")
    tasks = {machine: cluster.work(machine) for machine in (one, two)}
    for machine, task in tasks.items():
        assert cluster.first_line(task) == {
            "host": machine.name,
            "endpoint": corral.url,
            "role": f"arn:aws:sts::123456789012:assumed-role/worker/{task.rpartition('/')[2]}",
            "large": True,
            "metadata": task,
        }
    task = tasks[two].rpartition("/")[2]
    assert cli("exec", task, "--", "hostname").stdout == f"{two.name}\n"
    two.run(sys.executable, "-c", WITHOUT_CERTIFICATE, lab.address, str(cluster.door_port))

    follower = cli.begin("logs", "-f", task)
    lab.cut(two)
    cut_at = time.monotonic()
    cluster.until(two, "SILENT")
    cluster.until_works(one)
    before = len(cluster.objects(two))
    eventually(lambda: time.monotonic() > cut_at + CUT_S, "the end of the cut")
    lab.heal(two)
    cluster.until(two, "UP")
    eventually(lambda: len(cluster.objects(two)) > before, "work after the cut")
    shown = follower.until("stdout", f"\n{cluster.lines(tasks[two])[-1]}\n").splitlines()
    follower.interrupt()
    follower.end()
    assert shown == cluster.lines(tasks[two])[: len(shown)]

    one.kill("corral.node.gateway")
    two.kill("corral.node.spawner")
    cluster.until_works(one, two)
    one.kill("corral.node")
    cluster.join(one)
    corral.kill("corral.server.door")
    cluster.until_works(one, two)
    corral.kill("corral.server")
    corral.start()
    cluster.until_works(one, two)
    for machine in (one, two):
        cluster.until(machine, "UP")
        cluster.stop(machine)
        cluster.until_stopped(machine, tasks[machine])
        cluster.check_all(machine, tasks[machine])

    asking = two.command(sys.executable, "-c", UNTIL_CLOSED, corral.url.rpartition(":")[2])
    watching = subprocess.Popen(asking, stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert watching.stdout.readline() == "open\n"
    cli("hosts", "revoke", two.name)
    assert watching.communicate(timeout=30)[0] == "closed\n"
    again = cluster.work(one, ["true"])
    cluster.until_stopped(one, again)
