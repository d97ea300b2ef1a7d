"""GPUs through ECS against a real server: ALL, several containers, NVIDIA_VISIBLE_DEVICES, and withheld GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from test_tasks import held_until, messages, register

from corral.operations.services import SERVICES
from corral.store import Store
from harness import Corral, container, eventually, wait_stopped
from store.rows import OWN, hello


@pytest.fixture(scope="module")
def four_gpus(tmp_path_factory) -> Iterator[Corral]:
    running = Corral(tmp_path_factory.mktemp("four") / "data", "sim:4xT4").start()
    yield running
    running.clear()


@pytest.fixture
def four(four_gpus) -> Iterator[Corral]:
    yield four_gpus
    four_gpus.stop_tasks()


def status(corral: Corral) -> dict:
    return corral.own("GetStatus")


def host_of(corral: Corral) -> dict:
    return status(corral)["hosts"][0]


def gpus_of(corral: Corral) -> dict[int, dict]:
    return {gpu["index"]: gpu for gpu in host_of(corral)["gpus"]}


def instance_of(ecs) -> dict:
    arns = ecs.list_container_instances()["containerInstanceArns"]
    return ecs.describe_container_instances(containerInstances=arns)["containerInstances"][0]


def resource(instance, which, name="GPU"):
    return next(item for item in instance[which] if item["name"] == name)["stringSetValue"]


def asks(value: str, command: list[str], name: str = "main", **more) -> dict:
    return container(command, name=name, resourceRequirements=[{"type": "GPU", "value": value}], **more)


def described(ecs, task: dict) -> dict:
    return ecs.describe_tasks(tasks=[task["taskArn"]])["tasks"][0]


def running(ecs, task: dict) -> dict:
    def is_running():
        found = described(ecs, task)
        return found if found["lastStatus"] == "RUNNING" else None

    return eventually(is_running, "running")


def hold(ecs, gpu_id: str, reason: str | None) -> None:
    """Hold a GPU with a reason; release it without one."""
    instance_arn = ecs.list_container_instances()["containerInstanceArns"][0]
    attribute = {"name": f"corral.hold.{gpu_id}", "targetType": "container-instance", "targetId": instance_arn}
    if reason is None:
        ecs.delete_attributes(attributes=[attribute])
    else:
        ecs.put_attributes(attributes=[attribute | {"value": reason}])


def test_all_waits_for_a_whole_host_and_has_all_of_it(four, tmp_path):
    ecs, logs = four.client("ecs"), four.client("logs")
    register(ecs, "one", asks("1", held_until(tmp_path / "go")))
    register(ecs, "all", asks("ALL", ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"],
                              logConfiguration=container([], 0, "all")["logConfiguration"]))  # fmt: skip
    one = ecs.run_task(taskDefinition="one")["tasks"][0]
    [failure] = ecs.run_task(taskDefinition="all", launchType="EC2")["failures"]
    assert failure["reason"] == "RESOURCE:GPU" and "needs all GPUs of a host" in failure["detail"]
    everything = ecs.run_task(taskDefinition="all")["tasks"][0]
    assert everything["lastStatus"] == "PROVISIONING"
    reason = everything["containers"][0]["reason"]
    assert "3 of 4 GPUs free on 1 host, but no host has all its GPUs free" in reason and one["taskArn"][-8:] in reason
    small = ecs.run_task(taskDefinition="one")["tasks"][0]
    assert small["lastStatus"] == "PROVISIONING", "the host that is being emptied is kept"
    (tmp_path / "go").touch()
    done, _ = wait_stopped(ecs, [everything["taskArn"], small["taskArn"]])
    gpu_ids = done["containers"][0]["gpuIds"]
    assert len(gpu_ids) == 4
    assert messages(logs, f"all/main/{done['taskArn'].rpartition('/')[2]}") == [",".join(gpu_ids)]


def test_with_all_no_other_container_can_require_a_gpu(client):
    ecs = client("ecs")
    for value in ("ALL", "1"):
        with pytest.raises(ClientError, match="If a container of a task requires ALL GPUs") as raised:
            register(ecs, "greedy", asks("ALL", ["true"]), asks(value, ["true"], "second"))
        assert raised.value.response["Error"]["Code"] == "ClientException"
    register(ecs, "two-containers", asks("ALL", ["true"]), container(["true"], name="second"))
    with pytest.raises(ecs.exceptions.ClientException, match="If a container of a task requires ALL GPUs"):
        more = [{"name": "second", "resourceRequirements": [{"type": "GPU", "value": "1"}]}]
        ecs.run_task(taskDefinition="two-containers", overrides={"containerOverrides": more})


@pytest.mark.parametrize(
    ("need", "says"),
    [
        ({"value": "0.5"}, "a container gets whole GPUs. To share a GPU, give sharingStrategy"),
        ({"value": "0"}, "whole number from 1 to 64, or ALL"),
        ({"value": "all"}, "or ALL"),
        ({}, "or ALL"),
        ({"value": "1", "sharingStrategy": {"nvidiaMps": {"memory": 1024}}}, "either value or sharingStrategy"),
    ],
)
def test_gpu_requirements_that_are_refused(client, need, says):
    ecs = client("ecs")
    with pytest.raises(ecs.exceptions.ClientException, match=says):
        register(ecs, "wrong", container(["true"], resourceRequirements=[{"type": "GPU", **need}]))


def test_several_containers_each_get_close_gpus(four, tmp_path):
    """Four T4 are two pairs, each under one switch."""
    ecs = four.client("ecs")
    sleeps = held_until(tmp_path / "go")
    register(ecs, "three", asks("1", sleeps, "a"), container(sleeps, name="b"), asks("2", sleeps, "c"))
    task = ecs.run_task(taskDefinition="three")["tasks"][0]
    index = {gpu["id"]: at for at, gpu in gpus_of(four).items()}
    given = {each["name"]: [index[gpu_id] for gpu_id in each.get("gpuIds", [])] for each in task["containers"]}
    assert given == {"a": [2], "b": [], "c": [0, 1]}
    assert host_of(four)["links"] == [[0, 4, 8, 8], [4, 0, 8, 8], [8, 8, 0, 4], [8, 8, 4, 0]]
    register(ecs, "one", asks("1", sleeps))
    assert index[ecs.run_task(taskDefinition="one")["tasks"][0]["containers"][0]["gpuIds"][0]] == 3


def test_a_close_pair_before_the_first_free_ones(four, tmp_path):
    ecs = four.client("ecs")
    register(ecs, "one", asks("1", held_until(tmp_path / "go")))
    register(ecs, "two", asks("2", held_until(tmp_path / "go")))
    index = {gpu["id"]: at for at, gpu in gpus_of(four).items()}
    taken = [
        [index[gpu_id] for gpu_id in ecs.run_task(taskDefinition=family)["tasks"][0]["containers"][0]["gpuIds"]]
        for family in ("one", "two", "one")
    ]
    assert taken == [[0], [2, 3], [1]]


# The old way


@pytest.mark.parametrize("asking", ["privileged", "all", "some", "id"])
def test_visible_devices_and_privileged(four, tmp_path, asking):
    ecs, logs = four.client("ecs"), four.client("logs")
    gpu_ids = [gpu["id"] for gpu in gpus_of(four).values()]
    register(ecs, "one", asks("1", held_until(tmp_path / "go")))
    held = ecs.run_task(taskDefinition="one")["tasks"][0]["containers"][0]["gpuIds"]
    assert held == gpu_ids[:1]
    value = {"privileged": "", "all": "all", "some": "0, 2", "id": gpu_ids[3]}[asking]
    expected = {"privileged": gpu_ids[1:], "all": gpu_ids[1:], "some": [gpu_ids[2]], "id": [gpu_ids[3]]}[asking]
    more = {"environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]} if value else {"privileged": True}
    command = ["sh", "-c", f"echo $NVIDIA_VISIBLE_DEVICES; until [ -e {tmp_path}/go ]; do sleep 0.02; done"]
    register(ecs, "old", container(command, 0, "old", **more))
    old = ecs.run_task(taskDefinition="old")["tasks"][0]
    assert old["containers"][0]["gpuIds"] == expected
    task_id = old["taskArn"].rpartition("/")[2]
    assert [gpu["id"] for gpu in gpus_of(four).values() if gpu["task"] == task_id] == expected
    (tmp_path / "go").touch()
    wait_stopped(ecs, [old["taskArn"]])
    assert messages(logs, f"old/main/{task_id}") == [",".join(expected)]
    assert not any(gpu["task"] == task_id for gpu in gpus_of(four).values())


def test_visible_devices_never_wait_and_take_no_reserved_gpu(four, tmp_path):
    ecs = four.client("ecs")
    sleeps = held_until(tmp_path / "go")
    register(ecs, "two", asks("2", sleeps))
    register(ecs, "four", asks("4", sleeps))
    register(ecs, "old", container(sleeps, privileged=True, name="a"), container(sleeps, privileged=True, name="b"))
    register(ecs, "none", container(sleeps, privileged=True, environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]))
    assert "gpuIds" not in ecs.run_task(taskDefinition="none")["tasks"][0]["containers"][0]
    ecs.run_task(taskDefinition="two")
    waiting = ecs.run_task(taskDefinition="four")["tasks"][0]
    assert waiting["lastStatus"] == "PROVISIONING"
    old = ecs.run_task(taskDefinition="old")["tasks"][0]
    assert old["lastStatus"] == "PENDING" and not any("gpuIds" in each for each in old["containers"])
    ecs.stop_task(task=waiting["taskArn"])
    first = ecs.run_task(taskDefinition="old")["tasks"][0]["containers"]
    assert [len(each.get("gpuIds", [])) for each in first] == [2, 0], "the first container takes what is free"
    again = ecs.run_task(taskDefinition="old", launchType="EC2")["tasks"][0]
    assert not any("gpuIds" in each for each in again["containers"])


def test_an_override_sets_visible_devices(client, tmp_path):
    ecs = client("ecs")
    register(ecs, "plain", container(["true"]))
    environment = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "1"}]
    override = {"containerOverrides": [{"name": "main", "environment": environment}]}
    assert len(ecs.run_task(taskDefinition="plain", overrides=override)["tasks"][0]["containers"][0]["gpuIds"]) == 1


# Kept away


def test_excluded_gpus_are_not_offered(own_corral, tmp_path):
    corral = own_corral("sim:4", "--exclude-gpus", "3,1").start()
    ecs = corral.client("ecs")
    gpus = gpus_of(corral)
    assert [gpus[at]["excluded"] for at in range(4)] == [False, True, False, True]
    instance = instance_of(ecs)
    offered = [gpus[0]["id"], gpus[2]["id"]]
    assert [gpu["gpuId"] for gpu in instance["gpuDevices"]] == offered
    assert resource(instance, "registeredResources") == resource(instance, "remainingResources") == offered
    register(ecs, "all", asks("ALL", held_until(tmp_path / "go")))
    task = ecs.run_task(taskDefinition="all")["tasks"][0]
    assert task["containers"][0]["gpuIds"] == offered
    register(ecs, "three", asks("3", ["true"]))
    waiting = ecs.run_task(taskDefinition="three")["tasks"][0]
    assert "the largest host has only 2 GPUs" in waiting["containers"][0]["reason"]
    # Started again with other flags, the agent that outlived the server is told to go, and the tasks run on.
    corral.kill("corral.server")
    corral._command[-1] = f"{gpus[0]['id']}"
    corral.start()
    eventually(lambda: [gpu["excluded"] for gpu in gpus_of(corral).values()] == [True, False, False, False], "other flags")
    assert gpus_of(corral)[0]["task"] == task["taskArn"].rpartition("/")[2]
    assert described(ecs, waiting)["lastStatus"] == "PROVISIONING"
    (tmp_path / "go").touch()
    [done] = wait_stopped(ecs, [waiting["taskArn"]])
    assert set(done["containers"][0]["gpuIds"]) == {gpus[1]["id"], gpus[2]["id"], gpus[3]["id"]}


@pytest.mark.parametrize(
    ("flag", "says"),
    [("4", "there is no GPU 4; there are 0 (GPU-"), ("0,GPU-x", "there is no GPU GPU-x"), ("-1", "there is no GPU -1")],
)
def test_an_unknown_excluded_gpu_is_refused(own_corral, flag, says):
    corral = own_corral("sim:4", f"--exclude-gpus={flag}")
    with pytest.raises(AssertionError, match="did not start"):
        corral.start()
    assert f"corral: --exclude-gpus {flag}: {says}" in corral.log()


def test_a_held_gpu_is_given_to_no_task(four, tmp_path):
    ecs = four.client("ecs")
    if "PutAttributes" not in SERVICES["ecs"].operations:
        pytest.skip("attributes are not served yet")
    gpus = [gpu["id"] for gpu in gpus_of(four).values()]
    register(ecs, "one", asks("1", held_until(tmp_path / "go")))
    register(ecs, "all", asks("ALL", ["true"]))
    lives = running(ecs, ecs.run_task(taskDefinition="one")["tasks"][0])
    assert lives["containers"][0]["gpuIds"] == gpus[:1]
    hold(ecs, gpus[0], "my own game")
    hold(ecs, gpus[1], "fan is loud")
    assert [gpu["held"] for gpu in gpus_of(four).values()] == ["my own game", "fan is loud", None, None]
    instance = instance_of(ecs)
    assert resource(instance, "registeredResources") == gpus
    assert resource(instance, "remainingResources") == gpus[2:]
    assert described(ecs, lives)["lastStatus"] == "RUNNING", "who has it keeps it"
    ecs.stop_task(task=lives["taskArn"])
    wait_stopped(ecs, [lives["taskArn"]])
    four.kill("corral.server")
    four.start()
    register(ecs, "four", asks("4", ["true"]))
    waiting = ecs.run_task(taskDefinition="four")["tasks"][0]
    assert "2 GPUs are withheld: 'my own game', 'fan is loud'" in waiting["containers"][0]["reason"]
    [done] = wait_stopped(ecs, [ecs.run_task(taskDefinition="all")["tasks"][0]["taskArn"]])
    assert done["containers"][0]["gpuIds"] == gpus[2:]
    hold(ecs, gpus[0], None)
    hold(ecs, gpus[1], None)
    wait_stopped(ecs, [waiting["taskArn"]])


# Others on the same GPUs


@pytest.fixture
def computes():
    """Start processes that use a GPU and belong to no task."""
    started: list[subprocess.Popen] = []

    def start(gpu_id: str) -> subprocess.Popen:
        command = [sys.executable, "-c", "print('up', flush=True); input()"]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu_id}
        started.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_no_task_gets_a_gpu_while_a_foreign_process_uses_it(own_corral, computes, tmp_path):
    corral = own_corral("sim:2").start()
    ecs = corral.client("ecs")
    gpus = [gpu["id"] for gpu in gpus_of(corral).values()]
    other = computes(gpus[0])
    shown = eventually(lambda: gpus_of(corral)[0]["foreign"], "seen")
    assert [each["pid"] for each in shown] == [other.pid] and shown[0]["name"].startswith("python")
    assert gpus_of(corral)[1]["foreign"] == []
    assert resource(instance_of(ecs), "remainingResources") == gpus[1:]
    register(ecs, "two", asks("2", ["true"]))
    register(ecs, "one", asks("1", held_until(tmp_path / "go")))
    one = ecs.run_task(taskDefinition="one")["tasks"][0]
    assert one["containers"][0]["gpuIds"] == gpus[1:]
    two = ecs.run_task(taskDefinition="two")["tasks"][0]
    assert f"1 GPU is withheld: process {other.pid} (python" in two["containers"][0]["reason"]
    # On the GPU of a task a foreign process is shown, and changes nothing for the task.
    foreign = computes(gpus[1])
    eventually(lambda: gpus_of(corral)[1]["foreign"], "the foreign process is reported")
    assert running(ecs, one)["containers"][0]["gpuIds"] == gpus[1:]
    # It is known again at once after a restart of everything.
    corral.kill("corral.server", "corral.node")
    corral.start()
    assert gpus_of(corral)[0]["foreign"] == shown
    (tmp_path / "go").touch()
    wait_stopped(ecs, [one["taskArn"]])
    assert resource(instance_of(ecs), "remainingResources") == [], "the task has ended, and the other computes on"
    foreign.kill()
    other.kill()
    other.wait()
    foreign.wait()
    [done] = wait_stopped(ecs, [two["taskArn"]])
    assert sorted(done["containers"][0]["gpuIds"]) == sorted(gpus)


def test_a_gpu_that_is_busy_already_is_known_before_anything_is_placed(own_corral, computes, tmp_path):
    corral = own_corral("sim:1").start()
    gpu_id = gpus_of(corral)[0]["id"]
    corral.stop()
    computes(gpu_id)
    corral.start()
    ecs = corral.client("ecs")
    register(ecs, "one", asks("1", ["true"]))
    assert ecs.run_task(taskDefinition="one", launchType="EC2")["failures"][0]["reason"] == "RESOURCE:GPU"


def test_processes_of_tasks_are_not_foreign(own_corral, tmp_path):
    """Short processes, many at once, and one that leaves its session: none of them withholds a GPU from the next task."""
    corral = own_corral("sim:2").start()
    ecs = corral.client("ecs")
    register(ecs, "short", asks("1", ["sh", "-c", "setsid sh -c 'sleep 0.01' & wait"]))
    arns = [task["taskArn"] for _ in range(10) for task in ecs.run_task(taskDefinition="short", count=10)["tasks"]]
    seen: list[dict] = []

    def all_done() -> bool:
        seen.extend(gpu for gpu in gpus_of(corral).values() if gpu["foreign"])
        tasks = [task for at in range(0, len(arns), 100) for task in ecs.describe_tasks(tasks=arns[at : at + 100])["tasks"]]
        return all(task["lastStatus"] == "STOPPED" for task in tasks)

    eventually(all_done, "all stopped", 60)
    assert not seen
    assert all(task["containers"][0]["exitCode"] == 0 for task in wait_stopped(ecs, arns))


def test_holds_survive_and_stand_in_the_rows(tmp_path: Path):
    store = Store(tmp_path / "state.db")
    store.begin()
    store.hosts.put(hello(gpus=3), 1.0)
    store.instances.put_attribute(OWN, "corral.hold.GPU-h-1", "mine")
    store.instances.put_attribute(OWN, "rack", "7")
    store.hosts.put_foreign("h", {"GPU-h-0": [(7, "blender")], "GPU-nobodys": [(8, "x")]})
    store.commit()
    store.close()
    store = Store(tmp_path / "state.db")
    slot = store.fleet.pool("hosts:default").slot(OWN)
    assert (slot.gpus, slot.total.gpus) == (["GPU-h-2"], 1)
    assert slot.withheld == {"GPU-h-1": "'mine'", "GPU-h-0": "process 7 (blender) computes on it"}
    assert store.instances.holds(OWN) == {"GPU-h-1": "mine"} and store.hosts.foreign("h") == {"GPU-h-0": [(7, "blender")]}
    store.close()


def test_corral_up_names_an_unknown_excluded_gpu(tmp_path: Path):
    command = [str(Path(sys.executable).with_name("corral")), "up", "--detach", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run([*command, "--gpus", "sim:2", "--exclude-gpus", "1,5"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "--exclude-gpus 1,5: there is no GPU 5; there are 0 (GPU-" in done.stderr
