"""An interpreter that has imported programs already, and forks itself to run them: `python forks.py PROGRAMS SOCKET PADDING`.

PROGRAMS is "aws", "corral", "server" or "node": the commands of these names, the modules of the server, or those of the agent and
the spawner. `forkserver.py` starts one such interpreter for each and sends requests to it. A request has the command as a list of
words, and its environment, folder and open files. A fork shows the command of its request as its command line, like a process that
was started in the usual way: PADDING is the space for that.

An ended fork stays a zombie until its caller has its status, as a child does.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
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
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import forkserver

BIN = Path(sys.executable).parent
FILES_MAX = 64  # of one request
NUMBER_BYTES = 4
ARGUMENTS_START_FIELD, ARGUMENTS_END_FIELD = 48, 49  # of /proc/self/stat, where the first one has number 1
PR_SET_MM, PR_SET_MM_ARG_END = 35, 9
AWS_SERVICES: set[str] = set()  # in the interpreter of `aws`: the words that name a service

Request = tuple[list[str], dict[bytes, bytes], str, int, bool, bool, bool, list[int]]  # `forkserver.Popen` makes it


class Forks:
    """Accepts requests until standard input ends, and passes the exit statuses of its forks on."""

    def __init__(self, path: str, run: Callable[[Request, list[int]], None]) -> None:
        self._run = run
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        os.rename(f"{path}.new", path)  # from now on callers find it
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        self._selector.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                if key.fd in self._selector.get_map():  # an earlier event may have closed it
                    key.data()

    def _accept(self) -> None:
        caller = self._listener.accept()[0]
        data, files, _, _ = socket.recv_fds(caller, 65_536, FILES_MAX)
        length = NUMBER_BYTES + int.from_bytes(data[:NUMBER_BYTES], "big")
        while len(data) < length and (part := caller.recv(65_536)):
            data += part
        if len(data) < length:  # the caller was killed before it had sent all
            for file in files:
                os.close(file)
            caller.close()
            return
        request: Request = marshal.loads(data[NUMBER_BYTES:])
        command, environment = request[:2]
        for service in [word for word in command if word in AWS_SERVICES][:1]:
            given = environment.get(b"AWS_DATA_PATH")
            read_models(service, None if given is None else os.fsdecode(given))
        pid = os.fork()
        if pid == 0:
            try:
                self._run(request, files)
            finally:
                os._exit(70)
        for file in files:
            os.close(file)
        self._follow(pid, caller, bound=request[6])
        _tell(caller, pid)

    def _follow(self, pid: int, caller: socket.socket, bound: bool) -> None:
        ends, callers = os.pidfd_open(pid), [caller]

        def ended() -> None:
            self._selector.unregister(ends)
            os.close(ends)
            if callers:
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert found is not None
                _tell(caller, found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status)
            else:
                os.waitpid(pid, 0)

        def left() -> None:
            """The caller has the status, or it was killed."""
            self._selector.unregister(caller)
            caller.close()
            callers.clear()
            if ends not in self._selector.get_map():
                os.waitpid(pid, 0)
            elif bound:
                os.kill(pid, signal.SIGKILL)

        self._selector.register(ends, selectors.EVENT_READ, ended)
        self._selector.register(caller, selectors.EVENT_READ, left)


def _tell(caller: socket.socket, number: int) -> None:
    with suppress(OSError):  # it was killed
        caller.sendall(number.to_bytes(NUMBER_BYTES, "big"))


# what each interpreter imports


def import_aws() -> None:
    import awscli.clidriver

    share_models()
    driver = awscli.clidriver.create_clidriver()  # imports its plugins
    AWS_SERVICES.update(driver.session.get_available_services(), ["s3api"])


def share_models() -> None:
    """Let botocore keep what it reads from its data folders, and what it finds out about event handlers.

    A fork has what this process had before. The folder of models in the home of its user is read anew.
    """
    from botocore import hooks
    from botocore.loaders import JSONFileLoader, Loader

    load, listed, make_aliaser = JSONFileLoader.load_file, Loader.list_available_services, hooks.EventAliaser.__init__
    inspect_kwargs = hooks.accepts_kwargs
    files: dict[str, Any] = {}
    services: dict[tuple[str, str], list[str]] = {}
    aliases: dict[str, str] = {}

    def load_file(self: Any, path: str) -> Any:
        if path not in files and (found := load(self, path)) is not None:
            files[path] = found
        return files.get(path)

    def list_available_services(self: Any, type_name: str) -> list[str]:
        found = set()
        for path in self.search_paths:
            if (path, type_name) not in services:
                services[path, type_name] = listed(Loader(extra_search_paths=[path], include_default_search_paths=False), type_name)
            found.update(services[path, type_name])
        return sorted(found)

    def accepts_kwargs(handler: Any) -> bool:
        """Read a flag of the code: to inspect the signatures of all handlers takes a tenth of the time of a command."""
        code = getattr(handler, "__code__", None)
        return bool(inspect_kwargs(handler) if code is None else code.co_flags & inspect.CO_VARKEYWORDS)

    def init(self: Any, event_emitter: Any, event_aliases: Any = None) -> None:
        make_aliaser(self, event_emitter, event_aliases)
        if event_aliases in (None, hooks.EVENT_ALIASES):
            self._alias_name_cache = aliases

    JSONFileLoader.load_file = load_file
    Loader.list_available_services = list_available_services
    hooks.EventAliaser.__init__ = init
    hooks.accepts_kwargs = accepts_kwargs


@cache
def read_models(name: str, data_path: str | None) -> None:
    """Read what `aws NAME` reads, before the fork. `data_path` is AWS_DATA_PATH of the caller."""
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

    share_models()
    import_all("corral.cli")
    keys = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    session = boto3.session.Session()
    for service in ("ecs", "logs", "cloudformation", "autoscaling"):
        client = session.client(service, endpoint_url="http://127.0.0.1:9", **keys)
        client.can_paginate(next(iter(client.meta.method_to_api_mapping)))  # reads another file
        _ = client.waiter_names


def import_server() -> None:
    """Import the server, and read the models of all services as their first requests do."""
    import_all("corral.server", "corral.reconcile", "corral.services", "corral.aws", "corral.backup")
    from corral.aws.catalogue import SERVICE_BY_NAME
    from corral.aws.models import service_model
    from corral.operations.services import SERVICES

    for name in SERVICES:
        for protocol in SERVICE_BY_NAME[name].protocols:
            service_model(name, protocol)
    share_schemas()


def share_schemas() -> None:
    """Let a new database file start as a copy of an empty one in memory: the statements of its schema take 50 ms.

    Servers that are not forks, such as those of the README's commands, execute the statements.
    """
    from corral.core import database
    from corral.core.schema_origin import Origin, write_origin
    from corral.store.state import Store
    from corral.telemetry.logs import LogStore
    from corral.telemetry.metrics import MetricStore
    from corral.version import full_version

    for store in (Store, LogStore, MetricStore):
        store(None).close()
        with database._IN_MEMORY[store._script()] as empty:
            write_origin(empty, Origin(store.digest(), full_version()))
    migrate = database.Database._migrate

    def copy_or_migrate(self: Any, *, fresh: bool) -> None:
        if fresh:
            database._IN_MEMORY[self._script()].backup(self.connection)
        else:
            migrate(self, fresh=False)

    database.Database._migrate = copy_or_migrate


def import_node() -> None:
    import_all("corral.node")


def import_all(*packages: str) -> None:
    """Import all modules of these packages. Programs are forgotten again: `runpy` runs them anew."""
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in [name for name in sys.modules if name.endswith(".__main__") or name == "corral.node.spawner"]:
        del sys.modules[name]


IMPORTS: dict[str, Callable[[], None]] = {
    "aws": import_aws, "corral": import_corral, "server": import_server, "node": import_node,
}  # fmt: skip


# a fork


def become(request: Request, files: list[int]) -> None:
    """Take the files, the environment and the folder of this request."""
    _, environment, folder, umask, ignores_sigint, new_session, _, numbers = request
    if new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignores_sigint else signal.default_int_handler)
    _place(files, numbers)
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


def _run(request: Request, files: list[int]) -> None:
    """Be this command from here on."""
    become(request, files)
    command, _, folder, *_, numbers = request
    _close_others(numbers)
    if "awscli" in sys.modules:
        importlib.reload(sys.modules["awscli"])  # puts its models into AWS_DATA_PATH
    if command[1:2] == ["-m"]:
        _show_command(command)
        sys.path[0] = folder
        sys.argv = ["-m", *command[3:]]
        code = _outcome(partial(runpy.run_module, command[2], run_name="__main__", alter_sys=True))
    else:
        sys.argv = [str(BIN / command[0]), *command[1:]]
        code = _outcome(partial(runpy.run_path, sys.argv[0], run_name="__main__"))  # the entry point that pip installed
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120  # as the interpreter does
    os._exit(code)


def _place(files: list[int], numbers: list[int]) -> None:
    """Give the files of the request their numbers."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers):
        os.dup2(file, number)
        os.close(file)


