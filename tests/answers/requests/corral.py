"""Requests of Corral's own operations."""

from __future__ import annotations

from answers.calls import NOW, OTHER, SAME, Calls
from harness import container, eventually


def requests(calls: Calls) -> None:
    ecs = calls.of("ecs")
    ecs.register_task_definition(family="answers", containerDefinitions=[container(["sh", "-c", "trap '' USR1; sleep 600"])])
    large = container(["true"], cpu=1_000_000)
    ecs.register_task_definition(family="answers-large", containerDefinitions=[large])
    task = ecs.run_task(taskDefinition="answers")["tasks"][0]["taskArn"]
    task_id = task.rpartition("/")[2]
    eventually(lambda: ecs.describe_tasks(tasks=[task])["tasks"][0]["lastStatus"] == "RUNNING", "the task runs")
    waiting = ecs.run_task(taskDefinition="answers-large")["tasks"][0]["taskArn"]
    for operation in ("GetMetricsToken", "DescribeInstances", "ListTaskNames"):
        calls(operation)
    for operation in ("GetStatus", "DescribeHosts", "DescribeGpus", "ListRuns", "GetUsage", "GetHistory"):
        calls.twice(operation, NOW)
    calls("DescribeQueueWorkers", queue=calls.of("sqs").create_queue(QueueName="answers-own")["QueueUrl"])
    calls("DescribeLogStates", group="/none", streams=["a"])
    calls("ListOutputFiles", task=task_id)
    calls.twice("UpdateWaitingTasks", OTHER, tasks=[waiting.rpartition("/")[2]], held=True)
    calls.twice("SignalTask", NOW, task=task_id, signal="SIGUSR1")
    gpu = calls.of("corral").describe_gpus()["gpus"][0]["id"]
    calls.twice("SetGpuFault", SAME, gpu=gpu, xid=48)
    calls("SetGpuFault", gpu=gpu)
    calls.twice_refused("InterruptSpotInstance", "InstanceNotFoundException", instance="i-0123456789abcdef0")
    calls.twice("RevokeSessions", SAME, task=task_id)
    token = calls.twice("CreateJoinToken", OTHER, rack="a")
    calls("ListJoinTokens")
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
    refusals(calls)
    calls.twice("StopAllTasks", NOW, pause=0.0)


def refusals(calls: Calls) -> None:
    none = {"task": "0" * 32, "tasks": ["0" * 32], "gpu": "none"}
    calls.all_refused("TaskNotFoundException", **none, signal="SIGTERM")
    calls.all_refused("GpuNotFoundException", gpu="none", gpus=["none"], xid=1)
    calls.all_refused("ClusterNotFoundException", **none, cluster="none", signal="SIGTERM")
    calls.all_denied("AccessDeniedException")
