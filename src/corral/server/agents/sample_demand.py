"""Whether somebody needs the samples of GPUs at once: an alarm, a scaling policy or a reader.

If not, joined hosts collect their samples until the next heartbeat (`CollectedSamples`), so that a host whose GPUs are busy costs
the server as little as an idle one.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.core.clock import Clock
from corral.model.metric import GPU_NAMESPACES, Metric

READ_S = 15.0  # for this time after a read, readers of samples are expected to read again


class SampleDemand:
    def __init__(self, clock: Clock, watched: Callable[[], list[Metric]]) -> None:
        """`watched` returns the series that alarms watch. A scaling policy with a target has alarms."""
        self._clock = clock
        self._watched = watched
        self._read_s = -READ_S

    def read(self) -> None:
        """Somebody reads samples. Any thread may call this method."""
        self._read_s = self._clock.now_s()

    def is_urgent(self) -> bool:
        if self._clock.now_s() < self._read_s + READ_S:
            return True
        return any(metric.namespace in GPU_NAMESPACES for metric in self._watched())
