"""The data folder: the names of its files, its lock, and the checks before Corral uses it.

Only the owner of a data folder may use it, because it contains keys, and because the server trusts its files. Corral refuses a
folder that belongs to another user or contains files of other programs. It refuses the folder before it writes anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pwd import getpwuid
from typing import Any

from corral.core.errors import Refused

DATABASES = ("state.db", "logs.db", "metrics.db")
CREDENTIALS, SESSIONS, SECRETS = "credentials.json", "sessions.json", "secrets.json"
CONSOLE = "console.json"  # the sessions of the console (`server/console/sessions.py`)
KEY_FILES = (CREDENTIALS, SESSIONS, SECRETS)
CONFIGURATION = "corral.toml"  # written by the user and by `corral up` (`configuration/`)
CONFIGURATION_NEW = "corral.toml.new"  # exists while corral.toml is replaced
LOCK = "lock"
BLOBS_LOCK = "blobs.lock"  # see `blobs/blob_lock.py`
RESTORING = "restoring"  # this file exists until a restore is complete
RESTORED = "restored.json"  # contains the path of the original data folder, if this folder was restored
OUTPUTS = "outputs"  # the output of runs (`node/kept_outputs.py`)
DOOR = "door"  # the keys of the authority that hosts trust, and the socket of the door (`server/door/`)
AUTHORITY = "authority.pem"  # in `door`: the key with which the server signs the certificates of hosts
AUDIT = "audit"  # who called which operation (`audit/`)
FOLDERS = (AUDIT, "blobs", DOOR, "functions", "node", OUTPUTS)
VERSIONS = "versions"  # in the folder of a joined host: the versions to which it was upgraded (node/upgrade.py)
ACCOUNT_WORK = "/var/lib/corral-work"  # has the work folders of runs of other Unix accounts, which cannot reach the data folder
JOINED = "joined.json"  # only in the folder of a host that has joined from another machine (`node/server_access.py`)
HOST_FILES = (JOINED, AUTHORITY, "host.key", "host.pem")
FILES = {
    *HOST_FILES, *(f"{name}.new" for name in HOST_FILES),
    LOCK, BLOBS_LOCK, CONFIGURATION, CONFIGURATION_NEW, RESTORING, RESTORED, "server.json", "server.log", "server.log.1",
    *KEY_FILES, CONSOLE, *(name.replace(".json", ".new") for name in (*KEY_FILES, CONSOLE, "server.json")),
    *(name + end for name in DATABASES for end in ("", "-wal", "-shm", "-journal")),
}  # fmt: skip
IGNORED = {"lost+found"}  # the root folder of a file system may contain this
HOLDER = b"corral, process "  # the start of the lock file's text; the id of the process that locked the folder follows
SHOWN_MAX = 3  # an error message names at most this many files of other programs


def account_work_folder(node: Path) -> Path:
    """Return the folder below ACCOUNT_WORK for the runs of a node folder."""
    about = os.stat(node)
    return Path(ACCOUNT_WORK, f"{about.st_dev:x}-{about.st_ino:x}")


def remove_account_work(folder: Path) -> None:
    """Remove a folder below ACCOUNT_WORK. What links in it lead to stays."""
    from shutil import rmtree  # imported here, because the server does not need it

    rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(ACCOUNT_WORK)


def validate_folder(data: Path) -> None:
    """Raise Refused if other users own the folder or can write to it, or if it has symbolic links or files of other programs.

    Change nothing. A folder that does not exist is valid.
    """
    try:
        about = data.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refused(f"the data folder {data} cannot be read: {error.strerror}. Choose another folder with --data.") from None
    if not stat.S_ISDIR(about.st_mode):
        raise Refused(f"{data} is not a folder. Choose a folder with --data.")
    _require_own(data, about)
    names = sorted(set(os.listdir(data)) - IGNORED)
    known = FILES | {*FOLDERS} if _has_data(data) else {CONFIGURATION, CONFIGURATION_NEW}
    foreign = [name for name in names if name not in known and not (name == LOCK and _is_empty(data / LOCK))]
    if foreign and not _is_ours(data):
        shown = ", ".join(foreign[:SHOWN_MAX]) + (f" and {len(foreign) - SHOWN_MAX} more" if len(foreign) > SHOWN_MAX else "")
        raise Refused(
            f"the folder {data} contains files that are not Corral's ({shown}). Nothing was changed. "
            "Choose an empty or a new folder with --data."
        )
    if names and about.st_mode & 0o022:
        raise Refused(
            f"other users of this machine can write to the data folder {data} (its mode is {about.st_mode & 0o777:o}). "
            f"Check its files, then close it: chmod 700 {data}"
        )
    for path in _own_paths(data):
        with suppress(FileNotFoundError):  # another process, for example a running server, has removed the file meanwhile
            _require_own(path, path.lstat())
    for folder in filter(Path.is_dir, _inside(data / "blobs")):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _require_own(Path(entry.path), entry.stat(follow_symlinks=False))


def close_to_others(data: Path) -> None:
    """Remove all permissions of other users from the folder and its files. The caller must have validated and locked the folder."""
    for path in (data, *_own_paths(data)):
        about = path.lstat()
        allowed = 0o700 if stat.S_ISDIR(about.st_mode) else 0o600
        if (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)) and about.st_mode & 0o077:
            os.chmod(path, stat.S_IMODE(about.st_mode) & allowed)


def _own_paths(data: Path) -> Iterator[Path]:
    """Yield Corral's files and folders in the data folder, and what is directly in these folders.

    Deeper paths are omitted, because there can be millions of blobs, and because tasks create the files in node/work/. The files
    with the output of runs are omitted, too: there can be many, and the server does not read them.
    """
    for name in sorted(FILES):
        if os.path.lexists(data / name):
            yield data / name
    for folder in (data / name for name in FOLDERS):
        if os.path.lexists(folder):
            yield folder
            if folder.name != OUTPUTS:
                yield from _inside(folder)


def _inside(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [folder / name for name in sorted(os.listdir(folder))]


def _require_own(path: Path, about: os.stat_result) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise Refused(
            f"{path} is a symbolic link, which Corral does not follow. Replace it by a real file or folder, "
            "or move the whole data folder and pass its new path with --data."
        )
    if about.st_uid != os.geteuid():
        raise Refused(
            f"{path} belongs to {_user(about.st_uid)}, and Corral runs as {_user(os.geteuid())}. "
            "Start Corral as its owner, or choose another folder with --data."
        )


def _user(uid: int) -> str:
    try:
        return f"user {getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _is_ours(data: Path) -> bool:
    """Return True if Corral has used the folder before. In that case, the lock file contains Corral's name."""
    try:
        fd = os.open(data / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(fd, len(HOLDER), 0) == HOLDER
    finally:
        os.close(fd)


def _is_empty(path: Path) -> bool:
    return path.lstat().st_size == 0


def _has_data(data: Path) -> bool:
    """Return True if the folder has files that only Corral creates.

    Other names, for example credentials.json and node, also occur in folders of other programs.
    """
    return any(os.path.lexists(data / name) for name in (*DATABASES, RESTORING, RESTORED, JOINED, "blobs/arriving"))


# The lock of the folder


def lock_folder(data: Path) -> int:
    """Create the folder and lock it for this process. Return the file descriptor that holds the lock.

    Raise Refused if another process has the lock. The message contains the id of that process.
    """
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(f"cannot create the data folder {data}: {error.strerror}. Choose another folder with --data.") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise _in_use(data, fd) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, HOLDER + str(os.getpid()).encode(), 0)
    return fd


