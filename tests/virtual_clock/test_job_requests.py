"""SubmitJob, DescribeJobs and ListJobs on a virtual clock."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import orjson
import pytest

from corral.core.errors import ApiError
from corral.model.blob import StoredBlob
from corral.model.job import JobKind, JobState
from corral.model.principal import ROOT
from corral.services.batch import image_configs, job_definitions, job_description, job_listing, job_requests, submit
from corral.services.batch.environments import find_environment
from corral.services.batch.job_launch import launch_request
from corral.services.ecr import image_storage
from corral.services.ecs.run_spec import start_order
from corral.services.ecs.task_spec import spec_of
from virtual_clock.group_world import CALLER, REGION
from virtual_clock.job_world import JobWorld, definition


@pytest.fixture
def world() -> JobWorld:
    world = JobWorld(gpus=4)
    world.queue("q")
    return world


def describe(world: JobWorld, *ids: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.batch_call(job_description.describe_jobs, jobs=list(ids))["jobs"]
    return [{name: value for name, value in job.items() if value is not None} for job in found]


def listed(world: JobWorld, **params: Any) -> list[str]:
    ids: list[str] = []
    while True:
        page = world.batch_call(job_listing.list_jobs, **params)
        ids += [job["jobId"] for job in page["jobSummaryList"]]
        if "nextToken" not in page:
            return ids
        params["nextToken"] = page["nextToken"]


def refusal(world: JobWorld, **params: Any) -> str:
    given = {"jobName": "j", "jobQueue": "q", "jobDefinition": "one", **params}
    with pytest.raises(ApiError) as error:
        world.batch_call(submit.submit_job, **given)
    assert error.value.code == "ClientException"
    return error.value.message


def environment_of(world: JobWorld, job_id: str) -> dict[str, str]:
    """The environment that the host gets for a job."""

    def read(tx: Any) -> dict[str, str]:
        task = tx.store.tasks.get(tx.store.jobs.get(job_id).task_id)
        environment: dict[str, str] = start_order(tx, task, task.runs[0], spec_of(tx, task)).spec.environment
        return environment

    found: dict[str, str] = world.run(read)
    return found


def test_a_single_job(world: JobWorld) -> None:
    job_id = world.submit("first")
    [job] = describe(world, job_id)
    assert job["status"] in ("STARTING", "RUNNING") and job["jobName"] == "first"
    assert job["jobQueue"] == f"arn:aws:batch:{REGION}:123456789012:job-queue/q"
    assert job["container"]["taskArn"].startswith(f"arn:aws:ecs:{REGION}:123456789012:task/default/")
    assert job["container"]["resourceRequirements"][-1] == {"type": "GPU", "value": "1"}
    variables = environment_of(world, job_id)
    assert {name: value for name, value in variables.items() if name.startswith("AWS_BATCH")} == {
        "AWS_BATCH_JOB_ID": job_id,
        "AWS_BATCH_JOB_ATTEMPT": "1",
        "AWS_BATCH_JQ_NAME": "q",
        "AWS_BATCH_CE_NAME": "here",
    }
    world.finish(job_id, code=3)
    [job] = describe(world, job_id)
    assert job["status"] == "FAILED" and job["container"]["exitCode"] == 3
    [attempt] = job["attempts"]
    assert attempt["container"]["exitCode"] == 3 and attempt["statusReason"] == job["statusReason"]
    assert attempt["container"]["logStreamName"].startswith("one/default/")
    assert job["container"]["logStreamName"] == attempt["container"]["logStreamName"]
    assert job["startedAt"] == int(world.clock.now_s() * 1000)


def test_overrides_and_parameters(world: JobWorld) -> None:
    world.define("p", command=["run", "Ref::what"], environment=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}])
    overrides = {
        "environment": [{"name": "B", "value": "2"}],
        "resourceRequirements": [{"type": "GPU", "value": "2"}, {"type": "VCPU", "value": "3"}],
    }
    job_id = world.submit("p", "p:1", parameters={"what": "x"}, containerOverrides=overrides)
    spec = world.job(job_id).spec
    assert (spec.demand.gpus, spec.demand.cpu_units, spec.demand.memory_mib) == (2, 3072, 64)
    [override] = spec.overrides["containerOverrides"]
    assert override["command"] == ["run", "x"] and override["environment"] == overrides["environment"]
    [job] = describe(world, job_id)
    assert job["parameters"] == {"what": "x"}
    assert job["container"]["environment"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    variables = environment_of(world, job_id)
    assert (variables["A"], variables["B"]) == ("1", "2")
    # Older sizes do not override resource requirements.
    other = world.submit("p", "p", containerOverrides={"vcpus": 7, "memory": 999})
    assert world.job(other).spec.demand.cpu_units == 1024
    assert world.job(world.submit("p", "p", containerOverrides={"vcpus": 7, "memory": 999})).spec is world.job(other).spec


def test_an_array(world: JobWorld) -> None:
    job_id = world.submit("a", arrayProperties={"size": 6})
    assert world.job(job_id).kind is JobKind.ARRAY
    running = [f"{job_id}:{index}" for index in range(4)]
    assert [world.state(each) for each in running] == [JobState.STARTING] * 4
    variables = environment_of(world, running[3])
    assert (variables["AWS_BATCH_JOB_ARRAY_INDEX"], variables["AWS_BATCH_JOB_ARRAY_SIZE"]) == ("3", "6")
    [parent] = describe(world, job_id)
    assert parent["arrayProperties"]["size"] == 6
    assert parent["arrayProperties"]["statusSummary"]["STARTING"] == 4
    assert parent["arrayProperties"]["statusSummary"]["RUNNABLE"] == 2
    named = [{"name": "JOB_NAME", "values": [world.job(job_id).name]}]
    [summary] = world.batch_call(job_listing.list_jobs, jobQueue=world.job(job_id).queue, filters=named)["jobSummaryList"]
    assert summary["arrayProperties"] == parent["arrayProperties"]
    [child] = describe(world, f"{job_id}:3")
    assert child["arrayProperties"] == {"index": 3}
    assert listed(world, arrayJobId=job_id, jobStatus="RUNNABLE") == [f"{job_id}:4", f"{job_id}:5"]
    assert listed(world, arrayJobId=job_id, jobStatus="STARTING", maxResults=3) == running
    tasks = {world.job(each).task_id for each in running}
    details = [task.details for each in tasks if (task := world.store.tasks.get(each)) is not None]
    assert len({id(world.job(each).spec) for each in running}) == 1 and all("overrides" not in each for each in details)


def test_nodes(world: JobWorld) -> None:
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    container = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
    ranges = [{"targetNodes": "0", "container": container}, {"targetNodes": "1:", "container": {**container, "command": ["other"]}}]
    properties = {"numNodes": 3, "mainNode": 0, "nodeRangeProperties": ranges}
    world.batch_call(job_definitions.register_job_definition, jobDefinitionName="m", type="multinode", nodeProperties=properties)
    changes = [{"targetNodes": "2:", "containerOverrides": {"environment": [{"name": "LAST", "value": "yes"}]}}]
    job_id = world.submit("m", "m", nodeOverrides={"numNodes": 4, "nodePropertyOverrides": changes})
    job = world.job(job_id)
    assert job.size == 4 and [(group.first, group.last) for group in job.spec.nodes] == [(0, 0), (1, 1), (2, 3)]
    main, last = environment_of(world, f"{job_id}#0"), environment_of(world, f"{job_id}#3")
    assert main["AWS_BATCH_JOB_NUM_NODES"] == "4" and main["AWS_BATCH_JOB_NODE_INDEX"] == "0"
    assert "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS" not in main
    assert last["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] == main["CORRAL_NODE_ADDRESS"]
    assert last["LAST"] == "yes" and last["AWS_BATCH_JOB_ID"] == f"{job_id}#3"
    [parent, node] = describe(world, job_id, f"{job_id}#3")
    assert parent["nodeProperties"]["numNodes"] == 4 and "container" not in parent
    assert node["nodeDetails"] == {"nodeIndex": 3, "isMainNode": False} and node["container"]["command"] == ["other"]
    assert node["container"]["environment"] == [{"name": "LAST", "value": "yes"}]
    assert len(listed(world, multiNodeJobId=job_id, jobStatus="STARTING")) == 4


def test_nodes_that_wait_have_a_reason(world: JobWorld) -> None:
    container = definition("x", gpus=1)["containerProperties"]
    ranges = [{"targetNodes": "0:", "container": container}]
    world.batch_call(
        job_definitions.register_job_definition, jobDefinitionName="n", type="multinode",
        nodeProperties={"numNodes": 5, "mainNode": 0, "nodeRangeProperties": ranges},
    )  # fmt: skip
    job_id = world.submit("n", "n")
    nodes = [f"{job_id}#{node}" for node in range(5)]
    listed = world.batch_call(job_listing.list_jobs, multiNodeJobId=job_id, jobStatus="RUNNABLE")["jobSummaryList"]
    for shown in (describe(world, *nodes), describe(world, *nodes[:2]), listed):
        assert all("GPU" in node["statusReason"] for node in shown)


def test_gpus_by_the_variable(world: JobWorld) -> None:
    world.define("v", environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    world.define("n", environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])
    assert world.job(world.submit("v", "v")).spec.asks_for_gpus_by_image
    assert not world.job(world.submit("n", "n")).spec.asks_for_gpus_by_image
    overrides = {"environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    assert world.job(world.submit("n", "n", containerOverrides=overrides)).spec.asks_for_gpus_by_image
    assert not world.job(world.submit("one", "one")).spec.asks_for_gpus_by_image


def test_filters_of_lists(world: JobWorld) -> None:
    world.define("other", gpus=1)
    ids = [world.submit(name, definition) for name, definition in (("ab", "one"), ("AC", "other"), ("b", "one"), ("c", "one"))]
    waiting = world.submit("late")
    assert listed(world, jobQueue="q") == [] and listed(world, jobQueue="q", jobStatus="STARTING", maxResults=1) == ids[::-1]
    [summary] = world.batch_call(job_listing.list_jobs, jobQueue="q", jobStatus="RUNNABLE")["jobSummaryList"]
    assert summary["jobId"] == waiting and "GPU" in summary["statusReason"]

    def by(name: str, value: str, **more: Any) -> list[str]:
        return listed(world, jobQueue="q", filters=[{"name": name, "values": [value]}], **more)

    assert by("JOB_NAME", "AB") == [ids[0]]
    assert by("JOB_NAME", "a*", maxResults=1) == [ids[1], ids[0]]
    assert by("JOB_DEFINITION", "o*", maxResults=2) == [waiting, *ids[::-1]]
    assert by("JOB_DEFINITION", "other") == [ids[1]]
    arn = f"arn:aws:batch:{REGION}:123456789012:job-definition/one:1"
    assert by("JOB_DEFINITION", arn, maxResults=2) == [waiting, ids[3], ids[2], ids[0]]
    now_ms = int(world.clock.now_s() * 1000)
    assert by("AFTER_CREATED_AT", str(now_ms + 1)) == by("BEFORE_CREATED_AT", "0") == []
    assert len(by("BEFORE_CREATED_AT", str(now_ms + 1), maxResults=2)) == 5
    for wrong in (
        {"filters": [{"name": "X", "values": ["1"]}]},
        {"nextToken": "WzEsMl0="},
        {"jobStatus": "LOST"},
        {"arrayJobId": "x"},
    ):
        with pytest.raises(ApiError, match=r"ClientException|not valid|does not exist|exactly one"):
            listed(world, jobQueue="q", **wrong)


def test_attempts_of_a_job_with_several_containers(world: JobWorld) -> None:
    [needs] = [definition("x")["containerProperties"]["resourceRequirements"]]
    helper = {"name": "helper", "image": "corral/host", "resourceRequirements": needs, "essential": False, "command": ["true"]}
    logs = {"logDriver": "awslogs", "options": {"awslogs-stream-prefix": "mine"}}
    main = {**helper, "name": "main", "essential": True, "logConfiguration": logs}
    properties = {"taskProperties": [{"containers": [helper, main]}]}
    world.batch_call(job_definitions.register_job_definition, jobDefinitionName="two", type="container", ecsProperties=properties)
    job_id = world.submit("two", "two")
    world.finish(job_id, code=5)
    [job] = describe(world, job_id)
    [[container]] = [task["containers"] for attempt in job["attempts"] for task in attempt["taskProperties"]]
    task_id = world.job(job_id).task_id
    assert (container["name"], container["exitCode"], container["logStreamName"]) == ("main", 5, f"mine/main/{task_id}")
    shown = {each["name"]: each for each in job["ecsProperties"]["taskProperties"][0]["containers"]}
    assert (shown["main"]["exitCode"], shown["main"]["logStreamName"]) == (5, f"mine/main/{task_id}")
    assert shown["helper"]["logStreamName"] == f"two/helper/{task_id}"


def test_flags_of_cancelled_jobs(world: JobWorld) -> None:
    for _ in range(4):
        world.submit()
    waiting = world.submit("waiting")
    world.batch_call(job_requests.cancel_job, jobId=waiting, reason="no need")
    [job] = describe(world, waiting)
    assert job["isCancelled"] and job["status"] == "FAILED" and job["statusReason"] == "no need"


def test_the_queue_and_the_definition(world: JobWorld) -> None:
    assert refusal(world, jobQueue="none") == "JobQueue none not found."
    assert refusal(world, jobDefinition="none") == "JobDefinition name none does not exist or is not in ACTIVE status"
    assert "does not exist or is not in ACTIVE" in refusal(world, jobDefinition="one:7")
    assert "Job name should match valid pattern" in refusal(world, jobName="-x")
    arn = f"arn:aws:batch:{REGION}:123456789012:job-definition/one"
    assert world.job(world.submit("x", arn)).spec.definition_arn == f"{arn}:1"
    assert refusal(world, jobDefinition=f"{arn}:7") == f"JobDefinition {arn}:7 not found."
    world.define("old")
    world.batch_call(job_definitions.deregister_job_definition, jobDefinition="old:1")
    assert refusal(world, jobDefinition=arn.replace("/one", "/old:1")).endswith("/old:1 is not in ACTIVE status")
    world.queue("closed", state="DISABLED")
    assert "is DISABLED" in refusal(world, jobQueue="closed")
    world.environment("far", kind="FARGATE")
    world.queue("far", "far")
    assert "does not fit the compute environments" in refusal(world, jobQueue="far")


def test_shares(world: JobWorld) -> None:
    world.queue("fair", policy=world.policy(a=1.0))
    assert "must be specified" in refusal(world, jobQueue="fair")
    assert "cannot be specified" in refusal(world, shareIdentifier="a")
    assert "is not valid" in refusal(world, jobQueue="fair", shareIdentifier="a-b")
    job_id = world.submit(queue="fair", shareIdentifier="a", schedulingPriorityOverride=5)
    [job] = describe(world, job_id)
    assert (job["shareIdentifier"], job["schedulingPriority"]) == ("a", 5)
    assert listed(world, jobQueue="fair", jobStatus="STARTING", filters=[{"name": "SHARE_IDENTIFIER", "values": ["a"]}]) == [job_id]


def test_arrays_and_dependencies_that_are_refused(world: JobWorld) -> None:
    assert "from 2 to 10000" in refusal(world, arrayProperties={"size": 1})
    assert "from 2 to 10000" in refusal(world, arrayProperties={"size": 10_001})
    array, single = world.submit(arrayProperties={"size": 2}), world.submit()
    needs = {"jobId": array, "type": "N_TO_N"}
    assert "two array jobs of equal size" in refusal(world, dependsOn=[needs])
    assert "two array jobs of equal size" in refusal(world, dependsOn=[needs], arrayProperties={"size": 3})
    assert "two array jobs" in refusal(world, dependsOn=[{"jobId": single, "type": "N_TO_N"}], arrayProperties={"size": 3})
    assert "only possible for an array job" in refusal(world, dependsOn=[{"type": "SEQUENTIAL"}])
    assert "needs a jobId" in refusal(world, dependsOn=[{"type": "N_TO_N"}])
    assert "does not exist" in refusal(world, dependsOn=[{"jobId": "nothing"}])
    assert "at most 20" in refusal(world, dependsOn=[{"jobId": single}] * 21)
    job_id = world.submit(dependsOn=[needs], arrayProperties={"size": 2})
    assert describe(world, job_id)[0]["dependsOn"] == [needs]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"eksPropertiesOverride": {"podProperties": {}}}, "does not serve eksPropertiesOverride"),
        ({"nodeOverrides": {"numNodes": 2}}, "only applicable to multi-node jobs"),
        ({"ecsPropertiesOverride": {"taskProperties": [{"containers": [{"name": "x"}]}]}}, "Use containerOverrides"),
        ({"containerOverrides": {"environment": [{"name": "AWS_BATCH_JOB_ID", "value": "x"}]}}, "reserves names"),
        ({"containerOverrides": {"resourceRequirements": [{"type": "GPU", "value": "0.5"}]}}, "GPU value '0.5'"),
        ({"containerOverrides": {"command": [""]}}, "empty string"),
        ({"retryStrategy": {"attempts": 0}}, "attempts 0 is not valid"),
        ({"timeout": {"attemptDurationSeconds": 1}}, "at least 60"),
        ({"tags": {"aws:x": "y"}}, "reserved"),
    ],
)
def test_overrides_that_are_refused(world: JobWorld, more: dict[str, Any], text: str) -> None:
    assert text in refusal(world, **more)


def test_tags_for_the_task(world: JobWorld) -> None:
    job_id = world.submit(tags={"team": "a"}, propagateTags=True)
    task = world.store.tasks.get(world.job(job_id).task_id)
    assert task is not None and task.details["tags"] == [{"key": "team", "value": "a"}]
    [job] = describe(world, job_id)
    assert job["tags"] == {"team": "a"} and job["propagateTags"]


def test_launch_requests_share_everything_but_the_variables(world: JobWorld) -> None:
    array = world.submit(arrayProperties={"size": 2})

    def requests(tx: Any) -> Any:
        environment = find_environment(tx, REGION, "here")
        assert environment is not None
        return [launch_request(tx, tx.store.jobs.get(f"{array}:{index}"), environment) for index in range(2)]

    first, second = world.run(requests)
    assert first.definition is second.definition and first.overrides is second.overrides
    assert first.started_by == f"batch:{array}:0" and second.job_environment["AWS_BATCH_JOB_ARRAY_INDEX"] == "1"


def push(world: JobWorld, variables: list[str]) -> tuple[str, str, bytes]:
    """Push an image to Corral's registry. Return its name, the digest of its configuration, and the configuration."""
    config = orjson.dumps({"config": {"Env": variables}})
    digest = f"sha256:{sha256(config).hexdigest()}"
    manifest = orjson.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": len(config)},
            "layers": [],
        }
    )

    def write(tx: Any) -> None:
        repository = tx.store.images.repository(REGION, "app") or tx.store.images.add_repository(
            REGION, "app", tx.now_s, {}, {}, ROOT
        )
        image_storage.add_layer(tx, repository, digest, StoredBlob(digest[7:39], len(config), {}))
        image_storage.put_image(tx, repository, manifest, None, "v1", writer=None)

    world.run(write)
    return f"{CALLER.account}.dkr.ecr.{REGION}.amazonaws.com/app:v1", digest, config


