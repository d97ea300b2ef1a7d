"""A task that writes faster than its log can be kept: nothing is lost, and its GPU does not wait for the log."""

from __future__ import annotations

from harness import container, eventually, wait_stopped

LINE = "0123456789abcdefghijklmnopqrstuvwxyz" * 4
LINES = 150_000  # 22 MB, so that more than BACKLOG_MAX_BYTES of the log shipper is left when the task ends


def test_a_long_log_does_not_hold_the_gpu(corral):
    ecs, logs = corral.client("ecs"), corral.client("logs")
    ecs.register_task_definition(
        family="long", containerDefinitions=[container(["sh", "-c", f"yes {LINE} | head -n {LINES}; echo the end"], 2, "long")]
    )
    first, second = ecs.run_task(taskDefinition="long", count=2)["tasks"]
    assert second["lastStatus"] == "PROVISIONING"
    wait_stopped(ecs, [first["taskArn"], second["taskArn"]], within_s=600)
    for task in (first, second):
        stream = {"logGroupName": "/tests", "logStreamName": f"long/main/{task['taskArn'].rpartition('/')[2]}"}

        def last(stream=stream):
            return [event["message"] for event in logs.get_log_events(**stream, limit=2)["events"]] == [LINE, "the end"]

        eventually(last, "the whole log arrives", 600)
        [shown] = logs.describe_log_streams(logGroupName="/tests", logStreamNamePrefix=stream["logStreamName"])["logStreams"]
        assert int(shown["uploadSequenceToken"]) == LINES + 1
