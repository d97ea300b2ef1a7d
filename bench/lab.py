"""`bench/lab.py [--hosts 3] [--rounds 12] [--seed 1] [--no-docker]`: several machines in namespaces, and kills of their processes.

Each host runs a worker that prints numbered lines and stores numbered objects. In each round, a random process is killed with
SIGKILL (server, door, agent, spawner or gateway), or the network of a host is cut for some seconds. At the end, each line must be
in the logs exactly once, and each object in the bucket. Then the script prints how fast an object of 400 MB comes through the
gateway, next to a direct connection. A Docker engine on another host pulls an image from the registry of the server, and a program
on the first host reaches tasks in awsvpc mode there. It needs root, and exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from engines.dockerd import busybox_files, layer
from engines.dockerd import why_not as why_no_engine
from eventually import eventually
from hosts.cluster import BUCKET, Cluster
from hosts.lab import Lab, Machine, why_not
from raw_registry import password_of

EVENTS = ("server", "door", "agent", "spawner", "gateway", "cut")
CUT_S = (1.0, 40.0)
OBJECT_MB, PASSES, IDLE = 400, 3, 200
LOG_TAIL = 4_000  # characters of the log of the server that are printed if the script fails
IMAGE = "lab/busy:1"
PORT = 8080  # of the containers in awsvpc mode
SERVE = "mkdir -p /tmp/w; echo $0 > /tmp/w/index.html; exec httpd -f -p {0} -h /tmp/w"
# Connect to the port of the first container of each task, at the address that the task shows. Then connect to the other container.
REACH = """
import boto3, json, sys, time, urllib.request
def fetch(address, port):
    for _ in range(100):
        try:
            return urllib.request.urlopen(f"http://{address}:{port}/", timeout=5).read().decode().strip()
        except OSError:
            time.sleep(0.1)
found = []
for task in boto3.client("ecs").describe_tasks(tasks=sys.argv[1:])["tasks"]:
    details = {each["name"]: each["value"] for each in task["attachments"][0]["details"]}
    address, containers = details["privateIPv4Address"], {each["name"]: each for each in task["containers"]}
    bindings = {name: each["networkBindings"][0] for name, each in containers.items()}
    found.append([details, {name: fetch(address, each["hostPort"]) for name, each in bindings.items()}, bindings["web"]])
interfaces = boto3.client("ec2").describe_network_interfaces()["NetworkInterfaces"]
print(json.dumps([found, len(interfaces)]))
"""
# Read a presigned URL as fast as possible, and print MB/s.
READ = """
import socket, sys, time
from urllib.parse import urlsplit
url = urlsplit(sys.argv[1])
connection, buffer = socket.create_connection((url.hostname, url.port)), bytearray(1 << 20)
left, began = int(sys.argv[2]) << 20, time.perf_counter()
head = f"GET {url.path}?{url.query} HTTP/1.1", f"host: {url.netloc}", "connection: close", "", ""
connection.sendall("\\r\\n".join(head).encode())
total = 0
while count := connection.recv_into(buffer):
    total += count
