"""Arrays: `corral run --array 0-99%8` starts one task for each index, and waits for all of them.

The tasks are the members of the array. Their tag `corral:array` contains the id of the array, the index of the member, and the
limit: how many members may run at the same time. The server sets the variable CORRAL_INDEX of each member, and enforces the limit.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from corral.cli.client.endpoint import client
from corral.cli.printing.errors import BROKEN_PIPE, INTERRUPTED, NO_EXIT_CODE, TIMED_OUT, TasksLost
from corral.cli.printing.output import count, print_json, print_message, print_progress, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.notify import RunNotifications
from corral.cli.runs.signals import Leave, RunSignals, SignalledRun, is_terminal_closed, stop_task, stop_timeout_s
from corral.cli.runs.submission import ArrayPart, Submission, run_tasks
from corral.cli.runs.task_logs import TaskUpdates
from corral.cli.runs.values import ArraySpec, call_batches

if TYPE_CHECKING:
    from corral.cli.runs.array_output import ArrayOutput

ID_BYTES = 6  # 12 hexadecimal digits
FAILED_SHOWN = 10
REASONS_SHOWN = 3
PROGRESS_MIN = 100  # arrays with at most this many members are submitted without a progress bar


class SubmittedArray(NamedTuple):
    id: str
    spec: ArraySpec
    members: dict[int, str]  # index → task id

    def described(self) -> dict[str, Any]:
        return {"arrayId": self.id, "limit": self.spec.limit, "tasks": {str(index): task for index, task in self.members.items()}}


class ArrayRun(NamedTuple):
    submission: Submission
    array: SubmittedArray
    signals: RunSignals
    as_json: bool
    notifications: RunNotifications


def submit_array(parts: Sequence[ArrayPart], limit: int, signals: RunSignals) -> SubmittedArray:
    """Submit the members, at most ten with each RunTask call. After a signal, `signals` stops the members already submitted."""
    spec = ArraySpec(tuple(sorted(index for part in parts for index in part.indexes)), limit)
    array = SubmittedArray(os.urandom(ID_BYTES).hex(), spec, {})
    total = len(spec.indexes)
    shows_progress = sys.stderr.isatty() and total > PROGRESS_MIN
    try:
        for submission, batch in ((part.submission, batch) for part in parts for batch in call_batches(part.indexes)):
            tag = {"key": tasks.ARRAY_TAG, "value": f"{array.id} {batch[0]} {batch.step} {spec.limit}"}
            started = run_tasks(
                submission, signals, count=len(batch), started_by=tasks.STARTED_BY_ARRAY + array.id, more_tags=(tag,)
            )
            array.members.update(zip(batch, map(tasks.id_of, started), strict=True))
            if shows_progress:
                print_progress(_bar(len(array.members), total))
    except BaseException as error:
        if array.members:
            state = "they were stopped" if isinstance(error, SystemExit) else f"`corral stop {array.id}` stops them"
            print_message(f"{len(array.members)} of {total} tasks of array {array.id} were submitted; {state}")
        raise
    finally:
        if shows_progress:
            print_progress()
    return array


def _bar(done: int, total: int) -> str:
    width = 30
    filled = width * done // total
    return f"submitting tasks [{'#' * filled}{'.' * (width - filled)}] {done} of {total}"


def stop_all(submission: Submission, task_ids: list[str]) -> None:
    """Stop tasks, the last one first, so that a waiting task does not start when a running one stops."""
    ecs = client(submission.endpoint, "ecs")
    for task_id in reversed(task_ids):
        stop_task(ecs, submission.cluster, task_id, "the reader of the output has closed it")


def wait_for_array(run: ArrayRun) -> None:
    """Print the output of the members until all have stopped. Exit with the largest of their exit codes."""
    from corral.cli.runs.array_output import ArrayOutput
    from corral.cli.runs.log_printer import LogPrinter

    submission, array = run.submission, run.array
    labels = [tasks.title(submission.name, index) for index in (min(array.members), max(array.members))]
    names = [*labels, ""] if len(array.members) > 1 else []  # the lines of a single member have no prefix
    printer = LogPrinter(names or labels[:1], timestamps=False, as_json=False, out=sys.stderr if run.as_json else None)
    output = ArrayOutput(submission.endpoint, submission.cluster, submission.definition, array.members, printer)

    updates: TaskUpdates = SimpleQueue()

    def pending() -> list[str]:
        return list(output.pending.values())

    known = set(pending())

    def pause(seconds: float) -> None:
        for replacement in set(pending()) - known:
            known.add(replacement)
            run.signals.replaced(replacement)
        with suppress(Empty):
            raise updates.get(timeout=seconds)  # Leave is the only update

    def say(text: str) -> None:
        with suppress(OSError):
            print_message(text)

    timeout_s, command = stop_timeout_s(submission.definition), f"corral logs -f {array.id}"
    run.signals.follow(SignalledRun(submission.endpoint, submission.cluster, pending, timeout_s, updates, say, command))
    at_once = f", at most {array.spec.limit} at the same time" if array.spec.limit else ""
    print_message(f"array {array.id} has {count(len(array.members), 'task')}{at_once}")
    try:
        _follow(output, pause, run.signals)
    except BrokenPipeError:  # the reader has closed the pipe: stop the tasks, as SIGPIPE would stop a local program
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stop_all(submission, pending())
        run.notifications.send_later(list(array.members.values()))
        sys.exit(BROKEN_PIPE)
    except Leave as leave:
        run.notifications.send_later(list(array.members.values()))
        say(leave.text)
        sys.exit(leave.code)
    except TasksLost:
        raise
    except Exception:
        if run.signals.end_code is not None:
            run.signals.wait_for_stop()
            sys.exit(run.signals.end_code)
        run.notifications.send_later(list(array.members.values()))
        say(f"the tasks keep running; follow them with `{command}`")
        raise
    if run.as_json:
        print_json(list(output.ended.values()))
    run.signals.finished()
    code = run.signals.end_code or _report(submission, array, output.ended, run.signals.ended_ids)
    run.notifications.send(list(output.ended.values()), code)
    sys.exit(code)


def _follow(output: ArrayOutput, pause: Callable[[float], None], signals: RunSignals) -> None:
    """Print the output until all members have stopped. If the terminal closes, continue without it."""
    while True:
        try:
            output.follow(pause)
            return
        except OSError as error:
            if not is_terminal_closed(error):
                raise
            signals.terminal_closed()


def _report(submission: Submission, array: SubmittedArray, ended: dict[int, dict[str, Any]], interrupted: set[str]) -> int:
    """Print how many members failed, and how many were stopped. Return the largest exit code.

    `interrupted` are the ids of the tasks that Ctrl-C has ended. A member that neither ECS nor the history describes counts as
    failed with NO_EXIT_CODE.
    """
    codes = {index: _code(submission.definition, ended[index]) if index in ended else NO_EXIT_CODE for index in array.members}
    by_us = {index for index, task in ended.items() if codes[index] and tasks.id_of(task) in interrupted}
    stopped = {index for index, task in ended.items() if codes[index] and _is_stopped_by_user(task)} | by_us
    failed = [index for index, code in codes.items() if code and index not in stopped]
    titles = {index: tasks.title(submission.name, index) for index, code in codes.items() if code}
    of_all = f"of {count(len(codes), 'task')} of array {array.id}"
    if failed:
        print_message(f"{len(failed)} {of_all} failed: {_listed([f'{titles[each]} with {codes[each]}' for each in failed])}")
    if stopped:
        were = "was" if len(stopped) == 1 else "were"
        print_message(f"{len(stopped)} {of_all} {were} stopped: {_listed([titles[each] for each in sorted(stopped)])}")
    explained = [ended[index] for index in titles if index in ended and index not in by_us]
    reasons = Counter(why for task in explained if (why := shorten_ids(tasks.reason(task))))
    for why, number in reasons.most_common(REASONS_SHOWN):
        print_message(f"{count(number, 'task')}: {why}")
    if titles:
        print_message(f"`corral rerun --failed {array.id}` runs {'it' if len(titles) == 1 else 'them'} again")
    return max(codes.values(), default=0)


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - FAILED_SHOWN} more" if len(names) > FAILED_SHOWN else ""
    return ", ".join(names[:FAILED_SHOWN]) + more


def _is_stopped_by_user(task: dict[str, Any]) -> bool:
    return task.get("stopCode") == "UserInitiated" and not tasks.reached_time_limit(task)


def _code(definition: dict[str, Any], task: dict[str, Any]) -> int:
    if tasks.reached_time_limit(task):
        return TIMED_OUT
    code = tasks.exit_code(definition, task)
    if code is None:
        return INTERRUPTED if task.get("stopCode") == "UserInitiated" else NO_EXIT_CODE
    return code
