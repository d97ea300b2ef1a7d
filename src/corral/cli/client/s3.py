"""The S3 operations of `corral run` at a Corral endpoint, without the import of botocore: PutObject and CreateBucket."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from corral.cli.client.http import ConnectionFailed, ConnectionPool, SigningKeys, signed_headers
from corral.cli.client.json_client import ApiRefusal, LeanMeta, RefusalClasses, refusal_class

_ERROR = re.compile(r"<Code>([^<]*)</Code>.*?(?:<Message>([^<]*)</Message>|\Z)", re.DOTALL)


class LeanS3Writer:
    """Stores objects, with the call syntax of botocore. Threads may share it."""

    exceptions = RefusalClasses()

    def __init__(self, pool: ConnectionPool, keys: SigningKeys, *, attempts: int) -> None:
        self.meta = LeanMeta(pool.url, keys.region)
        self._pool, self._keys, self._attempts = pool, keys, attempts

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> dict[str, Any]:
        from urllib.parse import quote

        return self._call("PutObject", f"/{quote(Bucket, safe='')}/{quote(Key, safe='/-_.~')}", Body)

    def create_bucket(self, *, Bucket: str, CreateBucketConfiguration: dict[str, str] | None = None) -> dict[str, Any]:
        from urllib.parse import quote

        region = (CreateBucketConfiguration or {}).get("LocationConstraint")
        body = f"<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
        return self._call("CreateBucket", f"/{quote(Bucket, safe='')}", body.encode() if region else b"")

    def _call(self, operation: str, path: str, body: bytes) -> dict[str, Any]:
        headers = {"x-amz-content-sha256": sha256(body).hexdigest(), "user-agent": "corral-cli"}
        for attempt in range(1, self._attempts + 1):
            signed = signed_headers(self._keys, "s3", self._pool.host_header, "PUT", path, headers, body)
            try:
                response = self._pool.send("PUT", path, signed, body)
            except ConnectionFailed:
                if attempt == self._attempts:
                    raise
                continue
            break
        metadata = {"HTTPStatusCode": response.status, "HTTPHeaders": response.headers, "RetryAttempts": attempt - 1}
        if response.status < 300:
            return {"ETag": response.headers.get("etag", ""), "ResponseMetadata": metadata}
        match = _ERROR.search(response.body.decode("utf-8", "replace"))
        code, message = (match[1], match[2] or "") if match else (str(response.status), "")
        refusal: type[ApiRefusal] = refusal_class(code)
        raise refusal({"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, operation)
