"""Build the agent's reports to the core. A report contains changed runs, log chunks and GPU samples.

The first message on a connection is the hello of the agent, which lists all runs. The core acknowledges it with a welcome.

When a client sees that a task has stopped, the client must be able to read the whole log of the task. So the end of a run with logs
is reported only when all of its output is in the same report or in an acknowledged report. Until then the run is reported as alive.
This also applies to the hello: after the welcome, the agent forgets the runs that the hello reported as ended, and deletes their
output.

There is one exception. If more than `BACKLOG_MAX_BYTES` of output are not shipped yet, the end of the run is reported at once, so
that its GPUs become free. The same report says how many bytes the run has printed, so the core and its clients know that the log is
not complete. The log is shipped afterwards. When the log is complete, the end is reported a second time, which has no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from corral.model.agent_protocol import Ack, CollectedSamples, Report
from corral.model.gpu_metrics import GpuSample
from corral.model.run import Health, Observed, RunPause
from corral.node.engine import Known
from corral.node.log_shipper import LogShipper

REPORT_MAX_RUNS = 5_000
COLLECTED_MAX = 10  # samples of each GPU that wait for a report; if the core does not answer, older ones are dropped


def still_alive(observed: Observed) -> Observed:
    return replace(observed, stopped_at_s=None, exit_code=None, reason=None)


class ReportBuilder:
    def __init__(
        self, observe: Callable[[], Mapping[str, Known]], shipper: LogShipper, pauses: Mapping[str, RunPause] | None = None
    ) -> None:
        """`pauses` is run id → the answer of this host to the last order to pause or continue the run."""
        self._observe = observe
        self._pauses: Mapping[str, RunPause] = {} if pauses is None else pauses
        self._shipper = shipper
        self._changed: dict[str, None] = {}
        self._ending: dict[str, None] = {}  # ids of ended runs whose end is reported when all of their output is shipped
        self._health: dict[str, Health] = {}  # run id → result of its health check, until the end of the run is reported
        self._samples: deque[tuple[float, list[GpuSample]]] = deque(maxlen=COLLECTED_MAX)  # (time, samples), oldest first
        self._samples_matter = False
        self._faults: Mapping[str, str] | None = None  # GPU id → fault; None: not changed since the last report

    @property
    def urgent(self) -> bool:
        return bool(self._changed) or self._samples_matter or self._faults is not None

    def changed(self, runs: Iterable[Known]) -> None:
        for run in runs:
            run_id = run.observed.run_id
            self._changed[run_id] = None
            if run.ships_logs:
                self._shipper.follow(run_id, certain=False)
                if not run.alive:
                    self._shipper.ended(run_id)

    def on_verdict(self, run_id: str, verdict: Health) -> None:
        self._health[run_id] = verdict
        self._changed[run_id] = None

    def on_pause(self, run_id: str) -> None:
        """Report a run, because there is an answer to an order to pause or continue it."""
        self._changed[run_id] = None

    def ordered(self, run_id: str) -> None:
        """Record that a run with logs is about to start. The core has stored none of its output yet."""
        self._shipper.follow(run_id, certain=True)

    def sampled(self, samples: list[GpuSample], at_s: float, *, matter: bool) -> None:
        """Add samples to the next report. `matter` means that it must be sent now, because the use of a GPU may have changed."""
        if samples:
            self._samples.append((at_s, samples))
            self._samples_matter = self._samples_matter or matter

    def faults_changed(self, faults: Mapping[str, str]) -> None:
        self._faults = faults

    def hello(self) -> list[Observed]:
        """Return all runs for a new connection.

        An ended run with logs is listed as alive. Its end follows in the next report, or when its log is complete.
        """
        self._changed.clear()
        self._ending.clear()
        self._shipper.disconnected()
        runs = []
        for run_id, run in self._observe().items():
            if run.ships_logs:
                self._shipper.follow(run_id, certain=False)
            if run.ships_logs and not run.alive:
                self._changed[run_id] = None
                self._shipper.ended(run_id)
                runs.append(self._with_pause(still_alive(run.observed)))
            else:
                runs.append(self._complete(run.observed))
        return runs

    def report(self, now_s: float) -> Report:
        """Return what has changed since the last report. `now_s` is a time of the same clock as that of `sampled`."""
        known = self._observe()
        logs = self._shipper.chunks()
        runs = []
        for run_id in [run_id for run_id in self._ending if self._shipper.is_done(run_id)]:
            del self._ending[run_id]
            if run_id in known:
                runs.append(known[run_id].observed)
        for run_id in list(self._changed)[:REPORT_MAX_RUNS]:
            del self._changed[run_id]
            run = known.get(run_id)
            if run is None:
                continue
            if run.alive or not run.ships_logs or self._shipper.is_done(run_id):
                runs.append(self._complete(run.observed))
            elif run_id not in self._ending:
                self._ending[run_id] = None
                far_behind = self._shipper.is_far_behind(run_id)
                runs.append(run.observed if far_behind else self._with_pause(still_alive(run.observed)))
                if far_behind and not any(chunk.run_id == run_id for chunk in logs):
                    logs.append(self._shipper.announcement(run_id))
        *earlier, (_, samples) = self._samples or [(now_s, [])]
        collected = [CollectedSamples(now_s - at_s, gpus) for at_s, gpus in earlier]
        self._samples.clear()
        self._samples_matter = False
        faults, self._faults = self._faults, None
        return Report(runs, logs, samples, faults=None if faults is None else dict(faults), earlier=collected)

    def acknowledged(self, report: Report, ack: Ack) -> list[str]:
        """Process an acknowledgement. Return the runs that can be forgotten now."""
        self._shipper.acknowledged(report.logs, ack.shipped)
        over = []
        for observed in report.runs:
            if observed.stopped_at_s is None:
                continue
            self._health.pop(observed.run_id, None)
            if self._shipper.is_done(observed.run_id):
                self._shipper.forget(observed.run_id)
                over.append(observed.run_id)
            else:
                self._ending[observed.run_id] = None  # report the end again when the core has stored all output
        return over

    def _complete(self, observed: Observed) -> Observed:
        """Add what the engine does not know: the health, and the pause."""
        verdict = self._health.get(observed.run_id)
        return self._with_pause(observed if verdict is None else replace(observed, health=verdict.value))

    def _with_pause(self, observed: Observed) -> Observed:
        pause = self._pauses.get(observed.run_id)
        return observed if pause is None or observed.stopped_at_s is not None else replace(observed, pause=pause)
