"""The GPUs of the host: real GPUs, which are read through NVML, or simulated GPUs.

The load of a simulated GPU is the CPU load of the runs that have this GPU. A foreign process is a process that uses a GPU and
belongs to no run.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from corral.core.errors import Refused
from corral.core.ids import simulated_gpu_id
from corral.model.gpu import FOREIGN_MAX, MODELS, Foreign, GpuDevice, GpuHealth
from corral.model.gpu_metrics import GpuPart, GpuSample
from corral.node import gpu_topology
from corral.node.gpu_parts import divide, run_of
from corral.node.gpus_flag import parse_gpus_flag
from corral.node.procfs import NO_OWNER, environment, owner_of, process_name, processes, waited_s

VISIBLE = (b"CUDA_VISIBLE_DEVICES=", b"NVIDIA_VISIBLE_DEVICES=")


class Gpus(Protocol):
    note: str  # a text for users: which GPUs were found, or why none were found

    def devices(self) -> list[GpuDevice]: ...

    def links(self) -> list[list[int]] | None:
        """Return the distances between the GPUs (see gpu_topology.py), in the order of `devices`. None means unknown."""
        ...

    def sample(
        self, live: Mapping[str, Mapping[str, int]], ours: Collection[int] = (), paused: Collection[int] = ()
    ) -> list[GpuSample]:
        """Measure the current load of each GPU, and find the foreign processes on it. GPUs that cannot be read are left out.

        `live` is GPU id → run id → pid, for the runs that have the GPU. `ours` are the pids of runs and of Corral's own processes.
        These processes and their descendants are not foreign. `paused` are those of `ours` that are the main processes of paused
        runs: they and their descendants do not use the GPUs. If several runs have a GPU, measure also the part of each run.
        """
        ...

    def health(self) -> GpuHealth:
        """Return the errors that the driver has reported since the last call, and the faults that exist now."""
        ...


def find_devices(flag: str, devices: Sequence[GpuDevice]) -> list[str]:
    """Return the ids of the devices that `--exclude-gpus` selects by index or id. Raises Refused if one does not exist."""
    by_name = {str(device.index): device.gpu_id for device in devices} | {device.gpu_id: device.gpu_id for device in devices}
    names = [name.strip() for name in flag.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            there = ", ".join(f"{device.index} ({device.gpu_id})" for device in devices) or "none"
            raise Refused(f"--exclude-gpus {flag}: there is no GPU {name}; there are {there}")
    return sorted({by_name[name] for name in names})


def detect(flag: str, host_id: str, only: str | None = None) -> Gpus:
    """Return the GPUs of this host. With `only`, a list of indexes and ids, return those of an allocation of a lender."""
    found = _detect(flag, host_id)
    return found if only is None else GpuSubset(found, find_devices(only, found.devices()))


def _detect(flag: str, host_id: str) -> Gpus:
    parsed = parse_gpus_flag(flag)
    if parsed.kind == "none":
        return NoGpus("no GPUs, because of --gpus none")
    if parsed.kind == "sim":
        return SimulatedGpus(host_id, parsed.count, parsed.model)
    from corral.node import nvml  # imported here, because an agent without real GPUs does not need it

    try:
        return nvml.NvmlGpus(nvml.load())
    except nvml.NoDriver as why:
        return NoGpus(f"no GPUs: {why}; simulate some with --gpus sim:8")


def kind_of(gpus: Gpus) -> str:
    """Return the kind of a host's GPUs: real, simulated or none."""
    devices = gpus.devices()
    return "none" if not devices else "simulated" if devices[0].simulated else "real"


class NoGpus:
    def __init__(self, note: str) -> None:
        self.note = note

    def devices(self) -> list[GpuDevice]:
        return []

    def links(self) -> list[list[int]] | None:
        return None

    def sample(
        self, live: Mapping[str, Mapping[str, int]], ours: Collection[int] = (), paused: Collection[int] = ()
    ) -> list[GpuSample]:
        return []

    def health(self) -> GpuHealth:
        return GpuHealth()


class GpuSubset:
    """Some GPUs of a host. Others belong to other allocations of a lender."""

    def __init__(self, gpus: Gpus, gpu_ids: Collection[str]) -> None:
        self._gpus = gpus
        self._ids = frozenset(gpu_ids)
        self.note = f"{gpus.note}, {len(self._ids)} of them for this host"

    def devices(self) -> list[GpuDevice]:
        return [device for device in self._gpus.devices() if device.gpu_id in self._ids]

    def links(self) -> list[list[int]] | None:
        links = self._gpus.links()
        at = [position for position, device in enumerate(self._gpus.devices()) if device.gpu_id in self._ids]
        return None if links is None else [[links[row][column] for column in at] for row in at]

    def sample(
        self, live: Mapping[str, Mapping[str, int]], ours: Collection[int] = (), paused: Collection[int] = ()
    ) -> list[GpuSample]:
        return [sample for sample in self._gpus.sample(live, ours, paused) if sample.gpu_id in self._ids]

    def health(self) -> GpuHealth:
        found = self._gpus.health()
        return GpuHealth(
            [(gpu_id, xid) for gpu_id, xid in found.xids if gpu_id in self._ids],
            {gpu_id: fault for gpu_id, fault in found.conditions.items() if gpu_id in self._ids},
        )


