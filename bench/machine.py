"""The machine under the figures, and what its processes use."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

FSYNCS = 200
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def described(folder: Path) -> dict[str, str]:
    """What a reader needs to judge the figures; nothing that names the machine."""
    one_min, _, _ = os.getloadavg()
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "CPU": _cpu_model(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": f"{sys.implementation.name} {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "disk": f"{file_system(folder)}, 4 KiB write + fdatasync {fsync_ms(folder):.2f} ms (median of {FSYNCS})",
        "load average before": f"{one_min:.2f}",
    }


def fsync_ms(folder: Path) -> float:
    """The median cost of making 4 KiB durable, in a file that is there already, as a write-ahead log mostly is."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096 * FSYNCS))
        file.flush()
        os.fsync(file.fileno())
        for number in range(FSYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 4096, 4096 * number)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def dropped_connections() -> int:
    """The connections that the kernel has dropped so far, because the queue of a server was full."""
    lines = Path("/proc/net/netstat").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(values[names.index("ListenOverflows")])


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted_at, kind, *_ = line.split(" ")
        inside = str(folder.resolve()) == mounted_at or str(folder.resolve()).startswith(mounted_at.rstrip("/") + "/")
        if inside and len(mounted_at) >= len(best[0]):
            best = (mounted_at, kind)
    return best[1]


def real_disk() -> Path:
    """A folder for temporary files that survives a power cut: durable writes must cost what they cost."""
    for candidate in (os.environ.get("CORRAL_BENCH_DIR"), "/var/tmp", tempfile.gettempdir(), os.path.dirname(__file__)):
        if candidate and os.access(candidate, os.W_OK) and file_system(Path(candidate)) not in MEMORY_FILE_SYSTEMS:
            return Path(candidate)
    raise RuntimeError("no folder on a real disk: name one with CORRAL_BENCH_DIR")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all its threads; in nanoseconds where the kernel counts them."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except (OSError, ValueError, IndexError):
        return _ticks_s(pid)


def pss_mb(pid: int) -> float:
    """Proportional memory of a process: shared pages are counted once over all who share them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    return float("nan")


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def is_alive(pid: int) -> bool:
    """Whether it runs; one that ended and was not waited for does not."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def _ticks_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return _arm_model() or platform.processor() or platform.machine()


def _arm_model() -> str:
    """ARM kernels give numbers; these are the ones found in clouds."""
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
    )
    known = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2"}
    part = fields.get("CPU part", "")
    return known.get(part, f"ARM part {part}" if part else "")


def run_python(code: str) -> None:
    """Run some code in an interpreter of its own."""
    subprocess.run([sys.executable, "-c", code], check=True)
