"""Who this host is: an id kept in the data folder, the kernel's boot id, and what the machine has."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from corral.errors import Refused
from corral.ids import Ids
from corral.model.run import CPU_UNITS_PER_CORE


@dataclass(frozen=True, slots=True)
class Host:
    host_id: str
    boot_id: str
    name: str
    cpu_units: int
    memory_mib: int


def kernel_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def this_host(data: Path, boot_id: str, ids: Ids) -> Host:
    return Host(
        host_id=_host_id(data / "host.json", ids),
        boot_id=boot_id,
        name=os.uname().nodename,
        cpu_units=len(os.sched_getaffinity(0)) * CPU_UNITS_PER_CORE,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
    )


def _host_id(path: Path, ids: Ids) -> str:
    """Made once. The names of simulated GPUs hang on it, so it is on disk before it is used."""
    try:
        kept = json.loads(path.read_bytes())
        if isinstance(kept["host_id"], str) and kept["host_id"]:
            return kept["host_id"]
        raise ValueError("no host id")
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged ({error}); restore it, or remove it to make this a new host") from None
    host_id = ids.hex32()
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(json.dumps({"host_id": host_id}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    return host_id
