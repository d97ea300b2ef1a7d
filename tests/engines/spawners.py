"""Spawners with each kind of cgroups, and without any."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from corral.node import node_folder
from engines.nodes import NodeFolder
from eventually import eventually

KINDS = ("both", "version 1", "version 2", "none")


def skip_without(kind: str) -> None:
    if kind in ("both", "version 1") and not os.access("/sys/fs/cgroup/memory", os.W_OK):
        pytest.skip("needs cgroups of version 1 and root")
    if kind in ("both", "version 2") and not os.access("/sys/fs/cgroup/unified/cgroup.procs", os.W_OK):
        pytest.skip("needs the unified hierarchy in /sys/fs/cgroup/unified, and root")


def cgroup_root(node: NodeFolder, kind: str) -> str:
    if kind == "version 1":  # as if the unified hierarchy were not mounted
        root = node.data / "cgroup"
        root.mkdir(exist_ok=True)
        for name in ("memory", "cpu"):
            if not (root / name).exists():
                (root / name).symlink_to(f"/sys/fs/cgroup/{name}")
        return str(root)
    return {"both": "/sys/fs/cgroup", "version 2": "/sys/fs/cgroup/unified", "none": "/nowhere"}[kind]


def start_spawner(node: NodeFolder, kind: str) -> None:
    """The agent finds a spawner that is running, and starts none."""
    command = [sys.executable, "-m", "corral.node.spawner", "--dir", str(node.node), "--cgroup-root", cgroup_root(node, kind)]
    with open(node.node / "spawner.log", "ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    eventually(lambda: answers(node), "a spawner")


def answers(node: NodeFolder) -> bool:
    with contextlib.suppress(OSError), node_folder.connect(node.node, "spawner.sock"):
        return True
    return False
