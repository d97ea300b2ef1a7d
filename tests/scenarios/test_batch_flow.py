"""A pipeline of four steps on CPU and GPU instances, from the shipped templates to the last result.

The steps have 10, 24 and 1 children on CPU instances, and 24 children on GPU instances. Each child writes its share of a list
to an object in S3. The run is stopped half-way in the second step and again in the last step, and continued each time.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import corral
import forkserver
from command import DEADLINE_S, Cli
from eventually import eventually
from harness import Corral
from terminal import Terminal

TEMPLATES = Path(__file__).parents[2] / "templates" / "batch"
WORKERS = Path(__file__).parent / "workers"
BUCKET = "pipeline-data"  # the job role of the templates may write to it
ITEMS = [f"volume-{number:03}" for number in range(250)]
STEPS = {"prepare": 10, "process": 24, "calibrate": 1, "reconstruct": 24}
GPUS = 8
STEPS_S = 90.0  # the steps between two stops take at most this time, on a machine that is busy


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Corral]:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "corral.toml").write_text("[scaling]\nenvironment_in_s = 1\n")
    started = Corral(data, f"sim:{GPUS}", "--runtime", "process").start()
    yield started
    started.clear()


@pytest.fixture
def lab(server: Corral, tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def terminals(lab: Cli, tmp_path: Path) -> Iterator[dict[int, Terminal]]:
    """Terminals by their numbers of columns."""
    opened = {}
    for columns in (80, 160):
        folder = tmp_path / f"terminal-{columns}"
        folder.mkdir()
        opened[columns] = Terminal(folder, {**lab.environment, "LC_ALL": "C.UTF-8"}, columns)
    yield opened
    for each in opened.values():
        each.close()


def test_a_stopped_pipeline_is_continued_until_every_item_is_processed_once(
    server: Corral, lab: Cli, terminals: dict[int, Terminal]
) -> None:
    deploy_templates(server)
    s3 = lab.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="list.txt", Body="".join(f"{item}\n" for item in ITEMS).encode())
    gates = {step: lab.home / f"gate-{step}" for step in ("process", "reconstruct")}
    for gate in gates.values():
        gate.touch()
    assert running_instances(lab) == []
    run = lab("pipeline", "run", write_pipeline(lab, gates), "--detach").stdout.strip()

    for terminal in terminals.values():
        terminal.type(f"corral pipeline watch {run}")
    for columns, terminal in terminals.items():
        lines = until_row(terminal, "process", "after calibrate", done=16, running=8, failed=0, waiting=0)
        reasons = ["calibrate: after process", "reconstruct: after calibrate"]
        assert check_frame(lines, columns, run, "RUNNING") == (reasons if columns == 80 else [])
    assert {type_ for type_, _ in running_instances(lab)}.isdisjoint({"p3.2xlarge"})
    stopped = lab("pipeline", "stop", run).stdout.splitlines()
    assert stopped == [
        "reconstruct: cancelled (24 waiting)",
        "calibrate: cancelled (1 waiting)",
        "process: terminated (8 running)",
    ]
    for terminal in terminals.values():
        check_result(terminal.until_prompt(), terminal.columns, run)
    eventually(lambda: not running_instances(lab), "no instance is left")

    gates["process"].unlink()
    terminals[80].type(f"clear; corral pipeline retry --failed {run}")
    lines = until_row(terminals[80], "reconstruct", f"hold {GPUS} of {GPUS} GPUs", done=8, running=GPUS, failed=0, waiting=8)
    reason = check_frame(lines, 80, run, "RUNNING")
    assert reason[0].startswith("reconstruct: 8 wait: ") and f"hold {GPUS} of {GPUS} GPUs" in " ".join(reason)
    assert Counter(type_ for type_, _ in running_instances(lab))["p3.2xlarge"] == GPUS
    shown = " ".join(lab("status").stdout.split())
    assert "8 jobs in pipeline-gpu" in shown and f"batch-pipeline-gpu and others hold {GPUS} of {GPUS} GPUs" in shown
    assert re.search(r" 8 jobs in pipeline-gpu +WAITING ", lab("top", "--once", env={"COLUMNS": "160"}).stdout)
    assert lab("pipeline", "stop", run).stdout == "reconstruct: terminated (8 running and 8 waiting)\n"
    check_result(terminals[80].until_prompt(), 80, run)

    gates["reconstruct"].unlink()
    lab("pipeline", "retry", "--failed", run, "--detach")
    assert lab.begin("pipeline", "watch", run).end(STEPS_S)[0] == 0
    assert lab.json("pipeline", "list")[0]["state"] == "SUCCEEDED"
    ended = lab.json("pipeline", "watch", run)
    assert ended["state"] == "SUCCEEDED" and ended["attempt"] == 3
    assert {step["name"]: step["done"] for step in ended["steps"]} == STEPS
    check_results(results(s3))
    eventually(lambda: not running_instances(lab), "no instance is left")


def deploy_templates(server: Corral) -> None:
    """Deploy the chain with the aws command."""
    for name in ("roles", "repository", "image", "environment"):
        command = [
            str(forkserver.program("aws")), "cloudformation", "deploy", "--stack-name", f"pipeline-{name}", "--template-file",
            str(TEMPLATES / f"{name}.yaml"), "--capabilities", "CAPABILITY_IAM",
            *(["--parameter-overrides", "Image=corral/host"] if name == "environment" else []),
        ]  # fmt: skip
        done = subprocess.run(command, env=server.environment, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr


def write_pipeline(lab: Cli, gates: dict[str, Path]) -> str:
    shell, python = f"[sh, {WORKERS / 'share.sh'}]", f"[{sys.executable}, {WORKERS / 'share.py'}]"
    path = lab.home / "recon.yaml"
    path.write_text(f"""
