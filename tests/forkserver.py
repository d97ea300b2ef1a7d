"""Runs `aws` and `corral` as forks of one interpreter that has imported both already.

A cold `aws` costs 0.8 s of CPU time, nearly all of it for imports and models; a fork costs a tenth of that. `Forkserver.program` is
a small script that stands for the command: it hands its arguments, environment, folder and standard streams to the server, passes
signals on, and ends as the fork ends. The fork runs the installed entry point, so only the imports and the models are shared.

The fork has another parent process and no controlling terminal: tests of terminals start the real command.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import locale
import marshal
import os
import pkgutil
import posix
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

BIN = Path(sys.executable).parent
STREAMS = 3
NUMBER_BYTES = 4
AWS_SERVICES: set[str] = set()  # in the server of `aws`: the words that name a service

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
request = marshal.dumps(("{program}", sys.argv[1:], dict(posix.environ), posix.getcwd(), umask, ignores))
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
    """Scripts that stand for `aws` and `corral`, and an interpreter for each: `aws` brings a botocore of its own.

    There is one of these per test process, and it ends with that process.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="corral-forkserver-")
        self.folder = Path(self._folder.name)
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        atexit.register(self.close)

    def program(self, name: str) -> Path:
        """The script that stands for `aws` or `corral`."""
        if name not in self._servers:
            script, path = self.folder / name, self.folder / f"{name}.socket"
            script.write_text(SCRIPT.format(python=sys.executable, socket=path, program=name))
            script.chmod(0o755)
            server = subprocess.Popen([sys.executable, __file__, name, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert server.stdout is not None and server.stdout.readline(), "the fork server did not start"
            self._servers[name] = server
        return self.folder / name

    def both(self) -> Path:
        """A folder for PATH."""
        for name in ("aws", "corral"):
            self.program(name)
        return self.folder

    def close(self) -> None:
        for server in self._servers.values():
            server.communicate()
        self._folder.cleanup()


_started: list[Forkserver] = []


def forkserver() -> Forkserver:
    """The one of this process, made with its first use."""
    if not _started:
        _started.append(Forkserver())
    return _started[0]


# the server


def serve(program: str, path: str) -> None:
    """Accept commands until standard input ends."""
    import_aws() if program == "aws" else import_corral()
    os.execve = partial(_execve, Path(path).with_name("aws"))
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    for source in (listener, woken, 0):
        selector.register(source, selectors.EVENT_READ)
    callers: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            elif key.fileobj == woken:
                os.read(woken, 65_536)
            elif key.fileobj is listener:
                caller = listener.accept()[0]
                pid = _fork(caller)
                callers[pid] = caller
                selector.register(caller, selectors.EVENT_READ, pid)
                _tell(caller, pid)
            else:  # the caller was killed, and the command with it
                selector.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)
        for pid, status in _ended():
            caller = callers.pop(pid)
            if caller in selector.get_map():
                selector.unregister(caller)
                _tell(caller, status)
            caller.close()


def import_aws() -> None:
    import awscli.clidriver

    share_models()
    driver = awscli.clidriver.create_clidriver()  # imports its plugins
    AWS_SERVICES.update(driver.session.get_available_services(), ["s3api"])


def share_models() -> None:
    """Let botocore keep what it reads from its data folders. A fork has what the server had read before."""
    from botocore.loaders import JSONFileLoader, Loader

    load, listed = JSONFileLoader.load_file, Loader.list_available_services
    files: dict[str, Any] = {}
    services: dict[tuple[str, ...], list[str]] = {}

    def load_file(self: Any, path: str) -> Any:
        if path not in files and (found := load(self, path)) is not None:
            files[path] = found
        return files.get(path)

    def list_available_services(self: Any, type_name: str) -> list[str]:
        key = (type_name, *self.search_paths)
        if key not in services:
            services[key] = listed(self, type_name)
        return services[key]

    JSONFileLoader.load_file = load_file
    Loader.list_available_services = list_available_services


@cache
def read_models(name: str, data_path: str | None) -> None:
    """Read what `aws NAME` reads, once in the server. `data_path` is AWS_DATA_PATH of the caller."""
    import awscli.clidriver
    from botocore.exceptions import DataNotFoundError

    os.environ.pop("AWS_DATA_PATH", None)
    if data_path is not None:
        os.environ["AWS_DATA_PATH"] = data_path
    importlib.reload(awscli)  # puts its models into AWS_DATA_PATH
    driver = awscli.clidriver.create_clidriver()
    service = "s3" if name == "s3api" else name
    driver.create_help_command().command_table[name].create_help_command()  # reads the operations
    client = driver.session.create_client(service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    _ = client.waiter_names
    with suppress(DataNotFoundError):
        driver.session.get_paginator_model(service)
    gc.collect()
    gc.freeze()


def import_corral() -> None:
    import boto3

    import corral.cli

    share_models()

    for module in pkgutil.walk_packages(corral.cli.__path__, "corral.cli."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    keys = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    session = boto3.session.Session()
    for service in ("ecs", "logs"):
        session.client(service, endpoint_url="http://127.0.0.1:9", **keys)


def _ended() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _tell(caller: socket.socket, number: int) -> None:
    with suppress(OSError):  # it was killed
        caller.sendall(number.to_bytes(NUMBER_BYTES, "big"))


def _fork(caller: socket.socket) -> int:
    """The pid of a fork that runs the command this caller sends."""
    data, streams, _, _ = socket.recv_fds(caller, 65_536, STREAMS)
    length = NUMBER_BYTES + int.from_bytes(data[:NUMBER_BYTES], "big")
    while len(data) < length and (part := caller.recv(65_536)):
        data += part
    request = marshal.loads(data[NUMBER_BYTES:])
    _, arguments, environment, *_ = request
    for service in [word for word in arguments if word in AWS_SERVICES][:1]:
        given = environment.get(b"AWS_DATA_PATH")
        read_models(service, None if given is None else os.fsdecode(given))
    pid = os.fork()
    if pid == 0:
        try:
            _run(request, streams)
        finally:
            os._exit(70)
    for stream in streams:
        os.close(stream)
    return pid


def _run(request: tuple[str, list[str], dict[bytes, bytes], str, int, bool], streams: list[int]) -> None:
    """Be this command from here on."""
    program, arguments, environment, folder, umask, ignores_sigint = request
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignores_sigint else signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(STREAMS, 4096)
    os.environb.clear()
    os.environb.update(environment)
    os.chdir(folder)
    os.umask(umask)
    time.tzset()
    locale.setlocale(locale.LC_CTYPE, "")
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape")
    sys.stdout = sys.__stdout__ = _writer(1, "surrogateescape", unbuffered, os.isatty(1))
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", unbuffered, True)
    sys.argv = [str(BIN / program), *arguments]
    if "awscli" in sys.modules:
        importlib.reload(sys.modules["awscli"])  # puts its models into AWS_DATA_PATH
    code = _outcome(program)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120  # as the interpreter does
    os._exit(code)


def _execve(aws: Path, path: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """`corral aws` replaces itself by the script that stands for `aws`, if there is one."""
    posix.execve(aws if path == str(BIN / "aws") and aws.exists() else path, arguments, environment)


def _writer(number: int, errors: str, unbuffered: bool, lines: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "wb", closefd=False)
    buffer = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=lines, write_through=unbuffered)


def _outcome(program: str) -> int:
    """Run the entry point that pip installed; return its exit code."""
    try:
        runpy.run_path(str(BIN / program), run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, int):
            return ended.code & 0xFF
        if ended.code is not None:
            print(ended.code, file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(*sys.argv[1:])
