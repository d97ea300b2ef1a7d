"""The image registry: the API of the OCI distribution specification, which Docker uses to push and pull images.

The API of ECR works on the same images (`services/ecr/`). `dispatch.py` authenticates and dispatches requests. The server imports
`dispatch.py` at the first request to the registry.
"""

import re

from corral import aws

_TASK_CREDENTIALS = re.compile(r"/v2/credentials/[0-9a-f]{32}")  # this path belongs to `server/task_endpoints.py`


def is_for_registry(head: aws.Request) -> bool:
    """Whether a request is for the registry. Other requests with the path /v2/… are for S3 or for the credentials of a task.

    A bucket name has at least three characters, so no path-style S3 request begins with /v2/. A virtual-hosted-style S3 request can
    have an object key `v2/…`, but it is signed, and requests to the registry are not.
    """
    path = head.path
    if not path.startswith("/v2") or path[3:4] not in ("", "/") or _TASK_CREDENTIALS.fullmatch(path):
        return False
    return not head.headers.get("authorization", "").startswith("AWS") and "Signature=" not in head.query
