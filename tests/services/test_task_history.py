"""The history of tasks on a core: what GetHistory shows, how long, and what a restart keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet.task_history import PAGE_MAX
from corral.model.gpu_metrics import GpuSample
from corral.model.run import Observed
from corral.model.settings import HistorySettings, Settings
from corral.operations.pagination import token_of
from corral.services.ecs import host_reports
from virtual_clock.group_world import GroupWorld
from virtual_clock.job_world import JobWorld

DAY_S = 86_400.0
HOUR_S = 3_600.0


class HistoryWorld(GroupWorld):
    def register(self, family: str = "train", **more: Any) -> None:
        container = {"name": "main", "image": "corral/host", "command": ["python", "train.py"], "workingDirectory": "/lab", **more}
        self.call("RegisterTaskDefinition", "ecs", family=family, containerDefinitions=[container], memory="64")

    def begin(self, family: str = "train", **more: Any) -> str:
        """Run a task, which starts at once. Return its id."""
        reply = self.call("RunTask", "ecs", taskDefinition=family, **more)
        task_id = str(reply["tasks"][0]["taskArn"]).rpartition("/")[2]
        self.report(task_id)
        return task_id

    def report(self, task_id: str, code: int | None = None) -> None:
        task, now_s = self.store.tasks.get(task_id), self.clock.now_s()
        assert task is not None
        started_s = task.started_at_s or now_s
        seen = [Observed(run.attempt_id, 1, started_s, now_s if code is not None else None, code) for run in task.runs]
        self.run(lambda tx: host_reports.report(tx, "h", seen))

    def finish(self, task_id: str, after_s: float = 10.0, code: int = 0) -> None:
        self.wait(after_s)
        self.report(task_id, code)

    def shown(self, task_id: str) -> bool:  # type: ignore[override]
        return bool(self.call("DescribeTasks", "ecs", tasks=[task_id])["tasks"])

    def page(self, **query: Any) -> dict[str, Any]:
        return page(self, **query)

    def sweep(self) -> None:
        self.run(lambda tx: tx.mark("sweep:"))
        self.settle()


def page(world: GroupWorld, **query: Any) -> dict[str, Any]:
    content: dict[str, Any] = world.call("GetHistory", "corral", **query)
    return content


def ids(content: dict[str, Any]) -> list[str]:
    return [task["taskArn"].rpartition("/")[2] for task in content["tasks"]]


def test_the_page_has_the_task_as_ecs_describes_it_and_more() -> None:
    world = HistoryWorld()
    world.register(resourceRequirements=[{"type": "GPU", "value": "2"}])
    tags = [{"key": "corral:name", "value": "lr0.1"}, {"key": "corral:git", "value": "abc1234+dirty"}]
    override = {"name": "main", "command": ["python", "b.py"], "environment": [{"name": "TOKEN", "value": "secret"}]}
    task_id = world.begin(tags=tags, startedBy="corral-run", overrides={"containerOverrides": [override]})
    described = world.call("DescribeTasks", "ecs", tasks=[task_id], include=["TAGS"])["tasks"][0]
    world.run(lambda tx: tx.store.tasks.history.add_sample(task_id, GpuSample("GPU-h-0", 80.0, 512)))
    world.finish(task_id, 60.0, code=1)
    content = world.page()
    [task] = content["tasks"]
    assert ("nextToken" in content, content["days"], content["nowS"]) == (False, 30.0, pytest.approx(world.clock.now_s(), abs=1))
    for member in ("taskArn", "clusterArn", "taskDefinitionArn", "group", "startedBy", "cpu", "memory", "tags", "createdAt"):
        assert task[member] == described[member], member
    assert (task["lastStatus"], task["name"], task["git"], task["exitCode"]) == ("STOPPED", "lr0.1", "abc1234+dirty", 1)
    assert (task["command"], task["folder"], task["failed"], task["hadEnvironment"]) == (["python", "b.py"], "/lab", True, True)
    assert (task["waitingSeconds"], task["wallSeconds"], task["gpus"]) == (0.0, pytest.approx(60.0, abs=0.1), 2)
    assert task["gpuUse"] == {
        "samples": 1, "meanUtilizationPercent": 80.0, "maxUtilizationPercent": 80.0, "peakMemoryMiB": 512,
    }  # fmt: skip
    assert task["containers"][0]["gpuIds"] == described["containers"][0]["gpuIds"]
    assert "secret" not in str(content)


def test_a_waiting_task_that_is_stopped_waited_until_then() -> None:
    world = HistoryWorld(gpus=1)
    world.register(resourceRequirements=[{"type": "GPU", "value": "1"}])
    first = world.begin()
    waiting = str(world.call("RunTask", "ecs", taskDefinition="train")["tasks"][0]["taskArn"])
    world.wait(30.0)
    world.call("StopTask", "ecs", task=waiting, reason="no longer needed")
    [task] = world.page()["tasks"]
    assert task["taskArn"] == waiting and task["waitingSeconds"] == pytest.approx(30.0, abs=0.1) and "wallSeconds" not in task
    assert (task["stopCode"], task["stoppedReason"], task["failed"]) == ("UserInitiated", "no longer needed", False)
    assert "exitCode" not in task
    second = str(world.call("RunTask", "ecs", taskDefinition="train")["tasks"][0]["taskArn"]).rpartition("/")[2]
    world.finish(first, 10.0)
    world.report(second)
    world.finish(second, 10.0)
    assert world.page(name="train")["tasks"][0]["waitingSeconds"] == pytest.approx(10.0, abs=0.1)


def test_ecs_forgets_a_task_after_an_hour_and_the_history_after_its_days() -> None:
    world = HistoryWorld(settings=Settings(history=HistorySettings(days=2)))
    world.register()
    old = world.begin()
    world.finish(old)
    world.sweep()
    world.wait(HOUR_S - 30)
    assert world.shown(old)
    world.wait(120)
    assert not world.shown(old) and ids(world.page()) == [old]
    world.wait(DAY_S)
    new = world.begin()
    world.finish(new)
    world.wait(DAY_S - HOUR_S)
    assert ids(world.page()) == [new], "the sweep has deleted the older one"
    world.wait(2 * DAY_S)
    assert ids(world.page()) == []


def test_many_records_are_deleted_over_several_transactions() -> None:
    world = HistoryWorld(settings=Settings(history=HistorySettings(tasks=5)))
    world.register()
    last = ""
    for _ in range(2):
        last = world.begin()
        world.finish(last)

    def copy(tx: Tx[Any]) -> None:
        tx.store.executemany(
            "INSERT INTO task_history (number, id, region, cluster, name, failed, stopped_at, record) "
            "SELECT ?, 'old', region, cluster, name, 0, stopped_at, record FROM task_history WHERE number = 1",
            [(-number,) for number in range(1_200)],
        )

    world.run(copy)
    transactions = world.core.store.execute("SELECT count(*) FROM task_history").fetchone()[0]
    assert transactions == 1_202
    world.sweep()
    assert ids(world.page())[0] == last and len(world.page()["tasks"]) == 5


def test_no_days_keep_nothing() -> None:
    world = HistoryWorld(settings=Settings(history=HistorySettings(days=0)))
    world.register()
    world.finish(world.begin())
    world.wait(1)
    world.sweep()
    assert ids(world.page()) == []


def test_a_deleted_definition_leaves_the_record_without_its_command() -> None:
    world = HistoryWorld()
    world.register()
    task_id = world.begin()
    world.finish(task_id)
    world.call("DeregisterTaskDefinition", "ecs", taskDefinition="train:1")
    world.call("DeleteTaskDefinitions", "ecs", taskDefinitions=["train:1"])
    [task] = world.page()["tasks"]
    assert task["command"] == ["python", "train.py"], "a stopped task still refers to it"
    world.sweep()
    world.wait(2 * HOUR_S)
    [task] = world.page(id=task_id[:6])["tasks"]
    assert "command" not in task and "folder" not in task and task["name"] == "train"


def test_children_of_a_batch_array_are_recorded_with_their_index_and_attempt() -> None:
    world = JobWorld()
    world.queue()
    parent = world.submit(arrayProperties={"size": 3}, retryStrategy={"attempts": 2})
    children = [f"{parent}:{at}" for at in range(3)]
    world.finish(children[0], code=1)
    world.finish(*children)
    found = page(world, limit=10)["tasks"]
    attempts = sorted((task["jobId"], task["arrayIndex"], task["attempt"], task["exitCode"]) for task in found)
    assert attempts == [
        (children[0], "0", "1", 1), (children[0], "0", "2", 0), (children[1], "1", "1", 0), (children[2], "2", "1", 0)
    ]  # fmt: skip
    assert [task["jobId"] for task in page(world, failed=True)["tasks"]] == [children[0]]
    assert {task["name"] for task in found} == {"batch-one"}


def test_records_survive_a_restart_and_a_task_that_ended_meanwhile_is_recorded(tmp_path: Path) -> None:
    world = HistoryWorld(path=tmp_path / "state.db")
    world.register(resourceRequirements=[{"type": "GPU", "value": "1"}])
    before, running = world.begin(), world.begin()
    world.finish(before)

    def sample(tx: Tx[Any]) -> None:
        tx.store.tasks.history.add_sample(running, GpuSample("GPU-h-1", 40.0, 100))
        tx.store.tasks.history.save_gpu_use()

    world.run(sample)
    world.restart()
    assert ids(world.page()) == [before]
    world.finish(running, code=7)
    found = world.page()
    assert ids(found) == [running, before] and found["tasks"][0]["gpuUse"]["meanUtilizationPercent"] == 40.0
    world.store.close()


# Pages


def test_pages_names_and_the_latest_of_each_name() -> None:
    world = HistoryWorld()
    for family in ("a", "b"):
        world.register(family)
    finished = []
    for family in ("a", "b", "a", "a"):
        finished.append(world.begin(family))
        world.finish(finished[-1])
    first = world.page(limit=3)
    assert ids(first) == finished[:0:-1] and ids(world.page(limit=3, nextToken=first["nextToken"])) == [finished[0]]
    assert "nextToken" not in world.page(limit=4)
    assert world.call("ListTaskNames", "corral") == {"names": ["a", "b"]}
    assert world.call("ListTaskNames", "corral", prefix="b") == {"names": ["b"]}
    latest = world.page(name="*", latest=True)
    assert [task["name"] for task in latest["tasks"]] == ["a", "b"]
    assert [task["sameName"] for task in world.page(name="a", latest=True)["tasks"]] == [3]
    assert ids(world.page(last=15)) == finished[:1:-1]
    assert ids(world.page(since=int(world.clock.now_s()) + 60)) == [] == ids(world.page(cluster="other"))


def test_wrong_parameters_are_refused_with_a_reason() -> None:
    world = HistoryWorld()
    for params, error in (
        ({"limit": 0}, "limit must be between 1 and"), ({"limit": PAGE_MAX + 1}, "limit must be between 1 and"),
        ({"latest": True}, "latest needs a name"), ({"nextToken": "x"}, "nextToken is not valid"),
        ({"nextToken": token_of("9" * 20)}, "nextToken is not valid"),
    ):  # fmt: skip
        with pytest.raises(ApiError, match=error):
            world.page(**params)
