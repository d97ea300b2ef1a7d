"""Sends requests twice, and requests that are refused, and compares the responses with those of AWS."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import ClientError

from answers.contract import documented_errors, operations
from answers.recorder import RECORD, error_code
from answers.tables import is_read
from corral.access import sessions
from corral.aws.constraints.tree import ConstraintNode
from corral.aws.shapes import Shape
from corral.model.principal import role_session
from fuzz.composer import input_of
from harness import MAKING_A_CLIENT, REGION, SESSION, Corral, container, eventually
from wire.constraint_values import valid
from wire.oracle import protocols_of

ACCOUNT = "123456789012"
SAME = "the same result"
OTHER = "another result"
NOW = "the result at that time"  # a read of what changes by itself: the results may be equal or not
SHOWN = 300  # characters
LATER_S = 4_000_000_000


class Calls:
    """The operations of one service, through boto3. `wrong` has the calls with another outcome than expected."""

    def __init__(self, corral: Corral, service: str) -> None:
        self.corral = corral
        self.service = service
        self.wrong: list[str] = []
        self._client = corral.new_client(service, parameter_validation=False)

    def of(self, service: str) -> Any:
        """The client of another service, whose resources this one needs."""
        return self.corral.client(service)

    def arn(self, resource: str, region: str = REGION, service: str | None = None) -> str:
        return f"arn:aws:{service or self.service}:{region}:{ACCOUNT}:{resource}"

    def __call__(self, operation: str, /, **params: Any) -> Any:
        """Call an operation once; a read twice, because both results must be equal."""
        return self._read(operation, params) if is_read(operation) else self._call(operation, params)

    def twice(self, operation: str, outcome: str, /, until: Callable[[], Any] | None = None, **params: Any) -> Any:
        """Return the first result. `outcome` says what the second call does: SAME, OTHER, NOW or the code of its error.

        The second call waits until `until` returns something true.
        """
        first = self._call(operation, params)
        if until is not None:
            eventually(until, f"the first {operation} is complete")
        try:
            second = self._call(operation, params)
            got = NOW if outcome == NOW else SAME if first == second else OTHER
        except ClientError as error:
            got = self._name(operation, error)
        self._second(operation, outcome, got)
        return first

    def twice_refused(self, operation: str, code: str, /, **params: Any) -> None:
        """An operation that never succeeds here."""
        self.refused(operation, code, **params)
        self.refused(operation, code, **params)
        self._second(operation, code, code)

    def refused(self, operation: str, code: str, /, **params: Any) -> None:
        try:
            self._call(operation, params)
            self.wrong.append(f"{operation} {str(params)[:SHOWN]} succeeds; expected {code}")
        except ClientError as error:
            got = self._name(operation, error)
            if got != code:
                self.wrong.append(f"{operation} {str(params)[:SHOWN]}: {str(error)[:SHOWN]}; expected {code}")

    def all_refused(self, code: str, names: str = "*", but: str = "", /, **given: Any) -> None:
        """All operations whose model has this error, and that have one of the given members, answer it.

        Other required members have valid values that name nothing. `names` and `but` are patterns of operations.
        """
        count = 0
        for operation in operations(self.service):
            shape, node = input_of(self.service, protocols_of(self.service)[0], operation)
            if not _matches(operation, names) or _matches(operation, but) or shape is None:
                continue
            here = {name: _fitting(shape.members[name], value) for name, value in given.items() if name in shape.members}
            if here and (code in documented_errors(self.service, operation) or names != "*"):
                count += 1
                self.refused(operation, code, **{**valid(shape, node), **here})
        assert count, f"no operation of {self.service} has {code} and {sorted(given)}"

    def full(self, operation: str, without: str, **values: Any) -> dict[str, Any]:
        """Parameters with all members of the request, except some. `values` are those of members of any depth, by name."""
        shape, node = input_of(self.service, protocols_of(self.service)[0], operation)
        assert shape is not None
        return _full(shape, node, frozenset(without.split()), values)

    def all_denied(self, code: str, names: str = "*", but: str = "") -> None:
        """A task in a container, whose role has no policy, may call none of these operations."""
        client, self._client = self._client, self._confined()
        try:
            for operation in operations(self.service):
                if _matches(operation, names) and not _matches(operation, but):
                    shape, node = input_of(self.service, protocols_of(self.service)[0], operation)
                    self.refused(operation, code, **(valid(shape, node) if shape is not None else {}))
        finally:
            self._client = client

    def _confined(self) -> Any:
        """A client with the credentials of a task in a container. The task itself is a process, which only has to exist."""
        ecs = self.corral.client("ecs")
        ecs.register_task_definition(family="denied", containerDefinitions=[container(["sleep", "600"])])
        [task] = ecs.run_task(taskDefinition="denied")["tasks"]
        task_id = task["taskArn"].rpartition("/")[2]
        key = bytes.fromhex(json.loads((self.corral.data / "sessions.json").read_text())["key"])
        made = sessions.issue(key, b"answer", role_session(ACCOUNT, "none", task_id, "root"), LATER_S, task_id, confined=True)
        with MAKING_A_CLIENT:
            return SESSION.client(
                self.service,
                region_name=REGION,
                endpoint_url=self.corral.url,
                aws_access_key_id=made.session.access_key_id,
                aws_secret_access_key=made.secret_key,
                aws_session_token=made.token,
                config=Config(retries={"max_attempts": 0}, parameter_validation=False),
            )

    def _call(self, operation: str, params: dict[str, Any]) -> Any:
        result = getattr(self._client, xform_name(operation))(**params)
        del result["ResponseMetadata"]
        return {name: value.read() if hasattr(value, "read") else value for name, value in result.items()}

    def _read(self, operation: str, params: dict[str, Any]) -> Any:
        """Read until two results in a row are equal, because tasks go on meanwhile, and return them."""
        results = [self._call(operation, params)]

        def equal() -> bool:
            results.append(self._call(operation, params))
            return results[-1] == results[-2]

        try:
            eventually(equal)
            got = SAME
        except AssertionError:
            got = OTHER
        except ClientError as error:
            got = self._name(operation, error)
        self._second(operation, SAME, got)
        return results[-1]

    def _second(self, operation: str, expected: str, got: str) -> None:
        RECORD.seconds[self.service, operation] = got
        if got != expected:
            self.wrong.append(f"the second {operation}: {got}; expected {expected}")

    def _name(self, operation: str, error: ClientError) -> str:
        documented = documented_errors(self.service, operation)
        code = error_code(error.response, documented)
        return documented.get(code, code)


def _full(shape: Shape, node: ConstraintNode | None, without: frozenset[str], values: dict[str, Any]) -> Any:
    if shape.type_name == "structure":
        members = node.members if node is not None else {}
        return {
            name: values[name] if name in values else _full(member, members.get(name), without, values)
            for name, member in shape.members.items()
            if name not in without
        }
    if shape.type_name == "list":
        return [_full(shape.member, node.element if node is not None else None, without, values)]
    if shape.type_name == "map" and shape.value.type_name == "string":
        return valid(shape, node) or {"a": "b"}
    return valid(shape, node)


def _matches(operation: str, patterns: str) -> bool:
    return any(fnmatchcase(operation, pattern) for pattern in patterns.split())


def _fitting(shape: Shape, value: Any) -> Any:
    return [value] if shape.type_name == "list" and not isinstance(value, list) else value
