"""Follows an execution of a pipeline until it ends, submits its deferred steps (`plan.py`), and reports its result, usage and cost.

In a terminal, it refreshes a screen. Otherwise it prints one line when a step changes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from corral.cli.client.endpoint import Endpoint, is_aws
from corral.cli.pipelines.cost import ExecutionUsage, Prices, StepUsage, add_usages, execution_usage, job_usage, parse_usage
from corral.cli.pipelines.estimate import StepTimes
from corral.cli.pipelines.executions import FoundExecution, find_executions, read_state
from corral.cli.pipelines.plan import TAG_USAGE, PipelinePlan
from corral.cli.pipelines.screen import frame, result_table, step_line
from corral.cli.pipelines.state import NOT_RUN, Execution, StepState
from corral.cli.pipelines.submit import advance
from corral.cli.printing.errors import INTERRUPTED, CliError, error_line
from corral.cli.printing.live_screen import read_keys
from corral.cli.printing.output import console, count, print_json, print_line, print_message

REFRESH_S, AWS_REFRESH_S = 1.0, 5.0
FIRST_PAUSE_S = 0.1  # without a screen: the pause after a change. Each further pause is twice as long, up to (AWS_)REFRESH_S
EARLIER_MAX = 3  # how many earlier executions are shown next to the result
LINES_PER_STEP = 10  # without a screen: print a line when a further tenth of a step's children is done


def follow(endpoint: Endpoint, plan: PipelinePlan, *, quiet: bool = False) -> Execution:
    """Show the execution until it has ended, or the user presses q. With `quiet`, print no progress. Return the last state."""
    earlier = earlier_times(endpoint, plan)
    refresh_s = AWS_REFRESH_S if is_aws(endpoint) else REFRESH_S
    try:
        if quiet or not sys.stdout.isatty():
            return _follow_in_lines(endpoint, plan, earlier, refresh_s, quiet=quiet)
        return _follow_on_screen(endpoint, plan, earlier, refresh_s)
    except KeyboardInterrupt:
        _say_that_it_continues(plan)
        raise SystemExit(INTERRUPTED) from None


def _follow_on_screen(endpoint: Endpoint, plan: PipelinePlan, earlier: dict[str, StepTimes], refresh_s: float) -> Execution:
    from rich.live import Live

    out, trouble, recorded = console(), "", set[str]()
    state, now_s = read_state(endpoint, plan, earlier)
    with read_keys() as key, Live(console=out, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            live.update(frame(state, now_s, out.width, out.height - 1, trouble), refresh=True)
            if state.ended:
                return state
            if not advance(endpoint, plan, state) and key(refresh_s) in ("q", "Q", "\x1b", "\x03"):
                break
            try:
                _store_usage(endpoint, state, recorded)
                (state, now_s), trouble = read_state(endpoint, plan, earlier), ""
            except Exception as error:
                trouble = error.message if isinstance(error, CliError) else error_line(error) or repr(error)
    _say_that_it_continues(plan)
    return state


def _follow_in_lines(
    endpoint: Endpoint, plan: PipelinePlan, earlier: dict[str, StepTimes], refresh_s: float, *, quiet: bool
) -> Execution:
    shown: dict[str, tuple[Any, ...]] = {}
    before, pause_s, recorded = None, FIRST_PAUSE_S, set[str]()
    while True:
        state, _ = read_state(endpoint, plan, earlier)
        for step in state.steps:
            if not quiet and shown.get(step.name) != (now := _visible(step)):
                shown[step.name] = now
                print_line(step_line(step))
        if state.ended:
            return state
        _store_usage(endpoint, state, recorded)
        submitted = advance(endpoint, plan, state)
        for name in submitted if not quiet else ():
            print_line(f"{name}: submitted, because the steps before it have ended, within `max_failed`")
        pause_s = FIRST_PAUSE_S if submitted or state != before else min(2 * pause_s, refresh_s)
        before = state
        time.sleep(pause_s)


def _store_usage(endpoint: Endpoint, state: Execution, recorded: set[str]) -> None:
    """Store the usage of each job as soon as the job has ended. `recorded` has the ids of jobs whose usage is stored.

    At the end of the whole execution it would be too late: ECS may no longer describe the instances on which the job ran.
    """
    prices = Prices(endpoint)  # read the prices again, because only instance types that have run have a price
    for job in state.jobs:
        if job.ended and job.id not in recorded:
            recorded.add(job.id)
            job_usage(endpoint, job, prices)


def _visible(step: StepState) -> tuple[Any, ...]:
    """Return a value that changes when a new line must be printed.

    A line is printed when the state, the number of failures or the reason of the step changes, when its first child runs or its
    last running child ends, and when a further tenth of its children is done.
    """
    counts = step.counts
    return step.state, counts.failed, counts.running > 0, counts.done * LINES_PER_STEP // max(1, counts.total), step.reason


def _say_that_it_continues(plan: PipelinePlan) -> None:
    later = [step.name for step in plan.deferred]
    only = f" Only `watch` submits {', '.join(later)}." if later else ""
    print_message(f"{plan.id} continues without this command.{only} Watch it with `corral pipeline watch {plan.id}`.")


def earlier_times(endpoint: Endpoint, plan: PipelinePlan) -> dict[str, StepTimes]:
    """Return the times of the steps in the last other execution of the same pipeline whose jobs have usage in their tags."""
    for found in find_executions(endpoint, plan.pipeline.name):
        if found.execution == plan.execution:
            continue
        jobs: dict[str, list[Any]] = {}
        for job in sorted(found.jobs, key=lambda each: (each.created_s, each.id)):
            jobs.setdefault(job.step, []).append(job)
        times = {}
        for name, each in jobs.items():
            known = [usage for job in each if (usage := parse_usage(job.tags.get(TAG_USAGE, ""))) is not None and usage.jobs]
            if known:
                times[name] = add_usages(known).times
        if times:
            return times
    return {}


# Results


def watch_to_the_end(endpoint: Endpoint, plan: PipelinePlan, *, as_json: bool) -> None:
    """Follow an execution, and print its result. Exit with code 1 if it has failed or was stopped."""
    state = follow(endpoint, plan, quiet=as_json)
    if state.ended:
        usage, earlier = report(endpoint, state)
        print_json(execution_document(state, usage, earlier)) if as_json else print_result(endpoint, state, usage, earlier)
    if state.ended and state.state != "SUCCEEDED":
        raise SystemExit(1)


def report(endpoint: Endpoint, state: Execution) -> tuple[ExecutionUsage, list[ExecutionUsage]]:
    """Return the usage of the execution, and of the last other executions that have ended. Store it as tags of jobs."""
    prices = Prices(endpoint)
    executions = find_executions(endpoint, state.name)
    own = next(found for found in executions if found.execution == state.execution)
    others = [found for found in executions if found.execution != state.execution and all(job.ended for job in found.jobs)]
    usage = execution_usage(endpoint, own, prices)
    return usage, [execution_usage(endpoint, found, prices) for found in others[:EARLIER_MAX]]


def print_result(endpoint: Endpoint, state: Execution, usage: ExecutionUsage, earlier: Sequence[ExecutionUsage]) -> None:
    out = console()
    out.print()
    out.print(result_table(state, usage, earlier))
    tolerated = [f"{step.name} ({step.counts.failed} of {step.counts.total})" for step in state.steps if step.state == "TOLERATED"]
    if tolerated:
        print_message(f"children that failed, within `max_failed`: {', '.join(tolerated)}.")
    if usage.cost is None:
        why = "AWS's prices are not read" if is_aws(endpoint) else "the jobs ran where nothing has a price"
        hint = "" if is_aws(endpoint) else " `corral config set cost.gpu_hour PRICE` sets the price of a GPU-hour of this machine."
        print_message(f"no cost is shown: {why}.{hint}")
    if state.state == "FAILED":
        print_message(f"{failed_text(state)} Run them again with `corral pipeline retry --failed {state.id}`.")


def failed_text(state: Execution) -> str:
    """Say how many jobs failed, and which steps did not run because of them."""
    failed = [step for step in state.steps if step.state == "FAILED" and not step.never_ran]
    left_out = sum(reason.jobs for step in failed for reason in step.reasons if reason.kind == NOT_RUN)
    number = sum(step.counts.failed for step in failed) - left_out
    text = f"{count(number, 'job')} of {', '.join(step.name for step in failed)} failed."
    never = [step.name for step in state.steps if step.never_ran or step.state == "NOT SUBMITTED"]
    if left_out:
        never.insert(0, f"{count(left_out, 'more job')} of them")
    return f"{text} Not run: {', '.join(never)}." if never else text


def execution_document(state: Execution, usage: ExecutionUsage | None, earlier: Sequence[ExecutionUsage] = ()) -> dict[str, Any]:
    return {
        "id": state.id,
        "name": state.name,
        "run": state.execution,
        "state": state.state,
        "attempt": state.attempt,
        "startedS": state.created_s,
        "stoppedS": state.stopped_s if state.ended else None,
        "endsInS": state.ends_in_s,
        "ready": list(state.ready),
        "steps": [_step_document(step, usage.steps.get(step.name) if usage else None) for step in state.steps],
        **({"usage": _usage_document(usage), "earlier": [_usage_document(each) for each in earlier]} if usage else {}),
    }


def _step_document(step: StepState, usage: StepUsage | None) -> dict[str, Any]:
    counts = step.counts
    return {
        "name": step.name,
        "state": step.state,
        "done": counts.done,
        "running": counts.running,
        "failed": counts.failed,
        "waiting": counts.waiting,
        "reason": step.reason,
        "reasons": [
            {"kind": each.kind, "reason": each.text, "jobs": each.jobs, "indexes": list(each.indexes)} for each in step.reasons
        ],
        "queue": step.queue,
        "after": list(step.after),
        "jobs": [job.id for job in step.jobs],
        "startedS": step.started_s,
        "stoppedS": step.stopped_s,
        "endsInS": step.ends_in_s,
        **({"wallS": usage.wall_s, **_hours(usage)} if usage else {}),
    }


def _usage_document(usage: ExecutionUsage) -> dict[str, Any]:
    return {"run": usage.execution, "wallS": usage.wall_s, **_hours(usage)}


def _hours(usage: ExecutionUsage | StepUsage) -> dict[str, Any]:
    return {"jobsRun": usage.jobs, "vcpuHours": usage.vcpu_hours, "gpuHours": usage.gpu_hours, "cost": usage.cost}


def list_row(state: Execution, found: FoundExecution, usage: ExecutionUsage | None, now_s: float) -> dict[str, Any]:
    """Return one row of `corral pipeline list`."""
    return {
        "id": found.id,
        "name": found.name,
        "run": found.execution,
        "state": state.state,
        "steps": len(state.steps),
        "stepsDone": sum(step.state in ("SUCCEEDED", "TOLERATED") for step in state.steps),
        "startedS": found.created_s,
        "started": datetime.fromtimestamp(found.created_s, UTC),
        "wallS": ((state.stopped_s or now_s) if state.ended else now_s) - found.created_s,
        "gpuHours": usage.gpu_hours if usage else None,
        "cost": usage.cost if usage else None,
    }
