"""Crashes of the spawner: live runs continue, no run starts twice, and a lost exit code is reported as lost."""

from __future__ import annotations

import os
import subprocess
import sys

import orjson
import pytest

from corral.core.errors import Refused
from corral.model.stop_reasons import HOST_RESTARTED
from corral.node import procfs
from corral.node.host import kernel_boot_id
from corral.node.output_bounds import OUTPUT_MAX_BYTES
from corral.node.run_journal import RunJournal, replay
from corral.node.run_processes import is_same_process, process_started_boot_s
from corral.node.spawner_protocol import SpawnedRun
from corral.node.spawner_recovery import EXIT_STATUS_LOST, MAY_HAVE_RUN, NEVER_STARTED
from engines.drivers import Driver, process_engine
from engines.nodes import NodeFolder, is_running, kill, shell
from eventually import eventually

BOOT_ID = kernel_boot_id()


@pytest.fixture
def driver(node):
    driver = Driver(process_engine, node)
    yield driver
    driver.close()


def write_journal(node: NodeFolder, *records: dict, boot_id: str = BOOT_ID, torn: bytes = b"") -> None:
    lines = [orjson.dumps(record) for record in ({"corral_journal": 1, "boot_id": boot_id}, *records)]
    (node.node / "journal").write_bytes(b"\n".join(lines) + b"\n" + torn)


def run_record(run_id: str, **fields) -> dict:
    return {"run": {"run_id": run_id, "stop_grace_s": 5.0, "ships_logs": True, "gpu_ids": ["GPU-a"], **fields}}


