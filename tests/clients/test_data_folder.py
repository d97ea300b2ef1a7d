"""The data folder: which folders are refused before anything is written, and who may read what is in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from command import UNTIL_TOLD, Cli, living_in, processes_about
from corral.backup.manifest import STORES
from corral.core.clock import VirtualClock
from corral.core.errors import Refused
from corral.node.procfs import boot_s
from corral.process.data_folder import close_to_others, lock_folder, validate_folder
from corral.server.last_server import unfinished_server
from corral.version import full_version
from harness import Corral, eventually
from store.freeze import FROZEN
from store.frozen_folder import unpack


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All names below a folder, with modes and contents."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted([folder, *folder.rglob("*")])
    }


def test_a_refused_start_writes_nothing(own: Cli, tmp_path: Path) -> None:
    up = ("up", "--detach", "--gpus", "none", "--port")
    own.data.mkdir(mode=0o755)
    (own.data / "notes.txt").write_text("mine")
    before = listing(own.data)
    assert "notes.txt" in own(*up, "0", code=1).stderr
    assert listing(own.data) == before

    (own.data / "notes.txt").unlink()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert "cannot listen on" in own(*up, str(busy.getsockname()[1]), code=1).stderr
    assert listing(own.data) == {".": (own.data.stat().st_mode, b"")}
    own.data.rmdir()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        own(*up, str(busy.getsockname()[1]), code=1)
    assert not own.data.exists()


def test_a_killed_server_is_reported_and_a_folder_with_another_schema_is_refused(own: Cli, tmp_path: Path) -> None:
    up = ("up", "--detach", "--port", "0", "--gpus", "none")
    assert "killed" not in own(*up).stderr
    killed = json.loads((own.data / "server.json").read_text())["pid"]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: not os.path.exists(f"/proc/{killed}"))
    restarted = VirtualClock(time.time() + boot_s() + 3600)  # the clock of a machine that has booted since then
    assert "this machine stopped after 20" in str(unfinished_server(own.data, restarted))
    said = own(*up).stderr
    assert f"the last server (process {killed}) was killed or crashed after 20" in said and "No acknowledged write is lost" in said
    own("backup", str(tmp_path / "backup"))
    own("down")
    assert "killed" not in own(*up).stderr
    own("down")
    for log in (own.data / "server.log", own.data / "node" / "agent.log"):
        lines = log.read_text().splitlines()
        assert lines and all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ", line) for line in lines), lines

    for name in ("state.db", "logs.db", "metrics.db"):
        with closing(sqlite3.connect(own.data / name, isolation_level=None)) as database:
            assert database.execute("SELECT corral FROM schema_origin").fetchall() == [(full_version(),)]
            database.execute("UPDATE schema_origin SET digest = 'other', corral = '0.9 (commit 12ab)'")
        before, why = listing(own.data), f"{own.data / name} was written by Corral 0.9 (commit 12ab), whose database schema differs"
        assert why in own(*up, code=1).stderr
        assert why in own("backup", str(tmp_path / "other"), code=1).stderr
        [finding] = [each for each in own.json("check", code=1) if each["check"] == name]
        assert why in finding["found"] and "restore" not in finding["advice"]
        assert listing(own.data) == before
        with closing(sqlite3.connect(own.data / name, isolation_level=None)) as database:
            database.execute("UPDATE schema_origin SET digest = ?", (STORES[name].digest(),))

    manifest = json.loads((tmp_path / "backup" / "backup.json").read_text())
    assert manifest["version"] == full_version()
    assert manifest["schemas"]["logs.db"] == [STORES["logs.db"].schema_version(), STORES["logs.db"].digest()]
    manifest["schemas"]["logs.db"][1] = "other"
    (tmp_path / "backup" / "backup.json").write_text(json.dumps(manifest))
    new = tmp_path / "new"
    assert "database schema differs" in own("restore", str(tmp_path / "backup"), "--data", str(new), code=1).stderr
    assert not new.exists()
    assert "database schema differs" in own("check", str(tmp_path / "backup"), code=1).stdout


def test_every_file_is_closed_to_others(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("none")
    corral.data.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        corral.start()
    finally:
        os.umask(before)
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="closed")
    s3.put_object(Bucket="closed", Key="k", Body=b"secret")
    corral.client("logs").create_log_group(logGroupName="g")
    open_to_others = []
    for parent, _, names in os.walk(corral.data):
        for path in (Path(parent), *(Path(parent, name) for name in names)):
            with suppress(FileNotFoundError):  # the server deletes files meanwhile
                mode = path.lstat().st_mode
                if not stat.S_ISSOCK(mode) and mode & 0o077:
                    open_to_others.append(f"{path.relative_to(corral.data)} {mode & 0o777:o}")
    assert open_to_others in ([], ["node/host.json 644"], ["node/host.json 666"])
    for name in ("credentials.json", "state.db"):
        (corral.data / name).chmod(0o644)
    corral.data.chmod(0o755)
    corral.kill("corral.server")
    corral.start()  # closes what others could read
    assert {(corral.data / name).stat().st_mode & 0o777 for name in ("credentials.json", "state.db")} == {0o600}
    assert corral.data.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A data folder as a Corral leaves it."""
    folder = tmp_path / "data"
    os.close(lock_folder(folder))
    for name in ("state.db", "credentials.json"):
        (folder / name).write_text("{}")
        (folder / name).chmod(0o600)
    (folder / "node" / "work").mkdir(parents=True, mode=0o700)
    (folder / "blobs" / "0" / "0").mkdir(parents=True, mode=0o700)
    return folder


