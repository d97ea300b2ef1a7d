"""The files of ended runs become the files of later runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.node.file_recycler import SMALL_OUTPUT_MAX_BYTES, FileRecycler
from corral.node.lock_files import open_locked


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("output", "work", "spare", "trash"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def recycler(data: Path) -> FileRecycler:
    return FileRecycler(str(data))


def start(recycler: FileRecycler, data: Path, name: str, text: str = "x") -> tuple[int, int]:
    """Create the files of a run as the spawner does. Return their inodes."""
    output, folder = data / "output" / name, data / "work" / name
    recycler.reuse_file(str(output))
    fd = open_locked(str(output))
    assert not os.fstat(fd).st_size
    os.write(fd, text.encode())
    os.close(fd)
    recycler.make_folder(str(folder))
    return output.stat().st_ino, folder.stat().st_ino


def end(recycler: FileRecycler, data: Path, name: str) -> None:
    recycler.release_file(str(data / "output" / name))
    recycler.release_folder(str(data / "work" / name))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_waiting_run_gets_the_files_of_an_ended_run(recycler: FileRecycler, data: Path) -> None:
    first = start(recycler, data, "a")
    end(recycler, data, "a")
    assert start(recycler, data, "b") == first
    assert [names(data / each) for each in ("output", "work", "spare")] == [["b"], ["b"], []]


def test_files_that_no_run_waits_for_are_moved_to_spare(recycler: FileRecycler, data: Path) -> None:
    first = start(recycler, data, "a")
    end(recycler, data, "a")
    recycler.move_to_spare()
    assert [names(data / each) for each in ("output", "work")] == [[], []] and len(names(data / "spare")) == 2
    assert start(FileRecycler(str(data)), data, "b") == first  # also after a restart of the spawner


def test_a_second_run_with_the_same_id_keeps_its_files(recycler: FileRecycler, data: Path) -> None:
    for name in ("a", "b"):
        start(recycler, data, name)
    for name in ("a", "b"):
        end(recycler, data, name)
    start(recycler, data, "a", "again")
    start(recycler, data, "c")
    start(recycler, data, "d")
    assert names(data / "output") == names(data / "work") == ["a", "c", "d"]
    assert (data / "output" / "a").read_text() == "again"


def test_files_that_cannot_be_moved_do_not_stop_the_spawner(recycler: FileRecycler, data: Path) -> None:
    for name in ("a", "b"):
        start(recycler, data, name)
    for name in ("a", "b"):
        end(recycler, data, name)
    (data / "output" / "a").unlink()
    recycler.move_to_spare()
    assert [names(data / each) for each in ("output", "work")] == [[], []] and len(names(data / "spare")) == 3
    start(recycler, data, "c")


@pytest.mark.parametrize("what", ["open", "large", "linked"])
def test_a_file_that_cannot_be_emptied_is_removed(recycler: FileRecycler, data: Path, what: str) -> None:
    start(recycler, data, "a", "x" * (SMALL_OUTPUT_MAX_BYTES + 1 if what == "large" else 1))
    output = data / "output" / "a"
    if what == "linked":
        os.link(output, data / "other")
    fd = os.open(output if what == "open" else data, os.O_RDONLY)
    (data / "work" / "a" / "left").touch()
    end(recycler, data, "a")
    os.close(fd)
    recycler.move_to_spare()
    assert [names(data / each) for each in ("output", "work", "spare")] == [[], [], []] and len(names(data / "trash")) == (
        1 if what == "linked" else 2
    )
    recycler.remove_trash()
    assert recycler.pid is not None
    os.waitpid(recycler.pid, 0)
    recycler.child_ended()
    assert names(data / "trash") == []
