"""Scheduling policies: create, describe, update and delete.

A policy divides the capacity of a job queue between shares. A share is the set of jobs with the same share identifier. Each job in
a queue with a policy has a share identifier. A policy is stored as a JSON document with the members of DescribeSchedulingPolicies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Params
from corral.services.batch.errors import EXISTS, ClientException, missing, refused
from corral.services.batch.names import (
    PAGES,
    POLICY,
    QUEUE,
    SERVICE,
    arn,
    check_name,
    checked_tags,
    listed,
    queue_key,
    short,
    shown,
)
from corral.store import Store
from corral.store.stored_resources import Document

POLICIES_CACHED_MAX = 256
POLICIES_MAX = 500  # the quota of AWS for a region
DESCRIBED_MAX = 100
DECAY_DEFAULT_S = 600.0  # the decay of a policy with shareDecaySeconds 0
DECAY_MAX_S = 604_800
RESERVATION_MAX = 99
SHARES_MAX = 500
WEIGHT_DEFAULT, WEIGHT_MIN, WEIGHT_MAX = 1.0, 0.0001, 999.9999
SHARE = re.compile(r"[A-Za-z0-9]{1,255}\*?|\*")


class FairShare(Struct, frozen=True):
    """The rules of a scheduling policy."""

    decay_s: float = DECAY_DEFAULT_S  # use of capacity this many seconds ago counts e (2.718) times less than use now
    reservation: int = 0  # computeReservation, in percent: 0 to 99
    weights: tuple[tuple[str, float], ...] = ()  # a share identifier, or a prefix that ends with *, and its weight

    def weight_of(self, share: str) -> float:
        """Return the weight of a share identifier. A share with a lower weight gets more capacity."""
        for name, weight in self.weights:
            if name == share or (name.endswith("*") and share.startswith(name[:-1])):
                return weight
        return WEIGHT_DEFAULT


def fair_share(tx: Tx[Store], region: str, arn: str) -> FairShare:
    """Return the rules of a policy, or the default rules if the policy does not exist. The parsed document is cached."""
    name = short(POLICY, region, arn)
    text = tx.store.stored.text(SERVICE, POLICY, region, name) if name else None
    return _read(text) if text is not None else FairShare()


@lru_cache(maxsize=POLICIES_CACHED_MAX)
def _read(text: str) -> FairShare:
    policy = orjson.loads(text).get("fairsharePolicy", {})
    return FairShare(
        decay_s=float(policy.get("shareDecaySeconds") or DECAY_DEFAULT_S),
        reservation=policy.get("computeReservation", 0),
        weights=tuple(
            (each["shareIdentifier"], each.get("weightFactor", WEIGHT_DEFAULT)) for each in policy.get("shareDistribution", ())
        ),
    )


def find_policy(tx: Tx[Store], region: str, given: str) -> Document:
    """Return the document of a policy by its ARN. Raise an error if the policy does not exist."""
    name = short(POLICY, region, given) if given.startswith("arn:") else ""
    document = tx.store.stored.get(SERVICE, POLICY, region, name) if name else None
    if document is None:
        raise missing(POLICY, given)
    return document


# Operations


def create_scheduling_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name, tags = check_name("name", params["name"]), checked_tags(params)
    _check_rules(params)
    if len(tx.store.stored.listed(SERVICE, POLICY, caller.region, limit=POLICIES_MAX)) == POLICIES_MAX:
        raise ClientException(f"A region can have at most {POLICIES_MAX} scheduling policies: delete one first.")
    policy: Document = {"name": name, "arn": arn(caller.account, caller.region, f"{POLICY}/{name}"), "tags": tags}
    if "fairsharePolicy" in params:
        policy["fairsharePolicy"] = _with_weights(params["fairsharePolicy"])
    if not tx.store.stored.add(SERVICE, POLICY, caller.region, name, policy, tx.now_s, caller.owner):
        raise ClientException(EXISTS)
    return {"name": name, "arn": policy["arn"]}


def update_scheduling_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Replace the rules of a policy. Its queues use the new rules at once."""
    policy = find_policy(tx, caller.region, params["arn"])
    _check_rules(params)
    if "fairsharePolicy" in params:
        policy = {**policy, "fairsharePolicy": _with_weights(params["fairsharePolicy"])}
        tx.store.stored.change(SERVICE, POLICY, caller.region, policy["name"], policy)
    for queue in _queues(tx, caller, policy["arn"]):
        tx.mark(queue_key(caller.region, queue))
    return {}


