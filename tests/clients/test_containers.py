"""Tasks of several containers with real processes: dependencies, health checks, restarts, limits, and the order of stopping."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eventually import eventually
from harness import Corral, container, wait_stopped

FOREVER = ["sleep", "1000"]
METADATA = "ECS_CONTAINER_METADATA_URI_V4"


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    return container(["sh", "-c", script], name=name, **more)


def after(**conditions: str) -> list[dict[str, str]]:
    return [{"containerName": name, "condition": condition} for name, condition in conditions.items()]


def health(command: str, **more: int) -> dict[str, Any]:
    return {"command": ["CMD-SHELL", command], "interval": 5, "timeout": 2, "retries": 1, **more}


def run(ecs: Any, *containers: dict[str, Any], family: str = "several", **more: Any) -> str:
    ecs.register_task_definition(family=family, containerDefinitions=list(containers))
    answer = ecs.run_task(taskDefinition=family, **more)
    assert not answer["failures"]
    return answer["tasks"][0]["taskArn"]


def describe(ecs: Any, arn: str) -> dict[str, Any]:
    return ecs.describe_tasks(tasks=[arn])["tasks"][0]


def by_name(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in task["containers"]}


def until(ecs: Any, arn: str, what: Any, why: str) -> dict[str, Any]:
    def look() -> Any:
        task = describe(ecs, arn)
        return task if what(task) else None

    return eventually(look, why)


def test_a_chain_starts_in_its_order(client, tmp_path):
    """main starts only after init succeeded and db is healthy, regardless of their order in the definition."""
    ecs, trail = client("ecs"), tmp_path / "trail"
    arn = run(
        ecs,
        shell("main", f"echo main >> {trail}", dependsOn=after(db="HEALTHY", init="SUCCESS")),
        shell(
            "db", f"echo db >> {trail}; : > {tmp_path}/up; exec sleep 1000", essential=False, dependsOn=after(init="SUCCESS"),
            healthCheck=health(f"test -e {tmp_path}/up"),
        ),
        shell("init", f"echo init >> {trail}", essential=False),
    )  # fmt: skip
    (task,) = wait_stopped(ecs, [arn])
    assert trail.read_text().split() == ["init", "db", "main"]
    found = by_name(task)
    assert (found["init"]["exitCode"], found["main"]["exitCode"], found["db"]["exitCode"]) == (0, 0, 143)
    assert (task["stopCode"], task["stoppedReason"]) == ("EssentialContainerExited", "Essential container in task exited")
    assert found["db"]["healthStatus"] == "HEALTHY" and found["main"]["healthStatus"] == "UNKNOWN"
    assert task["createdAt"] <= task["startedAt"] <= task["stoppingAt"] <= task["executionStoppedAt"] <= task["stoppedAt"]


@pytest.mark.parametrize(
    ("script", "condition", "words"),
    [
        ("exit 3", "SUCCESS", "dependency did not exit successfully"),
        ("exit 0", "HEALTHY", "exited before it was healthy"),
        ("exec /no/such/program", "SUCCESS", "dependency did not exit successfully"),
    ],
)
def test_a_container_whose_dependency_fails_never_starts_and_the_task_stops(client, script, condition, words):
    ecs = client("ecs")
    more = {"healthCheck": health("false")} if condition == "HEALTHY" else {}
    arn = run(
        ecs,
        shell("first", script, essential=False, **more),
        shell("second", "exit 0", essential=False, dependsOn=after(first=condition)),
        shell("third", "exit 0", dependsOn=after(second="START")),
    )
    (task,) = wait_stopped(ecs, [arn])
    found = by_name(task)
    assert task["stopCode"] == "TaskFailedToStart" and "startedAt" not in task
    assert words in found["second"]["reason"] and found["second"]["reason"].startswith("CannotStartContainerError: ")
    assert "[second] for target [third] because dependency will never start" in found["third"]["reason"]
    assert task["stoppedReason"] == found["third"]["reason"]
    assert all("exitCode" not in found[name] and found[name]["lastStatus"] == "STOPPED" for name in ("second", "third"))


def test_a_dependency_that_cannot_start(client):
    ecs = client("ecs")
    arn = run(
        ecs,
        container(["/no/such/program"], name="first", essential=False),
        shell("second", "exit 0", dependsOn=after(first="START")),
    )
    (task,) = wait_stopped(ecs, [arn])
    found = by_name(task)
    assert found["first"]["reason"].startswith("CannotStartContainerError: exec:")
    assert (task["stopCode"], task["stoppedReason"]) == ("TaskFailedToStart", found["second"]["reason"])


def test_a_start_timeout_belongs_to_the_dependency(client):
    ecs = client("ecs")
    arn = run(
        ecs,
        container(FOREVER, name="slow", essential=False, startTimeout=2),
        shell("main", "exit 0", dependsOn=after(slow="COMPLETE")),
    )
    (task,) = wait_stopped(ecs, [arn])
    found = by_name(task)
    assert task["stopCode"] == "TaskFailedToStart" and found["main"]["reason"].endswith("has timed out.")
    assert found["slow"]["exitCode"] == 143
    assert (task["stoppingAt"] - task["createdAt"]).total_seconds() >= 2


def test_a_nonessential_container_does_not_stop_the_task(client):
    """A nonessential container whose dependency failed never starts; the task continues without it."""
    ecs = client("ecs")
    arn = run(
        ecs,
        container(FOREVER, name="main"),
        shell("init", "exit 1", essential=False),
        shell("side", "exit 0", essential=False, dependsOn=after(init="SUCCESS")),
    )
    task = until(ecs, arn, lambda task: task["lastStatus"] == "RUNNING", "running")
    found = by_name(task)
    assert (found["main"]["lastStatus"], found["init"]["exitCode"]) == ("RUNNING", 1)
    assert found["side"]["lastStatus"] == "STOPPED" and "did not exit successfully" in found["side"]["reason"]
    assert "executionStoppedAt" not in task
    ecs.stop_task(task=arn)
    (task,) = wait_stopped(ecs, [arn])
    assert (task["stopCode"], task["stoppedReason"]) == ("UserInitiated", "Task stopped by user")


def test_dependents_are_stopped_first_each_with_its_own_timeout(client, tmp_path):
    ecs, trail = client("ecs"), tmp_path / "trail"
    note = f"trap 'echo $NAME >> {trail}; exit 0' TERM; : > {tmp_path}/$NAME; while :; do sleep 0.02; done"
    ready = f"trap '' TERM; : > {tmp_path}/stubborn; while :; do sleep 0.02; done"
    arn = run(
        ecs,
        shell("a", note, environment=[{"name": "NAME", "value": "a"}]),
        shell("b", note, environment=[{"name": "NAME", "value": "b"}], dependsOn=after(a="START")),
        shell("stubborn", ready, stopTimeout=1, dependsOn=after(b="START")),
    )
    eventually(lambda: all((tmp_path / name).exists() for name in ("a", "b", "stubborn")), "all up")
    stopping = ecs.stop_task(task=arn, reason="enough")["task"]
    assert (stopping["lastStatus"], stopping["desiredStatus"]) == ("STOPPING", "STOPPED")
    (task,) = wait_stopped(ecs, [arn])
    found = by_name(task)
    assert trail.read_text().split() == ["b", "a"]
    assert (found["stubborn"]["exitCode"], found["b"]["exitCode"], found["a"]["exitCode"]) == (137, 0, 0)
    assert (task["stopCode"], task["stoppedReason"]) == ("UserInitiated", "enough")


def test_a_task_stopped_in_the_middle_of_its_chain(client):
    ecs = client("ecs")
    arn = run(ecs, container(FOREVER, name="first", essential=False), shell("main", "exit 0", dependsOn=after(first="COMPLETE")))
    until(ecs, arn, lambda task: by_name(task)["first"]["lastStatus"] == "RUNNING", "the first runs")
    assert describe(ecs, arn)["lastStatus"] == "PENDING"
    stopped = ecs.stop_task(task=arn)["task"]
    assert by_name(stopped)["main"]["lastStatus"] == "STOPPED"
    (task,) = wait_stopped(ecs, [arn])
    main = by_name(task)["main"]
    assert "exitCode" not in main and "runtimeId" not in main and main["reason"] == "stopped before it was started"


def test_health_comes_and_goes_and_a_standalone_task_runs_on(client, tmp_path):
    ecs = client("ecs")
    (tmp_path / "well").touch()
    main = container(FOREVER, name="main", workingDirectory=str(tmp_path), healthCheck=health('test "$WHO" = me && test -e well'))
    arn = run(ecs, main | {"environment": [{"name": "WHO", "value": "me"}]})
    task = until(ecs, arn, lambda task: task["healthStatus"] == "HEALTHY", "healthy")
    assert by_name(task)["main"]["healthStatus"] == "HEALTHY"
    (tmp_path / "well").unlink()
    task = until(ecs, arn, lambda task: task["healthStatus"] == "UNHEALTHY", "unhealthy")
    assert (task["lastStatus"], task["desiredStatus"]) == ("RUNNING", "RUNNING")
    ecs.stop_task(task=arn)
    wait_stopped(ecs, [arn])


def test_a_check_that_hangs_is_a_failure_and_is_killed(client, tmp_path):
    ecs = client("ecs")
    check = health(f"echo $$ > {tmp_path}/pid; sleep 1000")
    arn = run(ecs, container(FOREVER, name="main", healthCheck=check), container(FOREVER, name="other"))
    task = until(ecs, arn, lambda task: by_name(task)["main"]["healthStatus"] == "UNHEALTHY", "unhealthy")
    assert task["healthStatus"] == "UNHEALTHY" and by_name(task)["other"]["healthStatus"] == "UNKNOWN"
    ecs.stop_task(task=arn)
    wait_stopped(ecs, [arn])


def test_a_task_with_a_time_limit(client):
    ecs = client("ecs")
    tags = [{"key": "corral:time-limit", "value": "1"}]
    arn = run(ecs, container(FOREVER), tags=tags)
    (task,) = wait_stopped(ecs, [arn])
    assert (task["stopCode"], task["stoppedReason"]) == ("UserInitiated", "Time limit of 1s reached")
    assert (task["stoppingAt"] - task["startedAt"]).total_seconds() >= 1
    for wrong in ("soon", "0", "-1", "nan", "inf", ""):
        with pytest.raises(ecs.exceptions.InvalidParameterException, match="corral:time-limit"):
            run(ecs, container(FOREVER), tags=[{"key": "corral:time-limit", "value": wrong}])


def test_a_change_of_a_task_answers_a_client_that_has_seen_the_previous_version(corral, client, tmp_path):
    ecs, asking, headers = client("ecs"), corral.new_client("ecs"), {"X-Corral-Wait": "60"}
    asking.meta.events.register("before-call.ecs.DescribeTasks", lambda params, **_: params["headers"].update(headers))

    def news(task: dict[str, Any]) -> dict[str, Any]:
        headers["X-Corral-Seen"] = str(task["version"])
        return describe(asking, task["taskArn"])

    def until_news(task: dict[str, Any], what: Any) -> dict[str, Any]:
        while not what(task):
            before, task = task, news(task)
            assert task["version"] > before["version"]
        return task

    wait_for = "until test -e {}; do sleep 0.02; done"
    arn = run(
        ecs,
        shell("first", wait_for.format(tmp_path / "first"), essential=False),
        shell("main", wait_for.format(tmp_path / "main"), dependsOn=after(first="COMPLETE")),
    )
    began = time.monotonic()
    task = until_news(describe(ecs, arn), lambda task: by_name(task)["first"]["lastStatus"] == "RUNNING")
    (tmp_path / "first").touch()
    task = until_news(task, lambda task: task["lastStatus"] == "RUNNING")
    assert (by_name(task)["first"]["exitCode"], by_name(task)["main"]["lastStatus"]) == (0, "RUNNING")
    (tmp_path / "main").touch()
    task = until_news(task, lambda task: task["lastStatus"] == "STOPPED")
    assert news(task)["version"] == task["version"]  # nothing more will happen: answered at once
    assert news(task | {"version": 1})["version"] == task["version"]  # it is news already
    assert time.monotonic() - began < 55


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([shell("a", "", dependsOn=after(b="START")), shell("b", "", dependsOn=after(a="START"))], "cycle"),
        ([shell("a", "", dependsOn=after(missing="START"))], "missing"),
        ([shell("a", "", dependsOn=after(b="SUCCESS")), shell("b", "")], "cannot be an essential container"),
        ([shell("a", "", dependsOn=after(b="HEALTHY")), shell("b", "")], "no health check"),
        ([shell("a", "", healthCheck={"command": ["true"]})], "CMD"),
        ([shell("a", "", healthCheck=health("true", interval=1))], "interval"),
        ([shell("a", "", restartPolicy={"enabled": True, "restartAttemptPeriod": 5})], "restartAttemptPeriod"),
    ],
)
def test_definitions_that_can_never_work_are_refused(client, containers, words):
    with pytest.raises(ClientError, match=words) as refused:
        client("ecs").register_task_definition(family="refused", containerDefinitions=containers)
    assert refused.value.response["Error"]["Code"] == "ClientException"


def restart_at_once(corral: Corral, family: str) -> None:
    """AWS accepts no period below a minute, which is too long for a test, so the test writes another one into the store."""
    corral.stop()
    with sqlite3.connect(corral.data / "state.db") as rows:
        (text,) = rows.execute("SELECT document FROM task_definition WHERE family = ?", (family,)).fetchone()
        document = json.loads(text)
        for each in document["containerDefinitions"]:
            if "restartPolicy" in each:
                each["restartPolicy"]["restartAttemptPeriod"] = 0
        rows.execute("UPDATE task_definition SET document = ? WHERE family = ?", (json.dumps(document), family))
    rows.close()
    corral.start()


def restarting(own_corral: Any, script: str, *more: dict[str, Any]) -> tuple[Corral, Any, str]:
    corral = own_corral().start()
    policy = {"enabled": True, "ignoredExitCodes": [9], "restartAttemptPeriod": 60}
    worker = shell("worker", script, gpus=1, log_prefix="p", restartPolicy=policy)
    corral.client("ecs").register_task_definition(family="again", containerDefinitions=[worker, *more])
    restart_at_once(corral, "again")
    ecs = corral.client("ecs")
    return corral, ecs, ecs.run_task(taskDefinition="again")["tasks"][0]["taskArn"]


def test_a_restarted_container_keeps_its_gpu_and_log_stream(own_corral, tmp_path):
    """Two exits that count, and a third that is ignored: three starts, one GPU, one log stream, one end of the task."""
    count = f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/starts; n=$(wc -l < {tmp_path}/starts)"
    count += f"; {sys.executable} -c 'import os, urllib.request as u; print(u.urlopen(os.environ[\"{METADATA}\"]).read().decode())'"
    corral, ecs, arn = restarting(own_corral, f"{count} > {tmp_path}/$n; echo start $n; test $n -lt 3 && exit 1; exit 9")
    (task,) = wait_stopped(ecs, [arn])
    (worker,) = task["containers"]
    assert (worker["exitCode"], task["stopCode"]) == (9, "EssentialContainerExited")
    assert (tmp_path / "starts").read_text().split() == worker["gpuIds"] * 3
    assert [json.loads((tmp_path / each).read_text())["RestartCount"] for each in "123"] == [0, 1, 2]
    stream = f"p/worker/{arn.rpartition('/')[2]}"
    events = corral.client("logs").get_log_events(logGroupName="/tests", logStreamName=stream, startFromHead=True)["events"]
    assert [event["message"] for event in events] == ["start 1", "start 2", "start 3"]


def test_nothing_is_lost_or_doubled_when_everything_is_killed(own_corral, tmp_path):
    """A restarting worker that depends on a healthy database; server and agent are killed at every step."""
    script = f"echo x >> {tmp_path}/starts; until test -e {tmp_path}/go; do sleep 0.02; done; rm {tmp_path}/go; exit 1"
    database = shell(
        "db", f"echo x >> {tmp_path}/dbs; exec sleep 1000", essential=False, healthCheck=health(f"test -e {tmp_path}/well")
    )
    corral, ecs, arn = restarting(own_corral, script, database, shell("last", "exit 5", dependsOn=after(db="HEALTHY")))

    def starts() -> int:
        path = tmp_path / "starts"
        return len(path.read_text().split()) if path.exists() else 0

    eventually(lambda: starts() == 1, "the worker runs")
    corral.kill("corral.server")
    corral.start()
    (tmp_path / "go").touch()
    eventually(lambda: starts() == 2, "the worker runs again")
    corral.kill("corral.node", "corral.server")
    (tmp_path / "go").touch()  # it ends while no agent runs
    corral.start()
    eventually(lambda: starts() == 3, "and again")
    corral.kill("corral.node")  # its successor has no check unless the core sends it
    (tmp_path / "well").touch()
    (task,) = wait_stopped(ecs, [arn])
    found = by_name(task)
    assert (found["last"]["exitCode"], found["worker"]["exitCode"], found["db"]["healthStatus"]) == (5, 143, "HEALTHY")
    assert starts() == 3 and (tmp_path / "dbs").read_text().split() == ["x"]
