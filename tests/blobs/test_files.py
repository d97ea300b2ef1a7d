"""The folder of blobs: which files exist, and when."""

from __future__ import annotations

import hashlib
import os
import resource
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from corral.blobs import Blobs
from corral.core.ids import SeededIds
from corral.model.blob import StoredBlob


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs", SeededIds(Random(7)))


def names(blobs: Blobs) -> list[str]:
    folders = blobs.folders()
    return [name for some in iter(lambda: blobs.names(folders), []) for name in some]


def all_files(tmp_path: Path) -> list[str]:
    return [name for _, _, found in os.walk(tmp_path) for name in found]


def stored(blobs: Blobs, *pieces: bytes) -> str:
    arriving = blobs.begin(["SHA256"])
    arriving.write(pieces)
    arriving.digest(pieces)
    return arriving.seal().blob


def test_a_blob_is_written(blobs: Blobs):
    arriving = blobs.begin(["SHA256", "CRC32", "MD5"])
    for piece in (b"one ", b"two"):
        arriving.write([piece])
        arriving.digest([piece])
    arrived = arriving.seal()
    assert Path(blobs.path(arrived.blob)).read_bytes() == b"one two"
    assert arrived.size == 7
    assert arrived.digests["MD5"] == hashlib.md5(b"one two").digest()
    assert arrived.digests["SHA256"] == hashlib.sha256(b"one two").digest()
    assert set(arrived.digests) == {"SHA256", "CRC32", "MD5"}
    arriving.drop()  # no effect after seal
    assert os.path.exists(blobs.path(arrived.blob))


@pytest.mark.parametrize("algorithms", [[], ["SHA256"], ["CRC32"], ["SHA256", "SHA1"]])
def test_only_requested_digests_are_computed(blobs: Blobs, algorithms: list[str]):
    arriving = blobs.begin(algorithms)
    arriving.write([b"one ", b"two"])
    arriving.digest([b"one ", b"two"])
    expected = {"SHA256": hashlib.sha256(b"one two").digest(), "SHA1": hashlib.sha1(b"one two").digest()}
    expected["CRC32"] = zlib.crc32(b"one two").to_bytes(4, "big")
    assert arriving.seal().digests == {algorithm: expected[algorithm] for algorithm in algorithms}


def test_small_blobs_are_stored_together(blobs: Blobs, tmp_path: Path):
    bodies = [b"", b"one", b"two" * 1000]
    found = [each for each in blobs.store([(body, ["MD5"]) for body in bodies]) if isinstance(each, StoredBlob)]
    assert [Path(blobs.path(each.blob)).read_bytes() for each in found] == bodies
    assert [(each.size, each.digests) for each in found] == [(len(body), {"MD5": hashlib.md5(body).digest()}) for body in bodies]
    assert blobs.fresh == {each.blob for each in found} and names(blobs) == []
    assert len({os.path.dirname(blobs.path(each.blob)) for each in found}) == 1


def test_a_failed_write_leaves_no_file_and_does_not_fail_other_blobs(blobs: Blobs, tmp_path: Path):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        one, refused, two = blobs.store([(b"one", []), (b"x" * 1001, []), (b"two", [])])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert isinstance(refused, OSError) and isinstance(one, StoredBlob) and isinstance(two, StoredBlob)
    assert blobs.fresh == {one.blob, two.blob} == set(all_files(tmp_path))


def test_a_sweep_ignores_fresh_blobs(blobs: Blobs):
    fresh, old = stored(blobs, b"1"), stored(blobs, b"2")
    blobs.committed(old)
    assert names(blobs) == [old]
    blobs.committed(fresh)
    assert sorted(names(blobs)) == sorted([old, fresh])


def test_dropped_and_erased_blobs_leave_no_file(blobs: Blobs, tmp_path: Path):
    arriving = blobs.begin([])
    arriving.write([b"x" * 100])
    arriving.drop()
    arriving.drop()
    assert all_files(tmp_path) == []
    blobs.erase([stored(blobs, b"1"), "0" * 32])  # one of them does not exist
    assert all_files(tmp_path) == [] and not blobs.fresh


def test_unfinished_blobs_are_deleted_at_the_next_start(tmp_path: Path):
    first = Blobs(tmp_path / "blobs", SeededIds(Random(7)))
    first.begin([]).write([b"half"])
    kept = stored(first, b"whole")
    again = Blobs(tmp_path / "blobs", SeededIds(Random(8)))
    assert all_files(tmp_path) == [kept] and names(again) == [kept]


def test_blobs_with_readers_are_not_erased(blobs: Blobs):
    one, two = stored(blobs, b"1"), stored(blobs, b"2")
    with blobs.reading([one]):
        with blobs.reading([one, two]):
            assert blobs.erasable([one, two]) == []
        assert os.path.exists(blobs.path(one)) and not os.path.exists(blobs.path(two))
        assert blobs.erasable([one]) == []
    assert not os.path.exists(blobs.path(one))
    three = stored(blobs, b"3")
    with blobs.reading([three]):
        pass
    assert os.path.exists(blobs.path(three)) and blobs.erasable([three]) == [three]


def test_the_first_blob_creates_the_folders(blobs: Blobs, tmp_path: Path):
    assert names(blobs) == [] and not (tmp_path / "blobs").exists()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: stored(blobs, b"%d" % number), range(32)))
    for blob in found:
        blobs.committed(blob)
    assert sorted(names(blobs)) == sorted(found)


def test_other_files_are_not_blobs(blobs: Blobs, tmp_path: Path):
    kept = stored(blobs, b"1")
    (tmp_path / "blobs" / "0" / "0" / "README").write_text("mine")
    assert names(blobs) == []  # a fresh blob is not listed either
    blobs.committed(kept)
    assert names(blobs) == [kept]
