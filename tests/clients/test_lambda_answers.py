"""What Lambda answers: states, revisions, error types and texts, and second calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from clients.function_help import create, zipped
from each import check_each

ARN = "arn:aws:lambda:us-east-1:123456789012:function:"
BEING_CREATED = "The function is being created."
REVISION = "The Revision Id provided does not match the latest Revision Id. Call the {} API to retrieve the latest Revision Id"


@pytest.fixture
def functions(client: Callable[..., Any]) -> Any:
    return client("lambda", parameter_validation=False)


def answer(call: Callable[[], Any]) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response


def test_states_after_create_and_update(functions: Any) -> None:
    code = zipped("def handler(event, context): pass")
    usual = {"Runtime": "python3.12", "Role": "arn:aws:iam::123456789012:role/r", "Handler": "index.handler"}
    made = functions.create_function(FunctionName="states", Code={"ZipFile": code}, **usual)
    assert (made["State"], made["StateReasonCode"], made["StateReason"]) == ("Pending", "Creating", BEING_CREATED)
    assert "LastUpdateStatus" not in made and made["SnapStart"] == {"ApplyOn": "None", "OptimizationStatus": "Off"}
    functions.get_waiter("function_active_v2").wait(FunctionName="states")
    found = functions.get_function(FunctionName="states")["Configuration"]
    assert (found["State"], found["LastUpdateStatus"]) == ("Active", "Successful") and "StateReason" not in found
    assert functions.get_function_configuration(FunctionName="states")["RevisionId"] == found["RevisionId"]
    for update in (
        lambda: functions.update_function_configuration(FunctionName="states", Timeout=9),
        lambda: functions.update_function_code(FunctionName="states", ZipFile=zipped("handler = print")),
    ):
        updated = update()
        assert (updated["State"], updated["LastUpdateStatus"]) == ("Active", "InProgress")
        assert updated["LastUpdateStatusReasonCode"] == "Creating" and updated["LastUpdateStatusReason"] == BEING_CREATED
        functions.get_waiter("function_updated_v2").wait(FunctionName="states")
        found = functions.get_function_configuration(FunctionName="states")
        assert found["LastUpdateStatus"] == "Successful" and "LastUpdateStatusReason" not in found
    [listed] = [each for each in functions.list_functions()["Functions"] if each["FunctionName"] == "states"]
    assert not {"State", "LastUpdateStatus"} & listed.keys() and listed["RevisionId"] == found["RevisionId"]


def fetched(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()


def test_the_location_of_the_code_is_a_link(functions: Any) -> None:
    code = zipped("def handler(event, context): pass")
    usual = {"Runtime": "python3.12", "Role": "arn:aws:iam::123456789012:role/r", "Handler": "index.handler"}
    functions.create_function(FunctionName="linked", Code={"ZipFile": code}, **usual)
    found = functions.get_function(FunctionName="linked")["Code"]
    assert found["RepositoryType"] == "S3" and fetched(found["Location"]) == (200, code)
    start, _, token = found["Location"].rpartition("/")
    for wrong in ("", "none", token[:-4], f"{token[:4]}{'B' if token[4] == 'A' else 'A'}{token[5:]}"):
        status, text = fetched(f"{start}/{wrong}")
        assert status == 403 and b"call GetFunction" in text, wrong
    functions.update_function_code(FunctionName="linked", ZipFile=zipped("handler = print"))
    assert fetched(found["Location"])[0] == 404


def test_a_change_of_the_policy_makes_a_revision(functions: Any) -> None:
    create(functions, "revised", "")
    before = functions.get_function_configuration(FunctionName="revised")["RevisionId"]
    given = {"FunctionName": "revised", "Action": "lambda:InvokeFunction", "Principal": "s3.amazonaws.com"}
    functions.add_permission(**given, StatementId="one", RevisionId=before)
    after = functions.get_policy(FunctionName="revised")["RevisionId"]
    assert after != before and functions.get_function_configuration(FunctionName="revised")["RevisionId"] == after
    stale = answer(lambda: functions.add_permission(**given, StatementId="two", RevisionId=before))
    assert (stale["ResponseMetadata"]["HTTPStatusCode"], stale["Error"]["Message"]) == (412, REVISION.format("GetPolicy"))
    functions.remove_permission(FunctionName="revised", StatementId="one", RevisionId=after)


def test_refusals_and_statuses(functions: Any) -> None:
    create(functions, "answered", "")
    usual = {"Runtime": "python3.12", "Role": "arn:aws:iam::123456789012:role/r", "Handler": "index.handler"}
    code = {"ZipFile": zipped("")}
    permission = {"FunctionName": "answered", "Action": "lambda:InvokeFunction", "Principal": "s3.amazonaws.com"}
    functions.add_permission(**permission, StatementId="one")
    long = "n" * 65
    cases: dict[str, tuple[Callable[[], Any], int, str, str]] = {
        "second create": (
            lambda: create(functions, "answered", ""), 409, "ResourceConflictException", "Function already exist: answered"
        ),
        "no handler": (
            lambda: functions.create_function(FunctionName="x", Code=code, Role=usual["Role"], Runtime="python3.12"), 400,
            "InvalidParameterValueException", "Runtime and Handler are mandatory parameters for functions created "
            "with deployment packages.",
        ),
        "long name": (
            lambda: create(functions, long, ""), 400, "ValidationException",
            f"1 validation error detected: Value '{long}' at 'functionName' failed to satisfy constraint: "
            "Member must have length less than or equal to 64",
        ),
        "no role": (
            lambda: functions.create_function(FunctionName="x", Code=code, Runtime="python3.12"), 400, "ValidationException",
            "1 validation error detected: Value null at 'role' failed to satisfy constraint: Member must not be null",
        ),
        "other version": (
            lambda: functions.get_function(FunctionName="answered", Qualifier="7"), 404, "ResourceNotFoundException",
            f"Function not found: {ARN}answered:7",
        ),
        "second delete": (
            lambda: functions.delete_function(FunctionName="absent"), 404, "ResourceNotFoundException",
            f"Function not found: {ARN}absent",
        ),
        "stale code": (
            lambda: functions.update_function_code(FunctionName="answered", RevisionId="old", **code), 412,
            "PreconditionFailedException", REVISION.format("GetFunction/GetAlias"),
        ),
        "second statement": (
            lambda: functions.add_permission(**permission, StatementId="one"), 409, "ResourceConflictException",
            "The statement id (one) provided already exists. Please provide a new statement id, or remove the existing statement.",
        ),
        "absent statement": (
            lambda: functions.remove_permission(FunctionName="answered", StatementId="two"), 404, "ResourceNotFoundException",
            "Statement two is not found in resource policy.",
        ),
    }  # fmt: skip

    def check(name: str) -> None:
        call, status, code, text = cases[name]
        refusal = answer(call)
        assert refusal["ResponseMetadata"]["HTTPStatusCode"] == status
        assert (refusal["Error"]["Code"], refusal["Error"]["Message"]) == (code, text)
        assert refusal.get("Type") == (None if code == "ValidationException" else "User")

    check_each(cases, check)
    assert functions.remove_permission(FunctionName="answered", StatementId="one")["ResponseMetadata"]["HTTPStatusCode"] == 204
    gone = answer(lambda: functions.remove_permission(FunctionName="answered", StatementId="one"))
    assert gone["Error"]["Message"] == "No policy is associated with the given resource."
    assert (
        answer(lambda: functions.get_policy(FunctionName="answered"))["Error"]["Message"]
        == "The resource you requested does not exist."
    )
    assert functions.delete_function(FunctionName="answered")["ResponseMetadata"]["HTTPStatusCode"] == 204
