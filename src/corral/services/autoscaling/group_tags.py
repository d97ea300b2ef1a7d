"""Tags of groups. A tag with PropagateAtLaunch is also given to the instances that the group launches later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.group import Group
from corral.operations.stored_resources import Params
from corral.operations.tags import TagRules, is_reserved
from corral.services.autoscaling.errors import LimitExceededFault, ValidationError
from corral.services.autoscaling.names import PAGES, changeable_group
from corral.store import Store

RULES = TagRules(ValidationError, errors={"count": LimitExceededFault}, any_character=True)
RESOURCE_TYPE = "auto-scaling-group"


def new_tags(group: str, given: list[dict[str, Any]], before: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Add the tags of a request (`given`) to the tags of a group (`before`). A request cannot set tags that begin with `aws:`."""
    keys = [tag["Key"] for tag in given]
    if len(set(keys)) != len(keys):
        raise ValidationError("Tag keys must be unique within a request.")
    merged = {tag["Key"]: tag for tag in before or []}
    for tag in given:
        if tag.get("ResourceType", RESOURCE_TYPE) != RESOURCE_TYPE:
            raise ValidationError(f"{tag['ResourceType']} is not a valid resource type: use {RESOURCE_TYPE}.")
        if tag.get("ResourceId", group) != group:
            raise ValidationError(f"The tag {tag['Key']} names the group {tag['ResourceId']}, not {group}.")
        merged[tag["Key"]] = {
            "Key": tag["Key"],
            "Value": tag.get("Value", ""),
            "PropagateAtLaunch": tag.get("PropagateAtLaunch", False),
        }
    RULES.check({tag["Key"]: tag["Value"] for tag in merged.values() if not is_reserved(tag["Key"]) or tag["Key"] in keys})
    return [merged[key] for key in sorted(merged)]


def tag_views(group: Group) -> list[dict[str, Any]]:
    return [{"ResourceId": group.name, "ResourceType": RESOURCE_TYPE, **tag} for tag in group.settings.get("Tags", ())]


def create_or_update_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    for name, tags in _by_group(params).items():
        group = changeable_group(tx, caller, name)
        settings = {**group.settings, "Tags": new_tags(name, tags, group.settings.get("Tags"))}
        tx.store.groups.put(group.but(settings=settings))
    return {}


def delete_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    for name, tags in _by_group(params).items():
        group = changeable_group(tx, caller, name)
        keys = {tag["Key"] for tag in tags}
        left = [tag for tag in group.settings.get("Tags", ()) if tag["Key"] not in keys]
        tx.store.groups.put(group.but(settings={**group.settings, "Tags": left}))
    return {}


def _by_group(params: Params) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for tag in params["Tags"]:
        if not tag.get("ResourceId"):
            raise ValidationError("ResourceId is required: it is the name of the Auto Scaling group.")
        found.setdefault(tag["ResourceId"], []).append(tag)
    return found


def describe_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    tests = [_tag_test(each.get("Name", ""), each.get("Values", [])) for each in params.get("Filters", ())]

    def candidates(after: str, limit: int) -> list[tuple[str, dict[str, Any]]]:
        tags = (tag for group in tx.store.groups.listed(caller.region) for tag in tag_views(group))
        found = [(f"{tag['ResourceId']}:{tag['Key']}", tag) for tag in tags if all(test(tag) for test in tests)]
        found = sorted((pair for pair in found if pair[0] > after), key=lambda pair: pair[0])
        return found if limit < 0 else found[:limit]

    found, more = PAGES.page(params, candidates)
    return {"Tags": found, **more}


def _tag_test(name: str, values: list[str]) -> Callable[[dict[str, Any]], bool]:
    members = {"auto-scaling-group": "ResourceId", "key": "Key", "value": "Value"}
    if name in members:
        return lambda tag: tag[members[name]] in values
    if name == "propagate-at-launch":
        wanted = {value.lower() == "true" for value in values}
        return lambda tag: tag["PropagateAtLaunch"] in wanted
    raise ValidationError(f"The filter {name} is not valid: use {', '.join(members)} or propagate-at-launch.")


def filter_groups(filters: list[dict[str, Any]]) -> Callable[[Group], bool]:
    """Return a function that applies the tag filters of DescribeAutoScalingGroups to a group."""
    tests: list[Callable[[dict[str, str]], bool]] = []
    for each in filters:
        tests.append(_group_test(each.get("Name", ""), set(each.get("Values", ()))))

    def chosen(group: Group) -> bool:
        tags = {tag["Key"]: tag["Value"] for tag in group.settings.get("Tags", ())}
        return all(test(tags) for test in tests)

    return chosen


def _group_test(name: str, values: set[str]) -> Callable[[dict[str, str]], bool]:
    if name == "tag-key":
        return lambda tags: not values.isdisjoint(tags)
    if name == "tag-value":
        return lambda tags: not values.isdisjoint(tags.values())
    if name.startswith("tag:"):
        return lambda tags: tags.get(name.removeprefix("tag:")) in values
    raise ValidationError(f"The filter {name} is not valid: use tag-key, tag-value or tag:KEY.")
