"""Reads S3 objects with less CPU time than `get_object` of boto3.

`get_object` spends most of its time on the parameters, the endpoint and the response of the call, not on the object. The endpoint
is the same for all objects of a bucket, so this module resolves it once, and then sends plain signed GET requests: with
`signed_http.py` to Corral, and with botocore to AWS, which needs TLS. If a GET fails, this module calls `get_object`, which follows
redirects to other regions, retries, and raises the right error. Corral also returns several small objects in one response. This
costs the server a third of what one response for each object costs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ConnectionError, HTTPClientError
from botocore.httpsession import URLLib3Session
from botocore.utils import percent_encode

from .queue_lookup import certificates, client, credentials
from .signed_http import CannotConnect, SignedHttp, can_send

OK = 200
# Corral's page that returns several objects, and its limits
OBJECTS_PATH = "/_corral/objects"
OBJECTS_MAX = 100
OBJECTS_BODY_MAX_BYTES = 64 * 1024
ALGORITHM = "AWS4-HMAC-SHA256"
ANY_KEY = "k"  # the key of an object that need not exist: only the URL is used


@dataclass(frozen=True, slots=True)
class BucketEndpoint:
    """The URL of the objects of a bucket, and the region for which requests are signed."""

    url: str  # the URL of an object without its key
    region: str

    @property
    def path(self) -> str:
        return self.url[self.url.index("/", self.url.index("://") + 3) :]


class ObjectReader:
    """Reads objects. Threads may share it."""

    def __init__(self, connections: int) -> None:
        self._s3: Any = client("s3", None, connections=connections, signature_version="s3v4")
        self._credentials: Any = credentials(None)
        self._http = URLLib3Session(verify=certificates(), max_pool_connections=connections)
        self._endpoints: dict[str, BucketEndpoint | None] = {}  # None: only `get_object` can read this bucket
        self._without_tls: dict[BucketEndpoint, SignedHttp] = {}
        # False without credentials, and if only `get_object` can connect, for example because the network needs a proxy.
        self._is_direct = self._credentials is not None
        self._has_connected = False  # True: a failed connection is an outage, and not a reason to use only `get_object`
        meta = self._s3.meta
        can_read_several = self._is_direct and can_send(meta.endpoint_url)
        # True: the endpoint is Corral, even if it refuses a request, for example because the credentials have expired.
        self._is_corral = False
        # None: `read_several` cannot read objects, because the endpoint is not Corral or cannot be reached directly.
        self._corral = SignedHttp(meta.endpoint_url, meta.region_name, "corral") if can_read_several else None

    @property
    def can_read_several(self) -> bool:
        return self._corral is not None

    def read_several(self, names: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """Return the contents of small objects. `names` are pairs of bucket and key.

        An object that this method cannot read is None in the result. Call `read` for it.
        """
        http, wanted = self._corral, json.dumps({"objects": names}).encode()
        if http is not None and len(names) <= OBJECTS_MAX and len(wanted) <= OBJECTS_BODY_MAX_BYTES:
            try:
                body = http.post(OBJECTS_PATH, wanted, self._credentials.get_frozen_credentials())
                found = contents_of(body, len(names)) if body is not None else None
                if found is not None:
                    self._is_corral = True
                    return found
                if not self._is_corral:
                    self._corral = None
            except (CannotConnect, OSError):
                pass
        return [None] * len(names)

    def read(self, bucket: str, key: str) -> bytes:
        """Return the content of an object. Raise the error of GetObject if it cannot be read."""
        cannot_connect = False
        if self._is_direct and (endpoint := self._endpoint(bucket)) is not None:
            try:
                found = self._get(endpoint, percent_encode(key, safe="/~"))
                self._has_connected = True
                if found is not None:
                    return found
                self._endpoints.pop(bucket, None)  # the bucket may be in another region, which `get_object` finds
            except (ConnectionError, CannotConnect):
                cannot_connect = True
            except (HTTPClientError, OSError):
                pass
        content: bytes = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        if cannot_connect and not self._has_connected:
            self._is_direct = False
        return content

    def _get(self, endpoint: BucketEndpoint, key: str) -> bytes | None:
        """Return the body of the response, or None if its status is not 200. `key` is percent-encoded."""
        credentials = self._credentials.get_frozen_credentials()
        if endpoint.url.startswith("http://"):
            http = self._without_tls.get(endpoint)
            if http is None:
                http = self._without_tls.setdefault(endpoint, SignedHttp(endpoint.url, endpoint.region, "s3"))
            return http.get(endpoint.path + key, credentials)
        request = AWSRequest("GET", endpoint.url + key)
        S3SigV4Auth(credentials, "s3", endpoint.region).add_auth(request)
        response = self._http.send(request.prepare())
        return bytes(response.content) if response.status_code == OK else None

    def _endpoint(self, bucket: str) -> BucketEndpoint | None:
        if bucket not in self._endpoints:
            url = self._s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": ANY_KEY})
            self._endpoints[bucket] = endpoint_of(url)
        return self._endpoints[bucket]


def contents_of(body: bytes, count: int) -> list[bytes | None] | None:
    """Read the response of the page OBJECTS_PATH. Return None if it is not the response for `count` objects."""
    end = body.find(b"\n")
    try:
        sizes = json.loads(body[:end])
    except ValueError:
        return None
    if not isinstance(sizes, list) or len(sizes) != count:
        return None
    found: list[bytes | None] = []
    at = end + 1
    for size in sizes:
        if not (size is None or (isinstance(size, int) and size >= 0)):
            return None
        found.append(None if size is None else body[at : at + size])
        at += size or 0
    return found if at == len(body) else None


def endpoint_of(presigned_url: str) -> BucketEndpoint | None:
    """Read the endpoint of a bucket from the presigned URL of ANY_KEY. Return None if the bucket needs another signature."""
    parts = urlsplit(presigned_url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    scope = query.get("X-Amz-Credential", "").split("/")
    is_plain = query.get("X-Amz-Algorithm") == ALGORITHM and scope[-2:] == ["s3", "aws4_request"]
    if not (is_plain and parts.path.endswith(f"/{ANY_KEY}")):
        return None
    return BucketEndpoint(f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix(ANY_KEY)}", scope[-3])
