"""`corral service`: the unit that it writes, and the calls of systemctl and loginctl.

The machine of a test seldom runs systemd. So two scripts stand for `systemctl` and `loginctl`: they record their arguments, start
the command of the unit in the foreground, and stop it with SIGTERM to its main process alone, as systemd does with
KillMode=process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forkserver
from command import UNTIL_TOLD, Cli, processes_about
from corral.cli.server.systemd_unit import Unit
from eventually import eventually

SYSTEMCTL = """\
#!{python} -IS
import os, re, signal, shlex, sys, time
words = [word for word in sys.argv[1:] if word != "--user"]
folder, units = {folder!r}, {units!r}
with open(folder + "/calls", "a") as calls:
    calls.write(" ".join(["systemctl", *sys.argv[1:]]) + "\\n")
name = words[-1]
wants = units + "/default.target.wants"
command = []
if name.endswith(".service") and os.path.exists(units + "/" + name):
    text = open(units + "/" + name).read()
    command = shlex.split(re.search("^ExecStart=(.*)$", text, re.M)[1].replace("%%", "%").replace("$$", "$"))
    command[:4] = [{corral!r}]  # the same as `python -P -m corral`, in a fork

def main_pid():
    if not os.path.exists(folder + "/started"):
        return 0
    try:
        pid = int(open(command[-1] + "/lock").read().rpartition(" ")[2])
        os.kill(pid, 0)
        return pid
    except (OSError, ValueError):
        return 0

