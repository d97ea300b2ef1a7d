"""AWS's own managed policies, by ARN: `arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy`.

`tools/aws_managed_policies.py` generates the file that contains the policies. To find a policy, Corral reads the file line by line,
which takes some milliseconds. Only the policies that were found last are kept in memory.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from pathlib import Path

import orjson
from msgspec import Struct

AWS_POLICY = "arn:aws:iam::aws:policy/"
_FILE = Path(__file__).parent / "aws_managed_policies.jsonl.gz"


class AwsPolicy(Struct, frozen=True):
    version: str  # Corral has only this version of the policy
    created_at_s: float
    updated_at_s: float
    document: str


@lru_cache(maxsize=256)
def find_aws_policy(policy_arn: str) -> AwsPolicy | None:
    """The policy with this ARN; None if the file does not contain it.

    AWS often adds policies. So callers accept every ARN that looks like a policy of AWS.
    """
    import gzip  # imported here, because few servers read policies of AWS

    start = b'["' + policy_arn.removeprefix(AWS_POLICY).encode("utf-8", "replace") + b'",'
    with gzip.open(_FILE) as lines:
        for line in lines:
            if line.startswith(start):
                _, version, created, updated, document = orjson.loads(line)
                return AwsPolicy(version, _seconds(created), _seconds(updated), orjson.dumps(document).decode())
    return None


def _seconds(date: str) -> float:
    return datetime.fromisoformat(date).timestamp()
