"""Requests of Corral's own operations."""

from __future__ import annotations

from typing import Any

from answers.calls import NOW, OTHER, SAME, Calls
from harness import container, eventually

LIMITS: dict[str, Any] = {
    "gpus": 4, "waitingGpus": 16, "gpuHoursPerWeek": 100.5, "longestS": 3600.0, "memoryMiB": 65_536, "priority": 10,
    "storedBytes": 2**40, "requestsPerSecond": 50.0, "weight": 2.0,
}  # fmt: skip


def requests(calls: Calls) -> None:
    ecs = calls.of("ecs")
    program = container(["sh", "-c", "trap '' USR1; echo started; sleep 600"], log_prefix="answers")
    ecs.register_task_definition(family="answers", containerDefinitions=[program])
    large = container(["true"], cpu=1_000_000)
    ecs.register_task_definition(family="answers-large", containerDefinitions=[large])
    task = ecs.run_task(taskDefinition="answers", startedBy="corral-run")["tasks"][0]["taskArn"]
    task_id = task.rpartition("/")[2]
    eventually(lambda: ecs.describe_tasks(tasks=[task])["tasks"][0]["lastStatus"] == "RUNNING", "the task runs")
    waiting = ecs.run_task(taskDefinition="answers-large")["tasks"][0]["taskArn"]
    for operation in ("GetMetricsToken", "DescribeInstances", "ListTaskNames"):
        calls(operation)
    for operation in ("GetStatus", "DescribeHosts", "DescribeGpus", "ListRuns", "GetUsage", "DescribeUsage", "GetHistory"):
        calls.twice(operation, NOW)
    calls("DescribeQueueWorkers", queue="none")
    calls.of("sqs").send_message(QueueUrl=calls.of("sqs").create_queue(QueueName="answers-own")["QueueUrl"], MessageBody="m")
    workers = calls("DescribeQueueWorkers", queue="answers-own", tasks=[task_id])
    assert len(workers["wakes"]) == 1 and workers["tasks"] == {task_id: {"held": 0, "leaving": False}}
    text = {"kind": {"DataType": "String", "StringValue": "a"}, "raw": {"DataType": "Binary", "BinaryValue": b"a"}}
    calls.of("sqs").send_message(QueueUrl="answers-own", MessageBody="late", DelaySeconds=600, MessageAttributes=text)
    fifo = calls.of("sqs").create_queue(QueueName="answers-own.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    calls.of("sqs").send_message(QueueUrl=fifo, MessageBody="m", MessageGroupId="g", MessageDeduplicationId="d")
    calls("PeekMessages", queue="answers-own", maxMessages=1)
    calls.twice("PeekMessages", SAME, queue="answers-own")
    assert [each["state"] for each in calls("PeekMessages", queue=fifo)["messages"]] == ["visible"]
    calls.refused("PeekMessages", "QueueNotFoundException", queue="none")
    calls.twice("CreateConsoleLink", OTHER)
    calls.twice("EndConsoleSessions", SAME)
    calls("DescribeLogStates", group="/none", streams=["a"])
    calls.of("logs").create_log_group(logGroupName="/answers-own")
    calls.of("logs").create_log_stream(logGroupName="/answers-own", logStreamName="a")
    logs = calls("DescribeLogStates", group="/answers-own", streams=["a", "b"])["logs"]
    assert logs == [{"name": "a", "unstoredBytes": 0, "droppedBytes": 0}, {"name": "b"}]
    printed = lambda: [each["bytes"] for each in calls.of("corral").list_output_files(task=task_id)["files"]]  # noqa: E731
    eventually(lambda: printed() == [len("started\n")], "the output is in a file")
    calls("ListOutputFiles", task=task_id)
    calls.twice("UpdateWaitingTasks", OTHER, tasks=[waiting.rpartition("/")[2]], held=True)
    [changed] = calls("UpdateWaitingTasks", tasks=[waiting.rpartition("/")[2]], held=False, timeLimitSeconds=60)["tasks"]
    assert (changed["place"], changed["timeLimitSeconds"]) == (1, 60)
    calls.twice("SignalTask", NOW, task=task_id, signal="SIGUSR1")
    pauses(calls, task_id)
    gpu = calls.of("corral").describe_gpus()["gpus"][0]["id"]
    calls.twice("SetGpuFault", SAME, gpu=gpu, xid=48)
    assert calls("DescribeGpus", gpus=[gpu])["gpus"][0]["fault"] == "Xid 48: an uncorrectable memory error"
    calls("SetGpuFault", gpu=gpu)
    calls.twice_refused("InterruptSpotInstance", "InstanceNotFoundException", instance="i-0123456789abcdef0")
    calls.twice("RevokeSessions", SAME, task=task_id)
    calls.of("iam").create_user(UserName="connects")
    calls.twice("CreateConnectCode", NOW, user="connects")
    calls.refused("CreateConnectCode", "UserNotFoundException", user="absent")
    calls.refused("CreateConnectCode", "InvalidRequestException", user="connects", ttl=0.0)
    calls.twice("SetLimits", SAME, subject="user/connects", limits=LIMITS)
    calls("SetLimits", subject="everyone", limits={"gpus": 4})
    assert [each["subject"] for each in calls("DescribeLimits")["limits"]] == ["everyone", "user/connects"]
    calls.twice("DescribeLimits", SAME, subject="user/connects")
    calls("SetLimits", subject="everyone", remove=["gpus"])
    calls.refused("SetLimits", "UserNotFoundException", subject="user/absent")
    calls.refused("SetLimits", "GroupNotFoundException", subject="group/absent")
    calls.refused("DescribeLimits", "UserNotFoundException", subject="user/absent")
    calls.refused("DescribeLimits", "GroupNotFoundException", subject="group/absent")
    calls.refused("SetUnixAccount", "InvalidRequestException", user="connects", account="root")
    calls.twice_refused("SetUnixAccount", "UserNotFoundException", user="absent", account="connects")
    calls.twice("SetUnixAccount", SAME, user="connects", account="connects")
    calls("SetUnixAccount", user="connects")
    calls.twice("ListUnixAccounts", SAME)
    calls.twice("RemoveUser", "UserNotFoundException", user="connects", stop=True)
    token = calls.twice("CreateJoinToken", OTHER, cluster="other", rack="a")
    calls("CreateJoinToken")
    assert [each.get("cluster") for each in calls("ListJoinTokens")["tokens"]] == ["other", "other", None]
    calls("ListLenders")
    calls.twice("RevokeJoinToken", "TokenNotFoundException", id=token["id"])
    calls.twice_refused("RevokeHost", "HostNotFoundException", host="none")
    host = calls.of("corral").describe_hosts()["hosts"][0]["name"]
    calls.twice("DrainHost", SAME, host=host, deadline=3600.0)
    calls.twice("ResumeHost", SAME, host=host)
    calls.twice_refused("ForgetHost", "HostInUseException", host=host)
    calls.twice_refused("RenameHost", "HostNotFoundException", host=host, name="other")
    calls.twice_refused("AcceptHost", "HostNotFoundException", host=host)
    calls.twice_refused("UpgradeHost", "HostNotFoundException", host=host)
    calls.all_refused("HostNotFoundException", host="none", name="other")
    refusals(calls, gpu, task_id, waiting.rpartition("/")[2])
    calls.twice("StopAllTasks", NOW, pause=0.0)
    stopped = calls("StopAllTasks", pause=1.0)
    assert stopped["stopped"] and (stopped["services"], stopped["jobs"]) == (0, 0)
    calls("StopAllTasks", pause=0.0)  # ends the pause


def pauses(calls: Calls, task: str) -> None:
    calls.twice("PauseTask", NOW, task=task, reason="for a test")
    phase = lambda: calls.of("corral").describe_task_pause(task=task, waitSeconds=1.0)["phase"]  # noqa: E731
    eventually(lambda: phase() == "paused", "the task is paused")
    paused = calls.twice("DescribeTaskPause", NOW, task=task)
    assert (paused["cause"], paused["reason"], paused["lastStatus"]) == ("user", "for a test", "RUNNING")
    calls.twice("ListRuns", NOW)
    assert [row["task"] for row in calls.twice("GetStatus", NOW)["paused"]] == [task]
    calls.twice("ResumeTask", NOW, task=task)
    eventually(lambda: phase() == "running", "the task continues")


def refusals(calls: Calls, gpu: str, task: str, waiting: str) -> None:
    none = {"task": "0" * 32, "tasks": ["0" * 32], "gpu": "none"}
    calls.all_refused("TaskNotFoundException", **none, signal="SIGTERM")
    calls.all_refused("GpuNotFoundException", gpu="none", gpus=["none"], xid=1)
    calls.all_refused("ClusterNotFoundException", **none, cluster="none", signal="SIGTERM")
    calls.all_denied("AccessDeniedException")
    invalid: list[tuple[str, dict[str, Any]]] = [
        ("CreateJoinToken", {"ttl": 0.0}),
        ("CreateJoinToken", {"uses": 0}),
        ("CreateJoinToken", {"cluster": "a b"}),
        ("CreateJoinToken", {"rack": "a b"}),
        ("DescribeInstances", {"nextToken": "none"}),
        ("DescribeLimits", {"subject": "none"}),
        ("DrainHost", {"host": calls.of("corral").describe_hosts()["hosts"][0]["id"], "deadline": -1.0}),
        ("GetHistory", {"latest": True}),
        ("ListOutputFiles", {"task": "none"}),
        ("ListRuns", {"maxWaiting": -1}),
        ("DescribeTaskPause", {"task": task, "waitSeconds": 21.0}),
        ("PauseTask", {"task": waiting}),
        ("PauseTask", {"task": task, "cluster": "a b"}),
        ("PeekMessages", {"queue": "answers-own", "maxMessages": 0}),
        ("RevokeSessions", {}),
        ("SetGpuFault", {"gpu": gpu, "xid": 0}),
        ("SetLimits", {"subject": "everyone", "limits": {"gpus": -1}}),
        ("SetLimits", {"subject": "everyone", "remove": ["none"]}),
        ("SignalTask", {"task": task, "signal": "SIGNONE"}),
        ("SignalTask", {"task": task, "signal": "SIGTERM", "cluster": "a b"}),
        ("StopAllTasks", {"pause": -1.0}),
        ("UpdateWaitingTasks", {"tasks": [waiting], "gpus": "none"}),
        ("UpdateWaitingTasks", {"tasks": [waiting], "cluster": "a b"}),
        ("UpdateWaitingTasks", {"tasks": [waiting], "priority": 2000}),
    ]
    for operation, params in invalid:
        calls.refused(operation, "InvalidRequestException", **params)
