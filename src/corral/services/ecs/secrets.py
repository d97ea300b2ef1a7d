"""Secrets of containers: parameters whose values a container finds in its environment.

They are read when a run is told to start, and go with that order to its host. No row of a task ever holds one.
"""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import ApiError
from corral.model.task import Task
from corral.services.caller import Caller
from corral.services.ecs.naming import ClientException
from corral.store import Store

NO_SECRETS = "ResourceInitializationError: unable to pull secrets or registry auth: unable to retrieve secrets from ssm: {}"
SECRETS_MANAGER = "secretsmanager"


def secrets_of(tx: Tx[Store], task: Task, container: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    """Variables of a container's environment, and why it cannot start; None: it can."""
    options = container.get("logConfiguration", {}).get("secretOptions", ())
    wanted = [*container.get("secrets", ()), *options]
    if not wanted:
        return {}, None
    from corral.services.ssm.parameter_names import find  # only here: few have secrets
    from corral.services.ssm.parameters import plain_value

    values, missing = dict[str, str](), list[str]()
    caller = Caller(tx.settings.account, task.region, "")
    for secret in wanted:
        try:
            found, _ = find(tx, caller, secret["valueFrom"])
            values[secret["name"]] = plain_value(tx, caller.account, found)
        except ApiError:
            missing.append(secret["valueFrom"])
    fault = NO_SECRETS.format(f"Invalid parameters: {', '.join(missing)}") if missing else None
    return {secret["name"]: values.get(secret["name"], "") for secret in container.get("secrets", ())}, fault


def check_secrets(container: dict[str, Any]) -> None:
    """Refuse what nobody could fetch here."""
    options = container.get("logConfiguration", {}).get("secretOptions", ())
    for secret in (*container.get("secrets", ()), *options):
        if secret["valueFrom"].split(":")[2:3] == [SECRETS_MANAGER]:
            raise ClientException(
                f"Container {container['name']}: Corral does not serve secrets of Secrets Manager ('{secret['name']}'). "
                "Put the value into a SecureString parameter (aws ssm put-parameter) and name that in valueFrom."
            )
