"""Request bodies that are verified while they stream: plain, chunked, signed chunk by chunk, with trailers."""

from __future__ import annotations

import hashlib
import hmac
import io
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.aws import Request, RequestBody, Response, Secret, recognise_head, verify_head
from corral.aws.request_body import LINE_MAX_BYTES, ChunkedBody, ChunkSigner, PlainBody
from corral.blobs.checksums import CHECKSUM_HEADERS, checksum, checksum_text
from corral.core.errors import ApiError
from corral.model.principal import root_user
from wire import oracle
from wire.generate import EXAMPLES

# The examples of AWS's documentation: one key, one time, 66,560 bytes in a chunk of 64 KiB and a smaller one.
NOW_S = datetime(2013, 5, 24, tzinfo=UTC).timestamp()
SCOPE = "20130524/us-east-1/s3/aws4_request"
ROOT = root_user("123456789012")
KEYS = {"AKIAIOSFODNN7EXAMPLE": Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None, None, ROOT)}
CHUNKS = (b"a" * 65536, b"a" * 1024, b"")
SIGNED = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)
SIGNED_WITH_TRAILER = (
    "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
    "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
    "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
)
TRAILER = b"x-amz-checksum-crc32c:sOO8/Q=="
TRAILER_SIGNATURE = b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"


def lookup(access_key_id: str, token: str | None) -> Secret | None:
    return KEYS.get(access_key_id)


def head(kind: str, names: str, signature: str, **more: str) -> Request:
    authorization = f"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/{SCOPE},SignedHeaders={names},Signature={signature}"
    headers = {
        "host": "s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "authorization": authorization,
        "x-amz-content-sha256": kind,
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": "66560",
        "content-length": "66824",
    }
    return Request("PUT", "/examplebucket/chunkObject.txt", "", headers | {k.replace("_", "-"): v for k, v in more.items()}, b"")


def signed_head() -> Request:
    names = "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class"
    return head("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", names, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9")


def head_with_trailer() -> Request:
    names = "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer"
    return head(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        names,
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        x_amz_trailer="x-amz-checksum-crc32c",
    )


def framed(chunks: Any, signatures: Any) -> bytes:
    """Encode the chunks without the line break after the last one, which ends the body or precedes the trailers."""
    body = b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (len(chunk), signature.encode(), chunk)
        for chunk, signature in zip(chunks, signatures, strict=True)
    )
    return body[:-2]


def read(body: RequestBody, data: bytes, step: int | None = None) -> tuple[bytes, dict[str, str]]:
    step = step or len(data) or 1
    payload = b"".join(body.feed(data[at : at + step]) for at in range(0, len(data), step))
    return payload, body.finish()


