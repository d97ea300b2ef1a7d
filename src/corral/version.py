"""The version of Corral, and the git commit from which it was installed."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import corral

COMMIT_FILE = "commit.txt"  # setup.py writes it into wheels and source archives
SHOWN = 12  # characters of a commit
GIT_S = 5.0


@cache
def full_version() -> str:
    """Return the version and the commit: `0.1.0 (commit 0123456789ab)`. If the commit is unknown, return only the version."""
    found = _commit(Path(corral.__file__).parent)
    return f"{corral.__version__} (commit {found[:SHOWN]})" if found else corral.__version__


def _commit(package: Path) -> str:
    """Return the commit of a checkout, or the commit in the file of an installed package."""
    repository = package.parent.parent
    if package.parent.name == "src" and (repository / ".git").exists():
        return _git(repository)
    try:
        return (package / COMMIT_FILE).read_text().strip()
    except OSError:
        return ""


def _git(repository: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a git hook sets GIT_DIR
    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_S, env=environment
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
