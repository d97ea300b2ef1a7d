"""The address of a server, and the keys with which a command signs its requests."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_CLUSTER = "default"


class Endpoint(NamedTuple):
    endpoint_url: str | None = None  # if this and the next three are None, botocore reads the environment and the AWS configuration
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    cluster: str = DEFAULT_CLUSTER  # the default value of --cluster
    ca_bundle: str | None = None  # the file with the certificate that verifies the server; None: those of this machine
