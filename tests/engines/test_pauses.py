"""Pauses of runs: the contract of both engines, and of the process engine without cgroups, where signals stop the processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.model.agent_protocol import Execute, PauseOrder
from corral.node import procfs
from corral.node.docker_engine import DockerEngine
from corral.node.output_bounds import OUTPUT_MAX_BYTES
from corral.node.output_guard import FLOOD_BYTES_PER_S
from corral.node.pause_marks import PauseMark, PauseMarks
from corral.node.process_engine import ProcessEngine
from corral.node.procfs import boot_s
from corral.node.run_freezer import rooms_above
from corral.node.run_pause import available_bytes
from engines.drivers import ENGINES, Driver
from engines.nodes import NodeFolder, is_running, kill
from engines.pausing import PausingDriver
from engines.spawners import start_spawner

GIB, MIB = 2**30, 2**20
SLOW, AT_ONCE = "0.0001", "0"
CHILD = "setsid sh -c 'while :; do sleep 0.1; done' & {count}"  # a second process with memory on a GPU


DOCKER = pytest.param("docker", marks=pytest.mark.xdist_group("docker"))
both_engines = pytest.mark.parametrize("pausing", ["process", DOCKER], indirect=True)


@pytest.fixture(params=["process", "signals", DOCKER])
def pausing(request: pytest.FixtureRequest, node: NodeFolder) -> Iterator[PausingDriver]:
    environment = dict(os.environ)
    if request.param == "docker":
        environment["DOCKER_HOST"] = request.getfixturevalue("dockerd").host
    if request.param == "signals":
        start_spawner(node, "none")
    driver = Driver(ENGINES["docker" if request.param == "docker" else "process"], node, environment=environment)
    pausing = PausingDriver(driver, make=ENGINES["docker" if request.param == "docker" else "process"], environment=environment)
    yield pausing
    pausing.close_all()


@pytest.fixture
def processes(process_driver: Driver) -> Iterator[PausingDriver]:
    pausing = PausingDriver(process_driver)
    yield pausing
    pausing.close()


def test_a_paused_run_makes_no_progress_and_continues(pausing: PausingDriver) -> None:
    """With one process on a GPU, with two, and without a GPU; while the runs start processes all the time."""
    pausing.start("one")
    pausing.start("two", CHILD, environment={"CORRAL_SIM_GPU_MEMORY_MIB": "512"})
    pausing.start("none", gpus=0)
    for run_id, moved in [("one", GIB), ("two", GIB), ("none", 0)]:
        answer = pausing.pause(run_id)
        assert (answer.paused, answer.why_not, answer.moved_bytes) == (True, "", moved)
    before = {run_id: pausing.count(run_id) for run_id in ("one", "two", "none")}
    for run_id in before:
        assert pausing.stands_still(run_id)
    assert {run_id: pausing.count(run_id) for run_id in before} == before
    for run_id, moved in [("one", GIB), ("two", GIB), ("none", 0)]:
        answer = pausing.resume(run_id)
        assert (answer.paused, answer.why_not, answer.moved_bytes) == (False, "", moved)
        pausing.counts_on(run_id)
    assert pausing.pause("one").paused  # once more


@both_engines
def test_a_refused_call_is_undone_and_its_reason_is_answered(pausing: PausingDriver) -> None:
    """A run whose state cannot be moved back stays paused, and can be stopped."""
    child = "CORRAL_SIM_PAUSE_FAILS=checkpoint " + CHILD
    pausing.start("lock", environment={"CORRAL_SIM_PAUSE_FAILS": "lock"})
    pausing.start("checkpoint", environment={"CORRAL_SIM_PAUSE_FAILS": "checkpoint"})
    pausing.start("child", child)
    pausing.start("restore", "trap 'exit 7' TERM; {count}", environment={"CORRAL_SIM_PAUSE_FAILS": "restore"}, stop_grace_s=60.0)
    for run_id, call in [("lock", "lock"), ("checkpoint", "checkpoint"), ("child", "checkpoint")]:
        answer = pausing.pause(run_id)
        assert not answer.paused
        assert answer.why_not.startswith(f"{call} of process") and "SIMULATED_REFUSED" in answer.why_not
        assert pausing.states(run_id) == {"running"}
        pausing.counts_on(run_id)
    assert pausing.pause("restore").paused
    answer = pausing.resume("restore")
    assert answer.paused and answer.why_not.startswith("restore of process")
    assert pausing.stands_still("restore")
    pausing.engine.stop(["restore"])
    assert pausing.driver.ended("restore").observed.exit_code == 7


def test_a_pause_that_does_not_fit_is_refused_with_numbers(processes: PausingDriver) -> None:
    pausing, mib = processes, 2 * available_bytes() // 2**20
    pausing.start("large", environment={"CORRAL_SIM_GPU_MEMORY_MIB": str(mib)})
    answer = pausing.pause("large")
    assert not answer.paused
    assert answer.why_not.startswith(f"the run has {mib} MiB on GPUs, and this host has only ")
    assert pausing.states("large") == {"running"}
    pausing.counts_on("large")


def test_a_stop_ends_a_pause(pausing: PausingDriver) -> None:
    """Of a paused run, of one that is being paused, and of one that is being continued. The programs end."""
    script = "trap 'exit 7' TERM; {count}"
    for run_id in ("paused", "out", "in"):
        pausing.start(run_id, script, stop_grace_s=60.0)
    assert pausing.pause("paused").paused and pausing.pause("in").paused
    pausing.set_speed(SLOW)
    pausing.begin("out", paused=True)
    pausing.begin("in", paused=False)
    programs = [pausing.until_calling("out", "checkpoint"), pausing.until_calling("in", "restore")]
    pausing.engine.stop(["paused", "out", "in"])
    assert [pausing.driver.ended(run_id).observed.exit_code for run_id in ("paused", "out", "in")] == [7, 7, 7]
    pausing.driver.until(lambda: not any(is_running(pid) for pid in programs), "the programs have ended")
    pausing.ended("paused", "out", "in")
    pausing.driver.until(lambda: not pausing.marks.run_ids(), "no mark is left")
    pausing.set_speed(AT_ONCE)
    pausing.start("next")  # also if it has the cgroup of a paused run
    pausing.engine.signal(["next"], "SIGKILL")
    assert pausing.driver.ended("next").observed.exit_code == 137


def test_signals_to_a_paused_run_wait_but_sigkill_does_not(pausing: PausingDriver) -> None:
    got = pausing.node.data / "got"
    pausing.start("one", f"trap 'echo got > {got}' USR1; " + "{count}")
    pausing.start("two")
    assert pausing.pause("one").paused and pausing.pause("two").paused
    pausing.engine.signal(["one"], "SIGUSR1")
    pausing.engine.signal(["two"], "SIGKILL")
    assert pausing.driver.ended("two").observed.exit_code == 137
    assert pausing.stands_still("one") and not got.exists()
    pausing.resume("one")
    pausing.driver.until(got.exists, "the signal has arrived")


@both_engines
@pytest.mark.parametrize("paused", [True, False], ids=["out", "in"])
def test_a_killed_program_is_replaced(pausing: PausingDriver, paused: bool) -> None:
    pausing.start("one", CHILD)
    if not paused:
        assert pausing.pause("one").paused
    pausing.set_speed(SLOW)
    number = pausing.begin("one", paused=paused)
    pausing.until_calling("one", "checkpoint" if paused else "restore")
    pausing.kill_program("one")
    pausing.driver.until(lambda: pausing.mark("one").attempts == 2, "a second program")
    pausing.set_speed(AT_ONCE)
    answer = pausing.answer("one", number)
    assert (answer.paused, answer.why_not, answer.moved_bytes) == (paused, "", 2 * GIB)
    if paused:
        assert pausing.stands_still("one")
    else:
        pausing.counts_on("one")


def test_a_program_that_is_killed_again_and_again_undoes_the_order(processes: PausingDriver) -> None:
    pausing = processes
    pausing.start("one")
    pausing.set_speed(SLOW)
    number = pausing.begin("one", paused=True)
    for attempt in range(1, 5):
        pausing.driver.until(lambda: pausing.mark("one").attempts == attempt, f"program {attempt}")  # noqa: B023
        pausing.until_calling("one", "checkpoint")
        pausing.kill_program("one")
    answer = pausing.answer("one", number)
    assert not answer.paused and "has ended 4 times, the last time checkpoint of process" in answer.why_not
    pausing.counts_on("one")


def test_a_call_that_hangs_is_undone(processes: PausingDriver) -> None:
    """The mark of a killed program says that its call has taken too long."""
    pausing = processes
    pausing.start("one")
    pausing.set_speed(SLOW)
    number = pausing.begin("one", paused=True)
    program = pausing.until_calling("one", "checkpoint")
    os.kill(program, signal.SIGSTOP)
    assert pausing.marks.update(pausing.mark("one").but(call_until_boot_s=boot_s()))
    kill(program)
    answer = pausing.answer("one", number)
    assert not answer.paused and answer.why_not.startswith("the driver did not answer in time: checkpoint of process")
    pausing.counts_on("one")


def test_a_process_that_begins_to_use_a_gpu_meanwhile_is_moved_too(processes: PausingDriver) -> None:
    pausing = processes
    go, went = pausing.node.data / "go", pausing.node.data / "went"
    late = f"(while [ ! -e {go} ]; do sleep 0.01; done; setsid sh -c 'touch {went}; while :; do sleep 0.1; done') & "
    pausing.start("one", late + "{count}")
    pausing.set_speed(SLOW)
    number = pausing.begin("one", paused=True)
    pausing.until_calling("one", "checkpoint")
    go.touch()
    pausing.driver.until(went.exists, "a new process")
    pausing.set_speed(AT_ONCE)
    answer = pausing.answer("one", number)
    assert (answer.paused, answer.moved_bytes) == (True, 2 * GIB)
    assert pausing.stands_still("one")
    pausing.resume("one")
    pausing.counts_on("one")


def test_orders_wait_for_each_other_and_old_ones_are_ignored(processes: PausingDriver) -> None:
    pausing = processes
    pausing.start("one")
    pausing.set_speed(SLOW)
    first = pausing.begin("one", paused=True)
    pausing.until_calling("one", "checkpoint")
    second = pausing.begin("one", paused=False)
    pausing.give(PauseOrder("one", first, paused=True))
    pausing.set_speed(AT_ONCE)
    answer = pausing.answer("one", second)
    assert (answer.paused, answer.why_not) == (False, "")
    seen = len(pausing.changes)
    pausing.give(PauseOrder("one", first, paused=True))
    assert len(pausing.changes) == seen  # ignored
    pausing.give(PauseOrder("one", second, paused=False))
    assert pausing.changes[seen:] == ["one"]  # answered again
    pausing.counts_on("one")


def test_only_a_run_that_is_alive_is_paused(processes: PausingDriver) -> None:
    pausing = processes
    pausing.give(PauseOrder("unknown", 1, paused=True))
    pausing.start("one")
    pausing.engine.stop(["one"])
    pausing.driver.ended("one")
    pausing.give(PauseOrder("one", 1, paused=True))
    assert not pausing.pauses.answers and not pausing.changes


def test_a_spawner_that_does_not_know_pauses_has_no_paused_runs(processes: PausingDriver) -> None:
    """One of an earlier version, which runs until no process is left. It would continue the run."""
    pausing = processes
    pausing.start("one")
    known = pausing.node.node / "paused" / ",spawner"
    assert known.read_text() == str(pausing.node.spawner_pid())
    known.write_text("1")
    answer = pausing.pause("one")
    assert not answer.paused and answer.why_not.startswith("the spawner of this host is of an earlier version")
    pausing.counts_on("one")


def test_marks_of_later_versions_are_read(tmp_path: Path) -> None:
    marks = PauseMarks(tmp_path)
    mark = PauseMark("one", 3, True, "boot", moved={"7": GIB}, others=[(8, 1.5)])
    marks.put(mark)
    path = tmp_path / "paused" / "one"
    path.write_text('{"later": 1,' + path.read_text()[1:])
    read = marks.read("one")
    assert read is not None and read.but(others=[(8, 1.5)]) == mark and marks.holds("one")
    assert marks.update(mark.but(attempts=1)) and not marks.update(mark.but(number=2))
    path.write_text("damaged")
    assert marks.read("one") is None and not marks.holds("one")
    marks.forget("one")
    assert marks.run_ids() == set()


@pytest.mark.parametrize(
    ("pausing", "killed"), [("process", "spawner"), ("signals", "spawner"), ("signals", "guard")], indirect=["pausing"]
)
def test_a_dead_spawner_or_guard_leaves_the_run_paused(pausing: PausingDriver, killed: str) -> None:
    pausing.start("one")
    pausing.start("two")
    assert pausing.pause("one").paused
    pausing.set_speed(SLOW)
    number = pausing.begin("two", paused=True)
    pausing.until_calling("two", "checkpoint")
    old = pausing.node.spawner_pid()
    if killed == "spawner":
        kill(old)
        pausing.driver.until(lambda: pausing.node.spawner_pid() != old, "another spawner")
    else:
        kill(guard_of(old))
        pausing.driver.until(lambda: guard_of(old), "another guard")
    pausing.start("three")  # the spawner has looked at the runs
    pausing.set_speed(AT_ONCE)
    assert pausing.answer("two", number).paused
    assert pausing.stands_still("one") and pausing.stands_still("two")
    for run_id in ("one", "two"):
        assert not pausing.resume(run_id).paused
        pausing.counts_on(run_id)


def guard_of(spawner: int) -> int | None:
    children = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
    return next((int(pid) for pid in children if procfs.process_name(int(pid)) == "output-guard"), None)


@pytest.mark.parametrize("pausing", ["signals"], indirect=True)
def test_the_output_guard_neither_pauses_nor_continues_a_paused_run(pausing: PausingDriver) -> None:
    """Two runs print as fast as they can, so the guard stops and continues them all the time."""
    for run_id in ("one", "two"):
        pausing.start(run_id, "(while :; do head -c 4000000 /dev/zero; done) & {count}")
    output = pausing.node.node / "output"
    pausing.driver.until(lambda: (output / "one").stat().st_size > OUTPUT_MAX_BYTES, "a flood")
    assert pausing.pause("one").paused
    size, other = (output / "one").stat().st_size, (output / "two").stat().st_size
    pausing.driver.until(lambda: (output / "two").stat().st_size > other + FLOOD_BYTES_PER_S, "the guard goes on")
    assert pausing.stands_still("one") and (output / "one").stat().st_size == size
    assert not pausing.resume("one").paused
    pausing.counts_on("one")
    pausing.driver.until(lambda: (output / "one").stat().st_size > size, "more output")


@both_engines
def test_a_fence_ends_a_paused_run(pausing: PausingDriver) -> None:
    """The spawner ends it, also if it is a container."""
    spec = pausing.start("one", "trap 'exit 7' TERM; {count}", fence_s=5.0, stop_grace_s=60.0)
    assert pausing.pause("one").paused
    if isinstance(pausing.engine, DockerEngine):
        fence = pausing.engine.fence_of(spec)
        assert fence is not None
        spawner = Driver(ENGINES["process"], pausing.node)
        assert isinstance(spawner.engine, ProcessEngine)
        spawner.engine.fence_containers([fence])
        spawner.engine.answered(boot_s() - 1000)
        assert pausing.driver.ended("one").observed.exit_code == 7
        spawner.engine.unfence_containers(["one"])
        spawner.close()
    else:
        pausing.engine.answered(boot_s() - 1000)
        assert pausing.driver.ended("one").observed.exit_code == 7


@both_engines
def test_the_next_agent_knows_and_continues_paused_runs(pausing: PausingDriver) -> None:
    pausing.start("one")
    pausing.start("two")
    answer = pausing.pause("one")
    pausing.set_speed(SLOW)
    number = pausing.begin("two", paused=True)
    pausing.until_calling("two", "checkpoint")
    other = pausing.with_next_agent()
    assert other.pauses.answers == {"one": answer} and other.pauses.holds("two")
    other.set_speed(AT_ONCE)
    assert other.answer("two", number).paused
    for run_id in ("one", "two"):
        assert other.stands_still(run_id)
        assert not other.resume(run_id).paused
        other.counts_on(run_id)


def test_the_processes_of_a_session_are_stopped_too(processes: PausingDriver) -> None:
    pausing = processes
    spec, path = pausing.start("one"), pausing.counter("session")
    count = f"setsid sh -c 'while :; do echo >> {path}; sleep 0.05; done' > /dev/null 2>&1 &"
    command = ["sh", "-c", f"{count} while [ ! -e {path} ]; do sleep 0.05; done; echo up"]
    pausing.driver.execute(Execute("session", spec, command, has_terminal=False), until=b"up")
    assert pausing.pause("one").paused
    assert len(pausing.pids("one")) > 2 and pausing.stands_still("one")
    pausing.resume("one")
    before = path.stat().st_size
    pausing.driver.until(lambda: path.stat().st_size > before, "the session counts on")


@both_engines
def test_the_memory_limit_of_a_paused_run_has_room_for_what_is_moved(pausing: PausingDriver) -> None:
    pausing.start("one", memory_mib=256)
    before = pausing.memory_limits("one")
    if not before:
        pytest.skip("no memory limits without cgroups")
    assert pausing.pause("one").paused
    assert pausing.memory_limits("one") == [256 * MIB + GIB]
    assert not pausing.resume("one").paused
    assert pausing.memory_limits("one") == before == [256 * MIB]


def test_the_cgroups_above_a_run_limit_what_can_be_moved(tmp_path: Path) -> None:
    """Of either version. The kernel can drop files that it has in memory."""
    below = tmp_path / "job" / "corral" / "run"
    below.mkdir(parents=True)
    for name, text in {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 1\ninactive_file 50"}.items():
        (tmp_path / "job" / name).write_text(text)
    for name, text in {"memory.max": "max", "memory.current": "7"}.items():
        (tmp_path / "job" / "corral" / name).write_text(text)
    for name, text in {"limit_in_bytes": "90", "usage_in_bytes": "100", "stat": "inactive_file 1\ntotal_inactive_file 2"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    (below / "memory.max").write_text("5")
    assert list(rooms_above(below)) == [350, 0]
