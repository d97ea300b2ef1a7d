"""Members and errors of Corral's own operations that need a fault, several hosts, a lender or Batch, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from answers.recorder import handled
from corral.core.commands import Command
from corral.core.core import Outcome
from corral.core.errors import ApiError, Refused
from corral.fleet import instances
from corral.fleet.instances import InstanceRequest
from corral.model.agent_protocol import UpgradeOrder
from corral.model.gpu_metrics import GpuSample
from corral.model.instance import TypeMapping, ec2_id
from corral.model.run import Observed, RunPause
from corral.model.settings import ServerFacts, Settings
from corral.operations.services import SERVICES
from corral.services.ecs import host_reports
from services.test_host_life import Fleet
from services.test_lent_hosts import Lent
from store.rows import hello
from virtual_clock.group_world import CALLER
from virtual_clock.job_world import JobWorld

PROBLEMS = {
    "problems": [{"part": "agent", "host": "h", "problem": "does not respond"}],
    "failingHandovers": [{"to": "logs", "kind": "run notice", "tries": 3, "error": "disk full"}],
    "quarantine": [{"date": "2026-11-01", "blobs": 2, "erasedOn": "2026-11-08"}],
}


class World(JobWorld):
    """Hosts with two GPUs each."""

    def __init__(self, machines: int = 2, **settings: Any) -> None:
        super().__init__(2, machines, settings=Settings(**settings))

    def own(self, operation: str, **params: Any) -> Any:
        steps = SERVICES["corral"].steps.get(operation)
        return (
            self.call(operation, "corral", **params)
            if steps is None
            else handled("corral", operation, partial(self._run, steps, params))
        )

    def _run(self, steps: Any, params: dict[str, Any]) -> Any:
        running, result = steps(params, CALLER), None
        while True:
            try:
                result = self.run(running.send(result))
            except StopIteration as ended:
                return ended.value

    def run_gpus(self, gpus: int, count: int = 1, **tags: str) -> list[str]:
        """Run tasks with the tags `corral:NAME`, and return their ids."""
        needs = {"resourceRequirements": [{"type": "GPU", "value": str(gpus)}]} if gpus else {}
        return self.run_tasks(needs, count, tags)

    def share(self, memory_mib: int, **tags: str) -> str:
        """Run a task that shares a GPU, and return its id."""
        needs = {"type": "GPU", "sharingStrategy": {"nvidiaMps": {"memory": memory_mib}}}
        [task] = self.run_tasks({"resourceRequirements": [needs]}, 1, tags)
        return task

    def launch(self, **details: Any) -> str:
        """Launch an instance without GPUs, and return its id."""
        size = {"cluster": "", "type": "t", "gpus": 0, "cpu_units": 1024, "memory_mib": 1024}
        request = InstanceRequest(owner="root", region=CALLER.region, details=details, **size)
        return ec2_id(self.run(lambda tx: instances.launch(tx, request)).id)

    def run_tasks(self, needs: dict[str, Any], count: int, tags: dict[str, str]) -> list[str]:
        container = {"name": "main", "image": "corral/host", "command": ["true"], "memory": 6, **needs}
        self.call("RegisterTaskDefinition", "ecs", family="work", containerDefinitions=[container])
        given = [{"key": f"corral:{name}", "value": value} for name, value in tags.items()]
        tasks = self.call("RunTask", "ecs", taskDefinition="work", count=count, tags=given)["tasks"]
        self.settle()
        return [task["taskArn"].rpartition("/")[2] for task in tasks]

    def begins(self, task_id: str) -> None:
        """The host reports that the container of a task runs."""
        task = self.store.tasks.get(task_id)
        assert task is not None and task.instance_id is not None
        host, now_s = self.store.instances.host_of(task.instance_id), self.clock.now_s()
        self.run(lambda tx: host_reports.report(tx, host, [Observed(run.attempt_id, 7, now_s) for run in task.runs]))

    def transact(self, commands: Sequence[Command]) -> Outcome:
        """Run commands. While one of them waits, let the time pass."""
        outcome = super().transact(commands)
        while len(outcome.answers) < len(commands):
            self.clock.advance(1.0)
            outcome.answers += super().transact([]).answers
        return outcome

    def gpus(self) -> list[dict[str, Any]]:
        return list(self.own("DescribeGpus")["gpus"])


def refusal(world: World | Fleet, operation: str, **params: Any) -> str:
    with pytest.raises(ApiError) as error:
        world.own(operation, **params) if isinstance(world, World) else world.call(operation, **params)
    return error.value.code


def test_status_has_the_problems_of_the_server_and_the_instance_types() -> None:
    facts = ServerFacts(
        problems=lambda: PROBLEMS["problems"],
        failing_handovers=lambda: PROBLEMS["failingHandovers"],
        quarantine=lambda: PROBLEMS["quarantine"],
    )
    status = World(server=facts, instance_types={"p3.16xlarge": TypeMapping(gpus=2)}).own("GetStatus")
    assert {name: status[name] for name in PROBLEMS} == PROBLEMS
    assert status["instanceTypes"] == ["p3.16xlarge = {gpus = 2}"]


def test_the_samples_of_a_gpu_and_the_tasks_that_share_it() -> None:
    world = World(machines=1)
    first, second = world.share(4000, name="a"), world.share(6000, array="m 5 1 0")
    shared = next(gpu for gpu in world.gpus() if gpu["sharedBy"])
    tasks = {each["task"]: (each["taskName"], each["arrayIndex"]) for each in shared["sharedBy"]}
    assert tasks == {first: ("a", None), second: ("work", 5)} and shared["task"] in tasks
    assert (shared["allocatedMiB"], shared["powerW"], shared["temperatureC"]) == (10_000, None, None)
    [other] = [gpu for gpu in world.gpus() if gpu["id"] != shared["id"]]
    assert (other["allocatedMiB"], other["sharedBy"]) == (None, [])
    world.settings.server.samples = {shared["id"]: GpuSample(shared["id"], 50.0, 9000, 210.5, 61.0)}
    shared = next(gpu for gpu in world.gpus() if gpu["id"] == shared["id"])
    assert (shared["utilizationPercent"], shared["memoryUsedMiB"]) == (50.0, 9000)
    assert (shared["powerW"], shared["temperatureC"]) == (210.5, 61.0)


def test_the_members_of_an_array_have_their_index_wherever_they_are_shown() -> None:
    world = World()
    running, waiting = world.run_gpus(2, count=2, array="m 0 3 0"), world.run_gpus(2, array="m 6 1 0")
    status, runs = world.own("GetStatus"), world.own("ListRuns")
    assert [(each["task"], each["arrayIndex"]) for each in status["running"]] == [(running[0], 0), (running[1], 3)]
    assert [(each["task"], each["arrayIndex"]) for each in runs["running"]] == [(running[0], 0), (running[1], 3)]
    assert {gpu["arrayIndex"] for gpu in world.gpus()} == {0, 3}
    for listed in (status["waiting"], runs["waiting"]):
        assert [(each["task"], each["arrayIndex"]) for each in listed] == [(waiting[0], 6)]


def test_a_gpu_is_reserved_for_a_member_of_an_array() -> None:
    world = World()
    world.run_gpus(1, count=3)
    [waiting] = world.run_gpus(2, array="m 6 1 0")
    reserved = [gpu["reservedFor"] for gpu in world.gpus() if gpu["reservedFor"]]
    assert [(each["task"], each["arrayIndex"]) for each in reserved] == [(waiting, 6)]


def test_lines_of_batch_jobs_wait_and_gpus_are_reserved_for_them() -> None:
    world = World()
    world.queue("q")
    world.run_gpus(1, count=3)
    jobs = [world.submit("j", gpus=2) for _ in range(3)]
    [row] = world.own("GetStatus")["waiting"]
    assert (row["job"], row["jobs"], row["place"]) == (jobs[0], 3, 1) and row["jobQueue"] == "q"
    assert world.own("ListRuns")["counts"]["jobs"] == 3
    reserved = [gpu["reservedFor"] for gpu in world.gpus() if gpu["reservedFor"]]
    assert [(each["job"], each["jobQueue"], each["jobs"]) for each in reserved] == [(jobs[0], "q", 3)]


def test_unfinished_tasks_of_other_clusters_are_counted() -> None:
    world = World()
    world.run_gpus(1, count=3)
    assert world.own("ListRuns")["elsewhere"] == []
    world.call("CreateCluster", "ecs", clusterName="train")
    assert world.own("ListRuns", cluster="train")["elsewhere"] == [{"region": CALLER.region, "cluster": "default", "tasks": 3}]


def test_the_worker_of_a_queue_has_its_first_receive_and_the_messages_that_it_holds() -> None:
    world = World()
    [task] = world.run_gpus(0)
    url = world.call("CreateQueue", "sqs", QueueName="work")["QueueUrl"]
    world.call("SendMessage", "sqs", QueueUrl=url, MessageBody="m")
    assert world.own("DescribeQueueWorkers", queue="work", tasks=[task])["tasks"][task]["firstReceiveMs"] is None
    receive = SERVICES["sqs"].operations["ReceiveMessage"]
    world.clock.advance(1.0)
    world.run(lambda tx: receive(tx, {"QueueUrl": url}, replace(CALLER, task_id=task)))
    found = world.own("DescribeQueueWorkers", queue="work", tasks=[task])
    [wake], received_ms = found["wakes"], found["tasks"][task].pop("firstReceiveMs")
    assert found["tasks"][task] == {"held": 1, "leaving": False} and received_ms - wake["atMs"] == pytest.approx(1000, abs=2)


def test_tasks_of_this_machine_cost_the_price_of_its_gpu_hours() -> None:
    world = World(gpu_hour_price=2.0)
    world.run_gpus(2, name="train")
    world.clock.advance(1800.0)
    machine = world.own("GetUsage")["machine"]
    assert machine["gpuHourPrice"] == 2.0 and machine["fromS"] == pytest.approx(world.clock.now_s() - 1800.0)
    [train] = machine["names"]
    assert (train["name"], train["region"], train["tasks"]) == ("train", CALLER.region, 1)
    assert (train["gpuHours"], train["cost"]) == (pytest.approx(1.0), pytest.approx(2.0))
    assert machine["total"]["cost"] == pytest.approx(2.0)
    assert World().own("GetUsage")["machine"]["gpuHourPrice"] is None


def test_an_instance_names_its_host_if_there_are_several() -> None:
    world = World()
    world.launch()
    [shown] = world.own("DescribeInstances")["instances"]
    assert shown["host"] in ("host h", "host h1")


def test_a_spot_instance_is_interrupted_and_another_one_is_not() -> None:
    world = World()
    spot, on_demand = world.launch(InstanceLifecycle="spot"), world.launch()
    assert refusal(world, "InterruptSpotInstance", instance=on_demand) == "InvalidRequestException"
    assert refusal(world, "InterruptSpotInstance", instance=spot, notice=-1.0) == "InvalidRequestException"
    answer = world.own("InterruptSpotInstance", instance=spot, notice=60.0)
    assert answer == {"instance": spot, "terminatesAtS": pytest.approx(world.clock.now_s() + 60.0)}


def test_a_host_with_tasks_moves_to_its_new_cluster_later() -> None:
    world = World()
    world.call("CreateCluster", "ecs", clusterName="train")
    world.run_gpus(1, count=4)
    said = hello("h", 2, cpu_units=64 * 1024, memory_mib=256 * 1024)
    world.run(partial(host_reports.hello, message=replace(said, options=replace(said.options, cluster="train"))))
    hosts = {host["name"]: (host["cluster"], host["movesTo"]) for host in world.own("DescribeHosts")["hosts"]}
    assert hosts == {"host h": ("default", "train"), "host h1": ("default", None)}


def test_orders_need_the_agent_of_the_host() -> None:
    world = World(server=ServerFacts(is_connected=lambda host_id: False))
    [task] = world.run_gpus(1)
    world.begins(task)
    gpu = world.gpus()[0]["id"]
    assert refusal(world, "SetGpuFault", gpu=gpu) == "HostNotConnectedException"
    assert refusal(world, "SetGpuFault", gpu=gpu, xid=-1) == "InvalidRequestException"
    assert refusal(world, "SignalTask", task=task, signal="SIGTERM") == "HostNotConnectedException"
    assert refusal(world, "PauseTask", task=task) == "HostNotConnectedException"
    assert world.own("ResumeTask", task=task)["phase"] == "running", "a task that is not paused is not changed"


def test_a_paused_task_continues_only_on_a_connected_host() -> None:
    connected = ["all"]
    world = World(machines=1, server=ServerFacts(is_connected=lambda host_id: bool(connected)))
    [task] = world.run_gpus(1)
    world.begins(task)
    assert world.own("PauseTask", task=task)["phase"] == "pausing"
    [run] = world.store.tasks.get(task).runs  # type: ignore[union-attr]
    seen = Observed(run.attempt_id, 1, world.clock.now_s(), pause=RunPause(1, True, moved_bytes=2**30, took_s=1.5))
    world.run(lambda tx: host_reports.report(tx, "h", [seen]))
    found = world.own("DescribeTaskPause", task=task)
    assert (found["phase"], found["hostMemoryMiB"], found["moveOutSeconds"]) == ("paused", 1024, 1.5)
    connected.clear()
    assert refusal(world, "ResumeTask", task=task) == "HostNotConnectedException"


def test_all_sessions_are_revoked() -> None:
    saved: list[dict[str, Any]] = []
    world = World(server=ServerFacts(save_sessions=saved.append))
    assert world.own("RevokeSessions", all=True) == {"all": True}
    assert saved == [{"generation": 1}] and world.settings.sessions.generation == 1
    assert refusal(world, "RevokeSessions", all=True, task="0" * 32) == "InvalidRequestException"


def test_a_door_that_cannot_be_opened_creates_no_token() -> None:
    def closed() -> dict[str, str]:
        raise Refused("port 4567 is in use")

    world = World(server=ServerFacts(open_door=closed))
    assert refusal(world, "CreateJoinToken") == "DoorClosedException"
    assert world.own("ListJoinTokens") == {"tokens": []}


def test_an_upgrade_of_a_host_names_its_version_and_that_of_the_server() -> None:
    fleet = Fleet(1, server=ServerFacts(upgrade_order=lambda: UpgradeOrder("2", [])))
    assert fleet.call("UpgradeHost", host="box0") == {"id": "h0", "name": "box0", "agent": "1", "version": "2"}
    away = Fleet(1, server=ServerFacts(is_connected=lambda host_id: False))
    assert refusal(away, "UpgradeHost", host="box0") == "HostNotConnectedException"


def test_lenders_have_a_problem_advice_and_the_cost_of_their_machines_on_aws() -> None:
    facts = ServerFacts(
        lender_problems=lambda: {"slurm": "squeue does not answer"}, lender_advice=lambda: {"slurm": ["set a time limit"]}
    )
    fleet = Lent(server=facts)
    priced, other = fleet.launched("41", "p3.2xlarge"), fleet.launched("42")
    fleet.clock.advance(3600.0)
    lenders = {lender["name"]: lender for lender in fleet.call("ListLenders")["lenders"]}
    assert {name: (each["problem"], each["advice"]) for name, each in lenders.items()} == {
        "local": (None, []), "other": (None, []), "slurm": ("squeue does not answer", ["set a time limit"]),
    }  # fmt: skip
    costs = {each["instanceId"]: each["onDemand"] for each in lenders["slurm"]["allocations"]}
    assert costs == {ec2_id(priced): pytest.approx(3.06, abs=0.01), ec2_id(other): None}
