"""The errors that a caller can see.

ApiError                    the caller can fix it; only aws/ turns it into a response
├── ...                     made by `api_error(code)`: one class per AWS error code
└── InternalFailure         a bug of Corral; the caller may retry
Refused                     Corral does not start; the text says what to do
"""

from __future__ import annotations


class ApiError(Exception):
    """An error response. The class has the AWS error code, so that boto3 raises `client.exceptions.<code>`."""

    code: str = "ClientException"
    status: int = 400

    def __init__(self, message: str, **members: object) -> None:
        super().__init__(message)
        self.message = message
        self.members = members  # further members of the modelled error shape
        self.headers: dict[str, str] = {}  # headers of the response; only S3's errors have any


def api_error(code: str, status: int = 400) -> type[ApiError]:
    """The class for one AWS error code."""
    return type(code, (ApiError,), {"code": code, "status": status})


# Texts of S3 errors that both its constraint table (aws/) and its handlers (services/) raise.
S3_FILTER_RULE_NAME = "filter rule name must be either prefix or suffix"
S3_INVALID_ENCRYPTION = "The encryption method specified is not supported"
S3_INVALID_STORAGE_CLASS = "The storage class you specified is not valid"
S3_INVALID_TAG_KEY = "The TagKey you have provided is invalid"
S3_MALFORMED_XML = "The XML you provided was not well-formed or did not validate against our published schema"
S3_UNKNOWN_ACL = "The canned ACL is unknown."

InternalFailure = api_error("InternalFailure", 500)
ServiceUnavailable = api_error("ServiceUnavailable", 503)


def internal_failure() -> ApiError:
    """The error for a bug of Corral. It tells the caller no internals."""
    return InternalFailure("Corral failed on this request; its log has the details.")


class Refused(Exception):
    """Corral does not start here, and has changed nothing."""