def alive(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

def stop():
    if pid := main_pid():
        os.kill(pid, signal.SIGTERM)
        while alive(pid):
            time.sleep(0.01)

if words[0] == "show" and name == "--value":
    print("252")
elif words[0] == "show":
    print(main_pid())
elif words[0] == "is-active":
    print("active" if os.path.exists(folder + "/started") else "inactive")
elif words[0] == "enable":
    os.makedirs(wants, exist_ok=True)
    os.path.lexists(wants + "/" + name) or os.symlink(units + "/" + name, wants + "/" + name)
elif words[0] == "disable":
    os.unlink(wants + "/" + name)
    stop()
elif words[0] == "restart":
    stop()
    open(folder + "/started", "w").close()
    if os.fork() == 0:
        os.setsid()
        log = os.open(folder + "/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1), os.dup2(log, 2)
        os.execv(command[0], command)
"""
LOGINCTL = """\
#!/bin/sh
echo "loginctl $*" >> {folder}/calls
if [ "$1" = show-user ]; then [ ! -e {folder}/linger ] || echo yes; exit; fi
[ ! -e {folder}/refuse ] || {{ echo "Could not enable linger: Access denied" >&2; exit 1; }}
touch {folder}/linger
"""


@pytest.fixture
def systemd(own: Cli, tmp_path: Path) -> Path:
    """A folder with the scripts, which is first on the PATH of `own`, and with the file `calls`."""
    folder = tmp_path / "systemd"
    folder.mkdir()
    own.environment.pop("XDG_CONFIG_HOME", None)
    units = own.home / ".config" / "systemd" / "user"
    for name, script in (("systemctl", SYSTEMCTL), ("loginctl", LOGINCTL)):
        values = {"python": sys.executable, "folder": str(folder), "units": str(units), "corral": str(forkserver.program("corral"))}
        (folder / name).write_text(script.format(**values))
        (folder / name).chmod(0o755)
    own.environment["PATH"] = f"{folder}:{own.environment['PATH']}"
    return folder


def calls(systemd: Path) -> list[str]:
    recorded = (systemd / "calls").read_text().splitlines()
    (systemd / "calls").unlink()
    return [call for call in recorded if not re.search(" (show|show-user|is-active) ", call)]


def test_uninstall_removes_what_corral_has_made_and_keeps_the_data(own: Cli, systemd: Path) -> None:
    unit = own.home / ".config" / "systemd" / "user" / Unit(own.data, system=False).name
    config, credentials = own.home / ".aws" / "config", own.home / ".aws" / "credentials"
    config.parent.mkdir()
    config.write_text("[profile work]\nregion = eu-west-1\n")
    own("config", "set", "up.port", "0")
    own("config", "set", "up.gpus", "none")
    own("service", "install", "--user")
    own("env", "--profile", "here")
    task_id = own.start_task("--", "sh", "-c", UNTIL_TOLD)
    said = own("uninstall", "--yes", code=1).stderr
    assert "1 task of the Corral" in said and "has not stopped. Nothing was removed" in said and "corral down --stop-tasks" in said
    server = json.loads((own.data / "server.json").read_text())["pid"]
    os.kill(server, signal.SIGKILL)  # the task runs on
    eventually(lambda: not os.path.exists(f"/proc/{server}"))
    assert "1 task of the Corral" in own("uninstall", "--yes", code=1).stderr
    own("service", "install", "--user")
    own("stop", "--wait", task_id)

    assert "Add --yes" in own("uninstall", code=1, given="").stderr and unit.exists()
    listed = own.json("uninstall", "--dry-run", "--purge")
    assert [each["kind"] for each in listed["toBeRemoved"]] == ["unit", "server", "processes", "AWS profile", "data"]
    assert unit.exists() and "[here]" in credentials.read_text()
    calls(systemd)
    removed = own.json("uninstall", "--yes")
    assert [each["kind"] for each in removed["removed"]] == ["unit", "server", "processes", "AWS profile"]
    assert [each["kind"] for each in removed["kept"]] == ["data", "program"]
    assert f"systemctl --user disable --now {unit.name}" in calls(systemd) and not unit.exists()
    assert config.read_text() == "[profile work]\nregion = eu-west-1\n" and not credentials.exists()
    assert (own.data / "state.db").exists() and not processes_about(own.data)
    (own.data / "notes.txt").write_text("of the user")
    own("uninstall", "--purge", "--yes")
    assert [path.name for path in own.data.iterdir()] == ["notes.txt"]
    assert "There is nothing to remove." in own("uninstall").stdout
    (own.data / "node").mkdir()
    assert "is not a data folder of Corral (node)" in own("uninstall", "--purge", "--yes", code=1).stderr


def test_the_unit_starts_corral_and_its_restarts_leave_tasks_running(own: Cli, systemd: Path) -> None:
    name = Unit(own.data, system=False).name
    path = own.home / ".config" / "systemd" / "user" / name
    own("up", "--detach", "--port", "0", "--gpus", "sim:1")  # systemd takes over from this one
    task_id = own.start_task("--gpus", "1", "--", "sh", "-c", UNTIL_TOLD)
    (systemd / "refuse").touch()
    said = own("service", "install", "--user", code=1)
    assert "Corral is up at" in said.stdout and "Corral runs already" in said.stderr and "up.port is 0" in said.stderr
    assert "Access denied" in said.stderr and "sudo loginctl enable-linger" in said.stderr
    assert "KillMode=process\n" in path.read_text() and path.stat().st_mode & 0o777 == 0o644
    assert own.json("ps")[0]["taskArn"].endswith(task_id)
    if os.geteuid() == 0:
        assert f"{path} already starts Corral" in own("service", "install", "--system", code=1).stderr
    state = own("service", "status").stdout
    assert "State: active (process" in state and "Starts at boot: no, only when" in state
    [found] = [each for each in own.json("doctor") if each["check"] == "start at boot"]
    assert found["level"] == "warning" and "enable-linger" in found["advice"]

    (systemd / "refuse").unlink()
    calls(systemd)
    assert f"`systemctl --user restart {name}`" in own("config", "set", "up.gpus", "sim:2").stderr
    commands = [
        "loginctl enable-linger", "systemctl --user daemon-reload", f"systemctl --user enable {name}",
        f"systemctl --user restart {name}",
    ]  # fmt: skip
    again = own("service", "install", "--user").stdout.splitlines()  # restarts Corral with the new setting
    assert again[:5] == [f"wrote {path}", *(f"$ {command}" for command in commands)] and calls(systemd) == commands
    assert own.json("ps")[0]["taskArn"].endswith(task_id) and len(own.json("status")["hosts"][0]["gpus"]) == 2
    status = own.json("service", "status")
    assert (status["path"], status["runByUnit"], status["startsAtBoot"], status["scope"]) == (str(path), True, True, "user")

    removed = own("service", "remove")
    assert removed.stdout.splitlines() == [
        f"$ systemctl --user disable --now {name}", f"$ rm {path}", "$ systemctl --user daemon-reload",
    ]  # fmt: skip
    assert not path.exists() and "does not exist" in own("service", "remove").stdout
    assert "`corral service install` creates it" in own("service", "status", code=3).stderr
    assert own.json("service", "status", code=3)["installed"] is False
    own("up", "--detach")
    assert own.task(task_id)["lastStatus"] == "RUNNING"


def test_a_unit_of_another_program_is_kept(own: Cli, systemd: Path) -> None:
    unit = own.home / ".config" / "systemd" / "user" / Unit(own.data, system=False).name
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    for command in (("install", "--user"), ("remove", "--user")):
        assert f"{unit} was not written by `corral service install`" in own("service", *command, code=1).stderr
    assert unit.read_text() == "[Unit]\n" and calls(systemd) == []


def test_a_machine_without_systemd_gets_advice(own: Cli, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    refused = own("service", "install", "--user", env={"PATH": str(tools)}, code=1).stderr
    assert "there is no systemctl command" in refused and "Nothing was changed" in refused
    (tools / "systemctl").write_text("#!/bin/sh\necho 'System has not been booted with systemd' >&2\nexit 1\n")
    (tools / "systemctl").chmod(0o755)
    refused = own("service", "install", "--user", env={"PATH": str(tools)}, code=1).stderr
    assert "System has not been booted with systemd" in refused
    if not os.path.exists("/run/systemd/system"):
        assert f"`@reboot corral up --detach --data {own.data}`" in refused
    assert not (own.home / ".config").exists()
    assert "cannot be used together" in own("service", "install", "--user", "--system", code=2).stderr


def test_the_printed_unit_is_valid(own: Cli, tmp_path: Path) -> None:
    odd = own.home / 'a b%h$HOME"\\'
    environment = {
        "PATH": "/opt/tools/bin:/usr/bin:/bin",
        "DOCKER_HOST": "unix:///run/a%b.sock",
        "CORRAL_SECRET_KEY": "not for files",
    }
    for scope, target in (("--user", "default.target"), ("--system", "multi-user.target")):
        text = own("service", "install", "--print", scope, "--data", str(odd), env=environment).stdout
        assert f"WantedBy={target}\n" in text and "not for files" not in text
        for line in ("Restart=on-failure", "KillMode=process", "OOMPolicy=continue", "Delegate=yes", "Type=exec"):
            assert f"\n{line}\n" in text
        command = f'"{sys.executable}" "-P" "-m" "corral" "up" "--data" "{own.home}/a b%%h$$HOME\\"\\\\"'
        assert f"\nExecStart={command}\n" in text
        assert '\nEnvironment="DOCKER_HOST=unix:///run/a%%b.sock"\n' in text and '\nEnvironment="PATH=/opt/tools/bin:' in text
        unit = tmp_path / f"corral{scope}.service"
        unit.write_text(text)
        if shutil.which("systemd-analyze"):
            checked = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
            assert not [line for line in checked.stderr.splitlines() if str(unit) in line], checked.stderr
    assert not (own.home / ".config").exists()


def test_units_of_several_folders_have_different_names(tmp_path: Path) -> None:
    assert Unit(Path.home() / ".corral", system=True).path == Path("/etc/systemd/system/corral.service")
    assert Unit(Path("/data/my lab"), system=True).name == "corral-data-my-lab.service"
    assert Unit(Path("/data/my lab"), system=False).mark != Unit(Path("/data/my-lab"), system=False).mark
