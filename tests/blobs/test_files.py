"""The folder of blobs: what is there when, and what is not."""

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
from corral.ids import SeededIds
from corral.model.blob import Arrived


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


def test_a_blob_arrives(blobs: Blobs):
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
    arriving.drop()  # too late: it has arrived
    assert os.path.exists(blobs.path(arrived.blob))


@pytest.mark.parametrize("algorithms", [[], ["SHA256"], ["CRC32"], ["SHA256", "SHA1"]])
def test_only_what_is_asked_for_is_digested(blobs: Blobs, algorithms: list[str]):
    arriving = blobs.begin(algorithms)
    arriving.write([b"one ", b"two"])
    arriving.digest([b"one ", b"two"])
    expected = {"SHA256": hashlib.sha256(b"one two").digest(), "SHA1": hashlib.sha1(b"one two").digest()}
    expected["CRC32"] = zlib.crc32(b"one two").to_bytes(4, "big")
    assert arriving.seal().digests == {algorithm: expected[algorithm] for algorithm in algorithms}


def test_small_ones_arrive_together(blobs: Blobs, tmp_path: Path):
    bodies = [b"", b"one", b"two" * 1000]
    found = [each for each in blobs.store([(body, ["MD5"]) for body in bodies]) if isinstance(each, Arrived)]
    assert [Path(blobs.path(each.blob)).read_bytes() for each in found] == bodies
    assert [(each.size, each.digests) for each in found] == [(len(body), {"MD5": hashlib.md5(body).digest()}) for body in bodies]
    assert blobs.fresh == {each.blob for each in found} and names(blobs) == []
    assert len({os.path.dirname(blobs.path(each.blob)) for each in found}) == 1


def test_who_cannot_be_written_leaves_nothing_and_spoils_nobody(blobs: Blobs, tmp_path: Path):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        one, refused, two = blobs.store([(b"one", []), (b"x" * 1001, []), (b"two", [])])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert isinstance(refused, OSError) and isinstance(one, Arrived) and isinstance(two, Arrived)
    assert blobs.fresh == {one.blob, two.blob} == set(all_files(tmp_path))


def test_a_sweep_leaves_alone_what_is_on_its_way_to_a_row(blobs: Blobs):
    fresh, old = stored(blobs, b"1"), stored(blobs, b"2")
    blobs.settled(old)
    assert names(blobs) == [old]
    blobs.settled(fresh)
    assert sorted(names(blobs)) == sorted([old, fresh])


def test_what_is_given_up_leaves_nothing(blobs: Blobs, tmp_path: Path):
    arriving = blobs.begin([])
    arriving.write([b"x" * 100])
    arriving.drop()
    arriving.drop()
    assert all_files(tmp_path) == []
    blobs.erase([stored(blobs, b"1"), "0" * 32])  # one of them was gone before
    assert all_files(tmp_path) == [] and not blobs.fresh


def test_what_was_arriving_is_gone_after_a_start(tmp_path: Path):
    first = Blobs(tmp_path / "blobs", SeededIds(Random(7)))
    first.begin([]).write([b"half"])
    kept = stored(first, b"whole")
    again = Blobs(tmp_path / "blobs", SeededIds(Random(8)))
    assert all_files(tmp_path) == [kept] and names(again) == [kept]


def test_what_somebody_reads_is_not_erased(blobs: Blobs):
    one, two = stored(blobs, b"1"), stored(blobs, b"2")
    with blobs.reading([one]):
        with blobs.reading([one, two]):
            assert blobs.not_read([one, two]) == []
        assert os.path.exists(blobs.path(one)) and not os.path.exists(blobs.path(two))
        assert blobs.not_read([one]) == []
    assert not os.path.exists(blobs.path(one))
    three = stored(blobs, b"3")
    with blobs.reading([three]):
        pass
    assert os.path.exists(blobs.path(three)) and blobs.not_read([three]) == [three]


def test_folders_come_with_the_first_blob(blobs: Blobs, tmp_path: Path):
    assert names(blobs) == [] and not (tmp_path / "blobs").exists()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: stored(blobs, b"%d" % number), range(32)))
    for blob in found:
        blobs.settled(blob)
    assert sorted(names(blobs)) == sorted(found)


def test_strange_files_are_not_blobs(blobs: Blobs, tmp_path: Path):
    kept = stored(blobs, b"1")
    (tmp_path / "blobs" / "0" / "0" / "README").write_text("mine")
    assert names(blobs) == []  # nor is one that is on its way to a row
    blobs.settled(kept)
    assert names(blobs) == [kept]
