"""`corral login`: docker may push to and pull from this Corral's registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from base64 import b64decode
from urllib.parse import urlsplit

import click

from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.where import client, find
from corral.cli.words import say


@click.command(short_help="Let docker push to and pull from the registry.")
@data_option
def login(data: Data) -> None:
    """Run `docker login` with a password that GetAuthorizationToken gives; it holds for 12 hours."""
    ecr = client(find(data), "ecr")
    program = shutil.which("docker")
    if program is None:
        raise Failed("there is no docker command on PATH; other clients of registries take `corral aws ecr get-login-password`.")
    [given] = ecr.get_authorization_token()["authorizationData"]
    user, _, password = b64decode(given["authorizationToken"]).decode().partition(":")
    registry = urlsplit(given["proxyEndpoint"]).netloc
    # On its input: what is on a command line everybody can read.
    done = subprocess.run([program, "login", "--username", user, "--password-stdin", registry], input=password, text=True)
    if done.returncode == 0:
        say(f"push and pull images as {registry}/REPOSITORY:TAG; the repositories are those of {ecr.meta.region_name}.")
    sys.exit(done.returncode)
