"""The contract of all engines. To test a new engine, add a line to `drivers.ENGINES`."""

from __future__ import annotations

import os
import time

import pytest
from msgspec.structs import replace

from corral.channel.command_relay import ERRORS, EXIT, OUTPUT
from corral.model.agent_protocol import Execute
from corral.node.engine import CannotExecute
from corral.node.process_engine import INHERITED, ProcessEngine, environment_for
from engines.drivers import ENGINES, Driver
from engines.nodes import is_running, shell, spec


def test_a_run_is_alive_then_ends_with_its_code_and_output(driver, tmp_path):
    gate = tmp_path / "gate"
    driver.engine.start([shell("one", f"echo here; while [ ! -e {gate} ]; do sleep 0.01; done; echo done >&2; exit 3")])
    observed = driver.started("one").observed
    driver.printed("one", "here")
    assert observed.stopped_at_s is None and observed.exit_code is None
    gate.touch()
    ended = driver.ended("one").observed
    assert (ended.exit_code, ended.reason, ended.pid) == (3, None, observed.pid)
    assert ended.started_at_s == observed.started_at_s <= ended.stopped_at_s
    assert driver.node.output("one") == "here\ndone\n"


def test_starting_twice_is_once_until_it_is_forgotten(driver, tmp_path):
    once = shell("one", f"echo x >> {tmp_path}/starts")
    driver.engine.start([once, once])
    driver.engine.start([once])
    driver.ended("one")
    driver.engine.start([once])
    driver.run(shell("two", "true"))  # whatever was ordered before has been dealt with
    assert (tmp_path / "starts").read_text() == "x\n"
    driver.engine.forget(["one"])
    assert "one" not in driver.engine.observe()
    driver.run(once)
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_another_attempt_is_another_run(driver):
    """A restart starts another attempt when the first has ended and may not be forgotten yet."""
    first = driver.run(shell("one", "echo first; exit 1")).observed
    second = driver.run(replace(shell("one.1", "echo second; exit 2"), task_id=shell("one", "").task_id)).observed
    assert (first.exit_code, second.exit_code) == (1, 2)
    assert (driver.node.output("one"), driver.node.output("one.1")) == ("first\n", "second\n")


@pytest.mark.parametrize(
    "script, code", [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143), ("kill -11 $$", 139)]
)
def test_exit_codes(driver, script, code):
    assert driver.run(shell("one", script)).observed.exit_code == code


@pytest.mark.parametrize(
    "how, reason",
    [
        ({"command": ["no-such-command"]}, 'exec: "no-such-command": executable file not found in $PATH'),
        ({"command": ["/no/such/command"]}, 'exec: "/no/such/command": no such file or directory'),
        ({"command": ["/etc/passwd"]}, 'exec: "/etc/passwd": permission denied'),
        ({"command": ["true"], "working_directory": "/no/such"}, 'working directory "/no/such" does not exist'),
        ({"command": ["true", "a\0b"]}, 'exec: "true": embedded null byte'),
        ({"command": []}, 'exec: "": executable file not found in $PATH'),
    ],
)
def test_a_start_that_fails_is_a_run_that_ended_without_starting(process_driver, how, reason):
    """The messages are those of POSIX. Those of a container are the engine's own: tests/containers/test_container_failures.py."""
    observed = process_driver.run(replace(spec("one"), **how)).observed
    assert observed.reason == f"CannotStartContainerError: {reason}"
    assert (observed.started_at_s, observed.exit_code, observed.pid) == (None, None, None)
    assert observed.stopped_at_s is not None


def test_stop_is_sigterm_first(driver):
    driver.engine.start([shell("one", "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.01; done")])
    driver.printed("one", "ready")
    driver.engine.stop(["one"])
    assert driver.ended("one").observed.exit_code == 5
    assert driver.node.output("one").endswith("told\n")


def test_stop_reaches_the_whole_group(driver):
    driver.engine.start([shell("one", "sleep 300 & echo $!; wait")])
    driver.printed("one", "\n")
    child = int(driver.node.output("one"))
    driver.engine.stop(["one"])
    assert driver.ended("one").observed.exit_code == 143
    assert not is_running(child)


