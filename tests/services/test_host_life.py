"""The life of joined hosts: machines that are copies, loss by order, old runs, drain, and GPUs that move to another host id."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, cast

import pytest
from msgspec.structs import replace

from answers.recorder import handled
from core.test_core import FullStore
from corral.core.commands import Command
from corral.core.errors import ApiError
from corral.fleet import hosts, instances
from corral.model.agent_protocol import SILENT_S
from corral.model.instance import InstanceState, host_instance_id, host_pool
from corral.model.joined_host import JoinedHost, JoinToken, differing_sources
from corral.model.run import STOP_GRACE_S, Observed
from corral.model.settings import Settings
from corral.model.stop_reasons import HOST_DRAINED, HOST_FORGOTTEN
from corral.model.task import ecs_arn
from corral.node.fingerprint import fingerprint
from corral.server.pages.metrics_page import read_facts
from corral.services.corral import joining
from corral.services.corral.handlers import HANDLERS as OWN
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.services.ecs.host_loss import FENCE_MARGIN_S
from corral.store import Store
from each import check_each
from services.test_instance_slots import P3
from simulation.clients import CALLER
from simulation.test_claim_queue import Small
from store.rows import derived_fleet

MACHINE = {"machine-id": "m", "board-uuid": "b"}


class Fleet(Small):
    """A core with joined hosts, and the orders that they get."""

    def __init__(self, *gpus: int, store: Store | None = None, **settings: Any) -> None:
        super().__init__(settings=Settings(**settings), store=store)
        self.orders: list[tuple[str, Any]] = []
        for number, has in enumerate(gpus):
            self.joins(number)
            self.hello_of(number, has)

    def joins(self, number: int) -> None:
        host = JoinedHost(f"h{number}", f"box{number}", f"key{number}", "t", "s", "", "", "", "10.0.0.1", "1", 1.0, machine=MACHINE)
        self.ask(lambda tx: tx.store.joined_hosts.put(host))

    def ask(self, handler: Any) -> Any:
        self.clock.advance(0.01)
        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults, outbox.faults
        self.orders += [(host, order) for host, of in outbox.orders.items() for order in (*of.start, *of.stop)]
        answer = outbox.answers[0][1]
        if isinstance(answer, Exception):
            raise answer
        assert self.store.fleet.snapshot() == derived_fleet(self.store).snapshot()
        return answer

    def call(self, operation: str, **params: Any) -> Any:
        own = OWN.get(operation)
        service, handler = ("ecs", HANDLERS[operation]) if own is None else ("corral", own)
        return handled(service, operation, lambda: self.ask(lambda tx: handler(tx, params, CALLER)))

    def hello_of(self, number: int, has: int, *runs: Observed, boot: str = "boot", **more: Any) -> None:
        self.ask(lambda tx: joining.identify(tx, f"h{number}", MACHINE, "10.0.0.1"))
        joined = self.store.joined_hosts.find(f"h{number}")
        assert joined is not None
        said = replace(self.hello(number, has), name=joined.name, boot_id=boot, runs=list(runs), **more)
        self.ask(lambda tx: host_reports.hello(tx, said))

    def report(self, number: int, *runs: Observed) -> None:
        self.ask(lambda tx: host_reports.report(tx, f"h{number}", runs))

    def beat(self, number: int, *lacks: str) -> list[str]:
        lacking = {f"h{number}": lacks} if lacks else {}
        again: list[str] = self.ask(lambda tx: hosts.heartbeats(tx, [f"h{number}"], lacking))
        return again

    def pass_silence(self, *heard: int) -> None:
        """Let the time pass after which a host is silent. These hosts report."""
        for _ in range(4):
            self.clock.advance(SILENT_S / 3)
            for number in heard:
                self.beat(number)
            self.ask(lambda tx: None)

    def start(self, gpus: int = 1, **tags: str) -> str:
        given = [{"key": f"corral:{name.replace('_', '-')}", "value": value} for name, value in tags.items()]
        [task] = self.call("RunTask", taskDefinition=f"needs-{gpus}", tags=given)["tasks"]
        return str(task["taskArn"].rpartition("/")[2])

    def task(self, task_id: str) -> Any:
        found = self.store.tasks.get(task_id)
        assert found is not None
        return found

    def run_of(self, task_id: str, stopped: bool = False) -> Observed:
        now_s = self.clock.now_s()
        return Observed(self.task(task_id).runs[0].attempt_id, 7, now_s - 1, now_s if stopped else None, 143 if stopped else None)

    def host_of(self, task_id: str) -> str | None:
        instance = self.task(task_id).instance_id
        return None if instance is None else self.store.instances.host_of(instance)

    def described(self) -> dict[str, dict[str, Any]]:
        return {host["name"]: host for host in self.call("DescribeHosts")["hosts"]}

    def stops(self) -> list[str]:
        return [order for _, order in self.orders if isinstance(order, str)]


def test_fingerprints_compare_what_both_have(tmp_path: Any) -> None:
    def check(case: tuple[dict[str, str], dict[str, str], list[str]]) -> None:
        before, now, expected = case
        assert differing_sources(before, now) == expected

    check_each(
        [
            (MACHINE, MACHINE, []),
            (MACHINE, {"machine-id": "m"}, []),
            ({}, MACHINE, []),
            (MACHINE, {"machine-id": "m", "board-uuid": "c"}, ["board-uuid"]),
            (MACHINE, {"machine-id": "n", "board-uuid": "b", "board-serial": "s"}, ["machine-id"]),
        ],
        check,
    )
    assert fingerprint(tmp_path) == {}
    (tmp_path / "etc").mkdir()
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    for text in ("", "uninitialized\n"):
        (tmp_path / "etc/machine-id").write_text(text)
        assert fingerprint(tmp_path) == {}
    (tmp_path / "etc/machine-id").write_text("3d1219c7c4c5404aaa1f6d2a48adfda4\n")
    (tmp_path / "sys/class/dmi/id/board_serial").write_text("Default string\n")
    (tmp_path / "sys/class/dmi/id/product_uuid").write_text("03000200-0400-0500-0006-000700080009\n")
    found = fingerprint(tmp_path)
    assert found.keys() == {"machine-id", "board-uuid"} and "3d1219" not in found["machine-id"]


def test_another_machine_is_refused_until_it_is_accepted() -> None:
    fleet = Fleet(2)
    other = MACHINE | {"board-uuid": "c"}
    with pytest.raises(ApiError, match="No other machine has presented"):
        fleet.call("AcceptHost", host="box0")
    identify = lambda machine: fleet.ask(lambda tx: joining.identify(tx, "h0", machine, "10.0.0.9"))  # noqa: E731
    why = identify(other)
    assert "board-uuid differs" in why and "corral join --new" in why and "corral hosts accept box0" in why
    assert "10.0.0.9" in fleet.described()["box0"]["reason"]
    with pytest.raises(ApiError, match=r"is connected.*join --new"):
        fleet.call("AcceptHost", host="box0")
    assert identify({"machine-id": "m"}) == ""
    fleet.pass_silence()
    with pytest.raises(ApiError, match="No other machine has presented"):
        fleet.call("AcceptHost", host="box0")
    assert identify(other)
    assert fleet.call("AcceptHost", host="box0")["address"] == "10.0.0.9"
    assert identify(other) == ""
    assert identify(MACHINE)


def test_a_copy_cannot_join_with_the_key_of_the_other_machine_nor_renew_its_certificate() -> None:
    fleet = Fleet(2)
    token = JoinToken("t", sha256(b"secret").hexdigest(), 2, 0, "", "", 0.0, 1e12)
    fleet.ask(lambda tx: tx.store.joined_hosts.add_token(token))
    request = joining.Redemption("t", "secret", "copy", "key0", "1", "10.0.0.9", MACHINE | {"machine-id": "n"})
    with pytest.raises(joining.JoinRefused, match="join --new"):
        fleet.ask(lambda tx: joining.redeem(tx, request))
    with pytest.raises(joining.JoinRefused, match="join --new"):
        fleet.ask(lambda tx: joining.certify(tx, "h0", "s2", "key0", "s", {"machine-id": "n"}))
    assert fleet.ask(lambda tx: joining.redeem(tx, replace(request, machine=MACHINE))).id == "h0"


def test_only_a_silent_host_is_forgotten_and_its_tasks_stop_with_the_reason() -> None:
    fleet = Fleet(2, 2)
    one, two = fleet.start(), fleet.start()
    fleet.report(int(str(fleet.host_of(one))[1:]), fleet.run_of(one))
    lost = str(fleet.host_of(one))
    number = int(lost[1:])
    with pytest.raises(ApiError, match="is connected"):
        fleet.call("ForgetHost", host=f"box{number}")
    assert fleet.host_of(two) == lost, "best fit"
    fleet.pass_silence(1 - number)
    silent = fleet.described()[f"box{number}"]
    assert silent["state"] == "SILENT" and "run `corral join` on it (10.0.0.1)" in silent["reason"]
    listed = fleet.call("ListRuns")["running"]
    assert {run["reason"].rpartition("; ")[2] for run in listed} == {f"its host box{number} does not report"}
    assert one in fleet.store.tasks.live
    assert fleet.call("ForgetHost", host=f"box{number}")["tasks"] == 2
    for task in (one, two):
        assert fleet.task(task).state == "STOPPED"
        assert fleet.task(task).stopped_reason == HOST_FORGOTTEN
        assert task not in fleet.store.tasks.live, "its credentials are void"
    assert (fleet.task(one).stop_code, fleet.task(two).stop_code) == ("TerminationNotice", "TaskFailedToStart")
    assert f"box{number}" not in fleet.described()
    assert len(fleet.call("ListContainerInstances")["containerInstanceArns"]) == 1
    for operation in ("DrainHost", "ResumeHost", "RenameHost"):
        with pytest.raises(ApiError, match=f"box{number} was forgotten"):
            fleet.call(operation, host=f"box{number}", name="x")
    fleet.call("ForgetHost", host=lost)  # again


def test_container_instances_of_several_hosts_come_in_pages() -> None:
    fleet = Fleet(1, 1, 1)
    first = fleet.call("ListContainerInstances", maxResults=2)
    second = fleet.call("ListContainerInstances", nextToken=first["nextToken"])
    assert len(first["containerInstanceArns"]) == 2 and "nextToken" not in second
    assert len({*first["containerInstanceArns"], *second["containerInstanceArns"]}) == 3


def test_a_host_that_returns_stops_old_work_before_it_gets_new_work() -> None:
    fleet = Fleet(1)
    task = fleet.start()
    running = fleet.run_of(task)
    fleet.report(0, running)
    fleet.pass_silence()
    fleet.call("ForgetHost", host="box0")
    assert fleet.beat(0) == ["h0"], "it must connect anew"
    waiting = fleet.start()
    fleet.hello_of(0, 1, running)
    assert fleet.stops() == [running.run_id] and fleet.host_of(waiting) is None
    assert (fleet.described()["box0"]["state"], fleet.described()["box0"]["reason"]) == (
        "ENDING", "it still ends 1 container of tasks that were given up"
    )  # fmt: skip
    fleet.hello_of(0, 1, running)  # connects anew
    assert fleet.host_of(waiting) is None
    fleet.report(0, replace(running, stopped_at_s=fleet.clock.now_s()))
    assert fleet.host_of(waiting) == "h0" and fleet.described()["box0"]["state"] == "UP"


def test_a_host_that_returns_stops_old_containers_in_the_order_of_their_dependencies() -> None:
    fleet = Fleet(1)
    database, program = (
        {"name": name, "image": "corral/host", "command": ["true"], "memory": 6} for name in ("database", "program")
    )
    needs = {"dependsOn": [{"containerName": "database", "condition": "START"}]}
    fleet.call("RegisterTaskDefinition", family="two", containerDefinitions=[database, {**program, **needs}])
    [answer] = fleet.call("RunTask", taskDefinition="two")["tasks"]
    ids = [run.attempt_id for run in fleet.task(answer["taskArn"].rpartition("/")[2]).runs]
    first, second = (Observed(run_id, 7, fleet.clock.now_s()) for run_id in ids)
    fleet.report(0, first)
    fleet.report(0, second)
    fleet.pass_silence()
    fleet.call("ForgetHost", host="box0")
    fleet.hello_of(0, 1, first, second)
    assert fleet.stops() == [second.run_id]
    fleet.hello_of(0, 1, first, second)  # connects anew
    assert fleet.stops() == [second.run_id, second.run_id]
    fleet.report(0, replace(second, stopped_at_s=fleet.clock.now_s()))
    assert fleet.stops()[2:] == [first.run_id]
    fleet.report(0, replace(first, stopped_at_s=fleet.clock.now_s()))
    assert fleet.described()["box0"]["state"] == "UP"


def test_a_restart_ends_the_quarantine() -> None:
    fleet = Fleet(1)
    task = fleet.start()
    fleet.report(0, fleet.run_of(task))
    fleet.pass_silence()
    fleet.call("ForgetHost", host="box0")
    waiting = fleet.start()
    fleet.hello_of(0, 1, boot="another")
    assert fleet.host_of(waiting) == "h0"
    assert fleet.store.hosts.old_runs("h0") == []


def test_a_forgotten_name_is_free_and_its_host_gets_another_one() -> None:
    fleet = Fleet(1, 1)
    fleet.pass_silence(1)
    with pytest.raises(ApiError, match="taken"):
        fleet.call("RenameHost", host="box1", name="box0")
    fleet.call("ForgetHost", host="box0")
    assert fleet.call("RenameHost", host="box1", name="box0")["name"] == "box0"
    fleet.hello_of(0, 1)
    assert set(fleet.described()) == {"box0", "box0-h0"}
    names = [row[0] for row in fleet.store.execute("SELECT name FROM joined_host ORDER BY id")]
    assert names == ["box0-h0", "box0"]
    for name, text in (("box0", "taken"), ("a b", "not valid")):
        with pytest.raises(ApiError, match=text):
            fleet.call("RenameHost", host="h0", name=name)


def test_a_silent_host_is_lost_after_the_time_of_its_cluster_and_its_fences() -> None:
    def lost_after_s(**tags: str) -> float:
        fleet = Fleet(1, lost_after={"default": 60.0})
        began_s, task = fleet.clock.now_s(), fleet.start(**tags)
        while fleet.task(task).state != "STOPPED":
            assert fleet.clock.now_s() < began_s + 1000.0
            fleet.clock.advance(1.0)
            fleet.ask(lambda tx: None)
        assert "60 s of lost_after" in str(fleet.task(task).stopped_reason)
        assert fleet.described()["box0"]["state"] == "LOST"
        fleet.hello_of(0, 1)
        assert fleet.described()["box0"]["state"] == "UP"
        return fleet.clock.now_s() - began_s

    assert 60 <= lost_after_s() < 64
    assert 60 <= lost_after_s(fence_after="10") < 64
    assert 100 + STOP_GRACE_S + FENCE_MARGIN_S <= lost_after_s(fence_after="100") < 104 + STOP_GRACE_S + FENCE_MARGIN_S


def test_a_host_with_fenced_tasks_is_forgotten_when_they_have_ended() -> None:
    fleet = Fleet(1)
    task = fleet.start(fence_after="100")
    with pytest.raises(ApiError, match="cannot be changed"):
        fleet.call("TagResource", resourceArn=ecs_arn("123456789012", "us-east-1", f"task/default/{task}"),
                   tags=[{"key": "corral:fence-after", "value": "20"}])  # fmt: skip
    fleet.pass_silence()
    with pytest.raises(ApiError, match="tasks with a fence, which end by themselves in at most 1"):
        fleet.call("ForgetHost", host="box0")
    fleet.clock.advance(100 + STOP_GRACE_S)
    fleet.call("ForgetHost", host="box0")
    fleet = Fleet(1)
    fleet.start(fence_after="100")
    fleet.pass_silence()
    fleet.call("ForgetHost", host="box0", now=True)


def test_deregistration_of_a_silent_host_forgets_it() -> None:
    fleet = Fleet(1)
    task, own = fleet.start(), host_instance_id("h0")
    with pytest.raises(ApiError, match="is connected"):
        fleet.call("DeregisterContainerInstance", containerInstance=own, force=True)
    fleet.pass_silence()
    with pytest.raises(ApiError, match="running tasks"):
        fleet.call("DeregisterContainerInstance", containerInstance=own)
    answer = fleet.call("DeregisterContainerInstance", containerInstance=own, force=True)["containerInstance"]
    assert answer["status"] == "INACTIVE" and fleet.task(task).stopped_reason == HOST_FORGOTTEN


def test_gpus_move_only_from_a_host_without_leases_that_is_silent_or_lost() -> None:
    fleet = Fleet(2)
    fleet.joins(1)
    task = fleet.start()
    fleet.report(0, fleet.run_of(task))
    same = fleet.hello(0, 2).gpus

    def owners() -> list[str]:
        return [row[0] for row in fleet.store.execute("SELECT host_id FROM gpu ORDER BY position")]

    fleet.hello_of(1, 0, gpus=same)
    assert owners() == ["h0", "h0"], "the other host is connected"
    fleet.call("PutAttributes", attributes=[
        {"name": f"corral.hold.{same[1].gpu_id}", "value": "mine", "targetId": host_instance_id("h0"),
         "targetType": "container-instance"}
    ])  # fmt: skip
    fleet.pass_silence(1)
    fleet.hello_of(1, 0, gpus=same)
    assert owners() == ["h0", "h1"], "only the GPU without a lease"
    assert fleet.store.instances.holds(host_instance_id("h1")) == {same[1].gpu_id: "mine"}
    assert fleet.beat(1, same[0].gpu_id) == []
    fleet.call("ForgetHost", host="box0")
    fleet.hello_of(1, 0, gpus=same)
    assert owners() == ["h0", "h1"], "the machine has not restarted: the task may still compute on it"
    fleet.hello_of(1, 0, gpus=same, boot="another")
    assert owners() == ["h1", "h1"]
    assert fleet.beat(1, same[0].gpu_id) == [], "it has them"
    fleet.hello_of(0, 2)
    assert owners() == ["h1", "h1"] and fleet.store.instances.gpus(host_instance_id("h0")) == []


def test_a_host_that_was_installed_again_connects_anew_when_its_old_self_is_forgotten() -> None:
    fleet = Fleet(1)
    fleet.joins(1)
    task = fleet.start()
    running = fleet.run_of(task)
    fleet.report(0, running)
    same = fleet.hello(0, 1).gpus
    fleet.pass_silence()
    fleet.hello_of(1, 0, gpus=same, boot="another")
    assert fleet.beat(1, same[0].gpu_id) == [], "the old host has a task on it"
    fleet.call("ForgetHost", host="box0")
    assert fleet.beat(1, same[0].gpu_id) == [], "the old task may still compute on it"
    fleet.hello_of(0, 1, running)
    fleet.report(0, replace(running, stopped_at_s=fleet.clock.now_s()))
    fleet.pass_silence(1)
    assert fleet.beat(1, same[0].gpu_id) == ["h1"]
    fleet.hello_of(1, 0, gpus=same, boot="another")
    assert {row[0] for row in fleet.store.execute("SELECT host_id FROM gpu")} == {"h1"}


def test_heartbeats_write_nothing_and_hosts_have_no_timers() -> None:
    fleet = Fleet(1, 1, 1)
    written = 0
    for second in range(100):
        fleet.clock.advance(0.99)
        beats = fleet.beat(second % 3)
        assert beats == []
        written += fleet.store.has_written()
    assert written <= 10, "once for all hosts, when the first of them could be silent"
    assert not fleet.store.execute("SELECT key FROM due WHERE key LIKE 'host:%'").fetchall()
    last_s = fleet.clock.now_s()
    assert fleet.described()["box0"]["seenS"] == pytest.approx(last_s, abs=0.1)
    for passed_s, state in ((SILENT_S - 0.1, "UP"), (0.1, "SILENT")):
        fleet.clock.advance(passed_s)
        fleet.ask(lambda tx: None)
        assert fleet.described()["box0"]["state"] == state
    [(row_s,)] = fleet.store.execute("SELECT seen_at FROM host WHERE id = 'h0'").fetchall()
    assert row_s == pytest.approx(last_s, abs=0.1), "the row says when the host was last heard"


def test_the_page_of_metrics_reads_all_hosts_at_once() -> None:
    def statements(hosts: int) -> int:
        fleet, seen = Fleet(*[1] * hosts), list[str]()
        fleet.start()
        fleet.store.connection.set_trace_callback(seen.append)
        fleet.transact(read_facts)
        fleet.store.connection.set_trace_callback(None)
        return len(seen)

    assert statements(2) == statements(20)


def test_a_host_that_reports_while_the_disk_is_full_is_not_lost() -> None:
    for is_connected in (True, False):
        fleet = Fleet(1, store=FullStore(None), lost_after={"default": 60.0})
        task, said = fleet.start(), replace(fleet.hello(0, 1), host_id="h0", name="box0")
        handlers = {
            True: lambda tx: hosts.heartbeats(tx, ["h0"]),
            False: lambda tx, said=said: host_reports.hello(tx, said),  # the server cannot store it, and the host tries again
        }
        store = cast("FullStore", fleet.store)
        store.full = store.is_readable = True
        for _ in range(60):
            fleet.clock.advance(5.0)
            fleet.core.transact([Command(handlers[is_connected], lambda answer: None)])
        store.full = False
        for _ in range(5):
            fleet.ask(lambda tx: None)
            assert (fleet.described()["box0"]["state"], fleet.task(task).stopped_reason) == ("UP", None), is_connected
            fleet.clock.advance(1.0)


def test_a_host_is_not_lost_because_the_server_was_suspended() -> None:
    fleet = Fleet(1, lost_after={"default": 60.0})
    task = fleet.start()
    fleet.clock.advance(600.0)
    fleet.ask(lambda tx: None)
    assert (fleet.task(task).state, fleet.described()["box0"]["state"]) != ("STOPPED", "LOST")
    fleet.clock.advance(SILENT_S - 1.0)
    fleet.hello_of(0, 1)
    fleet.clock.advance(1.0)
    assert fleet.beat(0) == [] and fleet.task(task).state != "STOPPED"
    fleet.pass_silence()
    assert fleet.described()["box0"]["state"] == "SILENT"
    fleet.clock.advance(600.0)  # suspended while the host is silent
    fleet.ask(lambda tx: None)
    assert fleet.described()["box0"]["state"] == "SILENT"
    fleet.clock.advance(SILENT_S)
    fleet.ask(lambda tx: None)
    assert fleet.described()["box0"]["state"] == "LOST"


def test_instances_on_a_lost_host_terminate() -> None:
    fleet = Fleet(4)
    launched = fleet.ask(lambda tx: instances.launch(tx, P3))
    fleet.pass_silence()
    fleet.call("ForgetHost", host="box0")
    found = fleet.store.instances.get(launched.id)
    assert found is not None and found.state is InstanceState.TERMINATED and found.end_reason == HOST_FORGOTTEN
    fleet.hello_of(0, 4, boot="another")
    assert fleet.store.fleet.pool(host_pool("default")).free_gpus == 4


def test_a_drained_host_gets_no_tasks_and_stops_them_at_its_deadline() -> None:
    fleet = Fleet(2)
    task = fleet.start()
    fleet.report(0, fleet.run_of(task))
    assert fleet.call("DrainHost", host="box0")["tasks"] == 1
    waiting = fleet.start()
    assert fleet.host_of(waiting) is None and fleet.described()["box0"]["state"] == "DRAINING"
    fleet.hello_of(0, 2, fleet.run_of(task))
    assert fleet.described()["box0"]["state"] == "DRAINING", "it stays so after it has connected anew"
    fleet.call("ResumeHost", host="box0")
    assert fleet.host_of(waiting) == "h0"
    fleet.call("DrainHost", host="box0", deadline=60.0)
    fleet.call("ResumeHost", host="box0")
    fleet.clock.advance(61)
    fleet.beat(0)
    assert fleet.stops() == []
    fleet.call("DrainHost", host="box0", deadline=60.0)
    fleet.clock.advance(61)
    fleet.beat(0)
    stopped = set(fleet.stops())
    assert stopped == {fleet.task(each).runs[0].id for each in (task, waiting)}
    assert fleet.task(task).stopped_reason == HOST_DRAINED
    with pytest.raises(ApiError, match="deadline"):
        fleet.call("DrainHost", host="box0", deadline=-1.0)


def test_a_later_deadline_of_a_drain_counts() -> None:
    fleet = Fleet(2)
    task = fleet.start()
    fleet.report(0, fleet.run_of(task))
    fleet.call("DrainHost", host="box0", deadline=60.0)
    fleet.call("DrainHost", host="box0", deadline=600.0)
    for left_s in (61, 500):
        fleet.clock.advance(left_s)
        fleet.beat(0)
        assert fleet.stops() == []
    fleet.clock.advance(61)
    fleet.beat(0)
    assert fleet.stops() == [fleet.task(task).runs[0].id]


def test_the_stop_of_all_tasks_names_hosts_that_do_not_respond() -> None:
    fleet = Fleet(2, 1)
    tasks = [fleet.start(), fleet.start(), fleet.start()]
    fleet.pass_silence(1)
    answer = fleet.call("StopAllTasks", pause=15.0)
    assert answer["silent"] == {"box0": [fleet.host_of(task) for task in tasks].count("h0")}


def test_orders_of_hosts_that_do_not_exist_are_refused() -> None:
    fleet = Fleet(1)
    fleet.joins(1)
    for operation in ("DrainHost", "ResumeHost", "ForgetHost", "AcceptHost"):
        with pytest.raises(ApiError, match="was not found"):
            fleet.call(operation, host="none")
    with pytest.raises(ApiError, match="has not connected yet"):
        fleet.call("DrainHost", host="box1")
    assert fleet.call("ForgetHost", host="box1")["tasks"] == 0
    assert set(fleet.described()) == {"box0"}
    fleet.ask(lambda tx: host_reports.hello(tx, fleet.hello(7, 1)))
    with pytest.raises(ApiError, match="machine of the server"):
        fleet.call("ForgetHost", host="h7")
    with pytest.raises(ApiError, match="machine of the server"):
        fleet.call("RenameHost", host="h7", name="x")
