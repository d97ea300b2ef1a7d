"""A pytest process that collects the tests once, and forks itself into the test processes of pytest-xdist.

    python worker_forks.py SOCKET ARGUMENTS        where ARGUMENTS are those of pytest

To import the files of all tests, and to make the tests, takes some ten seconds of CPU time, which each test process would otherwise
spend. A fork starts as xdist starts a process of its own (`xdist.remote`), except that its session has all tests already. If the
tests cannot be collected, xdist starts its own processes, which report why.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import _pytest.faulthandler
import pytest
from _pytest.config import _prepareconfig
from _pytest.tmpdir import TempPathFactory

import forkserver
from forks import Forks, Request, become

COLLECTED: list[pytest.Session] = []
WARM_TESTS_MIN = 1000  # of a run in which all forks need most models
LONG_S = 0.1  # for --durations


class Template:
    """The plugin that forks test processes instead of running the collected tests."""

    def __init__(self, path: str) -> None:
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if len(session.items) > WARM_TESTS_MIN:
            read_models()
        if session.testsfailed or threading.active_count() > 1:
            raise session.Interrupted("the tests cannot run in forks")
        COLLECTED.append(session)
        session.config.pluginmanager.unregister(self)
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()
        gc.freeze()
        Forks(self._path, _serve_xdist).serve()
        os._exit(0)


def read_models() -> None:
    """Read the models of all services, which each test process would otherwise read in its first tests of a service."""
    from corral.aws.catalogue import SERVICE_BY_NAME
    from corral.aws.models import service_model
    from corral.operations.services import SERVICES
    from harness import SESSION

    available = SESSION.get_available_services()
    for name in SERVICES:
        for protocol in SERVICE_BY_NAME[name].protocols:
            service_model(name, protocol)
        if name in available:
            SESSION.client(name, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")


def _serve_xdist(request: Request, files: list[int]) -> None:
    """Run what xdist sends to a new process. The files of this one stay open, because plugins of pytest write to some."""
    become(request, files)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    os._exit(0)


def run_tests(channel: Any) -> None:
    """Run tests of the session as `xdist.remote` does."""
    import xdist.remote

    workerinput, _, options, sys.path = channel.receive()
    for variable, name in (("TESTRUNUID", "testrunuid"), ("WORKER", "workerid"), ("WORKER_COUNT", "workercount")):
        os.environ[f"PYTEST_XDIST_{variable}"] = str(workerinput[name])
    random.seed()  # forks would make the same random choices
    [session] = COLLECTED
    config = session.config
    config.option.basetemp = options.get("basetemp")
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)
    config.workerinput, config.workeroutput = workerinput, {}
    _pytest.faulthandler.pytest_configure(config)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()

    class Worker(xdist.remote.WorkerInteractor):
        """Sends half of the messages, because the messages of a test cost more time than most tests."""

        def pytest_runtest_logstart(self) -> None:
            pass

        @pytest.hookimpl
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            """Leave out that a fixture was made, or ended, in a short time and without output."""
            if report.when == "call" or not report.passed or report.sections or report.duration > LONG_S:
                super().pytest_runtest_logreport(report)

    worker = xdist.remote.interactor = Worker(config, channel)
    worker.pytest_sessionstart(session)
    worker.pytest_collection_modifyitems(config, session.items)
    worker.pytest_collection_finish(session)
    try:
        worker.pytest_runtestloop(session)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
    except KeyboardInterrupt:
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    except BaseException:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        config.notify_exception(pytest.ExceptionInfo.from_current())
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        config._ensure_unconfigure()


def main(path: str, arguments: list[str]) -> None:
    sys.path[0] = os.getcwd()  # as for `python -m pytest`
    try:
        config = _prepareconfig(arguments)  # before the import of xdist, whose assertions it rewrites
        import xdist.remote

        xdist.remote.setup_config(config, None)
        config.pluginmanager.register(Template(path))
        config.hook.pytest_cmdline_main(config=config)
    finally:
        Path(path).with_suffix(forkserver.FAILED).touch()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