class SimulatedGpus:
    """Simulated GPUs. A run that uses one CPU core fully counts as one busy GPU.

    Time in which its processes wait for a core counts too. So a program that never sleeps makes its GPU fully busy, even if the
    machine has fewer cores than busy programs. The load of a run with several GPUs is divided equally among them. Commands of ECS
    Exec count with the run in which they were started.

    A process that belongs to no run and has one of these GPUs in its CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES counts as a
    foreign process on that GPU.
    """

    def __init__(self, host_id: str, count: int, model: str) -> None:
        name, memory_mib = MODELS[model]
        self.note = f"{count} simulated {name}"
        self._links = gpu_topology.simulated(model, count)
        self._devices = [
            GpuDevice(simulated_gpu_id(host_id, index), index, name, memory_mib, simulated=True) for index in range(count)
        ]
        self._busy_s: dict[int, float] = {}  # pid → how long it had run or waited for a core at the last sample
        self._sampled_boot_s = _boot_s()

    def devices(self) -> list[GpuDevice]:
        return self._devices

    def links(self) -> list[list[int]] | None:
        return self._links

    def sample(
        self, live: Mapping[str, Mapping[str, int]], ours: Collection[int] = (), paused: Collection[int] = ()
    ) -> list[GpuSample]:
        foreign, own = using_by_environment([device.gpu_id for device in self._devices], ours, paused)
        using = {gpu_id: {*runs.values(), *own.get(gpu_id, ())} for gpu_id, runs in live.items()}
        pinned = Counter(pid for pids in using.values() for pid in pids)
        use = self._measure({pid for runs in live.values() for pid in runs.values()}, pinned.keys()) if pinned else {}
        samples = []
        for device in self._devices:
            runs, uses = live.get(device.gpu_id, {}), [(use[pid], pinned[pid]) for pid in using.get(device.gpu_id, ())]
            busy = sum(used.cores / gpus for used, gpus in uses)
            memory_mib = sum(used.memory_mib / gpus for used, gpus in uses)
            busy_percent = min(100.0, 100.0 * busy)
            samples.append(
                GpuSample(
                    device.gpu_id,
                    utilization_percent=round(busy_percent, 1),
                    memory_used_mib=min(int(memory_mib), device.memory_mib),
                    foreign=foreign.get(device.gpu_id, []),
                    parts=_parts(runs, {pid: (use[pid], pinned[pid]) for pid in using[device.gpu_id]}, busy_percent)
                    if len(runs) > 1
                    else None,
                )
            )
        return samples

    def health(self) -> GpuHealth:
        return GpuHealth()  # simulated GPUs fail only by `corral gpu fail`

    def _measure(self, sessions: Collection[int], pids: Iterable[int]) -> dict[int, Use]:
        """Return pid → the CPU cores that were used since the last sample, and the memory that is used now.

        `sessions` are the pids of runs. The use of a run includes all processes of its session. The other `pids` are single
        processes.
        """
        now = _boot_s()
        elapsed_s = max(now - self._sampled_boot_s, 0.001)
        use = {pid: Use(0.0, 0.0) for pid in pids}
        busy_s: dict[int, float] = {}
        for process in processes():
            user = process.session if process.session in sessions else process.pid
            if user not in use:
                continue
            busy_s[process.pid] = process.cpu_s + waited_s(process.pid)
            is_new = process.started_boot_s >= self._sampled_boot_s - 0.01  # times in /proc have a precision of 0.01 seconds
            before_s = self._busy_s.get(process.pid, 0.0 if is_new else busy_s[process.pid])
            cores = max(0.0, busy_s[process.pid] - before_s) / elapsed_s
            use[user] = Use(use[user].cores + cores, use[user].memory_mib + process.memory_mib)
        self._busy_s, self._sampled_boot_s = busy_s, now
        return use


class Use(NamedTuple):
    cores: float
    memory_mib: float


def _parts(runs: Mapping[str, int], uses: Mapping[int, tuple[Use, int]], busy_percent: float) -> dict[str, GpuPart]:
    """Return the parts of runs that share a GPU. `uses` is pid → what it uses, and the number of its GPUs."""
    of_run = {pid: run_of(pid, runs) or "" for pid in uses}
    load = [(of_run[pid], 100.0 * used.cores / gpus) for pid, (used, gpus) in uses.items()]
    return divide(runs, load, [(of_run[pid], used.memory_mib / gpus) for pid, (used, gpus) in uses.items()], busy_percent)


def using_by_environment(
    gpu_ids: Sequence[str], ours: Collection[int], paused: Collection[int] = ()
) -> tuple[dict[str, list[Foreign]], dict[str, list[int]]]:
    """Return two mappings: GPU id → foreign processes, and GPU id → pids of `ours` and of their descendants, unless `paused`.

    Both have only processes with the GPU in their environment. Processes of other users are left out, because their environment is
    not visible.
    """
    sought = {gpu_id: gpu_id.encode() for gpu_id in gpu_ids}
    foreign: dict[str, list[Foreign]] = {}
    own: dict[str, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            content = environment(entry)
        except OSError:
            continue  # another user owns the process, or it has just ended
        if b"_VISIBLE_DEVICES=" not in content or not any(name in content for name in sought.values()):
            continue
        visible = [pair for pair in content.split(b"\0") if pair.startswith(VISIBLE)]
        seen = [gpu_id for gpu_id, name in sought.items() if any(name in pair for pair in visible)]
        owner = owner_of(int(entry), ours) if seen else None
        for gpu_id in seen if owner not in paused else ():
            if owner:
                own.setdefault(gpu_id, []).append(int(entry))
            elif owner == NO_OWNER:
                foreign.setdefault(gpu_id, []).append((int(entry), process_name(int(entry))))
    return {gpu_id: sorted(seeing)[:FOREIGN_MAX] for gpu_id, seeing in foreign.items()}, own


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
