"""S3's checksums: known values, computation in pieces, and combination of the checksums of parts."""

from __future__ import annotations

import zlib
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.blobs.checksums import ALGORITHMS, CHECKSUM_HEADERS, checksum, checksum_text, composite, full_object
from wire.oracle import model_of

# The check values of the CRC catalogue for "123456789", and FIPS 180's for "abc".
KNOWN = {
    ("CRC32", b"123456789"): "cbf43926",
    ("CRC32C", b"123456789"): "e3069283",
    ("CRC64NVME", b"123456789"): "ae8b14860a799888",
    ("SHA1", b"abc"): "a9993e364706816aba3e25717850c26c9cd0d89d",
    ("SHA256", b"abc"): "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ("MD5", b"abc"): "900150983cd24fb0d6963f7d28e17f72",  # RFC 1321
    ("CRC32", b""): "00000000",
    ("CRC32C", b""): "00000000",
    ("CRC64NVME", b""): "0000000000000000",
    ("CRC32C", bytes(32)): "8a9136aa",  # RFC 3720
    ("CRC32C", b"\xff" * 32): "62a8ab43",
    ("CRC64NVME", b"hello world!"): "d9160d1fa8e418e3",
}


@pytest.mark.parametrize("algorithm, data, answer", [(*question, answer) for question, answer in KNOWN.items()])
def test_known_values(algorithm: str, data: bytes, answer: str) -> None:
    running = checksum(algorithm)
    running.update(data)
    assert running.digest().hex() == answer


@given(pieces=st.lists(st.binary(max_size=300), max_size=6))
def test_checksums_do_not_depend_on_pieces(pieces: list[bytes]) -> None:
    for algorithm in (*ALGORITHMS, "MD5"):
        whole, running = checksum(algorithm), checksum(algorithm)
        whole.update(b"".join(pieces))
        for piece in pieces:
            running.update(memoryview(piece))  # type: ignore[arg-type]
        assert running.digest() == whole.digest()


@given(parts=st.lists(st.binary(max_size=300), max_size=6))
def test_crcs_of_parts_combine_to_that_of_the_whole(parts: list[bytes]) -> None:
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME"):
        whole = checksum(algorithm)
        whole.update(b"".join(parts))
        assert full_object(algorithm, [(digest_of(algorithm, part), len(part)) for part in parts]) == whole.digest()
    assert digest_of("CRC32", b"".join(parts)) == zlib.crc32(b"".join(parts)).to_bytes(4, "big")


def test_a_composite_is_the_checksum_of_checksums() -> None:
    digests = [digest_of("SHA256", part) for part in (b"a", b"b", b"c")]
    assert composite("SHA256", digests) == f"{checksum_text(digest_of('SHA256', b''.join(digests)))}-3"
    assert b64decode(checksum_text(digests[0])) == digests[0]


def test_the_headers_are_in_the_model() -> None:
    members = model_of("s3").shape_for("PutObjectRequest").members.values()
    modelled = {member.serialization.get("name", "").lower() for member in members}
    assert set(CHECKSUM_HEADERS) <= modelled
    assert set(ALGORITHMS) <= set(model_of("s3").shape_for("ChecksumAlgorithm").enum)


def digest_of(algorithm: str, data: bytes) -> bytes:
    running = checksum(algorithm)
    running.update(data)
    return running.digest()
