"""Runs the commands of a documentation page: its fenced blocks marked `console`, from top to bottom, in one bash session.

    $ COMMAND            a command; lines that begin with "> " continue it (a here-document, a long pipe)
    anything else        the expected output, compared loosely: "..." stands for any text, also over lines; ids, ages, times,
                         ports, process numbers and the width of columns may differ; messages of corral that are not part of the
                         output ("corral: task ... starts") may be left out
    [exit N]             the command exits with N; without this line it must exit with 0

A command without expected output may print anything. A block `console NAME` runs in another session, on the machine of this person.
A command `corral connect` runs with the URL and the code that `corral user` has printed last for this person.
"""

from __future__ import annotations

import re
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMMAND_S = 300.0  # ends a command that hangs; other tests may use the machine meanwhile
HOME = "/home/you"  # what pages call the reader's home folder

# What differs from run to run, and what it is called instead; in this order.
SAME = [
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),
    (r"\bGPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "GPU-ID"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{8}\b", "ID"),
    (r"\bAKIA[A-Z0-9]{16}\b", "KEY"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "TIME"),
    (r"\b1[0-9]{9}(\.\d+|\d{3})?\b", "TIME"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
    (r"https://[\w.-]+:\d+", "https://HOST:PORT"),
    (r"--code \S+", "--code CODE"),
    (r"\bprocess \d+", "process PID"),
    (r"\b\d+(ms|[smhd])\b", "AGE"),
    (r"[ \t]+", " "),
]


@dataclass
class Step:
    line: int
    command: str
    expected: list[str] = field(default_factory=list)
    code: int = 0
    person: str = ""  # on whose machine it runs; empty: on the server


def steps_of(text: str) -> list[Step]:
    steps: list[Step] = []
    inside, continued, person = False, False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            kind, _, person = line.strip().partition(" ")
            inside, continued = not inside and kind == "```console", False
        elif not inside:
            continue
        elif line.startswith("$ "):
            steps.append(Step(number, line[2:], person=person))
            continued = True
        elif continued and (line.startswith("> ") or line == ">"):
            steps[-1].command += "\n" + line[2:]
        elif found := re.fullmatch(r"\[exit (\d+)\]", line):
            steps[-1].code = int(found[1])
        else:
            continued = False
            steps[-1].expected.append(line)
    for step in steps:
        while step.expected and not step.expected[-1].strip():
            step.expected.pop()
    return steps


def alike(text: str) -> str:
    for pattern, word in SAME:
        text = re.sub(pattern, word, text)
    return "\n".join(line.strip() for line in text.splitlines()).strip()


def matches(expected: list[str], output: str) -> bool:
    without = "\n".join(line for line in output.splitlines() if not line.startswith("corral: "))
    return _matches(expected, output) or _matches(expected, without)


def _matches(expected: list[str], output: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in alike("\n".join(expected)).split("..."))
    # A line of dots alone may stand for no line at all.
    pattern = pattern.replace("\\\n.*\\\n", "\\\n(?:.*\\\n)?")  # as re.escape writes a newline
    return re.fullmatch(pattern, alike(output), re.DOTALL) is not None


def list_of(*words: str) -> list[str]:
    return list(words)


class Shell:
    """A bash that is given one command after the other, and what each of them printed."""

    def __init__(self, folder: Path, home: Path, environment: dict[str, str], on: Callable[..., list[str]] = list_of) -> None:
        """`on` returns the command that runs words on the machine of the shell."""
        self._scripts = folder
        self._home = home
        self._bash = subprocess.Popen(
            on("bash", "--norc", "--noprofile"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, env=environment, cwd=home,
        )  # fmt: skip
        self._steps = 0

    def run(self, command: str) -> tuple[int, str]:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._steps += 1
        script = self._scripts / f"step{self._steps}.sh"
        script.write_text(command + "\n")
        mark = f"<end of step {self._steps}>"
        self._bash.stdin.write(f"source {script} </dev/null\nprintf '%s %d\\n' '{mark}' $?\n".encode())
        said, until_s = b"", time.monotonic() + COMMAND_S
        while not (found := re.search(re.escape(mark).encode() + rb" (\d+)\n$", said)):
            ready = select.select([self._bash.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]
            part = self._bash.stdout.read(65_536) if ready else b""
            assert part, f"`{command}` did not end within {COMMAND_S:.0f} s:\n{said.decode(errors='replace')}"
            said += part
        output = said[: found.start()].decode(errors="replace")
        return int(found[1]), output.replace(str(self._home), HOME)

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()


def run_page(page: Path, shell: Shell, shells: Mapping[str, Shell] | None = None) -> None:
    """Run the commands of a page. `shells` has the session on the machine of each person."""
    codes: dict[str, str] = {}  # person → the last command with which they can connect
    for step in steps_of(page.read_text()):
        command = codes[step.person] if step.command.startswith("corral connect ") else step.command
        code, output = (shell if not step.person else (shells or {})[step.person]).run(command)
        if found := re.match(r"corral user (?:add|key) (\S+)", step.command):
            codes[found[1]] = output.splitlines()[0]
        where = f"{page.name}, line {step.line}: $ {step.command}\n"
        assert code == step.code, f"{where}ended with {code}, not {step.code}:\n{output}"
        if step.expected:
            wanted = "\n".join(step.expected)
            assert matches(step.expected, output), f"{where}--- the page says\n{wanted}\n--- it printed\n{output}"
