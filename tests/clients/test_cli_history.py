"""`corral history`, `show`, `rerun`, `wait` and `logs` of runs that ECS has forgotten."""

from __future__ import annotations

import re
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clients.test_cli_machine import completed
from clients.test_cli_run import AWS
from command import UNTIL_TOLD, Cli
from corral.cli.printing.errors import CliError
from corral.cli.runs.gpu_graph import PERIODS_S, bars, period_of
from corral.cli.runs.recorded_runs import plain_command
from corral.cli.runs.rerun import check_owner
from eventually import eventually

UP = ("up", "--detach", "--gpus", "sim:2", "--port", "0")


def forget(own: Cli) -> None:
    """Restart the server two hours later, as far as stopped tasks are concerned. ECS shows them for one hour."""
    own("down")
    with sqlite3.connect(own.data / "state.db") as database:
        database.execute("UPDATE task SET stopped_at = stopped_at - 7200 WHERE state = 'STOPPED'")
    database.close()
    own(*UP)
    eventually(lambda: own.client("ecs").list_tasks(desiredStatus="STOPPED")["taskArns"] == [])


def test_runs_that_ecs_has_forgotten(own: Cli) -> None:
    own(*UP)
    assert own("history").stdout == "No run that has ended. `corral ps` lists the tasks that run or wait.\n"
    script = "echo working; until [ -e go ]; do sleep 0.1; done"
    busy = own("run", "--detach", "--gpus", "2", "--name", "lr0.1", "--time", "1h", "--", "sh", "-c", script)
    own("run", "--name", "bad", "--", "sh", "-c", "echo first >&2; exit 3", code=3)
    own("run", "--name", "bad", "--", "sh", "-c", "echo second; exit 4", code=4)
    own("run", "--name", "env", "-e", "SIZE=1", "--", "sh", "-c", "echo $COLOUR $SIZE", env={"COLOUR": "red", "TOKEN": "secret"})
    own("run", "--name", "sweep", "--array", "4-6", "--", "sh", "-c", "echo index $CORRAL_INDEX")
    held = own.start_task("--", "sh", "-c", UNTIL_TOLD, family="held")
    own("stop", "held")
    task_id = busy.stdout.strip()
    eventually(lambda: len(_known(own)) >= 3)
    running = own.json("show", "lr0.1")
    assert (running["command"], running["folder"]) == (["sh", "-c", script], str(own.home))
    assert "State     RUNNING" in own("show", "lr0.1").stdout
    (own.home / "go").touch()
    own("wait", "lr0.1")
    eventually(lambda: own.task(held)["lastStatus"] == "STOPPED")
    shown = own("show", "bad").stdout
    assert "State     has failed, exit code 4" in shown and "Command   sh -c 'echo second; exit 4'" in shown, "also within the hour"

    forget(own)
    assert own("ps", "--all").stdout == "No tasks.\n"
    table = own("history", env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, table)) <= 80 and table[0].split()[:4] == ["ID", "NAME", "ENDED", "EXIT"]
    table = own("history").stdout.splitlines()  # one line for each run
    assert [line.split()[1] for line in table[1:]][:2] == ["bad", "bad"], "oldest first"
    exits = {line.split()[1].partition(":")[0]: line.split()[4] for line in table[1:]}
    assert exits == {"bad": "4", "env": "0", "sweep": "0", "held": "7", "lr0.1": "0"}
    assert [row["name"] for row in own.json("history", "--failed")] == ["bad", "bad"]
    assert [row["exitCode"] for row in own.json("history", "bad")] == [3, 4]
    assert [row["exitCode"] for row in own.json("history", "--limit", "1", "bad")] == [4]
    assert "there are older runs" in own("history", "--limit", "1").stderr
    [stopped] = [line for line in table if " held " in line]
    assert "sh -c" in stopped and stopped.endswith("(Task stopped by user)"), "a stopped run keeps its command"
    assert own.json("history", "--since", "1h", "h*")[0]["stoppedReason"] == "Task stopped by user"
    tomorrow = datetime.fromtimestamp(datetime.now(UTC).timestamp() + 86_400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert own("history", "bad", "--since", tomorrow).stdout.startswith(f"No run with the name bad that ended since {tomorrow}.")
    assert set(completed(own, "history", "")) == set(exits) and completed(own, "show", "lr") == ["lr0.1"]

    assert own("logs", task_id[:7]).stdout == "working\n" == own("logs", "-f", "lr0.1").stdout
    latest = own("logs", "bad")
    assert latest.stdout == "second\n"
    assert re.search(r"2 runs in the history have the name bad: using the latest, \w{8}", latest.stderr)
    assert set(own("logs", "bad", "lr*").stdout.splitlines()) == {"bad   | second", "lr0.1 | working"}
    assert sorted(line.partition("| ")[2] for line in own("logs", "sweep").stdout.splitlines()) == ["index 4", "index 5", "index 6"]
    assert own("logs", "sweep:5").stdout == "index 5\n"
    assert "no task has the name 'nothing'" in own("logs", "nothing", code=1).stderr
    assert "there is no run" in own("show", "f" * 32, code=1).stderr
    assert own("run", "--after", "lr0.1", "--after", "sweep", "--after-any", "bad", "--", "echo", "next").stdout == "next\n"
    assert "The task would never start" in own("run", "--after", "bad", "--", "true", code=1).stderr
    own("wait", task_id, "sweep")
    assert "\nNeeds     2 GPUs\n" in own("show", task_id).stdout
    assert {line.split()[1] for line in own("history", "sweep").stdout.splitlines()[1:]} == {"sweep:4", "sweep:5", "sweep:6"}
    assert re.search(r"^Run       sweep:5 .*^Array     index 5 of array \w{12}$", own("show", "sweep:5").stdout, re.M | re.S)
    assert [task["exitCode"] for task in own.json("wait", "lr0.1", "bad", code=4)] == [0, 4]

    seen = own.json("show", "lr0.1")
    [file] = seen["outputFiles"]
    kept = Path(file["path"])
    assert [file] == running["outputFiles"] and kept.read_text() == "working\n" and kept.stat().st_mode & 0o777 == 0o600
    assert f"\nOutput    {kept} (8 bytes)\n" in own("show", task_id).stdout
    assert seen["gpuUse"]["samples"] >= 2 and seen["gpuLoad"]["meanUtilizationPercent"]
    with sqlite3.connect(own.data / "state.db") as database:
        assert "secret" not in str(database.execute("SELECT record FROM task_history").fetchall())
    database.close()
    text = own("show", task_id).stdout
    lines = f"Run       lr0.1  {task_id}", "State     has ended, exit code 0", f"Folder    {own.home}", "Options   --time 1h"
    for line in lines:
        assert line in text, text
    assert re.search(r"^Ended .*ago\), ran \d", text, re.MULTILINE) and "s per column" in text

    # The same command, name, GPUs and time limit again, with the environment of now
    assert own("rerun", "env", env={"COLOUR": "blue"}).stdout == "blue\n"
    assert own("rerun", "env", "-e", "SIZE=2", env={"COLOUR": "blue"}).stdout == "blue 2\n", "the latest run is in ECS now"
    assert own("rerun", "bad", code=4).stdout == "second\n" and own("rerun", "sweep:5").stdout == "index 5\n"
    task = own.json("rerun", "lr0.1")
    tags = {tag["key"]: tag["value"] for tag in task["tags"]}
    assert (tags["corral:name"], tags["corral:time-limit"]) == ("lr0.1", "3600")
    assert len(task["containers"][0]["gpuIds"]) == 2 and task["startedBy"] == "corral-run"


def test_a_name_of_the_history_comes_before_the_beginning_of_an_id(own: Cli) -> None:
    """The name of an ended run, such as `bad`, can also be the beginning of the id of a task that runs."""
    own(*UP)
    held = own.start_task("--", "sh", "-c", UNTIL_TOLD, family="held")
    name = held[:4]
    own("run", "--name", name, "--", "sh", "-c", "echo said; exit 4", code=4)
    forget(own)
    assert "The task would never start" in own("run", "--after", name, "--", "true", code=1).stderr
    assert own("logs", name).stdout == "said\n"
    assert "State     has failed, exit code 4" in own("show", name).stdout
    assert own("stop", name).stdout.endswith(" has stopped\n")
    assert own.task(held)["desiredStatus"] == "RUNNING"
    assert own.json("show", name[:3])["taskArn"].endswith(f"/{held}"), "no run has this name, so it is the beginning of an id"


def test_since_lists_all_runs_and_services_can_be_left_out(cli: Cli) -> None:
    cli("run", "--name", "many", "--array", "0-30", "--", "true")
    ecs = cli.client("ecs")
    container = {"name": "main", "image": "corral/host", "command": ["true"], "memory": 16}
    ecs.register_task_definition(family="served", containerDefinitions=[container])
    ecs.create_service(serviceName="served", taskDefinition="served", desiredCount=1)
    eventually(lambda: cli.json("history", "served"))
    ecs.delete_service(service="served", force=True)
    assert len(cli.json("history", "many")) == 30 and len(cli.json("history", "--since", "1h", "many")) == 31
    assert {row["name"] for row in cli.json("history", "--runs", "--since", "1h")} == {"many"}
    assert cli.json("history", "--runs", "--limit", "2")[-1]["name"] == "many"


def _known(own: Cli) -> list[float]:
    """The values of the graph that CloudWatch has so far."""
    return [value for value in own.json("show", "lr0.1").get("gpuLoad", {}).get("meanUtilizationPercent", ()) if value is not None]


@pytest.mark.parametrize(("started_by", "error"), [("batch:j", "belongs to a Batch job"), ("ecs-svc/1", "belongs to a service")])
def test_tasks_with_an_owner_are_not_run_again(started_by: str, error: str) -> None:
    with pytest.raises(CliError, match=error):
        check_owner({"taskArn": "arn:aws:ecs:r:1:task/default/" + "a" * 32, "startedBy": started_by})


def test_history_is_not_a_command_for_aws(cli: Cli) -> None:
    assert "AWS shows a stopped task for an hour" in cli("history", env=AWS, code=1).stderr


@pytest.mark.parametrize(
    ("duration_s", "age_s", "period_s"),
    [
        (5, 10, 1), (58, 60, 1), (59, 61, 1), (60, 100, 5), (3_000, 3_000, 60), (30, 4 * 3600, 60), (86_400, 86_400, 1_800),
        (30, 20 * 86_400, 300), (30, 100 * 86_400, 3_600), (30, 1000 * 86_400, 3_600),
    ],
)  # fmt: skip
def test_the_graph_fits_its_columns(duration_s: float, age_s: float, period_s: int) -> None:
    assert period_of(duration_s, age_s, 60) == period_s
    assert all(duration / period_of(duration, duration, 60) <= 59 for duration in range(1, 400 * 86_400, 99_999))
    assert list(PERIODS_S) == sorted(PERIODS_S)


def test_bars() -> None:
    assert bars([0.0, 50.0, 100.0, None, 3.0, 120.0]) == "▁▅█·▁█"


def test_the_command_of_an_interactive_run_is_shown_without_its_relay() -> None:
    relay = ["/usr/bin/python", "-I", "-S", "/x/corral/channel/command_relay.py", "tty", "/tmp/s", "--"]
    assert plain_command([*relay, "bash", "-l"]) == ["bash", "-l"]
    assert plain_command(["python", "a.py"]) == ["python", "a.py"] and plain_command(relay) == relay
