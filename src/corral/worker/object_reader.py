"""Reads S3 objects with less CPU time than `get_object` of boto3.

`get_object` spends most of its time on the parameters, the endpoint and the response of the call, not on the object. The endpoint
is the same for all objects of a bucket, so this module resolves it once, and then sends plain GET requests that botocore signs. If
a GET fails, it calls `get_object`, which follows redirects to other regions, retries, and raises the right error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ConnectionError, HTTPClientError
from botocore.httpsession import URLLib3Session
from botocore.utils import percent_encode

from corral.worker.queue_lookup import client, credentials

OK = 200
ALGORITHM = "AWS4-HMAC-SHA256"
ANY_KEY = "k"  # the key of an object that need not exist: only the URL is used


@dataclass(frozen=True, slots=True)
class BucketEndpoint:
    """The URL of the objects of a bucket, and the region for which requests are signed."""

    url: str  # the URL of an object without its key
    region: str


class ObjectReader:
    """Reads objects. Threads may share it."""

    def __init__(self, connections: int) -> None:
        self._s3: Any = client("s3", None, connections=connections, signature_version="s3v4")
        self._credentials: Any = credentials(None)
        self._http = URLLib3Session(max_pool_connections=connections)
        self._endpoints: dict[str, BucketEndpoint | None] = {}  # None: only `get_object` can read this bucket
        # False without credentials, and if only `get_object` can connect, for example because the network needs a proxy.
        self._is_direct = self._credentials is not None

    def read(self, bucket: str, key: str) -> bytes:
        """Return the content of an object. Raise the error of GetObject if it cannot be read."""
        cannot_connect = False
        if self._is_direct and (endpoint := self._endpoint(bucket)) is not None:
            request = AWSRequest("GET", endpoint.url + percent_encode(key, safe="/~"))
            S3SigV4Auth(self._credentials.get_frozen_credentials(), "s3", endpoint.region).add_auth(request)
            try:
                response = self._http.send(request.prepare())
                if response.status_code == OK:
                    return bytes(response.content)
                self._endpoints.pop(bucket, None)  # the bucket may be in another region, which `get_object` finds
            except ConnectionError:
                cannot_connect = True
            except HTTPClientError:
                pass
        content: bytes = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        if cannot_connect:
            self._is_direct = False
        return content

    def _endpoint(self, bucket: str) -> BucketEndpoint | None:
        if bucket not in self._endpoints:
            url = self._s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": ANY_KEY})
            self._endpoints[bucket] = endpoint_of(url)
        return self._endpoints[bucket]


def endpoint_of(presigned_url: str) -> BucketEndpoint | None:
    """Read the endpoint of a bucket from the presigned URL of ANY_KEY. Return None if its requests need another signature."""
    parts = urlsplit(presigned_url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    scope = query.get("X-Amz-Credential", "").split("/")
    is_plain = query.get("X-Amz-Algorithm") == ALGORITHM and scope[-2:] == ["s3", "aws4_request"]
    if not (is_plain and parts.path.endswith(f"/{ANY_KEY}")):
        return None
    return BucketEndpoint(f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix(ANY_KEY)}", scope[-3])
