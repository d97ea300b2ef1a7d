"""What a removed user has left passes to another owner: every row with an owner, and what is in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.owned_rows import owned_tables
from corral.fleet.passing import begin_passing, is_passing, note_passed, note_removed, record_of
from corral.model.passing import PassingStep, step_of
from corral.model.principal import ROOT, iam_user
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import LOGS, METRICS, passing
from corral.services.ecs.task_metadata import task_credentials
from corral.store import Store
from corral.store.owner_use import OwnerUses
from corral.store.stored_bytes import SUMS
from corral.store.task_owners import TaskOwners
from corral.telemetry import LogStore, MetricStore
from virtual_clock.environment_world import EnvironmentWorld
from virtual_clock.group_world import CALLER
from virtual_clock.service_world import ServiceWorld
from virtual_clock.test_owners import ALICE, CASES, CONTAINER, call

BOB = "user/bob"
GONE = "user/alice (removed)"


def pass_to(world: Any, to: str = BOB, *, name: str = "alice") -> dict[str, Any]:
    """Remove the user without IAM, and pass what is left. The lanes of logs and metrics have nothing."""
    world.run(lambda tx: (note_removed(tx, name), begin_passing(tx, name, to)))
    world.settle()
    for lane in ("logs", "metrics"):
        world.run(lambda tx, lane=lane: note_passed(tx, name, lane, 0))
    found = world.run(lambda tx: record_of(tx, name))
    assert found is not None and found["to"] == to and not is_passing(found)
    return found  # type: ignore[no-any-return]


def texts_naming(store: Any, text: str) -> set[str]:
    """TABLE:VALUE for all values that contain a text, also in documents."""
    found = set()
    for (table,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for row in store.execute(f"SELECT * FROM {table}").fetchall():
            values = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row]
            found |= {f"{table}:{value}" for value in values if text in value}
    return found


def test_every_table_with_an_owner_passes_or_says_why_not() -> None:
    """A new table with a column `owner` passes row by row. If its rows are in memory, too, it needs a function in SETTERS."""
    special = {name for names in (passing.FOLLOWING, passing.STORAGE, passing.HISTORY) for name in names}
    tables = {
        name: owned_tables(kind(None).execute) for name, kind in (("state", Store), ("logs", LogStore), ("metrics", MetricStore))
    }
    assert special < tables["state"].keys(), "each exception is a table"
    every = {table for of_lane in tables.values() for table in of_lane}
    passed = {table.name for of_lane in tables.values() for table in passing.passing_tables(of_lane)}
    assert passed | special == every and not passed & special
    assert passing.SETTERS.keys() <= passed and set(passing.FIRST) <= passed
    for of_lane in tables.values():
        assert all(table.keys for table in of_lane.values())


@pytest.mark.parametrize("case", CASES)
def test_what_a_user_has_created_passes(case: str) -> None:
    kind, create, _ = CASES[case]
    world = kind(gpus=1)
    create(world)
    owned = {table.name for table in owned_tables(world.store.execute).values() if owns(world.store, table.name, ALICE)}
    count = sum(owns(world.store, name, ALICE) for name in owned - {"claim", "job_line", "stored_bytes", *passing.HISTORY})
    found = pass_to(world)
    assert found["passed"] >= count > 0
    left = {name for name in owned if owns(world.store, name, ALICE)}
    assert left <= passing.HISTORY, "what past hours have cost stays with their owner"
    for name in owned - passing.HISTORY:
        assert owns(world.store, name, BOB), name
    past = ("outbox:", "instance_usage:", "owner_")
    named = {text for text in texts_naming(world.store, "user/alice") if not text.startswith(past)}
    strange = [each for each in named if GONE not in each and f":{ALICE}" not in each and "task_history" not in each]
    assert not strange, "the name stays in ARNs of the creator, with programs, and in the history"
    claims = list(world.store.fleet.pool("hosts:default").heads())
    assert {claim.owner for claim in claims} <= {BOB}
    assert world.store.execute("SELECT * FROM stored_bytes ORDER BY owner").fetchall() == sorted(world.store.execute(SUMS))
    in_memory = {task.owner for task in world.store.tasks.cache.unfinished().values()}
    in_memory |= {each.owner for each in world.store.instances.slices()}
    assert in_memory <= {BOB}
    assert world.store.tasks.owners.of_users() == TaskOwners(world.store, None).of_users()
    uses, of_rows = world.store.owner_uses, OwnerUses(world.store)
    of_rows.rebuild(world.store.instances.slices())
    assert uses.snapshot()["memory"] == of_rows.snapshot()["memory"] and ALICE not in uses.holders()
    assert [uses.held(each) for each in (ALICE, BOB)] == [of_rows.held(each) for each in (ALICE, BOB)]


def owns(store: Any, table: str, owner: str) -> int:
    return int(store.execute(f"SELECT count(*) FROM {table} WHERE owner = ?", (owner,)).fetchone()[0])


@pytest.mark.parametrize("case", ["tasks", "a service", "jobs", "instances", "a stack"])
def test_a_pass_that_fails_changes_nothing(case: str) -> None:
    kind, create, _ = CASES[case]
    world = kind(gpus=1)
    create(world)

    class Failed(ApiError):
        code = "Failed"

    def fail(tx: Any) -> None:
        for table in passing.passing_tables(owned_tables(tx.store.execute)):
            for key, owner in table.rows_after(tx.store.execute, None, 100):
                if owner == ALICE:
                    step = PassingStep(ALICE, BOB)
                    passing.SETTERS.get(table.name, passing._set_row)(tx, table, key, step)
        raise Failed("undo")

    before = [*world.store.connection.iterdump()]
    with suppress(Failed):
        world.run(fail)
    assert [*world.store.connection.iterdump()] == before
    assert {claim.owner for claim in world.store.fleet.pool("hosts:default").heads()} <= {ALICE}
    assert world.store.owner_uses.held(BOB) == 0.0 == world.store.owner_uses.memory_mib(BOB)
    assert {task.owner for task in world.store.tasks.cache.unfinished().values()} <= {ALICE}


def test_waiting_jobs_join_the_line_of_the_new_owner() -> None:
    world = EnvironmentWorld(gpus=1)
    world.queue("q")
    bob = replace(CALLER, principal=iam_user(CALLER.account, "bob"))
    submit: Callable[..., Any] = SERVICES["batch"].operations["SubmitJob"]
    one = {"jobQueue": "q", "jobDefinition": "one"}
    of_bob = [world.run(lambda tx: submit(tx, {"jobName": "b", **one}, bob))["jobId"] for _ in range(2)]
    array = call(world, "batch", "SubmitJob", jobName="a", arrayProperties={"size": 120}, **one)["jobId"]
    single = call(world, "batch", "SubmitJob", jobName="s", **one)["jobId"]
    world.settle()
    lines = world.store.job_lines.lines_of(CALLER.region, "q")
    assert {line.key.owner: line.count for line in lines} == {BOB: 1, ALICE: 121}
    pass_to(world)
    [line] = world.store.job_lines.lines_of(CALLER.region, "q")
    assert (line.key.owner, line.count, line.head) == (BOB, 122, of_bob[1])
    for job_id in (array, single, f"{array}:7"):
        job = world.store.jobs.get(job_id)
        assert job is not None and job.owner == BOB and job.spec.passed_from == GONE, "the programs are still those of alice"
    of_bobs_own = world.store.jobs.get(of_bob[1])
    assert of_bobs_own is not None and of_bobs_own.spec.passed_from == ""
    world.check_derived()


def test_programs_of_a_removed_user_get_no_rights_of_the_new_owner() -> None:
    """They could read what belongs to root. What root deploys again is its own."""
    world = ServiceWorld(gpus=2)
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "CreateService", serviceName="web", taskDefinition="one", desiredCount=1)
    call(world, "ecs", "RunTask", taskDefinition="one")
    assert owners_of_programs(world) == {(ALICE, ALICE)}
    pass_to(world, ROOT)
    assert owners_of_programs(world) == {(ROOT, GONE)}
    world.call("UpdateService", "ecs", service="web", desiredCount=2)  # waits for a GPU
    world.settle()
    assert [each.program_owner for each in world.store.tasks.cache.unfinished().values()] == [GONE] * 3
    world.call("UpdateService", "ecs", service="web", desiredCount=0)
    world.settle()
    world.call("UpdateService", "ecs", service="web", desiredCount=1, forceNewDeployment=True)
    world.settle()
    assert world.store.ecs_services.get(CALLER.region, "default", "web").primary.passed_from == ""  # type: ignore[union-attr]
    newest = max(world.store.tasks.cache.unfinished().values(), key=lambda task: task.created_at_s)
    assert newest.owner == newest.program_owner == ROOT


def owners_of_programs(world: ServiceWorld) -> set[tuple[str, str]]:
    """The owner of each placed task, and that of its credentials."""

    def read(tx: Any) -> set[tuple[str, str]]:
        found = set()
        for task in tx.store.tasks.placed():
            credentials = task_credentials(tx, task.id)
            assert credentials is not None
            found.add((task.owner, credentials[1].session.principal.owner))
        return found

    return world.run(read)  # type: ignore[no-any-return]


def test_a_step_passes_a_few_rows_only() -> None:
    """The core runs as many steps in a transaction as it has time for."""
    world = ServiceWorld(gpus=1)
    for number in range(90):
        world.run(lambda tx, number=number: tx.store.stored.add("a", "b", "", f"{number:04d}", {}, tx.now_s, ALICE) and None)
    names = [PassingStep(ALICE, BOB).key.partition(":")[2]]
    counts: list[int] = []
    for _ in range(3):
        note = {passing.PASSING: lambda tx, name: names.append(name)}
        core = Core(world.store, settings=Settings(), clock=world.clock, ids=SeededIds(Random(0)), reconcilers=note)
        assert not core.transact([Command(lambda tx: passing.pass_state(tx, names[-1]), lambda answer: None)]).faults
        counts.append(owns(world.store, "stored_resource", BOB))
    assert counts == [40, 80, 90] and step_of(names[3]).total == 90, "the next step begins the second round"


def test_no_user_gets_the_name_while_resources_pass() -> None:
    world = ServiceWorld(gpus=1)
    create: Callable[..., Any] = SERVICES["iam"].operations["CreateUser"]
    world.run(lambda tx: (note_removed(tx, "alice"), begin_passing(tx, "alice", ROOT)))
    with pytest.raises(ApiError, match="has left still passes to root") as refused:
        world.run(lambda tx: create(tx, {"UserName": "alice"}, CALLER))
    assert "ConcurrentModification" in refused.value.code
    world.settle()
    for lane in ("logs", "metrics"):
        world.run(lambda tx, lane=lane: note_passed(tx, "alice", lane, 0))
    world.run(lambda tx: create(tx, {"UserName": "alice"}, CALLER))
    assert world.run(lambda tx: record_of(tx, "alice")) is None, "she owns nothing of the former alice"


@pytest.mark.parametrize("kind", [LogStore, MetricStore])
def test_logs_and_alarms_pass(kind: type[Any]) -> None:
    store = kind(None)
    reconcilers = LOGS if kind is LogStore else METRICS
    core = Core(store, settings=Settings(), clock=VirtualClock(1_000.0), ids=SeededIds(Random(0)), reconcilers=reconcilers)
    if kind is LogStore:
        store.add_group("r", "/g", {}, 0, ALICE)
        for number in range(90):
            store.add_stream(1, f"s{number}", 0, ALICE if number % 3 else ROOT)
    else:
        put = SERVICES["cloudwatch"].operations
        alice = replace(CALLER, principal=iam_user(CALLER.account, "alice"))
        alarm = {"AlarmName": "a", "MetricName": "m", "Namespace": "n", "ComparisonOperator": "GreaterThanThreshold", "Period": 60,
                 "EvaluationPeriods": 1, "Threshold": 1.0, "Statistic": "Sum"}  # fmt: skip
        core.transact([Command(lambda tx: put["PutMetricAlarm"](tx, alarm, alice), lambda answer: None)])
        core.transact([Command(lambda tx: put["PutDashboard"](tx, {"DashboardName": "d", "DashboardBody": "{}"}, alice), print)])
    handed: list[Any] = []
    outcome = core.transact([Command(lambda tx: passing.receive_passing(tx, {"owner": ALICE, "to": BOB}), lambda answer: None)])
    handed += outcome.handed
    while store.next_due_s() is not None and not handed:
        outcome = core.transact([])
        assert not outcome.faults, outcome.faults
        handed += outcome.handed
    counts = {LogStore: 61, MetricStore: 2}
    [(handover, _)] = handed
    assert f'"count":{counts[kind]}' in handover.payload.decode()
    for table in owned_tables(store.execute).values():
        assert not owns(store, table.name, ALICE)
    if kind is MetricStore:
        assert store.alarms.get(CALLER.region, "a").owner == BOB
