"""The errors a caller can see.

ApiError                    the caller can fix this: typed, and only aws/ turns it into a response
├── ...                     made by `api_error(code)`: one class per AWS error code
└── InternalFailure         ours: something broke, the caller may try again
Refused                     the program will not start; the text says what to do
"""

from __future__ import annotations


class ApiError(Exception):
    """A refusal with the AWS error code on the class, so that boto3 raises `client.exceptions.<code>`."""

    code: str = "ClientException"
    status: int = 400

    def __init__(self, message: str, **members: object) -> None:
        super().__init__(message)
        self.message = message
        self.members = members  # further members of the modelled error shape
        self.headers: dict[str, str] = {}  # that go with it; only S3's answers have such


def api_error(code: str, status: int = 400) -> type[ApiError]:
    """The class for one AWS error code."""
    return type(code, (ApiError,), {"code": code, "status": status})


# Texts of S3 errors that both its constraint table (aws/) and its handlers (services/) raise.
S3_FILTER_RULE_NAME = "filter rule name must be either prefix or suffix"
S3_MALFORMED_XML = "The XML you provided was not well-formed or did not validate against our published schema"
S3_UNKNOWN_ACL = "The canned ACL is unknown."

InternalFailure = api_error("InternalFailure", 500)
ServiceUnavailable = api_error("ServiceUnavailable", 503)


def our_fault() -> ApiError:
    """What a caller is told of a bug of ours: nothing of the inside."""
    return InternalFailure("Corral failed on this request; its log has the details.")


class Refused(Exception):
    """Corral will not start here; nothing was touched."""
