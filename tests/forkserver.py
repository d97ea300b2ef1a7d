"""Runs `aws`, `corral` and Corral's processes as forks of interpreters that have imported them already (`forks.py`).

A cold `aws` costs 0.8 s of CPU time, a cold Corral with its server, agent and spawner more than one; nearly all of it for imports
and models. A fork costs a tenth of that.

- `program` is a small script that stands for `aws` or `corral`: it hands its arguments, environment, folder and standard
  streams over, passes signals on, and ends as the fork ends. The fork runs the installed entry point.
- `Popen` takes the place of `subprocess.Popen` in tests (`conftest.py`). It starts `python -m corral.server`, `corral.node` and so
  on as forks, and `program` without the script. Forks use it for their own processes too: so the server starts its agent, and the
  agent its spawner.

A fork has another parent process and no controlling terminal: tests of terminals start the real command, and so do the commands of
the README (tests/test_docs.py).
"""

from __future__ import annotations

import atexit
import inspect
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from eventually import eventually

PREFIX = "corral-forkserver-"  # of the folder
TESTS = "pytest"  # stands for the Python of the test processes
INTERPRETERS = ("server", "node", "aws", "corral")
NEEDED = {"aws": ["aws"], "corral": ["corral", "server", "node"], TESTS: [TESTS]}  # `corral up` starts a server
SHARED = "CORRAL_TEST_FORKSERVER"  # names the folder of the controller's
RUN_TESTS = "import __main__; __main__.run_tests(channel)"  # what xdist executes in a test process (`worker_forks.py`)
STARTED_S = 60.0
COLLECTED_S = 600.0
FAILED = ".failed"  # of a file in that folder
NUMBER_BYTES = 4
AWS = str(Path(sys.executable).with_name("aws"))
PADDING = "-" * 8192  # room for the command line of a fork
MODULES = {  # the interpreter for a module
    "corral.server": "server", "corral.backup": "server", "corral.node": "node", "corral.node.spawner": "node",
    "corral.node.pause_program": "node",
}  # fmt: skip

