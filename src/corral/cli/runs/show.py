"""`corral show` prints everything about one run: a task that waits, runs, or has ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, NotCorral, call, client, cluster_option, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import age, count, print_json, print_line, screen_width, shorten_ids
from corral.cli.printing.text_table import fold
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_runs
from corral.cli.runs.gpu_graph import GpuLoad, bars, gpu_load
from corral.cli.runs.history import duration, gib
from corral.cli.runs.recorded_runs import NamedRun, find_one, find_recorded, plain_command
from corral.cli.runs.task_logs import has_log
from corral.cli.runs.values import whole_units

GRAPH_MAX = 60  # columns of the graph
ARRAY_WORDS = 4  # the number of words in the tag `tasks.ARRAY_TAG`
LABEL = 10  # columns of the labels
GIT_TAG = "corral:git"
OPTIONS = {  # tag → the option of `corral run` that sets it
    "corral:time-limit": "--time", "corral:priority": "--priority", "corral:hold": "--hold", "corral:not-before": "--at",
    "corral:after": "--after", "corral:after-any": "--after-any", "corral:requeue": "--requeue",
    "corral:preemptible": "--preemptible", "corral:turns": "--turns",
}  # fmt: skip
LINKS = {"corral:requeue-of": "Requeue of", "corral:requeued-as": "Requeued"}  # tag with a task id → label


@click.command(short_help="Show everything about one run.")
@data_option
@cluster_option("The cluster of the run.")
@click.option("--json", "as_json", is_flag=True, help="Print the run as JSON.")
@click.argument("given", metavar="RUN", shell_complete=complete_runs)
def show(data: DataFolder, cluster: str | None, as_json: bool, given: str) -> None:
    """Show one run: its state, command, folder, times, GPUs and options, and a graph of its GPU utilization.

    RUN is a name, an id, the beginning of an id, a glob, or an ARN. The command first searches the tasks that wait, run or have
    just ended, and then the history. A name means the latest run with this name.
    """
    endpoint = find_endpoint(data)
    run = _with_facts(endpoint, find_one(endpoint, given, cluster))
    load = _load(endpoint, run, max(10, min(GRAPH_MAX, (screen_width() or GRAPH_MAX) - LABEL)))
    files = _output_files(endpoint, run)
    pause = _pause(endpoint, run)
    if as_json:
        facts = {"pause": pause, "gpuLoad": load.described() if load else None, "outputFiles": files}
        print_json({**run.task, **{name: value for name, value in facts.items() if value}})
        return
    width = screen_width()
    for label, text in _lines(run, load, files, pause):
        lines = [text] if width is None or len(text) <= width - LABEL else fold(text, max(1, width - LABEL))
        for at, line in enumerate(lines):
            print_line(f"{'' if at else label:<{LABEL}}{line}")


def _with_facts(endpoint: Endpoint, run: NamedRun) -> NamedRun:
    """Add the members of recorded runs (`recorded_runs.py`) to a task that ECS describes.

    For a stopped task, read them from the history. For other tasks, read the command, the folder and the GPUs from the task
    definition.
    """
    if run.is_recorded:
        return run
    if tasks.is_stopped(run.task) and not is_aws(endpoint):
        recorded = find_recorded(endpoint, tasks.id_of(run.task))
        if recorded:
            return NamedRun(run.cluster, {**recorded[0].task, **run.task}, False, run.now)
    return NamedRun(run.cluster, {**run.task, "name": tasks.name(run.task), **_program(endpoint, run.task)}, False, run.now)


def _program(endpoint: Endpoint, task: dict[str, Any]) -> dict[str, Any]:
    """Return the command, the folder and the GPUs of a task, which its definition and its overrides contain."""
    reply = client(endpoint, "ecs").describe_task_definition(taskDefinition=task["taskDefinitionArn"])
    definition = reply["taskDefinition"]
    main = tasks.first_essential(definition)
    container = next(each for each in definition["containerDefinitions"] if each["name"] == main)
    overrides = task.get("overrides", {}).get("containerOverrides", ())
    container = {**container, **next((each for each in overrides if each.get("name") == main), {})}
    needs = [need for need in container.get("resourceRequirements", ()) if need["type"] == "GPU"]
    strategy: dict[str, Any] = next((need["sharingStrategy"] for need in needs if "sharingStrategy" in need), {})
    return {
        "command": plain_command([*container.get("entryPoint", ()), *container.get("command", ())]),
        "folder": container.get("workingDirectory"),
        "gpus": next((need.get("value", "1") for need in needs), 0),
        "gpuMemoryMiB": strategy.get("nvidiaMps", {}).get("memory"),
        "hasLog": any(map(has_log, definition["containerDefinitions"])),
    }


def _output_files(endpoint: Endpoint, run: NamedRun) -> list[dict[str, Any]]:
    """Return the path and the size of each file with the output of a run. Only runs of `corral run` have them."""
    if is_aws(endpoint):
        return []
    try:
        return list(call(endpoint, "ListOutputFiles", {"task": tasks.id_of(run.task)})[0]["files"])
    except NotCorral:
        return []


def _load(endpoint: Endpoint, run: NamedRun, columns: int) -> GpuLoad | None:
    begin, now = run.task.get("startedAt"), run.now
    if begin is None or now is None or not tasks.gpu_ids(run.task) or is_aws(endpoint):
        return None
    return gpu_load(endpoint, run.cluster, tasks.id_of(run.task), begin, run.task.get("stoppedAt") or now, now, columns)


def _pause(endpoint: Endpoint, run: NamedRun) -> dict[str, Any]:
    """Return the pause of a run that has not ended, or an empty dict if it was never paused."""
    if is_aws(endpoint) or run.is_recorded or run.task["lastStatus"] != "RUNNING":
        return {}
    try:
        found = call(endpoint, "DescribeTaskPause", {"cluster": run.cluster, "task": tasks.id_of(run.task)})[0]
    except CliError:  # the run has just ended, the server has no such operation, or a policy does not allow it
        return {}
    return found if found["phase"] != "running" or found["pauses"] or found["whyNot"] else {}


def _paused(task: dict[str, Any], pause: dict[str, Any], now: datetime | None) -> str:
    """Return since when a run is paused, where its memory is and what it waits for, or how long it was paused."""
    if not pause:
        return f"for {duration(task['pausedSeconds'])} in total" if task.get("pausedSeconds") else ""
    if pause["phase"] == "running":
        total = f"{count(pause['pauses'], 'time')}, for {duration(pause['pausedSeconds'])} in total" if pause["pauses"] else ""
        return "; ".join(filter(None, (total, pause["whyNot"] and f"the last pause has failed: {pause['whyNot']}")))
    parts = [f"since {_time(datetime.fromtimestamp(pause['sinceS'], UTC), now)}"]
    if pause["hostMemoryMiB"]:
        parts.append(f"{tasks.size(pause['hostMemoryMiB'])} in the memory of the host")
    if pause["returns"]:
        parts.append(f"waits to continue: {shorten_ids(pause['waitsFor'])}")
    if pause["whyNot"]:
        parts.append(f"could not continue: {pause['whyNot']}")
    return "; ".join(parts)


def _lines(run: NamedRun, load: GpuLoad | None, files: list[dict[str, Any]], pause: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each line."""
    task, now = run.task, run.now
    definition = task["taskDefinitionArn"].rpartition("/")[2]
    yield "Run", f"{tasks.label(task)}  {tasks.id_of(task)}"
    yield "State", _state(task)
    if reason := shorten_ids(tasks.reason(task)):
        yield "Reason", reason
    if text := _paused(task, pause, now):
        yield "Paused", text
    if "command" in task:
        yield "Command", shlex.join(task["command"])
    elif run.is_recorded:
        yield "Command", f"unknown, because the task definition {definition} was deleted"
    if task.get("folder"):
        yield "Folder", task["folder"]
    for file in files:
        yield "Output", f"{file['path']} ({file['bytes']:,} bytes)"
    if git := task.get("git") or tasks.tag_value(task, GIT_TAG):
        yield "Git", git
    yield "Created", _time(task["createdAt"], now)
    if "startedAt" in task:
        yield "Started", f"{_time(task['startedAt'], now)}, after {_span(task['createdAt'], task['startedAt'])}"
    if "stoppedAt" in task:
        ran = f", ran {_span(task['startedAt'], task['stoppedAt'])}" if "startedAt" in task else ", has not started"
        yield "Ended", _time(task["stoppedAt"], now) + ran
    if task.get("host"):
        yield "Host", task["host"]
    shared_mib = task.get("gpuMemoryMiB")
    number = str(task.get("gpus") or task.get("gpusNeeded") or 0).replace("-1", "ALL")  # a run that never started had no GPUs
    gpus = (
        f"{tasks.size(shared_mib)} of a shared GPU"
        if shared_mib
        else f"{number} GPU{'s' * (number != '1')}"
        if number != "0"
        else "no GPU"
    )
    cpu = f", {task['cpu']} CPU units" if task["cpu"] != "0" else ""
    memory = "" if task["memory"] == str(tasks.RESERVED_MIB) else f", {task['memory']} MiB"  # not the default of `corral run`
    yield "Needs", f"{gpus}{cpu}{memory}"
    if ids := tasks.gpu_ids(task):
        yield "GPUs", " ".join(ids)
    if text := _use(task, load):
        yield "GPU use", text
    if load is not None:
        yield "", f"{bars(load.mean)}  {whole_units(load.period_s)} per column"
    words = tasks.tag_value(task, tasks.ARRAY_TAG).split()
    if len(words) == ARRAY_WORDS:
        at_once = f", at most {words[3]} at the same time" if words[3] != "0" else ""
        yield "Array", f"index {words[1]} of array {words[0]}{at_once}"
    if options := [_option(flag, value) for key, flag in OPTIONS.items() if (value := tasks.tag_value(task, key))]:
        yield "Options", "  ".join(options)
    for key, label in LINKS.items():
        if tasks.tag_value(task, key):
            yield label, shorten_ids(tasks.tag_value(task, key))
    if "jobId" in task:
        index = f", index {task['arrayIndex']}" if "arrayIndex" in task else ""
        yield "Batch job", f"{task['jobId']}{index}, attempt {task['attempt']}"
    others = [f"{tag['key']}={tag['value']}" for tag in task.get("tags", ()) if not tag["key"].startswith("corral:")]
    if others:
        yield "Tags", "  ".join(others)
    yield "Task", f"task definition {definition} in cluster {run.cluster}, started by {task.get('startedBy') or 'RunTask'}"
    if len(task["containers"]) > 1:
        for container in task["containers"]:
            ended = f", exit code {container['exitCode']}" if "exitCode" in container else ""
            yield "Container", f"{container['name']}: {container['lastStatus']}{ended}"


