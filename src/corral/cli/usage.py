"""`corral usage`: shows who has used how many GPU-hours, and what was idle."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from time import localtime
from typing import Any

import click

from corral.cli.client import owners
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import parse_period, print_json, print_line, print_table, print_text, screen_width

DEFAULT_SINCE = "7d"
WIDTH_MAX = 80
BUSY, IDLE = "█", "░"
RIGHT = ("GPU HOURS", "SHARE", "IDLE", "GPUS NOW", "DECAYED", "WEIGHT")


@click.command(short_help="Show who has used the GPUs, and what was idle.")
@data_option
@click.option("--since", metavar="TIME", help=f"Count hours since this time: 30d, 12h, or 2026-01-31T08:00:00Z ({DEFAULT_SINCE}).")
@click.option("--user", metavar="NAME", help="Only this user, or root.")
@click.option("--mine", is_flag=True, help="Only what you have used.")
@click.option("--json", "as_json", is_flag=True, help="Print the usage as JSON.")
def usage(data: DataFolder, since: str | None, user: str | None, mine: bool, as_json: bool) -> None:
    """Show how many GPU-hours each user has used, with a graph by day, and for how many of them the GPUs did nothing.

    A task uses its GPUs from its placement to its end. The owner of an EC2 instance uses its GPUs from the launch to the end. IDLE
    are the hours in which the utilization of the GPUs was below 1%. In DECAYED, use of an earlier time counts less.
    """
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral usage` works only with Corral. On AWS, use `aws ce get-cost-and-usage`.")
    if user is not None and mine:
        raise click.UsageError("use either --user or --mine.")
    request: dict[str, Any] = {**parse_period(since or DEFAULT_SINCE), "utcOffset": localtime().tm_gmtoff}
    if user is not None or mine:
        request["owner"] = owners.own(endpoint) if user is None else user if user == owners.ROOT else f"{owners.OF_USER}{user}"
    found, _ = call(endpoint, "DescribeUsage", request)
    if as_json:
        print_json(found)
        return
    whose = f" of {owners.shown(request['owner'])}" if "owner" in request else ""
    begin = datetime.fromtimestamp(found["fromS"]).astimezone()
    if not found["owners"]:
        print_text(f"No GPU-hours{whose} since {begin:%Y-%m-%d %H:%M}.")
        return
    print_text(f"GPU-hours{whose} since {begin:%Y-%m-%d %H:%M}.")
    print_line()
    print_table([_row(each) for each in found["owners"]], optional=("LIMIT",), folded=("USER", "LIMIT"), right=RIGHT)
    print_line()
    _print_days(found)


def _row(each: dict[str, Any]) -> dict[str, str]:
    limits = [f"{_hours(limit['usedGpuHours'])} of {_hours(limit['gpuHoursPerWeek'])}/week" for limit in each["limits"]]
    return {
        "USER": owners.shown(each["owner"]),
        "GPU HOURS": _hours(each["gpuHours"]),
        "SHARE": f"{100 * each['share']:.0f}%",
        "IDLE": _hours(each["idleGpuHours"]),
        "GPUS NOW": f"{each['gpus']:.2f}".rstrip("0").rstrip("."),
        "DECAYED": _hours(each["decayedGpuHours"]),
        "WEIGHT": f"{each['weight']:g}",
        "LIMIT": ", ".join(limits),
    }


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 or not hours else f"{hours:.2f}"


def _print_days(found: dict[str, Any]) -> None:
    """Draw a bar for each day: the hours of all users in the table together. The idle part is light."""
    sums: dict[str, tuple[float, float]] = {}
    day, end = datetime.fromtimestamp(found["fromS"]).date(), datetime.fromtimestamp(found["toS"]).date()
    while day <= end:
        sums[_day(day)] = (0.0, 0.0)
        day += timedelta(days=1)
    for each in found["owners"]:
        for used in each["days"]:
            name = _day(date.fromisoformat(used["date"]))
            busy, idle = sums.get(name, (0.0, 0.0))
            sums[name] = busy + used["gpuHours"] - used["idleGpuHours"], idle + used["idleGpuHours"]
    most = max(busy + idle for busy, idle in sums.values())
    texts = {name: _hours(busy + idle) for name, (busy, idle) in sums.items()}
    number_width = max(map(len, texts.values()))
    day_width = max(map(len, sums))
    width = max(8, min(screen_width() or WIDTH_MAX, WIDTH_MAX) - day_width - number_width - 4)
    for name, (busy, idle) in sums.items():
        whole = round((busy + idle) / most * width) if most else 0
        light = min(whole, round(idle / most * width)) if most else 0
        print_line(f"{name:<{day_width}}  {texts[name]:>{number_width}}  {BUSY * (whole - light)}{IDLE * light}".rstrip())
    if any(idle for _, idle in sums.values()):
        print_text(f"{IDLE} the GPUs did nothing")


def _day(day: date) -> str:
    return f"{day:%a %b} {day.day:>2}"