def delete_scheduling_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = find_policy(tx, caller.region, params["arn"])
    if used := _queues(tx, caller, policy["arn"]):
        raise ClientException(
            f"Cannot delete, found existing JobQueue relationship: {', '.join(used[:3])}. Delete these job queues, or give them "
            "another scheduling policy."
        )
    tx.store.stored.drop(SERVICE, POLICY, caller.region, policy["name"])
    return {}


def describe_scheduling_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    given = params["arns"]
    if len(given) > DESCRIBED_MAX:
        raise ClientException(f"arns can have at most {DESCRIBED_MAX} elements: it has {len(given)}.")
    names = dict.fromkeys(short(POLICY, caller.region, each) for each in given if each.startswith("arn:"))
    found = (tx.store.stored.get(SERVICE, POLICY, caller.region, name) for name in names if name)
    return {"schedulingPolicies": [shown(policy) for policy in found if policy is not None]}


def list_scheduling_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found, more = PAGES.page(params, listed(tx, caller, POLICY))
    return {"schedulingPolicies": [{"arn": policy["arn"]} for policy in found], **more}


def _with_weights(policy: Document) -> Document:
    """Return a policy without the weights 0, which Terraform sends for a share without a weight. Such a share has the default."""
    shares = policy.get("shareDistribution")
    if shares is None:
        return policy
    kept = [{member: value for member, value in each.items() if value or member != "weightFactor"} for each in shares]
    return {**policy, "shareDistribution": kept}


def _queues(tx: Tx[Store], caller: Caller, policy_arn: str) -> list[str]:
    queues = tx.store.stored.with_prefix(SERVICE, QUEUE, caller.region, "")
    return [name for name, queue in queues if queue.get("schedulingPolicyArn") == policy_arn]


def _check_rules(params: Params) -> None:
    if "quotaSharePolicy" in params:
        raise ClientException("Corral does not serve quota shares: use fairsharePolicy instead of quotaSharePolicy.")
    policy = params.get("fairsharePolicy", {})
    for member, most in (("shareDecaySeconds", DECAY_MAX_S), ("computeReservation", RESERVATION_MAX)):
        if not 0 <= policy.get(member, 0) <= most:
            raise refused(member, policy[member], f"it must be between 0 and {most}.")
    shares: list[Mapping[str, Any]] = policy.get("shareDistribution", [])
    if len(shares) > SHARES_MAX:
        raise ClientException(f"shareDistribution can have at most {SHARES_MAX} elements: it has {len(shares)}.")
    for each in shares:
        if not SHARE.fullmatch(each["shareIdentifier"]):
            rule = "it must have 1 to 255 letters and digits, and can end with an asterisk (*)."
            raise refused("shareIdentifier", each["shareIdentifier"], rule)
        if not WEIGHT_MIN <= (each.get("weightFactor") or WEIGHT_DEFAULT) <= WEIGHT_MAX:
            raise refused("weightFactor", each["weightFactor"], f"it must be between {WEIGHT_MIN} and {WEIGHT_MAX}.")
    _check_overlaps([each["shareIdentifier"] for each in shares])


def _check_overlaps(shares: list[str]) -> None:
    """Refuse two share identifiers that match the same text.

    The check compares neighbours in sorted order, where a prefix is directly before the names that it matches.
    """
    before = None
    for share in sorted(shares, key=lambda each: (each.rstrip("*"), not each.endswith("*"))):
        if before is not None and (share == before or (before.endswith("*") and share.rstrip("*").startswith(before[:-1]))):
            raise refused(
                "shareDistribution", share, f"it overlaps with {before!r}. The share identifiers of a policy can't overlap."
            )
        if before is None or not before.endswith("*") or not share.startswith(before[:-1]):
            before = share
