"""Who asks, and from where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)  # not frozen, as aws.Request is not
class Caller:
    account: str
    region: str
    principal: str  # an ARN
    wait_s: float = 0.0  # X-Corral-Wait: how long the caller would rather wait than hear that nothing is new
    task_id: str | None = None  # the task whose program asks, with credentials of its own or with those it got by them
    access_key_id: str = ""
    is_session: bool = False  # it asks with temporary credentials
    endpoint_url: str = ""  # where the caller found us, as it names the host
    seen: int | None = None  # X-Corral-Seen: the version that the caller has; another one is news
    request_id: str = ""
    source_ip: str = ""
