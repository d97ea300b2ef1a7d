"""The permissions that operations of CloudTrail need. They have no resources."""

from __future__ import annotations

from typing import Any

import orjson

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE
from corral.operations.listings import Listed
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    return [Permission(f"cloudtrail:{operation}", NO_RESOURCE)]


def _owner(tx: Tx[Store], caller: Caller, params: Params, event: Any) -> str:
    """Return the owner of the principal that has made the call."""
    owner: str = orjson.loads(event["CloudTrailEvent"])["additionalEventData"]["owner"]
    return owner


LISTED = {"LookupEvents": Listed(("Events",), _owner)}
