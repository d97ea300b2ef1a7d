"""`corral connect` gets an access key for a code of the administrator, and stores it in an AWS profile."""

from __future__ import annotations

import json
import os
import re
import sys
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import click

from corral.cli.client import aws_profiles
from corral.cli.client.endpoint import DEFAULT_REGION, Endpoint
from corral.cli.client.http import ConnectionPool
from corral.cli.client.tls import fetch_authority
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_message, print_text

TIMEOUT_S = 20.0
CONNECT_PATH = "/_corral/connect"
PROFILE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@click.command(short_help="Connect to a Corral on which you have a user.")
@click.argument("url")
@click.option("--code", required=True, help="The code that `corral user add` printed. - reads it from standard input.")
@click.option("--profile", default=aws_profiles.CONNECTED, show_default=True, metavar="NAME", help="The AWS profile to write.")
@click.option("--region", default=DEFAULT_REGION, show_default=True, help="The region of the profile.")
@click.option("--force", is_flag=True, help="Overwrite a profile that Corral did not write.")
@click.option("--json", "as_json", is_flag=True, help="Print what was stored as JSON, without the secret key.")
def connect(url: str, code: str, profile: str, region: str, force: bool, as_json: bool) -> None:
    """Connect to a Corral on which you have a user.

    The administrator gets the whole command from `corral user add`. It checks that the server is the one that made the code, gets
    an access key, and stores it in an AWS profile, as `aws configure` does. After that, `corral ps` and `corral run` use this
    server, unless this account has a Corral of its own. For `aws` and boto3, set AWS_PROFILE.
    """
    if not PROFILE.fullmatch(profile):
        raise click.UsageError(f"the profile name '{profile}' is not valid: use up to 64 letters, digits, dots and hyphens.")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise click.UsageError(f"{url} is not the URL of a server, such as https://box1:4566.")
    if code == "-":
        code = sys.stdin.readline().strip()
    code, _, pin = code.partition(".")
    config, credentials = aws_profiles.files()
    aws_profiles.check_free(profile, config, credentials, force=force)  # before the code is used up
    origin, bundle = f"{parts.scheme}://{parts.netloc}", None
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise CliError(f"{url} has no TLS, so everyone on the network could read your key. Use the https URL of the server.")
    if parts.scheme == "https" and pin:
        bundle = config.parent / f"{profile}-authority.pem"
        authority = fetch_authority(origin, pin)
        bundle.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        bundle.write_text(authority)
    found = _redeem(origin, code, str(bundle) if bundle is not None else None)
    keys = found["accessKeyId"], found["secretAccessKey"]
    endpoint = Endpoint(origin, region, *keys, ca_bundle=str(bundle) if bundle is not None else None)
    aws_profiles.write(endpoint, profile, config, credentials, force=True)
    if as_json:
        print_json({"user": found["userName"], "url": origin, "profile": profile, "accessKeyId": found["accessKeyId"]})
        return
    print_text(f"You are {found['userName']} on {origin}. The key is in the AWS profile {profile}.")
    print_message(f"Try `corral status`. For aws and boto3: export AWS_PROFILE={profile}")
    if bundle is not None and os.environ.get("AWS_CA_BUNDLE"):
        print_message(f"AWS_CA_BUNDLE is set here, and aws and boto3 prefer it to the profile: unset it, or set it to {bundle}.")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _redeem(url: str, code: str, bundle: str | None) -> dict[str, Any]:
    pool = ConnectionPool(url, connect_s=TIMEOUT_S, read_s=TIMEOUT_S, bundle=bundle)
    response = pool.send("POST", CONNECT_PATH, {"content-type": "application/json"}, json.dumps({"code": code}).encode())
    try:
        content: dict[str, Any] = json.loads(response.body)
    except ValueError:
        raise CliError(f"{url} is not a Corral server of this version (HTTP {response.status}).") from None
    if response.status != 200:
        raise CliError(str(content.get("message", content)))
    return content
