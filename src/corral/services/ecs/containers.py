"""What a task definition says of its containers' coming and going: dependencies, health checks, restarts, limits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from corral.model.run import HealthCheck
from corral.model.task import ContainerRules, RestartPolicy
from corral.services.ecs.naming import InvalidParameterException

RESTART_PERIOD_S = 300
TIME_LIMIT_TAG = "corral:time-limit"
HOST_IMAGE = "corral/host"
LIFE_FIELDS = frozenset({"dependsOn", "healthCheck", "restartPolicy"})  # looked at as containers come and go


def is_host_image(image: str) -> bool:
    """It means this machine: a plain process, whatever else could run it."""
    return image == HOST_IMAGE or image.startswith(f"{HOST_IMAGE}:")


def is_plain(containers: Iterable[dict[str, Any]]) -> bool:
    """Nothing of them has to be looked up again as they start and end."""
    return all(LIFE_FIELDS.isdisjoint(container) and not needs_others(container) for container in containers)


def needs_others(container: dict[str, Any]) -> bool:
    """Does it wait for other containers of its task, or may it start at once?"""
    return bool(container.get("dependsOn") or container.get("links") or container.get("volumesFrom"))


def dependencies(container: dict[str, Any]) -> dict[str, str]:
    """By container, the condition that must hold before this one starts. Whoever links to one, or takes its volumes, needs it."""
    taken = [source["sourceContainer"] for source in container.get("volumesFrom", ())]
    linked = [link.partition(":")[0] for link in container.get("links", ())]
    said = {needed["containerName"]: needed["condition"] for needed in container.get("dependsOn", ())}
    return {**dict.fromkeys([*taken, *linked], "START"), **said}


def container_rules(container: dict[str, Any]) -> ContainerRules:
    """No override changes them."""
    policy = container.get("restartPolicy") or {}
    restart = None
    if policy.get("enabled"):
        period_s = policy.get("restartAttemptPeriod", RESTART_PERIOD_S)
        restart = RestartPolicy(float(period_s), frozenset(policy.get("ignoredExitCodes", ())))
    return ContainerRules(
        depends_on=tuple(dependencies(container).items()),
        start_timeout_s=float(container["startTimeout"]) if container.get("startTimeout") else None,
        restart=restart,
    )


def health_check(container: dict[str, Any]) -> HealthCheck | None:
    """None: it has none, or one that says NONE."""
    check = container.get("healthCheck")
    if not check:
        return None
    kind, *words = check["command"]
    if kind == "NONE":
        return None
    return HealthCheck(
        command=["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words,
        interval_s=float(check.get("interval", 30)),
        timeout_s=float(check.get("timeout", 5)),
        retries=check.get("retries", 3),
        start_period_s=float(check.get("startPeriod", 0)),
    )


def time_limit_s(tags: Iterable[dict[str, str]]) -> float | None:
    """The tag that says how long after its start a task is stopped."""
    given = next((tag.get("value", "") for tag in tags if tag.get("key") == TIME_LIMIT_TAG), None)
    if given is None:
        return None
    try:
        limit_s = float(given)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise InvalidParameterException(f"The tag {TIME_LIMIT_TAG} must be a positive number of seconds, not '{given}'.")
    return limit_s
