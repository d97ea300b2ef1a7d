"""Limits of Batch requests, and what remains of jobs and queues in the database."""

from __future__ import annotations

from typing import Any

import pytest

from answers.recorder import handled
from corral.aws.direct_input import direct_input
from corral.core.errors import ApiError
from corral.operations.services import SERVICES
from corral.services.batch.submit import submit_job
from virtual_clock.group_world import CALLER, REGION, refused
from virtual_clock.job_world import JobWorld, definition

ONE = definition("z")["containerProperties"]


class RequestWorld(JobWorld):
    """A world that reads requests as the server does: it checks the constraints of AWS's model, too."""

    def request(self, operation: str, **params: Any) -> Any:
        given = direct_input("batch", operation, params)
        handler = SERVICES["batch"].operations[operation]
        answer = handled("batch", operation, lambda: self.run(lambda tx: handler(tx, given, CALLER)))
        self.settle()
        return answer

    def refusal(self, operation: str, **params: Any) -> str:
        with pytest.raises(ApiError) as error:
            self.request(operation, **params)
        assert error.value.code == "ClientException"
        return error.value.message

    def job_refusal(self, **params: Any) -> str:
        return self.refusal("SubmitJob", **{"jobName": "j", "jobQueue": "q", "jobDefinition": "one", **params})


@pytest.fixture
def world() -> RequestWorld:
    world = RequestWorld(gpus=2)
    world.queue("q")
    return world


def multinode(ranges: int) -> dict[str, Any]:
    listed = [{"targetNodes": "0:", "container": ONE}] * ranges
    properties = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": listed}
    return {"jobDefinitionName": "m", "type": "multinode", "nodeProperties": properties}


def test_sizes_of_requests(world: RequestWorld) -> None:
    text = world.job_refusal(parameters={"a": "x" * 40_000})
    assert text.startswith("The job has 40,") and "at most 30,720" in text
    large = {**definition("large"), "parameters": {"a": "x" * 30_000}}
    assert "at most 24,576" in world.refusal("RegisterJobDefinition", **large)
    assert world.refusal("RegisterJobDefinition", **multinode(6)) == "nodeRangeProperties must have from 1 to 5 elements, not 6."
    world.request("RegisterJobDefinition", **multinode(5))
    assert "numNodes 0 is not valid" in world.job_refusal(jobDefinition="m", nodeOverrides={"numNodes": 0})
    assert "size 0 is not valid" in world.job_refusal(arrayProperties={"size": 0})
    job = world.request("SubmitJob", jobName="j", jobQueue="q", jobDefinition="m")["jobId"]
    text = world.job_refusal(dependsOn=[{"jobId": f"{job}#1"}])
    assert text == f"dependsOn names the node {job}#1: a job can depend on the whole multi-node job {job} only."


def test_the_action_of_a_retry_rule_ignores_case(world: RequestWorld) -> None:
    def strategy(action: str) -> dict[str, Any]:
        return {"attempts": 3, "evaluateOnExit": [{"onExitCode": "7", "action": action}]}

    job = world.request("SubmitJob", jobName="j", jobQueue="q", jobDefinition="one", retryStrategy=strategy("exit"))["jobId"]
    world.finish(job, code=7)
    assert world.state(job) == "FAILED"
    assert "must be RETRY or EXIT" in world.job_refusal(retryStrategy=strategy("again"))


def test_a_response_has_at_most_100_job_definitions(world: RequestWorld) -> None:
    for _ in range(70):
        world.define("a")
        world.define("b")
    found: list[tuple[str, int]] = []
    more: dict[str, Any] = {}
    while True:
        page = world.request("DescribeJobDefinitions", jobDefinitions=["a", "b", "b:3", "none"], **more)
        assert len(page["jobDefinitions"]) <= 100
        found += [(each["jobDefinitionName"], each["revision"]) for each in page["jobDefinitions"]]
        if "nextToken" not in page:
            break
        more = {"nextToken": page["nextToken"]}
    assert found == [(name, revision) for name in "ab" for revision in range(70, 0, -1)]


def test_a_fair_share_queue_has_a_maximum_of_shares() -> None:
    world = RequestWorld(gpus=1)
    world.queue("q", policy=world.policy())
    given = {"jobName": "j", "jobQueue": "q", "jobDefinition": "one"}
    world.run(lambda tx: [submit_job(tx, {**given, "shareIdentifier": f"s{number}"}, CALLER) for number in range(500)])
    assert "500 other share identifiers" in world.job_refusal(shareIdentifier="new")
    world.request("SubmitJob", **given, shareIdentifier="s499")


def test_a_deleted_queue_leaves_no_shares() -> None:
    world = RequestWorld(gpus=1)
    world.queue("q", policy=world.policy())
    job = world.submit(shareIdentifier="a")
    world.finish(job)
    assert world.store.job_holdings.shares(REGION, "q")
    world.request("UpdateJobQueue", jobQueue="q", state="DISABLED")
    world.request("DeleteJobQueue", jobQueue="q")
    assert world.store.execute("SELECT count(*) FROM job_share").fetchone() == (0,)
    assert not world.store.job_holdings.shares(REGION, "q")


def test_jobs_that_do_not_stop_do_not_delay_the_deletion_of_the_others() -> None:
    world = RequestWorld(gpus=60)
    world.queue("q")
    running = [world.submit() for _ in range(60)]
    waiting = [world.submit() for _ in range(60)]
    world.request("UpdateJobQueue", jobQueue="q", state="DISABLED")
    world.request("DeleteJobQueue", jobQueue="q")
    assert {world.state(job).value for job in waiting} == {"FAILED"}
    assert all(world.job(job).terminated for job in running)
    world.finish(*running)
    world.wait(2)
    assert refused(lambda: world.request("ListJobs", jobQueue="q")).message == "JobQueue q not found."


def test_a_network_change_of_an_environment_reaches_the_next_job() -> None:
    world = RequestWorld()
    world.environment("far", kind="FARGATE", most=100, subnets=["subnet-1"], securityGroupIds=["sg-1"])
    world.queue("f", "far")
    world.define("f", platforms=("FARGATE",), vcpus=1, memory=2048, executionRoleArn="arn:aws:iam::123456789012:role/x")
    before = world.submit("j", "f", "f")
    world.environment("far", kind="FARGATE", most=100, subnets=["subnet-2"], securityGroupIds=["sg-1"])
    after = world.submit("j", "f", "f")
    networks = [world.store.tasks.get(world.job(job).task_id).details for job in (before, after)]  # type: ignore[union-attr]
    assert "subnet-1" in str(networks[0]) and "subnet-2" in str(networks[1])
