"""Requests to what is no operation of a service: the registry, form uploads, preflights, pages and endpoints of tasks."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from random import Random
from urllib.parse import quote

from fuzz.mutator import Mutator
from harness import REGION, Corral
from raw_aws import RawRequest, signature_of
from raw_registry import CONFIG, OCI_IMAGE, digest_of, image_of

FIELDS = {
    "Content-Type": "text/plain",
    "Content-Disposition": "attachment",
    "Cache-Control": "no-cache",
    "Expires": "Wed, 21 Oct 2026 07:28:00 GMT",
    "acl": "private",
    "x-amz-meta-a": "b",
    "x-amz-storage-class": "STANDARD",
    "x-amz-checksum-crc32": "AAAAAA==",
    "success_action_status": "201",
    "success_action_redirect": "http://127.0.0.1/next",
    "tagging": "<Tagging/>",
}
OTHER_METHODS = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")


class OtherRequests:
    def __init__(self, corral: Corral, rng: Random, mutator: Mutator, repository: str, password: str, bucket: str) -> None:
        self._keys = corral.keys
        self._rng = rng
        self._mutator = mutator
        self._repository = repository
        self._basic = "Basic " + b64encode(f"AWS:{password}".encode()).decode()
        self._bucket = bucket

    def some(self) -> RawRequest:
        return self._rng.choice((self._registry, self._form, self._page))()

    def _registry(self) -> RawRequest:
        rng, layer = self._rng, digest_of(b"a layer")
        manifest = image_of(b"{}", b"a layer")
        path = rng.choice(
            (
                "/v2/", "/v2/_catalog?n=1&last=a", f"/v2/{self._repository}/tags/list?n=1", f"/v2/{self._repository}/manifests/v1",
                f"/v2/{self._repository}/manifests/{layer}", f"/v2/{self._repository}/blobs/{layer}",
                f"/v2/{self._repository}/blobs/uploads/", f"/v2/{self._repository}/blobs/uploads/?digest={layer}",
                f"/v2/{self._repository}/blobs/uploads/?mount={layer}&from={self._repository}",
                f"/v2/{self._repository}/referrers/{layer}",
            )
        )  # fmt: skip
        request = RawRequest(
            "ecr", rng.choice(OTHER_METHODS[:6]), *path.partition("?")[::2], unsigned={"authorization": self._basic}
        )
        if request.method in ("PUT", "POST", "PATCH"):
            request.body = rng.choice((manifest, b"a layer", b"", b"{}"))
            request.headers["content-type"] = rng.choice((OCI_IMAGE, CONFIG))
            if rng.random() < 0.3:
                request.headers["content-range"] = self._mutator.text("0-6")[:3000]
        if rng.random() < 0.2:
            request.headers["range"] = self._mutator.text("bytes=0-3")[:3000]
        return self._mutator.request(request)

    def _form(self) -> RawRequest:
        """A form with a valid signature whose policy allows any value of the fields."""
        rng, at = self._rng, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        names = rng.sample(sorted(FIELDS), rng.randrange(4))
        fields = {"key": "form/${filename}", **{name: FIELDS[name] for name in names}}
        for name in rng.sample(sorted(fields), rng.randrange(1, len(fields) + 1)):
            fields[name] = self._mutator.text(fields[name])[:3000]
        conditions: list[object] = [{"bucket": self._bucket}, *(["starts-with", f"${name}", ""] for name in fields)]
        if rng.random() < 0.3:
            conditions.append(["content-length-range", rng.choice((0, "0", self._mutator.text("0"))), self._mutator.text("100")])
        signed = {
            "x-amz-algorithm": "AWS4-HMAC-SHA256",
            "x-amz-credential": f"{self._keys['access_key']}/{at[:8]}/{REGION}/s3/aws4_request",
            "x-amz-date": at,
        }
        conditions += [{name: value} for name, value in signed.items()]
        document = {"expiration": "2099-01-01T00:00:00Z", "conditions": conditions}
        policy = b64encode(json.dumps(document).encode("utf-8", "replace")).decode()
        signature = signature_of(self._keys["secret_key"], at[:8], "s3", policy)
        boundary, parts = "corral-boundary", []
        for name, value in {**fields, **signed, "policy": policy, "x-amz-signature": signature}.items():
            parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n')
        file = quote(self._mutator.text("f.txt"), errors="replace")[:300]
        parts.append(
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{file}"\r\n\r\nbody\r\n--{boundary}--\r\n'
        )
        request = RawRequest("", "POST", f"/{self._bucket}", body="".join(parts).encode("utf-8", "replace"))
        request.headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        request.is_signed = False
        return request

    def _page(self) -> RawRequest:
        rng, unknown = self._rng, "0" * 32
        path = rng.choice(
            (
                "/_corral/health", "/_corral/objects", "/_corral/nothing",
                f"/{self._bucket}/a", f"/v2/credentials/{unknown}",
                f"/v4/{unknown}-{unknown}/task",
                f"/v4/{unknown}-{unknown}/stats", f"/api/{unknown}-{unknown}/task-protection/v1/state", "/service/x/operation/y",
            )
        )  # fmt: skip
        request = RawRequest(rng.choice(("s3", "ecs", "corral", "batch")), rng.choice(OTHER_METHODS), path)
        request.headers = {"origin": "http://example.com", "access-control-request-method": "GET"}
        request.is_signed = rng.random() < 0.7
        return self._mutator.request(request)
