"""The files that `corral run --ship` sends: those of the folder that git does not ignore."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message

FILES_MAX = 200_000


class ShippedFiles(NamedTuple):
    files: list[tuple[str, int]]  # (path in the folder, mode): 0o755 for programs, 0o644 for all others
    links: list[tuple[str, str]]  # (path in the folder, target relative to the link)


def shipped_files(folder: Path) -> ShippedFiles:
    """Return the files and links of a folder, sorted by their paths. Raise a CliError if one of them cannot be sent."""
    files, links, others = list[tuple[str, int]](), list[tuple[str, str]](), 0
    for name in _listed(folder):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise CliError(f"{name!a} is not UTF-8, so --ship cannot send it: rename it, or add it to .gitignore.") from None
        try:
            about = os.lstat(folder / name)
        except FileNotFoundError:
            continue  # git still knows a file that was deleted
        if stat.S_ISLNK(about.st_mode):
            links.append((name, _target(folder, name)))
        elif stat.S_ISREG(about.st_mode):
            files.append((name, 0o755 if about.st_mode & stat.S_IXUSR else 0o644))
        else:
            others += 1
        if len(files) > FILES_MAX:
            raise CliError(f"{folder} has more than {FILES_MAX:,} files: add folders such as .venv to .gitignore.")
    if not (files or links) and any(entry.name != ".git" for entry in os.scandir(folder)):
        raise CliError(
            f"There is nothing to send: git ignores all files of {folder}, or it has none. Run in another folder (--workdir), or "
            "change .gitignore."
        )
    if others:
        print_message(f"--ship does not send {others} {'sockets, pipes and devices' if others > 1 else 'socket, pipe or device'}")
    return ShippedFiles(sorted(files), sorted(links))


def _target(folder: Path, name: str) -> str:
    """Return the target of a link, relative to the link. Refuse a link out of the folder."""
    inside, link = os.path.realpath(folder), folder / name
    target = os.readlink(link)
    reached, direct = os.path.realpath(link), os.path.normpath(os.path.join(os.path.realpath(link.parent), target))
    if not all(f"{each}/".startswith(f"{inside}/") for each in (reached, direct)):
        raise CliError(
            f"{name} is a link to {target}, out of the folder, so --ship refuses it: replace it by the file, or add it to "
            ".gitignore."
        )
    return os.path.relpath(direct, os.path.realpath(link.parent))


def _listed(folder: Path) -> Iterator[str]:
    """Yield the paths of all files that git does not ignore. Without a repository, the rules of its .gitignore files apply, too."""
    try:
        in_repository = _git(folder, "rev-parse", "--is-inside-work-tree").strip() == b"true"
    except FileNotFoundError:
        yield from _walked(folder)
        return
    except CliError:
        in_repository = False
        if (folder / ".git").exists():
            raise  # for example, git distrusts a repository of another account
    if in_repository:
        yield from _listed_by_git(folder, "--cached", "--others")
        return
    with TemporaryDirectory(prefix="corral-ship-") as name:
        _git(folder, "init", "--quiet", "--bare", name)
        yield from _listed_by_git(folder, "--others", repository=(f"--git-dir={name}", "--work-tree=."))


def _listed_by_git(folder: Path, *kinds: str, repository: tuple[str, ...] = ()) -> Iterator[str]:
    text = _git(folder, *repository, "ls-files", "-z", "--exclude-standard", *kinds)
    for each in dict.fromkeys(text.split(b"\0")):
        name = os.fsdecode(each).rstrip("/")
        path = folder / name
        if name and path.is_dir() and not path.is_symlink():  # another repository: a submodule, or a clone
            yield from (f"{name}/{inner}" for inner in _listed(path))
        elif name:
            yield name


def _git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise CliError(f"git cannot list the files of {folder}: {os.fsdecode(done.stderr).strip()}")
    return done.stdout


def _walked(folder: Path) -> Iterator[str]:
    """Yield all files, on a machine without git."""
    for parent, folders, names in os.walk(folder):
        if ".gitignore" in names:
            raise CliError(f"{parent} has a .gitignore, and git, which reads it, is not installed: install git.")
        folders[:] = [name for name in folders if name != ".git"]
        linked = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in (*names, *linked))
