"""The evaluation of policies agrees with a naive evaluator, which is written from AWS's rules and shares no code with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.policies.evaluation import Names, PolicyLayers, PolicySet, decide
from corral.decide.policies.policy import AccessRequest, PolicyPrincipal, read_policy

USER, ROLE, SESSION, ACCOUNT = "arn:aws:iam::1:user/a", "arn:aws:iam::1:role/r", "arn:aws:sts::1:assumed-role/r/s", "1" * 12
ROOT = f"arn:aws:iam::{ACCOUNT}:root"
TEXTS = st.sampled_from(["a", "b", "ab", "A", "", "a*", "10.0.0.1", "5", "true", "false", "${k:x}"])
OPERATORS = ("StringEquals", "StringNotEquals", "StringLike", "StringNotLike", "StringEqualsIgnoreCase", "NumericLessThan",
             "NumericEquals", "Bool", "IpAddress", "NotIpAddress", "Null")  # fmt: skip

operators = st.builds(
    lambda name, prefix, suffix: name if name == "Null" else f"{prefix}{name}{suffix}",
    st.sampled_from(OPERATORS),
    st.sampled_from(["", "", "", "ForAllValues:", "ForAnyValue:"]),
    st.sampled_from(["", "", "IfExists"]),
)
conditions = st.dictionaries(
    operators, st.dictionaries(st.sampled_from(["k:x", "K:y"]), st.lists(TEXTS, min_size=1, max_size=2), max_size=2), max_size=2
)
patterns = st.lists(st.sampled_from(["*", "s:Get", "s:*", "S:get", "s:G?t", "t:Get", "s:Put"]), min_size=1, max_size=2)
resources = st.lists(
    st.sampled_from(["*", "arn:x:s:::b/a", "arn:x:s:::b/*", "arn:x:s:::b/?", "arn:x:s:::b/${k:x}"]), min_size=1, max_size=2
)


def statements(principals: Any = None) -> Any:
    def build(
        effect: str, actions: list[str], not_action: bool, found: list[str], not_resource: bool, condition: Any, principal: Any
    ) -> dict[str, Any]:
        statement = {"Effect": effect, "NotAction" if not_action else "Action": actions, "Condition": condition}
        statement["NotResource" if not_resource else "Resource"] = found
        return {**statement, "Principal": principal} if principal is not None else statement

    sometimes = st.sampled_from([False, False, False, True])
    effects = st.sampled_from(["Allow", "Allow", "Deny"])
    return st.builds(
        build, effects, patterns, sometimes, resources, sometimes, conditions, st.none() if principals is None else principals
    )


policies = st.lists(st.lists(statements(), min_size=1, max_size=2), max_size=2)
NAMED = ("*", USER, ROLE, SESSION, ACCOUNT)
principals = st.sampled_from(["*", *({"AWS": each} for each in NAMED), {"Service": "x.y"}])
resource_policies = st.one_of(st.none(), st.lists(statements(principals), min_size=1, max_size=2))
contexts = st.dictionaries(st.sampled_from(["k:x", "k:y"]), st.lists(TEXTS, min_size=1, max_size=2).map(tuple), max_size=2)


def wild(pattern: str, text: str) -> bool:
    """Whether a pattern with * and ? matches a text. An escaped character, \\c, matches only itself."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(wild(pattern[1:], text[at:]) for at in range(len(text) + 1))
    if pattern[0] == "\\":
        return bool(text) and text[0] == pattern[1] and wild(pattern[2:], text[1:])
    return bool(text) and pattern[0] in ("?", text[0]) and wild(pattern[1:], text[1:])


def filled(text: str, context: Mapping[str, Sequence[str]], *, escaped: bool) -> str:
    values = context.get("k:x", ())
    value = values[0] if len(values) == 1 else "${k:x}"
    return text.replace("${k:x}", "".join(f"\\{c}" for c in value) if escaped else value)


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def is_true(name: str, wanted: str, value: str) -> bool:
    if name in ("StringEquals", "StringNotEquals"):
        return wanted == value
    if name in ("StringLike", "StringNotLike"):
        return wild(wanted, value)
    if name in ("StringEqualsIgnoreCase", "Bool"):
        return wanted.lower() == value.lower()
    if name in ("IpAddress", "NotIpAddress"):
        try:
            return ip_address(value) in ip_network(wanted)
        except ValueError:
            return False
    one, other = number(value), number(wanted)
    if one is None or other is None:
        return False
    return one < other if name == "NumericLessThan" else one == other


