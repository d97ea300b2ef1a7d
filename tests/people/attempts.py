"""Attempts of a user on what belongs to another owner: what is called, who may do it, and how it ended.

An attempt is a row of a table (`data_table.py` and the others). Texts in its parameters have placeholders: `<me>` is the name of
the caller, `<them>` the name of the owner, `<task>` the id of the owner's task, and `<my_task>` that of the caller's (`world.py`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError

from harness import REGION, SESSION

ACCOUNT = "123456789012"
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation", "403", "DENIED"})
REASON = re.compile(r"not authorized to perform: ([\w:*-]+)(?: on resource: (\S+))?")
STACK_S = 30.0
DENIED_KIND, HIDDEN, WORKS = "denied", "hidden", "works"

OF_S3: dict[str, Any] = {"signature_version": "s3v4", "s3": {"addressing_style": "path"}}

Names = dict[str, str]
Params = dict[str, Any]


@dataclass
class Actor:
    """A person at a machine: an access key, and the certificate authority that `corral connect` has stored."""

    name: str
    url: str
    access_key: str
    secret_key: str
    ca_bundle: str | None = None
    session_token: str | None = None
    _clients: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        return {"access_key": self.access_key, "secret_key": self.secret_key}

    def client(self, service: str, region: str = REGION) -> Any:
        assert region == REGION
        if service not in self._clients:
            self._clients[service] = SESSION.client(
                service,
                region_name=REGION,
                endpoint_url=self.url,
                aws_access_key_id=self.access_key,
                aws_secret_access_key=self.secret_key,
                aws_session_token=self.session_token,
                verify=self.ca_bundle,
                config=Config(retries={"max_attempts": 0}, **(OF_S3 if service == "s3" else {})),
            )
        return self._clients[service]


@dataclass(frozen=True)
class Outcome:
    kind: str  # DENIED_KIND, HIDDEN, WORKS, or the code of another error
    text: str = ""

    @property
    def reason(self) -> tuple[str, str]:
        """The action and the resource that an error names."""
        found = REASON.search(self.text)
        return (found[1], found[2] or "") if found else ("", "")


Run = Callable[[Actor, Names], Outcome]


@dataclass(frozen=True)
class Attempt:
    name: str
    run: Run
    expected: str = DENIED_KIND
    action: str = ""  # the permission that the error must name
    on: str = ""  # a part of the resource that the error must name
    says: str = ""  # a part of the error, if AWS's error names no permission
    control: str = "<them>"  # who does the same, successfully; "": there is no such caller
    control_run: Run | None = None  # the control, if it is not the same call
    is_last: bool = False  # the control destroys something that other controls need

    def why_wrong(self, outcome: Outcome, names: Names) -> str:
        """Say why an outcome is not as expected. Return an empty text if it is."""
        if outcome.kind != self.expected:
            return f"{outcome.kind}, and not {self.expected}: {outcome.text[:300]}"
        action, resource = outcome.reason
        if self.action and action != self.action:
            return f"the error does not name {self.action}: {outcome.text[:300]}"
        if self.on and filled(self.on, names) not in resource:
            return f"the error does not name {filled(self.on, names)}: {outcome.text[:300]}"
        if self.says not in outcome.text:
            return f"the error does not say {self.says}: {outcome.text[:300]}"
        return ""


def filled(value: Any, names: Names) -> Any:
    """Replace the placeholders in a value."""
    if isinstance(value, str):
        return re.sub(r"<(\w+)>", lambda found: names.get(found[1], found[0]), value)
    if isinstance(value, dict):
        return {filled(key, names): filled(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [filled(each, names) for each in value]
    return value


def outcome_of(call: Callable[[], Any]) -> Outcome:
    try:
        found = call()
    except ClientError as error:
        code, text = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        return Outcome(DENIED_KIND if code in DENIED else code, text)
    except ParamValidationError as error:
        return Outcome("not sent", str(error))
    return Outcome(WORKS, repr(found))


def called(call: str, params: Params) -> Run:
    """A call of boto3: `s3.get_object`."""
    service, _, method = call.partition(".")

    def run(actor: Actor, names: Names) -> Outcome:
        def send() -> Any:
            found = getattr(actor.client(service), method)(**filled(params, names))
            return found["Body"].read() if call == "s3.get_object" else found

        return outcome_of(send)

    return run


def pascal(method: str) -> str:
    return "".join(part.capitalize() for part in method.split("_"))


def api(
    name: str, call: str, params: Params, on: str = "", *, action: str = "", control_with: Params | None = None, **more: Any
) -> Attempt:
    """An attempt to call an operation. The error names the permission `action`, which is usually that of the operation."""
    service, _, method = call.partition(".")
    is_silent = method.startswith("head_") or "says" in more  # a response to HEAD has no text
    needed = "" if is_silent else action or f"{service}:{pascal(method)}"
    control = called(call, control_with) if control_with is not None else None
    return Attempt(name, called(call, params), action=needed, on=on, control_run=control, **more)


def listing(name: str, call: str, params: Params, shows: str, **more: Any) -> Attempt:
    """An attempt to see something in a list. The list is returned, and does not have the text `shows`."""
    run = called(call, params)

    def seen(actor: Actor, names: Names) -> Outcome:
        found = run(actor, names)
        if found.kind != WORKS:
            return found
        return Outcome(WORKS if filled(shows, names) in found.text else HIDDEN, found.text)

    return Attempt(name, seen, expected=HIDDEN, **more)


def partly(name: str, call: str, params: Params, action: str, on: str, **more: Any) -> Attempt:
    """An attempt whose response has an error for each element, for example DeleteObjects."""
    run = called(call, params)

    def inside(actor: Actor, names: Names) -> Outcome:
        found = run(actor, names)
        return Outcome(DENIED_KIND, found.text) if found.kind == WORKS and "AccessDenied" in found.text else found

    return Attempt(name, inside, action=action, on=on, **more)


def stack(
    name: str, resources: Params, action: str, on: str = "", *, parameters: Params | None = None, refused: str = "", **more: Any
) -> Attempt:
    """An attempt by a stack: the creation of a resource fails, and its event names the permission.

    `refused`: CreateStack itself is refused, or the stack fails, with this text.
    """
    template = {"Resources": resources, **(parameters or {})}

    def run(actor: Actor, names: Names) -> Outcome:
        return created(actor, filled(template, names))

    return Attempt(name, run, action=action, on=on, **more)


def created(actor: Actor, template: Params, **more: Any) -> Outcome:
    """Create a stack, wait for its end, delete it, and return why it failed."""
    client, name = actor.client("cloudformation"), f"{actor.name}-{time.monotonic_ns()}"
    text = json.dumps(template)
    begun = outcome_of(lambda: client.create_stack(
        StackName=name, TemplateBody=text, Capabilities=["CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"], **more
    ))  # fmt: skip
    if begun.kind != WORKS:
        return begun
    try:
        status = ended(actor, name)
        if status == "CREATE_COMPLETE":
            return Outcome(WORKS, repr(client.describe_stacks(StackName=name)["Stacks"]))
        return Outcome(*failure_of(actor, name))
    finally:
        client.delete_stack(StackName=name)


def ended(actor: Actor, name: str) -> str:
    client, until_s = actor.client("cloudformation"), time.monotonic() + STACK_S
    while time.monotonic() < until_s:
        status = str(client.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])
        if not status.endswith("IN_PROGRESS"):
            return status
        time.sleep(0.05)
    raise AssertionError(f"the stack {name} is still {status}")


def failure_of(actor: Actor, name: str) -> tuple[str, str]:
    """Return why a stack failed, or the stack that is nested in it."""
    events = actor.client("cloudformation").describe_stack_events(StackName=name)["StackEvents"]
    failed = [each for each in events if each["ResourceStatus"].endswith("_FAILED")]
    reasons = [each.get("ResourceStatusReason", "") for each in failed]
    refused = [each for each in reasons if "not authorized" in each]
    if refused:
        return DENIED_KIND, refused[-1]
    for each in failed:
        nested = each.get("PhysicalResourceId", "")
        if each["ResourceType"] == "AWS::CloudFormation::Stack" and nested and nested != each["StackId"]:
            return failure_of(actor, nested)
    return "failed", " / ".join(reasons)


def results(attempts: Iterable[Attempt], caller: Actor, names: Names) -> Iterable[tuple[Attempt, Outcome]]:
    for each in attempts:
        yield each, each.run(caller, names)


def controls(attempts: Iterable[Attempt], owner: Actor, names: Names) -> Iterable[tuple[Attempt, Outcome]]:
    """Do what the attempts did, as the owner. Those that destroy something come last."""
    for each in sorted((each for each in attempts if filled(each.control, names) == owner.name), key=lambda each: each.is_last):
        yield each, (each.control_run or each.run)(owner, names)
