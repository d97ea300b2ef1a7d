"""`corral env` prints environment variables for a shell, or writes an AWS profile."""

from __future__ import annotations

import os
import re
import shlex

import click

from corral.cli.aws import warn_of_version_1
from corral.cli.client import aws_profiles
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import (
    Endpoint,
    client_environment,
    conflicting_variables,
    endpoint_of_folder,
    tls_endpoint_of_folder,
)
from corral.cli.printing.output import print_json

PROFILE_NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,64}")


@click.command(short_help="Print the environment variables for aws and boto3.")
@data_option
@click.option("--tls", is_flag=True, help="Use the URL for other machines (corral up --tls).")
@click.option("--profile", metavar="NAME", help="Write an AWS profile with this name instead.")
@click.option("--force", is_flag=True, help="With --profile: overwrite a profile that Corral did not write.")
@click.option("--shell", type=click.Choice(["bash", "fish"]), default="bash", show_default=True, help="bash: also for sh and zsh.")
@click.option("--json", "as_json", is_flag=True, help="Print the variables, or the paths of the profile, as JSON.")
def env(data: DataFolder, tls: bool, profile: str | None, force: bool, shell: str, as_json: bool) -> None:
    """Print the environment variables that aws, boto3 and other clients need to use this Corral: eval "$(corral env)".

    With --profile NAME, write a profile to ~/.aws/config and ~/.aws/credentials instead.
    """
    endpoint = tls_endpoint_of_folder(data) if tls else endpoint_of_folder(data)
    warn_of_version_1()
    if profile is not None:
        _write_profile(endpoint, profile, force, as_json)
        return
    values, conflicting = client_environment(endpoint), conflicting_variables(os.environ)
    if as_json:
        print_json(values)
        return
    for name in conflicting:
        click.echo(f"set -e {name};" if shell == "fish" else f"unset {name}")
    for name, value in values.items():
        click.echo(f"set -gx {name} {_fish_quoted(value)};" if shell == "fish" else f"export {name}={shlex.quote(value)}")


def _fish_quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _write_profile(endpoint: Endpoint, name: str, force: bool, as_json: bool) -> None:
    if not PROFILE_NAME.fullmatch(name):
        raise click.BadParameter("a profile name has 1 to 64 letters, digits and _ . @ + -.", param_hint="--profile")
    config, credentials = aws_profiles.files()
    aws_profiles.write(endpoint, name, config, credentials, force=force)
    if as_json:
        print_json({"profile": name, "config": str(config), "credentials": str(credentials)})
        return
    click.echo(f"Wrote profile {name} to {config} and {credentials}. Use it: aws --profile {name} ecs list-clusters")