def condition_holds(operator: str, keys: Mapping[str, list[str]], context: Mapping[str, Sequence[str]]) -> bool:
    name = operator.rpartition(":")[2].removesuffix("IfExists")
    for key, wanted in keys.items():
        values = context.get(key.lower())
        texts = [filled(each, context, escaped=name in ("StringLike", "StringNotLike")) for each in wanted]
        if name == "Null":
            holds = ("false" if values else "true") in [each.lower() for each in texts]
        elif not values:
            negated = "Not" in name and not operator.startswith("ForAnyValue")
            holds = operator.endswith("IfExists") or operator.startswith("ForAllValues") or negated
        else:
            each_holds = [any(is_true(name, text, value) for text in texts) != ("Not" in name) for value in values]
            if operator.startswith("ForAnyValue") or (":" not in operator and "Not" not in name):
                holds = any(each_holds)
            else:
                holds = all(each_holds)
        if not holds:
            return False
    return True


def matches(statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, Sequence[str]]) -> bool:
    listed = statement.get("Action") or statement["NotAction"]
    if any(wild(each.lower(), action.lower()) for each in listed) != ("Action" in statement):
        return False
    listed = statement.get("Resource") or statement["NotResource"]
    if any(wild(filled(each, context, escaped=True), resource) for each in listed) != ("Resource" in statement):
        return False
    return all(condition_holds(operator, keys, context) for operator, keys in statement["Condition"].items())


def effects(found: Any, *request: Any) -> set[str]:
    return {each["Effect"] for policy in found for each in policy if matches(each, *request)}


def naive(
    identity: Any, boundary: Any, session: Any, resource_policy: Any, names: Mapping[str, str], *request: Any
) -> tuple[bool, bool]:
    """Return whether the request is allowed, and whether a deny has decided."""
    layers = [effects(each, *request) for each in (identity, boundary, session) if each is not None]
    granted = set()
    for statement in resource_policy or ():
        principal = statement["Principal"]
        named = "*" if principal == "*" else principal.get("AWS")
        if named in names and matches(statement, *request):
            granted.add("Deny" if statement["Effect"] == "Deny" else names[named])
    if "Deny" in granted or any("Deny" in each for each in layers):
        return False, True
    if "caller" in granted:
        return True, False
    if "role" in granted:
        layers = layers[1:]
    return all("Allow" in each for each in layers), False


@settings(max_examples=100, deadline=None)
@given(
    policies, st.one_of(st.none(), policies), st.one_of(st.none(), policies), resource_policies, st.booleans(),
    st.sampled_from(["s:Get", "s:Put", "t:Get"]), st.sampled_from(["arn:x:s:::b/a", "arn:x:s:::b/ab", "arn:x:s:::b/a*", "*"]),
    contexts,
)  # fmt: skip
def test_the_evaluation_agrees_with_a_naive_one(
    identity: Any, boundary: Any, session: Any, resource: Any, is_user: bool, action: str, arn: str, context: Any
) -> None:
    names = Names((USER,)) if is_user else Names((SESSION,), (ROLE,))
    reach = {"*": "caller", ACCOUNT: "account", **dict.fromkeys(names.own, "caller"), **dict.fromkeys(names.role, "role")}
    allowed, denied = naive(identity, boundary, session, resource, reach, action, arn, context)
    layers = PolicyLayers(parsed(identity), *(parsed(each) if each is not None else None for each in (boundary, session)))
    principal = PolicyPrincipal("AWS", (*names.own, *names.role, ROOT, ACCOUNT))
    of_resource = parsed([resource]).policies[0] if resource else None
    verdict = decide(layers, AccessRequest(principal, action, arn, context), names, of_resource)
    assert ((verdict.value == ""), verdict.is_explicit) == (allowed, denied), verdict
    assert allowed or resource or not layers.always_allow(action)


def parsed(found: Any) -> PolicySet:
    return PolicySet([read_policy(json.dumps({"Version": "2012-10-17", "Statement": each})) for each in found])
