"""Finds the endpoint that a command uses, and creates clients for it.

If AWS_ENDPOINT_URL or an AWS profile is set in the environment, commands use the endpoint that it names, so they also work with
AWS. Otherwise they use the server of the data folder. Keys alone, such as AWS_ACCESS_KEY_ID, do not choose an endpoint: the user
may have set them for other programs, and a command must not send requests to AWS by mistake.

The import of botocore takes longer than most commands. So this module creates lean clients (`json_client.py`) for Corral endpoints
that are reached without a proxy. For AWS, for other endpoints and for S3, it creates clients of botocore. Both
kinds of clients have the same call syntax. Commands catch errors with `client(...).exceptions`, which both kinds have, and not with
botocore's exceptions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from corral.cli.client import data_folder
from corral.cli.client.address import DEFAULT_CLUSTER as DEFAULT_CLUSTER
from corral.cli.client.address import Endpoint as Endpoint
from corral.cli.client.data_folder import DataFolder
from corral.cli.client.tls import bundle_of
from corral.cli.printing.errors import CliError

if TYPE_CHECKING:
    from corral.cli.client.http import ConnectionPool, SigningKeys

DEFAULT_REGION = "us-east-1"
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
CONNECT_S = 5.0
READ_S = 60.0
STATUS_S = 10.0  # the usual timeout of `call`
CONNECTIONS_MAX = 64  # `corral logs -f` has a long poll for each task and for each log
QUICK_S = 1.0  # the timeout of requests with `quick`
ATTEMPTS = 3  # a request is sent at most this often, if the server does not respond or is overloaded
# Their status is 404
NOT_FOUND = tuple(f"{kind}NotFoundException" for kind in ("Gpu", "Group", "Host", "Instance", "Queue", "Task", "Token", "User"))
NOT_AUTHORIZED = "is not authorized to perform"
UNKNOWN_OPERATION = ("UnknownOperationException", "SerializationException", "InvalidAction")  # from servers other than Corral
PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
SECURE_PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")

F = TypeVar("F", bound=Callable[..., Any])
_wait_headers: ContextVar[dict[str, str]] = ContextVar("wait_headers", default={})  # noqa: B039  (never modified)


class NotCorral(CliError):
    """The endpoint does not have an operation that each Corral server has."""


def find_endpoint(data: DataFolder) -> Endpoint:
    """Return the endpoint that the environment variables name. If they name none, return the server of the data folder.

    If --data is given, ignore the variables. If this account has no data folder, return the server of `corral connect`.
    """
    if not data.chosen and any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return Endpoint()
    if not data.chosen and not os.path.exists(data.path) and (connected := _connected()) is not None:
        return connected
    return endpoint_of_folder(data)


def _connected() -> Endpoint | None:
    """Return the server to which `corral connect` has connected this account. Return None if there is none."""
    from corral.cli.client import aws_profiles

    found = aws_profiles.read(aws_profiles.CONNECTED, *aws_profiles.files())
    if found is None:
        return None
    return Endpoint(
        found.get("endpoint_url"), found.get("region"), found.get("aws_access_key_id"), found.get("aws_secret_access_key"),
        ca_bundle=found.get("ca_bundle"),
    )  # fmt: skip


def endpoint_of_folder(data: DataFolder) -> Endpoint:
    about, keys = data_folder.require_running(data), data_folder.keys(data)
    region = os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    bundle = data.path / "door" / "ca.pem"
    ca_bundle = str(bundle) if about.get("tlsUrl") and bundle.exists() else None
    return Endpoint(about["url"], region, keys["access_key"], keys["secret_key"], about["cluster"], ca_bundle)


def tls_endpoint_of_folder(data: DataFolder) -> Endpoint:
    """Return the endpoint for other machines. Raise CliError if the server does not have TLS."""
    url = data_folder.require_running(data).get("tlsUrl")
    if not url:
        raise CliError("Corral serves no TLS: start it with `corral up --tls`.")
    return endpoint_of_folder(data)._replace(endpoint_url=url)


def client_environment(endpoint: Endpoint) -> dict[str, str]:
    """Return the environment variables that other programs need to use this server."""
    assert endpoint.endpoint_url and endpoint.region and endpoint.access_key and endpoint.secret_key
    values = {
        "AWS_ENDPOINT_URL": endpoint.endpoint_url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        "AWS_DEFAULT_REGION": endpoint.region,
    }
    if endpoint.ca_bundle:
        values["AWS_CA_BUNDLE"] = endpoint.ca_bundle
    if endpoint.cluster != DEFAULT_CLUSTER:
        values["CORRAL_CLUSTER"] = endpoint.cluster
    if any(os.environ.get(name) for name in (*PROXY_VARIABLES, *SECURE_PROXY_VARIABLES)):
        from urllib.parse import urlsplit

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
    """Return the variables that would override `client_environment`.

    They set a session token or the endpoint of one service, or let clients ignore AWS_ENDPOINT_URL.
    """
    others = {"AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}
    return sorted(name for name in environment if name in others or name.startswith("AWS_ENDPOINT_URL_"))


@cache
def _session() -> Any:
    import botocore.session  # not boto3: the import of boto3 takes a third longer

    return botocore.session.get_session()


@cache
def signing_keys(endpoint: Endpoint) -> tuple[str, SigningKeys] | None:
    """Return the URL and the keys of an endpoint that is reached without a proxy. Return None for other endpoints.

    Also return None if only botocore can find the URL, the region or the keys, for example in the files of `aws configure`.
    """
    from corral.cli.client.http import SigningKeys, is_supported

    if endpoint.endpoint_url and endpoint.access_key and endpoint.secret_key and endpoint.region:
        url, keys = endpoint.endpoint_url, SigningKeys(endpoint.access_key, endpoint.secret_key, endpoint.region)
        return (url, keys) if is_supported(url) else None
    url, region = os.environ.get("AWS_ENDPOINT_URL", ""), os.environ.get("AWS_DEFAULT_REGION")
    access_key, secret_key = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    token = os.environ.get("AWS_SESSION_TOKEN") or os.environ.get("AWS_SECURITY_TOKEN")
    proxies = SECURE_PROXY_VARIABLES if url.startswith("https:") else PROXY_VARIABLES
    others = (*proxies, "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    special = any(os.environ.get(name) for name in others) or any(name.startswith("AWS_ENDPOINT_URL_") for name in os.environ)
    if special or not (access_key and secret_key and region) or not is_supported(url) or _has_aws_name(url):
        return None
    return None if _configures_endpoints() else (url, SigningKeys(access_key, secret_key, region, token))


def _configures_endpoints() -> bool:
    """Whether the configuration file of `aws` mentions endpoint URLs or certificates. Then botocore decides which apply."""
    try:
        with open(os.path.expanduser(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"), encoding="utf-8") as file:
            content = file.read()
            return "endpoint_url" in content or "ca_bundle" in content
    except (OSError, UnicodeDecodeError):
        return False


@cache
def _pool(url: str, bundle: str | None, connect_s: float, read_s: float) -> ConnectionPool:
    """Return the connection pool of a server. Because it is cached, `corral top` uses one connection for all its requests."""
    from corral.cli.client.http import ConnectionPool

    return ConnectionPool(url, connect_s=connect_s, read_s=read_s, bundle=bundle)


@cache
def client(endpoint: Endpoint, service: str, region: str | None = None, *, quick: bool = False) -> Any:
    """Return a cached client. Threads may share it. With `quick`, its requests fail after a short time and are not retried."""
    from corral.cli.client.json_client import SERVICES, LeanClient

    found = signing_keys(endpoint) if service in SERVICES else None
    if found is None:
        return _full_client(endpoint, service, region, quick=quick)
    bundle = bundle_of(endpoint.ca_bundle)
    pool = _pool(found[0], bundle, QUICK_S, QUICK_S) if quick else _pool(found[0], bundle, CONNECT_S, READ_S)
    keys = found[1]._replace(region=region or found[1].region)
    return LeanClient(service, pool, keys, attempts=1 if quick else ATTEMPTS, more_headers=_wait_headers.get)


def s3_writer(endpoint: Endpoint) -> Any:
    """Return a client of S3. Use only its `put_object`, `create_bucket`, `meta.region_name` and `exceptions`."""
    found = signing_keys(endpoint)
    if found is None:
        return client(endpoint, "s3")
    from corral.cli.client.s3 import LeanS3Writer

    return LeanS3Writer(_pool(found[0], bundle_of(endpoint.ca_bundle), CONNECT_S, READ_S), found[1], attempts=ATTEMPTS)


@cache
def _full_client(endpoint: Endpoint, service: str, region: str | None, *, quick: bool) -> Any:
    """Return a client of botocore."""
    from botocore.config import Config

    created = _session().create_client(
        service,
        region_name=region or endpoint.region,
        endpoint_url=endpoint.endpoint_url,
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
        verify=endpoint.ca_bundle,
        config=Config(
            connect_timeout=QUICK_S if quick else CONNECT_S,
            read_timeout=QUICK_S if quick else READ_S,
            max_pool_connections=CONNECTIONS_MAX,
            retries={"mode": "standard", "total_max_attempts": 1 if quick else ATTEMPTS},
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

    The server responds to GetLogEvents when the log has new events. Without `seen`, it responds to DescribeTasks when all tasks of
    the request have stopped. With `seen`, it responds when the version of the task is not `seen`. Each change of a task increments
    its version.
    """
    headers = {"X-Corral-Wait": f"{seconds:g}"} | ({"X-Corral-Seen": str(seen)} if seen is not None else {})
    token = _wait_headers.set(headers)
    try:
        yield
    finally:
        _wait_headers.reset(token)


