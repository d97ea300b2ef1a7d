"""ListRuns: the unfinished tasks of a cluster, in the order in which `corral ps` lists them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.cli.runs.tasks import needs
from corral.cli.screens.status import reserved_for
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.model.instance import host_pool
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.services.corral.handlers import HANDLERS as OWN
from corral.services.corral.runs import first_in_line
from corral.services.ecs import host_reports
from services.test_own_instances import CALLER, REGION
from services.test_own_instances import World as InstancesWorld
from store.rows import hello


class World(InstancesWorld):
    """A core with four GPUs, 4 CPU cores and 4 GiB, and task definitions that need 0 to 8 GPUs."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        for gpus in range(9):
            required = {"resourceRequirements": [{"type": "GPU", "value": str(gpus)}]} if gpus else {}
            container = {"name": "main", "image": "corral/host", "command": ["true"], "memory": 6, **required}
            self.call("RegisterTaskDefinition", family=f"gpus-{gpus}", containerDefinitions=[container])

    def start(self, gpus: int, name: str = "", *, count: int = 1, **options: str) -> Any:
        """Run tasks with queue options. Return the id of the task, or a list of ids."""
        self.clock.advance(1.0)
        tags = [{"key": f"corral:{key}", "value": value} for key, value in {"name": name, **options}.items() if value]
        tasks = self.call("RunTask", taskDefinition=f"gpus-{gpus}", tags=tags, count=count)["tasks"]
        ids = [task["taskArn"].rpartition("/")[2] for task in tasks]
        return ids if count > 1 else ids[0]

    def listed(self, limit: int = 100, cluster: str = "default") -> dict[str, Any]:
        return self.own("ListRuns", cluster=cluster, maxWaiting=limit)

    def waiting(self, limit: int = 100) -> list[tuple[str, int | None]]:
        return [(row["task"], row["place"]) for row in self.listed(limit)["waiting"]]

    def counts(self, cluster: str = "default") -> dict[str, int]:
        return self.store.tasks.listing.unfinished_counts(REGION, cluster)

    def rows(self, limit: int = 100) -> list[dict[str, Any]]:
        found = self.listed(limit)
        return [*found["running"], *found["waiting"]]

    def end(self, task_id: str) -> None:  # type: ignore[override]
        task = self.store.tasks.get(task_id)
        assert task is not None
        now_s = self.clock.now_s()
        self.run(lambda tx: host_reports.report(tx, "h", [Observed(run.attempt_id, 7, now_s, now_s, 0) for run in task.runs]))


def test_running_tasks_come_first_and_then_the_line() -> None:
    world = World()
    running = world.start(3, "pretrain 1")
    small = world.start(1)
    waiting = [world.start(gpus, name) for gpus, name in [(2, "lr0.1"), (1, ""), (2, "lr0.2"), (4, "big")]]
    rows = world.rows()
    assert [row["task"] for row in rows] == [running, small, *waiting]
    assert [row["place"] for row in rows] == [None, None, 1, 2, 3, 4]
    assert [row["state"] for row in rows] == ["PENDING", "PENDING", *["WAITING"] * 4]
    assert [row["taskName"] for row in rows] == ["pretrain 1", "gpus-1", "lr0.1", "gpus-1", "lr0.2", "big"]
    assert needs(rows[2]["needs"]) == "2 GPUs 6 MiB" and rows[2]["reason"].startswith(
        "pretrain 1 and gpus-1 hold 4 of 4 GPUs; needs 2 GPUs; first"
    )
    assert len(rows[0]["gpuIds"]) == 3 and rows[0]["reason"] == ""
    found = world.listed(2)
    assert world.waiting(2) == [(waiting[0], 1), (waiting[1], 2)] and [row["task"] for row in found["running"]] == [running, small]
    assert found["counts"] == {**world.counts(), "jobs": 0} == {"PENDING": 2, "RUNNING": 0, "STOPPING": 0, "WAITING": 4, "jobs": 0}
    assert sorted(found["gpuIndexes"].values()) == [0, 1, 2, 3]
    assert world.waiting(0) == []


def test_tasks_of_other_clusters_have_places_but_no_rows() -> None:
    """Launches of instances and tasks of other clusters wait in the same pool."""
    world = World()
    world.start(4)
    first = world.start(2)
    world.launch(1)
    second = world.start(1)
    assert world.waiting() == [(first, 1), (second, 3)]
    for limit in (1, 2, 3):
        assert len(world.waiting(limit)) == min(limit, 2)
    assert world.run(lambda tx: first_in_line(tx, "eu-west-1", "default", 10)) == []
    assert world.counts("train")["WAITING"] == 0


def test_tasks_that_are_held_back_come_after_the_line() -> None:
    world = World()
    running = world.start(4, "train")
    held = world.start(1, "held", hold="true")
    after = world.start(1, "after", after=running, hold="false")
    waiting = world.start(2)
    members = world.start(1, "array", count=3, array="a1b2 0 1 1")
    assert world.waiting() == [(waiting, 1), (members[0], 2), *((each, None) for each in [*members[1:], held, after])]
    assert [len(world.waiting(limit)) for limit in range(7)] == list(range(7))
    rows = {row["task"]: row for row in world.rows()}
    assert rows[held]["held"] and rows[held]["reason"] == f"held: `corral release {held[:8]}` releases it"
    assert not rows[after]["held"] and rows[after]["reason"] == f"waits for run train ({running[:8]})"
    assert rows[members[1]]["reason"] == "the array runs at most 1 task at a time" and world.counts()["WAITING"] == 6


