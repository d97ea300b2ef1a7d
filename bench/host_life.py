"""`bench/host_life.py [--only NAME]`: the life of hosts in a lab of namespaces: upgrades, copies, losses, fences and drains.

The server has a newer version than the hosts, and the next number of the protocol. The scenarios, in this order:

    upgrade    hosts that announce the number before are served, and upgraded while a task works
    clone      a copied disk is refused, also one with the same machine id; the real host keeps its task; `corral join --new`
    forget     a host is forgotten while it is away; its service starts elsewhere, its tasks end when it returns
    fence      a task with a fence ends while the host is away and its agent is dead; another one does not
    attempts   a job with a fence runs again elsewhere after lost_after, and its attempts do not overlap
    drain      a host is drained with running tasks: the service moves, another task stops at the deadline
    reinstall  a machine with a new disk joins with its old name, after its old self was forgotten

It needs root, and exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from command import BIN
from corral.model.agent_protocol import PROTOCOL
from corral.model.instance import host_instance_id
from eventually import eventually
from harness import container
from hosts.cluster import Cluster, other_version
from hosts.lab import Lab, Machine, why_not

NEWER = "9.9.9"
LOST_AFTER_S, FENCE_S = 30, 10
WAIT_S = 180.0
SETTINGS = f"[clusters]\njobs = {{lost_after = {LOST_AFTER_S}}}\n"
STAMPS = """
import os, signal, sys, time
path = f"{sys.argv[1]}/{os.environ['AWS_BATCH_JOB_ATTEMPT']}"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
while not os.path.exists(f"{sys.argv[1]}/end"):
    with open(path, "a") as file:
        file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
    time.sleep(0.1)