@contextmanager
def id_prefix(prefix: str) -> Iterator[None]:
    """Let ListTasks inside this context return only tasks whose ids begin with `prefix`. AWS ignores this and returns all tasks."""
    token = _wait_headers.set({"X-Corral-Prefix": prefix})
    try:
        yield
    finally:
        _wait_headers.reset(token)


def _add_wait_headers(params: dict[str, Any], **_: Any) -> None:
    params["headers"] |= _wait_headers.get()


def is_aws(endpoint: Endpoint) -> bool:
    return signing_keys(endpoint) is None and _has_aws_name(str(client(endpoint, "ecs").meta.endpoint_url))


def _has_aws_name(url: str) -> bool:
    return url.rstrip("/").endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def get_status(endpoint: Endpoint, *, quick: bool = False, tasks: int | None = None) -> tuple[dict[str, Any], str | None]:
    """Return the status of a Corral server, and the Date header of the response.

    If `tasks` is given, the status has at most `tasks` running tasks and `tasks` waiting tasks.
    """
    return call(endpoint, "GetStatus", {"tasks": tasks} if tasks is not None else {}, quick=quick)


def list_runs(endpoint: Endpoint, cluster: str, limit: int, *, quick: bool = False) -> tuple[dict[str, Any], str | None]:
    """Return the unfinished tasks of a cluster, at most `limit` waiting tasks, and the Date header of the response."""
    return call(endpoint, "ListRuns", {"cluster": cluster, "maxWaiting": limit}, quick=quick)