def test_a_start_is_estimated_if_the_running_tasks_have_time_limits() -> None:
    world = World()
    world.start(4, **{"time-limit": "3600"})
    first, second = world.start(2, **{"time-limit": "60"}), world.start(4)
    rows = {row["task"]: row for row in world.rows()}
    now_s = world.clock.now_s()
    assert 3_500 < rows[first]["startsAtS"] - now_s < rows[second]["startsAtS"] - now_s < 3_900
    waiting = world.status()["waiting"]
    assert [row["startsAtS"] for row in waiting] == [rows[first]["startsAtS"], rows[second]["startsAtS"]]
    assert [row["place"] for row in waiting] == [1, 2] and "place 2 in line" in waiting[1]["reason"]


def test_an_unknown_cluster_is_an_error_with_its_name() -> None:
    with pytest.raises(ApiError, match="cluster nowhere does not exist"):
        World().listed(cluster="nowhere")


@pytest.mark.parametrize("seed", range(5))
def test_the_page_has_every_unfinished_task_once(seed: int) -> None:
    world, random = World(), Random(seed)
    started = [world.start(0)]
    for _ in range(40):
        match random.randrange(4):
            case 0 | 1:
                started.append(world.start(random.choice([0, 1, 1, 2, 3, 4, 8])))
            case 2:
                world.call("StopTask", task=random.choice(started))
            case 3:
                running = world.listed()["running"]
                if running:
                    world.end(random.choice(running)["task"])
    described = [
        task for at in range(0, len(started), 100) for task in world.call("DescribeTasks", tasks=started[at : at + 100])["tasks"]
    ]
    unfinished = {task["taskArn"].rpartition("/")[2]: task["lastStatus"] for task in described if task["lastStatus"] != "STOPPED"}
    rows, counts = world.rows(), world.counts()
    assert {row["task"]: "PROVISIONING" if row["state"] == "WAITING" else row["state"] for row in rows} == unfinished
    assert len(rows) == len(unfinished) == sum(counts.values())
    assert counts["WAITING"] == sum(row["state"] == "WAITING" for row in rows)
    places = [row["place"] for row in rows if row["state"] == "WAITING"]
    assert places == list(range(1, len(places) + 1))


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_sees_what_the_writer_sees(seed: int, tmp_path: Path) -> None:
    """Readers have copies of the free capacity and the claims. A copy does not change when the writer goes on."""
    world, random, copies = World(tmp_path / "state.db"), Random(seed), []
    reader = world.store.reader()
    started = [world.start(0)]
    for _ in range(12):
        for _ in range(3):
            match random.randrange(5):
                case 0 | 1:
                    started.append(world.start(random.choice([0, 1, 1, 2, 3, 4, 8]), **{"time-limit": random.choice(["", "60"])}))
                case 2:
                    world.call("StopTask", task=random.choice(started))
                case 3:
                    world.launch(random.choice([0, 1, 2]))
                case 4 if running := world.listed()["running"]:
                    world.end(random.choice(running)["task"])
        world.run(lambda tx: tx.store.publish())
        copies.append((world.store._published.fleet, world.store.fleet.snapshot()))
        reader.begin_reading()
        reader.show_published()
        tx = Tx(reader, world.clock.now_s(), RandomIds(), Settings())
        for name in ("GetStatus", "ListRuns", "DescribeInstances", "DescribeGpus"):
            assert OWN[name](tx, {}, CALLER) == world.own(name), name
        reader.end_reading()
    for copy, then in copies:
        copy.pool(host_pool("default")).groups()
        assert {name: {**each, "by held": []} for name, each in copy.snapshot().items()} == {
            name: {**each, "by held": []} for name, each in then.items()
        }
    world.store.close()


def test_the_free_gpus_of_a_reserved_host_are_shown_as_reserved() -> None:
    world = World()
    world.start(3)
    gpus = world.status()["hosts"][0]["gpus"]
    assert [reserved_for(gpu) for gpu in gpus] == [""] * 4
    waiting = world.start(2, "evaluate")
    status = world.status()
    shown = [reserved_for(gpu) for gpu in status["hosts"][0]["gpus"]]
    assert sorted(shown) == ["", "", "", f"reserved for {waiting[:8]} evaluate"]
    [row] = status["waiting"]
    assert (row["task"], row["place"], needs(row["needs"])) == (waiting, 1, "2 GPUs 6 MiB")


def test_a_task_that_is_too_large_for_the_host_reserves_nothing() -> None:
    world = World()
    world.start(3)
    world.start(8)
    assert not any(reserved_for(gpu) for gpu in world.status()["hosts"][0]["gpus"])


def test_several_hosts_are_told_apart() -> None:
    world = World()
    first = world.start(4, "one")
    assert world.rows()[0]["host"] is None, "one host needs no name"
    world.run(lambda tx: host_reports.hello(tx, hello("i", 2)))
    second = world.start(2, "two")
    world.launch(8)
    waiting = world.start(4, "three")
    names = {row["task"]: row["host"] for row in world.rows()}
    assert names == {first: "host h", second: "host i", waiting: None}
    assert sorted(world.listed()["gpuIndexes"].values()) == [0, 0, 1, 1, 2, 3], "an index is that on the host"
    assert {task["task"]: task["host"] for task in world.status()["running"]} == {first: "host h", second: "host i"}
    world.end(first)
    [recorded] = world.own("GetHistory")["tasks"]
    assert (recorded["name"], recorded["host"]) == ("one", "host h")
