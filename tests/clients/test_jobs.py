"""AWS Batch jobs through boto3 and the aws command, against a real server and real processes."""

from __future__ import annotations

import pytest

from harness import eventually

SIZE = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]
ENDED = ("SUCCEEDED", "FAILED")


def set_up(corral):
    """Create a queue whose jobs run on this machine."""
    batch = corral.client("batch")
    batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
    eventually(lambda: described(batch, "here")["status"] == "VALID", "the compute environment is VALID")
    order = [{"order": 1, "computeEnvironment": "here"}]
    batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=order)
    eventually(lambda: batch.describe_job_queues(jobQueues=["q"])["jobQueues"][0]["status"] == "VALID", "the queue is VALID")
    return batch


def described(batch, name):
    [environment] = batch.describe_compute_environments(computeEnvironments=[name])["computeEnvironments"]
    return environment


@pytest.fixture(scope="module")
def batch(corral):
    return set_up(corral)


def define(batch, name, script, **more):
    needs = [*SIZE, *more.pop("needs", ())]
    properties = {"image": "corral/host", "command": ["sh", "-c", script], "resourceRequirements": needs}
    made = batch.register_job_definition(jobDefinitionName=name, type="container", containerProperties=properties, **more)
    return made["jobDefinitionArn"]


def submit(batch, name, **more):
    return batch.submit_job(jobName=name, jobQueue="q", jobDefinition=name, **more)["jobId"]


def job(batch, job_id):
    [found] = batch.describe_jobs(jobs=[job_id])["jobs"]
    return found


def ended(batch, job_id):
    return eventually(lambda: found if (found := job(batch, job_id))["status"] in ENDED else None, f"job {job_id} has ended")


def lines(corral, stream):
    """The output of a job. The log lane may be a moment behind."""
    logs = corral.client("logs")

    def read():
        page = logs.get_log_events(logGroupName="/aws/batch/job", logStreamName=stream, startFromHead=True)
        return [event["message"] for event in page["events"]]

    return eventually(read, f"{stream} has lines")


def test_a_job_with_a_gpu(corral, batch):
    script = "echo gpu=$CUDA_VISIBLE_DEVICES; env | grep ^AWS_BATCH | sort; echo in=$0"
    arn = define(batch, "hello", script, needs=[{"type": "GPU", "value": "1"}])
    made = corral.aws("batch", "submit-job", "--job-name", "hello", "--job-queue", "q", "--job-definition", "hello")
    done = ended(batch, made["jobId"])
    assert done["status"] == "SUCCEEDED" and done["jobArn"] == made["jobArn"] and done["jobDefinition"] == arn
    assert done["createdAt"] <= done["startedAt"] <= done["stoppedAt"]
    container = done["container"]
    assert container["exitCode"] == 0
    assert container["logStreamName"] == f"hello/default/{container['taskArn'].rpartition('/')[2]}"
    gpu, *variables, _ = lines(corral, container["logStreamName"])
    assert gpu.startswith("gpu=GPU-")
    assert variables == [
        "AWS_BATCH_CE_NAME=here",
        "AWS_BATCH_JOB_ATTEMPT=1",
        f"AWS_BATCH_JOB_ID={made['jobId']}",
        "AWS_BATCH_JQ_NAME=q",
    ]
    [task] = corral.client("ecs").describe_tasks(tasks=[container["taskArn"]])["tasks"]
    assert task["startedBy"] == f"batch:{made['jobId']}"


def test_parameters_and_overrides(corral, batch):
    define(batch, "words", "echo $A Ref::what", parameters={"what": "nothing"})
    overrides = {"environment": [{"name": "A", "value": "hello"}]}
    done = ended(batch, submit(batch, "words", parameters={"what": "world"}, containerOverrides=overrides))
    assert lines(corral, done["container"]["logStreamName"]) == ["hello world"]
    assert {"name": "A", "value": "hello"} in done["container"]["environment"]


