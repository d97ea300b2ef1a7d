"""The owners of tasks and instances, as tables show them: the column USER, and what belongs to the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corral.cli.client.endpoint import Endpoint, client

ROOT, OF_USER = "root", "user/"


def several(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the rows of a table belong to more than one owner, so that the table needs the column USER."""
    return len({row["owner"] for row in rows if row.get("owner")}) > 1


def shown(owner: str | None) -> str:
    return (owner or "").removeprefix(OF_USER)


def own(endpoint: Endpoint) -> str:
    """Return the owner of what the caller creates."""
    arn: str = client(endpoint, "sts").get_caller_identity()["Arn"]
    kind, _, name = arn.split(":", 5)[-1].partition("/")
    return f"{OF_USER}{name.rpartition('/')[2]}" if kind == "user" else ROOT
