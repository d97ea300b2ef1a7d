"""Two hosts join a server. The network of one is cut, and each process is killed. Nothing is lost, and nothing happens twice."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import eventually
from hosts.cluster import Cluster
from hosts.lab import Lab, why_not

ANY_ADDRESS = "from corral.node.host_address import any_address; print(any_address())"
CUT_S = 20.0  # the server calls a host silent after 15 s


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    with Lab(tmp_path / "lab") as lab:
        made = Cluster(tmp_path, lab, "--tls", "true")
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
        cluster.check_first_line(machine, task)
    # Without a default route, the address is that of an interface.
    assert two.run(sys.executable, "-c", ANY_ADDRESS) == f"{two.address}\n"
    cluster.check_exec(two, tasks[two])
    cluster.check_stranger(two)
    cluster.check_tls(two)
    cluster.check_source(two, one, tasks[two])
    task = tasks[two].rpartition("/")[2]

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

    cluster.check_revoked(two)
    again = cluster.work(one, ["true"])
    cluster.until_stopped(one, again)