def test_an_array_and_a_job_that_depends_on_it(corral, batch, tmp_path):
    define(batch, "share", f"echo $AWS_BATCH_JOB_ARRAY_SIZE > {tmp_path}/$AWS_BATCH_JOB_ARRAY_INDEX")
    define(batch, "sum", f"cat {tmp_path}/? | sort | uniq -c")
    array = submit(batch, "share", arrayProperties={"size": 8})
    after = submit(batch, "sum", dependsOn=[{"jobId": array}])
    assert ended(batch, after)["status"] == "SUCCEEDED"
    parent = job(batch, array)
    assert parent["status"] == "SUCCEEDED" and parent["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 8
    assert [line.split() for line in lines(corral, job(batch, after)["container"]["logStreamName"])] == [["8", "8"]]
    pages = batch.get_paginator("list_jobs").paginate(arrayJobId=array, jobStatus="SUCCEEDED", PaginationConfig={"PageSize": 3})
    listed = [each["arrayProperties"]["index"] for page in pages for each in page["jobSummaryList"]]
    assert listed == list(range(8))


def test_retries_and_exit_codes(batch):
    define(batch, "again", "test $AWS_BATCH_JOB_ATTEMPT = 3 || exit 7")
    done = ended(batch, submit(batch, "again", retryStrategy={"attempts": 5}))
    assert done["status"] == "SUCCEEDED"
    assert [attempt["container"].get("exitCode") for attempt in done["attempts"]] == [7, 7, 0]
    rules = {"attempts": 5, "evaluateOnExit": [{"onExitCode": "7", "action": "EXIT"}]}
    done = ended(batch, submit(batch, "again", retryStrategy=rules))
    assert done["status"] == "FAILED" and len(done["attempts"]) == 1
    assert done["statusReason"] == "Essential container in task exited"
    dependent = ended(batch, submit(batch, "again", dependsOn=[{"jobId": done["jobId"]}]))
    assert dependent["status"] == "FAILED" and not dependent["attempts"]


def test_cancel_terminate_and_list(corral, batch):
    define(batch, "long", "sleep 600", needs=[{"type": "GPU", "value": "2"}])
    running, waiting = submit(batch, "long"), submit(batch, "long")
    eventually(lambda: job(batch, running)["status"] == "RUNNING", "the first job runs")

    def listed(**more):
        return [each["jobId"] for each in batch.list_jobs(jobQueue="q", **more)["jobSummaryList"]]

    assert listed() == [running] and listed(jobStatus="RUNNABLE") == [waiting]
    assert "GPU" in job(batch, waiting)["statusReason"]
    both = listed(filters=[{"name": "JOB_NAME", "values": ["LON*"]}])
    assert set(both) == {running, waiting}
    corral.aws("batch", "cancel-job", "--job-id", waiting, "--reason", "not needed")
    found = job(batch, waiting)
    assert found["status"] == "FAILED" and found["isCancelled"] and found["statusReason"] == "not needed"
    batch.terminate_job(jobId=running, reason="enough")
    done = ended(batch, running)
    assert done["status"] == "FAILED" and done["isTerminated"] and done["statusReason"] == "enough"


def test_the_requests_of_torchx(corral, batch):
    """The requests with which torchx's aws_batch scheduler runs, describes and cancels an app: it names jobs by their ARN."""
    container = {
        "command": ["sleep", "600"],
        "image": "corral/host",
        "environment": [{"name": "TORCHX_ROLE_NAME", "value": "trainer"}],
        "privileged": False,
        "resourceRequirements": SIZE,
        "linuxParameters": {"sharedMemorySize": 16, "devices": []},
        "logConfiguration": {"logDriver": "awslogs"},
        "mountPoints": [],
        "volumes": [],
    }
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:1", "container": container}]}
    retries = {"attempts": 1, "evaluateOnExit": [{"onExitCode": "0", "action": "EXIT"}]}
    tags = {"torchx.pytorch.org/version": "0.7.0", "torchx.pytorch.org/app-name": "app"}
    batch.register_job_definition(
        jobDefinitionName="app-x1", type="multinode", nodeProperties=nodes, retryStrategy=retries, tags=tags
    )
    batch.submit_job(jobName="app-x1", jobQueue="q", jobDefinition="app-x1", tags=tags)
    [listed] = batch.list_jobs(jobQueue="q", filters=[{"name": "JOB_NAME", "values": ["app-x1"]}])["jobSummaryList"]
    arn = listed["jobArn"]
    eventually(lambda: job(batch, arn)["status"] == "RUNNING", "the app runs")
    found = job(batch, arn)
    [shown] = found["nodeProperties"]["nodeRangeProperties"]
    read = ("command", "image", "environment", "resourceRequirements")
    assert [shown["container"][member] for member in read] == [container[member] for member in read]
    assert found["tags"] == tags and found["jobId"] == listed["jobId"]
    assert job(batch, f"{arn}#1")["nodeDetails"]["nodeIndex"] == 1
    batch.terminate_job(jobId=arn, reason="killed via torchx CLI")
    done = ended(batch, arn)
    assert (done["status"], done["statusReason"], done["isTerminated"]) == ("FAILED", "killed via torchx CLI", True)
    wrong = [arn.replace("us-east-1", "eu-west-1"), arn.replace(":job/", ":job-queue/"), arn[:-1], "app-x1", "q:app-x1"]
    for given in wrong:
        for stop in (batch.cancel_job, batch.terminate_job):
            with pytest.raises(batch.exceptions.ClientException, match="pass the id or the ARN of a job in us-east-1"):
                stop(jobId=given, reason="r")
    absent = "00000000-0000-4000-8000-000000000000"
    for stop in (batch.cancel_job, batch.terminate_job):
        with pytest.raises(batch.exceptions.ClientException, match=f"Job {absent} does not exist in us-east-1"):
            stop(jobId=absent, reason="r")
    for stop in (batch.cancel_jobs, batch.terminate_jobs):  # AWS documents success for a job that cannot be found
        answer = stop(jobs=[absent, arn, "app-x1"], reason="r")
        assert (answer["successful"], [error["job"] for error in answer["errors"]]) == ([absent, arn], ["app-x1"])


def test_several_containers(corral, batch, tmp_path):
    first = {"name": "first", "image": "corral/host", "essential": False, "resourceRequirements": SIZE}
    main = {"name": "main", "image": "corral/host", "resourceRequirements": SIZE}
    first["command"] = ["sh", "-c", f"echo prepared > {tmp_path}/file"]
    main |= {"command": ["cat", f"{tmp_path}/file"], "dependsOn": [{"containerName": "first", "condition": "SUCCESS"}]}
    properties = {"taskProperties": [{"containers": [first, main]}]}
    batch.register_job_definition(jobDefinitionName="two", type="container", ecsProperties=properties)
    done = ended(batch, submit(batch, "two"))
    assert done["status"] == "SUCCEEDED"
    [task] = done["ecsProperties"]["taskProperties"]
    assert [each["exitCode"] for each in task["containers"]] == [0, 0]
    assert lines(corral, task["containers"][1]["logStreamName"]) == ["prepared"]


def test_nodes(corral, batch):
    container = {"image": "corral/host", "resourceRequirements": SIZE}
    main = {**container, "command": ["sh", "-c", "echo main of $AWS_BATCH_JOB_NUM_NODES"]}
    other = {
        **container,
        "command": ["sh", "-c", "echo $AWS_BATCH_JOB_NODE_INDEX $AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS; sleep 600"],
    }
    ranges = [{"targetNodes": "0:0", "container": main}, {"targetNodes": "1:", "container": other}]
    properties = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": ranges}
    batch.register_job_definition(jobDefinitionName="nodes", type="multinode", nodeProperties=properties)
    job_id = submit(batch, "nodes")
    assert ended(batch, job_id)["status"] == "SUCCEEDED"  # the other nodes stop when the main node ends
    stream = job(batch, f"{job_id}#0")["container"]["logStreamName"]
    assert lines(corral, stream) == ["main of 2"]
    assert job(batch, f"{job_id}#1")["nodeDetails"] == {"nodeIndex": 1, "isMainNode": False}


def test_a_killed_server_loses_no_child(own_corral, tmp_path):
    corral = own_corral("sim:2").start()
    batch = set_up(corral)
    script = f"echo run >> {tmp_path}/$AWS_BATCH_JOB_ARRAY_INDEX; until [ -e {tmp_path}/go ]; do sleep 0.02; done"
    define(batch, "kept", script, needs=[{"type": "GPU", "value": "1"}])
    array = submit(batch, "kept", arrayProperties={"size": 5})
    eventually(lambda: job(batch, array)["arrayProperties"]["statusSummary"]["RUNNING"] == 2, "two children run")
    corral.kill("corral.server")
    (tmp_path / "go").touch()
    corral.start()
    batch = corral.client("batch")
    assert ended(batch, array)["status"] == "SUCCEEDED"
    assert [(tmp_path / str(index)).read_text() for index in range(5)] == ["run\n"] * 5
