"""Checks before submission whether the command of a process run can be executed, and suggests what the user may have meant.

The spawner finds a command in the same way (`node/process_launch.py`), but only when the run starts, which may be days later.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from corral.cli.client import data_folder
from corral.cli.client.endpoint import Endpoint, NotCorral, call, get_status
from corral.cli.printing.errors import CommandNotExecutable, CommandNotFound
from corral.cli.printing.output import print_message

INTERPRETERS = {
    ".py": "python",
    ".sh": "bash",
    ".bash": "bash",
    ".zsh": "zsh",
    ".pl": "perl",
    ".rb": "ruby",
    ".R": "Rscript",
    ".jl": "julia",
}
# Commands that a shell executes itself. Some systems also have programs with these names; then the program is found.
BUILTINS = frozenset({
    ".", "alias", "cd", "command", "eval", "exec", "export", "for", "if", "popd", "pushd", "set", "source", "time", "trap", "type",
    "ulimit", "umask", "unset", "wait", "while",
})  # fmt: skip
_SHELL = re.compile(r"[|&;<>()$`*?~{}]|^\s*\w+=")  # characters that have a meaning only for a shell
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SIMILARITY = 0.7  # of a name that is suggested, from 0 to 1
HEAD_BYTES = 256  # of a file: as much as the kernel reads to find the interpreter


def refuse_missing_command(
    endpoint: Endpoint, command: Sequence[str], folder: str, environment: Mapping[str, str], *, waits_for_runs: bool = False,
    host: str | None = None,
) -> None:  # fmt: skip
    """Raise CommandNotFound or CommandNotExecutable if the run could not execute its command.

    Only a run on this machine is checked: another host can have other programs. `host` is the name that its host must have. With
    `waits_for_runs`, only print a message: a run that this one waits for may create the command.
    """
    try:
        check_command(command, folder, environment)
    except (CommandNotFound, CommandNotExecutable) as error:
        if not _is_on_this_machine(endpoint) or _may_run_elsewhere(endpoint, host):
            return
        if not waits_for_runs:
            raise
        print_message(f"{error.message} The run will fail, unless a run that it waits for changes that.")


def _is_on_this_machine(endpoint: Endpoint) -> bool:
    """Whether the server runs on this machine. An address such as 127.0.0.1 does not prove it: it can be a tunnel."""
    if endpoint.endpoint_url:
        return True  # the server of a data folder
    try:
        about = get_status(endpoint)[0]
    except NotCorral:
        return False
    return data_folder.serves(int(about["pid"]), Path(about["data"]))


def _may_run_elsewhere(endpoint: Endpoint, name: str | None) -> bool:
    """Whether a run can be placed on a host that has joined from another machine. `name` is the name that its host must have."""
    try:
        hosts = call(endpoint, "DescribeHosts", {})[0]["hosts"]
    except NotCorral:
        return False
    return any(host["joined"] and host["connected"] for host in hosts if name in (None, host["name"]))


def check_command(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    """Raise an error if a run in this folder, with these variables, could not execute the command."""
    name = command[0]
    if "/" in name:
        _check_file(name, os.path.join(folder, name), folder)
        return
    if "PATH" not in environment:
        return  # the run uses the PATH of the agent, which is not known here
    folders = [os.path.join(folder, entry or ".") for entry in environment["PATH"].split(":")]
    files = [path for each in folders if _is_file(path := os.path.join(each, name))]
    found = next((path for path in files if os.access(path, os.X_OK)), None)
    if found is not None:
        _check_start(name, found)
    elif files:
        raise CommandNotExecutable(f"{files[0]} is not executable: `chmod +x {shlex.quote(files[0])}` makes it executable.")
    else:
        raise CommandNotFound(f"there is no command '{name}' on the PATH of the run.{_suggestion(name, folder, folders)}")


def _check_file(name: str, path: str, folder: str) -> None:
    """Check a command that contains a slash, and is therefore not searched on the PATH."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        where = "" if name.startswith("/") else f" in {folder}"
        raise CommandNotFound(f"'{name}' does not exist{where}.{_quoted_line(name) or _similar_file(name, path)}") from None
    except OSError as error:
        raise CommandNotExecutable(f"'{name}' cannot be executed: {(error.strerror or str(error)).lower()}.") from None
    if stat.S_ISDIR(about.st_mode):
        hint = f" Run it with `python {shlex.quote(name)}`." if os.path.exists(f"{path}/__main__.py") else ""
        raise CommandNotExecutable(f"'{name}' is a folder, not a command.{hint}")
    if not os.access(path, os.X_OK):
        raise CommandNotExecutable(
            f"'{name}' is not executable: use `{_interpreter(path)} {shlex.quote(name)}`, or `chmod +x {shlex.quote(name)}`."
        )
    _check_start(name, path)


def _check_start(name: str, path: str) -> None:
    """Check the first bytes of an executable file: it is a program for this machine, or a script whose interpreter exists."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return  # a user can have the permission to execute a file, but not to read it
    if not head.startswith(b"#!"):
        if b"\0" not in head:  # a text
            run = f"{_interpreter(path)} {shlex.quote(name if '/' in name else path)}"
            raise CommandNotExecutable(f"'{name}' has no first line such as #!/bin/sh, which names its interpreter: use `{run}`.")
        return
    line = os.fsdecode(head[2:].partition(b"\n")[0]).lstrip(" \t")
    interpreter = re.split(r"[ \t]", line, maxsplit=1)[0]
    if interpreter.startswith("/") and not os.path.exists(interpreter):
        if line.endswith("\r"):
            mend = f"sed -i 's/\\r$//' {shlex.quote(os.path.normpath(path))}"
            raise CommandNotExecutable(
                f"the lines of '{name}' end with CR LF, so its first line names no interpreter: use `{mend}`."
            )
        raise CommandNotExecutable(f"'{name}' needs {interpreter}, which does not exist: see its first line.")


def _suggestion(name: str, folder: str, folders: Sequence[str]) -> str:
    """Return a sentence about what the user may have meant, or an empty text."""
    if hint := _quoted_line(name):
        return hint
    if _ASSIGNMENT.match(name):
        return f" Set a variable with `-e {shlex.quote(name)}`, before the command."
    path = os.path.join(folder, name)
    if _is_file(path):
        run = f"./{name}" if os.access(path, os.X_OK) else f"{_interpreter(path)} {name}"
        return f" To run {name} in {folder}, write `{run}`."
    if name in BUILTINS:
        return " It is a command of your shell: use `bash -c '...'`."
    return _similar(name, _programs(folders))


def _quoted_line(name: str) -> str:
    """Return the advice for a whole command line in one argument, such as `corral run "python x.py"`. Return "" for others."""
    if not re.search(r"\S\s+\S", name):
        return ""
    if _SHELL.search(name):
        return f" Let a shell run this line: `sh -c {shlex.quote(name)}`."
    return f" Write the command without quotes around it: `{name.strip()}`."


def _similar_file(name: str, path: str) -> str:
    try:
        names = os.listdir(os.path.dirname(path))
    except OSError:
        return ""
    return _similar(name, [os.path.join(os.path.dirname(name), each) for each in names])


def _similar(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name, list(names), n=1, cutoff=_SIMILARITY)
    return f" Did you mean '{found[0]}'?" if found else ""


def _programs(folders: Sequence[str]) -> Iterator[str]:
    for folder in dict.fromkeys(folders):
        try:
            yield from os.listdir(folder)
        except OSError:
            continue


def _interpreter(path: str) -> str:
    return INTERPRETERS.get(PurePath(path).suffix, "sh")


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
