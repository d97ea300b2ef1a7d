"""Every screen of the command line with 60, 80, 120 and 200 columns: no line is too wide, and no fact is cut.

The commands come from the table of the command line, so a new command needs an entry here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner, Result

from command import Cli
from corral.cli.commands import SUMMARIES, main
from corral.cli.printing.text_table import cell_width
from eventually import eventually

ROOT = Path(__file__).parent.parent.parent
WIDTHS = pytest.mark.parametrize("width", [60, 80, 120, 200])
HOLDER = "resnet50-with-a-rather-long-name-lr-0.001"
WAITER = "waiter-with-quite-a-long-name"
FOR = "maintenance of the cooling loop until Friday"
SCRIPT = "sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do echo step $i; done; exit 3'"
REFUSAL = "Batch job submission failed: Job's account not permitted to use this partition (gpu allows physics not default)"
REPOSITORY = "vision/detectors/faster-rcnn-resnet50-fpn"
# These commands print one sentence, or lines that are broken between words, by `print_text`.
SENTENCES = {
    "up", "down", "pause", "release", "resume", "stop", "set", "wait", "gpu", "spot", "revoke", "backup", "restore", "uninstall",
    "service", "join", "token", "user", "connect",
}  # fmt: skip
# These commands print what another program prints, or text for programs. Such lines are not broken.
UNCHANGED = {"aws", "console", "env", "exec", "run", "rerun", "logs", "login", "metrics", "completion"}


class Screen(NamedTuple):
    words: tuple[str, ...]
    facts: dict[str, tuple[str, ...]]  # the title of a column → texts that its cells have in full; "": anywhere on the screen


SCREENS = {
    "status": [Screen((), {"TASK": (HOLDER, f"held: {FOR}"), "WAITING": (WAITER,), "REASON": (f"{HOLDER} holds 1 of 3 GPUs",)})],
    "config": [Screen((), {"SETTING": ("scaling.target_tracking_out_s",), "MEANING": ("the address to listen on",)})],
    "ps": [
        Screen((), {"TASK": (HOLDER, WAITER), "REASON": (f"{HOLDER} holds 1 of 3 GPUs", FOR)}),
        Screen(("--all",), {"TASK": (HOLDER, WAITER, "failed"), "REASON": (f"{HOLDER} holds 1 of 3 GPUs", "Task stopped by user")}),
    ],
    "history": [Screen((), {"NAME": ("failed", "never-started"), "COMMAND": (SCRIPT, "sleep 600 (Task stopped by user)")})],
    "show": [
        Screen(("failed",), {"": (SCRIPT, "has failed, exit code 3")}),
        Screen((WAITER,), {"": (f"{HOLDER} holds 1 of 3 GPUs", "needs 2 GPUs; first in line; held by task ")}),
    ],
    "top": [Screen(("--once",), {"HELD BY": (HOLDER, FOR), "TASK": (HOLDER, WAITER), "REASON": (f"{HOLDER} holds 1 of 3 GPUs",)})],
    "audit": [Screen(("--action", "RunTask"), {"USER": ("root",), "ACTION": ("ecs:RunTask",)})],
    "usage": [Screen((), {"USER": ("root",), "LIMIT": ("of 1,000,000.0/week",)})],
    "limits": [Screen((), {"SUBJECT": ("everyone",), "LIMIT": ("priority",)})],
    "hosts": [Screen((), {"STATE": ("UP",), "ADDRESS": ("this machine",)})],
    "lenders": [Screen((), {"LENDER": ("slurm",), "STATE": ("WANTED",), "TYPE": ("lab.gpu",), "REASON": (REFUSAL,)})],
    "hold": [Screen((), {"REASON": (FOR,)})],
    "instances": [Screen((), {"REASON": ("launched: RunInstances of arn:aws:iam::123456789012:root",)})],
    "stack": [
        Screen((), {"STACK": ("fleet",), "DESCRIPTION": ("Workers that follow a queue.",)}),
        Screen(("fleet",), {"": ("AWS::CloudWatch::Alarm", "AWS::AutoScaling::AutoScalingGroup", "CREATE_COMPLETE")}),
        Screen(("diff", "--stack", "fleet", str(ROOT / "bench" / "demo_fleet.yaml"), "-p", "Command=false"),
               {"RESOURCE": ("Worker", "Service"), "TYPE": ("AWS::ECS::TaskDefinition",)}),
    ],
    "fleet": [Screen(("fleet", "--once"), {"": ("messages waiting", "workers", "No scale-out")})],
    "pipeline": [
        Screen(("list",), {"": ("No runs in the last seven days.",)}),
        Screen(("run", str(ROOT / "examples" / "pipeline" / "pipeline.yaml"), "--dry-run"), {"": ("gpu-queue",)}),
    ],
    "cost": [Screen((), {"NAME": (HOLDER,), "TYPE": ("m5.large",)})],
    "images": [Screen((), {"REPOSITORY": (REPOSITORY,), "DIGEST": ("empty",)})],
    "check": [Screen((), {"": ("state.db", "0 failures")})],
    "doctor": [Screen((), {"": ("nvidia driver", "responds in")})],
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A Corral with something for each screen. One GPU is in use, one is held, and one is free."""
    cli = Cli(tmp_path_factory.mktemp("scene"))
    lend(cli)
    cli("up", "--detach", "--port", "0", "--gpus", "sim:3", "--door", "127.0.0.1:0")  # lenders need a door
    cli("run", "-d", "-g", "1", "-n", HOLDER, "--", "sleep", "600")
    free = next(gpu["index"] for gpu in cli.json("status")["hosts"][0]["gpus"] if not gpu["task"])
    cli("hold", str(free), "--for", FOR)
    cli("run", "-d", "-g", "2", "-n", WAITER, "--", "true")
    cli("run", "-d", "-g", "2", "-n", "never-started", "--", "sleep", "600")
    cli("stop", "--wait", "never-started")
    cli("run", "-n", "failed", "--", *("sh", "-c", SCRIPT[7:-1]), code=3)
    cli.client("ec2").run_instances(ImageId="ami-12345678", InstanceType="m5.large", MinCount=1, MaxCount=1)
    cli("limits", "set", "everyone", "--priority", "7")
    cli("limits", "set", "root", "--gpu-hours", "1000000")
    cli.client("ecr").create_repository(repositoryName=REPOSITORY)
    cli.client("cloudformation").create_stack(
        StackName="fleet",
        TemplateBody=(ROOT / "bench" / "demo_fleet.yaml").read_text(),
        Parameters=[{"ParameterKey": "Command", "ParameterValue": "true"}],
    )
    cli.client("ec2").run_instances(ImageId="ami-12345678", InstanceType="lab.gpu", MinCount=1, MaxCount=1)
    eventually(lambda: REFUSAL in (cli.json("lenders")[1]["allocations"][0]["reason"] or ""))
    eventually(lambda: cli.json("stack", "fleet")["status"] == "CREATE_COMPLETE")
    yield cli
    cli.clear()


