"""The program that `bench/accounts.py` runs as an account: it tries what must be refused, and prints as JSON what was possible.

    accounts_attempts.py ATTEMPTS.json

The file has a list of [name, kind, arguments]. The output is a line {"name": "possible: …"} or {"name": "refused: …"} for each. It
uses only the standard library, because the accounts cannot read Corral's environment.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
SYSCALLS = {"kcmp": 312, "pidfd_getfd": 438, "keyctl": 250, "process_vm_readv": 310, "migrate_pages": 256, "perf_event_open": 298}
F_SETLEASE = 1024


class Refused(Exception):
    pass


def syscall(name: str, *arguments: object) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(libc.syscall(SYSCALLS[name], *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: str) -> str:
    with open(path, "rb") as file:
        found = file.read(200)
    if not found:
        raise Refused("empty")
    return repr(found[:60])


def read_memory(pid: int) -> str:
    """Read the stack of a process. The address is not known if its maps cannot be read, so the open itself must be refused."""
    with open(f"/proc/{pid}/mem", "rb"):
        return "opened"


def write(path: str, text: str = "0") -> str:
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())
    return "written"


def create(path: str) -> str:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return "created"


def listing(path: str) -> str:
    return str(os.listdir(path)[:5])


def link(path: str) -> str:
    return os.readlink(path)


def ptrace(pid: int, request: int) -> str:
    if libc.ptrace(request, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "traced"


def vm_read(pid: int) -> str:
    buffer = ctypes.create_string_buffer(8)

    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    ours, theirs = Part(ctypes.addressof(buffer), 8), Part(0x400000, 8)
    syscall("process_vm_readv", pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return "read"


def take_descriptor(pid: int, fd: int) -> str:
    return f"descriptor {syscall('pidfd_getfd', os.pidfd_open(pid), fd, 0)}"


def send_signal(pid: int, number: int) -> str:
    os.kill(pid, number)
    return "sent"


def pidfd_signal(pid: int, number: int) -> str:
    signal.pidfd_send_signal(os.pidfd_open(pid), number)
    return "sent"


def connect(path: str) -> str:
    kind = socket.SOCK_DGRAM if path.endswith("kept.sock") else socket.SOCK_STREAM
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(path)
    return "connected"


def fetch(url: str, headers: dict[str, str]) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return str(answer.read()[:80])
    except urllib.error.HTTPError as error:
        raise Refused(f"HTTP {error.code}") from None


def run(*command: str) -> str:
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    if ended.returncode:
        raise Refused((ended.stderr or ended.stdout).strip()[-80:] or f"exit {ended.returncode}")
    return ended.stdout.strip()[:80]


def root_id(*command: str) -> str:
    """Run a command that prints a user id. It counts only if it is 0."""
    found = run(*command)
    if "0" not in found.split():
        raise Refused(f"user id {found}")
    return found


def hard_link(source: str, target: str) -> str:
    result = libc.linkat(-100, source.encode(), -100, target.encode(), 0x400)
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "linked"


def lease_output() -> str:
    fcntl.fcntl(1, F_SETLEASE, fcntl.F_WRLCK)
    return "leased"


def mode_of_output() -> str:
    os.fchmod(1, 0o666)
    return "changed"


def read_output() -> str:
    return read("/proc/self/fd/1")


def become(uid: int) -> str:
    os.setresuid(uid, uid, uid)
    return "became"


def descriptors() -> str:
    """All descriptors except 0, 1, 2 and 199."""
    opened = [fd for fd in range(3, 4096) if fd != 199 and os.path.exists(f"/proc/self/fd/{fd}")]
    return _some([f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}" for fd in opened if not _is_json(fd)])


def _is_json(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").endswith(".json")


def capabilities() -> str:
    with open("/proc/self/status") as file:
        kinds = [line.split() for line in file if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))]
    return _some([kind for kind, value in kinds if int(value, 16)])


def groups(expected: list[int]) -> str:
    return _some([str(each) for each in {*os.getgroups(), *os.getresgid(), *os.getresuid()} if each not in expected])


def variables(words: list[str]) -> str:
    return _some([f"{name}={value}" for name, value in os.environ.items() if any(word in name + value for word in words)])


def keyring(name: str) -> str:
    found = syscall("keyctl", 10, -3, b"user", name.encode(), 0)  # search the session keyring
    return f"key {found}"


def others_keys(words: list[str]) -> str:
    with open("/proc/keys") as file:
        return _some([line for line in file if any(word in line for word in words)])


def names(patterns: list[str]) -> str:
    """Names in folders that all users can change, which another user of Corral owns and this one can open."""
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    return _some([path for path in found if os.access(path, os.R_OK | os.W_OK) and os.stat(path).st_uid != os.getuid()])


def limits(expected: dict[str, list[int]]) -> str:
    wrong = {name: resource.getrlimit(getattr(resource, name)) for name in expected}
    return _some([f"{name} {value}" for name, value in wrong.items() if list(value) != expected[name]])


def commands(words: list[str]) -> str:
    """Command lines of other processes with one of the words: every user can read them."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                text = file.read().decode(errors="replace")
        except OSError:
            continue
        found += [text for word in words if word in text]
    return _some(found)


def user_namespace(path: str) -> str:
    return run("unshare", "--user", "--map-root-user", "--mount", "cat", path)


def _some(found: list[str]) -> str:
    if not found:
        raise Refused("none")
    return str(found[:5])


KINDS: dict[str, Callable[..., str]] = {
    "read": read, "mem": read_memory, "write": write, "create": create, "list": listing, "link": link, "ptrace": ptrace,
    "vm": vm_read,
    "getfd": take_descriptor, "kill": send_signal, "pidfd": pidfd_signal, "connect": connect, "fetch": fetch, "run": run,
    "root": root_id, "hardlink": hard_link, "lease": lease_output, "mode": mode_of_output, "own-output": read_output,
    "become": become, "descriptors": descriptors, "capabilities": capabilities, "groups": groups, "variables": variables,
    "key": keyring, "keys": others_keys, "names": names, "limits": limits, "commands": commands, "userns": user_namespace,
    "nice": lambda pid: str(os.setpriority(os.PRIO_PROCESS, pid, 5)), "group": lambda gid: str(os.setgroups([gid])),
    "affinity": lambda pid: str(os.sched_setaffinity(pid, {0})),
    "prlimit": lambda pid: str(resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))),
    "prlimit-read": lambda pid: str(resource.prlimit(pid, resource.RLIMIT_NOFILE)),
    "kcmp": lambda pid: str(syscall("kcmp", os.getpid(), pid, 0, 1, 1)),
    "migrate": lambda pid: str(syscall("migrate_pages", pid, 8, None, None)),
    "chdir": lambda path: str(os.chdir(path)), "rename": lambda path: str(os.rename(path, f"{path}.moved")),
    "mkdir": lambda path: str(os.mkdir(path)), "chown": lambda path: str(os.chown(path, os.getuid(), -1)),
    "symlink": lambda path: str(os.symlink("/etc", path)), "setns": lambda pid: run("nsenter", "-t", str(pid), "-m", "true"),
}  # fmt: skip


def main() -> None:
    with open(sys.argv[1]) as file:
        attempts = json.load(file)
    for name, kind, arguments in attempts:
        try:
            found = f"possible: {KINDS[kind](*arguments)}"
        except (OSError, Refused, subprocess.SubprocessError, ValueError) as error:
            found = f"refused: {error}"
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main()