def test_a_used_folder_is_accepted(used: Path) -> None:
    (used / "state.db.damaged").write_text("moved away by its owner")
    (used / "node" / "work" / "link").symlink_to("/etc/passwd")  # of a task
    (used / "lost+found").mkdir()
    validate_folder(used)
    close_to_others(used)


@pytest.mark.parametrize(
    "name", ["credentials.json", "state.db", "lock", "blobs", "node", "node/work", "blobs/0", "blobs/0/0", "server.log"]
)
def test_symbolic_links_are_refused(used: Path, tmp_path: Path, name: str) -> None:
    path = used / name
    target = tmp_path / "elsewhere"
    if path.exists():
        path.rename(target)
    path.symlink_to(target)
    with pytest.raises(Refused, match="symbolic link"):
        validate_folder(used)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", "credentials.json", "node", "blobs"])
def test_files_of_other_users_are_refused(used: Path, name: str) -> None:
    os.chown(used / name, 12345, 12345)
    with pytest.raises(Refused, match=r"belongs to user 12345.*runs as user"):
        validate_folder(used)


def test_a_folder_that_others_can_write_to_is_refused_unless_it_is_empty(used: Path, tmp_path: Path) -> None:
    used.chmod(0o775)
    with pytest.raises(Refused, match=f"chmod 700 {used}"):
        validate_folder(used)
    new = tmp_path / "new"
    new.mkdir()
    new.chmod(0o777)
    validate_folder(new)


def test_a_file_and_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(Refused, match="is not a folder"):
        validate_folder(tmp_path / "file")
    with pytest.raises(Refused, match="cannot be read: Not a directory"):
        validate_folder(tmp_path / "file" / "data")


STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def test_server_and_tasks_end_with_their_folder(own: Cli) -> None:
    def all_ended() -> bool:
        return not [*processes_about(own.data), *living_in(own.home)]

    own("up", "-d", "--port", "0", "--gpus", "none")
    own.start_task("--", "sh", "-c", STUBBORN)
    shown = own.begin("run", "--", "sh", "-c", UNTIL_TOLD)
    shown.until("stdout", "ready")
    while own.data.exists():  # processes still make files
        shutil.rmtree(own.data, ignore_errors=True)
    code, _, text = shown.end()
    assert code in (7, 125) and f"the data folder {own.data} was deleted" in text and "keep" not in text, text
    eventually(all_ended)
    assert not own.data.exists(), "no process has made it again"

    own("up", "-d", "--port", "0", "--gpus", "none")
    own.start_task("--", "sh", "-c", STUBBORN)
    for pid in (json.loads((own.data / "server.json").read_text())["pid"], own.pid("agent.lock")):
        os.kill(pid, signal.SIGKILL)
    own.data.rename(own.home / "moved")
    own.data.mkdir(mode=0o700)
    eventually(all_ended, "the spawner ends the task by itself")
    assert os.listdir(own.data) == [], "no process has written to the other folder"


@pytest.mark.parametrize("frozen", sorted(FROZEN.glob("folder-*.tar.xz")), ids=lambda path: path.name)
def test_a_server_starts_with_a_folder_of_every_frozen_version(own_corral: Callable[..., Corral], frozen: Path) -> None:
    corral = own_corral("sim:2")
    unpack(frozen, corral.data)
    corral.start()
    assert corral.client("s3").get_object(Bucket="models", Key="weights")["Body"].read() == b"two"
    assert corral.client("ssm").get_parameter(Name="/secret", WithDecryption=True)["Parameter"]["Value"] == "s"
    [event] = corral.client("logs").filter_log_events(logGroupName="/tests")["events"]
    assert event["message"] == "frozen"
