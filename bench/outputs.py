"""Outputs from 1 KB to 60 MB, read by `corral run`, `corral logs -f` and `corral logs`, while server and agent are killed.

    python bench/outputs.py [--most 60000000] [--large 200000000 …]

Each output must arrive with the same lines, once each, in all three commands, and byte by byte in the file of the run. An output of
--large (default: 200 MB) must be complete, or lines in the log must say exactly how many bytes were dropped. The script prints a
line for each output and exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import machine

OUTPUTS = (  # bytes, and the kind of lines
    (1_000, "usual"), (10_000, "short"), (100_000, "long"), (500_000, "unicode"), (1_000_000, "short"), (3_000_000, "usual"),
    (10_000_000, "short"), (20_000_000, "unicode"), (40_000_000, "long"), (60_000_000, "usual"),
)  # fmt: skip
LARGE = (200_000_000,)
WAIT_MAX_S = 900.0
DROPPED = re.compile(rb"corral: ([0-9,]+) bytes of output were dropped here.*\n")
# Prints the lines of a kind, of SIZE bytes together, and waits in the middle for the file `go`.
PROGRAM = """
import os, sys, time
def lines(kind, size):
    number = 0
    while size > 0:
        number += 1
        text = {
            "usual": f"step {number:08} loss 0.123456 lr 0.000300 tokens/s 123456 gpu 97% mem 61.2 GiB",
            "short": f"{number}",
            "long": f"{number} " + "abcdefghij" * 1000,
            "unicode": f"{number} Größe € 😀 end",
        }[kind] + "\\n"
        size -= len(text.encode())
        yield text
if __name__ == "__main__":
    kind, size, go = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    written = 0
    for text in lines(kind, size):
        sys.stdout.write(text)
        written += len(text.encode())
        if written > size / 2 and go:
            sys.stdout.flush()
            while not os.path.exists(go):
                time.sleep(0.01)
            go = ""
"""


class Home:
    """A Corral in a folder of its own, and its `corral` command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CORRAL_"))}
        self._environment = {**kept, "HOME": str(folder), "CORRAL_DATA": str(self.data)}
        self._corral = [sys.executable, "-m", "corral"]
        self._port = "0"
        (folder / "program.py").write_text(PROGRAM)

    def up(self) -> None:
        self("up", "--detach", "--gpus", "none", "--port", self._port)
        self._port = self._about()["url"].rpartition(":")[2]  # clients that reconnect know the port

    def _about(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.data / "server.json").read_text())
        return found

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self._corral, *words], env=self._environment, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"corral {' '.join(words)}: {done.stderr}")
        return done.stdout

    def begin(self, output: Path, *words: str) -> subprocess.Popen[bytes]:
        with open(output, "wb") as out, open(output.with_suffix(".err"), "wb") as err:
            return subprocess.Popen([*self._corral, *words], env=self._environment, cwd=self.folder, stdout=out, stderr=err)

    def kill_server(self) -> None:
        _kill(int(self._about()["pid"]))

    def kill_agent(self) -> None:
        _kill(int((self.data / "node" / "agent.lock").read_text()))

    def program(self, kind: str, size: int, go: str = "") -> list[str]:
        return [sys.executable, "program.py", kind, str(size), go]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _until(lambda: not machine.is_alive(pid), f"the end of process {pid}")


