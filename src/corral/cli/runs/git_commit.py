"""The git commit of a folder, which `corral run` stores as a tag of the task."""

from __future__ import annotations

import os
import subprocess

TIMEOUT_S = 1.0  # in a very large repository, git may need longer to find changed files


class GitCommit:
    """Runs git while `corral run` does other work. `read` returns the result: `abc1234`, or `abc1234+dirty` if files have changed.

    The result is empty if the folder is not in a git repository, or if git is not installed. If git needs longer than TIMEOUT_S to
    find changed files, the result has no `+dirty`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # `--exclude *` ignores tags, so that the result is always a commit.
        self._process = self._start("describe", "--always", "--abbrev=7", "--dirty=+dirty", "--exclude=*")

    def _start(self, *arguments: str) -> subprocess.Popen[str] | None:
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # do not write to the repository
        try:
            return subprocess.Popen(
                ["git", "-C", self._folder, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
            )  # fmt: skip
        except OSError:
            return None

    def read(self) -> str:
        found = _output(self._process)
        return found if found is not None else _output(self._start("rev-parse", "--short=7", "HEAD")) or ""


def _output(process: subprocess.Popen[str] | None) -> str | None:
    """Return the output of git. Return None if git has not ended within the time limit, and "" if it has failed."""
    if process is None:
        return ""
    try:
        out, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    return out.strip() if process.returncode == 0 else ""
