"""The caller of an operation: account, region, principal and the headers that matter to handlers."""

from __future__ import annotations

from msgspec import Struct


class Caller(Struct, frozen=True, eq=False):
    account: str
    region: str
    principal: str  # an ARN
    wait_s: float = 0.0  # X-Corral-Wait: how long the response may wait for a change
    confined: bool = False  # a program in a container: it needs a policy for what is not open to containers
    task_id: str | None = None  # the task that the credentials belong to, also through AssumeRole
    access_key_id: str = ""
    is_session: bool = False  # the credentials are temporary
    endpoint_url: str = ""  # Corral's address as the request's Host header names it
    seen: int | None = None  # X-Corral-Seen: the version that the caller has already seen
    request_id: str = ""
    source_ip: str = ""
