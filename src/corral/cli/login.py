"""`corral login` logs docker in to Corral's image registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from urllib.parse import urlsplit

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, find_endpoint
from corral.cli.client.tls import bundle_of
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message

CERTIFICATES = Path("/etc/docker/certs.d")  # where the Docker engine looks for the authorities of registries


@click.command(short_help="Log docker in to the image registry.")
@data_option
def login(data: DataFolder) -> None:
    """Run `docker login` with a password from GetAuthorizationToken. The password is valid for 12 hours."""
    endpoint = find_endpoint(data)
    ecr = client(endpoint, "ecr")
    program = shutil.which("docker")
    if program is None:
        raise CliError("docker is not on PATH. For other registry clients, `corral aws ecr get-login-password` prints a password.")
    [given] = ecr.get_authorization_token()["authorizationData"]
    user, _, password = b64decode(given["authorizationToken"]).decode().partition(":")
    registry = urlsplit(given["proxyEndpoint"]).netloc
    bundle = bundle_of(endpoint.ca_bundle)
    if given["proxyEndpoint"].startswith("https://") and bundle is not None:
        _require_trust(registry, Path(bundle))
    # Pass the password on standard input, because every user of the machine can read command lines.
    done = subprocess.run([program, "login", "--username", user, "--password-stdin", registry], input=password, text=True)
    if done.returncode == 0:
        print_message(f"push and pull images as {registry}/REPOSITORY:TAG. The repositories are those of {ecr.meta.region_name}.")
    sys.exit(done.returncode)


def _require_trust(registry: str, bundle: Path) -> None:
    """Raise CliError if the Docker engine does not have the certificate with which it verifies the registry."""
    wanted = CERTIFICATES / registry / "ca.crt"
    try:
        is_there = wanted.read_bytes() == bundle.read_bytes()
    except OSError:
        is_there = False
    if not is_there:
        raise CliError(
            f"the Docker engine cannot verify {registry} yet. Run this, and then `corral login` again: "
            f"sudo install -D -m 644 {bundle} {wanted}"
        )
