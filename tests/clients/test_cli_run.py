"""`corral run` beyond the plain command: input, terminals, task definitions from files, several containers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from command import BIN, UNTIL_TOLD, Cli, Running
from corral.cli.printing.errors import CliError
from corral.cli.runs.command_lookup import check_command
from corral.cli.runs.log_printer import COLOURS, colours_of
from eventually import eventually
from ports import free_port

AWS = {
    "AWS_ENDPOINT_URL": "https://ecs.us-east-1.amazonaws.com", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "nothing is sent",
}  # fmt: skip


def definition(*containers: dict[str, Any], family: str = "filed") -> dict[str, Any]:
    return {"family": family, "containerDefinitions": list(containers)}


def container(name: str, script: str, *, log: bool = True, **more: Any) -> dict[str, Any]:
    options = {
        "awslogs-group": "/filed",
        "awslogs-region": "us-east-1",
        "awslogs-create-group": "true",
        "awslogs-stream-prefix": "f",
    }
    logged = {"logConfiguration": {"logDriver": "awslogs", "options": options}} if log else {}
    return {"name": name, "image": "corral/host", "memory": 32, "command": ["sh", "-c", script], **logged, **more}


def ended(cli: Cli, family: str) -> dict[str, Any]:
    """The only task of a family, once it has stopped."""
    ecs = cli.client("ecs")

    def stopped() -> Any:
        arns = ecs.list_tasks(family=family, desiredStatus="STOPPED")["taskArns"]
        tasks = ecs.describe_tasks(tasks=arns)["tasks"] if arns else []
        return tasks[0] if tasks and tasks[0]["lastStatus"] == "STOPPED" else None

    found: dict[str, Any] = eventually(stopped)
    return found


# commands that cannot be executed


def test_a_command_that_a_run_cannot_execute_is_found_before(tmp_path: Path) -> None:
    """Pairs of a command and a part of its refusal. The names exist in two folders: the working directory and one of the PATH."""
    work, programs = tmp_path / "work", tmp_path / "programs"
    work.mkdir(), programs.mkdir()
    ready, script = 0o755, "#!/bin/sh\n"
    for path, mode, text in (
        (programs / "train", ready, script), (programs / "closed", 0o644, script), (work / "here.py", 0o644, ""),
        (work / "here.sh", ready, script), (work / "plain.sh", ready, "echo 1\n"), (work / "closed.py", 0o644, ""),
        (work / "windows.sh", ready, "#!/bin/sh\r\n"), (work / "lost.sh", ready, "#!/no/python -u\n"),
        (work / "package" / "__main__.py", 0o644, ""),
    ):  # fmt: skip
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    environment = {"PATH": f"{programs}:../programs"}
    for good in ("train", "./here.sh", str(programs / "train"), "../programs/train", sys.executable):
        check_command([good], str(work), environment)
    check_command(["train"], str(work), {"PATH": "../programs"})
    check_command(["here.sh"], str(work), {"PATH": ""})  # an empty part of PATH means the working directory
    check_command(["anything"], str(work), {})  # the PATH of the agent is not known
    for command, code, said in (
        ("tarin", 127, "there is no command 'tarin' on the PATH of the run. Did you mean 'train'?"),
        ("zzzzzz", 127, "there is no command 'zzzzzz' on the PATH of the run."),
        ("closed", 126, f"{programs}/closed is not executable"),
        ("here.py", 127, f"To run here.py in {work}, write `python here.py`."),
        ("here.sh", 127, "write `./here.sh`"),
        ("./closed.py", 126, "use `python ./closed.py`, or `chmod +x ./closed.py`"),
        ("./plain.sh", 126, "no first line such as #!/bin/sh, which names its interpreter: use `bash ./plain.sh`"),
        ("./windows.sh", 126, "end with CR LF"),
        ("./lost.sh", 126, "needs /no/python, which does not exist"),
        ("./package", 126, "is a folder, not a command. Run it with `python ./package`."),
        ("./hero.sh", 127, f"'./hero.sh' does not exist in {work}. Did you mean './here.sh'?"),
        ("train --lr 1", 127, "Write the command without quotes around it: `train --lr 1`."),
        ("train --lr 1 > log", 127, "Let a shell run this line: `sh -c 'train --lr 1 > log'`."),
        ("./here.sh 1", 127, "without quotes around it: `./here.sh 1`"),
        ("LR=1", 127, "Set a variable with `-e LR=1`"),
        ("cd", 127, "a command of your shell"),
    ):  # fmt: skip
        with pytest.raises(CliError) as refused:
            check_command([command], str(work), environment)
        assert (refused.value.exit_code, said in refused.value.message) == (code, True), refused.value.message


def test_a_command_that_does_not_exist_is_not_submitted(cli: Cli) -> None:
    def definitions() -> list[str]:
        return cli.client("ecs").list_task_definitions()["taskDefinitionArns"]

    before = definitions()
    for options in ((), ("-i",), ("--array", "0-99"), ("-d", "--hold")):
        done = cli("run", *options, "--", "no-such-program", code=127)
        assert "there is no command 'no-such-program' on the PATH of the run" in done.stderr and done.stderr.count("\n") == 1
    endpoint = {"AWS_ENDPOINT_URL": json.loads((cli.data / "server.json").read_text())["url"], "AWS_DEFAULT_REGION": "us-east-1"}
    keys = json.loads((cli.data / "credentials.json").read_text())
    endpoint |= {"AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret_key"]}
    assert "no command" in cli("run", "no-such-program", code=127, env=endpoint).stderr  # found by the status page
    assert definitions() == before
    cli("run", "-d", "--hold", "-n", "maker", "--", "sh", "-c", "printf '#!/bin/sh\necho made' > made; chmod +x made")
    assert "unless a run that it waits for changes that" in cli("run", "-d", "--after", "maker", "--", "./made").stderr
    cli("release", "maker")
    cli("wait", "made")
    (cli.home / "made").unlink()
    assert "'./made' does not exist" in cli("rerun", "made", code=127).stderr


def test_it_is_i_and_an_image_needs_no_command(cli: Cli) -> None:
    assert cli("run", "-it", "--", "cat", given="typed").stdout == "typed"
    assert "'1x' is not a duration" in cli("run", "-t", "1x", "--", "true", code=2).stderr  # -t stays --time
    assert "runs the image's own command" in cli("run", code=2).stderr
    done = cli("run", "-d", "--image", "lab/tool:2.1", code=1)  # this server runs processes, which have no image
    assert "it has no command, so it needs the command of an image" in done.stderr
    done = cli("run", "--image", "lab/tool:2.1", "--", "echo", "a process")
    assert done.stdout == "a process\n" and "--image has no effect: Corral has no Docker engine here" in done.stderr
    defined = cli.client("ecs").describe_task_definition(taskDefinition="tool")["taskDefinition"]
    assert not defined["containerDefinitions"][0].get("command") and defined["containerDefinitions"][0]["image"] == "lab/tool:2.1"


# standard input


def test_input_is_passed_on_and_output_comes_back_byte_for_byte(cli: Cli) -> None:
    script = "cat; printf 'no newline at the end' >&2; exit 3"
    given = "one\n\n  three\t\n" * 1000 + "last"
    done = cli("run", "-i", "--", "sh", "-c", script, code=3, given=given)
    assert done.stdout == given
    assert done.stderr.endswith("no newline at the end")


def test_what_was_written_with_input_is_in_the_log_too(cli: Cli) -> None:
    cli("run", "-i", "--name", "logged", "--", "sort", given="b\na\n")
    task = ended(cli, "logged")
    assert cli("logs", task["taskArn"]).stdout == "a\nb\n"


def test_a_program_that_does_not_read_its_input_ends_all_the_same(cli: Cli) -> None:
    assert cli("run", "-i", "--", "true", given="x" * 1_000_000).stdout == ""


def test_when_the_command_line_goes_the_program_hears_it(cli: Cli) -> None:
    command = [str(BIN / "corral"), "run", "-i", "--name", "orphan", "--", "sh", "-c", "echo ready; cat"]
    running = Running(command, cli.environment, cli.home, subprocess.PIPE)  # not a fork: its input would end before it is killed
    running.until("stdout", "ready")
    running.process.kill()
    running.end()
    task = ended(cli, "orphan")
    assert task["containers"][0]["exitCode"] == 128 + signal.SIGHUP


def test_the_session_outlives_the_server(own: Cli) -> None:
    up = ("up", "-d", "--port", str(free_port()), "--gpus", "none")
    own(*up)
    plain = own.begin("run", "--", "sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo after; exit 3")
    plain.until("stdout", "ready")
    running = own.begin("run", "-i", "--", "cat", stdin=subprocess.PIPE)
    assert running.process.stdin is not None
    running.process.stdin.write(b"before\n")
    running.until("stdout", "before\n")
    own("down")
    running.process.stdin.write(b"without\n")
    running.until("stdout", "without\n")
    own(*up)
    running.process.stdin.close()
    running.process.stdin = None
    code, out, err = running.end()
    assert (code, out) == (0, "before\nwithout\n"), err
    (own.home / "go").touch()
    assert plain.end()[:2] == (3, "ready\nafter\n")


# a terminal


class Pty:
    """A command on a pseudo terminal of ours."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self.fd, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        # setsid makes the terminal the one that Ctrl-C is typed at
        command = ["setsid", "--ctty", BIN / "corral", *words]
        self.process = subprocess.Popen(command, env=cli.environment, cwd=cli.home, stdin=theirs, stdout=theirs, stderr=theirs)
        self.said = b""

    def until(self, text: str) -> str:
        while text.encode() not in self.said:
            self.said += os.read(self.fd, 65_536)
        return self.said.decode()

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> None:
        """Close the terminal: the kernel sends SIGHUP."""
        os.close(self._theirs)
        os.close(self.fd)

    def is_restored(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before


def test_a_terminal_is_a_terminal_and_comes_back_as_it_was(cli: Cli) -> None:
    terminal = Pty(
        cli, "run", "-i", "--gpus", "1", "--", sys.executable, "-c", "import os; print(os.isatty(0)); print(input('? ')); exit(4)"
    )
    terminal.until("? ")
    assert not terminal.is_restored()
    terminal.type("typed\r")
    assert "True" in terminal.until("typed\r\ntyped\r\n")
    assert terminal.process.wait(30) == 4
    assert terminal.is_restored()


def test_ctrl_c_is_the_programs_own(cli: Cli) -> None:
    script = "trap 'echo heard; exit 6' INT; echo ready; while :; do sleep 0.05; done"
    terminal = Pty(cli, "run", "-i", "--", "sh", "-c", script)
    terminal.until("ready")
    terminal.type("\x03")
    terminal.until("heard")
    assert terminal.process.wait(30) == 6


def test_a_closed_terminal_hangs_up(cli: Cli) -> None:
    terminal = Pty(cli, "run", "-i", "--name", "hung", "--", "sh", "-c", "echo ready; sleep 600")
    terminal.until("ready")
    terminal.process.kill()
    task = ended(cli, "hung")
    assert task["containers"][0]["exitCode"] == 128 + signal.SIGHUP


@pytest.mark.parametrize("shell, code", [(("sh", "-c", UNTIL_TOLD), 7), (("bash", "--norc"), 128 + signal.SIGHUP)])
def test_stop_reaches_what_runs_in_a_terminal(cli: Cli, shell: tuple[str, ...], code: int) -> None:
    """Also a shell, which ignores SIGTERM."""
    terminal = Pty(cli, "run", "-i", "--env", "PS1=ready", "--", *shell)
    terminal.until("ready")
    assert "has stopped" in cli("stop", "--wait", cli.unfinished()[0], "--reason", "enough").stdout
    assert "was stopped: enough" in terminal.until("enough")
    assert terminal.process.wait(30) == code
    assert terminal.is_restored()


def test_ctrl_c_stops_a_terminal_task_that_still_waits(cli: Cli) -> None:
    cli.start_task("--gpus", "2", "--", "sh", "-c", UNTIL_TOLD)
    terminal = Pty(cli, "run", "-i", "--gpus", "1", "--", "bash")
    terminal.until("waits")
    assert termios.tcgetattr(terminal.fd)[3] & termios.ISIG
    terminal.type("\x03")
    assert terminal.process.wait(30) == 130


def test_what_does_not_go_together_is_said(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    assert "--detach" in cli("run", "-i", "-d", "--", "cat", code=2).stderr
    assert "FILE" in cli("run", "-i", str(file), code=2, given="").stderr
    assert "--image" in cli("run", "--image", "x", str(file), code=2).stderr
    assert "1h30m" in cli("run", "--time", "soon", "--", "true", code=2).stderr
    assert "'all'" in cli("run", "--gpus", "some", "--", "true", code=2).stderr


def test_what_aws_cannot_do_is_refused_before_anything_is_sent(cli: Cli) -> None:
    assert "--time works only with Corral" in cli("run", "--time", "4h", "--image", "x", "--", "true", code=1, env=AWS).stderr
    assert "cannot reach this terminal" in cli("run", "-i", "--", "true", code=1, env=AWS, given="").stderr
    assert "choose an image with --image" in cli("run", "--", "true", code=1, env=AWS).stderr


@pytest.mark.parametrize("said, seconds", [("90", 90), ("30s", 30), ("90m", 5400), ("4h", 14400), ("1d", 86400), ("1h30m", 5400)])
def test_a_time_limit_is_a_tag_of_the_task(cli: Cli, said: str, seconds: int) -> None:
    task_id = cli("run", "-d", "--time", said, "--", "true").stdout.strip()
    [task] = cli.client("ecs").describe_tasks(tasks=[task_id], include=["TAGS"])["tasks"]
    assert {"key": "corral:time-limit", "value": str(seconds)} in task["tags"]


# task definitions from files


def test_a_file_is_registered_run_and_followed(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    file.write_text(json.dumps(definition(container("main", "echo $WHO has $CUDA_VISIBLE_DEVICES; exit $CODE"))))
    done = cli("run", "--gpus", "1", "--env", "WHO=she", "--env", "CODE=5", str(file), code=5)
    assert done.stdout.startswith("she has GPU-")
    other = cli("run", str(file), "--", "sh", "-c", "echo instead")
    assert other.stdout == "instead\n"
    ecs = cli.client("ecs")
    told = ecs.describe_task_definition(taskDefinition="filed")["taskDefinition"]
    again = tmp_path / "again.json"
    again.write_text(json.dumps({"taskDefinition": told}, default=str))
    assert cli("run", "--name", "renamed", "--env", "CODE=0", str(again)).stdout.startswith("has")
    assert ecs.describe_task_definition(taskDefinition="renamed")["taskDefinition"]["revision"] == 1


def test_several_containers_are_told_apart_and_the_first_failure_counts(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "two.json"
    slow = container("worker", "while [ ! -e done ]; do sleep 0.05; done; echo after", workingDirectory=str(tmp_path))
    quick = container("side", "echo before; touch done; exit 9", essential=False, workingDirectory=str(tmp_path))
    file.write_text(json.dumps(definition(slow, quick, family="two")))
    done = cli("run", str(file))
    assert set(done.stdout.splitlines()) == {"worker | after", "side   | before"}
    task = ended(cli, "two")
    assert set(cli("logs", task["taskArn"]).stdout.splitlines()) == {"worker | after", "side   | before"}
    assert cli("logs", "-c", "side", task["taskArn"]).stdout == "before\n"
    lines = [json.loads(line) for line in cli("logs", "-f", "--json", task["taskArn"]).stdout.splitlines()]
    assert {line["container"]: line["message"] for line in lines} == {"worker": "after", "side": "before"}
    failing = container("worker", "exit 8")
    file.write_text(json.dumps(definition(container("a", "true", essential=False), failing, family="two")))
    cli("run", str(file), code=8)


def test_a_file_without_a_log_runs_too(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "silent.json"
    file.write_text(json.dumps(definition(container("main", "echo unheard; exit 2", log=False), family="silent")))
    done = cli("run", str(file), code=2)
    assert done.stdout == "" and "awslogs log driver" in done.stderr


def test_files_that_are_no_task_definitions(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text("{")
    assert "is not valid JSON" in cli("run", str(file), code=1).stderr
    file.write_text("{}")
    assert "no containerDefinitions" in cli("run", str(file), code=1).stderr
    file.write_text(json.dumps({"containerDefinitions": [{"name": "x", "image": "y", "colour": "red"}]}))
    assert "colour" in cli("run", str(file), code=1).stderr
    file.write_text("#!/bin/sh\necho a program\n")
    file.chmod(0o755)
    assert cli("run", "--", str(file)).stdout == "a program\n"  # after -- it is a command, whatever its name


# logs and stop


def test_parts_of_a_log(cli: Cli) -> None:
    task_id = cli("run", "-d", "--", "sh", "-c", "for i in 1 2 3 4; do echo line $i; done").stdout.strip()
    eventually(lambda: not cli.unfinished())
    assert cli("logs", "--tail", "2", task_id).stdout == "line 3\nline 4\n"
    assert cli("logs", "-f", "--tail", "1", task_id).stdout == "line 4\n"
    assert cli("logs", "--since", "1h", task_id).stdout.count("\n") == 4
    assert cli("logs", "--since", "2999-01-01T00:00:00Z", task_id).stdout == ""
    stamped = cli("logs", "--timestamps", "--tail", "1", task_id).stdout
    assert stamped[10] == "T" and stamped.split(" ", 1)[0].endswith("Z") and stamped.endswith("line 4\n")
    assert "is not a time" in cli("logs", "--since", "2026-13-45", task_id, code=2).stderr
    assert "is not a duration" in cli("logs", "--since", "yesterday", task_id, code=2).stderr


def test_stop_waits_when_asked_to(cli: Cli) -> None:
    task_id = cli.start_task("--", "sh", "-c", UNTIL_TOLD)
    [task] = json.loads(cli("stop", "--wait", "--json", task_id[:10]).stdout)
    assert task["lastStatus"] == "STOPPED" and task["containers"][0]["exitCode"] == 7


def test_other_clusters(cli: Cli) -> None:
    assert "cluster nowhere does not exist" in cli("ps", "--cluster", "nowhere", code=1).stderr
    cli.client("ecs").create_cluster(clusterName="other")
    assert cli("ps", "--cluster", "other").stdout.startswith("No tasks")
    assert "there is no run" in cli("logs", "--cluster", "other", "0" * 32, code=1).stderr


def test_a_progress_bar_is_visible_while_it_runs(cli: Cli) -> None:
    """A bar as tqdm writes it: each state begins with a carriage return, and only the last one ends with a newline."""
    (cli.home / "bar.sh").write_text(
        "printf '\\r  0%%'; printf '\\r \\033[32m50%%\\033[0m'\n"
        "while [ ! -e go ]; do sleep 0.05; done\n"
        "i=51; while [ $i -lt 100 ]; do printf '\\r %s%%' $i; i=$((i + 1)); done\n"
        "printf '\\r100%%\\r\\ndone\\n'\n"
    )
    running = cli.begin("run", "--name", "bar", "--", "sh", "bar.sh")
    running.until("stdout", "50%")
    task_id = re.search("task ([0-9a-f]{8}) starts", running.until("stderr", "starts"))[1]
    following = cli.begin("logs", "-f", task_id)
    following.until("stdout", "50%")
    (cli.home / "go").touch()
    code, out, _ = running.end()
    lines = out.splitlines()
    assert code == 0 and lines[-2:] == ["100%", "done"] and " \x1b[32m50%\x1b[0m" in lines
    assert len(lines) <= 8 and "\r" not in out
    assert following.end()[:2] == (0, out)
    assert cli("logs", task_id).stdout == out


def test_several_logs_are_followed_with_names_and_a_waiting_task_says_why(cli: Cli) -> None:
    holder = cli.start_task("--gpus", "2", "--", "sh", "-c", "echo ready; exec sleep 600", family="holder")
    waiter = cli("run", "-d", "--gpus", "2", "--name", "waiter", "--", "echo", "my turn").stdout.strip()
    alone = cli.begin("logs", "-f", waiter)
    assert f"task {waiter[:8]} waits: holder holds 2 of 2 GPUs; needs 2 GPUs" in alone.until("stderr", "held by task")
    both = cli.begin("logs", "-f", holder, waiter[:10])
    both.until("stdout", "holder | ready")
    both.until("stderr", "waits: holder holds 2 of 2 GPUs; needs 2 GPUs")
    cli("stop", "--wait", holder)
    code, out, err = both.end()
    assert (code, out.splitlines()) == (0, ["holder | ready", "waiter | my turn"])
    assert f"task {waiter[:8]} starts on GPU-" in err and f"task {holder[:8]}" not in err.splitlines()[-1]
    assert alone.end()[:2] == (0, "my turn\n")
    assert cli("logs", waiter, holder, waiter).stdout == out
    lines = [json.loads(line) for line in cli("logs", "--json", holder, waiter).stdout.splitlines()]
    assert [(line["message"], line["task"]) for line in lines] == [("ready", holder), ("my turn", waiter)]
    again = cli("run", "-d", "--name", "waiter", "--", "true").stdout.strip()
    assert f"waiter {waiter[:8]} | my turn" in cli("logs", "-f", waiter, again).stdout


def test_a_task_that_is_stopped_while_it_waits_ends_its_log(cli: Cli) -> None:
    waiter = cli("run", "-d", "--wait-anyway", "--gpus", "all", "--cpu", "99999999", "--name", "never", "--", "true").stdout.strip()
    following = cli.begin("logs", "-f", waiter)
    following.until("stderr", "waits:")
    cli("stop", "--reason", "too large", waiter)
    code, out, err = following.end()
    assert (code, out) == (0, "") and f"task {waiter[:8]} has not started: too large" in err
    for words in (("logs", waiter), ("logs", "-f", waiter)):  # a reader who comes later learns the reason, too
        assert f"task {waiter[:8]} has not started: too large" in cli(*words).stderr


def test_names_have_stable_colours() -> None:
    alone = colours_of(["train"])["train"]
    assert colours_of(["train", "eval", "serve"])["train"] == alone
    many = [f"run{number}" for number in range(len(COLOURS))]
    assert sorted(colours_of(many).values()) == sorted(COLOURS)
    assert set(colours_of([*many, "more"])) == {*many, "more"}
