"""Hostile bytes: any request is either parsed or refused with a 4xx ApiError, within bounded time and memory."""

from __future__ import annotations

import gzip
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.aws import (
    BODY_MAX_BYTES,
    PARAMETERS_MAX,
    Request,
    begin_verification,
    recognise,
    recognise_head,
    serialize_refusal,
    sigv4,
    verify,
    verify_head,
)
from corral.aws.form_encoding import decoded_in_pieces, percent_decoded
from corral.core.errors import ApiError
from wire.generate import EXAMPLES, Generator
from wire.oracle import as_datetimes, every_operation, lookup, model_of, sent_by_botocore

ECS = {"x-amz-target": "AmazonEC2ContainerServiceV20141113.RunTask", "content-type": "application/x-amz-json-1.1"}
SSM = {"x-amz-target": "AmazonSSM.GetInventory"}  # its aggregators contain themselves
FORM = {"content-type": "application/x-www-form-urlencoded"}


def outcome(request: Request) -> dict[str, Any] | ApiError:
    """Return the parameters or the refusal of a request; anything else is a bug."""
    call = None
    try:
        call = recognise(request)
        return call.params()
    except ApiError as error:
        assert 400 <= error.status < 500
        if call is None:
            response = serialize_refusal(request, error, "request-1")
        else:
            response = call.serialize_error(error, "request-1")
        assert 400 <= response.status < 500
        return error


def refused(request: Request) -> ApiError:
    result = outcome(request)
    assert isinstance(result, ApiError), result
    return result


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"taskDefinition": "x"',
        b'{"taskDefinition": "x',
        b'{"taskDefinition": "x"}}',
        b'{"taskDefinition": "x"} {}',
        b'{"taskDefinition": "\xff"}',
        b'{"taskDefinition": "\xed\xa0\x80"}',
        b'{"taskDefinition": "\\ud800"}',
        b'{"taskDefinition": "\\udc00\\ud800"}',
        b'{"taskDefinition": NaN}',
        b'{"taskDefinition": "x", "count": NaN}',
        b'{"taskDefinition": "x", "count": Infinity}',
        b'{"taskDefinition": "x", "count": 1e999}',
        b'{"taskDefinition": "x", "count": 1' + b"0" * 5000 + b"}",
        b'{"taskDefinition": "x", "count": 0x10}',
        b"{'taskDefinition': 'x'}",
        b"\xef\xbb\xbf{}",
        b"\x00",
        b"[" * 100,
        b"[" * 1_000_000,
        b'{"taskDefinition":' * 100_000,
        b"[" * 100 + b"]" * 100,
        b'{"taskDefinition": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"overrides": ' + b'{"containerOverrides": [' * 120 + b"]}" * 120 + b"}",
        b"null",
        b"1",
        b'""',
        b"[]",
        b"{}",
        b"taskDefinition=x",
        b"<xml/>",
    ],
)
def test_bad_json(body: bytes) -> None:
    refused(Request("POST", "/", "", ECS, body))


def test_odd_json_that_is_valid() -> None:
    body = b'{"taskDefinition": "x", "taskDefinition": "y", "later": ' + b"[" * 500 + b"]" * 500 + b"}"
    assert outcome(Request("POST", "/", "", ECS, body)) == {"taskDefinition": "y"}  # the last value is used


@pytest.mark.parametrize("depth", [70, 200, 330, 1000, 100_000])
def test_a_shape_inside_itself_is_bounded(depth: int) -> None:
    body = b'{"Aggregators": ' + b'[{"Expression": "x", "Aggregators": ' * depth + b"[]" + b"}]" * depth + b"}"
    assert refused(Request("POST", "/", "", SSM, body)).code == "SerializationException"


@pytest.mark.parametrize("depth", [64, 100, 2000, 100_000])
def test_a_form_inside_itself_is_bounded(depth: int) -> None:
    """No query service that Corral serves has a recursive input, so the name itself is nested deeply."""
    name = b"AlarmNames" + b".member.1" * depth
    outcome(Request("POST", "/", "", FORM, b"Action=DeleteAlarms&Version=2010-08-01&" + name + b"=x"))


