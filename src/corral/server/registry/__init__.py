"""The image registry: OCI's distribution API, version 2, which Docker uses. ECR's API lists the same images (`services/ecr/`).

`dispatch.py` authenticates and dispatches requests. It is imported with the first of them.
"""

import re

from corral import aws

_TASK_CREDENTIALS = re.compile(r"/v2/credentials/[0-9a-f]{32}")  # server/task_endpoints.py


def is_for_registry(head: aws.Request) -> bool:
    """Whether a request is for the registry and not for S3.

    A bucket name has at least three characters, so no path-style request begins with /v2/. A request with the bucket in the host
    name can have an object key `v2/…`, but it is signed.
    """
    path = head.path
    if not path.startswith("/v2") or path[3:4] not in ("", "/") or _TASK_CREDENTIALS.fullmatch(path):
        return False
    return not head.headers.get("authorization", "").startswith("AWS") and "Signature=" not in head.query
