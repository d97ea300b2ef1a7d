"""Records which errors and which members the clients of tests receive, if CORRAL_ANSWERS names a folder.

`python -m answers` makes the tables from these records.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.handlers import BUILTIN_HANDLERS

from corral.aws.models import service_model
from corral.core.errors import ApiError

FOLDER = os.environ.get("CORRAL_ANSWERS")


@dataclass
class Record:
    """What was received. `files` are the test files that received an error, as `clients/test_jobs.py`."""

    errors: dict[tuple[str, str, str], set[str]] = field(default_factory=lambda: defaultdict(set))  # service, operation, code
    # service, structure, member → how often it was there, how often it was not empty, how often it was not there
    members: dict[tuple[str, str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    seconds: dict[tuple[str, str], str] = field(default_factory=dict)  # service, operation → what a second call did
    answered: set[tuple[str, str]] = field(default_factory=set)  # service, operation: those that succeeded

    def add_error(self, service: str, operation: str, code: str) -> None:
        path = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        self.errors[service, operation, code].add(path.removeprefix("tests/"))

    def add_result(self, service: str, operation: str, shape: Any, result: Any) -> None:
        self.answered.add((service, operation))
        if shape is not None:
            self._add(service, operation, shape, result)

    def _add(self, service: str, name: str, shape: Any, value: Any) -> None:
        if shape.type_name == "structure" and isinstance(value, dict):
            for member, inner in shape.members.items():
                counts = self.members[service, name, member]
                there = value.get(member)
                if there is None:
                    counts[2] += 1
                    continue
                counts[0] += 1
                counts[1] += there not in ([], {})
                self._add(service, inner.name, inner, there)
        elif shape.type_name == "list" and isinstance(value, list):
            for each in value:
                self._add(service, shape.member.name, shape.member, each)
        elif shape.type_name == "map" and isinstance(value, dict):
            for each in value.values():
                self._add(service, shape.value.name, shape.value, each)

    def write(self, path: Path) -> None:
        document = {
            "errors": [[*key, sorted(files)] for key, files in self.errors.items()],
            "members": [[*key, *counts] for key, counts in self.members.items()],
            "seconds": [[*key, outcome] for key, outcome in self.seconds.items()],
            "answered": sorted(self.answered),
        }
        path.write_text(json.dumps(document))

    def read(self, path: Path) -> None:
        """Add a file that `write` has written."""
        document = json.loads(path.read_text())
        for service, operation, code, files in document["errors"]:
            self.errors[service, operation, code] |= set(files)
        for service, structure, member, *counts in document["members"]:
            before = self.members[service, structure, member]
            self.members[service, structure, member] = [one + other for one, other in zip(before, counts)]
        for service, operation, outcome in document["seconds"]:
            self.seconds[service, operation] = outcome
        self.answered |= {(service, operation) for service, operation in document["answered"]}


RECORD = Record()


def follow_clients() -> None:
    """Record the responses to all clients of boto3 sessions that are made from now on."""
    if FOLDER:
        BUILTIN_HANDLERS.append(("after-call", _after_call))


def error_code(response: dict[str, Any], documented: Iterable[str]) -> str:
    """The code of an error. SQS has two, and botocore shows that of the older protocol; the model has the other one."""
    error = response.get("Error", {})
    return str(error["QueryErrorCode"] if error.get("QueryErrorCode") in documented else error.get("Code", ""))


def handled(service: str, operation: str, run: Callable[[], Any]) -> Any:
    """Run a handler in a test that needs no server, and record its result or its error."""
    try:
        result = run()
    except ApiError as error:
        if FOLDER:
            RECORD.add_error(service, operation, error.code)
        raise
    if FOLDER and isinstance(result, dict):
        RECORD.add_result(service, operation, service_model(service, "").operation_model(operation).output_shape, result)
    return result


def write_record() -> None:
    if FOLDER and (RECORD.answered or RECORD.errors):
        folder = Path(FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        RECORD.write(folder / f"{os.getpid()}.json")


def _after_call(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    if os.environ.get("PYTEST_CURRENT_TEST", "").startswith("tests/wire/"):
        return  # no server has made these responses
    service = model.service_model.service_name
    if http_response.status_code >= 300:
        code = error_code(parsed, [shape.name for shape in model.error_shapes])
        RECORD.add_error(service, model.name, code or str(http_response.status_code))
    else:
        RECORD.add_result(service, model.name, model.output_shape, parsed)
