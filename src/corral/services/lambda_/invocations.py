"""Invocations: the operation Invoke, and the rows from which the server runs functions.

Each invocation is a row. The server takes queued rows (`take_invocations`), runs them in processes (`server/functions/runner.py`),
and records the results (`finish_invocation`). A failed asynchronous invocation is retried twice. If Corral is killed while
asynchronous invocations run, they run again after the next start. So a function can get the same event more than once, as on AWS.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import orjson

from corral.access import sessions
from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.model.function import INVOCATIONS, Invocation, InvocationOrder, InvocationOutcome, InvocationState
from corral.model.json_documents import FAULT, json_fault, read_json
from corral.model.metric import Metric, Point
from corral.model.principal import role_session
from corral.model.session import SessionTerms
from corral.services.cloudwatch.metric_writes import hand_over_points
from corral.services.lambda_ import errors
from corral.services.lambda_.functions import is_run, log_group, not_run
from corral.services.lambda_.names import FUNCTION, LATEST, SERVICE, find_function, get_function, region_of
from corral.store import Store
from corral.store.stored_resources import Document

CONCURRENT_MAX = 32  # invocations that run at the same time; AWS's default is 1,000
SYNC_MAX_BYTES = 6 * 1024 * 1024
ASYNC_MAX_BYTES = 1024 * 1024
RETRY_S = (1.0, 2.0)  # the pauses before the second and the third attempt; on AWS one and two minutes
START_MAX_S = 60.0  # a synchronous invocation waits this long for its process, in addition to its timeout
KEPT_S = 3600.0  # how long the rows of ended invocations are kept
ROWS_MAX = 100  # the maximum number of rows that one transaction deletes
WAIT_MAX_S = 10 * 365 * 86_400.0  # practically without end
NAMESPACE = "AWS/Lambda"
CREDENTIALS_S = 12 * 3600
NOT_FOUND = "The function no longer exists."
ROOM = "invocation-room"  # the key that changes when an invocation ends although all that may run were running


# Requests


def invoke(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document, kind = find_function(tx, caller, params), params.get("InvocationType", "RequestResponse")
    if why := run_refusal(tx, document):
        raise errors.InvalidParameterValueException(why)
    if kind == "RequestResponse" and (row := tx.store.functions.get(caller.request_id)) is not None:
        return _response(tx, params, row)
    payload, context = _payload(params, ASYNC_MAX_BYTES if kind == "Event" else SYNC_MAX_BYTES), _client_context(params)
    if kind == "DryRun":
        return {"StatusCode": 204}
    if kind == "Event":
        enqueue(tx, document, payload, id=caller.request_id, context=context)
        return {"StatusCode": 202, "Payload": b""}
    if tx.store.functions.count(InvocationState.RUNNING) >= CONCURRENT_MAX:
        raise errors.TooManyRequestsException(
            f"Rate Exceeded. Corral runs at most {CONCURRENT_MAX} functions at the same time.",
            Reason="ConcurrentInvocationLimitExceeded",
        )
    row = _add(tx, document, payload, caller.request_id, context, is_async=False)
    raise Wait([row.key], tx.now_s + document["Timeout"] + START_MAX_S, keep=True)


def run_refusal(tx: Tx[Store], document: Document) -> str:
    """Return why Corral does not run a function, or an empty text if it runs the function."""
    if tx.settings.isolate:
        return errors.ISOLATED
    return "" if is_run(document) else not_run(document["Runtime"])


def _response(tx: Tx[Store], params: dict[str, Any], row: Invocation) -> dict[str, Any]:
    if not row.state.has_ended:
        if tx.final:
            tx.store.functions.drop(row.id)
            raise errors.ServiceException("The function did not end in time, or Corral is stopping.")
        raise Wait([row.key], row.due_at_s + START_MAX_S, keep=True)
    tx.store.functions.drop(row.id)
    failed = {"FunctionError": "Unhandled"} if row.state is InvocationState.FAILED else {}
    tail = {"LogResult": b64encode(row.log).decode()} if params.get("LogType") == "Tail" else {}
    return {"StatusCode": 200, "ExecutedVersion": LATEST, "Payload": row.result, **failed, **tail}


def _payload(params: dict[str, Any], max_bytes: int) -> bytes:
    payload: bytes = params.get("Payload") or b""
    if len(payload) > max_bytes:
        raise errors.RequestTooLargeException(f"Request must be smaller than {max_bytes} bytes for the InvokeFunction operation")
    fault = params[FAULT] if FAULT in params else json_fault(payload) if payload else ""
    if fault:
        raise errors.InvalidRequestContentException(f"Could not parse request body into json: {fault}")
    return payload


def _client_context(params: dict[str, Any]) -> str:
    try:
        given = b64decode(params.get("ClientContext", ""), validate=True)
        return orjson.dumps(read_json(given) if given else None).decode()
    except ValueError:
        raise errors.InvalidParameterValueException("ClientContext must be JSON in base64.") from None


def enqueue(
    tx: Tx[Store], document: Document, payload: bytes, *, id: str | None = None, context: str = "null", is_async: bool = True
) -> str:
    """Invoke a function, and return the request id. Only a failed asynchronous invocation is tried again."""
    return _add(tx, document, payload, id or tx.ids.uuid(), context, is_async=is_async).id


def room(tx: Tx[Store]) -> int:
    """How many more invocations can begin at once."""
    functions = tx.store.functions
    return CONCURRENT_MAX - functions.count(InvocationState.RUNNING) - functions.count_due(tx.now_s, CONCURRENT_MAX)


def _add(tx: Tx[Store], document: Document, payload: bytes, id: str, context: str, *, is_async: bool) -> Invocation:
    region, name, queued = region_of(document), document["FunctionName"], InvocationState.QUEUED
    row = Invocation(id, region, name, is_async, queued, payload, context, 0, tx.now_s, tx.now_s)
    tx.store.functions.add(row)
    tx.changed(INVOCATIONS)
    return row


# The server


def take_invocations(tx: Tx[Store], room: int) -> list[InvocationOrder]:
    """Return the next invocations to run, at most `room`. Wait until there are some. Return none when the server stops."""
    orders: list[InvocationOrder] = []
    for row in tx.store.functions.queued(tx.now_s, room):
        document = get_function(tx, row.region, row.function)
        if document is None or (why := run_refusal(tx, document)):
            _end(tx, row, InvocationOutcome(False, failure(NOT_FOUND if document is None else why), b""))
            continue
        tx.store.functions.put(row.but(state=InvocationState.RUNNING))
        orders.append(_order(tx, row, document))
    if not orders and not tx.final:
        raise Wait([INVOCATIONS], tx.now_s + WAIT_MAX_S, again_s=tx.store.functions.next_due_s(), keep=True)
    return orders


def _order(tx: Tx[Store], row: Invocation, document: Document) -> InvocationOrder:
    return InvocationOrder(
        id=row.id,
        function_arn=document["FunctionArn"],
        function=row.function,
        region=row.region,
        revision=document["RevisionId"],
        code_id=document["_code"],
        handler=document["Handler"],
        timeout_s=document["Timeout"],
        memory_mib=document["MemorySize"],
        log_group=log_group(document),
        environment=_environment(tx, row, document),
        payload=row.payload,
        context=row.context,
        owner=tx.store.stored.owner(SERVICE, FUNCTION, row.region, row.function),
    )


def _environment(tx: Tx[Store], row: Invocation, document: Document) -> dict[str, str]:
    """Return the environment variables of a function: its own, and those that Lambda sets, such as the credentials of the role."""
    settings, role = tx.settings, str(document["Role"]).rpartition("/")[2]
    owner = tx.store.stored.owner(SERVICE, FUNCTION, row.region, row.function)
    credentials = sessions.issue(
        settings.session_key,
        bytes.fromhex(tx.ids.hex32())[: sessions.NONCE_BYTES],
        role_session(settings.account, role, row.function, owner),
        int(tx.wall_s) + CREDENTIALS_S,
        None,
        epoch=settings.sessions.epoch(None),
        terms=SessionTerms(int(tx.wall_s), for_owner=True),
    )
    return {
        "AWS_ENDPOINT_URL": settings.endpoint_url,
        **document.get("Environment", {}).get("Variables", {}),
        "AWS_ACCESS_KEY_ID": credentials.session.access_key_id,
        "AWS_DEFAULT_REGION": row.region,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{document['Runtime']}",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(document["MemorySize"]),
        "AWS_LAMBDA_FUNCTION_NAME": row.function,
        "AWS_LAMBDA_FUNCTION_VERSION": LATEST,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": log_group(document),
        "AWS_REGION": row.region,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.token,
        "_HANDLER": document["Handler"],
    }


def finish_invocation(tx: Tx[Store], id: str, outcome: InvocationOutcome) -> None:
    """Record the result of an attempt. If an asynchronous invocation has failed, queue the next attempt."""
    row = tx.store.functions.get(id)
    if row is None:  # the client of a synchronous invocation has stopped waiting
        return
    _publish(tx, row, outcome)
    row = row.but(attempts=row.attempts + 1)
    if row.is_async and not outcome.succeeded and row.attempts <= len(RETRY_S):
        retry = row.but(state=InvocationState.QUEUED, due_at_s=tx.now_s + RETRY_S[row.attempts - 1])
        tx.store.functions.put(retry.but(result=outcome.result, log=outcome.log))
        tx.changed(INVOCATIONS)
    else:
        _end(tx, row, outcome)


def _publish(tx: Tx[Store], row: Invocation, outcome: InvocationOutcome) -> None:
    if outcome.duration_ms is None:
        return
    values = (("Invocations", 1.0, "Count"), ("Errors", float(not outcome.succeeded), "Count"))
    points = [
        Point(Metric(row.region, NAMESPACE, name, (("FunctionName", row.function),)), tx.now_s, value, unit)
        for name, value, unit in (*values, ("Duration", outcome.duration_ms, "Milliseconds"))
    ]
    hand_over_points(tx, points)


def failure(message: str, type_: str = "") -> bytes:
    """Return the result of an invocation whose function could not return a result itself."""
    return orjson.dumps({**({"errorType": type_} if type_ else {}), "errorMessage": message})


def _end(tx: Tx[Store], row: Invocation, outcome: InvocationOutcome) -> None:
    state = InvocationState.SUCCEEDED if outcome.succeeded else InvocationState.FAILED
    ended = row.but(state=state, due_at_s=tx.now_s, payload=b"", result=outcome.result, log=outcome.log)
    if row.is_async:  # only custom resources read this row, and they need only the state and the error
        ended = ended.but(result=b"" if outcome.succeeded else outcome.result, log=b"")
    elif (mapping := tx.store.event_batches.mapping_of(row.id)) is not None:
        tx.mark(f"event-source:{mapping}")
    if room(tx) <= 0:
        tx.changed(ROOM)
    tx.store.functions.put(ended)
    tx.changed(row.key)
    tx.due("invocations:", tx.now_s + KEPT_S)


def drop_ended_invocations(tx: Tx[Store]) -> None:
    """Delete the rows of invocations that ended at least an hour (KEPT_S) ago, a limited number in each transaction."""
    dropped = tx.store.functions.drop_ended(tx.now_s - KEPT_S, ROWS_MAX)
    first_s = tx.store.functions.first_ended_s()
    if first_s is not None:
        tx.due("invocations:", tx.now_s if dropped == ROWS_MAX else first_s + KEPT_S)
