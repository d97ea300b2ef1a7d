"""The real agent with a fake core: orders, reports, logs, crashes of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corral.model.agent_protocol import HEARTBEAT_S, IDLE_HEARTBEAT_S, Report
from corral.model.run import LOG_EVENT_MAX_BYTES
from engines.fake_core import FakeCore
from engines.nodes import NodeFolder, is_locked, is_running, kill, shell, spec
from eventually import eventually


def python(run_id: str, program: str, **more):
    return spec(run_id, sys.executable, "-c", program, ships_logs=True, **more)


def test_hello_orders_report(node, core):
    node.start_agent("--gpus", "sim:2xH200")
    core.greeted()
    hello = core.hellos[0]
    assert hello.options.gpus == "sim:2xH200" and hello.runs == []
    assert [gpu.model for gpu in hello.gpus] == ["NVIDIA H200"] * 2
    assert all(gpu.gpu_id.startswith("GPU-") and gpu.simulated for gpu in hello.gpus)
    assert hello.cpu_units >= 1024 and hello.memory_mib > 100
    gpu_id = hello.gpus[1].gpu_id
    core.order(shell("one", "echo $CUDA_VISIBLE_DEVICES; echo; echo 2; exit 3", ships_logs=True, gpu_ids=[gpu_id]))
    (one,) = core.ended("one")
    assert one.exit_code == 3
    assert core.texts["one"] == [gpu_id, "2"]  # the empty line is passed over
    assert core.stored_at_end["one"] == core.stored["one"] == len(gpu_id) + 4


def test_a_run_that_ships_nothing_ships_nothing(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("one", "echo x"), shell("two", "no-such-thing"), spec("three", "no-such-thing", ships_logs=True))
    one, two, three = core.ended("one", "two", "three")
    assert (one.exit_code, two.exit_code) == (0, 127)
    assert three.started_at_s is None and "executable file not found" in three.reason
    assert not any(report.logs for report in core.reports)


def test_acknowledged_runs_are_forgotten(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("quiet", "echo x; echo > file"), shell("loud", "echo x", ships_logs=True))
    core.ended("quiet", "loud")
    core.until(lambda: not list((node.node / "output").iterdir()), "outputs removed")
    core.until(lambda: not list((node.node / "work").iterdir()), "folders removed")


def test_stop(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("one", "trap 'echo told; exit 9' TERM; echo up; while :; do sleep 0.01; done", ships_logs=True))
    core.until(lambda: core.texts["one"] == ["up"], "a line arrives while the run goes on")
    core.order(stop=["one", "unknown"])
    assert core.ended("one")[0].exit_code == 9
    assert core.texts["one"][-1] == "told"


def test_five_megabytes_without_a_newline(node, core):
    """Events are split at the limit, and never inside a character."""
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(python("one", "import sys; sys.stdout.buffer.write(('x' + 'é€😀' * 555_555).encode())"))
    core.ended("one")
    assert "".join(core.texts["one"]) == "x" + "é€😀" * 555_555
    sizes = [len(text.encode()) for text in core.texts["one"]]
    assert max(sizes) <= LOG_EVENT_MAX_BYTES and min(sizes[:-1]) > LOG_EVENT_MAX_BYTES - 4
    assert core.stored_at_end["one"] == core.stored["one"]


def test_many_runs_with_much_output_at_once(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    program = "for i in range(20_000): print({}, i, 'x' * 20)"
    core.order(*[python(f"r{n}", program.format(n)) for n in range(4)])
    core.ended(*[f"r{n}" for n in range(4)])
    for n in range(4):
        assert core.texts[f"r{n}"] == [f"{n} {i} {'x' * 20}" for i in range(20_000)]
        assert core.stored_at_end[f"r{n}"] == core.stored[f"r{n}"]
    assert max(sum(len(chunk.events) for chunk in report.logs) for report in core.reports) <= 10_000


def test_a_flood_of_short_runs(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    ids = [f"r{i}" for i in range(300)]
    core.order(*[shell(run_id, f"echo {run_id}; exit 7", ships_logs=True) for run_id in ids])
    assert {run.exit_code for run in core.ended(*ids)} == {7}
    assert all(core.texts[run_id] == [run_id] for run_id in ids)
    assert all(core.stored_at_end[run_id] == core.stored[run_id] for run_id in ids)


@pytest.mark.parametrize("when", ["before", "after"])
def test_connections_that_break_in_mid_log(node, core, when):
    """Before the commit, the chunk must be sent again. After it, a second copy must be refused by its offset."""
    core.fault = lambda number: when if number % 4 == 1 and len(core.hellos) < 6 else ""
    node.start_agent("--gpus", "none")
    core.greeted()
    lines = [f"{i} {'ü' * (i % 50)}" for i in range(30_000)]
    core.order(python("one", "for i in range(30_000): print(i, 'ü' * (i % 50), flush=i % 100 == 0)"))
    core.ended("one")
    assert len(core.hellos) >= 3
    assert core.texts["one"] == lines
    assert core.stored_at_end["one"] == core.stored["one"]


def test_heartbeats(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.until(lambda: core.reports, "a report")
    assert core.reports[0] == Report()
    assert HEARTBEAT_S < IDLE_HEARTBEAT_S < 10


def test_the_core_returns(node, core, tmp_path):
    node.start_agent("--gpus", "none")
    core.greeted()
    gate = tmp_path / "gate"
    core.order(
        shell("waits", f"echo 1; while [ ! -e {gate} ]; do sleep 0.01; done; echo 2", ships_logs=True),
        shell("ends", f"while [ ! -e {gate} ]; do sleep 0.01; done; exit 4"),
    )
    core.until(lambda: core.texts["waits"] == ["1"] and "ends" in core.runs, "both run")
    core.go_away()
    gate.touch()
    eventually(lambda: not node.holders(), "both ended")
    core.listen()
    core.greeted(times=2)
    hello = {run.run_id: run for run in core.hellos[1].runs}
    assert hello["ends"].exit_code == 4  # nothing more to come of it
    assert hello["waits"].stopped_at_s is None  # its last line has not been told
    waits, _ = core.ended("waits", "ends")
    assert waits.exit_code == 0 and core.texts["waits"] == ["1", "2"]
    assert core.stored_at_end["waits"] == core.stored["waits"] == 4


def test_the_agent_is_killed(node, core, tmp_path):
    """Runs continue, end, and are adopted: exit codes and output are right, and no run starts twice."""
    agent = node.start_agent("--gpus", "sim:1")
    core.greeted()
    gate = tmp_path / "gate"
    script = f"echo x >> {tmp_path}/$0; echo up; while [ ! -e {gate} ]; do sleep 0.01; done; echo $0 ends; exit 6"
    meanwhile = [f"m{i}" for i in range(20)]
    core.order(*[spec(run_id, "sh", "-c", script, run_id, ships_logs=True) for run_id in meanwhile])
    core.order(spec("long", "sh", "-c", "echo up; exec sleep 300", ships_logs=True))
    core.until(lambda: all(core.texts[run_id] == ["up"] for run_id in [*meanwhile, "long"]), "all up")
    core.go_away()
    kill(agent.pid)
    gate.touch()
    eventually(lambda: len(set(node.holders())) == 1, "all but one have ended")
    core.listen()
    second = node.start_agent("--gpus", "sim:1")
    core.greeted(times=2)
    assert core.hellos[0].host_id == core.hellos[1].host_id
    assert core.hellos[0].gpus == core.hellos[1].gpus
    assert {run.run_id for run in core.hellos[1].runs} == {*meanwhile, "long"}
    assert {run.exit_code for run in core.ended(*meanwhile)} == {6}
    for run_id in meanwhile:
        assert core.texts[run_id] == ["up", f"{run_id} ends"]
        assert core.stored_at_end[run_id] == core.stored[run_id]
        assert (tmp_path / run_id).read_text() == "x\n"
    assert core.runs["long"].stopped_at_s is None
    core.order(stop=["long"])
    assert core.ended("long")[0].exit_code == 143
    assert second.poll() is None


def test_the_spawner_is_killed_under_the_agent(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("one", "echo up; exec sleep 300", ships_logs=True))
    core.until(lambda: core.texts["one"] == ["up"], "up")
    kill(node.spawner_pid())
    core.order(shell("two", "exit 5"))
    assert core.ended("two")[0].exit_code == 5
    assert core.runs["one"].stopped_at_s is None
    core.order(stop=["one"])
    assert "exit status was lost" in core.ended("one")[0].reason
    assert len(core.hellos) == 1


@pytest.mark.parametrize("how", ["quit", "SIGTERM"])
def test_an_agent_that_ends_leaves_its_runs_alone(node, core, how):
    agent = node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("one", "exec sleep 300"))
    core.until(lambda: core.runs.get("one") and core.runs["one"].pid, "it runs")
    if how == "quit":
        core.say_quit("another flag")
    else:
        agent.send_signal(signal.SIGTERM)
    core.until(lambda: agent.poll() is not None, "agent ended")
    assert agent.returncode == 0
    pid = core.runs["one"].pid
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_locked(node.node / "spawner.lock"), "with nothing alive the spawner ends too")
    core.go_away()
    core.listen()
    node.start_agent("--gpus", "none")
    assert core.ended("one")[0].exit_code == 137


def test_a_second_agent_is_refused(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    second = node.start_agent("--gpus", "none")
    _, error = second.communicate()
    assert second.returncode == 1
    assert "another agent is running" in error


def test_an_agent_waits_for_the_end_of_a_killed_one(node, core):
    first = node.start_agent("--gpus", "none")
    core.greeted()
    second = node.start_agent("--gpus", "none")
    assert "for the end of another agent" in second.stderr.readline()
    first.kill()
    core.go_away()
    core.listen()
    core.greeted()


def test_an_interrupt_while_the_agent_starts_prints_nothing(node):
    """`corral join` starts the agent with Ctrl-C blocked. The agent is no fork (-B), because it must import its modules."""
    command = [sys.executable, "-B", "-m", "corral.node", "--data", str(node.data), "--gpus", "none"]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    node.agents.append(agent)
    agent.send_signal(signal.SIGINT)
    assert agent.communicate(timeout=60)[1] == ""
    assert agent.returncode == 0


def test_a_wrong_flag_is_refused_before_any_file_is_written(tmp_path):
    node = NodeFolder(tmp_path)
    agent = node.start_agent("--gpus", "sim:3xH2000")
    _, error = agent.communicate()
    assert agent.returncode == 1
    assert "unknown model" in error and "H200" in error
    assert not (node.node / "host.json").exists()


def test_a_damaged_host_file_is_refused(node):
    (node.node / "host.json").write_text("{")
    agent = node.start_agent("--gpus", "none")
    _, error = agent.communicate()
    assert agent.returncode == 1
    assert "host.json is damaged" in error


def test_a_deep_data_folder(tmp_path: Path):
    """Socket addresses have at most 107 bytes; paths of folders may be longer."""
    node = NodeFolder(tmp_path / ("d" * 100) / ("e" * 100))
    core = FakeCore(node)
    try:
        node.start_agent("--gpus", "none")
        core.greeted()
        core.order(shell("one", "exit 2"))
        assert core.ended("one")[0].exit_code == 2
    finally:
        node.clean_up()
        core.close()


def test_busy_and_idle_simulated_gpus(node, core):
    node.start_agent("--gpus", "sim:2")
    core.greeted()
    busy, idle = (gpu.gpu_id for gpu in core.hellos[0].gpus)
    core.order(
        shell("busy", "while :; do :; done & while :; do :; done", gpu_ids=[busy]),
        shell("idle", "exec sleep 300", gpu_ids=[idle]),
    )
    # alone on the machine it shows 100; other tests want their share of the cores
    core.until(lambda: busy in core.samples and core.samples[busy].utilization_percent > 10, "busy")
    core.until(lambda: core.samples[idle].utilization_percent < 5, "idle")  # its start is work, too
    core.order(stop=["busy", "idle"])
    core.ended("busy", "idle")
    core.until(lambda: core.samples[busy].utilization_percent == 0, "idle again")
