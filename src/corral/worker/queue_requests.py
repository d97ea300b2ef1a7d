"""Sends the frequent requests of a worker to SQS.

Requests to Corral are sent by `signed_http.py`, which needs a fifth of the CPU time of boto3. Requests to AWS are sent by boto3. If
a request to Corral fails, boto3 sends it again, because boto3 retries and raises the right error.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from .queue_lookup import client, credentials
from .signed_http import CannotConnect, SignedHttp, can_send


class QueueRequests:
    """The methods have the parameters and results of boto3. Threads may share an object of this class."""

    def __init__(self, region: str | None, *, connections: int, read_timeout_s: int) -> None:
        self._sqs: Any = client("sqs", region, connections=connections, read_timeout_s=read_timeout_s)
        self._credentials: Any = credentials(region)
        self._has_succeeded = False
        meta = self._sqs.meta
        is_direct = self._credentials is not None and can_send(meta.endpoint_url)
        # None: only boto3 can send the requests
        self._http = SignedHttp(meta.endpoint_url, meta.region_name, "sqs", read_timeout_s) if is_direct else None

    def receive_message(self, **params: Any) -> dict[str, Any]:
        answer = self._call("ReceiveMessage", self._sqs.receive_message, params)
        for message in answer.get("Messages", ()):
            for attribute in message.get("MessageAttributes", {}).values():
                if isinstance(attribute.get("BinaryValue"), str):
                    attribute["BinaryValue"] = b64decode(attribute["BinaryValue"])
        return answer

    def delete_message_batch(self, **params: Any) -> dict[str, Any]:
        return self._call("DeleteMessageBatch", self._sqs.delete_message_batch, params)

    def change_message_visibility_batch(self, **params: Any) -> dict[str, Any]:
        return self._call("ChangeMessageVisibilityBatch", self._sqs.change_message_visibility_batch, params)

    def _call(self, operation: str, with_boto3: Callable[..., dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        if self._http is not None:
            try:
                keys = self._credentials.get_frozen_credentials()
                body = self._http.call(f"AmazonSQS.{operation}", json.dumps(params).encode(), keys)
                answer = json.loads(body) if body is not None else None
                if isinstance(answer, dict):
                    self._has_succeeded = True
                    return answer
            except (CannotConnect, OSError, ValueError):
                pass
        answer = with_boto3(**params)
        if not self._has_succeeded:
            self._http = None  # boto3 can send requests to this endpoint, but SignedHttp cannot
        return answer
