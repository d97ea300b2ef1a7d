"""Corral verifies what botocore signs, and refuses a request that was changed after signing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.aws import Identity, Request, Secret, verify
from corral.core.errors import ApiError
from corral.model.principal import role_session, root_user
from wire.generate import EXAMPLES
from wire.oracle import as_received

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzE+token/with=odd&characters=="
ROOT, WORKER = root_user("123456789012"), role_session("123456789012", "worker", "s", "root")
KEYS = {
    "AKPLAIN": Secret(SECRET, None, None, ROOT),
    "ASTOKEN": Secret(SECRET, TOKEN, None, WORKER),
    "ASEXPIRED": Secret(SECRET, TOKEN, 1.0, WORKER),
}
HOST = "http://127.0.0.1:4566"
JSON = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "AmazonEC2ContainerServiceV20141113.RunTask"}
FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}


def lookup(access_key_id: str, token: str | None) -> Secret | None:
    return KEYS.get(access_key_id)


def signed(
    method: str = "POST",
    url: str = "/",
    headers: dict[str, str] | None = None,
    body: bytes = b'{"taskDefinition":"x"}',
    *,
    service: str = "ecs",
    key: str = "AKPLAIN",
    token: str | None = None,
    signer: Any = SigV4Auth,
    **options: Any,
) -> Request:
    """Return a request signed by botocore now, as the server receives it."""
    request = AWSRequest(method, HOST + url, headers=JSON if headers is None else headers, data=body)
    if signer in (SigV4QueryAuth, S3SigV4QueryAuth):
        request.data = b""
    credentials = Credentials(key, SECRET, token)
    signer(credentials, service, "eu-west-1", **options).add_auth(request)
    received = as_received(request.prepare())
    # `prepare` may re-encode the target. A real client sends the target that was signed.
    parts = urlsplit(request.url)
    return replace(received, path=parts.path or "/", query=parts.query)


def check(request: Request, now_s: float | None = None, **options: Any) -> Identity:
    return verify(request, lookup, time.time() if now_s is None else now_s, **options)


def refusal(request: Request, now_s: float | None = None, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(request, now_s, **options)
    assert 400 <= caught.value.status < 500
    return caught.value


# --- what is valid ----------------------------------------------------------------------------------------------------


def test_a_signature_in_the_header() -> None:
    assert check(signed()) == Identity("AKPLAIN", ROOT, "eu-west-1", "ecs")


def test_temporary_credentials() -> None:
    assert check(signed(key="ASTOKEN", token=TOKEN)).principal == WORKER
    assert check(signed("GET", "/?a=1", {}, key="ASTOKEN", token=TOKEN, signer=SigV4QueryAuth)).principal == WORKER


@pytest.mark.parametrize("key, token", [("AKPLAIN", None), ("ASTOKEN", TOKEN)])
@pytest.mark.parametrize(
    "url",
    [
        "/",
        "/?Action=GetCallerIdentity&Version=2011-06-15",
        "/v1/tags/arn%3Aaws%3Abatch%3Aeu-west-1%3A0%3Ajob-queue%2Fq",
        "/a//b/../c/./d/",
        "/a%20b/%C3%A9?x=%20&x=a%2Fb&y=&z",
        "/a~b-c_d.e?b=2&a=1&a=0&A=3",
        "/x?tagKeys=a&tagKeys=b%26c&tagKeys=%2B",
    ],
)
def test_odd_paths_and_queries(url: str, key: str, token: str | None) -> None:
    assert check(signed("GET", url, {}, b"", service="batch", key=key, token=token)).access_key_id == key
    presigned = signed("GET", url, {}, b"", service="batch", key=key, token=token, signer=SigV4QueryAuth)
    assert check(presigned).access_key_id == key


@pytest.mark.parametrize("url", ["/bucket/a//b/../c", "/b/%C3%A9%20x+y%2Bz", "/b/k?versionId=1&tagging=", "/b/(1)"])
def test_s3_signs_the_path_as_it_is(url: str) -> None:
    assert check(signed("PUT", url, {}, b"data", service="s3", signer=S3SigV4Auth)).service == "s3"
    assert check(signed("GET", url, {}, b"", service="s3", signer=S3SigV4QueryAuth)).service == "s3"


@pytest.mark.parametrize("value", ["plain", "  two  spaces  ", "a,b", '"quoted  text"', "tab\tinside", ""])
def test_odd_header_values(value: str) -> None:
    assert check(signed(headers={**JSON, "X-Amz-Meta-Odd": value, "My-Header": value})).access_key_id == "AKPLAIN"


def test_a_date_header_instead_of_x_amz_date() -> None:
    request = signed(headers={**JSON, "Date": "now"})
    assert "x-amz-date" not in request.headers
    assert check(request).access_key_id == "AKPLAIN"


def test_a_client_that_encodes_less_than_aws_would() -> None:
    """AWS decodes and re-encodes before it compares. Such a client has signed the encoded form."""
    canonical = signed("GET", "/x?a=b%2Fc%20d", {}, b"", service="batch")
    assert check(replace(canonical, query="a=b/c+d")).service == "batch"


def test_a_streamed_body_is_given_by_its_hash() -> None:
    request = signed(body=b"large")
    digest = hashlib.sha256(b"large").hexdigest()
    assert check(replace(request, body=b""), body_sha256=digest).access_key_id == "AKPLAIN"
    assert refusal(replace(request, body=b""), body_sha256="0" * 64).code == "InvalidSignatureException"


def test_the_stated_hash_is_compared_with_the_body() -> None:
    stated = {**JSON, "X-Amz-Content-SHA256": hashlib.sha256(b"other").hexdigest()}
    assert refusal(signed(headers=stated)).code == "InvalidSignatureException"
    stated = {**JSON, "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
    assert refusal(signed(headers=stated)).code == "InvalidSignatureException"  # only S3 accepts this
    unsigned = {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
    assert check(signed("PUT", "/b/k", unsigned, b"data", service="s3")).service == "s3"
    mismatch = {"X-Amz-Content-SHA256": hashlib.sha256(b"other").hexdigest()}
    assert refusal(signed("PUT", "/b/k", mismatch, b"data", service="s3")).code == "XAmzContentSHA256Mismatch"


@settings(max_examples=20 * EXAMPLES, deadline=None)
@given(
    path=st.text(st.sampled_from("ab/.~%20-_é&=+ ()*'!:@$,;"), max_size=12),
    pairs=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=4),
    body=st.binary(max_size=40),
    presign=st.booleans(),
    with_token=st.booleans(),
)
def test_whatever_botocore_signs_is_accepted(
    path: str, pairs: list[tuple[str, str]], body: bytes, presign: bool, with_token: bool
) -> None:
    url = "/" + quote(path.lstrip("/"))
    if pairs:
        url += "?" + urlencode(pairs, quote_via=quote, errors="replace")
    key, token = ("ASTOKEN", TOKEN) if with_token else ("AKPLAIN", None)
    signer = SigV4QueryAuth if presign else SigV4Auth
    request = signed("PUT", url, {}, body, service="batch", key=key, token=token, signer=signer)
    assert check(request).access_key_id == key


# --- what was changed -------------------------------------------------------------------------------------------------


def header(name: str, change: Callable[[str], str]) -> Callable[[Request], Request]:
    return lambda request: replace(request, headers={**request.headers, name: change(request.headers[name])})


def without(name: str) -> Callable[[Request], Request]:
    return lambda request: replace(request, headers={k: v for k, v in request.headers.items() if k != name})


def in_scope(old: str, new: str) -> Callable[[Request], Request]:
    return header("authorization", lambda text: text.replace(old, new))


TAMPERED: dict[str, Callable[[Request], Request]] = {
    "method": lambda request: replace(request, method="PUT"),
    "path": lambda request: replace(request, path="/other"),
    "query": lambda request: replace(request, query="a=1"),
    "body": lambda request: replace(request, body=request.body + b" "),
    "no body": lambda request: replace(request, body=b""),
    "target": header("x-amz-target", lambda _: "AmazonEC2ContainerServiceV20141113.DeleteCluster"),
    "host": header("host", lambda _: "example.com"),
    "signed header": header("content-type", lambda text: text + "x"),
    "signed header gone": without("content-type"),
    "unsigned header that counts": lambda request: replace(request, headers={**request.headers, "x-amz-acl": "public"}),
    "date": header("x-amz-date", lambda text: text[:-2] + ("0Z" if text[-2] != "0" else "1Z")),
    "region": in_scope("/eu-west-1/", "/us-east-1/"),
    "service": in_scope("/ecs/", "/iam/"),
    "signature": header("authorization", lambda text: text[:-1] + ("0" if text[-1] != "0" else "1")),
    "signature in capitals": header("authorization", lambda text: text[:-64] + text[-64:].upper() + "A"),
    "short signature": header("authorization", lambda text: text[:-1]),
    "empty signature": header("authorization", lambda text: text[:-64]),
    "odd signature": header("authorization", lambda text: text[:-64] + "é" * 64),
    "fewer signed headers": in_scope(";x-amz-target", ""),
    "host unsigned": in_scope("host;", ""),
    "token added": lambda request: replace(request, headers={**request.headers, "x-amz-security-token": "x"}),
    "other key": in_scope("AKPLAIN", "ASTOKEN"),
    "unknown key": in_scope("AKPLAIN", "AKNOBODY"),
    "other algorithm": in_scope("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA512"),
    "no date": without("x-amz-date"),
    "no authorization": without("authorization"),
    "garbage": header("authorization", lambda _: "Basic dXNlcjpwYXNz"),
    "empty": header("authorization", lambda _: ""),
    "half a scope": in_scope("/aws4_request", ""),
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_every_change_is_refused(change: Callable[[Request], Request]) -> None:
    request = signed()
    check(request)
    assert refusal(change(request)).code.endswith("Exception")


def in_query(old: str, new: str) -> Callable[[Request], Request]:
    def change(request: Request) -> Request:
        assert old in request.query
        return replace(request, query=request.query.replace(old, new))

    return change


TAMPERED_URLS: dict[str, Callable[[Request], Request]] = {
    "method": lambda request: replace(request, method="PUT"),
    "path": lambda request: replace(request, path="/other"),
    "parameter": in_query("Action=GetCallerIdentity", "Action=AssumeRole"),
    "parameter added": lambda request: replace(request, query=request.query + "&x=1"),
    "body": lambda request: replace(request, body=b"x"),
    "expiry": in_query("X-Amz-Expires=3600", "X-Amz-Expires=3601"),
    "expiry too long": in_query("X-Amz-Expires=3600", "X-Amz-Expires=604801"),
    "expiry of nothing": in_query("X-Amz-Expires=3600", "X-Amz-Expires=0"),
    "expiry odd": in_query("X-Amz-Expires=3600", "X-Amz-Expires=%C2%B2"),
    "expiry gone": in_query("X-Amz-Expires=3600&", ""),
    "region": in_query("eu-west-1", "us-east-1"),
    "service": in_query("%2Fsts%2F", "%2Fiam%2F"),
    "token": in_query("FwoGZX", "FwoGZY"),
    "token gone": in_query("X-Amz-Security-Token", "x"),
    "signed headers": in_query("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=host%3Bx"),
    "host unsigned": in_query("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=accept"),
    "algorithm": in_query("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
    "header that counts": lambda request: replace(request, headers={**request.headers, "x-amz-acl": "x"}),
}


@pytest.mark.parametrize("change", TAMPERED_URLS.values(), ids=TAMPERED_URLS)
def test_every_change_of_a_presigned_url_is_refused(change: Callable[[Request], Request]) -> None:
    url = "/?Action=GetCallerIdentity&Version=2011-06-15"
    request = signed("GET", url, {}, service="sts", key="ASTOKEN", token=TOKEN, signer=SigV4QueryAuth)
    check(request)
    refusal(change(request))


# --- time -------------------------------------------------------------------------------------------------------------


def test_fifteen_minutes_either_way() -> None:
    request, now_s = signed(), time.time()
    check(request, now_s + 14 * 60)
    check(request, now_s - 14 * 60)
    late, early = refusal(request, now_s + 16 * 60), refusal(request, now_s - 16 * 60)
    assert (late.code, early.code) == ("InvalidSignatureException", "InvalidSignatureException")
    assert late.message.startswith(f"Signature expired: {request.headers['x-amz-date']} is now earlier than")
    assert late.message.endswith("- 15 min.)")
    assert early.message.startswith(f"Signature not yet current: {request.headers['x-amz-date']} is still later than")


def test_a_presigned_url_lasts_as_long_as_it_says() -> None:
    request = signed("GET", "/?Action=GetCallerIdentity", {}, service="sts", signer=SigV4QueryAuth, expires=7200)
    now_s = time.time()
    check(request, now_s + 7190)
    refusal(request, now_s + 7210)
    refusal(request, now_s - 16 * 60)
    week = signed("GET", "/", {}, service="sts", signer=SigV4QueryAuth, expires=7 * 24 * 3600)
    check(week, now_s + 7 * 24 * 3600 - 10)
    refusal(signed("GET", "/", {}, service="sts", signer=SigV4QueryAuth, expires=7 * 24 * 3600 + 1))


@pytest.mark.parametrize("date", ["20260231T000000Z", "2026-01-01T00:00:00Z", "x", "20260101T000000Z\n", "２０２６0101T000000Z"])
def test_an_invalid_date(date: str) -> None:
    request = signed()
    refusal(replace(request, headers={**request.headers, "x-amz-date": date}))


def test_the_scope_must_have_the_date_of_the_request() -> None:
    request = signed()
    today = request.headers["x-amz-date"][:8]
    changed = header("authorization", lambda text: text.replace(today, "20200101"))(request)
    assert "Date in Credential scope" in refusal(changed).message


# --- error codes and texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "service, headers, url, missing, unknown, mismatch, expired, skewed",
    [
        (
            "ecs", JSON, "/",
            ("MissingAuthenticationTokenException", 400), ("UnrecognizedClientException", 400),
            ("InvalidSignatureException", 400), ("ExpiredTokenException", 400), ("InvalidSignatureException", 400),
        ),
        (
            "batch", {"Content-Type": "application/json"}, "/v1/submitjob",
            ("MissingAuthenticationTokenException", 403), ("UnrecognizedClientException", 403),
            ("InvalidSignatureException", 403), ("ExpiredTokenException", 403), ("InvalidSignatureException", 403),
        ),
        (
            "sts", FORM, "/",
            ("MissingAuthenticationToken", 403), ("InvalidClientTokenId", 403),
            ("SignatureDoesNotMatch", 403), ("ExpiredToken", 403), ("SignatureDoesNotMatch", 403),
        ),
        (
            "s3", {}, "/b/k",
            ("MissingAuthenticationTokenException", 400), ("InvalidAccessKeyId", 403),
            ("SignatureDoesNotMatch", 403), ("ExpiredToken", 400), ("RequestTimeTooSkewed", 403),
        ),
    ],
)  # fmt: skip
def test_the_codes_of_each_protocol(
    service: str,
    headers: dict[str, str],
    url: str,
    missing: tuple[str, int],
    unknown: tuple[str, int],
    mismatch: tuple[str, int],
    expired: tuple[str, int],
    skewed: tuple[str, int],
) -> None:
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    request = signed("POST", url, headers, service=service, signer=signer)
    old = signed("POST", url, headers, service=service, signer=signer, key="ASEXPIRED", token=TOKEN)
    errors = [
        refusal(without("authorization")(request)),
        refusal(in_scope("AKPLAIN", "AKNOBODY")(request)),
        refusal(replace(request, method="PUT")),
        refusal(old),
        refusal(request, time.time() + 3600),
    ]
    assert [(error.code, error.status) for error in errors] == [missing, unknown, mismatch, expired, skewed]


def test_a_token_must_be_present_and_correct() -> None:
    for token in (None, "other", TOKEN + "x"):
        error = refusal(signed(key="ASTOKEN", token=token))
        assert (error.code, error.message) == (
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
        )
    assert refusal(signed(key="AKPLAIN", token="stale")).code == "UnrecognizedClientException"


def test_the_scope_must_name_the_service_of_the_call() -> None:
    check(signed(), signing_name="ecs")
    assert "correct service: 'batch'" in refusal(signed(), signing_name="batch").message


def test_the_repr_of_a_secret_does_not_contain_it() -> None:
    assert SECRET not in repr(KEYS["AKPLAIN"])
    assert TOKEN not in repr(KEYS["ASTOKEN"])
