"""The table of permissions: every operation that is served, the actions that it needs, and what each kind of caller needs.

`cd tests && python -m answers.permission_table` writes it to `answers/permissions.txt`. A test fails if the file is outdated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import HOST_OPERATIONS
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import FEDERATED_USER, USER, iam_user
from corral.model.settings import Settings
from corral.operations.listings import listing_of
from corral.operations.services import SERVICES, needed_permissions
from corral.server.authorization import ASSUMABLE, NEED_NO_POLICY
from corral.server.s3_requests import ANONYMOUS_OPERATIONS
from corral.store import Store
from wire.generate import Generator
from wire.oracle import model_of

FILE = Path(__file__).with_name("permissions.txt")
CALLER = Caller("123456789012", "us-east-1", iam_user("123456789012", "ann"))
SEEDS = 2
HEAD = """\
# service:operation | actions | user | container | session token | federated | anonymous | listing
# The root user, and sessions that it creates without limits, may perform all operations.
#   actions        what the policies must allow; more for some parameters, and corral:RunOnHost (host) for what runs on the host
#   user           an IAM user, its sessions of roles, and its tasks within what their role allows: policy, or free of policies
#   container      a program in a container: open for resources of its owner, or policy
#   session token  credentials of GetSessionToken of a user: as the user, or never
#   federated      credentials of GetFederationToken: policies of both user and session, or never
#   anonymous      a request without a signature: the policy of the bucket, or never
#   listing        filtered: shows only what the caller may see
"""


def table() -> str:
    return HEAD + "".join(f"{line}\n" for service in SERVICES for line in _lines(service))


def _lines(service: str) -> Iterator[str]:
    tx = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    served = SERVICES[service]
    for operation in sorted(served.operations):
        is_free = (service, operation) in NEED_NO_POLICY
        actions = " ".join(_actions(tx, service, operation)) or "-"
        by_policy = "free" if is_free else "policy"
        limited = service in ("iam", "sts") and not is_free
        cells = [
            f"{service}:{operation}",
            actions + (" (host)" if operation in HOST_OPERATIONS.get(service, ()) else ""),
            by_policy,
            "open" if operation in served.open_to_containers else "policy",
            "never" if limited and operation not in ASSUMABLE[USER] else by_policy,
            "never" if limited and operation not in ASSUMABLE[FEDERATED_USER] else by_policy,
            "bucket" if service == "s3" and operation in ANONYMOUS_OPERATIONS else "never",
            "filtered" if listing_of(service, operation) is not None else "-",
        ]
        yield " | ".join(cells)


def _actions(tx: Tx[Any], service: str, operation: str) -> list[str]:
    """Return the actions for requests with generated parameters."""
    if operation not in model_of(service).operation_names:
        return ["s3:PutObject"] if operation == "PostObject" else []
    shape, found = model_of(service).operation_model(operation).input_shape, dict[str, None]()
    for seed in range(SEEDS):
        params = Generator(f"permissions {operation} {seed}").value(shape) if shape is not None else {}
        try:
            found |= dict.fromkeys(each.action for each in needed_permissions(tx, CALLER, service, operation, params))
        except ApiError:  # the handler refuses such a request
            continue
    return sorted(each for each in found if each != "corral:RunOnHost")


if __name__ == "__main__":
    FILE.write_text(table())
    sys.exit(0)
