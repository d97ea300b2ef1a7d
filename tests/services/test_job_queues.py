"""Job queues, scheduling policies and tags of AWS Batch, on a core with a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.job import JobState
from corral.operations.services import SERVICES
from corral.services.batch.job_queues import find_queue, queues_of_environment
from corral.services.batch.scheduling_policies import fair_share
from virtual_clock.group_world import REGION, GroupWorld, refused
from virtual_clock.job_world import JobWorld

ACCOUNT = "123456789012"
POLICY = f"arn:aws:batch:{REGION}:{ACCOUNT}:scheduling-policy/fair"
QUEUE = f"arn:aws:batch:{REGION}:{ACCOUNT}:job-queue/q"


class QueueWorld(GroupWorld):
    def batch_call(self, operation: str, /, **params: Any) -> Any:
        answer = self.call(operation, "batch", **params)
        self.settle()
        return answer

    def environment(self, name: str = "ce", kind: str = "EC2", status: str = "VALID") -> str:
        """Store an environment in a given status. Most of its members do not matter for queues."""
        arn = f"arn:aws:batch:{REGION}:{ACCOUNT}:compute-environment/{name}"
        document = {
            "computeEnvironmentName": name, "computeEnvironmentArn": arn, "uuid": "u", "type": "MANAGED", "state": "ENABLED",
            "status": status, "statusReason": "", "ecsClusterArn": f"arn:aws:ecs:{REGION}:{ACCOUNT}:cluster/{name}_Batch_u",
            "computeResources": {"type": kind, "minvCpus": 0, "maxvCpus": 8, "desiredvCpus": 0}, "tags": {},
        }  # fmt: skip
        self.run(lambda tx: tx.store.stored.put("batch", "compute-environment", REGION, name, document, tx.now_s))
        return arn

    def queue(self, name: str = "q", *environments: str, **more: Any) -> Any:
        order = [{"order": number, "computeEnvironment": each} for number, each in enumerate(environments or ("ce",), 1)]
        given = {"priority": 1, "computeEnvironmentOrder": order, **more}
        return self.batch_call("CreateJobQueue", jobQueueName=name, **given)

    def shown_queue(self, name: str = "q") -> Any:
        found = self.batch_call("DescribeJobQueues", jobQueues=[name])["jobQueues"]
        return found[0] if found else None

    def policy(self, **rules: Any) -> Any:
        return self.batch_call("CreateSchedulingPolicy", name="fair", **({"fairsharePolicy": rules} if rules else {}))


@pytest.fixture
def world() -> QueueWorld:
    world = QueueWorld()
    world.environment()
    return world


def test_a_queue_is_created_described_updated_and_deleted(world: QueueWorld) -> None:
    second = world.environment("second")
    made = world.queue("q", "ce", tags={"team": "a"})
    assert made == {"jobQueueName": "q", "jobQueueArn": QUEUE}
    shown = world.shown_queue(QUEUE)
    assert (shown["state"], shown["status"], shown["statusReason"]) == ("ENABLED", "VALID", "JobQueue Healthy")
    assert shown["jobQueueType"] == "ECS" and shown["tags"] == {"team": "a"} and not any(each[0] == "_" for each in shown)
    order = [{"order": 7, "computeEnvironment": "ce"}, {"order": 2, "computeEnvironment": second}]
    actions = [{"reason": "too long", "state": "RUNNABLE", "maxTimeSeconds": 600, "action": "CANCEL"}]
    world.batch_call("UpdateJobQueue", jobQueue="q", priority=5, computeEnvironmentOrder=order, jobStateTimeLimitActions=actions)
    found = world.run(lambda tx: find_queue(tx, REGION, QUEUE))
    assert found.environments == ("second", "ce") and found.priority == 5 and found.time_limits == tuple(actions)
    assert found.accepts_jobs
    assert [each.name for each in world.run(lambda tx: queues_of_environment(tx, REGION, "second"))] == ["q"]
    text = refused(lambda: world.batch_call("DeleteJobQueue", jobQueue="q")).message
    assert text == "Cannot delete, state must be DISABLED: disable the job queue q with UpdateJobQueue first."
    world.batch_call("UpdateJobQueue", jobQueue=QUEUE, state="DISABLED")
    assert not world.run(lambda tx: find_queue(tx, REGION, "q")).accepts_jobs
    world.batch_call("DeleteJobQueue", jobQueue=QUEUE)
    assert world.shown_queue() is None
    world.batch_call("DeleteJobQueue", jobQueue="q")  # as on AWS, a second deletion is no error


def test_queues_are_listed_in_pages(world: QueueWorld) -> None:
    for name in ("b", "a", "c"):
        world.queue(name)
    first = world.batch_call("DescribeJobQueues", maxResults=2)
    assert [each["jobQueueName"] for each in first["jobQueues"]] == ["a", "b"]
    rest = world.batch_call("DescribeJobQueues", maxResults=2, nextToken=first["nextToken"])
    assert [each["jobQueueName"] for each in rest["jobQueues"]] == ["c"] and "nextToken" not in rest
    named = world.batch_call("DescribeJobQueues", jobQueues=["c", "missing", "a", f"arn:aws:batch:eu-west-1:{ACCOUNT}:job-queue/b"])
    assert [each["jobQueueName"] for each in named["jobQueues"]] == ["a", "c"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"jobQueueName": "-x"}, "jobQueueName '-x' is not valid"),
        ({"priority": 1001}, "priority 1001 is not valid: it must be between 0 and 1000."),
        ({"state": "ON"}, "state 'ON' is not valid"),
        ({"computeEnvironmentOrder": []}, "computeEnvironmentOrder must have 1 to 3"),
        ({"computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "no"}]}, "Compute environment no does not exist."),
        ({"computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "new"}]}, "the status VALID: its status is CREATING"),
        (
            {"computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "ce"}, {"order": 2, "computeEnvironment": "fargate"}]},
            "EC2 and Fargate compute environments can't be mixed in one job queue: ce (EC2), fargate (FARGATE_SPOT).",
        ),
        (
            {"computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "ce"}, {"order": 1, "computeEnvironment": "spot"}]},
            "has the order 1 more than once",
        ),
        (
            {"computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "ce"}, {"order": 2, "computeEnvironment": "ce"}]},
            "has the computeEnvironment ce more than once",
        ),
        ({"computeEnvironmentOrder": [{"order": each, "computeEnvironment": "ce"} for each in range(4)]}, "at most 3"),
        ({"jobQueueType": "EKS"}, "jobQueueType 'EKS' is not valid: its compute environments have the type ECS."),
        ({"schedulingPolicyArn": POLICY}, f"Scheduling policy {POLICY} does not exist."),
        ({"serviceEnvironmentOrder": [{"order": 1, "serviceEnvironment": "s"}]}, "does not serve service environments"),
        (
            {"jobStateTimeLimitActions": [{"reason": "r", "state": "RUNNABLE", "maxTimeSeconds": 599, "action": "CANCEL"}]},
            "maxTimeSeconds 599 is not valid",
        ),
        (
            {"jobStateTimeLimitActions": [{"reason": "r", "state": "RUNNABLE", "maxTimeSeconds": 600, "action": "TERMINATE"}]},
            "action 'TERMINATE' is not valid",
        ),
        ({"tags": {f"k{each}": "" for each in range(51)}}, "A resource can have at most 50 tags."),
    ],
)  # fmt: skip
def test_a_wrong_queue_is_refused_with_the_reason(world: QueueWorld, changes: dict[str, Any], text: str) -> None:
    world.environment("spot", "SPOT")
    world.environment("fargate", "FARGATE_SPOT")
    world.environment("new", status="CREATING")
    error = refused(lambda: world.queue(**{"name": changes.pop("jobQueueName", "q"), **changes}))
    assert error.code == "ClientException" and text in error.message
    assert world.batch_call("DescribeJobQueues")["jobQueues"] == []


def test_a_name_is_used_once_and_must_exist_for_an_update(world: QueueWorld) -> None:
    world.queue()
    assert refused(lambda: world.queue()).message == "Object already exists"
    assert refused(lambda: world.batch_call("UpdateJobQueue", jobQueue="no")).message == "Job queue no does not exist."


def test_a_fair_share_queue_keeps_a_policy(world: QueueWorld) -> None:
    rules = {"shareDecaySeconds": 60, "computeReservation": 25, "shareDistribution": [
        {"shareIdentifier": "A*", "weightFactor": 0.5}, {"shareIdentifier": "B"}]}  # fmt: skip
    assert world.policy(**rules)["arn"] == POLICY
    world.queue(schedulingPolicyArn=POLICY)
    world.queue("fifo")
    found = world.run(lambda tx: fair_share(tx, REGION, POLICY))
    assert (found.decay_s, found.reservation) == (60.0, 25)
    assert [found.weight_of(each) for each in ("A", "A1", "B", "B1")] == [0.5, 0.5, 1.0, 1.0]
    error = refused(lambda: world.batch_call("DeleteSchedulingPolicy", arn=POLICY))
    assert error.message.startswith("Cannot delete, found existing JobQueue relationship: q.")
    assert "can't be removed" in refused(lambda: world.batch_call("UpdateJobQueue", jobQueue="q", schedulingPolicyArn="")).message
    assert (
        "can't get one" in refused(lambda: world.batch_call("UpdateJobQueue", jobQueue="fifo", schedulingPolicyArn=POLICY)).message
    )
    world.batch_call("UpdateSchedulingPolicy", arn=POLICY, fairsharePolicy={"shareDecaySeconds": 0})
    assert world.run(lambda tx: fair_share(tx, REGION, POLICY)).decay_s == 600.0
    world.batch_call("UpdateJobQueue", jobQueue="q", state="DISABLED")
    world.batch_call("DeleteJobQueue", jobQueue="q")
    world.batch_call("DeleteSchedulingPolicy", arn=POLICY)
    assert world.batch_call("ListSchedulingPolicies") == {"schedulingPolicies": []}
    assert world.batch_call("DescribeSchedulingPolicies", arns=[POLICY]) == {"schedulingPolicies": []}


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"shareDecaySeconds": 604_801}, "shareDecaySeconds 604801 is not valid"),
        ({"computeReservation": 100}, "computeReservation 100 is not valid: it must be between 0 and 99."),
        ({"shareDistribution": [{"shareIdentifier": "a-b"}]}, "shareIdentifier 'a-b' is not valid"),
        ({"shareDistribution": [{"shareIdentifier": "a", "weightFactor": 1000.0}]}, "weightFactor 1000.0 is not valid"),
        ({"shareDistribution": [{"shareIdentifier": "a", "weightFactor": float("nan")}]}, "weightFactor nan is not valid"),
        ({"shareDistribution": [{"shareIdentifier": "U1"}, {"shareIdentifier": "U*"}]}, "'U1' is not valid: it overlaps with 'U*'"),
        ({"shareDistribution": [{"shareIdentifier": "UA*"}, {"shareIdentifier": "U*"}]}, "overlaps"),
        ({"shareDistribution": [{"shareIdentifier": "U"}, {"shareIdentifier": "U"}]}, "overlaps"),
        (
            {"shareDistribution": [{"shareIdentifier": each} for each in ("U*", "Ub", "V", "Uc")]},
            "overlaps with 'U*'",
        ),
    ],
)
def test_a_wrong_policy_is_refused_with_the_reason(world: QueueWorld, rules: dict[str, Any], text: str) -> None:
    assert text in refused(lambda: world.policy(**rules)).message


def test_a_share_with_the_weight_0_has_the_default_weight(world: QueueWorld) -> None:
    world.policy(shareDistribution=[{"shareIdentifier": "a", "weightFactor": 0.0}])
    [policy] = world.batch_call("DescribeSchedulingPolicies", arns=[POLICY])["schedulingPolicies"]
    assert policy["fairsharePolicy"] == {"shareDistribution": [{"shareIdentifier": "a"}]}
    world.batch_call("UpdateSchedulingPolicy", arn=POLICY, fairsharePolicy=policy["fairsharePolicy"])
    assert world.run(lambda tx: fair_share(tx, REGION, POLICY)).weight_of("a") == 1.0


def test_share_identifiers_that_do_not_overlap_are_accepted(world: QueueWorld) -> None:
    shares = ("A", "AB*", "B*", "C", "C1")
    world.policy(shareDistribution=[{"shareIdentifier": each} for each in shares])


def test_tags_of_each_kind_are_changed_by_arn(world: QueueWorld) -> None:
    world.policy()
    world.queue(tags={"a": "1"})
    environment = world.environment()
    for arn in (QUEUE, POLICY, environment):
        world.batch_call("TagResource", resourceArn=arn, tags={"b": "2"})
        assert world.batch_call("ListTagsForResource", resourceArn=arn)["tags"]["b"] == "2"
        world.batch_call("UntagResource", resourceArn=arn, tagKeys=["a", "b"])
        assert world.batch_call("ListTagsForResource", resourceArn=arn)["tags"] == {}
    many = {f"k{each}": "" for each in range(50)}
    world.batch_call("TagResource", resourceArn=QUEUE, tags=many)
    for arn, tags, text in (
        (QUEUE, {"more": ""}, "at most 50 tags"),
        (QUEUE, {"aws:x": ""}, "reserved"),
        (f"{QUEUE}x", {"a": ""}, "does not exist"),
        (f"arn:aws:batch:{REGION}:{ACCOUNT}:job/1", {"a": ""}, "does not exist"),
        (f"arn:aws:batch:{REGION}:{ACCOUNT}:job-definition/x:1", {"a": ""}, "does not exist"),
        (f"arn:aws:batch:{REGION}:{ACCOUNT}:quota-share/x", {"a": ""}, "does not serve tags"),
        ("x", {"a": ""}, "pass the ARN"),
    ):
        error = refused(lambda arn=arn, tags=tags: world.batch_call("TagResource", resourceArn=arn, tags=tags))
        assert error.code == "ClientException" and text in error.message


def test_only_the_arn_itself_finds_a_resource_for_tags(world: QueueWorld) -> None:
    """Policies are checked for the ARN in the request, so another spelling could evade a policy."""
    world.policy()
    world.queue()
    world.batch_call("CreateConsumableResource", consumableResourceName="licence", totalQuantity=5)
    definition = world.batch_call(
        "RegisterJobDefinition",
        jobDefinitionName="d",
        type="container",
        containerProperties={
            "image": "busybox",
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}],
        },
    )["jobDefinitionArn"]
    for arn in (QUEUE, POLICY, RESOURCE, world.environment(), definition):
        kind, _, name = arn.split(":", 5)[5].partition("/")
        names = (arn, f"x/{name}", f"/{name}", f"{name}/", name.upper(), name.replace(":", ":0"))
        spellings = {
            arn.replace("arn:aws:", "arn:aws-cn:"),
            arn.replace(REGION, "eu-west-1"),
            arn.replace(ACCOUNT, "999999999999"),
            *(f"arn:aws:batch:{REGION}:{ACCOUNT}:{kind}/{each}" for each in names),
        }
        for spelling in spellings - {arn}:
            refused(lambda spelling=spelling: world.batch_call("TagResource", resourceArn=spelling, tags={"evaded": ""}))
        assert "evaded" not in world.batch_call("ListTagsForResource", resourceArn=arn)["tags"]


RESOURCE = f"arn:aws:batch:{REGION}:{ACCOUNT}:consumable-resource/licence"


def test_a_consumable_resource_is_created_changed_and_deleted(world: QueueWorld) -> None:
    made = world.batch_call("CreateConsumableResource", consumableResourceName="licence", totalQuantity=5, tags={"a": "1"})
    assert made == {"consumableResourceName": "licence", "consumableResourceArn": RESOURCE}
    shown = world.batch_call("DescribeConsumableResource", consumableResource="licence")
    assert (shown["totalQuantity"], shown["inUseQuantity"], shown["availableQuantity"]) == (5, 0, 5)
    assert shown["resourceType"] == "REPLENISHABLE" and shown["tags"] == {"a": "1"} and shown["createdAt"] == 1_767_225_600_000

    def update(operation: str, quantity: int, **more: Any) -> int:
        given = {"consumableResource": RESOURCE, "operation": operation, "quantity": quantity, **more}
        return int(world.batch_call("UpdateConsumableResource", **given)["totalQuantity"])

    assert [update("ADD", 3, clientToken="t"), update("ADD", 3, clientToken="t"), update("ADD", 1, clientToken="t")] == [8, 8, 9]
    world.wait(8 * 3600 + 1)
    assert [update("ADD", 3, clientToken="t"), update("REMOVE", 2), update("SET", 4)] == [12, 10, 4]
    assert "quantity -1 is not valid" in refused(lambda: update("REMOVE", 5)).message
    assert "operation 'DOUBLE' is not valid" in refused(lambda: update("DOUBLE", 5)).message
    world.batch_call("CreateConsumableResource", consumableResourceName="Tokens", resourceType="NON_REPLENISHABLE")

    def listed(*values: str) -> list[str]:
        filters = [{"name": "CONSUMABLE_RESOURCE_NAME", "values": list(values)}] if values else []
        found = world.batch_call("ListConsumableResources", filters=filters)["consumableResources"]
        return [each["consumableResourceName"] for each in found]

    assert listed() == ["Tokens", "licence"] and listed("tok*") == ["Tokens"] and listed("LICENCE") == ["licence"]
    assert listed("lic") == []
    assert refused(lambda: world.batch_call("ListConsumableResources", filters=[{"name": "X"}])).code == "ClientException"
    world.batch_call("DeleteConsumableResource", consumableResource="licence")
    error = refused(lambda: world.batch_call("DescribeConsumableResource", consumableResource="licence"))
    assert error.message == "Consumable resource licence does not exist."


def test_the_deletion_of_a_queue_terminates_its_jobs() -> None:
    jobs = JobWorld(gpus=1)
    jobs.queue()
    jobs.queue("other")
    running, waiting, stays = jobs.submit(), jobs.submit(), jobs.submit(queue="other")
    ended = jobs.submit("pending", dependsOn=[{"jobId": waiting}])
    assert jobs.state(running) is JobState.STARTING and jobs.state(waiting) is JobState.RUNNABLE
    jobs.call("UpdateJobQueue", "batch", jobQueue="q", state="DISABLED")
    assert "DISABLED" in refused(lambda: jobs.submit()).message
    jobs.call("DeleteJobQueue", "batch", jobQueue="q")
    [shown] = jobs.call("DescribeJobQueues", "batch", jobQueues=["q"])["jobQueues"]
    assert shown["status"] == "DELETING" and jobs.state(waiting) is JobState.FAILED and jobs.state(ended) is JobState.FAILED
    assert jobs.job(waiting).status_reason == "JobQueue deleted"
    assert refused(lambda: jobs.call("UpdateJobQueue", "batch", jobQueue="q", state="ENABLED")).code == "ClientException"
    jobs.finish(running, code=143)
    jobs.wait(2)
    assert jobs.call("DescribeJobQueues", "batch", jobQueues=["q"])["jobQueues"] == []
    assert jobs.state(running) is JobState.FAILED and jobs.state(stays) is JobState.STARTING


def test_the_jobs_that_need_a_resource_are_listed() -> None:
    jobs = JobWorld(gpus=1)
    jobs.queue()
    jobs.resource("licence", 1)
    jobs.define("licensed", resources={"licence": 1})
    jobs.define("named", command=["licence", "x"])  # contains the name, but does not need the resource
    ids = [jobs.submit(name, "licensed") for name in ("first", "second", "Other")]
    jobs.submit("no", "named")

    def listed(**more: Any) -> list[str]:
        page = jobs.call("ListJobsByConsumableResource", "batch", consumableResource="licence", **more)
        token = {"nextToken": page["nextToken"]} if "nextToken" in page else None
        names = [each["jobName"] for each in page["jobs"]]
        return names + (listed(**{**more, **token}) if token else [])

    assert listed() == listed(maxResults=1) == ["Other", "second", "first"]
    assert listed(filters=[{"name": "JOB_NAME", "values": ["oth*"]}]) == ["Other"]
    assert listed(filters=[{"name": "JOB_STATUS", "values": ["RUNNABLE"]}]) == ["Other", "second"]
    [first] = jobs.call("ListJobsByConsumableResource", "batch", consumableResource="licence", filters=[
        {"name": "JOB_NAME", "values": ["FIRST"]}])["jobs"]  # fmt: skip
    assert first["jobArn"].endswith(ids[0]) and first["quantity"] == 1 and first["jobQueueArn"].endswith("job-queue/q")
    shown = jobs.call("DescribeConsumableResource", "batch", consumableResource="licence")
    assert (shown["inUseQuantity"], shown["availableQuantity"]) == (1, 0)
    for more in ({"filters": [{"name": "JOB_STATUS", "values": ["X"]}]}, {"nextToken": "eA=="}, {"maxResults": 0}):
        assert refused(lambda more=more: listed(**more)).code == "ClientException"


def test_several_jobs_are_cancelled_and_terminated() -> None:
    jobs = JobWorld(gpus=1)
    jobs.queue()
    running, *waiting = (jobs.submit() for _ in range(3))
    missing = "00000000-0000-4000-8000-000000000000"
    done = jobs.call("CancelJobs", "batch", jobs=[waiting[0], missing, ""], reason="enough")
    assert done["successful"] == [waiting[0], missing] and [each["job"] for each in done["errors"]] == [""]
    assert done["errors"][0]["code"] == "ClientException" and jobs.state(waiting[0]) is JobState.FAILED
    done = jobs.call("TerminateJobs", "batch", jobs=[running, waiting[1]], reason="enough")
    assert done == {"successful": [running, waiting[1]], "errors": []}
    jobs.finish(running, code=143)
    assert jobs.state(running) is jobs.state(waiting[1]) is JobState.FAILED
    split = SERVICES["batch"].pieces["CancelJobs"]
    assert [len(each["jobs"]) for each in split({"jobs": ["1"] * 12, "reason": "r"})] == [5, 5, 2]
    for ids in ([], ["1"] * 51):
        [whole] = split({"jobs": ids, "reason": "r"})
        assert "1 to 50 job ids" in refused(lambda whole=whole: jobs.call("CancelJobs", "batch", **whole)).message
