"""`corral cost`: shows what instance-hours would have cost on AWS, and what GPU-hours of this machine cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client import owners
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, parse_period, print_json, print_table, print_text

HEADS = ("TYPE", "INSTANCES", "HOURS", "GPU HOURS", "ON DEMAND", "SPOT")
NO_PRICE = "no price"
NAMES_SHOWN_MAX = 20


@click.command(short_help="Show what instance-hours and GPU-hours cost.")
@data_option
@click.option("--since", metavar="TIME", help="Count only hours since this time: 7d, 12h, or 2026-01-31T08:00:00Z.")
@click.option("--mine", is_flag=True, help="Only instances and tasks of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def cost(data: DataFolder, since: str | None, mine: bool, as_json: bool) -> None:
    """Show what instance-hours would have cost on AWS, and what the GPU-hours of this machine cost.

    The hours of EC2 instances are shown by Auto Scaling group and by stack. The GPU-hours of tasks that ran on this machine itself,
    for example by `corral run`, are shown by name. `corral config set cost.gpu_hour PRICE` sets the price of a GPU-hour.
    """
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral cost` reports the instances of a Corral server. On AWS, use `aws ce get-cost-and-usage`.")
    report, _ = call(endpoint, "GetUsage", {**parse_period(since), **({"owner": owners.own(endpoint)} if mine else {})})
    if as_json:
        print_json(report)
        return
    if report["groups"]:
        _print_instances(report)
    if report["machine"]["names"]:
        if report["groups"]:
            print_text("")
        _print_machine(report["machine"])
    if not report["groups"] and not report["machine"]["names"]:
        when = "" if since is None else f" since {_time(report['fromS'])}"
        print_text(f"No instance has run{when}, and no task has had a GPU of this machine.")


def _print_instances(report: dict[str, Any]) -> None:
    total, regions = report["total"], {entry["region"] for entry in report["groups"]}
    print_text(f"Instance-hours since {_time(report['fromS'])}. {_about(report['prices'], regions)}")
    digits = 2 if total["hours"] >= 1 else 4
    kinds = [("group", report["groups"])]
    if any(entry["stack"] for entry in report["stacks"]):
        kinds.append(("stack", report["stacks"]))
    for kind, entries in kinds:
        rows = []
        for entry in entries:
            where = f" ({entry['region']})" if len(regions) > 1 else ""
            firsts = f"{entry[kind] or f'no {kind}'}{where}", owners.shown(entry["owner"])
            for at, each in enumerate(entry["types"]):
                rows.append((*(firsts if at == 0 else ("", "")), each["type"], *_cells(each, digits)))
        titles = (kind.upper(), "USER", *HEADS)
        print_text("")
        table = [dict(zip(titles, row)) for row in (*rows, ("total", "", "", *_cells(total, digits)))]
        print_table(_with_users(table, entries), folded=titles[:1], right=HEADS[1:])
    for line in _unpriced(report):
        print_text(line)


def _print_machine(machine: dict[str, Any]) -> None:
    """Print the GPU-hours of tasks on this machine by name, the largest first."""
    price, total, names = machine["gpuHourPrice"], machine["total"], machine["names"]
    about = f"at {price:,.10g} USD per GPU-hour" if price is not None else "without a price"
    print_text(f"GPU-hours of this machine since {_time(machine['fromS'])}, {about}.")
    print_text("")
    digits = 2 if total["gpuHours"] >= 1 else 4
    is_in_regions = len({each["region"] for each in names}) > 1

    def row(name: str, sums: dict[str, Any]) -> dict[str, str]:
        cost = NO_PRICE if sums["cost"] is None else f"{sums['cost']:,.{digits}f}"
        cells = (
            owners.shown(sums.get("owner")),
            f"{sums['tasks']:,}",
            *(f"{sums[key]:,.{digits}f}" for key in ("hours", "gpuHours")),
        )
        return dict(zip(("NAME", "USER", "TASKS", "HOURS", "GPU HOURS", "COST"), (name, *cells, cost)))

    rows = [row(each["name"] + (f" ({each['region']})" if is_in_regions else ""), each) for each in names[:NAMES_SHOWN_MAX]]
    print_table(_with_users([*rows, row("total", total)], names), folded=("NAME",), right=("TASKS", "HOURS", "GPU HOURS", "COST"))
    if len(names) > NAMES_SHOWN_MAX:
        print_text(f"The total includes {count(len(names) - NAMES_SHOWN_MAX, 'more name')}. `--json` prints all.")
    if price is None:
        print_text("Set the price of a GPU-hour with `corral config set cost.gpu_hour 2.50`.")


def _with_users(rows: list[dict[str, str]], entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of a table, with the column USER if the entries belong to several owners."""
    return rows if owners.several(entries) else [{title: cell for title, cell in row.items() if title != "USER"} for row in rows]


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