"""


class Scenarios:
    def __init__(self, cluster: Cluster, machines: list[Machine]) -> None:
        self.cluster = cluster
        self.machines = machines
        self.own = cluster.corral.own

    def upgrade(self) -> str:
        one, *others = self.machines
        task = self.cluster.work(one)
        self.cluster.check_first_line(one, task)
        done = self.cluster.cli("hosts", "upgrade", one.name)
        assert done.stdout.startswith(f"{one.name} has {NEWER} "), done.stdout
        assert not self._host(others[0])["agent"].startswith(NEWER)
        self.cluster.until_works(one)
        self.cluster.stop(one)
        self.cluster.until_stopped(one, task)
        self.cluster.check_all(one, task)
        self.cluster.s3.delete_object(Bucket="lab", Key=f"{one.name}/stop")
        return f"{one.name} has {NEWER}, its task has printed each line once, and the others are served with protocol {PROTOCOL}"

    def clone(self) -> str:
        real, other = self.machines[:2]
        task = self._serve(real)
        folder, log = self.cluster.folder / "copy", self.cluster.folder / "copy.log"
        shutil.copytree(self.cluster.folder / real.name, folder, ignore=shutil.ignore_patterns("*.sock"))
        self._stop_agent(other)
        for why in ("its machine-id differs", "is already connected from"):
            log.unlink(missing_ok=True)
            if why.startswith("is"):  # a disk image without a machine id of its own
                other.run("mount", "--bind", str(real.folder / "machine-id"), "/etc/machine-id")
            self._join_copy(other, folder, log)
            eventually(lambda: log.exists() and why in log.read_text(), why, WAIT_S)  # noqa: B023
            assert (self._host(real)["state"], self._state(task)) == ("UP", "RUNNING")
            other.kill("corral.node")
            other.kill("corral.node.spawner")
        token = self.cluster.token()
        self._join_copy(other, folder, log, token["address"], "--token", token["token"], "--new", "--name", "copy")
        eventually(lambda: self._named("copy").get("state") == "UP", "the copy is a new host", WAIT_S)
        assert self._state(task) == "RUNNING"
        other.kill("corral.node")
        eventually(lambda: self._named("copy")["state"] == "SILENT", "the copy has ended", WAIT_S)
        self.cluster.cli("hosts", "forget", "copy")
        other.run("umount", "/etc/machine-id")
        self.cluster.join(other)
        self._until(other, "UP")
        self._end(task)
        return "two copies were refused, the real host kept its task, and the copy joined as a new host"

    def forget(self) -> str:
        away, other = self.machines[:2]
        ecs = self.cluster.ecs
        self._drain(other)
        self._define("service", ["sleep", "600"])
        ecs.create_service(serviceName="service", taskDefinition="service", desiredCount=1)
        first = self._service_task(away)
        self.cluster.cli("hosts", "resume", other.name)
        old = self.cluster.work(away)
        self.cluster.check_first_line(away, old)
        for restarts in (False, True):
            self.cluster.lab.cut(away)
            self._until(away, "SILENT")
            self.cluster.cli("hosts", "forget", away.name)
            assert self._host(away) == {} and self._state(old) == self._state(first) == "STOPPED"
            if restarts:
                away = self._restart(away)
            else:
                self._service_task(other)
                count = len(self.cluster.objects(away))
                self.cluster.lab.heal(away)
            self._until(away, "UP")
            if not restarts:
                assert len(self.cluster.objects(away)) <= count + 1, "it has written after it was forgotten"
                assert not away.run("sh", "-c", "pgrep -f hosts/[w]orker.py || true"), "its old task lives"
            fresh = self._run(["true"], away)
            eventually(lambda: self._state(fresh) == "STOPPED", "a new task", WAIT_S)  # noqa: B023
        ecs.delete_service(service="service", force=True)
        eventually(lambda: not ecs.list_tasks(serviceName="service")["taskArns"], "the end of the service", WAIT_S)
        return "the service started elsewhere, the old task wrote nothing more and ended, and a restarted machine got work at once"

    def fence(self) -> str:
        away = self.machines[0]
        tasks = {
            name: self._run(["sleep", "600"], away, tags) for name, tags in (("fenced", {"corral:fence-after": "10"}), ("free", {}))
        }
        for task in tasks.values():
            eventually(lambda: self._state(task) == "RUNNING", "the tasks run", WAIT_S)  # noqa: B023
        alive = lambda: int(away.run("sh", "-c", "pgrep -x sleep -a | grep -c 'sleep 600' || true"))  # noqa: E731
        assert alive() == 2
        began = time.monotonic()
        self.cluster.lab.cut(away)
        away.kill("corral.node")
        eventually(lambda: alive() == 1, "the fence", WAIT_S)
        took_s = time.monotonic() - began
        self.cluster.lab.heal(away)
        self.cluster.join(away)
        self._until(away, "UP")
        eventually(lambda: self._state(tasks["fenced"]) == "STOPPED", "the end is reported", WAIT_S)
        [ended] = self.cluster.ecs.describe_tasks(tasks=[tasks["fenced"]])["tasks"]
        assert "fence" in ended["containers"][0]["reason"], ended
        assert self._state(tasks["free"]) == "RUNNING"
        self._end(tasks["free"])
        return f"the task with a fence of 10 s ended {took_s:.0f} s after the cut and the end of the agent, the other one did not"

    def attempts(self) -> str:
        batch, folder = self.cluster.corral.client("batch"), self.cluster.folder / "stamps"
        folder.mkdir()
        pair = self.machines[-2:]
        for machine in pair:
            self.cluster.cli("hosts", "resume", machine.name)
            machine.kill("corral.node")
            self.cluster.join(machine, None, "--cluster", "jobs")
        for machine in pair:
            eventually(lambda: self._host(machine).get("cluster") == "jobs", "the host has moved", WAIT_S)  # noqa: B023
            self._until(machine, "UP")
        batch.create_compute_environment(computeEnvironmentName="jobs", type="UNMANAGED", tags={"corral:cluster": "jobs"})
        order = [{"order": 1, "computeEnvironment": "jobs"}]
        batch.create_job_queue(jobQueueName="jobs", priority=1, computeEnvironmentOrder=order)
        needs = [{"type": kind, "value": value} for kind, value in (("VCPU", "1"), ("MEMORY", "64"), ("GPU", "1"))]
        properties = {"image": "corral/host", "command": [sys.executable, "-c", STAMPS, str(folder)], "resourceRequirements": needs}
        batch.register_job_definition(
            jobDefinitionName="stamps", type="container", containerProperties=properties, retryStrategy={"attempts": 3},
            tags={"corral:fence-after": str(FENCE_S)}, propagateTags=True,
        )  # fmt: skip
        job = batch.submit_job(jobName="stamps", jobQueue="jobs", jobDefinition="stamps", propagateTags=True)["jobId"]
        eventually(lambda: (folder / "1").exists(), "the first attempt", WAIT_S)
        [task] = self.cluster.ecs.list_tasks(cluster="jobs")["taskArns"]
        [described] = self.cluster.ecs.describe_tasks(cluster="jobs", tasks=[task], include=["TAGS"])["tasks"]
        assert {"key": "corral:fence-after", "value": str(FENCE_S)} in described["tags"], described["tags"]
        where = self._machine_of(described["containerInstanceArn"], pair)
        self.cluster.lab.cut(where)
        where.kill("corral.node")
        eventually(lambda: (folder / "2").exists(), "the second attempt", WAIT_S)
        assert self._host(where)["state"] == "LOST"
        self.cluster.lab.heal(where)
        self.cluster.join(where)
        self._until(where, "UP")
        (folder / "end").touch()
        status = eventually(lambda: self._ended(job), "the end of the job", WAIT_S)
        last = float((folder / "1").read_text().split()[-1])
        first = float((folder / "2").read_text().split()[0])
        assert status == "SUCCEEDED" and sorted(path.name for path in folder.iterdir()) == ["1", "2", "end"]
        assert last < first, f"the first attempt lived until {last}, and the second began at {first}"
        return f"the second attempt began {first - last:.0f} s after the first had ended by its fence"

    def drain(self) -> str:
        drained, other = self.machines[:2]
        ecs = self.cluster.ecs
        self._drain(other)
        self._define("service", ["sleep", "600"])
        ecs.create_service(serviceName="moves", taskDefinition="service", desiredCount=1)
        self._service_task(drained, "moves")
        self.cluster.cli("hosts", "resume", other.name)
        task = self._run(["sleep", "600"], drained)
        eventually(lambda: self._state(task) == "RUNNING", "the task runs", WAIT_S)
        done = self.cluster.cli("hosts", "drain", drained.name, "--deadline", "20s")
        assert "2 tasks on it" in done.stderr, done.stderr
        self._service_task(other, "moves")
        eventually(lambda: self._state(task) == "STOPPED", "the deadline", WAIT_S)
        [stopped] = ecs.describe_tasks(tasks=[task])["tasks"]
        assert "drained" in stopped["stoppedReason"], stopped["stoppedReason"]
        assert self._host(drained)["state"] == "DRAINING"
        waits = ecs.run_task(taskDefinition="service", placementConstraints=self._there(drained))["tasks"]
        assert all(each["lastStatus"] == "PROVISIONING" for each in waits)
        self.cluster.cli("hosts", "resume", drained.name)
        for each in waits:
            eventually(lambda: self._state(each["taskArn"]) == "RUNNING", "a task after the drain", WAIT_S)  # noqa: B023
            self._end(each["taskArn"])
        ecs.delete_service(service="moves", force=True)
        return "the service moved, the other task stopped at the deadline, and the host got tasks again"

    def reinstall(self) -> str:
        machine = self.machines[0]
        task = self._serve(machine)
        before = self._host(machine)["id"]
        (machine.folder / "machine-id").unlink()
        machine = self._restart(machine, join=False)
        shutil.rmtree(self.cluster.folder / machine.name)
        token = self.cluster.token()
        command = [str(BIN / "corral"), "join", "--data", str(self.cluster.folder / machine.name)]
        command += [token["address"], "--token", token["token"], "--name", machine.name]
        refused = subprocess.run(machine.command(*command), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert f"corral hosts forget {machine.name}" in refused.stderr, refused.stderr
        self._until(machine, "SILENT")
        self.cluster.cli("hosts", "forget", machine.name)
        assert self._state(task) == "STOPPED"
        self.cluster.join(machine, token)
        self._until(machine, "UP")
        found = self._host(machine)
        assert found["id"] != before and len(found["gpus"]) == 2, found
        fresh = self._run(["true"], machine)
        eventually(lambda: self._state(fresh) == "STOPPED", "a task", WAIT_S)
        return "a new host with the old name has GPUs and runs tasks"

    # -- the cluster ---------------------------------------------------------------------------------------------

    def _named(self, name: str) -> dict[str, Any]:
        return next((host for host in self.own("DescribeHosts")["hosts"] if host["name"] == name), {})

    def _host(self, machine: Machine) -> dict[str, Any]:
        return self._named(machine.name)

    def _until(self, machine: Machine, state: str) -> None:
        eventually(lambda: self.cluster.state(machine) == state, f"{machine.name} {state}", WAIT_S)

    def _state(self, task: str) -> str:
        [found] = self.cluster.ecs.describe_tasks(cluster=task.split("/")[1], tasks=[task])["tasks"]
        return str(found["lastStatus"])

    def _ended(self, job: str) -> str | None:
        [found] = self.cluster.corral.client("batch").describe_jobs(jobs=[job])["jobs"]
        return found["status"] if found["status"] in ("SUCCEEDED", "FAILED") else None

    def _define(self, family: str, command: list[str]) -> None:
        self.cluster.ecs.register_task_definition(family=family, containerDefinitions=[container(command)])

    def _there(self, machine: Machine) -> list[dict[str, str]]:
        return [{"type": "memberOf", "expression": f"attribute:corral.host-name == {machine.name}"}]

    def _run(self, command: list[str], machine: Machine, tags: dict[str, str] | None = None) -> str:
        self._define("one", command)
        given = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        [task] = self.cluster.ecs.run_task(taskDefinition="one", placementConstraints=self._there(machine), tags=given)["tasks"]
        return str(task["taskArn"])

    def _serve(self, machine: Machine) -> str:
        task = self._run(["sleep", "600"], machine)
        eventually(lambda: self._state(task) == "RUNNING", "the task runs", WAIT_S)
        return task

    def _end(self, task: str) -> None:
        self.cluster.ecs.stop_task(task=task)
        eventually(lambda: self._state(task) == "STOPPED", "the end of a task", WAIT_S)

    def _drain(self, machine: Machine) -> None:
        """Drain a host, and all hosts that no scenario names."""
        for each in (machine, *self.machines[2:]):
            if self._host(each).get("cluster") == "default":
                self.cluster.cli("hosts", "drain", each.name)

    def _service_task(self, machine: Machine, service: str = "service") -> str:
        """Wait until the only task of a service runs on a machine, and return its ARN."""
        ecs = self.cluster.ecs

        def running() -> str | None:
            found = ecs.list_tasks(serviceName=service)["taskArns"]
            tasks = ecs.describe_tasks(tasks=found)["tasks"] if found else []
            here = [task for task in tasks if task["lastStatus"] == "RUNNING"]
            arns = [task["taskArn"] for task in here if self._machine_of(task["containerInstanceArn"], [machine]) is machine]
            return arns[0] if arns else None

        return str(eventually(running, f"{service} on {machine.name}", WAIT_S))

    def _machine_of(self, instance: str, machines: list[Machine]) -> Any:
        ids = {host_instance_id(host["id"]): host["name"] for host in self.own("DescribeHosts")["hosts"]}
        name = ids.get(instance.rpartition("/")[2])
        return next((machine for machine in machines if machine.name == name), None)

    def _stop_agent(self, machine: Machine) -> None:
        machine.kill("corral.node")
        self._until(machine, "SILENT")

    def _join_copy(self, machine: Machine, folder: Path, log: Path, *words: str) -> None:
        command = (str(BIN / "corral"), "join", *words, "--data", str(folder), "--gpus", "sim:2", "--runtime", "process")
        machine.start(*command, log=log)

    def _restart(self, machine: Machine, *, join: bool = True) -> Machine:
        at = self.machines.index(machine)
        self.machines[at] = started = self.cluster.lab.restart(machine)
        if join:
            self.cluster.join(started)
        return started


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", metavar="NAME", action="append", help="run only this scenario")
    given = options.parse_args()
    if reason := why_not():
        sys.exit(f"this script cannot run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="corral-life-") as name, Lab(Path(name) / "lab") as lab:
        newer = other_version(Path(name) / "newer", NEWER, PROTOCOL + 1)
        cluster = Cluster(Path(name), lab, settings=SETTINGS, environment=newer)
        try:
            machines = [lab.add(f"gpu-{number}") for number in range(4)]
            token = cluster.token("--uses", str(len(machines)))
            for machine in machines:
                cluster.join(machine, token)
            for machine in machines:
                eventually(lambda: cluster.state(machine) == "UP", f"{machine.name} UP", WAIT_S)  # noqa: B023
            all_of_them = Scenarios(cluster, machines)
            cluster.cli("hosts", "drain", socket.gethostname())  # the machine of the server
            steps: list[Callable[[], str]] = [
                all_of_them.upgrade, all_of_them.clone, all_of_them.forget, all_of_them.fence, all_of_them.attempts,
                all_of_them.drain, all_of_them.reinstall,
            ]  # fmt: skip
            for step in steps:
                if not given.only or step.__name__ in given.only:
                    began = time.monotonic()
                    print(f"{step.__name__}: {step()} ({time.monotonic() - began:.0f} s)", flush=True)
        except AssertionError as wrong:
            print(f"WRONG: {wrong}")
            return 1
        finally:
            cluster.corral.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
