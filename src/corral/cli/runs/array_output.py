"""Prints the output of an array: of the tasks that `corral run --array` has started, one for each index.

These tasks are the members of the array. There can be thousands of them. `task_logs.follow` needs a thread for each task and for
each log, which is too many for an array. This module reads all logs in one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from time import sleep
from typing import Any

from corral.cli.client.endpoint import Endpoint
from corral.cli.printing.output import print_message, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.log_printer import LogPrinter
from corral.cli.runs.log_states import TaskLogStream
from corral.cli.runs.recorded_runs import describe_everywhere
from corral.cli.runs.task_logs import FROM_START, LogStart, log_streams, pages, pages_until_complete, through_outages

POLL_S = 0.5


class ArrayOutput:
    """Prints the output of the members until all have stopped.

    `follow` works in rounds. A round describes the first hundred members that have not stopped, because one call of DescribeTasks
    can describe a hundred tasks. It prints their new output. Members start in the order of their indexes, so these hundred include
    all running members, if at most a hundred run. If more run, the output of the others is printed when earlier members have
    stopped.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        cluster: str,
        definition: dict[str, Any],
        members: dict[int, str],
        printer: LogPrinter,
        start: LogStart = FROM_START,
    ) -> None:
        self._endpoint = endpoint
        self._cluster = cluster
        self._definition = definition
        self._printer = printer
        self._start = start
        self._tokens: dict[TaskLogStream, str | None] = {}  # log → the token of the next page
        self._reason = ""
        self.pending = dict(members)  # index → task id, for the members that have not stopped
        self.ended: dict[int, dict[str, Any]] = {}  # index → description of the stopped task

    def follow(self, pause: Callable[[float], None] = sleep) -> None:
        """Print the output of all members. `pause` is called between two rounds, with the seconds to wait, and after each page.

        If `pause` raises an exception, `follow` ends with this exception.
        """
        while self.pending:
            window = {task_id: index for index, task_id in islice(self.pending.items(), tasks.DESCRIBE_MAX)}
            described = through_outages(partial(describe_everywhere, self._endpoint, self._cluster, list(window)))
            for task in described:
                self._show(window[tasks.id_of(task)], task, pause)
            self._report_wait(described)
            for missing in window.keys() - map(tasks.id_of, described):  # neither ECS nor the history describes it
                del self.pending[window[missing]]
            if not any(map(tasks.is_stopped, described)):
                pause(POLL_S)

    def _show(self, index: int, task: dict[str, Any], pause: Callable[[float], None]) -> None:
        """Print new output of a member. If its task has stopped, record the end, or continue with the task that replaces it."""
        for stream in log_streams(self._definition, task):
            if stream not in self._tokens:
                self._tokens[stream] = None
                self._printer.add(stream, tasks.id_of(task), tasks.label(task))
            token = self._tokens[stream]
            if tasks.is_stopped(task):
                found = pages_until_complete(self._endpoint, stream, tasks.label(task), self._start, token)
            else:
                found = pages(self._endpoint, stream, self._start, token)
            for page in found:
                self._printer.show(stream, page.events)
                self._tokens[stream] = page.token
                pause(0.0)
        if not tasks.is_stopped(task):
            return
        for stream in log_streams(self._definition, task):
            del self._tokens[stream]
        replacement = tasks.tag_value(task, tasks.REQUEUED_TAG)
        if replacement:
            print_message(f"{tasks.label(task)} failed and is requeued as task {tasks.short(replacement)}")
            self.pending[index] = replacement
        else:
            self.ended[index] = task
            del self.pending[index]

    def _report_wait(self, described: list[dict[str, Any]]) -> None:
        """If all described members wait, print why the first of them waits. Do not print the same reason twice in a row."""
        if described and all(tasks.state(task) == "WAITING" for task in described):
            reason = shorten_ids(tasks.reason(described[0]))
            if reason != self._reason:
                self._reason = reason
                print_message(f"{tasks.label(described[0])} {reason if reason.startswith('waits ') else f'waits: {reason}'}")