def _state(task: dict[str, Any]) -> str:
    if not tasks.is_stopped(task):
        return tasks.state(task)
    code = task.get("exitCode", next(iter(tasks.exit_codes(task)), None))
    ended = "has ended" if not task.get("failed", code != 0) else "has failed"
    return f"{ended}, exit code {code}" if code is not None else f"{ended}, no exit code"


def _use(task: dict[str, Any], load: GpuLoad | None) -> str:
    """Return the use of the GPUs: from the history if the run has ended, else from CloudWatch."""
    use = task.get("gpuUse")
    if use is not None:
        peak_mib, mean, highest = use["peakMemoryMiB"], use["meanUtilizationPercent"], use["maxUtilizationPercent"]
    elif load is not None and load.utilization is not None:
        peak_mib, mean, highest = load.peak_memory_mib or 0, load.utilization, load.highest or 0.0
    else:
        return ""
    return f"utilization {mean:.0f} % on average, {highest:.0f} % at most; memory of one GPU {gib(round(peak_mib))} at most"


def _option(flag: str, value: str) -> str:
    """Return an option as the user writes it. `value` is the value of its tag: seconds for --time and --at, `true` for --hold."""
    if flag == "--hold" or (flag == "--preemptible" and value != "kill"):
        return flag
    if flag == "--preemptible":
        return "--preempt kill"
    if value.isdecimal() and flag in ("--time", "--turns"):
        return f"{flag} {whole_units(int(value))}"
    if value.isdecimal() and flag == "--at":
        return f"{flag} {datetime.fromtimestamp(int(value)).strftime('%Y-%m-%dT%H:%M:%S')}"
    return f"{flag} {shorten_ids(value)}"


def _time(at: datetime, now: datetime | None) -> str:
    return f"{at.astimezone().strftime('%Y-%m-%d %H:%M:%S')} ({age(at, now)} ago)"


def _span(begin: datetime, end: datetime) -> str:
    return duration(max(0.0, (end - begin).total_seconds()))
