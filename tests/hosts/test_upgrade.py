"""The upgrade of a host: a version that does not fit or does not start changes nothing."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

import corral
from corral.core.errors import Refused
from corral.model.agent_protocol import UpgradeOrder, Wheel
from corral.model.run import RunSpec
from corral.model.shipped_folder import VARIABLE
from corral.node.process_engine import launch_of
from corral.node.upgrade import install
from corral.node.wheel_choice import satisfies
from corral.server.upgrade_files import UpgradeFiles, packed_wheel
from each import check_each

INFO = f"corral-{corral.__version__}.dist-info"


def changed(**files: str) -> bytes:
    """The wheel of Corral with other contents of some files."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed_wheel())) as before, zipfile.ZipFile(made, "w") as after:
        for name in {*before.namelist(), *files}:
            after.writestr(name, files.get(name) if name in files else before.read(name))
    return made.getvalue()


def wheel_of(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
    return made.getvalue()


def upgrade(data: Path, wheel: bytes, *others: str, damaged: bool = False) -> Path:
    """Install a wheel of Corral, with wheels of these names on offer."""
    contents = {"corral-9.9-py3-none-any.whl": wheel} | {name: wheel_of(name.partition("-")[0]) for name in others}
    files = [Wheel(name, sha256(content).hexdigest()) for name, content in contents.items()]
    by_digest = {file.sha256: content for file, content in zip(files, contents.values(), strict=True)}
    arguments = ["--data", str(data), "--gpus", "none", "--runtime", "process"]
    return install(data, UpgradeOrder("9.9", files), lambda digest: by_digest[digest][damaged:], arguments)


BROKEN = """
import sys
from hosts.test_upgrade import Path, Refused, changed, upgrade
for module in ("agent", "gateway_keeper"):
    try:
        upgrade(Path(sys.argv[1]), changed(**{f"corral/node/{module}.py": f"raise RuntimeError('{module} is broken')"}))
    except Refused as why:
        print(why)
"""


def test_a_version_that_does_not_start_is_refused(tmp_path: Path) -> None:
    # Not in this process, in which the trial would be a fork of an interpreter that has imported this version.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", BROKEN, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    why = "The new version does not start: RuntimeError: {} is broken."
    assert done.stdout.splitlines() == [why.format(module) for module in ("agent", "gateway_keeper")], done.stderr
    assert not any((tmp_path / "versions").iterdir())


def test_a_version_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    needs = changed(**{f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: corral\nVersion: 9.9\nRequires-Dist: nosuch<3,>=2.1\n"})
    wheels = {
        "the wheel": packed_wheel(), "no wheel": b"no wheel", "outside": changed(**{"../outside": "x"}),
        "needs": needs,
    }  # fmt: skip

    def refused(case: tuple[str, str, bool, str]) -> None:
        wheel, other, damaged, why = case
        with pytest.raises(Refused, match=re.escape(why)):
            upgrade(tmp_path, wheels[wheel], *filter(None, [other]), damaged=damaged)
        assert not any((tmp_path / "versions").iterdir())

    cases = [
        ("the wheel", "", True, "has arrived damaged"),
        ("no wheel", "", False, "is not a wheel"),
        ("outside", "", False, "contains the path ../outside"),
        ("needs", "nosuch-2.0-py3-none-any.whl", False, "needs nosuch<3,>=2.1 for Python 3"),
        ("needs", "nosuch-2.5-cp39-cp39-manylinux_2_17_x86_64.whl", False, "needs nosuch"),
        ("needs", "nosuch-2.5-py3-none-win_amd64.whl", False, "needs nosuch"),
    ]
    check_each(cases, refused)
    for name in ("unused", "used"):
        (tmp_path / "versions" / name).mkdir()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"PYTHONPATH": str(tmp_path / "versions" / "used")}) as spawner:
        folder = upgrade(tmp_path, needs, "nosuch-2.5-py3-none-any.whl")
        assert {each.name for each in (tmp_path / "versions").iterdir()} == {"current", "used", folder.name}
        spawner.communicate()
    assert (folder / "nosuch").is_dir() and json.loads((tmp_path / "versions/current").read_bytes())["folder"] == folder.name
    assert not (tmp_path / "outside").exists()


def test_conditions_of_dependencies() -> None:
    def check(case: tuple[str, str, bool]) -> None:
        version, conditions, expected = case
        assert satisfies(version, conditions) == expected

    check_each(
        [("1.44.2", ">=1.44,<1.45", True), ("1.45.0", "<1.45,>=1.44", False), ("2", ">=2.0", True), ("2.0.1", "==2.0.*", True),
         ("0.19", ">=0.6.3", True), ("3.9", "!=3.9", False), ("1.5", "~=1.4", True), ("2.0", "~=1.4", False), ("13.7", "", True)],
        check,
    )  # fmt: skip


def test_the_wheel_is_packed_with_the_same_bytes(tmp_path: Path) -> None:
    packed_wheel.cache_clear()
    first = packed_wheel()
    packed_wheel.cache_clear()
    assert packed_wheel() == first
    [wheel] = UpgradeFiles("").order().files
    assert wheel.sha256 == sha256(first).hexdigest()
    with pytest.raises(Refused, match="does not exist"):
        UpgradeFiles(str(tmp_path / "none")).order()


def test_shipped_folders_are_fetched_by_the_version_of_the_agent(tmp_path: Path) -> None:
    """Not by that of the installation, which may not know them."""
    folder = tmp_path / "versions" / "new"
    (folder / "corral" / "node").mkdir(parents=True)
    for name in ("corral/__init__.py", "corral/node/__init__.py"):
        (folder / name).touch()
    (folder / "corral/node/shipped_folder.py").write_text("import sys\nprint('new', *sys.argv[1:])\n")
    spec = RunSpec("r", "t", "c", "", ["./train"], {VARIABLE: "manifest"}, [])

    def started(environment: dict[str, str]) -> str:
        command = launch_of(spec, environment, tmp_path / "node").command
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True).stdout

    assert started({"PYTHONPATH": str(folder)}) == f"new {tmp_path}/node/shipped manifest ./train\n"
    assert "new" not in started({"PYTHONPATH": str(folder / "corral" / "..")[1:]})  # a path of the user
