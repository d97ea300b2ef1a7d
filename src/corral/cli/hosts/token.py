"""`corral token` creates, lists and revokes the tokens with which hosts join from other machines."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint
from corral.cli.printing.output import (
    count,
    format_duration,
    parsed_date,
    print_json,
    print_line,
    print_message,
    print_table,
    print_text,
)

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", value)
    if found is None:
        raise click.BadParameter(f"'{value}' is not a time: use a number and s, m, h or d, such as 30m or 8h.")
    return float(int(found[1]) * UNITS_S[found[2]])


@click.group(short_help="Create, list and revoke tokens with which hosts join.")
def token() -> None:
    """Create, list and revoke tokens with which hosts join from other machines.

    \b
    corral token create     print the command with which another machine joins
    corral token list       list the tokens that can still be used
    corral token revoke ID  revoke a token; hosts that joined with it stay
    """


@token.command(short_help="Create a token.")
@data_option
@click.option("--ttl", metavar="TIME", callback=seconds, show_default="1h", help="How long it is valid, such as 30m, 8h or 2d.")
@click.option("--uses", type=click.IntRange(1, 10_000), show_default="1", help="How many hosts can join with it.")
@click.option("--cluster", metavar="NAME", help="The ECS cluster of the hosts. Without it, they choose.")
@click.option("--rack", help="The rack of the hosts. Without it, they choose.")
@click.option("--json", "as_json", is_flag=True, help="Print the token as JSON.")
def create(data: DataFolder, ttl: float | None, uses: int | None, cluster: str | None, rack: str | None, as_json: bool) -> None:
    """Create a token, and print the command with which another machine joins.

    The first token opens the door: this machine listens on port 4567 of all its addresses, also after a restart. `corral up --door`
    chooses another address or port. The token is a secret, and cannot be shown again.
    """
    given = {"ttl": ttl, "uses": uses, "cluster": cluster, "rack": rack}
    made, _ = call(find_endpoint(data), "CreateJoinToken", {name: value for name, value in given.items() if value is not None})
    if as_json:
        print_json(made)
        return
    print_line(f"corral join {made['address']} --token {made['token']}")
    lasts = format_duration(round(made["expiresAtS"] - made["createdAtS"]))
    print_message(f"Run this on the other machine. The token is for {count(made['uses'], 'host')} and expires in {lasts}.")


@token.command("list", short_help="List the tokens that can still be used.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the tokens as JSON.")
def list_(data: DataFolder, as_json: bool) -> None:
    """List the tokens that can still be used."""
    found, date = call(find_endpoint(data), "ListJoinTokens", {})
    if as_json:
        print_json(found["tokens"])
    elif not found["tokens"]:
        print_text("No tokens. `corral token create` creates one.")
    else:
        print_table([_row(each, parsed_date(date)) for each in found["tokens"]], optional=("CLUSTER", "RACK"))


@token.command(short_help="Revoke a token.")
@data_option
@click.argument("token_id", metavar="ID")
def revoke(data: DataFolder, token_id: str) -> None:
    """Revoke a token. Hosts that have joined with it stay: `corral hosts revoke` revokes a host."""
    call(find_endpoint(data), "RevokeJoinToken", {"id": token_id.partition(".")[0]})
    print_text(f"No host can join with token {token_id.partition('.')[0]} any more.")


def _row(each: dict[str, Any], now: datetime | None) -> dict[str, str]:
    left_s = each["expiresAtS"] - (now.timestamp() if now is not None else each["createdAtS"])
    return {
        "TOKEN": each["id"],
        "USED": f"{each['used']} of {each['uses']}",
        "EXPIRES": f"in {format_duration(max(0, round(left_s)))}",
        "CLUSTER": each["cluster"] or "",
        "RACK": each["rack"] or "",
    }
