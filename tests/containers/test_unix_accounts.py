"""Containers of users with paths of the host: they have the rights of the user's Unix account, and no more."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pwd import getpwnam
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from clients.test_iam_users import client_of
from command import BIN
from containers.running import Containers, shell
from corral.node import mount_calls
from corral.node.account_process import Account
from corral.node.host_mounts import CannotMount, HostMounts, HostPath, open_as
from engines.dockerd import Dockerd, busybox_files, layer
from harness import Corral, eventually

pytestmark = [
    pytest.mark.xdist_group("docker"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes Unix accounts, and runs processes as them"),
]
IMAGE = "with-su:1"
NONE = "0000000000000000"
LOOK = """
echo "ids $(id -u) $(id -G)"
echo "rights $(grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status | tr -d '[:alpha:]:' | xargs)"
echo "read $(cat /own/a) $(cat /shared/f)"
echo new > /own/new && echo "wrote own"
(echo x > /shared/f) 2> /dev/null || echo "shared is read-only"
(echo x > /own/kept/f) 2> /dev/null || echo "kept is not writable"
echo > /tmp/t && echo "temporary files"
echo "su $(su -c id 2>&1 | xargs)"
"""


class Ann:
    """A user of Corral with a Unix account, and folders in which the account has different rights."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        entry = getpwnam(name)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid
        self.account = Account(name, self.uid, self.gid, entry.pw_dir, entry.pw_shell)
        folder.chmod(0o755)
        for part in ("own", "shared", "secret", "lab"):
            (folder / part).mkdir()
        os.chown(folder / "own", self.uid, self.gid)
        (folder / "own" / "a").write_text("mine")
        (folder / "own" / "kept").mkdir()
        (folder / "shared" / "f").write_text("ours")
        (folder / "secret").chmod(0o700)
        (folder / "secret" / "f").write_text("theirs")

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def ann() -> Iterator[Ann]:
    name, folder = f"corral-{uuid4().hex[:8]}", Path(tempfile.mkdtemp(prefix="corral-accounts-"))
    group = f"{name}-lab"
    subprocess.run(["groupadd", group], check=True)
    subprocess.run(["useradd", "--no-create-home", "--groups", group, name], check=True)
    try:
        made = Ann(name, folder)
        shutil.chown(folder / "lab", group=group)
        (folder / "lab").chmod(0o770)
        yield made
    finally:
        subprocess.run(["userdel", name], check=True)
        subprocess.run(["groupdel", group], check=True)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def clients(corral: Corral, ann: Ann) -> dict[str, Any]:
    """Clients that sign with the key of the user, and the key."""
    iam = corral.client("iam")
    iam.create_user(UserName="ann")
    iam.add_user_to_group(GroupName="users", UserName="ann")
    key = iam.create_access_key(UserName="ann")["AccessKey"]
    return {"ecs": client_of(corral, key, "ecs"), "logs": client_of(corral, key, "logs"), "key": key}


def image_with_su(group_file: str) -> bytes:
    """An image with a program that becomes root, and files that belong to each user."""
    files, links = busybox_files()
    files["bin/su"] = files["bin/busybox"]
    files["etc/passwd"] = b"root::0:0::/:/bin/sh\n"
    files["etc/group"] = group_file.encode()
    del links["bin/su"]
    after = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(layer(files, links))) as before, tarfile.open(fileobj=after, mode="w") as image:
        for each in before:
            each.mode |= stat.S_ISUID if each.name == "bin/su" else 0o666
            image.addfile(each, before.extractfile(each) if each.isfile() else None)
    return after.getvalue()


