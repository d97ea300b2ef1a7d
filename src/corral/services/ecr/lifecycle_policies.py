"""Checks lifecycle policies by the rules in ECR's documentation. Corral stores a policy, but does not apply it to images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from corral.core.errors import ApiError
from corral.model.json_documents import read_json
from corral.services.ecr.repository_names import violated

RULES_MAX = 50
TAG_STATUSES = ("tagged", "untagged", "any")
TAG_LISTS = ("tagPatternList", "tagPrefixList")
WILDCARDS_MAX = 4
SINCE = ("sinceImagePushed", "sinceImagePulled", "sinceImageTransitioned")
COUNT_TYPES = ("imageCountMoreThan", *SINCE)
STORAGE_CLASSES = ("standard", "archive")
ACTIONS = ("expire", "transition")


def check_lifecycle_policy(text: str) -> None:
    """Raise the same error as ECR if the policy is not valid."""
    try:
        policy = read_json(text)
    except ValueError:
        policy = None
    if not isinstance(policy, dict):
        raise _failed("Could not map policyString into LifecyclePolicy.")
    _check_members(policy, required=("rules",))
    rules = policy["rules"]
    if not isinstance(rules, list) or not 1 <= len(rules) <= RULES_MAX:
        raise _failed(f"rules must be a list of 1 to {RULES_MAX} rules")
    for rule in rules:
        _check_rule(rule)
    _check_order(rules)


def _check_rule(rule: Any) -> None:
    _check_members(rule, required=("rulePriority", "selection", "action"), optional=("description",))
    _check_positive(rule["rulePriority"], "rulePriority")
    _check_action(rule["action"])
    _check_selection(rule["selection"])


def _check_action(action: Any) -> None:
    _check_members(action, required=("type",), optional=("targetStorageClass",))
    _check_one_of(action["type"], ACTIONS)
    if (action["type"] == "transition") != ("targetStorageClass" in action):
        raise _failed("targetStorageClass is required for an action of type transition and not allowed for other types")
    if "targetStorageClass" in action:
        _check_one_of(action["targetStorageClass"], ("archive",))


def _check_selection(selection: Any) -> None:
    _check_members(selection, ("tagStatus", "countType", "countNumber"), (*TAG_LISTS, "countUnit", "storageClass"))
    status, count = selection["tagStatus"], selection["countType"]
    _check_one_of(status, TAG_STATUSES)
    _check_one_of(count, COUNT_TYPES)
    _check_positive(selection["countNumber"], "countNumber")
    if "storageClass" in selection:
        _check_one_of(selection["storageClass"], STORAGE_CLASSES)
    lists = [name for name in TAG_LISTS if name in selection]
    if len(lists) != (1 if status == "tagged" else 0):
        raise _failed(
            f"a selection with tagStatus tagged must have exactly one of {' and '.join(TAG_LISTS)}; other selections must have none"
        )
    for name in lists:
        _check_tags(name, selection[name])
    if (count in SINCE) != ("countUnit" in selection):
        raise _failed(f"countUnit is required with countType {', '.join(SINCE)} and not allowed with other count types")
    if "countUnit" in selection:
        _check_one_of(selection["countUnit"], ("days",))


def _check_tags(name: str, tags: Any) -> None:
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) and tag for tag in tags):
        raise _failed(f"{name} must be a list of strings")
    if name == "tagPatternList" and any(tag.count("*") > WILDCARDS_MAX for tag in tags):
        raise _failed(f"a pattern in {name} can have at most {WILDCARDS_MAX} wildcards (*)")


def _check_order(rules: list[dict[str, Any]]) -> None:
    priorities = [rule["rulePriority"] for rule in rules]
    if len(set(priorities)) < len(priorities):
        raise _failed("each rule must have a different rulePriority")
    for rule in rules:
        if rule["selection"]["tagStatus"] == "any" and any(
            other["rulePriority"] > rule["rulePriority"] and other["selection"]["tagStatus"] != "any" for other in rules
        ):
            raise _failed("a rule with the tagStatus any must have the highest rulePriority")


def _check_members(found: Any, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    if not isinstance(found, dict):
        raise _failed(f'instance type ({type(found).__name__}) does not match any allowed primitive type (allowed: ["object"])')
    if missing := sorted(set(required) - found.keys()):
        raise _failed(f"object has missing required properties ({_json(missing)})")
    if unknown := sorted(found.keys() - {*required, *optional}):
        raise _failed(f"object instance has properties which are not allowed by the schema: ({_json(unknown)})")


def _check_one_of(value: Any, values: tuple[str, ...]) -> None:
    if value not in values:
        raise _failed(f"instance value ({_json(value)}) not found in enum (possible values: {_json(values)})")


def _check_positive(value: Any, name: str) -> None:
    if type(value) is not int or value < 1:
        raise _failed(f"{name}: numeric instance is lower than the required minimum (minimum: 1, found: {_json(value)})")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _failed(why: str) -> ApiError:
    return violated("LifecyclePolicyText", f"Lifecycle policy validation failure: {why}")
