"""Decides the steps of a rolling update: CloudFormation's UpdatePolicy replaces the instances of a group in batches.

An obsolete instance was launched before the update. A fresh instance was launched during the update. The surge is the number of
instances that the group may have above its desired capacity while a batch is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from corral.decide.scaling.group_capacity import COUNTED
from corral.decide.templates.stack_plan import duration_s
from corral.model.group import LAUNCH_STATES, GroupMember, LifecycleState
from corral.model.instance import ec2_id
from corral.model.numbers import whole_number

SIGNAL_PAUSE = "PT5M"  # the default PauseTime of a policy that waits for signals
SUCCESS = "SUCCESS"


class RollingPolicy(Struct, frozen=True):
    """AutoScalingRollingUpdate of an UpdatePolicy."""

    batch: int = 1  # MaxBatchSize
    in_service: int = 0  # MinInstancesInService
    pause: str = "PT0S"  # PauseTime
    waits_on_signals: bool = False
    successful_percent: int = 100  # MinSuccessfulInstancesPercent
    suspends: tuple[str, ...] = ()  # SuspendProcesses

    @property
    def pause_s(self) -> float:
        return duration_s(self.pause) or 0.0


class Rollout(Struct, frozen=True):
    obsolete: tuple[str, ...]  # the instances to replace
    desired: int  # the desired capacity of the group after the update
    surge: int = 0
    expected: int = 0  # how many fresh instances the group will have after the current batch
    until_s: float | None = None  # when the wait for the signals of the current batch ends, or the pause after the batch
    judged: tuple[str, ...] = ()  # fresh instances that have signalled, or whose time to signal is over
    failed: tuple[str, ...] = ()  # instances of `judged` without a SUCCESS signal, and `missing-N` for each missing instance
    in_batch: bool = False
    old_first: bool = False  # hosts have no room for the surge: obsolete instances are terminated before fresh ones are launched


class RolloutStep(Struct, frozen=True):
    rollout: Rollout
    notes: tuple[str, ...] = ()
    terminate: tuple[str, ...] = ()  # instances to terminate now
    size: int | None = None  # the new MinSize and DesiredCapacity of the group
    again_s: float | None = None
    is_done: bool = False
    error: str = ""


def rolling_policy(given: Mapping[str, object]) -> RollingPolicy:
    """Read AutoScalingRollingUpdate. Templates may contain numbers and booleans as text."""

    def number(name: str, default: int) -> int:
        found = whole_number(str(given.get(name, default)))
        return default if found is None else found

    waits = str(given.get("WaitOnResourceSignals", False)).lower() == "true"
    suspends = given.get("SuspendProcesses") or ()
    return RollingPolicy(
        batch=max(1, number("MaxBatchSize", 1)),
        in_service=number("MinInstancesInService", 0),
        pause=str(given.get("PauseTime") or (SIGNAL_PAUSE if waits else "PT0S")),
        waits_on_signals=waits,
        successful_percent=number("MinSuccessfulInstancesPercent", 100),
        suspends=tuple(map(str, suspends)) if isinstance(suspends, Sequence) else (),
    )


def start_rollout(policy: RollingPolicy, obsolete: Sequence[str], desired: int, max_size: int, now_s: float) -> RolloutStep:
    """Begin a rolling update. If the policy requires more instances in service than a batch leaves, the group grows first."""
    batch = min(policy.batch, len(obsolete))
    if policy.in_service >= max_size:
        error = (
            "MinInstancesInService must be less than the autoscaling group's MaxSize: "
            f"{policy.in_service} is not less than {max_size}."
        )
        return RolloutStep(Rollout(tuple(obsolete), desired), error=error)
    surge = max(0, min(policy.in_service + batch, max_size) - desired)
    notes = [
        f"Rolling update initiated. Terminating {len(obsolete)} obsolete instance(s) in batches of {batch}, while keeping at least "
        f"{policy.in_service} instance(s) in service."
    ]
    if policy.waits_on_signals:
        notes[0] += (
            f" Waiting on resource signals with a timeout of {policy.pause} when new instances are added to the autoscaling group."
        )
    rollout = Rollout(tuple(obsolete), desired, surge, expected=surge, in_batch=surge > 0, until_s=_until_s(policy, now_s))
    if not surge:
        return RolloutStep(rollout, tuple(notes))
    notes.append(f"Temporarily setting autoscaling group MinSize and DesiredCapacity to {desired + surge}.")
    return RolloutStep(rollout, tuple(notes), size=desired + surge)


def step_rollout(
    policy: RollingPolicy,
    rollout: Rollout,
    members: Sequence[GroupMember],
    waiting: frozenset[str],
    signals: Mapping[str, str],
    now_s: float,
) -> RolloutStep:
    """Return the next step. `waiting` has the instances whose launch waits for GPUs, `signals` the signal of each instance."""
    counted = [member for member in members if member.state in COUNTED or member.state is LifecycleState.STANDBY]
    obsolete = [member for member in counted if member.instance_id in rollout.obsolete]
    fresh = [member for member in counted if member.instance_id not in rollout.obsolete]
    if rollout.in_batch:
        held = _hold(policy, rollout, obsolete, fresh, waiting, signals, now_s)
        if isinstance(held, RolloutStep):
            return held
        rollout = held
    if not obsolete:
        return RolloutStep(rollout, size=rollout.desired if rollout.surge else None, is_done=True)
    return _next_batch(policy, rollout, obsolete, fresh, now_s)


def _hold(
    policy: RollingPolicy,
    rollout: Rollout,
    obsolete: Sequence[GroupMember],
    fresh: Sequence[GroupMember],
    waiting: frozenset[str],
    signals: Mapping[str, str],
    now_s: float,
) -> RolloutStep | Rollout:
    """Return the step of a batch that is not complete. If the batch is complete, return the rollout for the next batch."""
    starting = [member for member in fresh if member.state in LAUNCH_STATES]
    is_over = policy.waits_on_signals and rollout.until_s is not None and now_s >= rollout.until_s
    if (len(fresh) < rollout.expected or starting) and not is_over:
        if rollout.surge and obsolete and any(member.instance_id in waiting for member in starting):
            note = (
                f"This machine has no room for {rollout.surge} more instance(s): obsolete instances are terminated before their "
                "replacements start."
            )
            smaller = replace(rollout, surge=0, expected=0, in_batch=False, old_first=True, until_s=None)
            return RolloutStep(smaller, (note,), size=rollout.desired, again_s=now_s)
        return RolloutStep(rollout, again_s=rollout.until_s if policy.waits_on_signals else None)
    if policy.waits_on_signals:
        new = [member.instance_id for member in fresh if member.instance_id not in rollout.judged]
        if any(each not in signals for each in new) and not is_over:
            return RolloutStep(rollout, again_s=rollout.until_s)
        absent = [f"missing-{number}" for number in range(len(fresh), rollout.expected)]
        failed = [each for each in new if signals.get(each) != SUCCESS] + absent
        rollout = replace(rollout, judged=(*rollout.judged, *new), failed=(*rollout.failed, *failed))
        total = len(rollout.obsolete)
        if len(rollout.failed) * 100 > total * (100 - policy.successful_percent):
            error = (
                f"Received {max(0, len(rollout.judged) - len(rollout.failed))} SUCCESS signal(s) out of {total}. Unable to satisfy "
                f"{policy.successful_percent}% MinSuccessfulInstancesPercent requirement"
            )
            return RolloutStep(rollout, error=error)
    elif policy.pause_s:
        until_s = rollout.until_s if rollout.until_s is not None else now_s + policy.pause_s
        if now_s < until_s:
            return RolloutStep(replace(rollout, until_s=until_s), again_s=until_s)
    return replace(rollout, in_batch=False, until_s=None)


def _next_batch(
    policy: RollingPolicy, rollout: Rollout, obsolete: Sequence[GroupMember], fresh: Sequence[GroupMember], now_s: float
) -> RolloutStep:
    floor = policy.in_service
    if rollout.old_first:
        floor = max(0, min(floor, rollout.desired - policy.batch))
    serving = [member for member in obsolete if member.state is LifecycleState.IN_SERVICE]
    others = [member for member in obsolete if member not in serving]
    room = max(0, len(serving) + sum(member.state is LifecycleState.IN_SERVICE for member in fresh) - floor)
    chosen = [*others, *serving[:room]][: policy.batch]
    if not chosen:
        return RolloutStep(rollout)
    # The surge shrinks when enough fresh instances exist, but not below what the later batches need.
    left = len(obsolete) - len(chosen)
    needed = floor + min(policy.batch, left) - rollout.desired if left else 0
    unreplaced = len(chosen) - min(len(chosen), max(0, rollout.desired - len(fresh)))
    surge = rollout.surge - min(unreplaced, rollout.surge, max(0, rollout.surge - needed))
    replaced = len(chosen) - (rollout.surge - surge)
    # The group launches fewer instances if it still has a surplus, because a surge has just ended.
    replaced = min(replaced, max(0, rollout.desired + surge - (len(obsolete) + len(fresh) - len(chosen))))
    names = ",".join(ec2_id(member.instance_id) for member in chosen)
    percent = ceil(100 * (len(rollout.obsolete) - len(obsolete)) / len(rollout.obsolete))
    after = replace(rollout, surge=surge, expected=len(fresh) + replaced, in_batch=True, until_s=_until_s(policy, now_s))
    return RolloutStep(
        after,
        (f"Terminating instance(s) [{names}]; replacing with {replaced} new instance(s). (Progress {percent}%)",),
        tuple(member.instance_id for member in chosen),
        size=rollout.desired + surge if surge != rollout.surge else None,
    )


def _until_s(policy: RollingPolicy, now_s: float) -> float | None:
    return now_s + policy.pause_s if policy.waits_on_signals else None
