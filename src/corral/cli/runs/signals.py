"""Signals to `corral run`: Ctrl-C is sent to the program, and a signal that ends `corral run` also stops the task.

    SIGINT (Ctrl-C)    the first sends SIGINT to the program, the second SIGTERM, the third SIGKILL; the fourth exits at once.
                       The first cancels a task that still waits. `corral run` exits with the exit code of the program.
                       On AWS, the first Ctrl-C stops the task, and the second exits at once.
    SIGTERM, SIGQUIT   stop the task, wait until it has stopped, and exit with 128 + the number of the signal.
    SIGHUP             the same as SIGTERM, but with --detach-on-hangup the task keeps running. The kernel sends SIGHUP when the
                       terminal closes.

A signal takes effect at every moment:

    before RunTask is sent       exit; no task has started
    while RunTask is under way   remember the signal, and handle it when the response has arrived
    after that                   a thread handles it at once, even while the main thread cannot write to a full pipe

If the response of RunTask is lost, for example because the server restarts, the client repeats the request with the same
clientToken. So the request starts no second task, and the client learns the id of the first one.

A signal that was ignored when `corral run` started stays ignored, as under nohup. SIGKILL cannot be handled: if SIGKILL ends the
client, the task keeps running.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from corral.cli.client.endpoint import Endpoint, call, client, is_aws
from corral.cli.printing.errors import CliError, connection_failed
from corral.cli.printing.output import count
from corral.cli.runs import tasks

if TYPE_CHECKING:
    from corral.cli.runs.task_logs import TaskUpdates

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOT_STARTED = ("PROVISIONING", "PENDING", "ACTIVATING")  # values of lastStatus
RUNNING, WAITING, ENDED = "running", "waiting", "ended"
STEPS = ("SIGINT", "SIGTERM", "SIGKILL")  # the signals that the first, second and third Ctrl-C send
# Of several SIGINTs within this time, only the first counts. `timeout -s INT` sends each signal twice, and a pressed key repeats.
REPEATED_S = 0.25
LOST_RESPONSE_S = 20.0  # how long a request is repeated while the server does not respond
RETRY_S = 0.2
STOP_TIMEOUT_S = 30  # ECS's default of stopTimeout
STOP_MARGIN_S = 10.0  # the client waits this much longer than the stop timeout of the task
SETTLE_S = 0.005  # the polling interval of `finished`
EXIT_S = 2.0  # the main thread exits within this time, unless it cannot write to a full pipe

T = TypeVar("T")


class _Phase(Enum):
    BEFORE = auto()  # RunTask has not been sent, or the tasks have stopped
    SENDING = auto()  # RunTask is under way, or its response has just arrived
    FOLLOWING = auto()  # a thread handles signals
    SUBMITTED = auto()  # a detached task has been started, and the command is about to exit


class _Received(NamedTuple):
    number: int
    at: float  # by the monotonic clock


class _Progress:
    """What the signals have done so far."""

    step = 0  # the number of steps of STEPS that were taken
    interrupted_at = float("-inf")  # when the last SIGINT that counts was received
    leave_at: float | None = None  # when to exit without waiting any longer

    @property
    def wait_s(self) -> float | None:
        return None if self.leave_at is None else max(0.0, self.leave_at - time.monotonic())


class Leave(Exception):
    """Exit now without waiting for the task."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class SignalledRun(NamedTuple):
    """The tasks that receive the signals, and how to talk to the user."""

    endpoint: Endpoint
    cluster: str
    pending: Callable[[], Sequence[str]]  # the ids of the tasks that have not stopped
    stop_timeout_s: float
    updates: TaskUpdates  # receives Leave
    say: Callable[[str], None]  # prints a message
    follow_command: str  # shows the output of the tasks
    restore_terminal: Callable[[], None] = lambda: None