def _close_others(numbers: list[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in numbers:
            with suppress(OSError):
                os.close(int(name))


def _show_command(command: list[str]) -> None:
    """Write the command over the arguments of this process: tests and Corral find processes by them."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = (int(fields[field - 3]) for field in (ARGUMENTS_START_FIELD, ARGUMENTS_END_FIELD))
    shown = b"".join(os.fsencode(word) + b"\0" for word in command)
    assert len(shown) < end - start, "the command is longer than the padding"
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_MM, PR_SET_MM_ARG_END, ctypes.c_ulong(start + len(shown)), 0, 0)  # without the right to do so, zeros follow


def _writer(number: int, errors: str, unbuffered: bool, lines: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "wb", closefd=False)
    buffer = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=lines, write_through=unbuffered)


def _outcome(run: Callable[[], object]) -> int:
    """Run a program; return its exit code."""
    try:
        run()
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


def _execve(aws: Path, path: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """`corral aws` replaces itself by the script that stands for `aws`, if its interpreter runs."""
    warm = path == str(BIN / "aws") and aws.with_suffix(".socket").exists()
    posix.execve(aws if warm else path, arguments, environment)


def main(programs: str, path: str) -> None:
    try:
        IMPORTS[programs]()
    except BaseException:
        Path(path).with_suffix(forkserver.FAILED).touch()
        raise
    folder = Path(path).parent
    os.execve = partial(_execve, folder / "aws")
    forkserver.Popen.folder = folder
    subprocess.Popen = forkserver.Popen
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Forks(path, _run).serve()


if __name__ == "__main__":
    main(*sys.argv[1:3])
