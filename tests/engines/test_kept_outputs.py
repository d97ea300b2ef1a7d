"""The files in which a host keeps the output of runs after their end."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from corral.core.clock import VirtualClock
from corral.model.agent_protocol import OutputLimits
from corral.node import node_folder
from corral.node.file_recycler import FileRecycler
from corral.node.kept_outputs import KeptFile, KeptOutputs, beyond_limits
from corral.node.output_bounds import bound_output, make_hole
from memory_files import MEMORY

LINES = "".join(f"line {number:05}\n" for number in range(20_000))  # 220,000 bytes


@pytest.fixture
def node(tmp_path: Path) -> Path:
    node_folder.make(tmp_path / "node")
    return tmp_path / "node"


def finished(node: Path, kept: KeptOutputs, run_id: str, output: str, dropped: int = 0, agent: KeptOutputs | None = None) -> str:
    """Keep an output as the agent, the spawner and again the agent do it. Return the content of the file."""
    kept.begin(run_id, f"{run_id}.log")
    recycler = FileRecycler(str(node))
    path = node / "output" / run_id
    with open(path, "a") as file:
        file.write(output)
    make_hole(path, 0, dropped)
    (agent or kept).finish(run_id)
    recycler.release_file(str(path))
    recycler.move_to_spare()
    assert not path.exists()
    left = node.parent / "outputs" / f"{run_id}.log"
    assert stat.S_IMODE(left.stat().st_mode) == 0o600 and left.stat().st_nlink == 1
    return left.read_text()


def test_the_output_of_a_run_stays_after_the_run_is_forgotten(node: Path) -> None:
    kept = KeptOutputs(node, VirtualClock())
    kept.set_limits(OutputLimits())
    assert finished(node, kept, "one", LINES) == LINES
    other = KeptOutputs(node, VirtualClock())  # an agent that did not start the run
    assert finished(node, kept, "two", LINES, agent=other) == LINES
    kept.begin("again", "again.log")
    (node / "output" / "again").unlink()  # a spawner that starts removes the files of runs that it does not know
    assert finished(node, kept, "again", LINES) == LINES
    kept.begin("none", "none.log")
    kept.finish("none")
    assert not (node.parent / "outputs" / "none.log").exists()  # a run without output has no file


def test_an_output_without_its_beginning_says_how_much_is_missing(node: Path) -> None:
    kept = KeptOutputs(node, VirtualClock())
    kept.set_limits(OutputLimits(file_bytes=44_000))
    other = KeptOutputs(node, VirtualClock())
    for run_id, dropped, agent, missing in (("cut", 0, kept, 176_000), ("hole", 131_072, other, 131_076)):
        first, _, rest = finished(node, kept, run_id, LINES, dropped, agent).partition("\n")
        assert first.startswith(f"corral: the first {missing:,} bytes of this output are missing: ")
        assert rest == LINES[missing:]


def test_a_kept_output_may_be_larger_than_others() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        output = Path(folder, "output", "one")
        output.parent.mkdir()
        output.write_bytes(bytes(70 * 1024 * 1024))
        os.link(output, Path(folder, "two"))
        for limit, is_cut in ((100, False), (66, True)):
            Path(folder, "output_limit").write_text(f"{limit * 1024 * 1024}\n")
            assert bound_output(output) is is_cut


def test_the_oldest_files_are_deleted_first(node: Path) -> None:
    files = [KeptFile(Path(f"{age}"), 1000.0 - age, 10) for age in (30, 10, 20, 40)]

    def deleted(total: int, age_s: float) -> set[str]:
        return {path.name for path in beyond_limits(files, OutputLimits(100, total, age_s), 1000.0)}

    assert deleted(40, 100.0) == set()
    assert deleted(39, 100.0) == {"40"}
    assert deleted(20, 100.0) == {"30", "40"}
    assert deleted(1000, 25.0) == {"30", "40"}
    clock = VirtualClock()
    kept = KeptOutputs(node, clock)
    finished(node, kept, "old", "one\n")
    kept.begin("alive", "alive.log")
    for name in ("old", "alive"):
        os.utime(node.parent / "outputs" / f"{name}.log", (clock.now_s() - 100, clock.now_s() - 100))
    kept.sweep()  # the limits are not known yet
    assert (node.parent / "outputs" / "old.log").exists()
    clock.set_wall(1e6)
    kept.set_limits(OutputLimits(max_age_s=500.0))
    kept.sweep()
    assert (node.parent / "outputs" / "old.log").exists(), "the wall clock was set forward"
    clock.advance(50)
    kept.set_limits(OutputLimits(max_age_s=50.0))
    kept.sweep()
    assert os.listdir(node.parent / "outputs") == ["alive.log"]
