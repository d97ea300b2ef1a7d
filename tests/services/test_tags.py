"""Tags: one set of rules for every service."""

from __future__ import annotations

import pytest

from corral.core.errors import ApiError, api_error
from corral.operations.tags import TAGS_MAX, TagRules

Invalid = api_error("Invalid")
TooMany = api_error("TooMany")

PLAIN = TagRules(Invalid, errors={"count": TooMany})
IAM = TagRules(Invalid, keys_ignore_case=True)
ECS = TagRules(Invalid, key="key", value="value", reserved_values=True, texts={"reserved": "{key} is reserved"})
EC2 = TagRules(Invalid, any_character=True)
S3 = TagRules(Invalid, max=10, error_members={"TagKey": "key", "TagValue": "value"})


def tag(key: str, value: str = "") -> dict[str, str]:
    return {"Key": key, "Value": value}


def refused(rules: TagRules, *tags: dict[str, str]) -> ApiError:
    with pytest.raises(ApiError) as error:
        rules.read(tags)
    return error.value


def test_tags_of_a_request():
    assert PLAIN.read([tag("a", "1"), tag("ü b", "2")]) == {"a": "1", "ü b": "2"}
    assert ECS.read([{"key": "a"}]) == {"a": ""}, "a tag without a value has an empty one"
    assert ECS.to_list({"a": "1"}) == [{"key": "a", "value": "1"}]
    assert PLAIN.read([tag("k" * 128, "v" * 256)])


@pytest.mark.parametrize(
    "given",
    [tag(""), tag("k" * 129), tag("k", "v" * 257), tag("aws:x"), tag("AWS:x"), tag("a{b}"), tag("a", "new\nline")],
    ids=lambda given: given["Key"][:8],
)
def test_a_tag_that_breaks_a_rule(given: dict[str, str]):
    error = refused(PLAIN, given)
    assert error.code == "Invalid"
    assert given["Key"] in error.message


def test_differences_between_services():
    assert "more than once" in refused(PLAIN, tag("a"), tag("a")).message
    assert PLAIN.read([tag("a"), tag("A")]) == {"a": "", "A": ""}
    assert "more than once" in refused(IAM, tag("a"), tag("A")).message
    assert refused(ECS, {"key": "a", "value": "aws:x"}).message == "a is reserved"
    assert EC2.read([tag("a<b>")]) == {"a<b>": ""}
    assert refused(S3, tag("", "x")).members == {"TagKey": "", "TagValue": "x"}


def test_how_many_tags_a_resource_has():
    full = {f"k{at}": "" for at in range(TAGS_MAX)}
    assert refused(PLAIN, *(tag(key) for key in (*full, "more"))).code == "TooMany"
    assert PLAIN.merge(full, {"k0": "new"})["k0"] == "new"
    assert len(PLAIN.merge({**full, "aws:managed": "x"}, {"k0": ""})) == TAGS_MAX + 1, "AWS's own tags do not count"
    with pytest.raises(TooMany) as error:
        PLAIN.merge(full, {"more": ""}, resourceName="arn")
    assert error.value.members == {"resourceName": "arn"}
    assert error.value.message == "A resource can have at most 50 tags."


def test_removing_tags():
    assert PLAIN.remove({"a": "1", "b": "2"}, ["a", "absent"]) == {"b": "2"}
    assert IAM.remove({"Team": "x"}, ["team"]) == {}
    assert IAM.merge({"Team": "x"}, {"team": "y"}) == {"team": "y"}
    with pytest.raises(Invalid):
        ECS.remove({"aws:ecs:clusterName": "c"}, ["aws:ecs:clusterName"])
