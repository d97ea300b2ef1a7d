"""The filter criteria of Lambda's event source mappings: decide whether a message invokes the function.

A criterion is a pattern with the syntax of SNS filter policies on bodies. It matches the record of a message in the event of the
function. The member `body` of the record is an object if the body of the message is a JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from corral.decide.policies.filter_policy import BODY, FilterPolicy, accepts, body_properties, read_filter_policy
from corral.model.json_documents import read_json


@lru_cache(maxsize=256)
def read_pattern(text: str) -> tuple[FilterPolicy, bool]:
    """Parse a pattern. Return it, and whether it needs a JSON object as the body. Raise FilterPolicyError if it is not valid."""
    policy = read_filter_policy(text, BODY)
    return policy, isinstance(read_json(text).get("body"), dict)


def invokes(patterns: Iterable[str], record: Mapping[str, Any]) -> bool:
    """Whether one of the patterns matches a record."""
    document = body_properties(record["body"])
    properties = record if document is None else {**record, "body": document}
    return any(
        accepts(policy, properties) for policy, needs_json in map(read_pattern, patterns) if document is not None or not needs_json
    )
