"""The module `cfnresponse`: sends the response of a custom resource to CloudFormation.

Functions whose code is in the template itself can import it, as on AWS.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

SUCCESS = "SUCCESS"
FAILED = "FAILED"
TIMEOUT_S = 30


def send(
    event: dict[str, Any],
    context: Any,
    responseStatus: str,
    responseData: dict[str, Any] | None,
    physicalResourceId: str | None = None,
    noEcho: bool = False,
    reason: str | None = None,
) -> None:
    """Send the response. An error is printed and not raised, so that the function is not invoked again for it."""
    response = {
        "Status": responseStatus,
        "Reason": reason or f"See the details in CloudWatch Log Stream: {context.log_stream_name}",
        "PhysicalResourceId": physicalResourceId or context.log_stream_name,
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
        "NoEcho": noEcho,
        "Data": responseData or {},
    }
    body = json.dumps(response).encode()
    print("Response body:", body.decode() if not noEcho else "(hidden, because noEcho is true)")
    request = Request(event["ResponseURL"], body, {"Content-Type": ""}, method="PUT")
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            print("Status code:", answer.status)
    except Exception as error:
        print("send(..) failed:", error)
