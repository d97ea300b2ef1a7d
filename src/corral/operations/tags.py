"""Tags: the rules that all AWS services share. Each service declares its own names, errors and texts as `TagRules`.

A service stores tags as a dict of key to value. `read` converts the list in a request, `to_list` makes the list for a response.
The parameters `members` are further members of the error about too many tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct, field

from corral.core.errors import ApiError

Tags = dict[str, str]
TagRule = Literal["count", "key", "value", "reserved", "duplicate", "characters", "removed"]

TAGS_MAX = 50
KEY_MAX_CHARACTERS = 128
VALUE_MAX_CHARACTERS = 256
RESERVED = "aws:"
ALLOWED = re.compile(r"(?:[\w.:/=+@-]|[^\S\t-\r])*")  # letters, digits, spaces and _ . : / = + - @
TEXTS: Mapping[TagRule, str] = {
    "count": "A resource can have at most {max} tags.",
    "key": f"A tag key must have 1 to {KEY_MAX_CHARACTERS} characters: '{{key}}'.",
    "value": f"A tag value must have at most {VALUE_MAX_CHARACTERS} characters: the value of '{{key}}' has more.",
    "reserved": f"Tag keys that begin with {RESERVED} are reserved for AWS: '{{key}}'.",
    "duplicate": "Tag keys must be unique: '{key}' is given more than once.",
    "characters": "Tags can contain letters, digits, spaces and _ . : / = + - @ only: '{key}'.",
    "removed": f"Tags whose key begins with {RESERVED} cannot be removed: '{{key}}'.",
}


class TagRules(Struct, frozen=True):
    invalid: type[ApiError]  # the error for each rule that is not in `errors`
    errors: Mapping[TagRule, type[ApiError]] = field(default_factory=lambda: MappingProxyType({}))
    texts: Mapping[TagRule, str] = field(default_factory=lambda: MappingProxyType({}))  # AWS's texts with {key}, {value}, {max}
    key: str = "Key"  # `key` and `value` are the names of a tag's members
    value: str = "Value"
    max: int = TAGS_MAX
    any_character: bool = False
    keys_ignore_case: bool = False  # in IAM, `Team` and `team` are the same key
    reserved_values: bool = False  # in ECS, values must not begin with aws:
    # Further members of an error about one tag. S3 has {"TagKey": "key"}.
    error_members: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def read(self, tags: Iterable[Mapping[str, str]], **members: Any) -> Tags:
        """Check the tags of a request and return them. A tag without a value gets an empty value."""
        return self.of_pairs([(tag.get(self.key, ""), tag.get(self.value, "")) for tag in tags], **members)

    def of_pairs(self, pairs: Sequence[tuple[str, str]], **members: Any) -> Tags:
        if len(pairs) > self.max:
            raise self._refusal("count", **members)
        seen: set[str] = set()
        for key, value in pairs:
            folded = key.lower() if self.keys_ignore_case else key
            if folded in seen:
                raise self._refusal("duplicate", key, value)
            seen.add(folded)
        tags = dict(pairs)
        self.check(tags)
        return tags

    def check(self, tags: Mapping[str, str], **members: Any) -> None:
        """Raise the service's error if a tag of a request violates a rule."""
        if len(tags) > self.max:
            raise self._refusal("count", **members)
        for key, value in tags.items():
            if not 1 <= len(key) <= KEY_MAX_CHARACTERS:
                raise self._refusal("key", key, value)
            if len(value) > VALUE_MAX_CHARACTERS:
                raise self._refusal("value", key, value)
            if is_reserved(key) or (self.reserved_values and is_reserved(value)):
                raise self._refusal("reserved", key, value)
            if not (self.any_character or (ALLOWED.fullmatch(key) and ALLOWED.fullmatch(value))):
                raise self._refusal("characters", key, value)

    def merge(self, tags: Mapping[str, str], added: Mapping[str, str], **members: Any) -> Tags:
        """Add tags to a resource's tags. `added` was checked before. Reserved tags do not count towards the maximum."""
        if self.keys_ignore_case:
            given = {key.lower() for key in added}
            tags = {key: value for key, value in tags.items() if key.lower() not in given}
        merged = {**tags, **added}
        if sum(not is_reserved(key) for key in merged) > self.max:
            raise self._refusal("count", **members)
        return merged

    def remove(self, tags: Mapping[str, str], keys: Iterable[str]) -> Tags:
        removed = set(keys)
        for key in removed:
            if is_reserved(key):
                raise self._refusal("removed", key)
        if self.keys_ignore_case:
            removed = {key.lower() for key in removed}
            return {key: value for key, value in tags.items() if key.lower() not in removed}
        return {key: value for key, value in tags.items() if key not in removed}

    def to_list(self, tags: Mapping[str, str]) -> list[dict[str, str]]:
        """Convert tags to the list for a response."""
        return [{self.key: key, self.value: value} for key, value in tags.items()]

    def _refusal(self, rule: TagRule, key: str = "", value: str = "", **members: Any) -> ApiError:
        text = self.texts.get(rule) or TEXTS[rule]
        if rule != "count":
            given = {"key": key, "value": value}
            members = {name: given[part] for name, part in self.error_members.items()}
        return self.errors.get(rule, self.invalid)(text.format(key=key, value=value, max=self.max), **members)


def is_reserved(text: str) -> bool:
    return text[:4].lower() == RESERVED