class OwnResponse(NamedTuple):
    status: int
    date: str | None
    body: bytes


def call(
    endpoint: Endpoint,
    operation: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    region: str | None = None,
    quick: bool = False,
    timeout_s: float = STATUS_S,
) -> tuple[dict[str, Any], str | None]:
    """Call one of Corral's own operations. Return the response and its Date header.

    Raise CliError if the server refuses the request, and NotCorral if the server does not have the operation.
    """
    import json

    body = json.dumps(parameters or {}).encode()
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"Corral.{operation}"}
    timeout_s = QUICK_S if quick else timeout_s
    found = signing_keys(endpoint)
    if found is not None:
        keys = found[1]._replace(region=region or found[1].region)
        pool = _pool(found[0], bundle_of(endpoint.ca_bundle), timeout_s, timeout_s)
        url, response = found[0], _call_lean(pool, keys, headers, body)
    else:
        url, response = _call_by_botocore(endpoint, region, headers, body, timeout_s)
    try:
        content = json.loads(response.body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise NotCorral(f"{url} is not a Corral server: it has no operation {operation} (HTTP {response.status}).")
    if response.status == 200:
        return content, response.date
    code, message = (
        str(content.get("__type", "")).rpartition("#")[2],
        str(content.get("message") or content.get("Message") or content),
    )
    if NOT_AUTHORIZED in message:  # the key is valid, and policies do not allow the operation
        raise CliError(message)
    if code in ("AccessDeniedException", "UnrecognizedClientException") or response.status == 403:
        raise CliError(f"{url} refused the access key: {message}")
    if response.status >= 500:
        from corral.cli.client.http import ConnectionFailed

        raise ConnectionFailed(f"{url} cannot respond now: {message}")
    if (response.status != 400 and code not in NOT_FOUND) or code in UNKNOWN_OPERATION:
        raise NotCorral(f"{url} is not a Corral server: it has no operation {operation} (HTTP {response.status}).")
    raise CliError(message)


def _call_lean(pool: ConnectionPool, keys: SigningKeys, headers: dict[str, str], body: bytes) -> OwnResponse:
    from corral.cli.client.http import signed_headers

    response = pool.send("POST", "/", signed_headers(keys, "corral", pool.host_header, "POST", "/", headers, body), body)
    return OwnResponse(response.status, response.headers.get("date"), response.body)


def _call_by_botocore(
    endpoint: Endpoint, region: str | None, headers: dict[str, str], body: bytes, timeout_s: float
) -> tuple[str, OwnResponse]:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    url, region = endpoint.endpoint_url, region or endpoint.region
    credentials = Credentials(endpoint.access_key, endpoint.secret_key) if endpoint.access_key else _session().get_credentials()
    if url is None:
        ecs = client(endpoint, "ecs")
        url, region = ecs.meta.endpoint_url, region or ecs.meta.region_name
    if credentials is None:
        raise CliError('no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `eval "$(corral env)"`.')
    request = AWSRequest("POST", f"{url.rstrip('/')}/", headers, body)
    SigV4Auth(credentials, "corral", region).add_auth(request)
    verify = endpoint.ca_bundle or _session().get_config_variable("ca_bundle")
    response = _http(timeout_s, verify).send(request.prepare())
    return url, OwnResponse(response.status_code, response.headers.get("date"), response.content)


@cache
def _http(timeout_s: float, bundle: str | None) -> Any:
    from botocore.httpsession import URLLib3Session

    return URLLib3Session(verify=bundle or True, timeout=timeout_s)
