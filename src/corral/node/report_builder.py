"""What the core has yet to be told, and in which order.

A run that ships logs is over, for the core, only when all it wrote has arrived: whoever sees a task stopped can read
its log. So its end waits here until its output is in the same report or an acknowledged one. Until then it is told as
alive, in `hello` too: what hello names as ended may be forgotten once it is welcomed, and its output with it.

Only a run that left megabytes unshipped is told as ended at once, so that its GPUs do not stay leased for minutes; its
log goes on arriving, and its end is told again, harmlessly, when the last of it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from corral.model.run import Ack, GpuSample, Health, Observed, Report
from corral.node.engine import Known
from corral.node.log_shipper import Shipper

REPORT_MAX_RUNS = 5_000


def still_alive(observed: Observed) -> Observed:
    return replace(observed, stopped_at_s=None, exit_code=None, reason=None)


class Outbox:
    def __init__(self, observe: Callable[[], Mapping[str, Known]], shipper: Shipper) -> None:
        self._observe = observe
        self._shipper = shipper
        self._changed: dict[str, None] = {}
        self._ending: dict[str, None] = {}  # ended, and told as alive until the output is shipped
        self._health: dict[str, Health] = {}  # verdicts on runs that are checked, until their end is told
        self._samples: list[GpuSample] = []
        self._samples_matter = False

    @property
    def urgent(self) -> bool:
        return bool(self._changed) or self._samples_matter

    def changed(self, runs: Iterable[Known]) -> None:
        for run in runs:
            run_id = run.observed.run_id
            self._changed[run_id] = None
            if run.ships_logs:
                self._shipper.follow(run_id, certain=False)
                if not run.alive:
                    self._shipper.ended(run_id)

    def judged(self, run_id: str, verdict: Health) -> None:
        self._health[run_id] = verdict
        self._changed[run_id] = None

    def ordered(self, run_id: str) -> None:
        """A run that ships logs is about to start, for the first time: the core has nothing of it yet."""
        self._shipper.follow(run_id, certain=True)

    def sampled(self, samples: list[GpuSample], *, matter: bool) -> None:
        """Only the latest are kept. They wait for the next report, unless somebody is using a GPU."""
        self._samples = samples
        self._samples_matter = matter and bool(samples)

    def hello(self) -> list[Observed]:
        """Everything, as of a new connection. Ends that wait for their logs come in later reports."""
        self._changed.clear()
        self._ending.clear()
        self._shipper.disconnected()
        runs = []
        for run_id, run in self._observe().items():
            if run.ships_logs:
                self._shipper.follow(run_id, certain=False)
            if run.ships_logs and not run.alive:
                self._ending[run_id] = None
                self._shipper.ended(run_id)
                runs.append(still_alive(run.observed))
            else:
                runs.append(self._with_health(run.observed))
        return runs

    def report(self) -> Report:
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
                runs.append(self._with_health(run.observed))
            elif run_id not in self._ending:
                self._ending[run_id] = None
                far_behind = self._shipper.is_far_behind(run_id)
                runs.append(run.observed if far_behind else still_alive(run.observed))
        samples, self._samples, self._samples_matter = self._samples, [], False
        return Report(runs, logs, samples)

    def acknowledged(self, report: Report, ack: Ack) -> list[str]:
        """The runs that may be forgotten now."""
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
                self._ending[observed.run_id] = None  # the core did not take its last chunk
        return over

    def _with_health(self, observed: Observed) -> Observed:
        verdict = self._health.get(observed.run_id)
        return observed if verdict is None else replace(observed, health=verdict.value)
