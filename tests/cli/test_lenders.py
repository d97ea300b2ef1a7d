"""`corral lenders` and `corral doctor` show the allocations of lenders, what they would cost at AWS, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from corral.cli.checks import installation
from corral.cli.checks.finding import FAIL, OK, WARN
from corral.cli.client.data_folder import DataFolder
from corral.cli.hosts import lenders

DATE = "Thu, 19 Nov 2026 02:00:00 GMT"
AT_S = 1_795_053_600.0  # DATE
JOB = {
    "instanceId": "i-0f3c9a52b7d184e60", "instanceType": "p3.2xlarge", "group": None, "gpus": 1, "hostId": None, "machine": "n1",
    "reason": "Slurm job 41 runs on n1", "createdAtS": AT_S - 5400.0, "handle": "41", "state": "running", "hours": 1.5,
    "onDemand": 4.59,
}  # fmt: skip
WAITS = JOB | {"handle": None, "state": "wanted", "hours": 0.0, "onDemand": None, "createdAtS": AT_S - 40.0, "reason": None}
LOCAL = {"name": "local", "kind": "local", "problem": None, "advice": [], "allocations": []}
PGID = "ProctrackType is proctrack/pgid, so Slurm may not find all processes. Set ProctrackType=proctrack/cgroup in slurm.conf"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the server answers. Tests change it."""
    found = [LOCAL, {"name": "slurm", "kind": "slurm", "problem": None, "advice": [], "allocations": [JOB, WAITS]}]
    for module in (installation, lenders):
        monkeypatch.setattr(module, "call", lambda endpoint, operation, params: ({"lenders": found}, DATE))
    monkeypatch.setattr(lenders, "find_endpoint", lambda data: None)
    monkeypatch.setattr(installation, "endpoint_of_folder", lambda data: None)
    monkeypatch.setattr(installation.data_folder, "running", lambda data: 1)
    return found


def printed(tmp_path: Path) -> list[str]:
    done = CliRunner().invoke(lenders.lenders, ["--data", str(tmp_path)], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_hours_and_price_are_those_of_jobs_that_run(listed: list[dict[str, Any]], tmp_path: Path) -> None:
    header, runs, waits = printed(tmp_path)
    at = {name: header.index(name) for name in ("HOURS", "AWS PRICE", "SINCE")}
    assert [row[at["HOURS"] : at["SINCE"]].split() for row in (runs, waits)] == [["1.5", "$4.59"], []]
    assert "41" in runs and "RUNNING" in runs and "WANTED" in waits
    listed[1]["allocations"] = [WAITS]
    assert "AWS PRICE" not in printed(tmp_path)[0]


def test_doctor_says_what_the_operator_of_slurm_should_change(listed: list[dict[str, Any]], tmp_path: Path) -> None:
    data = DataFolder(tmp_path, chosen=True)
    [answers] = installation.check_lenders(data)
    assert (answers.level, answers.found) == (OK, "slurm answers, and has 2 allocations for Corral")
    listed[1] |= {"advice": [PGID], "problem": "Unable to contact slurm controller"}
    silent, pgid = installation.check_lenders(data)
    assert silent.level == FAIL and "Unable to contact slurm controller" in silent.found
    assert pgid.level == WARN and pgid.found == "slurm: ProctrackType is proctrack/pgid, so Slurm may not find all processes"
    assert pgid.advice == "Set ProctrackType=proctrack/cgroup in slurm.conf."
    assert any("Unable to contact" in line for line in printed(tmp_path))
