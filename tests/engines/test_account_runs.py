"""Runs of other Unix accounts. `bench/accounts.py` has many more attempts, with accounts that it creates."""

from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path

import pytest

from corral.channel.command_relay import EXIT, OUTPUT
from corral.model.agent_protocol import Execute
from corral.model.run import HealthCheck
from corral.node import account_folders
from corral.node.account_process import Account, limits_of, mask_of
from corral.node.engine import CannotExecute
from corral.process.data_folder import ACCOUNT_WORK, account_work_folder
from engines.drivers import ENGINES, Driver
from engines.nodes import kill, shell, spec

ACCOUNTS = [each for each in pwd.getpwall() if each.pw_uid not in (0, os.getuid())][:2]
ANN, BOB = ACCOUNTS if len(ACCOUNTS) == 2 else (None, None)
needs_root = pytest.mark.skipif(os.geteuid() != 0 or BOB is None, reason="needs root, and two other Unix accounts")
UNLIMITED = resource.RLIM_INFINITY

WHO = """
grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb)' /proc/self/status | tr -s '\\t ' ' '
echo $HOME $USER $LOGNAME $SHELL $TMPDIR
for each in /proc/self/fd/*; do [ -e $each ] && echo fd ${each##*/}; done
umask; pwd; stat -c '%a %u' .
echo again >> /dev/stderr; echo file > file
"""


@needs_root
def test_a_run_has_the_identity_of_its_account_and_nothing_of_root(process_driver):
    ended = process_driver.run(shell("one", WHO, account=ANN.pw_name)).observed
    work = account_folders.work_of(process_driver.node.node, "one")
    assert ended.exit_code == 0, process_driver.node.output("one")
    lines = process_driver.node.output("one").splitlines()
    groups = " ".join(map(str, sorted(os.getgrouplist(ANN.pw_name, ANN.pw_gid))))
    assert lines[:2] == [f"Uid: {' '.join([str(ANN.pw_uid)] * 4)}", f"Gid: {' '.join([str(ANN.pw_gid)] * 4)}"]
    assert lines[2].split()[1:] == groups.split()
    assert all(line.endswith(" 0000000000000000") for line in lines[3:7])
    assert lines[7] == f"{ANN.pw_dir} {ANN.pw_name} {ANN.pw_name} {ANN.pw_shell}"
    assert [line for line in lines if line.startswith("fd ")] == ["fd 0", "fd 1", "fd 199", "fd 2"]
    assert work in lines and f"700 {ANN.pw_uid}" in lines and lines[-1] == "again"
    process_driver.engine.forget(["one"])
    process_driver.until(lambda: not Path(work).exists(), "the folder is removed")


@needs_root
def test_another_account_reaches_nothing_of_a_run(process_driver):
    node = process_driver.node
    secret = {"environment": {"SECRET": "of-ann"}, "account": ANN.pw_name}
    process_driver.engine.start([shell("ann", "echo of-ann > file; echo of-ann; exec sleep 300", **secret)])
    pid = process_driver.started("ann").observed.pid
    process_driver.printed("ann", "of-ann")
    work, data = account_folders.work_of(node.node, "ann"), node.node
    spawner = node.spawner_pid()
    attempts = [
        *(f"cat /proc/{each}/{name}" for each in (pid, spawner) for name in ("environ", "maps", "mem", "io", "auxv")),
        *(f"ls /proc/{each}/{name}/." for each in (pid, spawner) for name in ("fd", "cwd", "root", "map_files")),
        *(f"kill -{number} {each}" for each in (pid, spawner, -pid) for number in (0, 9, 19)),
        *(f"cat {path}" for path in (f"{work}/file", data / "journal", data / "output/ann", f"/proc/{pid}/fd/1")),
        *(f"ls {path}" for path in (work, data, data.parent, account_work_folder(data), ACCOUNT_WORK)),
        *(f"touch {path}/x" for path in (work, data, account_work_folder(data), ACCOUNT_WORK)),
        f"mv {work} {work}.old", f"ln -s /etc {account_work_folder(data)}/link",
        "cat /proc/$$/fd/1", "chmod 777 /proc/$$/fd/1", "ln -L /proc/$$/fd/1 /tmp/corral-test-link",
        *(f"echo $$ > {group}/cgroup.procs" for group in (data / "cgroups").read_text().split()),
    ]  # fmt: skip
    tries = "\n".join(f"({attempt}) >/dev/null 2>&1 && echo 'done: {attempt}'" for attempt in attempts)
    assert process_driver.run(shell("bob", f"{tries}\necho end", account=BOB.pw_name)).observed.exit_code == 0
    assert node.output("bob") == "end\n"
    control = f"cat /proc/{pid}/environ {work}/file; kill -9 {pid}"
    process_driver.run(shell("own", control, account=ANN.pw_name))
    assert node.output("own").count("of-ann") == 2
    assert process_driver.ended("ann").observed.exit_code == 137


