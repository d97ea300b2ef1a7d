"""Streamed bodies: memory is bounded, they are verified, and interrupted or wrong ones leave nothing."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import re
import socket
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum

from clients.s3_help import MIB, files, new_bucket, refused, wait_for_blobs
from corral.blobs.checksums import ALGORITHMS, CHECKSUM_HEADERS, checksum, checksum_text
from eventually import eventually
from harness import Corral

EMPTY = hashlib.sha256().hexdigest()
TEXT = b"some text"
SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
UNSIGNED_CHUNKS = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class Raw:
    """A raw connection with hand-signed requests."""

    def __init__(self, corral: Corral) -> None:
        self.host, self.keys = corral.url.removeprefix("http://"), corral.keys
        self.socket = socket.create_connection(self.host.split(":"), timeout=20)
        self.rest = b""

    def head(self, method: str, path: str, sha256: str = "UNSIGNED-PAYLOAD", **headers: str) -> None:
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self.scope, self.date = f"{now[:8]}/us-east-1/s3/aws4_request", now
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        signs = {"host": self.host, "x-amz-content-sha256": sha256, "x-amz-date": now}
        signs |= {name: value for name, value in headers.items() if name.startswith("x-amz-")}
        names = ";".join(sorted(signs))
        lines = "".join(f"{name}:{signs[name]}\n" for name in sorted(signs))
        request = hashlib.sha256(f"{method}\n{path}\n\n{lines}\n{names}\n{sha256}".encode()).hexdigest()
        self.signature = self.sign(f"AWS4-HMAC-SHA256\n{now}\n{self.scope}\n{request}")
        credential = f"{self.keys['access_key']}/{self.scope}"
        signs["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={self.signature}"
        text = "".join(f"{name}: {value}\r\n" for name, value in (headers | signs).items())
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode())

    def sign(self, text: str) -> str:
        key = f"AWS4{self.keys['secret_key']}".encode()
        for part in self.scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, text.encode(), "sha256").hex()

    def chunk(self, data: bytes, *, wrong: bool = False) -> bytes:
        text = f"AWS4-HMAC-SHA256-PAYLOAD\n{self.date}\n{self.scope}\n{self.signature}\n{EMPTY}\n{hashlib.sha256(data).hexdigest()}"
        self.signature = self.sign(text)
        shown = self.signature if not wrong else "0" * 64
        return b"%x;chunk-signature=%s\r\n%s\r\n" % (len(data), shown.encode(), data)

    def answer(self) -> tuple[int, str, bytes]:
        """(status, head, body) of one response."""
        while b"\r\n\r\n" not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        text = head.decode().lower()
        length = re.search(r"content-length: (\d+)", text)
        size = int(length[1]) if length else 0
        while len(self.rest) < size:
            self._more()
        body, self.rest = self.rest[:size], self.rest[size:]
        return int(text.split(" ")[1]), text, body

    def is_over(self) -> bool:
        return not self.rest and not self.socket.recv(65536)

    def _more(self) -> None:
        part = self.socket.recv(65536)
        assert part, f"the connection ended after {self.rest!r}"
        self.rest += part


@pytest.fixture(scope="module")
def s3(corral):
    return corral.client("s3")


@pytest.fixture(scope="module")
def bucket(s3):
    return new_bucket(s3)


@pytest.fixture
def raw(corral):
    made = Raw(corral)
    yield made
    made.socket.close()


def nothing_new(corral: Corral, before: list[Path]) -> None:
    """No new file. Older bodies of the same key may be deleted."""
    eventually(lambda: set(files(corral)) <= set(before), "no file is left behind")


@pytest.mark.parametrize("size", [0, 1, 65536, 200_000, 3 * MIB + 1])
def test_signed_chunks(corral, s3, bucket, raw, size):
    data = os.urandom(size)
    raw.head(
        "PUT", f"/{bucket}/chunks", SIGNED_CHUNKS, content_encoding="aws-chunked,gzip", x_amz_decoded_content_length=str(size),
        transfer_encoding="chunked",
    )  # fmt: skip
    body = b"".join(raw.chunk(data[at : at + 70_000]) for at in range(0, size, 70_000)) + raw.chunk(b"")
    for at in range(0, len(body), 100_000):
        piece = body[at : at + 100_000]
        raw.socket.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    raw.socket.sendall(b"0\r\n\r\n")
    assert raw.answer()[0] == 200
    got = s3.get_object(Bucket=bucket, Key="chunks")
    assert (got["Body"].read() == data, got["ContentEncoding"]) == (True, "gzip")


def test_a_wrong_chunk_signature_is_refused(corral, s3, bucket, raw):
    s3.put_object(Bucket=bucket, Key="kept", Body=TEXT)
    before = files(corral)
    sizes = {"x_amz_decoded_content_length": str(3 * MIB), "content_length": str(3 * (MIB + 91) + 86)}
    raw.head("PUT", f"/{bucket}/kept", SIGNED_CHUNKS, **sizes)
    raw.socket.sendall(raw.chunk(os.urandom(MIB)))
    eventually(lambda: files(corral) != before, "it arrives")
    raw.socket.sendall(raw.chunk(os.urandom(MIB), wrong=True))
    nothing_new(corral, before)
    raw.socket.sendall(raw.chunk(os.urandom(MIB)))  # the server reads the rest, so that the client sees the error
    raw.socket.sendall(raw.chunk(b""))
    status, _, body = raw.answer()
    assert (status, b"SignatureDoesNotMatch" in body) == (403, True)
    nothing_new(corral, before)
    assert s3.get_object(Bucket=bucket, Key="kept")["Body"].read() == TEXT


@pytest.mark.parametrize("size", [100, 2 * MIB])
def test_a_trailing_checksum(corral, s3, bucket, size):
    data = os.urandom(size)
    for right in (True, False):
        raw, before = Raw(corral), files(corral)
        sent = data if right else bytes([data[0] ^ 1]) + data[1:]
        wrapper = AwsChunkedWrapper(io.BytesIO(sent), checksum_cls=Crc32Checksum, checksum_name="x-amz-checksum-crc32")
        body = wrapper.read().replace(b"\r\n" + sent[:8], b"\r\n" + data[:8], 1)  # the received bytes do not match the checksum
        raw.head(
            "PUT", f"/{bucket}/trailer", UNSIGNED_CHUNKS, content_encoding="aws-chunked", x_amz_trailer="x-amz-checksum-crc32",
            x_amz_decoded_content_length=str(size), content_length=str(len(body)),
        )  # fmt: skip
        raw.socket.sendall(body)
        status, _, said = raw.answer()
        assert status == (200 if right else 400), said
        if not right:
            assert b"BadDigest" in said
            nothing_new(corral, before)
        raw.socket.close()
    assert s3.get_object(Bucket=bucket, Key="trailer", ChecksumMode="ENABLED")["Body"].read() == data


@pytest.mark.parametrize("size", [len(TEXT), 2 * MIB])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "MD5"])
def test_a_checksum_in_the_head(corral, s3, bucket, algorithm, size):
    data, before = (TEXT * size)[:size], files(corral)

    def stated(of: bytes) -> dict[str, str]:
        if algorithm == "MD5":
            return {"ContentMD5": checksum_text(hashlib.md5(of).digest())}
        running = checksum(algorithm)
        running.update(of)
        return {f"Checksum{algorithm}": checksum_text(running.digest())}

    with refused("BadDigest", 400):
        s3.put_object(Bucket=bucket, Key="wrong", Body=data, **stated(b"another"))
    with refused("404"):
        s3.head_object(Bucket=bucket, Key="wrong")
    nothing_new(corral, before)
    put = s3.put_object(Bucket=bucket, Key=f"right-{algorithm}-{size}", Body=data, **stated(data))
    if algorithm != "MD5":
        assert put.items() >= stated(data).items()
    malformed = dict.fromkeys(stated(data), "bm90IGl0")
    with refused("InvalidDigest" if algorithm == "MD5" else "InvalidRequest", 400):
        s3.put_object(Bucket=bucket, Key="wrong", Body=data, **malformed)


def test_a_body_without_a_checksum_gets_one(corral, bucket, raw):
    raw.head("PUT", f"/{bucket}/plain", content_length=str(len(TEXT)))
    raw.socket.sendall(TEXT)
    running = checksum("CRC64NVME")
    running.update(TEXT)
    assert f"x-amz-checksum-crc64nvme: {checksum_text(running.digest())}".lower() in raw.answer()[1]
    assert set(CHECKSUM_HEADERS.values()) == set(ALGORITHMS)


@pytest.mark.parametrize("size", [len(TEXT), 3 * MIB])
def test_a_body_other_than_the_signed_one_is_refused(corral, bucket, raw, size):
    before = files(corral)
    raw.head("PUT", f"/{bucket}/x", hashlib.sha256(b"signed").hexdigest(), content_length=str(size))
    raw.socket.sendall(b"y" * size)
    status, _, body = raw.answer()
    assert (status, b"XAmzContentSHA256Mismatch" in body) == (400, True)
    nothing_new(corral, before)


def test_a_refusal_comes_before_the_body(corral, s3, bucket, raw):
    raw.head("PUT", "/no-such-bucket-at-all/x", content_length=str(5 * 1024**3), expect="100-continue")
    status, head, body = raw.answer()
    assert (status, b"NoSuchBucket" in body, "connection: close" in head) == (404, True, True)
    assert raw.is_over()
    too_large, unheard_of = {"content_length": str(5 * 1024**3 + 1)}, {"if_none_match": '"x"'}
    for more in (too_large, unheard_of, {"x_amz_meta_a": "b" * 3000}):
        other = Raw(corral)
        other.head("PUT", f"/{bucket}/x", expect="100-continue", **{"content_length": "5"} | more)
        assert other.answer()[0] in (400, 501)
        other.socket.close()
    missing = Raw(corral)
    missing.head("PUT", f"/{bucket}/x", transfer_encoding="chunked", expect="100-continue")
    assert missing.answer()[0] == 411
    missing.socket.close()


def test_expect_100_continue(corral, s3, bucket, raw):
    raw.head("PUT", f"/{bucket}/asked", content_length=str(len(TEXT)), expect="100-continue")
    assert raw.answer()[0] == 100
    raw.socket.sendall(TEXT)
    assert raw.answer()[0] == 200
    raw.head("GET", f"/{bucket}/asked")  # on the same connection
    assert raw.answer()[2] == TEXT


def test_a_connection_outlives_a_small_refusal(corral, s3, bucket, raw):
    for _ in range(3):
        raw.head("PUT", "/no-such-bucket-at-all/x", content_length="300000")
        raw.socket.sendall(b"x" * 300_000)
        assert raw.answer()[0] == 404
    raw.head("PUT", f"/{bucket}/after", content_length=str(len(TEXT)))
    raw.socket.sendall(TEXT)
    assert raw.answer()[0] == 200


def test_requests_may_be_pipelined_behind_large_responses(corral, s3, bucket, raw):
    large = os.urandom(5 * MIB)
    s3.put_object(Bucket=bucket, Key="large", Body=large)
    s3.put_object(Bucket=bucket, Key="small", Body=TEXT)
    for key in ("large", "small", "large", "small"):
        raw.head("GET", f"/{bucket}/{key}")
    for body in (large, TEXT, large, TEXT):
        assert raw.answer()[2] == body
    raw.head("HEAD", f"/{bucket}/large")
    while b"\r\n\r\n" not in raw.rest:
        raw._more()
    assert f"content-length: {5 * MIB}".encode() in raw.rest


def test_requests_may_be_pipelined_behind_large_bodies(corral, s3, bucket, raw):
    large = os.urandom(3 * MIB)
    for key, body in (("one", large), ("two", TEXT), ("three", large[1:])):
        raw.head("PUT", f"/{bucket}/behind-{key}", content_length=str(len(body)))
        raw.socket.sendall(body)
        raw.head("GET", f"/{bucket}/behind-{key}")
    for body in (large, TEXT, large[1:]):
        status, head, _ = raw.answer()
        assert (status, hashlib.md5(body).hexdigest() in head) == (200, True)
        assert raw.answer()[2] == body
    wrong = hashlib.md5(TEXT).digest()
    raw.head("PUT", f"/{bucket}/behind-one", content_length=str(len(large)), content_md5=checksum_text(wrong))
    raw.socket.sendall(large)
    raw.head("GET", f"/{bucket}/behind-two")
    status, head, body = raw.answer()
    assert (status, b"BadDigest" in body, "connection: close" in head) == (400, True, False)
    assert raw.answer()[2] == TEXT


def test_slow_senders_do_not_block_others(corral, s3, bucket):
    """There are far fewer threads than stalled senders."""
    body, senders = os.urandom(2 * MIB), [Raw(corral) for _ in range(24)]
    before = files(corral)
    for number, sender in enumerate(senders):
        sender.head("PUT", f"/{bucket}/slow-{number}", content_length=str(len(body)))
        sender.socket.sendall(body[: MIB + number])
    eventually(lambda: len(files(corral)) >= len(before) + len(senders), "all have begun")
    s3.put_object(Bucket=bucket, Key="quick", Body=body)
    assert s3.get_object(Bucket=bucket, Key="quick")["Body"].read() == body
    for number, sender in enumerate(senders):
        sender.socket.sendall(body[MIB + number :])
    for number, sender in enumerate(senders):
        assert sender.answer()[0] == 200
        sender.socket.close()
        assert s3.get_object(Bucket=bucket, Key=f"slow-{number}")["Body"].read() == body


@pytest.mark.parametrize("sent", [0, 1000, 2 * MIB])
def test_a_cut_connection_leaves_nothing(corral, s3, bucket, sent):
    before, raw = files(corral), Raw(corral)
    raw.head("PUT", f"/{bucket}/cut", content_length=str(4 * MIB))
    raw.socket.sendall(b"x" * sent)
    if sent > MIB:
        eventually(lambda: len(files(corral)) > len(before), "the body arrives")
    raw.socket.close()
    nothing_new(corral, before)
    with refused("404"):
        s3.head_object(Bucket=bucket, Key="cut")


def test_a_download_continues_after_the_object_is_deleted(own_corral):
    corral = own_corral("none").start()
    s3 = corral.client("s3")
    bucket, part = new_bucket(s3), os.urandom(12 * MIB)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="x")["UploadId"]
    where, parts = {"Bucket": bucket, "Key": "x", "UploadId": upload}, []
    for number in (1, 2, 3):
        etag = s3.upload_part(**where, PartNumber=number, Body=part)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    body = s3.get_object(Bucket=bucket, Key="x")["Body"]
    first = body.read(1000)
    s3.delete_object(Bucket=bucket, Key="x")
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    s3.delete_object(Bucket=bucket, Key="x")
    assert first + body.read() == part * 3
    wait_for_blobs(corral, 0)


def test_a_reader_that_disconnects(corral, s3, bucket):
    s3.put_object(Bucket=bucket, Key="large", Body=os.urandom(20 * MIB))
    for _ in range(20):
        raw = Raw(corral)
        raw.head("GET", f"/{bucket}/large")
        raw.socket.recv(1000)
        raw.socket.close()
    server = corral.process.pid
    large = lambda: [link for link in Path(f"/proc/{server}/fd").iterdir() if "/blobs/" in os.path.realpath(link)]  # noqa: E731
    eventually(lambda: not large(), "no file is open")
    assert s3.head_object(Bucket=bucket, Key="large")["ContentLength"] == 20 * MIB


def test_slow_readers_do_not_block_others(corral, s3, bucket):
    """There are more readers than threads."""
    s3.put_object(Bucket=bucket, Key="large", Body=os.urandom(20 * MIB))
    slow = [Raw(corral) for _ in range(12)]
    for raw in slow:
        raw.head("GET", f"/{bucket}/large")
        raw.socket.recv(1000)
    assert len(s3.get_object(Bucket=bucket, Key="large")["Body"].read()) == 20 * MIB
    for raw in slow:
        raw.socket.close()


def test_documents_are_compared_with_their_checksums(s3, bucket):
    s3.put_object(Bucket=bucket, Key="tagged", Body=TEXT)
    with refused("BadDigest", 400):
        s3.put_object_tagging(Bucket=bucket, Key="tagged", Tagging={"TagSet": []}, ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")


def peak_kib(pid: int) -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


def test_a_large_object_in_little_memory(own_corral):
    corral = own_corral("none").start()
    s3 = corral.client("s3")
    bucket, piece, pieces = new_bucket(s3), os.urandom(MIB), 256
    s3.put_object(Bucket=bucket, Key="warm", Body=piece)
    assert s3.get_object(Bucket=bucket, Key="warm")["Body"].read() == piece
    before, raw = peak_kib(corral.process.pid), Raw(corral)
    raw.head("PUT", f"/{bucket}/huge", content_length=str(pieces * MIB))
    for _ in range(pieces):
        raw.socket.sendall(piece)
    assert raw.answer()[0] == 200
    raw.head("GET", f"/{bucket}/huge")
    whole, buffer = hashlib.sha1(), bytearray(MIB)
    received = 0
    while b"\r\n\r\n" not in raw.rest:
        raw._more()
    start = raw.rest.partition(b"\r\n\r\n")[2]
    whole.update(start)
    received = len(start)
    while received < pieces * MIB:
        count = raw.socket.recv_into(buffer)
        whole.update(memoryview(buffer)[:count])
        received += count
    expected = hashlib.sha1()
    for _ in range(pieces):
        expected.update(piece)
    assert whole.digest() == expected.digest()
    assert peak_kib(corral.process.pid) - before < 64 * 1024
    raw.socket.close()


def test_many_concurrent_requests(s3, bucket):
    """Small puts and gets from several threads."""
    wrong: list[str] = []

    def work(name: int) -> None:
        for at in range(10):
            body = f"{name}/{at}".encode() * (1 + at * 2000)
            s3.put_object(Bucket=bucket, Key=f"many/{name}/{at}", Body=body)
            if s3.get_object(Bucket=bucket, Key=f"many/{name}/{at}")["Body"].read() != body:
                wrong.append(f"{name}/{at}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert s3.list_objects_v2(Bucket=bucket, Prefix="many/")["KeyCount"] == 60


def test_files_that_a_crash_left_are_removed_at_the_next_start(own_corral):
    corral = own_corral("none").start()
    s3 = corral.client("s3")
    bucket = new_bucket(s3)
    for at in range(20):
        s3.put_object(Bucket=bucket, Key=str(at), Body=str(at).encode())
    kept = set(files(corral))
    corral.kill("corral.server")
    orphans = [f"{number:032x}" for number in (0, 1 << 127, 255 << 120)]
    for name in orphans:  # complete files without a row
        (corral.data / "blobs" / name[0] / name[1] / name).write_bytes(b"orphan")
    (corral.data / "blobs" / "arriving" / ("a" * 32)).write_bytes(b"half")
    corral.start()
    eventually(lambda: set(files(corral)) == kept, "only what rows refer to is left")
    assert [s3.get_object(Bucket=bucket, Key=str(at))["Body"].read() for at in range(20)] == [str(at).encode() for at in range(20)]