assert total > left, total
print(f"{total / 1e6 / (time.perf_counter() - began):.0f}")
"""
# Open idle connections that have had one response, then wait for the end of standard input.
HOLD = """
import socket, sys
kept = []
for _ in range(int(sys.argv[2])):
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.sendall(b"GET /_corral/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    assert connection.recv(4096)
    kept.append(connection)
print(flush=True)
sys.stdin.read()
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--hosts", type=int, default=3)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--no-docker", action="store_true", help="do not start a Docker engine")
    given = options.parse_args()
    if reason := why_not() or (None if given.no_docker else why_no_engine()):
        sys.exit(f"this script cannot run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="corral-lab-") as name, Lab(Path(name) / "lab") as lab:
        cluster = Cluster(Path(name), lab)
        try:
            machines = [lab.add(f"gpu-{number}") for number in range(given.hosts)]
            _survive(cluster, machines, given.rounds, random.Random(given.seed))
            _measure(cluster, machines[-1])
            if not given.no_docker:
                with _engine(cluster, lab.add("docker-1")) as (machine, host):
                    _pull(cluster, machine, host)
                    _publish(cluster, machine, machines[0])
            cluster.check_revoked(machines[-1])
            print(f"{machines[-1].name} is revoked: its connections have ended, and it gets no others")
        except AssertionError as wrong:
            print(f"WRONG: {wrong}")
            return 1
        except BaseException:
            print(f"The end of the log of the server:\n{cluster.corral.log()[-LOG_TAIL:]}", file=sys.stderr)
            raise
        finally:
            cluster.corral.clear()
    return 0


def _survive(cluster: Cluster, machines: list[Machine], rounds: int, rng: random.Random) -> None:
    token = cluster.token("--uses", str(len(machines)))
    for machine in machines:
        cluster.join(machine, token)
    for machine in machines:
        cluster.until(machine, "UP")
    tasks = {machine: cluster.work(machine) for machine in machines}
    followers = {}
    for machine, task in tasks.items():
        cluster.check_first_line(machine, task)
        cluster.check_exec(machine, task)
        cluster.check_stranger(machine)
    cluster.check_source(machines[-1], machines[0], tasks[machines[-1]])
    for machine, task in tasks.items():
        followers[machine] = cluster.cli.begin("logs", "-f", task.rpartition("/")[2])
        followers[machine].until("stdout", "line 0\n")
    print(
        "endpoint, role, metadata and a large presigned object through each gateway, exec on each host, no stranger: right",
        flush=True,
    )
    for number in range(rounds):
        event, machine = EVENTS[number % len(EVENTS)] if number < len(EVENTS) else rng.choice(EVENTS), rng.choice(machines)
        began = time.monotonic()
        _happen(cluster, event, machine, rng.uniform(*CUT_S))
        cluster.until_works(*machines)
        where = "" if event in ("server", "door") else f" of {machine.name}"
        print(f"{event}{where}: all work again {time.monotonic() - began:.1f} s after its begin", flush=True)
    for machine, task in tasks.items():
        cluster.until(machine, "UP")
        cluster.stop(machine)
        cluster.until_stopped(machine, task)
        cluster.check_all(machine, task)
        shown = followers[machine].until("stdout", f"\n{cluster.lines(task)[-1]}\n").splitlines()
        followers[machine].interrupt()
        followers[machine].end()
        assert shown == cluster.lines(task)[: len(shown)], f"logs -f of {machine.name}"
        print(
            f"{machine.name}: {len(cluster.lines(task)) - 3} lines and {len(cluster.objects(machine))} objects, each exactly once"
        )


def _happen(cluster: Cluster, event: str, machine: Machine, cut_s: float) -> None:
    if event == "server":
        cluster.corral.kill("corral.server")
        cluster.corral.start()
    elif event == "door":
        cluster.corral.kill("corral.server.door")
    elif event == "agent":
        machine.kill("corral.node")
        cluster.join(machine)
    elif event == "cut":
        cluster.lab.cut(machine)
        time.sleep(cut_s)
        cluster.lab.heal(machine)
    else:
        machine.kill(f"corral.node.{event}")


def _measure(cluster: Cluster, machine: Machine) -> None:
    body = os.urandom(1 << 20) * OBJECT_MB
    cluster.s3.put_object(Bucket=BUCKET, Key="large", Body=body)
    url = cluster.s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "large"})
    words = (sys.executable, "-c", READ, url, str(OBJECT_MB))
    for _ in range(PASSES):
        direct = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        print(f"GET of {OBJECT_MB} MB: direct {direct} MB/s, through the gateway {machine.run(*words).strip()} MB/s", flush=True)
    gateway, [door] = machine.processes("corral.node.gateway"), cluster.corral.processes("corral.server.door")
    before = [_pss_kib(pid) for pid in (*gateway, door)]
    port = cluster.corral.url.rpartition(":")[2]
    holding = machine.command(sys.executable, "-c", HOLD, port, str(IDLE))
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        assert held.stdout.readline()
        after = [_pss_kib(pid) for pid in (*gateway, door)]
        assert held.stdin is not None
        held.stdin.close()
    kib = [round((now - then) / IDLE) for then, now in zip(before, after, strict=True)]
    print(f"memory of an idle connection: gateway {kib[0]} KiB, door {kib[1]} KiB")


