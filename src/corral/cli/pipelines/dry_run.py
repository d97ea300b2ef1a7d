"""Shows what `corral pipeline run` would submit, as a table or as JSON. It submits nothing."""

from __future__ import annotations

from typing import Any

from corral.cli.pipelines.executions import record_request
from corral.cli.pipelines.file import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS
from corral.cli.pipelines.plan import JobRequest, PipelinePlan, PlannedStep, job_requests, submit_request
from corral.cli.printing.output import print_message, print_table


def _requests(plan: PipelinePlan) -> list[tuple[PlannedStep, JobRequest]]:
    """Return one request per step, as if all earlier steps had been submitted."""
    wanted = {step.name: range(step.size) for step in plan.steps}
    return [(plan.step(request.step), request) for request in job_requests(plan, wanted, {})]


def plan_document(plan: PipelinePlan, counts: dict[str, int]) -> dict[str, Any]:
    pairs = _requests(plan)
    names = {number: f"JOB-OF-{planned.name}" for number, (planned, _) in enumerate(pairs)}
    steps = []
    for planned, request in pairs:
        definition = planned.step.job_definition or f"{plan.pipeline.name}-{planned.name}"
        tolerant = {name for name in planned.deferred_by if plan.step(name).allowed_failed}
        sent = submit_request(plan, request, definition, 1, "RECORD", names)
        sent["dependsOn"] = [each for each in sent.get("dependsOn", []) if each["jobId"].removeprefix("JOB-OF-") not in tolerant]
        steps.append(
            {
                "step": planned.name,
                "size": planned.size,
                "deferredBy": list(planned.deferred_by),
                "allowedFailed": planned.allowed_failed,
                "registerJobDefinition": planned.definition,
                "submitJob": sent,
            }
        )
    record = record_request(plan.pipeline, counts)["jobDefinitionName"]
    return {"id": plan.id, "name": plan.pipeline.name, "record": record, "steps": steps}


def print_plan(plan: PipelinePlan) -> None:
    rows = []
    for planned in plan.steps:
        step, named = planned.step, planned.step.job_definition
        rows.append(
            {
                "STEP": step.name,
                "JOBS": str(planned.size),
                "QUEUE": planned.queue,
                "VCPU": str(step.vcpus or ("" if named else DEFAULT_VCPUS)),
                "MEMORY": f"{step.memory_mib or DEFAULT_MEMORY_MIB} MiB" if step.memory_mib or not named else "",
                "GPU": str(planned.gpus),
                "AFTER": ", ".join(f"each {after.step}" if after.each else after.step for after in step.after),
                "SUBMITTED": _when_submitted(plan, planned),
            }
        )
    print_table(rows, folded=("STEP", "QUEUE", "AFTER"), right=("JOBS", "VCPU", "MEMORY", "GPU"))
    print_message(f"nothing was submitted: this is what `corral pipeline run {plan.pipeline.file}` would submit.")


def _when_submitted(plan: PipelinePlan, planned: PlannedStep) -> str:
    if not planned.deferred_by:
        return "at once"
    ended = [name for name in planned.deferred_by if plan.step(name).allowed_failed]
    submitted = [name for name in planned.deferred_by if name not in ended]
    parts = [f"after the end of {', '.join(ended)}"] if ended else []
    parts += [f"after {', '.join(submitted)}"] if submitted else []
    return ", ".join(parts)
