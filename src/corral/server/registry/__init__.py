"""The image registry: OCI's distribution API, version 2, as Docker speaks it. ECR shows the same images (`services/ecr/`).

`requests.py` authenticates and dispatches requests. It is imported with the first of them.
"""

import re

from corral import aws

_OF_A_TASK = re.compile(r"/v2/credentials/[0-9a-f]{32}")  # server/task_endpoints.py


def is_for_registry(head: aws.Request) -> bool:
    """No bucket has a name of two letters. But one in the host's name may have objects `v2/…`, and those requests are signed."""
    path = head.path
    if not path.startswith("/v2") or path[3:4] not in ("", "/") or _OF_A_TASK.fullmatch(path):
        return False
    return not head.headers.get("authorization", "").startswith("AWS") and "Signature=" not in head.query