def test_a_run_that_ignores_sigterm_is_killed_after_the_grace_period(driver):
    driver.engine.start([shell("one", "trap '' TERM; echo ready; while :; do sleep 0.01; done", stop_grace_s=0.3)])
    driver.printed("one", "ready")
    asked = time.monotonic()
    driver.engine.stop(["one"])
    driver.engine.stop(["one"])  # a second stop neither hurries nor delays it
    assert driver.ended("one").observed.exit_code == 137
    assert time.monotonic() - asked >= 0.3


def test_a_signal_reaches_the_group_and_the_run_ends_with_its_own_code(driver):
    driver.engine.start([shell("one", "trap 'echo told; exit 6' INT; sleep 300 & echo $!; while :; do sleep 0.01; done")])
    driver.printed("one", "\n")
    driver.engine.signal(["one", "never-heard-of"], "SIGINT")
    assert driver.ended("one").observed.exit_code == 6
    pid, told = driver.node.output("one").splitlines()
    assert told == "told" and not is_running(int(pid))
    driver.engine.signal(["one"], "SIGINT")
    driver.run(shell("two", "true"))


def test_stopping_an_unknown_or_ended_run_does_nothing(driver):
    driver.engine.stop(["never-heard-of"])
    driver.run(shell("one", "exit 0"))
    driver.engine.stop(["one"])
    assert driver.run(shell("two", "exit 7")).observed.exit_code == 7


def test_a_run_stopped_with_its_start_ends(driver):
    driver.engine.start([shell("one", "sleep 300")])
    driver.engine.stop(["one"])
    driver.ended("one")
    assert not driver.node.holders()


def test_the_end_is_reported_when_no_process_is_left(driver):
    """A child in another session does not receive group signals, but is killed before the run has ended."""
    run = driver.run(shell("one", "setsid sleep 300 & setsid sh -c 'sleep 300 & sleep 300' & echo $!; exit 4"))
    assert run.observed.exit_code == 4
    assert not driver.node.holders()
    assert not is_running(int(driver.node.output("one")))


def test_a_run_that_redirects_its_output_still_counts_as_alive(driver):
    run = driver.run(shell("one", "setsid sleep 300 >/dev/null 2>&1 & exit 0"))
    assert run.observed.exit_code == 0
    assert not driver.node.holders()


def test_a_reader_of_the_output_is_left_alone(driver):
    """Only processes that hold the run's lock belong to it; a process that reads its output does not."""
    driver.engine.start([shell("one", "echo ready; setsid sleep 300 & while :; do sleep 0.01; done")])
    driver.printed("one", "ready")
    driver.engine.start([spec("reader", "tail", "-f", str(driver.node.node / "output" / "one"))])
    driver.printed("reader", "ready")
    driver.engine.stop(["one"])
    driver.ended("one")
    driver.engine.forget(["one"])
    driver.run(shell("two", "echo not for the reader"))
    assert driver.engine.observe()["reader"].alive
    assert driver.node.output("reader") == "ready\n"


def test_environment(node):
    """Of a plain process. A container has the variables of its image instead of those of this machine: test_docker_options.py."""
    ours = {"PATH": os.environ["PATH"], "HOME": "/home/x", "LANG": "C.UTF-8", "SECRET": "no", "AWS_PROFILE": "no"}
    for make in [ENGINES["process"]]:
        driver = Driver(make, node, environment=ours)
        given = {"A": "1", "LANG": "de_DE", "EMPTY": "", "TEXT": "ü\n2", "NVIDIA_VISIBLE_DEVICES": "all"}
        driver.run(spec("none", "env", "-0", environment=given))
        driver.run(spec("two", "env", "-0", environment=given, gpu_ids=["GPU-a", "GPU-b"]))
        common = {"PATH": ours["PATH"], "HOME": "/home/x", "LANG": "de_DE", "A": "1", "EMPTY": "", "TEXT": "ü\n2"}
        assert _variables(node.output("none")) == {
            **common, "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "", "CORRAL_RUN": f"{node.node}/none",
        }  # fmt: skip
        assert _variables(node.output("two")) == {
            **common, "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "CORRAL_RUN": f"{node.node}/two",
        }  # fmt: skip
        driver.close()
    assert "AWS_PROFILE" not in INHERITED


