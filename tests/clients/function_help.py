"""Helpers for the tests of Lambda functions."""

from __future__ import annotations

import io
import json
from typing import Any
from zipfile import ZipFile

ROLE = "arn:aws:iam::123456789012:role/function-role"


def zipped(source: str, name: str = "index.py", **others: str) -> bytes:
    made = io.BytesIO()
    with ZipFile(made, "w") as archive:
        for file, content in {name: source, **others}.items():
            archive.writestr(file, content)
    return made.getvalue()


def create(client: Any, name: str, source: str, **params: Any) -> str:
    """Create a function from the source of its handler `index.handler`, and return its ARN."""
    usual = {"Runtime": "python3.12", "Role": ROLE, "Handler": "index.handler", "Code": {"ZipFile": zipped(source)}, "Timeout": 30}
    return str(client.create_function(FunctionName=name, **{**usual, **params})["FunctionArn"])


def invoke(client: Any, name: str, event: Any = None, **params: Any) -> Any:
    """Invoke a function, and return its result. The function must succeed."""
    given = {"Payload": json.dumps(event)} if event is not None else {}
    response = client.invoke(FunctionName=name, **given, **params)
    result = json.loads(response["Payload"].read())
    assert "FunctionError" not in response, result
    return result


def messages(logs: Any, name: str) -> list[str]:
    """The log of a function."""
    found = logs.filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    return [event["message"] for event in found]