def require_unused(data: Path) -> None:
    """Raise Refused if another process has the lock of the folder. Create no files."""
    with unused(data):
        pass


@contextmanager
def unused(data: Path) -> Iterator[None]:
    """Lock the folder inside this context, if it has a lock file. Raise Refused if another process has the lock.

    Create no files.
    """
    try:
        fd = os.open(data / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield  # there is no lock file, so no process uses the folder; `validate_folder` reports other problems
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise _in_use(data, fd) from None
    try:
        yield
    finally:
        os.close(fd)


def is_in_use(data: Path) -> bool:
    try:
        require_unused(data)
    except Refused:
        return True
    return False


def _in_use(data: Path, fd: int) -> Refused:
    holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "another process"
    os.close(fd)
    return Refused(
        f"the data folder {data} is in use by {holder}. Stop it with `corral down --data {data}`, "
        "or choose another folder with --data."
    )


def running_original(data: Path) -> Path | None:
    """Return the path of the original data folder, from whose backup this folder was restored, if a server uses that folder now.

    Return None if no server uses the original folder, or if the two folders have different host ids. Also return None if this
    folder was not restored from a backup.
    """
    try:
        original = Path(json.loads((data / RESTORED).read_bytes())["data"])
        same_host = (original / "node" / "host.json").read_bytes() == (data / "node" / "host.json").read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return original if same_host and original != data and is_in_use(original) else None


def output_files(folder: Path, task_id: str) -> list[dict[str, Any]]:
    """Return the path and the size of each file with the output of a task. The name of each file begins with the id of the task."""
    names = [f"{task_id}.log"]  # a task with one container, which is the usual case, needs no list of all files
    if folder.exists() and not (folder / names[0]).exists():
        names = sorted(name for name in os.listdir(folder) if name.startswith(task_id) and name.endswith(".log"))
    paths = [folder / name for name in names]
    return [{"path": str(path), "bytes": path.stat().st_size} for path in paths if path.exists()]
