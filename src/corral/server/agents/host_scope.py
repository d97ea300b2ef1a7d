"""What the agent of a joined host may report about: the runs that are placed on its host, and the GPUs of its host.

The certificate proves which host it is. Whatever else it reports is dropped, so that no host can write to the logs of another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TypedDict

import msgspec
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.model.agent_protocol import Hello, Report
from corral.model.gpu_metrics import GpuSample
from corral.model.run import Observed, RunPause
from corral.server.lanes import Lane
from corral.services.ecs import host_reports
from corral.store import Store

REASON_MAX = 4096  # characters of the reason why a run has ended, or was not paused
PAUSE_MAX_S = 86_400.0  # how long a pause takes at most
PAUSED_MAX_BYTES = 2**50  # the memory of GPUs that a pause moves at most
RUNS_KNOWN_MAX = 20_000  # of older runs, the store is asked again


class About(TypedDict, total=False):
    """The facts about a container that a host reports, under the names of ECS (`node/docker_engine.py`)."""

    runtimeId: str
    imageDigest: str
    networkBindings: list[dict[str, str | int]]
    privateIpv4Address: str
    macAddress: str
    pullStartedAt: float
    pullStoppedAt: float


def checked(run: Observed) -> Observed:
    """Return what a host reports about a run in the form in which responses show it."""
    about = run.about
    if about is not None:
        try:
            about = dict(msgspec.convert(about, About))
        except msgspec.ValidationError:
            about = None
    pause = _checked_pause(run.pause) if run.pause is not None else None
    return replace(run, reason=run.reason and run.reason[:REASON_MAX], about=about, pause=pause)


def _checked_pause(pause: RunPause) -> RunPause:
    return replace(
        pause,
        why_not=pause.why_not[:REASON_MAX],
        moved_bytes=min(max(pause.moved_bytes, 0), PAUSED_MAX_BYTES),
        took_s=min(max(pause.took_s, 0.0), PAUSE_MAX_S),
    )


class HostScope:
    def __init__(self, state: Lane[Store], host_id: str) -> None:
        self._state = state
        self._host_id = host_id
        self._runs: dict[str, None] = {}  # ids of runs that are placed on the host, oldest first
        self._gpus: frozenset[str] = frozenset()
        self.gpus_elsewhere: dict[str, str] = {}  # GPUs that the host reports, and that another host has → its name

    async def begin(self, hello: Hello, address: str) -> None:
        """Store from where the host has connected. Call this after the hello was committed."""
        runs, gpus, self.gpus_elsewhere = await self._state.submit(partial(self._store_hello, hello=hello, address=address))
        self._add(runs)
        self._gpus = gpus

    def ordered(self, run_ids: Iterable[str]) -> None:
        """The host was ordered to start these runs."""
        self._add(run_ids)

    async def own_runs(self, runs: list[Observed]) -> list[Observed]:
        await self._ask(run.run_id for run in runs)
        return [run for run in runs if run.run_id in self._runs]

    async def limit(self, report: Report) -> Report:
        """Return the report without what it says about runs and GPUs of other hosts."""
        await self._ask([*(chunk.run_id for chunk in report.logs), *(run.run_id for run in report.runs)])
        logs = [chunk for chunk in report.logs if chunk.run_id in self._runs]
        earlier = [replace(each, gpus=self._own_gpus(each.gpus)) for each in report.earlier]
        runs = [checked(run) for run in report.runs]
        return replace(report, runs=runs, logs=logs, gpus=self._own_gpus(report.gpus), earlier=earlier)

    def _own_gpus(self, samples: list[GpuSample]) -> list[GpuSample]:
        return [self._own_parts(sample) for sample in samples if sample.gpu_id in self._gpus]

    def _own_parts(self, sample: GpuSample) -> GpuSample:
        if not sample.parts:
            return sample
        return replace(sample, parts={run_id: part for run_id, part in sample.parts.items() if run_id in self._runs})

    async def _ask(self, run_ids: Iterable[str]) -> None:
        unknown = [run_id for run_id in run_ids if run_id not in self._runs]
        if unknown:
            self._add(await self._state.submit(partial(host_reports.placed_on, host_id=self._host_id, run_ids=unknown)))

    def _add(self, run_ids: Iterable[str]) -> None:
        self._runs.update(dict.fromkeys(run_ids))
        while len(self._runs) > RUNS_KNOWN_MAX:
            del self._runs[next(iter(self._runs))]

    def _store_hello(self, tx: Tx[Store], hello: Hello, address: str) -> tuple[list[str], frozenset[str], dict[str, str]]:
        from corral.services.corral import joining  # imported here, because most servers have one machine

        joining.connected(tx, self._host_id, address, hello.version)
        gpus = [*tx.store.hosts.gpus(self._host_id), *tx.store.hosts.gpus(self._host_id, excluded=True)]
        runs = host_reports.placed_on(tx, self._host_id, [run.run_id for run in hello.runs])
        elsewhere = tx.store.hosts.gpus_elsewhere([gpu.gpu_id for gpu in hello.gpus], self._host_id)
        names = {host["id"]: str(host["name"]) for host in tx.store.hosts.all()} if elsewhere else {}
        return runs, frozenset(gpu.gpu_id for gpu in gpus), {gpu_id: names[owner] for gpu_id, owner in elsewhere.items()}
