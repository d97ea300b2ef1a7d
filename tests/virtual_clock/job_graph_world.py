"""Batch jobs on a virtual clock whose tasks start, run and end as the test says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from corral.model.job import ENDED, ExitRule, Job, JobKind
from corral.model.run import Observed
from corral.model.task import Task, TaskState
from corral.services.batch import job_definitions, job_requests, submit, waiting_jobs
from corral.services.ecs import host_reports
from corral.store.jobs import Jobs
from virtual_clock.group_world import REGION
from virtual_clock.job_world import JobWorld

Needs = tuple[tuple[str, str], ...]


class JobGraphWorld(JobWorld):
    """Each job needs one GPU. Its compute environment is disabled: jobs start only when the test calls `launch`."""

    def __init__(self, gpus: int = 8, **more: Any) -> None:
        super().__init__(gpus, **more)
        self.host_reports_until(1e12)
        self.environment("here", state="DISABLED")
        self.queue("work")

    def launch(self) -> None:
        """Launch the jobs for which there is room."""
        for state in ("ENABLED", "DISABLED"):
            self.environment("here", state=state)
            self.run(lambda tx: waiting_jobs.refresh_queue(tx, REGION, "work"))

    def add(
        self, name: str = "job", *, size: int = 0, needs: Needs = (), nodes: int = 0, attempts: int = 1,
        rules: tuple[ExitRule, ...] = (), timeout_s: int | None = None, queue: str = "work", **more: Any,
    ) -> str:  # fmt: skip
        """Submit a job. `needs` has (job id, type) pairs. Later transactions do the rest of the work."""
        params: dict[str, Any] = {
            "jobName": name,
            "jobQueue": queue,
            "jobDefinition": self._nodes(nodes) if nodes else "one",
            **more,
        }
        members = {"jobId": 0, "type": 1}
        params["dependsOn"] = [{member: each[at] for member, at in members.items() if each[at]} for each in needs]
        if size:
            params["arrayProperties"] = {"size": size}
        exits = [_exit(rule) for rule in rules]
        params["retryStrategy"] = {"attempts": attempts, **({"evaluateOnExit": exits} if exits else {})}
        if timeout_s is not None:
            params["timeout"] = {"attemptDurationSeconds": timeout_s}
        return str(self.batch_call(submit.submit_job, **params)["jobId"])

    def _nodes(self, nodes: int) -> str:
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}, {"type": "GPU", "value": "1"}]
        container = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
        ranges = [{"targetNodes": f"0:{nodes - 1}", "container": container}]
        properties = {"numNodes": nodes, "mainNode": 0, "nodeRangeProperties": ranges}
        name = f"nodes-{nodes}"
        if self.store.job_definitions.get(REGION, name, None) is None:
            self.batch_call(
                job_definitions.register_job_definition, jobDefinitionName=name, type="multinode", nodeProperties=properties
            )
        return name

    def cancel(self, job_id: str, reason: str = "cancelled by a test") -> None:
        self.batch_call(job_requests.cancel_job, jobId=job_id, reason=reason)

    def terminate(self, job_id: str, reason: str = "terminated by a test") -> None:
        self.batch_call(job_requests.terminate_job, jobId=job_id, reason=reason)

    def step(self) -> None:
        """Run the next transaction that is due within milliseconds."""
        due_s = self.store.next_due_s()
        if due_s is not None and due_s <= self.clock.now_s() + 0.005:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
            self.transact([])

    # What the host does

    def live_tasks(self) -> list[Task]:
        rows = self.store.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING') ORDER BY rowid").fetchall()
        return [task for (task_id,) in rows if (task := self.store.tasks.get(task_id)) is not None]

    def task_of(self, job_id: str) -> Task:
        task = self.store.tasks.get(self.job(job_id).task_id)
        assert task is not None, f"{job_id} has no task"
        return task

    def starts(self, job_id: str) -> None:
        """The host reports that the task of a job runs."""
        self.observe(self.task_of(job_id))

    def ends(self, job_id: str, exit_code: int | None = 0, reason: str | None = None, *, starts: bool = True) -> None:
        """The host reports that the task of a job has ended. Without a start, the task could not start."""
        self.observe(self.task_of(job_id), exit_code, reason, ended=True, starts=starts)

    def observe(
        self, task: Task, exit_code: int | None = None, reason: str | None = None, *, ended: bool = False, starts: bool = True
    ) -> None:
        now_s = self.clock.wall_s()
        started_s = (task.started_at_s or now_s) if starts else None
        runs = [
            Observed(
                run.attempt_id, 1 if starts else None, started_s, now_s if ended else None, exit_code if ended else None, reason
            )
            for run in task.runs
        ]
        self.run(lambda tx: host_reports.report(tx, "h", runs))

    def stop_ordered(self) -> None:
        """The host ends the tasks that it was ordered to stop."""
        for task in self.live_tasks():
            if task.desired is TaskState.STOPPED:
                self.observe(task, 137, ended=True)

    # What the world shows

    def states_of(self, *job_ids: str) -> list[str]:
        return [self.state(job_id).value for job_id in job_ids]

    def children(self, job_id: str) -> list[Job]:
        parent = self.job(job_id)
        mark = ":" if parent.kind is JobKind.ARRAY else "#"
        return [self.job(f"{job_id}{mark}{index}") for index in range(parent.size)]

    def check_summaries(self) -> None:
        """The counts of every array are those of its children. What is in memory is what the rows say."""
        fresh = Jobs(self.store)
        for job_id, kind in self.store.execute("SELECT id, kind FROM job").fetchall():
            parent = fresh.get(job_id)
            assert parent is not None and parent == self.job(job_id)
            children = [fresh.child(parent, index) for index in range(parent.size)] if kind != "single" else []
            assert children == [self.store.jobs.child(parent, index) for index in range(parent.size)][: len(children)]
            if kind == "array":
                counted = Counter(child.state for child in children)
                assert {state: count for state, count in fresh.summary(parent).items() if count} == dict(counted), job_id
                if parent.state in ENDED:
                    assert all(child.state in ENDED for child in children)


def _exit(rule: ExitRule) -> dict[str, str]:
    given = {"onStatusReason": rule.on_status_reason, "onReason": rule.on_reason, "onExitCode": rule.on_exit_code}
    return {"action": "RETRY" if rule.retries else "EXIT", **{member: value for member, value in given.items() if value}}