def lend(cli: Cli) -> None:
    """Give Corral a lender that refuses each request: programs in place of those of Slurm."""
    cli.data.mkdir()
    lab = 'gpus = 1, vcpus = 1, memory_gib = 1, lenders = ["slurm"]'
    (cli.data / "corral.toml").write_text(f'[lenders.slurm]\npartition = "gpu"\n[instance-types]\n"lab.gpu" = {{{lab}}}\n')
    for name, script in {"scontrol": "", "squeue": "", "sbatch": f'echo "sbatch: error: {REFUSAL}" >&2; exit 1'}.items():
        program = cli.home / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    cli.environment["PATH"] = f"{cli.home}:{cli.environment['PATH']}"


def printed(cli: Cli, words: tuple[str, ...], width: int) -> Result:
    environment: dict[str, str | None] = {**cli.environment, "COLUMNS": str(width), "AWS_ENDPOINT_URL": None}
    return CliRunner().invoke(main, list(words), prog_name="corral", env=environment)


def without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)


def column(text: str, title: str) -> str:
    """Return the cells of a column without blanks. Folded cells are joined. Without a title, return the whole text."""
    if not title:
        return without_blanks(text)
    lines = text.splitlines()
    head = next((line for line in reversed(lines) if re.search(rf"(?<!\S){title}(?!\S)", line)), None)
    assert head is not None, f"no column {title} on:\n{text}"
    if head.strip() == title:  # the cells have lines of their own
        return without_blanks("".join(line for line in lines if line.startswith("    ")))
    begin = re.search(rf"(?<!\S){title}(?!\S)", head)
    assert begin is not None
    following = re.search(r"(?<=\s)\S", head[begin.end() :])
    end = begin.end() + following.start() if following else None
    return without_blanks("".join(line[begin.start() : end] for line in lines[lines.index(head) :]))


def test_every_command_has_a_screen() -> None:
    assert set(SUMMARIES) == {*SCREENS, *SENTENCES, *UNCHANGED}
    assert len(SUMMARIES) == len(SCREENS) + len(SENTENCES) + len(UNCHANGED), "a command is in one of the three"


@WIDTHS
def test_every_screen(scene: Cli, width: int) -> None:
    wrong = []
    for command, screens in SCREENS.items():
        for screen in screens:
            done = printed(scene, (command, *screen.words), width)
            text = done.stdout
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            lines = text.splitlines()
            faults = [f"too wide: {line}" for line in lines if cell_width(line) > width]
            faults += [f"blanks at the end: {line}" for line in lines if line != line.rstrip()]
            faults += [f"cut: {line}" for line in lines if "…" in line]
            faults += [
                f"{title or 'screen'} has no {fact!r}"
                for title, facts in screen.facts.items()
                for fact in facts
                if without_blanks(fact) not in column(text, title)
            ]
            if faults or not text:
                wrong.append("\n".join([f"corral {command} {' '.join(screen.words)}", *faults, text, done.stderr]))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("width", [80, 120, 200])  # the examples have up to 80 columns
def test_every_help_text(width: int) -> None:
    """The help of every command and subcommand, except `corral aws --help`, which is the help of aws."""

    def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        if isinstance(command, click.Group):
            for name, each in command.commands.items():
                yield from commands(each, (*words, name))

    for words in commands(main, ()):
        if words == ("aws",):
            continue
        done = CliRunner().invoke(main, [*words, "--help"], prog_name="corral", terminal_width=width)
        assert done.exit_code == 0, words
        wide = [line for line in done.stdout.splitlines() if len(line) > width or line != line.rstrip()]
        assert not wide, f"corral {' '.join(words)} --help: {wide}"
