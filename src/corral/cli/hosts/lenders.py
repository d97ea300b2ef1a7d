"""`corral lenders` lists what lends machines to instances, and the allocations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint
from corral.cli.printing.output import ago, parsed_date, print_json, print_message, print_table, print_text


@click.command(short_help="List the lenders of machines and their allocations.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the lenders as JSON.")
def lenders(data: DataFolder, as_json: bool) -> None:
    """List the lenders of machines, such as Slurm clusters, and what they have given to instances.

    Tables [lenders.NAME] of corral.toml define lenders. The tag corral:lender of a launch template chooses one.
    """
    found, date = call(find_endpoint(data), "ListLenders", {})
    if as_json:
        print_json(found["lenders"])
        return
    others = [each for each in found["lenders"] if each["kind"] != "local"]
    if not others:
        print_text("No lenders: instances are parts of the hosts. [lenders.NAME] in corral.toml defines one (docs/lenders.md).")
        return
    rows = [_row(lender, each, parsed_date(date)) for lender in others for each in lender["allocations"]]
    for lender in others:
        for advice in lender["advice"]:
            print_message(f"{lender['name']}: {advice}")
        if lender["problem"]:
            print_message(f"The lender {lender['name']} waits: {lender['problem']}")
    if rows:
        print_table(rows, folded=("REASON",), optional=("GROUP", "AWS PRICE"))
    else:
        print_text(f"{', '.join(lender['name'] for lender in others)}: no allocations")


def _row(lender: dict[str, Any], each: dict[str, Any], now: datetime | None) -> dict[str, str]:
    return {
        "LENDER": lender["name"],
        "JOB": each["handle"] or "",
        "STATE": each["state"].upper(),
        "INSTANCE": each["instanceId"],
        "TYPE": each["instanceType"] or "",
        "GROUP": each["group"] or "",
        "GPUS": str(each["gpus"]),
        "HOURS": f"{each['hours']:.1f}" if each["hours"] else "",
        "AWS PRICE": f"${each['onDemand']:.2f}" if each["onDemand"] else "",
        "SINCE": ago(datetime.fromtimestamp(each["createdAtS"], UTC), now),
        "REASON": each["reason"] or "",
    }