def test_gpus_by_the_image(world: JobWorld) -> None:
    image, digest, config = push(world, ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"])
    world.define("by-image", image=image)
    given = {"jobName": "j", "jobQueue": "q", "jobDefinition": "by-image"}
    wanted = world.run(lambda tx: image_configs.fetch(tx, given, CALLER))
    [(parameter, slices)] = wanted.items()
    assert parameter.endswith(digest) and sum(each.size for each in slices) == len(config)
    made = world.batch_call(submit.submit_job, **given, **{parameter: config})  # the server reads the file and adds the parameter
    spec = world.job(made["jobId"]).spec
    assert spec.asks_for_gpus_by_image and not spec.demand.gpus
    assert len(world.gpus_of(made["jobId"])) == 4  # all GPUs that are free, as on ECS
    assert not world.run(lambda tx: image_configs.fetch(tx, given, CALLER))  # the configuration is cached
    assert world.state(world.submit("second", "by-image")) is JobState.RUNNABLE
    assert describe(world, made["jobId"])[0]["container"]["environment"] == []
    push(world, ["PATH=/bin"])  # the tag names another image now
    [(parameter, _)] = world.run(lambda tx: image_configs.fetch(tx, given, CALLER)).items()
    made = world.batch_call(submit.submit_job, **given, **{parameter: orjson.dumps({"config": {"Env": ["PATH=/bin"]}})})
    assert not world.job(made["jobId"]).spec.asks_for_gpus_by_image


@pytest.mark.parametrize("config", [b"", b"{}", b"[]", b'{"config": {"Env": null}}', b'{"config": {"Env": [1]}}'])
def test_an_image_without_a_usable_configuration_asks_for_no_gpu(world: JobWorld, config: bytes) -> None:
    image, digest, _ = push(world, [config.decode()])
    world.define("odd", image=image)
    job_id = world.submit("odd", "odd", **{f"_config {digest}": config})
    assert not world.job(job_id).spec.asks_for_gpus_by_image


def test_a_fargate_job(world: JobWorld) -> None:
    world.environment("far", kind="FARGATE", most=16)
    world.queue("far", "far")
    size = [{"type": "VCPU", "value": "0.25"}, {"type": "MEMORY", "value": "512"}]
    container = {"image": "busybox", "command": ["true"], "resourceRequirements": size, "executionRoleArn": "arn:aws:iam::1:role/x"}
    world.batch_call(
        job_definitions.register_job_definition,
        jobDefinitionName="f", type="container", platformCapabilities=["FARGATE"], containerProperties=container,
    )  # fmt: skip
    bigger = {"resourceRequirements": [{"type": "VCPU", "value": "0.5"}, {"type": "MEMORY", "value": "1024"}]}
    job_id = world.submit("f", "f", "far", containerOverrides=bigger)
    job = world.job(job_id)
    assert (job.spec.demand.cpu_units, job.spec.demand.memory_mib) == (512, 1024)
    task = world.store.tasks.get(job.task_id)
    assert task is not None and task.launch_type == "FARGATE"
    [described] = describe(world, job_id)
    assert "containerInstanceArn" not in described["container"] and described["platformCapabilities"] == ["FARGATE"]
    wrong = {"resourceRequirements": [{"type": "MEMORY", "value": "9999"}]}
    assert "No Fargate configuration exists" in refusal(world, jobQueue="far", jobDefinition="f", containerOverrides=wrong)


def test_too_many_tags_to_propagate(world: JobWorld) -> None:
    parameters = definition("tagged")
    world.batch_call(job_definitions.register_job_definition, **parameters, tags={f"d{at}": "" for at in range(30)})
    job_id = world.submit("t", "tagged", tags={f"j{at}": "" for at in range(30)}, propagateTags=True)
    [job] = describe(world, job_id)
    assert job["status"] == "FAILED" and "more than 50 tags" in job["statusReason"]
    assert not world.active()


def test_a_deleted_task_definition(world: JobWorld) -> None:
    for operation in ("DeregisterTaskDefinition", "DeleteTaskDefinitions"):
        name = {"taskDefinition": "batch-one:1"} if operation.startswith("Dereg") else {"taskDefinitions": ["batch-one:1"]}
        world.call(operation, "ecs", **name)
    world.clock.advance(2.0)
    world.settle()
    assert "was deleted" in refusal(world, containerOverrides={"environment": [{"name": "NEW", "value": "1"}]})