@pytest.mark.parametrize(
    "body",
    [
        b"AlarmNames.member.999999999=a",
        b"AlarmNames.member.999999999=a&AlarmNames.member.1=b",
        b"&".join(b"AlarmNames.member.%d=a" % (n * 1_000_003) for n in range(100)),
    ],
)
def test_large_indices_cost_nothing(body: bytes) -> None:
    request = Request("POST", "/", "", FORM, b"Action=DeleteAlarms&Version=2010-08-01&" + body)
    outcome(request)  # compiles the codecs
    tracemalloc.start()
    result = outcome(request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(result, dict)
    assert peak < 1_000_000


def test_a_million_parameters_are_refused_at_once() -> None:
    body = b"Action=DeleteAlarms&Version=2010-08-01&" + b"&".join(b"a%d=1" % n for n in range(1_000_000))
    tracemalloc.start()
    error = refused(Request("POST", "/", "", FORM, body))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (error.code, str(PARAMETERS_MAX) in error.message) == ("MalformedInput", True)
    assert peak < 4 * len(body)
    refused(Request("GET", "/", "Action=x&" + "a&" * 1_000_000, {}, b""))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Action",
        b"Action=",
        b"&&&=&=&",
        b"Action=DeleteAlarms&Version=%ff",
        b"Action=DeleteAlarms&%ff=1&Version=2010-08-01",
        b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames.member.1=%ed%a0%80",
        b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames.member.1=\xff",
        b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames=x",
        b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames.member=x",
        b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames.=x",
        b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames.member.=x",
        b"Action.member.1=DeleteAlarms&Version=2010-08-01",
        b"\x00\x01\x02",
        b"--boundary\r\nContent-Disposition: form-data",
    ],
)
def test_bad_forms(body: bytes) -> None:
    refused(Request("POST", "/", "", FORM, body))


def test_a_gzip_bomb_does_not_unfold() -> None:
    bomb = gzip.compress(b" " * (BODY_MAX_BYTES * 4))
    for headers in (ECS, FORM):
        tracemalloc.start()
        refused(Request("POST", "/", "", headers | {"content-encoding": "gzip"}, bomb))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * BODY_MAX_BYTES
    whole = gzip.compress(b'{"taskDefinition": "x"}')
    assert outcome(Request("POST", "/", "", ECS | {"content-encoding": "gzip"}, whole)) == {"taskDefinition": "x"}
    for wrong in (whole[:-4], whole[:5], b"", b"{}", b"\x1f\x8b"):
        refused(Request("POST", "/", "", ECS | {"content-encoding": "gzip"}, wrong))
    refused(Request("POST", "/", "", ECS | {"content-encoding": "br"}, whole))


@pytest.mark.parametrize(
    "path",
    ["/v1/tags/%ff", "/v1/tags/%zz%", "/v1/tags/a/b", "/v1/tags/", "/v1/tags", "//", "", "/%00", "/v1/\ud800", "*"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PROPFIND", ""])
def test_bad_paths(method: str, path: str) -> None:
    outcome(Request(method, path, "tagKeys=%ff", {}, b""))
    outcome(Request(method, path, "", {}, b"{"))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-target": "\xff\xfe"},
        {"x-amz-target": "." * 10_000},
        {"x-amz-target": "AmazonSQS."},
        {"x-amz-target": "AmazonSQS.__class__"},
        {"authorization": "Credential="},
        {"authorization": "AWS4-HMAC-SHA256 Credential=////"},
        {"authorization": "AWS4-HMAC-SHA256 Credential=a/b/c/batch/aws4_request"},
        {"authorization": "AWS "},
        {"smithy-protocol": "rpc-v2-cbor"},
        {"smithy-protocol": "rpc-v9-cbor"},
        {"content-type": "application/x-amz-json-9.9"},
        {"content-type": "application/x-www-form-urlencoded"},
    ],
)
def test_bad_headers(headers: dict[str, str]) -> None:
    refused(Request("POST", "/", "", headers, b"{}"))
    with pytest.raises(ApiError):
        verify(Request("POST", "/", "", headers, b"{}"), lookup, time.time())


S3 = {"authorization": "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host"}
LAUGHS = b"<!DOCTYPE D [<!ENTITY a 'ha'>" + b"".join(b"<!ENTITY b%d '&a;&a;'>" % n for n in range(20)) + b"]>"


