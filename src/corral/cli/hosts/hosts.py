"""`corral hosts` lists the machines on which tasks run, and changes their state."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, NotCorral, call, find_endpoint, get_status
from corral.cli.hosts.token import seconds
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import ago, count, parsed_date, print_json, print_message, print_table, print_text

LOCAL = "this machine"
COMMIT_SHOWN = 7  # characters
PACK_MAX_S = 60.0  # the server packs its version into a wheel before it responds to the first UpgradeHost
UPGRADE_MAX_S, UPGRADE_POLL_S = 180.0, 0.5


@click.group(invoke_without_command=True, short_help="List the machines on which tasks run.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the hosts as JSON.")
@click.pass_context
def hosts(context: click.Context, data: DataFolder, as_json: bool) -> None:
    """List the machines on which tasks run.

    \b
    corral hosts                 list the hosts
    corral hosts drain NAME      give a host no new tasks
    corral hosts resume NAME     end the drain of a host
    corral hosts forget NAME     give up a SILENT host and its tasks
    corral hosts rename NAME NEW give a host another name
    corral hosts accept NAME     accept a host with another mainboard
    corral hosts upgrade NAME    upgrade a host to the version of the server
    corral hosts revoke NAME     let a host connect no more

    A host that is SILENT gets no new tasks. Its tasks may still run, so they keep their GPUs.
    """
    context.obj = data
    if context.invoked_subcommand is not None:
        return
    found, date = call(find_endpoint(data), "DescribeHosts", {})
    listed = _sorted(found["hosts"])
    for host in listed:
        for gpu in host["gpus"]:
            gpu.pop("history", None)  # `corral top --json` prints the history
    if as_json:
        print_json(listed)
    elif not listed:
        print_text("No host is connected.")
    else:
        versions = _agent_versions(listed)
        rows = [_row(host, parsed_date(date), versions) for host in listed]
        print_table(rows, optional=("RACK", "AGENT"), folded=("GPUS", "AGENT"))
        for host in listed:
            if host["reason"]:
                print_message(f"{host['name']}: {host['reason']}")


@hosts.command(short_help="Let a host connect no more.")
@data_option
@click.argument("name")
@click.pass_obj
def revoke(outer: DataFolder, name: str, data: DataFolder) -> None:
    """Void the certificate of a host, and close all its connections at once: orders, terminals, and requests of its tasks.

    The tasks on the host keep their GPUs, because they may still run. To let the host connect again, join with a new token.
    """
    revoked, _ = call(find_endpoint(data if data.chosen else outer), "RevokeHost", {"host": name})
    print_text(f"{revoked['name']} cannot connect any more")
    print_message(
        "Its tasks keep their GPUs, because they may still run. If it joins again with its folder, it continues with them."
    )


@hosts.command(short_help="Give a host no new tasks.")
@data_option
@click.argument("name")
@click.option("--stop", is_flag=True, help="Stop the tasks that no service moves, now.")
@click.option("--deadline", metavar="TIME", callback=seconds, help="Stop them after this time, such as 30m, 8h or 2d.")
@click.pass_obj
def drain(outer: DataFolder, name: str, data: DataFolder, stop: bool, deadline: float | None) -> None:
    """Give a host no new tasks, for example before its maintenance. Services move their tasks to other hosts.

    Other tasks end by themselves, or are stopped with --stop or --deadline. `corral hosts resume` ends the drain.
    """
    if stop and deadline is not None:
        raise click.UsageError("Use --stop or --deadline, and not both.")
    given = {"host": name} | ({"deadline": 0.0} if stop else {"deadline": deadline} if deadline is not None else {})
    drained, _ = call(find_endpoint(data if data.chosen else outer), "DrainHost", given)
    print_text(f"{drained['name']} gets no new tasks")
    if drained["tasks"]:
        print_message(f"{count(drained['tasks'], 'task')} on it: `corral ps` shows when they have ended.")


@hosts.command(short_help="End the drain of a host.")
@data_option
@click.argument("name")
@click.pass_obj
def resume(outer: DataFolder, name: str, data: DataFolder) -> None:
    """End the drain of a host: it gets tasks again."""
    resumed, _ = call(find_endpoint(data if data.chosen else outer), "ResumeHost", {"host": name})
    print_text(f"{resumed['name']} gets tasks again")


@hosts.command(short_help="Give a host another name.")
@data_option
@click.argument("name")
@click.argument("new", metavar="NEW")
@click.pass_obj
def rename(outer: DataFolder, name: str, new: str, data: DataFolder) -> None:
    """Give a host that has joined another name. Tasks that run on it continue."""
    call(find_endpoint(data if data.chosen else outer), "RenameHost", {"host": name, "name": new})
    print_text(f"{name} is now {new}")


@hosts.command(short_help="Give up a SILENT host and its tasks.")
@data_option
@click.argument("name")
@click.option("--now", is_flag=True, help="Do not wait until tasks with corral:fence-after have ended by themselves.")
@click.pass_obj
def forget(outer: DataFolder, name: str, data: DataFolder, now: bool) -> None:
    """Give up a host that is SILENT, and is not expected back: its tasks are STOPPED, and services and jobs start again elsewhere.

    Use it only if the machine is off, or cannot reach anything that its tasks could damage: Corral cannot stop them there. Their
    credentials are void at once. If the machine returns, it stops what is left of them before it gets new tasks.
    """
    forgotten, _ = call(find_endpoint(data if data.chosen else outer), "ForgetHost", {"host": name, "now": now})
    print_text(f"{forgotten['name']} is forgotten")
    if forgotten["tasks"]:
        print_message(f"{count(forgotten['tasks'], 'task')} on it stopped. If it returns, it ends what is left of them.")


@hosts.command(short_help="Accept a host with another mainboard.")
@data_option
@click.argument("name")
@click.pass_obj
def accept(outer: DataFolder, name: str, data: DataFolder) -> None:
    """Accept that a host has another machine: the one that last presented its certificate, and was refused.

    Use it after the mainboard of a host was replaced, or its disk was put into another machine. A copy of a disk joins as a new
    host instead: `corral join --new`.
    """
    accepted, _ = call(find_endpoint(data if data.chosen else outer), "AcceptHost", {"host": name})
    print_text(f"{accepted['name']} is now the machine at {accepted['address']}")


@hosts.command(short_help="Upgrade hosts to the version of the server.")
@data_option
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.pass_obj
def upgrade(outer: DataFolder, names: tuple[str, ...], data: DataFolder) -> None:
    """Upgrade the agents of hosts to the version of the server: of all hosts that are UP, or of those named.

    Their tasks continue. A host that lacks a dependency of the new version, or on which it does not start, stays as it is. Wheels
    of compiled dependencies come from the folder of the setting upgrade.wheels.
    """
    endpoint = find_endpoint(data if data.chosen else outer)
    found = _sorted(call(endpoint, "DescribeHosts", {})[0]["hosts"])
    chosen = names or [host["name"] for host in found if host["joined"] and host["state"] == "UP"]
    if not chosen:
        print_text("No joined host is UP.")
    failed = False
    for name in chosen:
        try:
            ordered, _ = call(endpoint, "UpgradeHost", {"host": name}, timeout_s=PACK_MAX_S)
        except NotCorral:
            raise
        except CliError as refusal:
            print_message(f"{name}: {refusal.message}")
            failed = True
            continue
        if ordered["agent"] == ordered["version"]:
            print_text(f"{ordered['name']} has {ordered['version']} already")
            continue
        why = _until_upgraded(endpoint, ordered)
        failed = failed or bool(why)
        print_text(
            f"{ordered['name']} stays at {ordered['agent']}: {why}" if why else f"{ordered['name']} has {ordered['version']} now"
        )
    if failed:
        raise SystemExit(1)


def _until_upgraded(endpoint: Endpoint, ordered: dict[str, Any]) -> str:
    """Wait until the agent of a host has connected with the new version. Return why it has not."""
    from time import monotonic, sleep

    give_up_at = monotonic() + UPGRADE_MAX_S
    while monotonic() < give_up_at:
        hosts = call(endpoint, "DescribeHosts", {})[0]["hosts"]
        host = next((each for each in hosts if each["id"] == ordered["id"]), None)
        if host is not None and host["agent"] == ordered["version"] and host["state"] == "UP":
            return ""
        for problem in get_status(endpoint, tasks=1)[0]["problems"]:
            if problem["part"] == "upgrade" and problem["host"] == f"host {ordered['name']}":
                return str(problem["problem"])
        sleep(UPGRADE_POLL_S)
    return f"it has not connected with the new version within {UPGRADE_MAX_S:.0f} s; see its log"


def _sorted(hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort hosts by their names, the machine of the server first."""
    return sorted(hosts, key=lambda host: (host["joined"], host["name"]))


