"""Some seeds of the whole control plane; any number by hand: `cd tests && python -m simulation.run --seeds 10000`.

CORRAL_SIM_SEEDS and CORRAL_SIM_START choose others here too. A failing seed is named first, with the last of its trace;
`python -m simulation.run --start SEED` replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.checkers import everything
from simulation.joined_hosts import with_joined_hosts
from simulation.loss_faults import many_changes, many_losses
from simulation.service_faults import many_services
from simulation.world import Parts, simulate

SEEDS_USUAL = 20
SEEDS = int(os.environ.get("CORRAL_SIM_SEEDS", SEEDS_USUAL))
START = int(os.environ.get("CORRAL_SIM_START", "0"))
CHUNK = 20
RICH_SEEDS = range(CHUNK)
# Seeds in which nothing happens would prove nothing. So each of these texts is in the trace of one of RICH_SEEDS.
EVENTS = (
    "started", "ended", "welcomes", "StopTask", "RESOURCE:GPU", "fault reboot", "fault agent crash", "core crashes",
    "fault disk full", "fault clock step", "fault link stall", "ServiceUnavailable", "healed", "finds", ".1 [",
    "fault hold", "fault foreign process", "PutAttributes", "UpdateContainerInstancesState", "memberOf",
    "distinctInstance", "fault crash between steps", "hands over points", "hands over scaling requests",
    "SetAlarmState", "PutLogEvents", "CreateService", "UpdateService", "DeleteService",
    "CreateAutoScalingGroup", "SetDesiredCapacity", "PutScalingPolicy", "hands over action results",
    "services are quiet",
)  # fmt: skip

# Seeds that have failed, because of a fault of Corral or of a checker, and their plans.
FAILED_SEEDS = {80311: Parts(), 17: Parts(tune=many_services)}

CUTS = ("fault cut", "fault revoke", "joins again")
JOINED_END = START + max(1, SEEDS // 2)
LOSSES = ("away", " fences ", "is connected", "tasks with a fence, which")
CHANGES = ("copy of", "is installed again", "joins in a new folder")


@pytest.mark.parametrize("first", range(START, START + SEEDS, CHUNK))
def test_nothing_bad_happens_and_everything_ends(first: int) -> None:
    happened: set[str] = set()
    for seed in range(first, min(first + CHUNK, START + SEEDS)):
        print(f"seed {seed}")
        trace = simulate(seed, everything()).trace
        if seed in RICH_SEEDS:
            happened.update(what for what in EVENTS if any(what in line for line in trace))
    if RICH_SEEDS[0] == first and RICH_SEEDS[-1] < START + SEEDS:
        assert happened == set(EVENTS), set(EVENTS) - happened


@pytest.mark.parametrize("first", range(START, JOINED_END, CHUNK))
def test_hosts_that_have_joined_are_cut_off_and_revoked_and_return(first: int) -> None:
    happened: set[str] = set()
    for seed in range(first, min(first + CHUNK, JOINED_END)):
        print(f"seed {seed}")
        trace = simulate(seed, everything(), Parts(tune=with_joined_hosts)).trace
        happened.update(what for what in CUTS if any(what in line for line in trace))
    assert first or happened == set(CUTS), set(CUTS) - happened


@pytest.mark.parametrize("first", range(START, START + SEEDS, CHUNK))
def test_lost_hosts_and_their_late_returns(first: int) -> None:
    happened: set[str] = set()
    for seed in range(CHUNK // 2 + first // 2, CHUNK + first // 2):
        print(f"seed {seed}")
        trace = simulate(seed, everything(), Parts(tune=many_losses)).trace
        happened.update(what for what in LOSSES if any(what in line for line in trace))
    assert first or START or happened == set(LOSSES), set(LOSSES) - happened


@pytest.mark.parametrize("first", range(START, START + SEEDS, CHUNK))
def test_machines_are_copied_and_installed_again(first: int) -> None:
    happened: set[str] = set()
    for seed in range(first // 4, (first + CHUNK) // 4):
        print(f"seed {seed}")
        trace = simulate(seed, everything(), Parts(tune=many_changes)).trace
        happened.update(what for what in CHANGES if any(what in line for line in trace))
    assert first or START or happened == set(CHANGES), set(CHANGES) - happened


@pytest.mark.parametrize("seed", FAILED_SEEDS)
def test_seeds_that_failed_pass(seed: int) -> None:
    simulate(seed, everything(), FAILED_SEEDS[seed])


def test_the_same_seed_gives_the_same_trace() -> None:
    assert simulate(0, []).trace == simulate(0, everything()).trace


def test_a_trace_does_not_depend_on_the_process() -> None:
    """Nothing follows the order of a set: a seed that failed elsewhere fails here."""
    command = [sys.executable, "-m", "simulation.run", "--start", "5", "--seeds", "2", "--trace"]
    traces = [
        subprocess.run(command, cwd=Path(__file__).parent.parent, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True)
        for salt in ("1", "2")
    ]
    assert all(trace.returncode == 0 for trace in traces), traces
    lines = [trace.stdout.decode().splitlines()[:-1] for trace in traces]  # the last one is about speed
    assert len(lines[0]) > 100
    assert lines[0] == lines[1]
