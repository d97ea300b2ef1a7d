"""Orders of a core to pause runs: what the agent answers, also after a restart, and what it does not do with a paused run."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from corral.model.agent_protocol import Execute
from corral.model.run import HealthCheck, Observed, RunSpec
from corral.model.stop_reasons import ALLOCATION_OVER
from corral.node.pause_marks import PauseMarks
from engines.drivers import ENGINES, Driver
from engines.fake_core import FakeCore
from engines.nodes import NodeFolder, is_running, kill, shell
from engines.pausing import COUNT, PausingDriver, set_speed, stands_still, variables
from engines.spawners import answers
from engines.test_pauses import AT_ONCE, GIB, SLOW
from eventually import eventually

KILLS = int(os.environ.get("CORRAL_KILLS", "6"))
OPTIONS = ("--gpus", "sim:2", "--runtime", "process")


@pytest.fixture
def agent(node: NodeFolder, core: FakeCore) -> subprocess.Popen:
    agent = node.start_agent(*OPTIONS)
    core.greeted()
    return agent


def started(core: FakeCore, *specs: RunSpec) -> list[Observed]:
    core.order(*specs)
    core.until(lambda: all(core.runs.get(spec.run_id, Observed("")).pid for spec in specs), "started")
    return [core.runs[spec.run_id] for spec in specs]


def with_gpu(core: FakeCore, run_id: str, script: str, **more) -> RunSpec:
    return shell(run_id, script, gpu_ids=[core.hellos[0].gpus[0].gpu_id], **more)


def until_calling(core: FakeCore, node: NodeFolder, run_id: str, call: str) -> int:
    """Wait until the pause program makes this call of the driver. Return the pid of the program."""
    marks = PauseMarks(node.node)
    core.until(lambda: (mark := marks.read(run_id)) is not None and mark.call.startswith(call), call)
    return int((node.node / "paused" / f"{run_id},program").read_text())


def test_the_agent_answers_and_tells_every_new_connection(node: NodeFolder, core: FakeCore, agent: subprocess.Popen) -> None:
    started(core, with_gpu(core, "one", "sleep 1000"))
    core.pause("one", 1, paused=True)
    answer = core.answered("one", 1)
    assert (answer.paused, answer.moved_bytes, answer.why_not) == (True, GIB, "") and answer.took_s > 0
    core.go_away()
    core.runs.clear()
    core.listen()
    core.greeted(2)
    assert core.hellos[-1].runs[0].pause == answer
    kill(agent.pid)
    node.start_agent(*OPTIONS)
    core.greeted(3)
    assert core.hellos[-1].runs[0].pause == answer
    core.pause("one", 1, paused=True)  # a core that has not seen the answer repeats the order
    assert core.answered("one", 1) == answer
    core.pause("one", 2, paused=False)
    assert not core.answered("one", 2).paused
    core.order(stop=["one"])
    [ended] = core.ended("one")
    assert ended.pause is None
    eventually(lambda: not PauseMarks(node.node).run_ids(), "no mark is left")


@pytest.mark.parametrize("paused", [True, False], ids=["out", "in"])
def test_the_next_agent_finishes_what_a_killed_one_has_begun(
    node: NodeFolder, core: FakeCore, agent: subprocess.Popen, paused: bool
) -> None:
    """The agent, the spawner and the program are killed in the middle; the program also while there is no agent, or not at all."""
    for run_id in ("all", "agent"):
        started(core, with_gpu(core, run_id, "sleep 1000"))
        if not paused:
            core.pause(run_id, 1, paused=True)
            assert core.answered(run_id, 1).paused
    set_speed(node, SLOW)
    programs = {}
    for run_id in ("all", "agent"):
        core.pause(run_id, 2, paused=paused)
        programs[run_id] = until_calling(core, node, run_id, "checkpoint" if paused else "restore")
    kill(agent.pid)
    kill(node.spawner_pid())
    kill(programs["all"])
    assert is_running(programs["agent"])
    node.start_agent(*OPTIONS)
    core.greeted(2)
    assert {run.run_id: run.pause.number if run.pause else 0 for run in core.hellos[-1].runs} == dict.fromkeys(
        programs, 0 if paused else 1
    )
    set_speed(node, AT_ONCE)
    for run_id in programs:
        answer = core.answered(run_id, 2)
        assert (answer.paused, answer.why_not) == (paused, "")
    assert all(core.runs[run_id].stopped_at_s is None for run_id in programs)


def test_kills_at_any_time_leave_each_run_either_paused_or_running(
    node: NodeFolder, core: FakeCore, agent: subprocess.Popen, random_kills: Random
) -> None:
    """After each kill of the agent, the spawner and pause programs, all orders are carried out, and no run is lost."""
    counters = {run_id: node.data / f"count-{run_id}" for run_id in ("one", "two")}
    scripts = {run_id: COUNT.replace("{}", str(path)) for run_id, path in counters.items()}
    scripts["two"] = f"setsid sh -c 'while :; do sleep 0.1; done' & {scripts['two']}"
    runs = [with_gpu(core, run_id, script, environment=variables(node, run_id)) for run_id, script in scripts.items()]
    before = started(core, *runs)
    core.until(lambda: all(path.exists() for path in counters.values()), "both count")
    set_speed(node, "20")
    marks, greetings = PauseMarks(node.node), 1
    for number in range(1, KILLS + 1):
        paused = bool(number % 2)
        for run_id in counters:
            core.pause(run_id, number, paused=paused)
        victims = random_kills.sample(["agent", "spawner", *counters], random_kills.randint(1, 4))
        watched, call = random_kills.choice([*counters]), random_kills.choice(["", "lock", "checkpoint", "restore", "unlock"])
        core.until(lambda: reaches(marks, watched, number, call), f"{call} of {watched}")  # noqa: B023
        for victim in victims:
            if victim == "agent":
                kill(agent.pid)
            elif victim == "spawner":
                kill(node.spawner_pid())
            else:
                marks.end_program(victim)
        if "agent" in victims:
            agent, greetings = node.start_agent(*OPTIONS), greetings + 1
            core.greeted(greetings)
            for run_id in counters:
                core.pause(run_id, number, paused=paused)
        for run_id in counters:
            answer = core.answered(run_id, number)
            assert (answer.paused, answer.why_not) == (paused, "")
        sizes = {run_id: path.stat().st_size for run_id, path in counters.items()}
        if paused:
            assert all(stands_still(node, run_id) for run_id in counters)
        else:
            core.until(lambda: all(path.stat().st_size > sizes[run_id] for run_id, path in counters.items()), "both count")  # noqa: B023
    assert [(core.runs[run.run_id].pid, core.runs[run.run_id].stopped_at_s) for run in before] == [
        (run.pid, None) for run in before
    ]


def reaches(marks: PauseMarks, run_id: str, number: int, call: str) -> bool:
    """Whether the program for an order makes this call of the driver now, or is done."""
    mark = marks.read(run_id)
    return mark is not None and mark.number == number and (mark.is_done or (mark.attempts > 0 and mark.call.startswith(call)))


@pytest.fixture
def random_kills() -> Random:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    return Random(seed)


def test_a_paused_run_is_not_checked_and_executes_nothing(node: NodeFolder, core: FakeCore, agent: subprocess.Popen) -> None:
    checked = node.data / "checked"
    check = HealthCheck(["/bin/sh", "-c", f"echo >> {checked}"], interval_s=0.05, timeout_s=5.0, retries=1)
    spec = with_gpu(core, "one", "sleep 1000", health=check)
    started(core, spec, shell("two", "sleep 1000", health=HealthCheck(["true"], interval_s=0.05, timeout_s=5.0, retries=1)))
    core.until(lambda: core.runs["one"].health == "HEALTHY" == core.runs["two"].health, "healthy")
    core.pause("one", 1, paused=True)
    assert core.answered("one", 1).paused
    size = checked.stat().st_size
    core.execute(Execute("session", spec, ["true"], has_terminal=False))
    core.until(lambda: core.declined, "declined")
    assert [each.reason for each in core.declined] == ["the container is paused"]
    assert checked.stat().st_size == size
    core.pause("one", 2, paused=False)
    assert not core.answered("one", 2).paused
    core.until(lambda: checked.stat().st_size > size, "checked again")


def test_a_paused_run_does_not_use_its_gpu(node: NodeFolder, core: FakeCore, agent: subprocess.Popen) -> None:
    """Its memory counts neither as load of the GPU nor as that of a foreign process, although its processes are alive."""
    gpu_id = core.hellos[0].gpus[0].gpu_id
    variables = {"CUDA_VISIBLE_DEVICES": gpu_id}
    large = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); sleep 1000"
    started(core, with_gpu(core, "one", large, environment=variables))
    core.until(lambda: gpu_id in core.samples and core.samples[gpu_id].memory_used_mib >= 28, "its memory is measured")
    core.pause("one", 1, paused=True)
    assert core.answered("one", 1).paused
    core.until(lambda: core.samples[gpu_id].memory_used_mib == 0, "no memory")
    started(core, with_gpu(core, "two", "sleep 1000"))
    core.until(lambda: core.samples[gpu_id].memory_used_mib > 0, "the memory of the other run")
    assert core.samples[gpu_id].memory_used_mib < 28 and core.samples[gpu_id].parts is None
    assert not any(report.gpus[0].foreign for report in core.reports if report.gpus)
    core.pause("one", 2, paused=False)
    assert not core.answered("one", 2).paused
    core.until(lambda: core.samples[gpu_id].parts is not None, "both runs have the GPU")


def test_the_deletion_of_the_folder_ends_a_paused_run(node: NodeFolder, core: FakeCore, agent: subprocess.Popen) -> None:
    [run] = started(core, with_gpu(core, "one", "sleep 1000"))
    core.pause("one", 1, paused=True)
    assert core.answered("one", 1).paused
    assert run.pid is not None
    node.node.rename(node.data / "gone")
    try:
        eventually(lambda: not is_running(run.pid or 0), "the run has ended")
        agent.wait()
    finally:
        (node.data / "gone").rename(node.node)


def test_the_end_of_an_allocation_ends_paused_runs(node: NodeFolder) -> None:
    """Also one that is being paused, whose program ends, too."""
    held, holder = os.pipe()
    command = [sys.executable, "-m", "corral.node.spawner", "--dir", str(node.node), f"--held-by={held}"]
    with open(node.node / "spawner.log", "ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[held], start_new_session=True)
    eventually(lambda: answers(node), "a spawner")
    pausing = PausingDriver(Driver(ENGINES["process"], node))
    pausing.start("paused")
    pausing.start("out")
    assert pausing.pause("paused").paused
    pausing.set_speed(SLOW)
    pausing.begin("out", paused=True)
    program = pausing.until_calling("out", "checkpoint")
    os.close(holder)
    os.close(held)
    for run_id in ("paused", "out"):
        assert pausing.driver.ended(run_id).observed.reason == ALLOCATION_OVER
    eventually(lambda: not is_running(program), "the program has ended")
    pausing.close()
    pausing.driver.close()
