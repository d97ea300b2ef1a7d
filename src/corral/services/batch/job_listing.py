"""ListJobs: the jobs of a queue, the children of an array, or the nodes of a multi-node job.

A nextToken contains a cursor: the position of the last job of the previous page, as JSON.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.job import Job, JobKind, JobState, ListedJob
from corral.model.numbers import whole_number
from corral.services.batch.errors import ClientException
from corral.services.batch.job_definitions import split_definition
from corral.services.batch.job_description import status_summary
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.names import DEFINITION, JOB, PAGES, arn, milliseconds
from corral.services.batch.waiting_reasons import reasons
from corral.store import Store

Cursor = tuple[float, ...]

LIST_PAGES = replace(PAGES, default=1000, largest=1000)
FILTERED_MAX = 100  # the maximum number of jobs per page if the request has a filter
EXPLAINED_MAX = 100  # the maximum number of RUNNABLE jobs per page, because the reason for the wait of each job must be computed
READ_MAX = 400  # the maximum number of jobs per page in all other cases, so that a request does not delay other requests for long
FILTERS = ("JOB_NAME", "JOB_DEFINITION", "BEFORE_CREATED_AT", "AFTER_CREATED_AT", "SHARE_IDENTIFIER")
PREFIXED = {"JOB_NAME": "name", "JOB_DEFINITION": "definition"}  # filter whose value can end with * → its column
TIME_MAX_MS = 10**15
# The length of a cursor. It contains the number or index of a job (NUMBERED), or its creation time and its number (TIMED).
NUMBERED, TIMED = 1, 2


def list_jobs(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    given = [name for name in ("jobQueue", "arrayJobId", "multiNodeJobId") if params.get(name)]
    if len(given) != 1:
        raise ClientException(
            f"Specify exactly one of jobQueue, arrayJobId and multiNodeJobId; the request has {' and '.join(given) or 'none'}."
        )
    limit = min(LIST_PAGES.limit_of(params) or READ_MAX, READ_MAX)
    if given[0] != "jobQueue":
        kind = JobKind.ARRAY if given[0] == "arrayJobId" else JobKind.MULTI_NODE
        return _children(tx, params, caller, params[given[0]], kind, limit)
    return _of_queue(tx, params, caller, limit)


def _children(tx: Tx[Store], params: dict[str, Any], caller: Caller, job_id: str, kind: JobKind, limit: int) -> dict[str, Any]:
    parent = tx.store.jobs.get(job_id)
    if parent is None or parent.region != caller.region or parent.kind is not kind:
        what = "an array" if kind is JobKind.ARRAY else "a multi-node"
        raise ClientException(f"Job {job_id[:200]} does not exist, or is not {what} job: give the id of {what} job.")
    after = _cursor(params, NUMBERED)
    found = tx.store.jobs.listed_children(parent, _state(params) or JobState.RUNNING, after, limit + 1)
    first = tx.store.jobs.get(found[0].id) if found and found[0].state is JobState.RUNNABLE else None
    queue = find_queue(tx, parent.region, parent.queue)
    if first is not None and queue is not None:  # one reason for all children, because they need the same resources
        why = reasons(tx, queue, [first]).get(first.id, "")
        found = [replace(each, status_reason=why or each.status_reason) for each in found]
    return _page(tx, caller, found, limit, parent)


def _of_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller, limit: int) -> dict[str, Any]:
    queue = find_queue(tx, caller.region, params["jobQueue"])
    if queue is None:
        raise ClientException(f"JobQueue {params['jobQueue'][:300]} not found.")
    filters = params.get("filters") or ()
    listed = tx.store.jobs.listed
    state = _state(params)
    if not filters:
        if state is JobState.RUNNABLE:
            limit = min(limit, EXPLAINED_MAX)
        found = listed(caller.region, queue.name, _cursor(params, NUMBERED), limit + 1, state=state or JobState.RUNNING)
        return _page(tx, caller, _explained(tx, queue, found), limit)
    if len(filters) > 1:
        raise ClientException(f"ListJobs accepts one filter at a time, not {len(filters)}.")
    name, values = filters[0].get("name", ""), filters[0].get("values") or []
    if name not in FILTERS:
        raise ClientException(f"The filter '{name[:100]}' does not exist: use one of {', '.join(FILTERS)}.")
    if len(values) != 1 or not values[0]:
        what = f"it has {len(values)} values" if len(values) != 1 else "the value is empty"
        raise ClientException(f"The filter {name} must have exactly one value: {what}.")
    limit = min(limit, FILTERED_MAX)
    if name in PREFIXED and values[0].endswith("*") and not values[0].startswith("arn:"):
        found, rest = tx.store.jobs.matching(
            caller.region, queue.name, PREFIXED[name], values[0][:-1], _cursor(params, TIMED), limit
        )
        return _response(tx, caller, _explained(tx, queue, found), rest)
    chosen, numbers = _filter(caller.region, name, values[0], state)
    found = listed(caller.region, queue.name, _cursor(params, numbers), limit + 1, **chosen)
    return _page(tx, caller, _explained(tx, queue, found), limit)


def _explained(tx: Tx[Store], queue: JobQueue, found: list[ListedJob]) -> list[ListedJob]:
    """Return the jobs, and add the reasons why RUNNABLE jobs wait."""
    waiting = [job for each in found if each.state is JobState.RUNNABLE and (job := tx.store.jobs.get(each.id)) is not None]
    why = reasons(tx, queue, waiting) if waiting else {}
    return [replace(each, status_reason=why[each.id]) if each.id in why else each for each in found]


def _filter(region: str, name: str, value: str, state: JobState | None) -> tuple[dict[str, Any], int]:
    """Return the arguments that make the store apply a filter, and the length of its cursors."""
    if name == "SHARE_IDENTIFIER":
        return {"share": value, "state": state}, NUMBERED
    if name == "JOB_NAME":
        return {"name": value}, NUMBERED
    if name == "JOB_DEFINITION":
        if not value.startswith("arn:"):
            return {"definition": value}, NUMBERED
        definition, revision = split_definition(region, value)
        return {"definition": definition, "revision": revision}, NUMBERED
    at_ms = whole_number(value, TIME_MAX_MS)
    if at_ms is None:
        raise ClientException(
            f"The value '{value[:100]}' of the filter {name} is not valid: give a time in milliseconds since 1970."
        )
    return {"before_s" if name == "BEFORE_CREATED_AT" else "after_s": at_ms / 1000}, TIMED


def _state(params: dict[str, Any]) -> JobState | None:
    given = params.get("jobStatus")
    if given is None:
        return None
    try:
        return JobState(given)
    except ValueError:
        raise ClientException(f"jobStatus '{given[:100]}' is not valid: use one of {', '.join(JobState)}.") from None


def _cursor(params: dict[str, Any], numbers: int) -> Cursor:
    def read(text: str) -> Cursor:
        if not text:
            return ()
        found = orjson.loads(text)
        if not isinstance(found, list) or len(found) != numbers:
            raise ValueError("not a position in this list")
        if not all(type(value) in (int, float) and abs(value) <= TIME_MAX_MS for value in found):
            raise ValueError("not a position in this list")
        return tuple(found)

    return LIST_PAGES.position(params, read)


def _page(tx: Tx[Store], caller: Caller, found: list[ListedJob], limit: int, parent: Job | None = None) -> dict[str, Any]:
    return _response(tx, caller, found[:limit], found[limit - 1].cursor if len(found) > limit else (), parent)


def _response(
    tx: Tx[Store], caller: Caller, found: list[ListedJob], rest: Cursor, parent: Job | None = None
) -> dict[str, Any]:  # fmt: skip
    """Return the response with one page of jobs. `rest` is the cursor of the next page, or () if there is none."""
    jobs = [_summary(tx, caller, job, parent) for job in found]
    return {"jobSummaryList": jobs, **LIST_PAGES.more(orjson.dumps(rest).decode() if rest else None)}


def _summary(tx: Tx[Store], caller: Caller, job: ListedJob, parent: Job | None) -> dict[str, Any]:
    """Describe a job in the form of ListJobs. The serializer leaves out members that are None."""
    summary: dict[str, Any] = {
        "jobArn": arn(caller.account, caller.region, f"{JOB}/{job.id}"),
        "jobId": job.id,
        "jobName": job.name,
        "createdAt": milliseconds(job.created_at_s),
        "shareIdentifier": job.share or None,
        "status": job.state.value,
        "statusReason": job.status_reason or None,
        "startedAt": milliseconds(job.started_at_s) if job.started_at_s is not None else None,
        "stoppedAt": milliseconds(job.stopped_at_s) if job.stopped_at_s is not None else None,
        "jobDefinition": arn(caller.account, caller.region, f"{DEFINITION}/{job.definition}"),
        "isCancelled": True if job.cancelled else None,
        "isTerminated": True if job.terminated else None,
    }
    if job.attempt is not None and (job.attempt.exit_code is not None or job.attempt.reason):
        summary["container"] = {"exitCode": job.attempt.exit_code, "reason": job.attempt.reason or None}
    if job.kind is JobKind.ARRAY:
        summary["arrayProperties"] = {"size": job.size, **status_summary(tx, job.number)}
    elif job.kind is JobKind.CHILD:
        summary["arrayProperties"] = {"index": job.index}
    elif job.kind is JobKind.MULTI_NODE:
        summary["nodeProperties"] = {"numNodes": job.size}
    elif job.kind is JobKind.NODE and parent is not None:
        is_main = job.index == parent.spec.main_node
        summary["nodeProperties"] = {"isMainNode": is_main, "nodeIndex": job.index, "numNodes": parent.size}
    return summary