def test_the_files_of_our_home_do_not_come_before_the_credentials_of_a_task():
    inside = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:4566/v2/credentials/x"}
    files = {"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_CONFIG_FILE": "/dev/null"}
    home = {"HOME": "/home/x"}
    assert environment_for(spec("one", "env", environment=inside), home).items() >= files.items()
    for own in ({"AWS_PROFILE": "mine"}, {"AWS_CONFIG_FILE": "/mine"}, {"AWS_SHARED_CREDENTIALS_FILE": "/mine"}):
        given = environment_for(spec("one", "env", environment=inside | own), home)
        assert {name: given[name] for name in given.keys() & (files.keys() | own.keys())} == own


def _variables(text: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in text.split("\0") if entry)


def test_the_default_folder_is_removed_when_the_run_is_forgotten(process_driver, tmp_path):
    driver = process_driver
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    driver.run(shell("one", f"pwd; mkdir -p deep/er; echo x > deep/er/file; ln -s {precious} link"))
    driver.run(shell("two", "pwd; ls -A"))
    driver.run(shell("three", f"rmdir $PWD && ln -s {precious} $PWD"))  # the folder itself made a link
    here = driver.node.node / "work"
    assert driver.node.output("one") == f"{here}/one\n"
    assert driver.node.output("two") == f"{here}/two\n"
    driver.engine.forget(["one", "two", "three"])
    trash = driver.node.node / "trash"
    driver.until(lambda: not list(here.iterdir()) and not list(trash.iterdir()), "folders removed")
    assert list(precious.iterdir()) == [precious / "kept"]
    driver.run(shell("four", "ls -A; stat -c %a ."))  # whatever serves again is as new
    assert driver.node.output("four") == "700\n"


def test_a_working_directory_of_the_users_stays(driver, tmp_path):
    driver.run(shell("one", "pwd; echo x > file", working_directory=str(tmp_path)))
    driver.engine.forget(["one"])
    driver.run(shell("two", "true"))
    assert (tmp_path / "file").read_text() == "x\n"


def test_many_runs_that_end_at_once(driver):
    many = 200 if isinstance(driver.engine, ProcessEngine) else 20
    driver.engine.start([shell(f"r{i}", f"echo {i}; exit {i % 200}") for i in range(many)])
    driver.until(lambda: all(not run.alive for run in driver.engine.observe().values()), "all ended")
    for i in range(many):
        assert driver.engine.observe()[f"r{i}"].observed.exit_code == i % 200
        assert driver.node.output(f"r{i}") == f"{i}\n"


def test_an_ordered_run_is_observed_at_once(driver):
    """Otherwise a core that reconnects at this moment would believe that the order was lost."""
    driver.engine.start([shell("one", "true", ships_logs=True, gpu_ids=["GPU-a"])])
    known = driver.engine.observe()["one"]
    assert known.alive and known.ships_logs and known.gpu_ids == ("GPU-a",)


def test_execute(driver):
    run = shell("one", "exec sleep 600", environment={"OF_THE_RUN": "here"})
    driver.engine.start([run])
    driver.started("one")
    said = driver.execute(
        Execute("s1", run, ["sh", "-c", "echo $OF_THE_RUN; cat; echo wrong >&2; exit 3"], False), given=b"typed\n"
    )
    assert said[OUTPUT] == b"here\ntyped\n" and said[ERRORS] == b"wrong\n" and said[EXIT] == bytes([0, 0, 0, 3])
    sized = 'until [ "$(stty size)" != "0 0" ]; do :; done; stty size; exit 4'  # Docker tells the size after the start
    said = driver.execute(Execute("s2", run, ["sh", "-c", sized], True), window=(40, 100))
    assert said[OUTPUT] == b"40 100\r\n" and said[EXIT] == bytes([0, 0, 0, 4])
    assert driver.engine.observe()["one"].alive


def test_execute_ends_when_its_connection_closes(process_driver):
    """Docker cannot end what it executes: there the command continues until it writes output or the container ends."""
    driver = process_driver
    run = shell("one", "exec sleep 600")
    driver.engine.start([run])
    driver.started("one")
    said = driver.execute(Execute("s1", run, ["sh", "-c", "trap '' HUP; echo $$; sleep 60; echo no"], False), until=b"\n")
    pid = int(said[OUTPUT])
    driver.until(lambda: not is_running(pid), "ended")


def test_execute_without_a_run_is_declined(driver):
    run = shell("one", "true")
    driver.run(run)
    for spec_of in (run, shell("never", "true")):
        with pytest.raises(CannotExecute):
            driver.execute(Execute("s1", spec_of, ["true"], False))
