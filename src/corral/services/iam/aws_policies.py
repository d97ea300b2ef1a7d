"""AWS's own managed policies, by ARN: `arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy`.

`tools/aws_managed_policies.py` generates the file with them. It is read up to the line that is wanted, which takes some
milliseconds, so that no policy needs memory before a role has it.
"""

from __future__ import annotations

import gzip
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import orjson
from msgspec import Struct

AWS_POLICY = "arn:aws:iam::aws:policy/"
_FILE = Path(__file__).parent / "aws_managed_policies.jsonl.gz"


class AwsPolicy(Struct, frozen=True):
    version: str  # the only version that is known
    created_at_s: float
    updated_at_s: float
    document: str


@lru_cache(maxsize=256)
def find_aws_policy(policy_arn: str) -> AwsPolicy | None:
    """None: the file does not have it. Corral accepts every ARN of AWS, since AWS adds policies all the time."""
    start = b'["' + policy_arn.removeprefix(AWS_POLICY).encode("utf-8", "replace") + b'",'
    with gzip.open(_FILE) as lines:
        for line in lines:
            if line.startswith(start):
                _, version, created, updated, document = orjson.loads(line)
                return AwsPolicy(version, _seconds(created), _seconds(updated), orjson.dumps(document).decode())
    return None


def _seconds(date: str) -> float:
    return datetime.fromisoformat(date).timestamp()