def _until(check: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_MAX_S
    while not check():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {WAIT_MAX_S:.0f} s for {what}")
        time.sleep(0.01)


def _expected(home: Home, kind: str, size: int) -> tuple[str, int]:
    """Return the digest and the number of bytes of an output."""
    digest, count = sha256(), 0
    with subprocess.Popen(home.program(kind, size), cwd=home.folder, stdout=subprocess.PIPE) as printed:
        assert printed.stdout is not None
        while part := printed.stdout.read(1 << 20):
            digest.update(part)
            count += len(part)
    return digest.hexdigest(), count


def _digest(path: Path) -> str:
    digest = sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _file_of(home: Home, name: str) -> Path:
    [file] = json.loads(home("show", "--json", name))["outputFiles"]
    return Path(file["path"])


def killed(home: Home, number: int, kind: str, size: int) -> str:
    """Print an output. Kill the server or the agent in the middle, and both near the end.

    Return what is wrong, or an empty text.
    """
    name, go = f"out{number}", home.folder / f"go{number}"
    want, count = _expected(home, kind, size)
    outs = {each: home.folder / f"{name}.{each}.out" for each in ("run", "follow", "logs")}
    began_s = time.monotonic()
    running = home.begin(outs["run"], "run", "-n", name, "--", *home.program(kind, size, str(go)))
    _until(lambda: outs["run"].stat().st_size > 0, f"the first line of {name}")
    following = home.begin(outs["follow"], "logs", "-f", name)
    _until(lambda: outs["follow"].stat().st_size > 0, f"the first line of {name} in the log")
    (home.kill_server, home.kill_agent)[number % 2]()
    if not number % 2:
        home.up()
    go.touch()
    if count > 1_000_000:
        _until(lambda: outs["run"].stat().st_size > 0.7 * count or running.poll() is not None, f"the output of {name}")
        home.kill_agent()
        home.kill_server()
        home.up()
    codes = running.wait(WAIT_MAX_S), following.wait(WAIT_MAX_S)
    took_s = time.monotonic() - began_s
    home.begin(outs["logs"], "logs", name).wait(WAIT_MAX_S)
    wrong = [each for each, path in outs.items() if _digest(path) != want]
    wrong += ["the file"] * (_digest(_file_of(home, name)) != want) + [f"exit codes {codes}"] * (codes != (0, 0))
    result = f"WRONG: {', '.join(wrong)}" if wrong else "the same lines, once each"
    print(f"{count:>12,} bytes, {kind:<8} {took_s:7.1f} s   {result}", flush=True)
    for path in outs.values():
        path.unlink()
    return ", ".join(wrong)


def large(home: Home, size: int) -> str:
    """Print a large output, and follow it. Return what is wrong, or an empty text."""
    name, out = f"large{size}", home.folder / "large.out"
    want, count = _expected(home, "usual", size)
    began_s = time.monotonic()
    code = home.begin(out, "run", "-n", name, "--", *home.program("usual", size)).wait(WAIT_MAX_S)
    took_s, got = time.monotonic() - began_s, out.stat().st_size
    gaps = [(int(text.replace(b",", b"")), length) for text, length in _gaps(out)]
    dropped = sum(each for each, _ in gaps)
    told = f"{dropped:,} bytes of the output" in out.with_suffix(".err").read_text()
    is_exact = got - sum(length for _, length in gaps) + dropped == count and (told or not dropped)
    is_right = code == 0 and (is_exact if gaps else _digest(out) == want)
    how = f"{dropped:,} bytes dropped, {len(gaps)} lines say so" if gaps else "complete"
    print(f"{count:>12,} bytes, usual    {took_s:7.1f} s   {how if is_right else f'WRONG: {got:,} bytes, {how}'}", flush=True)
    out.unlink()
    return "" if is_right else how


def _gaps(path: Path) -> Iterator[tuple[bytes, int]]:
    with open(path, "rb") as file:
        for line in file:
            if found := DROPPED.fullmatch(line):
                yield found[1], len(line)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--most", type=int, default=OUTPUTS[-1][0], help="leave out larger outputs")
    options.add_argument("--large", type=int, nargs="*", default=LARGE, metavar="BYTES", help="the sizes of the large outputs")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="corral-outputs-", dir=machine.real_disk()))
    home = Home(folder)
    try:
        home.up()
        wrong = [killed(home, at, kind, size) for at, (size, kind) in enumerate(OUTPUTS) if size <= given.most]
        wrong += [large(home, size) for size in given.large]
    finally:
        with suppress(RuntimeError):
            home("down", "--stop-tasks")
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