def run_spawner(node: NodeFolder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral.node.spawner", "--dir", str(node.node)]
    return subprocess.run(command, capture_output=True, text=True)


def test_live_runs_are_adopted_and_their_code_is_lost(driver, tmp_path):
    gate = tmp_path / "gate"
    driver.engine.start(
        [
            shell("waits", f"echo x >> {tmp_path}/starts; echo up; while [ ! -e {gate} ]; do sleep 0.01; done; echo end"),
            shell("over", "exit 3"),
            shell("dies", "echo up; exec sleep 300"),
        ]
    )
    driver.printed("waits", "up")
    driver.printed("dies", "up")
    driver.ended("over")
    first = driver.node.spawner_pid()
    kill(first)
    kill(driver.engine.observe()["dies"].observed.pid)
    driver.until(lambda: driver.node.spawner_pid() != first, "another spawner")
    dies = driver.ended("dies").observed
    assert (dies.exit_code, dies.reason) == (None, EXIT_STATUS_LOST)
    assert driver.engine.observe()["over"].observed.exit_code == 3
    waits = driver.engine.observe()["waits"]
    assert waits.alive and is_running(waits.observed.pid)
    gate.touch()
    ended = driver.ended("waits").observed
    assert (ended.exit_code, ended.reason) == (None, EXIT_STATUS_LOST)
    assert ended.started_at_s == waits.observed.started_at_s
    assert driver.node.output("waits") == "up\nend\n"
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_stop_continues_after_a_crash_of_the_spawner(driver):
    """SIGKILL follows after the grace period, although the spawner that began the stop has died."""
    driver.engine.start([shell("one", "trap '' TERM; echo up; while :; do sleep 0.01; done", stop_grace_s=0.5)])
    driver.printed("one", "up")
    driver.engine.stop(["one"])
    driver.until(lambda: b'"kill_at_boot_s":null' not in _last_line(driver.node), "stop journaled")
    kill(driver.node.spawner_pid())
    assert driver.ended("one").observed.reason == EXIT_STATUS_LOST
    assert not driver.node.holders()


def _last_line(node: NodeFolder) -> bytes:
    return (node.node / "journal").read_bytes().splitlines()[-1]


def test_adopted_runs_can_be_stopped(driver):
    driver.engine.start([shell("one", "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done")])
    driver.printed("one", "up")
    first = driver.node.spawner_pid()
    kill(first)
    driver.until(lambda: driver.node.spawner_pid() != first, "another spawner")
    driver.engine.stop(["one"])
    driver.ended("one")
    assert driver.node.output("one").endswith("told\n")


def test_remaining_processes_of_a_run_that_ended_meanwhile_are_killed(driver):
    driver.engine.start([shell("one", "setsid sleep 300 & echo up; exec sleep 300")])
    driver.printed("one", "up")
    pid = driver.started("one").observed.pid
    kill(driver.node.spawner_pid())
    kill(pid)
    assert driver.ended("one").observed.reason == EXIT_STATUS_LOST
    assert not driver.node.holders()


def test_orders_that_were_lost_with_it_are_sent_again(driver, tmp_path):
    specs = [shell(f"r{i}", f"echo {i} >> {tmp_path}/starts") for i in range(300)]
    driver.engine.start(specs)
    driver.until(lambda: any(run.observed.pid for run in driver.engine.observe().values()), "some started")
    kill(driver.node.spawner_pid())
    driver.until(lambda: all(not run.alive for run in driver.engine.observe().values()), "all ended")
    starts = (tmp_path / "starts").read_text().split()
    assert len(starts) == len(set(starts))
    for i in range(300):
        observed = driver.engine.observe()[f"r{i}"].observed
        assert observed.exit_code == 0 or observed.reason in (EXIT_STATUS_LOST, NEVER_STARTED)
        assert (str(i) in starts) == (observed.reason != NEVER_STARTED)


def test_a_process_whose_start_took_long_is_recognised():
    """The spawner may wait for seconds between its look at the clock and the start, if the machine is busy."""
    began = procfs.boot_s()
    with subprocess.Popen(["sleep", "300"]) as process:
        try:
            for before in (began, began - 10):
                since = process_started_boot_s(process.pid, before)
                assert is_same_process(SpawnedRun("one", 5.0, ships_logs=True, gpu_ids=[], pid=process.pid, started_boot_s=since))
        finally:
            process.kill()


def test_a_torn_last_line_is_dropped(node):
    whole = run_record("one", pid=1, started_at_s=1.0, started_boot_s=1.0, stopped_at_s=2.0, exit_code=3)
    write_journal(node, whole, torn=b'{"run":{"run_id":"two","stop_gr')
    driver = Driver(process_engine, node)
    assert driver.engine.observe()["one"].observed.exit_code == 3
    assert list(driver.engine.observe()) == ["one"]
    assert driver.run(shell("two", "exit 5")).observed.exit_code == 5
    driver.close()


def test_after_a_reboot_everything_has_ended(node):
    write_journal(
        node,
        run_record("alive", pid=1, started_at_s=1.0, started_boot_s=1.0),
        run_record("over", pid=1, started_at_s=1.0, stopped_at_s=2.0, exit_code=3),
        run_record("nearly", pid=1, started_at_s=1.0, main_ended_at_s=2.0, exit_code=4),
        run_record("starting"),
        boot_id="of-another-boot",
        torn=b"\0\0\0\0\n\0\0",
    )
    driver = Driver(process_engine, node)
    known = {run_id: run.observed for run_id, run in driver.engine.observe().items()}
    assert known["alive"].reason == known["starting"].reason == HOST_RESTARTED
    assert known["alive"].exit_code is None and known["alive"].stopped_at_s is not None
    assert known["starting"].started_at_s is None
    assert (known["over"].exit_code, known["over"].reason, known["over"].stopped_at_s) == (3, None, 2.0)
    assert known["nearly"].exit_code == 4
    assert driver.engine.observe()["alive"].ships_logs and driver.engine.observe()["alive"].gpu_ids == ("GPU-a",)
    driver.close()


def test_a_boot_id_handed_in_ends_what_ran_under_another(node):
    first = Driver(process_engine, node, boot_id="boot-1")
    first.engine.start([shell("one", "echo up; exec sleep 300")])
    first.printed("one", "up")
    first._loop.run_until_complete(first.engine.close(quit=False))
    kill(node.spawner_pid())
    for pid in node.holders():
        kill(pid)
    second = Driver(process_engine, node, boot_id="boot-2")
    assert second.engine.observe()["one"].observed.reason == HOST_RESTARTED
    second.close()


def test_a_run_that_has_killed_the_spawner_has_started(driver, tmp_path):
    """The spawner runs only while no other process wants its CPU, so it dies before it has journaled the pid of its child."""
    pid, cpu = driver.node.spawner_pid(), min(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cpu})
    os.sched_setscheduler(pid, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    driver.engine.start([shell("one", f"kill -9 $PPID; echo x >> {tmp_path}/starts")])
    observed = driver.ended("one").observed
    assert (observed.exit_code, observed.reason) == (None, EXIT_STATUS_LOST)
    assert observed.started_at_s is not None
    assert (tmp_path / "starts").read_text() == "x\n"


@pytest.mark.parametrize(
    "last_number, mark_s, reason",
    [(6, 0, NEVER_STARTED), (6, 1000, NEVER_STARTED), (7, 0, NEVER_STARTED), (7, 1000, EXIT_STATUS_LOST), (8, 1000, MAY_HAVE_RUN)],
)
def test_a_run_that_was_being_started_is_never_started_again(node, tmp_path, last_number, mark_s, reason):
    """The spawner journals a run, marks its number, and starts it. It may die after each step. The child sets the mark's time."""
    write_journal(node, run_record("one", start_number=7))
    (node.node / "starting").touch()
    os.utime(node.node / "starting", (last_number, mark_s))
    driver = Driver(process_engine, node)
    observed = driver.engine.observe()["one"].observed
    assert (observed.exit_code, observed.reason) == (None, reason)
    assert observed.started_at_s == {NEVER_STARTED: None, EXIT_STATUS_LOST: mark_s}.get(reason, observed.started_at_s)
    driver.engine.start([shell("one", f"touch {tmp_path}/started")])
    driver.run(shell("two", "true"))
    assert not (tmp_path / "started").exists()
    driver.close()


def test_a_run_whose_pid_was_not_journaled(driver, tmp_path):
    """The journal says starting and the lock is held: the main process is found by the lock."""
    driver.engine.start([shell("one", f"echo x >> {tmp_path}/starts; echo up; sleep 300 & wait")])
    driver.printed("one", "up")
    pid = driver.started("one").observed.pid
    driver._loop.run_until_complete(driver.engine.close(quit=False))
    kill(driver.node.spawner_pid())
    write_journal(driver.node, run_record("one"))
    again = Driver(process_engine, driver.node)
    assert again.engine.observe()["one"].observed.pid == pid
    assert again.engine.observe()["one"].alive
    again.engine.stop(["one"])
    assert again.ended("one").observed.reason == EXIT_STATUS_LOST
    assert (tmp_path / "starts").read_text() == "x\n"
    again.close()


@pytest.mark.parametrize("text", [b"something else\n", b'{"corral_journal":99,"boot_id":"x"}\n'])
def test_a_foreign_journal_is_refused_and_left_alone(node, text):
    (node.node / "journal").write_bytes(text)
    (node.node / "output" / "precious").touch()
    assert run_spawner(node).returncode == 2
    assert (node.node / "journal").read_bytes() == text
    assert (node.node / "output" / "precious").exists()


def test_a_damaged_journal_of_this_boot_is_refused(node):
    write_journal(node, {"run": "nonsense"}, run_record("one"))
    refused = run_spawner(node)
    assert refused.returncode == 2
    assert "journal: line 2" in refused.stderr
    with pytest.raises(Refused, match="journal: line 2"):
        Driver(process_engine, node)


def test_files_of_forgotten_runs_are_removed(node):
    (node.node / "output" / "gone").write_text("text")
    (node.node / "work" / "gone").mkdir()
    (node.node / "work" / "gone" / "file").touch()
    driver = Driver(process_engine, node)
    assert not list((node.node / "output").iterdir())
    assert not list((node.node / "work").iterdir())
    driver.close()


def test_the_journal_is_rewritten_when_it_is_mostly_garbage(node):
    journal = RunJournal(node.node / "journal", BOOT_ID)
    journal.rewrite({})
    kept = SpawnedRun("kept", 1.0, False, [])
    while not journal.needs_rewrite:
        journal.put(SpawnedRun("x" * 100, 1.0, False, []))
    journal.forget(["x" * 100])
    journal.put(kept)
    journal.rewrite({"kept": kept})
    journal.close()
    assert replay(node.node / "journal", BOOT_ID).runs == {"kept": kept}
    assert (node.node / "journal").stat().st_size < 1000


def test_the_output_of_a_run_is_bounded_without_an_agent(driver):
    """Corral is down, and the run prints as fast as it can."""
    driver.engine.start([shell("one", "yes")])
    driver.until(lambda: "one" in driver.engine.observe() and driver.engine.observe()["one"].observed.pid, "started")
    output = driver.node.node / "output" / "one"
    eventually(lambda: output.stat().st_size > 2 * OUTPUT_MAX_BYTES > 2 * 512 * output.stat().st_blocks, "dropped output")
    driver.engine.stop(["one"])
    assert driver.ended("one")
