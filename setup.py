"""Writes the git commit into wheels and source archives, so that `corral --version` can print it. Everything else is in
pyproject.toml.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
FILE = "corral/commit.txt"


def write_commit(package_root: Path) -> None:
    """Write the commit of this checkout below a folder. Outside a checkout, keep the file of the source archive."""
    if not (ROOT / ".git").exists():
        return
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    if done.returncode == 0:
        (package_root / FILE).write_text(done.stdout)


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))


class ArchiveWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "src")


setup(cmdclass={"build_py": BuildWithCommit, "sdist": ArchiveWithCommit})
