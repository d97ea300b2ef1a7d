"""Estimates when the steps of an execution of a pipeline end. These functions are pure: they call no service.

The estimate of a step uses the mean time of its children that have succeeded in this execution. If none has succeeded, it uses the
times of the step in an earlier execution of the same pipeline. If there is no earlier execution, there is no estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from corral.cli.pipelines.state import Execution, StepState


class StepTimes(NamedTuple):
    """Times of a step in an earlier execution, in seconds: from its first start to its last end, and the mean of its children."""

    wall_s: float
    mean_s: float


def with_estimates(state: Execution, now_s: float, means: Mapping[str, float], earlier: Mapping[str, StepTimes]) -> Execution:
    """Return the state with the estimates `ends_in_s` of the steps and of the execution: the seconds from now to the end.

    `means` has the mean time of the succeeded children of each step in this execution. `earlier` has the times of an earlier one.
    """
    ends: dict[str, float | None] = {}
    for step in state.steps:
        own = _remaining_s(step, now_s, means.get(step.name), earlier.get(step.name))
        before = [0.0] if step.ended or step.counts.running else [ends[name] for name in step.after]
        known = [each for each in before if each is not None]
        ends[step.name] = None if own is None or len(known) < len(before) else max(known, default=0.0) + own
    steps = tuple(step._replace(ends_in_s=None if step.ended else ends[step.name]) for step in state.steps)
    open_steps = [step for step in steps if not step.ended]
    known = [step.ends_in_s for step in open_steps if step.ends_in_s is not None]
    whole = max(known) if known and len(known) == len(open_steps) and not state.ended else None
    return state._replace(steps=steps, ends_in_s=whole)


def _remaining_s(step: StepState, now_s: float, mean_s: float | None, earlier: StepTimes | None) -> float | None:
    """Return the seconds until the step ends, or None if there is no estimate.

    If the step has not started, count from the end of the steps before it.
    """
    if step.ended:
        return 0.0
    mean_s = mean_s if mean_s is not None else earlier.mean_s if earlier is not None else None
    if step.counts.running and mean_s is not None:
        if step.counts.total == 1:
            return max(0.0, mean_s - (now_s - (step.started_s or now_s)))
        # On average, a running child has half of its time left. When a running child ends, a waiting child starts.
        return (step.counts.running / 2 + step.counts.waiting) * mean_s / step.counts.running
    return earlier.wall_s if earlier is not None else None
