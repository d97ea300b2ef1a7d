"""`corral spot interrupt` takes a spot instance away, as EC2 does. So users can test how their jobs survive an interruption."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_text

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class _Notice(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration: use for example 30s, 2m or 0s.", param, ctx)
        return float(match[1]) * UNITS_S[match[2] or "s"]


@click.group(short_help="Interrupt spot instances.")
def spot() -> None:
    """Interrupt spot instances, to test how jobs and services survive an interruption."""


@spot.command(short_help="Give a spot instance the notice of its interruption, and terminate it.")
@data_option
@click.option("--notice", type=_Notice(), default="2m", show_default=True, help="The time until the instance is terminated.")
@click.option("--json", "as_json", is_flag=True, help="Print the instance and the time of its termination as JSON.")
@click.argument("instance")
def interrupt(data: DataFolder, notice: float, as_json: bool, instance: str) -> None:
    """Interrupt a spot instance: it gets no new tasks, and after the notice it is terminated with its tasks.

    INSTANCE is an id (i-…), as `corral instances` lists it.
    """
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral spot` works only with Corral. On AWS, use the Fault Injection Service (aws fis).")
    done = call(endpoint, "InterruptSpotInstance", {"instance": instance, "notice": notice})[0]
    if as_json:
        print_json(done)
    else:
        at = datetime.fromtimestamp(done["terminatesAtS"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        print_text(f"{instance} got the notice of its interruption and terminates at {at}")