def _agent_versions(hosts: list[dict[str, Any]]) -> dict[str, str]:
    """Return a short text for each full version of an agent. It has the commit only if the number is not enough."""
    versions = {host["agent"]: host["agent"].partition(" (commit ") for host in hosts if host["agent"]}
    if len({number for number, *_ in versions.values()}) == len(versions):
        return {full: number for full, (number, *_) in versions.items()}
    return {full: f"{number} {commit[:COMMIT_SHOWN]}".rstrip() for full, (number, _, commit) in versions.items()}


def _row(host: dict[str, Any], now: datetime | None, versions: dict[str, str]) -> dict[str, str]:
    offered = [gpu for gpu in host["gpus"] if not gpu["excluded"]]
    free = sum(1 for gpu in offered if not (gpu["task"] or gpu["instance"] or gpu["held"] or gpu["fault"] or gpu["foreign"]))
    seen = datetime.fromtimestamp(host["seenS"], UTC) if host["seenS"] is not None else None
    return {
        "HOST": host["name"],
        "STATE": host["state"],
        "ADDRESS": (host["address"] or "") if host["joined"] else LOCAL,
        "CLUSTER": f"{host['cluster']} -> {host['movesTo']}" if host["movesTo"] else host["cluster"] or "",
        "RACK": host["rack"] or "",
        "GPUS": _models(offered),
        "FREE": str(free),
        "TASKS": str(host["tasks"]),
        "AGENT": versions.get(host["agent"], ""),
        "SEEN": "now" if host["connected"] else f"{ago(seen, now)}" if seen is not None else "never",
    }


def _models(gpus: list[dict[str, Any]]) -> str:
    """Return the number of GPUs of each model, such as `8 NVIDIA H200` or `2 NVIDIA H200 (simulated)`."""
    models = Counter(gpu["model"] + (" (simulated)" if gpu["simulated"] else "") for gpu in gpus)
    return ", ".join(f"{number} {model}" for model, number in models.items()) or "0"
