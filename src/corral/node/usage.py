"""Measures the CPU, memory and I/O that runs use. The agent does this only when the server requests it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from corral.model.run import Usage
from corral.node.procfs import host_cpu_s, processes, read_and_written

# The minimum time between two measurements. A rate over a shorter time would be too imprecise.
APART_MIN_S = 1.0


def usage_of(sessions: Mapping[str, int], now_s: float) -> dict[str, Usage]:
    """Return the usage of each run. `sessions` maps a run id to the pid that leads the run's process session.

    A process that has started a session of its own is not counted.
    """
    host_s = host_cpu_s()
    use = {session: Usage(now_s, 0.0, 0.0, host_s, 0, 0, 0, 0) for session in sessions.values()}
    for process in processes() if use else ():
        sofar = use.get(process.session)
        if sofar is None:
            continue
        read, written = read_and_written(process.pid)
        use[process.session] = replace(
            sofar,
            cpu_user_s=sofar.cpu_user_s + process.user_s + process.reaped_user_s,
            cpu_system_s=sofar.cpu_system_s + process.system_s + process.reaped_system_s,
            memory_bytes=sofar.memory_bytes + process.memory_bytes,
            threads=sofar.threads + process.threads,
            read_bytes=sofar.read_bytes + read,
            written_bytes=sofar.written_bytes + written,
        )
    return {run_id: use[session] for run_id, session in sessions.items()}


class UsageHistory:
    """The previous measurements of each run. Clients compute rates from two measurements."""

    def __init__(self) -> None:
        self._last: dict[str, Usage] = {}
        self._before: dict[str, Usage] = {}

    def update(self, now: Mapping[str, Usage], live: Collection[str]) -> dict[str, Usage]:
        """Store the measurements `now`, delete those of runs that are not in `live`, and return the previous measurements."""
        for run_id, usage in now.items():
            last = self._last.get(run_id)
            if last is None or usage.at_s >= last.at_s + APART_MIN_S:
                if last is not None:
                    self._before[run_id] = last
                self._last[run_id] = usage
        for history in (self._last, self._before):
            for run_id in [run_id for run_id in history if run_id not in live]:
                del history[run_id]
        return {run_id: self._before[run_id] for run_id in now if run_id in self._before}
