"""Finds the endpoint that a command uses, and creates clients for it.

If AWS_ENDPOINT_URL or AWS_PROFILE is set, commands use that endpoint, so they also work with AWS. Otherwise they use the server of
the data folder. If the environment contains only AWS keys, commands do not use AWS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from corral.cli import data_folder
from corral.cli.data_folder import DataFolder
from corral.cli.errors import CliError

DEFAULT_REGION = "us-east-1"
DEFAULT_CLUSTER = "default"
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
CONNECT_S = 5.0
READ_S = 60.0
STATUS_S = 10.0
CONNECTIONS_MAX = 64  # `corral logs -f` has a long poll for each task and for each log
QUICK_S = 1.0

F = TypeVar("F", bound=Callable[..., Any])
_wait_headers: ContextVar[dict[str, str]] = ContextVar("wait_headers", default={})  # noqa: B039  (never modified)


@dataclass(frozen=True, slots=True)
class Endpoint:
    endpoint_url: str | None = None  # if this and the next three are None, botocore reads the environment and the AWS configuration
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    cluster: str = DEFAULT_CLUSTER  # the default value of --cluster


def find_endpoint(data: DataFolder) -> Endpoint:
    """Return the endpoint in the environment variables, else the server of the data folder.

    If --data is given, ignore the variables.
    """
    if not data.chosen and any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return Endpoint()
    return endpoint_of_folder(data)


def endpoint_of_folder(data: DataFolder) -> Endpoint:
    about, keys = data_folder.require_running(data), data_folder.keys(data)
    region = os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    return Endpoint(about["url"], region, keys["access_key"], keys["secret_key"], about["cluster"])


def client_environment(endpoint: Endpoint) -> dict[str, str]:
    """Return the environment variables that other programs need to use this server."""
    assert endpoint.endpoint_url and endpoint.region and endpoint.access_key and endpoint.secret_key
    values = {
        "AWS_ENDPOINT_URL": endpoint.endpoint_url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        "AWS_DEFAULT_REGION": endpoint.region,
    }
    if endpoint.cluster != DEFAULT_CLUSTER:
        values["CORRAL_CLUSTER"] = endpoint.cluster
    if any(os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        host = urlsplit(endpoint.endpoint_url).hostname or ""
        values["no_proxy"] = others if host in others.split(",") else ",".join(filter(None, (others, host)))
    return values


def cluster_option(text: str, name: str = "cluster") -> Callable[[F], F]:
    """Return the option `--cluster`. If the user does not pass it, commands use `Endpoint.cluster`."""
    return click.option(
        "--cluster", name, envvar="CORRAL_CLUSTER", help=f"{text} Default: the cluster that this machine joined, or `default`."
    )


def conflicting_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that would override `client_environment`: session tokens, and endpoints of single services."""
    others = {"AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}
    return sorted(name for name in environment if name in others or name.startswith("AWS_ENDPOINT_URL_"))


@cache
def _session() -> Any:
    import botocore.session  # not boto3, because importing it takes a third longer

    return botocore.session.get_session()


@cache
def client(endpoint: Endpoint, service: str, region: str | None = None, *, quick: bool = False) -> Any:
    """Return a cached client. Threads may share it. With `quick`, its requests fail after a short time and are not retried."""
    from botocore.config import Config

    created = _session().create_client(
        service,
        region_name=region or endpoint.region,
        endpoint_url=endpoint.endpoint_url,
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
        config=Config(
            connect_timeout=QUICK_S if quick else CONNECT_S,
            read_timeout=QUICK_S if quick else READ_S,
            max_pool_connections=CONNECTIONS_MAX,
            retries={"mode": "standard", "total_max_attempts": 1 if quick else 3},
            proxies={} if endpoint.endpoint_url else None,  # a proxy cannot reach Corral on this machine's loopback address
            user_agent_extra="corral-cli",
        ),
    )
    created.meta.events.register("before-call", _add_wait_headers)
    return created


@contextmanager
def long_poll(seconds: float, *, seen: int | None = None) -> Iterator[None]:
    """Send long-poll headers with all requests inside this context. The server delays its response until there is something new,
    for at most `seconds`. AWS ignores these headers.

    Each change of a task increments the version of the task. A request that describes a task gets its response when the version is
    no longer `seen`. Without `seen`, it gets its response when the task has stopped.
    """
    headers = {"X-Corral-Wait": f"{seconds:g}"} | ({"X-Corral-Seen": str(seen)} if seen is not None else {})
    token = _wait_headers.set(headers)
    try:
        yield
    finally:
        _wait_headers.reset(token)


def _add_wait_headers(params: dict[str, Any], **_: Any) -> None:
    params["headers"] |= _wait_headers.get()


def is_aws(endpoint: Endpoint) -> bool:
    return str(client(endpoint, "ecs").meta.endpoint_url).rstrip("/").endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def status_page(endpoint: Endpoint, *, quick: bool = False) -> tuple[dict[str, Any], str | None]:
    """Return Corral's status page, and the Date header of the response."""
    return own_page(endpoint, "/_corral/status", quick=quick)


def own_page(
    endpoint: Endpoint, path: str, content: dict[str, Any] | None = None, *, quick: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Request a page of Corral that is not part of an AWS API.

    If `content` is given, send it with POST. Return the response and its Date header.
    """
    import json

    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    url, region = endpoint.endpoint_url, endpoint.region
    credentials = Credentials(endpoint.access_key, endpoint.secret_key) if endpoint.access_key else _session().get_credentials()
    if url is None:
        ecs = client(endpoint, "ecs")
        url, region = ecs.meta.endpoint_url, ecs.meta.region_name
    if credentials is None:
        raise CliError('no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `eval "$(corral env)"`.')
    data = json.dumps(content).encode() if content is not None else None
    headers = {"Content-Type": "application/json"} if content is not None else {}
    request = AWSRequest("GET" if content is None else "POST", f"{url.rstrip('/')}{path}", headers, data)
    SigV4Auth(credentials, "corral", region).add_auth(request)
    response = _http(QUICK_S if quick else STATUS_S).send(request.prepare())
    if response.status_code == 403:
        raise CliError(f"{url} refused the access key: {_message(response)}")
    if content is not None and response.status_code in (400, 404) and "json" in response.headers.get("content-type", ""):
        raise CliError(_message(response))
    if response.status_code != 200 or "json" not in response.headers.get("content-type", ""):
        raise CliError(f"{url} is not a Corral server: it has no page {path} (HTTP {response.status_code}).")
    return json.loads(response.content), response.headers.get("date")


@cache
def _http(timeout_s: float) -> Any:
    """Return the shared HTTP session. With it, `corral top` uses one connection for all its requests."""
    from botocore.httpsession import URLLib3Session

    return URLLib3Session(timeout=timeout_s)


def _message(response: Any) -> str:
    import json

    try:
        content = json.loads(response.content)
        return str(content.get("message") or content.get("Message") or content)
    except (ValueError, AttributeError):
        return f"HTTP {response.status_code}"