name: recon
queues: {{cpu: pipeline-cpu, gpu: pipeline-gpu}}
defaults:
  environment: {{PYTHONPATH: {Path(corral.__file__).parents[1]}, PYTHON: {sys.executable}}}
steps:
  prepare: {{job_definition: pipeline-cpu, command: {shell}, list: 's3://{BUCKET}/list.txt', array: 10}}
  process:
    job_definition: pipeline-cpu
    command: {shell}
    list: s3://{BUCKET}/list.txt
    array: 24
    environment: {{GATE: {gates["process"]}, HELD: 16-23, WITH_HELPER: 23}}
    after: prepare
  calibrate: {{job_definition: pipeline-cpu, command: {python}, list: 's3://{BUCKET}/list.txt', array: 1, after: process}}
  reconstruct:
    job_definition: pipeline-gpu
    command: {shell}
    list: s3://{BUCKET}/list.txt
    array: 24
    environment: {{GATE: {gates["reconstruct"]}, HELD: 8-15}}
    after: calibrate
""")
    return str(path)


def running_instances(lab: Cli) -> list[tuple[str, str]]:
    """Return (type, id) of each instance that is not terminated."""
    reservations = lab.client("ec2").describe_instances()["Reservations"]
    found = [each for reservation in reservations for each in reservation["Instances"]]
    return [(each["InstanceType"], each["InstanceId"]) for each in found if each["State"]["Name"] != "terminated"]


# Screens


def until_row(terminal: Terminal, step: str, last: str, **counts: int) -> list[str]:
    """Wait until the line of a step has these counts, and the screen has its last text. Return the screen."""

    def drawn() -> list[str] | None:
        lines = terminal.screen()
        return lines if any(row_counts(line, step) == counts for line in lines) and last in " ".join(lines) else None

    try:
        return eventually(drawn, within_s=STEPS_S)
    except AssertionError:
        raise AssertionError(f"{step} has not {counts} on:\n" + "\n".join(terminal.screen())) from None


def row_counts(line: str, step: str) -> dict[str, int] | None:
    found = re.fullmatch(rf"{step} +[█×▒░]+ +(\d+)/{STEPS[step]} +(\d+) +(\d+) +(\d+) [A-Z].*", line)
    return dict(zip(("done", "running", "failed", "waiting"), map(int, found.groups()))) if found else None


def check_frame(lines: list[str], columns: int, run: str, state: str) -> list[str]:
    """Check the last frame: a title, and one line per step with one bar, below the header. Return the lines after it."""
    at = max(at for at, line in enumerate(lines) if line.startswith("STEP ") and "ENDS IN" in line)
    title, empty, header, *rows = lines[at - 2 : at + 1 + len(STEPS)]
    assert re.fullmatch(rf"{run}  {state}  (\d+m )?\d+s .*\d\d:\d\d:\d\d", title) and len(title) == columns and empty == ""
    assert header.split()[:6] == ["STEP", "DONE", "RUN", "FAIL", "WAIT", "STATE"] and ("REASON" in header) == (columns == 160)
    for (step, size), row in zip(STEPS.items(), rows, strict=True):
        counts = row_counts(row, step)
        assert counts is not None and sum(counts.values()) == size, row
        assert row[header.index("STATE") :].split()[0] in ("SUCCEEDED", "RUNNING", "WAITING", "FAILED")
        assert row[header.index("STATE") - 1] == " " and row[header.index("WAIT") + len("WAIT") - 1].isdigit()
    bars = [found for row in rows for found in re.finditer("[█×▒░]+", row)]
    assert len(bars) == len(STEPS) and len({bar.span() for bar in bars}) == 1  # as many bars as steps, all of one size
    assert bars[0].end() - bars[0].start() >= 16
    return lines[at + 1 + len(STEPS) :]


def check_result(lines: list[str], columns: int, run: str) -> None:
    """Check what `watch` leaves on the screen when a run was stopped: the last frame, and the table of the usage."""
    rest = check_frame(lines, columns, run, "STOPPED")
    header = next(at for at, line in enumerate(rest) if line.startswith("STEP "))
    assert rest[header].split() == ["STEP", "JOBS", "WALL", "CPU", "HOURS", "GPU", "HOURS", "COST"]
    rows = rest[header + 1 : header + 2 + len(STEPS)]
    assert [row.split()[0] for row in rows] == [*STEPS, "total"]
    assert all(re.search(r" \$\d+\.\d+$", row) for row in rows), "\n".join(rows)


# Results


def results(s3: Any) -> list[tuple[str, int, float, float, str, list[str]]]:
    """Return (step, index, start, end, GPU, items) of each object. Each execution of a child writes its own."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="results/")
    keys = [each["Key"] for page in pages for each in page["Contents"]]

    def read(key: str) -> tuple[str, int, float, float, str, list[str]]:
        head, *items = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode().splitlines()
        start, end, gpu = head.split(" ")
        _, step, index, _ = key.split("/")
        return step, int(index), float(start), float(end), gpu, items

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(read, keys))


def check_results(found: list[tuple[str, int, float, float, str, list[str]]]) -> None:
    assert Counter(step for step, *_ in found) == STEPS  # no child has written twice
    for name, size in STEPS.items():
        shares = sorted((index, items) for step, index, _, _, _, items in found if step == name)
        assert [index for index, _ in shares] == list(range(size))
        assert [item for _, items in shares for item in items] == ITEMS, name
    on_gpus = [(gpu, start, end) for step, _, start, end, gpu, _ in found if step == "reconstruct"]
    assert {gpu for *_, gpu, _ in found if gpu} == {gpu for gpu, _, _ in on_gpus}
    assert len({gpu for gpu, _, _ in on_gpus}) <= GPUS and all(re.fullmatch(r"GPU-[0-9a-f-]{36}", gpu) for gpu, _, _ in on_gpus)
    for (gpu, _, end), (next_gpu, start, _) in pairwise(sorted(on_gpus)):
        assert gpu != next_gpu or end <= start, f"{gpu} was used twice at the same time"
