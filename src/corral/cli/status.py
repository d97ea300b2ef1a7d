"""`corral status` shows hosts, GPUs, instances, and running and waiting tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import find_endpoint, status_page
from corral.cli.output import SHORT_ID, age, console, count, parsed_date, print_json, shorten_ids
from corral.cli.tasks import size, spans, title

if TYPE_CHECKING:
    from rich.table import Table


@click.command(short_help="Show hosts, GPUs and tasks.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(data: DataFolder, as_json: bool) -> None:
    """Show the hosts, their GPUs and instances, the tasks, and why tasks wait. The exit code is 3 if Corral is not running."""
    page, date = status_page(find_endpoint(data))
    if as_json:
        for host in page["hosts"]:
            for gpu in host["gpus"]:
                gpu.pop("history", None)  # `corral top --json` prints the history
        print_json(page)
        return
    out = console()
    out.print(f"Corral {page['version']} at {page['url']}  (data in {page['data']}, process {page['pid']})", soft_wrap=True)
    if page.get("isolate"):
        out.print("Isolated: tasks run in containers without access to the host (--isolate)")
    out.print(tasks_line(page["tasks"]))
    for line in page.get("instanceTypes", ()):
        out.print(f"Instance type of corral.toml: {line}", soft_wrap=True, markup=False)
    for failing in page["failingHandovers"]:
        text = f"Delivery to {failing['to']} is retried: {failing['kind']} (failures: {failing['tries']}; {failing['error']})"
        out.print(text, soft_wrap=True)
    for problem in page.get("problems", ()):
        out.print(problem_line(problem), style="bold red", soft_wrap=True, markup=False)
    for each in page.get("quarantine", ()):
        out.print(_quarantine(each, page["data"]), soft_wrap=True)
    for host in page["hosts"]:
        out.print()
        out.print(_host(host), soft_wrap=True)
        for over in page.get("overcommitted", ()):
            if over["hostId"] == host["id"]:
                out.print(overcommitted_line(over), soft_wrap=True, markup=False)
        if host["gpus"]:
            out.print(_gpus(host["gpus"]))
    if not page["hosts"]:
        out.print("\nNo host is connected.")
    if page.get("instances"):
        out.print()
        out.print(_instances(page, parsed_date(date)))
    if page["waiting"]:
        out.print()
        out.print(_waiting(page, parsed_date(date)))


def problem_line(problem: dict[str, str]) -> str:
    """Return a line such as `PROBLEM: the spawner of host a has not responded for 12 s: ...`."""
    return f"PROBLEM: the {problem['part']} of {problem['host'] or 'this machine'} {problem['problem']}"


def _quarantine(day: dict[str, Any], data: str) -> str:
    return (
        f"Quarantine: {count(day['blobs'], 'blob')} without a row since {day['date']} in {data}/blobs/quarantine/{day['date']}, "
        f"erased on {day['erasedOn']}: if this is the wrong state.db, stop Corral and put the right one back"
    )


def tasks_line(counts: dict[str, int]) -> str:
    names = {"RUNNING": "running", "PENDING": "starting", "PROVISIONING": "waiting", "STOPPED": "stopped"}
    shown = [f"{counts.get(state, 0)} {name}" for state, name in names.items() if counts.get(state) or state != "PENDING"]
    return "Tasks: " + ", ".join(shown)


def _host(host: dict[str, Any]) -> str:
    cpu, memory = host["cpuUnits"], host["memoryMiB"]
    silent = "" if host["connected"] else "  NOT CONNECTED: no new tasks start on this host"
    offered = [gpu for gpu in host["gpus"] if not gpu.get("excluded")]
    free, taken = sum(_is_free(gpu) for gpu in offered), sum(gpu.get("instance") is not None for gpu in offered)
    gpus = f"{free} of {len(offered)} GPUs free" if offered else "no GPUs"
    gpus += f", {taken} taken by instances" if taken else ""
    containers = f", containers with {host['docker']}" if host.get("docker") else ""
    return (
        f"Host {host['name']}{silent}: {gpus}, {cpu['free']} of {cpu['total']} CPU units free, "
        f"{memory['free']} of {memory['total']} MiB free{containers}"
    )


def _gpus(gpus: list[dict[str, Any]]) -> Table:
    table = _table("GPU", "MODEL", "UTIL", "MEMORY", "TASK")
    table.columns[2].justify = "right"
    for gpu in gpus:
        model = gpu["model"] + (" (simulated)" if gpu["simulated"] else "")
        used = gpu["memoryUsedMiB"]
        memory = f"{'?' if used is None else used} / {gpu['memoryMiB']} MiB"
        busy = "?" if gpu["utilizationPercent"] is None else f"{gpu['utilizationPercent']:.0f}%"
        table.add_row(str(gpu["index"]), model, busy, memory, use(gpu))
    return table


def use(gpu: dict[str, Any]) -> str:
    """Return the task that uses a GPU, the reasons why no other task gets the GPU, and the instance that owns it.

    Return `free` or `reserved for TASK` if no task uses the GPU and there are no such reasons.
    """
    task = [holders(gpu)] if gpu["task"] else []
    text = ", ".join([*task, *unavailable_reasons(gpu)]) or reserved_for(gpu) or "free"
    return f"{text} on {gpu['instance']}" if gpu.get("instance") else text


def holders(gpu: dict[str, Any]) -> str:
    """Return the task that has a GPU. Of a shared GPU, return all tasks, and how much of the memory they have reserved."""
    holding = gpu.get("sharedBy") or (gpu,)
    titles = [title(each["taskDefinition"], each.get("taskName"), each.get("arrayIndex")) for each in holding]
    found = [f"{each['task'][:SHORT_ID]} {shown}" for each, shown in zip(holding, titles)]
    if not gpu.get("sharedBy"):
        return found[0]
    return f"shared, {size(gpu['allocatedMiB'])} of {size(gpu['memoryMiB'])} reserved: {', '.join(found)}"


def _is_free(gpu: dict[str, Any]) -> bool:
    return not gpu["task"] and not unavailable_reasons(gpu) and gpu.get("instance") is None


def reserved_for(gpu: dict[str, Any]) -> str:
    """Return `reserved for TASK` if the scheduler keeps a free GPU for a task that waits for more GPUs. Otherwise return ""."""
    return f"reserved for {claimant(gpu['reservedFor'])}" if gpu.get("reservedFor") and not gpu["task"] else ""


def unavailable_reasons(gpu: dict[str, Any]) -> list[str]:
    """Return the reasons why no task is placed on a GPU."""
    why = ["excluded"] if gpu.get("excluded") else []
    why += [f"failed: {gpu['fault']}"] if gpu.get("fault") else []
    why += [f"held: {gpu['held']}"] if gpu.get("held") is not None else []
    why += [f"used by {process['name']} (pid {process['pid']})" for process in gpu.get("foreign", ())[:1]]
    return why


def overcommitted_line(over: dict[str, Any]) -> str:
    """`OVERCOMMITTED: its instances and its own tasks may use 64 CPU cores and 488 GiB, and it has 2 CPU cores and 8 GiB. …`"""
    promised, total = (
        f"{over['cpuUnits'][part] / 1024:.4g} CPU cores and {over['memoryMiB'][part] / 1024:.4g} GiB"
        for part in ("promised", "total")
    )
    return (
        f"OVERCOMMITTED: its instances and its own tasks may use {promised}, and it has {total}. "
        "Tasks may be slower than on AWS, or run out of memory. GPUs are never overcommitted."
    )


def _instances(page: dict[str, Any], now: datetime | None) -> Table:
    table = _table("INSTANCE", "TYPE", "STATE", "GROUP", "CLUSTER", "GPUS", "TASKS", "SINCE")
    indexes = gpu_indexes(page)
    for each in page["instances"]:
        since = age(datetime.fromtimestamp(each["sinceS"], UTC), now)
        cells = (each["type"], each["state"], each["group"] or "", each["cluster"] or "", instance_gpus(each, indexes))
        table.add_row(each["id"], *cells, str(each["tasks"]), since)
    more = sum(page["instanceCounts"].values()) - len(page["instances"])
    if more > 0:
        table.add_row(f"and {more} more")
    return table


def gpu_indexes(page: dict[str, Any]) -> dict[str, int]:
    """Return the index of each GPU id. If there are several hosts, an index does not identify a GPU."""
    return {gpu["id"]: gpu["index"] for host in page["hosts"] for gpu in host["gpus"]} if len(page["hosts"]) == 1 else {}


def instance_gpus(instance: dict[str, Any], indexes: dict[str, int]) -> str:
    """Return the number of GPUs of an instance, and their indexes: `4 (0-2,7)`."""
    named = spans(indexes[gpu_id] for gpu_id in instance["gpuIds"] if gpu_id in indexes)
    return f"{instance['gpus']} ({named})" if named else str(instance["gpus"])


def claimant(claim: dict[str, Any]) -> str:
    if "task" in claim:
        shown = title(claim["taskDefinition"], claim.get("taskName"), claim.get("arrayIndex"))
        return f"{claim['task'][:SHORT_ID]} {shown}"
    return str(claim["instance"] if "instance" in claim else claim["job"][:SHORT_ID])


def _waiting(page: dict[str, Any], now: datetime | None) -> Table:
    """List the waiting tasks, Batch jobs and instances that are first in line."""
    table = _table("LINE", "WAITING", "SINCE", "REASON")
    for claim in page["waiting"]:
        since = datetime.fromtimestamp(claim["sinceS"], UTC)
        jobs = f"{count(claim['jobs'], 'job')} in the queue {claim['jobQueue']}: " if "job" in claim else ""
        place = str(claim.get("place") or "")
        table.add_row(place, claimant(claim), age(since, now), shorten_ids(jobs + claim["reason"]))
    more = page["tasks"].get("PROVISIONING", 0) - sum("task" in claim for claim in page["waiting"])
    if more > 0:
        table.add_row("", "", "", f"and {more} more")
    return table


def _table(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=name != "REASON", overflow="fold")
    return table
