"""`corral env`: lines for a shell, or an AWS profile."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click

from corral.cli import profiles
from corral.cli.here import Data, data_option
from corral.cli.where import Where, in_the_way, of_folder, variables
from corral.cli.words import print_json

PROFILE_NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,64}")


@click.command(short_help="Print what points aws and boto3 at this Corral.")
@data_option
@click.option("--profile", metavar="NAME", help="Write an AWS profile of this name instead.")
@click.option("--force", is_flag=True, help="With --profile: also over a profile that is not Corral's.")
@click.option("--shell", type=click.Choice(["bash", "fish"]), default="bash", show_default=True, help="bash: also sh and zsh.")
@click.option("--json", "as_json", is_flag=True, help="The variables, or where the profile is, as JSON.")
def env(data: Data, profile: str | None, force: bool, shell: str, as_json: bool) -> None:
    """Print what points aws, boto3 and other clients at this Corral: eval "$(corral env)".

    With --profile NAME it is written as a profile to ~/.aws/config and ~/.aws/credentials.
    """
    where = of_folder(data)
    if profile is not None:
        _write_profile(where, profile, force, as_json)
        return
    values, hindrances = variables(where), in_the_way(os.environ)
    if as_json:
        print_json(values)
        return
    for name in hindrances:
        click.echo(f"set -e {name};" if shell == "fish" else f"unset {name}")
    for name, value in values.items():
        click.echo(f"set -gx {name} {_fish_quoted(value)};" if shell == "fish" else f"export {name}={shlex.quote(value)}")


def _fish_quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _write_profile(where: Where, name: str, force: bool, as_json: bool) -> None:
    if not PROFILE_NAME.fullmatch(name):
        raise click.BadParameter("use letters, digits and _ . @ + - in a profile's name.", param_hint="--profile")
    config = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    credentials = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    profiles.write(where, name, config, credentials, force=force)
    if as_json:
        print_json({"profile": name, "config": str(config), "credentials": str(credentials)})
        return
    click.echo(f"Profile {name} is in {config} and {credentials}. Use it: aws --profile {name} ecs list-clusters")
