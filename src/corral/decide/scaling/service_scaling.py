"""Decides which desired count a scaling policy of an ECS service wants, and when the policy is applied again.

The rules are those of Application Auto Scaling:

- A scale-out begins a cooldown. During the cooldown, the capacity that the scale-out has added counts as part of the next
  scale-out. So only a larger scale-out changes the desired count.
- A scale-in begins a second cooldown, which blocks the next scale-in. A scale-out is not blocked, and ends this cooldown.
- While an alarm stays in its state, its policy is applied again and again, at most once a minute. The option `--alarm-timing fast`,
  which is the default, differs from AWS: the policy is applied again as soon as its cooldown has ended.
- If something else, for example a user or a stack, sets the desired count while an alarm stays in its state, the policy sets it
  again after the cooldown of its last scale-out. A change of the alarm's state is applied at once.
- A scale-out of target tracking counts only the tasks that ran all the time while the metric was measured. A scale-in counts all
  tasks that ran in this time, including stopped tasks. So the estimate of the load is correct while tasks start or stop.
- A scale-out does not change a desired count above the maximum, and a scale-in does not change one below the minimum.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from corral.decide.scaling.alarm_scaling import REPEAT_S, Rule, Verdict, no_wish, values_of
from corral.decide.scaling.policies import limited
from corral.model.alarm import Progress, ScalingRequest

AT_MAX, AT_MIN, AT_DESIRED = "AlreadyAtMaxCapacity", "AlreadyAtMinCapacity", "AlreadyAtDesiredCapacity"
FLAPPING, UNSCALABLE = "AutoScalingAnticipatedFlapping", "TargetServicePutResourceAsUnscalable"
OUTCOMES = {
    AT_MAX: "The service already has its maximum capacity.",
    AT_MIN: "The service already has its minimum capacity.",
    AT_DESIRED: "The service already has the capacity that the policy wants.",
    FLAPPING: "A smaller capacity would bring the metric back to its target, and the service would scale out again.",
    UNSCALABLE: "A deployment of the service is in progress, and a scale-in waits for its end.",
}
OUT_SUSPENDED = "Dynamic scaling out of the scalable target is suspended."
IN_SUSPENDED = "Dynamic scaling in of the scalable target is suspended."
OUT_COOLDOWN = "The scale-out cooldown has not ended, and the policy wants no larger scale-out."
IN_COOLDOWN = "The scale-in cooldown has not ended."
NOT_MEASURED = "The metric has no value yet for the time after the last change of the capacity."
OTHER_CHANGE = "Something other than a policy has set the desired count, and the policy waits before it sets the count again."


class ServiceCapacity(Struct, frozen=True):
    """The desired count of a service, its limits, and what prevents changes."""

    desired: int
    least: int
    most: int
    running: int  # tasks that run
    stopping: int = 0  # tasks that still run, but are being stopped
    young: int = 0  # running tasks that have started since the beginning of the time that the metric covers
    stopped: int = 0  # tasks that have stopped since the beginning of that time
    mature_s: float | None = None  # if the metric is always up to date: when the oldest young task has run long enough to count
    out_suspended: bool = False
    in_suspended: bool = False
    is_deploying: bool = False

    @property
    def ready(self) -> int:
        """The tasks that shared the load while the metric was measured. A scale-out is added to them.

        If all running tasks are young, at least one of them was measured, because the metric has a value.
        """
        return min(max(self.running - self.young, min(self.running, 1)), self.desired)

    @property
    def present(self) -> int:
        """The capacity from which a scale-in is subtracted. It includes tasks that stop, because the metric includes them."""
        return max(self.running + self.stopping + self.stopped, self.desired)


class Cooldowns(Struct, frozen=True):
    """The cooldowns of a service, which the changes by its scaling policies have begun."""

    out_until_s: float = 0.0  # the end of the cooldown of the last scale-out
    out_base: int = 0  # the capacity before that scale-out
    in_until_s: float = 0.0  # the end of the cooldown of the last scale-in
    changed_s: float = 0.0  # when a policy last changed the desired count
    out_result: int = 0  # the desired count after the last scale-out
    known: int | None = None  # the desired count after the last change that `after` or `noting` has seen; None: not known
    other_until_s: float = 0.0  # until then, no policy is repeated, because something else has set the desired count

    def noting(self, now_s: float, desired: int, *, repeats: bool, least_s: float = REPEAT_S) -> Cooldowns:
        """Return the cooldowns after something other than a policy may have set the desired count.

        `repeats` is whether a policy would be repeated: only repetitions wait, for `least_s`.
        """
        if self.known == desired:
            return self
        waits = repeats and self.known is not None
        return replace(self, known=desired, other_until_s=now_s + least_s if waits else self.other_until_s)

    def after(
        self, now_s: float, capacity: ServiceCapacity, wanted: int, cooldown_s: float, least_s: float = REPEAT_S
    ) -> Cooldowns:
        """Return the cooldowns after a policy has changed the desired count to `wanted`. A cooldown lasts at least `least_s`."""
        until_s = now_s + max(cooldown_s, least_s)
        if wanted > capacity.desired:
            base = self.out_base if now_s < self.out_until_s else capacity.ready
            return Cooldowns(until_s, base, 0.0, now_s, wanted, wanted)
        return Cooldowns(0.0, 0, until_s, now_s, 0, wanted)


def decide_scaling(
    request: ScalingRequest, rule: Rule, capacity: ServiceCapacity, cooldowns: Cooldowns, progress: Progress, now_s: float
) -> Verdict:
    repeats = progress.since_s == request.since_s
    if not repeats:
        progress = Progress(request.since_s)
    elif now_s < cooldowns.other_until_s:
        return Verdict(capacity.desired, progress, cooldowns.other_until_s, OTHER_CHANGE)
    in_cooldown = now_s < cooldowns.out_until_s
    out_base = min(cooldowns.out_base, capacity.ready) if in_cooldown else capacity.ready
    known = [value for value in values_of(request, rule) if value is not None]
    more = max((each for value in known if (each := rule.wanted(out_base, value)) is not None), default=None)
    less = max((each for value in known if (each := rule.wanted(capacity.present, value)) is not None), default=None)
    if more is None or less is None:
        return Verdict(None, progress, None, no_wish(request, rule))
    if rule.exact:
        more = less = limited(more, capacity.least, capacity.most)
        if more == capacity.desired:
            return _unchanged(capacity, progress, AT_DESIRED)
    if more > (capacity.desired if rule.exact else out_base):
        return _decide_out(more, capacity, cooldowns, progress, now_s, in_cooldown, repeats)
    return _decide_in(less, request, rule, capacity, cooldowns, progress, now_s)


def _decide_out(
    more: int, capacity: ServiceCapacity, cooldowns: Cooldowns, progress: Progress, now_s: float, in_cooldown: bool, repeats: bool
) -> Verdict:
    wanted = limited(more, capacity.least, capacity.most)
    if wanted > capacity.desired:
        if capacity.out_suspended:
            return Verdict(capacity.desired, progress, None, OUT_SUSPENDED)
        if in_cooldown and repeats and wanted <= cooldowns.out_result:  # something else has lowered the count since
            return Verdict(capacity.desired, progress, cooldowns.out_until_s, OUT_COOLDOWN)
        return Verdict(wanted, progress, None, "")
    if capacity.desired >= capacity.most:
        return _unchanged(capacity, progress, AT_MAX)
    if in_cooldown:
        return Verdict(capacity.desired, progress, cooldowns.out_until_s, OUT_COOLDOWN)
    # Some tasks do not run yet, or have not run long enough to count. Decide again later: then the metric shows whether more tasks
    # are necessary.
    return Verdict(capacity.desired, progress, now_s + REPEAT_S if capacity.mature_s is None else capacity.mature_s)


def _decide_in(
    less: int,
    request: ScalingRequest,
    rule: Rule,
    capacity: ServiceCapacity,
    cooldowns: Cooldowns,
    progress: Progress,
    now_s: float,
) -> Verdict:
    if capacity.desired <= capacity.least:
        return _unchanged(capacity, progress, AT_MIN)
    wanted = limited(less, capacity.least, capacity.most)
    if wanted >= capacity.desired:
        return _unchanged(capacity, progress, FLAPPING if rule.tracking else AT_DESIRED)
    if not request.whole:
        return Verdict(capacity.desired, progress)
    if capacity.in_suspended:
        return Verdict(capacity.desired, progress, None, IN_SUSPENDED)
    if now_s < cooldowns.in_until_s:
        return Verdict(capacity.desired, progress, cooldowns.in_until_s, IN_COOLDOWN)
    if request.measured_s is not None and request.measured_s < cooldowns.changed_s:
        return Verdict(capacity.desired, progress, None, NOT_MEASURED)  # the next value of the alarm is a new request
    if capacity.is_deploying:
        return Verdict(capacity.desired, progress, now_s + REPEAT_S, OUTCOMES[UNSCALABLE], UNSCALABLE)
    return Verdict(wanted, progress, None, "")


def _unchanged(capacity: ServiceCapacity, progress: Progress, code: str) -> Verdict:
    return Verdict(capacity.desired, progress, None, OUTCOMES[code], code)
