"""Random graphs of Batch jobs: arrays, dependencies, failures, retries, cancellations and restarts of the server."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from corral.model.job import DEPENDENCY_FAILED, ENDED, Job, JobKind, JobState
from corral.model.task import TaskState
from groups.job_graph_world import JobGraphWorld, Needs

STEPS = 50
SIZES = (2, 3, 105)  # the largest needs two transactions


class RandomJobs:
    def __init__(self, seed: int, path: Path) -> None:
        self.rng = Random(seed)
        self.world = JobGraphWorld(gpus=4, path=path)
        self.jobs: list[str] = []

    def step(self) -> None:
        choices = [
            (self.submit, 5), (self.start_task, 4), (self.end_task, 8), (self.stop, 2), (self.world.restart, 1),
            (self.world.step, 4), (self.world.stop_ordered, 1), (lambda: self.world.wait(self.rng.choice((1, 30, 61))), 1),
        ]  # fmt: skip
        action = self.rng.choices([each for each, _ in choices], [weight for _, weight in choices])[0]
        action()
        if self.rng.random() < 0.5:
            self.world.launch()
        if self.rng.random() < 0.4:
            self.check()

    def submit(self) -> None:
        size = self.rng.choice(SIZES) if self.rng.random() < 0.4 else 0
        nodes = self.rng.randint(2, 4) if not size and self.rng.random() < 0.15 else 0
        needs: dict[str, str] = {}
        for needed in self.rng.sample(self.jobs, min(len(self.jobs), self.rng.choice((0, 0, 1, 2)))):
            job = self.world.job(needed)
            same = size and job.kind is JobKind.ARRAY and job.size == size
            child = f":{self.rng.randrange(job.size)}" if job.kind is JobKind.ARRAY and self.rng.random() < 0.3 else ""
            needs[needed if same else needed + child] = "N_TO_N" if same else ""
        chosen: Needs = tuple(needs.items())
        if size and self.rng.random() < 0.3:
            chosen = (*chosen, ("", "SEQUENTIAL"))
        timeout_s = self.rng.choice((None, 60))
        attempts = self.rng.randint(1, 3)
        self.jobs.append(self.world.add(size=size, nodes=nodes, needs=chosen, attempts=attempts, timeout_s=timeout_s))

    def start_task(self) -> None:
        waiting = [task for task in self.world.live_tasks() if task.state is TaskState.PENDING]
        if waiting:
            self.world.observe(self.rng.choice(waiting))

    def end_task(self) -> None:
        live = self.world.live_tasks()
        if live:
            task = self.rng.choice(live)
            starts = task.state is TaskState.RUNNING or self.rng.random() < 0.8
            code = self.rng.choice((0, 0, 0, 1)) if starts else None
            self.world.observe(task, code, None if starts else "CannotPullContainerError", ended=True, starts=starts)

    def stop(self) -> None:
        if self.jobs:
            job = self.world.job(self.rng.choice(self.jobs))
            job_id = job.id
            if job.kind is JobKind.ARRAY and self.rng.random() < 0.5:
                job_id = f"{job_id}:{self.rng.randrange(job.size)}"
            self.rng.choice((self.world.cancel, self.world.terminate))(job_id)

    def finish(self) -> None:
        """Let all tasks succeed, until nothing runs."""
        for _ in range(2000):
            self.world.settle()
            self.world.launch()
            live = self.world.live_tasks()
            if not live:
                break
            for task in live:
                self.world.observe(task, 137 if task.desired is TaskState.STOPPED else 0, ended=True)
        self.world.settle()
        self.check()

    # What must always hold

    def check(self) -> None:
        self.world.check_summaries()
        started: dict[str, list[tuple[str, str]]] = {}
        for started_by, task_id, state in self.world.store.execute("SELECT started_by, id, state FROM task").fetchall():
            started.setdefault(started_by.removeprefix("batch:"), []).append((task_id, state))
        for job_id in self.jobs:
            job = self.world.job(job_id)
            for each in [job, *(self.world.children(job_id) if job.size else ())]:
                self.check_job(job, each, started.get(each.id, []))

    def check_job(self, parent: Job, job: Job, tasks: list[tuple[str, str]]) -> None:
        has_tasks = job.kind in (JobKind.SINGLE, JobKind.CHILD)
        if has_tasks:
            current = [job.task_id] if job.state in (JobState.STARTING, JobState.RUNNING) else []
            expected = [attempt.task_id for attempt in job.attempts] + current
            assert sorted(expected) == sorted(task_id for task_id, _ in tasks), f"{job.id}: one task for each attempt"
            assert [task_id for task_id, state in tasks if state != "STOPPED"] == current, f"{job.id}: a task too many"
        assert len(job.attempts) <= job.spec.attempts_max
        assert job.state is not JobState.FAILED or job.status_reason, f"{job.id} failed without a reason"
        if job.kind is JobKind.NODE:
            return
        needed = self.needed(parent, job)
        if job.state not in (JobState.SUBMITTED, JobState.PENDING, JobState.FAILED):
            assert all(self.world.state(each) == "SUCCEEDED" for each in needed), f"{job.id} did not wait"
        if job.status_reason == DEPENDENCY_FAILED and job.kind is not JobKind.CHILD:
            assert any(self.world.state(each) == "FAILED" for each in needed), f"{job.id}: no dependency failed"

    @staticmethod
    def needed(parent: Job, job: Job) -> list[str]:
        """The jobs that must succeed before this job starts. An array starts with its first child."""
        if job.kind is JobKind.ARRAY and job.state is not JobState.FAILED:
            return []
        needed = [each.job_id for each in parent.depends_on if not each.type]
        if job.index is not None and job.kind is JobKind.CHILD:
            needed += [f"{each.job_id}:{job.index}" for each in parent.depends_on if each.type == "N_TO_N"]
            if job.index and any(each.type == "SEQUENTIAL" for each in parent.depends_on):
                needed.append(f"{parent.id}:{job.index - 1}")
        return needed


@pytest.mark.parametrize("seed", range(3))
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    jobs = RandomJobs(seed, tmp_path / "state.db")
    for _ in range(STEPS):
        jobs.step()
    jobs.finish()
    for job_id in jobs.jobs:
        assert jobs.world.job(job_id).state in ENDED, f"{job_id} never ends"
    assert jobs.world.store.execute("SELECT count(*) FROM job_notice").fetchone() == (0,)
    assert jobs.world.store.execute("SELECT count(*) FROM job_dependency").fetchone() == (0,)