def volumes(ann: Ann, **points: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes and mount points for paths of the host: name in the container → path below the folder of the test."""
    mounts = [{"sourceVolume": name, "containerPath": f"/{name}"} for name in points]
    return [{"name": name, "host": {"sourcePath": ann.path(path)}} for name, path in points.items()], mounts


def test_a_container_has_the_rights_of_the_account(corral: Corral, dockerd: Dockerd, ann: Ann, clients: dict[str, Any]) -> None:
    dockerd("import", "-", IMAGE, data=image_with_su("root:x:0:\n"))
    dockerd("import", "-", "hostile:1", data=image_with_su(f"root:x:0:\n{ann.gid}:x:0:\n"))
    control = dockerd("run", "--rm", "--net=none", "--user", f"{ann.uid}:{ann.gid}", IMAGE, "su", "-c", "id -u")
    assert control == "0", "without the restrictions, the program of the image becomes root"
    run = Containers(corral)
    run.ecs, run.logs = clients["ecs"], clients["logs"]
    given, mounts = volumes(ann, own="own", shared="shared")
    with pytest.raises(ClientError, match="corral user unix NAME ACCOUNT"):
        run.start(shell("true", mountPoints=mounts), volumes=given)
    for account in ("root", "no such account"):
        with pytest.raises(ClientError, match="The Unix account is not valid"):
            corral.client("corral").set_unix_account(user="ann", account=account)
    corral.own("SetUnixAccount", user="ann", account="corral-absent")
    eventually(lambda: corral.own("ListUnixAccounts")["accounts"][0]["missingOn"], "the host lacks the account")
    with pytest.raises(ClientError, match="corral-absent, the Unix account of its owner"):
        run.start(shell("true", mountPoints=mounts), volumes=given)
    corral.own("SetUnixAccount", user="ann", account=ann.name)
    eventually(lambda: not corral.own("ListUnixAccounts")["accounts"][0]["missingOn"], "the host has the account")

    check = {"command": ["CMD-SHELL", "id -u > /own/health"], "interval": 5, "startPeriod": 0}
    container = shell(f"{LOOK}sleep 300", image=IMAGE, mountPoints=mounts, user="0", healthCheck=check)
    [arn] = run.start(container, volumes=given, enableExecuteCommand=True)
    run.until(arn)
    key, task_id = clients["key"], arn.rpartition("/")[2]
    keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    look = f"echo {ann.gid}:x:0: >> /etc/group; id -u; id -G; su -c id; grep -E 'CapBnd|NoNew' /proc/self/status"
    command = [BIN / "corral", "exec", task_id, "--", "sh", "-c", look]
    subprocess.run(command, env=corral.environment | keys, capture_output=True)
    inside = subprocess.run(command, env=corral.environment | keys, capture_output=True, text=True).stdout.split()
    assert inside[:2] == [str(ann.uid), str(ann.gid)] and inside[-4:] == ["CapBnd:", NONE, "NoNewPrivs:", "1"], inside
    eventually((ann.folder / "own" / "health").exists, "the health check has run")
    assert (ann.folder / "own" / "health").stat().st_uid == ann.uid
    assert not mount_calls.mounts_below(corral.data / "node" / "mounts"), "the binds are gone while the container runs"
    run.stop(arn)
    printed = run.printed(arn)
    assert printed[:4] == [f"ids {ann.uid} {ann.gid}", f"rights {NONE} {NONE} 1", "read mine ours", "wrote own"], printed
    assert printed[4:7] == ["shared is read-only", "kept is not writable", "temporary files"], printed
    assert "suid" in printed[7] and "uid=0" not in printed[7], printed
    assert (ann.folder / "own" / "new").stat().st_uid == ann.uid and (ann.folder / "shared" / "f").read_text() == "ours"

    (ann.folder / "own" / "link").symlink_to(ann.path("secret"))
    for path, fault in (("secret", "Permission denied"), ("own/link", "Permission denied"), ("absent", "No such file")):
        given, mounts = volumes(ann, it=path)
        stopped = run(shell("true", mountPoints=mounts), volumes=given)
        assert f"the account {ann.name} cannot open {ann.path(path)}: {fault}" in stopped["containers"][0]["reason"]
    given, mounts = volumes(ann, own="own")
    stopped = run(shell("id", mountPoints=mounts, image="hostile:1"), volumes=given)
    assert f"a group with the name {ann.gid}" in stopped["containers"][0]["reason"]
    added = {"capabilities": {"add": ["CHOWN"]}}
    stopped = run(shell("true", mountPoints=mounts, linuxParameters=added), volumes=given)
    assert "remove linuxParameters.capabilities.add: CHOWN" in stopped["containers"][0]["reason"]
    with pytest.raises(ClientError, match="RunOnHost"):
        run.start(shell("true", mountPoints=mounts, privileged=True), volumes=given)


def test_a_path_that_is_swapped_after_it_was_opened_has_no_effect(ann: Ann, tmp_path: Path) -> None:
    """The lab's folder is only for the second group of the account. A new agent removes what a killed one has left."""
    (ann.folder / "own" / "data").mkdir()
    (ann.folder / "own" / "data" / "f").write_text("opened")
    [opened] = open_as(ann.uid, ann.gid, [ann.path("own/data")])
    (ann.folder / "own" / "data").rename(ann.folder / "own" / "away")
    (ann.folder / "own" / "data").symlink_to(ann.path("secret"))
    target = tmp_path / "target"
    target.mkdir()
    mount_calls.bind_descriptor(opened.descriptor, target, read_only=False)
    try:
        assert (target / "f").read_text() == "opened"
    finally:
        mount_calls.unmount(target)
        os.close(opened.descriptor)

    killed = HostMounts(tmp_path)
    try:
        bound = killed.bind("run", ann.account, [HostPath(ann.path("own"), True), HostPath(ann.path("lab"), False)])
        [lab] = set(os.getgrouplist(ann.name, ann.gid)) - {ann.gid}
        assert (bound.gid, [each.read_only for each in bound.paths]) == (lab, [True, False])
        again = killed.bind("second", ann.account, [HostPath("/", True)])
        below = [str(point) for point, _ in mount_calls.mounts_below(Path(again.paths[0].source))]
        assert not [point for point in below if point.endswith("mounts/run/0")], "a bind contains no other bind"
    finally:
        HostMounts(tmp_path).release_all()
    assert not mount_calls.mounts_below(tmp_path) and not os.listdir(tmp_path / "mounts")
    assert (ann.folder / "own" / "a").read_text() == "mine"
    os.chown(ann.folder / "shared", 0, ann.gid)
    (ann.folder / "shared").chmod(0o750)
    with pytest.raises(CannotMount, match="none of the groups"):
        killed.bind("run", ann.account, [HostPath(ann.path("shared"), True), HostPath(ann.path("lab"), True)])