def refused(body: RequestBody, data: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(body, data)
    return caught.value


# --- AWS's own examples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, 1000, 7])
def test_the_documented_example_of_signed_chunks(step: int | None) -> None:
    identity, body = verify_head(signed_head(), lookup, NOW_S)
    assert (identity.region, identity.principal) == ("us-east-1", ROOT)
    assert read(body, framed(CHUNKS, SIGNED) + b"\r\n", step) == (b"a" * 66560, {})


@pytest.mark.parametrize("step", [None, 1000, 7])
@pytest.mark.parametrize(
    "end",
    [
        TRAILER + b"\r\n" + TRAILER_SIGNATURE + b"\r\n\r\n",
        TRAILER + b"\n\r\n" + TRAILER_SIGNATURE + b"\r\n\r\n",  # as some clients frame it
    ],
)
def test_the_documented_example_of_a_signed_trailer(end: bytes, step: int | None) -> None:
    _, body = verify_head(head_with_trailer(), lookup, NOW_S)
    data = framed(CHUNKS, SIGNED_WITH_TRAILER) + end
    assert read(body, data, step) == (b"a" * 66560, {"x-amz-checksum-crc32c": "sOO8/Q=="})


SIGNED_BODY = framed(CHUNKS, SIGNED) + b"\r\n"


@pytest.mark.parametrize(
    "data, code",
    [
        (SIGNED_BODY.replace(b"a\r\n400;", b"b\r\n400;"), "SignatureDoesNotMatch"),  # a byte of the first chunk
        (SIGNED_BODY.replace(b"ad80c7", b"ad80c8"), "SignatureDoesNotMatch"),
        (SIGNED_BODY.replace(b"0055627c", b"0055627d"), "SignatureDoesNotMatch"),
        (SIGNED_BODY.replace(b"b6c6ea8a", b"b6c6ea8b"), "SignatureDoesNotMatch"),  # of the empty chunk
        (framed(CHUNKS[1:], SIGNED[1:]) + b"\r\n", "SignatureDoesNotMatch"),  # the first chunk is gone
        (framed((CHUNKS[1], CHUNKS[0], b""), (SIGNED[1], SIGNED[0], SIGNED[2])), "SignatureDoesNotMatch"),  # exchanged
        (framed(CHUNKS[:2], SIGNED[:2]) + b"\r\n", "IncompleteBody"),  # the empty chunk is gone
        (framed(CHUNKS[:1], SIGNED[:1]), "IncompleteBody"),
        (SIGNED_BODY[:1000], "IncompleteBody"),
        (b"", "IncompleteBody"),
        (framed((b"a" * 66561,), SIGNED[:1]), "IncompleteBody"),  # more than was announced
        (b"ffffffffffffffff;chunk-signature=" + b"0" * 64 + b"\r\n", "IncompleteBody"),
        (SIGNED_BODY.replace(b";chunk-signature=", b";other="), "InvalidRequest"),
        (b"10000\r\n" + b"a" * 65536 + b"\r\n", "InvalidRequest"),  # no signature
        (b"-1;chunk-signature=0\r\n", "InvalidRequest"),
        (b"0x10;chunk-signature=0\r\n", "InvalidRequest"),
        (b"\r\n", "InvalidRequest"),
        (b"1;" + b"x" * LINE_MAX_BYTES, "InvalidRequest"),
        (SIGNED_BODY.replace(b"a\r\n400", b"aa\r\n400"), "InvalidRequest"),  # a chunk longer than its size
        (SIGNED_BODY + TRAILER + b"\r\n", "MalformedTrailerError"),  # none was announced
    ],
)
def test_what_is_wrong_with_a_signed_body_is_refused(data: bytes, code: str) -> None:
    _, body = verify_head(signed_head(), lookup, NOW_S)
    assert refused(body, data).code == code


@pytest.mark.parametrize(
    "end, code",
    [
        (b"\r\n", "MalformedTrailerError"),
        (TRAILER + b"\r\n\r\n", "MalformedTrailerError"),  # not signed
        (TRAILER.replace(b"sOO8", b"sOO9") + b"\r\n" + TRAILER_SIGNATURE + b"\r\n\r\n", "SignatureDoesNotMatch"),
        (TRAILER + b"\r\n" + TRAILER_SIGNATURE[:-1] + b"0\r\n\r\n", "SignatureDoesNotMatch"),
        (b"x-amz-checksum-crc32:AAAAAA==\r\n" + TRAILER_SIGNATURE + b"\r\n", "MalformedTrailerError"),
        (TRAILER + b"\r\nx-amz-meta-a:b\r\n" + TRAILER_SIGNATURE + b"\r\n", "MalformedTrailerError"),
        (TRAILER + b"\r\n" + TRAILER + b"\r\n", "MalformedTrailerError"),
        (TRAILER + b"\r\n" + TRAILER_SIGNATURE, "IncompleteBody"),
        (b"no colon\r\n", "MalformedTrailerError"),
        (b"x" * (LINE_MAX_BYTES + 1), "InvalidRequest"),
        (b"".join(b"a%d:b\r\n" % n for n in range(1000)), "MalformedTrailerError"),
    ],
)
def test_what_is_wrong_with_a_signed_trailer_is_refused(end: bytes, code: str) -> None:
    _, body = verify_head(head_with_trailer(), lookup, NOW_S)
    assert refused(body, framed(CHUNKS, SIGNED_WITH_TRAILER) + end).code == code


def test_the_head_itself_must_be_right() -> None:
    for change in ({"x-amz-storage-class": "STANDARD"}, {"x-amz-decoded-content-length": "66561"}):
        changed = signed_head()
        changed = Request("PUT", changed.path, "", {**changed.headers, **change}, b"")
        with pytest.raises(ApiError, match="signature we calculated"):
            verify_head(changed, lookup, NOW_S)
    without = {name: value for name, value in signed_head().headers.items() if name != "x-amz-content-sha256"}
    with pytest.raises(ApiError, match="Missing required header"):
        verify_head(Request("PUT", "/b/k", "", without, b""), lookup, NOW_S)
    odd = {**signed_head().headers, "x-amz-content-sha256": "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"}
    with pytest.raises(ApiError, match="must be UNSIGNED-PAYLOAD"):
        verify_head(Request("PUT", "/b/k", "", odd, b""), lookup, NOW_S)


# --- any body, cut anywhere -------------------------------------------------------------------------------------------


class Key:
    """A signing key for these tests."""

    def hexdigest(self, text: bytes) -> str:
        return hmac.digest(b"key", text, "sha256").hex()


def sign(chunks: list[bytes]) -> list[str]:
    """Compute the signatures of the chunks as the documentation describes, independently of Corral's code."""
    signatures, previous = [], "seed"
    for chunk in chunks:
        text = f"AWS4-HMAC-SHA256-PAYLOAD\nT\nS\n{previous}\n{hashlib.sha256().hexdigest()}\n{hashlib.sha256(chunk).hexdigest()}"
        previous = Key().hexdigest(text.encode())
        signatures.append(previous)
    return signatures


CHUNKINGS = st.lists(st.binary(min_size=1, max_size=60), max_size=5)


@settings(max_examples=30 * EXAMPLES, deadline=None)
@given(chunks=CHUNKINGS, step=st.integers(1, 70), flip=st.integers(0, 10_000))
def test_any_signed_body(chunks: list[bytes], step: int, flip: int) -> None:
    payload = b"".join(chunks)
    data = framed([*chunks, b""], sign([*chunks, b""])) + b"\r\n"
    assert read(ChunkedBody(len(payload), (), signer()), data, step) == (payload, {})
    at = flip % (len(data) - 2)  # the line break at the very end may be missing
    changed = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
    assert 400 <= refused(ChunkedBody(len(payload), (), signer()), changed).status < 500


def signer() -> ChunkSigner:
    return ChunkSigner(Key(), "T", "S", "seed")


@settings(max_examples=30 * EXAMPLES, deadline=None)
@given(payload=st.binary(max_size=200), chunk_size=st.integers(1, 50), step=st.integers(1, 70))
def test_what_botocore_chunks_is_read(payload: bytes, chunk_size: int, step: int) -> None:
    wrapped = AwsChunkedWrapper(io.BytesIO(payload), Crc32Checksum, "x-amz-checksum-crc32", chunk_size)
    body = ChunkedBody(len(payload), ("x-amz-checksum-crc32",), None)
    crc = Crc32Checksum()
    crc.update(payload)
    assert read(body, wrapped.read(), step) == (payload, {"x-amz-checksum-crc32": crc.b64digest()})


@settings(max_examples=50 * EXAMPLES, deadline=None)
@given(data=st.binary(max_size=100), step=st.integers(1, 30), size=st.integers(0, 100), signed=st.booleans())
def test_arbitrary_bytes_end_cleanly(data: bytes, step: int, size: int, signed: bool) -> None:
    try:
        read(ChunkedBody(size, (), signer() if signed else None), data, step)
    except ApiError as error:
        assert 400 <= error.status < 500


@pytest.mark.parametrize("algorithm", [None, "CRC32", "SHA1", "SHA256"])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_what_boto3_uploads_over_tls_is_read(algorithm: str | None, size: int) -> None:
    """Over TLS boto3 sends its checksum in a trailer."""
    payload = bytes(range(251)) * (size // 251) + bytes(size % 251)
    read_back: list[tuple[bytes, dict[str, str]]] = []

    def answer(request: Request) -> Response:
        call = recognise_head(replace(request, body=b""))
        assert call is not None
        assert (call.operation, call.streams_in, call.params()["ContentLength"]) == ("PutObject", "Body", size)
        assert "ContentEncoding" not in call.params()
        assert request.headers["x-amz-content-sha256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        _, body = verify_head(replace(request, body=b""), oracle.lookup, time.time())
        read_back.append(read(body, request.body, 65536))
        return call.serialize({"ETag": '"x"'}, "request-1")

    made = oracle.client("s3", answer, endpoint="https://127.0.0.1:4566")
    made.put_object(Bucket="b", Key="k", Body=io.BytesIO(payload), **({"ChecksumAlgorithm": algorithm} if algorithm else {}))
    [(read_payload, trailers)] = read_back
    [(name, value)] = trailers.items()
    expected = checksum(CHECKSUM_HEADERS[name])
    expected.update(payload)
    assert (read_payload, value) == (payload, checksum_text(expected.digest()))
    assert CHECKSUM_HEADERS[name] == (algorithm or "CRC32")


def test_a_plain_body_is_compared_with_its_hash() -> None:
    stated = hashlib.sha256(b"abc").hexdigest()
    assert read(PlainBody(stated), b"abc", 1) == (b"abc", {})
    assert refused(PlainBody(stated), b"abd").code == "XAmzContentSHA256Mismatch"
    assert refused(PlainBody(stated), b"").code == "XAmzContentSHA256Mismatch"
    assert read(PlainBody(None), b"anything") == (b"anything", {})
