"""`corral cost`: shows what the instance-hours would have cost on AWS."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import find_endpoint, is_aws, own_page
from corral.cli.errors import CliError
from corral.cli.output import DURATION, console, parse_time, print_json, print_line

HEADS = ("TYPE", "INSTANCES", "HOURS", "GPU HOURS", "ON DEMAND", "SPOT")
NO_PRICE = "no price"


@click.command(short_help="Show what the instance-hours would have cost on AWS.")
@data_option
@click.option("--since", metavar="TIME", help="Count only hours since this time: 7d, 12h, or 2026-01-31T08:00:00Z.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def cost(data: DataFolder, since: str | None, as_json: bool) -> None:
    """Show how long EC2 instances ran, by Auto Scaling group and by stack, and what this would have cost on AWS."""
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral cost` reports the instances of a Corral server. On AWS, use `aws ce get-cost-and-usage`.")
    report, _ = own_page(endpoint, f"/_corral/cost{_query(since)}")
    if as_json:
        print_json(report)
    elif report["groups"]:
        _print(report)
    else:
        print_line("No instance has run." if since is None else f"No instance has run since {_time(report['fromS'])}.")


def _query(since: str | None) -> str:
    """Return the query of the request. An age such as 7d is sent in seconds, and the server subtracts it from its own time."""
    if since is None:
        return ""
    at = parse_time(since)
    return f"?last={DURATION.convert(since, None, None)}" if at is None else f"?since={max(0, int(at.timestamp()))}"


def _print(report: dict[str, Any]) -> None:
    from rich.table import Table

    out, total = console(), report["total"]
    regions = {entry["region"] for entry in report["groups"]}
    out.print(f"Instance-hours since {_time(report['fromS'])}. {_about(report['prices'], regions)}", soft_wrap=True)
    digits = 2 if total["hours"] >= 1 else 4
    kinds = [("group", report["groups"])]
    if any(entry["stack"] for entry in report["stacks"]):
        kinds.append(("stack", report["stacks"]))
    for kind, entries in kinds:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in (kind.upper(), *HEADS):
            table.add_column(name, no_wrap=name != kind.upper(), overflow="fold", justify="right" if name in HEADS[1:] else "left")
        for entry in entries:
            name = entry[kind] or f"no {kind}"
            for at, each in enumerate(entry["types"]):
                where = f" ({entry['region']})" if len(regions) > 1 else ""
                table.add_row(f"{name}{where}" if at == 0 else "", each["type"], *_cells(each, digits))
        table.add_row("total", "", *_cells(total, digits), style="bold")
        out.print()
        out.print(table)
    for line in _unpriced(report):
        out.print(line, soft_wrap=True, markup=False)


def _about(prices: dict[str, str] | None, regions: set[str]) -> str:
    if prices is None:
        return "No price is known."
    others = ", used for all regions" if regions != {prices["region"]} else ""
    return f"Prices of AWS in {prices['region']} on {prices['date']}, for Linux, in {prices['currency']}{others}."


def _cells(entry: dict[str, Any], digits: int) -> list[str]:
    costs = [NO_PRICE if entry[name] is None else f"{entry[name]:,.{digits}f}" for name in ("onDemand", "spot")]
    return [str(entry["instances"]), f"{entry['hours']:,.{digits}f}", f"{entry['gpuHours']:,.{digits}f}", *costs]


def _unpriced(report: dict[str, Any]) -> list[str]:
    """Return a message for each price column whose total does not include some types, because their prices are not known."""
    names = {"onDemand": ("on-demand", "ON DEMAND"), "spot": ("spot", "SPOT")}
    return [
        f"No {name} price is known for {', '.join(report['withoutPrice'][key])}: the total of {column} does not include it."
        for key, (name, column) in names.items()
        if report["withoutPrice"][key]
    ]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
