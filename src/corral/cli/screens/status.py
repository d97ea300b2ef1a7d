"""`corral status` shows hosts, GPUs, instances, and running and waiting tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client import owners
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, find_endpoint, get_status
from corral.cli.printing.output import (
    SHORT_ID,
    age,
    ago,
    count,
    parsed_date,
    print_json,
    print_line,
    print_table,
    print_text,
    shorten_ids,
)
from corral.cli.runs.tasks import short_reason, size, spans, title

IDLE_NAMES = 3


@click.command(short_help="Show hosts, GPUs and tasks.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(data: DataFolder, as_json: bool) -> None:
    """Show the hosts, their GPUs and instances, the tasks, and why tasks wait. The exit code is 3 if Corral is not running."""
    endpoint = find_endpoint(data)
    page, date = get_status(endpoint)
    if as_json:
        for host in page["hosts"]:
            for gpu in host["gpus"]:
                gpu.pop("history", None)  # `corral top --json` prints the history
        print_json(page)
        return
    url = str(client(endpoint, "ecs").meta.endpoint_url).rstrip("/")
    where = f"{page['url']}  (data in {page['data']}, process {page['pid']})" if url == page["url"] else url
    print_text(f"Corral {page['version']} at {where}")
    if page.get("isolate"):
        print_text("Isolated: tasks run in containers without access to the host (--isolate)")
    print_text(tasks_line(page["tasks"], page.get("paused") or ()))
    for line in page.get("instanceTypes", ()):
        print_text(f"Instance type of corral.toml: {line}")
    for failing in page["failingHandovers"]:
        text = f"Delivery to {failing['to']} is retried: {failing['kind']} (failures: {failing['tries']}; {failing['error']})"
        print_text(text)
    for problem in page.get("problems", ()):
        print_text(problem_line(problem), "bold red")
    for each in page.get("quarantine", ()):
        print_text(_quarantine(each, page["data"]))
    for line in idle_lines(page, parsed_date(date)):
        print_text(line, "yellow")
    for host in page["hosts"]:
        print_line()
        print_text(_host(host, several=len({each["cluster"] for each in page["hosts"]}) > 1))
        if host.get("reason"):
            print_text(f"{host['name']}: {host['reason']}")
        for over in page.get("overcommitted", ()):
            if over["hostId"] == host["id"]:
                print_text(overcommitted_line(over))
        if host["gpus"]:
            print_table([_gpu_row(gpu) for gpu in host["gpus"]], right=("UTIL",), folded=("MODEL",))
    if not page["hosts"]:
        print_line("\nNo host is connected.")
    if page.get("instances"):
        print_line()
        print_table(
            _instance_rows(page, parsed_date(date)), optional=("USER", "GROUP", "CLUSTER", "HOST"), folded=("GROUP", "CLUSTER")
        )
    if page.get("paused"):
        print_line()
        print_table(_paused_rows(page["paused"], parsed_date(date)), folded=("PAUSED",))
    if page["waiting"]:
        print_line()
        print_table(_waiting_rows(page, parsed_date(date)), folded=("WAITING",))


def problem_line(problem: dict[str, str]) -> str:
    """Return a line such as `PROBLEM: the spawner of host a has not responded for 12 s: ...`."""
    return f"PROBLEM: the {problem['part']} of {problem['host'] or 'this machine'} {problem['problem']}"


def _quarantine(day: dict[str, Any], data: str) -> str:
    return (
        f"Quarantine: {count(day['blobs'], 'blob')} without a row in state.db, moved on {day['date']} to "
        f"{data}/blobs/quarantine/{day['date']}, will be erased on {day['erasedOn']}. If this is the wrong state.db, stop Corral "
        "and put the right one back."
    )


def idle_lines(page: dict[str, Any], now: datetime | None) -> list[str]:
    """Return a line such as `ann holds 2 GPUs at 0% for 3h: train` for each owner whose GPUs do nothing.

    The time is the shortest one of several tasks and instances.
    """
    by_owner: dict[str, list[dict[str, Any]]] = {}
    for each in page.get("idle") or ():
        by_owner.setdefault(each["owner"], []).append(each)
    lines = []
    for owner, found in by_owner.items():
        gpus = f"{sum(each['gpus'] for each in found):.2f}".rstrip("0").rstrip(".")
        since = datetime.fromtimestamp(max(each["sinceS"] for each in found), UTC)
        names = [title(each["taskName"], each["arrayIndex"]) if each.get("task") else each["instance"] for each in found]
        more = f" and {len(names) - IDLE_NAMES} more" if len(names) > IDLE_NAMES else ""
        what = f"{gpus} GPU{'s' * (gpus != '1')} at 0% for {age(since, now) or '?'}"
        lines.append(f"{owners.shown(owner)} holds {what}: {', '.join(names[:IDLE_NAMES])}{more}")
    return lines


def tasks_line(counts: dict[str, int], paused: Sequence[dict[str, Any]] = ()) -> str:
    """Return a line such as `Tasks: 3 running (1 paused), 2 waiting, 5 stopped`."""
    names = {"RUNNING": "running", "PENDING": "starting", "PROVISIONING": "waiting", "STOPPED": "stopped"}
    names["RUNNING"] += f" ({len(paused)} paused)" if paused else ""
    shown = [f"{counts.get(state, 0)} {name}" for state, name in names.items() if counts.get(state) or state != "PENDING"]
    return "Tasks: " + ", ".join(shown)


def _host(host: dict[str, Any], *, several: bool) -> str:
    cpu, memory = host["cpuUnits"], host["memoryMiB"]
    of_cluster = f" of cluster {host['cluster']}" if several else ""
    word = host.get("state") if host.get("joined") else "NOT CONNECTED"
    silent = "" if host["connected"] else f"  {word}: no new tasks start on this host"
    offered = [gpu for gpu in host["gpus"] if not gpu.get("excluded")]
    free, taken = sum(_is_free(gpu) for gpu in offered), sum(gpu.get("instance") is not None for gpu in offered)
    gpus = f"{free} of {len(offered)} GPUs free" if offered else "no GPUs"
    gpus += f", {taken} taken by instances" if taken else ""
    containers = f", containers with {host['docker']}" if host.get("docker") else ""
    return (
        f"Host {host['name']}{of_cluster}{silent}: {gpus}, {cpu['free']} of {cpu['total']} CPU units free, "
        f"{memory['free']} of {memory['total']} MiB free{containers}"
    )


def _gpu_row(gpu: dict[str, Any]) -> dict[str, str]:
    used, busy = gpu["memoryUsedMiB"], gpu["utilizationPercent"]
    return {
        "GPU": str(gpu["index"]),
        "MODEL": gpu["model"] + (" (simulated)" if gpu["simulated"] else ""),
        "UTIL": "?" if busy is None else f"{busy:.0f}%",
        "MEMORY": f"{'?' if used is None else used} / {gpu['memoryMiB']} MiB",
        "TASK": use(gpu),
    }


def use(gpu: dict[str, Any]) -> str:
    """Return the task that uses a GPU, the reasons why no other task gets the GPU, and the instance that owns it.

    Return `free` or `reserved for TASK` if no task uses the GPU and there are no such reasons.
    """
    task = [holders(gpu)] if gpu["task"] else []
    text = ", ".join([*task, *unavailable_reasons(gpu)]) or reserved_for(gpu) or "free"
    return f"{text} on {gpu['instance']}" if gpu.get("instance") else text


def holders(gpu: dict[str, Any], *, with_ids: bool = True) -> str:
    """Return the task that has a GPU. Of a shared GPU, return all tasks, and how much of the memory they have reserved."""
    holding = gpu.get("sharedBy") or (gpu,)
    found = [claimant(each, with_ids=with_ids) for each in holding]
    if not gpu.get("sharedBy"):
        return found[0]
    return f"shared, {size(gpu['allocatedMiB'])} of {size(gpu['memoryMiB'])} reserved: {', '.join(found)}"


def _is_free(gpu: dict[str, Any]) -> bool:
    return not gpu["task"] and not unavailable_reasons(gpu) and gpu.get("instance") is None


def reserved_for(gpu: dict[str, Any], *, with_ids: bool = True) -> str:
    """Return `reserved for TASK` if the scheduler keeps a free GPU for a task that waits for more GPUs. Otherwise return ""."""
    return f"reserved for {claimant(gpu['reservedFor'], with_ids=with_ids)}" if gpu.get("reservedFor") and not gpu["task"] else ""


def unavailable_reasons(gpu: dict[str, Any]) -> list[str]:
    """Return the reasons why no new task is placed on a GPU."""
    why = ["excluded"] if gpu.get("excluded") else []
    why += [f"failed: {gpu['fault']}"] if gpu.get("fault") else []
    why += [f"held: {gpu['held']}"] if gpu.get("held") is not None else []
    why += [f"used by {process['name']} (pid {process['pid']})" for process in gpu.get("foreign", ())[:1]]
    return why


def overcommitted_line(over: dict[str, Any]) -> str:
    """Return a line such as `OVERCOMMITTED: its instances and its own tasks may use 64 CPU cores and 488 GiB, and it has ...`."""
    promised, total = (
        f"{over['cpuUnits'][part] / 1024:.4g} CPU cores and {over['memoryMiB'][part] / 1024:.4g} GiB"
        for part in ("promised", "total")
    )
    return (
        f"OVERCOMMITTED: its instances and its own tasks may use {promised}, and it has {total}. "
        "Tasks may be slower than on AWS, or run out of memory. GPUs are never overcommitted."
    )


def _instance_rows(page: dict[str, Any], now: datetime | None) -> list[dict[str, str]]:
    indexes = gpu_indexes(page)
    rows = [
        {
            "INSTANCE": each["id"],
            "TYPE": each["type"],
            "STATE": each["state"],
            "USER": owners.shown(each.get("owner")) if owners.several(page["instances"]) else "",
            "GROUP": each["group"] or "",
            "CLUSTER": each["cluster"] or "",
            "HOST": each.get("host") or "",
            "GPUS": instance_gpus(each, indexes),
            "TASKS": str(each["tasks"]),
            "SINCE": ago(datetime.fromtimestamp(each["sinceS"], UTC), now),
        }
        for each in page["instances"]
    ]
    more = sum(page["instanceCounts"].values()) - len(rows)
    return [*rows, {"INSTANCE": f"and {more} more"}] if more > 0 else rows


def gpu_indexes(page: dict[str, Any]) -> dict[str, int]:
    """Return GPU id → index of the GPU on its host."""
    return {gpu["id"]: gpu["index"] for host in page["hosts"] for gpu in host["gpus"]}


def instance_gpus(instance: dict[str, Any], indexes: dict[str, int]) -> str:
    """Return the number of GPUs of an instance, and their indexes: `4 (0-2,7)`."""
    named = spans(indexes[gpu_id] for gpu_id in instance["gpuIds"] if gpu_id in indexes)
    return f"{instance['gpus']} ({named})" if named else str(instance["gpus"])


def claimant(claim: dict[str, Any], *, with_ids: bool = True) -> str:
    if "task" in claim:
        shown = title(claim["taskName"], claim["arrayIndex"])
        return f"{claim['task'][:SHORT_ID]} {shown}" if with_ids else shown
    return str(claim["instance"]) if "instance" in claim else f"{count(claim['jobs'], 'job')} in {claim['jobQueue']}"


def _paused_rows(paused: Sequence[dict[str, Any]], now: datetime | None) -> list[dict[str, str]]:
    return [
        {
            "PAUSED": claimant(task),
            "STATE": task["state"],
            "SINCE": ago(datetime.fromtimestamp(task["sinceS"], UTC), now),
            "REASON": short_reason(shorten_ids(task["reason"])),
        }
        for task in paused
    ]


def _waiting_rows(page: dict[str, Any], now: datetime | None) -> list[dict[str, str]]:
    """Return a row for each claim that is served next, then for each held task.

    A claim is a waiting task, an instance that waits for GPUs, or a line: the waiting jobs of a Batch queue with the same needs.
    """
    rows = []
    for claim in page["waiting"]:
        rows.append(
            {
                "LINE": str(claim.get("place") or ""),
                "WAITING": claimant(claim),
                "SINCE": ago(datetime.fromtimestamp(claim["sinceS"], UTC), now),
                "REASON": short_reason(shorten_ids(claim["reason"])),
            }
        )
    more = page["tasks"].get("PROVISIONING", 0) - sum("task" in claim for claim in page["waiting"])
    return [*rows, {"REASON": f"and {more} more"}] if more > 0 else rows
