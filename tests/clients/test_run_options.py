"""Options of `corral run` on a real server: the private environment, queue tags, arrays, GPU indexes, folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import UNTIL_TOLD, Cli
from corral.cli.runs.environment import BUCKET
from eventually import eventually

SECRET = "hf_do_not_show_me"
AWS = {
    "AWS_ENDPOINT_URL": "https://ecs.us-east-1.amazonaws.com", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "nothing is sent",
}  # fmt: skip
SHOW = "echo $CORRAL_INDEX $CORRAL_ARRAY_ID"
PRINT = "import json, os, sys; print(json.dumps([os.environ.get(name) for name in sys.argv[1:]]))"


def described(cli: Cli, task_id: str) -> dict[str, Any]:
    [task] = cli.client("ecs").describe_tasks(tasks=[task_id], include=["TAGS"])["tasks"]
    return dict(task)


def tags(cli: Cli, task_id: str) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in described(cli, task_id)["tags"]}


def definition_text(cli: Cli, family: str) -> str:
    return json.dumps(cli.client("ecs").describe_task_definition(taskDefinition=family)["taskDefinition"], default=str)


def values(cli: Cli, *words: str, names: tuple[str, ...], env: dict[str, str] | None = None) -> list[str | None]:
    """The values of variables inside a run."""
    out = cli("run", *words, "--", "python", "-c", PRINT, *names, env=env).stdout
    return list(json.loads(out))


# hosts


def test_a_run_chooses_its_host_and_the_model_of_its_gpus(cli: Cli) -> None:
    [host] = json.loads(cli("status", "--json").stdout)["hosts"]
    model = host["gpus"][0]["model"]
    part = model.split()[-1].lower()
    done = cli("run", "--host", host["name"], "--gpu-model", part, "-g", "1", "-n", "chosen", "--", "echo", "here")
    assert done.stdout == "here\n"
    definition = cli.client("ecs").describe_task_definition(taskDefinition="chosen")["taskDefinition"]
    assert [each["type"] for each in definition["placementConstraints"]] == ["memberOf", "memberOf"]
    for words, error in (
        (("--host", "nope"), f"there is no host nope: the hosts are {host['name']}."),
        (("--gpu-model", "V100"), f"no host has GPUs of the model V100: the hosts have {model}."),
        (("--gpu-model", 'a"'), "--gpu-model 'a\"' is not valid"),
    ):
        assert error in " ".join(cli("run", *words, "--", "true", code=1).stderr.split()), words
    waits = cli("run", "--gpu-model", "V100", "--wait-anyway", "-d", "--", "true").stdout.strip()
    assert "memberOf" in cli("ps").stdout
    cli("stop", waits)


# the environment


def test_the_definition_does_not_contain_the_environment(cli: Cli) -> None:
    env = {"HF_TOKEN": SECRET, "MANY_LINES": "first\nsecond\n", "WIDE": "größe €", "EMPTY": ""}
    names = (*env, "EXTRA")
    assert values(cli, "-n", "small", "-e", "EXTRA=a=b", names=names, env=env) == [*env.values(), "a=b"]
    assert SECRET not in definition_text(cli, "small") and '"environment": []' in definition_text(cli, "small")


@pytest.mark.parametrize("repeats", [1, 1000])
def test_an_environment_is_a_private_object_at_every_size(cli: Cli, repeats: int) -> None:
    wide, family = "größe € 🐎" * repeats, f"wide-{repeats}"
    env = {"HF_TOKEN": SECRET, "MANY_LINES": "first\nsecond\n", "WIDE": wide, "EMPTY": "", "QUOTED": "\"'$(x)\\n"}
    assert values(cli, "-n", family, names=tuple(env), env=env) == list(env.values())
    assert SECRET not in definition_text(cli, family)
    arn = cli.client("ecs").list_tasks(family=family, desiredStatus="STOPPED")["taskArns"][-1]
    task = described(cli, arn)
    assert SECRET not in cli("show", "--json", family).stdout and SECRET not in cli("ps", "--json", "-a").stdout
    for file in (*cli.data.glob("state.db*"), cli.data / "server.log", cli.data / "node" / "agent.log"):
        assert SECRET.encode() not in file.read_bytes(), file
    [file] = task["overrides"]["containerOverrides"][0]["environmentFiles"]
    assert SECRET not in json.dumps(task, default=str) and file["value"].startswith(f"arn:aws:s3:::{BUCKET}/")
    # A task cannot read the object, although it has the credentials of its role.
    key = file["value"].rpartition("/")[2]
    script = f"import boto3; boto3.client('s3').get_object(Bucket={BUCKET!r}, Key={key!r})"
    assert "AccessDenied" in cli("run", "--", "python", "-c", script, code=1).stdout


def test_files_with_variables(cli: Cli) -> None:
    (cli.home / "more.env").write_text("# settings\nA=1\nB=from the file\n")
    assert values(cli, "--env-file", "more.env", "-e", "B=2", names=("A", "B")) == ["1", "2"]
    assert "more.txt: No such file" in cli("run", "--env-file", "more.txt", "--", "true", code=2).stderr


def test_commands_and_folders_that_no_task_definition_can_contain(cli: Cli) -> None:
    corral = f"{sys.executable} -m corral"
    script = f"mkdir gone; cd gone; rmdir ../gone; {corral} run -- true; cd ..; {corral} run -- echo $1"
    words = ["sh", "-c", script, "sh", b"\xff"]
    done = subprocess.run(words, env=cli.environment, cwd=cli.home, capture_output=True, text=True)
    assert done.returncode == 1 and "the current folder was deleted: change to another folder" in done.stderr
    assert "'\\udcff' is not UTF-8" in done.stderr and "Traceback" not in done.stderr
    assert "no task has the name ''" in cli("logs", "", code=1).stderr
    assert "missing.json does not exist" in cli("run", "missing.json", code=1).stderr


def test_the_environment_of_a_file_and_of_an_image_is_only_what_was_given(cli: Cli) -> None:
    """A variable of the command line replaces one of the task definition, and its environment files stay."""
    s3 = cli.client("s3")
    s3.create_bucket(Bucket="settings")
    s3.put_object(Bucket="settings", Key="more.env", Body=b"B=of a file\nC=of a file\n")
    command = [sys.executable, "-c", PRINT, "A", "B", "C", "HF_TOKEN"]
    container = {"name": "main", "image": "corral/host", "memory": 32, "command": command}
    container["environment"] = [{"name": name, "value": "of the definition"} for name in ("A", "B")]
    container["environmentFiles"] = [{"type": "s3", "value": "arn:aws:s3:::settings/more.env"}]
    log = {"awslogs-group": "filed", "awslogs-region": "us-east-1", "awslogs-stream-prefix": "x", "awslogs-create-group": "true"}
    container["logConfiguration"] = {"logDriver": "awslogs", "options": log}
    (cli.home / "filed.json").write_text(json.dumps({"family": "filed", "containerDefinitions": [container]}))
    done = cli("run", "-e", "A=1", "filed.json", env={"HF_TOKEN": SECRET})
    assert json.loads(done.stdout) == ["1", "of the definition", "of a file", None]
    done = cli("rerun", "-e", "A=2", "-e", f"HF_TOKEN={SECRET}", "filed")
    assert json.loads(done.stdout) == ["2", "of the definition", "of a file", SECRET]
    [task] = [described(cli, arn) for arn in cli.client("ecs").list_tasks(family="filed", desiredStatus="STOPPED")["taskArns"]][-1:]
    assert SECRET not in json.dumps(task, default=str)


# where and on what a run runs


def test_short_options(cli: Cli) -> None:
    folder = cli.home / "lab"
    folder.mkdir()
    script = "pwd; echo $A $CUDA_VISIBLE_DEVICES"
    done = cli("run", "-g", "1", "-n", "lr0.1", "-w", "lab", "-e", "A=1", "-t", "1:30:00", "--", "sh", "-c", script)
    where, rest = done.stdout.splitlines()
    assert Path(where).samefile(folder) and rest.startswith("1 GPU-")
    task_id = cli("run", "-d", "-t", "90m", "--memory", "16m", "--", "true").stdout.strip()
    assert tags(cli, task_id)["corral:time-limit"] == "5400"
    definition = cli.client("ecs").describe_task_definition(taskDefinition=described(cli, task_id)["taskDefinitionArn"])
    assert definition["taskDefinition"]["containerDefinitions"][0]["memory"] == 16
    assert "'nowhere' is not a folder" in cli("run", "-w", "nowhere", "--", "true", code=2).stderr


def test_gpus_by_index(cli: Cli) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    assert values(cli, "-g", "2", "--gpu-ids", "index", names=names) == ["0,1", "PCI_BUS_ID"]
    holder = cli.start_task("-g", "1", "--", "sh", "-c", UNTIL_TOLD)
    assert values(cli, "-g", "1", "--gpu-ids", "index", names=names) == ["1", "PCI_BUS_ID"]
    cli("stop", "--wait", holder)
    assert values(cli, "--gpu-ids", "index", names=names) == ["", None]
    ecs = cli.client("ecs")
    try:
        ecs.run_task(taskDefinition="begun", tags=[{"key": "corral:gpu-ids", "value": "pci"}])
        raise AssertionError("accepted")
    except ecs.exceptions.InvalidParameterException as refused:
        assert "must be uuid or index, not 'pci'" in str(refused)


def test_the_commit_of_the_folder_is_a_tag(cli: Cli) -> None:
    folder = cli.home / "repository"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"], ["tag", "-a", "-m", "x", "v1"]):
        subprocess.run([*git, *words], check=True, env=environment)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    task_id = cli("run", "-d", "-w", "repository", "--", "true").stdout.strip()
    assert tags(cli, task_id)["corral:git"] == commit[:7]
    (folder / "new").write_text("x")
    subprocess.run([*git, "add", "new"], check=True, env=environment)
    task_id = cli("run", "-d", "-w", "repository", "--", "true").stdout.strip()
    assert tags(cli, task_id)["corral:git"] == f"{commit[:7]}+dirty"
    assert "corral:git" not in tags(cli, cli("run", "-d", "-w", "/", "--", "true").stdout.strip())


# the queue


def test_queue_options_are_tags(cli: Cli) -> None:
    words = ("--priority", "-5", "--requeue", "--at", "+2h", "--hold", "--after", "first", "--after-any", "o*r")
    first = cli.start_task("--", "sh", "-c", UNTIL_TOLD, family="first")
    second = cli.start_task("--", "sh", "-c", UNTIL_TOLD, family="other")
    task_id = cli("run", "-d", *words, "true").stdout.strip()
    found = tags(cli, task_id)
    now_s = described(cli, task_id)["createdAt"].timestamp()
    assert abs(float(found.pop("corral:not-before")) - now_s - 7200) < 5
    assert found == {
        "corral:priority": "-5", "corral:requeue": "1", "corral:hold": "true", "corral:after": first, "corral:after-any": second,
        "corral:refuse-unfit": "true",
    }  # fmt: skip
    other = cli("run", "-d", "--requeue=3", "--wait-anyway", "--", "true").stdout.strip()
    assert tags(cli, other) == {"corral:requeue": "3"}
    assert "no task has the name 'nothing'" in cli("run", "-d", "--after", "nothing", "--", "true", code=1).stderr
    assert "has passed" in cli("run", "-d", "--at", "2020-01-01", "--", "true", code=2).stderr


def test_two_runs_share_a_gpu_while_a_third_waits(cli: Cli) -> None:
    """The server has two simulated GPUs with 81,559 MiB each. A run without --share has one of them alone."""
    whole = cli.start_task("-g", "1", "--", "sh", "-c", UNTIL_TOLD)
    first = cli.start_task("--share", "--gpu-memory", "40g", "--", "sh", "-c", UNTIL_TOLD, family="half")
    second = cli.start_task("--share", "--gpu-memory", "30g", "-g", "1", "--", "sh", "-c", UNTIL_TOLD)
    third = cli("run", "-d", "--share", "--gpu-memory", "20g", "-n", "third", "--", "env").stdout.strip()
    [first_gpu], [second_gpu] = (described(cli, each)["containers"][0]["gpuIds"] for each in (first, second))
    assert first_gpu == second_gpu != described(cli, whole)["containers"][0]["gpuIds"][0]
    waiting = described(cli, third)
    assert waiting["lastStatus"] == "PROVISIONING"
    assert "no GPU has more than 9879 MiB of memory left to share" in waiting["containers"][0]["reason"]
    rows = {line.split()[0]: line for line in cli("ps").stdout.splitlines()}
    assert " 1* " in rows[first[:8]] and " 1* " in rows[second[:8]] and " 0 " in rows[whole[:8]]
    assert "20 GiB of a GPU" in rows[third[:8]]
    shown = next(line for line in cli("status").stdout.splitlines() if "shared, 70 GiB of 79.65 GiB reserved: " in line)
    assert f"{first[:8]} half" in shown and f"{second[:8]} begun" in shown
    assert "shared, 70 GiB" in cli("top", "--once", env={"COLUMNS": "200"}).stdout
    assert "40 GiB of a shared GPU\n" in cli("show", first).stdout
    cli("stop", "--wait", first)
    assert cli("wait", third).stdout == ""
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M" in cli("logs", third).stdout
    assert "20 GiB of a shared GPU" in cli("show", third).stdout
    cli("stop", "--wait", second, whole)


def test_options_of_shared_gpus_that_do_not_fit_together(cli: Cli) -> None:
    def refused(*words: str) -> str:
        return cli("run", *words, "--", "true", code=2).stderr

    assert "--share requires --gpu-memory" in refused("--share")
    assert "--gpu-memory requires --share" in refused("--gpu-memory", "20g")
    assert "--share cannot be used with --gpus 2" in refused("--share", "--gpu-memory", "20g", "-g", "2")
    assert "--share cannot be used with --gpus all" in refused("--share", "--gpu-memory", "20g", "-g", "all")
    assert "'0' is 0 MiB" in refused("--share", "--gpu-memory", "0")
    said = cli("run", "--share", "--gpu-memory", "90g", "--", "true", code=1).stderr
    assert "92160 MiB of a shared GPU" in said and "81559 MiB on its largest GPU" in said


def test_aws_refuses_each_queue_option_by_name(cli: Cli) -> None:
    given = {
        "--array": "0-9", "--after": "x", "--after-any": "x", "--priority": "0", "--at": "+1h", "--gpu-ids": "index",
        "--requeue": None, "--hold": None, "--wait-anyway": None,
    }  # fmt: skip
    for option, value in given.items():
        words = [option] if value is None else [option, value]
        said = cli("run", *words, "--image", "x", "--", "true", code=1, env=AWS).stderr
        assert f"have no {option}: it works only with Corral" in said and "corral pipeline" in said


def test_held_tasks_are_released(cli: Cli) -> None:
    held = cli("run", "-d", "--hold", "-n", "held", "--", "sh", "-c", UNTIL_TOLD).stdout.strip()
    assert tags(cli, held)["corral:hold"] == "true" and described(cli, held)["lastStatus"] == "PROVISIONING"
    wide = {"COLUMNS": "200"}
    for text in (cli("ps", env=wide).stdout, cli("top", "--once", env=wide).stdout, cli("status", env=wide).stdout):
        assert f"held: `corral release {held[:8]}` releases it" in text and "more" not in text
    assert cli("release", "held").stdout == f"{held[:8]} held is released\n"
    assert "corral:hold" not in tags(cli, held)
    eventually(lambda: described(cli, held)["lastStatus"] == "RUNNING")
    assert "no task of held is held" in cli("release", "held", code=1).stderr


def test_a_run_starts_after_others(cli: Cli) -> None:
    array_id = cli(
        "run", "-d", "-n", "parts", "--array", "0-1", "--hold", "--", "sh", "-c", "echo $CORRAL_INDEX >> parts"
    ).stdout.strip()
    held = cli("run", "-d", "-n", "failing", "--hold", "--", "sh", "-c", "exit 4").stdout.strip()
    summed = cli("run", "-d", "-n", "summed", "--after", "parts", "--", "sort", "parts").stdout.strip()
    never = cli("run", "-d", "-n", "never", "--after", "failing", "--", "true").stdout.strip()
    whatever = cli("run", "-d", "-n", "whatever", "--after-any", "failing", "--", "true").stdout.strip()
    assert tags(cli, summed)["corral:after"] == f"array:{array_id}" and tags(cli, never)["corral:after"] == held
    assert len(cli("release", "parts").stdout.splitlines()) == 2
    cli("release", "failing")
    cli("wait", summed, whatever)
    assert cli("logs", summed).stdout == "0\n1\n"
    stopped = cli("wait", never, code=125).stderr
    refused = cli("run", "--after", "failing", "--", "true", code=1).stderr
    assert f"Dependency failed: run failing ({held[:8]}) ended with exit code 4" in stopped
    assert f"would never start: run failing ({held[:8]}), which --after names, ended with exit code 4. Use --after-any" in refused
    assert "corral:" not in stopped.replace("corral: ", "") + refused.replace("corral: ", "")  # tags are for other clients


def test_a_run_that_fails_is_requeued_and_followed(cli: Cli) -> None:
    script = "test -e $1 || { touch $1; echo first; exit 5; }; echo second; exit $2"
    done = cli("run", "-n", "again", "--requeue", "--", "sh", "-c", script, "sh", "one", "0")
    assert done.stdout == "first\nsecond\n" and re.search(
        r"failed with exit code 5 and is requeued as task [0-9a-f]{8}", done.stderr
    )
    cli("run", "--requeue", "--", "sh", "-c", script, "sh", "two", "6", code=6)
    detached = cli("run", "-d", "--requeue=2", "--", "sh", "-c", script, "sh", "three", "0").stdout.strip()
    cli("wait", detached)
    assert "-i cannot be used with --requeue" in cli("run", "-i", "--requeue", "--", "true", code=2, given="").stderr


def test_members_are_requeued(cli: Cli) -> None:
    script = "test -e m$CORRAL_INDEX || { touch m$CORRAL_INDEX; exit 1; }; " + SHOW
    done = cli("run", "-n", "twice", "--requeue", "--array", "1-2", "--", "sh", "-c", script)
    assert [line.split()[2] for line in sorted(done.stdout.splitlines())] == ["1", "2"]
    assert done.stderr.count("is requeued as task") == 2


def test_an_index_means_the_newest_task_of_a_requeued_member(cli: Cli) -> None:
    script = "test -e again || { touch again; exit 1; }; " + UNTIL_TOLD
    array_id = cli("run", "-d", "-n", "newest", "--requeue", "--array", "4", "--", "sh", "-c", script).stdout.strip()
    eventually(lambda: len(cli.json("ps", "--all", array_id)) == 2 and len(cli.unfinished()) == 1)
    cli("stop", "--wait", "newest:4")
    assert not cli.unfinished()


# arrays


def test_an_array_has_a_member_for_each_index(cli: Cli) -> None:
    array_id = cli("run", "-d", "-n", "sweep", "--array", "0-11,20-24:2%2", "--", "sh", "-c", SHOW).stdout.strip()
    assert re.fullmatch("[0-9a-f]{12}", array_id)
    cli("wait", array_id)
    ecs = cli.client("ecs")
    arns = ecs.list_tasks(startedBy=f"corral-array/{array_id}", desiredStatus="STOPPED")["taskArns"]
    assert len(arns) == 15
    assert {tags(cli, arn)["corral:array"].split()[0] for arn in arns} == {array_id}
    assert len(cli.json("ps", "--all", array_id)) == len(cli.json("ps", "--all", "sweep")) == 15
    indexes = [*range(12), 20, 22, 24]
    expected = {f"{f'sweep:{index}':<8} | {index} {array_id}" for index in indexes}
    assert set(cli("logs", "sweep").stdout.splitlines()) == set(cli("logs", "-f", array_id).stdout.splitlines()) == expected
    assert cli("logs", "sweep:22").stdout == cli("logs", "sweep[22]").stdout == f"22 {array_id}\n"
    assert cli("ps", "--all", "sweep[22]").stdout.splitlines()[1].split()[1] == "sweep:22"
    assert [task["tags"] for task in cli.json("ps", "--all", f"{array_id}:22")] == [described(cli, arns[-2])["tags"]]
    assert "sweep has no member with the index 23" in cli("logs", "sweep:23", code=1).stderr


def test_an_array_in_the_foreground_ends_with_the_worst_exit_code(cli: Cli) -> None:
    script = "echo started; exit $CORRAL_INDEX"
    done = cli("run", "-n", "fail", "--array", "0-2", "--", "sh", "-c", script, code=2)
    assert re.search(r"array [0-9a-f]{12} has 3 tasks\n", done.stderr)
    assert re.search(r"2 of 3 tasks of array [0-9a-f]{12} failed: fail:1 with 1, fail:2 with 2\n", done.stderr)
    assert sorted(done.stdout.splitlines()) == [f"fail:{index} | started" for index in range(3)]
    described = json.loads(cli("run", "--json", "--array", "1,5", "--", "true").stdout)
    assert [task["lastStatus"] for task in described] == ["STOPPED", "STOPPED"]


def test_stop_means_all_members_of_an_array(cli: Cli) -> None:
    array_id = cli("run", "-d", "-n", "long", "-g", "1", "--array", "0-3", "--", "sh", "-c", UNTIL_TOLD).stdout.strip()
    shown = [cli("ps").stdout, cli("top", "--once").stdout, cli("status").stdout]
    assert all(f"long:{index}" in text for text in shown for index in range(4)), shown
    assert len(cli("stop", "--wait", "long").stdout.splitlines()) == 4
    assert not cli.unfinished()
    assert "no task" in cli("stop", "x" + array_id, code=1).stderr


def test_ctrl_c_stops_an_array(cli: Cli) -> None:
    running = cli.begin("run", "-n", "stopped", "-g", "1", "--array", "0-2", "--", "sh", "-c", UNTIL_TOLD)
    running.until("stdout", "ready")
    running.interrupt()  # reaches the members that run; the others are stopped
    code, _, err = running.end()
    said = "sent SIGINT to [12] tasks? and cancelled [12] tasks? that had not started; the next"
    assert code == 130 and re.search(said, err), err
    assert re.search(r"3 of 3 tasks of array \w+ were stopped: stopped:0, stopped:1, stopped:2\n", err), err
    assert "failed: " not in err and "Ctrl-C was pressed" not in err, err
    eventually(lambda: not cli.unfinished())

    running = cli.begin("run", "-n", "mixed", "--array", "0-2", "--", "sh", "-c", f"[ $CORRAL_INDEX = 0 ] && exit 3; {UNTIL_TOLD}")
    running.until("stdout", "mixed:2 | ready")
    cli("stop", "mixed:1", "mixed:2")  # by another command
    code, _, err = running.end()
    assert code == 7 and "1 of 3 tasks" in err and "failed: mixed:0 with 3\n" in err, err
    assert "were stopped: mixed:1, mixed:2\n" in err and "2 tasks: Task stopped by user" in err, err


# changes of runs that wait


def test_a_waiting_run_is_changed_and_a_started_one_is_refused(cli: Cli) -> None:
    holder = cli.start_task("-g", "2", "--", "sh", "-c", UNTIL_TOLD, family="holder")
    first = cli("run", "-d", "-g", "2", "-n", "first", "--", "sleep", "600").stdout.strip()
    cli("run", "-d", "-g", "2", "-n", "second", "--", "sleep", "600")
    cli("run", "-d", "-g", "2", "-n", "many", "--array", "0-2", "--", "sleep", "600")
    shown = cli("set", "second", "--priority", "5", "--time", "1h30m", "--gpus", "1").stdout
    assert re.fullmatch(r"second \(\w{8}\): priority 5; time limit 90m; 1 GPU; place 1 in line, was 2\n", shown), shown
    [row] = cli.json("set", "first", "--time", "none")
    assert (row["task"], row["place"], row["placeBefore"], row["timeLimitSeconds"]) == (first, 2, 2, None)
    shown = cli("show", "second").stdout
    assert "Needs     1 GPU" in shown and "--time 90m" in shown and "--priority 5" in shown
    assert re.findall(
        r"held; no place in line, was (\d); `corral release many:(\d)`", cli("set", "many", "--hold", "-g", "1").stdout
    ) == [(str(3 + index), str(index)) for index in range(3)], "members wait in the order of their indexes"
    assert [task["held"] for task in cli.json("set", "many:1", "--release")] == [False]
    assert "many:1" in cli("set", "many:1", "--priority", "-1").stdout
    refused = cli("set", "holder", "--priority", "5", code=1).stderr
    assert refused == f"corral: holder ({holder[:8]}) is RUNNING: `corral set` changes only tasks that wait.\n"
    assert "needs 3 GPUs" in cli("set", "first", "-g", "3", code=1).stderr
    assert "'65' is neither a number from 0 to 64 nor 'all'" in cli("set", "first", "-g", "65", code=2).stderr
    assert "say what to change" in cli("set", "first", code=2).stderr
    assert "the endpoint is AWS" in cli("set", "first", "--hold", code=1, env=AWS).stderr
    cli("stop", "--wait", "holder")
    eventually(lambda: cli.json("show", "second")["lastStatus"] == "RUNNING")
    assert "many:1" in cli("set", "many", "--release").stdout
    assert "1 task has started or ended, and was not changed" in cli("set", "first", "second", "--priority", "1").stderr
    cli("stop", "--wait", "first", "second", "many")
    assert "is STOPPED: `corral set` changes only" in cli("set", "first", "--hold", code=1).stderr
