"""`bench/ship.py [--mb 200] [--files 2000]`: `corral run --ship` of a folder to a host of the lab, twice.

The folder has large and small files. Between the runs, one small file changes, and a second run must send less than 1 MB. It needs
root, and exits with 1 if that is not so.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from command import BIN
from hosts.cluster import Cluster
from hosts.lab import Lab, why_not

SENT = re.compile(r"sent ([\d.]+) MB")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--mb", type=int, default=200)
    options.add_argument("--files", type=int, default=2000)
    given = options.parse_args()
    if reason := why_not():
        sys.exit(f"this script cannot run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="corral-ship-") as name, Lab(Path(name) / "lab") as lab:
        cluster, folder = Cluster(Path(name), lab), Path(name) / "project"
        try:
            machine = lab.add("gpu-0")
            cluster.join(machine, cluster.token())
            cluster.until(machine, "UP")
            _make(folder, given.mb * 1_000_000, given.files)
            _run(cluster, folder)
            (folder / "small" / "0").write_text("changed")
            sent = _run(cluster, folder)
            print(f"the second run has sent {sent} MB of {given.mb} MB")
            return 0 if sent < 1 else 1
        finally:
            cluster.corral.clear()


def _make(folder: Path, size: int, files: int) -> None:
    (folder / "small").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(size * 3 // 4))
    for number in range(files):
        (folder / "small" / str(number)).write_bytes(os.urandom(size // 4 // files))


def _run(cluster: Cluster, folder: Path) -> float:
    began = time.monotonic()
    command = [str(BIN / "corral"), "run", "--ship", "--host", "gpu-0", "-w", str(folder), "--", "sh", "-c", "hostname; du -sb ."]
    done = subprocess.run(command, env=cluster.cli.environment, capture_output=True, text=True)
    sent = SENT.search(done.stderr)
    assert sent, done.stderr
    assert done.stdout.startswith("gpu-0\n"), done.stdout
    print(f"sent {sent[1]} MB, ran on {' with '.join(done.stdout.split()[:2])} bytes, {time.monotonic() - began:.1f} s in all")
    return float(sent[1])


if __name__ == "__main__":
    sys.exit(main())