# Imports only what is built into the interpreter: this script runs once per command.
SCRIPT = """\
#!{python} -IS
import _signal as signal, _socket, marshal, posix, sys
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect("{socket}")
umask = posix.umask(0)
posix.umask(umask)
ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
command = ["{program}", *sys.argv[1:]]
request = marshal.dumps((command, dict(posix.environ), posix.getcwd(), umask, ignores, False, True, [0, 1, 2]))
request = len(request).to_bytes(4, "big") + request
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
sent = server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while sent < len(request):
    sent += server.send(request[sent:])
pid = int.from_bytes(server.recv(4), "big")
if not pid:
    sys.exit("the fork server does not answer")
def forward(number, frame):
    try:
        posix.kill(pid, number)
    except ProcessLookupError:
        pass
for number in FORWARDED:
    if not (ignores and number == signal.SIGINT):
        signal.signal(number, forward)
signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
code = posix.waitstatus_to_exitcode(int.from_bytes(server.recv(4), "big"))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""


class Forkserver:
    """The interpreters: `aws` brings a botocore of its own, and a spawner should stay small.

    The process that runs all tests has one of these, or the controller of the processes that do. They end with that process.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)
        self.folder = Path(self._folder.name)
        self._interpreters: dict[str, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()
        for name in ("aws", "corral"):
            script = self.folder / name
            script.write_text(SCRIPT.format(python=sys.executable, socket=self.folder / f"{name}.socket", program=name))
            script.chmod(0o755)
        atexit.register(self.close)

    def start(self, *programs: str) -> None:
        """Start these interpreters where they do not run."""
        with self._starting:
            for name in programs:
                if name not in self._interpreters:
                    command = [sys.executable, Path(__file__).with_name("forks.py"), name, self.folder / f"{name}.socket", PADDING]
                    self._interpreters[name] = subprocess.Popen(command, stdin=subprocess.PIPE)

    def collect(self, arguments: Iterable[str]) -> None:
        """Start the process whose forks run the tests that these arguments of pytest select."""
        command = [sys.executable, Path(__file__).with_name("worker_forks.py"), self.folder / f"{TESTS}.socket", *arguments]
        self._interpreters[TESTS] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def collected(self) -> Path | None:
        """The program that stands for the Python of the test processes, or None if they must collect the tests themselves."""
        if TESTS not in self._interpreters:
            return None
        paths = [self.folder / f"{TESTS}{suffix}" for suffix in (".socket", FAILED)]
        eventually(lambda: any(path.exists() for path in paths), "collected tests", COLLECTED_S)
        return None if paths[1].exists() else self.folder / TESTS

    def share(self) -> None:
        """Start all, for processes that inherit the environment of this one."""
        self.start(*INTERPRETERS)
        os.environ[SHARED] = str(self.folder)

    def close(self) -> None:
        for interpreter in self._interpreters.values():
            interpreter.communicate()
        self._folder.cleanup()


@cache
def forkserver() -> Forkserver:
    """The one of this process, made with its first use."""
    return Forkserver()


def folder_of(*programs: str) -> Path:
    """The folder with the sockets and scripts of these programs, as soon as they are ready."""
    folder = Path(os.environ[SHARED]) if SHARED in os.environ else forkserver().folder
    if SHARED not in os.environ:
        forkserver().start(*programs)
    for name in programs:
        paths = [folder / f"{name}{suffix}" for suffix in (".socket", FAILED)]
        eventually(lambda paths=paths: any(path.exists() for path in paths), f"the fork server of {name}", STARTED_S)
        assert not paths[1].exists(), f"the fork server of {name} did not start"
    return folder


def program(name: str) -> Path:
    """The script that stands for `aws` or `corral`."""
    return folder_of(*NEEDED[name]) / name


def both() -> Path:
    """A folder for PATH, with both scripts."""
    return folder_of(*INTERPRETERS)


class Popen(subprocess.Popen):
    """Starts a module of Corral as a fork, and everything else as usual."""

    folder: ClassVar[Path | None] = None  # of the sockets, in forks
    _given = inspect.signature(subprocess.Popen._execute_child)
    _forks: socket.socket | None = None

    def _execute_child(self, *arguments: Any) -> None:
        given = self._given.bind(self, *arguments).arguments
        command, environment = [os.fspath(word) for word in given["args"]], given["env"]
        unsafe = command[:1] + command[2:] if command[1:2] == ["-P"] else command  # a fork has a search path of its own
        is_other = environment is not None and environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH")  # another Corral
        path = None if given["preexec_fn"] or is_other else self._socket_of(unsafe)
        if path is None:
            super()._execute_child(*arguments)
            return
        command = unsafe
        is_script = command[1:2] not in (["-m"], ["-u"])  # the latter is a test process
        files = [number if at == -1 else at for number, at in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"]))]
        umask = os.umask(0)
        os.umask(umask)
        ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        message = marshal.dumps((
            [os.path.basename(command[0]), *command[1:]] if is_script else command,
            {os.fsencode(name): os.fsencode(value) for name, value in (os.environ if environment is None else environment).items()},
            os.fspath(given["cwd"] or os.getcwd()), umask, ignores, bool(given["start_new_session"]), is_script,
            [0, 1, 2, *given["pass_fds"]],
        ))  # fmt: skip
        message = len(message).to_bytes(NUMBER_BYTES, "big") + message
        self._forks = socket.socket(socket.AF_UNIX)
        self._forks.connect(path)
        sent = socket.send_fds(self._forks, [message], [*files, *given["pass_fds"]])
        self._forks.sendall(message[sent:])
        self.pid = int.from_bytes(self._forks.recv(NUMBER_BYTES), "big")
        assert self.pid, "the fork server does not answer"
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))

    def _socket_of(self, command: list[str]) -> str | None:
        """Return the socket of the interpreter that runs this command, or None: the scripts of `program` need not be run first."""
        if command[:2] == [sys.executable, "-m"] and command[2] in MODULES:
            return f"{self.folder or folder_of('server', 'node')}/{MODULES[command[2]]}.socket"
        if self.folder and command[0] == AWS and (self.folder / "aws.socket").exists():  # `corral doctor` runs it
            return f"{self.folder}/aws.socket"
        folder, name = os.path.split(command[0])
        return f"{command[0]}.socket" if name in NEEDED and os.path.basename(folder).startswith(PREFIX) else None

    def __del__(self, *arguments: Any) -> None:
        """Keep no fork for a later wait: its interpreter waits for it. The garbage collector may have closed the socket already."""
        if self._forks is None:
            super().__del__(*arguments)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._forks is None:
            return super()._try_wait(wait_flags)
        try:
            status = self._forks.recv(NUMBER_BYTES, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._forks.close()
        return self.pid, int.from_bytes(status, "big") if status else signal.SIGKILL

    def _internal_poll(self, *arguments: Any, **more: Any) -> int | None:
        if self._forks is None:
            return super()._internal_poll(*arguments, **more)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode
