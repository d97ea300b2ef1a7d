"""Become a Unix account: the identity, the resource limits and the file mode mask of a process that root starts for a user.

The spawner uses this module in the child that becomes the main process of a run (`account_start.py`). The agent starts this file as
a program for health checks and for the sessions of ExecuteCommand (`run_command.py`). So it imports only the standard library,
and nothing after it has become the account: the account may not be able to read Corral's files.

Between `become` and exec, the process still has the memory of its root parent. So it is not dumpable: other processes of the
account can neither trace it nor read its memory, and it leaves no core dump. Exec makes it dumpable again.
"""

from __future__ import annotations

import ctypes
import grp
import importlib.util
import json
import os
import pwd
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import glob
from types import ModuleType
from typing import Any, NamedTuple

NAME = re.compile(r"(?![-0-9]+$)[A-Za-z0-9_.][A-Za-z0-9_.@\\$-]{0,255}")
LIMIT_FILES = "/etc/security/limits.conf", "/etc/security/limits.d/*.conf"
LOGIN_DEFS = "/etc/login.defs"
UMASK = 0o022
KIB, MINUTE_S = 1024, 60
# Name in limits.conf → the limit of the kernel and the factor of its unit.
LIMITS = {
    "core": (resource.RLIMIT_CORE, KIB), "data": (resource.RLIMIT_DATA, KIB), "fsize": (resource.RLIMIT_FSIZE, KIB),
    "memlock": (resource.RLIMIT_MEMLOCK, KIB), "nofile": (resource.RLIMIT_NOFILE, 1), "rss": (resource.RLIMIT_RSS, KIB),
    "stack": (resource.RLIMIT_STACK, KIB), "cpu": (resource.RLIMIT_CPU, MINUTE_S), "nproc": (resource.RLIMIT_NPROC, 1),
    "as": (resource.RLIMIT_AS, KIB), "sigpending": (resource.RLIMIT_SIGPENDING, 1), "msgqueue": (resource.RLIMIT_MSGQUEUE, 1),
    "nice": (resource.RLIMIT_NICE, 1), "rtprio": (resource.RLIMIT_RTPRIO, 1),
}  # fmt: skip
UNLIMITED = ("unlimited", "infinity", "-1")
PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 4, 8
CAPABILITIES_VERSION = 0x20080522
JOIN_SESSION_KEYRING = 1
KEYCTL = {"x86_64": 250, "aarch64": 219}  # the number of this system call
CANNOT_RUN = 126


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str
    shell: str


class NoAccount(ValueError):
    """No run may act as this account on this host. The message says why, and what to do."""


def find_account(name: str) -> Account:
    """Return the account with this name. It must exist, and be neither root nor the account of Corral itself.

    Only root can start processes of other accounts. The lookup can take long, for example if a directory server has the accounts.
    """
    if os.geteuid():
        raise NoAccount("Corral does not run as root on this host, so it cannot start processes of other accounts")
    if not NAME.fullmatch(name):
        raise NoAccount(f"the name {name[:100]!r} is not the name of a Unix account")
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise NoAccount(f"this host has no Unix account {name}: create it there with `useradd {name}`") from None
    if entry.pw_uid in (0, os.getuid(), os.geteuid()):
        raise NoAccount(f"the Unix account {name} has the user id {entry.pw_uid}, as Corral itself: choose another account")
    return Account(name, entry.pw_uid, entry.pw_gid, entry.pw_dir or "/", entry.pw_shell or "/bin/sh")


def become(account: Account) -> None:
    """Give this process the groups, the user, the limits and the mask of the account, for good. Raises OSError if that fails."""
    groups = os.getgrouplist(account.name, account.gid)
    limits, mask = limits_of(account, groups, _lines(*LIMIT_FILES)), mask_of(_lines(LOGIN_DEFS))
    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(OSError), open("/proc/self/loginuid", "w") as file:  # audit records of the run name the account
        file.write(str(account.uid))
    os.umask(mask)
    os.setgroups(groups)
    os.setresgid(account.gid, account.gid, account.gid)
    priority = limits.pop("priority", None)
    if priority is not None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, priority[0])
    for name, values in limits.items():
        with suppress(OSError, ValueError):  # the kernel has a smaller maximum, for example fs.nr_open
            resource.setrlimit(LIMITS[name][0], values)
    # A process without capabilities cannot trace one that has some. So the capabilities are kept until the process is not dumpable:
    # setresuid itself makes it dumpable if fs.suid_dumpable is 1.
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(account.uid, account.uid, account.uid)
    _checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
    header, empty = struct.pack("Ii", CAPABILITIES_VERSION, 0), bytes(24)
    _checked(libc.capset(header, empty))
    if os.uname().machine in KEYCTL:  # root's keyring would give the account root's keys, for example of encrypted folders
        libc.syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise OSError(f"this process has not become the account {account.name}")


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def environment_of(account: Account, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run with the variables of the account. Variables of the task replace them."""
    own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    return {**own, **environment}


# -- the rules of the host -----------------------------------------------------------------------------------------


def mask_of(lines: Iterable[list[str]]) -> int:
    """Return the UMASK of login.defs."""
    for words in lines:
        if words[0] == "UMASK" and len(words) > 1:
            with suppress(ValueError):
                return int(words[1], 8) & 0o777
    return UMASK


def limits_of(account: Account, groups: Iterable[int], lines: Iterable[list[str]]) -> dict[str, tuple[int, int]]:
    """Return item → (soft limit, hard limit) of the lines of limits.conf, by the rules of pam_limits.

    A line for the account is stronger than one for a group, which is stronger than one for all (`*`). Among equal ones, the last
    one counts. The value of `priority` is a nice value. Lines with errors are ignored.
    """
    group_ids, found = set(groups), dict[tuple[str, str], tuple[int, int]]()  # (item, type) → (level, value)
    for words in lines:
        level = _level(words[0], account, group_ids)
        if level is None:
            continue
        if len(words) == 2 and words[1] == "-" and not level:
            return {}  # this account has no limits
        if len(words) < 4 or (value := _value(words[2], words[3])) is None:
            continue
        for kind in ("soft", "hard") if words[1] == "-" else (words[1],):
            if kind in ("soft", "hard") and found.get((words[2], kind), (9, 0))[0] >= level:
                found[words[2], kind] = level, value
    limits = {}
    for item in dict.fromkeys(item for item, _ in found):
        now = resource.getrlimit(LIMITS[item][0]) if item in LIMITS else (0, 0)
        hard = found.get((item, "hard"), (0, now[1]))[1]
        soft = found.get((item, "soft"), (0, now[0]))[1]
        limits[item] = (soft if item == "priority" else _smaller(soft, hard), hard)
    return limits


def _level(domain: str, account: Account, groups: set[int]) -> int | None:
    """Return how special a domain is that includes the account: 0 for the account, 1 for a group, 2 for all. None: it does not."""
    if domain == "*":
        return 2
    if domain.startswith("@"):
        if ":" in domain:
            return 1 if any(_in_range(domain[1:], gid) for gid in groups) else None
        with suppress(KeyError):
            return 1 if grp.getgrnam(domain[1:]).gr_gid in groups else None
        return None
    if ":" in domain:
        return 0 if _in_range(domain, account.uid) else None
    return 0 if domain == account.name else None


def _in_range(text: str, number: int) -> bool:
    """Whether a number is in `MIN:MAX`. Without MIN, it must be MAX."""
    first, _, last = text.partition(":")
    try:
        return number == int(last) if not first else int(first) <= number and (not last or number <= int(last))
    except ValueError:
        return False


def _value(item: str, text: str) -> int | None:
    try:
        if item == "priority":
            return int(text)
        if item not in LIMITS:
            return None
        if item == "nice":
            return 20 - max(-20, min(19, int(text)))
        return resource.RLIM_INFINITY if text in UNLIMITED else int(text) * LIMITS[item][1]
    except ValueError:
        return None


def _smaller(soft: int, hard: int) -> int:
    if hard == resource.RLIM_INFINITY:
        return soft
    return hard if soft == resource.RLIM_INFINITY else min(soft, hard)


def _lines(*patterns: str) -> Iterator[list[str]]:
    """Return the words of each line of the files. A file of a folder may have any name that matches."""
    for pattern in patterns:
        for path in sorted(glob(pattern)):
            with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    if words := line.partition("#")[0].split():
                        yield words


# -- the program ---------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run `account_process.py DESCRIPTOR`. The descriptor has the order, as JSON: see `run_command.py`.

    The environment of the run is in the order, not in the environment of this program: variables such as LD_PRELOAD would let the
    user load code into a process of root.
    """
    with open(int(arguments[0]), "rb") as file:
        order: dict[str, Any] = json.load(file)
    relay = _loaded(order["relay"]) if order["relay"] else None
    words: list[str] = order["command"]
    try:
        account = find_account(order["account"])
        become(account)
        os.chdir(order["directory"])
        os.environ.clear()
        os.environ.update(environment_of(account, order["environment"]))
    except (OSError, ValueError) as error:
        return _failed(relay, words, str(error))
    if relay is not None:
        return int(relay.main(words))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError:
        return CANNOT_RUN


def _loaded(path: str) -> ModuleType:
    """Import a file of Corral, and what it imports when it needs it."""
    import termios  # noqa: F401

    about = importlib.util.spec_from_file_location("command_relay", path)
    assert about is not None and about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


def _failed(relay: ModuleType | None, words: list[str], why: str) -> int:
    """Tell the client of a session why its command was not started."""
    if relay is not None:
        text, code = f"corral: the command cannot be started: {why}\n".encode(), struct.pack("!I", CANNOT_RUN)
        with suppress(OSError):
            os.write(int(words[2]), relay.frame(relay.OUTPUT, text) + relay.frame(relay.EXIT, code))
    return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
