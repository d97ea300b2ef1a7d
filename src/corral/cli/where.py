"""Which endpoint the verbs talk to, and clients for it.

The standard environment comes first: whoever set AWS_ENDPOINT_URL or AWS_PROFILE means it, and so the same verbs work on
AWS. Without either it is the Corral of the data folder, never AWS by accident.
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

from corral.cli import here
from corral.cli.here import Data
from corral.cli.refusals import Failed

DEFAULT_REGION = "us-east-1"
DEFAULT_CLUSTER = "default"
NAMES_AN_ENDPOINT = ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
CONNECT_S = 5.0
READ_S = 60.0
STATUS_S = 10.0
QUICK_S = 1.0

F = TypeVar("F", bound=Callable[..., Any])
_hold: ContextVar[dict[str, str]] = ContextVar("hold", default={})  # noqa: B039  (never changed in place)


@dataclass(frozen=True, slots=True)
class Where:
    endpoint_url: str | None = None  # these four None: as the environment and the AWS configuration say
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    cluster: str = DEFAULT_CLUSTER  # the one that a verb means without --cluster


def find(data: Data) -> Where:
    """The endpoint of the environment, else the Corral of the data folder; one chosen on the command line comes first."""
    if not data.chosen and any(os.environ.get(name) for name in NAMES_AN_ENDPOINT):
        return Where()
    return of_folder(data)


def of_folder(data: Data) -> Where:
    about, keys = here.must_run(data), here.keys(data)
    region = os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    return Where(about["url"], region, keys["access_key"], keys["secret_key"], about["cluster"])


def variables(where: Where) -> dict[str, str]:
    """What other programs need in their environment to use this Corral."""
    assert where.endpoint_url and where.region and where.access_key and where.secret_key
    values = {
        "AWS_ENDPOINT_URL": where.endpoint_url,
        "AWS_ACCESS_KEY_ID": where.access_key,
        "AWS_SECRET_ACCESS_KEY": where.secret_key,
        "AWS_DEFAULT_REGION": where.region,
    }
    if where.cluster != DEFAULT_CLUSTER:
        values["CORRAL_CLUSTER"] = where.cluster
    if any(os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        host = urlsplit(where.endpoint_url).hostname or ""
        values["no_proxy"] = others if host in others.split(",") else ",".join(filter(None, (others, host)))
    return values


def cluster_option(what: str, name: str = "cluster") -> Callable[[F], F]:
    """`--cluster`; without it a verb takes `Where.cluster`."""
    return click.option(
        "--cluster", name, envvar="CORRAL_CLUSTER", help=f"{what} Without it: the cluster that this machine joined, or `default`."
    )


def in_the_way(environment: Mapping[str, str]) -> list[str]:
    """Variables that would turn a client away from `variables`: a foreign session token, an endpoint for one service."""
    others = {"AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}
    return sorted(name for name in environment if name in others or name.startswith("AWS_ENDPOINT_URL_"))


@cache
def _session() -> Any:
    import botocore.session  # boto3 is a layer over this one, and takes a third longer to import

    return botocore.session.get_session()


@cache
def client(where: Where, service: str, region: str | None = None, *, quick: bool = False) -> Any:
    """A boto3 client. Safe to share between threads, so there is one of each. `quick`: better no answer than a late one."""
    from botocore.config import Config

    created = _session().create_client(
        service,
        region_name=region or where.region,
        endpoint_url=where.endpoint_url,
        aws_access_key_id=where.access_key,
        aws_secret_access_key=where.secret_key,
        config=Config(
            connect_timeout=QUICK_S if quick else CONNECT_S,
            read_timeout=QUICK_S if quick else READ_S,
            retries={"mode": "standard", "total_max_attempts": 1 if quick else 3},
            proxies={} if where.endpoint_url else None,  # a proxy knows nothing of this machine's own address
            user_agent_extra="corral-cli",
        ),
    )
    created.meta.events.register("before-call", _ask_to_hold)
    return created


@contextmanager
def holding(seconds: float, *, seen: int | None = None) -> Iterator[None]:
    """Calls inside wait at the server until there is news, for so long at most. AWS ignores it and answers at once.

    `seen`: the version of the task that we know; Corral answers as soon as it has another. Without it, when the task has stopped.
    """
    headers = {"X-Corral-Wait": f"{seconds:g}"} | ({"X-Corral-Seen": str(seen)} if seen is not None else {})
    token = _hold.set(headers)
    try:
        yield
    finally:
        _hold.reset(token)


def _ask_to_hold(params: dict[str, Any], **_: Any) -> None:
    params["headers"] |= _hold.get()


def is_aws(where: Where) -> bool:
    return str(client(where, "ecs").meta.endpoint_url).rstrip("/").endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def status(where: Where, *, quick: bool = False) -> tuple[dict[str, Any], str | None]:
    """Corral's own status page, and the server's date. The one thing here that is not an AWS API."""
    import json

    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    endpoint, region = where.endpoint_url, where.region
    credentials = Credentials(where.access_key, where.secret_key) if where.access_key else _session().get_credentials()
    if endpoint is None:
        ecs = client(where, "ecs")
        endpoint, region = ecs.meta.endpoint_url, ecs.meta.region_name
    if credentials is None:
        raise Failed('no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `eval "$(corral env)"`.')
    request = AWSRequest("GET", f"{endpoint.rstrip('/')}/_corral/status")
    SigV4Auth(credentials, "corral", region).add_auth(request)
    answer = _http(QUICK_S if quick else STATUS_S).send(request.prepare())
    if answer.status_code == 403:
        raise Failed(f"{endpoint} refuses these keys: {_message(answer)}")
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        raise Failed(f"{endpoint} is not a Corral: it has no page /_corral/status (HTTP {answer.status_code}).")
    return json.loads(answer.content), answer.headers.get("date")


@cache
def _http(timeout_s: float) -> Any:
    """One connection for all samples of `corral top`."""
    from botocore.httpsession import URLLib3Session

    return URLLib3Session(timeout=timeout_s)


def _message(answer: Any) -> str:
    import json

    try:
        said = json.loads(answer.content)
        return str(said.get("message") or said.get("Message") or said)
    except (ValueError, AttributeError):
        return f"HTTP {answer.status_code}"