@contextmanager
def _engine(cluster: Cluster, machine: Machine) -> Iterator[tuple[Machine, str]]:
    """Start a Docker engine on a machine, and let the machine join. Yield the machine and the address of the engine."""
    folder = cluster.folder / "docker"
    folder.mkdir()
    host = f"unix://{folder}/docker.sock"
    command = [
        "dockerd", "--iptables=false", "--ip-masq=false", "--bridge=none", "--data-root", f"{folder}/data", "-H", host,
        "--exec-root", f"{folder}/exec", "-p", f"{folder}/pid",
    ]  # fmt: skip
    engine = machine.start(*command, log=folder / "log")
    try:
        eventually(lambda: subprocess.run(machine.command("docker", "-H", host, "version"), capture_output=True).returncode == 0)
        cluster.join(machine, cluster.token(), "--runtime", "docker", environment={"DOCKER_HOST": host})
        cluster.until(machine, "UP")
        yield machine, host
    finally:
        engine.terminate()
        engine.wait()


def _registry(cluster: Cluster) -> str:
    return f"localhost:{cluster.corral.url.rpartition(':')[2]}"


def _pull(cluster: Cluster, machine: Machine, host: str) -> None:
    """Let a Docker engine push an image to the server's registry, and pull it."""

    def docker(*words: str, data: bytes | None = None) -> str:
        done = subprocess.run(
            machine.command("docker", "--config", str(cluster.folder / "docker"), "-H", host, *words),
            input=data, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    registry = _registry(cluster)
    cluster.corral.client("ecr").create_repository(repositoryName="lab/busy")
    docker("login", "--username", "AWS", "--password-stdin", registry, data=password_of(cluster.corral).encode())
    docker("import", "-", f"{registry}/{IMAGE}", data=layer(*busybox_files()))
    docker("push", f"{registry}/{IMAGE}")
    docker("rmi", f"{registry}/{IMAGE}")
    docker("pull", f"{registry}/{IMAGE}")
    print(f"docker pull {registry}/{IMAGE} on {machine.name}: done")


def _publish(cluster: Cluster, machine: Machine, other: Machine) -> None:
    """Run two tasks in awsvpc mode with the same ports on a host with Docker. Another host reaches all their containers."""
    containers = [
        {"name": name, "image": f"{_registry(cluster)}/{IMAGE}", "memory": 16, "entryPoint": ["sh", "-c", SERVE.format(port), name],
         "portMappings": [{"containerPort": port}]}
        for name, port in (("web", PORT), ("admin", PORT + 1))
    ]  # fmt: skip
    cluster.ecs.register_task_definition(family="vpc", networkMode="awsvpc", containerDefinitions=containers)
    there = [{"type": "memberOf", "expression": f"attribute:corral.host-name == {machine.name}"}]
    network = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
    arns = []
    for _ in range(2):
        [task] = cluster.ecs.run_task(taskDefinition="vpc", placementConstraints=there, networkConfiguration=network)["tasks"]
        arns.append(task["taskArn"])
        cluster.ecs.get_waiter("tasks_running").wait(tasks=arns, WaiterConfig={"Delay": 1})
    client = cluster.work(other, [sys.executable, "-c", REACH, *arns])
    found, interfaces = json.loads(eventually(lambda: cluster.lines(client), "the addresses of tasks", 60.0)[-1])
    assert [details for details, _, _ in found] == [{"privateIPv4Address": machine.address}] * 2 and interfaces == 0, found
    assert [answers for _, answers, _ in found] == [{"web": "web", "admin": "admin"}] * 2, found
    first, second = (web for _, _, web in found)
    assert (first["bindIP"], first["hostPort"], first["containerPort"]) == (machine.address, PORT, PORT), first
    assert second["hostPort"] != PORT == second["containerPort"], second
    print(f"{other.name} reaches tasks in awsvpc mode on {machine.name}: ports {first['hostPort']} and {second['hostPort']}")
    for arn in arns:
        cluster.ecs.stop_task(task=arn)
    cluster.ecs.get_waiter("tasks_stopped").wait(tasks=arns, WaiterConfig={"Delay": 1})


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    sys.exit(main())