@needs_root
@pytest.mark.parametrize(
    "how, reason",
    [
        ({"account": "no-such-account"}, "this host has no Unix account no-such-account: create it there"),
        ({"account": "root"}, "the Unix account root has the user id 0"),
        ({"command": ["no-such-command"]}, 'exec: "no-such-command": executable file not found in $PATH'),
        ({"command": ["/etc/passwd"]}, 'exec: "/etc/passwd": permission denied'),
        ({"command": ["true", "a\0b"]}, 'exec: "true": embedded null byte'),
        ({"command": ["true", "x" * 200_000]}, 'exec: "true": argument list too long'),
        ({"working_directory": "closed"}, "permission denied"),
        ({"working_directory": "link"}, "permission denied"),
    ],
)
def test_a_start_that_fails_for_the_account(process_driver, tmp_path, how, reason):
    (tmp_path / "closed").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "closed")
    how = {"account": ANN.pw_name, "command": ["true"], **how}
    if "working_directory" in how:
        how["working_directory"] = str(tmp_path / how["working_directory"])
    words = how.pop("command")
    observed = process_driver.run(spec("one", *words, **how)).observed
    assert observed.reason.startswith("CannotStartContainerError: ") and reason in observed.reason
    assert (observed.started_at_s, observed.exit_code, observed.pid) == (None, None, None)


@needs_root
def test_a_run_that_is_stopped_at_once_ends(process_driver):
    for number in range(5):
        process_driver.engine.start([shell(f"run{number}", "sleep 300", account=ANN.pw_name)])
        process_driver.engine.stop([f"run{number}"])
    for number in range(5):
        ended = process_driver.ended(f"run{number}").observed
        assert ended.exit_code == 143 or ended.reason == "stopped before it was started"


@needs_root
def test_commands_of_a_session_are_of_the_account(process_driver):
    run = shell("one", "echo ready; sleep 300", account=ANN.pw_name, environment={"LD_PRELOAD": "/no/such/library"})
    process_driver.engine.start([run])
    process_driver.started("one")
    said = process_driver.execute(Execute("a", run, ["sh", "-c", "id -u; pwd; echo $LD_PRELOAD; exit 4"], has_terminal=False))
    assert said[OUTPUT].decode().split() == [
        str(ANN.pw_uid), account_folders.work_of(process_driver.node.node, "one"), "/no/such/library",
    ]  # fmt: skip
    assert said[EXIT] == b"\0\0\0\4"
    said = process_driver.execute(Execute("b", run, ["id", "-un"], has_terminal=True), window=(24, 80))
    assert said[OUTPUT].split()[-1] == ANN.pw_name.encode()
    with pytest.raises(CannotExecute, match="no Unix account"):
        gone = shell("one", "", account="no-such-account")
        process_driver.execute(Execute("c", gone, ["true"], has_terminal=False))


@needs_root
def test_health_checks_are_of_the_account_and_its_output_is_kept(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    check = HealthCheck(["sh", "-c", f"test $(id -u) = {ANN.pw_uid} && test -e well"], interval_s=0.1, retries=1)
    kept = {"ships_logs": True, "output_file": "kept.log"}
    core.order(shell("one", ": > well; echo said; exec sleep 300", health=check, account=ANN.pw_name, **kept))
    core.until(lambda: "one" in core.runs and core.runs["one"].health == "HEALTHY", "healthy")
    core.order(stop=["one"])
    core.ended("one")
    assert core.texts["one"] == ["said"]
    core.until(lambda: not os.path.lexists(account_folders.work_of(node.node, "one")), "forgotten")
    assert (node.data / "outputs/kept.log").read_text() == "said\n"


@needs_root
def test_a_run_survives_the_death_of_the_spawner_and_can_be_stopped(node):
    first = Driver(ENGINES["process"], node)
    first.engine.start([shell("one", "echo $$; sleep 300 & exec sleep 300", account=ANN.pw_name)])
    pid = first.started("one").observed.pid
    kill(node.spawner_pid())
    first.until(lambda: first.engine.observe()["one"].alive and not first.engine.problem, "adopted")
    first.close()
    second = Driver(ENGINES["process"], node)
    assert second.started("one").observed.pid == pid
    second.engine.stop(["one"])
    ended = second.ended("one").observed
    assert ended.exit_code is None and "exit status was lost" in ended.reason
    second.close()


def test_the_limits_of_an_account():
    """Lines for the account are stronger than those of its groups, and these than those for all."""
    account = Account("ann", 1000, 100, "/home/ann", "/bin/sh")
    lines = [
        "* hard nofile 500", "* soft nofile 200", "ann soft nofile 300", "* soft nofile 100", "1000:2000 - nproc 64",
        "3000: - nproc 1", "@100:200 - core 1", "@7:8 - core 2", "bob - stack 1", "* - priority 5", "* soft data x", "* soft",
        "* soft unknown 5", "ann - memlock unlimited", "* - memlock 1", ":1000 - sigpending 9",
    ]  # fmt: skip
    assert limits_of(account, [100], [line.split() for line in lines]) == {
        "nofile": (300, 500), "nproc": (64, 64), "core": (1024, 1024), "priority": (5, 5), "memlock": (UNLIMITED, UNLIMITED),
        "sigpending": (9, 9),
    }  # fmt: skip
    assert limits_of(account, [100], [line.split() for line in [*lines, "ann -"]]) == {}


@pytest.mark.parametrize(
    "text, mask", [("", 0o022), ("UMASK 077", 0o077), ("UMASK x", 0o022), ("UMASK", 0o022), ("OTHER 1", 0o022)]
)
def test_the_mask_of_an_account(text, mask):
    assert mask_of([line.split() for line in text.splitlines()]) == mask