@pytest.mark.parametrize(
    "body",
    [
        LAUGHS + b"<Delete><Object><Key>&b9;</Key></Object></Delete>",
        b'<!DOCTYPE D [<!ENTITY x SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&x;</Key></Object></Delete>',
        b'<!DOCTYPE D SYSTEM "http://127.0.0.1/x.dtd"><Delete><Object><Key>a</Key></Object></Delete>',
        b"<Delete>" * 65,
        b"<Delete>" * 1_000_000,
        b"<Delete>" + b"<a>" * 64 + b"</a>" * 64 + b"</Delete>",
        b"<Delete>" + b"<a/>" * 300_000 + b"</Delete>",
        b"<Delete " + b" ".join(b"a%d=''" % n for n in range(10_000)) + b"></Delete",
    ],
)
def test_hostile_xml(body: bytes) -> None:
    request = Request("POST", "/b", "delete", S3, body)
    outcome(Request("POST", "/b", "delete", S3, b"<Delete/>"))  # compiles the codecs
    tracemalloc.start()
    error = refused(request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.code == "MalformedXML"
    assert peak < 64 * 1024 * 1024


def test_text_in_a_million_pieces_is_read_in_one_go() -> None:
    body = b"<Delete><Object><Key>" + b"x<!-- -->" * 200_000 + b"</Key></Object></Delete>"
    assert outcome(Request("POST", "/b", "delete", S3, body)) == {"Bucket": "b", "Delete": {"Objects": [{"Key": "x" * 200_000}]}}


XML_PIECES = [b"<Delete>", b"</Delete>", b"<Object>", b"</Object>", b"<Key>", b"</Key>", b"a", b"&amp;", b"<", b" "]


@settings(max_examples=50 * EXAMPLES, deadline=None)
@given(body=st.binary(max_size=100) | st.lists(st.sampled_from(XML_PIECES)).map(b"".join))
def test_arbitrary_xml(body: bytes) -> None:
    outcome(Request("POST", "/b", "delete", S3, body))


# --- arbitrary bytes, and valid requests with something broken --------------------------------------------------------


@settings(max_examples=50 * EXAMPLES, deadline=None)
@given(body=st.binary(max_size=200), headers=st.sampled_from([ECS, SSM, FORM, {}, {"content-encoding": "gzip", **ECS}]))
def test_arbitrary_bodies(body: bytes, headers: dict[str, str]) -> None:
    outcome(Request("POST", "/", "", headers, body))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
REGISTER = {"x-amz-target": "AmazonEC2ContainerServiceV20141113.RegisterTaskDefinition"}
MEMBERS = tuple(model_of("ecs").operation_model("RegisterTaskDefinition").input_shape.members)


@settings(max_examples=50 * EXAMPLES, deadline=None)
@given(members=st.dictionaries(st.sampled_from(MEMBERS), JSON_VALUES, max_size=4))
def test_any_json_in_any_member(members: dict[str, Any]) -> None:
    outcome(Request("POST", "/", "", REGISTER, json.dumps(members).encode("utf-8", "surrogatepass")))


@settings(max_examples=50 * EXAMPLES, deadline=None)
@given(
    names=st.lists(
        st.lists(
            st.sampled_from(["AlarmNames", "Metrics", "member", "entry", "1", "2", "key", "value", "Dimensions", "", "x"]),
            min_size=1,
            max_size=6,
        ),
        max_size=6,
    ),
    value=st.sampled_from(["", "1", "x", "%ff", "%00", "true"]),
    operation=st.sampled_from(["PutMetricAlarm", "DeleteAlarms", "PutMetricData", "TagResource", "PutAnomalyDetector"]),
)
def test_any_dotted_names(names: list[list[str]], value: str, operation: str) -> None:
    pairs = [f"Action={operation}", "Version=2010-08-01", *(f"{'.'.join(name)}={value}" for name in names)]
    outcome(Request("POST", "/", "", FORM, "&".join(pairs).encode()))


@cache
def operations() -> list[tuple[str, str, str]]:
    return every_operation()


@settings(max_examples=100 * EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_mutations_of_valid_requests(seed: int) -> None:
    """Flip, cut, duplicate or move bytes of a valid request. The signature check must fail cleanly, too."""
    rng = random.Random(seed)
    service, protocol, operation = rng.choice(operations())
    shape = model_of(service, protocol).operation_model(operation).input_shape
    params = Generator(str(seed), protocol, asked=True).value(shape) if shape is not None else {}
    valid = sent_by_botocore(service, protocol, operation, as_datetimes(shape, params) if shape is not None else {})
    name = rng.choice(list(valid.headers))
    mutant = Request(
        valid.method if rng.random() < 0.9 else mutated(rng, valid.method),
        valid.path if rng.random() < 0.7 else mutated(rng, valid.path),
        valid.query if rng.random() < 0.7 else mutated(rng, valid.query),
        valid.headers if rng.random() < 0.5 else {**valid.headers, name: mutated(rng, valid.headers[name])},
        valid.body if rng.random() < 0.2 else mutated(rng, valid.body.decode("latin-1")).encode("latin-1"),
    )
    outcome(mutant)
    try:
        recognise_head(mutant)
        if service == "s3":
            _, body = verify_head(mutant, lookup, time.time())
            body.feed(mutant.body)
            body.finish()
    except ApiError as error:
        assert 400 <= error.status < 500
    try:
        verify(mutant, lookup, time.time())
    except ApiError as error:
        assert 400 <= error.status < 500
    else:
        # Headers such as x-amzn-query-mode and content-encoding are not signed, so changing them does not matter.
        assert (mutant.method, mutant.body) == (valid.method, valid.body)


def mutated(rng: random.Random, text: str) -> str:
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + chr(rng.randrange(256)) + text[at + 1 :]
            case 2:
                text = text[:at] + text[at:] * 2
            case 3:
                text = text[:at] + rng.choice('{}[]",:&=%./\\0 \n\x00é') + text[at:]
            case _:
                to = rng.randrange(len(text) + 1)
                text = text[at:to] + text[:at] + text[to:]
    return text


# --- requests that are refused by their heads --------------------------------------------------------------------------


def test_only_a_known_key_is_asked_for_its_body() -> None:
    request = sent_by_botocore("sts", "query", "GetCallerIdentity", {})
    head = replace(request, body=b"")
    assert begin_verification(head, lookup, time.time()).finish(sha256(request.body).hexdigest()).service == "sts"
    unknown = request.headers["authorization"].replace("Credential=", "Credential=X")
    wrong = {"authorization": ("", unknown), "x-amz-date": ("20200101T000000Z",), "x-amz-unsigned": ("1",)}
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        with pytest.raises(ApiError):
            begin_verification(replace(head, headers={**head.headers, name: value}), lookup, time.time())


def test_a_stated_hash_is_verified_before_the_body() -> None:
    request = sent_by_botocore("sts", "query", "GetCallerIdentity", {})
    with pytest.raises(ApiError, match="signature we calculated does not match"):
        begin_verification(replace(request, headers=_stating(request, "0" * 64)), lookup, time.time())


def _stating(request: Request, sha: str) -> dict[str, str]:
    signed = request.headers["authorization"].replace("SignedHeaders=", "SignedHeaders=x-amz-content-sha256;")
    return {**request.headers, "authorization": signed, "x-amz-content-sha256": sha}


def test_signatures_that_are_not_valid_leave_no_large_text_in_memory() -> None:
    """Parsed credential scopes are cached. Anyone may send them, so large ones are not."""
    cached = sigv4._header_scope.cache_info().currsize
    names = ";".join(f"name-{number}" for number in range(1000))
    scope = f"AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/sts/aws4_request, SignedHeaders=host;{names}, Signature=0"
    with pytest.raises(ApiError):
        verify(Request("POST", "/", "", {"authorization": scope, "x-amz-date": "20260101T000000Z"}, b""), lookup, time.time())
    assert sigv4._header_scope.cache_info().currsize == cached
    region = "r" * 2000
    with pytest.raises(ApiError, match="longer than"):
        credential = f"AWS4-HMAC-SHA256 Credential=AK/20260101/{region}/sts/aws4_request, SignedHeaders=host, Signature=0"
        verify(Request("POST", "/", "", {"authorization": credential, "x-amz-date": "20260101T000000Z"}, b""), lookup, time.time())


@given(st.text(alphabet=["%", "4", "1", "C", "3", "A", "9", "é", "x", "\\", "c", "n"], max_size=40), st.integers(3, 90))
def test_a_long_text_is_decoded_in_pieces_as_at_once(text: str, piece_chars: int) -> None:
    try:
        expected = unquote(text, errors="strict")
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            decoded_in_pieces(text, piece_chars)
        return
    assert decoded_in_pieces(text, piece_chars) == expected


def test_many_escapes_take_a_fraction_of_the_time_of_unquote() -> None:
    text = "%5B%5D%2C" * 20_000

    def cpu_s(decode: Callable[[str], str]) -> float:
        began_s = time.thread_time()
        assert decode(text) == "[]," * 20_000
        return time.thread_time() - began_s

    assert 4 * min(cpu_s(percent_decoded) for _ in range(3)) < min(cpu_s(unquote) for _ in range(3))


def test_decoding_takes_little_more_memory_than_the_text() -> None:
    text = "%41" * 200_000
    tracemalloc.start()
    try:
        assert percent_decoded(text) == "A" * 200_000
        assert tracemalloc.get_traced_memory()[1] < 8_000_000, "unquote alone would take more than 20 MB"
    finally:
        tracemalloc.stop()
