"""Facts about this host: its id, the kernel's boot id, and the size of the machine. The host id is stored in the data folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from corral.core.errors import Refused
from corral.core.ids import Ids
from corral.model.units import CPU_UNITS_PER_CORE

HOST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


class Host(NamedTuple):
    host_id: str
    boot_id: str
    name: str
    cpu_units: int
    memory_mib: int
    machine: Mapping[str, str] = MappingProxyType({})  # its fingerprint (`node/fingerprint.py`)
    folder: str = ""  # identifies the folder of the agent on this machine
    architecture: str = ""  # of the CPU, as the kernel calls it


def kernel_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine_id() -> str:
    """Identify this machine since its boot, and the network namespace of this process. Processes with the same id share ports."""
    return f"{kernel_boot_id()}/{os.stat('/proc/self/ns/net').st_ino}"


def this_host(data: Path, boot_id: str, ids: Ids, machine: dict[str, str] | None = None) -> Host:
    folder = os.stat(data)
    return Host(
        host_id=_host_id(data / "host.json", ids),
        boot_id=boot_id,
        name=os.uname().nodename,
        cpu_units=len(os.sched_getaffinity(0)) * CPU_UNITS_PER_CORE,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        machine=machine or {},
        folder=f"{folder.st_dev}:{folder.st_ino}",
        architecture=os.uname().machine,
    )


def stored_host_id(path: Path) -> str:
    """Return the host id that is stored in the file. Raises FileNotFoundError, or Refused if the file is damaged.

    A damaged file does not get a new id, because Corral would then treat this machine as another host.
    """
    try:
        stored = json.loads(path.read_bytes())
        if HOST_ID.fullmatch(stored["host_id"]):
            return str(stored["host_id"])
        raise ValueError("the host id is not valid")
    except FileNotFoundError:
        raise
    except KeyError:
        why = "it has no host_id"
    except (OSError, ValueError, TypeError) as error:
        why = str(error)
    raise Refused(
        f"{path} is damaged ({why}). Restore it from a backup. If you remove it, this machine becomes a new host, and its "
        "tasks are lost."
    )


def _host_id(path: Path, ids: Ids) -> str:
    """Return the stored host id, or create it.

    The ids of simulated GPUs are derived from the host id, so a new host id is written to disk before it is used.
    """
    with suppress(FileNotFoundError):
        return stored_host_id(path)
    host_id = ids.hex32()
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(json.dumps({"host_id": host_id}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    return host_id