class RunSignals:
    """Handles the signals of one `corral run`. Create it first of all, in the main thread."""

    def __init__(self, *, detach_on_hangup: bool = False) -> None:
        self._detach_on_hangup = detach_on_hangup
        self._phase = _Phase.BEFORE
        self._received: list[_Received] = []
        self._queue: SimpleQueue[_Received] = SimpleQueue()
        self._started: list[tuple[Any, str, str]] = []  # (client, cluster, task ARN) of every started task
        self._handled = 0  # how many of the received signals the thread has handled
        self._stop_sent = threading.Event()
        self.ended_ids: set[str] = set()  # the tasks that were stopped, or received a signal, because of a signal
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    @property
    def interrupted(self) -> bool:
        """Whether a signal of HANDLED was received."""
        return bool(self._received)

    @property
    def end_code(self) -> int | None:
        """The exit code after a signal that ends the client. None: no such signal was received."""
        return next((128 + each.number for each in self._received if self._ends(each.number)), None)

    def _ends(self, number: int) -> bool:
        return number != signal.SIGINT and not self._detaches(number)

    def _detaches(self, number: int) -> bool:
        return number == signal.SIGHUP and self._detach_on_hangup

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        received = _Received(number, time.monotonic())
        self._received.append(received)
        if self._phase is _Phase.BEFORE:
            raise SystemExit(128 + number)
        if self._phase is _Phase.SENDING and sum(each.number == signal.SIGINT for each in self._received) > len(STEPS):
            raise SystemExit("corral: exiting without the response of RunTask. The task may have started: `corral ps` shows it.")
        self._queue.put(received)  # the thread that `follow` starts reads it

    # -- start ---------------------------------------------------------------------------------------------------

    def run_task(self, ecs: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        """Call RunTask and return its response. From the first call on, signals are remembered."""
        token = os.urandom(16).hex()
        self._phase = _Phase.SENDING
        if self._received:  # a signal came between two calls, or a library has caught the SystemExit of the handler
            self._end_before_following()
        try:
            response: dict[str, Any] = _patiently(partial(ecs.run_task, **parameters, clientToken=token))
        except Exception as error:
            if not connection_failed(error):
                raise
            raise CliError("the server does not respond to RunTask. The task may have started: `corral ps` shows it.") from None
        self._started += [(ecs, parameters["cluster"], task["taskArn"]) for task in response["tasks"]]
        return response

    def submitted(self) -> None:
        """Detached tasks have started: ignore signals from now on. If a signal was received before, stop the tasks and exit."""
        if any(not self._detaches(each.number) for each in self._received):
            self._end_before_following()
        self._phase = _Phase.SUBMITTED

    def _end_before_following(self) -> None:
        number = self._received[0].number
        for ecs, cluster, arn in reversed(self._started):
            stop_task(ecs, cluster, arn, _reason(number))
        raise SystemExit(128 + number)

    # -- follow --------------------------------------------------------------------------------------------------

    def follow(self, run: SignalledRun) -> None:
        """Start a thread that handles the remembered signals and all later signals."""
        self._run = run
        self._phase = _Phase.FOLLOWING
        threading.Thread(target=self._serve, daemon=True).start()

    def terminal_closed(self) -> None:
        """Handle EIO from a write: the terminal has closed, and this process may not have received SIGHUP."""
        discard_closed_terminals()
        known = any(each.number == signal.SIGHUP for each in self._received)
        if not known and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            received = _Received(signal.SIGHUP, time.monotonic())
            self._received.append(received)
            self._queue.put(received)

    def replaced(self, task_id: str) -> None:
        """Another task has replaced a task that failed. If a signal has been received before, stop the new task."""
        number = next((each.number for each in self._received if not self._detaches(each.number)), None)
        if number is not None:
            self.ended_ids.add(task_id)
            stop_task(client(self._run.endpoint, "ecs"), self._run.cluster, task_id, _reason(number))

    def finished(self) -> None:
        """The tasks have stopped: from now on a signal ends this process at once.

        First wait until the earlier signals are handled and their messages are printed, for at most EXIT_S.
        """
        give_up_at = time.monotonic() + EXIT_S
        while self._handled < len(self._received) and time.monotonic() < give_up_at:
            time.sleep(SETTLE_S)
        self._phase = _Phase.BEFORE

    def wait_for_stop(self) -> None:
        """Wait until StopTask has been sent because of a signal, or until it has failed."""
        self._stop_sent.wait(LOST_RESPONSE_S + EXIT_S)

    def _serve(self) -> None:
        """Handle signals until this process exits. If the tasks have not stopped by `leave_at`, exit without waiting for them."""
        state = _Progress()
        while True:
            try:
                received = self._queue.get(timeout=state.wait_s)
            except Empty:
                return self._leave(self.end_code or 1, f"{self._tasks()} did not stop in time; see `corral ps`")
            if self._handle(received, state):
                return None
            self._handled += 1

    def _handle(self, received: _Received, state: _Progress) -> bool:
        """Handle one signal. Return True if this process exits without waiting for the tasks."""
        number, at = received
        if number != signal.SIGINT:
            discard_closed_terminals()
            if self._detaches(number):
                self._leave(128 + number, f"{self._tasks()} {self._one_or_many('keeps', 'keep')} running; {self._how_to_follow()}")
                return True
            state.step = max(state.step, STEPS.index("SIGTERM") + 1)
            state.leave_at = state.leave_at or at + self._run.stop_timeout_s + STOP_MARGIN_S
            self._end(number)
        elif at - state.interrupted_at > REPEATED_S:
            state.interrupted_at, state.step = at, state.step + 1
            if state.step > len(STEPS) or (state.step > 1 and is_aws(self._run.endpoint)):
                self._leave(128 + number, f"exiting without waiting for {self._tasks()}; {self._how_to_follow()}")
                return True
            if not self._interrupt(state.step):
                state.step = len(STEPS)
        return False

    def _interrupt(self, step: int) -> bool:
        """Send the signal of this Ctrl-C to the tasks. Return False if no task was running, so that the next Ctrl-C exits.

        AWS has no operation that sends a signal, so a task on AWS is stopped.
        """
        run, name = self._run, STEPS[step - 1]
        following = f"the next Ctrl-C sends {STEPS[step]}" if step < len(STEPS) else "the next Ctrl-C exits without waiting"
        try:
            if is_aws(run.endpoint):
                self._stop("corral run was interrupted")
                run.say(f"stopping {self._tasks()}; the next Ctrl-C exits without waiting")
                return False
            if name == "SIGKILL":
                self._stop("Ctrl-C was pressed three times in corral run: SIGKILL")
            asked = list(reversed(run.pending()))  # waiting tasks first, so that none starts when another one has stopped
            states = [self._send_or_stop(task_id, name) for task_id in asked]
        except Exception as error:
            run.say(f"{name} could not be sent to {self._tasks()}: {error}; {following}")
            return True
        running, waiting = states.count(RUNNING), states.count(WAITING)
        if len(asked) == 1:
            one = f"task {tasks.short(asked[0])}"
            done = f"sent {name} to {one}" if running else f"cancelled {one}, which had not started" if waiting else ""
        else:
            sent = [f"sent {name} to {count(running, 'task')}"] if running else []
            had_not = f"cancelled {count(waiting, 'task')} that had not started"
            done = " and ".join([*sent, *([had_not] if waiting else [])])
        if running:
            run.say(f"{done}; {following}")
        elif asked:
            run.say(
                done
                or f"{self._tasks()} {self._one_or_many('has', 'have')} ended; the next Ctrl-C exits without the rest of the output"
            )
        return bool(running)

    def _send_or_stop(self, task_id: str, name: str) -> str:
        """Send a signal to the running containers of a task, or stop a task that has not started.

        Return what the task did before: RUNNING, WAITING, or ENDED if its containers have ended.
        """
        asked = {"task": task_id, "signal": name, "cluster": self._run.cluster}
        page = _patiently(partial(call, self._run.endpoint, "SignalTask", asked))[0]
        if page["containers"] or page["lastStatus"] in NOT_STARTED:
            self.ended_ids.add(task_id)
        if page["containers"]:
            return RUNNING
        stop_task(client(self._run.endpoint, "ecs"), self._run.cluster, task_id, "Ctrl-C was pressed in corral run")
        return WAITING if page["lastStatus"] in NOT_STARTED else ENDED

    def _end(self, number: int) -> None:
        if self._stop_sent.is_set():
            return
        text = f"received {signal.Signals(number).name}: stopping {self._tasks()}"
        try:
            self._stop(_reason(number))
        except Exception as error:
            text = f"{self._tasks()} could not be stopped: {error}. Try `corral stop`."
        self._stop_sent.set()
        self._run.say(text)  # only now, because a full pipe may delay the message

    def _stop(self, reason: str) -> None:
        for task_id in reversed(self._run.pending()):
            self.ended_ids.add(task_id)
            stop_task(client(self._run.endpoint, "ecs"), self._run.cluster, task_id, reason)

    def _leave(self, code: int, text: str) -> None:
        """Let the main thread exit. If it cannot write to a full pipe, exit without it."""
        self._run.updates.put(Leave(code, text))
        time.sleep(EXIT_S)
        with suppress(Exception):
            self._run.restore_terminal()
        os._exit(code)

    def _tasks(self) -> str:
        pending = self._run.pending()
        return f"task {tasks.short(pending[0])}" if len(pending) == 1 else f"{len(pending)} tasks"

    def _how_to_follow(self) -> str:
        return f"follow {self._one_or_many('it', 'them')} with `{self._run.follow_command}`"

    def _one_or_many(self, one: str, many: str) -> str:
        return one if len(self._run.pending()) == 1 else many


def _reason(number: int) -> str:
    return f"corral run received {signal.Signals(number).name}"


def stop_task(ecs: Any, cluster: str, task: str, reason: str) -> None:
    _patiently(partial(ecs.stop_task, cluster=cluster, task=task, reason=reason))


def _patiently(call: Callable[[], T]) -> T:
    """Return the result of `call`. Repeat the call while the server does not respond, for at most LOST_RESPONSE_S."""
    give_up_at = time.monotonic() + LOST_RESPONSE_S
    while True:
        try:
            return call()
        except Exception as error:
            if not connection_failed(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(RETRY_S)


def stop_timeout_s(definition: dict[str, Any]) -> float:
    """Return the longest time that StopTask waits between SIGTERM and SIGKILL."""
    return float(max(defined.get("stopTimeout", STOP_TIMEOUT_S) for defined in definition["containerDefinitions"]))


def is_terminal_closed(error: OSError) -> bool:
    return error.errno == errno.EIO


def discard_closed_terminals() -> None:
    """Replace stdout and stderr by /dev/null if they are terminals that have closed, so that messages do not fail."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)
    for fd, events in poll.poll(0):
        if events & select.POLLHUP and stat.S_ISCHR(os.fstat(fd).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
