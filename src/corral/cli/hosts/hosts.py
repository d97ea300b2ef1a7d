"""`corral hosts` lists the machines on which tasks run, and revokes those that have joined."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint
from corral.cli.printing.output import ago, parsed_date, print_json, print_message, print_table, print_text

LOCAL = "this machine"


@click.group(invoke_without_command=True, short_help="List the machines on which tasks run.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the hosts as JSON.")
@click.pass_context
def hosts(context: click.Context, data: DataFolder, as_json: bool) -> None:
    """List the machines on which tasks run.

    \b
    corral hosts                 list the hosts
    corral hosts revoke NAME     let a host connect no more

    A host that is SILENT gets no new tasks. Its tasks may still run, so they keep their GPUs.
    """
    context.obj = data
    if context.invoked_subcommand is not None:
        return
    found, date = call(find_endpoint(data), "DescribeHosts", {})
    for host in found["hosts"]:
        for gpu in host["gpus"]:
            gpu.pop("history", None)  # `corral top --json` prints the history
    if as_json:
        print_json(found["hosts"])
    elif not found["hosts"]:
        print_text("No host is connected.")
    else:
        print_table(
            [_row(host, parsed_date(date)) for host in found["hosts"]], optional=("RACK", "AGENT"), folded=("GPUS", "AGENT")
        )


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


def _row(host: dict[str, Any], now: datetime | None) -> dict[str, str]:
    offered = [gpu for gpu in host["gpus"] if not gpu["excluded"]]
    free = sum(1 for gpu in offered if not (gpu["task"] or gpu["instance"] or gpu["held"] or gpu["fault"] or gpu["foreign"]))
    seen = datetime.fromtimestamp(host["seenS"], UTC) if host["seenS"] is not None else None
    return {
        "HOST": host["name"],
        "STATE": host["state"],
        "ADDRESS": (host["address"] or "") if host["joined"] else LOCAL,
        "CLUSTER": host["cluster"] or "",
        "RACK": host["rack"] or "",
        "GPUS": _models(offered),
        "FREE": str(free),
        "TASKS": str(host["tasks"]),
        "AGENT": host["agent"] or "",
        "SEEN": "now" if host["state"] == "UP" else f"{ago(seen, now)}" if seen is not None else "never",
    }


def _models(gpus: list[dict[str, Any]]) -> str:
    """Return the number of GPUs of each model, such as `8 NVIDIA H200`."""
    models = dict.fromkeys(gpu["model"] for gpu in gpus)
    return ", ".join(f"{sum(gpu['model'] == model for gpu in gpus)} {model}" for model in models) or "0"
