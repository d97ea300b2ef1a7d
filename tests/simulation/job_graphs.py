"""Random graphs of Batch jobs on a virtual clock.

A world has one machine with GPUs, queues with priorities and shares, environments that scale, and random jobs: single jobs, arrays
and multi-node jobs that depend on each other. Tasks fail, instances are lost, users cancel and terminate jobs, commands and commits
fail, and the server restarts between any two transactions. `job_checkers.py` checks each commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from corral.core.commands import Command
from corral.core.core import Core, Outcome
from corral.core.errors import ApiError, api_error
from corral.core.ids import SeededIds
from corral.core.transactions import Reconciler
from corral.fleet import instances, spot_interruptions
from corral.model.instance import InstanceState
from corral.model.job import JobState
from corral.model.run import Observed
from corral.model.task import Task, TaskState
from corral.reconcile import STATE
from corral.services.batch import job_requests, submit
from corral.services.batch.job_progress import BEFORE_START
from corral.services.ecs import host_reports
from simulation.job_checkers import Ended, JobCheckers, Submitted
from simulation.job_setup import GPUS, QUEUES, SHARES, create_resources
from simulation.lanes import SimStore
from store.rows import hello
from virtual_clock.environment_world import DELAY_S, EnvironmentWorld
from virtual_clock.group_world import CALLER
from virtual_clock.job_world import CPU_UNITS, MEMORY_MIB

RULES: tuple[list[dict[str, str]], ...] = (
    [],
    [],
    [{"onExitCode": "1", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}],
    [{"onExitCode": "2", "action": "EXIT"}, {"onReason": "CannotPull*", "action": "EXIT"}],
    [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onExitCode": "*", "action": "EXIT"}],
)
CODES = (0, 0, 0, 0, 0, 0, 1, 2, 137)
TASKS_MAX, LARGE_TASKS_MAX = 90, 150  # jobs of a world that have tasks of their own; more only cost time
SIZES, LARGE_SIZES = (2, 3, 5, 5, 8, 40), (2, 3, 5, 5, 8, 105)  # of arrays; two transactions add the children of the largest
ROUNDS_MAX = 400

Undone = api_error("Undone", 400)


@dataclass(frozen=True)
class JobParts:
    """The parts of a world that a planted fault replaces."""

    store: type[SimStore] = SimStore
    reconcilers: Mapping[str, Reconciler] = field(default_factory=lambda: STATE)
    after_restart: Callable[[Any], None] | None = None  # a command that runs after each restart
    params: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda operation, params: params  # changes requests at the setup


class JobGraphs(EnvironmentWorld):
    """One seed."""

    def __init__(self, seed: int, path: Path, parts: JobParts | None = None) -> None:
        self.rng, self.parts = Random(seed), parts or JobParts()
        self.sizes, self.tasks_max = (LARGE_SIZES, LARGE_TASKS_MAX) if seed % 6 == 5 else (SIZES, TASKS_MAX)
        self.restarts, self.trouble, self.restart_chance = 0, "", 0.0
        self.checkers = JobCheckers(self)
        self.submitted: dict[str, Submitted] = {}
        self.ended: dict[str, Ended] = {}  # task id → what the host reported
        super().__init__(gpus=GPUS, path=path)
        create_resources(self)
        self.checkers.is_on = True
        self.restart_chance = self.rng.choice((0.0, 0.02, 0.1))
        self.is_about_shares = self.rng.random() < 0.3

    # The server

    def start(self) -> None:
        self.store = self.parts.store(self.path, self._trouble)  # type: ignore[assignment, arg-type]
        if not hasattr(self, "seeded"):
            self.seeded = SeededIds(self.rng)
        self.core = Core(self.store, settings=self.settings, clock=self.clock, ids=self.seeded, reconcilers=self.parts.reconcilers)

    def _trouble(self) -> str | None:
        trouble, self.trouble = self.trouble, ""
        return trouble

    def restart(self) -> None:
        super().restart()
        self.restarts += 1
        if self.parts.after_restart is not None:
            self.core.transact([Command(self.parts.after_restart, lambda answer: None)])

    def transact(self, commands: Sequence[Command]) -> Outcome:
        fails = bool(self.trouble)
        outcome = self.core.transact(commands)
        assert fails or not outcome.faults, outcome.faults[0]
        self.checkers.after_commit()
        if self.rng.random() < self.restart_chance:
            self.restart()
        return outcome

    def run(self, handler: Any) -> Any:
        command = Command(handler, lambda answer: None)
        answer = next(answer for each, answer in self.transact([command]).answers if each is command)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def check_derived(self) -> None:
        """The checkers do this less often."""

    # Users

    def submit_random(self) -> None:
        rng = self.rng
        budget = self.tasks_max - sum(each.size or 1 for each in self.submitted.values())
        if budget <= 0:
            return
        queue = "fair" if self.is_about_shares and rng.random() < 0.7 else rng.choice(list(QUEUES))
        size = min(budget, rng.choice(self.sizes)) if rng.random() < 0.4 else 0
        size = 0 if size < 2 else size
        definition, gpus, nodes = rng.choice((("one", 1, 0), ("one", 1, 0), ("two", 2, 0), ("cpu", 0, 0), ("licensed", 1, 0)))
        if not size and rng.random() < 0.25:
            definition, gpus, nodes = rng.choice((("all", GPUS, 0), ("nodes", 1, 3)))
        if (queue == "grow" and gpus > 1) or (queue == "fair" and self.is_about_shares):
            definition, gpus, nodes = "one", 1, 0
        params: dict[str, Any] = {"jobName": "job", "jobQueue": queue, "jobDefinition": definition}
        needs = self._needs(size)
        if queue == "fair" and self.is_about_shares:
            size, needs = min(budget, 20), []  # so the shares compete for the GPUs
            size = 0 if size < 2 else size
        if size:
            params["arrayProperties"] = {"size": size}
            if rng.random() < 0.3:
                needs.append(("", "SEQUENTIAL"))
        if needs:
            params["dependsOn"] = [{"jobId": job_id, "type": type_} if job_id and type_ else {"jobId": job_id} if job_id
                                   else {"type": type_} for job_id, type_ in needs]  # fmt: skip
        attempts, rules = rng.randint(1, 3), rng.choice(RULES)
        params["retryStrategy"] = {"attempts": attempts, **({"evaluateOnExit": rules} if rules else {})}
        timeout_s = rng.choice((None, None, 60))
        if timeout_s is not None:
            params["timeout"] = {"attemptDurationSeconds": timeout_s}
        share = rng.choice(list(SHARES)) if queue == "fair" else ""
        if share:
            params["shareIdentifier"] = share
        number, before = len(self.submitted), dict(self.submitted)

        def handler(tx: Any, params: dict[str, Any], caller: Any) -> Any:
            made = submit.submit_job(tx, params, caller)
            self.submitted[made["jobId"]] = Submitted(
                made["jobId"], number, queue, share, definition, gpus, size, nodes, needs, attempts, rules, timeout_s
            )
            return made

        if self._call(handler, params) is None:
            self.submitted = before

    def _needs(self, size: int) -> list[tuple[str, str]]:
        rng, found = self.rng, dict[str, str]()
        known = list(self.submitted.values())[-8:]
        same = [each for each in known if size and each.size == size]
        for needed in rng.sample(known, min(len(known), rng.choice((0, 0, 1, 1, 2)))):
            child = f":{rng.randrange(needed.size)}" if needed.size and rng.random() < 0.4 else ""
            found[needed.id + child] = ""
        if same and rng.random() < 0.7:
            found[rng.choice(same).id] = "N_TO_N"
        return list(found.items())

    def stop_random(self) -> None:
        """Cancel or terminate a job, a child or a node."""
        rng = self.rng
        living = [each for each in self.submitted.values() if not self.job(each.id).has_ended]
        if not living:
            return
        chosen = rng.choice(living)
        job_id, parent = chosen.id, chosen.id
        if (chosen.size or chosen.nodes) and rng.random() < 0.5:
            job_id += f":{rng.randrange(chosen.size)}" if chosen.size else f"#{rng.randrange(chosen.nodes)}"
        before = self.job(job_id if chosen.size else parent)
        handler = rng.choice((job_requests.cancel_job, job_requests.terminate_job))
        stopped = job_id if chosen.size else parent
        known = stopped in self.checkers.excused
        self.checkers.excused.add(stopped)
        done = self._call(handler, {"jobId": job_id, "reason": "a user has stopped it"}) is not None
        if done and (handler is job_requests.terminate_job or before.state in BEFORE_START):
            self.checkers.stop(stopped)
        elif not known:
            self.checkers.excused.discard(stopped)

    def _call(self, handler: Any, params: dict[str, Any]) -> Any:
        """Call an operation. Some commands are undone after they have written, some commits fail, and some commands fail later."""
        way = self.rng.random()
        self.trouble = "disk full" if way < 0.06 else ""
        try:
            return self.run(partial(_then_fail, handler, params) if way > 0.9 else lambda tx: handler(tx, params, CALLER))
        except ApiError as error:
            if self.trouble or way < 0.06 or way > 0.9:
                self.trouble = ""
                return None
            raise AssertionError(f"refused: {error}") from error

    # Hosts

    def live_tasks(self) -> list[Task]:
        rows = self.store.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING') ORDER BY rowid").fetchall()
        return [task for (task_id,) in rows if (task := self.store.tasks.get(task_id)) is not None]

    def start_tasks(self) -> None:
        waiting = [task for task in self.live_tasks() if task.state is TaskState.PENDING]
        self._report(self.rng.sample(waiting, self.rng.randint(0, len(waiting))))

    def end_tasks(self, part: float = 1.0) -> None:
        """The host reports the end of some tasks: of those that it was ordered to stop, and of some others."""
        live = self.live_tasks()
        chosen = [task for task in live if task.desired is TaskState.STOPPED or self.rng.random() < part * 0.5]
        now_s, runs = self.clock.now_s(), list[Observed]()
        for task in chosen:
            starts = task.state is TaskState.RUNNING or self.rng.random() < 0.9
            code = self.rng.choice(CODES) if starts else None
            reason = None if starts else "CannotPullContainerError: no such image"
            started_s = (task.started_at_s or now_s) if starts else None
            self.ended[task.id] = Ended(code, reason, task.desired is TaskState.STOPPED)
            runs += [Observed(run.attempt_id, 1 if starts else None, started_s, now_s, code, reason) for run in task.runs]
        if runs:
            self._reported(runs)

    def _report(self, tasks: Sequence[Task]) -> None:
        now_s = self.clock.now_s()
        if tasks:
            self._reported([Observed(run.attempt_id, 1, now_s, None, None) for task in tasks for run in task.runs])

    def _reported(self, runs: list[Observed]) -> None:
        self.run(lambda tx: host_reports.report(tx, "h", runs))

    def reboot(self) -> None:
        """The host restarts: the programs of all tasks are gone."""
        self.restarts += 1
        boot = f"boot-{self.restarts}"
        self.run(lambda tx: host_reports.hello(tx, hello("h", GPUS, boot_id=boot, cpu_units=CPU_UNITS, memory_mib=MEMORY_MIB)))
        self.run(lambda tx: tx.store.execute("UPDATE host SET seen_at = 1e12") and None)

    def lose_instance(self) -> None:
        """Terminate an instance as a user would, or interrupt a spot instance."""
        running = self.instances_of(InstanceState.RUNNING)
        owned = [each for each in running if not self.store.instances.by_ec2_id(each).is_host]  # type: ignore[union-attr]
        if not owned:
            return
        chosen = self.rng.choice(owned)
        found = self.store.instances.by_ec2_id(chosen)
        if found is not None and found.details.get("InstanceLifecycle") == "spot" and self.rng.random() < 0.7:
            self.run(lambda tx: spot_interruptions.interrupt(tx, chosen, self.rng.choice((0.0, 20.0))) and None)
        else:
            self.run(lambda tx: instances.terminate(tx, tx.store.instances.by_ec2_id(chosen), "a test"))

    def toggle(self) -> None:
        """Disable or enable an environment that scales."""
        name = self.rng.choice(("grow", "spot"))
        state = self.rng.choice(("ENABLED", "DISABLED"))
        self.update(name, state=state)

    # The run of a seed

    def simulate(self, steps: int = 90) -> None:
        choices: list[tuple[Callable[[], Any], int]] = [
            (self.submit_random, 10), (self.start_tasks, 9), (self.end_tasks, 12), (self.stop_random, 3), (self.restart, 1),
            (self.lose_instance, 2), (self.toggle, 1), (lambda: self.wait(self.rng.choice((0.5, 5, 30, 61))), 4), (self.reboot, 1),
        ]  # fmt: skip
        actions, weights = [each for each, _ in choices], [weight for _, weight in choices]
        for _ in range(steps):
            self.rng.choices(actions, weights)[0]()
            if self.rng.random() < 0.6:
                self.settle()
                self.checkers.when_quiet()
        self.finish_all()

    def finish_all(self) -> None:
        """Let everything end: no user acts, and no instance is lost. All jobs must end."""
        for name in ("grow", "spot"):
            self.update(name, state="ENABLED")
        for _ in range(ROUNDS_MAX):
            self.settle()
            self.checkers.when_quiet()
            if all(self.state(job_id) in (JobState.SUCCEEDED, JobState.FAILED) for job_id in self.submitted):
                break
            self.start_tasks()
            self.end_tasks(2.0)
            self.clock.advance(self.rng.random() * 5)
        self.wait(4 * DELAY_S)
        self.end_tasks()  # tasks of attempts that have ended
        self.settle()
        self.checkers.at_the_end()


def _then_fail(handler: Any, params: dict[str, Any], tx: Any) -> None:
    """Execute a request, and fail after its writes: all of them are undone."""
    handler(tx, params, CALLER)
    raise Undone("fails after its writes")
